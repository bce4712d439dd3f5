//! Rows of questions.

use rusqlite::{Connection, Row, params};

use super::effects::elsewhere;
use super::values::{id, json, nanoseconds, optional_time, parse, time, word};
use crate::id::StepId;
use crate::records::lease::Moment;
use crate::records::question::{Deadline, QuestionPlace, QuestionRow, QuestionStatus};
use crate::state::error::StateError;
use crate::state::row_sum::damaged;

/// Writes a question that is new, or is in the status that was seen.
pub(super) fn put_question(
    transaction: &Connection,
    from: Option<QuestionStatus>,
    row: &QuestionRow,
) -> Result<(), StateError> {
    let deadline = row.deadline.as_ref();
    let written = transaction.execute(
        match from {
            None => {
                "INSERT INTO questions (choices, default_answer, status, asked_at, deadline_at,
                     deadline_boot_id, deadline_boottime, answer, answered_at, timed_out, resumed_at,
                     id, run_id, step_id, question, nth)
                 SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16
                  WHERE ?17 IS NULL
                 ON CONFLICT DO NOTHING"
            }
            Some(_) => {
                "UPDATE questions SET choices = ?1, default_answer = ?2, status = ?3, asked_at = ?4,
                     deadline_at = ?5, deadline_boot_id = ?6, deadline_boottime = ?7, answer = ?8,
                     answered_at = ?9, timed_out = ?10, resumed_at = ?11
                  WHERE id = ?12 AND run_id = ?13 AND step_id IS ?14 AND question = ?15
                    AND nth = ?16 AND status = ?17"
            }
        },
        params![
            json(&row.choices),
            row.default,
            row.status.as_str(),
            nanoseconds(row.asked_at),
            deadline.map(|deadline| nanoseconds(deadline.at)),
            deadline.map(|deadline| &deadline.moment.boot_id),
            deadline.map(|deadline| deadline.moment.nanoseconds),
            row.answer,
            row.answered_at.map(nanoseconds),
            row.timed_out,
            row.resumed_at.map(nanoseconds),
            row.id.as_str(),
            row.run_id.as_str(),
            row.place.step_id.as_ref().map(StepId::as_str),
            row.place.text,
            row.place.nth,
            from.map(QuestionStatus::as_str),
        ],
    )?;
    if written == 0 {
        let what = format!("question {}", row.id);
        return Err(elsewhere(what, from.map(QuestionStatus::as_str)));
    }
    Ok(())
}

pub(super) const SELECT_QUESTION: &str = concat!(
    "SELECT id, run_id, step_id, question, nth, choices, default_answer, status, asked_at, \
     deadline_at, deadline_boot_id, deadline_boottime, answer, answered_at, timed_out, resumed_at, ",
    damaged!(questions),
    " FROM questions"
);

pub(super) fn read_question(row: &Row<'_>) -> Result<QuestionRow, StateError> {
    let deadline = match (optional_time(row, 9)?, row.get(10)?, row.get(11)?) {
        (Some(at), Some(boot_id), Some(nanoseconds)) => Some(Deadline {
            at,
            moment: Moment {
                boot_id,
                nanoseconds,
            },
        }),
        _ => None,
    };
    Ok(QuestionRow {
        id: id(row.get(0)?)?,
        run_id: id(row.get(1)?)?,
        place: QuestionPlace {
            step_id: row.get::<_, Option<String>>(2)?.map(id).transpose()?,
            text: row.get(3)?,
            nth: row.get(4)?,
        },
        choices: parse(&row.get::<_, String>(5)?)?,
        default: row.get(6)?,
        status: word(row.get(7)?, QuestionStatus::parse)?,
        asked_at: time(row.get(8)?)?,
        deadline,
        answer: row.get(12)?,
        answered_at: optional_time(row, 13)?,
        timed_out: row.get(14)?,
        resumed_at: optional_time(row, 15)?,
    })
}
