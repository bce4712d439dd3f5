//! Secret values are taken out of what is about to be written.
//!
//! What hosts, adapters and commands say is redacted. What the engine itself says is not: ids,
//! names and paths have to be what they are. The guide's table says which is which.

use std::borrow::Cow;

use serde_json::Value;
use stillframe_secrets::SecretRules;

use crate::events::event::EventSource;
use crate::failure::Failure;
use crate::records::came_for::CameFor;
use crate::records::restore_document::RestoreDocument;
use crate::records::run_row::RunEnding;
use crate::state::branch_change::BranchChange;
use crate::state::change::{Change, NewEvent, Reported};
use crate::state::isolation_change::IsolationChange;

/// The keys of an event of the engine's under which it repeats what others said.
const REPEATED: [&str; 11] = [
    "answer",
    "comment",
    "context",
    "in_place",
    "message",
    "question",
    "reason",
    "rollback",
    "text",
    "tool_name",
    "warning",
];

/// Takes secret values out of all that `change` would write of others' words.
pub(crate) fn redact(rules: &SecretRules, change: &mut Change) {
    match change {
        Change::CreateRun(run) => {
            text(rules, &mut run.input);
            metadata(rules, &mut run.options);
        }
        Change::SetMetadata { metadata, .. } => json(rules, metadata),
        Change::MoveRun {
            ending, came_for, ..
        } => {
            if let Some(ending) = ending {
                run_ending(rules, ending);
            }
            if let Some(CameFor::Block(block)) = came_for {
                block.reason.iter_mut().for_each(|said| text(rules, said));
                json(rules, &mut block.context);
            }
        }
        Change::DescribeSession { details, .. } => {
            // As one value, whose keys are looked at too.
            let mut said = Value::Object(std::mem::take(&mut details.metadata));
            json(rules, &mut said);
            if let Value::Object(metadata) = said {
                details.metadata = metadata;
            }
        }
        Change::PutStep { row, .. } => {
            row.result.iter_mut().for_each(|result| json(rules, result));
            failure(rules, &mut row.error);
        }
        Change::SetState(value) => {
            json(rules, &mut value.value);
            text(rules, &mut value.trigger);
        }
        Change::BeginAgent(agent) | Change::MoveAgent(agent) => failure(rules, &mut agent.error),
        Change::RecordReview(review) => review.redact(rules),
        Change::PutTask(row) => failure(rules, &mut row.error),
        Change::PutEffect { row, .. } => failure(rules, &mut row.error),
        Change::BeginRestore(row) => {
            if let Some(outcome) = &mut row.outcome {
                restore(rules, outcome);
            }
        }
        Change::SetRollback { rollback, .. } => restore(rules, rollback),
        Change::RegisterArtifact(record) => json(rules, &mut record.metadata),
        Change::Append(event) => append(rules, event),
        Change::Branch(change) => branch(rules, change),
        Change::Isolation(IsolationChange::Revise(row)) => {
            text(rules, &mut row.raw_comment);
            text(rules, &mut row.revision.comment);
        }
        // A question is known by its text, which was redacted before it was looked for. An answer
        // and the input of a submitted run with a secret value are refused. A commit has what the
        // repository has of it, and so has what a run hands in. The rest are ids, states, times,
        // and records of files.
        Change::PutQuestion { .. }
        | Change::RecordCommit(_)
        | Change::Enqueue { .. }
        | Change::ClaimQueued { .. }
        | Change::SetEngineLimits { .. }
        | Change::Requeue { .. }
        | Change::WithdrawQueued { .. }
        | Change::CreateSession { .. }
        | Change::MoveSession { .. }
        | Change::Fence { .. }
        | Change::ClaimLease { .. }
        | Change::RefuseIfCancelled(_)
        | Change::RefuseIfReported(_)
        | Change::RenewLease { .. }
        | Change::RequestCancel { .. }
        | Change::PutPhase { .. }
        | Change::SetStepCommit { .. }
        | Change::AddSnapshot(_)
        | Change::ForgetSnapshots(_)
        | Change::ForgetEvents(_)
        | Change::ForgetRuns(_)
        | Change::BeginRemoval(_)
        | Change::IfBeingRemoved(_)
        | Change::ForgetSession(_)
        | Change::PinSnapshot { .. }
        | Change::UnpinSnapshot(_)
        | Change::OrderSnapshots(_)
        | Change::AddOperation(_)
        | Change::EndRestore(_)
        | Change::RemovePatches { .. }
        | Change::Scrub
        | Change::Compact
        | Change::Isolation(_)
        | Change::DeleteArtifact { .. } => {}
    }
}

/// A checkpoint has the message that its commit has, which is looked through before it is sent.
fn branch(rules: &SecretRules, change: &mut BranchChange) {
    match change {
        BranchChange::AddTask(row) | BranchChange::MoveTask(row) => {
            row.error.iter_mut().for_each(|said| text(rules, said));
        }
        BranchChange::PutFollowUp(row) => {
            text(rules, &mut row.waiting_reason);
            json(rules, &mut row.context);
        }
        BranchChange::PutCheckpoint { row, .. } => {
            row.error.iter_mut().for_each(|said| text(rules, said));
        }
        BranchChange::AddNotice(row) | BranchChange::MoveNotice { row, .. } => {
            text(rules, &mut row.text);
            row.error.iter_mut().for_each(|said| text(rules, said));
        }
        BranchChange::AddQuarantine(row) => text(rules, &mut row.reason),
        BranchChange::ClaimFollowUp { .. }
        | BranchChange::RefuseUnlessAtWork(_)
        | BranchChange::DropFollowUp(_)
        | BranchChange::AllowFinding(_)
        | BranchChange::ForbidFinding(_)
        | BranchChange::EndQuarantine { .. } => {}
    }
}

/// An event of a host or an adapter was redacted before its data was measured, and so was what a
/// tool was given and returned.
fn append(rules: &SecretRules, event: &mut NewEvent) {
    if let Some(Reported::Call(call)) = &mut event.reported {
        failure(rules, &mut call.error);
        for content in [&mut call.input, &mut call.output].into_iter().flatten() {
            content
                .value
                .iter_mut()
                .for_each(|value| json(rules, value));
            content
                .summary
                .iter_mut()
                .for_each(|said| text(rules, said));
        }
    }
    if event.source != EventSource::Engine {
        return;
    }
    for key in REPEATED {
        if let Some(repeated) = event.data.get_mut(key) {
            json(rules, repeated);
        }
    }
}

fn run_ending(rules: &SecretRules, ending: &mut RunEnding) {
    failure(rules, &mut ending.error);
    for pointer in [
        "/data",
        "/command/command",
        "/command/args",
        "/command/output_error/message",
    ] {
        if let Some(said) = ending.output.pointer_mut(pointer) {
            json(rules, said);
        }
    }
    for pointer in ["/error/message", "/rollback/error/message"] {
        if let Some(said) = ending.workspace.pointer_mut(pointer) {
            json(rules, said);
        }
    }
}

fn restore(rules: &SecretRules, document: &mut RestoreDocument) {
    failure(rules, &mut document.error);
}

fn failure(rules: &SecretRules, failure: &mut Option<Failure>) {
    if let Some(failure) = failure {
        text(rules, &mut failure.message);
    }
}

/// What a host keeps with a run, in the options of the run.
fn metadata(rules: &SecretRules, options: &mut Value) {
    if let Some(metadata) = options.get_mut("metadata") {
        json(rules, metadata);
    }
}

fn json(rules: &SecretRules, value: &mut Value) {
    rules.redact_json(value);
}

fn text(rules: &SecretRules, text: &mut String) {
    if let Cow::Owned(redacted) = rules.redact(text) {
        *text = redacted;
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::id::{QuarantineId, WorkTaskId};
    use crate::records::follow_up::FollowUpRow;
    use crate::records::notice::{NoticeKind, NoticeRow, NoticeStatus};
    use crate::records::quarantine::{QuarantineKind, QuarantineRow, QuarantineStatus};
    use crate::records::work_task::WorkTaskRow;

    #[test]
    fn what_others_say_of_work_that_leaves_the_machine_is_redacted() {
        let at = Timestamp::UNIX_EPOCH;
        let value = format!("ghp_{}", "aB3dE5gH7j".repeat(4));
        let said = format!("failed with {value}, twice");
        let task = WorkTaskRow {
            error: Some(said.clone()),
            ..WorkTaskRow::new("42", None, "r", "b", at)
        };
        let follow_up = FollowUpRow {
            task_id: WorkTaskId::random(),
            flow: "f".to_owned(),
            branch: "b".to_owned(),
            context: serde_json::json!({ "asked": [said] }),
            waiting_reason: said.clone(),
            last_checkpoint: "c".to_owned(),
            updated_at: at,
        };
        let notice = NoticeRow {
            token: "0".repeat(64),
            kind: NoticeKind::CheckpointFailed,
            task_id: WorkTaskId::random(),
            commit: None,
            text: said.clone(),
            status: NoticeStatus::Pending,
            attempts: 1,
            next_at: None,
            owner: None,
            error: Some(said.clone()),
            created_at: at,
            updated_at: at,
            session_id: None,
            run_id: None,
        };
        let quarantine = QuarantineRow {
            id: QuarantineId::random(),
            kind: QuarantineKind::Slot,
            origin: "/a".into(),
            place: "/b".into(),
            reason: said,
            task_id: None,
            status: QuarantineStatus::Kept,
            created_at: at,
            ended_at: None,
        };
        for change in [
            BranchChange::AddTask(task.clone()),
            BranchChange::MoveTask(task),
            BranchChange::PutFollowUp(follow_up),
            BranchChange::AddNotice(notice.clone()),
            BranchChange::MoveNotice {
                from: (NoticeStatus::Pending, 0, None),
                row: notice,
            },
            BranchChange::AddQuarantine(quarantine),
        ] {
            let mut change = Change::Branch(Box::new(change));
            assert!(format!("{change:?}").contains(&value));
            redact(&SecretRules::default(), &mut change);
            let redacted = format!("{change:?}");
            assert!(!redacted.contains(&value), "{redacted}");
            assert!(redacted.contains("failed with "), "{redacted}");
        }
    }
}
