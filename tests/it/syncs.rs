//! How often a command waits for the disk: as often as there are facts that have to be durable
//! before the next one may rely on them.

use std::fs;

use stillframe_tests::{TestWorkspace, capability};

/// What the kernel was asked to put on the disk by a command that succeeded, by path.
#[track_caller]
fn synced(ws: &TestWorkspace, args: &[&str]) -> Vec<String> {
    let file = ws.base().join("trace");
    let call = ws.call(["--json"]).args(args);
    let wanted = "trace=fsync,fdatasync,sync,syncfs,sync_file_range,msync";
    let output = call
        .through(
            "strace",
            ["-f", "-y", "-o", file.to_str().unwrap(), "-e", wanted],
        )
        .run();
    output.ok();
    let text = fs::read_to_string(&file).unwrap();
    // Of a call that another thread interrupts, the first half has the name.
    let calls = text.lines().filter(|line| line.contains("sync("));
    calls.map(str::to_owned).collect()
}

// It used to wait for the disk five times to say what it knew
#[test]
fn who_only_reads_waits_for_no_disk_and_shows_no_sign_of_life() {
    if !capability::can_inject() {
        return;
    }
    let ws = TestWorkspace::repository();
    let first = ws.snapshot();
    let run = ws
        .run(["--session", "s"], "echo edited > README")
        .ok()
        .json();
    let run_id = run["run_id"].as_str().unwrap();
    let second = ws.snapshot();
    let nobody = || fs::read_dir(ws.state().join("engines")).unwrap().count();
    assert_eq!(nobody(), 0);
    for args in [
        &["list"][..],
        &["show", first.id()],
        &["show", run_id],
        &["runs"],
        &["events"],
        &["artifact", "list"],
        &["diff", first.id(), second.id(), "--patch"],
        &["why", "README", "--snapshot", first.id()],
    ] {
        assert_eq!(synced(&ws, args), [""; 0], "{args:?}");
        assert_eq!(nobody(), 0, "{args:?}");
    }
}

/// See docs/adr/0036-what-a-snapshot-waits-for.md for which they are.
const SYNCS_OF_A_SNAPSHOT: usize = 6;

// It used to wait for it fifteen times
#[test]
fn a_snapshot_of_what_has_not_changed_waits_for_the_disk_once_for_each_fact() {
    if !capability::can_inject() {
        return;
    }
    for ws in [TestWorkspace::repository(), TestWorkspace::plain()] {
        ws.write("file", "x\n");
        ws.snapshot();
        for nth in 0..5 {
            let synced = synced(&ws, &["snapshot"]);
            assert!(
                synced.len() <= SYNCS_OF_A_SNAPSHOT,
                "the {nth}th: {synced:#?}"
            );
        }
        // Also behind what has folded the log into the database.
        ws.run::<&str>([], "true").ok();
        let synced = synced(&ws, &["snapshot"]);
        assert!(
            synced.len() <= SYNCS_OF_A_SNAPSHOT,
            "after a run: {synced:#?}"
        );
    }
}
