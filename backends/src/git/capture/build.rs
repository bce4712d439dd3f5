//! Building the trees of a capture, only for directories that differ from the last capture.

use std::collections::HashMap;

use super::Setting;
use super::seed::Seed;
use crate::bulk::Bulk;
use crate::coverage::Omission;
use crate::git::pack::PackWriter;
use crate::git::trees::{self, Compare, Trees};
use crate::git::{ObjectId, ObjectKind, submodules};
use crate::operation::Operation;
use crate::parallel::in_parts;
use crate::snapshot_error::SnapshotError;
use crate::store_error::StoreError;
use crate::worktree::memory::{Base, Use};
use crate::worktree::walk::Walked;

/// Fewer trees than this are compressed before another thread has begun.
const TREES_PER_THREAD: usize = 50;

/// The trees of a capture, and what no tree can name.
pub(super) struct Built {
    pub(super) trees: Bulk<Trees>,
    pub(super) left_out: Vec<Omission>,
}

impl Setting<'_> {
    /// Builds them, with all that they name in the store or in the pack, and puts them there.
    pub(super) fn build(
        &self,
        base: &Base,
        seed: &Seed,
        walked: &mut Walked,
    ) -> Result<Built, SnapshotError> {
        let (submodules, left_out) = submodules::standing(&base.cache, walked);
        let compare = match (seed.has_only_new_trees, self.request.usage) {
            (false, Use::Takes) => Compare::Yes,
            _ => Compare::No,
        };
        self.request.op.check()?;
        let (before, revised) = (&base.cache.directories, &base.revised);
        let trees = self.borrow(base, walked, |walked| {
            let delta = &mut walked.delta;
            Ok(trees::build(
                self.request.op,
                delta,
                before,
                revised,
                &submodules,
                compare,
            )?)
        })?;
        let trees = Bulk::new(self.request.op, trees);
        add_trees(self.request.op, self.sink.pack, &trees.new)?;
        Ok(Built { trees, left_out })
    }
}

/// Puts new trees into the pack. Each is small, but a change deep in a workspace makes many.
fn add_trees(
    op: &Operation,
    pack: &PackWriter,
    trees: &HashMap<ObjectId, Vec<u8>>,
) -> Result<(), SnapshotError> {
    let trees: Vec<_> = trees.iter().collect();
    let added = in_parts(&trees, TREES_PER_THREAD, |part| {
        for (id, content) in part {
            op.check()?;
            pack.add(ObjectKind::Tree, **id, content)
                .map_err(StoreError::from)?;
        }
        Ok(())
    });
    added.into_iter().collect()
}
