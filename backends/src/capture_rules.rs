//! The rules that decided which paths a snapshot has, as stored with the snapshot.

use crate::host_rules::IgnoreOptions;
use crate::path::RelPath;

/// What the host asked for when a snapshot was captured, as it is stored with the snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CaptureRules {
    /// [`SnapshotOptions::ignore`](crate::SnapshotOptions::ignore).
    pub ignore: IgnoreOptions,
    /// [`SnapshotOptions::include`](crate::SnapshotOptions::include).
    pub include: Vec<RelPath>,
    /// [`SnapshotOptions::max_untracked_file_bytes`](crate::SnapshotOptions::max_untracked_file_bytes);
    /// `None`: it was not recorded.
    pub max_untracked_file_bytes: Option<u64>,
}
