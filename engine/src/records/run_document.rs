//! The documents in the row of a run: its options, the result of its adapter, and what the engine
//! saw of its workspace. Reading them is lenient, because an earlier or later version may have
//! written a part in another form.

use serde::de::{DeserializeOwned, Deserializer};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use stillframe_backends::{BackendKind, Diff, PatchText, RefChange, RelPath, Snapshot, SnapshotId};

use crate::failure::Failure;
use crate::id::RunId;
use crate::policy::limits::RunLimits;
use crate::records::kept_branch::KeptBranch;
use crate::records::output::AdapterOutput;
use crate::records::repositories::{KeptRepository, SavedRepositories};
use crate::records::restore_document::RestoreDocument;
use crate::records::resumed_work::ResumedWork;
use crate::records::run_row::RunRow;
use crate::records::saved_work::SavedWork;

/// The options of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct KeptOptions<W> {
    pub(crate) workspace: W,
    #[serde(default)]
    pub(crate) timeout_ms: Option<u64>,
    /// Of a run that was submitted, if it has its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) hot_wait_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "RunLimits::are_none")]
    pub(crate) limits: RunLimits,
    /// Those of the engine that accepted it, and of the one that began its work.
    #[serde(default, skip_serializing_if = "RunLimits::are_none")]
    pub(crate) engine_limits: RunLimits,
    /// The task whose work the run does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) work_branch: Option<KeptBranch>,
    /// The further repositories that it works in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) repositories: Vec<KeptRepository>,
    /// How it works in a worktree of its own, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) isolation: Option<Value>,
    /// The run that failed, in whose place it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) retried_from: Option<RunId>,
    #[serde(flatten)]
    pub(crate) begun_as: BegunAs,
    /// What the host says of it.
    #[serde(default)]
    pub(crate) metadata: Value,
}

/// The properties of a run that do not change when it is resumed. Rows of earlier versions do not
/// have them; then the defaults apply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct BegunAs {
    /// Whether it can be resumed though it has no phases.
    pub(crate) resumable: bool,
    /// Whether its session was made for it, and ends with it.
    pub(crate) own_session: bool,
}

/// What a run may do at most. Rows of runs without limits do not have it.
#[derive(Deserialize)]
struct KeptLimits {
    #[serde(default)]
    limits: RunLimits,
    #[serde(default)]
    engine_limits: RunLimits,
}

/// What the adapter of a run returned: all but the streams of a command, which are the caller's.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct KeptOutput {
    #[serde(default)]
    pub(crate) data: Value,
    #[serde(skip_deserializing)]
    command: Option<KeptCommand>,
}

#[derive(Clone, Debug, Serialize)]
struct KeptCommand {
    command: String,
    args: Vec<String>,
    cwd: String,
    duration_ms: u64,
    timed_out: bool,
    stdout_bytes: u64,
    stderr_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    stdout_ref: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stderr_ref: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_error: Option<Failure>,
}

/// What was seen of the workspace of a run, in short. What a version wrote that this one cannot
/// read is left out, but for the patch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
#[non_exhaustive]
pub struct WorkspaceSummary {
    /// Who captured it.
    #[serde(deserialize_with = "part")]
    pub backend: Option<BackendKind>,
    /// What the snapshot before the work is called in its store: [`Snapshot::reference`].
    #[serde(deserialize_with = "part")]
    pub before_ref: Option<String>,
    /// The same of the snapshot after the work; `None` if there is none.
    #[serde(deserialize_with = "part")]
    pub after_ref: Option<String>,
    /// The snapshot before the work.
    #[serde(deserialize_with = "part")]
    pub before_snapshot: Option<SnapshotId>,
    /// The snapshot after the work; `None` if there is none.
    #[serde(deserialize_with = "part")]
    pub after_snapshot: Option<SnapshotId>,
    /// What changed; `None` if it could not be computed.
    #[serde(deserialize_with = "part")]
    pub diff: Option<DiffSummary>,
    /// The rollback; `None` if there was none.
    #[serde(deserialize_with = "part")]
    pub rollback: Option<RestoreDocument>,
    /// Why the engine failed after the work.
    #[serde(deserialize_with = "part")]
    pub error: Option<Failure>,
    /// How the workspace came to the branch of its task. In JSON only if the run is of one.
    #[serde(deserialize_with = "part", skip_serializing_if = "Option::is_none")]
    pub resumed: Option<ResumedWork>,
    /// What became of the work on that branch. In JSON only if the run is of one.
    #[serde(deserialize_with = "part", skip_serializing_if = "Option::is_none")]
    pub saved: Option<SavedWork>,
    /// What became of the work in all of its repositories. In JSON only if it worked in several.
    #[serde(deserialize_with = "part", skip_serializing_if = "Option::is_none")]
    pub repositories: Option<SavedRepositories>,
    /// The patch, if it is small enough to be kept here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patch: Option<KeptPatch>,
    /// The key of the artifact that has the patch.
    #[serde(deserialize_with = "part", skip_serializing_if = "Option::is_none")]
    pub patch_ref: Option<String>,
    /// The size of the patch, wherever it is.
    #[serde(deserialize_with = "part", skip_serializing_if = "Option::is_none")]
    pub patch_bytes: Option<u64>,
    /// Whether there was a patch that a purge took out. In JSON only if so.
    #[serde(deserialize_with = "truth", skip_serializing_if = "std::ops::Not::not")]
    pub patch_purged: bool,
}

/// What a run changed, in short.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct DiffSummary {
    /// How many files were added, modified or deleted.
    pub files_changed: u64,
    /// How many lines were added.
    pub insertions: u64,
    /// How many lines were removed.
    pub deletions: u64,
    /// The paths of those files, sorted.
    pub changed_paths: Vec<RelPath>,
    /// The refs that changed. In JSON only if there are any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refs: Vec<RefChange>,
}

/// A patch in the record of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
#[non_exhaustive]
pub enum KeptPatch {
    /// It can be applied.
    Text(PatchText),
    /// What another version wrote; nobody can tell what it has.
    Unreadable(Value),
}

/// A part of a document, if it can be read.
fn part<'de, T: DeserializeOwned, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
    let value = Value::deserialize(from)?;
    Ok(serde_json::from_value(value).ok())
}

fn truth<'de, D: Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    Ok(part(from)?.unwrap_or_default())
}

impl KeptOutput {
    pub(crate) fn of(output: &AdapterOutput) -> Self {
        let command = output.command.as_ref().map(|command| KeptCommand {
            command: command.command.clone(),
            args: command.args.clone(),
            cwd: command.cwd.clone(),
            duration_ms: command.duration_ms,
            timed_out: command.timed_out,
            stdout_bytes: command.stdout_bytes,
            stderr_bytes: command.stderr_bytes,
            stdout_ref: command.stdout_ref.clone(),
            stderr_ref: command.stderr_ref.clone(),
            output_error: command.output_error.clone(),
        });
        Self {
            data: output.data.clone(),
            command,
        }
    }
}

impl WorkspaceSummary {
    /// What a row has; `None`: the run has not ended, or has no workspace.
    pub(crate) fn of(kept: &Value) -> Option<Self> {
        (!kept.is_null()).then(|| Self::deserialize(kept).unwrap_or_default())
    }

    /// With these snapshots.
    pub(crate) fn between(before: Option<&Snapshot>, after: Option<&Snapshot>) -> Self {
        Self {
            before_ref: before.map(|snapshot| snapshot.reference.clone()),
            after_ref: after.map(|snapshot| snapshot.reference.clone()),
            before_snapshot: before.map(|snapshot| snapshot.id.clone()),
            after_snapshot: after.map(|snapshot| snapshot.id.clone()),
            ..Self::default()
        }
    }

    /// With what changed between them.
    pub(crate) fn with_diff(mut self, diff: &Diff) -> Self {
        self.diff = Some(DiffSummary {
            files_changed: diff.files_changed,
            insertions: diff.insertions,
            deletions: diff.deletions,
            changed_paths: diff.changed_paths.clone(),
            refs: diff.refs.clone(),
        });
        self.patch = diff.patch.clone().map(KeptPatch::Text);
        self.patch_ref = diff.patch_ref.clone();
        self.patch_bytes = diff.patch_bytes;
        self
    }
}

impl RunRow {
    /// What the run was begun as.
    pub(crate) fn begun_as(&self) -> BegunAs {
        BegunAs::deserialize(&self.options).unwrap_or_default()
    }

    /// What the host keeps with it.
    pub(crate) fn metadata(&self) -> Value {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Said {
            metadata: Value,
        }
        Said::deserialize(&self.options)
            .unwrap_or_default()
            .metadata
    }

    /// The limits of the engines that had the run, with those of one more: of each the stricter.
    /// `None`: those on record are as strict.
    pub(crate) fn stricter_in(
        &self,
        engine: &RunLimits,
    ) -> Result<Option<RunLimits>, serde_json::Error> {
        let kept = KeptLimits::deserialize(&self.options)?.engine_limits;
        let both = engine.clone().within(&kept);
        Ok((both != kept).then_some(both))
    }

    /// The most that the run may do where it is begun from the queue or gone on with, in an engine
    /// with these limits: what it was accepted or begun with.
    pub(crate) fn limits_in(&self, engine: &RunLimits) -> Result<RunLimits, serde_json::Error> {
        let kept = KeptLimits::deserialize(&self.options)?;
        Ok(kept
            .limits
            .over(&engine.clone().within(&kept.engine_limits)))
    }

    /// What was seen of its workspace; of a run whose work has not ended, or that has none, that is
    /// nothing.
    pub(crate) fn seen(&self) -> WorkspaceSummary {
        WorkspaceSummary::of(&self.summary).unwrap_or_default()
    }

    /// What its adapter returned.
    pub(crate) fn returned(&self) -> Option<AdapterOutput> {
        let output = KeptOutput::deserialize(&self.output).ok()?;
        Some(AdapterOutput {
            exit_code: self.exit_code,
            command: None,
            data: output.data,
        })
    }
}

/// A document as the log has it, its keys in their order.
pub(crate) fn document(kept: &impl Serialize) -> Value {
    serde_json::to_value(kept).expect("a document is plain data")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::records::output::CommandResult;

    #[test]
    fn options_are_kept_with_all_they_say_and_read_where_some_is_missing() {
        let begun_as = BegunAs {
            resumable: true,
            own_session: false,
        };
        let kept = document(&KeptOptions {
            engine_limits: RunLimits::default(),
            work_branch: None,
            repositories: Vec::new(),
            isolation: None,
            retried_from: None,
            workspace: Some("a workspace"),
            timeout_ms: Some(u64::MAX),
            hot_wait_ms: None,
            limits: RunLimits::default(),
            begun_as,
            metadata: json!({ "steps": 1 }),
        });
        let text = r#"{"metadata":{"steps":1},"own_session":false,"resumable":true,"timeout_ms":18446744073709551615,"workspace":"a workspace"}"#;
        assert_eq!(kept.to_string(), text);
        assert_eq!(BegunAs::deserialize(&kept).unwrap(), begun_as);
        for earlier in [json!({ "workspace": null, "timeout_ms": null }), json!({})] {
            assert_eq!(BegunAs::deserialize(&earlier).unwrap(), BegunAs::default());
        }
        let odd = KeptOptions::<String>::deserialize(&json!({ "workspace": null }));
        assert!(odd.is_err(), "there is none to read");
    }

    #[test]
    fn an_output_is_kept_without_streams() {
        let command = CommandResult {
            command: "make".to_owned(),
            args: vec!["all".to_owned()],
            cwd: "/w".to_owned(),
            exit_code: 2,
            stdout: "out".to_owned(),
            stderr: "error".to_owned(),
            stdout_bytes: 3,
            stderr_bytes: 5,
            stdout_ref: None,
            stderr_ref: None,
            output_error: None,
            stdout_truncated: false,
            stderr_truncated: true,
            duration_ms: 7,
            timed_out: false,
            signal: None,
            had_terminal: false,
        };
        let kept_whole = CommandResult {
            stdout_ref: Some("key".to_owned()),
            output_error: Some(Failure::of_work("no room")),
            ..command.clone()
        };
        let output = AdapterOutput {
            exit_code: Some(2),
            command: Some(command),
            data: json!({ "own": [1] }),
        };
        let text = r#"{"command":{"args":["all"],"command":"make","cwd":"/w","duration_ms":7,"stderr_bytes":5,"stdout_bytes":3,"timed_out":false},"data":{"own":[1]}}"#;
        assert_eq!(document(&KeptOutput::of(&output)).to_string(), text);
        let kept = document(&KeptOutput::of(&AdapterOutput {
            command: Some(kept_whole),
            ..AdapterOutput::empty()
        }));
        assert_eq!(kept["command"]["stdout_ref"], "key");
        assert_eq!(kept["command"]["output_error"]["message"], "no room");
        assert_eq!(kept["command"].get("stderr_ref"), None);
        let bare = document(&KeptOutput::of(&AdapterOutput::empty()));
        assert_eq!(bare.to_string(), r#"{"command":null,"data":null}"#);
        assert!(KeptOutput::deserialize(&Value::Null).is_err());
    }

    #[test]
    fn a_part_of_a_summary_that_cannot_be_read_takes_no_other_along() {
        let mut kept = document(&WorkspaceSummary {
            before_ref: Some("a".to_owned()),
            error: Some(Failure::of_work("it failed")),
            ..WorkspaceSummary::default()
        });
        let text = r#"{"after_ref":null,"after_snapshot":null,"backend":null,"before_ref":"a","before_snapshot":null,"diff":null,"error":{"kind":null,"message":"it failed"},"rollback":null}"#;
        assert_eq!(kept.to_string(), text);
        kept["backend"] = json!("of another version");
        kept["patch"] = json!({ "of": "another version" });
        kept["patch_purged"] = json!("yes");
        let read = WorkspaceSummary::deserialize(&kept).unwrap();
        assert_eq!(read.backend, None);
        assert_eq!(read.error, Some(Failure::of_work("it failed")));
        assert!(matches!(read.patch, Some(KeptPatch::Unreadable(_))));
    }
}
