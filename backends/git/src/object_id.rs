//! git's object ids.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};

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
pub struct ObjectHasher(sha1dc::Hasher);

impl ObjectHasher {
    /// For an object of `size` bytes.
    pub fn new(kind: ObjectKind, size: u64) -> Self {
        let mut hasher = sha1dc::Hasher::new();
        hasher.update(format!("{} {size}\0", kind.as_str()).as_bytes());
        Self(hasher)
    }

    /// Takes the next bytes of the content.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The id, unless the content is one half of an attack on SHA-1.
    pub fn finish(self) -> Result<ObjectId, Collision> {
        let digest = self.0.finalize().map_err(|_| Collision)?;
        Ok(ObjectId(digest.to_bytes()))
    }
}

/// Hashes an object in three quarters of the time of [`ObjectHasher`], without a look for attacks:
/// to compare with an id that was made with one.
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

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use proptest::prelude::*;

    use super::*;
    use crate::test_repository::TestRepository;

    /// How both files of shattered.io begin; the second has other bits in the last 128 bytes.
    const SHATTERED: &str = "\
        255044462d312e330a25e2e3cfd30a0a0a312030206f626a0a3c3c2f57696474682032203020522f\
        4865696768742033203020522f547970652034203020522f537562747970652035203020522f4669\
        6c7465722036203020522f436f6c6f7253706163652037203020522f4c656e677468203820302052\
        2f42697473506572436f6d706f6e656e7420383e3e0a73747265616d0affd8fffe00245348412d31\
        20697320646561642121212121852fec092339759c39b1a1c63c4c97e1fffe017346dc9166b67e11\
        8f029ab621b2560ff9ca67cca8c7f85ba84c79030c2b3de218f86db3a90901d5df45c14f26fedfb3\
        dc38e96ac22fe7bd728f0e45bce046d23c570feb141398bb552ef5a0a82be331fea48037b8b5d71f\
        0e332edf93ac3500eb4ddc0decc1a864790c782c76215660dd309791d06bd0af3f98cda4bc4629b1";

    #[test]
    fn a_collision_is_found_wherever_its_blocks_are_split() {
        let bytes = HEXLOWER.decode(SHATTERED.as_bytes()).unwrap();
        // An object has its header before it, with which nobody has made a collision yet.
        for piece in [1, 63, 64, 100, 320] {
            let mut hasher = ObjectHasher(sha1dc::Hasher::new());
            bytes.chunks(piece).for_each(|piece| hasher.update(piece));
            assert_eq!(hasher.finish(), Err(Collision), "pieces of {piece}");
            let mut hasher = ObjectHasher(sha1dc::Hasher::new());
            bytes[..256]
                .chunks(piece)
                .for_each(|piece| hasher.update(piece));
            assert!(hasher.finish().is_ok(), "half of its blocks are none");
        }
    }

    #[test]
    fn an_id_is_gits() {
        let repository = TestRepository::new();
        let mut content = Vec::new();
        for length in [0_u32, 1, 54, 55, 56, 57, 63, 64, 65, 1000, 200_000] {
            while content.len() < length as usize {
                writeln!(content, "{}", content.len()).unwrap();
            }
            content.truncate(length as usize);
            repository.write("content", &content);
            let id = ObjectId::of(ObjectKind::Blob, &content).unwrap();
            let git = repository.git(&["hash-object", "--no-filters", "content"]);
            assert_eq!(id.to_string(), git, "{length} bytes");
        }
    }

    proptest! {
        #[test]
        fn both_hashers_agree_whatever_the_pieces(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..8),
        ) {
            let whole = pieces.concat();
            let mut hasher = ObjectHasher::new(ObjectKind::Tree, whole.len() as u64);
            pieces.iter().for_each(|piece| hasher.update(piece));
            prop_assert_eq!(hasher.finish(), Ok(ObjectId::of_trusted(ObjectKind::Tree, &whole)));
        }
    }
}
