//! The rows of findings of secrets that the user knows to be none.

use jiff::Timestamp;
use stillframe_backends::RelPath;

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
