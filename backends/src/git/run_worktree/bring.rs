//! Bringing files along that no commit has.

use std::fs;
use std::io;
use std::path::Path;

use rustix::io::Errno;

use super::look::Places;
use crate::error::{PathError, printable};
use crate::faults::Effect;
use crate::git::commit::RepositoryTrees;
use crate::git::tree_lookup::TreeLookup;
use crate::operation::Operation;
use crate::path::RelPath;
use crate::run_worktree::{Brought, RunDirectory, RunWorktreeError};
use crate::worktree::area;
use crate::worktree::brought::{self, Copied};
use crate::worktree::root::Root;

/// See [`RunWorktrees::bring`](crate::RunWorktrees::bring).
pub(super) fn bring(
    op: &Operation,
    places: &Places<'_>,
    from: &Path,
    paths: &[RelPath],
) -> Result<Brought, RunWorktreeError> {
    let directory = &*places.worktree.directory;
    if places.directory()? != RunDirectory::Right {
        return Err(RunWorktreeError::Conflict(format!(
            "{} is not the run's work tree",
            printable(directory)
        )));
    }
    let (from, to) = (Root::of_directory(from)?, Root::of_directory(directory)?);
    refuse(op, places, &from, paths)?;
    let mut brought = Brought::default();
    let scratch = area::beside(directory);
    for path in paths {
        if to.lstat(path).is_ok() {
            brought.skipped.push(path.clone());
            continue;
        }
        // Under a name that nobody knows: what is there is whole.
        area::remove_beside(op, &scratch)?;
        op.effect(Effect::MakeDirectory(&scratch))
            .and_then(|()| fs::create_dir(&scratch))
            .map_err(PathError::at("make the directory", directory))?;
        let copied = brought::copy(op, &from, path, &scratch.join("copy"));
        let placed = copied.and_then(|copied| {
            place(op, &to, path, &scratch.join("copy"))?;
            Ok(copied)
        });
        area::remove_beside(&op.to_its_end(), &scratch)?;
        let Copied {
            files,
            shared,
            skipped,
        } = placed?;
        brought.files += files;
        brought.shared += shared;
        brought.skipped.extend(skipped);
    }
    brought.skipped.sort();
    Ok(brought)
}

/// Refuses what the branch has, and what is not there to be brought.
fn refuse(
    op: &Operation,
    places: &Places<'_>,
    from: &Root,
    paths: &[RelPath],
) -> Result<(), RunWorktreeError> {
    let (repository, branch) = (&places.repository, &places.worktree.branch);
    let Some(tip) = repository.tip(branch)? else {
        return Err(RunWorktreeError::Conflict(format!("there is no {branch}")));
    };
    let trees = RepositoryTrees(repository);
    let tree = TreeLookup::new(&trees, repository.commit_tree(op, tip)?);
    for path in paths {
        let refused = |why: &str| Err(RunWorktreeError::InvalidOptions(format!("{path} {why}")));
        if path.is_root() || path.names().any(|name| name.eq_ignore_ascii_case(b".git")) {
            return refused("is no path of a file that could be brought along");
        }
        if tree.at(op, path)?.is_some() {
            return refused("is not brought along, as the branch has it");
        }
        match from.lstat(path) {
            Ok(_) => {}
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                return refused("cannot be brought along, as it is not there");
            }
            Err(errno) => {
                return Err(PathError::at("look at", from.disk_path(path))(errno).into());
            }
        }
    }
    Ok(())
}

/// Gives what was copied its place, with the directories above it. Something that has come there
/// meanwhile is in the way.
fn place(op: &Operation, to: &Root, path: &RelPath, copy: &Path) -> Result<(), PathError> {
    let disk_path = to.disk_path(path);
    let place = || -> io::Result<()> {
        let above = brought::make_directories(op, to, path)?;
        op.effect(Effect::Rename {
            from: copy,
            to: &disk_path,
        })?;
        Ok(rustix::fs::renameat_with(
            rustix::fs::CWD,
            copy,
            above,
            path.as_path().file_name().expect("it is no root"),
            rustix::fs::RenameFlags::NOREPLACE,
        )?)
    };
    place().map_err(PathError::at("bring along", &disk_path))
}
