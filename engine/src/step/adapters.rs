//! The adapters that a host has registered: what makes the work of a queued run from its input.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use serde_json::Value;

use crate::blocking::panic_text;
use crate::failure::Failure;
use crate::step::adapter::{Adapter, BoxAdapter};

/// Makes an adapter from the input of a run.
pub(crate) type MakeAdapter =
    dyn Fn(Value) -> Result<BoxAdapter, Box<dyn StdError + Send + Sync>> + Send + Sync;

/// The adapters that a host has registered, by name. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Adapters(BTreeMap<String, Arc<MakeAdapter>>);

impl Adapters {
    /// Registers one, in place of an earlier one of its name.
    pub(crate) fn register<A: Adapter>(
        &mut self,
        name: String,
        make: impl Fn(Value) -> Result<A, Box<dyn StdError + Send + Sync>> + Send + Sync + 'static,
    ) {
        let make = move |input| make(input).map(BoxAdapter::new);
        self.0.insert(name, Arc::new(make));
    }

    /// Whether there is one of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Whether there is none at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All names, in order.
    pub(crate) fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    /// The adapter of this name for this input, or why there is none. A panic of the host's code is
    /// such a reason.
    pub(crate) fn make(&self, name: &str, input: Value) -> Result<BoxAdapter, Failure> {
        let Some(make) = self.0.get(name) else {
            return Err(Failure::of_work(format!(
                "no adapter {name:?} is registered"
            )));
        };
        match catch_unwind(AssertUnwindSafe(|| make(input))) {
            Ok(Ok(adapter)) => Ok(adapter),
            Ok(Err(refused)) => {
                let why = crate::error::chain(&*refused);
                Err(Failure::of_work(format!(
                    "adapter {name:?} refused its input: {why}"
                )))
            }
            Err(payload) => {
                let text = panic_text(&*payload);
                Err(Failure::of_work(format!(
                    "adapter {name:?} panicked at its input: {text}"
                )))
            }
        }
    }
}

impl fmt::Debug for Adapters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::records::output::AdapterOutput;
    use crate::step::adapter_error::AdapterError;
    use crate::step::context::RunContext;

    struct Nothing;

    impl Adapter for Nothing {
        async fn run(&self, _context: RunContext) -> Result<AdapterOutput, AdapterError> {
            Ok(AdapterOutput::empty())
        }
    }

    #[test]
    fn what_refuses_its_input_or_panics_is_a_failure_that_names_it() {
        let mut adapters = Adapters::default();
        assert!(adapters.is_empty());
        adapters.register("agent".to_owned(), |input| match input.as_u64() {
            Some(0) => panic!("zero is odd"),
            Some(_) => Ok(Nothing),
            None => Err("no number".into()),
        });
        assert!(adapters.has("agent") && !adapters.has("other"));
        assert!(adapters.make("agent", json!(1)).is_ok());
        let why = |name, input| adapters.make(name, input).err().unwrap().message;
        assert_eq!(
            why("agent", json!("x")),
            "adapter \"agent\" refused its input: no number"
        );
        assert_eq!(
            why("agent", json!(0)),
            "adapter \"agent\" panicked at its input: zero is odd"
        );
        assert_eq!(why("other", json!(1)), "no adapter \"other\" is registered");
    }
}
