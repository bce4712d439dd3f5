//! The data of each type of event, and reading it again. Subscribers depend on the keys, so no key
//! is renamed; new keys may be added.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use stillframe_backends::{
    BackendKind, Label, MovedTag, RelPath, RestoreDurations, Search, SnapshotId,
};

use crate::events::event::Event;
use crate::failure::Failure;
use crate::id::{EffectId, QuestionId, RunId, StepId, WorkTaskId};

/// The data of an event, its keys in their order.
pub(crate) fn data(said: &impl Serialize) -> Value {
    serde_json::to_value(said).expect("what an event says is plain data")
}

/// How deep lists and objects of hosts and adapters may lie in each other. A reader of JSON takes
/// 128 levels, and what is read again lies in documents of ours.
pub(crate) const MAX_DEPTH: usize = 100;

/// Whether lists and objects lie in each other deeper than [`MAX_DEPTH`]. It takes no stack.
pub(crate) fn is_too_deep<'a>(values: impl Iterator<Item = &'a Value>) -> bool {
    let mut left: Vec<(&Value, usize)> = values.map(|value| (value, 0)).collect();
    while let Some((value, depth)) = left.pop() {
        let inner = depth + 1;
        match value {
            Value::Array(_) | Value::Object(_) if inner > MAX_DEPTH => return true,
            Value::Array(all) => left.extend(all.iter().map(|value| (value, inner))),
            Value::Object(all) => left.extend(all.values().map(|value| (value, inner))),
            _ => {}
        }
    }
    false
}

/// A value as JSON, as it is stored.
pub(crate) fn bytes(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("what an event says is plain data")
}

/// `session_created`, `session_started`, and the moves of a session.
#[derive(Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct SessionMoved<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<&'a str>,
}

/// `run_queued`.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct RunQueued<'a> {
    pub(crate) adapter: &'a str,
    pub(crate) priority: &'a str,
}

/// `run_started`. The first two are left out the first time.
#[derive(Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct RunStarted {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) attempt: Option<u64>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) resumed: bool,
    /// All repositories of a run that works in several; left out for any other.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) repositories: Vec<BegunIn>,
}

/// A repository that a run works in, and the task that its work there is of.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct BegunIn {
    /// The id of its workspace.
    pub(crate) repository: String,
    pub(crate) task_id: WorkTaskId,
}

/// `run_completed`, `run_failed`, `run_cancelled`, `run_timeout`, `run_interrupted`, `run_blocked`,
/// `question_parked`.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct RunEnded {
    /// Of work that was done; null if it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exit_code: Option<Option<i32>>,
    #[serde(flatten)]
    pub(crate) why: Option<Why>,
    /// Those that are waited for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) questions: Option<Vec<QuestionId>>,
    /// Of a run that rests: how long it was worked on since it began or was resumed, without the
    /// time in which it only waited for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) worked_ms: Option<u64>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) recovered: bool,
}

/// Why a run has ended.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub(crate) enum Why {
    Failure(Reason),
    Settled { reason: String },
}

/// Why something came to its end. `message` is null: it was the reason once.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Reason {
    kind: Option<String>,
    message: (),
    reason: String,
}

impl From<&Failure> for Reason {
    fn from(failure: &Failure) -> Self {
        Self {
            kind: failure.kind.clone(),
            message: (),
            reason: failure.line(),
        }
    }
}

impl RunEnded {
    /// It ended for this reason.
    pub(crate) fn because(failure: &Failure) -> Self {
        Self {
            why: Some(Why::Failure(Reason::from(failure))),
            ..Self::default()
        }
    }
}

/// The moves of a phase.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct PhaseMoved<'a> {
    pub(crate) phase: &'a str,
    pub(crate) iteration: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) duration_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<&'a str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) recovered: bool,
}

/// The moves of a step.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct StepMoved<'a> {
    pub(crate) step_id: &'a StepId,
    pub(crate) phase: &'a str,
    pub(crate) iteration: u32,
    pub(crate) step: &'a str,
    pub(crate) attempt: u32,
    pub(crate) snapshot_before: Option<&'a SnapshotId>,
    /// Of one that is not under way.
    #[serde(flatten)]
    pub(crate) left: Option<StepLeft<'a>>,
    /// Why it failed, or was left out.
    #[serde(flatten)]
    pub(crate) failed: Option<Failed>,
    /// Why it goes on with what is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) in_place: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) retry_in_ms: Option<u64>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) recovered: bool,
}

/// What a step left.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct StepLeft<'a> {
    pub(crate) snapshot_after: Option<&'a SnapshotId>,
    pub(crate) commit_created: Option<&'a str>,
    pub(crate) duration_ms: Option<u64>,
}

/// Why a step, a task or a tool failed; of a step that was left out the reason alone.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Failed {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<Option<String>>,
    pub(crate) reason: String,
}

impl From<&Failure> for Failed {
    fn from(failure: &Failure) -> Self {
        Self {
            kind: Some(failure.kind.clone()),
            reason: failure.line(),
        }
    }
}

/// `task_started`, `task_completed`, `task_failed`.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct TaskMoved<'a> {
    pub(crate) step_id: &'a StepId,
    pub(crate) task: &'a str,
    pub(crate) attempt: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) duration_ms: Option<u64>,
    #[serde(flatten)]
    pub(crate) failed: Option<Failed>,
}

/// The moves of a question, but for `question_parked`.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct QuestionMoved<'a> {
    pub(crate) question_id: &'a QuestionId,
    pub(crate) step_id: Option<&'a StepId>,
    pub(crate) question: &'a str,
    pub(crate) deadline: Option<Timestamp>,
    /// Whether something is done beside the questions that are then open: time counts as work.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) work_goes_on: bool,
    /// Of `question_answered`.
    #[serde(flatten)]
    pub(crate) answer: Option<Answered<'a>>,
}

/// `tool_approval_requested`, `tool_approval_granted`, `tool_approval_denied`, where a policy asks.
#[derive(Serialize)]
pub(crate) struct ToolApproval<'a> {
    pub(crate) question_id: &'a QuestionId,
    /// Of a call that an adapter tells of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) call_id: Option<&'a str>,
    pub(crate) tool_name: &'a str,
    /// What is asked, or why it is refused without an answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<&'a str>,
}

/// What was answered, and whether that was because the time was up.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Answered<'a> {
    pub(crate) answer: &'a str,
    pub(crate) timed_out: bool,
}

/// `commit_wanted`.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct CommitWanted<'a> {
    pub(crate) effect_id: &'a EffectId,
    pub(crate) step_id: &'a StepId,
    pub(crate) reference: &'a str,
    pub(crate) parent: Option<&'a str>,
    pub(crate) tree: &'a str,
}

/// `commit_created`.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct CommitCreated<'a> {
    pub(crate) effect_id: &'a EffectId,
    pub(crate) step_id: &'a StepId,
    pub(crate) commit: &'a str,
    pub(crate) parent: Option<&'a str>,
    pub(crate) reference: &'a str,
    /// Whether it was there already.
    pub(crate) is_adopted: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) recovered: bool,
}

/// `commit_failed`.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct CommitFailed<'a> {
    pub(crate) effect_id: &'a EffectId,
    pub(crate) step_id: &'a StepId,
    #[serde(flatten)]
    pub(crate) why: Reason,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) recovered: bool,
}

/// `commit_recorded`.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct CommitRecorded<'a> {
    pub(crate) step_id: &'a StepId,
    pub(crate) commit: &'a str,
}

/// `tool_call_started`, `tool_call_completed`, `tool_call_failed`.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct ToolCall {
    pub(crate) call_id: String,
    pub(crate) tool_name: String,
    #[serde(flatten)]
    pub(crate) contents: CallContents,
    /// Of a tool that may change something.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) snapshot_before: Option<SnapshotId>,
    #[serde(flatten)]
    pub(crate) done: Option<ToolDone>,
    #[serde(flatten)]
    pub(crate) failed: Option<Failed>,
    /// Why what it did could not be undone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rollback: Option<String>,
}

/// What a tool was given and returned, as far as that was told: what is small, and of what is large
/// the artifact that has it, its beginning, and its size.
#[derive(Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct CallContents {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) input: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) input_ref: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) input_summary: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) input_size_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) output: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) output_ref: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) output_summary: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) output_size_bytes: Option<u64>,
}

/// What a tool left, and why that could not be captured.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct ToolDone {
    pub(crate) snapshot_after: Option<SnapshotId>,
    pub(crate) warning: Option<String>,
}

/// `workspace_snapshot_taken`.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct SnapshotTaken<'a> {
    pub(crate) label: &'a Label,
    pub(crate) backend: BackendKind,
    #[serde(rename = "ref")]
    pub(crate) reference: &'a str,
    pub(crate) snapshot_id: &'a SnapshotId,
    pub(crate) files: u64,
    pub(crate) files_hashed: u64,
    pub(crate) bytes_read: u64,
    pub(crate) duration_ms: u64,
    pub(crate) omissions: usize,
    /// Left out where it looked at every file, and was to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) search: Option<Search>,
}

/// `workspace_diff_computed`.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct DiffComputed<'a> {
    pub(crate) files_changed: u64,
    pub(crate) insertions: u64,
    pub(crate) deletions: u64,
    pub(crate) has_patch: bool,
    /// The key of the artifact that has the patch, which is there by then. Left out where none has
    /// it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) patch_ref: Option<&'a str>,
}

/// `workspace_rolled_back`.
#[derive(Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct RolledBack<'a> {
    pub(crate) to: Option<&'a SnapshotId>,
    pub(crate) guard: Option<&'a SnapshotId>,
    pub(crate) leftover_ignored: &'a [RelPath],
    /// `None`: the log that knew what it was about was lost.
    #[serde(flatten)]
    pub(crate) restored: Option<Restored>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) durations: Option<RestoreDurations>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) safety_tag: Option<&'a str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub(crate) moved_tags: &'a [MovedTag],
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) refs_left: Vec<&'a str>,
    /// Why of the repository not everything went back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) edited_since: Vec<&'a RelPath>,
    /// The branch, or the commit where HEAD named none, if it is another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) head: Option<HeadMoved<'a>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) recovered: bool,
}

/// What a restore was, and how much it did.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Restored {
    pub(crate) operation: &'static str,
    pub(crate) restored: usize,
    pub(crate) skipped: usize,
}

#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct HeadMoved<'a> {
    pub(crate) from: Option<&'a str>,
    pub(crate) to: Option<&'a str>,
}

/// `workspace_content_purged`: counts and ids, since a path may tell what a secret is for.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct ContentPurged<'a> {
    pub(crate) contents: usize,
    pub(crate) bytes: u64,
    pub(crate) snapshots: Vec<&'a SnapshotId>,
    pub(crate) runs: &'a [RunId],
    pub(crate) artifacts: usize,
    pub(crate) freed_bytes: u64,
    pub(crate) proven: bool,
}

/// `workspace_cleaned_up`.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct CleanedUp<'a> {
    pub(crate) snapshots: &'a [SnapshotId],
    pub(crate) artifacts: &'a [&'a str],
    pub(crate) moved_tags: &'a [MovedTag],
    pub(crate) safety_refs_removed: &'a [String],
    /// Whether somebody named what was to go.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) by_name: bool,
}

/// `workspace_retention_announced`.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct RetentionAnnounced {
    pub(crate) snapshots: u64,
    pub(crate) begins_at: Timestamp,
}

/// `error_occurred`.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct ErrorOccurred {
    kind: Option<String>,
    message: String,
}

impl From<&Failure> for ErrorOccurred {
    fn from(failure: &Failure) -> Self {
        Self {
            kind: failure.kind.clone(),
            message: failure.line(),
        }
    }
}

/// What is read again of events, whose other keys may be of any version.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Told {
    pub(crate) recovered: bool,
    /// Of runs that begin.
    pub(crate) resumed: bool,
    /// Of runs that rest.
    pub(crate) worked_ms: Option<u64>,
    /// Of questions.
    pub(crate) question_id: Option<String>,
    pub(crate) work_goes_on: bool,
    /// Of steps.
    pub(crate) step_id: Option<String>,
    /// Of calls of tools.
    pub(crate) call_id: Option<String>,
    pub(crate) snapshot_before: Option<String>,
    /// Of restores.
    pub(crate) safety_tag: Option<String>,
    pub(crate) guard: Option<String>,
}

/// What is read again of `workspace_cleaned_up`.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct ToldOfCleanUp {
    pub(crate) snapshots: Vec<String>,
    pub(crate) by_name: bool,
}

impl Event {
    /// What is read again of it. A host's own event may say anything, which is nothing then.
    pub(crate) fn told(&self) -> Told {
        Told::deserialize(&self.data).unwrap_or_default()
    }

    /// As [`Event::told`], of a clean-up.
    pub(crate) fn told_of_clean_up(&self) -> ToldOfCleanUp {
        ToldOfCleanUp::deserialize(&self.data).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn failure() -> Failure {
        Failure::new("Busy", "in use\nby others")
    }

    fn says(said: impl Serialize, text: &str) {
        assert_eq!(data(&said).to_string(), text);
    }

    #[test]
    fn a_session_says_why_it_moved() {
        says(SessionMoved::default(), "{}");
        let reason = Some("a pause");
        says(SessionMoved { reason }, r#"{"reason":"a pause"}"#);
    }

    #[test]
    fn a_run_says_how_it_began_and_ended() {
        says(RunStarted::default(), "{}");
        let again = RunStarted {
            attempt: Some(2),
            resumed: true,
            repositories: Vec::new(),
        };
        says(again, r#"{"attempt":2,"resumed":true}"#);
        let ended = |exit_code| RunEnded {
            exit_code: Some(exit_code),
            ..RunEnded::default()
        };
        says(ended(Some(0)), r#"{"exit_code":0}"#);
        says(ended(None), r#"{"exit_code":null}"#);
        let refused = r#"{"kind":"Busy","message":null,"reason":"in use by others"}"#;
        says(RunEnded::because(&failure()), refused);
        let failed = RunEnded {
            exit_code: Some(Some(2)),
            ..RunEnded::because(&Failure::of_work("no"))
        };
        let text = r#"{"exit_code":2,"kind":null,"message":null,"reason":"no"}"#;
        says(failed, text);
        let parked = RunEnded {
            questions: Some(vec!["que_1".parse().unwrap()]),
            ..RunEnded::default()
        };
        says(parked.clone(), r#"{"questions":["que_1"]}"#);
        let settled = RunEnded {
            why: Some(Why::Settled {
                reason: "stranded".to_owned(),
            }),
            recovered: true,
            ..parked
        };
        let text = r#"{"questions":["que_1"],"reason":"stranded","recovered":true}"#;
        says(settled, text);
    }

    #[test]
    fn phases_steps_and_tasks_say_which_they_are_and_why_they_failed() {
        let phase = PhaseMoved {
            phase: "build",
            iteration: 1,
            duration_ms: None,
            reason: None,
            recovered: false,
        };
        says(&phase, r#"{"iteration":1,"phase":"build"}"#);
        let ended = PhaseMoved {
            duration_ms: Some(7),
            reason: Some("not today"),
            recovered: true,
            ..phase
        };
        let text = r#"{"duration_ms":7,"iteration":1,"phase":"build","reason":"not today","recovered":true}"#;
        says(ended, text);

        let step_id = "step_1".parse().unwrap();
        let step = || StepMoved {
            step_id: &step_id,
            phase: "build",
            iteration: 0,
            step: "compile",
            attempt: 1,
            snapshot_before: None,
            left: None,
            failed: None,
            in_place: None,
            retry_in_ms: None,
            recovered: false,
        };
        let text = r#"{"attempt":1,"iteration":0,"phase":"build","snapshot_before":null,"step":"compile","step_id":"step_1"}"#;
        says(step(), text);
        let failed = StepMoved {
            left: Some(StepLeft {
                snapshot_after: None,
                commit_created: Some("c"),
                duration_ms: Some(3),
            }),
            failed: Some(Failed::from(&failure())),
            retry_in_ms: Some(5),
            recovered: true,
            ..step()
        };
        let text = r#"{"attempt":1,"commit_created":"c","duration_ms":3,"iteration":0,"kind":"Busy","phase":"build","reason":"in use by others","recovered":true,"retry_in_ms":5,"snapshot_after":null,"snapshot_before":null,"step":"compile","step_id":"step_1"}"#;
        says(failed, text);
        let skipped = StepMoved {
            failed: Some(Failed {
                kind: None,
                reason: "not wanted".to_owned(),
            }),
            in_place: Some("no content is kept".to_owned()),
            ..step()
        };
        let text = r#"{"attempt":1,"in_place":"no content is kept","iteration":0,"phase":"build","reason":"not wanted","snapshot_before":null,"step":"compile","step_id":"step_1"}"#;
        says(skipped, text);

        let task = || TaskMoved {
            step_id: &step_id,
            task: "part",
            attempt: 2,
            duration_ms: None,
            failed: None,
        };
        says(task(), r#"{"attempt":2,"step_id":"step_1","task":"part"}"#);
        let failed = TaskMoved {
            duration_ms: Some(4),
            failed: Some(Failed::from(&Failure::of_work("no"))),
            ..task()
        };
        let text = r#"{"attempt":2,"duration_ms":4,"kind":null,"reason":"no","step_id":"step_1","task":"part"}"#;
        says(failed, text);
    }

    #[test]
    fn a_question_says_what_is_asked_and_what_was_answered() {
        let question_id = "que_1".parse().unwrap();
        let asked = || QuestionMoved {
            question_id: &question_id,
            step_id: None,
            question: "go?",
            deadline: None,
            work_goes_on: false,
            answer: None,
        };
        let text = r#"{"deadline":null,"question":"go?","question_id":"que_1","step_id":null}"#;
        says(asked(), text);
        let beside = QuestionMoved {
            work_goes_on: true,
            ..asked()
        };
        let text = r#"{"deadline":null,"question":"go?","question_id":"que_1","step_id":null,"work_goes_on":true}"#;
        says(beside, text);
        let step_id = "step_1".parse().unwrap();
        let answered = QuestionMoved {
            step_id: Some(&step_id),
            deadline: Some(Timestamp::UNIX_EPOCH),
            answer: Some(Answered {
                answer: "yes",
                timed_out: true,
            }),
            ..asked()
        };
        let text = r#"{"answer":"yes","deadline":"1970-01-01T00:00:00Z","question":"go?","question_id":"que_1","step_id":"step_1","timed_out":true}"#;
        says(answered, text);
    }

    #[test]
    fn a_commit_says_where_it_goes_and_what_became_of_it() {
        let (effect_id, step_id) = ("eff_1".parse().unwrap(), "step_1".parse().unwrap());
        let wanted = CommitWanted {
            effect_id: &effect_id,
            step_id: &step_id,
            reference: "refs/heads/main",
            parent: None,
            tree: "t",
        };
        let text = r#"{"effect_id":"eff_1","parent":null,"reference":"refs/heads/main","step_id":"step_1","tree":"t"}"#;
        says(wanted, text);
        let created = |recovered| CommitCreated {
            effect_id: &effect_id,
            step_id: &step_id,
            commit: "c",
            parent: Some("p"),
            reference: "HEAD",
            is_adopted: false,
            recovered,
        };
        let text = r#"{"commit":"c","effect_id":"eff_1","is_adopted":false,"parent":"p","reference":"HEAD","step_id":"step_1"}"#;
        says(created(false), text);
        assert_eq!(data(&created(true))["recovered"], true);
        let failed = CommitFailed {
            effect_id: &effect_id,
            step_id: &step_id,
            why: Reason::from(&failure()),
            recovered: true,
        };
        let text = r#"{"effect_id":"eff_1","kind":"Busy","message":null,"reason":"in use by others","recovered":true,"step_id":"step_1"}"#;
        says(failed, text);
        let recorded = CommitRecorded {
            step_id: &step_id,
            commit: "c",
        };
        says(recorded, r#"{"commit":"c","step_id":"step_1"}"#);
    }

    #[test]
    fn a_tool_says_what_it_was_called_for_and_what_it_left() {
        let called = || ToolCall {
            call_id: "1f".to_owned(),
            tool_name: "Edit".to_owned(),
            contents: CallContents::default(),
            snapshot_before: None,
            done: None,
            failed: None,
            rollback: None,
        };
        says(called(), r#"{"call_id":"1f","tool_name":"Edit"}"#);
        let done = ToolCall {
            done: Some(ToolDone {
                snapshot_after: None,
                warning: Some("not captured".to_owned()),
            }),
            ..called()
        };
        let text =
            r#"{"call_id":"1f","snapshot_after":null,"tool_name":"Edit","warning":"not captured"}"#;
        says(done, text);
        let failed = ToolCall {
            failed: Some(Failed::from(&failure())),
            rollback: Some("refused".to_owned()),
            ..called()
        };
        let text = r#"{"call_id":"1f","kind":"Busy","reason":"in use by others","rollback":"refused","tool_name":"Edit"}"#;
        says(failed, text);
    }

    #[test]
    fn a_workspace_says_what_was_captured_compared_and_put_back() {
        let id: SnapshotId = "snap_00000000000000000000000000000001".parse().unwrap();
        let label = Label::BEFORE;
        let taken = |search| SnapshotTaken {
            label: &label,
            backend: BackendKind::Git,
            reference: "c",
            snapshot_id: &id,
            files: 4,
            files_hashed: 3,
            bytes_read: 2,
            duration_ms: 1,
            omissions: 0,
            search,
        };
        let text = r#"{"backend":"git","bytes_read":2,"duration_ms":1,"files":4,"files_hashed":3,"label":"before","omissions":0,"ref":"c","snapshot_id":"snap_00000000000000000000000000000001"}"#;
        says(taken(None), text);
        let search = Search::Walked { because: None };
        assert_eq!(data(&taken(Some(search)))["search"], json!(search));
        let compared = |patch_ref| DiffComputed {
            files_changed: 1,
            insertions: 2,
            deletions: 3,
            has_patch: true,
            patch_ref,
        };
        let text = r#"{"deletions":3,"files_changed":1,"has_patch":true,"insertions":2}"#;
        says(compared(None), text);
        let text = r#"{"deletions":3,"files_changed":1,"has_patch":true,"insertions":2,"patch_ref":"key"}"#;
        says(compared(Some("key")), text);
        let lost = RolledBack {
            guard: Some(&id),
            recovered: true,
            ..RolledBack::default()
        };
        let text = r#"{"guard":"snap_00000000000000000000000000000001","leftover_ignored":[],"recovered":true,"to":null}"#;
        says(lost, text);
        let path = RelPath::new("a").unwrap();
        let put_back = RolledBack {
            restored: Some(Restored {
                operation: "undo",
                restored: 2,
                skipped: 1,
            }),
            safety_tag: Some("refs/stillframe/safety/r-1"),
            refs_left: vec!["refs/heads/b"],
            reason: Some("HEAD is elsewhere".to_owned()),
            edited_since: vec![&path],
            head: Some(HeadMoved {
                from: Some("main"),
                to: None,
            }),
            ..RolledBack::default()
        };
        let text = r#"{"edited_since":["a"],"guard":null,"head":{"from":"main","to":null},"leftover_ignored":[],"operation":"undo","reason":"HEAD is elsewhere","refs_left":["refs/heads/b"],"restored":2,"safety_tag":"refs/stillframe/safety/r-1","skipped":1,"to":null}"#;
        says(put_back, text);
    }

    #[test]
    fn upkeep_says_what_went_and_when_it_begins() {
        let id: SnapshotId = "snap_00000000000000000000000000000001".parse().unwrap();
        let purged = ContentPurged {
            contents: 1,
            bytes: 2,
            snapshots: vec![&id],
            runs: &["run_1".parse().unwrap()],
            artifacts: 0,
            freed_bytes: 3,
            proven: true,
        };
        let text = r#"{"artifacts":0,"bytes":2,"contents":1,"freed_bytes":3,"proven":true,"runs":["run_1"],"snapshots":["snap_00000000000000000000000000000001"]}"#;
        says(purged, text);
        let cleaned = |by_name| CleanedUp {
            snapshots: std::slice::from_ref(&id),
            artifacts: &["key"],
            moved_tags: &[],
            safety_refs_removed: &[],
            by_name,
        };
        let text = r#"{"artifacts":["key"],"moved_tags":[],"safety_refs_removed":[],"snapshots":["snap_00000000000000000000000000000001"]}"#;
        says(cleaned(false), text);
        assert_eq!(data(&cleaned(true))["by_name"], true);
        let announced = RetentionAnnounced {
            snapshots: 5,
            begins_at: Timestamp::UNIX_EPOCH,
        };
        let text = r#"{"begins_at":"1970-01-01T00:00:00Z","snapshots":5}"#;
        says(announced, text);
        let problem = r#"{"kind":"Busy","message":"in use by others"}"#;
        says(ErrorOccurred::from(&failure()), problem);
    }

    #[test]
    fn what_is_read_again_is_nothing_where_an_event_says_something_else() {
        let mut event = Event {
            id: crate::id::EventId::random(),
            event_type: crate::events::event::EventType::WORKSPACE_CLEANED_UP,
            timestamp: Timestamp::UNIX_EPOCH,
            session_id: "s".parse().unwrap(),
            run_id: None,
            position: 1,
            sequence: 1,
            schema_version: 1,
            source: crate::events::event::EventSource::Engine,
            provider: None,
            correlation_id: None,
            metadata: serde_json::Map::new(),
            data_ref: None,
            data: json!({ "snapshots": ["snap_1"], "by_name": true, "recovered": true }),
        };
        let expected = ToldOfCleanUp {
            snapshots: vec!["snap_1".to_owned()],
            by_name: true,
        };
        assert_eq!(event.told_of_clean_up(), expected);
        assert!(event.told().recovered && event.told().guard.is_none());
        for odd in [json!({ "recovered": "yes" }), json!("text"), Value::Null] {
            event.data = odd;
            assert_eq!(event.told(), Told::default());
            assert_eq!(event.told_of_clean_up(), ToldOfCleanUp::default());
        }
    }
}
