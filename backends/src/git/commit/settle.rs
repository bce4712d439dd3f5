//! Whether the commit that an intent announced was made. The position of the ref tells.

use std::collections::{HashSet, VecDeque};

use super::message::trailers;
use super::objects::CommitObject;
use super::sound::Sound;
use crate::commit::CommitError;
use crate::git::ObjectId;
use crate::git::repository::UserRepository;
use crate::operation::Operation;

/// How many commits are looked at, from a ref backwards.
const MAX_COMMITS: usize = 100_000;

/// A commit may be dated this many seconds before its parent, because clocks differ. An older one
/// was probably not made after the intent, unless a clock was set back.
const MAX_CLOCK_SKEW: i64 = 24 * 60 * 60;

/// How many older commits are tolerated: more than a person makes while a clock is wrong, and far
/// fewer than an unrelated history has.
const MAX_OLD_COMMITS: usize = 10_000;

/// What became of an intent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settled {
    /// The ref is at the parent.
    Open,
    /// The ref is at this commit, or has gone on from it: that of the intent, or the same one made
    /// again.
    InPlace(ObjectId),
    /// The ref is somewhere else.
    Elsewhere,
}

/// Says what became of an intent while its ref is at `now`.
pub(super) fn settle(
    op: &Operation,
    repository: &UserRepository,
    sound: &Sound<'_>,
    now: Option<ObjectId>,
) -> Result<Settled, CommitError> {
    if now == sound.parent {
        return Ok(Settled::Open);
    }
    let Some(tip) = now else {
        return Ok(Settled::Elsewhere);
    };
    if tip == sound.commit {
        return Ok(Settled::InPlace(tip));
    }
    let wanted = trailers(&sound.intent.message);
    let mut old_commits = 0;
    let mut seen = HashSet::from([tip]);
    let mut waiting = VecDeque::from([tip]);
    while let Some(id) = waiting.pop_front() {
        // What a shallow clone cuts off is not there.
        let Some(commit) = CommitObject::read(op, repository, id)? else {
            continue;
        };
        let is_same = commit.tree == sound.tree
            && commit.parents.iter().eq(sound.parent.iter())
            && trailers(&commit.message) == wanted;
        if is_same {
            return Ok(Settled::InPlace(id));
        }
        // Parents and trailers say whose it is, and no date does: that only ends the search.
        let is_old = commit.committed_at < sound.intent.time.saturating_sub(MAX_CLOCK_SKEW);
        old_commits += usize::from(is_old);
        if old_commits > MAX_OLD_COMMITS {
            break;
        }
        for parent in commit.parents {
            if parent == sound.commit {
                return Ok(Settled::InPlace(parent));
            }
            if Some(parent) != sound.parent && seen.len() < MAX_COMMITS && seen.insert(parent) {
                waiting.push_back(parent);
            }
        }
    }
    Ok(Settled::Elsewhere)
}
