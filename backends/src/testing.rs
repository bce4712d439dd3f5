//! What every backend promises: tests that the author of a backend runs over it.
//!
//! ```
//! use stillframe_backends::testing::TestBackend;
//! use stillframe_backends::{BackendKind, backend_of};
//!
//! // An author's own backend stands in place of `backend_of(…)`.
//! stillframe_backends::backend_contract!(
//!     promises,
//!     TestBackend::in_directory(|| backend_of(BackendKind::Hash))
//! );
//! ```

#![allow(missing_docs, reason = "a promise is named by what it says")]
#![allow(
    clippy::unwrap_used,
    reason = "only tests call this, and a panic is their failure"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "git makes the repository of a test"
)]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tempfile::TempDir;
use walkdir::WalkDir;

use crate::{
    Backend, Diff, DiffOptions, ErrorKind, Interrupt, Label, LockedWorkspace, OmissionReason,
    Operation, Recovery, RelPath, RestoreError, RestoreGoal, RestoreOptions, RestoreOutcome,
    Snapshot, SnapshotOptions, StateDir, StoreError, Workspace,
};

/// Declares a module of this name with one test for each promise, each over a workspace of its own,
/// which the expression makes. A backend that keeps only some of them names these behind it:
/// `backend_contract!(promises, TestBackend::in_directory(ours); a_snapshot_is_invisible …)`.
#[macro_export]
macro_rules! backend_contract {
    ($name:ident, $new:expr $(,)?) => {
        $crate::backend_contract! {
            $name, $new;
            restore_gives_back_every_path
            restore_gives_back_empty_directories_and_permission_bits
            restore_gives_back_every_name_of_a_hard_linked_file
            restore_of_a_path_leaves_the_others
            restore_of_a_path_that_nobody_knows_touches_nothing
            restore_can_be_undone_by_its_guard
            a_second_restore_writes_nothing
            a_plan_touches_nothing_and_is_refused_once_the_worktree_moved
            undo_keeps_what_was_edited_since
            restore_never_touches_what_was_left_out
            what_was_ignored_since_is_put_back_with_its_present_bytes_in_the_guard
            a_snapshot_is_invisible
            a_snapshot_is_listed_as_it_was_returned
            an_unchanged_tree_costs_nothing
            an_edit_of_the_same_size_is_seen
            an_id_names_one_snapshot_for_ever
            diff_names_what_was_added_modified_and_deleted
            diff_goes_in_both_directions
            diff_of_a_snapshot_with_itself_is_empty
            diff_names_what_one_side_left_out_for_its_size
            diff_tells_permission_bits_and_empty_directories
            diff_with_a_limit_of_zero_is_refused
            why_gives_the_reason_for_any_path
            a_capture_that_is_stopped_publishes_nothing
            a_forgotten_snapshot_is_gone_and_the_others_are_whole
            collecting_frees_what_nobody_needs
            a_snapshot_taken_by_one_instance_is_read_by_another
            recovery_with_nothing_to_do_does_nothing
            two_workspaces_know_nothing_of_each_other
            a_snapshot_of_another_workspace_cannot_be_opened
            of_two_who_want_the_lock_one_is_told_who_has_it
        }
    };
    ($name:ident, $new:expr; $($promise:ident)+) => {
        mod $name {
            use super::*;
            $(
                #[test]
                fn $promise() {
                    $crate::testing::$promise(&mut $new);
                }
            )*
        }
    };
}

/// How long a test waits for its own lock: a program that another test of its process is about to
/// start has it for a moment.
const LOCK_TIMEOUT: Duration = Duration::from_secs(60);

/// A workspace that a backend is at work in, with a few files.
pub struct TestBackend {
    directory: TempDir,
    workspace: Option<LockedWorkspace>,
    make: Box<dyn Fn() -> Arc<dyn Backend>>,
    backend: Arc<dyn Backend>,
}

impl TestBackend {
    /// What `make` makes, at work in a plain directory; it is asked to keep content. An instance
    /// may be made several times.
    pub fn in_directory(make: impl Fn() -> Arc<dyn Backend> + 'static) -> Self {
        Self::in_prepared(Box::new(make), |_, _| {})
    }

    /// The same in a git repository with a commit, which the program `git` makes.
    pub fn in_repository(make: impl Fn() -> Arc<dyn Backend> + 'static) -> Self {
        Self::in_prepared(Box::new(make), |root, home| {
            let author = ["-c", "user.name=A", "-c", "user.email=a@e"];
            let commit = [&author[..], &["commit", "-qm", "first"]].concat();
            for args in [&["init", "-q", "-b", "main"][..], &["add", "-A"], &commit] {
                let status = Command::new("git")
                    .args(args)
                    .current_dir(root)
                    .env("HOME", home)
                    .env("GIT_CONFIG_NOSYSTEM", "1")
                    .env("GIT_CONFIG_GLOBAL", "/dev/null")
                    .status();
                assert!(status.unwrap().success());
            }
        })
    }

    fn in_prepared(
        make: Box<dyn Fn() -> Arc<dyn Backend>>,
        prepare: impl FnOnce(&Path, &Path),
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("work");
        fs::create_dir(&root).unwrap();
        fs::write(root.join("kept"), "one\n").unwrap();
        fs::write(root.join("edited"), "two\n").unwrap();
        prepare(&root, directory.path());
        let state = StateDir::open(directory.path().join("state")).unwrap();
        let workspace = Workspace::open(&root, &state).unwrap();
        let workspace = Some(
            workspace
                .lock(&Operation::unbounded(), LOCK_TIMEOUT)
                .unwrap(),
        );
        Self {
            directory,
            workspace,
            backend: make(),
            make,
        }
    }

    fn workspace(&self) -> &LockedWorkspace {
        self.workspace.as_ref().unwrap()
    }

    fn workspace_mut(&mut self) -> &mut LockedWorkspace {
        self.workspace.as_mut().unwrap()
    }

    fn root(&self) -> PathBuf {
        self.workspace().disk_path().to_owned()
    }

    fn path(&self, path: impl AsRef<[u8]>) -> PathBuf {
        self.root().join(OsStr::from_bytes(path.as_ref()))
    }

    fn write(&self, path: impl AsRef<[u8]>, content: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap()
    }

    fn remove(&self, path: &str) {
        fs::remove_file(self.path(path)).unwrap();
    }

    fn options(&self, label: Label) -> SnapshotOptions {
        let mut options = SnapshotOptions::new(label, Timestamp::UNIX_EPOCH).retain_content(true);
        options.max_untracked_file_bytes = 1000;
        options
    }

    fn snapshot(&self) -> Snapshot {
        let options = self.options(Label::MANUAL);
        self.backend
            .snapshot(&Operation::unbounded(), self.workspace(), &options)
            .unwrap()
    }

    fn try_restore(
        &mut self,
        goal: &RestoreGoal,
        change: impl FnOnce(RestoreOptions) -> RestoreOptions,
    ) -> Result<RestoreOutcome, RestoreError> {
        let options = change(RestoreOptions::new(self.options(Label::GUARD)));
        let backend = self.backend.clone();
        backend.restore(
            &Operation::unbounded(),
            self.workspace_mut(),
            goal,
            &options,
        )
    }

    fn restore(&mut self, snapshot: &Snapshot) -> RestoreOutcome {
        self.try_restore(&all_of(snapshot), |options| options)
            .unwrap()
    }

    fn diff(&self, from: &Snapshot, to: &Snapshot) -> Diff {
        let options = DiffOptions::default();
        self.backend
            .diff(
                &Operation::unbounded(),
                self.workspace(),
                from,
                to,
                &options,
                &mut Vec::new(),
            )
            .unwrap()
    }

    fn assert_whole(&self, snapshot: &Snapshot) {
        let found = self
            .backend
            .verify(&Operation::unbounded(), self.workspace(), &[snapshot])
            .remove(0)
            .unwrap();
        assert!(found.is_restorable(), "{found:?}");
    }
}

fn all_of(snapshot: &Snapshot) -> RestoreGoal {
    RestoreGoal::Snapshot {
        snapshot: snapshot.clone(),
        paths: Vec::new(),
    }
}

fn path(text: &str) -> RelPath {
    RelPath::new(text).unwrap()
}

fn text(paths: &[RelPath]) -> Vec<String> {
    paths.iter().map(ToString::to_string).collect()
}

/// What lies at each path below `root` but its own `.git`: kind, permission bits, content or text.
fn state_of(root: &Path) -> BTreeMap<PathBuf, String> {
    let describe = |path: &Path, meta: &fs::Metadata| {
        let mode = meta.permissions().mode();
        let content = match meta.file_type() {
            kind if kind.is_file() => fs::read(path).unwrap(),
            kind if kind.is_symlink() => fs::read_link(path).unwrap().into_os_string().into_vec(),
            _ => Vec::new(),
        };
        format!("{mode:o} {}", content.escape_ascii())
    };
    let entries = entries_of(root).into_iter();
    entries
        .map(|(path, meta)| (path.clone(), describe(&path, &meta)))
        .collect()
}

/// When everything there was written last, in nanoseconds, and its inode; `root` included.
fn times_in(root: &Path) -> BTreeMap<PathBuf, (i64, i64, u64)> {
    let of = |meta: &fs::Metadata| (meta.mtime(), meta.mtime_nsec(), meta.ino());
    let entries = entries_of(root).into_iter();
    entries
        .chain([(root.to_owned(), root.metadata().unwrap())])
        .map(|(path, meta)| (path, of(&meta)))
        .collect()
}

fn entries_of(root: &Path) -> Vec<(PathBuf, fs::Metadata)> {
    let own = root.join(".git");
    let all = WalkDir::new(root).min_depth(1).into_iter();
    all.filter_entry(|entry| entry.path() != own)
        .map(|entry| {
            let entry = entry.unwrap();
            let meta = entry.metadata().unwrap();
            (entry.into_path(), meta)
        })
        .collect()
}

/// Asserts that nothing differs, and names what does.
#[track_caller]
fn assert_same(before: &BTreeMap<PathBuf, String>, after: &BTreeMap<PathBuf, String>, why: &str) {
    let lost: Vec<_> = before
        .iter()
        .filter(|(p, s)| after.get(*p) != Some(s))
        .collect();
    let new: Vec<_> = after
        .iter()
        .filter(|(p, s)| before.get(*p) != Some(s))
        .collect();
    assert!(
        lost.is_empty() && new.is_empty(),
        "{why}: {lost:?} became {new:?}"
    );
}

pub fn restore_gives_back_every_path(test: &mut TestBackend) {
    test.write("run.sh", "#!/bin/sh\n");
    fs::set_permissions(test.path("run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    symlink("kept", test.path("link")).unwrap();
    test.write(b"odd\xffname\n", "three\n");
    test.write("to-file/a", "x\n");
    test.write("to-directory", "x\n");
    let snapshot = test.snapshot();
    let before = state_of(&test.root());

    test.write("kept", "changed\n");
    test.remove("edited");
    test.remove("link");
    test.write("link/is/a/directory", "x\n");
    fs::remove_dir_all(test.path("to-file")).unwrap();
    test.write("to-file", "x\n");
    test.remove("to-directory");
    test.write("to-directory/a", "x\n");
    fs::set_permissions(test.path("run.sh"), fs::Permissions::from_mode(0o644)).unwrap();
    test.write("new", "x\n");
    let outcome = test.restore(&snapshot);

    assert_same(
        &before,
        &state_of(&test.root()),
        "every byte, mode and link",
    );
    assert!(outcome.skipped.is_empty(), "{:?}", outcome.skipped);
    assert!(outcome.result.same_content(&snapshot));
    assert_eq!(
        test.diff(&outcome.guard, &outcome.result).files_changed,
        test.diff(&outcome.guard, &snapshot).files_changed,
    );
}

pub fn restore_gives_back_empty_directories_and_permission_bits(test: &mut TestBackend) {
    fs::create_dir_all(test.path("empty/inner")).unwrap();
    for (name, mode) in [("kept", 0o600), ("edited", 0o444), ("empty", 0o700)] {
        fs::set_permissions(test.path(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let snapshot = test.snapshot();
    let before = state_of(&test.root());
    fs::remove_dir_all(test.path("empty")).unwrap();
    for name in ["kept", "edited"] {
        test.remove(name);
        test.write(name, "again\n");
    }
    test.restore(&snapshot);
    assert_same(
        &before,
        &state_of(&test.root()),
        "bits and empty directories",
    );
}

pub fn restore_gives_back_every_name_of_a_hard_linked_file(test: &mut TestBackend) {
    let link = |test: &TestBackend, from: &str, to: &str| {
        fs::hard_link(test.path(from), test.path(to)).unwrap();
    };
    test.write("a", "1\n");
    link(test, "a", "b");
    test.write("closed", "1\n");
    link(test, "closed", "closed-too");
    test.write("apart", "1\n");
    symlink("a", test.path("text")).unwrap();
    link(test, "text", "text-too");
    let snapshot = test.snapshot();
    let before = state_of(&test.root());

    // In place, so that every name changes, and with names that came since.
    test.write("a", "2\n");
    link(test, "a", "a-new");
    test.write("apart", "2\n");
    link(test, "apart", "apart-new");
    fs::set_permissions(test.path("closed"), fs::Permissions::from_mode(0o600)).unwrap();
    link(test, "text", "text-new");
    test.remove("text");
    symlink("b", test.path("text")).unwrap();
    let outside = test.directory.path().join("outside");
    fs::hard_link(test.path("a"), &outside).unwrap();
    let messed = state_of(&test.root());

    let outcome = test.restore(&snapshot);
    assert!(outcome.skipped.is_empty(), "{:?}", outcome.skipped);
    assert_same(&before, &state_of(&test.root()), "every name");
    assert_eq!(
        fs::read_to_string(&outside).unwrap(),
        "2\n",
        "a name outside keeps its bytes"
    );

    let back = test.restore(&outcome.guard);
    assert!(back.skipped.is_empty(), "{:?}", back.skipped);
    assert_same(&messed, &state_of(&test.root()), "and back");

    let goal = RestoreGoal::Undo {
        before: outcome.guard.clone(),
        after: outcome.result.clone(),
        paths: None,
    };
    test.restore(&snapshot);
    let undone = test.try_restore(&goal, |options| options).unwrap();
    assert!(undone.skipped.is_empty(), "{:?}", undone.skipped);
    assert_same(&messed, &state_of(&test.root()), "by an undo as well");
}

pub fn restore_of_a_path_leaves_the_others(test: &mut TestBackend) {
    test.write("d/a", "a\n");
    test.write("d/b", "b\n");
    let snapshot = test.snapshot();
    test.write("d/a", "changed\n");
    test.remove("d/b");
    test.write("d/new", "new\n");
    test.write("kept", "changed\n");
    let goal = RestoreGoal::Snapshot {
        snapshot,
        paths: vec![path("d")],
    };
    let outcome = test.try_restore(&goal, |options| options).unwrap();
    assert_eq!(text(&outcome.restored), ["d/a", "d/b", "d/new"]);
    assert_eq!(
        (test.read("d/a"), test.read("d/b")),
        ("a\n".to_owned(), "b\n".to_owned())
    );
    assert!(
        !test.path("d/new").exists(),
        "the snapshot knows that it was not there"
    );
    assert_eq!(test.read("kept"), "changed\n");
}

pub fn restore_of_a_path_that_nobody_knows_touches_nothing(test: &mut TestBackend) {
    let snapshot = test.snapshot();
    test.write("kept", "changed\n");
    let before = state_of(&test.root());
    let goal = RestoreGoal::Snapshot {
        snapshot,
        paths: vec![path("kep*")],
    };
    let error = test.try_restore(&goal, |options| options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(!error.touched());
    assert_same(&before, &state_of(&test.root()), "a path is no pattern");
}

pub fn restore_can_be_undone_by_its_guard(test: &mut TestBackend) {
    let snapshot = test.snapshot();
    test.write("kept", "changed\n");
    test.write("new/file", "new\n");
    test.remove("edited");
    let before = state_of(&test.root());
    let guard = test.restore(&snapshot).guard;
    assert_eq!(guard.label, Label::GUARD);
    assert_eq!(test.read("kept"), "one\n");
    test.restore(&guard);
    assert_same(
        &before,
        &state_of(&test.root()),
        "what the restore replaced",
    );
}

pub fn a_second_restore_writes_nothing(test: &mut TestBackend) {
    let snapshot = test.snapshot();
    test.write("kept", "changed\n");
    test.restore(&snapshot);
    let times = times_in(&test.root());
    let again = test.restore(&snapshot);
    assert!(again.restored.is_empty(), "{:?}", again.restored);
    assert_eq!(times_in(&test.root()), times, "not even a time");
}

pub fn a_plan_touches_nothing_and_is_refused_once_the_worktree_moved(test: &mut TestBackend) {
    let snapshot = test.snapshot();
    test.write("kept", "changed\n");
    let before = times_in(&test.root());
    let goal = all_of(&snapshot);
    let options = RestoreOptions::new(test.options(Label::GUARD));
    let plan = |test: &TestBackend| {
        test.backend
            .plan(&Operation::unbounded(), test.workspace(), &goal, &options)
            .unwrap()
    };
    let first = plan(test);
    assert_eq!(first.writes.len(), 1);
    assert_eq!(plan(test).id, first.id, "nothing has moved");
    assert_eq!(times_in(&test.root()), before);
    assert_eq!(
        test.backend
            .list(&Operation::unbounded(), test.workspace())
            .unwrap()
            .snapshots
            .len(),
        1,
        "nothing was published"
    );

    test.write("edited", "changed too\n");
    let error = test
        .try_restore(&goal, |options| options.expected_plan(first.id.clone()))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert_eq!(test.read("kept"), "changed\n");
    let now = plan(test);
    test.try_restore(&goal, |options| options.expected_plan(now.id))
        .unwrap();
    assert_eq!(test.read("kept"), "one\n");
}

pub fn undo_keeps_what_was_edited_since(test: &mut TestBackend) {
    let before = test.snapshot();
    test.write("kept", "run\n");
    test.write("edited", "run\n");
    test.write("new", "run\n");
    let after = test.snapshot();
    test.write("edited", "user\n");
    test.write("later", "user\n");
    let goal = RestoreGoal::Undo {
        before,
        after,
        paths: None,
    };
    let outcome = test.try_restore(&goal, |options| options).unwrap();
    assert_eq!(text(&outcome.restored), ["kept", "new"]);
    let kept: Vec<_> = outcome.skipped.iter().map(|s| s.path.to_string()).collect();
    assert_eq!(kept, ["edited"]);
    assert_eq!(test.read("kept"), "one\n");
    assert_eq!(
        (test.read("edited"), test.read("later")),
        ("user\n".into(), "user\n".into())
    );
}

pub fn restore_never_touches_what_was_left_out(test: &mut TestBackend) {
    test.write("large", &"x".repeat(1001));
    let snapshot = test.snapshot();
    let omission = snapshot.omissions.at(&path("large")).unwrap();
    assert_eq!(omission.reason, OmissionReason::TooLarge);
    assert_eq!(omission.bytes, Some(1001));
    test.write("large", &"y".repeat(1002));
    test.write("other-large", &"z".repeat(1002));
    let times = times_in(&test.root());
    let outcome = test.restore(&snapshot);
    assert_eq!(times_in(&test.root()), times);
    assert!(outcome.restored.is_empty(), "{:?}", outcome.restored);
    test.remove("large");
    test.restore(&snapshot);
    assert!(!test.path("large").exists(), "nobody has its bytes");
}

pub fn what_was_ignored_since_is_put_back_with_its_present_bytes_in_the_guard(
    test: &mut TestBackend,
) {
    test.write("notes", "old\n");
    let snapshot = test.snapshot();
    test.write("notes", "edited\n");
    test.write(".gitignore", "notes\n");
    let mut guard = test.options(Label::GUARD);
    guard.ignore.globs = vec!["notes".to_owned()];
    let options = RestoreOptions::new(guard);
    let backend = test.backend.clone();
    let outcome = backend
        .restore(
            &Operation::unbounded(),
            test.workspace_mut(),
            &all_of(&snapshot),
            &options,
        )
        .unwrap();
    assert_eq!(test.read("notes"), "old\n");
    test.restore(&outcome.guard);
    assert_eq!(test.read("notes"), "edited\n", "nothing was lost");
}

pub fn a_snapshot_is_invisible(test: &mut TestBackend) {
    test.write("untracked", "x\n");
    let before = (state_of(&test.root()), times_in(&test.root()));
    test.snapshot();
    let after = (state_of(&test.root()), times_in(&test.root()));
    assert_eq!(before, after);
}

pub fn a_snapshot_is_listed_as_it_was_returned(test: &mut TestBackend) {
    let label = Label::new("before the \"big\" change\t\u{1f642}");
    let options = test.options(label.clone());
    let first = test
        .backend
        .snapshot(&Operation::unbounded(), test.workspace(), &options)
        .unwrap();
    let mut options = test.options(Label::BEFORE);
    options.captured_at = Timestamp::from_second(1).unwrap();
    let second = test
        .backend
        .snapshot(&Operation::unbounded(), test.workspace(), &options)
        .unwrap();
    assert_eq!(first.label, label);
    assert_eq!(first.id.as_str().len(), 37);
    assert_eq!(
        test.backend
            .list(&Operation::unbounded(), test.workspace())
            .unwrap()
            .snapshots,
        [first, second],
        "oldest first"
    );
}

pub fn an_unchanged_tree_costs_nothing(test: &mut TestBackend) {
    let first = test.snapshot();
    let again = test.snapshot();
    assert!(again.same_content(&first));
    assert_ne!(again.id, first.id);
    assert_eq!(
        (again.metadata.files_hashed, again.metadata.bytes_read),
        (0, 0)
    );
    assert_eq!(again.metadata.files, 2);
}

pub fn an_edit_of_the_same_size_is_seen(test: &mut TestBackend) {
    let first = test.snapshot();
    test.write("kept", "ONE\n");
    let second = test.snapshot();
    assert_eq!(text(&test.diff(&first, &second).modified), ["kept"]);
}

pub fn an_id_names_one_snapshot_for_ever(test: &mut TestBackend) {
    let options = test.options(Label::MANUAL);
    test.backend
        .snapshot(&Operation::unbounded(), test.workspace(), &options)
        .unwrap();
    test.write("kept", "changed\n");
    let error = test
        .backend
        .snapshot(&Operation::unbounded(), test.workspace(), &options)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOptions, "{error}");
}

pub fn diff_names_what_was_added_modified_and_deleted(test: &mut TestBackend) {
    test.write("z", "z\n");
    test.write("mode", "m\n");
    test.write("kind", "k\n");
    let from = test.snapshot();
    test.remove("z");
    test.write("kept", "changed\n");
    fs::set_permissions(test.path("mode"), fs::Permissions::from_mode(0o755)).unwrap();
    test.remove("kind");
    symlink("k", test.path("kind")).unwrap();
    test.write("a/new", "new\n");
    test.write(b"a\xff", "new\n");
    let diff = test.diff(&from, &test.snapshot());
    assert_eq!(text(&diff.added), ["a/new", "a\\xff"]);
    assert_eq!(text(&diff.modified), ["kept", "kind", "mode"]);
    assert_eq!(text(&diff.deleted), ["z"]);
    assert_eq!(
        text(&diff.changed_paths),
        ["a/new", "a\\xff", "kept", "kind", "mode", "z"]
    );
    assert_eq!(diff.files_changed, 6);
    assert!(diff.changed_paths.is_sorted());
}

pub fn diff_goes_in_both_directions(test: &mut TestBackend) {
    let from = test.snapshot();
    test.write("new", "new\n");
    test.remove("edited");
    let to = test.snapshot();
    let (there, back) = (test.diff(&from, &to), test.diff(&to, &from));
    assert_eq!(there.added, back.deleted);
    assert_eq!(there.deleted, back.added);
    assert_eq!(
        (there.insertions, there.deletions),
        (back.deletions, back.insertions)
    );
    assert_eq!(
        (there.from_ref, there.to_ref),
        (from.reference, to.reference)
    );
}

pub fn diff_of_a_snapshot_with_itself_is_empty(test: &mut TestBackend) {
    let snapshot = test.snapshot();
    let mut patch = Vec::new();
    let options = DiffOptions::with_patch();
    let diff = test
        .backend
        .diff(
            &Operation::unbounded(),
            test.workspace(),
            &snapshot,
            &snapshot,
            &options,
            &mut patch,
        )
        .unwrap();
    assert_eq!(
        (diff.files_changed, diff.has_patch, patch.len()),
        (0, false, 0)
    );
}

pub fn diff_names_what_one_side_left_out_for_its_size(test: &mut TestBackend) {
    test.write("growing", "small\n");
    test.write("shrinking", &"x".repeat(2000));
    let from = test.snapshot();
    test.write("growing", &"x".repeat(2000));
    test.write("shrinking", "small\n");
    let to = test.snapshot();
    for (from, to) in [(&from, &to), (&to, &from)] {
        let diff = test.diff(from, to);
        let names: Vec<String> = diff.modified.iter().map(ToString::to_string).collect();
        assert_eq!(names, ["growing", "shrinking"]);
        assert_eq!(diff.files_changed, 2);
        assert_eq!((diff.insertions, diff.deletions), (0, 0));
        let unseen = diff.approximated.iter();
        let unseen: Vec<_> = unseen.map(|file| (&file.path, file.left_out)).collect();
        let expected: Vec<_> = diff.modified.iter().map(|path| (path, true)).collect();
        assert_eq!(unseen, expected, "and why nothing is told of them");
    }
}

pub fn diff_tells_permission_bits_and_empty_directories(test: &mut TestBackend) {
    let set = |test: &TestBackend, path: &str, mode| {
        fs::set_permissions(test.path(path), fs::Permissions::from_mode(mode)).unwrap();
    };
    for path in ["d/a", "d/b", "d/c", "emptied/x"] {
        test.write(path, "x\n");
        set(test, path, 0o644);
    }
    for (path, mode) in [("kept", 0o644), ("edited", 0o644), ("d", 0o755)] {
        set(test, path, mode);
    }
    fs::create_dir_all(test.path("going/inner")).unwrap();
    let from = test.snapshot();
    // One path, the usual bits of most files, the executable bit alone, and both.
    for (path, mode) in [("d", 0o700), ("d/a", 0o600), ("d/b", 0o755), ("d/c", 0o700)] {
        set(test, path, mode);
    }
    fs::remove_dir_all(test.path("going")).unwrap();
    fs::create_dir_all(test.path("coming/inner")).unwrap();
    test.remove("emptied/x");
    let to = test.snapshot();

    for (from, to, is_forth) in [(&from, &to, true), (&to, &from, false)] {
        let diff = test.diff(from, to);
        let order = |a: u32, b: u32| if is_forth { (a, b) } else { (b, a) };
        let bits = diff.permissions_changed.iter();
        let bits: Vec<_> = bits.map(|c| (c.path.to_string(), (c.from, c.to))).collect();
        let expected = [
            ("d", 0o755, 0o700),
            ("d/a", 0o644, 0o600),
            ("d/c", 0o644, 0o700),
        ];
        let expected = expected.map(|(path, a, b)| (path.to_owned(), order(a, b)));
        assert_eq!(bits, expected, "the executable bit alone is git's to tell");
        let mut directories = (&diff.directories_added, &diff.directories_deleted);
        if !is_forth {
            directories = (directories.1, directories.0);
        }
        assert_eq!(text(directories.0), ["coming/inner"]);
        assert_eq!(text(directories.1), ["going/inner"]);
        assert_eq!(
            text(&diff.modified),
            ["d/b", "d/c"],
            "git's notion of a change"
        );
        assert!(!diff.is_empty());
    }
    let same = test.diff(&to, &to);
    assert!(same.is_empty(), "{same:?}");

    // Where most files have other bits, every path is looked at.
    for path in ["kept", "edited", "d/a", "d/b", "d/c"] {
        set(test, path, 0o640);
    }
    let most = test.snapshot();
    let changed = test.diff(&to, &most).permissions_changed;
    let changed: Vec<String> = changed.iter().map(|c| c.path.to_string()).collect();
    assert_eq!(changed, ["d/a", "d/b", "d/c", "edited", "kept"]);
}

pub fn diff_with_a_limit_of_zero_is_refused(test: &mut TestBackend) {
    let snapshot = test.snapshot();
    let options = DiffOptions::default().max_patch_bytes(0);
    let error = test
        .backend
        .diff(
            &Operation::unbounded(),
            test.workspace(),
            &snapshot,
            &snapshot,
            &options,
            &mut Vec::new(),
        )
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOptions, "{error}");
}

pub fn why_gives_the_reason_for_any_path(test: &mut TestBackend) {
    test.write("large", &"x".repeat(1001));
    test.write("made/a", "x\n");
    let mut options = test.options(Label::MANUAL);
    options.ignore.paths = vec!["made".to_owned()];
    let snapshot = test
        .backend
        .snapshot(&Operation::unbounded(), test.workspace(), &options)
        .unwrap();
    for (name, captured, reason) in [
        ("kept", true, None),
        ("large", false, Some("too_large")),
        ("made/a", false, Some("excluded")),
        ("nothing", false, Some("absent")),
    ] {
        let now = test
            .backend
            .why(
                &Operation::unbounded(),
                test.workspace(),
                &path(name),
                &options,
            )
            .unwrap();
        let then = test
            .backend
            .open(&Operation::unbounded(), test.workspace(), &snapshot)
            .and_then(|stored| stored.why(&Operation::unbounded(), &path(name)))
            .unwrap();
        for why in [now, then] {
            assert_eq!(why.captured, captured, "{name}: {why:?}");
            assert!(
                reason.is_none_or(|reason| reason == why.reason),
                "{name}: {why:?}"
            );
            if name == "made/a" {
                assert!(
                    why.rule.as_ref().is_some_and(|r| r.contains("made")),
                    "{why:?}"
                );
            }
        }
    }
    assert_eq!(
        test.backend
            .list(&Operation::unbounded(), test.workspace())
            .unwrap()
            .snapshots
            .len(),
        1,
        "asking publishes nothing"
    );
}

pub fn a_capture_that_is_stopped_publishes_nothing(test: &mut TestBackend) {
    let options = test.options(Label::MANUAL);
    let late = Operation::unbounded().cancelled_by(&Interrupt::after(Duration::ZERO));
    let error = test
        .backend
        .snapshot(&late, test.workspace(), &options)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    let interrupt = Interrupt::never();
    interrupt.cancel();
    let cancelled = Operation::unbounded().cancelled_by(&interrupt);
    let error = test
        .backend
        .snapshot(&cancelled, test.workspace(), &options)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
    assert!(
        test.backend
            .list(&Operation::unbounded(), test.workspace())
            .unwrap()
            .snapshots
            .is_empty()
    );
    test.snapshot();
}

pub fn a_forgotten_snapshot_is_gone_and_the_others_are_whole(test: &mut TestBackend) {
    let first = test.snapshot();
    test.write("kept", "changed\n");
    let second = test.snapshot();
    let backend = test.backend.clone();
    for _ in 0..2 {
        backend
            .forget(
                &Operation::unbounded(),
                test.workspace_mut(),
                std::slice::from_ref(&first.id),
                &[],
            )
            .unwrap();
    }
    backend
        .collect(&Operation::unbounded(), test.workspace_mut())
        .unwrap();
    let listed = backend
        .list(&Operation::unbounded(), test.workspace())
        .unwrap()
        .snapshots;
    assert_eq!(listed, std::slice::from_ref(&second));
    test.assert_whole(&second);
    let error = test
        .try_restore(&all_of(&first), |options| options)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(!error.touched());
    test.write("kept", "again\n");
    test.restore(&second);
    assert_eq!(test.read("kept"), "changed\n");
}

pub fn collecting_frees_what_nobody_needs(test: &mut TestBackend) {
    let keep = test.snapshot();
    let noise: String = (0..900_u32)
        .map(|n| char::from(33 + (n.wrapping_mul(2_654_435_761) >> 13) as u8 % 90))
        .collect();
    test.write("noise", &noise);
    let forget = test.snapshot();
    test.remove("noise");
    let backend = test.backend.clone();
    backend
        .collect(&Operation::unbounded(), test.workspace_mut())
        .unwrap();
    let before = backend.store_bytes(test.workspace()).unwrap();
    backend
        .forget(
            &Operation::unbounded(),
            test.workspace_mut(),
            std::slice::from_ref(&forget.id),
            &[],
        )
        .unwrap();
    assert!(
        backend
            .collect(&Operation::unbounded(), test.workspace_mut())
            .unwrap()
            > 0,
        "bytes were freed"
    );
    let after = backend.store_bytes(test.workspace()).unwrap();
    assert!(after < before, "{after} bytes of {before}");
    test.assert_whole(&keep);
    assert!(test.snapshot().same_content(&keep), "and captures go on");
}

pub fn a_snapshot_taken_by_one_instance_is_read_by_another(test: &mut TestBackend) {
    let snapshot = test.snapshot();
    test.write("kept", "changed\n");
    let root = test.root();
    test.workspace = None;
    let state = StateDir::open(test.directory.path().join("state")).unwrap();
    let workspace = Workspace::open(root, &state).unwrap();
    test.workspace = Some(
        workspace
            .lock(&Operation::unbounded(), LOCK_TIMEOUT)
            .unwrap(),
    );
    test.backend = (test.make)();
    test.restore(&snapshot);
    assert_eq!(test.read("kept"), "one\n");
}

pub fn recovery_with_nothing_to_do_does_nothing(test: &mut TestBackend) {
    let before = times_in(&test.root());
    let backend = test.backend.clone();
    for _ in 0..2 {
        let recovery = backend
            .recover(&Operation::unbounded(), test.workspace_mut())
            .unwrap();
        assert_eq!(recovery, Recovery::default());
    }
    let snapshot = test.snapshot();
    test.restore(&snapshot);
    assert_eq!(
        backend
            .recover(&Operation::unbounded(), test.workspace_mut())
            .unwrap(),
        Recovery::default()
    );
    assert_eq!(times_in(&test.root()), before);
}

pub fn two_workspaces_know_nothing_of_each_other(test: &mut TestBackend) {
    let other = test.directory.path().join("other");
    fs::create_dir(&other).unwrap();
    let snapshot = test.snapshot();
    let state = test.workspace().state().clone();
    let mut other = Workspace::open(other, &state)
        .unwrap()
        .lock(&Operation::unbounded(), LOCK_TIMEOUT)
        .unwrap();
    assert!(
        test.backend
            .list(&Operation::unbounded(), &other)
            .unwrap()
            .snapshots
            .is_empty()
    );
    let options = RestoreOptions::new(test.options(Label::GUARD));
    let error = test
        .backend
        .restore(
            &Operation::unbounded(),
            &mut other,
            &all_of(&snapshot),
            &options,
        )
        .unwrap_err();
    assert!(!error.touched(), "{error}");
    assert_eq!(state_of(other.disk_path()).len(), 0);
}

pub fn a_snapshot_of_another_workspace_cannot_be_opened(test: &mut TestBackend) {
    let other = test.directory.path().join("other");
    fs::create_dir(&other).unwrap();
    let snapshot = test.snapshot();
    let other = Workspace::open(other, test.workspace().state()).unwrap();
    let is_unknown = |workspace: &Workspace| {
        let opened = test
            .backend
            .open(&Operation::unbounded(), workspace, &snapshot);
        matches!(opened, Err(StoreError::UnknownSnapshot { id }) if id == snapshot.id)
    };
    assert!(!is_unknown(test.workspace()));
    assert!(is_unknown(&other), "there is no store of it");
    let other = other.lock(&Operation::unbounded(), LOCK_TIMEOUT).unwrap();
    // It has a store from then on, if the backend takes a directory like this one.
    let _ = test.backend.snapshot(
        &Operation::unbounded(),
        &other,
        &test.options(Label::MANUAL),
    );
    assert!(is_unknown(&other));
}

pub fn of_two_who_want_the_lock_one_is_told_who_has_it(test: &mut TestBackend) {
    let again = || {
        Workspace::open(Path::new(&test.root()), test.workspace().state())
            .unwrap()
            .lock(&Operation::unbounded(), Duration::ZERO)
    };
    let error = again().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    let own = format!("process {}", std::process::id());
    assert!(error.to_string().contains(&own), "{error}");
}
