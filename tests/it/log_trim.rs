//! Old events and sessions that have ended go with `gc`, and nobody misses one unknowingly.

use std::time::Duration;

use serde_json::{Value, json};
use stillframe::events::{EventDraft, EventType};
use stillframe::{Engine, EngineOptions};
use stillframe_tests::TestWorkspace;
use stillframe_tests::choice::one_of_each;

/// What an engine in the state directory of the workspace does.
fn with_engine<T>(ws: &TestWorkspace, story: impl AsyncFnOnce(&Engine) -> T) -> T {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let options = EngineOptions::default().state_dir(ws.state());
        let engine = Engine::start(options).await.unwrap();
        let told = story(&engine).await;
        engine.shutdown().await.unwrap();
        told
    })
}

#[test]
fn events_go_by_number_and_a_reader_of_what_went_is_told_where_to_go_on() {
    let ws = TestWorkspace::plain();
    let first = ws.run(["--session", "ticket"], "true").ok().json();
    let first = first["run_id"].as_str().unwrap();
    let run = ws.run(["--session", "ticket"], "true").ok().json();
    let written = ws.events([""; 0]);
    let count = written.len();

    let gc = |more: &[&str]| {
        let options = ["gc", "--max-events", "5"].iter().chain(more).copied();
        ws.json(options)
    };
    let foretold = gc(&["--dry-run"]);
    assert_eq!(foretold["log"]["events"], count - 5);
    assert_eq!(ws.events([""; 0]), written, "nothing was done");
    let done = gc(&[]);
    assert_eq!(done["log"]["events"], count - 5, "{done}");
    assert_eq!(done["log"]["oldest"], written[count - 5]["position"]);
    assert!(
        ws.json(["gc"]).get("log").is_none(),
        "nobody asked for that"
    );
    // What the clean-ups say of themselves comes after it.
    assert_eq!(ws.events([""; 0])[..5], written[count - 5..]);

    let refused = ws.try_json(["events", "--from", "1"]).exits(1);
    let error = &refused.json()["error"];
    let last = written[count - 6]["position"].as_u64().unwrap();
    assert_eq!(
        (&error["kind"], &error["oldest"]),
        (&json!("PositionsForgotten"), &json!(last + 1))
    );
    let message = error["message"].as_str().unwrap();
    assert!(message.contains(&format!("--from {last}")), "{message}");
    let rest = ws.events(["--from", &last.to_string()]);
    assert_eq!(rest[..5], written[count - 5..]);
    // Who asks by number is answered by number.
    let by_number = ["events", "--session", "ticket", "--after"];
    let refused = ws.try_json(by_number.into_iter().chain(["1"])).exits(1);
    let error = &refused.json()["error"];
    let oldest = error["oldest_sequence"].as_u64().unwrap();
    let place = (oldest - 1).to_string();
    let message = error["message"].as_str().unwrap();
    assert!(message.contains(&format!("--after {place}")), "{message}");
    assert!(!message.contains("--from"), "{message}");
    ws.stillframe(by_number.into_iter().chain([&*place])).ok();
    ws.try_json(["transcript", "ticket", "--from", "1"])
        .refused("PositionsForgotten");

    // What is on record of runs does not depend on events, and nobody waits for those of one.
    assert_eq!(ws.show(first)["status"], "completed");
    ws.stillframe(["show", first, "--follow"]).ok();
    ws.stillframe(["show", run["run_id"].as_str().unwrap(), "--follow"])
        .ok();
    assert_eq!(ws.json(["verify"])["log"], Value::Null);
}

// They looked as if there had never been more.
#[test]
fn what_begins_in_the_middle_because_events_were_removed_says_so() {
    let ws = TestWorkspace::plain();
    let run = || {
        let run = ws.run(["--session", "ticket"], "true").ok().json();
        run["run_id"].as_str().unwrap().to_owned()
    };
    let old = run();
    run();
    let transcript = |json: bool| {
        let output = match json {
            true => ws.try_json(["transcript", "ticket"]),
            false => ws.stillframe(["transcript", "ticket"]),
        };
        assert_eq!(output.stderr_text(), "");
        output.ok().stdout_text()
    };
    transcript(false);
    ws.json(["gc", "--max-events", "5"]);
    let young = run();
    let oldest = ws.events(["--session", "ticket"])[0]["sequence"]
        .as_u64()
        .unwrap();
    assert!(oldest > 1);

    let note = format!("number {oldest} on");
    for told in [
        vec!["events", "--session", "ticket"],
        vec!["events", "--run", &old],
        vec!["transcript", "ticket"],
        vec!["transcript", &old],
        vec!["export", "ticket", "--to", "../one"],
    ] {
        let output = ws.stillframe(&told).ok();
        let said = output.stderr_text();
        assert!(said.contains(&note), "{told:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{told:?}: {said}");
    }
    // Nothing is missing.
    for whole in [
        vec!["events"],
        vec!["events", "--run", &young],
        vec!["events", "--session", "ticket", "--after", "100000"],
        vec!["transcript", &young],
        vec!["export", &young, "--to", "../two"],
    ] {
        let said = ws.stillframe(&whole).stderr_text();
        assert!(!said.contains("earlier events"), "{whole:?}: {said}");
    }

    // A program reads it in the documents, and stderr is empty.
    let export = ws.json(["export", "ticket", "--to", "../three"]);
    assert_eq!(export["oldest_sequence"], oldest, "{export}");
    for line in transcript(true).lines() {
        let entry: Value = serde_json::from_str(line).unwrap();
        assert_eq!(entry["oldest_sequence"], oldest, "{entry}");
    }
    let whole = ws.try_json(["transcript", &young]).ok().stdout_text();
    assert!(!whole.contains("oldest_sequence"), "{whole}");
    assert!(whole.contains("run_started"), "{whole}");
}

#[test]
fn sessions_that_have_ended_go_once_their_snapshots_have() {
    let ws = TestWorkspace::plain();
    for text in ["1", "2", "3"] {
        ws.write("file", text);
        ws.run([""; 0], "true").ok();
    }
    let sessions = || ws.json(["runs"]).as_array().unwrap().len();
    // Why nothing went is said.
    let gone = ws.json(["gc", "--max-ended-sessions", "0"]);
    assert_eq!((&gone["log"]["sessions"], sessions()), (&json!(0), 3));
    assert_eq!(gone["log"]["sessions_kept"], json!({"snapshot": 3}));
    let told = ws.stillframe(["gc", "--max-ended-sessions", "0"]).ok();
    let told = told.stdout_text();
    let expected = "3 sessions are due and stay: 3 because of a snapshot that is kept";
    assert!(told.contains(expected), "{told}");
    let gone = ws.json(["gc", "--keep", "1"]);
    assert!(!gone["forgotten"].as_array().unwrap().is_empty());
    let gone = ws.json(["gc", "--max-ended-sessions", "0"]);
    assert_eq!((&gone["log"]["sessions"], sessions()), (&json!(2), 1));
    assert!(gone["log"]["events"].as_u64().unwrap() > 4, "{gone}");
    let told = ws
        .stillframe(["gc", "--max-events", "0"])
        .ok()
        .stdout_text();
    assert!(told.contains("from the log"), "{told}");
    ws.json(["verify"]);
    // What came last stays on record, so that an undo is not of what came before.
    let message = ws.try_json(["undo"]).refused("NotFound");
    assert!(message.contains("was forgotten"), "{message}");
}

// Killed at any time, each reader has what is kept without a gap, and the next one goes on.
#[test]
fn a_trim_that_is_killed_leaves_a_whole_log_and_the_next_one_goes_on() {
    let ws = TestWorkspace::plain();
    // A session begins with two events.
    let mut last = 2;
    let delays = [5, 20, 30, 40, 50, 70, 100];
    for nth in one_of_each("trim", 2).take_while(|nth| *nth <= delays.len()) {
        let delay = delays[nth - 1];
        last = with_engine(&ws, async |engine| {
            let session = engine.session("s").await.unwrap();
            for _ in 0..5 {
                let draft = |at| EventDraft::new(EventType::MESSAGE_SENT, json!({ "at": at }));
                let drafts = (0..600).map(draft).collect();
                let events = session.emit_batch(drafts).await.unwrap();
                assert_eq!(events[0].sequence, last + 1, "no number comes again");
                last = events.last().unwrap().sequence;
            }
            last
        });
        let mut trim = ws.call(["gc", "--max-events", "10"]).start();
        std::thread::sleep(Duration::from_millis(delay));
        trim.kill();
        trim.wait();
        let kept = |count: std::ops::RangeInclusive<usize>| {
            let events = ws.events(["--session", "s"]);
            let numbers = events
                .iter()
                .map(|event| event["sequence"].as_u64().unwrap());
            let expected = last + 1 - events.len() as u64..=last;
            assert!(
                numbers.eq(expected),
                "a gap, or the last is gone, after {delay} ms"
            );
            assert!(count.contains(&events.len()), "{count:?}: {}", events.len());
        };
        kept(10..=3_012);
        assert_eq!(ws.json(["verify"])["log"], Value::Null);
        ws.json(["gc", "--max-events", "10"]);
        kept(10..=10);
    }
}
