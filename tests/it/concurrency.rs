//! Several at once in one workspace.

use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use stillframe::backends::Operation;

use rustix::process::Signal;
use stillframe_tests::{Snap, TestWorkspace, is_stopped, oracle, view};

/// Tells the other thread to stop, also when this one panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn eight_processes_take_a_snapshot_each_at_once() {
    let ws = TestWorkspace::repository();
    ws.write("untracked", "x\n");
    let expected = oracle::raw_tree(&ws);
    let running: Vec<_> = (0..8)
        .map(|_| ws.call(["--json", "snapshot"]).start())
        .collect();
    let mut ids = BTreeSet::new();
    for one in running {
        let snapshot = Snap::of(&one.wait().ok().json());
        assert_eq!(snapshot.tree(), expected);
        ids.insert(snapshot.id().to_owned());
    }
    assert_eq!(ids.len(), 8);
    let before = view::worktree(ws.root());
    ws.stillframe(["verify"]).ok();
    for id in ids {
        ws.write("README", format!("{id}\n"));
        ws.restore_id(&id);
        view::same(&before, &view::worktree(ws.root()), "each is restorable");
    }
}

#[test]
fn processes_with_one_new_state_directory_and_several_workspaces_all_succeed() {
    let ws = TestWorkspace::repository();
    let mut running = Vec::new();
    for i in 0..6 {
        let dir = ws.base().join(format!("w{i}"));
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("file"), format!("{i}\n")).unwrap();
        running.push(ws.call(["--json", "snapshot"]).cwd(dir).start());
    }
    for one in running {
        Snap::of(&one.wait().ok().json());
    }
}

// Twice at once, both succeed or one says Busy and by whom
#[test]
fn of_two_runs_at_once_the_second_waits_or_names_the_first() {
    let ws = TestWorkspace::repository();
    let started = ws.outside().join("started");
    let script = format!("touch '{}'; sleep 30", started.display());
    let mut first = ws.run_call::<&str>([], &script).start();
    first.until("the first is at work", |_| started.exists());
    let mark = ws.outside().join("second-ran");
    let second = ws
        .run::<&str>([], &format!("touch '{}'", mark.display()))
        .exits(125);
    let message = second.error("Busy");
    assert!(
        message.contains("run_") || message.contains(&first.pid().to_string()),
        "it names the holder: {message}"
    );
    assert!(!mark.exists(), "its command was not run");
    first.signal(Signal::INT);
    first.wait();
    ws.run::<&str>([], "true").ok();
}

#[test]
fn two_short_runs_at_once_do_not_mix() {
    let ws = TestWorkspace::repository();
    let running: Vec<_> = (0..2)
        .map(|i| ws.run_call::<&str>([], &format!("echo x > by-{i}")).start())
        .collect();
    for (i, one) in running.into_iter().enumerate() {
        let output = one.wait();
        if output.code == 125 {
            output.error("Busy");
            continue;
        }
        let run = output.ok().json();
        let changed = stillframe_tests::json::names(&run["workspace"]["diff"]["changed_paths"]);
        assert_eq!(
            changed,
            [format!("by-{i}")],
            "a diff has one run's work only"
        );
    }
}

#[test]
fn a_lock_whose_holder_died_is_free() {
    let ws = TestWorkspace::repository();
    let started = ws.outside().join("started");
    let script = format!("touch '{}'; sleep 60", started.display());
    let mut holder = ws.run_call::<&str>([], &script).start();
    holder.until("the lock is held", |_| started.exists());
    holder.signal(Signal::KILL);
    holder.kill();
    drop(holder);
    let output = ws.stillframe(["snapshot"]).ok();
    assert!(
        output.took.as_secs() < 20,
        "nobody waits for the dead: {:?}",
        output.took
    );
}

#[test]
fn a_lock_of_gits_own_does_not_matter_to_a_capture() {
    let ws = TestWorkspace::repository();
    for lock in [
        "index.lock",
        "HEAD.lock",
        "config.lock",
        "packed-refs.lock",
        "refs/heads/main.lock",
    ] {
        ws.write(format!(".git/{lock}"), "");
    }
    ws.untouched(|| ws.snapshot());
}

#[test]
fn two_restores_at_once_come_one_after_the_other() {
    let ws = TestWorkspace::repository();
    for i in 0..50 {
        ws.write(format!("f{i}"), "one\n");
    }
    let one = ws.snapshot();
    let one_view = view::worktree(ws.root());
    for i in 0..50 {
        ws.write(format!("f{i}"), "two\n");
    }
    let two = ws.snapshot();
    let two_view = view::worktree(ws.root());
    for _ in 0..3 {
        ws.write("f7", "three\n");
        let running = [&one, &two].map(|s| ws.call(["--json", "restore", s.id()]).start());
        for output in running.map(|r| r.wait()) {
            if output.code != 0 {
                output.refused("Busy");
            }
        }
        let now = view::worktree(ws.root());
        assert!(
            now == one_view || now == two_view,
            "one of the two, and no mixture: {now:?}"
        );
    }
}

// A plan that the first makes stale
#[test]
fn a_plan_that_another_restore_made_stale_is_a_conflict() {
    let ws = TestWorkspace::repository();
    let first = ws.snapshot();
    ws.write("README", "edited\n");
    let second = ws.snapshot();
    ws.write("README", "edited again\n");
    let plan = ws.json(["restore", first.id(), "--plan"]);
    ws.restore(&second);
    let id = plan["plan_id"].as_str().unwrap();
    ws.try_json(["restore", first.id(), "--apply", id])
        .refused("Conflict");
    assert_eq!(ws.text("README"), "edited\n");
}

#[test]
fn a_capture_ends_while_files_come_and_go() {
    let ws = TestWorkspace::repository();
    ws.write("calm", "x\n");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut i = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                i += 1;
                let name = format!("busy/{}", i % 50);
                ws.write(&name, format!("{i}\n").repeat(20));
                if i.is_multiple_of(3) {
                    ws.remove(&name);
                }
                if i.is_multiple_of(40) {
                    ws.remove("busy");
                }
            }
        });
        let _stop = Stop(&stop);
        for _ in 0..5 {
            let snapshot = ws.snapshot();
            let listing = oracle::stored_listing(&ws, snapshot.tree());
            assert!(listing.entries.iter().any(|e| e.path == b"calm"));
            let store = ws.stores()[0].join("git");
            for entry in listing
                .entries
                .iter()
                .filter(|e| e.path.starts_with(b"busy/"))
            {
                let home = ws.home();
                let blob =
                    stillframe_tests::git::run(&home, &store, ["cat-file", "blob", &entry.id]);
                let text = blob.stdout_text();
                let lines: BTreeSet<&str> = text.lines().collect();
                assert!(lines.len() <= 1, "a file is a state that it had: {lines:?}");
            }
        }
    });
}

#[test]
fn everything_at_once_leaves_a_whole_store_and_a_log_without_gaps() {
    let ws = TestWorkspace::repository();
    let first = ws.snapshot();
    let mut running = Vec::new();
    for i in 0..3 {
        running.push(ws.call(["--json", "snapshot"]).start());
        running.push(ws.call(["--json", "list"]).start());
        running.push(ws.call(["--json", "diff", first.id(), "now"]).start());
        running.push(
            ws.run_call(["--session", "s"], &format!("echo {i} > f{i}"))
                .start(),
        );
        running.push(ws.call(["verify"]).start());
    }
    for one in running {
        let output = one.wait();
        if output.code != 0 {
            output.error("Busy");
        }
    }
    let events = ws.events(["--session", "s"]);
    let numbers: Vec<u64> = events
        .iter()
        .map(|e| e["sequence"].as_u64().unwrap())
        .collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
    ws.stillframe(["verify"]).ok();
}

// The user's git goes on while snapshots are taken
#[test]
fn the_users_git_never_fails_because_of_a_capture() {
    let ws = TestWorkspace::repository();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                ws.snapshot();
            }
        });
        let _stop = Stop(&stop);
        for i in 0..10 {
            ws.write("file", format!("{i}\n"));
            ws.git(["add", "-A"]);
            ws.git(["commit", "-q", "-m", "more"]);
            ws.git(["status", "--porcelain"]);
            if i % 4 == 3 {
                ws.git(["gc", "-q", "--prune=now"]);
            }
        }
    });
    ws.git(["fsck", "--strict"]);
    ws.stillframe(["verify"]).ok();
}

/// Whether the process catches the signal by now (proc(5): bit N-1 of `SigCgt` is signal N).
fn catches(pid: rustix::process::Pid, signal: Signal) -> bool {
    let path = format!("/proc/{}/status", pid.as_raw_nonzero());
    let status = std::fs::read_to_string(path).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 << (signal.as_raw() - 1) != 0)
}

#[test]
fn a_command_that_is_asked_to_end_ends_at_once_and_leaves_nothing() {
    let ws = TestWorkspace::repository();
    let first = ws.snapshot();
    ws.write("new", "new\n");
    let state = stillframe_backends::StateDir::open(ws.state()).unwrap();
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        for command in [
            &["snapshot", "--json"][..],
            &["diff", first.id(), "--json"],
            &["restore", first.id(), "--plan", "--json"],
            &["gc", "--json"],
            &["why", "README", "--json"],
            &["purge", "README", "--json"],
        ] {
            // So that it is under way for as long as it is wanted.
            let workspace = stillframe_backends::Workspace::open(ws.root(), &state).unwrap();
            let held = workspace
                .lock(&Operation::unbounded(), std::time::Duration::from_secs(10))
                .unwrap();
            let mut running = ws.call(command.iter().copied()).start();
            running.until("it catches signals", |r| catches(r.pid(), signal));
            running.signal(signal);
            let output = running.wait().exits(code);
            output.error("Cancelled");
            drop(held);
        }
    }
    let listed = ws.json(["list"]);
    assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
    ws.stillframe(["snapshot"]).ok();
    ws.stillframe(["verify"]).ok();
}

/// How often each of those that are at work does something.
fn rounds() -> usize {
    match std::env::var("STILLFRAME_TORTURE").as_deref() {
        Ok("long") => 60,
        _ => 12,
    }
}

// Half of them in a linked worktree; the user's own git adds, commits, switches and collects
#[test]
fn sixteen_at_work_in_one_repository_beside_the_users_git_lose_nothing_and_are_in_nobodys_way() {
    let ws = TestWorkspace::repository();
    ws.write("user/file", "0\n");
    ws.write("ours/file", "0\n");
    ws.commit("began");
    let linked = ws.base().join("linked");
    ws.git([
        "worktree",
        "add",
        "-q",
        "-b",
        "linked",
        linked.to_str().unwrap(),
    ]);
    let first = ws.snapshot();
    let stop = AtomicBool::new(false);
    let acknowledged = std::sync::Mutex::new(Vec::<(bool, String)>::new());
    let done = std::sync::Mutex::new(BTreeSet::<&str>::new());
    std::thread::scope(|scope| {
        let user = scope.spawn(|| {
            let mut number = 0;
            while !stop.load(Ordering::Relaxed) {
                number += 1;
                ws.write("user/file", format!("{number}\n"));
                ws.git(["add", "user"]);
                ws.git(["status", "--porcelain"]);
                ws.git(["commit", "-q", "-m", "more"]);
                if number % 3 == 0 {
                    ws.git(["checkout", "-q", "-b", &format!("b{number}")]);
                }
                if number % 5 == 0 {
                    ws.git(["gc", "-q", "--prune=now"]);
                }
            }
            number
        });
        let workers: Vec<_> = (0..16)
            .map(|worker: usize| {
                let (ws, first, linked) = (&ws, &first, &linked);
                let (acknowledged, done) = (&acknowledged, &done);
                scope.spawn(move || {
                    let is_linked = worker % 2 == 1;
                    for round in 0..rounds() {
                        let call = match (worker + round) % 6 {
                            0 | 3 => ws.call(["--json", "snapshot"]),
                            1 => ws.call(["--json", "list"]),
                            2 if !is_linked => ws.call(["--json", "restore", first.id(), "ours"]),
                            4 => ws.call(["--json", "verify"]),
                            _ => ws.run_call(
                                ["--session", "s"],
                                &format!("echo {round} > ours/by-{worker}"),
                            ),
                        };
                        let output = match is_linked {
                            true => call.cwd(linked.clone()).run(),
                            false => call.run(),
                        };
                        if output.code != 0 {
                            output.error("Busy");
                            continue;
                        }
                        let answer = output.json();
                        if let Some(id) = answer["id"].as_str() {
                            acknowledged
                                .lock()
                                .unwrap()
                                .push((is_linked, id.to_owned()));
                        }
                        done.lock().unwrap().insert(match &answer {
                            a if a.is_array() => "list",
                            a if a["run_id"].is_string() => "run",
                            a if a["plan_id"].is_string() => "restore",
                            a if a["snapshots"].is_array() => "verify",
                            _ => "snapshot",
                        });
                    }
                })
            })
            .collect();
        let _stop = Stop(&stop);
        for worker in workers {
            worker.join().unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        assert!(user.join().unwrap() > 2, "the user came to something too");
    });
    let done = done.into_inner().unwrap();
    assert_eq!(done.len(), 5, "of each something came to its end: {done:?}");
    let acknowledged = acknowledged.into_inner().unwrap();
    let unique: BTreeSet<_> = acknowledged.iter().map(|(_, id)| id).collect();
    assert_eq!(unique.len(), acknowledged.len(), "no id is there twice");
    for is_linked in [false, true] {
        let call = |args: &[&str]| match is_linked {
            true => ws.call(args.iter().copied()).cwd(linked.clone()).run().ok(),
            false => ws.call(args.iter().copied()).run().ok(),
        };
        let listed = call(&["--json", "list"]).json();
        let listed: BTreeSet<_> = listed
            .as_array()
            .unwrap()
            .iter()
            .map(|s| s["id"].as_str().unwrap())
            .collect();
        let own = acknowledged
            .iter()
            .filter(|(linked, _)| *linked == is_linked);
        for (_, id) in own {
            assert!(listed.contains(&**id), "{id} was acknowledged");
        }
        call(&["verify"]);
    }
    let numbers: Vec<u64> = ws
        .events(["--session", "s"])
        .iter()
        .map(|e| e["sequence"].as_u64().unwrap())
        .collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
    ws.git(["fsck", "--strict"]);
    let locks = walkdir::WalkDir::new(ws.path(".git")).into_iter();
    let locks = locks.filter(|e| {
        let name = e.as_ref().unwrap().file_name().to_str().unwrap();
        name.ends_with(".lock")
    });
    assert_eq!(locks.count(), 0, "no lock is left");
}

// A lock that ran out while its holder slept would let two publish
#[test]
fn a_capture_that_was_stopped_for_however_long_still_holds_its_lock_and_goes_on() {
    if !stillframe_tests::capability::can_inject() {
        return;
    }
    let ws = TestWorkspace::repository();
    ws.snapshot();
    ws.write("new", "one\n");
    let expected = oracle::raw_tree(&ws);
    // Once new objects are in the store, and before a ref names them.
    let packs = ws.stores()[0].join("git/objects/pack");
    let published = || {
        let names = fs::read_dir(&packs).unwrap().map(|e| e.unwrap().path());
        names
            .filter(|path| path.extension().is_some_and(|e| e == "pack"))
            .count()
    };
    let had = published();
    let inject = "inject=fsync:signal=STOP:when=1";
    let strace = [
        "-f",
        "-o",
        "/dev/null",
        "-e",
        "trace=fsync",
        "-e",
        inject,
        "-P",
    ];
    let strace = strace.into_iter().chain([packs.to_str().unwrap()]);
    let call = ws.call(["--json", "snapshot"]);
    let mut running = call.through("strace", strace).start();
    let tracer = running.pid().as_raw_nonzero();
    let children = format!("/proc/{tracer}/task/{tracer}/children");
    let traced = || {
        let text = fs::read_to_string(&children).unwrap_or_default();
        text.split_whitespace()
            .next()
            .and_then(|pid| rustix::process::Pid::from_raw(pid.parse().ok()?))
    };
    // The tracer stops it at other calls too, each time for a moment.
    running.until("it is stopped with its pack in the store", |_| {
        published() > had && traced().is_some_and(is_stopped)
    });
    let state = stillframe_backends::StateDir::open(ws.state()).unwrap();
    let workspace = stillframe_backends::Workspace::open(ws.root(), &state).unwrap();
    let refused = workspace
        .lock(
            &Operation::unbounded(),
            std::time::Duration::from_millis(50),
        )
        .unwrap_err();
    assert_eq!(refused.kind().as_str(), "Busy", "{refused}");
    running.until("it goes on to its end", |_| {
        traced().is_none_or(|pid| rustix::process::kill_process(pid, Signal::CONT).is_err())
    });
    let snapshot = Snap::of(&running.wait().ok().json());
    assert_eq!(snapshot.tree(), expected);
    ws.stillframe(["verify"]).ok();
}
