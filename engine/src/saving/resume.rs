//! Bringing a workspace to the branch of its task, from what the remote says to the record.

use std::collections::BTreeSet;

use stillframe_backends::{
    BranchError, Branches, ErrorKind, LockedWorkspace, Operation, Reaches, Trailer,
};
use stillframe_remote::ObjectId;
use stillframe_remote::advertised::Advertised;
use stillframe_remote::failure_kind::FailureKind;
use stillframe_remote::remote::FetchError;

use crate::actors::Parts;
use crate::actors::core::Core;
use crate::branches::resume::{
    Answer, Expected, Owner, Remote, Resume, Seen, Tip, compare, resume,
};
use crate::error::{Error, chain};
use crate::id::SessionId;
use crate::records::checkpoint::{CheckpointKind, CheckpointRow, CheckpointStatus, base_of_next};
use crate::records::resumed_work::{ResumeState, ResumedWork};
use crate::records::work_task::WorkTaskRow;
use crate::saving::asking::{Asking, asking};
use crate::saving::lock::TaskLock;
use crate::saving::making;
use crate::saving::save::Prepared;
use crate::saving::sending::NotSent;
use crate::saving::target::Target;
use crate::state::hold::Hold;
use crate::workspace::cancellation::Cancellation;
use crate::workspace::turn;

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
    /// Whether nothing is moved: only whether it could be is to be known.
    pub(crate) only_looks: bool,
}

impl Prepared {
    /// Brings the workspace to the branch of the task: HEAD names it, and it is at what the remote
    /// and the repository have of it, with files and index. Local changes beside what comes stay.
    ///
    /// # Errors
    ///
    /// Nothing was moved. `Unavailable`: the remote cannot be asked. `Conflict`: here and there are
    /// commits that the other has not, the branch is another task's or at another commit than is
    /// expected, or something is in the way.
    /// `NotFound`: what was saved from here is not on the branch.
    pub(crate) async fn resume(
        &self,
        core: &Core,
        whose: Whose,
        cancel: &Cancellation,
    ) -> Result<ResumedWork, Error> {
        let resumed = self.resume_as_seen(core, whose, cancel, None);
        Ok(Box::pin(resumed).await?.0)
    }

    /// The same, with where the branch goes on as it was `seen` before: then nobody is asked for
    /// that.
    pub(crate) async fn resume_as_seen(
        &self,
        core: &Core,
        whose: Whose,
        cancel: &Cancellation,
        seen: Option<SeenBranch>,
    ) -> Result<(ResumedWork, SeenBranch), Error> {
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
            expected: self.branch.expected.clone(),
            whose,
        };
        if !going.has_store() {
            let (op, going) = (cancel.operation(), going.clone());
            let capturing = move |locked: &mut LockedWorkspace| {
                let captured = going.capture(&op, locked)?;
                going.forget(locked, &captured);
                Ok(())
            };
            let what = "a capture before a resume";
            turn::cancellable(core, &workspace, what, lock_timeout, cancel, capturing).await?;
        }
        let seen = match seen {
            Some(seen) => seen,
            None => {
                let asking = asking(&self.target, &self.branch, None, cancel).await;
                let asking = asking.transpose().map_err(|e| unreachable(&e))?;
                let (op, looking) = (cancel.operation(), going.clone());
                // The workspace is free meanwhile: a remote may take long to answer.
                let look = move || {
                    let to = looking.look(&op, asking.as_ref())?;
                    Ok::<_, Error>(SeenBranch { to, asking })
                };
                parts.blocking.run_beside(look).await??
            }
        };
        let SeenBranch { to, asking } = &seen;
        let mut has_fetched_all = false;
        loop {
            let (op, going, to) = (cancel.operation(), going.clone(), to.clone());
            let carrying = move |locked: &mut LockedWorkspace| going.carry_out(&op, locked, &to);
            let what = "a resume";
            let carried =
                turn::cancellable(core, &workspace, what, lock_timeout, cancel, carrying).await?;
            let error = match carried {
                Ok(resumed) => return Ok((resumed, seen)),
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

impl Prepared {
    /// Brings the workspace to `commit`, which the store has, on a branch of this name: what was
    /// saved beside the task's branch. Nobody is asked anything.
    ///
    /// # Errors
    ///
    /// Nothing was moved. `Conflict`: the branch here has commits that `commit` does not go on
    /// from, or something is in the way. `NotFound`: the store does not have the commit.
    pub(crate) async fn go_to(
        &self,
        core: &Core,
        whose: Whose,
        cancel: &Cancellation,
        (branch, commit): (&str, &str),
    ) -> Result<ResumedWork, Error> {
        let lock_timeout = core.parts.settings.lock_timeout;
        let workspace = self.target.opened.workspace.clone();
        let going = Going {
            parts: core.parts.clone(),
            target: self.target.clone(),
            task: WorkTaskRow {
                branch: branch.to_owned(),
                ..self.task.clone()
            },
            start_point: None,
            expected: self.branch.expected.clone(),
            whose,
        };
        let (op, commit) = (cancel.operation(), commit.to_owned());
        let carrying = move |locked: &mut LockedWorkspace| {
            let goal = going.beside(&op, &commit)?;
            match going.carry_out(&op, locked, &goal)? {
                Ok(resumed) => Ok(resumed),
                Err(lacking) => Err(lacking.error),
            }
        };
        let what = "a resume";
        turn::cancellable(core, &workspace, what, lock_timeout, cancel, carrying).await
    }
}

/// That nothing was moved, because the remote cannot be asked.
fn unreachable(not_sent: &NotSent) -> Error {
    let message = format!("{}; nothing was moved", not_sent.why);
    Error::new(ErrorKind::Unavailable, message)
}

/// What lacks of a branch's content.
pub(super) struct Lacking {
    /// Of what; `None`: something else is wrong.
    pub(super) commit: Option<ObjectId>,
    pub(super) error: Error,
}

/// Where the branch goes.
#[derive(Clone)]
pub(super) struct Goal {
    pub(super) state: ResumeState,
    /// Where the branch is here.
    pub(super) from: Option<String>,
    pub(super) to: Option<String>,
    /// What was saved from here, if that is on the branch.
    pub(super) saved: Option<String>,
}

/// Where a branch was seen to go on, and who was asked.
pub(crate) struct SeenBranch {
    to: Goal,
    asking: Option<Asking>,
}

/// What a look at the branch has found.
struct Looked {
    decided: Resume,
    refs: Advertised,
    /// Where the branch is here.
    local: Option<String>,
    /// Why the remote could not be asked.
    why: Option<String>,
}

/// A resume on its way. What it does blocks.
#[derive(Clone)]
pub(super) struct Going {
    pub(super) parts: Parts,
    pub(super) target: Target,
    pub(super) task: WorkTaskRow,
    start_point: Option<String>,
    /// The commit that it is expected to go on from.
    expected: Option<String>,
    pub(super) whose: Whose,
}

impl Going {
    /// The full name of the branch. It was computed once.
    pub(super) fn branch(&self) -> String {
        format!("refs/heads/{}", self.task.branch)
    }

    pub(super) fn branches(&self) -> Result<&dyn Branches, Error> {
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

    /// How the workspace comes to `commit`, which was saved on this branch.
    fn beside(&self, op: &Operation, commit: &str) -> Result<Goal, Error> {
        let branches = self.branches()?;
        let workspace = &self.target.opened.workspace;
        if !branches.has(op, workspace, commit).map_err(failed)? {
            return Err(Error::not_found(format!(
                "{commit} is neither in the store nor in the repository; nothing was moved"
            )));
        }
        let from = branches.tip(workspace, &self.branch()).map_err(failed)?;
        let to = match &from {
            Some(tip) if self.reaches(op, tip, commit) == Answer::Yes => tip.clone(),
            Some(tip) if self.reaches(op, commit, tip) != Answer::Yes => {
                return Err(Error::new(
                    ErrorKind::Conflict,
                    format!(
                        "{} is at {tip} here, which {commit} does not go on from; nothing was moved",
                        self.task.branch
                    ),
                ));
            }
            _ => commit.to_owned(),
        };
        self.refuse_another(Some(&to))?;
        Ok(Goal {
            state: ResumeState::Resumed,
            from,
            to: Some(to),
            saved: Some(commit.to_owned()),
        })
    }

    /// Finds out where the branch goes on, from what is expected if anything is.
    fn look(&self, op: &Operation, asking: Option<&Asking>) -> Result<Goal, Error> {
        let mut looked = self.looked(op, asking)?;
        if asking.is_some() && looked.decided.may_lag(self.expected.as_deref()) {
            looked = self.looked(op, asking)?;
        }
        let Looked {
            decided,
            refs,
            local,
            why,
        } = looked;
        self.refused(op, &decided, why)?;
        self.refuse_another(decided.at())?;
        let (state, to) = match decided {
            Resume::Resumed { at, .. } => (ResumeState::Resumed, Some(at)),
            Resume::FastForward { to } => (ResumeState::FastForwarded, Some(to)),
            _ => (ResumeState::Fresh, self.start(op, &refs)?),
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

    /// Refuses to go on from another commit than what is expected, after it was looked for twice.
    fn refuse_another(&self, found: Option<&str>) -> Result<(), Error> {
        let Some(expected) = &self.expected else {
            return Ok(());
        };
        if compare(expected, found, true) == Expected::Met {
            return Ok(());
        }
        let branch = &self.task.branch;
        let found = match found {
            Some(found) => format!("{branch} would go on from {found}"),
            None => format!("nobody has {branch}"),
        };
        Err(Error::new(
            ErrorKind::Conflict,
            format!("{found}, and {expected} was expected; nothing was moved"),
        ))
    }

    /// Looks once.
    fn looked(&self, op: &Operation, asking: Option<&Asking>) -> Result<Looked, Error> {
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
        let look = || self.seen(op, (local.clone(), remote), &refs, why.is_some());
        let mut decided = self.decided(op, &look()?);
        if let (Resume::Unanswered(_), Some(tip), Some(asking)) = (&decided, remote, asking)
            && asking.clone().whole().remote().fetch(tip, &[], op).is_ok()
        {
            // What is here of the branch was a part of its history.
            decided = self.decided(op, &look()?);
        }
        Ok(Looked {
            decided,
            refs,
            local,
            why,
        })
    }

    /// Where the branch goes on. What was made here and never sent counts as the branch here,
    /// unless the remote has gone another way since: then the next checkpoint has both.
    fn decided(&self, op: &Operation, seen: &Seen) -> Resume {
        let decided = resume(seen);
        let Some(unsent) = self.unsent(op, seen) else {
            return decided;
        };
        match resume(&unsent) {
            with_unsent @ Resume::Resumed { .. } => with_unsent,
            _ => decided,
        }
    }

    /// The same, with a checkpoint that was made here and not sent as the branch here, if it goes
    /// on from that.
    fn unsent(&self, op: &Operation, seen: &Seen) -> Option<Seen> {
        let known = making::of_name(&self.parts, &self.task).ok()?;
        let workspace = &self.target.opened.workspace;
        let last = base_of_next(&known, workspace.id())?;
        if last.status != CheckpointStatus::Made {
            return None;
        }
        let commit = &last.commit;
        if !self.branches().ok()?.has(op, workspace, commit).ok()? {
            return None;
        }
        let goes_on = |tip: &Tip| self.reaches(op, commit, &tip.commit) == Answer::Yes;
        if !seen.local.as_ref().is_none_or(goes_on) {
            return None;
        }
        let mut unsent = seen.clone();
        unsent.local = Some(Tip {
            commit: commit.clone(),
            has_recorded: match &seen.recorded {
                Some(recorded) => self.reaches(op, commit, recorded),
                None => Answer::No,
            },
            owner: Owner::Task(self.task.full_name()),
        });
        if let Remote::At(remote) = &seen.remote {
            unsent.local_has_remote = self.reaches(op, commit, &remote.commit);
            unsent.remote_has_local = self.reaches(op, &remote.commit, commit);
        }
        Some(unsent)
    }

    /// Refuses what is not resumed. `why`: the remote could not be asked.
    fn refused(&self, op: &Operation, decided: &Resume, why: Option<String>) -> Result<(), Error> {
        let workspace = &self.target.opened.workspace;
        let (mut is_in_store, mut beside) = (false, None);
        if let Resume::CheckpointMissing { expected } = decided {
            is_in_store = self
                .branches()?
                .has(op, workspace, expected)
                .unwrap_or(false);
            let known = making::of_name(&self.parts, &self.task)?;
            let row = known.into_iter().find(|row| row.commit == *expected);
            beside = row.and_then(|row| row.branch.filter(|branch| *branch != self.task.branch));
        }
        let Some((kind, message)) = decided.refusal(&self.task.branch, is_in_store) else {
            return Ok(());
        };
        let more = match (why, beside) {
            (Some(why), _) => format!(": {why}"),
            (None, Some(beside)) => format!(
                "; it is on {beside}: commit what is here, fetch and merge that and {} in git, and save what comes of it with \
                 a checkpoint",
                self.task.branch
            ),
            (None, None) if is_in_store => "; a checkpoint from here sends it again".to_owned(),
            (None, None) => String::new(),
        };
        Err(Error::new(kind, format!("{message}{more}")))
    }

    /// The newest checkpoint of this workspace that the branch has, whether anybody has heard of
    /// that or not: who made it may have died.
    fn saved(&self, op: &Operation, to: &str) -> Result<Option<String>, Error> {
        let workspace = &self.target.opened.workspace;
        let task = self.task.full_name();
        let kept = self
            .target
            .checkpoints()
            .kept_checkpoints(op, workspace, &task);
        let mut kept = kept.map_err(|e| Error::new(e.kind(), e))?;
        kept.sort_by_key(|kept| std::cmp::Reverse(kept.number));
        let rows = making::of_name(&self.parts, &self.task)?;
        // The workspace has never been as a merge of others' work says, unless it was brought
        // there.
        kept.retain(|kept| !is_merge_alone(&rows, &kept.commit));
        let mut newest = kept.into_iter().take(LOOKED_AT).map(|kept| kept.commit);
        Ok(newest.find(|commit| self.reaches(op, to, commit) == Answer::Yes))
    }

    /// Where a branch begins that is nowhere; `None`: the repository has no commit yet.
    /// Another task's work is none to begin with: nobody could tell whose the branch is.
    fn start(&self, op: &Operation, refs: &Advertised) -> Result<Option<String>, Error> {
        let workspace = &self.target.opened.workspace;
        let named = |name: &str| {
            self.branches()?
                .commit_named(op, workspace, name)
                .map_err(failed)
        };
        let start = match &self.start_point {
            Some(name) => named(name)?,
            None => match named("HEAD") {
                Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
                commit => commit?,
            },
        };
        match self.owner(op, &start, &beyond(refs)) {
            Owner::Task(other) if other != self.task.full_name() => Err(Error::new(
                ErrorKind::Conflict,
                format!(
                    "{} would begin at {start}, which is work of task {other}: go to another branch first, or name a start \
                     point; nothing was moved",
                    self.task.branch
                ),
            )),
            _ => Ok(Some(start)),
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
        let beyond = beyond(refs);
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

    pub(super) fn reaches(&self, op: &Operation, commit: &str, ancestor: &str) -> Answer {
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
}

/// What all may go on from: another task's work may have come there.
fn beyond(refs: &Advertised) -> Vec<String> {
    refs.outside_of(OURS).map(|id| id.to_string()).collect()
}

/// What git says; what it cannot is never "no".
fn answered(reaches: Option<Reaches>) -> Answer {
    match reaches {
        Some(Reaches::Yes) => Answer::Yes,
        Some(Reaches::No) => Answer::No,
        Some(Reaches::Unknown) | None => Answer::Unanswered,
    }
}

/// Whether a commit is known as a merge, and as no checkpoint of what a workspace had.
fn is_merge_alone(rows: &[CheckpointRow], commit: &str) -> bool {
    let mut of_it = rows.iter().filter(|row| row.commit == commit).peekable();
    of_it.peek().is_some() && of_it.all(|row| row.kind == CheckpointKind::Merge)
}

pub(super) fn failed(error: BranchError) -> Error {
    Error::new(error.kind(), error)
}
