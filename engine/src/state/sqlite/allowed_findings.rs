//! Rows of findings of secrets that the user has allowed.

use rusqlite::{Connection, Row, params};
use stillframe_backends::RelPath;

use super::values::{nanoseconds, time};
use crate::records::allowed_finding::AllowedFinding;
use crate::state::error::StateError;
use crate::state::row_sum::damaged;

/// Allows a finding; one that is allowed stays as it is.
pub(super) fn allow_finding(
    transaction: &Connection,
    row: &AllowedFinding,
) -> Result<(), StateError> {
    transaction.execute(
        "INSERT INTO allowed_findings (repository, rule, path, fingerprint, allowed_at)
         VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO NOTHING",
        params![
            row.repository,
            row.rule,
            row.path.as_bytes(),
            row.fingerprint,
            nanoseconds(row.allowed_at),
        ],
    )?;
    Ok(())
}

/// Allows a finding no more.
pub(super) fn forbid_finding(
    transaction: &Connection,
    row: &AllowedFinding,
) -> Result<(), StateError> {
    transaction.execute(
        "DELETE FROM allowed_findings
         WHERE repository = ?1 AND rule = ?2 AND path = ?3 AND fingerprint = ?4",
        params![
            row.repository,
            row.rule,
            row.path.as_bytes(),
            row.fingerprint
        ],
    )?;
    Ok(())
}

pub(super) const SELECT_ALLOWED_FINDING: &str = concat!(
    "SELECT fingerprint, repository, rule, path, allowed_at, ",
    damaged!(allowed_findings),
    " FROM allowed_findings"
);

pub(super) fn read_allowed_finding(row: &Row<'_>) -> Result<AllowedFinding, StateError> {
    let path = RelPath::new(row.get::<_, Vec<u8>>(3)?);
    Ok(AllowedFinding {
        fingerprint: row.get(0)?,
        repository: row.get(1)?,
        rule: row.get(2)?,
        path: path.map_err(|e| StateError::Corrupt {
            detail: format!("a row has a bad path: {e}"),
        })?,
        allowed_at: time(row.get(4)?)?,
    })
}
