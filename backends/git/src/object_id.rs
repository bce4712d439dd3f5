//! git's object ids.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use sha1_checked::Sha1;

use crate::tree::ContentId;

/// The SHA-1 id of an object of git's. In JSON: 40 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ObjectId(pub [u8; 20]);

/// What an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    /// A commit.
    Commit,
    /// A directory.
    Tree,
    /// The content of a file, or the text of a link.
    Blob,
}

impl ObjectKind {
    /// The word in an object's header.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Commit => "commit",
            Self::Tree => "tree",
            Self::Blob => "blob",
        }
    }
}

/// Two different contents with one id: an attack on SHA-1 (see shattered.io).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the content is half of a SHA-1 collision")]
pub struct Collision;

/// Hashes an object as it is read. Collision attacks are detected, as git does.
pub struct ObjectHasher(Sha1);

impl ObjectHasher {
    /// For an object of `size` bytes.
    pub fn new(kind: ObjectKind, size: u64) -> Self {
        use sha1_checked::Digest as _;
        let mut hasher = Sha1::new();
        hasher.update(format!("{} {size}\0", kind.as_str()));
        Self(hasher)
    }

    /// Takes the next bytes of the content.
    pub fn update(&mut self, bytes: &[u8]) {
        use sha1_checked::Digest as _;
        self.0.update(bytes);
    }

    /// The id, unless the content is one half of an attack on SHA-1.
    pub fn finish(self) -> Result<ObjectId, Collision> {
        let result = self.0.try_finalize();
        if result.has_collision() {
            Err(Collision)
        } else {
            Ok(ObjectId((*result.hash()).into()))
        }
    }
}

/// Hashes an object in a quarter of the time of [`ObjectHasher`], without a look for attacks: to
/// compare with an id that was made with one.
pub struct TrustingHasher(sha1::Sha1);

impl TrustingHasher {
    /// For an object of `size` bytes.
    pub fn new(kind: ObjectKind, size: u64) -> Self {
        use sha1::Digest as _;
        let mut hasher = sha1::Sha1::new();
        hasher.update(format!("{} {size}\0", kind.as_str()));
        Self(hasher)
    }

    /// Takes the next bytes of the content.
    pub fn update(&mut self, bytes: &[u8]) {
        use sha1::Digest as _;
        self.0.update(bytes);
    }

    /// The id.
    pub fn finish(self) -> ObjectId {
        use sha1::Digest as _;
        ObjectId(self.0.finalize().into())
    }
}

impl ObjectId {
    /// The id of an object with this content.
    pub fn of(kind: ObjectKind, bytes: &[u8]) -> Result<Self, Collision> {
        let mut hasher = ObjectHasher::new(kind, bytes.len() as u64);
        hasher.update(bytes);
        hasher.finish()
    }

    /// As [`ObjectId::of`], by a [`TrustingHasher`].
    pub fn of_trusted(kind: ObjectKind, bytes: &[u8]) -> Self {
        let mut hasher = TrustingHasher::new(kind, bytes.len() as u64);
        hasher.update(bytes);
        hasher.finish()
    }
}

/// By bytes. Ids are spread evenly, so the first eight of them, compared as one number, nearly
/// always decide: a capture sorts as many ids as there are files.
impl Ord for ObjectId {
    fn cmp(&self, other: &Self) -> Ordering {
        let head = |id: &Self| u64::from_be_bytes(*id.0.first_chunk().expect("twenty bytes"));
        head(self)
            .cmp(&head(other))
            .then_with(|| self.0[8..].cmp(&other.0[8..]))
    }
}

impl PartialOrd for ObjectId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl From<ObjectId> for ContentId {
    fn from(id: ObjectId) -> Self {
        Self::Sha1(id.0)
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for ObjectId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        HEXLOWER
            .decode(text.as_bytes())
            .ok()
            .and_then(|bytes| bytes.try_into().ok())
            .map(Self)
            .ok_or_else(|| format!("{text:?} is not 40 lower-case hexadecimal digits"))
    }
}

impl TryFrom<String> for ObjectId {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<ObjectId> for String {
    fn from(id: ObjectId) -> Self {
        id.to_string()
    }
}
/// The id that git has for content; `None`: it has another kind of id.
pub fn sha1(id: &ContentId) -> Option<ObjectId> {
    match id {
        ContentId::Sha1(bytes) => Some(ObjectId(*bytes)),
        ContentId::Blake3(_) => None,
    }
}
