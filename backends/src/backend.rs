//! The port: what a backend does for a workspace, with its options, outcomes and errors.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::borrow_mode::BorrowMode;
use crate::branches::Branches;
use crate::checkpoint::Checkpoints;
use crate::commit::CommitError;
use crate::diff::{Diff, DiffOptions};
use crate::diff_error::DiffError;
use crate::error::ErrorKind;
use crate::git::ObjectId;
use crate::holdings::{Holdings, Listing};
use crate::host_rules::IgnoreOptions;
use crate::operation::Operation;
use crate::owner::Owner;
use crate::path::RelPath;
use crate::plan_id::PlanId;
use crate::problem::Problem;
use crate::progress::Progress;
use crate::purge::Purging;
use crate::quota::Quota;
use crate::repository::{MovedTag, Repository};
use crate::repository_changes::RepositoryProblem;
use crate::restore::{self, LostAttributes, RefChange, RestoreGoal, RestorePlan, Skipped};
use crate::restore_error::RestoreError;
use crate::retain::RetainContent;
use crate::run_worktree::RunWorktrees;
use crate::snapshot::{BackendKind, Label, Snapshot, SnapshotId};
use crate::snapshot_error::SnapshotError;
use crate::store_error::StoreError;
use crate::stored::StoredSnapshot;
use crate::workspace::{LockedWorkspace, Workspace};
use crate::worktree::area;

/// Captures a workspace, and puts back what it captured. Both backends of this crate implement it,
/// a host may bring one of its own, and the engine calls whichever took a snapshot.
///
/// Every method blocks, and none of them runs a program that the workspace names or touches the
/// network. A [`LockedWorkspace`] proves that no other engine is at work in the same directory.
///
/// Once its [`Operation`] is cancelled, a call ends with [`Interrupted`](crate::Interrupted),
/// unless it is past the point from which it has to be finished: a snapshot has its name, the
/// intent of a restore is on disk.
pub trait Backend: Send + Sync {
    /// Which snapshots this backend takes and understands.
    fn kind(&self) -> BackendKind;

    /// What it can do with the user's repository. Default: there is none.
    fn repository(&self) -> Option<&dyn Repository> {
        None
    }

    /// How it makes checkpoints of tasks. Default: it cannot.
    fn checkpoints(&self) -> Option<&dyn Checkpoints> {
        None
    }

    /// How it brings a workspace to a branch. Default: it cannot.
    fn branches(&self) -> Option<&dyn Branches> {
        None
    }

    /// How it gives runs work trees of their own. Default: it cannot.
    fn run_worktrees(&self) -> Option<&dyn RunWorktrees> {
        None
    }

    /// How it removes content that snapshots still need. Default: it cannot.
    fn purging(&self) -> Option<&dyn Purging> {
        None
    }

    /// Captures every path in scope. Reads the workspace, never writes it.
    ///
    /// On `Ok` the snapshot is durable: its content was synced and read back before a ref named
    /// it. On `Err` nothing was published. What could not be captured is not an error: it is named
    /// in the snapshot's [`Coverage`](crate::Coverage).
    ///
    /// A repository that is there and cannot be read is an error, but not for [`Label::GUARD`] and
    /// [`Label::AFTER_FAILURE`]: what a rollback or an undo starts from is captured by what is
    /// still known of the repository, so that the files can be put back.
    fn snapshot(
        &self,
        op: &Operation,
        workspace: &LockedWorkspace,
        options: &SnapshotOptions,
    ) -> Result<Snapshot, SnapshotError>;

    /// Opens a snapshot that the store of `workspace` holds: [`StoreError::UnknownSnapshot`] if it
    /// has none of that id, be it that the whole store is gone, or that the snapshot is of another
    /// workspace.
    fn open<'a>(
        &'a self,
        op: &Operation,
        workspace: &'a Workspace,
        snapshot: &Snapshot,
    ) -> Result<Box<dyn StoredSnapshot + 'a>, StoreError>;

    /// Lists the snapshots that the store of `workspace` holds for this backend, oldest first. What
    /// is there as a snapshot and cannot be read is named too, and does not hide the others.
    ///
    /// A log of snapshots can be rebuilt from the list.
    fn list(&self, op: &Operation, workspace: &Workspace) -> Result<Listing, StoreError>;

    /// Sums up which snapshots the store of `workspace` holds for this backend, at a cost that
    /// hardly grows with their number. By it a host finds out whether its log of snapshots agrees
    /// with the store. What cannot be read counts too.
    ///
    /// Default: the ids of all that [`Backend::list`] names, as far as they are known.
    fn holdings(&self, op: &Operation, workspace: &Workspace) -> Result<Holdings, StoreError> {
        let listed = self.list(op, workspace)?;
        let unreadable = listed.unreadable.into_iter().filter_map(|found| found.id);
        let readable = listed.snapshots.into_iter().map(|snapshot| snapshot.id);
        Ok(Holdings::Ids(readable.chain(unreadable).collect()))
    }

    /// Compares two snapshots of this backend. The worktree is not looked at.
    ///
    /// With [`DiffOptions::paths`] the answer is about these alone.
    ///
    /// With [`DiffOptions::capture_patch`] the whole patch is written to `patch`, whatever its
    /// size; up to the limit it is embedded in the answer too.
    fn diff(
        &self,
        op: &Operation,
        workspace: &Workspace,
        from: &Snapshot,
        to: &Snapshot,
        options: &DiffOptions,
        patch: &mut dyn Write,
    ) -> Result<Diff, DiffError>;

    /// Says what a restore with these options would do now, to the repository too. Nothing is
    /// written in workspace or repository, and nothing published. [`RestoreOptions::expected_plan`]
    /// is not looked at.
    fn plan(
        &self,
        op: &Operation,
        workspace: &LockedWorkspace,
        goal: &RestoreGoal,
        options: &RestoreOptions,
    ) -> Result<RestorePlan, RestoreError>;

    /// Says whether a restore would find a place to work in: [`RestoreError::NoPlace`] where every
    /// one would be refused. Reads alone; cheap, and needs no snapshot, so that whoever counts on a
    /// rollback is told before there is anything to roll back.
    ///
    /// Default: it would.
    fn check_restore_place(&self, workspace: &Workspace) -> Result<(), RestoreError> {
        let _ = workspace;
        Ok(())
    }

    /// Takes the guard, plans, carries out the plan, then captures the result and compares.
    ///
    /// On `Err` whose [`RestoreError::touched`] is false nothing was touched. On any other the
    /// journal holds the rest, and [`Backend::recover`] finishes it.
    fn restore(
        &self,
        op: &Operation,
        workspace: &mut LockedWorkspace,
        goal: &RestoreGoal,
        options: &RestoreOptions,
    ) -> Result<RestoreOutcome, RestoreError>;

    /// Finishes a restore that a crash interrupted. With nothing to finish it does nothing.
    ///
    /// The engine calls it before any other work on a workspace. Default: by the journal that the
    /// backends of this crate keep, which needs no backend.
    fn recover(
        &self,
        op: &Operation,
        workspace: &mut LockedWorkspace,
    ) -> Result<Recovery, RestoreError> {
        restore::recover(op, workspace)
    }

    /// Says whether `path` would be captured now, and why or why not.
    fn why(
        &self,
        op: &Operation,
        workspace: &LockedWorkspace,
        path: &RelPath,
        options: &SnapshotOptions,
    ) -> Result<Why, SnapshotError>;

    /// Proves of each of `snapshots` that everything it needs is in the store and right, and lists
    /// what is not. There is exactly one answer for each, in their order; what they share need be
    /// read only once.
    fn verify(
        &self,
        op: &Operation,
        workspace: &Workspace,
        snapshots: &[&Snapshot],
    ) -> Vec<Result<Verification, StoreError>>;

    /// Forgets the snapshots with these `ids`, and what [`Backend::list`] could not read and has
    /// under the names in `unreadable`. An id or a name that is not there is no error. Content
    /// stays until [`Backend::collect`].
    fn forget(
        &self,
        op: &Operation,
        workspace: &mut LockedWorkspace,
        ids: &[SnapshotId],
        unreadable: &[String],
    ) -> Result<(), StoreError>;

    /// Removes content that no snapshot needs; answers with the bytes that this freed.
    ///
    /// [`StoreError::Corrupt`]: something that a snapshot needs is missing or damaged, so that
    /// nobody can say what else is needed. No content was removed.
    fn collect(&self, op: &Operation, workspace: &mut LockedWorkspace) -> Result<u64, StoreError>;

    /// The bytes that this backend's snapshots occupy in the store of `workspace`. Files that are
    /// hard links to the user's repository count too: they are ours once it lets go of them.
    fn store_bytes(&self, workspace: &Workspace) -> Result<u64, StoreError>;
}

impl dyn Backend + '_ {
    /// The repository that commits are made in: [`CommitError::Unsupported`] if there is none.
    pub fn committing(&self) -> Result<&dyn Repository, CommitError> {
        self.repository().ok_or_else(|| {
            CommitError::Unsupported(format!("the backend {} has no commits", self.kind()))
        })
    }
}

/// How to take a snapshot. What has no default is an argument of [`SnapshotOptions::new`].
#[derive(Clone)]
#[non_exhaustive]
pub struct SnapshotOptions {
    /// The id it gets. Default: a random one.
    pub id: SnapshotId,
    /// What it is taken for.
    pub label: Label,
    /// The time it records.
    pub captured_at: Timestamp,
    /// Whose it is. Default: the session `manual`, no run.
    pub owner: Owner,
    /// The snapshot that a rollback from this one would go back to. The branch that HEAD named
    /// there is then recorded too, wherever HEAD is by now: without that nobody could tell whether
    /// a branch that a run left was moved by the run. An id that the store does not know does
    /// nothing, and so does the hash backend. Default: none.
    pub since: Option<SnapshotId>,
    /// Branches whose tips are recorded beside that of HEAD's, by their full names. Default: none.
    pub branches: Vec<String>,
    /// What to leave out beyond git's rules or the default names. Default: nothing.
    pub ignore: IgnoreOptions,
    /// Paths to capture although a rule ignores them. Default: none.
    pub include: Vec<RelPath>,
    /// Untracked files larger than this, in bytes, are omitted; zero: no limit. Default:
    /// 104 857 600, what a forge refuses to take in one file.
    pub max_untracked_file_bytes: u64,
    /// Refuse with [`SnapshotError::LimitExceeded`] if more files and links than this would be
    /// captured; zero: no limit. Default: 0. It is noticed after the directory in which the count
    /// is passed, so what is beyond it costs nothing. Nothing is left out because of it.
    pub max_files: u64,
    /// Refuse with [`SnapshotError::LimitExceeded`] if more bytes than this would be stored anew:
    /// what is written, compressed as it is kept; zero: no limit. Default: 0. What comes in as a
    /// hard link is not written. Nothing is left out because of it, and nothing of it is left.
    pub max_new_bytes: u64,
    /// Refuse with [`SnapshotError::LimitExceeded`] before all that the store of the workspace
    /// holds would be more than this, in bytes; zero: no limit. Default: 0. It holds at every
    /// moment: temporary files count, and so does a hard link, and what restores have displaced.
    /// The sizes of all files of the store are added up before. Nothing that is kept is removed
    /// because of it.
    pub max_store_bytes: u64,
    /// Hash backend: whether to keep the content, so that it can be put back. Default:
    /// [`RetainContent::Never`].
    pub retain_content: RetainContent,
    /// How objects that the user's repository has come into the store. Default: hard links.
    pub borrow: BorrowMode,
    /// Told how far the capture has come. Default: nobody.
    pub progress: Option<Arc<dyn Fn(Progress) + Send + Sync>>,
    /// Watch the workspace for changes after this capture, as long as the [`Workspace`] or a clone
    /// of it lives, and use the watch that an earlier capture left: so the next capture looks only
    /// where something changed. It costs one inotify watch a directory, and a thread. If the
    /// workspace cannot be watched, or the watch has a hole, everything is looked at;
    /// [`SnapshotMetadata::search`](crate::SnapshotMetadata) says which way was taken and why.
    /// Default: false.
    pub watch: bool,
    /// Git backend: keep what the refs of the repository name, so that a comparison of two such
    /// snapshots tells what became of branches, tags and stashes
    /// ([`Diff::refs`](crate::Diff::refs)); and the commits that only HEAD reaches, so that a
    /// restore of the repository can give them back
    /// ([`SnapshotMetadata::history`](crate::SnapshotMetadata)). Default: false.
    pub keep_refs: bool,
    /// Of a guard: the refs that its restore makes in the user's repository.
    pub(crate) safety_refs: BTreeMap<String, ObjectId>,
}

impl SnapshotOptions {
    /// Options for a snapshot taken for `label` at the time `captured_at`.
    pub fn new(label: Label, captured_at: Timestamp) -> Self {
        Self {
            id: SnapshotId::random(),
            label,
            captured_at,
            owner: Owner::default(),
            since: None,
            branches: Vec::new(),
            ignore: IgnoreOptions::default(),
            include: Vec::new(),
            max_untracked_file_bytes: 104_857_600,
            max_files: 0,
            max_new_bytes: 0,
            max_store_bytes: 0,
            retain_content: RetainContent::Never,
            borrow: BorrowMode::default(),
            progress: None,
            watch: false,
            keep_refs: false,
            safety_refs: BTreeMap::new(),
        }
    }

    stillframe_model::setters! {
        owner: Owner,
        since: SnapshotId,
        branches: Vec<String>,
        ignore: IgnoreOptions,
        retain_content: impl Into<RetainContent>,
        max_new_bytes: u64,
        max_store_bytes: u64,
        keep_refs: bool,
        watch: bool,
    }

    /// The quota of a capture into the store of `workspace`.
    pub(crate) fn quota(&self, op: &Operation, workspace: &Workspace) -> Result<Quota, StoreError> {
        self.quota_for(op, workspace, self.max_new_bytes)
    }

    /// The quota of what a restore sets aside: the store alone limits it.
    pub(crate) fn quota_aside(
        &self,
        op: &Operation,
        workspace: &Workspace,
    ) -> Result<Quota, StoreError> {
        self.quota_for(op, workspace, 0)
    }

    fn quota_for(
        &self,
        op: &Operation,
        workspace: &Workspace,
        max_new_bytes: u64,
    ) -> Result<Quota, StoreError> {
        let store_bytes = match self.max_store_bytes {
            0 => 0,
            _ => area::bytes_of_all(op, workspace.store_path())?,
        };
        Ok(Quota::new(max_new_bytes, self.max_store_bytes, store_bytes))
    }
}

/// How to restore.
#[derive(Clone)]
#[non_exhaustive]
pub struct RestoreOptions {
    /// How to take the guard; its label is [`Label::GUARD`] whatever is set here.
    pub guard: SnapshotOptions,
    /// Refuse unless the plan made now has this id. Default: any plan is carried out.
    pub expected_plan: Option<PlanId>,
    /// What to put back of the repository itself. Default: nothing.
    pub repository: RepositoryRestore,
}

impl RestoreOptions {
    /// Files only, whatever the plan says.
    pub fn new(guard: SnapshotOptions) -> Self {
        Self {
            guard,
            expected_plan: None,
            repository: RepositoryRestore::Nothing,
        }
    }

    stillframe_model::setters! {
        expected_plan: PlanId,
        repository: RepositoryRestore,
    }
}

/// What a restore puts back of the user's repository. The hash backend has none to put back.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum RepositoryRestore {
    /// Files only.
    #[default]
    Nothing,
    /// Index, HEAD and the files of git's operations (a merge, rebase, cherry-pick, revert or
    /// bisect in progress, or the memory of one) as `before` saw them, after making sure that they
    /// still are as `after` saw them. The tip of the branch that HEAD named at `before` moves by
    /// compare-and-swap; the old one is kept by the safety ref
    /// `refs/stillframe/safety/<run>-<seq>`. That goes for a branch that HEAD had left by `after`,
    /// too, if `after` was taken with [`SnapshotOptions::since`]; otherwise such a branch stays,
    /// and is named in [`RestoreOutcome::repository_error`].
    ///
    /// HEAD or the tip is another than `after` saw: [`RestoreError::HeadMoved`], nothing is
    /// touched. A merge, rebase, cherry-pick, revert or bisect that is in progress and was neither
    /// at `before` nor at `after`: [`RestoreError::InProgress`], nothing is touched; one whose
    /// files are not as `after` saw them: [`RestoreError::OperationChanged`], nothing is touched.
    ///
    /// One that was in progress at `before` and whose files that snapshot does not keep is not
    /// begun again; one that is as `after` saw it and whose files were not kept stays, with index,
    /// HEAD and branch. That is said by [`RestoreOutcome::repository_error`], and so is a
    /// repository that is gone or cannot be read: the files are restored all the same.
    Rollback {
        /// The state to go back to.
        before: Snapshot,
        /// The last state that the run is answerable for.
        after: Snapshot,
        /// Names the safety ref.
        run_id: String,
    },
    /// As `Rollback`, but what is no longer as `after` saw it is kept instead of refused.
    Undo {
        /// The state to go back to.
        before: Snapshot,
        /// The state after the operation that is taken back.
        after: Snapshot,
        /// Names the safety ref.
        run_id: String,
    },
    /// As `Rollback`, to a state that [`Branches::prepare_switch`] made. The tip that the branch
    /// leaves is reached by the new one, and gets no safety ref.
    Switch {
        /// The state to go to.
        to: Snapshot,
        /// What was in the workspace when that was made. If [`RestoreOptions::guard`] has its id
        /// and nothing was captured through this handle since, it is the guard, and nothing is
        /// captured anew: what somebody has changed since then stays, and is
        /// [skipped](RestoreOutcome::skipped).
        from: Snapshot,
        /// Commits that the new tip reaches, by their full ids.
        reached: Vec<String>,
        /// Whether it goes on with the branch that HEAD names: index, HEAD and branch are locked
        /// then, and looked at, before the first file comes, and stay so until all is there.
        merges: bool,
    },
}

/// What a restore did.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RestoreOutcome {
    /// The plan that was carried out.
    pub plan: RestorePlan,
    /// What was there before. Restoring it is the undo.
    pub guard: Snapshot,
    /// The worktree afterwards, as the closing capture saw it; the guard, if nothing had to be
    /// done. After a switch that went on from its guard and left nothing out, the state that it
    /// went to.
    pub result: Snapshot,
    /// Every path that was written or removed, sorted.
    pub restored: Vec<RelPath>,
    /// Ignored paths that came after the target was captured and were left alone, sorted. A
    /// directory counts as one.
    pub leftover_ignored: Vec<RelPath>,
    /// Paths that differ from the goal and were left as they are, sorted.
    pub skipped: Vec<Skipped>,
    /// The full name of the ref that keeps the old branch tip, if a branch moved. Where the commit
    /// of a detached HEAD would be left without a name besides, it has the ref with the next
    /// number. No push of branches or tags sends them; they go with the guard, by
    /// [`Repository::release_safety_refs`].
    pub safety_tag: Option<String>,
    /// The tags of an earlier version that were moved, if the caller has done so after it.
    pub moved_tags: Vec<MovedTag>,
    /// The refs that a rollback leaves though the run changed them, if the caller has looked for
    /// them.
    pub refs_left: Vec<RefChange>,
    /// What these named before and the repository no longer has, if the caller has looked for it.
    pub objects_gone: BTreeSet<String>,
    /// Which branches other work trees have checked out, and where, if the caller has looked for
    /// them.
    pub taken_elsewhere: BTreeMap<String, PathBuf>,
    /// What of the repository could not be put back although the files were.
    pub repository_error: Option<RepositoryProblem>,
    /// Files that were replaced and did not get all extended attributes of what was there, sorted
    /// by path.
    pub attributes_lost: Vec<LostAttributes>,
    /// How long its parts took.
    pub durations: RestoreDurations,
}

/// How long the parts of a restore took, by a clock that nobody sets. Serialized as whole
/// milliseconds: `guard_ms`, `plan_ms`, `apply_ms`, `verify_ms`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct RestoreDurations {
    /// Capturing and publishing what was there before, an interrupted restore that had to be
    /// finished first included.
    #[serde(rename = "guard_ms", with = "milliseconds")]
    #[cfg_attr(feature = "schema", schemars(with = "u64"))]
    pub guard: Duration,
    /// Comparing that with the goal, and making sure that the store has what is needed.
    #[serde(rename = "plan_ms", with = "milliseconds")]
    #[cfg_attr(feature = "schema", schemars(with = "u64"))]
    pub plan: Duration,
    /// Everything that changes the workspace: staging, journal, renames and syncs, and what was
    /// asked for of the repository. Zero if nothing had to be done, as is `verify` then.
    #[serde(rename = "apply_ms", with = "milliseconds")]
    #[cfg_attr(feature = "schema", schemars(with = "u64"))]
    pub apply: Duration,
    /// Capturing the result, and comparing it with the goal.
    #[serde(rename = "verify_ms", with = "milliseconds")]
    #[cfg_attr(feature = "schema", schemars(with = "u64"))]
    pub verify: Duration,
}

/// A duration as whole milliseconds.
mod milliseconds {
    use std::time::Duration;

    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(of: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(u64::try_from(of.as_millis()).unwrap_or(u64::MAX))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_millis)
    }
}

impl RestoreOutcome {
    /// What a restore did that changed nothing; for implementations of [`Backend`].
    pub fn new(plan: RestorePlan, guard: Snapshot, result: Snapshot) -> Self {
        Self {
            plan,
            guard,
            result,
            restored: Vec::new(),
            leftover_ignored: Vec::new(),
            skipped: Vec::new(),
            safety_tag: None,
            moved_tags: Vec::new(),
            refs_left: Vec::new(),
            objects_gone: BTreeSet::new(),
            taken_elsewhere: BTreeMap::new(),
            repository_error: None,
            attributes_lost: Vec::new(),
            durations: RestoreDurations::default(),
        }
    }
}

/// What recovery found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recovery {
    /// The guards of restores that were carried on to their end.
    pub rolled_forward: Vec<SnapshotId>,
    /// Restores that had not begun to change anything; their staged files were removed.
    pub discarded: u64,
    /// Paths that were left as they are because they changed meanwhile.
    pub skipped: Vec<Skipped>,
    /// The full names of the refs that keep old branch tips.
    pub safety_tags: Vec<String>,
    /// What of the repository could not be put back although the files were.
    pub repository_errors: Vec<RepositoryProblem>,
}

/// Whether a path is captured, and why.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Why {
    /// The path.
    pub path: RelPath,
    /// Whether it is part of the snapshot, or would be of one taken now.
    pub captured: bool,
    /// A word for the reason: `tracked`, `untracked`, `kept_in_session`, `included`, `absent`, or
    /// that of an [`OmissionReason`](crate::OmissionReason).
    pub reason: String,
    /// The rule that decided, such as `.gitignore:3: *.log`, if one did.
    pub rule: Option<String>,
    /// Other captured names of the same file. Each comes back as a file of its own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hard_links: Vec<RelPath>,
    /// The extended attributes that the file has now, its access list included. No snapshot has
    /// them; a restore keeps them where it replaces the file, and not where it makes it again.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub attributes: Vec<String>,
}

impl Why {
    /// An answer that no rule decided; for implementations of [`Backend`].
    pub fn new(path: RelPath, captured: bool, reason: impl Into<String>) -> Self {
        Self {
            path,
            captured,
            reason: reason.into(),
            rule: None,
            hard_links: Vec::new(),
            attributes: Vec::new(),
        }
    }
}

/// What the store was found to have of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Verification {
    /// What is missing or wrong; empty: all that the snapshot was taken with is there and right.
    pub problems: Vec<Problem>,
    /// The snapshot was taken without content ([`SnapshotOptions::retain_content`]). It can be
    /// compared, and that is proven; it can not be restored, which is no damage.
    pub without_content: bool,
    /// Paths whose content was purged, sorted. They alone cannot be put back, which is no damage
    /// either.
    pub purged: Vec<RelPath>,
    /// What is wrong in files of the store that hold something of it, though all that it needs
    /// could be read: it can be restored.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<Problem>,
}

impl Verification {
    /// What was found of a snapshot with content; for implementations of [`Backend`].
    pub fn new(problems: Vec<Problem>) -> Self {
        Self {
            problems,
            without_content: false,
            purged: Vec::new(),
            beside: Vec::new(),
        }
    }

    stillframe_model::setters! {
        purged: Vec<RelPath>,
        beside: Vec<Problem>,
        without_content: bool,
    }

    /// Whether the snapshot can be restored as it was taken, but for what was purged.
    pub fn is_restorable(&self) -> bool {
        self.problems.is_empty() && !self.without_content
    }

    /// What a proof found: that it met damage at all is what it was to find out.
    pub(crate) fn proven(found: Result<Self, StoreError>) -> Result<Self, StoreError> {
        let problem = match found {
            Err(StoreError::Corrupt { what, detail }) => Problem::new(what, detail),
            Err(error @ StoreError::UnknownSnapshot { .. }) => {
                Problem::new("the snapshot", error.to_string())
            }
            other => return other,
        };
        Ok(Self::new(vec![problem]))
    }
}

/// Of several threads one is stopped, by a cancellation or by the quota, and the others find what
/// it wrote broken. Whoever came first, the cause is told.
pub(crate) fn cause_of(op: &Operation, error: SnapshotError) -> SnapshotError {
    if error.kind() != ErrorKind::Storage {
        return error;
    }
    match (op.check(), op.refused()) {
        (Err(interrupted), _) => interrupted.into(),
        (Ok(()), Some(exceeded)) => StoreError::from(exceeded).into(),
        (Ok(()), None) => error,
    }
}
