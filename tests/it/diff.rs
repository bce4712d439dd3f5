//! What changed between two snapshots, and the patch that says it.

use stillframe_tests::{Snap, TestWorkspace, git, json, oracle};

const NOTHING: [&str; 0] = [];

fn names(diff: &serde_json::Value, key: &str) -> Vec<String> {
    json::names(&diff[key])
}

#[test]
fn a_document_of_a_diff_has_exactly_the_keys_of_the_design() {
    let ws = TestWorkspace::repository();
    let from = ws.snapshot();
    ws.write("new", "x\n");
    let to = ws.snapshot();
    let diff = ws.diff(&from, &to);
    assert_eq!(
        json::keys(&diff),
        [
            "added",
            "backend",
            "changed_paths",
            "deleted",
            "deletions",
            "files",
            "files_changed",
            "from_ref",
            "has_patch",
            "insertions",
            "modified",
            "patch",
            "patch_bytes",
            "patch_ref",
            "patch_truncated",
            "to_ref"
        ]
    );
    assert_eq!(diff["backend"], "git");
    assert_eq!(diff["from_ref"], from.reference());
    assert_eq!(diff["to_ref"], to.reference());
}

/// What git says of two snapshots in their store, with these options.
fn git_diff(ws: &TestWorkspace, from: &Snap, to: &Snap, options: &[&str]) -> String {
    let store = ws.stores()[0].join("git");
    let args = [&["diff"], options, &[from.tree(), to.tree()]].concat();
    git::text(&ws.home(), &store, args)
}

// Per file in JSON: whoever shows a review needs no patch to draw its list
#[test]
fn each_file_of_a_document_has_what_git_says_of_it() {
    let ws = TestWorkspace::repository();
    ws.write("text", "1\n2\n3\n");
    ws.write("gone", "x\ny\n");
    ws.write("binary", b"\0one");
    ws.write("mode", "x\n");
    ws.write("mode and text", "x\n");
    ws.write("becomes a link", "x\n");
    ws.symlink("link", "text");
    ws.write("moved", "the same\nat another path\n");
    let from = ws.snapshot();
    ws.write("text", "1\ntwo\n3\n4\n");
    ws.remove("gone");
    ws.write("binary", b"\0two\n");
    ws.chmod("mode", 0o755);
    ws.write_executable("mode and text", "y\n");
    ws.remove("becomes a link");
    ws.symlink("becomes a link", "x\n");
    ws.remove("link");
    ws.symlink("link", "mode");
    ws.mkdir("d");
    ws.rename("moved", "d/moved");
    ws.write_executable("new", "1\n2\n");
    let to = ws.snapshot();
    let diff = ws.diff(&from, &to);

    let raw = git_diff(&ws, &from, &to, &["--raw", "--no-renames"]);
    let numstat = git_diff(&ws, &from, &to, &["--numstat", "--no-renames"]);
    let mut expected = Vec::new();
    for (raw, numstat) in raw.lines().zip(numstat.lines()) {
        let (facts, path) = raw.split_once('\t').unwrap();
        let facts: Vec<&str> = facts.trim_start_matches(':').split(' ').collect();
        let counts: Vec<&str> = numstat.split('\t').collect();
        assert_eq!(counts[2], path);
        let mode = |mode: &str| (mode != "000000").then(|| mode.to_owned());
        let mut file = serde_json::json!({
            "path": path,
            "status": match facts[4] {
                "A" => "added",
                "D" => "deleted",
                _ => "modified",
            },
            "insertions": counts[0].parse().unwrap_or(0),
            "deletions": counts[1].parse().unwrap_or(0),
            "binary": counts[0] == "-",
            "old_mode": mode(facts[0]),
            "new_mode": mode(facts[1]),
            "from": (path == "d/moved").then_some("moved"),
        });
        if path == "binary" {
            // Of a binary its sizes are told in the place of lines.
            (file["old_bytes"], file["new_bytes"]) = (4.into(), 5.into());
        }
        expected.push(file);
    }
    assert_eq!(expected.len(), 10);
    assert_eq!(diff["files"], serde_json::Value::Array(expected));
    let renamed = serde_json::json!([{"from": "moved", "to": "d/moved"}]);
    assert_eq!(diff["renamed"], renamed);
    let sum = |key: &str| -> u64 {
        let files = diff["files"].as_array().unwrap().iter();
        files.map(|file| file[key].as_u64().unwrap()).sum()
    };
    assert_eq!(diff["insertions"], sum("insertions"));
    assert_eq!(diff["deletions"], sum("deletions"));
}

#[test]
fn a_run_and_the_hash_backend_say_what_they_know_of_each_file() {
    for ws in [TestWorkspace::repository(), TestWorkspace::plain()] {
        ws.write("gone", "x\n");
        let run = ws
            .run::<&str>([], "echo y > new; mv gone here; chmod +x new")
            .ok()
            .json();
        let file = |path: &str, status: &str| {
            let diff = &run["workspace"]["diff"];
            let files = diff["files"].as_array().unwrap();
            let file = files.iter().find(|file| file["path"] == path);
            let file = file.unwrap_or_else(|| panic!("{path} is not in {diff}"));
            assert_eq!(file["status"], status, "{file}");
            file.clone()
        };
        assert_eq!(file("new", "added")["new_mode"], "100755");
        assert_eq!(file("gone", "deleted")["old_mode"], "100644");
        assert_eq!(file("here", "added")["from"], "gone");
        let backend = &run["workspace"]["backend"];
        let lines = if backend == "git" { 1 } else { 0 };
        assert_eq!(file("new", "added")["insertions"], lines, "{backend}");
        assert_eq!(file("gone", "deleted")["deletions"], lines, "{backend}");
    }
}

#[test]
fn a_file_that_one_side_left_out_has_the_mode_of_the_other_alone() {
    let ws = TestWorkspace::repository();
    ws.write("grows", "x\n");
    let from = ws.snapshot();
    ws.sparse_file("grows", 200_000_000);
    ws.sparse_file("new", 200_000_000);
    let to = ws.snapshot();
    let diff = ws.diff(&from, &to);
    let file = |path: &str, status: &str, old: Option<&str>| {
        serde_json::json!({
            "path": path, "status": status, "insertions": 0, "deletions": 0, "binary": false,
            "old_mode": old, "new_mode": null, "from": null,
        })
    };
    let expected = [
        file("grows", "modified", Some("100644")),
        file("new", "added", None),
    ];
    assert_eq!(diff["files"], serde_json::Value::Array(expected.to_vec()));
}

// A diff without `--patch` makes no patch
#[test]
fn a_plain_diff_has_no_patch() {
    let ws = TestWorkspace::repository();
    let from = ws.snapshot();
    ws.write("README", "edited\n");
    let diff = ws.json(["diff", from.id()]);
    assert_eq!(diff["files_changed"], 1);
    assert_eq!(diff["has_patch"], false);
    for key in ["patch", "patch_ref", "patch_bytes"] {
        assert!(diff[key].is_null(), "{key} of {diff}");
    }
    assert_eq!(diff["patch_truncated"], false);
}

#[test]
fn status_and_counts_are_those_of_git() {
    let ws = TestWorkspace::repository();
    for i in 0..30 {
        ws.write(
            format!("lines/{i:02}"),
            format!("one\ntwo\nthree {i}\nfour\nfive\n"),
        );
    }
    ws.write("whitespace", "a b\n\tc\n");
    ws.write("deleted", "x\ny\n");
    ws.write("no-newline", "last");
    ws.write("binary", b"\0\x01\x02");
    ws.write("repeated", "a\nb\na\nb\na\nb\n");
    ws.commit("base");
    let from = ws.snapshot();
    ws.write("lines/03", "one\nTWO\nthree 3\nfour\nfive\nsix\n");
    ws.write("lines/04", "five\nfour\nthree 4\ntwo\none\n");
    ws.write("lines/05", "");
    ws.write("whitespace", "a  b\n    c\n");
    ws.remove("deleted");
    ws.write("no-newline", "last\n");
    ws.write("binary", b"\0\x01\x03\n\n");
    ws.write("repeated", "b\na\nb\na\nb\na\nc\n");
    ws.write("added", "1\n2\n3\n");
    ws.chmod("README", 0o755);
    let to = ws.snapshot();
    let diff = ws.diff(&from, &to);

    ws.git(["add", "-A"]);
    let status = ws.git(["diff", "--cached", "--no-renames", "--name-status"]);
    let of = |letter: &str| -> Vec<&str> {
        let lines = status.lines().filter_map(|l| l.split_once('\t'));
        lines
            .filter(|(l, _)| *l == letter)
            .map(|(_, path)| path)
            .collect()
    };
    assert_eq!(names(&diff, "added"), of("A"));
    assert_eq!(names(&diff, "modified"), of("M"));
    assert_eq!(names(&diff, "deleted"), of("D"));
    let mut insertions = 0;
    let mut deletions = 0;
    for line in ws
        .git(["diff", "--cached", "--no-renames", "--numstat"])
        .lines()
    {
        let mut words = line.split('\t');
        // A binary file has a dash.
        insertions += words.next().unwrap().parse::<u64>().unwrap_or(0);
        deletions += words.next().unwrap().parse::<u64>().unwrap_or(0);
    }
    assert_eq!(diff["insertions"], insertions);
    assert_eq!(diff["deletions"], deletions);
    assert_eq!(diff["files_changed"], status.lines().count());
}

#[test]
fn no_change_is_zero_files() {
    let ws = TestWorkspace::repository();
    let from = ws.snapshot();
    let to = ws.snapshot();
    let diff = ws.json(["diff", from.id(), to.id(), "--patch"]);
    assert_eq!(diff["files_changed"], 0);
    assert_eq!(names(&diff, "changed_paths"), NOTHING);
    assert_eq!(diff["has_patch"], false, "the empty text is no patch");
    assert!(diff["patch"].is_null());
    assert_eq!(diff["patch_bytes"], 0);
}

#[test]
fn any_two_snapshots_are_compared_in_either_order() {
    let ws = TestWorkspace::repository();
    let first = ws.snapshot();
    ws.write("a", "1\n");
    let second = ws.snapshot();
    ws.write("b", "1\n");
    ws.remove("a");
    let third = ws.snapshot();
    let there = ws.diff(&first, &second);
    let back = ws.diff(&second, &first);
    assert_eq!(names(&there, "added"), ["a"]);
    assert_eq!(names(&back, "deleted"), ["a"]);
    assert_eq!(there["insertions"], back["deletions"]);
    let skipping = ws.diff(&first, &third);
    assert_eq!(names(&skipping, "changed_paths"), ["b"]);
    ws.write("c", "1\n");
    assert_eq!(
        names(&ws.json(["diff", first.id(), "now"]), "added"),
        ["b", "c"]
    );
    assert_eq!(
        names(&ws.json(["diff", first.id()]), "added"),
        ["b", "c"],
        "now is the default"
    );
    assert_eq!(
        names(&ws.json(["diff", "now", first.id()]), "deleted"),
        ["b", "c"]
    );
}

// `now` is not published
#[test]
fn comparing_with_now_takes_no_snapshot_that_is_listed() {
    let ws = TestWorkspace::repository();
    let from = ws.snapshot();
    ws.untouched(|| ws.json(["diff", from.id(), "now"]));
    assert_eq!(ws.json(["list"]).as_array().unwrap().len(), 1);
}

#[test]
fn a_change_of_white_space_is_a_change() {
    let ws = TestWorkspace::repository();
    ws.write("code", "if x:\n    y\n");
    let from = ws.snapshot();
    let before = ws.copy();
    ws.write("code", "if x:\n\ty\n");
    let to = ws.snapshot();
    let diff = ws.json(["diff", from.id(), to.id(), "--patch"]);
    assert_eq!(names(&diff, "modified"), ["code"]);
    oracle::applies(&json::patch_bytes(&diff["patch"]), before.path(), ws.root());
}

#[test]
fn what_cannot_be_compared_is_an_error_and_never_an_empty_diff() {
    let ws = TestWorkspace::repository();
    let from = ws.snapshot();
    for id in ["snap_00000000000000000000000000000000", "HEAD", "ffff"] {
        ws.try_json(["diff", from.id(), id]).refused("NotFound");
        ws.try_json(["diff", id, from.id()]).refused("NotFound");
    }
    ws.write("new", "x\n");
    let second = ws.snapshot();
    ws.stillframe(["gc", "--keep", "1"]).ok();
    ws.try_json(["diff", from.id(), second.id()])
        .refused("NotFound");
}

#[test]
fn snapshots_of_two_backends_cannot_be_compared() {
    let ws = TestWorkspace::repository();
    let git = ws.snapshot();
    let hash = ws.snapshot_with(["--strategy", "hash"]);
    let message = ws
        .try_json(["diff", git.id(), hash.id()])
        .refused("InvalidOptions");
    assert!(
        message.contains("workspace snapshots must use the same backend"),
        "{message}"
    );
}

// What a patch is for: `git apply` turns before into after
#[test]
fn git_apply_turns_before_into_after() {
    let ws = TestWorkspace::repository();
    let bytes: Vec<u8> = (0..5000_u32).map(|i| (i * 7 % 251) as u8).collect();
    ws.write("text", "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12\n");
    ws.write("no-newline", "a\nb");
    ws.write("gets-newline", "a\nb");
    ws.write("binary", &bytes);
    ws.write("binary-gone", &bytes);
    ws.write("deleted", "x\n");
    ws.write("empty-deleted", "");
    ws.write("mode", "x\n");
    ws.write_executable("mode-back", "x\n");
    ws.write("mode-and-text", "x\n");
    ws.symlink("link", "text");
    ws.symlink("link-gone", "text");
    ws.symlink("link-to-file", "text");
    ws.write("file-to-link", "x\n");
    ws.write("file-to-dir", "x\n");
    ws.write("dir-to-file/a", "x\n");
    ws.write("renamed", "the same\nthroughout\n");
    ws.write("crlf", "a\r\nb\r\n");
    ws.write(b"odd\xff\tname\n\"", "x\n");
    ws.write("space at end ", "x\n");
    let from = ws.snapshot();
    let before = ws.copy();

    ws.write("text", "0\n1\n2\n3\nfour\n5\n6\n7\n8\n9\n10\neleven\n12");
    ws.write("no-newline", "a\nc");
    ws.write("gets-newline", "a\nb\n");
    ws.write("binary", &bytes[100..]);
    ws.remove("binary-gone");
    ws.write("binary-new", &bytes[..777]);
    ws.remove("deleted");
    ws.remove("empty-deleted");
    ws.write("empty-new", "");
    ws.write_executable("empty-tool", "");
    ws.chmod("mode", 0o755);
    ws.chmod("mode-back", 0o644);
    ws.write_executable("mode-and-text", "y\n");
    ws.remove("link");
    ws.symlink("link", b"else\xffwhere");
    ws.remove("link-gone");
    ws.remove("link-to-file");
    ws.write("link-to-file", "text");
    ws.remove("file-to-link");
    ws.symlink("file-to-link", "x\n");
    ws.remove("file-to-dir");
    ws.write("file-to-dir/inside", "x\n");
    ws.remove("dir-to-file");
    ws.write("dir-to-file", "x\n");
    ws.rename("renamed", "new-name");
    ws.write("crlf", "a\r\nc\r\n");
    ws.write(b"odd\xff\tname\n\"", "y\n");
    ws.write("space at end ", "y\n");
    ws.write("added/deep/file", "x\n");
    let to = ws.snapshot();

    let diff = ws.json(["diff", from.id(), to.id(), "--patch"]);
    assert_eq!(diff["has_patch"], true);
    let patch = json::patch_bytes(&diff["patch"]);
    assert_eq!(diff["patch_bytes"], patch.len(), "the real size");
    oracle::applies(&patch, before.path(), ws.root());

    let back = ws.json(["diff", to.id(), from.id(), "--patch"]);
    oracle::applies(&json::patch_bytes(&back["patch"]), ws.root(), before.path());

    let text = ws.stillframe(["diff", from.id(), to.id(), "--patch"]).ok();
    oracle::applies(&text.stdout, before.path(), ws.root());
}

#[test]
fn every_step_of_a_history_applies() {
    let ws = TestWorkspace::repository();
    let mut from = ws.snapshot();
    for step in 0_u32..8 {
        let before = ws.copy();
        for file in 0..6_u32 {
            let lines = (0..40_u32)
                .filter(|line| (line * 7 + file * 3 + step * 5) % 11 != 0)
                .map(|line| format!("line {}\n", (line * (step % 3 + 1)) % 13));
            ws.write(format!("f{file}"), lines.collect::<String>());
        }
        let to = ws.snapshot();
        let diff = ws.json(["diff", from.id(), to.id(), "--patch"]);
        oracle::applies(&json::patch_bytes(&diff["patch"]), before.path(), ws.root());
        from = to;
    }
}

#[test]
fn a_rename_is_a_deletion_and_an_addition() {
    let ws = TestWorkspace::repository();
    let from = ws.snapshot();
    ws.rename("README", "RENAMED");
    let to = ws.snapshot();
    let diff = ws.diff(&from, &to);
    assert_eq!(names(&diff, "deleted"), ["README"]);
    assert_eq!(names(&diff, "added"), ["RENAMED"]);
    assert_eq!(names(&diff, "changed_paths"), ["README", "RENAMED"]);
    assert_eq!(diff["files_changed"], 2);
}

#[test]
fn kinds_and_links_are_modifications_and_directories_are_not_entries() {
    let ws = TestWorkspace::repository();
    ws.write("becomes-link", "x\n");
    ws.symlink("retargeted", "a");
    ws.write("becomes-dir", "x\n");
    let from = ws.snapshot();
    ws.remove("becomes-link");
    ws.symlink("becomes-link", "x");
    ws.remove("retargeted");
    ws.symlink("retargeted", "b");
    ws.remove("becomes-dir");
    ws.write("becomes-dir/one", "x\n");
    ws.write("becomes-dir/two", "x\n");
    let to = ws.snapshot();
    let diff = ws.diff(&from, &to);
    assert_eq!(names(&diff, "modified"), ["becomes-link", "retargeted"]);
    assert_eq!(names(&diff, "deleted"), ["becomes-dir"]);
    assert_eq!(
        names(&diff, "added"),
        ["becomes-dir/one", "becomes-dir/two"]
    );
}

#[test]
fn changed_paths_are_sorted_by_bytes_and_divided_without_overlap() {
    let ws = TestWorkspace::repository();
    for name in ["a-b", "a/x", "a.b", "B", "é", "z"] {
        ws.write(name, "1\n");
    }
    let from = ws.snapshot();
    for name in ["a-b", "a/x", "B"] {
        ws.write(name, "2\n");
    }
    ws.remove("é");
    ws.write("a0", "new\n");
    ws.write(b"\xff", "new\n");
    let to = ws.snapshot();
    let diff = ws.diff(&from, &to);
    let of = |key: &str| -> Vec<Vec<u8>> {
        let list = diff[key].as_array().unwrap();
        list.iter().map(json::path_bytes).collect()
    };
    let changed = of("changed_paths");
    assert!(changed.is_sorted(), "{diff}");
    let mut parts = [of("added"), of("modified"), of("deleted")].concat();
    parts.sort();
    assert_eq!(parts, changed, "they divide it");
    assert_eq!(diff["files_changed"], changed.len());
}

#[test]
fn configuration_has_no_influence_on_a_patch() {
    let plain = patch_with(&[]);
    for config in [
        &["color.ui", "always"][..],
        &["diff.noprefix", "true"],
        &["diff.mnemonicPrefix", "true"],
        &["diff.renames", "copies"],
        &["diff.context", "0"],
        &["diff.external", "/bin/false"],
        &["diff.algorithm", "patience"],
        &["core.quotePath", "false"],
        &["core.abbrev", "6"],
        &["diff.wordRegex", "."],
        &["core.whitespace", "cr-at-eol"],
    ] {
        assert_eq!(patch_with(config), plain, "{config:?}");
    }
}

fn patch_with(config: &[&str]) -> String {
    let ws = TestWorkspace::repository();
    if let [key, value] = config {
        ws.git(["config", key, value]);
    }
    ws.write("é", "1\n2\n3\n4\n5\n6\n7\n8\n9\n");
    let from = ws.snapshot();
    ws.write("é", "1\n2\n3\n4\nfive\n6\n7\n8\n9\n");
    ws.rename("README", "MOVED");
    let to = ws.snapshot();
    let diff = ws.json(["diff", from.id(), to.id(), "--patch"]);
    diff["patch"].as_str().unwrap().to_owned()
}

#[test]
fn a_patch_that_is_no_text_is_base64_in_json() {
    let ws = TestWorkspace::repository();
    ws.write("latin1", b"caf\xe9\n");
    let from = ws.snapshot();
    let before = ws.copy();
    ws.write("latin1", b"caf\xe8\n");
    let to = ws.snapshot();
    let diff = ws.json(["diff", from.id(), to.id(), "--patch"]);
    assert!(diff["patch"]["base64"].is_string(), "{diff}");
    oracle::applies(&json::patch_bytes(&diff["patch"]), before.path(), ws.root());
}

#[test]
fn nothing_is_ever_cut_short() {
    let ws = TestWorkspace::repository();
    let lines = |salt: u32| -> String { (0..5000).map(|i| format!("{i} {salt}\n")).collect() };
    ws.write("long", lines(0));
    let from = ws.snapshot();
    let before = ws.copy();
    ws.write("long", lines(1));
    let to = ws.snapshot();
    let patch = ws.stillframe(["diff", from.id(), to.id(), "--patch"]).ok();
    oracle::applies(&patch.stdout, before.path(), ws.root());
    let diff = ws.diff(&from, &to);
    assert_eq!(diff["insertions"], 5000);
    assert_eq!(diff["deletions"], 5000);
}

#[test]
fn the_forms_for_people_name_every_path() {
    let ws = TestWorkspace::repository();
    ws.write("deleted", "x\n");
    ws.write("modified", "x\n");
    let from = ws.snapshot();
    ws.remove("deleted");
    ws.write("modified", "y\n");
    ws.write("added", "z\n");
    let to = ws.snapshot();
    let run = |form: &str| {
        ws.stillframe(["diff", from.id(), to.id(), form])
            .ok()
            .stdout_text()
    };
    let lines = |text: &str| -> Vec<String> { text.lines().map(str::to_owned).collect() };
    assert_eq!(lines(&run("--name-only")), ["added", "deleted", "modified"]);
    assert_eq!(
        lines(&run("--name-status")),
        ["A\tadded", "D\tdeleted", "M\tmodified"]
    );
    let stat = run("--stat");
    for name in ["added", "deleted", "modified"] {
        assert!(stat.contains(name), "{stat}");
    }
}

// Evidence
#[test]
fn a_file_that_becomes_too_large_is_no_deletion() {
    let ws = TestWorkspace::repository();
    ws.write("grows", "x\n");
    let from = ws.snapshot();
    ws.sparse_file("grows", 200_000_000);
    let to = ws.snapshot();
    assert_eq!(to.omitted("grows").as_deref(), Some("too_large"));
    let diff = ws.diff(&from, &to);
    assert_eq!(names(&diff, "deleted"), NOTHING, "{diff}");
}

#[test]
fn a_run_reports_the_same_diff_as_its_snapshots() {
    let ws = TestWorkspace::repository();
    ws.write("gone", "x\n");
    let before = ws.copy();
    let run = ws
        .run::<&str>([], "echo x > README; rm gone; echo y > new")
        .ok()
        .json();
    let workspace = &run["workspace"];
    let from = Snap::of(&workspace["before_snapshot"]);
    let to = Snap::of(&workspace["after_snapshot"]);
    let again = ws.json(["diff", from.id(), to.id(), "--patch"]);
    assert_eq!(workspace["diff"], again);
    oracle::applies(
        &json::patch_bytes(&again["patch"]),
        before.path(),
        ws.root(),
    );
}

// Exactly what a run changed. Counts and lists stay git's, so a script sees what git says
#[test]
fn permissions_and_empty_directories_are_told_and_gits_own_forms_stay_gits() {
    for ws in [TestWorkspace::repository(), TestWorkspace::plain()] {
        ws.write("key", "x\n");
        ws.write("other", "x\n");
        ws.write("third", "x\n");
        for path in ["key", "other", "third"] {
            ws.chmod(path, 0o644);
        }
        ws.mkdir("old");
        let from = ws.snapshot();
        ws.chmod("key", 0o600);
        ws.remove("old");
        ws.mkdir("new");
        let to = ws.snapshot();
        let counted = "no file changed, permissions of 1 path changed, \
                       1 empty directory made, 1 empty directory removed\n";
        let listed = format!("chmod key (0644 to 0600)\nmkdir new/\nrmdir old/\n{counted}");
        let text = |args: &[&str]| {
            let output = ws.stillframe([&["diff", from.id(), to.id()][..], args].concat());
            let output = output.ok();
            (output.stdout_text(), output.stderr_text())
        };
        assert_eq!(text(&[]), (listed.clone(), String::new()));
        assert_eq!(text(&["--stat"]), (listed, String::new()));
        for view in ["--name-only", "--name-status", "--patch"] {
            let (stdout, stderr) = text(&[view]);
            assert_eq!(
                stdout, "",
                "{view} has git's form, and git records none of these"
            );
            assert!(
                stderr.contains("permissions of 1 path changed"),
                "{view}: {stderr}"
            );
            assert_eq!(stderr.lines().count(), 1, "{view}: {stderr}");
        }
        let diff = ws.diff(&from, &to);
        assert_eq!(diff["files_changed"], 0);
        let bits = serde_json::json!([{"path": "key", "from": 0o644, "to": 0o600}]);
        assert_eq!(diff["permissions_changed"], bits);
        assert_eq!(names(&diff, "directories_added"), ["new"]);
        assert_eq!(names(&diff, "directories_deleted"), ["old"]);
        assert_eq!(diff["modified"], serde_json::json!([]));
    }
}

// "An error is never an empty diff": a script must not take it for a patch of nothing
#[test]
fn a_patch_that_no_backend_can_make_is_an_error_and_says_why() {
    let ws = TestWorkspace::plain();
    ws.write("a", "x\n");
    for option in [None, Some("--retain-content")] {
        let from = ws.snapshot_with(option);
        let output = ws.stillframe(["diff", from.id(), "--patch"]).ok();
        assert!(output.stdout.is_empty(), "the patch of no change: {output}");
        ws.write("a", format!("changed {option:?}\n"));
        let output = ws.stillframe(["diff", from.id(), "--patch"]).exits(1);
        assert!(output.stdout.is_empty(), "{output}");
        let text = output.stderr_text();
        assert!(text.contains("hash backend"), "{text}");
        assert!(text.contains("--name-status"), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
        let diff = ws.json(["diff", from.id(), "--patch"]);
        assert!(diff["patch"].is_null(), "the document says so: {diff}");
        assert_eq!(diff["has_patch"], false);
    }
}

#[test]
fn now_is_looked_at_by_the_rules_of_a_snapshot_of_another_workspace() {
    let mut ws = TestWorkspace::plain();
    ws.write("notes", "one\n");
    let snapshot = ws.snapshot_with(["--ignore-path", "logs"]);
    std::fs::create_dir(ws.base().join("beside")).unwrap();
    ws.set_root("beside");
    ws.write("notes", "two\n");
    ws.write("logs/today", "a log\n");
    let diff = ws.json(["diff", snapshot.id(), "now"]);
    assert_eq!(json::names(&diff["changed_paths"]), ["notes"], "{diff}");
    // Nothing else of that one is known here.
    let refused = ws.try_json(["why", "notes", "--snapshot", snapshot.id()]);
    assert_ne!(refused.code, 0, "{refused}");
}

// `diff SNAP` went by its own defaults: what the snapshot had left out came up as new
#[test]
fn now_is_looked_at_by_the_rules_that_are_stored_with_the_snapshot() {
    for strategy in ["git", "hash"] {
        let ws = TestWorkspace::repository();
        let options = [
            "--strategy",
            strategy,
            "--retain-content",
            "--ignore-path",
            "logs",
            "--ignore-glob",
            "*.tmp",
            "--max-untracked-file-bytes",
            "30",
        ];
        ws.write("notes", "one\n");
        let snapshot = ws.snapshot_with(options);
        ws.write("logs/today", "a log\n");
        ws.write("a.tmp", "rubbish\n");
        ws.write("big", "x".repeat(31));
        ws.write("small", "x".repeat(30));
        // What was found, and of that what was not read.
        let found = |document: &serde_json::Value, list: &str| {
            let unread = document["approximated"].as_array().into_iter().flatten();
            let unread = unread.filter(|entry| entry["left_out"] == true);
            let unread: Vec<String> = unread.map(|e| e["path"].as_str().unwrap().into()).collect();
            (json::names(&document[list]), unread)
        };
        let pair = |all: &[&str], unread: &[&str]| {
            let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect();
            (owned(all), owned(unread))
        };
        let diff = ws.json(["diff", snapshot.id()]);
        let by_its_rules = pair(&["big", "small"], &["big"]);
        assert_eq!(found(&diff, "changed_paths"), by_its_rules, "{strategy}");
        let backwards = ws.json(["diff", "now", snapshot.id()]);
        assert_eq!(found(&backwards, "deleted"), by_its_rules, "{strategy}");

        // A limit replaces the one of the snapshot, rules add to its rules.
        let diff = ws.json(["diff", snapshot.id(), "--max-untracked-file-bytes", "0"]);
        let without_a_limit = pair(&["big", "small"], &[]);
        assert_eq!(found(&diff, "added"), without_a_limit, "{strategy}");
        ws.write("notes", "two\n");
        ws.write("cache/x", "cached\n");
        for args in [["--ignore-path", "cache"], ["--ignore-glob", "cache"]] {
            let args = [&["diff", snapshot.id()][..], &args].concat();
            let all = pair(&["big", "notes", "small"], &["big"]);
            let diff = ws.json(&args);
            assert_eq!(found(&diff, "changed_paths"), all, "{strategy} {args:?}");
        }
        // What was captured is no longer looked at either, if that is what is asked for.
        let diff = ws.json(["diff", snapshot.id(), "--ignore-glob", "{notes,cache,big}"]);
        let left = pair(&["small"], &[]);
        assert_eq!(found(&diff, "changed_paths"), left, "{strategy}");
        let plan = ws.json(["restore", snapshot.id(), "--plan"]);
        for left_out in ["logs", "a.tmp"] {
            assert!(
                !plan["removals"].to_string().contains(left_out),
                "a restore goes by them too: {plan}"
            );
        }
    }
}

#[test]
fn what_to_leave_out_can_be_said_of_now_alone() {
    let ws = TestWorkspace::repository();
    let (first, second) = (ws.snapshot(), ws.snapshot());
    for option in [
        ["--ignore-path", "a"],
        ["--ignore-glob", "a"],
        ["--max-untracked-file-bytes", "5"],
    ] {
        let args = [&["diff", first.id(), second.id()][..], &option].concat();
        ws.try_json(&args).refused("InvalidOptions");
        ws.try_json([&["diff", first.id()][..], &option].concat())
            .ok();
    }
    let defect = ws.try_json(["diff", first.id(), "--ignore-glob", "/absolute"]);
    defect.refused("InvalidOptions");
}

// `diff A B PATH…`: what is not among the paths is in no list, no sum and no patch
#[test]
fn a_diff_of_some_paths_has_these_and_nothing_else() {
    for ws in [TestWorkspace::repository(), TestWorkspace::plain()] {
        ws.write("src/a", "1\n");
        ws.write("src/deep/b", "1\n");
        ws.write("srcs", "1\n");
        ws.write("other/*", "1\n");
        ws.write("other/x", "1\n");
        let from = ws.snapshot();
        ws.write("src/a", "2\n");
        ws.remove("src/deep/b");
        ws.write("src/moved", "1\n");
        ws.write("srcs", "2\n");
        ws.write("other/*", "2\n");
        ws.chmod("other/x", 0o600);
        ws.mkdir("src/empty");
        ws.mkdir("empty");
        let to = ws.snapshot();
        let diff = |paths: &[&str]| ws.json([&["diff", from.id(), to.id()][..], paths].concat());
        let below = diff(&["src"]);
        let changed = ["src/a", "src/deep/b", "src/moved"];
        assert_eq!(names(&below, "changed_paths"), changed);
        assert_eq!(names(&below, "deleted"), ["src/deep/b"]);
        assert_eq!(below["files_changed"], 3);
        assert_eq!(below["files"].as_array().unwrap().len(), 3);
        let lines = if below["backend"] == "git" { 2 } else { 0 };
        assert_eq!(below["insertions"], lines);
        assert_eq!(names(&below, "directories_added"), ["src/empty"]);
        assert!(below["permissions_changed"].is_null(), "{below}");
        assert_eq!(below["renamed"][0]["to"], "src/moved");

        let two = diff(&["src/a", "--", "other/*"]);
        assert_eq!(
            names(&two, "changed_paths"),
            ["other/*", "src/a"],
            "literal"
        );
        let since = ws.json(["diff", from.id(), "--", "other"]);
        assert_eq!(names(&since, "changed_paths"), ["other/*"]);
        assert_eq!(since["permissions_changed"].as_array().unwrap().len(), 1);
        assert_eq!(names(&diff(&["."]), "changed_paths").len(), 5);

        let missing = ["diff", from.id(), to.id(), "src/a", "src/typo"];
        let message = ws.try_json(missing).refused("NotFound");
        assert!(message.contains("src/typo"), "{message}");
        let output = ws.stillframe(["diff", from.id(), "srcs"]).exits(1);
        assert!(output.stderr_text().contains("after \"--\""), "{output}");
        let gone = diff(&["src/deep"]);
        assert_eq!(names(&gone, "deleted"), ["src/deep/b"], "one side has it");
    }
}

#[test]
fn a_patch_of_some_paths_applies_and_leaves_the_others() {
    let ws = TestWorkspace::repository();
    ws.write("src/a", "1\n");
    ws.write("b", "1\n");
    let from = ws.snapshot();
    let before = ws.copy();
    ws.write("src/a", "2\n");
    let wanted = ws.copy();
    ws.write("b", "2\n");
    let patch = ws
        .stillframe(["diff", from.id(), "now", "src", "--patch"])
        .ok();
    oracle::applies(&patch.stdout, before.path(), wanted.path());
    // From a directory below the workspace a path means what it means there.
    let below = ws
        .call(["--json", "diff", from.id(), "--", "a"])
        .cwd(ws.path("src"));
    let diff = below.run().ok().json();
    assert_eq!(names(&diff, "changed_paths"), ["src/a"]);
}
