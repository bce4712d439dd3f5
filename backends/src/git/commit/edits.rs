//! The changes of a snapshot to the tree of HEAD, as `git add --all` would stage them.

use std::collections::{BTreeMap, BTreeSet};

use super::attribute_values::AttributeFinder;
use super::contents::{BlobSource, Contents, Converted};
use super::objects::RepositoryTrees;
use super::staged::Staged;
use crate::commit::CommitError;
use crate::coverage::{Omission, OmissionReason};
use crate::git::ObjectId;
use crate::git::index::within;
use crate::git::repository::Settings;
use crate::git::store::Reader;
use crate::git::tree_lookup::TreeLookup;
use crate::git::tree_object::{ItemKind, TreeItem, Trees as _};
use crate::git::tree_rules::TreeRules;
use crate::operation::Operation;
use crate::path::RelPath;
use crate::snapshot::Snapshot;
use crate::tree::EntryKind;
use crate::worktree::root::Root;

/// What becomes of a path, from the top of the work tree; `None`: it goes, whatever was there.
pub(in crate::git) type Edits = BTreeMap<RelPath, Option<(ItemKind, ObjectId)>>;

/// What the decision rests on.
pub(super) struct Sources<'a> {
    pub(super) op: &'a Operation,
    pub(super) root: &'a Root,
    /// The workspace below the work tree.
    pub(super) scope: &'a RelPath,
    pub(super) snapshot: &'a Snapshot,
    pub(super) rules: &'a TreeRules<'a>,
    pub(super) head: RepositoryTrees<'a>,
    pub(super) stored: &'a Reader<'a>,
    pub(super) staged: &'a Staged,
    pub(super) settings: &'a Settings,
    /// Below the workspace; none: everything.
    pub(super) paths: &'a [RelPath],
    pub(super) purpose: Purpose,
    /// Whether all files with attributes are read.
    pub(super) knows_attributes: bool,
}

/// What becomes of what code cannot decide as git would.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A commit on the user's branch: it has what `git add` would make of everything, or there is
    /// none.
    Branch,
    /// A commit that saves what can be saved: the rest stays as HEAD has it, and is named.
    Checkpoint,
}

/// What a commit has as HEAD has it, though it may be otherwise in the workspace.
#[derive(Debug, Default)]
pub(in crate::git) struct LeftAsItWas {
    /// Changed files that take a program to convert, from the top of the work tree.
    pub(in crate::git) unconverted: BTreeSet<RelPath>,
    /// The omissions that cover something of HEAD's, by their paths below the workspace.
    pub(in crate::git) omitted: BTreeMap<RelPath, Omission>,
    /// Submodules that are not at the commit which is committed, from the top of the work tree.
    pub(in crate::git) submodules: BTreeSet<RelPath>,
}

/// The walk over both trees.
pub(super) struct Walk<'a, 'f> {
    pub(super) sources: Sources<'a>,
    pub(super) contents: Contents<'a>,
    pub(super) attributes: AttributeFinder<'f>,
    pub(super) edits: Edits,
    /// The blobs that the edits name, and what they are made of.
    pub(super) blobs: BTreeMap<ObjectId, BlobSource>,
    pub(super) left: LeftAsItWas,
    /// The repositories within the workspace, with the commits of their HEADs.
    nested: BTreeMap<RelPath, Option<ObjectId>>,
    waiting: Vec<Pair>,
}

/// A directory of both trees, below the workspace.
struct Pair {
    directory: RelPath,
    head: Option<ObjectId>,
    stored: Option<ObjectId>,
}

impl<'a, 'f> Walk<'a, 'f> {
    pub(super) fn new(
        sources: Sources<'a>,
        contents: Contents<'a>,
        attributes: AttributeFinder<'f>,
    ) -> Self {
        let nested = sources.snapshot.nested_repositories.iter();
        let nested = nested.map(|nested| {
            let head = nested.state.head_ref.as_deref();
            (nested.path.clone(), head.and_then(|head| head.parse().ok()))
        });
        Self {
            nested: nested.collect(),
            sources,
            contents,
            attributes,
            edits: Edits::new(),
            blobs: BTreeMap::new(),
            left: LeftAsItWas::default(),
            waiting: Vec::new(),
        }
    }

    /// Finds the edits between the tree of HEAD at the workspace and that of the snapshot.
    pub(super) fn run(
        &mut self,
        head: Option<ObjectId>,
        stored: ObjectId,
    ) -> Result<(), CommitError> {
        self.waiting.push(Pair {
            directory: RelPath::root(),
            head,
            stored: Some(stored),
        });
        while let Some(pair) = self.waiting.pop() {
            if pair.head == pair.stored {
                continue;
            }
            self.sources.op.check()?;
            let by_name = |items: Vec<TreeItem>| items.into_iter().map(|i| (i.name.clone(), i));
            let mut head: BTreeMap<_, _> = match pair.head {
                Some(id) => by_name(self.sources.head.tree(self.sources.op, &id)?).collect(),
                None => BTreeMap::new(),
            };
            let mut stored: BTreeMap<_, _> = match pair.stored {
                Some(id) => by_name(self.sources.stored.tree(self.sources.op, &id)?).collect(),
                None => BTreeMap::new(),
            };
            let names: BTreeSet<Vec<u8>> = head.keys().chain(stored.keys()).cloned().collect();
            for name in names {
                let path = pair.directory.join(&name);
                if self.is_wanted(&path) {
                    self.look(path, head.remove(&name), stored.remove(&name))?;
                }
            }
        }
        self.convert_what_git_looks_at(head, stored)
    }

    /// Takes files that HEAD has byte for byte as the attributes ask for them, where git would look
    /// into them: it would store them so, and call them changed until it has.
    fn convert_what_git_looks_at(
        &mut self,
        head: Option<ObjectId>,
        stored: ObjectId,
    ) -> Result<(), CommitError> {
        let knows_attributes = self.sources.knows_attributes;
        let Some(head) = head.filter(|_| knows_attributes && self.may_convert()) else {
            return Ok(());
        };
        let head_trees = RepositoryTrees(self.sources.head.0);
        let head = TreeLookup::new(&head_trees, head);
        let stored = TreeLookup::new(self.sources.stored, stored);
        let Sources { staged, root, .. } = self.sources;
        for entry in staged.files() {
            let full = &entry.path;
            let Some(path) = within(full, self.sources.scope) else {
                continue;
            };
            if !self.is_wanted_whole(&path) || !staged.may_be_looked_into(root, full, &path) {
                continue;
            }
            self.sources.op.check()?;
            let (was, now) = (
                head.at(self.sources.op, &path)?,
                stored.at(self.sources.op, &path)?,
            );
            let (Some(was), Some(now)) = (was, now) else {
                continue;
            };
            if (was.kind, was.id) != (now.kind, now.id) {
                continue;
            }
            let attributes = self.attributes.of(full)?;
            let (contents, raw) = (self.contents, now.id);
            let converted = contents.converted(full, raw, &attributes, Some(entry.id))?;
            let Converted::Blob(id, source) = converted else {
                // As it is it needs no program.
                continue;
            };
            if self.put(full.clone(), Some(&was), Some((now.kind, id))) {
                self.blobs.insert(id, source);
            }
        }
        Ok(())
    }

    /// Whether any file could be stored otherwise than it is on disk. It is cheap to know that none
    /// is.
    fn may_convert(&self) -> bool {
        let names_some = |path: &RelPath| path.name() == b".gitattributes";
        let mut staged = self.sources.staged.files();
        self.sources.settings.get("core", "autocrlf").is_some()
            || self.attributes.has_some_from_outside()
            || staged.any(|entry| names_some(&entry.path))
            || self.edits.keys().any(names_some)
    }

    /// Whether the path, or something below it, is to be committed.
    fn is_wanted(&self, path: &RelPath) -> bool {
        let paths = self.sources.paths;
        let mut near = paths.iter();
        paths.is_empty() || near.any(|p| path.starts_with(p) || p.starts_with(path))
    }

    /// Whether the path itself is to be committed, and not something below it alone.
    fn is_wanted_whole(&self, path: &RelPath) -> bool {
        let paths = self.sources.paths;
        paths.is_empty() || paths.iter().any(|p| path.starts_with(p))
    }

    fn full(&self, path: &RelPath) -> RelPath {
        path.names()
            .fold(self.sources.scope.clone(), |full, name| full.join(name))
    }

    fn look(
        &mut self,
        path: RelPath,
        head: Option<TreeItem>,
        stored: Option<TreeItem>,
    ) -> Result<(), CommitError> {
        let full = self.full(&path);
        let has_directory = stored
            .as_ref()
            .is_some_and(|item| matches!(item.kind, ItemKind::Directory | ItemKind::Submodule));
        let is_submodule = self.sources.staged.is_submodule(&full)
            || head
                .as_ref()
                .is_some_and(|item| item.kind == ItemKind::Submodule);
        let nested = self.nested.get(&path).copied();
        if self.sources.purpose == Purpose::Checkpoint
            && is_submodule
            && self.keeps_submodule(&full, head.as_ref(), stored.as_ref(), nested)
        {
            return Ok(());
        }
        if has_directory && is_submodule {
            // One that is not checked out is as it was.
            let now = nested.flatten().map(|commit| (ItemKind::Submodule, commit));
            if let Some(now) = now
                && self.is_wanted_whole(&path)
            {
                self.put(full, head.as_ref(), Some(now));
            }
            return Ok(());
        }
        if nested.is_some() && !self.sources.staged.has_below(&full) {
            // A new one is not ours to commit; what it took the place of is gone.
            if self.sources.purpose == Purpose::Checkpoint {
                self.left.submodules.insert(full.clone());
            }
            if head
                .as_ref()
                .is_some_and(|item| item.kind != ItemKind::Directory)
            {
                self.put(full, head.as_ref(), None);
            }
            return Ok(());
        }
        let entry = self.sources.staged.at(&full);
        if entry.is_some_and(|e| e.is_skip_worktree || e.is_assume_unchanged) {
            return Ok(());
        }
        match stored {
            Some(TreeItem {
                kind: ItemKind::Entry(kind),
                id,
                ..
            }) => self.file(path, full, head, (kind, id)),
            Some(TreeItem {
                kind: ItemKind::Directory,
                id,
                ..
            }) => {
                let below = self.directory_of(&full, head);
                self.waiting.push(Pair {
                    directory: path,
                    head: below,
                    stored: Some(id),
                });
                Ok(())
            }
            _ => self.gone(path, full, head),
        }
    }

    /// Commits a submodule at the commit that the index has, or else HEAD: where it is checked out
    /// at another one, nobody said that it shall be committed, and its remote may not have it.
    /// `false`: it is none any more.
    fn keeps_submodule(
        &mut self,
        full: &RelPath,
        head: Option<&TreeItem>,
        stored: Option<&TreeItem>,
        nested: Option<Option<ObjectId>>,
    ) -> bool {
        let staged = self.sources.staged;
        let tracked = match staged.is_there() {
            true => staged.at(full).filter(|_| staged.is_submodule(full)),
            false => None,
        };
        let of_head = head.filter(|item| item.kind == ItemKind::Submodule && !staged.is_there());
        let Some(commit) = tracked.map(|e| e.id).or(of_head.map(|item| item.id)) else {
            return false;
        };
        if stored.is_some_and(|item| matches!(item.kind, ItemKind::Entry(_))) {
            return false;
        }
        // One that is not checked out is as it was.
        if nested.is_some_and(|at| at != Some(commit)) {
            self.left.submodules.insert(full.clone());
        }
        self.put(full.clone(), head, Some((ItemKind::Submodule, commit)));
        true
    }

    /// The tree of HEAD where the snapshot has a directory. What else was there goes.
    fn directory_of(&mut self, full: &RelPath, head: Option<TreeItem>) -> Option<ObjectId> {
        let head = head?;
        if head.kind == ItemKind::Directory {
            return Some(head.id);
        }
        self.edits.insert(full.clone(), None);
        None
    }

    /// Nothing was captured at the path.
    fn gone(
        &mut self,
        path: RelPath,
        full: RelPath,
        head: Option<TreeItem>,
    ) -> Result<(), CommitError> {
        let Some(head) = head else {
            return Ok(());
        };
        if head.kind == ItemKind::Directory {
            // Some of it may have been left out by itself.
            self.waiting.push(Pair {
                directory: path,
                head: Some(head.id),
                stored: None,
            });
            return Ok(());
        }
        if !self.is_wanted_whole(&path) {
            return Ok(());
        }
        match self.left_out(&path, &full).cloned() {
            Some(omission) => self.leave_out(omission),
            None => _ = self.put(full, Some(&head), None),
        }
        Ok(())
    }

    /// Why that a path was not captured says nothing of it; `None`: it says that it is gone.
    fn left_out(&self, path: &RelPath, full: &RelPath) -> Option<&Omission> {
        let omission = self.sources.snapshot.omissions.covers(path)?;
        if omission.reason != OmissionReason::Ignored || !self.sources.staged.is_there() {
            return Some(omission);
        }
        // No rule ignores what the index has: it is gone, or something hides it. What it has not
        // was taken out of it, and git would commit that.
        let is_hidden =
            self.sources.staged.at(full).is_some() && self.sources.root.lstat(path).is_ok();
        is_hidden.then_some(omission)
    }

    fn leave_out(&mut self, omission: Omission) {
        self.left.omitted.insert(omission.path.clone(), omission);
    }

    /// The snapshot has a file or a link.
    fn file(
        &mut self,
        path: RelPath,
        full: RelPath,
        head: Option<TreeItem>,
        (kind, id): (EntryKind, ObjectId),
    ) -> Result<(), CommitError> {
        let as_stored = (ItemKind::Entry(kind), id);
        if head
            .as_ref()
            .is_some_and(|item| (item.kind, item.id) == as_stored)
        {
            return Ok(());
        }
        let entry = self.sources.staged.at(&full).cloned();
        if entry.is_none() && self.sources.rules.omits(self.sources.op, &path)?.is_some() {
            // Kept by the session, or asked for by the host: git ignores it.
            return self.gone(path, full, head);
        }
        if !self.is_wanted_whole(&path) {
            return self.gone(path, full, head);
        }
        if let Some(omission) = self.sources.snapshot.omissions.covers(&path) {
            // The tree has the entry of the index, and the file was not read.
            self.leave_out(omission.clone());
            return Ok(());
        }
        let staged = self.sources.staged;
        if let Some((kind, id)) = staged.clean(self.sources.root, &full, &path) {
            self.put(full, head.as_ref(), Some((ItemKind::Entry(kind), id)));
            return Ok(());
        }
        let was = entry
            .as_ref()
            .and_then(|e| EntryKind::from_git_mode(e.mode));
        let kind = self.kind_of(kind, was.filter(|_| !staged.is_submodule(&full)));
        let (id, source) = match kind {
            EntryKind::Symlink => (id, BlobSource::raw(id)),
            EntryKind::File | EntryKind::Executable => {
                let index_id = entry.filter(|e| !e.is_intent_to_add).map(|e| e.id);
                match self.converted(&full, id, index_id)? {
                    Some(converted) => converted,
                    None => {
                        self.left.unconverted.insert(full);
                        return Ok(());
                    }
                }
            }
        };
        if self.put(full, head.as_ref(), Some((ItemKind::Entry(kind), id))) {
            self.blobs.insert(id, source);
        }
        Ok(())
    }

    /// The blob that git would store for a changed file; `None`: it stays as HEAD has it.
    fn converted(
        &mut self,
        full: &RelPath,
        raw: ObjectId,
        index_id: Option<ObjectId>,
    ) -> Result<Option<(ObjectId, BlobSource)>, CommitError> {
        if !self.sources.knows_attributes {
            return Ok(None);
        }
        let attributes = self.attributes.of(full)?;
        match self.contents.converted(full, raw, &attributes, index_id)? {
            Converted::Blob(id, source) => Ok(Some((id, source))),
            Converted::TakesAProgram(what) => match self.sources.purpose {
                Purpose::Checkpoint => Ok(None),
                Purpose::Branch => Err(CommitError::Unsupported(format!(
                    "{full} was changed and {what} applies to it, which takes a program to run: \
                     \"git add\" it first"
                ))),
            },
        }
    }

    /// The kind that git gives a file which the index has as `was`, where the configuration says
    /// that the file system keeps no executable bits, or no links.
    fn kind_of(&self, kind: EntryKind, was: Option<EntryKind>) -> EntryKind {
        let is_off = |key| self.sources.settings.is_on("core", key) == Some(false);
        match (kind, was) {
            (EntryKind::Symlink, _) => kind,
            (_, Some(EntryKind::Symlink)) if is_off("symlinks") => EntryKind::Symlink,
            (_, Some(was @ (EntryKind::File | EntryKind::Executable))) if is_off("filemode") => was,
            _ if is_off("filemode") => EntryKind::File,
            _ => kind,
        }
    }

    /// Notes what becomes of a path; `false` if HEAD has just that.
    fn put(
        &mut self,
        full: RelPath,
        head: Option<&TreeItem>,
        now: Option<(ItemKind, ObjectId)>,
    ) -> bool {
        if head.map(|item| (item.kind, item.id)) == now {
            return false;
        }
        self.edits.insert(full, now);
        true
    }
}
