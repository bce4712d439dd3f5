//! Why the work of a run failed.

use stillframe_backends::ErrorKind;

use crate::error::Error;
use crate::failure::Failure;
use crate::records::block::Block;
use crate::records::follow_up::DEFAULT_WAITING_REASON;
use crate::records::output::AdapterOutput;

/// Why the work of a run failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{}", failure.message)]
#[non_exhaustive]
pub struct AdapterError {
    /// How it ended.
    pub ending: Ending,
    /// Why, for people and for the log.
    pub failure: Failure,
    /// What there was of an output.
    pub output: Option<AdapterOutput>,
    /// Whether it is the engine that could not do its part, so that the work may go on another
    /// time.
    pub(crate) is_of_engine: bool,
    /// Of work that is [blocked](Ending::Blocked): what is needed to go on.
    pub(crate) block: Option<Box<Block>>,
}

/// The kind of the failure of work that is [blocked](Ending::Blocked).
pub(crate) const BLOCKED: &str = "Blocked";

/// How work that did not end well ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ending {
    /// It failed.
    Failed,
    /// Its time was up.
    TimedOut,
    /// It stopped because it was asked to.
    Cancelled,
    /// It cannot go on without a person: see [`RunContext::blocked`](crate::RunContext::blocked).
    Blocked,
}

impl AdapterError {
    /// The work failed.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(Ending::Failed, Failure::of_work(message))
    }

    /// The work was stopped because its time was up.
    pub fn timed_out(message: impl Into<String>) -> Self {
        Self::new(Ending::TimedOut, Failure::new("Timeout", message))
    }

    /// The work stopped because it was asked to.
    pub fn cancelled(message: impl Into<String>) -> Self {
        Self::new(Ending::Cancelled, Failure::new("Cancelled", message))
    }

    /// The work ended like this, for this reason.
    pub fn new(ending: Ending, failure: Failure) -> Self {
        Self {
            ending,
            failure,
            output: None,
            is_of_engine: false,
            block: None,
        }
    }

    /// The work cannot go on without a person.
    pub(crate) fn blocked(block: Block) -> Self {
        let block = block.kept();
        let reason = block.told().unwrap_or(DEFAULT_WAITING_REASON);
        let failure = Failure::new(BLOCKED, reason);
        Self {
            block: Some(Box::new(block)),
            ..Self::new(Ending::Blocked, failure)
        }
    }

    /// Keeps what there was of an output.
    pub fn output(mut self, output: AdapterOutput) -> Self {
        self.output = Some(output);
        self
    }
}

/// The engine could not do its part of the work, so that the work cannot go on.
impl From<Error> for AdapterError {
    fn from(error: Error) -> Self {
        let ending = match error.kind() {
            ErrorKind::Cancelled => Ending::Cancelled,
            _ => Ending::Failed,
        };
        // What cannot be right, or is forbidden, is no better another time.
        let is_of_engine = !matches!(
            error.kind(),
            ErrorKind::InvalidOptions | ErrorKind::PolicyViolation
        );
        Self {
            is_of_engine,
            ..Self::new(ending, Failure::from(&error))
        }
    }
}
