//! What there is of a run's work tree, and of what it is cut from. Reads alone.

use std::fs;
use std::io;
use std::path::Path;

use super::entry::{self, Entry};
use crate::error::{PathError, chain, printable};
use crate::git::ObjectId;
use crate::git::put_error::PutError;
use crate::git::repository::{
    Head, Probe, RepositoryError, UserRepository, is_ref_name, probe, probe_repository,
};
use crate::operation::Operation;
use crate::run_worktree::{
    BranchTip, Origin, RunDirectory, RunWorktree, RunWorktreeError, RunWorktreeState,
};

const BRANCHES: &str = "refs/heads/";

/// The repository at `path`, bare or not.
pub(super) fn open(path: &Path) -> Result<Box<UserRepository>, RunWorktreeError> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => {}
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(PathError::at("look at", path)(error).into());
        }
        _ => {
            let path = printable(path);
            return Err(RunWorktreeError::InvalidOptions(format!(
                "{path} is no directory"
            )));
        }
    }
    match probe_repository(path)? {
        Probe::Found(repository) => Ok(repository),
        Probe::Unsupported { git_dir, format } => Err(RunWorktreeError::Unsupported(format!(
            "the repository {} uses {format}, which is not handled",
            printable(&git_dir)
        ))),
        Probe::None | Probe::Bare(_) => Err(RunWorktreeError::InvalidOptions(format!(
            "{} is in no git repository",
            printable(path)
        ))),
    }
}

/// See [`RunWorktrees::origin`](crate::RunWorktrees::origin).
pub(super) fn origin(
    op: &Operation,
    repository: &UserRepository,
    branch: Option<&str>,
) -> Result<Origin, RunWorktreeError> {
    let invalid = |why: String| RunWorktreeError::InvalidOptions(why);
    let name = match branch {
        Some(branch) if branch.starts_with(BRANCHES) => branch.to_owned(),
        Some(branch) => format!("{BRANCHES}{branch}"),
        None => match repository.head()? {
            Head::Branch { branch, .. } | Head::Unborn { branch } => branch,
            Head::Detached { commit } => {
                return Err(invalid(format!(
                    "HEAD is detached at {commit}, so that there is no branch to go on from"
                )));
            }
        },
    };
    if !is_ref_name(&name) || !name.starts_with(BRANCHES) {
        return Err(invalid(format!(
            "{name:?} is no name of a branch (git check-ref-format)"
        )));
    }
    let short = name.strip_prefix(BRANCHES).unwrap_or(&name);
    let Some(commit) = repository.tip(&name)? else {
        return Err(invalid(match branch {
            Some(_) => format!("there is no branch {short}"),
            None => format!("the branch {short} has no commit yet"),
        }));
    };
    let BranchTip { commit, tree } = tip_at(op, repository, commit)?;
    Ok(Origin {
        repository: repository.work_tree().to_owned(),
        scope: repository.scope().clone(),
        is_bare: repository.work_tree() == repository.git_dir(),
        branch: name,
        commit,
        tree,
    })
}

/// A branch that is at this commit.
pub(super) fn tip_at(
    op: &Operation,
    repository: &UserRepository,
    commit: ObjectId,
) -> Result<BranchTip, RunWorktreeError> {
    let tree = repository.commit_tree(op, commit);
    let tree = tree.map_err(|error| incomplete(error, commit))?;
    Ok(BranchTip {
        commit: commit.to_string(),
        tree: tree.to_string(),
    })
}

/// What is missing is the commit's.
pub(super) fn incomplete(error: RepositoryError, commit: ObjectId) -> RunWorktreeError {
    match error {
        RepositoryError::MissingObject { id } => RunWorktreeError::Incomplete {
            object: id.to_string(),
            commit: commit.to_string(),
        },
        error => error.into(),
    }
}

/// The repository of a run's work tree, and where its parts are.
pub(super) struct Places<'a> {
    pub(super) worktree: &'a RunWorktree,
    pub(super) repository: Box<UserRepository>,
}

impl<'a> Places<'a> {
    pub(super) fn of(worktree: &'a RunWorktree) -> Result<Self, RunWorktreeError> {
        let RunWorktree {
            branch, directory, ..
        } = worktree;
        if !is_ref_name(branch) || !branch.starts_with(BRANCHES) {
            return Err(RunWorktreeError::InvalidOptions(format!(
                "{branch:?} is no name of a branch"
            )));
        }
        if !directory.is_absolute() || directory.file_name().is_none() {
            return Err(RunWorktreeError::InvalidOptions(format!(
                "{} is no place for a work tree",
                printable(directory)
            )));
        }
        Ok(Self {
            repository: open(&worktree.repository)?,
            worktree,
        })
    }

    /// The run's entry in the repository.
    pub(super) fn entry<'p>(&'p self, op: &'p Operation) -> Result<Entry<'p>, PutError> {
        let RunWorktree {
            branch, directory, ..
        } = self.worktree;
        Entry::of(op, self.repository.common_dir(), branch, directory)
    }

    /// Whether the repository has no work tree but linked ones.
    pub(super) fn is_bare(&self) -> bool {
        self.repository.work_tree() == self.repository.git_dir()
    }

    /// See [`RunWorktrees::look`](crate::RunWorktrees::look).
    pub(super) fn look(&self, op: &Operation) -> Result<RunWorktreeState, RunWorktreeError> {
        let tip = self.repository.tip(&self.worktree.branch)?;
        let tip = tip.map(|commit| tip_at(op, &self.repository, commit));
        Ok(RunWorktreeState {
            tip: tip.transpose()?,
            directory: self.directory()?,
        })
    }

    /// What is in the place of the directory.
    pub(super) fn directory(&self) -> Result<RunDirectory, RunWorktreeError> {
        let path = &self.worktree.directory;
        let other = |what: &str| RunDirectory::Other(format!("{} {what}", printable(path)));
        match fs::symlink_metadata(path) {
            Ok(found) if found.is_dir() => {}
            Ok(_) => return Ok(other("is no directory")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(RunDirectory::Missing);
            }
            Err(error) => return Err(PathError::at("look at", path)(error).into()),
        }
        let found = match probe(path) {
            Ok(Probe::Found(found)) if found.scope().is_root() => found,
            Ok(_) => {
                let mut entries = fs::read_dir(path).map_err(PathError::at("list", path))?;
                return Ok(match entries.next() {
                    None => RunDirectory::Missing,
                    Some(_) => other("is no work tree of git's"),
                });
            }
            // A link that leads elsewhere, or nowhere, is no link of this run's.
            Err(RepositoryError::Io(error)) => return Err(error.into()),
            Err(error) => return Ok(other(&format!("is not usable: {}", chain(&error)))),
        };
        let entry = self
            .repository
            .common_dir()
            .join(entry::name_of(&self.worktree.branch));
        if found.identity() != self.repository.identity() || found.git_dir() != entry {
            return Ok(other("is another work tree"));
        }
        let head = match found.head() {
            Ok(head) => head,
            Err(error) => return Ok(other(&format!("has no HEAD: {}", chain(&error)))),
        };
        Ok(match head.branch() {
            Some(branch) if branch == self.worktree.branch => RunDirectory::Right,
            Some(branch) => other(&format!("has {branch} checked out")),
            None => other("has a detached HEAD"),
        })
    }
}
