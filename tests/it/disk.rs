//! A disk that is full or cannot be written.

use std::fs;
use std::path::PathBuf;

use stillframe_tests::capability::Mounts;
use stillframe_tests::{Output, Snap, TestWorkspace, view};

// Of a database of 38 MB 34 were free, for good
#[test]
fn a_clean_up_gives_back_what_the_database_has_free() {
    let ws = TestWorkspace::plain();
    ws.write(".gitignore", "*.o\n");
    ws.git(["init", "-q"]);
    let mut files: Vec<String> = (0..1_200).map(|number| format!("{number}.o")).collect();
    for name in &files {
        ws.write(name, "");
    }
    for number in 0..25 {
        // Other names each time, which no compression makes short.
        let names: Vec<String> = noise(1_200 * 120, number + 1)
            .chunks(120)
            .map(|bytes| bytes.iter().map(|byte| format!("{byte:02x}")).collect())
            .map(|name: String| name + ".o")
            .collect();
        // Some file systems take long to make a file where many were just removed.
        for (file, name) in files.iter().zip(&names) {
            ws.rename(file, name);
        }
        files = names;
        ws.snapshot();
    }
    let bytes = || ws.state().join("stillframe.db").metadata().unwrap().len();
    let full = bytes();
    assert!(
        full > 2_000_000,
        "each snapshot names what it left out: {full}"
    );
    ws.json(["gc", "--keep", "1"]);
    let left = bytes();
    assert!(left < full / 4, "{left} of {full}");
    assert_eq!(ws.json(["list"]).as_array().unwrap().len(), 1);
    ws.json(["verify"]);
}

// Every snapshot had all of it anew
#[test]
fn what_snapshots_leave_out_alike_is_kept_once_and_told_by_each() {
    let ws = TestWorkspace::plain();
    ws.write(".gitignore", "*.o\n");
    ws.git(["init", "-q"]);
    for number in 0..1_500 {
        ws.write(format!("a-name-of-some-length-{number:04}.o"), "");
    }
    let bytes = || {
        let size = |name: &str| ws.state().join(name).metadata().map_or(0, |m| m.len());
        size("stillframe.db") + size("stillframe.db-wal")
    };
    let take = |number: u32| {
        ws.write("file", format!("{number}\n"));
        ws.snapshot()
    };
    let mut taken = vec![take(0)];
    let first = bytes();
    taken.extend((1..=10).map(take));
    let each = (bytes() - first) / 10;
    assert!(each < 16 * 1024, "{each} bytes for each snapshot");
    ws.remove("a-name-of-some-length-0007.o");
    taken.push(take(11));
    let left_out = |snap: &Snap| {
        let shown = ws.show(snap.id());
        let paths = shown["omissions"].as_array().unwrap().iter();
        let paths = paths.map(|omission| omission["path"].as_str().unwrap().to_owned());
        paths.filter(|path| path.ends_with(".o")).count()
    };
    assert_eq!(left_out(&taken[0]), 1_500);
    assert_eq!(left_out(&taken[10]), 1_500);
    assert_eq!(left_out(&taken[11]), 1_499);
    ws.json(["gc", "--keep", "1"]);
    assert_eq!(left_out(&taken[11]), 1_499);
    ws.json(["verify"]);
}

/// Bytes that no compression makes smaller.
pub(crate) fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut bytes = Vec::with_capacity(length);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes
}

struct SmallState {
    ws: TestWorkspace,
    mounts: Mounts,
}

impl SmallState {
    /// A workspace whose state directory is a file system of this size.
    fn new(size: &str) -> Option<Self> {
        let mounts = Mounts::new()?;
        let mut ws = TestWorkspace::repository();
        fs::create_dir(ws.state()).unwrap();
        mounts.tmpfs(&ws.state(), size);
        mounts.shell(&format!("chmod 700 '{}'", ws.state().display()));
        // What is in there is checked below, by the program itself.
        ws.damages_the_store();
        Some(Self { ws, mounts })
    }

    fn call(&self, args: &[&str]) -> Output {
        let call = self.ws.call(["--json"]).args(args);
        self.mounts.inside(call, self.ws.root()).run()
    }

    fn state(&self) -> PathBuf {
        self.mounts.path(&self.ws.state())
    }

    /// Takes every byte that is left on the disk.
    fn fill(&self) {
        let state = self.ws.state().display().to_string();
        let fill = format!("cat /dev/zero >> '{state}/fill' 2>/dev/null; true");
        self.mounts.shell(&fill);
    }
}

#[test]
fn a_full_disk_is_no_space_and_publishes_nothing() {
    let Some(small) = SmallState::new("8m") else {
        return;
    };
    let first = Snap::of(&small.call(&["snapshot"]).ok().json());
    small.ws.write("big", noise(16 << 20, 1));
    small.ws.untouched(|| {
        let message = small.call(&["snapshot"]).refused("NoSpace");
        assert!(!message.is_empty());
    });
    let listed = small.call(&["list"]).ok().json();
    assert_eq!(
        listed.as_array().unwrap().len(),
        1,
        "nothing half-published"
    );
    assert_eq!(
        listed[0]["id"],
        first.id(),
        "and never an older one instead"
    );
    small.call(&["verify"]).ok();
    fs::remove_file(small.ws.path("big")).unwrap();
    small.ws.write("little", "x\n");
    small.call(&["snapshot"]).ok();
    small.call(&["verify"]).ok();
}

#[test]
fn a_full_disk_is_named_with_what_is_left_and_what_to_do() {
    let Some(small) = SmallState::new("8m") else {
        return;
    };
    small.ws.write("big", noise(16 << 20, 1));
    let message = small.call(&["snapshot"]).refused("NoSpace");
    let state = small.ws.state().display().to_string();
    assert!(
        message.contains(&format!("state directory {state} has ")),
        "{message}"
    );
    let call = small.ws.call(["snapshot"]);
    let people = small.mounts.inside(call, small.ws.root()).run().exits(1);
    let stderr = people.stderr_text();
    assert!(
        stderr.contains("STILLFRAME_HOME") && stderr.contains("stillframe gc"),
        "{stderr}"
    );
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    // So full that nothing at all can be written; who only reads does not have to.
    small.fill();
    small.call(&["snapshot"]).refused("NoSpace");
    small.call(&["list"]).ok();
    let reserve = small.state().join("reserve");
    if reserve.exists() {
        fs::remove_file(reserve).unwrap();
    }
    small.fill();
    let message = small.call(&["gc"]).refused("NoSpace");
    assert!(message.contains("remove something else there"), "{message}");
    assert!(!message.contains("for example with"), "{message}");
}

// No command started, not even the one that makes room
#[test]
fn on_a_full_disk_what_is_kept_is_listed_restored_undone_and_cleaned_up() {
    let Some(small) = SmallState::new("24m") else {
        return;
    };
    small.ws.write("work", noise(1 << 20, 5));
    let first = Snap::of(&small.call(&["snapshot"]).ok().json());
    small.ws.write("work", noise(1 << 20, 6));
    small.ws.write("README", "edited\n");
    let second = Snap::of(&small.call(&["snapshot"]).ok().json());
    let reserve = small.state().join("reserve");
    assert!(reserve.exists(), "there was room for it");
    for round in 0..2 {
        small.fill();
        let listed = small.call(&["list"]).ok().json();
        for snapshot in [&first, &second] {
            let is_it = |listed: &serde_json::Value| listed["id"] == snapshot.id();
            assert!(listed.as_array().unwrap().iter().any(is_it), "{listed}");
        }
        small.fill();
        assert_eq!(
            small.call(&["show", first.id()]).ok().json()["id"],
            first.id()
        );
        small.fill();
        small.call(&["restore", first.id(), "README"]).ok();
        assert_eq!(small.ws.text("README"), "hello\n", "round {round}");
        small.fill();
        small.call(&["undo"]).ok();
        assert_eq!(small.ws.text("README"), "edited\n", "round {round}");
        assert!(reserve.exists(), "the room is kept again, round {round}");
    }
    // What would use it up is for later.
    small.fill();
    small.ws.write("README", "edited again\n");
    small.call(&["snapshot"]).refused("NoSpace");
    assert!(reserve.exists());
    let cleaned = small.call(&["gc", "--keep", "1"]).ok().json();
    assert!(
        cleaned["freed_bytes"].as_u64().unwrap() > 1_000_000,
        "{cleaned}"
    );
    assert!(reserve.exists());
    let last = Snap::of(&small.call(&["snapshot"]).ok().json());
    small.call(&["verify"]).ok();
    let listed = small.call(&["list"]).ok().json();
    assert_eq!(listed[0]["id"], last.id());
    assert_ne!(
        listed[1]["id"],
        second.id(),
        "the guard of the last undo is newer"
    );
}

#[test]
fn a_state_directory_that_cannot_be_written_is_named_with_what_to_do() {
    let Some(small) = SmallState::new("8m") else {
        return;
    };
    small.call(&["snapshot"]).ok();
    let state = small.ws.state().display().to_string();
    small
        .mounts
        .shell(&format!("mount -o remount,ro '{state}'"));
    for command in ["snapshot", "gc"] {
        let message = small.call(&[command]).refused("Storage");
        assert!(
            message.ends_with(&format!("the state directory {state} cannot be written")),
            "{message}"
        );
        let call = small.ws.call([command]);
        let people = small.mounts.inside(call, small.ws.root()).run().exits(1);
        let stderr = people.stderr_text();
        let advice = "; for all else set STILLFRAME_HOME to a copy of the whole directory";
        assert!(stderr.contains(advice), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
}

// Without a guard nothing is replaced
#[test]
fn without_room_for_the_guard_nothing_is_restored() {
    let Some(small) = SmallState::new("8m") else {
        return;
    };
    let first = Snap::of(&small.call(&["snapshot"]).ok().json());
    small.ws.write("README", "edited\n");
    small.ws.write("work", noise(16 << 20, 2));
    small
        .ws
        .untouched(|| small.call(&["restore", first.id()]).refused("NoSpace"));
    fs::remove_file(small.ws.path("work")).unwrap();
    small.call(&["restore", first.id()]).ok();
    assert_eq!(small.ws.text("README"), "hello\n");
}

#[test]
fn a_disk_that_fills_up_during_a_run_does_not_hide_its_result() {
    let Some(small) = SmallState::new("8m") else {
        return;
    };
    let call = small
        .ws
        .run_call::<&str>([], "head -c 16777216 /dev/urandom > big; exit 7");
    let output = small.mounts.inside(call, small.ws.root()).run().exits(125);
    let run = output.json();
    assert_eq!(run["exit_code"], 7, "{run}");
    assert_eq!(run["workspace"]["error"]["kind"], "NoSpace", "{run}");
    let message = run["workspace"]["error"]["message"].as_str().unwrap();
    let disk = format!(
        "no room on the file system at {}, which has ",
        small.ws.state().display()
    );
    assert!(
        message.contains(&disk),
        "it is not said which is full: {message}"
    );
}

#[test]
fn a_read_only_state_directory_is_a_typed_error() {
    let Some(small) = SmallState::new("8m") else {
        return;
    };
    let snapshot = Snap::of(&small.call(&["snapshot"]).ok().json());
    let state = small.ws.state().display().to_string();
    small
        .mounts
        .shell(&format!("mount -o remount,ro '{state}'"));
    small.ws.write("README", "edited\n");
    for args in [&["snapshot"][..], &["restore", snapshot.id()]] {
        let output = small.ws.untouched(|| small.call(args));
        let message = output.refused("Storage");
        assert!(
            message.contains("read-only") || message.contains(&state),
            "{message}"
        );
    }
    small
        .mounts
        .shell(&format!("mount -o remount,rw '{state}'"));
    small.call(&["restore", snapshot.id()]).ok();
    assert_eq!(small.ws.text("README"), "hello\n");
    assert!(small.state().is_dir());
}

/// A workspace on a file system of four megabytes, in the directory `inner` of it.
struct SmallWorkspace {
    ws: TestWorkspace,
    mounts: Mounts,
}

impl SmallWorkspace {
    fn new() -> Option<Self> {
        let mounts = Mounts::new()?;
        let ws = TestWorkspace::plain();
        mounts.tmpfs(ws.root(), "4m");
        fs::create_dir(mounts.path(&ws.path("inner"))).unwrap();
        Some(Self { ws, mounts })
    }

    /// The directory as this process sees it.
    fn dir(&self) -> PathBuf {
        self.mounts.path(&self.ws.path("inner"))
    }

    fn call_in(&self, dir: &str, args: &[&str]) -> Output {
        let call = self.ws.call(["--json"]).args(args);
        self.mounts.inside(call, &self.ws.path(dir)).run()
    }
}

// The workspace's own disk is full before the point of no return
#[test]
fn a_full_workspace_is_found_before_anything_is_replaced() {
    let Some(small) = SmallWorkspace::new() else {
        return;
    };
    let dir = small.dir();
    fs::write(dir.join("big"), noise(2 << 20, 3)).unwrap();
    fs::write(dir.join("small"), "one\n").unwrap();
    let output = small
        .call_in("inner", &["snapshot", "--retain-content"])
        .ok();
    let snapshot = Snap::of(&output.json());
    fs::remove_file(dir.join("big")).unwrap();
    fs::write(dir.join("small"), "two\n").unwrap();
    fs::write(dir.join("filler"), noise(3 << 20, 4)).unwrap();
    let before = view::worktree(&dir);
    let message = small
        .call_in("inner", &["restore", snapshot.id()])
        .refused("NoSpace");
    view::same(&before, &view::worktree(&dir), "nothing was touched");
    // What is free by then is what the snapshot, the edit and the filler leave of it.
    let place = format!(
        "the file system at {}, which has ",
        small.ws.root().display()
    );
    let needed = (2 << 20) + "one\n".len();
    assert!(
        message.contains(&format!("has to write {needed} bytes to {place}")),
        "{message}"
    );
    assert!(!message.contains("state directory"), "{message}");
    assert_eq!(message.matches("nothing was touched").count(), 1);
    assert!(!message.contains(".stillframe-"), "{message}");
    fs::remove_file(dir.join("filler")).unwrap();
    small.call_in("inner", &["restore", snapshot.id()]).ok();
    assert_eq!(fs::read(dir.join("small")).unwrap(), b"one\n");
    assert_eq!(fs::read(dir.join("big")).unwrap().len(), 2 << 20);
}

// "has to write 0 bytes", and the name of a file that nobody had made
#[test]
fn a_full_workspace_is_told_in_words_of_the_workspace() {
    let Some(small) = SmallWorkspace::new() else {
        return;
    };
    let dir = small.dir();
    for name in ["one", "two"] {
        fs::write(dir.join(name), "").unwrap();
    }
    let script = "rm one two; cat /dev/zero > filler 2>/dev/null; exit 1";
    let run = [
        "run",
        "--rollback-on-failure",
        "--retain-content",
        "--",
        "sh",
        "-c",
        script,
    ];
    let call = small.ws.call(run);
    let output = small.mounts.inside(call, &small.ws.path("inner")).run();
    let lines = output.exits(1).stderr_text();
    let refused = lines.lines().find(|line| line.contains("refused"));
    let refused = refused.unwrap_or_else(|| panic!("{lines}"));
    assert_eq!(
        refused.matches("nothing was touched").count(),
        1,
        "{refused}"
    );
    let inner = small.ws.path("inner").display().to_string();
    for said in [
        "the restore needs room for new files on the file system at ",
        &format!("cannot write to {inner}: No space left on device"),
    ] {
        assert!(refused.contains(said), "{said}: {refused}");
    }
    assert!(!refused.contains(".stillframe-"), "{refused}");
    assert!(!refused.contains(" 0 bytes to"), "{refused}");
}

// The directory that it is made in stayed
#[test]
fn a_copy_that_a_full_disk_has_no_room_for_leaves_nothing() {
    let Some(mounts) = Mounts::new() else {
        return;
    };
    let ws = TestWorkspace::repository();
    ws.write("file", "text\n");
    let snapshot = ws.snapshot();
    let full = ws.base().join("full");
    fs::create_dir(&full).unwrap();
    mounts.tmpfs(&full, "1m");
    let inside = mounts.path(&full);
    for size in [1 << 20, 1 << 10, 1] {
        // Until not a byte more goes in.
        let _ = fs::write(inside.join(size.to_string()), noise(size, 5));
    }
    let before = view::worktree(&inside);
    let to = full.join("copy");
    let call = ws
        .call(["--json", "restore", snapshot.id(), "--to"])
        .args([&to]);
    let message = mounts.inside(call, ws.root()).run().refused("NoSpace");
    assert!(message.contains("nothing was touched"), "{message}");
    view::same(&before, &view::worktree(&inside), "nothing is left");
}

// No place outside of the workspace is on its file system
#[test]
fn a_workspace_that_is_a_mount_of_its_own_is_restored_or_refused_untouched() {
    let Some(small) = SmallWorkspace::new() else {
        return;
    };
    let root = small.mounts.path(small.ws.root());
    fs::write(root.join("file"), "one\n").unwrap();
    let output = small.call_in(".", &["snapshot", "--retain-content"]).ok();
    let snapshot = Snap::of(&output.json());
    fs::write(root.join("file"), "two\n").unwrap();
    let output = small.call_in(".", &["restore", snapshot.id()]);
    if output.code == 0 {
        assert_eq!(fs::read(root.join("file")).unwrap(), b"one\n");
    } else {
        output.refused("Unsupported");
        assert_eq!(fs::read(root.join("file")).unwrap(), b"two\n");
    }
    let names: Vec<_> = fs::read_dir(&root)
        .unwrap()
        .flatten()
        .map(|e| e.file_name())
        .collect();
    assert_eq!(names.len(), 2, "nothing is left in it: {names:?}");
}

// A capture of what cannot be written works
#[test]
fn a_read_only_workspace_is_captured() {
    let Some(mounts) = Mounts::new() else { return };
    let ws = TestWorkspace::repository();
    let root = ws.root().display().to_string();
    mounts.shell(&format!(
        "mount --bind '{root}' '{root}' && mount -o remount,bind,ro '{root}'"
    ));
    let call = ws.call(["--json", "snapshot"]);
    let output = mounts.inside(call, ws.root()).run().ok();
    let snapshot = Snap::of(&output.json());
    assert_eq!(snapshot.tree(), ws.git(["rev-parse", "HEAD^{tree}"]));
    ws.write("README", "edited\n");
    let call = ws.call(["--json", "restore", snapshot.id()]);
    let output = ws.untouched(|| mounts.inside(call, ws.root()).run());
    assert_eq!(output.code, 1, "{output}");
    assert_eq!(output.json()["error"]["touched"], false, "{output}");
}

// What is half done is finished though nobody makes room
#[test]
fn a_restore_that_was_killed_is_finished_on_a_full_disk_by_the_room_that_is_kept_for_it() {
    if !stillframe_tests::capability::can_inject() {
        return;
    }
    let mut endings = std::collections::BTreeSet::new();
    for nth in [3, 9, 15] {
        let Some(small) = SmallState::new("24m") else {
            return;
        };
        for i in 0..30 {
            small.ws.write(format!("f{i}"), "one\n");
        }
        let first = Snap::of(&small.call(&["snapshot"]).ok().json());
        let target = view::worktree(small.ws.root());
        for i in 0..30 {
            small.ws.write(format!("f{i}"), "two\n");
        }
        let edited = view::worktree(small.ws.root());
        let inject = format!("inject=renameat2:signal=KILL:when={nth}");
        let strace = ["-f", "-o", "/dev/null", "-e", "trace=renameat2", "-e"];
        let call = small.ws.call(["--json", "restore", first.id()]);
        let call = call.through("strace", strace.into_iter().chain([&*inject]));
        let killed = small.mounts.inside(call, small.ws.root()).run();
        assert_ne!(killed.code, 0, "{killed}");
        let half = view::worktree(small.ws.root());
        endings.insert(half != edited && half != target);

        let reserve = small.state().join("reserve");
        assert!(reserve.exists(), "there was room for it");
        small.fill();
        small.call(&["list"]).ok();
        let now = view::worktree(small.ws.root());
        if half == edited {
            assert!(now == edited || now == target, "killed at {nth}");
        } else {
            view::same(&target, &now, &format!("killed at {nth}: it is finished"));
        }
        fs::remove_file(small.state().join("fill")).unwrap();
        small.call(&["undo"]).ok();
        view::same(
            &edited,
            &view::worktree(small.ws.root()),
            "and can be undone",
        );
        assert!(reserve.exists(), "the room is kept again");
        small.call(&["verify"]).ok();
    }
    assert!(endings.contains(&true), "one was in the middle");
}
