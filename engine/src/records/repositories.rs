//! What became of the work of a run in several repositories. Each type here is also a JSON
//! document.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::records::kept_branch::KeptBranch;
use crate::records::resumed_work::ResumedWork;
use crate::records::saved_work::SavedWork;

/// What became of the work of a run that works in several repositories.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct SavedRepositories {
    /// One line over all of them, the run's own included: how many were pushed and how many had
    /// nothing new, and the directories of those that failed, each with its kind and why.
    pub summary: String,
    /// The most severe kind of failure of all, such as `AuthDenied`. In JSON only if one failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// The further ones, in the order in which they were given.
    pub further: Vec<RepositoryOutcome>,
}

/// What became of the work of a run in one of its further repositories.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct RepositoryOutcome {
    /// The directory, absolute and printable.
    pub path: String,
    /// How it came to the branch of its task. In JSON only if this engine has brought it there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed: Option<ResumedWork>,
    /// What became of the work on that branch; null: no commit could be made of it.
    pub saved: Option<SavedWork>,
    /// The kind of the failure, such as `AuthDenied`. In JSON only if the work is not on the
    /// branch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// The same in one line. In JSON only then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A further repository of a run, as it was given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct KeptRepository {
    #[serde(with = "path")]
    pub(crate) path: PathBuf,
    /// How it is captured.
    pub(crate) workspace: Value,
    pub(crate) work_branch: KeptBranch,
}

/// A path of any bytes.
pub(crate) mod path {
    use std::ffi::OsString;
    use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
    use std::path::{Path, PathBuf};

    use serde::{Deserializer, Serializer};
    use stillframe_model::path::{deserialize_lossless, serialize_lossless};

    pub(crate) fn serialize<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
        serialize_lossless(path.as_os_str().as_bytes(), to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
        let bytes = deserialize_lossless(from)?;
        Ok(OsString::from_vec(bytes).into())
    }
}
