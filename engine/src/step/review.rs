//! Recording reviews, by the adapter of a run or by the host.

use crate::actors::core::Core;
use crate::error::Error;
use crate::id::{ReviewId, SessionId, StepId};
use crate::records::review::{ReviewDraft, ReviewRecord};
use crate::state::change::Change;
use crate::state::hold::Hold;
use crate::step::context::RunContext;
use crate::step::emit;

impl RunContext {
    /// Records a review of something, for the run. [`Engine::reviews`](crate::Engine::reviews)
    /// lists it, and so does the record of the run.
    ///
    /// # Errors
    ///
    /// Nothing was written. `InvalidOptions`: a name is empty or too long, the review approves and
    /// blocks, or it is for another run. `LimitExceeded`: summary or issues are too large.
    /// `Conflict`: the run has ended, or another engine has taken it over.
    pub async fn record_review(&self, draft: ReviewDraft) -> Result<ReviewRecord, Error> {
        self.steps.record_review(self.step_id.clone(), draft).await
    }
}

/// Writes a review of a host, or of the adapter of the run that is held.
pub(crate) async fn record(
    core: &Core,
    session_id: &SessionId,
    of: Option<(&Hold, Option<StepId>)>,
    draft: ReviewDraft,
) -> Result<ReviewRecord, Error> {
    core.parts.check_available()?;
    draft.check().map_err(|e| Error::new(e.kind(), e))?;
    let mut changes: Vec<Change> = of.iter().map(|(hold, _)| hold.fence()).collect();
    let (run_id, step_id) = match (of, draft.run_id) {
        (Some((hold, _)), Some(other)) if other != hold.run_id => {
            return Err(Error::invalid_options(format!(
                "run {} cannot record a review for run {other}; nothing was written",
                hold.run_id
            )));
        }
        (Some((hold, step_id)), _) => (Some(hold.run_id.clone()), step_id),
        (None, named) => {
            emit::check_runs(core, session_id, named.iter().cloned().collect()).await?;
            (named, None)
        }
    };
    let mut record = ReviewRecord {
        id: ReviewId::random(),
        session_id: session_id.clone(),
        run_id,
        step_id,
        target_type: draft.target_type,
        target_ref: draft.target_ref,
        approved: draft.approved,
        blocking: draft.blocking,
        summary: draft.summary,
        issues: draft.issues,
        created_at: core.parts.now(),
    };
    // The caller gets it as it is kept.
    record.redact(core.parts.writer.secrets());
    changes.push(Change::RecordReview(Box::new(record.clone())));
    core.parts.writer.commit(changes).await?;
    Ok(record)
}
