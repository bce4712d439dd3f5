//! Rows of runs.

use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;

use jiff::Timestamp;
use rusqlite::{Connection, Row, params};
use serde_json::Value;

use super::came_for;
use super::interrupted;
use super::isolations;
use super::leases::insert_lease;
use super::lost::lost;
use super::queue_state;
use super::values::{id, json, nanoseconds, optional_time, parse, time, word};
use crate::failure::Failure;
use crate::id::RunId;
use crate::records::came_for::CameFor;
use crate::records::restore_document::RestoreDocument;
use crate::records::run::RunStatus;
use crate::records::run_row::{NewRun, RunEnding, RunRow, RunWorkspace};
use crate::state::error::StateError;
use crate::state::row_sum::damaged;

/// Makes a run that is pending, with its lease; its session has to be active.
pub(super) fn create_run(transaction: &Connection, run: &NewRun) -> Result<(), StateError> {
    let exists: bool = transaction.query_row(
        "SELECT EXISTS (SELECT 1 FROM runs WHERE id = ?1)",
        params![run.id.as_str()],
        |row| row.get(0),
    )?;
    if exists {
        let what = format!("run {}", run.id);
        return Err(StateError::Exists { what });
    }
    let active: bool = transaction.query_row(
        "SELECT EXISTS (SELECT 1 FROM sessions WHERE id = ?1 AND status = 'active')",
        params![run.session_id.as_str()],
        |row| row.get(0),
    )?;
    if !active {
        let id = run.session_id.as_str();
        return Err(lost(transaction, "sessions", "session", id, "active"));
    }
    let workspace = run.workspace.as_ref();
    transaction.execute(
        "INSERT INTO runs (id, session_id, engine_id, status, version, input, options,
             workspace_id, workspace_path, before_snapshot, after_snapshot, created_at)
         VALUES (?1, ?2, ?3, 'pending', 1, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
        params![
            run.id.as_str(),
            run.session_id.as_str(),
            run.lease.owner.as_str(),
            run.input,
            json(&run.options),
            workspace.map(|w| w.workspace_id.as_str()),
            workspace.map(|w| w.path.as_os_str().as_bytes()),
            workspace.map(|w| w.before.as_str()),
            workspace.map(|w| w.after.as_str()),
            nanoseconds(run.at),
        ],
    )?;
    insert_lease(transaction, &run.id, &run.lease)?;
    match &run.isolation {
        Some(isolation) => isolations::add(transaction, isolation),
        None => Ok(()),
    }
}

/// Moves a run by compare-and-swap; with what its work ended with, if it has.
pub(super) fn move_run(
    transaction: &Connection,
    id: &RunId,
    (from, to): (RunStatus, RunStatus),
    at: Timestamp,
    (ending, came_for): (Option<&RunEnding>, Option<&CameFor>),
) -> Result<(), StateError> {
    came_for::moves(transaction, id, (from, to), came_for)?;
    let (moved_at, at) = (at, nanoseconds(at));
    let moved = transaction.execute(
        "UPDATE runs SET status = ?1, version = version + 1,
             started_at = coalesce(started_at, ?2), ended_at = ?3,
             exit_code = iif(?10, exit_code, ?4), error = iif(?10, error, ?5),
             output = iif(?10, output, ?6), workspace = iif(?10, workspace, ?7)
          WHERE id = ?8 AND status = ?9",
        params![
            to.as_str(),
            (to == RunStatus::Running).then_some(at),
            to.is_terminal().then_some(at),
            ending.and_then(|e| e.exit_code),
            ending.and_then(|e| e.error.as_ref()).map(json),
            ending.map(|e| json(&e.output)),
            ending.map(|e| json(&e.workspace)),
            id.as_str(),
            from.as_str(),
            keeps_ending(from, to, ending),
        ],
    )?;
    if moved == 0 {
        return Err(lost(transaction, "runs", "run", id.as_str(), from.as_str()));
    }
    interrupted::run_moved(transaction, id, to, moved_at)?;
    queue_state::moved(transaction, id, to)
}

/// Whether how the work stopped is known already.
fn keeps_ending(from: RunStatus, to: RunStatus, ending: Option<&RunEnding>) -> bool {
    let is_known = matches!(from, RunStatus::Candidate | RunStatus::AwaitingReview);
    to == RunStatus::Checkpointing || is_known && ending.is_none()
}

/// Replaces what a host has said of a run.
pub(super) fn set_metadata(
    transaction: &Connection,
    run_id: &RunId,
    metadata: &Value,
) -> Result<(), StateError> {
    transaction.execute(
        "UPDATE runs SET options = json_set(options, '$.metadata', json(?1)) WHERE id = ?2",
        params![json(metadata), run_id.as_str()],
    )?;
    Ok(())
}

/// Replaces the limits of engines that a run is bound by.
pub(super) fn set_engine_limits(
    transaction: &Connection,
    run_id: &RunId,
    limits: &Value,
) -> Result<(), StateError> {
    transaction.execute(
        "UPDATE runs SET options = json_set(options, '$.engine_limits', json(?1)) WHERE id = ?2",
        params![json(limits), run_id.as_str()],
    )?;
    Ok(())
}

/// Puts a rollback that was finished later into the record of its run.
pub(super) fn set_rollback(
    transaction: &Connection,
    run_id: &RunId,
    rollback: &RestoreDocument,
) -> Result<(), StateError> {
    let changed = transaction.execute(
        "UPDATE runs SET version = version + 1,
             workspace = json_set(workspace, '$.rollback', json(?1))
          WHERE id = ?2 AND ended_at IS NOT NULL AND json_type(workspace) = 'object'",
        params![json(rollback), run_id.as_str()],
    )?;
    if changed == 0 {
        let what = format!("run {run_id} that has ended in a workspace");
        return Err(StateError::NotFound { what });
    }
    Ok(())
}

/// Takes patches out of the records of runs: of these runs, and those kept under these keys.
pub(super) fn remove_patches(
    transaction: &Connection,
    runs: &[RunId],
    artifacts: &[String],
) -> Result<(), StateError> {
    let mut embedded = transaction.prepare_cached(
        "UPDATE runs SET version = version + 1,
             workspace = json_set(json_remove(workspace, '$.patch'), '$.patch_purged', json('true'))
          WHERE id = ?1 AND json_type(workspace) = 'object'",
    )?;
    for id in runs {
        embedded.execute(params![id.as_str()])?;
    }
    let mut kept = transaction.prepare_cached(
        "UPDATE runs SET version = version + 1,
             workspace = json_set(json_remove(workspace, '$.patch_ref'), '$.patch_purged', json('true'))
          WHERE json_type(workspace) = 'object' AND workspace ->> '$.patch_ref' = ?1",
    )?;
    for key in artifacts {
        kept.execute(params![key])?;
    }
    Ok(())
}

pub(super) const SELECT_RUN: &str = concat!(
    "SELECT id, session_id, engine_id, status, input, options, workspace_id, \
     workspace_path, before_snapshot, after_snapshot, created_at, started_at, ended_at, exit_code, \
     error, output, workspace, ",
    damaged!(runs),
    " FROM runs"
);

pub(super) fn read_run(row: &Row<'_>) -> Result<RunRow, StateError> {
    let workspace = match row.get::<_, Option<String>>(6)? {
        None => None,
        Some(workspace_id) => {
            let bytes: Vec<u8> = row.get(7)?;
            Some(RunWorkspace {
                workspace_id,
                path: PathBuf::from(std::ffi::OsString::from_vec(bytes)),
                before: id(row.get(8)?)?,
                after: id(row.get(9)?)?,
            })
        }
    };
    let document = |at: usize| -> Result<Value, StateError> {
        row.get::<_, Option<String>>(at)?
            .map_or(Ok(Value::Null), |text| parse(&text))
    };
    Ok(RunRow {
        id: id(row.get(0)?)?,
        session_id: id(row.get(1)?)?,
        engine_id: id(row.get(2)?)?,
        status: word(row.get(3)?, RunStatus::parse)?,
        input: row.get(4)?,
        options: document(5)?,
        workspace,
        created_at: time(row.get(10)?)?,
        started_at: optional_time(row, 11)?,
        ended_at: optional_time(row, 12)?,
        exit_code: row.get(13)?,
        error: row
            .get::<_, Option<String>>(14)?
            .map(|text| parse::<Failure>(&text))
            .transpose()?,
        output: document(15)?,
        summary: document(16)?,
    })
}
