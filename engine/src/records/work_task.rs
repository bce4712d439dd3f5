//! The rows of tasks: work that has a branch on a remote, with the transitions of a task. Values
//! and functions over them.

use std::fmt;

use jiff::Timestamp;

use crate::id::{RunId, WorkTaskId};

/// Where a task stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum WorkTaskStatus {
    /// No run has worked on it, or the last one was cancelled.
    Open,
    /// A run works on it.
    Running,
    /// Its work is proven on its branch, and goes on with new input.
    AwaitingFollowup,
    /// Its last run ended well.
    Completed,
    /// Its last run ended badly.
    Failed,
}

/// What happens to a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum WorkTaskEvent {
    /// A run begins to work on it that nobody's input has caused.
    Begun,
    /// A run goes on with it, with new input.
    Claimed,
    /// The run cannot go on without a person, and what it has is proven on the branch.
    Blocked,
    /// The run ended well.
    Completed,
    /// The run ended badly.
    Failed,
    /// The run was cancelled, or nobody wants the task to go on.
    Cancelled,
}

/// What kind of trouble ended the last run of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum FailureClass {
    AgentError,
    TestsFailed,
    PolicyBlock,
    ForgeError,
    HistoryRewrite,
    Timeout,
    Unknown,
}

/// A task, as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WorkTaskRow {
    pub(crate) id: WorkTaskId,
    /// What the host calls it.
    pub(crate) task: String,
    /// Platform and project as slugs, with a slash between; `None`: the remote has one project.
    pub(crate) namespace: Option<String>,
    /// Where its branch is: an address without credentials.
    pub(crate) remote: String,
    /// The branch, without `refs/heads/`. It was computed once.
    pub(crate) branch: String,
    pub(crate) status: WorkTaskStatus,
    /// Counts the changes of the row, from 1 on.
    pub(crate) version: u64,
    /// Why the last run failed, or its work was not saved: one line.
    pub(crate) error: Option<String>,
    pub(crate) last_failure_class: Option<FailureClass>,
    /// How many tries of the same work have failed for reasons that may pass.
    pub(crate) retry_count: u32,
    pub(crate) next_retry_at: Option<Timestamp>,
    /// The run that works on it.
    pub(crate) active_run: Option<RunId>,
    /// How often in a row its work was not saved.
    pub(crate) failures_in_a_row: u32,
    /// When that was last.
    pub(crate) last_failure_at: Option<Timestamp>,
    /// Whether a person should look, because its work was not saved too often.
    pub(crate) is_flagged: bool,
    /// The newest input that was consumed; 0: none was.
    pub(crate) input_cursor: u64,
    pub(crate) created_at: Timestamp,
    pub(crate) updated_at: Timestamp,
}

/// An event that a task takes no notice of where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a task that is {from} cannot be {event}")]
pub(crate) struct IllegalTaskEvent {
    from: WorkTaskStatus,
    event: WorkTaskEvent,
}

impl WorkTaskRow {
    /// A task on which nothing has worked.
    pub(crate) fn new(
        task: impl Into<String>,
        namespace: Option<String>,
        remote: impl Into<String>,
        branch: impl Into<String>,
        at: Timestamp,
    ) -> Self {
        Self {
            id: WorkTaskId::random(),
            task: task.into(),
            namespace,
            remote: remote.into(),
            branch: branch.into(),
            status: WorkTaskStatus::Open,
            version: 1,
            error: None,
            last_failure_class: None,
            retry_count: 0,
            next_retry_at: None,
            active_run: None,
            failures_in_a_row: 0,
            last_failure_at: None,
            is_flagged: false,
            input_cursor: 0,
            created_at: at,
            updated_at: at,
        }
    }

    /// The task with its namespace, as the trailer `Task` of its commits has it.
    pub(crate) fn full_name(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{namespace}/{}", self.task),
            None => self.task.clone(),
        }
    }
}

impl WorkTaskStatus {
    pub(crate) const ALL: [Self; 5] = [
        Self::Open,
        Self::Running,
        Self::AwaitingFollowup,
        Self::Completed,
        Self::Failed,
    ];

    /// The name that JSON documents use.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Running => "running",
            Self::AwaitingFollowup => "awaiting_followup",
            Self::Completed => "completed",
            Self::Failed => "failed",
        }
    }

    /// The status of this name.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.as_str() == text)
    }

    /// Where `event` leads from here.
    pub(crate) fn next(self, event: WorkTaskEvent) -> Result<Self, IllegalTaskEvent> {
        Ok(match (self, event) {
            (Self::Open | Self::Completed | Self::Failed, WorkTaskEvent::Begun) => Self::Running,
            (Self::AwaitingFollowup, WorkTaskEvent::Claimed) => Self::Running,
            (Self::Running, WorkTaskEvent::Blocked) => Self::AwaitingFollowup,
            (Self::Running, WorkTaskEvent::Completed) => Self::Completed,
            (Self::Running, WorkTaskEvent::Failed) => Self::Failed,
            (Self::Running | Self::AwaitingFollowup, WorkTaskEvent::Cancelled) => Self::Open,
            (from, event) => return Err(IllegalTaskEvent { from, event }),
        })
    }
}

impl FailureClass {
    pub(crate) const ALL: [Self; 7] = [
        Self::AgentError,
        Self::TestsFailed,
        Self::PolicyBlock,
        Self::ForgeError,
        Self::HistoryRewrite,
        Self::Timeout,
        Self::Unknown,
    ];

    /// The name that JSON documents use.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::AgentError => "agent_error",
            Self::TestsFailed => "tests_failed",
            Self::PolicyBlock => "policy_block",
            Self::ForgeError => "forge_error",
            Self::HistoryRewrite => "history_rewrite",
            Self::Timeout => "timeout",
            Self::Unknown => "unknown",
        }
    }

    /// The class of this name.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.as_str() == text)
    }
}

impl fmt::Display for WorkTaskStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for WorkTaskEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Begun => "begun",
            Self::Claimed => "claimed",
            Self::Blocked => "blocked",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_is_a_row_of_the_table_or_refused() {
        use WorkTaskEvent as Event;
        use WorkTaskStatus as Status;
        let table = [
            (Status::Open, Event::Begun, Status::Running),
            (Status::Completed, Event::Begun, Status::Running),
            (Status::Failed, Event::Begun, Status::Running),
            (Status::AwaitingFollowup, Event::Claimed, Status::Running),
            (Status::AwaitingFollowup, Event::Cancelled, Status::Open),
            (Status::Running, Event::Blocked, Status::AwaitingFollowup),
            (Status::Running, Event::Completed, Status::Completed),
            (Status::Running, Event::Failed, Status::Failed),
            (Status::Running, Event::Cancelled, Status::Open),
        ];
        for from in Status::ALL {
            for event in [
                Event::Begun,
                Event::Claimed,
                Event::Blocked,
                Event::Completed,
                Event::Failed,
                Event::Cancelled,
            ] {
                let row = table.iter().find(|(f, e, _)| (*f, *e) == (from, event));
                let next = from.next(event);
                assert_eq!(next.ok(), row.map(|(_, _, to)| *to), "{from} and {event}");
                if let Err(refused) = next {
                    let said = format!("a task that is {from} cannot be {event}");
                    assert_eq!(refused.to_string(), said);
                }
            }
        }
    }

    #[test]
    fn every_word_is_read_back_from_its_name() {
        for status in WorkTaskStatus::ALL {
            assert_eq!(WorkTaskStatus::parse(status.as_str()), Some(status));
        }
        for class in FailureClass::ALL {
            assert_eq!(FailureClass::parse(class.as_str()), Some(class));
        }
    }

    #[test]
    fn a_task_has_its_namespace_in_its_full_name() {
        let task = |namespace: Option<&str>| {
            let at = Timestamp::UNIX_EPOCH;
            WorkTaskRow::new("42", namespace.map(str::to_owned), "r", "b", at).full_name()
        };
        assert_eq!(task(None), "42");
        assert_eq!(
            task(Some("azurerepos/engineering")),
            "azurerepos/engineering/42"
        );
    }
}
