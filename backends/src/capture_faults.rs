//! Tests: captures in which a call fails, and the order of a capture's calls.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use rustix::io::Errno;

use crate::backend::{Backend, SnapshotOptions};
use crate::borrow_mode::BorrowMode;
use crate::caches::is_cache;
use crate::detect::{Strategy, detect};
use crate::durable;
use crate::error::ErrorKind;
use crate::faults::{Done, Fault};
use crate::git::test_repository::TestRepository;
use crate::operation::Operation;
use crate::snapshot::{Label, Snapshot, SnapshotId};
use crate::snapshot_error::SnapshotError;
use crate::trial;
use crate::workspace::{LockedWorkspace, StateDir, TEST_LOCK_TIMEOUT, Workspace};

/// How the captures of a story are taken, and of what.
#[derive(Clone, Copy, Debug)]
struct Scene {
    strategy: Strategy,
    borrow: BorrowMode,
    retain_content: bool,
    /// Whether there is a snapshot of an earlier state already.
    is_second: bool,
    /// Whether there are more new files than are synced one by one.
    are_many: bool,
    /// Whether there is a file that is not held in memory.
    is_large: bool,
}

const GIT: Scene = Scene {
    strategy: Strategy::Git,
    borrow: BorrowMode::HardLink,
    retain_content: false,
    is_second: false,
    are_many: false,
    is_large: false,
};

const HASH: Scene = Scene {
    strategy: Strategy::Hash,
    retain_content: true,
    ..GIT
};

const LARGE: Scene = Scene {
    is_large: true,
    ..GIT
};

const SCENES: [Scene; 8] = [
    GIT,
    Scene {
        is_second: true,
        ..GIT
    },
    Scene {
        borrow: BorrowMode::Copy,
        ..GIT
    },
    Scene {
        are_many: true,
        ..GIT
    },
    HASH,
    Scene {
        is_second: true,
        ..HASH
    },
    Scene {
        are_many: true,
        ..HASH
    },
    Scene {
        retain_content: false,
        ..HASH
    },
];

/// A repository with a pack, loose objects, and files that git does not have. Captures do not
/// change it, so any number of them may be taken of it, each into a state directory of its own.
struct Ground {
    repository: TestRepository,
    scene: Scene,
}

/// A state directory, and the workspace as it is seen from there.
struct Stage<'a> {
    ground: &'a Ground,
    _state: tempfile::TempDir,
    workspace: LockedWorkspace,
    backend: Arc<dyn Backend>,
    /// What was published before the story begins.
    earlier: BTreeSet<SnapshotId>,
}

impl Ground {
    fn new(scene: Scene) -> Self {
        let repository = TestRepository::in_memory();
        repository.write("packed", "in a pack\n");
        repository.commit("first");
        repository.git(&["repack", "-q", "-a", "-d"]);
        let loose = if scene.are_many { 40 } else { 2 };
        for number in 0..loose {
            repository.write(format!("loose/{number}"), format!("loose {number}\n"));
        }
        repository.commit("second");
        repository.write("staged", "staged\n");
        repository.git(&["add", "staged"]);
        repository.write("staged", "edited since\n");
        repository.write("untracked", "untracked\n");
        if scene.is_large {
            // So large that it passes through in pieces.
            repository.write("large", vec![b'x'; (4 << 20) + 1]);
        }
        std::os::unix::fs::symlink("untracked", repository.path.join("link")).unwrap();
        Self { repository, scene }
    }

    fn stage(&self) -> Stage<'_> {
        // On the file system of the repository, so that files can be linked.
        let state = tempfile::tempdir_in(self.repository.beside("")).unwrap();
        let workspace = open(
            &Operation::unbounded(),
            &self.repository.path,
            &state.path().join("state"),
        );
        let backend = detect(&workspace, self.scene.strategy).unwrap().backend;
        let mut stage = Stage {
            ground: self,
            _state: state,
            workspace,
            backend,
            earlier: BTreeSet::new(),
        };
        if self.scene.is_second {
            self.repository.write("edited", "before\n");
            stage
                .earlier
                .insert(stage.snapshot(&Operation::unbounded()).unwrap().id);
        }
        self.repository.write("edited", "after\n");
        stage
    }
}

fn open(op: &Operation, path: &Path, state: &Path) -> LockedWorkspace {
    let state = StateDir::open_in(op, state).unwrap();
    let workspace = Workspace::open(path, &state).unwrap();
    workspace.lock(op, TEST_LOCK_TIMEOUT).unwrap()
}

impl Stage<'_> {
    fn options(&self) -> SnapshotOptions {
        let at = Timestamp::from_second(1_700_000_000).unwrap();
        let scene = self.ground.scene;
        let mut options =
            SnapshotOptions::new(Label::MANUAL, at).retain_content(scene.retain_content);
        options.borrow = scene.borrow;
        options
    }

    fn snapshot(&self, op: &Operation) -> Result<Snapshot, SnapshotError> {
        self.backend.snapshot(op, &self.workspace, &self.options())
    }

    /// What another process finds, each of which it can prove to be whole.
    #[track_caller]
    fn published(&self, context: &str) -> BTreeSet<SnapshotId> {
        let listed = self
            .backend
            .list(&Operation::unbounded(), &self.workspace)
            .unwrap()
            .snapshots;
        for snapshot in &listed {
            let problems = self
                .backend
                .verify(&Operation::unbounded(), &self.workspace, &[snapshot])
                .remove(0)
                .unwrap();
            assert_eq!(problems.problems, [], "{context}");
        }
        listed.into_iter().map(|snapshot| snapshot.id).collect()
    }

    /// git finds nothing wrong with the store.
    #[track_caller]
    fn fsck(&self, context: &str) {
        let git_dir = self.workspace.store_path().join("git");
        if !git_dir.join("HEAD").exists() {
            return;
        }
        let checked = self
            .ground
            .repository
            .run(&git_dir, &["fsck", "--strict", "--full"]);
        let said = [checked.stdout, checked.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        let complaints: Vec<_> = said
            .lines()
            .filter(|line| !line.starts_with("dangling") && !line.starts_with("notice"))
            .collect();
        assert!(
            checked.status.success() && complaints.is_empty(),
            "{context}: {said}"
        );
    }

    /// A capture without faults works, whatever happened before, and sees what is there.
    #[track_caller]
    fn works_again(&self, expected: &Snapshot, context: &str) {
        let before = self.published(context);
        let again = self
            .snapshot(&Operation::unbounded())
            .unwrap_or_else(|e| panic!("{context}: the next capture fails: {e}"));
        assert_eq!(again.tree, expected.tree, "{context}");
        if self.ground.scene.strategy == Strategy::Hash {
            assert_eq!(again.reference, expected.reference, "{context}");
        }
        let after = self.published(context);
        let new: Vec<_> = after.difference(&before).collect();
        assert_eq!(new, [&again.id], "{context}");
        self.fsck(context);
    }
}

/// Takes a capture with the fault at each of the calls that are chosen of those that `is_meant`
/// names, and has the answer judged.
fn at_each_call(
    scene: Scene,
    is_meant: impl Fn(&Done) -> bool,
    fault: impl Fn(u64) -> Fault,
    mut judge: impl FnMut(&Stage<'_>, &SnapshotId, &Result<Snapshot, SnapshotError>, &str),
) {
    let ground = Ground::new(scene);
    let stage = ground.stage();
    let snapshot = |op: &Operation| stage.snapshot(op).unwrap();
    let (expected, calls, done) = trial::calls_and_done(snapshot);
    let meant = done.iter().filter(|(_, done)| is_meant(done));
    let meant: BTreeSet<u64> = meant.map(|(call, _)| *call).collect();
    let known = done.last_key_value().map_or(0, |(last, _)| *last);
    let mut chosen: BTreeSet<u64> = calls.chosen().take_while(|call| *call <= known).collect();
    // The ends of what is meant may be in the middle of a place in the code.
    chosen.extend(meant.first().into_iter().chain(meant.last()));
    for call in chosen.into_iter().chain(known + 1..) {
        // The next capture may make a few calls more, depending on how threads share the work.
        if done.contains_key(&call) && !meant.contains(&call) {
            continue;
        }
        let stage = ground.stage();
        let options = stage.options();
        let (result, calls) = trial::with(fault(call), |op| {
            stage.backend.snapshot(op, &stage.workspace, &options)
        });
        if calls <= call {
            result.unwrap();
            assert!(call > 10, "a capture makes that many calls");
            return;
        }
        let context = format!("{scene:?}, {:?}", fault(call));
        judge(&stage, &options.id, &result, &context);
        stage.works_again(&expected, &context);
    }
}

#[test]
fn a_capture_in_which_any_call_fails_publishes_itself_or_nothing() {
    for scene in SCENES {
        let answers = fails_at(scene, |_| true);
        assert_eq!(answers.len(), 2, "{scene:?}: {answers:?}");
    }
}

#[test]
fn a_large_file_that_the_disk_has_no_room_for_is_not_half_a_snapshot() {
    let is_of_pack = |call: &Done| match call {
        Done::Write(path) => path.to_str().unwrap().contains("tmp_pack_"),
        _ => false,
    };
    let answers = fails_at(LARGE, is_of_pack);
    assert!(answers.contains("NoSpace"), "{answers:?}");
}

/// What came of captures in which one call failed.
fn fails_at(scene: Scene, is_meant: impl Fn(&Done) -> bool) -> BTreeSet<&'static str> {
    let mut answers = BTreeSet::new();
    let full = |call| Fault::FailAt(call, Errno::NOSPC.raw_os_error());
    at_each_call(scene, is_meant, full, |stage, id, result, context| {
        let mut expected = stage.earlier.clone();
        answers.insert(match result {
            // A cache that could not be written, or a sync that worked the second time.
            Ok(snapshot) => {
                assert_eq!(snapshot.id, *id, "{context}");
                expected.insert(id.clone());
                "published"
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{context}: {error}");
                "NoSpace"
            }
        });
        assert_eq!(stage.published(context), expected, "{context}");
        if result.is_err() {
            let left = walkdir::WalkDir::new(stage.workspace.store_path()).into_iter();
            let left = left.map(|entry| entry.unwrap().into_path());
            let staged = left.filter(|path| {
                let name = path.file_name().and_then(|name| name.to_str());
                name.is_some_and(|name| name.starts_with(durable::STAGED_PREFIX))
            });
            assert_eq!(
                staged.collect::<Vec<_>>(),
                Vec::<PathBuf>::new(),
                "{context}"
            );
        }
    });
    answers
}

#[test]
fn a_capture_on_a_disk_that_syncs_nothing_publishes_nothing() {
    for scene in SCENES {
        let mut refused = 0;
        let fault = |call| Fault::SyncsFailFrom(call, Errno::IO.raw_os_error());
        at_each_call(
            scene,
            |_| true,
            fault,
            |stage, id, result, context| {
                let mut expected = stage.earlier.clone();
                match result {
                    // No sync came after that call.
                    Ok(_) => drop(expected.insert(id.clone())),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Storage, "{context}: {error}");
                        refused += 1;
                    }
                }
                assert_eq!(stage.published(context), expected, "{context}");
            },
        );
        assert!(refused > 1, "{scene:?}");
    }
}

#[test]
fn a_capture_that_dies_at_any_call_is_published_whole_or_not_at_all() {
    for scene in SCENES {
        let mut endings = BTreeSet::new();
        let dies = Fault::StopBefore;
        at_each_call(
            scene,
            |_| true,
            dies,
            |stage, id, result, context| {
                let mut published = stage.published(context);
                let is_published = published.remove(id);
                assert!(is_published || result.is_err(), "{context}");
                assert_eq!(published, stage.earlier, "{context}");
                endings.insert(is_published);
            },
        );
        assert_eq!(endings.len(), 2, "the loop crossed the publication");
    }
}

/// What a power cut could take of what was done so far.
#[derive(Debug, Default)]
struct AtRisk {
    /// Files with bytes that were not synced.
    files: BTreeSet<PathBuf>,
    /// Directories with names that were not synced.
    directories: BTreeSet<PathBuf>,
    /// The name that makes the snapshot visible, once it is there.
    publication: Option<PathBuf>,
}

impl AtRisk {
    /// Follows a call, and panics where it comes too early.
    fn follow(&mut self, call: &Done) {
        let parent = |path: &Path| path.parent().unwrap().to_owned();
        match call {
            Done::Stage(_) | Done::Remove(_) => {}
            Done::Write(path) | Done::Link(path) => drop(self.files.insert(path.clone())),
            Done::MakeDirectory(path) => drop(self.directories.insert(parent(path))),
            Done::Sync(path) => drop(self.files.remove(path)),
            Done::SyncDirectory(path) => drop(self.directories.remove(path)),
            Done::SyncFileSystem(_) => {
                self.files.clear();
                self.directories.clear();
            }
            Done::Rename { from, to } if is_cache(to) => drop(self.files.remove(from)),
            Done::Rename { from, to } => {
                assert!(
                    !self.files.contains(from),
                    "the bytes of {to:?} are synced before its name"
                );
                assert_eq!(
                    self.publication, None,
                    "nothing but caches comes after the publication"
                );
                if is_publication(to) {
                    // The directories that lead to it are synced with it.
                    let unsynced = self.directories.iter().find(|d| !to.starts_with(d));
                    assert_eq!(unsynced, None, "every name is synced before {to:?}");
                    self.publication = Some(to.clone());
                }
                self.directories.insert(parent(to));
            }
        }
    }
}

/// The ref of a git snapshot, or the record of a hash snapshot.
fn is_publication(path: &Path) -> bool {
    let text = path.to_str().unwrap();
    text.contains("/git/refs/snapshots/") || text.contains("/hash/snapshots/")
}

#[test]
fn a_snapshot_is_named_once_all_of_it_is_synced_and_answered_once_the_name_is() {
    for scene in SCENES.into_iter().chain([LARGE]) {
        let ground = Ground::new(scene);
        let state = tempfile::tempdir_in(ground.repository.beside("")).unwrap();
        // From the very first directory on: whatever a snapshot lies in has to last as well.
        let state = state.path().join("several/levels/deep");
        for _ in 0..2 {
            let (id, seen) = trial::seen(|op| {
                let workspace = open(op, &ground.repository.path, &state);
                let backend = detect(&workspace, scene.strategy).unwrap().backend;
                let at = Timestamp::from_second(1_700_000_000).unwrap();
                let mut options =
                    SnapshotOptions::new(Label::MANUAL, at).retain_content(scene.retain_content);
                options.borrow = scene.borrow;
                backend.snapshot(op, &workspace, &options).unwrap().id
            });
            let mut at_risk = AtRisk::default();
            for call in &seen {
                at_risk.follow(call);
            }
            assert_eq!(at_risk.directories, BTreeSet::new(), "{scene:?}: {seen:#?}");
            let name = at_risk.publication.expect("it was published");
            assert!(fs::exists(name).unwrap(), "{id} is where it was seen to go");
            ground.repository.write("edited", "for the second one\n");
        }
    }
}

#[test]
fn what_a_user_has_comes_in_under_its_name_only_once_it_is_synced() {
    let ground = Ground::new(GIT);
    let stage = ground.stage();
    let (_, seen) = trial::seen(|op| stage.snapshot(op).unwrap());
    let links = seen.iter().filter(|call| matches!(call, Done::Link(_)));
    // The name that git, too, takes for an unfinished file wherever it lies: fsck calls any other
    // among the loose objects a bad one.
    let synced = seen.iter().filter(
        |call| matches!(call, Done::Sync(path) if path.to_str().unwrap().contains("/tmp_obj_")),
    );
    // Pack and index, and loose objects.
    let count = links.count();
    assert!(count > 2, "{seen:#?}");
    assert_eq!(synced.count(), count, "{seen:#?}");
}
