//! The user's repository, found, checked and read. Never written.
//!
//! Its files are input: a run may have written any of them. So nothing that they name is executed,
//! `core.worktree` and the like move nothing, no `GIT_*` variable is looked at, and libgit2 never
//! opens it. Each file is read by us, once it is known to be a regular one and not too long.

mod config;
mod git_dir;
mod objects;

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::FileType;

use self::config::Config;
use self::git_dir::{GitDir, Kind, path_of, read_own_file, trap};
use self::objects::Objects;
use super::user_index::{self, IndexError, UserIndex};
use super::{ObjectId, ObjectKind};
use crate::backend::{SnapshotError, StoreError};
use crate::error::{PathError, printable};
use crate::path::{RelPath, printable_bytes};
use crate::record::{Head, OutsideRules};
use crate::tree::{Entry, EntryKind};
use crate::workspace::Identity;
use crate::worktree::root::Stat;

pub(crate) use self::config::UserConfig;

/// A file that holds one path, one ref or one line. The kernel's longest path has 4096 bytes.
const MAX_LINE_BYTES: u64 = 64 * 1024;
/// A million refs take some 100 MB.
const MAX_PACKED_REFS_BYTES: u64 = 256 * 1024 * 1024;
/// Ten million entries of a hundred bytes.
const MAX_INDEX_BYTES: u64 = 1024 * 1024 * 1024;
/// As for `.gitignore`: rules that a person wrote come nowhere near.
const MAX_RULES_BYTES: u64 = 1024 * 1024;
/// A commit message that long was not written by hand, and only its first line matters here.
const MAX_COMMIT_BYTES: u64 = 64 * 1024 * 1024;
/// A directory of several million names.
const MAX_TREE_BYTES: u64 = 256 * 1024 * 1024;
/// How much a tree may unfold to: a tree of ten levels can name each one below ten times.
const MAX_TREE_ENTRIES: u64 = 10_000_000;
const MAX_TREE_PATH_BYTES: u64 = 1024 * 1024 * 1024;
/// The modes of a directory and of a submodule in a tree.
const MODE_DIRECTORY: u32 = 0o040_000;
const MODE_SUBMODULE: u32 = 0o160_000;
/// How many symbolic refs may lead to each other: git's own limit.
const MAX_SYMREF_DEPTH: u32 = 5;

/// What was found around a workspace.
#[derive(Debug)]
pub(crate) enum Probe {
    /// No repository: git would say the same.
    None,
    /// The workspace lies in a bare repository, at this path, or in the git directory of another one:
    /// among a repository's own files, and in no work tree.
    Bare(PathBuf),
    /// A repository in a format that cannot be read.
    Unsupported {
        /// Its git directory.
        git_dir: PathBuf,
        /// What is not handled, such as `sha256 objects`.
        format: String,
    },
    /// A repository with the workspace in its work tree.
    Found(Box<UserRepository>),
}

/// The user's repository, held open by its directories: whatever takes their place on disk later,
/// this value goes on reading the ones that were checked.
#[derive(Debug)]
pub(crate) struct UserRepository {
    work_tree: PathBuf,
    scope: RelPath,
    git_dir: GitDir,
    /// `None`: the git directory itself. Otherwise what linked worktrees share.
    common_dir: Option<GitDir>,
    may_convert: bool,
    objects: OnceLock<Objects>,
}

/// Why a repository could not be read. It is never taken for "no repository".
#[derive(Debug, thiserror::Error)]
pub(crate) enum RepositoryError {
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
    /// The system refused.
    #[error(transparent)]
    Io(#[from] PathError),
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
            RepositoryError::MissingObject { id } => Self::Store(StoreError::corrupt(
                format!("object {id}"),
                "the repository does not have it",
            )),
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
            RepositoryError::Io(source) => Self::Unreadable {
                context: "the repository cannot be read".to_owned(),
                source,
            },
        }
    }
}

/// Attributes from files outside of the tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OutsideAttributes {
    /// The machine's and the user's own, the weakest first: any `.gitattributes` wins over them.
    pub(crate) weakest: Vec<OutsideRules>,
    /// `info/attributes` of the repository: it wins over any `.gitattributes`.
    pub(crate) strongest: Option<OutsideRules>,
}

/// Looks for the repository whose work tree `workspace_path` lies in, as git does: upwards, as far
/// as its file system goes. Reads; writes nothing.
///
/// A `.git` that is no repository is passed over, as git does; but one that still has a part of a
/// repository is an error, and so is one that holds a trap or belongs to another user.
pub(crate) fn probe(workspace_path: &Path) -> Result<Probe, RepositoryError> {
    let path =
        fs::canonicalize(workspace_path).map_err(PathError::at("resolve", workspace_path))?;
    let device_of = |path: &Path| -> Result<u64, RepositoryError> {
        let meta = fs::symlink_metadata(path).map_err(PathError::at("look at", path))?;
        Ok(meta.dev())
    };
    let device = device_of(&path)?;
    for directory in path.ancestors() {
        if device_of(directory)? != device {
            break;
        }
        if let Some(candidate) = Candidate::at(directory)? {
            let below = path
                .strip_prefix(directory)
                .expect("an ancestor is a prefix");
            let scope = RelPath::new(below.as_os_str().as_bytes())
                .expect("what follows the ancestor of an absolute path has plain components");
            return candidate.check(scope);
        }
        if is_bare(directory) {
            return Ok(Probe::Bare(directory.to_owned()));
        }
    }
    Ok(Probe::None)
}

/// Whether `directory` is itself a git directory, by what git asks (`is_git_directory`): links count as
/// what they lead to. It is not read any further, so whatever keeps it from being one is no error.
fn is_bare(directory: &Path) -> bool {
    // Most directories have none of these, and need not be opened (or may not).
    let has_directory =
        |name: &str| fs::metadata(directory.join(name)).is_ok_and(|meta| meta.is_dir());
    let is_head = || match fs::read_link(directory.join("HEAD")) {
        // What very old versions of git made of a symbolic ref.
        Ok(target) => target.starts_with("refs"),
        Err(_) => GitDir::open(directory)
            .and_then(|git_dir| git_dir.read("HEAD", MAX_LINE_BYTES))
            .is_ok_and(|text| text.is_some_and(|text| RefText::is_head(&text))),
    };
    has_directory("objects") && has_directory("refs") && is_head()
}

/// Why nothing is captured in a git directory.
pub(crate) fn no_work_tree(git_dir: &Path) -> String {
    let what = if git_dir.file_name().is_some_and(|name| name == ".git") {
        "the git directory of a repository, and no work tree"
    } else {
        "a bare repository, which has no work tree"
    };
    format!("{} is {what}", printable(git_dir))
}

/// A directory with a `.git` that is, or was, a repository.
struct Candidate {
    work_tree: PathBuf,
    git_dir: GitDir,
    /// `.git` is a file that names the git directory.
    is_named_by_file: bool,
}

impl Candidate {
    /// Looks at `.git` in `work_tree`. `None`: there is none, or it has nothing of a repository.
    fn at(work_tree: &Path) -> Result<Option<Self>, RepositoryError> {
        let dot_git = work_tree.join(".git");
        let meta = match fs::symlink_metadata(&dot_git) {
            Ok(meta) => meta,
            Err(e) if is_absent(&e) => return Ok(None),
            Err(e) => return Err(PathError::at("look at", dot_git)(e).into()),
        };
        let damaged = |reason: &str| RepositoryError::Damaged {
            path: dot_git.clone(),
            reason: reason.to_owned(),
        };
        let (path, is_named_by_file) = if meta.is_dir() {
            (dot_git.clone(), false)
        } else if meta.is_file() {
            (Self::named_by_file(work_tree, &meta)?, true)
        } else if meta.is_symlink() {
            // As good as a file that names a directory, and so git has it.
            let path = match fs::canonicalize(&dot_git) {
                Ok(path) => path,
                Err(e) if is_absent(&e) => {
                    return Err(damaged("it is a link that leads nowhere"));
                }
                Err(e) => return Err(PathError::at("resolve", dot_git)(e).into()),
            };
            if !fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_dir()) {
                return Err(RepositoryError::Hostile {
                    path: dot_git,
                    reason: "it is a link to something else than a directory".to_owned(),
                });
            }
            (path, false)
        } else {
            let kind = if meta.file_type().is_fifo() {
                FileType::Fifo
            } else if meta.file_type().is_socket() {
                FileType::Socket
            } else {
                FileType::CharacterDevice
            };
            return Err(RepositoryError::Hostile {
                path: dot_git,
                reason: trap(kind).to_owned(),
            });
        };
        let candidate = Self {
            work_tree: work_tree.to_owned(),
            git_dir: GitDir::open(&path)?,
            is_named_by_file,
        };
        if is_named_by_file {
            return Ok(Some(candidate));
        }
        for name in ["HEAD", "objects", "refs"] {
            if candidate.git_dir.kind(name)? != Kind::Nothing {
                return Ok(Some(candidate));
            }
        }
        Ok(None)
    }

    /// The directory that the file `.git` names.
    fn named_by_file(work_tree: &Path, meta: &fs::Metadata) -> Result<PathBuf, RepositoryError> {
        let directory = GitDir::open(work_tree)?;
        let path = directory.disk_path(".git");
        refuse_foreign(&path, meta.uid())?;
        let damaged = |reason: String| RepositoryError::Damaged {
            path: path.clone(),
            reason,
        };
        let text = directory
            .read(".git", MAX_LINE_BYTES)?
            .ok_or_else(|| damaged("it is gone".to_owned()))?;
        let target = text
            .strip_prefix(b"gitdir: ")
            .map(without_line_end)
            .filter(|target| !target.is_empty())
            .ok_or_else(|| damaged("it does not say \"gitdir: \" and a path".to_owned()))?;
        resolve(work_tree, target).map_err(|e| {
            damaged(format!(
                "it names {}, which cannot be opened ({e})",
                printable_bytes(target)
            ))
        })
    }

    /// Makes sure that it is whole, that it is the user's, that nothing in it is a trap, and that
    /// its format can be read.
    fn check(self, scope: RelPath) -> Result<Probe, RepositoryError> {
        refuse_foreign(self.git_dir.path(), self.git_dir.owner())?;
        let common_dir = self.common_dir()?;
        let common = common_dir.as_ref().unwrap_or(&self.git_dir);
        refuse_foreign(common.path(), common.owner())?;
        for name in TRAPS_IN_GIT_DIR {
            self.git_dir.kind(name)?;
        }
        for name in TRAPS_IN_COMMON_DIR {
            common.kind(name)?;
        }
        for name in ["objects", "refs"] {
            if common.kind(name)? != Kind::Directory {
                return Err(RepositoryError::Damaged {
                    path: common.path().to_owned(),
                    reason: format!("it has no directory {name:?}"),
                });
            }
        }
        let head = self.git_dir.read("HEAD", MAX_LINE_BYTES)?;
        let head_is = |reason: &str| RepositoryError::Damaged {
            path: self.git_dir.disk_path("HEAD"),
            reason: reason.to_owned(),
        };
        match head {
            None => return Err(head_is("it is missing")),
            Some(text) if !RefText::is_head(&text) => {
                return Err(head_is("it names neither a ref nor a commit"));
            }
            Some(_) => {}
        }

        let config_text = common.read("config", config::MAX_CONFIG_BYTES)?;
        let config_text = config_text.unwrap_or_default();
        let config = Config::parse(&config_text).map_err(|line| RepositoryError::Damaged {
            path: common.disk_path("config"),
            reason: format!("line {} cannot be read", line.0),
        })?;
        if let Some(format) = unsupported_format(&config) {
            return Ok(Probe::Unsupported {
                git_dir: self.git_dir.path().to_owned(),
                format,
            });
        }
        let own_config = self
            .git_dir
            .read("config.worktree", config::MAX_CONFIG_BYTES)?
            .unwrap_or_default();
        let may_convert = [config_text, own_config]
            .iter()
            .any(|text| config::mentions_conversion(text));
        Ok(Probe::Found(Box::new(UserRepository {
            work_tree: self.work_tree,
            scope,
            git_dir: self.git_dir,
            common_dir,
            may_convert,
            objects: OnceLock::new(),
        })))
    }

    /// What a linked worktree shares with the others; `None` if this is none.
    ///
    /// git itself makes three files that name each other: `.git` here, `commondir` and `gitdir`
    /// there. If any of them was rewritten they no longer agree.
    fn common_dir(&self) -> Result<Option<GitDir>, RepositoryError> {
        let Some(text) = self.git_dir.read("commondir", MAX_LINE_BYTES)? else {
            return Ok(None);
        };
        let hostile = |name: &str, reason: String| RepositoryError::Hostile {
            path: self.git_dir.disk_path(name),
            reason,
        };
        let target = without_line_end(&text);
        let named = |error: io::Error| {
            let target = printable_bytes(target);
            RepositoryError::Damaged {
                path: self.git_dir.disk_path("commondir"),
                reason: format!("it names {target}, which cannot be opened ({error})"),
            }
        };
        let common = resolve(self.git_dir.path(), target).map_err(named)?;
        let holder = self.git_dir.path().parent();
        if !self.is_named_by_file || holder != Some(&common.join("worktrees")) {
            let reason = "it names a repository that this is no worktree of".to_owned();
            return Err(hostile("commondir", reason));
        }

        let back = self.git_dir.read("gitdir", MAX_LINE_BYTES)?;
        let back = back.ok_or_else(|| hostile("gitdir", "it is missing".to_owned()))?;
        let back = self.git_dir.path().join(path_of(without_line_end(&back)));
        let identity = |path: &Path| fs::metadata(path).ok().map(|m| (m.dev(), m.ino()));
        let ours = identity(&self.work_tree.join(".git"));
        if ours.is_none() || identity(&back) != ours {
            let reason = "it names another worktree; if this one was moved, run \"git worktree \
                          repair\" in it"
                .to_owned();
            return Err(hostile("gitdir", reason));
        }
        GitDir::open(&common).map(Some)
    }
}

/// Files that git reads by name, wherever they lie in a repository without linked worktrees. A link,
/// FIFO or device in their place is found before anything is read.
const TRAPS_IN_GIT_DIR: [&str; 4] = ["HEAD", "index", "config.worktree", "commondir"];
const TRAPS_IN_COMMON_DIR: [&str; 10] = [
    "config",
    "packed-refs",
    "shallow",
    "objects/info/alternates",
    "objects/info/commit-graph",
    "objects/pack/multi-pack-index",
    "info/exclude",
    "info/attributes",
    "info/grafts",
    "refs/heads",
];

/// What of the repository's format is not handled (`gitrepository-layout`, "repositoryformatversion").
fn unsupported_format(config: &Config) -> Option<String> {
    let version = config.get("core", "repositoryformatversion");
    let version = version.unwrap_or(b"0");
    if !matches!(version, b"0" | b"1") {
        let version = printable_bytes(version);
        return Some(format!("repository format version {version}"));
    }
    for (key, value) in config.section("extensions") {
        match key {
            "objectformat" if value.eq_ignore_ascii_case(b"sha1") => {}
            "objectformat" => return Some(format!("{} objects", printable_bytes(value))),
            "refstorage" if value.eq_ignore_ascii_case(b"files") => {}
            "refstorage" => return Some(format!("{} refs", printable_bytes(value))),
            // They change what may be removed, where objects are fetched from, and in which files
            // configuration and paths of worktrees are written: nothing that reading depends on.
            "noop" | "noop-v1" | "preciousobjects" | "partialclone" | "worktreeconfig"
            | "relativeworktrees" => {}
            // Version 0 is older than extensions: git does not look at names that it does not know.
            _ if version == b"0" => {}
            _ => return Some(format!("the extension {key:?}")),
        }
    }
    None
}

/// Fails if `path` belongs to somebody else: what another user wrote must not be obeyed. Under
/// `sudo` that is not so of the user who called it.
///
/// git takes the same precaution (`safe.directory` in `git-config`).
fn refuse_foreign(path: &Path, owner: u32) -> Result<(), RepositoryError> {
    let me = rustix::process::geteuid().as_raw();
    let called_by = std::env::var("SUDO_UID")
        .ok()
        .and_then(|text| text.parse().ok());
    if owner == me || (me == 0 && called_by == Some(owner)) {
        return Ok(());
    }
    Err(RepositoryError::Hostile {
        path: path.to_owned(),
        reason: format!("it belongs to user {owner}, this is user {me}"),
    })
}

impl UserRepository {
    /// The directory that holds `.git`, absolute and without links.
    pub(crate) fn work_tree(&self) -> &Path {
        &self.work_tree
    }

    /// The workspace below the work tree.
    pub(crate) fn scope(&self) -> &RelPath {
        &self.scope
    }

    /// Where HEAD and the index are.
    pub(crate) fn git_dir(&self) -> &Path {
        self.git_dir.path()
    }

    /// Where refs, objects and configuration are. The same as the git directory, unless this is a
    /// linked worktree.
    pub(crate) fn common_dir(&self) -> &Path {
        self.common().path()
    }

    /// Of the common directory: linked worktrees of one repository share it.
    pub(crate) fn identity(&self) -> Identity {
        self.common().identity()
    }

    /// Whether the repository's own configuration mentions anything that makes git convert line
    /// endings without a `.gitattributes` asking for it. If so, a clean entry says nothing about
    /// the file's bytes until the sizes agree.
    pub(crate) fn may_convert(&self) -> bool {
        self.may_convert
    }

    /// What HEAD names. A ref that does not exist is a branch without a commit.
    pub(crate) fn head(&self) -> Result<Head, RepositoryError> {
        let mut name = "HEAD".to_owned();
        for _ in 0..=MAX_SYMREF_DEPTH {
            match self.ref_text(&name)? {
                None if name == "HEAD" => {
                    return Err(RepositoryError::Damaged {
                        path: self.git_dir.disk_path("HEAD"),
                        reason: "it is missing".to_owned(),
                    });
                }
                None => return Ok(Head::Unborn { branch: name }),
                Some(RefText::Id(commit)) if name == "HEAD" => {
                    return Ok(Head::Detached { commit });
                }
                Some(RefText::Id(commit)) => {
                    return Ok(Head::Branch {
                        branch: name,
                        commit,
                    });
                }
                Some(RefText::Symbolic(target)) => {
                    name = self.ref_name(self.holder_of(&name).disk_path(&name), target)?;
                }
            }
        }
        Err(RepositoryError::Damaged {
            path: self.git_dir.disk_path("HEAD"),
            reason: format!("it leads through more than {MAX_SYMREF_DEPTH} symbolic refs"),
        })
    }

    /// The commit that a branch names, by the branch's full name; `None` if there is no such branch.
    /// A symbolic ref is no branch of its own, and not followed.
    pub(crate) fn tip(&self, branch: &str) -> Result<Option<ObjectId>, RepositoryError> {
        match self.ref_text(branch)? {
            None => Ok(None),
            Some(RefText::Id(commit)) => Ok(Some(commit)),
            Some(RefText::Symbolic(_)) => Err(RepositoryError::Unsupported {
                what: format!("the symbolic ref {branch}"),
            }),
        }
    }

    /// What HEAD or a ref says, loose or packed; `None` if there is none of that name.
    fn ref_text(&self, name: &str) -> Result<Option<RefText>, RepositoryError> {
        let holder = self.holder_of(name);
        let text = match holder.kind(name)? {
            // An empty directory is what remains of branches below this name.
            Kind::Directory if name != "HEAD" => None,
            _ => holder.read(name, MAX_LINE_BYTES)?,
        };
        match text {
            Some(text) => match RefText::parse(&text) {
                Some(found) => Ok(Some(found)),
                None => Err(RepositoryError::Damaged {
                    path: holder.disk_path(name),
                    reason: "it names neither a ref nor a commit".to_owned(),
                }),
            },
            None if name == "HEAD" => Ok(None),
            None => Ok(self.packed_ref(name)?.map(RefText::Id)),
        }
    }

    /// The bytes of the index, and what `fstat` said of the file; `None` if there is none, as
    /// before the first `git add`.
    pub(crate) fn index_bytes(&self) -> Result<Option<(Vec<u8>, Stat)>, RepositoryError> {
        self.git_dir.read_with_stat("index", MAX_INDEX_BYTES)
    }

    /// What `fstat` says of the index; `None` if there is none. Cheap: nothing is read.
    pub(crate) fn index_stat(&self) -> Result<Option<Stat>, RepositoryError> {
        match self.git_dir.find("index")? {
            git_dir::Found::File(_, stat) => Ok(Some(stat)),
            git_dir::Found::Nothing => Ok(None),
            git_dir::Found::Directory => Err(RepositoryError::Damaged {
                path: self.git_dir.disk_path("index"),
                reason: "it is a directory".to_owned(),
            }),
        }
    }

    /// Parses what [`UserRepository::index_bytes`] answered with. The shared index of a split one
    /// is read from beside it.
    pub(crate) fn parse_index(&self, bytes: &[u8]) -> Result<UserIndex, RepositoryError> {
        let bad = |source| RepositoryError::Index {
            path: self.git_dir.disk_path("index"),
            source,
        };
        user_index::parse(bytes, &mut |id| {
            let name = format!("sharedindex.{id}");
            match self.git_dir.read(&name, MAX_INDEX_BYTES)? {
                Some(bytes) => Ok(bytes),
                None => Err(IndexOr::Repository(RepositoryError::Damaged {
                    path: self.git_dir.disk_path(&name),
                    reason: "it is missing, and the index needs it".to_owned(),
                })),
            }
        })
        .map_err(|error| match error {
            IndexOr::Index(source) => bad(source),
            IndexOr::Repository(error) => error,
        })
    }

    /// The index, and what `fstat` said of its file; `None` if there is none.
    #[cfg(test)]
    pub(crate) fn index(&self) -> Result<Option<(UserIndex, Stat)>, RepositoryError> {
        match self.index_bytes()? {
            Some((bytes, stat)) => Ok(Some((self.parse_index(&bytes)?, stat))),
            None => Ok(None),
        }
    }

    /// merge, rebase, cherry-pick, revert or bisect, if one is in progress. Several at once are told
    /// in this order, as `git status` does.
    pub(crate) fn in_progress(&self) -> Option<&'static str> {
        // A trap in the place of a mark is a mark.
        let has = |name: &str| !matches!(self.git_dir.kind(name), Ok(Kind::Nothing));
        if has("MERGE_HEAD") {
            Some("merge")
        } else if has("rebase-merge") || has("rebase-apply") {
            Some("rebase")
        } else if has("CHERRY_PICK_HEAD") {
            Some("cherry-pick")
        } else if has("REVERT_HEAD") {
            Some("revert")
        } else if has("sequencer") {
            // Between two commits of several neither of the marks above is there.
            let todo = self.git_dir.read("sequencer/todo", MAX_PACKED_REFS_BYTES);
            match todo {
                Ok(Some(todo)) if todo.starts_with(b"revert") => Some("revert"),
                _ => Some("cherry-pick"),
            }
        } else if has("BISECT_LOG") {
            Some("bisect")
        } else {
            None
        }
    }

    /// The directories with the repository's objects, absolute: its own, then its alternates.
    pub(crate) fn object_dirs(&self) -> Result<Vec<PathBuf>, RepositoryError> {
        Ok(self.objects()?.paths().map(Path::to_owned).collect())
    }

    /// Reads an object; `None` if the repository does not have it. Nothing is fetched.
    ///
    /// On `Ok` the bytes have this id. An object of more than `max_bytes` is
    /// [`RepositoryError::TooLarge`], and one that is damaged [`RepositoryError::CorruptObject`],
    /// unless another copy is in order.
    pub(crate) fn read_object(
        &self,
        id: ObjectId,
        max_bytes: u64,
    ) -> Result<Option<(ObjectKind, Vec<u8>)>, RepositoryError> {
        self.objects()?.read(id, max_bytes)
    }

    /// The size of an object in bytes, by its header; `None` if the repository does not have it.
    pub(crate) fn object_size(&self, id: ObjectId) -> Result<Option<u64>, RepositoryError> {
        self.objects()?.size(id)
    }

    /// The files called `name` in the directories above the workspace, up to the top of the work
    /// tree, each with its directory below the work tree, topmost first. What is no regular file of
    /// at most `max_bytes` is left out.
    pub(crate) fn files_above_scope(&self, name: &str, max_bytes: u64) -> Vec<(RelPath, Vec<u8>)> {
        let mut files = Vec::new();
        let mut directory = RelPath::root();
        for next in self.scope.names() {
            let disk_path = self.work_tree.join(directory.as_path()).join(name);
            if let Some(text) = git_dir::read_plain_file(&disk_path, max_bytes) {
                files.push((directory.clone(), text));
            }
            directory = directory.join(next);
        }
        files
    }

    /// The tree of `head`'s commit at the workspace; `None` if there is no commit, or it has no
    /// directory there.
    pub(crate) fn head_tree(&self, head: &Head) -> Result<Option<ObjectId>, RepositoryError> {
        let Some(commit_id) = head.commit() else {
            return Ok(None);
        };
        let commit = self.object_of_kind(commit_id, ObjectKind::Commit, MAX_COMMIT_BYTES)?;
        let mut tree_id = commit
            .strip_prefix(b"tree ")
            .and_then(|rest| rest.get(..40))
            .and_then(hex_id)
            .ok_or_else(|| self.malformed(commit_id, "the commit names no tree"))?;
        for name in self.scope.names() {
            let tree = self.object_of_kind(tree_id, ObjectKind::Tree, MAX_TREE_BYTES)?;
            match subtree(&tree, name) {
                Ok(Some(id)) => tree_id = id,
                Ok(None) => return Ok(None),
                Err(Malformed) => return Err(self.malformed(tree_id, "the tree is malformed")),
            }
        }
        Ok(Some(tree_id))
    }

    /// The files and links of a whole tree, by their paths below it; submodules are left out. Such a
    /// tree stands for a directory in a sparse index.
    pub(crate) fn tree_files(
        &self,
        tree_id: ObjectId,
    ) -> Result<Vec<(RelPath, Entry)>, RepositoryError> {
        let mut files = Vec::new();
        let (mut entries, mut path_bytes) = (0, 0);
        let mut waiting = vec![(RelPath::root(), tree_id)];
        while let Some((directory, tree_id)) = waiting.pop() {
            let malformed = || self.malformed(tree_id, "the tree is malformed");
            let tree = self.object_of_kind(tree_id, ObjectKind::Tree, MAX_TREE_BYTES)?;
            for entry in TreeEntries(&tree) {
                let (mode, name, id) = entry.map_err(|Malformed| malformed())?;
                let path = directory.join(name);
                entries += 1;
                path_bytes += path.as_bytes().len() as u64;
                let too_large = |what: &str, limit, actual| RepositoryError::TooLarge {
                    what: format!("the {what} of a sparse directory"),
                    limit,
                    actual,
                };
                if entries > MAX_TREE_ENTRIES {
                    return Err(too_large("number of entries", MAX_TREE_ENTRIES, entries));
                }
                if path_bytes > MAX_TREE_PATH_BYTES {
                    return Err(too_large(
                        "length of paths",
                        MAX_TREE_PATH_BYTES,
                        path_bytes,
                    ));
                }
                match mode {
                    MODE_DIRECTORY => waiting.push((path, id)),
                    MODE_SUBMODULE => {}
                    _ => {
                        let kind = EntryKind::from_git_mode(mode).ok_or_else(malformed)?;
                        let id = id.into();
                        files.push((path, Entry { kind, id }));
                    }
                }
            }
        }
        files.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        Ok(files)
    }

    /// Ignore rules from files outside of the tree, the weakest first: the user's own, then
    /// `info/exclude`. Any `.gitignore` wins over both.
    pub(crate) fn outside_rules(
        &self,
        user: &UserConfig,
    ) -> Result<Vec<OutsideRules>, RepositoryError> {
        let mut rules: Vec<_> = user.excludes.iter().filter_map(|p| own_rules(p)).collect();
        rules.extend(self.info_rules("exclude")?);
        Ok(rules)
    }

    /// Attributes from files outside of the tree.
    pub(crate) fn outside_attributes(
        &self,
        user: &UserConfig,
    ) -> Result<OutsideAttributes, RepositoryError> {
        Ok(OutsideAttributes {
            weakest: user
                .attributes
                .iter()
                .filter_map(|p| own_rules(p))
                .collect(),
            strongest: self.info_rules("attributes")?,
        })
    }

    fn info_rules(&self, name: &str) -> Result<Option<OutsideRules>, RepositoryError> {
        let name = format!("info/{name}");
        let text = self.common().read(&name, MAX_RULES_BYTES)?;
        Ok(text.map(|text| OutsideRules {
            origin: format!(".git/{name}"),
            text: String::from_utf8_lossy(&text).into_owned(),
        }))
    }

    fn common(&self) -> &GitDir {
        self.common_dir.as_ref().unwrap_or(&self.git_dir)
    }

    /// The name of the ref that the symbolic one at `path` leads to.
    fn ref_name(&self, path: PathBuf, target: Vec<u8>) -> Result<String, RepositoryError> {
        let name = String::from_utf8(target).map_err(|e| RepositoryError::Unsupported {
            what: format!(
                "the branch {}, whose name is not UTF-8,",
                printable_bytes(e.as_bytes())
            ),
        })?;
        if is_ref_name(&name) {
            Ok(name)
        } else {
            let name = printable_bytes(name.as_bytes());
            Err(RepositoryError::Hostile {
                path,
                reason: format!("it names {name}, which is no name of a ref"),
            })
        }
    }

    /// Which directory holds a ref (`gitrepository-layout`, "refs"; `git-worktree`, "Refs").
    fn holder_of(&self, name: &str) -> &GitDir {
        let own = ["refs/bisect/", "refs/worktree/", "refs/rewritten/"];
        if !name.starts_with("refs/") || own.iter().any(|prefix| name.starts_with(prefix)) {
            &self.git_dir
        } else {
            self.common()
        }
    }

    /// Looks a ref up in `packed-refs`.
    fn packed_ref(&self, name: &str) -> Result<Option<ObjectId>, RepositoryError> {
        let Some(text) = self.common().read("packed-refs", MAX_PACKED_REFS_BYTES)? else {
            return Ok(None);
        };
        // Not always sorted: old versions did not promise it.
        for (number, line) in text.split(|b| *b == b'\n').enumerate() {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            // A header, or what the tag in the line before leads to.
            if line.is_empty() || line.starts_with(b"#") || line.starts_with(b"^") {
                continue;
            }
            let damaged = || RepositoryError::Damaged {
                path: self.common().disk_path("packed-refs"),
                reason: format!("line {} is no id and name", number + 1),
            };
            let (id, rest) = line.split_at_checked(40).ok_or_else(damaged)?;
            let found = rest.strip_prefix(b" ").ok_or_else(damaged)?;
            if found == name.as_bytes() {
                return hex_id(id).ok_or_else(damaged).map(Some);
            }
        }
        Ok(None)
    }

    /// Opened when the first object is wanted.
    fn objects(&self) -> Result<&Objects, RepositoryError> {
        if let Some(objects) = self.objects.get() {
            return Ok(objects);
        }
        let objects = Objects::open(self.common())?;
        Ok(self.objects.get_or_init(|| objects))
    }

    fn object_of_kind(
        &self,
        id: ObjectId,
        kind: ObjectKind,
        max_bytes: u64,
    ) -> Result<Vec<u8>, RepositoryError> {
        match self.read_object(id, max_bytes)? {
            Some((found, bytes)) if found == kind => Ok(bytes),
            Some((found, _)) => {
                let detail = format!("it is a {}, not a {}", found.as_str(), kind.as_str());
                Err(self.malformed(id, &detail))
            }
            None => Err(RepositoryError::MissingObject { id }),
        }
    }

    fn malformed(&self, id: ObjectId, detail: &str) -> RepositoryError {
        RepositoryError::CorruptObject {
            id,
            path: self.common().disk_path("objects"),
            detail: detail.to_owned(),
        }
    }
}

/// What can go wrong while an index is parsed that may need a second file.
enum IndexOr {
    Index(IndexError),
    Repository(RepositoryError),
}

impl From<IndexError> for IndexOr {
    fn from(error: IndexError) -> Self {
        Self::Index(error)
    }
}

impl From<RepositoryError> for IndexOr {
    fn from(error: RepositoryError) -> Self {
        Self::Repository(error)
    }
}

/// The content of HEAD or of a loose ref.
#[derive(Debug, PartialEq, Eq)]
enum RefText {
    Symbolic(Vec<u8>),
    Id(ObjectId),
}

impl RefText {
    /// `None`: neither form, which is what a crash leaves behind.
    fn parse(text: &[u8]) -> Option<Self> {
        if let Some(target) = text.strip_prefix(b"ref:") {
            return Some(Self::Symbolic(target.trim_ascii().to_vec()));
        }
        let (id, rest) = text.split_at_checked(40)?;
        if rest.first().is_some_and(|b| !b.is_ascii_whitespace()) {
            return None;
        }
        hex_id(id).map(Self::Id)
    }

    /// Whether `text` is what git accepts as HEAD when it looks for a repository.
    fn is_head(text: &[u8]) -> bool {
        match Self::parse(text) {
            Some(Self::Symbolic(target)) => target.starts_with(b"refs/"),
            Some(Self::Id(_)) => true,
            // A detached HEAD with SHA-256; the configuration says so, and is asked next.
            None => text
                .get(..64)
                .is_some_and(|id| id.iter().all(u8::is_ascii_hexdigit)),
        }
    }
}

/// Whether a ref may have this name (`git-check-ref-format`), and it lies below `refs/`.
fn is_ref_name(name: &str) -> bool {
    let is_forbidden = |c: char| c.is_ascii_control() || " ~^:?*[\\".contains(c);
    let is_sound = |component: &str| {
        !component.is_empty() && !component.starts_with('.') && !component.ends_with(".lock")
    };
    name.starts_with("refs/")
        && !name.ends_with('.')
        && !name.contains("..")
        && !name.contains("@{")
        && !name.contains(is_forbidden)
        && name.split('/').all(is_sound)
}

/// An id in hexadecimal digits, of either case as git takes them.
fn hex_id(digits: &[u8]) -> Option<ObjectId> {
    let digits = std::str::from_utf8(digits).ok()?;
    digits.to_ascii_lowercase().parse().ok()
}

/// A tree object that git would not have written.
struct Malformed;

/// The entries of a tree object: mode, name, id.
struct TreeEntries<'t>(&'t [u8]);

impl<'t> Iterator for TreeEntries<'t> {
    type Item = Result<(u32, &'t [u8], ObjectId), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let entry = self.entry();
        if entry.is_none() {
            self.0 = &[];
        }
        Some(entry.ok_or(Malformed))
    }
}

impl<'t> TreeEntries<'t> {
    fn entry(&mut self) -> Option<(u32, &'t [u8], ObjectId)> {
        let blank = self.0.iter().position(|b| *b == b' ')?;
        let (mode, rest) = self.0.split_at(blank);
        let mode = u32::from_str_radix(std::str::from_utf8(mode).ok()?, 8).ok()?;
        let end = rest.iter().position(|b| *b == 0)?;
        let name = &rest[1..end];
        let (id, rest) = rest[end + 1..].split_at_checked(20)?;
        let is_name = !name.is_empty()
            && !name.contains(&b'/')
            && name != b"."
            && name != b".."
            && !name.eq_ignore_ascii_case(b".git");
        if !is_name {
            return None;
        }
        self.0 = rest;
        let id = ObjectId(id.try_into().expect("split off at this length"));
        Some((mode, name, id))
    }
}

/// The id of the directory `name` in a tree object.
fn subtree(tree: &[u8], name: &[u8]) -> Result<Option<ObjectId>, Malformed> {
    for entry in TreeEntries(tree) {
        let (mode, found, id) = entry?;
        if found == name {
            return Ok((mode == MODE_DIRECTORY).then_some(id));
        }
    }
    Ok(None)
}

/// A file of the user's own with rules or attributes, if it is there and can be read.
fn own_rules(path: &Path) -> Option<OutsideRules> {
    let text = read_own_file(path, MAX_RULES_BYTES)?;
    Some(OutsideRules {
        origin: printable(path),
        text: String::from_utf8_lossy(&text).into_owned(),
    })
}

/// Where `target`, which a file in `directory` names, leads. Absolute and without links.
fn resolve(directory: &Path, target: &[u8]) -> io::Result<PathBuf> {
    let path = fs::canonicalize(directory.join(path_of(target)))?;
    if fs::symlink_metadata(&path)?.is_dir() {
        Ok(path)
    } else {
        Err(io::Error::from(io::ErrorKind::NotADirectory))
    }
}

fn without_line_end(text: &[u8]) -> &[u8] {
    let end = text
        .iter()
        .rposition(|b| *b != b'\n' && *b != b'\r')
        .map_or(0, |at| at + 1);
    &text[..end]
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
    use std::ffi::OsString;
    use std::io::Write as _;
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
    use std::os::unix::process::CommandExt as _;
    use std::process::Command;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::error::ErrorKind;
    use crate::git::test_repository::TestRepository;

    /// Does something to a path.
    type Change = fn(&Path);

    /// Fails the test if `work` hangs. The thread is left behind then; the process ends with it.
    fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || sender.send(work()));
        receiver
            .recv_timeout(Duration::from_secs(20))
            .expect("it must not hang")
    }

    fn probe_in_time(path: &Path) -> Result<Probe, RepositoryError> {
        let path = path.to_owned();
        in_time(move || probe(&path))
    }

    fn found(path: &Path) -> Box<UserRepository> {
        match probe(path).unwrap() {
            Probe::Found(repository) => repository,
            other => panic!("{}: {other:?}", path.display()),
        }
    }

    fn id(text: &str) -> ObjectId {
        text.parse().unwrap()
    }

    fn fifo(path: &Path) {
        let made = Command::new("mkfifo").arg(path).status().unwrap();
        assert!(made.success());
    }

    fn is_hostile<T>(result: &Result<T, RepositoryError>) -> bool {
        matches!(result, Err(RepositoryError::Hostile { .. }))
    }

    fn is_damaged<T>(result: &Result<T, RepositoryError>) -> bool {
        matches!(result, Err(RepositoryError::Damaged { .. }))
    }

    fn unsupported(path: &Path) -> String {
        match probe(path).unwrap() {
            Probe::Unsupported { format, .. } => format,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_work_tree_and_a_directory_in_it_are_found() {
        let git = TestRepository::with_commit();
        let repository = found(&git.path);
        assert_eq!(repository.work_tree(), git.path);
        assert_eq!(repository.git_dir(), git.path.join(".git"));
        assert_eq!(repository.common_dir(), repository.git_dir());
        assert!(repository.scope().is_root());

        let below = found(&git.path.join("src"));
        assert_eq!(below.work_tree(), git.path);
        assert_eq!(below.scope().as_bytes(), b"src");
        assert_eq!(below.identity(), repository.identity());
    }

    #[test]
    fn a_path_through_a_link_is_the_path_it_leads_to() {
        let git = TestRepository::with_commit();
        let link = git.beside("link");
        symlink(git.path.join("src"), &link).unwrap();
        let repository = found(&link);
        assert_eq!(repository.work_tree(), git.path);
        assert_eq!(repository.scope().as_bytes(), b"src");
    }

    #[test]
    fn outside_of_any_repository_there_is_none() {
        let git = TestRepository::empty();
        assert!(matches!(probe(&git.path), Ok(Probe::None)));
    }

    #[test]
    fn a_git_directory_without_anything_of_a_repository_is_passed_over() {
        let git = TestRepository::with_commit();
        let below = git.path.join("src");
        fs::create_dir(below.join(".git")).unwrap();
        fs::write(below.join(".git/notes"), "mine").unwrap();
        assert_eq!(git.git_in(&below, &["rev-parse", "--show-prefix"]), "src/");
        assert_eq!(found(&below).work_tree(), git.path);

        fs::remove_file(git.path.join("src/.git/notes")).unwrap();
        assert_eq!(found(&below).work_tree(), git.path);
    }

    #[test]
    fn a_damaged_repository_is_an_error_and_never_none() {
        let damages: [(&str, Change); 8] = [
            ("HEAD is missing", |d| {
                fs::remove_file(d.join("HEAD")).unwrap()
            }),
            ("HEAD is garbage", |d| {
                fs::write(d.join("HEAD"), "what").unwrap()
            }),
            ("HEAD is empty", |d| fs::write(d.join("HEAD"), "").unwrap()),
            ("HEAD names no ref", |d| {
                fs::write(d.join("HEAD"), "ref: heads/x").unwrap()
            }),
            ("no objects", |d| {
                fs::remove_dir_all(d.join("objects")).unwrap()
            }),
            ("no refs", |d| fs::remove_dir_all(d.join("refs")).unwrap()),
            ("objects is a file", |d| {
                fs::remove_dir_all(d.join("objects")).unwrap();
                fs::write(d.join("objects"), "").unwrap();
            }),
            ("config is garbage", |d| {
                fs::write(d.join("config"), "[core\n").unwrap()
            }),
        ];
        for (what, damage) in damages {
            let git = TestRepository::with_commit();
            damage(&git.path.join(".git"));
            for path in [git.path.clone(), git.path.join("src")] {
                let result = probe(&path);
                assert!(is_damaged(&result), "{what}: {result:?}");
                let kind = SnapshotError::from(result.unwrap_err()).kind();
                assert_eq!(kind, ErrorKind::Unreadable);
            }
        }
    }

    #[test]
    fn a_bare_repository_and_the_inside_of_a_git_directory_have_no_work_tree() {
        let git = TestRepository::with_commit();
        let bare = git.beside("bare.git");
        git.git(&["clone", "-q", "--bare", ".", bare.to_str().unwrap()]);
        for path in [bare.clone(), bare.join("objects")] {
            match probe(&path) {
                Ok(Probe::Bare(found)) => assert_eq!(found, bare),
                other => panic!("{other:?}"),
            }
        }
        let inside = probe(&git.path.join(".git/refs"));
        assert!(matches!(inside, Ok(Probe::Bare(_))), "{inside:?}");
    }

    #[test]
    fn a_directory_that_merely_has_such_names_is_not_bare() {
        let git = TestRepository::empty();
        fs::create_dir(git.path.join("objects")).unwrap();
        fs::create_dir(git.path.join("refs")).unwrap();
        fifo(&git.path.join("HEAD"));
        assert!(matches!(probe_in_time(&git.path), Ok(Probe::None)));
    }

    #[test]
    fn core_bare_and_core_worktree_move_nothing() {
        let git = TestRepository::with_commit();
        let elsewhere = git.beside("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        git.git(&["config", "core.worktree", elsewhere.to_str().unwrap()]);
        assert_eq!(found(&git.path).work_tree(), git.path);
        git.git(&["config", "--unset", "core.worktree"]);
        git.git(&["config", "core.bare", "true"]);
        assert_eq!(found(&git.path.join("src")).scope().as_bytes(), b"src");
    }

    /// Called by the test below in a process of its own.
    #[test]
    fn child_reports_what_it_finds() {
        let Some(path) = std::env::var_os("STILLFRAME_TEST_PROBE") else {
            return;
        };
        let report = match probe(Path::new(&path)) {
            Ok(Probe::Found(repository)) => {
                let index = repository
                    .index()
                    .unwrap()
                    .map_or(0, |(i, _)| i.entries.len());
                format!("{} {index}", repository.git_dir().display())
            }
            other => format!("{other:?}"),
        };
        println!("<<{report}>>");
    }

    fn child(path: &Path) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "--nocapture"])
            .arg("git::repository::tests::child_reports_what_it_finds")
            .env("STILLFRAME_TEST_PROBE", path);
        command
    }

    fn report(output: &std::process::Output) -> String {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let report = text
            .split_once("<<")
            .and_then(|(_, rest)| rest.split_once(">>"));
        report.expect("the child reports").0.to_owned()
    }

    #[test]
    fn git_variables_in_the_environment_move_nothing() {
        let git = TestRepository::with_commit();
        let other = TestRepository::with_commit();
        other.write("more", "");
        other.commit("more");
        let other_git = other.path.join(".git");
        let output = child(&git.path)
            .env("GIT_DIR", &other_git)
            .env("GIT_WORK_TREE", &other.path)
            .env("GIT_COMMON_DIR", &other_git)
            .env("GIT_INDEX_FILE", other_git.join("index"))
            .env("GIT_OBJECT_DIRECTORY", other_git.join("objects"))
            .env("GIT_CEILING_DIRECTORIES", "/")
            .output()
            .unwrap();
        assert_eq!(
            report(&output),
            format!("{} 1", git.path.join(".git").display())
        );
    }

    #[test]
    fn the_repository_of_another_user_is_refused_and_named_by_owner() {
        const SOMEBODY: u32 = 54_321;
        const NOBODY: u32 = 65_534;
        let git = TestRepository::with_commit();
        let dot_git = git.path.join(".git");
        let top = git.path.parent().unwrap();
        fs::set_permissions(top, fs::Permissions::from_mode(0o755)).unwrap();
        // Only the superuser can give files away and become somebody else.
        if chown(&dot_git, Some(SOMEBODY), None).is_err() {
            return;
        }
        let refused = probe(&git.path).expect_err("the superuser is another user too");
        assert!(refused.to_string().contains("54321"), "{refused}");
        let Ok(output) = child(&git.path).uid(NOBODY).gid(NOBODY).output() else {
            return;
        };
        let report = report(&output);
        assert!(report.contains("Hostile"), "{report}");
        assert!(report.contains("it belongs to user 54321"), "{report}");
    }

    fn with_linked_worktree() -> (TestRepository, PathBuf) {
        let git = TestRepository::with_commit();
        let linked = git.beside("linked");
        git.git(&[
            "worktree",
            "add",
            "-q",
            "-b",
            "side",
            linked.to_str().unwrap(),
        ]);
        (git, linked)
    }

    #[test]
    fn a_linked_worktree_has_its_own_head_and_index_and_shares_the_rest() {
        let (git, linked) = with_linked_worktree();
        fs::write(linked.join("new"), "").unwrap();
        git.git_in(&linked, &["add", "new"]);
        git.git_in(&linked, &["commit", "-q", "-m", "on the side"]);

        let main = found(&git.path);
        let side = found(&linked.join("src"));

        assert_eq!(side.work_tree(), linked);
        assert_eq!(side.git_dir(), git.path.join(".git/worktrees/linked"));
        assert_eq!(side.common_dir(), main.git_dir());
        assert_eq!(side.identity(), main.identity());
        let head = side.head().unwrap();
        assert_eq!(head.branch(), Some("refs/heads/side"));
        let tip = git.git(&["rev-parse", "side"]);
        assert_eq!(head.commit().unwrap().to_string(), tip);
        assert_eq!(main.head().unwrap().branch(), Some("refs/heads/main"));
        assert_eq!(side.index().unwrap().unwrap().0.entries.len(), 2);
        assert_eq!(main.index().unwrap().unwrap().0.entries.len(), 1);
        let tree = git.git(&["rev-parse", "side:src"]);
        assert_eq!(side.head_tree(&head).unwrap(), Some(id(&tree)));
    }

    #[test]
    fn a_linked_worktree_whose_files_name_others_is_hostile() {
        let (git, linked) = with_linked_worktree();
        let (other, other_linked) = with_linked_worktree();
        let own = git.path.join(".git/worktrees/linked");
        let rewrite = |path: PathBuf, text: String| {
            let before = fs::read(&path).unwrap();
            fs::write(&path, text).unwrap();
            let result = probe(&linked);
            assert!(is_hostile(&result), "{}: {result:?}", path.display());
            let kind = SnapshotError::from(result.unwrap_err()).kind();
            assert_eq!(kind, ErrorKind::HostileRepository);
            fs::write(&path, before).unwrap();
            found(&linked);
        };
        let other_git = other.path.join(".git");
        let other_own = other_git.join("worktrees/linked");
        rewrite(
            linked.join(".git"),
            format!("gitdir: {}\n", other_own.display()),
        );
        rewrite(own.join("commondir"), format!("{}\n", other_git.display()));
        rewrite(
            own.join("gitdir"),
            format!("{}\n", other_linked.join(".git").display()),
        );
        rewrite(own.join("gitdir"), "nowhere\n".to_owned());

        // A directory that claims to be a worktree of another repository.
        fs::write(
            git.path.join(".git/commondir"),
            format!("{}\n", other_git.display()),
        )
        .unwrap();
        assert!(is_hostile(&probe(&git.path)));
    }

    #[test]
    fn a_git_file_that_leads_nowhere_is_damage() {
        for text in [
            "",
            "gitdir: ",
            "gitdir: nowhere\n",
            "something else\n",
            "gitdir: .\n",
        ] {
            let git = TestRepository::empty();
            git.write(".git", text);
            assert!(is_damaged(&probe(&git.path)), "{text:?}");
        }
        let git = TestRepository::empty();
        symlink("nowhere", git.path.join(".git")).unwrap();
        assert!(is_damaged(&probe(&git.path)));
    }

    #[test]
    fn a_submodule_is_a_repository_of_its_own() {
        let library = TestRepository::with_commit();
        let git = TestRepository::with_commit();
        git.git(&[
            "submodule",
            "add",
            "-q",
            library.path.to_str().unwrap(),
            "library",
        ]);
        git.commit("with a library");

        let repository = found(&git.path.join("library/src"));

        assert_eq!(repository.work_tree(), git.path.join("library"));
        assert_eq!(repository.git_dir(), git.path.join(".git/modules/library"));
        assert_eq!(repository.common_dir(), repository.git_dir());
        let tip = library.git(&["rev-parse", "HEAD"]);
        assert_eq!(
            repository.head().unwrap().commit().unwrap().to_string(),
            tip
        );
        assert_ne!(repository.identity(), found(&git.path).identity());
    }

    #[test]
    fn a_separate_git_directory_is_found_through_a_file_or_a_link() {
        let git = TestRepository::with_commit();
        let moved = git.beside("moved.git");
        fs::rename(git.path.join(".git"), &moved).unwrap();
        symlink(&moved, git.path.join(".git")).unwrap();
        assert_eq!(found(&git.path).git_dir(), moved);
        fs::remove_file(git.path.join(".git")).unwrap();
        git.write(".git", format!("gitdir: {}\n", moved.display()));
        assert_eq!(found(&git.path).git_dir(), moved);
        assert_eq!(found(&git.path).work_tree(), git.path);
    }

    #[test]
    fn formats_that_cannot_be_read_are_named() {
        let git = TestRepository::empty();
        git.git(&["init", "-q", "--object-format=sha256"]);
        assert_eq!(unsupported(&git.path), "sha256 objects");
        git.write("a", "");
        git.commit("detached, its HEAD has 64 digits");
        git.git(&["checkout", "-q", "--detach"]);
        assert_eq!(unsupported(&git.path), "sha256 objects");

        let git = TestRepository::empty();
        // Since git 2.45.
        if git
            .run(&git.path, &["init", "-q", "--ref-format=reftable"])
            .status
            .success()
        {
            assert_eq!(unsupported(&git.path), "reftable refs");
        }

        let git = TestRepository::with_commit();
        let config = git.path.join(".git/config");
        let with = |text: &str| fs::write(&config, text).unwrap();
        with("[core]\nrepositoryformatversion = 2\n");
        assert_eq!(unsupported(&git.path), "repository format version 2");
        with("[core]\nrepositoryformatversion = 1\n[extensions]\nsomeDay = 1\n");
        assert_eq!(unsupported(&git.path), "the extension \"someday\"");
        with("[core]\nrepositoryformatversion = 0\n[extensions]\nsomeDay = 1\n");
        found(&git.path);
        with(
            "[core]\nrepositoryformatversion = 1\n[extensions]\nobjectFormat = sha1\n\
             partialClone = origin\nworktreeConfig\npreciousObjects = true\nrefStorage = files\n\
             relativeWorktrees = true\nnoop = x\n",
        );
        found(&git.path);
        fs::remove_file(&config).unwrap();
        found(&git.path);
    }

    #[test]
    fn a_trap_in_the_place_of_any_file_is_hostile_at_once() {
        let names = [
            "HEAD",
            "config",
            "config.worktree",
            "index",
            "packed-refs",
            "shallow",
            "commondir",
            "info/exclude",
            "info/attributes",
            "info/grafts",
            "objects/info/alternates",
            "objects/info/commit-graph",
            "objects/pack/multi-pack-index",
        ];
        let traps: [(&str, Change); 3] = [
            ("a FIFO", fifo),
            ("a link", |path| symlink("/dev/zero", path).unwrap()),
            ("a socket", |path| {
                std::os::unix::net::UnixListener::bind(path).unwrap();
            }),
        ];
        for name in names {
            for (what, trap) in traps {
                let git = TestRepository::with_commit();
                git.git(&["pack-refs", "--all"]);
                let path = git.path.join(".git").join(name);
                let _ = fs::remove_file(&path);
                trap(&path);
                let result = probe_in_time(&git.path);
                match result {
                    Err(RepositoryError::Hostile { path: named, .. }) => assert_eq!(named, path),
                    other => panic!("{name} is {what}: {other:?}"),
                }
            }
        }
    }

    #[test]
    fn a_trap_in_the_place_of_git_itself_is_hostile_at_once() {
        let git = TestRepository::with_commit();
        let nested = git.path.join("src/.git");
        fifo(&nested);
        assert!(is_hostile(&probe_in_time(&git.path.join("src"))));
        fs::remove_file(&nested).unwrap();
        symlink("/dev/zero", &nested).unwrap();
        assert!(is_hostile(&probe_in_time(&git.path.join("src"))));
    }

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
                    repository.head_tree(&head)
                });
                assert!(is_hostile(&result), "{name}: {result:?}");
            }
            fs::remove_file(&path).unwrap();
            fs::write(&path, before).unwrap();
        }
        let repository = found(&git.path);
        assert!(repository.head_tree(&repository.head().unwrap()).is_ok());
    }

    #[test]
    fn directories_that_are_links_out_are_hostile() {
        for name in ["objects", "refs", "refs/heads", "info"] {
            let git = TestRepository::with_commit();
            let path = git.path.join(".git").join(name);
            let outside = git.beside("outside");
            fs::rename(&path, &outside).unwrap();
            symlink(&outside, &path).unwrap();
            let result = probe(&git.path);
            assert!(is_hostile(&result), "{name}: {result:?}");
        }
        let git = TestRepository::with_commit();
        let commit = git.git(&["rev-parse", "HEAD"]);
        for name in ["objects/pack", &format!("objects/{}", &commit[..2])] {
            let path = git.path.join(".git").join(name);
            let outside = git.beside("outside");
            fs::rename(&path, &outside).unwrap();
            symlink(&outside, &path).unwrap();
            // The first trap is found by the probe, the other when the object is read.
            let result = match probe(&git.path) {
                Ok(Probe::Found(repository)) => repository.read_object(id(&commit), 1000),
                Ok(other) => panic!("{other:?}"),
                Err(error) => Err(error),
            };
            assert!(is_hostile(&result), "{name}: {result:?}");
            fs::remove_file(&path).unwrap();
            fs::rename(&outside, &path).unwrap();
        }
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
    fn head_is_unborn_a_branch_or_detached() {
        let git = TestRepository::new();
        let head = |git: &TestRepository| found(&git.path).head().unwrap();
        let branch = "refs/heads/main".to_owned();
        assert_eq!(
            head(&git),
            Head::Unborn {
                branch: branch.clone()
            }
        );
        let no_index = found(&git.path).index().unwrap();
        assert!(no_index.is_none());
        assert_eq!(found(&git.path).head_tree(&head(&git)).unwrap(), None);

        git.write("a", "");
        git.commit("first");
        let commit = id(&git.git(&["rev-parse", "HEAD"]));
        assert_eq!(
            head(&git),
            Head::Branch {
                branch: branch.clone(),
                commit
            }
        );

        git.git(&["pack-refs", "--all"]);
        assert!(!git.path.join(".git/refs/heads/main").exists());
        assert_eq!(
            head(&git),
            Head::Branch {
                branch: branch.clone(),
                commit
            },
            "packed"
        );

        git.write("a", "more");
        git.commit("the loose ref wins");
        let commit = id(&git.git(&["rev-parse", "HEAD"]));
        assert_eq!(head(&git), Head::Branch { branch, commit });

        git.git(&["checkout", "-q", "--detach"]);
        assert_eq!(head(&git), Head::Detached { commit });
    }

    #[test]
    fn packed_refs_may_be_unsorted_and_peeled() {
        let git = TestRepository::with_commit();
        git.git(&["tag", "-a", "-m", "annotated", "v1"]);
        git.git(&["branch", "zz"]);
        git.git(&["pack-refs", "--all"]);
        let path = git.path.join(".git/packed-refs");
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains("\n^"), "a peeled tag: {text}");
        let mut lines: Vec<&str> = text
            .lines()
            .filter(|l| !l.starts_with(['#', '^']))
            .collect();
        lines.reverse();
        fs::write(&path, lines.join("\n") + "\n").unwrap();
        let commit = id(&git.git(&["rev-parse", "HEAD"]));
        assert_eq!(found(&git.path).head().unwrap().commit(), Some(commit));

        fs::write(&path, "this is no ref\n").unwrap();
        assert!(is_damaged(&found(&git.path).head()));
    }

    #[test]
    fn symbolic_refs_are_followed_to_their_end_and_no_further() {
        let git = TestRepository::with_commit();
        git.git(&["symbolic-ref", "refs/heads/alias", "refs/heads/main"]);
        git.git(&["symbolic-ref", "HEAD", "refs/heads/alias"]);
        assert_eq!(
            found(&git.path).head().unwrap().branch(),
            Some("refs/heads/main")
        );
        fs::write(
            git.path.join(".git/refs/heads/main"),
            "ref: refs/heads/alias\n",
        )
        .unwrap();
        assert!(is_damaged(&found(&git.path).head()), "a circle");
    }

    #[test]
    fn a_ref_outside_of_refs_is_refused() {
        let git = TestRepository::with_commit();
        fs::write(git.beside("secret"), "0".repeat(40)).unwrap();
        for target in [
            "refs/../../secret",
            "refs/heads/../../../secret",
            "refs//a",
            "refs/a.lock",
        ] {
            fs::write(git.path.join(".git/HEAD"), format!("ref: {target}\n")).unwrap();
            let result = found(&git.path).head();
            assert!(is_hostile(&result), "{target}: {result:?}");
        }
    }

    #[test]
    fn names_of_refs_are_those_that_git_accepts() {
        let git = TestRepository::empty();
        for name in [
            "refs/heads/a",
            "refs/heads/a./b",
            "refs/heads/a.",
            "refs/heads/.a",
            "refs/heads/a..b",
            "refs/heads/a.lock",
            "refs/heads/a.lock/b",
            "refs/heads/a b",
            "refs/heads/a~1",
            "refs/heads/\u{7f}",
            "refs/heads/é",
            "refs/heads/@",
            "refs/heads/a@{1}",
            "refs/heads/a//b",
            "refs/heads/",
            "refs/heads/a[b",
            "refs/heads/a\\b",
            "refs/heads/a*",
            "refs/heads/-a",
        ] {
            let accepted = git
                .run(&git.path, &["check-ref-format", name])
                .status
                .success();
            assert_eq!(is_ref_name(name), accepted, "{name:?}");
        }
        assert!(!is_ref_name("heads/a"));
        assert!(!is_ref_name("HEAD"));
    }

    #[test]
    fn a_branch_whose_name_is_not_utf_8_is_not_handled() {
        let git = TestRepository::with_commit();
        fs::write(git.path.join(".git/HEAD"), b"ref: refs/heads/\xff\n").unwrap();
        let error = SnapshotError::from(found(&git.path).head().unwrap_err());
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn a_branch_whose_name_is_an_empty_directory_is_unborn() {
        let git = TestRepository::new();
        git.git(&["symbolic-ref", "HEAD", "refs/heads/feature"]);
        fs::create_dir_all(git.path.join(".git/refs/heads/feature/old")).unwrap();
        let branch = "refs/heads/feature".to_owned();
        assert_eq!(found(&git.path).head().unwrap(), Head::Unborn { branch });
    }

    #[test]
    fn a_ref_that_a_crash_emptied_is_damage_and_not_unborn() {
        let git = TestRepository::with_commit();
        for text in ["", "\0\0\0\0", "0123", &format!("{}x\n", "a".repeat(40))] {
            fs::write(git.path.join(".git/refs/heads/main"), text).unwrap();
            assert!(is_damaged(&found(&git.path).head()), "{text:?}");
        }
    }

    #[test]
    fn the_tree_of_head_is_that_of_the_scope() {
        let git = TestRepository::with_commit();
        git.write("deep/er/file", "x");
        git.commit("deeper");
        fs::create_dir_all(git.path.join("not/in/head")).unwrap();
        let tree = |below: &str| {
            let repository = found(&git.path.join(below));
            repository.head_tree(&repository.head().unwrap()).unwrap()
        };
        let expected = |revision: &str| Some(id(&git.git(&["rev-parse", revision])));
        for _ in 0..2 {
            assert_eq!(tree(""), expected("HEAD^{tree}"));
            assert_eq!(tree("deep"), expected("HEAD:deep"));
            assert_eq!(tree("deep/er"), expected("HEAD:deep/er"));
            assert_eq!(tree("not/in/head"), None);
            // And once more from a pack.
            git.git(&["gc", "-q"]);
        }
        fs::remove_file(git.path.join("src/main.c")).unwrap();
        fs::create_dir(git.path.join("src/main.c")).unwrap();
        assert_eq!(tree("src/main.c"), None, "a file in HEAD");
    }

    #[test]
    fn a_whole_tree_unfolds_as_git_lists_it() {
        let git = TestRepository::with_commit();
        git.write("deep/er/file", "x");
        git.write("deep-er", "y");
        git.write(b"odd \xff", "z");
        symlink("nowhere", git.path.join("deep/link")).unwrap();
        let script = git.path.join("deep/run");
        fs::write(&script, "").unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        let library = TestRepository::with_commit();
        git.git(&[
            "submodule",
            "add",
            "-q",
            library.path.to_str().unwrap(),
            "library",
        ]);
        git.commit("all kinds");
        let repository = found(&git.path);
        let tree = repository
            .head_tree(&repository.head().unwrap())
            .unwrap()
            .unwrap();

        let files = repository.tree_files(tree).unwrap();

        let mut ours = Vec::new();
        for (path, entry) in &files {
            let mode = entry.kind.git_mode();
            let id = data_encoding::HEXLOWER.encode(entry.id.as_bytes());
            ours.extend(format!("{mode:06o} blob {id}\t").into_bytes());
            ours.extend(path.as_bytes());
            ours.push(0);
        }
        let listed = git.run(&git.path, &["ls-tree", "-r", "-z", "HEAD"]).stdout;
        let is_file = |line: &&[u8]| !line.starts_with(b"160000");
        let mut gits = Vec::new();
        for line in listed.split_inclusive(|b| *b == 0).filter(is_file) {
            gits.extend(line);
        }
        assert_eq!(
            String::from_utf8_lossy(&ours),
            String::from_utf8_lossy(&gits)
        );
        assert_eq!(ours, gits);
        let (_, file) = &files[0];
        let blob = ObjectId(file.id.as_bytes().try_into().unwrap());
        let no_tree = repository.tree_files(blob);
        assert!(matches!(
            no_tree,
            Err(RepositoryError::CorruptObject { .. })
        ));
    }

    #[test]
    fn a_tree_that_leads_elsewhere_is_malformed() {
        let git = TestRepository::with_commit();
        for name in ["..", ".", ".git", ".Git", "a/b"] {
            let mut tree = format!("100644 {name}\0").into_bytes();
            tree.extend([7; 20]);
            let id = ObjectId::of(ObjectKind::Tree, &tree).unwrap();
            let hex = id.to_string();
            let header = format!("tree {}\0", tree.len()).into_bytes();
            let path = format!(".git/objects/{}/{}", &hex[..2], &hex[2..]);
            git.write(path, deflated(&[header, tree].concat()));
            let result = found(&git.path).tree_files(id);
            let is_corrupt = matches!(result, Err(RepositoryError::CorruptObject { .. }));
            assert!(is_corrupt, "{name}: {result:?}");
        }
    }

    #[test]
    fn operations_in_progress_are_told() {
        let git = TestRepository::with_commit();
        let state = || found(&git.path).in_progress();
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
    fn a_split_index_is_read_with_its_shared_one() {
        let git = TestRepository::with_commit();
        git.git(&["update-index", "--split-index"]);
        let (index, stat) = found(&git.path).index().unwrap().unwrap();
        assert_eq!(index.entries.len(), 1);
        let shared = index.shared_id.expect("it is split");
        let meta = fs::metadata(git.path.join(".git/index")).unwrap();
        assert_eq!((stat.inode, stat.size), (meta.ino(), meta.len()));
        assert_eq!(found(&git.path).index_stat().unwrap(), Some(stat));

        fs::remove_file(git.path.join(format!(".git/sharedindex.{shared}"))).unwrap();
        assert!(is_damaged(&found(&git.path).index()));
    }

    #[test]
    fn a_damaged_index_is_named_and_told_from_an_unknown_one() {
        let git = TestRepository::with_commit();
        let path = git.path.join(".git/index");
        let kind = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            let error = found(&git.path).index().unwrap_err();
            assert!(matches!(&error, RepositoryError::Index { path: p, .. } if *p == path));
            SnapshotError::from(error).kind()
        };
        assert_eq!(kind(b""), ErrorKind::Unreadable);
        let version_9 = [&b"DIRC\0\0\0\x09"[..], &[0; 40]].concat();
        assert_eq!(kind(&version_9), ErrorKind::Unsupported);
    }

    /// The objects of a commit with a directory: commit, trees, blobs.
    fn objects_of(git: &TestRepository) -> Vec<(ObjectId, ObjectKind, Vec<u8>)> {
        let list = git.git(&["rev-list", "--objects", "--no-object-names", "--all"]);
        let object = |line: &str| {
            let (text, kind) = (id(line), git.git(&["cat-file", "-t", line]));
            let content = git.run(&git.path, &["cat-file", &kind, line]).stdout;
            let kind = match kind.as_str() {
                "commit" => ObjectKind::Commit,
                "tree" => ObjectKind::Tree,
                _ => ObjectKind::Blob,
            };
            (text, kind, content)
        };
        list.lines().map(object).collect()
    }

    #[test]
    fn objects_are_read_loose_packed_and_from_packs_that_came_later() {
        let git = TestRepository::with_commit();
        // Large and alike, so that a pack holds some of them as deltas.
        for n in 0..4 {
            let lines: String = (0..2000)
                .map(|l| format!("line {l} {}\n", l % (n + 7)))
                .collect();
            git.write("large", lines);
            git.commit("large");
        }
        git.write("empty", "");
        git.commit("empty");
        let objects = objects_of(&git);
        assert!(objects.len() > 10);
        let repository = found(&git.path);
        for round in ["loose", "packed", "packed again"] {
            for (id, kind, content) in &objects {
                let read = repository.read_object(*id, 1 << 20).unwrap();
                assert_eq!(read, Some((*kind, content.clone())), "{round}: {id}");
            }
            git.write("more", round);
            git.commit(round);
            git.git(&["repack", "-q", "-a", "-d", "-f"]);
        }
        let absent = id(&"12".repeat(20));
        assert_eq!(repository.read_object(absent, 1000).unwrap(), None);
        let (big, _, content) = objects.iter().max_by_key(|(_, _, c)| c.len()).unwrap();
        let too_large = repository.read_object(*big, content.len() as u64 - 1);
        assert!(matches!(too_large, Err(RepositoryError::TooLarge { .. })));
    }

    /// A zlib stream.
    fn deflated(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn a_damaged_loose_object_is_corrupt_in_time_unless_there_is_another_copy() {
        let git = TestRepository::with_commit();
        let text = "some content that is long enough to be cut\n".repeat(200);
        git.write("file", &text);
        git.commit("file");
        let blob = git.git(&["rev-parse", "HEAD:file"]);
        let path = git
            .path
            .join(format!(".git/objects/{}/{}", &blob[..2], &blob[2..]));
        let intact = fs::read(&path).unwrap();
        let blob = id(&blob);
        let half = intact.len() / 2;
        let mut flipped = intact.clone();
        flipped[half] ^= 0x10;
        let mut without_checksum = intact.clone();
        without_checksum.truncate(intact.len() - 4);
        let damages = [
            ("empty", Vec::new()),
            ("truncated", intact[..half].to_vec()),
            ("truncated in the header", intact[..3].to_vec()),
            ("without its checksum", without_checksum),
            ("zeroed", vec![0; intact.len()]),
            ("one bit", flipped),
            ("garbage behind it", [&intact[..], b"x"].concat()),
            ("another object", deflated(b"blob 1\0x")),
            ("claims more", deflated(b"blob 1073741824\0x")),
            (
                "claims less",
                deflated(&[b"blob 1\0", text.as_bytes()].concat()),
            ),
            (
                "claims nonsense",
                deflated(b"blob 99999999999999999999999\0x"),
            ),
            ("signed size", deflated(b"blob +1\0x")),
            ("unknown kind", deflated(b"thing 1\0x")),
            ("endless header", deflated(&[b'b'; 100_000])),
        ];
        for (what, bytes) in &damages {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
            fs::write(&path, bytes).unwrap();
            let workspace = git.path.clone();
            let result = in_time(move || found(&workspace).read_object(blob, 2 << 30));
            assert!(
                matches!(&result, Err(RepositoryError::CorruptObject { id, .. }) if *id == blob),
                "{what}: {result:?}"
            );
            let kind = SnapshotError::from(result.unwrap_err()).kind();
            assert_eq!(kind, ErrorKind::Corrupt, "{what}");
        }
        fs::write(&path, &intact).unwrap();
        git.git(&["repack", "-q", "-a"]);
        fs::write(&path, b"").unwrap();
        let read = found(&git.path).read_object(blob, 1 << 20).unwrap();
        assert_eq!(
            read,
            Some((ObjectKind::Blob, text.into_bytes())),
            "the packed copy"
        );
    }

    #[test]
    fn a_damaged_pack_is_corrupt_and_one_without_its_index_is_not_there() {
        let git = TestRepository::with_commit();
        let commit = id(&git.git(&["rev-parse", "HEAD"]));
        git.git(&["repack", "-q", "-a", "-d"]);
        let directory = git.path.join(".git/objects/pack");
        let file = |extension: &str| {
            let entries = fs::read_dir(&directory).unwrap().map(|e| e.unwrap().path());
            let mut files = entries.filter(|p| p.extension().is_some_and(|e| e == extension));
            files.next().unwrap()
        };
        let (pack, index) = (file("pack"), file("idx"));
        for path in [&pack, &index] {
            let intact = fs::read(path).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
            for bytes in [
                Vec::new(),
                vec![0xff; intact.len()],
                intact[..intact.len() / 2].to_vec(),
            ] {
                fs::write(path, bytes).unwrap();
                let workspace = git.path.clone();
                let result = in_time(move || found(&workspace).read_object(commit, 1 << 20));
                assert!(
                    matches!(result, Err(RepositoryError::CorruptObject { .. })),
                    "{}: {result:?}",
                    path.display()
                );
            }
            fs::write(path, intact).unwrap();
        }
        assert!(
            found(&git.path)
                .read_object(commit, 1 << 20)
                .unwrap()
                .is_some()
        );
        fs::remove_file(&pack).unwrap();
        assert_eq!(found(&git.path).read_object(commit, 1 << 20).unwrap(), None);
        fifo(&pack);
        let workspace = git.path.clone();
        let result = in_time(move || found(&workspace).read_object(commit, 1 << 20));
        assert!(is_hostile(&result), "{result:?}");
    }

    fn alternates(git: &TestRepository) -> PathBuf {
        git.path.join(".git/objects/info/alternates")
    }

    #[test]
    fn objects_of_alternates_are_read() {
        let source = TestRepository::with_commit();
        let git = TestRepository::new();
        let objects = source.path.join(".git/objects");
        fs::write(
            alternates(&git),
            format!("# comment\n\n{}\n", objects.display()),
        )
        .unwrap();
        let commit = id(&source.git(&["rev-parse", "HEAD"]));
        let repository = found(&git.path);
        assert_eq!(
            repository.object_dirs().unwrap(),
            [git.path.join(".git/objects"), objects.clone()]
        );
        assert!(repository.read_object(commit, 1 << 20).unwrap().is_some());
        source.git(&["repack", "-q", "-a", "-d"]);
        assert!(
            found(&git.path)
                .read_object(commit, 1 << 20)
                .unwrap()
                .is_some()
        );

        fs::create_dir(git.beside("o \"dd\n")).unwrap();
        symlink(&objects, git.beside("o \"dd\n").join("link")).unwrap();
        symlink(&objects, git.beside("near")).unwrap();
        for line in [
            "../../../near".to_owned(),
            "\"../../../o \\\"dd\\n/link\"".to_owned(),
            "\"../../../o \\042dd\\012/link\"".to_owned(),
        ] {
            fs::write(alternates(&git), format!("{line}\n")).unwrap();
            let args = ["cat-file", "-e", &commit.to_string()];
            assert!(
                git.run(&git.path, &args).status.success(),
                "git takes {line}"
            );
            let read = found(&git.path).read_object(commit, 1 << 20).unwrap();
            assert!(read.is_some(), "{line}");
        }
    }

    #[test]
    fn alternates_that_go_round_count_once_and_missing_ones_not_at_all() {
        let git = TestRepository::with_commit();
        let other = TestRepository::with_commit();
        let own = git.path.join(".git/objects");
        let others = other.path.join(".git/objects");
        let text = format!(
            "{}\n.\n/nowhere/objects\n{}\n",
            own.display(),
            others.display()
        );
        fs::write(alternates(&git), &text).unwrap();
        fs::write(
            alternates(&other),
            format!("{}\n{}\n", own.display(), others.display()),
        )
        .unwrap();
        assert_eq!(found(&git.path).object_dirs().unwrap(), [own, others]);
    }

    #[test]
    fn alternates_are_neither_deep_nor_many() {
        let git = TestRepository::with_commit();
        let directory = |n: usize| git.beside(&format!("objects-{n}"));
        let name = |path: &Path, text: String| {
            fs::create_dir_all(path.join("info")).unwrap();
            fs::write(path.join("info/alternates"), text).unwrap();
        };
        let own = git.path.join(".git/objects");
        name(&own, format!("{}\n", directory(1).display()));
        for n in 1..=5 {
            let next = if n < 5 {
                format!("{}\n", directory(n + 1).display())
            } else {
                String::new()
            };
            name(&directory(n), next);
        }
        assert_eq!(found(&git.path).object_dirs().unwrap().len(), 6);
        name(&directory(6), String::new());
        name(&directory(5), format!("{}\n", directory(6).display()));
        let too_deep = found(&git.path).object_dirs();
        assert!(
            matches!(too_deep, Err(RepositoryError::TooLarge { limit: 5, .. })),
            "{too_deep:?}"
        );

        let mut many = String::new();
        for n in 100..140 {
            fs::create_dir(directory(n)).unwrap();
            many.push_str(&format!("{}\n", directory(n).display()));
        }
        name(&own, many);
        let too_many = found(&git.path).object_dirs();
        assert!(
            matches!(too_many, Err(RepositoryError::TooLarge { limit: 32, .. })),
            "{too_many:?}"
        );
    }

    #[test]
    fn an_object_that_a_partial_clone_lacks_is_none_and_a_missing_commit_is_named() {
        let git = TestRepository::with_commit();
        let blob = git.git(&["rev-parse", "HEAD:src/main.c"]);
        let commit = git.git(&["rev-parse", "HEAD"]);
        for object in [&blob, &commit] {
            let path = format!(".git/objects/{}/{}", &object[..2], &object[2..]);
            fs::remove_file(git.path.join(path)).unwrap();
        }
        let repository = found(&git.path);
        assert_eq!(repository.read_object(id(&blob), 1000).unwrap(), None);
        let head = repository.head().unwrap();
        let result = repository.head_tree(&head);
        assert!(
            matches!(&result, Err(RepositoryError::MissingObject { id: missing })
                if *missing == id(&commit))
        );
    }

    /// The user's own files; `HOME` is the home of the test.
    fn user(git: &TestRepository, xdg: Option<&Path>) -> UserConfig {
        let home = git.home();
        let xdg = xdg.map(Path::to_owned);
        let env = move |name: &str| -> Option<OsString> {
            match name {
                "HOME" => Some(home.clone().into()),
                "XDG_CONFIG_HOME" => xdg.clone().map(Into::into),
                name => panic!("{name} is not looked at"),
            }
        };
        UserConfig::read_with(&git.beside("etc"), &env)
    }

    fn put(path: PathBuf, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn texts(rules: &[OutsideRules]) -> Vec<&str> {
        rules.iter().map(|r| r.text.as_str()).collect()
    }

    #[test]
    fn outside_rules_are_the_users_and_then_the_repositorys() {
        let git = TestRepository::with_commit();
        fs::remove_file(git.path.join(".git/info/exclude")).unwrap();
        let rules = |xdg: Option<&Path>| found(&git.path).outside_rules(&user(&git, xdg)).unwrap();
        assert_eq!(rules(None), []);
        git.write(".git/info/exclude", "*.o\n");
        put(git.home().join(".config/git/ignore"), "default\n");
        let both = rules(None);
        assert_eq!(texts(&both), ["default\n", "*.o\n"]);
        assert_eq!(both[1].origin, ".git/info/exclude");
        assert_eq!(
            both[0].origin,
            git.home().join(".config/git/ignore").to_str().unwrap()
        );

        let xdg = git.beside("xdg");
        put(xdg.join("git/ignore"), "xdg\n");
        assert_eq!(texts(&rules(Some(&xdg))), ["xdg\n", "*.o\n"]);

        put(
            git.beside("etc/gitconfig"),
            "[core]\nexcludesFile = /nowhere\n",
        );
        assert_eq!(texts(&rules(None)), ["*.o\n"]);
        put(git.home().join("mine"), "mine\n");
        put(
            git.home().join(".gitconfig"),
            "[core]\n\texcludesFile = ~/mine\n",
        );
        assert_eq!(texts(&rules(None)), ["mine\n", "*.o\n"]);
        // What the repository's own configuration names is not looked at.
        git.git(&["config", "core.excludesFile", "/etc/passwd"]);
        assert_eq!(texts(&rules(None)), ["mine\n", "*.o\n"]);
        put(git.home().join(".gitconfig"), "[core]\n\texcludesFile =\n");
        assert_eq!(texts(&rules(None)), ["*.o\n"]);
    }

    #[test]
    fn the_users_own_files_may_be_links_and_special_files_say_nothing() {
        let git = TestRepository::with_commit();
        fs::remove_file(git.path.join(".git/info/exclude")).unwrap();
        put(
            git.beside("dotfiles/gitconfig"),
            "[core]\nexcludesFile = ~/rules\n",
        );
        symlink(
            git.beside("dotfiles/gitconfig"),
            git.home().join(".gitconfig"),
        )
        .unwrap();
        let rules = git.home().join("rules");
        put(rules.clone(), "linked\n");
        let read = || {
            let (user, repository) = (user(&git, None), found(&git.path));
            in_time(move || repository.outside_rules(&user).unwrap())
        };
        assert_eq!(texts(&read()), ["linked\n"]);
        fs::remove_file(&rules).unwrap();
        fifo(&rules);
        assert_eq!(texts(&read()), [""; 0]);
        fs::remove_file(&rules).unwrap();
        symlink("/dev/null", &rules).unwrap();
        assert_eq!(texts(&read()), [""; 0]);
    }

    #[test]
    fn outside_attributes_are_weaker_and_stronger_than_the_trees() {
        let git = TestRepository::with_commit();
        let read = || {
            found(&git.path)
                .outside_attributes(&user(&git, None))
                .unwrap()
        };
        assert_eq!(read(), OutsideAttributes::default());
        put(git.beside("etc/gitattributes"), "* machine\n");
        put(git.home().join(".config/git/attributes"), "* user\n");
        git.write(".git/info/attributes", "* repository\n");
        let attributes = read();
        assert_eq!(texts(&attributes.weakest), ["* machine\n", "* user\n"]);
        assert_eq!(attributes.strongest.unwrap().text, "* repository\n");
        put(git.home().join("mine"), "* mine\n");
        put(
            git.home().join(".gitconfig"),
            "[core]\nattributesfile = ~/mine\n",
        );
        assert_eq!(texts(&read().weakest), ["* machine\n", "* mine\n"]);
    }

    #[test]
    fn conversion_is_suspected_wherever_configuration_may_ask_for_it() {
        let git = TestRepository::with_commit();
        assert!(!found(&git.path).may_convert());
        let config = git.path.join(".git/config");
        let plain = fs::read_to_string(&config).unwrap();
        for line in [
            "[core]\nAutoCRLF = input\n",
            "[core]\neol = crlf\n",
            "[core]\nattributesFile = x\n",
            "[include]\npath = x\n",
            "[includeIf \"gitdir:/\"]\npath = x\n",
        ] {
            fs::write(&config, format!("{plain}{line}")).unwrap();
            assert!(found(&git.path).may_convert(), "{line}");
        }
        fs::write(&config, &plain).unwrap();
        git.write(".git/config.worktree", "[core]\nautocrlf = true\n");
        assert!(found(&git.path).may_convert());

        let says = |text: &str| {
            put(git.home().join(".gitconfig"), text);
            user(&git, None).may_convert()
        };
        assert!(!says(""));
        assert!(!says("[core]\nautocrlf = false\n"));
        assert!(
            !says("[core]\nautocrlf = true\nautocrlf = No\n"),
            "the last one wins"
        );
        assert!(says("[core]\nautocrlf = true\n"));
        assert!(says("[core]\nautocrlf\n"));
        assert!(says("[core]\nautocrlf = input\n"));
        assert!(says("[include]\npath = other\n"));
        assert!(says("[core\n"), "nobody knows");
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
            repository.head_tree(&head).unwrap();
            repository.index().unwrap();
            repository.in_progress();
            repository.object_dirs().unwrap();
            repository.outside_rules(&user(&git, None)).unwrap();
            repository.read_object(id(&"12".repeat(20)), 10).unwrap();
        }
        assert_eq!(view(), before);
    }
}
