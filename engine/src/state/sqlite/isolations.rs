//! Rows of runs with a worktree of their own.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;

use rusqlite::{Connection, Params, Row, params};

use super::effects::elsewhere;
use super::values::{count, id, json, nanoseconds, optional_time, parse, time};
use crate::id::RunId;
use crate::records::isolation::{Candidate, IsolationRow};
use crate::records::revision::{Revision, RevisionRow};
use crate::records::run_row::RunWorkspace;
use crate::state::error::StateError;
use crate::state::isolation_change::IsolationChange;
use crate::state::row_sum::damaged;

/// Writes one change of them as part of `transaction`.
pub(super) fn apply_isolation(
    transaction: &Connection,
    change: &IsolationChange,
) -> Result<(), StateError> {
    match change {
        IsolationChange::Made {
            run_id,
            workspace,
            at,
        } => {
            set_workspace(transaction, run_id, workspace)?;
            let set = "made_at = ?2 WHERE run_id = ?1 AND made_at IS NULL";
            let at = params![run_id.as_str(), nanoseconds(*at)];
            update(transaction, run_id, set, at, "not made")
        }
        IsolationChange::Commit {
            run_id,
            intent,
            out_of_scope,
            unconverted,
        } => {
            let set = "intent = ?2, out_of_scope = ?3, unconverted = ?4, request_id = NULL, commit_id = NULL, tree = NULL,
                 diff = NULL, review_ready_at = NULL, merge = NULL WHERE run_id = ?1 AND made_at IS NOT NULL";
            let intent = intent.as_deref().map(json);
            let values = params![
                run_id.as_str(),
                intent,
                json(out_of_scope),
                json(unconverted)
            ];
            update(transaction, run_id, set, values, "made")
        }
        IsolationChange::HandIn { run_id, candidate } => {
            let set = "intent = NULL, request_id = ?2, commit_id = ?3, tree = ?4, diff = ?5,
                 review_ready_at = ?6 WHERE run_id = ?1 AND request_id IS NULL";
            let values = params![
                run_id.as_str(),
                candidate.request_id.as_str(),
                candidate.commit,
                candidate.tree,
                candidate.diff,
                nanoseconds(candidate.ready_at),
            ];
            update(transaction, run_id, set, values, "not handed in")
        }
        IsolationChange::Decided {
            run_id,
            reviewed_by,
        } => {
            let set = "reviewed_by = ?2 WHERE run_id = ?1";
            let values = params![run_id.as_str(), reviewed_by];
            update(transaction, run_id, set, values, "handed in")
        }
        IsolationChange::Merge { run_id, merge } => {
            let set = "merge = ?2 WHERE run_id = ?1 AND request_id IS NOT NULL";
            let values = params![run_id.as_str(), json(merge)];
            update(transaction, run_id, set, values, "handed in")
        }
        IsolationChange::Revise(row) => revise(transaction, row),
        IsolationChange::LetGo { run_id, at } => {
            let set = "intent = NULL, let_go_at = ?2 WHERE run_id = ?1 AND let_go_at IS NULL";
            let at = params![run_id.as_str(), nanoseconds(*at)];
            update(transaction, run_id, set, at, "kept")
        }
    }
}

/// Writes where a run is to work, which is new.
pub(super) fn add(transaction: &Connection, row: &IsolationRow) -> Result<(), StateError> {
    transaction.execute(
        "INSERT INTO isolations (run_id, repository_path, originating_branch, base, worktree_path,
             worktree_branch, out_of_scope, unconverted)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        params![
            row.run_id.as_str(),
            row.repository_path.as_os_str().as_bytes(),
            row.originating_branch,
            row.base,
            row.worktree_path.as_os_str().as_bytes(),
            row.worktree_branch,
            json(&row.out_of_scope),
            json(&row.unconverted),
        ],
    )?;
    Ok(())
}

/// Where the run works, which nobody could say before.
fn set_workspace(
    transaction: &Connection,
    run_id: &RunId,
    workspace: &RunWorkspace,
) -> Result<(), StateError> {
    transaction.execute(
        "UPDATE runs SET workspace_id = ?2, workspace_path = ?3, before_snapshot = ?4,
             after_snapshot = ?5
          WHERE id = ?1",
        params![
            run_id.as_str(),
            workspace.workspace_id,
            workspace.path.as_os_str().as_bytes(),
            workspace.before.as_str(),
            workspace.after.as_str(),
        ],
    )?;
    Ok(())
}

fn update(
    transaction: &Connection,
    run_id: &RunId,
    set: &str,
    values: impl Params,
    expected: &'static str,
) -> Result<(), StateError> {
    match transaction.execute(&format!("UPDATE isolations SET {set}"), values)? {
        0 => {
            let what = format!("the worktree of run {run_id}");
            Err(elsewhere(what, Some(expected)))
        }
        _ => Ok(()),
    }
}

fn revise(transaction: &Connection, row: &RevisionRow) -> Result<(), StateError> {
    let RevisionRow {
        run_id,
        revision,
        raw_comment,
    } = row;
    transaction.execute(
        "INSERT INTO run_revisions (run_id, revision_number, reviewer, created_at, raw_comment,
             sanitized_comment, previous_tree, row_sum)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, row_sum('run_revisions', ?1, ?2, ?3, ?4, ?5, ?6, ?7))",
        params![
            run_id.as_str(),
            count(revision.number),
            revision.reviewer,
            nanoseconds(revision.created_at),
            raw_comment,
            revision.comment,
            revision.previous_tree,
        ],
    )?;
    Ok(())
}

pub(super) const SELECT_REVISIONS: &str = concat!(
    "SELECT run_id, revision_number, reviewer, created_at, raw_comment, sanitized_comment,
         previous_tree, ",
    damaged!(run_revisions),
    " FROM run_revisions WHERE run_id = ?1 ORDER BY revision_number"
);

pub(super) fn read_revision(row: &Row<'_>) -> Result<RevisionRow, StateError> {
    Ok(RevisionRow {
        run_id: id(row.get(0)?)?,
        revision: Revision {
            number: row.get::<_, u32>(1)?.into(),
            reviewer: row.get(2)?,
            created_at: time(row.get(3)?)?,
            comment: row.get(5)?,
            previous_tree: row.get(6)?,
        },
        raw_comment: row.get(4)?,
    })
}

pub(super) const SELECT_ISOLATION: &str = concat!(
    "SELECT run_id, repository_path, originating_branch, base, worktree_path, worktree_branch, \
     made_at, intent, out_of_scope, request_id, commit_id, tree, diff, review_ready_at, reviewed_by, \
     let_go_at, unconverted, merge, ",
    damaged!(isolations),
    " FROM isolations"
);

pub(super) fn read_isolation(row: &Row<'_>) -> Result<IsolationRow, StateError> {
    let path = |at: usize| -> Result<PathBuf, StateError> {
        Ok(PathBuf::from(OsString::from_vec(row.get(at)?)))
    };
    let intent = row.get::<_, Option<String>>(7)?;
    let merge = row.get::<_, Option<String>>(17)?;
    let request_id = row.get::<_, Option<String>>(9)?;
    let candidate = match (request_id, optional_time(row, 13)?) {
        (Some(request_id), Some(ready_at)) => Some(Candidate {
            request_id: id(request_id)?,
            commit: row.get(10)?,
            tree: row.get(11)?,
            diff: row.get(12)?,
            ready_at,
        }),
        _ => None,
    };
    Ok(IsolationRow {
        run_id: id(row.get(0)?)?,
        repository_path: path(1)?,
        originating_branch: row.get(2)?,
        base: row.get(3)?,
        worktree_path: path(4)?,
        worktree_branch: row.get(5)?,
        made_at: optional_time(row, 6)?,
        intent: intent.map(|text| parse(&text)).transpose()?,
        out_of_scope: parse(&row.get::<_, String>(8)?)?,
        unconverted: parse(&row.get::<_, String>(16)?)?,
        candidate,
        reviewed_by: row.get(14)?,
        merge: merge.map(|text| parse(&text)).transpose()?,
        let_go_at: optional_time(row, 15)?,
    })
}
