//! What keeps a session that has ended on record.

use serde::Serialize;

/// What needs a session that has ended, so that [`Engine::trim_log`](crate::Engine::trim_log) keeps
/// it though it is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SessionNeed {
    /// A run of it has not ended.
    Run,
    /// A snapshot of it, or of one of its runs, is kept.
    Snapshot,
    /// A restore in it is under way.
    Restore,
    /// An artifact of it is a prompt of an agent in a run of another session.
    Prompt,
    /// It has an operation that can be undone, or the latest one of a workspace.
    Undo,
    /// A commit of a run of it is neither made nor given up yet.
    Effect,
    /// A run of it has a worktree of its own that was not let go of.
    Worktree,
    /// An event of it says which snapshots were removed, when retention was announced, or which
    /// refs an earlier version has made.
    Event,
    /// Artifacts of it are, or were, in another store than that of the engine.
    OtherStore,
    /// It is written to, or artifacts are being stored: the next call may remove it.
    InUse,
}

impl SessionNeed {
    /// The need that the state names so; `None`: it is not one that the state tells.
    pub(crate) fn stored(name: &str) -> Option<Self> {
        Some(match name {
            "run" => Self::Run,
            "snapshot" => Self::Snapshot,
            "restore" => Self::Restore,
            "prompt" => Self::Prompt,
            "undo" => Self::Undo,
            "effect" => Self::Effect,
            "worktree" => Self::Worktree,
            "event" => Self::Event,
            _ => return None,
        })
    }
}
