//! A repository, and everybody who looks at it.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Instant;

use stillframe_backends::{Snapshot, Strategy};
use stillframe_benches::case::{FLOOR, OURS};
use stillframe_benches::peers::{FOR_CHANGES, Peer, Prepared};
use stillframe_benches::{
    Changes, GitPeer, Mutation, Shape, Stillframe, Times, Tree, TreeOptions, Used, Way, Work,
    floor, mutate, standing,
};

use crate::options::Options;
use crate::tasks::TaskGround;

/// How many threads a walk of Stillframe's has at least that waits for the disk.
const WALK_THREADS: usize = 16;

/// The most files of a repository that is not like source trees.
const MAX_FILES_OF_A_SHAPE: usize = 100_000;

pub(crate) struct Ground<'o> {
    pub(crate) options: &'o Options,
    pub(crate) title: String,
    /// What tells its files from others' in the directory of results.
    pub(crate) suffix: &'static str,
    pub(crate) shape: Shape,
    pub(crate) times: Times,
    pub(crate) used: Vec<Used>,
    pub(crate) site: Site,
    prepared: BTreeMap<&'static str, Prepared>,
    pub(crate) tasks: Option<TaskGround>,
}

/// Who does the work that is measured, and where.
pub(crate) struct Site {
    pub(crate) tree: Tree,
    pub(crate) git: GitPeer,
    /// The handle that stays, with its memory.
    pub(crate) living: Stillframe,
    pub(crate) scratch: tempfile::TempDir,
    pub(crate) cores: usize,
    nonce: Cell<u64>,
}

/// Whether the kernel has seen the files before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cache {
    Warm,
    Cold,
}

impl Cache {
    pub(crate) fn name(self, case: &str) -> String {
        match self {
            Self::Warm => case.to_owned(),
            Self::Cold => format!("{case}, cold"),
        }
    }
}

/// Drops the page cache; false where this user may not.
pub(crate) fn drop_caches() -> bool {
    rustix::fs::sync();
    std::fs::write("/proc/sys/vm/drop_caches", "3").is_ok()
}

impl<'o> Ground<'o> {
    pub(crate) fn new(shape: Shape, files: usize, options: &'o Options) -> Self {
        let (files, suffix) = match shape {
            Shape::Mixed => (files, ""),
            Shape::TinyDirectories => (files.min(MAX_FILES_OF_A_SHAPE), "-tiny-directories"),
            Shape::OneDirectory => (files.min(MAX_FILES_OF_A_SHAPE), "-one-directory"),
        };
        let title = match shape {
            Shape::Mixed => format!("{files} files"),
            Shape::TinyDirectories => format!("{files} directories with one file each"),
            Shape::OneDirectory => format!("one directory with {files} files"),
        };
        Self::with(shape, files, title, suffix, options)
    }

    pub(crate) fn for_large_files(options: &'o Options) -> Self {
        let title = "large files".to_owned();
        Self::with(Shape::Mixed, 100, title, "-large-files", options)
    }

    fn with(
        shape: Shape,
        files: usize,
        title: String,
        suffix: &'static str,
        options: &'o Options,
    ) -> Self {
        eprintln!("making ready: {title}");
        let tree = TreeOptions {
            shape,
            ..TreeOptions::new(files)
        };
        let tree = standing(&options.trees, tree).expect("the repository can be made");
        let scratch = options.scratch();
        let site = Site {
            git: GitPeer::new(&tree.path, scratch.path()),
            living: Stillframe::open(&tree.path, &scratch.path().join("living")),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            nonce: Cell::new(u64::from(std::process::id()) << 32),
            tree,
            scratch,
        };
        Self {
            options,
            title,
            suffix,
            shape,
            times: Times::default(),
            used: Vec::new(),
            site,
            prepared: BTreeMap::new(),
            tasks: None,
        }
    }

    /// Measures `work` as a subject of several cases, which differ only in what of ours is
    /// measured.
    pub(crate) fn take<T>(
        &mut self,
        cases: &[&str],
        subject: &str,
        cache: Cache,
        work: impl FnOnce(&Site) -> T,
    ) -> T {
        self.site.settle(cache);
        let started = Instant::now();
        let answer = work(&self.site);
        let time = started.elapsed();
        for case in cases {
            self.times.add(case, subject, time);
        }
        answer
    }

    /// Measures a capture of ours.
    pub(crate) fn ours(
        &mut self,
        case: &str,
        cache: Cache,
        work: impl FnOnce(&Site) -> Snapshot,
    ) -> Snapshot {
        let snapshot = self.take(&[case], OURS, cache, work);
        let did = Work {
            files_hashed: snapshot.metadata.files_hashed,
            bytes_read: snapshot.metadata.bytes_read,
        };
        self.times.did(case, OURS, did);
        snapshot
    }

    /// Measures the floor with a thread for each core, and with as many as a walk of ours has.
    pub(crate) fn floors(&mut self, cases: &[&str], cache: Cache) {
        let cores = self.site.cores;
        let mut threads = vec![cores, cores.max(WALK_THREADS)];
        threads.dedup();
        for threads in threads {
            let subject = format!("{FLOOR}, {threads} threads");
            self.take(cases, &subject, cache, |site| {
                floor(&site.tree.path, threads, false).expect("it can be read")
            });
        }
    }

    /// Measures programs that may be installed, and says which are not.
    pub(crate) fn others(&mut self, cases: &[&str], wanted: impl Fn(&Peer) -> bool) {
        for peer in FOR_CHANGES.into_iter().filter(wanted) {
            let why_not = match peer {
                peer if !peer.is_installed() => Some("not installed"),
                peer if peer.is_slow && self.options.quick => Some("left out by --quick"),
                _ => None,
            };
            if let Some(why_not) = why_not {
                for case in cases {
                    self.times.absent(case, peer.name, why_not);
                }
                continue;
            }
            let prepared = self.prepared.remove(peer.name).unwrap_or_else(|| {
                let scratch = self.site.scratch.path().join(peer.name.replace(' ', "-"));
                std::fs::create_dir_all(&scratch).expect("a directory");
                peer.prepare(&self.site.tree.path, &scratch)
            });
            self.take(cases, peer.name, Cache::Warm, |_| prepared.run());
            self.prepared.insert(peer.name, prepared);
        }
    }
}

impl Site {
    /// Changes files in a way that was never seen before.
    pub(crate) fn mutate(&self, changes: Changes) -> Mutation {
        mutate(&self.tree, self.next_nonce(), changes).expect("the tree can be changed")
    }

    /// Makes things alike for everybody: what was written before is on the disk, so that nobody who
    /// syncs pays for another, and the page cache is as the case wants it.
    pub(crate) fn settle(&self, cache: Cache) {
        let directory = File::open(self.scratch.path()).expect("it is there");
        rustix::fs::syncfs(&directory).expect("the disk takes it");
        if cache == Cache::Cold {
            assert!(drop_caches(), "it could be dropped at the start");
        }
    }

    /// Has everything below `path` in the page cache: a kernel may let go of what nobody has read
    /// for some seconds, and whoever comes first would pay for all.
    pub(crate) fn warm(&self, path: &Path) {
        floor(path, self.cores, true).expect("it can be read");
    }

    /// A number that was not given before.
    pub(crate) fn next_nonce(&self) -> u64 {
        self.nonce.set(self.nonce.get() + 1);
        self.nonce.get()
    }

    /// A capture by a new handle, which finds what the last one left on the disk.
    pub(crate) fn fresh(&self) -> Snapshot {
        Stillframe::open(&self.tree.path, &self.state("fresh")).snapshot()
    }

    /// A capture by somebody who has never been here.
    pub(crate) fn first(&self, strategy: Strategy) -> Snapshot {
        let state = self.state(&format!("first-{}", self.next_nonce()));
        Stillframe::open_with(&self.tree.path, &state, strategy).snapshot()
    }

    pub(crate) fn state(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Lets everybody who remembers see the tree as it is.
    pub(crate) fn sync(&self) {
        self.living.snapshot();
        self.fresh();
        self.git.tree(Way::Persistent);
    }
}
