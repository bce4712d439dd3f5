//! Why the command could not do its part, and how that is said.

use serde::Serialize;
use stillframe::backends::printable_bytes;
use stillframe::{ErrorDocument, ErrorKind, RunDocument};

/// The exit code of a command that the engine failed.
const EXIT_FAILED: u8 = 1;
/// The exit code of `run` when the engine failed; all others are the command's own.
const EXIT_RUN_FAILED: u8 = 125;

/// Why the command could not do its part.
#[derive(Debug)]
pub(crate) struct Failure {
    kind: ErrorKind,
    /// With its sources, in one line.
    message: String,
    /// Whether the workspace may have been changed.
    touched: bool,
    /// What became of the run, if there was one; neither hides the other.
    run: Option<Box<RunDocument>>,
}

#[derive(Serialize)]
struct Document<'a> {
    error: ErrorDocument,
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<&'a RunDocument>,
}

impl Failure {
    /// A failure before anything was touched.
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            touched: false,
            run: None,
        }
    }

    /// Something that was typed cannot be right.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidOptions, message)
    }

    /// Something that was named is not there.
    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotFound, message)
    }

    /// What a caller can do about it.
    #[cfg(test)]
    pub(crate) fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The exit code; `is_run`: of `stillframe run`.
    pub(crate) fn exit_code(is_run: bool) -> u8 {
        if is_run { EXIT_RUN_FAILED } else { EXIT_FAILED }
    }

    /// `{"error": {"kind", "message", "touched"}}`; and `run`, where there is an outcome of one.
    pub(crate) fn document(&self) -> String {
        let document = Document {
            error: ErrorDocument {
                kind: self.kind.as_str().to_owned(),
                message: one_line(&self.message),
                touched: self.touched,
            },
            run: self.run.as_deref(),
        };
        serde_json::to_string(&document).expect("a document is plain data")
    }

    /// One line for people: what, and what to do.
    pub(crate) fn line(&self) -> String {
        let message = one_line(&self.message);
        match advice(self.kind, &message) {
            Some(advice) => format!("{message}; {advice}"),
            None => message,
        }
    }
}

impl From<stillframe::Error> for Failure {
    fn from(error: stillframe::Error) -> Self {
        Self {
            kind: error.kind(),
            message: error.chain(),
            touched: error.touched(),
            run: error.outcome().map(|outcome| Box::new(outcome.document())),
        }
    }
}

/// Nothing in it can break the line, or do anything to a terminal.
fn one_line(message: &str) -> String {
    printable_bytes(message.as_bytes())
}

/// What to do about an error of this kind, unless the message says so itself.
fn advice(kind: ErrorKind, message: &str) -> Option<&'static str> {
    if message.contains("stillframe ") || message.contains("--") {
        return None;
    }
    match kind {
        ErrorKind::NotFound if message.contains("snapshot") => {
            Some("\"stillframe list\" shows the snapshots of a workspace")
        }
        ErrorKind::NotFound if message.contains("run") => {
            Some("\"stillframe runs\" shows the runs in a workspace")
        }
        ErrorKind::NotFound if message.contains("artifact") => {
            Some("\"stillframe artifact list\" shows them")
        }
        ErrorKind::Conflict if message.contains("make a new plan") => {
            Some("\"stillframe restore SNAPSHOT --plan\" makes one and shows it")
        }
        ErrorKind::Unsupported if message.contains("retain") => {
            Some("--retain-content keeps the content of files")
        }
        ErrorKind::Busy => Some("try again when that is done"),
        ErrorKind::NoSpace => Some("free some space, for example with \"stillframe gc\""),
        ErrorKind::Corrupt => Some("\"stillframe verify\" says what is damaged"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_has_kind_message_and_touched() {
        let failure = Failure::not_found("there is no snapshot \"x\ny\"");
        let document: serde_json::Value =
            serde_json::from_str(&failure.document()).expect("it is JSON");
        assert_eq!(
            document,
            serde_json::json!({"error": {
                "kind": "NotFound",
                "message": "there is no snapshot \"x\\ny\"",
                "touched": false,
            }})
        );
    }

    #[test]
    fn a_line_says_what_and_what_to_do_and_is_one_line() {
        let failure = Failure::new(ErrorKind::Busy, "the workspace /w\u{1b}[2J\n is in use");
        assert_eq!(
            failure.line(),
            "the workspace /w\\u{1b}[2J\\n is in use; try again when that is done"
        );
        let advised = "snapshot snap_1 is damaged, run \"stillframe verify\"";
        let failure = Failure::new(ErrorKind::Corrupt, advised);
        assert_eq!(failure.line(), advised, "not said twice");
    }

    #[test]
    fn only_a_run_has_an_exit_code_of_its_own_for_a_failed_engine() {
        assert_eq!(
            (Failure::exit_code(false), Failure::exit_code(true)),
            (1, 125)
        );
    }
}
