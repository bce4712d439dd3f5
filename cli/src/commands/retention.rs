//! Retention: removing old snapshots automatically at the end of a command.

use std::path::PathBuf;

use stillframe::WorkspaceOptions;
use stillframe::backends::printable;
use stillframe::options::{LogRetention, RetentionOptions};
use stillframe::upkeep::RetentionOutcome;

use super::{Tools, upkeep};
use crate::output;
use crate::request::Request;

/// The workspace to which `request` adds something that need not be kept for ever.
pub(crate) fn adds_to(request: &Request) -> Option<PathBuf> {
    let adds = matches!(
        request,
        Request::Run(_)
            | Request::Steps(_)
            | Request::Snapshot(..)
            | Request::SnapshotIfChanged(..)
            | Request::Restore(..)
    );
    request.workspace().filter(|_| adds).map(PathBuf::from)
}

/// Applies the retention; answers with what people should know, in one line. Nothing that goes
/// wrong here is a failure of the command.
pub(crate) async fn apply(
    tools: &Tools,
    workspace: &PathBuf,
    options: RetentionOptions,
) -> Option<String> {
    let named = WorkspaceOptions::at(workspace);
    match tools.engine.apply_retention(&named, options).await {
        Ok(outcome) => told(&outcome),
        Err(e) => Some(format!(
            "old snapshots of {} were not looked for: {}",
            printable(workspace),
            output::printable(&e.chain())
        )),
    }
}

/// As [`apply`], to the log of all workspaces, if anything is set for that.
pub(crate) async fn apply_to_log(tools: &Tools, kept: LogRetention) -> Option<String> {
    if kept == LogRetention::default() {
        return None;
    }
    match tools.engine.apply_log_retention(kept).await {
        Ok(Some(log)) if log.has_removed() => Some(upkeep::removed(&log)),
        Ok(_) => None,
        Err(e) => Some(format!(
            "the log was not looked through for what need not be kept: {}",
            output::printable(&e.chain())
        )),
    }
}

fn told(outcome: &RetentionOutcome) -> Option<String> {
    match outcome {
        RetentionOutcome::Announced {
            snapshots,
            begins_at,
            ..
        } => Some(format!(
            "{} here need not be kept any more, and will be forgotten from {begins_at:.0} on; \"stillframe gc --retention --dry-run\" lists them, and [retention] in config.toml says what is kept",
            output::count(*snapshots, "snapshot")
        )),
        RetentionOutcome::Forgot {
            snapshots,
            freed_bytes,
            is_cut_short,
            ..
        } => {
            let rest = match is_cut_short {
                true => "; \"stillframe gc\" frees more",
                false => "",
            };
            Some(format!(
                "{} that need not be kept any more {} forgotten, {} freed{rest}",
                output::count(snapshots.len() as u64, "snapshot"),
                if snapshots.len() == 1 { "was" } else { "were" },
                output::size(*freed_bytes)
            ))
        }
        _ => None,
    }
}
