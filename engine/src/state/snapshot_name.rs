//! How people name a snapshot: by its id, by its place among the newest, or by its label.

use std::fmt;

use stillframe_backends::{Label, Workspace, printable};

use crate::error::Error;
use crate::records::snapshot::SnapshotRow;
use crate::state::{SnapshotFilter, StateStore};

/// What is meant by a text in the place of a snapshot's id.
///
/// The last two mean something in a workspace alone, and may mean another snapshot later. No id looks like
/// one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SnapshotName<'a> {
    /// An id, or the beginning of one.
    Id(&'a str),
    /// `latest`, and `latest~N`: the newest that is no guard, or the Nth before it of those that are none.
    Latest(u64),
    /// `label:TEXT`: the newest with exactly this label.
    Label(&'a str),
}

const LATEST: &str = "latest";
const BEFORE_LATEST: &str = "latest~";
const LABEL: &str = "label:";

impl<'a> SnapshotName<'a> {
    /// What `text` means. `InvalidOptions` for `latest~` without a number, and `label:` without a text.
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
