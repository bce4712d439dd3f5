//! Waiting for the end of a run, whichever engine has it.

use std::time::Duration;

use crate::actors::core::Core;
use crate::error::{Error, stopped};
use crate::id::RunId;
use crate::options::RunOptions;
use crate::records::outcome::RunOutcome;
use crate::run::execute::{options_of, stored};
use crate::run::settle;

/// How often a run is looked at whose engine may have died: nothing in the log tells of that.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// The outcome of a run, from its record, once it has ended. A run that rests is waited for until
/// somebody has resumed it and it has ended.
pub(crate) async fn wait(core: &Core, run_id: &RunId) -> Result<RunOutcome, Error> {
    core.parts.check_available()?;
    let read = || {
        let asked = run_id.clone();
        core.parts.reader.read(move |store| store.run(&asked))
    };
    let unknown = || Error::not_found(format!("there is no run {run_id}"));
    let session_id = read().await?.ok_or_else(unknown)?.session_id;
    let mut log = core.parts.writer.notifier().subscribe(Some(&session_id));
    loop {
        // Before reading, so that what is written meanwhile rings.
        log.mark_unchanged();
        let row = read().await?.ok_or_else(unknown)?;
        if row.status.is_terminal() {
            // Without its options, which may be of another version, nothing is compared again.
            let options = options_of(&row).unwrap_or_else(|_| RunOptions::new(""));
            return stored(core, row, &options).await;
        }
        let is_elsewhere = row.engine_id != core.parts.engine_id;
        tokio::select! {
            biased;
            () = core.parts.stopped.cancelled() => return Err(stopped()),
            rung = log.changed() => {
                if rung.is_err() {
                    return Err(stopped());
                }
            }
            () = tokio::time::sleep(LOOK_EVERY), if is_elsewhere => {
                // Not the run's error: whoever can settles it later.
                if let Err(e) = settle::settle_if_left(core, run_id).await {
                    tracing::warn!(run = %run_id, error = %e.chain(), "not settled");
                }
            }
        }
    }
}
