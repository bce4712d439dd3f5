//! Tests: operations that are cancelled at each of their checks for a cancellation.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::backend::{Backend, RepositoryRestore, RestoreOptions, SnapshotOptions};
use crate::borrow_mode::BorrowMode;
use crate::caches;
use crate::detect::{Strategy, detect};
use crate::diff::DiffOptions;
use crate::diff_error::DiffError;
use crate::error::ErrorKind;
use crate::git::repository::RepositoryError;
use crate::git::test_repository::TestRepository;
use crate::interrupt::Interrupt;
use crate::interrupted::Interrupted;
use crate::operation::Operation;
use crate::removal;
use crate::restore::RestoreGoal;
use crate::restore_error::RestoreError;
use crate::retain::RetainContent;
use crate::snapshot::{Label, Snapshot};
use crate::snapshot_error::SnapshotError;
use crate::store_error::StoreError;
use crate::workspace::{LockedWorkspace, StateDir, TEST_LOCK_TIMEOUT, Workspace};
use crate::worktree::journal;

/// What is captured, and how.
#[derive(Clone, Copy, Debug)]
struct Scene {
    strategy: Strategy,
    borrow: BorrowMode,
    retain_content: bool,
    /// The size of a file, in bytes: small, or so large that it passes through in pieces.
    large: usize,
    /// Of the looks one in so many is tried: most of them are for one more file or piece.
    stride: u64,
}

const GIT: Scene = Scene {
    strategy: Strategy::Git,
    borrow: BorrowMode::HardLink,
    retain_content: false,
    large: 1 << 10,
    stride: 1,
};

const HASH: Scene = Scene {
    strategy: Strategy::Hash,
    retain_content: true,
    ..GIT
};

const SCENES: [Scene; 5] = [
    GIT,
    Scene {
        large: (4 << 20) + 1,
        stride: 11,
        ..GIT
    },
    Scene {
        borrow: BorrowMode::Copy,
        stride: 3,
        ..GIT
    },
    HASH,
    Scene {
        retain_content: false,
        stride: 3,
        ..HASH
    },
];

/// A workspace with something for every part of an operation, and a state directory.
struct Stage {
    repository: TestRepository,
    scene: Scene,
    workspace: LockedWorkspace,
    backend: Arc<dyn Backend>,
}

impl Stage {
    fn new(scene: Scene) -> Self {
        let repository = TestRepository::in_memory();
        repository.write("packed/a", "in a pack\n");
        repository.write("packed/b", "in a pack too\n");
        repository.commit("first");
        repository.git(&["repack", "-q", "-a", "-d"]);
        for number in 0..3 {
            repository.write(format!("loose/{number}"), format!("loose {number}\n"));
        }
        repository.commit("second");
        repository.write("staged", "staged\n");
        repository.git(&["add", "staged"]);
        repository.write("staged", "edited since\n");
        repository.write("deep/er/untracked", "untracked\n");
        repository.write("large", vec![b'x'; scene.large]);
        std::os::unix::fs::symlink("packed/a", repository.path.join("link")).unwrap();
        let state = repository.beside("state");
        let workspace = locked(&repository.path, &state);
        let backend = detect(&workspace, scene.strategy).unwrap().backend;
        Self {
            repository,
            scene,
            workspace,
            backend,
        }
    }

    /// With a snapshot, and edits since.
    fn with_snapshot(scene: Scene) -> (Self, Snapshot) {
        let stage = Self::new(scene);
        let snapshot = stage.snapshot(&Operation::unbounded()).unwrap();
        stage.repository.write("packed/a", "edited\n");
        stage.repository.write("new/one", "new\n");
        stage.repository.write("large", vec![b'y'; scene.large]);
        std::fs::remove_file(stage.repository.path.join("loose/1")).unwrap();
        stage.repository.git(&["add", "packed/a"]);
        (stage, snapshot)
    }

    fn options(&self) -> SnapshotOptions {
        let at = Timestamp::from_second(1_700_000_000).unwrap();
        let mut options =
            SnapshotOptions::new(Label::MANUAL, at).retain_content(self.scene.retain_content);
        options.borrow = self.scene.borrow;
        options
    }

    fn snapshot(&self, op: &Operation) -> Result<Snapshot, SnapshotError> {
        self.backend.snapshot(op, &self.workspace, &self.options())
    }

    /// Every file of the state directory with its size, but for what a store is made with and what
    /// says how quick the next capture is.
    fn kept(&self) -> BTreeMap<PathBuf, u64> {
        // Of many files another thread is at it.
        removal::wait_for_removals();
        let state = self.repository.beside("state");
        let files = walkdir::WalkDir::new(&state)
            .into_iter()
            .map(Result::unwrap);
        files
            .filter(|entry| entry.file_type().is_file())
            .map(|entry| (entry.path().to_owned(), entry.metadata().unwrap().len()))
            .filter(|(path, _)| {
                let name = path.file_name().unwrap().to_str().unwrap();
                // Listing the records may write the note of the last one.
                let is_quicker = caches::is_of_captures(path) || name == caches::LAST_RECORD;
                !["HEAD", "config"].contains(&name) && !is_quicker
            })
            .collect()
    }

    /// Every file of the workspace, and what is beside it, but for the state directory.
    fn workspace_view(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        // Nobody lists a directory in which another thread removes something.
        removal::wait_for_removals();
        let above = self.repository.path.parent().unwrap();
        let state = self.repository.beside("state");
        let files = walkdir::WalkDir::new(above).into_iter().map(Result::unwrap);
        files
            .filter(|entry| entry.file_type().is_file() && !entry.path().starts_with(&state))
            .map(|entry| {
                (
                    entry.path().to_owned(),
                    std::fs::read(entry.path()).unwrap(),
                )
            })
            .collect()
    }

    /// What git makes of the worktree, by an index of its own.
    fn tree_of_git(&self) -> String {
        let git_dir = self.repository.beside("copy.git");
        let copied = self.repository.path.join(".git");
        self.repository.git(&[
            "clone",
            "-q",
            "--bare",
            copied.to_str().unwrap(),
            git_dir.to_str().unwrap(),
        ]);
        let git_dir = format!("--git-dir={}", git_dir.display());
        self.repository
            .git(&[&git_dir, "--work-tree=.", "add", "-A"]);
        self.repository.git(&[&git_dir, "write-tree"])
    }
}

fn locked(path: &Path, state: &Path) -> LockedWorkspace {
    let state = StateDir::open(state).unwrap();
    let workspace = Workspace::open(path, &state).unwrap();
    workspace
        .lock(&Operation::unbounded(), TEST_LOCK_TIMEOUT)
        .unwrap()
}

fn stopped_by(interrupt: &Interrupt) -> Operation {
    Operation::unbounded().cancelled_by(interrupt)
}

/// While a snapshot is given its name, what makes the next capture quick is written by another
/// thread. That it looks, and stops, is no reason to stop any more.
const LOOKS_ASIDE: u64 = 8;

/// Does `work`, and cancels it at each of the looks that it takes, until it is done before the
/// cancellation; has each answer judged, and answers with the last one and how often it was
/// stopped.
fn at_each_look<T, E: std::fmt::Debug>(
    stride: u64,
    mut work: impl FnMut(&Operation) -> Result<T, E>,
    kind: impl Fn(&E) -> ErrorKind,
    mut judge: impl FnMut(&str),
) -> (T, u64) {
    let mut stopped = 0;
    let mut look = 0;
    loop {
        let interrupt = Interrupt::at_look(look);
        match work(&stopped_by(&interrupt)) {
            Ok(done) => {
                assert!(
                    interrupt.looks() <= look + LOOKS_ASIDE,
                    "it was told to stop at look {look} of {}, and was done all the same",
                    interrupt.looks()
                );
                return (done, stopped);
            }
            Err(error) => {
                let context = format!("stopped at look {look}: {error:?}");
                assert_eq!(kind(&error), ErrorKind::Cancelled, "{context}");
                judge(&context);
                stopped += 1;
            }
        }
        look += stride;
    }
}

#[test]
fn a_capture_that_is_stopped_at_any_look_publishes_nothing_and_leaves_nothing() {
    for scene in SCENES {
        let stage = Stage::new(scene);
        let before = stage.kept();
        let is_clean = |context: &str| {
            assert_eq!(stage.kept(), before, "{scene:?}, {context}");
            let listed = stage
                .backend
                .list(&Operation::unbounded(), &stage.workspace)
                .unwrap()
                .snapshots;
            assert_eq!(listed, [], "{scene:?}, {context}");
        };
        let work = |op: &Operation| stage.snapshot(op);
        let (snapshot, stopped) = at_each_look(scene.stride, work, SnapshotError::kind, is_clean);
        assert!(
            stopped * scene.stride > 30,
            "{scene:?}: there were {stopped} places"
        );
        let proof = stage
            .backend
            .verify(&Operation::unbounded(), &stage.workspace, &[&snapshot])
            .remove(0)
            .unwrap();
        assert_eq!(proof.problems, []);
        if scene.strategy == Strategy::Git {
            assert_eq!(snapshot.tree, Some(stage.tree_of_git()), "as git has it");
        }
    }
}

/// Which files a stopped capture unlinked before it returned is not seen from outside; that it
/// handed them over is.
#[test]
fn a_stopped_capture_that_kept_much_has_it_removed_aside_and_the_next_one_waits_for_that() {
    let stage = Stage::new(HASH);
    let handed_over = || removal::testing::handed_over(stage.workspace.store_path());
    let of_whole = {
        let interrupt = Interrupt::at_look(u64::MAX);
        let other = Stage::new(HASH);
        other.snapshot(&stopped_by(&interrupt)).unwrap();
        let removed = removal::testing::handed_over(other.workspace.store_path());
        assert_eq!(removed, 0, "one that is not stopped removes nothing");
        interrupt.looks()
    };
    let mut stopped = 0;
    // Towards the end nearly all of it is kept: before and after it has its names.
    for look in of_whole / 2.. {
        let before = handed_over();
        let Err(error) = stage.snapshot(&stopped_by(&Interrupt::at_look(look))) else {
            break;
        };
        assert_eq!(error.kind(), ErrorKind::Cancelled, "{error:?}");
        assert!(handed_over() > before, "look {look} of {of_whole}");
        stopped += 1;
    }
    assert!(stopped > 5, "there were {stopped} places");
    let snapshots = stage
        .backend
        .list(&Operation::unbounded(), &stage.workspace)
        .unwrap()
        .snapshots;
    for snapshot in &snapshots {
        let proof = stage
            .backend
            .verify(&Operation::unbounded(), &stage.workspace, &[snapshot])
            .remove(0)
            .unwrap();
        assert_eq!(proof.problems, []);
    }
    assert_eq!(snapshots.len(), 1);
}

#[test]
fn a_capture_after_another_that_is_stopped_at_any_look_leaves_the_first_alone() {
    for scene in SCENES {
        let (stage, first) = Stage::with_snapshot(scene);
        let before = stage.kept();
        let is_as_before = |context: &str| {
            assert_eq!(stage.kept(), before, "{scene:?}, {context}");
            let proof = stage
                .backend
                .verify(&Operation::unbounded(), &stage.workspace, &[&first])
                .remove(0)
                .unwrap();
            assert_eq!(proof.problems, [], "{scene:?}, {context}");
        };
        let work = |op: &Operation| stage.snapshot(op);
        let (second, stopped) = at_each_look(scene.stride, work, SnapshotError::kind, is_as_before);
        assert!(
            stopped * scene.stride > 20,
            "{scene:?}: there were {stopped} places"
        );
        if scene.strategy == Strategy::Git {
            assert_eq!(second.tree, Some(stage.tree_of_git()), "as git has it");
        }
    }
}

#[test]
fn the_capture_after_one_that_was_stopped_sees_what_a_fresh_one_sees() {
    for scene in SCENES {
        let undisturbed = Stage::with_snapshot(scene).0;
        let expected = undisturbed.snapshot(&Operation::unbounded()).unwrap();
        let (mut look, mut is_done) = (0, false);
        while !is_done {
            let (stage, _) = Stage::with_snapshot(scene);
            is_done = stage
                .snapshot(&stopped_by(&Interrupt::at_look(look)))
                .is_ok();
            let again = stage.snapshot(&Operation::unbounded()).unwrap();
            assert_eq!(again.tree, expected.tree, "{scene:?}, look {look}");
            if scene.strategy == Strategy::Hash {
                assert_eq!(
                    again.reference, expected.reference,
                    "{scene:?}, look {look}"
                );
            }
            let proof = stage
                .backend
                .verify(&Operation::unbounded(), &stage.workspace, &[&again])
                .remove(0)
                .unwrap();
            assert_eq!(proof.problems, [], "{scene:?}, look {look}");
            look += 29;
        }
    }
}

#[test]
fn a_comparison_or_a_proof_that_is_stopped_at_any_look_says_so_and_writes_nothing() {
    for scene in SCENES {
        let (stage, first) = Stage::with_snapshot(scene);
        let second = stage.snapshot(&Operation::unbounded()).unwrap();
        let before = stage.kept();
        let is_as_before = |context: &str| assert_eq!(stage.kept(), before, "{context}");
        let diff = |op: &Operation| {
            let options = DiffOptions::default();
            let (backend, workspace) = (&stage.backend, &stage.workspace);
            backend.diff(op, workspace, &first, &second, &options, &mut io::sink())
        };
        let (diff, stopped) = at_each_look(scene.stride, diff, DiffError::kind, is_as_before);
        assert_eq!(diff.files_changed, 4, "{scene:?}");
        assert!(
            stopped * scene.stride > 4,
            "{scene:?}: there were {stopped} places"
        );

        let verify = |op: &Operation| {
            stage
                .backend
                .verify(op, &stage.workspace, &[&second])
                .remove(0)
        };
        let (proof, stopped) =
            at_each_look(scene.stride, verify, |error| error.kind(), is_as_before);
        assert_eq!(proof.problems, [], "{scene:?}");
        let least = if proof.without_content { 0 } else { 5 };
        assert!(
            stopped * scene.stride > least,
            "{scene:?}: there were {stopped} places"
        );
    }
}

#[test]
fn a_restore_that_is_stopped_at_any_look_touches_nothing_and_one_that_is_not_is_whole() {
    for scene in SCENES
        .into_iter()
        .filter(|scene| scene.strategy == Strategy::Git || scene.retain_content)
    {
        let (mut stage, first) = Stage::with_snapshot(scene);
        let before = stage.workspace_view();
        let goal = RestoreGoal::Snapshot {
            snapshot: first.clone(),
            paths: Vec::new(),
        };
        let (mut look, mut stopped) = (0, 0);
        loop {
            let interrupt = Interrupt::at_look(look);
            let options = RestoreOptions::new(stage.options());
            let op = stopped_by(&interrupt);
            let backend = Arc::clone(&stage.backend);
            match backend.restore(&op, &mut stage.workspace, &goal, &options) {
                Ok(outcome) => {
                    assert!(interrupt.looks() <= look, "{scene:?}, look {look}");
                    assert_eq!(outcome.skipped, [], "{scene:?}");
                    break;
                }
                Err(error) => {
                    let context = format!("{scene:?}, look {look}: {error:?}");
                    assert_eq!(error.kind(), ErrorKind::Cancelled, "{context}");
                    assert!(!error.touched(), "{context}");
                    assert_eq!(stage.workspace_view(), before, "{context}");
                    let temporary = |path: &&PathBuf| {
                        let name = path.file_name().unwrap().to_str().unwrap();
                        name.starts_with("tmp_") || name.starts_with(".tmp-")
                    };
                    let kept = stage.kept();
                    let left: Vec<_> = kept.keys().filter(temporary).collect();
                    assert_eq!(left, <[&PathBuf; 0]>::default(), "{context}");
                    let recovery = backend
                        .recover(&Operation::unbounded(), &mut stage.workspace)
                        .unwrap();
                    assert_eq!(recovery, Default::default(), "{context}");
                }
            }
            stopped += 1;
            look += scene.stride;
        }
        assert!(
            stopped * scene.stride > 40,
            "{scene:?}: there were {stopped} places"
        );
        let plan = stage
            .backend
            .plan(
                &Operation::unbounded(),
                &stage.workspace,
                &goal,
                &RestoreOptions::new(stage.options()),
            )
            .unwrap();
        assert!(plan.is_empty(), "{scene:?}: it is as it was captured");
    }
}

#[test]
fn a_collection_that_is_stopped_at_any_look_removes_nothing_that_is_needed() {
    for scene in SCENES {
        let (mut stage, first) = Stage::with_snapshot(scene);
        let second = stage.snapshot(&Operation::unbounded()).unwrap();
        let backend = Arc::clone(&stage.backend);
        backend
            .forget(
                &Operation::unbounded(),
                &mut stage.workspace,
                std::slice::from_ref(&first.id),
                &[],
            )
            .unwrap();
        let (mut look, mut stopped) = (0, 0);
        loop {
            let interrupt = Interrupt::at_look(look);
            let collected = backend.collect(&stopped_by(&interrupt), &mut stage.workspace);
            let proof = backend
                .verify(&Operation::unbounded(), &stage.workspace, &[&second])
                .remove(0)
                .unwrap();
            assert_eq!(proof.problems, [], "{scene:?}, look {look}");
            match collected {
                Ok(_) => {
                    assert!(interrupt.looks() <= look, "{scene:?}, look {look}");
                    break;
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::Cancelled, "{error:?}"),
            }
            stopped += 1;
            look += 1;
        }
        assert!(stopped > 0, "{scene:?}");
        let again = stage.snapshot(&Operation::unbounded()).unwrap();
        assert_eq!(again.tree, second.tree, "{scene:?}");
    }
}

#[test]
fn a_deadline_that_has_passed_is_named_and_nothing_is_left() {
    for scene in SCENES {
        let stage = Stage::new(scene);
        let before = stage.kept();
        let late = Interrupt::after(std::time::Duration::ZERO);
        let error = stage.snapshot(&stopped_by(&late)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{scene:?}");
        assert!(
            error.to_string().contains("not done within 0 ms"),
            "{error}"
        );
        assert_eq!(stage.kept(), before, "{scene:?}");
        stage.snapshot(&Operation::unbounded()).unwrap();
    }
}

/// The bytes of all files below `directory`; those that go meanwhile have none.
fn bytes_below(directory: &Path) -> u64 {
    let files = walkdir::WalkDir::new(directory).into_iter();
    let lengths = files.filter_map(|entry| entry.ok()?.metadata().ok());
    lengths
        .filter(|meta| meta.is_file())
        .map(|meta| meta.len())
        .sum()
}

#[test]
fn a_store_is_at_no_moment_larger_than_its_limit_and_a_refused_capture_leaves_nothing() {
    for scene in SCENES {
        let (stage, first) = Stage::with_snapshot(scene);
        let store = stage.workspace.store_path().to_owned();
        let (before, began_with) = (stage.kept(), bytes_below(&store));
        let whole = Stage::with_snapshot(scene).0;
        whole.snapshot(&Operation::unbounded()).unwrap();
        let needed = bytes_below(whole.workspace.store_path());
        assert!(needed > began_with, "{scene:?}: there is something to keep");
        let mut answers = std::collections::BTreeSet::new();
        let step = (needed - began_with) / 23 + 1;
        for limit in (began_with.saturating_sub(1)..needed + 20 * step).step_by(step as usize) {
            let options = stage.options().max_store_bytes(limit);
            let most = Arc::new(std::sync::atomic::AtomicU64::new(0));
            let look = {
                let (most, store) = (Arc::clone(&most), store.clone());
                move || {
                    most.fetch_max(bytes_below(&store), std::sync::atomic::Ordering::Relaxed);
                }
            };
            let snapshot = |op: &Operation| stage.backend.snapshot(op, &stage.workspace, &options);
            let result = crate::trial::looked_at(look, snapshot);
            let most = most.load(std::sync::atomic::Ordering::Relaxed);
            let most = most.max(bytes_below(&store));
            let context = format!("{scene:?}, limit {limit}, began with {began_with}");
            assert!(
                most <= limit.max(began_with),
                "{context}: there were {most}"
            );
            match result {
                Ok(snapshot) => {
                    let proof = stage
                        .backend
                        .verify(&Operation::unbounded(), &stage.workspace, &[&snapshot])
                        .remove(0)
                        .unwrap();
                    assert_eq!(proof.problems, [], "{context}");
                    answers.insert("kept");
                    break;
                }
                Err(SnapshotError::LimitExceeded {
                    limit: told,
                    actual,
                    ..
                }) => {
                    assert_eq!(told, limit, "{context}");
                    assert!(actual > limit, "{context}: {actual}");
                    assert_eq!(stage.kept(), before, "{context}");
                    let proof = stage
                        .backend
                        .verify(&Operation::unbounded(), &stage.workspace, &[&first])
                        .remove(0)
                        .unwrap();
                    assert_eq!(proof.problems, [], "{context}");
                    answers.insert("refused");
                }
                Err(error) => panic!("{context}: {error:?}"),
            }
        }
        assert_eq!(answers.len(), 2, "{scene:?}: {answers:?}");
    }
}

#[test]
fn new_content_is_at_no_moment_more_than_its_limit_and_goes_where_that_is_passed() {
    use std::sync::atomic::{AtomicU64, Ordering};

    let content = |stage: &Stage| stage.workspace.store_path().join("hash/content");
    let whole = Stage::with_snapshot(HASH).0;
    let began_with = bytes_below(&content(&whole));
    whole.snapshot(&Operation::unbounded()).unwrap();
    let new = bytes_below(&content(&whole)) - began_with;
    assert!(new > 1024, "there is something to keep");

    let stage = Stage::with_snapshot(HASH).0;
    let content = content(&stage);
    let limits = (0..new).step_by(97).chain([new - 1, new]);
    for limit in limits {
        let options = stage.options();
        let options = options.retain_content(RetainContent::UpTo(limit));
        let most = Arc::new(AtomicU64::new(0));
        let look = {
            let (most, content) = (Arc::clone(&most), content.clone());
            move || {
                most.fetch_max(bytes_below(&content), Ordering::Relaxed);
            }
        };
        let snapshot = |op: &Operation| stage.backend.snapshot(op, &stage.workspace, &options);
        let snapshot = crate::trial::looked_at(look, snapshot).unwrap();
        removal::wait_for_removals();
        let most = most.load(Ordering::Relaxed);
        assert!(
            most <= began_with + limit,
            "limit {limit}: there were {most}"
        );
        let proof = stage
            .backend
            .verify(&Operation::unbounded(), &stage.workspace, &[&snapshot])
            .remove(0)
            .unwrap();
        assert_eq!(proof.problems, [], "limit {limit}");
        let is_kept = snapshot.metadata.has_content;
        assert_eq!(is_kept, Some(limit >= new), "limit {limit} of {new}");
        assert_eq!(is_kept, Some(!proof.without_content), "limit {limit}");
        let left = began_with + if limit >= new { new } else { 0 };
        assert_eq!(bytes_below(&content), left, "limit {limit}");
    }
}

// The journal of the restore, the copies of the index that it looks into and what it heals were not
// counted
#[test]
fn a_store_is_at_no_moment_larger_than_its_limit_until_a_restore_is_done() {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    for scene in [GIT, HASH] {
        let mut answers = std::collections::BTreeSet::new();
        for step in 0.. {
            let (mut stage, first) = Stage::with_snapshot(scene);
            let (before, after) = (
                first.clone(),
                stage.snapshot(&Operation::unbounded()).unwrap(),
            );
            // Next to nothing for a guard, and a step each for the journal.
            for number in 0..200 {
                let name = format!("new/{number:03}-{}", "n".repeat(200));
                stage.repository.write(name, "");
            }
            let store = stage.workspace.store_path().to_owned();
            let began_with = bytes_below(&store);
            let limit = began_with + step * 8_000;
            let options = stage.options().max_store_bytes(limit);
            let options = RestoreOptions::new(options).repository(RepositoryRestore::Undo {
                before,
                after,
                run_id: "run_1".to_owned(),
            });
            let goal = RestoreGoal::Snapshot {
                snapshot: first,
                paths: Vec::new(),
            };
            let most = Arc::new(AtomicU64::new(0));
            let (is_begun, is_done) = (AtomicBool::new(false), Arc::new(AtomicBool::new(false)));
            let look = {
                let (most, is_done, store) = (Arc::clone(&most), Arc::clone(&is_done), store);
                move || {
                    // What is captured when all is done is captured however much it is.
                    let has_journal = store.join(journal::FILE).exists();
                    let begun = is_begun.fetch_or(has_journal, Ordering::Relaxed);
                    let done = is_done.fetch_or(begun && !has_journal, Ordering::Relaxed);
                    if !done {
                        most.fetch_max(bytes_below(&store), Ordering::Relaxed);
                    }
                }
            };
            let view = stage.workspace_view();
            let backend = Arc::clone(&stage.backend);
            let restore =
                |op: &Operation| backend.restore(op, &mut stage.workspace, &goal, &options);
            let result = crate::trial::looked_at(look, restore);
            let context = format!("{scene:?}, limit {limit}, began with {began_with}");
            let most = most.load(Ordering::Relaxed);
            assert!(
                most <= limit.max(began_with),
                "{context}: there were {most}"
            );
            match result {
                Ok(outcome) => {
                    assert!(is_done.load(Ordering::Relaxed), "{context}");
                    assert!(outcome.restored.len() > 200, "{context}");
                    answers.insert("done");
                    break;
                }
                Err(error) => {
                    assert_eq!(
                        error.kind(),
                        ErrorKind::LimitExceeded,
                        "{context}: {error:?}"
                    );
                    assert!(!error.touched(), "{context}");
                    assert_eq!(stage.workspace_view(), view, "{context}");
                    answers.insert("refused");
                }
            }
        }
        assert_eq!(answers.len(), 2, "{scene:?}: {answers:?}");
    }
}

#[test]
fn a_capture_that_would_store_more_anew_than_it_may_is_refused_and_leaves_nothing() {
    for scene in SCENES
        .into_iter()
        .filter(|scene| scene.strategy == Strategy::Git || scene.retain_content)
    {
        let stage = Stage::new(scene);
        // What does not compress, so that it is stored in as many bytes.
        let mut noise = blake3::Hasher::new().finalize_xof();
        let mut bytes = vec![0; 200_000];
        noise.fill(&mut bytes);
        stage.repository.write("noise", bytes);
        let before = stage.kept();
        let options = stage.options().max_new_bytes(150_000);
        let error = stage
            .backend
            .snapshot(&Operation::unbounded(), &stage.workspace, &options)
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error:?}");
        assert!(error.to_string().contains("the limit is 150000"), "{error}");
        assert_eq!(stage.kept(), before, "{scene:?}");
        let options = stage.options().max_new_bytes(6 << 20);
        stage
            .backend
            .snapshot(&Operation::unbounded(), &stage.workspace, &options)
            .unwrap();
        let options = stage.options().max_new_bytes(40_000);
        let again = stage
            .backend
            .snapshot(&Operation::unbounded(), &stage.workspace, &options)
            .unwrap();
        assert_eq!(
            again.metadata.files_hashed, 0,
            "what is kept is not stored anew"
        );
    }
}

// "stopped: cancelled: cancelled"
#[test]
fn why_an_operation_was_stopped_is_said_once() {
    fn chain(error: impl std::error::Error + 'static) -> String {
        let first: Option<&dyn std::error::Error> = Some(&error);
        let all = std::iter::successors(first, |error| error.source());
        all.map(|error| error.to_string())
            .collect::<Vec<_>>()
            .join(": ")
    }
    let late = Interrupted::TimedOut {
        after: Duration::from_secs(2),
    };
    for (why, said) in [
        (Interrupted::Cancelled, "cancelled"),
        (late, "not done within 2000 ms"),
    ] {
        for text in [
            chain(SnapshotError::from(why)),
            chain(SnapshotError::from(StoreError::from(why))),
            chain(StoreError::from(why)),
            chain(DiffError::from(why)),
            chain(DiffError::from(StoreError::from(why))),
            chain(RestoreError::from(why)),
            chain(RestoreError::from(StoreError::from(why))),
            chain(RepositoryError::from(why)),
            chain(SnapshotError::from(RepositoryError::from(why))),
        ] {
            assert_eq!(text.matches(said).count(), 1, "{text}");
        }
    }
}
