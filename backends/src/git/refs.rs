//! The refs of the store: one for each snapshot, guard and checkpoint.
//!
//! `refs/snapshots/<session>/<run>/<seq>`, `refs/guards/<session>/<run>/<seq>` and
//! `refs/checkpoints/<task>/<seq>`. We read and
//! write the files ourselves: if libgit2 is killed while it writes a ref, it leaves a lock that
//! somebody has to remove. git can read our refs, and refs that a user has packed with git are read
//! here.

mod last;

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use super::ObjectId;
use super::pack::TEMPORARY_PREFIX;
use crate::durable::make_private;
use crate::durable::{self, StagedFile};
use crate::error::PathError;
use crate::faults::Effect;
use crate::operation::Operation;
use crate::owner::Owner;
use crate::store_error::StoreError;

/// What stands for "no run" in a ref's name.
const NO_RUN: &str = "manual";
/// The longest component of a name that is not replaced by its hash. A name of 255 bytes is what
/// file systems take, and git puts `.lock` behind it.
const MAX_COMPONENT_BYTES: usize = 240;
/// How often a number that another process took meanwhile is replaced by the next.
const MAX_TRIES: u32 = 100;
/// An id and a line feed, and room for what a person adds.
const MAX_REF_BYTES: u64 = 4096;
/// More than a million snapshots.
const MAX_PACKED_BYTES: u64 = 256 << 20;

/// What a ref is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Namespace {
    /// What a host asked for.
    Snapshots,
    /// What was there before a restore.
    Guards,
}

impl Namespace {
    const ALL: [Self; 2] = [Self::Snapshots, Self::Guards];

    fn directory(self) -> &'static str {
        match self {
            Self::Snapshots => "refs/snapshots",
            Self::Guards => "refs/guards",
        }
    }
}

/// A ref of one snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SnapshotRef {
    /// The full name.
    pub(crate) name: String,
    /// The last part of it. Every publication takes a higher one than all that are there, whatever
    /// their session: this is the order in which they came about, also if the clock was set back.
    pub(crate) seq: u64,
    /// What it names.
    pub(crate) commit: ObjectId,
}

/// A ref of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CheckpointRef {
    /// The full name.
    pub(crate) name: String,
    /// The last part of it: which of its task's it is.
    pub(crate) number: u64,
    /// What it names.
    pub(crate) commit: ObjectId,
}

/// Where the refs of checkpoints are.
const CHECKPOINTS: &str = "refs/checkpoints";

/// A ref of a snapshot that names nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BrokenRef {
    /// The full name; `packed-refs` for lines of that file.
    pub(crate) name: String,
    /// What is wrong with it.
    pub(crate) detail: String,
}

/// What is said of a ref that holds no id.
const NO_ID: &str = "it does not hold an object id";
/// What a git that was run by hand keeps refs in.
const PACKED: &str = "packed-refs";

/// What a directory is known by. One that is made again under its name may have the inode of the
/// one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Birth {
    inode: u64,
    /// In nanoseconds since the Unix epoch.
    born_ns: u128,
}

/// The refs below one repository.
#[derive(Debug)]
pub(crate) struct Refs {
    git_dir: PathBuf,
    /// Directories whose own names were synced, with all above them, as which they were.
    durable: Mutex<HashMap<String, Birth>>,
}

impl Refs {
    pub(crate) fn new(git_dir: &Path) -> Self {
        Self {
            git_dir: git_dir.to_owned(),
            durable: Mutex::default(),
        }
    }

    /// All snapshots and guards, in the order in which they were published.
    ///
    /// Those that name nothing hide no other: they are the second part of
    /// [`Refs::found`].
    pub(crate) fn snapshots(&self) -> Result<Vec<SnapshotRef>, StoreError> {
        Ok(self.found()?.0)
    }

    /// As [`Refs::snapshots`], and the refs of snapshots that name nothing, by name. Each file is
    /// read once.
    pub(crate) fn found(&self) -> Result<(Vec<SnapshotRef>, Vec<BrokenRef>), StoreError> {
        let packed = self.packed()?;
        let mut broken = Vec::new();
        let mut refs: BTreeMap<_, _> = packed
            .refs
            .into_iter()
            .filter_map(|(name, commit)| {
                let seq = seq_of(&name)?;
                Some((name.clone(), SnapshotRef { name, seq, commit }))
            })
            .collect();
        for (seq, name) in self.loose_below(&Namespace::ALL.map(|n| n.directory().to_owned()))? {
            match self.read(&name) {
                Ok(Some(commit)) => {
                    refs.insert(name.clone(), SnapshotRef { name, seq, commit });
                }
                // One that was packed before counts no more: this is what came after it.
                Err(StoreError::Corrupt { detail, .. }) => {
                    refs.remove(&name);
                    broken.push(BrokenRef { name, detail });
                }
                Ok(None) => {}
                Err(error) => return Err(error),
            }
        }
        let mut refs: Vec<_> = refs.into_values().collect();
        refs.sort_by(|a, b| (a.seq, &a.name).cmp(&(b.seq, &b.name)));
        broken.sort_by(|a, b| a.name.cmp(&b.name));
        broken.extend(packed.detail.map(|detail| BrokenRef {
            name: PACKED.to_owned(),
            detail,
        }));
        Ok((refs, broken))
    }

    /// The one that was published last.
    pub(crate) fn latest(&self) -> Result<Option<SnapshotRef>, StoreError> {
        if let Some(last) = self.last() {
            return Ok(Some(last.found));
        }
        match self.latest_name(&Namespace::ALL.map(|n| n.directory().to_owned()))? {
            Some((_, name)) => self.get(&name),
            None => Ok(None),
        }
    }

    /// How many there are, and what the one that was published last names, if that can be read. No
    /// other is opened, and none is listed where the [last](Refs::last) is known.
    pub(crate) fn holdings(&self) -> Result<(u64, Option<ObjectId>), StoreError> {
        if let Some(last) = self.last() {
            return Ok((last.count, Some(last.found.commit)));
        }
        let names = self.names()?;
        let newest = match names.last() {
            Some((_, name)) => match self.get(name) {
                Err(StoreError::Corrupt { .. }) => None,
                found => found?,
            },
            None => None,
        };
        Ok((names.len() as u64, newest.map(|found| found.commit)))
    }

    /// How many there are.
    fn count(&self) -> Result<u64, StoreError> {
        Ok(self.names()?.len() as u64)
    }

    /// Number and name of every one, in the order in which they were published.
    fn names(&self) -> Result<Vec<(u64, String)>, StoreError> {
        let mut names = self.names_below(&Namespace::ALL.map(|n| n.directory().to_owned()))?;
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    /// The names of those that a session published, the last one first. None of them is read: one
    /// that is in the way may be damaged.
    pub(crate) fn of_session(&self, session_id: &str) -> Result<Vec<String>, StoreError> {
        let session = component(session_id);
        let mut names =
            self.names_below(&Namespace::ALL.map(|n| format!("{}/{session}", n.directory())))?;
        names.sort_unstable_by(|a, b| b.cmp(a));
        names.dedup();
        Ok(names.into_iter().map(|(_, name)| name).collect())
    }

    /// Every ref of the repository with what it names, also those that are no snapshots. A ref that
    /// names nothing is an error, because it could have been any of the snapshots.
    pub(crate) fn all(&self) -> Result<BTreeMap<String, ObjectId>, StoreError> {
        let mut refs = self.packed()?.whole()?;
        for name in self.loose_names("refs")? {
            if let Some(id) = self.read(&name)? {
                refs.insert(name, id);
            }
        }
        Ok(refs)
    }

    /// The snapshot that `name` names now; `None` if there is none.
    pub(crate) fn get(&self, name: &str) -> Result<Option<SnapshotRef>, StoreError> {
        let Some(seq) = seq_of(name) else {
            return Ok(None);
        };
        let commit = match self.read(name)? {
            Some(commit) => Some(commit),
            None => self.packed()?.refs.get(name).copied(),
        };
        Ok(commit.map(|commit| SnapshotRef {
            name: name.to_owned(),
            seq,
            commit,
        }))
    }

    /// Writes what a ref to `commit` consists of. To be synced before [`Refs::create`] names it.
    pub(crate) fn stage(&self, op: &Operation, commit: &ObjectId) -> Result<StagedFile, PathError> {
        let staged = StagedFile::create(op, &self.git_dir, &format!("{TEMPORARY_PREFIX}ref_"))?;
        staged.write_at(format!("{commit}\n").as_bytes(), 0)?;
        Ok(staged)
    }

    /// Makes a ref that was not there before, with the next number, durably. `staged` is what it
    /// consists of, and `last` the number before it, if that is known.
    ///
    /// On `Err` there is no such ref.
    pub(crate) fn create(
        &self,
        op: &Operation,
        namespace: Namespace,
        owner: &Owner,
        commit: ObjectId,
        mut staged: StagedFile,
        mut last: Option<u64>,
    ) -> Result<SnapshotRef, StoreError> {
        let session = component(&owner.session_id);
        let run = owner.run_id.as_deref().map_or(NO_RUN.to_owned(), |run_id| {
            match run_id == NO_RUN {
                // Not to be taken for the snapshots without a run.
                true => escape(run_id, |at, _| at == 0),
                false => component(run_id),
            }
        });
        let directory = format!("{}/{session}/{run}", namespace.directory());
        for _ in 0..MAX_TRIES {
            let last = match last.take() {
                Some(last) => last,
                None => {
                    let everywhere = Namespace::ALL.map(|n| n.directory().to_owned());
                    self.latest_name(&everywhere)?.map_or(0, |(seq, _)| seq)
                }
            };
            let seq = last + 1;
            make_private(op, &self.git_dir.join(&directory))?;
            let name = format!("{directory}/{seq}");
            let path = self.git_dir.join(&name);
            match staged.rename_to_new(&path) {
                Ok(()) => {
                    if !seeded_bug!("ref-not-synced") {
                        self.make_durable(op, &directory, &path)?;
                    }
                    return Ok(SnapshotRef { name, seq, commit });
                }
                // Another process took the number, or removed the directory when it was empty.
                Err((error, file))
                    if matches!(
                        error.kind(),
                        io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound
                    ) =>
                {
                    staged = file;
                }
                Err((error, _)) => return Err(PathError::at("make the ref", path)(error).into()),
            }
        }
        let path = self.git_dir.join(directory);
        let source = io::Error::other("others take every number first");
        Err(PathError::at("make a ref in", path)(source).into())
    }

    /// Makes the ref of a task's checkpoint, durably; `false`: there is one of that number.
    /// `staged` is what it consists of, and was synced.
    pub(crate) fn create_checkpoint(
        &self,
        op: &Operation,
        name: &str,
        mut staged: StagedFile,
    ) -> Result<bool, StoreError> {
        let path = self.git_dir.join(name);
        let (directory, _) = name.rsplit_once('/').expect("it has several parts");
        for _ in 0..MAX_TRIES {
            make_private(op, parent(&path))?;
            match staged.rename_to_new(&path) {
                Ok(()) => {
                    self.make_durable(op, directory, &path)?;
                    return Ok(true);
                }
                Err((e, _)) if e.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
                // Another process removed the directory when it was empty.
                Err((e, file)) if e.kind() == io::ErrorKind::NotFound => staged = file,
                Err((e, _)) => return Err(PathError::at("make the ref", path)(e).into()),
            }
        }
        let source = io::Error::other("its directory goes again and again");
        Err(PathError::at("make the ref", path)(source).into())
    }

    /// The checkpoints of `task`, or of every task, by name and number.
    pub(crate) fn checkpoints(&self, task: Option<&str>) -> Result<Vec<CheckpointRef>, StoreError> {
        let directory = match task {
            Some(task) => format!("{CHECKPOINTS}/{}", component(task)),
            None => CHECKPOINTS.to_owned(),
        };
        let mut names: Vec<String> = self.packed()?.refs.into_keys().collect();
        names.extend(self.loose_names(&directory)?);
        names.sort_unstable();
        names.dedup();
        let mut found = Vec::new();
        for name in names {
            let is_below = name
                .strip_prefix(&*directory)
                .is_some_and(|r| r.starts_with('/'));
            let Some(number) = checkpoint_number(&name).filter(|_| is_below) else {
                continue;
            };
            let commit = match self.read(&name)? {
                Some(commit) => Some(commit),
                None => self.packed()?.refs.get(&name).copied(),
            };
            found.extend(commit.map(|commit| CheckpointRef {
                name,
                number,
                commit,
            }));
        }
        found.sort_by(|a, b| {
            (parent(Path::new(&a.name)), a.number).cmp(&(parent(Path::new(&b.name)), b.number))
        });
        Ok(found)
    }

    /// Removes refs, durably. One that is not there is fine.
    pub(crate) fn remove(&self, op: &Operation, names: &[String]) -> Result<(), StoreError> {
        // It counts no more by itself, but for a snapshot that nothing leads to by its id.
        let _ = self.forget_last(op);
        self.remove_packed(op, names)?;
        let mut directories: Vec<PathBuf> = Vec::new();
        for name in names.iter().filter(|name| *name != PACKED) {
            let path = self.git_dir.join(name);
            remove_file(op, &path)?;
            directories.push(parent(&path).to_owned());
        }
        directories.sort();
        directories.dedup();
        for run in directories {
            match durable::sync_directory(op, &run) {
                Err(e) if e.source.kind() == io::ErrorKind::NotFound => {}
                other => other?,
            }
            // One that is made again is new.
            if let Ok(mut known) = self.durable.lock() {
                known.clear();
            }
            // They go when they are empty, which the file system knows best.
            let _ = fs::remove_dir(&run).and_then(|()| fs::remove_dir(parent(&run)));
        }
        Ok(())
    }

    /// The highest number in these directories, and the name that has it.
    fn latest_name(&self, directories: &[String]) -> Result<Option<(u64, String)>, StoreError> {
        Ok(self.names_below(directories)?.into_iter().max())
    }

    /// Number and name of each snapshot in these directories, packed ones too, in no order.
    fn names_below(&self, directories: &[String]) -> Result<Vec<(u64, String)>, StoreError> {
        let packed = self.packed()?.refs.into_keys().filter_map(|name| {
            let is_below = |d: &String| name.strip_prefix(d).is_some_and(|r| r.starts_with('/'));
            let seq = seq_of(&name).filter(|_| directories.iter().any(is_below))?;
            Some((seq, name))
        });
        Ok(packed.chain(self.loose_below(directories)?).collect())
    }

    /// Number and name of each snapshot in these directories. Not one file is opened: there may be
    /// very many.
    fn loose_below(&self, directories: &[String]) -> Result<Vec<(u64, String)>, StoreError> {
        let mut found = Vec::new();
        for directory in directories {
            let names = self.loose_names(directory)?;
            found.extend(
                names
                    .into_iter()
                    .filter_map(|name| Some((seq_of(&name)?, name))),
            );
        }
        Ok(found)
    }

    /// The names of all files below `directory`, in no order. Links are not followed.
    fn loose_names(&self, directory: &str) -> Result<Vec<String>, StoreError> {
        let mut names = Vec::new();
        let mut pending = vec![directory.to_owned()];
        while let Some(directory) = pending.pop() {
            let path = self.git_dir.join(&directory);
            let entries = match fs::read_dir(&path) {
                Ok(entries) => entries,
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(e) => return Err(PathError::at("list", path)(e).into()),
            };
            for entry in entries {
                let entry = entry.map_err(PathError::at("list", &path))?;
                let file_type = entry
                    .file_type()
                    .map_err(PathError::at("look at", entry.path()))?;
                let Ok(name) = entry.file_name().into_string() else {
                    continue;
                };
                let name = format!("{directory}/{name}");
                if file_type.is_dir() {
                    pending.push(name);
                } else if file_type.is_file() && !name.ends_with(".lock") {
                    names.push(name);
                }
            }
        }
        Ok(names)
    }

    fn read(&self, name: &str) -> Result<Option<ObjectId>, StoreError> {
        let path = self.git_dir.join(name);
        let Some(bytes) = durable::read(&path, MAX_REF_BYTES)? else {
            return Ok(None);
        };
        let text = std::str::from_utf8(&bytes).unwrap_or_default();
        match text.trim_end().parse() {
            Ok(id) => Ok(Some(id)),
            Err(_) => Err(StoreError::corrupt(format!("the ref {name}"), NO_ID)),
        }
    }

    /// What a git that was run by hand has packed.
    fn packed(&self) -> Result<Packed, StoreError> {
        let path = self.git_dir.join(PACKED);
        let mut packed = Packed::default();
        let bytes = match durable::read(&path, MAX_PACKED_BYTES) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Ok(packed),
            Err(StoreError::Corrupt { detail, .. }) => {
                packed.detail = Some(detail);
                return Ok(packed);
            }
            Err(error) => return Err(error),
        };
        for line in String::from_utf8_lossy(&bytes).lines() {
            if line.starts_with(['#', '^']) {
                continue;
            }
            let parsed = line
                .split_once(' ')
                .and_then(|(id, name)| Some((name.to_owned(), id.parse().ok()?)));
            match parsed {
                Some((name, id)) => drop(packed.refs.insert(name, id)),
                None => packed.detail = Some("a line of it names no object".to_owned()),
            }
        }
        Ok(packed)
    }

    fn remove_packed(&self, op: &Operation, names: &[String]) -> Result<(), StoreError> {
        let packed = self.packed()?;
        // Its own name stands for the lines that name nothing.
        let is_cleaned = packed.detail.is_some() && names.iter().any(|name| name == PACKED);
        if !is_cleaned && !names.iter().any(|name| packed.refs.contains_key(name)) {
            return Ok(());
        }
        let packed = match is_cleaned {
            true => packed.refs,
            false => packed.whole()?,
        };
        // git's own protocol: the process that makes the lock file may replace the file by it.
        let path = self.git_dir.join(PACKED);
        let lock = self.git_dir.join("packed-refs.lock");
        let mut file = op
            .effect(Effect::Stage(&self.git_dir))
            .and_then(|()| durable::private_file().create_new(true).open(&lock))
            .map_err(PathError::at("make", &lock))?;
        let mut text = String::from("# pack-refs with: sorted \n");
        for (name, id) in packed.iter().filter(|(name, _)| !names.contains(name)) {
            text.push_str(&format!("{id} {name}\n"));
        }
        let rename = Effect::<&Path>::Rename {
            from: &lock,
            to: &path,
        };
        let replaced = op
            .effect(Effect::Write(&lock))
            .and_then(|()| file.write_all(text.as_bytes()))
            .and_then(|()| op.effect(Effect::Sync(&lock)))
            .and_then(|()| file.sync_all())
            .and_then(|()| op.effect(rename))
            .and_then(|()| fs::rename(&lock, &path))
            .map_err(PathError::at("replace", &path));
        if replaced.is_err() {
            let _ = fs::remove_file(&lock);
        }
        replaced?;
        Ok(durable::sync_directory(op, &self.git_dir)?)
    }

    /// As what a directory was synced by this process, with all above it.
    fn synced_as(&self, directory: &str) -> Option<Birth> {
        self.durable.lock().ok()?.get(directory).copied()
    }

    /// Syncs the directory of the ref at `path`, and those above it whose names are not known to be
    /// durable.
    fn make_durable(&self, op: &Operation, directory: &str, path: &Path) -> Result<(), PathError> {
        let birth = Birth::of(parent(path));
        let is_known = birth.is_some()
            && (self.synced_as(directory) == birth || self.noted_as_synced(directory) == birth);
        let sync = || {
            let up = Path::new(directory).ancestors();
            up.filter(|d| !d.as_os_str().is_empty())
                .take(if is_known { 1 } else { usize::MAX })
                .try_for_each(|d| durable::sync_directory(op, &self.git_dir.join(d)))?;
            if let Ok(mut known) = self.durable.lock()
                && let Some(birth) = birth
            {
                // A host may have runs without end on one workspace.
                if known.len() > 1024 {
                    known.clear();
                }
                known.insert(directory.to_owned(), birth);
            }
            Ok(())
        };
        // The ref is there: its durability is asked for again before that is taken back. What was
        // answered with an error must not be found later.
        sync().or_else(|_| sync()).inspect_err(|_| {
            let _ = durable::remove_file(op, path);
        })
    }
}

/// What was read of the packed refs.
#[derive(Debug, Default)]
struct Packed {
    refs: BTreeMap<String, ObjectId>,
    /// What is wrong with the file, if anything is.
    detail: Option<String>,
}

impl Packed {
    /// All of them, or nothing.
    fn whole(self) -> Result<BTreeMap<String, ObjectId>, StoreError> {
        match self.detail {
            None => Ok(self.refs),
            Some(detail) => Err(StoreError::corrupt(PACKED, detail)),
        }
    }
}

fn remove_file(op: &Operation, path: &Path) -> Result<(), PathError> {
    match durable::remove_file(op, path) {
        Err(e) if e.source.kind() == io::ErrorKind::NotADirectory => Ok(()),
        removed => removed,
    }
}

fn parent(path: &Path) -> &Path {
    path.parent().expect("it lies in the repository")
}

/// Whether a snapshot with a ref of this name is a session's.
pub(crate) fn is_of_session(name: &str, session_id: &str) -> bool {
    // Below its namespace.
    name.split('/').nth(2) == Some(&*component(session_id))
}

/// Whether a ref of this name is that of a snapshot.
pub(crate) fn is_of_snapshot(name: &str) -> bool {
    seq_of(name).is_some()
}

/// The number at the end of a snapshot's ref; `None` for any other ref.
fn seq_of(name: &str) -> Option<u64> {
    let rest = Namespace::ALL
        .iter()
        .find_map(|n| name.strip_prefix(n.directory())?.strip_prefix('/'))?;
    let mut parts = rest.split('/');
    let (_session, _run, seq) = (parts.next()?, parts.next()?, parts.next()?);
    // One spelling for each number.
    let is_plain = seq.bytes().all(|b| b.is_ascii_digit()) && !seq.starts_with('0');
    seq.parse()
        .ok()
        .filter(|_| is_plain && parts.next().is_none())
}

/// The name of the ref of a task's checkpoint.
pub(crate) fn checkpoint_name(task: &str, number: u64) -> String {
    format!("{CHECKPOINTS}/{}/{number}", component(task))
}

/// The number at the end of a checkpoint's ref; `None` for any other ref.
fn checkpoint_number(name: &str) -> Option<u64> {
    let (_, number) = name
        .strip_prefix(CHECKPOINTS)?
        .strip_prefix('/')?
        .split_once('/')?;
    let is_plain = number.bytes().all(|b| b.is_ascii_digit()) && !number.starts_with('0');
    number.parse().ok().filter(|_| is_plain)
}

/// A session's, run's or task's id as part of a ref's name: two ids never give one name, and git
/// takes all of them (`git check-ref-format`).
///
/// What git would refuse is written as `%` and two digits; an id for which that gets too long as
/// `%%` and its blake3 hash.
pub(crate) fn component(id: &str) -> String {
    let bytes = id.as_bytes();
    let escaped = escape(id, |at, byte| match byte {
        b'.' => {
            at == 0 || matches!(bytes.get(at + 1), None | Some(b'.')) || bytes[at..] == *b".lock"
        }
        b'_' | b'-' => false,
        _ => !byte.is_ascii_alphanumeric(),
    });
    if escaped.is_empty() || escaped.len() > MAX_COMPONENT_BYTES {
        return format!("%%{}", blake3::hash(bytes).to_hex());
    }
    escaped
}

fn escape(id: &str, is_escaped: impl Fn(usize, u8) -> bool) -> String {
    let mut escaped = String::new();
    for (at, byte) in id.bytes().enumerate() {
        if is_escaped(at, byte) {
            escaped.push_str(&format!("%{byte:02x}"));
        } else {
            escaped.push(char::from(byte));
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::git::test_repository::TestRepository;

    fn create(
        refs: &Refs,
        namespace: Namespace,
        owner: &Owner,
        commit: ObjectId,
    ) -> Result<SnapshotRef, StoreError> {
        let staged = refs.stage(&Operation::unbounded(), &commit)?;
        staged.sync()?;
        refs.create(
            &Operation::unbounded(),
            namespace,
            owner,
            commit,
            staged,
            None,
        )
    }

    fn owner(session_id: &str, run_id: Option<&str>) -> Owner {
        Owner {
            session_id: session_id.to_owned(),
            run_id: run_id.map(str::to_owned),
        }
    }

    fn with_refs() -> (TestRepository, Refs, ObjectId) {
        let repository = TestRepository::with_commit();
        let commit = repository.git(&["rev-parse", "HEAD"]).parse().unwrap();
        let refs = Refs::new(&repository.path.join(".git"));
        (repository, refs, commit)
    }

    fn names(refs: &[SnapshotRef]) -> Vec<&str> {
        refs.iter().map(|r| r.name.as_str()).collect()
    }

    #[test]
    fn refs_are_numbered_in_the_order_they_came_and_git_reads_them() {
        let (repository, refs, commit) = with_refs();
        for (namespace, session, run) in [
            (Namespace::Snapshots, "s1", Some("r1")),
            (Namespace::Guards, "s1", Some("r1")),
            (Namespace::Snapshots, "s2", None),
            (Namespace::Snapshots, "s1", Some("r1")),
        ] {
            create(&refs, namespace, &owner(session, run), commit).unwrap();
        }
        let all = refs.snapshots().unwrap();
        let expected = [
            "refs/snapshots/s1/r1/1",
            "refs/guards/s1/r1/2",
            "refs/snapshots/s2/manual/3",
            "refs/snapshots/s1/r1/4",
        ];
        assert_eq!(names(&all), expected);
        assert!(all.iter().all(|r| r.commit == commit));
        let of = |session| refs.of_session(session).unwrap();
        let own = [3, 1, 0].map(|at: usize| all[at].name.clone());
        assert_eq!(of("s1"), own, "the last one first");
        assert_eq!(of("s2"), [all[2].name.clone()]);
        assert_eq!(of("s"), [""; 0], "a beginning is another session");
        assert_eq!(refs.latest().unwrap().as_ref(), Some(&all[3]));
        let listed = repository.git(&["for-each-ref", "--format=%(refname)"]);
        assert!(
            expected.iter().all(|name| listed.contains(name)),
            "{listed}"
        );
        repository.git(&["fsck", "--strict"]);
    }

    #[test]
    fn refs_that_git_packed_by_hand_still_count_and_can_be_removed() {
        let (repository, refs, commit) = with_refs();
        let me = owner("s", Some("r"));
        for _ in 0..3 {
            create(&refs, Namespace::Snapshots, &me, commit).unwrap();
        }
        repository.git(&["pack-refs", "--all", "--prune"]);
        assert!(refs.of_session("s").unwrap()[0].ends_with("/3"));
        let fourth = create(&refs, Namespace::Snapshots, &me, commit).unwrap();
        assert_eq!(fourth.seq, 4);
        let all = refs.snapshots().unwrap();
        assert_eq!(all.len(), 4);
        assert_eq!(refs.get(&all[1].name).unwrap().as_ref(), Some(&all[1]));
        refs.remove(
            &Operation::unbounded(),
            &[all[1].name.clone(), all[3].name.clone()],
        )
        .unwrap();
        let left = refs.snapshots().unwrap();
        assert_eq!(left, [all[0].clone(), all[2].clone()]);
        assert!(refs.all().unwrap().contains_key("refs/heads/main"));
        repository.git(&["fsck", "--strict"]);
        let heads = repository.git(&["rev-parse", "main"]);
        assert_eq!(heads, commit.to_string(), "other refs are untouched");
    }

    #[test]
    fn removing_is_safe_to_repeat_and_leaves_no_empty_directories() {
        let (repository, refs, commit) = with_refs();
        let created = create(&refs, Namespace::Snapshots, &owner("s", Some("r")), commit).unwrap();
        for _ in 0..2 {
            refs.remove(&Operation::unbounded(), std::slice::from_ref(&created.name))
                .unwrap();
        }
        assert_eq!(refs.snapshots().unwrap(), []);
        assert!(!repository.path.join(".git/refs/snapshots/s").exists());
        let again = create(&refs, Namespace::Snapshots, &owner("s", None), commit);
        assert_eq!(again.unwrap().seq, 1);
    }

    #[test]
    fn processes_that_publish_at_once_never_share_a_ref() {
        let (_repository, refs, commit) = with_refs();
        let created = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    let refs = &refs;
                    scope.spawn(move || -> Vec<String> {
                        let me = owner("s", Some("r"));
                        (0..10)
                            .map(|_| create(refs, Namespace::Snapshots, &me, commit))
                            .map(|created| created.unwrap().name)
                            .collect()
                    })
                })
                .collect();
            threads
                .into_iter()
                .flat_map(|t| t.join().unwrap())
                .collect::<BTreeSet<_>>()
        });
        assert_eq!(created.len(), 40);
        assert_eq!(refs.snapshots().unwrap().len(), 40);
    }

    #[test]
    fn what_is_no_ref_of_ours_is_no_snapshot_and_one_that_names_nothing_hides_none() {
        let (repository, refs, commit) = with_refs();
        let directory = repository.path.join(".git/refs/snapshots/s/r");
        fs::create_dir_all(&directory).unwrap();
        for name in ["01", "x", "1.lock", "-1", "99999999999999999999999"] {
            fs::write(directory.join(name), format!("{commit}\n")).unwrap();
        }
        assert_eq!(refs.snapshots().unwrap(), []);
        fs::write(directory.join("7"), "no id\n").unwrap();
        let owner = owner("s", Some("r"));
        let next = create(&refs, Namespace::Snapshots, &owner, commit).unwrap();
        assert_eq!(next.seq, 8, "a name that is taken is taken");
        assert_eq!(refs.snapshots().unwrap(), [next]);
        let broken = refs.found().unwrap().1;
        assert_eq!(broken.len(), 1);
        assert_eq!(broken[0].name, "refs/snapshots/s/r/7");
        let error = refs.all().unwrap_err();
        assert!(
            error.to_string().contains("refs/snapshots/s/r/7"),
            "{error}"
        );
        refs.remove(&Operation::unbounded(), &[broken[0].name.clone()])
            .unwrap();
        assert_eq!(refs.found().unwrap().1, []);
    }

    #[test]
    fn a_damaged_line_among_packed_refs_hides_no_other() {
        let (repository, refs, commit) = with_refs();
        let me = owner("s", Some("r"));
        for _ in 0..2 {
            create(&refs, Namespace::Snapshots, &me, commit).unwrap();
        }
        repository.git(&["pack-refs", "--all", "--prune"]);
        let path = repository.path.join(".git/packed-refs");
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("{text}nonsense\n")).unwrap();
        let all = refs.snapshots().unwrap();
        assert_eq!(all.len(), 2);
        assert_eq!(refs.found().unwrap().1[0].name, "packed-refs");
        assert!(refs.all().is_err());
        let one = [all[0].name.clone()];
        assert!(
            refs.remove(&Operation::unbounded(), &one).is_err(),
            "the damaged line is nobody's"
        );
        refs.remove(&Operation::unbounded(), &["packed-refs".to_owned()])
            .unwrap();
        assert_eq!(refs.found().unwrap().1, []);
        refs.remove(&Operation::unbounded(), &one).unwrap();
        assert_eq!(refs.snapshots().unwrap(), all[1..]);
        repository.git(&["fsck", "--strict"]);
    }

    #[test]
    fn ids_that_git_would_not_take_are_escaped() {
        let cases = [
            ("ses_0123-x.y", "ses_0123-x.y"),
            ("a.lock", "a%2elock"),
            ("a.lock.b", "a.lock.b"),
            ("a..b", "a%2e.b"),
            ("a.", "a%2e"),
            (".a", "%2ea"),
            ("a/b", "a%2fb"),
            ("100%", "100%25"),
        ];
        for (id, expected) in cases {
            assert_eq!(component(id), expected);
        }
        assert!(component("").starts_with("%%"));
        let dots = format!("a{}", ".".repeat(199));
        assert!(component(&dots).starts_with("%%"));
    }

    #[test]
    fn a_run_that_is_called_manual_is_not_taken_for_none() {
        let (_repository, refs, commit) = with_refs();
        let with = create(
            &refs,
            Namespace::Snapshots,
            &owner("s", Some("manual")),
            commit,
        );
        let without = create(&refs, Namespace::Snapshots, &owner("s", None), commit);
        let directory = |created: SnapshotRef| created.name.rsplit_once('/').unwrap().0.to_owned();
        assert_ne!(directory(with.unwrap()), directory(without.unwrap()));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn git_takes_every_id_and_no_two_meet(ids in prop::collection::btree_set(
            prop_oneof!["[a-zA-Z0-9][a-zA-Z0-9._-]{0,199}", "[a%.lock2e]{1,8}", ".{1,20}"],
            2..6,
        )) {
            let components: BTreeSet<_> = ids.iter().map(|id| component(id)).collect();
            prop_assert_eq!(components.len(), ids.len());
            for component in components {
                let name = format!("refs/snapshots/{component}/{component}/1");
                let status = std::process::Command::new("git")
                    .args(["check-ref-format", &name])
                    .status()
                    .unwrap();
                prop_assert!(status.success(), "{}", name);
                prop_assert!(component.len() <= 255 - ".lock".len());
            }
        }
    }
}
