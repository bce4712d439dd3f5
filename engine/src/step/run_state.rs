//! The key/value state of a run: what its adapter keeps there.

use serde_json::Value;

use crate::error::Error;
use crate::step::context::RunContext;

impl RunContext {
    /// Sets a value in the state of the run. It is durable on `Ok`, and a run that is resumed has
    /// it; it is not put back when a step runs again.
    ///
    /// With the value a [transition](crate::records::StateTransition) is written, which is never
    /// changed: the old value, the new one, and `trigger`, which says what changed it. A null takes
    /// the value away. A value that is set once more changes nothing, and has no transition.
    ///
    /// ```no_run
    /// # use serde_json::{Value, json};
    /// # async fn work(context: stillframe::RunContext) -> Result<(), stillframe::AdapterError> {
    /// let read = context.state("page").await?;
    /// let next = read.and_then(|page| page.as_u64()).unwrap_or(0) + 1;
    /// println!("reading page {next}");
    /// context.set_state("page", json!(next), "page_read").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Key and trigger have 1 to 200 bytes, and the value up to 64 KiB as JSON; put what is larger
    /// into an [artifact](RunContext::put_artifact), and its key here. [Secret
    /// values](crate::secrets) are taken out of value and trigger, but not of the key.
    ///
    /// # Errors
    ///
    /// Nothing was changed. `LimitExceeded`: the value is too large. `InvalidOptions`: the key or
    /// the trigger is too short or too long, or the value is nested more than 100 levels deep.
    /// `Conflict`: the run has ended, or another engine has taken it over.
    pub async fn set_state(
        &self,
        key: impl Into<String>,
        value: Value,
        trigger: impl Into<String>,
    ) -> Result<(), Error> {
        self.steps
            .set_state(key.into(), value, trigger.into())
            .await
    }

    /// The value of a key in the state of the run, as it is stored; `None`: it has none.
    pub async fn state(&self, key: &str) -> Result<Option<Value>, Error> {
        self.steps.state(key).await
    }
}
