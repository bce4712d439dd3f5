//! Why something failed, in a form that can be stored.

use serde::{Deserialize, Serialize};

/// The most characters of a reason that an event has.
const MAX_REASON_CHARS: usize = 240;

/// Why something failed, in a form that can be stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Failure {
    /// The name of an [`ErrorKind`](stillframe_backends::ErrorKind). `None`: work that failed for
    /// reasons of its own, which no kind of the engine's says.
    pub kind: Option<String>,
    /// One line.
    pub message: String,
    /// Of a step: the exit code of its work, if that had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
}

impl Failure {
    /// A failure of this kind.
    pub fn new(kind: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            kind: Some(kind.into()),
            message: message.into(),
            exit_code: None,
        }
    }

    /// Work that failed for reasons of its own.
    pub fn of_work(message: impl Into<String>) -> Self {
        Self {
            kind: None,
            message: message.into(),
            exit_code: None,
        }
    }

    /// The message as an event has it: one line of at most 240 characters. A longer one is cut
    /// before a word: half a secret value is not recognised as one.
    pub(crate) fn line(&self) -> String {
        let printable = |c: char| if c.is_control() { ' ' } else { c };
        let mut line: String = self.message.chars().map(printable).collect();
        if let Some((end, _)) = line.char_indices().nth(MAX_REASON_CHARS) {
            let (last, _) = line
                .char_indices()
                .nth(MAX_REASON_CHARS - 1)
                .unwrap_or((end, ' '));
            line.truncate(line[..last].rfind(' ').map_or(0, |blank| blank + 1));
            line.push('…');
        }
        line
    }
}
