//! Recording the calls of tools that the engine makes.

use serde_json::Value;

use super::StepLog;
use crate::error::Error;
use crate::events::data::ToolCall;
use crate::events::event::EventType;
use crate::failure::Failure;
use crate::id::StepId;
use crate::records::tool_call::{self, ToolCallMoved, ToolCallStatus};
use crate::state::change::{Change, NewEvent, Reported};
use crate::step::pieces::Share;
use crate::step::{artifact, beside};

/// What there is to say of a call beside what its event says. Null: nothing.
pub(crate) struct CallTold<'a> {
    pub(crate) step_id: Option<&'a StepId>,
    pub(crate) status: ToolCallStatus,
    pub(crate) input: Value,
    pub(crate) output: Value,
    pub(crate) error: Option<&'a Failure>,
}

impl StepLog {
    /// Tells of a call, and puts it on record.
    pub(crate) async fn tell_call(
        &self,
        event_type: EventType,
        call: &mut ToolCall,
        told: CallTold<'_>,
    ) -> Result<(), Error> {
        let mut large = Vec::new();
        let mut content = |mut value: Value| {
            self.secrets().redact_json(&mut value);
            beside::content(self.run_id(), value, &mut large)
        };
        let moved = ToolCallMoved {
            call_id: call.call_id.clone(),
            step_id: told.step_id.cloned(),
            tool_name: Some(call.tool_name.clone()),
            status: told.status,
            input: content(told.input),
            output: content(told.output),
            error: told.error.cloned(),
        };
        let core = &self.inner.core;
        let mut changes = vec![self.inner.hold.fence()];
        let mut held = None;
        if !large.is_empty() {
            held = Some(artifact::registering(core, &self.inner.session_id).await?);
            changes.extend(beside::keep(core, &self.inner.session_id, large).await?);
        }
        call.contents = tool_call::said(moved.input.as_ref(), moved.output.as_ref());
        let (session, run, at) = (
            &self.inner.session_id,
            Some(self.run_id()),
            core.parts.now(),
        );
        changes.push(Change::Append(NewEvent {
            reported: Some(Reported::Call(Box::new(moved))),
            ..NewEvent::new(event_type, session, run, at, &*call)
        }));
        self.store_pieces(Share::Settled).await;
        core.parts.writer.commit_and_release(changes, held).await?;
        Ok(())
    }
}
