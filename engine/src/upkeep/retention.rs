//! Retention: removing old snapshots automatically.
//!
//! A host may apply it at any time. It does something at most once a day, and the first time it
//! only announces what it will do.

use std::fs::OpenOptions;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use stillframe_backends::{
    ErrorKind, Interrupt, LockedWorkspace, Operation, SnapshotId, Workspace, open_regular,
};

use crate::actors::Parts;
use crate::actors::core::Core;
use crate::error::Error;
use crate::events::data::RetentionAnnounced;
use crate::events::event::EventType;
use crate::events::query::EventQuery;
use crate::id::SessionId;
use crate::options::{DAY, RetentionOptions};
use crate::state::StateStore;
use crate::state::change::{Change, NewEvent};
use crate::state::error::StateError;
use crate::upkeep::gc::Upkeep;
use crate::workspace::opened::Opened;
use crate::workspace::{adoption, turn};

/// How long after it was announced the retention begins.
const NOTICE: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// How long retention may free space: its caller has asked for something else and waits. The rest
/// is freed the next time, or by the next clean-up.
pub(crate) const MAX_TIME: Duration = Duration::from_secs(2);

/// The file in the store of a workspace that says when it was looked at last.
const LOOKED_FILE: &str = "retention";

/// The outcome of applying retention.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "did", rename_all = "snake_case")]
#[non_exhaustive]
pub enum RetentionOutcome {
    /// Nothing was done: it has already run today, another process is at work, nothing is due, or
    /// the notice period has not ended.
    Nothing,
    /// It announced for the first time what it will remove, and removed nothing.
    #[non_exhaustive]
    Announced {
        /// How many snapshots it would have removed.
        snapshots: u64,
        /// When it begins.
        begins_at: Timestamp,
    },
    /// It removed snapshots.
    #[non_exhaustive]
    Forgot {
        /// Oldest first.
        snapshots: Vec<SnapshotId>,
        /// How many bytes less the store and the artifacts use than before.
        freed_bytes: u64,
        /// Whether the time was too short to free everything that nothing needs.
        is_cut_short: bool,
    },
}

/// Applies retention to a workspace, if that is due.
pub(crate) async fn apply(
    core: &Core,
    opened: Opened,
    options: RetentionOptions,
) -> Result<RetentionOutcome, Error> {
    let parts = core.parts.clone();
    let workspace = opened.workspace.clone();
    let look = {
        let (path, now) = (looked_path(&workspace), parts.now());
        move || has_looked_today(&path, now)
    };
    if core.parts.blocking.run(look).await? {
        return Ok(RetentionOutcome::Nothing);
    }
    let what = "the retention";
    let applied = turn::work(core, &workspace, what, Duration::ZERO, move |locked| {
        carry_out(&Operation::unbounded(), &parts, locked, &options)
    });
    match applied.await {
        // The operation at work there applies it, or the next one does.
        Err(e) if e.kind() == ErrorKind::Busy => Ok(RetentionOutcome::Nothing),
        applied => applied,
    }
}

fn carry_out(
    op: &Operation,
    parts: &Parts,
    locked: &mut LockedWorkspace,
    options: &RetentionOptions,
) -> Result<RetentionOutcome, Error> {
    let now = parts.now();
    note_look(&looked_path(locked), now);
    let mut upkeep = Upkeep::read(parts, locked)?;
    let due = upkeep.past_retention(op, locked, options, now)?;
    if due.is_empty() {
        return Ok(RetentionOutcome::Nothing);
    }
    let session_id = SessionId::of_workspace(locked.id());
    match parts
        .reader
        .read_blocking(|store| begins_at(store, &session_id))?
    {
        None => announce(parts, &session_id, due.len() as u64, now),
        Some(begins_at) if now < begins_at => Ok(RetentionOutcome::Nothing),
        Some(_) => {
            upkeep.measure(locked)?;
            upkeep.forget(op, locked, due)?;
            let op = op.cancelled_by(&Interrupt::after(MAX_TIME));
            let is_cut_short = match upkeep.collect(&op, locked) {
                Err(e) if e.kind() == ErrorKind::Timeout => true,
                collected => {
                    collected?;
                    false
                }
            };
            Ok(RetentionOutcome::Forgot {
                snapshots: upkeep.outcome.forgotten,
                freed_bytes: upkeep.outcome.freed_bytes,
                is_cut_short,
            })
        }
    }
}

fn announce(
    parts: &Parts,
    session_id: &SessionId,
    snapshots: u64,
    now: Timestamp,
) -> Result<RetentionOutcome, Error> {
    let begins_at = now.checked_add(NOTICE).unwrap_or(Timestamp::MAX);
    let mut changes = adoption::of_new_session(parts, session_id)?;
    let said = RetentionAnnounced {
        snapshots,
        begins_at,
    };
    changes.push(Change::Append(NewEvent::new(
        EventType::WORKSPACE_RETENTION_ANNOUNCED,
        session_id,
        None,
        now,
        said,
    )));
    parts.writer.commit_blocking(changes)?;
    Ok(RetentionOutcome::Announced {
        snapshots,
        begins_at,
    })
}

/// When the retention of a workspace begins; `None`: not announced yet.
fn begins_at(
    store: &dyn StateStore,
    session_id: &SessionId,
) -> Result<Option<Timestamp>, StateError> {
    let query =
        EventQuery::session(session_id.clone()).of_type(EventType::WORKSPACE_RETENTION_ANNOUNCED);
    let told = store.events(&query)?;
    let at = told.first().map(|event| event.timestamp);
    Ok(at.map(|at| at.checked_add(NOTICE).unwrap_or(Timestamp::MAX)))
}

fn looked_path(workspace: &Workspace) -> PathBuf {
    workspace.store_path().join(LOOKED_FILE)
}

/// Whether it was looked at within a day. What cannot be read, and a look to come, are none.
pub(crate) fn has_looked_today(path: &Path, now: Timestamp) -> bool {
    let looked = read_look(path);
    let since = looked.and_then(|at| Duration::try_from(now.duration_since(at)).ok());
    since.is_some_and(|since| since < DAY)
}

fn read_look(path: &Path) -> Option<Timestamp> {
    let file = open_regular(OpenOptions::new().read(true), path).ok()?;
    let mut text = String::new();
    file.take(64).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// Best effort: without it, it is looked again.
pub(crate) fn note_look(path: &Path, now: Timestamp) {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    let file = open_regular(&mut options, path);
    let _ = file.and_then(|mut file| file.write_all(now.to_string().as_bytes()));
}
