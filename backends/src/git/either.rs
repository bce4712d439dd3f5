//! Objects that lie in the store or in the user's repository.

pub(super) mod closure;
pub(super) mod past;

use super::repository::UserRepository;
use super::store::{Reader, Store};
use super::tree_object::{self, TreeItem, Trees};
use super::{ObjectId, ObjectKind};
use crate::operation::Operation;
use crate::store_error::StoreError;

/// A directory of several million names.
const MAX_TREE_BYTES: u64 = 256 << 20;

/// What is said of an object that is in neither.
pub(super) const NOT_HERE: &str = "it is neither in the store nor in the repository";

/// Both places, the store first.
#[derive(Clone, Copy)]
pub(super) struct Either<'a> {
    pub(super) store: &'a Store,
    pub(super) repository: &'a UserRepository,
}

impl Either<'_> {
    /// An object; `None`: it is in neither.
    pub(super) fn object(
        &self,
        op: &Operation,
        id: ObjectId,
        max_bytes: u64,
    ) -> Result<Option<(ObjectKind, Vec<u8>)>, StoreError> {
        if self.store.contains(&id)? {
            return self.store.read(op, &id, max_bytes).map(Some);
        }
        let read = self.repository.read_object(op, id, max_bytes);
        read.map_err(super::commit::as_store_error)
    }

    /// The names in a tree; `None`: it is in neither.
    pub(super) fn tree_if_any(
        &self,
        op: &Operation,
        id: &ObjectId,
    ) -> Result<Option<Vec<TreeItem>>, StoreError> {
        // It need not be anywhere.
        if *id == tree_object::empty_tree_id() {
            return Ok(Some(Vec::new()));
        }
        if self.store.contains(id)? {
            return self.store.tree(op, id).map(Some);
        }
        self.tree_of_user(op, id)
    }

    fn tree_of_user(
        &self,
        op: &Operation,
        id: &ObjectId,
    ) -> Result<Option<Vec<TreeItem>>, StoreError> {
        let read = self.repository.read_object(op, *id, MAX_TREE_BYTES);
        match read.map_err(super::commit::as_store_error)? {
            Some((ObjectKind::Tree, bytes)) => tree_object::parse(id, &bytes).map(Some),
            Some(_) => Err(StoreError::corrupt(id.to_string(), "it is no tree")),
            None => Ok(None),
        }
    }
}

/// The trees of both places, for who reads many: the packs of the store stay open.
#[derive(Clone, Copy)]
pub(super) struct EitherTrees<'a> {
    pub(super) either: Either<'a>,
    stored: &'a Reader<'a>,
}

impl<'a> EitherTrees<'a> {
    /// `stored` reads in the same store.
    pub(super) fn new(either: Either<'a>, stored: &'a Reader<'a>) -> Self {
        Self { either, stored }
    }

    /// As [`Either::tree_if_any`].
    pub(super) fn tree_if_any(
        &self,
        op: &Operation,
        id: &ObjectId,
    ) -> Result<Option<Vec<TreeItem>>, StoreError> {
        if *id == tree_object::empty_tree_id() || self.stored.contains(id)? {
            return self.stored.tree(op, id).map(Some);
        }
        match self.either.tree_of_user(op, id)? {
            // It may have come into the store since.
            None => self.either.tree_if_any(op, id),
            tree => Ok(tree),
        }
    }
}

impl Trees for EitherTrees<'_> {
    fn tree(&self, op: &Operation, id: &ObjectId) -> Result<Vec<TreeItem>, StoreError> {
        let tree = self.tree_if_any(op, id)?;
        tree.ok_or_else(|| StoreError::corrupt(id.to_string(), NOT_HERE))
    }
}
