//! What was renamed, and how lines, bytes and modes are shown: as git shows them.

use std::collections::BTreeSet;

use stillframe_tests::{Snap, TestWorkspace, git, json};

/// What git says of two snapshots in their store.
fn git_diff(ws: &TestWorkspace, from: &Snap, to: &Snap, options: &[&str]) -> String {
    let store = ws.stores()[0].join("git");
    let args = [&["diff"], options, &[from.tree(), to.tree()]].concat();
    git::text(&ws.home(), &store, args)
}

fn shown(ws: &TestWorkspace, from: &Snap, to: &Snap, options: &[&str]) -> String {
    let args = [&["diff", from.id(), to.id()], options].concat();
    ws.stillframe(args).ok().stdout_text()
}

/// Numbers that are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) % bound
    }

    /// Text of few different lines, so that files have much in common.
    fn text(&mut self) -> Vec<u8> {
        let lines = self.below(30);
        let end: &[u8] = if self.below(8) == 0 { b"\r\n" } else { b"\n" };
        let mut text = Vec::new();
        if self.below(10) == 0 {
            text.push(0);
        }
        for _ in 0..lines {
            let line = format!("line {} of some text that is long enough", self.below(40));
            text.extend(line.into_bytes());
            text.extend(end);
        }
        if self.below(6) == 0 {
            text.pop();
        }
        text
    }

    fn path(&mut self) -> String {
        let directory = ["", "a/", "b/", "b/c/"][self.below(4) as usize];
        format!("{directory}n{}", self.below(9))
    }

    /// Changes some of it.
    fn edited(&mut self, text: &[u8]) -> Vec<u8> {
        let mut lines: Vec<Vec<u8>> = text
            .split_inclusive(|b| *b == b'\n')
            .map(<[u8]>::to_vec)
            .collect();
        for _ in 0..self.below(9) {
            let at = self.below(lines.len() as u64 + 1) as usize;
            match self.below(3) {
                0 if at < lines.len() => drop(lines.remove(at)),
                1 if at < lines.len() => {
                    lines[at] = format!("another {}\n", self.below(9)).into_bytes()
                }
                _ => lines.insert(at, format!("one more {}\n", self.below(9)).into_bytes()),
            }
        }
        lines.concat()
    }
}

/// Does anything to the files of a workspace.
fn change(ws: &TestWorkspace, files: &mut BTreeSet<String>, random: &mut Random) {
    for path in files.clone() {
        match random.below(8) {
            0 => {
                ws.remove(&path);
                files.remove(&path);
            }
            1..=4 => {
                let to = random.path();
                if files.contains(&to) {
                    continue;
                }
                let mut text = ws.read(&path);
                if random.below(3) > 0 {
                    text = random.edited(&text);
                }
                if text.contains(&0) {
                    // Of a binary that is the same elsewhere it is not looked at whether it is one.
                    text.extend(b"more\n");
                }
                ws.remove(&path);
                ws.write(&to, text);
                if random.below(6) == 0 {
                    ws.chmod(&to, 0o755);
                }
                files.remove(&path);
                files.insert(to);
            }
            _ => {}
        }
    }
    for _ in 0..random.below(10) {
        let path = random.path();
        if files.insert(path.clone()) {
            ws.write(&path, random.text());
        }
    }
}

#[test]
fn renames_lines_and_bytes_are_those_of_git() {
    let ws = TestWorkspace::repository();
    let mut random = Random(7);
    let mut files = BTreeSet::new();
    for directory in ["a", "b", "b/c"] {
        // It is never empty, which git does not tell.
        ws.write(format!("{directory}/stays"), directory);
    }
    for _ in 0..4 {
        change(&ws, &mut files, &mut random);
    }
    let mut from = ws.snapshot();
    let mut renamed = 0;
    for round in 0..8 {
        change(&ws, &mut files, &mut random);
        let to = ws.snapshot();
        let status = git_diff(&ws, &from, &to, &["-M", "--name-status"]);
        let own = shown(&ws, &from, &to, &["--name-status"]);
        assert_eq!(own.trim_end(), status, "in round {round}");
        renamed += status.lines().filter(|line| line.starts_with("R0")).count();

        let stat = git_diff(&ws, &from, &to, &["-M", "--stat"]);
        let stat: Vec<&str> = stat.lines().map(str::trim_start).collect();
        let own = shown(&ws, &from, &to, &["--stat"]);
        let own: Vec<&str> = own
            .lines()
            .filter(|l| !l.starts_with("mode change"))
            .collect();
        assert_eq!(own, stat, "in round {round}");
        from = to;
    }
    assert!(renamed > 10, "only {renamed} were renamed and edited");
}

#[test]
fn what_was_renamed_is_one_line_for_people_and_both_paths_for_scripts() {
    let ws = TestWorkspace::repository();
    let lines =
        |from: u32| -> String { (from..from + 20).map(|n| format!("line {n}\n")).collect() };
    ws.write("src/old.c", lines(0));
    ws.write("same", "the same\n");
    let from = ws.snapshot();
    ws.remove("src/old.c");
    ws.write("src/new.c", lines(2));
    ws.mkdir("d");
    ws.rename("same", "d/same");
    let to = ws.snapshot();
    assert_eq!(
        shown(&ws, &from, &to, &[]),
        "R same => d/same\nR src/{old.c => new.c} (89%)\n\
         2 files changed, 2 insertions(+), 2 deletions(-)\n"
    );
    let apart = "A\td/same\nD\tsame\nA\tsrc/new.c\nD\tsrc/old.c\n";
    assert_eq!(
        shown(&ws, &from, &to, &["--name-status", "--no-renames"]),
        apart
    );
    let names = "d/same\nsame\nsrc/new.c\nsrc/old.c\n";
    assert_eq!(shown(&ws, &from, &to, &["--name-only"]), names);
    let patch = shown(&ws, &from, &to, &["--patch"]);
    assert!(!patch.contains("rename from"), "{patch}");
    let diff = ws.diff(&from, &to);
    let exact = serde_json::json!([{"from": "same", "to": "d/same"}]);
    assert_eq!(diff["renamed"], exact, "nothing is read for a document");
    assert_eq!(json::names(&diff["added"]), ["d/same", "src/new.c"]);
    assert_eq!(diff["files_changed"], 4);
}

#[test]
fn modes_and_sizes_are_told_as_git_tells_them() {
    let ws = TestWorkspace::repository();
    ws.write("binary", b"\0abcdefghi");
    ws.write("run.sh", "x\n");
    ws.write("link", "README");
    ws.write("moved", "moved\n");
    let from = ws.snapshot();
    ws.write("binary", b"\0".repeat(20));
    ws.write("new", b"\0\x01");
    ws.chmod("run.sh", 0o755);
    ws.remove("link");
    ws.symlink("link", "README");
    ws.remove("moved");
    ws.write_executable("away", "moved\n");
    let to = ws.snapshot();
    let modes = "mode change 100644 => 100755 away\n\
                 mode change 100644 => 120000 link\n\
                 mode change 100644 => 100755 run.sh\n";
    let stat = shown(&ws, &from, &to, &["--stat"]);
    assert!(
        stat.contains("binary        | Bin 10 -> 20 bytes\n"),
        "{stat}"
    );
    assert!(
        stat.contains("new           | Bin 0 -> 2 bytes\n"),
        "{stat}"
    );
    assert!(stat.contains(modes), "{stat}");
    let summary = shown(&ws, &from, &to, &[]);
    assert!(summary.contains(modes), "{summary}");
    let diff = ws.diff(&from, &to);
    let file = |path: &str| {
        let files = diff["files"].as_array().unwrap();
        files
            .iter()
            .find(|file| file["path"] == path)
            .unwrap()
            .clone()
    };
    assert_eq!(
        [&file("binary")["old_bytes"], &file("binary")["new_bytes"]],
        [10, 20]
    );
    assert_eq!(file("new")["old_bytes"], serde_json::Value::Null);
    assert_eq!(file("new")["new_bytes"], 2);
    assert_eq!(
        json::keys(&file("run.sh")).len(),
        8,
        "of text they are not told"
    );
}

#[test]
fn the_hash_backend_finds_what_is_the_same_elsewhere() {
    let ws = TestWorkspace::plain();
    ws.write("a", "x\n");
    ws.write("edited", "one\ntwo\nthree\n");
    let from = ws.snapshot();
    ws.rename("a", "b");
    ws.remove("edited");
    ws.write("other", "one\ntwo\nfour\n");
    let to = ws.snapshot();
    assert_eq!(
        shown(&ws, &from, &to, &["--name-status"]),
        "R100\ta\tb\nD\tedited\nA\tother\n"
    );
    let renamed = serde_json::json!([{"from": "a", "to": "b"}]);
    assert_eq!(ws.diff(&from, &to)["renamed"], renamed);
}

#[test]
fn colours_are_where_they_were_asked_for_and_on_no_pipe_else() {
    let ws = TestWorkspace::repository();
    ws.write("gone", "x\n");
    let from = ws.snapshot();
    ws.remove("gone");
    ws.write("new", "y\n");
    let to = ws.snapshot();
    let plain = shown(&ws, &from, &to, &["--color", "never"]);
    assert_eq!(shown(&ws, &from, &to, &[]), plain);
    assert!(!plain.contains('\x1b'));
    let coloured = shown(&ws, &from, &to, &["--color", "always"]);
    assert!(
        coloured.contains("\x1b[31mD gone\x1b[m\n\x1b[32mA new\x1b[m\n"),
        "{coloured:?}"
    );
    let stat = shown(&ws, &from, &to, &["--stat", "--color=always"]);
    assert!(stat.contains("new  | 1 \x1b[32m+\x1b[m\n"), "{stat:?}");
    let patch = shown(&ws, &from, &to, &["--patch", "--color=always"]);
    assert!(
        patch.contains("\x1b[36m@@ -0,0 +1 @@\x1b[m\n\x1b[32m+y\x1b[m\n"),
        "{patch:?}"
    );
    let bare = shown(&ws, &from, &to, &["--patch"]);
    let stripped = ["\x1b[1m", "\x1b[31m", "\x1b[32m", "\x1b[36m", "\x1b[m"];
    let stripped = stripped
        .iter()
        .fold(patch, |text, code| text.replace(code, ""));
    assert_eq!(stripped, bare);
}
