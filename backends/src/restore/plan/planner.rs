//! Deciding about each path in turn.

use std::collections::{BTreeMap, BTreeSet};

use super::judgement::{self, Judgement};
use super::{
    Node, Question, Undone, View, ancestors, below, change_at, changes_below, insert_ancestors,
    range_below,
};
use crate::coverage::{Omission, OmissionReason};
use crate::path::RelPath;
use crate::restore::merge::Merge;
use crate::restore::{
    Conflict, ModeChange, PlanId, Removal, RestorePlan, SkipReason, Skipped, Write,
};
use crate::tree::{Change, Entry};

/// Decides about each path in turn. What one decision leaves in place can be in the way of another.
pub(super) struct Planner<'a, 'q> {
    question: &'q Question<'a>,
    /// What was asked for; empty: everything.
    scope: BTreeMap<RelPath, ()>,
    /// Captured paths that only the current state has, and that stay.
    kept: BTreeMap<RelPath, SkipReason>,
    /// Directories that are left alone with everything in them.
    closed: BTreeSet<RelPath>,
    removals: BTreeMap<RelPath, Entry>,
    writes: Vec<Write>,
    displaced: BTreeMap<RelPath, Omission>,
    modes: Vec<ModeChange>,
    merged: Vec<RelPath>,
    conflicts: Vec<Conflict>,
    skipped: BTreeMap<RelPath, SkipReason>,
    leftover: BTreeSet<RelPath>,
}

impl<'a, 'q> Planner<'a, 'q> {
    pub(super) fn new(question: &'q Question<'a>) -> Self {
        Self {
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
            displaced: BTreeMap::new(),
            modes: Vec::new(),
            merged: Vec::new(),
            conflicts: Vec::new(),
            skipped: BTreeMap::new(),
            leftover: BTreeSet::new(),
        }
    }

    pub(super) fn decide(mut self) -> RestorePlan {
        self.find_nested_repositories();
        let wanted = self.select();
        self.decide_removals(&wanted);
        self.decide_writes(&wanted);
        let make_directories = self.directories_to_make();
        let remove_directories = self.directories_to_remove();
        self.decide_modes();
        self.name_new_omissions();
        self.name_lost_omissions();
        self.finish(make_directories, remove_directories)
    }

    fn in_scope(&self, path: &RelPath) -> bool {
        self.scope.is_empty()
            || self.scope.contains_key(path)
            || self.scope.contains_key(&RelPath::root())
            || ancestors(path).any(|above| self.scope.contains_key(&above))
    }

    fn skip(&mut self, path: &RelPath, reason: SkipReason) {
        self.skipped.entry(path.clone()).or_insert(reason);
    }

    /// Whether a rule protected `path`, or a directory above it, from an earlier restore.
    fn is_spared(&self, path: &RelPath) -> bool {
        let spared = self.question.spared;
        let is_listed = |path: &RelPath| spared.binary_search(path).is_ok();
        !spared.is_empty() && (is_listed(path) || ancestors(path).any(|p| is_listed(&p)))
    }

    /// Whether `path` is, or lies in, a directory that is left alone as a whole.
    fn is_closed(&self, path: &RelPath) -> bool {
        !self.closed.is_empty()
            && (self.closed.contains(path) || ancestors(path).any(|p| self.closed.contains(&p)))
    }

    /// Repositories that came since the goal was captured are kept whole: their objects are in no
    /// snapshot, and their files alone would be of little use. Where the directory was there
    /// before, what the goal captured in it is put back all the same.
    fn find_nested_repositories(&mut self) {
        let question = self.question;
        let mut found = Vec::new();
        for omission in question.current.coverage.omissions() {
            if !is_repository(omission) || !self.is_new_omission(omission) {
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
            if !repository.is_root() {
                found.push(repository);
            } else if omission.reason == OmissionReason::GitDir {
                self.skip(&omission.path, SkipReason::Omitted(OmissionReason::GitDir));
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
    /// for an undo, was there right after the operation, or hides what that did.
    fn is_new_omission(&self, omission: &Omission) -> bool {
        let question = self.question;
        let path = &omission.path;
        let is_of = |undo: Undone<'_>| {
            undo.after.coverage.covers(path).is_some()
                || change_at(undo.changes, path).is_some()
                || !changes_below(undo.changes, path).is_empty()
        };
        self.in_scope(path)
            && question.goal.coverage.covers(path).is_none()
            && question.undo.is_none_or(is_of)
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
                match self.judge(change, undo) {
                    Judgement::AsAfter => {}
                    Judgement::Untouched(reason) => {
                        self.name_if_it_came_unseen(&change.path, reason, undo);
                        self.keep(change, reason);
                        continue;
                    }
                    Judgement::Differs(reason) => {
                        if !self.merge(change, undo) {
                            self.skip(&change.path, reason);
                        }
                        self.keep(change, reason);
                        continue;
                    }
                }
            }
            wanted.push(change);
        }
        wanted
    }

    /// Takes the operation back in a file that was edited since, and keeps the edits, if both are
    /// possible.
    fn merge(&mut self, change: &Change, undo: Undone<'_>) -> bool {
        match undo.merges.get(&change.path) {
            None => false,
            Some(Merge::Conflict(conflict)) => {
                self.conflicts.push(conflict.clone());
                false
            }
            Some(Merge::Clean { entry, mode }) => {
                let path = change.path.clone();
                let to = *mode;
                match change.old {
                    Some(old) if old.id == entry.id => {
                        let from = self.question.current.modes.of(&path, old.kind);
                        let from = from.filter(|from| *from != to);
                        self.modes
                            .extend(from.map(|from| ModeChange { path, from, to }));
                    }
                    current => {
                        self.merged.push(path.clone());
                        self.writes.push(Write {
                            path,
                            current,
                            entry: *entry,
                            mode: Some(to),
                        });
                    }
                }
                true
            }
        }
    }

    /// Whether the caller named the path, a directory above it, or something below it that needs a
    /// directory in its place.
    fn is_asked_for(&self, change: &Change) -> bool {
        self.in_scope(&change.path)
            || (change.new.is_none() && !range_below(&self.scope, &change.path).is_empty())
    }

    fn judge(&self, change: &Change, undo: Undone<'_>) -> Judgement {
        match Judgement::of(change, self.question.current, undo) {
            Judgement::Differs(_) if seeded_bug!("later-edit-overwritten") => Judgement::AsAfter,
            judgement => judgement,
        }
    }

    /// Names what the operation left at `path`, and nobody captured then, unless the goal may have
    /// had it.
    fn name_if_it_came_unseen(&mut self, path: &RelPath, reason: SkipReason, undo: Undone<'_>) {
        let Some(then) = undo.after.unseen_at(path) else {
            return;
        };
        if self.question.goal.coverage.covers(path).is_some() {
            return;
        }
        match then.is_left_out_by_rule() {
            true => self.leave_over(path),
            false => self.skip(path, reason),
        }
    }

    /// Lists a path that rules name, or the whole directory that they name and that it lies in.
    fn leave_over(&mut self, path: &RelPath) {
        let named = self.question.ignored_directories;
        let whole = ancestors(path).filter(|above| named.contains(above)).last();
        self.leftover.insert(whole.unwrap_or_else(|| path.clone()));
    }

    /// Why what is at `path` by now stays there, if an undo has to leave it.
    fn reason_to_keep(&self, path: &RelPath, undo: Undone<'_>) -> SkipReason {
        judgement::reason_to_keep(path, true, self.question.current, undo)
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
            unchanged,
            ..
        } = *self.question;
        for change in wanted {
            let path = &change.path;
            if change.new.is_some() && !self.is_made_in_sparse(change) {
                continue;
            }
            let Some(entry) = change.old else {
                if current.is_sparse(path) {
                    // Only the user's index has it, and a restore of files leaves that alone.
                    self.skip(path, SkipReason::Omitted(OmissionReason::Sparse));
                }
                continue;
            };
            match self.protection(change) {
                Some(reason) => {
                    let is_named_by_rule = ignored.contains_key(path);
                    match goal.coverage.covers(path).is_none() {
                        _ if unchanged.contains(path) => {}
                        true if is_named_by_rule => self.leave_over(path),
                        _ => self.skip(path, SkipReason::Omitted(reason)),
                    }
                    self.keep(change, SkipReason::Omitted(reason));
                }
                None if self.is_closed(path) => self.keep(change, SkipReason::NestedRepository),
                None => _ = self.removals.insert(path.clone(), entry),
            }
        }
    }

    /// Why what only the current state has must not be removed.
    fn protection(&self, change: &Change) -> Option<OmissionReason> {
        let path = &change.path;
        if self.is_made_in_sparse(change) {
            return None;
        }
        if let Some(omission) = self.question.goal.coverage.covers(path) {
            return Some(omission.reason);
        }
        let is_overlooked = seeded_bug!("ignored-file-deleted");
        let by_rule = self.question.ignored.get(path).copied();
        by_rule
            .filter(|_| !is_overlooked)
            .or_else(|| self.is_spared(path).then_some(OmissionReason::Ignored))
    }

    fn decide_writes(&mut self, wanted: &[&Change]) {
        let Question { current, goal, .. } = *self.question;
        for change in wanted {
            let path = &change.path;
            let Some(entry) = change.new else { continue };
            if self.is_made_in_sparse(change) {
                continue;
            }
            if let Some(reason) = goal.names_without_bytes(path) {
                self.skip(path, SkipReason::Omitted(reason));
                self.keep(change, SkipReason::Omitted(reason));
                continue;
            }
            let is_held = self.question.held.contains(path);
            let mode = goal.modes.of(path, entry.kind).filter(|_| !is_held);
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

    /// Whether a restore put the path where the goal's sparse checkout leaves it out: it was not
    /// there, whatever the index has for it.
    fn is_made_in_sparse(&self, change: &Change) -> bool {
        let Question { goal, made, .. } = *self.question;
        goal.is_sparse(&change.path) && made.contains(&change.path)
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
            let newer = at.then_some(path).into_iter().chain(all_below);
            if let Some(newer) = newer.into_iter().find(|p| is_newer(p)) {
                let reason = self.reason_to_keep(newer, undo);
                self.close(path, reason);
                return Err(reason);
            }
        }
        let is_kept_below = !range_below(&self.kept, path).is_empty();
        let is_repository = current
            .coverage
            .at(&path.join(b".git"))
            .is_some_and(is_repository);
        let is_kept_empty = self.is_closed(path) && current.has_empty_at_or_below(path);
        if is_kept_below || is_kept_empty || current.omits_below(path) {
            let reason = if is_repository || self.is_closed(path) {
                SkipReason::NestedRepository
            } else {
                SkipReason::DirectoryNotEmpty
            };
            self.close(path, reason);
            return Err(reason);
        }
        self.take_away(displaced);
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
    fn clear_way(&self, path: &RelPath, displaced: &mut Vec<Omission>) -> Result<(), SkipReason> {
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
                _ if omission.hides_a_directory() => {}
                _ => self.displace(omission, displaced)?,
            }
        }
        Ok(())
    }

    /// Decides whether what could not be captured can be moved out of the way. An undo does so only
    /// with what the operation left there, as far as can be told without a look into it.
    fn displace(
        &self,
        omission: &Omission,
        displaced: &mut Vec<Omission>,
    ) -> Result<(), SkipReason> {
        if !omission.is_file_out_of_reach() {
            return Err(SkipReason::Omitted(omission.reason));
        }
        if let Some(undo) = self.question.undo
            && undo.after.coverage.at(&omission.path) != Some(omission)
        {
            return Err(self.reason_to_keep(&omission.path, undo));
        }
        displaced.push(omission.clone());
        Ok(())
    }

    /// Notes what is moved out of the way.
    fn take_away(&mut self, displaced: Vec<Omission>) {
        let displaced = displaced.into_iter();
        let by_path = displaced.map(|omission| (omission.path.clone(), omission));
        self.displaced.extend(by_path);
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

    /// Whether nothing is left in `directory` but what the goal's sparse checkout leaves out. git
    /// removes such a directory.
    fn is_emptied_in_sparse(&self, directory: &RelPath) -> bool {
        let goal = self.question.goal;
        let comes = |change: &Change| change.new.is_some() && !goal.is_sparse(&change.path);
        self.question.sparse_directories.contains(directory)
            && !range_below(&self.removals, directory).is_empty()
            && !goal.has_empty_at_or_below(directory)
            && !changes_below(self.question.changes, directory)
                .iter()
                .any(comes)
    }

    /// Whether the operation that is taken back left `directory` there.
    fn after_has_directory(undo: Undone<'_>, directory: &RelPath) -> bool {
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
            in_place,
            ..
        } = *self.question;
        let mut made = Vec::new();
        for path in goal.empty_directories {
            let is_there = current.has_empty_at_or_below(path)
                || changes_below(changes, path).iter().any(|c| c.old.is_some())
                || current.omits_below(path)
                || in_place.iter().any(|held| held.starts_with(path))
                // Whether a directory is there that only the index has paths in is in no snapshot.
                || current.is_sparse_below(path);
            let is_kept_as_it_was = undo.is_some_and(|undo| Self::after_has_directory(undo, path));
            if is_there || !self.in_scope(path) || is_kept_as_it_was {
                continue;
            }
            let was_file =
                |undo: &Undone<'_>| change_at(undo.changes, path).is_some_and(|c| c.old.is_some());
            if let Some(undo) = undo.filter(was_file)
                && !self.removals.contains_key(path)
            {
                let kept = self.kept.get(path).copied();
                self.skip(
                    path,
                    kept.unwrap_or_else(|| self.reason_to_keep(path, undo)),
                );
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

    /// `Err(None)` where the directory is there as far as anybody can tell, since a rule hides the
    /// place.
    fn room_for_directory(&mut self, path: &RelPath) -> Result<(), Option<SkipReason>> {
        if let Some(reason) = self.kept.get(path) {
            return Err(Some(*reason));
        }
        let mut displaced = Vec::new();
        let is_absent = self.question.absent_directories.contains(path);
        match self.question.current.omission_covering(path) {
            Some(omission) if omission.hides_a_directory() && is_absent => {}
            Some(omission) if omission.hides_a_directory() => return Err(None),
            Some(omission) => self.displace(omission, &mut displaced).map_err(Some)?,
            None => {}
        }
        self.clear_way(path, &mut displaced).map_err(Some)?;
        self.take_away(displaced);
        Ok(())
    }

    fn directories_to_remove(&mut self) -> Vec<RelPath> {
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
            (!self.goal_has_directory(path) || self.is_emptied_in_sparse(path))
                && goal.coverage.covers(path).is_none()
                && !goal.omits_below(path)
                && current.coverage.at(path).is_none()
                && !current.omits_below(path)
                && range_below(&self.kept, path).is_empty()
                && !self.is_closed(path)
                && undo.is_none_or(|undo| Self::after_has_directory(undo, path))
        });
        let spared: Vec<RelPath> = candidates
            .iter()
            .filter(|path| self.is_spared(path))
            .cloned()
            .collect();
        for path in &spared {
            self.skip(path, SkipReason::Omitted(OmissionReason::Ignored));
            candidates.remove(path);
        }
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
                    self.skip(path, self.reason_to_keep(path, undo));
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
                || self.displaced.contains_key(path)
                || self.is_closed(path)
                || change_at(question.changes, path).is_some_and(|c| c.new.is_some())
                || self.goal_has_directory(path)
                || question.goal.omits_below(path)
            {
                continue;
            }
            // Somebody may have made it so since, as far as kind and size tell.
            let made_so = question.undo.filter(|_| {
                let reason = omission.reason;
                matches!(reason, OmissionReason::Special | OmissionReason::TooLarge)
            });
            let reason = match made_so {
                Some(undo) => self.reason_to_keep(path, undo),
                None => SkipReason::Omitted(omission.reason),
            };
            self.skip(path, reason);
        }
    }

    /// Names what the goal left out and is gone since, or another thing: nobody can put it back. Of
    /// an undo also what is captured by now, under a larger limit, unless that has the size that it
    /// had.
    ///
    /// That an ignored file is another one by now is what ignored files are for, and is not named.
    fn name_lost_omissions(&mut self) {
        let question = self.question;
        for omission in question.goal.coverage.omissions() {
            let path = &omission.path;
            let is_lost_now = question.current.has_lost(omission, question.changes);
            let is_captured = || change_at(question.changes, path).is_some_and(|c| c.old.is_some());
            let is_another = |undo: Undone<'_>| is_captured() && !undo.regained.contains(path);
            let is_lost = match question.undo {
                None => is_lost_now,
                Some(undo) => {
                    undo.after.has_lost(omission, undo.changes) && (is_lost_now || is_another(undo))
                }
            };
            if is_lost && self.in_scope(path) {
                self.skip(path, SkipReason::Omitted(omission.reason));
            }
        }
    }

    fn finish(
        mut self,
        make_directories: Vec<(RelPath, u32)>,
        remove_directories: Vec<RelPath>,
    ) -> RestorePlan {
        self.writes.sort_by(|a, b| a.path.cmp(&b.path));
        self.modes.sort_by(|a, b| a.path.cmp(&b.path));
        let removals = self.removals.into_iter();
        let skipped = self.skipped.into_iter();
        let mut plan = RestorePlan::empty(PlanId::default(), self.question.target.clone());
        plan.writes = self.writes;
        plan.removals = removals
            .map(|(path, current)| Removal { path, current })
            .collect();
        plan.displaced = self.displaced.into_values().collect();
        plan.make_directories = make_directories;
        plan.remove_directories = remove_directories;
        plan.modes = self.modes;
        plan.merged = self.merged;
        plan.conflicts = self.conflicts;
        plan.skipped = skipped
            .map(|(path, reason)| Skipped { path, reason })
            .collect();
        plan.leftover_ignored = self.leftover.into_iter().collect();
        plan.named()
    }
}

/// Whether an omission is a repository's own directory or file. The hash backend excludes the
/// directory by its name.
fn is_repository(omission: &Omission) -> bool {
    omission.reason == OmissionReason::GitDir
        || (omission.reason == OmissionReason::Excluded && omission.path.name() == b".git")
}
