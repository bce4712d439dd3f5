//! Taking a snapshot with the hash backend.

mod build;
mod describe;
mod keeping;
mod seed;
mod walk;

use std::cell::LazyCell;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use crate::backend::SnapshotOptions;
use crate::bulk::Bulk;
use crate::hash::content::HashSink;
use crate::hash::limit::Limit;
use crate::hash::manifest::{Listing, Manifest};
use crate::hash::rules::HashRules;
use crate::hash::store::HashStore;
use crate::operation::Operation;
use crate::parallel;
use crate::path::RelPath;
use crate::purge::Purged;
use crate::record::Record;
use crate::removal;
use crate::restore::{Captured, Publish};
use crate::snapshot_error::SnapshotError;
use crate::store_error::StoreError;
use crate::workspace::LockedWorkspace;
use crate::worktree::journal::Seen;
use crate::worktree::memory::{Closing, Inventory};
use crate::worktree::root::Root;
use crate::worktree::stat_cache::StatCache;

use self::build::Built;
use self::keeping::Keeping;

#[cfg(test)]
pub(super) use self::build::MIN_FILES_TO_WRITE_ASIDE;

/// What a capture found.
pub(crate) struct HashCapture {
    pub(super) record: Record,
    /// Made when somebody asks for paths: most captures are only taken.
    manifest: OnceLock<Manifest>,
    cache: Arc<StatCache>,
}

impl HashCapture {
    pub(super) fn manifest(&self, op: &Operation) -> &Manifest {
        let listed = || Listing::of(op, &self.cache.directories).to_manifest();
        self.manifest.get_or_init(listed)
    }
}

impl Captured for HashCapture {
    fn record(&self) -> &Record {
        &self.record
    }

    fn seen(&self, path: &RelPath) -> Option<Seen> {
        let entry = self.cache.entry(path);
        entry.filter(|e| e.is_captured()).map(Seen::of)
    }
}

/// A capture that is to be made.
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    pub(super) op: &'a Operation,
    pub(super) workspace: &'a LockedWorkspace,
    pub(super) options: &'a SnapshotOptions,
    pub(super) publish: Publish,
    /// Why the backend stands in for git's, if it does; the snapshot says so.
    pub(super) instead_of_git: Option<&'a str>,
}

/// A request with what its stages work on.
struct Setting<'s> {
    request: Request<'s>,
    store: &'s HashStore,
    keeping: Keeping,
    root: &'s Root,
    rules: HashRules,
    /// What is never kept.
    purged: &'s Purged,
    sink: &'s HashSink<'s>,
}

impl Request<'_> {
    /// Captures, and publishes if that is wanted.
    pub(super) fn carry_out(&self) -> Result<HashCapture, SnapshotError> {
        // What is about to go is neither counted nor relied on.
        removal::wait_for(self.op, self.workspace.store_path())?;
        let op = &self.op.within(self.options.quota(self.op, self.workspace)?);
        let within = Request { op, ..*self };
        let captured = within.captured();
        captured.map_err(|error| crate::backend::cause_of(op, error))
    }

    fn captured(&self) -> Result<HashCapture, SnapshotError> {
        let store = HashStore::of(self.workspace);
        let is_above_limit = || store.is_noted_above_limit();
        let attempts = Keeping::attempts(self.options.retain_content, self.publish, is_above_limit);
        for keeping in &attempts {
            if let Some(capture) = self.capture(&store, *keeping)? {
                if attempts.len() > 1 {
                    store.note_above_limit(self.op, !keeping.has_content());
                }
                return Ok(capture);
            }
        }
        unreachable!("the last attempt has no condition")
    }

    /// `None`: too much content is new, or too little, for what `keeping` says.
    ///
    /// A seed is what was known before, a walk compares it with what is there and keeps the content
    /// that is new, a manifest is built of what was seen, and all of it is described.
    fn capture(
        &self,
        store: &HashStore,
        keeping: Keeping,
    ) -> Result<Option<HashCapture>, SnapshotError> {
        let started = Instant::now();
        let rules = HashRules::new(self.options)?;
        let root = self.workspace.root();
        let root = root.map_err(|source| SnapshotError::Unreadable {
            context: "the workspace could not be opened".to_owned(),
            source,
        })?;
        store.create(self.op).map_err(StoreError::from)?;
        let publishes = self.publish == Publish::Yes;
        if publishes && store.has(&self.options.id) {
            return Err(SnapshotError::taken(&self.options.id));
        }
        let keeps = keeping.has_content() && publishes;
        let (purged, limit) = (Purged::of(self.workspace)?, keeping.limit());
        let sink = HashSink::new(self.op, keeps.then_some(&store.content), &purged)
            .limited_to(limit.as_ref())
            .removed_by(self.workspace.remover());
        let setting = Setting {
            request: *self,
            store,
            keeping,
            root: &root,
            rules,
            purged: &purged,
            sink: &sink,
        };

        let seed = setting.seed()?;
        let is_vouched_for = seed.is_vouched_for;
        let seen = setting.walk(seed);
        if limit.as_ref().is_some_and(Limit::is_passed) {
            self.op.check()?;
            return Ok(None);
        }
        let mut seen = seen?;
        let cache = Arc::clone(seen.closing.cache());
        if let Keeping::DigestsAbove(limit) = keeping
            && !store.content.lacks_more_than(self.op, limit, &cache)?
        {
            return Ok(None);
        }
        let listing = LazyCell::new(|| Listing::of(self.op, &cache.directories));
        let is_written = publishes && seen.closing.is_changed();
        let built = build::build(&seen.closing, &listing, is_written)?;
        let record = setting.describe(&mut seen, built.reference.clone(), started)?;
        if publishes {
            let arrived = sink.publish()?;
            if !arrived.is_empty() || (keeps && !is_vouched_for) {
                store.content.vouch(self.op);
            }
            self.publish(store, &record, seen.closing, built, &listing)?;
            arrived.keep();
        }
        drop(listing);
        Ok(Some(HashCapture {
            record,
            manifest: OnceLock::new(),
            cache,
        }))
    }

    /// Makes it durable, with the manifest; the content is. What was found is what the next capture
    /// starts from.
    fn publish(
        &self,
        store: &HashStore,
        record: &Record,
        mut closing: Bulk<Closing>,
        built: Built,
        listing: &Listing<'_>,
    ) -> Result<(), SnapshotError> {
        let Built { proof, encoded, .. } = built;
        let manifest = || encoded.unwrap_or_else(|| listing.encode());
        let publish = || store.publish(self.op, record, proof, manifest);
        let (staged, published) = match build::is_large(&closing) && closing.is_changed() {
            true => parallel::both(
                || closing.stage(self.op, self.workspace.store_path()),
                publish,
            ),
            false => (None, publish()),
        };
        closing.note_inventory(Inventory {
            reference: record.snapshot.reference.clone(),
            proof: published?,
        });
        // It is there, so a cancellation comes too late.
        let op = &self.op.to_its_end();
        let closing = closing.into_inner();
        closing.keep(
            op,
            self.workspace.memory(),
            self.workspace.store_path(),
            staged,
        );
        Ok(())
    }
}
