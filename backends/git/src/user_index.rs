//! The user's index, parsed from its bytes.
//!
//! The format is git's (`gitformat-index`), versions 2, 3 and 4 with SHA-1 ids, including split and
//! sparse indexes, which libgit2 does not read. Nothing here touches the disk. For any bytes the
//! result is an index or a typed error.

mod bytes;
mod extensions;
mod link;
mod stream;

use std::cmp::Ordering;

pub use self::bytes::{IndexTree, serialize};
pub use self::extensions::{cached_trees, without_cached_trees};
use self::link::Link;
use self::stream::scan;
use super::ObjectId;
use crate::path::{InvalidPath, RelPath};

/// The kinds that an entry's mode can name, in git's canonical form.
const MODE_FILE: u32 = 0o100_644;
const MODE_EXECUTABLE: u32 = 0o100_755;
const MODE_LINK: u32 = 0o120_000;
/// The mode of an entry for a submodule.
pub const MODE_SUBMODULE: u32 = 0o160_000;
/// The mode of an entry of a sparse index that stands for all below a directory.
pub const MODE_SPARSE_DIRECTORY: u32 = 0o040_000;

/// The SHA-1 at the end.
const TRAILER_BYTES: usize = 20;
/// The user's index: which paths git tracks, with what content and what stat data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserIndex {
    /// 2, 3 or 4.
    pub version: u32,
    /// As in the file: sorted by path bytes, then stage, each pair once. A sparse directory is
    /// sorted as if its path ended in `/`.
    pub entries: Vec<IndexEntry>,
    /// The shared index that a split index is laid over. Its file, `sharedindex.<id>`, is needed to
    /// read this index again.
    pub shared_id: Option<ObjectId>,
}

/// One path of the index. While the index is read, `P` is the bytes of a path that [`RelPath`]
/// takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexEntry<P = RelPath> {
    /// From the top of the work tree. Never empty; no component is `.git` in any case.
    pub path: P,
    /// `100644`, `100755`, `120000` (link), `160000` (submodule), or `040000`: a directory outside
    /// of a sparse checkout, whose `id` is a tree.
    pub mode: u32,
    /// The content as git stores it: filters and line-ending conversion may lie between it and the
    /// file.
    pub id: ObjectId,
    /// What `lstat` said when git last found file and `id` equal. All zero where it never did.
    pub stat: IndexStat,
    /// 0, or in a conflict 1 (base), 2 (ours), 3 (theirs).
    pub stage: u8,
    /// `git add --intent-to-add`: `id` is the empty blob, and says nothing about the file.
    pub is_intent_to_add: bool,
    /// Not in the work tree by intent (sparse checkout).
    pub is_skip_worktree: bool,
    /// The user asked git not to look at the file. We look.
    pub is_assume_unchanged: bool,
}

/// Stat data as the index keeps it: each value cut to 32 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexStat {
    /// Seconds since the Unix epoch, nanoseconds.
    pub ctime: (u32, u32),
    /// Seconds since the Unix epoch, nanoseconds.
    pub mtime: (u32, u32),
    /// The lower half of the device, as all numbers here.
    pub dev: u32,
    /// The inode.
    pub ino: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Bytes. 0 also marks an entry of which git itself no longer trusts the rest; a size that is a
    /// multiple of 4 GiB is kept as `0x80000000`.
    pub size: u32,
}

/// Why some bytes are no index that can be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IndexError {
    /// There is no `DIRC` at the beginning, or not even room for a header and a checksum.
    #[error("it does not begin like an index")]
    NotAnIndex,
    /// A version that this does not know.
    #[error("its version is {0}; 2, 3 and 4 can be read")]
    UnsupportedVersion(u32),
    /// An extension without which the entries would be misread.
    #[error("it needs the extension {0:?}, which is not known")]
    UnsupportedExtension(String),
    /// The bytes are not those that git wrote.
    #[error("its checksum is {found}, its content has {expected}")]
    Checksum {
        /// What the content hashes to.
        expected: ObjectId,
        /// What stands at the end.
        found: ObjectId,
    },
    /// It ends too early, or claims more than it can hold.
    #[error("it ends inside {0}")]
    Truncated(&'static str),
    /// An entry that git would not have written. Counted from 0.
    #[error("entry {position} {reason}")]
    BadEntry {
        /// Which one.
        position: usize,
        /// A clause.
        reason: &'static str,
    },
    /// The path of an entry leads elsewhere.
    #[error("entry {position} has a bad path")]
    BadPath {
        /// Which one.
        position: usize,
        /// What is wrong with it.
        source: InvalidPath,
    },
    /// Two entries are in the wrong order, or one comes twice.
    #[error("entry {position}, {path}, is not in order")]
    Unsorted {
        /// The second one of the two.
        position: usize,
        /// Its path.
        path: RelPath,
    },
    /// A split index does not fit the shared one.
    #[error("it is split, and {0}")]
    BadLink(&'static str),
    /// The paths would take more memory than an honest index of this size.
    #[error("its paths are longer than {limit} bytes in all")]
    PathsTooLong {
        /// The limit, in bytes.
        limit: usize,
    },
}

impl IndexEntry {
    /// The same, with its path as bytes.
    pub fn borrowed(&self) -> IndexEntry<&[u8]> {
        let Self {
            ref path,
            mode,
            id,
            stat,
            stage,
            is_intent_to_add,
            is_skip_worktree,
            is_assume_unchanged,
        } = *self;
        IndexEntry {
            path: path.as_bytes(),
            mode,
            id,
            stat,
            stage,
            is_intent_to_add,
            is_skip_worktree,
            is_assume_unchanged,
        }
    }
}

impl IndexEntry<&[u8]> {
    /// Adds what it stages, without stat data, to a digest.
    pub fn add_to(&self, hasher: &mut blake3::Hasher) {
        let flags = [
            self.stage,
            u8::from(self.is_intent_to_add),
            u8::from(self.is_skip_worktree),
            u8::from(self.is_assume_unchanged),
        ];
        hasher
            .update(&(self.path.len() as u64).to_le_bytes())
            .update(self.path)
            .update(&self.mode.to_le_bytes())
            .update(&self.id.0)
            .update(&flags);
    }

    fn to_owned(&self) -> IndexEntry {
        let Self {
            path,
            mode,
            id,
            stat,
            stage,
            is_intent_to_add,
            is_skip_worktree,
            is_assume_unchanged,
        } = *self;
        IndexEntry {
            path: RelPath::new(path).expect("it was checked when it was read"),
            mode,
            id,
            stat,
            stage,
            is_intent_to_add,
            is_skip_worktree,
            is_assume_unchanged,
        }
    }
}

impl UserIndex {
    /// Why it cannot be written by us; `None` if it can.
    pub fn unwritable_form(&self) -> Option<&'static str> {
        if self.shared_id.is_some() {
            return Some("split");
        }
        let is_sparse = |entry: &IndexEntry| entry.mode == MODE_SPARSE_DIRECTORY;
        self.entries.iter().any(is_sparse).then_some("sparse")
    }
}

impl IndexError {
    /// Whether the index may well be in order, in a format that this does not read.
    pub(crate) fn is_unsupported(&self) -> bool {
        matches!(
            self,
            Self::UnsupportedVersion(_) | Self::UnsupportedExtension(_)
        )
    }
}

/// Reads an index file. A split index is merged with the shared one, whose bytes `shared` supplies;
/// it is called at most once.
///
/// Optional extensions are skipped. The checksum is verified unless git left it out
/// (`index.skipHash`).
pub fn parse<E: From<IndexError>>(
    bytes: &[u8],
    shared: &mut dyn FnMut(&ObjectId) -> Result<Vec<u8>, E>,
) -> Result<UserIndex, E> {
    let file = parse_file(bytes)?;
    let mut entries = file.entries;
    let mut shared_id = None;
    let mut is_sparse = file.is_sparse;
    if let Some(link) = file.link {
        let base = parse_file(&shared(&link.shared_id)?)?;
        if base.checksum != link.shared_id {
            return Err(IndexError::BadLink("the shared index is another one").into());
        }
        if base.link.is_some() {
            return Err(IndexError::BadLink("so is the shared index").into());
        }
        is_sparse |= base.is_sparse;
        shared_id = Some(link.shared_id);
        entries = link.merge(base.entries, entries)?;
    }
    check_entries(&entries, is_sparse)?;
    Ok(UserIndex {
        version: file.version,
        entries,
        shared_id,
    })
}

/// One index file. In a split one, entries that replace shared ones come first and have the empty
/// path.
struct IndexFile {
    version: u32,
    entries: Vec<IndexEntry>,
    link: Option<Link>,
    is_sparse: bool,
    /// What stands at the end; zero if git left it out.
    checksum: ObjectId,
}

fn parse_file(bytes: &[u8]) -> Result<IndexFile, IndexError> {
    let mut source = source_of(bytes);
    let mut entries = Vec::new();
    let outline = scan(&mut source, bytes.len() as u64, &mut |entry, _| {
        entries.push(entry.to_owned());
    })?;
    Ok(IndexFile {
        version: outline.version,
        entries,
        link: outline.link,
        is_sparse: outline.is_sparse,
        checksum: outline.checksum,
    })
}

/// What [`visit`] has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visited {
    /// All entries of the index.
    All,
    /// The index is a split one. What was visited says nothing: it takes [`parse`].
    Split,
}

/// Reads an index of `length` bytes from `source`, which is asked for more of it until it answers
/// 0, and calls `visit` with each entry, so that no caller needs all of them in memory.
///
/// What was visited counts only if this answers with [`Visited::All`]: the checksum and the kind of
/// the index stand at its end. Whatever was visited was in order.
pub fn visit<E: From<IndexError>>(
    source: &mut dyn FnMut(&mut [u8]) -> Result<usize, E>,
    length: u64,
    visit: &mut dyn FnMut(&IndexEntry<&[u8]>),
) -> Result<Visited, E> {
    let mut position = 0;
    let mut failure = None;
    let mut directory = None;
    let outline = scan(source, length, &mut |entry, is_next| {
        if entry.path.is_empty() || !is_next {
            failure.get_or_insert_with(|| match entry.path.is_empty() {
                true => IndexError::BadEntry {
                    position,
                    reason: "has no path",
                },
                false => IndexError::Unsorted {
                    position,
                    path: entry.to_owned().path,
                },
            });
        }
        if entry.mode == MODE_SPARSE_DIRECTORY {
            directory.get_or_insert(position);
        }
        if failure.is_none() {
            visit(entry);
        }
        position += 1;
    })?;
    if outline.link.is_some() {
        return Ok(Visited::Split);
    }
    if let Some(failure) = failure {
        return Err(failure.into());
    }
    match directory {
        Some(position) if !outline.is_sparse => Err(IndexError::BadEntry {
            position,
            reason: DIRECTORY_WITHOUT_SPARSE,
        }
        .into()),
        _ => Ok(Visited::All),
    }
}

/// [`visit`], of bytes that are in memory.
pub fn visit_bytes(
    bytes: &[u8],
    visit_entry: &mut dyn FnMut(&IndexEntry<&[u8]>),
) -> Result<Visited, IndexError> {
    visit(&mut source_of(bytes), bytes.len() as u64, visit_entry)
}

/// Answers with these bytes, piece by piece.
fn source_of(mut rest: &[u8]) -> impl FnMut(&mut [u8]) -> Result<usize, IndexError> {
    move |into| {
        let (taken, left) = rest.split_at(rest.len().min(into.len()));
        into[..taken.len()].copy_from_slice(taken);
        rest = left;
        Ok(taken.len())
    }
}

const DIRECTORY_WITHOUT_SPARSE: &str = "is a directory, and the index is not sparse";

fn check_entries(entries: &[IndexEntry], is_sparse: bool) -> Result<(), IndexError> {
    for (position, entry) in entries.iter().enumerate() {
        let bad = |reason| IndexError::BadEntry { position, reason };
        if entry.path.is_root() {
            return Err(bad("has no path"));
        }
        if entry.mode == MODE_SPARSE_DIRECTORY && !is_sparse {
            return Err(bad(DIRECTORY_WITHOUT_SPARSE));
        }
    }
    for (position, pair) in entries.windows(2).enumerate() {
        let (first, second) = (&pair[0], &pair[1]);
        let in_order = match order(first, second) {
            Ordering::Less => true,
            // Merged and unmerged at once: no path is both.
            Ordering::Equal => first.stage != 0 && first.stage < second.stage,
            Ordering::Greater => false,
        };
        if !in_order {
            return Err(IndexError::Unsorted {
                position: position + 1,
                path: second.path.clone(),
            });
        }
    }
    Ok(())
}

/// How the paths of two entries are sorted in the file; stages not counted.
fn order(a: &IndexEntry, b: &IndexEntry) -> Ordering {
    if a.mode != MODE_SPARSE_DIRECTORY && b.mode != MODE_SPARSE_DIRECTORY {
        return a.path.cmp(&b.path);
    }
    fn bytes(entry: &IndexEntry) -> impl Iterator<Item = u8> + '_ {
        let slash = (entry.mode == MODE_SPARSE_DIRECTORY).then_some(b'/');
        entry.path.as_bytes().iter().copied().chain(slash)
    }
    bytes(a).cmp(bytes(b))
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::fs;
    use std::sync::OnceLock;

    use proptest::prelude::*;
    use sha1::{Digest as _, Sha1};

    use super::*;
    use crate::test_repository::TestRepository;

    fn index_bytes(repository: &TestRepository) -> Vec<u8> {
        fs::read(repository.path.join(".git/index")).unwrap()
    }

    fn read(repository: &TestRepository) -> UserIndex {
        let git_dir = repository.path.join(".git");
        parse(&index_bytes(repository), &mut |id| {
            Ok::<_, IndexError>(fs::read(git_dir.join(format!("sharedindex.{id}"))).unwrap())
        })
        .unwrap()
    }

    fn not_split(_: &ObjectId) -> Result<Vec<u8>, IndexError> {
        panic!("the index is not split")
    }

    fn parse_alone(bytes: &[u8]) -> Result<UserIndex, IndexError> {
        parse(bytes, &mut not_split)
    }

    /// The index in the words of `git ls-files --stage --debug -z`.
    fn as_git_prints(index: &UserIndex) -> String {
        let mut out = String::new();
        for entry in &index.entries {
            let slash = if entry.mode == MODE_SPARSE_DIRECTORY {
                "/"
            } else {
                ""
            };
            let s = &entry.stat;
            let flags = u32::from(entry.stage) << 12
                | u32::from(entry.is_assume_unchanged) << 15
                | u32::from(entry.is_intent_to_add) << 29
                | u32::from(entry.is_skip_worktree) << 30;
            write!(
                out,
                "{:06o} {} {}\t{}{slash}\0  ctime: {}:{}\n  mtime: {}:{}\n  dev: {}\tino: {}\n  \
                 uid: {}\tgid: {}\n  size: {}\tflags: {:x}\n",
                entry.mode,
                entry.id,
                entry.stage,
                String::from_utf8_lossy(entry.path.as_bytes()),
                s.ctime.0,
                s.ctime.1,
                s.mtime.0,
                s.mtime.1,
                s.dev,
                s.ino,
                s.uid,
                s.gid,
                s.size,
                flags,
            )
            .unwrap();
        }
        out
    }

    /// git's own view, with the bits left out of the flags that only say how they are stored.
    fn git_prints(repository: &TestRepository) -> String {
        const ON_DISK: u32 = 0x6000_b000;
        let args = ["ls-files", "--stage", "--debug", "--sparse", "-z"];
        let output = repository.run(&repository.path, &args);
        assert!(output.status.success());
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = |line: &str| match line.split_once("flags: ") {
            Some((head, flags)) => {
                let flags = u32::from_str_radix(flags, 16).unwrap() & ON_DISK;
                format!("{head}flags: {flags:x}\n")
            }
            None => format!("{line}\n"),
        };
        text.lines().map(line).collect()
    }

    fn assert_read_as_by_git(repository: &TestRepository) -> UserIndex {
        let index = read(repository);
        assert!(!index.entries.is_empty());
        assert_eq!(as_git_prints(&index), git_prints(repository));
        index
    }

    fn with_files() -> TestRepository {
        let repository = TestRepository::new();
        for directory in ["", "a/", "a/deep/er/", "dir/", "dir-x/", "z/"] {
            for name in ["one", "two", "three", "long name with blanks in it"] {
                let path = format!("{directory}{name}");
                repository.write(&path, format!("{path}\n"));
                // Older than the index, or git holds every entry for racy.
                let file = fs::File::open(repository.path.join(&path)).unwrap();
                let day = std::time::Duration::from_secs(24 * 60 * 60);
                let now = file.metadata().unwrap().modified().unwrap();
                file.set_modified(now - day).unwrap();
            }
        }
        repository.write(b"not utf-8 \xff", "x");
        repository.write("x".repeat(200), "x");
        std::os::unix::fs::symlink("one", repository.path.join("link")).unwrap();
        let script = repository.path.join("run.sh");
        fs::write(&script, "#!/bin/sh\n").unwrap();
        let mut permissions = fs::metadata(&script).unwrap().permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o755);
        fs::set_permissions(&script, permissions).unwrap();
        repository.commit("files");
        repository
    }

    #[test]
    fn version_2_reads_as_git_reads_it() {
        let repository = with_files();
        let index = assert_read_as_by_git(&repository);
        assert_eq!(index.version, 2);
        assert_eq!(index.shared_id, None);
    }

    #[test]
    fn version_3_brings_intent_to_add_and_assume_unchanged() {
        let repository = with_files();
        repository.write("planned", "not yet\n");
        repository.git(&["add", "--intent-to-add", "planned"]);
        repository.git(&["update-index", "--assume-unchanged", "a/one"]);
        repository.git(&["update-index", "--skip-worktree", "a/two"]);

        let index = assert_read_as_by_git(&repository);

        assert_eq!(index.version, 3);
        let with = |is: fn(&IndexEntry) -> bool| -> Vec<&[u8]> {
            let found = index.entries.iter().filter(|e| is(e));
            found.map(|e| e.path.as_bytes()).collect()
        };
        assert_eq!(with(|e| e.is_intent_to_add), [b"planned"]);
        assert_eq!(with(|e| e.is_assume_unchanged), [b"a/one"]);
        assert_eq!(with(|e| e.is_skip_worktree), [b"a/two"]);
    }

    #[test]
    fn version_4_builds_each_path_on_the_one_before() {
        let repository = with_files();
        repository.git(&["update-index", "--index-version", "4"]);
        assert_eq!(assert_read_as_by_git(&repository).version, 4);
    }

    #[test]
    fn version_4_written_in_blocks_by_several_threads_reads_the_same() {
        let repository = with_files();
        repository.git(&[
            "-c",
            "index.threads=4",
            "-c",
            "index.version=4",
            "update-index",
            "--index-version",
            "4",
            "--force-write-index",
        ]);
        assert_read_as_by_git(&repository);
    }

    #[test]
    fn a_path_longer_than_its_length_field_is_read_whole() {
        let repository = TestRepository::new();
        let id = repository.git(&["hash-object", "-w", "-t", "blob", "/dev/null"]);
        let path = vec!["d".repeat(200); 22].join("/");
        assert!(path.len() > 0xfff);
        let entry = format!("100644,{id},{path}");
        repository.git(&["update-index", "--add", "--cacheinfo", &entry]);
        for version in ["2", "4"] {
            repository.git(&["update-index", "--index-version", version]);
            let index = assert_read_as_by_git(&repository);
            assert_eq!(index.entries[0].path.as_bytes(), path.as_bytes());
        }
    }

    #[test]
    fn a_split_index_is_merged_with_the_shared_one() {
        for version in ["2", "4"] {
            let repository = with_files();
            repository.git(&["update-index", "--index-version", version]);
            repository.git(&["config", "splitIndex.maxPercentChange", "100"]);
            repository.git(&["update-index", "--split-index"]);
            assert_read_as_by_git(&repository);
            // One replaced, one deleted, three added: at the beginning, between and at the end.
            repository.write("a/one", "changed\n");
            for name in ["!first", "a/new", "zz"] {
                repository.write(name, "new\n");
            }
            repository.git(&["add", "-A"]);
            repository.git(&["rm", "-q", "a/two", "dir/one"]);

            let index = assert_read_as_by_git(&repository);

            let shared_id = index.shared_id.expect("it is split");
            let shared = format!(".git/sharedindex.{shared_id}");
            assert!(repository.path.join(shared).exists());
            let own = parse_file(&index_bytes(&repository)).unwrap();
            assert!(own.entries[0].path.is_root(), "something was replaced");
            assert!(own.entries.len() < index.entries.len());
        }
    }

    #[test]
    fn a_split_index_with_a_wrong_shared_one_is_an_error() {
        let repository = with_files();
        repository.git(&["update-index", "--split-index"]);
        let bytes = index_bytes(&repository);
        let other = index_bytes(&with_files());
        let result = parse(&bytes, &mut |_| Ok::<_, IndexError>(other.clone()));
        assert_eq!(
            result,
            Err(IndexError::BadLink("the shared index is another one"))
        );
        let missing = IndexError::Truncated("the callback's own error");
        let result = parse(&bytes, &mut |_| Err(missing.clone()));
        assert_eq!(result, Err(missing), "it comes back as it is");
    }

    #[test]
    fn a_sparse_index_has_directories() {
        let repository = with_files();
        repository.git(&["sparse-checkout", "set", "--cone", "--sparse-index", "a"]);
        let index = assert_read_as_by_git(&repository);
        let directories = index
            .entries
            .iter()
            .filter(|e| e.mode == MODE_SPARSE_DIRECTORY);
        let paths: Vec<&[u8]> = directories.map(|e| e.path.as_bytes()).collect();
        assert_eq!(paths, [&b"dir-x"[..], b"dir", b"z"]);
        let tree = repository.git(&["rev-parse", "HEAD:z"]);
        assert_eq!(index.entries.last().unwrap().id.to_string(), tree);
    }

    #[test]
    fn a_conflict_has_three_stages() {
        let repository = with_files();
        repository.git(&["checkout", "-q", "-b", "side"]);
        repository.write("a/one", "theirs\n");
        repository.commit("theirs");
        repository.git(&["checkout", "-q", "main"]);
        repository.write("a/one", "ours\n");
        repository.commit("ours");
        repository.run(&repository.path, &["merge", "-q", "side"]);

        let index = assert_read_as_by_git(&repository);

        let conflicted = index.entries.iter().filter(|e| e.stage != 0);
        let stages: Vec<u8> = conflicted.map(|e| e.stage).collect();
        assert_eq!(stages, [1, 2, 3]);
    }

    #[test]
    fn a_checksum_that_git_left_out_is_not_missed() {
        let repository = with_files();
        repository.git(&["config", "index.skipHash", "true"]);
        repository.write("one", "changed\n");
        repository.git(&["add", "one"]);
        assert!(index_bytes(&repository).ends_with(&[0; TRAILER_BYTES]));
        assert_read_as_by_git(&repository);
    }

    #[test]
    fn optional_extensions_are_passed_over() {
        let repository = with_files();
        repository.git(&["update-index", "--untracked-cache"]);
        repository.git(&[
            "-c",
            "core.fsmonitor=printf 'token\\0/\\0' #",
            "update-index",
            "--fsmonitor",
        ]);
        let bytes = index_bytes(&repository);
        for extension in [b"TREE", b"UNTR", b"FSMN"] {
            let found = bytes.windows(4).any(|w| w == extension);
            assert!(found, "{}", String::from_utf8_lossy(extension));
        }
        let names: Vec<String> = parse_alone(&bytes)
            .unwrap()
            .entries
            .iter()
            .map(|e| e.path.to_string())
            .collect();
        assert_eq!(names.len(), with_files_index().entries.len());
    }

    fn with_files_index() -> &'static UserIndex {
        static INDEX: OnceLock<UserIndex> = OnceLock::new();
        INDEX.get_or_init(|| read(&with_files()))
    }

    #[test]
    fn an_index_loses_its_cache_of_trees_and_nothing_else() {
        for options in [
            &["-c", "index.skipHash=true"][..],
            &["-c", "index.threads=4"],
            &[],
        ] {
            let repository = with_files();
            let git = |arguments: &[&str]| repository.git(&[options, arguments].concat());
            git(&["update-index", "--untracked-cache", "--force-write-index"]);
            git(&["commit", "-q", "--allow-empty", "-m", "x"]);
            let bytes = index_bytes(&repository);
            let trees = cached_trees(&bytes);
            let told = git(&["ls-tree", "-r", "-d", "--format=%(objectname)", "HEAD"]);
            let mut known: Vec<String> = told.lines().map(str::to_owned).collect();
            known.push(git(&["rev-parse", "HEAD^{tree}"]));
            let mut named: Vec<String> = trees.iter().map(ObjectId::to_string).collect();
            named.sort();
            known.sort();
            assert_eq!(named, known);
            let without = without_cached_trees(&bytes).unwrap();
            assert_eq!(cached_trees(&without), []);
            assert!(without.windows(4).any(|four| four == b"UNTR"));
            assert_eq!(parse_alone(&without), parse_alone(&bytes));
            let again = without_cached_trees(&without).unwrap();
            assert_eq!(again, without);
            fs::write(repository.path.join(".git/index"), &without).unwrap();
            git(&["fsck", "--full", "--strict"]);
            assert_read_as_by_git(&repository);
        }
    }

    #[test]
    fn an_index_without_entries_is_read() {
        let repository = with_files();
        repository.git(&["rm", "-q", "-r", "."]);
        assert_eq!(read(&repository).entries, []);
    }

    /// The same bytes with a checksum that fits.
    fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
        let end = bytes.len() - TRAILER_BYTES;
        let checksum = Sha1::digest(&bytes[..end]);
        bytes[end..].copy_from_slice(&checksum);
        bytes
    }

    /// A version 2 index with these paths, and extensions after them.
    fn index_of(entries: &[(u32, &[u8], u16)], extensions: &[u8]) -> Vec<u8> {
        let mut bytes = b"DIRC\0\0\0\x02".to_vec();
        bytes.extend((entries.len() as u32).to_be_bytes());
        for (mode, path, stage) in entries {
            let start = bytes.len();
            bytes.extend([1; 24]);
            bytes.extend(mode.to_be_bytes());
            bytes.extend([1; 12]);
            bytes.extend([7; 20]);
            let flags = stage << 12 | path.len().min(0xfff) as u16;
            bytes.extend(flags.to_be_bytes());
            bytes.extend(*path);
            let unpadded = bytes.len() - start;
            bytes.resize(start + unpadded + 8 - unpadded % 8, 0);
        }
        bytes.extend(extensions);
        bytes.extend([0; TRAILER_BYTES]);
        sealed(bytes)
    }

    fn index_of_paths(paths: &[&str]) -> Vec<u8> {
        let entries: Vec<_> = paths.iter().map(|p| (MODE_FILE, p.as_bytes(), 0)).collect();
        index_of(&entries, b"")
    }

    #[test]
    fn the_builder_of_these_tests_makes_an_index_that_git_reads() {
        let repository = TestRepository::new();
        let bytes = index_of_paths(&["a", "b/c", "b/d"]);
        fs::write(repository.path.join(".git/index"), bytes).unwrap();
        assert_read_as_by_git(&repository);
    }

    #[test]
    fn paths_that_lead_elsewhere_are_refused() {
        for path in [
            "..",
            "a/../b",
            "/a",
            "a//b",
            "a/",
            "./a",
            ".git",
            "a/.git/x",
            ".GiT/config",
        ] {
            let result = parse_alone(&index_of_paths(&[path]));
            assert!(
                matches!(
                    result,
                    Err(IndexError::BadPath { position: 0, .. }
                        | IndexError::BadEntry { position: 0, .. })
                ),
                "{path}: {result:?}"
            );
        }
        for path in [".gitignore", ".github/x", "a.git/x", "...", ".gi"] {
            assert!(parse_alone(&index_of_paths(&[path])).is_ok(), "{path}");
        }
        let no_path = parse_alone(&index_of_paths(&[""]));
        let reason = "has no path";
        assert_eq!(
            no_path,
            Err(IndexError::BadEntry {
                position: 0,
                reason
            })
        );
    }

    #[test]
    fn entries_out_of_order_are_refused() {
        let unsorted = |entries: &[(u32, &[u8], u16)]| {
            matches!(
                parse_alone(&index_of(entries, b"")),
                Err(IndexError::Unsorted { position: 1, .. })
            )
        };
        let file = MODE_FILE;
        assert!(unsorted(&[(file, b"b", 0), (file, b"a", 0)]));
        assert!(unsorted(&[(file, b"a", 0), (file, b"a", 0)]), "twice");
        assert!(
            unsorted(&[(file, b"a", 0), (file, b"a", 1)]),
            "merged and unmerged"
        );
        assert!(unsorted(&[(file, b"a", 2), (file, b"a", 1)]));
        assert!(!unsorted(&[(file, b"a", 1), (file, b"a", 3)]));
    }

    #[test]
    fn modes_that_git_does_not_write_are_refused() {
        for mode in [0, 0o100_600, 0o100_664, 0o060_000, u32::MAX] {
            let result = parse_alone(&index_of(&[(mode, b"a", 0)], b""));
            assert!(matches!(result, Err(IndexError::BadEntry { .. })));
        }
        let directory = [(MODE_SPARSE_DIRECTORY, &b"a/"[..], 0)];
        assert!(
            parse_alone(&index_of(&directory, b"")).is_err(),
            "only a sparse index has directories"
        );
        assert!(parse_alone(&index_of(&directory, b"sdir\0\0\0\0")).is_ok());
    }

    #[test]
    fn an_extension_that_is_nested_deeply_is_passed_over() {
        let levels = 200_000;
        // A name, a NUL, no entries that are known, and one directory below.
        let trees = b"d\0-1 1\n".repeat(levels);
        // No names, one directory below, and a name.
        let untracked = b"\0\x01d\0".repeat(levels);
        for (name, content) in [(b"TREE", trees), (b"UNTR", untracked)] {
            let length = u32::try_from(content.len()).unwrap().to_be_bytes();
            let extension = [&name[..], &length, &content].concat();
            let bytes = index_of(&[(MODE_FILE, b"a", 0)], &extension);
            assert_eq!(parse_alone(&bytes).unwrap().entries.len(), 1);
            assert!(cached_trees(&bytes).is_empty());
        }
    }

    #[test]
    fn an_unknown_extension_is_named_unless_it_is_optional() {
        let with = |extension: &[u8]| parse_alone(&index_of(&[(MODE_FILE, b"a", 0)], extension));
        assert!(with(b"ABCD\0\0\0\x02xy").is_ok());
        let error = with(b"abcd\0\0\0\x02xy").unwrap_err();
        assert_eq!(error, IndexError::UnsupportedExtension("abcd".to_owned()));
        assert!(error.is_unsupported());
        assert_eq!(
            with(b"ABCD\0\0\0\x03xy"),
            Err(IndexError::Truncated("an extension"))
        );
    }

    #[test]
    fn other_versions_are_unsupported_and_other_files_are_no_index() {
        for version in [0, 1, 5, u32::MAX] {
            let mut bytes = index_of_paths(&["a"]);
            bytes[4..8].copy_from_slice(&version.to_be_bytes());
            let error = parse_alone(&bytes).unwrap_err();
            assert_eq!(error, IndexError::UnsupportedVersion(version));
        }
        for bytes in [&b""[..], b"DIRC", &[0; 100]] {
            assert_eq!(parse_alone(bytes), Err(IndexError::NotAnIndex));
        }
    }

    #[test]
    fn one_flipped_bit_is_a_wrong_checksum() {
        let mut bytes = index_of_paths(&["a"]);
        bytes[20] ^= 1;
        let result = parse_alone(&bytes);
        assert!(matches!(result, Err(IndexError::Checksum { .. })));
    }

    #[test]
    fn a_count_that_cannot_fit_is_refused_before_memory_is_taken() {
        let mut bytes = index_of_paths(&["a"]);
        bytes[8..12].copy_from_slice(&u32::MAX.to_be_bytes());
        assert_eq!(
            parse_alone(&sealed(bytes)),
            Err(IndexError::Truncated("its entries"))
        );
    }

    #[test]
    fn a_small_file_cannot_claim_paths_without_end() {
        // Version 4: the first path is long, and each one after it shares all of it but one byte.
        let mut bytes = b"DIRC\0\0\0\x04".to_vec();
        let count = 2000_u32;
        bytes.extend(count.to_be_bytes());
        for n in 0..count {
            bytes.extend([1; 24]);
            bytes.extend(MODE_FILE.to_be_bytes());
            bytes.extend([1; 32]);
            bytes.extend([0x0f, 0xff]);
            bytes.push(0);
            let long = if n == 0 { 60_000 } else { 1 };
            bytes.extend(vec![b'a'; long]);
            bytes.push(0);
        }
        bytes.extend([0; TRAILER_BYTES]);
        let result = parse_alone(&bytes);
        assert!(matches!(result, Err(IndexError::PathsTooLong { .. })));
    }

    /// Indexes that git made, with their shared ones: version 2, 4, split, sparse.
    fn real_indexes() -> &'static [(Vec<u8>, Vec<u8>)] {
        static INDEXES: OnceLock<Vec<(Vec<u8>, Vec<u8>)>> = OnceLock::new();
        INDEXES.get_or_init(|| {
            let mut indexes = Vec::new();
            let repository = with_files();
            indexes.push((index_bytes(&repository), Vec::new()));
            repository.git(&["update-index", "--index-version", "4"]);
            indexes.push((index_bytes(&repository), Vec::new()));
            repository.git(&["sparse-checkout", "set", "--cone", "--sparse-index", "a"]);
            indexes.push((index_bytes(&repository), Vec::new()));

            let repository = with_files();
            repository.git(&["config", "splitIndex.maxPercentChange", "100"]);
            repository.git(&["update-index", "--split-index"]);
            repository.write("a/one", "changed\n");
            repository.write("a/new", "new\n");
            repository.git(&["add", "-A"]);
            repository.git(&["rm", "-q", "a/two"]);
            let shared_id = read(&repository).shared_id.unwrap();
            let shared = repository
                .path
                .join(format!(".git/sharedindex.{shared_id}"));
            indexes.push((index_bytes(&repository), fs::read(shared).unwrap()));
            indexes
        })
    }

    /// Visits an index that is said to have `length` bytes, and comes in pieces.
    fn visit_in_pieces(
        bytes: &[u8],
        piece: usize,
        length: usize,
        entries: &mut Vec<IndexEntry>,
    ) -> Result<Visited, IndexError> {
        let mut rest = bytes;
        let mut source = |into: &mut [u8]| {
            let count = rest.len().min(into.len()).min(piece);
            let (taken, left) = rest.split_at(count);
            into[..count].copy_from_slice(taken);
            rest = left;
            Ok(count)
        };
        visit(&mut source, length as u64, &mut |entry| {
            entries.push(entry.to_owned())
        })
    }

    #[test]
    fn an_index_that_is_cut_short_while_it_is_read_is_an_error() {
        let bytes = index_of_paths(&["a", "b/c", "b/d"]);
        let mut entries = Vec::new();
        let whole = visit_in_pieces(&bytes, 7, bytes.len(), &mut entries);
        assert_eq!((whole, entries.len()), (Ok(Visited::All), 3));
        for length in 0..bytes.len() {
            let cut = visit_in_pieces(&bytes[..length], 7, bytes.len(), &mut entries);
            assert!(
                matches!(cut, Err(IndexError::Truncated(_))),
                "{length}: {cut:?}"
            );
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn damaged_indexes_are_errors_or_keep_every_promise(
            which in 0_usize..4,
            edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            cut in prop::option::of(any::<prop::sample::Index>()),
            checksum_fits: bool,
            piece in 1_usize..300,
        ) {
            let (original, shared) = &real_indexes()[which];
            let mut bytes = original.clone();
            for (at, byte) in &edits {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            if let Some(cut) = cut {
                bytes.truncate(cut.index(bytes.len()));
            }
            if checksum_fits && bytes.len() >= TRAILER_BYTES {
                bytes = sealed(bytes);
            }
            let is_intact = bytes == *original;

            let result = parse(&bytes, &mut |_| Ok::<_, IndexError>(shared.clone()));

            let mut visited = Vec::new();
            let seen = visit_in_pieces(&bytes, piece, bytes.len(), &mut visited);
            match (&result, seen) {
                (Ok(index), Ok(Visited::All)) => {
                    prop_assert_eq!(&visited, &index.entries);
                    prop_assert_eq!(index.shared_id, None);
                }
                (Ok(index), Ok(Visited::Split)) => prop_assert!(index.shared_id.is_some()),
                (Err(_), Ok(Visited::Split) | Err(_)) => {}
                (result, seen) => prop_assert!(false, "{result:?}, and visited {seen:?}"),
            }

            match result {
                Ok(index) => {
                    for entry in &index.entries {
                        prop_assert!(!entry.path.is_root());
                        prop_assert!(RelPath::new(entry.path.as_bytes().to_vec()).is_ok());
                        prop_assert!(entry.stage < 4);
                    }
                    let key = |e: &IndexEntry| {
                        let mut path = e.path.as_bytes().to_vec();
                        if e.mode == MODE_SPARSE_DIRECTORY {
                            path.push(b'/');
                        }
                        (path, e.stage)
                    };
                    prop_assert!(index.entries.is_sorted_by(|a, b| key(a) < key(b)));
                }
                Err(error) => prop_assert!(!is_intact, "{error}"),
            }
        }
    }
}
