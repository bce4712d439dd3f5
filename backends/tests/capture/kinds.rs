//! Everything that can lie in a worktree: what is captured of it, and what is said of the rest.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use stillframe_backends::{
    DiffOptions, ErrorKind, IgnoreOptions, Operation, Owner, RelPath, RestoreGoal, RestoreOptions,
    SnapshotOptions,
};

use crate::facts::changed;
use crate::ground::{Ground, omissions, options};

#[test]
fn files_directories_and_links_take_each_others_place() {
    let ground = Ground::repository();
    ground.write("outside/x", "x\n");
    let git = ground.taker("git-state");
    let hash = ground.hash_taker("hash-state");
    let kinds = [
        "file",
        "directory",
        "link",
        "executable",
        "nothing",
        "empty",
    ];
    for from in kinds {
        for to in kinds {
            for kind in [from, to] {
                if fs::symlink_metadata(ground.path("it")).is_ok() {
                    ground.remove("it");
                }
                match kind {
                    "file" => ground.write("it", "f\n"),
                    "directory" => ground.write("it/a/b", "d\n"),
                    "link" => ground.symlink("it", "outside"),
                    "executable" => {
                        ground.write("it", "f\n");
                        ground.chmod("it", 0o755);
                    }
                    "empty" => ground.mkdir("it"),
                    _ => {}
                }
                assert_eq!(git.tree(), ground.oracle(), "{from} to {to}");
                let fresh = ground.hash_taker(&format!("{from}-{to}-{kind}"));
                assert!(
                    hash.snapshot().same_content(&fresh.snapshot()),
                    "{from} to {to}"
                );
            }
        }
    }
    ground.fsck(&git);
}

#[test]
fn a_directory_of_thousands_is_as_git_has_it_wherever_it_changes() {
    let ground = Ground::repository();
    ground.write(".gitignore", "*.log\n");
    let name = |at: usize| format!("d/{at:04}");
    for at in 0..5000 {
        match at % 500 {
            250 => ground.write(format!("{}/below", name(at)), "in one of its own\n"),
            251 => ground.write(format!("{}.log", name(at)), "ignored\n"),
            252 => ground.symlink(name(at), "0000"),
            _ => ground.write(name(at), at.to_string()),
        }
    }
    ground.commit("thousands");
    let taker = ground.taker("state");
    let watched = || options().watch(true);
    let by_journal = ground.taker("watched-state");
    // About the middle, which belongs to the one half or the other, and at both ends.
    type Edit<'a> = (&'a str, Box<dyn Fn(usize) -> bool>);
    let edits: [Edit<'_>; 5] = [
        ("nothing", Box::new(|_| false)),
        ("the middle", Box::new(|at| (2400..2600).contains(&at))),
        ("both ends", Box::new(|at| !(30..4970).contains(&at))),
        ("the later half", Box::new(|at| at > 2300)),
        ("all", Box::new(|_| true)),
    ];
    for (place, is_edited) in edits {
        for what in ["edited", "gone", "back"] {
            for at in (0..5000).filter(|at| is_edited(*at)) {
                let path = ground.path(name(at));
                match (what, fs::symlink_metadata(&path)) {
                    ("gone", Ok(_)) => ground.remove(name(at)),
                    ("edited", Ok(meta)) if meta.is_file() => ground.write(name(at), "edited\n"),
                    ("back", Err(_)) => ground.write(name(at), "back\n"),
                    _ => {}
                }
            }
            let oracle = ground.oracle();
            assert_eq!(taker.tree(), oracle, "{what}, {place}");
            let seen = by_journal.snapshot_with(&watched());
            assert_eq!(seen.tree, Some(oracle), "{what}, {place}, watched");
            assert_eq!(taker.snapshot().metadata.files_hashed, 0, "{what}, {place}");
        }
    }
    ground.fsck(&taker);
}

#[test]
fn names_are_bytes() {
    let ground = Ground::repository();
    let long = "n".repeat(255);
    let names: [&[u8]; 12] = [
        b"new\nline",
        b"tab\t",
        b"\"quoted\"",
        b"-dash",
        b" blank ",
        b"odd\xff\xfename",
        b"\x1b[31m",
        b"back\\slash",
        b"star*[a]?",
        "ünï/cödé/🙂".as_bytes(),
        b"CON",
        long.as_bytes(),
    ];
    for name in names {
        ground.write(name, name);
    }
    ground.symlink(b"link\xff", b"to \xff\n");
    let taker = ground.taker("state");
    let snapshot = taker.snapshot();
    assert_eq!(snapshot.tree, Some(ground.oracle()));
    let hash = ground.hash_taker("hash-state").snapshot();
    assert_eq!(hash.metadata.files, snapshot.metadata.files);
    ground.fsck(&taker);
}

#[test]
fn fifos_and_sockets_are_named_and_never_opened() {
    let ground = Ground::repository();
    ground.mkfifo("fifo");
    ground.mkfifo("src/.gitignore");
    ground.mkfifo("src/.gitattributes");
    ground.mkfifo("src/deep/.git");
    let _listener = UnixListener::bind(ground.path("socket")).unwrap();
    ground.write("src/new", "x\n");
    let expected = [
        "fifo special",
        "socket special",
        "src/.gitattributes special",
        "src/.gitignore special",
        "src/deep/.git git_dir",
    ];
    let taker = ground.taker("state");
    let snapshot = taker.snapshot();
    assert_eq!(omissions(&snapshot), expected);
    assert!(ground.listing(&taker, &snapshot).contains("src/new"));
    let hash = ground.hash_taker("hash-state").snapshot();
    assert_eq!(
        hash.omissions().len(),
        expected.len() + 1,
        "and .git itself"
    );
}

#[test]
fn nested_repositories_are_files_like_any_others() {
    let ground = Ground::repository();
    for (directory, commits) in [("nested", true), ("unborn", false)] {
        ground.write(format!("{directory}/file"), "x\n");
        let path = ground.path(directory);
        ground.git_in(&path, ["init", "-q"], b"");
        if commits {
            ground.git_in(&path, ["add", "-A"], b"");
            ground.git_in(&path, ["commit", "-qm", "nested"], b"");
        }
        ground.write(format!("{directory}/dirty"), "y\n");
    }
    ground.write("pointer/.git", "gitdir: ../elsewhere\n");
    ground.write("pointer/file", "z\n");
    let before = ground.view(&ground.root);
    let taker = ground.taker("state");
    let snapshot = taker.snapshot();
    assert_eq!(
        omissions(&snapshot),
        [
            "nested/.git git_dir",
            "pointer/.git git_dir 21",
            "unborn/.git git_dir"
        ]
    );
    assert_eq!(ground.view(&ground.root), before);
    // git takes the same files once nobody tells it that they are repositories.
    for path in ["nested/.git", "unborn/.git", "pointer/.git"] {
        ground.remove(path);
    }
    assert_eq!(snapshot.tree, Some(ground.oracle()));
    ground.fsck(&taker);
}

#[test]
fn a_submodule_is_captured_as_its_files() {
    let library = Ground::repository();
    let ground = Ground::repository();
    let url = library.root.to_str().unwrap();
    ground.git(["submodule", "--quiet", "add", url, "module"]);
    ground.commit("module");
    ground.write("module/README", "dirty\n");
    let taker = ground.taker("state");
    let snapshot = taker.snapshot();
    let listing = ground.listing(&taker, &snapshot);
    assert!(
        !listing.contains("160000"),
        "no submodule in place of content: {listing}"
    );
    assert!(listing.contains("module/README"), "{listing}");
    let text = fs::metadata(ground.path("module/.git")).unwrap().len();
    assert_eq!(
        omissions(&snapshot),
        [format!("module/.git git_dir {text}")]
    );
    ground.fsck(&taker);

    // The submodule is a workspace of its own, too.
    let inner = ground.taker_at(&ground.path("module"), "inner", Default::default());
    let snapshot = inner.snapshot();
    assert_eq!(snapshot.backend.as_str(), "git");
    assert_eq!(snapshot.metadata.dirty, Some(true));
    assert!(omissions(&snapshot).is_empty());
}

/// A repository with the submodules `a/module` and `module`, and a clean clone of it in which none
/// of them is checked out.
fn clone_with_submodules() -> (Ground, Ground) {
    let library = Ground::repository();
    let ground = Ground::repository();
    let url = library.root.to_str().unwrap();
    ground.git(["submodule", "--quiet", "add", url, "module"]);
    ground.git(["submodule", "--quiet", "add", url, "a/module"]);
    ground.write("a/file", "beside\n");
    ground.commit("modules");
    let clone = Ground::plain();
    clone.git(["clone", "-q", ground.root.to_str().unwrap(), "."]);
    clone.git(["config", "submodule.module.url", url]);
    clone.git(["config", "submodule.a/module.url", url]);
    (clone, library)
}

#[test]
fn a_clean_clone_with_submodules_is_clean_and_has_the_tree_of_its_commit() {
    let (clone, _library) = clone_with_submodules();
    assert_eq!(clone.git(["status", "--porcelain"]), "");
    let taker = clone.taker("state");
    let head = clone.git(["rev-parse", "HEAD^{tree}"]);
    for _ in 0..2 {
        let snapshot = taker.snapshot();
        assert_eq!(snapshot.tree.as_deref(), Some(&*head));
        assert_eq!(snapshot.metadata.dirty, Some(false));
        assert!(omissions(&snapshot).is_empty());
    }
    clone.fsck(&taker);

    // Checked out, its files are captured in its place, and they are those of the commit.
    clone.git(["submodule", "--quiet", "update", "--init", "a/module"]);
    let snapshot = taker.snapshot();
    assert!(clone.listing(&taker, &snapshot).contains("a/module/README"));
    assert_eq!(snapshot.metadata.dirty, Some(false));
    assert_eq!(clone.taker("fresh").snapshot().metadata.dirty, Some(false));
    for (path, restored) in [("a/module/README", "read me\n"), ("a/file", "beside\n")] {
        clone.write(path, "edited\n");
        assert_eq!(taker.snapshot().metadata.dirty, Some(true), "{path}");
        clone.write(path, restored);
        assert_eq!(taker.snapshot().metadata.dirty, Some(false), "{path}");
    }
    clone.git([
        "-C",
        "a/module",
        "commit",
        "-q",
        "--allow-empty",
        "-m",
        "moved",
    ]);
    assert_eq!(clone.git(["status", "--porcelain"]), " M a/module");
    assert_eq!(taker.snapshot().metadata.dirty, Some(true));
}

#[test]
fn a_submodule_in_a_submodule_is_as_committed_or_it_is_not() {
    let (inner, _library) = clone_with_submodules();
    let ground = Ground::repository();
    let url = inner.root.to_str().unwrap();
    ground.git(["submodule", "--quiet", "add", url, "outer"]);
    ground.commit("outer");
    let taker = ground.taker("state");
    assert_eq!(ground.git(["status", "--porcelain"]), "");
    assert_eq!(taker.snapshot().metadata.dirty, Some(false));
    ground.remove("outer/a/module");
    assert_eq!(taker.snapshot().metadata.dirty, Some(true));
}

#[test]
fn whatever_becomes_of_a_submodule_a_store_long_in_use_agrees_with_git() {
    let (clone, _library) = clone_with_submodules();
    let taker = clone.taker("state");
    let commit = clone.git(["rev-parse", "HEAD"]);
    let mut seen = Vec::new();
    let mut check = |step: &str| {
        let tree = taker.tree();
        assert_eq!(tree, clone.oracle(), "{step}");
        let fresh = clone.taker(&format!("fresh {step}"));
        assert_eq!(tree, fresh.tree(), "{step}");
        seen.push(tree);
    };
    check("clean");
    clone.remove("a/module");
    check("the directory is gone");
    clone.mkdir("a/module");
    check("it is back");
    clone.remove("a/module");
    clone.write("a/module", "a file\n");
    check("a file is in its place");
    clone.remove("a/module");
    clone.symlink("a/module", "../module");
    check("a link is in its place");
    clone.remove("a/module");
    clone.mkfifo("a/module");
    check("a FIFO is in its place");
    clone.remove("a/module");
    clone.mkdir("a/module");
    let info = format!("160000,{commit},a/module");
    clone.git(["update-index", "--cacheinfo", &info]);
    check("the index has another commit");
    clone.remove("a/file");
    check("nothing else is in the directory");
    clone.git(["update-index", "--skip-worktree", "a/module"]);
    check("the index skips it, and it is there");
    clone.remove("a/module");
    check("the index skips it, and it is not there");
    clone.write("a/module", "a file\n");
    check("the index skips it, and a file is there");
    clone.remove("a/module");
    clone.mkdir("a/module");
    clone.git(["update-index", "--no-skip-worktree", "a/module"]);
    check("the index skips it no more");
    clone.git(["update-index", "--force-remove", "a/module"]);
    check("the index has it no more");
    clone.git(["reset", "-q", "--hard"]);
    check("clean again");
    assert_eq!(seen.first(), seen.last());
    seen.sort_unstable();
    seen.dedup();
    assert!(seen.len() > 6, "the steps differ: {seen:?}");
    clone.fsck(&taker);
}

#[test]
fn names_that_git_takes_for_its_own_are_named() {
    let ground = Ground::repository();
    for name in [
        ".GIT",
        ".Git/config",
        "a/.git./x",
        "git~1",
        "a/.g\u{200c}it",
    ] {
        ground.write(name, "x\n");
    }
    let taker = ground.taker("state");
    let snapshot = taker.snapshot();
    let names: Vec<_> = snapshot
        .omissions()
        .iter()
        .map(|o| o.path.to_string())
        .collect();
    assert_eq!(names.len(), 5, "{names:?}");
    assert!(
        omissions(&snapshot)
            .iter()
            .all(|o| o.contains("unrepresentable"))
    );
    ground.fsck(&taker);
}

#[test]
fn the_cap_is_exact_and_tracked_files_are_below_any() {
    let ground = Ground::repository();
    let mut capped = options();
    capped.max_untracked_file_bytes = 10;
    ground.write("at", [b'x'; 10]);
    ground.write("over", [b'x'; 11]);
    ground.symlink("link", "a-target-of-more-than-ten-bytes");
    ground.write("tracked", [b'x'; 12]);
    ground.git(["add", "tracked"]);
    ground.write("tracked", [b'x'; 13]);
    let taker = ground.taker("state");
    let snapshot = taker.snapshot_with(&capped);
    assert_eq!(omissions(&snapshot), ["over too_large 11"]);
    let listing = ground.listing(&taker, &snapshot);
    for name in ["at", "link", "tracked"] {
        assert!(
            listing.contains(&format!("\t{name}\n")),
            "{name} in {listing}"
        );
    }
    let capped_at = |bytes| {
        let mut capped = options();
        capped.max_untracked_file_bytes = bytes;
        capped
    };
    let hash = ground
        .hash_taker("hash-state")
        .snapshot_with(&capped_at(12));
    assert_eq!(omissions(&hash), [".git excluded", "tracked too_large 13"]);
    let unlimited = capped_at(0);
    assert!(omissions(&taker.snapshot_with(&unlimited)).is_empty());
}

#[test]
fn what_the_host_excludes_stays_out_though_its_directory_is_entered() {
    let ground = Ground::repository();
    ground.write("build/tracked", "x\n");
    ground.commit("build");
    ground.write("build/made", "x\n");
    ground.write("build/deep/made", "x\n");
    ground.write("node_modules/a/wanted", "x\n");
    ground.write("node_modules/a/other", "x\n");
    ground.write("node_modules/b", "x\n");
    let mut excluding = options();
    excluding.ignore = IgnoreOptions {
        paths: vec!["build".to_owned(), "node_modules".to_owned()],
        globs: Vec::new(),
    };
    excluding.include = vec![RelPath::new("node_modules/a/wanted").unwrap()];
    for taker in [ground.taker("git-state"), ground.hash_taker("hash-state")] {
        let snapshot = taker.snapshot_with(&with_own_id(&excluding));
        let mut expected = vec![
            "node_modules/a/other excluded 2",
            "node_modules/b excluded 2",
        ];
        if snapshot.backend.as_str() == "git" {
            expected.splice(0..0, ["build/deep excluded", "build/made excluded 2"]);
        } else {
            expected.splice(0..0, [".git excluded", "build excluded"]);
        }
        assert_eq!(omissions(&snapshot), expected);
    }
}

#[test]
fn no_option_asks_for_a_repositorys_own() {
    let ground = Ground::repository();
    let mut asking = options();
    asking.include = vec![
        RelPath::new(".git/config").unwrap(),
        RelPath::new(".git").unwrap(),
    ];
    let snapshot = ground.hash_taker("hash-state").snapshot_with(&asking);
    assert_eq!(omissions(&snapshot), [".git excluded"]);
    let taker = ground.taker("state");
    let snapshot = taker.snapshot_with(&with_own_id(&asking));
    assert_eq!(snapshot.tree, Some(ground.oracle()));
}

#[test]
fn an_ignored_path_is_captured_when_the_host_asks_for_it() {
    let ground = Ground::repository();
    ground.write(".gitignore", "/out\n*.log\n");
    ground.write("out/wanted/deep", "x\n");
    ground.write("out/other", "x\n");
    ground.write("a.log", "x\n");
    let mut asking = options();
    asking.include = vec![
        RelPath::new("out/wanted").unwrap(),
        RelPath::new("a.log").unwrap(),
    ];
    let taker = ground.taker("state");
    let snapshot = taker.snapshot_with(&asking);
    assert_eq!(omissions(&snapshot), ["out/other ignored 2"]);
    let listing = ground.listing(&taker, &snapshot);
    assert!(
        listing.contains("out/wanted/deep") && listing.contains("a.log"),
        "{listing}"
    );
}

#[test]
fn within_a_session_a_new_rule_hides_nothing_that_was_captured() {
    let ground = Ground::repository();
    ground.write("notes/old", "old\n");
    ground.write("other", "other\n");
    let taker = ground.taker("state");
    let session = |name: &str| {
        let mut options = options();
        options.owner = Owner {
            session_id: name.to_owned(),
            run_id: None,
        };
        options
    };
    let before = taker.snapshot_with(&session("one"));
    ground.write(".gitignore", "*\n");
    ground.write("notes/old", "edited\n");
    ground.write("notes/new", "new\n");
    ground.remove("other");
    let after = taker.snapshot_with(&session("one"));
    assert_eq!(
        changed(&taker, &before, &after),
        ["notes/old", "other"],
        "the edit and the deletion are seen"
    );
    assert_eq!(
        omissions(&after),
        [".gitignore ignored 2", "notes/new ignored 4"],
        "a new file is named"
    );
    let elsewhere = taker.snapshot_with(&session("two"));
    assert_eq!(
        omissions(&elsewhere),
        [".gitignore ignored 2", "notes ignored"],
        "another session has not captured it"
    );
}

#[test]
fn a_workspace_below_the_top_is_all_that_is_looked_at() {
    let ground = Ground::repository();
    ground.write(".gitignore", "*.log\n/src/made\n");
    ground.write("src/.gitignore", "!kept.log\n");
    ground.write("src/a.log", "x\n");
    ground.write("src/kept.log", "x\n");
    ground.write("src/made", "x\n");
    ground.mkfifo("fifo");
    let taker = ground.taker_at(&ground.root.join("src"), "state", Default::default());
    let snapshot = taker.snapshot();
    assert_eq!(omissions(&snapshot), ["a.log ignored 2", "made ignored 2"]);
    ground.git(["add", "-A"]);
    let tree = ground.git(["write-tree"]);
    assert_eq!(
        snapshot.tree,
        Some(ground.git(["rev-parse", &format!("{tree}:src")]))
    );
}

#[test]
fn deep_directories_are_captured_and_bottomless_ones_refused() {
    let ground = Ground::repository();
    // Step by step, as the path is longer than the kernel takes at once.
    let make = |depth: usize| {
        let mut at = OwnedFd::from(File::open(&ground.root).unwrap());
        for _ in 0..depth {
            match rustix::fs::mkdirat(&at, "dd", Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => panic!("{errno}"),
            }
            at = rustix::fs::openat(&at, "dd", OFlags::DIRECTORY, Mode::empty()).unwrap();
        }
        let flags = OFlags::CREATE | OFlags::WRONLY;
        let leaf = rustix::fs::openat(at, "leaf", flags, Mode::RUSR).unwrap();
        rustix::io::write(leaf, b"x\n").unwrap();
    };
    make(1500);
    for taker in [ground.taker("git-state"), ground.hash_taker("hash-state")] {
        let snapshot = taker.snapshot();
        assert_eq!(snapshot.metadata.files, 4);
        assert_eq!(taker.snapshot().metadata.files_hashed, 0);
    }
    make(4200);
    for taker in [ground.taker("git-state"), ground.hash_taker("hash-state")] {
        let error = taker.try_snapshot(&options()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
    }
}

/// The directory that lies so many levels deep below `root`, made step by step, as its path is
/// longer than the kernel takes at once.
fn at_depth(root: &std::path::Path, depth: usize) -> OwnedFd {
    let mut at = OwnedFd::from(File::open(root).unwrap());
    for _ in 0..depth {
        match rustix::fs::mkdirat(&at, "d", Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => panic!("{errno}"),
        }
        at = rustix::fs::openat(&at, "d", OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    at
}

fn write_leaf(root: &std::path::Path, depth: usize, text: &[u8]) {
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::TRUNC;
    let mode = Mode::RUSR | Mode::WUSR;
    let leaf = rustix::fs::openat(at_depth(root, depth), "leaf", flags, mode).unwrap();
    rustix::io::write(leaf, text).unwrap();
}

fn read_leaf(root: &std::path::Path, depth: usize) -> Vec<u8> {
    let at = at_depth(root, depth);
    let leaf = rustix::fs::openat(at, "leaf", OFlags::RDONLY, Mode::empty()).unwrap();
    let mut text = vec![0; 100];
    let length = rustix::io::read(leaf, &mut text).unwrap();
    text.truncate(length);
    text
}

/// Also of a tree that no call which recurses could remove.
fn remove_deep(ground: &Ground) {
    let removed = std::process::Command::new("rm")
        .args(["-rf", "d"])
        .current_dir(&ground.root)
        .status();
    assert!(removed.unwrap().success());
}

/// So little that what takes some hundred bytes of it for each level does not end well.
const SMALL_STACK_BYTES: usize = 512 * 1024;

#[test]
fn what_lies_4096_directories_deep_is_captured_compared_proven_and_put_back() {
    let story = || {
        for depth in [101, 4096] {
            let ground = Ground::repository();
            for (mut taker, state) in [
                (ground.taker("git-state"), "git"),
                (ground.hash_taker("hash-state"), "hash"),
            ] {
                let context = format!("{depth} levels, {state}");
                let options = || options().retain_content(true);
                write_leaf(&ground.root, depth, b"before\n");
                let before = taker.snapshot_with(&options());
                assert_eq!(before.metadata.files, 4, "{context}");
                write_leaf(&ground.root, depth, b"after it\n");
                let after = taker.snapshot_with(&options());
                let diff = taker.backend.diff(
                    &Operation::unbounded(),
                    &taker.workspace,
                    &before,
                    &after,
                    &DiffOptions::default(),
                    &mut std::io::sink(),
                );
                let diff = diff.unwrap();
                assert_eq!(diff.files_changed, 1, "{context}");
                for snapshot in [&before, &after] {
                    let proof = taker
                        .backend
                        .verify(&Operation::unbounded(), &taker.workspace, &[snapshot])
                        .remove(0)
                        .unwrap();
                    assert_eq!(proof.problems, [], "{context}");
                }
                let goal = RestoreGoal::Snapshot {
                    snapshot: before,
                    paths: Vec::new(),
                };
                let guard = RestoreOptions::new(options());
                let outcome = taker.backend.restore(
                    &Operation::unbounded(),
                    &mut taker.workspace,
                    &goal,
                    &guard,
                );
                assert_eq!(outcome.unwrap().restored.len(), 1, "{context}");
                assert_eq!(read_leaf(&ground.root, depth), b"before\n", "{context}");
            }
            remove_deep(&ground);
        }
    };
    let thread = std::thread::Builder::new().stack_size(SMALL_STACK_BYTES);
    thread.spawn(story).unwrap().join().unwrap();
}

#[test]
fn a_tree_of_100_000_levels_is_refused_and_touches_nothing() {
    let story = || {
        let ground = Ground::repository();
        let takers = [ground.taker("git-state"), ground.hash_taker("hash-state")];
        let options = || options().retain_content(true);
        let before = takers
            .each_ref()
            .map(|taker| taker.snapshot_with(&options()));
        ground.write("README", "edited\n");
        write_leaf(&ground.root, 100_000, b"x\n");
        for (mut taker, snapshot) in takers.into_iter().zip(before) {
            let error = taker.try_snapshot(&options()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
            let goal = RestoreGoal::Snapshot {
                snapshot,
                paths: Vec::new(),
            };
            let guard = RestoreOptions::new(options());
            let refused =
                taker
                    .backend
                    .restore(&Operation::unbounded(), &mut taker.workspace, &goal, &guard);
            let error = refused.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
            assert!(!error.touched());
            let readme = fs::read_to_string(ground.path("README")).unwrap();
            assert_eq!(readme, "edited\n");
        }
        remove_deep(&ground);
    };
    let thread = std::thread::Builder::new().stack_size(SMALL_STACK_BYTES);
    thread.spawn(story).unwrap().join().unwrap();
}

#[test]
fn rules_reach_down_to_the_deepest_file_that_git_can_track() {
    let ground = Ground::repository();
    let deep = "d/".repeat(2000);
    ground.write(format!("{deep}tracked"), "x\n");
    ground.write(".gitignore", "*.log\n");
    ground.write(".gitattributes", "*.txt text\n");
    ground.commit("deep");
    ground.settle();
    ground.write(format!("{deep}a.log"), "x\n");
    ground.write(format!("{deep}untracked"), "x\n");
    let taker = ground.taker("state");
    let snapshot = taker.snapshot();
    assert_eq!(snapshot.metadata.files_hashed, 1, "only the new one");
    assert_eq!(omissions(&snapshot), [format!("{deep}a.log ignored 2")]);
    assert_eq!(snapshot.metadata.files, 7);
}

fn with_own_id(options: &SnapshotOptions) -> SnapshotOptions {
    let mut own = options.clone();
    own.id = stillframe_backends::SnapshotId::random();
    own
}
