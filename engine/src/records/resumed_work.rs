//! How a workspace came to the branch of a task.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use stillframe_backends::{OmissionReason, RelPath, SkipReason, Skipped, shell_word};

use crate::records::restore_document::RestoreDocument;

/// How a workspace came to the branch of a task: HEAD names the branch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ResumedWork {
    /// The task, as the host calls it.
    pub task: String,
    /// Its namespace, as slugs. In JSON only if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The task's branch, without `refs/heads/`.
    pub branch: String,
    /// The remote, an address without credentials; null: there is none.
    pub remote: Option<String>,
    /// From where the task goes on.
    pub state: ResumeState,
    /// The full id of the commit that the branch is at; null: the repository has no commit yet.
    pub commit: Option<String>,
    /// Who made that commit: `Name <address>`. In JSON only if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    /// When. In JSON only then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_at: Option<Timestamp>,
    /// The branch that HEAD named before, without `refs/heads/`; null: none, HEAD was detached.
    pub branch_before: Option<String>,
    /// The commit that HEAD named before; null: there was none.
    pub commit_before: Option<String>,
    /// The command that goes back to what HEAD named, for a POSIX shell in the workspace; null:
    /// HEAD names the branch that it named before.
    pub way_back: Option<String>,
    /// What was done to files, index, HEAD and branch; null: all was as it is to be.
    pub restore: Option<RestoreDocument>,
    /// The paths, from the top of the work tree, that are not as the branch has them: somebody
    /// changed them here, or put them back, since the last checkpoint of this workspace. The next
    /// one has them so.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<RelPath>,
    /// The submodules of which the branch has another commit. Their directories are as they were.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub submodules: Vec<RelPath>,
}

/// From where a task goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ResumeState {
    /// Neither the remote nor the repository had the branch: it begins at the start point.
    Fresh,
    /// From what the branch had, here or on the remote.
    Resumed,
    /// The branch was here, and moved forward to what the remote has.
    FastForwarded,
}

impl ResumedWork {
    /// What of it could not be done, if anything: with that the workspace is not what the branch
    /// has.
    pub(crate) fn problem(&self) -> Option<String> {
        let restore = self.restore.as_ref()?;
        if let Some(error) = &restore.error {
            return Some(error.message.clone());
        }
        // What a sparse checkout leaves out is not missed.
        let is_missed = |s: &&Skipped| s.reason != SkipReason::Omitted(OmissionReason::Sparse);
        let skipped = restore.skipped.iter().find(is_missed)?;
        Some(format!(
            "{} stayed as it is ({})",
            skipped.path, skipped.reason
        ))
    }
}

/// The command that goes back to what HEAD named; `None`: it names that still.
pub(crate) fn way_back(
    branch: &str,
    (branch_before, commit_before): (Option<&str>, Option<&str>),
) -> Option<String> {
    match (branch_before, commit_before) {
        (Some(before), _) if before == branch => None,
        // Without a commit there is no branch that git could switch to.
        (Some(before), None) => {
            let full = format!("refs/heads/{before}");
            Some(format!(
                "git symbolic-ref HEAD {}",
                shell_word(full.as_bytes())
            ))
        }
        (Some(before), Some(_)) => Some(format!("git switch {}", shell_word(before.as_bytes()))),
        (None, Some(commit)) => Some(format!("git switch --detach {commit}")),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_back_is_to_what_head_named() {
        let back = |before| way_back("stillframe/task/42", before);
        assert_eq!(back((Some("stillframe/task/42"), Some("c"))), None);
        assert_eq!(back((Some("main"), Some("c"))).unwrap(), "git switch main");
        assert_eq!(back((Some("a b"), Some("c"))).unwrap(), "git switch 'a b'");
        assert_eq!(back((None, Some("c"))).unwrap(), "git switch --detach c");
        assert_eq!(
            back((Some("main"), None)).unwrap(),
            "git symbolic-ref HEAD refs/heads/main"
        );
    }
}
