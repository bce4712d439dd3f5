//! Making the snapshot and its stored record from what a capture found.

use std::time::Instant;

use super::around::Around;
use super::build::Built;
use super::walk::WalkResult;
use super::{Request, Setting};
use crate::coverage::Coverage;
use crate::description;
use crate::git::compare::WithNew;
use crate::git::{ObjectId, submodules};
use crate::record::{GitState, Record};
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
        seen: &mut WalkResult,
        built: &Built,
        around: &Around,
    ) -> Result<Snapshot, SnapshotError> {
        let Request {
            workspace, options, ..
        } = self.request;
        let omissions = seen.walked.omissions.values().chain(&built.left_out);
        let mut snapshot = description::snapshot(
            self.request.op,
            (workspace, self.root),
            options,
            BackendKind::Git,
            Coverage::new(omissions.cloned().collect()),
            &mut seen.walked,
        )?;
        snapshot.tree = Some(built.trees.root.to_string());
        let metadata = &mut snapshot.metadata;
        if let Some(git) = &around.state {
            metadata.head_ref = git.head.commit().map(|id| id.to_string());
            metadata.branch = git.head.branch().map(short_branch);
        }
        metadata.search = scope.search;
        metadata.history = around.refs.history.summary.clone();
        metadata.warnings.append(&mut seen.warnings);
        metadata.warnings.extend(around.operation.warning.clone());
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
        snapshot: Snapshot,
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
        Ok(description::record(
            snapshot, options, tally, true, git, started,
        ))
    }
}

fn short_branch(full: &str) -> String {
    full.strip_prefix("refs/heads/").unwrap_or(full).to_owned()
}
