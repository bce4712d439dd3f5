//! What somebody has changed in a workspace since HEAD.

use super::decision::{Changed, Decision, Environment};
use super::edits::{Edits, LeftAsItWas, Purpose};
use super::staged::Staged;
use crate::commit::CommitError;
use crate::git::index::within;
use crate::git::repository::UserRepository;
use crate::git::store::Store;
use crate::operation::Operation;
use crate::path::RelPath;
use crate::record::{GitState, Record};
use crate::workspace::LockedWorkspace;

/// The changes of a snapshot to HEAD's tree, as git would store them.
pub(in crate::git) struct LocalEdits {
    /// From the top of the work tree.
    pub(in crate::git) edits: Edits,
    left: LeftAsItWas,
}

impl LocalEdits {
    /// Those of the snapshot of `record`, whose index is `staged`.
    pub(in crate::git) fn of(
        op: &Operation,
        workspace: &LockedWorkspace,
        repository: &UserRepository,
        store: &Store,
        (record, state): (&Record, &GitState),
        staged: &Staged,
        env: &Environment<'_>,
    ) -> Result<Self, CommitError> {
        let settings = repository.settings(env)?;
        let decision = Decision {
            workspace,
            repository,
            store,
            record,
            settings: &settings,
            staged,
            paths: &[],
            purpose: Purpose::Checkpoint,
            env,
        };
        let Changed { edits, left, .. } = decision.changed(op, &state.head)?;
        Ok(Self { edits, left })
    }

    /// Whether it is not known what git would store for a path: a program applies to it, or it was
    /// not captured.
    pub(in crate::git) fn is_unsure(&self, path: &RelPath, scope: &RelPath) -> bool {
        let below = within(path, scope);
        let mut omitted = self.left.omitted.keys();
        self.left.unconverted.contains(path)
            || below.is_some_and(|below| omitted.any(|omitted| below.starts_with(omitted)))
    }
}
