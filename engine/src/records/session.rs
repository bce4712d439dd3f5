//! The lifecycle of a session: a table. Pure.

use std::collections::BTreeSet;
use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::events::data;
use crate::events::event::EventType;
use crate::id::SessionId;

/// Where a session stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SessionStatus {
    /// Made, and takes no runs yet.
    Pending,
    /// Takes runs.
    Active,
    /// Takes no runs until it is resumed.
    Paused,
    /// Ended well.
    Completed,
    /// Ended badly.
    Failed,
    /// Given up.
    Cancelled,
}

/// What happens to a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum SessionEvent {
    /// It takes runs from here on.
    Start,
    /// It takes no runs for a while.
    Pause,
    /// It takes runs again.
    Resume,
    /// It ended well.
    Complete,
    /// It ended badly.
    Fail,
    /// It is given up.
    Cancel,
}

/// An event that the lifecycle has no row for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a session that is {from} cannot be {event}")]
pub(crate) struct IllegalSessionEvent {
    from: SessionStatus,
    event: &'static str,
}

impl SessionStatus {
    /// The name that JSON documents use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Active => "active",
            Self::Paused => "paused",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// The status of this name.
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "pending" => Self::Pending,
            "active" => Self::Active,
            "paused" => Self::Paused,
            "completed" => Self::Completed,
            "failed" => Self::Failed,
            "cancelled" => Self::Cancelled,
            _ => return None,
        })
    }

    /// Whether no event leads away from here.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }

    /// Where `event` leads from here, and the event that reports it.
    pub(crate) fn next(
        self,
        event: SessionEvent,
    ) -> Result<(Self, EventType), IllegalSessionEvent> {
        Ok(match (self, event) {
            (Self::Pending, SessionEvent::Start) => (Self::Active, EventType::SESSION_STARTED),
            (Self::Active, SessionEvent::Pause) => (Self::Paused, EventType::SESSION_PAUSED),
            (Self::Paused, SessionEvent::Resume) => (Self::Active, EventType::SESSION_RESUMED),
            (Self::Active, SessionEvent::Complete) => {
                (Self::Completed, EventType::SESSION_COMPLETED)
            }
            (Self::Active, SessionEvent::Fail) => (Self::Failed, EventType::SESSION_FAILED),
            (Self::Active, SessionEvent::Cancel) => (Self::Cancelled, EventType::SESSION_CANCELLED),
            (from, event) => {
                let event = event.participle();
                return Err(IllegalSessionEvent { from, event });
            }
        })
    }
}

impl SessionEvent {
    fn participle(self) -> &'static str {
        match self {
            Self::Start => "started",
            Self::Pause => "paused",
            Self::Resume => "resumed",
            Self::Complete => "completed",
            Self::Fail => "failed",
            Self::Cancel => "cancelled",
        }
    }
}

impl fmt::Display for SessionStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a host says of a session: to find it by, and for itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct SessionDetails {
    /// The agent that works in it, by the host's name for it: 1 to 200 bytes. Default: none.
    pub agent_id: Option<String>,
    /// What it is filed under: at most 64, each of 1 to 100 bytes. Default: none.
    pub tags: BTreeSet<String>,
    /// Whatever else the host keeps with it, at most 64 KiB of JSON, without [secret
    /// values](crate::secrets). Default: empty.
    pub metadata: Map<String, Value>,
    /// The session that it belongs to. Nothing that is done to one is done to the other. Default:
    /// none.
    pub parent_id: Option<SessionId>,
}

impl SessionDetails {
    /// Adds to [`SessionDetails::tags`].
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tags.insert(tag.into());
        self
    }

    /// Sets [`SessionDetails::agent_id`].
    pub fn agent_id(mut self, id: impl Into<String>) -> Self {
        self.agent_id = Some(id.into());
        self
    }

    stillframe_model::setters! {
        metadata: Map<String, Value>,
        parent_id: SessionId,
    }

    /// Says what of it cannot be kept.
    pub(crate) fn check(&self) -> Result<(), String> {
        let is_text = |text: &str, most: usize| {
            (1..=most).contains(&text.len()) && !text.chars().any(char::is_control)
        };
        if let Some(id) = &self.agent_id
            && !is_text(id, MAX_AGENT_ID_BYTES)
        {
            return Err(format!(
                "an agent's id has 1 to {MAX_AGENT_ID_BYTES} bytes and no control character, which is not so of {id:?}"
            ));
        }
        if let Some(tag) = self.tags.iter().find(|tag| !is_text(tag, MAX_TAG_BYTES)) {
            return Err(format!(
                "a tag has 1 to {MAX_TAG_BYTES} bytes and no control character, which is not so of {tag:?}"
            ));
        }
        if self.tags.len() > MAX_TAGS {
            let count = self.tags.len();
            return Err(format!(
                "a session has at most {MAX_TAGS} tags, and not {count}"
            ));
        }
        // What is nested deeper could not be read again.
        if data::is_too_deep(self.metadata.values()) {
            return Err("the metadata of a session is nested more than 100 levels deep".to_owned());
        }
        let bytes = serde_json::to_vec(&self.metadata).map_or(usize::MAX, |text| text.len());
        match bytes > MAX_METADATA_BYTES {
            true => Err(format!(
                "metadata of a session has at most {MAX_METADATA_BYTES} bytes of JSON, this has {bytes}"
            )),
            false => Ok(()),
        }
    }
}

/// As long as the id of a session.
const MAX_AGENT_ID_BYTES: usize = 200;

/// A word or two, not a document.
const MAX_TAG_BYTES: usize = 100;

/// More than anybody files one thing under.
const MAX_TAGS: usize = 64;

/// As that of an event.
const MAX_METADATA_BYTES: usize = 64 * 1024;

/// A session, as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct SessionRecord {
    /// The session.
    pub id: SessionId,
    /// Where it stands.
    pub status: crate::records::session::SessionStatus,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// What the host says of it; beside the other keys in JSON.
    #[serde(flatten)]
    pub details: SessionDetails,
    /// How many of its runs wait in the queue.
    pub queued: u64,
}

/// A session as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SessionRow {
    pub(crate) id: SessionId,
    pub(crate) status: SessionStatus,
    pub(crate) version: u64,
    pub(crate) created_at: Timestamp,
    pub(crate) ended_at: Option<Timestamp>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_is_a_row_of_the_table_or_a_conflict() {
        use SessionEvent::{Cancel, Complete, Fail, Pause, Resume, Start};
        use SessionStatus::{Active, Cancelled, Completed, Failed, Paused, Pending};
        let table = [
            (Pending, Start, Active),
            (Active, Pause, Paused),
            (Paused, Resume, Active),
            (Active, Complete, Completed),
            (Active, Fail, Failed),
            (Active, Cancel, Cancelled),
        ];
        for from in [Pending, Active, Paused, Completed, Failed, Cancelled] {
            assert_eq!(SessionStatus::parse(from.as_str()), Some(from));
            for event in [Start, Pause, Resume, Complete, Fail, Cancel] {
                let row = table.iter().find(|(f, e, _)| (*f, *e) == (from, event));
                assert_eq!(
                    from.next(event).map(|(to, _)| to).ok(),
                    row.map(|(_, _, to)| *to),
                    "{from:?} and {event:?}"
                );
            }
        }
    }
}
