//! Beginning queued runs while the engine runs: one after the other as there is room for them.

use std::collections::HashMap;
use std::future::pending;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::actors::core::{Core, Shared};
use crate::error::Error;
use crate::id::RunId;
use crate::records::queue::{Occupied, QueueRow, Room, Turns, choose};
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
        permits: Arc::new(Semaphore::new(max_running)),
        begun: HashMap::new(),
        rests: HashMap::new(),
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
}

impl Dispatcher {
    /// Begins what can be begun; answers with when to look again though nothing is heard.
    async fn look(&mut self, core: &Core) -> Result<Option<Duration>, Error> {
        let read = core.parts.reader.read(|store| {
            let taken = store.queue_taken()?;
            Ok((store.queue_heads()?, taken, store.queue_length()?))
        });
        let (mut heads, taken, length) = read.await?;
        telemetry::queued(length);
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
        let rest = self.rests.values().map(|rest| rest.until - now).min();
        let look_after = others.then_some(LOOK_AFTER_EVERY);
        Ok(rest.into_iter().chain(look_after).min())
    }

    /// What is claimed or under way, in any engine.
    fn occupied(&self, taken: &[QueueRow]) -> Occupied {
        let mut occupied = Occupied::default();
        let is_known = |id: &RunId| taken.iter().any(|row| row.run_id == *id);
        let own = self.begun.values().filter(|row| !is_known(&row.run_id));
        for row in taken.iter().chain(own) {
            let count = occupied.sessions.entry(row.session_id.clone());
            *count.or_default() += 1;
            occupied.workspaces.extend(row.workspace_id.clone());
        }
        occupied
    }

    fn begin(&mut self, core: &Core, row: QueueRow) {
        let permit = Arc::clone(&self.permits).try_acquire_owned();
        let permit = permit.expect("no more are chosen than there are");
        self.begun.insert(row.run_id.clone(), row.clone());
        let (shared, adapters, ended) = (core.clone(), self.adapters.clone(), self.ended.clone());
        core.spawn(async move {
            let run_id = row.run_id.clone();
            let begun = begin(&shared, row, adapters, permit).await;
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
            Begun::Blocked => {
                let earlier = self.rests.get(&run_id);
                let pause = earlier.map_or(MIN_REST, |rest| (rest.pause * 2).min(MAX_REST));
                let until = Instant::now() + pause;
                self.rests.insert(run_id, Rest { until, pause });
            }
        }
    }

    /// Lets no run rest for longer than this.
    fn try_again_by(&mut self, at: Instant) {
        for rest in self.rests.values_mut() {
            rest.until = rest.until.min(at);
        }
    }

    /// Settles what engines left that have died since this one was started.
    fn look_after(&mut self, core: &Core, taken: &[QueueRow], now: Instant) {
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
