//! Worktrees that get into their own way: few paths, of which one is often a file where another
//! needs a directory, and everything that may happen to them.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::TestWorkspace;
use crate::torture::random::Random;

/// Paths that get into each other's way: files, directories and what lies below, odd names.
pub const PATHS: [&[u8]; 18] = [
    b"a",
    b"a/b",
    b"a/b/c",
    b"a.b",
    b"a-b/x",
    b"d",
    b"d/e",
    b"d/f/g",
    b"z\xff",
    b"z\xff/\n",
    b"*",
    b" ",
    b"d/e/h",
    b"README",
    b"-n",
    b"a/\x1b[31m",
    b".stillframe",
    b"d/f/.GIT",
];

/// How many of [`PATHS`], from the first on, are names that every backend can capture.
pub const ORDINARY: usize = 17;

/// Where rules may come to be.
pub const RULES_AT: [&[u8]; 3] = [b".gitignore", b"a/.gitignore", b"d/.gitignore"];

/// What they may say.
pub const RULES: [&str; 8] = [
    "",
    "*\n",
    "a\n",
    "/d/\n",
    "a/b\n!c\n",
    "*\n!.gitignore\n",
    "e\nREADME\n",
    "!*\n",
];

/// One change to a worktree, with places in [`PATHS`]. What cannot be done, because of what is
/// there, is left undone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A file with so many lines of that number.
    Write(usize, u8),
    /// Whatever is there goes, with all that is below it.
    Remove(usize),
    /// A link to another of the paths.
    Link(usize, usize),
    /// A file may be executed, or is for its owner alone.
    Mode(usize, bool),
    /// A directory.
    Mkdir(usize),
    /// Another name.
    Rename(usize, usize),
    /// The text [`RULES`] at the place of [`RULES_AT`].
    Rules(usize, usize),
    /// A FIFO that nobody writes to.
    Fifo(usize),
    /// Another name for the same file.
    HardLink(usize, usize),
    /// A repository of its own, without a commit, with a file in it.
    Nested(usize),
    /// The user's own git, in the repository of the worktree.
    Git(Git),
}

/// What the user does with git.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Git {
    /// `add -A`
    Add,
    /// `add -N` of everything.
    Intend,
    /// `commit -a`
    Commit,
    /// `checkout -b` of a new branch.
    Branch,
    /// `reset`, of the index alone.
    Reset,
    /// `rm --cached` of everything.
    Untrack,
}

impl Git {
    const ALL: [Self; 6] = [
        Self::Add,
        Self::Intend,
        Self::Commit,
        Self::Branch,
        Self::Reset,
        Self::Untrack,
    ];

    fn args(self) -> &'static [&'static str] {
        match self {
            Self::Add => &["add", "-A"],
            Self::Intend => &["add", "-N", "."],
            Self::Commit => &["commit", "-q", "-a", "--allow-empty", "-m", "by the user"],
            Self::Branch => &["checkout", "-q", "-b", "another"],
            Self::Reset => &["reset", "-q"],
            Self::Untrack => &["rm", "-r", "-q", "--cached", "--ignore-unmatch", "."],
        }
    }
}

impl Step {
    /// Any step; one that needs a repository only if `has_git`.
    pub fn any(random: &mut Random, has_git: bool) -> Self {
        let path = random.below(PATHS.len());
        let other = random.below(PATHS.len());
        match random.below(if has_git { 22 } else { 19 }) {
            0..=5 => Self::Write(path, u8::try_from(random.below(5)).expect("it is small")),
            6..=8 => Self::Remove(path),
            9..=10 => Self::Link(path, other),
            11 => Self::Mode(path, random.once_in(2)),
            12 => Self::Mkdir(path),
            13..=14 => Self::Rename(path, other),
            15 => Self::Rules(random.below(RULES_AT.len()), random.below(RULES.len())),
            16 => Self::Fifo(path),
            17 => Self::HardLink(path, other),
            18 => Self::Nested(path),
            _ => Self::Git(*random.one_of(&Git::ALL)),
        }
    }

    /// Does it in the worktree of `ws`.
    pub fn take_in(&self, ws: &TestWorkspace) {
        match self {
            // Whether git can do it is the user's affair.
            Self::Git(git) => drop(ws.git_call(git.args()).run()),
            Self::Nested(at) => {
                let (path, root) = (disk(ws.root(), PATHS[*at]), ws.root());
                if prepare(root, &path) && fs::create_dir(&path).is_ok() {
                    drop(
                        ws.git_call([OsStr::new("init"), "-q".as_ref(), path.as_os_str()])
                            .run(),
                    );
                    let _ = fs::write(path.join("file"), "in a repository of its own\n");
                }
            }
            step => step.take(ws.root()),
        }
    }

    /// Does it below `root`; a step that takes git is left undone.
    pub fn take(&self, root: &Path) {
        let disk = |at: &usize| disk(root, PATHS[*at]);
        let clear = |path: &Path| is_clear(root, path);
        let prepare = |path: &Path| prepare(root, path);
        let is_link = |path: &Path| path.symlink_metadata().is_ok_and(|m| m.is_symlink());
        let is_file = |path: &Path| path.symlink_metadata().is_ok_and(|m| m.is_file());
        let is_new = |path: &Path| path.symlink_metadata().is_err();
        match self {
            Self::Write(at, content) => {
                let path = disk(at);
                if prepare(&path) && (is_new(&path) || is_file(&path)) {
                    let _ = fs::write(path, format!("{content}\n").repeat(*content as usize));
                }
            }
            Self::Remove(at) => {
                let path = disk(at);
                if clear(&path) {
                    let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path));
                }
            }
            Self::Link(at, target) => {
                let path = disk(at);
                if prepare(&path) {
                    let _ = symlink(OsStr::from_bytes(PATHS[*target]), path);
                }
            }
            Self::Mode(at, executable) => {
                let path = disk(at);
                if clear(&path) && is_file(&path) {
                    let mode = if *executable { 0o755 } else { 0o600 };
                    let _ = fs::set_permissions(path, fs::Permissions::from_mode(mode));
                }
            }
            Self::Mkdir(at) => {
                let path = disk(at);
                if prepare(&path) {
                    let _ = fs::create_dir(path);
                }
            }
            Self::Rules(at, rules) => {
                let path = self::disk(root, RULES_AT[*at]);
                if prepare(&path) && !is_link(&path) {
                    let _ = fs::write(path, RULES[*rules]);
                }
            }
            Self::Rename(from, to) => {
                let (from, to) = (disk(from), disk(to));
                if clear(&from) && prepare(&to) {
                    let _ = fs::rename(from, to);
                }
            }
            Self::Fifo(at) => {
                let path = disk(at);
                if prepare(&path) {
                    let mode = Mode::from_raw_mode(0o644);
                    let _ = mknodat(CWD, path, FileType::Fifo, mode, 0);
                }
            }
            Self::HardLink(at, to) => {
                let (path, to) = (disk(at), disk(to));
                if clear(&path) && is_file(&path) && prepare(&to) {
                    let _ = fs::hard_link(path, to);
                }
            }
            Self::Nested(_) | Self::Git(_) => {}
        }
    }
}

fn disk(root: &Path, path: &[u8]) -> PathBuf {
    root.join(OsStr::from_bytes(path))
}

/// Whether no directory above `path` is a link that an earlier step has made: a link may lead
/// anywhere.
fn is_clear(root: &Path, path: &Path) -> bool {
    let mut above = path.ancestors().skip(1).take_while(|dir| *dir != root);
    above.all(|dir| dir.symlink_metadata().map_or(true, |m| m.is_dir()))
}

fn prepare(root: &Path, path: &Path) -> bool {
    is_clear(root, path) && path.parent().is_some_and(|p| fs::create_dir_all(p).is_ok())
}
