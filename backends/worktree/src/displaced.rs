//! Files that restores moved to the trash unread, which no snapshot has: where they are, and
//! whether they did not change since.
//!
//! The restore lists them in `displaced.json`, in its private directory, before anything is
//! touched. Restoring the guard restores them too, by a second name (hard link) of the file in the
//! trash.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::CWD;
use serde::{Deserialize, Serialize, Serializer};

use crate::area;
use crate::coverage::{Coverage, Omission};
use crate::descriptor;
use crate::durable;
use crate::error::PathError;
use crate::operation::Operation;
use crate::path::RelPath;
use crate::snapshot::SnapshotId;
use crate::stat_cache::EntryStat;
use crate::store_error::StoreError;
use crate::tree::{Change, ContentId, Entry, EntryKind};

/// The listing, in the private directory of a restore.
const FILE: &str = "displaced.json";
const VERSION: u32 = 1;
/// Far more than a restore of millions of files displaces.
const MAX_BYTES: u64 = 1 << 30;

/// Something that a restore moved out of the way unread, and that its guard therefore left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Displaced {
    /// Where it was, and why no snapshot has it.
    #[serde(flatten)]
    pub omission: Omission,
    /// Where it lies now, as it was: absolute. It stays there for as long as the guard.
    #[serde(serialize_with = "lossless")]
    #[cfg_attr(
        feature = "schema",
        schemars(with = "stillframe_model::schema::LosslessText")
    )]
    pub at: PathBuf,
}

/// A path on disk in JSON.
pub fn lossless<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    crate::path::serialize_lossless(path.as_os_str().as_bytes(), to)
}

#[derive(Serialize, Deserialize)]
struct Listing {
    version: u32,
    displaced: Vec<Listed>,
}

/// What a restore is about to move out of the way.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Listed {
    /// Where it was, and why no snapshot has it.
    #[serde(flatten)]
    pub omission: Omission,
    /// What it will be called in the trash.
    pub name: String,
    /// By what it is known again.
    pub stat: EntryStat,
}

/// Lists what a restore is about to move out of the way in its private directory. On `Ok` it is on
/// disk.
pub fn list(op: &Operation, directory: &Path, displaced: Vec<Listed>) -> Result<(), PathError> {
    let path = directory.join(FILE);
    let version = VERSION;
    let text = serde_json::to_vec(&Listing { version, displaced })
        .map_err(|e| PathError::at("write", &path)(std::io::Error::other(e)))?;
    durable::replace(op, &path, &text)
}

/// What the restore with some guard displaced, as far as it still is what it was.
#[derive(Clone, Debug, Default)]
pub struct Held {
    by_path: BTreeMap<RelPath, Thing>,
}

#[derive(Clone, Debug)]
struct Thing {
    omission: Omission,
    at: PathBuf,
    stat: EntryStat,
}

impl Thing {
    /// Stands for it in a plan. No store has content of this id.
    fn entry(&self) -> Entry {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"stillframe displaced 1");
        hasher.update(self.at.as_os_str().as_bytes());
        Entry {
            kind: EntryKind::File,
            id: ContentId::Blake3(*hasher.finalize().as_bytes()),
        }
    }

    /// Whether `now` is what was displaced. A rename changes its ctime.
    fn is(&self, now: &EntryStat) -> bool {
        let ctime_ns = self.stat.ctime_ns;
        EntryStat { ctime_ns, ..*now } == self.stat
    }
}

impl Held {
    /// What `guard` left out and the restore with it displaced. A listing that cannot be read says
    /// nothing.
    pub fn of(store: &Path, guard: &SnapshotId) -> Result<Self, StoreError> {
        let Some(directory) = area::trash_of(store, guard)? else {
            return Ok(Self::default());
        };
        let listing = match durable::read(&directory.join(FILE), MAX_BYTES) {
            Ok(Some(bytes)) => serde_json::from_slice::<Listing>(&bytes).ok(),
            Ok(None) | Err(StoreError::Corrupt { .. }) => None,
            Err(error) => return Err(error),
        };
        let listed = listing.filter(|listing| listing.version == VERSION);
        let trash = area::trash_in(&directory);
        let mut by_path = BTreeMap::new();
        for Listed {
            omission,
            name,
            stat,
        } in listed.into_iter().flat_map(|listing| listing.displaced)
        {
            let at = trash.join(&name);
            let thing = Thing { omission, at, stat };
            let found = descriptor::lstat_at(CWD, thing.at.as_os_str().as_bytes());
            if found.is_ok_and(|found| thing.is(&EntryStat::of(&found))) {
                by_path.insert(thing.omission.path.clone(), thing);
            }
        }
        Ok(Self { by_path })
    }

    /// What is listed, sorted by path.
    pub fn all(self) -> Vec<Displaced> {
        let things = self.by_path.into_values();
        let displaced = things.map(|Thing { omission, at, .. }| Displaced { omission, at });
        displaced.collect()
    }

    /// Whether nothing is listed.
    pub fn is_empty(&self) -> bool {
        self.by_path.is_empty()
    }

    /// Where they were.
    pub fn paths(&self) -> BTreeSet<RelPath> {
        self.by_path.keys().cloned().collect()
    }

    /// Whether something that is listed was at `path`.
    pub fn has(&self, path: &RelPath) -> bool {
        self.by_path.contains_key(path)
    }

    /// Where the thing lies that has this id in a plan.
    pub fn place_of(&self, id: &ContentId) -> Option<&Path> {
        let mut things = self.by_path.values();
        let thing = things.find(|thing| thing.entry().id == *id)?;
        Some(&thing.at)
    }

    /// Those of which `is_there` says with what is known of them that they are not where they were.
    pub fn missing(
        &self,
        is_there: impl Fn(&Omission, &dyn Fn(&EntryStat) -> bool) -> bool,
    ) -> Self {
        let things = self.by_path.iter();
        let missing = things.filter(|(_, thing)| !is_there(&thing.omission, &|now| thing.is(now)));
        Self {
            by_path: missing
                .map(|(path, thing)| (path.clone(), thing.clone()))
                .collect(),
        }
    }

    /// What the goal left out that is not among these.
    pub fn without(&self, coverage: &Coverage) -> Coverage {
        let omissions = coverage.omissions().iter();
        let left = omissions.filter(|omission| !self.has(&omission.path));
        Coverage::new(left.cloned().collect())
    }

    /// Changes to a goal that has these too, of changes to one that has not; both sorted by path.
    /// `all` of the goal that are not `self` are where they were, whatever was captured there.
    pub fn and_changes(&self, mut changes: Vec<Change>, all: &Self) -> Vec<Change> {
        if all.by_path.is_empty() {
            return changes;
        }
        changes.retain(|change| self.has(&change.path) || !all.has(&change.path));
        for (path, thing) in &self.by_path {
            let new = Some(thing.entry());
            match changes.binary_search_by(|change| change.path.cmp(path)) {
                Ok(at) => changes[at].new = new,
                Err(at) => changes.insert(
                    at,
                    Change {
                        path: path.clone(),
                        old: None,
                        new,
                    },
                ),
            }
        }
        changes
    }
}
