//! The log, and watching it.

use std::time::Duration;

use serde_json::json;
use stillframe::backends::Label;
use stillframe::events::{EventDraft, EventQuery, EventSource, EventType};
use stillframe::records::EventId;
use stillframe::{AdapterOutput, Cursor, Engine, ErrorKind, RunContext, RunOptions};

use crate::support::{Host, Work, all};

#[tokio::test]
async fn concurrent_events_of_many_runs_are_numbered_without_a_gap() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let mut runs = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let session = session.clone();
        runs.spawn(async move {
            let work = Work(|context: RunContext| async move {
                for number in 0..10 {
                    let kind = EventType::new("message_sent");
                    context
                        .emit(kind, json!({ "number": number }))
                        .await
                        .unwrap();
                }
                Ok(AdapterOutput::empty())
            });
            session
                .execute_run(RunOptions::new("talk"), work)
                .await
                .unwrap()
        });
    }
    runs.join_all().await;
    let sequences: Vec<u64> = all(&engine, &session)
        .await
        .iter()
        .map(|e| e.sequence)
        .collect();
    let expected: Vec<u64> = (1..=2 + 8 * 12).collect();
    assert_eq!(sequences, expected);
}

#[tokio::test]
async fn an_event_has_the_envelope_of_the_design() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    session
        .snapshot(&host.workspace(), Label::MANUAL)
        .await
        .unwrap();
    let event = all(&engine, &session).await.pop().unwrap();
    let document = serde_json::to_value(&event).unwrap();
    let mut keys: Vec<_> = document
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    keys.sort_unstable();
    assert_eq!(
        keys,
        [
            "correlation_id",
            "data",
            "data_ref",
            "id",
            "metadata",
            "position",
            "provider",
            "run_id",
            "schema_version",
            "sequence",
            "session_id",
            "source",
            "timestamp",
            "type"
        ]
    );
    assert_eq!(document["schema_version"], 1);
    assert_eq!(document["run_id"], json!(null));
    assert!(document["timestamp"].as_str().unwrap().ends_with('Z'));
    assert_eq!(document["data"]["label"], "manual");
    assert_eq!(document["data"]["backend"], "hash");
}

#[tokio::test]
async fn a_query_narrows_what_is_read() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    for _ in 0..3 {
        session
            .snapshot(&host.workspace(), Label::MANUAL)
            .await
            .unwrap();
    }
    let of = || EventQuery::session(session.id().clone());
    let sequences = |query: EventQuery| {
        let engine = engine.clone();
        async move {
            let events = engine.events(query).await.unwrap();
            events.iter().map(|e| e.sequence).collect::<Vec<_>>()
        }
    };
    assert_eq!(sequences(of()).await, [1, 2, 3, 4, 5]);
    assert_eq!(sequences(of().after(2).limit(2)).await, [3, 4]);
    assert_eq!(sequences(of().before(3)).await, [1, 2]);
    assert_eq!(
        sequences(of().of_type(EventType::SESSION_CREATED)).await,
        [1]
    );
    let fourth = all(&engine, &session).await[3].timestamp;
    assert_eq!(sequences(of().since(fourth)).await, [4, 5]);
    assert_eq!(sequences(of().run("nobody".parse().unwrap())).await, [0; 0]);
    assert_eq!(sequences(EventQuery::all()).await.len(), 5);
    let refused = engine.events(EventQuery::all().after(1)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidOptions);
}

#[tokio::test]
async fn a_stream_gives_what_was_and_what_comes_and_goes_on_after_a_restart() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let mut events = session.events(Cursor::start());
    for expected in ["session_created", "session_started"] {
        let event = events.next().await.unwrap().unwrap();
        assert_eq!(event.event_type.as_str(), expected);
    }
    session
        .snapshot(&host.workspace(), Label::MANUAL)
        .await
        .unwrap();
    let event = events.next().await.unwrap().unwrap();
    assert_eq!(event.event_type, EventType::WORKSPACE_SNAPSHOT_TAKEN);
    let cursor = events.cursor();
    assert_eq!(cursor.sequence(), 3);
    session
        .snapshot(&host.workspace(), Label::MANUAL)
        .await
        .unwrap();
    engine.shutdown().await.unwrap();
    let event = events.next().await.unwrap().unwrap();
    assert_eq!(
        event.sequence, 4,
        "what was written before the end still comes"
    );
    assert!(events.next().await.is_none(), "then it is the end");

    let engine = host.engine().await;
    let session = engine.session("s").await.unwrap();
    let mut events = session.events(cursor);
    assert_eq!(events.next().await.unwrap().unwrap().sequence, 4);
}

#[tokio::test]
async fn a_stream_sees_the_events_of_other_processes() {
    let host = Host::new();
    let (_engine, session) = host.session().await;
    let mut events = session.events(Cursor::after(2));
    // Another engine has its own connection and its own bell, as another process has.
    let other = host.engine().await;
    let same = other.session("s").await.unwrap();
    same.snapshot(&host.workspace(), Label::MANUAL)
        .await
        .unwrap();
    let event = tokio::time::timeout(Duration::from_secs(20), events.next()).await;
    assert_eq!(event.unwrap().unwrap().unwrap().sequence, 3);
}

#[tokio::test]
async fn a_slow_reader_misses_nothing() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let mut events = session.events(Cursor::start());
    let work = Work(|context: RunContext| async move {
        for _ in 0..600 {
            let kind = EventType::new("message_streamed");
            context.emit(kind, json!({})).await.unwrap();
        }
        Ok(AdapterOutput::empty())
    });
    session
        .execute_run(RunOptions::new("talk"), work)
        .await
        .unwrap();
    engine.shutdown().await.unwrap();
    let mut sequences = Vec::new();
    while let Some(event) = events.next().await {
        sequences.push(event.unwrap().sequence);
    }
    let expected: Vec<u64> = (1..=604).collect();
    assert_eq!(sequences, expected);
}

#[tokio::test]
async fn a_watch_with_a_limit_ends() {
    let host = Host::new();
    let (engine, _session) = host.session().await;
    let mut events = engine.subscribe(EventQuery::all().limit(1)).unwrap();
    assert_eq!(events.next().await.unwrap().unwrap().sequence, 1);
    assert!(events.next().await.is_none());
}

#[tokio::test]
async fn an_adapter_cannot_write_the_engines_events() {
    let host = Host::new();
    let (_engine, session) = host.session().await;
    let work = Work(|context: RunContext| async move {
        for bad in [
            "run_completed",
            "workspace_rolled_back",
            "",
            "Not Snake",
            "x\n",
        ] {
            let refused = context
                .emit(EventType::new(bad), json!({}))
                .await
                .unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidOptions, "{bad:?}");
        }
        Ok(AdapterOutput::empty())
    });
    let outcome = session
        .execute_run(RunOptions::new("lie"), work)
        .await
        .unwrap();
    assert_eq!(outcome.run.error, None);
}

fn usage(tokens: u64) -> EventDraft {
    let data = json!({ "input_tokens": tokens });
    EventDraft::new(EventType::TOKEN_USAGE_UPDATED, data)
}

#[tokio::test]
async fn a_host_writes_events_outside_of_runs_with_all_that_they_say() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let metadata = json!({ "ticket": 42 }).as_object().unwrap().clone();
    let draft = usage(7)
        .id("usage-1".parse().unwrap())
        .provider("someone")
        .correlation_id("request-1")
        .metadata(metadata.clone());
    let event = session.emit(draft.clone()).await.unwrap();
    assert_eq!(event.source, EventSource::Host);
    assert_eq!(event.id.as_str(), "usage-1");
    assert_eq!(event.provider.as_deref(), Some("someone"));
    assert_eq!(event.correlation_id.as_deref(), Some("request-1"));
    assert_eq!((event.metadata.clone(), event.sequence), (metadata, 3));
    assert_eq!(all(&engine, &session).await.pop(), Some(event.clone()));
    assert_eq!(engine.event(&event.id).await.unwrap(), event);

    let again = session.emit(draft.clone()).await.unwrap();
    assert_eq!(again, event, "the same draft is written once");
    let mut other = draft.clone();
    other.data = json!({ "input_tokens": 8 });
    let refused = session.emit(other).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict);
    assert!(refused.to_string().contains("usage-1"), "{refused}");
    assert!(
        refused.to_string().contains("nothing was written"),
        "{refused}"
    );
    let elsewhere = engine.session("elsewhere").await.unwrap();
    let refused = elsewhere.emit(draft).await.unwrap_err();
    assert_eq!(
        refused.kind(),
        ErrorKind::Conflict,
        "ids are not of a session"
    );
    assert_eq!(all(&engine, &session).await.len(), 3);

    session.complete("").await.unwrap();
    let late = session.emit(usage(9)).await.unwrap();
    assert_eq!(late.sequence, 5, "a session that has ended takes events");
}

#[tokio::test]
async fn a_batch_is_written_whole_or_not_at_all() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let drafts = (0..100).map(usage).collect();
    let written = session.emit_batch(drafts).await.unwrap();
    assert_eq!(written.len(), 100);
    assert!(
        written
            .windows(2)
            .all(|w| w[0].sequence + 1 == w[1].sequence)
    );
    assert!(session.emit_batch(Vec::new()).await.unwrap().is_empty());

    let id: EventId = "once".parse().unwrap();
    let bad = [
        (
            EventDraft::new(EventType::RUN_COMPLETED, json!({})),
            ErrorKind::InvalidOptions,
        ),
        (
            EventDraft::new(EventType::TOOL_CALL_STARTED, json!({})),
            ErrorKind::InvalidOptions,
        ),
        (
            EventDraft::new(EventType::POLICY_VIOLATION, json!({})),
            ErrorKind::InvalidOptions,
        ),
        (
            EventDraft::new(EventType::new("No Type"), json!({})),
            ErrorKind::InvalidOptions,
        ),
        (usage(1).provider(""), ErrorKind::InvalidOptions),
        (
            usage(1).correlation_id("x".repeat(201)),
            ErrorKind::InvalidOptions,
        ),
        (usage(1).provider("a\nb"), ErrorKind::InvalidOptions),
        (
            usage(1).run("run_unknown".parse().unwrap()),
            ErrorKind::NotFound,
        ),
        (
            usage(1).metadata(object("x".repeat(70_000))),
            ErrorKind::LimitExceeded,
        ),
        (
            EventDraft::new(EventType::MESSAGE_SENT, deep(101)),
            ErrorKind::InvalidOptions,
        ),
        (
            usage(1).metadata(object_of(deep(200))),
            ErrorKind::InvalidOptions,
        ),
        (usage(2).id(id.clone()), ErrorKind::Conflict),
    ];
    session.emit(usage(1).id(id)).await.unwrap();
    let before = all(&engine, &session).await;
    for (draft, kind) in bad {
        let drafts = vec![usage(1), draft.clone(), usage(2)];
        let refused = session.emit_batch(drafts).await.unwrap_err();
        assert_eq!(refused.kind(), kind, "{draft:?}: {refused}");
        assert!(!refused.touched(), "{refused}");
    }
    let many = (0..10_001).map(usage).collect();
    let refused = session.emit_batch(many).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::LimitExceeded);
    let large = json!("x".repeat(16 * 1024 * 1024 - 2));
    let large = EventDraft::new(EventType::MESSAGE_SENT, large);
    let refused = session.emit_batch(vec![large; 5]).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::LimitExceeded);
    assert_eq!(all(&engine, &session).await, before, "nothing was written");
    assert!(engine.artifacts(None).await.unwrap().is_empty());

    // As deep as it may be, it is read again.
    let deepest = EventDraft::new(EventType::MESSAGE_SENT, deep(100));
    let written = session.emit(deepest).await.unwrap();
    assert_eq!(engine.event(&written.id).await.unwrap(), written);
}

/// Lists in each other.
fn deep(levels: usize) -> serde_json::Value {
    (1..levels).fold(json!([]), |inner, _| json!([inner]))
}

fn object_of(value: serde_json::Value) -> serde_json::Map<String, serde_json::Value> {
    json!({ "value": value }).as_object().unwrap().clone()
}

fn object(text: String) -> serde_json::Map<String, serde_json::Value> {
    json!({ "text": text }).as_object().unwrap().clone()
}

#[tokio::test]
async fn large_data_is_an_artifact_and_too_large_data_is_refused() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let text = "x".repeat(64 * 1024);
    let draft = EventDraft::new(EventType::MESSAGE_RECEIVED, json!({ "text": text }));
    let draft = draft.id("large".parse().unwrap());
    let event = session.emit(draft.clone()).await.unwrap();
    let key = event.data_ref.clone().expect("an artifact has the data");
    assert!(event.data.is_null());
    assert_eq!(engine.event_data(&event).await.unwrap(), draft.data);
    let artifacts = engine.artifacts(Some(session.id())).await.unwrap();
    let keys: Vec<&str> = artifacts.iter().map(|a| a.key.as_str()).collect();
    assert_eq!(keys, [key.as_str()]);
    assert_eq!(artifacts[0].content_type, "application/json");

    assert_eq!(session.emit(draft.clone()).await.unwrap(), event);
    assert_eq!(engine.artifacts(None).await.unwrap().len(), 1);
    let mut other = draft;
    other.data = json!({ "text": "y".repeat(70_000) });
    let refused = session.emit(other).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict);
    assert_eq!(engine.event_data(&event).await.unwrap()["text"], text);
    assert_eq!(engine.artifacts(None).await.unwrap().len(), 1);

    // Two bytes of it are quotation marks.
    let fits = json!("x".repeat(64 * 1024 - 2));
    let small = EventDraft::new(EventType::MESSAGE_RECEIVED, fits.clone());
    let small = session.emit(small).await.unwrap();
    assert_eq!((small.data, small.data_ref), (fits, None));
    let most = json!("x".repeat(16 * 1024 * 1024 - 2));
    let most = EventDraft::new(EventType::MESSAGE_RECEIVED, most);
    assert!(session.emit(most).await.unwrap().data_ref.is_some());
    let before = all(&engine, &session).await;
    let huge = json!("x".repeat(17 * 1024 * 1024));
    let huge = EventDraft::new(EventType::MESSAGE_RECEIVED, huge);
    let refused = session.emit(huge).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::LimitExceeded, "{refused}");
    assert_eq!(all(&engine, &session).await, before);
}

#[tokio::test]
async fn an_adapter_tells_of_the_tools_of_its_agent() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let work = Work(|context: RunContext| async move {
        let call = json!({ "call_id": "c1", "tool_name": "Edit" });
        let told = context
            .emit(EventType::TOOL_CALL_STARTED, call.clone())
            .await?;
        assert_eq!(told.source, EventSource::Adapter);
        let ended = EventDraft::new(EventType::TOOL_CALL_COMPLETED, call).provider("agent");
        let turn = EventDraft::new(EventType::TURN_COMPLETED, json!({}));
        let written = context.emit_batch(vec![ended, turn]).await?;
        assert!(
            written
                .iter()
                .all(|e| e.run_id == Some(context.run_id.clone()))
        );
        let other = usage(1).run("another".parse().unwrap());
        let refused = context.emit_draft(other).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidOptions, "{refused}");
        Ok(AdapterOutput::empty())
    });
    let options = RunOptions::new("an agent").run_id("first".parse().unwrap());
    let outcome = session.execute_run(options, work).await.unwrap();
    assert_eq!(outcome.run.error, None);
    let later = session
        .emit(usage(3).run(outcome.run_id.clone()))
        .await
        .unwrap();
    let query = EventQuery::all()
        .run(outcome.run_id)
        .of_type(EventType::TOOL_CALL_STARTED)
        .of_type(EventType::TOOL_CALL_COMPLETED)
        .of_type(EventType::TOKEN_USAGE_UPDATED);
    let told = engine.events(query).await.unwrap();
    assert_eq!(told.len(), 3);
    assert_eq!(told[2], later);
}

#[tokio::test]
async fn a_stream_of_all_sessions_goes_on_after_a_restart() {
    let host = Host::new();
    let (engine, one) = host.session().await;
    let two = engine.session("two").await.unwrap();
    for number in 0..20 {
        let session = [&one, &two][number % 2];
        session.emit(usage(number as u64)).await.unwrap();
    }
    let mut events = engine.subscribe(EventQuery::all()).unwrap();
    assert_eq!(events.position(), 0);
    let mut seen = Vec::new();
    for _ in 0..13 {
        seen.push(events.next().await.unwrap().unwrap());
    }
    let position = events.position();
    assert_eq!(position, seen[12].position);
    drop(events);
    engine.shutdown().await.unwrap();

    let engine = Engine::start(host.options()).await.unwrap();
    let two = engine.session("two").await.unwrap();
    two.emit(usage(99)).await.unwrap();
    let later = EventQuery::all().after_position(position);
    let mut events = engine.subscribe(later).unwrap();
    assert_eq!(events.position(), position);
    let everything = engine.events(EventQuery::all()).await.unwrap();
    while seen.len() < everything.len() {
        seen.push(events.next().await.unwrap().unwrap());
    }
    assert_eq!(
        seen, everything,
        "nothing is missed and nothing comes twice"
    );

    let last = everything.last().unwrap().position;
    let future = EventQuery::all().after_position(last + 1);
    let mut events = engine.subscribe(future.clone()).unwrap();
    let refused = events.next().await.unwrap().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidOptions, "{refused}");
    let refused = engine.events(future).await.unwrap_err();
    assert!(refused.to_string().contains(&last.to_string()), "{refused}");
}

#[tokio::test]
async fn a_query_waits_for_the_first_event_that_matches() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let long = Duration::from_secs(60);
    let wanted = EventQuery::all()
        .of_type(EventType::TURN_COMPLETED)
        .wait(long);
    let asked = {
        let (engine, wanted) = (engine.clone(), wanted.clone());
        tokio::spawn(async move { engine.events(wanted).await })
    };
    session.emit(usage(1)).await.unwrap();
    let turn = EventDraft::new(EventType::TURN_COMPLETED, json!({}));
    let turn = session.emit(turn).await.unwrap();
    let expected = std::slice::from_ref(&turn);
    assert_eq!(asked.await.unwrap().unwrap(), expected);
    assert_eq!(engine.events(wanted).await.unwrap(), expected);
    let short = Duration::from_millis(1);
    let none = EventQuery::all().after_position(turn.position).wait(short);
    assert!(engine.events(none).await.unwrap().is_empty());
    // A session may be waited for that is still to come.
    let unborn = EventQuery::session("unborn".parse().unwrap());
    let refused = engine.events(unborn.clone()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotFound);
    let asked = {
        let engine = engine.clone();
        tokio::spawn(async move { engine.events(unborn.wait(long)).await })
    };
    engine.session("unborn").await.unwrap();
    let first = asked.await.unwrap().unwrap();
    assert_eq!(first[0].event_type, EventType::SESSION_CREATED);
}
