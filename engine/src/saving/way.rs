//! A checkpoint on its way: to its branch, merged with what others did there, or beside it.

use std::collections::BTreeSet;
use std::sync::Arc;

use stillframe_backends::{AllowedSecret, ErrorKind, LockedWorkspace, Operation};
use stillframe_remote::ObjectId;
use stillframe_remote::advertised::Advertised;
use stillframe_remote::branch_name::BranchName;
use stillframe_remote::failure_kind::FailureKind;

use crate::actors::Parts;
use crate::actors::core::Core;
use crate::error::Error;
use crate::options::work_branch::OnDivergence;
use crate::records::checkpoint::CheckpointRow;
use crate::records::work_task::WorkTaskRow;
use crate::saving::asking::Asking;
use crate::saving::making;
use crate::saving::sending::{Gate, NotSent, Sender, Sent};
use crate::saving::target::Target;
use crate::saving::told::Telling;
use crate::saving::work::{Fate, Merged, Wanted};
use crate::workspace::cancellation::Cancellation;
use crate::workspace::turn;

/// A checkpoint that is in the store, and where it goes.
pub(super) struct Way {
    pub(super) parts: Parts,
    pub(super) target: Target,
    pub(super) task: WorkTaskRow,
    pub(super) wanted: Wanted,
    pub(super) row: CheckpointRow,
    pub(super) asking: Asking,
    /// What the remote has said a moment ago.
    pub(super) seen: Advertised,
    pub(super) max_bytes: Option<u64>,
    pub(super) on_divergence: OnDivergence,
}

impl Way {
    /// Sends the checkpoint to the task's branch, or beside it.
    pub(super) async fn gone(self, core: &Core, cancel: &Cancellation) -> Result<Fate, Error> {
        let (way, blocking) = (Arc::new(self), &core.parts.blocking);
        let (going, op) = (Arc::clone(&way), cancel.operation());
        let sent = blocking.run_beside(move || going.send(&op)).await??;
        let not_sent = match sent {
            Ok(sent) => return Ok(Fate::Sent(sent)),
            Err(not_sent) if not_sent.kind != FailureKind::RemoteDivergent => {
                return Ok(Fate::NotSent(not_sent));
            }
            Err(not_sent) => not_sent,
        };
        let merges = way.on_divergence == OnDivergence::Merge;
        if let Some(tip) = not_sent.tip.filter(|_| merges)
            && let Some(merged) = way.merged(core, tip, cancel).await?
        {
            let (going, op, merge) = (Arc::clone(&way), cancel.operation(), merged.clone());
            let send = move || going.send_merge(&op, &merge.row, tip);
            match blocking.run_beside(send).await?? {
                Ok(sent) => return Ok(Fate::Merged(Box::new(merged), sent)),
                // Somebody was there first. Whoever tries again and again may never be.
                Err(e) if e.kind == FailureKind::RemoteDivergent => {}
                Err(e) => return Ok(Fate::NotSent(e)),
            }
        }
        let op = cancel.operation();
        blocking
            .run_beside(move || way.send_beside(&op, not_sent))
            .await?
    }

    fn sender<'a>(&'a self, op: &'a Operation) -> Sender<'a> {
        Sender {
            target: &self.target,
            remote: self.asking.remote(),
            op,
        }
    }

    fn send(&self, op: &Operation) -> Result<Result<Sent, NotSent>, Error> {
        let gate = self.gate()?;
        Ok(self.branch().and_then(|branch| {
            self.sender(op)
                .send(commit(&self.row)?, &branch, &self.seen, &gate)
        }))
    }

    fn send_merge(
        &self,
        op: &Operation,
        merge: &CheckpointRow,
        tip: ObjectId,
    ) -> Result<Result<Sent, NotSent>, Error> {
        let gate = self.gate()?;
        Ok(self.branch().and_then(|branch| {
            let merge = (commit(merge)?, &branch);
            self.sender(op).send_merge(merge, tip, &self.seen, &gate)
        }))
    }

    /// `not_sent`: why it is not on the branch.
    fn send_beside(&self, op: &Operation, not_sent: NotSent) -> Result<Fate, Error> {
        let gate = self.gate()?;
        let run = self.wanted.run_id.as_ref().map(ToString::to_string);
        let of = run.as_deref().unwrap_or(self.wanted.session_id.as_str());
        let sent = self.branch().and_then(|branch| {
            let beside = branch.side_branch(of);
            self.sender(op)
                .send(commit(&self.row)?, &beside, &self.seen, &gate)
        });
        Ok(match sent {
            Ok(sent) => Fate::Beside(not_sent, sent),
            // Neither has it, and both are named.
            Err(worse) => Fate::NotSent(NotSent {
                kind: not_sent.kind.max(worse.kind),
                why: format!("{}; {}", not_sent.why, worse.why),
                ..worse
            }),
        })
    }

    /// The merge of the checkpoint with what the branch is at; `None`: there is none.
    async fn merged(
        self: &Arc<Self>,
        core: &Core,
        tip: ObjectId,
        cancel: &Cancellation,
    ) -> Result<Option<Merged>, Error> {
        let (way, op) = (Arc::clone(self), cancel.operation());
        let merging = move |locked: &mut LockedWorkspace| {
            let telling = Telling {
                parts: &way.parts,
                task: &way.task,
                wanted: &way.wanted,
            };
            making::merge(&op, &telling, locked, &way.target, &way.row, tip)
        };
        let workspace = &self.target.opened.workspace;
        let lock_timeout = self.parts.settings.lock_timeout;
        let merged =
            turn::cancellable(core, workspace, "a merge", lock_timeout, cancel, merging).await;
        match merged {
            Err(e)
                if matches!(
                    e.kind(),
                    ErrorKind::Busy | ErrorKind::Cancelled | ErrorKind::Timeout
                ) =>
            {
                tracing::warn!(error = %e.chain(), "a task's work is not merged with its branch");
                Ok(None)
            }
            merged => merged,
        }
    }

    fn branch(&self) -> Result<BranchName, NotSent> {
        let parsed = BranchName::parse(&self.task.branch);
        parsed.map_err(|e| NotSent::new(FailureKind::Unknown, e.to_string()))
    }

    /// What must not leave this workspace.
    fn gate(&self) -> Result<Gate, Error> {
        let repository = self.target.opened.workspace.id();
        let allowed = self
            .parts
            .reader
            .read_blocking(|store| store.allowed_findings(repository))?;
        let allowed = allowed
            .into_iter()
            .map(|row| AllowedSecret::new(row.rule, row.path, row.fingerprint));
        Ok(Gate {
            rules: self.parts.writer.secrets().clone(),
            allowed: allowed.collect::<BTreeSet<_>>(),
            max_bytes: self.max_bytes,
        })
    }
}

pub(super) fn commit(row: &CheckpointRow) -> Result<ObjectId, NotSent> {
    let parsed = row.commit.parse::<ObjectId>();
    parsed.map_err(|why| NotSent::new(FailureKind::LocalGit, why))
}
