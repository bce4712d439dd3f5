//! A task's work on its way: what is wanted of it, what was made, and what became of that. Values.

use stillframe_backends::{CheckpointOutcome, KeptCheckpoint, SnapshotId};
use stillframe_secrets::SecretRules;

use crate::id::{RunId, SessionId};
use crate::options::work_branch::WorkBranchOptions;
use crate::records::block::Block;
use crate::records::checkpoint::{CheckpointKind, CheckpointRow};
use crate::records::follow_up::DEFAULT_WAITING_REASON;
use crate::records::run::EndsAs;
use crate::saving::sending::{NotSent, Sent};
use crate::state::change::Change;

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
    /// The commit that the work of the run began at.
    pub(crate) began_at: Option<String>,
    /// Why the run has stopped, of which this is the last checkpoint: people are told if it is not
    /// on the branch. `None`: it has not.
    pub(crate) stopped: Option<String>,
    /// The repository, if it is not the run's own.
    pub(crate) further: Option<String>,
    /// What has to hold for anything of it to be put on record.
    pub(crate) fence: Option<Box<Change>>,
}

/// What a checkpoint is of.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// Of a snapshot that is there.
    Of(SnapshotId),
    /// Of what is in the workspace, unless that is as this snapshot has it.
    Now { unless: Option<SnapshotId> },
}

impl Wanted {
    /// Of a run whose work has ended so.
    pub(crate) fn of_run(
        (session_id, run_id): (&SessionId, &RunId),
        ends: EndsAs,
        branch: &WorkBranchOptions,
        began_at: Option<String>,
    ) -> Self {
        Self {
            kind: CheckpointKind::of_end(ends),
            stopped: Some(match ends {
                EndsAs::Completed => format!("run {run_id} is done"),
                EndsAs::Failed => format!("run {run_id} failed"),
                EndsAs::Timeout => format!("the time of run {run_id} was up"),
                EndsAs::Cancelled => format!("run {run_id} was cancelled"),
            }),
            ..Self::of_progress((session_id, run_id), branch, began_at)
        }
    }

    /// Of a run that is at work.
    pub(crate) fn of_progress(
        (session_id, run_id): (&SessionId, &RunId),
        branch: &WorkBranchOptions,
        began_at: Option<String>,
    ) -> Self {
        Self {
            kind: CheckpointKind::Periodic,
            run_id: Some(run_id.clone()),
            session_id: session_id.clone(),
            template: branch.message.clone(),
            on_remote: Vec::new(),
            began_at,
            stopped: None,
            further: None,
            fence: None,
        }
    }

    /// Of a run that cannot go on without a person.
    pub(crate) fn of_block(
        ids: (&SessionId, &RunId),
        block: &Block,
        branch: &WorkBranchOptions,
        began_at: Option<String>,
    ) -> Self {
        let reason = block.told().unwrap_or(DEFAULT_WAITING_REASON);
        Self {
            kind: CheckpointKind::Blocked,
            stopped: Some(format!("run {} is blocked: {reason}", ids.1)),
            ..Self::of_progress(ids, branch, began_at)
        }
    }

    /// `changes`, which are written only as long as they may be.
    pub(crate) fn fenced(&self, changes: Vec<Change>) -> Vec<Change> {
        let fence = self.fence.as_deref().cloned();
        fence.into_iter().chain(changes).collect()
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

/// A checkpoint merged with what its branch had, in the store.
#[derive(Clone, Debug)]
pub(crate) struct Merged {
    pub(crate) row: CheckpointRow,
    pub(crate) kept: KeptCheckpoint,
}

/// What became of a checkpoint at the remote.
pub(crate) enum Fate {
    /// There is no remote.
    Kept,
    Sent(Sent),
    NotSent(NotSent),
    /// The branch had a history of its own, and has both.
    Merged(Box<Merged>, Sent),
    /// The branch has a history of its own, and the work is beside it.
    Beside(NotSent, Sent),
}

impl Fate {
    /// Without the secret values that a hook may have quoted.
    pub(crate) fn redacted(self, rules: &SecretRules) -> Self {
        match self {
            Self::Kept | Self::Sent(_) | Self::Merged(..) => self,
            Self::NotSent(why) => Self::NotSent(why.redacted(rules)),
            Self::Beside(why, sent) => Self::Beside(why.redacted(rules), sent),
        }
    }
}
