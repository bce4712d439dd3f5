//! A backend for tests: it walks with the standard library and keeps everything in memory.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use jiff::Timestamp;

use super::{Captured, Node, Publish, Restorable, Side};
use crate::backend::{RepositoryRestore, RestoreOptions, RestoreOutcome, SnapshotOptions};
use crate::contents::{ContentError, Contents};
use crate::coverage::{Coverage, Omission, OmissionReason, OmittedKind};
use crate::descriptor;
use crate::git::repository::{Head, OperationFiles};
use crate::git::rollback::{FoundRepository, RestorableRepository};
use crate::git::{ObjectId, ObjectKind};
use crate::host_rules::IgnoreOptions;
use crate::identity::Identity;
use crate::identity::KnownDirectory;
use crate::operation::Operation;
use crate::path::RelPath;
use crate::record::{GitState, RECORD_VERSION, Record};
use crate::repository_changes::RepositoryProblem;
use crate::restore::{PlanId, RestoreGoal, RestorePlan};
use crate::restore_error::RestoreError;
use crate::snapshot::{BackendKind, Label, Snapshot, SnapshotId};
use crate::snapshot_error::SnapshotError;
use crate::store_error::StoreError;
use crate::tree::{Change, ContentId, Entry, EntryKind, Modes, RECORDED_BITS};
use crate::workspace::{LockedWorkspace, StateDir, TEST_LOCK_TIMEOUT, Workspace};
use crate::worktree::journal::Seen;
use crate::worktree::stat_cache::EntryStat;

type Entries = BTreeMap<RelPath, Entry>;

/// A workspace in a temporary directory, with everything that a story about a restore needs.
pub(crate) struct Stage {
    temporary: Option<tempfile::TempDir>,
    pub(crate) directory: PathBuf,
    pub(crate) outside: PathBuf,
    pub(crate) workspace: LockedWorkspace,
    pub(crate) backend: Naive,
}

/// Keeps snapshots in memory. A line of the workspace's `.gitignore` is a name, or `*` and the end
/// of one.
#[derive(Default)]
pub(crate) struct Naive {
    records: RefCell<HashMap<SnapshotId, (Record, Entries)>>,
    pub(crate) blobs: RefCell<HashMap<ContentId, Vec<u8>>>,
    indexes: RefCell<HashMap<ObjectId, Vec<u8>>>,
    /// Done right after a capture, to stand for somebody else who is at work.
    pub(crate) meanwhile: RefCell<Option<Box<dyn FnOnce()>>>,
    /// The next capture fails.
    pub(crate) is_broken: RefCell<bool>,
}

pub(crate) struct NaiveCapture {
    record: Record,
    entries: Entries,
    stats: HashMap<RelPath, EntryStat>,
}

impl Captured for NaiveCapture {
    fn record(&self) -> &Record {
        &self.record
    }

    fn seen(&self, path: &RelPath) -> Option<Seen> {
        Some(Seen {
            stat: *self.stats.get(path)?,
            content: self.entries.get(path).map(|e| e.id),
            is_racy: false,
        })
    }
}

pub(crate) fn rel(path: &str) -> RelPath {
    RelPath::new(path.as_bytes()).unwrap()
}

/// What is in a directory, without following any link: one line for each path.
pub(crate) fn view(directory: &Path) -> BTreeMap<String, String> {
    let mut seen = BTreeMap::new();
    let mut open = vec![directory.to_owned()];
    while let Some(at) = open.pop() {
        for entry in fs::read_dir(&at).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            let kind = meta.file_type();
            let content = if kind.is_symlink() {
                format!("-> {:?}", fs::read_link(&path).unwrap())
            } else if kind.is_dir() {
                open.push(path.clone());
                "directory".to_owned()
            } else if kind.is_file() {
                format!("{:?}", String::from_utf8_lossy(&fs::read(&path).unwrap()))
            } else {
                format!("special {}", kind.is_fifo())
            };
            let mode = if kind.is_symlink() {
                0
            } else {
                meta.mode() & 0o7777
            };
            let name = path.strip_prefix(directory).unwrap();
            seen.insert(
                crate::path::printable_bytes(name.as_os_str().as_bytes()),
                format!("{mode:o} {content}"),
            );
        }
    }
    seen
}

impl Stage {
    pub(crate) fn new() -> Self {
        Self::below(scratch())
    }

    /// A stage in a directory that is removed with it.
    fn below(temporary: tempfile::TempDir) -> Self {
        let state = temporary.path().join("state");
        Self::with_state(temporary, &state)
    }

    /// As [`Stage::new`], with the state directory somewhere else.
    pub(crate) fn with_state(temporary: tempfile::TempDir, state: &Path) -> Self {
        let mut stage = Self::open(temporary.path(), state);
        stage.temporary = Some(temporary);
        stage
    }

    /// A stage in a directory that stays.
    pub(crate) fn at(base: &Path) -> Self {
        Self::open(base, &base.join("state"))
    }

    fn open(base: &Path, state: &Path) -> Self {
        let base = fs::canonicalize(base).unwrap();
        let directory = base.join("work/tree");
        let outside = base.join("outside");
        fs::create_dir_all(&directory).unwrap();
        fs::create_dir_all(&outside).unwrap();
        let state = StateDir::open(state).unwrap();
        let workspace = Workspace::open(&directory, &state)
            .unwrap()
            .lock(&Operation::unbounded(), TEST_LOCK_TIMEOUT)
            .unwrap();
        Self {
            temporary: None,
            directory,
            outside,
            workspace,
            backend: Naive::default(),
        }
    }

    /// The same stage, with the workspace opened anew.
    pub(crate) fn reopen(self) -> Self {
        let directory = self.directory.clone();
        self.moved_to(&directory)
    }

    /// The same stage with another directory as its workspace.
    pub(crate) fn moved_to(self, directory: &Path) -> Self {
        let Self {
            temporary,
            outside,
            workspace,
            backend,
            ..
        } = self;
        let directory = directory.to_owned();
        let state = workspace.state().clone();
        drop(workspace);
        let workspace = Workspace::open(&directory, &state)
            .unwrap()
            .lock(&Operation::unbounded(), TEST_LOCK_TIMEOUT)
            .unwrap();
        Self {
            temporary,
            directory,
            outside,
            workspace,
            backend,
        }
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.directory.join(path)
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub(crate) fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap()
    }

    pub(crate) fn has(&self, path: &str) -> bool {
        fs::symlink_metadata(self.path(path)).is_ok()
    }

    pub(crate) fn mode(&self, path: &str) -> u32 {
        fs::symlink_metadata(self.path(path)).unwrap().mode() & 0o7777
    }

    pub(crate) fn chmod(&self, path: &str, mode: u32) {
        fs::set_permissions(self.path(path), fs::Permissions::from_mode(mode)).unwrap();
    }

    pub(crate) fn link(&self, text: impl AsRef<Path>, path: &str) {
        symlink(text, self.path(path)).unwrap();
    }

    pub(crate) fn fifo(&self, path: &str) {
        let mode = rustix::fs::Mode::from_raw_mode(0o644);
        rustix::fs::mknodat(
            rustix::fs::CWD,
            self.path(path),
            rustix::fs::FileType::Fifo,
            mode,
            0,
        )
        .unwrap();
    }

    pub(crate) fn remove(&self, path: &str) {
        let path = self.path(path);
        if fs::symlink_metadata(&path).unwrap().is_dir() {
            fs::remove_dir_all(path).unwrap();
        } else {
            fs::remove_file(path).unwrap();
        }
    }

    pub(crate) fn view(&self) -> BTreeMap<String, String> {
        view(&self.directory)
    }

    pub(crate) fn options(&self) -> SnapshotOptions {
        SnapshotOptions::new(
            Label::MANUAL,
            Timestamp::from_second(1_700_000_000).unwrap(),
        )
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.snapshot_with(&self.options())
    }

    pub(crate) fn snapshot_with(&self, options: &SnapshotOptions) -> Snapshot {
        let mut options = options.clone();
        options.id = SnapshotId::random();
        let capture = self
            .backend
            .capture(
                &Operation::unbounded(),
                &self.workspace,
                &options,
                &[],
                Publish::Yes,
            )
            .unwrap();
        capture.record.snapshot
    }

    pub(crate) fn goal(snapshot: &Snapshot) -> RestoreGoal {
        RestoreGoal::Snapshot {
            snapshot: snapshot.clone(),
            paths: Vec::new(),
        }
    }

    pub(crate) fn restore_goal(
        &mut self,
        goal: &RestoreGoal,
        repository: RepositoryRestore,
    ) -> Result<RestoreOutcome, RestoreError> {
        self.restore_goal_in(&Operation::unbounded(), goal, repository)
    }

    pub(crate) fn restore_goal_in(
        &mut self,
        op: &Operation,
        goal: &RestoreGoal,
        repository: RepositoryRestore,
    ) -> Result<RestoreOutcome, RestoreError> {
        let options = RestoreOptions::new(self.options()).repository(repository);
        super::restore(op, &self.backend, &mut self.workspace, goal, &options)
    }

    pub(crate) fn restore(&mut self, snapshot: &Snapshot) -> RestoreOutcome {
        self.try_restore(snapshot).unwrap()
    }

    pub(crate) fn try_restore(
        &mut self,
        snapshot: &Snapshot,
    ) -> Result<RestoreOutcome, RestoreError> {
        self.try_restore_in(&Operation::unbounded(), snapshot)
    }

    pub(crate) fn try_restore_in(
        &mut self,
        op: &Operation,
        snapshot: &Snapshot,
    ) -> Result<RestoreOutcome, RestoreError> {
        self.restore_goal_in(op, &Self::goal(snapshot), RepositoryRestore::Nothing)
    }

    pub(crate) fn restore_planned(
        &mut self,
        snapshot: &Snapshot,
        plan: PlanId,
    ) -> Result<RestoreOutcome, RestoreError> {
        let options = RestoreOptions::new(self.options()).expected_plan(plan);
        let goal = Self::goal(snapshot);
        super::restore(
            &Operation::unbounded(),
            &self.backend,
            &mut self.workspace,
            &goal,
            &options,
        )
    }

    pub(crate) fn plan(&self, snapshot: &Snapshot) -> RestorePlan {
        let goal = Self::goal(snapshot);
        let options = RestoreOptions::new(self.options());
        super::plan_only(
            &Operation::unbounded(),
            &self.backend,
            &self.workspace,
            &goal,
            &options,
        )
        .unwrap()
    }

    /// Does something between the guard and what follows it.
    pub(crate) fn meanwhile(&self, work: impl FnOnce() + 'static) {
        *self.backend.meanwhile.borrow_mut() = Some(Box::new(work));
    }

    /// Private directories of restores, in the store and beside the workspace.
    pub(crate) fn areas(&self) -> Vec<PathBuf> {
        let listed = |path: &Path| {
            fs::read_dir(path)
                .unwrap()
                .map(|e| e.unwrap().path())
                .collect::<Vec<_>>()
        };
        let mut all = listed(self.workspace.store_path());
        all.extend(listed(self.directory.parent().unwrap()));
        all.retain(|path| {
            let name = path.file_name().unwrap().as_bytes();
            name.starts_with(b"restore") || name.starts_with(b".stillframe")
        });
        all
    }

    /// Runs git itself in the workspace, with nothing of this machine's configuration.
    pub(crate) fn git(&self, arguments: &[&str]) -> String {
        let output = git_command(&self.directory, arguments).output().unwrap();
        assert!(
            output.status.success(),
            "git {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    pub(crate) fn has_ref(&self, name: &str) -> bool {
        git_command(&self.directory, &["show-ref", "--verify", "--quiet", name])
            .status()
            .unwrap()
            .success()
    }
}

pub(crate) fn git_command(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("git");
    command
        .args(arguments)
        .current_dir(directory)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("HOME", directory.parent().unwrap())
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        // Housekeeping after a commit, syncs and sample hooks only cost time.
        .env("GIT_CONFIG_COUNT", "2")
        .env("GIT_CONFIG_KEY_0", "maintenance.auto")
        .env("GIT_CONFIG_VALUE_0", "false")
        .env("GIT_CONFIG_KEY_1", "core.fsync")
        .env("GIT_CONFIG_VALUE_1", "none")
        .env("GIT_TEMPLATE_DIR", "")
        .env("GIT_AUTHOR_NAME", "A")
        .env("GIT_AUTHOR_EMAIL", "a@example.org")
        .env("GIT_COMMITTER_NAME", "A")
        .env("GIT_COMMITTER_EMAIL", "a@example.org")
        .env("GIT_AUTHOR_DATE", "1700000000 +0000")
        .env("GIT_COMMITTER_DATE", "1700000000 +0000");
    command
}

/// In memory where there is such a place: these stories sync a lot.
pub(crate) fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap())
}

impl Naive {
    fn entries_of<'a>(&self, side: Side<'a, NaiveCapture>) -> Entries {
        match side {
            Side::Stored(record) => self.records.borrow()[&record.snapshot.id].1.clone(),
            Side::Now(capture) => capture.entries.clone(),
        }
    }

    fn rules_of(&self, side: Side<'_, NaiveCapture>) -> Vec<String> {
        let entries = self.entries_of(side);
        let Some(entry) = entries.get(&rel(".gitignore")) else {
            return Vec::new();
        };
        let text = String::from_utf8(self.blobs.borrow()[&entry.id].clone()).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    /// Makes a snapshot one that was taken without its content.
    pub(crate) fn forget_content(&self, snapshot: &Snapshot) {
        let mut records = self.records.borrow_mut();
        let (record, _) = records.get_mut(&snapshot.id).unwrap();
        record.has_content = false;
    }

    /// Changes what a snapshot is said to hold, as a forged store would.
    pub(crate) fn forge(&self, snapshot: &Snapshot, change: impl FnOnce(&mut Entries)) {
        change(&mut self.records.borrow_mut().get_mut(&snapshot.id).unwrap().1);
    }
}

fn is_ignored(rules: &[String], path: &RelPath) -> bool {
    path.names().any(|name| {
        let name = String::from_utf8_lossy(name);
        rules.iter().any(|rule| match rule.strip_prefix('*') {
            Some(end) => name.ends_with(end),
            None => name == *rule,
        })
    })
}

/// Walks the workspace of a capture.
struct Walk<'a> {
    directory: &'a Path,
    rules: Vec<String>,
    keep: Vec<RelPath>,
    max_bytes: u64,
    capture: NaiveCapture,
    blobs: Vec<(ContentId, Vec<u8>)>,
    modes: Vec<(RelPath, u32)>,
    omissions: Vec<Omission>,
}

impl Walk<'_> {
    /// Answers with whether anything was captured in the directory.
    fn directory(&mut self, at: &RelPath) -> bool {
        let mut names: Vec<_> = fs::read_dir(self.directory.join(at.as_path()))
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        names.sort();
        let mut is_captured = false;
        for name in names {
            is_captured |= self.entry(at.join(name.as_bytes()));
        }
        is_captured
    }

    fn entry(&mut self, path: RelPath) -> bool {
        let disk_path = self.directory.join(path.as_path());
        let meta = fs::symlink_metadata(&disk_path).unwrap();
        let kind = meta.file_type();
        let bytes = kind.is_file().then_some(meta.len());
        let is_kept = self
            .keep
            .iter()
            .any(|k| *k == path || (kind.is_dir() && k.starts_with(&path)));
        let omission = if path.name() == b".git" {
            Some(OmissionReason::GitDir)
        } else if !kind.is_dir() && !kind.is_file() && !kind.is_symlink() {
            Some(OmissionReason::Special)
        } else if is_ignored(&self.rules, &path) && !is_kept {
            Some(OmissionReason::Ignored)
        } else if kind.is_file() && meta.len() > self.max_bytes {
            Some(OmissionReason::TooLarge)
        } else {
            None
        };
        if let Some(reason) = omission {
            self.omissions.push(Omission {
                path,
                reason,
                bytes,
                kind: match (kind.is_dir(), kind.is_symlink()) {
                    (true, _) => Some(OmittedKind::Directory),
                    (_, true) => Some(OmittedKind::Link),
                    _ => None,
                },
            });
            return false;
        }
        let mode = meta.mode() & RECORDED_BITS;
        if kind.is_dir() {
            self.modes.push((path.clone(), mode));
            let is_captured = self.directory(&path);
            if !is_captured {
                self.capture.record.empty_directories.push(path);
            }
            return is_captured;
        }
        let (kind, content) = if kind.is_symlink() {
            let text = fs::read_link(&disk_path).unwrap();
            (EntryKind::Symlink, text.as_os_str().as_bytes().to_vec())
        } else {
            self.modes.push((path.clone(), mode));
            let kind = if mode & 0o100 == 0 {
                EntryKind::File
            } else {
                EntryKind::Executable
            };
            (kind, fs::read(&disk_path).unwrap())
        };
        let id = ContentId::Blake3(*blake3::hash(&content).as_bytes());
        self.blobs.push((id, content));
        let stat = descriptor::lstat_at(rustix::fs::CWD, disk_path.as_os_str().as_bytes()).unwrap();
        self.capture
            .stats
            .insert(path.clone(), EntryStat::of(&stat));
        self.capture.entries.insert(path, Entry { kind, id });
        true
    }
}

/// What was asked for, apart from the cell that it lies in.
struct NaiveContents(BTreeMap<ContentId, Vec<u8>>);

impl Contents for NaiveContents {
    fn place(&self, _: &ContentId) -> u64 {
        0
    }

    fn length(&self, id: &ContentId) -> Result<u64, StoreError> {
        Ok(self.0[id].len() as u64)
    }

    fn write(&self, id: &ContentId, sink: &mut dyn Write) -> Result<(), ContentError> {
        let bytes = &self.0[id];
        if blake3::hash(bytes).as_bytes() != id.as_bytes() {
            return Err(StoreError::corrupt(id.to_string(), "it is not what it says").into());
        }
        sink.write_all(bytes).map_err(ContentError::Sink)
    }
}

impl Restorable for Naive {
    type Capture = NaiveCapture;

    fn record(&self, _: &Operation, _: &Workspace, id: &SnapshotId) -> Result<Record, StoreError> {
        match self.records.borrow().get(id) {
            Some((record, _)) => Ok(record.clone()),
            None => Err(StoreError::UnknownSnapshot { id: id.clone() }),
        }
    }

    fn capture(
        &self,
        op: &Operation,
        workspace: &LockedWorkspace,
        options: &SnapshotOptions,
        keep: &[&Record],
        publish: Publish,
    ) -> Result<NaiveCapture, SnapshotError> {
        if self.is_broken.replace(false) {
            return Err(SnapshotError::Unsupported("broken".to_owned()));
        }
        op.check()?;
        let directory = workspace.disk_path();
        let rules = fs::read_to_string(directory.join(".gitignore")).unwrap_or_default();
        let keep = keep.iter().flat_map(|record| {
            let entries = self.entries_of(Side::Stored(record));
            entries.into_keys().collect::<Vec<_>>()
        });
        let mut walk = Walk {
            directory,
            rules: rules.lines().map(str::to_owned).collect(),
            keep: keep.chain(options.include.clone()).collect(),
            max_bytes: options.max_untracked_file_bytes,
            capture: NaiveCapture {
                record: Record {
                    version: RECORD_VERSION,
                    snapshot: Snapshot::new(
                        options.id.clone(),
                        BackendKind::Hash,
                        directory.to_owned(),
                        String::new(),
                        options.label.clone(),
                        options.captured_at,
                    ),
                    empty_directories: Vec::new(),
                    modes: Modes::default(),
                    ignore: IgnoreOptions::default(),
                    include: Vec::new(),
                    max_untracked_file_bytes: None,
                    has_content: true,
                    git: None,
                },
                entries: Entries::new(),
                stats: HashMap::new(),
            },
            blobs: Vec::new(),
            modes: Vec::new(),
            omissions: Vec::new(),
        };
        let own = fs::symlink_metadata(directory).unwrap().mode() & RECORDED_BITS;
        walk.modes.push((RelPath::root(), own));
        walk.directory(&RelPath::root());
        let mut capture = walk.capture;
        capture.record.empty_directories.sort();
        capture.record.snapshot.omissions = Coverage::new(walk.omissions);
        capture.record.modes = modes_of(&capture.entries, walk.modes);
        capture.record.git = self.git_state(directory, options.since.as_ref());
        if publish == Publish::Yes {
            self.blobs.borrow_mut().extend(walk.blobs);
            self.records.borrow_mut().insert(
                options.id.clone(),
                (capture.record.clone(), capture.entries.clone()),
            );
        }
        if let Some(work) = self.meanwhile.take() {
            work();
        }
        Ok(capture)
    }

    fn changes(
        &self,
        _: &Operation,
        _: &Workspace,
        from: Side<'_, NaiveCapture>,
        to: &Record,
    ) -> Result<Vec<Change>, StoreError> {
        let (from, to) = (self.entries_of(from), self.entries_of(Side::Stored(to)));
        let mut paths: Vec<RelPath> = from.keys().chain(to.keys()).cloned().collect();
        paths.sort();
        paths.dedup();
        let changes = paths.into_iter().map(|path| Change {
            old: from.get(&path).copied(),
            new: to.get(&path).copied(),
            path,
        });
        Ok(changes.filter(|c| c.old != c.new).collect())
    }

    fn lookup(
        &self,
        _: &Operation,
        _: &Workspace,
        side: Side<'_, NaiveCapture>,
        paths: &[RelPath],
    ) -> Result<Vec<Option<Node>>, StoreError> {
        let entries = self.entries_of(side);
        let node = |path: &RelPath| match entries.get(path) {
            Some(entry) => Some(Node::Entry(*entry)),
            None => {
                let is_directory = entries.keys().any(|p| p.starts_with(path));
                is_directory.then_some(Node::Directory)
            }
        };
        Ok(paths.iter().map(node).collect())
    }

    fn entries(
        &self,
        _: &Operation,
        _: &Workspace,
        record: &Record,
    ) -> Result<Vec<(RelPath, Entry)>, StoreError> {
        Ok(self.entries_of(Side::Stored(record)).into_iter().collect())
    }

    fn ignored(
        &self,
        _: &Operation,
        _: &Workspace,
        side: Side<'_, NaiveCapture>,
        paths: &[RelPath],
    ) -> Result<BTreeMap<RelPath, OmissionReason>, StoreError> {
        let rules = self.rules_of(side);
        let ignored = paths.iter().filter(|p| is_ignored(&rules, p));
        Ok(ignored
            .map(|p| (p.clone(), OmissionReason::Ignored))
            .collect())
    }

    fn ignored_directories(
        &self,
        _: &Operation,
        _: &Workspace,
        side: Side<'_, NaiveCapture>,
        directories: &[RelPath],
    ) -> Result<Vec<RelPath>, StoreError> {
        let rules = self.rules_of(side);
        let ignored = directories.iter().filter(|p| is_ignored(&rules, p));
        Ok(ignored.cloned().collect())
    }

    fn unsound(
        &self,
        op: &Operation,
        workspace: &Workspace,
        ids: &[ContentId],
    ) -> Result<Vec<ContentId>, StoreError> {
        self.missing(op, workspace, ids)
    }

    fn heal(
        &self,
        _: &Operation,
        _: &LockedWorkspace,
        _: &Self::Capture,
        _: &[(RelPath, Entry)],
    ) -> Result<(), SnapshotError> {
        // It has no cache that could have promised too much.
        Ok(())
    }

    fn missing(
        &self,
        _: &Operation,
        _: &Workspace,
        ids: &[ContentId],
    ) -> Result<Vec<ContentId>, StoreError> {
        let blobs = self.blobs.borrow();
        Ok(ids
            .iter()
            .filter(|id| !blobs.contains_key(id))
            .copied()
            .collect())
    }

    fn contents<'a>(
        &'a self,
        _: &Operation,
        _: &'a Workspace,
        ids: &[ContentId],
    ) -> Result<Box<dyn Contents + 'a>, StoreError> {
        let blobs = self.blobs.borrow();
        let asked = ids.iter().map(|id| (*id, blobs[id].clone()));
        Ok(Box::new(NaiveContents(asked.collect())))
    }

    fn user_repository(&self) -> Option<&dyn RestorableRepository> {
        Some(self)
    }
}

impl RestorableRepository for Naive {
    fn found(&self, workspace: &Workspace) -> Result<Option<FoundRepository>, RepositoryProblem> {
        let directory = workspace.disk_path();
        let Some(state) = self.git_state(directory, None) else {
            return Ok(None);
        };
        let git_dir = rev_parse(directory, "--absolute-git-dir");
        let common_dir = rev_parse(directory, "--git-common-dir");
        let common_dir = fs::canonicalize(directory.join(common_dir)).unwrap();
        let found = fs::metadata(&common_dir).unwrap();
        Ok(Some(FoundRepository {
            known_as: known_as(&found),
            git_dir: fs::canonicalize(directory.join(git_dir)).unwrap(),
            common_dir,
            head: state.head,
            in_progress: state.in_progress,
            operation: Ok(state.operation.unwrap_or_default()),
        }))
    }

    fn kept(&self, _: &Operation, _: &Workspace, blob: &ObjectId) -> Result<Vec<u8>, StoreError> {
        let kept = self.indexes.borrow().get(blob).cloned();
        kept.ok_or_else(|| StoreError::corrupt(blob.to_string(), "it was not kept"))
    }
}

impl Naive {
    fn git_state(&self, directory: &Path, since: Option<&SnapshotId>) -> Option<GitState> {
        if !directory.join(".git").exists() {
            return None;
        }
        let git_dir = PathBuf::from(rev_parse(directory, "--absolute-git-dir"));
        let output = |arguments: &[&str]| {
            let output = git_command(directory, arguments).output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap().trim().to_owned();
            output.status.success().then_some(text)
        };
        let branch = output(&["symbolic-ref", "-q", "HEAD"]);
        let commit = output(&["rev-parse", "-q", "--verify", "HEAD"]).map(|c| c.parse().unwrap());
        let head = match (branch, commit) {
            (Some(branch), Some(commit)) => Head::Branch { branch, commit },
            (Some(branch), None) => Head::Unborn { branch },
            (None, commit) => Head::Detached {
                commit: commit.unwrap(),
            },
        };
        let earlier = since.and_then(|id| self.records.borrow().get(id)?.0.git.clone());
        let earlier = earlier.iter().flat_map(GitState::tips);
        let rebased = ["rebase-merge/head-name", "rebase-apply/head-name"]
            .into_iter()
            .filter_map(|file| fs::read_to_string(git_dir.join(file)).ok());
        let names = earlier.map(|(name, _)| name.to_owned());
        let branches = names
            .chain(rebased.map(|name| name.trim().to_owned()))
            .filter(|name| name.starts_with("refs/heads/") && head.branch() != Some(name))
            .map(|name| {
                let tip = output(&["rev-parse", "-q", "--verify", &name]);
                (name, tip.map(|id| id.parse().unwrap()))
            })
            .collect();
        let index_path = git_dir.join("index");
        let modified = fs::metadata(&index_path).ok();
        let index = fs::read(&index_path).ok().map(|bytes| {
            let id = ObjectId::of(ObjectKind::Blob, &bytes).unwrap();
            self.indexes.borrow_mut().insert(id, bytes);
            id
        });
        let operation = self.operation(&git_dir);
        let marks = [
            ("MERGE_HEAD", "merge"),
            ("rebase-merge", "rebase"),
            ("rebase-apply", "rebase"),
        ];
        let mark = marks.iter().find(|(name, _)| git_dir.join(name).exists());
        let common_dir = directory.join(rev_parse(directory, "--git-common-dir"));
        let common_dir = fs::metadata(common_dir).unwrap();
        Some(GitState {
            common_dir: known_as(&common_dir),
            head,
            branches,
            index,
            index_modified_ns: modified
                .map(|found| found.mtime() * 1_000_000_000 + found.mtime_nsec()),
            refs: None,
            ref_details: None,
            history: None,
            safety_refs: BTreeMap::new(),
            in_progress: mark.map(|(_, operation)| (*operation).to_owned()),
            operation: Some(operation),
            scope: RelPath::root(),
            outside_rules: Vec::new(),
            rules_above: Vec::new(),
        })
    }
}

fn known_as(directory: &fs::Metadata) -> KnownDirectory {
    KnownDirectory {
        identity: Identity {
            device: directory.dev(),
            inode: directory.ino(),
        },
        born_ns: None,
    }
}

impl Naive {
    /// Makes a snapshot one of an older version, which did not keep that.
    pub(crate) fn forget_when_the_index_was_written(&self, id: &SnapshotId) {
        let mut records = self.records.borrow_mut();
        let (record, _) = records.get_mut(id).unwrap();
        record.git.as_mut().unwrap().index_modified_ns = None;
    }

    /// Makes a snapshot one of an older version, which kept no files of git's operations.
    pub(crate) fn forget_operation(&self, id: &SnapshotId) {
        let mut records = self.records.borrow_mut();
        let (record, _) = records.get_mut(id).unwrap();
        record.git.as_mut().unwrap().operation = None;
    }

    /// Everything in the git directory that no other part of a repository is known to keep.
    fn operation(&self, git_dir: &Path) -> OperationFiles {
        let mut operation = OperationFiles::default();
        let is_elsewhere = |name: &str| {
            let plain = [
                "HEAD",
                "index",
                "config",
                "description",
                "packed-refs",
                "COMMIT_EDITMSG",
                "FETCH_HEAD",
                "commondir",
                "gitdir",
                "objects",
                "logs",
                "refs",
                "info",
                "hooks",
                "branches",
                "worktrees",
                "modules",
            ];
            plain.contains(&name) || name.ends_with(".lock")
        };
        let mut waiting: Vec<String> = ["refs/bisect", "refs/rewritten"].map(str::to_owned).into();
        for entry in fs::read_dir(git_dir).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            waiting.extend((!is_elsewhere(&name)).then_some(name));
        }
        while let Some(name) = waiting.pop() {
            let path = git_dir.join(&name);
            if path.is_dir() {
                let children = fs::read_dir(&path).unwrap();
                waiting.extend(children.map(|entry| {
                    let child = entry.unwrap().file_name().into_string().unwrap();
                    format!("{name}/{child}")
                }));
                operation.directories.insert(name);
            } else if let Ok(bytes) = fs::read(&path) {
                let id = ObjectId::of(ObjectKind::Blob, &bytes).unwrap();
                self.indexes.borrow_mut().insert(id, bytes);
                operation.files.insert(name, id);
            }
        }
        operation
    }
}

fn rev_parse(directory: &Path, what: &str) -> String {
    let output = git_command(directory, &["rev-parse", what])
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// The usual bits are those that git knows; all others are exceptions.
fn modes_of(entries: &Entries, all: Vec<(RelPath, u32)>) -> Modes {
    let mut modes = Modes::default();
    for (path, mode) in all {
        let usual = match entries.get(&path).map(|e| e.kind) {
            Some(kind) => modes.of(&path, kind),
            None => Some(modes.directory),
        };
        if usual != Some(mode) {
            modes.exceptions.push((path, mode));
        }
    }
    modes.exceptions.sort();
    modes
}
