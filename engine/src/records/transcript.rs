//! What a run or a session said: the entries of a transcript. Pure.

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::events::event::{Event, EventSource, EventType};
use crate::id::{RunId, SessionId};
use crate::records::run::RunStatus;

/// The types of events that a transcript is made of.
pub(crate) const TYPES: [EventType; 20] = [
    EventType::RUN_STARTED,
    EventType::RUN_COMPLETED,
    EventType::RUN_FAILED,
    EventType::RUN_CANCELLED,
    EventType::RUN_TIMEOUT,
    EventType::RUN_INTERRUPTED,
    EventType::MESSAGE_SENT,
    EventType::MESSAGE_RECEIVED,
    EventType::MESSAGE_STREAMED,
    EventType::TOOL_CALL_STARTED,
    EventType::TOOL_CALL_COMPLETED,
    EventType::TOOL_CALL_FAILED,
    EventType::TOOL_APPROVAL_REQUESTED,
    EventType::TOOL_APPROVAL_GRANTED,
    EventType::TOOL_APPROVAL_DENIED,
    EventType::QUESTION_ASKED,
    EventType::QUESTION_ANSWERED,
    EventType::TURN_COMPLETED,
    EventType::TOKEN_USAGE_UPDATED,
    EventType::POLICY_VIOLATION,
];

/// Those that the engine writes beside a question.
const APPROVALS: [EventType; 3] = [
    EventType::TOOL_APPROVAL_REQUESTED,
    EventType::TOOL_APPROVAL_GRANTED,
    EventType::TOOL_APPROVAL_DENIED,
];

/// One thing that was said or done in a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct TranscriptEntry {
    /// The position of its event in the log: where a reader goes on.
    pub position: u64,
    /// When.
    pub timestamp: Timestamp,
    /// The session.
    pub session_id: SessionId,
    /// The run, if it belongs to one.
    pub run_id: Option<RunId>,
    /// Who serves what it is about, such as the provider of a model.
    pub provider: Option<String>,
    /// What was said or done.
    #[serde(flatten)]
    pub item: TranscriptItem,
    /// All that its event says, also where that is kept as an artifact; null if that was removed.
    pub data: Value,
    /// Where the transcript does not begin with its run or session, because events of it were
    /// removed from the log: the number in the session from which on none was. In JSON only if so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_sequence: Option<u64>,
}

/// What was said or done. What is `None` or empty was not said by the writer of the event.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum TranscriptItem {
    /// A run began, or was resumed.
    RunStarted {
        /// What the run is for, in the host's words. Empty: the run is not on record any more.
        input: String,
        /// Whether it had begun before.
        resumed: bool,
    },
    /// A run ended, or was interrupted.
    RunEnded {
        /// How.
        status: RunStatus,
        /// Why, if it did not end well.
        reason: Option<String>,
    },
    /// A message to or from an agent or a model.
    Message {
        /// Which way it went.
        direction: MessageDirection,
        /// Which message: pieces of one message have the same. From `data.message_id`.
        message_id: Option<String>,
        /// Whose it is, such as `user` or `assistant`. From `data.role`.
        role: Option<String>,
        /// The text. From `data.text`, or `data.content` if that is text.
        text: Option<String>,
    },
    /// A tool was called, or its call ended.
    ToolCall {
        /// Pairs the beginning of a call with its end.
        call_id: Option<String>,
        /// The tool.
        tool_name: Option<String>,
        /// Where the call stands.
        state: CallState,
        /// What was given to the tool, if the event has it: what is large is an artifact, whose key
        /// is in `data.input_ref`.
        input: Option<Value>,
        /// Why it failed.
        reason: Option<String>,
    },
    /// A call of a tool waits to be allowed, or was, as a host or an adapter tells it. What a
    /// policy asks of a person is a [`TranscriptItem::Question`], and no entry besides.
    ToolApproval {
        /// The call.
        call_id: Option<String>,
        /// The tool.
        tool_name: Option<String>,
        /// What became of it.
        state: ApprovalState,
        /// What was said about it.
        message: Option<String>,
    },
    /// A run asked a person, or got the answer.
    Question {
        /// What was asked.
        question: String,
        /// What was answered; `None`: it was asked.
        answer: Option<String>,
    },
    /// An agent ended its turn.
    TurnCompleted,
    /// What was used has changed, as `data` says.
    TokenUsage,
    /// Something was done that a policy does not allow.
    PolicyViolation {
        /// What it was.
        message: Option<String>,
    },
}

/// Which way a message went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum MessageDirection {
    /// To an agent or a model.
    Sent,
    /// From an agent or a model, whole.
    Received,
    /// A piece of a message from an agent or a model.
    Streamed,
}

/// Where a call of a tool stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CallState {
    /// It began.
    Started,
    /// It ended well.
    Completed,
    /// It failed.
    Failed,
}

/// What became of a call that has to be allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ApprovalState {
    /// Somebody has to allow it.
    Requested,
    /// It was allowed.
    Granted,
    /// It was refused.
    Denied,
}

impl TranscriptEntry {
    /// What `event` means in a transcript; `None`: nothing. `data` is all of its data, and `input`
    /// what its run is for, which is needed of a run that started.
    pub(crate) fn of(event: Event, data: Value, input: Option<String>) -> Option<Self> {
        if event.source == EventSource::Engine && APPROVALS.contains(&event.event_type) {
            // The question that it belongs to says the same.
            return None;
        }
        let item = TranscriptItem::of(&event.event_type, &data, input)?;
        Some(Self {
            position: event.position,
            timestamp: event.timestamp,
            session_id: event.session_id,
            run_id: event.run_id,
            provider: event.provider,
            item,
            data,
            oldest_sequence: None,
        })
    }
}

impl TranscriptItem {
    fn of(event_type: &EventType, data: &Value, input: Option<String>) -> Option<Self> {
        let said = Said::deserialize(data).unwrap_or_default();
        let (call_id, tool_name) = (said.call_id, said.tool_name);
        let ended = |status| Self::RunEnded {
            status,
            reason: said.reason.clone(),
        };
        let message = |direction| Self::Message {
            direction,
            message_id: said.message_id.clone(),
            role: said.role.clone(),
            text: said.text.clone().or_else(|| said.content.clone()),
        };
        let call = |state| Self::ToolCall {
            call_id: call_id.clone(),
            tool_name: tool_name.clone(),
            state,
            input: said.input.clone(),
            reason: said.reason.clone(),
        };
        let approval = |state| Self::ToolApproval {
            call_id: call_id.clone(),
            tool_name: tool_name.clone(),
            state,
            message: said.message.clone(),
        };
        let item = match event_type.as_str() {
            "run_started" => Self::RunStarted {
                input: input.unwrap_or_default(),
                resumed: said.resumed,
            },
            "run_completed" => ended(RunStatus::Completed),
            "run_failed" => ended(RunStatus::Failed),
            "run_cancelled" => ended(RunStatus::Cancelled),
            "run_timeout" => ended(RunStatus::Timeout),
            "run_interrupted" => ended(RunStatus::Interrupted),
            "message_sent" => message(MessageDirection::Sent),
            "message_received" => message(MessageDirection::Received),
            "message_streamed" => message(MessageDirection::Streamed),
            "tool_call_started" => call(CallState::Started),
            "tool_call_completed" => call(CallState::Completed),
            "tool_call_failed" => call(CallState::Failed),
            "tool_approval_requested" => approval(ApprovalState::Requested),
            "tool_approval_granted" => approval(ApprovalState::Granted),
            "tool_approval_denied" => approval(ApprovalState::Denied),
            "question_asked" | "question_answered" => Self::Question {
                question: said.question.unwrap_or_default(),
                answer: said.answer,
            },
            "turn_completed" => Self::TurnCompleted,
            "token_usage_updated" => Self::TokenUsage,
            "policy_violation" => Self::PolicyViolation {
                message: said.message,
            },
            _ => return None,
        };
        Some(item)
    }
}

/// What a transcript shows of the data of events. Hosts and adapters may say what they like, so a
/// key that has another form counts as not said.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Said {
    #[serde(deserialize_with = "text")]
    message_id: Option<String>,
    #[serde(deserialize_with = "text")]
    role: Option<String>,
    #[serde(deserialize_with = "text")]
    text: Option<String>,
    #[serde(deserialize_with = "text")]
    content: Option<String>,
    #[serde(deserialize_with = "text")]
    call_id: Option<String>,
    #[serde(deserialize_with = "text")]
    tool_name: Option<String>,
    #[serde(deserialize_with = "text")]
    reason: Option<String>,
    #[serde(deserialize_with = "text")]
    message: Option<String>,
    #[serde(deserialize_with = "text")]
    question: Option<String>,
    #[serde(deserialize_with = "text")]
    answer: Option<String>,
    input: Option<Value>,
    #[serde(deserialize_with = "truth")]
    resumed: bool,
}

/// A text; anything else counts as not said.
pub(crate) fn text<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    Ok(match Value::deserialize(from)? {
        Value::String(text) => Some(text),
        _ => None,
    })
}

fn truth<'de, D: Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    Ok(Value::deserialize(from)? == Value::Bool(true))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_of_the_types_is_an_entry_and_no_other_is() {
        for event_type in TYPES {
            let item = TranscriptItem::of(&event_type, &Value::Null, None);
            assert!(item.is_some(), "{event_type}");
        }
        for other in [EventType::STEP_STARTED, EventType::new("of_a_host")] {
            assert_eq!(
                TranscriptItem::of(&other, &json!({ "text": "x" }), None),
                None
            );
        }
    }

    #[test]
    fn what_a_writer_did_not_say_or_said_in_another_form_is_left_out() {
        for (data, expected) in [
            (json!({ "text": "a", "content": "b" }), Some("a")),
            (json!({ "content": "b" }), Some("b")),
            (json!({ "content": [{ "text": "b" }] }), None),
            (json!({ "text": 1 }), None),
            (json!("text"), None),
            (Value::Null, None),
        ] {
            let item = TranscriptItem::of(&EventType::MESSAGE_SENT, &data, None);
            let Some(TranscriptItem::Message { text, .. }) = item else {
                panic!("it is a message");
            };
            assert_eq!(text.as_deref(), expected, "{data}");
        }
    }
}
