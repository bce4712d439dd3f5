//! The parts of a capture's description that both backends share.

use std::time::Instant;

use crate::backend::SnapshotOptions;
use crate::coverage::Coverage;
use crate::git::nested;
use crate::hard_links;
use crate::operation::Operation;
use crate::record::{GitState, RECORD_VERSION, Record};
use crate::snapshot::{BackendKind, Snapshot};
use crate::snapshot_error::SnapshotError;
use crate::workspace::LockedWorkspace;
use crate::worktree::root::Root;
use crate::worktree::tally::Tally;
use crate::worktree::walk::Walked;

/// The snapshot with the results of a walk; the caller adds what only its backend knows. The links
/// are taken out of what was `walked`.
pub(crate) fn snapshot(
    op: &Operation,
    (workspace, root): (&LockedWorkspace, &Root),
    options: &SnapshotOptions,
    backend: BackendKind,
    omissions: Coverage,
    walked: &mut Walked,
) -> Result<Snapshot, SnapshotError> {
    let mut snapshot = Snapshot::new(
        options.id.clone(),
        backend,
        workspace.disk_path().to_owned(),
        String::new(),
        options.label.clone(),
        options.captured_at,
    );
    op.check()?;
    snapshot.omissions = omissions;
    let memory = workspace.memory();
    snapshot.nested_repositories = nested::look_at(op, root, memory, snapshot.omissions())?;
    hard_links::note(&mut snapshot, std::mem::take(&mut walked.links));
    snapshot.metadata.files_hashed = walked.files_hashed;
    snapshot.metadata.bytes_read = walked.bytes_read;
    Ok(snapshot)
}

/// The record of a snapshot. `tally` has the numbers of files and directories.
pub(crate) fn record(
    mut snapshot: Snapshot,
    options: &SnapshotOptions,
    tally: &Tally,
    has_content: bool,
    git: Option<GitState>,
    started: Instant,
) -> Record {
    snapshot.metadata.files = tally.files();
    snapshot.metadata.duration_ms =
        u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    Record {
        version: RECORD_VERSION,
        snapshot,
        empty_directories: tally.empty_directories(),
        modes: tally.modes(),
        ignore: options.ignore.clone(),
        include: options.include.clone(),
        max_untracked_file_bytes: Some(options.max_untracked_file_bytes),
        has_content,
        git,
    }
}
