//! Storing the content that a capture reads: into its pack, unless the store has it already.

use std::cell::RefCell;

use crate::git::pack::{PackWriter, Streamed};
use crate::git::store::Reader;
use crate::git::{ObjectHasher, ObjectId, ObjectKind};
use crate::purge::Purged;
use crate::snapshot_error::SnapshotError;
use crate::store_error::StoreError;
use crate::tree::ContentId;
use crate::worktree::read::{self, Content, ContentSink, SinkError};

/// Files up to this size are read whole, hashed and compressed by the thread that found them;
/// larger ones pass through in pieces, so that a file's size never is a thread's memory.
const MAX_BUFFERED_BYTES: u64 = 4 << 20;

/// Puts new content into the pack of the capture.
pub(crate) struct GitSink<'a> {
    pub(super) reader: Reader<'a>,
    pub(super) pack: &'a PackWriter,
    /// What is hashed and never stored.
    pub(super) purged: &'a Purged,
}

thread_local! {
    /// The content of the file that this thread reads; kept, so that its space is.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl ContentSink for GitSink<'_> {
    fn file(&self, size: u64, content: &mut dyn Content) -> Result<Option<ContentId>, SinkError> {
        if size > MAX_BUFFERED_BYTES {
            return self.large_file(size, content);
        }
        BUFFER.with_borrow_mut(|buffer| {
            if !read::exactly(size, content, buffer).map_err(SinkError::Read)? {
                return Ok(None);
            }
            self.blob(buffer).map(Some)
        })
    }

    fn link(&self, text: &[u8]) -> Result<ContentId, SinkError> {
        self.blob(text)
    }
}

impl GitSink<'_> {
    /// Whether the content need not be stored: it is there, or was purged.
    fn has(&self, id: &ObjectId) -> Result<bool, SnapshotError> {
        Ok(self.purged.contains(&(*id).into()) || self.reader.contains(id)?)
    }

    fn blob(&self, bytes: &[u8]) -> Result<ContentId, SinkError> {
        let id = ObjectId::of(ObjectKind::Blob, bytes).map_err(collision)?;
        if !self.has(&id)? {
            self.pack
                .add(ObjectKind::Blob, id, bytes)
                .map_err(|e| SnapshotError::from(StoreError::from(e)))?;
        }
        Ok(id.into())
    }

    /// Reads the file once to know its id, and again only if the store lacks it.
    fn large_file(
        &self,
        size: u64,
        content: &mut dyn Content,
    ) -> Result<Option<ContentId>, SinkError> {
        let mut hasher = ObjectHasher::new(ObjectKind::Blob, size);
        let mut piece = vec![0; 256 * 1024];
        let mut total = 0;
        loop {
            match content.read(&mut piece).map_err(SinkError::Read)? {
                0 => break,
                n => {
                    hasher.update(&piece[..n]);
                    total += n as u64;
                }
            }
        }
        if total != size {
            return Ok(None);
        }
        let id = hasher.finish().map_err(collision)?;
        if self.has(&id)? {
            return Ok(Some(id.into()));
        }
        content.rewind().map_err(SinkError::Read)?;
        match self
            .pack
            .add_stream(size, content)
            .map_err(|e| SnapshotError::from(StoreError::from(e)))?
        {
            Streamed::Stored(stored) if stored == id => Ok(Some(id.into())),
            // It changed between the two readings: the stored content is whole, but nothing uses
            // it.
            Streamed::Stored(_) | Streamed::Unstable => Ok(None),
            Streamed::Unreadable(source) => Err(SinkError::Read(source)),
            Streamed::Collision(found) => Err(collision(found).into()),
        }
    }
}

pub(super) fn collision(_: crate::git::Collision) -> SnapshotError {
    SnapshotError::Unsupported(
        "a file is half of a SHA-1 collision, which git cannot store".to_owned(),
    )
}
