//! The root of the actors: starts them, finds them, and starts them again.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::time::{Duration, Instant};

use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, ActorStatus, SupervisionEvent};
use stillframe_backends::Identity;
use tokio::sync::oneshot;

use super::artifact_store::{ArtifactStoreActor, ArtifactStoreArguments, ArtifactStoreMessage};
use super::session_manager::{SessionManagerActor, SessionMessage};
use super::state_writer::{
    LogOnDemand, Queue, StateWriter, StateWriterActor, StateWriterArguments,
};
use super::workspace::{WorkspaceActor, WorkspaceMessage};
use super::{OVER, Parts, Reply, STOP_TIMEOUT, spawn};
use crate::error::Error;
use crate::events::notifier::Notifier;
use crate::id::SessionId;

/// How often a child may be started again within [`RESTART_WINDOW`]. One that fails at once would
/// otherwise keep a processor busy for ever; it is started when it is next asked for instead.
const MAX_RESTARTS: usize = 5;

/// See [`MAX_RESTARTS`].
const RESTART_WINDOW: Duration = Duration::from_secs(10);

/// The root supervisor.
pub(crate) struct SupervisorActor;

/// What the supervisor is asked for.
pub(crate) enum SupervisorMessage {
    /// The actor of a session.
    Session {
        id: SessionId,
        reply: Reply<ActorRef<SessionMessage>>,
    },
    /// The actor of a workspace.
    Workspace {
        identity: Identity,
        reply: Reply<ActorRef<WorkspaceMessage>>,
    },
    /// The actor of the artifact store.
    ArtifactStore {
        reply: Reply<ActorRef<ArtifactStoreMessage>>,
    },
}

/// What the supervisor starts with.
pub(crate) struct SupervisorArguments {
    pub(crate) log: LogOnDemand,
    pub(crate) notifier: Notifier,
    /// Makes the parts once the state writer is there.
    pub(crate) parts: Box<dyn FnOnce(StateWriter) -> Parts + Send>,
    /// Gets a copy of them.
    pub(crate) started: oneshot::Sender<Parts>,
}

pub(crate) struct SupervisorState {
    parts: Parts,
    sessions: Children<SessionId, SessionMessage>,
    workspaces: Children<Identity, WorkspaceMessage>,
    artifact_store: Children<(), ArtifactStoreMessage>,
}

/// Children of one kind, by what they are for.
struct Children<K, M> {
    actors: HashMap<K, ActorRef<M>>,
    restarts: HashMap<K, VecDeque<Instant>>,
}

impl<K, M> Default for Children<K, M> {
    fn default() -> Self {
        Self {
            actors: HashMap::new(),
            restarts: HashMap::new(),
        }
    }
}

impl<K: Clone + Eq + Hash, M: ractor::Message> Children<K, M> {
    /// The child for `key`, if it is alive.
    fn alive(&self, key: &K) -> Option<ActorRef<M>> {
        self.actors
            .get(key)
            .filter(|actor| actor.get_status() <= ActorStatus::Running)
            .cloned()
    }

    /// Forgets the child that `cell` is; `None`: it is none of these, or an earlier incarnation.
    fn remove(&mut self, cell: &ActorCell) -> Option<K> {
        let (key, _) = self
            .actors
            .iter()
            .find(|(_, actor)| actor.get_id() == cell.get_id())?;
        let key = key.clone();
        self.actors.remove(&key);
        Some(key)
    }

    /// Notes a restart at `now`; `false`: there were too many.
    fn may_restart(&mut self, key: &K, now: Instant) -> bool {
        let restarts = self.restarts.entry(key.clone()).or_default();
        while restarts
            .front()
            .is_some_and(|at| now.duration_since(*at) > RESTART_WINDOW)
        {
            restarts.pop_front();
        }
        if restarts.len() >= MAX_RESTARTS {
            return false;
        }
        restarts.push_back(now);
        true
    }
}

impl SupervisorActor {
    async fn session(
        &self,
        myself: &ActorRef<SupervisorMessage>,
        state: &mut SupervisorState,
        id: SessionId,
    ) -> Result<ActorRef<SessionMessage>, Error> {
        if let Some(actor) = state.sessions.alive(&id) {
            return Ok(actor);
        }
        let arguments = (id.clone(), state.parts.clone());
        let actor = spawn(SessionManagerActor, arguments, myself.get_cell()).await?;
        state.sessions.actors.insert(id, actor.clone());
        Ok(actor)
    }

    async fn workspace(
        &self,
        myself: &ActorRef<SupervisorMessage>,
        state: &mut SupervisorState,
        identity: Identity,
    ) -> Result<ActorRef<WorkspaceMessage>, Error> {
        if let Some(actor) = state.workspaces.alive(&identity) {
            return Ok(actor);
        }
        let actor = spawn(
            WorkspaceActor,
            state.parts.blocking.clone(),
            myself.get_cell(),
        )
        .await?;
        state.workspaces.actors.insert(identity, actor.clone());
        Ok(actor)
    }

    async fn artifact_store(
        &self,
        myself: &ActorRef<SupervisorMessage>,
        state: &mut SupervisorState,
    ) -> Result<ActorRef<ArtifactStoreMessage>, Error> {
        if let Some(actor) = state.artifact_store.alive(&()) {
            return Ok(actor);
        }
        let arguments = ArtifactStoreArguments {
            artifacts: state.parts.artifacts.clone(),
            blocking: state.parts.blocking.clone(),
        };
        let actor = spawn(ArtifactStoreActor, arguments, myself.get_cell()).await?;
        state.artifact_store.actors.insert((), actor.clone());
        Ok(actor)
    }

    /// Starts a child again that ended although it was needed, by what it is for.
    async fn restart(
        &self,
        myself: &ActorRef<SupervisorMessage>,
        state: &mut SupervisorState,
        ended: &ActorCell,
    ) {
        let now = Instant::now();
        // A child that fails to start is started again by the next request, and the caller gets the
        // reason if that fails.
        if let Some(id) = state.sessions.remove(ended) {
            if state.sessions.may_restart(&id, now) {
                let _ = self.session(myself, state, id).await;
            }
        } else if let Some(identity) = state.workspaces.remove(ended) {
            if state.workspaces.may_restart(&identity, now) {
                let _ = self.workspace(myself, state, identity).await;
            }
        } else if state.artifact_store.remove(ended).is_some()
            && state.artifact_store.may_restart(&(), now)
        {
            let _ = self.artifact_store(myself, state).await;
        }
    }
}

impl Actor for SupervisorActor {
    type Msg = SupervisorMessage;
    type State = SupervisorState;
    type Arguments = SupervisorArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<Self::Msg>,
        arguments: Self::Arguments,
    ) -> Result<Self::State, ActorProcessingErr> {
        let queue = Queue::default();
        let writer_arguments = StateWriterArguments {
            log: arguments.log,
            notifier: arguments.notifier.clone(),
            queue: queue.clone(),
        };
        let writer = spawn(StateWriterActor, writer_arguments, myself.get_cell()).await?;
        let writer = StateWriter::new(writer, queue, arguments.notifier);
        let parts = (arguments.parts)(writer);
        // The start of an engine waits for them.
        let _ = arguments.started.send(parts.clone());
        let mut state = SupervisorState {
            parts,
            sessions: Children::default(),
            workspaces: Children::default(),
            artifact_store: Children::default(),
        };
        self.artifact_store(&myself, &mut state).await?;
        Ok(state)
    }

    async fn handle(
        &self,
        myself: ActorRef<Self::Msg>,
        message: Self::Msg,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            SupervisorMessage::Session { id, reply } => {
                let _ = reply.send(self.session(&myself, state, id).await);
            }
            SupervisorMessage::Workspace { identity, reply } => {
                let _ = reply.send(self.workspace(&myself, state, identity).await);
            }
            SupervisorMessage::ArtifactStore { reply } => {
                let _ = reply.send(self.artifact_store(&myself, state).await);
            }
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<Self::Msg>,
        event: SupervisionEvent,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        let ended = match event {
            SupervisionEvent::ActorFailed(cell, _) => cell,
            SupervisionEvent::ActorTerminated(cell, _, reason) => {
                if reason.as_deref() == Some(OVER) {
                    state.sessions.remove(&cell);
                    return Ok(());
                }
                cell
            }
            _ => return Ok(()),
        };
        if ended.get_id() == state.parts.writer.actor().get_id() {
            // Without the log nothing may act. A store may have something without a row.
            state.parts.lock.leave_work();
            state.parts.stopped.cancel();
            state.parts.live_runs.stop_all();
            myself.stop(Some("the state writer is lost".to_owned()));
            return Ok(());
        }
        self.restart(&myself, state, &ended).await;
        Ok(())
    }

    async fn post_stop(
        &self,
        myself: ActorRef<Self::Msg>,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        // A stopping supervisor would kill its children, and the state writer has a queue.
        myself.drain_children_and_wait(Some(STOP_TIMEOUT)).await;
        state.parts.stopped.cancel();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use stillframe_backends::{ErrorKind, Label, Workspace};
    use tokio::sync::mpsc;

    use super::*;
    use crate::actors::core::Core;
    use crate::actors::{Claim, Ticket};
    use crate::copying::CopyingBackend;
    use crate::engine::Engine;
    use crate::engine::options::EngineOptions;
    use crate::events::query::EventQuery;
    use crate::id::RunId;
    use crate::options::{RunOptions, WorkspaceOptions};
    use crate::records::output::AdapterOutput;
    use crate::records::run::RunStatus;
    use crate::session::manager::SessionManager;
    use crate::step::adapter::Adapter;
    use crate::step::adapter_error::AdapterError;
    use crate::step::context::RunContext;
    use crate::workspace::turn;

    struct Host {
        scratch: tempfile::TempDir,
        options: EngineOptions,
        engine: Engine,
        session: SessionManager,
    }

    impl Host {
        async fn new() -> Self {
            Self::with(EngineOptions::default()).await
        }

        async fn with(options: EngineOptions) -> Self {
            let scratch = tempfile::tempdir().unwrap();
            std::fs::create_dir(scratch.path().join("workspace")).unwrap();
            let options = options
                .state_dir(scratch.path().join("state"))
                .lock_timeout(Duration::from_secs(30))
                .backend(Arc::new(CopyingBackend));
            let engine = Engine::start(options.clone()).await.unwrap();
            let session = engine.session("s").await.unwrap();
            Self {
                scratch,
                options,
                engine,
                session,
            }
        }

        fn workspace(&self) -> WorkspaceOptions {
            WorkspaceOptions::at(self.scratch.path().join("workspace"))
        }

        fn core(&self) -> &Core {
            &self.engine.core
        }

        async fn session_actor(&self) -> ActorRef<SessionMessage> {
            let id = self.session.id().clone();
            let ask = |reply| SupervisorMessage::Session {
                id: id.clone(),
                reply,
            };
            self.core().ask(ask).await.unwrap()
        }

        async fn opened(&self) -> Workspace {
            let opened = self.core().open(&self.workspace()).await.unwrap();
            opened.workspace
        }

        async fn sequences(&self) -> Vec<u64> {
            let query = EventQuery::session(self.session.id().clone());
            let events = self.engine.events(query).await.unwrap();
            events.iter().map(|e| e.sequence).collect()
        }
    }

    async fn kill<M: ractor::Message>(actor: &ActorRef<M>) {
        actor.get_cell().kill_and_wait(None).await.unwrap();
    }

    /// Work that says that it has begun, and goes on when it is told to.
    struct Held {
        begun: mpsc::UnboundedSender<()>,
        go_on: tokio::sync::Mutex<mpsc::UnboundedReceiver<()>>,
    }

    impl Held {
        fn new() -> (Self, mpsc::UnboundedReceiver<()>, mpsc::UnboundedSender<()>) {
            let (begun, has_begun) = mpsc::unbounded_channel();
            let (go, go_on) = mpsc::unbounded_channel();
            let go_on = tokio::sync::Mutex::new(go_on);
            (Self { begun, go_on }, has_begun, go)
        }
    }

    impl Adapter for Held {
        async fn run(&self, context: RunContext) -> Result<AdapterOutput, AdapterError> {
            self.begun.send(()).unwrap();
            let mut go_on = self.go_on.lock().await;
            tokio::select! {
                _ = go_on.recv() => Ok(AdapterOutput::empty()),
                () = context.cancellation.cancelled() => Err(AdapterError::cancelled("asked")),
            }
        }
    }

    #[tokio::test]
    async fn a_session_manager_that_is_killed_is_replaced_and_its_run_comes_to_its_end() {
        let host = Host::new().await;
        let (work, mut has_begun, go) = Held::new();
        let options = RunOptions::new("x").workspace(host.workspace());
        let session = host.session.clone();
        let run = tokio::spawn(async move { session.execute_run(options, work).await });
        has_begun.recv().await.unwrap();

        let killed = host.session_actor().await;
        kill(&killed).await;
        let successor = host.session_actor().await;
        assert_ne!(killed.get_id(), successor.get_id());

        go.send(()).unwrap();
        let outcome = run.await.unwrap().unwrap();
        assert_eq!(outcome.run.status, RunStatus::Completed);
        assert!(outcome.workspace.diff.is_some());
        let run = host.engine.find_run(outcome.run_id.as_str()).await.unwrap();
        assert_eq!(run.status, RunStatus::Completed);
        assert_eq!(host.sequences().await, [1, 2, 3, 4, 5, 6, 7]);
        host.engine.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn killing_session_managers_between_all_steps_of_runs_loses_none() {
        let host = Host::new().await;
        let mut runs = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let (work, _begun, go) = Held::new();
            go.send(()).unwrap();
            let (session, workspace) = (host.session.clone(), host.workspace());
            runs.spawn(async move {
                let _begun = _begun;
                let options = RunOptions::new("x").workspace(workspace);
                session.execute_run(options, work).await
            });
        }
        // Fewer than the retries of one question, so that none of them can run out.
        for _ in 0..6 {
            kill(&host.session_actor().await).await;
            for _ in 0..50 {
                tokio::task::yield_now().await;
            }
        }
        for outcome in runs.join_all().await {
            assert_eq!(outcome.unwrap().run.status, RunStatus::Completed);
        }
        let expected: Vec<u64> = (1..=2 + 4 * 5).collect();
        assert_eq!(host.sequences().await, expected, "nothing is there twice");
    }

    #[tokio::test]
    async fn the_actor_of_a_run_that_is_killed_is_replaced_and_the_run_comes_to_its_end() {
        let host = Host::new().await;
        let (work, mut has_begun, go) = Held::new();
        let id: RunId = "killed".parse().unwrap();
        let options = RunOptions::new("x")
            .workspace(host.workspace())
            .run_id(id.clone());
        let session = host.session.clone();
        let run = tokio::spawn(async move { session.execute_run(options, work).await });
        has_begun.recv().await.unwrap();

        let live_runs = &host.core().parts.live_runs;
        let killed = live_runs.actor(&id).unwrap();
        killed.kill_and_wait(None).await.unwrap();
        assert!(live_runs.actor(&id).is_none() && live_runs.has(&id));

        go.send(()).unwrap();
        let outcome = run.await.unwrap().unwrap();
        assert_eq!(outcome.run.status, RunStatus::Completed);
        assert!(!live_runs.has(&id));
        assert_eq!(host.sequences().await, [1, 2, 3, 4, 5, 6, 7]);
        host.engine.shutdown().await.unwrap();
    }

    /// Panics at one look at the clock, counted from when it is told to.
    #[derive(Clone, Default)]
    struct BadClock(Arc<std::sync::atomic::AtomicI64>);

    impl BadClock {
        fn host_options(&self) -> EngineOptions {
            let (left, looks) = (self.0.clone(), std::sync::atomic::AtomicI64::new(0));
            EngineOptions::default().clock(move || {
                use std::sync::atomic::Ordering::SeqCst;
                assert!(left.fetch_sub(1, SeqCst) != 1, "the clock is broken");
                jiff::Timestamp::from_second(looks.fetch_add(1, SeqCst)).unwrap()
            })
        }
    }

    impl Adapter for BadClock {
        async fn run(&self, context: RunContext) -> Result<AdapterOutput, AdapterError> {
            let looks = context.input.parse().unwrap();
            self.0.store(looks, std::sync::atomic::Ordering::SeqCst);
            Ok(AdapterOutput::empty())
        }
    }

    #[tokio::test]
    async fn a_panic_of_the_engine_in_a_run_is_a_failed_run_and_one_in_its_actor_is_none() {
        let clock = BadClock::default();
        let host = Host::with(clock.host_options()).await;
        let mut endings = Vec::new();
        for look in ["1", "3", "9"] {
            let options = RunOptions::new(look).run_id(format!("at-{look}").parse().unwrap());
            let answer = host.session.execute_run(options, clock.clone()).await;
            let run = host.engine.find_run(&format!("at-{look}")).await.unwrap();
            let why = run.error.map(|failure| failure.message);
            endings.push((answer.is_ok(), run.status, why));
        }
        let said = Some("the engine panicked: the clock is broken".to_owned());
        assert_eq!(
            endings,
            [
                (false, RunStatus::Failed, said),
                (true, RunStatus::Completed, None),
                (true, RunStatus::Completed, None),
            ]
        );
        let events = EventQuery::session(host.session.id().clone());
        let events = host.engine.events(events).await.unwrap();
        let types: Vec<&str> = events.iter().map(|e| e.event_type.as_str()).collect();
        let expected = [
            "session_created",
            "session_started",
            "run_started",
            "run_failed",
            "run_started",
            "run_completed",
            "run_started",
            "run_completed",
        ];
        assert_eq!(types, expected, "each ends once");
        host.engine.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn a_session_that_ends_under_its_runs_keeps_its_actor_until_they_have_ended() {
        let host = Host::new().await;
        let (work, mut has_begun, go) = Held::new();
        let session = host.session.clone();
        let run =
            tokio::spawn(async move { session.execute_run(RunOptions::new("x"), work).await });
        has_begun.recv().await.unwrap();
        let actor = host.session_actor().await;
        host.session.complete("").await.unwrap();
        assert_eq!(host.session_actor().await.get_id(), actor.get_id());
        go.send(()).unwrap();
        let outcome = run.await.unwrap().unwrap();
        assert_eq!(outcome.run.status, RunStatus::Completed);
        actor.wait(None).await.unwrap();
        host.engine.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn work_in_the_queue_of_a_killed_workspace_is_done_by_its_successor() {
        let host = Host::new().await;
        let workspace = host.opened().await;
        let (begun, has_begun) = std::sync::mpsc::channel::<()>();
        let (go, go_on) = std::sync::mpsc::channel::<()>();
        let work = |job: Box<dyn FnOnce() + Send>| {
            let (core, workspace) = (host.core().clone(), workspace.clone());
            tokio::spawn(async move {
                let lock_timeout = Duration::from_secs(30);
                turn::work(&core, &workspace, "a test", lock_timeout, move |_| {
                    job();
                    Ok(())
                })
                .await
            })
        };
        let first = work(Box::new(move || {
            begun.send(()).unwrap();
            go_on.recv().unwrap();
        }));
        while has_begun.try_recv().is_err() {
            tokio::task::yield_now().await;
        }
        let (done, is_done) = std::sync::mpsc::channel();
        let second = work(Box::new(move || done.send("done").unwrap()));
        // The question comes after the work in the queue, so the answer says that it is there.
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
        let actor = host
            .core()
            .workspace_actor(workspace.identity())
            .await
            .unwrap();
        let (reply, holder) = oneshot::channel();
        actor
            .send_message(WorkspaceMessage::Holder { reply })
            .unwrap();
        assert_eq!(holder.await.unwrap(), Some("a test"));

        kill(&actor).await;
        go.send(()).unwrap();
        first.await.unwrap().unwrap();
        second.await.unwrap().unwrap();
        assert_eq!(is_done.recv().unwrap(), "done");
        let successor = host
            .core()
            .workspace_actor(workspace.identity())
            .await
            .unwrap();
        assert_ne!(actor.get_id(), successor.get_id());
    }

    #[tokio::test]
    async fn a_ticket_that_is_lost_leaves_the_work_with_whoever_claims_it() {
        let (ticket, claim): (Ticket<u8>, Claim<u8>) = Ticket::new(7);
        drop(ticket);
        assert_eq!(claim.take_back(), Some(7));

        let (ticket, claim) = Ticket::new(8);
        assert_eq!(ticket.begin(), Some(8));
        assert_eq!(claim.take_back(), None, "it is begun");
    }

    #[tokio::test]
    async fn an_artifact_store_that_is_killed_is_replaced() {
        let host = Host::new().await;
        let ask = |reply| SupervisorMessage::ArtifactStore { reply };
        let killed = host.core().ask(ask).await.unwrap();
        kill(&killed).await;
        let content = Box::new(&b"content"[..]);
        host.session
            .put_artifact("key", "text/plain", content)
            .await
            .unwrap();
        let successor = host.core().ask(ask).await.unwrap();
        assert_ne!(killed.get_id(), successor.get_id());
    }

    #[tokio::test]
    async fn without_the_state_writer_nobody_may_act() {
        let host = Host::new().await;
        let (work, mut has_begun, _go) = Held::new();
        let options = RunOptions::new("x").workspace(host.workspace());
        let session = host.session.clone();
        let run = tokio::spawn(async move { session.execute_run(options, work).await });
        has_begun.recv().await.unwrap();

        kill(host.core().parts.writer.actor()).await;
        host.core().parts.stopped.cancelled().await;
        for error in [
            host.engine.sessions(Default::default()).await.map(|_| ()),
            host.engine.session("t").await.map(|_| ()),
            host.session.pause("").await.map(|_| ()),
            host.session.record().await.map(|_| ()),
            host.engine.snapshots(&host.workspace()).await.map(|_| ()),
            host.session
                .snapshot(&host.workspace(), Label::MANUAL)
                .await
                .map(|_| ()),
        ] {
            assert_eq!(error.unwrap_err().kind(), ErrorKind::Unavailable);
        }
        // The run was stopped, and its own result is told beside the failure of the engine.
        let error = run.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.touched());
        let outcome = error.outcome().expect("the work was done");
        assert_eq!(outcome.run.status, RunStatus::Cancelled);
        host.engine.shutdown().await.unwrap();

        let options = host.options.clone();
        let next = Engine::start(options).await.unwrap();
        let run = next.find_run(outcome.run_id.as_str()).await.unwrap();
        assert_eq!(run.status, RunStatus::Failed, "the next engine settled it");
    }

    #[tokio::test]
    async fn a_child_that_keeps_dying_is_not_started_again_and_again() {
        let mut children = Children::<u8, WorkspaceMessage>::default();
        let now = Instant::now();
        let allowed = (0..10).filter(|_| children.may_restart(&1, now)).count();
        assert_eq!(allowed, MAX_RESTARTS);
        assert!(children.may_restart(&2, now), "each has a count of its own");
        let later = now + RESTART_WINDOW + Duration::from_secs(1);
        assert!(children.may_restart(&1, later));
    }

    #[tokio::test]
    async fn two_engines_live_in_one_process() {
        let (one, other) = (Host::new().await, Host::new().await);
        one.engine.shutdown().await.unwrap();
        let label = Label::MANUAL;
        other
            .session
            .snapshot(&other.workspace(), label)
            .await
            .unwrap();
    }
}
