//! For tests: repositories that git itself makes, cut off from the user's own configuration.

#![allow(
    clippy::disallowed_methods,
    clippy::new_without_default,
    clippy::unwrap_used,
    reason = "it starts git, and a test that cannot have its repository fails"
)]

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// A temporary directory with a home of its own, and git at work in it.
pub struct TestRepository {
    /// Removed with everything in it at the end.
    directory: TempDir,
    /// The work tree.
    pub path: PathBuf,
}

impl TestRepository {
    /// A directory in which nothing was initialised yet.
    pub fn empty() -> Self {
        Self::below(tempfile::tempdir().unwrap())
    }

    /// A repository without a commit, in memory where that is possible: for stories that sync
    /// thousands of times.
    pub fn in_memory() -> Self {
        let memory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let repository = Self::below(memory.unwrap());
        repository.git(&["init", "-q", "-b", "main"]);
        repository
    }

    fn below(directory: TempDir) -> Self {
        let top = directory.path().canonicalize().unwrap();
        fs::create_dir(top.join("home")).unwrap();
        let path = top.join("repository");
        fs::create_dir(&path).unwrap();
        Self { directory, path }
    }

    /// A repository without a commit.
    pub fn new() -> Self {
        let repository = Self::empty();
        repository.git(&["init", "-q", "-b", "main"]);
        repository
    }

    /// A repository with a file in a directory, and one commit.
    pub fn with_commit() -> Self {
        let repository = Self::new();
        repository.write("src/main.c", "int main;\n");
        repository.commit("first");
        repository
    }

    /// What lies beside the repository.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.path.parent().unwrap().join(name)
    }

    /// The home directory that git sees.
    pub fn home(&self) -> PathBuf {
        self.beside("home")
    }

    /// Writes a file of the work tree, and the directories above it.
    pub fn write(&self, rel_path: impl AsRef<[u8]>, content: impl AsRef<[u8]>) {
        let path = self.path.join(OsStr::from_bytes(rel_path.as_ref()));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Commits everything there is.
    pub fn commit(&self, message: &str) {
        self.git(&["add", "-A"]);
        self.git(&["commit", "-q", "--allow-empty", "-m", message]);
    }

    /// Runs git in the work tree; answers with its output without the closing line feed.
    pub fn git(&self, args: &[&str]) -> String {
        self.git_in(&self.path, args)
    }

    /// Runs git in `directory`.
    pub fn git_in(&self, directory: &Path, args: &[&str]) -> String {
        let output = self.run(directory, args);
        assert!(
            output.status.success(),
            "git {args:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let mut text = String::from_utf8(output.stdout).unwrap();
        if text.ends_with('\n') {
            text.pop();
        }
        text
    }

    /// Runs git in `directory`, whether it succeeds or not.
    pub fn run(&self, directory: &Path, args: &[&str]) -> Output {
        Command::new("git")
            .args(args)
            .current_dir(directory)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", self.directory.path().join("home"))
            .env("LC_ALL", "C")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            // Housekeeping after a commit and syncs only cost time.
            .env("GIT_CONFIG_COUNT", "2")
            .env("GIT_CONFIG_KEY_0", "maintenance.auto")
            .env("GIT_CONFIG_VALUE_0", "false")
            .env("GIT_CONFIG_KEY_1", "core.fsync")
            .env("GIT_CONFIG_VALUE_1", "none")
            // A submodule that lies on this machine is wanted here.
            .env("GIT_ALLOW_PROTOCOL", "file")
            .env("GIT_AUTHOR_NAME", "A")
            .env("GIT_AUTHOR_EMAIL", "a@example.org")
            .env("GIT_AUTHOR_DATE", "1700000000 +0000")
            .env("GIT_COMMITTER_NAME", "C")
            .env("GIT_COMMITTER_EMAIL", "c@example.org")
            .env("GIT_COMMITTER_DATE", "1700000000 +0000")
            .output()
            .expect("git is installed")
    }
}
