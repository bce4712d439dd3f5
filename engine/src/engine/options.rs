//! The options of an engine.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use stillframe_artifact_store::ArtifactStore;
use stillframe_backends::{Backend, BorrowMode, ErrorKind, Progress};
use stillframe_secrets::{SecretRule, SecretRules};

use crate::actors::settings::Settings;
use crate::error::Error;
use crate::options::RunOptions;
use crate::options::credentials::{BoxCredentials, CredentialProvider};
use crate::options::notice_sink::{BoxSink, NoticeSink};
use crate::options::owner_check::{BoxCheck, OwnerCheck};
use crate::policy::limits::RunLimits;
use crate::policy::{BoxPolicy, Policy};
use crate::records::run_record::RunRecord;
use crate::step::adapter::{Adapter, BoxAdapter};
use crate::step::adapters::Adapters;

/// How to run an engine. Every option has a default.
#[derive(Clone)]
#[non_exhaustive]
pub struct EngineOptions {
    /// Where everything is kept. Default: `$STILLFRAME_HOME`, else `$XDG_STATE_HOME/stillframe`,
    /// else `~/.local/state/stillframe`.
    pub state_dir: Option<PathBuf>,
    /// The backend of every workspace, in place of the built-in ones. Default: none.
    pub backend: Option<Arc<dyn Backend>>,
    /// Where artifacts are kept. Default: files in the state directory. A store serves one state
    /// directory: a clean-up removes the patches in it that the log does not name.
    pub artifact_store: Option<Arc<dyn ArtifactStore>>,
    /// Receives the progress of captures. Default: none.
    pub progress: Option<Arc<dyn Fn(Progress) + Send + Sync>>,
    /// Where the time comes from. Default: the system's clock.
    pub clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    /// How many operations and runs may be under way at once; one more is `Busy`. Answers and
    /// cancellations are always accepted. Default: 64.
    pub max_operations: usize,
    /// How many captures, comparisons, restores and the like may occupy a thread at once; others
    /// wait, and of those that wait, interactive work is done before batch work, and work on small
    /// workspaces before work on large ones, which have 2000 files or more. Work on large
    /// workspaces takes at most three quarters of the threads, if there are several. Brief steps,
    /// such as opening a workspace, wait for none of this, and as many artifacts again may be
    /// stored. Default: 8.
    pub max_blocking: usize,
    /// How long to wait for a workspace that somebody else uses, before `Busy`. Default: 10 s.
    pub lock_timeout: Duration,
    /// How long [`Engine::shutdown`](crate::Engine::shutdown) waits for what is under way before
    /// it cancels it. Default: 10 s.
    pub shutdown_grace: Duration,
    /// How the store takes objects from the user's repository. Default: hard links.
    pub borrow: BorrowMode,
    /// The quota of the store of each workspace, in bytes; zero: no limit. Default: 0. A capture or
    /// a restore that would exceed it is refused with `LimitExceeded` and leaves nothing; this
    /// applies to after-snapshots and to guards too. It is never exceeded, temporary files
    /// included: see
    /// [`SnapshotOptions::max_store_bytes`](crate::backends::SnapshotOptions::max_store_bytes).
    /// Artifacts and the log are not in a store. No snapshot is removed because of the quota;
    /// [`Engine::gc`](crate::Engine::gc) frees space.
    pub max_store_bytes: u64,
    /// Whether a state directory that cannot be written, or that belongs to another user, is opened
    /// for reading; by default it is refused. Nothing in it is changed: the log is read from a copy
    /// in the temporary directory, as it was when the engine was started, and nothing is recovered.
    /// Everything that would write is `Storage`, and so is everything that takes a capture, such as
    /// a comparison with the present.
    pub allow_reading_alone: bool,
    /// How often the lease of a run that is under way is renewed. Default: 30 s.
    pub heartbeat: Duration,
    /// How long after the last renewal of its lease another engine may take a run over although the
    /// process that holds it still exists; a dead process is detected at once. At least twice the
    /// heartbeat. Default: 120 s.
    pub lease_expiry: Duration,
    /// How long a run waits for an answer before it is parked. Default: 600 s.
    pub hot_wait: Duration,
    /// How often the engine looks for questions past their deadline, and for answered runs.
    /// Default: 15 s.
    pub question_sweep: Duration,
    /// Resumes parked runs that were answered, and runs that were interrupted before they used
    /// their answers: the work that it returns for a run is run under the run's id. If a run cannot
    /// be resumed, it is offered again, less and less often. Default: none; then these runs wait
    /// until somebody starts their ids again. A run that was interrupted after it had used its
    /// answers is not offered; the host starts it, like any other.
    pub resumer: Option<Arc<Resumer>>,
    /// How many submitted runs may be under way at once in this engine; others wait in the queue.
    /// They do not count as `max_operations`. Default: 8.
    pub max_running: usize,
    /// How many submitted runs of one session may be under way at once, over all engines that use
    /// the state directory. Default: 1, so that the runs of a session follow one another.
    pub max_running_in_session: usize,
    /// How many runs may wait in the queue of the state directory; one more is `Busy`. Default:
    /// 10 000.
    pub max_queued: usize,
    /// Says what runs may do: see [`EngineOptions::policy`].
    pub(crate) policy: Option<BoxPolicy>,
    /// What a run that this engine executes may do at most, where the run has no limit [of its
    /// own](crate::RunOptions::limits); paths that are forbidden here are forbidden in every run.
    /// Those of changes do not concern runs without a workspace. Default: none.
    pub limits: RunLimits,
    /// What does the work of submitted runs: see [`EngineOptions::adapter`].
    pub(crate) adapters: Adapters,
    /// What is a secret value besides what [the built-in
    /// rules](crate::secrets::SecretRules) recognise. Each value is replaced by `[redacted:RULE]`
    /// before anything is written into the log. The built-in rules always apply. Default: none.
    pub secret_rules: Vec<SecretRule>,
    /// Who asks remotes: see [`EngineOptions::credentials`].
    pub(crate) credentials: Option<BoxCredentials>,
    /// Who tells people of the work of tasks: see [`EngineOptions::notices`].
    pub(crate) notice_sink: Option<BoxSink>,
    pub(crate) owner_check: Option<BoxCheck>,
    /// How long each call of the sink may take. One that takes longer was not sent, as far as
    /// anybody knows, and is tried again. Default: 10 s.
    pub notice_timeout: Duration,
}

/// Returns the work to resume an answered run with; `None`: this host does not resume it. After a
/// panic no run is resumed this time, and it is asked again later.
pub type Resumer = dyn Fn(&RunRecord) -> Option<(RunOptions, BoxAdapter)> + Send + Sync;

impl Default for EngineOptions {
    #[expect(
        clippy::disallowed_methods,
        reason = "the one clock that everything else is handed"
    )]
    fn default() -> Self {
        Self {
            state_dir: None,
            backend: None,
            artifact_store: None,
            progress: None,
            clock: Arc::new(Timestamp::now),
            max_operations: 64,
            max_blocking: 8,
            lock_timeout: Duration::from_secs(10),
            shutdown_grace: Duration::from_secs(10),
            borrow: BorrowMode::HardLink,
            max_store_bytes: 0,
            allow_reading_alone: false,
            heartbeat: Duration::from_secs(30),
            lease_expiry: Duration::from_secs(120),
            hot_wait: Duration::from_secs(600),
            question_sweep: Duration::from_secs(15),
            resumer: None,
            max_running: 8,
            max_running_in_session: 1,
            max_queued: 10_000,
            policy: None,
            limits: RunLimits::default(),
            adapters: Adapters::default(),
            secret_rules: Vec::new(),
            credentials: None,
            notice_sink: None,
            owner_check: None,
            notice_timeout: Duration::from_secs(10),
        }
    }
}

impl fmt::Debug for EngineOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineOptions")
            .field("state_dir", &self.state_dir)
            .field("backend", &self.backend.as_ref().map(|b| b.kind()))
            .field("max_operations", &self.max_operations)
            .field("max_blocking", &self.max_blocking)
            .field("lock_timeout", &self.lock_timeout)
            .field("shutdown_grace", &self.shutdown_grace)
            .field("borrow", &self.borrow)
            .field("max_store_bytes", &self.max_store_bytes)
            .field("allow_reading_alone", &self.allow_reading_alone)
            .field("heartbeat", &self.heartbeat)
            .field("lease_expiry", &self.lease_expiry)
            .field("hot_wait", &self.hot_wait)
            .field("question_sweep", &self.question_sweep)
            .field("max_running", &self.max_running)
            .field("max_running_in_session", &self.max_running_in_session)
            .field("max_queued", &self.max_queued)
            .field("has_policy", &self.policy.is_some())
            .field("limits", &self.limits)
            .field("adapters", &self.adapters)
            .field("has_credentials", &self.credentials.is_some())
            .field("has_notice_sink", &self.notice_sink.is_some())
            .field("has_owner_check", &self.owner_check.is_some())
            .field("notice_timeout", &self.notice_timeout)
            .finish_non_exhaustive()
    }
}

impl EngineOptions {
    stillframe_model::setters! {
        allow_reading_alone: bool,
        backend: Arc<dyn Backend>,
        artifact_store: Arc<dyn ArtifactStore>,
        max_operations: usize,
        max_blocking: usize,
        lock_timeout: Duration,
        shutdown_grace: Duration,
        max_store_bytes: u64,
        hot_wait: Duration,
        question_sweep: Duration,
        heartbeat: Duration,
        lease_expiry: Duration,
        borrow: BorrowMode,
        max_running: usize,
        max_running_in_session: usize,
        max_queued: usize,
        limits: RunLimits,
        secret_rules: Vec<SecretRule>,
        notice_timeout: Duration,
    }

    /// Has `policy` asked what runs may do, also queued ones. Default: nobody is asked, and
    /// everything is allowed.
    pub fn policy(mut self, policy: impl Policy) -> Self {
        self.policy = Some(Arc::new(policy));
        self
    }

    /// Sets who asks the remote of a task where neither the task's own options nor the address say
    /// so. What a run left whose engine was killed is saved in this name too: what its own options
    /// said of that is not kept. Default: nobody.
    pub fn credentials(mut self, provider: impl CredentialProvider) -> Self {
        self.credentials = Some(Arc::new(provider));
        self
    }

    /// Has `sink` tell people what became of the work of tasks: in the background, soon after it is
    /// on record, at the start of the engine what is left, and as often as questions are looked at
    /// what is tried again. A shutdown waits for that as for other work. Default: nobody is told;
    /// what is to be told is kept ([`Engine::notices`](crate::Engine::notices)), and sent by the
    /// first engine that has a sink.
    pub fn notices(mut self, sink: impl NoticeSink) -> Self {
        self.notice_sink = Some(Arc::new(sink));
        self
    }

    /// Who may decide about what runs hand in. Default: whoever calls.
    pub fn owner_check(mut self, check: impl OwnerCheck) -> Self {
        self.owner_check = Some(Arc::new(check));
        self
    }

    /// Registers an adapter for submitted runs: `make` gets the input of a run when the run is
    /// about to be begun, and returns what does its work. If it fails or panics, the run is
    /// `failed`. It runs on a thread of the runtime and must not block. A second adapter of a name
    /// replaces the first.
    ///
    /// An engine begins the queued runs whose adapters it has, also those that another engine, or
    /// an earlier process, accepted. It leaves all others alone.
    pub fn adapter<A: Adapter>(
        mut self,
        name: impl Into<String>,
        make: impl Fn(serde_json::Value) -> Result<A, Box<dyn std::error::Error + Send + Sync>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.adapters.register(name.into(), make);
        self
    }

    /// The name of [`EngineOptions::lock_timeout`] in earlier versions.
    #[deprecated(note = "it is called `lock_timeout`")]
    pub fn lock_patience(self, lock_timeout: Duration) -> Self {
        self.lock_timeout(lock_timeout)
    }

    /// Sets [`EngineOptions::state_dir`].
    pub fn state_dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.state_dir = Some(path.into());
        self
    }

    /// Sets [`EngineOptions::progress`]. It is called on the thread that captures, often.
    pub fn progress(mut self, report: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        self.progress = Some(Arc::new(report));
        self
    }

    /// Sets [`EngineOptions::clock`].
    pub fn clock(mut self, clock: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Sets [`EngineOptions::resumer`].
    pub fn resumer(
        mut self,
        resumer: impl Fn(&RunRecord) -> Option<(RunOptions, BoxAdapter)> + Send + Sync + 'static,
    ) -> Self {
        self.resumer = Some(Arc::new(resumer));
        self
    }

    /// What of it outlasts the start of the engine.
    pub(crate) fn settings(&self) -> Settings {
        Settings {
            backend: self.backend.clone(),
            progress: self.progress.clone(),
            clock: self.clock.clone(),
            max_operations: self.max_operations,
            lock_timeout: self.lock_timeout,
            shutdown_grace: self.shutdown_grace,
            borrow: self.borrow,
            max_store_bytes: self.max_store_bytes,
            heartbeat: self.heartbeat,
            lease_expiry: self.lease_expiry,
            hot_wait: self.hot_wait,
            question_sweep: self.question_sweep,
            max_queued: u64::try_from(self.max_queued).unwrap_or(u64::MAX),
            max_running_in_session: u64::try_from(self.max_running_in_session).unwrap_or(u64::MAX),
            policy: self.policy.clone(),
            limits: self.limits.clone(),
            adapters: self.adapters.names(),
            credentials: self.credentials.clone(),
            notice_sink: self.notice_sink.clone(),
            owner_check: self.owner_check.clone(),
            notice_timeout: self.notice_timeout,
        }
    }

    /// Everything that is a secret value; `InvalidOptions` if a rule cannot be used.
    pub(crate) fn secrets(&self) -> Result<SecretRules, Error> {
        SecretRules::with(self.secret_rules.iter().cloned())
            .map_err(|e| Error::new(ErrorKind::InvalidOptions, e))
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.max_operations == 0 {
            return Err(Error::invalid_options("max_operations must not be zero"));
        }
        if self.max_blocking == 0 {
            return Err(Error::invalid_options("max_blocking must not be zero"));
        }
        if self.max_running == 0 || self.max_running_in_session == 0 || self.max_queued == 0 {
            return Err(Error::invalid_options(
                "max_running, max_running_in_session and max_queued must not be zero",
            ));
        }
        if let Some(defect) = self.limits.defect() {
            return Err(Error::invalid_options(defect));
        }
        if self.notice_timeout.is_zero() {
            return Err(Error::invalid_options("notice_timeout must not be zero"));
        }
        if self.adapters.has("") {
            return Err(Error::invalid_options("an adapter must have a name"));
        }
        if self.heartbeat.is_zero() || self.lease_expiry < self.heartbeat.saturating_mul(2) {
            return Err(Error::invalid_options(
                "heartbeat must not be zero, and lease_expiry at least twice as long",
            ));
        }
        Ok(())
    }
}
