//! `export RUN|SESSION --to DIR`: records as JSON lines, artifacts beside them.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::{Value, json};
use stillframe_tests::TestWorkspace;
use stillframe_tests::schema::Schemas;

/// A workspace whose session `ticket` has two runs; the second has an artifact. Answers with their
/// ids.
fn two_runs() -> (TestWorkspace, [String; 2]) {
    let ws = TestWorkspace::repository();
    let run = |script: &str| {
        let options = ["--session", "ticket", "--max-patch-bytes", "64"];
        let run = ws.run(options, script).ok().json();
        run["run_id"].as_str().unwrap().to_owned()
    };
    let runs = [run("true"), run("seq 1000 > numbers")];
    (ws, runs)
}

/// The lines of an export, each of which is as the schemas say.
fn lines(directory: &Path) -> Vec<Value> {
    let text = fs::read_to_string(directory.join("records.jsonl")).unwrap();
    assert!(text.ends_with('\n'), "the last line is whole");
    let lines = text.lines().map(|line| {
        let document: Value = serde_json::from_str(line).unwrap();
        let right = Schemas::get().check("export-line.json", &document);
        assert_eq!(right, Ok(()), "{document:#}");
        document
    });
    lines.collect()
}

/// The lines of one kind, without what says that they are.
fn of_kind(lines: &[Value], record: &str) -> Vec<Value> {
    let of_kind = lines.iter().filter(|line| line["record"] == record);
    let plain = of_kind.map(|line| {
        let mut line = line.clone();
        line.as_object_mut().unwrap().remove("record");
        line
    });
    plain.collect()
}

/// What lies in a directory, however deep, with its permission bits.
fn all_below(directory: &Path) -> BTreeSet<(String, u32)> {
    let entries = walkdir::WalkDir::new(directory).into_iter();
    let entries = entries.map(|entry| {
        let entry = entry.unwrap();
        let path = entry.path().strip_prefix(directory).unwrap();
        let mode = entry.metadata().unwrap().permissions().mode() & 0o7777;
        (path.to_str().unwrap().to_owned(), mode)
    });
    entries.collect()
}

/// What lies beside the workspace and is not of the test itself.
fn beside(ws: &TestWorkspace) -> BTreeSet<String> {
    let own = ["home", "outside", "state", "stillframe", "work"];
    let names = fs::read_dir(ws.base()).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| !own.contains(&name.as_str())).collect()
}

#[test]
fn a_session_is_exported_with_its_runs_events_and_artifacts() {
    let (ws, runs) = two_runs();
    // Another session is none of its business.
    ws.run(["--session", "other"], "true").ok();
    let before = ws.events([""; 0]);
    let done = ws.untouched(|| ws.json(["export", "ticket", "--to", "../export"]));
    assert_eq!(ws.events([""; 0]), before, "it is only read");
    let directory = ws.base().join("export");
    let lines = lines(&directory);

    let mut order: Vec<&str> = lines
        .iter()
        .map(|line| line["record"].as_str().unwrap())
        .collect();
    order.dedup();
    assert_eq!(order, ["session", "run", "event", "artifact"]);
    let mut sessions = ws.json(["sessions"]).as_array().unwrap().clone();
    sessions.retain(|session| session["id"] == "ticket");
    assert_eq!(of_kind(&lines, "session"), sessions);

    // All that is shown of a run but its events, oldest run first.
    let shown = runs.each_ref().map(|id| {
        let mut shown = ws.show(id);
        shown.as_object_mut().unwrap().remove("events");
        shown
    });
    assert_eq!(of_kind(&lines, "run"), shown);
    let events = of_kind(&lines, "event");
    assert_eq!(events, ws.events(["--session", "ticket"]));
    for event in &events {
        assert_eq!(Schemas::get().check("event.json", event), Ok(()));
    }

    let artifacts = of_kind(&lines, "artifact");
    let [artifact] = &artifacts[..] else {
        panic!("there is one: {artifacts:?}");
    };
    let key = artifact["key"].as_str().unwrap();
    let bytes = fs::read(directory.join(artifact["file"].as_str().unwrap())).unwrap();
    assert_eq!(bytes, ws.stillframe(["artifact", "get", key]).ok().stdout);
    assert_eq!(artifact["byte_size"], bytes.len());
    let checksum = blake3::hash(&bytes).to_hex();
    assert_eq!(artifact["checksum"], checksum.as_str());

    let records = fs::metadata(directory.join("records.jsonl")).unwrap();
    let expected = json!({
        "to": directory.to_str().unwrap(),
        "runs": 2,
        "events": events.len(),
        "artifacts": 1,
        "bytes": records.len() + bytes.len() as u64,
        "unreadable": [],
    });
    assert_eq!(done, expected);
    let private = [
        ("", 0o700),
        ("artifacts", 0o700),
        ("artifacts/1", 0o600),
        ("records.jsonl", 0o600),
    ];
    let private = private.map(|(name, mode)| (name.to_owned(), mode));
    assert_eq!(all_below(&directory), BTreeSet::from(private));
    assert_eq!(beside(&ws), ["export".to_owned()].into());
}

#[test]
fn a_run_is_exported_by_the_beginning_of_its_id() {
    let (ws, [first, second]) = two_runs();
    // An empty directory is as good as none, and becomes private.
    fs::create_dir(ws.base().join("first")).unwrap();
    let said = ws
        .stillframe(["export", &first[..12], "--to", "../first"])
        .ok();
    assert!(said.stdout_text().starts_with("1 run, "), "{said}");
    let of_first = lines(&ws.base().join("first"));
    assert_eq!(of_kind(&of_first, "session"), Vec::<Value>::new());
    assert_eq!(of_kind(&of_first, "artifact"), Vec::<Value>::new());
    assert_eq!(of_kind(&of_first, "run")[0]["run_id"], *first);
    assert!(all_below(&ws.base().join("first")).contains(&(String::new(), 0o700)));

    ws.json(["export", &second, "--to", "../second"]);
    let of_second = lines(&ws.base().join("second"));
    let events = of_kind(&of_second, "event");
    assert_eq!(events, ws.events(["--run", &second]));
    assert_eq!(of_kind(&of_second, "artifact").len(), 1);
}

#[test]
fn the_whole_id_of_a_session_is_no_beginning_of_a_runs() {
    let ws = TestWorkspace::repository();
    for (session, run) in [("job", "other"), ("late", "job-1"), ("same", "same")] {
        let ids = ["--session", session, "--run-id", run];
        ws.run(ids, "true").ok();
    }
    let exported = |id: &str, to: &str| {
        ws.json(["export", id, "--to", to]);
        lines(&ws.base().join(&to[3..]))
    };
    let session = exported("job", "../session");
    assert_eq!(session[0]["id"], "job", "{:#}", session[0]);
    assert_eq!(of_kind(&session, "run")[0]["run_id"], "other");
    assert_eq!(ws.show("job")["id"], "job");
    let run = exported("job-", "../run");
    assert_eq!(of_kind(&run, "run")[0]["run_id"], "job-1");
    let run = exported("same", "../same");
    assert_eq!(of_kind(&run, "session"), Vec::<Value>::new());
    assert_eq!(ws.show("same")["run_id"], "same");
}

#[test]
fn what_is_refused_makes_nothing_and_touches_nothing() {
    let (ws, [run, _]) = two_runs();
    let full = ws.base().join("full");
    fs::create_dir(&full).unwrap();
    fs::write(full.join("mine"), "mine").unwrap();
    let state = ws.state().join("export");
    let in_state = state.to_str().unwrap();
    let invalid = "InvalidOptions";
    for (id, to, kind, says) in [
        (&*run, "../full", invalid, "is not empty"),
        (&run, "../full/mine", invalid, "is no directory"),
        (&run, "../none/below", invalid, "is not there"),
        (&run, in_state, invalid, "the state directory"),
        (
            "nothing",
            "../new",
            "NotFound",
            "there is no run and no session",
        ),
    ] {
        let refused = ws.untouched(|| ws.try_json(["export", id, "--to", to]).exits(1));
        let error = &refused.json()["error"];
        assert_eq!(error["kind"], kind, "{error}");
        assert!(error["message"].as_str().unwrap().contains(says), "{error}");
    }
    ws.stillframe(["export", &run]).exits(2);
    assert_eq!(fs::read_to_string(full.join("mine")).unwrap(), "mine");
    assert_eq!(fs::read_dir(&full).unwrap().count(), 1);
    assert_eq!(beside(&ws), ["full".to_owned()].into());
    assert!(!state.exists());
}

#[test]
fn an_artifact_that_is_damaged_is_named_and_the_rest_is_exported() {
    let (mut ws, [_, run]) = two_runs();
    ws.damages_the_store();
    let artifacts = ws.state().join("artifacts");
    let largest = walkdir::WalkDir::new(&artifacts)
        .into_iter()
        .map(Result::unwrap)
        .filter(|entry| entry.file_type().is_file())
        .max_by_key(|entry| entry.metadata().unwrap().len())
        .unwrap();
    let mut bytes = fs::read(largest.path()).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::set_permissions(largest.path(), fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(largest.path(), bytes).unwrap();

    let lacking = ws.try_json(["export", &run, "--to", "../export"]).exits(1);
    let lines = lines(&ws.base().join("export"));
    let artifact = &of_kind(&lines, "artifact")[0];
    assert_eq!(artifact["error"]["kind"], "Corrupt", "{artifact}");
    assert_eq!(artifact.get("file"), None);
    let done = lacking.json();
    assert_eq!(done["unreadable"], json!([artifact["key"]]));
    assert_eq!(done["artifacts"], 0);
    let key = artifact["key"].as_str().unwrap();
    assert!(lacking.stderr_text().contains(key), "{lacking}");
    assert_eq!(of_kind(&lines, "event"), ws.events(["--run", &run]));
    let said = ws.stillframe(["export", &run, "--to", "../again"]).exits(1);
    assert!(said.stderr_text().contains(key), "{said}");
}
