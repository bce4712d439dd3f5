//! What a capture starts from: what the last capture of the same kind saw.

use super::{Publish, Setting};
use crate::bulk::Bulk;
use crate::caches::CONTENT_STAT_CACHE;
use crate::durable;
use crate::snapshot_error::SnapshotError;
use crate::store_error::StoreError;
use crate::worktree::memory::{Base, Basis, Use};

/// What is known before the walk.
pub(super) struct Seed {
    pub(super) base: Bulk<Base>,
    pub(super) usage: Use,
    /// Whether the content that the cache knows of can be relied on.
    pub(super) is_vouched_for: bool,
}

impl Setting<'_> {
    /// Loads what the last capture saw, unless content that it relies on may have been removed.
    pub(super) fn seed(&self) -> Result<Seed, SnapshotError> {
        let is_vouched_for = !self.keeping.has_content() || self.check_cache()?;
        let workspace = self.request.workspace;
        let usage = match self.request.publish {
            Publish::Yes => Use::Takes,
            Publish::No => Use::Borrows,
        };
        let base = workspace.memory().base(
            workspace.store_path(),
            self.root.identity(),
            self.keeping.cache_file(),
            usage,
        );
        let base = Bulk::new(self.request.op, base);
        self.request.op.check()?;
        Ok(Seed {
            base,
            usage,
            is_vouched_for,
        })
    }

    /// Whether the cache of captures with content can be relied on. If not, it is removed, because
    /// its entries may name content that the store lost.
    fn check_cache(&self) -> Result<bool, StoreError> {
        let is_vouched_for = self.store.content.is_vouched_for()?;
        let store_path = self.request.workspace.store_path();
        let cache_path = store_path.join(CONTENT_STAT_CACHE);
        if !is_vouched_for && cache_path.exists() {
            durable::remove_file(self.request.op, &cache_path)?;
        }
        Ok(is_vouched_for)
    }

    /// What says which paths belong to the capture.
    pub(super) fn basis(&self) -> Basis {
        let options = self.request.options;
        let rules = (
            &options.ignore,
            &options.include,
            options.max_untracked_file_bytes,
            self.purged.len(),
        );
        Basis {
            rules: serde_json::to_vec(&rules).expect("rules are plain data"),
            rule_files: &[],
        }
    }
}
