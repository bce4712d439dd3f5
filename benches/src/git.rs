//! git the program, doing the same work in the ways that people use.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// How a tree of everything is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The way most tools take: a temporary index from HEAD, `add -A`, `write-tree`.
    Common,
    /// A copy of the user's index, whose stat data spares reading clean files.
    Copied,
    /// The index of the last time.
    Persistent,
}

/// git in one work tree. Each [`Way`] has an index and a directory for new objects of its own, so
/// that none finds what another has written, and the repository stays as it is.
#[derive(Debug)]
pub struct GitPeer {
    work_tree: PathBuf,
    scratch: PathBuf,
}

impl GitPeer {
    /// git in `work_tree`, with what it writes in `scratch`.
    pub fn new(work_tree: &Path, scratch: &Path) -> Self {
        Self {
            work_tree: work_tree.to_owned(),
            scratch: scratch.to_owned(),
        }
    }

    fn index(&self, way: Way) -> PathBuf {
        self.scratch.join(format!("index-{way:?}"))
    }

    /// The variables with which git works in this way.
    pub fn environment(&self, way: Way) -> [(&'static str, PathBuf); 3] {
        let objects = self.scratch.join(format!("objects-{way:?}"));
        fs::create_dir_all(&objects).expect("it can be made");
        [
            ("GIT_INDEX_FILE", self.index(way)),
            ("GIT_OBJECT_DIRECTORY", objects),
            (
                "GIT_ALTERNATE_OBJECT_DIRECTORIES",
                self.work_tree.join(".git/objects"),
            ),
        ]
    }

    fn run(&self, arguments: &[&str], way: Way) -> Vec<u8> {
        let environment = self.environment(way);
        run(&self.work_tree, arguments, &environment).unwrap_or_else(|e| panic!("{e}"))
    }

    /// `git status`, for its time.
    pub fn status(&self) {
        git(&self.work_tree, &["status", "--porcelain"]).unwrap_or_else(|e| panic!("{e}"));
    }

    /// A tree of everything.
    pub fn tree(&self, way: Way) -> String {
        match way {
            Way::Common => {
                let _ = fs::remove_file(self.index(way));
                self.run(&["read-tree", "HEAD"], way);
            }
            Way::Copied => {
                fs::copy(self.work_tree.join(".git/index"), self.index(way))
                    .expect("there is an index");
            }
            Way::Persistent => {}
        }
        self.run(&["add", "-A"], way);
        let tree = self.run(&["write-tree"], way);
        String::from_utf8_lossy(&tree).trim().to_owned()
    }

    /// The patch between two trees of [`Way::Persistent`], for its time.
    pub fn diff(&self, from: &str, to: &str) {
        let options = ["diff-tree", "-p", "--binary", "--no-renames", "-r"];
        self.run(&[&options[..], &[from, to]].concat(), Way::Persistent);
    }

    /// Puts a tree of [`Way::Persistent`] back into the work tree, through that index.
    pub fn restore(&self, tree: &str) {
        self.run(&["read-tree", "--reset", "-u", tree], Way::Persistent);
    }
}

/// Runs git in `path` with no configuration but the repository's own; answers with its output.
pub fn git(path: &Path, arguments: &[&str]) -> io::Result<Vec<u8>> {
    run(path, arguments, &[])
}

fn run(
    path: &Path,
    arguments: &[&str],
    environment: &[(&'static str, PathBuf)],
) -> io::Result<Vec<u8>> {
    let output = Command::new("git")
        .args(arguments)
        .current_dir(path)
        .stdin(Stdio::null())
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .output()?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(io::Error::other(format!("git {arguments:?}: {message}")));
    }
    Ok(output.stdout)
}
