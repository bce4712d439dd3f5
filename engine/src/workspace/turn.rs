//! Work on a workspace for actors and runs: opening it, waiting for its turn, capturing, comparing.
//!
//! A function with a `Locked` argument blocks, and runs only where blocking is allowed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use stillframe_backends::{ErrorKind, LockedWorkspace, Operation, Workspace, printable};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::Span;

use crate::actors::core::Core;
use crate::actors::workspace::{Job, Waiting, Weight, WorkspaceMessage};
use crate::actors::{Parts, Ticket};
use crate::blocking::StepLost;
use crate::error::{Error, stopped};
use crate::records::queue::Priority;
use crate::telemetry::{self, Lock};
use crate::workspace::cancellation::{self, Cancellation};
use crate::workspace::size::is_large;

/// The longest wait for a lock. A clock cannot represent the deadline of an endless timeout, and a
/// year has the same effect.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Does `work` on a workspace when its turn comes, with the workspace locked and recovered.
///
/// It waits at most for `lock_timeout`; after that it is `Busy`, and the message names the holder.
/// Once begun, the work goes on though the caller is dropped.
pub(crate) fn work<T: Send + 'static>(
    core: &Core,
    workspace: &Workspace,
    what: &'static str,
    lock_timeout: Duration,
    work: impl FnOnce(&mut LockedWorkspace) -> Result<T, Error> + Send + 'static,
) -> impl Future<Output = Result<T, Error>> + Send {
    let what = (what, Priority::Interactive);
    work_as(core, workspace, what, lock_timeout, work)
}

/// As [`work`], for a run of this priority.
pub(crate) fn work_as<T: Send + 'static>(
    core: &Core,
    workspace: &Workspace,
    what: (&'static str, Priority),
    lock_timeout: Duration,
    work: impl FnOnce(&mut LockedWorkspace) -> Result<T, Error> + Send + 'static,
) -> impl Future<Output = Result<T, Error>> + Send {
    in_turn(
        core,
        workspace,
        what,
        lock_timeout,
        Operation::unbounded(),
        std::future::pending(),
        work,
    )
}

/// As [`work`], until it is cancelled: then nobody waits for a turn any more, and work that has
/// begun ends as soon as it asks.
pub(crate) async fn cancellable<T: Send + 'static>(
    core: &Core,
    workspace: &Workspace,
    what: &'static str,
    lock_timeout: Duration,
    cancel: &Cancellation,
    work: impl FnOnce(&mut LockedWorkspace) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    in_turn(
        core,
        workspace,
        (what, Priority::Interactive),
        lock_timeout,
        cancel.operation(),
        cancel.told(),
        work,
    )
    .await
}

async fn in_turn<T: Send + 'static>(
    core: &Core,
    workspace: &Workspace,
    (what, priority): (&'static str, Priority),
    lock_timeout: Duration,
    op: Operation,
    told: impl Future<Output = ()>,
    work: impl FnOnce(&mut LockedWorkspace) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let mut told = std::pin::pin!(told);
    let began = Instant::now();
    let deadline = began + lock_timeout.min(MAX_WAIT);
    let step = {
        let (parts, workspace) = (core.parts.clone(), workspace.clone());
        let (op, span) = (op.clone(), Span::current());
        move || {
            let lock_timeout = deadline.saturating_duration_since(Instant::now());
            let work = |locked: &mut LockedWorkspace| {
                telemetry::waited(Lock::Workspace, began.elapsed());
                work(locked)
            };
            let step = || locked(&op, &parts, workspace, lock_timeout, work);
            let step = AssertUnwindSafe(|| span.in_scope(step));
            catch_unwind(step).unwrap_or_else(|payload| Err(StepLost::panicked(&*payload).into()))
        }
    };
    let (mut ticket, mut claim) = Ticket::new(step);
    loop {
        let actor = core.workspace_actor(workspace.identity()).await?;
        let (answer, mut answered) = oneshot::channel();
        let work: Waiting = Box::new(move || {
            let step = ticket.begin()?;
            let job: Job = Box::new(move || {
                let result = step();
                Box::new(move || {
                    // The asker may have left; the work is done all the same.
                    let _ = answer.send(result);
                })
            });
            Some(job)
        });
        let (parts, weighed) = (core.parts.clone(), workspace.clone());
        let weight = Weight {
            priority,
            is_large: Box::new(move || is_large(&parts, &weighed)),
        };
        // A message that cannot be sent takes the way to answer along, which is heard of below.
        let _ = actor.send_message(WorkspaceMessage::Work { work, what, weight });
        tokio::select! {
            biased;
            answered = &mut answered => match (answered, claim.take_back()) {
                (Ok(result), _) => return result,
                // The actor ended with it in its queue.
                (Err(_), Some(step)) => {
                    (ticket, claim) = Ticket::new(step);
                    continue;
                }
                (Err(_), None) => return Err(stopped()),
            },
            () = &mut told => {
                if claim.take_back().is_some() {
                    let refused = cancellation::refusal(&op, WAITING);
                    return Err(refused.expect("who was told has cancelled it"));
                }
            }
            () = tokio::time::sleep_until(deadline) => {
                // Its actor answers in turn, so by then a workspace in no use has begun this work,
                // however short the timeout was.
                let holder = holder(core, workspace).await;
                if claim.take_back().is_some() {
                    return Err(Error::new(ErrorKind::Busy, format!(
                        "the workspace {} is in use by {holder} of this engine; nothing was touched",
                        printable(workspace.disk_path())
                    )));
                }
            }
        }
        // It is begun.
        return answered.await.unwrap_or_else(|_| Err(stopped()));
    }
}

async fn holder(core: &Core, workspace: &Workspace) -> &'static str {
    let (reply, answer) = oneshot::channel();
    if let Ok(actor) = core.workspace_actor(workspace.identity()).await {
        let _ = actor.send_message(WorkspaceMessage::Holder { reply });
    }
    answer.await.ok().flatten().unwrap_or("an operation")
}

/// What somebody does whose turn has not come.
const WAITING: &str = "waiting for the workspace";

/// Locks the workspace, finishes what a crash interrupted there, and does `work`.
fn locked<T>(
    op: &Operation,
    parts: &Parts,
    workspace: Workspace,
    lock_timeout: Duration,
    work: impl FnOnce(&mut LockedWorkspace) -> Result<T, Error>,
) -> Result<T, Error> {
    parts.lock.note_workspace(workspace.disk_path())?;
    let locked = workspace.lock(op, lock_timeout);
    let mut locked = match (locked, cancellation::refusal(op, WAITING)) {
        (Ok(locked), _) => locked,
        // Somebody has it, and it was not waited for to the end.
        (Err(e), Some(refused)) if e.kind() == ErrorKind::Busy => return Err(refused),
        (Err(e), _) => return Err(e.into()),
    };
    crate::workspace::finish::finish(parts, &mut locked)?;
    crate::workspace::adoption::adopt_unlisted(&op.to_its_end(), parts, &mut locked)?;
    work(&mut locked)
}
