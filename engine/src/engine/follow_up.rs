//! Tasks that are blocked, and go on with new input.

use std::path::Path;
use std::time::Duration;

use serde::Deserialize as _;
use stillframe_backends::{ErrorKind, printable};

use super::Engine;
use super::tasks::{find, of_task, stored};
use crate::branches::claim;
use crate::error::Error;
use crate::events::event::EventType;
use crate::id::RunId;
use crate::options::RunOptions;
use crate::options::work_branch::WorkBranchOptions;
use crate::records::block::Block;
use crate::records::follow_up::FollowUpInput;
use crate::records::outcome::RunOutcome;
use crate::records::run::RunStatus;
use crate::records::run_document::KeptOptions;
use crate::records::run_row::RunRow;
use crate::records::work_task::WorkTaskRow;
use crate::saving::waiting;
use crate::state::StateStore;
use crate::state::branch_change::BranchChange;
use crate::state::change::{Change, NewEvent};
use crate::step::adapter::Adapter;

impl Engine {
    /// Says of a run that another engine has that its work cannot go on without a person, as
    /// [`RunContext::blocked`](crate::RunContext::blocked) does in the engine that has it: once
    /// what it has started has ended by itself, the run is blocked. It is for that, such as its
    /// command, or something that this has left behind: on `Ok` it counts, unless the run is ended
    /// before.
    ///
    /// # Errors
    ///
    /// Nothing was done. `NotFound`: there is no such run. `InvalidOptions`: it is of no task.
    /// `Conflict`: it is not at work. `LimitExceeded`: the block says too much.
    pub async fn report_block(&self, run: &RunId, block: impl Into<Block>) -> Result<(), Error> {
        let block = block.into();
        block.check().map_err(|e| Error::new(e.kind(), e))?;
        let row = self.run_that(run, RunStatus::is_at_work).await?;
        of_task(row.clone())?;
        let at = self.core.parts.now();
        let told = EventType::BLOCK_REPORTED;
        let event = NewEvent::new(told, &row.session_id, Some(run), at, &block);
        let still = BranchChange::RefuseUnlessAtWork(run.clone());
        let changes = vec![Change::Branch(Box::new(still)), Change::Append(event)];
        self.core.parts.writer.commit(changes).await.map(drop)
    }

    /// Goes on with a task that waits for input, by what its host calls it: see
    /// [`Engine::find_task`]. Where several repositories have one of that name that waits, the
    /// workspace of `options` says which. Its run goes on in its workspace, which is brought to the
    /// branch that the task has waited with, and `adapter` gets the input as
    /// [`RunContext::follow_up`](crate::RunContext::follow_up). What `options` leave out is as the
    /// run was started; who asks the remote is not kept, and comes from them or the engine.
    ///
    /// Of two that claim a task one gets it. The input is consumed, and no later call takes one
    /// with the same or a lower number.
    ///
    /// Who may answer, and where people answer, is the host's to know, and so is what becomes of
    /// the branch: no remote says here that a pull request exists. A host that has opened one takes
    /// its input from there, and tells whoever answers at the old place, once.
    ///
    /// People may go on with the branch before they answer, and the run goes on from what they made
    /// of it: it has what was proven in any case. Where it is to go on from the commit that they
    /// were told of and from nothing else, [`WorkBranchOptions::expected`] of the options names
    /// that.
    ///
    /// ```no_run
    /// # use stillframe::tasks::FollowUpInput;
    /// # use stillframe::{Engine, Error, ErrorKind, RunOptions};
    /// # struct Comment { id: u64, text: String, is_of_team: bool, is_of_bot: bool }
    /// # type Done = Result<(), Error>;
    /// # async fn on_comment(engine: Engine, comment: Comment, agent: impl stillframe::Adapter) -> Done {
    /// let input = FollowUpInput::new(comment.id, comment.text)
    ///     .is_of_allowed_author(comment.is_of_team)
    ///     .is_of_bot(comment.is_of_bot);
    /// match engine.claim_follow_up("42", input, RunOptions::new(""), agent).await {
    ///     Ok(outcome) => println!("{}", outcome.run.status),
    ///     // It is of a bot or a stranger, was consumed before, or somebody else was faster.
    ///     Err(e) if e.kind() == ErrorKind::Conflict => {}
    ///     Err(e) => return Err(e),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Nothing was claimed. `NotFound`: there is no such task. `Conflict`: the task does not wait,
    /// or not for this input; or its workspace cannot be brought to the branch, as
    /// [`SessionManager::resume_task`](crate::SessionManager::resume_task) says, which has more of
    /// them. `InvalidOptions`: the number is none, or the options are of another task or workspace.
    /// `LimitExceeded`: the text is too long.
    pub async fn claim_follow_up(
        &self,
        task: &str,
        input: FollowUpInput,
        options: RunOptions,
        adapter: impl Adapter,
    ) -> Result<RunOutcome, Error> {
        input.check().map_err(|e| Error::new(e.kind(), e))?;
        let (name, asked) = (stored(task), input.clone());
        let place = options
            .workspace
            .as_ref()
            .map(|options| options.path.clone());
        let reader = &self.core.parts.reader;
        let run = reader.read_with(move |store| {
            let (row, run) = waiting_in(store, &name, place.as_deref())?;
            let follow_up = store.follow_up(&row.id)?;
            claim::claim(&row, follow_up.as_ref(), &asked).map_err(|e| Error::new(e.kind(), e))?;
            run.ok_or_else(|| Error::not_found(format!("task {name} has no run that waits")))
        });
        let run = run.await?;
        let options = going_on(options, run, input)?;
        self.run_once(options, adapter).await
    }
}

/// The task of this name that waits, with its run: in this workspace, if one is named. Where none
/// does, the one that was last saved.
fn waiting_in(
    store: &dyn StateStore,
    name: &str,
    place: Option<&Path>,
) -> Result<(WorkTaskRow, Option<RunRow>), Error> {
    let latest = find(store, name, None)?;
    let place = place.map(|place| place.canonicalize().unwrap_or_else(|_| place.to_owned()));
    let (mut waiting, mut beside) = (Vec::new(), None);
    for task in store.work_tasks()? {
        if task.full_name() == name
            && let Some((run, own)) = waiting::waiting_run(store, &task.id)?
        {
            match own.id == task.id {
                true => waiting.push((task, run)),
                false => beside = Some(own),
            }
        }
    }
    let of = |run: &RunRow| {
        run.workspace
            .as_ref()
            .map(|workspace| workspace.path.clone())
    };
    let places = || {
        let paths = waiting.iter().filter_map(|(_, run)| of(run));
        let paths: Vec<String> = paths.map(|path| printable(&path)).collect();
        paths.join(", ")
    };
    let here = place.map(|place| {
        waiting
            .iter()
            .find(|(_, run)| of(run).as_ref() == Some(&place))
    });
    match (here, waiting.as_slice()) {
        (_, []) => match beside {
            None => Ok((latest, None)),
            Some(own) => Err(Error::new(
                ErrorKind::Conflict,
                format!(
                    "task {name} waits with task {}, which is the one to go on with; nothing was done",
                    own.full_name()
                ),
            )),
        },
        (Some(Some((task, run))), _) | (None, [(task, run)]) => {
            Ok((task.clone(), Some(run.clone())))
        }
        // It may have been moved, which whoever goes on with it finds out.
        (Some(None), [(task, run)]) if of(run).is_none_or(|path| !path.exists()) => {
            Ok((task.clone(), Some(run.clone())))
        }
        (Some(None), _) => Err(Error::new(
            ErrorKind::Conflict,
            format!(
                "task {name} waits in {}, and not in this workspace; nothing was done",
                places()
            ),
        )),
        (None, _) => Err(Error::new(
            ErrorKind::Conflict,
            format!(
                "task {name} waits in several workspaces: {}; name one; nothing was done",
                places()
            ),
        )),
    }
}

/// The options of a run that goes on with `input`.
fn going_on(
    mut options: RunOptions,
    run: RunRow,
    input: FollowUpInput,
) -> Result<RunOptions, Error> {
    let (id, said) = (run.id.clone(), run.input.clone());
    let limits = KeptOptions::<serde::de::IgnoredAny>::deserialize(&run.options)
        .map_err(|e| Error::new(ErrorKind::Corrupt, e))?;
    let (workspace, kept) = of_task(run)?;
    let branch = match options.work_branch {
        Some(given) if !is_of(&given, &kept) => {
            return Err(Error::invalid_options(format!(
                "run {id} is of task {}, and the options are of task {}; nothing was done",
                kept.task, given.task
            )));
        }
        given => given.unwrap_or(kept),
    };
    options.input = said;
    options.run_id = Some(id);
    options.timeout = options
        .timeout
        .or(limits.timeout_ms.map(Duration::from_millis));
    options.hot_wait = options
        .hot_wait
        .or(limits.hot_wait_ms.map(Duration::from_millis));
    options.workspace.get_or_insert(workspace);
    options.work_branch = Some(branch);
    options.follow_up = Some(input);
    Ok(options)
}

/// Whether both are of one task.
fn is_of(one: &WorkBranchOptions, other: &WorkBranchOptions) -> bool {
    let name = |options: &WorkBranchOptions| options.branch_name().ok();
    name(one).is_some() && name(one) == name(other)
}
