//! `transcript`: what was said and done in a run or a session.

use serde_json::Value;
use stillframe::options::TranscriptQuery;
use stillframe::records::{
    ApprovalState, CallState, MessageDirection, TranscriptEntry, TranscriptItem,
};

use super::Tools;
use super::subject::{self, Subject};
use crate::failure::{Failure, Place};
use crate::output::{self, Reply, printable};

/// So much text of one message is printed together, so that a message without an end takes little
/// memory.
const MAX_TOGETHER: usize = 64 * 1024;

/// Prints the transcript of a run, or of a session if there is no such run.
pub(super) async fn transcript(
    tools: &Tools,
    id: &str,
    from: Option<u64>,
) -> Result<Reply, Failure> {
    let mut query = match subject::find(tools, id).await? {
        Subject::Run(id) => TranscriptQuery::run(id),
        Subject::Session(id) => TranscriptQuery::session(id),
    };
    query.after_position = from;
    let mut transcript = tools.engine.transcript(query).await?;
    if let Some(line) = subject::removed(transcript.oldest_sequence()) {
        tools.console.note(&line);
    }
    let mut text = TranscriptText::default();
    while let Some(entry) = transcript.next().await {
        let entry = entry.map_err(|e| Failure::from(e).going_on(Place::Position))?;
        let lines = match tools.json {
            true => output::json_line(&entry),
            false => text.add(&entry),
        };
        if !lines.is_empty() && !tools.console.line(&lines)? {
            return Ok(Reply::default());
        }
    }
    let rest = text.take();
    if !rest.is_empty() {
        tools.console.line(&rest)?;
    }
    Ok(Reply::default())
}

/// A transcript as text: a line that says what comes, and below it, indented, what was said.
#[derive(Default)]
struct TranscriptText {
    /// The message whose pieces are being put together, with what is not printed of it yet.
    streamed: Option<Streamed>,
}

struct Streamed {
    message_id: Option<String>,
    headline: String,
    text: String,
}

impl TranscriptText {
    /// The lines to print before whatever follows `entry`.
    fn add(&mut self, entry: &TranscriptEntry) -> String {
        if let TranscriptItem::Message {
            direction: MessageDirection::Streamed,
            message_id,
            text: Some(piece),
            ..
        } = &entry.item
        {
            return self.add_piece(message_id, piece, headline(entry));
        }
        let mut lines = self.take();
        lines += &block(&headline(entry), &said(entry));
        lines
    }

    fn add_piece(&mut self, id: &Option<String>, piece: &str, headline: String) -> String {
        let mut lines = String::new();
        if let Some(streamed) = &mut self.streamed
            && streamed.message_id == *id
            && streamed.text.len() < MAX_TOGETHER
        {
            streamed.text += piece;
            return lines;
        }
        lines += &self.take();
        self.streamed = Some(Streamed {
            message_id: id.clone(),
            headline,
            text: piece.to_owned(),
        });
        lines
    }

    /// What is not printed yet.
    fn take(&mut self) -> String {
        let streamed = self.streamed.take();
        streamed.map_or_else(String::new, |it| block(&it.headline, &it.text))
    }
}

fn block(headline: &str, text: &str) -> String {
    let mut lines = format!("{headline}\n");
    for line in text.lines() {
        lines += &match line.is_empty() {
            true => "\n".to_owned(),
            false => format!("    {}\n", printable(line)),
        };
    }
    lines
}

fn headline(entry: &TranscriptEntry) -> String {
    let named = |name: &Option<String>| name.as_deref().map(printable);
    let by = named(&entry.provider).map_or_else(String::new, |name| format!(" ({name})"));
    let what = match &entry.item {
        TranscriptItem::RunStarted { resumed, .. } => {
            let run = entry.run_id.as_ref().map_or("", |id| id.as_str());
            let verb = if *resumed { "resumed" } else { "started" };
            format!("run {run} {verb}")
        }
        TranscriptItem::RunEnded { status, .. } => format!("run {status}"),
        TranscriptItem::Message {
            direction, role, ..
        } => {
            let direction = match direction {
                MessageDirection::Sent => "sent",
                MessageDirection::Received => "received",
                MessageDirection::Streamed => "streamed",
                _ => "passed on",
            };
            let whose = named(role).map_or_else(String::new, |role| format!(" by {role}"));
            format!("message {direction}{whose}{by}")
        }
        TranscriptItem::ToolCall {
            call_id,
            tool_name,
            state,
            ..
        } => {
            let state = match state {
                CallState::Started => "started",
                CallState::Completed => "completed",
                CallState::Failed => "failed",
                _ => "changed",
            };
            format!("tool {}{by} {state}", tool(tool_name, call_id))
        }
        TranscriptItem::ToolApproval {
            call_id,
            tool_name,
            state,
            ..
        } => {
            let state = match state {
                ApprovalState::Requested => "has to be allowed",
                ApprovalState::Granted => "was allowed",
                ApprovalState::Denied => "was refused",
                _ => "changed",
            };
            format!("tool {} {state}", tool(tool_name, call_id))
        }
        TranscriptItem::Question { answer: None, .. } => "question asked".to_owned(),
        TranscriptItem::Question { .. } => "question answered".to_owned(),
        TranscriptItem::TurnCompleted => format!("turn completed{by}"),
        TranscriptItem::TokenUsage => format!("usage{by}: {}", usage(&entry.data)),
        TranscriptItem::PolicyViolation { .. } => "not allowed by a policy".to_owned(),
        _ => "something else".to_owned(),
    };
    format!("{:.0}  {what}", entry.timestamp)
}

fn tool(name: &Option<String>, call_id: &Option<String>) -> String {
    let name = printable(name.as_deref().unwrap_or("of no name"));
    match call_id {
        Some(id) => format!("{name} [{}]", printable(id)),
        None => name,
    }
}

/// What stands below the headline.
fn said(entry: &TranscriptEntry) -> String {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    match &entry.item {
        TranscriptItem::RunStarted { input, .. } => input.clone(),
        TranscriptItem::RunEnded { reason, .. } => text(reason),
        TranscriptItem::Message { text: None, .. } if !entry.data.is_null() => {
            entry.data.to_string()
        }
        TranscriptItem::Message { text: said, .. } => text(said),
        TranscriptItem::ToolCall { reason, state, .. } => match (state, input(&entry.data)) {
            (CallState::Started, Some(input)) => input,
            _ => text(reason),
        },
        TranscriptItem::ToolApproval { message, .. }
        | TranscriptItem::PolicyViolation { message } => text(message),
        TranscriptItem::Question { question, answer } => match answer {
            None => question.clone(),
            Some(answer) => format!("{question}\n{answer}"),
        },
        _ => String::new(),
    }
}

/// What an adapter says that a tool is called with.
fn input(data: &Value) -> Option<String> {
    // Of what is large the event has the beginning.
    let beginning = || Some(format!("{}…", data.get("input_summary")?.as_str()?));
    match data.get("input") {
        None | Some(Value::Null) => beginning(),
        Some(Value::String(text)) => Some(text.clone()),
        Some(other) => Some(other.to_string()),
    }
}

/// `input_tokens 1200, output_tokens 300`.
fn usage(data: &Value) -> String {
    let Some(object) = data.as_object() else {
        return printable(&data.to_string());
    };
    let counts = object.iter().map(|(key, value)| match value {
        Value::String(text) => format!("{} {}", printable(key), printable(text)),
        other => format!("{} {}", printable(key), printable(&other.to_string())),
    });
    counts.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn usage_is_a_line_whatever_it_says() {
        let counts = json!({ "input_tokens": 1200, "model": "m\u{1b}" });
        assert_eq!(
            usage(&counts),
            format!("input_tokens 1200, model {}", printable("m\u{1b}"))
        );
        assert_eq!(usage(&json!([1])), "[1]");
    }

    #[test]
    fn of_a_large_input_the_beginning_is_shown() {
        assert_eq!(input(&json!({ "input": "ls" })).as_deref(), Some("ls"));
        let large = json!({ "input_summary": "+x", "input_ref": "key" });
        assert_eq!(input(&large).as_deref(), Some("+x…"));
        assert_eq!(input(&json!({ "input": null })), None);
    }

    #[test]
    fn what_is_said_is_indented_and_harmless_for_a_terminal() {
        let block = block("head", "one\n\ntwo\u{1b}[2J\r\n");
        let two = printable("two\u{1b}[2J");
        assert_eq!(block, format!("head\n    one\n\n    {two}\n"));
    }
}
