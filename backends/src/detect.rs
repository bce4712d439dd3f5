//! Choosing the backend for a workspace, and saying why.

use std::sync::Arc;

use crate::backend::Backend;
use crate::error::printable;
use crate::git::repository::Probe;
use crate::git::{self, GitBackend};
use crate::hash::HashBackend;
use crate::snapshot::BackendKind;
use crate::snapshot_error::SnapshotError;
use crate::workspace::Workspace;

/// How the host wants the backend to be chosen.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// git where the workspace lies in a work tree that can be read, otherwise hash. A bare
    /// repository, and what lies in a git directory, is refused.
    #[default]
    Auto,
    /// git; outside of a work tree it is refused.
    Git,
    /// hash, also inside a repository.
    Hash,
}

/// Some text names no [`Strategy`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown strategy {0:?}: it is auto, git or hash")]
pub struct UnknownStrategy(String);

impl std::str::FromStr for Strategy {
    type Err = UnknownStrategy;

    fn from_str(text: &str) -> Result<Self, UnknownStrategy> {
        match text {
            "auto" => Ok(Self::Auto),
            "git" => Ok(Self::Git),
            "hash" => Ok(Self::Hash),
            _ => Err(UnknownStrategy(text.to_owned())),
        }
    }
}

/// The backend for a workspace, and why it is this one.
#[derive(Clone)]
#[non_exhaustive]
pub struct Detection {
    /// The backend, ready for use.
    pub backend: Arc<dyn Backend>,
    /// A clause for people, such as `the workspace is the work tree of …`.
    pub reason: String,
}

impl Detection {
    /// Which backend it is.
    pub fn kind(&self) -> BackendKind {
        self.backend.kind()
    }
}

/// Chooses the backend for `workspace`. Reads; writes nothing.
///
/// A repository in a format that cannot be read gives hash under [`Strategy::Auto`] and
/// [`SnapshotError::Unsupported`] under [`Strategy::Git`], and the reason names the format; each
/// snapshot of the former has it in its warnings. A bare
/// repository is `Unsupported` under both, and so is what lies in a git directory: a restore there
/// would write among a repository's own files, which nobody asked for who did not name the hash
/// backend. A damaged or hostile one is an error: it is never taken for "no repository".
pub fn detect(workspace: &Workspace, strategy: Strategy) -> Result<Detection, SnapshotError> {
    let path = printable(workspace.disk_path());
    let hash = |reason: String| Detection {
        backend: backend_of(BackendKind::Hash),
        reason,
    };
    if strategy == Strategy::Hash {
        return Ok(hash("the hash backend was asked for".to_owned()));
    }
    let reason = match git::probe(workspace)? {
        Probe::Found(repository) => {
            let reason = format!(
                "{path} is in the work tree of {}",
                printable(repository.work_tree())
            );
            return Ok(Detection {
                backend: backend_of(BackendKind::Git),
                reason,
            });
        }
        Probe::None => format!("{path} is not in a git work tree"),
        Probe::Bare(git_dir) => {
            return Err(SnapshotError::Unsupported(format!(
                "{} (the strategy hash captures it as plain files)",
                git::repository::no_work_tree(&git_dir)
            )));
        }
        Probe::Unsupported { git_dir, format } => {
            let reason = format!(
                "the repository {} uses {format}, which cannot be read",
                printable(&git_dir)
            );
            if strategy == Strategy::Git {
                return Err(SnapshotError::Unsupported(reason));
            }
            return Ok(Detection {
                backend: Arc::new(HashBackend::instead_of_git(reason.clone())),
                reason,
            });
        }
    };
    match strategy {
        Strategy::Git => Err(SnapshotError::Unsupported(reason)),
        Strategy::Auto | Strategy::Hash => Ok(hash(reason)),
    }
}

/// The backend that reads snapshots of this kind, wherever the workspace lies by now.
pub fn backend_of(kind: BackendKind) -> Arc<dyn Backend> {
    git::libgit2::initialise();
    match kind {
        BackendKind::Git => Arc::new(GitBackend),
        BackendKind::Hash => Arc::new(HashBackend::default()),
    }
}
