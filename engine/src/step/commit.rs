//! The options of a commit that a step requests.

use stillframe_backends::{RelPath, Signature};

/// What a commit should be made of: see [`StepContext::commit`](crate::steps::StepContext::commit).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CommitOptions {
    /// What it says: a subject, and whatever follows it. Lines that name the run and the step are
    /// added at its end.
    pub message: String,
    /// Who wrote it. Default: the repository's user.
    pub author: Option<Signature>,
    /// Only what differs at these paths of the workspace, and below them; empty: everything that
    /// differs.
    pub paths: Vec<RelPath>,
}

impl CommitOptions {
    /// A commit of everything that differs from the branch.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            author: None,
            paths: Vec::new(),
        }
    }

    /// Sets [`CommitOptions::author`].
    pub fn author(mut self, author: Signature) -> Self {
        self.author = Some(author);
        self
    }

    /// Adds to [`CommitOptions::paths`].
    pub fn path(mut self, path: RelPath) -> Self {
        self.paths.push(path);
        self
    }
}
