//! A host with an engine, a workspace, and a backend that can be made to fail.

use std::collections::HashSet;
use std::fs;
use std::future::Future;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use jiff::Timestamp;
use stillframe::backends::{
    Backend, BackendKind, Diff, DiffError, DiffOptions, Listing, LockedWorkspace, Operation,
    PathError, Problem, Recovery, RelPath, RestoreError, RestoreGoal, RestoreOptions,
    RestoreOutcome, RestorePlan, SnapshotError, SnapshotOptions, StoreError, StoredSnapshot,
    Unreadable, Verification, Why, Workspace,
};
use stillframe::events::EventQuery;
use stillframe::{
    Adapter, AdapterError, AdapterOutput, Engine, EngineOptions, ErrorKind, Event, RunContext,
    RunOutcome, RunStatus, SessionManager, Snapshot, SnapshotId, WorkspaceOptions,
};
use stillframe_artifact_store::{
    self as artifact_store, ArtifactKey, ArtifactList, ArtifactMeta, ArtifactStore, DeleteError,
    GetError, MemoryStore, PutError, PutOptions,
};

use crate::copying::CopyingBackend;

/// A scratch directory with a workspace and a state directory in it.
pub(crate) struct Host {
    scratch: tempfile::TempDir,
    ticks: Arc<AtomicU64>,
    lock_timeout: Duration,
    pub(crate) backend: Arc<Double>,
}

impl Host {
    pub(crate) fn new() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        fs::create_dir(scratch.path().join("workspace")).unwrap();
        Self {
            scratch,
            ticks: Arc::default(),
            lock_timeout: Duration::from_secs(60),
            backend: Arc::default(),
        }
    }

    /// A host that does not wait long for what somebody else uses.
    pub(crate) fn impatient() -> Self {
        Self {
            lock_timeout: Duration::from_secs(1),
            ..Self::new()
        }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.scratch.path().join("workspace")
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.scratch.path().join("state")
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.path().join(name), text).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.path().join(name)).ok()
    }

    /// The options of an engine on this host: a clock that ticks once per look.
    pub(crate) fn options(&self) -> EngineOptions {
        let ticks = self.ticks.clone();
        EngineOptions::default()
            .state_dir(self.state())
            .backend(self.backend.clone())
            .lock_timeout(self.lock_timeout)
            .clock(move || {
                let tick = 1_700_000_000 + ticks.fetch_add(1, Ordering::Relaxed);
                Timestamp::from_second(i64::try_from(tick).unwrap()).unwrap()
            })
    }

    /// Waits until engines of this host have looked at its clock `count` times more.
    pub(crate) async fn looks_at_the_clock(&self, count: u64) {
        let wanted = self.ticks.load(Ordering::Relaxed) + count;
        eventually("the clock is looked at", || async {
            self.ticks.load(Ordering::Relaxed) >= wanted
        })
        .await;
    }

    /// Waits until the moment is past that `query` finds in the log, by the clock that no test
    /// sets.
    pub(crate) async fn is_past(&self, query: &str) {
        let log = rusqlite::Connection::open(self.state().join("stillframe.db")).unwrap();
        let moment: i64 = log.query_row(query, (), |row| row.get(0)).unwrap();
        eventually("the moment is past", || async {
            let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
            now.tv_sec * 1_000_000_000 + now.tv_nsec > moment
        })
        .await;
    }

    pub(crate) async fn engine(&self) -> Engine {
        Engine::start(self.options()).await.unwrap()
    }

    /// An engine, and a session of it.
    pub(crate) async fn session(&self) -> (Engine, SessionManager) {
        let engine = self.engine().await;
        let session = engine.session("s").await.unwrap();
        (engine, session)
    }

    /// The workspace, with everything kept, so that it can be put back.
    pub(crate) fn workspace(&self) -> WorkspaceOptions {
        WorkspaceOptions::at(self.path()).retain_content(true)
    }
}

/// Fails the test unless the run came to its end, and says why it did not.
#[track_caller]
pub(crate) fn completed(outcome: &RunOutcome) {
    assert_eq!(
        outcome.run.status,
        RunStatus::Completed,
        "{:?}",
        outcome.run
    );
}

/// The types of the events of a session, in order.
pub(crate) async fn types(engine: &Engine, session: &SessionManager) -> Vec<String> {
    let events = all(engine, session).await;
    events.iter().map(|e| e.event_type.to_string()).collect()
}

pub(crate) async fn all(engine: &Engine, session: &SessionManager) -> Vec<Event> {
    let query = EventQuery::session(session.id().clone());
    engine.events(query).await.unwrap()
}

/// Runs `story` on a runtime of its own, which is then dropped with all that is on it.
pub(crate) fn die_in_the_middle_of<R: Send>(story: impl Future<Output = R> + Send) -> R {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let result = runtime.block_on(story);
    runtime.shutdown_timeout(Duration::from_secs(10));
    result
}

/// Tells `story` on a runtime of its own.
pub(crate) fn on_a_runtime<R>(story: impl Future<Output = R>) -> R {
    tokio::runtime::Runtime::new().unwrap().block_on(story)
}

/// Tells `story` on a runtime of one thread: whoever blocks that has all of it stand still, as a
/// process that was stopped for an hour.
pub(crate) fn on_one_thread<R>(story: impl Future<Output = R>) -> R {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(story)
}

/// An adapter made of a function.
pub(crate) struct Work<F>(pub(crate) F);

impl<F, R> Adapter for Work<F>
where
    F: Fn(RunContext) -> R + Send + Sync + 'static,
    R: Future<Output = Result<AdapterOutput, AdapterError>> + Send,
{
    fn run(
        &self,
        context: RunContext,
    ) -> impl Future<Output = Result<AdapterOutput, AdapterError>> + Send {
        (self.0)(context)
    }
}

/// Work that writes one file of the workspace and succeeds.
pub(crate) fn writes(name: &'static str, text: &'static str) -> impl Adapter {
    Work(move |context: RunContext| async move {
        let path = context.workspace.expect("a workspace").join(name);
        fs::write(path, text).map_err(|e| AdapterError::failed(e.to_string()))?;
        Ok(AdapterOutput::empty())
    })
}

/// Work that writes one file of the workspace and fails.
pub(crate) fn ruins(name: &'static str, text: &'static str) -> impl Adapter {
    Work(move |context: RunContext| async move {
        let path = context.workspace.expect("a workspace").join(name);
        fs::write(path, text).map_err(|e| AdapterError::failed(e.to_string()))?;
        Err(AdapterError::failed("it came to nothing"))
    })
}

/// A way to hold something up, and to let it go.
pub(crate) struct Gate {
    entered: mpsc::Sender<()>,
    leave: mpsc::Receiver<()>,
}

impl Gate {
    /// The gate; then what says that somebody stands before it; then what opens it.
    pub(crate) fn new() -> (Self, mpsc::Receiver<()>, mpsc::Sender<()>) {
        let (entered, is_there) = mpsc::channel();
        let (open, leave) = mpsc::channel();
        (Self { entered, leave }, is_there, open)
    }

    /// Stands before it until it is opened. Blocks.
    pub(crate) fn stand(&self) {
        self.entered.send(()).unwrap();
        // A test that has ended lets go of everything.
        let _ = self.leave.recv();
    }
}

/// A store of artifacts in memory that is held up after the first artifact, which it has by then.
pub(crate) struct HeldUpStore {
    pub(crate) inner: Arc<MemoryStore>,
    gate: Mutex<Option<Gate>>,
}

impl HeldUpStore {
    pub(crate) fn new(gate: Gate) -> Self {
        Self {
            inner: Arc::default(),
            gate: Mutex::new(Some(gate)),
        }
    }
}

impl ArtifactStore for HeldUpStore {
    fn put(
        &self,
        key: &ArtifactKey,
        content: &mut dyn Read,
        options: &PutOptions,
    ) -> Result<ArtifactMeta, PutError> {
        let meta = self.inner.put(key, content, options)?;
        let gate = self.gate.lock().unwrap().take();
        if let Some(gate) = gate {
            gate.stand();
        }
        Ok(meta)
    }

    fn get(&self, key: &ArtifactKey) -> Result<Box<dyn Read + Send>, GetError> {
        self.inner.get(key)
    }

    fn delete(&self, key: &ArtifactKey) -> Result<(), DeleteError> {
        self.inner.delete(key)
    }

    fn exists(&self, key: &ArtifactKey) -> Result<bool, artifact_store::StoreError> {
        self.inner.exists(key)
    }

    fn list(&self) -> Result<ArtifactList, artifact_store::StoreError> {
        self.inner.list()
    }
}

/// Waits without holding up the runtime.
pub(crate) async fn wait_for(is_there: mpsc::Receiver<()>) {
    let waited = tokio::time::timeout(Duration::from_secs(20), async {
        while is_there.try_recv().is_err() {
            tokio::task::yield_now().await;
        }
    });
    waited.await.expect("somebody comes to the gate");
}

/// Waits until this holds, and fails if it never does.
pub(crate) async fn eventually<R: Future<Output = bool>>(what: &str, holds: impl Fn() -> R) {
    let waited = tokio::time::timeout(Duration::from_secs(20), async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    assert!(waited.await.is_ok(), "never seen: {what}");
}

/// The copying backend, made to fail and to wait where a test wants it, and stricter: it panics
/// when the engine works on a workspace that it has not recovered.
#[derive(Default)]
pub(crate) struct Double {
    inner: CopyingBackend,
    failing: Mutex<HashSet<String>>,
    gates: Mutex<Vec<(String, Gate)>>,
    recoveries: AtomicU64,
    pub(crate) rolled_forward: Mutex<Vec<SnapshotId>>,
    /// The labels of the captures that a watch was asked for.
    pub(crate) watched: Mutex<Vec<String>>,
}

impl Double {
    /// Makes what is called `name` fail: a label of a capture, `diff`,
    /// `restore`, or the `guard` or `closing` capture of a restore.
    pub(crate) fn fail(&self, name: &str) {
        self.failing.lock().unwrap().insert(name.to_owned());
    }

    /// Lets what is called `name` work again.
    pub(crate) fn heal(&self, name: &str) {
        self.failing.lock().unwrap().remove(name);
    }

    /// Makes the next capture with this label wait, or the next `diff`.
    pub(crate) fn hold(&self, name: &str, gate: Gate) {
        self.gates.lock().unwrap().push((name.to_owned(), gate));
    }

    fn stand_at(&self, name: &str) {
        let gate = {
            let mut gates = self.gates.lock().unwrap();
            let at = gates.iter().position(|(held, _)| held == name);
            at.map(|at| gates.remove(at).1)
        };
        if let Some(gate) = gate {
            gate.stand();
        }
    }

    fn is_failing(&self, name: &str) -> bool {
        self.failing.lock().unwrap().contains(name)
    }

    fn check_recovered(&self) {
        let recoveries = self.recoveries.load(Ordering::Relaxed);
        assert!(recoveries > 0, "the workspace was not recovered first");
    }
}

/// Fails so: the newest snapshot cannot be read.
pub(crate) const RECORD: &str = "a record";
/// Fails so: what cannot be read has no id, because the disk did not give it.
pub(crate) const RECORD_OF_NOBODY: &str = "a record of nobody";
/// Fails so: verifying several, there is no answer about the last one.
pub(crate) const NO_ANSWER: &str = "no answer";
/// Fails so: verifying several, the disk does not give the last one.
pub(crate) const DISK: &str = "disk";

impl Backend for Double {
    fn kind(&self) -> BackendKind {
        self.inner.kind()
    }

    fn snapshot(
        &self,
        op: &Operation,
        workspace: &LockedWorkspace,
        options: &SnapshotOptions,
    ) -> Result<Snapshot, SnapshotError> {
        self.check_recovered();
        let label = options.label.as_str();
        if options.watch {
            self.watched.lock().unwrap().push(label.to_owned());
        }
        self.stand_at(label);
        op.check()?;
        if label == "panic" {
            panic!("the backend is broken");
        }
        if self.is_failing(label) {
            return Err(SnapshotError::LimitExceeded {
                what: "what the test allows".to_owned(),
                limit: 0,
                actual: 1,
            });
        }
        self.inner.snapshot(op, workspace, options)
    }

    fn open<'a>(
        &'a self,
        op: &Operation,
        workspace: &'a Workspace,
        snapshot: &Snapshot,
    ) -> Result<Box<dyn StoredSnapshot + 'a>, StoreError> {
        self.inner.open(op, workspace, snapshot)
    }

    fn list(&self, op: &Operation, workspace: &Workspace) -> Result<Listing, StoreError> {
        let mut listing = self.inner.list(op, workspace)?;
        if self.is_failing(RECORD) {
            let newest = listing.snapshots.pop().unwrap();
            let problem = Problem::new(newest.id.as_str(), "it is damaged");
            let mut found = Unreadable::new(newest.id.to_string(), problem);
            found.id = Some(newest.id);
            listing.unreadable.push(found);
        }
        if self.is_failing(RECORD_OF_NOBODY) {
            let problem = Problem::new("refs/1", "the disk failed").of_kind(ErrorKind::Storage);
            let mut found = Unreadable::new("refs/1".to_owned(), problem);
            found.leave_alone = true;
            listing.unreadable.push(found);
        }
        Ok(listing)
    }

    fn diff(
        &self,
        op: &Operation,
        workspace: &Workspace,
        from: &Snapshot,
        to: &Snapshot,
        options: &DiffOptions,
        patch: &mut dyn Write,
    ) -> Result<Diff, DiffError> {
        self.stand_at("diff");
        if self.is_failing("diff") {
            return Err(DiffError::InvalidOptions("the test wants it".to_owned()));
        }
        self.inner.diff(op, workspace, from, to, options, patch)
    }

    fn plan(
        &self,
        op: &Operation,
        workspace: &LockedWorkspace,
        goal: &RestoreGoal,
        options: &RestoreOptions,
    ) -> Result<RestorePlan, RestoreError> {
        self.check_recovered();
        self.inner.plan(op, workspace, goal, options)
    }

    fn check_restore_place(&self, workspace: &Workspace) -> Result<(), RestoreError> {
        if self.is_failing("place") {
            return Err(RestoreError::NoPlace("there is no place".to_owned()));
        }
        self.inner.check_restore_place(workspace)
    }

    fn restore(
        &self,
        op: &Operation,
        workspace: &mut LockedWorkspace,
        goal: &RestoreGoal,
        options: &RestoreOptions,
    ) -> Result<RestoreOutcome, RestoreError> {
        self.check_recovered();
        self.stand_at("restore");
        if self.is_failing("restore") {
            return Err(RestoreError::HeadMoved {
                what: "HEAD".to_owned(),
                expected: "1".to_owned(),
                found: "2".to_owned(),
            });
        }
        let failure = || SnapshotError::LimitExceeded {
            what: "what the test allows".to_owned(),
            limit: 0,
            actual: 1,
        };
        if self.is_failing("guard") {
            return Err(RestoreError::Guard(failure()));
        }
        let outcome = self.inner.restore(op, workspace, goal, options)?;
        if self.is_failing("closing") {
            return Err(RestoreError::Closing(failure()));
        }
        Ok(outcome)
    }

    fn recover(
        &self,
        op: &Operation,
        workspace: &mut LockedWorkspace,
    ) -> Result<Recovery, RestoreError> {
        self.recoveries.fetch_add(1, Ordering::Relaxed);
        let mut recovery = self.inner.recover(op, workspace)?;
        recovery.rolled_forward = std::mem::take(&mut self.rolled_forward.lock().unwrap());
        Ok(recovery)
    }

    fn why(
        &self,
        op: &Operation,
        workspace: &LockedWorkspace,
        path: &RelPath,
        options: &SnapshotOptions,
    ) -> Result<Why, SnapshotError> {
        self.inner.why(op, workspace, path, options)
    }

    fn verify(
        &self,
        op: &Operation,
        workspace: &Workspace,
        snapshots: &[&Snapshot],
    ) -> Vec<Result<Verification, StoreError>> {
        let mut found = self.inner.verify(op, workspace, snapshots);
        if self.is_failing(NO_ANSWER) {
            found.pop();
        }
        if self.is_failing(DISK) {
            let error = PathError::at("read", "pack")(std::io::Error::other("the disk failed"));
            found.pop();
            found.push(Err(StoreError::Io(error)));
        }
        found
    }

    fn forget(
        &self,
        op: &Operation,
        workspace: &mut LockedWorkspace,
        ids: &[SnapshotId],
        unreadable: &[String],
    ) -> Result<(), StoreError> {
        self.inner.forget(op, workspace, ids, unreadable)
    }

    fn collect(&self, op: &Operation, workspace: &mut LockedWorkspace) -> Result<u64, StoreError> {
        self.inner.collect(op, workspace)
    }

    fn store_bytes(&self, workspace: &Workspace) -> Result<u64, StoreError> {
        self.inner.store_bytes(workspace)
    }
}
