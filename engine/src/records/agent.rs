//! The records of agents that work in a run. Each type that a host gets is also a JSON document.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use stillframe_backends::ErrorKind;

use crate::failure::Failure;
use crate::id::{AgentId, RunId, StepId};
use crate::records::run_totals::TokenTotals;

/// The longest name of an agent or a model, in bytes.
const MAX_NAME_BYTES: usize = 200;

/// The most prompts of an agent.
const MAX_PROMPTS: usize = 1_000;

/// Where an agent stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum AgentStatus {
    /// It works.
    Running,
    /// It ended well.
    Completed,
    /// It failed.
    Failed,
    /// Its run ended, or was interrupted, before anybody said how it ended.
    Interrupted,
}

/// An agent that worked in a run, as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct AgentRecord {
    /// The agent.
    #[serde(rename = "agent_id")]
    pub id: AgentId,
    /// The run that it worked in.
    pub run_id: RunId,
    /// The step in which it began; `None`: outside of any.
    pub step_id: Option<StepId>,
    /// What the adapter calls it, such as `reviewer`.
    pub name: Option<String>,
    /// The model that it is, or calls.
    pub model: Option<String>,
    /// The keys of the artifacts with its prompts, in their order.
    pub prompts: Vec<String>,
    /// The tokens that it used, as far as events `token_usage_updated` with its `agent_id` told it.
    #[serde(flatten)]
    pub tokens: TokenTotals,
    /// Where it stands.
    pub status: AgentStatus,
    /// Why it failed.
    pub error: Option<Failure>,
    /// When it began.
    pub started_at: Timestamp,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
}

/// An agent that is about to begin: see
/// [`RunContext::begin_agent`](crate::RunContext::begin_agent).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AgentDraft {
    /// What it is called, such as `reviewer`: 1 to 200 bytes. Default: nothing.
    pub name: Option<String>,
    /// The model that it is, or calls: 1 to 200 bytes. Default: not known.
    pub model: Option<String>,
    /// The keys of artifacts with its prompts, at most 1,000. Default: none.
    pub prompts: Vec<String>,
}

impl AgentDraft {
    /// An agent of which nothing is known.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets [`AgentDraft::name`].
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets [`AgentDraft::model`].
    pub fn model(mut self, model: impl Into<String>) -> Self {
        self.model = Some(model.into());
        self
    }

    /// Adds to [`AgentDraft::prompts`].
    pub fn prompt(mut self, key: impl Into<String>) -> Self {
        self.prompts.push(key.into());
        self
    }

    /// Refuses what cannot be kept.
    pub(crate) fn check(&self) -> Result<(), InvalidAgent> {
        for (what, name) in [("name", &self.name), ("model", &self.model)] {
            let Some(text) = name else { continue };
            if !(1..=MAX_NAME_BYTES).contains(&text.len()) {
                let text = text.clone();
                return Err(InvalidAgent::Name { what, text });
            }
        }
        match self.prompts.len() {
            count if count > MAX_PROMPTS => Err(InvalidAgent::Prompts(count)),
            _ => Ok(()),
        }
    }
}

/// An agent cannot be kept on record.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidAgent {
    #[error(
        "the {what} of an agent has 1 to {MAX_NAME_BYTES} bytes, unlike {text:.40?}; nothing was written"
    )]
    Name { what: &'static str, text: String },
    #[error("an agent has {0} prompts, and {MAX_PROMPTS} is the limit; nothing was written")]
    Prompts(usize),
}

impl InvalidAgent {
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            Self::Name { .. } => ErrorKind::InvalidOptions,
            Self::Prompts(_) => ErrorKind::LimitExceeded,
        }
    }
}

impl AgentStatus {
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
}

impl fmt::Display for AgentStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
