//! A path that a branch has otherwise, and what comes to it.

use crate::git::commit::Side;
use crate::git::user_index::MODE_SUBMODULE;
use crate::path::RelPath;

/// A path, from the top of the work tree, at which the branch has something else than HEAD, or than
/// what was saved from here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) path: RelPath,
    /// What HEAD has.
    pub(super) old: Option<Side>,
    /// What was saved from here; `None`: nothing was ever.
    pub(super) saved: Option<Option<Side>>,
    /// What the branch has.
    pub(super) new: Option<Side>,
}

/// What comes to one path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Coming {
    pub(super) change: Change,
    pub(super) file: FileMove,
    /// Whether what is here stays though the branch has something else.
    pub(super) is_kept: bool,
    /// Whether the index gets what the branch has.
    pub(super) is_staged: bool,
    /// The file or link that is there.
    pub(super) captured: Option<Side>,
}

/// What becomes of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileMove {
    /// It is as it is to be, or is somebody's since, or is left out of the work tree by intent.
    Stays,
    Written,
    Removed,
    /// It would be lost: why, as a clause about it.
    InTheWay(&'static str),
}

impl Coming {
    /// Whether the branch has another commit of a submodule there, or none any more.
    pub(super) fn is_submodule(&self) -> bool {
        let sides = [self.change.old, self.change.new].into_iter().flatten();
        self.change.old != self.change.new && sides.into_iter().any(|s| s.0 == MODE_SUBMODULE)
    }

    /// Whether what comes is of the kind of what is there.
    pub(super) fn keeps_kind(&self) -> bool {
        let mode = |side: Option<Side>| side.map(|side| side.0);
        mode(self.captured) == mode(self.change.new)
    }

    /// Whether a submodule comes where nothing was.
    pub(super) fn makes_directory(&self) -> bool {
        self.change.old.is_none() && is_submodule(self.change.new)
    }
}

/// Whether it is a commit of a submodule.
pub(super) fn is_submodule(side: Option<Side>) -> bool {
    side.is_some_and(|side| side.0 == MODE_SUBMODULE)
}
