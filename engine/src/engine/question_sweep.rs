//! The periodic look at questions while the engine runs: it records default answers at their
//! deadline, and resumes runs whose questions are answered.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::actors::core::{Core, Shared};
use crate::blocking::panic_text;
use crate::engine::Engine;
use crate::engine::options::Resumer;
use crate::error::Error;
use crate::id::{QuestionId, RunId};
use crate::options::RunQuery;
use crate::records::question::{QuestionRow, QuestionStatus};
use crate::records::run::RunStatus;
use crate::records::session::SessionStatus;
use crate::records::step::StepRow;
use crate::state::StateStore;
use crate::step::answering::settle_ripe;

/// Looks after questions for as long as the engine is there: answers those whose time is up, and
/// goes on with the runs that wait no more, if the host has said how.
pub(crate) async fn sweep(engine: Weak<Shared>, resumer: Option<Arc<Resumer>>) {
    let mut offers = Offers::default();
    loop {
        let Some(shared) = engine.upgrade() else {
            return;
        };
        let (every, stopped) = (
            shared.parts.settings.question_sweep,
            shared.parts.stopped.clone(),
        );
        drop(shared);
        tokio::select! {
            () = tokio::time::sleep(every) => {}
            () = stopped.cancelled() => return,
        }
        let Some(core) = engine.upgrade().map(Core::from) else {
            return;
        };
        if let Err(e) = settle_ripe(&core, None).await {
            tracing::warn!(error = %e.chain(), "questions whose time is up are not settled");
        }
        let Some(resumer) = &resumer else { continue };
        if let Err(e) = resume_answered(&Engine { core }, &**resumer, &mut offers).await {
            tracing::warn!(error = %e.chain(), "runs that were answered are not gone on with");
        }
    }
}

/// The runs that the host was asked to go on with, and when it is asked again: what stops one may
/// not pass.
#[derive(Debug, Default)]
pub(crate) struct Offers(HashMap<RunId, Offer>);

#[derive(Debug)]
pub(crate) struct Offer {
    /// The answers that it was to go on with.
    answers: Vec<QuestionId>,
    next: Instant,
    pause: Duration,
}

impl Offers {
    /// The longest pause between two offers, in the time between two looks.
    const MAX_PAUSE: u32 = 64;

    /// Whether the host is to be asked now: each time with other answers; after that less and less
    /// often.
    fn is_due(&self, id: &RunId, answers: &[QuestionId], now: Instant) -> bool {
        let earlier = self.0.get(id).filter(|offer| offer.answers == answers);
        earlier.is_none_or(|offer| offer.next <= now)
    }

    /// The host has taken the offer, or has failed at it.
    fn made(&mut self, id: &RunId, answers: Vec<QuestionId>, now: Instant, every: Duration) {
        let pause = match self.0.get(id) {
            Some(offer) if offer.answers == answers => {
                (offer.pause * 2).min(every * Self::MAX_PAUSE)
            }
            _ => every,
        };
        let offer = Offer {
            answers,
            // The next look is never quite so late.
            next: now + pause - every / 2,
            pause,
        };
        self.0.insert(id.clone(), offer);
    }

    /// Forgets those that wanted nothing for long.
    fn forget_old(&mut self, now: Instant) {
        self.0.retain(|_, offer| now < offer.next + offer.pause * 2);
    }
}

/// Goes on with the runs that have their answers: those that rest, and those that were interrupted
/// before they used them.
pub(crate) async fn resume_answered(
    engine: &Engine,
    resumer: &Resumer,
    offers: &mut Offers,
) -> Result<(), Error> {
    let parts = &engine.core.parts;
    let (now, every) = (Instant::now(), parts.settings.question_sweep);
    offers.forget_old(now);
    let query = RunQuery::default()
        .incomplete()
        .status(RunStatus::WaitingForInput)
        .status(RunStatus::Interrupted);
    for run in engine.runs(query).await? {
        let ids = (run.session_id.clone(), run.id.clone());
        let read = move |store: &dyn StateStore| {
            let steps = store.steps(&ids.1)?;
            Ok((store.session(&ids.0)?, store.questions(&ids.1)?, steps))
        };
        let (session, questions, steps) = match parts.reader.read(read).await {
            Ok(found) => found,
            Err(e) => {
                tracing::warn!(run = %run.id, error = %e.chain(), "not gone on with");
                continue;
            }
        };
        // One whose step is done has not waited for it.
        let is_wanted = |row: &QuestionRow| {
            let of = |step: &&StepRow| row.place.step_id.as_ref() == Some(&step.id);
            steps
                .iter()
                .find(of)
                .is_none_or(|step| !step.status.is_settled())
        };
        let is_unused = |row: &QuestionRow| {
            row.status == QuestionStatus::Answered && row.resumed_at.is_none() && is_wanted(row)
        };
        let answers = questions.into_iter().filter(is_unused);
        let answers: Vec<QuestionId> = answers.map(|row| row.id).collect();
        let was_answered = run.status == RunStatus::WaitingForInput || !answers.is_empty();
        // One that is paused takes its runs again when it is resumed.
        if !was_answered || session.is_none_or(|session| session.status != SessionStatus::Active) {
            continue;
        }
        if !offers.is_due(&run.id, &answers, now) {
            continue;
        }
        // It is the host's code, and the sweep is for every run.
        let offered = std::panic::catch_unwind(AssertUnwindSafe(|| resumer(&run)));
        let (options, adapter) = match offered {
            Ok(Some(how)) => {
                offers.made(&run.id, answers, now, every);
                how
            }
            // It says so itself when it is ready.
            Ok(None) => continue,
            Err(payload) => {
                offers.made(&run.id, answers, now, every);
                let text = panic_text(&*payload);
                tracing::warn!(run = %run.id, "not gone on with, because the resumer panicked: {text}");
                continue;
            }
        };
        let (engine, options) = (engine.clone(), options.run_id(run.id.clone()));
        let core = engine.core.clone();
        // Two engines that look at the same time both begin; one gets the lease.
        core.spawn(async move {
            if let Err(e) = engine.run_once(options, adapter).await {
                tracing::warn!(run = %run.id, error = %e.chain(), "not gone on with");
            }
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_could_go_on_with_is_offered_less_and_less_often_until_it_has_another_answer() {
        let every = Duration::from_secs(15);
        let (began, id): (_, RunId) = (Instant::now(), "r".parse().unwrap());
        let (first, second) = (QuestionId::random(), QuestionId::random());
        let mut offers = Offers::default();
        let mut at = |look: u32, answer: &QuestionId| {
            let now = began + every * look;
            offers.forget_old(now);
            let is_due = offers.is_due(&id, std::slice::from_ref(answer), now);
            if is_due {
                offers.made(&id, vec![answer.clone()], now, every);
            }
            is_due
        };
        let due: Vec<u32> = (0..20).filter(|look| at(*look, &first)).collect();
        assert_eq!(due, [0, 1, 3, 7, 15]);
        assert!(at(20, &second), "it has another answer");
        assert!(at(21, &second));
        assert!(!at(22, &second));
        assert!(at(60, &second), "it went on, and rests again");
        assert!(at(61, &second));
    }
}
