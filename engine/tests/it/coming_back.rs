//! Runs that are gone on with when something else is not as it was: the session, the options, the
//! database, a record.

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use stillframe::records::{
    PhaseRecord, Question, QuestionId, RestoreStatus, SessionStatus, StepStatus,
};
use stillframe::steps::{BoxAdapter, StepError, StepIdentity, StepOptions, StepPlan};
use stillframe::{
    Adapter, AdapterError, AdapterOutput, Engine, ErrorKind, RunContext, RunId, RunOptions,
    RunStatus, SessionManager,
};
use tokio::sync::Notify;

use crate::support::{
    Gate, Host, Work, completed, die_in_the_middle_of, eventually, on_a_runtime, on_one_thread,
    wait_for, writes,
};

fn id() -> RunId {
    "ticket-42".parse().unwrap()
}

fn options(host: &Host) -> RunOptions {
    RunOptions::new("fix it")
        .workspace(host.workspace())
        .run_id(id())
}

/// A step that notes that it was begun, writes a file, asks, and says what it hears.
fn asks(began: &Arc<AtomicU32>) -> impl Adapter + use<> {
    let began = began.clone();
    Work(move |context: RunContext| {
        let began = began.clone();
        async move {
            let work = |step: stillframe::steps::StepContext| {
                let began = began.clone();
                async move {
                    began.fetch_add(1, Ordering::Relaxed);
                    fs::write(step.workspace().unwrap().join("its"), "its\n").unwrap();
                    Ok(step.ask(Question::new("go on?")).await?.text)
                }
            };
            let text: String = context.phase("p").step("asks", work).await?;
            Ok(AdapterOutput::with_data(json!(text)))
        }
    })
}

/// An engine that puts what asks to rest at once.
async fn cold(host: &Host) -> Engine {
    let options = host.options().hot_wait(Duration::ZERO);
    Engine::start(options).await.unwrap()
}

/// Has the run ask until it rests; answers with its question.
async fn rests(host: &Host, session: &SessionManager, began: &Arc<AtomicU32>) -> QuestionId {
    let asking = session.execute_run(options(host), asks(began)).await;
    let outcome = asking.unwrap();
    assert_eq!(outcome.run.status, RunStatus::WaitingForInput);
    outcome.questions[0].id.clone()
}

fn database(host: &Host) -> rusqlite::Connection {
    rusqlite::Connection::open(host.state().join("stillframe.db")).unwrap()
}

/// Waits until the run is like this.
async fn until(engine: &Engine, status: RunStatus) {
    eventually("the run is as it should be", || async {
        engine.find_run("ticket-42").await.unwrap().status == status
    })
    .await;
}

#[test]
fn a_run_that_is_cancelled_while_its_rest_is_captured_is_compared_and_rolled_back() {
    let host = Host::new();
    on_a_runtime(async {
        let engine = cold(&host).await;
        let session = engine.session("s").await.unwrap();
        let (gate, is_there, leave) = Gate::new();
        host.backend.hold("after_failure", gate);
        let (work, options) = (asks(&Arc::default()), options(&host));
        let workspace = host.workspace().rollback_on_failure(true);
        let running = tokio::spawn(async move {
            session
                .execute_run(options.workspace(workspace), work)
                .await
        });
        wait_for(is_there).await;
        engine.cancel_run(&id()).await.unwrap();
        leave.send(()).unwrap();
        let outcome = running.await.unwrap().unwrap();
        assert_eq!(outcome.run.status, RunStatus::Cancelled);
        let diff = outcome.workspace.diff.expect("it is compared");
        assert_eq!(diff.changed_paths.len(), 1, "{diff:?}");
        let rollback = outcome.workspace.rollback.expect("it is rolled back");
        assert_eq!(rollback.status, RestoreStatus::Completed);
        assert_eq!(host.read("its"), None);
        let run = engine.find_run("ticket-42").await.unwrap();
        assert_eq!(run.status, RunStatus::Cancelled);
    });
}

#[test]
fn the_runs_of_a_session_that_is_paused_are_gone_on_with_once_it_is_resumed() {
    let (host, began) = (Host::new(), Arc::default());
    on_a_runtime(async {
        let engine = cold(&host).await;
        let session = engine.session("s").await.unwrap();
        let asked = rests(&host, &session, &began).await;
        session.pause("lunch").await.unwrap();
        engine.answer(&asked, "yes").await.unwrap();
        let again = session.execute_run(options(&host), asks(&began)).await;
        let refused = again.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused}");
        assert!(refused.to_string().contains("paused"), "{refused}");
        assert!(!refused.touched());
        assert_eq!(began.load(Ordering::Relaxed), 1, "nothing was run");
        session.resume("").await.unwrap();
        completed(
            &session
                .execute_run(options(&host), asks(&began))
                .await
                .unwrap(),
        );
    });
}

#[test]
fn nothing_of_a_session_that_is_paused_is_offered_to_the_host() {
    let host = Host::new();
    let asked = on_a_runtime(async {
        let engine = cold(&host).await;
        let session = engine.session("s").await.unwrap();
        let asked = rests(&host, &session, &Arc::default()).await;
        session.pause("").await.unwrap();
        engine.shutdown().await.unwrap();
        asked
    });
    on_a_runtime(async {
        let offers = Arc::new(AtomicU32::new(0));
        let (place, noted) = (host.workspace(), offers.clone());
        let resumer = move |run: &stillframe::records::RunRecord| {
            noted.fetch_add(1, Ordering::Relaxed);
            let options = RunOptions::new(&run.input).workspace(place.clone());
            Some((options, BoxAdapter::new(asks(&Arc::default()))))
        };
        let sweep = Duration::from_millis(20);
        let options = host.options().question_sweep(sweep).resumer(resumer);
        let engine = Engine::start(options).await.unwrap();
        engine.answer(&asked, "yes").await.unwrap();
        // Each sweep looks at the clock.
        host.looks_at_the_clock(50).await;
        assert_eq!(offers.load(Ordering::Relaxed), 0);
        let session = engine.session("s").await.unwrap();
        session.resume("").await.unwrap();
        until(&engine, RunStatus::Completed).await;
    });
}

/// Runs this, which comes to a point where it waits for ever, and then puts it to rest.
async fn suspended(engine: &Engine, options: RunOptions, work: impl Adapter, waits: &Notify) {
    let running = tokio::spawn({
        let engine = engine.clone();
        async move { engine.run_once(options, work).await }
    });
    let waited = tokio::time::timeout(Duration::from_secs(20), waits.notified());
    waited.await.expect("it comes to that point");
    engine.suspend_run(&id()).await.unwrap();
    let outcome = running.await.unwrap().unwrap();
    assert_eq!(
        outcome.run.status,
        RunStatus::Interrupted,
        "{:?}",
        outcome.run
    );
}

#[test]
fn a_run_that_was_begun_as_resumable_stays_so_whoever_goes_on_with_it() {
    let host = Host::new();
    let waits = Arc::new(Notify::new());
    let work = || {
        let waits = waits.clone();
        Work(move |_| {
            let waits = waits.clone();
            async move {
                waits.notify_one();
                std::future::pending().await
            }
        })
    };
    for is_begun in [true, false, false] {
        on_a_runtime(async {
            let engine = host.engine().await;
            // Whoever goes on says nothing of it.
            let options = options(&host).resumable(is_begun);
            suspended(&engine, options, work(), &waits).await;
            engine.shutdown().await.unwrap();
        });
    }
}

#[test]
fn a_run_of_this_engine_whose_end_could_not_be_written_down_is_gone_on_with_and_cancelled_here() {
    for cancels in [false, true] {
        let host = Host::new();
        let ran = Arc::new(AtomicU32::new(0));
        let work = || {
            let ran = ran.clone();
            Work(move |context: RunContext| {
                let ran = ran.clone();
                async move {
                    let done = |_| async move {
                        ran.fetch_add(1, Ordering::Relaxed);
                        Ok(())
                    };
                    context.phase("p").step("a", done).await?;
                    Ok(AdapterOutput::empty())
                }
            })
        };
        on_a_runtime(async {
            let engine = host.engine().await;
            let no_end =
                "CREATE TRIGGER no_end BEFORE UPDATE OF status ON runs WHEN NEW.status <> 'running'
                 BEGIN SELECT RAISE(ABORT, 'no room'); END";
            database(&host).execute_batch(no_end).unwrap();
            engine.run_once(options(&host), work()).await.unwrap_err();
            database(&host)
                .execute_batch("DROP TRIGGER no_end")
                .unwrap();
            if cancels {
                engine.cancel_run(&id()).await.unwrap();
                let run = engine.find_run("ticket-42").await.unwrap();
                assert_eq!(run.status, RunStatus::Cancelled);
                return;
            }
            completed(&engine.run_once(options(&host), work()).await.unwrap());
            assert_eq!(ran.load(Ordering::Relaxed), 1, "its step was done");
        });
    }
}

#[test]
fn a_step_that_was_left_out_is_left_out_whatever_it_would_have_been() {
    let host = Host::new();
    on_a_runtime(async {
        let (_engine, session) = host.session().await;
        let work = Work(|context: RunContext| async move {
            let phase = context.phase("p");
            phase.skip_step("optional", "not today").await?;
            let options = StepOptions::new("optional").definition("v1");
            let asked = phase.step_with(options, |_| async { Ok(1) }).await;
            assert!(matches!(asked, Err(StepError::Skipped(_))), "{asked:?}");
            let optional = StepIdentity::new("p", 0, "optional");
            let plan = StepPlan::new().step(optional.clone(), "v2");
            assert_eq!(context.check_plan(&plan).await?.kept, [optional]);
            Ok(AdapterOutput::empty())
        });
        completed(&session.execute_run(options(&host), work).await.unwrap());
    });
}

#[derive(Debug, Serialize, Deserialize, PartialEq)]
struct Measured {
    values: Vec<f64>,
}

#[test]
fn a_result_that_is_read_back_is_the_one_that_was_returned_and_one_that_cannot_be_is_refused() {
    let host = Host::new();
    // Numbers of which a short way of reading misses the last bit, and the ends of what there is.
    let values: Vec<f64> = vec![
        0.1 + 0.2,
        5e-324,
        f64::MAX,
        -f64::MIN_POSITIVE,
        2.638_344_616_030_823e-256,
        1.0 / 3.0,
    ];
    let bits =
        |values: &[f64]| -> Vec<u64> { values.iter().map(|value| value.to_bits()).collect() };
    let expected = bits(&values);
    let waits = Arc::new(Notify::new());
    let work = |values: Vec<f64>, goes_on: bool| {
        let waits = waits.clone();
        Work(move |context: RunContext| {
            let (values, waits) = (values.clone(), waits.clone());
            async move {
                let phase = context.phase("p");
                let measured = |_| async { Ok(Measured { values }) };
                let got: Measured = phase.step("measure", measured).await?;
                let nan = phase.step("nan", |_| async { Ok(f64::NAN) }).await;
                let deep = (0..200).fold(json!(1), |inner, _| json!([inner]));
                let deep = phase.step("deep", |_| async { Ok(deep) }).await;
                for refused in [nan.map(|_| ()), deep.map(|_| ())] {
                    let Err(StepError::Work(refused)) = refused else {
                        panic!("{refused:?}");
                    };
                    let kind = refused.failure.kind.as_deref();
                    assert_eq!(kind, Some("InvalidOptions"), "{refused}");
                }
                if !goes_on {
                    waits.notify_one();
                    std::future::pending::<()>().await;
                }
                Ok(AdapterOutput::with_data(json!(bits(&got.values))))
            }
        })
    };
    on_a_runtime(async {
        let engine = host.engine().await;
        suspended(&engine, options(&host), work(values, false), &waits).await;
        let outcome = engine
            .run_once(options(&host), work(vec![], true))
            .await
            .unwrap();
        completed(&outcome);
        assert_eq!(outcome.run.output.unwrap().data, json!(expected));
    });
}

// Somebody in the middle of a long transaction, such as a purge, or one that was stopped
#[test]
fn a_step_whose_end_somebody_elses_hold_on_the_database_delays_is_not_done_again() {
    let host = Host::new();
    let ran = Arc::new(AtomicU32::new(0));
    on_a_runtime(async {
        let engine = host.engine().await;
        let (hold, mut held) = tokio::sync::mpsc::channel(1);
        let (state, done) = (host.state(), ran.clone());
        let work = Work(move |context: RunContext| {
            let (state, hold, done) = (state.clone(), hold.clone(), done.clone());
            async move {
                let paid = |_| async move {
                    done.fetch_add(1, Ordering::Relaxed);
                    let other = rusqlite::Connection::open(state.join("stillframe.db")).unwrap();
                    other.execute_batch("BEGIN IMMEDIATE").unwrap();
                    hold.send(other).await.unwrap();
                    Ok(())
                };
                context.phase("p").step("paid", paid).await?;
                Ok(AdapterOutput::empty())
            }
        });
        // Longer than a statement waits by itself.
        let lets_go = tokio::spawn(async move {
            let _other = held.recv().await.unwrap();
            tokio::time::sleep(Duration::from_secs(7)).await;
        });
        let options = RunOptions::new("pay").run_id(id());
        let outcome = engine.run_once(options, work).await.unwrap();
        lets_go.await.unwrap();
        completed(&outcome);
        assert_eq!(outcome.phases[0].steps[0].status, StepStatus::Completed);
        assert_eq!(ran.load(Ordering::Relaxed), 1);
    });
}

// Two days of somebody's work were taken for what the step had left
#[test]
fn what_a_step_left_that_nobody_could_capture_stays_unknown_when_its_run_rests_again() {
    let host = Host::new();
    let half = Arc::new(Notify::new());
    let step = |waits: Option<Arc<Notify>>| {
        Work(move |context: RunContext| {
            let waits = waits.clone();
            async move {
                let work = |step: stillframe::steps::StepContext| async move {
                    fs::write(step.workspace().unwrap().join("half"), "half\n").unwrap();
                    if let Some(waits) = waits {
                        waits.notify_one();
                        std::future::pending::<()>().await;
                    }
                    Ok(())
                };
                context.phase("p").step("apply", work).await?;
                Ok(AdapterOutput::empty())
            }
        })
    };
    die_in_the_middle_of(async {
        let engine = host.engine().await;
        let (options, work) = (options(&host), step(Some(half.clone())));
        tokio::spawn(async move { engine.run_once(options, work).await });
        half.notified().await;
    });
    on_a_runtime(async {
        host.backend.fail("after_failure");
        let engine = host.engine().await;
        until(&engine, RunStatus::Interrupted).await;
        host.backend.heal("after_failure");
        host.write("mine", "two days\n");
        let refuses = Work(|context: RunContext| async move {
            let other = StepIdentity::new("p", 0, "apply");
            context
                .check_plan(&StepPlan::new().step(other, "other"))
                .await?;
            Ok(AdapterOutput::empty())
        });
        let rests = engine.run_once(options(&host), refuses).await.unwrap();
        assert_eq!(rests.run.status, RunStatus::Interrupted, "{:?}", rests.run);
        let step_of = |phases: &[PhaseRecord]| phases[0].steps[0].clone();
        assert_eq!(step_of(&rests.phases).snapshot_after, None);
        completed(&engine.run_once(options(&host), step(None)).await.unwrap());
        assert_eq!(host.read("mine").as_deref(), Some("two days\n"));
    });
}

// It was said to be cancelled, and its command went on in the workspace
#[test]
fn a_run_whose_owner_stands_still_in_its_workspace_is_asked_to_stop() {
    let host = Host::impatient();
    let short = || {
        host.options()
            .heartbeat(Duration::from_millis(20))
            .lease_expiry(Duration::from_millis(100))
    };
    let (gate, stands_still, go_on) = Gate::new();
    std::thread::scope(|scope| {
        let late = scope.spawn(|| {
            on_one_thread(async {
                let engine = Engine::start(short()).await.unwrap();
                let gate = Mutex::new(gate);
                let work = Work(move |context: RunContext| {
                    gate.lock().unwrap().stand();
                    async move {
                        context.cancellation.cancelled().await;
                        Err(AdapterError::cancelled("as it was asked to"))
                    }
                });
                engine.run_once(options(&host), work).await
            })
        });
        stands_still.recv().unwrap();
        let (short, host) = (&short, &host);
        // It has what lets go of the owner, also where it fails.
        on_a_runtime(async move {
            let engine = Engine::start(short()).await.unwrap();
            host.is_past("SELECT expires_at FROM leases").await;
            engine.cancel_run(&id()).await.unwrap();
            let run = engine.export_run("ticket-42").await.unwrap();
            assert_eq!(run.run.status, RunStatus::Running, "it is at work");
            assert!(run.lease.unwrap().cancel_requested_at.is_some());
            go_on.send(()).unwrap();
            let outcome = late.join().unwrap().unwrap();
            assert_eq!(outcome.run.status, RunStatus::Cancelled);
            until(&engine, RunStatus::Cancelled).await;
        });
    });
}

#[test]
fn the_session_that_was_made_for_a_run_ends_with_it_also_if_that_was_cancelled_at_rest() {
    let host = Host::new();
    on_a_runtime(async {
        let engine = cold(&host).await;
        let session = engine.session("s").await.unwrap();
        rests(&host, &session, &Arc::default()).await;
        engine.cancel_run(&id()).await.unwrap();
        let status = session.record().await.unwrap().status;
        assert_eq!(status, SessionStatus::Active, "it is the host's own");

        let own = RunOptions::new("x").run_id("own".parse().unwrap());
        let own = own.workspace(host.workspace());
        let outcome = engine.run_once(own, asks(&Arc::default())).await.unwrap();
        assert_eq!(outcome.run.status, RunStatus::WaitingForInput);
        let session = engine.session(outcome.session_id.as_str()).await.unwrap();
        let status = session.record().await.unwrap().status;
        assert_eq!(status, SessionStatus::Active, "it goes on");
        engine.cancel_run(&outcome.run_id).await.unwrap();
        let status = session.record().await.unwrap().status;
        assert_eq!(status, SessionStatus::Cancelled);
    });
}

// Every command failed, in every workspace
#[test]
fn a_damaged_row_of_a_run_that_was_left_behind_is_in_no_other_runs_way() {
    let host = Host::new();
    let half = Arc::new(Notify::new());
    die_in_the_middle_of(async {
        let engine = host.engine().await;
        let (options, began) = (options(&host), half.clone());
        let work = Work(move |context: RunContext| {
            let began = began.clone();
            async move {
                let waits = |_| async move {
                    began.notify_one();
                    std::future::pending::<Result<(), AdapterError>>().await
                };
                context.phase("p").step("a", waits).await?;
                Ok(AdapterOutput::empty())
            }
        });
        tokio::spawn(async move { engine.run_once(options, work).await });
        half.notified().await;
    });
    for table in ["steps", "runs"] {
        let damage = match table {
            "steps" => "UPDATE steps SET row_sum = 1",
            _ => "UPDATE runs SET row_sum = 1 WHERE id = 'ticket-42'",
        };
        assert!(database(&host).execute(damage, ()).unwrap() > 0);
        on_a_runtime(async {
            let engine = host.engine().await;
            if table == "steps" {
                let left = &engine.recovery().left;
                assert_eq!(left.len(), 1, "{left:?}");
                assert_eq!(left[0].reason.kind.as_deref(), Some("Corrupt"));
            }
            let damaged = engine.export_run("ticket-42").await.unwrap_err();
            assert_eq!(damaged.kind(), ErrorKind::Corrupt, "{damaged}");
            let other = RunOptions::new("x").workspace(host.workspace());
            completed(
                &engine
                    .run_once(other, writes("new", "new\n"))
                    .await
                    .unwrap(),
            );
            engine.shutdown().await.unwrap();
            // What has ended since is in nobody's way either.
            database(&host)
                .execute("DELETE FROM runs WHERE id <> 'ticket-42'", ())
                .ok();
        });
    }
}
