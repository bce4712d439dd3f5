//! Beginning queued runs while the engine runs: one after the other as there is room for them.

use std::collections::{HashMap, HashSet};
use std::future::pending;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::actors::core::{Core, Shared};
use crate::error::Error;
use crate::id::RunId;
use crate::records::queue::{Occupied, QueueRow, Room, TakenRow, Turns, choose};
use crate::run::execute::{Begun, begin};
use crate::run::settle::settle_if_left;
use crate::step::adapters::Adapters;
use crate::telemetry;

/// How long after a look that the log has caused the next one is, however much is written.
const LOG_EVERY: Duration = Duration::from_millis(200);

/// How often runs of engines that may have died are looked at, while there are any.
const LOOK_AFTER_EVERY: Duration = Duration::from_secs(1);

/// How long a run waits that could not be begun, at first; each time twice as long, up to
/// [`MAX_REST`].
const MIN_REST: Duration = Duration::from_millis(100);
const MAX_REST: Duration = Duration::from_secs(2);

/// The same for a run whose beginning failed, by a full disk for example: each try says so.
const MIN_FAULT_REST: Duration = Duration::from_secs(1);
const MAX_FAULT_REST: Duration = Duration::from_secs(300);

/// Begins queued runs for as long as the engine is there.
pub(crate) async fn dispatch(engine: Weak<Shared>, adapters: Adapters, max_running: usize) {
    let Some(shared) = engine.upgrade() else {
        return;
    };
    let bell = Arc::clone(&shared.parts.queue_bell);
    let stopped = shared.parts.stopped.clone();
    let mut log = shared.parts.writer.notifier().subscribe(None);
    drop(shared);
    let (ended, mut endings) = mpsc::unbounded_channel();
    let mut dispatcher = Dispatcher {
        adapters,
        permits: Arc::new(Semaphore::new(max_running.min(Semaphore::MAX_PERMITS))),
        begun: HashMap::new(),
        rests: HashMap::new(),
        damaged: HashSet::new(),
        turns: Turns::default(),
        looked_after: None,
        looking: None,
        ended,
    };
    let mut next_of_log = Instant::now();
    loop {
        // Before reading, so that what is written meanwhile rings.
        log.mark_unchanged();
        let Some(core) = engine.upgrade().map(Core::from) else {
            return;
        };
        if core.is_closing() {
            return;
        }
        let pause = match dispatcher.look(&core).await {
            Ok(pause) => pause,
            Err(e) => {
                tracing::warn!(error = %e.chain(), "the queue is not looked at");
                Some(MAX_REST)
            }
        };
        drop(core);
        let pause = async {
            match pause {
                Some(pause) => tokio::time::sleep(pause).await,
                None => pending().await,
            }
        };
        tokio::select! {
            () = stopped.cancelled() => return,
            Some((run_id, begun)) = endings.recv() => {
                dispatcher.ended(run_id, begun);
                while let Ok((run_id, begun)) = endings.try_recv() {
                    dispatcher.ended(run_id, begun);
                }
            }
            () = bell.notified() => {}
            () = changed(&mut log, next_of_log) => {
                next_of_log = Instant::now() + LOG_EVERY;
                // What was in the way may be gone.
                dispatcher.try_again_by(next_of_log);
            }
            () = pause => {}
        }
    }
}

/// Comes back once something is written, and not before `not_before`.
async fn changed(log: &mut watch::Receiver<()>, not_before: Instant) {
    tokio::time::sleep_until(not_before).await;
    if log.changed().await.is_err() {
        // The engine stops, which is heard elsewhere.
        pending().await
    }
}

struct Dispatcher {
    adapters: Adapters,
    permits: Arc<Semaphore>,
    /// The runs that this engine has begun, or tries to begin.
    begun: HashMap<RunId, QueueRow>,
    /// The runs that could not be begun when that was tried.
    rests: HashMap<RunId, Rest>,
    /// The damaged rows that were warned of.
    damaged: HashSet<String>,
    turns: Turns,
    looked_after: Option<Instant>,
    /// Looks after them at this moment.
    looking: Option<JoinHandle<()>>,
    ended: mpsc::UnboundedSender<(RunId, Begun)>,
}

#[derive(Clone, Copy, Debug)]
struct Rest {
    until: Instant,
    pause: Duration,
    /// Its beginning failed; what others do changes nothing about that.
    is_fault: bool,
}

impl Rest {
    /// The rest of a run that could not be begun, after an `earlier` one.
    fn after(earlier: Option<&Self>, now: Instant, is_fault: bool) -> Self {
        let (min, max) = match is_fault {
            true => (MIN_FAULT_REST, MAX_FAULT_REST),
            false => (MIN_REST, MAX_REST),
        };
        let earlier = earlier.filter(|rest| rest.is_fault == is_fault);
        let pause = earlier.map_or(min, |rest| (rest.pause * 2).min(max));
        Self {
            until: now + pause,
            pause,
            is_fault,
        }
    }
}

/// How long until the next rest is over. One that is over and was not followed by a beginning waits
/// for room, and that there is some is heard of.
fn next_end<'a>(rests: impl Iterator<Item = &'a Rest>, now: Instant) -> Option<Duration> {
    rests
        .filter(|rest| rest.until > now)
        .map(|rest| rest.until - now)
        .min()
}

impl Dispatcher {
    /// Begins what can be begun; answers with when to look again though nothing is heard.
    async fn look(&mut self, core: &Core) -> Result<Option<Duration>, Error> {
        let read = core.parts.reader.read(|store| {
            let taken = store.queue_taken()?;
            Ok((store.queue_heads()?, taken, store.queue_length()?))
        });
        let (heads, taken, length) = read.await?;
        telemetry::queued(length);
        let damaged = heads.damaged.into_iter().chain(taken.damaged);
        self.warn_of(damaged.collect());
        let (mut heads, taken) = (heads.rows, taken.rows);
        let now = Instant::now();
        self.rests
            .retain(|id, _| heads.iter().any(|row| row.run_id == *id));
        let is_resting = |id: &RunId| self.rests.get(id).is_some_and(|rest| rest.until > now);
        heads.retain(|row| !self.begun.contains_key(&row.run_id) && !is_resting(&row.run_id));
        let room = Room {
            runs: self.permits.available_permits(),
            in_session: usize::try_from(core.parts.settings.max_running_in_session)
                .unwrap_or(usize::MAX),
        };
        let occupied = self.occupied(&taken);
        let adapters = self.adapters.clone();
        let has_adapter = |name: &str| adapters.has(name);
        let chosen = choose(&heads, occupied, room, &mut self.turns, has_adapter);
        for row in chosen.into_iter().cloned().collect::<Vec<_>>() {
            self.begin(core, row);
        }
        let others = taken
            .iter()
            .any(|row| !self.begun.contains_key(&row.run_id));
        if others {
            self.look_after(core, &taken, now);
        }
        let rest = next_end(self.rests.values(), now);
        let look_after = others.then_some(LOOK_AFTER_EVERY);
        Ok(rest.into_iter().chain(look_after).min())
    }

    /// What is claimed or under way, in any engine.
    fn occupied(&self, taken: &[TakenRow]) -> Occupied {
        let mut occupied = Occupied::default();
        let is_known = |id: &RunId| taken.iter().any(|row| row.run_id == *id);
        let own = self.begun.values().filter(|row| !is_known(&row.run_id));
        let own = own.map(|row| (&row.session_id, &row.workspace_id));
        let all = taken.iter().map(|row| (&row.session_id, &row.workspace_id));
        for (session_id, workspace_id) in all.chain(own) {
            *occupied.sessions.entry(session_id.clone()).or_default() += 1;
            occupied.workspaces.extend(workspace_id.clone());
        }
        occupied
    }

    /// Warns once of each damaged row, as long as it is damaged.
    fn warn_of(&mut self, damaged: HashSet<String>) {
        for detail in damaged.difference(&self.damaged) {
            tracing::warn!(%detail, "a run of the queue is left alone, and those behind it wait");
        }
        self.damaged = damaged;
    }

    fn begin(&mut self, core: &Core, row: QueueRow) {
        let permit = Arc::clone(&self.permits).try_acquire_owned();
        let permit = permit.expect("no more are chosen than there are");
        self.begun.insert(row.run_id.clone(), row.clone());
        let (shared, adapters, ended) = (core.clone(), self.adapters.clone(), self.ended.clone());
        core.spawn(async move {
            let run_id = row.run_id.clone();
            let begun = Box::pin(begin(&shared, row, adapters, permit)).await;
            let _ = ended.send((run_id, begun));
        });
    }

    /// A run has ended, or could not be begun.
    fn ended(&mut self, run_id: RunId, begun: Begun) {
        self.begun.remove(&run_id);
        match begun {
            Begun::Over => {
                self.rests.remove(&run_id);
                // It may have been in the way of others.
                self.try_again_by(Instant::now());
            }
            Begun::Blocked | Begun::Faulted => {
                let (earlier, is_fault) = (self.rests.get(&run_id), begun == Begun::Faulted);
                let rest = Rest::after(earlier, Instant::now(), is_fault);
                self.rests.insert(run_id, rest);
            }
        }
    }

    /// Lets no run rest for longer than this that somebody else was in the way of.
    fn try_again_by(&mut self, at: Instant) {
        for rest in self.rests.values_mut().filter(|rest| !rest.is_fault) {
            rest.until = rest.until.min(at);
        }
    }

    /// Settles what engines left that have died since this one was started.
    fn look_after(&mut self, core: &Core, taken: &[TakenRow], now: Instant) {
        let is_due = |at: Instant| now >= at + LOOK_AFTER_EVERY;
        // One that waits for a workspace in use is not joined by others.
        let is_looking = self
            .looking
            .as_ref()
            .is_some_and(|task| !task.is_finished());
        if is_looking || !self.looked_after.is_none_or(is_due) {
            return;
        }
        self.looked_after = Some(now);
        let others = taken
            .iter()
            .filter(|row| !self.begun.contains_key(&row.run_id));
        let others: Vec<RunId> = others.map(|row| row.run_id.clone()).collect();
        let shared = core.clone();
        self.looking = Some(core.spawn(async move {
            for run_id in others {
                if let Err(e) = settle_if_left(&shared, &run_id).await {
                    tracing::warn!(run = %run_id, error = %e.chain(), "not settled");
                }
            }
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rest_that_is_over_causes_no_look() {
        let now = Instant::now();
        let rest = |until| Rest {
            until,
            pause: MIN_REST,
            is_fault: false,
        };
        let over = rest(now);
        assert_eq!(next_end([over].iter(), now), None);
        let later = rest(now + MIN_REST);
        assert_eq!(next_end([over, later].iter(), now), Some(MIN_REST));
    }

    #[test]
    fn the_rests_of_a_run_grow_and_begin_anew_where_the_reason_is_another() {
        let now = Instant::now();
        let mut rest = Rest::after(None, now, true);
        assert_eq!(
            (rest.pause, rest.until),
            (MIN_FAULT_REST, now + MIN_FAULT_REST)
        );
        let second = Rest::after(Some(&rest), now, true);
        assert_eq!(second.pause, MIN_FAULT_REST * 2);
        for _ in 0..20 {
            rest = Rest::after(Some(&rest), now, true);
        }
        assert_eq!(rest.pause, MAX_FAULT_REST);
        assert_eq!(Rest::after(Some(&rest), now, false).pause, MIN_REST);
    }
}
