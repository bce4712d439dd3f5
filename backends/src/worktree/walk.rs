//! Walking a workspace: every path is captured or omitted with a reason.
//!
//! Directories are read in parallel, each one merged with what the last capture saw of it. Only
//! what changed is read. Nothing is written, followed or waited for.

use std::collections::{HashMap, HashSet};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, RawDir};
use rustix::io::Errno;

use crate::backend::{Interrupt, Progress, SnapshotError};
use crate::coverage::{Omission, OmissionReason};
use crate::error::PathError;
use crate::path::RelPath;
use crate::tree::{ContentId, Entry};
use crate::worktree::area;
use crate::worktree::faults::Seam;
use crate::worktree::file_system::{FileSystem, file_system};
use crate::worktree::read::{self, ContentSink, Reading, SinkError};
use crate::worktree::root::{self, Root, Stat};
use crate::worktree::stat_cache::{
    CachedDirectory, CachedEntry, Directories, EntryStat, Flags, Listed, NameList, StatCache,
    is_racy, kind_of_mode,
};

/// The deepest directory that is entered. Deeper ones are a mistake or an attack, and each costs a
/// path as long as all names above it.
const MAX_DEPTH: u64 = 4096;

/// How many threads walk, whatever the number of cores: with a cold cache they wait for the disk,
/// and with a warm one idle threads cost nothing.
const MIN_THREADS: usize = 16;

/// How often a directory or file is looked at again when something else has taken its place.
const TRIES: u32 = 3;

/// What a backend decides about names while its workspace is walked.
pub(crate) trait Rules: Sync {
    /// What is known about the rules in one directory; shared with the directories below.
    type Scope: Send + Sync;

    /// Prepares for the directory `path`, which is open as `fd`, lies in the directory of `above`,
    /// and holds `names`.
    fn enter(
        &self,
        above: Option<&Arc<Self::Scope>>,
        path: &RelPath,
        fd: BorrowedFd<'_>,
        names: &NameList,
    ) -> Result<Arc<Self::Scope>, SnapshotError>;

    /// Whether the path is the repository's own and no part of the workspace: it is neither captured
    /// nor omitted.
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

    /// Whether the index's id for an unchanged file is the id of its raw bytes.
    fn adopts(&self, scope: &Self::Scope, path: &RelPath) -> Result<bool, SnapshotError>;
}

/// What becomes of a name that only the worktree has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Capture,
    Omit(OmissionReason),
}

/// Lists an open directory.
fn list(fd: &OwnedFd) -> rustix::io::Result<NameList> {
    let mut space = [const { MaybeUninit::<u8>::uninit() }; 64 * 1024];
    let mut listing = RawDir::new(fd, &mut space);
    let (mut bytes, mut spans) = (Vec::new(), Vec::new());
    let at = |bytes: &Vec<u8>| u32::try_from(bytes.len()).map_err(|_| Errno::OVERFLOW);
    while let Some(entry) = listing.next() {
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

/// What a walk needs to know.
pub(crate) struct WalkOptions<'a> {
    /// What the last capture saw.
    pub(crate) cache: &'a StatCache,
    /// Untracked files larger than this are omitted; zero: no limit.
    pub(crate) max_untracked_file_bytes: u64,
    /// More captured files and links than this fail the walk; zero: no limit.
    pub(crate) max_files: u64,
    /// When to stop early.
    pub(crate) interrupt: &'a Interrupt,
    /// Told how far it has come.
    pub(crate) progress: Option<&'a (dyn Fn(Progress) + Send + Sync)>,
}

/// What a walk found.
pub(crate) struct Walked {
    /// Every directory that was entered, and those that are gone and the index has paths in.
    pub(crate) directories: Directories,
    /// In no order.
    pub(crate) omissions: Vec<Omission>,
    /// Tracked files whose content is no longer what the index names, with that id.
    pub(crate) left_index: Vec<(RelPath, ContentId)>,
    /// Paths of a sparse checkout that were captured as something else than what the index has,
    /// with that.
    pub(crate) not_left_out: Vec<(RelPath, Entry)>,
    /// Files whose id was taken from the index, so that their objects have to be borrowed.
    pub(crate) adopted: Vec<ContentId>,
    /// Whether anything differs from the cache, be it only what is remembered about a file.
    pub(crate) is_changed: bool,
    /// Files and links read and hashed.
    pub(crate) files_hashed: u64,
    /// Bytes of content read.
    pub(crate) bytes_read: u64,
}

/// Walks the workspace.
pub(crate) fn walk<R: Rules>(
    root: &Root,
    rules: &R,
    sink: &dyn ContentSink,
    options: &WalkOptions<'_>,
) -> Result<Walked, SnapshotError> {
    let walker = Walker {
        root,
        rules,
        sink,
        options,
        clock: Clock::of(root),
        tracked: tracked_directories(options.cache),
        queue: Mutex::new(Queue {
            jobs: vec![Job::root()],
            active: 0,
            failure: None,
        }),
        wake: Condvar::new(),
        is_stopping: AtomicBool::new(false),
        entries: AtomicU64::new(0),
        files: AtomicU64::new(0),
        bytes_read: AtomicU64::new(0),
        files_hashed: AtomicU64::new(0),
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = cores.max(MIN_THREADS);
    let seam = Seam::of_this_thread();
    let work = || {
        seam.enter();
        walker.work()
    };
    let mut found = std::thread::scope(|scope| {
        // A machine that gives fewer threads gets its walk all the same: this one works too.
        let helpers: Vec<_> = (1..threads)
            .map_while(|_| {
                let helper = std::thread::Builder::new();
                helper.spawn_scoped(scope, work).ok()
            })
            .collect();
        let mut found = walker.work();
        for helper in helpers {
            match helper.join() {
                Ok(part) => found.absorb(part),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        found
    });
    if let Some(failure) = lock(&walker.queue).failure.take() {
        return Err(failure);
    }
    if !root.is_in_place() {
        return Err(SnapshotError::Unreadable {
            context: "the workspace was moved or unmounted while it was read".to_owned(),
            source: PathError::at("find", root.disk_path(&RelPath::root()))(Errno::NOENT),
        });
    }
    remember_absent(&mut found, options.cache);
    let known = &options.cache.directories;
    let is_changed = found.directories.len() != known.len()
        || found.directories.iter().any(|(path, now)| {
            let before = known.get(path);
            before.is_none_or(|before| !Arc::ptr_eq(before, now))
        });
    Ok(Walked {
        directories: found.directories,
        omissions: found.omissions,
        left_index: found.left_index,
        not_left_out: found.not_left_out,
        adopted: found.adopted,
        is_changed,
        files_hashed: walker.files_hashed.into_inner(),
        bytes_read: walker.bytes_read.into_inner(),
    })
}

/// The clock that file times are taken from: the kernel's coarse one, less what the file system
/// rounds.
///
/// A file whose time is not before what this says may be written again without its time changing.
#[derive(Debug)]
pub(crate) struct Clock {
    granularity_ns: i64,
    started_ns: i64,
    /// Whether every change of a directory's names changes its times.
    keeps_directory_times: bool,
}

impl Clock {
    /// A tick of the coarse clock lasts 10 ms at most, though a busy machine may be late with it.
    /// Far beyond, somebody has set the clock back.
    const MAX_TICK: Duration = Duration::from_millis(100);

    pub(crate) fn of(root: &Root) -> Self {
        let kind = file_system(root);
        Self {
            // FAT rounds to two seconds, and a network file system has a clock of its own.
            granularity_ns: match kind {
                FileSystem::Local | FileSystem::Overlay => 0,
                FileSystem::Other => 2_000_000_000,
            },
            started_ns: now_ns(rustix::time::ClockId::Realtime),
            keeps_directory_times: matches!(kind, FileSystem::Local),
        }
    }

    /// Nanoseconds since the Unix epoch.
    pub(crate) fn now_ns(&self) -> i64 {
        now_ns(rustix::time::ClockId::RealtimeCoarse).saturating_sub(self.granularity_ns)
    }

    /// Waits until the tick in which `stat`'s file was written is over, so that what a capture finds
    /// out about it can be relied on by the next one. True if it was not over at `looked_ns`, when
    /// the file was looked at, and is by now.
    ///
    /// Only a file that was written before this clock was made is waited for: all the waiting of a
    /// capture together is one tick. One that was written later is being worked on.
    fn settle(&self, stat: &EntryStat, looked_ns: i64, interrupt: &Interrupt) -> bool {
        let newest = stat.newest_ns();
        if newest < looked_ns || newest > self.started_ns || self.granularity_ns != 0 {
            return false;
        }
        let patience = Instant::now() + Self::MAX_TICK;
        while newest >= self.now_ns() {
            if Instant::now() >= patience || interrupt.check().is_err() {
                return false;
            }
            std::thread::sleep(Duration::from_micros(500));
        }
        true
    }
}

fn now_ns(clock: rustix::time::ClockId) -> i64 {
    let now = rustix::time::clock_gettime(clock);
    now.tv_sec
        .saturating_mul(1_000_000_000)
        .saturating_add(now.tv_nsec)
}

/// The directories that have a tracked path at any depth below them.
fn tracked_directories(cache: &StatCache) -> HashSet<RelPath> {
    let mut tracked = HashSet::new();
    for (path, directory) in &cache.directories {
        if !directory.has_tracked() {
            continue;
        }
        let mut at = Some(path.clone());
        while let Some(path) = at {
            at = path.parent();
            if !tracked.insert(path) {
                break;
            }
        }
    }
    tracked
}

/// Carries over what the index has in directories that are gone, and what a sparse checkout left
/// out there.
fn remember_absent(found: &mut Found, cache: &StatCache) {
    let gone: Vec<(&RelPath, &Arc<CachedDirectory>)> = cache
        .directories
        .iter()
        .filter(|(path, cached)| !found.directories.contains_key(*path) && cached.has_tracked())
        .collect();
    if gone.is_empty() {
        return;
    }
    let hidden = hidden(gone.iter().map(|(path, _)| *path), found);
    for (path, cached) in gone {
        let mut kept = Building::new(Some(cached), true, cached.mode);
        for at in 0..cached.entries.len() {
            let known = Known::at(cached, at);
            if hidden.contains(path) {
                found.keep_unseen(path, &known, &mut kept);
            } else {
                found.keep_absent(cache, path, &known, &mut kept);
            }
        }
        found.directories.insert(path.clone(), kept.finish(None));
    }
    // A directory that only the index has still needs a place in the directories above it, so
    // that what a sparse checkout left out stays in the tree.
    let absent: Vec<RelPath> = found
        .directories
        .iter()
        .filter(|(_, d)| d.is_absent && d.entries.iter().any(|(_, e)| e.is_captured()))
        .map(|(path, _)| path.clone())
        .collect();
    for path in absent {
        let mut child = path;
        while let Some(parent) = child.parent() {
            let above = found.directories.entry(parent.clone()).or_insert_with(|| {
                Arc::new(CachedDirectory {
                    is_absent: true,
                    mode: 0o755,
                    ..Default::default()
                })
            });
            if above.children.contains(child.name()) {
                break;
            }
            Arc::make_mut(above).children.insert(child.name());
            child = parent;
        }
    }
    // What is as it was is one with what it was, so that nothing is made or written again for it.
    for (path, directory) in &mut found.directories {
        if directory.is_absent
            && let Some(before) = cache.directories.get(path)
            && before.is_absent
            && before.mode == directory.mode
            && before.entries == directory.entries
            && before.children == directory.children
        {
            *directory = Arc::clone(before);
        }
    }
}

/// Those of `paths` that something hides: they lie below what was omitted, or below a file or link
/// that has taken a directory's place. Whether they are there was not seen, or plays no part.
fn hidden<'p>(paths: impl Iterator<Item = &'p RelPath>, found: &Found) -> HashSet<RelPath> {
    let omitted: HashSet<&RelPath> = found.omissions.iter().map(|o| &o.path).collect();
    let mut known: HashMap<RelPath, bool> = HashMap::new();
    for path in paths {
        let mut asked = Vec::new();
        let mut at = path.clone();
        let is_hidden = loop {
            if let Some(is_hidden) = known.get(&at) {
                break *is_hidden;
            }
            if omitted.contains(&at) {
                break true;
            }
            let Some(parent) = at.parent() else {
                break false;
            };
            let name = at.name().to_owned();
            asked.push(std::mem::replace(&mut at, parent));
            if let Some(above) = found.directories.get(&at) {
                break above
                    .entry(&name)
                    .is_some_and(|e| !e.flags.has(Flags::ABSENT));
            }
        };
        known.extend(asked.into_iter().map(|path| (path, is_hidden)));
    }
    known.retain(|_, is_hidden| *is_hidden);
    known.into_keys().collect()
}

struct Walker<'a, R: Rules> {
    root: &'a Root,
    rules: &'a R,
    sink: &'a dyn ContentSink,
    options: &'a WalkOptions<'a>,
    clock: Clock,
    tracked: HashSet<RelPath>,
    queue: Mutex<Queue<R::Scope>>,
    wake: Condvar,
    /// Set once the walk has failed, so that nobody reads on for nothing.
    is_stopping: AtomicBool,
    entries: AtomicU64,
    files: AtomicU64,
    bytes_read: AtomicU64,
    files_hashed: AtomicU64,
}

/// The directories still to be read. The last one found is read first: its parent's inode is warm,
/// and the queue stays as short as the tree is deep.
struct Queue<S> {
    jobs: Vec<Job<S>>,
    active: usize,
    failure: Option<SnapshotError>,
}

struct Job<S> {
    path: RelPath,
    depth: u64,
    above: Option<Arc<S>>,
}

impl<S> Job<S> {
    fn root() -> Self {
        Self {
            path: RelPath::root(),
            depth: 0,
            above: None,
        }
    }
}

/// What one thread found.
#[derive(Default)]
struct Found {
    directories: Directories,
    omissions: Vec<Omission>,
    left_index: Vec<(RelPath, ContentId)>,
    not_left_out: Vec<(RelPath, Entry)>,
    adopted: Vec<ContentId>,
    /// Whether any content was read.
    has_read: bool,
    /// How many names were looked at.
    looked_at: u64,
}

impl Found {
    fn absorb(&mut self, other: Self) {
        if self.directories.is_empty() {
            self.directories = other.directories;
        } else {
            self.directories.extend(other.directories);
        }
        self.omissions.extend(other.omissions);
        self.left_index.extend(other.left_index);
        self.not_left_out.extend(other.not_left_out);
        self.adopted.extend(other.adopted);
        self.has_read |= other.has_read;
    }

    fn omit(&mut self, path: RelPath, reason: OmissionReason, bytes: Option<u64>) {
        self.omissions.push(Omission {
            path,
            reason,
            bytes,
        });
    }

    /// Remembers an entry of the index that is known not to be on disk.
    fn keep_absent(
        &mut self,
        cache: &StatCache,
        directory: &RelPath,
        known: &Known<'_>,
        into: &mut Building<'_>,
    ) {
        let entry = known.entry;
        if !entry.flags.has(Flags::TRACKED) {
            return;
        }
        let path = directory.join(known.name);
        let mut kept = entry.clone();
        kept.flags = kept.flags.with(Flags::ABSENT).without(Flags::UNSEEN);
        if entry.flags.has(Flags::SPARSE)
            && let Some(indexed) = cache.not_left_out.get(&path)
        {
            (kept.kind, kept.id) = (indexed.kind, indexed.id);
            kept.flags = kept.flags.with(Flags::AS_INDEXED);
        }
        if entry.flags.has(Flags::SPARSE) {
            self.adopted.push(kept.id);
            self.omit(path, OmissionReason::Sparse, None);
        } else if entry.flags.has(Flags::AS_INDEXED) {
            self.left_index.push((path, entry.id));
            kept.flags = kept.flags.without(Flags::AS_INDEXED);
        }
        into.keep(known, kept);
    }

    /// Remembers an entry of the index that could not be looked at, or in whose place lies
    /// something that is captured or omitted instead.
    fn keep_unseen(&mut self, directory: &RelPath, known: &Known<'_>, into: &mut Building<'_>) {
        let entry = known.entry;
        if !entry.flags.has(Flags::TRACKED) {
            return;
        }
        let mut kept = entry.clone();
        kept.flags = kept.flags.with(Flags::ABSENT).with(Flags::UNSEEN);
        if entry.flags.has(Flags::AS_INDEXED) {
            self.left_index.push((directory.join(known.name), entry.id));
            kept.flags = kept.flags.without(Flags::AS_INDEXED);
        }
        into.keep(known, kept);
    }
}

/// An entry of the cache, and its place in its directory.
struct Known<'c> {
    at: usize,
    name: &'c [u8],
    entry: &'c CachedEntry,
}

impl<'c> Known<'c> {
    fn at(directory: &'c CachedDirectory, at: usize) -> Self {
        let (name, entry) = directory.entries.get(at);
        Self { at, name, entry }
    }
}

/// A directory that is being read: nothing is copied while it is found as the cache has it.
struct Building<'c> {
    known: Option<&'c Arc<CachedDirectory>>,
    /// How many entries and children, from the first on, are as the cache has them.
    same_entries: usize,
    same_children: usize,
    is_absent: bool,
    mode: u32,
    /// From the first difference on, all of it.
    own: Option<CachedDirectory>,
    /// The names that are neither an entry nor a child.
    others: NameList,
}

impl<'c> Building<'c> {
    fn new(known: Option<&'c Arc<CachedDirectory>>, is_absent: bool, mode: u32) -> Self {
        Self {
            known,
            same_entries: 0,
            same_children: 0,
            is_absent,
            mode,
            own: None,
            others: NameList::default(),
        }
    }

    fn own(&mut self) -> &mut CachedDirectory {
        self.own.get_or_insert_with(|| {
            let mut own = CachedDirectory::default();
            if let Some(known) = self.known {
                own.entries.begin_as(&known.entries, self.same_entries);
                own.children.begin_as(&known.children, self.same_children);
            }
            own
        })
    }

    /// Adds an entry of the cache, as it is or changed.
    fn keep(&mut self, known: &Known<'_>, entry: CachedEntry) {
        if self.own.is_none() && known.at == self.same_entries && *known.entry == entry {
            self.same_entries += 1;
        } else {
            self.push(known.name, entry);
        }
    }

    /// Adds an entry of the cache as it is.
    fn keep_as_it_is(&mut self, known: &Known<'_>) {
        if self.own.is_none() && known.at == self.same_entries {
            self.same_entries += 1;
        } else {
            self.push(known.name, known.entry.clone());
        }
    }

    fn push(&mut self, name: &[u8], entry: CachedEntry) {
        self.own().entries.push(name, entry);
    }

    fn child(&mut self, name: &[u8]) {
        let is_same = self.own.is_none()
            && self.known.is_some_and(|known| {
                let at = self.same_children;
                at < known.children.len() && known.children.get(at) == name
            });
        if is_same {
            self.same_children += 1;
        } else {
            self.own().children.push(name);
        }
    }

    /// The directory: the cache's own if nothing differs. `times` prove later that no name in it
    /// changed.
    fn finish(mut self, times: Option<&Stat>) -> Arc<CachedDirectory> {
        let listed = times.map(|stat| {
            let EntryStat {
                mtime_ns,
                ctime_ns,
                inode,
                ..
            } = EntryStat::of(stat);
            Listed {
                inode,
                mtime_ns,
                ctime_ns,
                others: std::mem::take(&mut self.others),
            }
        });
        if let Some(known) = self.known
            && self.own.is_none()
            && self.same_entries == known.entries.len()
            && self.same_children == known.children.len()
            && self.mode == known.mode
            && self.is_absent == known.is_absent
            && listed == known.listed
        {
            return Arc::clone(known);
        }
        let (mode, is_absent) = (self.mode, self.is_absent);
        let mut own = std::mem::take(self.own());
        own.entries.shrink();
        (own.mode, own.is_absent, own.listed) = (mode, is_absent, listed);
        Arc::new(own)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // A panic in one worker ends the walk; what the others still see of the queue is whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<R: Rules> Walker<'_, R> {
    fn work(&self) -> Found {
        let mut found = Found::default();
        while let Some(job) = self.next() {
            let turn = Turn { walker: self };
            let result = self.visit(&job, &mut found);
            let mut queue = lock(&self.queue);
            match result {
                Ok(jobs) => queue.jobs.extend(jobs),
                Err(error) => {
                    queue.failure.get_or_insert(error);
                    self.is_stopping.store(true, Ordering::Relaxed);
                }
            }
            drop(queue);
            drop(turn);
        }
        found
    }

    /// The next directory to read; `None` once nobody can find another.
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
            queue = self
                .wake
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Captures the directory of a job, and answers with the jobs of those in it.
    fn visit(
        &self,
        job: &Job<R::Scope>,
        found: &mut Found,
    ) -> Result<Vec<Job<R::Scope>>, SnapshotError> {
        self.options.interrupt.check()?;
        if job.depth > MAX_DEPTH {
            return Err(SnapshotError::LimitExceeded {
                what: format!("the depth of {}", shortened(&job.path)),
                limit: MAX_DEPTH,
                actual: job.depth,
            });
        }
        for _ in 0..TRIES {
            let Some(fd) = self.open(job, found)? else {
                return Ok(Vec::new());
            };
            let mut part = Found::default();
            let (directory, jobs) = match self.read(job, &fd, &mut part)? {
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
            found.directories.insert(job.path.clone(), directory);
            return Ok(jobs);
        }
        found.omit(job.path.clone(), OmissionReason::Unstable, None);
        Ok(Vec::new())
    }

    /// Reads an open directory; `None` if it was removed meanwhile.
    #[expect(clippy::type_complexity, reason = "a directory, and the jobs below it")]
    fn read(
        &self,
        job: &Job<R::Scope>,
        fd: &OwnedFd,
        found: &mut Found,
    ) -> Result<Option<(Arc<CachedDirectory>, Vec<Job<R::Scope>>)>, SnapshotError> {
        let cached = self.options.cache.directories.get(&job.path);
        // Before the look, and that before the list: what changes after it has a later time.
        let looked_ns = self.clock.now_ns();
        let stat = root::fstat(fd).map_err(|e| self.unreadable(&job.path, "look at", e))?;
        let times = EntryStat::of(&stat);
        let names = match cached.and_then(|cached| cached.names_at(&times)) {
            Some(names) if self.clock.keeps_directory_times => names,
            _ => match list(fd) {
                Ok(names) => names,
                // What the kernel says of a directory that was removed while it is open.
                Err(Errno::NOENT) if !job.path.is_root() => return Ok(None),
                Err(errno) => return Err(self.unreadable(&job.path, "list", errno)),
            },
        };
        let scope = self
            .rules
            .enter(job.above.as_ref(), &job.path, fd.as_fd(), &names)?;
        found.looked_at += names.len() as u64;

        let mut directory = Building::new(cached, false, stat.permissions());
        let mut jobs = Vec::new();
        let known = cached.map_or(0, |cached| cached.entries.len());
        let known = (0..known).filter_map(|at| Some(Known::at(cached?, at)));
        let mut known = known.peekable();
        for name in names.iter() {
            if self.is_stopping.load(Ordering::Relaxed) {
                break;
            }
            while let Some(gone) = known.next_if(|known| known.name < name) {
                found.keep_absent(self.options.cache, &job.path, &gone, &mut directory);
            }
            let visit = Visit {
                job,
                fd: fd.as_fd(),
                scope: &scope,
                name,
                known: known.next_if(|known| known.name == name),
            };
            self.entry(&visit, found, &mut directory, &mut jobs)?;
        }
        for gone in known {
            found.keep_absent(self.options.cache, &job.path, &gone, &mut directory);
        }
        let is_proof = self.clock.keeps_directory_times && !is_racy(&times, looked_ns);
        Ok(Some((directory.finish(is_proof.then_some(&stat)), jobs)))
    }

    /// Whether the path still leads to the open directory.
    fn is_in_place(&self, path: &RelPath, fd: &OwnedFd) -> Result<bool, SnapshotError> {
        let failed = |errno| self.unreadable(path, "find", errno);
        let there = match self.root.open_directory(path) {
            Ok(there) => root::fstat(there).map_err(failed)?,
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
        let here = root::fstat(fd).map_err(failed)?;
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
        self.options.interrupt.check()?;
        let name = visit.name;
        if visit.job.path.is_root() && self.rules.is_own(&visit.path()) {
            directory.others.push(name);
            return Ok(());
        }
        // A file may be replaced by something of another kind between the look and the open.
        for _ in 0..TRIES {
            // Before the look: what changes after it has a later time.
            let looked_ns = self.clock.now_ns();
            let stat = match root::lstat_at(visit.fd, name) {
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
            let bytes = (file_type == FileType::RegularFile).then_some(stat.size);
            if let Some(reason) = self.rules.forbids(name, is_directory) {
                visit.omit(reason, bytes, found, directory);
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
                    visit.omit(OmissionReason::Special, None, found, directory);
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
        if stat.device != self.root.identity().device {
            visit.omit(OmissionReason::OtherFilesystem, None, found, directory);
            return Ok(());
        }
        let path = visit.path();
        if area::is_private_name(visit.name) && !self.tracked.contains(&path) {
            visit.omit(OmissionReason::Excluded, None, found, directory);
            return Ok(());
        }
        if !self.tracked.contains(&path)
            && let Verdict::Omit(reason) = self.rules.judge(visit.scope, &path, true)?
        {
            visit.omit(reason, None, found, directory);
            return Ok(());
        }
        visit.keep_unseen(found, directory);
        directory.child(visit.name);
        jobs.push(Job {
            path,
            depth: visit.job.depth + 1,
            above: Some(visit.scope.clone()),
        });
        Ok(())
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
        let is_link = stat.file_type() == FileType::Symlink;
        let is_tracked = visit.cached().is_some_and(|e| e.flags.has(Flags::TRACKED));
        let bytes = (!is_link).then_some(stat.size);
        if stat.device != self.root.identity().device {
            // A file can be a mount point too.
            visit.omit(OmissionReason::OtherFilesystem, bytes, found, directory);
            return Ok(true);
        }
        if !is_tracked {
            if let Verdict::Omit(reason) = self.rules.judge(visit.scope, &visit.path(), false)? {
                visit.omit(reason, bytes, found, directory);
                return Ok(true);
            }
            let limit = self.options.max_untracked_file_bytes;
            if limit != 0 && !is_link && stat.size > limit {
                visit.omit(OmissionReason::TooLarge, bytes, found, directory);
                return Ok(true);
            }
        }
        let interrupt = self.options.interrupt;
        let (mut looked_ns, mut again) = (looked_ns, None);
        if self
            .clock
            .settle(&EntryStat::of(stat), looked_ns, interrupt)
        {
            looked_ns = self.clock.now_ns();
            again = root::lstat_at(visit.fd, visit.name).ok();
            if again.is_none_or(|again| again.file_type() != stat.file_type()) {
                return Ok(false);
            }
        }
        let stat = again.as_ref().unwrap_or(stat);
        let now = EntryStat::of(stat);
        if let Some(known) = &visit.known
            && known.entry.is_clean(&now)
            && self.accepts(visit, known.entry, stat, found)?
        {
            let flags = known.entry.flags.without(Flags::FROM_INDEX);
            let flags = flags.set(Flags::RACY, is_racy(&now, looked_ns));
            if known.entry.stat == now && known.entry.flags == flags {
                directory.keep_as_it_is(known);
            } else {
                let entry = known.entry.clone();
                directory.keep(
                    known,
                    CachedEntry {
                        stat: now,
                        flags,
                        ..entry
                    },
                );
            }
            return Ok(true);
        }
        found.has_read = true;
        let reading = if is_link {
            read::link(visit.fd, visit.name, self.sink)
        } else {
            read::file(visit.fd, visit.name, self.sink, interrupt)
        };
        let reading = reading.map_err(|error| match error {
            SinkError::Sink(error) => error,
            SinkError::Read(source) => SnapshotError::Unreadable {
                context: format!("{} could not be read", visit.path()),
                source: PathError::at("read", self.root.disk_path(&visit.path()))(source),
            },
        })?;
        match reading {
            Reading::Read { id, stat, bytes } => {
                self.files_hashed.fetch_add(1, Ordering::Relaxed);
                self.bytes_read.fetch_add(bytes, Ordering::Relaxed);
                self.keep(visit, id, &stat, looked_ns, found, directory);
                return Ok(true);
            }
            Reading::Replaced => return Ok(false),
            Reading::Omitted(reason) => visit.omit(reason, bytes, found, directory),
        }
        Ok(true)
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
            found.adopted.push(cached.id);
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
            progress(Progress {
                entries: total,
                bytes_read,
            });
        }
    }

    fn unreadable(&self, path: &RelPath, operation: &'static str, errno: Errno) -> SnapshotError {
        SnapshotError::Unreadable {
            context: format!("{} could not be read", shortened(path)),
            source: PathError::at(operation, self.root.disk_path(path))(errno),
        }
    }
}

/// A path for a message, cut where nobody reads on.
fn shortened(path: &RelPath) -> String {
    let text = path.to_string();
    match text.char_indices().nth(200) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

/// One name in a directory that is being read.
struct Visit<'a, S> {
    job: &'a Job<S>,
    fd: BorrowedFd<'a>,
    scope: &'a Arc<S>,
    name: &'a [u8],
    known: Option<Known<'a>>,
}

impl<S> Visit<'_, S> {
    fn path(&self) -> RelPath {
        self.job.path.join(self.name)
    }

    /// What the cache has for a file or link of this name.
    fn cached(&self) -> Option<&CachedEntry> {
        self.known.as_ref().map(|known| known.entry)
    }

    /// Remembers what the index has at this path, though it was not captured.
    fn keep_unseen(&self, found: &mut Found, directory: &mut Building<'_>) {
        if let Some(known) = &self.known {
            found.keep_unseen(&self.job.path, known, directory);
        }
    }

    fn omit(
        &self,
        reason: OmissionReason,
        bytes: Option<u64>,
        found: &mut Found,
        directory: &mut Building<'_>,
    ) {
        self.keep_unseen(found, directory);
        directory.others.push(self.name);
        found.omit(self.path(), reason, bytes);
    }
}

/// The time in which a worker has a job. Once it ends, also by a panic, the others are told, so that
/// nobody waits for jobs that never come.
struct Turn<'w, 'a, R: Rules> {
    walker: &'w Walker<'a, R>,
}

impl<R: Rules> Drop for Turn<'_, '_, R> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.walker.is_stopping.store(true, Ordering::Relaxed);
        }
        let mut queue = lock(&self.walker.queue);
        queue.active -= 1;
        let is_over = queue.active == 0 || self.walker.is_stopping.load(Ordering::Relaxed);
        if is_over || queue.jobs.len() > 1 {
            self.walker.wake.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use tempfile::TempDir;

    use super::*;
    use crate::workspace::{StateDir, Workspace};
    use crate::worktree::read::Content;

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
        let state = StateDir::open(temporary.path().join("state")).unwrap();
        let root = Root::open(&Workspace::open(&directory, &state).unwrap()).unwrap();
        Stage {
            _temporary: temporary,
            root,
            on_enter: Mutex::new(None),
        }
    }

    impl Stage<'_> {
        fn walk(&self) -> Walked {
            let options = WalkOptions {
                cache: &StatCache::default(),
                max_untracked_file_bytes: 0,
                max_files: 0,
                interrupt: &Interrupt::never(),
                progress: None,
            };
            walk(&self.root, self, &Digests, &options).unwrap()
        }
    }

    impl Rules for Stage<'_> {
        type Scope = ();

        fn enter(
            &self,
            _above: Option<&Arc<()>>,
            path: &RelPath,
            _fd: BorrowedFd<'_>,
            _names: &NameList,
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

    fn path(text: &str) -> RelPath {
        RelPath::new(text).unwrap()
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
        assert!(!walked.directories.contains_key(&path("d")));
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
        let d = &walked.directories[&path("d")];
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
