//! A store for tests.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::digest::Digest;
use crate::error::{Damage, DeleteError, GetError, PutError, StoreError};
use crate::key::ArtifactKey;
use crate::{ArtifactList, ArtifactMeta, ArtifactStore, PutOptions, read_content};

/// Keeps artifacts in memory for as long as it lives, and keeps every promise but durability.
///
/// It is stricter than a store on disk: content is handed out in small pieces of an odd length,
/// so that a caller that takes one `read` for all of it is found out.
#[derive(Debug, Default)]
pub struct MemoryStore {
    artifacts: Mutex<BTreeMap<ArtifactKey, Kept>>,
}

#[derive(Clone, Debug)]
struct Kept {
    content: Arc<[u8]>,
    blake3: Digest,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Flips one bit of what is kept under `key`, or adds a byte where there was none, so that a
    /// host can test what it does about [`GetError::Corrupt`]. Answers whether there was such a
    /// key.
    pub fn damage(&self, key: &ArtifactKey) -> bool {
        let mut artifacts = self.artifacts();
        let Some(kept) = artifacts.get_mut(key) else {
            return false;
        };
        let mut content = kept.content.to_vec();
        match content.last_mut() {
            Some(byte) => *byte ^= 1,
            None => content.push(0),
        }
        kept.content = content.into();
        true
    }

    fn artifacts(&self) -> MutexGuard<'_, BTreeMap<ArtifactKey, Kept>> {
        // The map is changed by single calls, so a panic elsewhere cannot leave it half-way.
        self.artifacts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl ArtifactStore for MemoryStore {
    fn put(
        &self,
        key: &ArtifactKey,
        content: &mut dyn Read,
        options: &PutOptions,
    ) -> Result<ArtifactMeta, PutError> {
        let mut bytes = Vec::new();
        let meta = read_content(key, content, options, |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        let kept = Kept {
            content: bytes.into(),
            blake3: meta.blake3,
        };
        self.artifacts().insert(key.clone(), kept);
        Ok(meta)
    }

    fn get(&self, key: &ArtifactKey) -> Result<Box<dyn Read + Send>, GetError> {
        let kept = self.artifacts().get(key).cloned();
        let kept = kept.ok_or_else(|| GetError::NotFound { key: key.clone() })?;
        let found = Digest::of(&kept.content);
        if found != kept.blake3 {
            let expected = kept.blake3;
            return Err(GetError::Corrupt {
                key: key.clone(),
                damage: Damage::Content { expected, found },
            });
        }
        Ok(Box::new(SmallPieces {
            content: kept.content,
            offset: 0,
        }))
    }

    fn delete(&self, key: &ArtifactKey) -> Result<(), DeleteError> {
        self.artifacts().remove(key);
        Ok(())
    }

    fn exists(&self, key: &ArtifactKey) -> Result<bool, StoreError> {
        Ok(self.artifacts().contains_key(key))
    }

    fn list(&self) -> Result<ArtifactList, StoreError> {
        let artifacts = self
            .artifacts()
            .iter()
            .map(|(key, kept)| {
                ArtifactMeta::new(key.clone(), kept.content.len() as u64, kept.blake3)
            })
            .collect();
        Ok(ArtifactList::new(artifacts, Vec::new()))
    }
}

struct SmallPieces {
    content: Arc<[u8]>,
    offset: usize,
}

impl SmallPieces {
    /// A prime, so that no caller's buffer is a multiple of it.
    const MAX_BYTES: usize = 4093;
}

impl Read for SmallPieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let rest = &self.content[self.offset..];
        let length = rest.len().min(buffer.len()).min(Self::MAX_BYTES);
        buffer[..length].copy_from_slice(&rest[..length]);
        self.offset += length;
        Ok(length)
    }
}
