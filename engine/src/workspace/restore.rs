//! Restores: a rollback, a restore by hand or an undo, from its beginning to its record.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::json;
use stillframe_backends::{
    Backend, Conflict, DiffOptions, DroppedStash, Interrupt, Label, LockedWorkspace,
    LostAttributes, MovedTag, Owner, PlanId, Recovery, RefChange, RelPath, RepositoryChanges,
    RepositoryRestore, RestoreDurations, RestoreError, RestoreGoal, RestoreOptions, RestoreOutcome,
    RestorePlan, SkipReason, Skipped, Snapshot, SnapshotId, SnapshotOptions, Workspace, printable,
    ref_commands::{self, is_symbolic},
    shell_word,
};

use crate::actors::Parts;
use crate::error::Error;
use crate::events::event::EventType;
use crate::failure::Failure;
use crate::id::{OperationId, RunId, SessionId};
use crate::records::lease::Hold;
use crate::state::{Change, NewEvent, OperationRow, RestoreRow};
use crate::upkeep::recovery::{self, Untold};
use crate::workspace::safety;
use crate::workspace::workspaces::{self, Opened};

/// What became of a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

/// What a restore, a rollback or an undo did: its outcome and its JSON document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    /// The tags in which an earlier version kept old tips, and that were moved to where no push of tags takes
    /// them. Left out if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub moved_tags: Vec<MovedTag>,
    /// Of a rollback, and of an undo with the repository: the refs that what is taken back changed, and that are left as
    /// it left them, sorted by name. Left out if there are none.
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
    /// Files that were replaced and did not get all extended attributes of what was there, which the trash of
    /// the guard has. Left out if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attributes_lost: Vec<LostAttributes>,
    /// What was put back of the repository. Left out if that is nothing, and where a part of it failed: `error` says
    /// which.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository: Option<RepositoryChanges>,
    /// How long its parts took. Left out of the document of a rollback, whose event has them, and of
    /// one that was not done, or that recovery finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durations: Option<RestoreDurations>,
}

/// A ref that a run changed and its rollback or undo left as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LeftRef {
    /// What became of it.
    #[serde(flatten)]
    pub change: RefChange,
    /// The command that takes that back, for a POSIX shell in the repository; of what is listed, those before it come
    /// first. Of stashes it stores those again that were dropped, but for those that git has removed. `None`, which is
    /// empty in JSON, for a branch where the repository was not put back: what the error says comes first, and what the
    /// branch was at may be gone; for what named an object that git has removed; for a branch that came, and that another
    /// work tree has checked out; and for stashes that came to those that there were, which nobody but their owner tells
    /// apart.
    #[serde(with = "command")]
    pub undo: Option<String>,
    /// The directory of the work tree that has a branch which came checked out, printable, if it is another than that of
    /// the workspace. Git would remove the branch from under it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checked_out_at: Option<String>,
}

/// A command in a document, where an empty one stands for none.
mod command {
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

    /// [`LeftRef::undo`] with other words for the shell in the place of `git`, such as `git -C DIR`.
    pub fn undo_with(&self, git: &str) -> Option<String> {
        self.undo
            .as_ref()
            .and_then(|_| way_back_of(&self.change, git))
    }
}

/// Those that are left, in an order in which their commands can be run: what came below the name of a ref that went, as
/// `d/x` of `d`, is in its way.
fn in_order(mut left: Vec<LeftRef>) -> Vec<LeftRef> {
    let went = left.iter().filter(|left| left.change.after.is_none());
    let went: BTreeSet<String> = went.map(|left| left.change.name.clone()).collect();
    let is_in_the_way = |change: &RefChange| {
        let mut slashes = change.name.match_indices('/');
        change.before.is_none() && slashes.any(|(at, _)| went.contains(&change.name[..at]))
    };
    left.sort_by_key(|left| !is_in_the_way(&left.change));
    left
}

/// What takes back what became of a ref, unless somebody has moved it since. Stashes are the log of their ref: with the
/// ref all go, which the run had made then, and one that is stored comes before those that there are.
fn way_back_of(change: &RefChange, git: &str) -> Option<String> {
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

/// What stores stashes again as they are listed, the oldest first, but for those that git has removed. Each is for itself:
/// one that git refuses keeps no other away.
fn stored_again(dropped: &[DroppedStash], git: &str) -> Option<String> {
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
#[non_exhaustive]
pub struct UndoOutcome {
    /// What was taken back.
    pub undone: Undone,
    /// Of what was restored, files of lines that were edited since: they have what the operation replaced,
    /// and the edits. Sorted.
    pub merged: Vec<RelPath>,
    /// Of what was left as it is, such files where the edits meet what the operation changed. Nobody but
    /// their author can say what is wanted there. Sorted by path.
    pub conflicts: Vec<Conflict>,
    /// What that did.
    #[serde(flatten)]
    pub restore: RestoreDocument,
}

/// What an undo would do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct UndoPlan {
    /// What would be taken back.
    pub undone: Undone,
    /// What that would do.
    pub plan: RestorePlan,
}

/// The operation that an undo took back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

/// What kind of operation changed a workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OperationKind {
    /// The work of a run.
    Run,
    /// A restore by hand.
    Restore,
    /// Another undo.
    Undo,
}

impl OperationKind {
    /// The name that JSON documents use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Restore => "restore",
            Self::Undo => "undo",
        }
    }
}

/// What a restore is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RestorePurpose {
    /// It ends a run that did not complete.
    Rollback,
    /// Somebody asked for a snapshot.
    Restore,
    /// It takes back an operation.
    Undo,
    /// It goes back to where a step began that was cut off, for another attempt.
    Step,
}

impl RestorePurpose {
    /// The name that events use.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Rollback => "rollback",
            Self::Restore => "restore",
            Self::Undo => "undo",
            Self::Step => "step",
        }
    }

    /// The purpose of this name.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "rollback" => Self::Rollback,
            "restore" => Self::Restore,
            "undo" => Self::Undo,
            "step" => Self::Step,
            _ => return None,
        })
    }

    /// What an undo takes it back as; `None`: as a part of its run.
    fn operation(self) -> Option<OperationKind> {
        match self {
            Self::Rollback | Self::Step => None,
            Self::Restore => Some(OperationKind::Restore),
            Self::Undo => Some(OperationKind::Undo),
        }
    }
}

/// What a restore is part of.
pub(crate) struct Restoring {
    pub(crate) session_id: SessionId,
    /// The run that it is for. Nothing is touched if that was taken over.
    pub(crate) hold: Option<Hold>,
    /// What is gone back to.
    pub(crate) to: SnapshotId,
    pub(crate) purpose: RestorePurpose,
    /// Whether it concerns the user's index and branch too.
    pub(crate) repository: bool,
}

/// Restores, and returns once what was done is durable and on record. Blocks.
///
/// What it is about is on record before it begins, so that recovery can tell of one that it
/// finishes.
pub(crate) fn restore(
    parts: &Parts,
    locked: &mut LockedWorkspace,
    backend: &dyn Backend,
    goal: &RestoreGoal,
    options: &RestoreOptions,
    restoring: &Restoring,
) -> Result<RestoreOutcome, Error> {
    let begun = RestoreRow {
        guard: options.guard.id.clone(),
        workspace_id: locked.id().to_owned(),
        session_id: restoring.session_id.clone(),
        run_id: restoring.hold.as_ref().map(|hold| hold.run_id.clone()),
        target: restoring.to.clone(),
        purpose: restoring.purpose,
        repository: restoring.repository,
        at: parts.now(),
        outcome: None,
    };
    let change = Change::BeginRestore(Box::new(begun.clone()));
    // Whoever takes the run over settles it in this workspace, which is held from here on.
    let fence = restoring.hold.as_ref().map(Hold::fence);
    let changes = fence.into_iter().chain([change]).collect();
    parts.writer.commit_blocking(changes)?;
    let mut outcome = match backend.restore(locked, goal, options) {
        Ok(outcome) => outcome,
        Err(e) => {
            // The guard may be in the store. The error of the restore is the one to tell.
            if not_finished(parts, locked, &begun, &e).is_err() {
                parts.lock.leave_work();
            }
            return Err(e.into());
        }
    };
    if restoring.repository {
        // Beside the restore, which is done: the next one, or a clean-up, moves what is still there.
        let tags = safety::move_tags(parts, locked, backend).unwrap_or_default();
        outcome.moved_tags = tags.moved;
    }
    // Beside the restore too. The run's own comparison names them all.
    let left = refs_left(parts, locked, options, restoring.purpose, &outcome.result);
    outcome.refs_left = left.unwrap_or_default();
    if !outcome.refs_left.is_empty() {
        outcome.objects_gone = backend.objects_gone(locked, &ids_before(&outcome.refs_left));
        outcome.taken_elsewhere = backend.taken_elsewhere(locked);
    }
    let (session, run) = (&begun.session_id, begun.run_id.as_ref());
    let mut changes: Vec<Change> = [&outcome.guard, &outcome.result]
        .into_iter()
        .map(|snapshot| workspaces::row_of(locked, snapshot, Some(session), run))
        .collect();
    let document = restored_document(&outcome);
    let done = Done {
        after: &outcome.result.id,
        paths: Some(document.restored.clone()),
        head: [head(&outcome.guard), head(&outcome.result)],
        is_idle: outcome.plan.is_empty() && document.restored.is_empty(),
        is_recovered: false,
    };
    changes.extend(record(parts, &begun, &document, done));
    workspaces::keep(parts, changes).map_err(|e| e.touched_if(true))?;
    Ok(outcome)
}

/// The objects that commands which take such changes back need.
fn ids_before(changes: &[RefChange]) -> Vec<&str> {
    let tips = changes.iter().filter_map(|change| change.before.as_deref());
    let tips = tips.filter(|said| !is_symbolic(said));
    let dropped = changes.iter().flat_map(|change| &change.dropped);
    tips.chain(dropped.map(|stash| &*stash.commit)).collect()
}

/// The refs that are not as they were before what a rollback or an undo with the repository took back. After an undo,
/// those that still are as that left them: what others did since is theirs. HEAD and its branch are the restore's.
fn refs_left(
    parts: &Parts,
    workspace: &Workspace,
    options: &RestoreOptions,
    purpose: RestorePurpose,
    result: &Snapshot,
) -> Result<Vec<RefChange>, Error> {
    let changed = |before, to| refs_changed(parts, workspace, before, to);
    match (purpose, &options.repository) {
        (RestorePurpose::Rollback, RepositoryRestore::Rollback { before, .. }) => {
            changed(before, result)
        }
        (RestorePurpose::Undo, RepositoryRestore::Undo { before, after, .. }) => {
            let mut left = changed(before, after)?;
            if !left.is_empty() {
                let now = changed(before, result)?;
                left.retain_mut(|change| is_left(change, &now));
            }
            Ok(left)
        }
        _ => Ok(Vec::new()),
    }
}

/// Whether what became of a ref is still so `now`. A stash that was dropped and is not listed again is, whatever else was
/// stashed since.
fn is_left(change: &mut RefChange, now: &[RefChange]) -> bool {
    let Some(now) = now.iter().find(|now| now.name == change.name) else {
        return false;
    };
    if change.dropped.is_empty() {
        return (&change.before, &change.after) == (&now.before, &now.after);
    }
    change.dropped.retain(|stash| now.dropped.contains(stash));
    !change.dropped.is_empty()
}

/// The refs but for HEAD that differ between two snapshots which kept them. No file is read for it.
fn refs_changed(
    parts: &Parts,
    workspace: &Workspace,
    before: &Snapshot,
    to: &Snapshot,
) -> Result<Vec<RefChange>, Error> {
    let mut options = DiffOptions::default();
    options.max_compared_bytes = 0;
    let (diff, _) = workspaces::compare(parts, workspace, before, to, &options)?;
    let others = diff.refs.into_iter().filter(|change| change.name != "HEAD");
    Ok(others.collect())
}

/// A way back from what a run, or a part of it, left.
pub(crate) struct WayBack {
    /// Where to.
    pub(crate) before: Snapshot,
    /// What was left.
    pub(crate) after: Snapshot,
    pub(crate) session_id: SessionId,
    pub(crate) hold: Hold,
    pub(crate) purpose: RestorePurpose,
}

/// Puts files, index and branch back: a rollback all of them, and a step what it changed itself. Nobody can stop it.
/// Blocks.
pub(crate) fn go_back(
    parts: &Parts,
    locked: &mut LockedWorkspace,
    backend: &dyn Backend,
    opened: &Opened,
    way: WayBack,
) -> Result<RestoreOutcome, Error> {
    let guard = opened.snapshot_options(
        parts,
        Label::GUARD,
        &way.session_id,
        Some(&way.hold.run_id),
        Interrupt::never(),
    );
    let (before, after, run_id) = (way.before, way.after, way.hold.run_id.to_string());
    let to = before.id.clone();
    let (goal, repository) = match way.purpose {
        // It comes at once after what it takes back.
        RestorePurpose::Rollback => (
            RestoreGoal::Snapshot {
                snapshot: before.clone(),
                paths: Vec::new(),
            },
            RepositoryRestore::Rollback {
                before,
                after,
                run_id,
            },
        ),
        // Days may have passed, and others have worked here since.
        _ => (
            RestoreGoal::Undo {
                before: before.clone(),
                after: after.clone(),
                paths: None,
            },
            RepositoryRestore::Undo {
                before,
                after,
                run_id,
            },
        ),
    };
    let restoring = Restoring {
        session_id: way.session_id,
        hold: Some(way.hold),
        to,
        purpose: way.purpose,
        repository: true,
    };
    let guard = match way.purpose {
        RestorePurpose::Rollback => guard.keep_refs(true),
        _ => guard,
    };
    let options = RestoreOptions::new(guard).repository(repository);
    restore(parts, locked, backend, &goal, &options, &restoring)
}

/// Writes down what there is of a restore that failed.
fn not_finished(
    parts: &Parts,
    locked: &mut LockedWorkspace,
    begun: &RestoreRow,
    error: &RestoreError,
) -> Result<(), Error> {
    let untold = match error {
        // It was carried out, and only its result could not be captured.
        RestoreError::Closing(_) => Untold::Tell,
        _ => Untold::Leave,
    };
    recovery::adopt(parts, locked, untold)?;
    if !error.touched() {
        let change = Change::EndRestore(begun.guard.clone());
        parts.writer.commit_blocking(vec![change])?;
    }
    Ok(())
}

/// What an undo has to know of a restore that was carried out.
struct Done<'a> {
    /// The state that it led to.
    after: &'a SnapshotId,
    /// The paths that it changed; `None`: those where the guard and `after` differ.
    paths: Option<Vec<RelPath>>,
    /// What HEAD named before it, and after.
    head: [(Option<&'a str>, Option<&'a str>); 2],
    /// Whether there was nothing to do, or nothing that could be done.
    is_idle: bool,
    /// Whether recovery carried it on to its end, or found it there.
    is_recovered: bool,
}

/// How many paths an event names at most: it is a line, and the record has all.
const MAX_NAMED: usize = 20;

/// The first of the paths that stayed as somebody had changed them since.
fn edited_since(document: &RestoreDocument) -> Vec<&RelPath> {
    let skipped = document.skipped.iter();
    let edited = skipped.filter(|skipped| skipped.reason == SkipReason::EditedSince);
    edited
        .map(|skipped| &skipped.path)
        .take(MAX_NAMED)
        .collect()
}

/// The record of a restore that was carried out: the event, and how an undo takes it back.
fn record(
    parts: &Parts,
    begun: &RestoreRow,
    document: &RestoreDocument,
    done: Done<'_>,
) -> Vec<Change> {
    let (session, run) = (&begun.session_id, begun.run_id.as_ref());
    let mut data = json!({
        "to": begun.target,
        "guard": document.guard_snapshot,
        "leftover_ignored": document.leftover_ignored,
        "operation": begun.purpose.as_str(),
        "restored": document.restored.len(),
        "skipped": document.skipped.len(),
    });
    if let Some(durations) = document.durations {
        data["durations"] = json!(durations);
    }
    if let Some(tag) = &document.safety_tag {
        data["safety_tag"] = json!(tag);
    }
    if !document.moved_tags.is_empty() {
        data["moved_tags"] = json!(document.moved_tags);
    }
    if !document.refs_left.is_empty() {
        let names = document.refs_left.iter().map(|left| &left.change.name);
        data["refs_left"] = json!(names.take(MAX_NAMED).collect::<Vec<_>>());
    }
    if let Some(problem) = &document.error {
        // Of the repository not everything went back.
        data["reason"] = problem.event_data()["message"].take();
    }
    let edited = edited_since(document);
    if !edited.is_empty() {
        data["edited_since"] = json!(edited);
    }
    let [from, to] = done.head;
    // The branch, or the commit where HEAD named none.
    let is_switched = from.0 != to.0 || (from.0.is_none() && from.1 != to.1);
    if is_switched {
        let name = |(branch, commit): (Option<&str>, Option<&str>)| json!(branch.or(commit));
        data["head"] = json!({ "from": name(from), "to": name(to) });
    }
    if done.is_recovered {
        data["recovered"] = json!(true);
    }
    let at = parts.now();
    let event_type = EventType::WORKSPACE_ROLLED_BACK;
    let event = NewEvent::new(event_type, session, run, at, data);
    let kept = match begun.purpose {
        // Until the run's own end is on record, it is this that says that what its steps did is taken back.
        RestorePurpose::Rollback if !done.is_recovered => {
            Change::BeginRestore(Box::new(RestoreRow {
                outcome: Some(document.clone()),
                ..begun.clone()
            }))
        }
        _ => Change::EndRestore(begun.guard.clone()),
    };
    let mut changes = vec![Change::Append(event), kept];
    // What changed nothing is not what came last: an undo would find nothing in it, and never come to what was before.
    if let (Some(kind), Some(guard), false) = (
        begun.purpose.operation(),
        &document.guard_snapshot,
        done.is_idle,
    ) {
        changes.push(Change::AddOperation(Box::new(OperationRow {
            id: OperationId::random(),
            workspace_id: begun.workspace_id.clone(),
            session_id: session.clone(),
            run_id: None,
            kind,
            before: guard.clone(),
            after: done.after.clone(),
            paths: done.paths,
            repository: begun.repository,
            at,
        })));
    }
    changes
}

/// The record of a restore whose engine died, or failed, before it could tell. `recovery`: what was
/// found when it was carried on to its end; `None`: it had come to its end, or had changed nothing.
/// Blocks.
///
/// Somebody may have worked in the workspace before anybody looked again. So what the restore did is
/// told by what it aimed at, and not by what is there: an undo keeps what differs from the target.
pub(crate) fn recovered(
    parts: &Parts,
    locked: &mut LockedWorkspace,
    guard: &Snapshot,
    begun: &RestoreRow,
    recovery: Option<&Recovery>,
) -> Result<Vec<Change>, Error> {
    let (session, run) = (&begun.session_id, begun.run_id.as_ref());
    let target = parts
        .reader
        .read_blocking_with(|store| workspaces::known_snapshot(store, &begun.target, locked))?;
    let owner = Owner {
        session_id: session.to_string(),
        run_id: run.map(ToString::to_string),
    };
    let options = SnapshotOptions::new(Label::AFTER, parts.now())
        .owner(owner)
        .since(guard.id.clone())
        .retain_content(true);
    let backend = workspaces::backend_of(parts, guard.backend)?;
    let result = backend.snapshot(locked, &options)?;

    let wanted = differing(parts, locked, guard, &target)?;
    let left = differing(parts, locked, &result, &target)?;
    let changed = differing(parts, locked, guard, &result)?;
    let is_head_moved = begun.repository && head(guard) != head(&result);
    // What an undo merges differs from its target, and is changed all the same. Whether somebody else changed it
    // since cannot be told: an undo that took back nothing is better than one that nothing takes back.
    let merges = matches!(begun.purpose, RestorePurpose::Undo | RestorePurpose::Step);
    let may_have_merged = merges && !wanted.is_disjoint(&changed);
    let is_as_before = wanted.is_subset(&left) && !is_head_moved && !may_have_merged;
    if recovery.is_none() && is_as_before {
        // It ended before it changed anything: to take it back would be to take back nothing.
        backend.forget(locked, &[result.id])?;
        return Ok(vec![Change::EndRestore(begun.guard.clone())]);
    }
    let skipped = recovery.map_or(Vec::new(), |r| r.skipped.clone());
    let document = RestoreDocument {
        guard_snapshot: Some(guard.id.clone()),
        safety_tag: recovery.and_then(|r| r.safety_tags.first().cloned()),
        restored: wanted
            .intersection(&changed)
            .filter(|path| skipped.iter().all(|s| s.path != **path))
            .cloned()
            .collect(),
        error: recovery
            .and_then(|r| r.repository_errors.first())
            .map(|problem| Failure::new(problem.kind.as_str(), &problem.message)),
        skipped,
        ..nothing_restored()
    };
    let done = Done {
        after: &target.id,
        paths: None,
        // What is there by now may be somebody's own; only what it led to is its doing.
        head: match begun.repository && head(&result) == head(&target) {
            true => [head(guard), head(&target)],
            false => [head(guard); 2],
        },
        is_idle: false,
        is_recovered: true,
    };
    let mut changes = vec![workspaces::row_of(locked, &result, Some(session), run)];
    changes.extend(record(parts, begun, &document, done));
    changes.extend(of_run(parts, begun, document)?);
    Ok(changes)
}

/// The paths at which two snapshots differ in any way.
pub(crate) fn differing(
    parts: &Parts,
    workspace: &Workspace,
    from: &Snapshot,
    to: &Snapshot,
) -> Result<BTreeSet<RelPath>, Error> {
    let mut options = DiffOptions::default();
    options.capture_patch = false;
    let (diff, _) = workspaces::compare(parts, workspace, from, to, &options)?;
    let modes = diff.permissions_changed.into_iter().map(|mode| mode.path);
    let directories = diff.directories_added.into_iter();
    Ok(diff
        .changed_paths
        .into_iter()
        .chain(modes)
        .chain(directories)
        .chain(diff.directories_deleted)
        .collect())
}

/// What HEAD names in a snapshot.
fn head(snapshot: &Snapshot) -> (Option<&str>, Option<&str>) {
    let metadata = &snapshot.metadata;
    (metadata.branch.as_deref(), metadata.head_ref.as_deref())
}

/// Where the record of its run gets to know of a rollback that recovery has finished.
fn of_run(
    parts: &Parts,
    begun: &RestoreRow,
    document: RestoreDocument,
) -> Result<Vec<Change>, Error> {
    let (RestorePurpose::Rollback, Some(run_id)) = (begun.purpose, begun.run_id.clone()) else {
        return Ok(Vec::new());
    };
    let run = parts.reader.read_blocking(|store| store.run(&run_id))?;
    Ok(match run {
        Some(run) if run.status.is_terminal() => vec![Change::SetRollback {
            run_id,
            rollback: Box::new(document),
        }],
        // Whoever settles the run takes it from there.
        Some(_) => vec![Change::BeginRestore(Box::new(RestoreRow {
            outcome: Some(document),
            ..begun.clone()
        }))],
        None => Vec::new(),
    })
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

/// What a restore put back of the repository. Where more was wrong in the end than was planned with, a part of that is
/// not done, and nobody says here which.
fn put_back(outcome: &RestoreOutcome) -> Option<RepositoryChanges> {
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
