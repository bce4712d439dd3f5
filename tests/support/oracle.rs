//! What git itself says. Nothing here touches the workspace or its repository: git works on
//! throw-away copies.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use walkdir::WalkDir;

use crate::view::{self, GitPlaces};
use crate::{TestWorkspace, git};

/// The id of the tree that has nothing in it.
pub const EMPTY_TREE: &str = "4b825dc642cb6eb9a060e54bf8d69288fbee4904";

/// A tree, with what it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The id of the tree.
    pub tree: String,
    /// What it holds, directories left out, sorted by path.
    pub entries: Vec<Entry>,
}

/// An entry of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The mode, such as `100644`.
    pub mode: String,
    /// The id of the content.
    pub id: String,
    /// The path, from the workspace down.
    pub path: Vec<u8>,
}

/// git's mode of a submodule.
const SUBMODULE: &str = "160000";

/// What a copy does with things named `.git`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DotGit {
    /// They are copied like anything else.
    Copy,
    /// They are left out, at any depth.
    LeaveOut,
}

/// The tree that git gives for the raw bytes of the workspace; see [`raw_listing`].
#[track_caller]
pub fn raw_tree(ws: &TestWorkspace) -> String {
    raw_listing(ws).tree
}

/// The tree that git gives for the raw bytes of the workspace: tracked files, ignored or not, and
/// untracked ones that are not ignored, with every attribute and filter off.
///
/// Files of nested repositories and submodules count as plain files. What the index skips on
/// purpose and is not on disk is as the index has it, and so is a submodule with an empty
/// directory.
#[track_caller]
pub fn raw_listing(ws: &TestWorkspace) -> Listing {
    let places = GitPlaces::find(ws.root()).expect("the workspace lies in a work tree");
    let temp = tempfile::Builder::new()
        .prefix("sforacle")
        .tempdir()
        .expect("the temporary directory is writable");
    let oracle = Oracle {
        repository: temp.path().join("git"),
        copy: temp.path().join("copy"),
        home: ws.home(),
    };
    fs::create_dir(&oracle.copy).expect("the directory is new");
    copy_tree(&places.top, &oracle.copy, DotGit::LeaveOut);
    oracle.borrow(&places);

    let tracked = oracle.tracked();
    let mut kept = Vec::new();
    let mut paths = Vec::new();
    for entry in tracked {
        let is_submodule = entry.mode == SUBMODULE;
        if is_file_or_link(&oracle.copy, &entry.path) {
            // A file in the place of a submodule is untracked.
            paths.extend((!is_submodule).then_some(entry.path));
        } else if entry.is_skipped || (is_submodule && is_empty(&oracle.copy, &entry.path)) {
            kept.extend_from_slice(format!("{} {}\t", entry.mode, entry.id).as_bytes());
            kept.extend_from_slice(&entry.path);
            kept.push(0);
        }
    }
    oracle.git(["update-index", "-z", "--index-info"], &kept);
    oracle.git(["update-index", "-z", "--add", "--stdin"], &joined(&paths));
    let untracked = oracle.git(["ls-files", "-z", "-o", "--exclude-standard"], b"");
    oracle.git(["update-index", "-z", "--add", "--stdin"], &untracked);

    let scope = ws.root().strip_prefix(&places.top).expect("found above it");
    let mut tree = oracle.line(["write-tree", "--missing-ok"]);
    if !scope.as_os_str().is_empty() {
        let inside = oracle.git(
            [
                OsStr::new("ls-tree"),
                "-z".as_ref(),
                tree.as_ref(),
                scope.as_ref(),
            ],
            b"",
        );
        let text = String::from_utf8_lossy(&inside);
        tree = match text.split_whitespace().nth(2) {
            Some(id) => id.to_owned(),
            None => EMPTY_TREE.to_owned(),
        };
    }
    Listing {
        entries: oracle.entries(&tree),
        tree,
    }
}

/// What a snapshot in the store holds, as git reads it there.
#[track_caller]
pub fn stored_listing(ws: &TestWorkspace, tree: &str) -> Listing {
    for store in ws.stores() {
        let repository = store.join("git");
        let probe = git::call(&ws.home(), &repository, ["cat-file", "-e", tree]).run();
        if probe.code == 0 {
            let out = git::run(&ws.home(), &repository, ["ls-tree", "-r", "-z", tree]);
            return Listing {
                tree: tree.to_owned(),
                entries: parse_tree(&out.stdout),
            };
        }
    }
    panic!("no store has the tree {tree}");
}

/// What `git fsck` says about files that a user may well have, and that are captured as they are.
const CONTENT_ONLY: [&str; 15] = [
    "gitmodulesBlob",
    "gitmodulesLarge",
    "gitmodulesName",
    "gitmodulesParse",
    "gitmodulesPath",
    "gitmodulesSymlink",
    "gitmodulesUpdate",
    "gitmodulesUrl",
    "gitattributesBlob",
    "gitattributesLarge",
    "gitattributesLineLength",
    "gitattributesSymlink",
    "gitignoreSymlink",
    "mailmapSymlink",
    "largePathname",
];

/// What a snapshot in the store holds, as git reads it there: modes and contents by path.
#[track_caller]
pub fn stored_contents(ws: &TestWorkspace, tree: &str) -> BTreeMap<Vec<u8>, (String, Vec<u8>)> {
    if tree == EMPTY_TREE {
        return BTreeMap::new();
    }
    let listing = stored_listing(ws, tree);
    let ids: String = listing
        .entries
        .iter()
        .map(|e| format!("{}\n", e.id))
        .collect();
    for store in ws.stores() {
        let call = git::call(&ws.home(), &store.join("git"), ["cat-file", "--batch"]);
        let output = call.stdin(ids.as_str()).run().ok();
        let mut rest = &output.stdout[..];
        let mut contents = BTreeMap::new();
        for entry in &listing.entries {
            let end = rest
                .iter()
                .position(|b| *b == b'\n')
                .expect("a header line");
            let header = String::from_utf8_lossy(&rest[..end]).into_owned();
            let Some(size) = header.strip_prefix(&format!("{} blob ", entry.id)) else {
                break;
            };
            let size: usize = size.parse().expect("a size");
            let content = rest[end + 1..][..size].to_vec();
            contents.insert(entry.path.clone(), (entry.mode.clone(), content));
            rest = &rest[end + 1 + size + 1..];
        }
        if contents.len() == listing.entries.len() {
            return contents;
        }
    }
    panic!("no store has everything of the tree {tree}");
}

/// Asserts that every private repository below the state directory is whole, that it borrows
/// nothing from elsewhere, and that every ref names a commit.
#[track_caller]
pub fn fsck(state: &Path) {
    if let Some(complaint) = fsck_complaint(state) {
        panic!("the store is clean: {complaint}");
    }
    for store in stores(state) {
        let args = ["for-each-ref", "--format=%(objecttype) %(refname)"];
        let kinds = git_in_store(state, &store).args(args).run().ok();
        for line in kinds.stdout_text().lines() {
            assert!(
                line.starts_with("commit "),
                "every ref names a commit: {line}"
            );
        }
    }
}

/// What `git fsck --strict` says against the private repositories below the state directory, or
/// that one of them borrows from elsewhere.
pub fn fsck_complaint(state: &Path) -> Option<String> {
    for store in stores(state) {
        let repository = store.join("git");
        let alternates = repository.join("objects/info/alternates");
        if alternates.symlink_metadata().is_ok() {
            return Some(format!(
                "{} depends on another repository",
                repository.display()
            ));
        }
        let args = ["fsck", "--strict", "--full", "--no-progress"];
        let mut call = git_in_store(state, &store);
        for (setting, is_there) in derived(&repository.join("objects")) {
            if !is_there {
                call = call.args(["-c", &format!("{setting}=false")]);
            }
        }
        let output = call.args(args).run();
        let text = format!("{}{}", output.stdout_text(), output.stderr_text());
        let is_clean = text.lines().all(|line| {
            ["notice:", "dangling ", "unreachable "]
                .iter()
                .any(|harmless| line.starts_with(harmless))
        });
        if output.code != 0 || !is_clean {
            return Some(output.to_string());
        }
    }
    None
}

/// The settings with which git looks at what is derived from objects, and whether there is anything
/// of that. It starts a program for each, which costs more than all else where there is nothing to
/// look at.
fn derived(objects: &Path) -> [(&'static str, bool); 2] {
    let is_there = |path: &str| objects.join(path).symlink_metadata().is_ok();
    let graph = is_there("info/commit-graph") || is_there("info/commit-graphs");
    let index = is_there("pack/multi-pack-index") || is_there("pack/multi-pack-index.d");
    [("core.commitGraph", graph), ("core.multiPackIndex", index)]
}

/// A call of git in the repository of a store, which minds no content that users may well have.
fn git_in_store(home: &Path, store: &Path) -> crate::Call {
    let repository = store.join("git");
    let mut config = vec![
        "-c".to_owned(),
        format!("safe.directory={}", repository.display()),
    ];
    for message in CONTENT_ONLY {
        config.extend(["-c".to_owned(), format!("fsck.{message}=ignore")]);
    }
    git::call(home, &repository, config).env("GIT_DIR", &repository)
}

/// The stores of the git backend below a state directory.
pub fn stores(state: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(state.join("workspaces")) else {
        return Vec::new();
    };
    let mut stores: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.join("git").is_dir())
        .collect();
    stores.sort();
    stores
}

/// Asserts that `git apply` with `patch` makes `after` of a copy of `before`: every file and link.
#[track_caller]
pub fn applies(patch: &[u8], before: &Path, after: &Path) {
    let temp = tempfile::Builder::new()
        .prefix("sfapply")
        .tempdir()
        .expect("the temporary directory is writable");
    copy_tree(before, temp.path(), DotGit::LeaveOut);
    if !patch.is_empty() {
        let output = git::call(
            before,
            temp.path(),
            ["apply", "--binary", "--whitespace=nowarn", "-"],
        )
        .env("GIT_CEILING_DIRECTORIES", "/")
        .stdin(patch)
        .run();
        assert_eq!(
            output.code,
            0,
            "git takes the patch: {output}\n{}",
            String::from_utf8_lossy(patch)
        );
    }
    view::same(
        &view::worktree(after).as_git_sees(),
        &view::worktree(temp.path()).as_git_sees(),
        "the patch makes after of before",
    );
}

/// Copies what is in `from` into the existing directory `to`: files, links and directories with
/// their permission bits. FIFOs, sockets and devices are left out.
#[track_caller]
pub fn copy_tree(from: &Path, to: &Path, dot_git: DotGit) {
    let mut walk = WalkDir::new(from)
        .min_depth(1)
        .follow_links(false)
        .into_iter();
    let mut directories = Vec::new();
    while let Some(entry) = walk.next() {
        let entry = entry.unwrap_or_else(|e| panic!("cannot copy: {e}"));
        let path = entry.path();
        let kind = entry.file_type();
        if dot_git == DotGit::LeaveOut && entry.file_name() == ".git" {
            if kind.is_dir() {
                walk.skip_current_dir();
            }
            continue;
        }
        let there = to.join(path.strip_prefix(from).expect("it is below"));
        let copied: io::Result<()> = if kind.is_dir() {
            directories.push((path.to_owned(), there.clone()));
            fs::create_dir(&there)
        } else if kind.is_symlink() {
            fs::read_link(path).and_then(|target| std::os::unix::fs::symlink(target, &there))
        } else if kind.is_file() {
            fs::copy(path, &there).map(drop)
        } else {
            Ok(())
        };
        copied.unwrap_or_else(|e| panic!("cannot copy {}: {e}", path.display()));
    }
    // Last, because a directory may not be writable.
    for (path, there) in directories.iter().rev() {
        let permissions = fs::metadata(path).expect("it was there").permissions();
        fs::set_permissions(there, permissions).expect("it was just made");
    }
}

/// A directory with a copy of everything that belongs to the workspace's repository.
#[track_caller]
pub fn copy_repository(ws: &TestWorkspace) -> TempDir {
    let temp = tempfile::Builder::new()
        .prefix("sfclone")
        .tempdir()
        .expect("the temporary directory is writable");
    copy_tree(ws.root(), temp.path(), DotGit::Copy);
    temp
}

struct Oracle {
    repository: PathBuf,
    copy: PathBuf,
    home: PathBuf,
}

struct Tracked {
    path: Vec<u8>,
    mode: String,
    id: String,
    is_skipped: bool,
}

impl Oracle {
    /// Makes the throw-away repository with the objects, the index and the rules of the user's.
    #[track_caller]
    fn borrow(&self, places: &GitPlaces) {
        let parent = self.repository.parent().expect("it lies in a directory");
        git::run(&self.home, parent, ["init", "-q", "--bare", "git"]);
        let config = |key: &str, value: &str| {
            git::run(&self.home, &self.repository, ["config", key, value]);
        };
        config("core.bare", "false");
        config("core.autocrlf", "false");
        config("core.safecrlf", "false");
        let mut objects = vec![places.common_dir.join("objects")];
        let alternates = places.common_dir.join("objects/info/alternates");
        if let Ok(text) = fs::read_to_string(alternates) {
            objects.extend(text.lines().map(PathBuf::from));
        }
        for from in objects {
            self.copy_objects(&from);
        }
        let info = self.repository.join("info");
        fs::create_dir_all(&info).expect("the directory can be made");
        let attributes = "* -text -filter -ident -working-tree-encoding -eol\n";
        fs::write(info.join("attributes"), attributes).expect("a file can be written");
        let _ = fs::remove_file(info.join("exclude"));
        if let Ok(rules) = fs::read(places.common_dir.join("info/exclude")) {
            fs::write(info.join("exclude"), rules).expect("a file can be written");
        }
        for entry in fs::read_dir(&places.git_dir)
            .expect("it is there")
            .flatten()
        {
            let name = entry.file_name();
            if name == "index" || name.as_bytes().starts_with(b"sharedindex.") {
                let to = match name == "index" {
                    true => self.repository.join("user-index"),
                    false => self.repository.join(name),
                };
                fs::copy(entry.path(), to).expect("a file can be copied");
            }
        }
    }

    fn copy_objects(&self, from: &Path) {
        let to = self.repository.join("objects");
        for entry in WalkDir::new(from).min_depth(1).into_iter().flatten() {
            let there = to.join(entry.path().strip_prefix(from).expect("it is below"));
            if entry.file_type().is_dir() {
                fs::create_dir_all(there).expect("a directory can be made");
            } else if entry.file_name() != "alternates" && !there.exists() {
                fs::copy(entry.path(), there).expect("a file can be copied");
            }
        }
    }

    #[track_caller]
    fn tracked(&self) -> Vec<Tracked> {
        if !self.repository.join("user-index").exists() {
            return Vec::new();
        }
        let out = self
            .call(["ls-files", "-z", "-t", "-s"])
            .env("GIT_INDEX_FILE", self.repository.join("user-index"))
            .run()
            .ok();
        let mut all: Vec<Tracked> = Vec::new();
        for line in out.stdout.split(|b| *b == 0).filter(|l| !l.is_empty()) {
            let tab = line
                .iter()
                .position(|b| *b == b'\t')
                .expect("before the path");
            let head = String::from_utf8_lossy(&line[..tab]).into_owned();
            let words: Vec<&str> = head.split(' ').collect();
            let path = line[tab + 1..].to_vec();
            // A conflict has up to three entries for one path.
            if all.last().is_none_or(|last| last.path != path) {
                all.push(Tracked {
                    path,
                    mode: words[1].to_owned(),
                    id: words[2].to_owned(),
                    is_skipped: words[0] == "S",
                });
            }
        }
        all
    }

    #[track_caller]
    fn entries(&self, tree: &str) -> Vec<Entry> {
        if tree == EMPTY_TREE {
            return Vec::new();
        }
        parse_tree(&self.git(["ls-tree", "-r", "-z", "--full-tree", tree], b""))
    }

    fn call<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> crate::Call {
        git::call(&self.home, &self.copy, args)
            .env("GIT_DIR", &self.repository)
            .env("GIT_WORK_TREE", &self.copy)
            .env("GIT_INDEX_FILE", self.repository.join("index"))
            .env("GIT_NO_LAZY_FETCH", "1")
    }

    #[track_caller]
    fn git<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>, stdin: &[u8]) -> Vec<u8> {
        self.call(args).stdin(stdin).run().ok().stdout
    }

    #[track_caller]
    fn line<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> String {
        let out = self.git(args, b"");
        String::from_utf8_lossy(&out).trim_end().to_owned()
    }
}

fn parse_tree(text: &[u8]) -> Vec<Entry> {
    let mut entries = Vec::new();
    for line in text.split(|b| *b == 0).filter(|l| !l.is_empty()) {
        let tab = line
            .iter()
            .position(|b| *b == b'\t')
            .expect("before the path");
        let head = String::from_utf8_lossy(&line[..tab]).into_owned();
        let mut words = head.split(' ');
        let mode = words.next().expect("a mode").to_owned();
        let id = words.nth(1).expect("an id").to_owned();
        entries.push(Entry {
            mode,
            id,
            path: line[tab + 1..].to_vec(),
        });
    }
    entries
}

/// Whether `rel` is a file or a link, and no directory above it is a link.
fn is_file_or_link(root: &Path, rel: &[u8]) -> bool {
    let path = root.join(OsStr::from_bytes(rel));
    let above_is_real = path
        .ancestors()
        .skip(1)
        .take_while(|dir| *dir != root)
        .all(|dir| dir.symlink_metadata().is_ok_and(|m| m.is_dir()));
    above_is_real
        && path
            .symlink_metadata()
            .is_ok_and(|m| m.is_file() || m.is_symlink())
}

fn is_empty(root: &Path, rel: &[u8]) -> bool {
    let path = root.join(OsStr::from_bytes(rel));
    let is_directory = path.symlink_metadata().is_ok_and(|m| m.is_dir());
    is_directory && fs::read_dir(path).is_ok_and(|mut names| names.next().is_none())
}

fn joined(paths: &[Vec<u8>]) -> Vec<u8> {
    paths
        .iter()
        .flat_map(|path| path.iter().copied().chain([0]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clean_worktree_has_the_tree_of_its_commit() {
        let ws = TestWorkspace::repository();
        ws.write_executable("bin/tool", "#!/bin/sh\n");
        ws.symlink("link", "README");
        ws.commit("second");
        ws.untouched(|| {
            assert_eq!(
                raw_tree(&ws),
                git::text(&ws.home(), ws.root(), ["rev-parse", "HEAD^{tree}"])
            );
        });
    }

    #[test]
    fn ignored_files_are_left_out_and_tracked_ones_are_not() {
        let ws = TestWorkspace::repository();
        ws.write("tracked.log", "1\n");
        ws.git(["add", "tracked.log"]);
        ws.write(".gitignore", "*.log\n");
        ws.write("other.log", "2\n");
        ws.write("new", "3\n");
        let paths: Vec<String> = raw_listing(&ws)
            .entries
            .iter()
            .map(|e| e.path.escape_ascii().to_string())
            .collect();
        assert_eq!(paths, [".gitignore", "README", "new", "tracked.log"]);
    }

    #[test]
    fn raw_bytes_are_stored_whatever_the_attributes_say() {
        let ws = TestWorkspace::repository();
        ws.git(["config", "filter.upper.clean", "tr a-z A-Z"]);
        ws.git(["config", "core.autocrlf", "true"]);
        ws.write(".gitattributes", "* text\nf filter=upper\n");
        ws.write("crlf", "a\r\n");
        ws.write("f", "abc\n");
        let listing = raw_listing(&ws);
        let id = |path: &str| {
            let entry = listing.entries.iter().find(|e| e.path == path.as_bytes());
            entry.expect("it is in the tree").id.clone()
        };
        // printf 'a\r\n' | git hash-object --stdin, and the same of the other.
        assert_eq!(
            id("crlf"),
            ws.git_call(["hash-object", "--stdin"])
                .stdin("a\r\n")
                .run()
                .stdout_text()
                .trim()
        );
        assert_eq!(
            id("f"),
            ws.git_call(["hash-object", "--stdin"])
                .stdin("abc\n")
                .run()
                .stdout_text()
                .trim()
        );
    }

    #[test]
    fn files_of_a_nested_repository_are_files() {
        let ws = TestWorkspace::repository();
        ws.write("inner/file", "x\n");
        ws.git_in("work/inner", ["init", "-q"]);
        let paths: Vec<Vec<u8>> = raw_listing(&ws)
            .entries
            .into_iter()
            .map(|e| e.path)
            .collect();
        assert_eq!(paths, [b"README".to_vec(), b"inner/file".to_vec()]);
    }

    #[test]
    fn a_subdirectory_has_the_tree_of_that_directory() {
        let mut ws = TestWorkspace::repository();
        ws.write("sub/file", "x\n");
        ws.commit("second");
        let expected = ws.git(["rev-parse", "HEAD:sub"]);
        ws.set_root("work/sub");
        assert_eq!(raw_tree(&ws), expected);
        assert_eq!(raw_listing(&ws).entries.len(), 1);
    }

    #[test]
    fn what_a_sparse_checkout_leaves_out_is_as_the_index_has_it() {
        let ws = TestWorkspace::repository();
        ws.write("in/a", "x\n");
        ws.write("out/b", "y\n");
        ws.commit("second");
        let expected = ws.git(["rev-parse", "HEAD^{tree}"]);
        ws.git(["sparse-checkout", "set", "--sparse-index", "in"]);
        assert!(!ws.exists("out"));
        assert_eq!(raw_tree(&ws), expected);
    }

    #[test]
    fn a_patch_of_gits_own_applies() {
        let ws = TestWorkspace::repository();
        ws.write("binary", b"\0\x01\x02");
        ws.symlink("link", "a");
        ws.commit("second");
        let before = ws.copy();
        ws.write("binary", b"\0\x01\x03\xff");
        ws.remove("link");
        ws.symlink("link", "b");
        ws.write_executable("new", "x");
        ws.git(["add", "-A"]);
        let patch = ws
            .git_call(["diff", "--cached", "--binary"])
            .run()
            .ok()
            .stdout;
        applies(&patch, before.path(), ws.root());
        let broken = std::panic::catch_unwind(|| applies(b"", before.path(), ws.root()));
        assert!(broken.is_err(), "an empty patch changes nothing");
    }

    #[test]
    fn a_damaged_store_is_found() {
        let ws = TestWorkspace::plain();
        let repository = ws.state().join("workspaces/0/git");
        fs::create_dir_all(&repository).unwrap();
        git::run(&ws.home(), &repository, ["init", "-q", "--bare"]);
        let id = git::call(&ws.home(), &repository, ["hash-object", "-w", "--stdin"])
            .stdin("x")
            .run()
            .stdout_text();
        fsck(&ws.state());
        git::run(
            &ws.home(),
            &repository,
            ["update-ref", "refs/blob", id.trim()],
        );
        let refs_to_blobs = std::panic::catch_unwind(|| fsck(&ws.state()));
        assert!(refs_to_blobs.is_err());
        git::run(&ws.home(), &repository, ["update-ref", "-d", "refs/blob"]);
        fsck(&ws.state());
    }
    #[test]
    fn damage_of_what_is_derived_from_objects_is_found() {
        let ws = TestWorkspace::repository();
        let repository = ws.state().join("workspaces/0/git");
        fs::create_dir_all(repository.parent().unwrap()).unwrap();
        let to = repository.to_str().unwrap();
        ws.git(["clone", "-q", "--bare", "--no-local", ".", to]);
        git::run(&ws.home(), &repository, ["repack", "-adq"]);
        let derived = [
            (["commit-graph", "write"], "objects/info/commit-graph"),
            (
                ["multi-pack-index", "write"],
                "objects/pack/multi-pack-index",
            ),
        ];
        for (args, file) in derived {
            git::run(&ws.home(), &repository, args);
            assert_eq!(fsck_complaint(&ws.state()), None);
            let path = repository.join(file);
            let mut bytes = fs::read(&path).unwrap();
            let last = bytes.len() - 1;
            bytes[last] ^= 1;
            fs::remove_file(&path).unwrap();
            fs::write(&path, bytes).unwrap();
            assert!(fsck_complaint(&ws.state()).is_some(), "{file}");
            fs::remove_file(&path).unwrap();
        }
    }
}
