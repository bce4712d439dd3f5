//! The records: statuses with their transitions, rows, and the documents that a host gets. Values
//! and pure functions; nothing here writes.
//!
//! It uses the ids, `failure` and `events`.

pub(crate) mod agent;
pub(crate) mod allowed_finding;
pub(crate) mod artifact;
pub(crate) mod block;
pub(crate) mod came_for;
pub(crate) mod checkpoint;
pub(crate) mod effect;
pub(crate) mod export;
pub(crate) mod follow_up;
pub(crate) mod isolated_run;
pub(crate) mod isolation;
pub(crate) mod kept_branch;
pub(crate) mod lease;
pub(crate) mod merge;
pub(crate) mod new_repository;
pub(crate) mod notice;
pub(crate) mod operation;
pub(crate) mod outcome;
pub(crate) mod output;
pub(crate) mod quarantine;
pub(crate) mod question;
pub(crate) mod queue;
pub(crate) mod recovery;
pub(crate) mod repositories;
pub(crate) mod restore_document;
pub(crate) mod resumed_work;
pub(crate) mod review;
pub(crate) mod revision;
pub(crate) mod run;
pub(crate) mod run_document;
pub(crate) mod run_record;
pub(crate) mod run_row;
pub(crate) mod run_state;
pub(crate) mod run_totals;
pub(crate) mod saved_work;
pub(crate) mod session;
pub(crate) mod session_need;
pub(crate) mod snapshot;
pub(crate) mod step;
pub(crate) mod step_record;
pub(crate) mod task;
pub(crate) mod tool_call;
pub(crate) mod transcript;
pub(crate) mod work_task;

pub use crate::failure::Failure;
pub use crate::id::{
    AgentId, ArtifactId, EffectId, EventId, InvalidId, QuestionId, ReviewId, ReviewRequestId,
    StepId,
};
pub use agent::{AgentDraft, AgentRecord, AgentStatus};
pub use allowed_finding::AllowedSecretRecord;
pub use artifact::{ArtifactDraft, ArtifactRecord, SessionStats};
pub use effect::{CommitRecord, EffectRecord, EffectStatus};
pub use export::{ExportLine, ExportOutcome, ExportedArtifact, ExportedRun};
pub use follow_up::FollowUpRecord;
pub use isolated_run::{DiscardedWorktree, IsolatedRun, IsolationRecord};
pub use merge::{MergeMode, MergeOutcome, MergedRun};
pub use new_repository::NewRepositoryRecord;
pub use notice::{NoticeKind, NoticeRecord, NoticeStatus};
pub use operation::OperationKind;
pub use outcome::{
    DiffOutcome, RunDocument, RunResult, StoredFile, TakenSnapshot, WorkspaceDocument,
    WorkspaceOutcome,
};
pub use quarantine::{QuarantineRestore, QuarantinedWork};
pub use question::{Answer, Question, QuestionRecord, QuestionStatus};
pub use queue::QueueRecord;
pub use recovery::{LeftWorkspace, RecoveryReport, Survivor, UnknownAdapter};
pub use repositories::{RepositoryOutcome, SavedRepositories};
pub use restore_document::{
    LeftRef, RestoreDocument, RestoreStatus, UndoOutcome, UndoPlan, Undone,
};
pub use resumed_work::{ResumeState, ResumedWork};
pub use review::{ReviewDraft, ReviewIssue, ReviewRecord, ReviewSeverity, ReviewTarget};
pub use revision::Revision;
pub use run_document::{DiffSummary, KeptPatch, WorkspaceSummary};
pub use run_record::{LeaseRecord, RunExport, RunRecord};
pub use run_state::{StateTransition, StateValue};
pub use run_totals::TokenTotals;
pub use saved_work::{CheckpointRecord, FoundSecret, SavedState, SavedWork, WorkTaskRecord};
pub use session::{SessionDetails, SessionRecord, SessionStatus};
pub use session_need::SessionNeed;
pub use step::StepStatus;
pub use step_record::{PhaseRecord, StepRecord};
pub use stillframe_remote::failure_kind::FailureKind;
pub use task::TaskRecord;
pub use tool_call::{ToolCallRecord, ToolCallStatus};
pub use transcript::{ApprovalState, CallState, MessageDirection, TranscriptEntry, TranscriptItem};
