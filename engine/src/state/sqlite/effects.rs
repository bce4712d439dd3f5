//! Rows of effects, and of the resulting commits.

use rusqlite::{Connection, Row, params};
use stillframe_backends::Signature;

use super::values::{count, id, json, nanoseconds, optional_time, parse, time, word};
use crate::id::StepId;
use crate::records::effect::{CommitRecord, EffectRow, EffectStatus};
use crate::state::error::StateError;
use crate::state::row_sum::damaged;

/// Writes an effect that is new, or is in the status that was seen.
pub(super) fn put_effect(
    transaction: &Connection,
    from: Option<EffectStatus>,
    row: &EffectRow,
) -> Result<(), StateError> {
    let written = transaction.execute(
        match from {
            None => {
                "INSERT INTO effects (status, commit_id, error, ended_at, id, run_id, step_id,
                     workspace_id, intent, created_at)
                 SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10 WHERE ?11 IS NULL
                 ON CONFLICT DO NOTHING"
            }
            Some(_) => {
                "UPDATE effects SET status = ?1, commit_id = ?2, error = ?3, ended_at = ?4
                  WHERE id = ?5 AND run_id = ?6 AND step_id = ?7 AND workspace_id = ?8
                    AND intent = ?9 AND created_at = ?10 AND status = ?11"
            }
        },
        params![
            row.status.as_str(),
            row.commit,
            row.error.as_ref().map(json),
            row.ended_at.map(nanoseconds),
            row.id.as_str(),
            row.run_id.as_str(),
            row.step_id.as_str(),
            row.workspace_id,
            json(&row.intent),
            nanoseconds(row.created_at),
            from.map(EffectStatus::as_str),
        ],
    )?;
    if written == 0 {
        let what = format!("effect {}", row.id);
        return Err(elsewhere(what, from.map(EffectStatus::as_str)));
    }
    Ok(())
}

/// Writes a commit down; one that is known keeps its owner.
pub(super) fn record_commit(
    transaction: &Connection,
    commit: &CommitRecord,
) -> Result<(), StateError> {
    transaction.execute(
        "INSERT INTO commits (vcs, commit_id, run_id, step_id, message, author_name, author_email,
             files_changed, insertions, deletions, created_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
         ON CONFLICT (vcs, commit_id) DO UPDATE SET message = excluded.message,
             author_name = excluded.author_name, author_email = excluded.author_email,
             files_changed = excluded.files_changed, insertions = excluded.insertions,
             deletions = excluded.deletions",
        params![
            commit.vcs,
            commit.commit,
            commit.run_id.as_str(),
            commit.step_id.as_ref().map(StepId::as_str),
            commit.message,
            commit.author.name,
            commit.author.email,
            count(commit.files_changed),
            count(commit.insertions),
            count(commit.deletions),
            nanoseconds(commit.created_at),
        ],
    )?;
    Ok(())
}

/// The error of a compare-and-swap of a row that found something else.
pub(super) fn elsewhere(what: String, from: Option<&'static str>) -> StateError {
    match from {
        None => StateError::Exists { what },
        Some(from) => StateError::Conflict {
            what,
            expected: from.to_owned(),
            found: "something else by now".to_owned(),
        },
    }
}

pub(super) const SELECT_EFFECT: &str = concat!(
    "SELECT id, run_id, step_id, workspace_id, status, intent, commit_id, error, created_at, ended_at, ",
    damaged!(effects),
    " FROM effects"
);

pub(super) fn read_effect(row: &Row<'_>) -> Result<EffectRow, StateError> {
    let error = row.get::<_, Option<String>>(7)?;
    Ok(EffectRow {
        id: id(row.get(0)?)?,
        run_id: id(row.get(1)?)?,
        step_id: id(row.get(2)?)?,
        workspace_id: row.get(3)?,
        status: word(row.get(4)?, EffectStatus::parse)?,
        intent: parse(&row.get::<_, String>(5)?)?,
        commit: row.get(6)?,
        error: error.map(|text| parse(&text)).transpose()?,
        created_at: time(row.get(8)?)?,
        ended_at: optional_time(row, 9)?,
    })
}

pub(super) const SELECT_COMMIT: &str = concat!(
    "SELECT commit_id, vcs, run_id, step_id, message, author_name, author_email, files_changed, \
     insertions, deletions, created_at, ",
    damaged!(commits),
    " FROM commits"
);

pub(super) fn read_commit(row: &Row<'_>) -> Result<CommitRecord, StateError> {
    let counted = |at: usize| row.get::<_, i64>(at).map(i64::unsigned_abs);
    Ok(CommitRecord {
        commit: row.get(0)?,
        vcs: row.get(1)?,
        run_id: id(row.get(2)?)?,
        step_id: row.get::<_, Option<String>>(3)?.map(id).transpose()?,
        message: row.get(4)?,
        author: Signature::new(row.get::<_, String>(5)?, row.get::<_, String>(6)?),
        files_changed: counted(7)?,
        insertions: counted(8)?,
        deletions: counted(9)?,
        created_at: time(row.get(10)?)?,
    })
}
