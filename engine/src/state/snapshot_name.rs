//! How people name a snapshot: by its id, by its place among the newest, or by its label.

use std::fmt;

use stillframe_backends::{BackendKind, Snapshot, SnapshotId};
use stillframe_backends::{Label, Workspace, printable};

use crate::error::Error;
use crate::records::snapshot::SnapshotRow;
use crate::state::forgotten::forgotten;
use crate::state::id_beginning::{MIN_BEGINNING, ambiguous, too_short};
use crate::state::run_name::find_run;
use crate::state::{SnapshotFilter, StateStore};

/// What is meant by a text in the place of a snapshot's id.
///
/// The last two mean something in a workspace alone, and may mean another snapshot later. No id
/// looks like one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SnapshotName<'a> {
    /// An id, or the beginning of one.
    Id(&'a str),
    /// `latest`, and `latest~N`: the newest that is no guard, or the Nth before it of those that
    /// are none.
    Latest(u64),
    /// `label:TEXT`: the newest with exactly this label.
    Label(&'a str),
}

const LATEST: &str = "latest";
const BEFORE_LATEST: &str = "latest~";
const LABEL: &str = "label:";

impl<'a> SnapshotName<'a> {
    /// What `text` means. `InvalidOptions` for `latest~` without a number, and `label:` without a
    /// text.
    pub fn parse(text: &'a str) -> Result<Self, Error> {
        if let Some(label) = text.strip_prefix(LABEL) {
            return match label {
                "" => Err(Error::invalid_options(format!(
                    "{LABEL:?} is followed by the text of a label"
                ))),
                label => Ok(Self::Label(label)),
            };
        }
        let Some(digits) = text.strip_prefix(BEFORE_LATEST) else {
            return Ok(match text {
                LATEST => Self::Latest(0),
                _ => Self::Id(text),
            });
        };
        let is_number = digits.bytes().all(|b| b.is_ascii_digit());
        let before = digits.parse().ok().filter(|_| is_number);
        before.map(Self::Latest).ok_or_else(|| {
            Error::invalid_options(format!(
                "{text:?} is no snapshot: \"{LATEST}\" is the newest, \"{BEFORE_LATEST}1\" the one before it"
            ))
        })
    }

    /// Whether it means something in a workspace alone.
    pub fn is_relative(&self) -> bool {
        !matches!(self, Self::Id(_))
    }
}

impl fmt::Display for SnapshotName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(text) => f.write_str(text),
            Self::Latest(0) => f.write_str(LATEST),
            Self::Latest(before) => write!(f, "{BEFORE_LATEST}{before}"),
            Self::Label(text) => write!(f, "{LABEL}{text}"),
        }
    }
}

/// The snapshot of the workspace that a relative name means now.
pub(crate) fn find(
    store: &dyn StateStore,
    name: SnapshotName<'_>,
    workspace: Option<&Workspace>,
) -> Result<SnapshotRow, Error> {
    let Some(workspace) = workspace else {
        return Err(Error::invalid_options(format!(
            "{:?} is a snapshot of a workspace, and none is given",
            name.to_string()
        )));
    };
    let mut filter = SnapshotFilter {
        limit: Some(1),
        in_place: true,
        ..SnapshotFilter::of(workspace)
    };
    match name {
        // Taken by us around what somebody did, and not what anybody did: it would be in the way of
        // "what I took last".
        SnapshotName::Latest(before) => (filter.but, filter.skip) = (Some(Label::GUARD), before),
        SnapshotName::Label(text) => filter.label = Some(Label::new(text)),
        SnapshotName::Id(_) => unreachable!("it is found by its id"),
    }
    let found = store.find_snapshots(&filter)?.pop();
    found.ok_or_else(|| {
        let because = match name {
            SnapshotName::Label(_) => "none has that label",
            SnapshotName::Latest(0) => "it has none, guards aside",
            _ => "it has not so many, guards aside",
        };
        Error::not_found(format!(
            "there is no snapshot {:?} of the workspace {}: {because}",
            name.to_string(),
            printable(workspace.disk_path())
        ))
    })
}

/// Finds the snapshot that `text` [names](SnapshotName); in this workspace, if one is given.
pub(crate) fn find_snapshot(
    store: &dyn StateStore,
    text: &str,
    workspace: Option<&Workspace>,
) -> Result<SnapshotRow, Error> {
    match SnapshotName::parse(text)? {
        SnapshotName::Id(text) => find_by_id(store, text, workspace),
        name => find(store, name, workspace),
    }
}

/// Finds the one snapshot whose id is `text` or begins so; in this workspace, if one is given.
pub(crate) fn find_by_id(
    store: &dyn StateStore,
    text: &str,
    workspace: Option<&Workspace>,
) -> Result<SnapshotRow, Error> {
    let digits = match text.strip_prefix(SNAPSHOT_PREFIX) {
        Some(digits) => digits,
        None if SNAPSHOT_PREFIX.starts_with(text) => "",
        None => text,
    };
    let is_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    if digits.len() > 32 || !digits.bytes().all(is_hex) {
        return Err(no_snapshot(store, text));
    }
    let prefix = format!("{SNAPSHOT_PREFIX}{digits}");
    let scope = workspace.map(Workspace::id);
    if digits.len() < MIN_BEGINNING {
        let matching = store.count_snapshots_that_begin(&prefix, scope)?;
        return Err(too_short(text, "snapshot", matching));
    }
    let mut found = store.snapshots_that_begin(&prefix, scope)?;
    match (found.pop(), found.is_empty()) {
        (Some(row), true) => Ok(row),
        (Some(row), false) => {
            found.push(row);
            Err(ambiguous(
                text,
                found.iter().map(|row| row.snapshot.id.as_str()),
                store.count_snapshots_that_begin(&prefix, scope)?,
            ))
        }
        (None, _) => {
            let elsewhere = store.snapshots_that_begin(&prefix, None)?;
            match (elsewhere.first(), workspace) {
                (Some(row), Some(workspace)) => Err(Error::invalid_options(format!(
                    "snapshot {} is of the workspace {}, not of {}",
                    row.snapshot.id,
                    printable(&row.snapshot.path),
                    printable(workspace.disk_path())
                ))),
                _ => Err(forgotten(store, &prefix, workspace)?
                    .unwrap_or_else(|| no_snapshot(store, text))),
            }
        }
    }
}

/// Why there is no such snapshot: the id is unknown, or it is the id of a run.
pub(crate) fn no_snapshot(store: &dyn StateStore, text: &str) -> Error {
    let unknown = || Error::not_found(format!("there is no snapshot {text:?}"));
    // If runs cannot be read, the command that lists runs reports that.
    let Ok(run) = find_run(store, text) else {
        return unknown();
    };
    let is_kept = |id: &SnapshotId| matches!(store.snapshot(id), Ok(Some(_)));
    let ends = run.workspace.iter().flat_map(|workspace| {
        let ends = [("before", &workspace.before), ("after", &workspace.after)];
        ends.into_iter().filter(|(_, id)| is_kept(id))
    });
    let ends: Vec<String> = ends.map(|(end, id)| format!("{id} ({end})")).collect();
    Error::not_found(match ends.is_empty() {
        true => format!("{} is a run, and no snapshot of it is kept", run.id),
        false => format!(
            "{} is a run; its snapshots are {}",
            run.id,
            ends.join(" and ")
        ),
    })
}

/// As [`find_snapshot`], for a comparison: hash snapshots of two directories may be compared.
pub(crate) fn find_for_diff(
    store: &dyn StateStore,
    text: &str,
    workspace: &Workspace,
) -> Result<SnapshotRow, Error> {
    find_snapshot(store, text, Some(workspace)).or_else(|e| {
        match find_snapshot(store, text, None) {
            Ok(row) if row.snapshot.backend == BackendKind::Hash => Ok(row),
            _ => Err(e),
        }
    })
}

/// What every id of a snapshot begins with.
pub(crate) const SNAPSHOT_PREFIX: &str = "snap_";

/// The snapshot of this id in this workspace, which the log names; its loss is `NotFound`.
pub(crate) fn known_snapshot(
    store: &dyn StateStore,
    id: &SnapshotId,
    workspace: &Workspace,
) -> Result<Snapshot, Error> {
    match store.snapshot(id)? {
        Some(row) if row.workspace_id == workspace.id() => Ok(row.snapshot),
        _ => Err(match forgotten(store, id.as_str(), Some(workspace))? {
            Some(forgotten) => Error::not_found(format!("{}; nothing was touched", forgotten)),
            None => Error::not_found(format!(
                "snapshot {id} is not kept any more; nothing was touched"
            )),
        }),
    }
}

#[cfg(test)]
mod tests {
    use stillframe_backends::ErrorKind;

    use super::*;

    #[test]
    fn a_name_is_an_id_a_place_or_a_label() {
        for (text, expected) in [
            ("snap_3f2a", SnapshotName::Id("snap_3f2a")),
            ("", SnapshotName::Id("")),
            ("late", SnapshotName::Id("late")),
            ("label", SnapshotName::Id("label")),
            ("Latest", SnapshotName::Id("Latest")),
            ("latest-run", SnapshotName::Id("latest-run")),
            ("latest", SnapshotName::Latest(0)),
            ("latest~0", SnapshotName::Latest(0)),
            ("latest~12", SnapshotName::Latest(12)),
            ("label:before lunch", SnapshotName::Label("before lunch")),
            ("label:latest", SnapshotName::Label("latest")),
            ("label:3f2a", SnapshotName::Label("3f2a")),
            ("label::", SnapshotName::Label(":")),
        ] {
            assert_eq!(SnapshotName::parse(text).expect("a name"), expected);
        }
        for text in [
            "label:",
            "latest~",
            "latest~-1",
            "latest~+1",
            "latest~x",
            "latest~1~1",
            "latest~99999999999999999999",
        ] {
            let refused = SnapshotName::parse(text).expect_err("no name");
            assert_eq!(refused.kind(), ErrorKind::InvalidOptions, "{text}");
        }
    }

    #[test]
    fn a_name_is_written_as_it_is_read() {
        for text in ["snap_3f2a", "latest", "latest~2", "label:two words"] {
            assert_eq!(SnapshotName::parse(text).expect("a name").to_string(), text);
        }
    }
}
