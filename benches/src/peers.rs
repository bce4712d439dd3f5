//! Other ways to know what changed, for those who have the programs.

use std::path::Path;
use std::process::{Command, Stdio};

/// A program that is measured where it is installed.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// How it is called in tables.
    pub name: &'static str,
    program: &'static str,
    prepare: &'static [&'static [&'static str]],
    measured: &'static [&'static str],
}

/// Programs that look for changes in a repository of git's. `{scratch}` is a directory of theirs.
pub const FOR_CHANGES: [Peer; 4] = [
    Peer {
        name: "gix status",
        program: "gix",
        prepare: &[],
        measured: &["status"],
    },
    Peer {
        name: "jj util snapshot",
        program: "jj",
        prepare: &[&["git", "init", "--colocate"]],
        measured: &["util", "snapshot"],
    },
    Peer {
        name: "restic backup",
        program: "restic",
        prepare: &[&[
            "--insecure-no-password",
            "--repo",
            "{scratch}/restic",
            "init",
        ]],
        measured: &[
            "--insecure-no-password",
            "--repo",
            "{scratch}/restic",
            "backup",
            ".",
        ],
    },
    Peer {
        name: "borg create",
        program: "borg",
        prepare: &[&["init", "--encryption", "none", "{scratch}/borg"]],
        measured: &["create", "{scratch}/borg::{now}", "."],
    },
];

impl Peer {
    /// Whether the program is there.
    pub fn is_installed(&self) -> bool {
        Command::new(self.program)
            .arg("--version")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    }

    /// Makes what it needs in `scratch`, and lets it see `path` once.
    pub fn prepare(&self, path: &Path, scratch: &Path) {
        for arguments in self.prepare {
            self.run_with(arguments, path, scratch);
        }
        self.run(path, scratch);
    }

    /// Does what is measured.
    pub fn run(&self, path: &Path, scratch: &Path) {
        self.run_with(self.measured, path, scratch);
    }

    fn run_with(&self, arguments: &[&str], path: &Path, scratch: &Path) {
        let scratch = scratch.to_str().expect("made by us");
        let now = jiff::Timestamp::now().as_nanosecond().to_string();
        let arguments = arguments
            .iter()
            .map(|a| a.replace("{scratch}", scratch).replace("{now}", &now));
        let output = Command::new(self.program)
            .args(arguments)
            .current_dir(path)
            .stdin(Stdio::null())
            .output()
            .expect("it is installed");
        assert!(
            output.status.success(),
            "{}: {}",
            self.name,
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
