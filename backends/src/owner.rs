//! The owner of a snapshot: its session and run.

/// Whose a snapshot is: it becomes part of the ref's name.
///
/// Within one session a path once captured goes on being captured, though a rule ignores it later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// A session id: 1 to 200 letters, digits, `.`, `_`, `-`, the first a letter or digit.
    pub session_id: String,
    /// A run id, of the same form; `None`: taken outside of any run.
    pub run_id: Option<String>,
}

impl Default for Owner {
    fn default() -> Self {
        Self {
            session_id: "manual".to_owned(),
            run_id: None,
        }
    }
}
