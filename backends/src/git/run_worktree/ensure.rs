//! Making a run's work tree: deciding what is missing, and doing it in an order in which a crash
//! leaves nothing that the next call does not know again.

use std::fs;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use rustix::time::ClockId;

use super::contents::TreeContents;
use super::entry::{Entry, Found};
use super::files::{Source, Written, of_commit};
use super::look::{Places, tip_at};
use crate::durable;
use crate::error::{PathError, printable};
use crate::faults::Effect;
use crate::git::ObjectId;
use crate::git::backend::environment;
use crate::git::commit::{Smudging, signature_of_user};
use crate::git::rollback::LOCK_TIMEOUT;
use crate::git::rollback::lock::Locks;
use crate::git::rollback::reflog::{self, Line, Missing};
use crate::git::rollback::refs::Refs;
use crate::git::user_index::{self, IndexEntry};
use crate::git::{repository, worktrees};
use crate::operation::Operation;
use crate::run_worktree::{BranchTip, Ensured, RunDirectory, RunWorktreeError};
use crate::worktree::area;
use crate::worktree::clock::now_ns;
use crate::worktree::new_files::NewFiles;

/// How far before the index a file says that it was written, in nanoseconds: git reads a file again
/// whose time is not before that of the index, some versions by whole seconds.
const BEFORE_INDEX_NS: i64 = 2_000_000_000;

/// What was found of a run's work tree.
pub(super) struct Seen {
    pub(super) tip: Option<ObjectId>,
    pub(super) directory: RunDirectory,
    pub(super) entry: Found,
    /// The other work tree that has the branch.
    pub(super) taken: Option<PathBuf>,
    /// The ref that git does not keep beside the branch.
    pub(super) in_the_way: Option<String>,
}

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Todo {
    /// All is there. Whether the entry has the mark still.
    Nothing { is_marked: bool },
    /// The directory is to be made, from this commit.
    Make {
        commit: ObjectId,
        /// Whether the branch is to be made.
        makes_branch: bool,
        /// Whether the entry that is there goes first.
        is_stale: bool,
    },
}

/// Decides it. `base` is the commit of a branch that is not there.
pub(super) fn decide(
    seen: &Seen,
    branch: &str,
    base: Option<ObjectId>,
) -> Result<Todo, RunWorktreeError> {
    let conflict = |why: String| Err(RunWorktreeError::Conflict(why));
    match (&seen.directory, &seen.entry) {
        (RunDirectory::Other(why), _) | (_, Found::Other(why)) => return conflict(why.clone()),
        _ => {}
    }
    if let Some(place) = &seen.taken {
        return conflict(format!("{branch} is checked out in {}", printable(place)));
    }
    let is_marked = seen.entry == Found::Marked;
    let commit = match (seen.tip, base) {
        (None, None) => return conflict(format!("there is no {branch} any more")),
        (None, Some(_)) if seen.directory == RunDirectory::Right => {
            return conflict(format!("there is no {branch} any more"));
        }
        (None, Some(base)) => base,
        (Some(_), Some(_)) if seen.entry == Found::Nothing => {
            return conflict(format!("{branch} is there already"));
        }
        (Some(tip), Some(base)) if is_marked && tip != base => {
            return conflict(format!("{branch} is at {tip} already, and not at {base}"));
        }
        (Some(tip), _) => tip,
    };
    if let (None, Some(other)) = (seen.tip, &seen.in_the_way) {
        return conflict(format!("{branch} cannot be made beside {other}"));
    }
    Ok(match seen.directory {
        RunDirectory::Right => Todo::Nothing { is_marked },
        _ => Todo::Make {
            commit,
            makes_branch: seen.tip.is_none(),
            is_stale: seen.entry == Found::Whole,
        },
    })
}

/// At work on one run's work tree.
pub(super) struct Maker<'a> {
    op: &'a Operation,
    places: &'a Places<'a>,
    entry: Entry<'a>,
    refs: Refs,
    smudging: Smudging,
    at: Timestamp,
}

impl<'a> Maker<'a> {
    /// For this one. Nothing is written.
    pub(super) fn new(
        op: &'a Operation,
        places: &'a Places<'a>,
        at: Timestamp,
    ) -> Result<Self, RunWorktreeError> {
        Ok(Self {
            op,
            entry: places.entry(op)?,
            refs: Refs::open(places.repository.common_dir())?,
            smudging: Smudging::new(&places.repository, &environment)?,
            places,
            at,
        })
    }

    /// See [`RunWorktrees::ensure`](crate::RunWorktrees::ensure).
    pub(super) fn ensure(&self, base: Option<ObjectId>) -> Result<Ensured, RunWorktreeError> {
        let (op, repository) = (self.op, &self.places.repository);
        let branch = &*self.places.worktree.branch;
        let seen = self.places.see(op, &self.entry, &self.refs)?;
        let done = |commit| {
            Ok::<_, RunWorktreeError>(Ensured {
                tip: tip_at(op, repository, commit)?,
                files_written: 0,
                bytes_written: 0,
                unconverted: Vec::new(),
            })
        };
        match decide(&seen, branch, base)? {
            Todo::Nothing { is_marked } => {
                if is_marked {
                    self.entry.unmark()?;
                }
                done(seen.tip.expect("or it would have been a conflict"))
            }
            Todo::Make {
                commit,
                makes_branch,
                is_stale,
            } => {
                // Before anything is written: what is missing is said first.
                let tip = tip_at(op, repository, commit)?;
                let tree = tip.tree.parse().expect("it was an id");
                let contents = TreeContents::read(op, repository, tree);
                let contents = contents.map_err(|error| of_commit(error, commit))?;
                if is_stale {
                    self.entry.remove()?;
                }
                self.entry.make()?;
                if makes_branch {
                    self.make_branch(commit)?;
                }
                self.make_directory(tip, commit, &contents)
            }
        }
    }

    /// Makes the branch, which is not there. On `Ok` it survives a power cut.
    fn make_branch(&self, commit: ObjectId) -> Result<(), RunWorktreeError> {
        let (op, branch) = (self.op, &*self.places.worktree.branch);
        let operation = operation_of(branch);
        let locks = locks(&operation);
        self.refs.move_to(op, &locks, branch, None, Some(commit))?;
        let settings = self.smudging.settings();
        let missing = Missing::as_configured(settings, self.places.is_bare());
        let message = format!("branch: Created from {commit}");
        self.log(commit, &message, |line| {
            reflog::add(op, self.refs.common.as_fd(), branch, line, missing);
        });
        Ok(())
    }

    fn log<T>(&self, commit: ObjectId, message: &str, write: impl FnOnce(&Line<'_>) -> T) -> T {
        let signature = signature_of_user(self.smudging.settings());
        write(&Line {
            from: None,
            to: Some(commit),
            committer: &format!("{} <{}>", signature.name, signature.email),
            at: self.at.as_second(),
            message,
        })
    }

    /// Makes the directory, under a name that nobody knows, and gives it its own at the end.
    fn make_directory(
        &self,
        tip: BranchTip,
        commit: ObjectId,
        contents: &TreeContents,
    ) -> Result<Ensured, RunWorktreeError> {
        let (op, directory) = (self.op, &*self.places.worktree.directory);
        let above = directory.parent().expect("it has a name");
        durable::make_private(op, above)?;
        // What a crash has left has the same name.
        let scratch = area::beside(directory);
        area::remove_beside(op, &scratch)?;
        let filled = self.fill(&scratch, commit, contents);
        let written = filled.and_then(|written| {
            self.give_index(contents, &written, commit)?;
            place(op, &scratch, directory)?;
            Ok(written)
        });
        let written = written.inspect_err(|_| {
            // Best effort beside the error: the next call removes it too.
            let _ = area::remove_beside(&op.to_its_end(), &scratch);
        })?;
        self.entry.unmark()?;
        let is_file = |(item, _): &(&super::contents::Item, &Written)| item.kind.is_some();
        let both = contents.items.iter().zip(&written);
        let unconverted = both.clone().filter(|(_, written)| written.is_unconverted);
        Ok(Ensured {
            tip,
            files_written: both.clone().filter(is_file).count() as u64,
            bytes_written: written.iter().map(|written| written.bytes).sum(),
            unconverted: unconverted.map(|(item, _)| item.path.clone()).collect(),
        })
    }

    /// Writes all files, and the one that says which entry is the directory's.
    fn fill(
        &self,
        scratch: &Path,
        commit: ObjectId,
        contents: &TreeContents,
    ) -> Result<Vec<Written>, RunWorktreeError> {
        let (op, directory) = (self.op, &*self.places.worktree.directory);
        op.effect(Effect::MakeDirectory(scratch))
            .and_then(|()| fs::create_dir(scratch))
            .map_err(PathError::at("make the directory", directory))?;
        let link = [b"gitdir: ", bytes_of(self.entry.path()), b"\n"].concat();
        let dot_git = scratch.join(".git");
        op.effect(Effect::Write(&dot_git))
            .and_then(|()| fs::write(&dot_git, link))
            .map_err(PathError::at("write", directory.join(".git")))?;
        let modified_ns = now_ns(ClockId::Realtime).saturating_sub(BEFORE_INDEX_NS);
        let files = NewFiles::of(op, scratch, directory, modified_ns)?;
        let source = Source {
            op,
            repository: &self.places.repository,
            commit,
            contents,
            smudging: &self.smudging,
        };
        source.write_to(&files)
    }

    /// Gives the entry the index of what was written.
    fn give_index(
        &self,
        contents: &TreeContents,
        written: &[Written],
        commit: ObjectId,
    ) -> Result<(), RunWorktreeError> {
        let both = contents.items.iter().zip(written);
        let entries: Vec<IndexEntry<&[u8]>> = both
            .map(|(item, written)| IndexEntry {
                path: item.path.as_bytes(),
                mode: item.git_mode(),
                id: item.id,
                stat: written.stat,
                stage: 0,
                is_intent_to_add: false,
                is_skip_worktree: false,
                is_assume_unchanged: false,
            })
            .collect();
        let index = user_index::serialize(2, &entries, &contents.trees);
        let missing = Missing::as_configured(self.smudging.settings(), false);
        self.log(commit, "", |line| self.entry.fill(&index, line, missing))?;
        Ok(())
    }
}

/// Gives the directory its name, where nothing or an empty directory is.
fn place(op: &Operation, scratch: &Path, directory: &Path) -> Result<(), RunWorktreeError> {
    let rename = Effect::Rename {
        from: scratch,
        to: directory,
    };
    let renamed = op
        .effect(rename)
        .and_then(|()| fs::rename(scratch, directory));
    match renamed.as_ref().map_err(io::Error::kind) {
        Err(
            io::ErrorKind::DirectoryNotEmpty
            | io::ErrorKind::AlreadyExists
            | io::ErrorKind::NotADirectory,
        ) => Err(RunWorktreeError::Conflict(format!(
            "something has come to {}",
            printable(directory)
        ))),
        _ => Ok(renamed.map_err(PathError::at("rename to", directory))?),
    }
}

impl Places<'_> {
    /// All that decides what is missing. What a crash has left of a lock of ours goes.
    pub(super) fn see(
        &self,
        op: &Operation,
        entry: &Entry<'_>,
        refs: &Refs,
    ) -> Result<Seen, RunWorktreeError> {
        let (branch, common_dir) = (&*self.worktree.branch, self.repository.common_dir());
        refs.release_what_a_crash_left(op, &locks(&operation_of(branch)), branch);
        let taken = worktrees::taken_elsewhere(op, common_dir, entry.path());
        let tip = self.repository.tip(branch)?;
        let in_the_way = match tip {
            None => refs.in_the_way_of(op, branch)?.into_keys().next(),
            Some(_) => None,
        };
        Ok(Seen {
            tip,
            directory: self.directory()?,
            entry: entry.find()?,
            taken: taken.get(branch).cloned(),
            in_the_way,
        })
    }
}

/// The id of what is done to a run's branch, which is the same after a crash.
pub(super) fn operation_of(branch: &str) -> String {
    let (_, leaf) = repository::split(branch);
    format!("run-{}", &blake3::hash(leaf.as_bytes()).to_hex()[..32])
}

pub(super) fn locks(operation: &str) -> Locks<'_> {
    Locks {
        operation,
        is_recovery: false,
        lock_timeout: LOCK_TIMEOUT,
    }
}

fn bytes_of(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}
