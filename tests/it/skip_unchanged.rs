//! `snapshot --skip-unchanged`: none is taken where nothing differs from the newest.

use stillframe_tests::{Snap, TestWorkspace};

/// Takes one with these options; answers with its id, and whether it was there.
#[track_caller]
fn take(ws: &TestWorkspace, options: &[&str]) -> (String, bool) {
    let taken = ws.json([&["snapshot", "--skip-unchanged"], options].concat());
    let is_there = taken["unchanged"].as_bool();
    assert_ne!(is_there, Some(false), "it is left out");
    (Snap::of(&taken).id().to_owned(), is_there.is_some())
}

fn number(ws: &TestWorkspace) -> usize {
    ws.json(["list"]).as_array().expect("a list").len()
}

#[test]
fn of_what_has_not_changed_none_is_taken() {
    for (ws, options) in [
        (TestWorkspace::repository(), &[][..]),
        (TestWorkspace::plain(), &["--no-retain-content"]),
        (TestWorkspace::plain(), &["--retain-content"]),
    ] {
        ws.write("file", "one\n");
        ws.mkdir("empty");
        let (first, is_there) = take(&ws, options);
        assert!(!is_there, "there was none");
        let labelled = [options, &["--label", "another"]].concat();
        assert_eq!(take(&ws, &labelled), (first.clone(), true));
        assert_eq!(number(&ws), 1);
        let call = [&["snapshot", "--skip-unchanged"], options].concat();
        let said = ws.stillframe(call).ok();
        assert_eq!(said.stdout_text(), format!("{first}\n"));
        assert!(said.stderr_text().contains("nothing differs"), "{said}");
        assert_eq!(ws.published().max(1), 1);
        ws.json(["verify"]);
    }
}

#[test]
fn whatever_a_snapshot_records_is_a_change() {
    let ws = TestWorkspace::repository();
    ws.write(".gitignore", "*.o\n");
    ws.write("file", "one\n");
    let mut last = take(&ws, &[]).0;
    let mut is_new = |what: &str, options: &[&str]| {
        let (id, is_there) = take(&ws, options);
        assert!(!is_there && id != last, "{what}");
        assert_eq!(take(&ws, options), (id.clone(), true), "{what}: again");
        last = id;
    };
    ws.write("file", "two\n");
    is_new("content", &[]);
    ws.chmod("file", 0o600);
    is_new("permission bits", &[]);
    ws.mkdir("empty");
    is_new("an empty directory", &[]);
    is_new("a rule", &["--ignore-path", "nothing-of-this-name"]);
    is_new("no such rule", &[]);
    ws.mkfifo("fifo");
    is_new("what is left out", &[]);
    // The same files, and other bytes staged than there are.
    ws.write("file", "staged\n");
    ws.git(["add", "file"]);
    ws.write("file", "two\n");
    is_new("what is staged", &[]);
    ws.git(["commit", "-q", "-m", "second"]);
    is_new("HEAD", &[]);
    ws.git(["switch", "-q", "-c", "other"]);
    is_new("the branch", &[]);
    ws.write("large", vec![0; 2_000]);
    is_new("a limit", &["--max-untracked-file-bytes", "1000"]);
}

#[test]
fn what_no_snapshot_records_is_none() {
    let ws = TestWorkspace::repository();
    ws.write(".gitignore", "*.o\n");
    ws.write("a.o", "1");
    ws.write("file", "one\n");
    ws.commit("all");
    let (first, _) = take(&ws, &[]);
    ws.write("a.o", "larger than it was");
    // Written anew with the same content, and looked at by git, which notes other times.
    ws.remove("file");
    ws.write("file", "one\n");
    ws.git(["status"]);
    ws.git(["update-index", "--refresh"]);
    assert_eq!(take(&ws, &[]), (first.clone(), true));
    // A guard in between is passed over.
    ws.restore_id(&first);
    assert_eq!(number(&ws), 2);
    assert_eq!(take(&ws, &[]), (first, true));
}

#[test]
fn a_snapshot_without_content_does_not_stand_for_one_with() {
    let ws = TestWorkspace::plain();
    ws.write("file", "one\n");
    let (digests, _) = take(&ws, &["--no-retain-content"]);
    let (content, is_there) = take(&ws, &["--retain-content"]);
    assert!(!is_there && content != digests);
    ws.write("file", "two\n");
    ws.restore_id(&content);
    assert_eq!(ws.text("file"), "one\n");
}
