//! Removing what is old from the log, and what readers and runs have of it afterwards.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use serde_json::json;
use stillframe::backends::Label;
use stillframe::events::{EventDraft, EventQuery, EventType, PositionsForgotten};
use stillframe::options::{GcOptions, LogRetention, RunQuery, SessionQuery};
use stillframe::records::{SessionNeed, TranscriptItem};
use stillframe::upkeep::{LogTrimOutcome, LogTrimStopped};
use stillframe::{
    AdapterOutput, Cursor, Engine, EngineOptions, Error, ErrorKind, Event, RunContext, RunOptions,
    SessionManager, Timestamp,
};
use stillframe_artifact_store::{
    ArtifactKey, ArtifactList, ArtifactMeta, ArtifactStore, DeleteError, GetError, MemoryStore,
    PutError, PutOptions, StoreError,
};

use crate::support::{
    Gate, HeldUpStore, Host, Work, all, completed, die_in_the_middle_of, on_a_runtime, wait_for,
};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn note(text: &str) -> EventDraft {
    EventDraft::new(EventType::MESSAGE_SENT, json!({ "text": text }))
}

async fn notes(session: &SessionManager, count: usize) {
    let drafts = (0..count).map(|at| note(&at.to_string())).collect();
    session.emit_batch(drafts).await.unwrap();
}

/// Keeps nothing that nothing needs.
fn none() -> LogRetention {
    LogRetention::default().max_events(0)
}

/// The sessions that stay, by what needs them.
fn stay(trimmed: &LogTrimOutcome) -> Vec<(SessionNeed, u64)> {
    let kept = trimmed.sessions_kept.iter();
    kept.map(|(need, count)| (*need, *count)).collect()
}

fn forgotten(error: &Error) -> &PositionsForgotten {
    assert_eq!(error.kind(), ErrorKind::PositionsForgotten, "{error}");
    error.wrapped().expect("it says where to go on")
}

/// Host and engine with a clock of days that the test sets.
async fn in_days(host: &Host) -> (Engine, Arc<AtomicI64>) {
    let today = Arc::new(AtomicI64::new(0));
    let days = today.clone();
    let options = host.options().clock(move || {
        Timestamp::from_second(1_700_000_000 + 86_400 * days.load(Ordering::Relaxed)).unwrap()
    });
    (Engine::start(options).await.unwrap(), today)
}

/// Every reader from every place either gets all that was written after it, or is told.
async fn no_reader_is_left_in_the_dark(engine: &Engine, written: &[Event]) {
    let last = written.last().unwrap().position;
    let names: std::collections::BTreeSet<_> =
        written.iter().map(|e| e.session_id.clone()).collect();
    let mut queries: Vec<EventQuery> = vec![EventQuery::all()];
    queries.extend(names.into_iter().map(EventQuery::session));
    let mut told = 0;
    for query in queries {
        for after in 1..=last {
            let after = query.clone().after_position(after);
            let expected = |from: u64| -> Vec<Event> {
                let is_of = |e: &&Event| {
                    e.position > from
                        && query
                            .session_id
                            .as_ref()
                            .is_none_or(|id| e.session_id == *id)
                };
                written.iter().filter(is_of).cloned().collect()
            };
            match engine.events(after.clone()).await {
                Ok(events) => assert_eq!(events, expected(after.after_position.unwrap())),
                Err(e) => {
                    told += 1;
                    let from = forgotten(&e).oldest - 1;
                    let rest = engine.events(query.clone().after_position(from)).await;
                    assert_eq!(rest.unwrap(), expected(from));
                }
            }
        }
    }
    assert!(told > 0, "something was removed");
}

#[tokio::test]
async fn a_reader_gets_all_after_its_position_or_is_told_where_to_go_on() {
    let host = Host::new();
    let (engine, one) = host.session().await;
    let other = engine.session("other").await.unwrap();
    for _ in 0..3 {
        notes(&one, 5).await;
        notes(&other, 3).await;
    }
    let written = engine.events(EventQuery::all()).await.unwrap();
    // One that is slow: it has the first event, and the others are still in the log.
    let mut slow = engine.subscribe(EventQuery::all().limit(1000)).unwrap();
    assert_eq!(slow.next().await.unwrap().unwrap(), written[0]);

    let foretold = engine
        .trim_log(none().max_events(10).dry_run(true))
        .await
        .unwrap();
    assert_eq!(engine.events(EventQuery::all()).await.unwrap(), written);
    let done = engine.trim_log(none().max_events(10)).await.unwrap();
    assert_eq!((foretold.events, foretold.sessions), (done.events, 0));
    assert_eq!(done.events, written.len() as u64 - 10);
    assert_eq!(done.oldest, written[written.len() - 10].position);
    no_reader_is_left_in_the_dark(&engine, &written).await;

    // Without a place a reader gets what is kept.
    let kept = engine.events(EventQuery::all()).await.unwrap();
    assert_eq!(kept, written[written.len() - 10..]);
    let mut stream = one.events(Cursor::start());
    let first = stream.next().await.unwrap().unwrap();
    let numbers: Vec<u64> = all(&engine, &one)
        .await
        .iter()
        .map(|e| e.sequence)
        .collect();
    let expected: Vec<u64> = (first.sequence..=17).collect();
    assert_eq!(numbers, expected);
    // By number, in a session.
    let error = one
        .events(Cursor::after(2))
        .next()
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(forgotten(&error).oldest_sequence, Some(first.sequence));
    assert_eq!(forgotten(&error).session_id.as_ref(), Some(one.id()));
    let document = serde_json::to_value(error.document()).unwrap();
    assert_eq!(document["kind"], "PositionsForgotten");
    assert_eq!(document["retryable"], false);
    let mut stream = one.events(Cursor::after(first.sequence - 1));
    assert_eq!(stream.next().await.unwrap().unwrap(), first);

    // All of it goes, and no number or position comes again.
    engine.trim_log(none()).await.unwrap();
    assert_eq!(engine.events(EventQuery::all()).await.unwrap(), []);
    engine.shutdown().await.unwrap();
    let engine = host.engine().await;
    let one = engine.session("s").await.unwrap();
    let next = one.emit(note("next")).await.unwrap();
    assert_eq!(next.sequence, 18);
    assert_eq!(next.position, written.last().unwrap().position + 1);
    assert_eq!(all(&engine, &one).await, [next]);
    assert!(engine.verify(&host.workspace()).await.unwrap().is_sound());
}

#[tokio::test]
async fn a_stream_that_falls_behind_what_is_removed_ends_by_saying_so() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    // More than are read ahead.
    notes(&session, 2_000).await;
    let mut slow = engine.subscribe(EventQuery::all()).unwrap();
    let first = slow.next().await.unwrap().unwrap();
    engine.trim_log(none()).await.unwrap();
    notes(&session, 3).await;
    let mut seen = first.position;
    let error = loop {
        match slow.next().await.expect("it is told before the end") {
            Ok(event) => {
                assert_eq!(event.position, seen + 1, "no gap before it is told");
                seen = event.position;
            }
            Err(e) => break e,
        }
    };
    let oldest = forgotten(&error).oldest;
    assert!(oldest > seen + 1);
    let rest = EventQuery::all().after_position(oldest - 1);
    assert_eq!(engine.events(rest).await.unwrap().len(), 3);
}

#[tokio::test]
async fn events_go_by_age_and_those_of_a_run_that_can_go_on_stay_with_all_that_follow() {
    let host = Host::new();
    let (engine, today) = in_days(&host).await;
    let session = engine.session("s").await.unwrap();
    notes(&session, 4).await;
    today.store(10, Ordering::Relaxed);
    let waits = Work(|context: RunContext| async move {
        context.phase("p").step("one", |_| async { Ok(()) }).await?;
        context.cancellation.cancelled().await;
        Err(stillframe::AdapterError::cancelled("asked to"))
    });
    let options = RunOptions::new("later").run_id("later".parse().unwrap());
    let run = tokio::spawn({
        let session = session.clone();
        async move { session.execute_run(options, waits).await.unwrap() }
    });
    let step_done = EventQuery::all()
        .of_type(EventType::STEP_COMPLETED)
        .wait(DAY);
    assert_eq!(engine.events(step_done).await.unwrap().len(), 1);
    engine.suspend_run(&"later".parse().unwrap()).await.unwrap();
    assert!(!run.await.unwrap().run.status.is_terminal());
    notes(&session, 2).await;
    let before = all(&engine, &session).await;

    today.store(12, Ordering::Relaxed);
    notes(&session, 1).await;
    let older = |days: u32| LogRetention::default().events_older_than(DAY * days);
    assert_eq!(engine.trim_log(older(20)).await.unwrap().events, 0);
    // The two of its beginning, and four.
    assert_eq!(engine.trim_log(older(5)).await.unwrap().events, 6);
    assert_eq!(engine.trim_log(none()).await.unwrap().events, 0);
    let kept = all(&engine, &session).await;
    assert_eq!(kept[..kept.len() - 1], before[6..]);

    // It goes on, and once it has ended its events are as old as they are.
    let ends = Work(|context: RunContext| async move {
        context.phase("p").step("one", |_| async { Ok(()) }).await?;
        Ok(AdapterOutput::empty())
    });
    let options = RunOptions::new("later").run_id("later".parse().unwrap());
    completed(&session.execute_run(options, ends).await.unwrap());
    engine.trim_log(older(1)).await.unwrap();
    let left = all(&engine, &session).await;
    assert!(left.len() < kept.len() && !left.is_empty(), "{left:?}");
    let young = Timestamp::from_second(1_700_000_000 + 86_400 * 12).unwrap();
    assert!(
        left.iter().all(|event| event.timestamp >= young),
        "{left:?}"
    );
    // What is on record of the run stays.
    let run = engine.export_run("later").await.unwrap();
    assert_eq!(run.phases[0].steps.len(), 1);
}

#[tokio::test]
async fn runs_that_are_under_way_or_wait_in_the_queue_go_on_though_all_else_went() {
    let host = Host::new();
    let go = Arc::new(tokio::sync::Semaphore::new(0));
    let gate = go.clone();
    let options = host.options().adapter("waits", move |_| {
        let gate = gate.clone();
        Ok(Work(move |_: RunContext| {
            let gate = gate.clone();
            async move {
                gate.acquire().await.unwrap().forget();
                Ok(AdapterOutput::empty())
            }
        }))
    });
    let engine = Engine::start(options).await.unwrap();
    let session = engine.session("s").await.unwrap();
    notes(&session, 5).await;
    let mut handles = Vec::new();
    for _ in 0..2 {
        let run = session.submit_run(RunOptions::new("to do"), "waits", json!(null));
        handles.push(run.await.unwrap());
    }
    let started = EventQuery::all().of_type(EventType::RUN_STARTED).wait(DAY);
    assert_eq!(engine.events(started).await.unwrap().len(), 1);
    let written = all(&engine, &session).await;
    let removed = engine.trim_log(none()).await.unwrap();
    assert_eq!(removed.events, 7, "of the session and of its host");
    assert_eq!(all(&engine, &session).await, written[7..]);
    go.add_permits(2);
    for handle in handles {
        completed(&handle.wait().await.unwrap());
        let mut types = Vec::new();
        let mut events = handle.events();
        while types.last() != Some(&EventType::RUN_COMPLETED) {
            types.push(events.next().await.unwrap().unwrap().event_type);
        }
        assert!(types.contains(&EventType::RUN_STARTED), "{types:?}");
    }
}

#[tokio::test]
async fn who_misses_a_removed_session_gets_all_else_and_nobody_else_is_disturbed() {
    let host = Host::new();
    let engine = host.engine().await;
    let (one, other) = (
        engine.session("one").await.unwrap(),
        engine.session("other").await.unwrap(),
    );
    notes(&one, 3).await;
    notes(&other, 3).await;
    let lies_before = engine.events(EventQuery::all()).await.unwrap().len() as u64;
    notes(&one, 3).await;
    let recent = busy_session(&engine, "recent").await;
    notes(&other, 3).await;
    let written = engine.events(EventQuery::all()).await.unwrap();
    let (kept, of_recent): (Vec<Event>, Vec<Event>) = written
        .iter()
        .cloned()
        .partition(|event| event.session_id != *recent.id());
    let behind = of_recent.last().unwrap().position;
    engine
        .trim_log(LogRetention::default().max_ended_sessions(0))
        .await
        .unwrap();

    let after = |position: u64| EventQuery::all().after_position(position);
    let later = |position: u64| -> Vec<Event> {
        let is_later = |event: &&Event| event.position > position;
        kept.iter().filter(is_later).cloned().collect()
    };
    // Who is behind it, or reads something else, hears nothing of it.
    assert_eq!(engine.events(after(behind)).await.unwrap(), later(behind));
    for session in [&one, &other] {
        let of_session = EventQuery::session(session.id().clone()).after_position(lies_before);
        let mut expected = later(lies_before);
        expected.retain(|event| event.session_id == *session.id());
        assert_eq!(engine.events(of_session).await.unwrap(), expected);
    }
    // Who lies before it is told, and then misses only that.
    let error = engine.events(after(lies_before)).await.unwrap_err();
    let oldest = forgotten(&error).oldest;
    assert_eq!(oldest, behind + 1);
    let told = after(lies_before).gaps_before(oldest);
    let rest = engine.events(told.clone()).await.unwrap();
    assert_eq!(rest, later(lies_before));
    let mut stream = engine.subscribe(told.clone()).unwrap();
    for expected in later(lies_before) {
        assert_eq!(stream.next().await.unwrap().unwrap(), expected);
    }
    // Of what is removed from there on it is told again.
    other.complete("").await.unwrap();
    engine
        .trim_log(LogRetention::default().max_ended_sessions(0))
        .await
        .unwrap();
    forgotten(&engine.events(told).await.unwrap_err());
}

#[tokio::test]
async fn so_many_events_are_kept_as_were_asked_for_though_others_are_gone() {
    let host = Host::new();
    let engine = host.engine().await;
    let open = engine.session("open").await.unwrap();
    notes(&open, 10).await;
    busy_session(&engine, "ended").await;
    notes(&open, 3).await;
    let written = all(&engine, &open).await;
    let kept = LogRetention::default().max_ended_sessions(0).max_events(8);
    let foretold = engine.trim_log(kept.clone().dry_run(true)).await.unwrap();
    let done = engine.trim_log(kept).await.unwrap();
    let left = engine.events(EventQuery::all()).await.unwrap();
    assert_eq!(left, written[written.len() - 8..]);
    assert_eq!((foretold.events, foretold.sessions), (done.events, 1));
}

#[tokio::test]
async fn a_run_whose_events_are_gone_says_so_and_a_number_that_is_not_reached_is_refused() {
    let host = Host::new();
    let options = host.options().adapter("done", |_| {
        Ok(Work(|_: RunContext| async { Ok(AdapterOutput::empty()) }))
    });
    let engine = Engine::start(options).await.unwrap();
    let session = engine.session("s").await.unwrap();
    let submit = session.submit_run(RunOptions::new("x"), "done", json!(null));
    let handle = submit.await.unwrap();
    completed(&handle.wait().await.unwrap());
    let last = all(&engine, &session).await.last().unwrap().sequence;
    let too_far = EventQuery::session(session.id().clone()).after(last + 1);
    let refused = engine.events(too_far.clone()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidOptions);
    let message = format!(
        "number {} is not in session s, which ends at number {last}",
        last + 1
    );
    assert_eq!(refused.to_string(), message);
    let mut stream = session.events(Cursor::after(last + 1));
    let refused = stream.next().await.unwrap().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidOptions);
    let reached = EventQuery::session(session.id().clone()).after(last);
    assert_eq!(engine.events(reached).await.unwrap(), []);

    engine.trim_log(none()).await.unwrap();
    let is_told = async || {
        let mut events = handle.events();
        let told = tokio::time::timeout(Duration::from_secs(20), events.next());
        let told = told.await.unwrap();
        let error = told.unwrap().unwrap_err();
        assert_eq!(forgotten(&error).session_id.as_ref(), Some(session.id()));
    };
    is_told().await;
    session.complete("").await.unwrap();
    let kept = LogRetention::default().max_ended_sessions(0);
    assert_eq!(engine.trim_log(kept).await.unwrap().sessions, 1);
    is_told().await;
}

/// Does all of which there are records, in a session that it ends.
async fn busy_session(engine: &Engine, name: &str) -> SessionManager {
    let session = engine.session(name).await.unwrap();
    let work = Work(|context: RunContext| async move {
        context.phase("p").step("one", |_| async { Ok(()) }).await?;
        context
            .emit(EventType::MESSAGE_SENT, json!({"text": "x".repeat(70_000)}))
            .await?;
        Ok(AdapterOutput::empty())
    });
    let options = RunOptions::new("work").run_id(format!("run-of-{name}").parse().unwrap());
    completed(&session.execute_run(options, work).await.unwrap());
    let content = Box::new(std::io::Cursor::new(b"of the host".to_vec()));
    session
        .put_artifact(&format!("notes-{name}"), "text/plain", content)
        .await
        .unwrap();
    session.complete("").await.unwrap();
    session
}

#[tokio::test]
async fn a_session_that_has_ended_goes_with_all_that_is_on_record_of_it() {
    let host = Host::new();
    let (engine, today) = in_days(&host).await;
    let old = busy_session(&engine, "old").await;
    today.store(5, Ordering::Relaxed);
    busy_session(&engine, "young").await;
    let open = engine.session("open").await.unwrap();
    notes(&open, 2).await;
    today.store(8, Ordering::Relaxed);
    let written = engine.events(EventQuery::all()).await.unwrap();
    let of_old = all(&engine, &old).await;
    let kept = LogRetention::default().sessions_older_than(DAY * 6);

    let foretold = engine.trim_log(kept.clone().dry_run(true)).await.unwrap();
    assert!(foretold.dry_run && engine.find_run("run-of-old").await.is_ok());
    let done = engine.trim_log(kept.clone()).await.unwrap();
    assert_eq!((done.sessions, done.artifacts), (1, 2));
    assert_eq!(done.events, of_old.len() as u64);
    // What the host put, and the data of an event.
    assert!(
        done.freed_bytes > 70_000 && done.freed_bytes < 71_000,
        "{done:?}"
    );
    assert_eq!(
        (foretold.sessions, foretold.events, foretold.artifacts),
        (1, done.events, 2)
    );
    assert_eq!(foretold.freed_bytes, done.freed_bytes);
    assert_eq!(
        engine.trim_log(kept).await.unwrap().sessions,
        0,
        "there is no other"
    );

    let ids: Vec<String> = engine
        .sessions(SessionQuery::all())
        .await
        .unwrap()
        .iter()
        .map(|s| s.id.to_string())
        .collect();
    assert_eq!(ids, ["open", "young"]);
    let gone = engine.find_run("run-of-old").await.unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound);
    assert_eq!(
        engine.export_run("run-of-young").await.unwrap().phases[0]
            .steps
            .len(),
        1
    );
    let keys: Vec<String> = engine
        .artifacts(None)
        .await
        .unwrap()
        .into_iter()
        .map(|a| a.key)
        .collect();
    assert_eq!(keys.len(), 2, "{keys:?}");
    let below = std::fs::read_dir(host.state().join("artifacts/keys")).unwrap();
    let content = below.flat_map(|entry| std::fs::read_dir(entry.unwrap().path()).unwrap());
    assert_eq!(content.count(), 2, "and no content of others");
    let query = EventQuery::session("old".parse().unwrap());
    let error = engine.events(query.clone()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "nothing is waited for");
    let error = engine.events(query.after(1)).await.unwrap_err();
    assert_eq!(
        forgotten(&error).oldest_sequence,
        Some(of_old.len() as u64 + 1)
    );
    let young = EventQuery::session("young".parse().unwrap());
    assert!(!engine.events(young.after(1)).await.unwrap().is_empty());
    no_reader_is_left_in_the_dark(&engine, &written[of_old.len()..]).await;

    // Its numbers go on, and an id of it can be used again.
    let anew = busy_session(&engine, "old").await;
    let numbers: Vec<u64> = all(&engine, &anew)
        .await
        .iter()
        .map(|e| e.sequence)
        .collect();
    let next = of_old.len() as u64 + 1;
    assert_eq!(
        numbers,
        (next..next + of_old.len() as u64).collect::<Vec<_>>()
    );
    let outcome = engine.verify(&host.workspace()).await.unwrap();
    assert!(outcome.is_sound(), "{outcome:?}");
}

// Its content was removed by the key alone, which another session has put something under.
#[tokio::test]
async fn content_that_another_session_is_putting_under_a_key_stays() {
    let host = Host::new();
    let (gate, is_there, open) = Gate::new();
    let store = Arc::new(HeldUpStore::new(gate));
    let options = || EngineOptions::default().state_dir(host.state());
    let start = async |store: Arc<dyn ArtifactStore>| {
        let options = options().artifact_store(store);
        Engine::start(options).await.unwrap()
    };
    let put = async |session: &SessionManager, text: &'static str| {
        let content = Box::new(text.as_bytes());
        session.put_artifact("shared", "text/plain", content).await
    };
    let engine = start(store.inner.clone()).await;
    let old = engine.session("old").await.unwrap();
    put(&old, "of the old").await.unwrap();
    old.complete("").await.unwrap();
    engine.shutdown().await.unwrap();

    let engine = start(store.clone()).await;
    let new = engine.session("new").await.unwrap();
    let (putting, trimmed) = tokio::join!(put(&new, "of the new"), async {
        wait_for(is_there).await;
        let kept = LogRetention::default().max_ended_sessions(0);
        let trimmed = engine.trim_log(kept).await;
        open.send(()).unwrap();
        trimmed
    });
    putting.unwrap();
    assert_eq!(trimmed.unwrap().sessions, 0, "its turn comes later");
    let content = async || {
        let mut text = String::new();
        let mut content = engine.open_artifact("shared").await.unwrap();
        content.read_to_string(&mut text).unwrap();
        text
    };
    assert_eq!(content().await, "of the new");
    let kept = LogRetention::default().max_ended_sessions(0);
    let trimmed = engine.trim_log(kept).await.unwrap();
    assert_eq!((trimmed.sessions, trimmed.artifacts), (1, 0));
    assert_eq!(content().await, "of the new");
}

/// A store that deletes nothing while it is told to.
#[derive(Default)]
struct Holding {
    inner: MemoryStore,
    holds: AtomicBool,
}

impl ArtifactStore for Holding {
    fn put(
        &self,
        key: &ArtifactKey,
        content: &mut dyn Read,
        options: &PutOptions,
    ) -> Result<ArtifactMeta, PutError> {
        self.inner.put(key, content, options)
    }

    fn get(&self, key: &ArtifactKey) -> Result<Box<dyn Read + Send>, GetError> {
        self.inner.get(key)
    }

    fn delete(&self, key: &ArtifactKey) -> Result<(), DeleteError> {
        if self.holds.load(Ordering::Relaxed) {
            let (path, holder) = ("store".into(), "somebody".to_owned());
            return Err(StoreError::Busy { path, holder }.into());
        }
        self.inner.delete(key)
    }

    fn exists(&self, key: &ArtifactKey) -> Result<bool, StoreError> {
        self.inner.exists(key)
    }

    fn list(&self) -> Result<ArtifactList, StoreError> {
        self.inner.list()
    }
}

// The error had none of what was done.
#[tokio::test]
async fn a_trim_that_stops_says_what_it_has_done_and_a_clean_up_finishes_what_it_began() {
    let host = Host::new();
    let store = Arc::new(Holding::default());
    let options = host.options().artifact_store(store.clone());
    let engine = Engine::start(options).await.unwrap();
    let empty = engine.session("empty").await.unwrap();
    notes(&empty, 3).await;
    empty.complete("").await.unwrap();
    let full = engine.session("full").await.unwrap();
    let content = Box::new(&b"content"[..]);
    let put = full.put_artifact("k", "text/plain", content).await;
    put.unwrap();
    full.complete("").await.unwrap();

    store.holds.store(true, Ordering::Relaxed);
    let kept = LogRetention::default().max_ended_sessions(0);
    let error = engine.trim_log(kept.clone()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    let stopped: &LogTrimStopped = error.wrapped().expect("it says what was done");
    assert_eq!((stopped.done.sessions, stopped.done.events), (1, 6));
    assert!(stopped.done.oldest > 1);
    let message = error.chain();
    assert!(message.contains("sessions 1"), "{message}");
    assert!(message.contains("in use by somebody"), "{message}");
    // Where nothing was done, there is nothing to say.
    let error = engine.trim_log(kept).await.unwrap_err();
    assert!(error.wrapped::<LogTrimStopped>().is_none(), "{error}");
    let refused = full.emit(note("late")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict, "it is being removed");

    // A clean-up of any workspace goes on, though nobody asks for the log.
    store.holds.store(false, Ordering::Relaxed);
    host.write("file", "1");
    let session = engine.session("captures").await.unwrap();
    for text in ["1", "2"] {
        host.write("file", text);
        let taken = session.snapshot(&host.workspace(), Label::MANUAL).await;
        taken.unwrap();
    }
    let before = engine.events(EventQuery::all()).await.unwrap();
    let keep = GcOptions::default().keep(1);
    let cleaned = engine.gc(&host.workspace(), keep).await.unwrap();
    assert_eq!(cleaned.forgotten.len(), 1);
    let ids = engine.sessions(SessionQuery::all()).await.unwrap();
    assert!(ids.iter().all(|session| session.id.as_str() != "full"));
    assert!(store.list().unwrap().artifacts.is_empty());
    // What it tells of itself comes behind what there was, removed or not.
    let told = EventQuery::all().of_type(EventType::WORKSPACE_CLEANED_UP);
    let told = engine.events(told).await.unwrap();
    assert_eq!(told.len(), 1);
    assert!(told[0].position > before.last().unwrap().position);
    assert_eq!(told[0].data["snapshots"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_session_whose_artifacts_another_store_has_stays_with_them() {
    let host = Host::new();
    let store = Arc::new(MemoryStore::new());
    let engine = Engine::start(host.options().artifact_store(store.clone()));
    let engine = engine.await.unwrap();
    let session = engine.session("s").await.unwrap();
    let content = || Box::new(&b"content"[..]);
    let put = session.put_artifact("k", "text/plain", content()).await;
    put.unwrap();
    session.complete("").await.unwrap();
    engine.shutdown().await.unwrap();

    let kept = || LogRetention::default().max_ended_sessions(0);
    let engine = host.engine().await;
    let trimmed = engine.trim_log(kept()).await.unwrap();
    assert_eq!(trimmed.sessions, 0);
    assert_eq!(stay(&trimmed), [(SessionNeed::OtherStore, 1)]);
    engine.shutdown().await.unwrap();
    assert_eq!(store.list().unwrap().artifacts.len(), 1);
    // The store that has them removes them.
    let engine = Engine::start(host.options().artifact_store(store.clone()));
    let trimmed = engine.await.unwrap().trim_log(kept()).await.unwrap();
    assert_eq!((trimmed.sessions, trimmed.freed_bytes), (1, 7));
    assert!(store.list().unwrap().artifacts.is_empty());
}

#[tokio::test]
async fn what_is_removed_by_itself_is_removed_once_a_day() {
    let host = Host::new();
    let (engine, today) = in_days(&host).await;
    let session = engine.session("s").await.unwrap();
    notes(&session, 5).await;
    let apply = async || engine.apply_log_retention(none()).await.unwrap();
    assert_eq!(apply().await.map(|trimmed| trimmed.events), Some(7));
    notes(&session, 2).await;
    assert_eq!(apply().await, None, "it was done today");
    assert_eq!(all(&engine, &session).await.len(), 2);
    today.store(1, Ordering::Relaxed);
    assert_eq!(apply().await.map(|trimmed| trimmed.events), Some(2));
}

// The prompt was gone, and the record of the agent still named it.
#[tokio::test]
async fn a_session_stays_while_a_run_of_another_one_has_its_prompts() {
    let host = Host::new();
    let engine = host.engine().await;
    let library = engine.session("library").await.unwrap();
    let text = Box::new(&b"review it"[..]);
    library
        .put_artifact("prompt", "text/plain", text)
        .await
        .unwrap();
    library.complete("").await.unwrap();
    let session = engine.session("s").await.unwrap();
    let work = Work(|context: RunContext| async move {
        let draft = stillframe::records::AgentDraft::new().prompt("prompt");
        context.begin_agent(draft).await?.complete().await?;
        Ok(AdapterOutput::empty())
    });
    let outcome = session.execute_run(RunOptions::new("x"), work).await;
    completed(&outcome.unwrap());
    let kept = LogRetention::default().max_ended_sessions(0);
    let trimmed = engine.trim_log(kept.clone()).await.unwrap();
    assert_eq!(trimmed.sessions, 0);
    assert_eq!(stay(&trimmed), [(SessionNeed::Prompt, 1)]);
    assert!(engine.open_artifact("prompt").await.is_ok());
    // With the last run that has it, both go.
    session.complete("").await.unwrap();
    assert_eq!(engine.trim_log(kept.clone()).await.unwrap().sessions, 1);
    assert_eq!(engine.trim_log(kept).await.unwrap().sessions, 1);
    assert!(engine.artifacts(None).await.unwrap().is_empty());
}

#[tokio::test]
async fn so_many_sessions_that_have_ended_are_kept_and_those_of_kept_snapshots() {
    let host = Host::new();
    let engine = host.engine().await;
    for name in ["a", "b", "c"] {
        busy_session(&engine, name).await;
    }
    let captures = engine.session("captures").await.unwrap();
    host.write("file", "1");
    captures
        .snapshot(&host.workspace(), Label::MANUAL)
        .await
        .unwrap();
    captures.complete("").await.unwrap();
    for name in ["x", "y"] {
        busy_session(&engine, name).await;
    }
    let names = || async {
        let sessions = engine.sessions(SessionQuery::all()).await.unwrap();
        sessions
            .iter()
            .map(|s| s.id.to_string())
            .collect::<Vec<_>>()
    };
    let kept = |max| LogRetention::default().max_ended_sessions(max);
    let trimmed = engine.trim_log(kept(4)).await.unwrap();
    assert_eq!(names().await, ["y", "x", "captures", "c"]);
    assert_eq!(stay(&trimmed), []);
    let trimmed = engine.trim_log(kept(1)).await.unwrap();
    assert_eq!(names().await, ["y", "captures"]);
    assert_eq!(
        (trimmed.sessions, stay(&trimmed)),
        (2, vec![(SessionNeed::Snapshot, 1)])
    );
    // Once the snapshot is gone, and another one is the newest.
    host.write("file", "2");
    let other = engine.session("other").await.unwrap();
    other
        .snapshot(&host.workspace(), Label::MANUAL)
        .await
        .unwrap();
    engine
        .gc(&host.workspace(), GcOptions::default().keep(1))
        .await
        .unwrap();
    engine.trim_log(kept(0)).await.unwrap();
    let left = names().await;
    assert!(
        !left.contains(&"captures".to_owned()) && left.contains(&"other".to_owned()),
        "{left:?}"
    );
}

#[tokio::test]
async fn what_an_undo_is_about_stays_on_record_though_its_snapshots_are_gone() {
    let host = Host::new();
    let engine = host.engine().await;
    for name in ["one", "two"] {
        let session = engine.session(name).await.unwrap();
        let options = RunOptions::new(name).workspace(host.workspace());
        completed(
            &session
                .execute_run(options, crate::support::writes("file", name))
                .await
                .unwrap(),
        );
        session.complete("").await.unwrap();
    }
    engine
        .session("z")
        .await
        .unwrap()
        .snapshot(&host.workspace(), Label::MANUAL)
        .await
        .unwrap();
    engine
        .gc(&host.workspace(), GcOptions::default().keep(1))
        .await
        .unwrap();
    let kept = LogRetention::default().max_ended_sessions(0);
    let trimmed = engine.trim_log(kept).await.unwrap();
    assert_eq!(stay(&trimmed), [(SessionNeed::Undo, 1)]);
    let runs = engine.runs(RunQuery::all()).await.unwrap();
    let left: Vec<&str> = runs.iter().map(|run| run.input.as_str()).collect();
    assert_eq!(left, ["two"]);
    // What a clean-up has told of is still known.
    let told = EventQuery::all().of_type(EventType::WORKSPACE_CLEANED_UP);
    engine.trim_log(none()).await.unwrap();
    assert!(!engine.events(told).await.unwrap().is_empty());
}

#[tokio::test]
async fn data_that_is_kept_as_an_artifact_goes_with_its_event() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let large = note(&"x".repeat(70_000)).id("large".parse().unwrap());
    let event = session.emit(large.clone()).await.unwrap();
    let key = event.data_ref.unwrap();
    notes(&session, 1).await;
    let removed = engine.trim_log(none().max_events(1)).await.unwrap();
    assert_eq!((removed.events, removed.artifacts), (3, 1));
    assert!(removed.freed_bytes > 70_000, "{removed:?}");
    assert!(engine.artifacts(None).await.unwrap().is_empty());
    assert_eq!(
        engine.open_artifact(&key).await.err().unwrap().kind(),
        ErrorKind::NotFound
    );
    assert_eq!(
        engine.event(&event.id).await.unwrap_err().kind(),
        ErrorKind::NotFound
    );
    // Its id is unknown, so it is written again.
    let again = session.emit(large).await.unwrap();
    assert_eq!(again.sequence, 5);
    assert_eq!(
        engine.event_data(&again).await.unwrap()["text"],
        "x".repeat(70_000)
    );
}

#[tokio::test]
async fn a_transcript_begins_with_what_is_kept_and_goes_on_or_is_told() {
    use stillframe::options::TranscriptQuery;
    let host = Host::new();
    let (engine, session) = host.session().await;
    notes(&session, 6).await;
    engine.trim_log(none().max_events(2)).await.unwrap();
    let query = TranscriptQuery::session(session.id().clone());
    let mut transcript = engine.transcript(query.clone()).await.unwrap();
    let mut said = Vec::new();
    while let Some(entry) = transcript.next().await {
        if let TranscriptItem::Message {
            text: Some(text), ..
        } = entry.unwrap().item
        {
            said.push(text);
        }
    }
    assert_eq!(said, ["4", "5"]);
    let mut transcript = engine.transcript(query.after_position(1)).await.unwrap();
    let error = transcript.next().await.unwrap().unwrap_err();
    forgotten(&error);
}

// An export said "3 events" and a transcript began in the middle, as if there had never been more.
#[tokio::test]
async fn what_begins_later_than_its_run_or_session_says_so_and_nothing_else_does() {
    use stillframe::options::{ExportRequest, TranscriptQuery};
    let host = Host::new();
    let options = host.options().adapter("done", |_| {
        Ok(Work(|_: RunContext| async { Ok(AdapterOutput::empty()) }))
    });
    let engine = Engine::start(options).await.unwrap();
    let session = engine.session("s").await.unwrap();
    let work = || Work(|_: RunContext| async { Ok(AdapterOutput::empty()) });
    let named = |id: &str| RunOptions::new("x").run_id(id.parse().unwrap());
    let execute = async |id| completed(&session.execute_run(named(id), work()).await.unwrap());
    let submit = async |id| {
        let handle = session.submit_run(named(id), "done", json!(null)).await;
        completed(&handle.unwrap().wait().await.unwrap());
    };
    execute("old").await;
    execute("cut").await;
    submit("cut-in-queue").await;
    execute("young").await;
    submit("young-in-queue").await;
    let of_run = |id: &str| EventQuery::all().run(id.parse().unwrap());
    let of_session = EventQuery::session(session.id().clone());
    let oldest = async |query: &EventQuery| engine.oldest_sequence(query).await.unwrap();
    assert_eq!(oldest(&of_session).await, None, "nothing was removed");

    let number = async |id: &str, event_type: EventType| -> u64 {
        let query = of_run(id).of_type(event_type);
        engine.events(query).await.unwrap()[0].sequence
    };
    let keep_from = async |first: u64| {
        let written = all(&engine, &session).await;
        let kept = written.last().unwrap().sequence + 1 - first;
        engine.trim_log(none().max_events(kept)).await.unwrap();
        assert_eq!(all(&engine, &session).await[0].sequence, first);
    };
    let end_of_cut = number("cut", EventType::RUN_COMPLETED).await;
    let began_in_queue = number("cut-in-queue", EventType::RUN_STARTED).await;
    keep_from(end_of_cut).await;
    for (query, expected) in [
        (of_session.clone(), Some(end_of_cut)),
        (of_run("old"), Some(end_of_cut)),
        (of_run("cut"), Some(end_of_cut)),
        (of_run("cut-in-queue"), None),
        (of_run("young"), None),
        (of_run("young-in-queue"), None),
        (EventQuery::all(), None),
    ] {
        assert_eq!(oldest(&query).await, expected, "{query:?}");
    }
    keep_from(began_in_queue).await;
    assert_eq!(oldest(&of_run("cut-in-queue")).await, Some(began_in_queue));
    assert_eq!(oldest(&of_run("young")).await, None);

    let mut transcripts = Vec::new();
    for query in [
        TranscriptQuery::session(session.id().clone()),
        TranscriptQuery::run("young".parse().unwrap()),
    ] {
        let mut transcript = engine.transcript(query).await.unwrap();
        let oldest = transcript.oldest_sequence();
        let entry = transcript.next().await.unwrap().unwrap();
        assert_eq!(entry.oldest_sequence, oldest);
        transcripts.push((oldest, entry.item));
    }
    let [(of_session, _), (of_young, begun)] = &transcripts[..] else {
        panic!("there are two");
    };
    assert_eq!((*of_session, *of_young), (Some(began_in_queue), None));
    assert!(matches!(begun, TranscriptItem::RunStarted { .. }));
    for (request, expected) in [
        (
            ExportRequest::session(session.id().clone(), host.path().join("1")),
            Some(began_in_queue),
        ),
        (
            ExportRequest::run("young".parse().unwrap(), host.path().join("2")),
            None,
        ),
    ] {
        let outcome = engine.export(request).await.unwrap();
        assert_eq!(outcome.oldest_sequence, expected);
    }

    // One that is made anew begins with a later number, and lacks nothing.
    session.complete("").await.unwrap();
    let kept = LogRetention::default().max_ended_sessions(0);
    assert_eq!(engine.trim_log(kept).await.unwrap().sessions, 1);
    let anew = engine.session("s").await.unwrap();
    assert!(all(&engine, &anew).await[0].sequence > began_in_queue);
    let query = EventQuery::session(anew.id().clone());
    assert_eq!(oldest(&query).await, None);
}

// The engine dies at some time of the removal, and the next one goes on.
#[test]
fn what_is_interrupted_is_whole_and_goes_on() {
    for delay in [0, 1, 2, 4, 8, 16, 32] {
        let host = Host::new();
        let written = die_in_the_middle_of(async {
            let (engine, session) = host.session().await;
            for name in 0..6 {
                busy_session(&engine, &format!("s{name}")).await;
            }
            for _ in 0..4 {
                notes(&session, 400).await;
            }
            let written = engine.events(EventQuery::all()).await.unwrap();
            let kept = none().max_ended_sessions(0).max_events(100);
            tokio::spawn(async move { engine.trim_log(kept).await });
            tokio::time::sleep(Duration::from_millis(delay)).await;
            written
        });
        on_a_runtime(async {
            let (engine, session) = host.session().await;
            let left = all(&engine, &session).await;
            let last = left.last().unwrap().sequence;
            let numbers: Vec<u64> = left.iter().map(|event| event.sequence).collect();
            let first = numbers[0];
            assert_eq!(numbers, (first..=last).collect::<Vec<_>>());
            let outcome = engine.verify(&host.workspace()).await.unwrap();
            assert!(
                outcome.log.is_none() && outcome.artifacts.is_empty(),
                "{outcome:?}"
            );
            let kept = none().max_ended_sessions(0).max_events(100);
            engine.trim_log(kept).await.unwrap();
            let left = engine.events(EventQuery::all()).await.unwrap();
            assert_eq!(left, written[written.len() - 100..]);
            assert_eq!(engine.sessions(SessionQuery::all()).await.unwrap().len(), 1);
            engine
                .gc(&host.workspace(), GcOptions::default())
                .await
                .unwrap();
            assert!(engine.artifacts(None).await.unwrap().is_empty());
            let next = session.emit(note("next")).await.unwrap();
            assert_eq!(next.position, written.last().unwrap().position + 1);
        });
    }
}
