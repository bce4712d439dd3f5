//! The facts of a snapshot: what it says, what it costs, and that nobody notices it.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::fs::symlink;
use std::path::Path;

use stillframe_backends::{
    BackendKind, DiffOptions, ErrorKind, IgnoreOptions, Operation, Snapshot, StateDir, Strategy,
    Workspace, detect,
};

use crate::ground::{
    Ground, LOCK_TIMEOUT, Taker, in_another_process, omissions, options, other_process,
};

#[test]
fn a_repository_is_gits_and_a_plain_directory_is_not() {
    let repository = Ground::repository();
    let below = repository.root.join("src");
    let plain = Ground::plain();
    for (ground, root, kind, word) in [
        (&repository, &repository.root, BackendKind::Git, "work tree"),
        (&repository, &below, BackendKind::Git, "work tree"),
        (
            &plain,
            &plain.root,
            BackendKind::Hash,
            "not in a git work tree",
        ),
    ] {
        let state = StateDir::open(ground.beside("state")).unwrap();
        let workspace = Workspace::open(root, &state).unwrap();
        let found = detect(&workspace, Strategy::Auto).unwrap();
        assert_eq!(found.kind(), kind);
        assert!(found.reason.contains(word), "{}", found.reason);
        assert_eq!(
            fs::read_dir(state.path()).unwrap().count(),
            0,
            "no store was made"
        );
    }
}

#[test]
fn what_cannot_be_a_workspace_is_refused_before_anything_is_made() {
    let ground = Ground::plain();
    ground.write("file", "x\n");
    let state = StateDir::open(ground.beside("state")).unwrap();
    for path in [Path::new(""), &ground.path("file"), &ground.path("nothing")] {
        let error = Workspace::open(path, &state).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOptions, "{error}");
    }
    assert!("fast".parse::<Strategy>().is_err());
    let workspace = Workspace::open(&ground.root, &state).unwrap();
    let error = detect(&workspace, Strategy::Git).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert_eq!(
        fs::read_dir(state.path()).unwrap().count(),
        0,
        "no store was made"
    );

    let inside = StateDir::open(ground.root.join("state")).unwrap();
    let error = Workspace::open(&ground.root, &inside).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOptions, "{error}");
}

#[test]
fn a_repositorys_own_files_are_no_workspace_unless_as_plain_files() {
    let ground = Ground::repository();
    ground.git(["init", "-q", "--bare", "bare.git"]);
    ground.git(["init", "-q", "--bare", "old.git"]);
    fs::remove_file(ground.path("old.git/HEAD")).unwrap();
    symlink("refs/heads/main", ground.path("old.git/HEAD")).unwrap();
    ground.git(["worktree", "add", "-q", "../linked"]);
    let linked = ground.path(".git/worktrees/linked");
    for git_dir in [
        ground.path("bare.git"),
        ground.path("bare.git/hooks"),
        ground.path("old.git/objects/info"),
        ground.path(".git"),
        ground.path(".git/refs/heads"),
        linked,
    ] {
        // git is the judge of what is no work tree.
        let judged = ground.git_in(&git_dir, ["rev-parse", "--is-inside-work-tree"], b"");
        assert_eq!(judged.trim_ascii(), b"false", "{}", git_dir.display());
        let state = StateDir::open(ground.beside("state")).unwrap();
        let workspace = Workspace::open(&git_dir, &state).unwrap();
        for strategy in [Strategy::Auto, Strategy::Git] {
            let error = detect(&workspace, strategy).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.to_string().contains("no work tree"), "{error}");
        }
        let asked = detect(&workspace, Strategy::Hash).unwrap();
        assert_eq!(asked.kind(), BackendKind::Hash);
        let made = fs::read_dir(state.path()).unwrap().count();
        assert_eq!(made, 0, "no store was made");
    }
    // What merely looks a little like it is a directory as any other.
    ground.write("plain/HEAD", "ref: refs/heads/main\n");
    ground.write("plain/objects/x", "x\n");
    let elsewhere = Ground::plain();
    elsewhere.write("HEAD", "ref: refs/heads/main\n");
    elsewhere.write("objects/x", "x\n");
    let state = StateDir::open(ground.beside("state")).unwrap();
    for (path, kind) in [
        (ground.path("plain"), BackendKind::Git),
        (elsewhere.root.clone(), BackendKind::Hash),
    ] {
        let workspace = Workspace::open(&path, &state).unwrap();
        assert_eq!(detect(&workspace, Strategy::Auto).unwrap().kind(), kind);
    }
}

#[test]
fn a_snapshot_is_invisible() {
    let ground = Ground::repository();
    ground.write("README", "edited\n");
    ground.write("staged", "staged\n");
    ground.git(["add", "staged"]);
    ground.write("staged", "edited again\n");
    ground.write("untracked", "u\n");
    ground.git(["stash", "-q"]);
    ground.git(["stash", "apply", "-q"]);
    let before = ground.view(&ground.root);
    for taker in [ground.taker("git-state"), ground.hash_taker("hash-state")] {
        let snapshot = taker.snapshot();
        assert!(snapshot.metadata.includes_untracked);
        assert!(!snapshot.reference.is_empty());
        taker.snapshot();
    }
    assert_eq!(
        ground.view(&ground.root),
        before,
        "every byte, inode and time, in the worktree and below .git"
    );
}

#[test]
fn a_clean_worktree_has_the_tree_of_head() {
    let ground = Ground::repository();
    let snapshot = ground.taker("state").snapshot();
    assert_eq!(snapshot.metadata.dirty, Some(false));
    assert_eq!(
        snapshot.tree,
        Some(ground.git(["rev-parse", "HEAD^{tree}"]))
    );
    assert_eq!(
        snapshot.metadata.head_ref,
        Some(ground.git(["rev-parse", "HEAD"]))
    );
    assert_eq!(snapshot.metadata.branch.as_deref(), Some("main"));
    assert_eq!(snapshot.metadata.files, 3);
    ground.write("new", "x\n");
    assert_eq!(ground.taker("other").snapshot().metadata.dirty, Some(true));
}

#[test]
fn head_may_be_unborn_or_detached() {
    let ground = Ground::unborn();
    let empty = ground.taker("empty").snapshot();
    assert_eq!(empty.metadata.dirty, Some(false), "nothing was captured");
    ground.write("file", "x\n");
    let snapshot = ground.taker("state").snapshot();
    assert_eq!(snapshot.metadata.head_ref, None);
    assert_eq!(snapshot.metadata.branch.as_deref(), Some("main"));
    assert_eq!(snapshot.metadata.dirty, Some(true));
    ground.commit("first");
    ground.git(["checkout", "-q", "--detach"]);
    let detached = ground.taker("state").snapshot();
    assert_eq!(detached.metadata.branch, None);
    assert_eq!(
        detached.metadata.head_ref,
        Some(ground.git(["rev-parse", "HEAD"]))
    );
}

#[test]
fn a_clean_checkout_is_taken_over_unread() {
    let ground = Ground::repository();
    ground.settle();
    let taker = ground.taker("state");
    let first = taker.snapshot();
    assert_eq!(
        (first.metadata.files_hashed, first.metadata.bytes_read),
        (0, 0)
    );
    assert_eq!(first.tree, Some(ground.oracle()));
    ground.fsck(&taker);
}

#[test]
fn an_unchanged_tree_is_captured_without_reading_a_byte() {
    let ground = Ground::repository();
    ground.write("untracked", "u\n");
    ground.symlink("link", "README");
    for taker in [ground.taker("git-state"), ground.hash_taker("hash-state")] {
        // However short a time ago the files were written.
        let first = taker.snapshot();
        for _ in 0..2 {
            let again = taker.snapshot();
            assert!(again.same_content(&first));
            assert_ne!(again.id, first.id, "each is a record of its own");
            assert_eq!(again.metadata.files_hashed, 0, "{}", again.backend);
            assert_eq!(again.metadata.bytes_read, 0, "{}", again.backend);
        }
    }
}

#[test]
fn an_edit_of_the_same_size_is_seen_whenever_it_comes() {
    let ground = Ground::repository();
    for taker in [ground.taker("git-state"), ground.hash_taker("hash-state")] {
        ground.write("a", "0\n");
        let mut last = taker.snapshot();
        for n in 1..=9 {
            ground.write("a", format!("{n}\n"));
            // Also behind the back of the modification time.
            let time = fs::metadata(ground.path("README"))
                .unwrap()
                .modified()
                .unwrap();
            let file = fs::File::options()
                .write(true)
                .open(ground.path("a"))
                .unwrap();
            file.set_modified(time).unwrap();
            let next = taker.snapshot();
            assert!(!next.same_content(&last), "edit {n} on {}", next.backend);
            if next.backend == BackendKind::Git {
                assert_eq!(next.tree, Some(ground.oracle()), "edit {n}");
            }
            last = next;
        }
    }
}

#[test]
fn a_tracked_file_that_a_rule_ignores_is_captured() {
    let ground = Ground::repository();
    ground.write("logs/kept.log", "tracked\n");
    ground.git(["add", "logs/kept.log"]);
    ground.write(".gitignore", "*.log\n/logs\n");
    ground.write("logs/other", "ignored\n");
    let taker = ground.taker("state");
    let snapshot = taker.snapshot();
    assert_eq!(snapshot.tree, Some(ground.oracle()));
    assert!(ground.listing(&taker, &snapshot).contains("logs/kept.log"));
    assert_eq!(omissions(&snapshot), ["logs/other ignored 8"]);
}

#[test]
fn snapshots_outlive_the_housekeeping_of_the_repository() {
    let ground = Ground::repository();
    let taker = ground.taker("state");
    let before = taker.snapshot();
    ground.write("README", "edited\n");
    ground.git(["commit", "-qam", "second"]);
    let after = taker.snapshot();
    ground.git(["checkout", "-q", "--orphan", "other"]);
    ground.git(["rm", "-rqf", "."]);
    ground.git(["branch", "-D", "main"]);
    ground.git(["reflog", "expire", "--expire=now", "--all"]);
    ground.git(["gc", "-q", "--prune=now"]);
    ground.remove(".git");
    for snapshot in [&before, &after] {
        let found = taker
            .backend
            .verify(&Operation::unbounded(), &taker.workspace, &[snapshot])
            .remove(0)
            .unwrap();
        assert!(found.is_restorable(), "{found:?}");
    }
    assert_eq!(changed(&taker, &before, &after), ["README"]);
    ground.fsck(&taker);
}

#[test]
fn inherited_variables_of_gits_have_no_effect() {
    const NAME: &str = "facts::inherited_variables_of_gits_have_no_effect";
    if let Some(root) = other_process() {
        let state = StateDir::open(root.parent().unwrap().join("state")).unwrap();
        let workspace = Workspace::open(&root, &state).unwrap();
        let backend = detect(&workspace, Strategy::Auto).unwrap().backend;
        let workspace = workspace
            .lock(&Operation::unbounded(), LOCK_TIMEOUT)
            .unwrap();
        let snapshot = backend
            .snapshot(&Operation::unbounded(), &workspace, &options())
            .unwrap();
        fs::write(root.parent().unwrap().join("tree"), snapshot.tree.unwrap()).unwrap();
        return;
    }
    let ground = Ground::repository();
    let other = Ground::repository();
    other.write("elsewhere", "x\n");
    let before = other.view(&other.root);
    let status = in_another_process(&[], NAME, &ground.root)
        .env("GIT_DIR", other.path(".git"))
        .env("GIT_WORK_TREE", &other.root)
        .env("GIT_INDEX_FILE", other.path(".git/index"))
        .env("GIT_OBJECT_DIRECTORY", other.path(".git/objects"))
        .env("GIT_CEILING_DIRECTORIES", ground.root.parent().unwrap())
        .status();
    assert!(status.unwrap().success());
    let tree = fs::read_to_string(ground.beside("tree")).unwrap();
    assert_eq!(tree, ground.oracle());
    assert_eq!(other.view(&other.root), before);
}

#[test]
fn a_manifest_has_what_no_name_and_no_rule_excludes() {
    let ground = Ground::plain();
    let taker = ground.hash_taker("state");
    let mut by_name = options();
    by_name.ignore = IgnoreOptions {
        paths: vec!["vendor".to_owned(), "logs".to_owned(), "x/y".to_owned()],
        globs: vec!["*.log".to_owned(), "**/*.bak".to_owned()],
    };
    let empty = taker.snapshot();
    for path in [
        ".git/config",
        "deps/a",
        "_build/a",
        "x/node_modules/y/a",
        "plain",
        "vendor/a",
        "x/vendor/a",
        "logs/a",
        "top.log",
        "x/nested.log",
        "a.bak",
        "x/y/a.bak",
        "x/y/a",
        "x/z",
    ] {
        ground.write(path, path);
    }
    let defaults = taker.snapshot();
    assert_eq!(
        changed(&taker, &empty, &defaults),
        [
            "a.bak",
            "logs/a",
            "plain",
            "top.log",
            "vendor/a",
            "x/nested.log",
            "x/vendor/a",
            "x/y/a",
            "x/y/a.bak",
            "x/z",
        ]
    );
    assert_eq!(
        omissions(&defaults),
        [
            ".git excluded",
            "_build excluded",
            "deps excluded",
            "x/node_modules excluded"
        ]
    );
    let ruled = taker.snapshot_with(&by_name);
    // `*.log` has no slash, so it is tried on names at any depth.
    assert_eq!(changed(&taker, &empty, &ruled), ["plain", "x/z"]);
}

#[test]
fn hash_snapshots_of_two_directories_can_be_compared() {
    let one = Ground::plain();
    one.write("same", "x\n");
    one.write("here", "x\n");
    let other_root = one.beside("other");
    fs::create_dir(&other_root).unwrap();
    fs::write(other_root.join("same"), "x\n").unwrap();
    fs::write(other_root.join("there"), "x\n").unwrap();
    let here = one.hash_taker("state");
    let there = one.taker_at(&other_root, "state", Strategy::Hash);
    let (from, to) = (here.snapshot(), there.snapshot());
    assert_eq!(changed(&here, &from, &to), ["here", "there"]);
}

#[test]
fn an_id_names_one_snapshot_for_ever() {
    let ground = Ground::repository();
    for taker in [ground.taker("git-state"), ground.hash_taker("hash-state")] {
        let options = options();
        let first = taker.snapshot_with(&options);
        ground.write("README", "edited\n");
        let error = taker.try_snapshot(&options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOptions, "{error}");
        assert_eq!(
            taker
                .backend
                .list(&Operation::unbounded(), &taker.workspace)
                .unwrap()
                .snapshots,
            [first]
        );
    }
}

#[test]
fn a_snapshot_that_was_forgotten_is_not_found() {
    let ground = Ground::repository();
    for mut taker in [ground.taker("git-state"), ground.hash_taker("hash-state")] {
        let (first, second) = (taker.snapshot(), taker.snapshot());
        let backend = taker.backend.clone();
        backend
            .forget(
                &Operation::unbounded(),
                &mut taker.workspace,
                std::slice::from_ref(&first.id),
                &[],
            )
            .unwrap();
        let error = taker
            .backend
            .diff(
                &Operation::unbounded(),
                &taker.workspace,
                &first,
                &second,
                &DiffOptions::default(),
                &mut Vec::new(),
            )
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    }
}

#[test]
fn a_store_that_lost_its_objects_heals_with_the_next_capture() {
    let ground = Ground::repository();
    let taker = ground.taker("state");
    ground.write("new", "x\n");
    taker.snapshot();
    fs::remove_dir_all(taker.workspace.store_path().join("git")).unwrap();
    // Either at once or at the second try; never a snapshot that cannot be put back.
    let snapshot = match taker.try_snapshot(&options()) {
        Ok(snapshot) => snapshot,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            taker.snapshot()
        }
    };
    assert_eq!(snapshot.tree, Some(ground.oracle()));
    let found = taker
        .backend
        .verify(&Operation::unbounded(), &taker.workspace, &[&snapshot])
        .remove(0)
        .unwrap();
    assert!(found.is_restorable(), "{found:?}");
}

#[test]
fn a_cache_that_is_damaged_or_gone_changes_nothing() {
    let ground = Ground::repository();
    for taker in [ground.taker("git-state"), ground.hash_taker("hash-state")] {
        let first = taker.snapshot();
        let caches: Vec<_> = fs::read_dir(taker.workspace.store_path())
            .unwrap()
            .map(|e| e.unwrap().path())
            .filter(|p| p.extension().is_some_and(|e| e == "stat-cache"))
            .collect();
        assert_eq!(caches.len(), 1, "the cache of {}", first.backend);
        let bytes = fs::read(&caches[0]).unwrap();
        for damaged in [&b""[..], b"garbage", &bytes[..bytes.len() / 2]] {
            fs::write(&caches[0], damaged).unwrap();
            assert!(taker.snapshot().same_content(&first));
        }
        fs::remove_file(&caches[0]).unwrap();
        assert!(taker.snapshot().same_content(&first));
    }
}

#[test]
fn a_manifest_is_written_once_and_again_only_where_it_is_damaged() {
    let ground = Ground::repository();
    let taker = ground.hash_taker("state");
    let first = taker.snapshot();
    let path = taker.workspace.store_path().join("hash/manifests");
    let path = path.join(&first.reference);
    let inode = || fs::metadata(&path).unwrap().ino();
    let (written, bytes) = (inode(), fs::read(&path).unwrap());
    assert!(taker.snapshot().same_content(&first));
    assert_eq!(inode(), written, "the one that is there serves both");
    for damaged in [&b""[..], &bytes[..bytes.len() - 1], b"sfmanif\n"] {
        fs::write(&path, damaged).unwrap();
        assert!(taker.snapshot().same_content(&first));
        assert!(fs::read(&path).unwrap() == bytes, "it is whole again");
    }
}

/// The paths at which two snapshots differ.
pub(crate) fn changed(taker: &Taker, from: &Snapshot, to: &Snapshot) -> Vec<String> {
    let diff = taker
        .backend
        .diff(
            &Operation::unbounded(),
            &taker.workspace,
            from,
            to,
            &DiffOptions::default(),
            &mut Vec::new(),
        )
        .unwrap();
    diff.changed_paths.iter().map(ToString::to_string).collect()
}
