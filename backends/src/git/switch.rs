//! Bringing a workspace to a branch: deciding what comes to files and index, and giving the
//! repository the objects for it. A restore then carries it out, with its guard and its journal.

mod change;
mod decision;
mod give;
mod history;
mod index;
mod state;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;

use self::change::{Change, Coming, FileMove};
use self::decision::Seen;
use self::give::give;
use self::index::Entries;
use self::state::{IndexBlob, Target};
use crate::branches::{BranchError, Switch, SwitchRequest};
use crate::commit::CommitError;
use crate::coverage::Omission;
use crate::git::commit::{self, Environment, LocalEdits, Staged, TreeChange};
use crate::git::either::{self, Either, EitherTrees};
use crate::git::nodes::tree_of;
use crate::git::repository::UserRepository;
use crate::git::rollback::moves::described;
use crate::git::rollback::refs::Refs;
use crate::git::store::Store;
use crate::git::tree_lookup::TreeLookup;
use crate::git::tree_object::ItemKind;
use crate::git::{ObjectId, index as indexes, worktrees};
use crate::nested::NestedRepository;
use crate::operation::Operation;
use crate::path::RelPath;
use crate::record::{GitState, Record};
use crate::workspace::LockedWorkspace;

pub(super) use self::history::{commit_named, have_one_base, newest_trailer};

/// So many paths are named in an error.
const MAX_NAMED: usize = 10;

/// The index that a switch has made, for the restore that follows.
#[derive(Default)]
pub(super) struct ComingIndex(Mutex<Option<IndexBlob>>);

impl ComingIndex {
    /// Its bytes, once, if the blob is of it.
    pub(super) fn take(&self, blob: &ObjectId) -> Option<Vec<u8>> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.take_if(|(id, _)| id == blob).map(|(_, bytes)| bytes)
    }
}

/// See [`Branches::prepare_switch`](crate::Branches::prepare_switch). `record` is that of what was
/// captured.
pub(super) fn prepare(
    op: &Operation,
    workspace: &LockedWorkspace,
    store: &Store,
    record: &Record,
    request: &SwitchRequest,
    env: &Environment<'_>,
) -> Result<Switch, BranchError> {
    let to = request.to.as_deref().map(str::parse::<ObjectId>);
    let to = to.transpose().map_err(BranchError::InvalidOptions)?;
    let repository = commit::repository_of(workspace)?;
    let state = commit::state_in(record, &repository)?;
    let either = Either {
        store,
        repository: &repository,
    };
    refuse_where_somebody_is_at_work(op, &repository, state, request, to)?;
    if let (None, Some(to), Some(head)) = (&request.branch, to, state.head.commit()) {
        history::refuse_unless_it_goes_on_from(op, either, to, head)?;
    }
    let packs = store.reader_set()?;
    let stored = store.reader(&packs);
    let trees = EitherTrees::new(either, &stored);
    let root_of = |id: Option<ObjectId>| id.map(|id| history::tree_of(op, either, id)).transpose();
    let (head_tree, target_tree) = (root_of(state.head.commit())?, root_of(to)?);
    let saved = request.saved.as_deref().map(str::parse::<ObjectId>);
    let saved = root_of(saved.transpose().map_err(BranchError::InvalidOptions)?)?;
    let changes = incomplete(to, || {
        let of_head = commit::between(op, &trees, head_tree, target_tree)?;
        let of_saved = match saved {
            Some(_) => Some(commit::between(op, &trees, saved, target_tree)?),
            None => None,
        };
        Ok(all_changes(of_head, of_saved))
    })?;
    let entries = Entries {
        staged: Staged::of_snapshot(op, &repository, store, state)?,
    };
    if !changes.is_empty() && request.branch.is_some() {
        refuse_unwritable(&repository, &entries.staged)?;
        refuse_conflicts(&entries.staged)?;
    }
    let (seen, staged) = ((record, state), &entries.staged);
    let local = || LocalEdits::of(op, workspace, &repository, store, seen, staged, env);
    if let Some(why) = &request.refuse_changes {
        refuse_changes(&local()?, why)?;
    }
    let decided = match changes.is_empty() {
        true => Vec::new(),
        false => decide(
            op,
            workspace,
            (store, &repository),
            record,
            &changes,
            (&entries, &local()?),
        )?,
    };
    // Files are written from the store, and the repository needs none of it.
    if let Some(to) = to.filter(|_| request.branch.is_some()) {
        give(op, (store, &repository), trees, to)?;
    }
    let kept = decided
        .iter()
        .filter(|coming| coming.is_kept && !coming.is_submodule());
    let kept = kept.map(|coming| coming.change.path.clone()).collect();
    let submodules = decided.iter().filter(|coming| coming.is_submodule());
    let submodules = submodules
        .map(|coming| coming.change.path.clone())
        .collect();
    let target = Target {
        op,
        store,
        // What was given is there for one that is opened now.
        repository: &*commit::repository_of(workspace)?,
        record,
        state,
        request,
        to,
        tree: target_tree,
        head_tree,
        env,
    };
    let made = target.state(&decided, &entries)?;
    let coming = workspace.kept_open::<ComingIndex>();
    *coming.0.lock().unwrap_or_else(PoisonError::into_inner) = made.index;
    Ok(Switch {
        is_there: made.is_there,
        to: made.snapshot,
        paths: made.paths,
        kept,
        submodules,
        unconverted: made.unconverted,
    })
}

/// Refuses an index in a form that is not written.
fn refuse_unwritable(repository: &UserRepository, staged: &Staged) -> Result<(), BranchError> {
    staged.unwritable_form.map_or(Ok(()), |form| {
        Err(BranchError::Unsupported(format!(
            "the index of {} is {form}, which is not written",
            crate::error::printable(repository.work_tree())
        )))
    })
}

/// Refuses an index with conflicts, wherever they are, as git does.
fn refuse_conflicts(staged: &Staged) -> Result<(), BranchError> {
    staged.conflicts().first().map_or(Ok(()), |entry| {
        Err(BranchError::InTheWay(format!(
            "the index has a conflict in {} that is not resolved",
            entry.path
        )))
    })
}

/// The differences of the branch to HEAD, and to what was saved from here, by their paths.
fn all_changes(of_head: Vec<TreeChange>, of_saved: Option<Vec<TreeChange>>) -> Vec<Change> {
    let is_saved = of_saved.is_some();
    let mut changes: BTreeMap<RelPath, Change> = BTreeMap::new();
    for TreeChange { path, old, new } in of_head {
        let change = Change {
            path: path.clone(),
            old,
            // Unless it is said otherwise below.
            saved: is_saved.then_some(new),
            new,
        };
        changes.insert(path, change);
    }
    for TreeChange { path, old, new } in of_saved.into_iter().flatten() {
        let change = changes.entry(path.clone()).or_insert(Change {
            path,
            old: new,
            saved: None,
            new,
        });
        change.saved = Some(old);
    }
    changes.into_values().collect()
}

/// Refuses to move a repository in which an operation of git's is in progress, or to a branch that
/// is another work tree's.
fn refuse_where_somebody_is_at_work(
    op: &Operation,
    repository: &UserRepository,
    state: &GitState,
    request: &SwitchRequest,
    to: Option<ObjectId>,
) -> Result<(), BranchError> {
    let head = repository.head().map_err(commit_error)?;
    if head != state.head {
        return Err(BranchError::InTheWay(format!(
            "HEAD is at {}, and was at {} a moment ago",
            described(&head),
            described(&state.head)
        )));
    }
    let in_progress = |operation: &dyn std::fmt::Display| {
        BranchError::InTheWay(format!(
            "a {operation} is in progress: finish or abort it first"
        ))
    };
    let Some(branch) = &request.branch else {
        let operation = state.in_progress.as_ref();
        return operation.map_or(Ok(()), |operation| Err(in_progress(operation)));
    };
    if !branch.starts_with("refs/heads/") || !crate::git::repository::is_ref_name(branch) {
        return Err(BranchError::InvalidOptions(format!(
            "{branch:?} is no branch"
        )));
    }
    let from = request.from.as_deref().map(str::parse::<ObjectId>);
    let from = from.transpose().map_err(BranchError::InvalidOptions)?;
    let tips = state.tips();
    if tips.get(&**branch) != Some(&from) {
        let found = tips.get(&**branch).copied().flatten();
        let shown =
            |commit: Option<ObjectId>| commit.map_or("nowhere".to_owned(), |c| c.to_string());
        return Err(BranchError::InTheWay(format!(
            "{branch} is at {}, and was at {} a moment ago",
            shown(found),
            shown(from)
        )));
    }
    let is_there = head.branch() == Some(branch) && head.commit() == to;
    if let Some(operation) = state.in_progress.as_ref().filter(|_| !is_there) {
        return Err(in_progress(operation));
    }
    if from.is_none() {
        let refs = Refs::open(repository.common_dir()).map_err(CommitError::from)?;
        let obstacles = refs.in_the_way_of(op, branch).map_err(CommitError::from)?;
        if let Some(other) = obstacles.keys().next() {
            return Err(BranchError::InTheWay(format!(
                "{branch} cannot be made beside {other}"
            )));
        }
    }
    let taken = worktrees::taken_elsewhere(op, repository.common_dir(), repository.git_dir());
    if let Some(place) = taken.get(branch) {
        return Err(BranchError::InTheWay(format!(
            "{branch} is checked out in {}, where it can be worked on",
            crate::error::printable(place)
        )));
    }
    Ok(())
}

/// Refuses to move anything where the workspace has something that HEAD has not.
fn refuse_changes(local: &LocalEdits, why: &str) -> Result<(), BranchError> {
    let mut changed = local.edits.keys();
    let Some(first) = changed.next() else {
        return Ok(());
    };
    let more = match changed.count() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Err(BranchError::InTheWay(format!(
        "HEAD does not have what {first}{more} is here, and {why}"
    )))
}

/// What comes to each path that the branch has otherwise than HEAD, where there is one.
fn decide(
    op: &Operation,
    workspace: &LockedWorkspace,
    (store, repository): (&Store, &UserRepository),
    record: &Record,
    changes: &[Change],
    (entries, local): (&Entries, &LocalEdits),
) -> Result<Vec<Coming>, BranchError> {
    let scope = repository.scope();
    let is_outside = |change: &&Change| indexes::within(&change.path, scope).is_none();
    if let Some(outside) = changes.iter().find(is_outside) {
        return Err(BranchError::Unsupported(format!(
            "{} would be another than HEAD has, and is not in this workspace: the workspace has to be the \
             whole work tree",
            outside.path
        )));
    }
    let root = workspace.root().map_err(commit_error_of_path)?;
    let packs = store.reader_set()?;
    let stored = store.reader(&packs);
    let captured = TreeLookup::new(&stored, tree_of(record)?);
    let below = |path: &RelPath| indexes::within(path, scope).expect("they are in the workspace");
    let omissions = record.snapshot.omissions();
    let nested = &record.snapshot.nested_repositories;
    let as_captured = |path: &RelPath| {
        let item = captured.at(op, &below(path))?;
        Ok(item.and_then(|item| match item.kind {
            ItemKind::Entry(_) => commit::side_of(&item),
            ItemKind::Directory | ItemKind::Submodule => None,
        }))
    };
    let decided = decision::decide(&Seen {
        is_on_saved: decision::is_on_saved(changes, local),
        changes,
        local,
        entries,
        as_captured: &as_captured,
        // What a rule or a limit left out of the capture, and repositories of their own.
        has_more_below: &|path| {
            let path = below(path);
            let is_near = |o: &Omission| o.path.starts_with(&path) || path.starts_with(&o.path);
            let mut empty = record.empty_directories.iter();
            omissions.iter().any(is_near)
                || empty.any(|directory| directory.starts_with(&path))
                || nested
                    .iter()
                    .any(|n| n.path.starts_with(&path) || path.starts_with(&n.path))
        },
        is_in_another: &|path| {
            let path = below(path);
            let is_within = |n: &NestedRepository| path != n.path && path.starts_with(&n.path);
            nested.iter().any(is_within)
        },
        is_on_disk: &|path| match root.lstat(&below(path)) {
            Ok(stat) => Some(stat.file_type().is_dir()),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => None,
            // What cannot be looked at is not known to be nothing.
            Err(_) => Some(false),
        },
        scope,
    })?;
    refuse_in_the_way(decided)
}

/// What comes, unless something of it is in somebody's way, which is named.
fn refuse_in_the_way(decided: Vec<Coming>) -> Result<Vec<Coming>, BranchError> {
    let in_the_way: BTreeSet<String> = decided
        .iter()
        .filter_map(|coming| match &coming.file {
            FileMove::InTheWay(why) => Some(format!("{} {why}", coming.change.path)),
            _ => None,
        })
        .collect();
    if in_the_way.is_empty() {
        return Ok(decided);
    }
    let more = match in_the_way.len().saturating_sub(MAX_NAMED) {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    let named: Vec<String> = in_the_way.into_iter().take(MAX_NAMED).collect();
    Err(BranchError::InTheWay(format!(
        "other content would come where somebody changed something here: {}{more}; commit, remove or move \
         away what is named",
        named.join(", ")
    )))
}

/// What is missing below the target is the target's.
fn incomplete<T>(
    to: Option<ObjectId>,
    read: impl FnOnce() -> Result<T, crate::store_error::StoreError>,
) -> Result<T, BranchError> {
    read().map_err(|error| match (error, to) {
        (crate::store_error::StoreError::Corrupt { what, detail }, Some(to))
            if detail == either::NOT_HERE =>
        {
            BranchError::Incomplete {
                object: what,
                commit: to.to_string(),
            }
        }
        (error, _) => error.into(),
    })
}

fn commit_error(error: crate::git::repository::RepositoryError) -> BranchError {
    crate::commit::CommitError::from(error).into()
}

fn commit_error_of_path(error: crate::error::PathError) -> BranchError {
    crate::commit::CommitError::from(error).into()
}

impl From<crate::store_error::StoreError> for BranchError {
    fn from(error: crate::store_error::StoreError) -> Self {
        Self::Failed {
            context: "the store could not be read or written".to_owned(),
            kind: error.kind(),
            source: Box::new(error),
        }
    }
}
