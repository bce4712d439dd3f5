//! Which snapshots must not be removed: those that something needs, and pinned ones.

use std::collections::HashMap;

use stillframe_backends::{Snapshot, SnapshotId};

use crate::actors::core::Core;
use crate::error::Error;
use crate::events::query::EventQuery;
use crate::id::RunId;
use crate::records::operation::OperationKind;
use crate::records::snapshot::PinRow;
use crate::state::change::Change;
use crate::state::error::StateError;
use crate::state::{StateStore, snapshot_name};
use crate::step::tool;
use crate::workspace::opened::Opened;
use crate::workspace::turn;

/// Why a snapshot stays, whatever its age and however many there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// Somebody pinned it.
    Pin,
    /// A ref in the user's repository is known by it, and could not be removed.
    SafetyRef(String),
    /// A restore that has begun needs it.
    Restore,
    /// A run that has not ended names it, in whichever process.
    Run(RunId),
    /// It takes this one to undo what came last: a run, or an operation of this kind.
    Undo(Option<RunId>, OperationKind),
}

/// The snapshots that no clean-up takes. Those of one workspace, and of runs also of others.
#[derive(Clone, Debug, Default)]
pub(crate) struct Claims(HashMap<SnapshotId, Claim>);

impl Claims {
    /// What is claimed now. Of two claims of one snapshot that of a run counts, which nobody can
    /// take back.
    pub(crate) fn read(store: &dyn StateStore, workspace_id: &str) -> Result<Self, StateError> {
        let pins = store.pins()?.into_iter();
        let mut claims: HashMap<SnapshotId, Claim> =
            pins.map(|row| (row.snapshot_id, Claim::Pin)).collect();
        if let Some(restore) = store.restore_under_way(workspace_id)? {
            claims.insert(restore.guard, Claim::Restore);
            claims.insert(restore.target, Claim::Restore);
        }
        for run in store.runs_not_ended()? {
            let steps = store.steps(&run.id)?.into_iter();
            // A step that was interrupted goes back to what was before it.
            let of_steps = steps.flat_map(|step| [step.snapshot_before, step.snapshot_after]);
            let query = EventQuery::session(run.session_id.clone()).run(run.id.clone());
            let of_tools = tool::unsettled(&store.events(&query)?);
            let of_run = run.workspace.into_iter();
            let of_run = of_run.flat_map(|workspace| [workspace.before, workspace.after]);
            let ids = of_run.chain(of_steps.flatten()).chain(of_tools);
            claims.extend(ids.map(|id| (id, Claim::Run(run.id.clone()))));
        }
        Ok(Self(claims))
    }

    /// Adds what it takes to undo what came last. A clean-up that somebody asks for, by age or
    /// number, may take that; what takes one without such a word of the user's may not.
    pub(crate) fn add_latest(
        &mut self,
        store: &dyn StateStore,
        workspace_id: &str,
    ) -> Result<(), StateError> {
        if let Some(latest) = store.latest_operation(workspace_id)? {
            let claim = Claim::Undo(latest.run_id, latest.kind);
            self.add(latest.before, claim.clone());
            self.add(latest.after, claim);
        }
        Ok(())
    }

    /// Why this snapshot stays; `None`: it need not.
    pub(crate) fn of(&self, id: &SnapshotId) -> Option<&Claim> {
        self.0.get(id)
    }

    /// Whether this snapshot stays.
    pub(crate) fn hold(&self, id: &SnapshotId) -> bool {
        self.0.contains_key(id)
    }

    pub(crate) fn add(&mut self, id: SnapshotId, claim: Claim) {
        self.0.entry(id).or_insert(claim);
    }
}

impl Claim {
    /// What has to come first if it is to go, as part of a message.
    pub(crate) fn reason(&self, id: &SnapshotId) -> String {
        match self {
            Self::Pin => format!("is pinned; \"stillframe snapshot unpin {id}\" first"),
            Self::SafetyRef(name) => {
                format!("is what {name} in the repository is known by, which could not be removed")
            }
            Self::Restore => "is needed by a restore that has begun".to_owned(),
            Self::Run(run_id) => {
                format!("is needed by run {run_id}, which has not ended")
            }
            Self::Undo(Some(run_id), _) => {
                format!("is needed to undo run {run_id}, which came last")
            }
            Self::Undo(None, kind) => {
                format!("is needed to undo the {}, which came last", kind.as_str())
            }
        }
    }
}

/// Pins the snapshot of this name, or takes its pin back. No clean-up is under way meanwhile.
pub(crate) async fn set_pin(
    core: &Core,
    opened: Opened,
    name: String,
    is_pinned: bool,
) -> Result<Snapshot, Error> {
    let parts = core.parts.clone();
    let lock_timeout = parts.settings.lock_timeout;
    let what = "a pin";
    let workspace = opened.workspace;
    turn::work(core, &workspace, what, lock_timeout, move |locked| {
        let find =
            |store: &dyn StateStore| snapshot_name::find_snapshot(store, &name, Some(locked));
        let row = parts.reader.read_blocking_with(find)?;
        let id = row.snapshot.id.clone();
        let change = match is_pinned {
            false => Change::UnpinSnapshot(id),
            true => Change::PinSnapshot {
                row: PinRow {
                    snapshot_id: id,
                    workspace_id: row.workspace_id,
                },
                at: parts.now(),
            },
        };
        parts.writer.commit_blocking(vec![change])?;
        Ok(row.snapshot)
    })
    .await
}
