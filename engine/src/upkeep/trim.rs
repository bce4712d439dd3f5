//! Trimming the log: removing old events, and old sessions that have ended.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use stillframe_artifact_store::ArtifactKey;
use stillframe_backends::ErrorKind;
use tokio::task::JoinSet;

use crate::actors::core::Core;
use crate::error::{Error, stopped};
use crate::events::event::Event;
use crate::events::floor::EventPlace;
use crate::events::query::EventQuery;
use crate::id::{RunId, SessionId};
use crate::options::LogRetention;
use crate::records::run::RunStatus;
use crate::state::change::Change;
use crate::state::error::StateError;
use crate::state::{RunFilter, StateStore};
use crate::upkeep::trim_rules::{cut, removable};

/// How many events go at a time: others write in between, and that takes them some milliseconds
/// more. Their data has up to 64 KiB each.
const BATCH: u64 = 256;

/// How many runs of a session go at a time. Each has rows in several tables.
const RUNS: u64 = 32;

/// How many sessions are removed beside one another: what comes together is synced together.
const SESSIONS: usize = 32;

/// What a trim of the log removed, or would remove.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct LogTrimOutcome {
    /// Whether nothing was done, and this is what would have been done.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// How many events were removed, those of removed sessions included.
    pub events: u64,
    /// How many sessions were removed.
    pub sessions: u64,
    /// How many artifacts were removed: those of removed sessions, and data of removed events.
    pub artifacts: u64,
    /// The first position from which on no event is missing: where a reader of all sessions can go
    /// on that was told that its own is forgotten.
    pub oldest: u64,
}

/// Trims the log.
pub(crate) async fn trim(core: &Core, kept: &LogRetention) -> Result<LogTrimOutcome, Error> {
    let mut trim = Trim {
        core,
        kept,
        now: core.parts.now(),
        outcome: LogTrimOutcome::default(),
    };
    trim.outcome.dry_run = kept.dry_run;
    let gone = trim.sessions().await?;
    trim.events(&gone).await?;
    let floor = core
        .parts
        .reader
        .read(|store| store.event_floor(None))
        .await?;
    trim.outcome.oldest = floor.position + 1;
    Ok(trim.outcome)
}

/// A trim under way.
struct Trim<'a> {
    core: &'a Core,
    kept: &'a LogRetention,
    now: Timestamp,
    outcome: LogTrimOutcome,
}

impl Trim<'_> {
    /// The time before which something is older than `age`.
    fn before(&self, age: Option<Duration>) -> Option<Timestamp> {
        age.map(|age| self.now.checked_sub(age).unwrap_or(Timestamp::MIN))
    }

    /// Removes sessions that have ended; answers with those.
    async fn sessions(&mut self) -> Result<HashSet<SessionId>, Error> {
        let (before, keep) = (
            self.before(self.kept.sessions_older_than),
            self.kept.max_ended_sessions,
        );
        if before.is_none() && keep.is_none() {
            return Ok(HashSet::new());
        }
        let find = move |store: &dyn StateStore| store.removable_sessions(before, keep);
        let due = self.core.parts.reader.read(find).await?;
        let mut gone = HashSet::new();
        let (mut left, mut removals) = (due.into_iter(), JoinSet::new());
        loop {
            while removals.len() < SESSIONS
                && let Some(id) = left.next()
            {
                let (core, is_dry) = (self.core.clone(), self.kept.dry_run);
                removals.spawn(async move {
                    let removed = remove_session(&core, &id, is_dry).await;
                    (id, removed)
                });
            }
            let Some(removed) = removals.join_next().await else {
                return Ok(gone);
            };
            let (id, removed) = removed.map_err(|_| stopped())?;
            if let Some(removed) = removed? {
                self.outcome.events += removed.events;
                self.outcome.artifacts += removed.artifacts;
                self.outcome.sessions += 1;
                gone.insert(id);
            }
        }
    }

    /// Removes events of other sessions than those that are gone.
    async fn events(&mut self, gone: &HashSet<SessionId>) -> Result<(), Error> {
        let old = self.before(self.kept.events_older_than);
        let max_events = self.kept.max_events;
        let look = move |store: &dyn StateStore| {
            // First: whatever begins later has its events behind this.
            let last = store.last_position()?;
            let old = match old {
                Some(time) => store.last_position_before(time)?,
                None => 0,
            };
            let cut = cut(last, old, max_events);
            Ok((
                cut,
                if cut > 0 {
                    needed(store)?
                } else {
                    HashMap::new()
                },
            ))
        };
        let (cut, needed) = self.core.parts.reader.read(look).await?;
        let mut at = 0;
        while at < cut {
            let page = EventQuery::all().after_position(at).limit(BATCH);
            let find = move |store: &dyn StateStore| store.events(&page);
            let page: Vec<Event> = self.core.parts.reader.read(find).await?;
            let Some(last) = page.last() else { break };
            at = last.position;
            let mut places = removable(&page, cut, &needed);
            places.retain(|place| !gone.contains(&place.session_id));
            let (count, data) = (places.len() as u64, data_of(&places));
            if count > 0 && !self.kept.dry_run {
                let change = Change::ForgetEvents(places);
                self.core.parts.writer.commit(vec![change]).await?;
                // A process that dies here leaves what the next clean-up of a workspace removes.
                delete(self.core, &data).await?;
            }
            self.outcome.events += count;
            self.outcome.artifacts += data.len() as u64;
        }
        Ok(())
    }
}

/// The first position in each session that a run needs which has not ended.
fn needed(store: &dyn StateStore) -> Result<HashMap<SessionId, u64>, StateError> {
    let filter = RunFilter {
        statuses: vec![
            RunStatus::Pending,
            RunStatus::Running,
            RunStatus::Asking,
            RunStatus::WaitingForInput,
            RunStatus::Interrupted,
        ],
        ..RunFilter::default()
    };
    let mut needed: HashMap<SessionId, u64> = HashMap::new();
    for run in store.runs(&filter)? {
        let of_run = EventQuery::session(run.session_id.clone()).run(run.id);
        if let Some(first) = store.events(&of_run.limit(1))?.first() {
            let known = needed.entry(run.session_id).or_insert(first.position);
            *known = first.position.min(*known);
        }
    }
    Ok(needed)
}

/// The keys of the artifacts that have data of these events.
fn data_of(places: &[EventPlace]) -> Vec<String> {
    let keys = places.iter().filter_map(|place| place.data_ref.clone());
    keys.collect()
}

/// Removes content that is on no record.
async fn delete(core: &Core, keys: &[String]) -> Result<(), Error> {
    for key in keys {
        core.delete(ArtifactKey::new(key.clone())?).await?;
    }
    Ok(())
}

/// What went with a session.
#[derive(Default)]
struct Removed {
    events: u64,
    artifacts: u64,
}

/// Removes a session that has ended, or only counts; `None`: it stays, because it is in use again,
/// or because its artifacts are in a store that this engine does not have.
async fn remove_session(
    core: &Core,
    id: &SessionId,
    is_dry: bool,
) -> Result<Option<Removed>, Error> {
    match removed_session(core, id, is_dry).await {
        Err(e) if matches!(e.kind(), ErrorKind::Conflict | ErrorKind::NotFound) => Ok(None),
        removed => removed,
    }
}

async fn removed_session(
    core: &Core,
    id: &SessionId,
    is_dry: bool,
) -> Result<Option<Removed>, Error> {
    let parts = &core.parts;
    let asked = id.clone();
    let look = move |store: &dyn StateStore| {
        Ok((store.artifacts(Some(&asked))?, store.artifact_keys(&asked)?))
    };
    let (live, keys) = parts.reader.read(look).await?;
    if live
        .iter()
        .any(|a| parts.artifacts.check_kept_here(a).is_err())
    {
        tracing::warn!(session = %id, "it is kept, because its artifacts are in another store");
        return Ok(None);
    }
    let mut removed = Removed {
        artifacts: live.len() as u64,
        ..Removed::default()
    };
    if !is_dry && !keys.is_empty() {
        // First what says that they are there. The rows go with the session, so that the content is
        // known for as long as it may be there.
        let at = parts.now();
        let delete_row =
            |artifact: crate::records::artifact::ArtifactRecord| Change::DeleteArtifact {
                key: artifact.key,
                at,
            };
        parts
            .writer
            .commit(live.into_iter().map(delete_row).collect())
            .await?;
        delete(core, &keys).await?;
    }
    let mut after = 0;
    loop {
        let (events, runs) = rest_of(core, id, after).await?;
        removed.events += events.len() as u64;
        after = events.last().map_or(after, |event| event.sequence);
        let has_more_events = events.len() as u64 == BATCH;
        let is_last = !has_more_events && (is_dry || (runs.len() as u64) < RUNS);
        if !is_dry {
            let places = events.iter().map(EventPlace::from).collect();
            let mut changes = vec![Change::ForgetEvents(places), Change::ForgetRuns(runs)];
            changes.extend(is_last.then(|| Change::ForgetSession(id.clone())));
            parts.writer.commit(changes).await?;
        }
        if is_last {
            return Ok(Some(removed));
        }
    }
}

/// Some events of a session after this number, and some of its runs.
async fn rest_of(
    core: &Core,
    id: &SessionId,
    after: u64,
) -> Result<(Vec<Event>, Vec<RunId>), Error> {
    let id = id.clone();
    let read = move |store: &dyn StateStore| {
        let events = EventQuery::session(id.clone()).after(after).limit(BATCH);
        let runs = RunFilter {
            session_id: Some(id),
            limit: Some(RUNS),
            ..RunFilter::default()
        };
        let runs = store.runs(&runs)?.into_iter().map(|run| run.id);
        Ok((store.events(&events)?, runs.collect()))
    };
    core.parts.reader.read(read).await
}
