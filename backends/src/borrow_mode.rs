//! How a store takes objects from the user's repository: hard links, reflinks or copies.

/// How objects that the user's repository already has come into the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum BorrowMode {
    /// Hard links, which cost no space; where the file system refuses, a reflink, else a copy.
    #[default]
    HardLink,
    /// A reflink, else a copy: writing into the repository's packs cannot damage ours.
    Reflink,
    /// Always a copy.
    Copy,
}
