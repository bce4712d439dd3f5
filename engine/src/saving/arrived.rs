//! Whether a remote has work that is not proven to be there: whoever sent it may have died before
//! that was put on record.

use stillframe_backends::{Operation, Reaches};
use stillframe_remote::advertised::Advertised;
use stillframe_remote::branch_name::BranchName;
use stillframe_remote::failure_kind::FailureKind;

use crate::actors::core::Core;
use crate::actors::patience::Patience;
use crate::error::Error;
use crate::id::SessionId;
use crate::options::work_branch::WorkBranchOptions;
use crate::records::checkpoint::CheckpointRow;
use crate::records::work_task::WorkTaskRow;
use crate::saving::asking::Asking;
use crate::saving::resend;
use crate::saving::save::{asked, record};
use crate::saving::sending::{NotSent, Sender, Sent};
use crate::saving::target::Target;
use crate::saving::told::Telling;
use crate::saving::way::commit;
use crate::saving::work::Fate;
use crate::workspace::cancellation::Cancellation;
use crate::workspace::opened::Opened;

/// Asks the remote of a task for the first of `rows`, which are its own, that its branch has or the
/// one beside it. What is there is put on record as proven. A remote that is silent is not waited
/// for as long as for a push.
///
/// `NotSent`: it could not be asked.
pub(super) async fn arrived(
    core: &Core,
    opened: &Opened,
    task: &WorkTaskRow,
    rows: &[CheckpointRow],
    cancel: &Cancellation,
) -> Result<Result<Option<CheckpointRow>, NotSent>, Error> {
    let parts = &core.parts;
    let (shared, opened, of) = (parts.clone(), opened.clone(), task.clone());
    let find = move || {
        let mut branch = WorkBranchOptions::of(&of.task);
        branch.namespace = of.namespace;
        let target = Target::of_place(&shared, opened, &branch, &of.remote)?;
        if !target.has_password() {
            branch.credentials = shared.settings.credentials.clone();
        }
        Ok::<_, Error>((target, branch))
    };
    let (target, branch) = match parts.blocking.run(find).await? {
        Ok(found) => found,
        Err(e) => return Ok(Err(NotSent::new(FailureKind::LocalGit, e.chain()))),
    };
    let patience = Patience::default();
    let (asking, seen) = match asked(core, &target, &branch, Some(&patience), cancel).await? {
        (Some(Ok(asking)), Ok(Some(seen))) => (asking, seen),
        (Some(Err(why)), _) | (_, Err(why)) => {
            return Ok(Err(why.redacted(parts.writer.secrets())));
        }
        (None, _) | (_, Ok(None)) => return Ok(Ok(None)),
    };
    let (of, rows, op) = (task.clone(), rows.to_vec(), cancel.operation());
    let look = move || {
        for row in rows {
            if let Some(sent) = place(&op, (&target, &asking, &seen), &of, &row)? {
                return Ok(Some((row, sent)));
            }
        }
        Ok(None)
    };
    let (row, sent) = match parts.blocking.run_beside(look).await? {
        Ok(Some(found)) => found,
        Ok(None) => return Ok(Ok(None)),
        Err(why) => {
            let why: NotSent = why;
            return Ok(Err(why.redacted(parts.writer.secrets())));
        }
    };
    let run = match row.made_by.clone() {
        Some(run) => parts.reader.read(move |store| store.run(&run)).await?,
        None => None,
    };
    let wanted = resend::wanted(core, &row, run).await?;
    let (shared, task, found) = (parts.clone(), task.clone(), row.clone());
    let recording = move || {
        let telling = Telling {
            parts: &shared,
            task: &task,
            wanted: &wanted,
        };
        record(&telling, (&row, false), &Fate::Sent(sent), None)
    };
    parts.blocking.run_beside(recording).await??;
    Ok(Ok(Some(found)))
}

/// Where a checkpoint is; `None`: not where its task's work goes. Blocks.
fn place(
    op: &Operation,
    (target, asking, seen): (&Target, &Asking, &Advertised),
    task: &WorkTaskRow,
    row: &CheckpointRow,
) -> Result<Option<Sent>, NotSent> {
    let sender = Sender {
        target,
        remote: asking.remote(),
        op,
    };
    let commit = commit(row)?;
    let branch = BranchName::parse(&task.branch)
        .map_err(|e| NotSent::new(FailureKind::Unknown, e.to_string()))?;
    let of = row.made_by.as_ref().map(ToString::to_string);
    let of = of.unwrap_or_else(|| SessionId::of_workspace(&row.repository).to_string());
    let beside = branch.side_branch(&of);
    for branch in [branch, beside] {
        let Some(tip) = seen.branch(&branch) else {
            continue;
        };
        match sender.relation(tip, commit)? {
            (Reaches::Yes, _) => {
                return Ok(Some(Sent {
                    branch,
                    advanced_to: Some(tip).filter(|tip| *tip != commit),
                    was_there: true,
                }));
            }
            (Reaches::No, _) | (_, Reaches::Yes) => {}
            (Reaches::Unknown, _) => return Err(sender.untold(commit, &branch)),
        }
    }
    Ok(None)
}
