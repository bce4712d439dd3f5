//! Rows of agents.

use rusqlite::{Connection, Row, params};

use super::lost::lost;
use super::values::{count, id, json, nanoseconds, optional_time, parse, time, word};
use crate::id::{AgentId, RunId, StepId};
use crate::policy::usage::Usage;
use crate::records::agent::{AgentRecord, AgentStatus};
use crate::records::run_totals::TokenTotals;
use crate::state::error::StateError;
use crate::state::row_sum::damaged;

/// Writes an agent that begins.
pub(super) fn begin_agent(transaction: &Connection, agent: &AgentRecord) -> Result<(), StateError> {
    transaction.execute(
        "INSERT INTO agents (id, run_id, step_id, name, model, prompts, input_tokens,
             output_tokens, status, error, started_at, ended_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
        params![
            agent.id.as_str(),
            agent.run_id.as_str(),
            agent.step_id.as_ref().map(StepId::as_str),
            agent.name,
            agent.model,
            json(&agent.prompts),
            count(agent.tokens.input_tokens),
            count(agent.tokens.output_tokens),
            agent.status.as_str(),
            agent.error.as_ref().map(json),
            nanoseconds(agent.started_at),
            agent.ended_at.map(nanoseconds),
        ],
    )?;
    Ok(())
}

/// Writes what became of an agent that works. Its tokens stay as they were added up.
pub(super) fn change_agent(
    transaction: &Connection,
    agent: &AgentRecord,
) -> Result<(), StateError> {
    let changed = transaction.execute(
        "UPDATE agents SET prompts = ?1, status = ?2, error = ?3, ended_at = ?4
          WHERE id = ?5 AND run_id = ?6 AND status = 'running'",
        params![
            json(&agent.prompts),
            agent.status.as_str(),
            agent.error.as_ref().map(json),
            agent.ended_at.map(nanoseconds),
            agent.id.as_str(),
            agent.run_id.as_str(),
        ],
    )?;
    if changed == 0 {
        let (id, expected) = (agent.id.as_str(), AgentStatus::Running.as_str());
        return Err(lost(transaction, "agents", "agent", id, expected));
    }
    Ok(())
}

/// Adds what was used to the agent of the run that used it, if there is one of this id.
pub(super) fn add_agent_tokens(
    transaction: &Connection,
    run_id: &RunId,
    used: &Usage,
    agent_id: &AgentId,
) -> Result<(), StateError> {
    let mut add = transaction.prepare_cached(
        "UPDATE agents SET
             input_tokens = ?1 + min(input_tokens, 9223372036854775807 - ?1),
             output_tokens = ?2 + min(output_tokens, 9223372036854775807 - ?2)
          WHERE id = ?3 AND run_id = ?4",
    )?;
    add.execute(params![
        count(used.input_tokens),
        count(used.output_tokens),
        agent_id.as_str(),
        run_id.as_str()
    ])?;
    Ok(())
}

pub(super) const SELECT_AGENT: &str = concat!(
    "SELECT id, run_id, step_id, name, model, prompts, input_tokens, output_tokens, status, \
     error, started_at, ended_at, ",
    damaged!(agents),
    " FROM agents"
);

pub(super) fn read_agent(row: &Row<'_>) -> Result<AgentRecord, StateError> {
    let text = |at: usize| row.get::<_, Option<String>>(at);
    Ok(AgentRecord {
        id: id(row.get(0)?)?,
        run_id: id(row.get(1)?)?,
        step_id: text(2)?.map(id).transpose()?,
        name: text(3)?,
        model: text(4)?,
        prompts: parse(&row.get::<_, String>(5)?)?,
        tokens: TokenTotals {
            input_tokens: row.get::<_, i64>(6)?.unsigned_abs(),
            output_tokens: row.get::<_, i64>(7)?.unsigned_abs(),
        },
        status: word(row.get(8)?, AgentStatus::parse)?,
        error: text(9)?.map(|text| parse(&text)).transpose()?,
        started_at: time(row.get(10)?)?,
        ended_at: optional_time(row, 11)?,
    })
}
