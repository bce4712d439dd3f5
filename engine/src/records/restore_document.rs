//! The documents of restores: their purpose, their result, and what an undo undid.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use stillframe_backends::ref_commands::{self, is_symbolic};
use stillframe_backends::{
    Conflict, DroppedStash, LostAttributes, MovedTag, PlanId, RefChange, RelPath,
    RepositoryChanges, RestoreDurations, RestoreOutcome, RestorePlan, Skipped, SnapshotId,
    printable, shell_word,
};

use crate::failure::Failure;
use crate::id::{RunId, SessionId};
use crate::records::operation::OperationKind;

/// What became of a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RestoreStatus {
    /// The files are as the goal wants them. An error beside it concerns the repository alone.
    Completed,
    /// Nothing was touched.
    Refused,
    /// It stopped on the way; recovery finishes it.
    Failed,
}

impl RestoreStatus {
    /// The name that JSON documents use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }
}

/// What a restore, a rollback or an undo did: its outcome and its JSON document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct RestoreDocument {
    /// Whether it was done.
    pub status: RestoreStatus,
    /// The plan that was carried out. Left out of the document of a rollback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan_id: Option<PlanId>,
    /// What was there before; restoring it is the undo.
    pub guard_snapshot: Option<SnapshotId>,
    /// The full name of the ref that keeps the old branch tip, if a branch moved.
    pub safety_tag: Option<String>,
    /// The tags in which an earlier version kept old tips, and that were moved to where no push of
    /// tags takes them. Left out if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub moved_tags: Vec<MovedTag>,
    /// Of a rollback, and of an undo with the repository: the refs that what is undone changed,
    /// and that are left as it left them, sorted by name. Left out if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refs_left: Vec<LeftRef>,
    /// Every path that was written or removed, sorted.
    pub restored: Vec<RelPath>,
    /// Ignored paths that came since and were left alone, sorted; a directory counts as one.
    pub leftover_ignored: Vec<RelPath>,
    /// Paths that differ from the goal and were left as they are, sorted.
    pub skipped: Vec<Skipped>,
    /// Why it was refused or failed, or what of the repository could not be put back.
    pub error: Option<Failure>,
    /// Files that were replaced and did not get all extended attributes of what was there, which
    /// the trash of the guard has. Left out if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attributes_lost: Vec<LostAttributes>,
    /// What was put back of the repository. Left out if that is nothing, and where a part of it
    /// failed: `error` says which.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository: Option<RepositoryChanges>,
    /// How long its parts took. Left out of the document of a rollback, whose event has them, and
    /// of one that was not done, or that recovery finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durations: Option<RestoreDurations>,
}

/// A ref that a run changed and its rollback or undo left as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct LeftRef {
    /// What became of it.
    #[serde(flatten)]
    pub change: RefChange,
    /// The command that takes that back, for a POSIX shell in the repository; of what is listed,
    /// those before it come first. Of stashes it stores those again that were dropped, but for
    /// those that git has removed. `None`, which is empty in JSON, for a branch where the
    /// repository was not put back: what the error says comes first, and what the branch was at may
    /// be gone; for what named an object that git has removed; for a branch that came, and that
    /// another work tree has checked out; and for stashes that came to those that there were, which
    /// nobody but their owner tells apart.
    #[serde(with = "command")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub undo: Option<String>,
    /// The directory of the work tree that has a branch which came checked out, printable, if it is
    /// another than that of the workspace. Git would remove the branch from under it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checked_out_at: Option<String>,
}

/// A command in a document, where an empty one stands for none.
pub(crate) mod command {
    use serde::{Deserialize as _, Deserializer, Serializer};

    #[expect(clippy::ref_option, reason = "serde calls it with a reference")]
    pub(super) fn serialize<S: Serializer>(
        command: &Option<String>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.serialize_str(command.as_deref().unwrap_or_default())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<String>, D::Error> {
        let text = String::deserialize(from)?;
        Ok((!text.is_empty()).then_some(text))
    }
}

impl LeftRef {
    fn of(change: &RefChange, outcome: &RestoreOutcome) -> Self {
        let is_repository_back = outcome.repository_error.is_none();
        let gone = &outcome.objects_gone;
        let mut change = change.clone();
        for stash in &mut change.dropped {
            stash.is_gone = gone.contains(&stash.commit);
        }
        let is_tip_gone = change.before.as_ref().is_some_and(|id| gone.contains(id));
        let is_there = !is_tip_gone || !change.dropped.is_empty();
        let taken = outcome.taken_elsewhere.get(&change.name);
        let taken = taken.filter(|_| change.before.is_none());
        let is_known = is_there && (is_repository_back || !change.name.starts_with("refs/heads/"));
        let is_known = is_known && taken.is_none();
        Self {
            undo: is_known.then(|| way_back_of(&change, "git")).flatten(),
            checked_out_at: taken.map(|directory| printable(directory)),
            change,
        }
    }

    /// [`LeftRef::undo`] with other words for the shell in the place of `git`, such as `git -C
    /// DIR`.
    pub fn undo_with(&self, git: &str) -> Option<String> {
        self.undo
            .as_ref()
            .and_then(|_| way_back_of(&self.change, git))
    }
}

/// Those that are left, in an order in which their commands can be run: what came below the name of
/// a ref that went, as `d/x` of `d`, is in its way.
pub(crate) fn in_order(mut left: Vec<LeftRef>) -> Vec<LeftRef> {
    let went = left.iter().filter(|left| left.change.after.is_none());
    let went: BTreeSet<String> = went.map(|left| left.change.name.clone()).collect();
    let is_in_the_way = |change: &RefChange| {
        let mut slashes = change.name.match_indices('/');
        change.before.is_none() && slashes.any(|(at, _)| went.contains(&change.name[..at]))
    };
    left.sort_by_key(|left| !is_in_the_way(&left.change));
    left
}

/// What takes back what became of a ref, unless somebody has moved it since. Stashes are the log of
/// their ref: with the ref all go, which the run had made then, and one that is stored comes before
/// those that there are.
pub(crate) fn way_back_of(change: &RefChange, git: &str) -> Option<String> {
    let RefChange { before, after, .. } = change;
    let name = &*change.name;
    match (before, after) {
        _ if !change.dropped.is_empty() => stored_again(&change.dropped, git),
        (Some(before), None) if name == "refs/stash" => Some(format!("{git} stash store {before}")),
        (Some(_), Some(_)) if name == "refs/stash" => None,
        (Some(before), Some(after)) if is_symbolic(before) == is_symbolic(after) => {
            Some(ref_commands::moving(name, after, before, git))
        }
        _ => {
            let took = after.as_deref();
            let took = took.map(|after| ref_commands::removal(name, after, git));
            let gave = before.as_deref();
            let gave = gave.map(|before| ref_commands::making(name, before, git));
            let commands: Vec<String> = took.into_iter().chain(gave).collect();
            (!commands.is_empty()).then(|| commands.join(" && "))
        }
    }
}

/// What stores stashes again as they are listed, the oldest first, but for those that git has
/// removed. Each is for itself: one that git refuses keeps no other away.
pub(crate) fn stored_again(dropped: &[DroppedStash], git: &str) -> Option<String> {
    let command = |stash: &DroppedStash| match &*stash.message {
        "" => format!("{git} stash store {}", stash.commit),
        message => {
            let message = shell_word(message.as_bytes());
            format!("{git} stash store -m {message} {}", stash.commit)
        }
    };
    let there = dropped.iter().filter(|stash| !stash.is_gone);
    let commands: Vec<String> = there.map(command).collect();
    (!commands.is_empty()).then(|| commands.join("; "))
}

/// What `undo` did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct UndoOutcome {
    /// What was undone.
    pub undone: Undone,
    /// Of what was restored, files of lines that were edited since: they have what the operation
    /// replaced, and the edits. Sorted.
    pub merged: Vec<RelPath>,
    /// Of what was left as it is, such files where the edits meet what the operation changed.
    /// Nobody but their author can say what is wanted there. Sorted by path.
    pub conflicts: Vec<Conflict>,
    /// What that did.
    #[serde(flatten)]
    pub restore: RestoreDocument,
}

/// What an undo would do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct UndoPlan {
    /// What would be undone.
    pub undone: Undone,
    /// What that would do.
    pub plan: RestorePlan,
}

/// The operation that an undo took back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Undone {
    /// `run`, `restore` or `undo`.
    pub operation: OperationKind,
    /// The run, if it was one.
    pub run_id: Option<RunId>,
    /// The snapshot of the state that was gone back to.
    pub before: SnapshotId,
    /// The snapshot of the state after the operation.
    pub after: SnapshotId,
}

/// What a restore is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RestorePurpose {
    /// It ends a run that did not complete.
    Rollback,
    /// Somebody asked for a snapshot.
    Restore,
    /// It undoes an operation.
    Undo,
    /// It goes back to where a step began that was interrupted, for another attempt.
    Step,
    /// It brings a workspace to the branch of a task.
    Resume,
    /// It merges what a run has handed in.
    Merge,
}

impl RestorePurpose {
    /// The name that events use.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Rollback => "rollback",
            Self::Restore => "restore",
            Self::Undo => "undo",
            Self::Step => "step",
            Self::Resume => "resume",
            Self::Merge => "merge",
        }
    }

    /// The purpose of this name.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "rollback" => Self::Rollback,
            "restore" => Self::Restore,
            "undo" => Self::Undo,
            "step" => Self::Step,
            "resume" => Self::Resume,
            "merge" => Self::Merge,
            _ => return None,
        })
    }

    /// What an undo takes it back as; `None`: as a part of its run.
    pub(crate) fn operation(self) -> Option<OperationKind> {
        match self {
            Self::Rollback | Self::Step => None,
            Self::Restore => Some(OperationKind::Restore),
            Self::Undo => Some(OperationKind::Undo),
            Self::Resume => Some(OperationKind::Resume),
            Self::Merge => Some(OperationKind::Merge),
        }
    }
}

/// The document of a restore that was done.
pub(crate) fn restored_document(outcome: &RestoreOutcome) -> RestoreDocument {
    RestoreDocument {
        status: RestoreStatus::Completed,
        plan_id: Some(outcome.plan.id.clone()),
        guard_snapshot: Some(outcome.guard.id.clone()),
        safety_tag: outcome.safety_tag.clone(),
        moved_tags: outcome.moved_tags.clone(),
        refs_left: {
            let left = outcome.refs_left.iter();
            in_order(left.map(|change| LeftRef::of(change, outcome)).collect())
        },
        restored: outcome.restored.clone(),
        leftover_ignored: outcome.leftover_ignored.clone(),
        skipped: outcome.skipped.clone(),
        error: outcome
            .repository_error
            .as_ref()
            .map(|problem| Failure::new(problem.kind.as_str(), &problem.message)),
        attributes_lost: outcome.attributes_lost.clone(),
        repository: put_back(outcome),
        durations: Some(outcome.durations),
    }
}

/// What a restore put back of the repository. Where more was wrong in the end than was planned
/// with, a part of that is not done, and it is not known which.
pub(crate) fn put_back(outcome: &RestoreOutcome) -> Option<RepositoryChanges> {
    let planned = &outcome.plan.repository;
    let is_whole = planned.problem == outcome.repository_error;
    (is_whole && planned.changes_something()).then(|| {
        let mut done = planned.clone();
        done.problem = None;
        done
    })
}

/// The document of an undo that was done.
pub(crate) fn undone_document(undone: Undone, outcome: RestoreOutcome) -> UndoOutcome {
    let restore = restored_document(&outcome);
    let mut merged = outcome.plan.merged;
    merged.retain(|path| restore.restored.binary_search(path).is_ok());
    UndoOutcome {
        undone,
        merged,
        conflicts: outcome.plan.conflicts,
        restore,
    }
}

/// The document of a restore that had nothing to do, and did not even look for a guard.
pub(crate) fn nothing_restored() -> RestoreDocument {
    RestoreDocument {
        status: RestoreStatus::Completed,
        plan_id: None,
        guard_snapshot: None,
        safety_tag: None,
        moved_tags: Vec::new(),
        refs_left: Vec::new(),
        restored: Vec::new(),
        leftover_ignored: Vec::new(),
        skipped: Vec::new(),
        error: None,
        attributes_lost: Vec::new(),
        repository: None,
        durations: None,
    }
}

/// The document of a restore that was not done, or not to its end.
pub(crate) fn not_restored(status: RestoreStatus, failure: Failure) -> RestoreDocument {
    RestoreDocument {
        status,
        plan_id: None,
        guard_snapshot: None,
        safety_tag: None,
        moved_tags: Vec::new(),
        refs_left: Vec::new(),
        restored: Vec::new(),
        leftover_ignored: Vec::new(),
        skipped: Vec::new(),
        error: Some(failure),
        attributes_lost: Vec::new(),
        repository: None,
        durations: None,
    }
}

/// A restore that has begun, as long as its record is not written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RestoreRow {
    /// Chosen before it is taken.
    pub(crate) guard: SnapshotId,
    pub(crate) workspace_id: String,
    pub(crate) session_id: SessionId,
    pub(crate) run_id: Option<RunId>,
    /// What is gone back to.
    pub(crate) target: SnapshotId,
    pub(crate) purpose: RestorePurpose,
    /// Whether it concerns the user's index and branch too.
    pub(crate) repository: bool,
    pub(crate) at: Timestamp,
    /// What recovery made of it; `None`: nothing yet.
    pub(crate) outcome: Option<RestoreDocument>,
}
