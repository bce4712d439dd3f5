//! Recording the parts of a step's work, for observers.

use std::time::Instant;

use super::StepLog;
use crate::error::Error;
use crate::events::event::EventType;
use crate::failure::Failure;
use crate::id::StepId;
use crate::records::step::StepStatus;
use crate::records::task::TaskRow;
use crate::state::change::Change;
use crate::step::adapter_error::AdapterError;

impl StepLog {
    /// Does `work` as a part of an attempt at a step.
    pub(crate) async fn task<T>(
        &self,
        (step_id, attempt): (&StepId, u32),
        name: String,
        work: impl Future<Output = Result<T, AdapterError>>,
    ) -> Result<T, AdapterError> {
        let row = TaskRow {
            run_id: self.run_id().clone(),
            step_id: step_id.clone(),
            name,
            attempt,
            status: StepStatus::Running,
            error: None,
            started_at: self.inner.core.parts.now(),
            completed_at: None,
            duration_ms: None,
        };
        let log = self.clone();
        let begun = self.to_the_end(async move {
            log.put_task(&row, EventType::TASK_STARTED).await?;
            Ok(DroppedTask {
                log,
                began: Instant::now(),
                row: Some(row),
            })
        });
        let mut dropped = begun.await?;
        let result = work.await;
        let Some(row) = dropped.row.take() else {
            return result;
        };
        let (status, told) = match &result {
            Ok(_) => (StepStatus::Completed, EventType::TASK_COMPLETED),
            Err(_) => (StepStatus::Failed, EventType::TASK_FAILED),
        };
        let error = result.as_ref().err().map(|e| e.failure.clone());
        let at = self.inner.core.parts.now();
        let ended = row.ended(status, error, at, dropped.began.elapsed());
        let log = self.clone();
        self.to_the_end(async move { log.put_task(&ended, told).await })
            .await?;
        result
    }

    async fn put_task(&self, row: &TaskRow, told: EventType) -> Result<(), Error> {
        let put = Change::PutTask(Box::new(row.clone()));
        self.commit(vec![put, self.event(told, row.said())]).await
    }
}

/// A task whose work is being done. Dropped before that has ended, it ends the task.
struct DroppedTask {
    log: StepLog,
    began: Instant,
    row: Option<TaskRow>,
}

impl Drop for DroppedTask {
    fn drop(&mut self) {
        let Some(row) = self.row.take() else {
            return;
        };
        if self.log.is_closed() {
            // Its step has ended, which says what became of it.
            return;
        }
        let (log, worked) = (self.log.clone(), self.began.elapsed());
        let failure = Failure::of_work("its future was dropped before it had ended");
        let at = log.inner.core.parts.now();
        let ended = row.ended(StepStatus::Failed, Some(failure), at, worked);
        let end = async move {
            if let Err(e) = log.put_task(&ended, EventType::TASK_FAILED).await {
                tracing::warn!(error = %e.chain(), "a task that was dropped is not ended");
            }
        };
        let tracked = self.log.inner.under_way.track_future(end);
        self.log.inner.core.spawn(tracked);
    }
}
