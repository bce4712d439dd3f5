//! Carrying out a plan, under git's own locks.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::directory::{Create, give_to, open_below, open_directory, read_file};
use super::index::{IndexGoal, IndexMove};
use super::moves::shown;
use super::operation::FileMove;
use super::refs::{PACKED_REFS, Refs, find_packed, split, without_packed};
use super::{MAX_INDEX_BYTES, PutError, RepositoryPlan, path_of};
use crate::error::{PathError, printable};
use crate::git::{ObjectId, ObjectKind};
use crate::path::printable_bytes;
use crate::patience::Patience;
use crate::worktree::faults;
use crate::worktree::root::{self, Stat};

/// Who moves a ref, in a reflog.
const COMMITTER: &str = "Stillframe <stillframe@localhost>";

/// Carries out a plan.
pub(super) struct Hand<'a> {
    pub(super) plan: &'a RepositoryPlan,
    /// A private directory.
    pub(super) scratch: &'a Path,
    pub(super) is_recovery: bool,
    pub(super) patience: Duration,
}

impl Hand<'_> {
    pub(super) fn carry_out(
        &self,
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
            self.set_ref(&refs, name, None, Some(*commit))?;
            safety_tag.get_or_insert_with(|| name.clone());
        }
        for branch in &self.plan.branches {
            self.set_ref(&refs, &branch.name, branch.from, branch.to)?;
            self.log(&refs.common, &branch.name, branch.from, branch.to);
            if branch.is_heads {
                self.log(&git_dir, "HEAD", branch.from, branch.to);
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
            self.replace(&place, Some(New::of(text.as_bytes())), &is_right)?;
            self.log(&git_dir, "HEAD", head.commits.0, head.commits.1);
        }
        if let Some(index) = &index {
            let judge = |now: Option<&[u8]>| self.judge(index, now);
            self.replace(&index.place, index.new, &judge)?;
        }
        self.put_operation_back(&git_dir, &git_path, &mut staged)
    }

    /// The index with what it gets. It goes from what was seen to that or stays, and what somebody staged
    /// meanwhile keeps HEAD and branch where they are, too.
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
        if now == index.new.map(|new| new.bytes) {
            return Ok(Verdict::Right);
        }
        match index.planned.from.is(self.scratch, now)? {
            true => Ok(Verdict::Replace),
            false => Err(PutError::Changed {
                what: printable(&index.place.path.join(index.place.name)),
            }),
        }
    }

    /// Puts back the files of git's operations. Each goes from what was seen to what is wanted, or stays.
    fn put_operation_back(
        &self,
        git_dir: &OwnedFd,
        git_path: &Path,
        staged: &mut StagedBytes<'_>,
    ) -> Result<(), PutError> {
        let operation = &self.plan.files;
        let repository = Below { git_dir, git_path };
        for file in &operation.leaving {
            self.put_file(&repository, file, None)?;
        }
        for name in &operation.removed_directories {
            repository.remove_directory(name)?;
        }
        for name in &operation.made_directories {
            repository.make_directory(name)?;
        }
        for file in &operation.coming {
            let bytes = staged.take(file.bytes, &file.name)?;
            self.put_file(&repository, file, Some(bytes))?;
        }
        Ok(())
    }

    fn put_file(
        &self,
        repository: &Below<'_>,
        file: &FileMove,
        bytes: Option<&[u8]>,
    ) -> Result<(), PutError> {
        let (above, name) = split(&file.name);
        let path = repository.git_path.join(above);
        let Some(directory) = repository.open(above)? else {
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
        self.replace(&place, bytes.map(New::of), &is_right)
    }

    /// Opens a directory of the repository, if it still is the one that the plan was made for.
    fn open_known(&self, path: &Path, inode: u64) -> Result<OwnedFd, PutError> {
        let fd = open_directory(path)?;
        let stat = root::fstat(&fd).map_err(PathError::at("look at", path))?;
        if stat.inode != inode {
            return Err(PutError::Replaced {
                path: path.to_owned(),
            });
        }
        Ok(fd)
    }

    /// Moves a ref from one commit to another, by compare-and-swap.
    fn set_ref(
        &self,
        refs: &Refs,
        name: &str,
        from: Option<ObjectId>,
        to: Option<ObjectId>,
    ) -> Result<(), PutError> {
        let (directory, leaf) = split(name);
        let opened = open_below(refs.common.as_fd(), directory, Create::Yes)
            .map_err(|errno| refs.unsafe_path(name, errno))?
            .expect("made where it was missing");
        let path = refs.path.join(directory);
        let place = Place {
            directory: opened.as_fd(),
            path: &path,
            name: leaf,
        };
        // The loose file is not the whole truth: a ref may be packed.
        let is_right = |_: Option<&[u8]>| {
            let now = refs.resolve(name)?;
            if now == to {
                return Ok(Verdict::Right);
            }
            if now != from {
                return Err(PutError::Moved {
                    what: name.to_owned(),
                    expected: shown(from),
                    found: shown(now),
                });
            }
            if to.is_none() {
                self.drop_packed(refs, name)?;
            }
            Ok(Verdict::Replace)
        };
        let text = to.map(|commit| format!("{commit}\n"));
        self.replace(
            &place,
            text.as_ref().map(|t| New::of(t.as_bytes())),
            &is_right,
        )
    }

    /// Removes what a crash of this operation left in the user's way, wherever it was at work. What is put
    /// back now may end before it comes to that place.
    ///
    /// Best effort beside what is told of that. Where a file system has no hard links, a lock is known for
    /// ours only by what it holds, so it stays.
    pub(super) fn release_what_a_crash_left(&self) {
        let tags = self.plan.tags.iter().map(|(name, _)| &**name);
        let branches = self.plan.branches.iter().map(|branch| &*branch.name);
        let shared = tags.chain(branches).chain([PACKED_REFS]);
        self.release_below(&self.plan.common_dir, self.plan.common_inode, shared);
        let own = ["HEAD", "index"].into_iter().chain(self.plan.files.paths());
        self.release_below(&self.plan.git_dir, self.plan.git_inode, own);
    }

    fn release_below<'n>(&self, path: &[u8], inode: u64, names: impl Iterator<Item = &'n str>) {
        let path = path_of(path);
        let Ok(base) = self.open_known(&path, inode) else {
            return;
        };
        for name in names {
            let (above, name) = split(name);
            let Ok(Some(directory)) = open_below(base.as_fd(), above, Create::No) else {
                continue;
            };
            let place = Place {
                directory: directory.as_fd(),
                path: &path.join(above),
                name,
            };
            let lock = self.lock_of(&place);
            if let Ok(Some(evidence)) = place.look(&lock.evidence) {
                let held = place.look(&lock.name);
                if held.is_ok_and(|held| held.is_some_and(|held| is_one_file(&held, &evidence))) {
                    let _ = place.release(&lock.name);
                }
                let _ = place.release(&lock.evidence);
            }
        }
    }

    fn lock_of(&self, place: &Place<'_>) -> Lock {
        Lock {
            name: format!("{}.lock", place.name),
            evidence: format!("stillframe-{}-{}", self.plan.operation, place.name),
        }
    }

    fn drop_packed(&self, refs: &Refs, name: &str) -> Result<(), PutError> {
        let Some(text) = refs.packed()? else {
            return Ok(());
        };
        if find_packed(&text, name).is_none() {
            return Ok(());
        }
        let place = Place {
            directory: refs.common.as_fd(),
            path: &refs.path,
            name: PACKED_REFS,
        };
        let kept = without_packed(&text, name);
        let is_right = |now: Option<&[u8]>| match now {
            Some(now) if now == text => Ok(Verdict::Replace),
            _ => Err(PutError::Moved {
                what: "packed-refs".to_owned(),
                expected: "as it was read".to_owned(),
                found: "changed".to_owned(),
            }),
        };
        self.replace(&place, Some(New::of(&kept)), &is_right)
    }

    /// Replaces a file, or removes it, under git's own lock for it. `judge` is asked under the
    /// lock.
    fn replace(
        &self,
        place: &Place<'_>,
        new: Option<New<'_>>,
        judge: &Judge<'_>,
    ) -> Result<(), PutError> {
        let lock = self.acquire(place, new.unwrap_or(New::of(&[])))?;
        // From here on every way out leads past the release.
        let judged = place.read().and_then(|now| judge(now.as_deref()));
        let done = judged.and_then(|verdict| match (verdict, new) {
            (Verdict::Right, _) => Ok(Held::Yes),
            (Verdict::Replace, None) => Ok(place.unlink(place.name).map(|()| Held::Yes)?),
            (Verdict::Replace, Some(_)) => {
                faults::before().map_err(place.at("replace"))?;
                rustix::fs::renameat(place.directory, &lock.name, place.directory, place.name)
                    .map_err(place.at("replace"))?;
                Ok(Held::No)
            }
        });
        // Whatever came of it, nothing of ours may stay in the user's way. Once renamed, the lock
        // is free, and one of that name is somebody else's.
        let released = match done {
            Ok(Held::No) => Ok(()),
            _ => place.release(&lock.name),
        }
        .and(place.release(&lock.evidence));
        done?;
        released?;
        rustix::fs::fsync(place.directory).map_err(place.at("sync the directory of"))?;
        Ok(())
    }

    /// Takes `<name>.lock` with the new content in it, whole and synced.
    fn acquire(&self, place: &Place<'_>, new: New<'_>) -> Result<Lock, PutError> {
        let lock = self.lock_of(place);
        if self.is_recovery && self.is_ours(place, &lock, new.bytes)? {
            return Ok(lock);
        }
        place.unlink(&lock.evidence)?;
        self.write_evidence(place, &lock, new)?;
        let patience = Patience::of(self.patience);
        loop {
            faults::before().map_err(place.at("lock"))?;
            let linked = rustix::fs::linkat(
                place.directory,
                &lock.evidence,
                place.directory,
                &lock.name,
                AtFlags::empty(),
            );
            let taken = match linked {
                // A file system without hard links.
                Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS | Errno::MLINK) => {
                    rustix::fs::renameat_with(
                        place.directory,
                        &lock.evidence,
                        place.directory,
                        &lock.name,
                        RenameFlags::NOREPLACE,
                    )
                }
                other => other,
            };
            match taken {
                Ok(()) => return Ok(lock),
                Err(Errno::EXIST) if seeded_bug!("foreign-lock-deleted") => {
                    place.unlink(&lock.name)?;
                }
                Err(Errno::EXIST) if patience.pause() => {}
                Err(errno) => {
                    // Nothing but our own file, which is of no use without the lock.
                    let _ = place.release(&lock.evidence);
                    return Err(match errno {
                        Errno::EXIST => PutError::Locked {
                            what: printable(&place.path.join(&lock.name)),
                        },
                        errno => place.at("lock")(errno).into(),
                    });
                }
            }
        }
    }

    /// Whether the lock is what a crash of this very operation left.
    fn is_ours(&self, place: &Place<'_>, lock: &Lock, bytes: &[u8]) -> Result<bool, PutError> {
        let Some(held) = place.look(&lock.name)? else {
            return Ok(false);
        };
        Ok(match place.look(&lock.evidence)? {
            Some(evidence) => is_one_file(&held, &evidence),
            // Without hard links the evidence itself became the lock, whole.
            None => {
                let content = read_file(
                    place.directory,
                    lock.name.as_bytes(),
                    MAX_INDEX_BYTES,
                    place.path,
                )?;
                !bytes.is_empty() && content.as_deref() == Some(bytes)
            }
        })
    }

    fn write_evidence(&self, place: &Place<'_>, lock: &Lock, new: New<'_>) -> Result<(), PutError> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // What is replaced keeps its owner and mode; something new gets those of its directory.
        let like = match place.look(place.name)? {
            Some(_) => rustix::fs::statat(place.directory, place.name, AtFlags::SYMLINK_NOFOLLOW),
            None => rustix::fs::fstat(place.directory),
        }
        .map_err(place.at("look at"))?;
        faults::before().map_err(place.at("lock"))?;
        let fd = rustix::fs::openat(
            place.directory,
            &lock.evidence,
            flags,
            Mode::from_raw_mode(0o600),
        )
        .map_err(place.at("lock"))?;
        let mut file = File::from(fd);
        let written = faults::before().and_then(|()| {
            file.write_all(new.bytes)?;
            if let Some(modified_ns) = new.modified_ns {
                set_modified(&file, modified_ns)?;
            }
            give_to(file.as_fd(), &like)?;
            file.set_permissions(std::fs::Permissions::from_mode(like.st_mode & 0o666))?;
            file.sync_all()
        });
        if let Err(source) = written {
            let _ = place.release(&lock.evidence);
            return Err(place.at("lock")(source).into());
        }
        Ok(())
    }

    /// Adds a line to a reflog that exists. Best effort: the ref is what counts.
    fn log(&self, directory: &OwnedFd, name: &str, from: Option<ObjectId>, to: Option<ObjectId>) {
        let (Some(from), Some(to)) = (from, to) else {
            return;
        };
        let (above, leaf) = split(name);
        let Ok(Some(logs)) = open_below(directory.as_fd(), &format!("logs/{above}"), Create::No)
        else {
            return;
        };
        let flags =
            OFlags::WRONLY | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(fd) = rustix::fs::openat(&logs, leaf, flags, Mode::empty()) else {
            return;
        };
        let is_regular = root::fstat(&fd).is_ok_and(|s| s.file_type() == FileType::RegularFile);
        if is_regular && faults::before().is_ok() {
            let line = format!(
                "{from} {to} {COMMITTER} {} +0000\tstillframe: roll back\n",
                self.plan.at
            );
            let _ = File::from(fd).write_all(line.as_bytes());
        }
    }
}

/// What a file gets.
#[derive(Clone, Copy)]
struct New<'a> {
    bytes: &'a [u8],
    /// When it was last written, in nanoseconds since the Unix epoch; `None`: it is now.
    modified_ns: Option<i64>,
}

impl<'a> New<'a> {
    fn of(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            modified_ns: None,
        }
    }
}

/// The user's index, and what it gets.
struct Index<'a> {
    planned: &'a IndexMove,
    place: Place<'a>,
    new: Option<New<'a>>,
}

fn set_modified(file: &File, ns: i64) -> std::io::Result<()> {
    let since_epoch = Duration::from_nanos(ns.unsigned_abs());
    file.set_modified(match ns < 0 {
        true => SystemTime::UNIX_EPOCH - since_epoch,
        false => SystemTime::UNIX_EPOCH + since_epoch,
    })
}

/// Whether two names are of one file.
fn is_one_file(one: &Stat, other: &Stat) -> bool {
    (one.device, one.inode) == (other.device, other.inode)
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
    fn open(&self, name: &str) -> Result<Option<OwnedFd>, PutError> {
        open_below(self.git_dir.as_fd(), name, Create::No).map_err(|errno| self.failed(name, errno))
    }

    fn make_directory(&self, name: &str) -> Result<(), PutError> {
        open_below(self.git_dir.as_fd(), name, Create::Yes)
            .map_err(|errno| self.failed(name, errno))?;
        self.sync_above(name)
    }

    /// Removes an empty directory, if it is there.
    fn remove_directory(&self, name: &str) -> Result<(), PutError> {
        let (above, leaf) = split(name);
        let Some(parent) = self.open(above)? else {
            return Ok(());
        };
        faults::before().map_err(PathError::at("remove", self.git_path.join(name)))?;
        match rustix::fs::unlinkat(&parent, leaf, AtFlags::REMOVEDIR) {
            // A file took its place: so it was to be, or it is told when that is written.
            Ok(()) | Err(Errno::NOENT | Errno::NOTDIR) => self.sync_above(name),
            Err(Errno::NOTEMPTY | Errno::EXIST) => Err(PutError::Changed {
                what: printable(&self.git_path.join(name)),
            }),
            Err(errno) => Err(self.failed(name, errno)),
        }
    }

    fn sync_above(&self, name: &str) -> Result<(), PutError> {
        let (above, _) = split(name);
        if let Some(parent) = self.open(above)? {
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

/// Says what to do with a file that holds this; `None`: that is not there.
type Judge<'a> = dyn Fn(Option<&[u8]>) -> Result<Verdict, PutError> + 'a;

/// What to do with a file once its lock is held.
enum Verdict {
    /// It is as it should be.
    Right,
    Replace,
}

/// Whether a lock still is in the way of others.
enum Held {
    Yes,
    No,
}

/// A lock in the user's repository, and the file whose link it is.
struct Lock {
    name: String,
    /// Our own file, whose name has the operation's id.
    evidence: String,
}

/// A file in a directory of the user's repository.
struct Place<'a> {
    directory: BorrowedFd<'a>,
    path: &'a Path,
    name: &'a str,
}

impl Place<'_> {
    fn at<E: Into<std::io::Error>>(
        &self,
        operation: &'static str,
    ) -> impl FnOnce(E) -> PathError + use<E> {
        PathError::at(operation, self.path.join(self.name))
    }

    fn look(&self, name: &str) -> Result<Option<Stat>, PathError> {
        match root::lstat_at(self.directory, name.as_bytes()) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.at("look at")(errno)),
        }
    }

    fn read(&self) -> Result<Option<Vec<u8>>, PutError> {
        read_file(
            self.directory,
            self.name.as_bytes(),
            MAX_INDEX_BYTES,
            self.path,
        )
    }

    /// Removes what would stay in the user's way. What fails once may be transient, and is tried
    /// once more.
    fn release(&self, name: &str) -> Result<(), PathError> {
        if seeded_bug!("lock-left") {
            return Ok(());
        }
        self.unlink(name).or_else(|_| self.unlink(name))
    }

    fn unlink(&self, name: &str) -> Result<(), PathError> {
        faults::before().map_err(self.at("remove"))?;
        match rustix::fs::unlinkat(self.directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(self.at("remove")(errno)),
        }
    }
}
