//! The data of events about work that leaves the machine. Subscribers depend on the keys, so no key
//! is renamed; new keys may be added.

use serde::Serialize;
use stillframe_backends::RelPath;

use crate::id::{RunId, WorkTaskId};

/// `persist_started`.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct PersistStarted<'a> {
    pub(crate) task_id: &'a WorkTaskId,
    /// What kind of checkpoint: `wip`, `periodic` or `blocked`.
    pub(crate) checkpoint: &'a str,
    /// How many files the work has changed, if that is known by then.
    pub(crate) file_count: Option<u64>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) recovered: bool,
}

/// `persist_committed`, `persist_noop`, `persist_pushed`.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Persisted<'a> {
    pub(crate) task_id: &'a WorkTaskId,
    /// The id of the store that has the commit.
    pub(crate) repository: &'a str,
    /// Where it goes, or is; null: the task has no remote.
    pub(crate) branch: Option<&'a str>,
    /// The full id.
    pub(crate) commit: &'a str,
    /// Where the branch was when it was proven, if somebody has moved it on from the commit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) advanced_to: Option<&'a str>,
    /// Changed files that stay as HEAD has them, because their conversion takes a program.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) unconverted_paths: Vec<&'a RelPath>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) recovered: bool,
}

/// `persist_failed`.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct PersistFailed<'a> {
    pub(crate) task_id: &'a WorkTaskId,
    /// The id of the store that keeps the commit.
    pub(crate) repository: &'a str,
    pub(crate) branch: Option<&'a str>,
    /// What is kept in the store; null: no commit could be made.
    pub(crate) commit: Option<&'a str>,
    /// The kind of failure, such as `AuthDenied`.
    pub(crate) kind: &'a str,
    /// One line.
    pub(crate) reason: &'a str,
    /// Of `SecretFound`: where, and by which rules.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) findings: Vec<SecretFinding<'a>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) recovered: bool,
}

/// Where a secret value was found that would have been sent; never the value.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct SecretFinding<'a> {
    pub(crate) rule: &'a str,
    /// Null: it is in a message, or in the name of an author.
    pub(crate) path: Option<&'a RelPath>,
    pub(crate) line: u64,
    /// Tells this value from others.
    pub(crate) fingerprint: &'a str,
}

/// `secret_allowed`, `secret_forbidden`.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct SecretAllowed<'a> {
    /// The id of the store whose work it is in.
    pub(crate) repository: &'a str,
    pub(crate) rule: &'a str,
    /// Null: it is in a message, or in the name of an author.
    pub(crate) path: Option<&'a RelPath>,
    /// Tells this value from others.
    pub(crate) fingerprint: &'a str,
}

/// `checkpoint_ready`.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct CheckpointReady<'a> {
    pub(crate) task_id: &'a WorkTaskId,
    pub(crate) branch: &'a str,
    pub(crate) commit: &'a str,
    /// Why the task waits.
    pub(crate) reason: &'a str,
}

/// `checkpoint_notice_posted`, `checkpoint_notice_skipped`.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct CheckpointNotice<'a> {
    pub(crate) task_id: &'a WorkTaskId,
    /// What the notice says: `checkpoint_ready` or `checkpoint_failed`.
    pub(crate) notice: &'a str,
    pub(crate) token: &'a str,
    /// Of one that was skipped: `token_already_present`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<&'a str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) recovered: bool,
}

/// `push_divergence_retried`, `push_divergence_recovered`, `push_divergence_failed`.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct PushDivergence<'a> {
    pub(crate) task_id: &'a WorkTaskId,
    /// The work branch, which stays as it is unless the work was merged.
    pub(crate) branch: &'a str,
    /// The branch beside it that has the work, if one has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) side_branch: Option<&'a str>,
}

/// `persist_flagged`.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct PersistFlagged<'a> {
    pub(crate) task_id: &'a WorkTaskId,
    /// How often in a row the work was not saved.
    pub(crate) failures: u32,
    /// The kind of the last failure.
    pub(crate) kind: &'a str,
}

/// `checkpoint_discarded`.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct CheckpointDiscarded<'a> {
    pub(crate) task_id: &'a WorkTaskId,
    /// The id of the store that kept it.
    pub(crate) repository: &'a str,
    /// The full id of the newest.
    pub(crate) commit: &'a str,
    /// How many were let go of: it, and those that it alone went on from.
    pub(crate) checkpoints: usize,
}

/// `followup_waiting`, `followup_detected`, `followup_enqueued`, `followup_resumed`,
/// `followup_consumed`.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct FollowUpMoved<'a> {
    pub(crate) task_id: &'a WorkTaskId,
    /// The branch that was stored, whatever the task is named since.
    pub(crate) branch: &'a str,
    /// What was written; left out but where a run goes on with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) text: Option<&'a str>,
    /// The number of the input; left out where the task waits for some.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) input_id: Option<u64>,
    /// The run that goes on with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) run_id: Option<&'a RunId>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) recovered: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::data::data;

    fn says(said: impl Serialize, text: &str) {
        assert_eq!(data(&said).to_string(), text);
    }

    #[test]
    fn a_persist_says_what_of_which_task_is_where() {
        let task_id = &"t".parse().unwrap();
        let started = |file_count, recovered| PersistStarted {
            task_id,
            checkpoint: "wip",
            file_count,
            recovered,
        };
        let text = r#"{"checkpoint":"wip","file_count":null,"task_id":"t"}"#;
        says(started(None, false), text);
        let text = r#"{"checkpoint":"wip","file_count":3,"recovered":true,"task_id":"t"}"#;
        says(started(Some(3), true), text);
        let path = RelPath::new("a.docx").unwrap();
        let persisted = |advanced_to, unconverted_paths| Persisted {
            task_id,
            repository: "s",
            branch: Some("b"),
            commit: "c1",
            advanced_to,
            unconverted_paths,
            recovered: false,
        };
        let text = r#"{"branch":"b","commit":"c1","repository":"s","task_id":"t"}"#;
        says(persisted(None, Vec::new()), text);
        let text = r#"{"advanced_to":"c2","branch":"b","commit":"c1","repository":"s","task_id":"t","unconverted_paths":["a.docx"]}"#;
        says(persisted(Some("c2"), vec![&path]), text);
        let failed = |kind, findings| PersistFailed {
            task_id,
            repository: "s",
            branch: Some("b"),
            commit: Some("c1"),
            kind,
            reason: "it was refused",
            findings,
            recovered: false,
        };
        let text = r#"{"branch":"b","commit":"c1","kind":"AuthDenied","reason":"it was refused","repository":"s","task_id":"t"}"#;
        says(failed("AuthDenied", Vec::new()), text);
        let finding = |path| SecretFinding {
            rule: "jwt",
            path,
            line: 7,
            fingerprint: "ab",
        };
        let found = failed("SecretFound", vec![finding(Some(&path)), finding(None)]);
        let text = r#"[{"fingerprint":"ab","line":7,"path":"a.docx","rule":"jwt"},{"fingerprint":"ab","line":7,"path":null,"rule":"jwt"}]"#;
        assert_eq!(data(&found)["findings"].to_string(), text);
        let allowed = |path| SecretAllowed {
            repository: "s",
            rule: "jwt",
            path,
            fingerprint: "ab",
        };
        let text = r#"{"fingerprint":"ab","path":"a.docx","repository":"s","rule":"jwt"}"#;
        says(allowed(Some(&path)), text);
        assert!(data(&allowed(None))["path"].is_null());
    }

    #[test]
    fn a_blocked_task_says_where_it_goes_on_and_who_was_told() {
        let task_id = &"t".parse().unwrap();
        let ready = CheckpointReady {
            task_id,
            branch: "b",
            commit: "c1",
            reason: "recoverable_blocked",
        };
        let text = r#"{"branch":"b","commit":"c1","reason":"recoverable_blocked","task_id":"t"}"#;
        says(ready, text);
        let notice = |reason| CheckpointNotice {
            task_id,
            notice: "checkpoint_ready",
            token: "ab",
            reason,
            recovered: false,
        };
        let text = r#"{"notice":"checkpoint_ready","task_id":"t","token":"ab"}"#;
        says(notice(None), text);
        let text = r#"{"notice":"checkpoint_ready","reason":"token_already_present","task_id":"t","token":"ab"}"#;
        says(notice(Some("token_already_present")), text);
        let diverged = |side_branch| PushDivergence {
            task_id,
            branch: "b",
            side_branch,
        };
        says(diverged(None), r#"{"branch":"b","task_id":"t"}"#);
        let text = r#"{"branch":"b","side_branch":"b--diverged-r","task_id":"t"}"#;
        says(diverged(Some("b--diverged-r")), text);
        let flagged = PersistFlagged {
            task_id,
            failures: 3,
            kind: "AuthDenied",
        };
        let text = r#"{"failures":3,"kind":"AuthDenied","task_id":"t"}"#;
        says(flagged, text);
        let run_id = "r".parse().unwrap();
        let moved = |input_id, run_id| FollowUpMoved {
            task_id,
            branch: "b",
            text: None,
            input_id,
            run_id,
            recovered: false,
        };
        says(moved(None, None), r#"{"branch":"b","task_id":"t"}"#);
        let text = r#"{"branch":"b","input_id":8,"run_id":"r","task_id":"t"}"#;
        says(moved(Some(8), Some(&run_id)), text);
    }
}
