//! What a run may do: the port that is asked, and the limits that hold without anybody being asked.

pub(crate) mod limits;
pub(crate) mod usage;
pub(crate) mod used;
pub(crate) mod violation;

use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::id::{RunId, SessionId};

pub use limits::{Limit, LimitAction, RunLimits};
pub use usage::Usage;
pub use violation::{PolicyViolation, ViolationAction, ViolationKind};

/// Says what a run may do: see [`EngineOptions::policy`](crate::EngineOptions::policy).
///
/// It is asked before the work of a run begins or goes on, before each [step](crate::steps::Phase)
/// that is not done yet, before each call of a tool, and when usage was reported. It has five
/// seconds to answer; after that, and if it panics, the answer is [`PolicyDecision::Deny`].
///
/// ```
/// use stillframe::policy::{Policy, PolicyDecision, PolicyRequest, PolicySubject};
///
/// struct Careful;
///
/// impl Policy for Careful {
///     async fn decide(&self, request: PolicyRequest) -> PolicyDecision {
///         match &request.subject {
///             PolicySubject::ToolCall { tool_name, .. } if tool_name == "Bash" => {
///                 PolicyDecision::ask("may it use a shell?")
///             }
///             PolicySubject::Step { step, .. } if step == "deploy" => {
///                 PolicyDecision::deny("nothing is deployed from here")
///             }
///             _ => PolicyDecision::Allow,
///         }
///     }
/// }
/// ```
pub trait Policy: Send + Sync + 'static {
    /// Decides. It is called on a thread of its own, and dropped when its time is up; one that
    /// blocks its thread then goes on for nothing, and holds nobody up. At most 32 calls are under
    /// way in an engine at once; who cannot ask within the time is refused.
    fn decide(&self, request: PolicyRequest) -> impl Future<Output = PolicyDecision> + Send;
}

/// What a policy decides about.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct PolicyRequest {
    /// The session.
    pub session_id: SessionId,
    /// The run.
    pub run_id: RunId,
    /// What the run is for, in the host's words.
    pub input: String,
    /// The directory of the workspace; `None`: the run has none.
    pub workspace: Option<PathBuf>,
    /// What is about to be done, or was reported.
    pub subject: PolicySubject,
    /// The calls of tools that were allowed so far, also before the run was resumed.
    pub tool_calls: u64,
    /// What the run has used so far, also before it was resumed; with what was just reported.
    pub usage: Usage,
}

/// What is about to be done, or was reported.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum PolicySubject {
    /// The work of the run is about to begin, or to go on after the run was resumed.
    Run,
    /// A step is about to be begun.
    Step {
        /// The name of its phase.
        phase: String,
        /// The iteration of its phase.
        iteration: u32,
        /// Its name.
        step: String,
        /// Its [definition](crate::steps::StepOptions).
        definition: Value,
    },
    /// A tool is about to be called, by the engine or by the agent of an adapter.
    ToolCall {
        /// The name of the tool; empty if the adapter names none.
        tool_name: String,
        /// What is given to the tool: [`ToolOptions::input`](crate::steps::ToolOptions::input), or
        /// the `input` of the adapter's event; null if it is not said.
        input: Value,
        /// All that the adapter says of the call in its event; null if the engine calls the tool.
        data: Value,
    },
    /// This was used since the last report.
    Usage(Usage),
}

/// What a run may do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PolicyDecision {
    /// It may.
    Allow,
    /// It may not. A run fails before its work begins; a step or a call of a tool fails without
    /// being begun, and the adapter goes on as it likes; usage is on record, and the report of it
    /// answers with the refusal.
    Deny {
        /// Why, for people and for the log.
        reason: String,
    },
    /// A person decides, as after [`RunContext::ask`](crate::RunContext::ask); the answers are
    /// [`ALLOW`] and [`DENY`]. About a call of a tool the log has `tool_approval_requested` and,
    /// once the run gets the answer, `tool_approval_granted` or `tool_approval_denied`.
    Ask {
        /// What is asked. What it is about is put before it.
        question: String,
        /// How long an answer is waited for; after that it is [`DENY`]. Default: for ever.
        deadline: Option<Duration>,
    },
    /// It may not, and the run ends: its work is cancelled, and the run is `failed` with the
    /// violation as its error, and is rolled back if that was asked for.
    Cancel {
        /// Why, for people and for the log.
        reason: String,
    },
}

/// The answer by which a person allows what a policy asks about.
pub const ALLOW: &str = "allow";

/// The answer by which a person refuses what a policy asks about.
pub const DENY: &str = "deny";

impl PolicyDecision {
    /// [`PolicyDecision::Deny`] for this reason.
    pub fn deny(reason: impl Into<String>) -> Self {
        Self::Deny {
            reason: reason.into(),
        }
    }

    /// [`PolicyDecision::Ask`] this, for ever.
    pub fn ask(question: impl Into<String>) -> Self {
        Self::Ask {
            question: question.into(),
            deadline: None,
        }
    }

    /// [`PolicyDecision::Cancel`] for this reason.
    pub fn cancel(reason: impl Into<String>) -> Self {
        Self::Cancel {
            reason: reason.into(),
        }
    }
}

impl fmt::Display for PolicySubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Run => f.write_str("the run"),
            Self::Step {
                phase,
                iteration,
                step,
                ..
            } => {
                write!(f, "step {step:?} of phase {phase:?}")?;
                match iteration {
                    0 => Ok(()),
                    iteration => write!(f, " in iteration {iteration}"),
                }
            }
            Self::ToolCall { tool_name, .. } => {
                write!(f, "a call of tool {:?}", in_brief(tool_name))
            }
            Self::Usage(usage) => write!(f, "the use of {usage}"),
        }
    }
}

impl PolicySubject {
    /// What a person has to know of it beside its name; `None`: that is all. The same call that is
    /// announced again has another id, and is no other call for that.
    pub(crate) fn details(&self) -> Option<Value> {
        let details = match self {
            Self::Step { definition, .. } => definition.clone(),
            Self::ToolCall { input, data, .. } if input.is_null() => {
                let mut data = data.clone();
                if let Some(fields) = data.as_object_mut() {
                    fields.remove("call_id");
                    fields.remove("tool_name");
                }
                data
            }
            Self::ToolCall { input, .. } => input.clone(),
            Self::Run | Self::Usage(_) => Value::Null,
        };
        let is_empty = details.is_null() || details.as_object().is_some_and(|all| all.is_empty());
        (!is_empty).then_some(details)
    }
}

/// So much of a text as people read: what is long is cut, and has its digest, so that another that
/// begins alike does not pass for it.
pub(crate) fn in_brief(text: &str) -> String {
    let Some((end, _)) = text.char_indices().nth(MAX_SHOWN) else {
        return text.to_owned();
    };
    let digest = blake3::hash(text.as_bytes()).to_hex();
    format!("{}… (blake3 {})", &text[..end], &digest[..32])
}

/// How many characters are shown of what others wrote.
const MAX_SHOWN: usize = 240;

/// A policy as a trait object.
pub(crate) type BoxPolicy = Arc<dyn AnyPolicy>;

type Decision = Pin<Box<dyn Future<Output = PolicyDecision> + Send>>;

/// [`Policy`] in a form that can be a trait object.
pub(crate) trait AnyPolicy: Send + Sync + 'static {
    /// As [`Policy::decide`].
    fn decision(self: Arc<Self>, request: PolicyRequest) -> Decision;
}

impl<P: Policy> AnyPolicy for P {
    fn decision(self: Arc<Self>, request: PolicyRequest) -> Decision {
        Box::pin(async move { self.decide(request).await })
    }
}
