//! What only a host that uses the library can ask for: paths to include, and other size limits.

use jiff::Timestamp;
use std::time::Duration;

use stillframe_backends::{
    Detection, ErrorKind, Label, OmissionReason, Operation, RelPath, RepositoryRestore,
    RestoreGoal, RestoreOptions, Snapshot, SnapshotOptions, StateDir, Strategy, Workspace, detect,
};
use stillframe_tests::TestWorkspace;

struct Host {
    workspace: Workspace,
    backend: Detection,
}

impl Host {
    fn of(ws: &TestWorkspace) -> Self {
        let state = StateDir::open(ws.state()).unwrap();
        let workspace = Workspace::open(ws.root(), &state).unwrap();
        let backend = detect(&workspace, Strategy::Auto).unwrap();
        Self { workspace, backend }
    }

    fn snapshot(&self, change: impl FnOnce(&mut SnapshotOptions)) -> Snapshot {
        let mut options = options();
        change(&mut options);
        let locked = self
            .workspace
            .clone()
            .lock(&Operation::unbounded(), Duration::from_secs(5))
            .unwrap();
        self.backend
            .backend
            .snapshot(&Operation::unbounded(), &locked, &options)
            .unwrap()
    }

    fn restore(&self, snapshot: &Snapshot, change: impl FnOnce(&mut SnapshotOptions)) {
        let mut guard = options();
        change(&mut guard);
        let mut locked = self
            .workspace
            .clone()
            .lock(&Operation::unbounded(), Duration::from_secs(5))
            .unwrap();
        let goal = RestoreGoal::Snapshot {
            snapshot: snapshot.clone(),
            paths: Vec::new(),
        };
        self.backend
            .backend
            .restore(
                &Operation::unbounded(),
                &mut locked,
                &goal,
                &RestoreOptions::new(guard),
            )
            .unwrap();
    }
}

fn options() -> SnapshotOptions {
    SnapshotOptions::new(Label::MANUAL, Timestamp::UNIX_EPOCH)
}

fn path(text: &str) -> RelPath {
    RelPath::new(text).unwrap()
}

#[test]
fn an_ignored_file_that_the_host_includes_is_captured_and_restored() {
    let ws = TestWorkspace::repository();
    ws.write(".gitignore", "*.env\nsecret/\n");
    ws.write("a.env", "1\n");
    ws.write("b.env", "1\n");
    ws.write("secret/key", "1\n");
    let host = Host::of(&ws);
    let included = |o: &mut SnapshotOptions| o.include = vec![path("a.env"), path("secret/key")];
    let snapshot = host.snapshot(included);
    assert!(snapshot.omissions.covers(&path("a.env")).is_none());
    assert!(snapshot.omissions.at(&path("b.env")).is_some());
    for name in ["a.env", "b.env", "secret/key"] {
        ws.write(name, "2\n");
    }
    host.restore(&snapshot, included);
    assert_eq!(ws.text("a.env"), "1\n");
    assert_eq!(ws.text("secret/key"), "1\n");
    assert_eq!(ws.text("b.env"), "2\n");
}

#[test]
fn a_file_at_the_cap_is_captured_and_one_byte_over_it_is_not() {
    let ws = TestWorkspace::repository();
    ws.write("tracked", "x".repeat(100));
    ws.commit("second");
    ws.write("at", "x".repeat(10));
    ws.write("over", "x".repeat(11));
    ws.write("tracked", "y".repeat(100));
    let host = Host::of(&ws);
    let snapshot = host.snapshot(|o| o.max_untracked_file_bytes = 10);
    let omissions = snapshot.omissions();
    assert_eq!(omissions.len(), 1, "{omissions:?}");
    assert_eq!(omissions[0].path, path("over"));
    assert_eq!(omissions[0].reason, OmissionReason::TooLarge);
    assert_eq!(omissions[0].bytes, Some(11));
    let unlimited = host.snapshot(|o| o.max_untracked_file_bytes = 0);
    assert!(unlimited.omissions().is_empty(), "zero is no limit");
}

#[test]
fn what_the_snapshot_left_out_is_preserved_whatever_the_cap_is_today() {
    let ws = TestWorkspace::repository();
    let host = Host::of(&ws);
    ws.write("big", "x".repeat(100));
    let snapshot = host.snapshot(|o| o.max_untracked_file_bytes = 10);
    ws.write("big", "y".repeat(50));
    host.restore(&snapshot, |o| o.max_untracked_file_bytes = 0);
    assert_eq!(ws.text("big"), "y".repeat(50), "its coverage decides");
}

// Somebody else's commit after the after-snapshot
#[test]
fn a_branch_that_somebody_else_moved_is_head_moved_and_nothing_is_touched() {
    let ws = TestWorkspace::repository();
    let host = Host::of(&ws);
    let before = host.snapshot(|_| {});
    ws.write("README", "by the run\n");
    ws.commit("by the run");
    let after = host.snapshot(|_| {});
    ws.write("theirs", "x\n");
    ws.commit("by somebody else");
    let mut locked = host
        .workspace
        .clone()
        .lock(&Operation::unbounded(), Duration::from_secs(5))
        .unwrap();
    let goal = RestoreGoal::Snapshot {
        snapshot: before.clone(),
        paths: Vec::new(),
    };
    let rollback = RepositoryRestore::Rollback {
        before,
        after,
        run_id: "run_1".to_owned(),
    };
    let options = RestoreOptions::new(options()).repository(rollback);
    let error = ws.untouched(|| {
        let restored =
            host.backend
                .backend
                .restore(&Operation::unbounded(), &mut locked, &goal, &options);
        restored.unwrap_err()
    });
    assert_eq!(error.kind(), ErrorKind::HeadMoved, "{error}");
    assert!(!error.touched());
}

// HEAD itself was switched by somebody else
#[test]
fn a_head_that_somebody_else_switched_is_head_moved() {
    let ws = TestWorkspace::repository();
    let host = Host::of(&ws);
    let before = host.snapshot(|_| {});
    ws.write("README", "by the run\n");
    let after = host.snapshot(|_| {});
    ws.git(["checkout", "-q", "-b", "theirs"]);
    let mut locked = host
        .workspace
        .clone()
        .lock(&Operation::unbounded(), Duration::from_secs(5))
        .unwrap();
    let goal = RestoreGoal::Snapshot {
        snapshot: before.clone(),
        paths: Vec::new(),
    };
    let rollback = RepositoryRestore::Rollback {
        before,
        after,
        run_id: "run_1".to_owned(),
    };
    let options = RestoreOptions::new(options()).repository(rollback);
    let error = ws.untouched(|| {
        let restored =
            host.backend
                .backend
                .restore(&Operation::unbounded(), &mut locked, &goal, &options);
        restored.unwrap_err()
    });
    assert_eq!(error.kind(), ErrorKind::HeadMoved, "{error}");
}

#[test]
fn a_spent_budget_is_a_typed_failure_and_publishes_nothing() {
    let ws = TestWorkspace::repository();
    let host = Host::of(&ws);
    let locked = host
        .workspace
        .clone()
        .lock(&Operation::unbounded(), Duration::from_secs(5))
        .unwrap();
    let late = stillframe_backends::Interrupt::after(Duration::ZERO);
    let late = Operation::unbounded().cancelled_by(&late);
    let error = host
        .backend
        .backend
        .snapshot(&late, &locked, &options())
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    let interrupt = stillframe_backends::Interrupt::never();
    interrupt.cancel();
    let cancelled = Operation::unbounded().cancelled_by(&interrupt);
    let error = host
        .backend
        .backend
        .snapshot(&cancelled, &locked, &options())
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    assert!(
        host.backend
            .backend
            .list(&Operation::unbounded(), &host.workspace)
            .unwrap()
            .snapshots
            .is_empty()
    );
}

// `detect` answers with its reason
#[test]
fn detect_answers_with_the_backend_and_its_reason() {
    let git = Host::of(&TestWorkspace::repository());
    assert_eq!(git.backend.kind().as_str(), "git");
    assert!(!git.backend.reason.is_empty());
    let hash = Host::of(&TestWorkspace::plain());
    assert_eq!(hash.backend.kind().as_str(), "hash");
    assert!(!hash.backend.reason.is_empty());
    let sha256 = (stillframe_tests::shapes::named("sha256").make)();
    let reason = Host::of(&sha256).backend.reason;
    assert!(
        reason.contains("sha256"),
        "the reason names the format: {reason}"
    );
}

// The snapshot library alone keeps no artifact
#[test]
fn a_patch_over_the_cap_is_whole_in_the_sink_and_not_embedded() {
    let ws = TestWorkspace::repository();
    let host = Host::of(&ws);
    let from = host.snapshot(|_| {});
    ws.write("new", "some line\n".repeat(1000));
    let to = host.snapshot(|_| {});
    let mut sink = Vec::new();
    let options = stillframe_backends::DiffOptions::with_patch().max_patch_bytes(64);
    let diff = host
        .backend
        .backend
        .diff(
            &Operation::unbounded(),
            &host.workspace,
            &from,
            &to,
            &options,
            &mut sink,
        )
        .unwrap();
    assert!(diff.patch.is_none());
    assert!(diff.patch_truncated);
    assert!(diff.has_patch);
    assert!(diff.patch_ref.is_none());
    assert_eq!(diff.patch_bytes, Some(sink.len() as u64));
    assert!(sink.len() > 10_000, "the whole of it");
}

#[test]
fn a_cap_of_zero_is_invalid() {
    let ws = TestWorkspace::repository();
    let host = Host::of(&ws);
    let from = host.snapshot(|_| {});
    let options = stillframe_backends::DiffOptions::with_patch().max_patch_bytes(0);
    let error = host
        .backend
        .backend
        .diff(
            &Operation::unbounded(),
            &host.workspace,
            &from,
            &from,
            &options,
            &mut Vec::new(),
        )
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOptions);
}
