//! `kill -9` at every step, and races: before, or after, or finished by the next call.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use stillframe_tests::choice::one_of_each;
use stillframe_tests::{Call, Output, TestWorkspace, capability, copy_whole, json, oracle, view};

/// Calls that change something on disk. One that this machine's kernel does not have is no error.
pub(super) const MUTATING: &str = "?rename,?renameat,?renameat2,?unlink,?unlinkat,?mkdir,?mkdirat,?rmdir,\
    ?link,?linkat,?symlinkat,?fsync,?fdatasync,?syncfs";

/// The same call, killed when it is about to make its `nth` call of `calls` in one thread.
pub(super) fn killed_at(call: Call, calls: &str, nth: usize) -> Output {
    let trace = format!("trace={calls}");
    let inject = format!("inject={calls}:signal=KILL:when={nth}");
    call.through(
        "strace",
        ["-f", "-o", "/dev/null", "-e", &trace, "-e", &inject],
    )
    .run()
}

/// Where a call is killed.
#[derive(Clone, Copy, Debug)]
enum Kill {
    /// See [`killed_at`]. Which of the steps that is depends on the threads that take them.
    At(usize),
    /// When it is about to sync the journal of a restore for the nth time, which is once for each
    /// state that a restore goes through.
    Journal(usize),
}

impl Kill {
    fn all() -> impl Iterator<Item = Self> {
        let anywhere = one_of_each("calls", 4).take_while(|nth| *nth < 120);
        (1..4).map(Self::Journal).chain(anywhere.map(Self::At))
    }

    /// The call, killed here. The workspace has a store.
    fn of(self, ws: &TestWorkspace, call: Call) -> Output {
        match self {
            Self::At(nth) => killed_at(call, MUTATING, nth),
            Self::Journal(nth) => {
                let journal = ws.stores()[0].join("restore.journal");
                let inject = format!("inject=fsync:signal=KILL:when={nth}");
                let strace = ["-f", "-o", "/dev/null", "-e", "trace=fsync", "-e", &inject];
                let journal = ["-P", journal.to_str().unwrap()];
                call.through("strace", strace.into_iter().chain(journal))
                    .run()
            }
        }
    }
}

#[test]
fn a_restore_killed_at_any_step_ends_before_or_after() {
    if !capability::can_inject() {
        return;
    }
    let mut endings = BTreeSet::new();
    for nth in one_of_each("restore", 3) {
        let ws = TestWorkspace::repository();
        ws.write("dir/inside", "x\n");
        ws.write_executable("tool", "one\n");
        let snapshot = ws.snapshot();
        let target = view::worktree(ws.root());
        ws.write("README", "edited\n");
        ws.remove("dir");
        ws.symlink("dir", "tool");
        ws.remove("tool");
        ws.write("new/deep", "x\n");
        let edited = view::worktree(ws.root());

        let call = ws.call(["--json", "restore", snapshot.id()]);
        let output = killed_at(call, MUTATING, nth);
        if output.code == 0 {
            view::same(&target, &view::worktree(ws.root()), "it was not killed");
            endings.insert("not killed");
            break;
        }
        // Recovery comes with the next call, whatever it is, and takes no person.
        let after = ws.snapshot();
        let now = view::worktree(ws.root());
        if now == edited {
            endings.insert("before");
        } else {
            view::same(
                &target,
                &now,
                &format!("killed at call {nth}: before or after"),
            );
            endings.insert("after");
        }
        ws.restore(&after);
        ws.restore(&snapshot);
        view::same(&target, &view::worktree(ws.root()), "and it works again");
    }
    assert_eq!(
        endings,
        BTreeSet::from(["after", "before", "not killed"]),
        "the loop crossed the point of no return and came to the end"
    );
}

// What it merges is neither what was there nor what it goes back to
#[test]
fn an_undo_that_only_merges_and_was_killed_is_the_one_that_the_next_undo_is_about() {
    if !capability::can_inject() {
        return;
    }
    let lines = |first: &str, last: &str| {
        let middle: String = (2..30).map(|n| format!("line {n}\n")).collect();
        format!("{first}\n{middle}{last}\n")
    };
    let mut endings = BTreeSet::new();
    for nth in (1..120).step_by(3) {
        let ws = TestWorkspace::repository();
        ws.write("text", lines("first", "last"));
        ws.commit("text");
        ws.run::<&str>([], "sed -i 's/^first$/by the run/' text")
            .ok();
        ws.write("text", lines("by the run", "by hand"));

        let call = ws.call(["--json", "undo"]);
        let was_killed = killed_at(call, MUTATING, nth).code != 0;
        ws.call(["--json", "list"]).run().ok();
        let is_merged = ws.text("text") == lines("first", "by hand");
        let next = ws.json(["undo"]);
        let operation = if is_merged { "undo" } else { "run" };
        assert_eq!(
            next["undone"]["operation"], operation,
            "killed at call {nth}: {next}"
        );
        if is_merged {
            // What was there before it is in its guard, whatever the undo of it keeps.
            let guard = next["undone"]["before"].as_str().unwrap().to_owned();
            ws.call(["restore", &guard]).run().ok();
            assert_eq!(ws.text("text"), lines("by the run", "by hand"));
        }
        endings.insert((was_killed, is_merged));
        if !was_killed {
            break;
        }
    }
    assert_eq!(
        endings,
        BTreeSet::from([(true, false), (true, true), (false, true)]),
        "the loop crossed the point of no return and came to the end"
    );
}

// `undo` takes the latest run, restore or undo
#[test]
fn a_restore_that_was_killed_is_the_one_that_undo_takes_back() {
    if !capability::can_inject() {
        return;
    }
    let mut endings = BTreeSet::new();
    for nth in (1..90).step_by(4) {
        let ws = TestWorkspace::repository();
        let snapshot = ws.snapshot();
        let target = view::worktree(ws.root());
        ws.run::<&str>([], "echo by the run > run").ok();
        ws.write("README", "edited\n");
        let edited = view::worktree(ws.root());

        let call = ws.call(["--json", "restore", snapshot.id()]);
        let was_killed = killed_at(call, MUTATING, nth).code != 0;
        ws.call(["--json", "list"]).run().ok();
        let is_done = view::worktree(ws.root()) == target;
        ws.undo();
        let now = view::worktree(ws.root());
        if is_done {
            view::same(&edited, &now, &format!("killed at call {nth}: the restore"));
        } else {
            view::same(
                &edited.without("run"),
                &now,
                &format!("killed at call {nth}: the run"),
            );
        }
        endings.insert((was_killed, is_done));
        if !was_killed {
            break;
        }
    }
    assert_eq!(
        endings,
        BTreeSet::from([(true, false), (true, true), (false, true)]),
        "the loop crossed the point of no return and came to the end"
    );
}

/// Where a call is disturbed that puts something in its place.
const RENAMING: &str = "?rename,?renameat,?renameat2";

/// A workspace with eight files that were edited since a snapshot, and that snapshot.
fn edited_since_a_snapshot() -> (TestWorkspace, stillframe_tests::Snap) {
    let ws = TestWorkspace::repository();
    let write = |text: &str| (1..9).for_each(|i| ws.write(format!("f{i}"), text));
    write("captured\n");
    let snapshot = ws.snapshot();
    write("edited\n");
    (ws, snapshot)
}

/// One of those whose restore was killed when it was half done.
fn half_restored() -> TestWorkspace {
    let is_half = |ws: &TestWorkspace| {
        let captured = (1..9).filter(|i| ws.text(format!("f{i}")) == "captured\n");
        (1..8).contains(&captured.count())
    };
    let killed = (1..60).map(|nth| {
        let (ws, snapshot) = edited_since_a_snapshot();
        killed_at(ws.call(["restore", snapshot.id()]), RENAMING, nth);
        ws
    });
    killed
        .into_iter()
        .find(is_half)
        .expect("it is killed at each rename")
}

// A workspace whose journal was damaged could not be worked with, and nothing told why or what to
// do; where the last frame was damaged, what was half done was forgotten
#[test]
fn a_damaged_journal_is_named_and_can_be_given_up() {
    if !capability::can_inject() {
        return;
    }
    let damages: [fn(usize) -> usize; 3] = [|_| 99, |length| length / 2, |length| length - 5];
    for damage in damages {
        let ws = half_restored();
        let journal = ws.stores()[0].join("restore.journal");
        let mut bytes = fs::read(&journal).unwrap();
        let at = damage(bytes.len());
        bytes[at] ^= 0x10;
        fs::write(&journal, bytes).unwrap();
        let half = view::worktree(ws.root());

        let refused = ws.try_json(["snapshot"]);
        assert_eq!(
            refused.json()["error"]["kind"],
            "Corrupt",
            "{at}: {refused}"
        );
        let verified = ws.try_json(["verify"]);
        assert_eq!(verified.code, 1, "{at}: {verified}");
        let named = verified.json()["store"].to_string();
        assert!(named.contains("restore.journal"), "{at}: {verified}");

        let given_up = ws.json(["gc", "--forget-damaged"]);
        let problem = &given_up["journal_given_up"];
        assert_eq!(problem["what"], "restore.journal", "{at}: {given_up}");
        view::same(&half, &view::worktree(ws.root()), "nothing is touched");
        ws.stillframe(["verify"]).ok();
        let listed = ws.json(["list"]);
        let mut snapshots = listed.as_array().unwrap().iter();
        let guard = snapshots.find(|s| s["label"] == "guard").unwrap();
        ws.json(["restore", guard["id"].as_str().unwrap()]);
        for i in 1..9 {
            assert_eq!(ws.text(format!("f{i}")), "edited\n", "its guard leads back");
        }
        assert!(ws.json(["gc", "--forget-damaged"])["journal_given_up"].is_null());
    }
}

// A proof beside a clean-up said that what was being forgotten was damaged
#[test]
fn a_proof_beside_a_clean_up_finds_nothing_wrong() {
    let ws = TestWorkspace::repository();
    for round in 0..12_u32 {
        let noise: Vec<u8> = (0..40_000_u32)
            .flat_map(|n| (n * (round + 7)).to_le_bytes())
            .collect();
        ws.write("large", noise);
        ws.snapshot();
    }
    for keep in (1..12).rev() {
        let verify = ws.call(["--json", "verify"]).start();
        ws.json(["gc", "--keep", &keep.to_string()]);
        verify.wait().ok();
    }
}

// What is there when recovery looks need not be the restore's own work
#[test]
fn edits_made_after_a_restore_was_killed_are_kept_and_named_by_its_undo() {
    if !capability::can_inject() {
        return;
    }
    let mut endings = BTreeSet::new();
    for nth in 1..60 {
        let (ws, snapshot) = edited_since_a_snapshot();
        let call = ws.call(["--json", "restore", snapshot.id()]);
        let was_killed = killed_at(call, RENAMING, nth).code != 0;
        ws.write("f2", "mine\n");
        ws.write("mine", "mine\n");
        ws.json(["list"]);
        let is_done = ws.text("f1") == "captured\n";
        let undone = ws.try_json(["undo"]);
        let case = format!("killed at rename {nth}: {undone}");
        assert_eq!(ws.text("f2"), "mine\n", "{case}");
        assert_eq!(ws.text("mine"), "mine\n", "{case}");
        for i in [1, 3, 4, 5, 6, 7, 8] {
            assert_eq!(ws.text(format!("f{i}")), "edited\n", "f{i}: {case}");
        }
        assert_eq!(undone.code == 0, is_done, "{case}");
        if is_done {
            let skipped = undone.json()["skipped"].take();
            assert_eq!(json::names_in(&skipped), ["f2"], "{case}");
        }
        endings.insert((was_killed, is_done));
        if !was_killed {
            break;
        }
    }
    assert_eq!(
        endings,
        BTreeSet::from([(true, false), (true, true), (false, true)]),
        "the loop crossed the point of no return and came to the end"
    );
}

#[test]
fn an_undo_of_a_restore_that_failed_half_way_takes_back_the_whole_of_it() {
    if !capability::can_inject() {
        return;
    }
    let mut endings = BTreeSet::new();
    for nth in 1..60 {
        let (ws, snapshot) = edited_since_a_snapshot();
        let edited = view::worktree(ws.root());
        let trace = format!("trace={RENAMING}");
        let inject = format!("inject={RENAMING}:error=ENOSPC:when={nth}");
        let failed = ws
            .call(["--json", "restore", snapshot.id()])
            .through(
                "strace",
                ["-f", "-o", "/dev/null", "-e", &trace, "-e", &inject],
            )
            .run();
        let is_mixed = (1..9).any(|i| ws.text(format!("f{i}")) == "captured\n")
            && (1..9).any(|i| ws.text(format!("f{i}")) == "edited\n");
        let is_touched = view::worktree(ws.root()) != edited;
        let undone = ws.try_json(["undo"]);
        let case = format!("failed at rename {nth}: {failed} {undone}");
        view::same(&edited, &view::worktree(ws.root()), &case);
        assert!(undone.code == 0 || !is_touched, "{case}");
        endings.insert(is_mixed);
        if failed.code == 0 {
            break;
        }
    }
    assert_eq!(
        endings,
        BTreeSet::from([true, false]),
        "it failed half way, and came to the end"
    );
}

// An undo that recovery finished is an undo, of the repository too
#[test]
fn an_undo_that_was_killed_can_be_redone_with_index_and_branch() {
    if !capability::can_inject() {
        return;
    }
    let mut endings = BTreeSet::new();
    for kill in Kill::all() {
        let ws = TestWorkspace::repository();
        let state = |ws: &TestWorkspace| {
            (
                view::worktree(ws.root()),
                ws.git(["ls-files", "--stage"]),
                ws.git(["rev-parse", "refs/heads/main"]),
            )
        };
        let before = state(&ws);
        let git = "export GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org \
            GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.org; ";
        let script = format!(
            "{git} echo x > README; echo y > new; git add new; git commit -q -m work; \
             echo z > staged; git add staged"
        );
        let run = ws.run::<&str>([], &script).ok().json();
        let after = state(&ws);
        let call = ws.call(["--json", "undo", run["run_id"].as_str().unwrap()]);
        let was_killed = kill.of(&ws, call).code != 0;
        ws.json(["list"]);
        let is_done = state(&ws) == before;
        let undone = ws.undo();
        let case = format!("{kill:?}: {undone}");
        if is_done {
            assert_eq!(undone["undone"]["operation"], "undo", "{case}");
            assert_eq!(state(&ws), after, "{case}");
        } else {
            assert_eq!(undone["undone"]["run_id"], run["run_id"], "{case}");
            assert_eq!(state(&ws), before, "{case}");
        }
        endings.insert((was_killed, is_done));
        if !was_killed {
            break;
        }
    }
    assert_eq!(
        endings,
        BTreeSet::from([(true, false), (true, true), (false, true)]),
        "the loop crossed the point of no return and came to the end"
    );
}

#[test]
fn a_capture_killed_at_any_step_leaves_a_whole_store() {
    if !capability::can_inject() {
        return;
    }
    let ws = TestWorkspace::repository();
    let mut acknowledged: Vec<String> = vec![ws.snapshot().id().to_owned()];
    let mut came_to_the_end = false;
    for nth in 1..80 {
        ws.write("README", format!("{nth}\n"));
        ws.write(format!("new/{nth}"), "x\n");
        let call = ws.call(["--json", "snapshot"]);
        let output = ws.untouched(|| killed_at(call, MUTATING, nth));
        if output.code == 0 {
            acknowledged.push(output.json()["id"].as_str().unwrap().to_owned());
            came_to_the_end = true;
            break;
        }
        oracle::fsck(&ws.state());
        let listed = ws.json(["list"]);
        let ids: Vec<&str> = listed
            .as_array()
            .unwrap()
            .iter()
            .map(|s| s["id"].as_str().unwrap())
            .collect();
        for id in &acknowledged {
            assert!(
                ids.contains(&id.as_str()),
                "killed at call {nth}: {id} is lost"
            );
        }
        ws.stillframe(["verify"]).ok();
    }
    assert!(came_to_the_end);
    assert_eq!(ws.snapshot().tree(), oracle::raw_tree(&ws));
}

#[test]
fn a_rollback_killed_at_any_step_leaves_files_index_and_branch_together() {
    if !capability::can_inject() {
        return;
    }
    let mut endings = BTreeSet::new();
    for kill in Kill::all() {
        let ws = TestWorkspace::repository();
        ws.snapshot();
        ws.write("other", "x\n");
        ws.git(["add", "other"]);
        let tip = ws.git(["rev-parse", "HEAD"]);
        let second = ws.git([
            "commit-tree",
            "HEAD^{tree}",
            "-p",
            "HEAD",
            "-m",
            "by the run",
        ]);
        ws.write("new-index", "");
        ws.remove("new-index");
        ws.git_call(["add", "-A"])
            .env("GIT_INDEX_FILE", ws.base().join("new-index"))
            .run()
            .ok();
        let state = |ws: &TestWorkspace| {
            (
                view::worktree(ws.root()),
                fs::read(ws.path(".git/index")).unwrap(),
                ws.text(".git/refs/heads/main").trim().to_owned(),
            )
        };
        let before = state(&ws);
        // Nothing here but the shell and cat, which make none of the calls that are counted.
        let script = format!(
            "echo x > README; echo x > made; echo {second} > .git/refs/heads/main; \
             cat ../new-index > .git/index; exit 1"
        );
        let call = ws.run_call(["--rollback-on-failure"], &script);
        let output = kill.of(&ws, call);
        if output.code == 1 {
            assert_eq!(state(&ws), before, "it was not killed");
            endings.insert("not killed");
            break;
        }
        ws.snapshot();
        let now = state(&ws);
        if now == before {
            // Before the run, or after the rollback: the safety ref tells which.
            let tags = ws.git([
                "for-each-ref",
                "--format=%(objectname)",
                "refs/stillframe/safety",
            ]);
            endings.insert(if tags == second {
                "rolled back"
            } else {
                "before"
            });
        } else {
            assert_eq!(ws.text("README"), "x\n", "{kill:?}: as the run left it");
            assert_eq!(ws.text("made"), "x\n", "{kill:?}");
            assert_eq!(now.2, second, "{kill:?}: the branch too");
            assert_ne!(now.2, tip);
            endings.insert("as the run left it");
        }
    }
    assert!(endings.contains("not killed"), "{endings:?}");
    assert!(endings.contains("as the run left it"), "{endings:?}");
    assert!(endings.contains("rolled back"), "{endings:?}");
}

// What was done is told, whoever finished it
#[test]
fn a_rollback_that_was_killed_is_told_of_by_whoever_finishes_it() {
    if !capability::can_inject() {
        return;
    }
    let mut endings = BTreeSet::new();
    for kill in Kill::all() {
        let ws = TestWorkspace::repository();
        ws.snapshot();
        let before = view::worktree(ws.root());
        let script = "echo x > README; echo x > made; exit 1";
        let call = ws.run_call(["--rollback-on-failure", "--session", "s"], script);
        let was_killed = kill.of(&ws, call).code != 1;
        ws.snapshot();
        let runs = ws.json(["runs"]);
        if !runs[0]["started_at"].is_string() {
            continue;
        }
        let run = ws.show(runs[0]["run_id"].as_str().unwrap());
        let rollback = &run["workspace"]["rollback"];
        let events = ws.events(["--session", "s"]);
        let told = events.iter().find(|e| e["type"] == "workspace_rolled_back");
        let case = format!("{kill:?}: {run}");
        if view::worktree(ws.root()) != before {
            assert!(rollback.is_null() && told.is_none(), "{case}");
            endings.insert("as the run left it");
            continue;
        }
        if run["workspace"]["diff"].is_null() || run["workspace"]["diff"]["files_changed"] == 0 {
            endings.insert("before its work");
            continue;
        }
        assert_eq!(rollback["status"], "completed", "{case}");
        assert_eq!(
            json::names(&rollback["restored"]),
            ["README", "made"],
            "{case}"
        );
        let data = &told.unwrap_or_else(|| panic!("{case}"))["data"];
        assert_eq!(
            data["to"], run["workspace"]["before_snapshot"],
            "{data} {case}"
        );
        assert_eq!(data["guard"], rollback["guard_snapshot"], "{data} {case}");
        assert_eq!(data["operation"], "rollback", "{data}");
        assert_eq!(data["restored"], 2, "{data}");
        let is_recovered = data["recovered"] == true;
        assert!(was_killed || !is_recovered, "{case}");
        let undone = ws.untouched(|| ws.json(["undo"]));
        assert_eq!(json::names(&undone["restored"]), [""; 0], "{case}");
        endings.insert(match is_recovered {
            true => "told by recovery",
            false => "told by itself",
        });
        if !was_killed {
            break;
        }
    }
    for ending in ["as the run left it", "told by recovery", "told by itself"] {
        assert!(endings.contains(ending), "{endings:?}");
    }
}

#[test]
fn a_path_that_changes_while_a_restore_applies_is_kept_and_named() {
    if !capability::can_inject() {
        return;
    }
    // A busy machine may be done with the restore before this one comes to look.
    let is_seen = (0..5).any(|_| a_path_changes_while_a_restore_applies());
    assert!(
        is_seen,
        "each rename waits, so that somebody else is quicker"
    );
}

/// Whether anybody was in time to write.
fn a_path_changes_while_a_restore_applies() -> bool {
    let ws = TestWorkspace::repository();
    for i in 0..6 {
        ws.write(format!("f{i}"), "captured\n");
    }
    let snapshot = ws.snapshot();
    for i in 0..6 {
        ws.write(format!("f{i}"), "edited\n");
    }
    let call = ws.call(["--json", "restore", snapshot.id()]);
    let calls = "?rename,?renameat,?renameat2";
    let trace = format!("trace={calls}");
    let inject = format!("inject={calls}:delay_enter=200ms");
    let mut running = call
        .through(
            "strace",
            ["-f", "-o", "/dev/null", "-e", &trace, "-e", &inject],
        )
        .start();
    let is_captured =
        |i: usize| ws.exists(format!("f{i}")) && ws.text(format!("f{i}")) == "captured\n";
    let mut changed = None;
    running.until("the restore applies", |_| {
        // As soon as one is done, one that is not done yet is written by somebody else.
        if (0..6).any(is_captured)
            && let Some(i) = (0..6)
                .rev()
                .find(|i| ws.exists(format!("f{i}")) && !is_captured(*i))
        {
            ws.write(format!("f{i}"), "by somebody else, meanwhile\n");
            changed = Some(i);
        }
        changed.is_some() || (0..6).all(is_captured)
    });
    let outcome = running.wait().ok().json();
    let Some(i) = changed else {
        return false;
    };
    let name = format!("f{i}");
    assert_eq!(ws.text(&name), "by somebody else, meanwhile\n", "{outcome}");
    assert_eq!(json::names_in(&outcome["skipped"]), [name], "{outcome}");
    true
}

/// Tells the other thread to stop, also when this one panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Lets `dir` be a directory and a link to the outside, in turns, while `work` is done.
fn while_a_directory_flickers(ws: &TestWorkspace, work: impl FnOnce()) {
    ws.write("dir/file", "ours\n");
    fs::write(ws.outside().join("file"), "canary\n").unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (dir, aside) = (ws.path("dir"), ws.base().join("aside"));
            while !stop.load(Ordering::Relaxed) {
                let _ = fs::rename(&dir, &aside);
                let _ = std::os::unix::fs::symlink("../outside", &dir);
                let _ = fs::remove_file(&dir);
                let _ = fs::rename(&aside, &dir);
            }
        });
        let _stop = Stop(&stop);
        work();
    });
}

#[test]
fn a_directory_that_flickers_into_a_link_is_never_read_through() {
    let ws = TestWorkspace::repository();
    while_a_directory_flickers(&ws, || {
        for _ in 0..15 {
            let output = ws.try_json(["snapshot"]);
            if output.code != 0 {
                continue;
            }
            let snapshot = stillframe_tests::Snap::of(&output.json());
            let canary = ws
                .git_call(["hash-object", "--stdin"])
                .stdin("canary\n")
                .run()
                .stdout_text();
            let listing = oracle::stored_listing(&ws, snapshot.tree());
            assert!(
                listing.entries.iter().all(|e| e.id != canary.trim()),
                "nothing outside is ever read"
            );
        }
    });
}

#[test]
fn a_directory_that_flickers_into_a_link_is_never_written_through() {
    let ws = TestWorkspace::repository();
    ws.write("dir/file", "captured\n");
    ws.write("dir/other", "captured\n");
    let snapshot = ws.snapshot();
    let outside = || {
        let names = fs::read_dir(ws.outside()).unwrap().flatten();
        let names: Vec<_> = names.map(|e| e.file_name()).collect();
        (names, fs::read(ws.outside().join("file")).unwrap())
    };
    while_a_directory_flickers(&ws, || {
        for i in 0..8 {
            ws.write("README", format!("{i}\n"));
            // It may be refused, and it may leave paths alone; it may not leave the workspace.
            let _ = ws.try_json(["restore", snapshot.id()]);
            assert_eq!(outside(), (vec!["file".into()], b"canary\n".to_vec()));
        }
    });
    let _ = fs::remove_dir_all(ws.base().join("aside"));
}

// A store that somebody has tampered with
#[test]
fn a_tree_with_names_that_lead_elsewhere_writes_nothing() {
    for name in ["..", ".git", ".GIT", "a/../../x", "", "."] {
        let mut ws = TestWorkspace::repository();
        let snapshot = ws.snapshot();
        ws.write("README", "edited\n");
        ws.damages_the_store();
        let store = ws.stores()[0].join("git");
        let home = ws.home();
        let blob = stillframe_tests::git::call(&home, &store, ["hash-object", "-w", "--stdin"])
            .stdin("evil\n")
            .run()
            .ok()
            .stdout_text();
        let raw: Vec<u8> = (0..20)
            .map(|i| u8::from_str_radix(&blob[2 * i..2 * i + 2], 16).unwrap())
            .collect();
        let mut tree = format!("100644 {name}\0").into_bytes();
        tree.extend(raw);
        let args = ["hash-object", "-w", "-t", "tree", "--literally", "--stdin"];
        let tree = stillframe_tests::git::call(&home, &store, args)
            .stdin(tree)
            .run()
            .ok();
        let commit = stillframe_tests::git::text(
            &home,
            &store,
            ["cat-file", "commit", snapshot.reference()],
        );
        let forged = commit.replacen(snapshot.tree(), tree.stdout_text().trim(), 1);
        let args = ["hash-object", "-w", "-t", "commit", "--stdin"];
        let forged = stillframe_tests::git::call(&home, &store, args)
            .stdin(forged + "\n")
            .run()
            .ok()
            .stdout_text();
        let refs = stillframe_tests::git::text(
            &home,
            &store,
            ["for-each-ref", "--format=%(refname)", "refs/snapshots"],
        );
        for name in refs.lines() {
            let args = ["update-ref", name, forged.trim()];
            stillframe_tests::git::run(&home, &store, args);
        }
        let config = ws.read(".git/config");
        let output = ws.try_json(["restore", snapshot.id()]);
        if output.code != 0 {
            output.error("Corrupt");
            assert_eq!(ws.text("README"), "edited\n", "nothing was touched");
        }
        assert_eq!(ws.read(".git/config"), config);
        let names: BTreeSet<_> = fs::read_dir(ws.base())
            .unwrap()
            .flatten()
            .map(|e| e.file_name())
            .collect();
        assert_eq!(
            names.len(),
            4,
            "nothing was written beside the workspace: {names:?}"
        );
    }
}

// A clean-up that ends half way leaves nothing on record that is not there
#[test]
fn a_gc_killed_at_any_step_leaves_snapshots_that_can_be_restored() {
    if !capability::can_inject() {
        return;
    }
    for nth in one_of_each("gc", 6).take_while(|nth| *nth < 60) {
        let ws = TestWorkspace::repository();
        for content in ["one\n", "two\n", "three\n"] {
            ws.write("README", content);
            ws.snapshot();
        }
        let newest = ws.snapshot();
        let killed = killed_at(ws.call(["--json", "gc", "--keep", "1"]), MUTATING, nth);
        let verdict = ws.json(["verify"]);
        let snapshots = verdict["snapshots"].as_array().unwrap();
        assert!(!snapshots.is_empty(), "step {nth}");
        let is_listed = |s: &serde_json::Value| s["id"] == newest.id();
        assert!(
            snapshots.iter().any(is_listed),
            "step {nth}: the newest stays"
        );
        ws.json(["gc", "--keep", "1"]);
        assert_eq!(ws.json(["list"]).as_array().unwrap().len(), 1, "step {nth}");
        if killed.code == 0 {
            break;
        }
    }
}

/// The files and links of the state directory with their sizes, but for the log, whose pages are
/// its own affair, and for what says which process it was.
fn kept_in(state: &Path) -> BTreeSet<(String, u64)> {
    let mut kept = BTreeSet::new();
    for entry in walkdir::WalkDir::new(state) {
        let entry = entry.unwrap();
        let name = entry.path().strip_prefix(state).unwrap();
        let name = name.to_str().unwrap().to_owned();
        let others = ["stillframe.db", "engines/", "locks/"];
        let is_other = others.iter().any(|p| name.starts_with(p)) || name.ends_with("/lock");
        if !entry.file_type().is_dir() && !is_other {
            kept.insert((name, entry.metadata().unwrap().len()));
        }
    }
    kept
}

// Between forgetting a guard and removing what its restore displaced nobody knew of that any more,
// and no later clean-up found it
#[test]
fn a_clean_up_killed_at_any_step_leaves_no_more_than_one_that_was_not() {
    if !capability::can_inject() {
        return;
    }
    let ws = TestWorkspace::repository();
    for round in 0..3 {
        ws.write("displaced", format!("captured {round}\n"));
        let snapshot = ws.snapshot();
        ws.write("displaced", format!("edited {round}\n"));
        ws.write("new", format!("new {round}\n"));
        ws.restore(&snapshot);
    }
    ws.snapshot();
    let (state, saved) = (ws.state(), ws.base().join("saved"));
    copy_whole(&state, &saved);
    let gc = ["--json", "gc", "--keep", "1"];
    ws.call(gc).run().ok();
    ws.call(gc).run().ok();
    let expected = kept_in(&state);
    let is_trash = |name: &str| name.contains("/restore-");
    assert!(!expected.iter().any(|(name, _)| is_trash(name)));

    let mut endings = BTreeSet::new();
    // The first of the states is over soon.
    let later = one_of_each("clean-up", 4).skip_while(|nth| *nth < 8);
    for nth in (1..8).chain(later) {
        copy_whole(&saved, &state);
        let was_killed = killed_at(ws.call(gc), MUTATING, nth).code != 0;
        let left = kept_in(&state)
            .iter()
            .filter(|(name, _)| is_trash(name))
            .count();
        let listed = ws.json(["list"]).to_string();
        let told: Vec<String> = ws
            .events::<&str>([])
            .iter()
            .filter(|event| event["type"] == "workspace_cleaned_up")
            .flat_map(|event| event["data"]["snapshots"].as_array().unwrap())
            .map(|id| id.as_str().unwrap().to_owned())
            .collect();
        assert!(
            !told.iter().any(|id| listed.contains(id)),
            "what was told to be forgotten comes back: killed at call {nth}"
        );
        let forgotten = ws.json(["gc", "--keep", "1"])["forgotten"]
            .as_array()
            .unwrap()
            .len();
        let found = kept_in(&state);
        assert_eq!(found, expected, "killed at call {nth}");
        endings.insert((was_killed, left > 0, forgotten > 0));
        if !was_killed {
            break;
        }
    }
    let seen = [
        (true, true, true),
        (true, true, false),
        (true, false, false),
        (false, false, false),
    ];
    // Between two of them there are few calls, of which none may have been chosen.
    let what = "(killed, displaced files were left, snapshots were left)";
    assert!(endings.is_subset(&seen.into()), "{what}: {endings:?}");
    for end in [seen[0], seen[3]] {
        assert!(endings.contains(&end), "{what}: {endings:?}");
    }
}
