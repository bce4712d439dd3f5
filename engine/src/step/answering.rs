//! Answers to questions: those that people give, and default answers at the deadline.

use serde_json::Value;
use stillframe_backends::{ErrorKind, seeded_bug};

use crate::actors::core::Core;
use crate::error::Error;
use crate::events::data::{Answered, QuestionMoved, data};
use crate::events::event::EventType;
use crate::id::{QuestionId, RunId, SessionId};
use crate::records::lease::Moment;
use crate::records::question::{QuestionRow, QuestionStatus};
use crate::records::run::RunStatus;
use crate::state::RunFilter;
use crate::state::change::{Change, NewEvent};
use crate::state::error::StateError;

/// Answers a question; the first answer counts.
pub(crate) async fn answer(core: &Core, id: &QuestionId, answer: &str) -> Result<(), Error> {
    let found = settled(core, read(core, id).await?).await?;
    if found.status != QuestionStatus::Open && !seeded_bug!("answer-not-first") {
        return Err(not_open(&found));
    }
    found.check_answer(answer)?;
    // The run gets it from the log, and has to get what was answered.
    core.parts.writer.refuse_secrets(
        answer,
        "the answer",
        "answer with the place where the run finds it; the question still waits",
    )?;
    match put_answer(core, &found, answer, false).await {
        Err(e) if e.kind() == ErrorKind::Conflict => Err(not_open(&read(core, id).await?)),
        answered => answered,
    }
}

/// The question as it is now: one whose time is up has its answer.
pub(crate) async fn settled(core: &Core, question: QuestionRow) -> Result<QuestionRow, Error> {
    let (at, now) = (core.parts.now(), Moment::now()?);
    let Some(default) = question.ripe(at, &now) else {
        return Ok(question);
    };
    put_default(core, &question, default).await?;
    read(core, &question.id).await
}

async fn read(core: &Core, id: &QuestionId) -> Result<QuestionRow, Error> {
    let asked = id.clone();
    let reader = &core.parts.reader;
    let found = reader.read(move |store| store.question(&asked)).await?;
    found.ok_or_else(|| Error::not_found(format!("there is no question {id}")))
}

fn not_open(question: &QuestionRow) -> Error {
    let why = match (&question.answered_at, question.timed_out) {
        (Some(at), true) => format!("got its default answer at {at}, when its time was up"),
        (Some(at), false) => format!("was answered at {at}, and the first answer counts"),
        (None, _) => "waits for no answer any more".to_owned(),
    };
    Error::new(
        ErrorKind::Conflict,
        format!("question {} {why}; nothing was changed", question.id),
    )
}

async fn put_answer(
    core: &Core,
    question: &QuestionRow,
    answer: &str,
    timed_out: bool,
) -> Result<(), Error> {
    let parts = &core.parts;
    let run_id = question.run_id.clone();
    let run = parts.reader.read(move |store| store.run(&run_id)).await?;
    let run =
        run.ok_or_else(|| Error::not_found(format!("there is no run {}", question.run_id)))?;
    let at = parts.now();
    let row = QuestionRow {
        status: QuestionStatus::Answered,
        answer: Some(answer.to_owned()),
        answered_at: Some(at),
        timed_out,
        ..question.clone()
    };
    let said = data(&QuestionMoved {
        answer: Some(Answered { answer, timed_out }),
        ..row.said()
    });
    let changes = vec![
        Change::PutQuestion {
            from: Some(if seeded_bug!("answer-not-first") {
                question.status
            } else {
                QuestionStatus::Open
            }),
            row: Box::new(row),
        },
        event(
            core,
            (&run.session_id, &run.id),
            EventType::QUESTION_ANSWERED,
            said,
        ),
    ];
    parts.writer.commit(changes).await?;
    Ok(())
}

async fn put_default(core: &Core, question: &QuestionRow, default: &str) -> Result<(), Error> {
    match put_answer(core, question, default, true).await {
        // Somebody was faster, which is as good.
        Err(e) if e.kind() == ErrorKind::Conflict => Ok(()),
        answered => answered,
    }
}

fn event(
    core: &Core,
    (session_id, run_id): (&SessionId, &RunId),
    event_type: EventType,
    said: Value,
) -> Change {
    let at = core.parts.now();
    let event = NewEvent::new(event_type, session_id, Some(run_id), at, said);
    Change::Append(event)
}

/// Gives those questions their default answers whose time is up, of one run or of all. What keeps
/// one from its answer is in no other's way; the first such failure is the answer.
pub(crate) async fn settle_ripe(core: &Core, run_id: Option<&RunId>) -> Result<(), Error> {
    let (reader, asked) = (&core.parts.reader, run_id.cloned());
    let of_runs: Vec<Result<Vec<QuestionRow>, StateError>> = reader
        .read(move |store| {
            let runs = match asked {
                Some(id) => vec![id],
                None => {
                    let statuses = vec![RunStatus::Asking, RunStatus::WaitingForInput];
                    let filter = RunFilter {
                        statuses,
                        ..RunFilter::default()
                    };
                    store.runs(&filter)?.into_iter().map(|run| run.id).collect()
                }
            };
            Ok(runs.iter().map(|id| store.questions(id)).collect())
        })
        .await?;
    let (at, now) = (core.parts.now(), Moment::now()?);
    let mut all = Ok(());
    for questions in of_runs {
        let questions = match questions {
            Ok(questions) => questions,
            Err(e) => {
                all = all.and(Err(e.into()));
                continue;
            }
        };
        for question in &questions {
            if let Some(default) = question.ripe(at, &now) {
                all = all.and(put_default(core, question, default).await);
            }
        }
    }
    all
}

/// What withdraws the questions of a run that ends: nobody waits for their answers.
pub(crate) async fn withdrawal(
    core: &Core,
    (session_id, run_id): (&SessionId, &RunId),
) -> Result<Vec<Change>, Error> {
    let asked_by = run_id.clone();
    let reader = &core.parts.reader;
    let asked = reader.read(move |store| store.questions(&asked_by)).await?;
    let open = asked
        .into_iter()
        .filter(|row| row.status == QuestionStatus::Open);
    Ok(open
        .flat_map(|row| {
            let said = data(&row.said());
            let withdrawn = Change::PutQuestion {
                from: Some(row.status),
                row: Box::new(row.withdrawn()),
            };
            [
                withdrawn,
                event(
                    core,
                    (session_id, run_id),
                    EventType::QUESTION_WITHDRAWN,
                    said,
                ),
            ]
        })
        .collect())
}
