//! Work that no remote is proven to have: listing it, bringing it back, and letting go of it.

use std::collections::{BTreeMap, BTreeSet};

use stillframe_backends::{
    Backend, BackendKind, Checkpoints, ErrorKind, Label, LockedWorkspace, Operation, Reaches,
    RestoreGoal, RestoreOptions, SnapshotId, SwitchRequest, Workspace, printable,
};

use crate::actors::Parts;
use crate::actors::core::Core;
use crate::branches::quarantine::{Unsaved, released, unsaved};
use crate::error::Error;
use crate::events::branch_data::CheckpointDiscarded;
use crate::events::event::EventType;
use crate::id::{SessionId, WorkTaskId};
use crate::options::quarantine_scope::QuarantineScope;
use crate::records::checkpoint::{
    CheckpointEvent, CheckpointKind, CheckpointRow, CheckpointStatus,
};
use crate::records::quarantine::{QuarantineRestore, QuarantinedWork};
use crate::records::restore_document::{RestorePurpose, restored_document};
use crate::records::work_task::WorkTaskRow;
use crate::saving::arrived::arrived;
use crate::saving::lock::TaskLock;
use crate::saving::resume::failed;
use crate::saving::target::OF_WORKSPACE;
use crate::state::StateStore;
use crate::state::branch_change::BranchChange;
use crate::state::change::{Change, NewEvent};
use crate::state::error::StateError;
use crate::workspace::cancellation::Cancellation;
use crate::workspace::opened::Opened;
use crate::workspace::restore::{self, Restoring};
use crate::workspace::{backends, capture, turn};

/// The fewest digits of a commit that are an id.
const ID_DIGITS: usize = 7;

/// Work in quarantine, and whose it is.
#[derive(Clone, Debug)]
struct Entry {
    id: String,
    task: WorkTaskRow,
    unsaved: Unsaved,
    /// All checkpoints of this name in the repository, at whatever remotes.
    rows: Vec<CheckpointRow>,
}

/// All that is in quarantine, in the order in which the tasks were first heard of. That of tasks
/// without a remote is where the host wants it, and is no one's concern unless it is asked for.
fn entries(store: &dyn StateStore, scope: QuarantineScope) -> Result<Vec<Entry>, StateError> {
    let unproven = store.unproven_checkpoints()?;
    if unproven.is_empty() {
        return Ok(Vec::new());
    }
    let concerned: BTreeSet<&WorkTaskId> = unproven.iter().map(|row| &row.task_id).collect();
    let tasks = store.work_tasks()?;
    let is_concerned = |task: &&WorkTaskRow| concerned.contains(&task.id);
    let names: BTreeSet<String> = tasks
        .iter()
        .filter(is_concerned)
        .map(WorkTaskRow::full_name)
        .collect();
    let mut by_name: BTreeMap<(String, String), Vec<CheckpointRow>> = BTreeMap::new();
    // Where the same work has no remote, and was to go to one, the latter says why it is not there.
    let mut in_order: Vec<&WorkTaskRow> = tasks.iter().collect();
    in_order.sort_by_key(|task| has_remote(task));
    for task in in_order {
        let name = task.full_name();
        if names.contains(&name) {
            for row in store.checkpoints(&task.id)? {
                let of = (name.clone(), row.repository.clone());
                by_name.entry(of).or_default().push(row);
            }
        }
    }
    let mut found = Vec::new();
    for rows in by_name.into_values() {
        let at = |id: &WorkTaskId| tasks.iter().position(|task| task.id == *id);
        for unsaved in unsaved(&rows) {
            let Some(newest) = at(&unsaved.newest.task_id) else {
                continue;
            };
            let mut entry = Entry {
                id: String::new(),
                task: tasks[newest].clone(),
                unsaved,
                rows: rows.clone(),
            };
            let places = entry
                .own()
                .filter_map(|row| Some((row.seq, at(&row.task_id)?)));
            let remotes = places.filter(|(_, at)| has_remote(&tasks[*at]));
            let at = match (remotes.max(), scope) {
                (Some(_), _) if has_remote(&entry.task) => newest,
                (Some((_, at)), _) => at,
                (None, QuarantineScope::All) => newest,
                (None, QuarantineScope::Remotes) => continue,
            };
            entry.task = tasks[at].clone();
            found.push((at, entry));
        }
    }
    found.sort_by_key(|(at, _)| *at);
    let mut found: Vec<Entry> = found.into_iter().map(|(_, entry)| entry).collect();
    let commits: Vec<String> = found
        .iter()
        .map(|entry| entry.commit().to_owned())
        .collect();
    for entry in &mut found {
        entry.id = shortest(entry.commit(), &commits);
    }
    Ok(found)
}

fn has_remote(task: &WorkTaskRow) -> bool {
    !task.remote.starts_with(OF_WORKSPACE)
}

/// The beginning of a commit that no other commit has.
fn shortest(commit: &str, all: &[String]) -> String {
    let is_own = |length: &usize| {
        let beginning = &commit[..*length];
        let others = all.iter().filter(|other| *other != commit);
        !others.into_iter().any(|other| other.starts_with(beginning))
    };
    let length = (ID_DIGITS..commit.len()).find(is_own);
    commit[..length.unwrap_or(commit.len())].to_owned()
}

impl Entry {
    fn commit(&self) -> &str {
        &self.unsaved.newest.commit
    }

    /// The checkpoints that are let go of with it.
    fn all(&self) -> impl Iterator<Item = &CheckpointRow> {
        self.unsaved.earlier.iter().chain([&self.unsaved.newest])
    }

    fn numbers(&self) -> BTreeSet<u64> {
        self.all().map(|row| row.seq).collect()
    }

    /// Their rows, wherever they were to go.
    fn own(&self) -> impl Iterator<Item = &CheckpointRow> {
        let numbers = self.numbers();
        let is_own = move |row: &&CheckpointRow| {
            row.kind != CheckpointKind::Merge && numbers.contains(&row.seq)
        };
        self.rows.iter().filter(is_own)
    }

    /// What of it a task's remote may have, the newest first.
    fn perhaps_sent(&self, task: &WorkTaskRow) -> Vec<CheckpointRow> {
        let of_task = self.own().filter(|row| row.task_id == task.id);
        let may_be_sent = |row: &&CheckpointRow| {
            matches!(row.status, CheckpointStatus::Made | CheckpointStatus::Sent)
        };
        let mut rows: Vec<_> = of_task.filter(may_be_sent).cloned().collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.seq));
        rows
    }

    /// The merges that go on from it and are not proven to be on a branch. They have nothing of
    /// their own. Blocks.
    fn merges(
        &self,
        op: &Operation,
        checkpoints: &dyn Checkpoints,
        workspace: &Workspace,
    ) -> Vec<CheckpointRow> {
        let goes_on = |merge: &CheckpointRow| {
            self.all().any(|row| {
                let reaches = checkpoints.reaches(op, workspace, &merge.commit, &row.commit);
                !matches!(reaches, Ok(Reaches::No))
            })
        };
        let merges = self.rows.iter().filter(|row| {
            row.kind == CheckpointKind::Merge
                && row.status.next(CheckpointEvent::Discarded).is_ok()
                && goes_on(row)
        });
        merges.cloned().collect()
    }

    /// What a host is told. Blocks.
    fn told(&self, parts: &Parts) -> QuarantinedWork {
        let newest = &self.unsaved.newest;
        let workspace = Workspace::kept(&newest.repository, &parts.state_dir);
        let kept = workspace.as_ref().and_then(|workspace| {
            let backend = git(parts).ok()?;
            let name = self.task.full_name();
            let op = &Operation::unbounded();
            let kept = backend
                .checkpoints()?
                .kept_checkpoints(op, workspace, &name);
            kept.ok()?
                .into_iter()
                .find(|kept| kept.number == newest.seq)
        });
        QuarantinedWork {
            id: self.id.clone(),
            task: self.task.task.clone(),
            namespace: self.task.namespace.clone(),
            remote: Some(self.task.remote.clone()).filter(|_| has_remote(&self.task)),
            branch: self.task.branch.clone(),
            workspace_id: newest.repository.clone(),
            path: workspace.map(|workspace| printable(workspace.disk_path())),
            run_id: newest.made_by.clone(),
            number: newest.seq,
            commit: newest.commit.clone(),
            earlier: self
                .unsaved
                .earlier
                .iter()
                .map(|row| row.commit.clone())
                .filter(|commit| *commit != newest.commit)
                .collect(),
            status: newest.status.as_str().to_owned(),
            failure: newest.failure.map(|kind| kind.as_str().to_owned()),
            error: newest.error.clone(),
            kept_as: kept.map(|kept| kept.reference),
            created_at: newest.created_at,
        }
    }
}

/// How many pieces of work of tasks with a remote are in quarantine.
pub(crate) fn count(store: &dyn StateStore) -> Result<usize, StateError> {
    Ok(entries(store, QuarantineScope::Remotes)?.len())
}

/// What is in quarantine. Blocks.
pub(crate) fn listed(parts: &Parts, scope: QuarantineScope) -> Result<Vec<QuarantinedWork>, Error> {
    let found = parts.reader.read_blocking(|store| entries(store, scope))?;
    Ok(found.iter().map(|entry| entry.told(parts)).collect())
}

/// The work in the quarantine of a workspace that an id names. Blocks.
fn find(parts: &Parts, workspace: &Workspace, id: &str) -> Result<Entry, Error> {
    let is_digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    if id.len() < ID_DIGITS || !id.bytes().all(is_digit) {
        return Err(Error::invalid_options(format!(
            "{id:?} is no id of work in quarantine, which are {ID_DIGITS} or more hexadecimal digits \
             of a commit; nothing was done"
        )));
    }
    let mut found = parts
        .reader
        .read_blocking(|store| entries(store, QuarantineScope::All))?;
    found.retain(|entry| entry.commit().starts_with(id));
    let (mut here, elsewhere): (Vec<Entry>, Vec<Entry>) = found
        .into_iter()
        .partition(|entry| entry.unsaved.newest.repository == workspace.id());
    match (here.len(), elsewhere.first()) {
        (1, _) => Ok(here.remove(0)),
        (0, None) => Err(Error::not_found(format!(
            "no work in quarantine begins with {id}; nothing was done"
        ))),
        (0, Some(entry)) => {
            let repository = &entry.unsaved.newest.repository;
            let place = Workspace::kept(repository, &parts.state_dir);
            let place = place.map(|kept| printable(kept.disk_path()));
            Err(Error::not_found(format!(
                "{} is in the quarantine of {}, and not of this workspace; nothing was done",
                entry.id,
                place.as_deref().unwrap_or("a workspace that is gone")
            )))
        }
        _ => Err(Error::invalid_options(format!(
            "several commits in quarantine begin with {id}; nothing was done"
        ))),
    }
}

/// Lets go of work in quarantine that no remote turns out to have, and answers what it was. The row
/// says so first, so that whoever is killed leaves it to the next clean-up to free the commits.
pub(crate) async fn discard(
    core: &Core,
    opened: Opened,
    id: String,
) -> Result<QuarantinedWork, Error> {
    let parts = &core.parts;
    let lock_timeout = parts.settings.lock_timeout;
    let (shared, workspace, named) = (parts.clone(), opened.workspace.clone(), id.clone());
    let found = parts
        .blocking
        .run(move || find(&shared, &workspace, &named))
        .await??;
    let session_id = SessionId::of_workspace(opened.workspace.id());
    core.ensure_session(&session_id, None).await?;
    let mut tasks = parts.reader.read(|store| store.work_tasks()).await?;
    tasks.retain(|task| task.full_name() == found.task.full_name());
    // Whoever is saving it meanwhile would find that it is gone: also who has no row of it yet. One
    // order for all who take several.
    tasks.sort_by(|one, other| one.id.cmp(&other.id));
    let mut locks = Vec::new();
    for task in &tasks {
        let lock = TaskLock::acquire(&parts.state_dir, &task.id, lock_timeout, &parts.blocking);
        locks.push(lock.await?);
    }
    let found = Box::pin(not_arrived(core, &opened, &tasks, found)).await?;
    let (shared, workspace) = (parts.clone(), opened.workspace.clone());
    let discarding = move |locked: &mut LockedWorkspace| {
        let _locks = locks;
        let op = &Operation::unbounded();
        let entry = find(&shared, locked, found.commit())?;
        let is_locked = |row: &CheckpointRow| tasks.iter().any(|task| task.id == row.task_id);
        if entry.numbers() != found.numbers() || !entry.own().all(is_locked) {
            return Err(Error::new(
                ErrorKind::Conflict,
                format!("more work goes on from {id} by now; nothing was done"),
            ));
        }
        let told = entry.told(&shared);
        let backend = git(&shared)?;
        let merges = backend.checkpoints();
        let merges = merges.map(|checkpoints| entry.merges(op, checkpoints, locked));
        let changes = discarded(&shared, &session_id, &entry, &merges.unwrap_or_default());
        shared.writer.commit_blocking(changes)?;
        release(op, &shared, locked)?;
        Ok(told)
    };
    turn::work(
        core,
        &workspace,
        "letting go of work",
        lock_timeout,
        discarding,
    )
    .await
}

/// The work, without what a remote turns out to have: whoever sent that has died before it was on
/// record, or the remote did not show it in time. What is let go of and on the branch all the same
/// would keep every later checkpoint from it.
async fn not_arrived(
    core: &Core,
    opened: &Opened,
    tasks: &[WorkTaskRow],
    entry: Entry,
) -> Result<Entry, Error> {
    let cancel = Cancellation::of(core, &opened.options);
    let mut is_less = false;
    for task in tasks.iter().filter(|task| has_remote(task)) {
        let rows = entry.perhaps_sent(task);
        let Some(newest) = rows.first() else {
            continue;
        };
        match arrived(core, opened, task, &rows, &cancel).await? {
            Ok(None) => {}
            Ok(Some(row)) if row.seq == entry.unsaved.newest.seq => {
                return Err(Error::new(
                    ErrorKind::Conflict,
                    format!(
                        "{} has {} already, which is on record by now; nothing was let go of",
                        task.remote, row.commit
                    ),
                ));
            }
            Ok(Some(_)) => is_less = true,
            // It is on record that the last try did not get there.
            Err(why) if newest.status == CheckpointStatus::Made && newest.failure.is_some() => {
                tracing::warn!(why = %why.why, "what is let go of may be on the remote");
            }
            Err(why) => {
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    format!(
                        "{} may have {}, and cannot be asked ({}); nothing was let go of: once \"task checkpoint\" has \
                         tried to send it in vain, it can be",
                        task.remote, newest.commit, why.why
                    ),
                ));
            }
        }
    }
    if !is_less {
        return Ok(entry);
    }
    let (parts, workspace) = (core.parts.clone(), opened.workspace.clone());
    let find = move || find(&parts, &workspace, entry.commit());
    core.parts.blocking.run(find).await?
}

/// That the user has let go of it, and of `merges`.
fn discarded(
    parts: &Parts,
    session_id: &SessionId,
    entry: &Entry,
    merges: &[CheckpointRow],
) -> Vec<Change> {
    let now = parts.now();
    let newest = &entry.unsaved.newest;
    let said = CheckpointDiscarded {
        task_id: &newest.task_id,
        repository: &newest.repository,
        commit: &newest.commit,
        checkpoints: entry.numbers().len(),
    };
    let (told, run_id) = (EventType::CHECKPOINT_DISCARDED, newest.made_by.as_ref());
    let told = NewEvent::new(told, session_id, run_id, now, said);
    let moved = entry.own().chain(merges).filter_map(|row| {
        let status = row.status.next(CheckpointEvent::Discarded).ok()?;
        Some(Change::Branch(Box::new(BranchChange::PutCheckpoint {
            from: Some(row.status),
            row: CheckpointRow {
                status,
                updated_at: now,
                ..row.clone()
            },
        })))
    });
    [Change::Append(told)].into_iter().chain(moved).collect()
}

/// Has the store keep no checkpoint that the user has let go of. Blocks.
pub(crate) fn release(
    op: &Operation,
    parts: &Parts,
    locked: &mut LockedWorkspace,
) -> Result<(), Error> {
    let repository = locked.id().to_owned();
    let by_name = parts.reader.read_blocking(|store| {
        let mut by_name: BTreeMap<String, Vec<CheckpointRow>> = BTreeMap::new();
        for task in store.work_tasks()? {
            let mut rows = store.checkpoints(&task.id)?;
            rows.retain(|row| row.repository == repository);
            by_name.entry(task.full_name()).or_default().extend(rows);
        }
        Ok(by_name)
    })?;
    for (name, rows) in by_name {
        let gone = released(&rows);
        if gone.is_empty() {
            continue;
        }
        let backend = git(parts)?;
        let Some(checkpoints) = backend.checkpoints() else {
            continue;
        };
        let kept = checkpoints.kept_checkpoints(op, locked, &name);
        let kept = kept.map_err(|e| Error::new(e.kind(), e))?;
        let numbers: Vec<u64> = kept
            .iter()
            .map(|kept| kept.number)
            .filter(|number| gone.contains(number))
            .collect();
        if !numbers.is_empty() {
            checkpoints
                .forget_checkpoints(op, locked, &name, &numbers)
                .map_err(|e| Error::new(e.kind(), e))?;
        }
    }
    Ok(())
}

/// Brings work in quarantine back to the files of its workspace. HEAD, its branch and the index
/// stay as they are: a commit that may not be sent is no ancestor of what comes next.
pub(crate) async fn restore(
    core: &Core,
    opened: Opened,
    session_id: SessionId,
    id: String,
    cancel: &Cancellation,
) -> Result<QuarantineRestore, Error> {
    let (parts, op) = (core.parts.clone(), cancel.operation());
    let (workspace, lock_timeout) = (opened.workspace.clone(), parts.settings.lock_timeout);
    let restoring = move |locked: &mut LockedWorkspace| {
        let entry = find(&parts, locked, &id)?;
        let work = entry.told(&parts);
        let bringing = Bringing {
            parts,
            opened,
            session_id,
            entry,
        };
        bringing.carry_out(&op, locked, work)
    };
    let what = "a restore";
    turn::cancellable(core, &workspace, what, lock_timeout, cancel, restoring).await
}

/// Work on its way back to the files of its workspace. Everything blocks.
struct Bringing {
    parts: Parts,
    opened: Opened,
    session_id: SessionId,
    entry: Entry,
}

impl Bringing {
    fn carry_out(
        self,
        op: &Operation,
        locked: &mut LockedWorkspace,
        work: QuarantinedWork,
    ) -> Result<QuarantineRestore, Error> {
        let Self {
            parts,
            opened,
            session_id,
            entry,
        } = self;
        let backend = git(&parts)?;
        let branches = backend.branches().ok_or_else(|| {
            let message = "this workspace cannot be brought to a commit; nothing was touched";
            Error::new(ErrorKind::Unsupported, message)
        })?;
        // What the decision rests on. The restore takes a guard of its own, and finds what came
        // since.
        let options = opened.snapshot_options(&parts, Label::GUARD, &session_id, None);
        let options = options.retain_content(true);
        let from = capture::take(op, locked, &*backend, &options)?;
        let mut request = SwitchRequest::files_of(entry.commit().to_owned(), parts.now())
            .owner(options.owner.clone());
        request.saved = entry.saved_beside();
        let forget = |locked: &mut LockedWorkspace, ids: &[SnapshotId]| {
            let op = &Operation::unbounded();
            if backend.forget(op, locked, ids, &[]).is_err() {
                parts.lock.leave_work();
            }
        };
        let switch = match branches.prepare_switch(op, locked, &from.id, &request) {
            Ok(switch) => switch,
            Err(e) => {
                forget(locked, &[from.id]);
                return Err(failed(e));
            }
        };
        let mut done = QuarantineRestore {
            work,
            restore: None,
            submodules: switch.submodules,
        };
        if let Some(kept) = switch.kept.first() {
            let made = (!switch.is_there).then_some(switch.to.id);
            let made: Vec<SnapshotId> = made.into_iter().chain([from.id]).collect();
            forget(locked, &made);
            return Err(Error::new(
                ErrorKind::Conflict,
                format!(
                    "{kept} was changed here since it was last saved; commit, remove or move away \
                     what is named; nothing was moved"
                ),
            ));
        }
        if switch.is_there {
            forget(locked, &[from.id]);
            return Ok(done);
        }
        let rows = [&from, &switch.to].map(|s| capture::row_of(locked, s, Some(&session_id), None));
        capture::keep(&parts, rows.into())?;
        let guard = opened.snapshot_options(&parts, Label::GUARD, &session_id, None);
        let goal = RestoreGoal::Undo {
            before: switch.to.clone(),
            after: from,
            paths: Some(switch.paths),
        };
        let restoring = Restoring {
            session_id,
            hold: None,
            to: switch.to.id,
            purpose: RestorePurpose::Restore,
            repository: false,
        };
        let options = RestoreOptions::new(guard);
        let outcome = restore::restore(op, &parts, locked, &*backend, &goal, &options, &restoring)?;
        done.restore = Some(restored_document(&outcome));
        Ok(done)
    }
}

impl Entry {
    /// The newest checkpoint of the workspace beside it that the store keeps: what is here as that
    /// has it is not lost where something else comes.
    fn saved_beside(&self) -> Option<String> {
        let own = self.numbers();
        let gone = released(&self.rows);
        let beside = self.rows.iter().filter(|row| {
            row.kind != CheckpointKind::Merge && !own.contains(&row.seq) && !gone.contains(&row.seq)
        });
        let newest = beside.max_by_key(|row| row.seq);
        newest.map(|row| row.commit.clone())
    }
}

/// What keeps checkpoints.
fn git(parts: &Parts) -> Result<std::sync::Arc<dyn Backend>, Error> {
    backends::backend_of(parts, BackendKind::Git)
}
