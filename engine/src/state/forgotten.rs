//! The snapshots that clean-ups have removed from the log, read from their events.

use std::collections::BTreeMap;

use jiff::Timestamp;
use stillframe_backends::Workspace;

use crate::error::Error;
use crate::events::event::EventType;
use crate::events::query::EventQuery;
use crate::id::SessionId;
use crate::state::StateStore;
use crate::state::error::StateError;

/// The ids that begin so of the snapshots that clean-ups say they have forgotten, of one workspace
/// or of any, each with the time at which they did, and whether somebody had named what was to go.
pub(crate) fn told_by_clean_ups(
    store: &dyn StateStore,
    prefix: &str,
    workspace: Option<&Workspace>,
) -> Result<BTreeMap<String, (Timestamp, bool)>, StateError> {
    let query = EventQuery {
        session_id: workspace.map(|workspace| SessionId::of_workspace(workspace.id())),
        ..EventQuery::all().of_type(EventType::WORKSPACE_CLEANED_UP)
    };
    let mut found = BTreeMap::new();
    for event in store.events(&query)? {
        let told = event.told_of_clean_up();
        let ids = told.snapshots.into_iter();
        let ids = ids.filter(|id| id.starts_with(prefix));
        found.extend(ids.map(|id| (id, (event.timestamp, told.by_name))));
    }
    Ok(found)
}

/// Why there is no snapshot any more whose id begins so, if clean-ups have forgotten one, and only
/// one. Reads what they have told.
pub(crate) fn forgotten(
    store: &dyn StateStore,
    prefix: &str,
    workspace: Option<&Workspace>,
) -> Result<Option<Error>, StateError> {
    let mut found = told_by_clean_ups(store, prefix, workspace)?;
    Ok(match (found.pop_first(), found.is_empty()) {
        (Some((id, (at, is_by_name))), true) => {
            let why = match is_by_name {
                true => "because somebody removed it",
                false => "by a clean-up",
            };
            let message = format!("snapshot {id} was forgotten at {at}, {why}");
            Some(Error::not_found(message))
        }
        _ => None,
    })
}
