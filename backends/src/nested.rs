//! Repositories within a workspace: submodules, and clones of others.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::path::RelPath;
use crate::snapshot::Snapshot;

/// A repository within a workspace, as a capture found it. Its files are captured like any others; its
/// `.git` is not, and no restore puts back what is said here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NestedRepository {
    /// The directory that has the `.git`.
    pub path: RelPath,
    /// Where it stands.
    #[serde(flatten)]
    pub state: NestedState,
}

impl NestedRepository {
    /// The repository at `path`; for implementations of [`Backend`](crate::Backend).
    pub fn new(path: RelPath, state: NestedState) -> Self {
        Self { path, state }
    }
}

/// Where a nested repository stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NestedState {
    /// The full name of the branch that HEAD names; `None` if it is detached, or cannot be read.
    pub branch: Option<String>,
    /// The full id of the commit that HEAD names; `None` before the first one, or if it cannot be read.
    pub head_ref: Option<String>,
    /// The blake3 of what the index stages: paths, stages, modes, ids and flags, in order. That git looked
    /// at the files again changes nothing of it. `None` if there is no index, or it cannot be read.
    pub index: Option<String>,
    /// Why not all of it could be read: it is damaged, a trap, another user's, or of a format that is not
    /// handled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// A nested repository that is not the same on both sides of a comparison.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NestedChange {
    /// The directory that has, or had, the `.git`.
    pub path: RelPath,
    /// Where it stood; `None`: there was none.
    pub from: Option<NestedState>,
    /// Where it stands; `None`: there is none.
    pub to: Option<NestedState>,
}

/// The nested repositories of which one side knows otherwise than the other, sorted by path. That one side
/// left out the place says nothing.
pub(crate) fn changes(from: &Snapshot, to: &Snapshot) -> Vec<NestedChange> {
    let states = |side: &Snapshot| -> BTreeMap<RelPath, NestedState> {
        let all = side.nested_repositories.iter();
        all.map(|nested| (nested.path.clone(), nested.state.clone()))
            .collect()
    };
    let (mut old, mut new) = (states(from), states(to));
    old.retain(|path, state| new.get(path) != Some(&*state) || new.remove(path).is_none());
    let mut changes = BTreeMap::new();
    for (path, state) in old {
        changes.insert(path, (Some(state), None));
    }
    for (path, state) in new {
        changes.entry(path).or_insert((None, None)).1 = Some(state);
    }
    let is_blind =
        |side: &Snapshot, path: &RelPath| side.omissions.covers(&path.join(b".git")).is_some();
    changes
        .into_iter()
        .filter(|(path, change)| match change {
            (None, _) => !is_blind(from, path),
            (_, None) => !is_blind(to, path),
            _ => true,
        })
        .map(|(path, (from, to))| NestedChange { path, from, to })
        .collect()
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::coverage::{Coverage, Omission, OmissionReason};
    use crate::snapshot::{BackendKind, Label, SnapshotId};

    fn snapshot(nested: &[(&str, &str)], left_out: &[&str]) -> Snapshot {
        let mut snapshot = Snapshot::new(
            SnapshotId::random(),
            BackendKind::Git,
            "/w".into(),
            String::new(),
            Label::MANUAL,
            Timestamp::UNIX_EPOCH,
        );
        let path = |text: &str| RelPath::new(text).unwrap();
        let omission = |path| Omission {
            path,
            reason: OmissionReason::Ignored,
            bytes: None,
            kind: None,
        };
        let own = nested.iter().map(|(text, _)| path(text).join(b".git"));
        let others = left_out.iter().map(|text| path(text));
        snapshot.omissions = Coverage::new(own.chain(others).map(omission).collect());
        let found = nested.iter().map(|(text, commit)| {
            let state = NestedState {
                head_ref: Some((*commit).to_owned()),
                ..NestedState::default()
            };
            NestedRepository::new(path(text), state)
        });
        snapshot.nested_repositories = found.collect();
        snapshot
    }

    #[test]
    fn what_moved_came_or_went_is_told_and_what_one_side_could_not_see_is_not() {
        let from = snapshot(
            &[
                ("gone", "1"),
                ("moved", "1"),
                ("same", "1"),
                ("unseen/a", "1"),
            ],
            &["b"],
        );
        let to = snapshot(
            &[("b/new", "2"), ("came", "2"), ("moved", "2"), ("same", "1")],
            &["unseen"],
        );
        let told: Vec<_> = changes(&from, &to)
            .into_iter()
            .map(|change| {
                let commit = |state: Option<NestedState>| state.and_then(|state| state.head_ref);
                (
                    change.path.to_string(),
                    commit(change.from),
                    commit(change.to),
                )
            })
            .collect();
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(
            told,
            [
                ("came".to_owned(), None, some("2")),
                ("gone".to_owned(), some("1"), None),
                ("moved".to_owned(), some("1"), some("2")),
            ]
        );
        assert_eq!(changes(&from, &from), []);
    }

    #[test]
    fn a_document_has_path_and_state_side_by_side() {
        let snapshot = snapshot(&[("sub", "1")], &[]);
        let document = serde_json::to_value(&snapshot).unwrap();
        assert_eq!(
            document["nested_repositories"],
            serde_json::json!([{"path": "sub", "branch": null, "head_ref": "1", "index": null}])
        );
        assert_eq!(
            serde_json::from_value::<Snapshot>(document).unwrap(),
            snapshot
        );
        let none = self::snapshot(&[], &[]);
        let document = serde_json::to_value(&none).unwrap();
        assert!(document.get("nested_repositories").is_none());
    }
}
