//! Bringing the checkout of the originating branch to the merge: a restore, which moves the branch with
//! index and files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use stillframe_backends::{
    Backend, BranchError, CheckoutUsage, ErrorKind, Label, LockedWorkspace, Operation, RelPath,
    RepositoryRestore, RestoreGoal, RestoreOptions, Snapshot, SwitchRequest, printable,
};

use super::PATIENCE;
use super::repository::{Repository, failed};
use crate::actors::Parts;
use crate::actors::core::Core;
use crate::error::Error;
use crate::id::{RunId, SessionId};
use crate::options::WorkspaceOptions;
use crate::records::isolation::IsolationRow;
use crate::records::merge::{MergeOutcome, MergedRun};
use crate::records::restore_document::RestorePurpose;
use crate::records::run_row::RunRow;
use crate::run::lock::RunLock;
use crate::workspace::opened::Opened;
use crate::workspace::restore::{self, Restoring};
use crate::workspace::{capture, run_worktree, turn};

/// Moves the branch that is checked out in `directory`, with its index and the files that differ.
/// What is changed there beside them stays.
///
/// `HeadMoved`: somebody is on the way elsewhere, and nothing was touched.
pub(super) async fn bring(
    core: &Core,
    (run, row): (&RunRow, &IsolationRow),
    of: Repository,
    directory: &Path,
    merged: MergedRun,
) -> Result<MergeOutcome, Error> {
    let opened = core.open(&WorkspaceOptions::at(directory)).await?;
    let holder = format!("the merge of run {}", run.id);
    let lock = RunLock::acquire(&opened.workspace, &holder, PATIENCE, &core.parts.blocking);
    let lock = lock.await?;
    let bringing = Bringing {
        parts: core.parts.clone(),
        opened: opened.clone(),
        session_id: run.session_id.clone(),
        run_id: run.id.clone(),
        branch: row.originating_branch.clone(),
        repository: row.repository_path.clone(),
        merged,
    };
    let work = move |locked: &mut LockedWorkspace| bringing.carry_out(locked);
    let done = turn::work(core, &opened.workspace, "a merge", PATIENCE, work).await;
    lock.release();
    let mut outcome = done?;
    if let MergeOutcome::Merged(merged) = &mut outcome {
        // Somebody may have checked the branch out elsewhere meanwhile.
        let branch = row.originating_branch.clone();
        let look = move || of.checkouts(&branch);
        let checkouts = core.parts.blocking.run(look).await?.unwrap_or_default();
        let others = checkouts.iter().filter(|at| at.directory != directory);
        merged.left_behind = others.map(|at| printable(&at.directory)).collect();
    }
    Ok(outcome)
}

/// Carries on what a merge has left half done in a checkout of the branch.
///
/// # Errors
///
/// That cannot be done now, or nobody can say whether there is something.
pub(super) async fn carry_on(core: &Core, of: Repository, branch: &str) -> Result<(), Error> {
    let name = branch.to_owned();
    let look = move || of.checkouts(&name);
    for checkout in core.parts.blocking.run(look).await?? {
        let place = printable(&checkout.directory);
        if let CheckoutUsage::Away(why) = &checkout.usage {
            let message = format!("{place}, which has {branch}: {why}; it is looked at later");
            return Err(Error::new(ErrorKind::Busy, message));
        }
        let opened = core
            .open(&WorkspaceOptions::at(&checkout.directory))
            .await?;
        // Whoever has its turn finds it recovered.
        turn::work(core, &opened.workspace, "recovery", PATIENCE, |_| Ok(())).await?;
    }
    Ok(())
}

/// A checkout on its way to a merge. Everything blocks.
struct Bringing {
    parts: Parts,
    opened: Opened,
    session_id: SessionId,
    run_id: RunId,
    branch: String,
    repository: PathBuf,
    merged: MergedRun,
}

impl Bringing {
    fn carry_out(self, locked: &mut LockedWorkspace) -> Result<MergeOutcome, Error> {
        let op = &Operation::unbounded();
        let backend = run_worktree::backend(&self.parts)?;
        let options = self
            .opened
            .snapshot_options(
                &self.parts,
                Label::GUARD,
                &self.session_id,
                Some(&self.run_id),
            )
            .retain_content(true)
            .branches(vec![self.branch.clone()]);
        let owner = options.owner.clone();
        let from = capture::take(op, locked, &*backend, &options)?;
        let before = &from.metadata;
        let name = self.branch.strip_prefix("refs/heads/");
        let is_there = before.branch.as_deref() == name
            && before.head_ref.as_ref() == Some(&self.merged.previous_head);
        if !is_there {
            capture::let_go_of(op, &self.parts, locked, &*backend, &from);
            let message = format!("{} is not where it was a moment ago", self.branch);
            return Err(Error::new(ErrorKind::HeadMoved, message));
        }
        let to = Some(self.merged.new_head.clone());
        let mut request = SwitchRequest::new(&self.branch, to, self.parts.now()).owner(owner);
        request.from = Some(self.merged.previous_head.clone());
        let branches = backend.branches().ok_or_else(|| {
            let message = "the backend of this engine has no branches; nothing was merged";
            Error::new(ErrorKind::Unsupported, message)
        })?;
        let switch = match branches.prepare_switch(op, locked, &from.id, &request) {
            Ok(switch) => switch,
            Err(e) => {
                capture::let_go_of(op, &self.parts, locked, &*backend, &from);
                let tip = branches.tip(locked, &self.branch).map_err(failed)?;
                return match e {
                    // Somebody is at work in this moment, and it is looked at again.
                    e if tip.as_ref() != Some(&self.merged.previous_head) => {
                        Err(Error::new(ErrorKind::HeadMoved, e))
                    }
                    BranchError::InTheWay(reason) | BranchError::Unsupported(reason) => {
                        Ok(MergeOutcome::Blocked { reason })
                    }
                    e => Err(failed(e)),
                };
            }
        };
        let rows = [&from, &switch.to].map(|snapshot| {
            capture::row_of(locked, snapshot, Some(&self.session_id), Some(&self.run_id))
        });
        capture::keep(&self.parts, rows.into())?;
        self.restored(op, locked, &backend, from, (switch.to, switch.paths))
    }

    /// A reason without the places of the checkout and of its repository: it names paths in them.
    fn without_places(&self, reason: &str) -> String {
        let places = [self.opened.workspace.disk_path(), &self.repository];
        let mut reason = reason.to_owned();
        for place in places {
            reason = reason.replace(&format!("{}/", printable(place)), "");
        }
        reason
    }

    fn restored(
        self,
        op: &Operation,
        locked: &mut LockedWorkspace,
        backend: &Arc<dyn Backend>,
        from: Snapshot,
        (to, paths): (Snapshot, Vec<RelPath>),
    ) -> Result<MergeOutcome, Error> {
        let restoring = Restoring {
            session_id: self.session_id.clone(),
            hold: None,
            to: to.id.clone(),
            purpose: RestorePurpose::Merge,
            repository: true,
        };
        let goal = RestoreGoal::Undo {
            before: to.clone(),
            after: from.clone(),
            paths: Some(paths),
        };
        let mut guard =
            self.opened
                .snapshot_options(&self.parts, Label::GUARD, &self.session_id, None);
        guard.id = from.id.clone();
        let options = RestoreOptions::new(guard).repository(RepositoryRestore::Switch {
            to,
            from,
            reached: vec![self.merged.previous_head.clone()],
            merges: true,
        });
        let restored = restore::restore(
            op,
            &self.parts,
            locked,
            &**backend,
            &goal,
            &options,
            &restoring,
        );
        let restored = match restored {
            Ok(restored) => restored,
            Err(e) if e.touched() => return Err(e),
            Err(e) => {
                return match e.kind() {
                    // Somebody was at work in that moment, and it is looked at again.
                    ErrorKind::Conflict => Err(Error::new(ErrorKind::HeadMoved, e)),
                    // Such as a lock of git's that stays.
                    ErrorKind::Busy | ErrorKind::Unsupported => Ok(MergeOutcome::Blocked {
                        reason: self.without_places(&e.chain().to_string()),
                    }),
                    _ => Err(e),
                };
            }
        };
        if let Some(problem) = restored.repository_error {
            let branches = backend.branches().expect("it has moved one");
            let tip = branches.tip(locked, &self.branch).map_err(failed)?;
            if tip.as_ref() != Some(&self.merged.new_head) {
                return Err(Error::new(problem.kind, problem.message).touched_if(true));
            }
            tracing::warn!(run = %self.run_id, problem = %problem.message, "merged, but not all came");
        }
        let kept = restored.skipped.into_iter().map(|skipped| skipped.path);
        Ok(MergeOutcome::Merged(MergedRun {
            kept: kept.collect(),
            ..self.merged
        }))
    }
}
