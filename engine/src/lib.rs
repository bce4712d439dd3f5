//! Workspace snapshot engine for agent runs.
//!
//! A host hands it a directory and some work to do there. The engine records the directory before
//! and after, tells exactly what changed, can put it back, keeps large patches as artifacts and
//! what happened in a durable log, and settles what a crash left when it is started again.
//!
//! ```no_run
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
//! while let Some(event) = events.next().await {
//!     println!("{}", event?.event_type);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Several engines, of several processes, may use one state directory at once. What is not here:
//! the captures themselves, which are in [`backends`] and need no runtime; and a sandbox, since the
//! work of a run may do whatever its user may do.

mod actors;
mod blocking;
mod engine;
mod error;
mod events;
mod failure;
mod id;
mod options;
mod process;
mod records;
mod run;
mod session;
mod state;
mod step;
mod upkeep;
mod workspace;

// The tests here use the backend of an example, which knows this crate by its name.
#[cfg(test)]
extern crate self as stillframe;
#[cfg(test)]
#[path = "../examples/custom_backend/copying.rs"]
mod copying;

pub use engine::Engine;
pub use engine::options::{EngineOptions, Resumer};
pub use options::{
    CopyRequest, DEFAULT_MAX_PATCH_BYTES, DEFAULT_MAX_UNTRACKED_FILE_BYTES, DiffEnd, DiffRequest,
    GcOptions, RestoreRequest, RunOptions, RunQuery, SnapshotQuery, UndoRequest, UndoTarget,
    WorkspaceOptions,
};
pub use session::manager::SessionManager;

pub use process::command::{
    CommandAdapter, CommandInput, CommandOutput, DEFAULT_MAX_OUTPUT_BYTES, EndSignal, OutputPiece,
};
pub use records::output::AdapterOutput;
pub use records::output::CommandResult;
pub use step::adapter::{Adapter, BoxAdapter};
pub use step::adapter_error::{AdapterError, Ending};
pub use step::context::RunContext;
pub use tokio_util::sync::CancellationToken;

pub use failure::Failure;
pub use options::RetentionOptions;
pub use process::guardian::be_guardian;
pub use records::artifact::{ArtifactRecord, SessionStats};
pub use records::effect::{CommitRecord, EffectRecord, EffectStatus};
pub use records::operation::OperationKind;
pub use records::outcome::{
    DiffOutcome, RunDocument, RunOutcome, RunResult, StoredFile, TakenSnapshot, WorkspaceDocument,
    WorkspaceOutcome,
};
pub use records::question::{Answer, Question, QuestionRecord, QuestionStatus};
pub use records::recovery::Survivor;
pub use records::recovery::{LeftWorkspace, RecoveryReport};
pub use records::restore_document::{
    LeftRef, RestoreDocument, RestoreStatus, UndoOutcome, UndoPlan, Undone,
};
pub use records::run::RunStatus;
pub use records::run_record::{LeaseRecord, RunExport, RunRecord};
pub use records::session::SessionRecord;
pub use records::session::SessionStatus;
pub use records::step::StepStatus;
pub use records::step_record::{PhaseRecord, StepRecord};
pub use records::task::TaskRecord;
pub use state::snapshot_name::SnapshotName;
pub use step::commit::CommitOptions;
pub use step::options::{Rerun, RetryPolicy, StepOptions};
pub use step::phase::{Phase, StepContext};
pub use step::plan::{PlanReport, StepIdentity, StepPlan};
pub use step::step_error::StepError;
pub use step::tool::{READ_ONLY_TOOLS, ToolError, ToolOptions, ToolOutcome};
pub use step::tool_counters::ToolCounters;
pub use upkeep::gc::{GcOutcome, RemovalOutcome};
pub use upkeep::purge::{PurgeOutcome, PurgePlan, PurgedSnapshot};
pub use upkeep::retention::RetentionOutcome;
pub use upkeep::verify::{ArtifactVerdict, SnapshotVerdict, VerifyOutcome, verify_without_log};
pub use workspace::safety::SafetyRefs;

pub use events::event::{Cursor, EVENT_SCHEMA_VERSION, Event, EventQuery, EventType};
pub use session::stream::EventStream;

pub use error::{Error, ErrorDocument};
pub use id::{ArtifactId, EffectId, EventId, InvalidId, QuestionId, RunId, SessionId, StepId};

/// The synchronous part: what a custom backend implements, and the values it works with.
pub use stillframe_backends as backends;
pub use stillframe_backends::{
    ApproximatedFile, Approximation, BackendKind, BorrowMode, ChangedFile, Conflict,
    ConflictRegion, ContentId, Diff, DiffOptions, ErrorKind, FileStatus, FoundContent,
    IgnoreOptions, KeptContent, Label, Omission, OmissionReason, OmittedKind, PatchText, PlanId,
    Progress, Proof, PurgeTarget, RelPath, Renamed, Renames, RestorePlan, RetainContent, Search,
    Skipped, Snapshot, SnapshotId, SnapshotMetadata, Strategy, WalkReason, Why,
};
