//! Notes of a restore for later restores, about facts that no snapshot has.
//!
//! There are two kinds of documents beside the store. `made/<guard id>` names the paths that the
//! restore with that guard created: restoring that guard, or an earlier one, may remove them,
//! whatever the rules say. `spared.json` names paths that an ignore rule protected from a restore
//! which removed the rule itself.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::durable;
use crate::error::PathError;
use crate::operation::Operation;
use crate::path::RelPath;
use crate::root::Root;
use crate::snapshot::{Label, Snapshot, SnapshotId};
use crate::stat_cache::EntryStat;
use crate::store_error::StoreError;

const VERSION: u32 = 1;
/// Far above what a restore of millions of files makes.
const MAX_BYTES: u64 = 1 << 30;
pub(crate) const MADE: &str = "made";
const SPARED: &str = "spared.json";

#[derive(Serialize, Deserialize)]
struct Document<T> {
    version: u32,
    paths: Vec<T>,
}

/// Of one restore.
#[derive(Serialize, Deserialize)]
struct MadeDocument {
    /// When it began.
    at: Timestamp,
    #[serde(flatten)]
    made: Document<MadePath>,
}

/// The documents of one workspace.
///
/// One that cannot be read says nothing: then fewer paths are known to be a restore's own, which
/// are kept, and fewer were spared, which go into a guard before they are removed.
#[derive(Clone, Copy, Debug)]
pub struct Remembered<'a> {
    store: &'a Path,
}

/// What restores put where nothing was, with its stat data but for ctime, which a rename changes.
/// One path may have been made more than once.
#[derive(Debug, Default)]
pub struct Made(BTreeMap<RelPath, Vec<EntryStat>>);

#[derive(Serialize, Deserialize)]
struct MadePath {
    path: RelPath,
    stat: EntryStat,
}

/// A path that a rule protected when a restore took the rule away. A directory stands for
/// everything in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spared {
    /// Where it is.
    pub path: RelPath,
    /// What lies at the path by another inode is something else.
    pub inode: u64,
    /// The snapshot that was put back.
    pub target: SnapshotId,
    /// When that restore began.
    pub at: Timestamp,
}

impl Made {
    /// So many entries, with their paths.
    pub fn new(made: impl IntoIterator<Item = (RelPath, EntryStat)>) -> Self {
        let mut all = BTreeMap::<_, Vec<_>>::new();
        for (path, stat) in made {
            all.entry(path).or_default().push(stat);
        }
        Self(all)
    }

    /// Whether `now` is what a restore put at `path`.
    pub fn is_at(&self, path: &RelPath, now: &EntryStat) -> bool {
        let is_same = |made: &EntryStat| {
            EntryStat {
                ctime_ns: made.ctime_ns,
                ..*now
            } == *made
        };
        self.0
            .get(path)
            .is_some_and(|made| made.iter().any(is_same))
    }

    /// Whether no restore put anything anywhere.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The paths at which what a restore put there still is, sorted.
    pub fn still_there(&self, root: &Root) -> Vec<RelPath> {
        let is_there = |path: &&RelPath| {
            root.lstat(path)
                .is_ok_and(|stat| self.is_at(path, &EntryStat::of(&stat)))
        };
        self.0.keys().filter(is_there).cloned().collect()
    }
}

impl Spared {
    /// Whether a restore of `goal` has to spare the path as well: `goal` was put back then, or is
    /// older, so that it knows nothing of the path. A later capture had every chance to see it.
    fn concerns(&self, goal: &Snapshot) -> bool {
        self.target == goal.id || goal.captured_at < self.at
    }

    fn is_there(&self, root: &Root) -> bool {
        root.lstat(&self.path)
            .is_ok_and(|stat| stat.inode == self.inode)
    }
}

impl<'a> Remembered<'a> {
    /// What is remembered beside `store`, the workspace's directory in the state directory.
    pub fn of(store: &'a Path) -> Self {
        Self { store }
    }

    fn made_path(&self, guard: &SnapshotId) -> PathBuf {
        self.store.join(MADE).join(guard.as_str())
    }

    /// What restores made since `goal` was captured; nothing, if it is no guard.
    pub fn made_since(&self, goal: &Snapshot) -> Result<Made, StoreError> {
        let directory = self.store.join(MADE);
        let names = match fs::read_dir(&directory) {
            Ok(names) if goal.label == Label::GUARD => names,
            Ok(_) => return Ok(Made::default()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Made::default()),
            Err(e) => return Err(PathError::at("list", directory)(e).into()),
        };
        let mut documents = Vec::new();
        for name in names {
            let path = name.map_err(PathError::at("list", &directory))?.path();
            let document = read::<MadeDocument>(&path)?;
            documents
                .extend(document.filter(|d| d.made.version == VERSION && d.at >= goal.captured_at));
        }
        let paths = documents.into_iter().flat_map(|d| d.made.paths);
        Ok(Made::new(paths.map(|m| (m.path, m.stat))))
    }

    /// Remembers what the restore with this guard makes. On `Ok` it is on disk.
    pub fn keep_made(
        &self,
        op: &Operation,
        guard: &Snapshot,
        made: &Made,
    ) -> Result<(), PathError> {
        if made.0.is_empty() {
            return Ok(());
        }
        let path = self.made_path(&guard.id);
        let directory = self.store.join(MADE);
        if !directory.is_dir() {
            durable::make_private_durably(op, &directory)?;
        }
        let all = made.0.iter();
        let all = all.flat_map(|(path, stats)| stats.iter().map(move |stat| (path, stat)));
        let paths = all.map(|(path, stat)| MadePath {
            path: path.clone(),
            stat: *stat,
        });
        let made = Document {
            version: VERSION,
            paths: paths.collect(),
        };
        let at = guard.captured_at;
        write(op, &path, &MadeDocument { at, made })
    }

    /// Forgets what the restore with this guard made: it did not happen, or its guard is gone.
    pub fn forget_made(&self, op: &Operation, guard: &SnapshotId) -> Result<(), PathError> {
        durable::remove_file(op, &self.made_path(guard))
    }

    /// The paths that a restore of `goal` has to spare, sorted. `root` is called if there may be
    /// any.
    pub fn spared(
        &self,
        root: impl FnOnce() -> Result<Root, PathError>,
        goal: &Snapshot,
    ) -> Result<Vec<RelPath>, StoreError> {
        let all = self.all_spared()?;
        if all.is_empty() {
            return Ok(Vec::new());
        }
        let root = &root()?;
        let mut paths: Vec<RelPath> = all
            .into_iter()
            .filter(|spared| spared.concerns(goal) && spared.is_there(root))
            .map(|spared| spared.path)
            .collect();
        paths.sort();
        paths.dedup();
        Ok(paths)
    }

    fn all_spared(&self) -> Result<Vec<Spared>, StoreError> {
        let document = read::<Document<Spared>>(&self.store.join(SPARED))?;
        let known = document.filter(|d| d.version == VERSION);
        Ok(known.map(|d| d.paths).unwrap_or_default())
    }

    /// Remembers what a restore spares, and forgets what is gone. On `Ok` it is on disk.
    pub fn spare(&self, op: &Operation, root: &Root, new: Vec<Spared>) -> Result<(), StoreError> {
        if new.is_empty() {
            return Ok(());
        }
        let path = self.store.join(SPARED);
        let known = self.all_spared()?;
        let still_there = known.iter().filter(|spared| spared.is_there(root));
        let all: BTreeMap<(RelPath, String), Spared> = still_there
            .cloned()
            .chain(new)
            .map(|spared| ((spared.path.clone(), spared.target.to_string()), spared))
            .collect();
        let all: Vec<Spared> = all.into_values().collect();
        if all != known {
            let version = VERSION;
            write(
                op,
                &path,
                &Document {
                    version,
                    paths: all,
                },
            )?;
        }
        Ok(())
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, StoreError> {
    match durable::read(path, MAX_BYTES) {
        Ok(bytes) => Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok())),
        Err(StoreError::Corrupt { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

fn write(op: &Operation, path: &Path, document: &impl Serialize) -> Result<(), PathError> {
    let text = serde_json::to_vec(document)
        .map_err(|e| PathError::at("write", path)(io::Error::other(e)))?;
    durable::replace(op, path, &text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::BackendKind;

    #[test]
    fn what_cannot_be_read_says_nothing() {
        let store = tempfile::tempdir().unwrap();
        let remembered = Remembered::of(store.path());
        let taken = |label: Label, second: i64| {
            Snapshot::new(
                SnapshotId::random(),
                BackendKind::Hash,
                "/work".into(),
                String::new(),
                label,
                Timestamp::from_second(second).unwrap(),
            )
        };
        let guard = taken(Label::GUARD, 5);
        let path = RelPath::new(b"odd\xff").unwrap();
        let stat = EntryStat {
            inode: 7,
            ..EntryStat::default()
        };
        let made = Made::new([(path.clone(), stat)]);
        remembered
            .keep_made(&Operation::unbounded(), &guard, &made)
            .unwrap();
        let is_made = |goal: &Snapshot, now: &EntryStat| {
            remembered.made_since(goal).unwrap().is_at(&path, now)
        };
        let moved = EntryStat {
            ctime_ns: 9,
            ..stat
        };
        assert!(is_made(&guard, &moved));
        let edited = EntryStat { size: 1, ..stat };
        assert!(!is_made(&guard, &edited));
        assert!(is_made(&taken(Label::GUARD, 4), &stat));
        assert!(!is_made(&taken(Label::GUARD, 6), &stat));
        assert!(!is_made(&taken(Label::MANUAL, 4), &stat));
        for text in ["", "{", "{\"version\":2,\"paths\":[],\"at\":0}"] {
            fs::write(remembered.made_path(&guard.id), text).unwrap();
            assert!(!is_made(&guard, &stat));
        }
        remembered
            .forget_made(&Operation::unbounded(), &guard.id)
            .unwrap();
        remembered
            .forget_made(&Operation::unbounded(), &guard.id)
            .unwrap();
    }
}
