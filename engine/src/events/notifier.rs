//! Waking subscribers when there is a new event for them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::watch;

use crate::events::event::Event;
use crate::id::SessionId;

/// Once there are this many channels of sessions, and then each time that there are twice as many
/// as were left, those without a subscriber are removed.
const MIN_SWEEP: usize = 64;

/// Wakes those who follow one session, or all of them. Clones wake the same subscribers.
///
/// A subscriber reads again each time, so one notification too many costs a read and is no error.
#[derive(Clone, Debug)]
pub(crate) struct Notifier {
    of_any: watch::Sender<()>,
    of_sessions: Arc<Mutex<OfSessions>>,
}

#[derive(Debug)]
struct OfSessions {
    channels: HashMap<SessionId, watch::Sender<()>>,
    sweep_at: usize,
}

impl Notifier {
    /// One without subscribers.
    pub(crate) fn new() -> Self {
        let channels = HashMap::new();
        let sweep_at = MIN_SWEEP;
        Self {
            of_any: watch::Sender::new(()),
            of_sessions: Arc::new(Mutex::new(OfSessions { channels, sweep_at })),
        }
    }

    /// Changes from now on whenever `session_id` has something new; `None`: any session.
    pub(crate) fn subscribe(&self, session_id: Option<&SessionId>) -> watch::Receiver<()> {
        let Some(id) = session_id else {
            return self.of_any.subscribe();
        };
        let mut of_sessions = self.of_sessions();
        if of_sessions.channels.len() >= of_sessions.sweep_at {
            of_sessions
                .channels
                .retain(|_, channel| !channel.is_closed());
            of_sessions.sweep_at = MIN_SWEEP.max(2 * of_sessions.channels.len());
        }
        match of_sessions.channels.entry(id.clone()) {
            Entry::Occupied(channel) => channel.get().subscribe(),
            Entry::Vacant(place) => place.insert(watch::Sender::new(())).subscribe(),
        }
    }

    /// Whether there is anybody to be woken.
    pub(crate) fn has_subscribers(&self) -> bool {
        let is_open = |channel: &watch::Sender<()>| !channel.is_closed();
        is_open(&self.of_any) || self.of_sessions().channels.values().any(is_open)
    }

    /// These events are in the log.
    pub(crate) fn notify(&self, events: &[Event]) {
        if events.is_empty() {
            return;
        }
        self.of_any.send_replace(());
        let of_sessions = self.of_sessions();
        for event in events {
            if let Some(channel) = of_sessions.channels.get(&event.session_id) {
                channel.send_replace(());
            }
        }
    }

    /// There may be something new in any session.
    pub(crate) fn notify_all(&self) {
        self.of_any.send_replace(());
        for channel in self.of_sessions().channels.values() {
            channel.send_replace(());
        }
    }

    fn of_sessions(&self) -> MutexGuard<'_, OfSessions> {
        // Whatever a panic elsewhere left, it is a map of channels.
        self.of_sessions.lock().unwrap_or_else(|e| e.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::events::event::{EVENT_SCHEMA_VERSION, EventSource, EventType};
    use crate::id::EventId;

    fn event(session: &str) -> Event {
        Event {
            id: EventId::random(),
            event_type: EventType::new("noted"),
            timestamp: Timestamp::UNIX_EPOCH,
            session_id: session.parse().unwrap(),
            run_id: None,
            position: 1,
            sequence: 1,
            schema_version: EVENT_SCHEMA_VERSION,
            source: EventSource::Host,
            provider: None,
            correlation_id: None,
            metadata: serde_json::Map::new(),
            data: json!({}),
            data_ref: None,
        }
    }

    #[test]
    fn who_follows_a_session_is_woken_by_that_one_alone() {
        let notifier = Notifier::new();
        assert!(!notifier.has_subscribers());
        let mut of_any = notifier.subscribe(None);
        let mut of_one = notifier.subscribe(Some(&"one".parse().unwrap()));
        let mut of_other = notifier.subscribe(Some(&"other".parse().unwrap()));
        assert!(notifier.has_subscribers());
        notifier.notify(&[]);
        let is_woken = |channel: &mut watch::Receiver<()>| {
            let is_changed = channel.has_changed().unwrap();
            channel.mark_unchanged();
            is_changed
        };
        assert!(!is_woken(&mut of_any) && !is_woken(&mut of_one) && !is_woken(&mut of_other));
        notifier.notify(&[event("one"), event("unheard")]);
        assert!(is_woken(&mut of_any) && is_woken(&mut of_one) && !is_woken(&mut of_other));
        notifier.notify_all();
        assert!(is_woken(&mut of_any) && is_woken(&mut of_one) && is_woken(&mut of_other));
    }

    #[test]
    fn channels_without_a_subscriber_do_not_pile_up() {
        let notifier = Notifier::new();
        let kept = notifier.subscribe(Some(&"kept".parse().unwrap()));
        for at in 0..10 * MIN_SWEEP {
            notifier.subscribe(Some(&format!("s{at}").parse().unwrap()));
        }
        assert!(notifier.of_sessions().channels.len() <= MIN_SWEEP);
        notifier.notify(&[event("kept")]);
        assert!(kept.has_changed().unwrap());
    }
}
