//! Trimming the log: removing old events, and old sessions that have ended.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

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
use crate::records::session_need::SessionNeed;
use crate::state::change::{Change, SessionExtent, SessionRemoval};
use crate::state::error::StateError;
use crate::state::registering::{MAX_WAIT, MAX_WAIT_OF_CLEANUP};
use crate::state::{RunFilter, StateStore};
use crate::upkeep::content::{self, NobodyPuts};
use crate::upkeep::retention;
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

/// The file in the state directory that says when the log was trimmed by itself last.
const LOOKED_FILE: &str = "log_retention";

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
    /// The size of these artifacts. What else is removed makes room in the database.
    pub freed_bytes: u64,
    /// How many sessions are due and stay, by what needs them. In JSON only if there are any.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub sessions_kept: BTreeMap<SessionNeed, u64>,
    /// The first position from which on no event is missing: where a reader of all sessions can go
    /// on that was told that its own is forgotten.
    pub oldest: u64,
}

impl LogTrimOutcome {
    /// Whether something is gone.
    pub fn has_removed(&self) -> bool {
        !self.dry_run && (self.events, self.sessions) != (0, 0)
    }
}

/// A trim of the log stopped on its way: what it had removed by then is gone. A session that is
/// gone in part counts as none; the next trim removes the rest.
///
/// It is what an [`Error`](crate::Error) of [`Engine::trim_log`](crate::Engine::trim_log)
/// [wraps](crate::Error::wrapped) where something was removed.
#[derive(Debug)]
#[non_exhaustive]
pub struct LogTrimStopped {
    /// What was removed.
    pub done: LogTrimOutcome,
    reason: Box<dyn std::error::Error + Send + Sync>,
}

impl std::fmt::Display for LogTrimStopped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let LogTrimOutcome {
            events,
            sessions,
            artifacts,
            ..
        } = &self.done;
        write!(
            f,
            "the log was trimmed in part (gone: events {events}, sessions {sessions}, artifacts \
             {artifacts})"
        )
    }
}

impl std::error::Error for LogTrimStopped {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.reason)
    }
}

/// Trims the log, if that was not done within a day, for as long as a caller can wait that has
/// asked for something else.
pub(crate) async fn apply(
    core: &Core,
    kept: &LogRetention,
) -> Result<Option<LogTrimOutcome>, Error> {
    let (path, now) = (
        core.parts.state_dir.path().join(LOOKED_FILE),
        core.parts.now(),
    );
    let is_due = move || {
        let is_due = !retention::has_looked_today(&path, now);
        if is_due {
            retention::note_look(&path, now);
        }
        is_due
    };
    match core.parts.blocking.run(is_due).await? {
        true => trim(core, kept, Some(retention::MAX_TIME)).await.map(Some),
        false => Ok(None),
    }
}

/// Trims the log. After `max_time` it stops before what it would do next.
pub(crate) async fn trim(
    core: &Core,
    kept: &LogRetention,
    max_time: Option<Duration>,
) -> Result<LogTrimOutcome, Error> {
    let _alone = core.parts.trimming.lock().await;
    let mut trim = Trim {
        core,
        kept,
        now: core.parts.now(),
        until: max_time.map(|time| Instant::now() + time),
        outcome: LogTrimOutcome::default(),
    };
    trim.outcome.dry_run = kept.dry_run;
    let trimmed = trim.sessions_and_events().await;
    let floor = core.parts.reader.read(|store| store.event_floor(None));
    let floor = floor.await;
    let mut done = trim.outcome;
    done.oldest = floor.as_ref().map_or(0, |floor| floor.position + 1);
    match trimmed.and(floor) {
        Ok(_) => Ok(done),
        Err(e) if done.has_removed() => Err(e.map_source(|reason| LogTrimStopped { done, reason })),
        Err(e) => Err(e),
    }
}

/// Finishes the removals of sessions that an interrupted trim has begun.
pub(crate) async fn finish(core: &Core) -> Result<(), Error> {
    let _alone = core.parts.trimming.lock().await;
    let mut trim = Trim {
        core,
        kept: &LogRetention::default(),
        now: core.parts.now(),
        until: None,
        outcome: LogTrimOutcome::default(),
    };
    trim.finish(&mut HashSet::new()).await
}

/// A trim under way.
struct Trim<'a> {
    core: &'a Core,
    kept: &'a LogRetention,
    now: Timestamp,
    /// When it has taken long enough.
    until: Option<Instant>,
    outcome: LogTrimOutcome,
}

impl Trim<'_> {
    fn is_up(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }

    /// The time before which something is older than `age`.
    fn before(&self, age: Option<Duration>) -> Option<Timestamp> {
        age.map(|age| self.now.checked_sub(age).unwrap_or(Timestamp::MIN))
    }

    async fn sessions_and_events(&mut self) -> Result<(), Error> {
        let gone = self.sessions().await?;
        self.events(&gone).await
    }

    /// Counts sessions that are due and stay.
    fn stay(&mut self, need: SessionNeed, sessions: u64) {
        if sessions > 0 {
            *self.outcome.sessions_kept.entry(need).or_default() += sessions;
        }
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
        let find = move |store: &dyn StateStore| store.due_sessions(before, keep);
        let mut due = Vec::new();
        for session in self.core.parts.reader.read(find).await? {
            match session.needed_by {
                Some(need) => self.stay(need, 1),
                None => due.push(session.id),
            }
        }
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
        let mut left = due.len();
        for some in due.chunks(SESSIONS) {
            if self.is_up() {
                break;
            }
            let nobody_puts = match kind {
                Due::Foretold | Due::Begun => None,
                // What is being put may belong to one of them, and take the place of other content.
                Due::Now { .. } => {
                    match content::keep_out(&self.core.parts, MAX_WAIT_OF_CLEANUP).await? {
                        Some(nobody_puts) => Some(Arc::new(nobody_puts)),
                        None => {
                            self.stay(SessionNeed::InUse, left as u64);
                            break;
                        }
                    }
                }
            };
            left -= some.len();
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
                    Ok((id, Ok(Removal::Done(removed)))) => {
                        self.outcome.events += removed.events;
                        self.outcome.artifacts += removed.artifacts;
                        self.outcome.freed_bytes += removed.bytes;
                        self.outcome.sessions += 1;
                        gone.insert(id);
                    }
                    Ok((_, Ok(Removal::ByOthers))) => {}
                    Ok((_, Ok(Removal::Stays(need)))) => self.stay(need, 1),
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
        while at < cut && !self.is_up() {
            let page = EventQuery::all().after_position(at).limit(BATCH);
            let find = move |store: &dyn StateStore| store.events(&page);
            let page: Vec<Event> = self.core.parts.reader.read(find).await?;
            let Some(last) = page.last() else { break };
            at = last.position;
            let mut places = removable(&page, cut, &needed);
            places.retain(|place| !gone.contains(&place.session_id));
            let (count, data) = (places.len() as u64, data_of(&places));
            let bytes = size_of(self.core, &data).await?;
            if count > 0 && !self.kept.dry_run {
                self.forget(Change::ForgetEvents(places), &data).await?;
            }
            self.outcome.events += count;
            self.outcome.artifacts += data.len() as u64;
            self.outcome.freed_bytes += bytes;
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

/// The size of these artifacts.
async fn size_of(core: &Core, keys: &[String]) -> Result<u64, Error> {
    if keys.is_empty() {
        return Ok(0);
    }
    let keys = keys.to_vec();
    let look = move |store: &dyn StateStore| {
        let mut bytes = 0;
        for key in &keys {
            bytes += store.artifact(key)?.map_or(0, |found| found.byte_size);
        }
        Ok(bytes)
    };
    core.parts.reader.read(look).await
}

/// Writes `changes`, and removes the content of those keys that no row names then; `false`:
/// somebody puts an artifact, and nothing was done.
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
    /// Of the artifacts.
    bytes: u64,
}

/// What became of a session that is due.
enum Removal {
    Done(Removed),
    /// It is as it was.
    Stays(SessionNeed),
    /// Another process has removed it.
    ByOthers,
}

/// What there is of a session.
struct Seen {
    extent: SessionExtent,
    artifacts: u64,
    /// Of the artifacts.
    bytes: u64,
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

/// Removes a session that has ended, or only counts. It stays as it is where it is in use again, or
/// its artifacts are in a store that this engine does not have.
async fn remove_session(
    core: &Core,
    id: &SessionId,
    due: Due,
    nobody_puts: Option<Arc<NobodyPuts>>,
) -> Result<Removal, Error> {
    match removed_session(core, id, due, nobody_puts).await {
        Err(e) if e.kind() == ErrorKind::Conflict => Ok(Removal::Stays(SessionNeed::InUse)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(Removal::ByOthers),
        removed => Ok(match removed? {
            None => Removal::Stays(SessionNeed::OtherStore),
            Some(removed) => Removal::Done(removed),
        }),
    }
}

async fn removed_session(
    core: &Core,
    id: &SessionId,
    due: Due,
    nobody_puts: Option<Arc<NobodyPuts>>,
) -> Result<Option<Removed>, Error> {
    let Some(seen) = look(core, id).await? else {
        return Ok(None);
    };
    if let Due::Now { before, keep } = due {
        begin(core, id, (before, keep), seen.extent).await?;
    }
    // Its content is removed by who keeps others out anew.
    drop(nobody_puts);
    let is_dry = matches!(due, Due::Foretold);
    if !is_dry {
        remove_artifacts(core, id).await?;
    }
    Ok(Some(Removed {
        events: remove_rest(core, id, is_dry).await?,
        artifacts: seen.artifacts,
        bytes: seen.bytes,
    }))
}

/// What there is of a session; `None`: another store has or had artifacts of it, and may still have
/// their content.
async fn look(core: &Core, id: &SessionId) -> Result<Option<Seen>, Error> {
    let (parts, asked) = (&core.parts, id.clone());
    let look = move |store: &dyn StateStore| {
        // First: what is written later makes it another one.
        let extent = store.session_extent(&asked)?;
        let live = store.artifacts(Some(&asked))?;
        let seen = Seen {
            extent,
            artifacts: live.len() as u64,
            bytes: live.iter().map(|artifact| artifact.byte_size).sum(),
        };
        Ok((seen, store.artifact_stores(&asked)?))
    };
    let (seen, stores) = parts.reader.read(look).await?;
    if stores.iter().any(|store| store != parts.artifacts.kind()) {
        tracing::warn!(session = %id, "it is kept, because its artifacts are in another store");
        return Ok(None);
    }
    Ok(Some(seen))
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

/// Removes the content of a session that is being removed. Its rows go with the session, so that
/// the content is known for as long as it may be there.
async fn remove_artifacts(core: &Core, id: &SessionId) -> Result<(), Error> {
    let asked = id.clone();
    let find = move |store: &dyn StateStore| store.artifact_keys(&asked);
    let keys = core.parts.reader.read(find).await?;
    for some in keys.chunks(ARTIFACTS) {
        let fence = vec![Change::IfBeingRemoved(id.clone())];
        if !remove_content(core, fence, some, MAX_WAIT).await? {
            let message = "artifacts are being stored; the next clean-up goes on";
            return Err(Error::new(ErrorKind::Busy, message));
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
        let seen = look(&engine.core, &id).await.unwrap().unwrap().extent;
        session.emit(note("late")).await.unwrap();
        let refused = begin(&engine, seen).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused}");
        let content = Box::new(&b"late"[..]);
        session
            .put_artifact("late", "text/plain", content)
            .await
            .unwrap();
        let seen = look(&engine.core, &id).await.unwrap().unwrap();
        assert_eq!(
            (seen.extent.artifacts, seen.artifacts, seen.bytes),
            (1, 1, 4)
        );
        let seen = seen.extent;
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
