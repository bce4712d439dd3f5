//! What became of a path after the operation that an undo takes back.

use super::{Size, Undone, View, change_at};
use crate::coverage::{Omission, OmissionReason};
use crate::path::RelPath;
use crate::restore::SkipReason;
use crate::tree::{Change, EntryKind};

/// What became of a path after the operation that an undo takes back. What is not taken back has
/// the reason for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    /// It is as the operation left it.
    AsAfter,
    /// The operation did not change it, as far as anybody saw.
    Untouched(SkipReason),
    /// It is not known to be as the operation left it.
    Differs(SkipReason),
}

impl Judgement {
    /// Judges where the current state and the goal differ.
    pub(super) fn of(change: &Change, current: View<'_>, undo: Undone<'_>) -> Self {
        let path = &change.path;
        let reason = || reason_to_keep(path, change.old.is_some(), current, undo);
        let Some(operation) = change_at(undo.changes, path) else {
            return Self::Untouched(reason());
        };
        // Where neither captured anything it is the same only if both know as much about it.
        let known = |view: View<'_>| view.omission_covering(path).map(|o| (o.reason, o.bytes));
        let is_as_after = operation.old == change.old
            && match change.old {
                Some(entry) => {
                    let bits = |view: View<'_>| view.modes.of(path, entry.kind);
                    bits(current) == bits(undo.after)
                }
                None => known(current) == known(undo.after),
            };
        match is_as_after || is_what_was_too_large(change, undo) {
            true => Self::AsAfter,
            false => Self::Differs(reason()),
        }
    }
}

/// Whether what the operation left in the place of something that is put back was too large to be
/// captured then, is captured by now, has that size, and was not changed since. As far as anybody
/// can tell it is that; and the guard has all of it.
fn is_what_was_too_large(change: &Change, undo: Undone<'_>) -> bool {
    let path = &change.path;
    let is_file = change
        .old
        .is_some_and(|entry| entry.kind != EntryKind::Symlink);
    let then = undo.after.coverage.at(path);
    is_file
        && change.new.is_some()
        && then.is_some_and(|omission| omission.reason == OmissionReason::TooLarge)
        && undo.sizes.get(path) == Some(&Size::Same)
}

/// Why a path stays as it is, of which nobody knows that it is as the operation left it.
/// `is_there`: whether something was captured there now.
///
/// Somebody edited it if both captures saw it, or if kind, size or times tell. Otherwise the reason
/// is why it was not seen: who did not see a file cannot say that it is another one.
pub(super) fn reason_to_keep(
    path: &RelPath,
    is_there: bool,
    current: View<'_>,
    undo: Undone<'_>,
) -> SkipReason {
    let is_resized = undo.sizes.get(path) == Some(&Size::Another);
    let is_edited = match (current.unseen_at(path), undo.after.unseen_at(path)) {
        (None, None) => true,
        (Some(now), Some(then)) => are_two_things(now, then),
        (Some(now), None) => {
            let was_there = change_at(undo.changes, path).is_some_and(|c| c.old.is_some());
            now.path == *path && (now.is_special() || is_resized || !was_there)
        }
        (None, Some(then)) => {
            let is_other = then.is_special() || is_resized;
            then.path == *path && (is_other || !is_there)
        }
    };
    let unseen = current.unseen_at(path).or(undo.after.unseen_at(path));
    match unseen.filter(|_| !is_edited) {
        Some(omission) => SkipReason::Omitted(omission.reason),
        None => SkipReason::EditedSince,
    }
}

/// Whether two omissions are seen not to be of one thing.
fn are_two_things(now: &Omission, then: &Omission) -> bool {
    let is_known = |o: &Omission| !o.hides_a_directory();
    let is_other_kind = now.is_special() != then.is_special() && is_known(now) && is_known(then);
    now.path == then.path && (now.bytes != then.bytes || is_other_kind)
}
