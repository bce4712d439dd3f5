//! Rows of reviews.

use rusqlite::{Connection, Row, params};

use super::values::{id, json, nanoseconds, parse, time, word};
use crate::id::{RunId, StepId};
use crate::records::review::{ReviewRecord, ReviewTarget};
use crate::state::error::StateError;
use crate::state::row_sum::damaged;

/// Writes a review.
pub(super) fn record_review(
    transaction: &Connection,
    review: &ReviewRecord,
) -> Result<(), StateError> {
    transaction.execute(
        "INSERT INTO reviews (id, session_id, run_id, step_id, target_type, target_ref, approved,
             blocking, summary, issues, created_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
        params![
            review.id.as_str(),
            review.session_id.as_str(),
            review.run_id.as_ref().map(RunId::as_str),
            review.step_id.as_ref().map(StepId::as_str),
            review.target_type.as_str(),
            review.target_ref,
            review.approved,
            review.blocking,
            review.summary,
            json(&review.issues),
            nanoseconds(review.created_at),
        ],
    )?;
    Ok(())
}

pub(super) const SELECT_REVIEW: &str = concat!(
    "SELECT id, session_id, run_id, step_id, target_type, target_ref, approved, blocking, \
     summary, issues, created_at, ",
    damaged!(reviews),
    " FROM reviews"
);

pub(super) fn read_review(row: &Row<'_>) -> Result<ReviewRecord, StateError> {
    Ok(ReviewRecord {
        id: id(row.get(0)?)?,
        session_id: id(row.get(1)?)?,
        run_id: row.get::<_, Option<String>>(2)?.map(id).transpose()?,
        step_id: row.get::<_, Option<String>>(3)?.map(id).transpose()?,
        target_type: word(row.get(4)?, ReviewTarget::parse)?,
        target_ref: row.get(5)?,
        approved: row.get(6)?,
        blocking: row.get(7)?,
        summary: row.get(8)?,
        issues: parse(&row.get::<_, String>(9)?)?,
        created_at: time(row.get(10)?)?,
    })
}
