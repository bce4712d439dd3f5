//! The outcome of a run that has ended or waits, read from its record.

use std::io;

use stillframe_backends::{DiffOptions, Operation, Snapshot, SnapshotId};

use crate::actors::Parts;
use crate::error::Error;
use crate::records::outcome::{RunOutcome, RunResult, WorkspaceOutcome};
use crate::records::question::QuestionRecord;
use crate::records::run_record::RunExport;
use crate::records::run_row::RunRow;
use crate::saving::waiting;
use crate::workspace::compare;
use crate::workspace::opened::Opened;

/// What is on record of a run that has ended, or that waits. Blocks.
pub(crate) fn stored(
    parts: &Parts,
    row: RunRow,
    opened: Option<&Opened>,
) -> Result<RunOutcome, Error> {
    let run_id = row.id.clone();
    let (phases, questions, follow_up, isolation) = parts.reader.read_blocking(|store| {
        let phases = RunExport::phases_of(store, &run_id)?;
        let follow_up = waiting::waits_with(store, &row)?;
        let isolation = store.isolation(&run_id)?;
        Ok((phases, store.questions(&run_id)?, follow_up, isolation))
    })?;
    let seen = row.seen();
    // Those that were forgotten since are not there.
    let snapshot = |id: Option<SnapshotId>| -> Result<Option<Snapshot>, Error> {
        let Some(id) = id else {
            return Ok(None);
        };
        let found = parts.reader.read_blocking(|store| store.snapshot(&id))?;
        Ok(found.map(|row| row.snapshot))
    };
    let (before, after) = (
        snapshot(seen.before_snapshot)?,
        snapshot(seen.after_snapshot)?,
    );
    let diff = match (opened, &before, &after) {
        (Some(opened), Some(before), Some(after)) => {
            let mut options =
                DiffOptions::default().max_patch_bytes(opened.options.max_patch_bytes);
            options.capture_patch = opened.options.capture_patch;
            // What it was then is in the record in any case.
            compare::compare(
                &Operation::unbounded(),
                parts,
                &opened.workspace,
                before,
                after,
                &options,
                &mut io::sink(),
            )
            .ok()
        }
        _ => None,
    };
    let output = row.returned();
    Ok(RunOutcome {
        session_id: row.session_id,
        run_id: row.id,
        run: RunResult {
            status: row.status,
            exit_code: row.exit_code,
            output,
            error: row.error,
        },
        workspace: WorkspaceOutcome {
            backend: seen.backend,
            before_snapshot: before,
            after_snapshot: after,
            diff,
            rollback: seen.rollback,
            error: seen.error,
            resumed: seen.resumed,
            saved: seen.saved,
            repositories: seen.repositories,
        },
        phases,
        questions: questions.into_iter().map(QuestionRecord::from).collect(),
        follow_up: follow_up.map(Into::into),
        isolation: isolation.map(Into::into),
        is_stored: true,
    })
}
