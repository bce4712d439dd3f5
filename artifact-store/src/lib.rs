//! A store for content that is too large for a row of a log: patches, transcripts and the like.
//!
//! An artifact is a sequence of bytes under a [key](ArtifactKey). It is stored whole or not at
//! all, is durable once [`put`](ArtifactStore::put) has answered, and is compared with its blake3
//! before a single byte of it is handed out again. Content streams both ways, so an artifact may
//! be larger than memory.
//!
//! ```
//! use std::io::Read as _;
//! use stillframe_artifact_store::{ArtifactKey, ArtifactStore, FileStore, PutOptions};
//!
//! # let directory = tempfile::tempdir()?;
//! # let root = directory.path().join("artifacts");
//! let store = FileStore::open(&root)?;
//! let key = ArtifactKey::new("patch_1_2")?;
//!
//! let meta = store.put(&key, &mut "+hello\n".as_bytes(), &PutOptions::default())?;
//! assert_eq!(meta.bytes, 7);
//!
//! let mut text = String::new();
//! store.get(&key)?.read_to_string(&mut text)?;
//! assert_eq!(text, "+hello\n");
//!
//! store.delete(&key)?;
//! assert!(!store.exists(&key)?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Every call blocks, and no runtime is needed. The store does not encrypt, so it is not for
//! secrets. It finds content only by the whole key, and keeps no history: a second put of a key
//! replaces the first.

#[macro_use(seeded_bug)]
extern crate stillframe_disk;

mod digest;
mod error;
mod file;
mod gc;
mod key;
mod memory;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

use std::io::Read;

use serde::Serialize;
use stillframe_disk::blob::{self, Stopped};

pub use key::{ArtifactKey, InvalidKey};

pub use file::FileStore;
pub use memory::MemoryStore;

pub use digest::Digest;
pub use error::{
    Damage, DeleteError, ErrorKind, GetError, OpenError, PathError, PutError, StoreError,
};
pub use gc::{GcOutcome, Problem, VerifyOutcome};

/// Keeps artifacts.
///
/// Every method blocks, may be called from any number of threads, and leaves the store as it was
/// if it fails, unless its error says otherwise.
pub trait ArtifactStore: Send + Sync {
    /// Reads `content` to its end and keeps it under `key`, in place of what was there.
    ///
    /// On `Ok` the artifact is durable. On `Err` the key has what it had before, and nothing of
    /// the new content is left; [`PutError::Unconfirmed`] is the one exception. Readers see the
    /// old content or the new one, never a mixture. Memory use does not depend on the content's
    /// length.
    fn put(
        &self,
        key: &ArtifactKey,
        content: &mut dyn Read,
        options: &PutOptions,
    ) -> Result<ArtifactMeta, PutError>;

    /// Opens the content of `key`, once all of it was read and compared with its blake3.
    ///
    /// Damaged content is [`GetError::Corrupt`], and none of it is handed out. Content that
    /// changes while it is being read ends in an error before its last byte, never in an early
    /// end. What is replaced or deleted meanwhile can still be read to its end.
    fn get(&self, key: &ArtifactKey) -> Result<Box<dyn Read + Send>, GetError>;

    /// Forgets `key`. A key that is not there is fine.
    fn delete(&self, key: &ArtifactKey) -> Result<(), DeleteError>;

    /// Whether there is an artifact under `key`, damaged or not. Reads no content.
    fn exists(&self, key: &ArtifactKey) -> Result<bool, StoreError>;

    /// Names every artifact. Reads no content.
    fn list(&self) -> Result<ArtifactList, StoreError>;
}

/// What is known of an artifact without reading it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ArtifactMeta {
    /// The key it is kept under.
    pub key: ArtifactKey,
    /// The length of its content.
    pub bytes: u64,
    /// The digest of its content.
    pub blake3: Digest,
}

impl ArtifactMeta {
    /// Describes content of that length and digest.
    pub fn new(key: ArtifactKey, bytes: u64, blake3: Digest) -> Self {
        Self { key, bytes, blake3 }
    }
}

/// What a store holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ArtifactList {
    /// Sorted by the bytes of the keys.
    pub artifacts: Vec<ArtifactMeta>,
    /// Where the store keeps artifacts whose key it cannot tell, because their records are
    /// damaged. Sorted; empty in a healthy store.
    pub damaged: Vec<String>,
}

impl ArtifactList {
    /// Sorts what a store found in any order.
    pub fn new(mut artifacts: Vec<ArtifactMeta>, mut damaged: Vec<String>) -> Self {
        artifacts.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        damaged.sort_unstable();
        Self { artifacts, damaged }
    }
}

/// How to keep an artifact. By default there is no limit to its length.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct PutOptions {
    /// The most bytes to accept; more are [`PutError::TooLarge`]. `None` is no limit, the default.
    pub max_bytes: Option<u64>,
}

impl PutOptions {
    /// Accepts at most that many bytes.
    pub fn max_bytes(mut self, max_bytes: u64) -> Self {
        self.max_bytes = Some(max_bytes);
        self
    }
}

/// Reads `content` to its end, piece by piece, and answers with its length and digest.
///
/// `keep` is given every piece in order, and its error ends the reading.
fn read_content(
    key: &ArtifactKey,
    content: &mut dyn Read,
    options: &PutOptions,
    mut keep: impl FnMut(&[u8]) -> Result<(), StoreError>,
) -> Result<ArtifactMeta, PutError> {
    let max_bytes = options.max_bytes.unwrap_or(u64::MAX);
    let mut bytes = 0_u64;
    let read = blob::read(content, |piece| {
        bytes = bytes.saturating_add(piece.len() as u64);
        if bytes > max_bytes {
            let key = key.clone();
            return Err(PutError::TooLarge { key, max_bytes });
        }
        Ok(keep(piece)?)
    });
    let (bytes, blake3) = read.map_err(|e| match e {
        Stopped::Take(e) => e,
        Stopped::Read(source) => PutError::Content {
            key: key.clone(),
            source,
        },
    })?;
    Ok(ArtifactMeta::new(key.clone(), bytes, blake3.into()))
}
