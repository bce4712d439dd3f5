//! The hashes that give content its ids: git's hash of a blob, and blake3.

use crate::git::{ObjectHasher, ObjectKind};
use crate::tree::ContentId;
use crate::worktree::read::{Hasher, Hashing};

/// Both.
pub(crate) struct ContentHashes;

impl Hashing for ContentHashes {
    fn hasher(&self, like: &ContentId, size: u64) -> Box<dyn Hasher> {
        match like {
            ContentId::Sha1(_) => Box::new(Sha1(ObjectHasher::new(ObjectKind::Blob, size))),
            ContentId::Blake3(_) => Box::new(Blake3(blake3::Hasher::new())),
        }
    }
}

struct Sha1(ObjectHasher);

impl Hasher for Sha1 {
    fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(self: Box<Self>) -> Option<ContentId> {
        self.0.finish().ok().map(ContentId::from)
    }
}

struct Blake3(blake3::Hasher);

impl Hasher for Blake3 {
    fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(self: Box<Self>) -> Option<ContentId> {
        Some(ContentId::Blake3(*self.0.finalize().as_bytes()))
    }
}
