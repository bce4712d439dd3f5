//! Walking the workspace, and reading files that the cache does not know.

use super::Setting;
use super::seed::Seed;
use crate::bulk::Bulk;
use crate::coverage::Coverage;
use crate::search::Search;
use crate::snapshot_error::SnapshotError;
use crate::worktree::memory::{Closing, Outcome};
use crate::worktree::walk::{self, Seeds, WalkOptions, Walked};

/// What a walk saw.
pub(super) struct WalkResult {
    pub(super) walked: Bulk<Walked>,
    pub(super) closing: Bulk<Closing>,
    pub(super) search: Search,
    pub(super) omissions: Coverage,
}

impl Setting<'_> {
    /// Walks the workspace. Content that is read goes to the sink, which keeps it if required.
    pub(super) fn walk(&self, seed: Seed) -> Result<WalkResult, SnapshotError> {
        let (op, options) = (self.request.op, self.request.options);
        let base = seed.base;
        let mut scope = base.scope(self.root, options.watch, seed.usage, self.basis(), &[]);
        let walk_options = WalkOptions {
            cache: &base.cache,
            // No index tells it of anything.
            seeds: &Seeds::default(),
            absent: &base.absent,
            only: None,
            watch: None,
            max_untracked_file_bytes: options.max_untracked_file_bytes,
            max_files: options.max_files,
            op,
            progress: options.progress.as_deref(),
            is_purged: &|id| self.purged.contains(id),
        };
        let walked = walk::search(self.root, &self.rules, self.sink, &mut scope, walk_options)?;
        let mut walked = Bulk::new(op, walked);
        op.check()?;
        let search = scope.search;
        let omissions = walked.omissions.values().cloned().collect();
        let (delta, omitted) = (
            std::mem::take(&mut walked.delta),
            std::mem::take(&mut walked.omissions),
        );
        let outcome = Outcome {
            result: Vec::new(),
            has_kept: false,
        };
        let closing = base
            .into_inner()
            .close(scope, delta, omitted, false, outcome);
        let closing = Bulk::new(op, closing);
        op.check()?;
        Ok(WalkResult {
            walked,
            closing,
            search,
            omissions: Coverage::new(omissions),
        })
    }
}
