//! What adapters report of messages, and the transcript of it.

use std::time::Duration;

use serde_json::json;
use stillframe::events::{EventDraft, EventType};
use stillframe::options::TranscriptQuery;
use stillframe::records::{MessageDirection, TranscriptEntry, TranscriptItem};
use stillframe::steps::ToolOptions;
use stillframe::{
    AdapterError, AdapterOutput, Engine, ErrorKind, RunContext, RunOptions, RunStatus,
};

use crate::support::{Host, Work};

async fn read(engine: &Engine, query: TranscriptQuery) -> Vec<TranscriptEntry> {
    let mut transcript = engine.transcript(query).await.unwrap();
    let mut entries = Vec::new();
    while let Some(entry) = transcript.next().await {
        entries.push(entry.unwrap());
    }
    entries
}

/// The texts of the pieces of one message, in their order.
fn pieces(entries: &[TranscriptEntry], id: &str) -> Vec<String> {
    let piece = |entry: &TranscriptEntry| match &entry.item {
        TranscriptItem::Message {
            direction: MessageDirection::Streamed,
            message_id: Some(of),
            text: Some(text),
            ..
        } if of == id => Some(text.clone()),
        _ => None,
    };
    entries.iter().filter_map(piece).collect()
}

async fn talks(context: RunContext) -> Result<AdapterOutput, AdapterError> {
    let said = json!({ "role": "user", "text": "why is it red?" });
    let draft = EventDraft::new(EventType::MESSAGE_SENT, said).provider("acme");
    context.emit_draft(draft).await.unwrap();
    let call = async { Err::<(), _>(AdapterError::failed("no such file")) };
    let options = ToolOptions::new("Read");
    context.call_tool(options, call).await.unwrap_err();
    let long = json!({ "role": "assistant", "text": "because ".repeat(20_000) });
    context
        .emit(EventType::MESSAGE_RECEIVED, long)
        .await
        .unwrap();
    let used = json!({ "input_tokens": 12 });
    context
        .emit(EventType::TOKEN_USAGE_UPDATED, used)
        .await
        .unwrap();
    context
        .emit(EventType::TURN_COMPLETED, json!({}))
        .await
        .unwrap();
    context
        .emit(EventType::new("of_mine"), json!({}))
        .await
        .unwrap();
    Err(AdapterError::failed("it stays red"))
}

#[tokio::test]
async fn a_transcript_has_what_was_said_and_done_in_its_order_for_a_run_and_for_a_session() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let options = RunOptions::new("make it green");
    let outcome = session.execute_run(options, Work(talks)).await.unwrap();
    let entries = read(&engine, TranscriptQuery::run(outcome.run_id.clone())).await;
    let kinds: Vec<String> = entries
        .iter()
        .map(|entry| serde_json::to_value(entry).unwrap()["kind"].to_string())
        .collect();
    assert_eq!(
        kinds.join(" ").replace('"', ""),
        "run_started message tool_call tool_call message token_usage turn_completed run_ended"
    );
    let input = "make it green".to_owned();
    let resumed = false;
    assert_eq!(
        entries[0].item,
        TranscriptItem::RunStarted { input, resumed }
    );
    assert_eq!(entries[1].provider.as_deref(), Some("acme"));
    let TranscriptItem::Message { role, text, .. } = &entries[4].item else {
        panic!("{:?}", entries[4]);
    };
    let text = text.as_deref().unwrap();
    assert_eq!((role.as_deref(), text.len()), (Some("assistant"), 160_000));
    let ended = TranscriptItem::RunEnded {
        status: RunStatus::Failed,
        reason: Some("it stays red".to_owned()),
    };
    assert_eq!(entries[7].item, ended);

    session
        .execute_run(RunOptions::new("again"), Work(talks))
        .await
        .unwrap();
    let noted = json!({ "text": "by the host" });
    let draft = EventDraft::new(EventType::MESSAGE_SENT, noted);
    session.emit(draft).await.unwrap();
    let all = read(&engine, TranscriptQuery::session(session.id().clone())).await;
    assert_eq!((all.len(), &all[..8]), (17, &entries[..]));
    let query = TranscriptQuery::session(session.id().clone());
    let rest = read(&engine, query.after_position(all[11].position)).await;
    assert_eq!(rest, all[12..], "it goes on where a reader was");
}

#[tokio::test]
async fn a_transcript_of_nothing_is_refused_and_a_long_one_is_read_in_parts() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    for query in [
        TranscriptQuery::run("nobody".parse().unwrap()),
        TranscriptQuery::session("nobody".parse().unwrap()),
    ] {
        let error = engine.transcript(query).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }
    let draft = |n: u32| EventDraft::new(EventType::MESSAGE_SENT, json!({ "text": n.to_string() }));
    session
        .emit_batch((0..500).map(draft).collect())
        .await
        .unwrap();
    let entries = read(&engine, TranscriptQuery::session(session.id().clone())).await;
    let texts = entries.iter().map(|entry| entry.data["text"].clone());
    assert!(texts.eq((0..500).map(|n| json!(n.to_string()))));
}

#[tokio::test]
async fn pieces_of_a_message_are_put_together_and_none_is_lost() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let work = Work(|context: RunContext| async move {
        let stream = context.stream_message("m");
        let began = std::time::Instant::now();
        for number in 0..200 {
            stream.push(&format!("{number} ")).await.unwrap();
        }
        let took = began.elapsed();
        context
            .emit(EventType::TURN_COMPLETED, json!({}))
            .await
            .unwrap();
        stream.push("last word").await.unwrap();
        stream.finish().await.unwrap();

        let waits = context.stream_message("waits");
        waits.push("one ").await.unwrap();
        waits.push("two ").await.unwrap();
        tokio::time::sleep(Duration::from_millis(600)).await;
        waits.push("three ").await.unwrap();

        // Nobody ends it.
        let left = context.stream_message("left");
        left.push("some ").await.unwrap();
        left.push("and ghp").await.unwrap();
        Ok(AdapterOutput::with_data(json!(took.as_millis() as u64)))
    });
    let outcome = session
        .execute_run(RunOptions::new("talk"), work)
        .await
        .unwrap();
    let took = outcome.run.output.unwrap().data.as_u64().unwrap();
    let entries = read(&engine, TranscriptQuery::run(outcome.run_id)).await;
    let stored = pieces(&entries, "m");
    let all: String = (0..200).map(|number| format!("{number} ")).collect();
    assert_eq!(stored.concat(), all + "last word");
    let most = took / 250 + 3;
    assert!(stored.len() as u64 <= most, "{} in {took} ms", stored.len());
    let turn = |entry: &TranscriptEntry| entry.item == TranscriptItem::TurnCompleted;
    let before = entries.iter().position(turn).unwrap();
    assert!(
        pieces(&entries[..before], "m").concat().ends_with("199 "),
        "what came before an event is before it"
    );
    assert_eq!(
        pieces(&entries, "waits"),
        ["one ", "two ", "three "],
        "the second was not kept waiting"
    );
    assert_eq!(pieces(&entries, "left").concat(), "some and ghp");
    let numbers = entries
        .iter()
        .filter(|entry| entry.data["message_id"] == "m");
    let numbers: Vec<u64> = numbers
        .map(|entry| entry.data["piece"].as_u64().unwrap())
        .collect();
    assert!(
        numbers.iter().copied().eq(1..=numbers.len() as u64),
        "{numbers:?}"
    );
}

#[tokio::test]
async fn a_secret_that_comes_in_pieces_is_in_none_of_them() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let token = format!("ghp_{}", "aB3".repeat(12));
    let said = token.clone();
    let work = Work(move |context: RunContext| {
        let said = said.clone();
        async move {
            let stream = context.stream_message("m");
            for (number, piece) in ["use ", &said[..9], &said[9..20], &said[20..], " now"]
                .into_iter()
                .enumerate()
            {
                stream.push(piece).await.unwrap();
                if number % 2 == 1 {
                    // Between any two of them something else is written.
                    context
                        .emit(EventType::new("noted"), json!({}))
                        .await
                        .unwrap();
                }
                tokio::time::sleep(Duration::from_millis(260)).await;
            }
            Ok(AdapterOutput::empty())
        }
    });
    let outcome = session
        .execute_run(RunOptions::new("talk"), work)
        .await
        .unwrap();
    let entries = read(&engine, TranscriptQuery::run(outcome.run_id)).await;
    let text = pieces(&entries, "m").concat();
    assert_eq!(text, "use [redacted:github_token] now");
    let shown = format!("{entries:?}");
    assert!(
        !shown.contains(&token[..9]) && !shown.contains(&token[20..]),
        "{shown}"
    );
}

#[tokio::test]
async fn an_entry_whose_data_somebody_has_removed_has_none_and_what_follows_is_there() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let said = |text: String| EventDraft::new(EventType::MESSAGE_SENT, json!({ "text": text }));
    let large = session.emit(said("x".repeat(70_000))).await.unwrap();
    session.emit(said("after it".to_owned())).await.unwrap();
    engine
        .remove_artifact(&large.data_ref.unwrap())
        .await
        .unwrap();
    let entries = read(&engine, TranscriptQuery::session(session.id().clone())).await;
    let data: Vec<_> = entries.iter().map(|entry| entry.data.clone()).collect();
    assert_eq!(data, [json!(null), json!({ "text": "after it" })]);
}
