//! The life of a session.

use serde_json::json;
use stillframe::events::EventType;
use stillframe::options::{RunQuery, SessionQuery};
use stillframe::records::{SessionDetails, SessionStatus};
use stillframe::{
    Adapter, AdapterError, AdapterOutput, ErrorKind, RunContext, RunOptions, RunStatus,
};

use crate::support::{Host, Work, all, ruins, types, writes};

fn nothing() -> impl Adapter {
    Work(|_| async { Ok(AdapterOutput::empty()) })
}

#[tokio::test]
async fn a_session_takes_runs_only_while_it_is_active() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    assert_eq!(
        session.record().await.unwrap().status,
        SessionStatus::Active
    );
    session.pause("lunch").await.unwrap();
    let refused = session.execute_run(RunOptions::new("x"), nothing()).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Conflict);
    session.resume("").await.unwrap();
    session
        .execute_run(RunOptions::new("x"), nothing())
        .await
        .unwrap();
    let record = session.complete("done").await.unwrap();
    assert_eq!(record.status, SessionStatus::Completed);
    assert!(record.ended_at.is_some());
    let refused = session.execute_run(RunOptions::new("x"), nothing()).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Conflict);

    let events = all(&engine, &session).await;
    let paused = events
        .iter()
        .find(|e| e.event_type == EventType::SESSION_PAUSED)
        .unwrap();
    assert_eq!(paused.data["reason"], "lunch");
    assert_eq!(
        types(&engine, &session).await,
        [
            "session_created",
            "session_started",
            "session_paused",
            "session_resumed",
            "run_started",
            "run_completed",
            "session_completed",
        ]
    );
}

#[tokio::test]
async fn an_ended_session_takes_no_transition_and_its_row_is_unchanged() {
    let host = Host::new();
    let (_engine, session) = host.session().await;
    session.fail("no").await.unwrap();
    let before = session.record().await.unwrap();
    for refused in [
        session.pause("").await,
        session.resume("").await,
        session.complete("").await,
        session.cancel("").await,
    ] {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Conflict);
    }
    assert_eq!(session.record().await.unwrap(), before);
    let refused = session
        .snapshot(&host.workspace(), stillframe::backends::Label::MANUAL)
        .await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Conflict);
}

#[tokio::test]
async fn of_two_endings_at_once_exactly_one_wins() {
    let host = Host::new();
    let (_engine, session) = host.session().await;
    let (one, other) = tokio::join!(session.complete("one"), session.fail("other"));
    assert_eq!(
        [one.is_ok(), other.is_ok()]
            .iter()
            .filter(|ok| **ok)
            .count(),
        1
    );
}

#[tokio::test]
async fn the_same_id_is_the_same_session_also_in_another_engine() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let other = host.engine().await;
    let same = other.session("s").await.unwrap();
    session.pause("").await.unwrap();
    assert_eq!(same.record().await.unwrap().status, SessionStatus::Paused);
    same.resume("").await.unwrap();
    session.complete("").await.unwrap();
    assert_eq!(engine.sessions(SessionQuery::all()).await.unwrap().len(), 1);
    let again = other.session("s").await.unwrap();
    assert_eq!(
        again.record().await.unwrap().status,
        SessionStatus::Completed
    );
    assert_eq!(types(&engine, &session).await.len(), 5);
}

#[tokio::test]
async fn many_engines_that_want_a_session_at_once_make_one() {
    let host = Host::new();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let options = host.options();
        tasks.spawn(async move {
            let engine = stillframe::Engine::start(options).await.unwrap();
            engine.session("shared").await.unwrap();
            engine
        });
    }
    let engines = tasks.join_all().await;
    let session = engines[0].session("shared").await.unwrap();
    assert_eq!(
        types(&engines[0], &session).await,
        ["session_created", "session_started"]
    );
}

#[tokio::test]
async fn a_name_that_is_no_id_is_refused() {
    let host = Host::new();
    let engine = host.engine().await;
    for name in ["", "a/b", "-x", "x".repeat(201).as_str()] {
        let refused = engine.session(name).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidOptions, "{name:?}");
    }
    assert!(
        engine
            .sessions(SessionQuery::all())
            .await
            .unwrap()
            .is_empty()
    );
}

#[tokio::test]
async fn a_workspace_has_a_session_of_its_own() {
    let host = Host::new();
    let engine = host.engine().await;
    let one = engine.workspace_session(host.path()).await.unwrap();
    let again = engine.workspace_session(host.path()).await.unwrap();
    assert_eq!(one.id(), again.id());
    let digits = one.id().as_str().strip_prefix("ses_").unwrap();
    assert_eq!(digits.len(), 32);

    for _ in 0..2 {
        let label = stillframe::backends::Label::MANUAL;
        one.snapshot(&host.workspace(), label).await.unwrap();
    }
    let taken: Vec<u64> = all(&engine, &one)
        .await
        .iter()
        .filter(|e| e.event_type == EventType::WORKSPACE_SNAPSHOT_TAKEN)
        .map(|e| e.sequence)
        .collect();
    assert_eq!(taken, [3, 4], "consecutive");
}

#[tokio::test]
async fn run_once_ends_its_session_as_the_run_ended() {
    let host = Host::new();
    let engine = host.engine().await;
    let options = || RunOptions::new("x").workspace(host.workspace());
    let good = engine
        .run_once(options(), writes("a", "x\n"))
        .await
        .unwrap();
    let bad = engine.run_once(options(), ruins("a", "y\n")).await.unwrap();
    assert!(good.workspace.diff.is_some() && bad.workspace.diff.is_some());
    assert_eq!(bad.run.status, RunStatus::Failed);
    let status = |id: &stillframe::SessionId| {
        let (engine, id) = (engine.clone(), id.to_string());
        async move {
            engine
                .session(id)
                .await
                .unwrap()
                .record()
                .await
                .unwrap()
                .status
        }
    };
    assert_eq!(status(&good.session_id).await, SessionStatus::Completed);
    assert_eq!(status(&bad.session_id).await, SessionStatus::Failed);
    let refused = engine.run_once(
        RunOptions::new("x").workspace(host.workspace().max_patch_bytes(0)),
        nothing(),
    );
    assert_eq!(refused.await.unwrap_err().kind(), ErrorKind::InvalidOptions);
    let sessions = engine.sessions(SessionQuery::all()).await.unwrap();
    assert_eq!(sessions.len(), 3);
    assert_eq!(sessions[0].status, SessionStatus::Failed);
}

#[tokio::test]
async fn cancelling_a_session_cancels_its_runs() {
    let host = Host::new();
    let (_engine, session) = host.session().await;
    let cancelling = session.clone();
    let work = Work(move |context: RunContext| {
        let session = cancelling.clone();
        async move {
            session.cancel("enough").await.unwrap();
            context.cancellation.cancelled().await;
            Err(AdapterError::cancelled("so be it"))
        }
    });
    let outcome = session
        .execute_run(RunOptions::new("x"), work)
        .await
        .unwrap();
    assert_eq!(outcome.run.status, RunStatus::Cancelled);
    let status = session.record().await.unwrap().status;
    assert_eq!(status, SessionStatus::Cancelled);
}

fn metadata(of: serde_json::Value) -> serde_json::Map<String, serde_json::Value> {
    of.as_object().unwrap().clone()
}

#[tokio::test]
async fn a_session_is_found_by_what_the_host_says_of_it() {
    let host = Host::new();
    let engine = host.engine().await;
    let plain = engine.session("plain").await.unwrap();
    let said = SessionDetails::default()
        .agent_id("reviewer")
        .tag("urgent")
        .tag("docs")
        .metadata(metadata(
            json!({"ticket": 42, "key": "ghp_0123456789abcdefghij01", "ghp_0123456789abcdefghij02": 1}),
        ))
        .parent_id(plain.id().clone());
    let session = engine.session_with("told", said.clone()).await.unwrap();
    let record = session.record().await.unwrap();
    assert_eq!(record.details.metadata["ticket"], 42);
    let mut keys = record.details.metadata.keys();
    assert!(!keys.any(|key| key.contains("ghp_")));
    assert!(
        !record.details.metadata["key"]
            .as_str()
            .unwrap()
            .contains("ghp_"),
        "{record:?}"
    );
    assert_eq!(record.details.parent_id.as_ref(), Some(plain.id()));
    // One that is there stays as it is.
    engine
        .session_with("told", SessionDetails::default())
        .await
        .unwrap();
    assert_eq!(session.record().await.unwrap(), record);
    assert_eq!(
        plain.record().await.unwrap().details,
        SessionDetails::default()
    );

    let found = async |query: SessionQuery| -> Vec<String> {
        let found = engine.sessions(query).await.unwrap();
        found
            .into_iter()
            .map(|session| session.id.to_string())
            .collect()
    };
    let all = SessionQuery::all;
    assert_eq!(found(all()).await, ["told", "plain"]);
    assert_eq!(found(all().limit(1)).await, ["told"]);
    assert_eq!(found(all().tag("urgent")).await, ["told"]);
    assert_eq!(found(all().tag("urgent").tag("docs")).await, ["told"]);
    assert_eq!(found(all().tag("urgent").tag("code")).await, [""; 0]);
    assert_eq!(found(all().agent_id("reviewer")).await, ["told"]);
    assert_eq!(found(all().agent_id("other")).await, [""; 0]);
    assert_eq!(found(all().parent_id(plain.id().clone())).await, ["told"]);

    // Set later, also when it has ended, and by another engine.
    session.complete("").await.unwrap();
    assert_eq!(found(all().status(SessionStatus::Active)).await, ["plain"]);
    assert_eq!(
        found(all().status(SessionStatus::Completed).tag("docs")).await,
        ["told"]
    );
    engine.shutdown().await.unwrap();
    let engine = host.engine().await;
    let session = engine.session("told").await.unwrap();
    let mut details = session.record().await.unwrap().details;
    details.tags.remove("docs");
    details.agent_id = None;
    let record = session.describe(details.clone()).await.unwrap();
    assert_eq!(record.details, details);
    assert_eq!(engine.find_session("told").await.unwrap(), record);
    let found = engine.sessions(all().tag("docs")).await.unwrap();
    assert!(found.is_empty());
    assert!(
        engine
            .verify(&host.workspace())
            .await
            .unwrap()
            .log
            .is_none()
    );
}

#[tokio::test]
async fn what_cannot_be_said_of_a_session_is_refused_and_nothing_is_made() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let details = SessionDetails::default;
    let many = (0..65).fold(details(), |details, at| details.tag(format!("{at}")));
    let big = metadata(json!({"text": "x".repeat(64 * 1024)}));
    let deep = (0..130).fold(json!(1), |inner, _| json!([inner]));
    let deep = metadata(json!({ "deep": deep }));
    for (refused, kind) in [
        (details().agent_id(""), ErrorKind::InvalidOptions),
        (
            details().agent_id("x".repeat(201)),
            ErrorKind::InvalidOptions,
        ),
        (details().metadata(deep), ErrorKind::InvalidOptions),
        (details().tag(""), ErrorKind::InvalidOptions),
        (details().tag("two\nlines"), ErrorKind::InvalidOptions),
        (details().tag("x".repeat(101)), ErrorKind::InvalidOptions),
        (
            details().tag("ghp_0123456789abcdefghij01"),
            ErrorKind::InvalidOptions,
        ),
        (many, ErrorKind::InvalidOptions),
        (details().metadata(big), ErrorKind::InvalidOptions),
        (
            details().parent_id("nobody".parse().unwrap()),
            ErrorKind::NotFound,
        ),
        (
            details().parent_id("new".parse().unwrap()),
            ErrorKind::InvalidOptions,
        ),
    ] {
        let error = engine.session_with("new", refused).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
    }
    let unknown = engine.find_session("new").await.unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::NotFound);
    // A ring.
    let below = details().parent_id(session.id().clone());
    let below = engine.session_with("below", below).await.unwrap();
    let ring = session
        .describe(details().parent_id(below.id().clone()))
        .await;
    assert_eq!(ring.unwrap_err().kind(), ErrorKind::InvalidOptions);
    assert_eq!(session.record().await.unwrap().details, details());
}

#[tokio::test]
async fn a_list_of_sessions_says_how_many_runs_wait_and_a_run_what_its_host_keeps_with_it() {
    let host = Host::new();
    let go = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
    let gate = go.clone();
    let options = host.options().adapter("waits", move |_| {
        let gate = gate.clone();
        Ok(Work(move |_: RunContext| {
            let gate = gate.clone();
            async move {
                gate.acquire().await.unwrap().forget();
                Ok(AdapterOutput::empty())
            }
        }))
    });
    let engine = stillframe::Engine::start(options).await.unwrap();
    let session = engine.session("s").await.unwrap();
    let mut runs = Vec::new();
    for at in 0..3 {
        let options = RunOptions::new("to do").metadata(json!({ "at": at }));
        let run = session
            .submit_run(options, "waits", json!(null))
            .await
            .unwrap();
        runs.push(run);
    }
    crate::support::eventually("two wait", || async {
        engine.sessions(SessionQuery::all()).await.unwrap()[0].queued == 2
    })
    .await;
    let recorded = engine
        .runs(RunQuery::session(session.id().clone()))
        .await
        .unwrap();
    assert_eq!(recorded[0].metadata, json!({"at": 2}));
    go.add_permits(3);
    for run in runs {
        run.wait().await.unwrap();
    }
    assert_eq!(session.record().await.unwrap().queued, 0);
}
