//! A repository that was made or cloned.

use std::path::PathBuf;

use serde::Serialize;
use stillframe_backends::{RelPath, Skipped};

use crate::id::SessionId;
use crate::records::export::lossless;

/// A repository that was made or cloned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct NewRepositoryRecord {
    /// The directory: absolute, without links.
    #[serde(serialize_with = "lossless")]
    #[cfg_attr(
        feature = "schema",
        schemars(with = "stillframe_model::schema::LosslessText")
    )]
    pub path: PathBuf,
    /// The session of the workspace that it is.
    pub session_id: SessionId,
    /// The branch that HEAD names, without `refs/heads/`.
    pub branch: String,
    /// The full id of the commit that the branch is at; null: it has none, since the remote has
    /// none, or has no branch that its HEAD names.
    pub commit: Option<String>,
    /// What was cloned, an address without credentials. In JSON only of a clone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote: Option<String>,
    /// How many files and links were written.
    pub files: u64,
    /// The paths that could not be written as the branch has them, with the reasons.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<Skipped>,
    /// The paths that are written as they are stored, though a filter or an encoding applies to them
    /// that takes a program: no program of a repository is run. Files of Git LFS are pointers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unconverted_paths: Vec<RelPath>,
    /// The submodules, of which nothing was fetched: `git submodule update --init` does.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub submodules: Vec<RelPath>,
}
