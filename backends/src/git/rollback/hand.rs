//! Executing the plan of a rollback, under git's own locks.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::index::{IndexGoal, IndexMove, IndexSeen};
use super::lock::{Locks, New, Place, Verdict};
use super::operation::FileMove;
use super::reflog::{self, Line, Missing};
use super::refs::{PACKED_REFS, Refs};
use super::{RepositoryPlan, path_of};
use crate::descriptor;
use crate::error::{PathError, printable};
use crate::git::directory::{Create, open_below, open_directory};
use crate::git::put_error::PutError;
use crate::git::repository::split;
use crate::git::{ObjectId, ObjectKind};
use crate::operation::Operation;
use crate::path::printable_bytes;

/// Who moves a ref, in a reflog.
const COMMITTER: &str = "Stillframe <stillframe@localhost>";

/// Carries out a plan.
pub(super) struct Hand<'a> {
    pub(super) plan: &'a RepositoryPlan,
    pub(super) is_recovery: bool,
    pub(super) lock_timeout: Duration,
}

impl Hand<'_> {
    pub(super) fn carry_out(
        &self,
        op: &Operation,
        staged: impl FnOnce() -> Result<Vec<u8>, PathError>,
        safety_tag: &mut Option<String>,
    ) -> Result<(), PutError> {
        let git_path = path_of(&self.plan.git_dir);
        let git_dir = self.open_known(&git_path, self.plan.git_inode)?;
        let common_path = path_of(&self.plan.common_dir);
        let refs = Refs {
            common: self.open_known(&common_path, self.plan.common_inode)?,
            path: common_path,
        };
        let staged = match self.plan.takes_bytes() {
            true => staged()?,
            false => Vec::new(),
        };
        let mut staged = StagedBytes(&staged);
        let index = match &self.plan.index {
            None => None,
            Some(index) => Some(self.index(index, &git_dir, &git_path, &mut staged)?),
        };
        for (name, commit) in &self.plan.tags {
            // Before the branch moves: the old tip is never without a name.
            refs.move_to(op, &self.locks(), name, None, Some(*commit))?;
            safety_tag.get_or_insert_with(|| name.clone());
        }
        for branch in &self.plan.branches {
            refs.move_to(op, &self.locks(), &branch.name, branch.from, branch.to)?;
            self.log(op, &refs.common, &branch.name, branch.from, branch.to);
            if branch.is_heads {
                self.log(op, &git_dir, "HEAD", branch.from, branch.to);
            }
        }
        if let Some(head) = &self.plan.head {
            let place = Place {
                directory: git_dir.as_fd(),
                path: &git_path,
                name: "HEAD",
            };
            let is_right = |now: Option<&[u8]>| match now.map(<[u8]>::trim_ascii) {
                Some(text) if text == head.to.as_bytes() => Ok(Verdict::Right),
                Some(text) if text == head.from.as_bytes() => Ok(Verdict::Replace),
                other => Err(PutError::Moved {
                    what: "HEAD".to_owned(),
                    expected: head.from.clone(),
                    found: other.map_or_else(|| "missing".to_owned(), printable_bytes),
                }),
            };
            let text = format!("{}\n", head.to);
            self.locks()
                .replace(op, &place, Some(New::of(text.as_bytes())), &is_right)?;
            self.log(op, &git_dir, "HEAD", head.commits.0, head.commits.1);
        }
        if let Some(index) = &index {
            let judge = |now: Option<&[u8]>| self.judge(index, now);
            self.locks().replace(op, &index.place, index.new, &judge)?;
        }
        self.put_operation_back(op, &git_dir, &git_path, &mut staged)
    }

    /// Takes the lock of the index, and looks whether that is as it was planned for.
    pub(super) fn hold_index(
        &self,
        op: &Operation,
        planned: &IndexMove,
        (git_dir, git_path): (&OwnedFd, &Path),
        staged: &[u8],
    ) -> Result<(), PutError> {
        let index = self.index(planned, git_dir, git_path, &mut StagedBytes(staged))?;
        let new = index.new.unwrap_or(New::of(&[]));
        self.locks().hold(op, &index.place, new)?;
        self.judge(&index, index.place.read()?.as_deref()).map(drop)
    }

    /// The index with what it gets. It goes from what was seen to that or stays, and what somebody
    /// staged meanwhile keeps HEAD and branch where they are, too.
    fn index<'i>(
        &self,
        planned: &'i IndexMove,
        git_dir: &'i OwnedFd,
        git_path: &'i Path,
        staged: &mut StagedBytes<'i>,
    ) -> Result<Index<'i>, PutError> {
        let index = Index {
            planned,
            place: Place {
                directory: git_dir.as_fd(),
                path: git_path,
                name: "index",
            },
            new: match planned.to {
                IndexGoal::Remove => None,
                IndexGoal::Write { bytes, modified_ns } => Some(New {
                    bytes: staged.take(bytes, "index")?,
                    modified_ns: Some(modified_ns),
                }),
            },
        };
        self.judge(&index, index.place.read()?.as_deref())?;
        Ok(index)
    }

    fn judge(&self, index: &Index<'_>, now: Option<&[u8]>) -> Result<Verdict, PutError> {
        let new = index.new.map(|new| new.bytes);
        // After a merge, git may have written its stat data since.
        let is_there = |now| IndexSeen::of(new).is_some_and(|new| new.is(now));
        if now == new || (self.plan.is_merge() && is_there(now)) {
            return Ok(Verdict::Right);
        }
        match index.planned.from.is(now) {
            true => Ok(Verdict::Replace),
            false => Err(PutError::Changed {
                what: printable(&index.place.path.join(index.place.name)),
            }),
        }
    }

    /// Puts back the files of git's operations. Each goes from what was seen to what is wanted, or
    /// stays.
    fn put_operation_back(
        &self,
        op: &Operation,
        git_dir: &OwnedFd,
        git_path: &Path,
        staged: &mut StagedBytes<'_>,
    ) -> Result<(), PutError> {
        let operation = &self.plan.files;
        let repository = Below { git_dir, git_path };
        for file in &operation.leaving {
            self.put_file(op, &repository, file, None)?;
        }
        for name in &operation.removed_directories {
            repository.remove_directory(op, name)?;
        }
        for name in &operation.made_directories {
            repository.make_directory(op, name)?;
        }
        for file in &operation.coming {
            let bytes = staged.take(file.bytes, &file.name)?;
            self.put_file(op, &repository, file, Some(bytes))?;
        }
        Ok(())
    }

    fn put_file(
        &self,
        op: &Operation,
        repository: &Below<'_>,
        file: &FileMove,
        bytes: Option<&[u8]>,
    ) -> Result<(), PutError> {
        let (above, name) = split(&file.name);
        let path = repository.git_path.join(above);
        let Some(directory) = repository.open(op, above)? else {
            return match file.to {
                // It went with its directory.
                None => Ok(()),
                Some(_) => Err(PutError::Changed {
                    what: printable(&path),
                }),
            };
        };
        let place = Place {
            directory: directory.as_fd(),
            path: &path,
            name,
        };
        let is_right = |now: Option<&[u8]>| {
            let now = now.map(|bytes| ObjectId::of(ObjectKind::Blob, bytes));
            match now.transpose() {
                Ok(now) if now == file.to => Ok(Verdict::Right),
                Ok(now) if now == file.from => Ok(Verdict::Replace),
                _ => Err(PutError::Changed {
                    what: printable(&path.join(name)),
                }),
            }
        };
        self.locks()
            .replace(op, &place, bytes.map(New::of), &is_right)
    }

    /// Opens a directory of the repository, if it still is the one that the plan was made for.
    pub(super) fn open_known(&self, path: &Path, inode: u64) -> Result<OwnedFd, PutError> {
        let fd = open_directory(path)?;
        let stat = descriptor::fstat(&fd).map_err(PathError::at("look at", path))?;
        if stat.inode != inode {
            return Err(PutError::Replaced {
                path: path.to_owned(),
            });
        }
        Ok(fd)
    }

    /// Removes what a crash of this operation left in the user's way, wherever it was at work. What
    /// is put back now may end before it comes to that place.
    ///
    /// Best effort beside what is told of that. On a file system without hard links, only its
    /// content shows that a lock is ours, so it stays.
    pub(super) fn release_what_a_crash_left(&self, op: &Operation) {
        let tags = self.plan.tags.iter().map(|(name, _)| &**name);
        let branches = self.plan.branches.iter().map(|branch| &*branch.name);
        let shared = tags.chain(branches).chain([PACKED_REFS]);
        self.release_below(op, &self.plan.common_dir, self.plan.common_inode, shared);
        let own = ["HEAD", "index"].into_iter().chain(self.plan.files.paths());
        self.release_below(op, &self.plan.git_dir, self.plan.git_inode, own);
    }

    fn release_below<'n>(
        &self,
        op: &Operation,
        path: &[u8],
        inode: u64,
        names: impl Iterator<Item = &'n str>,
    ) {
        let path = path_of(path);
        let Ok(base) = self.open_known(&path, inode) else {
            return;
        };
        for name in names {
            let (above, name) = split(name);
            let Ok(Some(directory)) = open_below(op, base.as_fd(), above, Create::No) else {
                continue;
            };
            let place = Place {
                directory: directory.as_fd(),
                path: &path.join(above),
                name,
            };
            self.locks().release_what_a_crash_left(op, &place);
        }
    }

    /// Adds a line to a reflog that exists. Best effort: the ref is what counts.
    fn log(
        &self,
        op: &Operation,
        directory: &OwnedFd,
        name: &str,
        from: Option<ObjectId>,
        to: Option<ObjectId>,
    ) {
        let is_told = self.is_recovery && reflog::last(op, directory.as_fd(), name) == to;
        if from.is_none() || to.is_none() || is_told {
            return;
        }
        let line = Line {
            from,
            to,
            committer: COMMITTER,
            at: self.plan.at,
            message: self.plan.told(),
        };
        reflog::add(op, directory.as_fd(), name, &line, Missing::LeftOut);
    }

    pub(super) fn locks(&self) -> Locks<'_> {
        Locks {
            operation: &self.plan.operation,
            is_recovery: self.is_recovery,
            lock_timeout: self.lock_timeout,
        }
    }
}

/// The user's index, and what it gets.
struct Index<'a> {
    planned: &'a IndexMove,
    place: Place<'a>,
    new: Option<New<'a>>,
}

/// The staged bytes that were not taken yet.
struct StagedBytes<'a>(&'a [u8]);

impl<'a> StagedBytes<'a> {
    fn take(&mut self, count: u64, name: &str) -> Result<&'a [u8], PathError> {
        let cut = usize::try_from(count).ok();
        let cut = cut.and_then(|count| self.0.split_at_checked(count));
        let (taken, rest) = cut.ok_or_else(|| {
            let lost = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
            PathError::at("read what was staged for", name)(lost)
        })?;
        self.0 = rest;
        Ok(taken)
    }
}

/// The directories below a git directory.
struct Below<'a> {
    git_dir: &'a OwnedFd,
    git_path: &'a Path,
}

impl Below<'_> {
    /// Opens one; `None` if it is not there.
    fn open(&self, op: &Operation, name: &str) -> Result<Option<OwnedFd>, PutError> {
        open_below(op, self.git_dir.as_fd(), name, Create::No)
            .map_err(|errno| self.failed(name, errno))
    }

    fn make_directory(&self, op: &Operation, name: &str) -> Result<(), PutError> {
        open_below(op, self.git_dir.as_fd(), name, Create::Yes)
            .map_err(|errno| self.failed(name, errno))?;
        self.sync_above(op, name)
    }

    /// Removes an empty directory, if it is there.
    fn remove_directory(&self, op: &Operation, name: &str) -> Result<(), PutError> {
        let (above, leaf) = split(name);
        let Some(parent) = self.open(op, above)? else {
            return Ok(());
        };
        op.before()
            .map_err(PathError::at("remove", self.git_path.join(name)))?;
        match rustix::fs::unlinkat(&parent, leaf, AtFlags::REMOVEDIR) {
            // A file took its place: either this was planned, or the later write of that file
            // reports it.
            Ok(()) | Err(Errno::NOENT | Errno::NOTDIR) => self.sync_above(op, name),
            Err(Errno::NOTEMPTY | Errno::EXIST) => Err(PutError::Changed {
                what: printable(&self.git_path.join(name)),
            }),
            Err(errno) => Err(self.failed(name, errno)),
        }
    }

    fn sync_above(&self, op: &Operation, name: &str) -> Result<(), PutError> {
        let (above, _) = split(name);
        if let Some(parent) = self.open(op, above)? {
            let at = PathError::at("sync", self.git_path.join(above));
            rustix::fs::fsync(&parent).map_err(at)?;
        }
        Ok(())
    }

    fn failed(&self, name: &str, errno: Errno) -> PutError {
        let path = self.git_path.join(name);
        match errno {
            Errno::LOOP | Errno::NOTDIR => PutError::Unsafe {
                what: printable(&path),
                problem: "a link, or no directory",
            },
            errno => PathError::at("open", path)(errno).into(),
        }
    }
}
