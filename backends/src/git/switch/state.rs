//! The state that a workspace is to have, as a snapshot in the store.

use std::collections::{BTreeMap, BTreeSet};

use super::change::{Change, Coming, FileMove};
use super::index::Entries;
use crate::borrow_mode::BorrowMode;
use crate::branches::{BranchError, SwitchRequest};
use crate::commit::CommitError;
use crate::git::commit::{self, Environment, MAX_ATTRIBUTES_BYTES, Smudging};
use crate::git::either::{Either, EitherTrees};
use crate::git::index::within;
use crate::git::nodes::tree_of;
use crate::git::pack::PackWriter;
use crate::git::repository::{Head, UserRepository};
use crate::git::store::{Parts, Store};
use crate::git::tree_lookup::TreeLookup;
use crate::git::tree_object::{self, ItemKind, TreeItem};
use crate::git::{ObjectId, ObjectKind};
use crate::operation::Operation;
use crate::parallel;
use crate::path::RelPath;
use crate::record::{GitState, Record};
use crate::search::Search;
use crate::snapshot::{Label, Snapshot};
use crate::store_error::StoreError;
use crate::tree::{EntryKind, Modes};

/// What the state is made of.
pub(super) struct Target<'a> {
    pub(super) op: &'a Operation,
    pub(super) store: &'a Store,
    pub(super) repository: &'a UserRepository,
    /// What was captured.
    pub(super) record: &'a Record,
    pub(super) state: &'a GitState,
    pub(super) request: &'a SwitchRequest,
    pub(super) to: Option<ObjectId>,
    /// The tree of that, and of HEAD.
    pub(super) tree: Option<ObjectId>,
    pub(super) head_tree: Option<ObjectId>,
    pub(super) env: &'a Environment<'a>,
}

/// The state in the store.
pub(super) struct MadeState {
    pub(super) snapshot: Snapshot,
    /// The paths whose files differ from what was captured, below the workspace.
    pub(super) paths: Vec<RelPath>,
    /// Whether it is what was captured, which then is the snapshot.
    pub(super) is_there: bool,
    /// The paths, from the top of the work tree, that come as they are stored though more applies
    /// to them.
    pub(super) unconverted: Vec<RelPath>,
    /// The bytes of its index, if that is another than was captured.
    pub(super) index: Option<IndexBlob>,
}

/// The blob of an index, and its bytes.
pub(super) type IndexBlob = (ObjectId, Vec<u8>);

impl Target<'_> {
    pub(super) fn state(
        &self,
        decided: &[Coming],
        entries: &Entries,
    ) -> Result<MadeState, BranchError> {
        let pack = self.store.writer(self.op)?;
        let (store, repository, to) = (self.store, self.repository, self.tree);
        let (op, was) = (self.op, self.state.index);
        // Without a branch the index stays as it is.
        let is_index_kept = decided.is_empty() || self.request.branch.is_none();
        let (coming, edits) = match is_index_kept {
            true => (Ok(None), self.edits(decided, &pack)),
            false => parallel::both(
                || {
                    index(
                        op,
                        Either { store, repository },
                        to,
                        decided,
                        entries,
                        &pack,
                    )
                },
                || self.edits(decided, &pack),
            ),
        };
        let (coming, (edits, unconverted)) = (coming?, edits?);
        let index = coming.as_ref().map(|(id, _)| *id).or(was);
        let captured = tree_of(self.record)?;
        let packs = self.store.reader_set()?;
        let stored = self.store.reader(&packs);
        let made = commit::tree_with(self.op, &stored, captured, &edits)?;
        for (id, bytes) in &made.trees {
            if !self.store.contains(id)? {
                let added = pack.add(ObjectKind::Tree, *id, bytes);
                added.map_err(StoreError::from)?;
            }
        }
        let head = match (self.request.branch.clone(), self.to) {
            (Some(branch), Some(commit)) => Head::Branch { branch, commit },
            (Some(branch), None) => Head::Unborn { branch },
            (None, _) => self.state.head.clone(),
        };
        let is_as_captured = made.id == captured && index == self.state.index;
        let is_at = match &self.request.branch {
            Some(branch) => self.state.tips().get(&**branch) == Some(&self.to),
            None => true,
        };
        if is_as_captured && self.state.head == head && is_at {
            return Ok(MadeState {
                snapshot: self.record.snapshot.clone(),
                paths: Vec::new(),
                is_there: true,
                unconverted: Vec::new(),
                index: None,
            });
        }
        let record = self.record(decided, made.id, index, &head);
        let parts = Parts {
            worktree: made.id,
            record: &record,
            index,
            staged: Vec::new(),
            named: None,
        };
        let snapshot = self
            .store
            .publish(self.op, &self.request.owner, parts, pack)?;
        // What was borrowed for it is no reason for the next capture to begin anew.
        self.store.vouch(&self.op.to_its_end());
        Ok(MadeState {
            snapshot,
            paths: edits.into_keys().collect(),
            is_there: false,
            unconverted,
            index: coming,
        })
    }

    /// What becomes of the tree that was captured, and which paths come as they are stored though
    /// more applies to them. The blobs that the store lacks for it are added to the pack, or come
    /// from the repository.
    fn edits(
        &self,
        decided: &[Coming],
        pack: &PackWriter,
    ) -> Result<(commit::Edits, Vec<RelPath>), BranchError> {
        let either = Either {
            store: self.store,
            repository: self.repository,
        };
        let packs = self.store.reader_set()?;
        let stored = self.store.reader(&packs);
        let trees = EitherTrees::new(either, &stored);
        let incomplete = |id: ObjectId| BranchError::Incomplete {
            object: id.to_string(),
            commit: self.to.map(|to| to.to_string()).unwrap_or_default(),
        };
        let is_file = |mode| {
            let kind = EntryKind::from_git_mode(mode);
            matches!(kind, Some(EntryKind::File | EntryKind::Executable))
        };
        let (files, links): (Vec<_>, Vec<_>) = decided
            .iter()
            .filter(|coming| coming.file == FileMove::Written)
            .filter_map(|coming| Some((&coming.change.path, coming.change.new?)))
            .partition(|(_, (mode, _))| is_file(*mode));
        let mut as_is: Vec<ObjectId> = links.iter().map(|(_, (_, id))| *id).collect();
        let (mut smudged, mut unconverted) = (BTreeMap::new(), Vec::new());
        let conversions = match self.tree.filter(|_| !files.is_empty()) {
            Some(tree) => {
                let tree = TreeLookup::new(&trees, tree);
                let mut read = |directory: &RelPath| self.attribute_file(&tree, directory);
                let paths = files.iter().map(|(path, _)| *path);
                Smudging::new(self.repository, self.env)?.conversions(paths, &mut read)?
            }
            None => Vec::new(),
        };
        for ((path, (_, id)), conversion) in files.iter().zip(conversions) {
            match &conversion.unsupported {
                Some(_) if self.request.writes_unconverted => unconverted.push((*path).clone()),
                Some(what) => {
                    return Err(BranchError::Unsupported(format!(
                        "the branch has another {path}, and {what} applies to it, which takes a program to run"
                    )));
                }
                None => {}
            }
            if conversion.writes_as_stored() {
                as_is.push(*id);
                continue;
            }
            let object = either.object(self.op, *id, u64::MAX)?;
            let (_, bytes) = object.ok_or_else(|| incomplete(*id))?;
            let bytes = conversion.to_worktree(&bytes, *id);
            let own = ObjectId::of(ObjectKind::Blob, &bytes)
                .map_err(|e| CommitError::Unsupported(format!("{path}: {e}")))?;
            if !self.store.contains(&own)? {
                let added = pack.add(ObjectKind::Blob, own, &bytes);
                added.map_err(StoreError::from)?;
            }
            smudged.insert((*path).clone(), own);
        }
        let directories = self.repository.object_dirs().map_err(super::commit_error)?;
        let borrowed = self
            .store
            .borrow(self.op, &directories, as_is, BorrowMode::default())?;
        if let Some(id) = borrowed.missing.first() {
            if self.store.purged()?.contains(&(*id).into()) {
                return Err(BranchError::Unsupported(format!(
                    "the content {id}, which the branch has, was purged from the store"
                )));
            }
            return Err(incomplete(*id));
        }
        // What makes room for a file goes with its directory.
        let comes: BTreeSet<&RelPath> = files.iter().chain(&links).map(|(path, _)| *path).collect();
        let has_room = |path: &RelPath| {
            let mut above = std::iter::successors(path.parent(), RelPath::parent);
            !above.any(|above| comes.contains(&above))
        };
        let changed = decided.iter().filter_map(|coming| {
            let Change { path, new, .. } = &coming.change;
            let below = within(path, self.repository.scope())?;
            match (coming.file, *new) {
                (FileMove::Removed, _) => has_room(path).then_some((below, None)),
                (FileMove::Written, Some((mode, id))) => {
                    let kind = EntryKind::from_git_mode(mode)?;
                    let id = smudged.get(path).copied().unwrap_or(id);
                    Some((below, Some((ItemKind::Entry(kind), id))))
                }
                _ => None,
            }
        });
        Ok((changed.collect(), unconverted))
    }

    /// The text of the attribute file that the tree has in a directory.
    fn attribute_file(
        &self,
        tree: &TreeLookup<'_>,
        directory: &RelPath,
    ) -> Result<Option<Vec<u8>>, CommitError> {
        let found = tree.at(self.op, &directory.join(b".gitattributes"))?;
        let Some(TreeItem {
            kind: ItemKind::Entry(EntryKind::File | EntryKind::Executable),
            id,
            ..
        }) = found
        else {
            return Ok(None);
        };
        let (store, repository) = (self.store, self.repository);
        let object = Either { store, repository }.object(self.op, id, MAX_ATTRIBUTES_BYTES)?;
        Ok(object.map(|(_, bytes)| bytes))
    }

    fn record(
        &self,
        decided: &[Coming],
        tree: ObjectId,
        index: Option<ObjectId>,
        head: &Head,
    ) -> Record {
        let mut record = self.record.clone();
        let scope = self.repository.scope();
        let snapshot = &mut record.snapshot;
        snapshot.id = self.request.id.clone();
        snapshot.label = Label::BRANCH;
        snapshot.captured_at = self.request.at;
        snapshot.tree = Some(tree.to_string());
        let metadata = &mut snapshot.metadata;
        metadata.head_ref = head.commit().map(|commit| commit.to_string());
        metadata.branch = head
            .branch()
            .map(|full| full.strip_prefix("refs/heads/").unwrap_or(full).to_owned());
        let of_head = match self.request.branch {
            Some(_) => self.tree.unwrap_or_else(tree_object::empty_tree_id),
            None => self.head_tree.unwrap_or_else(tree_object::empty_tree_id),
        };
        metadata.dirty = Some(!scope.is_root() || tree != of_head);
        let below = |coming: &Coming| within(&coming.change.path, scope);
        let count = |wanted: &dyn Fn(&Coming) -> bool| {
            decided.iter().filter(|coming| wanted(coming)).count() as u64
        };
        metadata.files +=
            count(&|coming| coming.file == FileMove::Written && coming.captured.is_none());
        metadata.files = metadata
            .files
            .saturating_sub(count(&|coming| coming.file == FileMove::Removed));
        (
            metadata.files_hashed,
            metadata.bytes_read,
            metadata.duration_ms,
        ) = (0, 0, 0);
        metadata.search = Search::default();
        metadata.history = None;
        metadata.warnings.clear();
        let gone: BTreeSet<RelPath> = decided
            .iter()
            .filter(|coming| matches!(coming.file, FileMove::Removed | FileMove::Written))
            .filter(|coming| !coming.keeps_kind())
            .filter_map(below)
            .collect();
        forget_modes(&mut record.modes, &gone);
        snapshot
            .hard_links
            .retain(|names| !names.iter().any(|name| gone.contains(name)));
        let written: BTreeSet<RelPath> = decided
            .iter()
            .filter(|coming| coming.file == FileMove::Written)
            .filter_map(below)
            .collect();
        record.empty_directories.retain(|directory| {
            let mut within = written.range(directory.join(b"\x01")..);
            !within
                .next()
                .is_some_and(|path| path.starts_with(directory))
        });
        let made = decided.iter().filter(|coming| coming.makes_directory());
        record.empty_directories.extend(made.filter_map(below));
        record.empty_directories.sort();
        record.empty_directories.dedup();
        let Some(branch) = &self.request.branch else {
            return record;
        };
        let mut branches = self.state.branches.clone();
        if let Some(own) = self.state.head.branch() {
            branches.insert(own.to_owned(), self.state.head.commit());
        }
        branches.remove(branch);
        record.git = Some(GitState {
            head: head.clone(),
            branches,
            refs: None,
            ref_details: None,
            history: None,
            index,
            safety_refs: BTreeMap::new(),
            ..self.state.clone()
        });
        record
    }
}

/// The index to come, if it is another; `pack` gets it unless the store has it. `to` is the tree of
/// the branch.
fn index(
    op: &Operation,
    either: Either<'_>,
    to: Option<ObjectId>,
    decided: &[Coming],
    entries: &Entries,
    pack: &PackWriter,
) -> Result<Option<IndexBlob>, BranchError> {
    let whole = match entries.staged.is_there() {
        true => Vec::new(),
        false => {
            let packs = either.store.reader_set()?;
            let stored = either.store.reader(&packs);
            commit::between(op, &EitherTrees::new(either, &stored), None, to)?
        }
    };
    let Some(bytes) = entries.with(decided, &whole) else {
        return Ok(None);
    };
    let id = ObjectId::of(ObjectKind::Blob, &bytes)
        .map_err(|e| StoreError::corrupt("the index to come", e.to_string()))?;
    if !either.store.contains(&id)? {
        let added = pack.add(ObjectKind::Blob, id, &bytes);
        added.map_err(StoreError::from)?;
    }
    Ok(Some((id, bytes)))
}

/// What is not there has no permission bits, and what is of another kind has the usual ones.
fn forget_modes(modes: &mut Modes, gone: &BTreeSet<RelPath>) {
    modes.exceptions.retain(|(path, _)| !gone.contains(path));
}
