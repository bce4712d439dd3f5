//! The handles of watched workspaces, which keep the state between captures.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use stillframe_backends::{Identity, Workspace};

use crate::id::SessionId;

/// One handle for each watched directory, kept while a session that watches it is open.
///
/// No actor owns this, so that a restart does not lose a watch.
#[derive(Clone, Debug, Default)]
pub(crate) struct WatchedWorkspaces {
    kept: Arc<Mutex<HashMap<Identity, WatchedWorkspace>>>,
}

#[derive(Debug)]
struct WatchedWorkspace {
    workspace: Workspace,
    sessions: BTreeSet<SessionId>,
}

impl WatchedWorkspace {
    /// Whether `other` is the same directory with the same store, opened anew.
    fn is(&self, other: &Workspace) -> bool {
        self.workspace.disk_path() == other.disk_path()
            && self.workspace.store_path() == other.store_path()
    }
}

impl WatchedWorkspaces {
    /// The handle that is kept for this directory; `workspace` itself if none is.
    pub(crate) fn shared(&self, workspace: Workspace) -> Workspace {
        match self.kept().get(&workspace.identity()) {
            Some(kept) if kept.is(&workspace) => kept.workspace.clone(),
            _ => workspace,
        }
    }

    /// Keeps the handle for a session, and answers with the one to use: the one that another
    /// session has of the same directory, if there is one.
    pub(crate) fn keep(&self, workspace: Workspace, session_id: &SessionId) -> Workspace {
        let mut all = self.kept();
        let kept = all
            .entry(workspace.identity())
            .or_insert_with(|| WatchedWorkspace {
                workspace: workspace.clone(),
                sessions: BTreeSet::new(),
            });
        if !kept.is(&workspace) {
            kept.workspace = workspace;
        }
        kept.sessions.insert(session_id.clone());
        kept.workspace.clone()
    }

    /// The handles that nobody keeps once this session does not. Dropping one blocks: its watches
    /// are taken down.
    #[must_use = "to be dropped where blocking is allowed"]
    pub(crate) fn let_go(&self, session_id: &SessionId) -> Vec<Workspace> {
        let mut all = self.kept();
        let left =
            all.extract_if(|_, kept| kept.sessions.remove(session_id) && kept.sessions.is_empty());
        left.map(|(_, kept)| kept.workspace).collect()
    }

    /// Whether a handle is kept for the session.
    pub(crate) fn has(&self, session_id: &SessionId) -> bool {
        let all = self.kept();
        all.values().any(|kept| kept.sessions.contains(session_id))
    }

    /// Lets go of everything. Blocks.
    pub(crate) fn let_go_of_all(&self) {
        let all = std::mem::take(&mut *self.kept());
        drop(all);
    }

    fn kept(&self) -> MutexGuard<'_, HashMap<Identity, WatchedWorkspace>> {
        // The map is changed by single calls, so a panic elsewhere cannot leave it half-way.
        self.kept.lock().unwrap_or_else(|e| e.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use stillframe_backends::StateDir;

    use super::*;

    #[test]
    fn a_handle_is_kept_until_the_last_session_that_watches_has_ended() {
        let top = tempfile::tempdir().unwrap();
        let state = StateDir::open(top.path().join("state")).unwrap();
        let open = |name: &str| {
            let path = top.path().join(name);
            fs::create_dir_all(&path).unwrap();
            Workspace::open(path, &state).unwrap()
        };
        let (first, second) = (SessionId::random(), SessionId::random());
        let watched = WatchedWorkspaces::default();
        watched.keep(open("a"), &first);
        watched.keep(open("a"), &second);
        watched.keep(open("b"), &first);
        let gone = watched.let_go(&first);
        assert_eq!(gone.len(), 1);
        assert_eq!(gone[0].identity(), open("b").identity());
        assert!(watched.has(&second) && !watched.has(&first));
        assert_eq!(watched.let_go(&second).len(), 1);
        assert!(watched.let_go(&second).is_empty());
    }

    #[test]
    fn a_directory_that_was_moved_has_a_handle_of_its_own() {
        let top = tempfile::tempdir().unwrap();
        let state = StateDir::open(top.path().join("state")).unwrap();
        let (old, new) = (top.path().join("a"), top.path().join("b"));
        fs::create_dir(&old).unwrap();
        let watched = WatchedWorkspaces::default();
        let session = SessionId::random();
        watched.keep(Workspace::open(&old, &state).unwrap(), &session);
        fs::rename(&old, &new).unwrap();
        let moved = Workspace::open(&new, &state).unwrap();
        assert_eq!(watched.shared(moved.clone()).disk_path(), moved.disk_path());
        assert_eq!(
            watched.keep(moved, &session).disk_path(),
            new.canonicalize().unwrap()
        );
    }
}
