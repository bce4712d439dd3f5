//! Which guarantees a file system gives, by its kind.

use crate::root::Root;

/// What can be said of the times that a file system keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileSystemKind {
    /// On this machine, and it keeps the kernel's clock unrounded, or in whole seconds that can be
    /// told from it.
    Local,
    /// The same, but what a directory shows may come from elsewhere.
    Overlay,
    Other,
}

/// From `linux/magic.h`.
const LOCAL: [i64; 6] = [
    0xEF53,      // ext2, ext3, ext4
    0x5846_5342, // XFS
    0x9123_683E, // btrfs
    0x0102_1994, // tmpfs
    ZFS,
    0xF2F5_2010, // f2fs
];
const ZFS: i64 = 0x2FC1_2FC1;
const OVERLAY: i64 = 0x794C_7630;

/// The kind of the file system that holds the workspace's directory.
pub(crate) fn file_system_kind(root: &Root) -> FileSystemKind {
    match kind(root) {
        Some(kind) if LOCAL.contains(&kind) => FileSystemKind::Local,
        Some(OVERLAY) => FileSystemKind::Overlay,
        _ => FileSystemKind::Other,
    }
}

/// Whether the kernel tells of every change of a file there that is made by its name or through a
/// descriptor.
///
/// Not of one that another machine or layer makes; nor of ZFS's `rollback`, which replaces the
/// content of a mounted file system.
pub(crate) fn tells_of_changes(root: &Root) -> bool {
    kind(root).is_some_and(|kind| LOCAL.contains(&kind) && kind != ZFS)
}

fn kind(root: &Root) -> Option<i64> {
    #[allow(
        clippy::unnecessary_cast,
        reason = "the type differs between architectures"
    )]
    rustix::fs::fstatfs(root.as_fd())
        .ok()
        .map(|stat| stat.f_type as i64)
}
