//! What the log is told of a task's work that is being saved.

use serde_json::Value;
use stillframe_backends::CheckpointOutcome;

use crate::actors::Parts;
use crate::branches::notices::{self, NotSaved};
use crate::events::branch_data::{
    PersistFailed, PersistFlagged, PersistStarted, Persisted, PushDivergence, SecretFinding,
};
use crate::events::data::data;
use crate::events::event::EventType;
use crate::records::checkpoint::{CheckpointKind, CheckpointRow, CheckpointStatus};
use crate::records::work_task::WorkTaskRow;
use crate::saving::sending::NotSent;
use crate::saving::target::OF_WORKSPACE;
use crate::saving::work::{Fate, Wanted};
use crate::state::branch_change::BranchChange;
use crate::state::change::{Change, NewEvent};

/// Whose work is told of.
pub(crate) struct Telling<'a> {
    pub(crate) parts: &'a Parts,
    pub(crate) task: &'a WorkTaskRow,
    pub(crate) wanted: &'a Wanted,
}

/// What the event says that tells of the begin.
pub(crate) fn started(
    task: &WorkTaskRow,
    kind: CheckpointKind,
    files: Option<u64>,
    recovered: bool,
) -> Value {
    data(&PersistStarted {
        task_id: &task.id,
        checkpoint: kind.as_str(),
        file_count: files,
        recovered,
    })
}

impl Telling<'_> {
    /// It is about to be saved.
    pub(crate) fn started(&self) -> Change {
        let said = started(self.task, self.wanted.kind, None, false);
        self.event(EventType::PERSIST_STARTED, said)
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

    /// It was merged with what its branch has, and is about to be sent once more.
    pub(crate) fn retried(&self) -> Change {
        self.event(EventType::PUSH_DIVERGENCE_RETRIED, self.divergence(None))
    }

    fn divergence<'a>(&'a self, side_branch: Option<&'a str>) -> PushDivergence<'a> {
        PushDivergence {
            task_id: &self.task.id,
            branch: &self.task.branch,
            side_branch,
        }
    }

    /// What became of it at the remote.
    /// `before`: the checkpoint as it was, and whether it was made for this.
    pub(crate) fn ended(
        &self,
        before: (&CheckpointRow, bool),
        row: &CheckpointRow,
        fate: &Fate,
    ) -> Vec<Change> {
        let (before, is_new) = before;
        match fate {
            Fate::Kept if is_new => Vec::new(),
            Fate::Kept => vec![self.event(EventType::PERSIST_NOOP, self.persisted(row))],
            Fate::Sent(sent) => {
                let was_known = sent.was_there && before.status == CheckpointStatus::Proven;
                let (event_type, recovered) = match was_known {
                    true => (EventType::PERSIST_NOOP, false),
                    false => (EventType::PERSIST_PUSHED, sent.was_there),
                };
                let said = Persisted {
                    recovered,
                    ..self.persisted(row)
                };
                vec![self.event(event_type, said)]
            }
            Fate::Merged(..) => vec![
                self.event(EventType::PUSH_DIVERGENCE_RECOVERED, self.divergence(None)),
                self.event(EventType::PERSIST_PUSHED, self.persisted(row)),
            ],
            Fate::NotSent(not_sent) => vec![self.failed(row, not_sent)],
            Fate::Beside(not_sent, sent) => {
                let divergence = self.divergence(Some(sent.branch.as_str()));
                let mut told = vec![self.event(EventType::PUSH_DIVERGENCE_FAILED, divergence)];
                if !sent.was_there {
                    told.push(self.event(EventType::PERSIST_PUSHED, self.persisted(row)));
                }
                told.push(self.failed(row, not_sent));
                told
            }
        }
    }

    /// No commit could be made of it.
    pub(crate) fn not_made(&self, repository: &str, why: &NotSent) -> Change {
        let said = PersistFailed {
            task_id: &self.task.id,
            repository,
            branch: Some(&self.task.branch),
            commit: None,
            kind: why.kind.as_str(),
            reason: &why.why,
            findings: Vec::new(),
            recovered: false,
        };
        self.event(EventType::PERSIST_FAILED, said)
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

    /// What people outside are told of work that is not on its branch; `None`: its run has not
    /// stopped, or there is no remote.
    pub(crate) fn notice(
        &self,
        why: &NotSent,
        (kept, commit): (&str, Option<&str>),
    ) -> Option<Change> {
        let Wanted {
            session_id,
            run_id: Some(run_id),
            stopped: Some(reason),
            ..
        } = self.wanted
        else {
            return None;
        };
        if self.task.remote.starts_with(OF_WORKSPACE) {
            return None;
        }
        let not_saved = NotSaved {
            reason,
            error: &format!("{}: {}", why.kind, why.why),
            kept,
            commit,
            further: self.wanted.further.as_deref(),
        };
        let run = (session_id, run_id);
        let row = notices::failed(self.task, run, not_saved, self.parts.now());
        Some(Change::Branch(Box::new(BranchChange::AddNotice(row))))
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
