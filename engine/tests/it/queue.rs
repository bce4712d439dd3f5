//! The durable queue: what was accepted is begun once, in order, by one engine.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use stillframe::backends::Label;
use stillframe::events::{EventQuery, EventType};
use stillframe::options::RunQuery;
use stillframe::{
    AdapterError, AdapterOutput, Engine, EngineOptions, ErrorKind, Priority, RunContext, RunHandle,
    RunId, RunOptions, RunStatus, SessionManager, WorkspaceOptions,
};
use tokio::sync::Semaphore;

use crate::support::{
    Gate, Host, Work, completed, die_in_the_middle_of, eventually, on_a_runtime, wait_for, writes,
};

/// What the adapters of a test were called for, and what they wait for.
#[derive(Clone)]
struct Board {
    begun: Arc<Mutex<Vec<String>>>,
    at_work: Arc<Mutex<BTreeMap<String, usize>>>,
    most: Arc<Mutex<(usize, usize)>>,
    go: Arc<Semaphore>,
}

impl Board {
    /// A board where `go` runs may end, and more when they are told.
    fn new(go: usize) -> Self {
        Self {
            begun: Arc::default(),
            at_work: Arc::default(),
            most: Arc::default(),
            go: Arc::new(Semaphore::new(go)),
        }
    }

    fn open() -> Self {
        Self::new(Semaphore::MAX_PERMITS)
    }

    /// The adapter `note`, which notes the input of its run.
    fn on(&self, options: EngineOptions) -> EngineOptions {
        let board = self.clone();
        options.adapter("note", move |input: Value| {
            let (board, text) = (board.clone(), input.to_string());
            Ok(Work(move |context: RunContext| {
                let (board, text) = (board.clone(), text.clone());
                async move { board.work(context, text).await }
            }))
        })
    }

    async fn work(self, context: RunContext, text: String) -> Result<AdapterOutput, AdapterError> {
        self.begun.lock().unwrap().push(text);
        let session = context.session_id.to_string();
        {
            let mut at_work = self.at_work.lock().unwrap();
            *at_work.entry(session.clone()).or_default() += 1;
            let (all, own) = (at_work.values().sum(), at_work[&session]);
            let mut most = self.most.lock().unwrap();
            *most = (most.0.max(all), most.1.max(own));
        }
        let gone = tokio::select! {
            permit = self.go.acquire() => permit.map(|permit| permit.forget()).is_ok(),
            () = context.cancellation.cancelled() => false,
        };
        *self.at_work.lock().unwrap().get_mut(&session).unwrap() -= 1;
        match gone {
            true => Ok(AdapterOutput::empty()),
            false => Err(AdapterError::cancelled("asked to")),
        }
    }

    fn begun(&self) -> Vec<String> {
        self.begun.lock().unwrap().clone()
    }

    async fn has_begun(&self, count: usize) {
        eventually("the runs are begun", || async {
            self.begun.lock().unwrap().len() >= count
        })
        .await;
    }
}

async fn submit(session: &SessionManager, input: Value) -> RunHandle {
    let submitted = session.submit_run(RunOptions::new("to do"), "note", input);
    submitted.await.unwrap()
}

async fn submit_as(session: &SessionManager, priority: Priority, input: Value) -> RunHandle {
    let options = RunOptions::new("to do").priority(priority);
    session.submit_run(options, "note", input).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submitted_run_is_begun_and_its_outcome_is_waited_for() {
    let (host, board) = (Host::new(), Board::new(0));
    let engine = Engine::start(board.on(host.options())).await.unwrap();
    let session = engine.session("s").await.unwrap();
    let options = RunOptions::new("to do")
        .workspace(host.workspace())
        .metadata(json!({ "of": "the host" }));
    let handle = session
        .submit_run(options, "note", json!({ "ticket": 42 }))
        .await
        .unwrap();
    board.has_begun(1).await;
    assert_eq!(handle.status().await.unwrap(), RunStatus::Running);
    let waits = tokio::spawn({
        let handle = handle.clone();
        async move { handle.wait().await }
    });
    board.go.add_permits(1);
    let outcome = waits.await.unwrap().unwrap();
    completed(&outcome);
    assert_eq!(&outcome.run_id, handle.id());
    assert!(outcome.is_stored, "it is read from the record");
    assert!(outcome.workspace.before_snapshot.is_some());
    assert!(outcome.workspace.after_snapshot.is_some());
    completed(&engine.wait(handle.id()).await.unwrap());

    let record = engine.find_run(handle.id().as_str()).await.unwrap();
    let queue = record.queue.unwrap();
    assert_eq!((queue.adapter.as_str(), queue.place), ("note", None));
    assert_eq!(queue.input, json!({ "ticket": 42 }));
    let mut events = handle.events();
    let mut types = Vec::new();
    while types.last() != Some(&EventType::RUN_COMPLETED) {
        types.push(events.next().await.unwrap().unwrap().event_type);
    }
    assert_eq!(types[0], EventType::RUN_QUEUED);
    assert_eq!(types[2], EventType::RUN_STARTED, "after the first snapshot");
    let unknown = engine.wait(&RunId::random()).await.unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_runs_over_fifty_sessions_are_each_done_once_and_in_order() {
    let (host, board) = (Host::new(), Board::open());
    let options = board.on(host.options()).max_running(8);
    let engine = Engine::start(options).await.unwrap();
    let mut handles = Vec::new();
    for at in 0..1000 {
        let session = engine.session(format!("s{}", at % 50)).await.unwrap();
        handles.push(submit(&session, json!(at)).await);
    }
    for handle in &handles {
        completed(&handle.wait().await.unwrap());
    }
    let begun: Vec<usize> = board.begun().iter().map(|at| at.parse().unwrap()).collect();
    let all: BTreeSet<usize> = begun.iter().copied().collect();
    assert_eq!((begun.len(), all.len()), (1000, 1000), "each once");
    for session in 0..50 {
        let of: Vec<usize> = begun
            .iter()
            .copied()
            .filter(|at| at % 50 == session)
            .collect();
        assert!(of.is_sorted(), "session {session}: {of:?}");
    }
    let most = *board.most.lock().unwrap();
    assert!(most.0 <= 8 && most.1 == 1, "{most:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn interactive_runs_are_begun_first_and_batch_runs_are_not_starved() {
    let (host, board) = (Host::new(), Board::new(0));
    let options = board.on(host.options()).max_running(1);
    let engine = Engine::start(options).await.unwrap();
    let session = engine.session("s").await.unwrap();
    let mut handles = vec![submit(&session, json!("first")).await];
    board.has_begun(1).await;
    for at in 0..2 {
        handles.push(submit_as(&session, Priority::Batch, json!(format!("batch {at}"))).await);
    }
    for at in 0..6 {
        handles.push(submit(&session, json!(at)).await);
    }
    let waiting = engine
        .runs(RunQuery::all().status(RunStatus::Pending))
        .await
        .unwrap();
    let places = waiting
        .iter()
        .map(|run| run.queue.as_ref().unwrap().place.unwrap());
    assert_eq!(
        places.collect::<Vec<_>>(),
        [6, 5, 4, 3, 2, 1, 8, 7],
        "newest first"
    );
    board.go.add_permits(handles.len());
    for handle in handles {
        completed(&handle.wait().await.unwrap());
    }
    let order = [
        "\"first\"",
        "0",
        "1",
        "2",
        "\"batch 0\"",
        "3",
        "4",
        "5",
        "\"batch 1\"",
    ];
    assert_eq!(board.begun(), order);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_may_have_several_at_once_if_the_host_says_so() {
    let (host, board) = (Host::new(), Board::new(0));
    let options = board.on(host.options()).max_running_in_session(3);
    let engine = Engine::start(options).await.unwrap();
    let session = engine.session("s").await.unwrap();
    for at in 0..5 {
        submit(&session, json!(at)).await;
    }
    board.has_begun(3).await;
    board.go.add_permits(1);
    board.has_begun(4).await;
    assert_eq!(board.most.lock().unwrap().1, 3);
    for limited in [
        host.options().max_running(0),
        host.options().max_running_in_session(0),
        host.options().max_queued(0),
    ] {
        let refused = Engine::start(limited).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidOptions);
    }
}

#[test]
fn what_a_dead_engine_had_accepted_is_begun_once_and_an_unknown_adapter_is_named() {
    let (host, board) = (Host::new(), Board::new(0));
    let both = |board: &Board| {
        board.on(host.options()).adapter("other", |_| {
            Ok(Work(|_: RunContext| async { Ok(AdapterOutput::empty()) }))
        })
    };
    let options = both(&board).max_running(1);
    let (cut_off, waiting, other) = die_in_the_middle_of(async {
        let engine = Engine::start(options).await.unwrap();
        let session = engine.session("s").await.unwrap();
        let cut_off = submit(&session, json!("cut off")).await.id().clone();
        let waiting = submit(&session, json!("waits")).await.id().clone();
        let other = engine.session("other").await.unwrap();
        let other = other.submit_run(RunOptions::new("x"), "other", json!(null));
        let other = other.await.unwrap().id().clone();
        board.has_begun(1).await;
        (cut_off, waiting, other)
    });
    on_a_runtime(async {
        // One without adapters leaves the queue alone.
        let engine = host.engine().await;
        let row = engine.find_run(waiting.as_str()).await.unwrap();
        assert_eq!(
            (row.status, row.queue.unwrap().place),
            (RunStatus::Pending, Some(1))
        );
        assert!(engine.recovery().unknown_adapters.is_empty());
        let ended = engine.find_run(cut_off.as_str()).await.unwrap();
        assert_eq!(ended.status, RunStatus::Failed, "its work had begun");
        let incomplete = engine.runs(RunQuery::all().incomplete()).await.unwrap();
        assert_eq!(incomplete, [], "they are the queue's");
        engine.shutdown().await.unwrap();

        let again = Board::open();
        let engine = Engine::start(again.on(host.options())).await.unwrap();
        completed(&engine.wait(&waiting).await.unwrap());
        assert_eq!(again.begun(), ["\"waits\""]);
        let unknown = &engine.recovery().unknown_adapters;
        assert_eq!(unknown.len(), 1);
        assert_eq!(
            (unknown[0].adapter.as_str(), &unknown[0].runs[..]),
            ("other", &[other.clone()][..])
        );
        let row = engine.find_run(other.as_str()).await.unwrap();
        assert_eq!(
            (row.status, row.queue.unwrap().place),
            (RunStatus::Pending, Some(1))
        );
        engine.shutdown().await.unwrap();

        let engine = Engine::start(both(&again)).await.unwrap();
        completed(&engine.wait(&other).await.unwrap());
    });
}

#[test]
fn a_run_whose_engine_died_before_its_work_began_is_begun_by_the_next() {
    let (host, board) = (Host::new(), Board::open());
    let (gate, is_there, open) = Gate::new();
    host.backend.hold("before", gate);
    let options = board.on(host.options());
    let asked = host.workspace();
    let run = die_in_the_middle_of(async move {
        let engine = Engine::start(options).await.unwrap();
        let session = engine.session("s").await.unwrap();
        let options = RunOptions::new("x").workspace(asked);
        let handle = session.submit_run(options, "note", json!(1)).await.unwrap();
        is_there.recv_timeout(Duration::from_secs(20)).unwrap();
        let record = engine.find_run(handle.id().as_str()).await.unwrap();
        assert_eq!(record.status, RunStatus::Pending);
        assert_eq!(record.queue.unwrap().place, None, "it is taken");
        // Once the engine is dead, so that nothing follows the capture.
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(500));
            drop(open);
        });
        handle.id().clone()
    });
    assert_eq!(board.begun(), [""; 0]);
    on_a_runtime(async {
        let engine = Engine::start(board.on(host.options())).await.unwrap();
        completed(&engine.wait(&run).await.unwrap());
        assert_eq!(board.begun(), ["1"]);
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_puts_back_what_has_not_begun() {
    let (host, board) = (Host::new(), Board::open());
    let (gate, is_there, open) = Gate::new();
    host.backend.hold("before", gate);
    let options = board.on(host.options()).shutdown_grace(Duration::ZERO);
    let engine = Engine::start(options).await.unwrap();
    let session = engine.session("s").await.unwrap();
    let options = RunOptions::new("x").workspace(host.workspace());
    let handle = session.submit_run(options, "note", json!(1)).await.unwrap();
    wait_for(is_there).await;
    let stopping = tokio::spawn({
        let engine = engine.clone();
        async move { engine.shutdown().await }
    });
    // The capture is asked to stop by then.
    tokio::time::sleep(Duration::from_millis(50)).await;
    drop(open);
    stopping.await.unwrap().unwrap();
    assert_eq!(board.begun(), [""; 0]);

    let next = Engine::start(board.on(host.options())).await.unwrap();
    completed(&next.wait(handle.id()).await.unwrap());
    assert_eq!(board.begun(), ["1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_engines_one_begins_each_run() {
    let (host, one, two) = (Host::new(), Board::open(), Board::open());
    let first = Engine::start(one.on(host.options()).max_running(2))
        .await
        .unwrap();
    let second = Engine::start(two.on(host.options()).max_running(2))
        .await
        .unwrap();
    let mut handles = Vec::new();
    for at in 0..120 {
        let session = first.session(format!("s{}", at % 12)).await.unwrap();
        handles.push(submit(&session, json!(at)).await);
    }
    for handle in handles {
        completed(&second.wait(handle.id()).await.unwrap());
    }
    let (by_one, by_two) = (one.begun(), two.begun());
    let all: BTreeSet<&String> = by_one.iter().chain(&by_two).collect();
    assert_eq!((by_one.len() + by_two.len(), all.len()), (120, 120));
    assert!(!by_one.is_empty() && !by_two.is_empty(), "both had room");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_engine_goes_on_with_the_queue_of_one_that_died_meanwhile() {
    let (host, board) = (Host::new(), Board::open());
    let living = Engine::start(board.on(host.options())).await.unwrap();
    let (mine, theirs) = (Board::new(0), host.options());
    let (died, dead) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let left = die_in_the_middle_of(async {
            let options = mine.clone().on(theirs).adapter("odd", move |_| {
                let board = mine.clone();
                Ok(Work(move |context: RunContext| {
                    board.clone().work(context, "odd".to_owned())
                }))
            });
            let engine = Engine::start(options).await.unwrap();
            let session = engine.session("s").await.unwrap();
            let odd = session
                .submit_run(RunOptions::new("x"), "odd", json!(null))
                .await
                .unwrap();
            eventually("it is at work", || async {
                odd.status().await.unwrap() == RunStatus::Running
            })
            .await;
            // Behind it, in the session whose run dies with its engine.
            (
                odd.id().clone(),
                submit(&session, json!("next")).await.id().clone(),
            )
        });
        died.send(left).unwrap();
    });
    let (odd, next) = dead.await.unwrap();
    completed(&living.wait(&next).await.unwrap());
    let odd = living.find_run(odd.as_str()).await.unwrap();
    assert_eq!(odd.status, RunStatus::Failed, "nobody knows what it did");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queued_run_that_is_cancelled_is_never_begun() {
    let (host, board) = (Host::new(), Board::new(0));
    let engine = Engine::start(board.on(host.options())).await.unwrap();
    let session = engine.session("s").await.unwrap();
    let first = submit(&session, json!("first")).await;
    let (second, third) = (
        submit(&session, json!(2)).await,
        submit(&session, json!(3)).await,
    );
    board.has_begun(1).await;
    second.cancel().await.unwrap();
    assert_eq!(second.status().await.unwrap(), RunStatus::Cancelled);
    // From another engine, which has no adapters.
    let other = host.engine().await;
    other.cancel_run(third.id()).await.unwrap();
    let outcome = third.wait().await.unwrap();
    assert_eq!(outcome.run.status, RunStatus::Cancelled);
    let why = outcome.run.error.unwrap();
    assert_eq!(why.message, "cancelled while it waited in the queue");
    let again = third.cancel().await.unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Conflict);
    first.cancel().await.unwrap();
    assert_eq!(first.wait().await.unwrap().run.status, RunStatus::Cancelled);
    assert_eq!(board.begun(), ["\"first\""]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_session_begins_nothing_and_one_that_ends_takes_its_queue_along() {
    let (host, board) = (Host::new(), Board::new(0));
    let engine = Engine::start(board.on(host.options())).await.unwrap();
    let (session, beside) = (
        engine.session("s").await.unwrap(),
        engine.session("beside").await.unwrap(),
    );
    let first = submit(&session, json!("first")).await;
    board.has_begun(1).await;
    let second = submit(&session, json!("second")).await;
    session.pause("").await.unwrap();
    let refused = session
        .submit_run(RunOptions::new("x"), "note", json!(0))
        .await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Conflict);
    board.go.add_permits(1);
    completed(&first.wait().await.unwrap());
    let other = submit(&beside, json!("beside")).await;
    board.has_begun(2).await;
    assert_eq!(board.begun(), ["\"first\"", "\"beside\""]);
    session.resume("").await.unwrap();
    board.has_begun(3).await;
    assert_eq!(second.status().await.unwrap(), RunStatus::Running);

    let queued = [
        submit(&session, json!(1)).await,
        submit(&session, json!(2)).await,
    ];
    session.complete("").await.unwrap();
    for handle in &queued {
        let outcome = handle.wait().await.unwrap();
        assert_eq!(outcome.run.status, RunStatus::Cancelled);
        let why = outcome.run.error.unwrap().message;
        assert_eq!(why, "its session ended before its work began");
    }
    let events = engine
        .events(EventQuery::session(session.id().clone()))
        .await
        .unwrap();
    let types: Vec<&str> = events
        .iter()
        .map(|event| event.event_type.as_str())
        .collect();
    let end = &types[types.len() - 3..];
    assert_eq!(end, ["run_cancelled", "run_cancelled", "session_completed"]);
    board.go.add_permits(2);
    completed(&second.wait().await.unwrap());
    completed(&other.wait().await.unwrap());
    assert_eq!(board.begun().len(), 3, "what was queued was never begun");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_accepted_is_refused_and_nothing_is_written() {
    let (host, board) = (Host::new(), Board::new(0));
    let options = board.on(host.options()).max_queued(2);
    let engine = Engine::start(options).await.unwrap();
    let session = engine.session("s").await.unwrap();
    let first = submit(&session, json!("first")).await;
    board.has_begun(1).await;
    for at in 0..2 {
        submit(&session, json!(at)).await;
    }
    let one = || RunOptions::new("x");
    let before = engine.runs(RunQuery::all()).await.unwrap().len();
    let full = session
        .submit_run(one(), "note", json!(0))
        .await
        .unwrap_err();
    assert_eq!(full.kind(), ErrorKind::Busy);
    assert!(
        full.to_string().contains("2 runs wait in the queue"),
        "{full}"
    );
    let unknown = session
        .submit_run(one(), "nobody", json!(0))
        .await
        .unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::InvalidOptions);
    assert_eq!(
        unknown.to_string(),
        "no adapter \"nobody\" is registered; registered are \"note\"; nothing was queued"
    );
    let large = json!("x".repeat(1 << 20));
    let large = session.submit_run(one(), "note", large).await.unwrap_err();
    assert_eq!(large.kind(), ErrorKind::LimitExceeded);
    let secret = RunOptions::new(format!("use ghp_{}", "a1B2".repeat(9)));
    let secret = session.submit_run(secret, "note", json!(0));
    let secret = secret.await.unwrap_err();
    assert_eq!(secret.kind(), ErrorKind::InvalidOptions, "{secret}");
    let gone = one().workspace(stillframe::WorkspaceOptions::at(host.path().join("gone")));
    let gone = session
        .submit_run(gone, "note", json!(0))
        .await
        .unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::InvalidOptions, "{gone}");
    assert_eq!(engine.runs(RunQuery::all()).await.unwrap().len(), before);
    let queued = EventQuery::all().of_type(EventType::RUN_QUEUED);
    assert_eq!(engine.events(queued).await.unwrap().len(), before);
    first.cancel().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_that_limit_nothing_are_taken() {
    let (host, board) = (Host::new(), Board::open());
    let options = board.on(host.options()).max_running(usize::MAX);
    let options = options.max_operations(usize::MAX).max_blocking(usize::MAX);
    let engine = Engine::start(options).await.unwrap();
    let session = engine.session("s").await.unwrap();
    let submitted = submit(&session, json!(0)).await;
    completed(&submitted.wait().await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_row_stops_no_other_session() {
    let (host, board) = (Host::new(), Board::new(0));
    let engine = Engine::start(board.on(host.options())).await.unwrap();
    let damaged = engine.session("damaged").await.unwrap();
    for at in 0..3 {
        submit(&damaged, json!(at)).await;
    }
    board.has_begun(1).await;
    let database = rusqlite::Connection::open(host.state().join("stillframe.db")).unwrap();
    let damage = "UPDATE queue SET row_sum = 1 WHERE input <> '2'";
    assert_eq!(
        database.execute(damage, ()).unwrap(),
        2,
        "under way, and next"
    );
    let other = engine.session("other").await.unwrap();
    let submitted = submit(&other, json!("other")).await;
    board.has_begun(2).await;
    board.go.add_permits(9);
    completed(&submitted.wait().await.unwrap());
    assert_eq!(board.begun(), ["0", "\"other\""], "what is behind it waits");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_that_passes_fails_no_run_that_was_accepted() {
    let (host, board) = (Host::new(), Board::open());
    let engine = Engine::start(board.on(host.options())).await.unwrap();
    let database = rusqlite::Connection::open(host.state().join("stillframe.db")).unwrap();
    let session = engine.session("s").await.unwrap();
    for (at, during) in [
        "UPDATE ON queue WHEN NEW.state = 'claimed'",
        "INSERT ON snapshots",
    ]
    .into_iter()
    .enumerate()
    {
        let trigger =
            format!("CREATE TRIGGER fault BEFORE {during} BEGIN SELECT json('no JSON'); END");
        database.execute_batch(&trigger).unwrap();
        let options = RunOptions::new("x").workspace(host.workspace());
        let submitted = session
            .submit_run(options, "note", json!(at))
            .await
            .unwrap();
        tokio::time::sleep(Duration::from_millis(400)).await;
        assert_eq!(
            submitted.status().await.unwrap(),
            RunStatus::Pending,
            "{during}"
        );
        database.execute_batch("DROP TRIGGER fault").unwrap();
        completed(&submitted.wait().await.unwrap());
    }
    assert_eq!(board.begun(), ["0", "1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_id_is_submitted_once_and_nobody_else_begins_it() {
    let (host, board) = (Host::new(), Board::new(0));
    let engine = Engine::start(board.on(host.options())).await.unwrap();
    let session = engine.session("s").await.unwrap();
    submit(&session, json!("first")).await;
    board.has_begun(1).await;
    let id: RunId = "mine".parse().unwrap();
    let named = || RunOptions::new("x").run_id("mine".parse().unwrap());
    for _ in 0..2 {
        let handle = session
            .submit_run(named(), "note", json!("mine"))
            .await
            .unwrap();
        assert_eq!(handle.id(), &id);
    }
    let other = session
        .submit_run(named(), "note", json!("yours"))
        .await
        .unwrap_err();
    assert_eq!(other.kind(), ErrorKind::Conflict);
    for otherwise in [
        named().priority(Priority::Batch),
        named().timeout(Duration::from_secs(1)),
        named().workspace(host.workspace()),
    ] {
        let other = session.submit_run(otherwise, "note", json!("mine"));
        assert_eq!(other.await.unwrap_err().kind(), ErrorKind::Conflict);
    }
    let direct = session
        .execute_run(named(), writes("a", "b"))
        .await
        .unwrap_err();
    assert_eq!(direct.kind(), ErrorKind::Busy);
    assert!(
        direct.to_string().contains("waits in the queue"),
        "{direct}"
    );
    board.go.add_permits(2);
    completed(&engine.wait(&id).await.unwrap());
    let handle = session
        .submit_run(named(), "note", json!("mine"))
        .await
        .unwrap();
    completed(&handle.wait().await.unwrap());
    assert_eq!(board.begun(), ["\"first\"", "\"mine\""]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_adapter_that_refuses_its_input_or_panics_at_it_fails_the_run() {
    let host = Host::new();
    let options = host.options().adapter("picky", |input: Value| {
        let number = input.as_u64().ok_or("it is no number")?;
        assert_ne!(number, 0, "zero is odd");
        Ok(writes("made", "by it"))
    });
    let engine = Engine::start(options).await.unwrap();
    let session = engine.session("s").await.unwrap();
    let mut ended = Vec::new();
    for input in [json!("x"), json!(0), json!(1)] {
        let options = RunOptions::new("x").workspace(host.workspace());
        let handle = session.submit_run(options, "picky", input).await.unwrap();
        ended.push(handle.wait().await.unwrap().run);
    }
    let statuses: Vec<RunStatus> = ended.iter().map(|run| run.status).collect();
    assert_eq!(
        statuses,
        [RunStatus::Failed, RunStatus::Failed, RunStatus::Completed]
    );
    let why = |at: usize| ended[at].error.clone().unwrap().message;
    assert_eq!(
        why(0),
        "adapter \"picky\" refused its input: it is no number"
    );
    assert!(why(1).contains("zero is odd"), "{}", why(1));
    assert_eq!(host.read("made").as_deref(), Some("by it"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_workspace_is_in_use_waits_for_it() {
    let (host, board) = (Host::impatient(), Board::open());
    let engine = Engine::start(board.on(host.options())).await.unwrap();
    let go = Arc::new(Semaphore::new(0));
    let direct = tokio::spawn({
        let (session, go) = (engine.session("direct").await.unwrap(), go.clone());
        let options = RunOptions::new("x").workspace(host.workspace());
        async move {
            let work = Work(move |_: RunContext| {
                let go = go.clone();
                async move {
                    go.acquire().await.unwrap().forget();
                    Ok(AdapterOutput::empty())
                }
            });
            session.execute_run(options, work).await
        }
    });
    eventually("the run is at work", || async {
        let running = RunQuery::all().status(RunStatus::Running);
        !engine.runs(running).await.unwrap().is_empty()
    })
    .await;
    let session = engine.session("s").await.unwrap();
    let options = RunOptions::new("x").workspace(host.workspace());
    let waits = session
        .submit_run(options, "note", json!("waits"))
        .await
        .unwrap();
    let elsewhere = engine.session("elsewhere").await.unwrap();
    completed(
        &submit(&elsewhere, json!("elsewhere"))
            .await
            .wait()
            .await
            .unwrap(),
    );
    // Longer than anybody waits who does not queue.
    tokio::time::sleep(Duration::from_millis(1200)).await;
    assert_eq!(waits.status().await.unwrap(), RunStatus::Pending);
    go.add_permits(1);
    completed(&direct.await.unwrap().unwrap());
    completed(&waits.wait().await.unwrap());
    assert_eq!(board.begun(), ["\"elsewhere\"", "\"waits\""]);
}

/// A directory of the host beside its workspace, with so many files.
fn directory(host: &Host, name: &str, files: usize) -> WorkspaceOptions {
    let path = host.path().with_file_name(name);
    std::fs::create_dir(&path).unwrap();
    for at in 0..files {
        std::fs::write(path.join(format!("{at}")), "").unwrap();
    }
    WorkspaceOptions::at(path)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_small_capture_waits_for_no_large_one_in_another_workspace() {
    let host = Host::new();
    let engine = Engine::start(host.options().max_blocking(2)).await.unwrap();
    let session = engine.session("s").await.unwrap();
    let (gate, is_there, open) = Gate::new();
    let (second_gate, _is_there, second_open) = Gate::new();
    host.backend.hold("first", gate);
    host.backend.hold("second", second_gate);
    let mut large = Vec::new();
    for name in ["first", "second"] {
        let (session, workspace) = (session.clone(), directory(&host, name, 2100));
        large.push(tokio::spawn(async move {
            session.snapshot(&workspace, Label::new(name)).await
        }));
    }
    wait_for(is_there).await;
    // Both threads are in large hands by then, if these may have them.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let small = directory(&host, "small", 100);
    session.snapshot(&small, Label::new("small")).await.unwrap();
    drop((open, second_open));
    for capture in large {
        capture.await.unwrap().unwrap();
    }
    let taken = EventQuery::all().of_type(EventType::WORKSPACE_SNAPSHOT_TAKEN);
    let taken = engine.events(taken).await.unwrap();
    let labels: Vec<&str> = taken
        .iter()
        .map(|e| e.data["label"].as_str().unwrap())
        .collect();
    assert_eq!((labels[0], labels.len()), ("small", 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_captures_of_interactive_runs_are_done_before_those_of_batch_runs() {
    let host = Host::new();
    let engine = Engine::start(host.options().max_blocking(1)).await.unwrap();
    let session = engine.session("s").await.unwrap();
    let (gate, is_there, open) = Gate::new();
    host.backend.hold("held", gate);
    let held = tokio::spawn({
        let (session, workspace) = (session.clone(), host.workspace());
        async move { session.snapshot(&workspace, Label::new("held")).await }
    });
    wait_for(is_there).await;
    let mut runs = Vec::new();
    for (at, priority) in [Priority::Batch, Priority::Batch, Priority::Interactive]
        .iter()
        .enumerate()
    {
        let workspace = directory(&host, &format!("of {at}"), 1);
        let options = RunOptions::new(format!("{at}"))
            .priority(*priority)
            .workspace(workspace);
        let session = session.clone();
        runs.push(tokio::spawn(async move {
            session
                .execute_run(
                    options,
                    Work(|_: RunContext| async { Ok(AdapterOutput::empty()) }),
                )
                .await
        }));
        // It has its workspace, so that its capture is the next that it asks for.
        eventually("it waits for the thread", || async {
            // There is none before the first run.
            let locks = std::fs::read_dir(host.state().join("locks"));
            let names = locks.into_iter().flatten().flatten();
            let of_runs = names.filter(|lock| lock.path().extension().is_some_and(|e| e == "run"));
            of_runs.count() > at
        })
        .await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    drop(open);
    held.await.unwrap().unwrap();
    let mut inputs = std::collections::BTreeMap::new();
    for run in runs {
        let outcome = run.await.unwrap().unwrap();
        completed(&outcome);
        let record = engine.find_run(outcome.run_id.as_str()).await.unwrap();
        inputs.insert(outcome.run_id.clone(), record.input);
    }
    let taken = EventQuery::all().of_type(EventType::WORKSPACE_SNAPSHOT_TAKEN);
    let taken = engine.events(taken).await.unwrap();
    let before = taken.iter().filter(|event| event.data["label"] == "before");
    let order: Vec<&str> = before
        .map(|event| inputs[event.run_id.as_ref().unwrap()].as_str())
        .collect();
    assert_eq!(order[0], "2", "{order:?}");
}
