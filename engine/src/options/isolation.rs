//! What a host says of a run that works in a worktree of its own.

use serde::{Deserialize, Serialize};
use stillframe_backends::{PathGlobs, RelPath};

use crate::error::Error;

/// How a run works in a worktree of its own: see
/// [`RunOptions::isolated`](crate::RunOptions::isolated).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct IsolationOptions {
    /// The branch that the run's is cut from, with or without `refs/heads/`. Default: the one that
    /// is checked out in the run's workspace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Globs over paths from the top of the work tree; a directory that matches has all below it.
    /// Changed files that match none are not committed, and stay in the worktree. Default: all are
    /// committed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scope: Vec<String>,
    /// Files and directories that the work needs and git ignores, such as `.env`: they are brought
    /// along from the workspace, where they are named from its directory. They are not committed.
    /// Default: none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub with: Vec<RelPath>,
    /// The message of the commit. Trailers that name the run follow. Default: `Stillframe run ID`, and
    /// the first line of what the run is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl IsolationOptions {
    /// From the branch that is checked out, with all that changes.
    pub fn new() -> Self {
        Self::default()
    }

    stillframe_model::setters! {
        from: String,
        scope: Vec<String>,
        with: Vec<RelPath>,
        message: String,
    }

    /// The scope, if it can be one.
    pub(crate) fn globs(&self) -> Result<PathGlobs, Error> {
        PathGlobs::new(&self.scope).map_err(|e| {
            Error::invalid_options(format!(
                "the scope of the run: {e}; the run was not started"
            ))
        })
    }

    /// Refuses what cannot be, before anything is done.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.globs()?;
        if self.with.iter().any(RelPath::is_root) {
            return Err(Error::invalid_options(
                "the whole workspace cannot be brought along; the run was not started",
            ));
        }
        match &self.message {
            Some(message) if message.trim().is_empty() || message.contains('\0') => {
                Err(Error::invalid_options(
                    "the message of the commit is empty, or holds a NUL byte; the run was not started",
                ))
            }
            _ => Ok(()),
        }
    }
}
