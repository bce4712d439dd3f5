//! Which paths the hash backend captures: all but what the host and the default names exclude.

use std::sync::Arc;

use crate::backend::SnapshotOptions;
use crate::coverage::OmissionReason;
use crate::dot_git::is_dot_git;
use crate::host_rules::HostRules;
use crate::path::RelPath;
use crate::record::Record;
use crate::snapshot_error::SnapshotError;
use crate::worktree::walk::{Rules, Verdict};

/// The rules of one capture.
pub(crate) struct HashRules {
    host: HostRules,
    include: Vec<RelPath>,
}

impl HashRules {
    pub(crate) fn new(options: &SnapshotOptions) -> Result<Self, SnapshotError> {
        let host = HostRules::with_default_names(&options.ignore)
            .map_err(SnapshotError::InvalidOptions)?;
        Ok(Self {
            host,
            include: options.include.clone(),
        })
    }

    /// The rules that a stored snapshot was captured under.
    pub(crate) fn of_record(record: &Record) -> Option<Self> {
        let host = HostRules::with_default_names(&record.ignore).ok()?;
        Some(Self {
            host,
            include: record.include.clone(),
        })
    }

    /// Whether the host asks for the path, or for something below it.
    fn includes(&self, path: &RelPath, is_directory: bool) -> bool {
        self.include
            .iter()
            .any(|p| path.starts_with(p) || (is_directory && p.starts_with(path)))
    }

    /// The rule that excludes the path or a directory above it.
    pub(crate) fn excludes_in_tree(&self, path: &RelPath, is_directory: bool) -> Option<String> {
        if self.includes(path, is_directory) {
            return None;
        }
        self.host.excludes_in_tree(path, is_directory)
    }
}

/// Whether a directory that is entered is excluded itself, for the sake of something below it.
pub(crate) struct HashScope {
    is_excluded: bool,
}

impl Rules for HashRules {
    type Scope = HashScope;

    fn enter(
        &self,
        above: Option<&Arc<HashScope>>,
        path: &RelPath,
        _has: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Arc<HashScope>, SnapshotError> {
        let is_excluded = above.is_some_and(|above| above.is_excluded)
            || self.host.excludes(path, true).is_some();
        match above {
            // The usual case: nothing to say that was not said above.
            Some(above) if above.is_excluded == is_excluded => Ok(Arc::clone(above)),
            _ => Ok(Arc::new(HashScope { is_excluded })),
        }
    }

    fn is_own(&self, _path: &RelPath) -> bool {
        // A repository is one of the directories that are excluded.
        false
    }

    fn judge(
        &self,
        scope: &HashScope,
        path: &RelPath,
        is_directory: bool,
    ) -> Result<Verdict, SnapshotError> {
        let is_excluded = !self.includes(path, is_directory)
            && (scope.is_excluded || self.host.excludes(path, is_directory).is_some());
        Ok(match is_excluded {
            true => Verdict::Omit(OmissionReason::Excluded),
            false => Verdict::Capture,
        })
    }

    fn forbids(&self, name: &[u8], is_directory: bool) -> Option<OmissionReason> {
        // No option can ask for a repository's own: to put that back would be to write into it.
        // What some file system takes for it would make every restore refuse the whole snapshot.
        match (name == b".git", is_directory) {
            (true, true) => Some(OmissionReason::Excluded),
            (true, false) => Some(OmissionReason::GitDir),
            (false, _) => is_dot_git(name).then_some(OmissionReason::Unrepresentable),
        }
    }

    fn are_in(&self, _name: &[u8]) -> bool {
        false
    }

    fn adopts(&self, _scope: &HashScope, _path: &RelPath) -> Result<bool, SnapshotError> {
        // There is no index to take anything from.
        Ok(false)
    }
}
