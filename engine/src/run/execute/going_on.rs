//! Going on with a run that waits for new input.

use std::sync::Arc;

use super::RunTask;
use crate::branches::claim;
use crate::error::Error;
use crate::events::event::EventType;
use crate::records::follow_up::FollowUpInput;
use crate::records::run_row::RunRow;
use crate::saving::waiting;
use crate::state::StateStore;
use crate::state::branch_change::BranchChange;
use crate::state::change::{Change, NewEvent};

impl RunTask {
    /// Brings the workspace to what the task of the run has waited with, and answers with what
    /// claims that for the run. Until then nothing is claimed.
    pub(super) async fn follow_up(&mut self, input: FollowUpInput) -> Result<Vec<Change>, Error> {
        let run_id = self.run_id.clone();
        let read = move |store: &dyn StateStore| {
            let run = store.run(&run_id)?;
            let task = match run {
                Some(run) => waiting::waited_for(store, &run)?,
                None => None,
            };
            match task {
                Some(task) => Ok(Some((store.follow_up(&task.id)?, task))),
                None => Ok(None),
            }
        };
        let found = self.core.parts.reader.read(read).await?;
        let (row, task) = found.ok_or_else(|| {
            let message = format!(
                "run {} is of no task that waits; nothing was done",
                self.run_id
            );
            Error::not_found(message)
        })?;
        let claimed = claim::claim(&task, row.as_ref(), &input);
        let claimed = claimed.map_err(|e| Error::new(e.kind(), e))?;
        let row = row.expect("one was claimed");
        self.task = Some(task.id.clone());
        // What is beside the task's branch is in the workspace alone, where the run left it.
        if claimed.branch == task.branch
            && let Some(place) = self.workspace.clone()
        {
            self.on_branch = self.resume_task(&place).await?;
        }
        self.follow_up = Some(Arc::new(input.clone()));
        let (at, ids) = (
            self.core.parts.now(),
            (&self.session_id, Some(&self.run_id)),
        );
        let tell = |event_type: EventType, text: Option<&str>| {
            let mut said = waiting::moved(&row, Some((input.id, &self.run_id)));
            said.text = text;
            Change::Append(NewEvent::new(event_type, ids.0, ids.1, at, said))
        };
        Ok(vec![
            Change::Branch(Box::new(BranchChange::ClaimFollowUp {
                task_id: task.id.clone(),
                run_id: self.run_id.clone(),
                input_id: claimed.cursor,
                at,
            })),
            tell(EventType::FOLLOWUP_DETECTED, None),
            tell(EventType::FOLLOWUP_CONSUMED, None),
            tell(EventType::FOLLOWUP_RESUMED, Some(&input.text)),
        ])
    }

    /// Looks for the input that the run has been gone on with before.
    pub(super) async fn earlier_input(&mut self, row: &RunRow) -> Result<(), Error> {
        let row = row.clone();
        let reader = &self.core.parts.reader;
        let input = reader
            .read(move |store| waiting::input_of(store, &row))
            .await?;
        self.follow_up = input.map(Arc::new);
        Ok(())
    }
}
