//! Repositories that are traps: nothing of theirs is run, followed or waited for.

use std::fs;

use stillframe_tests::canary::{self, Canary, TRAPS, Trip};
use stillframe_tests::{Snap, TestWorkspace, capability, json, oracle, view};

/// Arms one trap, proves that git itself runs into it, and then does everything that Stillframe
/// does around files.
fn nothing_fires(name: &str) {
    let trap = TRAPS.iter().find(|t| t.name == name);
    let trap = trap.unwrap_or_else(|| panic!("there is no trap called {name}"));
    let ws = canary::bait();
    let other = ws.git(["rev-parse", "other"]);
    let canary = Canary::new(&ws);
    (trap.arm)(&ws, &canary);

    canary.reset();
    let copy = oracle::copy_repository(&ws);
    (trap.trip)(&Trip::new(&ws, copy.path()));
    assert_ne!(canary.fired(), "", "the trap has teeth: git runs into it");
    canary.reset();

    ws.write("README", "edited\n");
    ws.write("untracked", "x\n");
    let first = ws.snapshot();
    ws.write("README", "edited again\n");
    ws.write("new", "x\n");
    let second = ws.snapshot();
    let diff = ws.json(["diff", first.id(), second.id(), "--patch"]);
    assert_eq!(json::names(&diff["changed_paths"]), ["README", "new"]);
    ws.restore(&first);
    assert_eq!(ws.text("README"), "edited\n");
    ws.undo();
    // The branch is moved without git, which would run into the trap itself.
    let script = format!("echo x > README; echo {other} > .git/refs/heads/main; exit 1");
    let run = ws.run(["--rollback-on-failure"], &script).exits(1).json();
    assert_eq!(run["workspace"]["rollback"]["status"], "completed", "{run}");
    assert_eq!(ws.text("README"), "edited again\n");
    assert_ne!(
        ws.text(".git/refs/heads/main").trim(),
        other,
        "the branch went back"
    );
    ws.json(["list"]);
    ws.json(["why", "README"]);
    ws.stillframe(["verify"]).ok();
    ws.stillframe(["gc", "--keep", "100"]).ok();
    assert_eq!(canary.fired(), "", "nothing of the repository was run");
}

macro_rules! traps {
    ($($name:ident)*) => {
        mod trap {
            $(
                #[test]
                fn $name() {
                    super::nothing_fires(stringify!($name));
                }
            )*
        }

        #[test]
        fn every_trap_is_tested() {
            let tested: &[&str] = &[$(stringify!($name)),*];
            for trap in TRAPS {
                assert!(tested.contains(&trap.name), "{} is not tested", trap.name);
            }
        }
    };
}

traps! {
    fsmonitor
    post_index_change_hook
    post_checkout_hook
    pre_commit_hook
    reference_transaction_hook
    hooks_path
    clean_filter
    smudge_filter
    process_filter
    textconv
    diff_driver_command
    external_diff
    merge_driver
    ssh_command
    git_proxy
    remote_helper
    credential_helper
    ask_pass
    editor
    signing_program
    alias
    alternate_refs_command
    included_config
    attributes_file
}

#[test]
fn a_fifo_among_the_repositorys_own_files_is_a_hostile_repository_at_once() {
    for name in [
        "HEAD",
        "config",
        "index",
        "packed-refs",
        "refs/heads/main",
        "commondir",
    ] {
        let ws = TestWorkspace::repository();
        let path = format!(".git/{name}");
        if ws.exists(&path) {
            ws.remove(&path);
        }
        ws.mkfifo(&path);
        let output = ws.try_json(["snapshot"]);
        assert!(
            output.took.as_secs() < 20,
            "{name}: at once, not after {:?}",
            output.took
        );
        let message = output.refused("HostileRepository");
        assert!(message.contains(name), "{message}");
        assert_eq!(ws.published(), 0, "{name}: nothing was published");
    }
}

// Files that only some repositories have
#[test]
fn a_fifo_in_a_rarer_place_never_makes_it_wait() {
    for name in [
        "shallow",
        "info/exclude",
        "info/attributes",
        "info/grafts",
        "info/sparse-checkout",
        "objects/info/alternates",
        "objects/pack/multi-pack-index",
        "objects/info/commit-graph",
        "config.worktree",
        "MERGE_HEAD",
        "refs/stash",
        "logs/HEAD",
        "FETCH_HEAD",
    ] {
        let ws = TestWorkspace::repository();
        let path = format!(".git/{name}");
        if ws.exists(&path) {
            ws.remove(&path);
        }
        ws.mkfifo(&path);
        let output = ws.try_json(["snapshot"]);
        assert!(output.took.as_secs() < 20, "{name}: {:?}", output.took);
        match output.code {
            0 => assert_eq!(Snap::of(&output.json()).count("files"), 1, "{name}"),
            _ => drop(output.refused("HostileRepository")),
        }
    }
}

#[test]
fn links_to_endless_devices_never_make_it_read_for_ever() {
    for name in [
        "config",
        "HEAD",
        "index",
        "packed-refs",
        "info/exclude",
        "objects/info/alternates",
    ] {
        let ws = TestWorkspace::repository();
        let path = format!(".git/{name}");
        if ws.exists(&path) {
            ws.remove(&path);
        }
        ws.symlink(&path, "/dev/zero");
        let output = ws.try_json(["snapshot"]);
        assert!(output.took.as_secs() < 20, "{name}: {:?}", output.took);
        match output.code {
            0 => assert_eq!(Snap::of(&output.json()).count("files"), 1, "{name}"),
            _ => drop(output.refused("HostileRepository")),
        }
    }
}

#[test]
fn a_work_tree_elsewhere_is_ignored_and_not_obeyed() {
    let ws = TestWorkspace::repository();
    fs::write(ws.outside().join("README"), "not ours\n").unwrap();
    ws.git(["config", "core.worktree", ws.outside().to_str().unwrap()]);
    let outside = view::worktree(&ws.outside());
    let snapshot = ws.snapshot();
    assert_eq!(snapshot.json["path"], ws.root().to_str().unwrap());
    let listing = oracle::stored_listing(&ws, snapshot.tree());
    assert_eq!(listing.entries.len(), 1);
    ws.write("README", "edited\n");
    ws.write("new", "x\n");
    ws.restore(&snapshot);
    assert_eq!(ws.text("README"), "hello\n");
    view::same(
        &outside,
        &view::worktree(&ws.outside()),
        "nothing elsewhere is touched",
    );
}

#[test]
fn a_repository_that_calls_itself_bare_in_a_work_tree_is_captured() {
    let ws = TestWorkspace::repository();
    ws.git(["config", "core.bare", "true"]);
    ws.write("new", "x\n");
    let snapshot = ws.snapshot();
    assert_eq!(snapshot.json["backend"], "git");
    assert_eq!(snapshot.tree(), oracle::raw_tree(&ws));
}

#[test]
fn a_link_among_the_repositorys_own_files_is_refused_with_what_to_do() {
    for name in ["config", "info/exclude"] {
        let ws = TestWorkspace::repository();
        let path = format!(".git/{name}");
        let real = ws.outside().join("shared");
        if !ws.exists(&path) {
            ws.write(&path, "");
        }
        std::fs::copy(ws.path(&path), &real).unwrap();
        ws.remove(&path);
        ws.symlink(&path, real.as_os_str().as_encoded_bytes());
        ws.git(["status"]);
        let message = ws.untouched(|| ws.try_json(["snapshot"]).refused("HostileRepository"));
        assert!(message.contains(name), "{message}");
        assert!(
            message.contains("what it leads to can take its place"),
            "{message}"
        );
        let people = ws.stillframe(["snapshot"]).exits(1).stderr_text();
        assert!(people.contains("--strategy hash"), "{people}");
        // Both of what is advised do.
        ws.snapshot_with(["--strategy", "hash"]);
        ws.remove(&path);
        std::fs::copy(&real, ws.path(&path)).unwrap();
        assert_eq!(ws.snapshot().json["backend"], "git");
    }
}

#[test]
fn a_repository_of_another_user_is_refused_and_the_owner_named() {
    if !capability::is_root() {
        return;
    }
    let ws = TestWorkspace::repository();
    for entry in walkdir::WalkDir::new(ws.root()) {
        std::os::unix::fs::lchown(entry.unwrap().path(), Some(4242), Some(4242)).unwrap();
    }
    let message = ws.untouched(|| ws.try_json(["snapshot"]).refused("HostileRepository"));
    assert!(message.contains("4242"), "it names the owner: {message}");
}

#[test]
fn alternates_that_lead_in_a_circle_or_nowhere_do_not_matter() {
    for target in [
        "SELF",
        "/nonexistent/objects",
        "../../../../../../etc",
        "\0\n\n#\n\"quoted\"",
    ] {
        let ws = TestWorkspace::repository();
        let own = ws.path(".git/objects");
        let text = match target {
            "SELF" => format!("{}\n", own.display()),
            other => format!("{other}\n"),
        };
        ws.write(".git/objects/info/alternates", text);
        let output = ws.try_json(["snapshot"]);
        match output.code {
            0 => assert_eq!(Snap::of(&output.json()).count("files"), 1, "{target:?}"),
            _ => {
                let kind = output.json()["error"]["kind"].clone();
                let typed = ["HostileRepository", "Unreadable", "Corrupt"].map(Into::into);
                assert!(typed.contains(&kind), "{target:?}: {output}");
            }
        }
    }
}

// For a clean tracked file the worktree's bytes are stored instead
#[test]
fn a_damaged_object_of_the_user_does_not_stop_a_capture() {
    for damage in [
        &b""[..],
        b"garbage",
        b"x\x9c\x03\x00\x00\x00\x00\x01",
        &[0; 100],
    ] {
        let ws = TestWorkspace::repository();
        ws.write("clean", "the content of a clean tracked file\n");
        ws.commit_settled("second");
        let expected = ws.git(["rev-parse", "HEAD^{tree}"]);
        let id = ws.git(["rev-parse", "HEAD:clean"]);
        let path = format!(".git/objects/{}/{}", &id[..2], &id[2..]);
        ws.remove(&path);
        ws.write(&path, damage);
        let output = ws.try_json(["snapshot"]);
        assert!(output.took.as_secs() < 30, "{:?}", output.took);
        let snapshot = Snap::of(&output.ok().json());
        assert_eq!(snapshot.tree(), expected);
        ws.remove("clean");
        ws.restore(&snapshot);
        assert_eq!(ws.text("clean"), "the content of a clean tracked file\n");
        assert_eq!(ws.read(&path), damage, "nothing of theirs is repaired");
    }
}

// As in a partial clone
#[test]
fn a_missing_object_of_the_user_is_taken_from_the_file() {
    let ws = TestWorkspace::repository();
    ws.write("clean", "the content of a clean tracked file\n");
    ws.commit_settled("second");
    let id = ws.git(["rev-parse", "HEAD:clean"]);
    ws.remove(format!(".git/objects/{}/{}", &id[..2], &id[2..]));
    let snapshot = ws.snapshot();
    ws.remove("clean");
    ws.restore(&snapshot);
    assert_eq!(ws.text("clean"), "the content of a clean tracked file\n");
}

// An object that is not here is never asked for: not even by the network that git would use
#[test]
fn nothing_is_fetched_for_a_partial_clone() {
    let ws = (stillframe_tests::shapes::named("partial_clone").make)();
    let missing = ws
        .git_call(["rev-list", "--objects", "--all", "--missing=print"])
        .env("GIT_NO_LAZY_FETCH", "1")
        .run()
        .ok()
        .stdout_text();
    assert!(
        missing.lines().any(|l| l.starts_with('?')),
        "some objects are not here"
    );
    let snapshot = ws.untouched(|| ws.snapshot());
    assert_eq!(snapshot.tree(), oracle::raw_tree(&ws));
}

// A broken repository is an error, never "no repository"
#[test]
fn a_damaged_repository_is_an_error_and_never_taken_for_none() {
    let damages: [(&str, &[u8]); 6] = [
        (".git/HEAD", b"garbage\n"),
        (".git/HEAD", b""),
        (".git/config", b"[core\n"),
        (".git/index", b"DIRC garbage"),
        (".git/index", b""),
        (".git/refs/heads/main", b"not an id\n"),
    ];
    for (path, content) in damages {
        let ws = TestWorkspace::repository();
        ws.write(path, content);
        let output = ws.untouched(|| ws.try_json(["snapshot"]));
        if output.code == 0 {
            // Only where the file is not needed for a right answer.
            let snapshot = Snap::of(&output.json());
            assert_eq!(snapshot.json["backend"], "git", "{path}: {output}");
            let listing = oracle::stored_listing(&ws, snapshot.tree());
            assert_eq!(listing.entries.len(), 1, "{path}: {output}");
        } else {
            let kind = output.json()["error"]["kind"].as_str().unwrap().to_owned();
            assert!(
                ["Corrupt", "HostileRepository", "Unreadable"].contains(&kind.as_str()),
                "{path}: {output}"
            );
        }
    }
}

#[test]
fn a_git_file_that_leads_nowhere_is_an_error() {
    for text in [
        "gitdir: /nonexistent\n",
        "gitdir: \n",
        "garbage\n",
        "",
        "gitdir: ../outside\n",
    ] {
        let ws = TestWorkspace::plain();
        ws.write(".git", text);
        ws.write("file", "x\n");
        let output = ws.untouched(|| ws.try_json(["snapshot"]));
        assert_eq!(
            output.code, 1,
            "{text:?} is never taken for no repository: {output}"
        );
        assert!(ws.stores().is_empty());
    }
}

// The run points .git at another repository
#[test]
fn a_git_file_rewritten_to_another_repository_touches_nothing_there() {
    let ws = TestWorkspace::repository();
    let other = TestWorkspace::repository();
    other.write("README", "another\n");
    other.commit("another");
    let target = other.root().join(".git");
    let script = format!(
        "mv .git away; echo 'gitdir: {}' > .git; echo x > README; exit 1",
        target.display()
    );
    let output = other.untouched(|| ws.run(["--rollback-on-failure"], &script));
    let run = output.json();
    assert_eq!(run["exit_code"], 1, "{run}");
    let after = &run["workspace"]["after_snapshot"]["metadata"];
    assert!(
        after["head_ref"].is_null(),
        "the other one is not read: {run}"
    );
    let rollback = &run["workspace"]["rollback"];
    assert_eq!(rollback["status"], "completed", "{run}");
    assert!(
        !rollback["error"].is_null(),
        "what cannot be put back is said: {run}"
    );
    assert_eq!(ws.text("README"), "hello\n", "the files are");
}

// A directory of refs, or a loose ref, is a link to outside
#[test]
fn refs_that_are_links_are_not_written_through() {
    let ws = TestWorkspace::repository();
    let target = ws.outside().join("heads");
    fs::create_dir(&target).unwrap();
    let tip = ws.git(["rev-parse", "HEAD"]);
    fs::write(target.join("main"), format!("{tip}\n")).unwrap();
    let second = ws.git(["commit-tree", "HEAD^{tree}", "-p", "HEAD", "-m", "second"]);
    let script = format!(
        "rm -r .git/refs/heads; ln -s ../../../outside/heads .git/refs/heads; \
         echo {second} > ../outside/heads/main; exit 1"
    );
    ws.run(["--rollback-on-failure"], &script);
    let left: Vec<_> = fs::read_dir(&target)
        .unwrap()
        .flatten()
        .map(|e| e.file_name())
        .collect();
    assert_eq!(left, ["main"], "no lock and no ref was made outside");
    assert_eq!(
        fs::read_to_string(target.join("main")).unwrap().trim(),
        second
    );
}

#[test]
fn a_gitmodules_with_hostile_values_is_plain_content() {
    let ws = TestWorkspace::repository();
    ws.write(
        ".gitmodules",
        "[submodule \"../../x\"]\n\tpath = ../../outside\n\turl = ext::sh -c 'touch fired'\n\tupdate = !touch fired\n",
    );
    let snapshot = ws.snapshot();
    ws.write(".gitmodules", "");
    ws.restore(&snapshot);
    assert!(ws.text(".gitmodules").contains("ext::sh"));
    assert!(!ws.exists("fired"));
}

// The swap happens between capture and restore
#[test]
fn a_run_that_swaps_a_directory_for_a_link_is_taken_back_without_following_it() {
    let ws = TestWorkspace::repository();
    ws.write("dir/a", "x\n");
    ws.write("dir/b", "x\n");
    fs::write(ws.outside().join("a"), "not ours\n").unwrap();
    let outside = view::worktree(&ws.outside());
    let run = ws
        .run(
            ["--rollback-on-failure"],
            "rm -r dir; ln -s ../outside dir; exit 1",
        )
        .exits(1)
        .json();
    assert_eq!(run["workspace"]["rollback"]["status"], "completed", "{run}");
    assert!(ws.stat("dir").is_dir());
    assert_eq!(ws.text("dir/a"), "x\n");
    view::same(
        &outside,
        &view::worktree(&ws.outside()),
        "nothing outside is touched",
    );
}
