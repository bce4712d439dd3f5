//! Asking from inside a run: a recorded answer is returned at once; otherwise the question waits.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use stillframe_backends::{ErrorKind, SnapshotId};
use tokio::task::futures::TaskLocalFuture;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::StepLog;
use super::waiting::{Asker, Waiter, Waiting, next_number};
use crate::actors::run::Step;
use crate::error::Error;
use crate::events::data::{QuestionMoved, ToolApproval, data};
use crate::events::event::EventType;
use crate::id::{EventId, QuestionId, StepId};
use crate::policy::ALLOW;
use crate::records::lease::Moment;
use crate::records::question::{Answer, Question, QuestionPlace, QuestionRow, QuestionStatus};
use crate::records::run::{RunEvent, RunStatus};
use crate::records::step::{StepRow, StepStatus};
use crate::state::change::Change;
use crate::step::answering;
use crate::step::pieces::Pieces;
use crate::step::work_clock::WorkClock;

/// How often a question is looked at that nobody rings for: another process may have answered.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How often a question that moves while it is withdrawn is looked at again.
const MAX_LOOKS: usize = 4;

/// A call of a tool that a question is about.
#[derive(Clone, Debug)]
pub(crate) struct Approval {
    /// What the adapter that tells of the call calls it.
    pub(crate) call_id: Option<String>,
    pub(crate) tool_name: String,
}

impl Approval {
    fn said<'a>(&'a self, question: &'a QuestionId, message: Option<&'a str>) -> ToolApproval<'a> {
        ToolApproval {
            question_id: question,
            call_id: self.call_id.as_deref(),
            tool_name: &self.tool_name,
            message,
        }
    }
}

tokio::task_local! {
    /// The innermost part of a run's work around what is done: a question that is asked in it waits
    /// in it, and one that is asked beside it does not.
    static AROUND: u64;
}

/// A part of a run's work, as a step that somebody has asked for, until it has ended and this is
/// dropped.
pub(crate) struct AtWork {
    log: StepLog,
    /// Names it in this process.
    pub(crate) number: u64,
}

impl AtWork {
    /// Does `work` as this part: what it asks waits in it, unless it asks in a task of its own.
    ///
    /// It is boxed, because parts lie in each other, and each would make those around it larger.
    pub(crate) fn of<F: Future>(&self, work: F) -> TaskLocalFuture<u64, Pin<Box<F>>> {
        AROUND.scope(self.number, Box::pin(work))
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        let number = self.number;
        self.log.change_waiting(|waiting| {
            waiting.steps.remove(&number);
            waiting.parts.remove(&number)
        });
    }
}

/// A step that is about to ask, until its question is on record and this is dropped.
struct BeginsToAsk {
    log: StepLog,
    number: u64,
}

impl Drop for BeginsToAsk {
    fn drop(&mut self) {
        let about = &mut self.log.waiting().about_to_ask;
        if let Some(asks) = about.get_mut(&self.number) {
            asks.questions -= 1;
            if asks.questions == 0 {
                about.remove(&self.number);
            }
        }
    }
}

impl StepLog {
    fn waiting(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.inner.waiting.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Changes what is waited for and what is done: both say whether time counts as work.
    fn change_waiting<T>(&self, change: impl FnOnce(&mut Waiting) -> T) -> T {
        let mut waiting = self.waiting();
        let changed = change(&mut waiting);
        self.inner.clock.go(waiting.clock_goes());
        changed
    }

    /// How long the run is worked on in this process.
    pub(crate) fn clock(&self) -> &WorkClock {
        &self.inner.clock
    }

    /// Counts a step among those that are being done. `within`: the step in which it is.
    pub(crate) fn at_work(&self, within: Option<u64>) -> AtWork {
        let part = self.part(within);
        self.change_waiting(|waiting| waiting.steps.insert(part.number, within));
        part
    }

    /// Counts a part of the work that is no step among those that are being done: time counts as
    /// work though a question waits beside it.
    pub(crate) fn part(&self, within: Option<u64>) -> AtWork {
        let number = next_number();
        self.change_waiting(|waiting| {
            let around = innermost(waiting, within);
            waiting.parts.insert(number, around)
        });
        AtWork {
            log: self.clone(),
            number,
        }
    }

    /// Notes that a piece of a message has come, which is work where it comes beside a question.
    pub(crate) fn note_piece(&self, message: &Arc<Pieces>) {
        let mut waiting = self.waiting();
        if !waiting.open.is_empty() {
            let address = Arc::as_ptr(message).addr();
            waiting.streams.insert(address, next_number());
            self.inner.clock.go(waiting.clock_goes());
        }
    }

    /// Notes that no more pieces of a message come.
    pub(crate) fn note_end_of_pieces(&self, message: &Arc<Pieces>) {
        let address = Arc::as_ptr(message).addr();
        self.change_waiting(|waiting| waiting.streams.remove(&address));
    }

    /// Whether the run waits for an answer.
    pub(crate) fn is_asking(&self) -> bool {
        !self.waiting().open.is_empty()
    }

    /// The questions that are waited for.
    pub(crate) fn open_questions(&self) -> Vec<QuestionId> {
        self.waiting().open.keys().cloned().collect()
    }

    /// Comes back once the run has waited for so long that its engine need not wait with it.
    pub(crate) async fn parked(&self) {
        self.inner.parking.cancelled().await;
    }

    /// Notes, before a part of the work of a step is done and after it, that the step does it,
    /// which may wait for an answer beside it. `within`: the step.
    ///
    /// What shows that a step goes on while it waits has it count as at work until it is
    /// interrupted: what is there by then is its own, and not only what was there when it asked.
    pub(crate) async fn note_work(&self, within: Option<u64>) -> Result<(), Error> {
        let Some(number) = within else {
            return Ok(());
        };
        if let Some(asks) = self.waiting().about_to_ask.get_mut(&number) {
            asks.has_worked = true;
        }
        if self.waits(within).is_none() {
            return Ok(());
        }
        let _turn = self.inner.turn.lock().await;
        let Some(step_id) = self.waits(within).filter(|_| !self.is_closed()) else {
            return Ok(());
        };
        match self.left_so_far(&step_id, None).await? {
            Some(change) => self.commit(vec![change]).await,
            None => Ok(()),
        }
    }

    /// As [`StepLog::note_work`], after the part: it may have asked since. The work is done, even
    /// if that cannot be recorded.
    pub(crate) async fn note_worked(&self, within: Option<u64>) {
        if let Err(e) = self.note_work(within).await {
            tracing::warn!(error = %e.chain(), "not noted that a step works while it waits");
        }
    }

    /// Counts a step among those that are about to ask: what it does from here on it does beside
    /// its question.
    fn begins_to_ask(&self, asker: Option<u64>) -> Option<BeginsToAsk> {
        let number = asker?;
        let mut waiting = self.waiting();
        waiting.about_to_ask.entry(number).or_default().questions += 1;
        let log = self.clone();
        Some(BeginsToAsk { log, number })
    }

    /// Whether a step that is about to ask does something else as well.
    fn has_worked(&self, asker: Option<u64>) -> bool {
        let waiting = self.waiting();
        let asks = asker.and_then(|number| waiting.about_to_ask.get(&number));
        asks.is_some_and(|asks| asks.has_worked)
    }

    /// The step of this number, if it waits for an answer.
    fn waits(&self, number: Option<u64>) -> Option<StepId> {
        let waiting = self.waiting();
        let mut of_step = waiting.open.values().filter(|w| w.asker.step == number);
        of_step.find_map(|waiter| waiter.step_id.clone())
    }

    /// Asks, and waits for the answer. `asker`: the step that waits with it. `approval`: the call
    /// that is allowed or refused with the answer.
    pub(crate) async fn ask(
        &self,
        place: QuestionPlace,
        asker: Option<u64>,
        (question, approval): (&Question, Option<Approval>),
        cancellation: &CancellationToken,
    ) -> Result<Answer, Error> {
        question.check()?;
        let began = Instant::now();
        let asker = Asker {
            step: asker,
            part: innermost(&self.waiting(), asker),
        };
        let (log, asked, cancelled) = (self.clone(), question.clone(), cancellation.clone());
        let (begins, about) = (self.begins_to_ask(asker.step), approval.clone());
        let begun = self.to_the_end(async move {
            let _begins = begins;
            let asked = (&asked, about.as_ref());
            let row = log.begin_asking(place, asker, asked, &cancelled).await?;
            let guard = Asked {
                id: row.answer().is_none().then(|| row.id.clone()),
                log,
                cancellation: cancelled,
            };
            if guard.log.has_worked(asker.step) {
                // Maybe since that was looked at.
                guard.log.note_work(asker.step).await?;
            }
            Ok((row, guard))
        });
        let (row, mut guard) = begun.await?;
        if let Some(answer) = row.answer() {
            return Ok(answer);
        }
        let hot_wait = self.inner.hot_wait;
        // An answer comes with an event of the session.
        let session_id = Some(&self.inner.session_id);
        let mut notifier = self
            .inner
            .core
            .parts
            .writer
            .notifier()
            .subscribe(session_id);
        loop {
            notifier.mark_unchanged();
            if self.inner.parking.is_cancelled() {
                // Its work is about to be stopped.
                cancellation.cancelled().await;
            }
            // First, because answers from here on are for the resumed run.
            if cancellation.is_cancelled() {
                return Err(Error::new(
                    ErrorKind::Cancelled,
                    format!(
                        "question {} was not answered before its run stopped",
                        row.id
                    ),
                ));
            }
            if let Some(answer) = self.look_for_answer(&row.id, &approval).await? {
                guard.id = None;
                return Ok(answer);
            }
            let left = hot_wait.saturating_sub(began.elapsed());
            self.park_if_cold(&row.id, left.is_zero());
            let next = match left.is_zero() {
                true => LOOK_EVERY,
                false => left.min(LOOK_EVERY),
            };
            tokio::select! {
                // Rung by this engine; others are looked for.
                Ok(()) = notifier.changed() => {}
                () = cancellation.cancelled() => {}
                () = tokio::time::sleep(next) => {}
            }
        }
    }

    /// Has the run rest, if it can be resumed and nothing is done in it but to wait.
    fn park_if_cold(&self, id: &QuestionId, is_cold: bool) {
        let mut waiting = self.waiting();
        if let Some(waiter) = waiting.open.get_mut(id) {
            waiter.is_cold = is_cold;
        }
        if is_cold && self.is_resumable() && waiting.is_cold() {
            self.inner.parking.cancel();
        }
    }

    /// Puts the question on record, or finds it there.
    async fn begin_asking(
        &self,
        place: QuestionPlace,
        asker: Asker,
        (question, approval): (&Question, Option<&Approval>),
        cancellation: &CancellationToken,
    ) -> Result<QuestionRow, Error> {
        let _turn = self.inner.turn.lock().await;
        let found = self.questions().await?;
        let found = match found.into_iter().find(|row| row.place == place) {
            Some(row) => Some(answering::settled(&self.inner.core, row).await?),
            None => None,
        };
        let (at, now) = (self.inner.core.parts.now(), Moment::now()?);
        let fresh = || QuestionRow::new(self.run_id().clone(), place.clone(), question, at, &now);
        let row = match &found {
            Some(row) if row.status == QuestionStatus::Answered => {
                let row = row.clone();
                // It goes on with this one, also where it still waits for another.
                let waits = row
                    .place
                    .step_id
                    .clone()
                    .filter(|_| self.waits(asker.step).is_some());
                let goes_on = match waits {
                    Some(step_id) => self.left_so_far(&step_id, None).await?,
                    None => None,
                };
                return self.consume(row, goes_on, approval).await;
            }
            Some(row) if row.status == QuestionStatus::Open => row.clone(),
            Some(row) => QuestionRow {
                id: row.id.clone(),
                ..fresh()
            },
            None => fresh(),
        };
        if cancellation.is_cancelled() {
            return Err(Error::new(
                ErrorKind::Cancelled,
                "nothing was asked, because the run ends",
            ));
        }
        let put = Change::PutQuestion {
            from: found.as_ref().map(|row| row.status),
            row: Box::new(row.clone()),
        };
        let mut changes = vec![put];
        let is_asked_already = found.is_some_and(|row| row.status == QuestionStatus::Open);
        if let (Some(approval), false) = (approval, is_asked_already) {
            let said = approval.said(&row.id, Some(&row.place.text));
            changes.push(self.event(EventType::TOOL_APPROVAL_REQUESTED, said));
        }
        if let Some(step_id) = &row.place.step_id {
            // What is there from here on, until it goes on, is not its work.
            let so_far = self.what_is_there(step_id).await;
            let so_far = so_far.filter(|_| !self.has_worked(asker.step));
            changes.extend(self.left_so_far(step_id, so_far).await?);
        }
        let event = (RunEvent::Asked, EventType::QUESTION_ASKED);
        let at = next_number();
        self.move_while_asking(event, &row.id, Some(row.said()), changes, |waiting| {
            let waiter = Waiter {
                asker,
                step_id: row.place.step_id.clone(),
                is_cold: false,
                at,
            };
            waiting.open.insert(row.id.clone(), waiter);
        })
        .await?;
        Ok(row)
    }

    /// A capture of the workspace where a step begins to wait; `None`: it is not captured, or
    /// cannot be now.
    async fn what_is_there(&self, step_id: &StepId) -> Option<SnapshotId> {
        let steps = self.steps().await.ok()?;
        let step = steps.iter().find(|step| step.id == *step_id)?;
        if step.status != StepStatus::Running || step.snapshot_before.is_none() {
            return None;
        }
        let captured = self.capture_after().await;
        if let Err(e) = &captured {
            tracing::warn!(error = %e.chain(), "what a step left that asks is not captured");
        }
        captured.ok().flatten().map(|snapshot| snapshot.id)
    }

    /// Notes what a step that waits has left so far; `left`: `None`: it goes on. Nothing to write
    /// where that is on record.
    async fn left_so_far(
        &self,
        step_id: &StepId,
        left: Option<SnapshotId>,
    ) -> Result<Option<Change>, Error> {
        let steps = self.steps().await?;
        let step = steps.into_iter().find(|step| step.id == *step_id);
        let step = step.filter(|step| step.status == StepStatus::Running);
        let step = step.filter(|step| step.snapshot_after != left);
        Ok(step.map(|step| Change::PutStep {
            run_id: self.run_id().clone(),
            from: Some(step.status),
            row: Box::new(StepRow {
                snapshot_after: left,
                ..step
            }),
        }))
    }

    async fn questions(&self) -> Result<Vec<QuestionRow>, Error> {
        let run_id = self.run_id().clone();
        let reader = &self.inner.core.parts.reader;
        reader.read(move |store| store.questions(&run_id)).await
    }

    /// The answer, which is consumed then; `None`: there is none yet.
    async fn look_for_answer(
        &self,
        id: &QuestionId,
        approval: &Option<Approval>,
    ) -> Result<Option<Answer>, Error> {
        let asked = id.clone();
        let reader = &self.inner.core.parts.reader;
        let found = reader.read(move |store| store.question(&asked)).await?;
        let Some(found) = found else {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!("question {id} is gone"),
            ));
        };
        let found = answering::settled(&self.inner.core, found).await?;
        if found.status == QuestionStatus::Withdrawn {
            return Err(Error::new(
                ErrorKind::Conflict,
                format!("question {id} was taken back, because its run has ended"),
            ));
        }
        let Some(answer) = found.answer() else {
            return Ok(None);
        };
        let (log, approval) = (self.clone(), approval.clone());
        self.to_the_end(async move {
            let _turn = log.inner.turn.lock().await;
            let id = found.id.clone();
            let event = (RunEvent::Answered, EventType::QUESTION_CONSUMED);
            let mut put = log.consumption(&found, approval.as_ref());
            if let Some(step_id) = &found.place.step_id {
                put.extend(log.left_so_far(step_id, None).await?);
            }
            log.move_while_asking(event, &id, Some(found.said()), put, |waiting| {
                waiting.open.remove(&id);
            })
            .await
        })
        .await?;
        Ok(Some(answer))
    }

    /// Answers from the record. `goes_on`: what that means for the step.
    async fn consume(
        &self,
        row: QuestionRow,
        goes_on: Option<Change>,
        approval: Option<&Approval>,
    ) -> Result<QuestionRow, Error> {
        let mut changes = self.consumption(&row, approval);
        if !changes.is_empty() {
            changes.push(self.event(EventType::QUESTION_CONSUMED, row.said()));
        }
        changes.extend(goes_on);
        if !changes.is_empty() {
            self.commit(changes).await?;
        }
        Ok(row)
    }

    /// What the log gets to know the first time that an answer is used.
    fn consumption(&self, row: &QuestionRow, approval: Option<&Approval>) -> Vec<Change> {
        if row.resumed_at.is_some() {
            return Vec::new();
        }
        let decided = approval.map(|approval| {
            let (event_type, message) = match row.answer.as_deref() == Some(ALLOW) {
                true => (EventType::TOOL_APPROVAL_GRANTED, None),
                false => (
                    EventType::TOOL_APPROVAL_DENIED,
                    row.timed_out.then_some("nobody answered in time"),
                ),
            };
            self.event(event_type, approval.said(&row.id, message))
        });
        let row = QuestionRow {
            resumed_at: Some(self.inner.core.parts.now()),
            ..row.clone()
        };
        let put = Change::PutQuestion {
            from: Some(row.status),
            row: Box::new(row),
        };
        std::iter::once(put).chain(decided).collect()
    }

    /// Goes on without the answers that are still waited for. What keeps one from being withdrawn
    /// is in no other's way; the first such failure is the answer.
    pub(crate) async fn withdraw_all(&self) -> Result<(), Error> {
        let mut all = Ok(());
        for id in self.open_questions() {
            let withdrawn = self.withdraw(&id).await;
            all = all.and(withdrawn);
        }
        all
    }

    /// Makes the same question be asked again, because its answer had no effect.
    pub(crate) async fn forget_answer(&self, place: &QuestionPlace) -> Result<(), Error> {
        let _turn = self.inner.turn.lock().await;
        if self.is_closed() {
            return Ok(());
        }
        let found = self.questions().await?;
        let Some(row) = found
            .into_iter()
            .find(|row| row.place == *place && row.status == QuestionStatus::Answered)
        else {
            return Ok(());
        };
        let told = self.event(EventType::QUESTION_WITHDRAWN, row.said());
        let put = Change::PutQuestion {
            from: Some(row.status),
            row: Box::new(row.withdrawn()),
        };
        self.commit(vec![put, told]).await
    }

    /// Goes on without an answer. An answer that exists stays on record, for the next time that
    /// this question is asked.
    async fn withdraw(&self, id: &QuestionId) -> Result<(), Error> {
        let _turn = self.inner.turn.lock().await;
        let mut looks = 1;
        loop {
            match self.try_withdraw(id).await {
                // It was answered, or its time was up, since it was looked at.
                Err(e) if e.kind() == ErrorKind::Conflict && looks < MAX_LOOKS => looks += 1,
                withdrawn => return withdrawn,
            }
        }
    }

    async fn try_withdraw(&self, id: &QuestionId) -> Result<(), Error> {
        if !self.waiting().open.contains_key(id) {
            // Its answer came at the last moment.
            return Ok(());
        }
        let asked = id.clone();
        let reader = &self.inner.core.parts.reader;
        let found = reader.read(move |store| store.question(&asked)).await?;
        let mut put = Vec::new();
        if let Some(row) = &found
            && row.status == QuestionStatus::Open
        {
            put.push(Change::PutQuestion {
                from: Some(row.status),
                row: Box::new(row.clone().withdrawn()),
            });
        }
        if let Some(step_id) = found.as_ref().and_then(|row| row.place.step_id.as_ref()) {
            put.extend(self.left_so_far(step_id, None).await?);
        }
        let said = found.as_ref().map(QuestionRow::said);
        let event = (RunEvent::Withdrawn, EventType::QUESTION_WITHDRAWN);
        self.move_while_asking(event, id, said, put, |waiting| {
            waiting.open.remove(id);
        })
        .await
    }

    /// Takes back what nobody waits for any more, as soon as that can be written down. What ends
    /// the run does it too.
    async fn withdraw_left(&self, id: &QuestionId, cancellation: &CancellationToken) {
        loop {
            let Err(e) = self.withdraw(id).await else {
                return;
            };
            tracing::warn!(question = %id, error = %e.chain(), "not withdrawn");
            if e.kind() == ErrorKind::Conflict || self.is_closed() || cancellation.is_cancelled() {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = cancellation.cancelled() => return,
            }
        }
    }

    /// Writes `changes` and tells of them; with the first question that is waited for the run is
    /// asking, and with the last one no more. `id` is the one that begins or ends; `wait` changes
    /// what is waited for, once that is durable. Has to be called in turn.
    async fn move_while_asking(
        &self,
        (event, told): (RunEvent, EventType),
        id: &QuestionId,
        said: Option<QuestionMoved<'_>>,
        mut changes: Vec<Change>,
        wait: impl Fn(&mut Waiting),
    ) -> Result<(), Error> {
        let mut then = self.waiting().clone();
        wait(&mut then);
        let said = said.map(|said| QuestionMoved {
            work_goes_on: !then.open.is_empty() && then.clock_goes(),
            ..said
        });
        let status = {
            let run_id = self.run_id().clone();
            let reader = &self.inner.core.parts.reader;
            let row = reader.read(move |store| store.run(&run_id)).await?;
            row.map(|row| row.status)
        };
        let has_others = self.waiting().open.keys().any(|other| other != id);
        let moves = match event {
            RunEvent::Asked => status == Some(RunStatus::Running),
            _ => status == Some(RunStatus::Asking) && !has_others,
        };
        if moves {
            changes.insert(0, self.inner.hold.fence());
            let step = Step {
                run_id: self.run_id().clone(),
                event,
                from: None,
                event_id: EventId::random(),
                data: data(&said),
                ending: None,
                block: None,
                changes,
            };
            let core = &self.inner.core;
            core.step_run(&self.inner.session_id, step).await?;
        } else {
            changes.push(self.event(told, said));
            self.commit(changes).await?;
        }
        self.change_waiting(wait);
        Ok(())
    }
}

/// The innermost part around what is done. `within`: the step in which that is, which is all that
/// is known in a task of its own.
fn innermost(waiting: &Waiting, within: Option<u64>) -> Option<u64> {
    let around = AROUND.try_with(|number| *number).ok();
    let is_of_run = |number: &u64| waiting.parts.contains_key(number);
    around.filter(is_of_run).or(within)
}

/// A question that is waited for. Dropped before it is answered, it is withdrawn, so that the run
/// is not said to wait for what nobody waits for; unless the run ends, which says itself what
/// becomes of its questions.
struct Asked {
    log: StepLog,
    cancellation: CancellationToken,
    id: Option<QuestionId>,
}

impl Drop for Asked {
    fn drop(&mut self) {
        let Some(id) = self.id.take() else {
            return;
        };
        if self.cancellation.is_cancelled() || self.log.is_closed() {
            return;
        }
        let (log, cancellation) = (self.log.clone(), self.cancellation.clone());
        let withdrawal = async move { log.withdraw_left(&id, &cancellation).await };
        let tracked = self.log.inner.under_way.track_future(withdrawal);
        self.log.inner.core.spawn(tracked);
    }
}
