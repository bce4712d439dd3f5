//! Questions to people, and their possible answers.

use crate::error::Error;
use crate::records::question::{Question, QuestionRow};

/// The longest question, answer or choice, in bytes: a page for people, not a document.
const MAX_TEXT_BYTES: usize = 64 * 1024;

/// The most choices: more are no choice for a person.
const MAX_CHOICES: usize = 100;

impl Question {
    /// Refuses what cannot be asked, as [`StepContext::ask`](crate::steps::StepContext::ask) does:
    /// `InvalidOptions`.
    pub fn check(&self) -> Result<(), Error> {
        if self.text.trim().is_empty() {
            return Err(Error::invalid_options("a question needs a text"));
        }
        if self.choices.len() > MAX_CHOICES {
            return Err(Error::invalid_options(format!(
                "a question has at most {MAX_CHOICES} choices, this one has {}",
                self.choices.len()
            )));
        }
        for (place, choice) in self.choices.iter().enumerate() {
            if choice.trim().is_empty() {
                return Err(Error::invalid_options("a choice of a question is empty"));
            }
            if self.choices[..place].contains(choice) {
                let short: String = choice.chars().take(80).collect();
                return Err(Error::invalid_options(format!(
                    "the choice {short:?} of a question is there twice"
                )));
            }
        }
        let texts = self.choices.iter().chain([&self.text]);
        let default = self.deadline.as_ref().map(|(_, default)| default);
        if let Some(long) = texts.chain(default).find(|t| t.len() > MAX_TEXT_BYTES) {
            return Err(Error::invalid_options(format!(
                "a question, and an answer to it, has at most {MAX_TEXT_BYTES} bytes, this one has {}",
                long.len()
            )));
        }
        match default {
            Some(default) => check_choice(&self.choices, default),
            None => Ok(()),
        }
    }
}

impl QuestionRow {
    /// Refuses what is no answer to it.
    pub(crate) fn check_answer(&self, answer: &str) -> Result<(), Error> {
        if answer.trim().is_empty() {
            // Of a variable that was not set, most often; the first answer is for ever.
            return Err(Error::invalid_options("an answer needs a text"));
        }
        if answer.len() > MAX_TEXT_BYTES {
            return Err(Error::invalid_options(format!(
                "an answer has at most {MAX_TEXT_BYTES} bytes, this one has {}",
                answer.len()
            )));
        }
        check_choice(&self.choices, answer)
    }
}

/// Refuses an answer that is not one of the choices.
fn check_choice(choices: &[String], answer: &str) -> Result<(), Error> {
    if choices.is_empty() || choices.iter().any(|choice| choice == answer) {
        return Ok(());
    }
    Err(Error::invalid_options(format!(
        "{answer:?} is none of the answers that are taken: {}",
        choices.join(", ")
    )))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;
    use stillframe_backends::ErrorKind;

    use super::*;
    use crate::records::lease::Moment;
    use crate::records::question::QuestionPlace;

    fn row(question: &Question) -> QuestionRow {
        let place = QuestionPlace {
            step_id: None,
            text: question.text.clone(),
            nth: 0,
        };
        let now = Moment {
            boot_id: "a".into(),
            nanoseconds: 0,
        };
        let (run_id, at) = ("r".parse().unwrap(), Timestamp::UNIX_EPOCH);
        QuestionRow::new(run_id, place, question, at, &now)
    }

    #[test]
    fn only_choices_are_taken_where_there_are_any() {
        let approval = Question::new("go?").choices(["yes", "no"]);
        assert!(approval.check().is_ok());
        let row = row(&approval);
        assert!(row.check_answer("yes").is_ok());
        let refused = row.check_answer("maybe").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidOptions);
        assert!(refused.to_string().contains("yes, no"), "{refused}");
        let late = approval.deadline(Duration::ZERO, "maybe");
        assert_eq!(late.check().unwrap_err().kind(), ErrorKind::InvalidOptions);
    }

    #[test]
    fn what_is_no_question_is_refused() {
        let long = "x".repeat(MAX_TEXT_BYTES + 1);
        for question in [
            Question::new(" \n"),
            Question::new(&long),
            Question::new("go?").choices([&long]),
            Question::new("go?").choices(["yes", " "]),
            Question::new("go?").choices(["yes", "no", "yes"]),
            Question::new("go?").deadline(Duration::ZERO, &long),
            Question::new("go?").choices((0..=MAX_CHOICES).map(|n| n.to_string())),
        ] {
            let refused = question.check().unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidOptions);
        }
    }
}
