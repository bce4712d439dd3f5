//! How long a harness goes on, and from which seed.

use std::path::PathBuf;
use std::time::Duration;

use crate::torture::Report;
use crate::torture::call_class::CallClass;
use crate::torture::fault::Fault;

/// What a harness is to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// The program that starts others under a filter: `torture` itself.
    pub launcher: PathBuf,
    /// How often something is disturbed before it ends.
    pub operations: usize,
    /// When it ends, however often that was.
    pub time: Duration,
    /// What every choice follows from.
    pub seed: u64,
    /// How many do it beside each other, each in directories of its own.
    pub workers: usize,
    /// Whether it ends as soon as something is found.
    pub until_found: bool,
    /// The only calls that are disturbed; `None`: all.
    pub class: Option<CallClass>,
    /// The only thing that is done to them; `None`: everything.
    pub fault: Option<Fault>,
    /// A part of the paths that they are about; empty: of all.
    pub at: String,
}

impl Options {
    /// Ten thousand disturbances at most, in an hour at most, on every core, from the seed 1.
    ///
    /// There are half as many workers again as cores: a command waits for a quarter of its time,
    /// for the clock of the file system to move on or for a thread.
    pub fn new(launcher: PathBuf) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            launcher,
            operations: 10_000,
            time: Duration::from_secs(3600),
            seed: 1,
            workers: cores + cores.div_ceil(2),
            until_found: false,
            class: None,
            fault: None,
            at: String::new(),
        }
    }

    /// Sets how often something is disturbed.
    #[must_use]
    pub fn operations(mut self, operations: usize) -> Self {
        self.operations = operations;
        self
    }

    /// Whether a report says all that is wanted to be known.
    pub(crate) fn is_enough(&self, report: &Report) -> bool {
        self.until_found && !report.findings.is_empty()
    }

    /// Sets when it ends, however often that was.
    #[must_use]
    pub fn time(mut self, time: Duration) -> Self {
        self.time = time;
        self
    }

    /// Sets what every choice follows from.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }
}
