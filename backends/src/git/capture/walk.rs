//! Walking the workspace for a capture: the rules, the places to look, and the result.

use std::collections::HashMap;

use super::seed::IndexBytes;
use super::{Request, Setting, Source};
use crate::bulk::Bulk;
use crate::git::repository::OutsideRules;
use crate::git::rules::{ATTRIBUTES_FILE, GitRules, IGNORE_FILE};
use crate::path::RelPath;
use crate::snapshot_error::SnapshotError;
use crate::store_error::StoreError;
use crate::worktree::memory::{Base, Basis, Scope, Use};
use crate::worktree::stat_cache::CachedRules;
use crate::worktree::walk::{self, WalkOptions, Walked};

/// The names of the files that hold rules; files whose text the cache has come first.
const RULE_FILES: &[&[u8]] = &[IGNORE_FILE, ATTRIBUTES_FILE];

/// The result of a walk, and the rules that it used.
pub(super) struct WalkResult {
    pub(super) walked: Bulk<Walked>,
    /// Whether paths that the rules ignore were captured because an earlier capture has them.
    pub(super) has_kept: bool,
    /// Whether the files with rules differ from those in the cache.
    pub(super) has_new_rules: bool,
    pub(super) warnings: Vec<String>,
    pub(super) outside_rules: Vec<OutsideRules>,
    pub(super) rules_above: Vec<(RelPath, OutsideRules)>,
}

impl Setting<'_> {
    /// Walks the workspace. Meanwhile another thread keeps the bytes of an index that is damaged.
    pub(super) fn walk(
        &self,
        base: &mut Base,
        unread_index: Option<IndexBytes>,
    ) -> Result<(Scope, WalkResult), SnapshotError> {
        let Request {
            store,
            options,
            keep,
            usage,
            ..
        } = self.request;
        let purged = self.sink.purged;
        let seeds = Bulk::new(self.request.op, base.take_seeds(RULE_FILES));
        self.request.op.check()?;
        let rules = GitRules::new(
            self.request.op,
            self.root,
            self.repository,
            store,
            &base.cache,
            options,
            keep,
        )?;
        let basis = self.basis(&rules);
        let kept: Vec<_> = keep.trees.iter().map(|(_, tree)| tree.0.to_vec()).collect();
        let mut scope = base.scope(self.root, options.watch, usage, basis, &kept);
        let walk_options = WalkOptions {
            cache: &base.cache,
            seeds: &seeds,
            absent: &base.absent,
            only: None,
            watch: None,
            max_untracked_file_bytes: options.max_untracked_file_bytes,
            max_files: options.max_files,
            op: self.request.op,
            progress: options.progress.as_deref(),
            is_purged: &|id| purged.contains(id),
        };
        let mut walk = || {
            walk::search(self.root, &rules, self.sink, &mut scope, walk_options)
                .map_err(|error| rules.failure().unwrap_or(error))
        };
        let walked = Bulk::new(
            self.request.op,
            match &unread_index {
                None => walk()?,
                Some(index) => beside(&|| index.keep(store, self.sink.pack), &mut walk)?,
            },
        );
        if usage == Use::Borrows {
            rules.read_changed(&walked.delta)?;
        }
        let (outside_rules, rules_above) = (rules.outside().to_vec(), rules.above().to_vec());
        let (warnings, has_kept) = (rules.warnings(&walked.omissions), rules.has_kept());
        let has_new_rules = note_rules(base, rules.into_rule_files(), scope.only().is_none());
        base.put_back(seeds.into_inner());
        self.request.op.check()?;
        let seen = WalkResult {
            walked,
            has_kept,
            has_new_rules,
            warnings,
            outside_rules,
            rules_above,
        };
        Ok((scope, seen))
    }

    /// What says which paths belong to the capture, beside the files in the workspace.
    fn basis(&self, rules: &GitRules<'_>) -> Basis {
        let options = self.request.options;
        let repository = self.repository.map(|repository| {
            let has_index = matches!(self.request.source, Source::Repository(_));
            let scope = repository.scope().clone();
            (has_index, repository.identity(), scope)
        });
        let rules = (
            repository,
            rules.outside(),
            rules.above(),
            &options.ignore,
            &options.include,
            options.max_untracked_file_bytes,
            self.sink.purged.len(),
        );
        Basis {
            rules: serde_json::to_vec(&rules).expect("rules are plain data"),
            rule_files: RULE_FILES,
        }
    }
}

/// Notes the rules that were read; answers with whether the cache had others.
fn note_rules(
    base: &mut Base,
    (rule_files, has_new): (HashMap<RelPath, CachedRules>, bool),
    is_whole: bool,
) -> bool {
    let has_new = has_new || (is_whole && rule_files.len() != base.cache.rule_files.len());
    match is_whole {
        true => base.cache.rule_files = rule_files,
        false => base.cache.rule_files.extend(rule_files),
    }
    has_new
}

/// Does `aside` while `work` is done, where there is a thread for it.
fn beside<T>(
    aside: &(dyn Fn() -> Result<(), StoreError> + Sync),
    work: &mut dyn FnMut() -> Result<T, SnapshotError>,
) -> Result<T, SnapshotError> {
    std::thread::scope(|scope| {
        let helper = std::thread::Builder::new().spawn_scoped(scope, aside);
        let done = work()?;
        match helper.map(std::thread::ScopedJoinHandle::join) {
            Ok(Ok(finished)) => finished?,
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            Err(_) => aside()?,
        }
        Ok(done)
    })
}
