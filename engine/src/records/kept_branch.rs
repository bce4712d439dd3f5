//! What is kept of the task whose work a run does.

use serde::{Deserialize, Serialize};

/// The task whose work a run does, without who asks its remote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeptBranch {
    pub(crate) task: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) namespace: Option<String>,
    /// As it was given, without who asks; a path that begins with a dot as what it was then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) remote: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) max_push_bytes: Option<u64>,
    /// Rows of earlier versions do not have it; then the default applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) checkpoint_interval_ms: Option<u64>,
    /// Whether its work is merged where others have gone on with the branch.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) merges: bool,
}
