//! Going on with a run that waits for new input.

use std::sync::Arc;

use super::RunTask;
use stillframe_backends::ErrorKind;

use crate::branches::claim;
use crate::error::Error;
use crate::events::event::EventType;
use crate::records::follow_up::FollowUpInput;
use crate::records::run_row::RunRow;
use crate::saving::save::Prepared;
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
        let beside = (claimed.branch != task.branch).then(|| (&*claimed.branch, &*claimed.commit));
        if let Some(place) = self.workspace.clone() {
            self.on_branch = self.resume_task(&place, beside).await?;
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

    /// Looks for the input that the run has been gone on with before, and answers with what puts on
    /// record that it works on its task again. One whose work has never begun is brought to the branch
    /// of that first.
    pub(super) async fn again(&mut self, row: &RunRow) -> Result<Vec<Change>, Error> {
        let (run, before) = (
            row.clone(),
            row.workspace.as_ref().map(|w| w.before.clone()),
        );
        let read = move |store: &dyn StateStore| {
            let before = match &before {
                Some(before) => store.snapshot(before)?,
                None => None,
            };
            Ok((waiting::input_of(store, &run)?, before.is_some()))
        };
        let (input, has_begun) = self.core.parts.reader.read(read).await?;
        self.follow_up = input.map(Arc::new);
        let (Some(branch), Some(place)) = (&self.options.work_branch, self.workspace.clone())
        else {
            return Ok(Vec::new());
        };
        match has_begun {
            false => self.on_branch = self.resume_task(&place, None).await?,
            true => match Prepared::of(&self.core, place.opened, branch).await {
                Ok(prepared) => self.task = Some(prepared.task_id().clone()),
                // There is no repository, and so no branch. The end says so.
                Err(e) if e.kind() == ErrorKind::Unsupported => {}
                Err(e) => return Err(e),
            },
        }
        let Some(task) = &self.task else {
            return Ok(Vec::new());
        };
        let begun = waiting::begun(&self.core, task, &self.run_id).await?;
        Ok(vec![begun])
    }
}
