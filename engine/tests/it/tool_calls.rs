//! The records of calls of tools, of the engine's own and of those that an adapter tells of.

use std::io::Read as _;

use serde_json::{Value, json};
use stillframe::events::{EventDraft, EventSource, EventType};
use stillframe::options::{GcOptions, TranscriptQuery};
use stillframe::records::{ToolCallRecord, ToolCallStatus, TranscriptItem};
use stillframe::steps::ToolOptions;
use stillframe::{AdapterError, AdapterOutput, Engine, ErrorKind, RunContext, RunId, RunOptions};

use crate::support::{Host, Work, all, completed, die_in_the_middle_of, on_a_runtime};

async fn content(engine: &Engine, key: &Option<String>) -> String {
    let mut content = engine.open_artifact(key.as_ref().unwrap()).await.unwrap();
    let mut text = String::new();
    content.read_to_string(&mut text).unwrap();
    text
}

fn line(call: &ToolCallRecord) -> (Option<&str>, ToolCallStatus, Option<&Value>, Option<&Value>) {
    let name = call.tool_name.as_deref();
    (name, call.status, call.input.as_ref(), call.output.as_ref())
}

async fn uses_tools(context: RunContext) -> Result<AdapterOutput, AdapterError> {
    let path = json!({ "path": "src/lib.rs" });
    let read = ToolOptions::new("Read").input(path);
    let lines = context.call_tool_recorded(read.clone(), async { Ok(json!({ "lines": 7 })) });
    assert_eq!(lines.await?.value["lines"], 7);
    let phase = context.phase("edit");
    let step = phase.step("one", |step| async move {
        let text = async { Ok("line\n".repeat(1_000)) };
        let read = ToolOptions::new("Read");
        step.run.call_tool_recorded(read, text).await?;
        Ok(())
    });
    step.await?;
    let failed = context.call_tool(read.clone(), async {
        Err::<(), _>(AdapterError::failed("no such file"))
    });
    failed.await.unwrap_err();
    context.call_tool(read, async { Ok(1) }).await?;
    Ok(AdapterOutput::empty())
}

#[tokio::test]
async fn a_call_of_the_engines_is_on_record_with_what_the_tool_was_given_and_returned() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let outcome = session.execute_run(RunOptions::new("use tools"), Work(uses_tools));
    let outcome = outcome.await.unwrap();
    completed(&outcome);
    let calls = engine.tool_calls(&outcome.run_id).await.unwrap();
    let (path, lines) = (json!({ "path": "src/lib.rs" }), json!({ "lines": 7 }));
    let (done, failed) = (ToolCallStatus::Completed, ToolCallStatus::Failed);
    let lines_of: Vec<_> = calls.iter().map(line).collect();
    let expected = [
        (Some("Read"), done, Some(&path), Some(&lines)),
        (Some("Read"), done, None, None),
        (Some("Read"), failed, Some(&path), None),
        (Some("Read"), done, Some(&path), None),
    ];
    assert_eq!(lines_of, expected);
    assert_eq!(calls[0].output_size_bytes, Some(11));
    assert_eq!(calls[1].output_size_bytes, Some(5_000));
    let summary = calls[1].output_summary.as_deref().unwrap();
    assert_eq!(summary, "line\n".repeat(48), "240 characters");
    let text = content(&engine, &calls[1].output_ref).await;
    assert_eq!(text, "line\n".repeat(1_000));
    assert_eq!(calls[2].error.as_ref().unwrap().message, "no such file");
    let shown = engine.export_run(outcome.run_id.as_str()).await.unwrap();
    assert_eq!(shown.tool_calls, calls);
    let steps: Vec<_> = calls.iter().map(|call| call.step_id.clone()).collect();
    let own = Some(shown.phases[0].steps[0].id.clone());
    assert_eq!(steps, [None, own, None, None]);
    for call in &calls {
        assert_eq!(call.source, EventSource::Engine);
        assert!(call.started_at < call.ended_at && call.started_at.is_some());
    }
    let events = all(&engine, &session).await;
    let ends = events
        .iter()
        .filter(|event| event.event_type == EventType::TOOL_CALL_COMPLETED);
    let refs: Vec<_> = ends
        .map(|event| event.data["output_ref"].as_str())
        .collect();
    assert_eq!(refs, [None, calls[1].output_ref.as_deref(), None]);
    let error = engine
        .tool_calls(&"nobody".parse().unwrap())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

/// What a foreign agent did, as its adapter tells it.
async fn tells_of_tools(context: RunContext) -> Result<AdapterOutput, AdapterError> {
    let started = EventType::TOOL_CALL_STARTED;
    let (done, failed) = (EventType::TOOL_CALL_COMPLETED, EventType::TOOL_CALL_FAILED);
    let diff = "+x\n".repeat(1_000);
    let events = [
        (
            &started,
            json!({ "call_id": "1", "tool_name": "Edit", "input": { "diff": diff } }),
        ),
        (&done, json!({ "call_id": "1", "output": "ok", "took": 3 })),
        (
            &started,
            json!({ "call_id": "2", "tool_name": "Bash", "input": "ls" }),
        ),
        (
            &failed,
            json!({ "call_id": "2", "kind": "Io", "reason": "no shell" }),
        ),
        (
            &done,
            json!({ "call_id": "3", "tool_name": "Grep", "output": "x".repeat(100_000) }),
        ),
        (&started, json!({ "tool_name": "Nameless" })),
        (&started, json!({ "call_id": "4", "tool_name": "Bash" })),
    ];
    for (number, (event_type, data)) in events.into_iter().enumerate() {
        let id = format!("told-{number}").parse().unwrap();
        let draft = EventDraft::new(event_type.clone(), data).id(id);
        let first = context.emit_draft(draft.clone()).await?;
        assert_eq!(context.emit_draft(draft).await?, first, "it is told once");
    }
    // The id of a call of the engine's is no adapter's to use.
    context
        .call_tool(ToolOptions::new("Read"), async { Ok(()) })
        .await?;
    Ok(AdapterOutput::empty())
}

#[tokio::test]
async fn a_call_that_an_adapter_tells_of_is_on_record_once_and_what_is_large_is_an_artifact() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let options = RunOptions::new("tell").workspace(host.workspace());
    let outcome = session.execute_run(options, Work(tells_of_tools));
    let outcome = outcome.await.unwrap();
    completed(&outcome);
    let calls = engine.tool_calls(&outcome.run_id).await.unwrap();
    let (ok, ls) = (json!("ok"), json!("ls"));
    let (done, failed) = (ToolCallStatus::Completed, ToolCallStatus::Failed);
    let lines: Vec<_> = calls.iter().map(line).collect();
    let expected = [
        (Some("Edit"), done, None, Some(&ok)),
        (Some("Bash"), failed, Some(&ls), None),
        (Some("Grep"), done, None, None),
        (Some("Bash"), ToolCallStatus::Interrupted, None, None),
        (Some("Read"), done, None, None),
    ];
    assert_eq!(lines, expected);
    let error = calls[1].error.as_ref().unwrap();
    assert_eq!(
        (error.kind.as_deref(), &*error.message),
        (Some("Io"), "no shell")
    );
    assert_eq!(
        (calls[2].started_at, calls[2].output_size_bytes),
        (None, Some(100_000))
    );
    assert!(calls[3].ended_at.is_some(), "it ended with its run");
    assert_eq!(calls[0].source, EventSource::Adapter);

    // A clean-up of everything leaves what the log names.
    let input: Value = serde_json::from_str(&content(&engine, &calls[0].input_ref).await).unwrap();
    assert_eq!(input["diff"], "+x\n".repeat(1_000));
    host.write("new", "x");
    let label = stillframe::backends::Label::MANUAL;
    session.snapshot(&host.workspace(), label).await.unwrap();
    let all_but_one = GcOptions::default().keep(1).max_bytes(1);
    engine.gc(&host.workspace(), all_but_one).await.unwrap_err();
    let left = engine.snapshots(&host.workspace()).await.unwrap();
    assert_eq!(left.len(), 1, "no snapshot of the run is left");
    assert_eq!(
        content(&engine, &calls[2].output_ref).await,
        "x".repeat(100_000)
    );

    let events = all(&engine, &session).await;
    let data = |id: &str| {
        &events
            .iter()
            .find(|event| event.id.as_str() == id)
            .unwrap()
            .data
    };
    let begun = data("told-0");
    assert_eq!(begun["input_ref"].as_str(), calls[0].input_ref.as_deref());
    assert_eq!(
        begun["input_size_bytes"],
        calls[0].input_size_bytes.unwrap()
    );
    assert_eq!(
        begun["input_summary"],
        "{\"diff\":\"".to_owned() + &"+x\\n".repeat(57) + "+x\\"
    );
    assert_eq!(begun.get("input"), None);
    assert_eq!(
        data("told-1"),
        &json!({ "call_id": "1", "output": "ok", "took": 3 })
    );

    let query = TranscriptQuery::run(outcome.run_id.clone());
    let mut transcript = engine.transcript(query).await.unwrap();
    let mut inputs = Vec::new();
    while let Some(entry) = transcript.next().await {
        if let TranscriptItem::ToolCall { input, .. } = entry.unwrap().item {
            inputs.extend(input);
        }
    }
    assert_eq!(inputs, ["ls"]);
}

fn id() -> RunId {
    "ticket-42".parse().unwrap()
}

#[test]
fn a_call_that_was_cut_off_is_interrupted_and_begins_anew_when_the_run_goes_on() {
    let host = Host::new();
    let options = || RunOptions::new("tell").run_id(id()).resumable(true);
    let begins = |context: RunContext| async move {
        let data = json!({ "call_id": "1", "tool_name": "Bash", "input": "make" });
        context.emit(EventType::TOOL_CALL_STARTED, data).await
    };
    die_in_the_middle_of(async {
        let (engine, session) = host.session().await;
        let (done, is_done) = tokio::sync::oneshot::channel();
        let done = std::sync::Mutex::new(Some(done));
        let work = Work(move |context: RunContext| {
            let done = done.lock().unwrap().take();
            async move {
                begins(context).await?;
                let _ = done.unwrap().send(());
                std::future::pending().await
            }
        });
        let options = options();
        tokio::spawn(async move {
            let _engine = engine;
            session.execute_run(options, work).await
        });
        is_done.await.unwrap();
    });
    on_a_runtime(async {
        let (engine, session) = host.session().await;
        let cut = engine.tool_calls(&id()).await.unwrap();
        assert_eq!(cut[0].status, ToolCallStatus::Interrupted);
        let work = Work(move |context: RunContext| async move {
            let begun = begins(context.clone()).await?;
            let data = json!({ "call_id": "1", "output": "made" });
            context.emit(EventType::TOOL_CALL_COMPLETED, data).await?;
            Ok(AdapterOutput::with_data(json!(begun.timestamp)))
        });
        let outcome = session.execute_run(options(), work).await.unwrap();
        completed(&outcome);
        let calls = engine.tool_calls(&id()).await.unwrap();
        let (make, made) = (json!("make"), json!("made"));
        let expected = (
            Some("Bash"),
            ToolCallStatus::Completed,
            Some(&make),
            Some(&made),
        );
        assert_eq!((calls.len(), line(&calls[0])), (1, expected));
        let began = outcome.run.output.unwrap().data;
        assert_eq!(json!(calls[0].started_at), began, "it was begun once more");
        engine.shutdown().await.unwrap();
    });
}
