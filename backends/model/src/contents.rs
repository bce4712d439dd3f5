//! The content of files, read from wherever it is kept.

use std::collections::BTreeMap;
use std::io::Write;

use crate::store_error::StoreError;
use crate::tree::ContentId;

/// The content of files, opened for reading. Threads may share it.
pub trait Contents: Sync {
    /// The position of the content with this id. Reading in the order of positions costs least.
    fn place(&self, id: &ContentId) -> u64;

    /// How many bytes the content with this id has. The content is not read, so it may be damaged.
    fn length(&self, id: &ContentId) -> Result<u64, StoreError>;

    /// Writes the content with this id to `sink`, as a stream, and checks it against the id:
    /// [`StoreError::Corrupt`] if it is not what the id says, whatever was written by then.
    fn write(&self, id: &ContentId, sink: &mut dyn Write) -> Result<(), ContentError>;
}

/// Content of which some is held in memory.
pub struct Overlaid<'a> {
    /// By id; it is right.
    pub held: &'a BTreeMap<ContentId, Vec<u8>>,
    /// All else.
    pub stored: &'a dyn Contents,
}

impl Contents for Overlaid<'_> {
    fn place(&self, id: &ContentId) -> u64 {
        match self.held.contains_key(id) {
            true => 0,
            false => self.stored.place(id),
        }
    }

    fn length(&self, id: &ContentId) -> Result<u64, StoreError> {
        match self.held.get(id) {
            Some(content) => Ok(content.len() as u64),
            None => self.stored.length(id),
        }
    }

    fn write(&self, id: &ContentId, sink: &mut dyn Write) -> Result<(), ContentError> {
        match self.held.get(id) {
            Some(content) => sink.write_all(content).map_err(ContentError::Sink),
            None => self.stored.write(id, sink),
        }
    }
}

/// Why some content could not be written to its sink.
#[derive(Debug, thiserror::Error)]
pub enum ContentError {
    /// The store lacks it, or has something else under its id.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The place it was to be written to refused.
    #[error("cannot write the content")]
    Sink(#[source] std::io::Error),
}
