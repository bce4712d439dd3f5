//! Notices: what is to be told to people outside, with the transitions of a notice. Values and
//! functions over them.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::id::{EngineId, RunId, SessionId, WorkTaskId};

/// Something that people outside are to be told of a task's work, and whether they were.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct NoticeRecord {
    /// What it says.
    pub kind: NoticeKind,
    /// The task, as the host calls it.
    pub task: String,
    /// Its namespace, as slugs; null: it has none.
    pub namespace: Option<String>,
    /// The remote of the task, an address without credentials; null: there is none.
    pub remote: Option<String>,
    /// The run whose work it is about; null: that is not known.
    pub run_id: Option<RunId>,
    /// The commit that it is about; null: there is none.
    pub commit: Option<String>,
    /// 64 hexadecimal digits: the same for the same kind, task, and commit or run. It serves as a
    /// key by which a target recognises what it was sent before.
    pub token: String,
    /// All that it says, in Markdown. The last line has the token, as
    /// `<!-- stillframe-action:TOKEN -->`. It has no secret values.
    pub text: String,
    /// Where it stands.
    pub status: NoticeStatus,
    /// How often it was tried. Who goes on with what a dead engine had begun makes that try, and no
    /// other.
    pub attempts: u32,
    /// It is not sent before then; null: at once, or never again.
    pub next_at: Option<Timestamp>,
    /// Why it was not sent when that was last tried: one line.
    pub error: Option<String>,
    /// When it was written, with what it tells of.
    pub created_at: Timestamp,
    /// When it last moved.
    pub updated_at: Timestamp,
}

/// What a notice says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NoticeKind {
    /// The work of a blocked task is proven on its branch.
    CheckpointReady,
    /// The work of a task could not be saved on its branch.
    CheckpointFailed,
}

/// Where a notice stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NoticeStatus {
    /// It is to be sent.
    Pending,
    /// An engine sends it, or has died while it did.
    InProgress,
    /// It was sent, or was there.
    Succeeded,
    /// It is given up, unless somebody asks for it.
    Failed,
}

/// What happens to a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum NoticeEvent {
    /// An engine sends it; or another one does, because that is dead, or because somebody asks for
    /// what was given up.
    Claimed,
    /// Its target shows it.
    Sent,
    /// It was not sent, and is tried again later.
    Postponed,
    /// It was not sent, and is not tried again by itself.
    GivenUp,
}

/// A notice, as it is kept. What it says never changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NoticeRow {
    /// 64 hexadecimal digits that are its own.
    pub(crate) token: String,
    pub(crate) kind: NoticeKind,
    pub(crate) task_id: WorkTaskId,
    /// The commit that it is about.
    pub(crate) commit: Option<String>,
    /// The whole text, with its marker.
    pub(crate) text: String,
    pub(crate) status: NoticeStatus,
    /// How often it was tried.
    pub(crate) attempts: u32,
    /// Not before then.
    pub(crate) next_at: Option<Timestamp>,
    /// The engine that sends it.
    pub(crate) owner: Option<EngineId>,
    /// Why it was not sent when that was last tried: one line.
    pub(crate) error: Option<String>,
    pub(crate) created_at: Timestamp,
    pub(crate) updated_at: Timestamp,
    /// The session whose log has what becomes of it; `None`: nobody knows.
    pub(crate) session_id: Option<SessionId>,
    /// The run whose work it is about.
    pub(crate) run_id: Option<RunId>,
}

/// An event that a notice takes no notice of where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a notice that is {from} cannot be {event}")]
pub(crate) struct IllegalNoticeEvent {
    from: NoticeStatus,
    event: NoticeEvent,
}

impl NoticeKind {
    pub(crate) const ALL: [Self; 2] = [Self::CheckpointReady, Self::CheckpointFailed];

    /// The name that JSON documents and tokens use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::CheckpointReady => "checkpoint_ready",
            Self::CheckpointFailed => "checkpoint_failed",
        }
    }

    /// The kind of this name.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.as_str() == text)
    }
}

impl NoticeStatus {
    pub(crate) const ALL: [Self; 4] = [
        Self::Pending,
        Self::InProgress,
        Self::Succeeded,
        Self::Failed,
    ];

    /// The name that JSON documents use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::InProgress => "in_progress",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
        }
    }

    /// Whether it is still to be sent.
    pub fn is_to_send(self) -> bool {
        matches!(self, Self::Pending | Self::InProgress)
    }

    /// The status of this name.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.as_str() == text)
    }

    /// Where `event` leads from here.
    pub(crate) fn next(self, event: NoticeEvent) -> Result<Self, IllegalNoticeEvent> {
        Ok(match (self, event) {
            (Self::Pending | Self::InProgress | Self::Failed, NoticeEvent::Claimed) => {
                Self::InProgress
            }
            (Self::InProgress, NoticeEvent::Sent) => Self::Succeeded,
            (Self::InProgress, NoticeEvent::Postponed) => Self::Pending,
            (Self::InProgress, NoticeEvent::GivenUp) => Self::Failed,
            (from, event) => return Err(IllegalNoticeEvent { from, event }),
        })
    }
}

impl fmt::Display for NoticeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for NoticeStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for NoticeEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Claimed => "claimed",
            Self::Sent => "sent",
            Self::Postponed => "postponed",
            Self::GivenUp => "given up",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_is_a_row_of_the_table_or_refused() {
        use NoticeEvent as Event;
        use NoticeStatus as Status;
        let table = [
            (Status::Pending, Event::Claimed, Status::InProgress),
            (Status::InProgress, Event::Claimed, Status::InProgress),
            (Status::Failed, Event::Claimed, Status::InProgress),
            (Status::InProgress, Event::Sent, Status::Succeeded),
            (Status::InProgress, Event::Postponed, Status::Pending),
            (Status::InProgress, Event::GivenUp, Status::Failed),
        ];
        for from in Status::ALL {
            for event in [
                Event::Claimed,
                Event::Sent,
                Event::Postponed,
                Event::GivenUp,
            ] {
                let row = table.iter().find(|(f, e, _)| (*f, *e) == (from, event));
                let next = from.next(event);
                assert_eq!(next.ok(), row.map(|(_, _, to)| *to), "{from} and {event}");
                if let Err(refused) = next {
                    let said = format!("a notice that is {from} cannot be {event}");
                    assert_eq!(refused.to_string(), said);
                }
            }
        }
    }

    #[test]
    fn every_word_is_read_back_from_its_name() {
        for status in NoticeStatus::ALL {
            assert_eq!(NoticeStatus::parse(status.as_str()), Some(status));
        }
        for kind in NoticeKind::ALL {
            assert_eq!(NoticeKind::parse(kind.as_str()), Some(kind));
        }
    }
}
