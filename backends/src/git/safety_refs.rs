//! Which safety refs in the user's repository may be removed, and where tags of an earlier version
//! are moved.
//!
//! The record of a guard names the refs that its restore makes. So our own refs are known after any
//! crash, and a ref is kept as long as its guard.

use std::collections::{BTreeMap, BTreeSet};

use super::ObjectId;
use super::put_error::PutError;
use super::repository::{Probe, RepositoryError, UserRepository, probe};
use super::rollback::safety::{DIRECTORY, EARLIER_DIRECTORY, Earlier, SafetyRefs, is_earlier};
use super::rollback::{self, LOCK_TIMEOUT};
use super::store::Store;
use crate::error::chain;
use crate::lock::LockFile;
use crate::operation::Operation;
use crate::record::{GitState, Record};
use crate::repository::{EarlierTag, KeptRef, MovedTag, MovedTags, ReleasedRefs};
use crate::repository_changes::RepositoryProblem;
use crate::restore_error::RestoreError;
use crate::snapshot::SnapshotId;
use crate::snapshot_error::SnapshotError;
use crate::store_error::StoreError;
use crate::workspace::{LockedWorkspace, Workspace};

/// The tags in the user's repository that have names as an earlier version gave them.
pub(super) fn earlier_tags(
    workspace: &Workspace,
) -> Result<BTreeMap<String, ObjectId>, RepositoryError> {
    let Some(repository) = repository_at(workspace)? else {
        return Ok(BTreeMap::new());
    };
    let mut tags = repository.refs_below(EARLIER_DIRECTORY)?;
    tags.retain(|name, _| is_earlier(name));
    Ok(tags)
}

/// Moves the tags that are known to be ours: see [`Backend::move_safety_tags`](crate::Backend).
pub(super) fn move_tags(
    op: &Operation,
    workspace: &LockedWorkspace,
    store: Option<&Store>,
    known: &[EarlierTag],
) -> Result<MovedTags, StoreError> {
    let mut outcome = MovedTags::default();
    let records = match store {
        Some(store) => readable(op, store)?,
        None => Vec::new(),
    };
    let earlier: Vec<Earlier> = known
        .iter()
        .filter_map(|tag| earlier(tag, tag.guard.as_ref().and_then(|id| of(&records, id))))
        .collect();
    let mut moved = Vec::new();
    let op = &op.to_its_end();
    let mut work = || {
        let tags = earlier_tags(workspace).map_err(problem)?;
        if tags.is_empty() {
            return Ok(());
        }
        let Some((refs, _lock)) = open(op, workspace)? else {
            return Ok(());
        };
        refs.move_here(op, &tags, &earlier, &mut moved)
            .map_err(|e| e.problem(NOT_MOVED))
    };
    outcome.problem = work().err();
    outcome.moved = moved
        .into_iter()
        .map(|(from, to)| MovedTag { from, to })
        .collect();
    Ok(outcome)
}

const NOT_MOVED: &str = "tags of an earlier version are still there, and a push of tags sends them";

/// Removes the refs of these guards that no other needs: see
/// [`Backend::release_safety_refs`](crate::Backend).
pub(super) fn release(
    op: &Operation,
    workspace: &LockedWorkspace,
    store: &Store,
    guards: &[SnapshotId],
    known: &[EarlierTag],
) -> Result<ReleasedRefs, StoreError> {
    let mut outcome = ReleasedRefs::default();
    let records = readable(op, store)?;
    let (leaving, staying): (Vec<&Record>, Vec<&Record>) = records
        .iter()
        .partition(|record| guards.contains(&record.snapshot.id));
    let needed: BTreeSet<&str> = staying.iter().flat_map(|record| names(record)).collect();
    let mut kept_all = |problem: &RepositoryProblem| {
        // Nothing is known of any but the names that the guards have.
        outcome.kept.extend(leaving.iter().filter_map(|record| {
            let name = names(record).next()?.to_owned();
            Some(KeptRef::new(
                record.snapshot.id.clone(),
                name,
                problem.clone(),
            ))
        }));
    };
    let found = repository_at(workspace).map_err(problem).and_then(|found| {
        let Some(repository) = found else {
            return Ok(None);
        };
        let refs = repository.refs_below(DIRECTORY).map_err(problem)?;
        Ok((!refs.is_empty()).then(|| (repository.known_as(), refs)))
    });
    let (known_as, present) = match found {
        Ok(Some(found)) => found,
        Ok(None) => return Ok(outcome),
        Err(problem) => {
            kept_all(&problem);
            return Ok(outcome);
        }
    };
    let is_there = |record: &&&Record| {
        let git = record.git.as_ref();
        git.is_some_and(|git| git.common_dir.is_same(&known_as))
    };
    let mut due: BTreeMap<&str, (ObjectId, &SnapshotId)> = BTreeMap::new();
    for record in leaving.iter().filter(is_there) {
        let id = &record.snapshot.id;
        let tag = known.iter().find(|tag| tag.guard.as_ref() == Some(id));
        let earlier = tag.and_then(|tag| earlier(tag, Some(record)));
        for (name, commit) in &present {
            let own = record
                .git
                .as_ref()
                .and_then(|git| git.safety_refs.get(name));
            let is_own = own == Some(commit)
                || earlier
                    .as_ref()
                    .is_some_and(|earlier| earlier.has_ref(name, commit));
            if is_own && !needed.contains(&**name) {
                due.insert(name, (*commit, id));
            }
        }
    }
    if due.is_empty() {
        return Ok(outcome);
    }
    let (refs, _lock) = match open(op, workspace) {
        Ok(Some(opened)) => opened,
        Ok(None) => return Ok(outcome),
        Err(problem) => {
            kept_all(&problem);
            return Ok(outcome);
        }
    };
    for (name, (commit, guard)) in due {
        match refs.remove(op, name, commit) {
            Ok(()) => outcome.removed.push(name.to_owned()),
            // Somebody has taken it for something else, so it is theirs.
            Err(PutError::Moved { .. }) => {}
            Err(error) => {
                let problem = error.problem("it was left in the repository");
                let kept = KeptRef::new(guard.clone(), name.to_owned(), problem);
                outcome.kept.push(kept);
            }
        }
    }
    Ok(outcome)
}

/// The user's repository; `None`: it is gone.
fn repository_at(workspace: &Workspace) -> Result<Option<Box<UserRepository>>, RepositoryError> {
    Ok(match probe(workspace.disk_path())? {
        Probe::Found(repository) => Some(repository),
        Probe::None | Probe::Bare(_) | Probe::Unsupported { .. } => None,
    })
}

/// The refs, to be changed, with the lock that our processes share. `None`: the repository is gone.
fn open(
    op: &Operation,
    workspace: &LockedWorkspace,
) -> Result<Option<(SafetyRefs, LockFile)>, RepositoryProblem> {
    let Some(repository) = repository_at(workspace).map_err(problem)? else {
        return Ok(None);
    };
    let common_dir = repository.common_dir();
    let locked = rollback::lock_repository(op, workspace.state(), common_dir, LOCK_TIMEOUT);
    let lock = locked
        .map_err(|error: RestoreError| RepositoryProblem::new(error.kind(), chain(&error)))?;
    let refs = SafetyRefs::open(common_dir, LOCK_TIMEOUT)
        .map_err(|error| error.problem("the refs cannot be opened"))?;
    Ok(Some((refs, lock)))
}

fn problem(error: RepositoryError) -> RepositoryProblem {
    let message = format!("the repository cannot be read: {}", chain(&error));
    RepositoryProblem::new(SnapshotError::from(error).kind(), message)
}

fn readable(op: &Operation, store: &Store) -> Result<Vec<Record>, StoreError> {
    let scanned = store.scan(op)?.into_iter();
    Ok(scanned.filter_map(|(_, record)| record.ok()).collect())
}

fn of<'r>(records: &'r [Record], id: &SnapshotId) -> Option<&'r Record> {
    records.iter().find(|record| record.snapshot.id == *id)
}

/// The names of the refs that the restore of a guard makes.
fn names(record: &Record) -> impl Iterator<Item = &str> {
    let git = record.git.iter();
    git.flat_map(|git| git.safety_refs.keys().map(String::as_str))
}

/// The tags that an earlier version made in a restore, as its guard and the log know them.
fn earlier(tag: &EarlierTag, guard: Option<&Record>) -> Option<Earlier> {
    let of_log = tag.commits.iter().filter_map(|commit| commit.parse().ok());
    let of_guard = guard.and_then(|guard| guard.git.as_ref());
    let commits = of_log
        .chain(of_guard.into_iter().flat_map(commits_of))
        .collect();
    Earlier::new(&tag.name, commits)
}

/// The commits that a restore from this state may leave without a name.
fn commits_of(git: &GitState) -> impl Iterator<Item = ObjectId> {
    git.tips().into_values().flatten().chain(git.head.commit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{Backend as _, SnapshotOptions};
    use crate::git::GitBackend;
    use crate::git::test_repository::TestRepository;
    use crate::repository::Repository as _;
    use crate::snapshot::Label;
    use crate::workspace::{StateDir, TEST_LOCK_TIMEOUT};

    #[test]
    fn a_tag_of_an_earlier_version_is_moved_once_if_name_and_commit_are_known() {
        for is_packed in [false, true] {
            let git = TestRepository::with_commit();
            let seen = git.git(&["rev-parse", "HEAD"]);
            let state = StateDir::open(git.beside("state")).unwrap();
            let workspace = Workspace::open(&git.path, &state).unwrap();
            let mut workspace = workspace
                .lock(&Operation::unbounded(), TEST_LOCK_TIMEOUT)
                .unwrap();
            let options = SnapshotOptions::new(Label::GUARD, jiff::Timestamp::UNIX_EPOCH);
            let guard = GitBackend
                .snapshot(&Operation::unbounded(), &workspace, &options)
                .unwrap()
                .id;
            git.commit("second");
            let second = git.git(&["rev-parse", "HEAD"]);
            let tag = |name: &str, commit: &str| git.git(&["tag", name, commit]);
            tag("stillframe/safety-run_1-1", &seen);
            tag("stillframe/safety-run_1-2", &second);
            tag("stillframe/safety-run_2-1", &seen);
            tag("stillframe/mine", &seen);
            if is_packed {
                git.git(&["pack-refs", "--all"]);
            }
            let first = "refs/tags/stillframe/safety-run_1-1".to_owned();
            let known = [EarlierTag::new(
                first.clone(),
                Some(guard.clone()),
                Vec::new(),
            )];
            let moved = GitBackend
                .move_safety_tags(&Operation::unbounded(), &mut workspace, &known)
                .unwrap();
            let to = "refs/stillframe/safety/run_1-1".to_owned();
            let expected = MovedTag {
                from: first.clone(),
                to: to.clone(),
            };
            assert_eq!(moved.moved, [expected]);
            assert_eq!(moved.problem, None);
            assert_eq!(git.git(&["rev-parse", &to]), seen);
            let left = git.git(&["tag"]);
            let others = "stillframe/mine\nstillframe/safety-run_1-2\nstillframe/safety-run_2-1";
            assert_eq!(
                left.trim_end(),
                others,
                "another commit, another run, no name of ours"
            );
            let again = GitBackend
                .move_safety_tags(&Operation::unbounded(), &mut workspace, &known)
                .unwrap();
            assert_eq!(again, MovedTags::default());

            let guards = [guard];
            let released = GitBackend.release_safety_refs(
                &Operation::unbounded(),
                &mut workspace,
                &guards,
                &known,
            );
            assert_eq!(released.unwrap().removed, [to], "it goes with its guard");
            assert_eq!(git.git(&["tag"]).trim_end(), others);
        }
    }

    #[test]
    fn a_tag_whose_commit_the_log_alone_knows_is_moved_too() {
        let git = TestRepository::with_commit();
        let state = StateDir::open(git.beside("state")).unwrap();
        let workspace = Workspace::open(&git.path, &state).unwrap();
        let mut workspace = workspace
            .lock(&Operation::unbounded(), TEST_LOCK_TIMEOUT)
            .unwrap();
        git.git(&["tag", "stillframe/safety-run_1-1"]);
        let known = |commits| {
            let name = "refs/tags/stillframe/safety-run_1-1".to_owned();
            [EarlierTag::new(name, None, commits)]
        };
        let nothing = GitBackend.move_safety_tags(
            &Operation::unbounded(),
            &mut workspace,
            &known(Vec::new()),
        );
        assert_eq!(nothing.unwrap(), MovedTags::default());
        let commit = git.git(&["rev-parse", "HEAD"]).trim_end().to_owned();
        let moved = GitBackend.move_safety_tags(
            &Operation::unbounded(),
            &mut workspace,
            &known(vec![commit]),
        );
        assert_eq!(moved.unwrap().moved.len(), 1);
        assert_eq!(git.git(&["tag"]), "");
    }
}
