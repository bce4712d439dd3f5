//! Taking a snapshot: what is in it, what it says, and that nobody notices.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use stillframe_tests::{Snap, TestWorkspace, capability, git, json, oracle, shapes, view};

use crate::disk::noise;

#[test]
fn edits_deletions_and_new_files_come_back_as_captured() {
    let ws = TestWorkspace::repository();
    ws.write("deleted", "x\n");
    ws.write("edited", "one\n");
    ws.commit("second");
    ws.write("edited", "two\n");
    ws.remove("deleted");
    ws.write("new", "three\n");
    ws.write("old-untracked", "four\n");
    let snapshot = ws.snapshot();
    let before = view::worktree(ws.root());

    ws.write("edited", "later\n");
    ws.write("deleted", "back again\n");
    ws.remove("new");
    ws.write("old-untracked", "later\n");
    ws.write("fifth", "five\n");
    let outcome = ws.restore(&snapshot);

    view::same(&before, &view::worktree(ws.root()), "as captured");
    let guard = outcome["guard_snapshot"].as_str().unwrap();
    let listing = oracle::stored_listing(&ws, Snap::of(&ws.show(guard)).tree());
    assert!(
        listing.entries.iter().any(|e| e.path == b"fifth"),
        "the removed file is in the guard"
    );
}

#[test]
fn a_repository_without_a_commit_is_captured() {
    let ws = (shapes::named("unborn").make)();
    let snapshot = ws.snapshot();
    let metadata = &snapshot.json["metadata"];
    assert!(metadata["head_ref"].is_null(), "{metadata}");
    assert_eq!(metadata["branch"], "main");
    assert_eq!(metadata["dirty"], true, "something was captured");
    let store = &ws.stores()[0].join("git");
    let commit = git::text(
        &ws.home(),
        store,
        ["cat-file", "commit", snapshot.reference()],
    );
    assert!(
        !commit.contains("\nparent "),
        "there is nothing to be a parent: {commit}"
    );
}

#[test]
fn a_label_comes_back_unchanged() {
    let ws = TestWorkspace::repository();
    let label = "before the \"big\" change, ünïcode\ttab";
    let snapshot = ws.snapshot_with(["--label", label]);
    assert_eq!(snapshot.json["label"], label);
    assert_eq!(ws.show(snapshot.id())["label"], label);
    assert_eq!(ws.json(["list"])[0]["label"], label);
}

#[test]
fn a_snapshot_without_a_label_is_manual() {
    let ws = TestWorkspace::repository();
    assert_eq!(ws.snapshot().json["label"], "manual");
}

#[test]
fn outside_of_a_repository_git_is_refused_and_auto_takes_hash() {
    let ws = TestWorkspace::plain();
    ws.write("file", "x\n");
    ws.try_json(["snapshot", "--strategy", "git"])
        .refused("Unsupported");
    assert!(ws.stores().is_empty(), "nothing was made");
    assert_eq!(
        ws.json(["list"]),
        serde_json::json!([]),
        "nothing was recorded"
    );
    let snapshot = ws.snapshot();
    assert_eq!(snapshot.json["backend"], "hash");
    assert!(snapshot.json["tree"].is_null());
}

#[test]
fn in_a_repository_auto_takes_git_and_hash_can_be_asked_for() {
    let ws = TestWorkspace::repository();
    assert_eq!(ws.snapshot().json["backend"], "git");
    let by_hash = ws.snapshot_with(["--strategy", "hash"]);
    assert_eq!(by_hash.json["backend"], "hash");
    let metadata = &by_hash.json["metadata"];
    for name in ["head_ref", "branch", "dirty"] {
        assert!(metadata[name].is_null(), "{name} of {metadata}");
    }
}

#[test]
fn an_unchanged_tree_is_captured_again_without_reading_a_byte() {
    let ws = TestWorkspace::repository();
    ws.write("untracked", "x\n");
    ws.settle();
    let first = ws.snapshot();
    ws.settle();
    let second = ws.snapshot();
    let third = ws.snapshot();
    for again in [&second, &third] {
        assert_eq!(again.tree(), first.tree());
        assert_eq!(again.count("files_hashed"), 0, "{}", again.json);
        assert_eq!(again.count("bytes_read"), 0, "{}", again.json);
        assert_ne!(again.id(), first.id(), "each is a record of its own");
    }
    assert_ne!(second.id(), third.id());
    assert_eq!(ws.json(["list"]).as_array().unwrap().len(), 3);
}

#[test]
fn the_first_capture_of_a_clean_repository_reads_no_tracked_file() {
    let ws = TestWorkspace::unborn();
    for i in 0..20 {
        ws.write(format!("d{}/f{i}", i % 3), format!("{i}\n"));
    }
    ws.commit_settled("all");
    let snapshot = ws.snapshot();
    assert_eq!(snapshot.count("files_hashed"), 0);
    assert_eq!(snapshot.count("bytes_read"), 0);
    assert_eq!(snapshot.count("files"), 20);
    assert_eq!(snapshot.tree(), ws.git(["rev-parse", "HEAD^{tree}"]));
}

// What git converts by attributes that Stillframe does not read is not taken from git's objects
#[test]
fn a_file_under_a_filter_that_the_repositorys_own_configuration_brings_in_is_captured_raw() {
    let filtered = |bring_in: &dyn Fn(&TestWorkspace, &str)| {
        let ws = TestWorkspace::unborn();
        let attributes = ws.outside().join("attributes");
        std::fs::write(&attributes, "*.rot filter=swap\n").unwrap();
        bring_in(&ws, attributes.to_str().unwrap());
        ws.git(["config", "filter.swap.clean", "tr a-z n-za-m"]);
        ws.git(["config", "filter.swap.smudge", "tr a-z n-za-m"]);
        ws.write("same-size.rot", "abcdef\n");
        ws.commit_settled("filtered");
        assert_eq!(ws.git(["show", ":same-size.rot"]), "nopqrs");
        let snapshot = ws.snapshot();
        assert_eq!(snapshot.tree(), oracle::raw_tree(&ws));
        assert_eq!(snapshot.count("files_hashed"), 1);
        let again = ws.snapshot();
        assert_eq!(again.tree(), snapshot.tree());
        assert_eq!(again.count("files_hashed"), 0, "once is enough");
    };
    filtered(&|ws, attributes| {
        ws.git(["config", "core.attributesFile", attributes]);
    });
    filtered(&|ws, attributes| {
        let included = ws.outside().join("included");
        let text = format!("[core]\n\tattributesFile = {attributes}\n");
        std::fs::write(&included, text).unwrap();
        ws.git(["config", "include.path", included.to_str().unwrap()]);
    });
}

#[test]
fn a_file_under_a_filter_that_a_variable_of_the_users_brings_in_is_captured_raw() {
    let mut ws = TestWorkspace::unborn();
    let attributes = ws.outside().join("attributes");
    std::fs::write(&attributes, "*.rot filter=swap\n").unwrap();
    let config = ws.outside().join("config");
    let text = format!(
        "[core]\n\tattributesFile = {}\n\
         [filter \"swap\"]\n\tclean = tr a-z n-za-m\n\tsmudge = tr a-z n-za-m\n",
        attributes.display()
    );
    std::fs::write(&config, text).unwrap();
    ws.set_env("GIT_CONFIG_GLOBAL", &config);
    ws.write("same-size.rot", "abcdef\n");
    ws.settle();
    for args in [&["add", "-A"][..], &["commit", "-q", "-m", "filtered"]] {
        let call = ws.git_call(args).env("GIT_CONFIG_GLOBAL", &config);
        call.run().ok();
    }
    ws.settle();
    assert_eq!(ws.git(["show", ":same-size.rot"]), "nopqrs");
    assert_eq!(ws.snapshot().tree(), oracle::raw_tree(&ws));
}

// A sixteenth more than that: the quickest level of zlib writes all bytes in fixed codes
#[test]
fn what_does_not_compress_takes_the_room_that_it_has() {
    let ws = TestWorkspace::repository();
    ws.snapshot();
    let bytes = || -> u64 {
        let files = walkdir::WalkDir::new(ws.state()).into_iter();
        let lengths = files.map(|entry| entry.unwrap().metadata().unwrap());
        lengths
            .filter(|meta| meta.is_file())
            .map(|meta| meta.len())
            .sum()
    };
    let had = bytes();
    let (small, large) = (noise(1_000, 1), noise(1_000_000, 2));
    // Through memory, through pieces, and with text before and behind.
    ws.write("small", &small);
    ws.write("large", &large);
    let text = "a line like any other\n".repeat(20_000);
    ws.write(
        "mixed",
        [text.as_bytes(), &noise(6_000_000, 5), text.as_bytes()].concat(),
    );
    let snapshot = ws.snapshot();
    assert_eq!(snapshot.tree(), oracle::raw_tree(&ws));
    let (grown, noise) = (bytes() - had, 7_001_000);
    assert!(grown > noise, "{grown}");
    assert!(grown < noise + noise / 100, "{grown} for {noise}");
    for name in ["small", "large", "mixed"] {
        ws.write(name, "gone\n");
    }
    ws.restore(&snapshot);
    assert_eq!((ws.read("small"), ws.read("large")), (small, large));
}

// git-lfs configures its driver on every machine that it is installed on
#[test]
fn a_filter_that_no_attributes_name_costs_nothing() {
    let ws = TestWorkspace::unborn();
    ws.git(["config", "filter.lfs.clean", "git-lfs clean -- %f"]);
    ws.git(["config", "filter.lfs.process", "git-lfs filter-process"]);
    ws.write("file", "x\n");
    ws.commit_settled("plain");
    let snapshot = ws.snapshot();
    assert_eq!(snapshot.tree(), oracle::raw_tree(&ws));
    assert_eq!(snapshot.count("files_hashed"), 0);
}

#[test]
fn only_what_changed_is_read() {
    let ws = TestWorkspace::unborn();
    for i in 0..20 {
        ws.write(format!("f{i:02}"), "12345\n");
    }
    ws.commit_settled("all");
    ws.snapshot();
    ws.write("f07", "123456789\n");
    ws.settle();
    let snapshot = ws.snapshot();
    assert_eq!(snapshot.count("files_hashed"), 1);
    assert_eq!(snapshot.count("bytes_read"), 10);
}

#[test]
fn a_snapshot_of_a_clean_tree_is_whole_by_itself() {
    let ws = (shapes::named("clean").make)();
    let snapshot = ws.snapshot();
    let before = view::worktree(ws.root());
    for name in ["README", "src", "run.sh", "link", ".git"] {
        ws.remove(name);
    }
    ws.restore(&snapshot);
    view::same(
        &before,
        &view::worktree(ws.root()),
        "everything is back, without .git",
    );
}

#[test]
fn a_run_that_changes_nothing_has_two_snapshots_of_one_tree() {
    let ws = TestWorkspace::repository();
    let run = ws.run::<&str>([], "true").ok().json();
    let workspace = &run["workspace"];
    assert_eq!(
        workspace["before_snapshot"]["tree"],
        workspace["after_snapshot"]["tree"]
    );
    assert_ne!(
        workspace["before_snapshot"]["id"],
        workspace["after_snapshot"]["id"]
    );
    let diff = &workspace["diff"];
    assert_eq!(diff["files_changed"], 0);
    assert_eq!(diff["has_patch"], false);
    assert!(diff["patch"].is_null());
    assert!(diff["patch_ref"].is_null());
    assert_eq!(diff["patch_bytes"], 0);
    assert_eq!(ws.json(["artifact", "list"]), serde_json::json!([]));
}

#[test]
fn a_directory_that_becomes_a_repository_is_captured_by_git_from_then_on() {
    let ws = TestWorkspace::plain();
    ws.write("file", "x\n");
    let first = ws.snapshot();
    ws.git(["init", "-q"]);
    ws.commit("first");
    let second = ws.snapshot();
    assert_eq!(first.json["backend"], "hash");
    assert_eq!(second.json["backend"], "git");
    let listed = ws.json(["list"]);
    let backends: Vec<&str> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|s| s["backend"].as_str().unwrap())
        .collect();
    assert_eq!(backends, ["git", "hash"], "the older one stays listed");
    let refused = ws
        .try_json(["diff", first.id(), second.id()])
        .refused("InvalidOptions");
    assert!(refused.contains("same backend"), "{refused}");
}

#[test]
fn an_empty_directory_comes_back_and_does_not_change_the_tree() {
    let ws = TestWorkspace::repository();
    ws.mkdir("empty/inner");
    ws.chmod("empty/inner", 0o750);
    let snapshot = ws.snapshot();
    assert_eq!(snapshot.tree(), ws.git(["rev-parse", "HEAD^{tree}"]));
    let before = view::worktree(ws.root());
    ws.remove("empty");
    ws.restore(&snapshot);
    view::same(
        &before,
        &view::worktree(ws.root()),
        "the empty directory is back",
    );
}

#[test]
fn whoever_made_a_change_it_is_captured() {
    let ws = TestWorkspace::repository();
    ws.write("README", "staged by the user\n");
    ws.git(["add", "README"]);
    ws.write("by-the-agent", "x\n");
    let snapshot = ws.snapshot();
    assert_eq!(snapshot.tree(), oracle::raw_tree(&ws));
    assert_eq!(snapshot.json["metadata"]["dirty"], true);
}

#[test]
fn a_merge_in_progress_is_captured_and_goes_on() {
    let ws = (shapes::named("merge_in_conflict").make)();
    let snapshot = ws.untouched(|| ws.snapshot());
    assert!(ws.exists(".git/MERGE_HEAD"));
    assert_eq!(snapshot.tree(), oracle::raw_tree(&ws));
    assert!(
        ws.text("file").contains("<<<<<<<"),
        "the conflict as it is on disk"
    );
}

#[test]
fn a_store_long_in_use_gives_the_tree_that_a_fresh_one_gives() {
    let ws = TestWorkspace::repository();
    ws.write("a/b/c", "1\n");
    ws.write("a/d", "2\n");
    ws.write("e", "3\n");
    ws.commit("second");
    type Step = (&'static str, fn(&TestWorkspace));
    let steps: [Step; 14] = [
        ("edit", |ws| ws.write("a/b/c", "edited\n")),
        ("edit to the same size", |ws| ws.write("a/b/c", "edited!")),
        ("new file", |ws| ws.write("a/new", "x\n")),
        ("new directory", |ws| ws.write("n/m/o", "x\n")),
        ("remove", |ws| ws.remove("e")),
        ("remove a directory", |ws| ws.remove("n")),
        ("mode", |ws| ws.chmod("a/d", 0o755)),
        ("file to link", |ws| {
            ws.remove("a/d");
            ws.symlink("a/d", "b");
        }),
        ("link to directory", |ws| {
            ws.remove("a/d");
            ws.write("a/d/in", "x\n");
        }),
        ("directory to file", |ws| {
            ws.remove("a/d");
            ws.write("a/d", "x\n");
        }),
        ("rename a directory", |ws| ws.rename("a/b", "a/z")),
        ("ignore", |ws| ws.write(".gitignore", "new*\n")),
        ("commit by git", |ws| ws.commit("by git")),
        ("switch by git", |ws| {
            ws.git(["checkout", "-q", "-b", "other", "HEAD~1"]);
        }),
    ];
    for (step, change) in steps {
        change(&ws);
        let kept = ws.snapshot();
        let fresh = ws
            .call(["--json", "snapshot"])
            .env("STILLFRAME_HOME", ws.base().join(format!("fresh {step}")))
            .run()
            .ok();
        let fresh = Snap::of(&fresh.json());
        // A path captured before goes on being captured in one session, so the rule that ignores
        // one is the single step after which a fresh store knows less.
        if step != "ignore" {
            assert_eq!(kept.tree(), fresh.tree(), "after: {step}");
        }
        assert_eq!(fresh.tree(), oracle::raw_tree(&ws), "after: {step}");
        if step == "ignore" {
            ws.remove("a/new");
            ws.remove(".gitignore");
        }
    }
}

#[test]
fn a_read_error_fails_the_capture_as_a_whole() {
    if !capability::can_inject() {
        return;
    }
    let ws = TestWorkspace::repository();
    ws.write("unlucky", "x\n");
    let before = ws.json(["list"]);
    let unlucky = ws.path("unlucky");
    let call = ws.call(["--json", "snapshot"]);
    let output = call
        .through(
            "strace",
            [
                "-f",
                "-o",
                "/dev/null",
                "-P",
                unlucky.to_str().unwrap(),
                "-e",
                "trace=read,pread64,readv,preadv",
                "-e",
                "inject=read,pread64,readv,preadv:error=EIO",
            ],
        )
        .run();
    let message = output.refused("Unreadable");
    assert!(message.contains("unlucky"), "it names the path: {message}");
    assert_eq!(ws.json(["list"]), before, "nothing was published");
    ws.snapshot();
}

#[test]
fn a_lack_of_descriptors_never_gives_a_smaller_tree() {
    let ws = TestWorkspace::repository();
    for i in 0..40 {
        ws.write(format!("a/b/c/d/e/f/g/h/{i}/file"), "x\n");
    }
    let expected = oracle::raw_tree(&ws);
    let mut refused = 0;
    for limit in (8..48).step_by(4) {
        let script = format!("ulimit -n {limit}; exec \"$@\"");
        let call = ws.call(["--json", "snapshot"]);
        let output = call.through("/bin/sh", ["-c", script.as_str(), "sh"]).run();
        if output.code == 0 {
            assert_eq!(
                Snap::of(&output.json()).tree(),
                expected,
                "with {limit} descriptors"
            );
        } else {
            refused += 1;
        }
    }
    assert!(refused > 0, "eight descriptors are too few for anything");
    assert_eq!(ws.snapshot().tree(), expected, "and it works again");
}

#[test]
fn a_damaged_cache_is_made_again_and_the_answer_is_the_same() {
    let ws = (shapes::named("clean").make)();
    ws.write("new", "x\n");
    let first = ws.snapshot();
    for garbage in [&b"garbage"[..], b"", &[0xff; 4096]] {
        let mut caches = 0;
        for entry in walkdir::WalkDir::new(ws.state().join("workspaces")) {
            let entry = entry.unwrap();
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.file_type().is_file() && (name.contains("cache") || name.contains("index")) {
                let in_git = entry
                    .path()
                    .components()
                    .any(|c| c.as_os_str() == "objects");
                if !in_git {
                    fs::write(entry.path(), garbage).unwrap();
                    caches += 1;
                }
            }
        }
        assert!(caches > 0, "the store has a cache to damage");
        assert_eq!(ws.snapshot().tree(), first.tree());
    }
}

#[test]
fn a_format_that_cannot_be_read_is_named() {
    for (shape, format) in [("sha256", "sha256"), ("reftable", "reftable")] {
        let ws = (shapes::named(shape).make)();
        let message = ws
            .try_json(["snapshot", "--strategy", "git"])
            .refused("Unsupported");
        assert!(message.contains(format), "{message}");
        assert!(ws.stores().is_empty(), "nothing was made");
        // auto does what it can, and says why.
        let is_said = |text: &str, times: usize| {
            let warnings = text.lines().filter(|line| line.contains("hash backend"));
            let named = warnings.filter(|line| line.contains(format)).count();
            assert_eq!(named, times, "{text}");
        };
        let output = ws.try_json(["snapshot"]).ok();
        is_said(&output.stderr_text(), 1);
        let snapshot = Snap::of(&output.json());
        assert_eq!(snapshot.json["backend"], "hash");
        let shown = ws.stillframe(["show", snapshot.id()]).ok();
        is_said(&shown.stdout_text(), 1);
        is_said(&ws.run_call::<&str>([], "true").run().ok().stderr_text(), 1);
        let asked = ws.try_json(["snapshot", "--strategy", "hash"]).ok();
        is_said(&asked.stderr_text(), 0);
    }
}

#[test]
fn the_language_of_the_environment_changes_no_document() {
    let ws = TestWorkspace::repository();
    ws.write("ünïcode", "x\n");
    let snapshot = ws.snapshot();
    let shown = ws.show(snapshot.id());
    for locale in [
        "C",
        "POSIX",
        "de_DE.UTF-8",
        "tr_TR.UTF-8",
        "zh_CN.GB18030",
        "nonsense",
    ] {
        let call = |args: &[&str]| {
            ws.call(args)
                .env("LANG", locale)
                .env("LC_ALL", locale)
                .env("LANGUAGE", "de:fr")
                .run()
        };
        assert_eq!(call(&["--json", "show", snapshot.id()]).ok().json(), shown);
        let again = Snap::of(&call(&["--json", "snapshot"]).ok().json());
        assert_eq!(again.tree(), snapshot.tree(), "{locale}");
        call(&["--json", "show", "snap_ffffffff"]).refused("NotFound");
    }
}

#[test]
fn nothing_has_to_be_configured() {
    let ws = TestWorkspace::repository();
    fs::remove_dir(ws.home()).unwrap();
    let snapshot = ws.snapshot();
    ws.write("README", "edited\n");
    ws.restore(&snapshot);
    assert_eq!(ws.text("README"), "hello\n");
    let without_home = ws
        .call(["--json", "snapshot"])
        .env_remove("HOME")
        .run()
        .ok();
    assert_eq!(Snap::of(&without_home.json()).tree(), snapshot.tree());
    fs::create_dir(ws.home()).unwrap();
}

#[test]
fn a_snapshot_carries_the_identity_of_stillframe_and_not_of_the_user() {
    let ws = TestWorkspace::repository();
    let config = "[user]\n\tname = Somebody Else\n\temail = somebody@example.org\n";
    fs::write(ws.home().join(".gitconfig"), config).unwrap();
    let snapshot = ws.snapshot();
    let store = &ws.stores()[0].join("git");
    let commit = git::text(
        &ws.home(),
        store,
        ["cat-file", "commit", snapshot.reference()],
    );
    assert!(!commit.contains("omebody"), "{commit}");
    assert!(!commit.contains("example.org"), "{commit}");
}

#[test]
fn a_subdirectory_is_captured_and_restored_alone() {
    let ws = (shapes::named("subdirectory").make)();
    let snapshot = ws.snapshot();
    assert_eq!(
        snapshot.tree(),
        oracle::raw_tree(&ws),
        "the tree of the workspace itself"
    );
    let listing = oracle::stored_listing(&ws, snapshot.tree());
    assert!(
        listing.entries.iter().any(|e| e.path == b"kept"),
        "paths begin at the workspace"
    );
    let top = ws.base().join("work");
    fs::write(top.join("sibling/file"), "changed since\n").unwrap();
    fs::write(top.join("README"), "changed since\n").unwrap();
    fs::write(top.join("sibling/x.tmp"), "ignored there\n").unwrap();
    let around = view::worktree(&top).without("sub");
    ws.write("kept", "changed since\n");
    let outcome = ws.restore(&snapshot);
    assert_eq!(json::names(&outcome["restored"]), ["kept"]);
    view::same(
        &around,
        &view::worktree(&top).without("sub"),
        "the rest is not in scope",
    );
}

#[test]
fn metadata_says_where_head_was() {
    let ws = TestWorkspace::repository();
    let clean = ws.snapshot();
    let head = ws.git(["rev-parse", "HEAD"]);
    let metadata = &clean.json["metadata"];
    assert_eq!(metadata["head_ref"], head.as_str());
    assert_eq!(metadata["branch"], "main");
    assert_eq!(metadata["dirty"], false);
    assert_eq!(metadata["includes_untracked"], true);
    assert_eq!(metadata["files"], 1);
    assert!(metadata["duration_ms"].is_u64());
    assert_eq!(clean.tree(), ws.git(["rev-parse", "HEAD^{tree}"]));
    assert_eq!(clean.json["path"], ws.root().to_str().unwrap());

    ws.write("untracked", "x\n");
    assert_eq!(ws.snapshot().json["metadata"]["dirty"], true);
    ws.git(["checkout", "-q", "--detach"]);
    let detached = ws.snapshot();
    assert!(detached.json["metadata"]["branch"].is_null());
    assert_eq!(detached.json["metadata"]["head_ref"], head.as_str());
}

#[test]
fn a_branch_is_named_by_its_short_name() {
    let ws = (shapes::named("branch_with_slashes").make)();
    assert_eq!(
        ws.snapshot().json["metadata"]["branch"],
        "feature/deep/name"
    );
}

#[test]
fn a_document_of_a_snapshot_has_exactly_the_keys_of_the_design() {
    let ws = TestWorkspace::repository();
    ws.write(".gitignore", "*.log\n");
    ws.write("noise.log", "12345");
    let snapshot = ws.snapshot();
    assert_eq!(
        json::keys(&snapshot.json),
        [
            "backend",
            "captured_at",
            "id",
            "label",
            "metadata",
            "omissions",
            "path",
            "ref",
            "tree"
        ]
    );
    assert_eq!(
        json::keys(&snapshot.json["metadata"]),
        [
            "branch",
            "bytes_read",
            "dirty",
            "duration_ms",
            "files",
            "files_hashed",
            "head_ref",
            "includes_untracked"
        ]
    );
    let omission = &snapshot.json["omissions"][0];
    assert_eq!(json::keys(omission), ["bytes", "path", "reason"]);
    assert_eq!(omission["path"], "noise.log");
    assert_eq!(omission["reason"], "ignored");
    assert_eq!(omission["bytes"], 5);
    let at = snapshot.json["captured_at"].as_str().unwrap();
    let parsed: jiff::Timestamp = at.parse().expect("RFC 3339");
    assert!(at.ends_with('Z'), "times are UTC: {at}");
    assert!(parsed.as_second() > 1_700_000_000, "{at}");
}

#[test]
fn an_edit_to_the_same_size_within_the_tick_of_a_capture_is_seen() {
    let ws = TestWorkspace::repository();
    let mut seen = std::collections::BTreeSet::new();
    for round in 0..8 {
        ws.write("racy", format!("{round}\n"));
        let snapshot = ws.snapshot();
        assert_eq!(snapshot.tree(), oracle::raw_tree(&ws), "in round {round}");
        seen.insert(snapshot.tree().to_owned());
    }
    assert_eq!(seen.len(), 8);
}

#[test]
fn an_edit_whose_mtime_is_set_back_is_seen() {
    let ws = TestWorkspace::repository();
    ws.write("file", "one\n");
    ws.commit_settled("second");
    ws.snapshot();
    let meta = ws.stat("file");
    ws.write("file", "two\n");
    ws.set_mtime("file", &meta);
    assert_eq!(ws.snapshot().tree(), oracle::raw_tree(&ws));
}

#[test]
fn variables_of_git_that_name_another_repository_have_no_effect() {
    let ws = TestWorkspace::repository();
    let other = TestWorkspace::repository();
    other.write("README", "another\n");
    other.commit("another");
    let dot_git = other.root().join(".git");
    let snapshot = other.untouched(|| {
        let output = ws
            .call(["--json", "snapshot"])
            .env("GIT_DIR", &dot_git)
            .env("GIT_COMMON_DIR", &dot_git)
            .env("GIT_WORK_TREE", other.root())
            .env("GIT_INDEX_FILE", dot_git.join("index"))
            .env("GIT_OBJECT_DIRECTORY", dot_git.join("objects"))
            .env("GIT_ALTERNATE_OBJECT_DIRECTORIES", dot_git.join("objects"))
            .env("GIT_NAMESPACE", "x")
            .env("GIT_CEILING_DIRECTORIES", ws.root())
            .run()
            .ok();
        Snap::of(&output.json())
    });
    assert_eq!(snapshot.tree(), ws.git(["rev-parse", "HEAD^{tree}"]));
    assert_eq!(snapshot.json["path"], ws.root().to_str().unwrap());
}

#[test]
fn snapshots_outlive_gc_rewritten_history_and_the_repository_itself() {
    let ws = TestWorkspace::repository();
    ws.write("tracked", "one\n");
    ws.commit("second");
    ws.write("tracked", "two\n");
    ws.write("untracked", "x\n");
    let first = ws.snapshot();
    let before = view::worktree(ws.root());
    ws.write("tracked", "three\n");
    let second = ws.snapshot();
    let changed = ws.diff(&first, &second);

    ws.git(["checkout", "-q", "--orphan", "fresh"]);
    ws.git(["commit", "-q", "-a", "-m", "history is gone"]);
    ws.git(["branch", "-D", "main"]);
    ws.git(["reflog", "expire", "--expire=now", "--all"]);
    ws.git(["repack", "-a", "-d", "-q"]);
    ws.git(["gc", "-q", "--prune=now"]);
    assert_eq!(ws.diff(&first, &second), changed);
    ws.restore(&first);
    view::same(&before, &view::worktree(ws.root()), "after gc");

    ws.remove(".git");
    ws.write("tracked", "four\n");
    assert_eq!(ws.diff(&first, &second), changed);
    ws.restore(&first);
    view::same(&before, &view::worktree(ws.root()), "after rm -rf .git");
    ws.stillframe(["verify"]).ok();
}

#[test]
fn a_capture_touches_nothing_of_the_user() {
    let ws = (shapes::named("dirty").make)();
    ws.write("README", "stashed\n");
    ws.git(["stash", "push", "-q", "--", "README"]);
    ws.git(["tag", "v1"]);
    ws.untouched(|| {
        ws.snapshot();
        ws.snapshot_with(["--strategy", "hash", "--retain-content"]);
        ws.json(["list"]);
        ws.json(["why", "README"]);
        ws.stillframe(["verify"]).ok();
    });
    assert_eq!(ws.git(["for-each-ref", "refs/stillframe"]), "");
    assert_eq!(ws.git(["stash", "list"]).lines().count(), 1);
}

#[test]
fn the_state_directory_is_private() {
    let ws = TestWorkspace::repository();
    ws.snapshot();
    assert_eq!(fs::metadata(ws.state()).unwrap().mode() & 0o7777, 0o700);
    for entry in walkdir::WalkDir::new(ws.state()) {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().mode();
        if entry.file_type().is_dir() {
            assert_eq!(mode & 0o077, 0, "{} is {mode:o}", entry.path().display());
        }
    }
    fs::set_permissions(
        ws.state(),
        std::os::unix::fs::PermissionsExt::from_mode(0o777),
    )
    .unwrap();
    ws.snapshot();
    assert_eq!(
        fs::metadata(ws.state()).unwrap().mode() & 0o7777,
        0o700,
        "made private again"
    );
}

#[test]
fn snapshots_are_refs_of_the_store() {
    let ws = TestWorkspace::repository();
    let snapshot = ws.snapshot();
    let store = &ws.stores()[0].join("git");
    let refs = git::text(
        &ws.home(),
        store,
        ["for-each-ref", "--format=%(objectname) %(refname)"],
    );
    let line = refs.lines().find(|l| l.starts_with(snapshot.reference()));
    let line = line.unwrap_or_else(|| panic!("{} is in {refs}", snapshot.reference()));
    assert!(line.contains(" refs/snapshots/"), "{line}");
}

#[test]
fn packs_come_into_the_store_as_hard_links() {
    let ws = (shapes::named("packed").make)();
    let pack = fs::read_dir(ws.root().join(".git/objects/pack"))
        .unwrap()
        .flatten()
        .map(|e| e.path())
        .find(|p| p.extension().is_some_and(|e| e == "pack"))
        .unwrap();
    assert_eq!(fs::metadata(&pack).unwrap().nlink(), 1);
    ws.untouched(|| ws.snapshot());
    assert_eq!(fs::metadata(&pack).unwrap().nlink(), 2, "no byte is copied");
}

#[test]
fn a_state_directory_on_another_file_system_works() {
    let Some(shm) = capability::other_file_system() else {
        return;
    };
    let elsewhere = tempfile::tempdir_in(shm).unwrap();
    let mut ws = (shapes::named("clean").make)();
    ws.set_env("STILLFRAME_HOME", elsewhere.path().join("state"));
    ws.write("new", "x\n");
    let snapshot = ws.untouched(|| ws.snapshot());
    assert_eq!(snapshot.tree(), oracle::raw_tree(&ws));
    let before = view::worktree(ws.root());
    ws.write("README", "edited\n");
    ws.remove("new");
    ws.remove("src");
    ws.restore(&snapshot);
    view::same(
        &before,
        &view::worktree(ws.root()),
        "restored across file systems",
    );
    oracle::fsck(&elsewhere.path().join("state"));
}

// The cache of directories is not fooled by whatever keeps sizes and mtimes
#[test]
fn swapped_files_and_directories_are_seen() {
    let ws = TestWorkspace::repository();
    for name in ["a", "b", "one/x", "two/x", "deep/one/y/z", "deep/two/y/z"] {
        ws.write(name, format!("{:<20}\n", name));
    }
    ws.commit_settled("second");
    ws.snapshot();
    let swap = |one: &str, two: &str| {
        ws.rename(one, "aside");
        ws.rename(two, one);
        ws.rename("aside", two);
    };
    for (one, two) in [
        ("a", "b"),
        ("one", "two"),
        ("deep/one", "deep/two"),
        ("a", "one/x"),
    ] {
        ws.settle();
        ws.snapshot();
        swap(one, two);
        assert_eq!(
            ws.snapshot().tree(),
            oracle::raw_tree(&ws),
            "{one} and {two}"
        );
    }
    let meta = ws.stat("b");
    ws.remove("b");
    ws.write("b", format!("{:<20}\n", "c"));
    ws.set_mtime("b", &meta);
    assert_eq!(
        ws.snapshot().tree(),
        oracle::raw_tree(&ws),
        "another file with its mtime"
    );
}

#[test]
fn an_edit_through_another_name_is_seen() {
    let ws = TestWorkspace::repository();
    let outside = ws.outside().join("other-name");
    ws.hard_link("README", &outside);
    ws.commit_settled("second");
    ws.snapshot();
    fs::write(&outside, "HELLO\n").unwrap();
    assert_eq!(ws.snapshot().tree(), oracle::raw_tree(&ws));
}

#[test]
fn a_workspace_that_was_deleted_and_made_again_is_put_back() {
    let ws = (shapes::named("clean").make)();
    ws.write("untracked", "x\n");
    let snapshot = ws.snapshot();
    let before = view::worktree(ws.root());
    fs::remove_dir_all(ws.root()).unwrap();
    fs::create_dir(ws.root()).unwrap();
    assert_eq!(
        ws.json(["list"])[0]["id"],
        snapshot.id(),
        "the path is what a person means"
    );
    ws.restore(&snapshot);
    view::same(&before, &view::worktree(ws.root()), "everything is back");
}

// The store is the truth
#[test]
fn without_the_log_snapshots_are_found_in_the_store() {
    let ws = TestWorkspace::repository();
    ws.write("untracked", "x\n");
    let snapshot = ws.snapshot();
    for entry in fs::read_dir(ws.state()).unwrap().flatten() {
        if entry.file_type().unwrap().is_file() {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    ws.write("untracked", "edited\n");
    assert_eq!(ws.json(["list"])[0]["id"], snapshot.id());
    ws.restore(&snapshot);
    assert_eq!(ws.text("untracked"), "x\n");
}

#[test]
fn a_state_directory_that_was_moved_works() {
    let mut ws = TestWorkspace::repository();
    let snapshot = ws.snapshot();
    let moved = ws.base().join("moved");
    fs::rename(ws.state(), &moved).unwrap();
    ws.set_env("STILLFRAME_HOME", &moved);
    ws.write("README", "edited\n");
    ws.restore(&snapshot);
    assert_eq!(ws.text("README"), "hello\n");
    oracle::fsck(&moved);
}

// A store that borrows from a repository which then goes away altogether
#[test]
fn a_snapshot_of_a_clone_outlives_its_origin_and_itself() {
    for shape in [
        "alternates",
        "shallow",
        "partial_clone",
        "packed_refs_and_many_packs",
    ] {
        let ws = (shapes::named(shape).make)();
        let snapshot = ws.snapshot();
        let before = view::worktree(ws.root());
        for name in ["origin", "away"] {
            let _ = fs::remove_dir_all(ws.base().join(name));
        }
        let names = fs::read_dir(ws.root()).unwrap().flatten();
        for name in names.map(|e| e.file_name()) {
            ws.remove(name.as_encoded_bytes());
        }
        ws.restore(&snapshot);
        view::same(&before, &view::worktree(ws.root()), shape);
        ws.stillframe(["verify"]).ok();
    }
}
