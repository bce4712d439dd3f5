//! Repositories within a workspace: submodules, and clones of others.

use serde::{Deserialize, Serialize};

use crate::path::RelPath;

/// A repository within a workspace, as a capture found it. Its files are captured like any others;
/// its `.git` is not, and no restore changes the state that is described here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct NestedRepository {
    /// The directory that has the `.git`.
    pub path: RelPath,
    /// Where it stands.
    #[serde(flatten)]
    pub state: NestedState,
}

impl NestedRepository {
    /// The repository at `path`.
    pub fn new(path: RelPath, state: NestedState) -> Self {
        Self { path, state }
    }
}

/// Where a nested repository stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct NestedState {
    /// The full name of the branch that HEAD names; `None` if it is detached, or cannot be read.
    pub branch: Option<String>,
    /// The full id of the commit that HEAD names; `None` before the first one, or if it cannot be
    /// read.
    pub head_ref: Option<String>,
    /// The blake3 of what the index stages: paths, stages, modes, ids and flags, in order. It does
    /// not depend on the stat data in the index. `None` if there is no index, or it cannot be read.
    pub index: Option<String>,
    /// Why not all of it could be read: it is damaged, a trap, another user's, or of a format that
    /// is not handled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::snapshot::{BackendKind, Label, Snapshot, SnapshotId};

    #[test]
    fn a_document_has_path_and_state_side_by_side() {
        let mut snapshot = Snapshot::new(
            SnapshotId::random(),
            BackendKind::Git,
            "/w".into(),
            String::new(),
            Label::MANUAL,
            Timestamp::UNIX_EPOCH,
        );
        let state = NestedState {
            head_ref: Some("1".to_owned()),
            ..NestedState::default()
        };
        let path = RelPath::new("sub").unwrap();
        snapshot.nested_repositories = vec![NestedRepository::new(path, state)];
        let document = serde_json::to_value(&snapshot).unwrap();
        assert_eq!(
            document["nested_repositories"],
            serde_json::json!([{"path": "sub", "branch": null, "head_ref": "1", "index": null}])
        );
        assert_eq!(
            serde_json::from_value::<Snapshot>(document).unwrap(),
            snapshot
        );
        snapshot.nested_repositories.clear();
        let document = serde_json::to_value(&snapshot).unwrap();
        assert!(document.get("nested_repositories").is_none());
    }
}
