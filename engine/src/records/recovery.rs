//! The report of a recovery.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::events::event::Event;
use crate::failure::Failure;
use crate::id::RunId;

/// What dead engines had left when an engine started, and what it did about that.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RecoveryReport {
    /// What was done, as events in their order: runs that were settled, restores that were
    /// finished, commits that were made or found. The data of each has `recovered`.
    pub done: Vec<Event>,
    /// The workspaces that could not be recovered, because they are gone or in use, or because the
    /// record of a run in them is damaged, each with the reason. They are recovered when they are
    /// used next, or by the next engine.
    pub left: Vec<LeftWorkspace>,
    /// Processes that are still running although their run was settled. No run begins in the
    /// workspace before they have ended. [`survivors`](crate::records::Survivor) cannot be seen
    /// where they are another user's, or were given an environment without
    /// `STILLFRAME_CURRENT_RUN`.
    #[serde(default)]
    pub survivors: Vec<Survivor>,
    /// The adapters of queued runs that this engine was not given, by name: their runs stay queued.
    /// Empty in an engine without adapters, which leaves the queue alone.
    #[serde(default)]
    pub unknown_adapters: Vec<UnknownAdapter>,
    /// How many pieces of work are in quarantine, whoever left them:
    /// [`Engine::quarantine`](crate::Engine::quarantine) lists them.
    #[serde(default)]
    pub quarantined: usize,
}

/// An adapter that queued runs need, and the engine does not have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct UnknownAdapter {
    /// Its name.
    pub adapter: String,
    /// The runs that wait for it, in the order of the queue.
    pub runs: Vec<RunId>,
}

/// A workspace that a recovery could not look after.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LeftWorkspace {
    /// Its directory, printable.
    pub path: String,
    /// Why.
    pub reason: Failure,
}

/// A process of a run that is still running although the run's engine has died.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Survivor {
    /// Its process id.
    pub process: i32,
    /// Its name in the kernel, printable: the first fifteen bytes of its program's name.
    pub name: String,
    /// The run that had started it.
    pub run_id: RunId,
}

impl fmt::Display for Survivor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({})", self.process, self.name)
    }
}
