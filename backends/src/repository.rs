//! The port beside [`Backend`](crate::Backend): operations that only a git work tree supports.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::PathBuf;

use crate::commit::{
    CommitError, CommitInfo, CommitIntent, CommitOutcome, CommitRequest, PreparedCandidate,
};
use crate::diff::{Diff, DiffOptions};
use crate::diff_error::DiffError;
use crate::operation::Operation;
use crate::path_globs::PathGlobs;
use crate::repository_changes::RepositoryProblem;
use crate::snapshot::SnapshotId;
use crate::snapshot_error::SnapshotError;
use crate::store_error::StoreError;
use crate::workspace::{LockedWorkspace, Workspace};

/// What a backend can do with the user's repository: make commits in it, and look after the refs
/// that restores left there. The git backend implements it. The engine calls it for steps that
/// commit, for restores and for clean-ups.
pub trait Repository: Send + Sync {
    /// Which of these ids, in hexadecimal, the user's repository has no object of.
    fn objects_gone(&self, op: &Operation, workspace: &Workspace, ids: &[&str])
    -> BTreeSet<String>;

    /// The branches that other work trees of the user's repository have checked out, by their full
    /// names, with the directory of each.
    fn taken_elsewhere(&self, op: &Operation, workspace: &Workspace) -> BTreeMap<String, PathBuf>;

    /// The tags in the user's repository that have names as an earlier version gave them to what
    /// keeps the commits that restores left, sorted. Reads alone, and costs little where there are
    /// none.
    fn safety_tags(&self, workspace: &Workspace) -> Result<Vec<String>, SnapshotError>;

    /// Moves those of them that the log knows to where this version keeps them, where no push of
    /// tags takes them.
    ///
    /// One is moved if it has a name of a restore in `known`, and names a commit that this, or the
    /// guard of that restore, knows. The rest is not touched. May be repeated.
    fn move_safety_tags(
        &self,
        op: &Operation,
        workspace: &mut LockedWorkspace,
        known: &[EarlierTag],
    ) -> Result<MovedTags, StoreError>;

    /// Removes from the user's repository the refs that keep the commits which the restores with
    /// these guards left, before the guards are forgotten. `known`: those of them that an earlier
    /// version carried out.
    ///
    /// One that names another commit by now, or that another guard needs too, is left. What could
    /// not be removed is named, and its guard is best kept, since nobody would find it any more.
    fn release_safety_refs(
        &self,
        op: &Operation,
        workspace: &mut LockedWorkspace,
        guards: &[SnapshotId],
        known: &[EarlierTag],
    ) -> Result<ReleasedRefs, StoreError>;

    /// Prepares a commit of `snapshot` on the branch that is checked out, and makes its trees and
    /// blobs durable in the user's repository. `None`: nothing differs from that branch.
    ///
    /// The commit has what `git add --all` and `git commit` would commit of the captured files:
    /// line endings as attributes say, omitted paths as the branch has them. No hook runs, nothing
    /// is signed, no filter runs: a changed file that takes one is [`CommitError::Unsupported`],
    /// unless the index has it already. No ref and no index moves. The snapshot is one that was
    /// just taken: [`CommitError::Conflict`] if HEAD has moved since, and in the middle of a merge
    /// or the like.
    fn prepare_commit(
        &self,
        op: &Operation,
        workspace: &mut LockedWorkspace,
        snapshot: &SnapshotId,
        request: &CommitRequest,
    ) -> Result<Option<CommitIntent>, CommitError>;

    /// As [`Repository::prepare_commit`], of what a run hands in: only what is in `scope` or below
    /// a directory that is, everything if that is empty. The paths are from the top of the work
    /// tree.
    ///
    /// A changed file that takes a program to convert is no obstacle: it stays as HEAD has it, and
    /// is named. A submodule is committed as the index has it.
    fn prepare_candidate(
        &self,
        op: &Operation,
        workspace: &mut LockedWorkspace,
        snapshot: &SnapshotId,
        request: &CommitRequest,
        scope: &PathGlobs,
    ) -> Result<PreparedCandidate, CommitError>;

    /// Compares two commits of the user's repository, named by their full ids, as
    /// [`Backend::diff`](crate::Backend::diff) compares snapshots. What is compared comes into the
    /// store. A submodule that names another commit is in neither list nor patch.
    fn compare_commits(
        &self,
        op: &Operation,
        workspace: &mut LockedWorkspace,
        commits: (&str, &str),
        options: &DiffOptions,
        patch: &mut dyn Write,
    ) -> Result<Diff, DiffError>;

    /// Carries out what [`Repository::prepare_commit`] said, or what is left of it: may be
    /// repeated, also after a crash, and makes one commit. The ref moves by compare-and-swap from
    /// the intent's parent, under git's own locks; the index then has what the commit has, at the
    /// paths that it changed, while HEAD names the ref.
    ///
    /// [`CommitError::Incomplete`]: the commit was made, and the index did not follow. After any
    /// other error the ref is where it was.
    fn apply_commit(
        &self,
        op: &Operation,
        workspace: &mut LockedWorkspace,
        intent: &CommitIntent,
    ) -> Result<CommitOutcome, CommitError>;

    /// As [`Repository::apply_commit`] where the ref is at the commit, or was: the index follows.
    /// Makes none: [`CommitOutcome::NotMade`] says that it could be.
    fn adopt_commit(
        &self,
        op: &Operation,
        workspace: &mut LockedWorkspace,
        intent: &CommitIntent,
    ) -> Result<CommitOutcome, CommitError>;

    /// What the user's repository says of a commit, named by its full id.
    fn commit_info(
        &self,
        op: &Operation,
        workspace: &Workspace,
        commit: &str,
    ) -> Result<CommitInfo, CommitError>;
}

/// A tag by which an earlier version kept the commit that a restore left, as the log has it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EarlierTag {
    /// The full name of the first; those of one restore differ by the number at the end.
    pub name: String,
    /// The guard of that restore, if the log names it.
    pub guard: Option<SnapshotId>,
    /// The commits that the log says HEAD was at when the restore began.
    pub commits: Vec<String>,
}

impl EarlierTag {
    /// A tag of this name.
    pub fn new(name: String, guard: Option<SnapshotId>, commits: Vec<String>) -> Self {
        Self {
            name,
            guard,
            commits,
        }
    }
}

/// What became of the tags of an earlier version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MovedTags {
    /// Those that were moved.
    pub moved: Vec<MovedTag>,
    /// Why others were not.
    pub problem: Option<RepositoryProblem>,
}

/// A tag that was moved to where no push of tags takes it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct MovedTag {
    /// The full name that it had.
    pub from: String,
    /// That of the ref which has its commit now.
    pub to: String,
}

/// What became of the refs of guards that go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReleasedRefs {
    /// The full names of those that are gone, sorted.
    pub removed: Vec<String>,
    /// Those that could not be removed.
    pub kept: Vec<KeptRef>,
}

/// A ref that could not be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeptRef {
    /// The guard whose restore made it.
    pub guard: SnapshotId,
    /// The full name.
    pub name: String,
    /// Why.
    pub problem: RepositoryProblem,
}

impl KeptRef {
    /// One that is kept for this reason; for implementations of [`Repository`].
    pub fn new(guard: SnapshotId, name: String, problem: RepositoryProblem) -> Self {
        Self {
            guard,
            name,
            problem,
        }
    }
}
