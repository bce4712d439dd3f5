//! Deciding what comes to the paths that a branch has otherwise than HEAD. Pure but for what it is
//! given to ask.

use super::index::{Entries, StagedAs};
use crate::branches::BranchError;
use crate::git::commit::{LocalEdits, Side};
use crate::git::tree_object::ItemKind;
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

/// What the decision rests on.
pub(super) struct Seen<'a> {
    /// Whether what is here goes on from what was saved here, and not from HEAD: see
    /// [`is_on_saved`].
    pub(super) is_on_saved: bool,
    /// Sorted by path.
    pub(super) changes: &'a [Change],
    pub(super) local: &'a LocalEdits,
    pub(super) entries: &'a Entries,
    /// The file or link that the capture has at a path.
    pub(super) as_captured: &'a dyn Fn(&RelPath) -> Result<Option<Side>, BranchError>,
    /// Whether something lies near a path that was not captured, or a repository of its own does.
    pub(super) has_more_below: &'a dyn Fn(&RelPath) -> bool,
    /// What is on disk: whether it is a directory; `None`: nothing.
    pub(super) is_on_disk: &'a dyn Fn(&RelPath) -> Option<bool>,
    /// The workspace below the work tree.
    pub(super) scope: &'a RelPath,
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

/// Whether what is in the workspace goes on from what was saved of it: some of that is still here.
/// Somebody may have put all of it back since, and then nothing is.
pub(super) fn is_on_saved(changes: &[Change], local: &LocalEdits) -> bool {
    changes.iter().any(|change| {
        let here = local
            .edits
            .get(&change.path)
            .map(|edit| edit.and_then(side));
        here.is_some() && here == change.saved
    })
}

/// Decides for every path.
pub(super) fn decide(seen: &Seen<'_>) -> Result<Vec<Coming>, BranchError> {
    seen.changes
        .iter()
        .map(|change| seen.coming(change))
        .collect()
}

impl Seen<'_> {
    fn coming(&self, change: &Change) -> Result<Coming, BranchError> {
        let captured = (self.as_captured)(&change.path)?;
        let (file, is_staged) = match self.entries.staged_as(change) {
            StagedAs::Known => (self.file(change, captured)?, true),
            // It was staged since, and the branch brings nothing that was not here.
            StagedAs::Other(_) if self.base(change) == change.new => (FileMove::Stays, false),
            StagedAs::Other(why) => (FileMove::InTheWay(why), false),
        };
        Ok(Coming {
            change: change.clone(),
            file,
            is_staged,
            captured,
        })
    }

    fn file(&self, change: &Change, captured: Option<Side>) -> Result<FileMove, BranchError> {
        let path = &change.path;
        match (is_submodule(change.old), is_submodule(change.new)) {
            (false, false) => {}
            (true, false) if change.new.is_some() => {
                return Ok(FileMove::InTheWay("is a submodule here"));
            }
            (false, true) if change.old.is_some() => {
                return Ok(FileMove::InTheWay("is a submodule there"));
            }
            (false, true) if self.holds_something(path) => {
                return Ok(FileMove::InTheWay("is not tracked here"));
            }
            // Its directory is its own.
            _ => return Ok(FileMove::Stays),
        }
        if let Some(entry) = self.entries.at(path) {
            if entry.is_skip_worktree && captured.is_none() {
                return Ok(FileMove::Stays);
            }
            // git does not look at it, and so no difference is known.
            let is_known = captured.is_none() || [change.old, change.new].contains(&captured);
            if (entry.is_skip_worktree || entry.is_assume_unchanged) && !is_known {
                let why = "was changed, and git was told not to look at it";
                return Ok(FileMove::InTheWay(why));
            }
        }
        if self.local.is_unsure(path, self.scope) {
            return Ok(FileMove::InTheWay("was changed, or could not be looked at"));
        }
        let (here, base) = (self.here(change), self.base(change));
        if here == change.new || (here != base && base == change.new) {
            return Ok(FileMove::Stays);
        }
        if here != base {
            return Ok(FileMove::InTheWay(match (here, change.old) {
                (None, _) => "was removed",
                (Some(_), None) => "is not tracked here",
                (Some(_), Some(_)) => "was changed",
            }));
        }
        if change.new.is_none() {
            return Ok(FileMove::Removed);
        }
        Ok(match self.obstacle(change, captured) {
            Some(why) => FileMove::InTheWay(why),
            None => FileMove::Written,
        })
    }

    /// What git would store of what is here.
    fn here(&self, change: &Change) -> Option<Side> {
        match self.local.edits.get(&change.path) {
            Some(edit) => edit.and_then(side),
            None => change.old,
        }
    }

    /// What the work here began with.
    fn base(&self, change: &Change) -> Option<Side> {
        match change.saved {
            Some(saved) if self.is_on_saved => saved,
            _ => change.old,
        }
    }

    /// What keeps a file from being written.
    fn obstacle(&self, change: &Change, captured: Option<Side>) -> Option<&'static str> {
        let path = &change.path;
        let mut above = path.parent();
        while let Some(at) = above.filter(|at| !at.is_root() && *at != *self.scope) {
            let is_file = (self.is_on_disk)(&at) == Some(false);
            if is_file && !self.goes(&at) {
                return Some("lies below what is no directory here");
            }
            above = at.parent();
        }
        if self.edited_below(path).any(|at| !self.goes(at)) {
            return Some("is a directory with changes here");
        }
        match ((self.is_on_disk)(path), captured) {
            (Some(true), _) if (self.has_more_below)(path) => {
                Some("is a directory here that has more than git knows")
            }
            (Some(false), None) => Some("is ignored, or was not captured"),
            _ => None,
        }
    }

    /// Whether the branch has nothing more where HEAD has a file, or what was saved here has one.
    fn goes(&self, path: &RelPath) -> bool {
        let at = self
            .changes
            .binary_search_by(|change| change.path.cmp(path));
        let Ok(change) = at.map(|at| &self.changes[at]) else {
            return false;
        };
        change.new.is_none() && self.here(change) == self.base(change)
    }

    /// Whether there is anything but an empty directory or a repository of its own.
    fn holds_something(&self, path: &RelPath) -> bool {
        let has_edits = self.edited_below(path).next().is_some();
        has_edits || (self.is_on_disk)(path) == Some(false)
    }

    /// What is here otherwise than HEAD has it, below a path.
    fn edited_below<'p>(&'p self, path: &'p RelPath) -> impl Iterator<Item = &'p RelPath> {
        let first = path.join(b"\x01");
        let below = self.local.edits.range(first..);
        let below = below.take_while(move |(at, _)| at.starts_with(path));
        below.filter(|(_, edit)| edit.is_some()).map(|(at, _)| at)
    }
}

fn is_submodule(side: Option<Side>) -> bool {
    side.is_some_and(|side| side.0 == MODE_SUBMODULE)
}

/// What a tree, or an index, has for it.
fn side((kind, id): (ItemKind, crate::git::ObjectId)) -> Option<Side> {
    match kind {
        ItemKind::Directory => None,
        ItemKind::Entry(kind) => Some((kind.git_mode(), id)),
        ItemKind::Submodule => Some((MODE_SUBMODULE, id)),
    }
}
