//! The identity of a directory: device and inode.

use serde::{Deserialize, Serialize};

/// The identity of a directory, as the kernel knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Identity {
    /// The device that holds it.
    pub device: u64,
    /// Its inode there.
    pub inode: u64,
}

/// What a directory is known again by, for as long as snapshots are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownDirectory {
    /// Device and inode.
    #[serde(flatten)]
    pub identity: Identity,
    /// When it was made, in nanoseconds since the Unix epoch, where the file system keeps that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub born_ns: Option<u64>,
}

impl KnownDirectory {
    /// Whether both are one directory. The time of birth tells it from one that got its inode
    /// later; the number of its device may be another one each time that the file system is
    /// mounted, so that counts only where a time is not known.
    pub fn is_same(&self, other: &Self) -> bool {
        match (self.born_ns, other.born_ns) {
            (Some(born), Some(other_born)) => {
                self.identity.inode == other.identity.inode && born == other_born
            }
            _ => self.identity == other.identity,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // After a restart a disk may have another number, and an undo took its repository for another
    // one
    #[test]
    fn a_directory_is_known_again_by_inode_and_birth() {
        let known = |device, inode, born_ns| KnownDirectory {
            identity: Identity { device, inode },
            born_ns,
        };
        let before = known(1, 2, Some(3));
        assert!(before.is_same(&known(9, 2, Some(3))));
        assert!(!before.is_same(&known(1, 2, Some(4))));
        assert!(!before.is_same(&known(1, 5, Some(3))));
        // As an older record has it, or a file system without times of birth.
        for unknown in [known(1, 2, None), before] {
            assert!(unknown.is_same(&known(1, 2, None)));
            assert!(!unknown.is_same(&known(9, 2, None)));
        }
        let old: KnownDirectory = serde_json::from_str(r#"{"device":1,"inode":2}"#).unwrap();
        assert_eq!(old, known(1, 2, None));
        let text = serde_json::to_string(&before).unwrap();
        assert_eq!(text, r#"{"device":1,"inode":2,"born_ns":3}"#);
    }
}
