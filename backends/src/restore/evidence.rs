//! What size and times tell of files of which no snapshot has the content.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::plan::Size;
use super::{Captured, Restorable};
use crate::coverage::{Omission, OmissionReason};
use crate::error::PathError;
use crate::operation::Operation;
use crate::path::RelPath;
use crate::record::Record;
use crate::restore::sorted::change_at;
use crate::tree::{Change, ContentId, EntryKind};
use crate::workspace::Workspace;
use crate::worktree::clock::Clock;
use crate::worktree::root::Root;
use crate::worktree::stat_cache::EntryStat;

/// What size and times tell of the files that `now` has captured and `after` has not.
fn left_out_then<C: Captured>(
    workspace: &Workspace,
    now: &C,
    after: &Record,
) -> Result<BTreeMap<RelPath, Size>, PathError> {
    let omissions = after.snapshot.omissions().iter();
    let both = omissions.filter_map(|o| Some((&o.path, o.bytes?, now.seen(&o.path)?.stat)));
    let mut both = both.peekable();
    if both.peek().is_none() {
        return Ok(BTreeMap::new());
    }
    let clock = Clock::of(&workspace.root()?);
    let at = after.snapshot.captured_at;
    let sizes = both.map(|(path, then, stat)| {
        // Nobody knows what it held, so that it is the same only while nobody had it in hand.
        let size = match clock.may_be_after(&stat, at) {
            true => Size::Another,
            false => Size::of(then, stat.size),
        };
        (path.clone(), size)
    });
    Ok(sizes.collect())
}

/// What the size tells of the files that only one of `now` and `after` has captured. `operation`:
/// the changes from `after` to the goal.
pub(super) fn sizes<B: Restorable>(
    op: &Operation,
    backend: &B,
    workspace: &Workspace,
    now: &B::Capture,
    after: &Record,
    operation: &[Change],
) -> Result<BTreeMap<RelPath, Size>, PathError> {
    let mut sizes = left_out_then(workspace, now, after)?;
    for Omission {
        path,
        bytes,
        reason,
        ..
    } in now.record().snapshot.omissions()
    {
        let then = change_at(operation, path).and_then(|change| change.old);
        if let (OmissionReason::TooLarge, Some(bytes), Some(then)) = (*reason, *bytes, then) {
            let size = match then.kind {
                EntryKind::Symlink => Some(Size::Another),
                _ => compared_size(op, backend, workspace, &then.id, bytes),
            };
            sizes.extend(size.map(|size| (path.clone(), size)));
        }
    }
    Ok(sizes)
}

/// Compares the size of content in the store, which is not read. `None` if the store does not tell
/// it, which whoever needs the content will say.
fn compared_size<B: Restorable>(
    op: &Operation,
    backend: &B,
    workspace: &Workspace,
    id: &ContentId,
    bytes: u64,
) -> Option<Size> {
    let contents = backend.contents(op, workspace, &[*id]).ok()?;
    Some(Size::of(contents.length(id).ok()?, bytes))
}

/// Of the paths that `now` has captured and `goal` left out, those at which nothing changed since.
/// `changes`: from `now` to `goal`.
pub(super) fn unchanged<C: Captured>(
    workspace: &Workspace,
    now: &C,
    goal: &Record,
    changes: &[Change],
) -> Result<BTreeSet<RelPath>, PathError> {
    // Of a mount that is gone, or of what could not be read, it was something else that nobody saw.
    let left_out = |path: &RelPath| {
        let covers = goal.snapshot.omissions.covers(path);
        covers.is_some_and(|o| o.reason.is_a_rule() || o.reason == OmissionReason::TooLarge)
    };
    let only_now = changes.iter().filter(|change| change.new.is_none());
    let asked = only_now
        .map(|change| &change.path)
        .filter(|path| left_out(path));
    let mut asked = asked.peekable();
    if asked.peek().is_none() {
        return Ok(BTreeSet::new());
    }
    let mut places = Places::new(workspace.root()?, goal.snapshot.captured_at);
    let is_unchanged = |path: &&RelPath| {
        let seen = now.seen(path).map(|seen| seen.stat);
        seen.is_some_and(|stat| places.clock.shows_no_change_since(&stat, places.since))
            && places.is_unmoved(path)
    };
    Ok(asked.filter(is_unchanged).cloned().collect())
}

/// The directories that paths lie in, and whether they are where they were.
struct Places {
    root: Root,
    clock: Clock,
    since: Timestamp,
    unmoved: BTreeMap<RelPath, bool>,
}

impl Places {
    fn new(root: Root, since: Timestamp) -> Self {
        Self {
            clock: Clock::of(&root),
            root,
            since,
            unmoved: BTreeMap::new(),
        }
    }

    /// Whether no directory above `path` shows that it was put there since: its files would have
    /// come with it, with the times that they had.
    fn is_unmoved(&mut self, path: &RelPath) -> bool {
        let Some(directory) = path.parent().filter(|above| !above.is_root()) else {
            return true;
        };
        if let Some(known) = self.unmoved.get(&directory) {
            return *known;
        }
        let is_unmoved = self.has_its_place(&directory) && self.is_unmoved(&directory);
        self.unmoved.insert(directory, is_unmoved);
        is_unmoved
    }

    /// A rename of a directory sets the one of its times. A later change of the names in it hides
    /// that, by setting both, but not that the directory above got another name.
    fn has_its_place(&self, directory: &RelPath) -> bool {
        let look = |directory: &RelPath| {
            let found = self.root.lstat(directory).ok()?;
            let stat = EntryStat::of(&found);
            Some((self.clock.shows_no_change_since(&stat, self.since), stat))
        };
        let above = || directory.parent().and_then(|above| look(&above));
        match look(directory) {
            Some((true, _)) => true,
            Some((false, stat)) if stat.mtime_ns == stat.ctime_ns => {
                above().is_some_and(|(is_as_it_was, _)| is_as_it_was)
            }
            _ => false,
        }
    }
}
