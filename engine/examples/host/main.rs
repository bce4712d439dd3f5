//! A host from start to end: a thousand runs wait in a queue and are done, a subscriber dies and
//! goes on, a policy stops a run, a person is asked, and a transcript is written.
//!
//! ```sh
//! cargo run -p stillframe --example host
//! ```
//!
//! The guide explains it. It keeps one thing of its own: how far its subscriber has read.

mod agents;

use std::error::Error;
use std::fs;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use serde_json::json;
use stillframe::events::{EventQuery, EventType};
use stillframe::options::{RunQuery, TranscriptQuery};
use stillframe::policy::{ALLOW, Policy, PolicyDecision, PolicyRequest, PolicySubject, RunLimits};
use stillframe::records::QuestionId;
use stillframe::{
    CommandAdapter, Engine, EngineOptions, ErrorKind, Event, Priority, RunOptions, RunStatus,
    SessionId, WorkspaceOptions,
};

use agents::{Deployment, Model};

type Answer<T> = Result<T, Box<dyn Error>>;

const SESSIONS: usize = 50;
const RUNS: usize = 1_000;

#[tokio::main]
async fn main() -> Answer<()> {
    let scratch = tempfile::tempdir()?;
    let workspace = scratch.path().join("workspace");
    fs::create_dir(&workspace)?;
    fs::write(workspace.join("README"), "a project\n")?;
    let engine = Engine::start(
        EngineOptions::default()
            .state_dir(scratch.path().join("state"))
            .max_running(16)
            .policy(Careful)
            // Before the engine starts, so that it can begin what an earlier process accepted.
            .adapter("model", |input| Ok(serde_json::from_value::<Model>(input)?))
            .adapter("shell", |input| {
                let script: String = serde_json::from_value(input)?;
                Ok(CommandAdapter::new("sh").arg("-c").arg(script))
            })
            .adapter("deployment", |_| Ok(Deployment)),
    )
    .await?;
    for name in &engine.recovery().unknown_adapters {
        eprintln!("runs wait for the adapter {name:?}, which this host does not have");
    }
    let mut desk = Desk {
        engine: engine.clone(),
        place: scratch.path().join("position"),
        ended: 0,
    };
    submit(&engine).await?;
    // It dies after a while. What it has handled is in `position`, and the engine goes on without
    // it.
    desk.follow(RUNS / 3).await?;
    println!("the subscriber died at position {}", desk.position());
    desk.follow(RUNS).await?;
    println!("{} runs have ended", desk.ended);
    guarded(&engine, &workspace).await?;
    deployed(&engine, &mut desk).await?;
    reported(&engine, scratch.path().join("transcript.jsonl")).await?;
    engine.shutdown().await?;
    Ok(())
}

/// Says what a run may do: whether it may use a shell, a person decides.
struct Careful;

impl Policy for Careful {
    async fn decide(&self, request: PolicyRequest) -> PolicyDecision {
        match request.subject {
            PolicySubject::ToolCall { tool_name, .. } if tool_name == "Bash" => {
                PolicyDecision::ask("may it use a shell?")
            }
            _ => PolicyDecision::Allow,
        }
    }
}

/// Puts a thousand runs into the queue.
async fn submit(engine: &Engine) -> Answer<()> {
    for number in 0..RUNS {
        let session = engine
            .session(format!("ticket-{}", number % SESSIONS))
            .await?;
        let options = RunOptions::new(format!("answer question {number}"))
            // A host that died here submits all of them again, and each is queued once.
            .run_id(format!("question-{number}").parse()?)
            .priority(Priority::Batch)
            .limits(RunLimits::default().max_tokens(10_000));
        let input = json!({ "prompt": format!("what is {number} times {number}?") });
        session.submit_run(options, "model", input).await?;
    }
    Ok(())
}

/// Reads the events of all sessions, and remembers how far it is.
struct Desk {
    engine: Engine,
    place: PathBuf,
    ended: usize,
}

impl Desk {
    /// Where to go on; zero: at the first event.
    fn position(&self) -> u64 {
        let saved = fs::read_to_string(&self.place).unwrap_or_default();
        saved.parse().unwrap_or(0)
    }

    /// Handles events until so many runs have ended.
    async fn follow(&mut self, ended: usize) -> Answer<()> {
        let query = EventQuery::all().after_position(self.position());
        let mut events = self.engine.subscribe(query)?;
        while self.ended < ended {
            let event = events.next().await.ok_or("the engine has stopped")??;
            self.handle(&event).await?;
            // After the event is handled: what a crash comes between is handled again.
            fs::write(&self.place, event.position.to_string())?;
        }
        Ok(())
    }

    async fn handle(&mut self, event: &Event) -> Answer<()> {
        let ends = [
            EventType::RUN_COMPLETED,
            EventType::RUN_FAILED,
            EventType::RUN_CANCELLED,
            EventType::RUN_TIMEOUT,
        ];
        if ends.contains(&event.event_type) {
            self.ended += 1;
        } else if event.event_type == EventType::QUESTION_ASKED {
            println!("asked: {}", event.data["question"]);
            let id: QuestionId = serde_json::from_value(event.data["question_id"].clone())?;
            match self.engine.answer(&id, ALLOW).await {
                // It was answered before a crash.
                Err(e) if e.kind() == ErrorKind::Conflict => {}
                answered => drop(answered?),
            }
        }
        Ok(())
    }
}

/// A run that a limit stops: what it did is found in the comparison, and taken back.
async fn guarded(engine: &Engine, workspace: &std::path::Path) -> Answer<()> {
    let session = engine.session("guarded").await?;
    let workspace_options = WorkspaceOptions::at(workspace).retain_content(true);
    let options = RunOptions::new("tidy up")
        .workspace(workspace_options.rollback_on_failure(true))
        .limits(RunLimits::default().forbid([".github/**"]));
    let script = json!("mkdir .github && echo 'on: push' > .github/ci.yml");
    let run = session.submit_run(options, "shell", script).await?;
    let outcome = run.wait().await?;
    let failure = outcome.run.error.ok_or("it should have failed")?;
    println!("a run is {}: {}", outcome.run.status, failure.message);
    assert!(!workspace.join(".github").exists(), "it is rolled back");
    Ok(())
}

/// A run whose tool a person has to allow: the policy asks, and the subscriber answers.
async fn deployed(engine: &Engine, desk: &mut Desk) -> Answer<()> {
    let session = engine.session("release").await?;
    let options = RunOptions::new("deploy");
    let run = session.submit_run(options, "deployment", json!({})).await?;
    // The run that a limit stopped, and this one.
    desk.follow(RUNS + 2).await?;
    let outcome = run.wait().await?;
    let output = outcome.run.output.ok_or("it was allowed")?;
    println!("the deployment says {}", output.data);
    Ok(())
}

/// What is on record at the end: counted, and one session's transcript as JSON lines.
async fn reported(engine: &Engine, to: PathBuf) -> Answer<()> {
    let runs = engine.runs(RunQuery::all()).await?;
    let is_completed = |status| status == RunStatus::Completed;
    let completed = runs.iter().filter(|run| is_completed(run.status)).count();
    println!("{completed} of {} runs are completed", runs.len());
    assert_eq!(completed, RUNS + 1, "all but the one that a limit stopped");

    let session: SessionId = "ticket-0".parse()?;
    let mut transcript = engine.transcript(TranscriptQuery::session(session)).await?;
    let mut file = BufWriter::new(fs::File::create(&to)?);
    let mut entries = 0;
    while let Some(entry) = transcript.next().await {
        serde_json::to_writer(&mut file, &entry?)?;
        file.write_all(b"\n")?;
        entries += 1;
    }
    file.flush()?;
    println!("the transcript of ticket-0 has {entries} entries");
    Ok(())
}
