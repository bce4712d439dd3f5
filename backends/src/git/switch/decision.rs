//! Deciding what comes to the paths that a branch has otherwise than HEAD. Pure but for what it is
//! given to ask.

use super::change::{Change, Coming, FileMove, is_submodule};
use super::index::{Entries, StagedAs};
use crate::branches::BranchError;
use crate::git::commit::{LocalEdits, Side};
use crate::git::tree_object::ItemKind;
use crate::git::user_index::MODE_SUBMODULE;
use crate::path::RelPath;

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
    /// Whether a path lies in a repository of its own.
    pub(super) is_in_another: &'a dyn Fn(&RelPath) -> bool,
    /// What is on disk: whether it is a directory; `None`: nothing.
    pub(super) is_on_disk: &'a dyn Fn(&RelPath) -> Option<bool>,
    /// The workspace below the work tree.
    pub(super) scope: &'a RelPath,
}

/// What is here, where the branch has something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    /// It is what the branch has, or goes on from that.
    Stays,
    /// HEAD has it, or it was saved from here.
    MayGo,
    /// It is nowhere else: why, as a clause about it.
    Lost(&'static str),
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
            StagedAs::Other(_) if change.saved == Some(change.new) || change.old == change.new => {
                (FileMove::Stays, false)
            }
            StagedAs::Other(why) => (FileMove::InTheWay(why), false),
        };
        Ok(Coming {
            change: change.clone(),
            is_kept: file == FileMove::Stays && self.here(change) != change.new,
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
            if entry.is_skip_worktree && (self.is_on_disk)(path).is_none() {
                return Ok(FileMove::Stays);
            }
            // git does not look at it, and so no difference is known.
            let is_known = captured.is_none() || [change.old, change.new].contains(&captured);
            if (entry.is_skip_worktree || entry.is_assume_unchanged) && !is_known {
                let why = "was changed, and git was told not to look at it";
                return Ok(FileMove::InTheWay(why));
            }
        }
        if (self.is_in_another)(path) {
            return Ok(FileMove::InTheWay("lies in a repository of its own"));
        }
        if self.local.is_unsure(path, self.scope) {
            return Ok(FileMove::InTheWay("was changed, or could not be looked at"));
        }
        match self.hold(change) {
            Hold::Stays => return Ok(FileMove::Stays),
            Hold::Lost(why) => return Ok(FileMove::InTheWay(why)),
            Hold::MayGo => {}
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

    /// What would become of what is here if the branch's came.
    fn hold(&self, change: &Change) -> Hold {
        let (here, saved) = (self.here(change), change.saved);
        let has_gone_on = saved != Some(change.new);
        if here == change.new {
            return Hold::Stays;
        }
        if saved == Some(here) {
            return Hold::MayGo;
        }
        if here == change.old {
            // HEAD's, or put back by hand since it was saved.
            return match (saved.is_some() && self.is_on_saved, has_gone_on) {
                (false, _) => Hold::MayGo,
                (true, false) => Hold::Stays,
                (true, true) => Hold::Lost("was put back"),
            };
        }
        // A change on top of what the branch has.
        if !has_gone_on || change.old == change.new {
            return Hold::Stays;
        }
        Hold::Lost(match (here, change.old) {
            (None, _) => "was removed",
            (Some(_), None) => "is not tracked here",
            (Some(_), Some(_)) => "was changed",
        })
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
            // A capture may have more than git knows.
            (Some(false), captured) if self.here(change).is_none() && captured != change.new => {
                Some("is ignored, or was not captured")
            }
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
        change.new.is_none() && self.hold(change) == Hold::MayGo
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

/// What a tree, or an index, has for it.
fn side((kind, id): (ItemKind, crate::git::ObjectId)) -> Option<Side> {
    match kind {
        ItemKind::Directory => None,
        ItemKind::Entry(kind) => Some((kind.git_mode(), id)),
        ItemKind::Submodule => Some((MODE_SUBMODULE, id)),
    }
}
