//! The rows of findings of secrets that the user knows to be none.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use stillframe_backends::RelPath;

/// A finding that the user lets be sent. The value that was found is nowhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct AllowedSecretRecord {
    /// The rule that finds it.
    pub rule: String,
    /// The file, from the top of the work tree; the top itself: a message, or the name of an
    /// author.
    pub path: RelPath,
    /// What tells the value from others.
    pub fingerprint: String,
    /// Since when.
    pub allowed_at: Timestamp,
}

impl From<AllowedFinding> for AllowedSecretRecord {
    fn from(row: AllowedFinding) -> Self {
        Self {
            rule: row.rule,
            path: row.path,
            fingerprint: row.fingerprint,
            allowed_at: row.allowed_at,
        }
    }
}

/// A finding that the user has allowed, as it is kept. The value that was found is nowhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AllowedFinding {
    /// The repository whose work it is in: the id of its store.
    pub(crate) repository: String,
    pub(crate) rule: String,
    pub(crate) path: RelPath,
    /// A digest of what was found.
    pub(crate) fingerprint: String,
    pub(crate) allowed_at: Timestamp,
}
