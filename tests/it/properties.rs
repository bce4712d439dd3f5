//! Capture, mutate, restore, over generated trees; through the library, so that there can be many.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use stillframe_backends::{
    Label, Operation, RelPath, RestoreGoal, RestoreOptions, SnapshotOptions, StateDir,
    Strategy as BackendStrategy, Workspace, detect,
};
use stillframe_tests::torture::world::{ORDINARY, RULES, RULES_AT, Step};
use stillframe_tests::{TestWorkspace, oracle, view};

fn step_with_rules() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => step(),
        1 => (0..RULES_AT.len(), 0..RULES.len()).prop_map(|(at, rule)| Step::Rules(at, rule)),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let path = 0..ORDINARY;
    prop_oneof![
        4 => (path.clone(), any::<u8>()).prop_map(|(p, c)| Step::Write(p, c % 5)),
        3 => path.clone().prop_map(Step::Remove),
        2 => (path.clone(), path.clone()).prop_map(|(p, t)| Step::Link(p, t)),
        1 => (path.clone(), any::<bool>()).prop_map(|(p, x)| Step::Mode(p, x)),
        1 => path.clone().prop_map(Step::Mkdir),
        1 => (path.clone(), path).prop_map(|(f, t)| Step::Rename(f, t)),
    ]
}

/// What was captured comes back, the guard leads back to what was there,
/// and a second restore has nothing to do.
fn comes_back(ws: &TestWorkspace, kind: BackendStrategy, before: &[Step], after: &[Step]) {
    for step in before {
        step.take(ws.root());
    }
    let state = StateDir::open(ws.state()).unwrap();
    let workspace = Workspace::open(ws.root(), &state).unwrap();
    let backend = detect(&workspace, kind).unwrap().backend;
    let mut locked = workspace
        .lock(&Operation::unbounded(), Duration::from_secs(5))
        .unwrap();
    let options =
        || SnapshotOptions::new(Label::MANUAL, Timestamp::UNIX_EPOCH).retain_content(true);
    let snapshot = backend
        .snapshot(&Operation::unbounded(), &locked, &options())
        .unwrap();
    let captured = view::worktree(ws.root());
    if let Some(tree) = &snapshot.tree {
        assert_eq!(*tree, oracle::raw_tree(ws), "the tree is that of git");
    }
    for step in after {
        step.take(ws.root());
    }
    let changed = view::worktree(ws.root());
    let mut restore = |snapshot: &stillframe_backends::Snapshot| {
        let goal = RestoreGoal::Snapshot {
            snapshot: snapshot.clone(),
            paths: Vec::new(),
        };
        backend
            .restore(
                &Operation::unbounded(),
                &mut locked,
                &goal,
                &RestoreOptions::new(options()),
            )
            .unwrap()
    };
    let outcome = restore(&snapshot);
    view::same(
        &captured,
        &view::worktree(ws.root()),
        "what was captured comes back",
    );
    let times = view::times(ws.root());
    assert!(
        restore(&snapshot).restored.is_empty(),
        "nothing is left to do"
    );
    assert_eq!(times, view::times(ws.root()), "and nothing is written");
    restore(&outcome.guard);
    view::same(&changed, &view::worktree(ws.root()), "the guard leads back");
}

/// Nested directories, and now and then a file to fill one.
fn directory_step() -> impl Strategy<Value = DirectoryStep> {
    let name = proptest::sample::select(vec!["a", "b", "a-b"]);
    let path = proptest::collection::vec(name, 1..5).prop_map(|names| names.join("/"));
    prop_oneof![
        4 => path.clone().prop_map(DirectoryStep::Make),
        3 => path.clone().prop_map(DirectoryStep::RemoveUpwards),
        1 => path.clone().prop_map(DirectoryStep::RemoveAll),
        1 => path.clone().prop_map(DirectoryStep::Fill),
        1 => (path, any::<bool>()).prop_map(|(p, open)| DirectoryStep::Mode(p, open)),
    ]
}

#[derive(Clone, Debug)]
enum DirectoryStep {
    /// `mkdir -p`
    Make(String),
    /// `rmdir -p`: the directory, and those above it while they are empty.
    RemoveUpwards(String),
    RemoveAll(String),
    Fill(String),
    Mode(String, bool),
}

impl DirectoryStep {
    /// Does it, as far as what is there lets it.
    fn take(&self, root: &Path) {
        match self {
            Self::Make(path) => {
                let _ = std::fs::create_dir_all(root.join(path));
            }
            Self::RemoveUpwards(path) => {
                let above = Path::new(path).ancestors().filter(|p| *p != Path::new(""));
                for path in above {
                    if std::fs::remove_dir(root.join(path)).is_err() {
                        break;
                    }
                }
            }
            Self::RemoveAll(path) => {
                let _ = std::fs::remove_dir_all(root.join(path));
            }
            Self::Fill(path) => {
                let file = root.join(path).join("file");
                let _ = std::fs::create_dir_all(root.join(path));
                let _ = std::fs::write(file, "x\n");
            }
            Self::Mode(path, open) => {
                use std::os::unix::fs::PermissionsExt as _;
                let mode = if *open { 0o755 } else { 0o700 };
                let bits = std::fs::Permissions::from_mode(mode);
                let _ = std::fs::set_permissions(root.join(path), bits);
            }
        }
    }
}

/// Restore, undo, redo, and undo once more: every directory that was there is there, and no other.
fn directories_come_back(
    ws: &TestWorkspace,
    kind: BackendStrategy,
    before: &[DirectoryStep],
    after: &[DirectoryStep],
) {
    for step in before {
        step.take(ws.root());
    }
    let state = StateDir::open(ws.state()).unwrap();
    let workspace = Workspace::open(ws.root(), &state).unwrap();
    let backend = detect(&workspace, kind).unwrap().backend;
    let mut locked = workspace
        .lock(&Operation::unbounded(), Duration::from_secs(5))
        .unwrap();
    let options =
        || SnapshotOptions::new(Label::MANUAL, Timestamp::UNIX_EPOCH).retain_content(true);
    let snapshot = backend
        .snapshot(&Operation::unbounded(), &locked, &options())
        .unwrap();
    let then = view::worktree(ws.root());
    for step in after {
        step.take(ws.root());
    }
    let now = view::worktree(ws.root());
    let mut restore = |goal: &RestoreGoal| {
        let outcome = backend
            .restore(
                &Operation::unbounded(),
                &mut locked,
                goal,
                &RestoreOptions::new(options()),
            )
            .unwrap();
        assert_eq!(outcome.skipped, [], "nobody else was at work");
        outcome
    };
    let mut last = restore(&RestoreGoal::Snapshot {
        snapshot,
        paths: Vec::new(),
    });
    view::same(&then, &view::worktree(ws.root()), "restored");
    for (expected, what) in [(&now, "undone"), (&then, "redone"), (&now, "undone again")] {
        // As an engine takes back what a restore did: by the paths it told.
        last = restore(&RestoreGoal::Undo {
            before: last.guard,
            after: last.result,
            paths: Some(last.restored),
        });
        view::same(expected, &view::worktree(ws.root()), what);
    }
}

#[test]
fn nested_empty_directories_come_and_go_as_they_were() {
    for (kind, make) in [
        (
            BackendStrategy::Git,
            TestWorkspace::repository as fn() -> TestWorkspace,
        ),
        (BackendStrategy::Hash, TestWorkspace::plain),
    ] {
        let steps = || proptest::collection::vec(directory_step(), 0..12);
        runner(40)
            .run(&(steps(), steps()), |(before, after)| {
                directories_come_back(&make(), kind, &before, &after);
                Ok(())
            })
            .unwrap();
    }
}

/// What a worktree holds at every path that is a file or a link.
fn contents(root: &Path) -> BTreeMap<Vec<u8>, (String, Vec<u8>)> {
    let mut contents = BTreeMap::new();
    let walk = walkdir::WalkDir::new(root).min_depth(1).into_iter();
    for entry in walk.filter_entry(|e| e.file_name() != ".git") {
        let entry = entry.unwrap();
        let rel = entry.path().strip_prefix(root).unwrap();
        let rel = rel.as_os_str().as_bytes().to_vec();
        if entry.file_type().is_symlink() {
            let target = std::fs::read_link(entry.path()).unwrap();
            let target = target.into_os_string().into_encoded_bytes();
            contents.insert(rel, ("120000".to_owned(), target));
        } else if entry.file_type().is_file() {
            use std::os::unix::fs::PermissionsExt as _;
            let bits = entry.metadata().unwrap().permissions().mode();
            let mode = if bits & 0o100 == 0 {
                "100644"
            } else {
                "100755"
            };
            let content = std::fs::read(entry.path()).unwrap();
            contents.insert(rel, (mode.to_owned(), content));
        }
    }
    contents
}

/// Whatever the rules are, then and today: what the target captured is there or named, what is
/// gone is in the guard, and what the target did not know to be absent is untouched.
fn nothing_is_lost(ws: &TestWorkspace, before: &[Step], after: &[Step]) {
    for step in before {
        step.take(ws.root());
    }
    let state = StateDir::open(ws.state()).unwrap();
    let workspace = Workspace::open(ws.root(), &state).unwrap();
    let backend = detect(&workspace, BackendStrategy::Git).unwrap().backend;
    let mut locked = workspace
        .lock(&Operation::unbounded(), Duration::from_secs(5))
        .unwrap();
    let options = || SnapshotOptions::new(Label::MANUAL, Timestamp::UNIX_EPOCH);
    let snapshot = backend
        .snapshot(&Operation::unbounded(), &locked, &options())
        .unwrap();
    let captured = oracle::stored_contents(ws, snapshot.tree.as_ref().unwrap());
    for step in after {
        step.take(ws.root());
    }
    let changed = contents(ws.root());
    let goal = RestoreGoal::Snapshot {
        snapshot: snapshot.clone(),
        paths: Vec::new(),
    };
    let outcome = backend
        .restore(
            &Operation::unbounded(),
            &mut locked,
            &goal,
            &RestoreOptions::new(options()),
        )
        .unwrap();
    let now = contents(ws.root());
    let guard = oracle::stored_contents(ws, outcome.guard.tree.as_ref().unwrap());
    let is_named = |path: &[u8]| {
        outcome.skipped.iter().any(|s| {
            let skipped = s.path.as_bytes();
            let below = |long: &[u8], short: &[u8]| {
                long.starts_with(short) && (long.len() == short.len() || long[short.len()] == b'/')
            };
            below(path, skipped) || below(skipped, path)
        })
    };
    for (path, entry) in &captured {
        assert!(
            now.get(path) == Some(entry) || is_named(path),
            "{}: what was captured is there or named: {:?}",
            path.escape_ascii(),
            outcome.skipped
        );
    }
    for (path, entry) in &changed {
        let name = path.escape_ascii();
        if now.get(path) == Some(entry) {
            continue;
        }
        assert_eq!(
            guard.get(path),
            Some(entry),
            "{name}: what is gone is in the guard"
        );
        let rel = RelPath::new(path.clone()).unwrap();
        let is_known = captured.contains_key(path) || snapshot.omissions.covers(&rel).is_none();
        assert!(is_known, "{name}: what the target did not see is untouched");
    }
}

#[test]
fn whatever_is_ignored_then_and_today_nothing_is_lost() {
    let steps = || proptest::collection::vec(step_with_rules(), 0..20);
    runner(40)
        .run(&(steps(), steps()), |(before, after)| {
            nothing_is_lost(&TestWorkspace::repository(), &before, &after);
            Ok(())
        })
        .unwrap();
}

/// A runner that makes the same cases in every run.
fn runner(cases: u32) -> TestRunner {
    let config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    let algorithm = proptest::test_runner::RngAlgorithm::ChaCha;
    let rng = proptest::test_runner::TestRng::deterministic_rng(algorithm);
    TestRunner::new_with_rng(config, rng)
}

fn check(kind: BackendStrategy, make: fn() -> TestWorkspace) {
    let steps = || proptest::collection::vec(step(), 0..25);
    runner(30)
        .run(&(steps(), steps()), |(before, after)| {
            comes_back(&make(), kind, &before, &after);
            Ok(())
        })
        .unwrap();
}

#[test]
fn generated_trees_in_a_repository_come_back() {
    check(BackendStrategy::Git, TestWorkspace::repository);
}

#[test]
fn generated_trees_in_a_plain_directory_come_back() {
    check(BackendStrategy::Hash, TestWorkspace::plain);
}
