//! A repository that is made: an empty one for a new project, or one for what comes from a remote.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::backend::environment;
use super::commit::{commit_text, signature_of_user};
use super::directory::open_directory;
use super::loose_writer::LooseWriter;
use super::repository::{Probe, is_ref_name, no_work_tree, probe};
use super::rollback::reflog::{self, Line, Missing};
use super::tree_object::empty_tree_id;
use super::{ObjectId, ObjectKind};
use crate::commit::CommitError;
use crate::error::PathError;
use crate::operation::Operation;

/// The message of the first commit of a new project.
const FIRST: &str = "Initial commit";

/// The directories of a repository that has nothing yet.
const DIRECTORIES: [&str; 4] = ["objects/info", "objects/pack", "refs/heads", "refs/tags"];

/// A repository in a directory that nobody else knows yet. It is as `git init` makes one without a
/// template: no hook, no file of rules, and nothing of the user's configuration.
#[derive(Debug)]
pub struct NewRepository {
    work_tree: PathBuf,
    /// The full name of the branch that HEAD names.
    branch: String,
    /// The section of the configuration that is about the file system.
    core: String,
}

impl NewRepository {
    /// Makes the directory `work_tree`, which is not there, and in it a repository whose HEAD names
    /// `branch`, without a commit.
    ///
    /// [`CommitError::InvalidOptions`]: git has no branch of that name. Nothing was made.
    pub fn make(op: &Operation, work_tree: &Path, branch: &str) -> Result<Self, CommitError> {
        let branch = full_name(branch)?;
        let mut made = Self {
            work_tree: work_tree.to_owned(),
            branch,
            core: String::new(),
        };
        for directory in DIRECTORIES {
            let directory = made.git_dir().join(directory);
            op.before()
                .and_then(|()| fs::create_dir_all(&directory))
                .map_err(PathError::at("make the directory", &directory))?;
        }
        write(op, &made.git_dir().join("config"), b"")?;
        made.core = core_of(&made.git_dir())?;
        made.configure(op, &[])?;
        made.point_head(op)?;
        Ok(made)
    }

    /// Where git has everything of it.
    pub fn git_dir(&self) -> PathBuf {
        self.work_tree.join(".git")
    }

    /// The branch that HEAD names, without `refs/heads/`.
    pub fn branch(&self) -> &str {
        let short = self.branch.strip_prefix("refs/heads/");
        short.expect("it begins so")
    }

    /// Makes the first commit, which has no file, on the branch that HEAD names; answers with its
    /// id. Who made it is whom `user.name` and `user.email` of the user's own configuration of git
    /// name, or else `Stillframe <stillframe@localhost>`.
    pub fn commit(&self, op: &Operation, at: Timestamp) -> Result<String, CommitError> {
        let settings = match probe(&self.work_tree)? {
            Probe::Found(repository) => repository.settings(&environment)?,
            _ => return Err(CommitError::Unsupported(no_work_tree(&self.git_dir()))),
        };
        let signature = signature_of_user(&settings);
        let time = at.as_second().max(0);
        let tree = empty_tree_id();
        let text = commit_text(tree, &[], (&signature, time), &format!("{FIRST}\n"));
        let commit = ObjectId::of(ObjectKind::Commit, text.as_bytes())
            .map_err(|e| CommitError::InvalidOptions(e.to_string()))?;
        let mut writer = LooseWriter::open(op, &self.git_dir())?;
        writer.write(ObjectKind::Tree, &tree, 0, &mut |_| Ok(()))?;
        let size = text.len() as u64;
        writer.write(ObjectKind::Commit, &commit, size, &mut |out| {
            out.write_all(text.as_bytes())
        })?;
        writer.sync()?;
        self.write_ref(op, &self.branch, &format!("{commit}\n"))?;
        let line = Line {
            from: None,
            to: Some(commit),
            committer: &format!("{} <{}>", signature.name, signature.email),
            at: time,
            message: &format!("commit (initial): {FIRST}"),
        };
        let git_dir = open_directory(&self.git_dir())?;
        for name in ["HEAD", &self.branch] {
            reflog::add(op, git_dir.as_fd(), name, &line, Missing::Made);
        }
        Ok(commit.to_string())
    }

    /// Has it follow the remote `origin` at `url`, whose branches are below `refs/remotes/origin/`
    /// already: HEAD names a branch of the name of `default`, which has no commit yet, or else the
    /// branch that it names now.
    ///
    /// `url` is kept in the configuration, so that it has to be without anything secret.
    pub fn follow(
        &mut self,
        op: &Operation,
        url: &OsStr,
        default: Option<&str>,
    ) -> Result<(), CommitError> {
        if let Some(default) = default {
            self.branch = full_name(default)?;
            self.point_head(op)?;
            let head = "refs/remotes/origin/HEAD";
            // A branch of the remote may have that name.
            if !self.git_dir().join(head).exists() {
                let text = format!("ref: refs/remotes/origin/{default}\n");
                self.write_ref(op, head, &text)?;
            }
        }
        self.configure(op, &followed(url.as_bytes(), self.branch()))
    }

    fn configure(&self, op: &Operation, more: &[u8]) -> Result<(), CommitError> {
        let text = [self.core.as_bytes(), more].concat();
        Ok(write(op, &self.git_dir().join("config"), &text)?)
    }

    fn point_head(&self, op: &Operation) -> Result<(), CommitError> {
        self.write_ref(op, "HEAD", &format!("ref: {}\n", self.branch))
    }

    fn write_ref(&self, op: &Operation, name: &str, text: &str) -> Result<(), CommitError> {
        let path = self.git_dir().join(name);
        let above = path.parent().expect("it is below the repository");
        op.before()
            .and_then(|()| fs::create_dir_all(above))
            .map_err(PathError::at("make the directory", above))?;
        Ok(write(op, &path, text.as_bytes())?)
    }
}

/// The full name of a branch, as `git branch` takes one.
fn full_name(branch: &str) -> Result<String, CommitError> {
    let full = format!("refs/heads/{branch}");
    match is_ref_name(&full) && !branch.starts_with('-') && branch != "HEAD" {
        true => Ok(full),
        false => Err(CommitError::InvalidOptions(format!(
            "{branch:?} is no name of a branch (git check-ref-format)"
        ))),
    }
}

/// What git notes of the file system when it makes a repository.
fn core_of(git_dir: &Path) -> Result<String, PathError> {
    let config = git_dir.join("config");
    let mode = || Ok(fs::symlink_metadata(&config)?.permissions().mode());
    let has_modes = mode().and_then(|before| {
        fs::set_permissions(&config, fs::Permissions::from_mode(before ^ 0o100))?;
        let is_other = mode()? != before;
        fs::set_permissions(&config, fs::Permissions::from_mode(before))?;
        Ok::<_, std::io::Error>(is_other)
    });
    let has_modes = has_modes.map_err(PathError::at("set the mode of", &config))?;
    let ignores_case = match git_dir.join("CoNfIg").exists() {
        true => "\tignorecase = true\n",
        false => "",
    };
    Ok(format!(
        "[core]\n\trepositoryformatversion = 0\n\tfilemode = {has_modes}\n\tbare = false\n\
         \tlogallrefupdates = true\n{ignores_case}"
    ))
}

/// The sections of the remote and of the branch that follows it.
fn followed(url: &[u8], branch: &str) -> Vec<u8> {
    let mut text = b"[remote \"origin\"]\n\turl = ".to_vec();
    text.extend(quoted(url));
    text.extend(b"\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n[branch ");
    text.extend(quoted(branch.as_bytes()));
    text.extend(b"]\n\tremote = origin\n\tmerge = ");
    text.extend(quoted(format!("refs/heads/{branch}").as_bytes()));
    text.push(b'\n');
    text
}

/// As git's configuration has a value or the name of a subsection that may hold anything but
/// control characters.
fn quoted(text: &[u8]) -> Vec<u8> {
    let mut quoted = vec![b'"'];
    for byte in text {
        if matches!(byte, b'"' | b'\\') {
            quoted.push(b'\\');
        }
        quoted.push(*byte);
    }
    quoted.push(b'"');
    quoted
}

fn write(op: &Operation, path: &Path, bytes: &[u8]) -> Result<(), PathError> {
    op.before()
        .and_then(|()| {
            let mut file = File::create(path)?;
            file.write_all(bytes)?;
            file.sync_all()
        })
        .map_err(PathError::at("write", path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::git::test_repository::TestRepository;

    /// A remote's address and a branch may hold what a configuration gives a meaning.
    #[test]
    fn what_it_follows_is_what_git_reads() {
        let git = TestRepository::new();
        for (url, branch) in [
            ("https://example.org/a.git", "main"),
            ("/a \"b\" \\ # ; c", "feature/a\"b]#;="),
            (" /blanks/ ", "\u{e4}"),
        ] {
            let tree = git.beside("made");
            let op = &Operation::unbounded();
            let mut made = NewRepository::make(op, &tree, "other").unwrap();
            made.follow(op, url.as_ref(), Some(branch)).unwrap();
            let key = format!("branch.{branch}.merge");
            for (args, said) in [
                (&["config", "remote.origin.url"][..], url.to_owned()),
                (&["config", &key], format!("refs/heads/{branch}")),
                (&["symbolic-ref", "HEAD"], format!("refs/heads/{branch}")),
            ] {
                let output = git.run(&tree, args);
                let found = String::from_utf8(output.stdout).unwrap();
                assert_eq!(found, format!("{said}\n"), "{args:?}");
            }
            fs::remove_dir_all(&tree).unwrap();
        }
    }

    #[test]
    fn a_branch_that_git_refuses_makes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let tree = directory.path().join("made");
        for branch in ["", "-x", "HEAD", "a..b", "a b", "a.lock", "x/", "@{"] {
            let made = NewRepository::make(&Operation::unbounded(), &tree, branch);
            assert!(
                matches!(made, Err(CommitError::InvalidOptions(_))),
                "{branch}"
            );
            assert!(!tree.exists());
        }
    }

    #[test]
    fn one_that_fails_anywhere_is_no_repository_that_somebody_sees() {
        use crate::faults::Fault;
        let directory = tempfile::tempdir().unwrap();
        let mut failed = 0;
        loop {
            let tree = directory.path().join(format!("made-{failed}"));
            let make = |op: &Operation| {
                let made = NewRepository::make(op, &tree, "main")?;
                made.commit(op, Timestamp::UNIX_EPOCH)
            };
            let (made, _) = crate::trial::with(Fault::FailAt(failed, 28), make);
            match made {
                Ok(_) => break,
                Err(error) => assert_eq!(error.kind(), crate::error::ErrorKind::NoSpace, "{error}"),
            }
            failed += 1;
        }
        assert!(failed > 10, "{failed}");
    }
}
