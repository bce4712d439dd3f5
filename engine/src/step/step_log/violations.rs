//! What the policy of a run needs of its record: telling of violations, and what is about to begin.

use std::sync::atomic::Ordering;
use std::time::Instant;

use stillframe_backends::ErrorKind;

use super::StepLog;
use crate::error::Error;
use crate::events::event::EventType;
use crate::id::EventId;
use crate::policy::violation::{PolicyViolation, ViolationAction};
use crate::records::step::{self, Asked, PhaseKey, StepEvent, StepRow, StepStatus};
use crate::step::options::StepOptions;
use crate::step::oversight::Oversight;

impl StepLog {
    /// What watches over the run.
    pub(crate) fn oversight(&self) -> &Oversight {
        &self.inner.oversight
    }

    /// Tells of a violation.
    pub(crate) async fn tell_of(&self, violation: &PolicyViolation) -> Result<(), Error> {
        let told = self.event(EventType::POLICY_VIOLATION, violation);
        self.commit(vec![told]).await
    }

    /// Tells of a violation, and has the work of the run end if it demands that. Answers with the
    /// error that it is.
    pub(crate) async fn violate(&self, violation: PolicyViolation) -> Error {
        let (log, noted) = (self.clone(), violation.clone());
        let told = self.to_the_end(async move { Ok(log.put_violation(noted).await) });
        match told.await {
            Ok(refusal) => refusal,
            Err(e) => {
                // The refusal is the one to tell.
                tracing::warn!(run = %self.run_id(), error = %e.chain(), "a violation is not on record");
                Error::new(ErrorKind::PolicyViolation, violation)
            }
        }
    }

    /// As [`StepLog::violate`], in what is done to its end.
    pub(crate) async fn put_violation(&self, violation: PolicyViolation) -> Error {
        let told = match self.oversight().tell(&violation) {
            Some(told) => self.tell_of(&told).await,
            None => Ok(()),
        };
        if violation.action == ViolationAction::Cancel {
            self.oversight().end_for(violation.clone());
        }
        if let Err(e) = told {
            tracing::warn!(run = %self.run_id(), error = %e.chain(), "a violation is not on record");
        }
        Error::new(ErrorKind::PolicyViolation, violation)
    }

    /// Whether an event of this id is in the log.
    pub(crate) async fn has_event(&self, id: &EventId) -> Result<bool, Error> {
        let (id, reader) = (id.clone(), &self.inner.core.parts.reader);
        let found = reader.read(move |store| store.event(&id)).await?;
        Ok(found.is_some())
    }

    /// Whether a step that is asked for has anything to do.
    pub(crate) async fn is_to_begin(
        &self,
        phase: &PhaseKey,
        options: &StepOptions,
    ) -> Result<bool, Error> {
        let found_phase = self.phase(phase).await?;
        if found_phase.is_some_and(|row| row.status == StepStatus::Skipped) {
            return Ok(false);
        }
        let steps = self.steps().await?.into_iter();
        let found = steps
            .filter(|row| row.phase == *phase)
            .find(|row| row.name == options.name);
        let hash = options.definition_hash();
        let fresh = StepRow::new(phase.clone(), options.name.clone(), hash);
        let asked = step::asked(found, fresh);
        Ok(matches!(asked, Asked::Begin(_) | Asked::Interrupted(_)))
    }

    /// Puts a phase on record before its first step, so that the run can be resumed.
    pub(crate) async fn begin_phase(&self, key: &PhaseKey) -> Result<(), Error> {
        let (log, key) = (self.clone(), key.clone());
        self.to_the_end(async move {
            let _turn = log.inner.turn.lock().await;
            if log.phase(&key).await?.is_some() {
                return Ok(());
            }
            let mut changes = log.phase_change(None, &key, StepEvent::Begun, None)?;
            changes.extend(log.metadata());
            log.commit(changes).await?;
            log.inner.is_used.store(true, Ordering::Release);
            let mut began = log.inner.began.lock().unwrap_or_else(|e| e.into_inner());
            began.entry(key).or_insert_with(Instant::now);
            Ok(())
        })
        .await
    }
}
