//! How people name a run: by its id, or by the beginning of one.

use crate::error::Error;
use crate::id::RunId;
use crate::records::run_row::RunRow;
use crate::state::{StateStore, id_beginning};

/// Finds the one run whose id is `text` or begins so.
pub(crate) fn find_run(store: &dyn StateStore, text: &str) -> Result<RunRow, Error> {
    find_run_among(store, text, None)
}

/// As [`find_run`], of the runs in this workspace alone.
pub(crate) fn find_run_in(
    store: &dyn StateStore,
    text: &str,
    workspace_id: &str,
) -> Result<RunRow, Error> {
    find_run_among(store, text, Some(workspace_id))
}

pub(crate) fn find_run_among(
    store: &dyn StateStore,
    text: &str,
    workspace_id: Option<&str>,
) -> Result<RunRow, Error> {
    let unknown = || Error::not_found(format!("there is no run {text:?}"));
    if let Ok(id) = text.parse()
        && let Some(row) = store.run(&id)?
    {
        let own = row.workspace.as_ref().map(|own| own.workspace_id.as_str());
        // All of an id is that run's wherever it is, and the beginning of no other.
        return match workspace_id.is_none() || workspace_id == own {
            true => Ok(row),
            false => Err(unknown()),
        };
    }
    let beginnings = [text.to_owned(), format!("run_{text}")];
    let is_of_prefix = "run_".starts_with(text);
    let own = text.strip_prefix("run_").unwrap_or(text);
    if is_of_prefix || own.len() < id_beginning::MIN_BEGINNING {
        let matching = store.count_runs_that_begin(&beginnings, workspace_id)?;
        return Err(id_beginning::too_short(text, "run", matching));
    }
    let found = store.runs_that_begin(&beginnings, workspace_id)?;
    match found.as_slice() {
        [] => Err(unknown()),
        [id] => store.run(id)?.ok_or_else(unknown),
        several => Err(id_beginning::ambiguous(
            text,
            several.iter().map(RunId::as_str),
            store.count_runs_that_begin(&beginnings, workspace_id)?,
        )),
    }
}
