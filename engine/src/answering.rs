//! Answers to questions: those that people give, those that count because nobody gave one in time, and what goes on
//! once they are there.

use std::sync::Weak;

use serde_json::{Value, json};
use stillframe_backends::{ErrorKind, seeded_bug};

use crate::engine::{Core, Engine, Shared};
use crate::error::Error;
use crate::event::EventType;
use crate::id::{QuestionId, RunId};
use crate::lease::Moment;
use crate::options::RunQuery;
use crate::question::{QuestionRow, QuestionStatus};
use crate::run::RunStatus;
use crate::state::{Change, NewEvent, RunRow};

/// Answers a question; the first answer counts.
pub(crate) async fn answer(core: &Core, id: &QuestionId, answer: &str) -> Result<(), Error> {
    let found = settled(core, read(core, id).await?).await?;
    if found.status != QuestionStatus::Open && !seeded_bug!("answer-not-first") {
        return Err(not_open(&found));
    }
    found.check_answer(answer)?;
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
    let mut data = row.event_data();
    data["answer"] = json!(answer);
    data["timed_out"] = json!(timed_out);
    let changes = vec![
        Change::PutQuestion {
            from: Some(if seeded_bug!("answer-not-first") {
                question.status
            } else {
                QuestionStatus::Open
            }),
            row: Box::new(row),
        },
        event(core, &run, EventType::QUESTION_ANSWERED, data),
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

fn event(core: &Core, run: &RunRow, event_type: EventType, data: Value) -> Change {
    let at = core.parts.now();
    let event = NewEvent::new(event_type, &run.session_id, Some(&run.id), at, data);
    Change::Append(event)
}

/// Gives those questions their default answers whose time is up, of one run or of all.
pub(crate) async fn settle_ripe(core: &Core, run_id: Option<&RunId>) -> Result<(), Error> {
    let (reader, asked) = (&core.parts.reader, run_id.cloned());
    let questions = reader
        .read(move |store| match asked {
            // What is wrong with another run's is in nobody's way.
            Some(id) => store.questions(&id),
            None => store.open_questions(),
        })
        .await?;
    let (at, now) = (core.parts.now(), Moment::now()?);
    for question in &questions {
        let Some(default) = question.ripe(at, &now) else {
            continue;
        };
        put_default(core, question, default).await?;
    }
    Ok(())
}

/// What takes back the questions of a run that ends: nobody waits for their answers.
pub(crate) async fn withdrawal(core: &Core, run: &RunRow) -> Result<Vec<Change>, Error> {
    let run_id = run.id.clone();
    let reader = &core.parts.reader;
    let asked = reader.read(move |store| store.questions(&run_id)).await?;
    let open = asked
        .into_iter()
        .filter(|row| row.status == QuestionStatus::Open);
    Ok(open
        .flat_map(|row| {
            let data = row.event_data();
            let withdrawn = Change::PutQuestion {
                from: Some(row.status),
                row: Box::new(row.withdrawn()),
            };
            [
                withdrawn,
                event(core, run, EventType::QUESTION_WITHDRAWN, data),
            ]
        })
        .collect())
}

/// Looks after questions for as long as the engine is there: answers those whose time is up, and goes on with the runs
/// that wait no more, if the host has said how.
pub(crate) async fn sweep(engine: Weak<Shared>) {
    loop {
        let Some(shared) = engine.upgrade() else {
            return;
        };
        let (every, stopped) = (
            shared.parts.options.question_sweep,
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
            tracing::warn!(error = %e.chain(), "questions are not looked after");
            continue;
        }
        if let Err(e) = resume_answered(&Engine { core }).await {
            tracing::warn!(error = %e.chain(), "runs that were answered are not gone on with");
        }
    }
}

/// Goes on with the runs that rest and have their answers.
async fn resume_answered(engine: &Engine) -> Result<(), Error> {
    let Some(resumer) = engine.core.parts.options.resumer.clone() else {
        return Ok(());
    };
    let query = RunQuery::default()
        .incomplete()
        .status(RunStatus::WaitingForInput);
    for run in engine.runs(query).await? {
        let id = run.session_id.clone();
        let reader = &engine.core.parts.reader;
        let session = reader.read(move |store| store.session(&id)).await?;
        if session.is_none_or(|session| session.status.is_terminal()) {
            continue;
        }
        let Some((options, adapter)) = resumer(&run) else {
            continue;
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
