//! What the engine tells of itself to whoever watches it: spans, counters and histograms.
//!
//! Names and fields are promises, listed in `docs/telemetry.md`. Where nobody listens, a span is a
//! look at one flag, and a counter a call that does nothing.

use std::time::Duration;

use metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};
use stillframe_backends::{Diff, RestoreOutcome, Snapshot, SnapshotOptions};
use tracing::Span;
use tracing::field::Empty;

use crate::error::Error;
use crate::id::{RunId, SessionId};
use crate::records::restore_document::RestorePurpose;

/// The target of all spans, whichever module they are in.
const TARGET: &str = "stillframe";

const CAPTURES: &str = "stillframe_captures_total";
const CAPTURE_DURATION: &str = "stillframe_capture_duration_seconds";
const FILES_HASHED: &str = "stillframe_files_hashed_total";
const BYTES_READ: &str = "stillframe_bytes_read_total";
const RESTORES: &str = "stillframe_restores_total";
const RESTORE_DURATION: &str = "stillframe_restore_duration_seconds";
const DIFFS: &str = "stillframe_diffs_total";
const DIFF_DURATION: &str = "stillframe_diff_duration_seconds";
const LOCK_WAIT: &str = "stillframe_lock_wait_seconds";
const EVENTS: &str = "stillframe_events_total";
const COMMIT_DURATION: &str = "stillframe_state_commit_duration_seconds";
const RUNS: &str = "stillframe_runs_total";
const RUN_DURATION: &str = "stillframe_run_duration_seconds";
const QUEUED_RUNS: &str = "stillframe_queued_runs";
const ERRORS: &str = "stillframe_errors_total";

/// Tells a recorder what each metric means.
pub(crate) fn describe() {
    let counters = [
        (
            CAPTURES,
            Unit::Count,
            "Captures that were taken, by backend",
        ),
        (
            FILES_HASHED,
            Unit::Count,
            "Files whose content captures hashed",
        ),
        (BYTES_READ, Unit::Bytes, "Bytes of files that captures read"),
        (RESTORES, Unit::Count, "Restores that were done, by purpose"),
        (DIFFS, Unit::Count, "Comparisons that were made"),
        (EVENTS, Unit::Count, "Events that were written"),
        (RUNS, Unit::Count, "Runs whose task has ended, by status"),
        (ERRORS, Unit::Count, "Calls that ended in an error, by kind"),
    ];
    for (name, unit, what) in counters {
        describe_counter!(name, unit, what);
    }
    let what = "Runs that wait in the queue, as the engine last saw it";
    describe_gauge!(QUEUED_RUNS, Unit::Count, what);
    let histograms = [
        (CAPTURE_DURATION, "How long a capture took"),
        (
            RESTORE_DURATION,
            "How long a restore took, with its captures",
        ),
        (DIFF_DURATION, "How long a comparison took"),
        (
            LOCK_WAIT,
            "How long a lock was waited for until it was had, by lock",
        ),
        (
            COMMIT_DURATION,
            "How long it took until changes of the state were durable",
        ),
        (RUN_DURATION, "How long a run took, with its captures"),
    ];
    for (name, what) in histograms {
        describe_histogram!(name, Unit::Seconds, what);
    }
}

/// A run, or its continuation.
pub(crate) fn run_span(session_id: &SessionId, run_id: &RunId) -> Span {
    tracing::info_span!(
        target: TARGET,
        "run",
        session_id = session_id.as_str(),
        run_id = run_id.as_str(),
        status = Empty,
        duration_ms = Empty,
    )
}

/// The task of a run has ended. `status`: how the run did, or `None` where nobody knows.
pub(crate) fn ran(status: Option<&'static str>, took: Duration) {
    let status = status.unwrap_or("unknown");
    let span = Span::current();
    span.record("status", status);
    span.record("duration_ms", milliseconds(took));
    counter!(RUNS, "status" => status).increment(1);
    histogram!(RUN_DURATION).record(took);
}

/// A step, from the first attempt that is made in this process to its end.
pub(crate) fn step_span(run_id: &RunId, phase: &str, iteration: u32, step: &str) -> Span {
    tracing::info_span!(
        target: TARGET,
        "step",
        run_id = run_id.as_str(),
        phase,
        iteration,
        step,
        attempt = Empty,
        is_completed = Empty,
        duration_ms = Empty,
    )
}

/// A call of a tool.
pub(crate) fn tool_span(run_id: &RunId, tool: &str) -> Span {
    tracing::info_span!(
        target: TARGET,
        "tool",
        run_id = run_id.as_str(),
        tool,
        is_completed = Empty,
        duration_ms = Empty,
    )
}

/// A step or a call of a tool has ended.
pub(crate) fn worked(is_completed: bool, took: Duration) {
    let span = Span::current();
    span.record("is_completed", is_completed);
    span.record("duration_ms", milliseconds(took));
}

/// A capture.
pub(crate) fn capture_span(workspace_id: &str, options: &SnapshotOptions) -> Span {
    let span = tracing::info_span!(
        target: TARGET,
        "capture",
        workspace_id,
        session_id = options.owner.session_id,
        run_id = Empty,
        label = options.label.as_str(),
        snapshot_id = Empty,
        backend = Empty,
        files = Empty,
        files_hashed = Empty,
        bytes_read = Empty,
        duration_ms = Empty,
    );
    if let Some(run_id) = &options.owner.run_id {
        span.record("run_id", run_id.as_str());
    }
    span
}

/// A capture was taken.
pub(crate) fn captured(span: &Span, snapshot: &Snapshot, took: Duration) {
    let metadata = &snapshot.metadata;
    span.record("snapshot_id", snapshot.id.as_str());
    span.record("backend", snapshot.backend.as_str());
    span.record("files", metadata.files);
    span.record("files_hashed", metadata.files_hashed);
    span.record("bytes_read", metadata.bytes_read);
    span.record("duration_ms", milliseconds(took));
    counter!(CAPTURES, "backend" => snapshot.backend.as_str()).increment(1);
    counter!(FILES_HASHED).increment(metadata.files_hashed);
    counter!(BYTES_READ).increment(metadata.bytes_read);
    histogram!(CAPTURE_DURATION).record(took);
}

/// A restore, with its captures.
pub(crate) fn restore_span(
    workspace_id: &str,
    (session_id, run_id): (&SessionId, Option<&RunId>),
    (purpose, to): (RestorePurpose, &str),
) -> Span {
    let span = tracing::info_span!(
        target: TARGET,
        "restore",
        workspace_id,
        session_id = session_id.as_str(),
        run_id = Empty,
        purpose = purpose.as_str(),
        to,
        guard = Empty,
        restored = Empty,
        skipped = Empty,
        duration_ms = Empty,
    );
    if let Some(run_id) = run_id {
        span.record("run_id", run_id.as_str());
    }
    span
}

/// A restore was done.
pub(crate) fn restored(
    span: &Span,
    purpose: RestorePurpose,
    outcome: &RestoreOutcome,
    took: Duration,
) {
    span.record("guard", outcome.guard.id.as_str());
    span.record("restored", outcome.restored.len());
    span.record("skipped", outcome.skipped.len());
    span.record("duration_ms", milliseconds(took));
    counter!(RESTORES, "purpose" => purpose.as_str()).increment(1);
    histogram!(RESTORE_DURATION).record(took);
}

/// A comparison.
pub(crate) fn diff_span(workspace_id: &str, from: &Snapshot, to: &Snapshot) -> Span {
    tracing::info_span!(
        target: TARGET,
        "diff",
        workspace_id,
        from = from.id.as_str(),
        to = to.id.as_str(),
        files_changed = Empty,
        insertions = Empty,
        deletions = Empty,
        duration_ms = Empty,
    )
}

/// A comparison was made.
pub(crate) fn compared(span: &Span, diff: &Diff, took: Duration) {
    span.record("files_changed", diff.files_changed);
    span.record("insertions", diff.insertions);
    span.record("deletions", diff.deletions);
    span.record("duration_ms", milliseconds(took));
    counter!(DIFFS).increment(1);
    histogram!(DIFF_DURATION).record(took);
}

/// A write to the state, from when it is asked for until it is durable.
pub(crate) fn commit_span(changes: usize) -> Span {
    tracing::debug_span!(
        target: TARGET,
        "state_commit",
        changes,
        events = Empty,
        duration_ms = Empty,
    )
}

/// Changes of the state are durable.
pub(crate) fn committed(span: &Span, events: usize, took: Duration) {
    span.record("events", events);
    span.record("duration_ms", milliseconds(took));
    counter!(EVENTS).increment(events as u64);
    histogram!(COMMIT_DURATION).record(took);
}

/// A lock was waited for.
pub(crate) fn waited(lock: Lock, took: Duration) {
    let lock = match lock {
        Lock::Workspace => "workspace",
        Lock::Run => "run",
    };
    histogram!(LOCK_WAIT, "lock" => lock).record(took);
}

/// What is waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lock {
    /// The turn in a workspace, and its lock: held for each capture, comparison and restore.
    Workspace,
    /// The right to change a workspace: held by a run for as long as it works.
    Run,
}

/// So many runs wait in the queue.
pub(crate) fn queued(length: u64) {
    // More than a float can count do not fit on a disk.
    gauge!(QUEUED_RUNS).set(length as f64);
}

/// Counts `answer` if it is an error that a host gets.
pub(crate) fn counted<T>(answer: Result<T, Error>) -> Result<T, Error> {
    if let Err(e) = &answer {
        counter!(ERRORS, "kind" => e.kind().as_str()).increment(1);
    }
    answer
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
