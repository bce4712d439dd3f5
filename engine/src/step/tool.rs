//! Calls of tools between two snapshots: if an agent's tool fails, its changes are undone at once.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;
use stillframe_backends::{Snapshot, SnapshotId};
use tracing::Instrument as _;

use crate::error::Error;
use crate::events::data::{CallContents, Failed, ToolCall, ToolDone};
use crate::events::event::{Event, EventSource, EventType};
use crate::failure::Failure;
use crate::policy::violation::PolicyViolation;
use crate::records::tool_call::ToolCallStatus;
use crate::step::adapter_error::{AdapterError, Ending};
use crate::step::context::RunContext;
use crate::step::oversight::Reserved;
use crate::step::step_log::CallTold;
use crate::step::tool_counters::ToolCounters;
use crate::step::work_clock::WorkClock;
use crate::telemetry;
use crate::workspace::finish;

/// Tools that change nothing, if the host names no others.
pub const READ_ONLY_TOOLS: [&str; 6] = [
    "Read",
    "Glob",
    "Grep",
    "WebFetch",
    "WebSearch",
    "TaskOutput",
];

/// How to call a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ToolOptions {
    /// The name of the tool.
    pub name: String,
    /// The names of tools around which nothing is captured. Default: [`READ_ONLY_TOOLS`]; any other
    /// name counts as writing.
    pub read_only: Vec<String>,
    /// How long the call may take; after that its future is dropped and it has failed. Time in
    /// which its run only waits for people does not count. Default: no limit.
    pub timeout: Option<Duration>,
    /// Whether the call is refused if the worktree differs from HEAD. Default: false.
    pub verify_clean: bool,
    /// What is given to the tool, for the [record](crate::records::ToolCallRecord) of the call.
    /// Default: null, nothing is recorded.
    pub input: Value,
}

impl ToolOptions {
    /// A call of the tool of this name, with every option at its default.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            read_only: READ_ONLY_TOOLS.map(str::to_owned).to_vec(),
            timeout: None,
            verify_clean: false,
            input: Value::Null,
        }
    }

    stillframe_model::setters! {
        read_only: Vec<String>,
        timeout: Duration,
        verify_clean: bool,
        input: Value,
    }

    /// Whether the workspace is captured around the call.
    fn is_writing(&self) -> bool {
        !self.read_only.contains(&self.name)
    }
}

/// What became of a call that succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ToolOutcome<T> {
    /// What the tool returned.
    pub value: T,
    /// The workspace before the call; `None`: nothing was captured.
    pub snapshot_before: Option<SnapshotId>,
    /// The workspace after it; `None`: nothing was captured, or the capture failed.
    pub snapshot_after: Option<SnapshotId>,
    /// Why the changes of the call could not be captured. The call still counts as successful.
    pub warning: Option<Failure>,
}

/// Why a call of a tool did not succeed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ToolError {
    /// It was not called.
    #[error("tool {name:?} was not called: {source}")]
    NotCalled {
        /// The tool.
        name: String,
        /// Why.
        source: Error,
    },
    /// The [policy](crate::policy::Policy) or a [limit](crate::policy::RunLimits) of the run does
    /// not allow it; it was not called.
    #[error("tool {name:?} was not called: {violation}")]
    Denied {
        /// The tool.
        name: String,
        /// Why.
        violation: Box<PolicyViolation>,
    },
    /// It failed, or exceeded its time, and the workspace is as it was before.
    #[error("tool {name:?} failed: {error}")]
    Failed {
        /// The tool.
        name: String,
        /// Why it failed.
        error: Box<AdapterError>,
    },
    /// It failed, or exceeded its time, and the workspace could not be restored.
    #[error("tool {name:?} failed: {error}; and what it did could not be taken back: {rollback}")]
    NotRolledBack {
        /// The tool.
        name: String,
        /// Why it failed.
        error: Box<AdapterError>,
        /// Why the workspace is not as it was before.
        rollback: Error,
        /// What it was like before.
        snapshot_before: SnapshotId,
    },
}

impl AdapterError {
    /// The same error, with this to say.
    fn told(self: Box<Self>, message: String) -> Self {
        Self {
            failure: Failure {
                message,
                ..self.failure
            },
            ..*self
        }
    }
}

/// A tool that could not be called, or be undone, because of the engine leaves a run that can
/// be resumed `interrupted`; otherwise its failure is that of the work.
impl From<ToolError> for AdapterError {
    fn from(error: ToolError) -> Self {
        let message = error.to_string();
        match error {
            // The work may go on another time, where what was in the way passes.
            ToolError::NotCalled { source, .. } => {
                let kind = source.kind();
                Self {
                    failure: Failure::new(kind.as_str(), message),
                    ..Self::from(source)
                }
            }
            ToolError::Denied { violation, .. } => Self::new(Ending::Failed, violation.failure()),
            ToolError::Failed { error, .. } => error.told(message),
            ToolError::NotRolledBack {
                error, rollback, ..
            } => Self {
                is_of_engine: error.is_of_engine || finish::is_for_later(rollback.kind()),
                ..error.told(message)
            },
        }
    }
}

impl RunContext {
    /// Calls a tool between two snapshots. If it fails, or exceeds its time, its changes are
    /// undone: files, index and branch are as they were before the call.
    ///
    /// When its future ends, everything that it started must have ended. Several calls at once in
    /// one workspace see each other's changes, and undoing one call also undoes the changes of the
    /// others since it began.
    ///
    /// ```no_run
    /// # use stillframe::steps::ToolOptions;
    /// # use stillframe::{AdapterError, RunContext};
    /// # async fn work(context: RunContext) -> Result<(), AdapterError> {
    /// let edited = context
    ///     .call_tool(ToolOptions::new("Edit"), async { Ok("three lines") })
    ///     .await?;
    /// println!("{} since {:?}", edited.value, edited.snapshot_before);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The log has a [record](crate::records::ToolCallRecord) of the call, with
    /// [`ToolOptions::input`] and without what the tool returned: see
    /// [`RunContext::call_tool_recorded`].
    ///
    /// # Errors
    ///
    /// [`ToolError::NotCalled`]: `InvalidOptions` for an empty name, or a worktree that is not
    /// clean where that was asked for; or the snapshot before failed. [`ToolError::Denied`]: it is
    /// not allowed.
    pub async fn call_tool<T>(
        &self,
        options: ToolOptions,
        call: impl Future<Output = Result<T, AdapterError>>,
    ) -> Result<ToolOutcome<T>, ToolError> {
        self.call(options, call, |_| Value::Null).await
    }

    /// As [`RunContext::call_tool`], and the record of the call has what the tool returned, as
    /// JSON. From 1,024 bytes on that is an artifact, of which the record has the key, the
    /// beginning and the size. [Secret values](crate::secrets) are taken out of it.
    pub async fn call_tool_recorded<T: Serialize>(
        &self,
        options: ToolOptions,
        call: impl Future<Output = Result<T, AdapterError>>,
    ) -> Result<ToolOutcome<T>, ToolError> {
        // What is no JSON has no place in a record.
        let output = |value: &T| serde_json::to_value(value).unwrap_or_default();
        self.call(options, call, output).await
    }

    async fn call<T>(
        &self,
        options: ToolOptions,
        call: impl Future<Output = Result<T, AdapterError>>,
        output: impl FnOnce(&T) -> Value,
    ) -> Result<ToolOutcome<T>, ToolError> {
        self.count(|counters| {
            counters.total += 1;
            *counters.by_tool.entry(options.name.clone()).or_default() += 1;
        });
        let began = Instant::now();
        let called = async {
            let called = match self.admitted(&options).await {
                Ok(admitted) => {
                    let part = self.steps.part(self.within);
                    part.of(self.called(&options, admitted, call, output)).await
                }
                Err(refused) => Err(refused),
            };
            telemetry::worked(called.is_ok(), began.elapsed());
            called
        };
        let span = telemetry::tool_span(&self.run_id, &options.name);
        let called = called.instrument(span).await;
        self.steps.note_worked(self.within).await;
        self.count(|counters| match &called {
            Ok(_) => counters.successful += 1,
            Err(_) => counters.failed += 1,
        });
        called
    }

    /// What the tools of this run did so far.
    pub fn tool_counters(&self) -> ToolCounters {
        let counters = self.tools.lock();
        counters.unwrap_or_else(|e| e.into_inner()).clone()
    }

    fn count(&self, change: impl FnOnce(&mut ToolCounters)) {
        change(&mut self.tools.lock().unwrap_or_else(|e| e.into_inner()));
    }

    /// Whether the tool may be called. What its step asks for that is asked before it does work.
    async fn admitted(&self, options: &ToolOptions) -> Result<Reserved, ToolError> {
        let admitted = async {
            let admitted = self.admit_call(&options.name, options.input.clone(), Value::Null);
            let admitted = admitted.await?;
            self.steps.note_work(self.within).await?;
            Ok::<_, Error>(admitted)
        };
        let name = options.name.clone();
        admitted
            .await
            .map_err(|source| match source.wrapped::<PolicyViolation>() {
                Some(violation) => ToolError::Denied {
                    name,
                    violation: Box::new(violation.clone()),
                },
                None => ToolError::NotCalled { name, source },
            })
    }

    async fn called<T>(
        &self,
        options: &ToolOptions,
        admitted: Reserved,
        call: impl Future<Output = Result<T, AdapterError>>,
        output: impl FnOnce(&T) -> Value,
    ) -> Result<ToolOutcome<T>, ToolError> {
        let begun = self.begin_call(options).await;
        let (before, mut said) = begun.map_err(|source| ToolError::NotCalled {
            name: options.name.clone(),
            source,
        })?;
        admitted.keep();
        let called = in_time(call, options.timeout, self.steps.clock()).await;
        let after = match &before {
            Some(_) => Some(self.steps.capture_after().await),
            None => None,
        };
        if matches!(after, Some(Ok(Some(_)))) {
            self.count(|counters| counters.snapshots += 1);
        }
        match called {
            Ok(value) => {
                let outcome = succeeded(value, before, after);
                said.done = Some(ToolDone {
                    snapshot_after: outcome.snapshot_after.clone(),
                    warning: outcome.warning.as_ref().map(|w| w.message.clone()),
                });
                let output = output(&outcome.value);
                let has_output = !output.is_null();
                // The tool has done its work, even if that cannot be recorded.
                let told = self.tell_end(&mut said, output, None).await;
                if let Err(e) = told
                    && has_output
                    && self.tell_end(&mut said, Value::Null, None).await.is_ok()
                {
                    tracing::warn!(tool = %options.name, error = %e.chain(), "what a tool returned is not recorded");
                }
                Ok(outcome)
            }
            Err(error) => {
                let failure = error.failure.clone();
                said.failed = Some(Failed::from(&failure));
                let name = options.name.clone();
                let failed = self.take_back(name, Box::new(error), before, after).await;
                if let ToolError::NotRolledBack { rollback, .. } = &failed {
                    said.rollback = Some(Failure::from(rollback).message);
                }
                // The tool's failure is the one to tell.
                let _ = self.tell_end(&mut said, Value::Null, Some(&failure)).await;
                Err(failed)
            }
        }
    }

    /// What comes before a call: the snapshot to go back to, if the tool may change something, and
    /// the event. Answers with what that says, too.
    async fn begin_call(
        &self,
        options: &ToolOptions,
    ) -> Result<(Option<Snapshot>, ToolCall), Error> {
        if options.name.trim().is_empty() {
            return Err(Error::invalid_options(
                "a tool needs a name; nothing was captured",
            ));
        }
        let mut said = ToolCall {
            call_id: uuid::Uuid::new_v4().simple().to_string(),
            tool_name: options.name.clone(),
            contents: CallContents::default(),
            snapshot_before: None,
            done: None,
            failed: None,
            rollback: None,
        };
        if options.verify_clean && !self.steps.is_clean(&self.cancellation).await? {
            return Err(Error::invalid_options(
                "the worktree is not as HEAD has it, and a clean one was asked for; nothing was captured",
            ));
        }
        let before = match options.is_writing() {
            true => self.steps.capture_before(&self.cancellation).await?,
            false => None,
        };
        if let Some(before) = &before {
            self.count(|counters| counters.snapshots += 1);
            said.snapshot_before = Some(before.id.clone());
        }
        let told = CallTold {
            step_id: self.step_id.as_ref(),
            status: ToolCallStatus::Running,
            input: options.input.clone(),
            output: Value::Null,
            error: None,
        };
        self.steps
            .tell_call(EventType::TOOL_CALL_STARTED, &mut said, told)
            .await?;
        Ok((before, said))
    }

    /// Tells that a call has ended; `error`: why it failed.
    async fn tell_end(
        &self,
        said: &mut ToolCall,
        output: Value,
        error: Option<&Failure>,
    ) -> Result<(), Error> {
        let (event_type, status) = match error {
            None => (EventType::TOOL_CALL_COMPLETED, ToolCallStatus::Completed),
            Some(_) => (EventType::TOOL_CALL_FAILED, ToolCallStatus::Failed),
        };
        let told = CallTold {
            step_id: self.step_id.as_ref(),
            status,
            input: Value::Null,
            output,
            error,
        };
        self.steps.tell_call(event_type, said, told).await
    }

    /// Takes back what a call that failed did, if there is a snapshot before it. Says what became
    /// of the call.
    async fn take_back(
        &self,
        name: String,
        error: Box<AdapterError>,
        before: Option<Snapshot>,
        after: After,
    ) -> ToolError {
        let Some(before) = before else {
            return ToolError::Failed { name, error };
        };
        let snapshot_before = before.id.clone();
        let back = match after {
            Some(Ok(Some(after))) => self.steps.take_back(before, after).await,
            // What it left is not known, so nothing can be told from somebody else's work.
            Some(Err(e)) => Err(e),
            _ => Ok(()),
        };
        match back {
            Ok(()) => {
                self.count(|counters| counters.rollbacks += 1);
                ToolError::Failed { name, error }
            }
            Err(rollback) => ToolError::NotRolledBack {
                name,
                error,
                rollback,
                snapshot_before,
            },
        }
    }
}

/// The snapshot after a call, where there is one before it.
type After = Option<Result<Option<Snapshot>, Error>>;

/// Waits for a call no longer than its time, by the clock of its run.
async fn in_time<T>(
    call: impl Future<Output = Result<T, AdapterError>>,
    timeout: Option<Duration>,
    clock: &WorkClock,
) -> Result<T, AdapterError> {
    let Some(limit) = timeout else {
        return call.await;
    };
    let until = clock.worked().saturating_add(limit);
    tokio::select! {
        biased;
        called = call => called,
        () = clock.reaches(until) => Err(AdapterError::timed_out(format!(
            "its {} ms were up",
            limit.as_millis()
        ))),
    }
}

/// What became of a call that succeeded.
fn succeeded<T>(value: T, before: Option<Snapshot>, after: After) -> ToolOutcome<T> {
    let (snapshot_after, warning) = match after {
        None | Some(Ok(None)) => (None, None),
        Some(Ok(Some(after))) => (Some(after.id), None),
        Some(Err(e)) => (None, Some(Failure::from(&e))),
    };
    ToolOutcome {
        value,
        snapshot_before: before.map(|before| before.id),
        snapshot_after,
        warning,
    }
}

/// The snapshots before calls that are under way, or were when their process died, by the events of
/// a run in their order: what a call that fails goes back to.
pub(crate) fn unsettled(events: &[Event]) -> Vec<SnapshotId> {
    let mut open = BTreeMap::new();
    // What an adapter tells of its agent's tools, the engine did not call.
    let of_engine = |event: &&Event| event.source == EventSource::Engine;
    for event in events.iter().filter(of_engine) {
        let told = event.told();
        let Some(call) = told.call_id else {
            continue;
        };
        if event.event_type == EventType::TOOL_CALL_STARTED {
            let before = told.snapshot_before;
            if let Some(before) = before.and_then(|id| id.parse().ok()) {
                open.insert(call, before);
            }
        } else {
            open.remove(&call);
        }
    }
    open.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_that_is_not_known_to_read_counts_as_writing() {
        for name in READ_ONLY_TOOLS {
            assert!(!ToolOptions::new(name).is_writing(), "{name}");
        }
        for name in ["Edit", "read", "Read ", "Bash"] {
            assert!(ToolOptions::new(name).is_writing(), "{name}");
        }
        let own = ToolOptions::new("Bash").read_only(vec!["Bash".to_owned()]);
        assert!(!own.is_writing());
        let own = ToolOptions::new("Read").read_only(Vec::new());
        assert!(own.is_writing());
    }
}
