//! The command line itself: forms, streams, exit codes, help.

use stillframe_tests::capability::{self, Capability};
use stillframe_tests::{Snap, TestWorkspace, json};

use crate::disk::noise;

const COMMANDS: [&str; 17] = [
    "run",
    "snapshot",
    "list",
    "diff",
    "restore",
    "undo",
    "runs",
    "sessions",
    "show",
    "why",
    "events",
    "transcript",
    "export",
    "artifact",
    "verify",
    "gc",
    "completions",
];

#[test]
fn help_names_every_command() {
    let ws = TestWorkspace::plain();
    let help = ws.stillframe(["--help"]).ok().stdout_text();
    for command in COMMANDS {
        assert!(help.contains(command), "{command} is in:\n{help}");
        let own = ws.stillframe([command, "--help"]).ok().stdout_text();
        assert!(own.contains("Usage:"), "{own}");
    }
    assert!(!ws.state().exists(), "help writes nothing");
}

#[test]
fn the_version_is_one_line() {
    let ws = TestWorkspace::plain();
    let version = ws.stillframe(["--version"]).ok().stdout_text();
    assert!(version.starts_with("stillframe "), "{version}");
    assert_eq!(version.lines().count(), 1);
}

#[test]
fn completions_are_made_for_every_shell() {
    let ws = TestWorkspace::plain();
    for shell in ["bash", "zsh", "fish"] {
        let script = ws.stillframe(["completions", shell]).ok().stdout_text();
        assert!(script.contains("snapshot"), "{shell}");
    }
    ws.stillframe(["completions", "no-such-shell"]).exits(2);
}

// Usage errors exit with 2
#[test]
fn errors_of_usage_are_2_and_write_nothing() {
    let ws = TestWorkspace::repository();
    for args in [
        &[][..],
        &["no-such-command"],
        &["snapshot", "--no-such-option"],
        &["diff"],
        &["restore"],
        &["show"],
        &["why"],
        &["artifact"],
        &["gc", "--keep", "many"],
        &["run", "--wait", "1s", "--", "true"],
        &["gc", "--older-than", "a while"],
        &["events", "--after", "x", "--session", "s"],
    ] {
        let output = ws.untouched(|| ws.stillframe(args).exits(2));
        assert!(!output.stderr.is_empty(), "{output}");
        assert!(output.stdout.is_empty(), "stdout is for answers: {output}");
    }
    assert!(!ws.state().join("workspaces").exists(), "nothing was made");
}

// A failure is one line on stderr that says what, and what to do
#[test]
fn a_failure_is_one_line_on_stderr() {
    let ws = TestWorkspace::repository();
    ws.snapshot();
    for args in [
        &["show", "snap_00000000000000000000000000000000"][..],
        &["restore", "ffffffff"],
        &["diff", "ffffffff"],
        &["undo"],
        &["artifact", "get", "nothing"],
    ] {
        let output = ws.stillframe(args).exits(1);
        let text = output.stderr_text();
        assert_eq!(text.lines().count(), 1, "{output}");
        assert!(text.starts_with("stillframe: "), "{output}");
        assert!(output.stdout.is_empty(), "{output}");
    }
}

// A failure with `--json` is a document too
#[test]
fn a_failure_with_json_is_a_document_and_keeps_its_exit_code() {
    let ws = TestWorkspace::repository();
    let output = ws
        .try_json(["show", "snap_00000000000000000000000000000000"])
        .exits(1);
    let document = output.json();
    assert_eq!(json::keys(&document), ["error"]);
    assert_eq!(
        json::keys(&document["error"]),
        ["kind", "message", "retryable", "run_id", "touched"]
    );
    assert_eq!(document["error"]["kind"], "NotFound");
    assert_eq!(document["error"]["retryable"], false);
    assert_eq!(document["error"]["run_id"], serde_json::Value::Null);
    assert_eq!(document["error"]["touched"], false);
    let message = document["error"]["message"].as_str().unwrap();
    assert!(message.contains("snap_0000"), "it names the id: {message}");
    assert!(!message.ends_with('.'), "{message}");
}

#[test]
fn a_failure_in_a_run_names_the_run() {
    let ws = TestWorkspace::plain();
    let refused = [
        "run",
        "--no-retain-content",
        "--rollback-on-failure",
        "--run-id",
        "mine",
        "--",
        "true",
    ];
    let error = &ws.try_json(refused).exits(125).json()["error"];
    assert_eq!(error["kind"], "Unsupported", "{error}");
    assert_eq!(error["run_id"], "mine", "{error}");
    assert_eq!(error["retryable"], false, "{error}");
}

// A script that sends stdout elsewhere failed without a word
#[test]
fn a_failure_with_json_is_a_document_on_stdout_and_one_line_on_stderr() {
    let ws = TestWorkspace::repository();
    ws.snapshot();
    for (args, code) in [
        (&["show", "snap_00000000000000000000000000000000"][..], 1),
        (&["restore", "ffffffff"], 1),
        (&["undo"], 1),
        (&["artifact", "get", "nothing"], 1),
        (&["list", "--no-such-option"], 2),
        (
            &[
                "run",
                "--strategy",
                "hash",
                "--no-retain-content",
                "--rollback-on-failure",
                "--",
                "true",
            ],
            125,
        ),
    ] {
        let document = ws.try_json(args).exits(code);
        assert!(
            document.json()["error"]["message"].is_string(),
            "{document}"
        );
        let line = ws.stillframe(args).exits(code);
        if code != 2 {
            assert_eq!(document.stderr_text(), line.stderr_text(), "the same line");
        }
        let text = document.stderr_text();
        assert_eq!(text.lines().count(), 1, "{document}");
        assert!(text.starts_with("stillframe: "), "{document}");
    }
}

// So does an answer that is a document of its own
#[test]
fn what_was_refused_with_a_document_of_its_own_says_one_line_too() {
    let ws = TestWorkspace::repository();
    let not_found = ws.try_json(["run", "--", "no-such-program"]).exits(127);
    assert_eq!(not_found.json()["status"], "failed");
    let text = not_found.stderr_text();
    assert_eq!(text.lines().count(), 1, "{not_found}");
    assert!(text.contains("no-such-program"), "{not_found}");

    let failed = ws.run::<&str>([], "exit 3").exits(3);
    assert_eq!(failed.stderr_text(), "", "the command speaks for itself");

    let late = ws.run(["--timeout", "100ms"], "exec sleep 60").exits(124);
    assert_eq!(late.stderr_text().lines().count(), 1, "{late}");

    let mut damaged = TestWorkspace::plain();
    damaged.damages_the_store();
    damaged.write("a", "1\n");
    damaged.snapshot();
    let only = |directory: std::path::PathBuf| {
        let entry = std::fs::read_dir(directory).unwrap().next();
        entry.expect("it has something in it").unwrap().path()
    };
    let store = only(damaged.state().join("workspaces"));
    std::fs::write(only(store.join("hash/manifests")), "rubbish").unwrap();
    let unsound = damaged.try_json(["verify"]).exits(1);
    assert!(unsound.json()["snapshots"].is_array(), "{unsound}");
    assert_eq!(unsound.stderr_text().lines().count(), 1, "{unsound}");
}

// `--json` and `--workspace` work before and after the subcommand
#[test]
fn json_and_workspace_work_before_and_after_the_subcommand() {
    let ws = TestWorkspace::repository();
    let root = ws.root().to_str().unwrap();
    for args in [
        &["--json", "--workspace", root, "snapshot"][..],
        &["snapshot", "--json", "--workspace", root],
        &["--json", "snapshot", "--workspace", root],
        &["--workspace", root, "snapshot", "--json"],
    ] {
        let output = ws.call(args).cwd(ws.outside()).run().ok();
        assert_eq!(Snap::of(&output.json()).json["path"], root, "{args:?}");
    }
    let output = ws
        .call(["--workspace", root, "artifact", "list", "--json"])
        .cwd("/")
        .run()
        .ok();
    assert_eq!(output.json(), serde_json::json!([]));
}

// `list`, `runs` and `artifact list` print an array
#[test]
fn lists_are_arrays_also_when_empty() {
    let ws = TestWorkspace::repository();
    for args in [&["list"][..], &["runs"], &["artifact", "list"]] {
        assert_eq!(ws.json(args), serde_json::json!([]), "{args:?}");
    }
    assert!(ws.events::<&str>([]).is_empty());
}

#[test]
fn the_list_is_newest_first() {
    let ws = TestWorkspace::repository();
    let ids: Vec<String> = (0..4).map(|_| ws.snapshot().id().to_owned()).collect();
    let listed = ws.json(["list"]);
    let listed: Vec<&str> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|s| s["id"].as_str().unwrap())
        .collect();
    let newest_first: Vec<&str> = ids.iter().rev().map(String::as_str).collect();
    assert_eq!(listed, newest_first);
}

#[test]
fn a_list_has_the_documents_of_the_snapshots() {
    let ws = TestWorkspace::repository();
    let snapshot = ws.snapshot();
    let listed = ws.json(["list"]);
    assert_eq!(listed[0]["id"], snapshot.id());
    assert_eq!(listed[0]["tree"], snapshot.tree());
    assert_eq!(ws.show(snapshot.id()), snapshot.json);
}

#[test]
fn answers_for_people_go_to_stdout() {
    let ws = TestWorkspace::repository();
    let snapshot = ws.snapshot();
    let run = ws.run::<&str>([], "echo x > new").ok().json();
    let run_id = run["run_id"].as_str().unwrap();
    for args in [
        &["list"][..],
        &["runs"],
        &["show", snapshot.id()],
        &["show", run_id],
        &["diff", snapshot.id()],
        &["why", "README"],
        &["events"],
    ] {
        let output = ws.stillframe(args).ok();
        assert!(!output.stdout.is_empty(), "{output}");
    }
    let listed = ws.stillframe(["list"]).ok().stdout_text();
    assert!(
        listed.contains(&snapshot.id()[..9]),
        "an id that can be used: {listed}"
    );
}

// On a pipe nothing is said on stderr
#[test]
fn stderr_of_a_json_command_on_a_pipe_is_empty() {
    let ws = TestWorkspace::repository();
    ws.write(".gitignore", "*.log\n");
    ws.write("a.log", "an ignored file is no warning\n");
    let snapshot = ws.snapshot();
    ws.write("README", "edited\n");
    for args in [
        &["snapshot"][..],
        &["list"],
        &["runs"],
        &["diff", snapshot.id(), "now"],
        &["show", snapshot.id()],
        &["why", "a.log"],
        &["restore", snapshot.id(), "--plan"],
        &["restore", snapshot.id()],
        &["undo"],
        &["events"],
        &["artifact", "list"],
        &["verify"],
        &["run", "--", "true"],
        &["gc", "--keep", "100"],
    ] {
        let output = ws.try_json(args).ok();
        assert_eq!(output.stderr_text(), "", "{output}");
    }
}

#[test]
fn an_omission_that_is_not_ignored_is_a_warning() {
    let ws = TestWorkspace::repository();
    ws.mkfifo("pipe");
    let output = ws.try_json(["snapshot"]).ok();
    assert!(output.stderr_text().contains("pipe"), "{output}");
    let output = ws.stillframe(["snapshot"]).ok();
    assert!(output.stderr_text().contains("pipe"), "{output}");
}

// On a pipe silence, on a terminal the same result
#[test]
fn a_snapshot_without_json_says_its_id_and_no_progress_on_a_pipe() {
    let ws = TestWorkspace::repository();
    let output = ws.stillframe(["snapshot"]).ok();
    assert!(output.stdout_text().contains("snap_"), "{output}");
    assert!(
        !output.stdout.contains(&0x1b) && !output.stderr.contains(&0x1b),
        "{output}"
    );
    assert!(!output.stderr.contains(&b'\r'), "{output}");
}

#[test]
fn on_a_terminal_the_result_is_the_same() {
    let ws = TestWorkspace::repository();
    let program = stillframe_tests::binary::stillframe();
    let command = format!("{} --json snapshot", program.display());
    let output = pty(&ws, &command);
    let Some(output) = output else { return };
    let text = output.stdout_text();
    let start = text
        .find("{\"")
        .or_else(|| text.find('{'))
        .expect("a document");
    let end = text.rfind('}').expect("a document");
    let snapshot = Snap::of(&serde_json::from_str(&text[start..=end]).unwrap());
    assert_eq!(snapshot.tree(), ws.snapshot().tree());
}

fn pty(ws: &TestWorkspace, command: &str) -> Option<stillframe_tests::Output> {
    if std::process::Command::new("script")
        .arg("--version")
        .output()
        .is_err()
    {
        capability::skipped(Capability::Script, "there is no script(1)");
        return None;
    }
    let mut call = stillframe_tests::Call::new("script", ws.root())
        .args(["-q", "-e", "-c", command, "/dev/null"])
        .env("HOME", ws.home())
        .env("STILLFRAME_HOME", ws.state())
        .env("TERM", "xterm")
        .env("SHELL", "/bin/sh");
    if let Some(path) = std::env::var_os("PATH") {
        call = call.env("PATH", path);
    }
    Some(call.run().ok())
}

#[test]
fn why_has_an_answer_for_every_kind_of_path() {
    let ws = TestWorkspace::repository();
    ws.write(".gitignore", "ignored*\n");
    ws.write("ignored-1", "x\n");
    ws.mkfifo("pipe");
    ws.write("inner/.git/x", "x\n");
    ws.write("untracked", "x\n");
    for (path, captured, reason) in [
        ("README", true, "tracked"),
        ("untracked", true, "untracked"),
        ("ignored-1", false, "ignored"),
        ("pipe", false, "special"),
        ("inner/.git", false, "git_dir"),
        ("nowhere", false, "absent"),
    ] {
        let why = ws.json(["why", path]);
        assert_eq!(why["path"], path, "{why}");
        assert_eq!(why["captured"], captured, "{why}");
        assert_eq!(why["reason"], reason, "{why}");
        let text = ws.stillframe(["why", path]).ok().stdout_text();
        assert!(text.contains(path), "{text}");
    }
    let rule = ws.json(["why", "ignored-1"])["rule"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(
        rule.contains(".gitignore:1") && rule.contains("ignored*"),
        "{rule}"
    );
    ws.try_json(["why", "../outside"]).refused("InvalidOptions");
}

#[test]
fn why_names_the_rule_of_a_directory_and_of_what_is_below_it() {
    let ws = TestWorkspace::repository();
    ws.write(".gitignore", "build/\n!kept/\n");
    ws.write("build/deep/x", "x\n");
    ws.symlink("link", "build");
    let snapshot = ws.snapshot();
    let at = ["--snapshot", snapshot.id()];
    for (path, oracle) in [("build", "build/"), ("build/deep/x", "build/deep/x")] {
        let git = ws.git(["check-ignore", "-v", oracle]);
        assert!(git.starts_with(".gitignore:1:build/"), "{git}");
        for snapshot in [&[][..], &at] {
            let why = ws.json([&["why", path][..], snapshot].concat());
            assert_eq!(why["reason"], "ignored", "{why}");
            assert_eq!(why["rule"], ".gitignore:1: build/", "{why}");
        }
    }
    let text = ws.stillframe(["why", "build"]).ok().stdout_text();
    assert_eq!(
        text,
        "build: not captured (ignored, by .gitignore:1: build/)\n"
    );
    let excluded = ws.snapshot_with(["--ignore-path", "build"]);
    let why = ws.json(["why", "build", "--snapshot", excluded.id()]);
    assert_eq!(why["rule"], "ignore.paths: build", "{why}");
}

#[test]
fn why_says_that_the_repository_itself_is_not_captured() {
    let ws = TestWorkspace::repository();
    let snapshot = ws.snapshot();
    for path in [".git", ".git/config", ".git/no/such"] {
        for snapshot in [&[][..], &["--snapshot", snapshot.id()]] {
            let why = ws.json([&["why", path][..], snapshot].concat());
            assert_eq!(why["captured"], false, "{why}");
            assert_eq!(why["reason"], "git_dir", "{why}");
        }
    }
    assert_eq!(ws.json(["why", ".gitx"])["reason"], "absent");
}

#[test]
fn an_answer_that_cannot_be_written_is_said_on_stderr_and_a_closed_pipe_is_not() {
    let ws = TestWorkspace::repository();
    ws.snapshot();
    let full = "\"$@\" >/dev/full";
    // A pipe whose only reader is gone before anything is written.
    let closed = "mkfifo \"$HOME/p\" && exec 3<>\"$HOME/p\" 4>\"$HOME/p\" 3<&- && rm \"$HOME/p\" \
                  && \"$@\" >&4";
    for (args, code) in [
        (&["--json", "list"][..], 0),
        (&["list"], 0),
        (&["--json", "show", "snap_ffff"], 1),
    ] {
        let through = |script| ws.call(args).through("sh", ["-c", script, "sh"]).run();
        let output = through(full).exits(1);
        assert_eq!(output.stderr_text().lines().count(), 1, "{output}");
        let output = through(closed).exits(code);
        // Why it failed is said all the same; that nobody reads the answer is not.
        let lines = usize::try_from(code).unwrap();
        assert_eq!(output.stderr_text().lines().count(), lines, "{output}");
    }
    let output = ws
        .call(["--json", "list"])
        .through("sh", ["-c", full, "sh"]);
    let message = output.run().stderr_text();
    assert!(message.contains("stdout cannot be written"), "{message}");
}

#[test]
fn why_says_that_a_path_is_kept_in_the_session() {
    let ws = TestWorkspace::repository();
    ws.write("file", "x\n");
    ws.snapshot();
    ws.write(".gitignore", "file\n");
    let why = ws.json(["why", "file"]);
    assert_eq!(why["captured"], true, "{why}");
    assert_eq!(why["reason"], "kept_in_session", "{why}");
}

#[test]
fn paths_that_are_no_text_can_be_given_and_come_back() {
    use std::os::unix::ffi::OsStrExt as _;
    let ws = TestWorkspace::repository();
    ws.write(b"odd\xff", "1\n");
    let snapshot = ws.snapshot();
    ws.write(b"odd\xff", "2\n");
    let odd = std::ffi::OsStr::from_bytes(b"odd\xff");
    let why = ws.call(["--json", "why"]).args([odd]).run().ok().json();
    assert_eq!(json::path_bytes(&why["path"]), b"odd\xff");
    let outcome = ws
        .call(["--json", "restore", snapshot.id()])
        .args([odd])
        .run()
        .ok()
        .json();
    assert_eq!(json::path_bytes(&outcome["restored"][0]), b"odd\xff");
    assert_eq!(ws.read(b"odd\xff"), b"1\n");
}

// Whatever had the name "-wal" in the current directory was synced in the place of the log, or
// waited for
#[test]
fn a_state_directory_whose_name_is_no_text_works() {
    use std::os::unix::ffi::OsStrExt as _;
    let mut ws = TestWorkspace::plain();
    let state = ws.base().join(std::ffi::OsStr::from_bytes(b"st\xffate"));
    ws.set_env("STILLFRAME_HOME", &state);
    ws.write("file", "1\n");
    ws.mkfifo("-wal");
    let snapshot = ws.snapshot();
    ws.write("file", "2\n");
    ws.run::<&str>([], "echo 3 > file").ok();
    ws.undo();
    assert_eq!(ws.text("file"), "2\n");
    ws.restore(&snapshot);
    assert_eq!(ws.text("file"), "1\n");
    ws.json(["verify"]);
    assert!(state.join("stillframe.db-wal").exists());
}

#[test]
fn a_workspace_whose_own_name_is_odd_works() {
    use std::os::unix::ffi::OsStrExt as _;
    let mut ws = TestWorkspace::plain();
    for name in [&b"with space"[..], b"[wild]*?", b"new\nline", b"\xff\xfe"] {
        let dir = ws.base().join(std::ffi::OsStr::from_bytes(name));
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join("file"), "x\n").unwrap();
        let output = ws.call(["--json", "snapshot"]).cwd(&dir).run().ok();
        let snapshot = Snap::of(&output.json());
        assert_eq!(snapshot.count("files"), 1);
        assert_eq!(
            json::path_bytes(&snapshot.json["path"]),
            dir.as_os_str().as_bytes()
        );
    }
    ws.set_root("with space");
    assert_eq!(ws.json(["list"]).as_array().unwrap().len(), 1);
}

#[test]
fn a_reader_that_goes_away_is_no_panic() {
    let ws = TestWorkspace::repository();
    for i in 0..30 {
        ws.write(format!("f{i}"), "x\n".repeat(4000));
    }
    let snapshot = ws.snapshot();
    for i in 0..30 {
        ws.write(format!("f{i}"), "y\n".repeat(4000));
    }
    let program = stillframe_tests::binary::stillframe().display().to_string();
    let script = format!("'{program}' diff {} --patch | head -c 10", snapshot.id());
    let output = ws
        .call::<&str>([])
        .through("/bin/sh", ["-c", script.as_str()])
        .run()
        .ok();
    assert!(!output.stderr_text().contains("panic"), "{output}");
}

// A directory that was moved, and then made again where it had moved to, used to begin anew
#[test]
fn a_workspace_is_its_directory_wherever_it_moves_and_whatever_is_made_in_its_place() {
    let mut ws = TestWorkspace::plain();
    let ids = |ws: &TestWorkspace| -> Vec<String> {
        let list = ws.json(["list"]);
        let list = list.as_array().unwrap().iter();
        list.map(|s| Snap::of(s).id().to_owned()).collect()
    };
    let first = ws.snapshot_with(["--retain-content"]).id().to_owned();
    let place = |name: &str| ws.base().join(name);
    let (work, moved) = (place("work"), place("moved"));

    std::fs::rename(&work, &moved).unwrap();
    ws.set_root("moved");
    assert_eq!(ids(&ws), std::slice::from_ref(&first), "moved as a whole");
    let second = ws.snapshot_with(["--retain-content"]).id().to_owned();

    std::fs::remove_dir(&moved).unwrap();
    std::fs::create_dir(&moved).unwrap();
    assert_eq!(ids(&ws), [second, first], "made again at its path");

    std::fs::create_dir(&work).unwrap();
    ws.set_root("work");
    assert_eq!(
        ids(&ws),
        [] as [String; 0],
        "another directory where it once was"
    );
}

// Below a workspace: what reads is about it, and what writes says that it is there
#[test]
fn what_reads_below_a_workspace_is_about_the_workspace_and_names_it() {
    let ws = TestWorkspace::repository();
    ws.write("d/e/file", "1\n");
    ws.write(".gitignore", "*.o\n");
    let run = ws
        .run::<&str>([], "echo 2 > d/e/file; echo x > d/e/a.o")
        .ok()
        .json();
    let run_id = run["run_id"].as_str().unwrap();
    let before = run["workspace"]["before_snapshot"]["id"].as_str().unwrap();
    let below = ws.path("d/e");
    let root = ws.root().to_str().unwrap();
    let asked = |args: &[&str]| {
        let json = ws.untouched(|| ws.call([&["--json"], args].concat()).cwd(&below).run().ok());
        let told = ws.call(args).cwd(&below).run().ok().stderr_text();
        assert!(
            told.lines()
                .any(|line| line.ends_with(&format!("{root} above it"))),
            "{told}"
        );
        json.json()
    };
    assert_eq!(asked(&["list"]), ws.json(["list"]));
    assert_eq!(asked(&["runs"])[0]["run_id"], run_id);
    let diff = asked(&["diff", before]);
    assert_eq!(json::names(&diff["changed_paths"]), ["d/e/file"], "{diff}");
    let why = asked(&["why", "a.o"]);
    assert_eq!(
        (&why["path"], &why["reason"]),
        (&"d/e/a.o".into(), &"ignored".into()),
        "{why}"
    );
    let plan = asked(&["restore", before, "--plan", "file"]);
    assert_eq!(json::names_in(&plan["writes"]), ["d/e/file"], "{plan}");
    assert_eq!(asked(&["verify"]), ws.json(["verify"]));

    // Named, or captured by itself, it is what it is.
    let here = below.to_str().unwrap();
    let named = ws.call(["--json", "list", "--workspace", here]).run().ok();
    assert_eq!(named.json(), serde_json::json!([]));
    ws.call(["snapshot"]).cwd(&below).run().ok();
    let own = ws.call(["--json", "list"]).cwd(&below).run().ok().json();
    assert_eq!(own.as_array().unwrap().len(), 1, "{own}");
}

#[test]
fn what_writes_below_a_workspace_says_that_it_is_there_and_does_what_it_was_told() {
    let ws = TestWorkspace::plain();
    ws.write("d/file", "1\n");
    let snapshot = ws.snapshot();
    let below = ws.path("d");
    let option = format!(
        "add --workspace {} to be about that one",
        ws.root().display()
    );
    let told = |args: &[&str]| {
        let output = ws.call(args).cwd(&below).run();
        let text = output.stderr_text();
        assert!(text.contains(&option), "{text}");
        output
    };
    told(&["restore", snapshot.id()]).exits(1);
    told(&["gc", "--keep", "1"]).ok();
    told(&["purge", "file"]).exits(1);
    told(&["snapshot"]).ok();
    assert_eq!(
        ws.json(["list"]).as_array().unwrap().len(),
        1,
        "the one above is as it was"
    );
    let again = ws.call(["snapshot"]).cwd(&below).run().ok().stderr_text();
    assert!(
        !again.contains("--workspace"),
        "by now it is one of its own: {again}"
    );

    let ws = TestWorkspace::plain();
    ws.mkdir("d");
    let nothing = ws.call(["run", "--", "true"]).cwd(ws.path("d")).run().ok();
    assert!(!nothing.stderr_text().contains("above"), "there is none");
}

// The signal killed the program
#[test]
fn a_limit_of_the_size_of_files_is_no_space_and_nothing_is_lost() {
    let ws = TestWorkspace::repository();
    let first = ws.snapshot();
    let listed = ws.json(["list"]);
    ws.write("big", noise(4 << 20, 7));
    // In blocks of 512 bytes: two megabytes.
    let limited = ["-c", "ulimit -f 4096; exec \"$@\"", "sh"];
    let call = |args: &[&str]| {
        ws.call(["--json"])
            .args(args)
            .through("/bin/sh", limited)
            .run()
    };
    let message = ws.untouched(|| call(&["snapshot"]).refused("NoSpace"));
    assert!(message.contains("RLIMIT_FSIZE"), "{message}");
    assert_eq!(call(&["list"]).ok().json(), listed, "nothing was published");
    let run = call(&["run", "--", "/bin/sh", "-c", "echo edited > README"]);
    assert_eq!(run.code, 125, "{run}");
    ws.remove("big");
    ws.write("README", "edited\n");
    call(&["restore", first.id(), "README"]).ok();
    assert_eq!(ws.text("README"), "hello\n");
    ws.write("big", noise(4 << 20, 7));
    let large = ws.snapshot();
    ws.remove("big");
    let copy = ws.outside().join("copy");
    let to = ["restore", large.id(), "--to", copy.to_str().unwrap()];
    for args in [&["restore", large.id()][..], &to] {
        let message = ws.untouched(|| call(args).refused("NoSpace"));
        assert!(message.contains("RLIMIT_FSIZE"), "{message}");
        assert!(!message.contains("has to write"), "{message}");
        assert!(!message.contains(".stillframe-"), "{message}");
    }
    assert!(!copy.exists());
    // A hole is made in another way than content is written.
    let hole = std::fs::File::create(ws.path("hole")).unwrap();
    hole.set_len(4 << 20).unwrap();
    let holes = ws.snapshot();
    ws.remove("hole");
    let to = ["restore", holes.id(), "--to", copy.to_str().unwrap()];
    let message = ws.untouched(|| call(&to).refused("NoSpace"));
    assert!(message.contains(copy.to_str().unwrap()), "{message}");
    assert!(!message.contains(".stillframe-"), "{message}");
    ws.json(["restore", large.id()]);
    ws.json(["verify"]);
}

#[test]
fn a_command_starts_with_the_signals_ignored_that_the_program_was_started_with() {
    let ws = TestWorkspace::repository();
    let look = "/bin/sh -c 'grep ^SigIgn: /proc/$$/status'";
    for trap in [
        "true",
        "trap '' XFSZ",
        "trap '' INT QUIT TERM HUP CHLD USR1",
    ] {
        let under = |script: &str| {
            let call = ws.call([
                "run",
                "--",
                "/bin/sh",
                "-c",
                "grep ^SigIgn: /proc/$$/status",
            ]);
            call.through("/bin/sh", ["-c", script, "sh"])
                .run()
                .ok()
                .stdout_text()
                .to_owned()
        };
        let without = under(&format!("{trap}; exec {look}"));
        assert!(without.starts_with("SigIgn:"), "{without}");
        assert_eq!(
            under(&format!("{trap}; exec \"$@\"")),
            without,
            "after {trap}"
        );
    }
    // What cannot be started is told as ever.
    let call = ws.call(["--json", "run", "--", "no-such-command"]);
    let ignoring = ["-c", "trap '' INT; exec \"$@\"", "sh"];
    let refused = call.through("/bin/sh", ignoring).run().exits(127);
    assert_eq!(refused.json()["error"]["kind"], "NotFound", "{refused}");
}

// "is not below a workspace that the current directory is in", of the home directory
#[test]
fn a_path_may_lead_up_to_the_home_directory_if_that_was_captured() {
    let ws = TestWorkspace::plain();
    ws.write("a", "1\n");
    ws.mkdir("sub");
    let in_sub = |args: &[&str]| {
        let call = ws.call(args).env("HOME", ws.root());
        call.cwd(ws.path("sub")).run()
    };
    let copied = ws.outside().join("copy").display().to_string();
    let reading: [&[&str]; 5] = [
        &["diff", "latest", "--", "../a"],
        &["why", "../a"],
        &["restore", "latest", "--plan", "../a"],
        &["restore", "latest", "--to", &copied, "../a"],
        &["purge", "../a", "--plan"],
    ];
    for args in reading {
        let said = ws.untouched(|| in_sub(args).exits(1).stderr_text());
        assert!(
            said.contains("../a is not below a workspace"),
            "{args:?}: {said}"
        );
    }
    ws.snapshot_with(["--retain-content"]);
    ws.write("a", "2\n");
    for args in reading {
        let told = in_sub(args).ok();
        let said = told.stderr_text();
        assert!(said.contains("above this directory"), "{args:?}: {said}");
    }
    assert_eq!(
        std::fs::read_to_string(ws.outside().join("copy/a")).unwrap(),
        "1\n"
    );
    ws.untouched(|| {
        let writing: [&[&str]; 2] = [&["restore", "latest", "../a"], &["undo", "--", "../a"]];
        for args in writing {
            let said = in_sub(args).exits(1).stderr_text();
            let root = ws.root().display().to_string();
            assert!(
                said.contains(&format!("add --workspace {root} ")),
                "{args:?}: {said}"
            );
        }
    });
}

// "is not a path below the workspace", though it was
#[test]
fn a_path_may_lead_up_from_a_directory_of_the_workspace() {
    let ws = TestWorkspace::repository();
    ws.write("a", "1\n");
    ws.write("sub/b", "1\n");
    ws.commit("two files");
    let before = ws.snapshot();
    ws.write("a", "2\n");
    ws.write("sub/b", "2\n");
    let in_sub = |args: &[&str]| {
        let call = ws.call(["--json"]).args(args).cwd(ws.path("sub"));
        call.run()
    };
    let absolute = ws.path("a").display().to_string();
    for path in ["../a", "./../a", "../sub/../a", &absolute] {
        if path == "../sub/../a" {
            // Where that leads depends on what "sub" is.
            in_sub(&["diff", "latest", "--", path]).refused("InvalidOptions");
            continue;
        }
        let diff = in_sub(&["diff", "latest", "--", path]).ok().json();
        assert_eq!(diff["changed_paths"], serde_json::json!(["a"]), "{path}");
        let why = in_sub(&["why", path]).ok().json();
        assert_eq!(why["path"], "a", "{path}: {why}");
        let plan = in_sub(&["restore", before.id(), "--plan", path])
            .ok()
            .json();
        assert_eq!(plan["writes"][0]["path"], "a", "{path}: {plan}");
    }
    let both = in_sub(&["diff", "latest", "--", "../a", "b"]).ok().json();
    assert_eq!(both["changed_paths"], serde_json::json!(["a", "sub/b"]));
    let copied = ws.outside().join("copy");
    let copied = copied.to_str().unwrap();
    in_sub(&["restore", before.id(), "--to", copied, "../a"]).ok();
    assert_eq!(
        std::fs::read_to_string(ws.outside().join("copy/a")).unwrap(),
        "1\n"
    );
    let people = ws.call(["diff", "latest", "--", "../a"]);
    let people = people.cwd(ws.path("sub")).run().ok();
    assert!(
        people.stderr_text().contains("above this directory"),
        "{people}"
    );

    // What is advised after a plan works as it is said.
    let call = ws.call(["restore", before.id(), "--plan", "../a"]);
    let said = call.cwd(ws.path("sub")).run().ok().stderr_text();
    let advised = said
        .split('"')
        .nth(1)
        .expect("options are named")
        .to_owned();
    let options: Vec<&str> = advised.split(' ').collect();
    assert!(said.contains("name paths from there"), "{said}");
    in_sub(&[&["restore", before.id()], &options[..], &["a"]].concat()).ok();
    assert_eq!(ws.text("a"), "1\n");
    ws.write("a", "2\n");

    // What writes does so where one stands, and says what to add.
    ws.untouched(|| {
        let said = in_sub(&["restore", before.id(), "../a"]).refused("InvalidOptions");
        let root = ws.root().display().to_string();
        assert!(said.contains(&format!("--workspace {root}")), "{said}");
        let said = in_sub(&["diff", "latest", "--", "../../a"]).refused("InvalidOptions");
        assert!(
            said.contains("name a workspace with --workspace DIR"),
            "{said}"
        );
        assert!(!said.contains("lies inside the workspace"), "{said}");
        let nowhere = in_sub(&["diff", "latest", "--", "/a"]).refused("InvalidOptions");
        assert!(nowhere.contains("/a is not below a workspace"), "{nowhere}");
        in_sub(&["diff", "latest", "--", ""]).refused("InvalidOptions");
    });
    // The workspace is what has snapshots, and not the nearest directory that has both.
    ws.write("sub/below/c", "1\n");
    let in_below = |args: &[&str]| {
        let call = ws.call(["--json"]).args(args);
        call.cwd(ws.path("sub/below")).run()
    };
    ws.untouched(|| {
        let said = in_below(&["restore", before.id(), "../b"]).refused("InvalidOptions");
        let root = ws.root().display().to_string();
        assert!(said.contains(&format!("--workspace {root} ")), "{said}");
        let named = ["--workspace", &root, "--plan", "sub/b"];
        in_below(&[&["restore", before.id()], &named[..]].concat()).ok();
    });
    let run = ws.run::<&str>([], "echo 3 > a; echo 3 > sub/b").ok().json();
    let run = run["run_id"].as_str().unwrap();
    in_sub(&["undo", run, "--", "../a"]).ok();
    assert_eq!(
        (ws.text("a"), ws.text("sub/b")),
        ("2\n".to_owned(), "3\n".to_owned())
    );
}
