//! What is asked for on the command line.

use std::fs::File;
use std::path::PathBuf;

use rustix::fs::{FlockOperation, flock};

/// How the names of directories begin that are for one comparison alone.
const SCRATCH_PREFIX: &str = "scratch-";

pub(crate) const USAGE: &str = "\
usage: compare [--files N[,N...]] [--rounds N] [--only TEXT[,TEXT...]] [--quick] [--cold] [--no-usage]
               [--large MIB] [--trees DIR] [--write DIR]

  --files N,...   sizes of the repositories that are measured (default 100000)
  --rounds N      how often everything is measured; medians are shown (default 5)
  --only TEXT,... only the groups whose name contains a TEXT: capture, watched, many, diff, restore, hash,
                  task, worktree, tiny directories, one directory, large files, usage
  --quick         without others that take seconds: libgit2, restic, borg; above 200,000 files also without
                  git in the common way
  --cold          also without the page cache, where this user may drop it
  --no-usage      without peak memory and system calls
  --large MIB     the largest of the large files (default 128)
  --trees DIR     where repositories are made once, and found again (default stillframe-trees in TMPDIR)
  --write DIR     also write tables (Markdown) and pictures (SVG) there";

pub(crate) struct Options {
    pub(crate) files: Vec<usize>,
    pub(crate) rounds: usize,
    pub(crate) only: Vec<String>,
    pub(crate) quick: bool,
    pub(crate) cold: bool,
    pub(crate) usage: bool,
    pub(crate) large_mib: u64,
    pub(crate) trees: PathBuf,
    pub(crate) write: Option<PathBuf>,
}

impl Options {
    /// `None` where they make no sense.
    pub(crate) fn of(arguments: &[String]) -> Option<Self> {
        let mut options = Self {
            files: vec![100_000],
            rounds: 5,
            only: Vec::new(),
            quick: false,
            cold: false,
            usage: true,
            large_mib: 128,
            trees: std::env::temp_dir().join("stillframe-trees"),
            write: None,
        };
        let mut arguments = arguments.iter();
        while let Some(name) = arguments.next() {
            let mut value = || arguments.next();
            match name.as_str() {
                "--files" => {
                    // Fewer could not be changed in all the ways that are measured.
                    let sizes = value()?
                        .split(',')
                        .map(|n| n.parse().ok().filter(|n| *n >= 100));
                    options.files = sizes.collect::<Option<_>>()?;
                }
                "--rounds" => options.rounds = value()?.parse().ok().filter(|n| *n > 0)?,
                "--only" => options.only = value()?.split(',').map(str::to_owned).collect(),
                "--quick" => options.quick = true,
                "--cold" => options.cold = true,
                "--no-usage" => options.usage = false,
                "--large" => options.large_mib = value()?.parse().ok().filter(|n| *n > 0)?,
                "--trees" => options.trees = value()?.into(),
                "--write" => options.write = Some(value()?.into()),
                _ => return None,
            }
        }
        Some(options)
    }

    pub(crate) fn wants(&self, group: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| group.contains(only.as_str()))
    }

    /// Keeps others from changing the same trees while the answer lives. What a comparison that was
    /// killed left beside them goes: it is as large as they are.
    pub(crate) fn lock_trees(&self) -> File {
        std::fs::create_dir_all(&self.trees).expect("the directory of trees can be made");
        let lock = File::create(self.trees.join("lock")).expect("it can be written to");
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .expect("nobody else measures on these trees; --trees names others");
        let found = std::fs::read_dir(&self.trees).expect("it was just made");
        for entry in found.flatten() {
            let name = entry.file_name();
            if name.to_string_lossy().starts_with(SCRATCH_PREFIX) {
                std::fs::remove_dir_all(entry.path()).expect("what was left can be removed");
            }
        }
        lock
    }

    /// A directory beside the trees, for as long as the answer lives.
    pub(crate) fn scratch(&self) -> tempfile::TempDir {
        let made = tempfile::Builder::new()
            .prefix(SCRATCH_PREFIX)
            .tempdir_in(&self.trees);
        made.expect("a directory")
    }
}
