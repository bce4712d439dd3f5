//! The plan of a restore: every path and ref that it changes, and those that it leaves as they are.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::coverage::{Omission, OmissionReason};
use crate::path::RelPath;
use crate::plan_id::PlanId;
use crate::repository_changes::RepositoryChanges;
use crate::snapshot::SnapshotId;
use crate::tree::Entry;

/// What has to change on disk. Nothing in it was done yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RestorePlan {
    /// The digest of everything below; it changes if the plan changes.
    pub id: PlanId,
    /// The snapshot whose content is restored.
    pub target: SnapshotId,
    /// Entries that are made or replaced, sorted by path.
    pub writes: Vec<Write>,
    /// Entries that are removed, sorted by path.
    pub removals: Vec<Removal>,
    /// Files that are in the way of something that is restored, and that could not be captured,
    /// sorted by path: FIFOs, sockets and devices, and files that are too large or unreadable. They
    /// are moved aside without being opened, and kept for as long as the guard.
    pub displaced: Vec<Omission>,
    /// Empty directories that are made, parents first.
    pub make_directories: Vec<(RelPath, u32)>,
    /// Directories that are removed if nothing is left in them, children first.
    pub remove_directories: Vec<RelPath>,
    /// Entries and directories whose content is right and whose permission bits are not.
    pub modes: Vec<ModeChange>,
    /// Those of `writes` that are text files with edits after the operation that is undone: they
    /// get the lines that the operation replaced, and keep the edits. Sorted.
    #[serde(default)]
    pub merged: Vec<RelPath>,
    /// Those of `skipped` in which later edits overlap the changes of the operation, so that they
    /// cannot be merged. Sorted by path.
    #[serde(default)]
    pub conflicts: Vec<Conflict>,
    /// Paths that differ from the goal and are left as they are, sorted by path.
    pub skipped: Vec<Skipped>,
    /// Captured paths that came after the goal, and stay because the rules of one side ignore them.
    /// Sorted; not in `skipped`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leftover_ignored: Vec<RelPath>,
    /// What changes in the user's repository, once the files are restored.
    #[serde(default, skip_serializing_if = "RepositoryChanges::is_empty")]
    pub repository: RepositoryChanges,
}

/// A file in which later edits overlap the changes that an undo would undo. The file is not
/// touched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Conflict {
    /// The file.
    pub path: RelPath,
    /// The places where they overlap, in the order of the file; at least one.
    pub regions: Vec<ConflictRegion>,
}

/// Lines that differ in three versions. Each ends with a newline, even the last line of a file
/// without one; no lines are an empty text.
///
/// In JSON a text that is not UTF-8 is `{"base64": "…"}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ConflictRegion {
    /// As they are.
    #[serde(with = "text")]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::LosslessText"))]
    pub current: Vec<u8>,
    /// As the operation left them.
    #[serde(with = "text")]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::LosslessText"))]
    pub after: Vec<u8>,
    /// As they were before the operation.
    #[serde(with = "text")]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::LosslessText"))]
    pub before: Vec<u8>,
}

/// Bytes that are text as a rule.
mod text {
    use serde::{Deserializer, Serializer};

    use crate::path::{deserialize_lossless, serialize_lossless};

    pub(super) fn serialize<S: Serializer>(text: &[u8], to: S) -> Result<S::Ok, S::Error> {
        serialize_lossless(text, to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        deserialize_lossless(from)
    }
}

impl ConflictRegion {
    /// What it holds.
    pub fn bytes(&self) -> usize {
        self.current.len() + self.after.len() + self.before.len()
    }
}

/// An entry to be made or replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Write {
    /// Where.
    pub path: RelPath,
    /// What is there now; `None`: nothing that was captured.
    pub current: Option<Entry>,
    /// What will be there.
    pub entry: Entry,
    /// The permission bits it gets; `None` for links.
    pub mode: Option<u32>,
}

/// An entry to be removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removal {
    /// Where.
    pub path: RelPath,
    /// What is there now.
    pub current: Entry,
}

/// Permission bits to be changed, the content staying as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ModeChange {
    /// Where.
    pub path: RelPath,
    /// The bits now.
    pub from: u32,
    /// The bits it gets.
    pub to: u32,
}

/// A path that a restore leaves as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Skipped {
    /// The path.
    pub path: RelPath,
    /// Why.
    pub reason: SkipReason,
}

/// A file that was replaced, and whose replacement did not get all of its extended attributes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct LostAttributes {
    /// The file.
    pub path: RelPath,
    /// The names of those that it did not get; none if they could not even be read. What was
    /// replaced has them in the trash of the guard.
    pub names: Vec<String>,
    /// What the system said.
    pub reason: String,
}

impl LostAttributes {
    /// Those of the file at `path`.
    pub fn new(path: RelPath, names: Vec<String>, reason: String) -> Self {
        Self {
            path,
            names,
            reason,
        }
    }
}

/// Why a restore leaves a path as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SkipReason {
    /// Undo: somebody changed it after the operation that is undone, as both captures or its size
    /// or kind show.
    EditedSince,
    /// It changed between the guard and its step.
    ChangedMeanwhile,
    /// A file should be restored where a directory is, and the directory contains something that
    /// stays, because no snapshot has it or it came after the undone operation. So the rest of the
    /// directory stays too.
    DirectoryNotEmpty,
    /// A nested repository that came after the target was captured; it is kept whole.
    NestedRepository,
    /// The system refused this path; it is as it was.
    Refused,
    /// The target did not capture the path, so it is not known whether it existed; or the present
    /// file could not be captured, so it would be lost. For an undo also: what the operation left
    /// there was not captured, so it is not known whether it was changed since.
    #[serde(untagged)]
    Omitted(OmissionReason),
}

impl SkipReason {
    /// The name that JSON documents use, such as `edited_since`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::EditedSince => "edited_since",
            Self::ChangedMeanwhile => "changed_meanwhile",
            Self::DirectoryNotEmpty => "directory_not_empty",
            Self::NestedRepository => "nested_repository",
            Self::Refused => "refused",
            Self::Omitted(reason) => reason.as_str(),
        }
    }
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl RestorePlan {
    /// A plan that changes nothing, for a backend to fill in; the backend computes the id from the
    /// content.
    pub fn empty(id: PlanId, target: SnapshotId) -> Self {
        Self {
            id,
            target,
            writes: Vec::new(),
            removals: Vec::new(),
            displaced: Vec::new(),
            make_directories: Vec::new(),
            remove_directories: Vec::new(),
            modes: Vec::new(),
            merged: Vec::new(),
            conflicts: Vec::new(),
            skipped: Vec::new(),
            leftover_ignored: Vec::new(),
            repository: RepositoryChanges::default(),
        }
    }

    /// This plan with what it does to the repository.
    pub fn with_repository(mut self, changes: RepositoryChanges) -> Self {
        self.repository = changes;
        self.named()
    }

    /// This plan, under the id that is its own.
    pub fn named(mut self) -> Self {
        self.id = PlanId::of_digest(digest(&self).as_bytes());
        self
    }

    /// The plan that does nothing.
    pub fn nothing(target: &SnapshotId) -> Self {
        Self::empty(PlanId::default(), target.clone()).named()
    }

    /// Every path that is made, replaced, removed or given other bits, without directories that are
    /// removed because they become empty.
    pub fn changed_paths(&self) -> impl Iterator<Item = &RelPath> {
        let writes = self.writes.iter().map(|w| &w.path);
        let removals = self.removals.iter().map(|r| &r.path);
        let made = self.make_directories.iter().map(|(path, _)| path);
        let modes = self.modes.iter().map(|m| &m.path);
        writes
            .chain(removals)
            .chain(self.displaced.iter().map(|omission| &omission.path))
            .chain(made)
            .chain(modes)
    }

    /// Whether carrying it out would change nothing, neither in the worktree nor in the repository.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
            && self.removals.is_empty()
            && self.displaced.is_empty()
            && self.make_directories.is_empty()
            && self.remove_directories.is_empty()
            && self.modes.is_empty()
            && !self.repository.changes_something()
    }
}

/// Hashes everything in a plan but its id, each field with its length before it, so that no two
/// plans can be written the same way.
fn digest(plan: &RestorePlan) -> blake3::Hash {
    let mut encoder = Encoder(blake3::Hasher::new());
    encoder.bytes(b"stillframe restore plan 4");
    encoder.bytes(plan.target.as_str().as_bytes());
    encoder.list(&plan.writes, |e, write| {
        e.path(&write.path);
        e.entry(write.current.as_ref());
        e.entry(Some(&write.entry));
        e.number(write.mode.map_or(u64::MAX, u64::from));
    });
    encoder.list(&plan.removals, |e, removal| {
        e.path(&removal.path);
        e.entry(Some(&removal.current));
    });
    encoder.list(&plan.displaced, |e, omission| {
        e.path(&omission.path);
        e.bytes(omission.reason.as_str().as_bytes());
        e.number(omission.bytes.unwrap_or(u64::MAX));
    });
    encoder.list(&plan.make_directories, |e, (path, mode)| {
        e.path(path);
        e.number(u64::from(*mode));
    });
    encoder.list(&plan.remove_directories, Encoder::path);
    encoder.list(&plan.modes, |e, change| {
        e.path(&change.path);
        e.number(u64::from(change.from));
        e.number(u64::from(change.to));
    });
    encoder.list(&plan.merged, Encoder::path);
    encoder.list(&plan.conflicts, |e, conflict| {
        e.path(&conflict.path);
        e.list(&conflict.regions, |e, region| {
            let ConflictRegion {
                current,
                after,
                before,
            } = region;
            e.bytes(current);
            e.bytes(after);
            e.bytes(before);
        });
    });
    encoder.list(&plan.skipped, |e, skipped| {
        e.path(&skipped.path);
        e.bytes(skipped.reason.as_str().as_bytes());
    });
    encoder.list(&plan.leftover_ignored, Encoder::path);
    encoder.repository(&plan.repository);
    encoder.0.finalize()
}

struct Encoder(blake3::Hasher);

impl Encoder {
    fn number(&mut self, number: u64) {
        self.0.update(&number.to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.update(bytes);
    }

    fn path(&mut self, path: &RelPath) {
        self.bytes(path.as_bytes());
    }

    fn entry(&mut self, entry: Option<&Entry>) {
        let Some(entry) = entry else {
            return self.number(0);
        };
        self.number(u64::from(entry.kind.git_mode()));
        self.bytes(entry.id.as_bytes());
    }

    fn repository(&mut self, changes: &RepositoryChanges) {
        if changes.is_empty() {
            // So it was before plans had a repository.
            return;
        }
        self.bytes(b"repository");
        self.list(&changes.refs, |e, change| {
            e.bytes(change.name.as_bytes());
            e.text(change.before.as_deref());
            e.text(change.after.as_deref());
        });
        self.list(changes.index.as_slice(), |e, change| {
            e.text(change.from.as_deref());
            e.text(change.to.as_deref());
        });
        self.list(&changes.operation, |e, path| e.bytes(path.as_bytes()));
        self.text(changes.problem.as_ref().map(|p| p.message.as_str()));
    }

    fn text(&mut self, text: Option<&str>) {
        self.number(u64::from(text.is_some()));
        self.bytes(text.unwrap_or_default().as_bytes());
    }

    fn list<T>(&mut self, items: &[T], mut encode: impl FnMut(&mut Self, &T)) {
        self.number(items.len() as u64);
        for item in items {
            encode(self, item);
        }
    }
}
