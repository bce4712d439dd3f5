//! The records of what steps do to repositories: intents, their results, and known commits.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use stillframe_backends::{CommitInfo, CommitIntent, Signature};

use crate::failure::Failure;
use crate::id::{EffectId, RunId, StepId};

/// Where an effect stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EffectStatus {
    /// It was requested, and its result is not recorded.
    Pending,
    /// It is done.
    Done,
    /// It cannot be done.
    Failed,
}

impl EffectStatus {
    /// The name that JSON documents use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Done => "done",
            Self::Failed => "failed",
        }
    }

    /// The status of this name.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "pending" => Self::Pending,
            "done" => Self::Done,
            "failed" => Self::Failed,
            _ => return None,
        })
    }
}

impl fmt::Display for EffectStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A commit that a step wants, as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EffectRow {
    pub(crate) id: EffectId,
    pub(crate) run_id: RunId,
    pub(crate) step_id: StepId,
    /// The workspace whose lock is held while it is carried out.
    pub(crate) workspace_id: String,
    pub(crate) status: EffectStatus,
    pub(crate) intent: CommitIntent,
    /// The commit that came of it.
    pub(crate) commit: Option<String>,
    pub(crate) error: Option<Failure>,
    pub(crate) created_at: Timestamp,
    pub(crate) ended_at: Option<Timestamp>,
}

/// A commit that a step wants, as it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct EffectRecord {
    /// The effect.
    #[serde(rename = "effect_id")]
    pub id: EffectId,
    /// The step that wants it.
    pub step_id: StepId,
    /// Where it stands.
    pub status: EffectStatus,
    /// Every byte of the commit.
    pub intent: CommitIntent,
    /// The commit that came of it; another id than the intent's where somebody made the same one
    /// again.
    pub commit: Option<String>,
    /// Why it cannot be done.
    pub error: Option<Failure>,
    /// When it was wanted first.
    pub created_at: Timestamp,
    /// When it was done, or given up.
    pub ended_at: Option<Timestamp>,
}

impl From<EffectRow> for EffectRecord {
    fn from(row: EffectRow) -> Self {
        Self {
            id: row.id,
            step_id: row.step_id,
            status: row.status,
            intent: row.intent,
            commit: row.commit,
            error: row.error,
            created_at: row.created_at,
            ended_at: row.ended_at,
        }
    }
}

/// A commit that is known, as it is kept: one for each id, with the run that first had it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct CommitRecord {
    /// The kind of repository: `git`.
    pub vcs: String,
    /// Its full id.
    pub commit: String,
    /// The run that first recorded it.
    pub run_id: RunId,
    /// The step that first recorded it.
    pub step_id: Option<StepId>,
    /// Its whole message.
    pub message: String,
    /// Its author.
    pub author: Signature,
    /// How many files differ from its first parent; 0, as the counts below, also where those cannot
    /// be read.
    pub files_changed: u64,
    /// How many lines were added, of files that are text.
    pub insertions: u64,
    /// How many lines were removed, of files that are text.
    pub deletions: u64,
    /// When it was first recorded.
    pub created_at: Timestamp,
}

impl CommitRecord {
    /// The record of a commit that was made as it was wanted, and of which no more can be read.
    pub(crate) fn of_effect(effect: &EffectRow, commit: &str, at: Timestamp) -> Self {
        Self {
            vcs: "git".to_owned(),
            commit: commit.to_owned(),
            run_id: effect.run_id.clone(),
            step_id: Some(effect.step_id.clone()),
            message: effect.intent.message.clone(),
            author: effect.intent.signature.clone(),
            files_changed: 0,
            insertions: 0,
            deletions: 0,
            created_at: at,
        }
    }

    /// The record of a commit of git's.
    pub(crate) fn of_git(
        info: CommitInfo,
        run_id: &RunId,
        step_id: Option<&StepId>,
        at: Timestamp,
    ) -> Self {
        Self {
            vcs: "git".to_owned(),
            commit: info.commit,
            run_id: run_id.clone(),
            step_id: step_id.cloned(),
            message: info.message,
            author: info.author,
            files_changed: info.files_changed,
            insertions: info.insertions,
            deletions: info.deletions,
            created_at: at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_is_read_back_from_its_name() {
        for status in [
            EffectStatus::Pending,
            EffectStatus::Done,
            EffectStatus::Failed,
        ] {
            assert_eq!(EffectStatus::parse(status.as_str()), Some(status));
        }
    }
}
