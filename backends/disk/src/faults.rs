//! The places where a test can make a call fail: before every call that changes the disk.
//!
//! Each place reports the next call to its [`Operation`](crate::operation::Operation). A test can
//! make any call fail, end the process before it, or read afterwards which calls were made in which
//! order. Outside of tests the reports have no effect.

#[cfg(any(test, feature = "testing"))]
mod sample;
#[cfg(any(test, feature = "testing"))]
mod witness;

#[cfg(any(test, feature = "testing"))]
pub use sample::{Calls, one_of_each};
#[cfg(any(test, feature = "testing"))]
pub use witness::{Done, Fault, Witness};

/// A call that changes the disk, or makes a change of it last; with the paths that it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect<P> {
    /// Makes a file that nobody looks for yet, in this directory.
    Stage(P),
    /// Makes a directory.
    MakeDirectory(P),
    /// Changes the bytes, the length or the mode of a file.
    Write(P),
    /// Gives a file a further name.
    Link(P),
    /// Gives a file another name.
    Rename {
        /// The name that it has.
        from: P,
        /// The name that it gets.
        to: P,
    },
    /// Takes the name of a file away.
    Remove(P),
    /// Makes the bytes of a file survive a power cut.
    Sync(P),
    /// Makes the names in a directory survive a power cut.
    SyncDirectory(P),
    /// Makes everything on the file system of this path survive a power cut.
    SyncFileSystem(P),
}
