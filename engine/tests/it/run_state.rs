//! The key/value state of a run, and its transitions.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use stillframe::records::{StateTransition, StateValue};
use stillframe::{
    AdapterError, AdapterOutput, ErrorKind, RunContext, RunId, RunOptions, RunStatus,
};

use crate::support::{Host, Work, completed, die_in_the_middle_of, on_a_runtime};

fn values(kept: &[StateValue]) -> Vec<(&str, &Value)> {
    kept.iter().map(|of| (of.key.as_str(), &of.value)).collect()
}

fn moves(kept: &[StateTransition]) -> Vec<(&str, Option<&Value>, Option<&Value>, &str)> {
    kept.iter()
        .map(|of| {
            let (old, new) = (of.old_value.as_ref(), of.new_value.as_ref());
            (of.key.as_str(), old, new, of.trigger.as_str())
        })
        .collect()
}

async fn counts(context: RunContext) -> Result<AdapterOutput, AdapterError> {
    assert_eq!(context.state("page").await?, None);
    context.set_state("page", json!(1), "begun").await?;
    context.set_state("page", json!(1), "said twice").await?;
    context.set_state("page", json!(2), "page_read").await?;
    let seen = json!({ "seen": ["a", null, 1.5] });
    context
        .set_state("odd\n \"key\"", seen.clone(), "noted")
        .await?;
    assert_eq!(context.state("odd\n \"key\"").await?, Some(seen));
    assert_eq!(context.state("page").await?, Some(json!(2)));
    context.set_state("page", Value::Null, "at the end").await?;
    context.set_state("page", Value::Null, "again").await?;
    assert_eq!(context.state("page").await?, None);
    Ok(AdapterOutput::empty())
}

#[tokio::test]
async fn a_value_is_what_was_set_last_and_each_change_is_a_transition() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let outcome = session.execute_run(RunOptions::new("count"), Work(counts));
    let outcome = outcome.await.unwrap();
    completed(&outcome);
    let seen = json!({ "seen": ["a", null, 1.5] });
    let (one, two) = (json!(1), json!(2));
    let kept = engine.run_state(&outcome.run_id).await.unwrap();
    assert_eq!(values(&kept), [("odd\n \"key\"", &seen)]);
    let all = engine.state_transitions(&outcome.run_id).await.unwrap();
    let expected = [
        ("page", None, Some(&one), "begun"),
        ("page", Some(&one), Some(&two), "page_read"),
        ("odd\n \"key\"", None, Some(&seen), "noted"),
        ("page", Some(&two), None, "at the end"),
    ];
    assert_eq!(moves(&all), expected);
    assert!(all.is_sorted_by_key(|of| of.at));
    assert_eq!(kept[0].changed_at, all[2].at);

    let shown = engine.export_run(outcome.run_id.as_str()).await.unwrap();
    assert_eq!((&shown.state, &shown.state_transitions), (&kept, &all));
    let other = session.execute_run(RunOptions::new("other"), Work(nothing));
    let other = other.await.unwrap().run_id;
    assert_eq!(engine.run_state(&other).await.unwrap(), []);
    let unknown = "nobody".parse().unwrap();
    for error in [
        engine.run_state(&unknown).await.unwrap_err(),
        engine.state_transitions(&unknown).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains("nobody"), "{error}");
    }
}

#[tokio::test]
async fn of_a_run_that_has_ended_nothing_is_set() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let kept = Arc::new(Mutex::new(None));
    let given = kept.clone();
    let work = Work(move |context: RunContext| {
        *given.lock().unwrap() = Some(context);
        async { Ok(AdapterOutput::empty()) }
    });
    let outcome = session.execute_run(RunOptions::new("end"), work);
    let run_id = outcome.await.unwrap().run_id;
    let late = kept.lock().unwrap().take().unwrap();
    let refused = late.set_state("page", json!(9), "too late").await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(engine.run_state(&run_id).await.unwrap(), []);
}

async fn nothing(context: RunContext) -> Result<AdapterOutput, AdapterError> {
    assert_eq!(context.state("page").await?, None, "it is another run's");
    Ok(AdapterOutput::empty())
}

#[tokio::test]
async fn what_cannot_be_kept_is_refused_by_its_key_and_nothing_is_written() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let work = Work(|context: RunContext| async move {
        context
            .set_state("kept", json!("as it was"), "begun")
            .await?;
        let mut deep = json!(1);
        for _ in 0..150 {
            deep = json!([deep]);
        }
        let long = "k".repeat(201);
        let (large, invalid) = (ErrorKind::LimitExceeded, ErrorKind::InvalidOptions);
        for (key, value, trigger, kind) in [
            ("kept", json!("x".repeat(64 * 1024)), "grown", large),
            ("kept", deep, "nested", invalid),
            ("kept", json!(1), "", invalid),
            ("kept", json!(1), "t".repeat(201).as_str(), invalid),
            ("", json!(1), "named", invalid),
            (long.as_str(), json!(1), "named", invalid),
        ] {
            let error = context.set_state(key, value, trigger).await.unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            let named = key.chars().take(40).collect::<String>();
            assert!(error.to_string().contains(&named), "{error}");
        }
        let most = json!("x".repeat(64 * 1024 - 2));
        context.set_state("large", most, "grown").await?;
        Ok(AdapterOutput::empty())
    });
    let outcome = session.execute_run(RunOptions::new("grow"), work);
    let outcome = outcome.await.unwrap();
    completed(&outcome);
    let kept = engine.run_state(&outcome.run_id).await.unwrap();
    let keys: Vec<&str> = kept.iter().map(|of| of.key.as_str()).collect();
    assert_eq!(keys, ["kept", "large"]);
    assert_eq!(kept[0].value, json!("as it was"));
    let all = engine.state_transitions(&outcome.run_id).await.unwrap();
    assert_eq!(all.len(), 2);
}

fn id() -> RunId {
    "ticket-42".parse().unwrap()
}

fn options() -> RunOptions {
    RunOptions::new("count").run_id(id()).resumable(true)
}

#[test]
fn a_run_that_is_killed_goes_on_with_its_state() {
    let host = Host::new();
    die_in_the_middle_of(async {
        let (engine, session) = host.session().await;
        let (done, is_done) = tokio::sync::oneshot::channel();
        let done = Mutex::new(Some(done));
        let work = Work(move |context: RunContext| {
            let done = done.lock().unwrap().take();
            async move {
                context.set_state("page", json!(7), "page_read").await?;
                let _ = done.unwrap().send(());
                std::future::pending().await
            }
        });
        tokio::spawn(async move {
            let _engine = engine;
            session.execute_run(options(), work).await
        });
        is_done.await.unwrap();
    });
    on_a_runtime(async {
        let (engine, session) = host.session().await;
        let kept = engine.run_state(&id()).await.unwrap();
        assert_eq!(values(&kept), [("page", &json!(7))]);
        let saw = Arc::new(AtomicBool::new(false));
        let seen = saw.clone();
        let work = Work(move |context: RunContext| {
            let seen = seen.clone();
            async move {
                seen.store(true, Ordering::Relaxed);
                assert_eq!(context.state("page").await?, Some(json!(7)));
                context.set_state("page", json!(8), "page_read").await?;
                Ok(AdapterOutput::empty())
            }
        });
        let outcome = session.execute_run(options(), work).await.unwrap();
        assert_eq!(outcome.run.status, RunStatus::Completed);
        assert!(saw.load(Ordering::Relaxed));
        let all = engine.state_transitions(&id()).await.unwrap();
        let (seven, eight) = (json!(7), json!(8));
        assert_eq!(
            moves(&all),
            [
                ("page", None, Some(&seven), "page_read"),
                ("page", Some(&seven), Some(&eight), "page_read"),
            ]
        );
        engine.shutdown().await.unwrap();
    });
}
