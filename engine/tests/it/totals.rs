//! What a run amounts to: its calls of tools, tokens and iterations.

use serde_json::json;
use stillframe::events::{EventDraft, EventType};
use stillframe::options::RunQuery;
use stillframe::records::RunRecord;
use stillframe::steps::ToolOptions;
use stillframe::{AdapterError, AdapterOutput, RunContext, RunId, RunOptions};

use crate::support::{Host, Work, completed, die_in_the_middle_of, on_a_runtime};

fn id() -> RunId {
    "ticket-42".parse().unwrap()
}

fn totals(run: &RunRecord) -> (u64, u64, u64, u64) {
    let tokens = run.total_tokens;
    (
        run.total_tool_calls,
        tokens.input_tokens,
        tokens.output_tokens,
        run.total_iterations,
    )
}

async fn works(context: &RunContext, round: u32) -> Result<(), AdapterError> {
    let phase = context.phase("edit").iteration(round);
    phase.step("one", |_| async { Ok(()) }).await?;
    let call = context.call_tool(ToolOptions::new("Read"), async { Ok(()) });
    call.await?;
    let used = json!({ "input_tokens": 100, "output_tokens": 7, "model": "m" });
    let draft = EventDraft::new(EventType::TOKEN_USAGE_UPDATED, used);
    let draft = draft.id(format!("usage-{round}").parse().unwrap());
    for _ in 0..2 {
        context.emit_draft(draft.clone()).await?;
    }
    Ok(())
}

#[test]
fn totals_are_those_of_the_whole_run_though_it_was_killed_in_between() {
    let host = Host::new();
    let options = || RunOptions::new("count").run_id(id());
    die_in_the_middle_of(async {
        let (engine, session) = host.session().await;
        let (done, is_done) = tokio::sync::oneshot::channel();
        let done = std::sync::Mutex::new(Some(done));
        let work = Work(move |context: RunContext| {
            let done = done.lock().unwrap().take();
            async move {
                works(&context, 0).await?;
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
        let cut = engine.find_run("ticket-42").await.unwrap();
        assert_eq!(totals(&cut), (1, 100, 7, 1));
        let work = Work(|context: RunContext| async move {
            works(&context, 0).await?;
            works(&context, 1).await?;
            context.phase("rest").skip("nothing is left").await?;
            Ok(AdapterOutput::empty())
        });
        completed(&session.execute_run(options(), work).await.unwrap());
        // A host may know it later than the adapter.
        let used = json!({ "input_tokens": 1, "output_tokens": 2 });
        let draft = EventDraft::new(EventType::TOKEN_USAGE_UPDATED, used.clone());
        session.emit(draft.run(id())).await.unwrap();
        let of_session = EventDraft::new(EventType::TOKEN_USAGE_UPDATED, used);
        session.emit(of_session).await.unwrap();

        let run = engine.find_run("ticket-42").await.unwrap();
        assert_eq!(totals(&run), (3, 201, 16, 2));
        let listed = engine.runs(RunQuery::all()).await.unwrap();
        assert_eq!(listed, std::slice::from_ref(&run));
        let shown = engine.export_run("ticket-42").await.unwrap();
        assert_eq!(shown.run, run);
        let document = serde_json::to_value(&run).unwrap();
        assert_eq!(document["total_tool_calls"], 3);
        let tokens = json!({ "input_tokens": 201, "output_tokens": 16 });
        assert_eq!(document["total_tokens"], tokens);
        assert_eq!(document["total_iterations"], 2);
        engine.shutdown().await.unwrap();
    });
}
