//! The result that the work of a run returned.

use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CommandResult {
    /// The program, printable.
    pub command: String,
    /// Its arguments, printable.
    pub args: Vec<String>,
    /// Where it ran, printable.
    pub cwd: String,
    /// Its exit code; 124 when its time was up, 126 when it is not executable, 127 when there is
    /// no such command, 128 and the signal's number when a signal ended it, or asked it to end and
    /// it ended with 0.
    pub exit_code: i32,
    /// What it wrote to stdout, up to the cap. Bytes that are not UTF-8 are replaced.
    pub stdout: String,
    /// What it wrote to stderr, up to the cap.
    pub stderr: String,
    /// How much it wrote to stdout, in bytes; 0 where the engine did not see it.
    #[serde(default)]
    pub stdout_bytes: u64,
    /// How much it wrote to stderr, in bytes; 0 where the engine did not see it.
    #[serde(default)]
    pub stderr_bytes: u64,
    /// The key of the artifact that has all of stdout: of a command that
    /// [keeps all output](crate::CommandAdapter::keep_all_output), and wrote something there.
    #[serde(default)]
    pub stdout_ref: Option<String>,
    /// The key of the artifact that has all of stderr.
    #[serde(default)]
    pub stderr_ref: Option<String>,
    /// Why not all output was kept that should have been. It does not change how the command
    /// ended.
    #[serde(default)]
    pub output_error: Option<Failure>,
    /// Whether there was more on stdout than was kept.
    pub stdout_truncated: bool,
    /// Whether there was more on stderr than was kept.
    pub stderr_truncated: bool,
    /// How long it ran, on a monotonic clock.
    pub duration_ms: u64,
    /// Whether it was ended because its time was up.
    pub timed_out: bool,
    /// The number of the signal that ended it, if one did.
    #[serde(default)]
    pub signal: Option<i32>,
    /// Whether it had the terminal when it ended, so that what is typed there to interrupt was for
    /// it alone.
    #[serde(default)]
    pub had_terminal: bool,
}

/// What an adapter returns when its work ended well; a failed one may have some too.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AdapterOutput {
    /// An exit code, if the work has one.
    pub exit_code: Option<i32>,
    /// What the command printed, and how it ended, if the work was one.
    pub command: Option<CommandResult>,
    /// The adapter's own.
    pub data: serde_json::Value,
}

impl AdapterOutput {
    /// Nothing to say.
    pub fn empty() -> Self {
        Self::default()
    }

    /// The adapter's own data.
    pub fn with_data(data: serde_json::Value) -> Self {
        Self {
            data,
            ..Self::default()
        }
    }
}
