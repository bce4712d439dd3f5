//! Which snapshots `list` has, and which files `show --files`.

use stillframe_tests::{Snap, TestWorkspace, json};

/// The ids that `list` has with these options.
#[track_caller]
fn listed(ws: &TestWorkspace, options: &[&str]) -> Vec<String> {
    let document = ws.json([&["list"], options].concat());
    let all = document.as_array().expect("a list");
    all.iter().map(|s| Snap::of(s).id().to_owned()).collect()
}

#[test]
fn a_list_is_of_a_label_of_a_time_and_of_a_length() {
    let ws = TestWorkspace::repository();
    let taken: Vec<Snap> = ["mine", "other", "mine", "Mine"]
        .map(|label| ws.snapshot_with(["--label", label]))
        .into();
    let id = |at: usize| taken[at].id().to_owned();
    assert_eq!(listed(&ws, &[]), [id(3), id(2), id(1), id(0)]);
    assert_eq!(listed(&ws, &["--label", "mine"]), [id(2), id(0)]);
    assert_eq!(listed(&ws, &["--label", "mine", "--limit", "1"]), [id(2)]);
    assert_eq!(listed(&ws, &["--limit", "2"]), [id(3), id(2)]);
    assert_eq!(listed(&ws, &["--limit", "0"]), [""; 0]);
    assert_eq!(listed(&ws, &["--since", "1h"]).len(), 4);
    assert_eq!(listed(&ws, &["--since", "0s"]), [""; 0]);
    let third = taken[2].json["captured_at"].as_str().unwrap();
    assert_eq!(listed(&ws, &["--since", third]), [id(3), id(2)]);
    assert_eq!(listed(&ws, &["--since", third, "--label", "mine"]), [id(2)]);

    let none = ws.stillframe(["list", "--label", "no such"]).ok();
    assert!(none.stdout.is_empty(), "{none}");
    assert_eq!(
        none.stderr_text(),
        "stillframe: there are no such snapshots\n"
    );
    for wrong in [
        &["list", "--since", "yesterday"][..],
        &["list", "--limit", "x"],
    ] {
        ws.stillframe(wrong).exits(2);
    }
}

// An age was not taken there
#[test]
fn runs_are_listed_by_an_age_too() {
    let ws = TestWorkspace::repository();
    ws.run::<&str>([], "true").ok();
    let runs = |options: &[&str]| {
        ws.json([&["runs"], options].concat())
            .as_array()
            .unwrap()
            .len()
    };
    assert_eq!(runs(&["--since", "1h"]), 1);
    assert_eq!(runs(&["--until", "1h"]), 0);
    assert_eq!(runs(&["--since", "2020-01-01T00:00:00Z"]), 1);
}

#[test]
fn the_files_of_a_snapshot_are_listed_with_mode_size_and_id() {
    let ws = TestWorkspace::repository();
    ws.write_executable("bin/run me ", "#!/bin/sh\n");
    ws.write(b"odd\xffname", "x");
    ws.write("private", "secret\n");
    ws.chmod("private", 0o600);
    ws.symlink("link", "README");
    ws.mkdir("empty/inner");
    ws.chmod("empty/inner", 0o700);
    ws.write(".gitignore", "*.o\n");
    ws.write("a.o", "ignored");
    let taken = ws.snapshot();
    ws.write("README", "changed since");

    let document = ws.untouched(|| ws.json(["show", taken.id(), "--files"]));
    let entries = document.as_array().unwrap();
    let paths: Vec<Vec<u8>> = entries
        .iter()
        .map(|e| json::path_bytes(&e["path"]))
        .collect();
    let expected: [&[u8]; 7] = [
        b".gitignore",
        b"README",
        b"bin/run me ",
        b"empty/inner",
        b"link",
        b"odd\xffname",
        b"private",
    ];
    assert_eq!(paths, expected);
    let text = |at: usize, key: &str| entries[at][key].as_str().unwrap().to_owned();
    let kinds = [
        "file",
        "file",
        "executable",
        "directory",
        "symlink",
        "file",
        "file",
    ];
    for (at, kind) in kinds.into_iter().enumerate() {
        assert_eq!(text(at, "kind"), kind, "{}", entries[at]);
    }
    assert_eq!(entries[6]["mode"], 0o600);
    assert_eq!(entries[3]["mode"], 0o700);
    assert_eq!(entries[4]["mode"], serde_json::Value::Null);
    assert_eq!(entries[1]["size"], 6);
    assert_eq!(entries[3]["size"], serde_json::Value::Null);
    // git is the oracle.
    let tree = ws
        .git_call(["--git-dir"])
        .args([ws.stores()[0].join("git")]);
    let tree = tree
        .args(["ls-tree", "-r", "-l", "-z", taken.tree()])
        .run()
        .ok()
        .stdout;
    let lines: Vec<String> = tree
        .split(|b| *b == 0)
        .filter(|line| !line.is_empty())
        .map(|line| String::from_utf8_lossy(line).into_owned())
        .collect();
    let files = entries.iter().filter(|e| e["kind"] != "directory");
    for (line, entry) in lines.iter().zip(files) {
        let words: Vec<&str> = line
            .split('\t')
            .next()
            .unwrap()
            .split_whitespace()
            .collect();
        assert_eq!(entry["content"], words[2], "{line}");
        assert_eq!(
            entry["size"].as_u64().unwrap().to_string(),
            words[3],
            "{line}"
        );
    }
    assert_eq!(lines.len(), 6);

    let shown = ws
        .stillframe(["show", taken.id(), "--files"])
        .ok()
        .stdout_text();
    let id = text(2, "content");
    assert!(
        shown.contains(&format!("0755  10  {id}  bin/run me \n")),
        "{shown}"
    );
    assert!(shown.contains("  empty/inner/\n"), "{shown}");
    assert!(shown.contains("odd\\xffname\n"), "{shown}");
}

#[test]
fn files_are_listed_without_content_and_from_anywhere() {
    let mut ws = TestWorkspace::plain();
    ws.write("a/b", "four");
    let taken = ws.snapshot_with(["--no-retain-content"]);
    // Moved as a whole: its snapshots go with it.
    std::fs::rename(ws.root(), ws.base().join("moved")).unwrap();
    ws.set_root("outside");
    let document = ws.json(["show", taken.id(), "--files"]);
    assert_eq!(document.as_array().unwrap().len(), 1);
    assert_eq!(document[0]["size"], 4);
    let digest = blake3::hash(b"four").to_hex();
    assert_eq!(document[0]["content"], digest.as_str());
    let refused = ws.try_json(["show", &*format!("snap_{:032}", 0), "--files"]);
    let refused = refused.exits(1).json();
    assert_eq!(refused["error"]["kind"], "NotFound");
    ws.stillframe(["show", taken.id(), "--files", "--follow"])
        .exits(2);
}
