//! Submodules: which of them a tree names, and whether a work tree with checked-out submodules
//! matches its HEAD.
//!
//! In place of a checked-out submodule's commit, a snapshot has its files. If nothing is captured
//! in its directory, the tree names the commit, as git's own tree does.

use std::collections::BTreeMap;
use std::path::Path;

use crate::coverage::{Omission, OmissionReason};
use crate::git::object_id::sha1;
use crate::git::repository::{self, Probe, UserRepository};
use crate::git::tree_object::{self, ItemKind, TreeItem, Trees};
use crate::git::{ObjectId, ObjectKind};
use crate::operation::Operation;
use crate::path::RelPath;
use crate::worktree::stat_cache::{Directories, StatCache, Submodule};
use crate::worktree::walk::Walked;

/// A directory of several million names.
const MAX_TREE_BYTES: u64 = 256 << 20;

/// The submodules of the index, with the commits of those that a tree may name: there is a
/// directory, or a sparse checkout left it out, which is an omission.
///
/// Whether the tree names one depends on what is captured below it.
pub(crate) fn standing(
    cache: &StatCache,
    walked: &Walked,
) -> (BTreeMap<RelPath, Option<ObjectId>>, Vec<Omission>) {
    let directory = |path: &RelPath| walked.delta.get(&cache.directories, path);
    let is_absent = |path: &RelPath| {
        let above = path.parent().expect("the workspace itself is no submodule");
        !walked.omissions.contains_key(path)
            && directory(&above).is_some_and(|above| {
                let entry = above.entry(path.name());
                !above.children.contains(path.name()) && entry.is_none_or(|e| !e.is_captured())
            })
    };
    let mut standing = BTreeMap::new();
    let mut left_out = Vec::new();
    for (path, Submodule { commit, is_sparse }) in &cache.submodules {
        let is_there = directory(path).is_some_and(|d| !d.is_absent);
        let is_left_out = !is_there && *is_sparse && is_absent(path);
        if is_left_out {
            left_out.push(Omission {
                path: path.clone(),
                reason: OmissionReason::Sparse,
                bytes: None,
                kind: None,
            });
        }
        let commit = sha1(commit).filter(|_| is_there || is_left_out);
        standing.insert(path.clone(), commit);
    }
    (standing, left_out)
}

/// Whether the captured tree `ours` is `theirs`, the tree of `repository`'s HEAD, once each
/// submodule that is checked out counts as its commit: its HEAD is that commit, and its files are
/// the commit's.
///
/// `ours` was captured at `workspace`, with these `directories`. What cannot be read, or is not the
/// submodule's own repository, is not as committed.
pub(crate) fn is_as_committed(
    op: &Operation,
    trees: &dyn Trees,
    ours: ObjectId,
    workspace: &Path,
    directories: &Directories,
    repository: &UserRepository,
    theirs: ObjectId,
) -> bool {
    // What the index has of the submodules is known, and their commits are in `ours`.
    let of_index = |_: &RelPath| false;
    let of_submodule = |path: &RelPath| {
        directories
            .get(path)
            .is_some_and(|d| !d.is_absent && d.tree.is_none())
    };
    let whole = Checkout {
        path: RelPath::root(),
        ours,
    };
    let Some(mut waiting) = checkouts(op, trees, &whole, repository, theirs, &of_index) else {
        return false;
    };
    while let Some((checkout, commit)) = waiting.pop() {
        let path = workspace.join(checkout.path.as_path());
        let Some((repository, tree)) = checked_out(op, &path, commit) else {
            return false;
        };
        match checkouts(op, trees, &checkout, &repository, tree, &of_submodule) {
            Some(below) => waiting.extend(below),
            None => return false,
        }
    }
    true
}

/// A directory that a repository checked something out into.
struct Checkout {
    path: RelPath,
    /// The tree that was captured there.
    ours: ObjectId,
}

/// The submodules of which files were captured, each with the commit that `theirs` has for it;
/// `None` if the trees differ in anything else. `is_empty` says whether there is a directory at a
/// path that `ours` has nothing at.
fn checkouts(
    op: &Operation,
    trees: &dyn Trees,
    checkout: &Checkout,
    repository: &UserRepository,
    theirs: ObjectId,
    is_empty: &dyn Fn(&RelPath) -> bool,
) -> Option<Vec<(Checkout, ObjectId)>> {
    let mut found = Vec::new();
    let mut waiting = vec![(checkout.path.clone(), checkout.ours, theirs)];
    while let Some((directory, ours, theirs)) = waiting.pop() {
        if ours == theirs {
            continue;
        }
        let mut ours: BTreeMap<Vec<u8>, TreeItem> = trees
            .tree(op, &ours)
            .ok()?
            .into_iter()
            .map(|item| (item.name.clone(), item))
            .collect();
        let (kind, bytes) = repository.read_object(op, theirs, MAX_TREE_BYTES).ok()??;
        if kind != ObjectKind::Tree {
            return None;
        }
        for item in tree_object::parse(&theirs, &bytes).ok()? {
            let path = directory.join(&item.name);
            match (ours.remove(&item.name), item.kind) {
                (Some(own), _) if own == item => {}
                (Some(own), ItemKind::Directory) if own.kind == ItemKind::Directory => {
                    waiting.push((path, own.id, item.id));
                }
                (Some(own), ItemKind::Submodule) if own.kind == ItemKind::Directory => {
                    found.push((Checkout { path, ours: own.id }, item.id));
                }
                (None, ItemKind::Submodule) if is_empty(&path) => {}
                _ => return None,
            }
        }
        if !ours.is_empty() {
            return None;
        }
    }
    Some(found)
}

/// The repository whose work tree is `path`, and the tree of its HEAD, if that is `commit`.
fn checked_out(
    op: &Operation,
    path: &Path,
    commit: ObjectId,
) -> Option<(UserRepository, ObjectId)> {
    let Ok(Probe::Found(repository)) = repository::probe(path) else {
        return None;
    };
    let head = repository.head().ok()?;
    if repository.work_tree() != path || head.commit() != Some(commit) {
        return None;
    }
    let tree = repository.head_tree(op, &head).ok()??;
    Some((*repository, tree))
}
