//! Finding, checking and reading the user's repository, which is never written to.
//!
//! Its files are untrusted input, because a run may have written any of them. So nothing that they
//! name is executed, settings such as `core.worktree` have no effect, no `GIT_*` variable is read,
//! and libgit2 never opens the repository. Our own code reads each file, after it has checked that
//! the file is regular and not too long.

mod config;
mod git_dir;
mod head;
mod index;
mod objects;
mod operation;
mod probe;
mod refs;
mod rules;
mod shallow;
#[cfg(test)]
mod testing;
mod trees;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use self::git_dir::GitDir;
use self::objects::Objects;
use super::user_index::IndexError;
use super::{ObjectId, ObjectKind};
use crate::contents::ContentError;
use crate::error::{PathError, printable};
use crate::identity::Identity;
use crate::identity::KnownDirectory;
use crate::interrupted::Interrupted;
use crate::operation::Operation;
use crate::path::RelPath;
use crate::snapshot_error::SnapshotError;
use crate::store_error::StoreError;

pub use self::config::{Settings, UserConfig};
pub use self::head::{Head, is_ref_name};
pub use self::index::IndexFile;
pub use self::objects::RepositoryObjects;
pub use self::operation::{GitOperation, OperationContents, OperationFiles, is_operation_path};
pub use self::probe::{Probe, no_work_tree, probe, probe_repository};
pub use self::refs::{MAX_STASHES, SharedRefs, Stash, split};
pub use self::rules::OutsideRules;
pub use self::shallow::{MAX_SHALLOW_BYTES, Shallow};
pub use self::trees::Unfolded;

/// What is said of an object that the repository should have, and has not.
pub const NOT_THERE: &str = "the repository does not have it";

/// A file that holds one path, one ref or one line. The kernel's longest path has 4096 bytes.
const MAX_LINE_BYTES: u64 = 64 * 1024;

/// The user's repository, held open by its directories: whatever takes their place on disk later,
/// this value goes on reading the ones that were checked.
#[derive(Debug)]
pub struct UserRepository {
    work_tree: PathBuf,
    scope: RelPath,
    git_dir: GitDir,
    /// `None`: the git directory itself. Otherwise what linked worktrees share.
    common_dir: Option<GitDir>,
    /// Its own configuration may name a file with attributes. That file is not looked at: what a
    /// run can write must not choose what is read.
    may_name_attributes: bool,
    objects: OnceLock<Objects>,
}

/// Why a repository could not be read. It is never taken for "no repository".
#[derive(Debug, thiserror::Error)]
pub enum RepositoryError {
    /// One of its files is a trap.
    #[error("{} is not safe to read: {reason}", printable(path))]
    Hostile {
        /// The file.
        path: PathBuf,
        /// A clause about it.
        reason: String,
    },
    /// One of its files is not what git would have written.
    #[error("{} is damaged: {reason}", printable(path))]
    Damaged {
        /// The file.
        path: PathBuf,
        /// A clause about it.
        reason: String,
    },
    /// The index cannot be read.
    #[error("the index {} cannot be read", printable(path))]
    Index {
        /// The file; for a split index, the one that is not shared.
        path: PathBuf,
        /// Why.
        source: IndexError,
    },
    /// Something in it has a form that is not handled.
    #[error("{what} is not handled")]
    Unsupported {
        /// What.
        what: String,
    },
    /// An object that should be there is not: a partial clone, or damage.
    #[error("the repository has no object {id}")]
    MissingObject {
        /// Which.
        id: ObjectId,
    },
    /// An object that is there is not what its id says.
    #[error("object {id} in {} is corrupt: {detail}", printable(path))]
    CorruptObject {
        /// Which.
        id: ObjectId,
        /// The file it is in.
        path: PathBuf,
        /// How.
        detail: String,
    },
    /// A hard bound was exceeded.
    #[error("{what} is {actual}, the limit is {limit}")]
    TooLarge {
        /// What was counted.
        what: String,
        /// The limit.
        limit: u64,
        /// What was found, or the first value beyond the limit.
        actual: u64,
    },
    /// Asked to stop.
    #[error("stopped: {0}")]
    Interrupted(Interrupted),
    /// The system refused.
    #[error(transparent)]
    Io(#[from] PathError),
}

/// The message has why in it, so it is no source, which would be told again.
impl From<Interrupted> for RepositoryError {
    fn from(why: Interrupted) -> Self {
        Self::Interrupted(why)
    }
}

impl From<RepositoryError> for SnapshotError {
    fn from(error: RepositoryError) -> Self {
        let damaged = |path: PathBuf, detail: io::Error| Self::Unreadable {
            context: "the repository is damaged".to_owned(),
            source: PathError::at("read", path)(detail),
        };
        match error {
            RepositoryError::Hostile { path, reason } => Self::HostileRepository { path, reason },
            RepositoryError::Damaged { path, reason } => {
                damaged(path, io::Error::new(io::ErrorKind::InvalidData, reason))
            }
            RepositoryError::Index { path, source } if source.is_unsupported() => {
                Self::Unsupported(format!("the index {}: {source}", printable(&path)))
            }
            RepositoryError::Index { path, source } => {
                damaged(path, io::Error::new(io::ErrorKind::InvalidData, source))
            }
            RepositoryError::Unsupported { .. } => Self::Unsupported(error.to_string()),
            RepositoryError::MissingObject { id } => {
                Self::Store(StoreError::corrupt(format!("object {id}"), NOT_THERE))
            }
            RepositoryError::CorruptObject { id, path, detail } => Self::Store(
                StoreError::corrupt(format!("object {id} in {}", printable(&path)), detail),
            ),
            RepositoryError::TooLarge {
                what,
                limit,
                actual,
            } => Self::LimitExceeded {
                what,
                limit,
                actual,
            },
            RepositoryError::Interrupted(interrupted) => interrupted.into(),
            RepositoryError::Io(source) => {
                Self::unreadable("the repository cannot be read", source)
            }
        }
    }
}

impl UserRepository {
    /// The directory that holds `.git`, absolute and without links.
    pub fn work_tree(&self) -> &Path {
        &self.work_tree
    }

    /// The workspace below the work tree.
    pub fn scope(&self) -> &RelPath {
        &self.scope
    }

    /// Where HEAD and the index are.
    pub fn git_dir(&self) -> &Path {
        self.git_dir.path()
    }

    /// Where refs, objects and configuration are. The same as the git directory, unless this is a
    /// linked worktree.
    pub fn common_dir(&self) -> &Path {
        self.common().path()
    }

    /// Of the common directory: linked worktrees of one repository share it.
    pub fn identity(&self) -> Identity {
        self.common().identity()
    }

    /// What the common directory is known again by.
    pub fn known_as(&self) -> KnownDirectory {
        self.common().known_as()
    }

    /// The directories with the repository's objects, absolute: its own, then its alternates.
    pub fn object_dirs(&self) -> Result<Vec<PathBuf>, RepositoryError> {
        Ok(self.objects()?.paths().map(Path::to_owned).collect())
    }

    /// Reads an object; `None` if the repository does not have it. Nothing is fetched.
    ///
    /// On `Ok` the bytes have this id. An object of more than `max_bytes` is
    /// [`RepositoryError::TooLarge`], and one that is damaged [`RepositoryError::CorruptObject`],
    /// unless another copy is in order.
    pub fn read_object(
        &self,
        op: &Operation,
        id: ObjectId,
        max_bytes: u64,
    ) -> Result<Option<(ObjectKind, Vec<u8>)>, RepositoryError> {
        self.objects()?.read(op, id, max_bytes)
    }

    /// Writes a blob to `out`, whatever its size; `false` if the repository does not have it.
    ///
    /// On `Ok` the bytes have this id, but nobody has looked whether they are half of a collision:
    /// for content that goes to where git would write it. On `Err` some may have been written.
    pub fn blob_to(
        &self,
        op: &Operation,
        id: ObjectId,
        out: &mut dyn Write,
    ) -> Result<bool, ContentError> {
        let objects = self.objects();
        let objects = objects.map_err(|e| StoreError::corrupt(id.to_string(), e.to_string()))?;
        objects.write_to(op, id, out)
    }

    /// The sizes of objects in bytes, by their headers alone, each at the place of its id; `None`
    /// where that cannot be told. `ids` may be in any order, and one of them there more than once.
    /// Meant for many: of each pack one pass is made.
    pub fn object_sizes(
        &self,
        op: &Operation,
        ids: &[ObjectId],
    ) -> Result<Vec<Option<u64>>, RepositoryError> {
        self.objects()?.sizes(op, ids)
    }

    fn common(&self) -> &GitDir {
        self.common_dir.as_ref().unwrap_or(&self.git_dir)
    }

    /// Opened when the first object is wanted.
    fn objects(&self) -> Result<&Objects, RepositoryError> {
        if let Some(objects) = self.objects.get() {
            return Ok(objects);
        }
        let objects = Objects::open(self.common())?;
        Ok(self.objects.get_or_init(|| objects))
    }
}

/// An id in hexadecimal digits, of either case as git takes them.
fn hex_id(digits: &[u8]) -> Option<ObjectId> {
    let digits = std::str::from_utf8(digits).ok()?;
    digits.to_ascii_lowercase().parse().ok()
}

/// Nothing is there, or what is above it is no directory.
fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;
    use std::os::unix::fs::symlink;

    use super::testing::*;
    use super::*;
    use crate::error::ErrorKind;
    use crate::test_repository::TestRepository;

    #[test]
    fn a_trap_where_a_ref_an_object_or_a_shared_index_is_read_is_hostile_at_once() {
        let git = TestRepository::with_commit();
        git.git(&["update-index", "--split-index"]);
        let dot_git = git.path.join(".git");
        let commit = git.git(&["rev-parse", "HEAD"]);
        let shared = found(&git.path)
            .index()
            .unwrap()
            .unwrap()
            .0
            .shared_id
            .unwrap();
        let names = [
            "refs/heads/main".to_owned(),
            format!("objects/{}/{}", &commit[..2], &commit[2..]),
            format!("sharedindex.{shared}"),
        ];
        for name in names {
            let path = dot_git.join(&name);
            let before = fs::read(&path).unwrap();
            for trap in [fifo as fn(&Path), |path| {
                symlink("/dev/zero", path).unwrap()
            }] {
                fs::remove_file(&path).unwrap();
                trap(&path);
                let workspace = git.path.clone();
                let result = in_time(move || {
                    let repository = found(&workspace);
                    repository.index()?;
                    let head = repository.head()?;
                    repository.head_tree(&Operation::unbounded(), &head)
                });
                assert!(is_hostile(&result), "{name}: {result:?}");
            }
            fs::remove_file(&path).unwrap();
            fs::write(&path, before).unwrap();
        }
        let repository = found(&git.path);
        assert!(
            repository
                .head_tree(&Operation::unbounded(), &repository.head().unwrap())
                .is_ok()
        );
    }

    #[test]
    fn files_beyond_their_limit_are_not_read() {
        let git = TestRepository::with_commit();
        let config = fs::File::options()
            .write(true)
            .open(git.path.join(".git/config"))
            .unwrap();
        config.set_len(10 << 30).unwrap();
        let result = probe(&git.path);
        assert!(
            matches!(
                &result,
                Err(RepositoryError::TooLarge {
                    limit: 1_048_576,
                    ..
                })
            ),
            "{result:?}"
        );
        let kind = SnapshotError::from(result.unwrap_err()).kind();
        assert_eq!(kind, ErrorKind::LimitExceeded);
    }

    #[test]
    fn operations_in_progress_are_told() {
        let git = TestRepository::with_commit();
        let state = || found(&git.path).operation().unwrap().in_progress;
        assert_eq!(state(), None);
        let commit = |text: &str| {
            git.write("src/main.c", text);
            git.commit(text);
        };
        commit("second\n");
        git.git(&["checkout", "-q", "-b", "side", "HEAD~1"]);
        commit("other\n");
        commit("another\n");
        let fails = |args: &[&str]| assert!(!git.run(&git.path, args).status.success());

        fails(&["merge", "main"]);
        assert_eq!(state(), Some("merge"));
        git.git(&["merge", "--abort"]);
        fails(&["rebase", "main"]);
        assert_eq!(state(), Some("rebase"));
        git.git(&["rebase", "--abort"]);
        fails(&["rebase", "--apply", "main"]);
        assert_eq!(state(), Some("rebase"));
        git.git(&["rebase", "--abort"]);
        fails(&["cherry-pick", "main"]);
        assert_eq!(state(), Some("cherry-pick"));
        git.git(&["cherry-pick", "--abort"]);
        fails(&["revert", "--no-edit", "HEAD~1"]);
        assert_eq!(state(), Some("revert"));
        git.git(&["revert", "--abort"]);
        // Two at once, the first of them resolved and committed: only the list remains.
        fails(&["revert", "--no-edit", "HEAD~1", "HEAD"]);
        git.git(&["checkout", "-q", "HEAD", "src/main.c"]);
        git.git(&["commit", "-q", "--allow-empty", "-m", "resolved"]);
        assert!(!git.path.join(".git/REVERT_HEAD").exists());
        assert_eq!(state(), Some("revert"));
        git.git(&["revert", "--quit"]);
        git.git(&["bisect", "start"]);
        assert_eq!(state(), Some("bisect"));
        git.git(&["bisect", "reset"]);
        assert_eq!(state(), None);
    }

    #[test]
    fn reading_leaves_no_trace() {
        let (git, linked) = with_linked_worktree();
        let view = || {
            let mut lines = Vec::new();
            for entry in walkdir::WalkDir::new(git.path.join(".git")).sort_by_file_name() {
                let entry = entry.unwrap();
                let meta = entry.metadata().unwrap();
                let path = entry.path().display().to_string();
                lines.push((
                    path,
                    meta.ino(),
                    meta.len(),
                    meta.modified().unwrap(),
                    meta.ctime_nsec(),
                ));
            }
            lines
        };
        let before = view();
        for path in [&git.path, &linked] {
            let repository = found(path);
            let head = repository.head().unwrap();
            repository
                .head_tree(&Operation::unbounded(), &head)
                .unwrap();
            repository.index().unwrap();
            repository.operation().unwrap();
            repository.object_dirs().unwrap();
            repository.outside_rules(&user(&git, None)).unwrap();
            repository
                .read_object(&Operation::unbounded(), id(&"12".repeat(20)), 10)
                .unwrap();
        }
        assert_eq!(view(), before);
    }
}
