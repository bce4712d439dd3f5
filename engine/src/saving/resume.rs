//! Bringing a workspace to the branch of its task, from what the remote says to the record.

use std::collections::BTreeSet;

use stillframe_backends::{
    Backend, BranchError, Branches, ErrorKind, Label, LockedWorkspace, Operation, Reaches,
    RepositoryRestore, RestoreGoal, RestoreOptions, Snapshot, SwitchRequest, Trailer,
};
use stillframe_remote::ObjectId;
use stillframe_remote::advertised::Advertised;
use stillframe_remote::failure_kind::FailureKind;
use stillframe_remote::remote::FetchError;

use crate::actors::Parts;
use crate::actors::core::Core;
use crate::branches::resume::{Answer, Owner, Remote, Resume, Seen, Tip, resume};
use crate::error::{Error, chain};
use crate::id::SessionId;
use crate::records::checkpoint::{CheckpointStatus, base_of_next};
use crate::records::restore_document::{RestorePurpose, restored_document};
use crate::records::resumed_work::{ResumeState, ResumedWork, way_back};
use crate::records::work_task::WorkTaskRow;
use crate::saving::lock::TaskLock;
use crate::saving::making;
use crate::saving::save::{Asking, Prepared, asking};
use crate::saving::sending::NotSent;
use crate::saving::target::Target;
use crate::state::hold::Hold;
use crate::workspace::cancellation::Cancellation;
use crate::workspace::restore::{self, Restoring};
use crate::workspace::{capture, turn};

/// The label of what was there before a workspace came to a branch.
const RESUME: &str = "resume";

/// The trailers by which a commit is known to be a task's.
const OF_TASK: &str = "Task";
const OF_RUN: &str = "Run-Id";

/// Where the names of work branches begin, on a remote.
const OURS: &str = "refs/heads/stillframe/";

/// So many checkpoints of a workspace are looked for on a branch, the newest ones.
const LOOKED_AT: usize = 32;

/// How often a branch is looked at that somebody moves meanwhile.
const LOOKS: usize = 3;

/// Who resumes.
#[derive(Clone)]
pub(crate) struct Whose {
    pub(crate) session_id: SessionId,
    /// The run that it is for. Nothing is touched if that was taken over.
    pub(crate) hold: Option<Hold>,
}

impl Prepared {
    /// Brings the workspace to the branch of the task: HEAD names it, and it is at what the remote
    /// and the repository have of it, with files and index. Local changes beside what comes stay.
    ///
    /// # Errors
    ///
    /// Nothing was moved. `Unavailable`: the remote cannot be asked. `Conflict`: here and there are
    /// commits that the other has not, the branch is another task's, or something is in the way.
    /// `NotFound`: what was saved from here is not on the branch.
    pub(crate) async fn resume(
        &self,
        core: &Core,
        whose: Whose,
        cancel: &Cancellation,
    ) -> Result<ResumedWork, Error> {
        let parts = &core.parts;
        let lock_timeout = parts.settings.lock_timeout;
        let lock = TaskLock::acquire(
            &parts.state_dir,
            &self.task.id,
            lock_timeout,
            &parts.blocking,
        );
        let what = "waiting to resume the work of the task";
        let _lock = cancel.wait_for(lock, what).await?;
        let workspace = self.target.opened.workspace.clone();
        let going = Going {
            parts: parts.clone(),
            target: self.target.clone(),
            task: self.task.clone(),
            start_point: self.branch.start_point.clone(),
            whose,
        };
        if !going.has_store() {
            let (op, going) = (cancel.operation(), going.clone());
            let capturing =
                move |locked: &mut LockedWorkspace| going.capture(&op, locked).map(drop);
            let what = "a capture before a resume";
            turn::cancellable(core, &workspace, what, lock_timeout, cancel, capturing).await?;
        }
        let asking = match asking(&self.target, &self.branch, cancel).await.transpose() {
            Ok(asking) => asking,
            Err(not_sent) => return Err(unreachable(&not_sent)),
        };
        let (op, looking) = (cancel.operation(), going.clone());
        // The workspace is free meanwhile: a remote may take long to answer.
        let look = move || looking.look(&op, asking.as_ref()).map(|to| (to, asking));
        let (to, asking) = parts.blocking.run_beside(look).await??;
        let mut has_fetched_all = false;
        loop {
            let (op, going, to) = (cancel.operation(), going.clone(), to.clone());
            let carrying = move |locked: &mut LockedWorkspace| going.carry_out(&op, locked, &to);
            let what = "a resume";
            let carried =
                turn::cancellable(core, &workspace, what, lock_timeout, cancel, carrying).await?;
            let error = match carried {
                Ok(resumed) => return Ok(resumed),
                Err(error) => error,
            };
            // The user's clone is shallow or partial, and the remote has the rest.
            let Some((asking, commit)) = asking
                .clone()
                .zip(error.commit)
                .filter(|_| !has_fetched_all)
            else {
                return Err(error.error);
            };
            has_fetched_all = true;
            let op = cancel.operation();
            let fetch = move || asking.whole().remote().fetch(commit, &[], &op);
            let fetched = parts.blocking.run_beside(fetch).await?;
            fetched.map_err(|e| unreachable(&NotSent::new(e.failure(), chain(&e))))?;
        }
    }
}

/// That nothing was moved, because the remote cannot be asked.
fn unreachable(not_sent: &NotSent) -> Error {
    let message = format!("{}; nothing was moved", not_sent.why);
    Error::new(ErrorKind::Unavailable, message)
}

/// What lacks of a branch's content.
struct Lacking {
    /// Of what; `None`: something else is wrong.
    commit: Option<ObjectId>,
    error: Error,
}

/// Where the branch goes.
#[derive(Clone)]
struct Goal {
    state: ResumeState,
    /// Where the branch is here.
    from: Option<String>,
    to: Option<String>,
    /// What was saved from here, if that is on the branch.
    saved: Option<String>,
}

/// A resume on its way. What it does blocks.
#[derive(Clone)]
struct Going {
    parts: Parts,
    target: Target,
    task: WorkTaskRow,
    start_point: Option<String>,
    whose: Whose,
}

impl Going {
    /// The full name of the branch. It was computed once.
    fn branch(&self) -> String {
        format!("refs/heads/{}", self.task.branch)
    }

    fn branches(&self) -> Result<&dyn Branches, Error> {
        self.target.backend.branches().ok_or_else(|| {
            let message = "this workspace cannot be brought to a branch; nothing was moved";
            Error::new(ErrorKind::Unsupported, message)
        })
    }

    /// Whether something of the workspace was captured before: git works in the store.
    fn has_store(&self) -> bool {
        let checkpoints = self.target.checkpoints();
        let store = checkpoints.sending_repository(&self.target.opened.workspace);
        store.is_dir()
    }

    /// Captures what is there, with the tip of the branch.
    fn capture(&self, op: &Operation, locked: &LockedWorkspace) -> Result<Snapshot, Error> {
        let session_id = &self.whose.session_id;
        let run_id = self.whose.hold.as_ref().map(|hold| &hold.run_id);
        let opened = &self.target.opened;
        let options = opened
            .snapshot_options(&self.parts, Label::new(RESUME), session_id, run_id)
            .branches(vec![self.branch()]);
        let whose = capture::Whose {
            session_id,
            run_id,
            fence: None,
        };
        capture::capture(
            op,
            &self.parts,
            locked,
            &*self.target.backend,
            &options,
            whose,
        )
    }

    /// Finds out where the branch goes on.
    fn look(&self, op: &Operation, asking: Option<&Asking>) -> Result<Goal, Error> {
        let branches = self.branches()?;
        let workspace = &self.target.opened.workspace;
        let local = branches.tip(workspace, &self.branch()).map_err(failed)?;
        let mut looks = 0;
        let (remote, refs, why) = loop {
            looks += 1;
            let refs = match asking.map(|asking| asking.refs(op)).transpose() {
                Ok(refs) => refs.flatten().unwrap_or_default(),
                Err(not_sent) => break (None, Advertised::default(), Some(not_sent.why)),
            };
            let tip = refs.branch(&self.target.names.branch);
            let (Some(tip), Some(asking)) = (tip, asking) else {
                break (tip, refs, None);
            };
            match self.bring(op, asking, tip, local.as_deref()) {
                Ok(()) => break (Some(tip), refs, None),
                // It has moved since.
                Err(FetchError::Gone { .. }) if looks < LOOKS => {}
                Err(e) => break (None, Advertised::default(), Some(chain(&e))),
            }
        };
        let seen = self.seen(op, (local.clone(), remote), &refs, why.is_some())?;
        let decided = resume(&seen);
        let expected = match &decided {
            Resume::CheckpointMissing { expected } => Some(expected),
            _ => None,
        };
        let is_in_store =
            expected.is_some_and(|id| branches.has(op, workspace, id).unwrap_or(false));
        if let Some((kind, message)) = decided.refusal(&self.task.branch, is_in_store) {
            let message = match why {
                Some(why) => format!("{message}: {why}"),
                None => message,
            };
            return Err(Error::new(kind, message));
        }
        let (state, to) = match decided {
            Resume::Resumed { at, .. } => (ResumeState::Resumed, Some(at)),
            Resume::FastForward { to } => (ResumeState::FastForwarded, Some(to)),
            _ => (ResumeState::Fresh, self.start(op)?),
        };
        let saved = match (&to, state) {
            (Some(to), ResumeState::Resumed | ResumeState::FastForwarded) => self.saved(op, to)?,
            _ => None,
        };
        Ok(Goal {
            state,
            from: local,
            to,
            saved,
        })
    }

    /// The newest checkpoint of this workspace that the branch has, whether anybody has heard of that or
    /// not: who made it may have died.
    fn saved(&self, op: &Operation, to: &str) -> Result<Option<String>, Error> {
        let workspace = &self.target.opened.workspace;
        let task = self.task.full_name();
        let kept = self
            .target
            .checkpoints()
            .kept_checkpoints(op, workspace, &task);
        let mut kept = kept.map_err(|e| Error::new(e.kind(), e))?;
        kept.sort_by_key(|kept| std::cmp::Reverse(kept.number));
        let mut newest = kept.into_iter().take(LOOKED_AT).map(|kept| kept.commit);
        Ok(newest.find(|commit| self.reaches(op, to, commit) == Answer::Yes))
    }

    /// Where a branch begins that is nowhere; `None`: the repository has no commit yet.
    fn start(&self, op: &Operation) -> Result<Option<String>, Error> {
        let workspace = &self.target.opened.workspace;
        let named = |name: &str| {
            self.branches()?
                .commit_named(op, workspace, name)
                .map_err(failed)
        };
        match &self.start_point {
            Some(name) => named(name).map(Some),
            None => match named("HEAD") {
                Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
                commit => commit.map(Some),
            },
        }
    }

    /// Has the store have what the remote's branch is at, unless it or the repository has.
    fn bring(
        &self,
        op: &Operation,
        asking: &Asking,
        tip: ObjectId,
        local: Option<&str>,
    ) -> Result<(), FetchError> {
        let workspace = &self.target.opened.workspace;
        let Ok(branches) = self.branches() else {
            return Ok(());
        };
        if branches
            .has(op, workspace, &tip.to_string())
            .unwrap_or(false)
        {
            return Ok(());
        }
        // What the user's clone has need not come again.
        let head = branches.commit_named(op, workspace, "HEAD").ok();
        let known = head.iter().map(String::as_str).chain(local);
        let known: BTreeSet<ObjectId> = known.filter_map(|id| id.parse().ok()).collect();
        let known: Vec<ObjectId> = known.into_iter().collect();
        let directories = branches.object_directories(workspace).unwrap_or_default();
        let beside = asking.clone().with_objects_of(directories);
        match beside.remote().fetch(tip, &known, op) {
            Err(e @ FetchError::Gone { .. }) => Err(e),
            // What is known here may be a part of its history.
            Err(e) if !known.is_empty() && e.failure() != FailureKind::NetworkBlip => {
                asking.clone().whole().remote().fetch(tip, &[], op)
            }
            fetched => fetched,
        }
    }

    /// What the decision rests on.
    fn seen(
        &self,
        op: &Operation,
        (local, remote): (Option<String>, Option<ObjectId>),
        refs: &Advertised,
        is_unreachable: bool,
    ) -> Result<Seen, Error> {
        let remote = remote.map(|id| id.to_string());
        let known = making::of_name(&self.parts, &self.task)?;
        let workspace = &self.target.opened.workspace;
        let proven = known
            .iter()
            .filter(|row| row.status == CheckpointStatus::Proven);
        let recorded = base_of_next(proven, workspace.id()).map(|row| row.commit.clone());
        // Another task's work may be in what all go on from.
        let beyond: Vec<String> = refs.outside_of(OURS).map(|id| id.to_string()).collect();
        let tip = |commit: &String| Tip {
            has_recorded: recorded
                .as_ref()
                .map_or(Answer::No, |recorded| self.reaches(op, commit, recorded)),
            owner: self.owner(op, commit, &beyond),
            commit: commit.clone(),
        };
        let both = local.as_ref().zip(remote.as_ref());
        let answer = |of: &dyn Fn(&str, &str) -> Answer| match both {
            Some((local, remote)) => of(local, remote),
            None => Answer::No,
        };
        Ok(Seen {
            task: self.task.full_name(),
            remote: match (&remote, is_unreachable) {
                (_, true) => Remote::Unreachable,
                (Some(commit), false) => Remote::At(tip(commit)),
                (None, false) => Remote::Absent,
            },
            local_has_remote: answer(&|local, remote| self.reaches(op, local, remote)),
            remote_has_local: answer(&|local, remote| self.reaches(op, remote, local)),
            same_base: answer(&|local, remote| {
                let branches = self.branches().ok();
                let base = branches.map(|b| b.have_one_base(op, workspace, local, remote));
                answered(base.and_then(Result::ok))
            }),
            local: local.as_ref().map(tip),
            recorded,
        })
    }

    fn reaches(&self, op: &Operation, commit: &str, ancestor: &str) -> Answer {
        let workspace = &self.target.opened.workspace;
        let reaches = self
            .target
            .checkpoints()
            .reaches(op, workspace, commit, ancestor);
        answered(reaches.ok())
    }

    /// Whose work the newest commit of ours is, of those that are no others' history.
    fn owner(&self, op: &Operation, commit: &str, beyond: &[String]) -> Owner {
        let workspace = &self.target.opened.workspace;
        let Ok(branches) = self.branches() else {
            return Owner::Unanswered;
        };
        let trailers = (OF_TASK, OF_RUN);
        match branches.newest_trailer(op, workspace, commit, beyond, trailers) {
            Ok(Trailer::Nowhere) => Owner::Nobody,
            Ok(Trailer::Value(task)) => Owner::Task(task),
            Ok(Trailer::Unknown) | Err(_) => Owner::Unanswered,
        }
    }

    /// Moves HEAD, branch, index and files.
    fn carry_out(
        &self,
        op: &Operation,
        locked: &mut LockedWorkspace,
        goal: &Goal,
    ) -> Result<Result<ResumedWork, Lacking>, Error> {
        let branches = self.branches()?;
        let from = self.capture(op, locked)?;
        let (session_id, hold) = (&self.whose.session_id, &self.whose.hold);
        let run_id = hold.as_ref().map(|hold| &hold.run_id);
        let opened = &self.target.opened;
        let guard = opened.snapshot_options(&self.parts, Label::GUARD, session_id, run_id);
        let mut request = SwitchRequest::new(self.branch(), goal.to.clone(), self.parts.now())
            .owner(guard.owner.clone());
        request.from.clone_from(&goal.from);
        request.saved.clone_from(&goal.saved);
        let switch = match branches.prepare_switch(op, locked, &from.id, &request) {
            Ok(switch) => switch,
            Err(e) => {
                let commit = match &e {
                    BranchError::Incomplete { commit, .. } => commit.parse().ok(),
                    _ => None,
                };
                let error = failed(e);
                return Ok(Err(Lacking { commit, error }));
            }
        };
        let head = (from.metadata.branch.clone(), from.metadata.head_ref.clone());
        let mut outcome = None;
        if !switch.is_there {
            let row = capture::row_of(locked, &switch.to, Some(session_id), run_id);
            capture::keep(&self.parts, vec![row])?;
            let reached = self.reached(op, goal, head.1.as_deref());
            let to = switch.to.id.clone();
            let restoring = Restoring {
                session_id: session_id.clone(),
                hold: hold.clone(),
                to,
                purpose: RestorePurpose::Resume,
                repository: true,
            };
            let restore = RestoreGoal::Undo {
                before: switch.to.clone(),
                after: from.clone(),
                paths: Some(switch.paths),
            };
            let options = RestoreOptions::new(guard).repository(RepositoryRestore::Switch {
                to: switch.to,
                from,
                reached,
            });
            let backend: &dyn Backend = &*self.target.backend;
            let restored = restore::restore(
                op,
                &self.parts,
                locked,
                backend,
                &restore,
                &options,
                &restoring,
            )?;
            outcome = Some(restored_document(&restored));
        }
        let made = goal
            .to
            .as_ref()
            .map(|commit| branches.made_by(op, locked, commit));
        let made = made.transpose().map_err(failed)?;
        let namespace = self
            .target
            .names
            .namespace
            .as_ref()
            .map(ToString::to_string);
        let (author, made_at) = made.map_or((None, None), |(author, at)| {
            let author = format!("{} <{}>", author.name, author.email);
            (Some(author), Some(at))
        });
        tracing::info!(
            branch = %self.task.branch,
            commit = goal.to.as_deref().unwrap_or_default(),
            author = author.as_deref().unwrap_or_default(),
            "the work of a task goes on"
        );
        Ok(Ok(ResumedWork {
            task: self.task.task.clone(),
            namespace,
            remote: self.target.address.as_ref().map(|a| a.address.to_string()),
            state: goal.state,
            commit: goal.to.clone(),
            author,
            made_at,
            way_back: way_back(&self.task.branch, (head.0.as_deref(), head.1.as_deref())),
            branch: self.task.branch.clone(),
            branch_before: head.0,
            commit_before: head.1,
            restore: outcome,
            submodules: switch.submodules,
        }))
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

/// What git says; what it cannot is never "no".
fn answered(reaches: Option<Reaches>) -> Answer {
    match reaches {
        Some(Reaches::Yes) => Answer::Yes,
        Some(Reaches::No) => Answer::No,
        Some(Reaches::Unknown) | None => Answer::Unanswered,
    }
}

fn failed(error: BranchError) -> Error {
    Error::new(error.kind(), error)
}
