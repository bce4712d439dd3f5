//! Walking a workspace: every path is captured or omitted with a reason.
//!
//! Directories are read in parallel, and each is merged with what the last capture saw of it. Only
//! changed files are read. A walk writes nothing, follows no link and waits for no FIFO.
//!
//! If a watch says what may have changed, only that is looked at, and the rest is taken from the
//! last capture.

mod absent;
mod building;
mod found;
mod reader;
mod seeds;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, RawDir, SeekFrom};
use rustix::io::Errno;

use crate::area;
use crate::bulk::Bulk;
use crate::clock::Clock;
use crate::coverage::{Omission, OmissionReason};
use crate::descriptor::{self, Stat};
use crate::error::PathError;
use crate::memory::Scope;
use crate::operation::Operation;
use crate::parallel;
use crate::path::RelPath;
use crate::progress::Progress;
use crate::read::{self, ContentSink, Reading, SinkError};
use crate::root::Root;
use crate::search::WalkReason;
use crate::snapshot_error::SnapshotError;
use crate::stat_cache::{
    CachedDirectory, CachedEntry, Delta, EntryStat, Flags, NameList, StatCache, is_racy,
    kind_of_mode,
};
use crate::tree::{ContentId, Entry, EntryKind};
use crate::watch::{Look, Pending, Watch};

pub use found::Link;
pub use seeds::Seeds;

use building::Building;
use found::Found;
use reader::{Reader, Visit};

/// The deepest directory that is entered. Deeper ones are a mistake or an attack, and each costs a
/// path as long as all names above it.
const MAX_DEPTH: u64 = 4096;

/// How many threads walk where the disk has to be waited for, whatever the number of cores.
const MIN_WAITING_THREADS: usize = 16;

/// A directory that takes longer may have waited for the disk. If not, it was large, or the machine
/// is busy, and what further threads cost is little beside it. To read one of thirty files from a
/// warm cache takes a twentieth.
const SLOW: Duration = Duration::from_millis(1);

/// For fewer directories no further threads are started.
const MIN_SHARED_JOBS: usize = 3;

/// How often a directory or file is looked at again when something else has taken its place.
const TRIES: u32 = 3;

/// What a backend decides about names while its workspace is walked.
pub trait Rules: Sync {
    /// What is known about the rules in one directory; shared with the directories below.
    type Scope: Send + Sync;

    /// Prepares for the directory `path`, which lies in the directory of `above`, and of which
    /// `has` tells whether it may hold a name.
    fn enter(
        &self,
        above: Option<&Arc<Self::Scope>>,
        path: &RelPath,
        has: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Arc<Self::Scope>, SnapshotError>;

    /// Whether the path is the repository's own and no part of the workspace: it is neither
    /// captured nor omitted.
    fn is_own(&self, path: &RelPath) -> bool;

    /// Decides about an entry that the index does not have; for a directory: has nothing below.
    fn judge(
        &self,
        scope: &Self::Scope,
        path: &RelPath,
        is_directory: bool,
    ) -> Result<Verdict, SnapshotError>;

    /// The reason to omit anything of this name, whatever the index says.
    fn forbids(&self, name: &[u8], is_directory: bool) -> Option<OmissionReason>;

    /// Whether files of this name hold rules.
    fn are_in(&self, name: &[u8]) -> bool;

    /// Whether the index's id for an unchanged file is the id of its raw bytes.
    fn adopts(&self, scope: &Self::Scope, path: &RelPath) -> Result<bool, SnapshotError>;
}

/// What becomes of a name that only the worktree has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It belongs to the capture.
    Capture,
    /// It is left out.
    Omit(OmissionReason),
}

/// Lists an open directory.
fn list(fd: &OwnedFd) -> rustix::io::Result<NameList> {
    let mut space = [const { MaybeUninit::<u8>::uninit() }; 64 * 1024];
    let mut listing = RawDir::new(fd, &mut space);
    // What most directories need, taken at once.
    let (mut bytes, mut spans) = (Vec::with_capacity(1024), Vec::with_capacity(64));
    let at = |bytes: &Vec<u8>| u32::try_from(bytes.len()).map_err(|_| Errno::OVERFLOW);
    while let Some(entry) = listing.next() {
        if seeded_bug!("list-error-is-end") && entry.is_err() {
            break;
        }
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            let start = at(&bytes)?;
            bytes.extend_from_slice(name);
            spans.push((start, at(&bytes)?));
        }
    }
    Ok(NameList::sorted(&bytes, &mut spans))
}

/// Lists an open directory that had these times before. A name that is given to something else, or
/// moved, while the list is read may be in it under neither its old nor its new name (readdir(3)
/// leaves that open), so a directory that changed meanwhile is listed again.
fn list_undisturbed(fd: &OwnedFd, times: EntryStat) -> rustix::io::Result<NameList> {
    let mut before = times;
    for _ in 1..TRIES {
        let names = list(fd)?;
        let after = EntryStat::of(&descriptor::fstat(fd)?);
        if (after.mtime_ns, after.ctime_ns) == (before.mtime_ns, before.ctime_ns) {
            return Ok(names);
        }
        before = after;
        rustix::fs::seek(fd, SeekFrom::Start(0))?;
    }
    list(fd)
}

/// The options of a walk.
#[derive(Clone, Copy)]
pub struct WalkOptions<'a> {
    /// What the last capture saw.
    pub cache: &'a StatCache,
    /// A part of the cache that is dropped during the walk, for a walk that looks everywhere.
    pub seeds: &'a Seeds,
    /// Directories of the cache that did not exist.
    pub absent: &'a BTreeSet<RelPath>,
    /// Where to look; `None`: everywhere.
    pub only: Option<ChangedOnly<'a>>,
    /// Told of every directory before it is read.
    pub watch: Option<&'a Watch>,
    /// Untracked files larger than this are omitted; zero: no limit.
    pub max_untracked_file_bytes: u64,
    /// More captured files and links than this fail the walk; zero: no limit. Those that are not
    /// looked at do not count.
    pub max_files: u64,
    /// What the walk is part of.
    pub op: &'a Operation,
    /// Told how far it has come.
    pub progress: Option<&'a (dyn Fn(Progress) + Send + Sync)>,
    /// Content that is omitted wherever it is found.
    pub is_purged: &'a (dyn Fn(&ContentId) -> bool + Sync),
}

/// Where a walk looks when it looks only at what may have changed, and what the last capture left
/// out.
#[derive(Clone, Copy)]
pub struct ChangedOnly<'a> {
    /// What tells of changes.
    pub watch: &'a Watch,
    /// Where something may have changed.
    pub pending: &'a Pending,
    /// What the last capture left out.
    pub omissions: &'a Omissions,
}

/// What was left out, by path.
pub type Omissions = BTreeMap<RelPath, Omission>;

/// What a walk found.
pub struct Walked {
    /// What differs from the cache, be it only what is remembered about a file.
    pub delta: Delta,
    /// All of them, those that the walk did not look at included.
    pub omissions: Omissions,
    /// Tracked files whose content is no longer what the index names, with that id.
    pub left_index: Vec<(RelPath, ContentId)>,
    /// Paths of a sparse checkout that were captured as something else than what the index has,
    /// with that.
    pub not_left_out: Vec<(RelPath, Entry)>,
    /// The ids of files that were taken from git's index, so that their objects have to be
    /// borrowed.
    pub adopted: Vec<[u8; 20]>,
    /// The captured names of files that have several, those outside of the workspace counted. A
    /// watch has all of these looked at always.
    pub links: Vec<Link>,
    /// Files and links read and hashed.
    pub files_hashed: u64,
    /// Bytes of content read.
    pub bytes_read: u64,
    /// Whether a file with several names was seen that the watch did not know. What is written
    /// through one of them is reported under that name alone, so all have to be found: by a walk
    /// that looks everywhere.
    has_new_link: bool,
    /// Whether a file with several names was seen that got one while the walk was under way:
    /// another of its names may have been looked at before that.
    has_fresh_link: bool,
}

/// Walks the workspace where `scope` says, or everywhere if what is found there asks for it.
pub fn search<R: Rules>(
    root: &Root,
    rules: &R,
    sink: &dyn ContentSink,
    scope: &mut Scope,
    options: WalkOptions<'_>,
) -> Result<Walked, SnapshotError> {
    let walk = |scope: &Scope| {
        let options = WalkOptions {
            only: scope.only(),
            watch: scope.watch(),
            ..options
        };
        let walked = walk(root, rules, sink, &options);
        let is_unknown = |walked: &Walked| options.only.is_none() && walked.has_fresh_link;
        if let Some(watch) = options.watch
            && walked.as_ref().map_or(true, is_unknown)
        {
            // What it learned of files with several names is lost, or not all there is.
            watch.give_up(WalkReason::HardLink);
        }
        walked
    };
    let walked = walk(scope)?;
    if !walked.has_new_link || scope.only().is_none() {
        return Ok(walked);
    }
    scope.widen(WalkReason::HardLink);
    walk(scope)
}

/// Walks the workspace.
fn walk<R: Rules>(
    root: &Root,
    rules: &R,
    sink: &dyn ContentSink,
    options: &WalkOptions<'_>,
) -> Result<Walked, SnapshotError> {
    walk_waiting(root, rules, sink, options, SLOW)
}

/// Walks the workspace with further threads once a directory took longer than `slow`.
fn walk_waiting<R: Rules>(
    root: &Root,
    rules: &R,
    sink: &dyn ContentSink,
    options: &WalkOptions<'_>,
    slow: Duration,
) -> Result<Walked, SnapshotError> {
    let op = options.op;
    let walker = Walker::new(root, rules, sink, options, slow)?;
    let mut found = Bulk::new(op, walker.run());
    if let Some(failure) = lock(&walker.queue).failure.take() {
        return Err(failure);
    }
    if !root.is_in_place() {
        return Err(SnapshotError::Unreadable {
            context: "the workspace was moved or unmounted while it was read".to_owned(),
            source: PathError::at("find", root.disk_path(&RelPath::root()))(Errno::NOENT),
        });
    }
    // Where another directory has taken the place of one meanwhile, what was read as a whole
    // counts.
    let anew: HashSet<RelPath> = found.anew.iter().cloned().collect();
    op.check()?;
    found.partly.retain(|path, _| !anew.contains(path));
    found.gone.retain(|path| !anew.contains(path));
    let mut delta = Bulk::new(
        op,
        Delta {
            directories: std::mem::take(&mut found.directories),
            removed: HashSet::new(),
        },
    );
    delta.directories.extend(std::mem::take(&mut found.partly));
    op.check()?;
    let (unseen, absent);
    let (before, absent) = match options.seeds.is_empty() {
        true => (&options.cache.directories, options.absent),
        false => {
            unseen = options.seeds.with_unseen(&options.cache.directories);
            absent = unseen.keys().cloned().collect();
            (&unseen, &absent)
        }
    };
    absent::remove_gone(&mut delta, before, std::mem::take(&mut found.gone));
    op.check()?;
    let mut omissions = match options.only {
        None => Omissions::new(),
        Some(changed) => still_omitted(changed, &found.anew, &delta),
    };
    add_omissions(&mut omissions, &mut found);
    absent::remember(
        &mut delta,
        options.cache,
        before,
        absent,
        &omissions,
        &mut found,
    );
    add_omissions(&mut omissions, &mut found);
    op.check()?;
    if let Some(watch) = options.watch {
        for path in &delta.removed {
            watch.forget(path);
        }
        if options.only.is_none() {
            look_at_held(watch, &delta, options.cache);
        }
    }
    Ok(Walked {
        delta: delta.into_inner(),
        omissions,
        left_index: std::mem::take(&mut found.left_index),
        not_left_out: std::mem::take(&mut found.not_left_out),
        adopted: std::mem::take(&mut found.adopted),
        links: std::mem::take(&mut found.links),
        files_hashed: walker.files_hashed.into_inner(),
        bytes_read: walker.bytes_read.into_inner(),
        has_new_link: walker.has_new_link.into_inner(),
        has_fresh_link: walker.has_fresh_link.into_inner(),
    })
}

/// Has the files looked at always that a process had open when the watch began.
fn look_at_held(watch: &Watch, delta: &Delta, cache: &StatCache) {
    let held = watch.held_inodes();
    if held.is_empty() {
        return;
    }
    for (path, directory) in delta.iter(&cache.directories) {
        for (name, entry) in directory.entries.iter() {
            let inode = entry.stat.inode;
            if entry.kind != EntryKind::Symlink && held.contains(&inode) {
                watch.look_at_held(path, name);
            }
        }
    }
}

/// Of several for one path the first counts.
fn add_omissions(omissions: &mut Omissions, found: &mut Found) {
    for omission in found.omissions.drain(..) {
        omissions.entry(omission.path.clone()).or_insert(omission);
    }
}

/// What the last capture left out, and this one did not look at.
fn still_omitted(changed: ChangedOnly<'_>, anew: &[RelPath], delta: &Delta) -> Omissions {
    if changed.omissions.is_empty() {
        return Omissions::new();
    }
    let anew: HashSet<&RelPath> = anew.iter().chain(&delta.removed).collect();
    let is_looked_at = |path: &RelPath| {
        let mut at = path.parent();
        match at.as_ref().and_then(|above| changed.pending.get(above)) {
            Some(Look::All) => return true,
            Some(Look::Names(names)) if names.contains(path.name()) => return true,
            _ => {}
        }
        if anew.is_empty() {
            return false;
        }
        while let Some(above) = at {
            if anew.contains(&above) {
                return true;
            }
            at = above.parent();
        }
        false
    };
    let still = changed.omissions.iter();
    still
        .filter(|(path, _)| !is_looked_at(path))
        .map(|(path, omission)| (path.clone(), omission.clone()))
        .collect()
}

/// Every directory with a tracked path in one below it that is not there.
fn above_absent(options: &WalkOptions<'_>) -> HashSet<RelPath> {
    let mut above = HashSet::new();
    let mut add = |path: &RelPath, directory: &CachedDirectory| {
        let mut at = directory.has_tracked().then(|| path.clone());
        while let Some(path) = at {
            at = match above.contains(path.parent_bytes()) {
                true => None,
                false => path.parent(),
            };
            above.insert(path);
        }
    };
    for path in options.absent {
        if let Some(directory) = options.cache.directories.get(path) {
            add(path, directory);
        }
    }
    options.seeds.each(add);
    above
}

/// The directories to begin with.
fn first_jobs<R: Rules>(
    rules: &R,
    options: &WalkOptions<'_>,
) -> Result<Vec<Job<R::Scope>>, SnapshotError> {
    let Some(ChangedOnly { watch, pending, .. }) = options.only else {
        return Ok(vec![Job::root()]);
    };
    let mut scopes = HashMap::new();
    let mut jobs = Vec::new();
    for (path, look) in pending {
        // What is not watched any more is found from the directory above it, if it is there.
        if !path.is_root() && !watch.watches(path) {
            continue;
        }
        let above = match path.parent() {
            Some(above) => Some(scope_of(rules, options.cache, &mut scopes, &above)?),
            None => None,
        };
        jobs.push(Job {
            path: path.clone(),
            depth: path.names().count() as u64,
            above,
            extent: Extent::Part(look.clone()),
        });
    }
    Ok(jobs)
}

/// The rules in a directory that is not looked at.
fn scope_of<R: Rules>(
    rules: &R,
    cache: &StatCache,
    scopes: &mut HashMap<RelPath, Arc<R::Scope>>,
    path: &RelPath,
) -> Result<Arc<R::Scope>, SnapshotError> {
    let mut missing = Vec::new();
    let mut at = Some(path.clone());
    let mut scope = None;
    while let Some(path) = at {
        scope = scopes.get(&path).cloned();
        if scope.is_some() {
            break;
        }
        at = path.parent();
        missing.push(path);
    }
    for path in missing.into_iter().rev() {
        let cached = cache.directories.get(&path);
        let has = |name: &[u8]| cached.is_none_or(|cached| cached.may_have(name));
        let entered = rules.enter(scope.as_ref(), &path, &has)?;
        scopes.insert(path, Arc::clone(&entered));
        scope = Some(entered);
    }
    Ok(scope.expect("the path itself was missing, or known"))
}

struct Walker<'a, R: Rules> {
    root: &'a Root,
    rules: &'a R,
    sink: &'a dyn ContentSink,
    options: &'a WalkOptions<'a>,
    clock: Clock,
    /// The directories with a tracked path in one that is not there.
    above_absent: HashSet<RelPath>,
    /// Whether directories that were asked for have a tracked path at any depth.
    tracked: Mutex<HashMap<RelPath, bool>>,
    queue: Mutex<Queue<R::Scope>>,
    wake: Condvar,
    /// Set once the walk has failed, so that the other threads stop reading.
    is_stopping: AtomicBool,
    /// Whether a directory took so long that the disk may have to be waited for.
    /// A directory that takes longer may have waited for the disk.
    slow: Duration,
    is_slow: AtomicBool,
    /// Whether a directory is being looked at on every core.
    is_sharing: AtomicBool,
    entries: AtomicU64,
    files: AtomicU64,
    bytes_read: AtomicU64,
    files_hashed: AtomicU64,
    /// Whether a file with several names was seen that the watch did not know.
    has_new_link: AtomicBool,
    has_fresh_link: AtomicBool,
}

/// The directories still to be read. The last one found is read first: its parent's inode is warm,
/// and the queue stays as short as the tree is deep.
struct Queue<S> {
    jobs: Vec<Job<S>>,
    /// How many threads have a job.
    active: usize,
    /// How many wait for one.
    waiting: usize,
    failure: Option<SnapshotError>,
}

struct Job<S> {
    path: RelPath,
    depth: u64,
    above: Option<Arc<S>>,
    extent: Extent,
}

/// How much of a directory to look at.
enum Extent {
    /// All of it, and of what is below.
    Whole,
    /// What changed in it; of the directories in it, those that are not watched.
    Part(Look),
}

impl<S> Job<S> {
    fn root() -> Self {
        Self {
            path: RelPath::root(),
            depth: 0,
            above: None,
            extent: Extent::Whole,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // A panic in one worker ends the walk; what the others still see of the queue is whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'a, R: Rules> Walker<'a, R> {
    fn new(
        root: &'a Root,
        rules: &'a R,
        sink: &'a dyn ContentSink,
        options: &'a WalkOptions<'a>,
        slow: Duration,
    ) -> Result<Self, SnapshotError> {
        Ok(Self {
            root,
            rules,
            sink,
            options,
            clock: Clock::of(root),
            above_absent: above_absent(options),
            tracked: Mutex::default(),
            queue: Mutex::new(Queue {
                jobs: first_jobs(rules, options)?,
                active: 0,
                waiting: 0,
                failure: None,
            }),
            wake: Condvar::new(),
            is_stopping: AtomicBool::new(false),
            slow,
            is_slow: AtomicBool::new(false),
            is_sharing: AtomicBool::new(false),
            entries: AtomicU64::new(0),
            files: AtomicU64::new(0),
            bytes_read: AtomicU64::new(0),
            files_hashed: AtomicU64::new(0),
            has_new_link: AtomicBool::new(false),
            has_fresh_link: AtomicBool::new(false),
        })
    }
}

impl<R: Rules> Walker<'_, R> {
    /// Reads all directories, with the help of other threads as soon as there is enough to do.
    fn run(&self) -> Found {
        let work = || {
            let mut found = Found::default();
            while let Some(job) = self.next() {
                self.take(&job, &mut found);
            }
            found
        };
        std::thread::scope(|scope| {
            let mut helpers = Vec::new();
            let mut most = usize::MAX;
            let mut found = Found::default();
            while let Some(job) = self.next() {
                let wanted = self.threads().min(most);
                if wanted > helpers.len() + 1 && lock(&self.queue).jobs.len() >= MIN_SHARED_JOBS {
                    helpers.extend((helpers.len() + 1..wanted).map_while(|_| {
                        let helper = std::thread::Builder::new();
                        helper.spawn_scoped(scope, work).ok()
                    }));
                    if helpers.len() + 1 < wanted {
                        // A machine that gives fewer threads gets its walk all the same.
                        most = helpers.len() + 1;
                    }
                }
                self.take(&job, &mut found);
            }
            for helper in helpers {
                match helper.join() {
                    Ok(part) => found.absorb(part),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            found
        })
    }

    /// How many threads are to walk, as far as is known by now.
    fn threads(&self) -> usize {
        let cores = parallel::cores();
        // What has just been written waits for no disk.
        let may_wait = self.options.only.is_none();
        match may_wait && self.is_slow.load(Ordering::Relaxed) {
            true => cores.max(MIN_WAITING_THREADS),
            false => cores,
        }
    }

    /// Does a job, and leaves the new jobs that it finds to free threads.
    fn take(&self, job: &Job<R::Scope>, found: &mut Found) {
        let _at_work = AtWork { walker: self };
        let started = Instant::now();
        let result = self.visit(job, found);
        if started.elapsed() > self.slow {
            self.is_slow.store(true, Ordering::Relaxed);
        }
        let mut queue = lock(&self.queue);
        match result {
            Ok(jobs) => queue.jobs.extend(jobs),
            Err(error) => {
                queue.failure.get_or_insert(error);
                self.is_stopping.store(true, Ordering::Relaxed);
            }
        }
    }

    /// The next directory to read; `None` once there can be no other.
    fn next(&self) -> Option<Job<R::Scope>> {
        let mut queue = lock(&self.queue);
        loop {
            if self.is_stopping.load(Ordering::Relaxed) {
                return None;
            }
            if let Some(job) = queue.jobs.pop() {
                queue.active += 1;
                return Some(job);
            }
            if queue.active == 0 {
                return None;
            }
            queue.waiting += 1;
            queue = self
                .wake
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
            queue.waiting -= 1;
        }
    }

    /// Captures the directory of a job, and answers with the jobs of those in it.
    fn visit(
        &self,
        job: &Job<R::Scope>,
        found: &mut Found,
    ) -> Result<Vec<Job<R::Scope>>, SnapshotError> {
        self.options.op.check()?;
        if job.depth > MAX_DEPTH {
            return Err(SnapshotError::LimitExceeded {
                what: format!("the depth of {}", shortened(&job.path)),
                limit: MAX_DEPTH,
                actual: job.depth,
            });
        }
        for _ in 0..TRIES {
            let Some(fd) = self.open(job, found)? else {
                found.gone.push(job.path.clone());
                return Ok(Vec::new());
            };
            let mut part = Found::default();
            let seed = self.options.seeds.get(&job.path);
            let known = self.options.cache.directories.get(&job.path);
            let known = seed.as_ref().or(known);
            let (mut directory, jobs) = match self.read(job, &fd, known, &mut part)? {
                Some(read) => read,
                None => continue,
            };
            // What was read through the descriptor counts only if it was the workspace's: a
            // directory can be moved elsewhere, and change there, while it is open.
            if part.has_read && !self.is_in_place(&job.path, &fd)? {
                continue;
            }
            self.report(part.looked_at);
            self.admit(&directory)?;
            found.absorb(part);
            if known.is_none_or(|known| !Arc::ptr_eq(known, &directory)) {
                if let Some(seed) = seed {
                    drop(seed);
                    self.options.seeds.let_go(&job.path, &mut directory);
                }
                match job.extent {
                    Extent::Whole => found.directories.insert(job.path.clone(), directory),
                    Extent::Part(_) => found.partly.insert(job.path.clone(), directory),
                };
            }
            if self.options.only.is_some() && matches!(job.extent, Extent::Whole) {
                found.anew.push(job.path.clone());
            }
            return Ok(jobs);
        }
        found.omit(job.path.clone(), OmissionReason::Unstable, None);
        found.gone.push(job.path.clone());
        Ok(Vec::new())
    }

    /// Reads an open directory, of which the cache has `cached`; `None` if it was removed
    /// meanwhile.
    fn read(
        &self,
        job: &Job<R::Scope>,
        fd: &OwnedFd,
        cached: Option<&Arc<CachedDirectory>>,
        found: &mut Found,
    ) -> Result<Option<Read<R::Scope>>, SnapshotError> {
        if let Some(watch) = self.options.watch
            && matches!(job.extent, Extent::Whole)
        {
            // Before anything is looked at, so that no change falls between the look and the watch.
            // One that is looked at in part is watched; if another has taken its place that is
            // told.
            watch.add(&job.path, fd.as_fd());
        }
        // Before the look, and that before the list: what changes after it has a later time.
        let looked_ns = self.clock.now_ns();
        let stat = descriptor::fstat(fd).map_err(|e| self.unreadable(&job.path, "look at", e))?;
        let times = EntryStat::of(&stat);
        let others = cached.and_then(|cached| cached.others_at(&times));
        let others = others.filter(|_| self.clock.keeps_directory_times);
        let mut directory = Building::new(cached, false, stat.permissions());
        let reader = Reader {
            walker: self,
            job,
            fd: fd.as_fd(),
            cached,
        };
        let there = cached.filter(|cached| !cached.is_absent);
        if let (Extent::Part(Look::Names(names)), Some(cached)) = (&job.extent, there) {
            let jobs = reader.some(cached, names, others, &mut directory, found)?;
            // What proved the names that it had before still proves them; nothing proves new ones,
            // as others may have come since the watch was asked.
            return Ok(Some((directory.finish(others.map(|_| &stat)), jobs)));
        }
        let jobs = match (cached, others) {
            (Some(cached), Some(others)) => reader.known(cached, others, &mut directory, found)?,
            _ => match list_undisturbed(fd, times) {
                Ok(names) => reader.listed(&names, &mut directory, found)?,
                // What the kernel says of a directory that was removed while it is open.
                Err(Errno::NOENT) if !job.path.is_root() => return Ok(None),
                Err(errno) => return Err(self.unreadable(&job.path, "list", errno)),
            },
        };
        let is_proof = self.clock.keeps_directory_times && !is_racy(&times, looked_ns);
        Ok(Some((directory.finish(is_proof.then_some(&stat)), jobs)))
    }

    /// Whether the path still leads to the open directory.
    fn is_in_place(&self, path: &RelPath, fd: &OwnedFd) -> Result<bool, SnapshotError> {
        let failed = |errno| self.unreadable(path, "find", errno);
        let there = match self.root.open_directory(path) {
            Ok(there) => descriptor::fstat(there).map_err(failed)?,
            Err(
                Errno::NOENT
                | Errno::NOTDIR
                | Errno::LOOP
                | Errno::XDEV
                | Errno::ACCESS
                | Errno::PERM,
            ) => return Ok(false),
            Err(errno) => return Err(failed(errno)),
        };
        let here = descriptor::fstat(fd).map_err(failed)?;
        Ok((there.device, there.inode) == (here.device, here.inode))
    }

    /// Opens the directory of a job; `None` if it is gone or was omitted instead.
    fn open(
        &self,
        job: &Job<R::Scope>,
        found: &mut Found,
    ) -> Result<Option<OwnedFd>, SnapshotError> {
        match self.root.open_directory(&job.path) {
            Ok(fd) => Ok(Some(fd)),
            Err(errno) if job.path.is_root() => Err(self.unreadable(&job.path, "open", errno)),
            Err(Errno::XDEV) => {
                found.omit(job.path.clone(), OmissionReason::OtherFilesystem, None);
                Ok(None)
            }
            Err(Errno::ACCESS | Errno::PERM) => {
                found.omit(job.path.clone(), OmissionReason::Unreadable, None);
                Ok(None)
            }
            // Gone since its parent was listed, or something else has taken its place.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                // Only what is known to be gone is no omission.
                match self.root.lstat(&job.path) {
                    Err(Errno::NOENT | Errno::NOTDIR) => {}
                    _ => found.omit(job.path.clone(), OmissionReason::Unstable, None),
                }
                Ok(None)
            }
            Err(Errno::MFILE) if seeded_bug!("no-descriptor-is-no-directory") => Ok(None),
            Err(errno) => Err(self.unreadable(&job.path, "open", errno)),
        }
    }

    fn entry(
        &self,
        visit: &Visit<'_, R::Scope>,
        found: &mut Found,
        directory: &mut Building<'_>,
        jobs: &mut Vec<Job<R::Scope>>,
    ) -> Result<(), SnapshotError> {
        self.options.op.check()?;
        let name = visit.name;
        if visit.job.path.is_root() && self.rules.is_own(&visit.path()) {
            directory.others.push(name);
            return Ok(());
        }
        // A file may be replaced by something of another kind between the look and the open.
        for _ in 0..TRIES {
            // Before the look: what changes after it has a later time.
            let looked_ns = self.clock.now_ns();
            let stat = match descriptor::lstat_at(visit.fd, name) {
                Ok(stat) => stat,
                Err(Errno::NOENT) => {
                    if let Some(gone) = &visit.known {
                        found.keep_absent(self.options.cache, &visit.job.path, gone, directory);
                    }
                    return Ok(());
                }
                Err(Errno::ACCESS | Errno::PERM) => {
                    visit.omit(OmissionReason::Unreadable, None, found, directory);
                    return Ok(());
                }
                Err(errno) => return Err(self.unreadable(&visit.path(), "look at", errno)),
            };
            let file_type = stat.file_type();
            let is_directory = file_type == FileType::Directory;
            if let Some(reason) = self.rules.forbids(name, is_directory) {
                visit.omit(reason, Some(&stat), found, directory);
                return Ok(());
            }
            match file_type {
                FileType::Directory => {
                    return self.directory(visit, &stat, found, directory, jobs);
                }
                FileType::RegularFile | FileType::Symlink => {
                    if self.file(visit, &stat, looked_ns, found, directory)? {
                        return Ok(());
                    }
                }
                _ => {
                    visit.omit(OmissionReason::Special, Some(&stat), found, directory);
                    return Ok(());
                }
            }
        }
        visit.omit(OmissionReason::Unstable, None, found, directory);
        Ok(())
    }

    fn directory(
        &self,
        visit: &Visit<'_, R::Scope>,
        stat: &Stat,
        found: &mut Found,
        directory: &mut Building<'_>,
        jobs: &mut Vec<Job<R::Scope>>,
    ) -> Result<(), SnapshotError> {
        let seen = Some(stat);
        if self.root.is_other_filesystem(visit.fd, visit.name, stat) {
            visit.omit(OmissionReason::OtherFilesystem, seen, found, directory);
            return Ok(());
        }
        let path = visit.path();
        if area::is_private_name(visit.name) && !self.is_tracked(&path) {
            visit.omit(OmissionReason::Excluded, seen, found, directory);
            return Ok(());
        }
        if !self.is_tracked(&path)
            && let Verdict::Omit(reason) = self.rules.judge(visit.scope, &path, true)?
        {
            visit.omit(reason, seen, found, directory);
            return Ok(());
        }
        visit.keep_unseen(found, directory);
        directory.child(visit.name);
        if let Some(extent) = self.extent_of(&visit.job.extent, &path) {
            jobs.push(Job {
                path,
                depth: visit.job.depth + 1,
                above: Some(visit.scope.clone()),
                extent,
            });
        }
        Ok(())
    }

    /// How much to look at of the directory `path`, found in one of which `above` is looked at;
    /// `None` if it has its job already.
    fn extent_of(&self, above: &Extent, path: &RelPath) -> Option<Extent> {
        let (Some(changed), Extent::Part(_)) = (self.options.only, above) else {
            return Some(Extent::Whole);
        };
        let known = self.options.cache.directories.get(path);
        if !changed.watch.watches(path) || known.is_none_or(|known| known.is_absent) {
            return Some(Extent::Whole);
        }
        // Its own permissions may be what changed, and with them what can be looked at.
        let is_pending = changed.pending.contains_key(path);
        (!is_pending).then_some(Extent::Part(Look::All))
    }

    /// Whether the index has a path at any depth below the directory.
    fn is_tracked(&self, path: &RelPath) -> bool {
        let directories = &self.options.cache.directories;
        if self.above_absent.contains(path) {
            return true;
        }
        let Some(directory) = directories.get(path) else {
            return false;
        };
        if directory.has_tracked() {
            return true;
        }
        let mut known = lock(&self.tracked);
        let mut asked = vec![path.clone()];
        let mut at = 0;
        let mut is_tracked = false;
        while let Some(path) = asked.get(at) {
            match known.get(path) {
                Some(true) => is_tracked = true,
                Some(false) => {}
                None => {
                    if let Some(directory) = directories.get(path) {
                        is_tracked = directory.has_tracked();
                        let below: Vec<RelPath> =
                            directory.children.iter().map(|n| path.join(n)).collect();
                        asked.extend(below);
                    }
                }
            }
            if is_tracked {
                known.insert(asked.swap_remove(0), true);
                return true;
            }
            at += 1;
        }
        known.extend(asked.into_iter().map(|path| (path, false)));
        false
    }

    /// Captures or omits a file or link; false if something of another kind was there at a second
    /// look.
    fn file(
        &self,
        visit: &Visit<'_, R::Scope>,
        stat: &Stat,
        looked_ns: i64,
        found: &mut Found,
        directory: &mut Building<'_>,
    ) -> Result<bool, SnapshotError> {
        if let Some(reason) = self.why_omitted(visit, stat)? {
            visit.omit(reason, Some(stat), found, directory);
            return Ok(true);
        }
        self.tell_watch(visit, stat);
        let Some((settled, looked_ns)) = self.settled(visit, stat, looked_ns) else {
            return Ok(false);
        };
        if self.keep_clean(visit, &settled, looked_ns, found, directory)? {
            return Ok(true);
        }
        found.has_read = true;
        match self.content(visit, &settled)? {
            Reading::Read { id, stat, bytes } => {
                self.files_hashed.fetch_add(1, Ordering::Relaxed);
                self.bytes_read.fetch_add(bytes, Ordering::Relaxed);
                if (self.options.is_purged)(&id) {
                    visit.omit(OmissionReason::Purged, Some(&stat), found, directory);
                    return Ok(true);
                }
                found.note_links(|| visit.path(), &stat);
                self.keep(visit, id, &stat, looked_ns, found, directory);
            }
            Reading::Replaced => return Ok(false),
            Reading::Omitted(reason) => visit.omit(reason, Some(stat), found, directory),
        }
        Ok(true)
    }

    /// Why a file or link is left out without being read.
    fn why_omitted(
        &self,
        visit: &Visit<'_, R::Scope>,
        stat: &Stat,
    ) -> Result<Option<OmissionReason>, SnapshotError> {
        if self.root.is_other_filesystem(visit.fd, visit.name, stat) {
            // A file can be a mount point too.
            return Ok(Some(OmissionReason::OtherFilesystem));
        }
        if visit.cached().is_some_and(|e| e.flags.has(Flags::TRACKED)) {
            return Ok(None);
        }
        if let Verdict::Omit(reason) = self.rules.judge(visit.scope, &visit.path(), false)? {
            return Ok(Some(reason));
        }
        let limit = self.options.max_untracked_file_bytes;
        let is_link = stat.file_type() == FileType::Symlink;
        let is_too_large = limit != 0 && !is_link && stat.size > limit;
        Ok(is_too_large.then_some(OmissionReason::TooLarge))
    }

    /// Has the watch look at a file that may change without an event.
    fn tell_watch(&self, visit: &Visit<'_, R::Scope>, stat: &Stat) {
        let Some(watch) = self.options.watch else {
            return;
        };
        if stat.file_type() == FileType::Symlink {
            return;
        }
        if stat.links > 1 {
            if watch.always_look_at(&visit.job.path, visit.name) {
                self.has_new_link.store(true, Ordering::Relaxed);
                let is_fresh = self.clock.is_since(&EntryStat::of(stat));
                self.has_fresh_link.fetch_or(is_fresh, Ordering::Relaxed);
            }
        } else if self.options.only.is_some() && watch.is_held(stat.inode) {
            // A walk that looks everywhere asks once for all, at its end.
            watch.look_at_held(&visit.job.path, visit.name);
        }
    }

    /// Waits until the time of a file tells whether it is written again, where that is needed;
    /// answers with what it is by then, and when that was looked at. `None`: something of another
    /// kind is there.
    fn settled(
        &self,
        visit: &Visit<'_, R::Scope>,
        stat: &Stat,
        looked_ns: i64,
    ) -> Option<(Stat, i64)> {
        // A watch reports writes that leave the time unchanged. Rules are compared by it.
        let is_settling = self.options.watch.is_none() || self.rules.are_in(visit.name);
        let op = self.options.op;
        let waits = || {
            let seen = EntryStat::of(stat);
            self.clock.settle(op, &seen, looked_ns)
        };
        if !is_settling || !waits() {
            return Some((*stat, looked_ns));
        }
        let looked_ns = self.clock.now_ns();
        let again = descriptor::lstat_at(visit.fd, visit.name).ok()?;
        let is_same_kind = again.file_type() == stat.file_type();
        is_same_kind.then_some((again, looked_ns))
    }

    /// Keeps what is known of a file or link that is as it was; false if it has to be read.
    fn keep_clean(
        &self,
        visit: &Visit<'_, R::Scope>,
        stat: &Stat,
        looked_ns: i64,
        found: &mut Found,
        directory: &mut Building<'_>,
    ) -> Result<bool, SnapshotError> {
        let now = EntryStat::of(stat);
        let Some(known) = &visit.known else {
            return Ok(false);
        };
        let entry = known.entry;
        if !entry.is_clean(&now)
            || (self.options.is_purged)(&entry.id)
            || !self.accepts(visit, entry, stat, found)?
        {
            return Ok(false);
        }
        found.note_links(|| visit.path(), stat);
        let flags = entry.flags.without(Flags::FROM_INDEX);
        let flags = flags.set(Flags::RACY, is_racy(&now, looked_ns));
        if entry.stat == now && entry.flags == flags {
            directory.keep_as_it_is(known);
        } else {
            let seen = CachedEntry {
                stat: now,
                flags,
                ..entry.clone()
            };
            directory.keep(known, seen);
        }
        Ok(true)
    }

    fn content(&self, visit: &Visit<'_, R::Scope>, stat: &Stat) -> Result<Reading, SnapshotError> {
        let reading = match stat.file_type() {
            FileType::Symlink => read::link(visit.fd, visit.name, self.sink),
            _ => read::file(self.options.op, visit.fd, visit.name, self.sink),
        };
        reading.map_err(|error| match error {
            SinkError::Sink(error) => error,
            SinkError::Read(source) => SnapshotError::Unreadable {
                context: format!("{} could not be read", visit.path()),
                source: PathError::at("read", self.root.disk_path(&visit.path()))(source),
            },
        })
    }

    /// Whether an entry that looks unchanged may keep its id.
    fn accepts(
        &self,
        visit: &Visit<'_, R::Scope>,
        cached: &CachedEntry,
        stat: &Stat,
        found: &mut Found,
    ) -> Result<bool, SnapshotError> {
        if !cached.flags.has(Flags::FROM_INDEX) {
            return Ok(true);
        }
        let path = visit.path();
        let is_adopted =
            stat.file_type() == FileType::Symlink || self.rules.adopts(visit.scope, &path)?;
        if is_adopted {
            found.adopt(cached.id);
        }
        Ok(is_adopted)
    }

    fn keep(
        &self,
        visit: &Visit<'_, R::Scope>,
        id: ContentId,
        stat: &Stat,
        looked_ns: i64,
        found: &mut Found,
        directory: &mut Building<'_>,
    ) {
        let was = visit.cached().map_or(Flags::default(), |e| e.flags);
        let stat = EntryStat::of(stat);
        let mut flags = Flags::default()
            .set(Flags::TRACKED, was.has(Flags::TRACKED))
            .set(Flags::AS_INDEXED, was.has(Flags::AS_INDEXED))
            .set(Flags::SPARSE, was.has(Flags::SPARSE))
            .set(Flags::RACY, is_racy(&stat, looked_ns));
        let kind = kind_of_mode(stat.mode).expect("files and links have a kind");
        if let Some(cached) = visit.cached()
            && was.has(Flags::SPARSE)
            && was.has(Flags::AS_INDEXED)
            && (cached.id, cached.kind) != (id, kind)
        {
            found.not_left_out.push((visit.path(), cached.entry()));
        }
        if let Some(cached) = visit.cached()
            && was.has(Flags::AS_INDEXED)
            && cached.id != id
        {
            found.left_index.push((visit.path(), cached.id));
            flags = flags.without(Flags::AS_INDEXED);
        }
        let entry = CachedEntry {
            kind,
            id,
            stat,
            flags,
        };
        match &visit.known {
            Some(known) => directory.keep(known, entry),
            None => directory.push(visit.name, entry),
        }
    }

    /// Counts what was captured in a directory.
    fn admit(&self, directory: &CachedDirectory) -> Result<(), SnapshotError> {
        let limit = self.options.max_files;
        if limit == 0 {
            return Ok(());
        }
        let captured = directory.captured();
        let captured = captured.count() as u64;
        let actual = self.files.fetch_add(captured, Ordering::Relaxed) + captured;
        if actual > limit {
            return Err(SnapshotError::LimitExceeded {
                what: "the number of files found so far".to_owned(),
                limit,
                actual,
            });
        }
        Ok(())
    }

    fn report(&self, entries: u64) {
        let total = self.entries.fetch_add(entries, Ordering::Relaxed) + entries;
        if let Some(progress) = self.options.progress {
            let bytes_read = self.bytes_read.load(Ordering::Relaxed);
            progress(Progress::new(total, bytes_read));
        }
    }

    fn unreadable(&self, path: &RelPath, operation: &'static str, errno: Errno) -> SnapshotError {
        SnapshotError::Unreadable {
            context: format!("{} could not be read", shortened(path)),
            source: PathError::at(operation, self.root.disk_path(path))(errno),
        }
    }
}

/// A directory that was read, and the jobs of those in it.
type Read<S> = (Arc<CachedDirectory>, Vec<Job<S>>);

/// A path for a message, shortened.
fn shortened(path: &RelPath) -> String {
    let text = path.to_string();
    match text.char_indices().nth(200) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

/// The time in which a worker has a job. Once it ends, also by a panic, the others are told, so
/// that nobody waits for jobs that never come.
struct AtWork<'w, 'a, R: Rules> {
    walker: &'w Walker<'a, R>,
}

impl<R: Rules> Drop for AtWork<'_, '_, R> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.walker.is_stopping.store(true, Ordering::Relaxed);
        }
        let mut queue = lock(&self.walker.queue);
        queue.active -= 1;
        let is_over = queue.active == 0 || self.walker.is_stopping.load(Ordering::Relaxed);
        if is_over {
            self.walker.wake.notify_all();
            return;
        }
        // The next one is for this thread.
        let wanted = queue.jobs.len().saturating_sub(1).min(queue.waiting);
        for _ in 0..wanted {
            self.walker.wake.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use tempfile::TempDir;

    use super::*;
    use crate::read::Content;

    /// A directory, and what happens to it at certain moments of a walk.
    struct Stage<'a> {
        _temporary: TempDir,
        root: Root,
        /// Called once when the directory of that name has been listed.
        on_enter: Mutex<Option<(&'a str, Mischief<'a>)>>,
    }

    type Mischief<'a> = Box<dyn FnOnce() + Send + 'a>;

    fn stage<'a>(prepare: impl FnOnce(&Path)) -> Stage<'a> {
        let temporary = tempfile::tempdir().unwrap();
        let directory = temporary.path().join("work");
        fs::create_dir(&directory).unwrap();
        prepare(&directory);
        let root = Root::of_directory(&directory).unwrap();
        Stage {
            _temporary: temporary,
            root,
            on_enter: Mutex::new(None),
        }
    }

    impl Stage<'_> {
        fn walk(&self) -> Walked {
            self.walk_into(&Digests)
        }

        fn walk_into(&self, sink: &dyn ContentSink) -> Walked {
            self.walk_waiting(sink, SLOW)
        }

        fn walk_waiting(&self, sink: &dyn ContentSink, slow: Duration) -> Walked {
            let options = WalkOptions {
                cache: &StatCache::default(),
                seeds: &Seeds::default(),
                absent: &BTreeSet::new(),
                only: None,
                watch: None,
                max_untracked_file_bytes: 0,
                max_files: 0,
                op: &Operation::unbounded(),
                progress: None,
                is_purged: &|_| false,
            };
            walk_waiting(&self.root, self, sink, &options, slow).unwrap()
        }
    }

    impl Rules for Stage<'_> {
        type Scope = ();

        fn enter(
            &self,
            _above: Option<&Arc<()>>,
            path: &RelPath,
            _has: &dyn Fn(&[u8]) -> bool,
        ) -> Result<Arc<()>, SnapshotError> {
            let mut on_enter = lock(&self.on_enter);
            if let Some((_, happen)) = on_enter.take_if(|(at, _)| at.as_bytes() == path.as_bytes())
            {
                happen();
            }
            Ok(Arc::new(()))
        }

        fn is_own(&self, _path: &RelPath) -> bool {
            false
        }

        fn judge(&self, _: &(), _: &RelPath, _: bool) -> Result<Verdict, SnapshotError> {
            Ok(Verdict::Capture)
        }

        fn forbids(&self, _name: &[u8], _is_directory: bool) -> Option<OmissionReason> {
            None
        }

        fn are_in(&self, _name: &[u8]) -> bool {
            false
        }

        fn adopts(&self, _: &(), _: &RelPath) -> Result<bool, SnapshotError> {
            Ok(false)
        }
    }

    struct Digests;

    impl ContentSink for Digests {
        fn file(&self, _: u64, content: &mut dyn Content) -> Result<Option<ContentId>, SinkError> {
            let mut bytes = Vec::new();
            content.read_to_end(&mut bytes).map_err(SinkError::Read)?;
            self.link(&bytes).map(Some)
        }

        fn link(&self, text: &[u8]) -> Result<ContentId, SinkError> {
            Ok(ContentId::Blake3(*blake3::hash(text).as_bytes()))
        }
    }

    /// A disk that has to be waited for.
    #[derive(Default)]
    struct Slow {
        threads: Mutex<HashSet<std::thread::ThreadId>>,
    }

    impl ContentSink for Slow {
        fn file(&self, n: u64, content: &mut dyn Content) -> Result<Option<ContentId>, SinkError> {
            lock(&self.threads).insert(std::thread::current().id());
            std::thread::sleep(10 * SLOW);
            Digests.file(n, content)
        }

        fn link(&self, text: &[u8]) -> Result<ContentId, SinkError> {
            Digests.link(text)
        }
    }

    fn path(text: &str) -> RelPath {
        RelPath::new(text).unwrap()
    }

    fn of_a_hundred_directories(root: &Path) {
        for nth in 0..100 {
            fs::create_dir(root.join(nth.to_string())).unwrap();
            fs::write(root.join(format!("{nth}/file")), "text").unwrap();
        }
    }

    // Sixteen, whatever the disk
    #[test]
    fn where_no_disk_is_waited_for_there_is_a_thread_for_each_core() {
        let stage = stage(of_a_hundred_directories);
        // Each takes its time, so that whoever is started has a part in it; none longer than that.
        let slow = Slow::default();
        stage.walk_waiting(&slow, Duration::MAX);
        let threads = lock(&slow.threads).len();
        assert!(
            (parallel::cores().min(2)..=parallel::cores()).contains(&threads),
            "{threads} threads"
        );
    }

    #[test]
    fn where_the_disk_is_waited_for_more_threads_than_cores_do_it() {
        let stage = stage(of_a_hundred_directories);
        let slow = Slow::default();
        let walked = stage.walk_into(&slow);
        assert_eq!(walked.delta.directories.len(), 101);
        let threads = lock(&slow.threads).len();
        let few = parallel::cores().min(MIN_WAITING_THREADS / 2);
        assert!(threads > few, "{threads} threads");
    }

    #[test]
    fn a_directory_that_is_moved_away_while_it_is_read_does_not_count() {
        let mut stage = stage(|root| {
            fs::create_dir(root.join("d")).unwrap();
            fs::write(root.join("d/file"), "inside").unwrap();
        });
        let directory = stage.root.disk_path(&path("d"));
        let outside = directory
            .parent()
            .unwrap()
            .parent()
            .unwrap()
            .join("outside");
        stage.on_enter = Mutex::new(Some((
            "d",
            Box::new(move || {
                fs::rename(&directory, &outside).unwrap();
                fs::write(outside.join("file"), "written when it was outside").unwrap();
            }),
        )));
        let walked = stage.walk();
        assert!(!walked.delta.directories.contains_key(&path("d")));
        assert!(walked.omissions.is_empty(), "it is known to be gone");
    }

    #[test]
    fn a_directory_that_takes_the_place_of_another_is_read_instead() {
        let mut stage = stage(|root| {
            fs::create_dir_all(root.join("d")).unwrap();
            fs::write(root.join("d/old"), "old").unwrap();
        });
        let directory = stage.root.disk_path(&path("d"));
        stage.on_enter = Mutex::new(Some((
            "d",
            Box::new(move || {
                fs::rename(&directory, directory.with_file_name("e")).unwrap();
                fs::create_dir(&directory).unwrap();
                fs::write(directory.join("new"), "new").unwrap();
            }),
        )));
        let walked = stage.walk();
        let d = &walked.delta.directories[&path("d")];
        let names: Vec<&[u8]> = d.entries.iter().map(|(name, _)| name).collect();
        assert_eq!(names, [b"new"]);
    }

    #[test]
    fn an_open_directory_that_was_removed_has_no_list() {
        let temporary = tempfile::tempdir().unwrap();
        let directory = temporary.path().join("d");
        fs::create_dir(&directory).unwrap();
        let fd = OwnedFd::from(fs::File::open(&directory).unwrap());
        assert!(list(&fd).is_ok());
        fs::remove_dir(&directory).unwrap();
        assert_eq!(
            list(&fd).err(),
            Some(Errno::NOENT),
            "so that this error is no reason to fail a capture"
        );
    }
}
