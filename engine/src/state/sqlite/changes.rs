//! Every change of the state, as statements of one transaction.

use rusqlite::Connection;

use super::agents::{begin_agent, change_agent};
use super::artifacts::{register_artifact, remove_artifact};
use super::branches::apply_branch;
use super::effects::{put_effect, record_commit};
use super::events::Appended;
use super::forgetting::{begin_removal, forget_events, forget_runs, forget_session};
use super::isolations::apply_isolation;
use super::leases::{
    claim_lease, fence, refuse_if_cancelled, refuse_if_reported, renew_lease, request_cancel,
};
use super::pins::{pin, unpin};
use super::questions::put_question;
use super::queue::{claim_queued, enqueue, requeue, withdraw_all};
use super::removals::check_being_removed;
use super::restores::{begin_restore, end_restore};
use super::reviews::record_review;
use super::run_state::set_state;
use super::runs::{
    create_run, move_run, remove_patches, set_engine_limits, set_metadata, set_rollback,
};
use super::sessions::{create_session, describe_session, move_session};
use super::snapshots::{add_operation, add_snapshot, forget_snapshots, order_snapshots};
use super::steps::{put_phase, put_step, put_task, set_step_commit};
use crate::state::change::Change;
use crate::state::error::StateError;

/// Writes one change as part of the transaction `tx`; an event that it appends goes to `appended`.
/// What comes after the transaction is not written here.
pub(super) fn apply(
    tx: &Connection,
    change: &Change,
    appended: &mut Appended,
) -> Result<(), StateError> {
    match change {
        Change::CreateSession { id, at } => create_session(tx, id, *at),
        Change::DescribeSession { id, details } => describe_session(tx, id, details),
        Change::MoveSession {
            id,
            from,
            version,
            to,
            at,
        } => move_session(tx, id, *from, *version, *to, *at),
        Change::CreateRun(run) => create_run(tx, run),
        Change::Enqueue { row, max_queued } => enqueue(tx, row, *max_queued),
        Change::ClaimQueued {
            run_id,
            from,
            lease,
            max_in_session,
        } => claim_queued(tx, run_id, (from.as_deref(), lease), *max_in_session),
        Change::Requeue {
            run_id,
            epoch,
            free,
            withdrawal,
        } => requeue(tx, run_id, *epoch, free, withdrawal, appended),
        Change::WithdrawQueued {
            session_id,
            withdrawal,
        } => withdraw_all(tx, session_id, withdrawal, appended),
        Change::MoveRun {
            id,
            from,
            to,
            at,
            ending,
            came_for,
        } => {
            let ending = (ending.as_deref(), came_for.as_ref());
            move_run(tx, id, (*from, *to), *at, ending)
        }
        Change::Fence { run_id, epoch } => fence(tx, run_id, *epoch),
        Change::ClaimLease {
            run_id,
            from,
            lease,
            after,
        } => claim_lease(tx, run_id, from.as_deref(), lease, after.as_ref()),
        Change::RefuseIfCancelled(run_id) => refuse_if_cancelled(tx, run_id),
        Change::RefuseIfReported(run_id) => refuse_if_reported(tx, run_id),
        Change::SetMetadata { run_id, metadata } => set_metadata(tx, run_id, metadata),
        Change::SetEngineLimits { run_id, limits } => set_engine_limits(tx, run_id, limits),
        Change::RenewLease {
            run_id,
            epoch,
            expires,
            at,
        } => renew_lease(tx, run_id, *epoch, expires, *at),
        Change::RequestCancel { run_id, at } => request_cancel(tx, run_id, *at),
        Change::PutPhase { run_id, from, row } => put_phase(tx, run_id, *from, row),
        Change::PutStep { run_id, from, row } => put_step(tx, run_id, *from, row),
        Change::PutTask(row) => put_task(tx, row),
        Change::PutQuestion { from, row } => put_question(tx, *from, row),
        Change::PutEffect { from, row } => put_effect(tx, *from, row),
        Change::RecordCommit(commit) => record_commit(tx, commit),
        Change::SetStepCommit {
            run_id,
            step_id,
            commit,
        } => set_step_commit(tx, run_id, step_id, commit),
        Change::BeginAgent(agent) => begin_agent(tx, agent),
        Change::MoveAgent(agent) => change_agent(tx, agent),
        Change::RecordReview(review) => record_review(tx, review),
        Change::SetState(value) => set_state(tx, value),
        Change::Append(event) => appended.append(tx, event),
        Change::AddSnapshot(row) => add_snapshot(tx, row),
        Change::ForgetSnapshots(ids) => forget_snapshots(tx, ids),
        Change::ForgetEvents(events) => forget_events(tx, events),
        Change::ForgetRuns(ids) => forget_runs(tx, ids),
        Change::BeginRemoval(removal) => begin_removal(tx, removal, appended),
        Change::IfBeingRemoved(id) => check_being_removed(tx, id),
        Change::ForgetSession(id) => forget_session(tx, id),
        Change::PinSnapshot { row, at } => pin(tx, row, *at),
        Change::UnpinSnapshot(id) => unpin(tx, id),
        Change::OrderSnapshots(ids) => order_snapshots(tx, ids),
        Change::AddOperation(row) => add_operation(tx, row),
        Change::BeginRestore(row) => begin_restore(tx, row),
        Change::EndRestore(guard) => end_restore(tx, guard),
        Change::SetRollback { run_id, rollback } => set_rollback(tx, run_id, rollback),
        Change::RegisterArtifact(artifact) => register_artifact(tx, artifact),
        Change::DeleteArtifact { key, id, at } => remove_artifact(tx, key, id.as_ref(), *at),
        Change::RemovePatches { runs, artifacts } => remove_patches(tx, runs, artifacts),
        Change::Branch(change) => apply_branch(tx, change),
        Change::Isolation(change) => apply_isolation(tx, change),
        Change::Scrub | Change::Compact => Ok(()),
    }
}
