//! Putting back what a run did to the repository itself: index, HEAD and branch.
//!
//! This module is the only code that writes in a user's repository. It follows git's own protocol (the
//! new content in full in `<file>.lock`, which must not exist yet, then a rename), and not
//! libgit2's: a lock is a hard link to a file that carries the operation's id, so that after a
//! crash we know our own from a foreign one, and every directory on the way is opened without
//! following a link. No hook runs, and no configuration is read.

mod directory;
mod hand;
mod moves;
mod refs;
mod staged;

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use self::directory::{Create, open_below, open_directory, read_file};
use self::hand::Hand;
use self::moves::{BranchMove, HeadMove, HeadMoved, Moves, described};
use self::refs::{PACKED_REFS, Refs, free_tags, split};
use self::staged::{Objects, give_objects_back, same_index};
use crate::backend::{RepositoryProblem, RestoreError, StoreError};
use crate::error::{ErrorKind, PathError, printable};
use crate::git::ObjectId;
use crate::patience::Patience;
use crate::record::{GitState, Head};
use crate::workspace::{Identity, LockError, LockFile, StateDir, make_private};
use crate::worktree::root;

/// How long a lock in the user's repository is waited for: git holds one for moments, and one
/// that stays is what a killed git left.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// The most that is read of an index: some ten million paths.
const MAX_INDEX_BYTES: u64 = 2 * 1024 * 1024 * 1024;

/// The user's repository as a rollback finds it.
#[derive(Clone, Debug)]
pub(crate) struct FoundRepository {
    /// The directory with HEAD and the index; that of a linked worktree lies in the main one's.
    pub(crate) git_dir: PathBuf,
    /// The directory with the refs and the objects.
    pub(crate) common_dir: PathBuf,
    /// Of the latter.
    pub(crate) identity: Identity,
    /// What HEAD names now.
    pub(crate) head: Head,
    /// merge, rebase, cherry-pick, revert or bisect, if one is in progress.
    pub(crate) in_progress: Option<String>,
}

/// What is asked to be put back.
pub(crate) struct Request<'a> {
    pub(crate) state: &'a StateDir,
    /// A private directory for what has to lie in a file to be read.
    pub(crate) scratch: &'a Path,
    /// `None`: it is gone; an error: it is there, and cannot be read.
    pub(crate) found: Result<Option<&'a FoundRepository>, RepositoryProblem>,
    pub(crate) before: &'a GitState,
    /// `None`: it was gone, or not captured.
    pub(crate) after: Option<&'a GitState>,
    pub(crate) run_id: &'a str,
    /// Keep what is not as `after` saw it, where a rollback would refuse.
    pub(crate) keeps_edits: bool,
    /// The bytes of an index that a snapshot kept.
    pub(crate) index_bytes: &'a dyn Fn(&ObjectId) -> Result<Vec<u8>, StoreError>,
    /// For the reflog.
    pub(crate) now: Timestamp,
    pub(crate) patience: Duration,
}

/// What is put back of the repository once the files are. It is kept in the journal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RepositoryPlan {
    /// Raw bytes of the path.
    git_dir: Vec<u8>,
    git_inode: u64,
    /// Raw bytes of the path.
    common_dir: Vec<u8>,
    common_inode: u64,
    /// Names our own locks in the repository.
    operation: String,
    /// Seconds since the Unix epoch.
    at: i64,
    /// The safety tags: that of a branch's old tip first.
    tags: Vec<(String, ObjectId)>,
    branches: Vec<BranchMove>,
    head: Option<HeadMove>,
    index: Option<IndexChange>,
    /// What cannot be put back.
    notes: Vec<RepositoryProblem>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum IndexChange {
    /// Put back the staged bytes.
    Write,
    /// There was none.
    Remove,
}

/// A checked plan, and the repository's lock: nothing else of ours writes there meanwhile.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) plan: RepositoryPlan,
    /// The bytes that the index gets.
    pub(crate) index: Option<Vec<u8>>,
    _lock: Option<LockFile>,
}

/// What became of the repository.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// The full name of the tag that keeps the old tip.
    pub(crate) safety_tag: Option<String>,
    /// What could not be put back.
    pub(crate) error: Option<RepositoryProblem>,
}

/// Why a part of the repository could not be put back.
#[derive(Debug, thiserror::Error)]
enum PutError {
    #[error(transparent)]
    Io(#[from] PathError),
    #[error("{what} is locked by another process, or by what is left of one")]
    Locked { what: String },
    #[error("{what} is {found} and not {expected}")]
    Moved {
        what: String,
        expected: String,
        found: String,
    },
    #[error("{what} is {problem}")]
    Unsafe { what: String, problem: &'static str },
    #[error("{} is another directory than before", printable(path))]
    Replaced { path: PathBuf },
    #[error("{last} is taken, and so are all names of tags before it")]
    NoFreeTag { last: String },
}

impl PutError {
    /// What a caller can do about it.
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Io(source) => source.storage_kind(),
            Self::Locked { .. } => ErrorKind::Busy,
            Self::Moved { .. } => ErrorKind::HeadMoved,
            Self::Unsafe { .. } => ErrorKind::HostileRepository,
            Self::Replaced { .. } => ErrorKind::Conflict,
            Self::NoFreeTag { .. } => ErrorKind::LimitExceeded,
        }
    }

    /// As a part of an outcome: `what` is a clause that says what came of it.
    fn problem(&self, what: &str) -> RepositoryProblem {
        RepositoryProblem::new(self.kind(), format!("{what}: {}", chain(self)))
    }
}

/// Decides what has to be put back. Refuses where somebody else was at work since `after`.
/// Writes nothing in the repository.
pub(crate) fn prepare(request: &Request<'_>) -> Result<Prepared, RestoreError> {
    let unsupported = |note| RepositoryProblem::new(ErrorKind::Unsupported, note);
    let (found, after) = match (&request.found, request.after) {
        (Ok(Some(found)), Some(after)) => (*found, after),
        (Err(problem), _) => return Ok(Prepared::nothing(problem.clone())),
        (Ok(None), _) => {
            let note = "the repository is gone: its index, HEAD and branch were not put back";
            return Ok(Prepared::nothing(unsupported(note)));
        }
        (Ok(Some(_)), None) => {
            let note = "the state that is gone back from was captured without the repository, which \
                        could not be read then: its index, HEAD and branch were not put back";
            return Ok(Prepared::nothing(unsupported(note)));
        }
    };
    if let Some(operation) = &found.in_progress
        && request.before.in_progress.as_ref() != Some(operation)
    {
        return Err(RestoreError::InProgress {
            operation: operation_name(operation),
        });
    }
    let lock = lock_repository(request.state, &found.common_dir, request.patience)?;
    let patience = Patience::of(request.patience);
    let (mut plan, moved) = loop {
        let mut plan = RepositoryPlan::at(found, request.now)?;
        let moved = if found.head == after.head {
            plan.move_back(request, found, after)
        } else {
            Some(HeadMoved::of_head(&after.head, &found.head))
        };
        // Whoever held a lock may have moved what it is for: then all is looked at again.
        if moved.is_some() || plan.wait_for_refs(found, patience)? == Waited::No {
            break (plan, moved);
        }
    };
    let mut index = None;
    match moved {
        None => {
            index = plan.put_index_back(request, found, after, patience)?;
            plan.notes.extend(ended_operation(request, found, after));
        }
        Some(moved) if request.keeps_edits => plan.note(
            ErrorKind::HeadMoved,
            format!(
                "{} is at {}, not at {} where the operation left it: HEAD, branch and index were \
                 kept",
                moved.what, moved.found, moved.expected
            ),
        ),
        Some(HeadMoved {
            what,
            expected,
            found,
        }) => {
            return Err(RestoreError::HeadMoved {
                what,
                expected,
                found,
            });
        }
    }
    Ok(Prepared {
        plan,
        index,
        _lock: Some(lock),
    })
}

/// Puts back what the plan says. Safe to repeat: what is right already is left alone.
///
/// A part that cannot be put back ends it, since the parts after it rest on it. What was not done
/// is in the answer.
pub(crate) fn carry_out(
    plan: &RepositoryPlan,
    index: impl FnOnce() -> Result<Vec<u8>, PathError>,
    is_recovery: bool,
    patience: Duration,
) -> Outcome {
    let mut outcome = Outcome::default();
    let mut problems = plan.notes.clone();
    if !plan.is_empty() {
        let hand = Hand {
            plan,
            is_recovery,
            patience,
        };
        if let Err(error) = hand.carry_out(index, &mut outcome.safety_tag) {
            problems.push(error.problem("not everything was put back"));
        }
    }
    outcome.error = RepositoryProblem::of_all(&problems);
    outcome
}

/// Takes the lock that all of our processes share for one repository, whatever the worktree.
pub(crate) fn lock_repository(
    state: &StateDir,
    common_dir: &Path,
    patience: Duration,
) -> Result<LockFile, RestoreError> {
    let meta = std::fs::metadata(common_dir).map_err(prepare_error("look at", common_dir))?;
    let directory = state.path().join("repositories");
    make_private(&directory).map_err(RestoreError::Prepare)?;
    let name = format!("{:x}-{:x}.lock", meta.dev(), meta.ino());
    let what = format!("the repository {}", printable(common_dir));
    LockFile::acquire(&directory.join(name), &what, patience).map_err(|error| match error {
        LockError::Busy { what, holder } => RestoreError::Busy { what, holder },
        LockError::Io(source) => RestoreError::Prepare(source),
    })
}

impl Prepared {
    fn nothing(note: RepositoryProblem) -> Self {
        Self {
            plan: RepositoryPlan {
                notes: vec![note],
                ..RepositoryPlan::default()
            },
            index: None,
            _lock: None,
        }
    }
}

impl RepositoryPlan {
    fn at(found: &FoundRepository, now: Timestamp) -> Result<Self, RestoreError> {
        let inode = |path: &Path| {
            std::fs::metadata(path)
                .map(|m| m.ino())
                .map_err(prepare_error("look at", path))
        };
        Ok(Self {
            git_dir: found.git_dir.as_os_str().as_bytes().to_vec(),
            git_inode: inode(&found.git_dir)?,
            common_dir: found.common_dir.as_os_str().as_bytes().to_vec(),
            common_inode: inode(&found.common_dir)?,
            operation: uuid::Uuid::new_v4().simple().to_string(),
            at: now.as_second(),
            ..Self::default()
        })
    }

    /// Whether nothing of the repository is to be changed.
    pub(crate) fn is_empty(&self) -> bool {
        self.tags.is_empty()
            && self.branches.is_empty()
            && self.head.is_none()
            && self.index.is_none()
    }

    /// What cannot be put back; `None` if there is nothing of that kind.
    pub(crate) fn notes(&self) -> Option<RepositoryProblem> {
        RepositoryProblem::of_all(&self.notes)
    }

    fn note(&mut self, kind: ErrorKind, message: impl Into<String>) {
        self.notes.push(RepositoryProblem::new(kind, message));
    }

    /// Where the lock of [`lock_repository`] belongs.
    pub(crate) fn common_dir(&self) -> PathBuf {
        path_of(&self.common_dir)
    }

    /// Plans where HEAD and branches go; answers with what somebody moved since `after`, if
    /// anything.
    fn move_back(
        &mut self,
        request: &Request<'_>,
        found: &FoundRepository,
        after: &GitState,
    ) -> Option<HeadMoved> {
        let planned = Refs::open(&found.common_dir).and_then(|refs| {
            let now = |name: &str| refs.resolve(name);
            let moves = Moves::between(request.before, after, &now)?;
            let tags = match &moves {
                Ok(moves) => free_tags(&refs, request.run_id, &moves.unnamed)?,
                Err(_) => Vec::new(),
            };
            Ok((moves, tags))
        });
        let (mut moves, tags) = match planned {
            Ok((Ok(moves), tags)) => (moves, tags),
            Ok((Err(moved), _)) => return Some(moved),
            // The run left a trap there. That must not keep it from being rolled back otherwise.
            Err(error) => {
                let what = "HEAD and branch were left where they are";
                self.notes.push(error.problem(what));
                return None;
            }
        };
        let objects = Objects::open(&found.common_dir);
        let lost = moves.destinations().find(|commit| !objects.has(*commit));
        if let Some(commit) = lost {
            self.note(
                ErrorKind::Corrupt,
                format!(
                    "commit {commit} is not in the repository any more: HEAD and branch were left \
                     at {}",
                    described(&after.head)
                ),
            );
            return None;
        }
        for left in std::mem::take(&mut moves.notes) {
            self.note(ErrorKind::HeadMoved, left);
        }
        (self.tags, self.branches, self.head) = (tags, moves.branches, moves.head);
        None
    }

    /// Waits until nobody holds HEAD or a ref that is to be written.
    fn wait_for_refs(
        &self,
        found: &FoundRepository,
        patience: Patience,
    ) -> Result<Waited, RestoreError> {
        let tags = self.tags.iter().map(|(name, _)| name.as_str());
        let branches = self.branches.iter().map(|branch| branch.name.as_str());
        let deletes = self.branches.iter().any(|branch| branch.to.is_none());
        let shared = tags.chain(branches).chain(deletes.then_some(PACKED_REFS));
        let head = self.head.iter().map(|_| ("HEAD", &found.git_dir));
        let mut waited = Waited::No;
        for (name, directory) in shared.map(|name| (name, &found.common_dir)).chain(head) {
            let (above, leaf) = split(name);
            // What cannot be opened here cannot be written later either, which is told then.
            let opened = open_directory(directory)
                .ok()
                .and_then(|fd| open_below(fd.as_fd(), above, Create::No).ok().flatten());
            if let Some(opened) = opened
                && wait_for_lock(opened.as_fd(), leaf, &directory.join(above), patience)?
                    == Waited::Yes
            {
                waited = Waited::Yes;
            }
        }
        Ok(waited)
    }

    /// Plans what the index becomes; answers with its bytes.
    fn put_index_back(
        &mut self,
        request: &Request<'_>,
        found: &FoundRepository,
        after: &GitState,
        patience: Patience,
    ) -> Result<Option<Vec<u8>>, RestoreError> {
        let read = open_directory(&found.git_dir).and_then(|git_dir| {
            let bytes = read_file(git_dir.as_fd(), b"index", MAX_INDEX_BYTES, &found.git_dir)?;
            Ok((git_dir, bytes))
        });
        let (git_dir, now) = match read {
            Ok(read) => read,
            Err(error) => {
                self.notes
                    .push(error.problem("the index was left as it is"));
                return Ok(None);
            }
        };
        let kept = |blob: &Option<ObjectId>| blob.as_ref().map(request.index_bytes).transpose();
        let wanted = kept(&request.before.index)?;
        if wanted == now {
            return Ok(None);
        }
        if request.keeps_edits {
            let then = kept(&after.index)?;
            if !same_index(request.scratch, then.as_deref(), now.as_deref())? {
                let what = "the index was changed since, and was kept";
                self.note(ErrorKind::Conflict, what);
                return Ok(None);
            }
        }
        wait_for_lock(git_dir.as_fd(), "index", &found.git_dir, patience)?;
        let Some(bytes) = wanted else {
            self.index = Some(IndexChange::Remove);
            return Ok(None);
        };
        let lacking = give_objects_back(request, &found.common_dir, &bytes)?;
        if let Some(first) = lacking.first() {
            self.note(
                ErrorKind::Corrupt,
                format!(
                    "the index names {} objects that the repository lacks, such as {first}",
                    lacking.len()
                ),
            );
        }
        self.index = Some(IndexChange::Write);
        Ok(Some(bytes))
    }
}

/// What is said of an operation of git's that was in progress at `before` and has ended since.
fn ended_operation(
    request: &Request<'_>,
    found: &FoundRepository,
    after: &GitState,
) -> Option<RepositoryProblem> {
    let was = &request.before.in_progress;
    let operation = operation_name(was.as_ref()?);
    // One that was begun anew since is another one.
    if *was == after.in_progress && *was == found.in_progress {
        return None;
    }
    let marks = match operation {
        "merge" => "MERGE_HEAD",
        "rebase" => "what git keeps in rebase-merge or rebase-apply",
        "cherry-pick" => "CHERRY_PICK_HEAD",
        "revert" => "REVERT_HEAD",
        "bisect" => "BISECT_LOG",
        _ => "what git knows it by",
    };
    Some(RepositoryProblem::new(
        ErrorKind::Unsupported,
        format!(
            "the {operation} that was in progress has ended since and cannot be begun again, because \
             no snapshot keeps {marks}"
        ),
    ))
}

/// What git calls an operation, for the error.
fn operation_name(operation: &str) -> &'static str {
    ["merge", "rebase", "cherry-pick", "revert", "bisect"]
        .into_iter()
        .find(|name| *name == operation)
        .unwrap_or("git operation")
}

fn path_of(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsString::from_vec(bytes.to_vec()))
}

fn prepare_error(
    operation: &'static str,
    path: &Path,
) -> impl FnOnce(std::io::Error) -> RestoreError {
    let at = PathError::at(operation, path);
    move |source| RestoreError::Prepare(at(source))
}

const FOREIGN_HOLDER: &str = "another process, or by what is left of one";

/// An error with all of its causes.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// Whether somebody held a lock for a while.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waited {
    Yes,
    No,
}

/// Waits until nobody holds the file `name` of `directory`, which is `at`. The lock is looked at,
/// never touched.
fn wait_for_lock(
    directory: BorrowedFd<'_>,
    name: &str,
    at: &Path,
    patience: Patience,
) -> Result<Waited, RestoreError> {
    let lock = format!("{name}.lock");
    let mut waited = Waited::No;
    while root::lstat_at(directory, lock.as_bytes()).is_ok() {
        waited = Waited::Yes;
        if !patience.pause() {
            return Err(RestoreError::Busy {
                what: printable(&at.join(&lock)),
                holder: FOREIGN_HOLDER.to_owned(),
            });
        }
    }
    Ok(waited)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::fs;

    use super::*;
    use crate::backend::{RepositoryRestore, RestoreOutcome};
    use crate::error::ErrorKind;
    use crate::restore::RestoreGoal;
    use crate::restore::naive::{Stage, view};
    use crate::restore::{Captured as _, Publish, Restorable as _, recover};
    use crate::snapshot::Snapshot;
    use crate::worktree::faults::Fault;

    /// A repository with a commit, something staged, something unstaged and something untracked.
    fn repository() -> Stage {
        let stage = Stage::new();
        stage.git(&["init", "-q", "-b", "main"]);
        stage.write("tracked", "one\n");
        stage.write("staged", "one\n");
        stage.git(&["add", "."]);
        stage.git(&["commit", "-q", "-m", "first"]);
        stage.write("staged", "two\n");
        stage.git(&["add", "staged"]);
        stage.write("tracked", "two\n");
        stage.write("untracked", "one\n");
        stage
    }

    /// What a run does that commits everything and goes on.
    fn run(stage: &Stage) {
        stage.write("tracked", "three\n");
        stage.write("made", "by the run\n");
        stage.git(&["add", "."]);
        stage.git(&["commit", "-q", "-m", "by the run"]);
        stage.write("untracked", "by the run\n");
        stage.write("staged", "by the run\n");
        stage.git(&["add", "staged"]);
    }

    fn rollback(before: &Snapshot, after: &Snapshot) -> RepositoryRestore {
        RepositoryRestore::Rollback {
            before: before.clone(),
            after: after.clone(),
            run_id: "run_7".to_owned(),
        }
    }

    fn roll_back(
        stage: &mut Stage,
        before: &Snapshot,
        after: &Snapshot,
    ) -> Result<RestoreOutcome, RestoreError> {
        stage.restore_goal(&Stage::goal(before), rollback(before, after))
    }

    /// What is said of the repository beside a restore that was carried out.
    fn said(outcome: &RestoreOutcome) -> String {
        outcome.repository_error.clone().unwrap().message
    }

    /// Of which kind that is.
    fn told_kind(outcome: &RestoreOutcome) -> ErrorKind {
        outcome.repository_error.clone().unwrap().kind
    }

    /// The state that a run left which began at `before`.
    fn snapshot_since(stage: &Stage, before: &Snapshot) -> Snapshot {
        stage.snapshot_with(&stage.options().since(before.id.clone()))
    }

    fn undo(
        stage: &mut Stage,
        before: &Snapshot,
        after: &Snapshot,
    ) -> Result<RestoreOutcome, RestoreError> {
        let goal = RestoreGoal::Undo {
            before: before.clone(),
            after: after.clone(),
            paths: None,
        };
        let repository = RepositoryRestore::Undo {
            before: before.clone(),
            after: after.clone(),
            run_id: "run_7".to_owned(),
        };
        stage.restore_goal(&goal, repository)
    }

    /// What git sees, apart from tags and reflogs.
    fn seen(stage: &Stage) -> (Vec<u8>, String, String, BTreeMap<String, String>) {
        let mut files = stage.view();
        files.retain(|path, _| !path.starts_with(".git"));
        (
            fs::read(stage.path(".git/index")).unwrap_or_default(),
            fs::read_to_string(stage.path(".git/HEAD")).unwrap(),
            stage.git(&["for-each-ref", "refs/heads"]),
            files,
        )
    }

    /// What must not be left in a repository.
    fn leavings(stage: &Stage) -> Vec<String> {
        let mut left: Vec<String> = view(&stage.path(".git")).into_keys().collect();
        left.retain(|path| path.ends_with(".lock") || path.contains("stillframe-"));
        left
    }

    const TAG: &str = "refs/tags/stillframe/safety-run_7-1";

    #[test]
    fn a_run_that_committed_is_rolled_back_whole() {
        let mut stage = repository();
        let before = stage.snapshot();
        let was = seen(&stage);
        let index = fs::read(stage.path(".git/index")).unwrap();
        let status = stage.git(&["status", "--porcelain"]);
        run(&stage);
        let commit = stage.git(&["rev-parse", "HEAD"]);
        let after = stage.snapshot();
        // git refreshes the index when it is asked; the bytes are compared before that.
        let is = {
            let outcome = roll_back(&mut stage, &before, &after).unwrap();
            assert_eq!(outcome.safety_tag.as_deref(), Some(TAG));
            assert_eq!(outcome.repository_error, None);
            assert_eq!(fs::read(stage.path(".git/index")).unwrap(), index);
            seen(&stage)
        };
        assert_eq!(is.1, was.1);
        assert_eq!(is.2, was.2);
        assert_eq!(is.3, was.3);
        assert_eq!(stage.git(&["status", "--porcelain"]), status);
        assert_eq!(stage.git(&["rev-parse", TAG]), commit);
        assert_eq!(leavings(&stage), Vec::<String>::new());
        stage.git(&["fsck", "--strict"]);
        let reflog = stage.git(&["reflog", "show", "main"]);
        assert!(reflog.contains("{0}: stillframe: roll back"), "{reflog}");

        // The same run once more: the next tag, since the first names another commit.
        stage.write("other", "other\n");
        stage.git(&["add", "other"]);
        let before = stage.snapshot();
        stage.git(&["commit", "-q", "-m", "another"]);
        let after = stage.snapshot();
        let outcome = roll_back(&mut stage, &before, &after).unwrap();
        assert_eq!(
            outcome.safety_tag.as_deref(),
            Some("refs/tags/stillframe/safety-run_7-2")
        );
    }

    #[test]
    fn an_undo_of_a_rollback_goes_forward_again() {
        let mut stage = repository();
        let before = stage.snapshot();
        run(&stage);
        let was = seen(&stage);
        let after = stage.snapshot();
        let outcome = roll_back(&mut stage, &before, &after).unwrap();
        let again = undo(&mut stage, &outcome.guard, &outcome.result).unwrap();
        assert_eq!(again.repository_error, None);
        assert_eq!(seen(&stage), was);
    }

    #[test]
    fn a_commit_of_somebody_else_is_not_taken_back() {
        let mut stage = repository();
        let before = stage.snapshot();
        run(&stage);
        let after = stage.snapshot();
        stage.git(&["commit", "-q", "--allow-empty", "-m", "by a person"]);
        let was = (seen(&stage), view(&stage.path(".git")));

        let error = roll_back(&mut stage, &before, &after).unwrap_err();

        assert_eq!(error.kind(), ErrorKind::HeadMoved, "{error}");
        assert!(error.to_string().contains("refs/heads/main"));
        assert!(!error.touched());
        assert_eq!((seen(&stage), view(&stage.path(".git"))), was);

        // An undo keeps it, and takes back the files.
        let outcome = undo(&mut stage, &before, &after).unwrap();
        let told = said(&outcome);
        assert!(told.contains("HEAD, branch and index were kept"), "{told}");
        assert_eq!(told_kind(&outcome), ErrorKind::HeadMoved);
        let now = seen(&stage);
        assert_eq!((now.0, now.1, now.2), (was.0.0, was.0.1, was.0.2));
        assert_eq!(stage.read("tracked"), "two\n");
        assert_eq!(outcome.safety_tag, None);
    }

    #[test]
    fn what_a_person_staged_since_is_kept_by_an_undo() {
        let mut stage = repository();
        let before = stage.snapshot();
        stage.write("staged", "by the run\n");
        stage.git(&["add", "staged"]);
        let after = stage.snapshot();
        // Stat data alone is no edit.
        stage.chmod("tracked", 0o600);
        stage.chmod("tracked", 0o644);
        stage.git(&[
            "update-index",
            "-q",
            "--refresh",
            "--really-refresh",
            "staged",
        ]);
        let outcome = undo(&mut stage, &before, &after).unwrap();
        assert_eq!(outcome.repository_error, None);
        assert_eq!(stage.git(&["show", ":staged"]), "two");

        let redone = undo(&mut stage, &outcome.guard, &outcome.result).unwrap();
        assert_eq!(stage.git(&["show", ":staged"]), "by the run");
        stage.write("new", "by a person\n");
        stage.git(&["add", "new"]);
        let outcome = undo(&mut stage, &redone.guard, &redone.result).unwrap();
        let told = said(&outcome);
        assert!(told.contains("the index was changed since"), "{told}");
        assert_eq!(told_kind(&outcome), ErrorKind::Conflict);
        assert_eq!(stage.git(&["show", ":new"]), "by a person");
    }

    #[test]
    fn a_first_commit_is_taken_back_packed_or_not() {
        for is_packed in [false, true] {
            let mut stage = Stage::new();
            stage.git(&["init", "-q", "-b", "main"]);
            stage.write("a", "one\n");
            let before = stage.snapshot();
            stage.git(&["add", "."]);
            stage.git(&["commit", "-q", "-m", "first"]);
            stage.git(&["branch", "kept"]);
            if is_packed {
                stage.git(&["tag", "-a", "-m", "peeled", "v1"]);
                stage.git(&["pack-refs", "--all"]);
            }
            let commit = stage.git(&["rev-parse", "HEAD"]);
            let after = stage.snapshot();

            let outcome = roll_back(&mut stage, &before, &after).unwrap();

            assert_eq!(outcome.repository_error, None);
            assert!(!stage.has_ref("refs/heads/main"), "packed: {is_packed}");
            assert!(stage.has_ref("refs/heads/kept"));
            assert!(!stage.has(".git/index"), "there was none");
            assert_eq!(stage.git(&["rev-parse", TAG]), commit);
            assert_eq!(stage.git(&["symbolic-ref", "HEAD"]), "refs/heads/main");
            assert_eq!(stage.git(&["status", "--porcelain"]), "?? a");
            assert_eq!(leavings(&stage), Vec::<String>::new());
            if is_packed {
                assert_eq!(stage.git(&["rev-parse", "v1^{commit}"]), commit);
            }

            undo(&mut stage, &outcome.guard, &outcome.result).unwrap();
            assert_eq!(stage.git(&["rev-parse", "main"]), commit);
            assert_eq!(stage.git(&["status", "--porcelain"]), "");
        }
    }

    #[test]
    fn a_packed_branch_goes_back() {
        let mut stage = repository();
        let before = stage.snapshot();
        let first = stage.git(&["rev-parse", "HEAD"]);
        run(&stage);
        stage.git(&["pack-refs", "--all"]);
        let after = stage.snapshot();
        let outcome = roll_back(&mut stage, &before, &after).unwrap();
        assert_eq!(outcome.repository_error, None);
        assert_eq!(stage.git(&["rev-parse", "refs/heads/main"]), first);
    }

    #[test]
    fn head_goes_back_to_its_branch_and_other_branches_stay() {
        let mut stage = repository();
        let before = stage.snapshot();
        stage.git(&["checkout", "-q", "-b", "topic/deep"]);
        run(&stage);
        let tip = stage.git(&["rev-parse", "HEAD"]);
        let after = stage.snapshot();

        let outcome = roll_back(&mut stage, &before, &after).unwrap();

        assert_eq!(stage.git(&["symbolic-ref", "HEAD"]), "refs/heads/main");
        assert_eq!(stage.git(&["rev-parse", "topic/deep"]), tip);
        assert_eq!(outcome.safety_tag, None, "its branch keeps the tip");
        assert_eq!(outcome.repository_error, None);
    }

    /// What a run does to the branch that it leaves.
    const LEFT_BEHIND: [&[&[&str]]; 5] = [
        // Elsewhere, by force.
        &[
            &["checkout", "-q", "-b", "other"],
            &["branch", "-f", "main", "HEAD~1"],
        ],
        // Onto a commit of the run's own, which nothing else names.
        &[
            &["checkout", "-q", "--detach"],
            &["commit", "-q", "--allow-empty", "-m", "by the run"],
            &["update-ref", "refs/heads/main", "HEAD"],
        ],
        &[&["checkout", "-q", "--detach"], &["branch", "-D", "main"]],
        &[
            &["checkout", "-q", "--detach"],
            &["branch", "-D", "main"],
            &["pack-refs", "--all"],
        ],
        &[
            &["commit", "-q", "--allow-empty", "-m", "by the run"],
            &["branch", "-m", "main", "renamed"],
        ],
    ];

    fn two_commits() -> Stage {
        let stage = repository();
        stage.git(&["commit", "-q", "-m", "second"]);
        stage
    }

    #[test]
    fn a_branch_that_the_run_left_and_then_moved_goes_back() {
        for commands in LEFT_BEHIND {
            let mut stage = two_commits();
            stage.git(&["pack-refs", "--all"]);
            let first = stage.git(&["rev-parse", "main"]);
            let status = stage.git(&["status", "--porcelain"]);
            let before = stage.snapshot();
            for command in commands {
                stage.git(command);
            }
            let left = seen(&stage);
            let tip = stage
                .has_ref("refs/heads/main")
                .then(|| stage.git(&["rev-parse", "refs/heads/main"]));
            let after = snapshot_since(&stage, &before);

            let outcome = roll_back(&mut stage, &before, &after).unwrap();

            assert_eq!(outcome.repository_error, None, "{commands:?}");
            assert_eq!(stage.git(&["symbolic-ref", "HEAD"]), "refs/heads/main");
            assert_eq!(stage.git(&["rev-parse", "refs/heads/main"]), first);
            assert_eq!(stage.git(&["status", "--porcelain"]), status);
            assert_eq!(leavings(&stage), Vec::<String>::new());
            match tip {
                // The old tip has a name, whoever else has it.
                Some(tip) => {
                    assert_eq!(outcome.safety_tag.as_deref(), Some(TAG));
                    assert_eq!(stage.git(&["rev-parse", TAG]), tip);
                }
                None => assert_eq!(outcome.safety_tag, None, "{commands:?}"),
            }
            stage.git(&["fsck", "--strict"]);

            // There and back again.
            let undone = undo(&mut stage, &outcome.guard, &outcome.result).unwrap();
            assert_eq!(undone.repository_error, None, "{commands:?}");
            assert_eq!(seen(&stage), left, "{commands:?}");
            let redone = undo(&mut stage, &undone.guard, &undone.result).unwrap();
            assert_eq!(redone.repository_error, None, "{commands:?}");
            assert_eq!(stage.git(&["rev-parse", "refs/heads/main"]), first);
            assert_eq!(stage.git(&["symbolic-ref", "HEAD"]), "refs/heads/main");
        }
    }

    #[test]
    fn a_branch_that_was_left_and_that_somebody_moves_since_is_theirs() {
        for theirs in [
            &["update-ref", "refs/heads/main", "HEAD~1"][..],
            &["branch", "-q", "-D", "main"],
        ] {
            for moves in [
                &["update-ref", "refs/heads/main", "HEAD~2"][..],
                &["status"],
            ] {
                let mut stage = two_commits();
                stage.git(&["commit", "-q", "--allow-empty", "-m", "third"]);
                let before = stage.snapshot();
                stage.git(&["checkout", "-q", "-b", "other"]);
                stage.write("tracked", "by the run\n");
                stage.git(moves);
                let after = snapshot_since(&stage, &before);
                stage.git(theirs);
                let was = (seen(&stage), view(&stage.path(".git")));

                let error = roll_back(&mut stage, &before, &after).unwrap_err();

                assert_eq!(error.kind(), ErrorKind::HeadMoved, "{error}");
                assert!(error.to_string().contains("refs/heads/main"), "{error}");
                assert_eq!((seen(&stage), view(&stage.path(".git"))), was);

                // An undo keeps it, and takes back the files.
                let outcome = undo(&mut stage, &before, &after).unwrap();
                let told = said(&outcome);
                assert!(told.contains("refs/heads/main is at"), "{told}");
                let now = seen(&stage);
                assert_eq!((now.0, now.1, now.2), (was.0.0, was.0.1, was.0.2));
                assert_eq!(stage.read("tracked"), "two\n");
            }
        }
    }

    #[test]
    fn the_commits_of_a_moved_branch_and_of_a_detached_head_both_keep_a_name() {
        let mut stage = two_commits();
        let before = stage.snapshot();
        stage.git(&["checkout", "-q", "--detach"]);
        for message in ["by the run", "and on"] {
            stage.git(&["commit", "-q", "--allow-empty", "-m", message]);
        }
        stage.git(&["update-ref", "refs/heads/main", "HEAD~1"]);
        let tips = [
            stage.git(&["rev-parse", "main"]),
            stage.git(&["rev-parse", "HEAD"]),
        ];
        let after = snapshot_since(&stage, &before);
        let outcome = roll_back(&mut stage, &before, &after).unwrap();
        assert_eq!(outcome.safety_tag.as_deref(), Some(TAG));
        let next = TAG.replace("-1", "-2");
        assert_eq!(
            [
                stage.git(&["rev-parse", TAG]),
                stage.git(&["rev-parse", &next])
            ],
            tips
        );
    }

    #[test]
    fn other_branches_that_a_run_moved_stay() {
        let mut stage = two_commits();
        stage.git(&["branch", "side"]);
        let before = stage.snapshot();
        stage.git(&["branch", "-f", "side", "HEAD~1"]);
        stage.git(&["checkout", "-q", "side", "--", "."]);
        let side = stage.git(&["rev-parse", "side"]);
        let after = snapshot_since(&stage, &before);
        roll_back(&mut stage, &before, &after).unwrap();
        assert_eq!(stage.git(&["rev-parse", "side"]), side);
    }

    #[test]
    fn a_branch_that_nobody_looked_at_stays_and_is_named() {
        let mut stage = repository();
        let before = stage.snapshot();
        run(&stage);
        let tip = stage.git(&["rev-parse", "main"]);
        stage.git(&["checkout", "-q", "-b", "topic"]);
        let after = stage.snapshot();
        let outcome = roll_back(&mut stage, &before, &after).unwrap();
        assert_eq!(stage.git(&["symbolic-ref", "HEAD"]), "refs/heads/main");
        assert_eq!(
            stage.git(&["rev-parse", "main"]),
            tip,
            "nobody knows who moved it"
        );
        let told = said(&outcome);
        assert!(told.contains(&tip), "{told}");
        assert_eq!(stage.read("tracked"), "two\n");
    }

    #[test]
    fn a_detached_head_goes_back_and_its_commit_keeps_a_name() {
        let mut stage = repository();
        stage.git(&["checkout", "-q", "--detach"]);
        let first = stage.git(&["rev-parse", "HEAD"]);
        let before = stage.snapshot();
        run(&stage);
        let tip = stage.git(&["rev-parse", "HEAD"]);
        let after = stage.snapshot();
        let outcome = roll_back(&mut stage, &before, &after).unwrap();
        assert_eq!(stage.git(&["rev-parse", "HEAD"]), first);
        assert_eq!(
            fs::read_to_string(stage.path(".git/HEAD")).unwrap().trim(),
            first
        );
        assert_eq!(stage.git(&["rev-parse", TAG]), tip);
        assert_eq!(outcome.repository_error, None);
    }

    #[test]
    fn a_linked_worktree_has_its_own_head_and_index() {
        let stage = repository();
        let main = (
            fs::read(stage.path(".git/index")).unwrap(),
            fs::read_to_string(stage.path(".git/HEAD")).unwrap(),
        );
        let before_main = stage.git(&["rev-parse", "main"]);
        let linked = stage.outside.join("linked");
        stage.git(&[
            "worktree",
            "add",
            "-q",
            "-b",
            "topic",
            linked.to_str().unwrap(),
        ]);
        let main_git = stage.path(".git");
        let mut stage = stage.moved_to(&linked);
        let before = stage.snapshot();
        stage.write("tracked", "in the worktree\n");
        stage.git(&["commit", "-q", "-a", "-m", "in the worktree"]);
        let tip = stage.git(&["rev-parse", "HEAD"]);
        let after = stage.snapshot();

        let outcome = roll_back(&mut stage, &before, &after).unwrap();

        assert_eq!(outcome.repository_error, None);
        assert_eq!(stage.git(&["rev-parse", "topic"]), before_main);
        assert_eq!(stage.git(&["rev-parse", TAG]), tip);
        assert_eq!(stage.git(&["status", "--porcelain"]), "");
        let now = (
            fs::read(main_git.join("index")).unwrap(),
            fs::read_to_string(main_git.join("HEAD")).unwrap(),
        );
        assert_eq!(now, main, "the main worktree's are untouched");
    }

    #[test]
    fn a_merge_that_the_run_began_is_not_torn() {
        let mut stage = repository();
        stage.git(&["checkout", "-q", "-b", "topic"]);
        stage.git(&["commit", "-q", "-m", "on topic"]);
        stage.git(&["checkout", "-q", "main"]);
        stage.git(&["commit", "-q", "--allow-empty", "-m", "on main"]);
        let before = stage.snapshot();
        stage.git(&["merge", "-q", "--no-commit", "--no-ff", "topic"]);
        let after = stage.snapshot();
        let was = (seen(&stage), view(&stage.path(".git")));
        let error = roll_back(&mut stage, &before, &after).unwrap_err();
        assert!(
            matches!(error, RestoreError::InProgress { operation: "merge" }),
            "{error}"
        );
        assert_eq!((seen(&stage), view(&stage.path(".git"))), was);

        // One that was there already is left alone.
        let before = after;
        stage.write("tracked", "by the run\n");
        let after = stage.snapshot();
        roll_back(&mut stage, &before, &after).unwrap();
        assert_eq!(stage.read("tracked"), "two\n");
        assert!(stage.has(".git/MERGE_HEAD"));
    }

    #[test]
    fn a_foreign_index_lock_is_waited_for_and_never_deleted() {
        let mut stage = repository();
        let before = stage.snapshot();
        run(&stage);
        let after = stage.snapshot();
        stage.write(".git/index.lock", "somebody's\n");
        let was = (seen(&stage), view(&stage.path(".git")));
        let error = prepared(&mut stage, &before, &after, Duration::ZERO).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        assert_eq!((seen(&stage), view(&stage.path(".git"))), was);

        // One that comes later, when the files are restored already.
        stage.remove(".git/index.lock");
        let prepared = prepared(&mut stage, &before, &after, Duration::ZERO).unwrap();
        stage.write(".git/index.lock", "somebody's\n");
        let index = prepared.index.clone().unwrap();
        let outcome = carry_out(&prepared.plan, || Ok(index), false, Duration::ZERO);
        let error = outcome.error.unwrap();
        assert!(error.message.contains("index.lock is locked"), "{error:?}");
        assert_eq!(error.kind, ErrorKind::Busy);
        assert_eq!(stage.read(".git/index.lock"), "somebody's\n");
        assert_eq!(leavings(&stage), ["index.lock"]);
    }

    #[test]
    fn an_operation_that_the_run_ended_is_named_and_does_not_come_back() {
        let named = |begin: &[&str], end: &[&[&str]], operation: &str| {
            let mut stage = repository();
            stage.git(&["checkout", "-q", "-b", "topic"]);
            stage.git(&["commit", "-q", "-m", "on topic"]);
            stage.git(&["checkout", "-q", "main"]);
            stage.git(&["commit", "-q", "--allow-empty", "-m", "on main"]);
            stage.git(begin);
            let before = stage.snapshot();
            let was = seen(&stage);
            for command in end {
                stage.git(command);
            }
            let after = snapshot_since(&stage, &before);
            for is_undo in [false, true] {
                let outcome = match is_undo {
                    false => roll_back(&mut stage, &before, &after),
                    true => undo(&mut stage, &before, &after),
                };
                let outcome = outcome.unwrap();
                let told = said(&outcome);
                assert!(told.contains(operation), "{told}");
                assert_eq!(told_kind(&outcome), ErrorKind::Unsupported);
                assert_eq!(seen(&stage), was, "{operation}");
                // There and back again: a state in which none was in progress has none to lose.
                let again = undo(&mut stage, &outcome.guard, &outcome.result).unwrap();
                assert_eq!(again.repository_error, None, "{operation}");
            }
        };
        let merge = ["merge", "-q", "--no-commit", "--no-ff", "topic"];
        named(&merge, &[&["merge", "--abort"]], "the merge that was");
        named(
            &merge,
            &[&["commit", "-q", "-m", "merged"]],
            "no snapshot keeps MERGE_HEAD",
        );
    }

    #[test]
    fn a_lock_on_anything_that_moves_is_waited_for_and_nothing_is_touched() {
        let locked = |script: &[&[&str]], lock: &str| {
            let mut stage = repository();
            let before = stage.snapshot();
            for command in script {
                stage.git(command);
            }
            stage.write("tracked", "by the run\n");
            let after = snapshot_since(&stage, &before);
            stage.write(lock, "somebody's\n");
            let was = (seen(&stage), view(&stage.path(".git")));
            let error = prepared(&mut stage, &before, &after, Duration::ZERO).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Busy, "{lock}: {error}");
            assert!(error.to_string().contains(lock), "{error}");
            assert!(!error.touched());
            assert_eq!((seen(&stage), view(&stage.path(".git"))), was, "{lock}");
            stage.remove(lock);
            let outcome = roll_back(&mut stage, &before, &after).unwrap();
            assert_eq!(outcome.repository_error, None, "{lock}");
        };
        let commit = ["commit", "-q", "-a", "-m", "by the run"];
        locked(&[&commit], ".git/refs/heads/main.lock");
        locked(&[&commit], ".git/refs/tags/stillframe/safety-run_7-1.lock");
        locked(&[&["checkout", "-q", "-b", "other"]], ".git/HEAD.lock");
        let unborn: &[&[&str]] = &[
            &["checkout", "-q", "--orphan", "other"],
            &["commit", "-q", "-m", "by the run"],
        ];
        locked(unborn, ".git/HEAD.lock");
    }

    #[test]
    fn a_branch_that_moves_while_its_lock_is_waited_for_is_kept() {
        let mut stage = repository();
        let before = stage.snapshot();
        run(&stage);
        let after = stage.snapshot();
        let theirs = stage.git(&["commit-tree", "-m", "by a person", "HEAD^{tree}"]);
        let (branch, lock) = (
            stage.path(".git/refs/heads/main"),
            stage.path(".git/refs/heads/main.lock"),
        );
        fs::write(&lock, format!("{theirs}\n")).unwrap();
        // git's own way to end it, in the midst of the wait.
        let they = std::thread::spawn(move || fs::rename(lock, branch).unwrap());
        let result = prepared(&mut stage, &before, &after, Duration::from_secs(60));
        they.join().unwrap();
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::HeadMoved, "{error}");
        assert_eq!(stage.git(&["rev-parse", "main"]), theirs);
    }

    #[test]
    fn what_the_disk_refuses_is_told_as_that() {
        for (errno, kind) in [
            (rustix::io::Errno::NOSPC, ErrorKind::NoSpace),
            (rustix::io::Errno::IO, ErrorKind::Storage),
        ] {
            let mut refused = 0;
            for call in 0.. {
                let mut stage = repository();
                let before = stage.snapshot();
                run(&stage);
                let after = stage.snapshot();
                let prepared = prepared(&mut stage, &before, &after, Duration::ZERO).unwrap();
                let index = prepared.index.clone().unwrap();
                let fault = Fault::FailAt(call, errno.raw_os_error());
                let (outcome, calls) = crate::worktree::faults::with(fault, || {
                    carry_out(&prepared.plan, || Ok(index), false, Duration::ZERO)
                });
                if calls <= call {
                    break;
                }
                // A line of a reflog is not worth an error.
                if let Some(error) = outcome.error {
                    assert_eq!(error.kind, kind, "at call {call}: {error:?}");
                    refused += 1;
                }
            }
            assert!(refused > 10, "{refused}");
        }
    }

    /// Prepares a rollback without the files.
    fn prepared(
        stage: &mut Stage,
        before: &Snapshot,
        after: &Snapshot,
        patience: Duration,
    ) -> Result<Prepared, RestoreError> {
        let record = |snapshot: &Snapshot| {
            let record = stage.backend.record(&stage.workspace, &snapshot.id);
            record.unwrap().git.unwrap()
        };
        let found = stage.backend.repository(&stage.workspace).unwrap();
        prepare(&Request {
            state: stage.workspace.state(),
            scratch: stage.workspace.store_path(),
            found: Ok(found.as_ref()),
            before: &record(before),
            after: Some(&record(after)),
            run_id: "run_7",
            keeps_edits: false,
            index_bytes: &|blob| stage.backend.index_bytes(&stage.workspace, blob),
            now: Timestamp::UNIX_EPOCH,
            patience,
        })
    }

    #[test]
    fn a_branch_that_moves_at_the_last_moment_is_kept_and_so_is_the_index() {
        let mut stage = repository();
        let before = stage.snapshot();
        run(&stage);
        let after = stage.snapshot();
        let prepared = prepared(&mut stage, &before, &after, Duration::ZERO).unwrap();
        stage.git(&["commit", "-q", "--allow-empty", "-m", "by a person"]);
        let was = seen(&stage);
        let index = prepared.index.clone().unwrap();
        let outcome = carry_out(&prepared.plan, || Ok(index), false, Duration::ZERO);
        let error = outcome.error.unwrap();
        assert!(error.message.contains("refs/heads/main is"), "{error:?}");
        assert_eq!(error.kind, ErrorKind::HeadMoved);
        assert_eq!(seen(&stage), was);
        assert_eq!(leavings(&stage), Vec::<String>::new());
    }

    #[test]
    fn no_hook_runs() {
        let mut stage = repository();
        for hook in [
            "reference-transaction",
            "post-checkout",
            "post-index-change",
        ] {
            let path = format!(".git/hooks/{hook}");
            stage.write(&path, "#!/bin/sh\ntouch canary\n");
            stage.chmod(&path, 0o755);
        }
        stage.git(&["branch", "probe"]);
        assert!(stage.has("canary"), "plain git runs it");
        stage.remove("canary");
        let before = stage.snapshot();
        run(&stage);
        stage.remove("canary");
        let after = stage.snapshot();
        roll_back(&mut stage, &before, &after).unwrap();
        assert!(!stage.has("canary"));
    }

    #[test]
    fn a_planted_symbolic_ref_at_the_name_of_the_tag_is_not_followed() {
        let mut stage = repository();
        let before = stage.snapshot();
        run(&stage);
        stage.git(&["branch", "victim", "HEAD~1"]);
        stage.git(&["symbolic-ref", TAG, "refs/heads/victim"]);
        let after = stage.snapshot();
        let refs = stage.git(&["for-each-ref"]);

        let outcome = roll_back(&mut stage, &before, &after).unwrap();

        assert_eq!(stage.git(&["for-each-ref"]), refs, "no ref moved");
        assert!(said(&outcome).contains("symbolic"));
        assert_eq!(told_kind(&outcome), ErrorKind::HostileRepository);
        assert_eq!(outcome.safety_tag, None);
        assert_eq!(stage.read("tracked"), "two\n", "the files are back");
    }

    #[test]
    fn a_directory_of_refs_that_is_a_link_is_not_written_through() {
        for directory in ["refs/tags", "refs/tags/stillframe", "refs/heads"] {
            let mut stage = repository();
            let before = stage.snapshot();
            run(&stage);
            let after = stage.snapshot();
            let real = stage.path(".git").join(directory);
            let away = stage.outside.join("refs");
            if real.exists() {
                fs::rename(&real, &away).unwrap();
            } else {
                fs::create_dir(&away).unwrap();
            }
            std::os::unix::fs::symlink(&away, &real).unwrap();
            let outside = view(&stage.outside);

            let outcome = roll_back(&mut stage, &before, &after).unwrap();

            assert_eq!(view(&stage.outside), outside, "{directory}");
            assert!(outcome.repository_error.is_some(), "{directory}");
            assert_eq!(stage.read("tracked"), "two\n");
            assert_eq!(outcome.safety_tag, None);
        }
    }

    #[test]
    fn a_repository_that_the_run_removed_is_told() {
        let mut stage = repository();
        let before = stage.snapshot();
        stage.write("tracked", "by the run\n");
        stage.remove(".git");
        let after = stage.snapshot();
        let outcome = roll_back(&mut stage, &before, &after).unwrap();
        assert_eq!(stage.read("tracked"), "two\n");
        assert!(said(&outcome).contains("is gone"));
        assert!(!stage.has(".git"));
    }

    #[test]
    fn objects_that_the_repository_lost_are_told() {
        let mut stage = repository();
        let before = stage.snapshot();
        let blob = stage.git(&["rev-parse", ":staged"]);
        let first = stage.git(&["rev-parse", "HEAD"]);
        run(&stage);
        let after = stage.snapshot();
        let object = |id: &str| format!(".git/objects/{}/{}", &id[..2], &id[2..]);
        stage.remove(&object(&blob));

        let outcome = roll_back(&mut stage, &before, &after).unwrap();
        let told = said(&outcome);
        assert!(told.contains("lacks") && told.contains(&blob), "{told}");
        assert_eq!(told_kind(&outcome), ErrorKind::Corrupt);
        assert_eq!(stage.git(&["rev-parse", "main"]), first);

        undo(&mut stage, &outcome.guard, &outcome.result).unwrap();
        let tip = stage.git(&["rev-parse", "main"]);
        stage.remove(&object(&first));
        let after = stage.snapshot();
        let outcome = roll_back(&mut stage, &before, &after).unwrap();
        let told = said(&outcome);
        assert!(told.contains(&first), "{told}");
        assert_eq!(
            stage.git(&["rev-parse", "main"]),
            tip,
            "it stays where it can be read"
        );
    }

    #[test]
    fn a_manual_restore_leaves_the_repository_alone() {
        let mut stage = repository();
        let before = stage.snapshot();
        run(&stage);
        let repository = view(&stage.path(".git"));
        let outcome = stage.restore(&before);
        assert_eq!(view(&stage.path(".git")), repository);
        assert_eq!((outcome.safety_tag, outcome.repository_error), (None, None));
        assert_eq!(stage.read("tracked"), "two\n");
    }

    #[test]
    fn a_rollback_that_dies_at_any_call_ends_before_or_after() {
        dies_at_any_call(|| {
            let stage = repository();
            let before = stage.snapshot();
            run(&stage);
            let after = stage.snapshot();
            (stage, before, after)
        });
    }

    #[test]
    fn so_does_one_that_deletes_a_packed_branch_and_the_index() {
        dies_at_any_call(|| {
            let stage = Stage::new();
            stage.git(&["init", "-q", "-b", "main"]);
            stage.write("a", "one\n");
            let before = stage.snapshot();
            stage.write("a", "two\n");
            stage.git(&["add", "."]);
            stage.git(&["commit", "-q", "-m", "first"]);
            stage.git(&["pack-refs", "--all"]);
            let after = stage.snapshot();
            (stage, before, after)
        });
    }

    #[test]
    fn so_does_one_that_moves_head_to_its_branch() {
        dies_at_any_call(|| {
            let stage = repository();
            let before = stage.snapshot();
            stage.git(&["checkout", "-q", "--detach"]);
            run(&stage);
            let after = stage.snapshot();
            (stage, before, after)
        });
    }

    #[test]
    fn so_does_one_that_moves_a_branch_which_head_had_left() {
        dies_at_any_call(|| {
            let stage = two_commits();
            let before = stage.snapshot();
            stage.git(&["checkout", "-q", "--detach"]);
            run(&stage);
            stage.git(&["update-ref", "refs/heads/main", "HEAD"]);
            let after = snapshot_since(&stage, &before);
            (stage, before, after)
        });
    }

    fn dies_at_any_call(make: fn() -> (Stage, Snapshot, Snapshot)) {
        let (mut stage, before, after) = make();
        let untouched = seen(&stage);
        roll_back(&mut stage, &before, &after).unwrap();
        let restored = seen(&stage);
        // The bytes of the index hold the inodes of one stage.
        let is = |stage: &Stage, other: &(Vec<u8>, String, String, BTreeMap<String, String>)| {
            let now = seen(stage);
            (&now.1, &now.2, &now.3) == (&other.1, &other.2, &other.3)
        };
        let mut endings = BTreeSet::new();
        for call in 0.. {
            let (mut stage, before, after) = make();
            let old_index = fs::read(stage.path(".git/index")).unwrap();
            let tip = stage.git(&["rev-parse", "HEAD"]);
            let (result, calls) = crate::worktree::faults::with(Fault::StopBefore(call), || {
                roll_back(&mut stage, &before, &after)
            });
            if calls <= call {
                assert!(result.is_ok());
                break;
            }
            let recovery = recover(&stage.workspace).unwrap();
            assert_eq!(recovery.repository_errors, []);
            assert_eq!(recovery.skipped, []);
            assert_eq!(leavings(&stage), Vec::<String>::new(), "at call {call}");
            let is_restored = is(&stage, &restored);
            assert!(
                is_restored || is(&stage, &untouched),
                "at call {call}: {:#?}",
                seen(&stage)
            );
            let index = fs::read(stage.path(".git/index")).unwrap_or_default();
            assert_eq!(
                index != old_index,
                is_restored,
                "index and branch go together"
            );
            if is_restored {
                assert_eq!(stage.git(&["rev-parse", TAG]), tip, "at call {call}");
            }
            endings.insert(is_restored);
        }
        assert_eq!(endings.len(), 2, "the loop crossed the point of no return");
    }

    #[test]
    fn ids_of_runs_make_names_that_git_takes() {
        let mut stage = repository();
        let before = stage.snapshot();
        run(&stage);
        let after = stage.snapshot();
        let repository = RepositoryRestore::Rollback {
            before: before.clone(),
            after,
            run_id: "a..b.lock".to_owned(),
        };
        let outcome = stage
            .restore_goal(&Stage::goal(&before), repository)
            .unwrap();
        let tag = outcome.safety_tag.unwrap();
        assert_eq!(tag, "refs/tags/stillframe/safety-a%2e%2eb%2elock-1");
        stage.git(&["check-ref-format", &tag]);
        assert!(stage.has_ref(&tag));
    }

    #[test]
    fn two_of_us_do_not_write_in_one_repository_at_once() {
        let mut stage = repository();
        let before = stage.snapshot();
        run(&stage);
        let after = stage.snapshot();
        let git_dir = stage.path(".git");
        let held = lock_repository(stage.workspace.state(), &git_dir, Duration::ZERO).unwrap();
        let error = prepared(&mut stage, &before, &after, Duration::ZERO).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        drop(held);
        prepared(&mut stage, &before, &after, Duration::ZERO).unwrap();
        let capture = stage
            .backend
            .capture(&stage.workspace, &stage.options(), &[], Publish::No);
        assert!(capture.unwrap().record().git.is_some());
    }
}
