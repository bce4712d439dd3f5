//! What runs amount to: counts of their rows, and the tokens that were added up.

use jiff::Timestamp;
use rusqlite::{Connection, Row, params};

use super::agents::add_agent_tokens;
use super::values::{count, time};
use crate::id::{AgentId, RunId};
use crate::policy::usage::Usage;
use crate::policy::used::UsedTotal;
use crate::records::run_totals::{RunTotals, TokenTotals};
use crate::state::error::StateError;
use crate::state::row_sum::damaged;

/// Adds what was used to the total of a run; it does not grow beyond what a row can have.
pub(super) fn add_tokens(
    transaction: &Connection,
    run_id: &RunId,
    used: &Usage,
    agent_id: Option<&AgentId>,
) -> Result<(), StateError> {
    let mut add = transaction.prepare_cached(
        "INSERT INTO token_totals (run_id, input_tokens, output_tokens) VALUES (?1, ?2, ?3)
         ON CONFLICT (run_id) DO UPDATE SET
             input_tokens = ?2 + min(input_tokens, 9223372036854775807 - ?2),
             output_tokens = ?3 + min(output_tokens, 9223372036854775807 - ?3)",
    )?;
    add.execute(params![
        run_id.as_str(),
        count(used.input_tokens),
        count(used.output_tokens)
    ])?;
    match agent_id {
        Some(agent_id) => add_agent_tokens(transaction, run_id, used, agent_id),
        None => Ok(()),
    }
}

/// The rows of a run are counted: so a total is what is listed.
pub(super) const SELECT_TOTALS: &str = concat!(
    "SELECT r.id, coalesce(t.input_tokens, 0), coalesce(t.output_tokens, 0),
         (SELECT count(*) FROM tool_calls WHERE run_id = r.id),
         (SELECT count(*) FROM phases WHERE run_id = r.id AND status <> 'skipped'),
         (SELECT count(*) FROM agents WHERE run_id = r.id),
         CASE WHEN t.run_id IS NULL THEN NULL ELSE t.damaged END AS damaged
       FROM runs AS r LEFT JOIN (SELECT run_id, input_tokens, output_tokens, ",
    damaged!(token_totals),
    " FROM token_totals) AS t ON t.run_id = r.id
      WHERE r.id = ?1"
);

pub(super) fn read_totals(row: &Row<'_>) -> Result<RunTotals, StateError> {
    let number = |at: usize| row.get::<_, i64>(at).map(i64::unsigned_abs);
    Ok(RunTotals {
        tokens: TokenTotals {
            input_tokens: number(1)?,
            output_tokens: number(2)?,
        },
        tool_calls: number(3)?,
        iterations: number(4)?,
        agents: number(5)?,
    })
}

/// The sums are made here, however many events there are, and of floating-point numbers, because
/// those of integers fail where they overflow. A row of a version without sources is an adapter's:
/// only they could write it.
pub(super) const SELECT_USED: &str = concat!(
    "SELECT count(CASE type WHEN 'tool_call_started' THEN 1 END),
         total(CASE WHEN is_usage THEN max(0, data ->> '$.input_tokens') END),
         total(CASE WHEN is_usage THEN max(0, data ->> '$.output_tokens') END),
         sum(CASE WHEN is_usage THEN max(0.0, CAST(data ->> '$.cost' AS REAL)) END),
         max(damaged) AS damaged
       FROM (SELECT type, data,
                 type = 'token_usage_updated' AND coalesce(source, 'adapter') = 'adapter'
                     AS is_usage, ",
    damaged!(events),
    " FROM events WHERE run_id = ?1)"
);

pub(super) fn read_used(row: &Row<'_>) -> Result<UsedTotal, StateError> {
    // A sum of numbers that SQLite has is never negative here, and stays at the most there is.
    let tokens = |at: usize| row.get::<_, f64>(at).map(|sum| sum as u64);
    Ok(UsedTotal {
        tool_calls: row.get::<_, i64>(0)?.unsigned_abs(),
        usage: Usage {
            input_tokens: tokens(1)?,
            output_tokens: tokens(2)?,
            cost: row.get(3)?,
        },
    })
}

pub(super) const SELECT_LAST_AT: &str = concat!(
    "SELECT max(timestamp), max(damaged) AS damaged
       FROM (SELECT timestamp, ",
    damaged!(events),
    " FROM events WHERE run_id = ?1 AND source IS NOT 'host')"
);

pub(super) fn read_last_at(row: &Row<'_>) -> Result<Option<Timestamp>, StateError> {
    let last: Option<i64> = row.get(0)?;
    last.map(time).transpose()
}
