//! Deciding the tree of a commit from a snapshot.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;

use super::attribute_values::{AttributeFinder, AttributeLines};
use super::contents::{BlobSource, Contents};
use super::edits::{Edits, LeftAsItWas, Purpose, Sources, Walk};
use super::new_tree::tree_with;
use super::objects::RepositoryTrees;
use super::staged::Staged;
use crate::commit::CommitError;
use crate::git::ObjectId;
use crate::git::nodes::tree_of;
use crate::git::repository::Head;
use crate::git::repository::{Settings, UserConfig, UserRepository};
use crate::git::store::Store;
use crate::git::tree_lookup::TreeLookup;
use crate::git::tree_object::{ItemKind, TreeItem};
use crate::git::tree_rules::TreeRules;
use crate::operation::Operation;
use crate::path::RelPath;
use crate::record::Record;
use crate::tree::EntryKind;
use crate::workspace::LockedWorkspace;

/// A file of attributes that is larger is none.
const MAX_ATTRIBUTES_BYTES: u64 = 1 << 20;

/// What says where the user's own configuration lies.
pub(in crate::git) type Environment<'e> = dyn Fn(&str) -> Option<OsString> + 'e;

/// What the tree of the commit is decided from.
pub(super) struct Decision<'a> {
    pub(super) workspace: &'a LockedWorkspace,
    pub(super) repository: &'a UserRepository,
    pub(super) store: &'a Store,
    pub(super) record: &'a Record,
    pub(super) settings: &'a Settings,
    pub(super) staged: &'a Staged,
    pub(super) paths: &'a [RelPath],
    pub(super) purpose: Purpose,
    pub(super) env: &'a Environment<'a>,
}

/// The tree of a commit, and what it is made of.
pub(super) struct Decided {
    pub(super) tree: ObjectId,
    /// The bytes of those that are new.
    pub(super) trees: BTreeMap<ObjectId, Vec<u8>>,
    /// The blobs that HEAD does not have in the same places.
    pub(super) blobs: BTreeMap<ObjectId, BlobSource>,
    pub(super) left: LeftAsItWas,
}

/// The edits to HEAD's tree, and what they are made of.
pub(super) struct Changed {
    pub(super) edits: Edits,
    pub(super) blobs: BTreeMap<ObjectId, BlobSource>,
    pub(super) left: LeftAsItWas,
}

impl Decision<'_> {
    /// The tree of the commit: `base`, that of HEAD, with what was captured.
    pub(super) fn tree(
        &self,
        op: &Operation,
        head: &Head,
        base: ObjectId,
    ) -> Result<Decided, CommitError> {
        let Changed { edits, blobs, left } = self.changed(op, head)?;
        let decided = self.tree_of(op, base, edits, blobs)?;
        Ok(Decided { left, ..decided })
    }

    /// The tree `base` with these edits, of which nothing was left as it was.
    pub(super) fn tree_of(
        &self,
        op: &Operation,
        base: ObjectId,
        edits: Edits,
        blobs: BTreeMap<ObjectId, BlobSource>,
    ) -> Result<Decided, CommitError> {
        let is_refused = self.purpose == Purpose::Branch && !blobs.is_empty();
        if is_refused && self.repository.names_attributes()? {
            return Err(CommitError::Unsupported(
                "the repository's configuration names a file with attributes, which is not read"
                    .to_owned(),
            ));
        }
        let made = tree_with(op, &RepositoryTrees(self.repository), base, &edits)?;
        Ok(Decided {
            tree: made.id,
            trees: made.trees,
            blobs,
            left: LeftAsItWas::default(),
        })
    }

    /// What was captured otherwise than HEAD has it, as git would store it.
    pub(super) fn changed(&self, op: &Operation, head: &Head) -> Result<Changed, CommitError> {
        let root = self.workspace.root()?;
        let packs = self.store.reader_set()?;
        let stored = self.store.reader(&packs);
        let captured = tree_of(self.record)?;
        // What the host had captured beyond git's rules is still ignored by git.
        let mut plain = self.record.clone();
        plain.include.clear();
        let rules = TreeRules::of(self.store, &plain, None)?;
        let captured_files = TreeLookup::new(&stored, captured);
        let above = self
            .repository
            .files_above_scope(".gitattributes", MAX_ATTRIBUTES_BYTES);
        let above: HashMap<RelPath, Vec<u8>> = above.into_iter().collect();
        let mut read = |directory: &RelPath| match above.get(directory) {
            Some(text) => Ok(Some(text.clone())),
            None => self.attribute_file(op, &captured_files, directory),
        };
        let user = UserConfig::read(self.env, Some(self.repository));
        let outside = self.repository.outside_attributes(&user)?;
        let parsed = |text: &str| AttributeLines::parse(text.as_bytes());
        let attributes = AttributeFinder::new(
            outside
                .weakest
                .iter()
                .map(|file| parsed(&file.text))
                .collect(),
            outside.strongest.as_ref().map(|file| parsed(&file.text)),
            &mut read,
        );
        let sources = Sources {
            op,
            root: &root,
            scope: self.repository.scope(),
            snapshot: &self.record.snapshot,
            rules: &rules,
            head: RepositoryTrees(self.repository),
            stored: &stored,
            staged: self.staged,
            settings: self.settings,
            paths: self.paths,
            purpose: self.purpose,
            knows_attributes: self.purpose == Purpose::Branch
                || !self.repository.names_attributes()?,
        };
        let mut walk = Walk::new(sources, self.contents(op), attributes);
        walk.run(self.repository.head_tree(op, head)?, captured)?;
        let Walk {
            edits, blobs, left, ..
        } = walk;
        Ok(Changed { edits, blobs, left })
    }

    pub(super) fn contents<'d>(&'d self, op: &'d Operation) -> Contents<'d> {
        Contents {
            op,
            store: self.store,
            repository: self.repository,
            settings: self.settings,
        }
    }

    /// The attribute file of a directory of the work tree: the captured one, or else that of the
    /// index.
    fn attribute_file(
        &self,
        op: &Operation,
        captured: &TreeLookup<'_>,
        directory: &RelPath,
    ) -> Result<Option<Vec<u8>>, CommitError> {
        let path = directory.join(b".gitattributes");
        if let Some(below) = crate::git::index::within(&path, self.repository.scope())
            && let Some(TreeItem {
                kind: ItemKind::Entry(EntryKind::File | EntryKind::Executable),
                id,
                ..
            }) = captured.at(op, &below)?
        {
            if self.store.blob_size(&id)? > MAX_ATTRIBUTES_BYTES {
                return Ok(None);
            }
            return Ok(Some(self.store.read(op, &id, MAX_ATTRIBUTES_BYTES)?.1));
        }
        let is_file = |mode: u32| mode & 0o170_000 == 0o100_000;
        match self.staged.at(&path).filter(|entry| is_file(entry.mode)) {
            Some(entry) => {
                let blob = self
                    .repository
                    .read_object(op, entry.id, MAX_ATTRIBUTES_BYTES)?;
                Ok(blob.map(|(_, bytes)| bytes))
            }
            None => Ok(None),
        }
    }
}
