//! The changes that create a session.

use jiff::Timestamp;

use crate::events::data::SessionMoved;
use crate::events::event::EventType;
use crate::id::SessionId;
use crate::records::session::{SessionDetails, SessionEvent, SessionStatus};
use crate::state::change::{Change, NewEvent};

/// What makes a session and starts it, in one transaction.
///
/// When another engine has made it meanwhile, that is a conflict and nothing is written.
pub(crate) fn creation(id: &SessionId, at: Timestamp) -> Vec<Change> {
    described_creation(id, None, at)
}

/// As [`creation`], of a session of which the host says something.
pub(crate) fn described_creation(
    id: &SessionId,
    details: Option<SessionDetails>,
    at: Timestamp,
) -> Vec<Change> {
    let event = |event_type| {
        let said = SessionMoved::default();
        Change::Append(NewEvent::new(event_type, id, None, at, said))
    };
    let from = SessionStatus::Pending;
    let (to, started) = from
        .next(SessionEvent::Start)
        .expect("a session that is pending can be started");
    let described = details.map(|details| Change::DescribeSession {
        id: id.clone(),
        details: Box::new(details),
    });
    let mut changes = vec![
        Change::CreateSession { id: id.clone(), at },
        event(EventType::SESSION_CREATED),
        Change::MoveSession {
            id: id.clone(),
            from,
            version: 1,
            to,
            at,
        },
        event(started),
    ];
    changes.extend(described);
    changes
}
