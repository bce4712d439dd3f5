//! How often tools were called in a run.

use std::collections::BTreeMap;
use std::fmt;

/// What the tools of a run did, since its work began in this process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ToolCounters {
    /// Calls that were asked for.
    pub total: u64,
    /// Calls that succeeded.
    pub successful: u64,
    /// Calls that failed, or were not made.
    pub failed: u64,
    /// Snapshots that were taken around calls.
    pub snapshots: u64,
    /// Failed calls after which the workspace was put back.
    pub rollbacks: u64,
    /// Calls by the name of the tool.
    pub by_tool: BTreeMap<String, u64>,
}

impl fmt::Display for ToolCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} calls, {} successful, {} failed, {} snapshots, {} rollbacks",
            self.total, self.successful, self.failed, self.snapshots, self.rollbacks
        )
    }
}
