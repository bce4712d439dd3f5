//! Runs that ask: answered at once, after they were put to rest, too late, by nobody, and once
//! only.

use std::collections::HashSet;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;
use stillframe::events::{EventQuery, EventType};
use stillframe::options::RunQuery;
use stillframe::records::{Question, QuestionRecord, QuestionStatus, RunRecord, StepStatus};
use stillframe::steps::{BoxAdapter, Rerun, StepOptions};
use stillframe::{
    AdapterOutput, Engine, EngineOptions, ErrorKind, RunContext, RunId, RunOptions, RunOutcome,
    RunStatus, SessionManager,
};
use tokio::task::JoinHandle;

use crate::support::{
    Gate, Host, Work, all, completed, die_in_the_middle_of, eventually, on_a_runtime, types,
    wait_for,
};

const COLD: Duration = Duration::ZERO;

/// Until when a question waits.
const DEADLINE: &str = "SELECT deadline_boottime FROM questions";

fn id() -> RunId {
    "ticket-42".parse().unwrap()
}

fn options(host: &Host) -> RunOptions {
    RunOptions::new("fix it")
        .workspace(host.workspace())
        .run_id(id())
}

async fn engine(host: &Host, options: impl FnOnce(EngineOptions) -> EngineOptions) -> Engine {
    Engine::start(options(host.options())).await.unwrap()
}

/// What was done, over all engines.
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

fn go() -> Question {
    Question::new("go on?").choices(["yes", "no"])
}

/// A step, one that asks in its middle, and one after it.
fn asks(notes: &Notes, question: Question) -> impl stillframe::Adapter + use<> {
    let notes = notes.clone();
    Work(move |context: RunContext| {
        let (notes, question) = (notes.clone(), question.clone());
        async move {
            let phase = context.phase("p");
            phase
                .step("first", |_| async {
                    notes.note("first");
                    Ok(())
                })
                .await?;
            let answer: String = phase
                .step("asks", |step| {
                    let (notes, question) = (notes.clone(), question.clone());
                    async move {
                        notes.note(format!("asks {}", step.attempt));
                        let path = step.workspace().unwrap().join("half");
                        let before = fs::read_to_string(&path).unwrap_or_default();
                        fs::write(&path, format!("{before}x")).unwrap();
                        let answer = step.ask(question).await?;
                        notes.note(format!("hears {} {}", answer.text, answer.timed_out));
                        Ok(answer.text)
                    }
                })
                .await?;
            phase
                .step("last", |_| async {
                    notes.note("last");
                    Ok(())
                })
                .await?;
            Ok(AdapterOutput::with_data(json!({ "answer": answer })))
        }
    })
}

/// The question that waits, once there is one.
async fn open(engine: &Engine) -> QuestionRecord {
    open_where(engine, |_| true).await
}

/// The question of which this holds, once it waits.
async fn open_where(engine: &Engine, is_it: fn(&QuestionRecord) -> bool) -> QuestionRecord {
    let found = Mutex::new(None);
    eventually("a question is asked", || async {
        let waiting = engine.open_questions().await.unwrap();
        let is_there = waiting.into_iter().find(is_it);
        let is_found = is_there.is_some();
        *found.lock().unwrap() = is_there;
        is_found
    })
    .await;
    found.into_inner().unwrap().expect("it was seen")
}

/// Answers what is asked.
async fn answer(engine: &Engine, text: &str) {
    let asked = open(engine).await;
    engine.answer(&asked.id, text).await.unwrap();
}

/// A host that waits this long for answers, with a session.
async fn waits(host: &Host, hot: Duration) -> (Engine, SessionManager) {
    let engine = engine(host, |options| options.hot_wait(hot)).await;
    let session = engine.session("s").await.unwrap();
    (engine, session)
}

/// Begins a run, on a task of its own.
fn begin(
    session: &SessionManager,
    options: RunOptions,
    work: impl stillframe::Adapter,
) -> JoinHandle<RunOutcome> {
    let session = session.clone();
    tokio::spawn(async move { session.execute_run(options, work).await.unwrap() })
}

/// Does this until it rests.
async fn rests(
    session: &SessionManager,
    options: RunOptions,
    work: impl stillframe::Adapter,
) -> RunOutcome {
    let outcome = session.execute_run(options, work).await.unwrap();
    let run = &outcome.run;
    assert_eq!(run.status, RunStatus::WaitingForInput, "{run:?}");
    outcome
}

/// Does this to its end: all of it, or what is left.
async fn completes(
    session: &SessionManager,
    options: RunOptions,
    work: impl stillframe::Adapter,
) -> RunOutcome {
    let outcome = session.execute_run(options, work).await.unwrap();
    completed(&outcome);
    outcome
}

#[test]
fn one_that_is_answered_while_it_is_hot_is_never_parked() {
    let (host, notes) = (Host::new(), Notes::default());
    on_a_runtime(async {
        let engine = host.engine().await;
        let session = engine.session("s").await.unwrap();
        let running = begin(&session, options(&host), asks(&notes, go()));
        let question = open(&engine).await;
        assert_eq!(question.text, "go on?");
        assert_eq!(
            engine.find_run("ticket-42").await.unwrap().status,
            RunStatus::Asking
        );
        let answered = engine.answer(&question.id, "yes").await.unwrap();
        assert_eq!(answered.answer.as_deref(), Some("yes"));
        let outcome = running.await.unwrap();
        assert_eq!(outcome.run.status, RunStatus::Completed);
        assert_eq!(notes.all(), ["first", "asks 1", "hears yes false", "last"]);
        let types = types(&engine, &session).await;
        let of_questions: Vec<&str> = types
            .iter()
            .map(String::as_str)
            .filter(|t| t.starts_with("question_") || t.starts_with("run_"))
            .collect();
        assert_eq!(
            of_questions,
            [
                "run_started",
                "question_asked",
                "question_answered",
                "question_consumed",
                "run_completed"
            ]
        );
        let asked = &outcome.questions[0];
        assert_eq!(asked.status, QuestionStatus::Answered);
        assert!(asked.resumed_at.is_some() && !asked.timed_out);
    });
}

/// Has the run ask until it rests.
async fn park(host: &Host, notes: &Notes, question: Question) -> QuestionRecord {
    let (engine, session) = waits(host, COLD).await;
    let work = asks(notes, question);
    let outcome = rests(&session, options(host), work).await;
    assert_eq!(outcome.run.error, None);
    assert!(!outcome.is_stored);
    let step = &outcome.phases[0].steps[1];
    assert_eq!(step.status, StepStatus::Interrupted);
    assert!(step.snapshot_after.is_some(), "what it did is captured");
    let asked = outcome.questions.into_iter().next().unwrap();
    assert_eq!(asked.status, QuestionStatus::Open);
    let parked = EventType::QUESTION_PARKED;
    let events = all(&engine, &session).await;
    let parked = events.iter().find(|e| e.event_type == parked).unwrap();
    assert_eq!(parked.data["questions"], json!([asked.id]));
    engine.shutdown().await.unwrap();
    asked
}

#[test]
fn one_that_nobody_answers_rests_and_goes_on_once_with_the_first_answer_where_it_asked() {
    let (host, notes) = (Host::new(), Notes::default());
    on_a_runtime(async {
        let asked = park(&host, &notes, go()).await;
        assert_eq!(host.read("half").as_deref(), Some("x"));
        let (engine, session) = host.session().await;
        let incomplete = || async {
            let found = engine.runs(RunQuery::default().incomplete()).await.unwrap();
            found.into_iter().map(|run| run.id).collect::<Vec<_>>()
        };
        // Nothing holds the workspace, nothing is claimable, and starting it again only tells where
        // it stands.
        assert!(incomplete().await.is_empty());
        let told = session
            .execute_run(options(&host), asks(&notes, go()))
            .await
            .unwrap();
        assert_eq!(told.run.status, RunStatus::WaitingForInput);
        assert!(told.is_stored);
        assert_eq!(told.questions[0].id, asked.id);
        let refused = engine.answer(&asked.id, "maybe").await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidOptions);
        engine.answer(&asked.id, "yes").await.unwrap();
        let late = engine.answer(&asked.id, "no").await.unwrap_err();
        assert_eq!(late.kind(), ErrorKind::Conflict);
        assert!(
            late.to_string().contains("the first answer counts"),
            "{late}"
        );
        assert_eq!(incomplete().await, [id()]);
        let outcome = completes(&session, options(&host), asks(&notes, go())).await;
        let done = ["first", "asks 1", "asks 2", "hears yes false", "last"];
        assert_eq!(notes.all(), done);
        assert_eq!(host.read("half").as_deref(), Some("x"), "it began anew");
        assert_eq!(outcome.questions.len(), 1, "it did not ask again");
        assert!(incomplete().await.is_empty());
    });
}

#[test]
fn at_its_deadline_the_default_counts_also_if_nobody_was_there() {
    let (host, notes) = (Host::new(), Notes::default());
    on_a_runtime(async {
        let question = go().deadline(Duration::from_millis(700), "no");
        let asked = park(&host, &notes, question.clone()).await;
        assert_eq!(asked.default.as_deref(), Some("no"));
        host.is_past(DEADLINE).await;
        let (engine, session) = host.session().await;
        let late = engine.answer(&asked.id, "yes").await.unwrap_err();
        assert_eq!(late.kind(), ErrorKind::Conflict);
        assert!(late.to_string().contains("its time was up"), "{late}");
        let work = asks(&notes, question);
        let outcome = completes(&session, options(&host), work).await;
        assert!(notes.all().contains(&"hears no true".to_owned()));
        assert!(outcome.questions[0].timed_out);
    });
}

#[test]
fn at_its_deadline_the_default_counts_while_the_engine_waits_too() {
    let (host, notes) = (Host::new(), Notes::default());
    on_a_runtime(async {
        let (_engine, session) = host.session().await;
        let question = go().deadline(Duration::from_millis(50), "no");
        let work = asks(&notes, question);
        completes(&session, options(&host), work).await;
        assert_eq!(notes.all(), ["first", "asks 1", "hears no true", "last"]);
    });
}

#[test]
fn a_host_that_says_how_has_its_answered_runs_gone_on_with_once() {
    let (host, notes) = (Host::new(), Notes::default());
    on_a_runtime(async {
        let asked = park(&host, &notes, go()).await;
        let (path, resumed) = (host.workspace(), notes.clone());
        let resumer = move |run: &RunRecord| {
            let options = RunOptions::new(&run.input).workspace(path.clone());
            Some((options, BoxAdapter::new(asks(&resumed, go()))))
        };
        let engine = engine(&host, |options| {
            let sweep = Duration::from_millis(20);
            options.question_sweep(sweep).resumer(resumer)
        })
        .await;
        // Each sweep looks at the clock.
        host.looks_at_the_clock(10).await;
        assert_eq!(
            engine.find_run("ticket-42").await.unwrap().status,
            RunStatus::WaitingForInput,
            "nobody has answered"
        );
        engine.answer(&asked.id, "yes").await.unwrap();
        until(&engine, "ticket-42", RunStatus::Completed).await;
        host.looks_at_the_clock(5).await;
        let done = ["first", "asks 1", "asks 2", "hears yes false", "last"];
        assert_eq!(notes.all(), done);
        engine.shutdown().await.unwrap();
    });
}

#[test]
fn one_whose_engine_dies_while_it_asks_rests_and_its_answer_is_not_lost() {
    let (host, notes) = (Host::new(), Notes::default());
    let asked = die_in_the_middle_of(async {
        let (engine, session) = host.session().await;
        let (work, options) = (asks(&notes, go()), options(&host));
        tokio::spawn(async move { session.execute_run(options, work).await });
        open(&engine).await
    });
    on_a_runtime(async {
        let (engine, session) = host.session().await;
        let run = engine.find_run("ticket-42").await.unwrap();
        assert_eq!(run.status, RunStatus::WaitingForInput);
        engine.answer(&asked.id, "no").await.unwrap();
        let work = asks(&notes, go());
        completes(&session, options(&host), work).await;
        let done = ["first", "asks 1", "asks 2", "hears no false", "last"];
        assert_eq!(notes.all(), done);
    });
}

#[test]
fn one_that_is_cancelled_while_it_rests_never_goes_on_and_takes_no_answer() {
    let (host, notes) = (Host::new(), Notes::default());
    on_a_runtime(async {
        let asked = park(&host, &notes, go()).await;
        let (engine, session) = host.session().await;
        engine.cancel_run(&id()).await.unwrap();
        let run = engine.find_run("ticket-42").await.unwrap();
        assert_eq!(run.status, RunStatus::Cancelled);
        let refused = engine.answer(&asked.id, "yes").await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Conflict);
        let work = asks(&notes, go());
        let outcome = session.execute_run(options(&host), work).await.unwrap();
        assert_eq!(outcome.run.status, RunStatus::Cancelled);
        assert_eq!(outcome.questions[0].status, QuestionStatus::Withdrawn);
        assert_eq!(notes.all(), ["first", "asks 1"]);
    });
}

#[test]
fn one_that_cannot_be_resumed_waits_in_memory_until_its_deadline() {
    let host = Host::new();
    on_a_runtime(async {
        let (engine, session) = waits(&host, COLD).await;
        let work = Work(|context: RunContext| async move {
            let question = go().deadline(Duration::from_millis(300), "no");
            let answer = context.ask(question).await?;
            Ok(AdapterOutput::with_data(json!(answer.text)))
        });
        let outcome = completes(&session, options(&host), work).await;
        assert_eq!(outcome.run.output.unwrap().data, json!("no"));
        let types = types(&engine, &session).await;
        assert!(!types.contains(&"question_parked".to_owned()), "{types:?}");
    });
}

#[test]
fn one_that_still_works_beside_its_question_is_not_put_to_rest() {
    let host = Host::new();
    on_a_runtime(async {
        let (engine, session) = waits(&host, COLD).await;
        let (release, released) = tokio::sync::watch::channel(false);
        let work = Work(move |context: RunContext| {
            let mut released = released.clone();
            async move {
                let (one, other) = (context.phase("one"), context.phase("other"));
                let works = one.step("works", |_| async move {
                    let _ = released.wait_for(|is| *is).await;
                    Ok(())
                });
                let asks = other.step("asks", |step| async move { Ok(step.ask(go()).await?.text) });
                let (worked, asked) = tokio::join!(works, asks);
                worked?;
                asked?;
                Ok(AdapterOutput::empty())
            }
        });
        let running = begin(&session, options(&host), work);
        open(&engine).await;
        // Whoever asks looks at the clock each time that it looks for its answer.
        host.looks_at_the_clock(2).await;
        let status = engine.find_run("ticket-42").await.unwrap().status;
        assert_eq!(status, RunStatus::Asking, "its other step works");
        release.send(true).unwrap();
        let outcome = running.await.unwrap();
        assert_eq!(outcome.run.status, RunStatus::WaitingForInput);
        let one = outcome.phases.iter().find(|phase| phase.name == "one");
        assert_eq!(one.unwrap().steps[0].status, StepStatus::Completed);
    });
}

#[test]
fn a_question_that_is_no_longer_waited_for_is_taken_back_and_the_run_goes_on() {
    let host = Host::new();
    on_a_runtime(async {
        let (engine, session) = host.session().await;
        let work = Work(|context: RunContext| async move {
            let phase = context.phase("p");
            let late = phase.step("asks", |step| async move {
                let asked = step.ask(go());
                Ok(tokio::time::timeout(Duration::from_millis(200), asked)
                    .await
                    .is_err())
            });
            assert!(late.await?);
            Ok(AdapterOutput::empty())
        });
        let outcome = completes(&session, options(&host), work).await;
        assert_eq!(outcome.questions[0].status, QuestionStatus::Withdrawn);
        assert!(engine.open_questions().await.unwrap().is_empty());
    });
}

#[test]
fn the_same_text_asked_again_is_another_question_and_each_keeps_its_answer() {
    let host = Host::new();
    let work = || {
        Work(|context: RunContext| async move {
            let both: (String, String) = context
                .phase("p")
                .step("asks", |step| async move {
                    let first = step.ask(Question::new("which?")).await?;
                    let second = step.ask(Question::new("which?")).await?;
                    Ok((first.text, second.text))
                })
                .await?;
            Ok(AdapterOutput::with_data(json!(both)))
        })
    };
    on_a_runtime(async {
        for text in ["one", "two"] {
            let (engine, session) = waits(&host, COLD).await;
            rests(&session, options(&host), work()).await;
            answer(&engine, text).await;
            engine.shutdown().await.unwrap();
        }
        let (_engine, session) = host.session().await;
        let outcome = completes(&session, options(&host), work()).await;
        assert_eq!(outcome.run.output.unwrap().data, json!(["one", "two"]));
    });
}

/// A step that asks how it goes on if it was cut off, which it is where somebody hears that it
/// `dies`.
fn asks_how(dies: Option<tokio::sync::mpsc::Sender<()>>) -> impl stillframe::Adapter {
    Work(move |context: RunContext| {
        let dies = dies.clone();
        async move {
            let mut options = StepOptions::new("a");
            options.rerun = Some(Rerun::Ask);
            let phase = context.phase("p");
            let step = phase.step_with(options, |step| {
                let dies = dies.clone();
                async move {
                    let path = step.workspace().unwrap().join("half");
                    let before = fs::read_to_string(&path).unwrap_or_default();
                    fs::write(&path, format!("{before}x")).unwrap();
                    if let Some(dies) = dies {
                        dies.send(()).await.unwrap();
                        std::future::pending::<()>().await;
                    }
                    Ok(())
                }
            });
            step.await?;
            Ok(AdapterOutput::empty())
        }
    })
}

/// Has the engine of that step die in the middle of it.
fn cut_off(host: &Host) {
    die_in_the_middle_of(async {
        let (engine, session) = host.session().await;
        let (sender, mut is_there) = tokio::sync::mpsc::channel(1);
        let (work, options) = (asks_how(Some(sender)), options(host));
        tokio::spawn(async move {
            let _engine = engine;
            session.execute_run(options, work).await
        });
        is_there.recv().await.unwrap();
    });
}

#[test]
fn how_a_step_that_was_cut_off_goes_on_is_asked_if_it_says_so() {
    for (answer, status, half) in [
        ("from_before", RunStatus::Completed, "x"),
        ("in_place", RunStatus::Completed, "xx"),
        ("give_up", RunStatus::Failed, "x"),
    ] {
        let host = Host::new();
        cut_off(&host);
        on_a_runtime(async {
            let (engine, session) = waits(&host, COLD).await;
            rests(&session, options(&host), asks_how(None)).await;
            let asked = open(&engine).await;
            assert_eq!(asked.choices, ["from_before", "in_place", "give_up"]);
            engine.answer(&asked.id, answer).await.unwrap();
            let outcome = session.execute_run(options(&host), asks_how(None)).await;
            let outcome = outcome.unwrap();
            assert_eq!(outcome.run.status, status, "{answer}: {:?}", outcome.run);
            assert_eq!(host.read("half").as_deref(), Some(half), "{answer}");
        });
    }
}

#[test]
fn an_answer_outlives_what_is_in_its_way_for_a_while_and_is_asked_anew_if_it_leads_nowhere() {
    // A capture that fails may succeed again; a branch that was moved is built upon.
    for (failing, asked_again) in [("guard", false), ("restore", true)] {
        let host = Host::new();
        cut_off(&host);
        on_a_runtime(async {
            let (engine, session) = waits(&host, COLD).await;
            let go_on = || async {
                let outcome = session.execute_run(options(&host), asks_how(None)).await;
                outcome.unwrap().run.status
            };
            assert_eq!(go_on().await, RunStatus::WaitingForInput);
            answer(&engine, "from_before").await;
            host.backend.fail(failing);
            assert_eq!(go_on().await, RunStatus::Interrupted, "{failing}");
            host.backend.heal(failing);
            if asked_again {
                assert_eq!(go_on().await, RunStatus::WaitingForInput);
                answer(&engine, "in_place").await;
            }
            assert_eq!(go_on().await, RunStatus::Completed, "{failing}");
            let half = if asked_again { "xx" } else { "x" };
            assert_eq!(host.read("half").as_deref(), Some(half), "{failing}");
        });
    }
}

#[test]
fn what_a_run_did_that_was_cancelled_while_it_rested_can_be_undone() {
    let (host, notes) = (Host::new(), Notes::default());
    on_a_runtime(async {
        park(&host, &notes, go()).await;
        assert_eq!(host.read("half").as_deref(), Some("x"));
        let (engine, session) = host.session().await;
        engine.cancel_run(&id()).await.unwrap();
        let target = stillframe::options::UndoTarget::Run("ticket-42".into());
        let undone = session.undo(&host.workspace(), target).await.unwrap();
        assert_eq!(undone.undone.run_id, Some(id()));
        assert_eq!(host.read("half"), None);
    });
}

#[test]
fn an_adapter_that_leaves_a_question_behind_completes_all_the_same() {
    let host = Host::new();
    on_a_runtime(async {
        let (engine, session) = host.session().await;
        let looks = engine.clone();
        let work = Work(move |context: RunContext| {
            let looks = looks.clone();
            async move {
                let phase = context.phase("p");
                let asks = phase.step("a", |step| async move {
                    tokio::spawn(async move { step.ask(go()).await });
                    open(&looks).await;
                    Ok(())
                });
                asks.await?;
                Ok(AdapterOutput::empty())
            }
        });
        completes(&session, options(&host), work).await;
        assert!(engine.open_questions().await.unwrap().is_empty());
        engine.shutdown().await.unwrap();
    });
}

#[test]
fn one_that_is_cancelled_while_it_is_put_to_rest_is_cancelled() {
    let (host, notes) = (Host::new(), Notes::default());
    on_a_runtime(async {
        let (engine, session) = waits(&host, COLD).await;
        let (gate, is_there, leave) = Gate::new();
        // Its work has been stopped, and what it left is being captured.
        host.backend.hold("after_failure", gate);
        let running = begin(&session, options(&host), asks(&notes, go()));
        wait_for(is_there).await;
        engine.cancel_run(&id()).await.unwrap();
        leave.send(()).unwrap();
        let outcome = running.await.unwrap();
        assert_eq!(outcome.run.status, RunStatus::Cancelled);
        assert_eq!(outcome.questions[0].status, QuestionStatus::Withdrawn);
    });
}

/// A clock of an engine at whose next look, once it is armed, another engine of the host answers
/// what is open: between what the engine with the clock has read and what it is about to write.
fn somebody_answers_at_a_look(
    host: &Host,
) -> (
    Arc<AtomicBool>,
    impl Fn() -> Timestamp + Send + Sync + 'static,
) {
    let (ask, asked) = mpsc::channel();
    let (tell, told) = mpsc::channel();
    let other = host.options();
    std::thread::spawn(move || {
        on_a_runtime(async {
            let engine = Engine::start(other).await.unwrap();
            tell.send(()).unwrap();
            while asked.recv().is_ok() {
                let question = open(&engine).await;
                engine.answer(&question.id, "yes").await.unwrap();
                tell.send(()).unwrap();
            }
        });
    });
    told.recv().unwrap();
    let (is_armed, somebody) = (Arc::new(AtomicBool::new(false)), Mutex::new((ask, told)));
    let armed = is_armed.clone();
    let clock = move || {
        if armed.swap(false, Ordering::AcqRel) {
            let (ask, told) = &*somebody.lock().unwrap();
            ask.send(()).unwrap();
            told.recv().unwrap();
        }
        Timestamp::from_second(1_700_000_000).unwrap()
    };
    (is_armed, clock)
}

#[test]
fn a_run_whose_question_is_answered_while_it_takes_it_back_completes_and_the_answer_stays() {
    let host = Host::new();
    let (is_armed, clock) = somebody_answers_at_a_look(&host);
    let looked = Arc::new(Mutex::new(HashSet::new()));
    let noted = looked.clone();
    let clock = move || {
        noted.lock().unwrap().extend(tokio::task::try_id());
        clock()
    };
    on_a_runtime(async {
        let engine = engine(&host, |options| options.clock(clock)).await;
        let session = engine.session("s").await.unwrap();
        let (armed, looks) = (is_armed.clone(), engine.clone());
        let work = Work(move |context: RunContext| {
            let (armed, looks, looked) = (armed.clone(), looks.clone(), looked.clone());
            async move {
                fs::write(context.workspace.as_ref().unwrap().join("done"), "x").unwrap();
                let asks = tokio::spawn(async move { context.ask(go()).await }).id();
                open(&looks).await;
                // From then on nobody but who takes it back looks at the clock for a while.
                eventually("it looks for its answer", || async {
                    looked.lock().unwrap().contains(&asks)
                })
                .await;
                armed.store(true, Ordering::Release);
                Ok(AdapterOutput::empty())
            }
        });
        let outcome = completes(&session, options(&host), work).await;
        assert!(!is_armed.load(Ordering::Acquire), "somebody has answered");
        assert_eq!(outcome.questions[0].answer.as_deref(), Some("yes"));
        let changed = outcome.workspace.diff.unwrap().files_changed;
        assert_eq!(changed, 1, "what it did is captured");
        let run = engine.find_run("ticket-42").await.unwrap();
        assert_eq!(run.status, RunStatus::Completed);
    });
}

#[test]
fn a_run_whose_question_is_answered_while_it_gives_up_waiting_can_rest_for_another() {
    let host = Host::new();
    let (is_armed, clock) = somebody_answers_at_a_look(&host);
    on_a_runtime(async {
        let engine = engine(&host, |options| {
            options.clock(clock).hot_wait(Duration::from_millis(400))
        })
        .await;
        let session = engine.session("s").await.unwrap();
        let armed = is_armed.clone();
        let work = Work(move |context: RunContext| {
            let armed = armed.clone();
            async move {
                let phase = context.phase("p");
                phase
                    .step("asks", |step| async move {
                        let mut first = Box::pin(step.ask(Question::new("first?")));
                        // Until nobody but who takes it back looks at the clock.
                        let waited = Duration::from_millis(200);
                        assert!(tokio::time::timeout(waited, &mut first).await.is_err());
                        armed.store(true, Ordering::Release);
                        drop(first);
                        eventually("somebody has answered", || async {
                            !armed.load(Ordering::Acquire)
                        })
                        .await;
                        Ok(step.ask(Question::new("second?")).await?.text)
                    })
                    .await?;
                Ok(AdapterOutput::empty())
            }
        });
        let running = session.execute_run(options(&host), work);
        let outcome = tokio::time::timeout(Duration::from_secs(20), running).await;
        let outcome = outcome.expect("it rests").unwrap();
        assert_eq!(outcome.run.status, RunStatus::WaitingForInput);
        assert!(!is_armed.load(Ordering::Acquire), "somebody has answered");
        let of = |text: &str| outcome.questions.iter().find(|q| q.text == text).unwrap();
        assert_eq!(of("first?").answer.as_deref(), Some("yes"));
        assert_eq!(of("second?").status, QuestionStatus::Open);
    });
}

#[test]
fn an_engine_that_is_full_of_runs_that_wait_takes_answers_and_cancels_what_rests() {
    let (host, notes) = (Host::new(), Notes::default());
    on_a_runtime(async {
        park(&host, &notes, go()).await;
        let engine = engine(&host, |options| options.max_operations(1)).await;
        let session = engine.session("t").await.unwrap();
        let work = Work(|context: RunContext| async move {
            let answer = context.ask(Question::new("full?")).await?;
            Ok(AdapterOutput::with_data(json!(answer.text)))
        });
        let options = RunOptions::new("x").run_id("full".parse().unwrap());
        let running = begin(&session, options, work);
        let asked = open_where(&engine, |question| question.text == "full?").await;
        let refused = session
            .execute_run(RunOptions::new("x"), crate::support::writes("x", "x"))
            .await
            .unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Busy, "{refused}");
        engine.cancel_run(&id()).await.unwrap();
        let rested = engine.find_run("ticket-42").await.unwrap();
        assert_eq!(rested.status, RunStatus::Cancelled);
        engine.answer(&asked.id, "yes").await.unwrap();
        let outcome = running.await.unwrap();
        assert_eq!(outcome.run.output.unwrap().data, json!("yes"));
        engine.shutdown().await.unwrap();
        let late = engine.answer(&asked.id, "no").await.unwrap_err();
        assert_eq!(late.kind(), ErrorKind::Unavailable);
    });
}

#[test]
fn an_engine_that_is_there_for_a_moment_finds_what_goes_on_by_its_default() {
    let (host, notes) = (Host::new(), Notes::default());
    on_a_runtime(async {
        let question = go().deadline(Duration::from_millis(700), "no");
        let asked = park(&host, &notes, question.clone()).await;
        let waits = RunQuery::default().incomplete();
        let early = host.engine().await;
        assert!(early.runs(waits.clone()).await.unwrap().is_empty());
        early.shutdown().await.unwrap();
        host.is_past(DEADLINE).await;
        // It looks after questions every 15 s, and is gone by then.
        let engine = host.engine().await;
        let found = engine.runs(waits).await.unwrap();
        let found: Vec<_> = found.into_iter().map(|run| run.id).collect();
        assert_eq!(found, [id()]);
        assert!(engine.open_questions().await.unwrap().is_empty());
        engine.shutdown().await.unwrap();
        let (_engine, session) = host.session().await;
        let work = asks(&notes, question);
        let outcome = completes(&session, options(&host), work).await;
        assert!(notes.all().contains(&"hears no true".to_owned()));
        assert_eq!(outcome.questions[0].id, asked.id);
    });
}

#[test]
fn a_question_whose_time_is_up_is_shown_with_its_answer_by_whoever_shows_it_first() {
    let (host, notes) = (Host::new(), Notes::default());
    on_a_runtime(async {
        let question = go().deadline(Duration::from_millis(700), "no");
        let asked = park(&host, &notes, question.clone()).await;
        host.is_past(DEADLINE).await;
        let engine = host.engine().await;
        let found = engine.find_question(asked.id.as_str()).await.unwrap();
        assert_eq!(found.status, QuestionStatus::Answered);
        assert!(found.timed_out && found.answer.as_deref() == Some("no"));
        engine.shutdown().await.unwrap();

        let (host, notes) = (Host::new(), Notes::default());
        park(&host, &notes, question).await;
        host.is_past(DEADLINE).await;
        let engine = host.engine().await;
        let told = engine.export_run("ticket-42").await.unwrap().questions;
        assert_eq!(told[0].answer.as_deref(), Some("no"));
    });
}

/// Waits until the run is here.
async fn until(engine: &Engine, run: &str, status: RunStatus) {
    eventually(&format!("{run} gets to be {status}"), || async {
        engine.find_run(run).await.unwrap().status == status
    })
    .await;
}

#[test]
fn a_host_that_panics_over_one_run_is_asked_for_the_others_and_deadlines_pass() {
    let (host, notes) = (Host::new(), Notes::default());
    on_a_runtime(async {
        let asked = park(&host, &notes, go()).await;
        let is_offered = Arc::new(AtomicBool::new(false));
        let offered = is_offered.clone();
        let resumer = move |_: &RunRecord| -> Option<(RunOptions, BoxAdapter)> {
            offered.store(true, Ordering::Release);
            panic!("the host is broken")
        };
        let engine = engine(&host, |options| {
            let sweep = Duration::from_millis(20);
            options
                .question_sweep(sweep)
                .resumer(resumer)
                .hot_wait(COLD)
        })
        .await;
        engine.answer(&asked.id, "yes").await.unwrap();
        eventually("it is offered", || async {
            is_offered.load(Ordering::Acquire)
        })
        .await;
        let question = go().deadline(Duration::from_secs(1), "no");
        rest_all(&engine, ["other"], question).await;
        eventually("the sweep goes on", || is_answered(&engine, "other")).await;
    });
}

/// Whether a question of this run was answered, by the log. Whoever looks at the run or at the
/// question settles it himself.
async fn is_answered(engine: &Engine, run: &str) -> bool {
    let answered = EventQuery::all().run(run.parse().unwrap());
    let answered = answered.of_type(EventType::QUESTION_ANSWERED);
    !engine.events(answered).await.unwrap().is_empty()
}

/// A run without a workspace that asks in its only step.
fn only_asks(question: Question) -> impl stillframe::Adapter {
    Work(move |context: RunContext| {
        let question = question.clone();
        async move {
            let phase = context.phase("p");
            let asks = phase.step(
                "a",
                |step| async move { Ok(step.ask(question).await?.text) },
            );
            Ok(AdapterOutput::with_data(json!(asks.await?)))
        }
    })
}

/// Has such runs ask until they rest, in session `s`.
async fn rest_all<const N: usize>(engine: &Engine, ids: [&str; N], question: Question) {
    let session = engine.session("s").await.unwrap();
    for id in ids {
        let options = RunOptions::new("x").run_id(id.parse().unwrap());
        rests(&session, options, only_asks(question.clone())).await;
    }
}

#[test]
fn a_question_that_cannot_be_settled_is_in_no_other_runs_way() {
    for (trouble, is_readable) in [
        (
            "UPDATE questions SET row_sum = 1 WHERE run_id <> 'good'",
            false,
        ),
        ("UPDATE steps SET row_sum = 1 WHERE run_id <> 'good'", true),
        (
            "CREATE TRIGGER no_answer BEFORE UPDATE ON questions WHEN NEW.run_id <> 'good'
             BEGIN SELECT RAISE(ABORT, 'no room'); END",
            true,
        ),
    ] {
        let host = Host::new();
        on_a_runtime(async {
            let question = go().deadline(Duration::from_millis(700), "no");
            let setup = engine(&host, |options| options.hot_wait(COLD)).await;
            // In whichever order they are looked at, one that is in trouble comes before it.
            rest_all(&setup, ["first", "good", "last"], question.clone()).await;
            let of_first = setup.export_run("first").await.unwrap().questions.remove(0);
            setup.shutdown().await.unwrap();
            let log = rusqlite::Connection::open(host.state().join("stillframe.db")).unwrap();
            log.execute_batch(trouble).unwrap();
            let is_settled = Arc::new(AtomicBool::new(false));
            let may_go_on = is_settled.clone();
            let resumer = move |run: &RunRecord| {
                let goes_on = run.id.as_str() == "good" && may_go_on.load(Ordering::Acquire);
                let work = BoxAdapter::new(only_asks(question.clone()));
                goes_on.then(|| (RunOptions::new(&run.input), work))
            };
            let engine = engine(&host, |options| {
                let sweep = Duration::from_millis(20);
                options.question_sweep(sweep).resumer(resumer)
            })
            .await;
            eventually("the sweep gives it its default", || {
                is_answered(&engine, "good")
            })
            .await;
            is_settled.store(true, Ordering::Release);
            until(&engine, "good", RunStatus::Completed).await;
            for id in ["first", "last"] {
                let left = engine.find_run(id).await.unwrap();
                assert_eq!(left.status, RunStatus::WaitingForInput, "{trouble}");
            }
            let found = engine.find_question(of_first.id.as_str()).await;
            assert_eq!(found.is_ok(), is_readable, "{trouble}");
        });
    }
}

#[test]
fn a_run_that_the_host_declines_is_offered_at_each_look_and_one_that_cannot_go_on_less_and_less_often()
 {
    let (host, offers) = (Host::new(), Notes::default());
    on_a_runtime(async {
        let is_ready = Arc::new(AtomicBool::new(false));
        let (noted, ready, elsewhere) = (offers.clone(), is_ready.clone(), host.workspace());
        let resumer = move |run: &RunRecord| {
            noted.note(run.id.as_str());
            let options = RunOptions::new(&run.input);
            let options = match run.id.as_str() {
                id if id.starts_with("declined") && !ready.load(Ordering::Acquire) => return None,
                // It was begun in no workspace.
                "refused" => options.workspace(elsewhere.clone()),
                "panics" => panic!("the host is broken"),
                _ => options,
            };
            Some((options, BoxAdapter::new(only_asks(go()))))
        };
        let engine = engine(&host, |options| {
            let sweep = Duration::from_millis(20);
            let options = options.question_sweep(sweep).resumer(resumer);
            options.hot_wait(COLD)
        })
        .await;
        // In whichever order they are looked at, one that is declined comes before it.
        let ids = ["declined", "refused", "good", "panics", "declined-too"];
        rest_all(&engine, ids, go()).await;
        for asked in engine.open_questions().await.unwrap() {
            engine.answer(&asked.id, "yes").await.unwrap();
        }
        until(&engine, "good", RunStatus::Completed).await;
        let offered = |id: &str| offers.all().iter().filter(|of| *of == id).count();
        eventually("it is offered at each look", || async {
            offered("declined") >= 40
        })
        .await;
        for id in ["refused", "panics"] {
            let count = offered(id);
            assert!((2..20).contains(&count), "{id}: {count} times");
        }
        is_ready.store(true, Ordering::Release);
        until(&engine, "declined", RunStatus::Completed).await;
    });
}

#[test]
fn a_run_that_was_interrupted_before_it_used_its_answer_is_gone_on_with_again() {
    let (host, notes) = (Host::new(), Notes::default());
    on_a_runtime(async {
        let asked = park(&host, &notes, go()).await;
        let (path, resumed, backend) = (host.workspace(), notes.clone(), host.backend.clone());
        let resumer = move |run: &RunRecord| {
            let options = RunOptions::new(&run.input).workspace(path.clone());
            resumed.note(format!("offered {}", run.status));
            Some((options, BoxAdapter::new(asks(&resumed, go()))))
        };
        let engine = engine(&host, |options| {
            let sweep = Duration::from_millis(50);
            options.question_sweep(sweep).resumer(resumer)
        })
        .await;
        // For a while the step that asked cannot be gone back from.
        backend.fail("guard");
        engine.answer(&asked.id, "yes").await.unwrap();
        until(&engine, "ticket-42", RunStatus::Interrupted).await;
        backend.heal("guard");
        until(&engine, "ticket-42", RunStatus::Completed).await;
        let notes = notes.all();
        assert!(
            notes.contains(&"offered interrupted".to_owned()),
            "{notes:?}"
        );
        let heard = notes
            .iter()
            .filter(|note| note.starts_with("hears"))
            .count();
        assert_eq!(heard, 1, "{notes:?}");
        engine.shutdown().await.unwrap();
    });
}

/// A step that asks, and that adds to a file beside its question; `with` says how.
fn works_beside<F, R>(engine: &Engine, with: F) -> impl stillframe::Adapter + use<F, R>
where
    F: Fn(stillframe::steps::StepContext, std::path::PathBuf) -> R + Copy + Send + Sync + 'static,
    R: Future<Output = Result<(), stillframe::AdapterError>> + Send,
{
    let engine = engine.clone();
    Work(move |context: RunContext| {
        let engine = engine.clone();
        async move {
            let phase = context.phase("p");
            let asks = phase.step("asks", |step| async move {
                let path = step.workspace().unwrap().join("half");
                let beside = async {
                    eventually("it has asked", || async {
                        let run = engine.export_run("ticket-42").await.unwrap();
                        !run.questions.is_empty()
                    })
                    .await;
                    with(step.clone(), path).await
                };
                let (asked, worked) = tokio::join!(step.ask(go()), beside);
                asked?;
                worked
            });
            asks.await?;
            Ok(AdapterOutput::empty())
        }
    })
}

fn add_to(path: &std::path::Path) {
    let before = fs::read_to_string(path).unwrap_or_default();
    fs::write(path, format!("{before}x")).unwrap();
}

/// Has that run rest, be answered and go on.
fn goes_on_as_from_its_beginning<A: stillframe::Adapter>(work: impl Fn(&Engine) -> A) {
    let host = Host::new();
    on_a_runtime(async {
        let hot = Duration::from_millis(800);
        let (engine, session) = waits(&host, hot).await;
        rests(&session, options(&host), work(&engine)).await;
        assert_eq!(host.read("half").as_deref(), Some("x"));
        answer(&engine, "yes").await;
        completes(&session, options(&host), work(&engine)).await;
        assert_eq!(host.read("half").as_deref(), Some("x"), "it began anew");
    });
}

#[test]
fn a_step_that_does_a_task_beside_its_question_begins_anew() {
    goes_on_as_from_its_beginning(|engine| {
        works_beside(engine, |step, path| async move {
            let task = step.task("beside", async {
                add_to(&path);
                Ok(())
            });
            task.await
        })
    });
}

#[test]
fn a_step_that_calls_a_tool_beside_its_question_begins_anew() {
    goes_on_as_from_its_beginning(|engine| {
        works_beside(engine, |step, path| async move {
            let edit = stillframe::steps::ToolOptions::new("Edit");
            let call = step.run.call_tool(edit, async {
                add_to(&path);
                Ok(())
            });
            call.await?;
            Ok(())
        })
    });
}

#[test]
fn a_step_that_is_cut_off_in_a_tool_that_it_called_as_it_asked_begins_anew() {
    let work = |engine: &Engine| {
        let engine = engine.clone();
        Work(move |context: RunContext| {
            let engine = engine.clone();
            async move {
                let phase = context.phase("p");
                let asks = phase.step("asks", |step| async move {
                    let path = step.workspace().unwrap().join("half");
                    let mut edit = stillframe::steps::ToolOptions::new("Edit");
                    // Nothing is captured around it, so that it is at work before the question is
                    // on record.
                    edit.read_only = vec!["Edit".to_owned()];
                    let call = Box::pin(step.run.call_tool(edit, async {
                        eventually("it is asked", || async {
                            let run = engine.export_run("ticket-42").await.unwrap();
                            !run.questions.is_empty()
                        })
                        .await;
                        add_to(&path);
                        if step.attempt == 1 {
                            std::future::pending::<()>().await;
                        }
                        Ok(())
                    }));
                    let beside = async {
                        tokio::select! {
                            biased;
                            () = step.cancellation().cancelled() => {}
                            called = call => assert!(called.is_ok()),
                        }
                    };
                    let (asked, ()) = tokio::join!(step.ask(go()), beside);
                    asked?;
                    Ok(())
                });
                asks.await?;
                Ok(AdapterOutput::empty())
            }
        })
    };
    goes_on_as_from_its_beginning(work);
}

#[test]
fn a_step_that_hears_another_answer_while_it_waits_begins_anew() {
    let work = |_: &Engine| {
        Work(|context: RunContext| async move {
            let phase = context.phase("p");
            phase
                .step("asks", |step| async move {
                    let path = step.workspace().unwrap().join("half");
                    let other = Box::pin(async {
                        let other = Question::new("other?");
                        let other = other.deadline(Duration::from_millis(200), "no");
                        let answer = step.ask(other).await?;
                        add_to(&path);
                        Ok::<_, stillframe::Error>(answer)
                    });
                    let (asked, heard) = tokio::join!(step.ask(go()), other);
                    asked?;
                    heard?;
                    Ok(())
                })
                .await?;
            Ok(AdapterOutput::empty())
        })
    };
    goes_on_as_from_its_beginning(work);
}

#[test]
fn what_somebody_does_while_a_step_waits_stays_also_if_it_worked_before() {
    let host = Host::new();
    let work = || {
        Work(|context: RunContext| async move {
            let phase = context.phase("p");
            phase
                .step("asks", |step| async move {
                    let path = step.workspace().unwrap().join("half");
                    let task = step.task("before", async {
                        add_to(&path);
                        Ok(())
                    });
                    task.await?;
                    Ok(step.ask(go()).await?.text)
                })
                .await?;
            Ok(AdapterOutput::empty())
        })
    };
    on_a_runtime(async {
        let hot = Duration::from_millis(300);
        let (engine, session) = waits(&host, hot).await;
        let running = begin(&session, options(&host), work());
        let asked = open(&engine).await;
        host.write("mine", "mine");
        let outcome = running.await.unwrap();
        assert_eq!(outcome.run.status, RunStatus::WaitingForInput);
        engine.answer(&asked.id, "yes").await.unwrap();
        completes(&session, options(&host), work()).await;
        assert_eq!(host.read("half").as_deref(), Some("x"), "it began anew");
        assert_eq!(host.read("mine").as_deref(), Some("mine"));
    });
}
