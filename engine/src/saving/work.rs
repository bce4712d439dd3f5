//! A task's work on its way: what is wanted of it, what was made, and what became of that. Values.

use stillframe_backends::{CheckpointOutcome, SnapshotId};

use crate::id::{RunId, SessionId};
use crate::options::work_branch::WorkBranchOptions;
use crate::records::checkpoint::{CheckpointKind, CheckpointRow};
use crate::records::run::EndsAs;
use crate::saving::sending::{NotSent, Sent};

/// What is to be made.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) kind: CheckpointKind,
    /// The run whose work it is; `None`: somebody asks for it outside of runs.
    pub(crate) run_id: Option<RunId>,
    pub(crate) session_id: SessionId,
    /// What the host's message is made of, in place of the subject.
    pub(crate) template: Option<String>,
    /// What the remote has, as far as it could be asked.
    pub(crate) on_remote: Vec<String>,
}

impl Wanted {
    /// Of a run whose work has ended so.
    pub(crate) fn of_run(
        (session_id, run_id): (&SessionId, &RunId),
        ends: EndsAs,
        branch: &WorkBranchOptions,
    ) -> Self {
        Self {
            kind: match ends {
                EndsAs::Completed => CheckpointKind::Periodic,
                EndsAs::Failed | EndsAs::Timeout | EndsAs::Cancelled => CheckpointKind::Wip,
            },
            run_id: Some(run_id.clone()),
            session_id: session_id.clone(),
            template: branch.message.clone(),
            on_remote: Vec::new(),
        }
    }
}

/// A checkpoint in the store.
#[derive(Clone, Debug)]
pub(crate) struct Made {
    /// `None`: there is nothing to commit, and no commit at all.
    pub(crate) row: Option<CheckpointRow>,
    pub(crate) outcome: CheckpointOutcome,
    /// The snapshot that it is of.
    pub(crate) snapshot: SnapshotId,
}

/// What became of a checkpoint at the remote.
pub(crate) enum Fate {
    /// There is no remote.
    Kept,
    Sent(Sent),
    NotSent(NotSent),
    /// The branch has a history of its own, and the work is beside it.
    Beside(NotSent, Sent),
}
