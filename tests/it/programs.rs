//! Which programs are started and who is called: traced by the kernel, not told by a canary.

use std::fs;
use std::path::Path;

use stillframe_tests::canary::{self, Canary, TRAPS};
use stillframe_tests::{Output, Snap, TestWorkspace, capability};

/// A workspace in which every trap is set at once.
fn with_every_trap() -> (TestWorkspace, Canary) {
    let ws = canary::bait();
    let canary = Canary::new(&ws);
    let mut attributes = String::new();
    for trap in TRAPS {
        (trap.arm)(&ws, &canary);
        // Two traps may want the same name; each gets its own.
        let config = ws.text(".git/config");
        let remote = format!("[remote \"{}\"]", trap.name);
        ws.write(
            ".git/config",
            config.replace("[remote \"origin\"]", &remote),
        );
        if ws.exists(".git/info/attributes") {
            attributes += &ws.text(".git/info/attributes");
            ws.remove(".git/info/attributes");
        }
    }
    ws.write(".git/info/attributes", attributes);
    canary.reset();
    (ws, canary)
}

/// A call, and every program that was started and every socket that was connected in it.
struct Traced {
    output: Output,
    calls: Vec<String>,
}

impl Traced {
    /// The programs that were started: only calls that worked.
    fn programs(&self) -> Vec<&str> {
        let started = self.calls.iter().filter(|call| call.ends_with("= 0"));
        started
            .filter(|call| call.contains("exec"))
            .filter_map(|call| call.split('"').nth(1))
            .collect()
    }

    fn connections(&self) -> Vec<&str> {
        let all = self.calls.iter().filter(|c| c.contains("connect("));
        all.map(String::as_str).collect()
    }
}

fn traced(ws: &TestWorkspace, args: &[&str]) -> Traced {
    let file = ws.base().join("trace");
    let call = ws.call(["--json"]).args(args);
    let file_name = file.to_str().unwrap();
    let wanted = "trace=execve,execveat,connect";
    let output = call
        .through(
            "strace",
            ["-f", "-qq", "-s", "4096", "-o", file_name, "-e", wanted],
        )
        .run();
    let text = fs::read_to_string(&file).unwrap();
    let calls = text.lines().filter(|line| line.contains('('));
    Traced {
        output,
        calls: calls.map(str::to_owned).collect(),
    }
}

/// Makes a call under the kernel's eyes: it starts itself, then `others`, and calls nobody.
#[track_caller]
fn only(ws: &TestWorkspace, args: &[&str], others: &[&str]) -> Output {
    let traced = traced(ws, args);
    let programs = traced.programs();
    let (own, started) = programs.split_first().expect("strace sees its first call");
    let own = Path::new(own).file_name();
    assert_eq!(own.and_then(|n| n.to_str()), Some("stillframe"), "{args:?}");
    assert_eq!(started, others, "{args:?} starts nothing else");
    let nobody: [&str; 0] = [];
    assert_eq!(traced.connections(), nobody, "{args:?} calls nobody");
    traced.output
}

#[test]
fn no_program_is_started_and_nobody_is_called_whatever_a_repository_says() {
    if !capability::can_inject() {
        return;
    }
    let (ws, canary) = with_every_trap();
    ws.write("README", "edited\n");
    ws.write("untracked", "x\n");
    let first = Snap::of(&only(&ws, &["snapshot"], &[]).ok().json());
    ws.write("README", "edited again\n");
    ws.write("new", "x\n");
    let second = Snap::of(&only(&ws, &["snapshot"], &[]).ok().json());
    let diff = ["diff", first.id(), second.id(), "--patch"];
    let diff = only(&ws, &diff, &[]).ok().json();
    assert_eq!(diff["files_changed"], 2, "{diff}");
    only(&ws, &["restore", first.id()], &[]).ok();
    assert_eq!(ws.text("README"), "edited\n");
    only(&ws, &["undo"], &[]).ok();
    assert_eq!(ws.text("README"), "edited again\n");
    for args in [
        &["why", "README"][..],
        &["list"],
        &["runs"],
        &["show", first.id()],
        &["verify"],
        &["gc", "--keep", "100"],
    ] {
        only(&ws, args, &[]).ok();
    }
    assert_eq!(canary.fired(), "", "nothing of the repository was run");
}

#[test]
fn a_run_starts_itself_again_and_its_command_and_nothing_else() {
    if !capability::can_inject() {
        return;
    }
    let (ws, canary) = with_every_trap();
    let program = ws.outside().join("command");
    let script = "#!/bin/sh\necho changed > README\nexit 1\n";
    fs::write(&program, script).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&program, mode).unwrap();
    let program = program.to_str().unwrap();
    let args = ["run", "--rollback-on-failure", "--", program];
    let own = stillframe_tests::binary::stillframe();
    // The one that ends the command if the program is killed.
    let run = only(&ws, &args, &[own.to_str().unwrap(), program])
        .exits(1)
        .json();
    assert_eq!(run["workspace"]["rollback"]["status"], "completed", "{run}");
    assert_eq!(ws.text("README"), "hello\n");
    assert_eq!(canary.fired(), "", "nothing of the repository was run");
}

// The oracle itself: it sees what it is there to see.
#[test]
fn a_program_that_is_started_and_a_socket_that_is_connected_are_seen() {
    if !capability::can_inject() {
        return;
    }
    let ws = TestWorkspace::repository();
    let command = "/bin/true; exec 3<>/dev/tcp/127.0.0.1/9";
    let args = ["run", "--", "/bin/bash", "-c", command];
    let traced = traced(&ws, &args);
    let programs = traced.programs();
    let names = programs.iter().filter_map(|p| Path::new(p).file_name());
    let names: Vec<_> = names.filter_map(|n| n.to_str()).collect();
    assert_eq!(names, ["stillframe", "stillframe", "bash", "true"]);
    let connections = traced.connections();
    assert!(
        connections.iter().any(|c| c.contains("127.0.0.1")),
        "{connections:?}"
    );
}
