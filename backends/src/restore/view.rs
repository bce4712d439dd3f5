//! What a restore looks at: one side of it.

use crate::coverage::{Coverage, Omission, OmissionReason};
use crate::path::RelPath;
use crate::record::Record;
use crate::restore::sorted::{below, change_at, changes_below};
use crate::tree::{Change, Entry, Modes};

/// What a side of a restore holds at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    Entry(Entry),
    Directory,
}

/// What one side of a restore knows beside its entries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    pub(crate) coverage: &'a Coverage,
    pub(crate) modes: &'a Modes,
    /// Sorted.
    pub(crate) empty_directories: &'a [RelPath],
}

impl<'a> View<'a> {
    pub(crate) fn of(record: &'a Record) -> Self {
        Self {
            coverage: &record.snapshot.omissions,
            modes: &record.modes,
            empty_directories: &record.empty_directories,
        }
    }

    pub(super) fn is_sparse(&self, path: &RelPath) -> bool {
        self.coverage
            .at(path)
            .is_some_and(|o| o.reason == OmissionReason::Sparse)
    }

    /// Why what the tree has at `path` is not put back: a sparse checkout leaves it out, so that it
    /// was not on disk, or its content was purged.
    pub(crate) fn names_without_bytes(&self, path: &RelPath) -> Option<OmissionReason> {
        let reason = self.coverage.at(path)?.reason;
        matches!(reason, OmissionReason::Sparse | OmissionReason::Purged).then_some(reason)
    }

    /// Whether `directory` or something below it is listed as empty.
    pub(crate) fn has_empty_at_or_below(&self, directory: &RelPath) -> bool {
        self.empty_directories.binary_search(directory).is_ok()
            || !below(self.empty_directories, directory, |p| p).is_empty()
    }

    /// Whether something strictly below `directory` is, or may be, on disk and was left out.
    pub(super) fn omits_below(&self, directory: &RelPath) -> bool {
        self.coverage
            .below(directory)
            .any(|o| o.path != *directory && o.reason != OmissionReason::Sparse)
    }

    /// Whether a sparse checkout leaves something strictly below `directory` out.
    pub(super) fn is_sparse_below(&self, directory: &RelPath) -> bool {
        self.coverage
            .below(directory)
            .any(|o| o.path != *directory && o.reason == OmissionReason::Sparse)
    }

    /// The omission of `path` itself, if it stands for something on disk: what a sparse checkout
    /// leaves out is known not to be there.
    pub(super) fn omitted_at(&self, path: &RelPath) -> Option<&'a Omission> {
        let omission = self.coverage.at(path)?;
        (omission.reason != OmissionReason::Sparse).then_some(omission)
    }

    /// Whether what another side left out is known to be gone from this one, or to be another thing
    /// here, as far as its size tells. `changes` are those from this side to the other.
    pub(super) fn has_lost(&self, omission: &Omission, changes: &[Change]) -> bool {
        if omission.reason == OmissionReason::Sparse {
            return false;
        }
        let path = &omission.path;
        let is_hidden =
            |o: &Omission| matches!(o.reason, OmissionReason::Ignored | OmissionReason::Excluded);
        if let Some(now) = self.omission_covering(path) {
            if now.path == *path {
                // What a rule hides is edited as its owner likes. A thing of another kind, such as
                // a directory in place of a file, or the reverse, is no edit: what was there is
                // gone.
                let is_edited = now.bytes != omission.bytes && !is_hidden(omission);
                return is_edited || now.is_of_another_kind(omission);
            }
            // What is below a directory was not seen.
            return now.is_no_directory();
        }
        if change_at(changes, path).is_some_and(|c| c.old.is_some()) {
            // It was captured, and is named as what is not removed.
            return false;
        }
        let is_directory = self.has_empty_at_or_below(path)
            || self.omits_below(path)
            || changes_below(changes, path).iter().any(|c| c.old.is_some());
        !is_directory || omission.is_no_directory()
    }

    /// The omission for which nobody knows what was at `path`.
    pub(super) fn unseen_at(&self, path: &RelPath) -> Option<&'a Omission> {
        let omission = self.omission_covering(path)?;
        (omission.path == *path || !omission.is_file_out_of_reach()).then_some(omission)
    }

    /// As [`Self::omitted_at`], of `path` or the nearest directory above it.
    pub(super) fn omission_covering(&self, path: &RelPath) -> Option<&'a Omission> {
        let omission = self.coverage.covers(path)?;
        (omission.reason != OmissionReason::Sparse).then_some(omission)
    }
}
