//! Recording the agents that work in a run.

use std::fmt;

use serde_json::json;

use crate::error::Error;
use crate::events::event::EventType;
use crate::failure::Failure;
use crate::id::AgentId;
use crate::records::agent::{AgentDraft, AgentRecord, AgentStatus};
use crate::records::run_totals::TokenTotals;
use crate::step::context::RunContext;

/// An agent on record that works in a run.
///
/// One that is dropped before it is [completed](Self::complete) or [failed](Self::fail) is
/// `interrupted` with its run.
pub struct Agent {
    context: RunContext,
    record: AgentRecord,
}

impl RunContext {
    /// Records that an agent begins to work, with its model and its prompts. The run's
    /// [`total_agents`](crate::records::RunRecord::total_agents) counts it, and
    /// [`Engine::agents`](crate::Engine::agents) lists it.
    ///
    /// A prompt is an [artifact](RunContext::put_artifact), which a clean-up leaves.
    ///
    /// ```no_run
    /// # use std::io::Cursor;
    /// # use stillframe::records::{AgentDraft, ArtifactDraft};
    /// # async fn work(context: stillframe::RunContext) -> Result<(), stillframe::AdapterError> {
    /// let draft = ArtifactDraft::new("prompt-42", "text/plain");
    /// let prompt = context.put_artifact(draft, Box::new(Cursor::new("Review it."))).await?;
    /// let draft = AgentDraft::new().name("reviewer").model("large-1").prompt(prompt.key);
    /// let agent = context.begin_agent(draft).await?;
    /// agent.used_tokens(1_200, 310).await?;
    /// agent.complete().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Nothing was written. `InvalidOptions`: a name is empty or too long. `LimitExceeded`: there
    /// are too many prompts. `NotFound`: there is no artifact of a prompt's key. `Conflict`: the
    /// run has ended, or another engine has taken it over.
    pub async fn begin_agent(&self, draft: AgentDraft) -> Result<Agent, Error> {
        draft.check().map_err(|e| Error::new(e.kind(), e))?;
        let record = AgentRecord {
            id: AgentId::random(),
            run_id: self.run_id.clone(),
            step_id: self.step_id.clone(),
            name: draft.name,
            model: draft.model,
            prompts: draft.prompts,
            tokens: TokenTotals::default(),
            status: AgentStatus::Running,
            error: None,
            started_at: self.steps.now(),
            ended_at: None,
        };
        self.steps.begin_agent(record.clone()).await?;
        Ok(Agent {
            context: self.clone(),
            record,
        })
    }
}

impl Agent {
    /// Names it in its record, and in the data of events `token_usage_updated` (`agent_id`).
    pub fn id(&self) -> &AgentId {
        &self.record.id
    }

    /// Adds a prompt to its record, by the key of its artifact.
    ///
    /// # Errors
    ///
    /// As [`RunContext::begin_agent`].
    pub async fn add_prompt(&mut self, key: impl Into<String>) -> Result<(), Error> {
        let mut draft = AgentDraft {
            prompts: self.record.prompts.clone(),
            ..AgentDraft::default()
        };
        draft.prompts.push(key.into());
        draft.check().map_err(|e| Error::new(e.kind(), e))?;
        let steps = &self.context.steps;
        steps
            .check_prompts(&draft.prompts[self.record.prompts.len()..])
            .await?;
        let record = AgentRecord {
            prompts: draft.prompts,
            ..self.record.clone()
        };
        steps.change_agent(record.clone()).await?;
        self.record = record;
        Ok(())
    }

    /// Reports the tokens that it used since the last report, as an event `token_usage_updated`
    /// with its `agent_id`. They are added to its record and to those of the run.
    pub async fn used_tokens(&self, input: u64, output: u64) -> Result<(), Error> {
        let used = json!({
            "agent_id": self.record.id,
            "input_tokens": input,
            "output_tokens": output,
        });
        self.context
            .emit(EventType::TOKEN_USAGE_UPDATED, used)
            .await?;
        Ok(())
    }

    /// Records that it ended well.
    pub async fn complete(self) -> Result<(), Error> {
        self.end(AgentStatus::Completed, None).await
    }

    /// Records that it failed, and why.
    pub async fn fail(self, reason: impl Into<String>) -> Result<(), Error> {
        let failure = Failure::of_work(reason);
        self.end(AgentStatus::Failed, Some(failure)).await
    }

    async fn end(self, status: AgentStatus, error: Option<Failure>) -> Result<(), Error> {
        let steps = &self.context.steps;
        let record = AgentRecord {
            status,
            error,
            ended_at: Some(steps.now()),
            ..self.record
        };
        steps.change_agent(record).await
    }
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent")
            .field("id", &self.record.id)
            .finish_non_exhaustive()
    }
}
