//! The schemas of `docs/schema`, held against what the program and the library really write. Every
//! document that another test here reads is held against them too.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use serde_json::{Value, json};
use stillframe::events::{EventDraft, EventQuery, EventType};
use stillframe::records::Question;
use stillframe::steps::{CommitOptions, RetryPolicy, StepOptions, ToolOptions};
use stillframe::{
    Adapter, AdapterError, AdapterOutput, Engine, EngineOptions, RunContext, RunOptions, RunStatus,
    WorkspaceOptions,
};
use stillframe_tests::schema::Schemas;
use stillframe_tests::{TestWorkspace, binary};

/// A workspace, and which schemas were those of a document.
struct Seen {
    ws: TestWorkspace,
    files: BTreeSet<&'static str>,
}

impl Seen {
    /// The document that a command prints. Notes its schema.
    fn document(&mut self, code: i32, typed: &str) -> Value {
        let words: Vec<&str> = typed.split(' ').collect();
        let output = self.ws.try_json(&words).exits(code);
        self.files.extend(output.schemas());
        output.json()
    }

    /// The lines that a command prints. Notes their schema.
    fn lines(&mut self, typed: &str) -> Vec<Value> {
        let words: Vec<&str> = typed.split(' ').collect();
        let output = self.ws.try_json(&words).ok();
        self.files.extend(output.schemas());
        output.json_lines()
    }
}

#[test]
fn every_schema_is_that_of_a_document_that_a_command_prints() {
    let mut ws = TestWorkspace::repository();
    ws.git(["config", "user.name", "Somebody"]);
    ws.git(["config", "user.email", "somebody@example.com"]);
    ws.write("notes", "one\ntwo\n");
    ws.write(b"b\xff", "no text\n");
    let plan = ws.outside().join("plan.toml");
    fs::create_dir_all(ws.outside()).unwrap();
    let steps = "[[step]]\nname = 'edit'\ncommand = 'echo more >> notes; echo x > new'\ncommit = 'Say more'\n[[step]]\nname = 'asks'\nask = 'go on?'\ncommand = 'exit 3'\n";
    fs::write(&plan, steps).unwrap();
    let (plan, copy) = (plan.display().to_string(), ws.outside().join("copy"));
    let files = BTreeSet::new();
    // A purge takes out what trees name.
    ws.damages_the_store();
    let mut seen = Seen { ws, files };

    let snapshot = seen.document(0, "snapshot --label first");
    let id = snapshot["id"].as_str().unwrap();
    seen.document(0, "snapshot --skip-unchanged");
    seen.document(0, &format!("snapshot pin {id}"));
    seen.document(0, "list");
    seen.document(0, "why notes");
    for part in ["", " --files", ":notes"] {
        seen.document(0, &format!("show {id}{part}"));
    }
    seen.ws.write("notes", "one\nthree\n");
    seen.document(0, &format!("diff {id} --patch"));
    seen.document(0, &format!("restore {id} --plan"));
    seen.document(0, &format!("restore {id} --to {}", copy.display()));
    seen.document(0, &format!("restore {id}"));
    seen.document(0, "undo --plan");
    seen.document(0, "undo");

    let run = format!("run --steps {plan} --run-id r --wait 0s");
    seen.document(75, &run);
    let questions = seen.document(0, "answer");
    let question = questions[0]["question_id"].as_str().unwrap();
    seen.document(0, &format!("answer {question} yes"));
    seen.document(3, "resume r");
    seen.document(0, "runs");
    seen.document(0, "show r");
    let sessions = seen.document(0, "sessions");
    let session = sessions[0]["id"].as_str().unwrap();
    seen.document(0, &format!("show {session}"));
    let other = run.replace("--run-id r", "--run-id other");
    seen.document(75, &other);
    seen.document(0, "cancel other");
    assert!(!seen.lines("transcript r").is_empty());
    assert!(seen.lines("events").len() > 20);

    let large = seen
        .ws
        .run(["--max-patch-bytes", "64"], "seq 1000 > numbers");
    seen.files.extend(large.ok().schemas());
    let artifacts = seen.document(0, "artifact list");
    let key = artifacts[0]["key"].as_str().unwrap();
    let export = seen.ws.outside().join("export");
    seen.document(0, &format!("export r --to {}", export.display()));
    let records = fs::read_to_string(export.join("records.jsonl")).unwrap();
    for line in records.lines() {
        let document = serde_json::from_str(line).unwrap();
        let right = Schemas::get().check("export-line.json", &document);
        assert_eq!(right, Ok(()), "{document:#}");
        seen.files.insert("export-line.json");
    }
    seen.document(0, &format!("artifact get {key}"));
    seen.document(0, &format!("artifact rm {key}"));
    seen.document(0, "verify");
    seen.document(0, "gc --dry-run");
    seen.document(0, "task name 42");
    seen.document(0, "task resume 42");
    seen.document(0, "task checkpoint 42");
    seen.document(0, "task list");
    seen.document(0, "task show 42");
    let recorded = seen.document(0, "task quarantine list --all");
    let id = recorded[0]["id"].as_str().unwrap();
    seen.document(0, &format!("task quarantine restore {id}"));
    seen.document(0, &format!("task quarantine discard {id}"));
    seen.document(0, "notices");
    let reported = seen.ws.outside().join("reported");
    let block = format!(
        "'{}' --json task block why > '{}'",
        binary::stillframe().display(),
        reported.display()
    );
    let blocks = ["run", "--task", "42", "--", "sh", "-c", &block];
    // There is no remote that could have its work.
    seen.ws.try_json(blocks).exits(125);
    let document = serde_json::from_str(&fs::read_to_string(reported).unwrap()).unwrap();
    let right = Schemas::get().check("task-block.json", &document);
    assert_eq!(right, Ok(()), "{document:#}");
    seen.files.insert("task-block.json");
    let fingerprint = "0".repeat(64);
    let allow = format!("task allow-secret github_token notes {fingerprint}");
    seen.document(0, &allow);
    seen.document(0, "task allow-secret");
    let [made, cloned] = ["made", "cloned"].map(|name| seen.ws.outside().join(name));
    seen.document(0, &format!("init {}", made.display()));
    seen.document(0, &format!("clone {} {}", made.display(), cloned.display()));
    let isolated = seen.document(0, "run --isolate -- touch handed-in");
    let run = isolated["run_id"].as_str().unwrap();
    seen.document(0, "review list");
    for verb in [
        "review show",
        "review diff",
        "worktree path",
        "review decline",
    ] {
        seen.document(0, &format!("{verb} {run}"));
    }
    seen.document(0, "worktree list");
    seen.document(0, &format!("worktree discard {run}"));
    let isolated = seen.document(0, "run --isolate -- touch approved");
    let run = isolated["run_id"].as_str().unwrap();
    seen.document(0, &format!("review approve {run}"));
    seen.document(0, "purge notes --plan");
    seen.document(0, "purge notes");
    let other = seen.document(0, "snapshot");
    let other = other["id"].as_str().unwrap();
    seen.document(0, &format!("snapshot rm {other}"));
    for what in ["path", "show", "check"] {
        seen.document(0, &format!("config {what}"));
    }
    seen.document(1, "show nothing-has-this-name");

    let named: BTreeSet<&str> = seen.files.iter().copied().collect();
    let all = Schemas::get().names();
    assert_eq!(named, all.iter().map(String::as_str).collect());
}

/// Does all that an adapter can do, and fails.
struct Busy;

impl Adapter for Busy {
    async fn run(&self, context: RunContext) -> Result<AdapterOutput, AdapterError> {
        let root = context.workspace.clone().expect("it has a workspace");
        let said = json!({ "role": "user", "text": "why is it red?" });
        context.emit(EventType::MESSAGE_SENT, said).await?;
        context.stream_message("m").push("because").await?;
        let own = EventDraft::new(EventType::new("of_mine"), json!([1, "two"]));
        context.emit_draft(own.provider("acme")).await?;

        let read = context.call_tool(ToolOptions::new("Read"), async { Ok(()) });
        read.await?;
        let edit = async {
            fs::write(root.join("edited"), "1\n").expect("it can be written");
            Err::<(), _>(AdapterError::failed("half done"))
        };
        let edited = context.call_tool(ToolOptions::new("Edit"), edit).await;
        edited.expect_err("it fails");

        let phase = context.phase("build");
        phase
            .step("works", |step| {
                let root = root.clone();
                async move {
                    step.task("part", async { Ok(()) }).await?;
                    let other =
                        step.task("other", async { Err::<(), _>(AdapterError::failed("no")) });
                    other.await.expect_err("it fails");
                    fs::write(root.join("new"), "1\n").expect("it can be written");
                    step.commit(CommitOptions::new("Say more")).await?;
                    let question = Question::new("go on?").deadline(Duration::ZERO, "yes");
                    step.ask(question).await?;
                    Ok(())
                }
            })
            .await?;
        phase.skip_step("unwanted", "nobody wants it").await?;
        context.phase("later").skip("nobody wants it").await?;
        let once = RetryPolicy::NEVER.attempts(2);
        let flaky = StepOptions::new("flaky").retry(once);
        phase
            .step_with(flaky, |_| async {
                Err::<(), _>(AdapterError::failed("it stays red"))
            })
            .await?;
        Ok(AdapterOutput::empty())
    }
}

#[test]
fn every_event_of_a_run_is_as_its_schema_says() {
    let ws = TestWorkspace::repository();
    ws.git(["config", "user.name", "Somebody"]);
    ws.git(["config", "user.email", "somebody@example.com"]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let events = runtime.block_on(async {
        let options = EngineOptions::default().state_dir(ws.state());
        let engine = Engine::start(options).await.unwrap();
        let session = engine.session("host").await.unwrap();
        let workspace = WorkspaceOptions::at(ws.root()).rollback_on_failure(true);
        let options = RunOptions::new("fix it").workspace(workspace);
        let outcome = session.execute_run(options, Busy).await.unwrap();
        assert_eq!(outcome.run.status, RunStatus::Failed, "{:?}", outcome.run);
        session.pause("a break").await.unwrap();
        session.resume("on it goes").await.unwrap();
        session.complete("done").await.unwrap();
        let events = engine.events(EventQuery::all()).await.unwrap();
        engine.shutdown().await.unwrap();
        events
    });

    let mut types = BTreeSet::new();
    for event in events {
        let document = serde_json::to_value(&event).unwrap();
        let right = Schemas::get().check("event.json", &document);
        assert_eq!(right, Ok(()), "{document:#}");
        types.insert(event.event_type.to_string());
    }
    for event_type in [
        "session_created",
        "session_paused",
        "session_completed",
        "run_started",
        "run_failed",
        "phase_started",
        "phase_failed",
        "phase_skipped",
        "step_started",
        "step_completed",
        "step_failed",
        "step_skipped",
        "task_completed",
        "task_failed",
        "question_asked",
        "question_answered",
        "commit_wanted",
        "commit_created",
        "tool_call_started",
        "tool_call_completed",
        "tool_call_failed",
        "message_sent",
        "message_streamed",
        "of_mine",
        "workspace_snapshot_taken",
        "workspace_diff_computed",
        "workspace_rolled_back",
    ] {
        assert!(types.contains(event_type), "{event_type} is in {types:?}");
    }
}
