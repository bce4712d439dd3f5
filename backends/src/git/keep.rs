//! Paths that are captured although a rule ignores them.

use crate::git::ObjectId;

/// Trees whose paths are captured although a rule ignores them.
pub(crate) struct Keep {
    pub(crate) trees: Vec<(KeptFor, ObjectId)>,
}

/// Why a tree's paths are captured although a rule ignores them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeptFor {
    /// What a restore aims at: whatever leaves its paths out, they are looked at.
    Goal,
    /// What the session captured: a file in the workspace does not hide it. The host may leave it
    /// out.
    Session,
}
