//! Workspace snapshot engine for agent runs.
//!
//! A host gives the engine a directory and some work to do there. The engine records the directory
//! before and after the work, reports exactly what changed, and can restore the directory. It
//! stores large patches as artifacts, writes a durable log of events, and recovers after a crash
//! when it is started again.
//!
//! ```no_run
//! use stillframe::events::EventType;
//! use stillframe::{
//!     CommandAdapter, Cursor, Engine, EngineOptions, RunOptions, Strategy, WorkspaceOptions,
//! };
//!
//! # async fn host() -> Result<(), stillframe::Error> {
//! let engine = Engine::start(EngineOptions::default()).await?;
//! let session = engine.session("ticket-42").await?;
//! let mut events = session.events(Cursor::start());
//!
//! let outcome = session
//!     .execute_run(
//!         RunOptions::new("fix the build").workspace(
//!             WorkspaceOptions::at("/src/app")
//!                 .strategy(Strategy::Auto)
//!                 .rollback_on_failure(true),
//!         ),
//!         CommandAdapter::new("make").arg("test"),
//!     )
//!     .await?;
//! if let Some(diff) = &outcome.workspace.diff {
//!     println!("{} files changed", diff.files_changed);
//! }
//! // The session's events: those that were missed, then each new one.
//! while let Some(event) = events.next().await {
//!     let event = event?;
//!     println!("{}", event.event_type);
//!     // The last event of a run says how it ended.
//!     let ended = [
//!         EventType::RUN_COMPLETED,
//!         EventType::RUN_FAILED,
//!         EventType::RUN_CANCELLED,
//!         EventType::RUN_TIMEOUT,
//!         EventType::RUN_INTERRUPTED,
//!     ];
//!     if event.run_id == Some(outcome.run_id.clone()) && ended.contains(&event.event_type) {
//!         break;
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Several engines, in one process or several, may use one state directory at the same time. The
//! captures themselves are in [`backends`] and need no async runtime. The engine is not a sandbox:
//! the work of a run can do whatever its user can do.

mod actors;
mod blocking;
mod branches;
mod engine;
mod error;
pub mod events;
mod failure;
mod id;
pub mod options;
pub mod policy;
mod process;
pub mod records;
mod run;
mod saving;
#[cfg(feature = "schema")]
pub mod schema;
mod session;
mod state;
mod step;
mod telemetry;
pub mod upkeep;
mod workspace;

// The tests here use the backend of an example, which knows this crate by its name.
#[cfg(test)]
extern crate self as stillframe;
#[cfg(test)]
#[path = "../examples/custom_backend/copying.rs"]
mod copying;

pub use engine::Engine;
pub use engine::options::{EngineOptions, Resumer};
pub use engine::reviews::Review;
pub use engine::transcript::Transcript;
pub use error::{Error, ErrorDocument};
pub use events::event::Event;
pub use events::query::Cursor;
pub use id::{RunId, SessionId};
pub use options::{DiffRequest, RestoreRequest, RunOptions, UndoRequest, WorkspaceOptions};
pub use process::command::CommandAdapter;
pub use records::outcome::RunOutcome;
pub use records::output::AdapterOutput;
pub use records::queue::Priority;
pub use records::run::RunStatus;
pub use session::handle::RunHandle;
pub use session::manager::SessionManager;
pub use session::stream::EventStream;
pub use state::snapshot_name::SnapshotName;
pub use step::adapter::Adapter;
pub use step::adapter_error::AdapterError;
pub use step::context::RunContext;

pub use jiff::Timestamp;
pub use stillframe_backends::{ErrorKind, Snapshot, SnapshotId, Strategy};
pub use tokio_util::sync::CancellationToken;

/// Work that leaves the machine: tasks, and the branches that have their work.
pub mod tasks {
    pub use crate::options::credentials::CredentialProvider;
    pub use crate::options::notice_sink::{NoticeError, NoticeSink, Shown};
    pub use crate::options::quarantine_scope::QuarantineScope;
    pub use crate::options::work_branch::{OnDivergence, WorkBranchOptions};
    pub use crate::records::block::Block;
    pub use crate::records::follow_up::FollowUpInput;
    pub use crate::step::checkpointed::Checkpointed;
    pub use stillframe_remote::address::without_login;
    pub use stillframe_remote::credential::Credential;
    pub use stillframe_remote::secret::Secret;
}

/// Commands as the work of a run: what they read, write and answer with.
pub mod commands {
    pub use crate::process::command::{
        CommandInput, CommandOutput, DEFAULT_MAX_OUTPUT_BYTES, EndSignal,
    };
    pub use crate::process::guardian::be_guardian;
    pub use crate::process::output::OutputPiece;
    pub use crate::records::output::CommandResult;
    pub use stillframe_remote::own_children::{OwnChild, start as start_own_child};
}

/// What an adapter has of its run: phases, steps, tools, commits, and how they end.
pub mod steps {
    pub use crate::step::adapter::BoxAdapter;
    pub use crate::step::adapter_error::Ending;
    pub use crate::step::agent::Agent;
    pub use crate::step::commit::CommitOptions;
    pub use crate::step::message_stream::MessageStream;
    pub use crate::step::options::{Rerun, RetryPolicy, StepOptions};
    pub use crate::step::phase::{Phase, StepContext};
    pub use crate::step::plan::{PlanReport, StepIdentity, StepPlan};
    pub use crate::step::step_error::StepError;
    pub use crate::step::tool::{READ_ONLY_TOOLS, ToolError, ToolOptions, ToolOutcome};
    pub use crate::step::tool_counters::ToolCounters;
}

/// Where large patches and outputs are kept: the port, and its implementations.
pub use stillframe_artifact_store as artifact_store;
/// The synchronous part: what a custom backend implements, and the values that it works with, such
/// as a diff or what a snapshot left out.
pub use stillframe_backends as backends;
/// The rules by which secret values are recognised before anything is logged, and a host's own.
pub use stillframe_secrets as secrets;
