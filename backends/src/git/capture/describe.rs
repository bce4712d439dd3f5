//! What a capture says of what it found: the snapshot, and the record that is kept of it.

use std::time::Instant;

use super::around::Around;
use super::build::Built;
use super::walk::Seen;
use super::{Request, Setting};
use crate::coverage::Coverage;
use crate::git::compare::WithNew;
use crate::git::{ObjectId, nested, submodules};
use crate::hard_links;
use crate::record::{GitState, RECORD_VERSION, Record};
use crate::snapshot::{BackendKind, Snapshot};
use crate::snapshot_error::SnapshotError;
use crate::worktree::memory::Scope;
use crate::worktree::stat_cache::StatCache;
use crate::worktree::tally::Tally;

impl Setting<'_> {
    /// The snapshot, as far as the walk and the repository tell of it.
    pub(super) fn describe(
        &self,
        scope: &Scope,
        seen: &mut Seen,
        built: &Built,
        around: &Around,
    ) -> Result<Snapshot, SnapshotError> {
        let Request {
            workspace, options, ..
        } = self.request;
        let mut snapshot = Snapshot::new(
            options.id.clone(),
            BackendKind::Git,
            workspace.disk_path().to_owned(),
            String::new(),
            options.label.clone(),
            options.captured_at,
        );
        snapshot.tree = Some(built.trees.root.to_string());
        self.request.op.check()?;
        let omissions = seen.walked.omissions.values().chain(&built.left_out);
        snapshot.omissions = Coverage::new(omissions.cloned().collect());
        snapshot.nested_repositories = nested::look_at(
            self.request.op,
            self.root,
            workspace.memory(),
            snapshot.omissions(),
        )?;
        hard_links::note(&mut snapshot, std::mem::take(&mut seen.walked.links));
        let metadata = &mut snapshot.metadata;
        if let Some(git) = &around.state {
            metadata.head_ref = git.head.commit().map(|id| id.to_string());
            metadata.branch = git.head.branch().map(short_branch);
        }
        metadata.search = scope.search;
        metadata.history = around.refs.history.summary.clone();
        metadata.warnings.append(&mut seen.warnings);
        metadata.warnings.extend(around.operation.warning.clone());
        metadata.files_hashed = seen.walked.files_hashed;
        metadata.bytes_read = seen.walked.bytes_read;
        Ok(snapshot)
    }

    /// Whether the files are others than HEAD's commit has.
    pub(super) fn is_dirty(
        &self,
        built: &Built,
        head_tree: Option<ObjectId>,
        seen: &StatCache,
    ) -> Result<bool, SnapshotError> {
        let Request {
            workspace, store, ..
        } = self.request;
        Ok(match (self.repository, head_tree) {
            (Some(_), Some(tree)) if tree == built.trees.root => false,
            (Some(repository), Some(tree)) if !seen.submodules.is_empty() => {
                let packs = store.reader_set()?;
                let with_new = WithNew {
                    store: &store.reader(&packs),
                    new: &built.trees.new,
                };
                !submodules::is_as_committed(
                    self.request.op,
                    &with_new,
                    built.trees.root,
                    workspace.disk_path(),
                    &seen.directories,
                    repository,
                    tree,
                )
            }
            (_, Some(_)) => true,
            (_, None) => seen.directories.values().any(|d| d.tree.is_some()),
        })
    }

    /// The record, once it is counted what there is.
    pub(super) fn record(
        &self,
        mut snapshot: Snapshot,
        git: Option<GitState>,
        tally: &Tally,
        started: Instant,
    ) -> Result<Record, SnapshotError> {
        let options = self.request.options;
        if options.max_files != 0 && tally.files() > options.max_files {
            return Err(SnapshotError::LimitExceeded {
                what: "the number of files".to_owned(),
                limit: options.max_files,
                actual: tally.files(),
            });
        }
        snapshot.metadata.files = tally.files();
        snapshot.metadata.duration_ms =
            u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        Ok(Record {
            version: RECORD_VERSION,
            snapshot,
            empty_directories: tally.empty_directories(),
            modes: tally.modes(),
            ignore: options.ignore.clone(),
            include: options.include.clone(),
            max_untracked_file_bytes: Some(options.max_untracked_file_bytes),
            has_content: true,
            git,
        })
    }
}

fn short_branch(full: &str) -> String {
    full.strip_prefix("refs/heads/").unwrap_or(full).to_owned()
}
