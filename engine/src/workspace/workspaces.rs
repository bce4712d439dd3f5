//! Work on a workspace, as the actors and the runs ask for it: open, take turns, capture, compare.
//!
//! What has `Locked` in its arguments blocks, and runs where blocking is allowed.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{self, BufWriter, Seek as _, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;
use stillframe_backends::{
    Backend, BackendKind, Diff, DiffOptions, ErrorKind, Interrupt, Label, LockedWorkspace, Owner,
    PathError, Snapshot, SnapshotId, SnapshotOptions, Strategy, Workspace, printable,
};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::actors::core::Core;
use crate::actors::workspace::{Job, WorkspaceMessage};
use crate::actors::{Parts, Ticket};
use crate::blocking::StepLost;
use crate::engine::records::find_run;
use crate::error::{Error, stopped};
use crate::events::event::{EventQuery, EventType};
use crate::id::{RunId, SessionId};
use crate::options::WorkspaceOptions;
use crate::records::outcome::TakenSnapshot;
use crate::records::snapshot::SnapshotRow;
use crate::state::StateStore;
use crate::state::change::{Change, NewEvent};
use crate::state::error::StateError;
use crate::state::snapshot_name::{self, SnapshotName};
use crate::workspace::wish::{self, Wish};

/// The label of a capture that is only made to be compared with, and forgotten at once.
pub(crate) const NOW: &str = "now";

/// A workspace that is known to be one, and how to capture it.
#[derive(Clone)]
pub(crate) struct Opened {
    pub(crate) workspace: Workspace,
    pub(crate) options: WorkspaceOptions,
}

impl Opened {
    /// Opens the directory of `options`. Reads alone; blocks.
    pub(crate) fn open(parts: &Parts, options: WorkspaceOptions) -> Result<Self, Error> {
        let workspace = Workspace::open(&options.path, &parts.state_dir)?;
        let workspace = parts.watched.shared(workspace);
        Ok(Self { workspace, options })
    }

    /// As [`Opened::open`], also where the directory is gone: it can be listed and restored.
    pub(crate) fn open_known(parts: &Parts, options: WorkspaceOptions) -> Result<Self, Error> {
        let workspace = Workspace::open_known(&options.path, &parts.state_dir)?;
        let workspace = parts.watched.shared(workspace);
        Ok(Self { workspace, options })
    }

    /// The backend for a new capture. Reads alone; blocks.
    pub(crate) fn detect(&self, parts: &Parts) -> Result<Arc<dyn Backend>, Error> {
        match &parts.settings.backend {
            None => {
                Ok(stillframe_backends::detect(&self.workspace, self.options.strategy)?.backend)
            }
            Some(backend) => match (self.options.strategy, backend.kind()) {
                (Strategy::Git, BackendKind::Hash) | (Strategy::Hash, BackendKind::Git) => {
                    Err(Error::new(
                        ErrorKind::Unsupported,
                        format!(
                            "the backend of this engine is of the kind {}; nothing was captured",
                            backend.kind()
                        ),
                    ))
                }
                _ => Ok(Arc::clone(backend)),
            },
        }
    }

    /// How to capture this workspace for `label`, as `session_id`'s.
    pub(crate) fn snapshot_options(
        &self,
        parts: &Parts,
        label: Label,
        session_id: &SessionId,
        run_id: Option<&RunId>,
        interrupt: Interrupt,
    ) -> SnapshotOptions {
        // What a run or a part of it left is captured however much it is.
        let left = [
            Label::AFTER,
            Label::AFTER_FAILURE,
            Label::GUARD,
            Label::STEP,
        ];
        let is_closing = left.contains(&label);
        let mut options = SnapshotOptions::new(label, parts.now())
            .owner(Owner {
                session_id: session_id.to_string(),
                run_id: run_id.map(ToString::to_string),
            })
            .ignore(self.options.ignore.clone())
            .retain_content(self.options.retain_content)
            .watch(self.options.watch)
            .interrupt(interrupt);
        options.include = self.options.include.clone();
        options.max_untracked_file_bytes = self.options.max_untracked_file_bytes;
        if !is_closing {
            options.max_files = self.options.max_files;
            options.max_new_bytes = self.options.max_new_bytes;
        }
        options.max_store_bytes = parts.settings.max_store_bytes;
        options.borrow = parts.settings.borrow;
        options.progress = parts.settings.progress.clone();
        options
    }
}

impl Core {
    /// Opens a workspace. Reads alone.
    pub(crate) async fn open(&self, options: &WorkspaceOptions) -> Result<Opened, Error> {
        self.parts.check_available()?;
        let (parts, options) = (self.parts.clone(), options.clone());
        self.parts
            .blocking
            .run(move || Opened::open(&parts, options))
            .await?
    }

    /// As [`Core::open`], also where the directory is gone: it can be listed and restored.
    pub(crate) async fn open_known(&self, options: &WorkspaceOptions) -> Result<Opened, Error> {
        self.parts.check_available()?;
        let (parts, options) = (self.parts.clone(), options.clone());
        self.parts
            .blocking
            .run(move || Opened::open_known(&parts, options))
            .await?
    }

    /// Has a watched workspace stay watched until its session ends.
    pub(crate) fn keep_watched(&self, opened: &mut Opened, session_id: &SessionId) {
        if opened.options.watch {
            let workspace = opened.workspace.clone();
            opened.workspace = self.parts.watched.keep(workspace, session_id);
        }
    }
}

/// Lets what a restore looks at the workspace by see files as large as `snapshot` has: what was captured under a larger
/// limit is there to be compared with, displaced, and kept by a guard.
pub(crate) fn see_as_much_as(
    options: &mut SnapshotOptions,
    backend: &dyn Backend,
    workspace: &Workspace,
    snapshot: &Snapshot,
) -> Result<(), Error> {
    let rules = backend.rules_of(workspace, snapshot)?;
    // Zero is no limit.
    options.max_untracked_file_bytes = match rules.max_untracked_file_bytes {
        Some(0) => 0,
        Some(bytes) if options.max_untracked_file_bytes > 0 => {
            options.max_untracked_file_bytes.max(bytes)
        }
        _ => options.max_untracked_file_bytes,
    };
    Ok(())
}

/// The longest that anybody waits for a lock. A patience without end has no deadline that a clock could
/// show; a year is as good.
pub(crate) const MAX_PATIENCE: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The backend that understands snapshots of `kind`, wherever the workspace lies by now.
pub(crate) fn backend_of(parts: &Parts, kind: BackendKind) -> Result<Arc<dyn Backend>, Error> {
    match &parts.settings.backend {
        Some(backend) if backend.kind() == kind => Ok(Arc::clone(backend)),
        Some(_) => Err(Error::new(
            ErrorKind::Unsupported,
            format!("this engine has no backend of the kind {kind}"),
        )),
        None => Ok(stillframe_backends::backend_of(kind)),
    }
}

/// The backends that may have something in the store of a workspace.
pub(crate) fn backends(parts: &Parts) -> Vec<Arc<dyn Backend>> {
    [BackendKind::Git, BackendKind::Hash]
        .into_iter()
        .filter_map(|kind| backend_of(parts, kind).ok())
        .collect()
}

/// Does `work` on a workspace when its turn comes, with the workspace locked and recovered.
///
/// It waits at most for `patience`; after that it is `Busy`, and the message says by whom. Once
/// begun, the work goes on though the caller is dropped.
pub(crate) async fn work<T: Send + 'static>(
    core: &Core,
    workspace: &Workspace,
    what: &'static str,
    patience: Duration,
    work: impl FnOnce(&mut LockedWorkspace) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let never = Interrupt::never();
    in_turn(
        core,
        workspace,
        what,
        patience,
        never,
        std::future::pending(),
        work,
    )
    .await
}

/// As [`work`], as long as that is wanted: whoever is told to stop waits for no turn any more, and work
/// that has begun ends as soon as it looks.
pub(crate) async fn work_while_wanted<T: Send + 'static>(
    core: &Core,
    workspace: &Workspace,
    what: &'static str,
    patience: Duration,
    wish: &Wish,
    work: impl FnOnce(&mut LockedWorkspace) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let interrupt = wish.interrupt();
    in_turn(
        core,
        workspace,
        what,
        patience,
        interrupt,
        wish.told(),
        work,
    )
    .await
}

async fn in_turn<T: Send + 'static>(
    core: &Core,
    workspace: &Workspace,
    what: &'static str,
    patience: Duration,
    interrupt: Interrupt,
    told: impl Future<Output = ()>,
    work: impl FnOnce(&mut LockedWorkspace) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let mut told = std::pin::pin!(told);
    let (answer, mut answered) = oneshot::channel();
    let deadline = Instant::now() + patience.min(MAX_PATIENCE);
    let job: Job = {
        let (parts, workspace) = (core.parts.clone(), workspace.clone());
        let interrupt = interrupt.clone();
        Box::new(move || {
            let patience = deadline.saturating_duration_since(Instant::now());
            let step = AssertUnwindSafe(|| locked(&parts, workspace, patience, &interrupt, work));
            let result = catch_unwind(step)
                .unwrap_or_else(|payload| Err(StepLost::panicked(&*payload).into()));
            Box::new(move || {
                // The asker may have left; the work is done all the same.
                let _ = answer.send(result);
            })
        })
    };
    let (mut ticket, mut claim) = Ticket::new(job);
    loop {
        let actor = core.workspace_actor(workspace.identity()).await?;
        // A message that cannot be sent takes its ticket along, which the claim hears of.
        let _ = actor.send_message(WorkspaceMessage::Work { ticket, what });
        tokio::select! {
            biased;
            result = &mut answered => return result.unwrap_or_else(|_| Err(stopped())),
            () = claim.settled() => {}
            () = &mut told => {
                if claim.take_back().is_some() {
                    let refused = wish::refusal(&interrupt, WAITING);
                    return Err(refused.expect("who was told has cancelled it"));
                }
            }
            () = tokio::time::sleep_until(deadline) => {
                // Its actor answers in turn, so by then a workspace in no use has begun this work,
                // however short the patience was.
                let holder = holder(core, workspace).await;
                if claim.take_back().is_some() {
                    return Err(Error::new(ErrorKind::Busy, format!(
                        "the workspace {} is in use by {holder} of this engine; nothing was touched",
                        printable(workspace.disk_path())
                    )));
                }
            }
        }
        match claim.take_back() {
            // The actor ended with the ticket in its queue.
            Some(job) => (ticket, claim) = Ticket::new(job),
            None => return answered.await.unwrap_or_else(|_| Err(stopped())),
        }
    }
}

async fn holder(core: &Core, workspace: &Workspace) -> &'static str {
    let (reply, answer) = oneshot::channel();
    if let Ok(actor) = core.workspace_actor(workspace.identity()).await {
        let _ = actor.send_message(WorkspaceMessage::Holder { reply });
    }
    answer.await.ok().flatten().unwrap_or("an operation")
}

/// What somebody does whose turn has not come.
const WAITING: &str = "waiting for the workspace";

/// Locks the workspace, finishes what a crash interrupted there, and does `work`.
fn locked<T>(
    parts: &Parts,
    workspace: Workspace,
    patience: Duration,
    interrupt: &Interrupt,
    work: impl FnOnce(&mut LockedWorkspace) -> Result<T, Error>,
) -> Result<T, Error> {
    parts.lock.note_workspace(workspace.disk_path())?;
    let locked = interrupt.during(|| workspace.lock(patience));
    let mut locked = match (locked, wish::refusal(interrupt, WAITING)) {
        (Ok(locked), _) => locked,
        // Somebody has it, and it was not waited for to the end.
        (Err(e), Some(refused)) if e.kind() == ErrorKind::Busy => return Err(refused),
        (Err(e), _) => return Err(e.into()),
    };
    crate::upkeep::recovery::finish(parts, &mut locked)?;
    crate::upkeep::recovery::adopt_unlisted(parts, &mut locked)?;
    work(&mut locked)
}

/// Takes a snapshot, and returns once it, its row and its event are durable. `fence`: what has to hold for
/// the latter two.
pub(crate) fn capture(
    parts: &Parts,
    locked: &LockedWorkspace,
    backend: &dyn Backend,
    options: &SnapshotOptions,
    session_id: &SessionId,
    run_id: Option<&RunId>,
    fence: Option<Change>,
) -> Result<Snapshot, Error> {
    let snapshot = backend.snapshot(locked, options)?;
    let log = log_of(parts, locked, &snapshot, session_id, run_id);
    keep(parts, fence.into_iter().chain(log).collect())?;
    Ok(snapshot)
}

/// Takes a snapshot as [`capture`] does, unless nothing differs from the newest that is no guard: then that one is the
/// answer, and the other is not kept.
pub(crate) fn capture_if_changed(
    parts: &Parts,
    locked: &mut LockedWorkspace,
    backend: &dyn Backend,
    options: &SnapshotOptions,
    session_id: &SessionId,
) -> Result<TakenSnapshot, Error> {
    let snapshot = backend.snapshot(locked, options)?;
    let latest = SnapshotName::Latest(0);
    let latest = parts
        .reader
        .read_blocking_with(|store| snapshot_name::find(store, latest, Some(locked)));
    let is_unchanged = |latest: &Snapshot| {
        // Where that cannot be found out, what was captured is kept.
        latest.backend == snapshot.backend
            && backend
                .is_unchanged(locked, latest, &snapshot)
                .unwrap_or(false)
    };
    if let Some(latest) = latest.ok().map(|row| row.snapshot).filter(is_unchanged) {
        if backend
            .forget(locked, std::slice::from_ref(&snapshot.id))
            .is_err()
        {
            parts.lock.leave_work();
        }
        return Ok(TakenSnapshot {
            snapshot: latest,
            unchanged: true,
        });
    }
    let log = log_of(parts, locked, &snapshot, session_id, None);
    keep(parts, log.into())?;
    Ok(TakenSnapshot {
        snapshot,
        unchanged: false,
    })
}

/// What the log is told of a snapshot.
fn log_of(
    parts: &Parts,
    workspace: &Workspace,
    snapshot: &Snapshot,
    session_id: &SessionId,
    run_id: Option<&RunId>,
) -> [Change; 2] {
    let event = Change::Append(taken(parts, snapshot, session_id, run_id));
    let row = row_of(workspace, snapshot, Some(session_id), run_id);
    [row, event]
}

/// Writes what the store already has; where that fails the next engine has to look.
pub(crate) fn keep(parts: &Parts, changes: Vec<Change>) -> Result<(), Error> {
    match parts.writer.commit_blocking(changes) {
        Ok(_) => Ok(()),
        Err(e) => {
            parts.lock.leave_work();
            Err(e)
        }
    }
}

/// The row of a snapshot.
pub(crate) fn row_of(
    workspace: &Workspace,
    snapshot: &Snapshot,
    session_id: Option<&SessionId>,
    run_id: Option<&RunId>,
) -> Change {
    Change::AddSnapshot(Box::new(SnapshotRow {
        workspace_id: workspace.id().to_owned(),
        session_id: session_id.cloned(),
        run_id: run_id.cloned(),
        snapshot: snapshot.clone(),
    }))
}

fn taken(
    parts: &Parts,
    snapshot: &Snapshot,
    session_id: &SessionId,
    run_id: Option<&RunId>,
) -> NewEvent {
    let metadata = &snapshot.metadata;
    let mut data = json!({
        "label": snapshot.label,
        "backend": snapshot.backend,
        "ref": snapshot.reference,
        "snapshot_id": snapshot.id,
        "files": metadata.files,
        "files_hashed": metadata.files_hashed,
        "bytes_read": metadata.bytes_read,
        "duration_ms": metadata.duration_ms,
        "omissions": snapshot.omissions().len(),
    });
    if !metadata.search.is_plain_walk() {
        data["search"] = json!(metadata.search);
    }
    let event_type = EventType::WORKSPACE_SNAPSHOT_TAKEN;
    NewEvent::new(event_type, session_id, run_id, parts.now(), data)
}

/// Compares two snapshots. The whole patch, if one is asked for, is in a file without a name, which
/// is at its start.
pub(crate) fn compare(
    parts: &Parts,
    workspace: &Workspace,
    from: &Snapshot,
    to: &Snapshot,
    options: &DiffOptions,
) -> Result<(Diff, Option<File>), Error> {
    if options.max_patch_bytes == 0 {
        return Err(Error::invalid_options("max_patch_bytes must not be zero"));
    }
    if from.backend != to.backend {
        return Err(stillframe_backends::DiffError::DifferentBackends.into());
    }
    let backend = backend_of(parts, from.backend)?;
    if !options.capture_patch {
        let diff = backend.diff(workspace, from, to, options, &mut io::sink())?;
        return Ok((diff, None));
    }
    let (diff, patch) = spooled(parts, |out| {
        Ok(backend.diff(workspace, from, to, options, out)?)
    })?;
    let lacks_patch = !diff.has_patch && diff.files_changed > 0;
    Ok((diff, (!lacks_patch).then_some(patch)))
}

/// What `write` answers with, and what it wrote: in a file without a name, at its start.
pub(crate) fn spooled<T>(
    parts: &Parts,
    write: impl FnOnce(&mut dyn Write) -> Result<T, Error>,
) -> Result<(T, File), Error> {
    let elsewhere = std::env::temp_dir();
    let directory = match parts.state_dir.is_writable() {
        true => parts.state_dir.path(),
        false => &elsewhere,
    };
    let spool = tempfile::tempfile_in(directory)
        .map_err(PathError::at("make a temporary file in", directory))?;
    let mut writer = BufWriter::new(spool);
    let answer = write(&mut writer)?;
    let spooled = writer.flush().and_then(|()| {
        let mut file = writer
            .into_inner()
            .map_err(io::IntoInnerError::into_error)?;
        file.rewind()?;
        Ok(file)
    });
    let file = spooled.map_err(PathError::at("write a temporary file in", directory))?;
    Ok((answer, file))
}

/// Finds the snapshot that `text` [names](SnapshotName); in this workspace, if one is given.
pub(crate) fn find_snapshot(
    store: &dyn StateStore,
    text: &str,
    workspace: Option<&Workspace>,
) -> Result<SnapshotRow, Error> {
    match SnapshotName::parse(text)? {
        SnapshotName::Id(text) => find_by_id(store, text, workspace),
        name => snapshot_name::find(store, name, workspace),
    }
}

/// Finds the one snapshot whose id is `text` or begins so; in this workspace, if one is given.
fn find_by_id(
    store: &dyn StateStore,
    text: &str,
    workspace: Option<&Workspace>,
) -> Result<SnapshotRow, Error> {
    let digits = match text.strip_prefix(SNAPSHOT_PREFIX) {
        Some(digits) => digits,
        None if SNAPSHOT_PREFIX.starts_with(text) => "",
        None => text,
    };
    let is_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    if digits.len() > 32 || !digits.bytes().all(is_hex) {
        return Err(no_snapshot(store, text));
    }
    let prefix = format!("{SNAPSHOT_PREFIX}{digits}");
    let scope = workspace.map(Workspace::id);
    if digits.len() < MIN_BEGINNING {
        let matching = store.count_snapshots_that_begin(&prefix, scope)?;
        return Err(too_short(text, "snapshot", matching));
    }
    let mut found = store.snapshots_that_begin(&prefix, scope)?;
    match (found.pop(), found.is_empty()) {
        (Some(row), true) => Ok(row),
        (Some(row), false) => {
            found.push(row);
            Err(ambiguous(
                text,
                found.iter().map(|row| row.snapshot.id.as_str()),
                store.count_snapshots_that_begin(&prefix, scope)?,
            ))
        }
        (None, _) => {
            let elsewhere = store.snapshots_that_begin(&prefix, None)?;
            match (elsewhere.first(), workspace) {
                (Some(row), Some(workspace)) => Err(Error::invalid_options(format!(
                    "snapshot {} is of the workspace {}, not of {}",
                    row.snapshot.id,
                    printable(&row.snapshot.path),
                    printable(workspace.disk_path())
                ))),
                _ => Err(forgotten(store, &prefix, workspace)?
                    .unwrap_or_else(|| no_snapshot(store, text))),
            }
        }
    }
}

/// Why there is no such snapshot: nobody knows it, or it is a run, which has some.
fn no_snapshot(store: &dyn StateStore, text: &str) -> Error {
    let unknown = || Error::not_found(format!("there is no snapshot {text:?}"));
    // What stands in the way of looking is told by who asks for runs.
    let Ok(run) = find_run(store, text) else {
        return unknown();
    };
    let is_kept = |id: &SnapshotId| matches!(store.snapshot(id), Ok(Some(_)));
    let ends = run.workspace.iter().flat_map(|workspace| {
        let ends = [("before", &workspace.before), ("after", &workspace.after)];
        ends.into_iter().filter(|(_, id)| is_kept(id))
    });
    let ends: Vec<String> = ends.map(|(end, id)| format!("{id} ({end})")).collect();
    Error::not_found(match ends.is_empty() {
        true => format!("{} is a run, and no snapshot of it is kept", run.id),
        false => format!(
            "{} is a run; its snapshots are {}",
            run.id,
            ends.join(" and ")
        ),
    })
}

/// The snapshots of a workspace that clean-ups have taken off the log, as far as what they told can be read.
pub(crate) fn forgotten_by_clean_ups(
    parts: &Parts,
    workspace: &Workspace,
) -> Result<HashSet<SnapshotId>, Error> {
    let told = parts
        .reader
        .read_blocking(|store| told_by_clean_ups(store, "", Some(workspace)));
    match told {
        Ok(told) => Ok(told.into_keys().filter_map(|id| id.parse().ok()).collect()),
        // Of what nobody can say nothing is removed.
        Err(e) if e.kind() == ErrorKind::Corrupt => Ok(HashSet::new()),
        Err(e) => Err(e),
    }
}

/// The ids that begin so of the snapshots that clean-ups say they have forgotten, of one workspace or of any, each
/// with the time at which they did, and whether somebody had named what was to go.
fn told_by_clean_ups(
    store: &dyn StateStore,
    prefix: &str,
    workspace: Option<&Workspace>,
) -> Result<BTreeMap<String, (Timestamp, bool)>, StateError> {
    let query = EventQuery {
        session_id: workspace.map(|workspace| SessionId::of_workspace(workspace.id())),
        ..EventQuery::all().of_type(EventType::WORKSPACE_CLEANED_UP)
    };
    let mut found = BTreeMap::new();
    for (_, event) in store.events(&query, 0)? {
        let ids = event.data["snapshots"].as_array().into_iter().flatten();
        let ids = ids
            .filter_map(|id| id.as_str())
            .filter(|id| id.starts_with(prefix));
        let is_by_name = event.data["by_name"] == true;
        found.extend(ids.map(|id| (id.to_owned(), (event.timestamp, is_by_name))));
    }
    Ok(found)
}

/// Why there is no snapshot any more whose id begins so, if clean-ups have forgotten one, and only one. Reads
/// what they have told.
fn forgotten(
    store: &dyn StateStore,
    prefix: &str,
    workspace: Option<&Workspace>,
) -> Result<Option<Error>, StateError> {
    let mut found = told_by_clean_ups(store, prefix, workspace)?;
    Ok(match (found.pop_first(), found.is_empty()) {
        (Some((id, (at, is_by_name))), true) => {
            let why = match is_by_name {
                true => "because somebody removed it",
                false => "by a clean-up",
            };
            let message = format!("snapshot {id} was forgotten at {at}, {why}");
            Some(Error::not_found(message))
        }
        _ => None,
    })
}

/// As [`find_snapshot`], for a comparison: hash snapshots of two directories may be compared.
pub(crate) fn find_for_diff(
    store: &dyn StateStore,
    text: &str,
    workspace: &Workspace,
) -> Result<SnapshotRow, Error> {
    find_snapshot(store, text, Some(workspace)).or_else(|e| {
        match find_snapshot(store, text, None) {
            Ok(row) if row.snapshot.backend == BackendKind::Hash => Ok(row),
            _ => Err(e),
        }
    })
}

/// Of an id that was made for somebody at least a digit has to be given: what all ids begin with
/// picks none, were there only one.
pub(crate) const MIN_BEGINNING: usize = 1;

/// What every id of a snapshot begins with.
const SNAPSHOT_PREFIX: &str = "snap_";

/// The error of a beginning that has less than [`MIN_BEGINNING`] characters behind its prefix.
pub(crate) fn too_short(text: &str, noun: &str, matching: u64) -> Error {
    let matching = match matching {
        0 => format!("no {noun} begins so"),
        1 => format!("1 {noun} begins so"),
        more => format!("{more} {noun}s begin so"),
    };
    Error::invalid_options(format!(
        "{text:?} is too short for the beginning of a {noun}'s id: give a digit at least; {matching}"
    ))
}

/// The error of a beginning that `matching` ids have, of which these are some.
pub(crate) fn ambiguous<'a>(
    text: &str,
    ids: impl Iterator<Item = &'a str>,
    matching: u64,
) -> Error {
    let ids: Vec<&str> = ids.collect();
    Error::invalid_options(format!(
        "{text:?} is the beginning of {matching} ids, such as {}; give more of it",
        ids.join(", ")
    ))
}

/// The snapshot of this id in this workspace, which the log names; its loss is `NotFound`.
pub(crate) fn known_snapshot(
    store: &dyn StateStore,
    id: &SnapshotId,
    workspace: &Workspace,
) -> Result<Snapshot, Error> {
    match store.snapshot(id)? {
        Some(row) if row.workspace_id == workspace.id() => Ok(row.snapshot),
        _ => Err(match forgotten(store, id.as_str(), Some(workspace))? {
            Some(forgotten) => Error::not_found(format!("{}; nothing was touched", forgotten)),
            None => Error::not_found(format!(
                "snapshot {id} is not kept any more; nothing was touched"
            )),
        }),
    }
}
