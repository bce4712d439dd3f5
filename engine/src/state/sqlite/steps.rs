//! Rows of phases, of their steps, and of the tasks of these.

use rusqlite::{Connection, Row, params};
use stillframe_backends::SnapshotId;

use super::effects::elsewhere;
use super::values::{
    count, id, json, nanoseconds, optional_count, optional_time, parse, time, word,
};
use crate::id::{RunId, StepId};
use crate::records::step::{PhaseKey, PhaseRow, StepRow, StepStatus};
use crate::records::task::TaskRow;
use crate::state::error::StateError;
use crate::state::row_sum::damaged;

/// Writes a phase that is new, or is in the status that was seen.
pub(super) fn put_phase(
    transaction: &Connection,
    run_id: &RunId,
    from: Option<StepStatus>,
    row: &PhaseRow,
) -> Result<(), StateError> {
    let written = transaction.execute(
        match from {
            None => {
                "INSERT INTO phases (status, started_at, completed_at, duration_ms, run_id, name, iteration)
                 SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7 WHERE ?8 IS NULL
                 ON CONFLICT (run_id, name, iteration) DO NOTHING"
            }
            Some(_) => {
                "UPDATE phases SET status = ?1, started_at = ?2, completed_at = ?3, duration_ms = ?4
                  WHERE run_id = ?5 AND name = ?6 AND iteration = ?7 AND status = ?8"
            }
        },
        params![
            row.status.as_str(),
            row.started_at.map(nanoseconds),
            row.completed_at.map(nanoseconds),
            row.duration_ms.map(count),
            run_id.as_str(),
            row.key.phase,
            row.key.iteration,
            from.map(StepStatus::as_str),
        ],
    )?;
    if written == 0 {
        let (name, iteration) = (&row.key.phase, row.key.iteration);
        let what = format!("phase {name:?} {iteration} of run {run_id}");
        return Err(elsewhere(what, from.map(StepStatus::as_str)));
    }
    Ok(())
}

/// Writes a step that is new, or is in the status that was seen.
pub(super) fn put_step(
    transaction: &Connection,
    run_id: &RunId,
    from: Option<StepStatus>,
    row: &StepRow,
) -> Result<(), StateError> {
    let written = transaction.execute(
        match from {
            None => {
                "INSERT INTO steps (status, attempt, snapshot_before, snapshot_after, commit_created,
                     result, error, started_at, completed_at, duration_ms, begun_order, ended_order,
                     id, run_id, phase, iteration, name, definition_hash)
                 SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18
                  WHERE ?19 IS NULL
                 ON CONFLICT (run_id, phase, iteration, name) DO NOTHING"
            }
            Some(_) => {
                "UPDATE steps SET status = ?1, attempt = ?2, snapshot_before = ?3, snapshot_after = ?4,
                     commit_created = CASE WHEN attempt = ?2 THEN commit_created ELSE ?5 END,
                     result = ?6, error = ?7,
                     started_at = ?8, completed_at = ?9, duration_ms = ?10, begun_order = ?11,
                     ended_order = ?12
                  WHERE id = ?13 AND run_id = ?14 AND phase = ?15 AND iteration = ?16
                    AND name = ?17 AND definition_hash = ?18 AND status = ?19"
            }
        },
        params![
            row.status.as_str(),
            row.attempt,
            row.snapshot_before.as_ref().map(SnapshotId::as_str),
            row.snapshot_after.as_ref().map(SnapshotId::as_str),
            row.commit_created,
            row.result.as_ref().map(json),
            row.error.as_ref().map(json),
            row.started_at.map(nanoseconds),
            row.completed_at.map(nanoseconds),
            row.duration_ms.map(count),
            row.begun_order.map(count),
            row.ended_order.map(count),
            row.id.as_str(),
            run_id.as_str(),
            row.phase.phase,
            row.phase.iteration,
            row.name,
            row.definition_hash,
            from.map(StepStatus::as_str),
        ],
    )?;
    if written == 0 {
        let what = format!("step {:?} of run {run_id}", row.name);
        return Err(elsewhere(what, from.map(StepStatus::as_str)));
    }
    Ok(())
}

/// Writes a task; another attempt takes the row over.
pub(super) fn put_task(transaction: &Connection, row: &TaskRow) -> Result<(), StateError> {
    let written = transaction.execute(
        "INSERT INTO tasks (run_id, step_id, name, attempt, status, error, started_at, completed_at,
             duration_ms)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
         ON CONFLICT (step_id, name) DO UPDATE SET attempt = excluded.attempt,
             status = excluded.status, error = excluded.error, started_at = excluded.started_at,
             completed_at = excluded.completed_at, duration_ms = excluded.duration_ms
          WHERE excluded.status <> 'running' OR status <> 'running' OR attempt < excluded.attempt",
        params![
            row.run_id.as_str(),
            row.step_id.as_str(),
            row.name,
            row.attempt,
            row.status.as_str(),
            row.error.as_ref().map(json),
            nanoseconds(row.started_at),
            row.completed_at.map(nanoseconds),
            row.duration_ms.map(count),
        ],
    )?;
    if written == 0 {
        let what = format!(
            "task {:?} of step {}, which is under way,",
            row.name, row.step_id
        );
        return Err(StateError::Exists { what });
    }
    Ok(())
}

/// Writes down the commit that a step has made.
pub(super) fn set_step_commit(
    transaction: &Connection,
    run_id: &RunId,
    step_id: &StepId,
    commit: &str,
) -> Result<(), StateError> {
    let set = transaction.execute(
        "UPDATE steps SET commit_created = ?1 WHERE run_id = ?2 AND id = ?3",
        params![commit, run_id.as_str(), step_id.as_str()],
    )?;
    if set == 0 {
        let what = format!("step {step_id} of run {run_id}");
        return Err(StateError::NotFound { what });
    }
    Ok(())
}

pub(super) const SELECT_PHASE: &str = concat!(
    "SELECT name, iteration, status, started_at, completed_at, duration_ms, ",
    damaged!(phases),
    " FROM phases"
);

pub(super) fn read_phase(row: &Row<'_>) -> Result<PhaseRow, StateError> {
    Ok(PhaseRow {
        key: PhaseKey {
            phase: row.get(0)?,
            iteration: row.get(1)?,
        },
        status: word(row.get(2)?, StepStatus::parse)?,
        started_at: optional_time(row, 3)?,
        completed_at: optional_time(row, 4)?,
        duration_ms: optional_count(row, 5)?,
    })
}

pub(super) const SELECT_STEP: &str = concat!(
    "SELECT id, phase, iteration, name, status, attempt, definition_hash, snapshot_before, \
     snapshot_after, commit_created, result, error, started_at, completed_at, duration_ms, \
     begun_order, ended_order, ",
    damaged!(steps),
    " FROM steps"
);

pub(super) fn read_step(row: &Row<'_>) -> Result<StepRow, StateError> {
    let text = |at: usize| row.get::<_, Option<String>>(at);
    Ok(StepRow {
        id: id(row.get(0)?)?,
        phase: PhaseKey {
            phase: row.get(1)?,
            iteration: row.get(2)?,
        },
        name: row.get(3)?,
        status: word(row.get(4)?, StepStatus::parse)?,
        attempt: row.get(5)?,
        definition_hash: row.get(6)?,
        snapshot_before: text(7)?.map(id).transpose()?,
        snapshot_after: text(8)?.map(id).transpose()?,
        commit_created: text(9)?,
        result: text(10)?.map(|text| parse(&text)).transpose()?,
        error: text(11)?.map(|text| parse(&text)).transpose()?,
        started_at: optional_time(row, 12)?,
        completed_at: optional_time(row, 13)?,
        duration_ms: optional_count(row, 14)?,
        begun_order: optional_count(row, 15)?,
        ended_order: optional_count(row, 16)?,
    })
}

pub(super) const SELECT_TASK: &str = concat!(
    "SELECT name, run_id, step_id, attempt, status, error, started_at, completed_at, duration_ms, ",
    damaged!(tasks),
    " FROM tasks"
);

pub(super) fn read_task(row: &Row<'_>) -> Result<TaskRow, StateError> {
    let error = row.get::<_, Option<String>>(5)?;
    Ok(TaskRow {
        name: row.get(0)?,
        run_id: id(row.get(1)?)?,
        step_id: id(row.get(2)?)?,
        attempt: row.get(3)?,
        status: word(row.get(4)?, StepStatus::parse)?,
        error: error.map(|text| parse(&text)).transpose()?,
        started_at: time(row.get(6)?)?,
        completed_at: optional_time(row, 7)?,
        duration_ms: optional_count(row, 8)?,
    })
}
