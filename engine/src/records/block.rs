//! What an adapter says of work that cannot go on without a person.

use serde::{Deserialize, Serialize};
use stillframe_backends::ErrorKind;

use crate::events::data;

/// The longest reason, and name of a flow, in bytes: what people read.
const MAX_SAID_BYTES: usize = 8 * 1024;

/// The most bytes that a context may have as JSON.
const MAX_CONTEXT_BYTES: usize = 64 * 1024;

/// Why the work of a run cannot go on without a person, and what is needed once somebody has
/// answered. A text is the reason alone.
///
/// ```
/// use stillframe::tasks::Block;
///
/// let block = Block::new("which port does staging have?")
///     .flow("deploy")
///     .context(serde_json::json!({ "file": "staging.toml" }));
/// assert_eq!(block.flow, "deploy");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Block {
    /// What the host calls the flow that goes on with the task, at most 8 192 bytes; empty: it has
    /// one.
    pub flow: String,
    /// The branch that the adapter believes to be on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) branch: Option<String>,
    /// Why, for people, at most 8 192 bytes. `None` or empty: `recoverable_blocked`.
    pub reason: Option<String>,
    /// What the host needs to go on: at most 65 536 bytes as JSON.
    pub context: serde_json::Value,
}

/// A block cannot be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidBlock {
    #[error(
        "the reason or flow of a block has {bytes} bytes, and {MAX_SAID_BYTES} is the limit; nothing was done"
    )]
    Said { bytes: usize },
    #[error(
        "the context of a block has {bytes} bytes as JSON, and {MAX_CONTEXT_BYTES} is the limit; nothing was done"
    )]
    Context { bytes: usize },
    #[error(
        "lists and objects lie in each other more than {} levels deep in the context of a block; nothing was done",
        data::MAX_DEPTH
    )]
    Deep,
}

impl InvalidBlock {
    pub(crate) fn kind(self) -> ErrorKind {
        match self {
            Self::Said { .. } | Self::Context { .. } => ErrorKind::LimitExceeded,
            Self::Deep => ErrorKind::InvalidOptions,
        }
    }
}

impl Block {
    /// A block with this reason.
    pub fn new(reason: impl Into<String>) -> Self {
        Self {
            reason: Some(reason.into()),
            ..Self::default()
        }
    }

    stillframe_model::setters! {
        flow: impl Into<String>,
        context: serde_json::Value,
    }

    /// Refuses what cannot be kept.
    pub(crate) fn check(&self) -> Result<(), InvalidBlock> {
        let said = std::iter::once(&self.flow).chain(&self.reason);
        if let Some(bytes) = said.map(String::len).find(|bytes| *bytes > MAX_SAID_BYTES) {
            return Err(InvalidBlock::Said { bytes });
        }
        if data::is_too_deep(std::iter::once(&self.context)) {
            return Err(InvalidBlock::Deep);
        }
        match data::bytes(&self.context).len() {
            bytes if bytes > MAX_CONTEXT_BYTES => Err(InvalidBlock::Context { bytes }),
            _ => Ok(()),
        }
    }

    /// What can be kept of it: the beginning of what it says, and the context where it can be read
    /// back.
    pub(crate) fn kept(mut self) -> Self {
        for said in std::iter::once(&mut self.flow).chain(&mut self.reason) {
            said.truncate(said.floor_char_boundary(MAX_SAID_BYTES));
        }
        if let Err(e) = self.check() {
            tracing::warn!(error = %e, "the context of a block is left out");
            self.context = serde_json::Value::Null;
        }
        self
    }

    /// The reason, if there is one to tell.
    pub(crate) fn told(&self) -> Option<&str> {
        self.reason.as_deref().filter(|said| !said.is_empty())
    }
}

impl<T: Into<String>> From<T> for Block {
    fn from(reason: T) -> Self {
        Self::new(reason)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_can_be_kept_of_a_block_is_and_the_rest_is_refused_where_somebody_hears_of_it() {
        let whole = Block::new("why").context(json!({ "a": [1] }));
        assert_eq!(whole.check(), Ok(()));
        assert_eq!(whole.clone().kept(), whole);
        let long = Block::new("é".repeat(MAX_SAID_BYTES));
        let bytes = 2 * MAX_SAID_BYTES;
        assert_eq!(long.check(), Err(InvalidBlock::Said { bytes }));
        let kept = long.kept();
        assert_eq!(kept.reason.map(|said| said.len()), Some(MAX_SAID_BYTES));
        let large = Block::new("why").context(json!("x".repeat(MAX_CONTEXT_BYTES)));
        let refused = large.check().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::LimitExceeded);
        assert_eq!(large.kept(), Block::new("why"));
        let deep = (0..=data::MAX_DEPTH).fold(json!(1), |inner, _| json!([inner]));
        let deep = Block::new("why").context(deep);
        assert_eq!(deep.check(), Err(InvalidBlock::Deep));
        assert_eq!(deep.kept(), Block::new("why"));
    }
}
