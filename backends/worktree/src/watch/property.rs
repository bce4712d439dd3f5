//! Property test: after random changes, a picture of a directory that is updated only where the
//! watch reports changes equals the result of a full look.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;

use super::*;
use crate::holder::Holder;

/// What is at a path: kind and permissions, inode, links, and the content of a file or link.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    mode: u32,
    inode: u64,
    links: u64,
    content: Vec<u8>,
}

impl Node {
    fn is_directory(&self) -> bool {
        self.mode & 0o170_000 == 0o040_000
    }

    /// `None`: nothing is there, or no longer.
    fn at(path: &Path) -> Option<Self> {
        let found = fs::symlink_metadata(path).ok()?;
        let content = if found.is_symlink() {
            fs::read_link(path).ok()?.as_os_str().as_bytes().to_vec()
        } else if found.is_file() {
            fs::read(path).ok()?
        } else {
            Vec::new()
        };
        Some(Self {
            mode: found.mode(),
            inode: found.ino(),
            links: if found.is_dir() { 0 } else { found.nlink() },
            content,
        })
    }
}

type Nodes = BTreeMap<RelPath, Node>;

struct Picture {
    root: Root,
    watch: Watch,
    nodes: Nodes,
    /// How often the watch had a hole.
    holes: Vec<WalkReason>,
}

impl Picture {
    fn of(root: Root) -> Self {
        let watch = Watch::begin(&root).unwrap();
        let mut picture = Self {
            root,
            watch,
            nodes: Nodes::new(),
            holes: Vec::new(),
        };
        picture.read_whole(&RelPath::root());
        picture.watch.settle();
        picture
    }

    fn path(&self, path: &RelPath) -> PathBuf {
        self.root.disk_path(path)
    }

    /// Brings the picture up to date, and answers with how many names were looked at.
    fn update(&mut self) -> usize {
        let pending = match self.watch.pending() {
            Ok(pending) => pending,
            Err(reason) => {
                self.holes.push(reason);
                self.watch = Watch::begin(&self.root).unwrap();
                self.nodes.clear();
                self.read_whole(&RelPath::root());
                self.watch.settle();
                return usize::MAX;
            }
        };
        let mut count = 0;
        for (directory, look) in pending {
            let names: Vec<Vec<u8>> = match look {
                Look::Names(names) => names.into_iter().collect(),
                Look::All => {
                    let known = self.nodes.keys();
                    let known = known.filter(|path| path.parent().as_ref() == Some(&directory));
                    let known: Vec<Vec<u8>> = known.map(|path| path.name().to_vec()).collect();
                    let mut names = self.names(&directory);
                    names.extend(known);
                    names.sort();
                    names.dedup();
                    names
                }
            };
            for name in names {
                count += 1;
                self.look(&directory.join(&name));
            }
        }
        self.watch.settle();
        count
    }

    fn names(&self, directory: &RelPath) -> Vec<Vec<u8>> {
        let entries = fs::read_dir(self.path(directory)).into_iter().flatten();
        entries
            .filter_map(|entry| Some(entry.ok()?.file_name().as_bytes().to_vec()))
            .collect()
    }

    fn look(&mut self, path: &RelPath) {
        let found = Node::at(&self.path(path));
        if found.as_ref().is_some_and(Node::is_directory) && self.watch.watches(path) {
            self.nodes.insert(path.clone(), found.unwrap());
            return;
        }
        self.drop_whole(path);
        match found {
            None => {}
            Some(found) if found.is_directory() => {
                self.nodes.insert(path.clone(), found);
                self.read_whole(path);
            }
            Some(found) => self.keep(path, found),
        }
    }

    fn keep(&mut self, path: &RelPath, found: Node) {
        let inode = found.inode;
        let is_shared = found.links > 1;
        if is_shared || self.watch.is_held(inode) {
            let parent = path.parent().unwrap();
            self.watch.always_look_at(&parent, path.name());
        }
        self.nodes.insert(path.clone(), found);
        if is_shared {
            // The new name of a file has an event, and the others have none.
            let others: Vec<RelPath> = self
                .nodes
                .iter()
                .filter(|(other, node)| node.inode == inode && *other != path && node.links == 1)
                .map(|(other, _)| other.clone())
                .collect();
            for other in others {
                self.look(&other);
            }
        }
    }

    fn drop_whole(&mut self, path: &RelPath) {
        self.watch.forget(path);
        self.nodes.retain(|at, _| !at.starts_with(path));
    }

    fn read_whole(&mut self, directory: &RelPath) {
        let Ok(open) = self.root.open_directory(directory) else {
            return;
        };
        self.watch.add(directory, open.as_fd());
        for name in self.names(directory) {
            let path = directory.join(&name);
            match Node::at(&self.path(&path)) {
                None => {}
                Some(found) if found.is_directory() => {
                    self.nodes.insert(path.clone(), found);
                    self.read_whole(&path);
                }
                Some(found) => self.keep(&path, found),
            }
        }
    }

    /// The picture as it should be, links aside: of a name outside nobody hears.
    fn difference(&self) -> Vec<String> {
        let mut there = Nodes::new();
        let base = self.path(&RelPath::root());
        for entry in walkdir::WalkDir::new(&base).min_depth(1) {
            let entry = entry.unwrap();
            let path = entry.path().strip_prefix(&base).unwrap();
            let path = RelPath::new(path.as_os_str().as_bytes()).unwrap();
            there.insert(path, Node::at(entry.path()).unwrap());
        }
        let plain = |node: Option<&Node>| {
            node.map(|node| {
                let content = String::from_utf8_lossy(&node.content).into_owned();
                (node.mode, node.inode, content)
            })
        };
        let mut paths: Vec<&RelPath> = there.keys().chain(self.nodes.keys()).collect();
        paths.sort();
        paths.dedup();
        paths
            .into_iter()
            .map(|path| (path, plain(self.nodes.get(path)), plain(there.get(path))))
            .filter(|(_, known, there)| known != there)
            .map(|(path, known, there)| format!("{path}: {known:?}, but there is {there:?}"))
            .collect()
    }
}

/// What somebody does, by three numbers that choose from what is there.
#[derive(Clone, Copy, Debug)]
enum Deed {
    Write(usize, u8),
    Remove(usize),
    Rename(usize, usize),
    Exchange(usize, usize),
    Leave(usize),
    Return(usize, usize),
    Directory(usize),
    Permissions(usize, u8),
    Link(usize, usize),
    LinkOutside(usize),
    WriteOutside(u8),
    Map(usize),
    Store(u8),
}

const PLACES: [&str; 14] = [
    "a", "b", "c", "d", "d/a", "d/b", "d/e", "d/e/a", "d/e/f", "d/e/f/a", "n", "n/a", "n/e",
    "n/e/a",
];

fn deed() -> impl Strategy<Value = Deed> {
    let place = || 0..PLACES.len();
    prop_oneof![
        5 => (place(), any::<u8>()).prop_map(|(p, n)| Deed::Write(p, n)),
        2 => place().prop_map(Deed::Remove),
        5 => (place(), place()).prop_map(|(from, to)| Deed::Rename(from, to)),
        2 => (place(), place()).prop_map(|(one, other)| Deed::Exchange(one, other)),
        1 => place().prop_map(Deed::Leave),
        2 => (place(), any::<u8>()).prop_map(|(p, n)| Deed::Return(p, n.into())),
        3 => place().prop_map(Deed::Directory),
        1 => (place(), any::<u8>()).prop_map(|(p, n)| Deed::Permissions(p, n)),
        2 => (place(), place()).prop_map(|(from, to)| Deed::Link(from, to)),
        2 => place().prop_map(Deed::LinkOutside),
        3 => any::<u8>().prop_map(Deed::WriteOutside),
        3 => place().prop_map(Deed::Map),
        4 => any::<u8>().prop_map(Deed::Store),
    ]
}

/// Does it if possible.
struct Doer<'a> {
    base: &'a Path,
    holder: Holder,
}

impl Doer<'_> {
    fn place(&self, at: usize) -> PathBuf {
        self.base.join("work").join(PLACES[at])
    }

    fn outside(&self, name: &str) -> PathBuf {
        self.base.join("outside").join(name)
    }

    fn do_it(&mut self, deed: Deed) {
        let _ = self.try_it(deed);
    }

    fn try_it(&mut self, deed: Deed) -> std::io::Result<()> {
        match deed {
            Deed::Write(at, n) => {
                fs::create_dir_all(self.place(at).parent().unwrap())?;
                fs::write(self.place(at), format!("{n} {at}"))
            }
            Deed::Remove(at) => {
                fs::remove_file(self.place(at)).or_else(|_| fs::remove_dir_all(self.place(at)))
            }
            Deed::Rename(from, to) => fs::rename(self.place(from), self.place(to)),
            Deed::Exchange(one, other) => {
                let (one, other) = (self.place(one), self.place(other));
                let words = [OsStr::new("exchange"), one.as_os_str(), other.as_os_str()];
                self.holder.try_tell(words);
                Ok(())
            }
            Deed::Leave(at) => {
                let _ = fs::remove_dir_all(self.outside("away"));
                let _ = fs::remove_file(self.outside("away"));
                fs::rename(self.place(at), self.outside("away"))
            }
            Deed::Return(at, n) => {
                let _ = fs::write(self.outside("away/a"), format!("outside {n}"));
                fs::rename(self.outside("away"), self.place(at))
            }
            Deed::Directory(at) => fs::create_dir_all(self.place(at)),
            Deed::Permissions(at, n) => {
                use std::os::unix::fs::PermissionsExt as _;
                let mode = 0o700 | (u32::from(n) % 0o100);
                fs::set_permissions(self.place(at), fs::Permissions::from_mode(mode))
            }
            Deed::Link(from, to) => fs::hard_link(self.place(from), self.place(to)),
            Deed::LinkOutside(at) => {
                let _ = fs::remove_file(self.outside("link"));
                fs::hard_link(self.place(at), self.outside("link"))?;
                // The kernel reports no event for the link, so the file is touched by its own name
                // too.
                fs::write(self.place(at), "linked")
            }
            Deed::WriteOutside(n) => {
                fs::metadata(self.outside("link"))?;
                fs::write(self.outside("link"), format!("by the other name {n}"))
            }
            Deed::Map(at) => {
                if fs::symlink_metadata(self.place(at))?.is_file()
                    && fs::metadata(self.place(at))?.len() > 0
                {
                    self.holder.try_tell(["unmap"]);
                    self.holder.map(&self.place(at));
                }
                Ok(())
            }
            Deed::Store(n) => {
                let text = char::from(b'A' + n % 26).to_string();
                self.holder.try_tell(["store", &text]);
                Ok(())
            }
        }
    }
}

fn base() -> (tempfile::TempDir, PathBuf, Root) {
    let top = tempfile::tempdir().unwrap();
    let base = top.path().canonicalize().unwrap();
    fs::create_dir(base.join("work")).unwrap();
    fs::create_dir(base.join("outside")).unwrap();
    let root = Root::of_directory(&base.join("work")).unwrap();
    (top, base, root)
}

fn cases() -> u32 {
    let asked = std::env::var("PROPTEST_CASES").ok();
    asked.and_then(|n| n.parse().ok()).unwrap_or(60)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases(),
        failure_persistence: None,
        max_shrink_iters: 1000,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_picture_that_follows_the_journal_is_right(
        rounds in prop::collection::vec(prop::collection::vec(deed(), 1..8), 1..10),
    ) {
        let (_top, base, root) = base();
        let mut doer = Doer { base: &base, holder: Holder::start() };
        for at in 0..PLACES.len() / 2 {
            doer.do_it(Deed::Write(2 * at + 1, 0));
        }
        let mut picture = Picture::of(root);
        for (n, deeds) in rounds.iter().enumerate() {
            for deed in deeds {
                doer.do_it(*deed);
            }
            picture.update();
            prop_assert_eq!(picture.difference(), Vec::<String>::new(), "round {}", n);
        }
        // A mapping that no path leads to is the one thing that may cost a walk here.
        let is_known = |reason: &WalkReason| *reason == WalkReason::LostWatch;
        prop_assert!(picture.holes.iter().all(is_known), "{:?}", picture.holes);
    }

    #[test]
    fn what_happens_while_it_is_drawn_is_in_the_next_picture(
        deeds in prop::collection::vec(deed(), 50..400),
    ) {
        let (_top, base, root) = base();
        for at in 0..PLACES.len() / 2 {
            Doer { base: &base, holder: Holder::start() }.do_it(Deed::Write(2 * at + 1, 0));
        }
        let mut picture = Picture::of(root);
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut doer = Doer { base: &base, holder: Holder::start() };
                for deed in &deeds {
                    doer.do_it(*deed);
                }
                is_done.store(true, Ordering::Release);
            });
            while !is_done.load(Ordering::Acquire) {
                picture.update();
            }
        });
        picture.update();
        prop_assert_eq!(picture.difference(), Vec::<String>::new());
    }
}
