//! Saving a task's work, from the workspace to the proof.

use std::collections::BTreeSet;

use stillframe_backends::{AllowedSecret, ErrorKind, LockedWorkspace, Operation};
use stillframe_remote::ObjectId;
use stillframe_remote::address::ParsedAddress;
use stillframe_remote::advertised::Advertised;
use stillframe_remote::credential::Credential;
use stillframe_remote::environment::Environment;
use stillframe_remote::failure_kind::FailureKind;
use stillframe_remote::git_process::Git;
use stillframe_remote::remote::Remote;

use crate::actors::Parts;
use crate::actors::core::Core;
use crate::branches::failures::{self, Attempt};
use crate::error::Error;
use crate::failure::Failure;
use crate::records::checkpoint::{CheckpointEvent, CheckpointRow};
use crate::records::saved_work::SavedWork;
use crate::records::work_task::WorkTaskRow;
use crate::saving::lock::TaskLock;
use crate::saving::making::{self, Made, Wanted};
use crate::saving::options::WorkBranchOptions;
use crate::saving::recorded::saved;
use crate::saving::sending::{Gate, NotSent, Sender, Sent};
use crate::saving::target::Target;
use crate::saving::told::Telling;
use crate::state::StateStore;
use crate::state::branch_change::BranchChange;
use crate::state::change::Change;
use crate::workspace::cancellation::Cancellation;
use crate::workspace::opened::Opened;
use crate::workspace::turn;

/// How often a task's row is written again that somebody else moves meanwhile.
const TRIES: usize = 5;

/// What became of a checkpoint at the remote.
pub(crate) enum Fate {
    /// There is no remote.
    Kept,
    Sent(Sent),
    NotSent(NotSent),
    /// The branch has a history of its own, and the work is beside it.
    Beside(NotSent, Sent),
}

/// Whose work is to be saved, and why.
pub(crate) struct Saving {
    pub(crate) core: Core,
    pub(crate) opened: Opened,
    pub(crate) branch: WorkBranchOptions,
    /// What the remote has is filled in here.
    pub(crate) wanted: Wanted,
}

impl Saving {
    /// Makes a checkpoint, sends it and proves it, until `cancel` says stop. It is `Ok` once the
    /// store has the work, whatever the remote says.
    pub(crate) async fn save(self, cancel: &Cancellation) -> Result<SavedWork, Error> {
        let Self {
            core,
            opened,
            branch,
            wanted,
        } = self;
        let parts = &core.parts;
        let (shared, asked) = (parts.clone(), branch.clone());
        let target = move || {
            let target = Target::of(&shared, opened, &asked)?;
            let task = task_of(&shared, &target)?;
            Ok::<_, Error>((target, task))
        };
        let (target, task) = parts.blocking.run(target).await??;
        let lock_timeout = parts.settings.lock_timeout;
        let _lock =
            TaskLock::acquire(&parts.state_dir, &task.id, lock_timeout, &parts.blocking).await?;
        let telling = Telling {
            parts,
            task: &task,
            wanted: &wanted,
        };
        parts.writer.commit(vec![telling.started()]).await?;
        let workspace = target.opened.workspace.clone();
        let (shared, op) = (parts.clone(), cancel.operation());
        let capturing = move |locked: &mut LockedWorkspace| {
            let snapshot = making::capture(&op, &shared, locked, &target, &wanted)?;
            Ok((snapshot, target, wanted))
        };
        let what = "a capture for a checkpoint";
        let captured = turn::cancellable(&core, &workspace, what, lock_timeout, cancel, capturing);
        let (snapshot, target, mut wanted) = captured.await?;
        let asking = asking(&target, &branch).await;
        let op = cancel.operation();
        let asked = move || {
            let seen = match &asking {
                Some(Ok(asking)) => asking.refs(&op),
                Some(Err(not_sent)) => Err(not_sent.clone()),
                None => Ok(None),
            };
            (asking, seen)
        };
        // The workspace is free meanwhile: a remote may take long to answer.
        let (asking, seen) = parts.blocking.run_beside(asked).await?;
        if let Ok(Some(refs)) = &seen {
            wanted.on_remote = refs.ids().map(|id| id.to_string()).collect();
        }
        let (shared, op) = (parts.clone(), cancel.operation());
        let making = move |locked: &mut LockedWorkspace| {
            let made = making::make(&op, &shared, locked, &target, &task, (&wanted, &snapshot))?;
            Ok((made, target, task, wanted))
        };
        let what = "a checkpoint";
        let made = turn::cancellable(&core, &workspace, what, lock_timeout, cancel, making);
        let (made, target, task, wanted) = made.await?;
        let (shared, op) = (parts.clone(), cancel.operation());
        let sending = move || {
            let fate = match (&made.row, asking, seen) {
                (None, _, _) | (_, _, Ok(None)) | (_, None, _) => Fate::Kept,
                (_, _, Err(not_sent)) | (_, Some(Err(not_sent)), _) => Fate::NotSent(not_sent),
                (Some(row), Some(Ok(asking)), Ok(Some(seen))) => {
                    let gate = gate(&shared, &target)?;
                    asking.send(&op, &target, row, &seen, &gate, &wanted)
                }
            };
            let saved = saved(&target, &task, &made, &fate);
            let telling = Telling {
                parts: &shared,
                task: &task,
                wanted: &wanted,
            };
            record(&telling, &made, &fate)?;
            Ok::<_, Error>(saved)
        };
        parts.blocking.run_beside(sending).await?
    }
}

/// The row of a task, which is made where there is none. Blocks.
fn task_of(parts: &Parts, target: &Target) -> Result<WorkTaskRow, Error> {
    let place = target.place();
    let namespace = target.names.namespace.as_ref().map(ToString::to_string);
    let task = target.names.task.as_str();
    let find = || {
        let of = |store: &dyn StateStore| store.work_task_of(&place, namespace.as_deref(), task);
        parts.reader.read_blocking(of)
    };
    if let Some(row) = find()? {
        return Ok(row);
    }
    let branch = target.names.branch.as_str();
    let row = WorkTaskRow::new(task, namespace.clone(), &place, branch, parts.now());
    let add = Change::Branch(Box::new(BranchChange::AddTask(row.clone())));
    match parts.writer.commit_blocking(vec![add]) {
        Ok(_) => Ok(row),
        // Somebody has made it meanwhile, or another task has the branch.
        Err(e) => find()?.ok_or(e),
    }
}

/// Who is asked, and by whom.
struct Asking {
    address: ParsedAddress,
    credential: Credential,
    git: Git,
}

/// `None`: there is no remote.
async fn asking(target: &Target, branch: &WorkBranchOptions) -> Option<Result<Asking, NotSent>> {
    let address = target.address.clone()?;
    let credential = match &branch.credentials {
        Some(provider) => {
            let remote = address.address.to_string();
            match provider.clone().answer(remote).await {
                Ok(credential) => credential,
                Err(why) => {
                    let why = format!(
                        "who asks {} is not known: {}",
                        address.address,
                        Failure::of_work(why.trim()).line()
                    );
                    return Some(Err(NotSent::new(FailureKind::AuthDenied, why)));
                }
            }
        }
        None => Credential::of_login(address.login.clone()),
    };
    let store = target
        .checkpoints()
        .sending_repository(&target.opened.workspace);
    let git = Git::new(store, Environment::of(std::env::vars_os())).limit(branch.call_timeout);
    Some(Ok(Asking {
        address,
        credential,
        git,
    }))
}

impl Asking {
    fn remote(&self) -> Remote<'_> {
        Remote {
            git: &self.git,
            address: &self.address.address,
            credential: &self.credential,
        }
    }

    /// What the remote has. Blocks.
    fn refs(&self, op: &Operation) -> Result<Option<Advertised>, NotSent> {
        let refs = self.remote().refs(op);
        let refused = |e: stillframe_remote::remote::ListError| {
            NotSent::new(e.failure(), crate::error::chain(&e))
        };
        refs.map(Some).map_err(refused)
    }

    /// Sends a checkpoint to the task's branch, or beside it. Blocks.
    fn send(
        &self,
        op: &Operation,
        target: &Target,
        row: &CheckpointRow,
        seen: &Advertised,
        gate: &Gate,
        wanted: &Wanted,
    ) -> Fate {
        let sender = Sender {
            target,
            remote: self.remote(),
            op,
        };
        let commit: ObjectId = match row.commit.parse() {
            Ok(commit) => commit,
            Err(why) => return Fate::NotSent(NotSent::new(FailureKind::LocalGit, why)),
        };
        let branch = &target.names.branch;
        let not_sent = match sender.send(commit, branch, seen, gate) {
            Ok(sent) => return Fate::Sent(sent),
            Err(not_sent) => not_sent,
        };
        if not_sent.kind != FailureKind::RemoteDivergent {
            return Fate::NotSent(not_sent);
        }
        let run = wanted.run_id.as_ref().map(ToString::to_string);
        let beside = branch.side_branch(run.as_deref().unwrap_or(wanted.session_id.as_str()));
        match sender.send(commit, &beside, seen, gate) {
            Ok(sent) => Fate::Beside(not_sent, sent),
            Err(worse) => Fate::NotSent(worse),
        }
    }
}

/// What must not leave this workspace. Blocks.
fn gate(parts: &Parts, target: &Target) -> Result<Gate, Error> {
    let repository = target.opened.workspace.id();
    let allowed = parts
        .reader
        .read_blocking(|store| store.allowed_findings(repository))?;
    let allowed = allowed
        .into_iter()
        .map(|row| AllowedSecret::new(row.rule, row.path, row.fingerprint));
    Ok(Gate {
        rules: parts.writer.secrets().clone(),
        allowed: allowed.collect::<BTreeSet<_>>(),
    })
}

/// Puts on record what became of a checkpoint, and counts it for its task. Blocks.
fn record(telling: &Telling<'_>, made: &Made, fate: &Fate) -> Result<(), Error> {
    let Some(row) = &made.row else {
        return Ok(());
    };
    let Telling { parts, task, .. } = telling;
    let now = parts.now();
    let moved = moved(row, task, fate, now)?;
    for _ in 0..TRIES {
        let mut changes = telling.ended(made, &moved, fate);
        if moved != *row {
            let put = BranchChange::PutCheckpoint {
                from: Some(row.status),
                row: moved.clone(),
            };
            changes.push(Change::Branch(Box::new(put)));
        }
        let id = &task.id;
        let found = parts.reader.read_blocking(|store| store.work_task(id))?;
        if let Some(found) = found {
            let mut counted = found.clone();
            let is_flagged = failures::count(&mut counted, attempt(fate), now);
            counted.error = match fate {
                Fate::NotSent(not_sent) | Fate::Beside(not_sent, _) => Some(not_sent.why.clone()),
                Fate::Kept | Fate::Sent(_) => None,
            };
            if let (true, Fate::NotSent(not_sent) | Fate::Beside(not_sent, _)) = (is_flagged, fate)
            {
                changes.push(telling.flagged(counted.failures_in_a_row, not_sent));
            }
            if counted != found {
                counted.updated_at = now;
                changes.push(Change::Branch(Box::new(BranchChange::MoveTask(counted))));
            }
        }
        if changes.is_empty() {
            return Ok(());
        }
        match parts.writer.commit_blocking(changes) {
            Err(e) if e.kind() == ErrorKind::Conflict => {}
            written => return written.map(drop),
        }
    }
    Err(Error::new(
        ErrorKind::Busy,
        format!(
            "the row of task {} is moved by others all the time; the checkpoint {} is kept, and the \
             next one looks where it is",
            task.task, row.commit
        ),
    ))
}

/// A checkpoint after what became of it.
fn moved(
    row: &CheckpointRow,
    task: &WorkTaskRow,
    fate: &Fate,
    now: jiff::Timestamp,
) -> Result<CheckpointRow, Error> {
    let to = |event: CheckpointEvent| match row.status.next(event) {
        Ok(status) => status,
        // It was proven before, or refused: what is known of it stays.
        Err(_) => row.status,
    };
    let mut moved = row.clone();
    match fate {
        Fate::Kept => return Ok(moved),
        Fate::Sent(sent) => {
            moved.status = to(CheckpointEvent::Proven);
            moved.remote = Some(task.remote.clone());
            moved.branch = Some(sent.branch.as_str().to_owned());
            moved.advanced_to = sent.advanced_to.map(|id| id.to_string());
            (moved.failure, moved.error) = (None, None);
        }
        Fate::Beside(not_sent, sent) => {
            moved.status = to(CheckpointEvent::Proven);
            moved.remote = Some(task.remote.clone());
            moved.branch = Some(sent.branch.as_str().to_owned());
            moved.advanced_to = sent.advanced_to.map(|id| id.to_string());
            moved.failure = Some(not_sent.kind);
            moved.error = Some(not_sent.why.clone());
        }
        Fate::NotSent(not_sent) => {
            moved.status = to(match not_sent.kind {
                _ if not_sent.was_taken => CheckpointEvent::Sent,
                FailureKind::SecretFound
                | FailureKind::TooLarge
                | FailureKind::RemotePolicyRejected => CheckpointEvent::Refused,
                _ => CheckpointEvent::NotSaved,
            });
            moved.failure = Some(not_sent.kind);
            moved.error = Some(not_sent.why.clone());
        }
    }
    if moved != *row {
        moved.updated_at = now;
    }
    Ok(moved)
}

/// How a try counts.
fn attempt(fate: &Fate) -> Attempt {
    match fate {
        Fate::Sent(sent) if sent.was_there => Attempt::NoChanges,
        Fate::Sent(_) => Attempt::Saved,
        // It is in the store, where the host wants it.
        Fate::Kept => Attempt::NoChanges,
        Fate::NotSent(not_sent) | Fate::Beside(not_sent, _) => Attempt::Failed(not_sent.kind),
    }
}
