//! The tree of a commit that saves what a snapshot captured, outside of the user's repository.

use super::decision::{Decided, Decision, Environment};
use super::edits::{LeftAsItWas, Purpose};
use super::objects::CommitObject;
use super::staged::Staged;
use crate::commit::CommitError;
use crate::git::pack::PackWriter;
use crate::git::repository::UserRepository;
use crate::git::store::Store;
use crate::git::tree_object;
use crate::git::{ObjectId, ObjectKind};
use crate::operation::Operation;
use crate::record::{GitState, Record};
use crate::workspace::LockedWorkspace;

/// What is saved.
pub(in crate::git) struct Saving {
    pub(in crate::git) tree: ObjectId,
    pub(in crate::git) left: LeftAsItWas,
    /// What the store has to have for it, with its kind, as far as it is not that of HEAD or of the
    /// snapshot.
    objects: Vec<(ObjectKind, ObjectId, Vec<u8>)>,
}

impl Saving {
    /// Decides what the snapshot of `record` saves: HEAD as it was then, with what was captured.
    pub(in crate::git) fn of(
        op: &Operation,
        workspace: &LockedWorkspace,
        repository: &UserRepository,
        store: &Store,
        (record, state): (&Record, &GitState),
        env: &Environment<'_>,
    ) -> Result<Self, CommitError> {
        let settings = repository.settings(env)?;
        let staged = Staged::of_snapshot(op, repository, store, state)?;
        let base = match state.head.commit() {
            Some(commit) => CommitObject::known(op, repository, commit)?.tree,
            None => tree_object::empty_tree_id(),
        };
        let decision = Decision {
            workspace,
            repository,
            store,
            record,
            settings: &settings,
            staged: &staged,
            paths: &[],
            purpose: Purpose::Checkpoint,
            env,
        };
        let Decided {
            tree,
            trees,
            blobs,
            left,
        } = decision.tree(op, &state.head, base)?;
        let trees = trees.into_iter();
        let mut objects: Vec<_> = trees
            .map(|(id, bytes)| (ObjectKind::Tree, id, bytes))
            .collect();
        let contents = decision.contents(op);
        for (id, source) in &blobs {
            op.check()?;
            // The bytes of a file are in the store, as the snapshot's.
            if !store.contains(id)?
                && let Some(bytes) = contents.bytes_made(source)?
            {
                objects.push((ObjectKind::Blob, *id, bytes));
            }
        }
        Ok(Self {
            tree,
            left,
            objects,
        })
    }

    /// Adds to `pack` what the store lacks of it.
    pub(in crate::git) fn add_to(
        &self,
        store: &Store,
        pack: &PackWriter,
    ) -> Result<(), CommitError> {
        for (kind, id, bytes) in &self.objects {
            if !store.contains(id)? {
                pack.add(*kind, *id, bytes)
                    .map_err(crate::store_error::StoreError::from)?;
            }
        }
        Ok(())
    }
}
