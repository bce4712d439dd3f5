//! Runs that can be resumed: phases, steps, leases, and an id that is started again.

use std::fs;
use std::io::{self, Read};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use stillframe::backends::{Operation, StateDir, Workspace};
use stillframe::events::EventType;
use stillframe::options::{RunQuery, SessionQuery};
use stillframe::records::{ArtifactDraft, PhaseRecord, RestoreStatus, SessionStatus, StepStatus};
use stillframe::steps::{
    Rerun, RetryPolicy, StepContext, StepError, StepIdentity, StepOptions, StepPlan,
};
use stillframe::{
    AdapterError, AdapterOutput, Engine, ErrorKind, RunContext, RunId, RunOptions, RunStatus,
    SessionManager,
};

use crate::support::{
    Gate, Host, Work, all, completed, die_in_the_middle_of, eventually, on_a_runtime,
    on_one_thread, ruins, types, wait_for, writes,
};

fn id() -> RunId {
    "ticket-42".parse().unwrap()
}

fn options(host: &Host) -> RunOptions {
    RunOptions::new("fix it")
        .workspace(host.workspace())
        .run_id(id())
}

fn write(step: &StepContext, name: &str, text: &str) {
    fs::write(step.workspace().unwrap().join(name), text).unwrap();
}

/// How often each step was done, over all engines.
#[derive(Clone, Default)]
struct Counts(Arc<Mutex<Vec<String>>>);

impl Counts {
    fn note(&self, name: &str) {
        self.0.lock().unwrap().push(name.to_owned());
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

/// Two steps, of which the second writes a file in two halves, with `between` in the middle.
async fn two_steps<R>(
    context: RunContext,
    counts: Counts,
    rerun: Option<Rerun>,
    between: impl Fn() -> R + Clone,
) -> Result<AdapterOutput, AdapterError>
where
    R: Future<Output = ()>,
{
    let made: String = context
        .phase("plan")
        .step("analyse", |step| {
            let counts = counts.clone();
            async move {
                counts.note("analyse");
                write(&step, "plan", "the plan\n");
                Ok("parser".to_owned())
            }
        })
        .await?;
    assert_eq!(made, "parser");
    let mut options = StepOptions::new("apply").definition("v1");
    options.rerun = rerun;
    context
        .phase("edit")
        .iteration(2)
        .step_with(options, |step| {
            let (counts, between) = (counts.clone(), between.clone());
            async move {
                counts.note(&format!("apply {}", step.attempt));
                let half = step.workspace().unwrap().join("half");
                let found = half.exists();
                write(&step, "half", "done\n");
                between().await;
                write(&step, "other", if found { "again\n" } else { "anew\n" });
                Ok(())
            }
        })
        .await?;
    Ok(AdapterOutput::with_data(json!({ "made": made })))
}

/// Leaves a run in the middle of its second step.
fn leave_in_the_second_step(host: &Host, counts: &Counts) {
    die_in_the_middle_of(async {
        let (engine, session) = host.session().await;
        let (started, has_started) = tokio::sync::oneshot::channel();
        let started = Arc::new(Mutex::new(Some(started)));
        let counts = counts.clone();
        let work = Work(move |context| {
            let (started, counts) = (started.clone(), counts.clone());
            two_steps(context, counts, None, move || {
                let started = started.lock().unwrap().take();
                async move {
                    let _ = started.unwrap().send(());
                    std::future::pending().await
                }
            })
        });
        let options = options(host);
        tokio::spawn(async move {
            let _engine = engine;
            session.execute_run(options, work).await
        });
        has_started.await.unwrap();
    });
}

async fn phases(engine: &Engine) -> Vec<PhaseRecord> {
    engine.export_run("ticket-42").await.unwrap().phases
}

fn go_on(counts: &Counts, rerun: Option<Rerun>) -> impl stillframe::Adapter {
    let counts = counts.clone();
    Work(move |context| two_steps(context, counts.clone(), rerun, || async {}))
}

#[test]
fn a_run_goes_on_in_the_step_that_was_cut_off_and_does_no_other_again() {
    let host = Host::new();
    let counts = Counts::default();
    leave_in_the_second_step(&host, &counts);
    assert_eq!(host.read("half").as_deref(), Some("done\n"));
    on_a_runtime(async {
        let (engine, session) = host.session().await;
        let run = engine.find_run("ticket-42").await.unwrap();
        assert_eq!(run.status, RunStatus::Interrupted);
        assert_eq!((run.ended_at, &run.error), (None, &None));
        let found = phases(&engine).await;
        let step = &found[1].steps[0];
        assert_eq!(found[0].steps[0].status, StepStatus::Completed);
        assert_eq!(found[0].status, StepStatus::Completed);
        assert_eq!(found[1].status, StepStatus::Interrupted);
        assert_eq!((step.status, step.attempt), (StepStatus::Interrupted, 1));
        let left = step
            .snapshot_after
            .clone()
            .expect("what it left is captured");
        let interrupted: Vec<_> = all(&engine, &session)
            .await
            .into_iter()
            .filter(|e| e.data["recovered"] == true)
            .map(|e| e.event_type.to_string())
            .collect();
        assert_eq!(
            interrupted,
            [
                "step_interrupted",
                "phase_completed",
                "phase_interrupted",
                "run_interrupted"
            ]
        );
        let incomplete = engine.runs(RunQuery::all().incomplete()).await.unwrap();
        assert_eq!(incomplete[0].id, id());

        let outcome = session
            .execute_run(options(&host), go_on(&counts, None))
            .await
            .unwrap();
        assert_eq!(outcome.run.status, RunStatus::Completed);
        assert!(!outcome.is_stored);
        assert_eq!(counts.all(), ["analyse", "apply 1", "apply 2"]);
        assert_eq!(
            host.read("other").as_deref(),
            Some("anew\n"),
            "the step went back to where it began"
        );
        assert_eq!(outcome.workspace.diff.unwrap().files_changed, 3);
        assert_eq!(outcome.phases.len(), 2);
        assert_eq!(outcome.phases[0].status, StepStatus::Completed);
        assert_eq!(outcome.phases[1].iteration, 2);
        let step = &outcome.phases[1].steps[0];
        assert_eq!((step.status, step.attempt), (StepStatus::Completed, 2));
        let snapshots = engine.snapshots(&host.workspace()).await.unwrap();
        let has = |id| snapshots.iter().any(|s| s.id == id);
        assert!(has(left) && has(step.snapshot_after.clone().unwrap()));
        let sequence: Vec<_> = all(&engine, &session)
            .await
            .iter()
            .map(|e| e.sequence)
            .collect();
        assert_eq!(sequence, (1..=sequence.len() as u64).collect::<Vec<_>>());
        let incomplete = engine.runs(RunQuery::all().incomplete()).await.unwrap();
        assert!(incomplete.is_empty());
    });
}

#[test]
fn a_step_that_is_rerun_in_place_finds_what_it_left() {
    let host = Host::new();
    let counts = Counts::default();
    leave_in_the_second_step(&host, &counts);
    on_a_runtime(async {
        let (_engine, session) = host.session().await;
        session
            .execute_run(options(&host), go_on(&counts, Some(Rerun::InPlace)))
            .await
            .unwrap();
        assert_eq!(host.read("other").as_deref(), Some("again\n"));
    });
}

#[test]
fn what_was_edited_since_a_run_was_cut_off_is_in_the_guard() {
    let host = Host::new();
    leave_in_the_second_step(&host, &Counts::default());
    on_a_runtime(async {
        // The crash is captured, and the user goes on working before the run does.
        let (engine, session) = host.session().await;
        host.write("half", "edited by hand\n");
        let outcome = session
            .execute_run(options(&host), go_on(&Counts::default(), None))
            .await
            .unwrap();
        assert_eq!(outcome.run.status, RunStatus::Completed, "{outcome:?}");
        let restored = all(&engine, &session)
            .await
            .into_iter()
            .find(|e| e.event_type == EventType::WORKSPACE_ROLLED_BACK)
            .expect("the step went back");
        let guard = restored.data["guard"].as_str().unwrap().to_owned();
        session
            .restore(&host.workspace(), stillframe::RestoreRequest::to(guard))
            .await
            .unwrap();
        assert_eq!(host.read("half").as_deref(), Some("edited by hand\n"));
    });
}

#[test]
fn a_run_that_has_ended_answers_with_what_is_on_record() {
    let host = Host::new();
    on_a_runtime(async {
        let (engine, session) = host.session().await;
        let first = session
            .execute_run(options(&host), go_on(&Counts::default(), None))
            .await
            .unwrap();
        let events = types(&engine, &session).await;
        let again = session
            .execute_run(options(&host), writes("never", "written\n"))
            .await
            .unwrap();
        assert!(again.is_stored && !first.is_stored);
        assert_eq!(host.read("never"), None);
        assert_eq!(again.run.status, RunStatus::Completed);
        assert_eq!(again.run.output.unwrap().data, json!({ "made": "parser" }));
        assert_eq!(again.phases, first.phases);
        let (one, other) = (first.workspace, again.workspace);
        assert_eq!(one.before_snapshot, other.before_snapshot);
        assert_eq!(one.after_snapshot, other.after_snapshot);
        assert_eq!(
            one.diff.unwrap().changed_paths,
            other.diff.unwrap().changed_paths
        );
        assert_eq!(types(&engine, &session).await, events, "nothing is told");
        let elsewhere = engine.session("other").await.unwrap();
        let refused = elsewhere
            .execute_run(options(&host), writes("never", "written\n"))
            .await
            .unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Conflict);
        assert!(refused.to_string().contains("session s"), "{refused}");
    });
}

#[test]
fn a_shutdown_completes_no_step_and_the_run_goes_on_later() {
    let host = Host::new();
    let counts = Counts::default();
    on_a_runtime(async {
        let engine = Engine::start(host.options().shutdown_grace(Duration::ZERO))
            .await
            .unwrap();
        let session = engine.session("s").await.unwrap();
        let (started, has_started) = tokio::sync::oneshot::channel();
        let started = Arc::new(Mutex::new(Some(started)));
        let noted = counts.clone();
        let work = Work(move |context: RunContext| {
            let (started, noted) = (started.clone(), noted.clone());
            let cancelled = context.cancellation.clone();
            two_steps(context, noted, None, move || {
                let (started, cancelled) = (started.lock().unwrap().take(), cancelled.clone());
                async move {
                    let _ = started.unwrap().send(());
                    cancelled.cancelled().await;
                }
            })
        });
        let run = tokio::spawn({
            let options = options(&host);
            async move { session.execute_run(options, work).await }
        });
        has_started.await.unwrap();
        engine.shutdown().await.unwrap();
        let outcome = run.await.unwrap().unwrap();
        assert_eq!(outcome.run.status, RunStatus::Interrupted);
        assert!(outcome.workspace.rollback.is_none());
    });
    on_a_runtime(async {
        let (engine, session) = host.session().await;
        let run = engine.find_run("ticket-42").await.unwrap();
        assert_eq!(run.status, RunStatus::Interrupted);
        let outcome = session
            .execute_run(options(&host), go_on(&counts, None))
            .await
            .unwrap();
        assert_eq!(outcome.run.status, RunStatus::Completed);
        assert_eq!(counts.all().iter().filter(|n| *n == "analyse").count(), 1);
    });
}

#[test]
fn a_run_without_a_phase_is_resumable_if_it_was_begun_so() {
    for resumable in [false, true] {
        let host = Host::new();
        die_in_the_middle_of(async {
            let (engine, session) = host.session().await;
            let (started, has_started) = tokio::sync::oneshot::channel();
            let started = Mutex::new(Some(started));
            let work = Work(move |_| {
                let _ = started.lock().unwrap().take().unwrap().send(());
                std::future::pending()
            });
            let options = options(&host).resumable(resumable);
            tokio::spawn(async move {
                let _engine = engine;
                session.execute_run(options, work).await
            });
            has_started.await.unwrap();
        });
        on_a_runtime(async {
            let (_engine, session) = host.session().await;
            let outcome = session
                .execute_run(options(&host), writes("new", "x\n"))
                .await
                .unwrap();
            let expected = match resumable {
                true => (RunStatus::Completed, Some("x\n")),
                false => (RunStatus::Failed, None),
            };
            let found = (outcome.run.status, host.read("new"));
            assert_eq!((found.0, found.1.as_deref()), expected);
            assert_eq!(outcome.is_stored, !resumable);
        });
    }
}

#[tokio::test]
async fn a_step_with_another_definition_is_refused_and_said_which() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let work = Work(|context: RunContext| async move {
        let phase = context.phase("build");
        for definition in ["make", "make -j2"] {
            let options = StepOptions::new("compile").definition(definition);
            phase.step_with(options, |_| async { Ok(()) }).await?;
        }
        Ok(AdapterOutput::empty())
    });
    let outcome = session.execute_run(options(&host), work).await.unwrap();
    let error = outcome.run.error.unwrap();
    assert_eq!(error.kind.as_deref(), Some("PlanChanged"));
    assert!(
        error
            .message
            .contains("with another definition: build/compile"),
        "{error:?}"
    );
    assert_eq!(phases(&engine).await[0].steps[0].attempt, 1);
}

#[tokio::test]
async fn a_plan_is_compared_by_name_with_what_is_on_record() {
    let host = Host::new();
    let (_engine, session) = host.session().await;
    let work = Work(|context: RunContext| async move {
        let phase = context.phase("work");
        for name in ["a", "b"] {
            phase.step(name, |_| async { Ok(()) }).await?;
        }
        let plan = ["x", "a", "b", "c"]
            .into_iter()
            .fold(StepPlan::new(), |plan, name| {
                plan.step(StepIdentity::new("work", 0, name), serde_json::Value::Null)
            });
        let report = context.check_plan(&plan).await.expect("it fits");
        let names = |list: &[StepIdentity]| list.iter().map(|i| i.step.clone()).collect::<Vec<_>>();
        assert_eq!(names(&report.kept), ["a", "b"]);
        assert_eq!(names(&report.new), ["x", "c"]);
        let changed = StepPlan::new().step(StepIdentity::new("work", 0, "a"), "other");
        let refused = context.check_plan(&changed).await.unwrap_err();
        assert!(matches!(refused, StepError::PlanChanged(report) if report.gone.len() == 1));
        Ok(AdapterOutput::empty())
    });
    let outcome = session.execute_run(options(&host), work).await.unwrap();
    completed(&outcome);
}

#[tokio::test]
async fn a_step_and_a_phase_need_names_and_settled_ones_stay_so() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let work = Work(|context: RunContext| async move {
        let phase = context.phase("p");
        let nameless = phase.step(" ", |_| async { Ok(()) }).await.unwrap_err();
        assert!(
            matches!(&nameless, StepError::Engine(e) if e.kind() == ErrorKind::InvalidOptions),
            "{nameless}"
        );
        let nameless = context.phase("").step("a", |_| async { Ok(()) }).await;
        assert!(nameless.is_err());
        phase.skip_step("left out", "not needed").await?;
        phase.skip_step("left out", "not needed").await?;
        let skipped = phase.step("left out", |_| async { Ok(()) }).await;
        assert!(matches!(skipped, Err(StepError::Skipped(_))));
        phase.step("a", |_| async { Ok(1) }).await?;
        assert_eq!(phase.step("a", |_| async { Ok(2) }).await?, 1);
        let other_type = phase.step::<String, _, _>("a", |_| async { Ok(String::new()) });
        assert!(matches!(other_type.await, Err(StepError::Engine(_))));
        let done = phase.skip_step("a", "too late").await.unwrap_err();
        assert_eq!(done.kind(), ErrorKind::Conflict);
        phase.complete().await?;
        phase.complete().await?;
        let late = phase.step("late", |_| async { Ok(()) }).await.unwrap_err();
        assert!(late.to_string().contains("completed"), "{late}");
        let other = context.phase("none");
        other.skip("nothing to do").await?;
        let skipped = other.step("a", |_| async { Ok(()) }).await;
        assert!(matches!(skipped, Err(StepError::Skipped(_))));
        Ok(AdapterOutput::empty())
    });
    let outcome = session.execute_run(options(&host), work).await.unwrap();
    completed(&outcome);
    let found = phases(&engine).await;
    let statuses: Vec<_> = found.iter().map(|p| (p.name.as_str(), p.status)).collect();
    assert_eq!(
        statuses,
        [("p", StepStatus::Completed), ("none", StepStatus::Skipped)]
    );
}

#[tokio::test(start_paused = true)]
async fn a_step_that_fails_is_tried_again_as_its_policy_says() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let tries = Arc::new(AtomicU32::new(0));
    let counted = tries.clone();
    let work = Work(move |context: RunContext| {
        let counted = counted.clone();
        async move {
            let phase = context.phase("p");
            let options = |name| StepOptions::new(name).retry(RetryPolicy::STANDARD);
            let flaky = phase.step_with(options("flaky"), |step| {
                let count = counted.fetch_add(1, Ordering::Relaxed) + 1;
                async move {
                    assert_eq!(step.attempt, count);
                    match count {
                        3 => Ok(count),
                        _ => Err(AdapterError::failed(format!("no luck in {count}"))),
                    }
                }
            });
            assert_eq!(flaky.await?, 3);
            let hopeless: Result<(), _> = phase
                .step_with(options("hopeless"), |_| async {
                    Err(AdapterError::failed("never"))
                })
                .await;
            assert!(matches!(hopeless, Err(StepError::Work(_))));
            // Whoever asks again hears the same.
            let again = phase
                .step_with(options("hopeless"), |_| async { Ok(()) })
                .await
                .unwrap_err();
            assert_eq!(again.to_string(), "never");
            Ok(AdapterOutput::empty())
        }
    });
    let outcome = session.execute_run(options(&host), work).await.unwrap();
    completed(&outcome);
    let waits: Vec<_> = all(&engine, &session)
        .await
        .iter()
        .filter(|e| e.event_type == EventType::STEP_FAILED)
        .map(|e| e.data["retry_in_ms"].as_u64())
        .collect();
    let expected = [Some(30_000), Some(60_000), Some(30_000), Some(60_000), None];
    assert_eq!(waits, expected);
    let found = phases(&engine).await;
    assert_eq!(
        found[0].status,
        StepStatus::Failed,
        "one of its steps failed"
    );
    assert_eq!(found[0].steps[0].error, None, "the last attempt was well");
}

#[test]
fn a_run_of_a_live_engine_is_busy_and_can_be_cancelled_from_another() {
    let host = Host::new();
    on_a_runtime(async {
        let (engine, session) = host.session().await;
        let (started, has_started) = tokio::sync::oneshot::channel();
        let started = Mutex::new(Some(started));
        let work = Work(move |context: RunContext| {
            let started = started.lock().unwrap().take().unwrap();
            async move {
                let _ = started.send(());
                context.cancellation.cancelled().await;
                Err(AdapterError::cancelled("told to"))
            }
        });
        let run = tokio::spawn({
            let (session, options) = (session.clone(), options(&host));
            async move { session.execute_run(options, work).await }
        });
        has_started.await.unwrap();
        let other = host.engine().await;
        let theirs: SessionManager = other.session("s").await.unwrap();
        for session in [&theirs, &session] {
            let busy = session
                .execute_run(options(&host), writes("never", "x\n"))
                .await
                .unwrap_err();
            assert_eq!(busy.kind(), ErrorKind::Busy, "{busy}");
        }
        let incomplete = other.runs(RunQuery::all().incomplete()).await.unwrap();
        assert!(incomplete.is_empty(), "somebody has it");
        other.cancel_run(&id()).await.unwrap();
        let outcome = run.await.unwrap().unwrap();
        assert_eq!(outcome.run.status, RunStatus::Cancelled);
        let late = other.cancel_run(&id()).await.unwrap_err();
        assert_eq!(late.kind(), ErrorKind::Conflict);
        let unknown = engine.cancel_run(&"no".parse().unwrap()).await.unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::NotFound);
    });
}

#[test]
fn a_run_that_is_gone_on_with_by_another_plan_is_refused_and_stays_resumable() {
    let host = Host::new();
    let counts = Counts::default();
    leave_in_the_second_step(&host, &counts);
    on_a_runtime(async {
        let (_engine, session) = host.session().await;
        let other = Work(|context: RunContext| async move {
            let changed = StepOptions::new("analyse").definition("other");
            let plan = context.phase("plan");
            plan.step_with(changed, |_| async { Ok(()) }).await?;
            Ok(AdapterOutput::empty())
        });
        let refused = session.execute_run(options(&host), other).await.unwrap();
        assert_eq!(refused.run.status, RunStatus::Interrupted);
        let error = refused.run.error.unwrap();
        assert_eq!(error.kind.as_deref(), Some("PlanChanged"));
        let outcome = session
            .execute_run(options(&host), go_on(&counts, None))
            .await
            .unwrap();
        assert_eq!(outcome.run.status, RunStatus::Completed);
        assert_eq!(counts.all(), ["analyse", "apply 1", "apply 2"]);
    });
}

#[test]
fn a_step_whose_result_is_there_is_completed_once_what_it_left_can_be_captured() {
    let host = Host::new();
    let counts = Counts::default();
    let work = |counts: &Counts, backend: Option<Arc<crate::support::Double>>| {
        let counts = counts.clone();
        Work(move |context: RunContext| {
            let (counts, backend) = (counts.clone(), backend.clone());
            async move {
                let phase = context.phase("p");
                let paid = phase.step("paid", |step| async move {
                    counts.note("paid");
                    write(&step, "new", "x\n");
                    // The disk is full by the time it is done.
                    if let Some(backend) = backend {
                        backend.fail("step");
                    }
                    Ok(42)
                });
                assert_eq!(paid.await?, 42);
                Ok(AdapterOutput::empty())
            }
        })
    };
    on_a_runtime(async {
        let (engine, session) = host.session().await;
        let full = work(&counts, Some(host.backend.clone()));
        let outcome = session.execute_run(options(&host), full).await.unwrap();
        assert_eq!(outcome.run.status, RunStatus::Interrupted);
        let error = outcome.run.error.unwrap();
        assert_eq!(error.kind.as_deref(), Some("LimitExceeded"));
        let step = &phases(&engine).await[0].steps[0];
        assert_eq!(step.status, StepStatus::Interrupted);
        assert_eq!(step.result, json!(42));
        host.backend.heal("step");
        let outcome = session
            .execute_run(options(&host), work(&counts, None))
            .await
            .unwrap();
        completed(&outcome);
        assert_eq!(counts.all(), ["paid"], "it is not paid twice");
        let step = &outcome.phases[0].steps[0];
        assert_eq!(step.status, StepStatus::Completed);
        assert!(step.snapshot_after.is_some() && step.error.is_none());
    });
}

#[tokio::test]
async fn a_step_whose_future_is_dropped_can_be_asked_for_again() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let work = Work(|context: RunContext| async move {
        let phase = context.phase("p");
        let endless = phase.step("a", |_| std::future::pending::<Result<u8, AdapterError>>());
        let late = tokio::time::timeout(Duration::from_millis(300), endless).await;
        assert!(late.is_err());
        // Its end is put on record beside the adapter.
        let again = loop {
            match phase
                .step("a", |step| async move { Ok(step.attempt) })
                .await
            {
                Err(StepError::Engine(e)) if e.kind() == ErrorKind::Conflict => {
                    tokio::task::yield_now().await;
                }
                again => break again?,
            }
        };
        assert_eq!(again, 2);
        phase.complete().await?;
        Ok(AdapterOutput::empty())
    });
    let outcome = session.execute_run(options(&host), work).await.unwrap();
    completed(&outcome);
    assert_eq!(phases(&engine).await[0].steps[0].attempt, 2);
}

#[tokio::test(start_paused = true)]
async fn a_step_that_does_not_stop_when_its_run_is_suspended_is_interrupted() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let (started, has_started) = tokio::sync::oneshot::channel();
    let started = Mutex::new(Some(started));
    let work = Work(move |context: RunContext| {
        let started = started.lock().unwrap().take();
        async move {
            let phase = context.phase("p");
            let endless = phase.step("deaf", |_| async move {
                let _ = started.unwrap().send(());
                std::future::pending::<Result<(), AdapterError>>().await
            });
            endless.await?;
            Ok(AdapterOutput::empty())
        }
    });
    let options = RunOptions::new("x").run_id(id());
    let run = tokio::spawn(async move { session.execute_run(options, work).await });
    has_started.await.unwrap();
    engine.suspend_run(&id()).await.unwrap();
    let outcome = run.await.unwrap().unwrap();
    assert_eq!(outcome.run.status, RunStatus::Interrupted);
    assert_eq!(outcome.phases[0].steps[0].status, StepStatus::Interrupted);
}

#[test]
fn a_run_that_is_stopped_while_it_waits_for_its_workspace_does_not_begin() {
    let host = Host::new();
    on_a_runtime(async {
        let (engine, session) = host.session().await;
        let (started, has_started) = tokio::sync::oneshot::channel();
        let started = Mutex::new(Some(started));
        let holds = Work(move |context: RunContext| {
            let started = started.lock().unwrap().take().unwrap();
            async move {
                let _ = started.send(());
                context.cancellation.cancelled().await;
                Ok(AdapterOutput::empty())
            }
        });
        let first = RunOptions::new("first")
            .workspace(host.workspace())
            .run_id("first".parse().unwrap());
        let first = tokio::spawn({
            let session = session.clone();
            async move { session.execute_run(first, holds).await }
        });
        has_started.await.unwrap();
        let second = tokio::spawn({
            let (session, options) = (session.clone(), options(&host).resumable(true));
            async move { session.execute_run(options, writes("never", "x\n")).await }
        });
        // As soon as it is under way.
        while engine.suspend_run(&id()).await.is_err() {
            tokio::task::yield_now().await;
        }
        let outcome = second.await.unwrap().unwrap();
        assert_eq!(outcome.run.status, RunStatus::Interrupted);
        assert_eq!(host.read("never"), None);
        engine.cancel_run(&"first".parse().unwrap()).await.unwrap();
        first.await.unwrap().unwrap();
        let outcome = session
            .execute_run(options(&host), writes("never", "x\n"))
            .await
            .unwrap();
        assert_eq!(outcome.run.status, RunStatus::Completed);
    });
}

#[test]
fn a_run_whose_rollback_is_done_is_over_though_its_engine_died_before_it_could_tell() {
    let host = Host::new();
    let counts = Counts::default();
    die_in_the_middle_of(async {
        let (engine, session) = host.session().await;
        let counts = counts.clone();
        let work = Work(move |context| {
            let counts = counts.clone();
            async move {
                two_steps(context, counts, None, || async {}).await?;
                Err(AdapterError::failed("it came to nothing"))
            }
        });
        let workspace = host.workspace().rollback_on_failure(true);
        let options = options(&host).workspace(workspace);
        let mut events = session.events(stillframe::Cursor::start());
        tokio::spawn(async move {
            let _engine = engine;
            session.execute_run(options, work).await
        });
        // The event of the rollback is durable before the end of the run is.
        while let Some(Ok(event)) = events.next().await {
            if event.event_type == EventType::WORKSPACE_ROLLED_BACK {
                break;
            }
        }
    });
    on_a_runtime(async {
        let (engine, _session) = host.session().await;
        let run = engine.find_run("ticket-42").await.unwrap();
        assert_eq!(run.status, RunStatus::Failed, "its steps are taken back");
        assert_eq!(host.read("half"), None);
    });
}

#[test]
fn an_interrupted_run_can_be_cancelled() {
    let host = Host::new();
    leave_in_the_second_step(&host, &Counts::default());
    on_a_runtime(async {
        let (engine, session) = host.session().await;
        engine.cancel_run(&id()).await.unwrap();
        let run = engine.find_run("ticket-42").await.unwrap();
        assert_eq!(run.status, RunStatus::Cancelled);
        let found = phases(&engine).await;
        assert_eq!(found[1].steps[0].status, StepStatus::Cancelled);
        assert_eq!(found[0].steps[0].status, StepStatus::Completed);
        let outcome = session
            .execute_run(options(&host), writes("never", "x\n"))
            .await
            .unwrap();
        assert!(outcome.is_stored);
    });
}

/// An engine of this host whose runs can be taken over as soon as it stands still.
fn short(host: &Host) -> stillframe::EngineOptions {
    host.options()
        .heartbeat(Duration::from_millis(20))
        .lease_expiry(Duration::from_millis(200))
}

/// Waits until somebody may take a run over, or until nobody may.
async fn until_claimable(engine: &Engine, is_claimable: bool) {
    let what = match is_claimable {
        true => "its lease runs out",
        false => "its lease is renewed",
    };
    eventually(what, || async {
        let claimable = engine.runs(RunQuery::default().incomplete()).await;
        claimable.unwrap().is_empty() != is_claimable
    })
    .await;
}

/// Has nobody's lock on a workspace count, as where somebody clears away what he takes for left
/// behind: the lease has to hold by itself.
fn lose_the_lock(host: &Host) {
    fs::remove_dir_all(host.state().join("locks")).unwrap();
}

/// An engine whose threads stand still renews no lease, as one that was stopped for an hour.
#[test]
fn an_owner_that_comes_back_after_its_lease_was_taken_writes_nothing() {
    let host = &Host::new();
    let options = || RunOptions::new("x").run_id(id()).resumable(true);
    let (gate, stands_still, go_on) = Gate::new();
    std::thread::scope(|scope| {
        let late = scope.spawn(|| {
            on_one_thread(async {
                let engine = Engine::start(short(host)).await.unwrap();
                let session = engine.session("s").await.unwrap();
                let gate = Mutex::new(gate);
                let work = Work(move |context: RunContext| {
                    gate.lock().unwrap().stand();
                    async move {
                        let result = context
                            .phase("p")
                            .step("too late", |_| async { Ok("late".to_owned()) })
                            .await;
                        let error = result.unwrap_err();
                        assert!(error.to_string().contains("taken over"), "{error}");
                        Ok(AdapterOutput::empty())
                    }
                });
                session.execute_run(options(), work).await
            })
        });
        stands_still.recv().unwrap();
        // A failure lets go of the other one.
        on_a_runtime(async move {
            let engine = Engine::start(short(host)).await.unwrap();
            let session = engine.session("s").await.unwrap();
            until_claimable(&engine, true).await;
            let work = Work(|context: RunContext| async move {
                let kept: String = context
                    .phase("p")
                    .step("late", |_| async { Ok("in time".to_owned()) })
                    .await?;
                assert_eq!(kept, "in time");
                Ok(AdapterOutput::empty())
            });
            let outcome = session.execute_run(options(), work).await.unwrap();
            assert_eq!(outcome.run.status, RunStatus::Completed);
            assert!(!outcome.is_stored);
            let before = all(&engine, &session).await;
            go_on.send(()).unwrap();
            let lost = late.join().unwrap().unwrap_err();
            assert_eq!(lost.kind(), ErrorKind::Conflict);
            assert_eq!(all(&engine, &session).await, before);
            let record = engine.export_run("ticket-42").await.unwrap();
            assert_eq!(record.phases[0].steps[0].result, json!("in time"));
            assert!(record.lease.unwrap().epoch >= 3);
        });
    });
}

/// Content whose end comes once a gate is open.
struct Slow {
    text: &'static [u8],
    gate: Gate,
}

impl Read for Slow {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.text.is_empty() {
            self.gate.stand();
        }
        self.text.read(buffer)
    }
}

#[test]
fn an_owner_that_comes_back_after_its_lease_was_taken_replaces_no_artifact() {
    let host = &Host::new();
    let options = || RunOptions::new("x").run_id(id()).resumable(true);
    let draft = || ArtifactDraft::new("report", "text/plain");
    let (gate, stands_still, go_on) = Gate::new();
    let (end, is_read, read_on) = Gate::new();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let late = scope.spawn(move || {
            on_one_thread(async {
                let engine = Engine::start(short(host)).await.unwrap();
                let session = engine.session("s").await.unwrap();
                let todo = Mutex::new(Some((gate, end, is_read, tell)));
                let work = Work(move |context: RunContext| {
                    let (gate, end, is_read, tell) = todo.lock().unwrap().take().unwrap();
                    let content = Slow {
                        text: b"too late",
                        gate: end,
                    };
                    async move {
                        tokio::spawn(async move {
                            let put = context.put_artifact(draft(), Box::new(content)).await;
                            tell.send(put).unwrap();
                        });
                        // All but its end is in the store.
                        while is_read.try_recv().is_err() {
                            tokio::task::yield_now().await;
                        }
                        gate.stand();
                        Ok(AdapterOutput::empty())
                    }
                });
                session.execute_run(options(), work).await
            })
        });
        stands_still.recv().unwrap();
        on_a_runtime(async move {
            let engine = Engine::start(short(host)).await.unwrap();
            let session = engine.session("s").await.unwrap();
            until_claimable(&engine, true).await;
            let work = Work(move |context: RunContext| async move {
                let content = Box::new(&b"in time"[..]);
                context.put_artifact(draft(), content).await?;
                Ok(AdapterOutput::empty())
            });
            completed(&session.execute_run(options(), work).await.unwrap());
            read_on.send(()).unwrap();
            go_on.send(()).unwrap();
            late.join().unwrap().unwrap_err();
            let refused = told.recv().unwrap().unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused}");
            assert!(refused.to_string().contains("taken over"), "{refused}");
            let mut text = String::new();
            let mut content = engine.open_artifact("report").await.unwrap();
            content.read_to_string(&mut text).unwrap();
            assert_eq!(text, "in time");
        });
    });
}

#[test]
fn an_owner_that_comes_back_after_its_run_was_cancelled_rolls_nothing_back() {
    let host = Host::new();
    host.write("file", "before\n");
    // What its work left is captured, and the workspace is nobody's.
    let (comparison, is_compared, compare) = Gate::new();
    host.backend.hold("diff", comparison);
    let (gate, stands_still, go_on) = Gate::new();
    let host = &host;
    std::thread::scope(|scope| {
        let late = scope.spawn(move || {
            on_one_thread(async {
                let engine = Engine::start(short(host)).await.unwrap();
                let session = engine.session("s").await.unwrap();
                let stands_still = async {
                    wait_for(is_compared).await;
                    gate.stand();
                };
                let workspace = host.workspace().rollback_on_failure(true);
                let options = options(host).workspace(workspace).resumable(true);
                let ruins = ruins("file", "after\n");
                tokio::join!(session.execute_run(options, ruins), stands_still).0
            })
        });
        stands_still.recv().unwrap();
        on_a_runtime(async move {
            let (engine, session) = host.session().await;
            until_claimable(&engine, true).await;
            lose_the_lock(host);
            engine.cancel_run(&id()).await.unwrap();
            let run = engine.find_run("ticket-42").await.unwrap();
            assert_eq!(run.status, RunStatus::Cancelled);
            let before = all(&engine, &session).await;
            go_on.send(()).unwrap();
            compare.send(()).unwrap();
            let lost = late.join().unwrap().unwrap_err();
            assert_eq!(lost.kind(), ErrorKind::Conflict);
            let rollback = lost.outcome().unwrap().workspace.rollback.clone().unwrap();
            assert_eq!(rollback.status, RestoreStatus::Refused, "{rollback:?}");
            assert_eq!(host.read("file").as_deref(), Some("after\n"));
            assert_eq!(all(&engine, &session).await, before);
        });
    });
}

#[test]
fn an_owner_that_is_back_while_its_run_is_settled_keeps_it_and_hears_what_is_asked_of_it() {
    let host = &Host::new();
    let (gate, stands_still, go_on) = Gate::new();
    std::thread::scope(|scope| {
        let late = scope.spawn(|| {
            on_one_thread(async {
                let engine = Engine::start(short(host)).await.unwrap();
                let session = engine.session("s").await.unwrap();
                let gate = Mutex::new(gate);
                let work = Work(move |context: RunContext| {
                    gate.lock().unwrap().stand();
                    async move {
                        context.cancellation.cancelled().await;
                        Err(AdapterError::cancelled("it was asked to"))
                    }
                });
                let options = options(host).resumable(true);
                session.execute_run(options, work).await
            })
        });
        stands_still.recv().unwrap();
        on_a_runtime(async move {
            let engine = host.engine().await;
            until_claimable(&engine, true).await;
            let (capture, is_there, leave) = Gate::new();
            host.backend.hold("after_failure", capture);
            lose_the_lock(host);
            let cancelling = {
                let engine = engine.clone();
                tokio::spawn(async move { engine.cancel_run(&id()).await })
            };
            wait_for(is_there).await;
            go_on.send(()).unwrap();
            until_claimable(&engine, false).await;
            leave.send(()).unwrap();
            cancelling.await.unwrap().unwrap();
            let outcome = late.join().unwrap().expect("it is its owner's");
            assert_eq!(outcome.run.status, RunStatus::Cancelled);
            let record = engine.export_run("ticket-42").await.unwrap();
            assert_eq!(record.run.status, RunStatus::Cancelled);
            assert_eq!(record.lease.unwrap().epoch, 1, "nobody has taken it");
        });
    });
}

#[test]
fn a_run_of_a_dead_engine_that_is_cancelled_while_it_is_settled_is_cancelled() {
    let host = Host::new();
    let counts = Counts::default();
    leave_in_the_second_step(&host, &counts);
    on_a_runtime(async {
        let (capture, is_there, leave) = Gate::new();
        host.backend.hold("after_failure", capture);
        let starting = tokio::spawn(Engine::start(host.options()));
        wait_for(is_there).await;
        let lock_timeout = Duration::from_millis(100);
        let other = Engine::start(host.options().lock_timeout(lock_timeout)).await;
        let other = other.unwrap();
        let busy = other.cancel_run(&id()).await.unwrap_err();
        assert_eq!(busy.kind(), ErrorKind::Busy, "{busy}");
        leave.send(()).unwrap();
        let engine = starting.await.unwrap().expect("it looks again");
        let run = engine.find_run("ticket-42").await.unwrap();
        assert_eq!(run.status, RunStatus::Cancelled);
        let step = phases(&engine).await[1].steps[0].clone();
        assert_eq!(step.status, StepStatus::Cancelled);
        assert_eq!(counts.all(), ["analyse", "apply 1"]);
    });
}

#[test]
fn what_others_did_since_a_step_was_cut_off_stays_where_it_goes_back() {
    let host = Host::new();
    let counts = Counts::default();
    leave_in_the_second_step(&host, &counts);
    on_a_runtime(async {
        let (engine, session) = host.session().await;
        assert_eq!(
            engine.find_run("ticket-42").await.unwrap().status,
            RunStatus::Interrupted
        );
        // Two days of somebody's work.
        host.write("mine", "two days\n");
        host.write("plan", "the plan\nand what became of it\n");
        let work = go_on(&counts, Some(Rerun::FromBefore));
        let outcome = session.execute_run(options(&host), work).await.unwrap();
        completed(&outcome);
        assert_eq!(host.read("mine").as_deref(), Some("two days\n"));
        let plan = host.read("plan");
        assert_eq!(plan.as_deref(), Some("the plan\nand what became of it\n"));
        assert_eq!(host.read("other").as_deref(), Some("anew\n"));
    });
}

#[tokio::test]
async fn the_parts_of_a_step_are_in_its_record_and_are_those_of_its_last_attempt() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let work = Work(|context: RunContext| async move {
        let retry = RetryPolicy::NEVER.attempts(2);
        let options = StepOptions::new("a").retry(retry);
        let phase = context.phase("p");
        let step = phase.step_with(options, |step| async move {
            let read: u8 = step.task("read", async { Ok(7) }).await?;
            let late = step.task(
                "dropped",
                std::future::pending::<Result<(), AdapterError>>(),
            );
            let late = tokio::time::timeout(Duration::from_millis(20), late).await;
            assert!(late.is_err());
            let twice = step.task("read", step.task("read", async { Ok(()) }));
            assert!(twice.await.unwrap_err().to_string().contains("under way"));
            match step.attempt {
                1 => {
                    step.task("first", async { Err(AdapterError::failed("no luck")) })
                        .await
                }
                _ => Ok(read),
            }
        });
        assert_eq!(step.await?, 7);
        Ok(AdapterOutput::empty())
    });
    let outcome = session.execute_run(options(&host), work).await.unwrap();
    completed(&outcome);
    let tasks: Vec<_> = outcome.phases[0].steps[0]
        .tasks
        .iter()
        .map(|task| (task.name.as_str(), task.status))
        .collect();
    let wanted = [
        ("read", StepStatus::Failed),
        ("dropped", StepStatus::Failed),
    ];
    assert_eq!(
        tasks, wanted,
        "what only the first attempt did is not there"
    );
    assert!(outcome.phases[0].steps[0].tasks[0].duration_ms.is_some());
    let types = types(&engine, &session).await;
    let count = |name: &str| types.iter().filter(|t| *t == name).count();
    assert_eq!(count("task_started"), 7);
    assert_eq!(count("task_completed"), 2);
    assert_eq!(count("task_failed"), 5);
}

#[test]
fn what_others_did_stays_also_if_the_run_was_stopped_again_before_the_step_was() {
    let host = Host::new();
    let counts = Counts::default();
    leave_in_the_second_step(&host, &counts);
    on_a_runtime(async {
        let (engine, session) = host.session().await;
        host.write("mine", "two days\n");
        // It is claimed, refused, and stopped again.
        let other = Work(|context: RunContext| async move {
            let options = StepOptions::new("apply").definition("v2");
            let phase = context.phase("edit").iteration(2);
            phase.step_with(options, |_| async { Ok(()) }).await?;
            Ok(AdapterOutput::empty())
        });
        let outcome = session.execute_run(options(&host), other).await.unwrap();
        assert_eq!(outcome.run.status, RunStatus::Interrupted);
        host.write("mine", "three days\n");
        engine.shutdown().await.unwrap();
    });
    on_a_runtime(async {
        let (_engine, session) = host.session().await;
        let work = go_on(&counts, None);
        let outcome = session.execute_run(options(&host), work).await.unwrap();
        completed(&outcome);
        assert_eq!(host.read("mine").as_deref(), Some("three days\n"));
        assert_eq!(
            host.read("other").as_deref(),
            Some("anew\n"),
            "it went back"
        );
    });
}

/// A clock that is set ten years forwards or backwards at each look.
fn set_at_random() -> impl Fn() -> jiff::Timestamp + Send + Sync {
    let looks = AtomicU32::new(0);
    move || {
        let look = looks.fetch_add(1, Ordering::Relaxed);
        let years = [0, 10, -10, 3, -7][look as usize % 5];
        jiff::Timestamp::from_second(1_700_000_000 + years * 31_557_600).unwrap()
    }
}

#[test]
fn a_clock_that_is_set_forwards_and_backwards_changes_nothing() {
    let host = Host::impatient();
    let counts = Counts::default();
    let engine = || async {
        let options = host.options().clock(set_at_random());
        let lease = (Duration::from_millis(50), Duration::from_secs(60));
        let options = options.heartbeat(lease.0).lease_expiry(lease.1);
        Engine::start(options).await.unwrap()
    };
    die_in_the_middle_of(async {
        let (holder, other) = (engine().await, engine().await);
        let session = holder.session("s").await.unwrap();
        let (sender, mut is_there) = tokio::sync::mpsc::channel(1);
        let noted = counts.clone();
        let work = Work(move |context| {
            let (sender, counts) = (sender.clone(), noted.clone());
            two_steps(context, counts, None, move || {
                let sender = sender.clone();
                async move {
                    sender.send(()).await.unwrap();
                    std::future::pending().await
                }
            })
        });
        let options = options(&host);
        tokio::spawn(async move {
            let _engine = holder;
            session.execute_run(options, work).await
        });
        is_there.recv().await.unwrap();
        // It is renewed in years between, and nobody else's.
        for _ in 0..3 {
            let renewed = || async {
                let run = other.export_run("ticket-42").await.unwrap();
                run.lease.unwrap().heartbeat_at
            };
            let before = renewed().await;
            eventually("it is renewed", || async { renewed().await != before }).await;
        }
        let session = other.session("s").await.unwrap();
        let refused = session.execute_run(self::options(&host), go_on(&counts, None));
        assert_eq!(refused.await.unwrap_err().kind(), ErrorKind::Busy);
        let incomplete = other.runs(RunQuery::all().incomplete()).await.unwrap();
        assert!(incomplete.is_empty(), "{incomplete:?}");
    });
    on_a_runtime(async {
        let engine = engine().await;
        let session = engine.session("s").await.unwrap();
        let work = go_on(&counts, None);
        let outcome = session.execute_run(options(&host), work).await.unwrap();
        completed(&outcome);
        assert_eq!(counts.all(), ["analyse", "apply 1", "apply 2"]);
        let other = host.read("other");
        assert_eq!(other.as_deref(), Some("anew\n"), "it went back first");
        for step in outcome.phases.iter().flat_map(|phase| &phase.steps) {
            assert!(step.duration_ms.unwrap() < 60_000, "{step:?}");
        }
        let events = all(&engine, &session).await;
        let sequences: Vec<u64> = events.iter().map(|event| event.sequence).collect();
        let gapless: Vec<u64> = (1..=sequences.len() as u64).collect();
        assert_eq!(sequences, gapless);
    });
}

#[tokio::test]
async fn a_step_that_gives_itself_up_is_cancelled_and_not_tried_again() {
    let host = Host::new();
    let (_engine, session) = host.session().await;
    let work = Work(|context: RunContext| async move {
        let options = StepOptions::new("a").retry(RetryPolicy::NEVER.attempts(3));
        let phase = context.phase("p");
        for attempt in 0..2 {
            let step = phase.step_with(options.clone(), |step| async move {
                assert_eq!((step.attempt, attempt), (1, 0), "it is done once");
                Err::<(), _>(AdapterError::cancelled("not needed"))
            });
            let error = step.await.unwrap_err();
            assert!(error.to_string().contains("not needed"), "{error}");
        }
        phase.step("b", |_| async { Ok(()) }).await?;
        Ok(AdapterOutput::empty())
    });
    let outcome = session.execute_run(options(&host), work).await.unwrap();
    completed(&outcome);
    let steps: Vec<StepStatus> = outcome.phases[0].steps.iter().map(|s| s.status).collect();
    assert_eq!(steps, [StepStatus::Cancelled, StepStatus::Completed]);
}

#[test]
fn a_step_whose_leftovers_nobody_could_capture_is_gone_back_from_where_that_is_asked_for() {
    for (rerun, found) in [(Some(Rerun::FromBefore), "anew\n"), (None, "again\n")] {
        let host = Host::new();
        let counts = Counts::default();
        leave_in_the_second_step(&host, &counts);
        on_a_runtime(async {
            host.backend.fail("after_failure");
            let (engine, session) = host.session().await;
            let step = phases(&engine).await[1].steps[0].clone();
            assert_eq!(step.status, StepStatus::Interrupted);
            assert_eq!(step.snapshot_after, None, "nothing could be captured");
            host.backend.heal("after_failure");
            host.write("mine", "two days\n");
            let work = go_on(&counts, rerun);
            completed(&session.execute_run(options(&host), work).await.unwrap());
            assert_eq!(host.read("other").as_deref(), Some(found), "{rerun:?}");
            if rerun.is_none() {
                assert_eq!(host.read("mine").as_deref(), Some("two days\n"));
            }
        });
    }
}

#[test]
fn a_run_is_not_cancelled_under_whoever_is_at_work_in_its_workspace() {
    let host = Host::impatient();
    let counts = Counts::default();
    leave_in_the_second_step(&host, &counts);
    on_a_runtime(async {
        // As an owner that stands still in the middle of a restore or a commit.
        let state = StateDir::open(host.state()).unwrap();
        let at_work = Workspace::open(host.path(), &state).unwrap();
        let at_work = at_work
            .lock(&Operation::unbounded(), Duration::from_secs(1))
            .unwrap();
        let (engine, session) = host.session().await;
        let busy = engine.cancel_run(&id()).await.unwrap_err();
        assert_eq!(busy.kind(), ErrorKind::Busy, "its own engine is gone");
        let run = engine.find_run("ticket-42").await.unwrap();
        assert_eq!(run.status, RunStatus::Running, "it is asked to stop");
        let cancelled = |events: Vec<String>| events.contains(&"run_cancelled".to_owned());
        assert!(!cancelled(types(&engine, &session).await));
        drop(at_work);
        engine.cancel_run(&id()).await.unwrap();
        let run = engine.find_run("ticket-42").await.unwrap();
        assert_eq!(run.status, RunStatus::Cancelled);
        assert!(cancelled(types(&engine, &session).await));
        let seen = run.workspace.unwrap();
        assert!(seen.after_snapshot.is_some(), "{seen:?}");
    });
}

#[test]
fn what_a_run_left_behind_changes_nothing_once_it_has_ended() {
    let host = Host::new();
    on_a_runtime(async {
        let (engine, session) = host.session().await;
        let kept: Arc<Mutex<Option<RunContext>>> = Arc::default();
        let keeps = kept.clone();
        let work = Work(move |context: RunContext| {
            let keeps = keeps.clone();
            async move {
                context.phase("p").step("a", |_| async { Ok(()) }).await?;
                *keeps.lock().unwrap() = Some(context.clone());
                Ok(AdapterOutput::empty())
            }
        });
        completed(&session.execute_run(options(&host), work).await.unwrap());
        let context = kept.lock().unwrap().take().unwrap();
        let before = all(&engine, &session).await;
        let late = context.phase("q");
        assert!(late.skip_step("late", "x").await.is_err());
        assert!(context.phase("r").skip("x").await.is_err());
        let note = context.emit(EventType::new("noted"), json!({})).await;
        assert!(note.unwrap_err().to_string().contains("completed"));
        assert_eq!(all(&engine, &session).await, before);
        assert_eq!(phases(&engine).await.len(), 1);
    });
}

#[test]
fn a_plan_that_has_grown_by_a_step_in_a_phase_that_is_done_goes_on() {
    let host = Host::new();
    let ran = Counts::default();
    on_a_runtime(async {
        let (engine, session) = host.session().await;
        let (sender, mut is_there) = tokio::sync::mpsc::channel(1);
        let work = |build: &'static [&'static str], stays: Option<_>| {
            let ran = ran.clone();
            let sender: Option<tokio::sync::mpsc::Sender<()>> = stays;
            Work(move |context: RunContext| {
                let (ran, sender) = (ran.clone(), sender.clone());
                async move {
                    for step in build {
                        let ran = ran.clone();
                        let done = |_| async move {
                            ran.note(step);
                            Ok(())
                        };
                        context.phase("build").step(*step, done).await?;
                    }
                    context.phase("build").complete().await?;
                    let test = |step: StepContext| async move {
                        ran.note("b");
                        if let Some(sender) = sender {
                            sender.send(()).await.unwrap();
                            step.run.cancellation.cancelled().await;
                            return Err(AdapterError::cancelled("it was asked to"));
                        }
                        Ok(())
                    };
                    context.phase("test").step("b", test).await?;
                    Ok(AdapterOutput::empty())
                }
            })
        };
        let run = {
            let (session, options) = (session.clone(), options(&host));
            let work = work(&["a"], Some(sender));
            tokio::spawn(async move { session.execute_run(options, work).await })
        };
        is_there.recv().await.unwrap();
        engine.suspend_run(&id()).await.unwrap();
        let outcome = run.await.unwrap().unwrap();
        assert_eq!(outcome.run.status, RunStatus::Interrupted);
        assert_eq!(outcome.phases[0].status, StepStatus::Completed);
        let grown = work(&["x", "a"], None);
        completed(&session.execute_run(options(&host), grown).await.unwrap());
        assert_eq!(ran.all(), ["a", "b", "x", "b"], "x is new");
        for phase in phases(&engine).await {
            assert_eq!(phase.status, StepStatus::Completed, "{phase:?}");
        }
    });
}

#[test]
fn a_run_whose_end_could_not_be_written_down_can_go_on_in_its_session() {
    let host = Host::new();
    let ran = Counts::default();
    let work = |ran: &Counts| {
        let ran = ran.clone();
        Work(move |context: RunContext| {
            let ran = ran.clone();
            async move {
                let done = |_| async move {
                    ran.note("a");
                    Ok(())
                };
                context.phase("p").step("a", done).await?;
                Ok(AdapterOutput::empty())
            }
        })
    };
    let log = || rusqlite::Connection::open(host.state().join("stillframe.db")).unwrap();
    on_a_runtime(async {
        let engine = host.engine().await;
        let no_end =
            "CREATE TRIGGER no_end BEFORE UPDATE OF status ON runs WHEN NEW.status <> 'running'
                      BEGIN SELECT RAISE(ABORT, 'no room'); END";
        log().execute_batch(no_end).unwrap();
        let options = options(&host).resumable(true);
        engine.run_once(options, work(&ran)).await.unwrap_err();
        log().execute_batch("DROP TRIGGER no_end").unwrap();
        engine.shutdown().await.unwrap();
    });
    on_a_runtime(async {
        let engine = host.engine().await;
        let run = engine.find_run("ticket-42").await.unwrap();
        assert_eq!(run.status, RunStatus::Interrupted);
        let options = options(&host).resumable(true);
        completed(&engine.run_once(options, work(&ran)).await.unwrap());
        assert_eq!(ran.all(), ["a"], "its step was done");
        assert_eq!(
            engine.sessions(SessionQuery::all()).await.unwrap()[0].status,
            SessionStatus::Completed
        );
    });
}
