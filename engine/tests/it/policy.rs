//! What runs may do: a policy that is asked, and limits.

use std::fs;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::{Value, json};
use stillframe::events::{EventDraft, EventQuery, EventSource, EventType};
use stillframe::options::TranscriptQuery;
use stillframe::policy::{
    Limit, Policy, PolicyDecision, PolicyRequest, PolicySubject, PolicyViolation, RunLimits, Usage,
    ViolationAction, ViolationKind,
};
use stillframe::records::{Question, QuestionRecord, TranscriptItem};
use stillframe::steps::{StepContext, StepError, ToolError, ToolOptions};
use stillframe::{
    Adapter, AdapterError, AdapterOutput, CommandAdapter, Engine, EngineOptions, ErrorKind,
    RunContext, RunId, RunOptions, RunOutcome, RunStatus, SessionManager, WorkspaceOptions,
};
use tokio::task::JoinHandle;

use crate::support::{
    Host, Work, all, completed, die_in_the_middle_of, eventually, on_a_runtime, writes,
};

const PLACES: [&str; 5] = ["run", "step", "tool", "told", "usage"];

/// Where a policy is asked.
fn place(subject: &PolicySubject) -> &'static str {
    match subject {
        PolicySubject::Run => "run",
        PolicySubject::Step { .. } => "step",
        PolicySubject::ToolCall { data, .. } if data.is_null() => "tool",
        PolicySubject::ToolCall { .. } => "told",
        PolicySubject::Usage(_) => "usage",
        other => panic!("{other:?}"),
    }
}

/// A policy that decides so at one place, and notes where it was asked.
#[derive(Clone)]
struct At {
    place: &'static str,
    decision: PolicyDecision,
    asked: Notes,
}

impl At {
    fn new(place: &'static str, decision: PolicyDecision) -> Self {
        Self {
            place,
            decision,
            asked: Notes::default(),
        }
    }
}

impl Policy for At {
    async fn decide(&self, request: PolicyRequest) -> PolicyDecision {
        let at = place(&request.subject);
        self.asked.note(at);
        match at == self.place {
            true => self.decision.clone(),
            false => PolicyDecision::Allow,
        }
    }
}

#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<String>>>);

impl Notes {
    fn note(&self, text: impl Into<String>) {
        self.0.lock().unwrap().push(text.into());
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

fn told(name: &str) -> EventDraft {
    EventDraft::new(
        EventType::TOOL_CALL_STARTED,
        json!({ "tool_name": name, "input": "ls" }),
    )
}

/// Work that does all that a policy is asked about, and notes how that went.
fn everything(notes: &Notes) -> impl stillframe::Adapter + use<> {
    let notes = notes.clone();
    Work(move |context: RunContext| {
        let notes = notes.clone();
        async move {
            notes.note("begins");
            let phase = context.phase("p");
            let step = phase.step("build", |_| async {
                notes.note("builds");
                Ok(())
            });
            match step.await {
                Err(StepError::Denied(violation)) => notes.note(format!("step: {violation}")),
                other => other?,
            }
            let tool = context.call_tool(ToolOptions::new("Edit"), async {
                notes.note("edits");
                Ok(())
            });
            match tool.await {
                Err(ToolError::Denied { violation, .. }) => {
                    notes.note(format!("tool: {violation}"));
                }
                other => drop(other?),
            }
            match context.emit_draft(told("Bash")).await {
                Err(e) if e.kind() == ErrorKind::PolicyViolation => {
                    assert!(e.wrapped::<PolicyViolation>().is_some());
                    notes.note(format!("told: {e}"));
                }
                other => drop(other?),
            }
            match context.report_usage(Usage::tokens(5, 2).cost(0.5)).await {
                Err(e) if e.kind() == ErrorKind::PolicyViolation => {
                    notes.note(format!("usage: {e}"));
                }
                other => drop(other?),
            }
            notes.note("ends");
            Ok(AdapterOutput::empty())
        }
    })
}

async fn engine(host: &Host, policy: impl Policy) -> (Engine, SessionManager) {
    let engine = Engine::start(host.options().policy(policy)).await.unwrap();
    let session = engine.session("s").await.unwrap();
    (engine, session)
}

async fn violations(engine: &Engine) -> Vec<PolicyViolation> {
    let query = EventQuery::all().of_type(EventType::POLICY_VIOLATION);
    let events = engine.events(query).await.unwrap();
    let read = events.into_iter().map(|event| {
        assert_eq!(event.source, EventSource::Engine);
        assert!(event.run_id.is_some());
        serde_json::from_value(event.data).unwrap()
    });
    read.collect()
}

fn failed_for_it(outcome: &RunOutcome) -> String {
    assert_eq!(outcome.run.status, RunStatus::Failed, "{:?}", outcome.run);
    let error = outcome.run.error.clone().unwrap();
    assert_eq!(error.kind.as_deref(), Some("PolicyViolation"), "{error:?}");
    error.message
}

/// What is noted where a run is refused with these words at `place`.
fn refused_at(place: &str, why: &str) -> Vec<String> {
    let what = match place {
        "step" => "step: step \"build\" of phase \"p\"",
        "tool" => "tool: a call of tool \"Edit\"",
        "told" => "told: a call of tool \"Bash\"",
        _ => "usage: the use of 7 tokens, at a cost of 0.5",
    };
    let notes = ["begins", "builds", "edits", "ends"]
        .map(str::to_owned)
        .to_vec();
    let refusal = format!("{what} is refused: {why}");
    let at = match place {
        "step" => 1,
        "tool" => 2,
        _ => 3,
    };
    let mut notes: Vec<String> = notes;
    notes.insert(at, refusal);
    let undone = match place {
        "step" => "builds",
        "tool" => "edits",
        _ => "",
    };
    notes.retain(|note| note != undone);
    notes
}

fn options(host: &Host) -> RunOptions {
    RunOptions::new("try it").workspace(host.workspace())
}

#[tokio::test]
async fn it_is_asked_at_each_place_and_what_it_allows_is_done() {
    let host = Host::new();
    let (policy, notes) = (At::new("", PolicyDecision::Allow), Notes::default());
    let (engine, session) = engine(&host, policy.clone()).await;
    let outcome = session
        .execute_run(options(&host), everything(&notes))
        .await;
    completed(&outcome.unwrap());
    assert_eq!(policy.asked.all(), PLACES);
    assert_eq!(notes.all(), ["begins", "builds", "edits", "ends"]);
    assert_eq!(violations(&engine).await, []);
}

#[tokio::test]
async fn what_it_denies_fails_with_a_type_and_the_adapter_goes_on() {
    for place in PLACES {
        let host = Host::new();
        let (policy, notes) = (
            At::new(place, PolicyDecision::deny("not here")),
            Notes::default(),
        );
        let (engine, session) = engine(&host, policy).await;
        let run = session
            .execute_run(options(&host), everything(&notes))
            .await;
        let outcome = run.unwrap();
        let violation = violations(&engine).await.pop().unwrap();
        assert_eq!(violation.kind, ViolationKind::Denied);
        assert_eq!(violation.action, ViolationAction::Deny);
        let events = all(&engine, &session).await;
        let has = |event_type| events.iter().any(|e| e.event_type == event_type);
        if place == "run" {
            assert_eq!(failed_for_it(&outcome), "the run is refused: not here");
            assert_eq!(notes.all(), [""; 0], "the adapter is not called");
            continue;
        }
        completed(&outcome);
        assert_eq!(notes.all(), refused_at(place, "not here"));
        match place {
            "step" => {
                let (phase, step) = (violation.phase.as_deref(), violation.step.as_deref());
                assert_eq!((phase, step), (Some("p"), Some("build")));
                assert!(outcome.phases.is_empty(), "nothing was begun");
            }
            "tool" => assert_eq!(violation.tool_name.as_deref(), Some("Edit")),
            "told" => {
                assert_eq!(violation.tool_name.as_deref(), Some("Bash"));
                let calls = events
                    .iter()
                    .filter(|e| e.event_type == EventType::TOOL_CALL_STARTED);
                assert_eq!(calls.count(), 1, "the one that the engine made");
            }
            _ => assert!(has(EventType::TOKEN_USAGE_UPDATED), "usage is a fact"),
        }
    }
}

#[tokio::test]
async fn what_it_cancels_fails_the_run_and_is_rolled_back() {
    for place in PLACES {
        let host = Host::new();
        host.write("kept", "as it was\n");
        let policy = At::new(place, PolicyDecision::cancel("enough"));
        let (engine, session) = engine(&host, policy).await;
        let work = Work(|context: RunContext| async move {
            let path = context.workspace.clone().unwrap().join("kept");
            fs::write(path, "spoilt\n").unwrap();
            let _ = context.phase("p").step("build", |_| async { Ok(()) }).await;
            let edit = context.call_tool(ToolOptions::new("Edit"), async { Ok(()) });
            let _ = edit.await;
            let _ = context.emit_draft(told("Bash")).await;
            let _ = context.report_usage(Usage::tokens(5, 2)).await;
            // Whatever it makes of the refusals, it is asked to stop.
            context.cancellation.cancelled().await;
            Ok(AdapterOutput::with_data(json!("stopped")))
        });
        let workspace = host.workspace().rollback_on_failure(true);
        let options = RunOptions::new("try it").workspace(workspace);
        let outcome = session.execute_run(options, work).await.unwrap();
        let message = failed_for_it(&outcome);
        assert!(message.ends_with(" is refused: enough"), "{message}");
        assert_eq!(host.read("kept").as_deref(), Some("as it was\n"), "{place}");
        if place != "run" {
            assert!(outcome.workspace.rollback.is_some(), "{place}");
            let output = outcome.run.output.map(|output| output.data);
            assert_eq!(output, Some(json!("stopped")), "the output is kept");
        }
        let violations = violations(&engine).await;
        assert_eq!(violations.len(), 1, "{place}");
        assert_eq!(violations[0].action, ViolationAction::Cancel);
    }
}

/// The question that waits, once there is one.
async fn open(engine: &Engine) -> QuestionRecord {
    let found = Mutex::new(None);
    eventually("a question is asked", || async {
        let first = engine.open_questions().await.unwrap().into_iter().next();
        let is_there = first.is_some();
        *found.lock().unwrap() = first;
        is_there
    })
    .await;
    found.into_inner().unwrap().unwrap()
}

#[test]
fn what_it_asks_a_person_decides() {
    for place in PLACES {
        for answer in ["allow", "deny"] {
            on_a_runtime(async {
                let host = Host::new();
                let policy = At::new(place, PolicyDecision::ask("shall it?"));
                let notes = Notes::default();
                let (engine, session) = engine(&host, policy).await;
                let running = tokio::spawn({
                    let (options, work) = (options(&host), everything(&notes));
                    let session = session.clone();
                    async move { session.execute_run(options, work).await.unwrap() }
                });
                let question = open(&engine).await;
                assert!(question.text.ends_with(": shall it?"), "{}", question.text);
                assert_eq!(question.choices, ["allow", "deny"]);
                let other = engine.answer(&question.id, "perhaps").await.unwrap_err();
                assert_eq!(other.kind(), ErrorKind::InvalidOptions);
                engine.answer(&question.id, answer).await.unwrap();
                let outcome = running.await.unwrap();
                match (answer, place) {
                    ("allow", _) => {
                        completed(&outcome);
                        assert_eq!(notes.all(), ["begins", "builds", "edits", "ends"]);
                    }
                    (_, "run") => {
                        let message = failed_for_it(&outcome);
                        assert!(message.contains("\"deny\""), "{message}");
                    }
                    _ => {
                        completed(&outcome);
                        let why = "the answer to its question is \"deny\"";
                        assert_eq!(notes.all(), refused_at(place, why));
                    }
                }
                engine.shutdown().await.unwrap();
            });
        }
    }
}

#[test]
fn what_it_asks_waits_for_days_over_the_death_of_an_engine() {
    for (place, answer) in [("step", "allow"), ("step", "deny"), ("tool", "allow")] {
        let (host, notes) = (Host::new(), Notes::default());
        let policy = || At::new(place, PolicyDecision::ask("shall it?"));
        let id: RunId = "ticket-42".parse().unwrap();
        let options = || options(&host).run_id(id.clone());
        on_a_runtime(async {
            let asks = host.options().policy(policy()).hot_wait(Duration::ZERO);
            let engine = Engine::start(asks).await.unwrap();
            let session = engine.session("s").await.unwrap();
            let run = session.execute_run(options(), everything(&notes)).await;
            let outcome = run.unwrap();
            let status = outcome.run.status;
            assert_eq!(status, RunStatus::WaitingForInput, "{:?}", outcome.run);
            engine.shutdown().await.unwrap();
        });
        on_a_runtime(async {
            let (engine, session) = engine(&host, policy()).await;
            let question = open(&engine).await;
            engine.answer(&question.id, answer).await.unwrap();
            let run = session.execute_run(options(), everything(&notes)).await;
            let outcome = run.unwrap();
            completed(&outcome);
            assert_eq!(outcome.questions.len(), 1, "it is asked once");
            let all = notes.all();
            let ends = all.last().map(String::as_str);
            assert_eq!(ends, Some("ends"), "{all:?}");
            let done = match place {
                "step" => "builds",
                _ => "edits",
            };
            let count = all.iter().filter(|note| *note == done).count();
            assert_eq!(count, usize::from(answer == "allow"), "{all:?}");
        });
    }
}

/// The approvals in the log: state, tool, call and question.
async fn approvals(engine: &Engine) -> Vec<[String; 4]> {
    let mut query = EventQuery::all();
    query.event_types = vec![
        EventType::TOOL_APPROVAL_REQUESTED,
        EventType::TOOL_APPROVAL_GRANTED,
        EventType::TOOL_APPROVAL_DENIED,
    ];
    let events = engine.events(query).await.unwrap();
    let read = events.into_iter().map(|event| {
        assert_eq!(event.source, EventSource::Engine);
        let said = |key: &str| event.data[key].as_str().unwrap_or("").to_owned();
        let state = event.event_type.as_str().replace("tool_approval_", "");
        [
            state,
            said("tool_name"),
            said("call_id"),
            said("question_id"),
        ]
    });
    read.collect()
}

#[test]
fn what_becomes_of_a_call_that_it_asks_about_is_told_once() {
    let secret = "ghp_0123456789abcdefghij01";
    for (place, answer, state) in [
        ("tool", "allow", "granted"),
        ("told", "deny", "denied"),
        ("step", "allow", ""),
    ] {
        let (host, notes) = (Host::new(), Notes::default());
        let policy = || At::new(place, PolicyDecision::ask("shall it?"));
        let options = || options(&host).run_id("ticket-42".parse().unwrap());
        let agent = || {
            let notes = notes.clone();
            Work(move |context: RunContext| {
                let notes = notes.clone();
                async move {
                    let phase = context.phase("p");
                    phase.step("s", |_| async { Ok(()) }).await?;
                    let edit = context.call_tool(ToolOptions::new("Edit"), async { Ok(()) });
                    edit.await?;
                    let said = json!({ "tool_name": "Bash", "call_id": secret });
                    let bash = EventDraft::new(EventType::TOOL_CALL_STARTED, said);
                    notes.note(match context.emit_draft(bash).await {
                        Ok(_) => "begun".to_owned(),
                        Err(e) => e.kind().to_string(),
                    });
                    if notes.all().len() == 1 {
                        return std::future::pending().await;
                    }
                    Ok(AdapterOutput::empty())
                }
            })
        };
        // It dies while it asks, and again once it has the answer.
        die_in_the_middle_of(async {
            let (engine, session) = engine(&host, policy()).await;
            let (options, work) = (options(), agent());
            tokio::spawn(async move { session.execute_run(options, work).await });
            open(&engine).await;
        });
        die_in_the_middle_of(async {
            let (engine, session) = engine(&host, policy()).await;
            let (options, work) = (options(), agent());
            let question = open(&engine).await;
            engine.answer(&question.id, answer).await.unwrap();
            tokio::spawn(async move { session.execute_run(options, work).await });
            eventually("it goes on", || async { notes.all().len() == 1 }).await;
        });
        on_a_runtime(async {
            let (engine, session) = engine(&host, policy()).await;
            let outcome = session.execute_run(options(), agent()).await.unwrap();
            completed(&outcome);
            let told = approvals(&engine).await;
            if place == "step" {
                assert!(told.is_empty(), "{told:?}");
                return;
            }
            let states: Vec<&str> = told.iter().map(|told| &*told[0]).collect();
            assert_eq!(states, ["requested", state], "{told:?}");
            let question = &outcome.questions[0];
            for [_, tool_name, call_id, question_id] in &told {
                let is_told = place == "told";
                assert_eq!(tool_name, if is_told { "Bash" } else { "Edit" });
                assert_eq!(call_id.is_empty(), !is_told, "{call_id}");
                assert!(!call_id.contains(secret), "{call_id}");
                assert_eq!(*question_id, question.id.to_string());
            }
            let query = TranscriptQuery::session(session.id().clone());
            let mut entries = engine.transcript(query).await.unwrap();
            let mut has_question = false;
            while let Some(entry) = entries.next().await {
                let item = entry.unwrap().item;
                has_question |= matches!(item, TranscriptItem::Question { .. });
                let is_told_twice = matches!(item, TranscriptItem::ToolApproval { .. });
                assert!(!is_told_twice, "{item:?}");
            }
            assert!(has_question);
            engine.shutdown().await.unwrap();
        });
    }
}

/// Calls the tool `Edit` with this input in a run that rests while it asks, and notes it.
fn calls(notes: &Notes, input: &Value) -> impl stillframe::Adapter + use<> {
    let (notes, input) = (notes.clone(), input.clone());
    Work(move |context: RunContext| {
        let (notes, input) = (notes.clone(), input.clone());
        async move {
            let phase = context.phase("p");
            phase.step("s", |_| async { Ok(()) }).await?;
            let tool = ToolOptions::new("Edit").input(input.clone());
            let call = context.call_tool(tool, async { Ok(()) });
            call.await?;
            notes.note(input.to_string());
            Ok(AdapterOutput::empty())
        }
    })
}

#[test]
fn what_a_person_allowed_is_not_allowed_for_another_input() {
    let long = |end: &str| json!({ "text": "x".repeat(300) + end });
    let secret = "ghp_0123456789abcdefghij01";
    for (asked, other) in [
        (json!({ "command": "ls" }), json!({ "command": "rm -rf ." })),
        (long("ls"), long("rm -rf .")),
        (
            json!({ "key": secret, "a": 1 }),
            json!({ "key": secret, "a": 2 }),
        ),
    ] {
        let (host, notes) = (Host::new(), Notes::default());
        let policy = || At::new("tool", PolicyDecision::ask("shall it?"));
        let id: RunId = "ticket-42".parse().unwrap();
        let options = || options(&host).run_id(id.clone());
        let work = |input: &Value| calls(&notes, input);
        on_a_runtime(async {
            let asks = host.options().policy(policy()).hot_wait(Duration::ZERO);
            let engine = Engine::start(asks).await.unwrap();
            let session = engine.session("s").await.unwrap();
            let run = session.execute_run(options(), work(&asked)).await.unwrap();
            assert_eq!(run.run.status, RunStatus::WaitingForInput);
            let question = open(&engine).await;
            assert!(
                question.text.contains("\"Edit\" with {"),
                "{}",
                question.text
            );
            assert!(!question.text.contains("ghp_"), "{}", question.text);
            engine.answer(&question.id, "allow").await.unwrap();

            let run = session.execute_run(options(), work(&other)).await.unwrap();
            assert_eq!(
                run.run.status,
                RunStatus::WaitingForInput,
                "it is asked anew"
            );
            assert_eq!(notes.all(), [""; 0]);
            let question = open(&engine).await;
            engine.answer(&question.id, "allow").await.unwrap();
            let run = session.execute_run(options(), work(&other)).await.unwrap();
            completed(&run);
            assert_eq!(notes.all(), [other.to_string()]);
            engine.shutdown().await.unwrap();
        });
    }
}

#[test]
fn what_it_asks_before_the_first_step_is_there_after_a_crash() {
    let (host, notes) = (Host::new(), Notes::default());
    let policy = || At::new("step", PolicyDecision::ask("shall it?"));
    let options = || options(&host).run_id("ticket-42".parse().unwrap());
    die_in_the_middle_of(async {
        let (engine, session) = engine(&host, policy()).await;
        let (options, work) = (options(), everything(&notes));
        tokio::spawn(async move { session.execute_run(options, work).await });
        open(&engine).await;
    });
    on_a_runtime(async {
        let (engine, session) = engine(&host, policy()).await;
        let question = open(&engine).await;
        engine.answer(&question.id, "allow").await.unwrap();
        let run = session.execute_run(options(), everything(&notes)).await;
        completed(&run.unwrap());
    });
}

#[tokio::test]
async fn nobody_is_asked_about_a_step_that_is_done() {
    let host = Host::new();
    let policy = At::new("", PolicyDecision::Allow);
    let (_engine, session) = engine(&host, policy.clone()).await;
    let work = Work(|context: RunContext| async move {
        let phase = context.phase("p");
        for _ in 0..3 {
            phase.step("build", |_| async { Ok(()) }).await?;
        }
        Ok(AdapterOutput::empty())
    });
    let outcome = session.execute_run(options(&host), work).await.unwrap();
    completed(&outcome);
    assert_eq!(policy.asked.all(), ["run", "step"]);
}

/// A policy that says nothing where it is asked about a step, and panics about a tool.
struct Broken;

impl Policy for Broken {
    async fn decide(&self, request: PolicyRequest) -> PolicyDecision {
        match request.subject {
            PolicySubject::Step { .. } => std::future::pending().await,
            PolicySubject::ToolCall { .. } => panic!("no such tool in the list"),
            _ => PolicyDecision::Allow,
        }
    }
}

#[tokio::test]
async fn one_that_hangs_or_panics_denies() {
    let (host, notes) = (Host::new(), Notes::default());
    let (engine, session) = engine(&host, Broken).await;
    let run = session
        .execute_run(options(&host), everything(&notes))
        .await;
    completed(&run.unwrap());
    let all = notes.all();
    assert_eq!(all.len(), 5, "{all:?}");
    assert!(
        all[1].ends_with("refused: the policy did not answer within 5 s"),
        "{all:?}"
    );
    assert!(
        all[2].ends_with("the policy panicked: no such tool in the list"),
        "{all:?}"
    );
    let kinds: Vec<ViolationKind> = violations(&engine).await.iter().map(|v| v.kind).collect();
    let expected = [
        ViolationKind::NoAnswer,
        ViolationKind::Panicked,
        ViolationKind::Panicked,
    ];
    assert_eq!(kinds, expected);
}

/// A policy that blocks its thread where it is asked about a tool, until its host lets it go.
struct Blocks(Arc<Mutex<mpsc::Receiver<()>>>);

impl Policy for Blocks {
    async fn decide(&self, request: PolicyRequest) -> PolicyDecision {
        if let PolicySubject::ToolCall { .. } = request.subject {
            let _ = self.0.lock().unwrap().recv();
        }
        PolicyDecision::Allow
    }
}

#[tokio::test]
async fn one_that_blocks_the_only_thread_denies_and_holds_nothing_up() {
    let (host, notes) = (Host::new(), Notes::default());
    let (let_go, waits) = mpsc::channel();
    // In case that the thread of the test is held up.
    let late = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(30));
        let_go
    });
    let (engine, session) = engine(&host, Blocks(Arc::new(Mutex::new(waits)))).await;
    let work = Work({
        let notes = notes.clone();
        move |context: RunContext| {
            let notes = notes.clone();
            async move {
                let tool = context.call_tool(ToolOptions::new("Edit"), async { Ok(()) });
                notes.note(tool.await.unwrap_err().to_string());
                Ok(AdapterOutput::empty())
            }
        }
    });
    let running = tokio::spawn(async move {
        let run = session.execute_run(RunOptions::new("edit"), work).await;
        completed(&run.unwrap());
    });
    let began = Instant::now();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(began.elapsed() < Duration::from_secs(4), "it is held up");
    running.await.unwrap();
    assert!(
        began.elapsed() < Duration::from_secs(25),
        "it is waited for"
    );
    let told = notes.all();
    assert!(told[0].ends_with("did not answer within 5 s"), "{told:?}");
    assert_eq!(violations(&engine).await[0].kind, ViolationKind::NoAnswer);
    drop(late);
}

/// A policy that blocks each of its threads until it is let go, and counts them.
#[derive(Clone, Default)]
struct Stuck {
    threads: Arc<AtomicUsize>,
    is_let_go: Arc<(Mutex<bool>, Condvar)>,
}

impl Policy for Stuck {
    async fn decide(&self, request: PolicyRequest) -> PolicyDecision {
        if let PolicySubject::ToolCall { .. } = request.subject {
            self.threads.fetch_add(1, Ordering::SeqCst);
            let (is_let_go, rings) = &*self.is_let_go;
            let held = is_let_go.lock().unwrap();
            drop(rings.wait_while(held, |is_let_go| !*is_let_go).unwrap());
        }
        PolicyDecision::Allow
    }
}

#[tokio::test]
async fn one_that_blocks_for_ever_does_not_take_a_thread_for_each_question() {
    let host = Host::new();
    let policy = Stuck::default();
    let (engine, session) = engine(&host, policy.clone()).await;
    let work = Work({
        let policy = policy.clone();
        move |context: RunContext| {
            let policy = policy.clone();
            async move {
                let call = |n: usize| {
                    let context = context.clone();
                    async move {
                        let tool = ToolOptions::new(format!("Edit {n}"));
                        let called = context.call_tool(tool, async { Ok(()) });
                        called.await.map(drop).map_err(|e| e.to_string())
                    }
                };
                let calls: Vec<_> = (0..40).map(|n| tokio::spawn(call(n))).collect();
                for called in calls {
                    let refused = called.await.unwrap().unwrap_err();
                    assert!(refused.contains("within 5 s"), "{refused}");
                }
                assert_eq!(policy.threads.load(Ordering::SeqCst), 32);
                *policy.is_let_go.0.lock().unwrap() = true;
                policy.is_let_go.1.notify_all();
                assert_eq!(call(41).await, Ok(()));
                Ok(AdapterOutput::empty())
            }
        }
    });
    let run = session.execute_run(RunOptions::new("edit"), work).await;
    completed(&run.unwrap());
    let all = violations(&engine).await;
    assert!(all.iter().all(|told| told.kind == ViolationKind::NoAnswer));
}

#[tokio::test]
async fn it_knows_what_the_run_has_used() {
    let host = Host::new();
    let seen: Arc<Mutex<Vec<PolicyRequest>>> = Arc::default();
    struct Looks(Arc<Mutex<Vec<PolicyRequest>>>);
    impl Policy for Looks {
        async fn decide(&self, request: PolicyRequest) -> PolicyDecision {
            self.0.lock().unwrap().push(request);
            PolicyDecision::Allow
        }
    }
    let (_engine, session) = engine(&host, Looks(seen.clone())).await;
    let outcome = session
        .execute_run(options(&host), everything(&Notes::default()))
        .await;
    completed(&outcome.unwrap());
    let seen = seen.lock().unwrap();
    let last = seen.last().unwrap();
    assert_eq!(last.tool_calls, 2);
    assert_eq!(last.usage, Usage::tokens(5, 2).cost(0.5));
    assert_eq!(last.input, "try it");
    assert_eq!(last.workspace.as_deref(), Some(&*host.path()));
    assert_eq!((seen[2].tool_calls, seen[2].usage), (0, Usage::default()));
    let PolicySubject::ToolCall { input, data, .. } = &seen[3].subject else {
        panic!("{:?}", seen[3]);
    };
    assert_eq!((&data["tool_name"], input), (&json!("Bash"), &json!("ls")));
}

// ---- limits

/// Work that calls tools and reports usage `count` times, and notes each refusal.
fn uses(notes: &Notes, count: usize) -> impl stillframe::Adapter + use<> {
    let notes = notes.clone();
    Work(move |context: RunContext| {
        let notes = notes.clone();
        async move {
            for _ in 0..count {
                let called = context.call_tool(ToolOptions::new("Read"), async { Ok(()) });
                if let Err(e) = called.await {
                    notes.note(e.to_string());
                }
                if let Err(e) = context.report_usage(Usage::tokens(10, 5).cost(0.25)).await {
                    notes.note(e.to_string());
                }
            }
            match context.cancellation.is_cancelled() {
                true => Err(AdapterError::cancelled("asked to")),
                false => Ok(AdapterOutput::empty()),
            }
        }
    })
}

#[tokio::test]
async fn what_is_beyond_a_limit_is_refused_each_time() {
    for (limits, told) in [
        (
            RunLimits::default().max_tool_calls(1),
            "tool \"Read\" was not called: the limit of calls of tools is 1, and this is one more",
        ),
        (
            RunLimits::default().max_tokens(29),
            "it has used 30 tokens, and the limit is 29",
        ),
        (
            RunLimits::default().max_cost(0.4),
            "it has cost 0.5, and the limit is 0.4",
        ),
    ] {
        let (host, notes) = (Host::new(), Notes::default());
        let (engine, session) = host.session().await;
        let run = RunOptions::new("use").limits(limits);
        let outcome = session.execute_run(run, uses(&notes, 2)).await.unwrap();
        completed(&outcome);
        assert_eq!(notes.all(), [told]);
        let violations = violations(&engine).await;
        assert_eq!(violations.len(), 1);
        assert!(violations[0].limit.is_some() && violations[0].found.is_some());
        let query = EventQuery::all().of_type(EventType::TOKEN_USAGE_UPDATED);
        assert_eq!(
            engine.events(query).await.unwrap().len(),
            2,
            "usage is a fact"
        );
    }
}

#[tokio::test]
async fn a_limit_that_cancels_ends_the_run() {
    for (limits, kind) in [
        (
            RunLimits::default().max_tool_calls(Limit::cancel(2)),
            ViolationKind::MaxToolCalls,
        ),
        (
            RunLimits::default().max_tokens(Limit::cancel(0)),
            ViolationKind::MaxTokens,
        ),
        (
            RunLimits::default().max_cost(Limit::cancel(0.0)),
            ViolationKind::MaxCost,
        ),
    ] {
        let (host, notes) = (Host::new(), Notes::default());
        let (engine, session) = host.session().await;
        let run = RunOptions::new("use").limits(limits);
        let outcome = session.execute_run(run, uses(&notes, 3)).await.unwrap();
        let message = failed_for_it(&outcome);
        let first = violations(&engine).await.remove(0);
        assert_eq!((first.kind, first.message), (kind, message));
    }
}

#[tokio::test(start_paused = true)]
async fn work_that_takes_too_long_fails() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let limits = RunLimits::default().max_duration(Duration::from_secs(3600));
    let work = Work(|context: RunContext| async move {
        context.cancellation.cancelled().await;
        Ok(AdapterOutput::empty())
    });
    let run = RunOptions::new("wait").limits(limits);
    let outcome = session.execute_run(run, work).await.unwrap();
    assert!(failed_for_it(&outcome).contains("3600000 ms"));
    assert_eq!(
        violations(&engine).await[0].kind,
        ViolationKind::MaxDuration
    );
}

/// An agent that calls a tool, and then has no end.
struct Endless {
    calls_model: bool,
    notes: Notes,
}

impl Adapter for Endless {
    fn calls_model(&self) -> bool {
        self.calls_model
    }

    async fn run(&self, context: RunContext) -> Result<AdapterOutput, AdapterError> {
        let edit = context.call_tool(ToolOptions::new("Edit"), async { Ok(()) });
        edit.await?;
        self.notes.note("edited");
        context.cancellation.cancelled().await;
        Ok(AdapterOutput::empty())
    }
}

/// Lets time go by in which nobody does anything.
async fn after(seconds: u64) {
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(seconds)).await;
    tokio::time::resume();
}

#[tokio::test]
async fn waiting_for_a_person_is_no_work() {
    for (calls_model, ends_as) in [(true, RunStatus::Timeout), (false, RunStatus::Failed)] {
        let (host, notes) = (Host::new(), Notes::default());
        let policy = At::new("tool", PolicyDecision::ask("shall it?"));
        let (engine, session) = engine(&host, policy).await;
        let mut run = RunOptions::new("edit");
        if !calls_model {
            run = run.limits(RunLimits::default().max_duration(Duration::from_secs(60)));
        }
        let agent = Endless {
            calls_model,
            notes: notes.clone(),
        };
        let running = tokio::spawn(async move { session.execute_run(run, agent).await.unwrap() });
        let question = open(&engine).await;
        // It is in the log a moment before the run waits.
        tokio::time::sleep(Duration::from_millis(300)).await;
        after(100).await;
        // What is to end for its time would, before it is answered.
        tokio::time::sleep(Duration::from_millis(300)).await;
        engine.answer(&question.id, "allow").await.unwrap();
        eventually("it goes on", || async { !notes.all().is_empty() }).await;
        after(30).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(!running.is_finished(), "its time is not up");
        after(40).await;
        assert_eq!(running.await.unwrap().run.status, ends_as);
    }
}

#[tokio::test]
async fn work_beside_a_question_takes_its_time() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let work = Work(|context: RunContext| async move {
        let phase = context.phase("p");
        let asks = phase.step("asks", |step| async move {
            step.ask(Question::new("go?")).await?;
            Ok(())
        });
        let works = phase.step("works", |_| std::future::pending());
        let _: (Result<(), _>, Result<(), _>) = tokio::join!(asks, works);
        Ok(AdapterOutput::empty())
    });
    let limits = RunLimits::default().max_duration(Duration::from_secs(60));
    let run = RunOptions::new("both").limits(limits);
    let running = tokio::spawn(async move { session.execute_run(run, work).await.unwrap() });
    open(&engine).await;
    after(100).await;
    let outcome = running.await.unwrap();
    assert!(failed_for_it(&outcome).contains("60000 ms"));
}

/// Does a piece of work in a step, and `inner` in that; `notes` says once it is under way.
async fn piece(
    what: &str,
    step: &StepContext,
    notes: &Notes,
    inner: impl Future<Output = ()> + Send,
) -> Result<(), AdapterError> {
    let (run, word) = (&step.run, "a word ");
    let noted = async {
        notes.note("under way");
        inner.await;
        Ok(())
    };
    match what {
        "call" => {
            let edit = ToolOptions::new("Edit").timeout(Duration::from_secs(90));
            drop(run.call_tool(edit, noted).await?);
        }
        "task" => step.task("part", noted).await?,
        "step" => run.phase("p").step("inner", |_| noted).await?,
        "message" => {
            let message = run.stream_message("m");
            message.push(word).await?;
            noted.await?;
            message.finish().await?;
        }
        "stream" => {
            let message = run.stream_message("m");
            notes.note("under way");
            loop {
                message.push(word).await?;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        "command" => {
            notes.note("under way");
            let command = CommandAdapter::new("sleep").arg("1000");
            drop(command.run(run.clone()).await?);
        }
        other => panic!("{other}"),
    }
    Ok(())
}

/// A run whose only step asks in a piece of its work, or beside one that has no end. Its work may
/// take a minute, and a hundred seconds go by before anybody answers.
async fn asked_with(what: &'static str, is_inside: bool) -> (Engine, JoinHandle<RunOutcome>) {
    let (host, notes) = (Host::new(), Notes::default());
    let (engine, session) = host.session().await;
    let begun = notes.clone();
    let work = Work(move |context: RunContext| {
        let notes = begun.clone();
        async move {
            let phase = context.phase("p");
            let step = phase.step("s", |step| async move {
                let asks = async { drop(step.ask(Question::new("go?")).await) };
                if is_inside {
                    return Box::pin(piece(what, &step, &notes, asks)).await;
                }
                let works = Box::pin(piece(what, &step, &notes, std::future::pending()));
                tokio::join!(asks, works).1
            });
            step.await?;
            Ok(AdapterOutput::empty())
        }
    });
    let run = RunOptions::new("both").hot_wait(Duration::from_secs(9000));
    let run = run.limits(RunLimits::default().max_duration(Duration::from_secs(60)));
    let running = tokio::spawn(async move {
        // It lives as long as the run.
        let _host = host;
        session.execute_run(run, work).await.unwrap()
    });
    open(&engine).await;
    eventually("the piece is under way", || async {
        !notes.all().is_empty()
    })
    .await;
    // It is in the log a moment before the run waits.
    tokio::time::sleep(Duration::from_millis(300)).await;
    after(100).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    (engine, running)
}

#[tokio::test]
async fn any_piece_of_work_beside_a_question_takes_its_time() {
    let mut stood = Vec::new();
    for what in ["call", "task", "step", "stream", "command"] {
        let (_engine, running) = asked_with(what, false).await;
        match tokio::time::timeout(Duration::from_secs(20), running).await {
            Ok(ended) => assert!(failed_for_it(&ended.unwrap()).contains("60000 ms")),
            Err(_) => stood.push(what),
        }
    }
    assert!(stood.is_empty(), "the clock stands beside {stood:?}");
}

#[tokio::test]
async fn a_piece_of_work_in_which_a_question_is_asked_waits_with_it() {
    for what in ["call", "task", "step", "message"] {
        let (engine, running) = asked_with(what, true).await;
        assert!(!running.is_finished(), "{what} does nothing but wait");
        let question = engine.open_questions().await.unwrap().remove(0);
        engine.answer(&question.id, "yes").await.unwrap();
        completed(&running.await.unwrap());
    }
}

#[tokio::test]
async fn a_report_that_is_sent_again_counts_once_and_one_that_is_none_is_refused() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let work = Work(|context: RunContext| async move {
        let report = |usage: Value| EventDraft::new(EventType::TOKEN_USAGE_UPDATED, usage);
        let once = report(json!({ "input_tokens": 6 })).id("usage-1".parse().unwrap());
        for _ in 0..3 {
            context.emit_draft(once.clone()).await?;
            context
                .emit_draft(told("Bash").id("call-1".parse().unwrap()))
                .await?;
        }
        for wrong in [
            json!(7),
            json!({ "input_tokens": "many" }),
            json!({ "cost": -1 }),
            json!({ "note": "x".repeat(70_000) }),
        ] {
            let batch = vec![report(json!({ "input_tokens": 4 })), report(wrong)];
            let refused = context.emit_batch(batch).await.unwrap_err();
            let kinds = [ErrorKind::InvalidOptions, ErrorKind::LimitExceeded];
            assert!(kinds.contains(&refused.kind()), "{refused}");
        }
        for cost in [f64::INFINITY, f64::NAN, -1.0] {
            let refused = context.report_usage(Usage::tokens(9, 9).cost(cost)).await;
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidOptions);
        }
        context.report_usage(Usage::tokens(4, 0)).await?;
        let over = context.report_usage(Usage::tokens(1, 0)).await.unwrap_err();
        assert_eq!(over.kind(), ErrorKind::PolicyViolation);
        let over = context.emit_draft(told("Bash")).await.unwrap_err();
        assert_eq!(over.kind(), ErrorKind::PolicyViolation);
        Ok(AdapterOutput::empty())
    });
    let limits = RunLimits::default().max_tokens(10).max_tool_calls(1);
    let run = RunOptions::new("report").limits(limits);
    completed(&session.execute_run(run, work).await.unwrap());
    let query = EventQuery::all().of_type(EventType::TOKEN_USAGE_UPDATED);
    assert_eq!(engine.events(query).await.unwrap().len(), 3);
    let wrong = EventDraft::new(EventType::TOKEN_USAGE_UPDATED, json!("much"));
    let refused = session.emit(wrong).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidOptions);
}

#[tokio::test]
async fn a_batch_with_a_refused_call_tells_what_was_used_and_a_call_in_it_counts_once() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let work = Work(|context: RunContext| async move {
        let report = |usage: Value| EventDraft::new(EventType::TOKEN_USAGE_UPDATED, usage);
        let call = || told("Bash").id("call-1".parse().unwrap());
        context.emit_batch(vec![call(), call()]).await?;
        context.emit_draft(told("Bash")).await?;
        let said = EventDraft::new(EventType::MESSAGE_SENT, json!({ "text": "x" }));
        let batch = vec![
            said,
            told("Bash"),
            report(json!({ "input_tokens": 7, "cost": 0.5 })),
        ];
        let refused = context.emit_batch(batch).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::PolicyViolation);
        let over = context.report_usage(Usage::tokens(4, 0)).await.unwrap_err();
        assert!(over.to_string().contains("11 tokens"), "{over}");
        Ok(AdapterOutput::empty())
    });
    let limits = RunLimits::default().max_tokens(10).max_tool_calls(2);
    let run = RunOptions::new("report").limits(limits);
    completed(&session.execute_run(run, work).await.unwrap());
    let events = all(&engine, &session).await;
    let count = |of: EventType| events.iter().filter(|e| e.event_type == of).count();
    assert_eq!(count(EventType::TOOL_CALL_STARTED), 2);
    assert_eq!(count(EventType::MESSAGE_SENT), 0);
    assert_eq!(count(EventType::TOKEN_USAGE_UPDATED), 2);
}

#[tokio::test]
async fn refusals_without_end_are_not_told_without_end() {
    let (host, notes) = (Host::new(), Notes::default());
    let (engine, session) = host.session().await;
    let run = RunOptions::new("use").limits(RunLimits::default().max_tool_calls(0));
    completed(&session.execute_run(run, uses(&notes, 120)).await.unwrap());
    assert_eq!(notes.all().len(), 120, "each is refused");
    let told = violations(&engine).await;
    assert_eq!(told.len(), 100);
    let last = &told[99].message;
    assert!(last.ends_with("no further one is told"), "{last}");
}

#[test]
fn what_was_used_counts_on_when_the_run_is_gone_on_with() {
    let (host, notes) = (Host::new(), Notes::default());
    let options = || RunOptions::new("use").run_id("ticket-42".parse().unwrap());
    die_in_the_middle_of(async {
        let (engine, session) = host.session().await;
        let limits = RunLimits::default().max_tokens(40).max_tool_calls(3);
        let run = options().resumable(true).limits(limits);
        let work = Work(|context: RunContext| async move {
            context
                .call_tool(ToolOptions::new("Read"), async { Ok(()) })
                .await?;
            context
                .emit_draft(told("Bash").id("call-1".parse().unwrap()))
                .await?;
            context.report_usage(Usage::tokens(20, 10)).await?;
            std::future::pending().await
        });
        tokio::spawn(async move { session.execute_run(run, work).await });
        eventually("it has reported", || async {
            let query = EventQuery::all().of_type(EventType::TOKEN_USAGE_UPDATED);
            !engine.events(query).await.unwrap().is_empty()
        })
        .await;
    });
    on_a_runtime(async {
        let (engine, session) = host.session().await;
        let rest = uses(&notes, 2);
        let rest = Arc::new(rest);
        let work = Work(move |context: RunContext| {
            let rest = Arc::clone(&rest);
            async move {
                // It is sent again, and counts already.
                context
                    .emit_draft(told("Bash").id("call-1".parse().unwrap()))
                    .await?;
                rest.run(context).await
            }
        });
        completed(&session.execute_run(options(), work).await.unwrap());
        let kinds: Vec<_> = violations(&engine).await.iter().map(|v| v.kind).collect();
        // 45 of 40 tokens, then a fourth call of three, then 60 tokens.
        let (tokens, calls) = (ViolationKind::MaxTokens, ViolationKind::MaxToolCalls);
        assert_eq!(kinds, [tokens, calls, tokens]);
    });
}

/// Leaves a run to a dead engine whose work has done `first`, and then has no end. `lived` comes
/// back once the engine may die.
fn leave_at_work<F>(
    options: EngineOptions,
    (run, first): (RunOptions, Vec<EventDraft>),
    lived: impl FnOnce(Engine) -> F + Send,
) where
    F: Future<Output = ()> + Send,
{
    die_in_the_middle_of(async {
        let engine = Engine::start(options).await.unwrap();
        let session = engine.session("s").await.unwrap();
        let (reported, has_reported) = tokio::sync::oneshot::channel();
        let todo = Mutex::new(Some((first, reported)));
        let work = Work(move |context: RunContext| {
            let todo = todo.lock().unwrap().take();
            async move {
                let (first, reported) = todo.unwrap();
                for draft in first {
                    context.emit_draft(draft).await?;
                }
                reported.send(()).unwrap();
                std::future::pending().await
            }
        });
        tokio::spawn(async move { session.execute_run(run, work).await });
        has_reported.await.unwrap();
        lived(engine).await;
    });
}

#[test]
fn a_dead_engine_has_worked_until_its_death_and_not_until_that_is_found() {
    let host = Host::new();
    let seconds = Arc::new(AtomicI64::new(1_700_000_000));
    let heartbeat = Duration::from_millis(50);
    let options = || {
        let seconds = seconds.clone();
        let options = host.options().heartbeat(heartbeat);
        options.clock(move || Timestamp::from_second(seconds.load(Ordering::Relaxed)).unwrap())
    };
    let run = || {
        let limits = RunLimits::default().max_duration(Duration::from_secs(3600));
        let run = RunOptions::new("edit").workspace(host.workspace());
        run.run_id("left".parse().unwrap())
            .resumable(true)
            .limits(limits)
    };
    leave_at_work(options(), (run(), Vec::new()), async |_engine| {
        seconds.fetch_add(600, Ordering::Relaxed);
        let now = seconds.load(Ordering::Relaxed) * 1_000_000_000;
        eventually("it says that it is there", || async {
            let log = rusqlite::Connection::open(host.state().join("stillframe.db")).unwrap();
            let last = log.query_row("SELECT heartbeat_at FROM leases", (), |row| row.get(0));
            last == Ok(now)
        })
        .await;
    });
    seconds.fetch_add(12 * 3600, Ordering::Relaxed);
    on_a_runtime(async {
        let engine = Engine::start(options()).await.unwrap();
        let session = engine.session("s").await.unwrap();
        let query = EventQuery::all().of_type(EventType::RUN_INTERRUPTED);
        let told = engine.events(query).await.unwrap();
        let worked = told[0].data["worked_ms"].as_u64().unwrap();
        assert!((600_000..=600_050).contains(&worked), "{worked}");
        completed(&session.execute_run(run(), writes("a", "b")).await.unwrap());
    });
}

#[test]
fn no_report_is_too_large_for_a_run_to_be_settled_and_gone_on_with() {
    let host = Host::new();
    let run = || {
        let limits = RunLimits::default().max_cost(Limit::deny(1e19));
        let run = RunOptions::new("use").run_id("left".parse().unwrap());
        run.resumable(true).limits(limits.max_tokens(u64::MAX))
    };
    let usage = json!({
        "input_tokens": i64::MAX, "output_tokens": u64::MAX, "cost": 9_000_000_000_000_000_000_u64
    });
    let report = || EventDraft::new(EventType::TOKEN_USAGE_UPDATED, usage.clone());
    let reports = vec![report(), report().id("usage-2".parse().unwrap())];
    leave_at_work(
        host.options(),
        // The limit is met by the second one, which is on record.
        (run().limits(RunLimits::default().max_cost(1e30)), reports),
        async |_| {},
    );
    on_a_runtime(async {
        let (engine, session) = host.session().await;
        let left = engine.find_run("left").await.unwrap();
        assert_eq!(left.status, RunStatus::Interrupted);
        let usage = usage.clone();
        let work = Work(move |context: RunContext| {
            let again = EventDraft::new(EventType::TOKEN_USAGE_UPDATED, usage.clone());
            async move {
                let more = context.report_usage(Usage::default().cost(1.0)).await;
                let message = more.unwrap_err().to_string();
                assert!(message.contains("18000000000000000000"), "{message}");
                // It counts already.
                let again = again.id("usage-2".parse().unwrap());
                context.emit_draft(again).await?;
                Ok(AdapterOutput::empty())
            }
        });
        completed(&session.execute_run(run(), work).await.unwrap());
    });
}

#[test]
fn who_goes_on_with_a_run_can_only_be_stricter() {
    let calls = |max: u64| RunLimits::default().max_tool_calls(max);
    let none = RunLimits::default;
    // Of the engine and of the run when it is begun, and when it is gone on with.
    for (begun, resumed, allowed) in [
        ((none(), calls(2)), (none(), calls(9)), 2),
        ((calls(2), none()), (none(), calls(9)), 2),
        ((calls(2), none()), (calls(9), none()), 2),
        ((calls(1), calls(3)), (calls(1), none()), 3),
        ((none(), calls(3)), (none(), calls(1)), 1),
        ((calls(3), none()), (calls(1), none()), 1),
    ] {
        let (host, notes) = (Host::new(), Notes::default());
        let run = |limits| {
            let run = RunOptions::new("use").resumable(true).limits(limits);
            run.run_id("ticket-42".parse().unwrap())
        };
        die_in_the_middle_of(async {
            let engine = Engine::start(host.options().limits(begun.0)).await.unwrap();
            let session = engine.session("s").await.unwrap();
            let (run, begins) = (run(begun.1), notes.clone());
            let work = Work(move |_: RunContext| {
                begins.note("begins");
                std::future::pending()
            });
            tokio::spawn(async move { session.execute_run(run, work).await });
            eventually("it begins", || async { !notes.all().is_empty() }).await;
        });
        on_a_runtime(async {
            let engine = Engine::start(host.options().limits(resumed.0))
                .await
                .unwrap();
            let session = engine.session("s").await.unwrap();
            let work = uses(&notes, 5);
            completed(&session.execute_run(run(resumed.1), work).await.unwrap());
            assert_eq!(notes.all().len() - 1, 5 - allowed, "{:?}", notes.all());
        });
    }
}

#[test]
fn queued_runs_have_their_policy_and_limits_after_a_restart_too() {
    let (host, notes) = (Host::new(), Notes::default());
    let limits = || RunLimits::default().max_tool_calls(1).forbid([".github"]);
    let with = |options: EngineOptions| {
        let notes = notes.clone();
        let holds = |context: RunContext| async move {
            context.cancellation.cancelled().await;
            Err(AdapterError::cancelled("asked to"))
        };
        options
            .adapter("holds", move |_| Ok(Work(holds)))
            .adapter("uses", move |_| Ok(uses(&notes, 2)))
    };
    let id = on_a_runtime(async {
        let grace = host.options().shutdown_grace(Duration::ZERO);
        let engine = Engine::start(with(grace)).await.unwrap();
        let session = engine.session("s").await.unwrap();
        // The runs of a session follow one another.
        let first = RunOptions::new("hold");
        let first = session.submit_run(first, "holds", json!({})).await;
        let first = first.unwrap();
        let run = RunOptions::new("use").workspace(host.workspace());
        let run = run.limits(limits());
        let handle = session.submit_run(run, "uses", json!({})).await.unwrap();
        let id = handle.id().clone();
        eventually("the first is at work", || async {
            first.status().await.unwrap() == RunStatus::Running
        })
        .await;
        engine.shutdown().await.unwrap();
        id
    });
    on_a_runtime(async {
        let policy = At::new("", PolicyDecision::Allow);
        let options = with(host.options()).policy(policy.clone());
        let engine = Engine::start(options).await.unwrap();
        let record = engine.wait(&id).await.unwrap();
        assert_eq!(record.run.status, RunStatus::Completed);
        let told = notes.all();
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(
            told[0].contains("the limit of calls of tools is 1"),
            "{told:?}"
        );
    });
}

#[test]
fn a_queued_run_is_bound_by_the_engine_that_accepts_it_and_by_the_one_that_begins_it() {
    let calls = |max: u64| RunLimits::default().max_tool_calls(max);
    let none = RunLimits::default;
    for (accepts, begins, goes_on) in [
        (none(), calls(1), none()),
        (calls(1), none(), none()),
        (calls(1), calls(3), calls(9)),
        (calls(3), calls(1), calls(9)),
    ] {
        let (host, notes) = (Host::new(), Notes::default());
        let id: RunId = "queued".parse().unwrap();
        let run = || {
            let run = RunOptions::new("use").run_id(id.clone());
            run.resumable(true)
        };
        let with = |limits: RunLimits| {
            let notes = notes.clone();
            let options = host.options().shutdown_grace(Duration::ZERO).limits(limits);
            let options = options.adapter("holds", |_| {
                Ok(Work(|context: RunContext| async move {
                    context.cancellation.cancelled().await;
                    Err(AdapterError::cancelled("asked to"))
                }))
            });
            options.adapter("uses", move |_| {
                let (uses, notes) = (Arc::new(uses(&notes, 3)), notes.clone());
                Ok(Work(move |context: RunContext| {
                    let (uses, notes) = (Arc::clone(&uses), notes.clone());
                    async move {
                        uses.run(context).await?;
                        notes.note("has no end");
                        std::future::pending().await
                    }
                }))
            })
        };
        on_a_runtime(async {
            let engine = Engine::start(with(accepts)).await.unwrap();
            let session = engine.session("s").await.unwrap();
            let first = RunOptions::new("hold");
            let first = session.submit_run(first, "holds", json!({})).await;
            session.submit_run(run(), "uses", json!({})).await.unwrap();
            let first = first.unwrap();
            eventually("the first is at work", || async {
                first.status().await.unwrap() == RunStatus::Running
            })
            .await;
            engine.shutdown().await.unwrap();
        });
        die_in_the_middle_of(async {
            let _engine = Engine::start(with(begins)).await.unwrap();
            eventually("it is at work", || async {
                notes.all().iter().any(|note| note == "has no end")
            })
            .await;
        });
        assert_eq!(notes.all().len(), 2 + 1, "{:?}", notes.all());
        on_a_runtime(async {
            let engine = Engine::start(host.options().limits(goes_on)).await.unwrap();
            let session = engine.session("s").await.unwrap();
            let rest = session.execute_run(run(), uses(&notes, 1)).await;
            completed(&rest.unwrap());
            assert_eq!(notes.all().len(), 3 + 1, "{:?}", notes.all());
        });
    }
}

#[tokio::test]
async fn limits_of_the_engine_hold_where_a_run_has_none() {
    let (host, notes) = (Host::new(), Notes::default());
    let limits = RunLimits::default().max_tool_calls(1).forbid(["secret"]);
    let engine = Engine::start(host.options().limits(limits)).await.unwrap();
    let session = engine.session("s").await.unwrap();
    let plain = RunOptions::new("use");
    completed(&session.execute_run(plain, uses(&notes, 3)).await.unwrap());
    assert_eq!(notes.all().len(), 2);
    let own = RunOptions::new("use").limits(RunLimits::default().max_tool_calls(2));
    completed(&session.execute_run(own, uses(&notes, 3)).await.unwrap());
    assert_eq!(notes.all().len(), 3);
    let own = options(&host).limits(RunLimits::default().forbid(["other"]));
    let outcome = session
        .execute_run(own, writes("secret", "x"))
        .await
        .unwrap();
    assert!(failed_for_it(&outcome).contains("secret"));
}

#[tokio::test]
async fn limits_that_cannot_be_are_refused_before_anything_happens() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let none = RunLimits::default;
    for (limits, named) in [
        (none().max_duration(Duration::ZERO), "max_duration"),
        (none().max_cost(f64::NAN), "max_cost"),
        (none().max_cost(-0.5), "max_cost"),
        (none().forbid(["fine", "[a"]), "\"[a\""),
        (none().forbid([""]), "is empty"),
        (none().forbid(["/etc"]), "is absolute"),
        (none().forbid([".github/"]), "ends with a slash"),
    ] {
        let run = options(&host).limits(limits.clone());
        let error = session
            .execute_run(run.clone(), writes("x", "x"))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOptions, "{error}");
        assert!(error.to_string().contains(named), "{error}");
        let refused = Engine::start(host.options().limits(limits))
            .await
            .unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidOptions, "{refused}");
    }
    let nowhere = RunOptions::new("x").limits(none().forbid(["a"]));
    let error = session
        .execute_run(nowhere, uses(&Notes::default(), 1))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("no workspace"), "{error}");
    let query = EventQuery::session(session.id().clone()).of_type(EventType::RUN_STARTED);
    assert!(engine.events(query).await.unwrap().is_empty());
    assert_eq!(host.read("x"), None);
}

/// A place with the backends that everybody gets.
struct Plain {
    directory: tempfile::TempDir,
    engine: Engine,
    session: SessionManager,
}

impl Plain {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join("workspace/.github")).unwrap();
        fs::write(
            directory.path().join("workspace/.github/ci.yml"),
            "on: push\n",
        )
        .unwrap();
        fs::write(directory.path().join("workspace/file"), "text\n").unwrap();
        let options = EngineOptions::default().state_dir(directory.path().join("state"));
        let engine = Engine::start(options).await.unwrap();
        let session = engine.session("s").await.unwrap();
        Self {
            directory,
            engine,
            session,
        }
    }

    fn workspace(&self) -> WorkspaceOptions {
        let path = self.directory.path().join("workspace");
        WorkspaceOptions::at(path)
            .retain_content(true)
            .rollback_on_failure(true)
    }

    async fn shell(&self, script: &str, limits: RunLimits) -> RunOutcome {
        let options = RunOptions::new(script)
            .workspace(self.workspace())
            .limits(limits);
        let command = CommandAdapter::new("sh").args(["-c", script]);
        self.session.execute_run(options, command).await.unwrap()
    }
}

#[tokio::test]
async fn no_shell_gets_round_what_must_not_change() {
    let plain = Plain::new().await;
    let scripts = [
        "echo evil >> .github/ci.yml",
        "rm -r .github",
        "chmod 600 .github/ci.yml",
        "mkdir -p .github/a/b && echo x > .github/a/b/new && echo y > fine",
        "mv .github elsewhere",
        "mkdir -p .github/empty/one",
        "rm -r .github && ln -s /tmp .github",
    ];
    for (at, script) in scripts.into_iter().enumerate() {
        let limits = RunLimits::default().forbid([".github/**"]);
        let outcome = plain.shell(script, limits).await;
        let message = failed_for_it(&outcome);
        assert!(
            message.contains("(.github/**): .github"),
            "{script}: {message}"
        );
        assert_eq!(outcome.run.exit_code, Some(0), "the command did its work");
        let rollback = outcome.workspace.rollback.unwrap();
        assert_eq!(rollback.error, None, "{script}");
        let workspace = plain.directory.path().join("workspace");
        let kept = fs::read_to_string(workspace.join(".github/ci.yml")).unwrap();
        assert_eq!(kept, "on: push\n", "{script}");
        assert!(!workspace.join("fine").exists(), "all of it goes back");
        let violations = violations(&plain.engine).await;
        assert_eq!(violations.len(), at + 1, "an event each");
        let violation = violations.last().unwrap();
        assert_eq!(violation.kind, ViolationKind::ForbiddenPaths);
        assert_eq!(violation.glob.as_deref(), Some(".github/**"));
        assert!(!violation.paths.is_empty());
    }
    let outcome = plain
        .shell(
            "echo more >> file",
            RunLimits::default().forbid([".github"]),
        )
        .await;
    completed(&outcome);
}

#[tokio::test]
async fn what_fails_by_itself_tells_both() {
    let plain = Plain::new().await;
    let limits = RunLimits::default().forbid(["file"]);
    let outcome = plain.shell("echo x > file; exit 3", limits).await;
    assert_eq!(outcome.run.status, RunStatus::Failed);
    assert_eq!(outcome.run.exit_code, Some(3));
    let error = outcome.run.error.unwrap();
    assert_eq!(error.kind, None, "the command's own failure comes first");
    assert!(
        error.message.contains("code 3; and it changed"),
        "{}",
        error.message
    );
    assert_eq!(violations(&plain.engine).await.len(), 1);
}

#[tokio::test]
async fn too_many_files_or_bytes_fail_the_run() {
    let plain = Plain::new().await;
    let script = "head -c 3000 /dev/zero > big; echo x > small; rm .github/ci.yml";
    let none = RunLimits::default;
    for (limits, expected) in [
        (none().max_changed_files(3).max_changed_bytes(3002), None),
        (
            none().max_changed_files(2),
            Some("it changed 3 files, and the limit is 2"),
        ),
        (
            none().max_changed_bytes(3001),
            Some("the files that it changed have 2.9 KiB"),
        ),
        (
            none().max_changed_files(0),
            Some("it changed 3 files, and the limit is 0"),
        ),
    ] {
        let outcome = plain.shell(script, limits).await;
        match expected {
            None => {
                completed(&outcome);
                let restored =
                    plain.shell("rm big small; echo 'on: push' > .github/ci.yml", none());
                completed(&restored.await);
            }
            Some(expected) => {
                let message = failed_for_it(&outcome);
                assert!(message.starts_with(expected), "{message}");
                assert!(message.contains("big"), "{message}");
            }
        }
    }
}

#[tokio::test]
async fn a_file_that_is_too_large_to_be_captured_counts() {
    let plain = Plain::new().await;
    let mut workspace = plain.workspace();
    workspace.max_untracked_file_bytes = 1000;
    for (limit, fails) in [(3000, false), (2999, true)] {
        let options = RunOptions::new("large")
            .workspace(workspace.clone())
            .limits(RunLimits::default().max_changed_bytes(limit));
        let script = format!("head -c 3000 /dev/zero > big-{limit}");
        let command = CommandAdapter::new("sh").args(["-c", &script]);
        let outcome = plain.session.execute_run(options, command).await.unwrap();
        assert_eq!(outcome.run.status == RunStatus::Failed, fails, "{limit}");
    }
    let kinds: Vec<_> = violations(&plain.engine).await;
    assert_eq!(kinds.len(), 1);
    assert_eq!(kinds[0].kind, ViolationKind::MaxChangedBytes);
}

#[tokio::test]
async fn a_name_of_a_tool_without_end_or_with_a_secret_is_not_in_the_log() {
    let (host, notes) = (Host::new(), Notes::default());
    let (engine, session) = engine(&host, At::new("told", PolicyDecision::deny("no"))).await;
    let work = Work(move |context: RunContext| {
        let notes = notes.clone();
        async move {
            for name in ["x".repeat(50_000), "ghp_0123456789abcdefghij01".to_owned()] {
                let refused = context.emit_draft(told(&name)).await.unwrap_err();
                notes.note(refused.to_string());
            }
            Ok(AdapterOutput::empty())
        }
    });
    completed(&session.execute_run(options(&host), work).await.unwrap());
    for violation in violations(&engine).await {
        let (name, message) = (violation.tool_name.unwrap(), violation.message);
        assert!(name.len() < 400 && message.len() < 600, "{message}");
        assert!(
            !name.contains("ghp_") && !message.contains("ghp_"),
            "{message}"
        );
    }
    engine.shutdown().await.unwrap();
}

#[tokio::test]
async fn what_is_not_known_to_be_within_limits_fails() {
    let host = Host::new();
    host.backend.fail("diff");
    let (engine, session) = host.session().await;
    let run = || options(&host).limits(RunLimits::default().forbid(["a"]));
    let outcome = session.execute_run(run(), writes("b", "x")).await.unwrap();
    assert!(failed_for_it(&outcome).starts_with("what it changed is not known"));
    host.backend.heal("diff");
    let outcome = session.execute_run(run(), writes("b", "y")).await.unwrap();
    completed(&outcome);
    let first = violations(&engine).await.remove(0);
    assert_eq!(first.kind, ViolationKind::ChangesUnknown);
}

#[tokio::test]
async fn a_workspace_that_is_removed_is_put_back() {
    let plain = Plain::new().await;
    let script = "rm -r \"$PWD\"";
    let outcome = plain
        .shell(script, RunLimits::default().forbid([".github"]))
        .await;
    let message = failed_for_it(&outcome);
    assert!(message.contains(".github/ci.yml"), "{message}");
    let workspace = plain.directory.path().join("workspace");
    assert_eq!(
        fs::read_to_string(workspace.join("file")).unwrap(),
        "text\n"
    );
}
