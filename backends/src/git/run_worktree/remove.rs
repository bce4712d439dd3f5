//! Letting go of a run's work tree: the directory, then the entry, then the branch.

use std::os::fd::AsFd as _;

use rustix::fs::AtFlags;

use super::ensure::{Seen, locks, operation_of};
use super::entry::Found;
use super::look::Places;
use crate::error::printable;
use crate::git::ObjectId;
use crate::git::directory::{Create, open_below};
use crate::git::repository::split;
use crate::git::rollback::refs::Refs;
use crate::operation::Operation;
use crate::run_worktree::{Removed, RunDirectory, RunWorktreeError};
use crate::snapshot::SnapshotId;
use crate::workspace::LockedWorkspace;
use crate::worktree::area;

/// Why nothing is removed, if something is not as it was expected. `tip` is where the branch is to
/// be that goes; `has_guard`: the directory was captured.
fn refuse(
    places: &Places<'_>,
    seen: &Seen,
    has_guard: bool,
    tip: Option<ObjectId>,
) -> Result<(), RunWorktreeError> {
    let (branch, directory) = (&places.worktree.branch, &places.worktree.directory);
    let conflict = |why: String| Err(RunWorktreeError::Conflict(why));
    match (&seen.directory, &seen.entry) {
        (RunDirectory::Other(why), _) | (_, Found::Other(why)) => return conflict(why.clone()),
        (RunDirectory::Right, _) if !has_guard => {
            let directory = printable(directory);
            return conflict(format!("{directory} is there, and was not captured"));
        }
        _ => {}
    }
    let (Some(expected), Some(found)) = (tip, seen.tip) else {
        return Ok(());
    };
    if expected != found {
        return Err(RunWorktreeError::Moved {
            branch: branch.clone(),
            expected: expected.to_string(),
            found: format!("at {found}"),
        });
    }
    match &seen.taken {
        Some(place) => conflict(format!("{branch} is checked out in {}", printable(place))),
        None => Ok(()),
    }
}

/// See [`RunWorktrees::remove`](crate::RunWorktrees::remove).
pub(super) fn remove(
    op: &Operation,
    places: &Places<'_>,
    guard: Option<(&mut LockedWorkspace, &SnapshotId)>,
    tip: Option<ObjectId>,
) -> Result<Removed, RunWorktreeError> {
    let entry = places.entry(op)?;
    let refs = Refs::open(places.repository.common_dir())?;
    let seen = places.see(op, &entry, &refs)?;
    refuse(places, &seen, guard.is_some(), tip)?;
    if seen.entry != Found::Nothing && entry.has_modules() {
        // Commits that were made in a submodule here may be nowhere else.
        return Err(RunWorktreeError::Conflict(format!(
            "{} has repositories of submodules, which no capture keeps: push what is to stay, and remove {}",
            printable(&places.worktree.directory),
            printable(&entry.modules())
        )));
    }
    let mut removed = Removed::default();
    // Of a directory that was not finished.
    area::remove_beside(op, &area::beside(&places.worktree.directory))?;
    if let Some((workspace, guard)) = guard {
        if seen.directory == RunDirectory::Right {
            displace(op, places, workspace, guard)?;
            removed.directory = true;
        }
        workspace.forget_run(op)?;
    }
    if seen.entry != Found::Nothing {
        entry.remove()?;
        removed.entry = true;
    }
    if tip.is_some() {
        let branch = &*places.worktree.branch;
        if seen.tip.is_some() {
            let operation = operation_of(branch);
            refs.move_to(op, &locks(&operation), branch, tip, None)?;
            removed.branch = true;
        }
        remove_log(op, &refs, branch);
    }
    Ok(removed)
}

fn displace(
    op: &Operation,
    places: &Places<'_>,
    workspace: &LockedWorkspace,
    guard: &SnapshotId,
) -> Result<(), RunWorktreeError> {
    let (directory, path) = (&places.worktree.directory, workspace.disk_path());
    let is_same = std::fs::canonicalize(directory).is_ok_and(|found| found == path);
    if !is_same {
        return Err(RunWorktreeError::InvalidOptions(format!(
            "{} was captured, and not {}",
            printable(path),
            printable(directory)
        )));
    }
    let root = workspace.root()?;
    Ok(area::displace_directory(
        op,
        &root,
        workspace.store_path(),
        guard,
    )?)
}

/// Removes the log of a branch that is gone, as git does. Best effort: it is in nobody's way but a
/// branch's whose name has this one's for a directory.
fn remove_log(op: &Operation, refs: &Refs, branch: &str) {
    let (above, leaf) = split(branch);
    let logs = open_below(
        op,
        refs.common.as_fd(),
        &format!("logs/{above}"),
        Create::No,
    );
    if let Ok(Some(logs)) = logs
        && op.before().is_ok()
    {
        let _ = rustix::fs::unlinkat(&logs, leaf, AtFlags::empty());
    }
}
