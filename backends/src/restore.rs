//! Deciding what a restore does. Everything here is a function over values; the disk is touched
//! in `worktree/apply.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Bound;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::coverage::{Coverage, Omission, OmissionReason};
use crate::git::tree_object;
use crate::path::RelPath;
use crate::record::Record;
use crate::snapshot::{Snapshot, SnapshotId};
use crate::tree::{Change, Entry, Modes};

/// What a restore should make of the worktree.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one for each restore, and it is passed by reference"
)]
pub enum RestoreGoal {
    /// Every captured path as `snapshot` has it, or only those at and below `paths`.
    Snapshot {
        /// What to go back to.
        snapshot: Snapshot,
        /// Literal paths, files or directories; empty: everything. A path that the snapshot does
        /// not know is [`RestoreError::UnknownPath`](crate::RestoreError::UnknownPath).
        paths: Vec<RelPath>,
    },
    /// Takes back what happened between two snapshots, and keeps what happened since.
    ///
    /// A path that still is as `after` has it becomes as `before` has it. Any other path that
    /// differs between the two is kept, and named in [`RestorePlan::skipped`] unless it already
    /// is as `before` has it.
    Undo {
        /// The state before the operation that is taken back.
        before: Snapshot,
        /// The state after it.
        after: Snapshot,
        /// The paths that the operation changed; `None`: all that differ.
        paths: Option<Vec<RelPath>>,
    },
}

/// Names a plan by its content: two plans with one id do the same to the same state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PlanId(String);

impl PlanId {
    /// The id of the plan whose content has this digest: `plan_` and 32 hexadecimal digits.
    pub(crate) fn of_digest(digest: &blake3::Hash) -> Self {
        Self(format!("plan_{}", &digest.to_hex()[..32]))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PlanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for PlanId {
    type Err = std::convert::Infallible;

    /// Takes any text: an id that is no plan's own matches none.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.to_owned()))
    }
}

/// What has to change on disk. Nothing in it was done yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RestorePlan {
    /// The digest of everything below: it is another one when the worktree has moved.
    pub id: PlanId,
    /// The snapshot whose content is put back.
    pub target: SnapshotId,
    /// Entries that are made or replaced, sorted by path.
    pub writes: Vec<Write>,
    /// Entries that are removed, sorted by path.
    pub removals: Vec<Removal>,
    /// FIFOs, sockets and devices in the way of something that is put back, sorted. They hold no
    /// bytes; they are moved aside without being opened.
    pub displaced: Vec<RelPath>,
    /// Directories that are made although nothing is put into them, parents first.
    pub make_directories: Vec<(RelPath, u32)>,
    /// Directories that are removed if nothing is left in them, children first.
    pub remove_directories: Vec<RelPath>,
    /// Entries and directories whose content is right and whose permission bits are not.
    pub modes: Vec<ModeChange>,
    /// Paths that differ from the goal and are left as they are, sorted by path.
    pub skipped: Vec<Skipped>,
}

/// An entry to be made or replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Write {
    /// Where.
    pub path: RelPath,
    /// What is there now; `None`: nothing that was captured.
    pub current: Option<Entry>,
    /// What will be there.
    pub entry: Entry,
    /// The permission bits it gets; `None` for links.
    pub mode: Option<u32>,
}

/// An entry to be removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removal {
    /// Where.
    pub path: RelPath,
    /// What is there now.
    pub current: Entry,
}

/// Permission bits to be changed, the content staying as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModeChange {
    /// Where.
    pub path: RelPath,
    /// The bits now.
    pub from: u32,
    /// The bits it gets.
    pub to: u32,
}

/// A path that a restore leaves as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// The path.
    pub path: RelPath,
    /// Why.
    pub reason: SkipReason,
}

/// Why a restore leaves a path as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SkipReason {
    /// Undo: somebody changed it after the operation that is taken back.
    EditedSince,
    /// It changed between the guard and its turn.
    ChangedMeanwhile,
    /// A directory that holds something which no snapshot has stands where a file would go. What
    /// else is in it stays for the same reason.
    DirectoryNotEmpty,
    /// A nested repository that came after the target was captured; it is kept whole.
    NestedRepository,
    /// The system refused this path; it is as it was.
    Refused,
    /// The target did not capture it, so it does not know that it was not there; or what is there
    /// now could not be captured, so it would be lost.
    #[serde(untagged)]
    Omitted(OmissionReason),
}

impl SkipReason {
    /// The name that JSON documents use, such as `edited_since`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::EditedSince => "edited_since",
            Self::ChangedMeanwhile => "changed_meanwhile",
            Self::DirectoryNotEmpty => "directory_not_empty",
            Self::NestedRepository => "nested_repository",
            Self::Refused => "refused",
            Self::Omitted(reason) => reason.as_str(),
        }
    }
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl RestorePlan {
    /// A plan that changes nothing, to be filled in by an implementation of
    /// [`Backend`](crate::Backend), which chooses the id by what it fills in.
    pub fn empty(id: PlanId, target: SnapshotId) -> Self {
        Self {
            id,
            target,
            writes: Vec::new(),
            removals: Vec::new(),
            displaced: Vec::new(),
            make_directories: Vec::new(),
            remove_directories: Vec::new(),
            modes: Vec::new(),
            skipped: Vec::new(),
        }
    }

    /// The plan that does nothing.
    pub(crate) fn nothing(target: &SnapshotId) -> Self {
        let mut plan = Self::empty(PlanId(String::new()), target.clone());
        plan.id = PlanId::of_digest(&digest(&plan));
        plan
    }

    /// Every path that is made, replaced, removed or given other bits. Directories are left out
    /// that go because they would be empty.
    pub(crate) fn changed_paths(&self) -> impl Iterator<Item = &RelPath> {
        let writes = self.writes.iter().map(|w| &w.path);
        let removals = self.removals.iter().map(|r| &r.path);
        let made = self.make_directories.iter().map(|(path, _)| path);
        let modes = self.modes.iter().map(|m| &m.path);
        writes
            .chain(removals)
            .chain(&self.displaced)
            .chain(made)
            .chain(modes)
    }

    /// Whether carrying it out would change nothing.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
            && self.removals.is_empty()
            && self.displaced.is_empty()
            && self.make_directories.is_empty()
            && self.remove_directories.is_empty()
            && self.modes.is_empty()
    }
}

/// What a side of a restore holds at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    Entry(Entry),
    Directory,
}

/// What one side of a restore knows beside its entries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    pub(crate) coverage: &'a Coverage,
    pub(crate) modes: &'a Modes,
    /// Sorted.
    pub(crate) empty_directories: &'a [RelPath],
}

impl<'a> View<'a> {
    pub(crate) fn of(record: &'a Record) -> Self {
        Self {
            coverage: &record.snapshot.omissions,
            modes: &record.modes,
            empty_directories: &record.empty_directories,
        }
    }

    fn is_sparse(&self, path: &RelPath) -> bool {
        self.coverage
            .at(path)
            .is_some_and(|o| o.reason == OmissionReason::Sparse)
    }

    /// Whether `directory` or something below it is listed as empty.
    pub(crate) fn has_empty_at_or_below(&self, directory: &RelPath) -> bool {
        self.empty_directories.binary_search(directory).is_ok()
            || !below(self.empty_directories, directory, |p| p).is_empty()
    }

    /// Whether something strictly below `directory` is, or may be, on disk and was left out.
    fn omits_below(&self, directory: &RelPath) -> bool {
        self.coverage
            .below(directory)
            .any(|o| o.path != *directory && o.reason != OmissionReason::Sparse)
    }

    /// Whether a sparse checkout leaves something strictly below `directory` out.
    fn is_sparse_below(&self, directory: &RelPath) -> bool {
        self.coverage
            .below(directory)
            .any(|o| o.path != *directory && o.reason == OmissionReason::Sparse)
    }

    /// The omission of `path` itself, if it stands for something on disk: what a sparse checkout
    /// leaves out is known not to be there.
    fn omitted_at(&self, path: &RelPath) -> Option<&'a Omission> {
        let omission = self.coverage.at(path)?;
        (omission.reason != OmissionReason::Sparse).then_some(omission)
    }

    /// As [`Self::omitted_at`], of `path` or the nearest directory above it.
    fn omission_covering(&self, path: &RelPath) -> Option<&'a Omission> {
        let omission = self.coverage.covers(path)?;
        (omission.reason != OmissionReason::Sparse).then_some(omission)
    }
}

/// Everything that [`plan`] decides by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Question<'a> {
    /// Names the snapshot that is put back.
    pub(crate) target: &'a SnapshotId,
    pub(crate) current: View<'a>,
    pub(crate) goal: View<'a>,
    /// From `current` to `goal`: all differences on disk ([`as_on_disk`]), sorted by path.
    pub(crate) changes: &'a [Change],
    /// Of [`directories_in_question`] those that `goal` has, because something captured lies in
    /// them or because they are listed as empty.
    pub(crate) goal_directories: &'a BTreeSet<RelPath>,
    /// What both sides hold alike, and may have with other permission bits. Sorted by path.
    pub(crate) same: &'a [(RelPath, Node)],
    /// Of the paths that only `current` has, those that the ignore rules of either side name.
    pub(crate) ignored: &'a BTreeMap<RelPath, OmissionReason>,
    /// Literal paths to stay at and below; empty: everything.
    pub(crate) scope: &'a [RelPath],
    /// Take back an operation only, and keep what happened since.
    pub(crate) undo: Option<Operation<'a>>,
}

/// The operation that an undo takes back. It led from the goal to `after`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation<'a> {
    pub(crate) after: View<'a>,
    /// From `after` to the goal: all differences on disk ([`as_on_disk`]), sorted by path.
    pub(crate) changes: &'a [Change],
}

/// Why a snapshot must not be put back. Nothing was planned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PlanError {
    /// Some file system would take the path for a repository's own directory.
    #[error("it holds {path}, which some file systems take for .git")]
    GitAlias { path: RelPath },
    /// No worktree can look like this.
    #[error("it holds {path} more than once")]
    Repeated { path: RelPath },
    /// No worktree can look like this.
    #[error("it holds {path} both as a file and as a directory")]
    FileAndDirectory { path: RelPath },
}

/// The paths that a sparse checkout leaves out of one side only, sorted. On disk the two differ
/// there, though their trees may hold the same.
pub(crate) fn left_out_by_one(from: View<'_>, to: View<'_>) -> Vec<RelPath> {
    let left_out = |side: View<'_>, other: View<'_>| {
        let sparse = |o: &&Omission| o.reason == OmissionReason::Sparse;
        let omissions = side.coverage.omissions().iter().filter(sparse);
        let only_here = omissions.filter(|o| !other.is_sparse(&o.path));
        only_here.map(|o| o.path.clone()).collect::<Vec<_>>()
    };
    let mut paths = left_out(from, to);
    paths.extend(left_out(to, from));
    paths.sort();
    paths
}

/// Turns the differences between two trees into those between two disks: what a sparse checkout
/// leaves out of `from` is in its tree as the index has it, and is not there. `alike` is what both
/// trees hold at paths of [`left_out_by_one`].
pub(crate) fn as_on_disk(
    mut changes: Vec<Change>,
    alike: Vec<(RelPath, Entry)>,
    from: View<'_>,
) -> Vec<Change> {
    if !alike.is_empty() {
        changes.extend(alike.into_iter().map(|(path, entry)| Change {
            path,
            old: Some(entry),
            new: Some(entry),
        }));
        changes.sort_by(|a, b| a.path.cmp(&b.path));
    }
    for change in &mut changes {
        if from.is_sparse(&change.path) {
            change.old = None;
        }
    }
    changes
}

/// The directories of which a plan has to know whether the goal has them: a directory that it has
/// is not removed, whatever becomes of what is in it.
pub(crate) fn directories_in_question(changes: &[Change], current: View<'_>) -> BTreeSet<RelPath> {
    let mut asked = BTreeSet::new();
    for change in changes.iter().filter(|c| c.new.is_none()) {
        insert_ancestors(&mut asked, &change.path);
    }
    for path in current.empty_directories {
        insert_ancestors(&mut asked, path);
        asked.insert(path.clone());
    }
    for omission in current.coverage.omissions() {
        match omission.reason {
            OmissionReason::Ignored | OmissionReason::Excluded | OmissionReason::Sparse => {}
            OmissionReason::GitDir => asked.extend(omission.path.parent()),
            _ => {
                asked.insert(omission.path.clone());
            }
        }
    }
    asked.remove(&RelPath::root());
    asked
}

/// Lists what has to change on disk so that the current state becomes the goal.
///
/// A path is removed only if the goal positively knows that it was not there, and nothing is
/// removed or replaced whose present content was not captured. What is left alone for such a
/// reason is named in [`RestorePlan::skipped`].
pub(crate) fn plan(question: &Question<'_>) -> Result<RestorePlan, PlanError> {
    check(question)?;
    let mut planner = Planner {
        question,
        scope: question
            .scope
            .iter()
            .map(|path| (path.clone(), ()))
            .collect(),
        kept: BTreeMap::new(),
        closed: BTreeSet::new(),
        removals: BTreeMap::new(),
        writes: Vec::new(),
        displaced: BTreeSet::new(),
        modes: Vec::new(),
        skipped: BTreeMap::new(),
    };
    planner.find_nested_repositories();
    let wanted = planner.select();
    planner.decide_removals(&wanted);
    planner.decide_writes(&wanted);
    let make_directories = planner.directories_to_make();
    let remove_directories = planner.directories_to_remove();
    planner.decide_modes();
    planner.name_new_omissions();
    Ok(planner.finish(make_directories, remove_directories))
}

/// Refuses a goal that no worktree can be, before anything is planned.
fn check(question: &Question<'_>) -> Result<(), PlanError> {
    let mut entry_above: Option<&RelPath> = None;
    let mut before: Option<&RelPath> = None;
    let wanted = question.changes.iter().filter(|c| c.new.is_some());
    for change in wanted {
        let path = &change.path;
        if before.is_some_and(|b| b >= path) {
            return Err(PlanError::Repeated { path: path.clone() });
        }
        before = Some(path);
        if path.is_root() || path.names().any(tree_object::is_dot_git) {
            return Err(PlanError::GitAlias { path: path.clone() });
        }
        // Names such as `a-b` sort between `a` and `a/b`, so the parents are looked up as well.
        if entry_above.is_some_and(|above| path.starts_with(above))
            || is_below_entry(question, path)
        {
            return Err(PlanError::FileAndDirectory { path: path.clone() });
        }
        entry_above = Some(path);
    }
    for path in question.goal.empty_directories {
        if path.names().any(tree_object::is_dot_git) {
            return Err(PlanError::GitAlias { path: path.clone() });
        }
    }
    Ok(())
}

fn is_below_entry(question: &Question<'_>, path: &RelPath) -> bool {
    ancestors(path)
        .any(|above| change_at(question.changes, &above).is_some_and(|c| c.new.is_some()))
}

/// Decides about each path in turn. What one decision leaves in place can be in the way of another.
struct Planner<'a, 'q> {
    question: &'q Question<'a>,
    /// What was asked for; empty: everything.
    scope: BTreeMap<RelPath, ()>,
    /// Captured paths that only the current state has, and that stay.
    kept: BTreeMap<RelPath, SkipReason>,
    /// Directories that are left alone with everything in them.
    closed: BTreeSet<RelPath>,
    removals: BTreeMap<RelPath, Entry>,
    writes: Vec<Write>,
    displaced: BTreeSet<RelPath>,
    modes: Vec<ModeChange>,
    skipped: BTreeMap<RelPath, SkipReason>,
}

impl<'a> Planner<'a, '_> {
    fn in_scope(&self, path: &RelPath) -> bool {
        self.scope.is_empty()
            || self.scope.contains_key(path)
            || self.scope.contains_key(&RelPath::root())
            || ancestors(path).any(|above| self.scope.contains_key(&above))
    }

    fn skip(&mut self, path: &RelPath, reason: SkipReason) {
        self.skipped.entry(path.clone()).or_insert(reason);
    }

    /// Whether `path` is, or lies in, a directory that is left alone as a whole.
    fn is_closed(&self, path: &RelPath) -> bool {
        !self.closed.is_empty()
            && (self.closed.contains(path) || ancestors(path).any(|p| self.closed.contains(&p)))
    }

    /// Repositories that came since the goal was captured are kept whole: their objects are in no
    /// snapshot, and their files alone would be of little use.
    fn find_nested_repositories(&mut self) {
        let question = self.question;
        let mut found = Vec::new();
        for omission in question.current.coverage.omissions() {
            if omission.reason != OmissionReason::GitDir || !self.is_new_omission(omission) {
                continue;
            }
            let repository = omission
                .path
                .parent()
                .expect("the workspace itself is never omitted");
            if change_at(question.changes, &repository).is_some_and(|c| c.new.is_some()) {
                // The file that belongs here is what cannot be put back, and is named for it.
                continue;
            }
            if repository.is_root() || self.goal_has_directory(&repository) {
                self.skip(&omission.path, SkipReason::Omitted(OmissionReason::GitDir));
            } else {
                found.push(repository);
            }
        }
        self.closed.extend(found.iter().cloned());
        for repository in found {
            // One inside of another is part of it.
            if !ancestors(&repository).any(|p| self.closed.contains(&p)) {
                self.skip(&repository, SkipReason::NestedRepository);
            }
        }
    }

    /// Whether an omission of the current state is in scope, came since the goal was captured and,
    /// for an undo, was there right after the operation.
    fn is_new_omission(&self, omission: &Omission) -> bool {
        let question = self.question;
        self.in_scope(&omission.path)
            && question.goal.coverage.covers(&omission.path).is_none()
            && question
                .undo
                .is_none_or(|undo| undo.after.coverage.covers(&omission.path).is_some())
    }

    /// The changes to carry out, as far as scope and undo go. What else only the current state has
    /// is kept.
    fn select(&mut self) -> Vec<&'a Change> {
        let mut wanted = Vec::new();
        for change in self.question.changes {
            if !self.is_asked_for(change) {
                self.keep(change, SkipReason::EditedSince);
                continue;
            }
            if let Some(undo) = self.question.undo {
                match self.was_edited_since(change, undo) {
                    Judgement::AsAfter => {}
                    Judgement::Untouched => {
                        self.keep(change, SkipReason::EditedSince);
                        continue;
                    }
                    Judgement::Edited(reason) => {
                        self.skip(&change.path, reason);
                        self.keep(change, reason);
                        continue;
                    }
                }
            }
            wanted.push(change);
        }
        wanted
    }

    /// Whether the caller named the path, a directory above it, or something below it that needs a
    /// directory in its place.
    fn is_asked_for(&self, change: &Change) -> bool {
        self.in_scope(&change.path)
            || (change.new.is_none() && !range_below(&self.scope, &change.path).is_empty())
    }

    fn was_edited_since(&self, change: &Change, undo: Operation<'_>) -> Judgement {
        let path = &change.path;
        let Some(operation) = change_at(undo.changes, path) else {
            return Judgement::Untouched;
        };
        let current = self.question.current;
        if operation.old != change.old {
            return match (&change.old, current.omitted_at(path)) {
                (None, Some(o)) => Judgement::Edited(SkipReason::Omitted(o.reason)),
                _ => Judgement::Edited(SkipReason::EditedSince),
            };
        }
        if let Some(entry) = change.old {
            let bits = |view: View<'_>| view.modes.of(path, entry.kind);
            return if bits(current) == bits(undo.after) {
                Judgement::AsAfter
            } else {
                Judgement::Edited(SkipReason::EditedSince)
            };
        }
        // Neither captured anything here. That is the same only if both know as much about it.
        let reason = |view: View<'_>| view.omission_covering(path).map(|o| o.reason);
        match (reason(current), reason(undo.after)) {
            (now, then) if now == then => Judgement::AsAfter,
            (Some(OmissionReason::Special) | None, _) => Judgement::Edited(SkipReason::EditedSince),
            (Some(now), _) => Judgement::Edited(SkipReason::Omitted(now)),
        }
    }

    /// Remembers that what the current state has at the path stays there.
    fn keep(&mut self, change: &Change, reason: SkipReason) {
        if change.old.is_some() {
            self.kept.insert(change.path.clone(), reason);
        }
    }

    fn decide_removals(&mut self, wanted: &[&Change]) {
        let Question {
            current,
            goal,
            ignored,
            ..
        } = *self.question;
        for change in wanted.iter().filter(|c| c.new.is_none()) {
            let path = &change.path;
            let Some(entry) = change.old else {
                if current.is_sparse(path) {
                    // Only the user's index has it, and a restore of files leaves that alone.
                    self.skip(path, SkipReason::Omitted(OmissionReason::Sparse));
                }
                continue;
            };
            let protection = if let Some(omission) = goal.coverage.covers(path) {
                Some(omission.reason)
            } else {
                ignored.get(path).copied()
            };
            if let Some(reason) = protection {
                self.skip(path, SkipReason::Omitted(reason));
                self.keep(change, SkipReason::Omitted(reason));
            } else if self.is_closed(path) {
                self.keep(change, SkipReason::NestedRepository);
            } else {
                self.removals.insert(path.clone(), entry);
            }
        }
    }

    fn decide_writes(&mut self, wanted: &[&Change]) {
        let Question { current, goal, .. } = *self.question;
        for change in wanted {
            let path = &change.path;
            let Some(entry) = change.new else { continue };
            if goal.is_sparse(path) {
                self.skip(path, SkipReason::Omitted(OmissionReason::Sparse));
                self.keep(change, SkipReason::Omitted(OmissionReason::Sparse));
                continue;
            }
            let mode = goal.modes.of(path, entry.kind);
            if let Some(old) = change.old
                && old.id == entry.id
                && let (Some(from), Some(to)) = (current.modes.of(path, old.kind), mode)
            {
                let path = path.clone();
                self.modes.push(ModeChange { path, from, to });
                continue;
            }
            if change.old.is_none()
                && let Err(reason) = self.make_room(path)
            {
                self.skip(path, reason);
                continue;
            }
            self.writes.push(Write {
                path: path.clone(),
                current: change.old,
                entry,
                mode,
            });
        }
    }

    /// Decides whether something can be put where nothing was captured, and closes the directory
    /// that stands there if not.
    fn make_room(&mut self, path: &RelPath) -> Result<(), SkipReason> {
        let current = self.question.current;
        let mut displaced = Vec::new();
        if let Some(omission) = current.omitted_at(path) {
            self.displace(omission, &mut displaced)?;
        }
        self.clear_way(path, &mut displaced)?;
        if let Some(undo) = self.question.undo {
            // A directory that somebody made since goes no more than a file would.
            let at = current.empty_directories.binary_search(path).is_ok();
            let is_newer = |p: &RelPath| !Self::after_has_directory(undo, p);
            let all_below = below(current.empty_directories, path, |p| p);
            if (at && is_newer(path)) || all_below.iter().any(is_newer) {
                self.close(path, SkipReason::EditedSince);
                return Err(SkipReason::EditedSince);
            }
        }
        let is_kept_below = !range_below(&self.kept, path).is_empty();
        if is_kept_below || current.omits_below(path) {
            let reason = if current
                .coverage
                .at(&path.join(b".git"))
                .is_some_and(|o| o.reason == OmissionReason::GitDir)
            {
                SkipReason::NestedRepository
            } else {
                SkipReason::DirectoryNotEmpty
            };
            self.close(path, reason);
            return Err(reason);
        }
        self.displaced.extend(displaced);
        Ok(())
    }

    /// Leaves a directory as it is, with what could have been removed from it. Each path of that is
    /// named, but for a repository's, which is one whole.
    fn close(&mut self, directory: &RelPath, reason: SkipReason) {
        let removals = range_below(&self.removals, directory);
        if reason != SkipReason::NestedRepository {
            let empty = below(self.question.current.empty_directories, directory, |p| p);
            for path in removals.iter().chain(empty) {
                self.skip(path, reason);
            }
        }
        for path in removals {
            self.removals.remove(&path);
            self.kept.insert(path, reason);
        }
        self.closed.insert(directory.clone());
    }

    /// Decides whether every directory above `path` is there, or can be.
    fn clear_way(&self, path: &RelPath, displaced: &mut Vec<RelPath>) -> Result<(), SkipReason> {
        for above in ancestors(path) {
            if let Some(reason) = self.kept.get(&above) {
                return Err(*reason);
            }
            let Some(omission) = self.question.current.omitted_at(&above) else {
                continue;
            };
            match omission.reason {
                // A rule hides the directory, but the goal captured what is in it, so the guard
                // looked too. Whether it is a directory is looked at again before it is entered.
                OmissionReason::Ignored | OmissionReason::Excluded if omission.bytes.is_none() => {}
                _ => self.displace(omission, displaced)?,
            }
        }
        Ok(())
    }

    fn displace(
        &self,
        omission: &Omission,
        displaced: &mut Vec<RelPath>,
    ) -> Result<(), SkipReason> {
        if omission.reason != OmissionReason::Special {
            return Err(SkipReason::Omitted(omission.reason));
        }
        let was_special = |undo: Operation<'_>| {
            undo.after
                .coverage
                .at(&omission.path)
                .is_some_and(|o| o.reason == OmissionReason::Special)
        };
        if !self.question.undo.is_none_or(was_special) {
            return Err(SkipReason::EditedSince);
        }
        displaced.push(omission.path.clone());
        Ok(())
    }

    fn goal_has_directory(&self, directory: &RelPath) -> bool {
        let Question {
            goal,
            changes,
            goal_directories,
            ..
        } = self.question;
        goal_directories.contains(directory)
            || goal.has_empty_at_or_below(directory)
            || changes_below(changes, directory)
                .iter()
                .any(|c| c.new.is_some())
    }

    /// Whether the operation that is taken back left `directory` there.
    fn after_has_directory(undo: Operation<'_>, directory: &RelPath) -> bool {
        undo.after.has_empty_at_or_below(directory)
            || changes_below(undo.changes, directory)
                .iter()
                .any(|c| c.old.is_some())
    }

    fn directories_to_make(&mut self) -> Vec<(RelPath, u32)> {
        let Question {
            current,
            goal,
            changes,
            undo,
            ..
        } = *self.question;
        let mut made = Vec::new();
        for path in goal.empty_directories {
            let is_there = current.has_empty_at_or_below(path)
                || changes_below(changes, path).iter().any(|c| c.old.is_some())
                || current.omits_below(path)
                // Whether a directory is there that only the index has paths in is in no snapshot.
                || current.is_sparse_below(path);
            let is_kept_as_it_was = undo.is_some_and(|undo| Self::after_has_directory(undo, path));
            if is_there || !self.in_scope(path) || is_kept_as_it_was {
                continue;
            }
            let was_file = |undo: Operation<'_>| {
                change_at(undo.changes, path).is_some_and(|c| c.old.is_some())
            };
            if undo.is_some_and(was_file) && !self.removals.contains_key(path) {
                self.skip(path, SkipReason::EditedSince);
                continue;
            }
            if let Err(reason) = self.room_for_directory(path) {
                if let Some(reason) = reason {
                    self.skip(path, reason);
                }
                continue;
            }
            made.push((path.clone(), goal.modes.of_directory(path)));
        }
        made
    }

    /// `Err(None)` where nobody can tell whether the directory is there, since a rule hides the
    /// place.
    fn room_for_directory(&mut self, path: &RelPath) -> Result<(), Option<SkipReason>> {
        if let Some(reason) = self.kept.get(path) {
            return Err(Some(*reason));
        }
        let mut displaced = Vec::new();
        if let Some(omission) = self.question.current.omission_covering(path) {
            match omission.reason {
                OmissionReason::Ignored | OmissionReason::Excluded if omission.bytes.is_none() => {
                    return Err(None);
                }
                _ => self.displace(omission, &mut displaced).map_err(Some)?,
            }
        }
        self.clear_way(path, &mut displaced).map_err(Some)?;
        self.displaced.extend(displaced);
        Ok(())
    }

    fn directories_to_remove(&self) -> Vec<RelPath> {
        let Question {
            current,
            goal,
            undo,
            ..
        } = *self.question;
        let mut empty = BTreeSet::new();
        for path in current.empty_directories {
            insert_ancestors(&mut empty, path);
            empty.insert(path.clone());
        }
        empty.retain(|path| self.in_scope(path));
        // What a removal leaves empty goes with it, whatever was asked for.
        let mut candidates = empty.clone();
        for path in self.removals.keys().chain(&empty) {
            insert_ancestors(&mut candidates, path);
        }
        candidates.retain(|path| {
            !self.goal_has_directory(path)
                && goal.coverage.covers(path).is_none()
                && !goal.omits_below(path)
                && current.coverage.at(path).is_none()
                && !current.omits_below(path)
                && range_below(&self.kept, path).is_empty()
                && !self.is_closed(path)
                && undo.is_none_or(|undo| Self::after_has_directory(undo, path))
        });
        let mut removed = BTreeSet::new();
        for path in candidates.into_iter().rev() {
            let left = below(current.empty_directories, &path, |p| p);
            if left.iter().all(|p| removed.contains(p)) {
                removed.insert(path);
            }
        }
        removed.into_iter().rev().collect()
    }

    fn decide_modes(&mut self) {
        let Question {
            current,
            goal,
            same,
            undo,
            ..
        } = *self.question;
        for (path, node) in same {
            let bits = |view: View<'_>| match node {
                Node::Entry(entry) => view.modes.of(path, entry.kind),
                Node::Directory => Some(view.modes.of_directory(path)),
            };
            let (Some(from), Some(to)) = (bits(current), bits(goal)) else {
                continue;
            };
            let is_omitted = |view: View<'_>| view.coverage.at(path).is_some();
            if from == to || !self.in_scope(path) || is_omitted(current) || is_omitted(goal) {
                continue;
            }
            if let Some(undo) = undo {
                let is_content_edited = change_at(undo.changes, path).is_some();
                let then = bits(undo.after);
                if then == Some(to) && !is_content_edited {
                    continue;
                }
                if then != Some(from) || is_content_edited {
                    self.skip(path, SkipReason::EditedSince);
                    continue;
                }
            }
            let path = path.clone();
            self.modes.push(ModeChange { path, from, to });
        }
    }

    /// Names what came since, cannot be captured, and is not there at the goal.
    fn name_new_omissions(&mut self) {
        let question = self.question;
        for omission in question.current.coverage.omissions() {
            let path = &omission.path;
            let is_named_elsewhere = matches!(
                omission.reason,
                OmissionReason::Ignored
                    | OmissionReason::Excluded
                    | OmissionReason::Sparse
                    | OmissionReason::GitDir
            );
            if is_named_elsewhere
                || !self.is_new_omission(omission)
                || self.displaced.contains(path)
                || self.is_closed(path)
                || change_at(question.changes, path).is_some_and(|c| c.new.is_some())
                || self.goal_has_directory(path)
                || question.goal.omits_below(path)
            {
                continue;
            }
            self.skip(path, SkipReason::Omitted(omission.reason));
        }
    }

    fn finish(
        mut self,
        make_directories: Vec<(RelPath, u32)>,
        remove_directories: Vec<RelPath>,
    ) -> RestorePlan {
        self.modes.sort_by(|a, b| a.path.cmp(&b.path));
        let mut plan = RestorePlan {
            id: PlanId(String::new()),
            target: self.question.target.clone(),
            writes: self.writes,
            removals: self
                .removals
                .into_iter()
                .map(|(path, current)| Removal { path, current })
                .collect(),
            displaced: self.displaced.into_iter().collect(),
            make_directories,
            remove_directories,
            modes: self.modes,
            skipped: self
                .skipped
                .into_iter()
                .map(|(path, reason)| Skipped { path, reason })
                .collect(),
        };
        plan.id = PlanId::of_digest(&digest(&plan));
        plan
    }
}

/// What became of a path after the operation that an undo takes back.
enum Judgement {
    /// It is as the operation left it.
    AsAfter,
    /// The operation did not change it.
    Untouched,
    /// Somebody changed it since.
    Edited(SkipReason),
}

/// The directories above `path`, from the nearest up; the workspace itself is left out.
fn ancestors(path: &RelPath) -> impl Iterator<Item = RelPath> {
    std::iter::successors(path.parent(), RelPath::parent).filter(|p| !p.is_root())
}

fn insert_ancestors(into: &mut BTreeSet<RelPath>, path: &RelPath) {
    for above in ancestors(path) {
        if !into.insert(above) {
            break;
        }
    }
}

fn change_at<'c>(changes: &'c [Change], path: &RelPath) -> Option<&'c Change> {
    let at = changes.binary_search_by(|c| c.path.cmp(path)).ok()?;
    Some(&changes[at])
}

fn changes_below<'c>(changes: &'c [Change], directory: &RelPath) -> &'c [Change] {
    below(changes, directory, |c| &c.path)
}

/// The part of a slice sorted by path that lies strictly below `directory`.
fn below<'s, T>(sorted: &'s [T], directory: &RelPath, path: fn(&T) -> &RelPath) -> &'s [T] {
    if directory.is_root() {
        return sorted;
    }
    let prefix = prefix_of(directory);
    let start = sorted.partition_point(|t| path(t).as_bytes() < &prefix[..]);
    let length = sorted[start..].partition_point(|t| path(t).as_bytes().starts_with(&prefix));
    &sorted[start..start + length]
}

/// The keys strictly below `directory`.
pub(crate) fn range_below<T>(map: &BTreeMap<RelPath, T>, directory: &RelPath) -> Vec<RelPath> {
    let prefix = prefix_of(directory);
    map.range::<[u8], _>((Bound::Included(&prefix[..]), Bound::Unbounded))
        .take_while(|(path, _)| path.as_bytes().starts_with(&prefix))
        .map(|(path, _)| path.clone())
        .collect()
}

fn prefix_of(directory: &RelPath) -> Vec<u8> {
    let mut prefix = directory.as_bytes().to_vec();
    prefix.push(b'/');
    prefix
}

/// Hashes everything in a plan but its id, each field with its length before it, so that no two
/// plans can be written the same way.
fn digest(plan: &RestorePlan) -> blake3::Hash {
    let mut encoder = Encoder(blake3::Hasher::new());
    encoder.bytes(b"stillframe restore plan 1");
    encoder.bytes(plan.target.as_str().as_bytes());
    encoder.list(&plan.writes, |e, write| {
        e.path(&write.path);
        e.entry(write.current.as_ref());
        e.entry(Some(&write.entry));
        e.number(write.mode.map_or(u64::MAX, u64::from));
    });
    encoder.list(&plan.removals, |e, removal| {
        e.path(&removal.path);
        e.entry(Some(&removal.current));
    });
    encoder.list(&plan.displaced, Encoder::path);
    encoder.list(&plan.make_directories, |e, (path, mode)| {
        e.path(path);
        e.number(u64::from(*mode));
    });
    encoder.list(&plan.remove_directories, Encoder::path);
    encoder.list(&plan.modes, |e, change| {
        e.path(&change.path);
        e.number(u64::from(change.from));
        e.number(u64::from(change.to));
    });
    encoder.list(&plan.skipped, |e, skipped| {
        e.path(&skipped.path);
        e.bytes(skipped.reason.as_str().as_bytes());
    });
    encoder.0.finalize()
}

struct Encoder(blake3::Hasher);

impl Encoder {
    fn number(&mut self, number: u64) {
        self.0.update(&number.to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.update(bytes);
    }

    fn path(&mut self, path: &RelPath) {
        self.bytes(path.as_bytes());
    }

    fn entry(&mut self, entry: Option<&Entry>) {
        let Some(entry) = entry else {
            return self.number(0);
        };
        self.number(u64::from(entry.kind.git_mode()));
        self.bytes(entry.id.as_bytes());
    }

    fn list<T>(&mut self, items: &[T], mut encode: impl FnMut(&mut Self, &T)) {
        self.number(items.len() as u64);
        for item in items {
            encode(self, item);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tree::{ContentId, EntryKind};

    fn rel(path: &str) -> RelPath {
        RelPath::new(path.as_bytes()).unwrap()
    }

    /// What a path of a modelled disk holds. Directories follow from the paths below them, or are
    /// there by themselves.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Thing {
        File(u8, u32),
        Link(u8),
        Directory,
        Special,
        Ignored,
        IgnoredDirectory,
        TooLarge,
        Git,
    }

    type Disk = BTreeMap<RelPath, Thing>;

    /// What a capture of a modelled disk knows.
    struct World {
        entries: BTreeMap<RelPath, Entry>,
        empty_directories: Vec<RelPath>,
        modes: Modes,
        coverage: Coverage,
    }

    fn is_directory(thing: Thing) -> bool {
        matches!(thing, Thing::Directory)
    }

    /// Adds to a generated disk what fits there. What a rule hides has no content of interest.
    fn insert(disk: &mut Disk, path: &RelPath, thing: Thing) {
        if !in_ignored(disk, path) {
            place(disk, path, thing);
        }
    }

    /// Puts something on a disk, with the directories above it, if nothing is in the way.
    fn place(disk: &mut Disk, path: &RelPath, thing: Thing) {
        let is_closed = |t: &Thing| !matches!(t, Thing::Directory | Thing::IgnoredDirectory);
        let is_blocked = ancestors(path).any(|p| disk.get(&p).is_some_and(is_closed))
            || disk.contains_key(path)
            || (thing != Thing::Directory && !range_below(disk, path).is_empty());
        if !is_blocked {
            for above in ancestors(path) {
                disk.entry(above).or_insert(Thing::Directory);
            }
            disk.insert(path.clone(), thing);
        }
    }

    fn disk() -> impl Strategy<Value = Disk> {
        let name = prop::sample::select(vec!["a", "b", "a-b", "c"]);
        let path = prop::collection::vec(name, 1..4).prop_map(|names| rel(&names.join("/")));
        let thing = prop_oneof![
            6 => (0_u8..4, prop::sample::select(vec![0o644, 0o600, 0o755]))
                .prop_map(|(id, mode)| Thing::File(id, mode)),
            1 => (0_u8..4).prop_map(Thing::Link),
            1 => Just(Thing::Directory),
            1 => Just(Thing::Special),
            1 => Just(Thing::Ignored),
            1 => Just(Thing::IgnoredDirectory),
            1 => Just(Thing::TooLarge),
            1 => Just(Thing::Git),
        ];
        prop::collection::vec((path, thing), 0..12).prop_map(|things| {
            let mut disk = Disk::new();
            for (path, thing) in things {
                if thing == Thing::Git {
                    insert(&mut disk, &path.join(b".git"), thing);
                } else {
                    insert(&mut disk, &path, thing);
                }
            }
            disk
        })
    }

    fn in_ignored(disk: &Disk, path: &RelPath) -> bool {
        ancestors(path).any(|p| disk.get(&p) == Some(&Thing::IgnoredDirectory))
    }

    fn capture(disk: &Disk) -> World {
        let id = |n: u8| ContentId::Blake3([n; 32]);
        let mut world = World {
            entries: BTreeMap::new(),
            empty_directories: Vec::new(),
            modes: Modes::default(),
            coverage: Coverage::default(),
        };
        let mut omissions = Vec::new();
        for (path, thing) in disk {
            let is_kept = matches!(thing, Thing::File(..) | Thing::Link(_));
            if !is_kept && in_ignored(disk, path) {
                continue;
            }
            let (reason, bytes) = match *thing {
                Thing::File(n, mode) => {
                    let kind = match mode & 0o100 {
                        0 => EntryKind::File,
                        _ => EntryKind::Executable,
                    };
                    world
                        .entries
                        .insert(path.clone(), Entry { kind, id: id(n) });
                    if mode == 0o600 {
                        world.modes.exceptions.push((path.clone(), mode));
                    }
                    continue;
                }
                Thing::Link(n) => {
                    let kind = EntryKind::Symlink;
                    world
                        .entries
                        .insert(path.clone(), Entry { kind, id: id(n) });
                    continue;
                }
                Thing::Directory => continue,
                Thing::Special => (OmissionReason::Special, None),
                Thing::Ignored => (OmissionReason::Ignored, Some(1)),
                Thing::IgnoredDirectory => (OmissionReason::Ignored, None),
                Thing::TooLarge => (OmissionReason::TooLarge, Some(1)),
                Thing::Git => (OmissionReason::GitDir, None),
            };
            omissions.push(Omission {
                path: path.clone(),
                reason,
                bytes,
            });
        }
        world.coverage = Coverage::new(omissions);
        world.empty_directories = disk
            .iter()
            .filter(|(path, thing)| {
                is_directory(**thing)
                    && !in_ignored(disk, path)
                    && range_below(&world.entries, path).is_empty()
            })
            .map(|(path, _)| path.clone())
            .collect();
        world
    }

    impl World {
        fn view(&self) -> View<'_> {
            View {
                coverage: &self.coverage,
                modes: &self.modes,
                empty_directories: &self.empty_directories,
            }
        }

        fn has_directory(&self, path: &RelPath) -> bool {
            !range_below(&self.entries, path).is_empty()
                || self.empty_directories.iter().any(|d| d.starts_with(path))
        }

        fn mode(&self, path: &RelPath) -> Option<u32> {
            self.modes.of(path, self.entries.get(path)?.kind)
        }
    }

    fn changes(from: &World, to: &World) -> Vec<Change> {
        let mut paths: Vec<&RelPath> = from.entries.keys().chain(to.entries.keys()).collect();
        paths.sort();
        paths.dedup();
        let change = |path: &RelPath| Change {
            path: path.clone(),
            old: from.entries.get(path).copied(),
            new: to.entries.get(path).copied(),
        };
        let changes: Vec<Change> = paths.into_iter().map(change).collect();
        let alike = left_out_by_one(from.view(), to.view())
            .into_iter()
            .filter_map(|path| {
                Some((
                    from.entries.get(&path)?,
                    to.entries.get(&path)?,
                    path.clone(),
                ))
            })
            .filter(|(old, new, _)| old == new)
            .map(|(entry, _, path)| (path, *entry))
            .collect();
        let differing = changes.into_iter().filter(|c| c.old != c.new).collect();
        as_on_disk(differing, alike, from.view())
    }

    fn plan_between(current: &World, goal: &World, after: Option<&World>) -> RestorePlan {
        let changes = changes(current, goal);
        let goal_directories = directories_in_question(&changes, current.view())
            .into_iter()
            .filter(|path| goal.has_directory(path))
            .collect();
        let same: Vec<(RelPath, Node)> = goal
            .entries
            .iter()
            .filter(|(path, entry)| current.entries.get(*path) == Some(*entry))
            .map(|(path, entry)| (path.clone(), Node::Entry(*entry)))
            .collect();
        let operation = after.map(|after| self::changes(after, goal));
        plan(&Question {
            target: &"snap_00000000000000000000000000000000".parse().unwrap(),
            current: current.view(),
            goal: goal.view(),
            changes: &changes,
            goal_directories: &goal_directories,
            same: &same,
            ignored: &BTreeMap::new(),
            scope: &[],
            undo: after
                .zip(operation.as_ref())
                .map(|(after, changes)| Operation {
                    after: after.view(),
                    changes,
                }),
        })
        .unwrap()
    }

    /// Does to a modelled disk what a plan says, as strictly as can be.
    fn carry_out(plan: &RestorePlan, disk: &mut Disk) {
        let captured = |t: Option<Thing>| matches!(t, Some(Thing::File(..) | Thing::Link(_)));
        for removal in &plan.removals {
            assert!(
                captured(disk.remove(&removal.path)),
                "only what was captured"
            );
        }
        for path in &plan.displaced {
            assert_eq!(disk.remove(path), Some(Thing::Special));
        }
        for path in &plan.remove_directories {
            assert_eq!(disk.get(path), Some(&Thing::Directory), "{path}");
            assert!(
                range_below(disk, path).is_empty(),
                "{path} is empty by then"
            );
            disk.remove(path);
        }
        for (path, _) in &plan.make_directories {
            assert_eq!(disk.get(path), None, "{path} was not there");
            place(disk, path, Thing::Directory);
        }
        for write in &plan.writes {
            let was = disk.remove(&write.path);
            assert_eq!(captured(was), write.current.is_some(), "{}", write.path);
            let id = write.entry.id.as_bytes()[0];
            let thing = write
                .mode
                .map_or(Thing::Link(id), |mode| Thing::File(id, mode));
            place(disk, &write.path, thing);
            assert_eq!(disk.get(&write.path), Some(&thing), "nothing is in the way");
        }
        for change in &plan.modes {
            match disk.get_mut(&change.path) {
                Some(Thing::File(_, mode)) => {
                    assert_eq!(*mode, change.from);
                    *mode = change.to;
                }
                other => panic!("{} is {other:?}", change.path),
            }
        }
    }

    fn is_named(plan: &RestorePlan, path: &RelPath) -> bool {
        plan.skipped.iter().any(|s| path.starts_with(&s.path))
    }

    fn is_captured(thing: Thing) -> bool {
        matches!(thing, Thing::File(..) | Thing::Link(_) | Thing::Directory)
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn a_plan_that_was_carried_out_leads_to_the_goal(from in disk(), to in disk()) {
            let (current, goal) = (capture(&from), capture(&to));
            let plan = plan_between(&current, &goal, None);
            let mut disk = from.clone();
            carry_out(&plan, &mut disk);
            for (path, thing) in &to {
                let is_goal = goal.entries.contains_key(path)
                    || goal.empty_directories.contains(path);
                if is_goal && !is_named(&plan, path) {
                    let is_hidden = from.get(path) == Some(&Thing::IgnoredDirectory)
                        || in_ignored(&from, path);
                    prop_assert!(disk.get(path) == Some(thing) || is_hidden, "{path}");
                }
            }
            for (path, thing) in &disk {
                if matches!(thing, Thing::File(..) | Thing::Link(_)) && !is_named(&plan, path) {
                    prop_assert_eq!(to.get(path), Some(thing));
                }
            }
            // What no snapshot has is where it was, but for special files in the way.
            for (path, thing) in from.iter().filter(|(_, thing)| !is_captured(**thing)) {
                let is_displaced = plan.displaced.contains(path);
                prop_assert!(disk.get(path) == Some(thing) || is_displaced, "{path}");
            }
            for removal in &plan.removals {
                prop_assert!(goal.coverage.covers(&removal.path).is_none());
            }
            // The second time there is nothing to do, and the same is left alone.
            let again = plan_between(&capture(&disk), &goal, None);
            prop_assert!(again.is_empty(), "{again:#?}");
            prop_assert_eq!(again.skipped, plan.skipped);
        }

        #[test]
        fn a_plan_to_where_one_is_does_nothing(disk in disk()) {
            let world = capture(&disk);
            let plan = plan_between(&world, &world, None);
            prop_assert!(plan.is_empty());
            prop_assert_eq!(&plan.skipped, &[]);
            prop_assert_eq!(plan, RestorePlan::nothing(
                &"snap_00000000000000000000000000000000".parse().unwrap(),
            ));
        }

        #[test]
        fn an_undo_touches_only_what_still_is_as_the_operation_left_it(
            before in disk(), after in disk(), now in disk(),
        ) {
            let (goal, left, current) = (capture(&before), capture(&after), capture(&now));
            let plan = plan_between(&current, &goal, Some(&left));
            let mut disk = now.clone();
            carry_out(&plan, &mut disk);
            for path in plan.changed_paths() {
                let then = (left.entries.get(path), left.mode(path));
                let found = (current.entries.get(path), current.mode(path));
                prop_assert_eq!(then, found, "{} was edited since", path);
            }
            for (path, entry) in &current.entries {
                let was_changed = left.entries.get(path) != goal.entries.get(path);
                let is_news = left.entries.get(path) != Some(entry)
                    && goal.entries.get(path) != Some(entry);
                if was_changed && is_news {
                    prop_assert!(is_named(&plan, path), "{path} is named");
                }
            }
        }

        #[test]
        fn an_undo_right_away_is_a_restore(before in disk(), after in disk()) {
            let (goal, left) = (capture(&before), capture(&after));
            let undo = plan_between(&left, &goal, Some(&left));
            let restore = plan_between(&left, &goal, None);
            prop_assert_eq!(undo, restore);
        }
    }

    #[test]
    fn plans_that_differ_in_anything_have_different_ids() {
        let file = |path: &str, n| {
            let mut disk = Disk::new();
            insert(&mut disk, &rel(path), Thing::File(n, 0o644));
            capture(&disk)
        };
        let nothing = capture(&Disk::new());
        let ids: BTreeSet<String> = [
            plan_between(&nothing, &file("a", 1), None),
            plan_between(&nothing, &file("a", 2), None),
            plan_between(&nothing, &file("b", 1), None),
            plan_between(&file("a", 1), &nothing, None),
            plan_between(&file("a", 3), &file("a", 1), None),
            plan_between(&nothing, &nothing, None),
        ]
        .into_iter()
        .map(|plan| plan.id.to_string())
        .collect();
        assert_eq!(ids.len(), 6);
        let id: PlanId = ids.iter().next().unwrap().parse().unwrap();
        assert!(id.as_str().starts_with("plan_") && id.as_str().len() == 37);
    }

    #[test]
    fn a_goal_that_no_worktree_can_be_is_refused() {
        let entry = Entry {
            kind: EntryKind::File,
            id: ContentId::Blake3([1; 32]),
        };
        let ask = |paths: &[&str]| {
            let nothing = capture(&Disk::new());
            let changes: Vec<Change> = paths
                .iter()
                .map(|path| Change {
                    path: rel(path),
                    old: None,
                    new: Some(entry),
                })
                .collect();
            plan(&Question {
                target: &"snap_00000000000000000000000000000000".parse().unwrap(),
                current: nothing.view(),
                goal: nothing.view(),
                changes: &changes,
                goal_directories: &BTreeSet::new(),
                same: &[],
                ignored: &BTreeMap::new(),
                scope: &[],
                undo: None,
            })
        };
        let path = rel("a");
        assert_eq!(ask(&["a", "a"]), Err(PlanError::Repeated { path }));
        let path = rel("a");
        assert_eq!(ask(&["b", "a"]), Err(PlanError::Repeated { path }));
        let path = rel("a/b");
        assert_eq!(
            ask(&["a", "a-b", "a/b"]),
            Err(PlanError::FileAndDirectory { path })
        );
        let path = rel("x/.GIT/y");
        assert_eq!(ask(&["x/.GIT/y"]), Err(PlanError::GitAlias { path }));
        assert!(ask(&["a-b", "a/b"]).is_ok());
    }

    /// A capture of files, each with its content; those of the second list are absent because of a
    /// sparse checkout, and in the tree as the index has them.
    fn checkout(files: &[(&str, u8)], left_out: &[(&str, u8)]) -> World {
        let mut disk = Disk::new();
        for (path, n) in files {
            insert(&mut disk, &rel(path), Thing::File(*n, 0o644));
        }
        let mut world = capture(&disk);
        let mut omissions = Vec::new();
        for (path, n) in left_out {
            let id = ContentId::Blake3([*n; 32]);
            let kind = EntryKind::File;
            world.entries.insert(rel(path), Entry { kind, id });
            omissions.push(Omission {
                path: rel(path),
                reason: OmissionReason::Sparse,
                bytes: None,
            });
        }
        world.coverage = Coverage::new(omissions);
        world
    }

    #[test]
    fn what_a_sparse_checkout_leaves_out_is_neither_made_nor_removed() {
        let here = |n| checkout(&[("a", n)], &[]);
        let left_out = |n| checkout(&[], &[("a", n)]);
        let nothing = || checkout(&[], &[]);
        let sparse = [Skipped {
            path: rel("a"),
            reason: SkipReason::Omitted(OmissionReason::Sparse),
        }];
        for (current, goal, named) in [
            (left_out(1), left_out(1), false),
            (left_out(1), left_out(2), true),
            (here(1), left_out(1), true),
            (here(1), left_out(2), true),
            (left_out(1), nothing(), true),
        ] {
            let plan = plan_between(&current, &goal, None);
            assert!(plan.is_empty(), "{plan:?}");
            assert_eq!(plan.skipped == sparse, named, "{plan:?}");
        }
    }

    #[test]
    fn what_the_goal_read_from_disk_is_made_though_a_sparse_checkout_leaves_it_out_today() {
        let plan_and_writes = |current: &World, goal: &World, after: Option<&World>| {
            let plan = plan_between(current, goal, after);
            let written = |w: &Write| (w.path.to_string(), w.entry.id.as_bytes()[0], w.current);
            let writes: Vec<_> = plan.writes.iter().map(written).collect();
            (plan, writes)
        };
        let left_out = checkout(&[], &[("a", 1)]);
        for n in [1, 2] {
            let goal = checkout(&[("a", n)], &[]);
            for after in [None, Some(&left_out)] {
                let (plan, writes) = plan_and_writes(&left_out, &goal, after);
                assert_eq!(writes, [("a".to_owned(), n, None)], "{plan:?}");
                assert_eq!(plan.skipped, []);
            }
            // The operation made or kept the file; who removed it since is not taken back.
            let later = checkout(&[("a", 3)], &[]);
            let (plan, writes) = plan_and_writes(&left_out, &goal, Some(&later));
            assert_eq!(writes, []);
            assert_eq!(plan.skipped[0].reason, SkipReason::EditedSince);
        }
        // Nothing is on disk at or below such a path, so nothing there is in the way.
        let goal = checkout(&[("a/b", 2)], &[]);
        let (_, writes) = plan_and_writes(&left_out, &goal, None);
        assert_eq!(writes, [("a/b".to_owned(), 2, None)]);
        let (_, writes) = plan_and_writes(
            &checkout(&[("d/new", 4)], &[("d/x", 1)]),
            &checkout(&[("d", 2)], &[]),
            None,
        );
        assert_eq!(writes, [("d".to_owned(), 2, None)]);
    }
}
