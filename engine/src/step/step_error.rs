//! Why a step has no result.

use crate::error::Error;
use crate::failure::Failure;
use crate::policy::violation::PolicyViolation;
use crate::step::adapter_error::{AdapterError, Ending};
use crate::step::plan::PlanReport;

/// Why a step has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// Its work failed, in its last attempt; also when that was before the run was resumed.
    #[error("{0}")]
    Work(Box<AdapterError>),
    /// It, or its phase, was left out.
    #[error("step {0:?} was left out")]
    Skipped(String),
    /// It is on record with another definition; nothing was done.
    #[error("{0}")]
    PlanChanged(Box<PlanReport>),
    /// The [policy](crate::policy::Policy) does not allow it; nothing was done, and if it is asked
    /// for again, so is the policy.
    #[error("{0}")]
    Denied(Box<PolicyViolation>),
    /// The engine could not do its part.
    #[error("{0}")]
    Engine(Error),
}

impl From<AdapterError> for StepError {
    fn from(error: AdapterError) -> Self {
        Self::Work(Box::new(error))
    }
}

impl From<Error> for StepError {
    fn from(error: Error) -> Self {
        Self::Engine(error)
    }
}

impl From<StepError> for AdapterError {
    fn from(error: StepError) -> Self {
        match error {
            StepError::Work(error) => *error,
            StepError::Engine(error) => error.into(),
            StepError::PlanChanged(_) => Self {
                is_of_engine: true,
                ..Self::new(
                    Ending::Failed,
                    Failure::new("PlanChanged", error.to_string()),
                )
            },
            StepError::Denied(violation) => Self::new(Ending::Failed, violation.failure()),
            StepError::Skipped(_) => Self::failed(error.to_string()),
        }
    }
}
