//! Reading the records of an engine.

use std::collections::HashMap;
use std::io::Read;

use stillframe_artifact_store::ArtifactKey;
use stillframe_backends::{ErrorKind, Snapshot};

use super::Engine;
use crate::error::Error;
use crate::events::query::EventQuery;
use crate::id::{RunId, SessionId};
use crate::options::{RunQuery, SessionQuery, SnapshotQuery, WorkspaceOptions};
use crate::records::agent::AgentRecord;
use crate::records::artifact::{ArtifactRecord, SessionStats};
use crate::records::came_for::CameFor;
use crate::records::effect::EffectRecord;
use crate::records::lease::{Lease, Moment};
use crate::records::question::{QuestionRecord, QuestionRow};
use crate::records::queue::{QueueRow, QueueState};
use crate::records::review::ReviewRecord;
use crate::records::run::RunStatus;
use crate::records::run_record::{LeaseRecord, RunExport, RunRecord};
use crate::records::run_row::RunRow;
use crate::records::run_state::{StateTransition, StateValue};
use crate::records::session::SessionRecord;
use crate::records::tool_call::ToolCallRecord;
use crate::run::owner;
use crate::session::details;
use crate::state::error::StateError;
use crate::state::run_name::{find_run, find_run_in};
use crate::state::{
    RunFilter, SessionFilter, SnapshotFilter, StateStore, id_beginning, snapshot_name,
};
use crate::step::answering;

impl Engine {
    /// The sessions that match the query, newest first.
    pub async fn sessions(&self, query: SessionQuery) -> Result<Vec<SessionRecord>, Error> {
        let filter = SessionFilter {
            statuses: query.statuses,
            agent_id: query.agent_id,
            parent_id: query.parent_id,
            tags: query.tags,
            limit: query.limit,
        };
        self.read(move |store| {
            let rows = store.sessions(&filter)?.into_iter();
            rows.map(|row| details::recorded(store, row)).collect()
        })
        .await
    }

    /// The session of this id; `NotFound` if there is none. Unlike [`Engine::session`] it makes
    /// none.
    pub async fn find_session(&self, id: &str) -> Result<SessionRecord, Error> {
        let unknown = || Error::not_found(format!("there is no session {id:?}"));
        let asked = SessionId::try_from(id.to_owned()).map_err(|_| unknown())?;
        let find = move |store: &dyn StateStore| match store.session(&asked)? {
            Some(row) => details::recorded(store, row).map(Some),
            None => Ok(None),
        };
        self.read(find).await?.ok_or_else(unknown)
    }

    /// The snapshots of a workspace that match the query, newest first.
    pub async fn snapshots(&self, query: impl Into<SnapshotQuery>) -> Result<Vec<Snapshot>, Error> {
        let query = query.into();
        let opened = self.core.open_known(&query.workspace).await?;
        self.core.relearn(&opened.workspace).await?;
        let filter = SnapshotFilter {
            label: query.label,
            since: query.since,
            limit: query.limit,
            ..SnapshotFilter::of(&opened.workspace)
        };
        let rows = self
            .read(move |store| store.find_snapshots(&filter))
            .await?;
        Ok(rows.into_iter().map(|row| row.snapshot).collect())
    }

    /// The snapshot with this id, or the only one whose id begins with it, in any workspace.
    ///
    /// A beginning has at least one hexadecimal digit, with or without `snap_`. A shorter one is
    /// `InvalidOptions`, and so is one that fits several ids. If no id begins so, the error is
    /// `NotFound`. Names that depend on a workspace are resolved by [`Engine::find_snapshot_of`].
    pub async fn find_snapshot(&self, id: &str) -> Result<Snapshot, Error> {
        self.core.parts.check_available()?;
        let find = || {
            let id = id.to_owned();
            let reader = &self.core.parts.reader;
            reader.read_with(move |store| snapshot_name::find_snapshot(store, &id, None))
        };
        let found = match find().await {
            Err(e) if e.kind() == ErrorKind::NotFound => {
                self.core.relearn_all().await?;
                find().await
            }
            found => found,
        };
        Ok(found?.snapshot)
    }

    /// The snapshot of a workspace with this id, this beginning of an id, or another
    /// [`SnapshotName`](crate::SnapshotName).
    pub async fn find_snapshot_of(
        &self,
        workspace: &WorkspaceOptions,
        name: &str,
    ) -> Result<Snapshot, Error> {
        let opened = self.core.open_known(workspace).await?;
        self.core.relearn(&opened.workspace).await?;
        let name = name.to_owned();
        let row = self
            .core
            .parts
            .reader
            .read_with(move |store| {
                snapshot_name::find_snapshot(store, &name, Some(&opened.workspace))
            })
            .await?;
        Ok(row.snapshot)
    }

    /// Runs, newest first.
    pub async fn runs(&self, query: RunQuery) -> Result<Vec<RunRecord>, Error> {
        let workspace_id = match &query.workspace {
            None => None,
            Some(path) => {
                let opened = self.core.open_known(&WorkspaceOptions::at(path)).await?;
                Some(opened.workspace.id().to_owned())
            }
        };
        let filter = RunFilter {
            session_id: query.session_id,
            workspace_id,
            statuses: query.statuses,
            since: query.since,
            until: query.until,
            in_place: false,
            limit: query.limit,
        };
        if query.incomplete {
            return self.incomplete(filter).await;
        }
        self.read(move |store| recorded(store, store.runs(&filter)?))
            .await
    }

    /// Those that match and can be claimed.
    async fn incomplete(&self, mut filter: RunFilter) -> Result<Vec<RunRecord>, Error> {
        let limit = filter.limit.take();
        if filter.statuses.is_empty() {
            filter.statuses = RunStatus::not_ended();
        }
        let (at, now) = (self.core.parts.now(), Moment::now()?);
        let found = self
            .read(move |store| {
                let rows = store.runs(&filter)?.into_iter();
                // A question past its deadline gets its default answer before the run is resumed.
                let is_answered = |row: &RunRow| match store.questions(&row.id) {
                    Ok(asked) => !asked.iter().any(|question| question.is_waiting(at, &now)),
                    Err(e) => {
                        tracing::warn!(run = %row.id, error = %e, "what it waits for cannot be read");
                        false
                    }
                };
                let rows = rows.filter(|row| row.status != RunStatus::WaitingForInput || is_answered(row));
                let mut found = Vec::new();
                for row in rows {
                    let queue = store.queue_row(&row.id)?;
                    // What is in the queue is an engine's to begin.
                    if !queue.is_some_and(|queued| queued.state.is_queued()) {
                        found.push((store.lease(&row.id)?, row));
                    }
                }
                Ok(found)
            })
            .await?;
        let found: Vec<(Option<Lease>, RunRow)> = found;
        let parts = self.core.parts.clone();
        let limit = limit.map_or(usize::MAX, |limit| {
            usize::try_from(limit).unwrap_or(usize::MAX)
        });
        self.core
            .parts
            .blocking
            .run(move || {
                let mut free = Vec::new();
                for (lease, row) in found {
                    let is_claimable = match row.status {
                        status if status.is_terminal() => false,
                        // They go on with new input, or a decision, alone.
                        RunStatus::AwaitingFollowup | RunStatus::AwaitingReview => false,
                        status if status.is_at_rest() => true,
                        _ => owner::is_free(&parts, &row, lease.as_ref())?,
                    };
                    if is_claimable && free.len() < limit {
                        free.push(row);
                    }
                }
                parts.reader.read_blocking(|store| recorded(store, free))
            })
            .await?
    }

    /// Everything that is stored of the run with this id, or of the only one whose id begins so:
    /// see [`Engine::find_run`].
    pub async fn export_run(&self, id: &str) -> Result<RunExport, Error> {
        let run = self.find_run(id).await?;
        self.settle_ripe(Some(&run.id)).await;
        self.read(move |store| {
            let events = store.events(&EventQuery::all().run(run.id.clone()))?;
            let kept = kept_of(store, run)?;
            Ok(RunExport { events, ..kept })
        })
        .await
    }

    /// The state that a run keeps (see [`RunContext::set_state`](crate::RunContext::set_state)),
    /// sorted by key.
    ///
    /// # Errors
    ///
    /// `NotFound`: there is no such run.
    pub async fn run_state(&self, run_id: &RunId) -> Result<Vec<StateValue>, Error> {
        let asked = run_id.clone();
        self.of_run(run_id, move |store| store.state_values(&asked))
            .await
    }

    /// Every change of the state that a run keeps, in their order.
    ///
    /// # Errors
    ///
    /// `NotFound`: there is no such run.
    pub async fn state_transitions(&self, run_id: &RunId) -> Result<Vec<StateTransition>, Error> {
        let asked = run_id.clone();
        self.of_run(run_id, move |store| store.state_transitions(&asked))
            .await
    }

    /// The agents that worked in a run, in the order in which they began.
    ///
    /// # Errors
    ///
    /// `NotFound`: there is no such run.
    pub async fn agents(&self, run_id: &RunId) -> Result<Vec<AgentRecord>, Error> {
        let asked = run_id.clone();
        self.of_run(run_id, move |store| store.agents(&asked)).await
    }

    /// The reviews that belong to a run, in the order in which they were recorded.
    ///
    /// # Errors
    ///
    /// `NotFound`: there is no such run.
    pub async fn reviews(&self, run_id: &RunId) -> Result<Vec<ReviewRecord>, Error> {
        let asked = run_id.clone();
        self.of_run(run_id, move |store| store.reviews(None, Some(&asked)))
            .await
    }

    /// The reviews that were recorded in a session, of its runs or of none, in the order in which
    /// they were.
    pub async fn session_reviews(
        &self,
        session_id: &SessionId,
    ) -> Result<Vec<ReviewRecord>, Error> {
        let session_id = session_id.clone();
        self.read(move |store| store.reviews(Some(&session_id), None))
            .await
    }

    /// The calls of tools in a run, in the order in which they were first told: those that the
    /// engine made, and those that adapters told of with an event `tool_call_started`,
    /// `tool_call_completed` or `tool_call_failed` that says which call it is about (`call_id`).
    ///
    /// # Errors
    ///
    /// `NotFound`: there is no such run.
    pub async fn tool_calls(&self, run_id: &RunId) -> Result<Vec<ToolCallRecord>, Error> {
        let asked = run_id.clone();
        self.of_run(run_id, move |store| tool_calls(store, &asked))
            .await
    }

    /// What is kept of a run, if there is such a run.
    async fn of_run<T: Send + 'static>(
        &self,
        run_id: &RunId,
        read: impl FnOnce(&dyn StateStore) -> Result<T, StateError> + Send + 'static,
    ) -> Result<T, Error> {
        let asked = run_id.clone();
        let found = self
            .read(move |store| store.run(&asked)?.map(|_| read(store)).transpose())
            .await?;
        found.ok_or_else(|| Error::not_found(format!("there is no run {run_id}")))
    }

    /// The run of this id, or the only one whose id begins so, with or without `run_`.
    ///
    /// A beginning has at least one character after `run_`; a shorter one is `InvalidOptions`, and
    /// so is one that several ids have. If no id begins so, the error is `NotFound`.
    pub async fn find_run(&self, id: &str) -> Result<RunRecord, Error> {
        let find = |store: &dyn StateStore, id: &str| one_recorded(store, find_run(store, id)?);
        self.found(id, find).await
    }

    /// As [`Engine::find_run`], of the runs in this workspace alone.
    pub async fn find_run_of(
        &self,
        workspace: &WorkspaceOptions,
        id: &str,
    ) -> Result<RunRecord, Error> {
        let opened = self.core.open_known(workspace).await?;
        let id = id.to_owned();
        let reader = &self.core.parts.reader;
        let find = move |store: &dyn StateStore| {
            one_recorded(store, find_run_in(store, &id, opened.workspace.id())?)
        };
        reader.read_with(find).await
    }

    /// What `find` makes of an id, or the beginning of one.
    async fn found<T: Send + 'static>(
        &self,
        id: &str,
        find: fn(&dyn StateStore, &str) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let id = id.to_owned();
        self.core.parts.check_available()?;
        let reader = &self.core.parts.reader;
        reader.read_with(move |store| find(store, &id)).await
    }

    /// The questions that wait for an answer, oldest first.
    pub async fn open_questions(&self) -> Result<Vec<QuestionRecord>, Error> {
        self.settle_ripe(None).await;
        let rows = self.read(|store| store.open_questions()).await?;
        let (at, now) = (self.core.parts.now(), Moment::now()?);
        let waiting = rows.into_iter().filter(|row| row.is_waiting(at, &now));
        Ok(waiting.map(QuestionRecord::from).collect())
    }

    /// Records the default answers of questions past their deadline before they are read. If that
    /// cannot be written now, the records are read as they are.
    pub(super) async fn settle_ripe(&self, run_id: Option<&RunId>) {
        if let Err(e) = answering::settle_ripe(&self.core, run_id).await {
            tracing::warn!(error = %e.chain(), "questions whose time is up are not settled");
        }
    }

    /// The question of this id, or the only one whose id begins so, with or without `que_`: as
    /// [`Engine::find_run`].
    pub async fn find_question(&self, id: &str) -> Result<QuestionRecord, Error> {
        let row = self.found(id, find_question).await?;
        let settled = match answering::settled(&self.core, row.clone()).await {
            Ok(settled) => settled,
            Err(e) => {
                tracing::warn!(question = %row.id, error = %e.chain(), "not settled, and its time is up");
                row
            }
        };
        Ok(QuestionRecord::from(settled))
    }

    /// The artifacts that are not deleted, oldest first; of one session or of all.
    pub async fn artifacts(
        &self,
        session_id: Option<&SessionId>,
    ) -> Result<Vec<ArtifactRecord>, Error> {
        let session_id = session_id.cloned();
        self.read(move |store| store.artifacts(session_id.as_ref()))
            .await
    }

    /// The number and size of a session's artifacts.
    pub async fn session_stats(&self, session_id: &SessionId) -> Result<SessionStats, Error> {
        let session_id = session_id.clone();
        self.read(move |store| store.session_stats(&session_id))
            .await
    }

    /// The bytes of an artifact. The reader blocks; damaged bytes are never returned.
    pub async fn open_artifact(&self, key: &str) -> Result<Box<dyn Read + Send>, Error> {
        let artifact = self.artifact(key).await?;
        self.core.parts.artifacts.check_kept_here(&artifact)?;
        self.core.get(ArtifactKey::new(key)?).await
    }

    pub(super) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&dyn crate::state::StateStore) -> Result<T, crate::state::error::StateError>
        + Send
        + 'static,
    ) -> Result<T, Error> {
        self.core.parts.check_available()?;
        self.core.parts.reader.read(read).await
    }

    pub(super) async fn artifact(&self, key: &str) -> Result<ArtifactRecord, Error> {
        let asked = key.to_owned();
        let found = self.read(move |store| store.artifact(&asked)).await?;
        found.ok_or_else(|| Error::not_found(format!("there is no artifact {key:?}")))
    }
}

/// The records of runs, with what the queue has of them.
fn recorded(store: &dyn StateStore, rows: Vec<RunRow>) -> Result<Vec<RunRecord>, StateError> {
    let mut places: Option<HashMap<RunId, u64>> = None;
    let mut records = Vec::with_capacity(rows.len());
    for row in rows {
        let queued = store.queue_row(&row.id)?;
        let is_waiting = |row: &QueueRow| row.state == QueueState::Waiting;
        if places.is_none() && queued.as_ref().is_some_and(is_waiting) {
            let waiting = store.queue_waiting()?.into_iter().zip(1..);
            places = Some(waiting.map(|((id, _), place)| (id, place)).collect());
        }
        let place = places
            .as_ref()
            .and_then(|places| places.get(&row.id).copied());
        let totals = store.run_totals(&row.id)?.unwrap_or_default();
        let ends_as = match row.status {
            RunStatus::Persisting => store.came_for(&row.id)?,
            _ => None,
        };
        let mut record = RunRecord::of(row, totals);
        record.ends_as = ends_as.and_then(|came_for| match came_for {
            CameFor::End(ends) => Some(ends.status()),
            CameFor::Block(_) => None,
        });
        record.isolation = store.isolation(&record.id)?.map(|row| Box::new(row.into()));
        record.queue = queued.map(|row| row.record(place));
        records.push(record);
    }
    Ok(records)
}

/// The run of a row with everything that is kept of it but its events.
pub(super) fn kept_of_row(store: &dyn StateStore, row: RunRow) -> Result<RunExport, StateError> {
    let mut records = recorded(store, vec![row])?;
    kept_of(store, records.pop().expect("there is one for each row"))
}

/// Everything that is kept of a run but its events.
fn kept_of(store: &dyn StateStore, run: RunRecord) -> Result<RunExport, StateError> {
    let run_id = &run.id;
    let snapshots = match store.run(run_id)?.and_then(|row| row.workspace) {
        Some(workspace) => store.find_snapshots(&SnapshotFilter {
            workspace_id: workspace.workspace_id,
            run_id: Some(run_id.clone()),
            ..SnapshotFilter::default()
        })?,
        None => Vec::new(),
    };
    Ok(RunExport {
        lease: store.lease(run_id)?.map(LeaseRecord::from),
        phases: RunExport::phases_of(store, run_id)?,
        questions: store
            .questions(run_id)?
            .into_iter()
            .map(QuestionRecord::from)
            .collect(),
        effects: store
            .effects(run_id)?
            .into_iter()
            .map(EffectRecord::from)
            .collect(),
        commits: store.commits(run_id)?,
        agents: store.agents(run_id)?,
        tool_calls: tool_calls(store, run_id)?,
        reviews: store.reviews(None, Some(run_id))?,
        state: store.state_values(run_id)?,
        state_transitions: store.state_transitions(run_id)?,
        snapshots: snapshots
            .into_iter()
            .rev()
            .map(|row| row.snapshot)
            .collect(),
        artifacts: store.artifacts_of_run(&run.session_id, run_id)?,
        events: Vec::new(),
        run,
    })
}

fn tool_calls(store: &dyn StateStore, run_id: &RunId) -> Result<Vec<ToolCallRecord>, StateError> {
    let rows = store.tool_calls(run_id)?.into_iter();
    Ok(rows.map(ToolCallRecord::from).collect())
}

fn one_recorded(store: &dyn StateStore, row: RunRow) -> Result<RunRecord, Error> {
    let mut records = recorded(store, vec![row])?;
    Ok(records.pop().expect("there is one for each row"))
}

/// The question of this id, or the only one whose id begins so, with or without `que_`.
fn find_question(store: &dyn StateStore, text: &str) -> Result<QuestionRow, Error> {
    let own = text.strip_prefix("que_").unwrap_or(text);
    let beginning = format!("que_{own}");
    let is_too_short = "que_".starts_with(text) || own.len() < id_beginning::MIN_BEGINNING;
    let found = store.questions_that_begin(&beginning)?;
    let count = u64::try_from(found.len()).unwrap_or(u64::MAX);
    match found.as_slice() {
        _ if is_too_short => Err(id_beginning::too_short(text, "question", count)),
        [] => Err(Error::not_found(format!("there is no question {text:?}"))),
        [question] => Ok(question.clone()),
        several => {
            let named = several.iter().take(3).map(|question| question.id.as_str());
            Err(id_beginning::ambiguous(text, named, count))
        }
    }
}
