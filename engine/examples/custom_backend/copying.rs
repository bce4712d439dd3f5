//! A backend that copies every file, so that little has to be explained. It keeps no journal: a
//! crash in the middle of a restore leaves it half-way. It knows no links, permission bits or
//! limits, and lets an id be used twice, so it keeps only some of the promises in
//! `stillframe_backends::testing`.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use stillframe::backends::{
    Backend, BackendKind, Change, ContentId, Diff, DiffError, DiffOptions, Entry, EntryKind,
    InvalidPath, Label, Listing, LockedWorkspace, Operation, PatchText, PathError, PlanId, Problem,
    RelPath, RestoreError, RestoreGoal, RestoreOptions, RestoreOutcome, RestorePlan, SkipReason,
    Skipped, SnapshotError, SnapshotOptions, StoreError, StoredSnapshot, Verification, Why,
    Workspace,
};
use stillframe::{Snapshot, SnapshotId};

/// Copies every file of a workspace. Links and special files are left out.
#[derive(Debug, Default)]
pub(crate) struct CopyingBackend;

/// The files of a snapshot, and the digests of their content.
type Files = BTreeMap<RelPath, [u8; 32]>;

/// Where the snapshots of a workspace are.
fn store(workspace: &Workspace) -> PathBuf {
    workspace.store_path().join("copies")
}

fn content(workspace: &Workspace, snapshot: &SnapshotId) -> PathBuf {
    store(workspace).join(snapshot.as_str()).join("content")
}

fn record(workspace: &Workspace, snapshot: &SnapshotId) -> PathBuf {
    store(workspace).join(snapshot.as_str()).join("record.json")
}

/// Lists the files below `root`.
fn files(root: &Path) -> Result<Files, PathError> {
    let mut files = Files::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        let entries = fs::read_dir(&directory).map_err(PathError::at("list", &directory))?;
        for entry in entries {
            let entry = entry.map_err(PathError::at("list", &directory))?;
            let path = entry.path();
            let kind = entry.file_type().map_err(PathError::at("look at", &path))?;
            if kind.is_dir() {
                directories.push(path);
            } else if kind.is_file() {
                let bytes = fs::read(&path).map_err(PathError::at("read", &path))?;
                let relative = path.strip_prefix(root).expect("it lies below the root");
                let relative = RelPath::new(relative.as_os_str().as_bytes().to_vec())
                    .expect("the system gives out no other paths");
                files.insert(relative, *blake3::hash(&bytes).as_bytes());
            }
        }
    }
    Ok(files)
}

fn changes(from: &Files, to: &Files) -> Vec<Change> {
    let entry = |digest: &[u8; 32]| Entry {
        kind: EntryKind::File,
        id: ContentId::Blake3(*digest),
    };
    let mut paths: Vec<&RelPath> = from.keys().chain(to.keys()).collect();
    paths.sort();
    paths.dedup();
    paths
        .into_iter()
        .filter(|path| from.get(*path) != to.get(*path))
        .map(|path| Change {
            path: path.clone(),
            old: from.get(path).map(entry),
            new: to.get(path).map(entry),
        })
        .collect()
}

/// Writes a patch that replaces every line of every file that changed.
fn write_patch(
    workspace: &Workspace,
    from: &Snapshot,
    to: &Snapshot,
    changes: &[Change],
    patch: &mut dyn Write,
) -> io::Result<()> {
    for change in changes {
        let read = |snapshot: &Snapshot, is_there: bool| match is_there {
            true => fs::read(content(workspace, &snapshot.id).join(change.path.as_path())),
            false => Ok(Vec::new()),
        };
        let old = read(from, change.old.is_some())?;
        let new = read(to, change.new.is_some())?;
        let lines = |bytes: &[u8]| bytes.iter().filter(|b| **b == b'\n').count();
        let path = String::from_utf8_lossy(change.path.as_bytes()).into_owned();
        writeln!(patch, "--- a/{path}\n+++ b/{path}")?;
        writeln!(patch, "@@ -1,{} +1,{} @@", lines(&old), lines(&new))?;
        for (sign, bytes) in [(b"-", &old), (b"+", &new)] {
            for line in bytes.split_inclusive(|b| *b == b'\n') {
                patch.write_all(sign)?;
                patch.write_all(line)?;
            }
        }
    }
    Ok(())
}

/// What a restore has to do: the source of each path, or `None` where it is to be removed.
struct Work {
    plan: RestorePlan,
    steps: BTreeMap<RelPath, Option<SnapshotId>>,
}

impl CopyingBackend {
    fn files_of(&self, workspace: &Workspace, snapshot: &Snapshot) -> Result<Files, StoreError> {
        let root = content(workspace, &snapshot.id);
        if !root.is_dir() {
            let id = snapshot.id.clone();
            return Err(StoreError::UnknownSnapshot { id });
        }
        Ok(files(&root)?)
    }

    /// Decides what to do. Nothing is touched.
    fn decide(&self, workspace: &Workspace, goal: &RestoreGoal) -> Result<Work, RestoreError> {
        let now = files(workspace.disk_path()).map_err(StoreError::from)?;
        let mut steps = BTreeMap::new();
        let mut skipped = Vec::new();
        let target = match goal {
            RestoreGoal::Snapshot { snapshot, paths } => {
                let wanted = self.files_of(workspace, snapshot)?;
                if let Some(unknown) = paths
                    .iter()
                    .find(|path| !wanted.keys().any(|known| known.starts_with(path)))
                {
                    return Err(RestoreError::UnknownPath {
                        snapshot: snapshot.id.clone(),
                        path: unknown.clone(),
                    });
                }
                for change in changes(&now, &wanted) {
                    let in_scope =
                        paths.is_empty() || paths.iter().any(|p| change.path.starts_with(p));
                    if in_scope {
                        let source = change.new.map(|_| snapshot.id.clone());
                        steps.insert(change.path, source);
                    }
                }
                snapshot
            }
            RestoreGoal::Undo {
                before,
                after,
                paths,
            } => {
                let (old, new) = (
                    self.files_of(workspace, before)?,
                    self.files_of(workspace, after)?,
                );
                for change in changes(&new, &old) {
                    let path = change.path;
                    let is_meant = paths.as_ref().is_none_or(|p| p.contains(&path));
                    if !is_meant || now.get(&path) == old.get(&path) {
                        continue;
                    }
                    if now.get(&path) == new.get(&path) {
                        steps.insert(path, change.new.map(|_| before.id.clone()));
                    } else {
                        let reason = SkipReason::EditedSince;
                        skipped.push(Skipped { path, reason });
                    }
                }
                before
            }
        };
        // What is there now is part of the id: the plan is another one once the worktree moved.
        let digest = blake3::hash(format!("{:?}{steps:?}{now:?}", target.id).as_bytes());
        let id: PlanId = format!("plan_{}", &digest.to_hex()[..32])
            .parse()
            .expect("any text is taken");
        let mut plan = RestorePlan::empty(id, target.id.clone());
        plan.skipped = skipped;
        Ok(Work { plan, steps })
    }
}

/// A snapshot: a directory with the copies.
struct Copies {
    files: PathBuf,
}

impl StoredSnapshot for Copies {
    fn why(&self, _: &Operation, path: &RelPath) -> Result<Why, StoreError> {
        Ok(why(&self.files, path))
    }
}

/// Whether there is a file at `path`, in the workspace or in a snapshot.
fn why(root: &Path, path: &RelPath) -> Why {
    let found = fs::symlink_metadata(root.join(path.as_path()));
    let is_file = found.is_ok_and(|meta| meta.is_file());
    let reason = if is_file { "untracked" } else { "absent" };
    Why::new(path.clone(), is_file, reason)
}

impl Backend for CopyingBackend {
    fn kind(&self) -> BackendKind {
        BackendKind::Hash
    }

    fn snapshot(
        &self,
        op: &Operation,
        workspace: &LockedWorkspace,
        options: &SnapshotOptions,
    ) -> Result<Snapshot, SnapshotError> {
        let root = workspace.disk_path();
        let unreadable = |source| SnapshotError::Unreadable {
            context: "the workspace cannot be read".to_owned(),
            source,
        };
        let files = files(root).map_err(unreadable)?;
        op.check()?;
        let copies = content(workspace, &options.id);
        fs::create_dir_all(&copies)
            .map_err(PathError::at("make", &copies))
            .map_err(StoreError::from)?;
        let mut digest = blake3::Hasher::new();
        for (path, content) in &files {
            let to = copies.join(path.as_path());
            let parent = to.parent().expect("it lies below the copies");
            fs::create_dir_all(parent)
                .and_then(|()| fs::copy(root.join(path.as_path()), &to))
                .map_err(PathError::at("copy to", &to))
                .map_err(StoreError::from)?;
            digest
                .update(&(path.as_bytes().len() as u64).to_le_bytes())
                .update(path.as_bytes())
                .update(content);
        }
        let mut snapshot = Snapshot::new(
            options.id.clone(),
            self.kind(),
            root.to_owned(),
            digest.finalize().to_hex().to_string(),
            options.label.clone(),
            options.captured_at,
        );
        snapshot.metadata.files = files.len() as u64;
        let text = serde_json::to_vec(&snapshot).expect("a snapshot is plain data");
        let record = record(workspace, &options.id);
        // Last: what has no record is no snapshot.
        fs::write(&record, text)
            .map_err(PathError::at("write", &record))
            .map_err(StoreError::from)?;
        Ok(snapshot)
    }

    fn open<'a>(
        &'a self,
        _: &Operation,
        workspace: &'a Workspace,
        snapshot: &Snapshot,
    ) -> Result<Box<dyn StoredSnapshot + 'a>, StoreError> {
        let id = snapshot.id.clone();
        let files = content(workspace, &id);
        match files.is_dir() {
            true => Ok(Box::new(Copies { files })),
            false => Err(StoreError::UnknownSnapshot { id }),
        }
    }

    fn list(&self, _: &Operation, workspace: &Workspace) -> Result<Listing, StoreError> {
        let store = store(workspace);
        let entries = match fs::read_dir(&store) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Listing::default()),
            Err(e) => return Err(PathError::at("list", &store)(e).into()),
        };
        let mut snapshots = Vec::new();
        for entry in entries.flatten() {
            let path = entry.path().join("record.json");
            let Ok(text) = fs::read(&path) else { continue };
            let snapshot: Snapshot =
                serde_json::from_slice(&text).map_err(|e| StoreError::Corrupt {
                    what: path.display().to_string(),
                    detail: e.to_string(),
                })?;
            snapshots.push(snapshot);
        }
        snapshots.sort_by_key(|s| s.captured_at);
        Ok(Listing::new(snapshots))
    }

    fn diff(
        &self,
        _: &Operation,
        workspace: &Workspace,
        from: &Snapshot,
        to: &Snapshot,
        options: &DiffOptions,
        patch: &mut dyn Write,
    ) -> Result<Diff, DiffError> {
        let changes = changes(
            &self.files_of(workspace, from)?,
            &self.files_of(workspace, to)?,
        );
        let mut diff = Diff::of_changes(self.kind(), &from.reference, &to.reference, &changes);
        if options.capture_patch {
            let mut text = Vec::new();
            write_patch(workspace, from, to, &changes, &mut text).map_err(DiffError::Sink)?;
            patch.write_all(&text).map_err(DiffError::Sink)?;
            let bytes = text.len() as u64;
            diff.patch_bytes = Some(bytes);
            diff.has_patch = bytes > 0;
            diff.patch_truncated = bytes > options.max_patch_bytes;
            if diff.has_patch && !diff.patch_truncated {
                diff.patch = Some(PatchText(text));
            }
        }
        Ok(diff)
    }

    fn plan(
        &self,
        _: &Operation,
        workspace: &LockedWorkspace,
        goal: &RestoreGoal,
        _options: &RestoreOptions,
    ) -> Result<RestorePlan, RestoreError> {
        Ok(self.decide(workspace, goal)?.plan)
    }

    fn restore(
        &self,
        op: &Operation,
        workspace: &mut LockedWorkspace,
        goal: &RestoreGoal,
        options: &RestoreOptions,
    ) -> Result<RestoreOutcome, RestoreError> {
        let work = self.decide(workspace, goal)?;
        if let Some(expected) = options.expected_plan.clone()
            && expected != work.plan.id
        {
            let found = work.plan.id;
            return Err(RestoreError::PlanChanged { expected, found });
        }
        let mut guard = options.guard.clone();
        guard.label = Label::GUARD;
        let guard = self
            .snapshot(op, workspace, &guard)
            .map_err(RestoreError::Guard)?;
        for (path, source) in &work.steps {
            let to = workspace.disk_path().join(path.as_path());
            let done = match source {
                None => fs::remove_file(&to),
                Some(snapshot) => {
                    let from = content(workspace, snapshot).join(path.as_path());
                    let parent = to.parent().expect("it lies below the workspace");
                    fs::create_dir_all(parent)
                        .and_then(|()| fs::copy(&from, &to))
                        .map(|_| ())
                }
            };
            done.map_err(PathError::at("put back", &to))
                .map_err(RestoreError::Apply)?;
        }
        let mut after = options.guard.clone();
        after.id = SnapshotId::random();
        let result = self
            .snapshot(&op.to_its_end(), workspace, &after)
            .map_err(RestoreError::Closing)?;
        let mut outcome = RestoreOutcome::new(work.plan, guard, result);
        outcome.skipped = outcome.plan.skipped.clone();
        outcome.restored = work.steps.into_keys().collect();
        Ok(outcome)
    }

    fn why(
        &self,
        _: &Operation,
        workspace: &LockedWorkspace,
        path: &RelPath,
        _options: &SnapshotOptions,
    ) -> Result<Why, SnapshotError> {
        if path.is_root() {
            return Err(InvalidPath {
                path: String::new(),
                reason: "it is the workspace itself",
            }
            .into());
        }
        Ok(why(workspace.disk_path(), path))
    }

    fn verify(
        &self,
        _: &Operation,
        workspace: &Workspace,
        snapshots: &[&Snapshot],
    ) -> Vec<Result<Verification, StoreError>> {
        let verify = |snapshot: &&Snapshot| {
            let found = self.files_of(workspace, snapshot)?.len() as u64;
            let expected = snapshot.metadata.files;
            if found == expected {
                return Ok(Verification::default());
            }
            let detail = format!("{found} of {expected} files are there");
            let problem = Problem::new(snapshot.id.to_string(), detail);
            Ok(Verification::new(vec![problem]))
        };
        snapshots.iter().map(verify).collect()
    }

    fn forget(
        &self,
        _: &Operation,
        workspace: &mut LockedWorkspace,
        ids: &[SnapshotId],
        _unreadable: &[String],
    ) -> Result<(), StoreError> {
        for id in ids {
            let record = record(workspace, id);
            match fs::remove_file(&record) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    return Err(PathError::at("remove", &record)(e).into());
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn collect(&self, _: &Operation, workspace: &mut LockedWorkspace) -> Result<u64, StoreError> {
        let before = self.store_bytes(workspace)?;
        let store = store(workspace);
        for entry in fs::read_dir(&store).into_iter().flatten().flatten() {
            if !entry.path().join("record.json").exists() {
                fs::remove_dir_all(entry.path()).map_err(PathError::at("remove", entry.path()))?;
            }
        }
        Ok(before - self.store_bytes(workspace)?)
    }

    fn store_bytes(&self, workspace: &Workspace) -> Result<u64, StoreError> {
        let root = store(workspace);
        if !root.is_dir() {
            return Ok(0);
        }
        let size = |path: &RelPath| fs::metadata(root.join(path.as_path())).map_or(0, |m| m.len());
        Ok(files(&root)?.keys().map(size).sum())
    }
}
