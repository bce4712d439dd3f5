//! Comparing the repositories within the workspace.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::nested::NestedState;
use crate::path::RelPath;
use crate::snapshot::Snapshot;

/// A nested repository that is not the same on both sides of a comparison.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct NestedChange {
    /// The directory that has, or had, the `.git`.
    pub path: RelPath,
    /// Where it stood; `None`: there was none.
    pub from: Option<NestedState>,
    /// Where it stands; `None`: there is none.
    pub to: Option<NestedState>,
}

/// The nested repositories whose state differs between the two sides, sorted by path. A side that
/// left the place out does not count.
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
    use crate::nested::NestedRepository;
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
            let mut state = NestedState::default();
            state.head_ref = Some((*commit).to_owned());
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
}
