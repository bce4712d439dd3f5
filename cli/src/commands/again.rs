//! `retry` and `review request-changes`: the command of a run that is on record, or another, in its
//! place.

use stillframe::commands::EndSignal;
use stillframe::records::RunRecord;
use stillframe::steps::BoxAdapter;
use stillframe::{CommandAdapter, RunOptions};

use super::run::{Carried, Foreground, GoingOn, Told, carry};
use super::{Tools, follow_up};
use crate::failure::Failure;
use crate::output::Reply;
use crate::request::{ChangesRequest, RetryRequest};

/// Does what a run has failed at again, in a run of its own.
pub(super) async fn retry(tools: &Tools, request: RetryRequest) -> Result<Reply, Failure> {
    let record = tools.engine.find_run(&request.run).await?;
    let going_on = GoingOn::Retry(record.id.to_string());
    let carried = carried(tools, &record, request.command, going_on)?;
    Box::pin(carry(tools, carried)).await
}

/// Has a run go on in its worktree, and change what it has handed in.
pub(super) async fn revise(tools: &Tools, request: ChangesRequest) -> Result<Reply, Failure> {
    let record = tools.engine.find_run(&request.run).await?;
    let going_on = GoingOn::Changes(record.id.to_string(), request.request);
    let carried = carried(tools, &record, request.command, going_on)?;
    Box::pin(carry(tools, carried)).await
}

/// What is carried out by `command`, or the one that the run was started with.
fn carried(
    tools: &Tools,
    record: &RunRecord,
    command: Option<CommandAdapter>,
    going_on: GoingOn,
) -> Result<Carried, Failure> {
    let command = match command {
        Some(command) => command,
        None => follow_up::stored(record, tools.json)?,
    };
    let end_signal = EndSignal::default();
    let adapter = Foreground {
        command: follow_up::limited(command, record).end_signal(end_signal.clone()),
        progress: tools.progress.clone(),
    };
    Ok(Carried {
        session: None,
        // The rest is as that run was started.
        options: RunOptions::new(""),
        adapter: BoxAdapter::new(adapter),
        end_signal,
        resumable: None,
        elsewhere: String::new(),
        told: Told::default(),
        merges: false,
        going_on: Some(going_on),
    })
}
