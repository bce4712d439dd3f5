//! What a restore needs from a backend.

use std::collections::BTreeMap;

use super::plan::Node;
use crate::backend::SnapshotOptions;
use crate::contents::Contents;
use crate::coverage::OmissionReason;
use crate::git::rollback::RestorableRepository;
use crate::operation::Operation;
use crate::path::RelPath;
use crate::record::Record;
use crate::restore_error::RestoreError;
use crate::snapshot::SnapshotId;
use crate::snapshot_error::SnapshotError;
use crate::store_error::StoreError;
use crate::tree::{Change, ContentId, Entry};
use crate::workspace::{LockedWorkspace, Workspace};
use crate::worktree::journal::Seen;

/// What the shared procedure of a restore needs from a backend. Both backends of this crate
/// implement it, and one in memory for the tests of the procedure. The procedure, plans and copies
/// call it.
pub(crate) trait Restorable {
    /// What a capture answers with.
    type Capture: Captured;

    /// Everything that was recorded of a snapshot. An id that the store does not have is
    /// [`StoreError::UnknownSnapshot`].
    fn record(
        &self,
        op: &Operation,
        workspace: &Workspace,
        id: &SnapshotId,
    ) -> Result<Record, StoreError>;

    /// Captures what is there.
    ///
    /// A path that one of `keep` captured is captured although a rule ignores it. With
    /// [`Publish::Yes`] the snapshot is durable and was read back, content included; with
    /// [`Publish::No`] nothing is written.
    fn capture(
        &self,
        op: &Operation,
        workspace: &LockedWorkspace,
        options: &SnapshotOptions,
        keep: &[&Record],
        publish: Publish,
    ) -> Result<Self::Capture, SnapshotError>;

    /// The capture that became the snapshot `id`, if it is the last that was made through this
    /// handle, and was made for a switch. It is handed out once. Default: none is.
    fn taken(&self, workspace: &LockedWorkspace, id: &SnapshotId) -> Option<Self::Capture> {
        let _ = (workspace, id);
        None
    }

    /// Every path at which `from` and `to` hold another entry, sorted by path, unique. Coverage
    /// plays no part in it.
    fn changes(
        &self,
        op: &Operation,
        workspace: &Workspace,
        from: Side<'_, Self::Capture>,
        to: &Record,
    ) -> Result<Vec<Change>, StoreError>;

    /// What `side` captured at each of `paths`, in their order. A directory with nothing captured
    /// in it may be `None`: the caller looks into [`Record::empty_directories`] too.
    ///
    /// Paths in one directory cost little more than the first of them, wherever they are in
    /// `paths`.
    fn lookup(
        &self,
        op: &Operation,
        workspace: &Workspace,
        side: Side<'_, Self::Capture>,
        paths: &[RelPath],
    ) -> Result<Vec<Option<Node>>, StoreError>;

    /// All entries, sorted by path. A copy asks for them; a restore only where the usual permission
    /// bits of the two sides differ, which makes every path a candidate.
    fn entries(
        &self,
        op: &Operation,
        workspace: &Workspace,
        record: &Record,
    ) -> Result<Vec<(RelPath, Entry)>, StoreError>;

    /// Those of `paths` (files and links, sorted) that the ignore rules of `side` name: the ignore
    /// files in its tree, the rules around it and the host's options. A path that the index of that
    /// side has is not ignored, whatever the rules say.
    fn ignored(
        &self,
        op: &Operation,
        workspace: &Workspace,
        side: Side<'_, Self::Capture>,
        paths: &[RelPath],
    ) -> Result<BTreeMap<RelPath, OmissionReason>, StoreError>;

    /// Those of `directories` that the same rules name, or a directory above them.
    fn ignored_directories(
        &self,
        op: &Operation,
        workspace: &Workspace,
        side: Side<'_, Self::Capture>,
        directories: &[RelPath],
    ) -> Result<Vec<RelPath>, StoreError>;

    /// Those of `ids` (sorted, unique) that the store does not have. Content is not read.
    fn missing(
        &self,
        op: &Operation,
        workspace: &Workspace,
        ids: &[ContentId],
    ) -> Result<Vec<ContentId>, StoreError>;

    /// Those of `ids` (sorted, unique) that cannot be read from the store as what they are. Reads
    /// all of them.
    fn unsound(
        &self,
        op: &Operation,
        workspace: &Workspace,
        ids: &[ContentId],
    ) -> Result<Vec<ContentId>, StoreError>;

    /// Stores anew, from the workspace, what the store has lost of `capture`: the content of
    /// `paths`, and what says which paths there are. What is another by now stays lost, which is no
    /// error.
    fn heal(
        &self,
        op: &Operation,
        workspace: &LockedWorkspace,
        capture: &Self::Capture,
        paths: &[(RelPath, Entry)],
    ) -> Result<(), SnapshotError>;

    /// Opens the content with these ids for reading.
    fn contents<'a>(
        &'a self,
        op: &Operation,
        workspace: &'a Workspace,
        ids: &[ContentId],
    ) -> Result<Box<dyn Contents + 'a>, StoreError>;

    /// The user's repository, if the backend captures the state of one. Default: there is none.
    fn user_repository(&self) -> Option<&dyn RestorableRepository> {
        None
    }
}

/// Refuses a snapshot that was taken without its content.
pub(crate) fn check_content_kept(record: &Record) -> Result<(), RestoreError> {
    if record.has_content {
        return Ok(());
    }
    Err(RestoreError::Unsupported(format!(
        "snapshot {} was taken without its content and cannot be put back; take snapshots with \
         retained content",
        record.snapshot.id
    )))
}

/// What was just captured, published or not.
pub(crate) trait Captured {
    /// The record as it was published, or would have been.
    fn record(&self) -> &Record;

    /// The content of the captured file or link at `path`, and what `lstat` said of it when that
    /// was known; `None` if it is not on disk or was not captured.
    fn seen(&self, path: &RelPath) -> Option<Seen>;
}

/// Whether a capture becomes a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Publish {
    Yes,
    No,
}

/// A snapshot in the store, or a capture that was just made.
#[derive(Debug)]
pub(crate) enum Side<'a, C> {
    Stored(&'a Record),
    Now(&'a C),
}

impl<C> Clone for Side<'_, C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C> Copy for Side<'_, C> {}

impl<'a, C: Captured> Side<'a, C> {
    /// What was recorded of this side.
    pub(crate) fn record(self) -> &'a Record {
        match self {
            Side::Stored(record) => record,
            Side::Now(capture) => capture.record(),
        }
    }
}
