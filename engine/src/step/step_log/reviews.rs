//! Recording the reviews of the run.

use super::StepLog;
use crate::error::Error;
use crate::id::StepId;
use crate::records::review::{ReviewDraft, ReviewRecord};
use crate::step::review;

impl StepLog {
    /// Writes a review of the adapter's.
    pub(crate) async fn record_review(
        &self,
        step_id: Option<StepId>,
        draft: ReviewDraft,
    ) -> Result<ReviewRecord, Error> {
        let inner = self.inner.clone();
        let written = async move {
            let of = Some((&inner.hold, step_id));
            review::record(&inner.core, &inner.session_id, of, draft).await
        };
        self.to_the_end(written).await
    }
}
