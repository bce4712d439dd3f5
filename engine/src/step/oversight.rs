//! What watches over a run: its limits, and the policy of the host.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use stillframe_backends::ErrorKind;
use stillframe_secrets::SecretRules;
use tokio_util::sync::CancellationToken;

use crate::blocking::{Blocking, panic_text};
use crate::error::Error;
use crate::events::draft::EventDraft;
use crate::events::event::{Event, EventType};
use crate::id::EventId;
use crate::policy::limits::RunLimits;
use crate::policy::usage::Usage;
use crate::policy::used::Used;
use crate::policy::violation::{PolicyViolation, ViolationAction, ViolationKind};
use crate::policy::{
    ALLOW, BoxPolicy, DENY, PolicyDecision, PolicyRequest, PolicySubject, in_brief,
};
use crate::records::question::Question;
use crate::records::step::PhaseKey;
use crate::records::transcript::text;
use crate::step::context::RunContext;
use crate::step::step_log::Approval;

/// How long a policy may take to answer. Everything that it is asked about waits for it.
const POLICY_TIMEOUT: Duration = Duration::from_secs(5);

/// How many refusals of one run are told as events.
const MAX_REFUSALS: u64 = 100;

/// What watches over one run. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Oversight {
    policy: Option<BoxPolicy>,
    limits: Arc<RunLimits>,
    used: Arc<Mutex<Used>>,
    /// Cancelled once the work is to end for a violation.
    ended: CancellationToken,
}

/// A call of a tool that was counted, and is not counted if this is dropped before it is begun.
#[must_use = "dropping it says that nothing was called"]
pub(crate) struct Reserved(Option<Oversight>);

impl Reserved {
    /// The call was begun.
    pub(crate) fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if let Some(oversight) = &self.0 {
            oversight.used().tool_calls -= 1;
        }
    }
}

impl Oversight {
    pub(crate) fn new(policy: Option<BoxPolicy>, limits: RunLimits, used: Used) -> Self {
        Self {
            policy,
            limits: Arc::new(limits),
            used: Arc::new(Mutex::new(used)),
            ended: CancellationToken::new(),
        }
    }

    /// Whether there is nothing to watch for.
    pub(crate) fn is_idle(&self) -> bool {
        self.policy.is_none() && self.limits.are_none()
    }

    /// Whether somebody is asked.
    pub(crate) fn has_policy(&self) -> bool {
        self.policy.is_some()
    }

    /// The limits of the run.
    pub(crate) fn limits(&self) -> &RunLimits {
        &self.limits
    }

    /// How long the work may go on; `None`: as long as it takes.
    pub(crate) fn time_left(&self) -> Option<Duration> {
        let worked = self.used().worked;
        Some(self.limits.max_duration?.saturating_sub(worked))
    }

    /// What the run is to fail for, if its work was or is to be cancelled.
    pub(crate) fn violation(&self) -> Option<PolicyViolation> {
        self.used().violation.clone()
    }

    /// Comes back once the work is to end.
    pub(crate) async fn violated(&self) {
        self.ended.cancelled().await;
    }

    /// Has the work end, and the run fail for `violation` if it does not for another.
    pub(crate) fn end_for(&self, violation: PolicyViolation) {
        self.used().violation.get_or_insert(violation);
        self.ended.cancel();
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Counts a call of a tool, unless that is one too many.
    fn reserve_call(&self) -> Result<Reserved, Box<PolicyViolation>> {
        let mut used = self.used();
        match self.limits.refuse_call(used.tool_calls) {
            Some(violation) => Err(Box::new(violation)),
            None => {
                used.tool_calls += 1;
                Ok(Reserved(Some(self.clone())))
            }
        }
    }

    /// What the log is told of a violation; `None`: nothing. An adapter that asks again and again
    /// for what is refused each time does not fill it.
    pub(crate) fn tell(&self, violation: &PolicyViolation) -> Option<PolicyViolation> {
        if violation.action != ViolationAction::Deny {
            return Some(violation.clone());
        }
        let mut used = self.used();
        used.refusals = used.refusals.saturating_add(1);
        match used.refusals.cmp(&MAX_REFUSALS) {
            Ordering::Less => Some(violation.clone()),
            Ordering::Equal => Some(PolicyViolation {
                message: format!(
                    "{}; this is refusal {MAX_REFUSALS} of the run, and no further one is told",
                    violation.message
                ),
                ..violation.clone()
            }),
            Ordering::Greater => None,
        }
    }

    /// Counts what was reported; answers with the total.
    fn add(&self, reported: Usage) -> Usage {
        let mut used = self.used();
        used.usage = used.usage.and(reported);
        used.usage
    }
}

/// What a policy answers, within its time; or why that is a refusal. It is asked on a thread of its
/// own: one that blocks is not waited for either, and holds nobody up but who asks it while as many
/// questions as may be are with it.
async fn decision(
    blocking: &Blocking,
    policy: BoxPolicy,
    request: PolicyRequest,
) -> Result<PolicyDecision, (ViolationKind, String)> {
    let no_answer = |message| Err((ViolationKind::NoAnswer, message));
    let until = tokio::time::Instant::now() + POLICY_TIMEOUT;
    let Ok(leave) = tokio::time::timeout_at(until, blocking.may_go_aside()).await else {
        return no_answer(format!(
            "the policy could not be asked within {} s, because it does not come back from earlier questions",
            POLICY_TIMEOUT.as_secs()
        ));
    };
    let asked = blocking.aside(leave, async move { policy.decision(request).await });
    match tokio::time::timeout_at(until, asked).await {
        Ok(Ok(Some(Ok(decision)))) => Ok(decision),
        Ok(Ok(Some(Err(payload)))) => {
            let message = format!("the policy panicked: {}", panic_text(&*payload));
            Err((ViolationKind::Panicked, message))
        }
        Ok(Ok(None)) => no_answer("the policy was stopped, because the engine stops".to_owned()),
        Ok(Err(e)) => no_answer(format!("the policy could not be asked: {e}")),
        Err(_) => no_answer(format!(
            "the policy did not answer within {} s",
            POLICY_TIMEOUT.as_secs()
        )),
    }
}

impl RunContext {
    /// Reports what was used since the last report: an event `token_usage_updated`.
    ///
    /// ```no_run
    /// # async fn work(context: stillframe::RunContext) -> Result<(), stillframe::AdapterError> {
    /// use stillframe::policy::Usage;
    ///
    /// context.report_usage(Usage::tokens(1200, 340).cost(0.012)).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `PolicyViolation`: the event is stored and counts, because what was used was used, but a
    /// [limit](crate::policy::RunLimits) is exceeded, or the [policy](crate::policy::Policy)
    /// refuses further use. Do not report it again.
    pub async fn report_usage(&self, usage: Usage) -> Result<Event, Error> {
        // JSON has no such numbers, and would have none at all for them.
        if usage.cost.is_some_and(|cost| !cost.is_finite()) {
            let message = "a cost has to be a finite number; nothing was reported";
            return Err(Error::invalid_options(message));
        }
        let data = crate::events::data::data(&usage);
        self.emit(EventType::TOKEN_USAGE_UPDATED, data).await
    }

    /// Asks the policy of the host about `subject`; a person where the policy says so.
    ///
    /// # Errors
    ///
    /// `PolicyViolation`, which is on record then; or why nobody could be asked.
    pub(crate) async fn permit(&self, subject: PolicySubject) -> Result<(), Error> {
        let oversight = self.steps.oversight();
        let Some(policy) = oversight.policy.clone() else {
            return Ok(());
        };
        let (tool_calls, usage) = {
            let used = oversight.used();
            (used.tool_calls, used.usage)
        };
        let is_call = matches!(subject, PolicySubject::ToolCall { .. });
        let request = PolicyRequest {
            session_id: self.session_id.clone(),
            run_id: self.run_id.clone(),
            input: self.input.clone(),
            workspace: self.workspace.clone(),
            subject: subject.clone(),
            // That call is counted already.
            tool_calls: tool_calls - u64::from(is_call),
            usage,
        };
        let (kind, action, reason) = match decision(&self.blocking, policy, request).await {
            Ok(PolicyDecision::Allow) => return Ok(()),
            Ok(PolicyDecision::Ask { question, deadline }) => {
                match self.ask_about(&subject, question, deadline).await? {
                    None => return Ok(()),
                    Some(refusal) => (ViolationKind::Denied, ViolationAction::Deny, refusal),
                }
            }
            Ok(PolicyDecision::Deny { reason }) => {
                (ViolationKind::Denied, ViolationAction::Deny, reason)
            }
            Ok(PolicyDecision::Cancel { reason }) => {
                (ViolationKind::Denied, ViolationAction::Cancel, reason)
            }
            Err((kind, reason)) => (kind, ViolationAction::Deny, reason),
        };
        let message = format!("{subject} is refused: {reason}");
        let violation = PolicyViolation::new(kind, action, message).about(&subject);
        Err(self.steps.violate(violation).await)
    }

    /// Asks a person. `None`: it is allowed; otherwise why it is not.
    async fn ask_about(
        &self,
        subject: &PolicySubject,
        text: String,
        deadline: Option<Duration>,
    ) -> Result<Option<String>, Error> {
        // An answer belongs to this text, and must not count for another input.
        let about = match subject.details() {
            Some(mut details) => {
                self.steps.secrets().redact_json(&mut details);
                format!("{subject} with {}", in_brief(&details.to_string()))
            }
            None => subject.to_string(),
        };
        let question = Question::new(format!("{about}: {text}")).choices([ALLOW, DENY]);
        let question = match deadline {
            Some(deadline) => question.deadline(deadline, DENY),
            None => question,
        };
        if let PolicySubject::Step {
            phase, iteration, ..
        } = subject
        {
            let phase = PhaseKey {
                phase: phase.clone(),
                iteration: *iteration,
            };
            // With a phase on record the run can rest until somebody answers.
            self.steps.begin_phase(&phase).await?;
        }
        let approval = subject.approval(self.steps.secrets());
        let asked = match (&self.step_id, &self.asked_in_step) {
            (Some(step_id), Some(asked)) => {
                self.ask_in(Some(step_id), asked, question, approval).await
            }
            _ => self.ask_in(None, &self.asked, question, approval).await,
        };
        match asked {
            Ok(answer) if answer.text == ALLOW => Ok(None),
            Ok(answer) if answer.timed_out => Ok(Some("nobody answered in time".to_owned())),
            Ok(answer) => Ok(Some(format!(
                "the answer to its question is {:?}",
                answer.text
            ))),
            Err(e) if e.kind() == ErrorKind::InvalidOptions => {
                Ok(Some(format!("what the policy asks cannot be asked: {e}")))
            }
            Err(e) => Err(e),
        }
    }

    /// Allows a call of a tool, or refuses it. `data`: what an adapter says of it.
    pub(crate) async fn admit_call(
        &self,
        tool_name: &str,
        input: Value,
        data: Value,
    ) -> Result<Reserved, Error> {
        let oversight = self.steps.oversight();
        if oversight.is_idle() {
            return Ok(Reserved(None));
        }
        let subject = PolicySubject::ToolCall {
            tool_name: tool_name.to_owned(),
            input,
            data,
        };
        let reserved = match oversight.reserve_call() {
            Ok(reserved) => reserved,
            Err(violation) => return Err(self.steps.violate(violation.about(&subject)).await),
        };
        self.permit(subject).await?;
        Ok(reserved)
    }

    /// Writes events of the adapter, once the calls of tools among them are allowed; then judges
    /// the use that they report.
    pub(crate) async fn emit_watched(&self, drafts: Vec<EventDraft>) -> Result<Vec<Event>, Error> {
        let oversight = self.steps.oversight().clone();
        if oversight.is_idle() {
            return self.steps.emit(self.step_id.as_ref(), drafts).await;
        }
        let (mut calls, mut reports) = (Vec::new(), Vec::new());
        let mut sent = HashSet::new();
        let mut refusal = None;
        for draft in &drafts {
            let is_call = draft.event_type == EventType::TOOL_CALL_STARTED;
            let is_report = draft.event_type == EventType::TOKEN_USAGE_UPDATED;
            if !(is_call || is_report) || self.is_sent_again(draft, &mut sent).await? {
                continue;
            }
            if is_report {
                reports.push(draft.clone());
            } else if refusal.is_none() {
                let told = ToldOfCall::deserialize(&draft.data).unwrap_or_default();
                let call = self.admit_call(&told.tool_name, told.input, draft.data.clone());
                match call.await {
                    Ok(call) => calls.push(call),
                    Err(e) => refusal = Some(e),
                }
            }
        }
        let drafts = match refusal {
            // What was used was used, and nothing else of it is written.
            Some(_) => reports.clone(),
            None => drafts,
        };
        if calls.is_empty() && reports.is_empty() {
            return match refusal {
                Some(refusal) => Err(refusal),
                None => self.steps.emit(self.step_id.as_ref(), drafts).await,
            };
        }
        // What is no report is refused where it is to be written.
        let usage = reports
            .iter()
            .map(|draft| Usage::of_data(&draft.data).unwrap_or_default())
            .reduce(Usage::and);
        let (steps, step_id) = (self.steps.clone(), self.step_id.clone());
        let is_refused = refusal.is_some();
        let written = self.steps.to_the_end(async move {
            let events = match drafts.is_empty() {
                true => Vec::new(),
                false => steps.emit(step_id.as_ref(), drafts).await?,
            };
            if !is_refused {
                calls.into_iter().for_each(Reserved::keep);
            }
            let total = steps.oversight().add(usage.unwrap_or_default());
            // Here, so that what counts is judged though nobody waits for it.
            let mut refused = None;
            if usage.is_some() {
                for violation in steps.oversight().limits().of_usage(&total) {
                    let error = steps.put_violation(violation).await;
                    refused.get_or_insert(error);
                }
            }
            Ok((events, refused))
        });
        let (events, refused) = match written.await {
            Ok(written) => written,
            Err(e) => return Err(refusal.unwrap_or(e)),
        };
        if let Some(refused) = refusal.or(refused) {
            return Err(refused);
        }
        if let Some(usage) = usage {
            self.permit(PolicySubject::Usage(usage)).await?;
        }
        Ok(events)
    }

    /// Whether the same event was sent before, so that it counts already: in this batch, or before.
    async fn is_sent_again(
        &self,
        draft: &EventDraft,
        sent: &mut HashSet<EventId>,
    ) -> Result<bool, Error> {
        let Some(id) = &draft.id else {
            return Ok(false);
        };
        if self.steps.has_event(id).await? {
            return Ok(true);
        }
        Ok(!sent.insert(id.clone()))
    }
}

/// What is read of `tool_call_started`.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ToldOfCall {
    tool_name: String,
    input: Value,
}

impl PolicySubject {
    /// The call of a tool that it is, as people read of it.
    fn approval(&self, secrets: &SecretRules) -> Option<Approval> {
        let Self::ToolCall {
            tool_name, data, ..
        } = self
        else {
            return None;
        };
        let call_id = NamedCall::deserialize(data).unwrap_or_default().call_id;
        Some(Approval {
            call_id: call_id.map(|id| in_brief(&secrets.redact(&id))),
            tool_name: in_brief(tool_name),
        })
    }
}

/// What is read of the call that is to be allowed.
#[derive(Default, Deserialize)]
#[serde(default)]
struct NamedCall {
    #[serde(deserialize_with = "text")]
    call_id: Option<String>,
}
