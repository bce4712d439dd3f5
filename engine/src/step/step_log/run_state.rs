//! The key/value state of the run.

use serde_json::Value;

use super::StepLog;
use crate::error::Error;
use crate::records::run_state::NewValue;
use crate::state::change::Change;

impl StepLog {
    /// Sets a value, and writes the transition with it.
    pub(crate) async fn set_state(
        &self,
        key: String,
        value: Value,
        trigger: String,
    ) -> Result<(), Error> {
        let new = NewValue {
            run_id: self.run_id().clone(),
            key,
            value,
            trigger,
            at: self.inner.core.parts.now(),
        };
        new.check().map_err(|e| Error::new(e.kind(), e))?;
        let log = self.clone();
        self.to_the_end(async move { log.commit(vec![Change::SetState(Box::new(new))]).await })
            .await
    }

    /// The value of a key, as it is stored.
    pub(crate) async fn state(&self, key: &str) -> Result<Option<Value>, Error> {
        let (run_id, key) = (self.run_id().clone(), key.to_owned());
        let reader = &self.inner.core.parts.reader;
        let found = reader
            .read(move |store| store.state_value(&run_id, &key))
            .await?;
        Ok(found.map(|found| found.value))
    }
}
