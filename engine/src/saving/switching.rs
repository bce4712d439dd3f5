//! From where the branch of a task goes to a workspace that is there: a restore, and what is told
//! of it.

use jiff::Timestamp;
use stillframe_backends::{
    BranchError, Label, LockedWorkspace, Operation, RelPath, RepositoryRestore, RestoreGoal,
    RestoreOptions, Signature, Snapshot, SnapshotOptions, Switch, SwitchRequest,
};

use crate::branches::resume::Answer;
use crate::error::Error;
use crate::records::restore_document::{RestoreDocument, RestorePurpose, restored_document};
use crate::records::resumed_work::{ResumedWork, way_back};
use crate::saving::others;
use crate::saving::resume::{Goal, Going, Lacking, Whose, failed};
use crate::workspace::capture;
use crate::workspace::restore::{self, Restoring};

impl Going {
    /// Captures what is there, with the tip of the branch and with all content, as it is the guard
    /// of the restore that follows. It is in the store, and in no log.
    pub(super) fn capture(
        &self,
        op: &Operation,
        locked: &LockedWorkspace,
    ) -> Result<Snapshot, Error> {
        let Whose {
            session_id, hold, ..
        } = &self.whose;
        let run_id = hold.as_ref().map(|hold| &hold.run_id);
        let opened = &self.target.opened;
        let options = opened
            .snapshot_options(&self.parts, Label::RESUME, session_id, run_id)
            .retain_content(true)
            .branches(vec![self.branch()]);
        Ok(capture::take(op, locked, &*self.target.backend, &options)?)
    }

    /// Moves HEAD, branch, index and files.
    pub(super) fn carry_out(
        &self,
        op: &Operation,
        locked: &mut LockedWorkspace,
        goal: &Goal,
    ) -> Result<Result<ResumedWork, Lacking>, Error> {
        let branches = self.branches()?;
        let from = self.capture(op, locked)?;
        let mut request = SwitchRequest::new(self.branch(), goal.to.clone(), self.parts.now())
            .owner(self.guard().owner);
        request.from.clone_from(&goal.from);
        request.saved = self.saved_here(op, goal, &from);
        request.refuse_changes =
            others::whose(&self.parts, from.metadata.branch.as_deref(), &self.task)?;
        let switch = match branches.prepare_switch(op, locked, &from.id, &request) {
            Ok(switch) => switch,
            Err(e) => {
                self.forget(locked, &from);
                let commit = match &e {
                    BranchError::Incomplete { commit, .. } => commit.parse().ok(),
                    _ => None,
                };
                let error = failed(e);
                return Ok(Err(Lacking { commit, error }));
            }
        };
        let (kept, submodules) = (switch.kept.clone(), switch.submodules.clone());
        let restored = match (switch.is_there, self.whose.only_looks) {
            (true, _) => {
                self.forget(locked, &from);
                None
            }
            (false, true) => {
                self.forget(locked, &switch.to);
                self.forget(locked, &from);
                None
            }
            (false, false) => Some(self.moved(op, locked, goal, &from, switch)?),
        };
        let made = goal.to.as_ref();
        let made = made.map(|commit| branches.made_by(op, locked, commit));
        let made = made.transpose().map_err(failed)?;
        Ok(Ok(self.told(
            goal,
            &from,
            made,
            restored,
            [kept, submodules],
        )))
    }

    /// What was saved from here, unless the branch has it here and HEAD is elsewhere: then what is
    /// in the workspace goes on from HEAD, and not from that.
    fn saved_here(&self, op: &Operation, goal: &Goal, from: &Snapshot) -> Option<String> {
        let is_on_it = from.metadata.branch.as_deref() == Some(&*self.task.branch);
        let is_on_branch = |saved: &String| {
            let tip = goal.from.as_ref();
            tip.is_some_and(|tip| self.reaches(op, tip, saved) == Answer::Yes)
        };
        let saved = goal.saved.as_ref();
        saved
            .filter(|saved| is_on_it || !is_on_branch(saved))
            .cloned()
    }

    /// How a guard is taken.
    fn guard(&self) -> SnapshotOptions {
        let Whose {
            session_id, hold, ..
        } = &self.whose;
        let run_id = hold.as_ref().map(|hold| &hold.run_id);
        let opened = &self.target.opened;
        opened.snapshot_options(&self.parts, Label::GUARD, session_id, run_id)
    }

    /// Lets go of what was captured for nothing.
    pub(super) fn forget(&self, locked: &mut LockedWorkspace, captured: &Snapshot) {
        let op = &Operation::unbounded();
        capture::let_go_of(op, &self.parts, locked, &*self.target.backend, captured);
    }

    /// Restores the state that the branch makes of what is here.
    fn moved(
        &self,
        op: &Operation,
        locked: &mut LockedWorkspace,
        goal: &Goal,
        from: &Snapshot,
        switch: Switch,
    ) -> Result<RestoreDocument, Error> {
        let Whose {
            session_id, hold, ..
        } = &self.whose;
        let run_id = hold.as_ref().map(|hold| &hold.run_id);
        let rows = [from, &switch.to].map(|s| capture::row_of(locked, s, Some(session_id), run_id));
        capture::keep(&self.parts, rows.into())?;
        let restoring = Restoring {
            session_id: session_id.clone(),
            hold: hold.clone(),
            to: switch.to.id.clone(),
            purpose: RestorePurpose::Resume,
            repository: true,
        };
        let restore = RestoreGoal::Undo {
            before: switch.to.clone(),
            after: from.clone(),
            paths: Some(switch.paths),
        };
        let reached = self.reached(op, goal, from.metadata.head_ref.as_deref());
        let mut guard = self.guard();
        if leads_back(goal, from, &reached) {
            guard.id = from.id.clone();
        }
        let options = RestoreOptions::new(guard).repository(RepositoryRestore::Switch {
            to: switch.to,
            from: from.clone(),
            reached,
            merges: false,
        });
        let (parts, backend) = (&self.parts, &*self.target.backend);
        let restored =
            restore::restore(op, parts, locked, backend, &restore, &options, &restoring)?;
        Ok(restored_document(&restored))
    }

    /// What a host is told.
    fn told(
        &self,
        goal: &Goal,
        from: &Snapshot,
        made: Option<(Signature, Timestamp)>,
        restore: Option<RestoreDocument>,
        [kept, submodules]: [Vec<RelPath>; 2],
    ) -> ResumedWork {
        let (author, made_at) = made.map_or((None, None), |(author, at)| {
            let author = format!("{} <{}>", author.name, author.email);
            (Some(author), Some(at))
        });
        if !self.whose.only_looks {
            tracing::info!(
                branch = %self.task.branch,
                commit = goal.to.as_deref().unwrap_or_default(),
                author = author.as_deref().unwrap_or_default(),
                "the work of a task goes on"
            );
        }
        let before = &from.metadata;
        let (branch_before, commit_before) = (before.branch.clone(), before.head_ref.clone());
        let named = (branch_before.as_deref(), commit_before.as_deref());
        let names = &self.target.names;
        ResumedWork {
            task: self.task.task.clone(),
            namespace: names.namespace.as_ref().map(ToString::to_string),
            remote: self.target.address.as_ref().map(|a| a.address.to_string()),
            state: goal.state,
            commit: goal.to.clone(),
            author,
            made_at,
            way_back: way_back(&self.task.branch, named),
            branch: self.task.branch.clone(),
            branch_before,
            commit_before,
            restore,
            kept,
            submodules,
        }
    }

    /// The commits that HEAD and the branch leave and the new tip reaches.
    fn reached(&self, op: &Operation, goal: &Goal, head: Option<&str>) -> Vec<String> {
        let Some(to) = &goal.to else {
            return Vec::new();
        };
        let left = goal.from.as_deref().into_iter().chain(head);
        let left = left.filter(|commit| self.reaches(op, to, commit) == Answer::Yes);
        left.map(str::to_owned).collect()
    }
}

/// Whether nothing else is needed to go back than what was captured: no commit is left that nothing
/// names, which a guard would have to have a safety ref of.
fn leads_back(goal: &Goal, from: &Snapshot, reached: &[String]) -> bool {
    let head = from.metadata.head_ref.as_ref();
    let detached = head.filter(|_| from.metadata.branch.is_none());
    let mut left = goal.from.iter().chain(detached);
    left.all(|commit| reached.contains(commit))
}
