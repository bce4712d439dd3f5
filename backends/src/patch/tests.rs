use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use tempfile::TempDir;

use super::comparison::{Lines, MAX_COMPARED_LINES, count_with_xdiff};
use super::*;
use crate::diff::Approximation;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    kind: EntryKind,
    bytes: Vec<u8>,
}

fn file(bytes: impl Into<Vec<u8>>) -> Option<Node> {
    node(EntryKind::File, bytes)
}

fn script(bytes: impl Into<Vec<u8>>) -> Option<Node> {
    node(EntryKind::Executable, bytes)
}

fn link(text: impl Into<Vec<u8>>) -> Option<Node> {
    node(EntryKind::Symlink, text)
}

fn node(kind: EntryKind, bytes: impl Into<Vec<u8>>) -> Option<Node> {
    let bytes = bytes.into();
    Some(Node { kind, bytes })
}

type Tree = BTreeMap<Vec<u8>, Node>;

/// Two trees, from what each path holds before and after.
fn trees<'a>(
    changes: impl IntoIterator<Item = (&'a [u8], Option<Node>, Option<Node>)>,
) -> (Tree, Tree) {
    let (mut before, mut after) = (Tree::new(), Tree::new());
    for (path, old, new) in changes {
        before.extend(old.map(|node| (path.to_vec(), node)));
        after.extend(new.map(|node| (path.to_vec(), node)));
    }
    (before, after)
}

/// As much as a search can take.
const GENEROUS: Limits = Limits {
    max_compared_bytes: u64::MAX,
    deadline: None,
};

fn side(node: &Node) -> Side<'_> {
    Side {
        kind: node.kind,
        id: ObjectId::of(ObjectKind::Blob, &node.bytes).unwrap().into(),
        bytes: &node.bytes,
    }
}

fn patch_of_path(path: &[u8], old: Option<&Node>, new: Option<&Node>) -> (Vec<u8>, LineCounts) {
    let mut out = Vec::new();
    let path = RelPath::new(path).unwrap();
    let compared = write(&mut out, &path, old.map(side), new.map(side), &GENEROUS).unwrap();
    let bytes = |node: Option<&'_ Node>| node.map(|node| node.bytes.clone());
    let (old, new) = (bytes(old), bytes(new));
    let counted = count(old.as_deref(), new.as_deref(), &GENEROUS);
    assert_eq!(counted, compared, "with and without the patch");
    (out, compared.counts)
}

/// The whole patch, and the counts of every path that differs.
fn patch_of(before: &Tree, after: &Tree) -> (Vec<u8>, BTreeMap<Vec<u8>, LineCounts>) {
    let (mut patch, mut counts) = (Vec::new(), BTreeMap::new());
    let both: Tree = before.clone().into_iter().chain(after.clone()).collect();
    for path in both.keys() {
        let (old, new) = (before.get(path), after.get(path));
        let (section, counted) = patch_of_path(path, old, new);
        assert_eq!(
            section.is_empty(),
            old == new,
            "a section where the sides differ"
        );
        patch.extend(section);
        if old != new {
            counts.insert(path.clone(), counted);
        }
    }
    (patch, counts)
}

#[test]
fn contents_that_are_streamed_make_the_same_trees() {
    let binary = || file(b"\0\xff".repeat(100));
    let (before, after) = trees([
        (&b"changed"[..], file("one\n"), binary()),
        (b"added", None, binary()),
        (b"deleted", binary(), None),
        (b"emptied", binary(), file("")),
        (b"mode", binary(), script(b"\0\xff".repeat(100))),
        (b"became-a-file", link("target"), binary()),
    ]);
    let mut patch = Vec::new();
    let both: Tree = before.clone().into_iter().chain(after.clone()).collect();
    for path in both.keys() {
        let (old, new) = (before.get(path), after.get(path));
        let copy = |node: Option<&Node>, out: &mut dyn Write| {
            out.write_all(node.map_or(&b""[..], |n| &n.bytes))
        };
        let copy_old = |out: &mut dyn Write| copy(old, out);
        let copy_new = |out: &mut dyn Write| copy(new, out);
        let old = old.map(|node| streamed(node, &copy_old));
        let new = new.map(|node| streamed(node, &copy_new));
        write_streamed(&mut patch, &RelPath::new(&path[..]).unwrap(), old, new).unwrap();
    }
    let git = Git::new();
    let plain = tempfile::tempdir().unwrap();
    store(plain.path(), &before);
    let mut apply = git.command(&["apply", "--binary"]);
    apply
        .current_dir(plain.path())
        .env("GIT_DIR", git.path("none"));
    finish(apply, &patch);
    assert_eq!(load(plain.path()), after, "every byte, mode and link");
}

fn streamed<'a>(node: &Node, copy: &'a dyn Fn(&mut dyn Write) -> io::Result<()>) -> Streamed<'a> {
    let id = ObjectId::of(ObjectKind::Blob, &node.bytes).unwrap();
    Streamed {
        kind: node.kind,
        id,
        size: node.bytes.len() as u64,
        copy,
    }
}

/// A repository that no setting of this machine reaches.
struct Git {
    directory: TempDir,
}

impl Git {
    fn new() -> Self {
        let git = Self {
            directory: tempfile::tempdir().unwrap(),
        };
        for name in ["home", "before", "after"] {
            fs::create_dir(git.path(name)).unwrap();
        }
        git.run(&["init", "--quiet"], b"");
        git
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("git");
        command
            .args(arguments)
            .current_dir(self.directory.path())
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", self.path("home"))
            .env("LC_ALL", "C")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_DIR", self.path(".git"));
        command
    }

    fn run(&self, arguments: &[&str], input: &[u8]) -> Vec<u8> {
        finish(self.command(arguments), input)
    }

    /// The id of git's tree for what lies in the directory `name`.
    fn tree_of(&self, name: &str) -> String {
        for arguments in [&["add", "--all"][..], &["write-tree"]] {
            let mut command = self.command(arguments);
            command.current_dir(self.path(name));
            command.env("GIT_WORK_TREE", self.path(name));
            command.env("GIT_INDEX_FILE", self.path(&format!("{name}.index")));
            let id = finish(command, b"");
            if !id.is_empty() {
                return String::from_utf8(id).unwrap().trim().to_owned();
            }
        }
        unreachable!("write-tree prints an id")
    }

    /// What `git diff --numstat` says, by path.
    fn numstat(&self, before: &str, after: &str) -> BTreeMap<Vec<u8>, LineCounts> {
        let arguments = ["diff", "--numstat", "--no-renames", "-z", before, after];
        let text = self.run(&arguments, b"");
        text.split(|b| *b == 0)
            .filter(|line| !line.is_empty())
            .map(|line| {
                let fields: Vec<_> = line.splitn(3, |b| *b == b'\t').collect();
                let number = |field: &[u8]| std::str::from_utf8(field).unwrap().parse().ok();
                let counts = LineCounts {
                    insertions: number(fields[0]).unwrap_or(0),
                    deletions: number(fields[1]).unwrap_or(0),
                    is_binary: fields[0] == b"-",
                };
                (fields[2].to_vec(), counts)
            })
            .collect()
    }

    /// Has git itself turn `before` into `after` with our patch, once in a plain directory and
    /// once with its index, and compares both with `after`, and our counts with its own.
    fn check(&self, before: &Tree, after: &Tree) {
        let (patch, counts) = patch_of(before, after);
        store(&self.path("before"), before);
        store(&self.path("after"), after);
        let (old, new) = (self.tree_of("before"), self.tree_of("after"));
        assert_eq!(counts, self.numstat(&old, &new), "git counts the same");

        let plain = tempfile::tempdir().unwrap();
        store(plain.path(), before);
        let mut apply = self.command(&["apply", "--binary"]);
        apply
            .current_dir(plain.path())
            .env("GIT_DIR", self.path("none"));
        finish(apply, &patch);
        assert_eq!(load(plain.path()), *after, "every byte, mode and link");

        let mut apply = self.command(&["apply", "--index"]);
        apply.current_dir(self.path("before"));
        apply.env("GIT_WORK_TREE", self.path("before"));
        apply.env("GIT_INDEX_FILE", self.path("before.index"));
        finish(apply, &patch);
        assert_eq!(
            load(&self.path("before")),
            *after,
            "every byte, mode and link"
        );
        assert_eq!(self.tree_of("before"), new, "and the same tree");
    }
}

fn finish(mut command: Command, input: &[u8]) -> Vec<u8> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let output = std::thread::scope(|scope| {
        scope.spawn(move || stdin.write_all(input));
        child.wait_with_output().unwrap()
    });
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {stderr}");
    output.stdout
}

fn store(directory: &Path, tree: &Tree) {
    for (path, node) in tree {
        let disk_path = directory.join(OsStr::from_bytes(path));
        fs::create_dir_all(disk_path.parent().unwrap()).unwrap();
        if node.kind == EntryKind::Symlink {
            symlink(OsStr::from_bytes(&node.bytes), &disk_path).unwrap();
            continue;
        }
        fs::write(&disk_path, &node.bytes).unwrap();
        let mode = node.kind.git_mode() & 0o777;
        fs::set_permissions(&disk_path, fs::Permissions::from_mode(mode)).unwrap();
    }
}

fn load(directory: &Path) -> Tree {
    let mut tree = Tree::new();
    for entry in walkdir::WalkDir::new(directory) {
        let entry = entry.unwrap();
        let rel_path = entry.path().strip_prefix(directory).unwrap();
        let found = if entry.file_type().is_dir() {
            continue;
        } else if entry.path_is_symlink() {
            let target = fs::read_link(entry.path()).unwrap();
            link(target.as_os_str().as_bytes())
        } else if entry.metadata().unwrap().permissions().mode() & 0o100 != 0 {
            script(fs::read(entry.path()).unwrap())
        } else {
            file(fs::read(entry.path()).unwrap())
        };
        tree.extend(found.map(|node| (rel_path.as_os_str().as_bytes().to_vec(), node)));
    }
    tree
}

/// Lines of a few words, so that they recur, with every kind of ending.
fn text() -> impl Strategy<Value = Vec<u8>> {
    let line = select(vec![
        "one\n",
        "two\n",
        "three\n",
        "\n",
        "}\n",
        "  indented\n",
        "crlf\r\n",
        "\r\n",
        "a\rb\n",
        "-minus\n",
        "+plus\n",
        "@@ -1 +1 @@\n",
        "\\ No newline at end of file\n",
        "caf\u{e9}\n",
        "diff --git a/x b/x\n",
        "trailing  \n",
        "nul\0\n",
    ]);
    let end = select(vec!["", "", "", "open", "open\r", "\r", " "]);
    (prop::collection::vec(line, 0..60), end, 0..9).prop_map(|(mut lines, end, with_nul)| {
        if with_nul > 0 {
            lines.retain(|line| !line.contains('\0'));
        }
        (lines.concat() + end).into_bytes()
    })
}

fn content() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        8 => text(),
        1 => Just(Vec::new()),
        1 => prop::collection::vec(any::<u8>(), 0..300),
        // A NUL on both sides of the place up to which git looks.
        1 => (7998usize..8003, text()).prop_map(|(at, mut text)| {
            text.extend(b"long\n".repeat(1700));
            text[at] = 0;
            text
        }),
    ]
}

fn any_node() -> impl Strategy<Value = Node> {
    use EntryKind::{Executable, File, Symlink};
    (
        select(vec![File, File, File, Executable, Symlink]),
        content(),
    )
        .prop_map(|(kind, bytes)| match kind {
            Symlink => Node {
                kind,
                bytes: format!("../to/{}", bytes.len()).into_bytes(),
            },
            kind => Node { kind, bytes },
        })
}

/// What a path holds before and after: often an edited text, sometimes two unrelated things.
fn change() -> impl Strategy<Value = (Option<Node>, Option<Node>)> {
    let edited = (any_node(), any::<prop::sample::Index>(), 0..6, text()).prop_map(
        |(old, at, how, insert)| {
            let mut new = old.clone();
            let at = at.index(new.bytes.len() + 1);
            match (how, new.kind) {
                (0, EntryKind::File) => new.kind = EntryKind::Executable,
                (1, EntryKind::Executable) => new.kind = EntryKind::File,
                (_, EntryKind::Symlink) => new.bytes.push(b'x'),
                (2, _) => new.bytes.truncate(at),
                (3, _) => drop(new.bytes.drain(..at)),
                _ => drop(new.bytes.splice(at..at, insert)),
            }
            (Some(old), Some(new))
        },
    );
    let any_two = (prop::option::of(any_node()), prop::option::of(any_node()));
    prop_oneof![2 => edited, 1 => any_two]
}

/// Names that a reader of patches can misread.
fn names() -> Vec<&'static [u8]> {
    let names = b"plain|plain.txt|with space| leading|trailing |  |x b/x|x b/x b/x|a/b/c|a b/a b|\
        b/plain|dev/null|tab\there|tab\t|new\nline|\n|\r|\"|\"quoted\"|back\\slash|\\|\\n|\
        bell\x07\x08\x0b\x0c|\x01|\x7f|\xc3\xbcml\xc3\xa4ut|\xff\xfe|\xe2\x80\xae|-dash|--- a|\
        2020-01-01 00:00:00|stamp\t2020-01-01|{a => b}|a => b|*|?[x]|:(top)x|$HOME|'single'|\
        deep/ /er/\t/name|~|#x|%s";
    let mut names: Vec<&[u8]> = names.split(|b| *b == b'|').collect();
    names.sort_unstable();
    names
}

#[test]
fn git_makes_before_into_after_with_any_patch_and_counts_the_same_lines() {
    // A fixed seed: what fails once fails again. Each case is some forty pairs.
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
    let config = ProptestConfig {
        cases: 14,
        max_shrink_iters: 30,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let changes = prop::collection::vec(change(), names().len());
    TestRunner::new_with_rng(config, rng)
        .run(&changes, |changes| {
            let paired = names().into_iter().zip(changes);
            let (before, after) = trees(paired.map(|(name, (old, new))| (name, old, new)));
            Git::new().check(&before, &after);
            Ok(())
        })
        .unwrap();
}

#[test]
fn a_path_may_be_a_file_then_a_directory_or_a_link_in_any_order() {
    let thing = || file("thing\n");
    let (mut before, mut after) = (Tree::new(), Tree::new());
    // What can be at a name: nothing, a file, a link to a file or to a directory, a directory.
    let shapes: [&[(&[u8], Option<Node>)]; 6] = [
        &[],
        &[(b"", thing())],
        &[(b"", link("nowhere"))],
        &[(b"", link("real"))],
        &[(b"/x", thing())],
        &[(b"/x", script("other\n")), (b"/y/z", thing())],
    ];
    for (i, old) in shapes.iter().enumerate() {
        for (j, new) in shapes.iter().enumerate() {
            for (tree, shape) in [(&mut before, old), (&mut after, new)] {
                for (suffix, node) in *shape {
                    let path = [format!("{i}to{j}").as_bytes(), suffix].concat();
                    tree.extend(node.clone().map(|node| (path, node)));
                }
                // What the link leads to has a file of the same name.
                tree.extend(thing().map(|node| (b"real/x".to_vec(), node)));
            }
        }
    }
    Git::new().check(&before, &after);
}

#[test]
fn where_nothing_is_left_to_choice_the_patch_is_gits_own() {
    let mut changes: Vec<(&[u8], Option<Node>, Option<Node>)> = Vec::new();
    for (i, name) in names().into_iter().enumerate() {
        let change = match i % 9 {
            0 => (file("one\n"), file("two")),
            1 => (None, file("one\ntwo\n")),
            2 => (script("one\n"), None),
            3 => (file("one\r\n"), script("one\r\n")),
            4 => (file(""), script("one\n")),
            5 => (link("one"), link("two")),
            6 => (file("one\n"), link("one")),
            7 => (None, file("")),
            _ => (script(""), None),
        };
        changes.push((name, change.0, change.1));
    }
    let (before, after) = trees(changes);
    let git = Git::new();
    store(&git.path("before"), &before);
    store(&git.path("after"), &after);
    let (old, new) = (git.tree_of("before"), git.tree_of("after"));
    let theirs = git.run(&["diff", "--full-index", "--no-renames", &old, &new], b"");
    let ours = patch_of(&before, &after).0;
    assert_eq!(
        String::from_utf8_lossy(&ours),
        String::from_utf8_lossy(&theirs)
    );
}

#[test]
fn binary_content_is_there_both_ways_so_the_patch_can_be_reversed() {
    let long: Vec<u8> = (0..5000).map(|n| (n * n % 251) as u8).collect();
    let (before, after) = trees([
        (&b"edited"[..], file(*b"\0old"), file(long.clone())),
        (b"created", None, file(long.clone())),
        (b"deleted", file(long), None),
        (b"emptied", file(*b"\0"), file("")),
        (b"became text", script(*b"a\0b\n"), script("a b\n")),
    ]);
    let (patch, _) = patch_of(&before, &after);
    let git = Git::new();
    git.check(&before, &after);
    let mut undo = git.command(&["apply", "--binary", "--reverse"]);
    undo.current_dir(git.path("before"));
    undo.env("GIT_WORK_TREE", git.path("before"));
    finish(undo, &patch);
    assert_eq!(load(&git.path("before")), before, "every byte");
}

#[test]
fn hunks_have_three_lines_around_them_and_meet_where_those_touch() {
    let line = |n: &usize| format!("{n}\n");
    let old: String = (1..=40).map(|n| line(&n)).collect();
    let mut edited: Vec<String> = (1..=40).map(|n| line(&n)).collect();
    edited[9] = "ten\n".to_owned();
    edited[16] = "seventeen\n".to_owned();
    edited.remove(30);
    let new = edited.concat();
    let (patch, counts) = patch_of_path(b"f", file(old).as_ref(), file(new).as_ref());
    let patch = String::from_utf8(patch).unwrap();
    let hunks: Vec<_> = patch
        .lines()
        .filter(|line| line.starts_with("@@"))
        .collect();
    assert_eq!(hunks, ["@@ -7,14 +7,14 @@", "@@ -28,7 +28,6 @@"]);
    assert_eq!((counts.insertions, counts.deletions), (2, 3));
}

/// Numbers that look random and are always the same.
struct Noise(u64);

impl Noise {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    fn lines(&mut self, count: usize, words: u64) -> Vec<u8> {
        let line = |_| format!("{:x}\n", self.below(words)).into_bytes();
        (0..count).flat_map(line).collect()
    }
}

#[test]
fn pairs_on_which_searches_differ_are_counted_as_git_counts_them() {
    let mut noise = Noise(0x2545_f491_4f6c_dd1d);
    let (mut before, mut after) = (Tree::new(), Tree::new());
    for i in 0..300 {
        let (len, words) = (1 + noise.below(900) as usize, 1 + noise.below(400));
        let mut old = noise.lines(len, words);
        let mut new = match i % 3 {
            0 => edited(&old, &mut noise),
            _ => noise.lines(len, words),
        };
        if i % 3 == 1 {
            // What the two share at their ends is frequent in between too.
            let ends = b"}\n".repeat(noise.below(400) as usize);
            for (text, mark) in [(&mut old, "old"), (&mut new, "new")] {
                let middle = mixed(mark, &mut noise);
                *text = [&ends[..], b"start\n", &middle, b"end\n", &ends].concat();
            }
        }
        for text in [&mut old, &mut new] {
            if noise.below(4) == 0 {
                text.pop();
            }
        }
        let name = format!("{i:03}").into_bytes();
        before.extend(file(old).map(|node| (name.clone(), node)));
        after.extend(file(new).map(|node| (name, node)));
    }
    Git::new().check(&before, &after);
}

#[test]
fn where_one_search_is_enough_it_counts_as_git_does() {
    let mut noise = Noise(0x9e37_79b9_7f4a_7c15);
    let mut searched = [0, 0];
    for i in 0..3000 {
        let (len, words) = (1 + noise.below(600) as usize, 1 + noise.below(2000));
        let old = noise.lines(len, words);
        let mut new = edited(&old, &mut noise);
        if i % 2 == 0 {
            // Edits in one place, as people make them; a line that is everywhere among them.
            let at = lines(&old).take(len / 3).map(<[u8]>::len).sum::<usize>();
            let to = at + lines(&old[at..]).take(6).map(<[u8]>::len).sum::<usize>();
            let middle = edited(&[&old[at..to], b"}\n\n"].concat(), &mut noise);
            new = [&old[..at], &middle, &old[to..]].concat();
        }
        let pair = Pair::new(&old, &new);
        let (changed_old, changed_new) = pair.changed();
        if changed_old.is_empty() || changed_new.is_empty() {
            continue;
        }
        let lines = Lines::of(&pair);
        let mut found = LineCounts::default();
        for edit in pair.edits(&lines, None) {
            found.deletions += edit.old.len() as u64;
            found.insertions += edit.new.len() as u64;
        }
        let is_enough = lines.is_shortest(found);
        searched[usize::from(is_enough)] += 1;
        if is_enough {
            assert_eq!(count_with_xdiff(&old, &new), Some(found), "pair {i}");
        }
    }
    assert!(
        searched.iter().all(|n| *n > 100),
        "both happen: {searched:?}"
    );
}

/// `text` with lines removed, added and doubled.
fn edited(text: &[u8], noise: &mut Noise) -> Vec<u8> {
    let mut out = Vec::new();
    for line in lines(text) {
        match noise.below(12) {
            0 => {}
            1 => out.extend(b"new\n"),
            2 => out.extend([line, line].concat()),
            _ => out.extend(line),
        }
    }
    out
}

/// Lines that are nowhere else, some that may be, and one again and again.
fn mixed(mark: &str, noise: &mut Noise) -> Vec<u8> {
    let mut out = Vec::new();
    for n in 0..20 + noise.below(100) {
        match noise.below(4) {
            0 => out.extend(b"}\n"),
            1 => out.extend(format!("word {}\n", noise.below(20)).bytes()),
            _ => out.extend(format!("{mark} {n}\n").bytes()),
        }
    }
    out
}

#[test]
fn a_patch_is_right_when_there_is_no_time_to_search() {
    let mut noise = Noise(99);
    let (old, new) = (noise.lines(3000, 50), noise.lines(3000, 50));
    let (old, new) = (file(old).unwrap(), file(new).unwrap());
    let path = RelPath::new("f").unwrap();
    let (searched, counts) = patch_of_path(b"f", Some(&old), Some(&new));
    let mut hasty = Vec::new();
    let at_once = Limits {
        deadline: Some(Instant::now()),
        ..GENEROUS
    };
    let sides = (Some(side(&old)), Some(side(&new)));
    let compared = write(&mut hasty, &path, sides.0, sides.1, &at_once).unwrap();
    assert!(hasty.len() > searched.len(), "the deadline was looked at");
    assert_eq!(compared.approximation, Some(Approximation::OutOfTime));
    assert!(
        compared.counts.insertions > counts.insertions,
        "an upper bound"
    );
    assert_eq!(
        compared,
        count(Some(&old.bytes), Some(&new.bytes), &at_once),
        "with and without the patch"
    );

    let directory = tempfile::tempdir().unwrap();
    store(directory.path(), &Tree::from([(b"f".to_vec(), old)]));
    let mut apply = Git::new().command(&["apply"]);
    apply.current_dir(directory.path());
    finish(apply, &hasty);
    assert_eq!(load(directory.path()), Tree::from([(b"f".to_vec(), new)]));
}

/// Every line is there once, and no line is where the other text has it.
fn shuffled(count: usize, seed: u64) -> Vec<u8> {
    let mut noise = Noise(seed);
    let mut order: Vec<usize> = (0..count).collect();
    for i in (1..count).rev() {
        order.swap(i, noise.below(i as u64 + 1) as usize);
    }
    order
        .iter()
        .flat_map(|n| format!("{n:x}\n").into_bytes())
        .collect()
}

#[test]
fn text_that_is_too_much_to_compare_goes_out_whole_and_compressed() {
    let lines = MAX_COMPARED_LINES + 1;
    let bytes = |byte: u8| [vec![byte; MAX_COMPARED_BYTES], b"\n".to_vec()].concat();
    let (before, after) = trees([
        (
            &b"lines"[..],
            file(shuffled(lines, 1)),
            file(shuffled(lines, 2)),
        ),
        (b"bytes", file(bytes(b'a')), file(bytes(b'b'))),
    ]);
    let (patch, counts) = patch_of(&before, &after);
    let literals = patch
        .split(|b| *b == b'\n')
        .filter(|line| line.starts_with(b"literal "));
    assert_eq!(literals.count(), 4, "two files, both ways");
    let every_line = LineCounts {
        insertions: lines as u64,
        deletions: lines as u64,
        is_binary: false,
    };
    assert_eq!(counts[&b"lines"[..]], every_line, "an upper bound");

    let directory = tempfile::tempdir().unwrap();
    store(directory.path(), &before);
    let mut apply = Git::new().command(&["apply", "--binary"]);
    apply.current_dir(directory.path());
    finish(apply, &patch);
    assert!(load(directory.path()) == after, "every byte");
}

#[test]
fn a_small_change_in_a_very_long_text_is_a_small_patch_with_gits_counts() {
    let text = b"alike\n".repeat(2 * MAX_COMPARED_LINES);
    let line = text.len() / 2..text.len() / 2 + 6;
    let mut edited = text.clone();
    edited.splice(line.clone(), *b"but\nthese\n");
    let mut longer = text.clone();
    longer.extend(b"the end");
    let (before, after) = trees([
        (&b"edited"[..], file(&text[..]), file(edited)),
        (b"longer", file(&text[..]), file(longer)),
    ]);
    let (patch, _) = patch_of(&before, &after);
    assert!(patch.len() < 1000, "{} bytes", patch.len());
    Git::new().check(&before, &after);
}

#[test]
fn a_pair_made_to_recurse_deeply_fits_in_a_small_stack() {
    // Short stretches that share words but not their order, each followed by a match that is
    // just long enough to be taken for a good place to split.
    let mut noise = Noise(5);
    let (mut old, mut new) = (Vec::new(), Vec::new());
    for block in 0..MAX_COMPARED_LINES / 650 {
        old.extend(noise.lines(200, MAX_COMPARED_LINES as u64));
        new.extend(noise.lines(200, MAX_COMPARED_LINES as u64));
        let shared = (0..450).flat_map(|n| format!("s{:x}\n", block * 450 + n).into_bytes());
        let shared: Vec<u8> = shared.collect();
        old.extend(&shared);
        new.extend(&shared);
    }
    let half_of_a_usual_stack = 1 << 20;
    let search = move || {
        let pair = Pair::new(&old, &new);
        let comparison = pair.compare(&GENEROUS);
        let Form::Hunks(edits) = comparison.form else {
            panic!("it is text");
        };
        (edits.len(), comparison.compared.counts)
    };
    let thread = std::thread::Builder::new().stack_size(half_of_a_usual_stack);
    let (edits, counts) = thread.spawn(search).unwrap().join().unwrap();
    assert!(
        edits > MAX_COMPARED_LINES / 650,
        "the stretches were searched one by one"
    );
    assert!(
        counts.insertions < MAX_COMPARED_LINES as u64 / 2,
        "the matches were found"
    );
}

#[test]
fn a_blake3_id_is_never_taken_for_gits() {
    let node = file("one\n").unwrap();
    let id = ContentId::Blake3(*blake3::hash(&node.bytes).as_bytes());
    let hashed = Side { id, ..side(&node) };
    let mut out = Vec::new();
    let path = RelPath::new("f").unwrap();
    write(&mut out, &path, None, Some(hashed), &GENEROUS).unwrap();
    assert_eq!(out, patch_of_path(b"f", None, Some(&node)).0);
}

/// Takes so many bytes, then fails; remembers the largest write.
struct Full {
    left: usize,
    largest: usize,
}

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.largest = self.largest.max(bytes.len());
        self.left = self
            .left
            .checked_sub(bytes.len())
            .ok_or(io::ErrorKind::StorageFull)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_patch_is_a_stream_and_a_full_disk_is_an_error_at_any_byte() {
    let mut noise = Noise(3);
    let text = file(noise.lines(400, 10)).unwrap();
    let mut binary = text.clone();
    binary.bytes.insert(0, 0);
    let path = RelPath::new("f").unwrap();
    for node in [text, binary] {
        let size = patch_of_path(b"f", None, Some(&node)).0.len();
        for left in 0..=size {
            let mut out = Full { left, largest: 0 };
            let result = write(&mut out, &path, None, Some(side(&node)), &GENEROUS);
            match result {
                Ok(_) => assert_eq!(left, size, "nothing was lost"),
                Err(e) => assert_eq!(e.kind(), io::ErrorKind::StorageFull),
            }
            assert!(out.largest < 100, "no piece is larger than a line");
            assert!(left < size || out.left == 0, "all was taken");
        }
    }
}
