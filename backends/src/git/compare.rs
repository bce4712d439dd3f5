//! Comparing with a capture that was not published: its trees are read beside those of the store.

use std::collections::HashMap;

use crate::git::ObjectId;
use crate::git::store::Reader;
use crate::git::tree_object::{self, TreeItem, Trees};
use crate::operation::Operation;
use crate::store_error::StoreError;

/// The store's trees, and those that only a capture has.
pub(crate) struct WithNew<'a> {
    pub(crate) store: &'a Reader<'a>,
    pub(crate) new: &'a HashMap<ObjectId, Vec<u8>>,
}

impl Trees for WithNew<'_> {
    fn tree(&self, op: &Operation, id: &ObjectId) -> Result<Vec<TreeItem>, StoreError> {
        match self.new.get(id) {
            Some(bytes) => tree_object::parse(id, bytes),
            None => self.store.tree(op, id),
        }
    }
}
