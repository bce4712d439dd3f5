//! What the commit of a checkpoint says.

use crate::commit::{CommitError, CommitRequest};

/// What stands for a value that there is none of.
const UNKNOWN: &str = "unknown";

/// Why a checkpoint is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CheckpointKind {
    /// The run failed, timed out or was cancelled.
    Wip,
    /// The run went on.
    Periodic,
    /// The run cannot go on without an answer.
    Blocked,
}

impl CheckpointKind {
    /// The value of the trailer `Checkpoint-Kind`, such as `periodic`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Wip => "wip",
            Self::Periodic => "periodic",
            Self::Blocked => "blocked",
        }
    }
}

/// The message of a checkpoint: a subject, and trailers that `git interpret-trailers --parse`
/// reads.
///
/// Values become one line without control characters. One that is missing is `unknown`.
///
/// ```
/// use stillframe_backends::{CheckpointKind, CheckpointMessage};
///
/// let message = CheckpointMessage::new(CheckpointKind::Wip, "run_7").task("acme/shop/42".to_owned());
/// assert_eq!(
///     message.whole()?,
///     "[wip] stillframe run run_7\n\nRun-Id: run_7\nPipeline: unknown\nFailed-Step: unknown\n\
///      Task: acme/shop/42\nCheckpoint-Kind: wip\n"
/// );
/// # Ok::<(), stillframe_backends::CommitError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckpointMessage {
    /// Why it is made.
    pub kind: CheckpointKind,
    /// The run that it is of.
    pub run_id: String,
    /// What the run carries out. Default: unknown.
    pub pipeline: Option<String>,
    /// The step that the run is in, or that failed. Default: unknown.
    pub step: Option<String>,
    /// The task, with its namespace if it has one: `platform/project/id`. Default: unknown.
    pub task: Option<String>,
    /// The host's own text in the place of the subject, in which `{runId}`, `{pipeline}`, `{step}`
    /// and `{task}` stand for these. It may have several lines. Not for [`CheckpointKind::Wip`].
    pub template: Option<String>,
}

impl CheckpointMessage {
    /// Of a checkpoint of this run.
    pub fn new(kind: CheckpointKind, run_id: impl Into<String>) -> Self {
        Self {
            kind,
            run_id: run_id.into(),
            pipeline: None,
            step: None,
            task: None,
            template: None,
        }
    }

    stillframe_model::setters! {
        pipeline: String,
        step: String,
        task: String,
        template: String,
    }

    /// The whole message.
    ///
    /// # Errors
    ///
    /// [`CommitError::InvalidOptions`]: the template has no text, or a NUL byte.
    pub fn whole(&self) -> Result<String, CommitError> {
        let run_id = line(Some(&self.run_id));
        let [pipeline, step, task] =
            [&self.pipeline, &self.step, &self.task].map(|value| line(value.as_deref()));
        let (subject, step_key) = match (self.kind, &self.template) {
            (CheckpointKind::Wip, _) => (format!("[wip] stillframe run {run_id}"), "Failed-Step"),
            (_, None) => (format!("[checkpoint] stillframe run {run_id}"), "Step"),
            (_, Some(template)) => {
                let values = [
                    ("{runId}", &run_id),
                    ("{pipeline}", &pipeline),
                    ("{step}", &step),
                    ("{task}", &task),
                ];
                (without_dividers(&filled(template, &values)), "Step")
            }
        };
        let mut request = CommitRequest::new(subject, jiff::Timestamp::UNIX_EPOCH);
        for (key, value) in [
            ("Run-Id", run_id),
            ("Pipeline", pipeline),
            (step_key, step),
            ("Task", task),
            ("Checkpoint-Kind", self.kind.as_str().to_owned()),
        ] {
            request = request.trailer(key, value);
        }
        request.whole_message()
    }
}

/// A value as one line without control characters.
fn line(value: Option<&str>) -> String {
    let is_break =
        |c: char| c.is_control() || c.is_whitespace() || matches!(c, '\u{2028}' | '\u{2029}');
    let words = value.unwrap_or_default().split(is_break);
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    match words.is_empty() {
        true => UNKNOWN.to_owned(),
        false => words.join(" "),
    }
}

/// Puts in all values at once, so that what one of them says is never taken for a name.
fn filled(template: &str, values: &[(&str, &String)]) -> String {
    let mut filled = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(brace) = rest.find('{') {
        filled.push_str(&rest[..brace]);
        rest = &rest[brace..];
        match values.iter().find(|(name, _)| rest.starts_with(name)) {
            Some((name, value)) => {
                filled.push_str(value);
                rest = &rest[name.len()..];
            }
            None => {
                filled.push('{');
                rest = &rest[1..];
            }
        }
    }
    filled.push_str(rest);
    filled
}

/// A line that begins with `---` ends a message where it comes from a patch (`git
/// interpret-trailers`), and trailers after it are not read.
fn without_dividers(text: &str) -> String {
    let lines = text.split('\n').map(|line| match line.strip_prefix("---") {
        Some(rest) if rest.chars().next().is_none_or(char::is_whitespace) => format!(" {line}"),
        _ => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::git::test_repository::TestRepository;

    fn parsed(git: &TestRepository, message: &str) -> String {
        fs::write(git.beside("message"), message).unwrap();
        git.git(&["interpret-trailers", "--parse", "../message"])
    }

    fn trailers(kind: CheckpointKind, [pipeline, step, task]: [&str; 3]) -> String {
        let step_key = match kind {
            CheckpointKind::Wip => "Failed-Step",
            _ => "Step",
        };
        format!(
            "Run-Id: run_7\nPipeline: {pipeline}\n{step_key}: {step}\nTask: {task}\n\
             Checkpoint-Kind: {}",
            kind.as_str()
        )
    }

    #[test]
    fn git_reads_the_trailers_of_every_kind_whatever_the_values_are() {
        let git = TestRepository::new();
        let odd = [
            ("plain", "plain"),
            ("", "unknown"),
            (" \n\t ", "unknown"),
            ("two\nlines", "two lines"),
            ("Run-Id: forged\nTask: other", "Run-Id: forged Task: other"),
            ("a\u{1b}[31mb\u{7f}\0c", "a [31mb c"),
            ("a\u{85}b\u{2028}c\r\nd", "a b c d"),
            ("---", "---"),
            ("# no comment", "# no comment"),
            ("Ünïcödé: 日本", "Ünïcödé: 日本"),
        ];
        for kind in [
            CheckpointKind::Wip,
            CheckpointKind::Periodic,
            CheckpointKind::Blocked,
        ] {
            for (value, expected) in odd {
                let message = CheckpointMessage::new(kind, "run_7")
                    .pipeline(value.to_owned())
                    .step(value.to_owned())
                    .task(value.to_owned());
                let whole = message.whole().unwrap();
                assert_eq!(
                    parsed(&git, &whole),
                    trailers(kind, [expected; 3]),
                    "{whole}"
                );
                let subject = match kind {
                    CheckpointKind::Wip => "[wip] stillframe run run_7\n\n",
                    _ => "[checkpoint] stillframe run run_7\n\n",
                };
                assert!(whole.starts_with(subject), "{whole}");
            }
            let none = CheckpointMessage::new(kind, "run_7").whole().unwrap();
            assert_eq!(parsed(&git, &none), trailers(kind, [UNKNOWN; 3]));
        }
    }

    #[test]
    fn a_hosts_template_is_the_text_before_the_trailers() {
        let git = TestRepository::new();
        let message = |kind, template: &str| {
            CheckpointMessage::new(kind, "run_7")
                .task("p/q/42 {step}".to_owned())
                .template(template.to_owned())
        };
        for (template, text) in [
            ("save {task} in {runId}", "save p/q/42 {step} in run_7\n\n"),
            ("{nothing} {", "{nothing} {\n\n"),
            (
                "subject\n\nbody\n---\n diff",
                "subject\n\nbody\n ---\n diff\n\n",
            ),
            ("subject\n\nKey: value", "subject\n\nKey: value\n"),
        ] {
            let whole = message(CheckpointKind::Periodic, template).whole().unwrap();
            assert!(whole.starts_with(text), "{whole}");
            let own = trailers(
                CheckpointKind::Periodic,
                [UNKNOWN, UNKNOWN, "p/q/42 {step}"],
            );
            assert!(parsed(&git, &whole).ends_with(&own), "{whole}");
        }
        let wip = message(CheckpointKind::Wip, "mine").whole().unwrap();
        assert!(wip.starts_with("[wip] "), "{wip}");
        for template in ["", " \n", "a\0b"] {
            let error = message(CheckpointKind::Blocked, template)
                .whole()
                .unwrap_err();
            assert!(matches!(error, CommitError::InvalidOptions(_)), "{error}");
        }
    }
}
