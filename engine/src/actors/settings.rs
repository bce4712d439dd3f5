//! The settings that a host chose for its engine.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use stillframe_backends::{Backend, BorrowMode, Progress};

use crate::options::credentials::BoxCredentials;
use crate::options::notice_sink::BoxSink;
use crate::options::owner_check::BoxCheck;
use crate::policy::BoxPolicy;
use crate::policy::limits::RunLimits;

/// The engine's options that are used after its start. See [`EngineOptions`](crate::EngineOptions)
/// for each.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) backend: Option<Arc<dyn Backend>>,
    pub(crate) progress: Option<Arc<dyn Fn(Progress) + Send + Sync>>,
    pub(crate) clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    pub(crate) max_operations: usize,
    pub(crate) lock_timeout: Duration,
    pub(crate) shutdown_grace: Duration,
    pub(crate) borrow: BorrowMode,
    pub(crate) max_store_bytes: u64,
    pub(crate) heartbeat: Duration,
    pub(crate) lease_expiry: Duration,
    pub(crate) hot_wait: Duration,
    pub(crate) question_sweep: Duration,
    pub(crate) max_queued: u64,
    pub(crate) max_running_in_session: u64,
    pub(crate) policy: Option<BoxPolicy>,
    pub(crate) limits: RunLimits,
    /// The names of the adapters that queued runs can have, in order.
    pub(crate) adapters: Vec<String>,
    /// Who asks remotes where a task's options do not say.
    pub(crate) credentials: Option<BoxCredentials>,
    /// Who tells people of the work of tasks.
    pub(crate) notice_sink: Option<BoxSink>,
    /// Who may decide about what runs hand in.
    pub(crate) owner_check: Option<BoxCheck>,
    pub(crate) notice_timeout: Duration,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Settings")
    }
}
