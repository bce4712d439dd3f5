//! The phases of a run, made from the rows.

use crate::id::RunId;
use crate::records::run_record::RunExport;
use crate::records::step_record::{PhaseRecord, StepRecord};
use crate::records::task::{TaskRecord, TaskRow};
use crate::state::StateStore;
use crate::state::error::StateError;

impl RunExport {
    /// The phases of a run with their steps, as the rows have them.
    pub(crate) fn phases_of(
        store: &dyn StateStore,
        run_id: &RunId,
    ) -> Result<Vec<PhaseRecord>, StateError> {
        let phases = store.phases(run_id)?.into_iter();
        let mut records: Vec<PhaseRecord> = phases.map(PhaseRecord::from).collect();
        let mut tasks = store.tasks(run_id)?;
        for step in store.steps(run_id)? {
            let phase = records.iter_mut().find(|record| {
                record.name == step.phase.phase && record.iteration == step.phase.iteration
            });
            let Some(phase) = phase else { continue };
            let is_own = |task: &mut TaskRow| task.step_id == step.id;
            let own: Vec<TaskRow> = tasks.extract_if(.., is_own).collect();
            let last = own.into_iter().filter(|task| task.attempt == step.attempt);
            let tasks = last.map(|task| TaskRecord::of(task, step.status)).collect();
            phase.steps.push(StepRecord {
                tasks,
                ..StepRecord::from(step)
            });
        }
        Ok(records)
    }
}
