//! What a host says of a session: checking it, and reading it back.

use std::collections::HashSet;

use crate::actors::Parts;
use crate::error::Error;
use crate::id::SessionId;
use crate::records::session::{SessionDetails, SessionRecord, SessionRow};
use crate::state::StateStore;
use crate::state::error::StateError;

/// Refuses what cannot be kept, and a parent that is not there or that belongs to the session
/// itself.
pub(crate) async fn check(
    parts: &Parts,
    id: &SessionId,
    details: &SessionDetails,
) -> Result<(), Error> {
    details.check().map_err(Error::invalid_options)?;
    let texts = details.tags.iter().chain(&details.agent_id);
    for text in texts {
        let instead = "call it by another name";
        parts
            .writer
            .refuse_secrets(text, "what a session is found by", instead)?;
    }
    let Some(parent) = details.parent_id.clone() else {
        return Ok(());
    };
    let own = id.clone();
    let above = parts.reader.read(move |store| above(store, parent, &own));
    match above.await? {
        Above::Nowhere(parent) => Err(Error::not_found(format!(
            "there is no session {parent} that {id} could belong to; nothing was changed"
        ))),
        Above::Itself => Err(Error::invalid_options(format!(
            "session {id} would belong to itself; nothing was changed"
        ))),
        Above::Fine => Ok(()),
    }
}

enum Above {
    Fine,
    Itself,
    Nowhere(SessionId),
}

/// What is found on the way up from `parent`. Sessions further up may be gone.
fn above(store: &dyn StateStore, parent: SessionId, own: &SessionId) -> Result<Above, StateError> {
    if store.session(&parent)?.is_none() && parent != *own {
        return Ok(Above::Nowhere(parent));
    }
    let (mut next, mut seen) = (Some(parent), HashSet::new());
    while let Some(at) = next {
        if at == *own {
            return Ok(Above::Itself);
        }
        next = store.session_details(&at)?.parent_id;
        // Two hosts at once may have made a ring of others.
        if !seen.insert(at) {
            break;
        }
    }
    Ok(Above::Fine)
}

/// A session, with what is kept beside its row.
pub(crate) fn recorded(
    store: &dyn StateStore,
    row: SessionRow,
) -> Result<SessionRecord, StateError> {
    Ok(SessionRecord {
        details: store.session_details(&row.id)?,
        queued: store.queued_in(&row.id)?,
        id: row.id,
        status: row.status,
        created_at: row.created_at,
        ended_at: row.ended_at,
    })
}
