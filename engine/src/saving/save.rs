//! Saving a task's work, from the workspace to the proof.

use serde::Deserialize;
use serde_json::Value;
use stillframe_backends::{ErrorKind, LockedWorkspace, Operation, SnapshotId};
use stillframe_remote::address::ParsedAddress;
use stillframe_remote::advertised::Advertised;
use stillframe_remote::failure_kind::FailureKind;

use crate::actors::Parts;
use crate::actors::core::Core;
use crate::actors::patience::Patience;
use crate::branches::failures::{self, Attempt};
use crate::branches::retries;
use crate::error::Error;
use crate::events::data::BegunIn;
use crate::events::event::EventType;
use crate::events::query::EventQuery;
use crate::id::{RunId, WorkTaskId};
use crate::options::work_branch::WorkBranchOptions;
use crate::records::checkpoint::{
    CheckpointEvent, CheckpointKind, CheckpointRow, CheckpointStatus,
};
use crate::records::saved_work::SavedWork;
use crate::records::work_task::WorkTaskRow;
use crate::saving::asking::{Asking, asking};
use crate::saving::lock::TaskLock;
use crate::saving::making;
use crate::saving::recorded::saved;
use crate::saving::sending::NotSent;
use crate::saving::target::Target;
use crate::saving::told::{self, Telling};
use crate::saving::way::Way;
use crate::saving::work::{Content, Fate, Made, Wanted};
use crate::state::StateStore;
use crate::state::branch_change::BranchChange;
use crate::state::change::Change;
use crate::workspace::cancellation::{Cancellation, refusal};
use crate::workspace::opened::Opened;
use crate::workspace::turn;

/// How often a task's row is written again that somebody else moves meanwhile.
const TRIES: usize = 5;

/// A task, and the workspace that has its work.
pub(crate) struct Prepared {
    pub(super) target: Target,
    pub(super) task: WorkTaskRow,
    pub(super) branch: WorkBranchOptions,
    /// Where somebody else waits meanwhile: how long the remote is waited for.
    patience: Option<Patience>,
}

impl Prepared {
    /// Finds out where the work of a task goes. A task that is new is put on record.
    ///
    /// # Errors
    ///
    /// As of [`Target::of`]. `Conflict`: the branch is another task's, or the remote has tasks of
    /// the other layout.
    pub(crate) async fn of(
        core: &Core,
        opened: Opened,
        branch: &WorkBranchOptions,
    ) -> Result<Self, Error> {
        Self::of_run(core, opened, branch, None).await
    }

    /// The same for a run that works on the task: its work goes where it came from, whatever the
    /// repository says by now.
    ///
    /// # Errors
    ///
    /// As of [`Prepared::of`].
    pub(crate) async fn of_run(
        core: &Core,
        opened: Opened,
        branch: &WorkBranchOptions,
        run: Option<&RunId>,
    ) -> Result<Self, Error> {
        let (parts, mut branch) = (core.parts.clone(), branch.clone());
        let run = run.filter(|_| branch.pinned.is_none()).cloned();
        let prepare = move || {
            let place = match run {
                Some(run) => place_of(&parts, &run, opened.workspace.id())?,
                None => None,
            };
            let target = match place {
                Some(place) => Target::of_place(&parts, opened, &branch, &place)?,
                None => Target::of(&parts, opened, &branch)?,
            };
            if branch.credentials.is_none() && !target.has_password() {
                branch.credentials = parts.settings.credentials.clone();
            }
            let task = task_of(&parts, &target)?;
            Ok(Self {
                target,
                task,
                branch,
                patience: None,
            })
        };
        core.parts.blocking.run(prepare).await?
    }

    /// As this, for what a dead engine left.
    pub(crate) fn with_patience(mut self, patience: Patience) -> Self {
        self.patience = Some(patience);
        self
    }

    /// Where the work goes; `None`: there is no remote.
    pub(crate) fn address(&self) -> Option<ParsedAddress> {
        self.target.address.clone()
    }

    pub(crate) fn task_id(&self) -> &WorkTaskId {
        &self.task.id
    }

    /// The task's branch, without `refs/heads/`.
    pub(crate) fn branch_name(&self) -> &str {
        &self.task.branch
    }

    /// What the event says that tells of the begin.
    pub(crate) fn started(
        &self,
        kind: CheckpointKind,
        files: Option<u64>,
        recovered: bool,
    ) -> Value {
        told::started(&self.task, kind, files, recovered)
    }

    /// Makes a checkpoint of `content`, sends it and proves it, until `cancel` says stop. It is
    /// `Ok` once the store has the work, whatever the remote says. `None`: nothing of the workspace
    /// has changed, and nothing was done.
    pub(crate) async fn save(
        self,
        core: &Core,
        wanted: Wanted,
        content: Content,
        cancel: &Cancellation,
    ) -> Result<Option<SavedWork>, Error> {
        let (task, whose) = (self.task.clone(), wanted.clone());
        let repository = self.target.opened.workspace.id().to_owned();
        let kept = match &content {
            Content::Of(snapshot) => format!("snapshot {snapshot} of the store"),
            Content::Now { .. } => "the workspace".to_owned(),
        };
        let saved = Box::pin(self.made_and_sent(core, wanted, content, cancel)).await;
        if let Err(e) = &saved
            // Of a run that has stopped there is no later.
            && (whose.stopped.is_some()
                || !matches!(
                    e.kind(),
                    ErrorKind::Busy | ErrorKind::Cancelled | ErrorKind::Timeout
                ))
        {
            let parts = core.parts.clone();
            let (line, kind) = (e.chain(), FailureKind::LocalGit);
            let tell = move || {
                let telling = Telling {
                    parts: &parts,
                    task: &task,
                    wanted: &whose,
                };
                not_made(&telling, &repository, &kept, &NotSent::new(kind, line))
            };
            // Why nothing was made is the failure to tell.
            if let Err(e) = core.parts.blocking.run(tell).await? {
                tracing::warn!(error = %e.chain(), "that a task's work is not saved is not on record");
            }
        }
        saved
    }

    async fn made_and_sent(
        self,
        core: &Core,
        mut wanted: Wanted,
        content: Content,
        cancel: &Cancellation,
    ) -> Result<Option<SavedWork>, Error> {
        let parts = &core.parts;
        let lock_timeout = parts.settings.lock_timeout;
        // Whoever has it may be sending, which takes its time and comes to an end.
        let longest = lock_timeout.max(self.branch.call_timeout);
        let lock = TaskLock::acquire(&parts.state_dir, &self.task.id, longest, &parts.blocking);
        let _lock = cancel
            .wait_for(lock, "waiting to save the work of the task")
            .await?;
        let Some(snapshot) = self.captured(core, &wanted, content, cancel).await? else {
            return Ok(None);
        };
        let Self {
            target,
            task,
            branch,
            patience,
        } = self;
        let workspace = target.opened.workspace.clone();
        // The workspace is free meanwhile: a remote may take long to answer.
        let (asking, seen) = asked(core, &target, &branch, patience.as_ref(), cancel).await?;
        let mut default_branch = None;
        if let Ok(Some(refs)) = &seen {
            wanted.on_remote = refs.ids().map(|id| id.to_string()).collect();
            default_branch = refs.default_branch().map(str::to_owned);
        }
        let (shared, op) = (parts.clone(), Operation::unbounded());
        let making = {
            let (target, task, wanted) = (target.clone(), task.clone(), wanted.clone());
            move |locked: &mut LockedWorkspace| {
                making::make(&op, &shared, locked, &target, &task, (&wanted, &snapshot))
            }
        };
        // What is captured is kept, however long the remote took to answer.
        let made = turn::work(core, &workspace, "a checkpoint", lock_timeout, making).await?;
        let fate = match (&made.row, asking, seen) {
            (None, _, _) | (_, _, Ok(None)) | (_, None, _) => Fate::Kept,
            (_, _, Err(not_sent)) | (_, Some(Err(not_sent)), _) => Fate::NotSent(not_sent),
            (Some(row), Some(Ok(asking)), Ok(Some(seen))) => {
                let way = Way {
                    parts: parts.clone(),
                    target: target.clone(),
                    task: task.clone(),
                    wanted: wanted.clone(),
                    row: row.clone(),
                    asking,
                    seen,
                    max_bytes: branch.max_push_bytes,
                    on_divergence: branch.on_divergence,
                };
                way.gone(core, cancel).await?
            }
        };
        let shared = parts.clone();
        let recording = move || {
            let fate = fate.redacted(shared.writer.secrets());
            let mut saved = saved(&target, &task, &made, &fate);
            let telling = Telling {
                parts: &shared,
                task: &task,
                wanted: &wanted,
            };
            if let Some(row) = &made.row {
                let told = notice(&telling, &made, row, &fate);
                record(&telling, (row, made.outcome.is_new), &fate, told)?;
            }
            let repository = target.opened.workspace.id();
            saved.default_branch = default_branch;
            saved.carried = has_carried(&telling, &made, &fate, repository)?;
            Ok::<_, Error>(Some(saved))
        };
        parts.blocking.run_beside(recording).await?
    }

    /// Sends a checkpoint again that was not sent for a reason that may pass, unless somebody has
    /// meanwhile.
    pub(crate) async fn send_again(
        self,
        core: &Core,
        row: &CheckpointRow,
        mut wanted: Wanted,
        cancel: &Cancellation,
    ) -> Result<(), Error> {
        let parts = &core.parts;
        let lock_timeout = parts.settings.lock_timeout;
        let lock = TaskLock::acquire(
            &parts.state_dir,
            &self.task.id,
            lock_timeout,
            &parts.blocking,
        );
        let _lock = cancel
            .wait_for(lock, "waiting to send the work of the task")
            .await?;
        let (id, wanted_row) = (self.task.id.clone(), row.clone());
        let read = parts.reader.read(move |store| {
            let rows = store.checkpoints(&id)?;
            Ok(retries::to_send(&rows).contains(&wanted_row))
        });
        if !read.await? {
            return Ok(());
        }
        let Self {
            target,
            task,
            branch,
            patience,
        } = self;
        let (asking, seen) = asked(core, &target, &branch, patience.as_ref(), cancel).await?;
        let fate = match (asking, seen) {
            (_, Err(not_sent)) | (Some(Err(not_sent)), _) => Fate::NotSent(not_sent),
            (Some(Ok(asking)), Ok(Some(seen))) => {
                wanted.on_remote = seen.ids().map(|id| id.to_string()).collect();
                let way = Way {
                    parts: parts.clone(),
                    target,
                    task: task.clone(),
                    wanted: wanted.clone(),
                    row: row.clone(),
                    asking,
                    seen,
                    max_bytes: branch.max_push_bytes,
                    on_divergence: branch.on_divergence,
                };
                way.gone(core, cancel).await?
            }
            (None, _) | (_, Ok(None)) => Fate::Kept,
        };
        if let Some(stopped) = refusal(&cancel.operation(), "sending the work of a task") {
            // What was cut off says nothing of the remote.
            return Err(stopped);
        }
        let (shared, row) = (parts.clone(), row.clone());
        let recording = move || {
            let fate = fate.redacted(shared.writer.secrets());
            let telling = Telling {
                parts: &shared,
                task: &task,
                wanted: &wanted,
            };
            record(&telling, (&row, false), &fate, None)
        };
        parts.blocking.run_beside(recording).await?
    }

    /// The snapshot that a checkpoint is made of; `None`: there is nothing new.
    async fn captured(
        &self,
        core: &Core,
        wanted: &Wanted,
        content: Content,
        cancel: &Cancellation,
    ) -> Result<Option<SnapshotId>, Error> {
        let parts = core.parts.clone();
        let unless = match content {
            Content::Of(snapshot) => {
                // Of the run's own it was told that this begins, when the work had ended.
                if wanted.further.is_some() {
                    let telling = Telling {
                        parts: &parts,
                        task: &self.task,
                        wanted,
                    };
                    let told = wanted.fenced(vec![telling.started()]);
                    parts.writer.commit(told).await?;
                }
                return Ok(Some(snapshot));
            }
            Content::Now { unless } => unless,
        };
        let op = cancel.operation();
        let (target, task, wanted) = (self.target.clone(), self.task.clone(), wanted.clone());
        let workspace = target.opened.workspace.clone();
        let lock_timeout = parts.settings.lock_timeout;
        let capturing = move |locked: &mut LockedWorkspace| {
            let telling = Telling {
                parts: &parts,
                task: &task,
                wanted: &wanted,
            };
            making::capture(&op, &telling, locked, &target, unless.as_ref())
        };
        let what = "a capture for a checkpoint";
        turn::cancellable(core, &workspace, what, lock_timeout, cancel, capturing).await
    }
}

/// Who asks the remote, and what it has; `None`: there is no remote.
pub(super) async fn asked(
    core: &Core,
    target: &Target,
    branch: &WorkBranchOptions,
    patience: Option<&Patience>,
    cancel: &Cancellation,
) -> Result<Asked, Error> {
    let asking = asking(target, branch, patience, cancel).await;
    let op = cancel.operation();
    let ask = move || {
        let seen = match &asking {
            Some(Ok(asking)) => asking.refs(&op),
            Some(Err(not_sent)) => Err(not_sent.clone()),
            None => Ok(None),
        };
        (asking, seen)
    };
    Ok(core.parts.blocking.run_beside(ask).await?)
}

/// What [`asked`] answers.
pub(super) type Asked = (
    Option<Result<Asking, NotSent>>,
    Result<Option<Advertised>, NotSent>,
);

/// Saves what is in a workspace, for somebody who asks for that, until its host says stop.
pub(crate) async fn save_now(
    core: &Core,
    opened: Opened,
    branch: &WorkBranchOptions,
    wanted: Wanted,
) -> Result<SavedWork, Error> {
    let cancel = Cancellation::of(core, &opened.options);
    let run = wanted.run_id.clone();
    let prepared = Prepared::of_run(core, opened, branch, run.as_ref()).await?;
    let content = Content::Now { unless: None };
    let saved = prepared.save(core, wanted, content, &cancel).await?;
    Ok(saved.expect("it is made in any case"))
}

/// Whether the remote is proven to have what somebody did for the task. Blocks.
fn has_carried(
    telling: &Telling<'_>,
    made: &Made,
    fate: &Fate,
    repository: &str,
) -> Result<bool, Error> {
    let Telling {
        parts,
        task,
        wanted,
    } = telling;
    let Some(run) = &wanted.run_id else {
        let is_there = !matches!(fate, Fate::Kept | Fate::NotSent(_));
        return Ok(is_there && made.outcome.is_new);
    };
    let rows = parts
        .reader
        .read_blocking(|store| store.checkpoints(&task.id))?;
    let mut own = rows.iter().filter(|row| row.repository == repository);
    Ok(own.any(|row| row.carries(run, wanted.began_at.as_deref())))
}

/// Where the work of the task goes that a run has begun to work on in a repository; `None`: it has
/// not. Blocks.
fn place_of(parts: &Parts, run: &RunId, repository: &str) -> Result<Option<String>, Error> {
    #[derive(Deserialize)]
    struct Said {
        #[serde(default)]
        repositories: Vec<BegunIn>,
    }
    let query = EventQuery {
        event_types: vec![EventType::RUN_STARTED],
        ..EventQuery::all().run(run.clone())
    };
    let read = |store: &dyn StateStore| {
        let begun = store.events(&query)?.pop();
        let begun = begun.and_then(|event| Said::deserialize(event.data).ok());
        let begun = begun.map(|said| said.repositories).unwrap_or_default();
        // A run that works in several has said which is of which task.
        if begun.is_empty() {
            return Ok(store.work_tasks_of_run(run)?.into_iter().next());
        }
        match begun.iter().find(|begun| begun.repository == repository) {
            Some(begun) => store.work_task(&begun.task_id),
            None => Ok(None),
        }
    };
    Ok(parts.reader.read_blocking(read)?.map(|row| row.remote))
}

/// The row of a task, which is made where there is none. Blocks.
fn task_of(parts: &Parts, target: &Target) -> Result<WorkTaskRow, Error> {
    let place = target.place();
    let namespace = target.names.namespace.as_ref().map(ToString::to_string);
    let task = target.names.task.as_str();
    let find = || {
        let of = |store: &dyn StateStore| store.work_task_of(&place, namespace.as_deref(), task);
        parts.reader.read_blocking(of)
    };
    if let Some(row) = find()? {
        return Ok(row);
    }
    let branch = target.names.branch.as_str();
    let row = WorkTaskRow::new(task, namespace.clone(), &place, branch, parts.now());
    let add = Change::Branch(Box::new(BranchChange::AddTask(row.clone())));
    match parts.writer.commit_blocking(vec![add]) {
        Ok(_) => Ok(row),
        // Somebody has made it meanwhile, or another task has the branch.
        Err(e) => find()?.ok_or(e),
    }
}

/// Puts on record that no checkpoint could be made, and counts that for the task. Blocks.
fn not_made(
    telling: &Telling<'_>,
    repository: &str,
    kept: &str,
    why: &NotSent,
) -> Result<(), Error> {
    let Telling { parts, task, .. } = telling;
    for _ in 0..TRIES {
        let mut changes = vec![telling.not_made(repository, why)];
        let found = parts
            .reader
            .read_blocking(|store| store.work_task(&task.id))?;
        if let Some(mut counted) = found {
            let now = parts.now();
            if failures::count(&mut counted, Attempt::Failed(why.kind), now) {
                changes.push(telling.flagged(counted.failures_in_a_row, why));
            }
            counted.error = Some(why.why.clone());
            counted.updated_at = now;
            changes.push(Change::Branch(Box::new(BranchChange::MoveTask(counted))));
        }
        changes.extend(telling.notice(why, (kept, None)));
        match parts.writer.commit_blocking(telling.wanted.fenced(changes)) {
            Err(e) if e.kind() == ErrorKind::Conflict => {}
            written => {
                parts.notice_bell.notify_one();
                return written.map(drop);
            }
        }
    }
    Err(moved_all_the_time(task, "its work is not on its branch"))
}

/// That the row of a task could not be written.
fn moved_all_the_time(task: &WorkTaskRow, what: &str) -> Error {
    Error::new(
        ErrorKind::Busy,
        format!(
            "the row of task {} is moved by others all the time; {what}",
            task.task
        ),
    )
}

/// Puts on record what became of a checkpoint, and counts it for its task. `is_new`: it was made
/// for this. `notice`: what people outside are told. Blocks.
pub(super) fn record(
    telling: &Telling<'_>,
    (row, is_new): (&CheckpointRow, bool),
    fate: &Fate,
    notice: Option<Change>,
) -> Result<(), Error> {
    let Telling { parts, task, .. } = telling;
    let now = parts.now();
    let moved = moved(row, task, fate, now)?;
    for _ in 0..TRIES {
        let mut changes = telling.ended((row, is_new), &moved, fate);
        if moved != *row {
            let put = BranchChange::PutCheckpoint {
                from: Some(row.status),
                row: moved.clone(),
            };
            changes.push(Change::Branch(Box::new(put)));
        }
        for (from, merge) in proven_merges(telling, &moved, fate)? {
            let put = BranchChange::PutCheckpoint {
                from: Some(from),
                row: merge,
            };
            changes.push(Change::Branch(Box::new(put)));
        }
        let id = &task.id;
        let found = parts.reader.read_blocking(|store| store.work_task(id))?;
        if let Some(found) = found {
            let mut counted = found.clone();
            let is_flagged = failures::count(&mut counted, attempt(row, fate), now);
            counted.error = match fate {
                Fate::NotSent(not_sent) | Fate::Beside(not_sent, _) => Some(not_sent.why.clone()),
                Fate::Kept | Fate::Sent(_) | Fate::Merged(..) => None,
            };
            let failed = match fate {
                Fate::NotSent(not_sent) => Some(not_sent.kind),
                Fate::Kept | Fate::Sent(_) | Fate::Merged(..) | Fate::Beside(..) => None,
            };
            retries::note(&mut counted, failed, row.failure.is_none(), now);
            if let (true, Fate::NotSent(not_sent) | Fate::Beside(not_sent, _)) = (is_flagged, fate)
            {
                changes.push(telling.flagged(counted.failures_in_a_row, not_sent));
            }
            if counted != found {
                counted.updated_at = now;
                changes.push(Change::Branch(Box::new(BranchChange::MoveTask(counted))));
            }
        }
        changes.extend(notice.clone());
        if changes.is_empty() {
            return Ok(());
        }
        match parts.writer.commit_blocking(telling.wanted.fenced(changes)) {
            Err(e) if e.kind() == ErrorKind::Conflict => {}
            written => {
                parts.notice_bell.notify_one();
                return written.map(drop);
            }
        }
    }
    let what = format!(
        "the checkpoint {} is kept, and the next one looks where it is",
        row.commit
    );
    Err(moved_all_the_time(task, &what))
}

/// What people outside are told of a checkpoint that is not on its branch.
fn notice(telling: &Telling<'_>, made: &Made, row: &CheckpointRow, fate: &Fate) -> Option<Change> {
    let kept = match (fate, &made.outcome.checkpoint) {
        (Fate::Beside(_, sent), _) => format!("{} of the remote", sent.branch.as_str()),
        (_, Some(kept)) => format!("{} of the store", kept.reference),
        (_, None) => format!("snapshot {} of the store", made.snapshot),
    };
    match fate {
        Fate::Kept | Fate::Sent(_) | Fate::Merged(..) => None,
        // Whoever is asked goes on from there.
        Fate::Beside(..) if telling.wanted.kind == CheckpointKind::Blocked => None,
        Fate::NotSent(why) | Fate::Beside(why, _) => {
            telling.notice(why, (&kept, Some(&row.commit)))
        }
    }
}

/// The merges that the branch is seen to have, with where they stand on record: that of this
/// checkpoint, and one that was sent by who died before that was put on record. Blocks.
fn proven_merges(
    telling: &Telling<'_>,
    moved: &CheckpointRow,
    fate: &Fate,
) -> Result<Vec<(CheckpointStatus, CheckpointRow)>, Error> {
    let Some(tip) = moved.advanced_to.as_ref() else {
        return Ok(Vec::new());
    };
    let (merge, further) = match fate {
        Fate::Merged(merged, sent) => (&merged.row.commit, sent.advanced_to),
        Fate::Sent(_) => (tip, None),
        Fate::Kept | Fate::NotSent(_) | Fate::Beside(..) => return Ok(Vec::new()),
    };
    let id = &telling.task.id;
    let rows = telling
        .parts
        .reader
        .read_blocking(|store| store.checkpoints(id))?;
    let rows = rows.into_iter().filter(|row| {
        row.kind == CheckpointKind::Merge
            && row.repository == moved.repository
            && row.commit == *merge
    });
    let proven = rows.filter_map(|row| {
        let status = row.status.next(CheckpointEvent::Proven).ok()?;
        let proven = CheckpointRow {
            status,
            remote: moved.remote.clone(),
            branch: moved.branch.clone(),
            advanced_to: further.map(|id| id.to_string()),
            updated_at: telling.parts.now(),
            ..row
        };
        Some((row.status, proven))
    });
    Ok(proven.collect())
}

/// A checkpoint after what became of it.
fn moved(
    row: &CheckpointRow,
    task: &WorkTaskRow,
    fate: &Fate,
    now: jiff::Timestamp,
) -> Result<CheckpointRow, Error> {
    let to = |event: CheckpointEvent| match row.status.next(event) {
        Ok(status) => status,
        // It was proven before, or refused: what is known of it stays.
        Err(_) => row.status,
    };
    let mut moved = row.clone();
    match fate {
        Fate::Kept => return Ok(moved),
        Fate::Sent(sent) => {
            moved.status = to(CheckpointEvent::Proven);
            moved.remote = Some(task.remote.clone());
            moved.branch = Some(sent.branch.as_str().to_owned());
            moved.advanced_to = sent.advanced_to.map(|id| id.to_string());
            (moved.failure, moved.error) = (None, None);
        }
        Fate::Merged(merged, sent) => {
            moved.status = to(CheckpointEvent::Proven);
            moved.remote = Some(task.remote.clone());
            moved.branch = Some(sent.branch.as_str().to_owned());
            let at = sent.advanced_to.map(|id| id.to_string());
            moved.advanced_to = Some(at.unwrap_or_else(|| merged.row.commit.clone()));
            (moved.failure, moved.error) = (None, None);
        }
        Fate::Beside(not_sent, sent) => {
            moved.status = to(CheckpointEvent::Proven);
            moved.remote = Some(task.remote.clone());
            moved.branch = Some(sent.branch.as_str().to_owned());
            moved.advanced_to = sent.advanced_to.map(|id| id.to_string());
            moved.failure = Some(not_sent.kind);
            moved.error = Some(not_sent.why.clone());
        }
        Fate::NotSent(not_sent) => {
            moved.status = to(match not_sent.kind {
                _ if not_sent.was_taken => CheckpointEvent::Sent,
                FailureKind::SecretFound
                | FailureKind::TooLarge
                | FailureKind::RemotePolicyRejected => CheckpointEvent::Refused,
                _ => CheckpointEvent::NotSaved,
            });
            moved.failure = Some(not_sent.kind);
            moved.error = Some(not_sent.why.clone());
        }
    }
    if moved != *row {
        moved.updated_at = now;
    }
    Ok(moved)
}

/// How a try counts.
fn attempt(row: &CheckpointRow, fate: &Fate) -> Attempt {
    match fate {
        Fate::Sent(sent) if sent.was_there && row.status == CheckpointStatus::Proven => {
            Attempt::NoChanges
        }
        // It may have got there before, and nobody knew.
        Fate::Sent(_) | Fate::Merged(..) => Attempt::Saved,
        // It is in the store, where the host wants it.
        Fate::Kept => Attempt::NoChanges,
        Fate::NotSent(not_sent) | Fate::Beside(not_sent, _) => Attempt::Failed(not_sent.kind),
    }
}
