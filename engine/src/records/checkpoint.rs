//! The rows of checkpoints: commits of a task's work that are sent to its branch, with the
//! transitions of a checkpoint. Values and functions over them.

use std::fmt;

use jiff::Timestamp;

use crate::id::{RunId, WorkTaskId};
use crate::records::run::EndsAs;
use stillframe_remote::failure_kind::FailureKind;

/// Why a checkpoint was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CheckpointKind {
    /// Its run failed, ran out of time or was cancelled.
    Wip,
    /// Its run has made progress.
    Periodic,
    /// Its run cannot go on without a person.
    Blocked,
    /// Another one was merged with what the branch had. No workspace is as it says.
    Merge,
}

/// Where a checkpoint stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CheckpointStatus {
    /// The store has the commit, and a ref that keeps it.
    Made,
    /// The remote has taken it, as far as the push said.
    Sent,
    /// The remote has shown it.
    Proven,
    /// It may not be sent. No other checkpoint is made on it.
    Refused,
    /// The user has let go of it, and the store no longer keeps it. No other checkpoint is made on
    /// it.
    Discarded,
}

/// What happens to a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CheckpointEvent {
    /// The remote has taken it.
    Sent,
    /// The remote has shown it. It may have been sent by an engine that died before it said so.
    Proven,
    /// It was not sent or not shown, for a reason that may pass. What it is stays.
    NotSaved,
    /// Secrets, limits or the remote's policy forbid it.
    Refused,
    /// The user lets go of it.
    Discarded,
}

/// A checkpoint, as it is kept. What its commit is never changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CheckpointRow {
    pub(crate) task_id: WorkTaskId,
    /// The repository whose work it is: the id of its store.
    pub(crate) repository: String,
    /// Its number among those of the task in this repository, from 1 on.
    pub(crate) seq: u64,
    pub(crate) kind: CheckpointKind,
    /// The run whose work it has. It stays when the run is forgotten.
    pub(crate) made_by: Option<RunId>,
    /// Its full id.
    pub(crate) commit: String,
    pub(crate) status: CheckpointStatus,
    /// Where it went: an address without credentials; `None`: the task has no remote.
    pub(crate) remote: Option<String>,
    /// The branch that it went to: the task's, or the one beside it.
    pub(crate) branch: Option<String>,
    /// Where the branch was when it was proven, if somebody has moved it on from there.
    pub(crate) advanced_to: Option<String>,
    /// Why it was not saved when that was last tried.
    pub(crate) failure: Option<FailureKind>,
    /// One line.
    pub(crate) error: Option<String>,
    pub(crate) created_at: Timestamp,
    pub(crate) updated_at: Timestamp,
}

/// An event that a checkpoint takes no notice of where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a checkpoint that is {from} cannot be {event}")]
pub(crate) struct IllegalCheckpointEvent {
    from: CheckpointStatus,
    event: CheckpointEvent,
}

impl CheckpointKind {
    pub(crate) const ALL: [Self; 4] = [Self::Wip, Self::Periodic, Self::Blocked, Self::Merge];

    /// The name that JSON documents and trailers use.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Wip => "wip",
            Self::Periodic => "periodic",
            Self::Blocked => "blocked",
            Self::Merge => "merge",
        }
    }

    /// The kind of this name.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.as_str() == text)
    }

    /// Of the last one of a run that ends so.
    pub(crate) fn of_end(ends: EndsAs) -> Self {
        match ends {
            EndsAs::Completed => Self::Periodic,
            EndsAs::Failed | EndsAs::Timeout | EndsAs::Cancelled => Self::Wip,
        }
    }
}

impl CheckpointRow {
    /// Whether it has carried work of a run, which began at this commit, to the remote.
    pub(crate) fn carries(&self, run: &RunId, began_at: Option<&str>) -> bool {
        self.status == CheckpointStatus::Proven
            && self.made_by.as_ref() == Some(run)
            && Some(&*self.commit) != began_at
    }
}

impl CheckpointStatus {
    pub(crate) const ALL: [Self; 5] = [
        Self::Made,
        Self::Sent,
        Self::Proven,
        Self::Refused,
        Self::Discarded,
    ];

    /// The name that JSON documents use.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Made => "made",
            Self::Sent => "sent",
            Self::Proven => "proven",
            Self::Refused => "refused",
            Self::Discarded => "discarded",
        }
    }

    /// The status of this name.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.as_str() == text)
    }

    /// Where `event` leads from here.
    ///
    /// Recovery comes through here like live traffic: what it finds on the remote is proven,
    /// whether or not the push was noted.
    pub(crate) fn next(self, event: CheckpointEvent) -> Result<Self, IllegalCheckpointEvent> {
        Ok(match (self, event) {
            (Self::Made, CheckpointEvent::Sent) => Self::Sent,
            (Self::Made | Self::Sent, CheckpointEvent::Proven) => Self::Proven,
            // It is sent once more: the push said that it was taken, and nobody shows it.
            (Self::Made | Self::Sent, CheckpointEvent::NotSaved) => Self::Made,
            (Self::Made, CheckpointEvent::Refused) => Self::Refused,
            // What is proven is the remote's too, and is not let go of.
            (Self::Made | Self::Sent | Self::Refused, CheckpointEvent::Discarded) => {
                Self::Discarded
            }
            (from, event) => return Err(IllegalCheckpointEvent { from, event }),
        })
    }
}

impl fmt::Display for CheckpointStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for CheckpointEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sent => "sent",
            Self::Proven => "proven",
            Self::NotSaved => "kept without being saved",
            Self::Refused => "refused",
            Self::Discarded => "discarded",
        })
    }
}

/// The checkpoint of a repository that the next one is made on: the last one that was sent or
/// proven, or one since that was made and not sent, which then goes with the next.
///
/// What was refused would stay an ancestor for ever, and so would what it was made on and was never
/// sent: that may be what it was refused for. What the user let go of is gone. A merge has what the
/// workspace has not: one that was made on it would take that away again.
pub(crate) fn base_of_next<'a>(
    checkpoints: impl IntoIterator<Item = &'a CheckpointRow>,
    repository: &str,
) -> Option<&'a CheckpointRow> {
    let own = checkpoints.into_iter();
    let is_of_workspace = |row: &&CheckpointRow| row.kind != CheckpointKind::Merge;
    let own = own.filter(|row| row.repository == repository);
    let mut own: Vec<_> = own.filter(is_of_workspace).collect();
    own.sort_by_key(|row| row.seq);
    let (mut sent, mut made) = (None, None);
    for row in own {
        match row.status {
            CheckpointStatus::Sent | CheckpointStatus::Proven => {
                sent = Some(row);
                made = None;
            }
            CheckpointStatus::Made => made = Some(row),
            CheckpointStatus::Refused | CheckpointStatus::Discarded => made = None,
        }
    }
    made.or(sent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_is_a_row_of_the_table_or_refused() {
        use CheckpointEvent as Event;
        use CheckpointStatus as Status;
        let table = [
            (Status::Made, Event::Sent, Status::Sent),
            (Status::Made, Event::Proven, Status::Proven),
            (Status::Made, Event::NotSaved, Status::Made),
            (Status::Made, Event::Refused, Status::Refused),
            (Status::Sent, Event::Proven, Status::Proven),
            (Status::Sent, Event::NotSaved, Status::Made),
            (Status::Made, Event::Discarded, Status::Discarded),
            (Status::Sent, Event::Discarded, Status::Discarded),
            (Status::Refused, Event::Discarded, Status::Discarded),
        ];
        for from in Status::ALL {
            for event in [
                Event::Sent,
                Event::Proven,
                Event::NotSaved,
                Event::Refused,
                Event::Discarded,
            ] {
                let row = table.iter().find(|(f, e, _)| (*f, *e) == (from, event));
                let next = from.next(event);
                assert_eq!(next.ok(), row.map(|(_, _, to)| *to), "{from} and {event}");
                if let Err(refused) = next {
                    let said = format!("a checkpoint that is {from} cannot be {event}");
                    assert_eq!(refused.to_string(), said);
                }
            }
        }
    }

    #[test]
    fn every_word_is_read_back_from_its_name() {
        for status in CheckpointStatus::ALL {
            assert_eq!(CheckpointStatus::parse(status.as_str()), Some(status));
        }
        for kind in CheckpointKind::ALL {
            assert_eq!(CheckpointKind::parse(kind.as_str()), Some(kind));
        }
    }

    #[test]
    fn the_next_is_made_on_the_last_one_of_its_repository_that_was_not_refused() {
        let row = |repository: &str, seq: u64, status: CheckpointStatus| CheckpointRow {
            task_id: "t".parse().unwrap(),
            repository: repository.to_owned(),
            seq,
            kind: CheckpointKind::Wip,
            made_by: None,
            commit: format!("{repository}{seq}"),
            status,
            remote: None,
            branch: None,
            advanced_to: None,
            failure: None,
            error: None,
            created_at: Timestamp::UNIX_EPOCH,
            updated_at: Timestamp::UNIX_EPOCH,
        };
        use CheckpointStatus::{Discarded, Made, Proven, Refused, Sent};
        let rows = [
            row("a", 1, Proven),
            row("a", 2, Made),
            row("b", 3, Sent),
            row("c", 1, Refused),
            row("d", 1, Proven),
            row("d", 2, Made),
            row("d", 4, Refused),
            row("e", 1, Made),
            row("e", 2, Refused),
            row("f", 1, Refused),
            row("f", 2, Made),
            row("h", 1, Proven),
            CheckpointRow {
                kind: CheckpointKind::Merge,
                ..row("h", 2, Proven)
            },
            row("i", 1, Sent),
            row("i", 2, Discarded),
            row("k", 1, Proven),
            row("k", 2, Discarded),
            row("k", 3, Made),
        ];
        let commit = |repository| base_of_next(&rows, repository).map(|row| row.commit.as_str());
        assert_eq!(
            commit("a"),
            Some("a2"),
            "its push failed, and it goes with the next"
        );
        assert_eq!(commit("b"), Some("b3"));
        assert_eq!(commit("c"), None);
        assert_eq!(
            commit("d"),
            Some("d1"),
            "what was refused may be what the one before it has"
        );
        assert_eq!(commit("e"), None);
        assert_eq!(commit("f"), Some("f2"));
        assert_eq!(commit("g"), None);
        assert_eq!(
            commit("h"),
            Some("h1"),
            "the workspace has not what the merge has"
        );
        assert_eq!(commit("i"), Some("i1"), "what was let go of is gone");
        assert_eq!(commit("k"), Some("k3"));
    }
}
