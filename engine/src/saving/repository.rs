//! The repositories that a run works in: its own, and further ones. What it left is saved in each,
//! in their order, and one that fails stops no other.

use std::time::Duration;

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use stillframe_backends::{ErrorKind, Interrupt, Label, Operation, SnapshotId, printable};
use stillframe_remote::failure_kind::FailureKind;
use tokio_util::sync::CancellationToken;

use crate::actors::core::Core;
use crate::branches::summary::{Fared, summary};
use crate::error::Error;
use crate::id::{RunId, SessionId, WorkTaskId};
use crate::options::work_branch::WorkBranchOptions;
use crate::records::came_for::CameFor;
use crate::records::checkpoint::CheckpointKind;
use crate::records::repositories::{RepositoryOutcome, SavedRepositories};
use crate::records::saved_work::{SavedState, SavedWork};
use crate::saving::recorded;
use crate::saving::save::Prepared;
use crate::saving::work::{Content, Wanted};
use crate::state::SnapshotFilter;
use crate::state::change::Change;
use crate::workspace::cancellation::Cancellation;
use crate::workspace::opened::Opened;
use crate::workspace::{backends, capture, turn};

/// A repository that a run works in, and where its work goes.
#[derive(Clone)]
pub(crate) struct Repository {
    pub(crate) opened: Opened,
    pub(crate) branch: WorkBranchOptions,
    /// The commit that the work of the run began at, as far as that is known.
    pub(crate) began_at: Option<String>,
}

impl Repository {
    /// Its directory, printable.
    pub(crate) fn name(&self) -> String {
        printable(self.opened.workspace.disk_path())
    }

    /// Captures what a run left here, where it is a further one of the run, unless that was done.
    ///
    /// # Errors
    ///
    /// `Busy`: somebody else is at work here. `NotFound`: nothing was captured before the work.
    pub(crate) async fn capture_after(
        &self,
        core: &Core,
        (session_id, run_id): (&SessionId, &RunId),
        (label, id): (Label, SnapshotId),
        fence: Option<Change>,
        lock_timeout: Duration,
    ) -> Result<SnapshotId, Error> {
        let (parts, opened) = (core.parts.clone(), self.opened.clone());
        let (session_id, run_id) = (session_id.clone(), run_id.clone());
        let what = "the capture of a run";
        turn::work(
            core,
            &self.opened.workspace,
            what,
            lock_timeout,
            move |locked| {
                let op = &Operation::unbounded();
                let asked = before_in(&run_id, &opened);
                let (before, known) = parts.reader.read_blocking(|store| {
                    Ok((store.find_snapshots(&asked)?, store.snapshot(&id)?))
                })?;
                if known.is_some() {
                    return Ok(id);
                }
                let before = before.into_iter().next();
                let before =
                    before.ok_or_else(|| Error::not_found("what was there before is gone"))?;
                let backend = backends::backend_of(&parts, before.snapshot.backend)?;
                let mut options =
                    opened.snapshot_options(&parts, label, &session_id, Some(&run_id));
                options.id = id;
                options.since = Some(before.snapshot.id);
                options.keep_refs = true;
                let whose = capture::Whose {
                    session_id: &session_id,
                    run_id: Some(&run_id),
                    fence,
                };
                let captured = capture::capture(op, &parts, locked, &*backend, &options, whose)?;
                Ok(captured.id)
            },
        )
        .await
    }
}

/// What a run left in one of its repositories.
pub(crate) struct Part {
    name: String,
    branch: WorkBranchOptions,
    began_at: Option<String>,
    content: Content,
    prepared: Result<Prepared, Error>,
}

/// What a run left, before it is saved.
#[derive(Default)]
pub(crate) struct Unsaved {
    /// In its own repository; `None`: that was not captured.
    pub(crate) own: Option<Part>,
    pub(crate) further: Vec<Part>,
}

/// What became of what a run left in one of its repositories.
pub(crate) struct Done {
    name: String,
    /// `None`: it is not known where the work goes.
    pub(crate) task_id: Option<WorkTaskId>,
    /// `None`: nothing could be made of it.
    pub(crate) saved: Option<SavedWork>,
    /// Why it is not on the branch.
    why: Option<(FailureKind, String)>,
}

/// What became of what a run left.
#[derive(Default)]
pub(crate) struct AllDone {
    pub(crate) own: Option<Done>,
    pub(crate) further: Vec<Done>,
}

impl Part {
    /// Finds out where it goes. `left_by`: the run, if its engine is dead: its work goes where it
    /// came from, and a remote that is silent is not waited for long.
    pub(crate) async fn of(
        core: &Core,
        repository: Repository,
        content: Content,
        left_by: Option<&RunId>,
    ) -> Self {
        let name = repository.name();
        let Repository {
            opened,
            branch,
            began_at,
        } = repository;
        let prepared = Prepared::of_run(core, opened, &branch, left_by).await;
        Self {
            name,
            prepared: prepared.map(|prepared| match left_by {
                Some(_) => prepared.with_patience(core.parts.patience.clone()),
                None => prepared,
            }),
            branch,
            began_at,
            content,
        }
    }

    /// One whose directory cannot be opened.
    pub(crate) fn lost(name: String, branch: WorkBranchOptions, error: Error) -> Self {
        Self {
            name,
            branch,
            began_at: None,
            content: Content::Now { unless: None },
            prepared: Err(error),
        }
    }

    /// Saves it. Somebody who cancels the run does not stop that: what was done is not lost.
    async fn save(
        self,
        core: &Core,
        ids: (&SessionId, &RunId),
        came_for: &CameFor,
        is_further: bool,
    ) -> Done {
        let (branch, began_at) = (&self.branch, self.began_at);
        let mut wanted = match came_for {
            CameFor::End(ends) => Wanted::of_run(ids, *ends, branch, began_at),
            CameFor::Block(block) => Wanted::of_block(ids, block, branch, began_at),
        };
        let cancel = Cancellation::by(core, &CancellationToken::new(), Interrupt::never());
        let captured = match &self.content {
            Content::Of(snapshot) => Some(snapshot.clone()),
            Content::Now { .. } => None,
        };
        let (task_id, saved) = match self.prepared {
            Ok(prepared) => {
                let task_id = prepared.task_id().clone();
                let repository = prepared.target.opened.workspace.id();
                wanted.further = is_further.then(|| repository.to_owned());
                let saved = Box::pin(prepared.save(core, wanted, self.content, &cancel)).await;
                (Some(task_id), saved.map_err(|e| (FailureKind::LocalGit, e)))
            }
            // There is no repository, or none that can be read: nothing was asked or started.
            Err(e) => (None, Err((FailureKind::Unknown, e))),
        };
        let (saved, why) = match saved {
            Ok(saved) => {
                let why = saved.as_ref().and_then(why_not);
                (saved, why)
            }
            Err((kind, e)) => {
                let not_made = |snapshot| recorded::not_made(branch, &snapshot, kind, &e);
                (captured.map(not_made), Some((kind, e.chain())))
            }
        };
        Done {
            name: self.name,
            task_id,
            saved,
            why,
        }
    }
}

/// Why work is not on its branch.
fn why_not(saved: &SavedWork) -> Option<(FailureKind, String)> {
    let kind = FailureKind::parse(saved.failure.as_deref()?)?;
    Some((kind, saved.error.clone().unwrap_or_default()))
}

impl Unsaved {
    /// What the event says that tells of the begin; `None`: it is not known of any where it goes.
    /// `files`: how many have changed in the run's own.
    pub(crate) fn started(
        &self,
        kind: CheckpointKind,
        files: Option<u64>,
        recovered: bool,
    ) -> Option<Value> {
        let own = self.own.iter().map(|part| (part, files));
        let all = own.chain(self.further.iter().map(|part| (part, None)));
        let mut prepared =
            all.filter_map(|(part, files)| Some((part.prepared.as_ref().ok()?, files)));
        let (prepared, files) = prepared.next()?;
        Some(prepared.started(kind, files, recovered))
    }

    /// Why the run cannot wait for an answer: nobody could go on with what it left.
    pub(crate) fn obstacle(&self) -> Option<String> {
        let why = |part: &Part| match &part.prepared {
            Ok(prepared) if prepared.address().is_some() => None,
            Ok(_) => Some("there is no remote that has its work".to_owned()),
            Err(e) => Some(e.chain()),
        };
        let of_further = |part: &Part| why(part).map(|why| format!("{}: {why}", part.name));
        let own = self.own.as_ref().and_then(why);
        own.or_else(|| self.further.iter().find_map(of_further))
    }

    /// Saves it.
    pub(crate) async fn save(
        self,
        core: &Core,
        ids: (&SessionId, &RunId),
        came_for: &CameFor,
    ) -> AllDone {
        let mut done = AllDone::default();
        if let Some(own) = self.own {
            done.own = Some(own.save(core, ids, came_for, false).await);
        }
        for part in self.further {
            done.further
                .push(part.save(core, ids, came_for, true).await);
        }
        done
    }
}

impl Done {
    fn fared(&self) -> (String, Fared) {
        let state = self.saved.as_ref().map(|saved| saved.state);
        let fared = match (&self.why, state) {
            (Some((kind, why)), _) => Fared::Failed(*kind, why.clone()),
            (None, Some(SavedState::NoChanges) | None) => Fared::Unchanged,
            (None, Some(SavedState::RecordedOnly)) => Fared::RecordedOnly,
            (None, Some(_)) => Fared::Pushed,
        };
        (self.name.clone(), fared)
    }

    fn told(&self) -> RepositoryOutcome {
        let why = self.why.as_ref();
        RepositoryOutcome {
            path: self.name.clone(),
            resumed: None,
            saved: self.saved.clone(),
            failure: why.map(|(kind, _)| kind.as_str().to_owned()),
            error: why.map(|(_, why)| why.clone()),
        }
    }
}

impl AllDone {
    /// What became of the work in all repositories; `None`: the run works in its own alone, which
    /// is called `own`.
    pub(crate) fn told(&self, own: &str) -> Option<SavedRepositories> {
        if self.further.is_empty() {
            return None;
        }
        let own = self.own.as_ref().map_or_else(
            || {
                let why = "what the run left there is not known".to_owned();
                (own.to_owned(), Fared::Failed(FailureKind::LocalGit, why))
            },
            Done::fared,
        );
        let further = self.further.iter().map(Done::fared);
        let fared: Vec<_> = std::iter::once(own).chain(further).collect();
        let all = summary(&fared);
        Some(SavedRepositories {
            summary: all.to_string(),
            failure: all.kind.map(|kind| kind.as_str().to_owned()),
            further: self.further.iter().map(Done::told).collect(),
        })
    }

    /// The tasks that the run works on, with what became of their work, the run's own first;
    /// `None`: of one it is not known.
    pub(crate) fn works(&self) -> Option<Vec<(WorkTaskId, SavedWork)>> {
        let all = std::iter::once(self.own.as_ref()?).chain(&self.further);
        all.map(|done| done.task_id.clone().zip(done.saved.clone()))
            .collect()
    }

    /// Why not all of it is proven.
    pub(crate) fn why(&self) -> Option<String> {
        let own = self.own.iter().filter_map(|done| done.why.as_ref());
        let own = own.map(|(_, why)| why.clone()).next();
        let further = || {
            let mut failed = self.further.iter().filter_map(|done| {
                let (_, why) = done.why.as_ref()?;
                Some(format!("{}: {why}", done.name))
            });
            failed.next()
        };
        own.or_else(further)
    }
}

/// Refuses repositories that work in one of which would be work in another.
///
/// A repository within another is one of its own, as a submodule is: captures of the outer one have
/// its files, and commits have not.
pub(crate) fn check_apart(all: &[&Opened]) -> Result<(), Error> {
    let top = |opened: &Opened| {
        let path = opened.workspace.disk_path();
        let mut above = path.ancestors();
        let top = above.find(|path| path.join(".git").symlink_metadata().is_ok());
        top.unwrap_or(path).to_owned()
    };
    for (at, one) in all.iter().enumerate() {
        for other in &all[..at] {
            let names = [other, one].map(|opened| printable(opened.workspace.disk_path()));
            let [first, second] = &names;
            if top(other) == top(one) {
                return Err(Error::invalid_options(format!(
                    "{first} and {second} are in one work tree, which has one branch at a time; the run was not started"
                )));
            }
        }
    }
    let Some((own, further)) = all.split_first() else {
        return Ok(());
    };
    let is_within = |inner: &&&Opened| {
        let inner = inner.workspace.disk_path();
        inner.starts_with(own.workspace.disk_path())
    };
    match further.iter().find(is_within) {
        Some(inner) if own.options.rollback_on_failure => Err(Error::new(
            ErrorKind::InvalidOptions,
            format!(
                "a rollback of {} would take back what is in {} before that is saved; the run was not started",
                printable(own.workspace.disk_path()),
                printable(inner.workspace.disk_path())
            ),
        )),
        _ => Ok(()),
    }
}

/// The id of the snapshot that a run has of one of its further repositories after its work.
/// `after`: that of its own, of which each attempt has another one.
pub(crate) fn after_in(after: &SnapshotId, opened: &Opened) -> SnapshotId {
    let about = format!("{after}:{}", opened.workspace.id());
    let digits = format!("{:x}", Sha256::digest(about.as_bytes()));
    let id = format!("snap_{}", &digits[..32]);
    id.parse().expect("these are digits of an id")
}

/// The snapshot that a run has of one of its further repositories before its work.
pub(crate) fn before_in(run_id: &RunId, opened: &Opened) -> SnapshotFilter {
    SnapshotFilter {
        label: Some(Label::BEFORE),
        run_id: Some(run_id.clone()),
        ..SnapshotFilter::of(&opened.workspace)
    }
}
