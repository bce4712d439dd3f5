//! `answer`: listing and answering the questions of runs.

use stillframe::RunStatus;
use stillframe::records::QuestionRecord;

use super::Tools;
use crate::failure::Failure;
use crate::output::{self, Reply};

/// Shows the question of this id, or all that wait for an answer.
pub(super) async fn show(tools: &Tools, id: Option<&str>) -> Result<Reply, Failure> {
    let Some(id) = id else {
        let open = tools.engine.open_questions().await?;
        let reply = Reply::new(tools.json, &open, || listing(&open));
        return Ok(match open.is_empty() {
            true => reply.note("nothing is asked"),
            false => reply,
        });
    };
    let question = tools.engine.find_question(id).await?;
    Ok(Reply::new(tools.json, &question, || description(&question)))
}

/// Answers a question.
pub(super) async fn answer(tools: &Tools, id: &str, answer: &str) -> Result<Reply, Failure> {
    let found = tools.engine.find_question(id).await?;
    let question = tools.engine.answer(&found.id, answer).await?;
    let run = tools.engine.find_run(question.run_id.as_str()).await?;
    let open = tools.engine.open_questions().await?;
    let waits = open.iter().find(|other| other.run_id == run.id);
    let note = match (run.status, waits) {
        (RunStatus::WaitingForInput, Some(other)) => {
            format!("run {} still waits for an answer to {}", run.id, other.id)
        }
        (RunStatus::WaitingForInput, None) => {
            format!("\"stillframe resume {}\" goes on with the run", run.id)
        }
        _ => format!("run {} goes on with it", run.id),
    };
    Ok(Reply::new(tools.json, &question, String::new).note(note))
}

/// One line of what is asked.
pub(super) fn line(question: &QuestionRecord) -> String {
    let mut line = output::printable(&question.text);
    if !question.choices.is_empty() {
        let choices: Vec<String> = question
            .choices
            .iter()
            .map(|c| output::printable(c))
            .collect();
        line.push_str(&format!(" ({})", choices.join(", ")));
    }
    line
}

fn listing(questions: &[QuestionRecord]) -> String {
    let rows: Vec<Vec<String>> = questions
        .iter()
        .map(|question| {
            vec![
                question.id.to_string(),
                format!("{:.0}", question.asked_at),
                question.run_id.to_string(),
                line(question),
            ]
        })
        .collect();
    output::table(&rows)
}

fn description(question: &QuestionRecord) -> String {
    let mut rows = vec![
        ("question", question.id.to_string()),
        ("run", question.run_id.to_string()),
        ("status", question.status.to_string()),
        ("asked", question.asked_at.to_string()),
    ];
    if let Some(deadline) = question.deadline {
        let default = question.default.as_deref().unwrap_or_default();
        let default = output::printable(default);
        rows.push(("deadline", format!("{deadline}, then {default:?}")));
    }
    if let Some(answer) = &question.answer {
        let how = match question.timed_out {
            true => " (by default)",
            false => "",
        };
        rows.push(("answer", format!("{}{how}", output::printable(answer))));
    }
    rows.extend(question.answered_at.map(|at| ("answered", at.to_string())));
    let rows: Vec<Vec<String>> = rows
        .into_iter()
        .map(|(name, value)| vec![name.to_owned(), value])
        .collect();
    format!("{}\n{}\n", output::table(&rows), line(question))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn question(status: &str) -> QuestionRecord {
        serde_json::from_value(json!({
            "question_id": "que_1", "run_id": "run_1", "step_id": null,
            "question": "go\u{1b}[2J on?", "choices": ["yes", "no"], "default": "no", "status": status,
            "asked_at": "2026-02-03T04:05:06.789Z", "deadline": "2026-02-03T05:05:06Z",
            "answer": (status == "answered").then_some("no"), "answered_at": null, "timed_out": true,
            "resumed_at": null,
        }))
        .expect("it is a question")
    }

    #[test]
    fn what_is_asked_is_a_line_and_nothing_moves_the_cursor() {
        assert_eq!(
            listing(&[question("open")]),
            "que_1  2026-02-03T04:05:06Z  run_1  go\\u{1b}[2J on? (yes, no)\n"
        );
    }

    #[test]
    fn one_in_full_says_what_counts_if_nobody_answers() {
        let text = description(&question("answered"));
        for part in [
            "deadline  2026-02-03T05:05:06Z, then \"no\"\n",
            "answer    no (by default)\n",
            "\ngo\\u{1b}[2J on? (yes, no)\n",
        ] {
            assert!(text.contains(part), "{part:?} is in {text}");
        }
    }
}
