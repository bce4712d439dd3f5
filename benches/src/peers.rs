//! Other ways to know what changed, for those who have the programs.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::case::RESTIC;

/// A program that is measured where it is installed.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// How it is called in tables.
    pub name: &'static str,
    program: &'static str,
    /// The argument that it only says its version with.
    version: &'static str,
    prepare: &'static [&'static [&'static str]],
    measured: &'static [&'static str],
    /// Whether it takes seconds.
    pub is_slow: bool,
    /// Whether it writes into the work tree, and gets a copy.
    writes: bool,
}

/// Programs that look for changes in a repository of git's. `{scratch}` is a directory of theirs.
pub const FOR_CHANGES: [Peer; 4] = [
    Peer {
        name: "gix status",
        program: "gix",
        version: "--version",
        prepare: &[],
        measured: &["status"],
        is_slow: false,
        writes: false,
    },
    Peer {
        name: "jj util snapshot",
        program: "jj",
        version: "--version",
        prepare: &[&["git", "init", "--colocate"]],
        measured: &["util", "snapshot"],
        is_slow: false,
        writes: true,
    },
    Peer {
        name: RESTIC,
        program: "restic",
        version: "version",
        prepare: &[&["--repo", "{scratch}/restic", "init"]],
        measured: &["--repo", "{scratch}/restic", "backup", "."],
        is_slow: true,
        writes: false,
    },
    Peer {
        name: "borg create",
        program: "borg",
        version: "--version",
        prepare: &[&["init", "--encryption", "none", "{scratch}/borg"]],
        measured: &["create", "{scratch}/borg::{now}", "."],
        is_slow: true,
        writes: false,
    },
];

impl Peer {
    /// Whether the program is there.
    pub fn is_installed(&self) -> bool {
        Command::new(self.program)
            .arg(self.version)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    }

    /// Makes what it needs in `scratch`, and lets it see everything once.
    pub fn prepare(self, path: &Path, scratch: &Path) -> Prepared {
        let work_tree = if self.writes {
            let copy = scratch.join("copy");
            let status = Command::new("cp")
                .args(["-a", "--reflink=auto"])
                .args([path, &copy])
                .status();
            assert!(
                status.is_ok_and(|s| s.success()),
                "{} is copied",
                path.display()
            );
            copy
        } else {
            path.to_owned()
        };
        let prepared = Prepared {
            peer: self,
            work_tree,
            scratch: scratch.to_owned(),
        };
        for arguments in self.prepare {
            prepared.run_with(arguments);
        }
        prepared.run();
        prepared
    }
}

/// A program that has seen everything once.
#[derive(Debug)]
pub struct Prepared {
    peer: Peer,
    work_tree: PathBuf,
    scratch: PathBuf,
}

impl Prepared {
    /// Does what is measured.
    pub fn run(&self) {
        self.run_with(self.peer.measured);
    }

    fn run_with(&self, arguments: &[&str]) {
        let scratch = self.scratch.to_str().expect("made by us");
        let now = jiff::Timestamp::now().as_nanosecond().to_string();
        let arguments = arguments
            .iter()
            .map(|a| a.replace("{scratch}", scratch).replace("{now}", &now));
        let output = Command::new(self.peer.program)
            .args(arguments)
            .current_dir(&self.work_tree)
            // Caches and settings are there, and nobody's own.
            .env("HOME", &self.scratch)
            .env_remove("XDG_CACHE_HOME")
            .env_remove("XDG_CONFIG_HOME")
            // Every version takes it; not all can do without.
            .env("RESTIC_PASSWORD", "none")
            .env("BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK", "yes")
            .stdin(Stdio::null())
            .output()
            .expect("it is installed");
        assert!(
            output.status.success(),
            "{}: {}",
            self.peer.name,
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

/// Hashes every file with `b3sum`, if it is installed, in the way that is fastest for many small
/// files: without mapping them. True if it did.
pub fn b3sum(files: &[impl AsRef<Path>], path: &Path) -> bool {
    // As many names at once as any kernel takes.
    for files in files.chunks(5_000) {
        let status = Command::new("b3sum")
            .args(["--no-mmap", "--"])
            .args(files.iter().map(AsRef::as_ref))
            .current_dir(path)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .status();
        if !status.is_ok_and(|status| status.success()) {
            return false;
        }
    }
    true
}

/// Hashes every file as `b3sum --no-mmap` does: one after another, each read in order.
pub fn blake3(files: &[impl AsRef<Path>], path: &Path) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    for file in files {
        let mut file = File::open(path.join(file))?;
        let mut hasher = blake3::Hasher::new();
        loop {
            match file.read(&mut buffer)? {
                0 => break,
                n => hasher.update(&buffer[..n]),
            };
        }
        std::hint::black_box(hasher.finalize());
    }
    Ok(())
}

/// Looks for changes the way libgit2 does, with the user's index: how many there are.
pub fn libgit2_changes(path: &Path) -> usize {
    #[expect(
        clippy::disallowed_types,
        reason = "the ways that are measured are those that the product must not take"
    )]
    let count = || {
        let repository = git2::Repository::open(path)?;
        let mut options = git2::DiffOptions::new();
        options.include_untracked(true).recurse_untracked_dirs(true);
        let diff = repository.diff_index_to_workdir(None, Some(&mut options))?;
        Ok(diff.deltas().len())
    };
    let count: Result<usize, git2::Error> = count();
    count.expect("libgit2 can read the tree")
}

/// A tree of everything the way libgit2 makes one: an index in memory from HEAD, and `add_all`.
pub fn libgit2_tree(path: &Path) -> String {
    #[expect(
        clippy::disallowed_types,
        reason = "the ways that are measured are those that the product must not take"
    )]
    let tree = || {
        let repository = git2::Repository::open(path)?;
        let head = repository.head()?.peel_to_tree()?;
        let mut index = git2::Index::new()?;
        index.read_tree(&head)?;
        repository.set_index(&mut index)?;
        index.add_all(["*"], git2::IndexAddOption::DEFAULT, None)?;
        index.update_all(["*"], None)?;
        index.write_tree_to(&repository)
    };
    let tree: Result<git2::Oid, git2::Error> = tree();
    tree.expect("libgit2 can read the tree").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::git::git;
    use crate::tree::{TreeOptions, generate};

    #[test]
    fn libgit2_sees_what_git_sees() {
        let home = tempfile::tempdir().unwrap();
        let tree = generate(&home.path().join("r"), TreeOptions::new(60)).unwrap();
        let head = git(&tree.path, &["rev-parse", "HEAD^{tree}"]).unwrap();
        let head = String::from_utf8(head).unwrap();
        assert_eq!(libgit2_tree(&tree.path), head.trim());
        assert_eq!(libgit2_changes(&tree.path), 0);
        std::fs::write(tree.path.join("new"), "x").unwrap();
        std::fs::remove_file(tree.path.join(&tree.files[0])).unwrap();
        assert_eq!(libgit2_changes(&tree.path), 2);
        blake3(&tree.files[1..], &tree.path).unwrap();
        blake3(&tree.files, &tree.path).unwrap_err();
    }

    #[test]
    fn a_program_that_is_not_there_is_not_installed() {
        let [peer, ..] = FOR_CHANGES;
        let nobody = Peer {
            program: "stillframe-no-such-program",
            ..peer
        };
        assert!(!nobody.is_installed());
    }
}
