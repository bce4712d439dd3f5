//! Runs of steps on a disk that is full, cannot be written, or has changed what is on it.
//!
//! What was done is told by a file outside of the workspace, which every command writes to and no
//! restore takes back.

use std::fs;
use std::path::PathBuf;

use rusqlite::Connection;
use serde_json::Value;
use stillframe_tests::capability::Mounts;
use stillframe_tests::{Output, TestWorkspace, view};

/// A run of three steps, `one`, `two` and `three`, whose state directory is a file system of its
/// own.
struct Steps {
    ws: TestWorkspace,
    mounts: Mounts,
}

impl Steps {
    /// Step `two` does `trouble`, a shell script in which `$STATE` is the state directory, until
    /// there is a file named `cured`.
    fn new(size: &str, trouble: &str) -> Option<Self> {
        let mounts = Mounts::new()?;
        let mut ws = TestWorkspace::repository();
        fs::create_dir(ws.state()).unwrap();
        mounts.tmpfs(&ws.state(), size);
        mounts.shell(&format!("chmod 700 '{}'", ws.state().display()));
        // What is in there is checked by the program itself.
        ws.damages_the_store();
        ws.set_env("STATE", ws.state());
        ws.set_env("OUTSIDE", ws.outside());
        ws.set_env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        let step = |name: &str, work: &str| {
            format!(
                "[[step]]\nname = \"{name}\"\ncommand = '''\necho {name} >> \"$OUTSIDE/log\"\n{work}\n'''\n"
            )
        };
        let plan = [
            step("one", "echo one > one"),
            step(
                "two",
                &format!("echo two > two; test -e \"$OUTSIDE/cured\" || {{ {trouble}; }}; true"),
            ),
            step("three", "echo three > three"),
        ];
        fs::create_dir_all(ws.outside()).unwrap();
        fs::write(ws.outside().join("steps.toml"), plan.concat()).unwrap();
        Some(Self { ws, mounts })
    }

    fn call(&self, args: &[&str]) -> Output {
        let call = self.ws.call(["--json"]).args(args);
        self.mounts.inside(call, self.ws.root()).run()
    }

    fn begin(&self) -> Output {
        let file = self.ws.outside().join("steps.toml");
        let file = file.to_str().unwrap();
        self.call(&["run", "--steps", file, "--run-id", "nightly"])
    }

    /// The cause of the trouble is gone, by this script.
    fn cure(&self, script: &str) {
        fs::write(self.ws.outside().join("cured"), "").unwrap();
        let state = self.ws.state().display().to_string();
        self.mounts.shell(&script.replace("$STATE", &state));
    }

    /// What was begun, in order.
    fn log(&self) -> Vec<String> {
        let log = fs::read_to_string(self.ws.outside().join("log")).unwrap();
        log.lines().map(str::to_owned).collect()
    }

    /// The names of the steps that are on record as completed.
    fn completed(&self) -> Vec<String> {
        let run = self.call(&["show", "nightly"]).ok().json();
        let phases = run["phases"].as_array().unwrap().iter();
        phases
            .flat_map(|phase| phase["steps"].as_array().unwrap())
            .filter(|step| step["status"] == "completed")
            .map(|step| step["name"].as_str().unwrap().to_owned())
            .collect()
    }

    /// Resumes the run, which comes to its end; no step in `done` was run again.
    fn comes_to_its_end(&self, done: &[&str]) {
        let before = self.log();
        let run = self.call(&["resume", "nightly"]).ok().json();
        assert_eq!(run["status"], "completed", "{run}");
        let log = self.log();
        for name in done {
            let again = log[before.len()..].iter().any(|begun| begun == name);
            assert!(!again, "{name} was done: {log:?}");
        }
        assert_eq!(self.completed(), ["one", "two", "three"]);
        for name in ["one", "two", "three"] {
            assert_eq!(self.ws.text(name), format!("{name}\n"));
        }
        assert_eq!(self.ws.text("README"), "hello\n");
        self.call(&["verify"]).ok();
    }

    fn database(&self) -> PathBuf {
        self.mounts.path(&self.ws.state()).join("stillframe.db")
    }
}

/// What a run of steps that was interrupted says of why.
#[track_caller]
fn interrupted_by(output: Output, kind: &str) -> Value {
    let said = output.exits(125).json();
    let run = match said.get("run") {
        Some(run) => run.clone(),
        None => said,
    };
    assert_eq!(run["status"], "interrupted", "{run}");
    assert_eq!(run["error"]["kind"], kind, "{run}");
    run
}

#[test]
fn what_a_step_left_that_no_longer_fits_is_kept_in_the_workspace_and_captured_when_there_is_room() {
    let trouble = "head -c 16777216 /dev/urandom > big";
    let Some(steps) = Steps::new("8m", trouble) else {
        return;
    };
    interrupted_by(steps.begin(), "NoSpace");
    let left = view::worktree(steps.ws.root());
    assert_eq!(fs::metadata(steps.ws.path("big")).unwrap().len(), 16 << 20);
    assert_eq!(steps.log(), ["one", "two"]);

    // There is no more room than there was.
    interrupted_by(steps.call(&["resume", "nightly"]), "NoSpace");
    assert_eq!(steps.log(), ["one", "two"], "its result is on record");
    view::same(
        &left,
        &view::worktree(steps.ws.root()),
        "nothing was touched",
    );

    steps.cure("mount -o remount,size=64m '$STATE'");
    steps.comes_to_its_end(&["one", "two"]);
    assert_eq!(fs::metadata(steps.ws.path("big")).unwrap().len(), 16 << 20);
}

#[test]
fn a_log_that_is_full_when_a_step_ends_costs_that_step_and_none_before_it() {
    let trouble = "cat /dev/zero > \"$STATE/fill\" 2>/dev/null";
    let Some(steps) = Steps::new("8m", trouble) else {
        return;
    };
    interrupted_by(steps.begin(), "NoSpace");
    assert_eq!(steps.log(), ["one", "two"]);
    let left = view::worktree(steps.ws.root());
    steps
        .call(&["resume", "nightly"])
        .exits(125)
        .error("NoSpace");
    for args in [&["runs"][..], &["show", "nightly"]] {
        steps.call(args).refused("NoSpace");
    }
    assert_eq!(steps.log(), ["one", "two"], "nothing was run");
    view::same(
        &left,
        &view::worktree(steps.ws.root()),
        "nothing was touched",
    );

    steps.cure("rm '$STATE/fill'");
    steps.comes_to_its_end(&["one"]);
    assert_eq!(steps.log(), ["one", "two", "two", "three"]);
}

#[test]
fn a_log_that_is_full_when_a_step_ends_gets_the_room_that_is_kept_and_the_step_is_not_paid_twice() {
    let trouble = "cat /dev/zero > \"$STATE/fill\" 2>/dev/null";
    let Some(steps) = Steps::new("40m", trouble) else {
        return;
    };
    interrupted_by(steps.begin(), "NoSpace");
    assert_eq!(steps.log(), ["one", "two"]);
    steps.cure("rm '$STATE/fill'");
    let resumed = steps.call(&["resume", "nightly"]).ok().json();
    assert_eq!(resumed["status"], "completed", "{resumed}");
    assert_eq!(steps.log(), ["one", "two", "three"], "none ran twice");
}

#[test]
fn on_a_disk_with_so_little_left_that_the_end_of_a_step_might_not_fit_none_is_begun() {
    // With more, the end of the step may fit, and then there is room again once the log was closed.
    for left in [100, 400] {
        let trouble = format!(
            "cat /dev/zero > \"$STATE/fill\" 2>/dev/null; truncate -s -{left}K \"$STATE/fill\""
        );
        let Some(steps) = Steps::new("8m", &trouble) else {
            return;
        };
        interrupted_by(steps.begin(), "NoSpace");
        assert_eq!(steps.log(), ["one", "two"], "{left}");
        for _ in 0..3 {
            let refused = steps.call(&["resume", "nightly"]).exits(125);
            refused.error("NoSpace");
            assert_eq!(steps.log(), ["one", "two"], "{left}: nothing was run");
        }
        let other = steps.call(&["run", "--", "true"]).exits(125);
        other.error("NoSpace");
        steps.cure("rm '$STATE/fill'");
        steps.comes_to_its_end(&["one"]);
    }
}

#[test]
fn a_run_of_steps_that_was_killed_is_recovered_on_a_full_disk_and_goes_on_when_there_is_room() {
    let trouble = "kill -9 $PPID; exit 1";
    let Some(steps) = Steps::new("24m", trouble) else {
        return;
    };
    assert_ne!(steps.begin().code, 0, "it was killed");
    let left = view::worktree(steps.ws.root());
    let state = steps.ws.state().display().to_string();
    let fill = format!("cat /dev/zero > '{state}/fill' 2>/dev/null; true");
    steps.mounts.shell(&fill);
    // There is a megabyte for that.
    assert_eq!(steps.completed(), ["one"]);
    let run = steps.call(&["show", "nightly"]).ok().json();
    assert_eq!(run["status"], "interrupted", "{run}");
    steps.mounts.shell(&fill);
    let resumed = steps.call(&["resume", "nightly"]);
    assert_ne!(resumed.code, 0, "{resumed}");
    let said = resumed.json();
    let kind = match said["error"]["kind"].as_str() {
        Some(kind) => kind.to_owned(),
        None => said["run"]["error"]["kind"].to_string(),
    };
    assert!(kind.contains("NoSpace"), "{said}");
    assert_eq!(steps.log(), ["one", "two"], "nothing was run");
    view::same(
        &left,
        &view::worktree(steps.ws.root()),
        "nothing was touched",
    );

    steps.cure("rm '$STATE/fill'");
    steps.comes_to_its_end(&["one"]);
    assert_eq!(steps.log(), ["one", "two", "two", "three"]);
}

#[test]
fn a_state_directory_that_becomes_read_only_under_a_run_of_steps_interrupts_it() {
    // Files that are open can be written; no file can be made.
    let trouble = "mount --bind \"$STATE\" \"$STATE\" && mount -o remount,bind,ro \"$STATE\"";
    let Some(steps) = Steps::new("24m", trouble) else {
        return;
    };
    interrupted_by(steps.begin(), "Storage");
    assert_eq!(steps.log(), ["one", "two"]);
    let left = view::worktree(steps.ws.root());
    let message = steps
        .call(&["resume", "nightly"])
        .exits(125)
        .error("Storage");
    assert!(message.ends_with("cannot be written"), "{message}");
    assert_eq!(steps.log(), ["one", "two"], "nothing was run");
    view::same(
        &left,
        &view::worktree(steps.ws.root()),
        "nothing was touched",
    );

    steps.cure("umount '$STATE'");
    steps.comes_to_its_end(&["one", "two"]);
    assert_eq!(steps.log(), ["one", "two", "three"]);
}

#[test]
fn a_database_that_was_damaged_between_two_steps_runs_nothing_until_it_is_whole() {
    let Some(steps) = Steps::new("24m", "kill -9 $PPID; exit 1") else {
        return;
    };
    assert_ne!(steps.begin().code, 0, "it was killed");
    // What it left is settled, and all of the log is in the one file.
    assert_eq!(steps.completed(), ["one"]);
    let database = steps.database();
    let whole = fs::read(&database).unwrap();
    // SQLite follows links, and would leave the namespace of another process by its path.
    let copy = tempfile::NamedTempFile::new().unwrap();
    fs::write(copy.path(), &whole).unwrap();
    let definition: String = Connection::open(copy.path())
        .unwrap()
        .query_row(
            "SELECT definition_hash FROM steps WHERE name = 'one'",
            (),
            |row| row.get(0),
        )
        .unwrap();
    let at = whole
        .windows(definition.len())
        .rposition(|part| part == definition.as_bytes())
        .unwrap();
    let mut flipped = whole.clone();
    flipped[at] ^= 1;
    let mut headless = whole.clone();
    headless[..100].fill(0);
    let left = view::worktree(steps.ws.root());
    fs::write(steps.ws.outside().join("cured"), "").unwrap();
    for (damaged, said) in [(&flipped, "does not match its sum"), (&headless, "")] {
        for companion in ["stillframe.db-wal", "stillframe.db-shm"] {
            let _ = fs::remove_file(database.with_file_name(companion));
        }
        fs::write(&database, damaged).unwrap();
        let refused = steps.call(&["resume", "nightly"]);
        assert_ne!(refused.code, 0, "{refused}");
        let error = &refused.json()["error"];
        assert_eq!(error["kind"], "Corrupt", "{refused}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(said), "{message}");
        assert_eq!(steps.log(), ["one", "two"], "nothing was run");
        view::same(
            &left,
            &view::worktree(steps.ws.root()),
            "nothing was touched",
        );
        let verified = steps.call(&["verify"]).exits(1).json();
        assert_eq!(verified["log"]["kind"], "Corrupt", "{verified}");
    }
    // Without it the run is not known any more, and the snapshots of its steps are.
    fs::remove_file(&database).unwrap();
    let listed = steps.call(&["list"]).ok().json();
    assert!(listed.as_array().unwrap().len() >= 3, "{listed}");
    steps
        .call(&["resume", "nightly"])
        .exits(125)
        .error("NotFound");
    view::same(
        &left,
        &view::worktree(steps.ws.root()),
        "nothing was touched",
    );
    for companion in ["stillframe.db-wal", "stillframe.db-shm"] {
        let _ = fs::remove_file(database.with_file_name(companion));
    }
    fs::write(&database, &whole).unwrap();
    steps.comes_to_its_end(&["one"]);
    assert_eq!(steps.log(), ["one", "two", "two", "three"]);
}
