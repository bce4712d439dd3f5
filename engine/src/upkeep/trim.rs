//! Trimming the log: removing old events, and old sessions that have ended.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
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
use crate::state::change::{Change, SessionExtent, SessionRemoval};
use crate::state::error::StateError;
use crate::state::registering::{MAX_WAIT, MAX_WAIT_OF_CLEANUP};
use crate::state::{RunFilter, StateStore};
use crate::upkeep::content::{self, NobodyPuts};
use crate::upkeep::trim_rules::removable;

/// How many events go at a time: others write in between, and that takes them some milliseconds
/// more. Their data has up to 64 KiB each.
const BATCH: u64 = 256;

/// How many runs of a session go at a time. Each has rows in several tables.
const RUNS: u64 = 32;

/// How many artifacts of a session go at a time: whoever puts one waits meanwhile.
const ARTIFACTS: usize = 64;

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
    let _alone = core.parts.trimming.lock().await;
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

/// Finishes the removals of sessions that an interrupted trim has begun.
pub(crate) async fn finish(core: &Core) -> Result<(), Error> {
    let _alone = core.parts.trimming.lock().await;
    let mut trim = Trim {
        core,
        kept: &LogRetention::default(),
        now: core.parts.now(),
        outcome: LogTrimOutcome::default(),
    };
    trim.finish(&mut HashSet::new()).await
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

    /// Removes sessions that have ended; answers with those. What an interrupted call has begun is
    /// finished first, whatever is to be kept by now.
    async fn sessions(&mut self) -> Result<HashSet<SessionId>, Error> {
        let mut gone = HashSet::new();
        if !self.kept.dry_run {
            self.finish(&mut gone).await?;
        }
        let before = self.before(self.kept.sessions_older_than);
        let keep = self.kept.max_ended_sessions;
        if before.is_none() && keep.is_none() {
            return Ok(gone);
        }
        let find = move |store: &dyn StateStore| store.removable_sessions(before, keep);
        let due = self.core.parts.reader.read(find).await?;
        let kind = match self.kept.dry_run {
            true => Due::Foretold,
            false => Due::Now { before, keep },
        };
        self.remove(due, kind, &mut gone).await?;
        Ok(gone)
    }

    /// Removes the sessions whose removal has begun.
    async fn finish(&mut self, gone: &mut HashSet<SessionId>) -> Result<(), Error> {
        let begun = self.core.parts.reader.read(|store| store.removals());
        self.remove(begun.await?, Due::Begun, gone).await
    }

    /// Removes these, or counts them, and adds them to those that are gone. One that cannot be
    /// removed keeps none of the others; its error comes last.
    async fn remove(
        &mut self,
        due: Vec<SessionId>,
        kind: Due,
        gone: &mut HashSet<SessionId>,
    ) -> Result<(), Error> {
        let mut failed = None;
        for some in due.chunks(SESSIONS) {
            let nobody_puts = match kind {
                Due::Foretold | Due::Begun => None,
                // What is being put may belong to one of them, and take the place of other content.
                Due::Now { .. } => {
                    match content::keep_out(&self.core.parts, MAX_WAIT_OF_CLEANUP).await? {
                        Some(nobody_puts) => Some(Arc::new(nobody_puts)),
                        None => break,
                    }
                }
            };
            let mut removals = JoinSet::new();
            for id in some.iter().cloned() {
                let (core, nobody_puts) = (self.core.clone(), nobody_puts.clone());
                removals.spawn(async move {
                    let removed = remove_session(&core, &id, kind, nobody_puts).await;
                    (id, removed)
                });
            }
            drop(nobody_puts);
            while let Some(done) = removals.join_next().await {
                match done.map_err(|_| stopped()) {
                    Ok((id, Ok(Some(removed)))) => {
                        self.outcome.events += removed.events;
                        self.outcome.artifacts += removed.artifacts;
                        self.outcome.sessions += 1;
                        gone.insert(id);
                    }
                    Ok((_, Ok(None))) => {}
                    Ok((_, Err(e))) | Err(e) => drop(failed.get_or_insert(e)),
                }
            }
            // What is damaged is of one session; anything else meets the others too.
            if failed
                .as_ref()
                .is_some_and(|e| e.kind() != ErrorKind::Corrupt)
            {
                break;
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Removes events of other sessions than those that are gone.
    async fn events(&mut self, gone: &HashSet<SessionId>) -> Result<(), Error> {
        let old = self.before(self.kept.events_older_than);
        let max_events = self.kept.max_events;
        let but: Vec<SessionId> = gone.iter().cloned().collect();
        let look = move |store: &dyn StateStore| {
            // First: whatever begins later has its events behind this.
            let old = match old {
                Some(time) => store.last_position_before(time)?,
                None => 0,
            };
            let surplus = match max_events {
                Some(max) => store.position_before_last(max, &but)?,
                None => 0,
            };
            let cut = old.max(surplus);
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
                self.forget(Change::ForgetEvents(places), &data).await?;
            }
            self.outcome.events += count;
            self.outcome.artifacts += data.len() as u64;
        }
        Ok(())
    }

    /// Removes events, and the artifacts that have data of them. Where a process dies, or somebody
    /// puts an artifact, that leaves content which the next clean-up of a workspace removes.
    async fn forget(&self, events: Change, data: &[String]) -> Result<(), Error> {
        let is_removed = !data.is_empty() && {
            let changes = vec![events.clone()];
            let removed = remove_content(self.core, changes, data, MAX_WAIT_OF_CLEANUP);
            removed.await?
        };
        if !is_removed {
            self.core.parts.writer.commit(vec![events]).await?;
        }
        Ok(())
    }
}

/// The first position in each session that a run needs which has not ended.
fn needed(store: &dyn StateStore) -> Result<HashMap<SessionId, u64>, StateError> {
    let filter = RunFilter {
        statuses: RunStatus::not_ended(),
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

/// Writes `changes`, and removes the content of those keys that no row names then; `false`: somebody
/// puts an artifact, and nothing was done.
async fn remove_content(
    core: &Core,
    changes: Vec<Change>,
    keys: &[String],
    patience: Duration,
) -> Result<bool, Error> {
    let keys = keys.iter().map(|key| ArtifactKey::new(key.clone()));
    let keys = keys.collect::<Result<Vec<_>, _>>()?;
    let removed = content::remove_aside(&core.parts, changes, keys, patience).await?;
    Ok(removed.is_some())
}

/// What went with a session.
struct Removed {
    events: u64,
    artifacts: u64,
}

/// What is to be done with a session.
#[derive(Clone, Copy)]
enum Due {
    /// It is counted.
    Foretold,
    /// It is removed, if it is still one of those that ended before this time, or before the last
    /// that are kept.
    Now {
        before: Option<Timestamp>,
        keep: Option<u64>,
    },
    /// Its removal has begun.
    Begun,
}

/// Removes a session that has ended, or only counts; `None`: it stays as it is, because it is in use
/// again or somebody puts an artifact, or because its artifacts are in a store that this engine does
/// not have; or another process has removed it.
async fn remove_session(
    core: &Core,
    id: &SessionId,
    due: Due,
    nobody_puts: Option<Arc<NobodyPuts>>,
) -> Result<Option<Removed>, Error> {
    match removed_session(core, id, due, nobody_puts).await {
        Err(e) if matches!(e.kind(), ErrorKind::Conflict | ErrorKind::NotFound) => Ok(None),
        removed => removed,
    }
}

async fn removed_session(
    core: &Core,
    id: &SessionId,
    due: Due,
    nobody_puts: Option<Arc<NobodyPuts>>,
) -> Result<Option<Removed>, Error> {
    let Some((seen, artifacts)) = look(core, id).await? else {
        return Ok(None);
    };
    if let Due::Now { before, keep } = due {
        begin(core, id, (before, keep), seen).await?;
    }
    // Its content is removed by who keeps others out anew.
    drop(nobody_puts);
    let is_dry = matches!(due, Due::Foretold);
    if !is_dry {
        remove_artifacts(core, id).await?;
    }
    let events = remove_rest(core, id, is_dry).await?;
    Ok(Some(Removed { events, artifacts }))
}

/// What there is of a session, and how many artifacts; `None`: another store has or had them, and
/// may still have their content.
async fn look(core: &Core, id: &SessionId) -> Result<Option<(SessionExtent, u64)>, Error> {
    let (parts, asked) = (&core.parts, id.clone());
    let look = move |store: &dyn StateStore| {
        // First: what is written later makes it another one.
        let extent = store.session_extent(&asked)?;
        let live = store.artifacts(Some(&asked))?.len() as u64;
        Ok((extent, live, store.artifact_stores(&asked)?))
    };
    let (extent, live, stores) = parts.reader.read(look).await?;
    if stores.iter().any(|store| store != parts.artifacts.kind()) {
        tracing::warn!(session = %id, "it is kept, because its artifacts are in another store");
        return Ok(None);
    }
    Ok(Some((extent, live)))
}

/// Begins to remove a session as it was seen, while nobody puts an artifact; from then on all of it
/// goes, also if a process dies.
async fn begin(
    core: &Core,
    id: &SessionId,
    (ended_before, keep): (Option<Timestamp>, Option<u64>),
    seen: SessionExtent,
) -> Result<(), Error> {
    if seen.artifacts > 0 {
        // Of a store that cannot be opened nothing is forgotten.
        let artifacts = core.parts.artifacts.clone();
        let open = move || artifacts.store().map(drop);
        core.parts.blocking.run(open).await??;
    }
    let removal = SessionRemoval {
        id: id.clone(),
        ended_before,
        keep,
        seen,
        at: core.parts.now(),
    };
    let change = Change::BeginRemoval(Box::new(removal));
    core.parts.writer.commit(vec![change]).await?;
    Ok(())
}

/// Removes the content of a session that is being removed. Its rows go with the session, so that the
/// content is known for as long as it may be there.
async fn remove_artifacts(core: &Core, id: &SessionId) -> Result<(), Error> {
    let asked = id.clone();
    let find = move |store: &dyn StateStore| store.artifact_keys(&asked);
    let keys = core.parts.reader.read(find).await?;
    for some in keys.chunks(ARTIFACTS) {
        let fence = vec![Change::IfBeingRemoved(id.clone())];
        if !remove_content(core, fence, some, MAX_WAIT).await? {
            return Err(content::busy());
        }
    }
    Ok(())
}

/// Removes what else there is of a session, or counts it; says how many events that were.
async fn remove_rest(core: &Core, id: &SessionId, is_dry: bool) -> Result<u64, Error> {
    let (mut after, mut count) = (0, 0);
    loop {
        let (events, runs) = rest_of(core, id, after).await?;
        count += events.len() as u64;
        after = events.last().map_or(after, |event| event.sequence);
        let has_more_events = events.len() as u64 == BATCH;
        let is_last = !has_more_events && (is_dry || (runs.len() as u64) < RUNS);
        if !is_dry {
            let places = events.iter().map(EventPlace::from).collect();
            let mut changes = vec![
                Change::IfBeingRemoved(id.clone()),
                Change::ForgetEvents(places),
                Change::ForgetRuns(runs),
            ];
            changes.extend(is_last.then(|| Change::ForgetSession(id.clone())));
            core.parts.writer.commit(changes).await?;
        }
        if is_last {
            return Ok(count);
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::engine::Engine;
    use crate::engine::options::EngineOptions;
    use crate::events::draft::EventDraft;
    use crate::events::event::EventType;
    use crate::step::artifact;

    fn note(text: &str) -> EventDraft {
        EventDraft::new(EventType::MESSAGE_SENT, json!({ "text": text }))
    }

    // It lost what came before, and its rows stayed.
    #[tokio::test]
    async fn a_session_that_is_written_to_while_it_is_trimmed_is_kept_whole_or_removed_whole() {
        let state = tempfile::tempdir().unwrap();
        let options = || EngineOptions::default().state_dir(state.path());
        let engine = Engine::start(options()).await.unwrap();
        let session = engine.session("s").await.unwrap();
        let id = session.id().clone();
        session.complete("").await.unwrap();
        let begin = async |engine: &Engine, seen| {
            let removal = SessionRemoval {
                id: id.clone(),
                ended_before: None,
                keep: Some(0),
                seen,
                at: engine.core.parts.now(),
            };
            let change = Change::BeginRemoval(Box::new(removal));
            engine.core.parts.writer.commit(vec![change]).await
        };

        // Written to after the look: nothing of it goes.
        let (seen, _) = look(&engine.core, &id).await.unwrap().unwrap();
        session.emit(note("late")).await.unwrap();
        let refused = begin(&engine, seen).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused}");
        let content = Box::new(&b"late"[..]);
        session
            .put_artifact("late", "text/plain", content)
            .await
            .unwrap();
        let (seen, artifacts) = look(&engine.core, &id).await.unwrap().unwrap();
        assert_eq!((seen.artifacts, artifacts), (1, 1));
        let before = engine
            .events(EventQuery::session(id.clone()))
            .await
            .unwrap();
        assert_eq!(before.last().unwrap().data["text"], "late");

        // From its beginning on nothing is written, and a process that dies leaves it to the next.
        begin(&engine, seen).await.unwrap();
        let late = session.emit(note("too late")).await.unwrap_err();
        assert_eq!(late.kind(), ErrorKind::Conflict, "{late}");
        assert!(
            late.to_string().contains("session s is being removed"),
            "{late}"
        );
        // Keys are of all sessions: what is refused replaces nothing.
        let other = engine.session("other").await.unwrap();
        let put = other.put_artifact("shared", "text/plain", Box::new(&b"kept"[..]));
        put.await.unwrap();
        let content = Box::new(&b"too late"[..]);
        let late = session.put_artifact("shared", "text/plain", content).await;
        assert_eq!(late.unwrap_err().kind(), ErrorKind::Conflict);
        let mut kept = String::new();
        let mut content = engine.open_artifact("shared").await.unwrap();
        std::io::Read::read_to_string(&mut content, &mut kept).unwrap();
        assert_eq!(kept, "kept");
        engine.remove_artifact("shared").await.unwrap();
        engine.shutdown().await.unwrap();
        let engine = Engine::start(options()).await.unwrap();
        let is_gone = async || {
            while engine.events(EventQuery::session(id.clone())).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let is_gone = tokio::time::timeout(Duration::from_secs(30), is_gone()).await;
        is_gone.expect("the next engine finishes it");
        let kept = LogRetention::default();
        assert_eq!(engine.trim_log(kept).await.unwrap().sessions, 0);
        let gone = engine.events(EventQuery::session(id.clone())).await;
        assert_eq!(gone.unwrap_err().kind(), ErrorKind::NotFound);
        let store = engine.core.parts.artifacts.store().unwrap();
        assert!(store.list().unwrap().artifacts.is_empty());

        // One of its name is another one, which no removal of the first touches.
        let anew = engine.session("s").await.unwrap();
        anew.emit(note("anew")).await.unwrap();
        let refused = remove_rest(&engine.core, &id, false).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Conflict);
        assert!(
            !engine
                .events(EventQuery::session(id))
                .await
                .unwrap()
                .is_empty()
        );
    }

    // The put waited for the thread that the removal held, and that for the put.
    #[tokio::test]
    async fn an_artifact_is_put_while_removals_wait_for_that() {
        let state = tempfile::tempdir().unwrap();
        let options = EngineOptions::default().state_dir(state.path());
        let engine = Engine::start(options.max_blocking(1)).await.unwrap();
        let session = engine.session("s").await.unwrap();
        let bytes = || Box::new(&b"content"[..]);
        let put = session.put_artifact("old", "text/plain", bytes());
        put.await.unwrap();
        let core = engine.core.clone();
        let held = artifact::registering(&core, session.id()).await.unwrap();
        // A clean-up or a purge has the only thread of long work.
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        let (parts, blocking) = (core.parts.clone(), core.parts.blocking.clone());
        let cleaning = tokio::spawn(async move {
            let work = move || {
                tell.send(()).unwrap();
                content::remove(&parts, Vec::new(), Vec::new(), MAX_WAIT)
            };
            blocking.run_long(work).await
        });
        told.recv().await.unwrap();
        let remover = engine.clone();
        let removal = tokio::spawn(async move { remover.remove_artifact("old").await });
        tokio::task::yield_now().await;
        let put = core.put(ArtifactKey::new("new").unwrap(), bytes());
        let put = tokio::time::timeout(Duration::from_secs(20), put).await;
        put.expect("it waits for no clean-up").unwrap();
        drop(held);
        assert!(cleaning.await.unwrap().unwrap().unwrap().is_some());
        removal.await.unwrap().unwrap();
    }
}
