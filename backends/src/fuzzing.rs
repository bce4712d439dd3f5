//! Fuzz targets: every decoder as a function of arbitrary bytes, with the properties that must hold
//! for any input. They are used by `cargo fuzz`, by `torture -- decode`, and by a normal test.
//!
//! A target panics if a property does not hold. This module exists only with the feature `fuzzing`
//! and in tests.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::backend::SnapshotOptions;
use crate::codec;
use crate::detect::{Strategy, detect};
use crate::error::ErrorKind;
use crate::git::fuzzing as git;
use crate::git::rollback::RepositoryPlan;
use crate::ignore_rules::RuleFile;
use crate::operation::Operation;
use crate::path::{RelPath, printable_bytes};
use crate::path_pattern::{Candidate, PathPattern};
use crate::purge::{PurgeTarget, Purged};
use crate::record::Record;
use crate::snapshot::{Label, SnapshotId};
use crate::store_error::StoreError;
use crate::workspace::{LockedWorkspace, StateDir, Workspace};
use crate::worktree::{journal, stat_cache};

/// The limit of inflated bytes for every target.
pub(crate) const MAX_CONTENT_BYTES: u64 = 16 << 20;

/// More than any input makes any decoder need: what a length field says is not believed.
const MAX_PEAK_BYTES: u64 = 1 << 30;

/// No input is so long that it takes a decoder longer, on any machine.
const MAX_TIME: Duration = Duration::from_secs(10);

/// A decoder.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// What it decodes: the name of the directory of its corpus.
    pub name: &'static str,
    /// Takes anything, and panics if something is not true.
    pub look: fn(&[u8]),
}

const fn target(name: &'static str, look: fn(&[u8])) -> Target {
    Target { name, look }
}

/// Every decoder.
pub const TARGETS: [Target; 18] = [
    target("attributes", git::attributes),
    target("deflated", git::deflated),
    target("ids", ids),
    target("ignore", ignore),
    target("index", git::user_index),
    target("journal", journal),
    target("loose", git::loose),
    target("manifest", manifest),
    target("pack", git::pack),
    target("path", path),
    target("pattern", pattern),
    target("purged", purged),
    target("record", record),
    target("refs", git::refs),
    target("repository", repository),
    target("sealed-journal", sealed_journal),
    target("stat-cache", stat_cache),
    target("tree", git::tree),
];

/// What became of a drive.
#[derive(Clone, Debug, Default)]
pub struct Driven {
    /// How many inputs each target looked at.
    pub looked_at: Vec<(&'static str, u64)>,
    /// The target that found something, the input in hexadecimal digits, and what it said.
    pub found: Vec<(&'static str, String, String)>,
}

/// Gives every target its corpus, and mutations of that, until the time is over: each gets as much
/// of it.
///
/// # Panics
///
/// If there is no corpus below `corpus`: a directory for each target, with a file for each input.
pub fn drive(targets: &[Target], corpus: &Path, time: Duration, seed: u64) -> Driven {
    let mut driven = Driven::default();
    let turns = u32::try_from(targets.len().max(1)).expect("targets are few");
    for target in targets {
        let seeds = seeds(&corpus.join(target.name));
        let begin = Instant::now();
        let mut dice = Dice(seed);
        let mut count = 0;
        let mut found = None;
        while found.is_none() && (count < seeds.len() as u64 || begin.elapsed() < time / turns) {
            let input = match seeds.get(usize::try_from(count).unwrap_or(usize::MAX)) {
                Some(seed) => seed.clone(),
                None => dice.mutated(&seeds),
            };
            found = complaint(target, &input).map(|said| {
                let digits = data_encoding::HEXLOWER.encode(&input);
                (target.name, digits, said)
            });
            count += 1;
        }
        driven.looked_at.push((target.name, count));
        driven.found.extend(found);
    }
    driven
}

/// What a target has to say against this input.
fn complaint(target: &Target, input: &[u8]) -> Option<String> {
    let begin = Instant::now();
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (target.look)(input))) {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        return Some(text.unwrap_or_else(|| "it panicked".to_owned()));
    }
    if begin.elapsed() > MAX_TIME {
        return Some(format!("it took {:?}", begin.elapsed()));
    }
    let peak = peak_bytes().filter(|peak| *peak > MAX_PEAK_BYTES);
    peak.map(|peak| format!("{peak} bytes of memory were needed"))
}

/// The peak memory of the process; `None` if it is not known.
fn peak_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1024)
}

fn seeds(directory: &Path) -> Vec<Vec<u8>> {
    let entries = fs::read_dir(directory);
    let entries = entries.unwrap_or_else(|e| panic!("{}: {e}", directory.display()));
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} is empty", directory.display());
    let read = |path| fs::read(path).expect("a file of the corpus can be read");
    paths.into_iter().map(read).collect()
}

/// Chances that can be had again: SplitMix64, by Steele, Lea and Flood.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() >> 32).expect("it has 32 bits") % end.max(1)
    }

    /// One of the seeds, changed in one to four ways.
    fn mutated(&mut self, seeds: &[Vec<u8>]) -> Vec<u8> {
        const LONGEST: usize = 1 << 20;
        let mut bytes = seeds[self.below(seeds.len())].clone();
        for _ in 0..=self.below(4) {
            let at = self.below(bytes.len());
            match self.below(9) {
                // A bit.
                0 | 1 if !bytes.is_empty() => bytes[at] ^= 1 << self.below(8),
                // A byte that means something.
                2 if !bytes.is_empty() => {
                    bytes[at] = *b"\0\x01\x7f\x80\xff\n /\\\"0"
                        .get(self.below(11))
                        .unwrap_or(&0);
                }
                3 => bytes.truncate(at),
                // A length or a count that is far too large, or one more, in either order of bytes.
                4 => {
                    let width = 4 << self.below(2);
                    if let Some(field) = bytes.get_mut(at..).and_then(|b| b.get_mut(..width)) {
                        match self.below(3) {
                            0 => field.fill(0xff),
                            1 => field[0] = field[0].wrapping_add(1),
                            _ => field[width - 1] = field[width - 1].wrapping_add(1),
                        }
                    }
                }
                // Some of another seed, in place of what was there or behind it.
                5 | 6 => {
                    let other = &seeds[self.below(seeds.len())];
                    let from = self.below(other.len());
                    let piece = &other[from..(from + self.below(64)).min(other.len())];
                    let to = (at + self.below(64)).min(bytes.len());
                    bytes.splice(at.min(to)..to, piece.iter().copied());
                }
                // Something twice.
                7 => {
                    let end = (at + self.below(256)).min(bytes.len());
                    let piece = bytes.get(at..end).unwrap_or_default().to_vec();
                    bytes.splice(at.min(end)..at.min(end), piece);
                }
                _ => {
                    let random = self.next().to_le_bytes();
                    bytes.splice(at.min(bytes.len())..at.min(bytes.len()), random);
                }
            }
        }
        bytes.truncate(LONGEST);
        bytes
    }
}

/// Lets a decoder look into a directory that is there for it alone.
pub(crate) fn with_directory(look: impl FnOnce(&Path)) {
    let memory = Path::new("/dev/shm");
    let directory = tempfile::tempdir_in(memory).or_else(|_| tempfile::tempdir());
    look(directory.expect("there is room for a directory").path());
}

/// A file in the form of [`codec`], with the length and the checksum that its body has: what is
/// behind the checksum is reached too.
fn sealed(bytes: &[u8]) -> Vec<u8> {
    const FIELDS: std::ops::Range<usize> = 12..codec::HEADER_BYTES;
    let mut sealed = bytes.to_vec();
    if let Some((header, body)) = sealed.split_at_mut_checked(codec::HEADER_BYTES) {
        let digest = blake3::hash(body);
        let fields = [&(body.len() as u64).to_le_bytes()[..], digest.as_bytes()];
        header[FIELDS].copy_from_slice(&fields.concat());
    }
    sealed
}

/// A failure of one of our own files is one of these.
fn is_typed<T>(result: Result<T, StoreError>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(StoreError::Corrupt { .. } | StoreError::VersionTooNew { .. }) => None,
        Err(error) => panic!("an error of another kind: {error}"),
    }
}

/// Names of snapshots, targets of a purge, plans.
fn ids(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Ok(id) = text.parse::<SnapshotId>() {
        assert_eq!(id.as_str(), text, "an id is its text");
        assert!(id.has_prefix(text));
        assert!(RelPath::new(text).is_ok(), "it is a name of a file");
    }
    let _ = text.parse::<PurgeTarget>();
    let _ = text.parse::<crate::restore::PlanId>();
    let _ = text.parse::<Strategy>();
    let _ = text.parse::<crate::git::ObjectId>().map(|id| {
        assert_eq!(id.to_string(), text.to_ascii_lowercase());
    });
}

/// Rules that leave paths out.
fn ignore(bytes: &[u8]) {
    let rules = RuleFile::parse("rules", bytes);
    for path in [&b"a"[..], b"a/b.log", b"deep/er/and/deeper/file", b"\xff"] {
        for is_dir in [false, true] {
            let decision = rules.decide(path, is_dir);
            if let Some(rule) = decision.rule() {
                assert!(rule.line() >= 1);
                assert!(
                    bytes
                        .windows(rule.pattern().len().max(1))
                        .any(|w| w == rule.pattern())
                );
            }
        }
    }
}

/// A pattern, and after a NUL a path.
fn pattern(bytes: &[u8]) {
    let mut parts = bytes.splitn(2, |b| *b == 0);
    let pattern = PathPattern::parse(parts.next().unwrap_or_default());
    let path = parts.next().unwrap_or(b"a/b");
    if let Some(pattern) = pattern
        && !path.is_empty()
        && pattern.matches(Candidate::new(path, false))
    {
        assert!(!pattern.directories_only(), "a file is no directory");
        assert!(
            pattern.matches(Candidate::new(path, true)),
            "a directory matches what a file does"
        );
    }
}

/// A path, and what of it is printed.
fn path(bytes: &[u8]) {
    let shown = printable_bytes(bytes);
    assert!(!shown.chars().any(char::is_control), "{shown:?}");
    if let Ok(path) = RelPath::new(bytes) {
        assert_eq!(path.as_bytes(), bytes);
        let joined: Vec<&[u8]> = path.names().collect();
        assert_eq!(joined.join(&b'/'), bytes, "it is its names");
        assert!(joined.iter().all(|name| *name != b".." && *name != b"."));
    }
}

/// A record of a snapshot. What is taken is written the same.
fn record(bytes: &[u8]) {
    if let Some(record) = is_typed(Record::from_json(bytes, "it")) {
        let text = serde_json::to_vec(&record).expect("a record is plain data");
        let again = Record::from_json(&text, "it").expect("what is written is read");
        let again = serde_json::to_vec(&again).expect("a record is plain data");
        assert_eq!(again, text);
    }
}

/// The manifest of a snapshot of the hash backend, as it is and with a checksum that holds.
fn manifest(bytes: &[u8]) {
    for bytes in [bytes.to_vec(), sealed(bytes)] {
        if let Some(manifest) = is_typed(crate::hash::FuzzedManifest::decode(&bytes, "it")) {
            assert!(crate::hash::FuzzedManifest::is_whole(&bytes));
            let encoded = manifest.encode().expect("it is no longer than it was");
            assert_eq!(encoded, bytes, "it is canonical");
        }
    }
}

/// The list of purged content, likewise.
fn purged(bytes: &[u8]) {
    for bytes in [bytes.to_vec(), sealed(bytes)] {
        with_directory(|stores| {
            fs::write(stores.join("purged"), &bytes).expect("memory takes it");
            if let Some(purged) = is_typed(Purged::beside(stores)) {
                assert!(purged.len() <= bytes.len(), "nothing is invented");
                assert!(purged.ids().all(|id| purged.contains(id)));
            }
        });
    }
}

/// The journal of a restore. What follows a torn frame is taken away, and then it is read the same.
fn journal(bytes: &[u8]) {
    with_directory(|store| {
        fs::write(store.join("restore.journal"), bytes).expect("memory takes it");
        if let Some(Some(found)) = is_typed(journal::find(&Operation::unbounded(), store)) {
            let kept = fs::read(store.join("restore.journal")).expect("it is there");
            assert!(bytes.starts_with(&kept), "nothing is made up");
            let again =
                journal::find(&Operation::unbounded(), store).expect("what was kept is whole");
            let again = again.expect("it is there");
            assert_eq!(again.staging, found.staging);
            let _ = is_typed(journal::problem(store, RepositoryPlan::check));
        }
    });
}

/// The same with frames whose checksums hold: each input is the payloads of frames, each of them
/// behind its kind and its length as one byte and two, little-endian.
fn sealed_journal(bytes: &[u8]) {
    let mut frames = Vec::new();
    let mut rest = bytes;
    let mut sequence = 0_u32;
    while let Some((&[kind, low, high], after)) = rest.split_first_chunk::<3>() {
        let length = usize::from(u16::from_le_bytes([low, high])).min(after.len());
        let (payload, after) = after.split_at(length);
        let begin = frames.len();
        frames.extend_from_slice(b"SFRSTJ\r\n");
        frames.extend_from_slice(&journal::VERSION.to_le_bytes());
        frames.extend_from_slice(&[7; 16]);
        frames.push(kind);
        frames.extend_from_slice(&sequence.to_le_bytes());
        frames.extend_from_slice(&u32::try_from(length).unwrap_or(0).to_le_bytes());
        frames.extend_from_slice(payload);
        let checksum = blake3::hash(&frames[begin..]);
        frames.extend_from_slice(checksum.as_bytes());
        (rest, sequence) = (after, sequence + 1);
    }
    journal(&frames);
}

/// A workspace with a repository and a snapshot of it, for decoders that need one.
struct Ground {
    _home: tempfile::TempDir,
    workspace: LockedWorkspace,
}

thread_local! {
    static GROUND: Ground = Ground::new();
}

impl Ground {
    /// The directories of a repository without a commit, made by nobody but us.
    fn new() -> Self {
        let memory = Path::new("/dev/shm");
        let home = tempfile::tempdir_in(memory).or_else(|_| tempfile::tempdir());
        let home = home.expect("there is room for a directory");
        let root = home.path().join("work");
        for directory in [".git/objects/pack", ".git/refs/heads", ".git/info", "dir"] {
            fs::create_dir_all(root.join(directory)).expect("memory takes it");
        }
        for (path, text) in REPOSITORY {
            fs::write(root.join(path), text).expect("memory takes it");
        }
        let state = StateDir::open(home.path().join("state")).expect("it can be made");
        let workspace = Workspace::open(&root, &state).expect("it is there");
        let workspace = workspace
            .lock(&Operation::unbounded(), Duration::ZERO)
            .expect("it is ours");
        Self {
            _home: home,
            workspace,
        }
    }

    fn snapshot(&self) -> Result<(), ErrorKind> {
        let backend = detect(&self.workspace, Strategy::Auto)
            .map_err(|error| error.kind())?
            .backend;
        let at = jiff::Timestamp::from_second(1_700_000_000).expect("it is a time");
        let options = SnapshotOptions::new(Label::MANUAL, at).retain_content(true);
        let snapshot = backend.snapshot(&Operation::unbounded(), &self.workspace, &options);
        snapshot.map(drop).map_err(|error| error.kind())
    }
}

/// What a repository without a commit consists of; any of it may be something else.
const REPOSITORY: [(&str, &str); 9] = [
    (".git/HEAD", "ref: refs/heads/main\n"),
    (
        ".git/config",
        "[core]\n\trepositoryformatversion = 0\n\tbare = false\n",
    ),
    (
        ".git/packed-refs",
        "# pack-refs with: peeled fully-peeled sorted \n",
    ),
    (".git/info/exclude", "*.o\n"),
    (".git/info/attributes", "*.bin -text\n"),
    (".gitignore", "*.log\n!kept.log\n"),
    (".gitattributes", "*.txt text\n"),
    ("dir/file", "content\n"),
    ("left.log", "ignored\n"),
];

/// Files of a repository that may hold anything when it is captured: the first byte says which.
const TAKEN: [&str; 12] = [
    ".git/HEAD",
    ".git/config",
    ".git/packed-refs",
    ".git/index",
    ".git/refs/heads/main",
    ".git/info/exclude",
    ".git/info/attributes",
    ".git/objects/info/alternates",
    ".git/commondir",
    ".gitignore",
    ".gitattributes",
    "dir/.git",
];

/// A repository one of whose files holds anything. A capture ends, in a snapshot or in an error of
/// a kind that a host can act on, and leaves the file as it is.
fn repository(bytes: &[u8]) {
    let Some((which, bytes)) = bytes.split_first() else {
        return;
    };
    let name = TAKEN[usize::from(*which) % TAKEN.len()];
    GROUND.with(|ground| {
        let path = ground.workspace.disk_path().join(name);
        fs::create_dir_all(path.parent().expect("it lies in one")).expect("memory takes it");
        fs::write(&path, bytes).expect("memory takes it");
        let outcome = ground.snapshot();
        let left = fs::read(&path);
        let original = REPOSITORY.iter().find(|(path, _)| *path == name);
        match original {
            Some((_, text)) => fs::write(&path, text).expect("memory takes it"),
            None => fs::remove_file(&path).expect("it is there"),
        }
        assert!(
            left.is_ok_and(|left| left == bytes),
            "{name} is left as it is"
        );
        assert!(
            !matches!(outcome, Err(ErrorKind::Busy | ErrorKind::NoSpace)),
            "{outcome:?}"
        );
    });
}

/// The stat cache of a workspace. Whatever it holds, the next capture is one.
fn stat_cache(bytes: &[u8]) {
    GROUND.with(|ground| {
        let path = ground.workspace.store_path().join("git.stat-cache");
        for bytes in [bytes.to_vec(), sealed(bytes)] {
            fs::write(&path, &bytes).expect("memory takes it");
            let (cache, _) = stat_cache::load(&path, ground.workspace.identity());
            assert!(
                cache.directories.len() <= bytes.len(),
                "nothing is invented"
            );
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The corpus lies where `cargo fuzz` looks for it.
    fn corpus() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus")
    }

    #[test]
    fn no_input_makes_a_decoder_fail() {
        let seconds = match std::env::var("STILLFRAME_TORTURE").as_deref() {
            Ok("long") => 60,
            _ => 4,
        };
        let driven = drive(&TARGETS, &corpus(), Duration::from_secs(seconds), 1);
        println!("{:?}", driven.looked_at);
        assert_eq!(driven.found, [], "{:?}", driven.looked_at);
        assert!(driven.looked_at.iter().all(|(_, count)| *count > 0));
    }

    #[test]
    fn a_decoder_that_fails_is_found() {
        fn fails(bytes: &[u8]) {
            assert!(bytes.len() < 1000 || bytes[0] != 0xff, "it is too long");
        }
        let seeds = [vec![0xff; 999]];
        let mut dice = Dice(3);
        let target = target("it", fails);
        let found = (0..1000).find_map(|_| complaint(&target, &dice.mutated(&seeds)));
        assert_eq!(found.as_deref(), Some("it is too long"));
    }
}
