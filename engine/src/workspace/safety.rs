//! The safety refs in the user's repository, which keep commits that restores would leave without a
//! name.

use serde::Serialize;
use stillframe_backends::{
    Backend, EarlierTag, LockedWorkspace, MovedTag, MovedTags, Operation, Problem, SnapshotId,
};

use crate::actors::Parts;
use crate::error::Error;
use crate::events::event::{Event, EventType};
use crate::events::query::EventQuery;
use crate::id::RunId;
use crate::state::StateStore;
use crate::state::error::StateError;

/// How the names of those begin that an earlier version made.
const EARLIER: &str = "refs/tags/";

/// What a clean-up did to them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct SafetyRefs {
    /// The tags of an earlier version that were moved to where no push of tags takes them. Left out
    /// if there are none.
    #[serde(rename = "moved_tags", skip_serializing_if = "Vec::is_empty")]
    pub moved: Vec<MovedTag>,
    /// The full names of those that went with their guard. Left out if there are none.
    #[serde(rename = "safety_refs_removed", skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<String>,
    /// Those that could not be moved, or removed, with the reason. Left out if there are none.
    #[serde(rename = "safety_refs_kept", skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<Problem>,
}

/// Moves the tags that an earlier version made, if the log knows name and commit. Blocks.
pub(crate) fn move_tags(
    op: &Operation,
    parts: &Parts,
    locked: &mut LockedWorkspace,
    backend: &dyn Backend,
) -> Result<MovedTags, Error> {
    match backend.repository() {
        Some(repository) if !repository.safety_tags(locked)?.is_empty() => {
            Ok(repository.move_safety_tags(op, locked, &earlier_tags(parts)?)?)
        }
        _ => Ok(MovedTags::default()),
    }
}

/// The tags that restores of an earlier version made, as the log has them. Reads the events of all
/// restores.
pub(crate) fn earlier_tags(parts: &Parts) -> Result<Vec<EarlierTag>, Error> {
    let query = EventQuery::all().of_type(EventType::WORKSPACE_ROLLED_BACK);
    parts.reader.read_blocking(|store| {
        let mut tags = Vec::new();
        for event in store.events(&query)? {
            let told = event.told();
            let name = told.safety_tag;
            if let Some(name) = name.filter(|name| name.starts_with(EARLIER)) {
                let guard = told.guard.and_then(|id| id.parse().ok());
                let commits = known_of(store, guard.as_ref(), event.run_id.as_ref())?;
                tags.push(EarlierTag::new(name, guard, commits));
            }
        }
        Ok(tags)
    })
}

/// Whether an event tells of such a tag.
pub(crate) fn names_a_tag(event: &Event) -> bool {
    let name = event.told().safety_tag;
    name.is_some_and(|name| name.starts_with(EARLIER))
}

/// Where HEAD was when a restore began, as far as the log still knows.
fn known_of(
    store: &dyn StateStore,
    guard: Option<&SnapshotId>,
    run_id: Option<&RunId>,
) -> Result<Vec<String>, StateError> {
    let run = match run_id {
        Some(id) => store.run(id)?,
        None => None,
    };
    let after = run
        .and_then(|run| run.workspace)
        .map(|workspace| workspace.after);
    let mut commits = Vec::new();
    for id in guard.into_iter().chain(&after) {
        commits.extend(
            store
                .snapshot(id)?
                .and_then(|row| row.snapshot.metadata.head_ref),
        );
    }
    Ok(commits)
}
