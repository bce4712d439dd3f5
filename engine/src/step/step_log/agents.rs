//! Writing the records of agents.

use jiff::Timestamp;

use super::StepLog;
use crate::error::Error;
use crate::records::agent::AgentRecord;
use crate::state::change::Change;

impl StepLog {
    /// The time by the clock of the engine.
    pub(crate) fn now(&self) -> Timestamp {
        self.inner.core.parts.now()
    }

    /// Puts an agent on record.
    pub(crate) async fn begin_agent(&self, record: AgentRecord) -> Result<(), Error> {
        self.check_prompts(&record.prompts).await?;
        self.write(Change::BeginAgent(Box::new(record))).await
    }

    /// Puts on record what became of an agent.
    pub(crate) async fn change_agent(&self, record: AgentRecord) -> Result<(), Error> {
        self.write(Change::MoveAgent(Box::new(record))).await
    }

    async fn write(&self, change: Change) -> Result<(), Error> {
        let log = self.clone();
        self.to_the_end(async move { log.commit(vec![change]).await })
            .await
    }

    /// Fails unless each key is that of an artifact.
    pub(crate) async fn check_prompts(&self, keys: &[String]) -> Result<(), Error> {
        for key in keys {
            let asked = key.clone();
            let reader = &self.inner.core.parts.reader;
            let found = reader.read(move |store| store.artifact(&asked)).await?;
            if found.is_none() {
                return Err(Error::not_found(format!(
                    "there is no artifact {key:?} for the prompt of an agent; nothing was written"
                )));
            }
        }
        Ok(())
    }
}
