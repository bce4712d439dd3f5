//! `stillframe run`: work between two snapshots.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};
use stillframe_tests::{Snap, TestWorkspace, is_stopped, json, oracle};

#[test]
fn a_document_of_a_run_has_exactly_the_keys_of_the_design() {
    let ws = TestWorkspace::repository();
    let run = ws.run::<&str>([], "echo x > new").ok().json();
    assert_eq!(
        json::keys(&run),
        [
            "error",
            "exit_code",
            "run_id",
            "session_id",
            "status",
            "workspace"
        ]
    );
    let workspace = &run["workspace"];
    assert_eq!(
        json::keys(workspace),
        [
            "after_snapshot",
            "backend",
            "before_snapshot",
            "diff",
            "rollback"
        ]
    );
    assert_eq!(run["status"], "completed");
    assert_eq!(run["exit_code"], 0);
    assert!(run["error"].is_null());
    assert_eq!(workspace["backend"], "git");
    assert_eq!(workspace["before_snapshot"]["label"], "before");
    assert_eq!(workspace["after_snapshot"]["label"], "after");
    assert!(workspace["rollback"].is_null());
    assert!(workspace["error"].is_null());
    let before = Snap::of(&workspace["before_snapshot"]);
    assert_eq!(
        ws.show(before.id()),
        before.json,
        "whole snapshot documents"
    );
}

#[test]
fn a_watched_run_says_how_it_looked_and_finds_what_git_finds() {
    let ws = TestWorkspace::repository();
    for directory in 0..30 {
        ws.write(format!("many/{directory}/file"), "content\n");
    }
    let script = "echo x > new && mkdir -p many/3/deeper && echo y > many/3/deeper/file && \
                  mv many/4 moved && echo z >> many/5/file && rm -r many/6";
    let run = ws.run(["--watch"], script).ok().json();
    let workspace = &run["workspace"];
    let search = &workspace["after_snapshot"]["metadata"]["search"];
    assert_eq!(search["how"], "watched", "{run}");
    assert!(search["directories"].as_u64() >= Some(1), "{search}");
    let after = Snap::of(&workspace["after_snapshot"]);
    assert_eq!(after.tree(), oracle::raw_tree(&ws));
    // No watch lasts from one command to the next.
    let next = ws.run(["--watch"], "true").ok().json();
    let search = &next["workspace"]["before_snapshot"]["metadata"]["search"];
    assert_eq!(search["how"], "walked", "{search}");
    assert!(search["because"].is_string(), "{search}");
}

#[test]
fn generated_ids_have_their_form() {
    let ws = TestWorkspace::repository();
    let run = ws.run::<&str>([], "true").ok().json();
    for (key, prefix) in [("run_id", "run_"), ("session_id", "ses_")] {
        let id = run[key].as_str().unwrap();
        let digits = id
            .strip_prefix(prefix)
            .unwrap_or_else(|| panic!("{key} is {id}"));
        assert_eq!(digits.len(), 32, "{id}");
        assert!(
            digits
                .bytes()
                .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)),
            "{id}"
        );
    }
    let id = run["workspace"]["before_snapshot"]["id"].as_str().unwrap();
    assert_eq!(id.len(), "snap_".len() + 32, "{id}");
}

#[test]
fn the_exit_code_is_that_of_the_command() {
    let ws = TestWorkspace::repository();
    for code in [0, 1, 2, 42, 125, 255] {
        let output = ws.run::<&str>([], &format!("exit {code}")).exits(code);
        let run = output.json();
        assert_eq!(run["exit_code"], code);
        let status = if code == 0 { "completed" } else { "failed" };
        assert_eq!(run["status"], status);
        // No kind says that; the message and the code say what there is to say.
        assert!(run["error"]["kind"].is_null(), "{run}");
        assert_eq!(run["error"]["message"].is_string(), code != 0, "{run}");
    }
    ws.stillframe(["run", "--", "/bin/sh", "-c", "exit 42"])
        .exits(42);
}

#[test]
fn a_death_by_signal_is_128_and_its_number() {
    let ws = TestWorkspace::repository();
    for (signal, code) in [("TERM", 143), ("KILL", 137), ("SEGV", 139)] {
        let run = ws
            .run::<&str>([], &format!("kill -{signal} $$"))
            .exits(code)
            .json();
        assert_eq!(run["exit_code"], code, "{run}");
        assert_eq!(run["status"], "failed", "{run}");
    }
}

// A failed run, both snapshots taken
#[test]
fn an_unknown_command_is_127_and_one_that_may_not_be_executed_126() {
    let ws = TestWorkspace::repository();
    ws.write("no-program", "x\n");
    for (command, code) in [
        ("/nonexistent/program", 127),
        ("surely-not-a-command", 127),
        ("./no-program", 126),
    ] {
        let run = ws
            .call(["run", "--json", "--", command])
            .run()
            .exits(code)
            .json();
        assert_eq!(run["status"], "failed", "{run}");
        assert_eq!(run["exit_code"], code, "{run}");
        Snap::of(&run["workspace"]["before_snapshot"]);
        let after = Snap::of(&run["workspace"]["after_snapshot"]);
        assert_eq!(after.json["label"], "after_failure", "{run}");
        let kind = if code == 127 {
            "NotFound"
        } else {
            "Unsupported"
        };
        assert_eq!(run["error"]["kind"], kind, "{run}");
    }
}

// The command's output passes through; with `--json` to stderr
#[test]
fn output_passes_through() {
    let ws = TestWorkspace::repository();
    let script = "echo to stdout; echo to stderr >&2";
    let output = ws.stillframe(["run", "--", "/bin/sh", "-c", script]).ok();
    assert_eq!(
        output.stdout_text(),
        "to stdout\n",
        "stdout is the command's alone"
    );
    assert!(output.stderr_text().contains("to stderr\n"), "{output}");
    let output = ws.run::<&str>([], script).ok();
    output.json();
    assert!(output.stderr_text().contains("to stdout\n"), "{output}");
    assert!(output.stderr_text().contains("to stderr\n"), "{output}");
}

#[test]
fn binary_output_passes_through_exactly() {
    let ws = TestWorkspace::repository();
    let script = "printf '\\377\\000\\n\\r'; head -c 3000000 /dev/zero";
    let output = ws.stillframe(["run", "--", "/bin/sh", "-c", script]).ok();
    assert_eq!(
        output.stdout.len(),
        3_000_004,
        "no cap cuts what passes through"
    );
    assert_eq!(&output.stdout[..4], b"\xff\0\n\r");
}

#[test]
fn a_timeout_ends_the_command_and_everything_it_started() {
    let ws = TestWorkspace::repository();
    let mark = ws.outside().join("mark");
    let script = format!(
        "echo early; (trap '' TERM; sleep 30; echo late > '{}') & sleep 30",
        mark.display()
    );
    let output = ws.run(["--timeout", "1s"], &script).exits(124);
    let run = output.json();
    assert_eq!(run["status"], "timeout", "{run}");
    assert_eq!(run["exit_code"], 124);
    assert!(output.took < Duration::from_secs(25), "{:?}", output.took);
    assert_eq!(run["error"]["kind"], "Timeout", "{run}");
    assert!(
        output.stderr_text().contains("early"),
        "what was written before is kept"
    );
    let survivors = std::process::Command::new("pgrep")
        .args(["-f", mark.to_str().unwrap()])
        .output();
    if let Ok(found) = survivors {
        assert!(found.stdout.is_empty(), "somebody is still running");
    }
}

#[test]
fn a_command_that_writes_nothing_for_too_long_is_ended() {
    let ws = TestWorkspace::repository();
    let script = "echo x > new; echo out; echo err >&2; exec sleep 60";
    let output = ws.run(["--idle-timeout", "500ms", "--rollback-on-failure"], script);
    let output = output.exits(124);
    assert!(output.took < Duration::from_secs(25), "{:?}", output.took);
    let run = output.json();
    assert_eq!(run["status"], "timeout", "{run}");
    assert_eq!(run["error"]["kind"], "Timeout", "{run}");
    let message = run["error"]["message"].as_str().unwrap();
    assert!(
        message.contains("idle") && message.contains("500 ms"),
        "{message}"
    );
    assert!(!ws.exists("new"), "taken back");
    let told = output.stderr_text();
    assert!(told.contains("out\n") && told.contains("err\n"), "{told}");

    let busy = "for i in 1 2 3 4 5; do sleep 0.3; echo $i; done; exit 3";
    ws.run(["--idle-timeout", "20s"], busy).exits(3);
    ws.stillframe(["run", "--idle-timeout", "0s", "--", "true"])
        .exits(2);
}

#[test]
fn with_an_idle_timeout_output_passes_through_exactly_in_the_order_of_each_stream() {
    let ws = TestWorkspace::repository();
    let script = "printf '\\377\\000\\n\\r'; i=0; while [ $i -lt 2000 ]; do echo $i; echo e$i >&2; i=$((i+1)); done; \
                  head -c 3000000 /dev/zero";
    let run = [
        "run",
        "--idle-timeout",
        "60s",
        "--",
        "/bin/sh",
        "-c",
        script,
    ];
    let output = ws.stillframe(run).ok();
    let counted: String = (0..2000).map(|i| format!("{i}\n")).collect();
    let mut expected = b"\xff\0\n\r".to_vec();
    expected.extend_from_slice(counted.as_bytes());
    expected.resize(expected.len() + 3_000_000, 0);
    assert!(output.stdout == expected, "{} bytes", output.stdout.len());
    let errors: String = (0..2000).map(|i| format!("e{i}\n")).collect();
    assert!(output.stderr_text().contains(&errors), "each in its order");
}

#[test]
fn with_an_idle_timeout_a_command_hears_that_its_reader_has_gone() {
    let ws = TestWorkspace::repository();
    let program = stillframe_tests::binary::stillframe().display().to_string();
    // Without that it would write for ever.
    let script = format!("'{program}' run --idle-timeout 60s -- yes | head -1");
    ws.call::<&str>([])
        .through("/bin/sh", ["-c", script.as_str()])
        .run()
        .ok();
    let runs = ws.json(["runs"]);
    assert_eq!(runs[0]["exit_code"], 141, "{runs}");
}

#[test]
fn a_timeout_that_is_not_reached_changes_nothing() {
    let ws = TestWorkspace::repository();
    let run = ws.run(["--timeout", "90s"], "echo x > new").ok().json();
    assert_eq!(run["status"], "completed");
    ws.run(["--timeout", "5m"], "exit 3").exits(3);
}

// A run that is interrupted ends with the status cancelled
#[test]
fn an_interrupt_cancels_the_run_and_both_snapshots_are_there() {
    let ws = TestWorkspace::repository();
    let started = ws.outside().join("started");
    let script = format!("echo x > new; : > '{}'; exec sleep 60", started.display());
    let mut running = ws.run_call(["--rollback-on-failure"], &script).start();
    running.until("the command is at work", |_| started.exists());
    running.signal(Signal::INT);
    let output = running.wait();
    assert_ne!(output.code, 0, "{output}");
    let run = output.json();
    assert_eq!(run["status"], "cancelled", "{run}");
    assert_eq!(
        run["workspace"]["after_snapshot"]["label"], "after_failure",
        "{run}"
    );
    assert_eq!(run["workspace"]["rollback"]["status"], "completed", "{run}");
    assert!(!ws.exists("new"));
}

// 128+N, and `run` exits with the command's own code
/// Whether this process was started with the signal ignored, and with it all that it starts.
fn is_ignored(signal: Signal) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = u64::from_str_radix(mask.unwrap().trim(), 16).unwrap();
    mask & 1 << (signal.as_raw() - 1) != 0
}

#[test]
fn a_signal_reaches_the_command_and_every_exit_code_is_the_same() {
    let ws = TestWorkspace::repository();
    for (signal, script, code) in [
        (Signal::INT, "exec sleep 60", 130),
        (Signal::TERM, "exec sleep 60", 143),
        (Signal::HUP, "exec sleep 60", 129),
        (Signal::QUIT, "ulimit -c 0; exec sleep 60", 131),
        (Signal::INT, "trap 'exit 7' INT; sleep 60 & wait", 7),
        (Signal::INT, "trap 'exit 0' INT; sleep 60 & wait", 130),
        (Signal::INT, "trap '' INT; sleep 60 & wait", 143),
    ] {
        // As below `nohup`: what is ignored from the start stays ignored.
        if is_ignored(signal) {
            continue;
        }
        let started = ws.outside().join("started");
        // Only what comes after the trap is interrupted where the test means it. No program is
        // started in the foreground: a dash that comes back from `vfork` drops a signal that came
        // meanwhile.
        let script = match script.split_once("; ") {
            Some((trap, rest)) => format!("{trap}; : > '{}'; {rest}", started.display()),
            None => format!(": > '{}'; {script}", started.display()),
        };
        let mut running = ws.run_call::<&str>([], &script).start();
        running.until("the command is at work", |_| started.exists());
        running.signal(signal);
        let output = running.wait().exits(code);
        let run = output.json();
        assert_eq!(run["status"], "cancelled", "{script}: {run}");
        assert_eq!(run["exit_code"], code, "{script}: {run}");
        let listed = &ws.json(["runs"])[0];
        assert_eq!(listed["exit_code"], code, "{script}: {listed}");
        std::fs::remove_file(&started).unwrap();
    }
}

#[test]
fn a_failing_after_snapshot_does_not_hide_the_result_of_the_command() {
    let ws = TestWorkspace::repository();
    let root = ws.root().display();
    let script = format!("rm -rf {root}; mkdir {root}; echo 'the result'; exit 7");
    let output = ws.run::<&str>([], &script).exits(125);
    let run = output.json();
    assert_eq!(run["exit_code"], 7, "the command's own: {run}");
    assert_eq!(run["status"], "failed", "{run}");
    assert!(
        output.stderr_text().contains("the result"),
        "its output is not lost"
    );
    assert!(run["workspace"]["after_snapshot"].is_null(), "{run}");
    let engine = &run["workspace"]["error"];
    assert_eq!(
        engine["kind"], "Unreadable",
        "the engine's failure is a field of its own: {run}"
    );
    assert!(run["error"]["kind"].is_null(), "the command's own: {run}");
    let message = run["error"]["message"].as_str().unwrap();
    assert!(message.contains('7'), "the command's own: {run}");
    assert_eq!(ws.published(), 1, "only the one before");
}

#[test]
fn a_failing_after_snapshot_of_a_command_that_succeeded_is_125() {
    let ws = TestWorkspace::repository();
    let run = ws
        .run::<&str>([], "rm .git/HEAD; mkfifo .git/HEAD")
        .exits(125)
        .json();
    assert_eq!(run["exit_code"], 0, "{run}");
    assert_eq!(
        run["status"], "completed",
        "the command did its part: {run}"
    );
    assert!(run["error"].is_null(), "{run}");
    assert_eq!(run["workspace"]["error"]["kind"], "HostileRepository");
}

#[test]
fn what_left_the_group_of_the_command_is_ended_with_it() {
    let ws = TestWorkspace::repository();
    let started = ws.outside().join("pid");
    // It loses its parent at once, and what is below it is one more step away.
    let script = format!(
        "(setsid sh -c 'sh -c \"while :; do echo x >> README; done\" & echo $! > \"$0\"; wait' '{0}' &); \
         until [ -s '{0}' ]; do :; done; exit 3",
        started.display()
    );
    let output = ws.run(["--rollback-on-failure"], &script);
    let pid = fs::read_to_string(&started).unwrap();
    let pid: i32 = pid.trim().parse().unwrap();
    let is_left = std::path::Path::new(&format!("/proc/{pid}")).exists();
    if is_left {
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
    assert!(!is_left, "{output}");
    let run = output.exits(3).json();
    assert_eq!(ws.text("README"), "hello\n", "{run}");
    assert_eq!(run["workspace"]["rollback"]["status"], "completed", "{run}");
}

/// The process whose id is in `file`, which is at work.
fn process_in(file: &Path) -> OwnedFd {
    let id = fs::read_to_string(file).unwrap().trim().parse().unwrap();
    let process = Pid::from_raw(id).unwrap();
    rustix::process::pidfd_open(process, PidfdFlags::empty()).unwrap()
}

/// Whether the process ends until `deadline`.
fn ends_until(process: &OwnedFd, deadline: Instant) -> bool {
    let timeout = deadline.saturating_duration_since(Instant::now());
    let timeout = Timespec::try_from(timeout).unwrap();
    let mut ended = [PollFd::new(process, PollFlags::IN)];
    rustix::event::poll(&mut ended, Some(&timeout)).unwrap() == 1
}

/// A script whose processes leave it in every way that there is, and note their ids below
/// `outside`.
fn leaving(outside: &Path) -> (String, Vec<PathBuf>) {
    let names = ["own", "child", "session", "grandchild", "bare", "doubly"];
    let files = names.map(|name| outside.join(name)).to_vec();
    let inner = "echo $$ > session; sleep 300 & echo $! > grandchild; \
                 env -i \"$(command -v sh)\" -c \"echo \\$\\$ > bare; while :; do :; done\" & \
                 (setsid sh -c \"echo \\$\\$ > doubly; exec sleep 300\" &); wait";
    let script = format!(
        "cd '{}'; (setsid sh -c '{inner}' &); sleep 300 & echo $! > child; echo $$ > own; \
         for f in {}; do until [ -s $f ]; do :; done; done; echo all > all; wait",
        outside.display(),
        names.join(" ")
    );
    (script, files)
}

#[test]
fn a_run_that_is_killed_takes_all_with_it_that_it_had_started_however_that_left() {
    let ws = TestWorkspace::repository();
    let (script, files) = leaving(&ws.outside());
    let mut running = ws.run_call::<&str>([], &script).start();
    let all = ws.outside().join("all");
    running.until("all of them are at work", |_| all.exists());
    let processes: Vec<_> = files.iter().map(|file| process_in(file)).collect();
    running.signal(Signal::KILL);
    let deadline = Instant::now() + Duration::from_secs(2);
    for (process, file) in processes.iter().zip(&files) {
        assert!(
            ends_until(process, deadline),
            "{} is still at work",
            file.display()
        );
    }
    let output = running.wait();
    assert_eq!(output.code, 137, "{output}");
    // Whoever comes next finds nobody there.
    ws.run::<&str>([], "true").ok();
    let runs = ws.json(["runs"]);
    assert_eq!(runs[1]["status"], "failed", "{runs}");
}

#[test]
fn a_command_that_kills_its_parent_has_killed_the_run() {
    let ws = TestWorkspace::repository();
    let (left, go) = (ws.outside().join("left"), ws.outside().join("go"));
    let script = format!(
        "setsid sh -c 'echo $$ > {left}; exec sleep 300' & until [ -e {go} ]; do :; done; \
         echo half > README; kill -9 $PPID; exit 3",
        left = left.display(),
        go = go.display()
    );
    let mut running = ws.run_call::<&str>([], &script).start();
    running.until("it is at work", |_| {
        fs::read_to_string(&left).is_ok_and(|pid| pid.ends_with('\n'))
    });
    let process = process_in(&left);
    fs::write(&go, "").unwrap();
    let output = running.wait();
    assert_eq!(output.code, 137, "{output}");
    let said = output.stderr_text();
    assert!(said.contains("has been ended"), "{said}");
    assert!(ends_until(&process, Instant::now()), "it was ended first");
    let runs = ws.json(["runs"]);
    assert_eq!(runs[0]["status"], "failed", "{runs}");
    ws.json(["undo"]);
    assert_eq!(ws.text("README"), "hello\n");
}

#[test]
fn a_run_begins_only_once_nothing_of_one_that_was_killed_is_at_work() {
    let ws = TestWorkspace::repository();
    let (pid, go) = (ws.outside().join("pid"), ws.outside().join("go"));
    let script = format!(
        "echo $$ > '{}'; until [ -e '{}' ]; do sleep 0.01; done; echo late > late",
        pid.display(),
        go.display()
    );
    let mut running = ws.run_call(["--run-id", "first"], &script).start();
    running.until("it is at work", |_| {
        fs::read_to_string(&pid).is_ok_and(|pid| pid.ends_with('\n'))
    });
    // The program and the one beside it at once, so that nobody ends the command.
    let command = fs::read_to_string(&pid).unwrap();
    let stat = fs::read_to_string(format!("/proc/{}/stat", command.trim())).unwrap();
    let (_, rest) = stat.rsplit_once(") ").unwrap();
    let guardian: i32 = rest.split(' ').nth(1).unwrap().parse().unwrap();
    let guardian = Pid::from_raw(guardian).unwrap();
    assert_ne!(guardian, running.pid());
    rustix::process::kill_process(running.pid(), Signal::STOP).unwrap();
    running.until("it is stopped", |running| is_stopped(running.pid()));
    rustix::process::kill_process(guardian, Signal::KILL).unwrap();
    running.signal(Signal::KILL);
    let process = process_in(&pid);
    assert!(!ends_until(&process, Instant::now()), "nobody ends it");

    // Whatever comes next names it, and a second run is not begun beside it.
    let named = format!("process {} (sh)", command.trim());
    let said = ws.stillframe(["list"]).ok().stderr_text();
    assert!(said.contains(&named), "{said}");
    let refused = ws.run::<&str>([], "touch beside").exits(125);
    let message = refused.error("Busy");
    assert!(message.contains(&named), "{message}");
    assert!(message.contains("first"), "{message}");
    assert!(!ws.exists("beside"));
    let runs = ws.json(["runs"]);
    let mut all = runs.as_array().unwrap().iter();
    let first = all.find(|run| run["run_id"] == "first").unwrap();
    let message = first["error"]["message"].as_str().unwrap();
    assert!(message.contains(&named), "{message}");

    // It ends while somebody waits for it, and what it did is in the before-snapshot of the next
    // run.
    let next = ws.run_call(["--run-id", "next"], "test -e late").start();
    fs::write(&go, "").unwrap();
    let next = next.wait().ok().json();
    assert!(ends_until(&process, Instant::now()), "it was waited for");
    assert_eq!(next["workspace"]["diff"]["files_changed"], 0, "{next}");
}

#[test]
fn a_command_is_told_the_run_that_it_is_of() {
    let ws = TestWorkspace::repository();
    let script = "test \"$STILLFRAME_CURRENT_RUN\" = mine && test -z \"$STILLFRAME_RUN_ID\"";
    ws.run(["--run-id", "mine"], script).ok();
}

// If the before-snapshot fails, the adapter is not called
#[test]
fn a_failing_before_snapshot_means_that_the_command_is_not_run() {
    let ws = TestWorkspace::repository();
    ws.remove(".git/HEAD");
    ws.mkfifo(".git/HEAD");
    let mark = ws.outside().join("ran");
    let output = ws
        .run::<&str>([], &format!("touch '{}'", mark.display()))
        .exits(125);
    output.error("HostileRepository");
    assert!(!mark.exists(), "the command was not run");
}

#[test]
fn a_rollback_that_hash_cannot_do_is_refused_before_the_command() {
    let ws = TestWorkspace::plain();
    let mark = ws.outside().join("ran");
    let script = format!("touch '{}'", mark.display());
    ws.run(["--rollback-on-failure", "--no-retain-content"], &script)
        .exits(125)
        .error("Unsupported");
    assert!(!mark.exists());
    ws.run(["--rollback-on-failure", "--retain-content"], &script)
        .ok();
    assert!(mark.exists());
}

#[test]
fn no_command_is_an_error_of_usage() {
    let ws = TestWorkspace::repository();
    ws.stillframe(["run"]).exits(2);
    ws.stillframe(["run", "--"]).exits(2);
    ws.stillframe(["run", "--nonsense", "--", "true"]).exits(2);
    ws.stillframe(["run", "--timeout", "soon", "--", "true"])
        .exits(2);
}

#[test]
fn options_of_the_command_are_not_ours() {
    let ws = TestWorkspace::repository();
    let output = ws
        .stillframe(["run", "--", "/bin/echo", "--json", "--help", "--", "-x"])
        .ok();
    assert_eq!(output.stdout_text(), "--json --help -- -x\n");
}

#[test]
fn the_command_works_in_the_workspace_with_the_environment_of_the_caller() {
    let ws = TestWorkspace::repository();
    let script = "pwd; echo $MARK; cat";
    let output = ws
        .call(["run", "--", "/bin/sh", "-c", script])
        .env("MARK", "of the caller")
        .stdin("given\n")
        .run()
        .ok();
    let text = output.stdout_text();
    assert!(
        text.starts_with(&format!("{}\nof the caller\n", ws.root().display())),
        "{text}"
    );
    let elsewhere = ws
        .call([
            "run",
            "--workspace",
            ws.root().to_str().unwrap(),
            "--",
            "pwd",
        ])
        .cwd(ws.outside())
        .run()
        .ok();
    assert_eq!(
        elsewhere.stdout_text(),
        format!("{}\n", ws.root().display())
    );
}

#[test]
fn a_patch_is_embedded_unless_it_is_not_wanted() {
    let ws = TestWorkspace::repository();
    let with = ws.run::<&str>([], "echo x > a").ok().json();
    let diff = &with["workspace"]["diff"];
    assert_eq!(diff["has_patch"], true);
    assert!(diff["patch"].as_str().unwrap().contains("+x"), "{diff}");
    assert!(diff["patch_ref"].is_null(), "small: nothing was stored");
    let without = ws.run(["--no-patch"], "echo y > b").ok().json();
    let diff = &without["workspace"]["diff"];
    assert_eq!(diff["files_changed"], 1);
    assert_eq!(diff["has_patch"], false);
    assert!(diff["patch"].is_null());
    assert!(diff["patch_bytes"].is_null());
}

#[test]
fn the_session_can_be_named_and_is_used_again() {
    let ws = TestWorkspace::repository();
    let first = ws.run(["--session", "ticket-42"], "true").ok().json();
    let second = ws.run(["--session", "ticket-42"], "true").ok().json();
    assert_eq!(first["session_id"], "ticket-42");
    assert_eq!(second["session_id"], "ticket-42");
    assert_ne!(first["run_id"], second["run_id"]);
    let events = ws.events(["--session", "ticket-42"]);
    let sequences: Vec<u64> = events
        .iter()
        .map(|e| e["sequence"].as_u64().unwrap())
        .collect();
    let expected: Vec<u64> = (1..=events.len() as u64).collect();
    assert_eq!(sequences, expected, "one log, without a gap");
}

#[test]
fn runs_are_listed_and_shown() {
    let ws = TestWorkspace::repository();
    let first = ws.run::<&str>([], "true").ok().json();
    let second = ws.run::<&str>([], "exit 5").exits(5).json();
    let runs = ws.json(["runs"]);
    let ids: Vec<&str> = runs
        .as_array()
        .unwrap()
        .iter()
        .map(|r| r["run_id"].as_str().unwrap())
        .collect();
    let of = |run: &serde_json::Value| run["run_id"].as_str().unwrap().to_owned();
    assert!(
        ids.contains(&of(&first).as_str()) && ids.contains(&of(&second).as_str()),
        "{runs}"
    );
    let shown = ws.show(&of(&second));
    assert_eq!(shown["run_id"], second["run_id"]);
    assert_eq!(shown["status"], "failed");
    assert_eq!(shown["exit_code"], 5);
}

#[test]
fn a_run_inside_a_run_is_refused_or_has_its_own_numbers() {
    let ws = TestWorkspace::repository();
    let program = stillframe_tests::binary::stillframe();
    let script = format!("{} run --json -- true", program.display());
    let output = ws.run::<&str>([], &script);
    let outer = output.json();
    assert!(
        outer["run_id"].is_string(),
        "the outer one is whole: {output}"
    );
    for name in ["before_snapshot", "after_snapshot"] {
        Snap::of(&outer["workspace"][name]);
    }
}

// Nobody is there to end the run
#[test]
fn a_run_whose_engine_was_killed_does_not_stay_running() {
    let ws = TestWorkspace::repository();
    let started = ws.outside().join("started");
    let script = format!("echo half > new; touch '{}'; sleep 5", started.display());
    let mut running = ws.run_call::<&str>([], &script).start();
    running.until("the command is at work", |_| started.exists());
    running.signal(Signal::KILL);
    running.kill();
    drop(running);
    ws.snapshot();
    let runs = ws.json(["runs"]);
    let status = runs[0]["status"].as_str().unwrap();
    assert!(
        ["failed", "cancelled", "interrupted"].contains(&status),
        "what nobody owns is not running: {runs}"
    );
    ws.run::<&str>([], "true").ok();
}

#[test]
fn a_command_that_changes_directory_and_leaves_is_seen() {
    let ws = TestWorkspace::repository();
    let run = ws
        .run::<&str>([], "cd / && echo x > \"$OLDPWD/new\"")
        .ok()
        .json();
    assert_eq!(json::names(&run["workspace"]["diff"]["added"]), ["new"]);
    assert_eq!(fs::read_to_string(ws.path("new")).unwrap(), "x\n");
}

#[test]
fn a_request_to_end_cancels_the_run_too() {
    let ws = TestWorkspace::repository();
    let started = ws.outside().join("started");
    let script = format!("echo x > new; touch '{}'; sleep 60", started.display());
    let mut running = ws.run_call(["--rollback-on-failure"], &script).start();
    running.until("the command is at work", |_| started.exists());
    running.signal(Signal::TERM);
    let output = running.wait();
    assert_ne!(output.code, 0, "{output}");
    let run = output.json();
    assert_eq!(run["status"], "cancelled", "{run}");
    assert!(!ws.exists("new"), "taken back");
    assert_eq!(ws.json(["runs"])[0]["status"], "cancelled");
}

#[test]
fn a_reader_that_goes_away_does_not_lose_the_run() {
    let ws = TestWorkspace::repository();
    let program = stillframe_tests::binary::stillframe().display().to_string();
    let script = format!("'{program}' run -- sh -c 'yes | head -200000; echo x > new' | head -1");
    ws.call::<&str>([])
        .through("/bin/sh", ["-c", script.as_str()])
        .run()
        .ok();
    let runs = ws.json(["runs"]);
    let shown = ws.show(runs[0]["run_id"].as_str().unwrap());
    assert!(!shown["workspace"]["after_snapshot"].is_null(), "{shown}");
}

#[test]
fn a_stopped_command_is_ended_by_the_timeout() {
    let ws = TestWorkspace::repository();
    let output = ws.run(["--timeout", "1s"], "kill -STOP $$").exits(124);
    assert!(output.took < Duration::from_secs(25), "{:?}", output.took);
}

// A run that edits ignore rules cannot hide a new file from the report
#[test]
fn a_run_says_which_new_files_its_own_rules_hide() {
    let ws = TestWorkspace::repository();
    ws.write(".gitignore", "*.log\n");
    ws.commit("rules");
    let script =
        "printf 'secret\\nout/\\n' >> .gitignore; echo x > secret; mkdir out; echo x > out/x
        mkdir -p .git/info; echo hidden-too >> .git/info/exclude; echo x > hidden-too; echo x > build.log
        mkdir venv; echo '*' > venv/.gitignore; echo x > venv/lib";
    let told = "5 new paths are hidden by ignore rules that came since: \
                hidden-too, out, secret … and 2 more\n";
    let output = ws.stillframe(["run", "--", "/bin/sh", "-c", script]).ok();
    assert!(output.stderr_text().contains(told), "{output}");
    assert!(
        !output.stderr_text().contains("empty"),
        "venv is not: {output}"
    );
    let runs = ws.json(["runs"]);
    let run = ws.json(["show", runs[0]["run_id"].as_str().unwrap()]);
    let ids = ["before_snapshot", "after_snapshot"];
    let ids = ids.map(|key| run["workspace"][key].as_str().unwrap().to_owned());
    let diff = ws.json(["diff", &ids[0], &ids[1]]);
    let hidden = ["hidden-too", "out", "secret", "venv/.gitignore", "venv/lib"];
    assert_eq!(
        json::names(&diff["newly_ignored"]),
        hidden,
        "build.log is ignored by a rule that was there before"
    );
    let text = ws.stillframe(["diff", &ids[0], &ids[1]]).ok().stdout_text();
    assert!(text.contains("hidden secret ("), "{text}");

    // Nobody hides them a second time.
    let output = ws
        .stillframe(["run", "--", "/bin/sh", "-c", "echo y > secret"])
        .ok();
    assert!(!output.stderr_text().contains("hidden"), "{output}");
}

// `leftover_ignored`, for people
#[test]
fn a_rolled_back_run_says_which_ignored_files_it_left() {
    let ws = TestWorkspace::repository();
    let script = "echo '*' > .gitignore; for n in 1 2 3 4 5; do echo x > new$n; done; exit 3";
    let output = ws
        .stillframe([
            "run",
            "--rollback-on-failure",
            "--",
            "/bin/sh",
            "-c",
            script,
        ])
        .exits(3);
    let text = output.stderr_text();
    let told = "6 ignored paths that came since: .gitignore, new1, new2 … and 3 more\n";
    assert!(text.contains(told), "{text}");
    for n in 1..=5 {
        assert!(
            ws.exists(format!("new{n}")),
            "ignored paths are never deleted"
        );
    }
}

// Exactly what a run changed
#[test]
fn a_run_that_changes_permissions_alone_says_so_and_how_to_take_it_back() {
    let ws = TestWorkspace::repository();
    for path in ["a", "b", "c"] {
        ws.write(path, "x\n");
        ws.chmod(path, 0o644);
    }
    let script = "chmod 600 b; mkdir made";
    let output = ws.stillframe(["run", "--", "/bin/sh", "-c", script]).ok();
    let text = output.stderr_text();
    assert!(
        text.contains("no file changed, permissions of 1 path changed, 1 empty directory made\n"),
        "{text}"
    );
    assert!(text.contains("takes it back"), "{text}");
    ws.stillframe(["undo"]).ok();
    assert_eq!(ws.mode("b"), 0o644);
    assert!(!ws.exists("made"));
}

// What is said to go on with has to work when it is typed
#[test]
fn after_a_refused_rollback_the_command_that_is_named_takes_the_run_back() {
    let ws = TestWorkspace::repository();
    let script = "echo x > new; git add new; : > .git/index.lock; exit 1";
    let args = [
        "run",
        "--rollback-on-failure",
        "--",
        "/bin/sh",
        "-c",
        script,
    ];
    let text = ws.stillframe(args).exits(1).stderr_text();
    let last = text.lines().last().unwrap();
    let command = last.split('"').nth(1).unwrap();
    assert!(command.starts_with("stillframe undo run_"), "{text}");
    assert!(ws.exists("new"), "nothing was touched");

    ws.remove(".git/index.lock");
    ws.stillframe(command.split(' ').skip(1)).ok();
    assert!(!ws.exists("new"));
}

// The host chooses the id of a run
#[test]
fn the_environment_names_one_run_and_none_that_the_command_starts() {
    let ws = TestWorkspace::repository();
    let call = |id: &str, script: &str| {
        let args = ["--json", "run", "--", "/bin/sh", "-c", script];
        ws.call(args).env("STILLFRAME_RUN_ID", id).run()
    };
    let run = call("build-42", "echo \"is ${STILLFRAME_RUN_ID-unset}\"").ok();
    assert_eq!(run.json()["run_id"], "build-42");
    assert!(run.stderr_text().contains("is unset\n"), "{run}");
    let again = ws.untouched(|| call("build-42", "echo x > new"));
    let again = again.ok().json();
    assert_eq!(
        (&again["run_id"], &again["is_stored"]),
        (&run.json()["run_id"], &true.into())
    );
    let message = call("../x", "true").exits(125).error("InvalidOptions");
    assert!(message.contains("STILLFRAME_RUN_ID"), "{message}");
    let id = call("", "true").ok().json()["run_id"].clone();
    assert!(id.as_str().unwrap().starts_with("run_"), "{id}");
}
