//! The cache on disk: a base, followed by the changes of each capture.
//!
//! If a capture of a large tree with few changes wrote the whole cache again, this would take most
//! of its time. So it appends a frame with the directories that changed. Once the frames after the
//! base are larger than the base, the file is rewritten. The base consists of several frames too,
//! so that its encoded form is never in memory as a whole.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use serde::ser::{SerializeSeq as _, Serializer};
use serde::{Deserialize, Serialize};

use super::{CachedDirectory, CachedRules, IndexStamp, StatCache, Submodule};
use crate::codec::{Format, HEADER_BYTES, TooLong};
use crate::durable::{self, StagedFile};
use crate::error::PathError;
use crate::identity::Identity;
use crate::note;
use crate::operation::Operation;
use crate::parallel::{self, Held, Waiting};
use crate::path::RelPath;
use crate::tree::{ContentId, Entry};

/// Where the cache was written, so that it is believed only there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Origin {
    workspace: Identity,
    /// The kernel's id of this boot: after another one the clock may have gone backwards.
    boot: String,
}

/// What a file has of a cache.
#[derive(Clone, Debug, Default)]
pub struct OnDisk {
    /// The directories of the cache that the file, if there is one, has not, or otherwise.
    changed: BTreeSet<RelPath>,
    /// The file; `None`: there is none that can be gone on with.
    file: Option<Extent>,
}

/// A file, and how much of it is whole frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    file: (u64, u64),
    /// When it was last written, in nanoseconds since the Unix epoch: an inode can be used again.
    changed_ns: i128,
    base_bytes: u64,
    bytes: u64,
}

impl OnDisk {
    /// Notes directories of the cache that were changed or removed.
    pub(crate) fn note_changed(&mut self, paths: impl IntoIterator<Item = RelPath>) {
        // A file that is written anew has all of them.
        if self.file.is_some() {
            self.changed.extend(paths);
        }
    }

    /// Whether the file at `path` still is the one that this describes.
    pub(crate) fn is_current(&self, path: &Path) -> bool {
        let (Some(known), Ok(found)) = (self.file, std::fs::symlink_metadata(path)) else {
            return false;
        };
        known == Extent::of(&found, known.base_bytes)
    }
}

impl Extent {
    fn of(found: &std::fs::Metadata, base_bytes: u64) -> Self {
        Self {
            file: (found.dev(), found.ino()),
            changed_ns: i128::from(found.ctime()) * 1_000_000_000 + i128::from(found.ctime_nsec()),
            base_bytes,
            bytes: found.len(),
        }
    }
}

/// The first frames of a file, up to one with a rest, have all directories; each later one has
/// those that changed.
#[derive(Deserialize)]
struct Frame {
    origin: Origin,
    directories: Vec<(RelPath, CachedDirectory)>,
    removed: Vec<RelPath>,
    /// `None`: the next frame goes on with this one, and neither says anything without the other.
    rest: Option<Rest>,
}

/// [`Frame`], borrowed, with the same encoding.
#[derive(Serialize)]
struct FrameRef<'a> {
    origin: &'a Origin,
    #[serde(serialize_with = "pairs")]
    directories: &'a [(&'a RelPath, &'a CachedDirectory)],
    removed: &'a [&'a RelPath],
    rest: Option<RestRef<'a>>,
}

#[derive(Deserialize)]
struct Rest {
    rule_files: HashMap<RelPath, CachedRules>,
    index: Option<IndexStamp>,
    index_only: BTreeMap<RelPath, Vec<ContentId>>,
    not_left_out: BTreeMap<RelPath, Entry>,
    submodules: BTreeMap<RelPath, Submodule>,
}

#[derive(Serialize)]
struct RestRef<'a> {
    rule_files: &'a HashMap<RelPath, CachedRules>,
    index: &'a Option<IndexStamp>,
    index_only: &'a BTreeMap<RelPath, Vec<ContentId>>,
    not_left_out: &'a BTreeMap<RelPath, Entry>,
    submodules: &'a BTreeMap<RelPath, Submodule>,
}

fn pairs<S: Serializer>(
    directories: &[(&RelPath, &CachedDirectory)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let mut seq = serializer.serialize_seq(Some(directories.len()))?;
    for pair in directories {
        seq.serialize_element(pair)?;
    }
    seq.end()
}

const FORMAT: Format = Format {
    magic: *b"sfstats\n",
    version: 5,
    max_bytes: MAX_BYTES,
};

/// Tens of millions of files.
const MAX_BYTES: u64 = 4 << 30;

impl Origin {
    /// `None` if the kernel does not say which boot this is.
    fn of(workspace: Identity) -> Option<Self> {
        let boot = note::boot()?;
        Some(Self { workspace, boot })
    }
}

/// A frame with `changed` and `removed` directories of `cache`, and all that it has beside them.
fn encode(
    origin: &Origin,
    cache: &StatCache,
    changed: &[(&RelPath, &CachedDirectory)],
    removed: &[&RelPath],
) -> Result<Vec<u8>, TooLong> {
    FORMAT.encode(&FrameRef {
        origin,
        directories: changed,
        removed,
        rest: Some(RestRef {
            rule_files: &cache.rule_files,
            index: &cache.index,
            index_only: &cache.index_only,
            not_left_out: &cache.not_left_out,
            submodules: &cache.submodules,
        }),
    })
}

/// How many files the directories of one frame have together, about a megabyte of them: one frame
/// is held in its encoded form while a cache is written, and one for each core while it is read.
const FILES_PER_FRAME: usize = 10_000;

/// The frames that have all of `cache`, one after the other; all but the last have at least
/// `files_per_frame` files.
fn frames<'a>(
    origin: &'a Origin,
    cache: &'a StatCache,
    files_per_frame: usize,
) -> impl Iterator<Item = Result<Vec<u8>, TooLong>> {
    let mut directories = cache
        .directories
        .iter()
        .map(|(path, directory)| (path, &**directory));
    let mut is_done = false;
    std::iter::from_fn(move || {
        if is_done {
            return None;
        }
        let (mut some, mut files) = (Vec::new(), 0);
        while files < files_per_frame {
            let Some((path, directory)) = directories.next() else {
                is_done = true;
                return Some(encode(origin, cache, &some, &[]));
            };
            // A directory without files takes some space too.
            files += 1 + directory.entries.len();
            some.push((path, directory));
        }
        Some(FORMAT.encode(&FrameRef {
            origin,
            directories: &some,
            removed: &[],
            rest: None,
        }))
    })
}

/// The cache that `source` holds, which has `length` bytes; how many of them are its base, and how
/// many its whole frames. `None` unless they were written for `expected`, from the first to the
/// last whole frame.
fn decode(
    source: &(impl Source + Sync),
    length: u64,
    expected: &Origin,
) -> Option<(StatCache, u64, u64)> {
    let frames = places(source, length);
    let mut cache = StatCache::default();
    let (mut whole, mut base) = (0, None);
    let decoded = |at: usize| Decoded {
        frame: frame_at(source, &frames[at]),
        bytes: frames[at].end - frames[at].start,
    };
    // One that cannot be decoded was cut short, and so is what follows.
    let ended = parallel::in_order(frames.len(), WAITING, decoded, |at, decoded| {
        let Some(frame) = decoded.frame else {
            return Err(Ended::CutShort);
        };
        if frame.origin != *expected || !frame.directories.iter().all(|(_, d)| d.is_sound()) {
            return Err(Ended::Unusable);
        }
        for path in &frame.removed {
            cache.directories.remove(path);
        }
        let directories = frame.directories.into_iter();
        cache
            .directories
            .extend(directories.map(|(path, directory)| (path, Arc::new(directory))));
        let Some(rest) = frame.rest else {
            // Only the base is written in several frames.
            return match base {
                Some(_) => Err(Ended::Unusable),
                None => Ok(()),
            };
        };
        let Rest {
            rule_files,
            index,
            index_only,
            not_left_out,
            submodules,
        } = rest;
        cache.rule_files = rule_files;
        cache.index = index;
        cache.index_only = index_only;
        cache.not_left_out = not_left_out;
        cache.submodules = submodules;
        whole = frames[at].end;
        base.get_or_insert(whole);
        Ok(())
    });
    match ended {
        Err(Ended::Unusable) => None,
        Ok(()) | Err(Ended::CutShort) => Some((cache, base?, whole)),
    }
}

/// Why no further frame is looked at.
enum Ended {
    CutShort,
    Unusable,
}

/// Something that can be read at any place.
trait Source {
    /// Fills `bytes` with what stands from `at` on.
    fn fill(&self, bytes: &mut [u8], at: u64) -> io::Result<()>;
}

impl Source for File {
    fn fill(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        self.read_exact_at(bytes, at)
    }
}

/// Where frames lie in `source`, which has `length` bytes, as far as their headers tell.
fn places(source: &impl Source, length: u64) -> Vec<Range<u64>> {
    let mut places: Vec<Range<u64>> = Vec::new();
    let mut header = [0; HEADER_BYTES];
    loop {
        let start = places.last().map_or(0, |before| before.end);
        let end = match source.fill(&mut header, start) {
            Ok(()) => FORMAT
                .length(&header)
                .ok()
                .and_then(|n| start.checked_add(n)),
            Err(_) => None,
        };
        match end.filter(|end| *end <= length) {
            Some(end) => places.push(start..end),
            None => return places,
        }
    }
}

/// The frame at a place; `None` if there is none.
fn frame_at(source: &impl Source, place: &Range<u64>) -> Option<Frame> {
    let mut bytes = vec![0; usize::try_from(place.end - place.start).ok()?];
    source.fill(&mut bytes, place.start).ok()?;
    FORMAT.decode(&bytes).ok()
}

/// A frame that waits to be added to the cache.
struct Decoded {
    frame: Option<Frame>,
    bytes: u64,
}

impl Held for Decoded {
    fn held_bytes(&self) -> usize {
        usize::try_from(self.bytes).unwrap_or(usize::MAX)
    }
}

/// A few frames: what is decoded is not much larger than its encoded form, and stays in the cache.
const WAITING: Waiting = Waiting {
    max_bytes: 8 << 20,
    jobs_per_thread: 2,
};

/// Reads the cache at `path`. Whatever is wrong with it, the answer is an empty one, or what an
/// earlier capture knew.
pub fn load(path: &Path, workspace: Identity) -> (StatCache, OnDisk) {
    read(path, workspace).unwrap_or_default()
}

fn read(path: &Path, workspace: Identity) -> Option<(StatCache, OnDisk)> {
    // Whatever lies there, it is not waited for.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    let meta = file.metadata().ok()?;
    if !meta.is_file() || meta.len() > MAX_BYTES {
        return None;
    }
    let (cache, base_bytes, whole) = decode(&file, meta.len(), &Origin::of(workspace)?)?;
    let on_disk = OnDisk {
        changed: BTreeSet::new(),
        // After a frame that was cut short nothing can be appended.
        file: (whole == meta.len()).then(|| Extent::of(&meta, base_bytes)),
    };
    Some((cache, on_disk))
}

/// What of a cache the disk lacks, encoded.
#[derive(Debug)]
#[must_use = "dropping it removes what it has on disk"]
pub enum Staged {
    /// A file with all of it, which has no name yet.
    Whole(Whole),
    /// A frame with what changed, in memory.
    Frame(Vec<u8>),
}

/// A file with all of a cache, which has no name yet.
#[derive(Debug)]
pub struct Whole {
    file: StagedFile,
    bytes: u64,
}

/// Does what [`save`] does, as far as that can be done before what the cache vouches for is
/// durable.
///
/// `None` if this fails: [`save`] does it then, and tells.
pub(crate) fn stage(
    op: &Operation,
    cache: &StatCache,
    on_disk: &OnDisk,
    path: &Path,
    workspace: Identity,
) -> Option<Staged> {
    let origin = Origin::of(workspace)?;
    let frame = on_disk
        .file
        .and_then(|extent| frame_after(cache, &on_disk.changed, &origin, extent));
    match frame {
        Some(frame) => Some(Staged::Frame(frame)),
        None => write_anew(op, cache, &origin, path)
            .ok()?
            .map(Staged::Whole),
    }
}

/// Writes what `cache` has and `on_disk` has not to the file at `path`, or all of it to a new one,
/// which `staged` spares. Tells in `on_disk` what is on disk then.
///
/// It is not synced: after a power cut the file is whole, old or useless, and a useless one is
/// built anew.
pub(crate) fn save(
    op: &Operation,
    cache: &StatCache,
    on_disk: &mut OnDisk,
    staged: Option<Staged>,
    path: &Path,
    workspace: Identity,
) -> Result<(), PathError> {
    let OnDisk { changed, file } = std::mem::take(on_disk);
    let Some(origin) = Origin::of(workspace) else {
        return Ok(());
    };
    let (frame, whole) = match (staged, file) {
        (Some(Staged::Whole(whole)), _) => (None, Some(whole)),
        (Some(Staged::Frame(frame)), _) => (Some(frame), None),
        (None, Some(extent)) => (frame_after(cache, &changed, &origin, extent), None),
        (None, None) => (None, None),
    };
    if let (Some(frame), Some(extent)) = (frame, file) {
        on_disk.file = append(op, &frame, path, extent)?;
        if on_disk.file.is_some() {
            return Ok(());
        }
    }
    let whole = match whole {
        Some(whole) => Some(whole),
        None => write_anew(op, cache, &origin, path)?,
    };
    on_disk.file = whole.map(|whole| whole.name(path)).transpose()?;
    Ok(())
}

/// What to add to a file that lacks what is `changed`; `None` if it is better written anew.
fn frame_after(
    cache: &StatCache,
    changed: &BTreeSet<RelPath>,
    origin: &Origin,
    extent: Extent,
) -> Option<Vec<u8>> {
    let (mut now, mut removed) = (Vec::new(), Vec::new());
    for path in changed {
        match cache.directories.get(path) {
            Some(directory) => now.push((path, &**directory)),
            None => removed.push(path),
        }
    }
    if now.len() > cache.directories.len() / 2 {
        return None;
    }
    let frame = encode(origin, cache, &now, &removed).ok()?;
    let bytes = extent.bytes + frame.len() as u64;
    (bytes <= extent.base_bytes.saturating_mul(2)).then_some(frame)
}

/// Adds a frame to the file; `None` if it is not the one that it was.
fn append(
    op: &Operation,
    frame: &[u8],
    path: &Path,
    extent: Extent,
) -> Result<Option<Extent>, PathError> {
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::open(path, flags, Mode::empty()).map(File::from) else {
        return Ok(None);
    };
    let look_at = || file.metadata().map_err(PathError::at("look at", path));
    if Extent::of(&look_at()?, extent.base_bytes) != extent {
        return Ok(None);
    }
    let reserved = op.reserve();
    op.before()
        .and_then(|()| Ok(reserved.up_to(frame.len() as u64)?))
        .and_then(|()| file.write_all_at(frame, extent.bytes))
        .map_err(PathError::at("write", path))?;
    reserved.keep();
    Ok(Some(Extent::of(&look_at()?, extent.base_bytes)))
}

/// Writes a new file; `None` if it would be too long to be read.
fn write_anew(
    op: &Operation,
    cache: &StatCache,
    origin: &Origin,
    path: &Path,
) -> Result<Option<Whole>, PathError> {
    // Some tens of megabytes, of which nobody else would know.
    durable::remove_staged_for(op, path)?;
    let file = durable::stage_for(op, path)?;
    let mut bytes = 0;
    for frame in frames(origin, cache, FILES_PER_FRAME) {
        let Ok(frame) = frame else { return Ok(None) };
        if bytes + frame.len() as u64 > MAX_BYTES {
            return Ok(None);
        }
        file.write_at(&frame, bytes)?;
        bytes += frame.len() as u64;
    }
    Ok(Some(Whole { file, bytes }))
}

impl Whole {
    /// Gives it its name, in place of what had it.
    fn name(self, path: &Path) -> Result<Extent, PathError> {
        self.file.rename(path)?;
        let found = std::fs::symlink_metadata(path).map_err(PathError::at("look at", path))?;
        Ok(Extent::of(&found, self.bytes))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::codec::contract;
    use crate::stat_cache::{CachedEntry, EntryStat, Flags, Listed, NameList};
    use crate::tree::EntryKind;

    fn directory(name: &[u8], size: u64) -> Arc<CachedDirectory> {
        let entry = CachedEntry {
            kind: EntryKind::File,
            id: ContentId::Sha1([7; 20]),
            stat: EntryStat {
                size,
                mtime_ns: 10,
                ctime_ns: 11,
                inode: 4,
                mode: 0o100644,
            },
            flags: Flags::TRACKED,
        };
        let mut directory = CachedDirectory::default();
        directory.entries.push(name, entry.clone());
        directory.entries.push(b"z", entry);
        directory.children.push(b"c");
        Arc::new(directory)
    }

    fn path(text: &str) -> RelPath {
        RelPath::new(text).expect("a path")
    }

    fn cache() -> StatCache {
        StatCache {
            directories: HashMap::from([
                (RelPath::root(), directory(b"f\xff", 3)),
                (path("a"), directory(b"in a", 1)),
                (path("b"), directory(b"in b", 2)),
            ]),
            index_only: BTreeMap::from([(path("f"), vec![ContentId::Sha1([9; 20])])]),
            ..Default::default()
        }
    }

    const HERE: Identity = Identity {
        device: 1,
        inode: 2,
    };

    fn origin() -> Origin {
        Origin::of(HERE).expect("a boot id")
    }

    /// In several frames, if it has more than one directory.
    fn whole(cache: &StatCache) -> Vec<u8> {
        let origin = origin();
        let frames: Result<Vec<_>, _> = frames(&origin, cache, 1).collect();
        let frames = frames.expect("they are short");
        assert_eq!(frames.len(), cache.directories.len() + 1);
        frames.concat()
    }

    /// Writes all that may differ.
    fn write(cache: &StatCache, mut on_disk: OnDisk, file: &Path) -> OnDisk {
        let known = load(file, HERE).0.directories.into_keys();
        on_disk.note_changed(
            known
                .chain(cache.directories.keys().cloned())
                .filter(|path| {
                    load(file, HERE).0.directories.get(path) != cache.directories.get(path)
                }),
        );
        let staged = Some(stage(&Operation::unbounded(), cache, &on_disk, file, HERE).unwrap());
        save(
            &Operation::unbounded(),
            cache,
            &mut on_disk,
            staged,
            file,
            HERE,
        )
        .unwrap();
        assert!(on_disk.is_current(file));
        on_disk
    }

    fn read_back(bytes: &[u8]) -> Option<StatCache> {
        decode_for(bytes, &origin())
    }

    fn decode_for(bytes: &[u8], origin: &Origin) -> Option<StatCache> {
        decode(&bytes, bytes.len() as u64, origin).map(|(cache, ..)| cache)
    }

    impl Source for &[u8] {
        fn fill(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
            let at = usize::try_from(at).map_err(io::Error::other)?;
            let found = self.get(at..).and_then(|rest| rest.get(..bytes.len()));
            bytes.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        }
    }

    #[test]
    fn a_cache_with_any_bit_flipped_or_cut_is_not_believed() {
        let bytes = whole(&cache());
        assert_eq!(read_back(&bytes), Some(cache()), "it is whole");
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert_eq!(read_back(&damaged), None, "bit 0 of byte {at}");
            assert_eq!(read_back(&bytes[..at]), None, "cut at {at}");
        }
    }

    #[test]
    fn a_cache_of_another_version_is_not_believed() {
        for version in [FORMAT.version - 1, FORMAT.version + 1] {
            let mut bytes = whole(&cache());
            bytes[8..12].copy_from_slice(&version.to_le_bytes());
            assert_eq!(read_back(&bytes), None, "version {version}");
        }
    }

    #[test]
    fn names_that_no_directory_has_are_not_believed() {
        let with = |change: fn(&mut CachedDirectory)| {
            let mut damaged = cache();
            let root = damaged.directories.get_mut(&RelPath::root()).unwrap();
            change(Arc::make_mut(root));
            read_back(&whole(&damaged))
        };
        assert!(with(|_| ()).is_some());
        assert_eq!(with(|d| d.entries.damage_order()), None, "out of order");
        assert_eq!(with(|d| d.entries.damage_end()), None, "beyond the names");
    }

    #[test]
    fn a_cache_of_another_directory_or_boot_is_not_believed() {
        let bytes = whole(&cache());
        let there = Origin {
            workspace: Identity {
                device: 1,
                inode: 3,
            },
            ..origin()
        };
        assert!(
            decode_for(&bytes, &there).is_none(),
            "another inode is another directory"
        );
        let later = Origin {
            boot: "another".to_owned(),
            ..origin()
        };
        assert!(
            decode_for(&bytes, &later).is_none(),
            "the clock may have gone backwards since"
        );
    }

    #[test]
    fn what_is_made_ready_before_is_what_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let mut cache = cache();
        let files = ["before", "at once"].map(|name| directory.path().join(name));
        let mut on_disk = files.clone().map(|_| OnDisk::default());
        for size in 10..13 {
            for (file, on_disk) in files.iter().zip(&mut on_disk) {
                let is_before = file.ends_with("before");
                let staged = is_before
                    .then(|| stage(&Operation::unbounded(), &cache, on_disk, file, HERE).unwrap());
                save(&Operation::unbounded(), &cache, on_disk, staged, file, HERE).unwrap();
                assert_eq!(load(file, HERE).0, cache);
            }
            let written = files.each_ref().map(|file| std::fs::read(file).unwrap());
            assert!(written[0] == written[1], "{size}");
            cache
                .directories
                .insert(path("a"), super::tests::directory(b"in a", size));
            for on_disk in &mut on_disk {
                on_disk.note_changed([path("a")]);
            }
        }
    }

    #[test]
    fn what_a_killed_process_was_writing_goes_when_a_cache_is_written_anew() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("cache");
        let _ = std::mem::ManuallyDrop::new(
            durable::stage_for(&Operation::unbounded(), &file).unwrap(),
        );
        std::fs::write(home.path().join(".tmp-of-another"), "").unwrap();
        write(&cache(), OnDisk::default(), &file);
        let names = std::fs::read_dir(home.path()).unwrap();
        let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, [".tmp-of-another", "cache"]);
    }

    #[test]
    fn a_change_is_appended_and_a_torn_one_leaves_what_was_before() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("cache");
        let on_disk = write(&cache(), OnDisk::default(), &file);
        let base = std::fs::read(&file).unwrap();

        let mut changed = cache();
        changed
            .directories
            .insert(path("a"), directory(b"in a", 100));
        changed.directories.remove(&path("b"));
        let on_disk = write(&changed, on_disk, &file);
        let appended = std::fs::read(&file).unwrap();
        assert!(appended.starts_with(&base) && appended.len() > base.len());
        assert_eq!(load(&file, HERE).0.directories, changed.directories);

        for cut in base.len()..appended.len() {
            std::fs::write(&file, &appended[..cut]).unwrap();
            let (torn, torn_on_disk) = load(&file, HERE);
            assert_eq!(torn.directories, cache().directories, "cut at {cut}");
            assert_eq!(torn_on_disk.file.is_some(), cut == base.len());
        }

        // It is torn, and not what was loaded: it is written anew.
        assert!(!on_disk.is_current(&file));
        write(&changed, on_disk, &file);
        assert_eq!(load(&file, HERE).0.directories, changed.directories);
    }

    #[test]
    fn a_base_of_several_frames_is_gone_on_with() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("cache");
        let mut large = cache();
        for n in 0..3 {
            let mut directory = CachedDirectory::default();
            let small = cache();
            let (_, entry) = small.directories[&path("a")].entries.get(0);
            for name in 0..FILES_PER_FRAME {
                let name = format!("{name:05}");
                directory.entries.push(name.as_bytes(), entry.clone());
            }
            let name = path(&format!("large-{n}"));
            large.directories.insert(name, Arc::new(directory));
        }
        write(&large, OnDisk::default(), &file);
        let base = std::fs::read(&file).unwrap();
        let (loaded, on_disk) = load(&file, HERE);
        assert!(loaded == large);

        let mut changed = large.clone();
        changed.directories.insert(path("b"), directory(b"new", 1));
        write(&changed, on_disk, &file);
        let appended = std::fs::read(&file).unwrap();
        assert!(appended.starts_with(&base) && appended.len() < base.len() + 10_000);
        assert!(load(&file, HERE).0 == changed);

        // Without its last frame a base is nothing, wherever it ends.
        let origin = origin();
        let frames = frames(&origin, &large, FILES_PER_FRAME);
        let ends = frames.map(|frame| frame.unwrap().len());
        let ends: Vec<_> = ends
            .scan(0, |at, bytes| Some(std::mem::replace(at, *at + bytes)))
            .collect();
        assert!(ends.len() > 3, "{ends:?}");
        for end in ends {
            assert_eq!(read_back(&base[..end]), None);
        }
    }

    #[test]
    fn a_fifo_in_the_place_of_the_cache_is_not_waited_for() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("cache");
        rustix::fs::mkfifoat(rustix::fs::CWD, &file, Mode::RUSR | Mode::WUSR).unwrap();
        assert!(load(&file, HERE).0.directories.is_empty());
        write(&cache(), OnDisk::default(), &file);
        assert_eq!(load(&file, HERE).0.directories, cache().directories);
    }

    #[test]
    fn a_file_that_is_mostly_changes_is_written_anew() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("cache");
        let mut on_disk = write(&cache(), OnDisk::default(), &file);
        let base = std::fs::metadata(&file).unwrap().len();
        for size in 0..50 {
            let mut changed = cache();
            changed
                .directories
                .insert(path("a"), directory(b"in a", size));
            on_disk = write(&changed, on_disk, &file);
            assert!(std::fs::metadata(&file).unwrap().len() <= 2 * base);
            assert_eq!(load(&file, HERE).0.directories, changed.directories);
        }
    }

    fn any_cache() -> impl Strategy<Value = StatCache> {
        let stat = || {
            (any::<(u64, i64, i64)>(), any::<(u64, u32)>()).prop_map(|(a, b)| EntryStat {
                size: a.0,
                mtime_ns: a.1,
                ctime_ns: a.2,
                inode: b.0,
                mode: b.1,
            })
        };
        let path = || "[a-z]{1,3}(/[a-z]{1,3}){0,2}".prop_map(|p| RelPath::new(p).expect("a path"));
        let name = || prop::collection::vec(any::<u8>(), 1..5);
        let entry =
            (any::<[u8; 20]>(), stat(), any::<u8>()).prop_map(|(id, stat, flags)| CachedEntry {
                kind: EntryKind::Symlink,
                id: ContentId::Sha1(id),
                stat,
                flags: Flags::of_bits(flags),
            });
        let listed = (
            any::<(u64, i64, i64)>(),
            prop::collection::btree_set(name(), 0..3),
        );
        let directory = (
            prop::collection::btree_map(name(), entry, 0..3),
            prop::collection::btree_set(name(), 0..3),
            any::<(u32, bool)>(),
            prop::option::of(listed),
        );
        let directory = directory.prop_map(|(entries, children, (mode, is_absent), listed)| {
            let list = |names: std::collections::BTreeSet<Vec<u8>>| {
                let mut list = NameList::default();
                names.iter().for_each(|name| list.push(name));
                list
            };
            let mut directory = CachedDirectory {
                children: list(children),
                mode,
                tree: Some(ContentId::Blake3([1; 32])),
                is_absent,
                listed: listed.map(|((inode, mtime_ns, ctime_ns), others)| Listed {
                    inode,
                    mtime_ns,
                    ctime_ns,
                    others: list(others),
                }),
                ..Default::default()
            };
            for (name, entry) in entries {
                directory.entries.push(&name, entry);
            }
            Arc::new(directory)
        });
        let rules =
            (stat(), any::<(bool, Vec<u8>)>()).prop_map(|(stat, (is_racy, text))| CachedRules {
                stat,
                is_racy,
                text,
            });
        (
            prop::collection::hash_map(path(), directory, 0..3),
            prop::collection::hash_map(path(), rules, 0..2),
            prop::option::of((stat(), any::<bool>())),
            prop::collection::btree_map(path(), Just(vec![ContentId::Sha1([2; 20])]), 0..2),
            prop::collection::btree_map(path(), any::<bool>(), 0..2),
        )
            .prop_map(|(directories, rule_files, index, index_only, submodules)| {
                StatCache {
                    directories,
                    rule_files,
                    index: index.map(|(stat, is_racy)| IndexStamp {
                        stat,
                        is_racy,
                        blob: ContentId::Sha1([3; 20]),
                    }),
                    index_only,
                    not_left_out: BTreeMap::new(),
                    submodules: submodules
                        .into_iter()
                        .map(|(path, is_sparse)| {
                            let commit = ContentId::Sha1([4; 20]);
                            (path, Submodule { commit, is_sparse })
                        })
                        .collect(),
                }
            })
    }

    proptest! {
        #[test]
        fn any_cache_is_read_back_as_it_was_written(cache in any_cache()) {
            prop_assert_eq!(read_back(&whole(&cache)), Some(cache));
        }

        #[test]
        fn any_cache_with_a_bit_flipped_or_cut_is_not_believed(
            cache in any_cache(),
            at in any::<prop::sample::Index>(),
            bit in 0_u32..8,
        ) {
            let mut bytes = whole(&cache);
            let at = at.index(bytes.len());
            prop_assert_eq!(read_back(&bytes[..at]), None);
            bytes[at] ^= 1_u8 << bit;
            prop_assert_eq!(read_back(&bytes), None);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            read_back(&bytes);
            let origin = FORMAT.encode(&origin()).expect("it is short");
            let origin = &origin[origin.len() - contract::body_bytes(&origin)..];
            // The same with a checksum that holds.
            read_back(&contract::sealed(&FORMAT, &bytes));
            read_back(&contract::sealed(&FORMAT, &[origin, &bytes].concat()));
        }

        #[test]
        fn any_change_is_read_back(before in any_cache(), after in any_cache()) {
            let home = tempfile::tempdir().unwrap();
            let file = home.path().join("cache");
            let on_disk = write(&before, OnDisk::default(), &file);
            let on_disk = write(&after, on_disk, &file);
            prop_assert_eq!(&load(&file, HERE).0, &after);
            write(&before, on_disk, &file);
            prop_assert_eq!(load(&file, HERE).0, before);
        }
    }
}
