//! Taking a snapshot with the hash backend.

use std::cell::LazyCell;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use crate::backend::SnapshotOptions;
use crate::bulk::Bulk;
use crate::caches::{CONTENT_STAT_CACHE, HASH_STAT_CACHE};
use crate::codec::TooLong;
use crate::coverage::Coverage;
use crate::durable;
use crate::git::nested;
use crate::hard_links;
use crate::hash::content::HashSink;
use crate::hash::limit::Limit;
use crate::hash::manifest::{Listing, Manifest};
use crate::hash::rules::HashRules;
use crate::hash::store::HashStore;
use crate::operation::Operation;
use crate::parallel;
use crate::path::RelPath;
use crate::purge::Purged;
use crate::record::{RECORD_VERSION, Record};
use crate::removal;
use crate::restore::{Captured, Publish};
use crate::retain::RetainContent;
use crate::search::Search;
use crate::snapshot::{BackendKind, Snapshot};
use crate::snapshot_error::SnapshotError;
use crate::store_error::StoreError;
use crate::workspace::LockedWorkspace;
use crate::worktree::journal::Seen;
use crate::worktree::memory::{Base, Basis, Closing, Inventory, Outcome, Scope, Use};
use crate::worktree::root::Root;
use crate::worktree::stat_cache::{EntryStat, StatCache};
use crate::worktree::walk::{self, Seeds, WalkOptions, Walked};

/// From so many files on the cache is written while the manifest is: for fewer a thread is not
/// worth its while.
pub(super) const MIN_FILES_TO_WRITE_ASIDE: u64 = 5_000;

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
pub(super) struct Request<'a> {
    pub(super) op: &'a Operation,
    pub(super) workspace: &'a LockedWorkspace,
    pub(super) options: &'a SnapshotOptions,
    pub(super) publish: Publish,
    /// Why the backend stands in for git's, if it does; the snapshot says so.
    pub(super) instead_of_git: Option<&'a str>,
}

/// What a capture does about the content of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Digests alone.
    Digests,
    /// Digests alone, unless no more than so many bytes of content would be new.
    DigestsAbove(u64),
    /// Content.
    Content,
    /// Content, unless more than so many bytes of it are new.
    ContentUpTo(u64),
}

impl Way {
    fn has_content(self) -> bool {
        matches!(self, Self::Content | Self::ContentUpTo(_))
    }

    /// A cache that vouches for a digest says nothing about its content, so captures that keep
    /// content trust only a cache of their own kind.
    fn cache_file(self) -> &'static str {
        match self.has_content() {
            true => CONTENT_STAT_CACHE,
            false => HASH_STAT_CACHE,
        }
    }
}

/// How a workspace was found.
struct Found {
    closing: Bulk<Closing>,
    walked: Bulk<Walked>,
    search: Search,
    omissions: Coverage,
}

/// What a manifest is called, and what is known of its file.
struct Listed {
    reference: String,
    proof: Option<EntryStat>,
    /// The bytes of it, where they were made on the way.
    encoded: Option<Result<Vec<u8>, TooLong>>,
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
        let ways: &[Way] = match self.options.retain_content {
            RetainContent::Never => &[Way::Digests],
            RetainContent::Always => &[Way::Content],
            // Nothing is written, be it content or not.
            RetainContent::UpTo(_) if self.publish == Publish::No => &[Way::Content],
            // So that what is far too much is not written and removed again by every capture.
            RetainContent::UpTo(limit) if store.is_noted_above_limit() => &[
                Way::DigestsAbove(limit),
                Way::ContentUpTo(limit),
                Way::Digests,
            ],
            RetainContent::UpTo(limit) => &[Way::ContentUpTo(limit), Way::Digests],
        };
        for way in ways {
            if let Some(capture) = self.capture(&store, *way)? {
                if ways.len() > 1 {
                    store.note_above_limit(self.op, !way.has_content());
                }
                return Ok(capture);
            }
        }
        unreachable!("the last way has no condition")
    }

    /// `None`: this is not the way, going by how much is new.
    fn capture(&self, store: &HashStore, way: Way) -> Result<Option<HashCapture>, SnapshotError> {
        let started = Instant::now();
        let rules = HashRules::new(self.options)?;
        let root = self
            .workspace
            .root()
            .map_err(|source| SnapshotError::Unreadable {
                context: "the workspace could not be opened".to_owned(),
                source,
            })?;
        store.create(self.op).map_err(StoreError::from)?;
        if self.publish == Publish::Yes && store.has(&self.options.id) {
            return Err(SnapshotError::taken(&self.options.id));
        }
        let keeps = way.has_content() && self.publish == Publish::Yes;
        let is_vouched_for = !way.has_content() || self.check_cache(store)?;
        let limit = match way {
            Way::ContentUpTo(bytes) => Some(Limit::of(bytes)),
            Way::Digests | Way::DigestsAbove(_) | Way::Content => None,
        };
        let purged = Purged::of(self.workspace)?;
        let sink = HashSink::new(self.op, keeps.then_some(&store.content), &purged)
            .limited_to(limit.as_ref())
            .removed_by(self.workspace.remover());
        let found = self.look(&root, &rules, &sink, &purged, way);
        if limit.as_ref().is_some_and(Limit::is_passed) {
            self.op.check()?;
            return Ok(None);
        }
        let found = found?;
        let cache = Arc::clone(found.closing.cache());
        if let Way::DigestsAbove(limit) = way
            && !store.content.lacks_more_than(self.op, limit, &cache)?
        {
            return Ok(None);
        }
        let listing = LazyCell::new(|| Listing::of(self.op, &cache.directories));
        let is_written = self.publish == Publish::Yes && found.closing.is_changed();
        let listed = listed(&found.closing, &listing, is_written)?;
        let record = self.record_of(&root, way, &found, listed.reference.clone(), started)?;
        if self.publish == Publish::Yes {
            let arrived = sink.publish()?;
            if !arrived.is_empty() || (keeps && !is_vouched_for) {
                store.content.vouch(self.op);
            }
            self.publish(store, &record, found.closing, listed, &listing)?;
            arrived.keep();
        }
        drop(listing);
        Ok(Some(HashCapture {
            record,
            manifest: OnceLock::new(),
            cache,
        }))
    }

    /// Whether the cache of captures with content can be relied on. If not, it goes: it vouches for
    /// content that may be gone.
    fn check_cache(&self, store: &HashStore) -> Result<bool, StoreError> {
        let is_vouched_for = store.content.is_vouched_for()?;
        let cache_path = self.workspace.store_path().join(CONTENT_STAT_CACHE);
        if !is_vouched_for && cache_path.exists() {
            durable::remove_file(self.op, &cache_path)?;
        }
        Ok(is_vouched_for)
    }

    /// Looks at the workspace, and reads what the cache does not know.
    fn look(
        &self,
        root: &Root,
        rules: &HashRules,
        sink: &HashSink<'_>,
        purged: &Purged,
        way: Way,
    ) -> Result<Found, SnapshotError> {
        let usage = match self.publish {
            Publish::Yes => Use::Takes,
            Publish::No => Use::Borrows,
        };
        let memory = self.workspace.memory();
        let base = memory.base(
            self.workspace.store_path(),
            root.identity(),
            way.cache_file(),
            usage,
        );
        let base = Bulk::new(self.op, base);
        self.op.check()?;
        let basis = basis(self.options, purged);
        let mut scope = base.scope(root, self.options.watch, usage, basis, &[]);
        let walked = Bulk::new(
            self.op,
            walk::search(
                root,
                rules,
                sink,
                &mut scope,
                WalkOptions {
                    cache: &base.cache,
                    // No index tells it of anything.
                    seeds: &Seeds::default(),
                    absent: &base.absent,
                    only: None,
                    watch: None,
                    max_untracked_file_bytes: self.options.max_untracked_file_bytes,
                    max_files: self.options.max_files,
                    op: self.op,
                    progress: self.options.progress.as_deref(),
                    is_purged: &|id| purged.contains(id),
                },
            )?,
        );
        self.op.check()?;
        closed(self.op, base.into_inner(), scope, walked)
    }

    fn record_of(
        &self,
        root: &Root,
        way: Way,
        found: &Found,
        reference: String,
        started: Instant,
    ) -> Result<Record, SnapshotError> {
        let Self {
            workspace, options, ..
        } = self;
        let mut snapshot = Snapshot::new(
            options.id.clone(),
            BackendKind::Hash,
            workspace.disk_path().to_owned(),
            reference,
            options.label.clone(),
            options.captured_at,
        );
        snapshot.omissions = found.omissions.clone();
        snapshot.nested_repositories =
            nested::look_at(self.op, root, workspace.memory(), snapshot.omissions())?;
        hard_links::note(&mut snapshot, found.walked.links.clone());
        let reason = self.instead_of_git;
        let tally = found.closing.tally();
        let metadata = &mut snapshot.metadata;
        let warning = reason.map(|reason| format!("captured with the hash backend: {reason}"));
        metadata.warnings.extend(warning);
        metadata.has_content = Some(way.has_content());
        metadata.search = found.search;
        metadata.files = tally.files();
        metadata.files_hashed = found.walked.files_hashed;
        metadata.bytes_read = found.walked.bytes_read;
        metadata.duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        Ok(Record {
            version: RECORD_VERSION,
            snapshot,
            empty_directories: tally.empty_directories(),
            modes: tally.modes(),
            ignore: options.ignore.clone(),
            include: options.include.clone(),
            max_untracked_file_bytes: Some(options.max_untracked_file_bytes),
            has_content: way.has_content(),
            git: None,
        })
    }

    /// Makes it durable, with the manifest; the content is. What was found is what the next capture
    /// starts from.
    fn publish(
        &self,
        store: &HashStore,
        record: &Record,
        mut closing: Bulk<Closing>,
        listed: Listed,
        listing: &Listing<'_>,
    ) -> Result<(), SnapshotError> {
        let Listed { proof, encoded, .. } = listed;
        let manifest = || encoded.unwrap_or_else(|| listing.encode());
        let publish = || store.publish(self.op, record, proof, manifest);
        let (staged, published) = match is_large(&closing) && closing.is_changed() {
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

/// Ends the look at a workspace.
fn closed(
    op: &Operation,
    base: Base,
    scope: Scope,
    mut walked: Bulk<Walked>,
) -> Result<Found, SnapshotError> {
    let omissions = walked.omissions.values().cloned().collect();
    let search = scope.search;
    let outcome = Outcome {
        result: Vec::new(),
        has_kept: false,
    };
    let (delta, omitted) = (
        std::mem::take(&mut walked.delta),
        std::mem::take(&mut walked.omissions),
    );
    let closing = Bulk::new(op, base.close(scope, delta, omitted, false, outcome));
    op.check()?;
    Ok(Found {
        closing,
        walked,
        search,
        omissions: Coverage::new(omissions),
    })
}

/// What is new has most likely a manifest that is new, which is made beside its digest then.
fn listed<'a>(
    closing: &Closing,
    listing: &impl Deref<Target = Listing<'a>>,
    is_written: bool,
) -> Result<Listed, SnapshotError> {
    if let Some(known) = closing.inventory() {
        return Ok(Listed {
            reference: known.reference.clone(),
            proof: known.proof,
            encoded: None,
        });
    }
    let listing: &Listing<'a> = listing;
    let (encoded, digest) = match is_written && is_large(closing) {
        true => {
            let (encoded, digest) = parallel::both(|| listing.encode(), || listing.digest());
            (Some(encoded), digest?)
        }
        false => (None, listing.digest()?),
    };
    Ok(Listed {
        reference: digest.to_hex().to_string(),
        proof: None,
        encoded,
    })
}

fn is_large(closing: &Closing) -> bool {
    closing.tally().files() >= MIN_FILES_TO_WRITE_ASIDE
}

/// What says which paths belong to the capture.
fn basis(options: &SnapshotOptions, purged: &Purged) -> Basis {
    let rules = (
        &options.ignore,
        &options.include,
        options.max_untracked_file_bytes,
        purged.len(),
    );
    Basis {
        rules: serde_json::to_vec(&rules).expect("rules are plain data"),
        rule_files: &[],
    }
}
