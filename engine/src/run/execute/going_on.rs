//! Going on with a run that waits for new input, or for what it is to change.

use std::sync::Arc;

use super::RunTask;
use crate::branches::claim;
use crate::error::Error;
use crate::events::data::data;
use crate::events::event::EventType;
use crate::events::isolation_data::{ChangesRequested, RevisionStarted};
use crate::options::ChangeRequest;
use crate::options::change_request::check_count;
use crate::records::follow_up::FollowUpInput;
use crate::records::revision::{Revision, RevisionRow};
use crate::records::run_row::RunRow;
use crate::saving::waiting;
use crate::state::StateStore;
use crate::state::branch_change::BranchChange;
use crate::state::change::{Change, NewEvent};
use crate::state::isolation_change::IsolationChange;

impl RunTask {
    /// Brings its repositories to what the tasks of the run have waited with, and answers with what
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
        self.resume_tasks().await?;
        let further = self.further_tasks_gone_on().await?;
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
        let mut claims = vec![Change::Branch(Box::new(BranchChange::ClaimFollowUp {
            task_id: task.id.clone(),
            run_id: self.run_id.clone(),
            input_id: claimed.cursor,
            at,
        }))];
        claims.extend(further);
        claims.extend([
            tell(EventType::FOLLOWUP_DETECTED, None),
            tell(EventType::FOLLOWUP_CONSUMED, None),
            tell(EventType::FOLLOWUP_RESUMED, Some(&input.text)),
        ]);
        Ok(claims)
    }

    /// Answers with what decides that the run has to change what it has handed in. Until then nothing
    /// is decided.
    pub(super) async fn revise(&mut self, request: ChangeRequest) -> Result<Vec<Change>, Error> {
        let run_id = self.run_id.clone();
        let read = move |store: &dyn StateStore| {
            Ok((store.revisions(&run_id)?, store.isolation(&run_id)?))
        };
        let (earlier, row) = self.core.parts.reader.read(read).await?;
        check_count(earlier.len())?;
        let at = self.core.parts.now();
        let candidate = row.and_then(|row| row.candidate);
        let revision = Revision {
            number: earlier.len() as u64 + 1,
            reviewer: request.reviewer.clone(),
            created_at: at,
            comment: request.cleaned()?,
            previous_tree: candidate.and_then(|candidate| candidate.tree),
        };
        let requested = ChangesRequested {
            revision: revision.number,
            comment: &revision.comment,
            reviewer: revision.reviewer.as_deref(),
        };
        let tell = |event_type: EventType, said: serde_json::Value| {
            let ids = (&self.session_id, Some(&self.run_id));
            Change::Append(NewEvent::new(event_type, ids.0, ids.1, at, said))
        };
        let started = RevisionStarted {
            revision: revision.number,
        };
        let claims = vec![
            Change::Isolation(IsolationChange::Revise(Box::new(RevisionRow {
                run_id: self.run_id.clone(),
                revision: revision.clone(),
                raw_comment: request.comment.clone(),
            }))),
            tell(EventType::REVIEW_CHANGES_REQUESTED, data(&requested)),
            tell(EventType::REVISION_STARTED, data(&started)),
        ];
        self.revision = Some(Arc::new(revision));
        Ok(claims)
    }

    /// Looks for the input that the run has been gone on with before, and answers with what puts on
    /// record that it works on its tasks again. One whose work has never begun is brought to their
    /// branches first.
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
            let revision = store.revisions(&run.id)?.pop();
            Ok((
                waiting::input_of(store, &run)?,
                before.is_some(),
                revision.map(|row| row.revision),
            ))
        };
        let (input, has_begun, revision) = self.core.parts.reader.read(read).await?;
        self.follow_up = input.map(Arc::new);
        self.revision = revision.map(Arc::new);
        match has_begun {
            false => self.resume_tasks().await?,
            true => self.find_tasks().await?,
        }
        self.begun_tasks().await
    }
}
