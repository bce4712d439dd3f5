//! Rows of calls of tools.

use jiff::Timestamp;
use rusqlite::{Connection, Row, params};

use super::values::{count, id, json, nanoseconds, optional_count, optional_time, parse, word};
use crate::events::event::EventSource;
use crate::id::{RunId, StepId};
use crate::records::tool_call::{Content, ToolCallMoved, ToolCallRow, ToolCallStatus};
use crate::state::error::StateError;
use crate::state::row_sum::damaged;

/// Writes what an event says of a call. What it does not say stays as it is known; but a call that
/// begins once more begins anew. What an adapter says of a call of the engine's changes nothing.
pub(super) fn move_call(
    transaction: &Connection,
    run_id: &RunId,
    source: EventSource,
    at: Timestamp,
    moved: &ToolCallMoved,
) -> Result<(), StateError> {
    let (input, output) = (moved.input.as_ref(), moved.output.as_ref());
    let is_begun = moved.status == ToolCallStatus::Running;
    let at = nanoseconds(at);
    let known = match is_begun {
        true => {
            "step_id = excluded.step_id, source = excluded.source,
                 tool_name = excluded.tool_name, status = excluded.status,
                 input = excluded.input, input_ref = excluded.input_ref,
                 input_summary = excluded.input_summary, input_bytes = excluded.input_bytes,
                 output = excluded.output, output_ref = excluded.output_ref,
                 output_summary = excluded.output_summary, output_bytes = excluded.output_bytes,
                 error = excluded.error, started_at = excluded.started_at,
                 ended_at = excluded.ended_at"
        }
        false => {
            "tool_name = coalesce(excluded.tool_name, tool_name), status = excluded.status,
                 input = CASE WHEN ?10 IS NULL THEN input ELSE ?7 END,
                 input_ref = CASE WHEN ?10 IS NULL THEN input_ref ELSE ?8 END,
                 input_summary = CASE WHEN ?10 IS NULL THEN input_summary ELSE ?9 END,
                 input_bytes = coalesce(?10, input_bytes),
                 output = excluded.output, output_ref = excluded.output_ref,
                 output_summary = excluded.output_summary, output_bytes = excluded.output_bytes,
                 error = excluded.error, ended_at = excluded.ended_at"
        }
    };
    let mut put = transaction.prepare_cached(&format!(
        "INSERT INTO tool_calls (run_id, call_id, step_id, source, tool_name, status,
             input, input_ref, input_summary, input_bytes,
             output, output_ref, output_summary, output_bytes, error, started_at, ended_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)
         ON CONFLICT (run_id, call_id) DO UPDATE SET {known} WHERE source = excluded.source"
    ))?;
    put.execute(params![
        run_id.as_str(),
        moved.call_id,
        moved.step_id.as_ref().map(StepId::as_str),
        source.as_str(),
        moved.tool_name,
        moved.status.as_str(),
        input.and_then(|of| of.value.as_ref()).map(json),
        input.and_then(|of| of.artifact.as_ref()),
        input.and_then(|of| of.summary.as_ref()),
        input.map(|of| count(of.size_bytes)),
        output.and_then(|of| of.value.as_ref()).map(json),
        output.and_then(|of| of.artifact.as_ref()),
        output.and_then(|of| of.summary.as_ref()),
        output.map(|of| count(of.size_bytes)),
        moved.error.as_ref().map(json),
        is_begun.then_some(at),
        (!is_begun).then_some(at),
    ])?;
    Ok(())
}

pub(super) const SELECT_TOOL_CALL: &str = concat!(
    "SELECT call_id, run_id, step_id, source, tool_name, status, input, input_ref, input_summary, \
     input_bytes, output, output_ref, output_summary, output_bytes, error, started_at, ended_at, ",
    damaged!(tool_calls),
    " FROM tool_calls"
);

pub(super) fn read_tool_call(row: &Row<'_>) -> Result<ToolCallRow, StateError> {
    let text = |at: usize| row.get::<_, Option<String>>(at);
    // Four columns, of which the last says whether there is one.
    let content = |at: usize| -> Result<Option<Content>, StateError> {
        let Some(size_bytes) = optional_count(row, at + 3)? else {
            return Ok(None);
        };
        Ok(Some(Content {
            value: text(at)?.map(|text| parse(&text)).transpose()?,
            artifact: text(at + 1)?,
            summary: text(at + 2)?,
            size_bytes,
        }))
    };
    Ok(ToolCallRow {
        run_id: id(row.get(1)?)?,
        source: word(row.get(3)?, EventSource::of)?,
        known: ToolCallMoved {
            call_id: row.get(0)?,
            step_id: text(2)?.map(id).transpose()?,
            tool_name: text(4)?,
            status: word(row.get(5)?, ToolCallStatus::parse)?,
            input: content(6)?,
            output: content(10)?,
            error: text(14)?.map(|text| parse(&text)).transpose()?,
        },
        started_at: optional_time(row, 15)?,
        ended_at: optional_time(row, 16)?,
    })
}
