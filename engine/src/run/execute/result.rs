//! What the result of an adapter means for its run.

use serde_json::Value;
use stillframe_backends::ErrorKind;

use super::Asked;
use crate::blocking::panic_text;
use crate::failure::Failure;
use crate::policy::violation::PolicyViolation;
use crate::records::outcome::RunResult;
use crate::records::output::AdapterOutput;
use crate::records::run::RunStatus;
use crate::records::run_document::{KeptOutput, document};
use crate::step::adapter_error::{AdapterError, Ending};

/// What the end of the adapter's task means for the run. `asked`: what it was asked to end for.
///
/// Work that was asked to end did not do what it was there for, whatever it answers.
pub(super) fn result(
    ended: Result<Result<AdapterOutput, AdapterError>, tokio::task::JoinError>,
    asked: Option<Asked>,
) -> RunResult {
    let asked = match asked {
        None => None,
        Some(Asked::End(ending)) => Some(ending),
        // What it answers is not known to be what it would have been.
        Some(Asked::Suspend | Asked::Lost) => {
            return RunResult {
                status: RunStatus::Interrupted,
                exit_code: None,
                output: None,
                error: Some(Failure::new(
                    ErrorKind::Cancelled.as_str(),
                    "it was stopped, and can be resumed",
                )),
            };
        }
    };
    let (ending, failure, output) = match ended {
        Ok(Ok(output)) => match asked {
            None => {
                return RunResult {
                    status: RunStatus::Completed,
                    exit_code: output.exit_code,
                    output: Some(output),
                    error: None,
                };
            }
            Some(asked) => (asked, None, Some(output)),
        },
        Ok(Err(e)) => match asked {
            None => (e.ending, Some(e.failure), e.output),
            Some(asked) => (asked, None, e.output),
        },
        Err(e) => match e.try_into_panic() {
            Ok(payload) => {
                let message = format!("the adapter panicked: {}", panic_text(&*payload));
                let failure = Failure::of_work(message);
                (asked.unwrap_or(Ending::Failed), Some(failure), None)
            }
            Err(_) => (asked.unwrap_or(Ending::Failed), None, None),
        },
    };
    let status = match ending {
        Ending::Failed => RunStatus::Failed,
        Ending::TimedOut => RunStatus::Timeout,
        Ending::Cancelled => RunStatus::Cancelled,
        Ending::Blocked => RunStatus::Blocked,
    };
    let failure = failure.unwrap_or_else(|| match ending {
        Ending::Failed | Ending::Blocked => Failure::of_work("the adapter vanished"),
        Ending::TimedOut => Failure::new("Timeout", "its time was up, and it was ended"),
        Ending::Cancelled => Failure::new("Cancelled", "it was cancelled, and has ended"),
    });
    let exit_code = output.as_ref().and_then(|o| o.exit_code);
    RunResult {
        status,
        // As timeout(1) has it, whatever the signal was.
        exit_code: match (ending, exit_code) {
            (Ending::TimedOut, Some(_)) => Some(124),
            (_, code) => code,
        },
        output,
        error: Some(failure),
    }
}

/// The result of work that was to end for a violation, or that another process was to end for it.
pub(super) fn violated(result: RunResult, violation: &PolicyViolation) -> RunResult {
    match result.status {
        // Somebody wanted its end for another reason.
        RunStatus::Cancelled | RunStatus::Timeout => result,
        _ => RunResult {
            status: RunStatus::Failed,
            error: Some(violation.failure()),
            ..result
        },
    }
}

/// The result of work that was found to have changed what it must not. Why work failed by itself is
/// told first.
pub(super) fn judged(result: RunResult, violations: &[PolicyViolation]) -> RunResult {
    if violations.is_empty() {
        return result;
    }
    let told: Vec<&str> = violations.iter().map(|v| v.message.as_str()).collect();
    let told = told.join("; ");
    let (status, error) = match (result.status, result.error) {
        (RunStatus::Completed | RunStatus::Blocked, _) | (_, None) => (
            RunStatus::Failed,
            Failure::new(ErrorKind::PolicyViolation.as_str(), told),
        ),
        (status, Some(error)) => {
            let message = format!("{}; and {told}", error.message);
            (status, Failure { message, ..error })
        }
    };
    RunResult {
        status,
        error: Some(error),
        ..result
    }
}

/// What became of a run that was about to rest when somebody asked it to stop.
pub(super) fn unwanted() -> RunResult {
    RunResult {
        status: RunStatus::Cancelled,
        exit_code: None,
        output: None,
        error: Some(Failure::new(
            ErrorKind::Cancelled.as_str(),
            "it was cancelled, and has ended",
        )),
    }
}

/// What the row of a run says of what its adapter returned.
pub(super) fn returned(result: &RunResult) -> Value {
    let output = result.output.as_ref();
    output.map_or(Value::Null, |output| document(&KeptOutput::of(output)))
}
