//! What the log is told of a task's work that is being saved.

use stillframe_backends::CheckpointOutcome;

use crate::actors::Parts;
use crate::events::branch_data::{
    PersistFailed, PersistFlagged, PersistStarted, Persisted, PushDivergence, SecretFinding,
};
use crate::events::event::EventType;
use crate::records::checkpoint::CheckpointRow;
use crate::records::work_task::WorkTaskRow;
use crate::saving::making::{Made, Wanted};
use crate::saving::save::Fate;
use crate::saving::sending::NotSent;
use crate::state::change::{Change, NewEvent};

/// Whose work is told of.
pub(crate) struct Telling<'a> {
    pub(crate) parts: &'a Parts,
    pub(crate) task: &'a WorkTaskRow,
    pub(crate) wanted: &'a Wanted,
}

impl Telling<'_> {
    /// It is about to be captured.
    pub(crate) fn started(&self) -> Change {
        self.event(
            EventType::PERSIST_STARTED,
            PersistStarted {
                task_id: &self.task.id,
                checkpoint: self.wanted.kind.as_str(),
                file_count: None,
                recovered: false,
            },
        )
    }

    /// The store has a commit of it that it did not have.
    pub(crate) fn committed(&self, row: &CheckpointRow, outcome: &CheckpointOutcome) -> Change {
        let said = Persisted {
            branch: None,
            unconverted_paths: outcome.unconverted_paths.iter().collect(),
            ..self.persisted(row)
        };
        self.event(EventType::PERSIST_COMMITTED, said)
    }

    /// What became of it at the remote.
    pub(crate) fn ended(&self, made: &Made, row: &CheckpointRow, fate: &Fate) -> Vec<Change> {
        match fate {
            Fate::Kept if made.outcome.is_new => Vec::new(),
            Fate::Kept => vec![self.event(EventType::PERSIST_NOOP, self.persisted(row))],
            Fate::Sent(sent) => {
                let event_type = match sent.was_there {
                    true => EventType::PERSIST_NOOP,
                    false => EventType::PERSIST_PUSHED,
                };
                vec![self.event(event_type, self.persisted(row))]
            }
            Fate::NotSent(not_sent) => vec![self.failed(row, not_sent)],
            Fate::Beside(not_sent, sent) => {
                let divergence = PushDivergence {
                    task_id: &self.task.id,
                    branch: &self.task.branch,
                    side_branch: Some(sent.branch.as_str()),
                };
                vec![
                    self.event(EventType::PUSH_DIVERGENCE_FAILED, divergence),
                    self.event(EventType::PERSIST_PUSHED, self.persisted(row)),
                    self.failed(row, not_sent),
                ]
            }
        }
    }

    /// A person should look.
    pub(crate) fn flagged(&self, failures: u32, not_sent: &NotSent) -> Change {
        let said = PersistFlagged {
            task_id: &self.task.id,
            failures,
            kind: not_sent.kind.as_str(),
        };
        self.event(EventType::PERSIST_FLAGGED, said)
    }

    fn persisted<'r>(&'r self, row: &'r CheckpointRow) -> Persisted<'r> {
        Persisted {
            task_id: &self.task.id,
            repository: &row.repository,
            branch: row.branch.as_deref(),
            commit: &row.commit,
            advanced_to: row.advanced_to.as_deref(),
            unconverted_paths: Vec::new(),
            recovered: false,
        }
    }

    fn failed(&self, row: &CheckpointRow, not_sent: &NotSent) -> Change {
        let findings = not_sent.findings.iter().map(|found| SecretFinding {
            rule: &found.rule,
            path: Some(&found.path).filter(|path| !path.is_root()),
            line: found.line,
            fingerprint: &found.fingerprint,
        });
        let said = PersistFailed {
            task_id: &self.task.id,
            repository: &row.repository,
            branch: Some(&self.task.branch),
            commit: Some(&row.commit),
            kind: not_sent.kind.as_str(),
            reason: &not_sent.why,
            findings: findings.collect(),
            recovered: false,
        };
        self.event(EventType::PERSIST_FAILED, said)
    }

    fn event(&self, event_type: EventType, said: impl serde::Serialize) -> Change {
        let Wanted {
            session_id, run_id, ..
        } = self.wanted;
        let at = self.parts.now();
        Change::Append(NewEvent::new(
            event_type,
            session_id,
            run_id.as_ref(),
            at,
            said,
        ))
    }
}
