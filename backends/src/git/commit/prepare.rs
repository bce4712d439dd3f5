//! Deciding every byte of a commit, and writing the content that the repository lacks.

use std::collections::HashMap;
use std::ffi::OsString;

use super::attribute_values::{AttributeFinder, AttributeLines};
use super::contents::Contents;
use super::edits::{Sources, Walk};
use super::message::{message_of, signature_of};
use super::new_tree::NewTree;
use super::objects::{CommitObject, RepositoryTrees};
use super::repository_of;
use super::sound::Sound;
use super::staged::Staged;
use crate::commit::{CommitError, CommitIntent, CommitRequest};
use crate::git::ObjectId;
use crate::git::nodes::tree_of;
use crate::git::repository::Head;
use crate::git::repository::{Settings, UserConfig, UserRepository};
use crate::git::rollback::moves::described;
use crate::git::store::Store;
use crate::git::tree_lookup::TreeLookup;
use crate::git::tree_object::{self, ItemKind, TreeItem};
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

/// See [`Backend::prepare_commit`](crate::Backend::prepare_commit). `record` is that of the
/// snapshot.
pub(in crate::git) fn prepare(
    op: &Operation,
    workspace: &LockedWorkspace,
    store: &Store,
    record: &Record,
    request: &CommitRequest,
    env: &Environment<'_>,
) -> Result<Option<CommitIntent>, CommitError> {
    let message = message_of(request)?;
    let time = request.at.as_second();
    if time < 0 {
        return Err(CommitError::InvalidOptions(
            "the time of the commit is before 1970".to_owned(),
        ));
    }
    let repository = repository_of(workspace)?;
    let head = head_of(&repository, record)?;
    let settings = repository.settings(env)?;
    let signature = signature_of(request, &settings)?;
    let staged = Staged::read(&repository)?;

    let base = match head.commit() {
        Some(commit) => CommitObject::known(op, &repository, commit)?.tree,
        None => tree_object::empty_tree_id(),
    };
    let tree = Decision {
        workspace,
        repository: &repository,
        store,
        record,
        settings: &settings,
        staged: &staged,
        paths: &request.paths,
        env,
    }
    .tree(op, &head, base)?;
    if tree == base {
        return Ok(None);
    }
    let reference = head.branch().unwrap_or("HEAD").to_owned();
    let mut intent = CommitIntent {
        reference,
        parent: head.commit().map(|commit| commit.to_string()),
        tree: tree.to_string(),
        message,
        signature,
        time,
        commit: String::new(),
        index: staged.digest,
        paths: request.paths.clone(),
    };
    intent.commit = Sound::id_of(&intent)?.to_string();
    Ok(Some(intent))
}

/// What HEAD names, if a commit can be made there and the snapshot saw it so.
fn head_of(repository: &UserRepository, record: &Record) -> Result<Head, CommitError> {
    let Some(seen) = &record.git else {
        return Err(CommitError::Unsupported(
            "the snapshot was taken without the repository, which could not be read then"
                .to_owned(),
        ));
    };
    if !seen.common_dir.is_same(&repository.known_as()) || seen.scope != *repository.scope() {
        return Err(CommitError::Conflict(
            "the snapshot is of another repository".to_owned(),
        ));
    }
    if let Some(operation) = repository.operation()?.in_progress {
        return Err(CommitError::Conflict(format!(
            "a {operation} is in progress: finish or abort it first"
        )));
    }
    let head = repository.head()?;
    if head != seen.head {
        return Err(CommitError::Conflict(format!(
            "HEAD is at {}, and was at {} when the snapshot was taken",
            described(&head),
            described(&seen.head)
        )));
    }
    match head.branch() {
        Some(branch) if !branch.starts_with("refs/heads/") => Err(CommitError::Unsupported(
            format!("HEAD names {branch}, which is no branch"),
        )),
        _ => Ok(head),
    }
}

/// What the tree of the commit is decided from.
struct Decision<'a> {
    workspace: &'a LockedWorkspace,
    repository: &'a UserRepository,
    store: &'a Store,
    record: &'a Record,
    settings: &'a Settings,
    staged: &'a Staged,
    paths: &'a [RelPath],
    env: &'a Environment<'a>,
}

impl Decision<'_> {
    /// The tree of the commit: `base`, that of HEAD, with what was captured. All of it is in the
    /// repository then.
    fn tree(&self, op: &Operation, head: &Head, base: ObjectId) -> Result<ObjectId, CommitError> {
        let root = self.workspace.root()?;
        let packs = self.store.reader_set()?;
        let stored = self.store.reader(&packs);
        let captured = tree_of(self.record)?;
        // What the host had captured beyond git's rules is still ignored by git.
        let mut plain = self.record.clone();
        plain.include.clear();
        let rules = TreeRules::of(self.store, &plain, None)?;
        let contents = Contents {
            op,
            store: self.store,
            repository: self.repository,
            settings: self.settings,
        };
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
        };
        let mut walk = Walk::new(sources, contents, attributes);
        walk.run(self.repository.head_tree(op, head)?, captured)?;
        let (edits, blobs) = (walk.edits, walk.blobs);
        if !blobs.is_empty() && self.repository.names_attributes()? {
            return Err(CommitError::Unsupported(
                "the repository's configuration names a file with attributes, which is not read"
                    .to_owned(),
            ));
        }
        if edits.is_empty() {
            return Ok(base);
        }
        let made = NewTree::of(op, &RepositoryTrees(self.repository), base, &edits)?;
        if made.id != base {
            contents.give(&blobs, &made.trees)?;
        }
        Ok(made.id)
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
