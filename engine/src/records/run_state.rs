//! The key/value state of a run. Each type that a host gets is also a JSON document.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use stillframe_backends::ErrorKind;

use crate::events::data;
use crate::id::RunId;

/// The most bytes that a value may have as JSON.
const MAX_VALUE_BYTES: usize = 64 * 1024;

/// The longest key or trigger, in bytes.
const MAX_NAME_BYTES: usize = 200;

/// A value that a run has set, as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct StateValue {
    /// Its key.
    pub key: String,
    /// The value.
    pub value: Value,
    /// When it became this.
    pub changed_at: Timestamp,
}

/// One change of a value in the state of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct StateTransition {
    /// The key.
    pub key: String,
    /// The value before; `None`: the key had none.
    pub old_value: Option<Value>,
    /// The value from then on; `None`: the key has none.
    pub new_value: Option<Value>,
    /// What changed it, in the adapter's words.
    pub trigger: String,
    /// When.
    pub at: Timestamp,
}

/// A value that a run is about to set.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NewValue {
    pub(crate) run_id: RunId,
    pub(crate) key: String,
    /// Null: the key has none from then on.
    pub(crate) value: Value,
    pub(crate) trigger: String,
    pub(crate) at: Timestamp,
}

/// A value cannot be kept in the state of a run.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidValue {
    #[error(
        "{what} has 1 to {MAX_NAME_BYTES} bytes, unlike {text:.40?} of the value of {key:.40?}; nothing was changed"
    )]
    Name {
        what: &'static str,
        text: String,
        key: String,
    },
    #[error(
        "lists and objects lie in each other more than {} levels deep in the value of {key:?}; nothing was changed",
        data::MAX_DEPTH
    )]
    TooDeep { key: String },
    #[error(
        "the value of {key:?} has {bytes} bytes as JSON, and {MAX_VALUE_BYTES} is the limit; nothing was changed"
    )]
    TooLarge { key: String, bytes: usize },
}

impl InvalidValue {
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            Self::Name { .. } | Self::TooDeep { .. } => ErrorKind::InvalidOptions,
            Self::TooLarge { .. } => ErrorKind::LimitExceeded,
        }
    }
}

impl NewValue {
    /// Refuses what cannot be kept.
    pub(crate) fn check(&self) -> Result<(), InvalidValue> {
        let key = &self.key;
        let names = [
            ("a key of the state of a run", key),
            ("what triggers a change", &self.trigger),
        ];
        for (what, text) in names {
            if !(1..=MAX_NAME_BYTES).contains(&text.len()) {
                let (text, key) = (text.clone(), key.clone());
                return Err(InvalidValue::Name { what, text, key });
            }
        }
        if data::is_too_deep(std::iter::once(&self.value)) {
            let key = key.clone();
            return Err(InvalidValue::TooDeep { key });
        }
        match data::bytes(&self.value).len() {
            bytes if bytes > MAX_VALUE_BYTES => {
                let key = key.clone();
                Err(InvalidValue::TooLarge { key, bytes })
            }
            _ => Ok(()),
        }
    }
}
