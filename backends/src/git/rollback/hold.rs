//! Holding the locks of index, HEAD and branch while files come, so that nobody commits what is half
//! there.

use std::os::fd::AsFd as _;
use std::time::Duration;

use super::hand::Hand;
use super::lock::{New, Place};
use super::moves::{BranchMove, shown};
use super::reflog;
use super::refs::Refs;
use super::{RepositoryPlan, path_of};
use crate::error::PathError;
use crate::git::put_error::PutError;
use crate::git::repository::split;
use crate::operation::Operation;
use crate::path::printable_bytes;

/// Takes the locks of index, HEAD and branch, in this order, if the plan goes on with the branch
/// that HEAD names; [`carry_out`](super::carry_out) then finds them as its own. Fails with none of
/// them held, and nothing changed, where one of the three is not as it was seen before.
/// `is_recovery`: a crash of this very operation may have left some.
pub(crate) fn hold(
    op: &Operation,
    plan: &RepositoryPlan,
    staged: impl FnOnce() -> Result<Vec<u8>, PathError>,
    is_recovery: bool,
    lock_timeout: Duration,
) -> Result<(), PutError> {
    if !plan.is_merge() || plan.is_empty() {
        return Ok(());
    }
    let hand = Hand {
        plan,
        is_recovery,
        lock_timeout,
    };
    let held = take(op, &hand, staged);
    if held.is_err() {
        hand.release_what_a_crash_left(op);
    }
    held
}

/// Whether files may have come since [`hold`], and nobody has been at work meanwhile: all locks that
/// it takes are there, or the branch has gone where it was to go. Where somebody has removed a lock,
/// what has come since is theirs.
pub(crate) fn is_begun(op: &Operation, plan: &RepositoryPlan) -> bool {
    if !plan.is_merge() || plan.is_empty() {
        return true;
    }
    let hand = Hand {
        plan,
        is_recovery: true,
        lock_timeout: Duration::ZERO,
    };
    let (git_path, path) = (path_of(&plan.git_dir), path_of(&plan.common_dir));
    let Ok(git_dir) = hand.open_known(&git_path, plan.git_inode) else {
        return false;
    };
    let Ok(common) = hand.open_known(&path, plan.common_inode) else {
        return false;
    };
    let refs = Refs { common, path };
    let is_own_held = |name| {
        hand.locks().is_held(&Place {
            directory: git_dir.as_fd(),
            path: &git_path,
            name,
        })
    };
    let is_branch_held = |branch: &BranchMove| {
        let (above, name) = split(&branch.name);
        refs.directory(op, above).is_ok_and(|directory| {
            hand.locks().is_held(&Place {
                directory: directory.as_fd(),
                path: &refs.path.join(above),
                name,
            })
        })
    };
    let went = |branch: &BranchMove| {
        let found = refs.resolve(op, &branch.name).ok().flatten();
        branch.to.is_some_and(|to| {
            found == Some(to) || reflog::has(op, refs.common.as_fd(), &branch.name, to)
        })
    };
    let is_all_held = (plan.index.is_none() || is_own_held("index"))
        && is_own_held("HEAD")
        && plan.branches.iter().all(is_branch_held);
    is_all_held || plan.branches.iter().all(went)
}

/// Removes the locks that [`hold`] took, as far as they are there.
pub(crate) fn release(op: &Operation, plan: &RepositoryPlan) {
    let hand = Hand {
        plan,
        is_recovery: true,
        lock_timeout: Duration::ZERO,
    };
    hand.release_what_a_crash_left(op);
}

fn take(
    op: &Operation,
    hand: &Hand<'_>,
    staged: impl FnOnce() -> Result<Vec<u8>, PathError>,
) -> Result<(), PutError> {
    let plan = hand.plan;
    let (git_path, common_path) = (path_of(&plan.git_dir), path_of(&plan.common_dir));
    let git_dir = hand.open_known(&git_path, plan.git_inode)?;
    let refs = Refs {
        common: hand.open_known(&common_path, plan.common_inode)?,
        path: common_path,
    };
    let staged = match plan.takes_bytes() {
        true => staged()?,
        false => Vec::new(),
    };
    if let Some(index) = &plan.index {
        hand.hold_index(op, index, (&git_dir, &git_path), &staged)?;
    }
    let head = Place {
        directory: git_dir.as_fd(),
        path: &git_path,
        name: "HEAD",
    };
    let text = head.read()?.unwrap_or_default();
    hand.locks().hold(op, &head, New::of(&text))?;
    for branch in &plan.branches {
        let named = head.read()?.unwrap_or_default();
        let expected = format!("ref: {}", branch.name);
        if branch.is_heads && named.trim_ascii() != expected.as_bytes() {
            return Err(PutError::Moved {
                what: "HEAD".to_owned(),
                expected,
                found: printable_bytes(named.trim_ascii()),
            });
        }
        let (above, name) = split(&branch.name);
        let directory = refs.directory(op, above)?;
        let place = Place {
            directory: directory.as_fd(),
            path: &refs.path.join(above),
            name,
        };
        let text = branch.to.map(|commit| format!("{commit}\n"));
        let text = text.unwrap_or_default();
        hand.locks().hold(op, &place, New::of(text.as_bytes()))?;
        let found = refs.resolve(op, &branch.name)?;
        // It may have come there in the attempt before a crash.
        if found != branch.from && found != branch.to {
            return Err(PutError::Moved {
                what: branch.name.clone(),
                expected: shown(branch.from),
                found: shown(found),
            });
        }
    }
    Ok(())
}
