//! Trees, as git stores directories: read, written and compared.

use std::cmp::Ordering;
use std::io::Write as _;

use super::{ObjectId, ObjectKind};
use crate::dot_git::is_dot_git;
use crate::operation::Operation;
use crate::parallel;
use crate::path::RelPath;
use crate::store_error::StoreError;
use crate::tree::{Change, Entry, EntryKind};

/// How many directories may lie in each other. Far more than the kernel takes in one path; a bound,
/// because whoever reads a tree keeps paths of that length.
pub const MAX_DEPTH: usize = 8192;
/// How many files a tree may have in all. A few objects that name each other many times can claim
/// any number; a workspace of this size is beyond what is promised.
const MAX_ENTRIES: usize = 20_000_000;

const MODE_DIRECTORY: u32 = 0o040_000;
const MODE_SUBMODULE: u32 = 0o160_000;

/// What one name in a tree stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeItem {
    /// One component of a path: not empty, no `/`, not `.`, `..` or anything that some file system
    /// takes for `.git`.
    pub name: Vec<u8>,
    /// What is there.
    pub kind: ItemKind,
    /// The object; of a submodule, its commit.
    pub id: ObjectId,
}

/// What an object is to the tree that names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemKind {
    /// Another tree.
    Directory,
    /// A blob.
    Entry(EntryKind),
    /// A commit of another repository, which nobody has the objects of. In the tree of a snapshot:
    /// a submodule with nothing captured in its directory. It has no content, so no restore makes,
    /// replaces or removes it, and no diff names it.
    Submodule,
}

impl ItemKind {
    fn git_mode(self) -> u32 {
        match self {
            Self::Directory => MODE_DIRECTORY,
            Self::Entry(kind) => kind.git_mode(),
            Self::Submodule => MODE_SUBMODULE,
        }
    }
}

/// Where trees come from: the store, or the store and what a capture has in memory.
pub trait Trees: Sync {
    /// The names in the tree `id`, in git's order. `Corrupt` if it is missing, is no tree, or could
    /// not be one of ours.
    fn tree(&self, op: &Operation, id: &ObjectId) -> Result<Vec<TreeItem>, StoreError>;
}

/// The id of the tree without names.
pub fn empty_tree_id() -> ObjectId {
    ObjectId::of(ObjectKind::Tree, b"").expect("no content, no collision")
}

/// Reads the bytes of the tree `id`.
///
/// `Corrupt` unless the names are what [`TreeItem::name`] promises, in git's order, each once, and
/// each mode is one that git writes or has once written ([`EntryKind::from_git_mode`]).
pub fn parse(id: &ObjectId, bytes: &[u8]) -> Result<Vec<TreeItem>, StoreError> {
    let mut items: Vec<TreeItem> = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let corrupt = |detail: &str| {
            let position = items.len();
            StoreError::corrupt(
                id.to_string(),
                format!("name {position} of the tree {detail}"),
            )
        };
        let (item, after) = split_item(rest).ok_or_else(|| corrupt("is malformed"))?;
        let item = TreeItem {
            name: item.name.to_vec(),
            kind: item.kind,
            id: item.id,
        };
        if let Some(reason) = name_defect(&item.name) {
            return Err(corrupt(reason));
        }
        if items
            .last()
            .is_some_and(|last| compare(last, &item) != Ordering::Less)
        {
            return Err(corrupt("is out of order"));
        }
        // A file and a directory of one name need not be neighbours: `a`, `a-b`, `a/`.
        let is_file_too = item.kind == ItemKind::Directory
            && items
                .iter()
                .rev()
                .take_while(|other| other.name.starts_with(&item.name))
                .any(|other| other.name == item.name);
        if is_file_too {
            return Err(corrupt("is there twice"));
        }
        items.push(item);
        rest = after;
    }
    Ok(items)
}

/// One name of a tree, as it stands in its bytes.
#[derive(Clone, Copy, Debug)]
pub struct RawItem<'b> {
    /// One component of a path.
    pub name: &'b [u8],
    /// What is there.
    pub kind: ItemKind,
    /// The object; of a submodule, its commit.
    pub id: ObjectId,
}

/// What the bytes of the tree `id` name, unjudged: for trees that are known to be right, because we
/// made them or have read them before, and for callers with a judgement of their own. `Corrupt`
/// where they are malformed.
pub fn raw_items<'b>(
    id: ObjectId,
    bytes: &'b [u8],
) -> impl Iterator<Item = Result<RawItem<'b>, StoreError>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let Some((item, after)) = split_item(rest) else {
            rest = &[];
            return Some(Err(StoreError::corrupt(
                id.to_string(),
                "the tree is malformed",
            )));
        };
        rest = after;
        Some(Ok(item))
    })
}

/// The first name in the bytes of a tree, and what follows it.
fn split_item(bytes: &[u8]) -> Option<(RawItem<'_>, &[u8])> {
    let space = bytes.iter().take(8).position(|b| *b == b' ')?;
    let digits = std::str::from_utf8(&bytes[..space]).ok()?;
    if !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let kind = match u32::from_str_radix(digits, 8).ok()? {
        MODE_DIRECTORY => ItemKind::Directory,
        MODE_SUBMODULE => ItemKind::Submodule,
        mode => ItemKind::Entry(EntryKind::from_git_mode(mode)?),
    };
    let rest = &bytes[space + 1..];
    let end = rest.iter().position(|b| *b == 0)?;
    let id = rest.get(end + 1..end + 21)?;
    let item = RawItem {
        name: &rest[..end],
        kind,
        id: ObjectId(id.try_into().expect("twenty bytes")),
    };
    Some((item, &rest[end + 21..]))
}

/// The bytes of the tree with these names, which are put in git's order. Each may be there once.
pub fn serialize(items: &mut [TreeItem]) -> Vec<u8> {
    items.sort_unstable_by(compare);
    bytes_of(items.iter().map(|item| RawItem {
        name: &item.name,
        kind: item.kind,
        id: item.id,
    }))
}

/// As [`serialize`], of names that lie elsewhere.
pub fn serialize_raw(items: &mut [RawItem<'_>]) -> Vec<u8> {
    // Files and directories come as two sequences that are in order, as a rule, and this finds
    // them.
    items.sort_by(|a, b| compare_names((a.name, a.kind), (b.name, b.kind)));
    bytes_of(items.iter().copied())
}

/// The bytes of the tree with these names, which are in git's order.
fn bytes_of<'n>(items: impl Iterator<Item = RawItem<'n>> + Clone) -> Vec<u8> {
    // What an item takes beside its name: six digits of mode at most, a blank, a NUL and an id.
    let length = items.clone().map(|item| item.name.len() + 6 + 2 + 20).sum();
    let mut bytes = Vec::with_capacity(length);
    for item in items {
        match item.kind {
            // Nearly all are files: no number is put into words for each of them.
            ItemKind::Entry(EntryKind::File) => bytes.extend_from_slice(b"100644 "),
            kind => write!(bytes, "{:o} ", kind.git_mode()).expect("memory takes every byte"),
        }
        bytes.extend_from_slice(item.name);
        bytes.push(0);
        bytes.extend_from_slice(&item.id.0);
    }
    bytes
}

/// git's order: by bytes, a directory as if its name ended in `/`.
pub fn compare(a: &TreeItem, b: &TreeItem) -> Ordering {
    compare_names((&a.name, a.kind), (&b.name, b.kind))
}

/// As [`compare`], of names by themselves.
pub fn compare_names(a: (&[u8], ItemKind), b: (&[u8], ItemKind)) -> Ordering {
    fn key<'a>((name, kind): (&'a [u8], ItemKind)) -> impl Iterator<Item = u8> + 'a {
        let slash = (kind == ItemKind::Directory).then_some(b'/');
        name.iter().copied().chain(slash)
    }
    let shared = a.0.len().min(b.0.len());
    a.0[..shared]
        .cmp(&b.0[..shared])
        .then_with(|| key(a).skip(shared).cmp(key(b).skip(shared)))
}

/// Why a name cannot be in a tree of ours; `None` if it can.
pub(crate) fn name_defect(name: &[u8]) -> Option<&'static str> {
    match name {
        b"" => Some("is empty"),
        b"." | b".." => Some("leads elsewhere"),
        _ if name.contains(&b'/') => Some("holds a \"/\""),
        _ if name.contains(&0) => Some("holds a NUL byte"),
        _ if is_dot_git(name) => Some("is \".git\" on some file system"),
        _ => None,
    }
}

/// Every path at which two trees hold another entry, sorted by path, unique. `None` is a tree
/// without names. Subtrees that are the same on both sides are not read.
pub fn changes(
    op: &Operation,
    trees: &dyn Trees,
    old: Option<ObjectId>,
    new: Option<ObjectId>,
) -> Result<Vec<Change>, StoreError> {
    let mut changes = Vec::new();
    let mut pending = vec![Pair {
        directory: RelPath::root(),
        depth: 0,
        old,
        new,
    }];
    while !pending.is_empty() {
        // The last first: what waits is then no more than a few times the deepest path has beside
        // it, whatever trees claim to hold.
        let batch = pending.split_off(pending.len().saturating_sub(MAX_BATCH));
        let compared = parallel::map(&batch, PAIRS_PER_THREAD, |pair| pair.compare(op, trees));
        for pair in compared {
            let (below, changed) = pair?;
            pending.extend(below);
            if let Some(change) = changed.last() {
                check_count(changes.len() + changed.len() - 1, &change.path)?;
            }
            changes.extend(changed);
        }
    }
    changes.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    Ok(changes)
}

/// Fewer trees than twice this are compared before another thread has begun.
const PAIRS_PER_THREAD: usize = 24;

/// So many are compared at a time.
const MAX_BATCH: usize = 1024;

/// A directory of two trees.
struct Pair {
    directory: RelPath,
    /// How many directories lie above it.
    depth: usize,
    old: Option<ObjectId>,
    new: Option<ObjectId>,
}

impl Pair {
    /// What differs right here: directories to look into, and changes.
    fn compare(
        &self,
        op: &Operation,
        trees: &dyn Trees,
    ) -> Result<(Vec<Self>, Vec<Change>), StoreError> {
        if self.old == self.new {
            return Ok((Vec::new(), Vec::new()));
        }
        op.check()?;
        let read = |id: Option<ObjectId>| id.map_or(Ok(Vec::new()), |id| trees.tree(op, &id));
        let (old, new) = (read(self.old)?, read(self.new)?);
        let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
        let (mut below, mut changes) = (Vec::new(), Vec::new());
        loop {
            let order = match (old.peek(), new.peek()) {
                (None, None) => return Ok((below, changes)),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                // A file and a directory of one name differ in order too: one goes, the other
                // comes.
                (Some(old), Some(new)) => compare(old, new),
            };
            let old = old.next_if(|_| order != Ordering::Greater);
            let new = new.next_if(|_| order != Ordering::Less);
            if old == new {
                continue;
            }
            let either = old.or(new).expect("one of them was there");
            let path = self.directory.join(&either.name);
            if either.kind == ItemKind::Directory {
                check_depth(&path, self.depth)?;
                below.push(Self {
                    directory: path,
                    depth: self.depth + 1,
                    old: old.map(|item| item.id),
                    new: new.map(|item| item.id),
                });
            } else if old.and_then(entry) != new.and_then(entry) {
                changes.push(Change {
                    path,
                    old: old.and_then(entry),
                    new: new.and_then(entry),
                });
            }
        }
    }
}

/// Every file and link of a tree, sorted by path.
pub fn entries(
    op: &Operation,
    trees: &dyn Trees,
    root: &ObjectId,
) -> Result<Vec<(RelPath, Entry)>, StoreError> {
    let changes = changes(op, trees, None, Some(*root))?;
    let entry = |change: Change| (change.path, change.new.expect("there is no old side"));
    Ok(changes.into_iter().map(entry).collect())
}

/// What a tree has at `path`; `None` if it has nothing there. The root is a directory without a
/// name.
pub fn find(
    op: &Operation,
    trees: &dyn Trees,
    root: &ObjectId,
    path: &RelPath,
) -> Result<Option<TreeItem>, StoreError> {
    let mut at = TreeItem {
        name: Vec::new(),
        kind: ItemKind::Directory,
        id: *root,
    };
    for name in path.names() {
        if at.kind != ItemKind::Directory {
            return Ok(None);
        }
        let items = trees.tree(op, &at.id)?;
        match items.into_iter().find(|item| item.name == name) {
            Some(item) => at = item,
            None => return Ok(None),
        }
    }
    Ok(Some(at))
}

fn entry(item: &TreeItem) -> Option<Entry> {
    match item.kind {
        ItemKind::Entry(kind) => Some(Entry {
            kind,
            id: item.id.into(),
        }),
        ItemKind::Directory | ItemKind::Submodule => None,
    }
}

/// Refuses a tree that lies deeper than [`MAX_DEPTH`] directories.
pub fn check_depth(path: &RelPath, depth: usize) -> Result<(), StoreError> {
    if depth < MAX_DEPTH {
        return Ok(());
    }
    // The path itself is too long to print.
    let name = crate::path::printable_bytes(path.name());
    Err(StoreError::corrupt(
        format!("the directory {name}"),
        format!("it lies more than {MAX_DEPTH} directories deep"),
    ))
}

fn check_count(count: usize, path: &RelPath) -> Result<(), StoreError> {
    if count < MAX_ENTRIES {
        return Ok(());
    }
    Err(StoreError::corrupt(
        path.to_string(),
        format!("the tree around it has more than {MAX_ENTRIES} files"),
    ))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};

    use proptest::prelude::*;

    use super::*;
    use crate::test_repository::TestRepository;
    use crate::tree::ContentId;

    #[derive(Default)]
    struct Memory(HashMap<ObjectId, Vec<u8>>);

    impl Trees for Memory {
        fn tree(&self, _: &Operation, id: &ObjectId) -> Result<Vec<TreeItem>, StoreError> {
            match self.0.get(id) {
                Some(bytes) => parse(id, bytes),
                None => Err(StoreError::corrupt(id.to_string(), "missing")),
            }
        }
    }

    impl Memory {
        fn put(&mut self, mut items: Vec<TreeItem>) -> ObjectId {
            let bytes = serialize(&mut items);
            let id = ObjectId::of(ObjectKind::Tree, &bytes).unwrap();
            self.0.insert(id, bytes);
            id
        }

        /// The tree with these files, whose content is a number.
        fn put_all(&mut self, files: &BTreeMap<RelPath, (EntryKind, u8)>) -> ObjectId {
            let mut directories: BTreeMap<RelPath, Vec<TreeItem>> = BTreeMap::new();
            directories.entry(RelPath::root()).or_default();
            for (path, (kind, content)) in files {
                let mut parent = path.parent();
                while let Some(directory) = parent {
                    parent = directory.parent();
                    directories.entry(directory).or_default();
                }
                let items = directories.entry(path.parent().unwrap()).or_default();
                items.push(item(path.name(), ItemKind::Entry(*kind), *content));
            }
            // The deepest come last.
            while let Some((path, items)) = directories.pop_last() {
                let id = self.put(items);
                let Some(parent) = path.parent() else {
                    return id;
                };
                directories.entry(parent).or_default().push(TreeItem {
                    name: path.name().to_vec(),
                    kind: ItemKind::Directory,
                    id,
                });
            }
            unreachable!("the root is always there")
        }
    }

    fn item(name: impl AsRef<[u8]>, kind: ItemKind, content: u8) -> TreeItem {
        TreeItem {
            name: name.as_ref().to_vec(),
            kind,
            id: ObjectId([content; 20]),
        }
    }

    fn file(name: impl AsRef<[u8]>) -> TreeItem {
        item(name, ItemKind::Entry(EntryKind::File), 1)
    }

    fn path(text: &str) -> RelPath {
        RelPath::new(text).unwrap()
    }

    fn raw(items: &[(&str, &str)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (mode, name) in items {
            bytes.extend(format!("{mode} {name}\0").as_bytes());
            bytes.extend([1; 20]);
        }
        bytes
    }

    fn is_corrupt<T>(result: Result<T, StoreError>) -> bool {
        matches!(result, Err(StoreError::Corrupt { .. }))
    }

    #[test]
    fn trees_that_git_wrote_are_read_and_written_again() {
        let repository = TestRepository::new();
        for name in [
            "a",
            "a.b/x",
            "a-b",
            "a0",
            "dir/x",
            "dir-x",
            "dir.x",
            "odd\u{ff}",
        ] {
            repository.write(name, "x\n");
        }
        std::os::unix::fs::symlink("a", repository.path.join("link")).unwrap();
        repository.commit("names");
        let id: ObjectId = repository
            .git(&["rev-parse", "HEAD^{tree}"])
            .parse()
            .unwrap();
        let args = ["cat-file", "tree", &id.to_string()];
        let bytes = repository.run(&repository.path, &args).stdout;
        let mut items = parse(&id, &bytes).unwrap();
        let listed = repository.git(&["-c", "core.quotePath=false", "ls-tree", "HEAD"]);
        let shown: Vec<_> = items
            .iter()
            .map(|i| {
                let kind = match i.kind {
                    ItemKind::Directory => "tree",
                    _ => "blob",
                };
                let name = String::from_utf8(i.name.clone()).unwrap();
                format!("{:06o} {kind} {}\t{name}", i.kind.git_mode(), i.id)
            })
            .collect();
        assert_eq!(shown, listed.lines().collect::<Vec<_>>());
        items.reverse();
        assert_eq!(serialize(&mut items), bytes);
    }

    #[test]
    fn trees_that_we_would_not_write_are_corrupt() {
        let file = "100644";
        let bad = [
            raw(&[(file, "")]),
            raw(&[(file, ".")]),
            raw(&[(file, "..")]),
            raw(&[(file, "a/b")]),
            raw(&[("40000", ".git")]),
            raw(&[(file, "b"), (file, "a")]),
            raw(&[(file, "a"), (file, "a")]),
            raw(&[(file, "a"), ("40000", "a")]),
            raw(&[(file, "a"), (file, "a-b"), ("40000", "a")]),
            raw(&[("40000", "a"), (file, "a.b")]),
            raw(&[("100", "a")]),
            raw(&[("10064x", "a")]),
            raw(&[("", "a")]),
            raw(&[("777777777777", "a")]),
            raw(&[(file, "a")])[..20].to_vec(),
            b"100644 a".to_vec(),
            b"100644".to_vec(),
        ];
        for bytes in bad {
            let result = parse(&ObjectId([0; 20]), &bytes);
            assert!(is_corrupt(result), "{}", String::from_utf8_lossy(&bytes));
        }
        let good = raw(&[("100664", "a"), ("40000", "b"), ("160000", "c")]);
        assert_eq!(parse(&ObjectId([0; 20]), &good).unwrap().len(), 3);
    }

    #[test]
    fn what_some_file_system_takes_for_dot_git_is_what_fsck_refuses() {
        let suspects = [
            ".git",
            ".GIT",
            ".gIt",
            ".git.",
            ".git ",
            ".git . .",
            "git~1",
            "GIT~1",
            "git~1.",
            ".git::$INDEX_ALLOCATION",
            ".git:x",
            "git~1:x",
            ".g\u{200c}it",
            "\u{feff}.git",
            ".gi\u{202e}T",
            "\\.git",
            "a\\.git",
            "a\\git~1 ",
            ".git\\x",
            ".git\\",
        ];
        let harmless = [
            ".gitignore",
            ".gitx",
            ".git.x",
            ".git x",
            "git",
            "git~2",
            "git~10",
            "xgit~1",
            ".gi",
            "a.git",
            ".\u{3b3}it",
            "..git",
            ".git~1",
            "a\\git",
            ".gıt",
            "...",
            "\u{200c}git",
        ];
        let repository = TestRepository::new();
        let blob = repository.git(&["hash-object", "-w", "/dev/null"]);
        let is_refused = |name: &[u8]| {
            let bytes = [
                b"100644 ",
                name,
                b"\0",
                &blob.parse::<ObjectId>().unwrap().0,
            ]
            .concat();
            repository.write("tree", bytes);
            let args = ["hash-object", "-t", "tree", "tree"];
            !repository.run(&repository.path, &args).status.success()
        };
        for name in suspects {
            assert!(is_dot_git(name.as_bytes()), "{name:?}");
            assert!(is_refused(name.as_bytes()), "git refuses {name:?}");
        }
        for name in harmless {
            assert!(!is_dot_git(name.as_bytes()), "{name:?}");
            assert!(!is_refused(name.as_bytes()), "git takes {name:?}");
        }
        for name in [&b".git\xff"[..], b".g\xffit", b"\xff.git", b".gi\xe2\x80"] {
            assert_eq!(is_dot_git(name), is_refused(name), "{name:?}");
        }
    }

    #[test]
    fn a_file_that_becomes_a_directory_is_a_deletion_and_additions() {
        let mut trees = Memory::default();
        let old = trees.put(vec![file("a"), file("a-b")]);
        let below = trees.put(vec![file("x")]);
        let directory = TreeItem {
            name: b"a".to_vec(),
            kind: ItemKind::Directory,
            id: below,
        };
        let new = trees.put(vec![directory, file("a-b")]);
        let changed = |old, new| -> Vec<_> {
            let changes = changes(&Operation::unbounded(), &trees, Some(old), Some(new)).unwrap();
            let side = |e: &Option<Entry>| if e.is_some() { "some" } else { "none" };
            let show = |c: Change| format!("{} {} {}", c.path, side(&c.old), side(&c.new));
            changes.into_iter().map(show).collect()
        };
        assert_eq!(changed(old, new), ["a some none", "a/x none some"]);
        assert_eq!(changed(new, old), ["a none some", "a/x some none"]);
        assert_eq!(changed(new, new), [""; 0]);
    }

    #[test]
    fn equal_subtrees_are_not_read() {
        let mut trees = Memory::default();
        // It is nowhere, so reading it would fail.
        let absent = item("absent", ItemKind::Directory, 9);
        let old = trees.put(vec![absent.clone(), file("a")]);
        let new = trees.put(vec![absent]);
        let changes = changes(&Operation::unbounded(), &trees, Some(old), Some(new)).unwrap();
        assert_eq!(changes.len(), 1);
        assert!(is_corrupt(entries(&Operation::unbounded(), &trees, &new)));
    }

    #[test]
    fn a_submodule_is_no_file_and_no_change() {
        let mut trees = Memory::default();
        let module = item("module", ItemKind::Submodule, 3);
        let without = trees.put(vec![file("a")]);
        let with = trees.put(vec![file("a"), module.clone()]);
        let moved = trees.put(vec![file("a"), item("module", ItemKind::Submodule, 4)]);
        let replaced = trees.put(vec![file("a"), file("module")]);
        for (old, new) in [(without, with), (with, without), (with, moved)] {
            assert_eq!(
                changes(&Operation::unbounded(), &trees, Some(old), Some(new)).unwrap(),
                []
            );
        }
        let changes = changes(&Operation::unbounded(), &trees, Some(with), Some(replaced)).unwrap();
        assert_eq!(changes.len(), 1);
        assert_eq!(changes[0].old, None);
        assert!(changes[0].new.is_some());
        assert_eq!(
            entries(&Operation::unbounded(), &trees, &with)
                .unwrap()
                .len(),
            1
        );
        assert_eq!(
            find(&Operation::unbounded(), &trees, &with, &path("module")).unwrap(),
            Some(module),
            "nobody has its objects, so nothing is looked for below it"
        );
        assert_eq!(
            find(&Operation::unbounded(), &trees, &with, &path("module/x")).unwrap(),
            None
        );
    }

    #[test]
    fn deep_trees_are_read_without_recursion_and_deeper_ones_refused() {
        let mut trees = Memory::default();
        let mut root = trees.put(vec![file("f")]);
        let mut deepen = |trees: &mut Memory, levels: usize| {
            for _ in 0..levels {
                root = trees.put(vec![TreeItem {
                    name: b"d".to_vec(),
                    kind: ItemKind::Directory,
                    id: root,
                }]);
            }
            root
        };
        let deep = deepen(&mut trees, 5000);
        let listed = entries(&Operation::unbounded(), &trees, &deep).unwrap();
        assert_eq!(listed.len(), 1);
        assert_eq!(listed[0].0.as_bytes().len(), 2 * 5000 + 1);
        assert!(
            find(&Operation::unbounded(), &trees, &deep, &listed[0].0)
                .unwrap()
                .is_some()
        );
        let too_deep = deepen(&mut trees, 5000);
        assert!(is_corrupt(entries(
            &Operation::unbounded(),
            &trees,
            &too_deep
        )));
    }

    #[test]
    fn paths_are_found_and_others_are_not() {
        let mut trees = Memory::default();
        let kind = EntryKind::Executable;
        let files = [
            (path("a/b/c"), (kind, 5)),
            (path("d"), (EntryKind::Symlink, 6)),
        ];
        let root = trees.put_all(&files.into());
        let found = find(&Operation::unbounded(), &trees, &root, &path("a/b/c"))
            .unwrap()
            .unwrap();
        assert_eq!(found, item("c", ItemKind::Entry(kind), 5));
        for directory in ["a", "a/b"] {
            let found = find(&Operation::unbounded(), &trees, &root, &path(directory))
                .unwrap()
                .unwrap();
            assert_eq!(found.kind, ItemKind::Directory, "{directory}");
        }
        for absent in ["b", "a/c", "a/b/c/d", "d/x"] {
            assert_eq!(
                find(&Operation::unbounded(), &trees, &root, &path(absent)).unwrap(),
                None,
                "{absent}"
            );
        }
        let at_root = find(&Operation::unbounded(), &trees, &root, &RelPath::root())
            .unwrap()
            .unwrap();
        assert_eq!(at_root.id, root);
    }

    fn kinds() -> impl Strategy<Value = EntryKind> {
        prop_oneof![
            Just(EntryKind::File),
            Just(EntryKind::Executable),
            Just(EntryKind::Symlink)
        ]
    }

    /// A few names, so that files and directories of one name meet in two trees.
    fn trees() -> impl Strategy<Value = BTreeMap<RelPath, (EntryKind, u8)>> {
        let name = prop_oneof![Just("a"), Just("a-"), Just("a."), Just("a0"), Just("b")];
        let path = prop::collection::vec(name, 1..4).prop_map(|names| names.join("/"));
        prop::collection::btree_map(path, (kinds(), 0_u8..3), 0..12).prop_map(|files| {
            let mut kept: BTreeMap<RelPath, _> = BTreeMap::new();
            for (text, value) in files {
                let path = path_of(&text);
                let clashes = |other: &RelPath| path.starts_with(other) || other.starts_with(&path);
                if !kept.keys().any(clashes) {
                    kept.insert(path, value);
                }
            }
            kept
        })
    }

    fn path_of(text: &str) -> RelPath {
        path(text)
    }

    proptest! {
        #[test]
        fn changes_are_what_comparing_path_by_path_finds(old in trees(), new in trees()) {
            let mut store = Memory::default();
            let (old_id, new_id) = (store.put_all(&old), store.put_all(&new));
            let entry = |(kind, content): &(EntryKind, u8)| Entry {
                kind: *kind,
                id: ContentId::Sha1([*content; 20]),
            };
            let paths: std::collections::BTreeSet<_> = old.keys().chain(new.keys()).collect();
            let expected: Vec<_> = paths
                .into_iter()
                .map(|path| Change {
                    path: path.clone(),
                    old: old.get(path).map(entry),
                    new: new.get(path).map(entry),
                })
                .filter(|change| change.old != change.new)
                .collect();
            prop_assert_eq!(changes(&Operation::unbounded(), &store, Some(old_id), Some(new_id)).unwrap(), expected);
            let listed = entries(&Operation::unbounded(), &store, &new_id).unwrap();
            let expected: Vec<_> = new.iter().map(|(p, v)| (p.clone(), entry(v))).collect();
            prop_assert_eq!(listed, expected);
        }

        #[test]
        fn any_bytes_are_a_tree_or_corrupt(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = parse(&ObjectId([0; 20]), &bytes);
        }
    }
}
