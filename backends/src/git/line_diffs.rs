//! Comparing the lines of changed files: blobs are read and compared on every core, and the patch
//! is written in the order of the paths.

use std::cell::RefCell;
use std::io::{self, Write};
use std::sync::Mutex;
use std::time::Instant;

use crate::contents::ContentError;
use crate::diff::sketch::LineSketch;
use crate::diff::{Approximation, Diff, DiffOptions, Looked, PatchText, Renamed};
use crate::diff_error::DiffError;
use crate::git::ObjectId;
use crate::git::object_id::sha1;
use crate::git::store::{Reader, Store};
use crate::operation::Operation;
use crate::parallel::{self, Held, Waiting};
use crate::patch::{self, Compared, Limits, Side, Streamed};
use crate::purge::Purged;
use crate::store_error::StoreError;
use crate::tree::{Change, Entry, EntryKind};

/// A file larger than this is not compared by lines, and its patch holds it whole. Two of them and
/// what the comparison takes fit where a build fits.
const MAX_HELD_BYTES: u64 = 64 << 20;

/// Of files larger than this, only one pair is held at a time, whatever the number of threads.
const MAX_SMALL_BYTES: u64 = 4 << 20;

/// What may wait until it is written. Small files are the rule: a thread earns its keep with few.
const WAITING: Waiting = Waiting {
    max_bytes: 8 << 20,
    jobs_per_thread: 8,
};

/// Counts the lines of `changes`, which are sorted by path, into `diff`; with
/// [`DiffOptions::capture_patch`], writes the patch to `out` and embeds it.
pub(super) fn compare(
    op: &Operation,
    store: &Store,
    changes: &[Change],
    options: &DiffOptions,
    out: &mut dyn Write,
    diff: &mut Diff,
) -> Result<(), DiffError> {
    let mut sink = PatchSink::new(out, options.max_patch_bytes);
    each(op, store, changes, options, &mut sink, |at, looked| {
        diff.count(&changes[at].path, &looked);
    })?;
    // What one side left out is among them already.
    diff.approximated.sort_by(|a, b| a.path.cmp(&b.path));
    if options.capture_patch {
        sink.flush().map_err(DiffError::Sink)?;
        diff.patch_bytes = Some(sink.written);
        diff.has_patch = sink.written > 0;
        diff.patch_truncated = sink.written > options.max_patch_bytes;
        diff.patch = sink.kept.filter(|kept| !kept.is_empty()).map(PatchText);
        diff.explain_no_patch(options, "nothing that changed is in both snapshots");
    }
    Ok(())
}

/// Counts the lines of files that were renamed, each as one file; `changes` are those of `renamed`.
pub(super) fn compare_renamed(
    op: &Operation,
    store: &Store,
    changes: &[Change],
    options: &DiffOptions,
    renamed: &mut [Renamed],
) -> Result<(), DiffError> {
    let mut options = options.clone();
    options.capture_patch = false;
    each(
        op,
        store,
        changes,
        &options,
        &mut io::sink(),
        |at, looked| {
            if let Some(file) = &mut renamed[at].changed {
                file.count(&looked);
            }
        },
    )
}

/// Compares each of `changes`, and hands what came of it to `take` in their order; with
/// [`DiffOptions::capture_patch`], writes the patch to `out`.
fn each(
    op: &Operation,
    store: &Store,
    changes: &[Change],
    options: &DiffOptions,
    out: &mut dyn Write,
    mut take: impl FnMut(usize, Looked),
) -> Result<(), DiffError> {
    let set = store.reader_set()?;
    let files = Files {
        op,
        reader: store.reader(&set),
        options,
        purged: store.purged()?,
        deadline: options
            .max_time
            .and_then(|limit| Instant::now().checked_add(limit)),
        large: Mutex::new(()),
    };
    let work = |at: usize| files.compare(&changes[at]);
    parallel::in_order(changes.len(), WAITING, work, |at, file| {
        let looked = match file? {
            FileDiff::Compared { section, looked } => {
                out.write_all(&section).map_err(DiffError::Sink)?;
                looked
            }
            FileDiff::Purged => Looked {
                compared: Compared {
                    approximation: Some(Approximation::Purged),
                    ..Compared::default()
                },
                sizes: [0, 0],
            },
            FileDiff::Large => {
                if options.capture_patch {
                    write_large(op, store, out, &changes[at])?;
                }
                look_at_large(op, store, &changes[at])?
            }
        };
        take(at, looked);
        Ok(())
    })
}

/// What the threads share.
struct Files<'a> {
    op: &'a Operation,
    reader: Reader<'a>,
    options: &'a DiffOptions,
    purged: Purged,
    /// When the search of all files ends.
    deadline: Option<Instant>,
    /// Held while a pair of large files is in memory.
    large: Mutex<()>,
}

/// What came of one change.
enum FileDiff {
    Compared {
        /// The part of the patch; empty if none is wanted.
        section: Vec<u8>,
        looked: Looked,
    },
    /// A side is too large to be held.
    Large,
    /// A side has no bytes any more.
    Purged,
}

impl Held for FileDiff {
    fn held_bytes(&self) -> usize {
        match self {
            Self::Compared { section, .. } => section.capacity(),
            Self::Large | Self::Purged => 0,
        }
    }
}

impl Files<'_> {
    fn compare(&self, change: &Change) -> Result<FileDiff, DiffError> {
        self.op.check()?;
        if self.lacks_purged(change) {
            return Ok(FileDiff::Purged);
        }
        if let Some(contents) = self.read(change, MAX_SMALL_BYTES)? {
            return self.compare_contents(change, &contents);
        }
        let _alone = self.large.lock().map_err(|_| {
            // Its panic is on its way to the caller.
            DiffError::Sink(io::Error::other("another file could not be compared"))
        })?;
        match self.read(change, MAX_HELD_BYTES)? {
            Some(contents) => self.compare_contents(change, &contents),
            None => Ok(FileDiff::Large),
        }
    }

    /// Whether the change cannot be shown because content of it was purged. Of a change of the mode
    /// alone no content is shown.
    fn lacks_purged(&self, change: &Change) -> bool {
        let mut sides = [change.old, change.new].into_iter().flatten();
        let shown = |entry: Option<Entry>| entry.map(|e| (e.id, e.kind == EntryKind::Symlink));
        let is_mode_alone = shown(change.old) == shown(change.new);
        !is_mode_alone && sides.any(|entry| self.purged.contains(&entry.id))
    }

    /// Both contents; `None` if one has more than `max_bytes`.
    fn read(&self, change: &Change, max_bytes: u64) -> Result<Option<[Vec<u8>; 2]>, StoreError> {
        let side = |entry: Option<Entry>| match entry {
            Some(entry) => self.reader.blob(self.op, &blob_id(entry), max_bytes),
            None => Ok(Some(Vec::new())),
        };
        // If only the mode of a file differs, only that is reported.
        let is_link = |entry: Entry| entry.kind == EntryKind::Symlink;
        if let (Some(old), Some(new)) = (change.old, change.new)
            && old.id == new.id
            && is_link(old) == is_link(new)
        {
            return Ok(Some([Vec::new(), Vec::new()]));
        }
        let Some(old) = side(change.old)? else {
            return Ok(None);
        };
        Ok(side(change.new)?.map(|new| [old, new]))
    }

    fn compare_contents(
        &self,
        change: &Change,
        [old, new]: &[Vec<u8>; 2],
    ) -> Result<FileDiff, DiffError> {
        let own = self.options.max_file_time;
        let own = own.and_then(|limit| Instant::now().checked_add(limit));
        let limits = Limits {
            max_compared_bytes: self.options.max_compared_bytes,
            deadline: own.into_iter().chain(self.deadline).min(),
        };
        let side = |entry: Option<Entry>, bytes| {
            entry.map(|entry| Side {
                kind: entry.kind,
                id: entry.id,
                bytes,
            })
        };
        let sizes = [old.len() as u64, new.len() as u64];
        let (old, new) = (side(change.old, old), side(change.new, new));
        let mut section = Vec::new();
        let compared = match self.options.capture_patch {
            true => patch::write(&mut section, &change.path, old, new, &limits)
                .map_err(DiffError::Sink)?,
            false => patch::count(old.map(|s| s.bytes), new.map(|s| s.bytes), &limits),
        };
        let looked = Looked { compared, sizes };
        Ok(FileDiff::Compared { section, looked })
    }
}

/// Writes the patch of a change with a side that is too large to be held.
fn write_large(
    op: &Operation,
    store: &Store,
    out: &mut dyn Write,
    change: &Change,
) -> Result<(), DiffError> {
    // The store's own failure must not be taken for the sink's.
    let failure = RefCell::new(None);
    let copy = |entry: Option<Entry>, out: &mut dyn Write| match entry {
        None => Ok(()),
        Some(entry) => match store.blob_to(op, &blob_id(entry), out) {
            Ok(_) => Ok(()),
            Err(ContentError::Sink(error)) => Err(error),
            Err(ContentError::Store(error)) => {
                failure.borrow_mut().get_or_insert(error);
                Err(io::Error::other("the store failed"))
            }
        },
    };
    let copy_old = |out: &mut dyn Write| copy(change.old, out);
    let copy_new = |out: &mut dyn Write| copy(change.new, out);
    let streamed = |entry: Option<Entry>, copy| -> Result<_, StoreError> {
        let Some(entry) = entry else { return Ok(None) };
        let id = blob_id(entry);
        let size = store.blob_size(&id)?;
        Ok(Some(Streamed {
            kind: entry.kind,
            id,
            size,
            copy,
        }))
    };
    let (old, new) = (
        streamed(change.old, &copy_old)?,
        streamed(change.new, &copy_new)?,
    );
    let written = patch::write_streamed(out, &change.path, old, new);
    match failure.into_inner() {
        Some(error) => Err(error.into()),
        None => written.map_err(DiffError::Sink),
    }
}

/// Counts the lines of a change with a side that is too large to be held.
fn look_at_large(op: &Operation, store: &Store, change: &Change) -> Result<Looked, StoreError> {
    let mut sizes = [0; 2];
    for (size, entry) in sizes.iter_mut().zip([change.old, change.new]) {
        *size = entry.map_or(Ok(0), |entry| store.blob_size(&blob_id(entry)))?;
    }
    let counts = sketch(op, store, change, sizes)?.counts();
    let compared = Compared {
        counts,
        approximation: (!counts.is_binary).then_some(Approximation::TooLarge),
    };
    Ok(Looked { compared, sizes })
}

fn sketch(
    op: &Operation,
    store: &Store,
    change: &Change,
    sizes: [u64; 2],
) -> Result<LineSketch, StoreError> {
    let mut sketch = LineSketch::default();
    let sides = [change.old, change.new];
    if sizes
        .iter()
        .any(|size| *size > patch::MAX_TEXT_BYTES as u64)
    {
        return Ok(LineSketch::of_binary());
    }
    for (entry, side) in sides
        .into_iter()
        .zip([LineSketch::earlier, LineSketch::later])
    {
        let Some(entry) = entry else { continue };
        match store.blob_to(op, &blob_id(entry), &mut side(&mut sketch)) {
            Ok(_) => {}
            // It takes no more once it has seen that this is binary.
            Err(ContentError::Sink(_)) => break,
            Err(ContentError::Store(error)) => return Err(error),
        }
    }
    Ok(sketch)
}

pub(super) fn blob_id(entry: Entry) -> ObjectId {
    sha1(&entry.id).expect("trees of git's hold ids of git's")
}

/// Passes a patch on, counts it, and keeps it while it is small enough to be embedded.
struct PatchSink<'a> {
    out: io::BufWriter<&'a mut dyn Write>,
    written: u64,
    limit: u64,
    kept: Option<Vec<u8>>,
}

impl<'a> PatchSink<'a> {
    fn new(out: &'a mut dyn Write, limit: u64) -> Self {
        let out = io::BufWriter::with_capacity(64 * 1024, out);
        Self {
            out,
            written: 0,
            limit,
            kept: Some(Vec::new()),
        }
    }
}

impl Write for PatchSink<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write_all(bytes)?;
        self.written += bytes.len() as u64;
        if self.written > self.limit {
            self.kept = None;
        } else if let Some(kept) = &mut self.kept {
            kept.extend_from_slice(bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
