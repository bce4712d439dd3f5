//! What wakes those who follow the log when there is something new for them, and nobody else.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::watch;

use crate::events::event::Event;
use crate::id::SessionId;

/// Bells of sessions are looked through for those that nobody hears once there are this many, and then each time
/// that there are twice as many as were left.
const MIN_SWEEP: usize = 64;

/// Wakes those who follow one session, or all of them. Clones ring the same bells.
///
/// A listener reads again after each ring, so one that comes for nothing costs a read and is no error.
#[derive(Clone, Debug)]
pub(crate) struct Doorbell {
    of_any: watch::Sender<()>,
    of_sessions: Arc<Mutex<OfSessions>>,
}

#[derive(Debug)]
struct OfSessions {
    bells: HashMap<SessionId, watch::Sender<()>>,
    sweep_at: usize,
}

impl Doorbell {
    /// One that nobody hears yet.
    pub(crate) fn new() -> Self {
        let bells = HashMap::new();
        let sweep_at = MIN_SWEEP;
        Self {
            of_any: watch::Sender::new(()),
            of_sessions: Arc::new(Mutex::new(OfSessions { bells, sweep_at })),
        }
    }

    /// Rung from now on whenever `session_id` has something new; `None`: any session.
    pub(crate) fn listen(&self, session_id: Option<&SessionId>) -> watch::Receiver<()> {
        let Some(id) = session_id else {
            return self.of_any.subscribe();
        };
        let mut of_sessions = self.of_sessions();
        if of_sessions.bells.len() >= of_sessions.sweep_at {
            of_sessions.bells.retain(|_, bell| !bell.is_closed());
            of_sessions.sweep_at = MIN_SWEEP.max(2 * of_sessions.bells.len());
        }
        match of_sessions.bells.entry(id.clone()) {
            Entry::Occupied(bell) => bell.get().subscribe(),
            Entry::Vacant(place) => place.insert(watch::Sender::new(())).subscribe(),
        }
    }

    /// Whether there is anybody to be woken.
    pub(crate) fn is_heard(&self) -> bool {
        !self.of_any.is_closed() || self.of_sessions().bells.values().any(|b| !b.is_closed())
    }

    /// These events are in the log.
    pub(crate) fn ring(&self, events: &[Event]) {
        if events.is_empty() {
            return;
        }
        self.of_any.send_replace(());
        let of_sessions = self.of_sessions();
        for event in events {
            if let Some(bell) = of_sessions.bells.get(&event.session_id) {
                bell.send_replace(());
            }
        }
    }

    /// There may be something new in any session.
    pub(crate) fn ring_all(&self) {
        self.of_any.send_replace(());
        for bell in self.of_sessions().bells.values() {
            bell.send_replace(());
        }
    }

    fn of_sessions(&self) -> MutexGuard<'_, OfSessions> {
        // Whatever a panic elsewhere left, it is a map of bells.
        self.of_sessions.lock().unwrap_or_else(|e| e.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::events::event::{EVENT_SCHEMA_VERSION, EventType};
    use crate::id::EventId;

    fn event(session: &str) -> Event {
        Event {
            id: EventId::random(),
            event_type: EventType::new("noted"),
            timestamp: Timestamp::UNIX_EPOCH,
            session_id: session.parse().unwrap(),
            run_id: None,
            sequence: 1,
            schema_version: EVENT_SCHEMA_VERSION,
            data: json!({}),
        }
    }

    #[test]
    fn who_follows_a_session_is_woken_by_that_one_alone() {
        let doorbell = Doorbell::new();
        assert!(!doorbell.is_heard());
        let mut of_any = doorbell.listen(None);
        let mut of_one = doorbell.listen(Some(&"one".parse().unwrap()));
        let mut of_other = doorbell.listen(Some(&"other".parse().unwrap()));
        assert!(doorbell.is_heard());
        doorbell.ring(&[]);
        let rung = |bell: &mut watch::Receiver<()>| {
            let has_rung = bell.has_changed().unwrap();
            bell.mark_unchanged();
            has_rung
        };
        assert!(!rung(&mut of_any) && !rung(&mut of_one) && !rung(&mut of_other));
        doorbell.ring(&[event("one"), event("unheard")]);
        assert!(rung(&mut of_any) && rung(&mut of_one) && !rung(&mut of_other));
        doorbell.ring_all();
        assert!(rung(&mut of_any) && rung(&mut of_one) && rung(&mut of_other));
    }

    #[test]
    fn bells_that_nobody_hears_any_more_do_not_pile_up() {
        let doorbell = Doorbell::new();
        let kept = doorbell.listen(Some(&"kept".parse().unwrap()));
        for at in 0..10 * MIN_SWEEP {
            doorbell.listen(Some(&format!("s{at}").parse().unwrap()));
        }
        assert!(doorbell.of_sessions().bells.len() <= MIN_SWEEP);
        doorbell.ring(&[event("kept")]);
        assert!(kept.has_changed().unwrap());
    }
}
