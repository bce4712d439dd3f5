//! The record of a run of a step file, and whether a file can resume it. Pure.

use serde_json::Value;
use stillframe::records::{RunExport, RunRecord, StepRecord, StepStatus};
use stillframe::steps::{PlanReport, StepError, StepIdentity};
use stillframe::{AdapterError, ErrorKind, SnapshotId};

use crate::failure::Failure;
use crate::step_file::{FileStep, StepFile};

/// Where a run's record has the commands that it was begun with.
pub(super) const STEPS: &str = "steps";

/// The commands that a run was begun with, if it was begun with any.
pub(super) fn kept_steps(record: &RunRecord) -> Result<Option<StepFile>, Failure> {
    match &record.options["metadata"][STEPS] {
        Value::Null => Ok(None),
        kept => serde_json::from_value(kept.clone()).map(Some).map_err(|e| {
            Failure::new(
                ErrorKind::Corrupt,
                format!("the steps of run {} cannot be read: {e}", record.id),
            )
        }),
    }
}

/// The record of a step of a file.
pub(super) fn row<'a>(export: &'a RunExport, phase: &str, name: &str) -> Option<&'a StepRecord> {
    let phase = export.phases.iter().find(|row| row.name == phase)?;
    phase.steps.iter().find(|row| row.name == name)
}

/// The snapshot after the step that was done last, or else before the run.
pub(super) fn last_done(export: &RunExport) -> Option<&SnapshotId> {
    let steps = export.phases.iter().flat_map(|phase| &phase.steps);
    let done = steps.filter(|step| step.status == StepStatus::Completed);
    let last = done.max_by_key(|step| step.completed_at);
    match last {
        Some(step) => step.snapshot_after.as_ref(),
        None => export.snapshots.first().map(|snapshot| &snapshot.id),
    }
}

/// The steps of a run that were begun and are not done; a command that is done has a commit behind
/// it which is one of these though it was not begun.
fn cut_off(export: &RunExport) -> Vec<StepIdentity> {
    let mut open = Vec::new();
    for phase in &export.phases {
        let steps = phase.steps.iter().filter(|step| !step.status.is_settled());
        open.extend(steps.map(|step| StepIdentity::new(&phase.name, phase.iteration, &step.name)));
    }
    let kept = kept_steps(&export.run).ok().flatten();
    for step in kept.iter().flat_map(|file| &file.steps) {
        let Some(commit) = step.commit_step() else {
            continue;
        };
        let command = row(export, &step.phase, &step.name);
        let is_done = command.is_some_and(|row| row.status == StepStatus::Completed);
        if is_done && row(export, &step.phase, &commit).is_none() {
            open.push(StepIdentity::new(&step.phase, 0, commit));
        }
    }
    open
}

/// Why this file cannot go on with the run, if it lacks a step which was begun and is not done, or
/// has a new one in front of it: what that step left half made would be in what the others do.
pub(super) fn passes_over_cut_off(file: &StepFile, export: &RunExport) -> Option<AdapterError> {
    let open = cut_off(export);
    let is_there = |step: &StepIdentity| file.place_of(&step.phase, &step.step).is_some();
    let gone: Vec<StepIdentity> = open
        .iter()
        .filter(|step| !is_there(step))
        .cloned()
        .collect();
    let places = open
        .iter()
        .filter_map(|step| file.place_of(&step.phase, &step.step));
    let last = places.max().unwrap_or(0);
    let is_new = |step: &&FileStep| row(export, &step.phase, &step.name).is_none();
    let identity = |step: &FileStep| StepIdentity::new(&step.phase, 0, &step.name);
    let in_front = file.steps[..last].iter().filter(is_new).map(identity);
    let in_front: Vec<StepIdentity> = in_front.collect();
    let names = |steps: &[StepIdentity]| {
        let names: Vec<String> = steps.iter().map(StepIdentity::to_string).collect();
        names.join(", ")
    };
    let (what, way) = match (gone.as_slice(), in_front.as_slice()) {
        ([], []) => return None,
        ([], new) => (
            format!(
                "in front of {}, cut off before it was done, is what is new: {}",
                names(&open),
                names(new)
            ),
            "put it behind that step",
        ),
        (gone, _) => (
            format!("cut off before it was done, and gone: {}", names(gone)),
            "put it back into the file as it was",
        ),
    };
    let mut report = PlanReport::default();
    report.gone = gone;
    report.new = in_front;
    let mut refused = AdapterError::from(StepError::PlanChanged(Box::new(report)));
    refused.failure.message = format!(
        "the plan of this run is another than the one on record: {what}; nothing was run; {way}, or give the run up with \"stillframe cancel {}\"",
        export.run.id
    );
    Some(refused)
}

/// Refuses a command in the place of the steps that an interrupted run has still to do.
pub(in crate::commands) fn refuse_steps(record: &RunRecord) -> Result<(), Failure> {
    match kept_steps(record)? {
        Some(_) if !record.status.is_terminal() => Err(has_steps(record)),
        _ => Ok(()),
    }
}

/// Refuses to go on with commands of which the record lacks a secret value: they would be others.
pub(super) fn check_complete(record: &RunRecord, file: &StepFile) -> Result<(), Failure> {
    let text = serde_json::to_string(file).unwrap_or_default();
    match text.contains("[redacted:") {
        false => Ok(()),
        true => Err(Failure::invalid(format!(
            "the commands of run {} have secret values, which are not in the log; go on with the file that has them: \"stillframe run --run-id {} --steps FILE\"; nothing was run",
            record.id, record.id
        ))),
    }
}

pub(super) fn has_steps(record: &RunRecord) -> Failure {
    Failure::invalid(format!(
        "run {} is a run of steps, which a command cannot take the place of; \"stillframe resume {}\" goes on with them, \"stillframe cancel {}\" gives them up; nothing was run",
        record.id, record.id, record.id
    ))
}
