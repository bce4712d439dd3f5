//! Objects that a merge reads: those of store and repository, and those that it has made itself,
//! which are nowhere yet.

use std::collections::BTreeMap;

use crate::git::either::{Either, EitherTrees};
use crate::git::tree_object::{self, TreeItem, Trees};
use crate::git::{ObjectId, ObjectKind};
use crate::operation::Operation;
use crate::store_error::StoreError;

pub(super) struct Held<'a> {
    either: Either<'a>,
    trees: &'a dyn Trees,
    made: BTreeMap<ObjectId, Vec<u8>>,
}

impl<'a> Held<'a> {
    pub(super) fn new(trees: &'a EitherTrees<'_>) -> Self {
        Self {
            either: trees.either,
            trees,
            made: BTreeMap::new(),
        }
    }

    pub(super) fn hold(&mut self, objects: impl IntoIterator<Item = (ObjectId, Vec<u8>)>) {
        self.made.extend(objects);
    }

    /// The content of a file; `None`: it is longer, or nowhere.
    pub(super) fn blob(
        &self,
        op: &Operation,
        id: ObjectId,
        max_bytes: u64,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        if let Some(bytes) = self.made.get(&id) {
            return Ok(Some(bytes.clone()));
        }
        match self.either.object(op, id, max_bytes) {
            Ok(Some((ObjectKind::Blob, bytes))) => Ok(Some(bytes)),
            Err(error @ StoreError::Interrupted(_)) => Err(error),
            _ => Ok(None),
        }
    }
}

impl Trees for Held<'_> {
    fn tree(&self, op: &Operation, id: &ObjectId) -> Result<Vec<TreeItem>, StoreError> {
        match self.made.get(id) {
            Some(bytes) => tree_object::parse(id, bytes),
            None => self.trees.tree(op, id),
        }
    }
}
