//! Looking for the repository around a workspace, and making sure that it can be read.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::FileType;

use super::config::{self, Config};
use super::git_dir::{GitDir, Kind, path_of, trap};
use super::head::RefText;
use super::{MAX_LINE_BYTES, RepositoryError, UserRepository, is_absent};
use crate::error::{PathError, printable};
use crate::path::{RelPath, printable_bytes};

/// What was found around a workspace.
#[derive(Debug)]
pub enum Probe {
    /// No repository: git would say the same.
    None,
    /// The workspace lies in a bare repository, at this path, or in the git directory of another
    /// one: among a repository's own files, and in no work tree.
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

/// Looks for the repository whose work tree `workspace_path` lies in, as git does: upwards, as far
/// as its file system goes. Reads; writes nothing.
///
/// A `.git` that is no repository is passed over, as git does; but one that still has a part of a
/// repository is an error, and so is one that holds a trap or belongs to another user.
pub fn probe(workspace_path: &Path) -> Result<Probe, RepositoryError> {
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

/// As [`probe`], for whoever needs no work tree: a bare repository is found, and has itself in
/// place of one. So is one from within its git directory.
pub fn probe_repository(path: &Path) -> Result<Probe, RepositoryError> {
    match probe(path)? {
        Probe::Bare(git_dir) => Candidate {
            git_dir: GitDir::open(&git_dir)?,
            work_tree: git_dir,
            is_named_by_file: false,
        }
        .check(RelPath::root()),
        found => Ok(found),
    }
}

/// Whether `directory` is itself a git directory, by what git asks (`is_git_directory`): links
/// count as what they lead to. It is not read any further, so whatever keeps it from being one is
/// no error.
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
pub fn no_work_tree(git_dir: &Path) -> String {
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
        let of_worktree = self
            .git_dir
            .read("config.worktree", config::MAX_CONFIG_BYTES)?
            .is_some_and(|text| {
                Config::parse(&text).map_or(true, |config| config.may_name_attributes())
            });
        Ok(Probe::Found(Box::new(UserRepository {
            may_name_attributes: config.may_name_attributes() || of_worktree,
            work_tree: self.work_tree,
            scope,
            git_dir: self.git_dir,
            common_dir,
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

/// Files that git reads by name, wherever they lie in a repository without linked worktrees. A
/// link, FIFO or device in their place is found before anything is read.
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

/// What of the repository's format is not handled (`gitrepository-layout`,
/// "repositoryformatversion").
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
    use std::os::unix::process::CommandExt as _;
    use std::process::Command;

    use super::super::testing::*;
    use super::*;
    use crate::error::ErrorKind;
    use crate::operation::Operation;
    use crate::snapshot_error::SnapshotError;
    use crate::test_repository::TestRepository;

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
            .arg("repository::probe::tests::child_reports_what_it_finds")
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
        assert_eq!(
            side.head_tree(&Operation::unbounded(), &head).unwrap(),
            Some(id(&tree))
        );
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
                Ok(Probe::Found(repository)) => {
                    repository.read_object(&Operation::unbounded(), id(&commit), 1000)
                }
                Ok(other) => panic!("{other:?}"),
                Err(error) => Err(error),
            };
            assert!(is_hostile(&result), "{name}: {result:?}");
            fs::remove_file(&path).unwrap();
            fs::rename(&outside, &path).unwrap();
        }
    }
}
