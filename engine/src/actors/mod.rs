//! The actors and their shared state.
//!
//! ```text
//! supervisor ─┬─ state writer      lost: nothing may act, all actors stop
//!             ├─ artifact store    restarted
//!             ├─ session manager   one for each session; restarted, reloads from the log
//!             │   └─ run           one for each run; made again by the next task that needs it
//!             └─ workspace         one for each directory, by device and inode; restarted
//! ```
//!
//! An actor checks, logs, applies and starts work. The work itself runs outside of the actor, owns
//! its locks, and answers its caller directly. So a restart loses only the queue of an actor, never
//! running work, and callers send lost requests again.
//!
//! Actors use `state` and the folders below it. They do not know the work: the caller passes it in.

pub(crate) mod adopted;
pub(crate) mod artifact_store;
pub(crate) mod core;
pub(crate) mod patience;
pub(crate) mod run;
pub(crate) mod session_manager;
pub(crate) mod settings;
pub(crate) mod state_writer;
pub(crate) mod supervisor;
pub(crate) mod watched;
pub(crate) mod workspace;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use jiff::Timestamp;
use ractor::{Actor, ActorCell, ActorRef, ActorStatus};
use stillframe_artifact_store::{ArtifactStore, FileStore};
use stillframe_backends::StateDir;
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

use crate::actors::adopted::Adopted;
use crate::actors::patience::Patience;
use crate::actors::settings::Settings;
use crate::actors::watched::WatchedWorkspaces;
use crate::blocking::Blocking;
use crate::error::{Error, stopped};
use crate::id::{EngineId, RunId, SessionId};
use crate::records::artifact::ArtifactRecord;
use crate::state::liveness::EngineLock;
use crate::state::reader::StateReader;
use crate::state::reserve::Reserve;

use self::state_writer::StateWriter;

/// The reason that an actor gives its supervisor when it has ended and is not needed.
const OVER: &str = "it is over";

/// How long the children of an actor may take to stop with it.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// Starts a child.
async fn spawn<A: Actor>(
    actor: A,
    arguments: A::Arguments,
    supervisor: ActorCell,
) -> Result<ActorRef<A::Msg>, Error> {
    // Without a name: names are global to the process, and two engines may live in it.
    let (actor, _) = Actor::spawn_linked(None, actor, arguments, supervisor)
        .await
        .map_err(|e| Error::unavailable(format!("a part of the engine cannot be started: {e}")))?;
    Ok(actor)
}

/// What every part of an engine needs. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Parts {
    pub(crate) settings: Arc<Settings>,
    pub(crate) engine_id: EngineId,
    pub(crate) state_dir: StateDir,
    pub(crate) reserve: Reserve,
    pub(crate) writer: StateWriter,
    pub(crate) reader: StateReader,
    /// For work on workspaces and artifacts.
    pub(crate) blocking: Blocking,
    pub(crate) artifacts: Artifacts,
    pub(crate) live_runs: LiveRuns,
    pub(crate) watched: WatchedWorkspaces,
    pub(crate) adopted: Adopted,
    pub(crate) lock: Arc<EngineLock>,
    /// Whose turn it is to remove artifacts: each who does waits for those who put some.
    pub(crate) removing: Arc<tokio::sync::Mutex<()>>,
    /// Whose turn it is to remove events and sessions.
    pub(crate) trimming: Arc<tokio::sync::Mutex<()>>,
    /// Rung when a queued run may be begun.
    pub(crate) queue_bell: Arc<Notify>,
    /// Rung when a notice was written.
    pub(crate) notice_bell: Arc<Notify>,
    /// Whose turn it is to send notices.
    pub(crate) sending_notices: Arc<tokio::sync::Mutex<()>>,
    /// How long remotes are waited for to save what dead engines left.
    pub(crate) patience: Patience,
    /// Cancelled once the tree of actors has stopped.
    pub(crate) stopped: CancellationToken,
}

impl Parts {
    /// The time, by the clock of the options.
    pub(crate) fn now(&self) -> Timestamp {
        (self.settings.clock)()
    }

    /// Releases the lock that shows that this engine is alive, and closes what it has open. The
    /// tree has stopped, and nothing is under way. Safe to repeat. Blocks.
    pub(crate) fn retire(&self) {
        self.lock.retire();
        // Otherwise it stays open for streams, which read what is there to its end.
        if self.reserve.is_lent() {
            // First, because the shared memory of the database needs space too.
            self.reader.close();
            self.reserve.put_back();
        }
    }

    /// Fails once the tree has stopped.
    pub(crate) fn check_available(&self) -> Result<(), Error> {
        if self.stopped.is_cancelled() {
            return Err(stopped());
        }
        Ok(())
    }
}

/// Where artifacts are kept. Clones share one store.
#[derive(Clone)]
pub(crate) enum Artifacts {
    /// In a store that the host brings.
    Host(Arc<dyn ArtifactStore>),
    /// In the engine's own store. It is opened when it is first needed, so a store that cannot be
    /// opened stops nothing else.
    Files {
        root: PathBuf,
        is_writable: bool,
        opened: Arc<OnceLock<Arc<FileStore>>>,
    },
}

impl Artifacts {
    /// The engine's own store.
    pub(crate) fn in_files(state_dir: &StateDir) -> Self {
        Self::Files {
            root: state_dir.path().join("artifacts"),
            is_writable: state_dir.is_writable(),
            opened: Arc::default(),
        }
    }

    /// The store. Blocks.
    pub(crate) fn store(&self) -> Result<Arc<dyn ArtifactStore>, Error> {
        Ok(match self {
            Self::Host(store) => Arc::clone(store),
            Self::Files {
                root,
                is_writable,
                opened,
            } => open_once(root, *is_writable, opened)?,
        })
    }

    /// The same, if it is the engine's own: it can clean up after itself. Blocks.
    pub(crate) fn files(&self) -> Result<Option<Arc<FileStore>>, Error> {
        Ok(match self {
            Self::Host(_) => None,
            Self::Files {
                root,
                is_writable,
                opened,
            } => Some(open_once(root, *is_writable, opened)?),
        })
    }

    /// Whether there is a store that may hold something: the engine makes its own for the first
    /// artifact. Blocks.
    pub(crate) fn is_there(&self) -> bool {
        match self {
            Self::Host(_) => true,
            Self::Files { root, .. } => root.symlink_metadata().is_ok(),
        }
    }

    /// What the registry calls this kind of store.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Files { .. } => "file",
            Self::Host(_) => HOSTS_STORE,
        }
    }

    /// Refuses an artifact that is kept by a store of another kind than this engine has.
    pub(crate) fn check_kept_here(&self, artifact: &ArtifactRecord) -> Result<(), Error> {
        match artifact.storage_backend == self.kind() {
            true => Ok(()),
            false => Err(Error::unavailable(self.elsewhere(artifact))),
        }
    }

    /// Says that an artifact is kept by a store that this engine does not have.
    pub(crate) fn elsewhere(&self, artifact: &ArtifactRecord) -> String {
        let (key, kind) = (&artifact.key, &artifact.storage_backend);
        format!(
            "artifact {key:?} is kept by a store (of kind {kind}) that this engine was not given"
        )
    }
}

/// What the registry calls a store that a host has given.
pub(crate) const HOSTS_STORE: &str = "custom";

/// Opens the store in `root`, unless that is done.
fn open_once(
    root: &Path,
    is_writable: bool,
    opened: &OnceLock<Arc<FileStore>>,
) -> Result<Arc<FileStore>, Error> {
    if let Some(files) = opened.get() {
        return Ok(Arc::clone(files));
    }
    // Two that open it at the same time open the same store, and the first handle is kept.
    let files = Arc::new(match is_writable {
        true => FileStore::open(root)?,
        false => FileStore::open_to_read(root)?,
    });
    Ok(Arc::clone(opened.get_or_init(|| files)))
}

/// The runs of this engine that are under way, and how to stop them.
///
/// No actor owns this, so that after a restart a run can still be cancelled.
#[derive(Clone, Debug, Default)]
pub(crate) struct LiveRuns {
    runs: Arc<Mutex<HashMap<RunId, LiveRun>>>,
}

#[derive(Debug)]
struct LiveRun {
    session_id: SessionId,
    cancellation: CancellationToken,
    /// Ends it so that it can be resumed, if it can.
    suspension: CancellationToken,
    /// Its actor, once it has one.
    actor: Option<ActorCell>,
}

/// A run of this engine that is under way, until this is dropped.
#[must_use = "dropping it says that the run is over"]
#[derive(Debug)]
pub(crate) struct UnderWay {
    live_runs: LiveRuns,
    run_id: RunId,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let ended = self.live_runs.runs().remove(&self.run_id);
        if let Some(actor) = ended.and_then(|run| run.actor) {
            actor.stop(Some(OVER.to_owned()));
        }
    }
}

impl LiveRuns {
    fn runs(&self) -> MutexGuard<'_, HashMap<RunId, LiveRun>> {
        // The map is changed by single calls, so a panic elsewhere cannot leave it half-way.
        self.runs.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Notes a run for as long as the answer lives; `None`: there is one of that id already.
    pub(crate) fn begin(
        &self,
        run_id: RunId,
        session_id: SessionId,
        cancellation: CancellationToken,
        suspension: CancellationToken,
    ) -> Option<UnderWay> {
        use std::collections::hash_map::Entry;
        let mut runs = self.runs();
        let Entry::Vacant(entry) = runs.entry(run_id.clone()) else {
            return None;
        };
        entry.insert(LiveRun {
            session_id,
            cancellation,
            suspension,
            actor: None,
        });
        drop(runs);
        let live_runs = self.clone();
        Some(UnderWay { live_runs, run_id })
    }

    /// Notes the actor of a run, if that is under way.
    pub(crate) fn serve(&self, run_id: &RunId, actor: ActorCell) {
        if let Some(run) = self.runs().get_mut(run_id) {
            run.actor = Some(actor);
        }
    }

    /// The actor of a run that is under way, if it is alive.
    pub(crate) fn actor(&self, run_id: &RunId) -> Option<ActorCell> {
        let actor = self.runs().get(run_id)?.actor.clone();
        actor.filter(|actor| actor.get_status() <= ActorStatus::Running)
    }

    /// Whether a run of this id is under way.
    pub(crate) fn has(&self, run_id: &RunId) -> bool {
        self.runs().contains_key(run_id)
    }

    /// Asks a run to stop; `false`: there is none of that id.
    pub(crate) fn cancel(&self, run_id: &RunId) -> bool {
        let runs = self.runs();
        let run = runs.get(run_id);
        if let Some(run) = run {
            run.cancellation.cancel();
        }
        run.is_some()
    }

    /// Asks a run to stop so that it can be resumed; `false`: there is none of that id.
    pub(crate) fn suspend(&self, run_id: &RunId) -> bool {
        let runs = self.runs();
        let run = runs.get(run_id);
        if let Some(run) = run {
            run.suspension.cancel();
        }
        run.is_some()
    }

    /// Asks the runs of a session to stop.
    pub(crate) fn cancel_session(&self, session_id: &SessionId) {
        for run in self.runs().values() {
            if run.session_id == *session_id {
                run.cancellation.cancel();
            }
        }
    }

    /// Asks every run to stop: those that can be resumed so that they can.
    pub(crate) fn stop_all(&self) {
        for run in self.runs().values() {
            run.suspension.cancel();
        }
    }
}

/// Where an answer goes. The asker may have left, which is no error.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, Error>>;

/// Work that waits in the queue of an actor, and can be withdrawn until it is begun.
///
/// The caller keeps a [`Claim`] on it: if the queue is lost with its actor, the reply port is
/// dropped too. The caller notices this, and still has the work.
pub(crate) struct Ticket<J> {
    job: Arc<Mutex<Option<J>>>,
}

/// The other half of a [`Ticket`].
pub(crate) struct Claim<J> {
    job: Arc<Mutex<Option<J>>>,
}

fn take<J>(job: &Mutex<Option<J>>) -> Option<J> {
    job.lock().unwrap_or_else(|e| e.into_inner()).take()
}

impl<J> Ticket<J> {
    /// A ticket for `job`, and the claim on it.
    pub(crate) fn new(job: J) -> (Self, Claim<J>) {
        let job = Arc::new(Mutex::new(Some(job)));
        let ticket = Self {
            job: Arc::clone(&job),
        };
        (ticket, Claim { job })
    }

    /// The job, to be begun; `None`: it was withdrawn.
    pub(crate) fn begin(&self) -> Option<J> {
        take(&self.job)
    }
}

impl<J> Claim<J> {
    /// The job, if it was not begun.
    pub(crate) fn take_back(&self) -> Option<J> {
        take(&self.job)
    }
}
