//! The log, and watching it.

use std::time::Duration;

use serde_json::json;
use stillframe::backends::Label;
use stillframe::events::{EventQuery, EventType};
use stillframe::{AdapterOutput, Cursor, ErrorKind, RunContext, RunOptions};

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
            "data",
            "id",
            "run_id",
            "schema_version",
            "sequence",
            "session_id",
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
