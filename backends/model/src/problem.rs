//! Something that is wrong in a store.

use crate::error_kind::ErrorKind;

/// Something that makes a snapshot less than restorable.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Problem {
    /// What is missing or wrong: an object id, or the name of a file in the store.
    pub what: String,
    /// How it is wrong.
    pub detail: String,
    /// The kind of the error that reported it, if that says more than that it is damaged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<ErrorKind>,
}

impl Problem {
    /// Something of the store, and how it is wrong.
    pub fn new(what: impl Into<String>, detail: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            detail: detail.into(),
            kind: None,
        }
    }

    /// With the kind of the error that told so.
    pub fn of_kind(self, kind: ErrorKind) -> Self {
        let kind = Some(kind);
        Self { kind, ..self }
    }
}
