//! Tests: purges in which a call fails, or in which the process dies before a call.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;

use jiff::Timestamp;
use rustix::io::Errno;

use crate::backend::{Backend, SnapshotOptions};
use crate::detect::{Strategy, detect};
use crate::faults::{Done, Fault};
use crate::git::test_repository::TestRepository;
use crate::operation::Operation;
use crate::path::RelPath;
use crate::purge::{FoundContents, Proof, PurgeError, PurgeTarget};
use crate::restore::{RestoreGoal, SkipReason};
use crate::snapshot::{Label, Snapshot};
use crate::trial;
use crate::workspace::{LockedWorkspace, StateDir, TEST_LOCK_TIMEOUT, Workspace};

const SECRET: &[u8] = b"a secret of a length that nothing else has";

/// Two snapshots with a secret that git tracks in a pack, and in a file of ours, and a restore
/// between them that displaced it.
struct Stage {
    _state: tempfile::TempDir,
    repository: TestRepository,
    workspace: LockedWorkspace,
    backend: Arc<dyn Backend>,
    last: Snapshot,
}

fn options(label: Label) -> SnapshotOptions {
    let at = Timestamp::from_second(1_700_000_000).unwrap();
    SnapshotOptions::new(label, at).retain_content(true)
}

impl Stage {
    fn new(strategy: Strategy) -> Self {
        let repository = TestRepository::in_memory();
        repository.write(".env", SECRET);
        repository.write("code", "one\n");
        repository.commit("first");
        repository.git(&["repack", "-q", "-a", "-d"]);
        let state = tempfile::tempdir_in(repository.beside("")).unwrap();
        let state_dir = StateDir::open(state.path().join("state")).unwrap();
        let workspace = Workspace::open(&repository.path, &state_dir).unwrap();
        let mut workspace = workspace
            .lock(&Operation::unbounded(), TEST_LOCK_TIMEOUT)
            .unwrap();
        let backend = detect(&workspace, strategy).unwrap().backend;
        let first = backend
            .snapshot(&Operation::unbounded(), &workspace, &options(Label::MANUAL))
            .unwrap();
        repository.write("code", "two\n");
        repository.write("copy", SECRET);
        let last = backend
            .snapshot(&Operation::unbounded(), &workspace, &options(Label::MANUAL))
            .unwrap();
        let goal = RestoreGoal::Snapshot {
            snapshot: first,
            paths: Vec::new(),
        };
        let guard = crate::backend::RestoreOptions::new(options(Label::GUARD));
        backend
            .restore(&Operation::unbounded(), &mut workspace, &goal, &guard)
            .unwrap();
        Self {
            _state: state,
            repository,
            workspace,
            backend,
            last,
        }
    }

    fn found(&self) -> FoundContents {
        let target = PurgeTarget::Path(RelPath::new(".env").unwrap());
        let found = self.backend.purging().unwrap().find_content(
            &Operation::unbounded(),
            &self.workspace,
            &target,
            &[],
        );
        found.unwrap()
    }

    fn purge(&mut self, op: &Operation, found: &FoundContents) -> Result<Proof, PurgeError> {
        let at = Timestamp::from_second(1_700_000_001).unwrap();
        self.backend
            .purging()
            .unwrap()
            .purge(op, &mut self.workspace, &found.contents, at)
    }

    /// Whether any file has the bytes as they are, or is a pack or object with the id.
    fn has_secret(&self) -> bool {
        let store = self.workspace.store_path();
        let files = walkdir::WalkDir::new(store).into_iter().map(Result::unwrap);
        let mut files = files.filter(|entry| entry.file_type().is_file());
        let is_in = |bytes: &[u8]| bytes.windows(SECRET.len()).any(|part| part == SECRET);
        if files.any(|entry| is_in(&fs::read(entry.path()).unwrap())) {
            return true;
        }
        let git_dir = store.join("git");
        if !git_dir.join("HEAD").exists() {
            return false;
        }
        let all = ["cat-file", "--batch-all-objects", "--batch"];
        let listed = self.repository.run(&git_dir, &all);
        assert!(listed.status.success(), "git reads every object");
        is_in(&listed.stdout)
    }

    /// The snapshots are whole but for what was purged, if anything was.
    #[track_caller]
    fn is_whole(&self, context: &str) {
        let listed = self
            .backend
            .list(&Operation::unbounded(), &self.workspace)
            .unwrap()
            .snapshots;
        assert_eq!(listed.len(), 4, "{context}");
        for snapshot in &listed {
            let verified = self
                .backend
                .verify(&Operation::unbounded(), &self.workspace, &[snapshot])
                .remove(0)
                .unwrap();
            assert_eq!(verified.problems, [], "{context}");
        }
    }

    /// What is left of the last snapshot comes back, and the secret does not.
    #[track_caller]
    fn goes_on(&mut self, context: &str) {
        let goal = RestoreGoal::Snapshot {
            snapshot: self.last.clone(),
            paths: Vec::new(),
        };
        let guard = crate::backend::RestoreOptions::new(options(Label::GUARD));
        let restored =
            self.backend
                .restore(&Operation::unbounded(), &mut self.workspace, &goal, &guard);
        let skipped = restored.unwrap().skipped;
        let reasons: BTreeSet<_> = skipped.iter().map(|s| s.reason.as_str()).collect();
        let expected = SkipReason::Omitted(crate::coverage::OmissionReason::Purged).as_str();
        assert_eq!(reasons, BTreeSet::from([expected]), "{context}");
        let code = fs::read(self.repository.path.join("code")).unwrap();
        assert_eq!(code, b"two\n", "{context}");
        let secret = fs::read(self.repository.path.join(".env")).unwrap();
        assert_eq!(secret, SECRET, "{context}: it is the user's");
        assert!(!self.has_secret(), "{context}");
    }
}

/// Purges with the fault at each of the calls that are chosen, and how each of them ended: whether
/// the content is on the list, and whether it is left.
fn at_each_call(strategy: Strategy, fault: impl Fn(u64) -> Fault) -> BTreeSet<(bool, bool)> {
    let mut endings = BTreeSet::new();
    let mut stage = Stage::new(strategy);
    let found = stage.found();
    let (proof, calls) = trial::calls_of(|op| stage.purge(op, &found));
    assert_eq!(proof.unwrap().unproven, []);
    for call in calls.chosen() {
        let mut stage = Stage::new(strategy);
        assert!(stage.has_secret());
        let found = stage.found();
        let (result, calls) = trial::with(fault(call), |op| stage.purge(op, &found));
        let context = format!("{strategy:?} {:?}", fault(call));
        let is_listed = stage.workspace.store_path().join("purged").exists();
        let is_left = stage.has_secret();
        if result.is_ok() {
            assert!(is_listed && !is_left, "{context}");
        }
        assert!(is_left || is_listed, "{context}: the list comes first");
        endings.insert((is_listed, is_left));
        stage.is_whole(&context);
        match call % 2 {
            // Either of them goes on.
            1 if is_listed => drop(
                stage
                    .backend
                    .collect(&Operation::unbounded(), &mut stage.workspace)
                    .unwrap(),
            ),
            _ => {
                let proof = stage.purge(&Operation::unbounded(), &found).unwrap();
                assert_eq!(proof.unproven, [], "{context}");
            }
        }
        stage.is_whole(&context);
        if strategy == Strategy::Git || call % 2 == 0 {
            // A collection of the git store leaves what restores displaced to the other.
            let proof = stage.purge(&Operation::unbounded(), &found).unwrap();
            assert_eq!(proof.unproven, [], "{context}");
        }
        stage.goes_on(&context);
        if calls <= call {
            assert!(result.is_ok() && call > 8, "{context}");
            break;
        }
    }
    endings
}

const ALL_ENDINGS: [(bool, bool); 3] = [(false, true), (true, false), (true, true)];

#[test]
fn a_purge_in_which_any_call_fails_is_finished_by_the_next() {
    for strategy in [Strategy::Git, Strategy::Hash] {
        let full = |call| Fault::FailAt(call, Errno::NOSPC.raw_os_error());
        let endings = at_each_call(strategy, full);
        assert_eq!(endings, BTreeSet::from(ALL_ENDINGS), "{strategy:?}");
    }
}

#[test]
fn a_purge_that_dies_at_any_call_is_finished_by_the_next() {
    for strategy in [Strategy::Git, Strategy::Hash] {
        let endings = at_each_call(strategy, Fault::StopBefore);
        assert_eq!(endings, BTreeSet::from(ALL_ENDINGS), "{strategy:?}");
    }
}

#[test]
fn nothing_is_removed_before_the_list_is_synced() {
    for strategy in [Strategy::Git, Strategy::Hash] {
        let mut stage = Stage::new(strategy);
        let found = stage.found();
        let (proof, seen) = trial::seen(|op| stage.purge(op, &found));
        assert_eq!(proof.unwrap().unproven, []);
        let list = stage.workspace.store_path().join("purged");
        let above = stage.workspace.store_path();
        let named = |call: &Done| matches!(call, Done::Rename { to, .. } if *to == list);
        let named = seen.iter().position(named).unwrap();
        let synced = |call: &Done| matches!(call, Done::SyncDirectory(path) if path == above);
        let synced = named + seen[named..].iter().position(synced).unwrap();
        let removed = |call: &Done| matches!(call, Done::Remove(_));
        let removed = seen.iter().position(removed).unwrap();
        assert!(synced < removed, "{seen:?}");
    }
}

#[test]
fn a_watch_from_before_a_purge_does_not_keep_what_was_purged() {
    for strategy in [Strategy::Git, Strategy::Hash] {
        let mut stage = Stage::new(strategy);
        let watched = options(Label::MANUAL).watch(true);
        let capture = |stage: &Stage| {
            let mut options = watched.clone();
            options.id = crate::snapshot::SnapshotId::random();
            let snapshot = stage
                .backend
                .snapshot(&Operation::unbounded(), &stage.workspace, &options)
                .unwrap();
            let omissions = snapshot.omissions().iter();
            let purged = omissions
                .filter(|o| o.reason == crate::coverage::OmissionReason::Purged)
                .map(|o| o.path.to_string());
            (purged.collect::<Vec<_>>(), snapshot)
        };
        capture(&stage);
        let (omitted, snapshot) = capture(&stage);
        assert_eq!(omitted, [""; 0]);
        let found = stage.found();
        stage.purge(&Operation::unbounded(), &found).unwrap();
        for _ in 0..2 {
            let (omitted, later) = capture(&stage);
            assert_eq!(omitted, [".env"], "{strategy:?}");
            assert_ne!(later.reference, snapshot.reference, "{strategy:?}");
            assert!(!stage.has_secret());
        }
    }
}

#[test]
fn a_sparse_checkout_that_left_the_secret_out_goes_on_without_it() {
    let mut stage = Stage::new(Strategy::Git);
    let found = stage.found();
    stage.purge(&Operation::unbounded(), &found).unwrap();
    stage
        .repository
        .git(&["update-index", "--skip-worktree", ".env"]);
    fs::remove_file(stage.repository.path.join(".env")).unwrap();
    let snapshot = stage.backend.snapshot(
        &Operation::unbounded(),
        &stage.workspace,
        &options(Label::MANUAL),
    );
    let snapshot = snapshot.unwrap();
    let omitted: Vec<_> = snapshot
        .omissions()
        .iter()
        .map(|o| o.path.to_string())
        .collect();
    assert_eq!(omitted, [".env"]);
    assert!(!stage.has_secret());
    let verified = stage
        .backend
        .verify(&Operation::unbounded(), &stage.workspace, &[&snapshot])
        .remove(0)
        .unwrap();
    assert_eq!((verified.problems, verified.purged), (vec![], vec![]));
}

#[test]
fn content_that_was_never_kept_is_purged_by_its_digest_alone() {
    let mut stage = Stage::new(Strategy::Hash);
    fs::write(stage.repository.path.join("other"), b"listed and not kept").unwrap();
    let bare = options(Label::MANUAL).retain_content(false);
    stage
        .backend
        .snapshot(&Operation::unbounded(), &stage.workspace, &bare)
        .unwrap();
    let target = PurgeTarget::Path(RelPath::new("other").unwrap());
    let found = stage
        .backend
        .purging()
        .unwrap()
        .find_content(&Operation::unbounded(), &stage.workspace, &target, &[])
        .unwrap();
    assert_eq!(
        (found.contents[0].bytes, found.contents[0].other_id),
        (Some(19), None)
    );
    stage.purge(&Operation::unbounded(), &found).unwrap();
    let snapshot = stage.backend.snapshot(
        &Operation::unbounded(),
        &stage.workspace,
        &options(Label::MANUAL),
    );
    let snapshot = snapshot.unwrap();
    let omitted: Vec<_> = snapshot
        .omissions()
        .iter()
        .map(|o| o.path.to_string())
        .collect();
    assert!(omitted.contains(&"other".to_owned()), "{omitted:?}");
}
