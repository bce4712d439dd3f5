//! The questions of runs to people, and the lifecycle of their answers. Pure.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use stillframe_secrets::SecretRules;

use crate::events::data::QuestionMoved;
use crate::id::{QuestionId, RunId, StepId};
use crate::records::lease::Moment;

/// What a step asks a person: see [`StepContext::ask`](crate::steps::StepContext::ask).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Question {
    /// What is asked.
    pub text: String,
    /// The answers that are taken; empty: any text.
    pub choices: Vec<String>,
    /// How long the question waits for an answer, and the answer that counts after that. Default:
    /// for ever.
    pub deadline: Option<(Duration, String)>,
}

impl Question {
    /// A question that takes any answer, and waits for it.
    pub fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            choices: Vec::new(),
            deadline: None,
        }
    }

    /// Accepts only these answers.
    pub fn choices<T: Into<String>>(mut self, choices: impl IntoIterator<Item = T>) -> Self {
        self.choices = choices.into_iter().map(Into::into).collect();
        self
    }

    /// Takes `default` for the answer if there is none after this long.
    pub fn deadline(mut self, after: Duration, default: impl Into<String>) -> Self {
        self.deadline = Some((after, default.into()));
        self
    }

    /// Takes secret values out of all that is asked.
    pub(crate) fn redact(&mut self, secrets: &SecretRules) {
        let default = self.deadline.iter_mut().map(|(_, default)| default);
        let texts = std::iter::once(&mut self.text).chain(&mut self.choices);
        for text in texts.chain(default) {
            *text = secrets.redact(text).into_owned();
        }
    }
}

/// What was answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Answer {
    /// The text; one of the choices, if there were any.
    pub text: String,
    /// Whether this is the default, because nobody answered in time.
    pub timed_out: bool,
}

/// Where a question stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum QuestionStatus {
    /// It waits for its answer.
    Open,
    /// It has one, which is final.
    Answered,
    /// The question no longer waits: its run has ended, or continued without an answer.
    Withdrawn,
}

impl QuestionStatus {
    /// The name that JSON documents use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Answered => "answered",
            Self::Withdrawn => "withdrawn",
        }
    }

    /// The status of this name.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "open" => Self::Open,
            "answered" => Self::Answered,
            "withdrawn" => Self::Withdrawn,
            _ => return None,
        })
    }
}

impl fmt::Display for QuestionStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Until when an answer is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Deadline {
    /// For people, and once the machine was started again.
    pub(crate) at: Timestamp,
    /// By the clock of leases (`CLOCK_BOOTTIME`).
    pub(crate) moment: Moment,
}

impl Deadline {
    /// This long from now; one beyond the end of time is that.
    pub(crate) fn after(duration: Duration, at: Timestamp, now: &Moment) -> Self {
        let at = jiff::SignedDuration::try_from(duration)
            .ok()
            .and_then(|duration| at.checked_add(duration).ok())
            .unwrap_or(Timestamp::MAX);
        Self {
            at,
            moment: now.after(duration),
        }
    }

    /// Whether it has passed. The clock of people counts only where the other one began anew.
    pub(crate) fn has_passed(&self, at: Timestamp, now: &Moment) -> bool {
        match self.moment.boot_id == now.boot_id {
            true => self.moment.nanoseconds <= now.nanoseconds,
            false => self.at <= at,
        }
    }
}

/// Where in a run a question is asked. What is asked there again when the run is resumed is the
/// same question.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct QuestionPlace {
    /// The step; `None`: outside of any.
    pub(crate) step_id: Option<StepId>,
    pub(crate) text: String,
    /// Which time the same text is asked there, from 0.
    pub(crate) nth: u32,
}

/// A question, as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QuestionRow {
    pub(crate) id: QuestionId,
    pub(crate) run_id: RunId,
    pub(crate) place: QuestionPlace,
    pub(crate) choices: Vec<String>,
    pub(crate) default: Option<String>,
    pub(crate) status: QuestionStatus,
    pub(crate) asked_at: Timestamp,
    pub(crate) deadline: Option<Deadline>,
    pub(crate) answer: Option<String>,
    pub(crate) answered_at: Option<Timestamp>,
    pub(crate) timed_out: bool,
    /// When the run first got the answer.
    pub(crate) resumed_at: Option<Timestamp>,
}

impl QuestionRow {
    /// A question that is asked now.
    pub(crate) fn new(
        run_id: RunId,
        place: QuestionPlace,
        question: &Question,
        at: Timestamp,
        now: &Moment,
    ) -> Self {
        let deadline = question.deadline.as_ref();
        Self {
            id: QuestionId::random(),
            run_id,
            place,
            choices: question.choices.clone(),
            default: deadline.map(|(_, default)| default.clone()),
            status: QuestionStatus::Open,
            asked_at: at,
            deadline: deadline.map(|(after, _)| Deadline::after(*after, at, now)),
            answer: None,
            answered_at: None,
            timed_out: false,
            resumed_at: None,
        }
    }

    /// The answer that counts because nobody gave one in time; `None`: it is waited for, or needed
    /// no more.
    pub(crate) fn ripe(&self, at: Timestamp, now: &Moment) -> Option<&str> {
        let deadline = self.deadline.as_ref()?;
        let is_ripe = self.status == QuestionStatus::Open && deadline.has_passed(at, now);
        self.default.as_deref().filter(|_| is_ripe)
    }

    /// Whether it waits for an answer: it has none, and its time is not up.
    pub(crate) fn is_waiting(&self, at: Timestamp, now: &Moment) -> bool {
        self.status == QuestionStatus::Open && self.ripe(at, now).is_none()
    }

    /// The answer, once there is one.
    pub(crate) fn answer(&self) -> Option<Answer> {
        let text = self.answer.clone()?;
        (self.status == QuestionStatus::Answered).then_some(Answer {
            text,
            timed_out: self.timed_out,
        })
    }

    /// The row of a withdrawn question.
    pub(crate) fn withdrawn(self) -> Self {
        Self {
            status: QuestionStatus::Withdrawn,
            ..self
        }
    }

    /// What an event about it says, of any status. The answer is left to that of the answer itself.
    pub(crate) fn said(&self) -> QuestionMoved<'_> {
        QuestionMoved {
            question_id: &self.id,
            step_id: self.place.step_id.as_ref(),
            question: &self.place.text,
            deadline: self.deadline.as_ref().map(|deadline| deadline.at),
            work_goes_on: false,
            answer: None,
        }
    }
}

/// A question, as it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct QuestionRecord {
    /// The question.
    #[serde(rename = "question_id")]
    pub id: QuestionId,
    /// The run that asks.
    pub run_id: RunId,
    /// The step that asks; `None`: the run does, outside of any.
    pub step_id: Option<StepId>,
    /// What is asked.
    #[serde(rename = "question")]
    pub text: String,
    /// The answers that are taken; empty: any text.
    pub choices: Vec<String>,
    /// The answer that counts if nobody answers in time.
    pub default: Option<String>,
    /// Its status.
    pub status: QuestionStatus,
    /// When it was first asked.
    pub asked_at: Timestamp,
    /// Until when an answer is waited for; `None`: for ever.
    pub deadline: Option<Timestamp>,
    /// What was answered.
    pub answer: Option<String>,
    /// When.
    pub answered_at: Option<Timestamp>,
    /// Whether the answer is the default, because nobody gave one in time.
    pub timed_out: bool,
    /// When the run continued with the answer.
    pub resumed_at: Option<Timestamp>,
}

impl From<QuestionRow> for QuestionRecord {
    fn from(row: QuestionRow) -> Self {
        Self {
            id: row.id,
            run_id: row.run_id,
            step_id: row.place.step_id,
            text: row.place.text,
            choices: row.choices,
            default: row.default,
            status: row.status,
            asked_at: row.asked_at,
            deadline: row.deadline.map(|deadline| deadline.at),
            answer: row.answer,
            answered_at: row.answered_at,
            timed_out: row.timed_out,
            resumed_at: row.resumed_at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(boot: &str, seconds: i64) -> Moment {
        Moment {
            boot_id: boot.into(),
            nanoseconds: seconds * 1_000_000_000,
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn row(question: &Question) -> QuestionRow {
        let place = QuestionPlace {
            step_id: None,
            text: question.text.clone(),
            nth: 0,
        };
        QuestionRow::new(
            "r".parse().unwrap(),
            place,
            question,
            at(1000),
            &moment("a", 50),
        )
    }

    #[test]
    fn a_deadline_counts_by_the_clock_that_nobody_sets_until_the_machine_starts_again() {
        let question = Question::new("go?").deadline(Duration::from_secs(10), "no");
        let row = row(&question);
        assert_eq!(row.ripe(at(1009), &moment("a", 59)), None);
        assert_eq!(row.ripe(at(1010), &moment("a", 60)), Some("no"));
        // The clock of people was set forwards, then backwards.
        assert_eq!(row.ripe(at(9000), &moment("a", 59)), None);
        assert_eq!(row.ripe(at(0), &moment("a", 60)), Some("no"));
        // The machine was started again.
        assert_eq!(row.ripe(at(1009), &moment("b", 1)), None);
        assert_eq!(row.ripe(at(1010), &moment("b", 1)), Some("no"));
        let settled = QuestionRow {
            status: QuestionStatus::Answered,
            ..row
        };
        assert_eq!(settled.ripe(at(1010), &moment("a", 60)), None);
    }

    #[test]
    fn a_question_without_a_deadline_is_never_ripe_and_one_for_ages_does_not_overflow() {
        let waits = row(&Question::new("go?"));
        assert_eq!(waits.ripe(Timestamp::MAX, &moment("a", 1 << 30)), None);
        let ages = Question::new("go?").deadline(Duration::MAX, "no");
        let row = row(&ages);
        assert_eq!(row.deadline.as_ref().unwrap().at, Timestamp::MAX);
        assert_eq!(row.ripe(at(1010), &moment("a", 60)), None);
    }

    #[test]
    fn every_status_is_read_back_from_its_name() {
        for status in [
            QuestionStatus::Open,
            QuestionStatus::Answered,
            QuestionStatus::Withdrawn,
        ] {
            assert_eq!(QuestionStatus::parse(status.as_str()), Some(status));
        }
    }
}
