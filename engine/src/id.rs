//! Names of sessions, runs and events.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The longest id that a host may choose, in bytes. It becomes part of a ref's name, where the
/// backend escapes what git would not take.
const MAX_ID_BYTES: usize = 200;

/// Some text is no id: 1 to 200 letters, digits, `.`, `_` or `-`, the first a letter or digit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} names no {noun}: an id is 1 to 200 letters, digits, \".\", \"_\" or \"-\", the first a letter or digit"
)]
pub struct InvalidId {
    noun: &'static str,
    text: String,
}

fn is_id(text: &str) -> bool {
    let all = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    (1..=MAX_ID_BYTES).contains(&text.len())
        && text.as_bytes()[0].is_ascii_alphanumeric()
        && text.bytes().all(all)
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal, $noun:literal, $fresh:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[cfg_attr(
            feature = "schema",
            schemars(extend("maxLength" = MAX_ID_BYTES, "pattern" = "^[A-Za-z0-9][A-Za-z0-9._-]*$"))
        )]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// A new random id.
            pub fn random() -> Self {
                Self(format!(concat!($prefix, "{}"), uuid::Uuid::$fresh().simple()))
            }

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, InvalidId> {
                if is_id(text) {
                    Ok(Self(text.to_owned()))
                } else {
                    Err(InvalidId { noun: $noun, text: text.to_owned() })
                }
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidId;

            fn try_from(text: String) -> Result<Self, InvalidId> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

id!(
    /// Names one session: the host's own text, or `ses_` and 32 hexadecimal digits.
    SessionId, "ses_", "session", new_v4
);
id!(
    /// Names one run: the host's own text, or `run_` and 32 hexadecimal digits.
    RunId, "run_", "run", new_v4
);
id!(
    /// Names one event: the host's own text, or `evt_` and 32 hexadecimal digits, which begin with
    /// the time: so what is found by it in the log is written where the last one was.
    EventId, "evt_", "event", now_v7
);
id!(
    /// Names one artifact's row in the registry: `art_` and 32 hexadecimal digits.
    ArtifactId, "art_", "artifact", new_v4
);
id!(
    /// Names one operation that can be undone: `op_` and 32 hexadecimal digits.
    OperationId, "op_", "operation", new_v4
);
id!(
    /// Names one step of a run: `stp_` and 32 hexadecimal digits.
    StepId, "stp_", "step", new_v4
);
id!(
    /// Names one question that a run asks: `que_` and 32 hexadecimal digits.
    QuestionId, "que_", "question", new_v4
);
id!(
    /// Names one effect that a step has on a repository: `eff_` and 32 hexadecimal digits.
    EffectId, "eff_", "effect", new_v4
);
id!(
    /// Names one agent that works in a run: `agt_` and 32 hexadecimal digits.
    AgentId, "agt_", "agent", new_v4
);
id!(
    /// Names one review: `rev_` and 32 hexadecimal digits.
    ReviewId, "rev_", "review", new_v4
);
id!(
    /// Names one time that a run was handed in for review: `req_` and 32 hexadecimal digits.
    ReviewRequestId, "req_", "request", new_v4
);
id!(
    /// Names one task that has a branch: `tsk_` and 32 hexadecimal digits. The host's own name of
    /// it is another one.
    WorkTaskId, "tsk_", "task", new_v4
);
id!(
    /// Names one thing in quarantine: `qua_` and 32 hexadecimal digits.
    QuarantineId, "qua_", "quarantine", new_v4
);
id!(
    /// Names one engine process: `eng_` and 32 hexadecimal digits.
    EngineId, "eng_", "engine", new_v4
);

impl SessionId {
    /// The session of everything that is done to a workspace outside of any other session.
    ///
    /// `workspace_id` is [`Workspace::id`](stillframe_backends::Workspace::id).
    pub(crate) fn of_workspace(workspace_id: &str) -> Self {
        Self(format!("ses_{workspace_id}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generated_id_is_its_prefix_and_32_hexadecimal_digits() {
        for (text, prefix) in [
            (SessionId::random().to_string(), "ses_"),
            (RunId::random().to_string(), "run_"),
        ] {
            let digits = text.strip_prefix(prefix).expect("the prefix comes first");
            assert_eq!(digits.len(), 32, "{text}");
            assert!(
                digits
                    .bytes()
                    .all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')),
                "{text}"
            );
            assert_eq!(text.parse::<SessionId>().map(String::from), Ok(text));
        }
    }

    #[test]
    fn an_id_that_could_be_an_option_or_a_path_is_refused() {
        for text in ["", "-x", ".x", "_x", "..", "a/b", "a b", "é", "a\n", "a@{b"] {
            assert!(text.parse::<SessionId>().is_err(), "{text:?}");
        }
        assert!("x".repeat(201).parse::<RunId>().is_err(), "201 bytes");
        for text in [
            "a",
            "ticket-42",
            "A.b_c-9",
            "a..b",
            "a.lock",
            &"x".repeat(200),
        ] {
            assert!(text.parse::<RunId>().is_ok(), "{text:?}");
        }
    }
}
