//! Names, kinds of files, and what file systems do; hostile worktrees that a restore meets.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use stillframe_tests::capability::{self, Capability, Immutable, Mounts};
use stillframe_tests::{TestWorkspace, json, oracle, view};

fn round_trip_of(names: &[&[u8]]) {
    let ws = TestWorkspace::repository();
    for (at, name) in names.iter().enumerate() {
        ws.write(name, format!("{at}\n"));
    }
    let snapshot = ws.snapshot();
    assert_eq!(snapshot.tree(), oracle::raw_tree(&ws));
    let before = view::worktree(ws.root());
    for (at, name) in names.iter().enumerate() {
        match at % 2 {
            0 => ws.remove(name),
            _ => ws.write(name, "edited\n"),
        }
    }
    let changed = ws.json(["diff", snapshot.id(), "now"]);
    let listed = changed["changed_paths"].as_array().unwrap().iter();
    let mut listed: Vec<Vec<u8>> = listed.map(json::path_bytes).collect();
    let mut expected: Vec<Vec<u8>> = names.iter().map(|n| n.to_vec()).collect();
    assert!(listed.is_sorted(), "sorted by bytes");
    listed.sort();
    expected.sort();
    assert_eq!(listed, expected, "every name is exact in JSON");
    ws.restore(&snapshot);
    view::same(&before, &view::worktree(ws.root()), "every name comes back");
}

#[test]
fn names_of_every_script_are_exact() {
    round_trip_of(&[
        "ünïcode".as_bytes(),
        "e\u{301}".as_bytes(),
        "é".as_bytes(),
        "кириллица/файл".as_bytes(),
        "日本/語".as_bytes(),
        "🦀/🚀.rs".as_bytes(),
        "\u{202e}rtl".as_bytes(),
    ]);
}

#[test]
fn spaces_dashes_hidden_and_long_names_are_exact() {
    let long = "l".repeat(255);
    let deep = format!("{}/{}", "d".repeat(200), "f".repeat(200));
    round_trip_of(&[
        b"with space",
        b"-dash",
        b"--json",
        b"_under_score",
        b".hidden",
        b".hidden-dir/.file",
        long.as_bytes(),
        deep.as_bytes(),
    ]);
}

#[test]
fn control_characters_quotes_and_bytes_are_exact() {
    round_trip_of(&[
        b"new\nline",
        b"tab\t",
        b"carriage\rreturn",
        b"\"quoted\"",
        b"'single'",
        b"back\\slash",
        b" leading",
        b"trailing ",
        b"trailing.",
        b"\x1b[31mred",
        b"not\xff\xfeutf8/\x80",
        b"CON",
        b"a:b",
        b"*",
        b"[a-z]?",
        b"$(touch x)",
        b"`touch x`",
    ]);
}

#[test]
fn a_terminal_that_shows_a_name_executes_nothing() {
    let ws = TestWorkspace::repository();
    let snapshot = ws.snapshot();
    ws.write(b"\x1b]8;;http://example.invalid\x07\x1b[2J\r", "x\n");
    ws.write("\u{202e}rtl", "x\n");
    for args in [
        &["diff", snapshot.id()][..],
        &["diff", snapshot.id(), "--name-only"],
        &["restore", snapshot.id(), "--plan"],
        &["restore", snapshot.id()],
    ] {
        let output = ws.stillframe(args).ok();
        for text in [&output.stdout, &output.stderr] {
            assert!(!text.contains(&0x1b), "an escape is escaped: {output}");
            assert!(!text.contains(&b'\r'), "{output}");
            let text = String::from_utf8_lossy(text);
            assert!(!text.contains('\u{202e}'), "{output}");
        }
    }
}

// A newline in a name is not a backslash and an n
#[test]
fn no_two_names_are_printed_alike() {
    let ws = TestWorkspace::repository();
    let snapshot = ws.snapshot();
    let names = [
        (&b"a\nb"[..], "a\\nb"),
        (b"a\\nb", "a\\\\nb"),
        (b"\xff", "\\xff"),
        (b"\\xff", "\\\\xff"),
        (b"C:\\dir", "C:\\\\dir"),
    ];
    for (name, _) in names {
        ws.write(name, "x\n");
    }
    let mut expected: Vec<&str> = names.map(|(_, printed)| printed).into();
    expected.sort_unstable();
    for (view, start) in [
        ("--name-only", ""),
        ("--name-status", "A\t"),
        ("--stat", ""),
    ] {
        let text = ws
            .stillframe(["diff", snapshot.id(), view])
            .ok()
            .stdout_text();
        let lines = text.lines().filter(|line| !line.contains("changed"));
        let mut printed: Vec<&str> = lines
            .map(|line| line.strip_prefix(start).unwrap())
            .map(|line| line.split(" | ").next().unwrap().trim_end())
            .collect();
        printed.sort_unstable();
        assert_eq!(printed, expected, "{view}");
    }
    let report = ws.stillframe(["restore", snapshot.id()]).ok().stdout_text();
    for (_, printed) in names {
        assert!(
            report.contains(&format!("restored {printed}\n")),
            "{report}"
        );
    }
}

#[test]
fn links_are_stored_as_links_and_never_followed() {
    let ws = TestWorkspace::repository();
    fs::write(ws.outside().join("secret"), "canary\n").unwrap();
    ws.write("dir/file", "x\n");
    for (name, target) in [
        ("to-file", "README"),
        ("to-dir", "dir"),
        ("dir/nested", "../to-dir"),
        ("dangling", "nowhere"),
        ("out", "../outside/secret"),
        ("out-dir", "../outside"),
        ("zero", "/dev/zero"),
    ] {
        ws.symlink(name, target);
    }
    let snapshot = ws.snapshot();
    let listing = oracle::stored_listing(&ws, snapshot.tree());
    let links = listing
        .entries
        .iter()
        .filter(|e| e.mode == "120000")
        .count();
    assert_eq!(links, 7);
    assert!(
        !listing
            .entries
            .iter()
            .any(|e| e.path.starts_with(b"out-dir/"))
    );
    let before = view::worktree(ws.root());
    ws.remove("to-dir");
    ws.symlink("to-dir", "elsewhere");
    ws.remove("dangling");
    ws.write("dangling", "a file\n");
    ws.restore(&snapshot);
    view::same(&before, &view::worktree(ws.root()), "links are back");
}

#[test]
fn links_in_a_circle_end() {
    let ws = TestWorkspace::repository();
    ws.symlink("a", "b");
    ws.symlink("b", "a");
    ws.symlink("self", "self");
    ws.symlink("d/up", "..");
    let snapshot = ws.snapshot();
    assert_eq!(snapshot.tree(), oracle::raw_tree(&ws));
    assert_eq!(snapshot.count("files"), 5);
}

#[test]
fn fifos_sockets_and_devices_are_named_and_never_opened() {
    let ws = TestWorkspace::repository();
    ws.mkfifo("pipe");
    ws.mkfifo("d/pipe");
    ws.socket("socket");
    let device = std::process::Command::new("mknod")
        .arg(ws.path("device"))
        .args(["c", "1", "5"])
        .status();
    let mut expected = vec!["d/pipe", "pipe", "socket"];
    if device.is_ok_and(|s| s.success()) {
        expected.insert(1, "device");
    }
    let snapshot = ws.untouched(|| ws.snapshot());
    expected.sort_unstable();
    let special: Vec<(String, String)> = expected
        .iter()
        .map(|name| ((*name).to_owned(), "special".to_owned()))
        .collect();
    assert_eq!(snapshot.omissions(), special);
    assert_eq!(snapshot.tree(), oracle::raw_tree(&ws), "the rest succeeds");
    ws.write("README", "edited\n");
    let before = ws.stat("pipe");
    ws.restore(&snapshot);
    assert_eq!(
        ws.stat("pipe").ino(),
        before.ino(),
        "it is left where it is"
    );
}

#[test]
fn a_fifo_in_the_way_is_moved_aside_unopened_and_named() {
    let ws = TestWorkspace::repository();
    ws.write("socket", "x\n");
    ws.write("dir/file", "y\n");
    let snapshot = ws.snapshot();
    ws.remove("README");
    ws.mkfifo("README");
    ws.remove("socket");
    ws.socket("socket");
    ws.remove("dir");
    ws.mkfifo("dir");
    let outcome = ws.restore(&snapshot);
    assert_eq!(ws.text("README"), "hello\n");
    assert_eq!(ws.text("socket"), "x\n");
    assert_eq!(ws.text("dir/file"), "y\n");
    let restored = json::names(&outcome["restored"]);
    for name in ["README", "dir/file", "socket"] {
        assert!(
            restored.iter().any(|p| p == name),
            "{name} is named: {outcome}"
        );
    }
}

#[test]
fn a_file_becomes_a_directory_and_the_reverse_both_ways() {
    let ws = TestWorkspace::repository();
    ws.write("one", "a file\n");
    ws.write("two/a", "x\n");
    ws.write("two/b/c", "x\n");
    let first = ws.snapshot();
    let first_view = view::worktree(ws.root());
    ws.remove("one");
    ws.write("one/inside/deep", "content\n");
    ws.remove("two");
    ws.write("two", "a file\n");
    let second = ws.snapshot();
    let second_view = view::worktree(ws.root());
    let outcome = ws.restore(&first);
    view::same(&first_view, &view::worktree(ws.root()), "back");
    let guard = outcome["guard_snapshot"].as_str().unwrap();
    assert_eq!(
        ws.show(guard)["tree"],
        second.tree(),
        "what was inside is in the guard"
    );
    ws.restore(&second);
    view::same(&second_view, &view::worktree(ws.root()), "and forth");
}

// The directory holds something that no snapshot has
#[test]
fn a_directory_with_ignored_content_in_the_place_of_a_file_is_kept() {
    let ws = TestWorkspace::repository();
    ws.write(".gitignore", "*.log\n");
    ws.write("place", "a file\n");
    let snapshot = ws.snapshot();
    ws.remove("place");
    ws.write("place/precious.log", "nowhere else\n");
    ws.write("place/plain", "x\n");
    let outcome = ws.restore(&snapshot);
    assert_eq!(ws.text("place/precious.log"), "nowhere else\n");
    assert!(
        json::names_in(&outcome["skipped"]).contains(&"place".to_owned()),
        "{outcome}"
    );
}

#[test]
fn a_directory_that_became_a_link_to_outside_is_replaced_and_nothing_outside_is_touched() {
    let ws = TestWorkspace::repository();
    ws.write("dir/victim", "captured\n");
    ws.write("dir/gone", "captured\n");
    let snapshot = ws.snapshot();
    fs::write(ws.outside().join("victim"), "not ours\n").unwrap();
    fs::write(ws.outside().join("bystander"), "not ours\n").unwrap();
    ws.remove("dir");
    ws.symlink("dir", "../outside");
    ws.settle();
    let outside = (view::worktree(&ws.outside()), view::times(&ws.outside()));
    ws.restore(&snapshot);
    assert_eq!(ws.text("dir/victim"), "captured\n");
    assert!(ws.stat("dir").is_dir(), "a real directory again");
    assert_eq!(
        (view::worktree(&ws.outside()), view::times(&ws.outside())),
        outside
    );
}

// The reverse, a removal below what is a link today
#[test]
fn nothing_is_removed_through_a_link() {
    let ws = TestWorkspace::repository();
    ws.symlink("dir", "../outside");
    let snapshot = ws.snapshot();
    ws.remove("dir");
    ws.write("dir/file", "x\n");
    fs::write(ws.outside().join("file"), "not ours\n").unwrap();
    ws.restore(&snapshot);
    assert!(ws.stat("dir").is_symlink());
    assert_eq!(fs::read(ws.outside().join("file")).unwrap(), b"not ours\n");
}

#[test]
fn a_file_that_became_a_link_is_replaced_and_the_target_untouched() {
    let ws = TestWorkspace::repository();
    let snapshot = ws.snapshot();
    let target = ws.outside().join("target");
    fs::write(&target, "not ours\n").unwrap();
    ws.remove("README");
    ws.symlink("README", "../outside/target");
    ws.restore(&snapshot);
    assert!(ws.stat("README").is_file());
    assert_eq!(ws.text("README"), "hello\n");
    assert_eq!(fs::read(&target).unwrap(), b"not ours\n");
}

#[test]
fn another_name_of_a_restored_file_keeps_its_bytes() {
    let ws = TestWorkspace::repository();
    let snapshot = ws.snapshot();
    let outside = ws.outside().join("other-name");
    ws.hard_link("README", &outside);
    fs::write(&outside, "edited through the other name\n").unwrap();
    assert_eq!(ws.text("README"), "edited through the other name\n");
    ws.restore(&snapshot);
    assert_eq!(ws.text("README"), "hello\n");
    assert_eq!(
        fs::read(&outside).unwrap(),
        b"edited through the other name\n"
    );
}

// New content arrives by rename
#[test]
fn whoever_has_a_restored_file_open_keeps_the_old_bytes() {
    use std::io::Read as _;
    let ws = TestWorkspace::repository();
    let snapshot = ws.snapshot();
    ws.write("README", "edited\n");
    let mut open = fs::File::open(ws.path("README")).unwrap();
    ws.restore(&snapshot);
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, "edited\n");
}

#[test]
fn aliases_of_dot_git_are_captured_or_named_and_the_store_stays_clean() {
    let ws = TestWorkspace::repository();
    let names = [
        ".GIT",
        ".Git/config",
        "sub/.gIt",
        ".git ",
        ".git.",
        "git~1",
        "sub/GIT~1/x",
        ".g\u{200c}it",
        ".git::$INDEX_ALLOCATION",
        "..git",
        ".gitx",
    ];
    for name in names {
        ws.write(name, format!("{name}\n"));
    }
    let snapshot = ws.snapshot();
    let listing = oracle::stored_listing(&ws, snapshot.tree());
    for name in names {
        let captured = listing.entries.iter().any(|e| e.path == name.as_bytes());
        let named = snapshot.covered(name);
        assert!(
            captured || named.as_deref() == Some("unrepresentable"),
            "{name:?} is captured or named, not {named:?}"
        );
        assert!(
            !(captured && named.is_some()),
            "{name:?} is one or the other"
        );
    }
    for name in ["..git", ".gitx"] {
        assert_eq!(snapshot.covered(name), None, "{name} is an ordinary name");
    }
    ws.write("README", "edited\n");
    let kept = view::worktree(ws.root()).without("README");
    ws.restore(&snapshot);
    view::same(
        &kept,
        &view::worktree(ws.root()).without("README"),
        "they are as they were",
    );
}

#[test]
fn whatever_is_called_dot_git_below_the_root_is_named_and_never_written() {
    let ws = TestWorkspace::repository();
    let other = TestWorkspace::repository();
    ws.write("unborn/file", "x\n");
    ws.git_in("work/unborn", ["init", "-q"]);
    ws.write("dir-only/.git/whatever", "no repository\n");
    ws.write("dir-only/file", "x\n");
    let pointer = format!("gitdir: {}\n", other.root().join(".git").display());
    ws.write("pointer/.git", &pointer);
    ws.write("pointer/file", "x\n");
    ws.symlink("link/.git", other.root().to_str().unwrap());
    ws.write("link/file", "x\n");
    let snapshot = other.untouched(|| ws.snapshot());
    for dir in ["unborn", "dir-only", "pointer", "link"] {
        assert_eq!(
            snapshot.omitted(&format!("{dir}/.git")).as_deref(),
            Some("git_dir"),
            "{dir}/.git is named: {}",
            snapshot.json
        );
    }
    assert_eq!(
        snapshot.tree(),
        oracle::raw_tree(&ws),
        "the files are captured as files"
    );
    let dot_gits = |ws: &TestWorkspace| {
        ["unborn/.git", "dir-only/.git"].map(|dir| view::worktree(&ws.path(dir)))
    };
    let before = dot_gits(&ws);
    for dir in ["unborn", "dir-only", "pointer", "link"] {
        ws.write(format!("{dir}/file"), "edited\n");
        ws.write(format!("{dir}/new"), "x\n");
    }
    other.untouched(|| ws.restore(&snapshot));
    for dir in ["unborn", "dir-only", "pointer", "link"] {
        assert_eq!(ws.text(format!("{dir}/file")), "x\n");
        assert!(!ws.exists(format!("{dir}/new")));
    }
    assert_eq!(dot_gits(&ws), before);
    assert_eq!(ws.text("pointer/.git"), pointer);
}

#[test]
fn a_nested_repository_that_a_failing_run_made_is_kept_whole_and_named() {
    let ws = TestWorkspace::repository();
    let script = "mkdir made && cd made && mkdir -p .git/refs .git/objects && \
        echo 'ref: refs/heads/main' > .git/HEAD && echo x > file && exit 1";
    let run = ws.run(["--rollback-on-failure"], script).exits(1).json();
    let rollback = &run["workspace"]["rollback"];
    assert!(ws.exists("made/.git/HEAD"), "it is kept");
    assert_eq!(ws.text("made/file"), "x\n", "whole");
    assert!(
        json::names_in(&rollback["skipped"]).contains(&"made".to_owned()),
        "{rollback}"
    );
}

#[test]
fn contents_that_are_no_text_are_exact() {
    let ws = TestWorkspace::repository();
    let all: Vec<u8> = (0..=255).cycle().take(70_000).collect();
    ws.write("bytes", &all);
    ws.write("latin1", b"caf\xe9\n");
    ws.write("utf16", b"\xff\xfeh\0i\0");
    ws.write("empty", "");
    let snapshot = ws.snapshot();
    let before = view::worktree(ws.root());
    for name in ["bytes", "latin1", "utf16", "empty"] {
        ws.write(name, "edited\n");
    }
    ws.restore(&snapshot);
    view::same(&before, &view::worktree(ws.root()), "every byte");
}

#[test]
fn what_may_not_be_read_is_named_never_deleted_and_never_touched() {
    let mut ws = TestWorkspace::repository();
    ws.write("locked-file", "x\n");
    ws.write("locked-dir/inside", "x\n");
    ws.write("beside", "x\n");
    ws.commit("second");
    if !ws.drop_privileges() {
        let why = "nobody cannot run the program";
        return capability::skipped(Capability::OtherUser, why);
    }
    ws.chmod("locked-file", 0o000);
    ws.chmod("locked-dir", 0o000);
    let snapshot = ws.snapshot();
    assert_eq!(
        snapshot.omitted("locked-file").as_deref(),
        Some("unreadable")
    );
    assert_eq!(
        snapshot.omitted("locked-dir").as_deref(),
        Some("unreadable")
    );
    ws.write("beside", "edited\n");
    let (file, dir) = (ws.stat("locked-file"), ws.stat("locked-dir"));
    let outcome = ws.restore(&snapshot);
    assert_eq!(ws.text("beside"), "x\n");
    assert_eq!(json::names(&outcome["restored"]), ["beside"]);
    for (name, old) in [("locked-file", file), ("locked-dir", dir)] {
        let new = ws.stat(name);
        assert_eq!(
            (new.ino(), new.mode(), new.ctime_nsec()),
            (old.ino(), old.mode(), old.ctime_nsec())
        );
    }

    // Readable in the target, unreadable today: what no guard holds is moved aside, and can be had
    // back.
    ws.chmod("locked-file", 0o644);
    ws.chmod("locked-dir", 0o755);
    let readable = ws.snapshot();
    ws.write("locked-file", "written since\n");
    ws.chmod("locked-file", 0o000);
    let outcome = ws.restore(&readable);
    assert_eq!(
        json::names(&outcome["restored"]),
        ["locked-file"],
        "{outcome}"
    );
    assert_eq!(ws.text("locked-file"), "x\n");
    ws.undo();
    assert_eq!(ws.mode("locked-file"), 0);
    ws.chmod("locked-file", 0o644);
    assert_eq!(ws.text("locked-file"), "written since\n");
    let diff = ws.json(["diff", snapshot.id(), readable.id()]);
    assert_eq!(
        json::names(&diff["deleted"]),
        [] as [&str; 0],
        "never seen as deleted"
    );
}

#[test]
fn permission_bits_come_back_and_none_is_invented() {
    let ws = TestWorkspace::repository();
    for (name, mode) in [
        ("private", 0o600),
        ("group", 0o664),
        ("everybody", 0o666),
        ("tool", 0o755),
        ("private-tool", 0o700),
        ("read-only", 0o444),
    ] {
        ws.write(name, "x\n");
        ws.chmod(name, mode);
    }
    ws.write("closed/inside", "x\n");
    ws.chmod("closed", 0o700);
    let snapshot = ws.snapshot();
    let before = view::worktree(ws.root());
    for name in ["private", "group", "everybody", "tool"] {
        ws.chmod(name, 0o640);
    }
    ws.remove("private-tool");
    ws.remove("read-only");
    ws.remove("closed");
    ws.restore(&snapshot);
    view::same(&before, &view::worktree(ws.root()), "modes are back");
}

#[test]
fn a_changed_executable_bit_is_a_change() {
    let ws = TestWorkspace::repository();
    let before = ws.snapshot();
    ws.chmod("README", 0o755);
    let after = ws.snapshot();
    let diff = ws.diff(&before, &after);
    assert_eq!(json::names(&diff["modified"]), ["README"]);
    ws.restore(&before);
    assert_eq!(ws.mode("README"), 0o644);
}

#[test]
fn setuid_and_setgid_are_never_put_back() {
    let ws = TestWorkspace::repository();
    ws.write("tool", "x\n");
    ws.chmod("tool", 0o6755);
    let snapshot = ws.snapshot();
    ws.remove("tool");
    ws.restore(&snapshot);
    assert_eq!(ws.mode("tool"), 0o755);
}

#[test]
fn a_sticky_directory_comes_back_sticky() {
    for strategy in ["git", "hash"] {
        let ws = TestWorkspace::repository();
        for (name, mode) in [("shared", 0o1777), ("open", 0o777), ("again", 0o1775)] {
            ws.write(format!("{name}/file"), "x\n");
            ws.chmod(name, mode);
        }
        let snapshot = ws.snapshot_with(["--strategy", strategy, "--retain-content"]);
        let before = view::worktree(ws.root());
        ws.chmod("shared", 0o777);
        ws.chmod("open", 0o1777);
        ws.remove("again");
        let outcome = ws.restore(&snapshot);
        view::same(&before, &view::worktree(ws.root()), strategy);
        ws.restore_id(outcome["guard_snapshot"].as_str().unwrap());
        assert_eq!([ws.mode("shared"), ws.mode("open")], [0o777, 0o1777]);
    }
}

#[test]
fn what_cannot_be_replaced_is_found_and_named() {
    let ws = TestWorkspace::repository();
    ws.write("fixed", "captured\n");
    ws.write("other", "captured\n");
    let snapshot = ws.snapshot();
    ws.write("fixed", "edited\n");
    ws.write("other", "edited\n");
    let Some(_immutable) = Immutable::new(ws.path("fixed")) else {
        return;
    };
    let output = ws.try_json(["restore", snapshot.id()]);
    assert_eq!(ws.text("fixed"), "edited\n");
    if output.code == 0 {
        let outcome = output.json();
        assert_eq!(json::names_in(&outcome["skipped"]), ["fixed"], "{outcome}");
        assert_eq!(ws.text("other"), "captured\n", "the rest is finished");
    } else {
        let message = output.json()["error"]["message"]
            .as_str()
            .unwrap()
            .to_owned();
        assert!(message.contains("fixed"), "{message}");
        assert_eq!(
            ws.text("other"),
            "edited\n",
            "found in time: nothing was applied"
        );
    }
}

#[test]
fn a_deep_directory_is_captured_and_restored() {
    let ws = TestWorkspace::repository();
    let deep = "d/".repeat(900);
    ws.write(format!("{deep}file"), "deep\n");
    let snapshot = ws.snapshot();
    assert_eq!(snapshot.tree(), oracle::raw_tree(&ws));
    ws.write(format!("{deep}file"), "edited\n");
    ws.restore(&snapshot);
    assert_eq!(ws.text(format!("{deep}file")), "deep\n");
    // The standard library holds a descriptor for every level while it removes a directory.
    let removed = std::process::Command::new("rm")
        .arg("-rf")
        .arg(ws.path("d"))
        .status();
    assert!(removed.unwrap().success());
    ws.restore(&snapshot);
    assert_eq!(ws.text(format!("{deep}file")), "deep\n");
    std::process::Command::new("rm")
        .arg("-rf")
        .arg(ws.path("d"))
        .status()
        .unwrap();
}

// Beyond what the kernel takes as one path
#[test]
fn a_path_too_long_for_the_kernel_ends_in_a_tree_or_in_a_typed_error() {
    let ws = TestWorkspace::repository();
    let name = "n".repeat(200);
    let mut dir = fs::File::open(ws.root()).unwrap();
    for _ in 0..30 {
        let flags = rustix::fs::OFlags::DIRECTORY;
        let mode = rustix::fs::Mode::from_raw_mode(0o755);
        rustix::fs::mkdirat(&dir, &name, mode).unwrap();
        let below = rustix::fs::openat(&dir, &name, flags, rustix::fs::Mode::empty());
        dir = fs::File::from(below.unwrap());
    }
    let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY;
    rustix::fs::openat(&dir, "file", flags, rustix::fs::Mode::from_raw_mode(0o644)).unwrap();
    let output = ws.try_json(["snapshot"]);
    match output.code {
        0 => {
            let snapshot = stillframe_tests::Snap::of(&output.json());
            let path = format!("{}file", format!("{name}/").repeat(30));
            let listing = oracle::stored_listing(&ws, snapshot.tree());
            let captured = listing.entries.iter().any(|e| e.path == path.as_bytes());
            assert!(
                captured || snapshot.covered(&path).is_some(),
                "captured or named"
            );
        }
        _ => drop(output.refused("LimitExceeded")),
    }
    std::process::Command::new("rm")
        .arg("-rf")
        .arg(ws.path(&name))
        .status()
        .unwrap();
}

#[test]
fn another_file_system_inside_is_not_crossed() {
    let ws = TestWorkspace::repository();
    ws.mkdir("mounted");
    let Some(mounts) = Mounts::new() else { return };
    mounts.tmpfs(&ws.path("mounted"), "1m");
    mounts.shell(&format!(
        "echo x > '{}/inside'",
        ws.path("mounted").display()
    ));
    let call = ws.call(["--json", "snapshot"]);
    let output = mounts.inside(call, ws.root()).run().ok();
    let snapshot = stillframe_tests::Snap::of(&output.json());
    assert_eq!(
        snapshot.omitted("mounted").as_deref(),
        Some("other_filesystem")
    );
    ws.write("README", "edited\n");
    let call = ws.call(["--json", "restore", snapshot.id()]);
    mounts.inside(call, ws.root()).run().ok();
    assert!(mounts.path(&ws.path("mounted/inside")).exists());
    assert_eq!(ws.text("README"), "hello\n");
}

/// In a container files and directories of one mount have different device numbers: a file has that
/// of the layer which it comes from.
#[test]
fn on_an_overlay_of_several_devices_every_file_is_captured_and_put_back() {
    let ws = TestWorkspace::repository();
    ws.write("dir/below", "lower\n");
    ws.write("dir/deeper/file", "lower\n");
    ws.write("untracked", "lower\n");
    ws.symlink("link", "README");
    ws.commit("more");
    ws.mkdir("within");
    let Some(mounts) = Mounts::new() else { return };
    let layers = tempfile::tempdir().unwrap();
    mounts.tmpfs(layers.path(), "64m");
    let (base, at) = (ws.base().display(), layers.path().display());
    mounts.shell(&format!(
        "mkdir '{at}/upper' '{at}/work' && mount -t overlay overlay \
         -o lowerdir='{base}',upperdir='{at}/upper',workdir='{at}/work',xino=off '{base}'"
    ));
    let place = mounts.path(ws.root());
    let device = |name: &str| fs::symlink_metadata(place.join(name)).unwrap().dev();
    assert_ne!(device("README"), device("dir"), "or nothing is tested");
    let call = |args: &[&str]| mounts.inside(ws.call(args), ws.root()).run();
    mounts.tmpfs(&ws.path("within"), "1m");
    fs::write(place.join("upper"), "upper\n").unwrap();
    let before = view::worktree(&place);

    let snapshot = call(&["--json", "snapshot"]).ok().json();
    let snapshot = stillframe_tests::Snap::of(&snapshot);
    assert_eq!(
        snapshot.omitted("within").as_deref(),
        Some("other_filesystem")
    );
    assert_eq!(snapshot.omissions().len(), 1, "and nothing else is");
    let script = "echo edited > README; echo edited > upper; rm -r dir; rm link; mkdir link; \
                  echo x > link/x; echo new > new; mv untracked moved; exit 3";
    let args = [
        "--json",
        "run",
        "--rollback-on-failure",
        "--",
        "sh",
        "-c",
        script,
    ];
    let run = call(&args).exits(3).json();
    let changed = &run["workspace"]["diff"];
    assert_eq!(changed["files_changed"], 9, "{changed}");
    view::same(&before, &view::worktree(&place), "it was rolled back");

    mounts.shell(&format!(
        "cd '{}' && rm -r dir README && echo x > dir",
        ws.root().display()
    ));
    call(&["--json", "restore", snapshot.id()]).ok();
    view::same(&before, &view::worktree(&place), "it was restored");
    call(&["--json", "verify"]).ok();
}

#[test]
fn names_like_those_of_temporary_files_mean_nothing() {
    let ws = TestWorkspace::repository();
    for name in [
        ".stillframe",
        ".stillframe-tmp/x",
        "stillframe.lock",
        ".stillframe.tmp",
        "trash",
        "staging/0",
    ] {
        ws.write(name, "mine\n");
    }
    let snapshot = ws.snapshot();
    assert_eq!(snapshot.tree(), oracle::raw_tree(&ws));
    let before = view::worktree(ws.root());
    for name in [".stillframe-tmp/x", "trash", "staging/0"] {
        ws.write(name, "edited\n");
    }
    ws.restore(&snapshot);
    view::same(
        &before,
        &view::worktree(ws.root()),
        "they are files like others",
    );
}

#[test]
fn a_restored_file_keeps_its_owner() {
    if !capability::is_root() {
        return;
    }
    let ws = TestWorkspace::plain();
    ws.write("theirs", "x\n");
    std::os::unix::fs::chown(ws.path("theirs"), Some(1234), Some(2345)).unwrap();
    let snapshot = ws.snapshot_with(["--retain-content"]);
    ws.write("theirs", "edited\n");
    ws.restore(&snapshot);
    let stat = ws.stat("theirs");
    assert_eq!((stat.uid(), stat.gid()), (1234, 2345));
    assert_eq!(ws.text("theirs"), "x\n");
    let mode = fs::metadata(ws.path("theirs"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o644);
}
