//! The records of agents that work in a run.

use std::io::{Cursor, Read as _};

use serde_json::json;
use stillframe::backends::Label;
use stillframe::events::EventType;
use stillframe::options::GcOptions;
use stillframe::records::{AgentDraft, AgentStatus, ArtifactDraft};
use stillframe::{AdapterError, AdapterOutput, ErrorKind, RunContext, RunOptions};

use crate::support::{Host, Work, completed};

async fn has_agents(context: RunContext) -> Result<AdapterOutput, AdapterError> {
    for key in ["prompt-1", "prompt-2"] {
        let draft = ArtifactDraft::new(key, "text/plain");
        let text = format!("the text of {key}");
        context
            .put_artifact(draft, Box::new(Cursor::new(text)))
            .await?;
    }
    let draft = AgentDraft::new()
        .name("reviewer")
        .model("large-1")
        .prompt("prompt-1");
    let mut reviewer = context.begin_agent(draft).await?;
    reviewer.used_tokens(100, 7).await?;
    reviewer.add_prompt("prompt-2").await?;
    reviewer.used_tokens(11, 0).await?;
    let unknown = reviewer.add_prompt("prompt-3").await.unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::NotFound);
    assert!(unknown.to_string().contains("prompt-3"), "{unknown}");

    let phase = context.phase("edit");
    let step = phase.step("one", |step| async move {
        let editor = step
            .run
            .begin_agent(AgentDraft::new().name("editor"))
            .await?;
        // By an adapter that reports for its agent.
        let used = json!({ "agent_id": editor.id(), "input_tokens": 5, "output_tokens": 1 });
        step.run.emit(EventType::TOKEN_USAGE_UPDATED, used).await?;
        editor.fail("no such file").await?;
        Ok(())
    });
    step.await?;
    reviewer.complete().await?;
    drop(context.begin_agent(AgentDraft::new()).await?);
    let long = "n".repeat(201);
    for (draft, kind) in [
        (AgentDraft::new().name(""), ErrorKind::InvalidOptions),
        (AgentDraft::new().model(long), ErrorKind::InvalidOptions),
        (AgentDraft::new().prompt("prompt-3"), ErrorKind::NotFound),
        (
            (0..1_001).fold(AgentDraft::new(), |draft, _| draft.prompt("prompt-1")),
            ErrorKind::LimitExceeded,
        ),
    ] {
        let refused = context.begin_agent(draft).await.unwrap_err();
        assert_eq!(refused.kind(), kind, "{refused}");
    }
    Ok(AdapterOutput::empty())
}

#[tokio::test]
async fn an_agent_is_on_record_with_its_model_prompts_tokens_and_end() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let options = RunOptions::new("review").workspace(host.workspace());
    let outcome = session
        .execute_run(options, Work(has_agents))
        .await
        .unwrap();
    completed(&outcome);
    let agents = engine.agents(&outcome.run_id).await.unwrap();
    let told: Vec<_> = agents
        .iter()
        .map(|of| {
            let tokens = (of.tokens.input_tokens, of.tokens.output_tokens);
            (of.name.as_deref(), of.status, tokens, of.ended_at.is_some())
        })
        .collect();
    let expected = [
        (Some("reviewer"), AgentStatus::Completed, (111, 7), true),
        (Some("editor"), AgentStatus::Failed, (5, 1), true),
        (None, AgentStatus::Interrupted, (0, 0), true),
    ];
    assert_eq!(told, expected);
    assert_eq!(agents[0].model.as_deref(), Some("large-1"));
    assert_eq!(agents[0].prompts, ["prompt-1", "prompt-2"]);
    assert_eq!(agents[1].error.as_ref().unwrap().message, "no such file");
    let shown = engine.export_run(outcome.run_id.as_str()).await.unwrap();
    assert_eq!(
        agents[1].step_id.as_ref(),
        Some(&shown.phases[0].steps[0].id)
    );
    assert_eq!(agents[0].step_id, None);
    assert_eq!(shown.agents, agents);
    assert_eq!(shown.run.total_agents, 3);
    assert_eq!(shown.run.total_tokens.input_tokens, 116);
    let document = serde_json::to_value(&agents[0]).unwrap();
    assert_eq!(document["input_tokens"], 111);
    assert_eq!(document["agent_id"], agents[0].id.as_str());
    let unknown = engine.agents(&"nobody".parse().unwrap()).await;
    assert_eq!(unknown.unwrap_err().kind(), ErrorKind::NotFound);

    // A clean-up of all that the run left keeps what the record names.
    host.write("new", "x");
    session
        .snapshot(&host.workspace(), Label::MANUAL)
        .await
        .unwrap();
    let all_but_one = GcOptions::default().keep(1).max_bytes(1);
    engine.gc(&host.workspace(), all_but_one).await.unwrap_err();
    let mut text = String::new();
    let mut prompt = engine.open_artifact("prompt-1").await.unwrap();
    prompt.read_to_string(&mut text).unwrap();
    assert_eq!(text, "the text of prompt-1");
}
