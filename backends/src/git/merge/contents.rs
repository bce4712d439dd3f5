//! What the contents of a file come to, and how similar two are.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use super::held::Held;
use super::stages::{BASE, Level, Stages};
use crate::diff::fingerprint::{Fingerprint, WHOLE, can_be_similar};
use crate::git::commit::{Side, is_file};
use crate::git::tree_lookup::TreeLookup;
use crate::git::tree_object::{ItemKind, TreeItem};
use crate::git::user_index::MODE_SUBMODULE;
use crate::git::{ObjectId, ObjectKind};
use crate::operation::Operation;
use crate::path::RelPath;
use crate::restore::{MAX_MERGED_FILE_BYTES, TextMerge, merge_texts};
use crate::store_error::StoreError;

/// What three versions of a file come to.
#[derive(Clone, Copy, Debug)]
pub(super) struct MergedFile {
    pub(super) file: Option<Side>,
    pub(super) is_clean: bool,
}

/// Reads contents, and keeps those that are made of them.
pub(super) struct Contents<'a> {
    op: &'a Operation,
    held: &'a Held<'a>,
    prints: HashMap<ObjectId, Option<Rc<(u64, Fingerprint)>>>,
    /// Contents that a merge has made, beside the trees.
    pub(super) made: BTreeMap<ObjectId, Vec<u8>>,
}

impl<'a> Contents<'a> {
    pub(super) fn new(op: &'a Operation, held: &'a Held<'a>) -> Self {
        Self {
            op,
            held,
            prints: HashMap::new(),
            made: BTreeMap::new(),
        }
    }

    /// Whether a tree has a directory there.
    pub(super) fn is_directory(&self, tree: ObjectId, path: &RelPath) -> Result<bool, StoreError> {
        let item = self.item(tree, path)?;
        Ok(item.is_some_and(|item| item.kind == ItemKind::Directory))
    }

    /// Whether a tree has anything there.
    pub(super) fn has(&self, tree: ObjectId, path: &RelPath) -> Result<bool, StoreError> {
        Ok(self.item(tree, path)?.is_some())
    }

    fn item(&self, tree: ObjectId, path: &RelPath) -> Result<Option<TreeItem>, StoreError> {
        TreeLookup::new(self.held, tree).at(self.op, path)
    }

    /// Merges two versions of one kind. The third may be of another, or none.
    pub(super) fn merge(
        &mut self,
        stages: Stages,
        from: &[RelPath; 3],
        more_marker: u16,
        level: Level<'_>,
    ) -> Result<MergedFile, StoreError> {
        let [base, Some(ours), Some(theirs)] = stages else {
            unreachable!("both sides have a file");
        };
        let base_mode = base.map(|base| base.0);
        let (mode, is_mode_clean) = match () {
            () if ours.0 == theirs.0 || Some(ours.0) == base_mode => (theirs.0, true),
            () => (ours.0, Some(theirs.0) == base_mode),
        };
        let base_id = base.map(|base| base.1);
        let is_same_kind = base.is_some_and(|base| base.0 & 0o170_000 == ours.0 & 0o170_000);
        let clean = |id, is_clean: bool| MergedFile {
            file: Some((mode, id)),
            is_clean: is_clean && is_mode_clean,
        };
        Ok(match () {
            () if ours.1 == theirs.1 || Some(ours.1) == base_id => clean(theirs.1, true),
            () if Some(theirs.1) == base_id => clean(ours.1, true),
            () if is_file(ours) => {
                let base = base.filter(|_| is_same_kind);
                let (id, is_clean) =
                    self.merge_text([base, Some(ours), Some(theirs)], from, more_marker, level)?;
                clean(id, is_clean)
            }
            // Nobody says which of two links, or of two commits of a submodule.
            () if level.depth == 0 => clean(ours.1, false),
            () if ours.0 == MODE_SUBMODULE && is_same_kind => {
                clean(base_id.unwrap_or(ours.1), false)
            }
            () => MergedFile {
                file: base,
                is_clean: false,
            },
        })
    }

    fn merge_text(
        &mut self,
        stages: Stages,
        from: &[RelPath; 3],
        more_marker: u16,
        level: Level<'_>,
    ) -> Result<(ObjectId, bool), StoreError> {
        let ours = stages[1].expect("both sides have a file").1;
        let mut texts = Vec::with_capacity(3);
        for side in stages {
            match side {
                Some(side) => texts.push(self.text(side.1)?),
                None => texts.push(Some(Vec::new())),
            }
        }
        let is_elsewhere = from.iter().any(|path| *path != from[BASE]);
        let label = |side: usize| match is_elsewhere {
            true => [
                level.names[side - 1].as_bytes(),
                b":",
                from[side].as_bytes(),
            ]
            .concat(),
            false => level.names[side - 1].as_bytes().to_vec(),
        };
        let merged = match &texts[..] {
            [Some(base), Some(ours), Some(theirs)] => {
                merge_texts(base, ours, theirs, (more_marker, [label(1), label(2)]))
            }
            _ => TextMerge::Binary,
        };
        Ok(match merged {
            TextMerge::Clean(text) => (self.make(text)?, true),
            TextMerge::Conflict(text) => (self.make(text)?, false),
            // Of a base that is made nobody asks what it is.
            TextMerge::Binary if level.depth > 0 => match stages[BASE] {
                Some(base) => (base.1, true),
                None => (self.make(Vec::new())?, true),
            },
            TextMerge::Binary => (ours, false),
        })
    }

    fn make(&mut self, text: Vec<u8>) -> Result<ObjectId, StoreError> {
        let id = ObjectId::of(ObjectKind::Blob, &text);
        let id = id.map_err(|e| StoreError::corrupt("a merged file", e.to_string()))?;
        self.made.insert(id, text);
        Ok(id)
    }

    /// What a file has; `None`: it is too long to be merged, or nowhere.
    fn text(&self, id: ObjectId) -> Result<Option<Vec<u8>>, StoreError> {
        if let Some(text) = self.made.get(&id) {
            return Ok(Some(text.clone()));
        }
        self.op.check()?;
        self.held.blob(self.op, id, MAX_MERGED_FILE_BYTES)
    }

    /// How much of the larger of two files is in both, from 0 to [`WHOLE`].
    pub(super) fn similarity(&mut self, old: Side, new: Side) -> Result<u32, StoreError> {
        if !is_file(old) || !is_file(new) {
            return Ok(0);
        }
        if old.1 == new.1 {
            return Ok(WHOLE);
        }
        let (Some(old), Some(new)) = (self.print(old.1)?, self.print(new.1)?) else {
            return Ok(0);
        };
        Ok(match can_be_similar([old.0, new.0], WHOLE / 2) {
            true => old.1.similarity_to(&new.1),
            false => 0,
        })
    }

    fn print(&mut self, id: ObjectId) -> Result<Option<Rc<(u64, Fingerprint)>>, StoreError> {
        if let Some(print) = self.prints.get(&id) {
            return Ok(print.clone());
        }
        let text = self.text(id)?;
        let print = text.map(|text| Rc::new((text.len() as u64, Fingerprint::of(&text))));
        self.prints.insert(id, print.clone());
        Ok(print)
    }
}
