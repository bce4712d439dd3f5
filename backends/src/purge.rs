//! Purging content: the targets of a purge, and the list of purged content.
//!
//! A purge removes the bytes of some content from a store, and leaves everything that names the
//! content: trees, manifests, records, and so the ids of snapshots. The file `purged` beside the
//! stores of a workspace lists the ids, and is durable before anything is removed. An id on that
//! list means that its bytes were removed on purpose: a reader leaves them out, and a capture does
//! not store them again.

pub(crate) mod displaced;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::codec::{Format, TooLong, Unusable};
use crate::coverage::{Coverage, Omission, OmissionReason};
use crate::durable;
use crate::error::{PathError, printable};
use crate::host_rules::HostRules;
use crate::operation::Operation;
use crate::path::RelPath;
use crate::record::Record;
use crate::snapshot::SnapshotId;
use crate::store_error::StoreError;
use crate::tree::{ContentId, Entry};
use crate::workspace::{LockedWorkspace, Workspace};

/// The name of the list, in the directory of a workspace.
const FILE: &str = "purged";
/// A gigabyte has ten million ids.
const FORMAT: Format = Format {
    magic: *b"sfpurge\n",
    version: 1,
    max_bytes: 1 << 30,
};
/// What git makes of no bytes at all, which many files have and which tells nothing.
const EMPTY_SHA1: [u8; 20] = [
    0xe6, 0x9d, 0xe2, 0x9b, 0xb2, 0xd1, 0xd6, 0x43, 0x4b, 0x8b, 0x29, 0xae, 0x77, 0x5a, 0xd8, 0xc2,
    0xe4, 0x8c, 0x53, 0x91,
];

/// Which content to purge.
///
/// What is purged is content, by its id: all that a matching path ever had in any snapshot,
/// wherever else the same bytes lie.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PurgeTarget {
    /// A literal path, relative to the workspace: a file or link, or a directory with all below it.
    Path(RelPath),
    /// A pattern as in [`IgnoreOptions::globs`](crate::IgnoreOptions): `*` and `?` stay within a
    /// name, `**/` is any directories, and without a slash it is about the last name. Below a
    /// directory that matches everything does. The path that has the very text as its name matches
    /// too.
    Glob(String),
    /// Content by its id, that of git's blob or the blake3.
    Content(ContentId),
}

impl FromStr for PurgeTarget {
    type Err = crate::path::InvalidPath;

    /// 40 or 64 lower-case hexadecimal digits are an id, a text with one of `*?[{` a glob, any
    /// other a path; a path that looks like an id is one with `./` in front of it.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(id) = content_id(text) {
            return Ok(Self::Content(id));
        }
        if text.contains(['*', '?', '[', '{']) {
            return Ok(Self::Glob(text.to_owned()));
        }
        Ok(Self::Path(RelPath::from_user(text.as_ref())?))
    }
}

/// The id that these digits are; `None`: they are none.
fn content_id(text: &str) -> Option<ContentId> {
    let bytes = data_encoding::HEXLOWER.decode(text.as_bytes()).ok()?;
    match bytes.len() {
        20 => Some(ContentId::Sha1(bytes.try_into().ok()?)),
        32 => Some(ContentId::Blake3(bytes.try_into().ok()?)),
        _ => None,
    }
}

/// What a target asks for, ready to be compared with paths and ids.
pub(crate) struct Wanted {
    paths: Vec<RelPath>,
    globs: Option<HostRules>,
    ids: BTreeSet<ContentId>,
}

impl Wanted {
    /// `ids` are wanted beside what `target` says.
    pub(crate) fn new(target: &PurgeTarget, ids: &[ContentId]) -> Result<Self, PurgeError> {
        let mut wanted = Self {
            paths: Vec::new(),
            globs: None,
            ids: ids.iter().copied().collect(),
        };
        match target {
            PurgeTarget::Path(path) if path.is_root() => {
                return Err(PurgeError::InvalidTarget(
                    "the path names nothing below the workspace; to forget all snapshots, remove \
                     the store"
                        .to_owned(),
                ));
            }
            PurgeTarget::Path(path) => wanted.paths.push(path.clone()),
            PurgeTarget::Glob(glob) => {
                let options = crate::host_rules::IgnoreOptions {
                    paths: Vec::new(),
                    globs: vec![glob.clone()],
                };
                let rules = HostRules::new(&options)
                    .map_err(|e| PurgeError::InvalidTarget(e.replacen("the ignore ", "the ", 1)))?;
                wanted.globs = Some(rules);
                wanted.paths.extend(RelPath::new(glob.as_str()));
            }
            PurgeTarget::Content(id) => drop(wanted.ids.insert(*id)),
        }
        Ok(wanted)
    }

    /// Whether all content at the path is wanted.
    pub(crate) fn names(&self, path: &RelPath) -> bool {
        let globs = self.globs.as_ref();
        self.paths.iter().any(|wanted| path.starts_with(wanted))
            || globs.is_some_and(|globs| globs.excludes_in_tree(path, false).is_some())
    }

    /// Whether the content is wanted, wherever it is.
    pub(crate) fn has(&self, id: &ContentId) -> bool {
        self.ids.contains(id)
    }
}

/// Content that a purge is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct FoundContent {
    /// Its id, as `why` and the patches of this backend print it.
    #[serde(serialize_with = "as_text")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub id: ContentId,
    /// The same bytes' id for the other backend; `None`: they could not be read.
    #[serde(serialize_with = "as_optional_text")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub other_id: Option<ContentId>,
    /// Its length; `None`: it could not be found out.
    pub bytes: Option<u64>,
    /// Whether it was purged before.
    pub purged: bool,
    /// The paths at which the target names it, in any snapshot; sorted.
    pub paths: Vec<RelPath>,
    /// The other paths that have the same bytes in some snapshot; sorted. They lose them too.
    pub also_at: Vec<RelPath>,
}

fn as_text<S: serde::Serializer>(id: &ContentId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(id)
}

fn as_optional_text<S: serde::Serializer>(
    id: &Option<ContentId>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match id {
        Some(id) => serializer.collect_str(id),
        None => serializer.serialize_none(),
    }
}

/// Content at a path that a target names and no purge takes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct KeptContent {
    /// The path.
    pub path: RelPath,
    /// `empty`: it has no bytes. `ignore_rules`: the same bytes are those of a `.gitignore`,
    /// without which a restore could not tell what it must leave alone.
    pub reason: &'static str,
}

/// Everything that a target names in the store of one backend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FoundContents {
    /// Sorted by id.
    pub contents: Vec<FoundContent>,
    /// The snapshots that have some of it, oldest first, and at how many paths each.
    pub snapshots: Vec<(SnapshotId, u64)>,
    /// What is named and stays, sorted.
    pub kept: Vec<KeptContent>,
    /// Snapshots that could not be looked at, and why. What they alone have is not found.
    pub unreadable: Vec<crate::problem::Problem>,
}

/// Removes content that snapshots still need: what [`Backend::purging`](crate::Backend::purging)
/// answers with. Both backends of this crate implement it, and the engine calls it for a purge.
pub trait Purging: Send + Sync {
    /// Finds the content that `target` names in any snapshot of this backend, and the content with
    /// one of the ids in `also`. Only reads, and may read every tree. It is no error if nothing is
    /// found.
    fn find_content(
        &self,
        op: &Operation,
        workspace: &Workspace,
        target: &PurgeTarget,
        also: &[ContentId],
    ) -> Result<FoundContents, PurgeError>;

    /// Removes the bytes of `contents` from the store, even if a snapshot needs them, and of
    /// everything that was purged before. Then it looks at all that is left.
    ///
    /// Snapshots keep their ids. Of what they have at a purged path only the id is left: a restore
    /// leaves the path as it is and names it, [`Backend::verify`](crate::Backend::verify) names it
    /// and calls it no damage, and no capture stores the content again
    /// ([`OmissionReason::Purged`](crate::OmissionReason)). The list of what was purged is durable
    /// before anything is removed. On `Err` this, or [`Backend::collect`](crate::Backend::collect),
    /// can be called again and goes on.
    fn purge(
        &self,
        op: &Operation,
        workspace: &mut LockedWorkspace,
        contents: &[FoundContent],
        at: Timestamp,
    ) -> Result<Proof, PurgeError>;
}

/// What was looked at after a purge, to prove it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Proof {
    /// Packs whose every object was looked at.
    pub packs: u64,
    /// The objects in them.
    pub objects: u64,
    /// Objects and content in files of their own.
    pub files: u64,
    /// What restores displaced, and is kept beside their guards.
    pub displaced: u64,
    /// Files that could not be looked into, so that nothing is proven of them.
    pub unproven: Vec<crate::problem::Problem>,
    /// The safety refs in the user's repository by which git still has it, full names, sorted. They
    /// keep commits of runs that were rolled back; a purge does not touch the repository.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub safety_refs: Vec<String>,
    /// Those of which it cannot be told whether git still has it by them: they have too much to be
    /// searched, or cannot be read. Full names, sorted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub safety_refs_unsearched: Vec<String>,
}

impl Proof {
    /// Both together.
    pub fn and(mut self, other: Self) -> Self {
        self.packs += other.packs;
        self.objects += other.objects;
        self.files += other.files;
        self.displaced += other.displaced;
        self.unproven.extend(other.unproven);
        self.safety_refs.extend(other.safety_refs);
        self.safety_refs_unsearched
            .extend(other.safety_refs_unsearched);
        self
    }
}

/// Why a purge did not come to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PurgeError {
    /// What is to be purged cannot be told from this.
    #[error("{0}; nothing was purged")]
    InvalidTarget(String),
    /// The store failed. Content on the list is not returned any more, but its bytes may still
    /// exist; the same purge again, or a collection, finishes.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl PurgeError {
    /// What a caller can do about it.
    pub fn kind(&self) -> crate::error::ErrorKind {
        match self {
            Self::InvalidTarget(_) => crate::error::ErrorKind::InvalidOptions,
            Self::Store(source) => source.kind(),
        }
    }
}

impl From<PathError> for PurgeError {
    fn from(source: PathError) -> Self {
        Self::Store(source.into())
    }
}

/// Content on the list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Listed {
    sha1: Option<[u8; 20]>,
    blake3: Option<[u8; 32]>,
    bytes: Option<u64>,
    /// Nanoseconds since the Unix epoch.
    at_ns: i64,
}

impl Listed {
    fn ids(&self) -> impl Iterator<Item = ContentId> {
        let sha1 = self.sha1.map(ContentId::Sha1);
        sha1.into_iter().chain(self.blake3.map(ContentId::Blake3))
    }
}

/// What was purged in a workspace, by id. Of content whose bytes could be read both ids are known,
/// so that neither backend takes it again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Purged {
    /// With their places in the list.
    ids: HashMap<ContentId, usize>,
    /// Of all whose length is known.
    lengths: HashSet<u64>,
    list: Vec<Listed>,
}

impl Purged {
    /// The list of a workspace; empty, if nothing was purged there.
    pub(crate) fn of(workspace: &Workspace) -> Result<Self, StoreError> {
        Self::beside(workspace.store_path())
    }

    /// The list in the directory that holds the stores. One that is damaged is an error: without it
    /// a capture might take again what was purged.
    pub(crate) fn beside(stores: &Path) -> Result<Self, StoreError> {
        let path = path(stores);
        let Some(bytes) = durable::read(&path, FORMAT.max_bytes)? else {
            return Ok(Self::default());
        };
        let list = FORMAT
            .decode::<Vec<Listed>>(&bytes)
            .map_err(|unusable| match unusable {
                Unusable::TooNew { found } => StoreError::VersionTooNew {
                    what: printable(&path),
                    found,
                    supported: FORMAT.version,
                },
                Unusable::Damaged { how } => StoreError::corrupt(printable(&path), how),
            })?;
        Ok(Self::new(list))
    }

    fn new(list: Vec<Listed>) -> Self {
        let ids = list
            .iter()
            .enumerate()
            .flat_map(|(at, listed)| listed.ids().map(move |id| (id, at)))
            .collect();
        let lengths = list.iter().filter_map(|listed| listed.bytes).collect();
        Self { ids, lengths, list }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Whether the content was purged.
    pub(crate) fn contains(&self, id: &ContentId) -> bool {
        !self.ids.is_empty() && self.ids.contains_key(id)
    }

    /// The length of purged content, if it is known.
    pub(crate) fn bytes_of(&self, id: &ContentId) -> Option<u64> {
        self.listed(id)?.bytes
    }

    /// The other id of purged content, if it is known.
    fn other_id_of(&self, id: &ContentId) -> Option<ContentId> {
        self.listed(id)?.ids().find(|other| other != id)
    }

    fn listed(&self, id: &ContentId) -> Option<&Listed> {
        Some(&self.list[*self.ids.get(id)?])
    }

    /// Whether purged content may have this length.
    pub(crate) fn may_have_length(&self, bytes: u64) -> bool {
        self.lengths.contains(&bytes) || self.list.iter().any(|listed| listed.bytes.is_none())
    }

    /// How many contents were purged. They only become more.
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = &ContentId> {
        self.ids.keys()
    }

    /// Names in `record` the purged paths among `entries`, which are all of the snapshot's: it does
    /// not have them, and whatever is there a restore leaves alone.
    pub(crate) fn name_in(&self, record: &mut Record, entries: Vec<(RelPath, Entry)>) {
        let gone: Vec<Omission> = entries
            .into_iter()
            .filter(|(_, entry)| self.contains(&entry.id))
            .map(|(path, entry)| Omission {
                path,
                reason: OmissionReason::Purged,
                bytes: self.bytes_of(&entry.id),
                kind: None,
            })
            .collect();
        if !gone.is_empty() {
            let left_out = record.snapshot.omissions.omissions();
            let all = left_out.iter().cloned().chain(gone).collect();
            record.snapshot.omissions = Coverage::new(all);
        }
    }

    /// Adds content to the list, durably. What is on it already stays as it is, but for an id that
    /// was not known.
    pub(crate) fn note(
        op: &Operation,
        workspace: &LockedWorkspace,
        contents: &[FoundContent],
        at: Timestamp,
    ) -> Result<Self, StoreError> {
        let known = Self::of(workspace)?;
        let mut list = known.list.clone();
        for content in contents {
            let ids = [Some(content.id), content.other_id];
            let mut listed = Listed {
                sha1: None,
                blake3: None,
                bytes: content.bytes,
                at_ns: i64::try_from(at.as_nanosecond()).unwrap_or(i64::MAX),
            };
            for id in ids.into_iter().flatten() {
                match id {
                    ContentId::Sha1(id) => listed.sha1 = Some(id),
                    ContentId::Blake3(id) => listed.blake3 = Some(id),
                }
            }
            if listed.ids().all(|id| known.contains(&id)) {
                continue;
            }
            list.push(listed);
        }
        let path = path(workspace.store_path());
        durable::remove_staged_for(op, &path)?;
        if list != known.list {
            let bytes = FORMAT
                .encode(&list)
                .map_err(|TooLong| std::io::Error::from(std::io::ErrorKind::FileTooLarge))
                .map_err(PathError::at("write", &path))?;
            durable::replace(op, &path, &bytes)?;
        }
        Ok(Self::new(list))
    }
}

fn path(stores: &Path) -> PathBuf {
    stores.join(FILE)
}

/// Whether the id is that of no bytes at all.
pub(crate) fn is_empty_content(id: &ContentId) -> bool {
    match id {
        ContentId::Sha1(id) => *id == EMPTY_SHA1,
        ContentId::Blake3(id) => blake3::hash(b"") == *id,
    }
}

/// What is known of the paths of wanted content, while the snapshots are gone through one by one.
#[derive(Default)]
pub(crate) struct Places {
    /// By content: every path, and whether the target names it.
    pub(crate) paths: BTreeMap<ContentId, BTreeMap<RelPath, bool>>,
    pub(crate) snapshots: Vec<(SnapshotId, u64)>,
}

impl Places {
    /// Notes that a snapshot has `count` paths with wanted content.
    pub(crate) fn add_snapshot(&mut self, id: &SnapshotId, count: u64) {
        if count > 0 {
            self.snapshots.push((id.clone(), count));
        }
    }

    /// Notes a path of content.
    pub(crate) fn add(&mut self, id: ContentId, path: &RelPath, is_named: bool) {
        let paths = self.paths.entry(id).or_default();
        match paths.get_mut(path) {
            Some(known) => *known |= is_named,
            None => drop(paths.insert(path.clone(), is_named)),
        }
    }

    /// What was found; what is to be known of the bytes is what `look_at` says: length and the
    /// other id.
    pub(crate) fn into_found<E>(
        self,
        purged: &Purged,
        mut look_at: impl FnMut(&ContentId) -> Result<Option<(u64, ContentId)>, E>,
    ) -> Result<FoundContents, E> {
        let mut contents = Vec::with_capacity(self.paths.len());
        for (id, paths) in self.paths {
            let found = look_at(&id)?;
            let (named, others): (Vec<_>, Vec<_>) =
                paths.into_iter().partition(|(_, named)| *named);
            let only_path = |(path, _)| path;
            contents.push(FoundContent {
                id,
                other_id: found.map(|(_, other)| other).or(purged.other_id_of(&id)),
                bytes: found.map(|(bytes, _)| bytes).or(purged.bytes_of(&id)),
                purged: purged.contains(&id),
                paths: named.into_iter().map(only_path).collect(),
                also_at: others.into_iter().map(only_path).collect(),
            });
        }
        Ok(FoundContents {
            contents,
            snapshots: self.snapshots,
            ..FoundContents::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_empty_content_is_known_by_either_id() {
        let sha1 = crate::git::ObjectId::of(crate::git::ObjectKind::Blob, b"").unwrap();
        assert!(is_empty_content(&sha1.into()));
        assert!(is_empty_content(&ContentId::Blake3(
            *blake3::hash(b"").as_bytes()
        )));
        assert!(!is_empty_content(&ContentId::Sha1([0; 20])));
    }

    #[test]
    fn a_target_is_an_id_a_glob_or_a_path() {
        let parsed = |text: &str| text.parse::<PurgeTarget>().unwrap();
        let digits = "ab".repeat(20);
        assert_eq!(
            parsed(&digits),
            PurgeTarget::Content(ContentId::Sha1([0xab; 20]))
        );
        assert_eq!(
            parsed(&"ab".repeat(32)),
            PurgeTarget::Content(ContentId::Blake3([0xab; 32]))
        );
        for path in [".env", "AB", &digits[1..], &digits.to_uppercase()] {
            assert!(matches!(parsed(path), PurgeTarget::Path(_)), "{path}");
        }
        for glob in ["**/.env", "k?y", "pages/[id].tsx", "{a,b}"] {
            assert_eq!(parsed(glob), PurgeTarget::Glob(glob.to_owned()));
        }
        assert!("../.env".parse::<PurgeTarget>().is_err());
    }

    #[test]
    fn a_path_is_literal_and_a_glob_is_its_own_name_too() {
        let path = |text: &str| RelPath::new(text).unwrap();
        let names = |target: &str, at: &str| {
            let target = target.parse().unwrap();
            Wanted::new(&target, &[]).unwrap().names(&path(at))
        };
        for (target, at, expected) in [
            (".env", ".env", true),
            (".env", "a/.env", false),
            (".env", ".env.local", false),
            ("a", "a/b/c", true),
            ("a", "ab", false),
            ("**/.env", "a/.env", true),
            ("**/.env", ".env", true),
            (".env*", "a/b/.env.local", true),
            ("secrets/*", "secrets/a/b", true),
            ("secrets/*", "a/secrets/b", false),
            ("pages/[id].tsx", "pages/[id].tsx", true),
            ("pages/[id].tsx", "pages/i.tsx", true),
        ] {
            assert_eq!(names(target, at), expected, "{target} {at}");
        }
    }

    #[test]
    fn a_glob_that_cannot_be_read_is_refused() {
        let target = PurgeTarget::Glob("a/{b".to_owned());
        assert!(matches!(
            Wanted::new(&target, &[]),
            Err(PurgeError::InvalidTarget(_))
        ));
    }

    #[test]
    fn a_damaged_list_is_never_an_empty_one() {
        let home = tempfile::tempdir().unwrap();
        let list = vec![Listed {
            sha1: Some([1; 20]),
            blake3: None,
            bytes: Some(3),
            at_ns: 0,
        }];
        let bytes = FORMAT.encode(&list).unwrap();
        let file = path(home.path());
        assert!(Purged::beside(home.path()).unwrap().is_empty());
        std::fs::write(&file, &bytes).unwrap();
        let purged = Purged::beside(home.path()).unwrap();
        assert!(purged.contains(&ContentId::Sha1([1; 20])));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            std::fs::write(&file, &damaged).unwrap();
            assert!(Purged::beside(home.path()).is_err(), "byte {at}");
            std::fs::write(&file, &bytes[..at]).unwrap();
            assert!(Purged::beside(home.path()).is_err(), "cut at {at}");
        }
    }
}
