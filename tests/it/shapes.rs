//! One capture and one round trip for every shape of repository.

use std::collections::BTreeSet;

use stillframe_tests::shapes::{self, Backend};
use stillframe_tests::{Snap, TestWorkspace, json, mutate, oracle, view};

/// A capture of the shape has the tree that git gives, or, for the hash backend, every file; it
/// touches nothing; another one finds the same.
fn capture_is_exact_and_invisible(name: &str) {
    let shape = shapes::named(name);
    let ws = (shape.make)();
    let snapshot = ws.untouched(|| ws.snapshot());
    match shape.backend {
        Backend::Git => {
            assert_eq!(snapshot.json["backend"], "git", "{}", snapshot.json);
            same_tree(&ws, &snapshot);
        }
        Backend::Hash => assert_eq!(snapshot.json["backend"], "hash", "{}", snapshot.json),
    }
    accounts_for_everything(&ws, &snapshot);
    ws.settle();
    // A file written in the tick of the first capture may have to be read a second time.
    ws.snapshot();
    let again = ws.untouched(|| ws.snapshot());
    assert_eq!(again.json["tree"], snapshot.json["tree"]);
    assert_eq!(again.json["omissions"], snapshot.json["omissions"]);
    if !reads_every_time(name) {
        assert_eq!(again.count("files_hashed"), 0, "nothing has changed");
        assert_eq!(again.count("bytes_read"), 0, "nothing has changed");
    }
}

/// Shapes whose attributes name a filter or an encoding: such files may be read on every capture.
fn reads_every_time(name: &str) -> bool {
    [
        "filter",
        "required_filter_missing",
        "working_tree_encoding",
        "lfs_pointer",
    ]
    .contains(&name)
}

fn same_tree(ws: &TestWorkspace, snapshot: &Snap) {
    let omitted: Vec<String> = snapshot
        .omissions()
        .into_iter()
        .filter(|(path, reason)| reason != "ignored" && reason != "git_dir" && !path.is_empty())
        .filter(|(_, reason)| reason != "sparse" && reason != "special")
        .map(|(path, _)| path)
        .collect();
    let expected = oracle::raw_listing(ws);
    if omitted.is_empty() && expected.tree == snapshot.tree() {
        return;
    }
    // Shown entry by entry; a submodule may be one omission in place of its files.
    let is_omitted = |path: &[u8]| {
        let path = path.escape_ascii().to_string();
        omitted
            .iter()
            .any(|o| path == *o || path.starts_with(&format!("{o}/")))
    };
    let lines = |entries: Vec<oracle::Entry>| -> BTreeSet<String> {
        entries
            .into_iter()
            .filter(|e| !is_omitted(&e.path))
            .map(|e| format!("{} {} {}", e.mode, e.id, e.path.escape_ascii()))
            .collect()
    };
    let stored = lines(oracle::stored_listing(ws, snapshot.tree()).entries);
    assert_eq!(stored, lines(expected.entries), "the tree is that of git");
}

/// Captured plus omitted is what the naive walker finds.
fn accounts_for_everything(ws: &TestWorkspace, snapshot: &Snap) {
    let view = view::worktree(ws.root());
    let is_directory = |path: &str| view.line_of(path).starts_with("04");
    let files: Vec<String> = view
        .paths()
        .into_iter()
        .filter(|p| !is_directory(p))
        .collect();
    let captured: BTreeSet<String> = match snapshot.json["tree"].as_str() {
        Some(tree) if tree != oracle::EMPTY_TREE => oracle::stored_listing(ws, tree)
            .entries
            .iter()
            .map(|e| e.path.escape_ascii().to_string())
            .collect(),
        _ => BTreeSet::new(),
    };
    if snapshot.json["backend"] == "git" {
        for path in &files {
            assert!(
                captured.contains(path) || snapshot.covered(path).is_some(),
                "{path} is neither captured nor named: {}",
                snapshot.json
            );
        }
    } else {
        let omitted = files
            .iter()
            .filter(|p| snapshot.covered(p).is_some())
            .count();
        assert_eq!(
            snapshot.count("files") as usize + omitted,
            files.len(),
            "{}",
            snapshot.json
        );
    }
}

/// Whatever is changed after a capture, a restore puts everything back, a second one has nothing
/// to do, and the guard leads back to the changes.
fn restore_gives_back_every_path(name: &str) {
    let shape = shapes::named(name);
    let ws = (shape.make)();
    let options: &[&str] = match shape.backend {
        Backend::Git => &[],
        Backend::Hash => &["--retain-content"],
    };
    let snapshot = ws.snapshot_with(options);
    let before = view::worktree(ws.root());
    let repository = view::git_dir(ws.root());

    // Where rules ignore nearly everything, new files would be ignored ones, and stay.
    let ignoring = [
        "everything_ignored",
        "tracked_but_ignored",
        "nested_gitignore_with_negation",
    ];
    let files = captured_files(&ws, &snapshot);
    if ignoring.contains(&name) {
        let rules = |path: &Vec<u8>| path.ends_with(b".gitignore");
        let files: Vec<_> = files.into_iter().filter(|p| !rules(p)).collect();
        mutate::in_place(&ws, &files);
    } else {
        mutate::everything(&ws, &files);
    }
    let changed = view::worktree(ws.root());
    assert_ne!(before, changed);
    let outcome = ws.restore(&snapshot);
    view::same(
        &before,
        &view::worktree(ws.root()),
        "every byte, mode and link is back",
    );
    view::same(
        &repository,
        &view::git_dir(ws.root()),
        "the repository is not touched",
    );
    assert_eq!(
        json::names_in(&outcome["skipped"]),
        [] as [&str; 0],
        "{outcome}"
    );

    ws.settle();
    let times = view::times(ws.root());
    let idle = ws.restore(&snapshot);
    assert_eq!(
        json::names(&idle["restored"]),
        [] as [&str; 0],
        "nothing is left to do"
    );
    assert_eq!(
        times,
        view::times(ws.root()),
        "the second restore changes nothing"
    );

    let guard = outcome["guard_snapshot"]
        .as_str()
        .expect("a restore names its guard");
    ws.restore_id(guard);
    view::same(&changed, &view::worktree(ws.root()), "the guard leads back");
}

/// A failing run that edits, removes and adds, and changes the index: afterwards files, index, HEAD
/// and refs are as before.
fn a_failed_run_is_taken_back(name: &str) {
    let shape = shapes::named(name);
    let ws = (shape.make)();
    let options: &[&str] = match shape.backend {
        Backend::Git => &["--rollback-on-failure"],
        Backend::Hash => &["--rollback-on-failure", "--retain-content"],
    };
    // The hash backend has no repository to put back.
    let places = match shape.backend {
        Backend::Git => view::GitPlaces::find(ws.root()),
        Backend::Hash => None,
    };
    let repository = |name: &str| {
        let places = places.as_ref()?;
        let is_common = name != "index" && name != "HEAD";
        let dir = if is_common {
            &places.common_dir
        } else {
            &places.git_dir
        };
        Some(view::worktree(dir).line(name).map(str::to_owned))
    };
    let git_state = || {
        let files = ["index", "HEAD", "packed-refs", "config"].map(repository);
        let refs = places
            .as_ref()
            .map(|p| view::worktree(&p.common_dir.join("refs")));
        (files, refs)
    };
    let snapshot = ws.snapshot_with(&options[1..]);
    let captured = captured_files(&ws, &snapshot);
    // A shell writes through a link, and some lead out of the workspace.
    let is_file = |path: &str| ws.exists(path) && ws.stat(path).is_file();
    let is_plain = |path: &&Vec<u8>| {
        let path = String::from_utf8_lossy(path).into_owned();
        !path.contains(".git") && !path.contains('\'') && is_file(&path)
    };
    let mut plain = captured.iter().filter(is_plain);
    let mut script = String::from("echo new > zz-new; mkdir -p zz/deep; echo new > zz/deep/new; ");
    for command in ["rm -f", "echo edited >"] {
        if let Some(path) = plain.next() {
            script.push_str(&format!(
                "{command} './{}'; ",
                String::from_utf8_lossy(path)
            ));
        }
    }
    // Some shapes do not let git add; the files are taken back all the same.
    script.push_str("GIT_CONFIG_NOSYSTEM=1 git add zz-new 2>/dev/null; exit 1");

    let before = view::worktree(ws.root());
    let state = git_state();
    let run = ws.run(options, &script).exits(1).json();
    assert_eq!(run["workspace"]["rollback"]["status"], "completed", "{run}");
    assert!(run["workspace"]["rollback"]["error"].is_null(), "{run}");
    let left = json::names(&run["workspace"]["rollback"]["leftover_ignored"]);
    let mut after = view::worktree(ws.root());
    for path in &left {
        after = after.without(path);
    }
    view::same(&before, &after, "files as before, but for what is ignored");
    assert!(state == git_state(), "index, HEAD and refs are as before");
}

/// Paths on disk that the snapshot captured, in the same order every time.
fn captured_files(ws: &TestWorkspace, snapshot: &Snap) -> Vec<Vec<u8>> {
    if let Some(tree) = snapshot.json["tree"].as_str() {
        if tree == oracle::EMPTY_TREE {
            return Vec::new();
        }
        let listing = oracle::stored_listing(ws, tree);
        return listing.entries.into_iter().map(|e| e.path).collect();
    }
    let mut paths = Vec::new();
    for entry in walkdir::WalkDir::new(ws.root())
        .min_depth(1)
        .sort_by_file_name()
    {
        let entry = entry.unwrap();
        let rel = entry.path().strip_prefix(ws.root()).unwrap();
        let bytes = std::os::unix::ffi::OsStrExt::as_bytes(rel.as_os_str()).to_vec();
        let omitted = snapshot
            .covered(&bytes.escape_ascii().to_string())
            .is_some();
        if !entry.file_type().is_dir() && !omitted {
            paths.push(bytes);
        }
    }
    paths
}

macro_rules! shapes {
    ($($name:ident)*) => {
        $(
            mod $name {
                #[test]
                fn capture_is_exact_and_invisible() {
                    super::capture_is_exact_and_invisible(stringify!($name));
                }

                #[test]
                fn restore_gives_back_every_path() {
                    super::restore_gives_back_every_path(stringify!($name));
                }

                #[test]
                fn a_failed_run_is_taken_back() {
                    super::a_failed_run_is_taken_back(stringify!($name));
                }
            }
        )*

        #[test]
        fn every_shape_is_tested() {
            let tested: &[&str] = &[$(stringify!($name)),*];
            for shape in shapes::SHAPES {
                assert!(tested.contains(&shape.name), "{} is not tested", shape.name);
            }
        }
    };
}

shapes! {
    clean
    dirty
    unborn
    unborn_and_staged
    unborn_and_empty
    empty_tree
    detached
    branch_with_slashes
    subdirectory
    untracked_subdirectory
    linked_worktree
    submodule_inside
    submodule_not_checked_out
    submodule_as_workspace
    nested_repository
    nested_repository_unborn
    nested_worktree
    separate_git_dir
    symlinks
    executable_bits
    private_modes
    kinds_swapped
    odd_names
    wildcard_names
    tracked_but_ignored
    nested_gitignore_with_negation
    info_exclude
    global_excludes
    configured_excludes_file
    everything_ignored
    autocrlf
    autocrlf_input
    eol_attributes
    ident
    filter
    required_filter_missing
    working_tree_encoding
    lfs_pointer
    intent_to_add
    assume_unchanged
    skip_worktree_present
    skip_worktree_absent
    sparse_cone
    sparse_index
    sparse_patterns
    split_index
    index_version_4
    index_without_hash
    untracked_cache
    no_index
    staged_and_edited_again
    racily_clean
    merge_in_conflict
    rebase_in_conflict
    cherry_pick_in_conflict
    revert_in_conflict
    bisect_in_progress
    shallow
    partial_clone
    alternates
    packed
    packed_refs_and_many_packs
    read_only_objects
    hard_links
    special_files
    empty_directories
    binary_files
    deep
    many_files
    bare_flag_set
    worktree_config
    stash_and_notes
    same_content_everywhere
    names_that_sort_oddly
    unicode_names
    long_names
    link_text_odd
    hooks_and_signing
    sha256
    reftable
    plain_directory
    plain_with_default_names
}
