//! The records of calls of tools. Each type that a host gets is also a JSON document.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::events::data::{self, CallContents};
use crate::events::event::{EventSource, EventType};
use crate::failure::Failure;
use crate::id::{RunId, StepId};
use crate::records::transcript::text;

/// So many bytes of input or output are kept beside the log, and only a summary in it.
const MIN_BYTES_BESIDE: usize = 1_024;

/// The most characters of a summary.
const MAX_SUMMARY_CHARS: usize = 240;

/// The longest id of a call or name of a tool that is kept in a record, in bytes.
const MAX_NAME_BYTES: usize = 200;

/// Where a call of a tool stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ToolCallStatus {
    /// It was begun.
    Running,
    /// It ended well.
    Completed,
    /// It failed.
    Failed,
    /// Its run ended, or was interrupted, before anybody said how it ended.
    Interrupted,
}

/// A call of a tool in a run, as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ToolCallRecord {
    /// The call, in its run.
    pub call_id: String,
    /// The step in which it was made; `None`: outside of any.
    pub step_id: Option<StepId>,
    /// Who called: the engine, or an agent of which the adapter told.
    pub source: EventSource,
    /// The tool.
    pub tool_name: Option<String>,
    /// Where it stands.
    pub status: ToolCallStatus,
    /// What was given to the tool, if it has less than 1,024 bytes.
    pub input: Option<Value>,
    /// The artifact that has the input, if it is larger.
    pub input_ref: Option<String>,
    /// The beginning of that, at most 240 characters.
    pub input_summary: Option<String>,
    /// The size of the input: of a text its bytes, of anything else those of its JSON. `None`:
    /// nobody told the input.
    pub input_size_bytes: Option<u64>,
    /// What the tool returned, if it has less than 1,024 bytes.
    pub output: Option<Value>,
    /// The artifact that has the output, if it is larger.
    pub output_ref: Option<String>,
    /// The beginning of that, at most 240 characters.
    pub output_summary: Option<String>,
    /// The size of the output, as that of the input.
    pub output_size_bytes: Option<u64>,
    /// Why it failed.
    pub error: Option<Failure>,
    /// When it began; `None`: only its end was told.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
}

impl ToolCallStatus {
    const ALL: [Self; 4] = [
        Self::Running,
        Self::Completed,
        Self::Failed,
        Self::Interrupted,
    ];

    /// The status of this name.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.as_str() == text)
    }

    /// Its name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Interrupted => "interrupted",
        }
    }

    /// What an event of this type says of a call; `None`: nothing.
    fn told_by(event_type: &EventType) -> Option<Self> {
        match event_type {
            told if *told == EventType::TOOL_CALL_STARTED => Some(Self::Running),
            told if *told == EventType::TOOL_CALL_COMPLETED => Some(Self::Completed),
            told if *told == EventType::TOOL_CALL_FAILED => Some(Self::Failed),
            _ => None,
        }
    }
}

impl fmt::Display for ToolCallStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What an event says of a call, for its record. What is `None` stays as it is known.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ToolCallMoved {
    pub(crate) call_id: String,
    pub(crate) step_id: Option<StepId>,
    pub(crate) tool_name: Option<String>,
    pub(crate) status: ToolCallStatus,
    pub(crate) input: Option<Content>,
    pub(crate) output: Option<Content>,
    pub(crate) error: Option<Failure>,
}

impl ToolCallMoved {
    /// What the event of an adapter says of a call, without input and output; `None`: it is about
    /// none, or does not say about which.
    pub(crate) fn told(event_type: &EventType, data: &Value) -> Option<Self> {
        let status = ToolCallStatus::told_by(event_type)?;
        let said = Said::deserialize(data).unwrap_or_default();
        let call_id = said.call_id.filter(|id| is_name(id))?;
        let failure = || Failure {
            kind: said.kind,
            ..Failure::of_work(said.reason.unwrap_or_default())
        };
        Some(Self {
            call_id,
            step_id: None,
            tool_name: said.tool_name.filter(|name| is_name(name)),
            status,
            input: None,
            output: None,
            error: (status == ToolCallStatus::Failed).then(failure),
        })
    }
}

fn is_name(text: &str) -> bool {
    (1..=MAX_NAME_BYTES).contains(&text.len())
}

/// What of an adapter's event a record has. A key that has another form counts as not said.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Said {
    #[serde(deserialize_with = "text")]
    call_id: Option<String>,
    #[serde(deserialize_with = "text")]
    tool_name: Option<String>,
    #[serde(deserialize_with = "text")]
    kind: Option<String>,
    #[serde(deserialize_with = "text")]
    reason: Option<String>,
}

/// What is kept in the log of an input or output.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Content {
    /// All of it, if it is small.
    pub(crate) value: Option<Value>,
    /// The key of the artifact that has it, if it is not.
    pub(crate) artifact: Option<String>,
    pub(crate) summary: Option<String>,
    pub(crate) size_bytes: u64,
}

/// What an input or output is as bytes.
pub(crate) struct Bytes {
    pub(crate) bytes: Vec<u8>,
    pub(crate) content_type: &'static str,
}

impl Bytes {
    /// A text as it is, anything else as JSON.
    pub(crate) fn of(value: &Value) -> Self {
        match value {
            Value::String(text) => Self {
                bytes: text.clone().into_bytes(),
                content_type: "text/plain",
            },
            other => Self {
                bytes: data::bytes(other),
                content_type: "application/json",
            },
        }
    }

    /// Whether `value`, which has these bytes, is kept beside the log.
    pub(crate) fn is_beside(&self, value: &Value) -> bool {
        self.bytes.len() >= MIN_BYTES_BESIDE || data::is_too_deep(std::iter::once(value))
    }
}

impl Content {
    /// What is small.
    pub(crate) fn inline(value: Value, bytes: &Bytes) -> Self {
        Self {
            value: Some(value),
            artifact: None,
            summary: None,
            size_bytes: bytes.bytes.len() as u64,
        }
    }

    /// What is kept beside the log, under this key.
    pub(crate) fn beside(key: String, bytes: &Bytes) -> Self {
        let begin = &bytes.bytes[..bytes.bytes.len().min(4 * MAX_SUMMARY_CHARS)];
        let text = String::from_utf8_lossy(begin);
        Self {
            value: None,
            artifact: Some(key),
            summary: Some(text.chars().take(MAX_SUMMARY_CHARS).collect()),
            size_bytes: bytes.bytes.len() as u64,
        }
    }
}

/// What an event says of input and output.
pub(crate) fn said(input: Option<&Content>, output: Option<&Content>) -> CallContents {
    let beside = |content: Option<&Content>| content.and_then(|of| of.artifact.clone());
    let summary = |content: Option<&Content>| content.and_then(|of| of.summary.clone());
    let value = |content: Option<&Content>| content.and_then(|of| of.value.clone());
    let size = |content: Option<&Content>| {
        let large = content.filter(|of| of.artifact.is_some());
        large.map(|of| of.size_bytes)
    };
    CallContents {
        input: value(input),
        input_ref: beside(input),
        input_summary: summary(input),
        input_size_bytes: size(input),
        output: value(output),
        output_ref: beside(output),
        output_summary: summary(output),
        output_size_bytes: size(output),
    }
}

/// A call of a tool, as it is kept.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ToolCallRow {
    pub(crate) run_id: RunId,
    pub(crate) source: EventSource,
    /// All that is known of it.
    pub(crate) known: ToolCallMoved,
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) ended_at: Option<Timestamp>,
}

impl From<ToolCallRow> for ToolCallRecord {
    fn from(row: ToolCallRow) -> Self {
        let known = row.known;
        let parts = |content: Option<Content>| match content {
            Some(content) => (
                content.value,
                content.artifact,
                content.summary,
                Some(content.size_bytes),
            ),
            None => (None, None, None, None),
        };
        let (input, input_ref, input_summary, input_size_bytes) = parts(known.input);
        let (output, output_ref, output_summary, output_size_bytes) = parts(known.output);
        Self {
            call_id: known.call_id,
            step_id: known.step_id,
            source: row.source,
            tool_name: known.tool_name,
            status: known.status,
            input,
            input_ref,
            input_summary,
            input_size_bytes,
            output,
            output_ref,
            output_summary,
            output_size_bytes,
            error: known.error,
            started_at: row.started_at,
            ended_at: row.ended_at,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_small_is_kept_as_it_is_and_what_is_not_by_its_beginning() {
        for (value, is_beside, size) in [
            (json!("x".repeat(1_023)), false, 1_023),
            (json!("x".repeat(1_024)), true, 1_024),
            (json!({ "a": [1, null] }), false, 14),
            (json!({ "a": "\u{e4}".repeat(600) }), true, 1_208),
        ] {
            let bytes = Bytes::of(&value);
            assert_eq!(
                (bytes.is_beside(&value), bytes.bytes.len()),
                (is_beside, size)
            );
        }
        let mut deep = json!(1);
        for _ in 0..150 {
            deep = json!([deep]);
        }
        assert!(
            Bytes::of(&deep).is_beside(&deep),
            "it could not be read again"
        );
        let long = json!("\u{e4}\n".repeat(1_000));
        let content = Content::beside("key".to_owned(), &Bytes::of(&long));
        assert_eq!(content.summary.as_deref(), Some(&*"\u{e4}\n".repeat(120)));
        let small = Content::inline(json!(7), &Bytes::of(&json!(7)));
        let told = data::data(&said(Some(&small), Some(&content)));
        let summary = "\u{e4}\n".repeat(120);
        let expected = json!({
            "input": 7,
            "output_ref": "key", "output_summary": summary, "output_size_bytes": 3_000,
        });
        assert_eq!(told, expected);
        assert_eq!(data::data(&said(None, None)), json!({}));
    }

    #[test]
    fn only_what_says_which_call_it_is_about_has_a_record() {
        let told = ToolCallMoved::told;
        let started = EventType::TOOL_CALL_STARTED;
        for data in [
            json!({}),
            json!({ "call_id": 7 }),
            json!({ "call_id": "" }),
            json!({ "call_id": "x".repeat(201) }),
            json!("call_id"),
        ] {
            assert_eq!(told(&started, &data), None, "{data}");
        }
        let data = json!({ "call_id": "1", "tool_name": 7, "kind": "Io", "reason": "gone" });
        assert_eq!(told(&EventType::MESSAGE_SENT, &data), None);
        let begun = told(&started, &data).expect("it says which");
        assert_eq!((begun.tool_name, begun.error), (None, None));
        let failed = told(&EventType::TOOL_CALL_FAILED, &data).expect("it says which");
        let error = failed.error.expect("it says why");
        assert_eq!(
            (error.kind.as_deref(), &*error.message),
            (Some("Io"), "gone")
        );
    }
}
