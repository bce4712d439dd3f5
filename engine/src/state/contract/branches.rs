//! The promises about tasks, checkpoints, follow-ups, notices, allowed findings and quarantine.

use serde_json::json;

use super::*;
use crate::id::{EngineId, QuarantineId, WorkTaskId};
use crate::records::allowed_finding::AllowedFinding;
use crate::records::checkpoint::{CheckpointKind, CheckpointRow, CheckpointStatus};
use crate::records::follow_up::FollowUpRow;
use crate::records::notice::{NoticeKind, NoticeRow, NoticeStatus};
use crate::records::quarantine::{QuarantineKind, QuarantineRow, QuarantineStatus};
use crate::records::work_task::{FailureClass, WorkTaskRow, WorkTaskStatus};
use crate::state::branch_change::BranchChange;
use stillframe_remote::failure_kind::FailureKind;

const REMOTE: &str = "https://example.com/web.git";

fn task(name: &str, branch: &str) -> WorkTaskRow {
    WorkTaskRow::new(name, None, REMOTE, branch, at(2))
}

fn write(change: BranchChange) -> Change {
    Change::Branch(Box::new(change))
}

fn add_task(row: &WorkTaskRow) -> Change {
    write(BranchChange::AddTask(row.clone()))
}

fn move_task(row: &WorkTaskRow) -> Change {
    write(BranchChange::MoveTask(row.clone()))
}

/// The state with a task on which nothing has worked.
fn with_task(state: &impl TestState) -> (Box<dyn StateStore>, WorkTaskRow) {
    let mut store = state.open();
    let row = task("42", "stillframe/task/42");
    store.commit(&[add_task(&row)]).unwrap();
    (store, row)
}

/// The task as it is kept.
fn kept(store: &dyn StateStore, id: &WorkTaskId) -> WorkTaskRow {
    store.work_task(id).unwrap().unwrap()
}

fn follow_up(task: &WorkTaskRow, commit: &str) -> FollowUpRow {
    FollowUpRow {
        task_id: task.id.clone(),
        flow: "implement".to_owned(),
        branch: "odd\n branch".to_owned(),
        context: json!({ "asked": ["which?"] }),
        waiting_reason: "recoverable_blocked".to_owned(),
        last_checkpoint: commit.to_owned(),
        updated_at: at(6),
    }
}

fn put_follow_up(row: &FollowUpRow) -> Change {
    write(BranchChange::PutFollowUp(row.clone()))
}

fn claim(task: &WorkTaskRow, run_id: &str, input_id: u64) -> Change {
    write(BranchChange::ClaimFollowUp {
        task_id: task.id.clone(),
        run_id: run_id.parse().unwrap(),
        input_id,
        at: at(8),
    })
}

/// Makes the task wait.
fn wait(store: &mut dyn StateStore, row: &WorkTaskRow) -> WorkTaskRow {
    let waiting = WorkTaskRow {
        status: WorkTaskStatus::AwaitingFollowup,
        active_run: None,
        ..row.clone()
    };
    store
        .commit(&[move_task(&waiting), put_follow_up(&follow_up(row, "c1"))])
        .unwrap();
    kept(store, &row.id)
}

fn checkpoint(task: &WorkTaskRow, repository: &str, seq: u64) -> CheckpointRow {
    CheckpointRow {
        task_id: task.id.clone(),
        repository: repository.to_owned(),
        seq,
        kind: CheckpointKind::Periodic,
        made_by: Some("a".parse().unwrap()),
        commit: format!("{seq}{repository}"),
        status: CheckpointStatus::Made,
        remote: Some(REMOTE.to_owned()),
        branch: None,
        advanced_to: None,
        failure: None,
        error: None,
        created_at: at(4),
        updated_at: at(4),
    }
}

fn put_checkpoint(from: Option<CheckpointStatus>, row: &CheckpointRow) -> Change {
    let row = row.clone();
    write(BranchChange::PutCheckpoint { from, row })
}

fn notice(task: &WorkTaskRow, token: &str) -> NoticeRow {
    NoticeRow {
        token: token.repeat(64),
        kind: NoticeKind::CheckpointReady,
        task_id: task.id.clone(),
        commit: Some("c1".to_owned()),
        text: "odd\n text".to_owned(),
        status: NoticeStatus::Pending,
        attempts: 0,
        next_at: None,
        owner: None,
        error: None,
        created_at: at(6),
        updated_at: at(6),
        session_id: Some("s".parse().unwrap()),
        run_id: Some("r".parse().unwrap()),
    }
}

/// Where somebody has seen a notice: its status, tries, and who sends it.
type SeenNotice<'s> = (NoticeStatus, u32, Option<&'s EngineId>);

fn add_notice(row: &NoticeRow) -> Change {
    write(BranchChange::AddNotice(row.clone()))
}

fn move_notice((status, attempts, owner): SeenNotice<'_>, row: &NoticeRow) -> Change {
    let (from, row) = ((status, attempts, owner.cloned()), row.clone());
    write(BranchChange::MoveNotice { from, row })
}

pub(crate) fn a_task_is_named_once_and_looked_up_from_then_on(state: &impl TestState) {
    let (mut store, row) = with_task(state);
    let found = |task: &str| store.work_task_of(REMOTE, None, task).unwrap();
    assert_eq!(found("42"), Some(row.clone()));
    assert_eq!(found("43"), None);
    let again = store.commit(&[add_task(&task("42", "another"))]);
    assert_eq!(again.unwrap_err().kind(), ErrorKind::Conflict, "it has one");
    let taken = store
        .commit(&[add_task(&task("43", "stillframe/task/42"))])
        .unwrap_err();
    assert_eq!(taken.kind(), ErrorKind::InvalidOptions);
    let said = taken.to_string();
    assert!(
        said.contains("stillframe/task/42") && said.contains("task 42"),
        "{said}"
    );
    let nested = WorkTaskRow {
        namespace: Some("p/q".to_owned()),
        ..task("44", "stillframe/task/p/q/44")
    };
    // Nothing was saved with the one layout, and so there is none yet.
    let unsaved = WorkTaskRow {
        remote: "/srv/new.git".to_owned(),
        ..nested.clone()
    };
    let first = WorkTaskRow {
        id: WorkTaskId::random(),
        remote: "/srv/new.git".to_owned(),
        ..row.clone()
    };
    store.commit(&[add_task(&first)]).unwrap();
    store.commit(&[add_task(&unsaved)]).unwrap();
    let nested = WorkTaskRow {
        id: WorkTaskId::random(),
        ..nested
    };
    let made = put_checkpoint(None, &checkpoint(&row, "r", 1));
    store.commit(&[made]).unwrap();
    let other = store.commit(&[add_task(&nested)]).unwrap_err();
    assert_eq!(other.kind(), ErrorKind::InvalidOptions);
    assert!(other.to_string().contains("p/q/44"), "{other}");

    // Another remote is another matter: it may have the other layout, and a task of the same name.
    let elsewhere = |row: &WorkTaskRow| WorkTaskRow {
        id: WorkTaskId::random(),
        remote: "/srv/web.git".to_owned(),
        ..row.clone()
    };
    let nested = elsewhere(&nested);
    store.commit(&[add_task(&nested)]).unwrap();
    let made = put_checkpoint(None, &checkpoint(&nested, "r", 1));
    store.commit(&[made]).unwrap();
    let flat = store.commit(&[add_task(&elsewhere(&row))]).unwrap_err();
    assert_eq!(flat.kind(), ErrorKind::InvalidOptions);
    assert_eq!(
        store
            .work_task_of("/srv/web.git", Some("p/q"), "44")
            .unwrap(),
        Some(nested.clone())
    );
    assert_eq!(
        store.work_task_of("/srv/web.git", None, "44").unwrap(),
        None
    );
    let renamed = WorkTaskRow {
        branch: "renamed".to_owned(),
        ..row.clone()
    };
    let refused = store.commit(&[move_task(&renamed)]).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict, "a name never changes");
    assert_eq!(
        state.open().work_tasks().unwrap(),
        [row, first, unsaved, nested]
    );
    assert_eq!(store.problems().unwrap(), [] as [String; 0]);
}

pub(crate) fn a_task_moves_only_from_the_version_that_was_seen(state: &impl TestState) {
    let (mut store, row) = with_task(state);
    let moved = WorkTaskRow {
        status: WorkTaskStatus::Running,
        error: Some("odd\n error".to_owned()),
        last_failure_class: Some(FailureClass::TestsFailed),
        retry_count: 2,
        next_retry_at: Some(at(9)),
        active_run: Some("a".parse().unwrap()),
        failures_in_a_row: 3,
        last_failure_at: Some(at(7)),
        is_flagged: true,
        input_cursor: 8,
        updated_at: at(7),
        ..row.clone()
    };
    state.open().commit(&[move_task(&moved)]).unwrap();
    let lost = store.commit(&[move_task(&moved)]).unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::Conflict);
    assert!(lost.to_string().contains("running in version 2"), "{lost}");
    let expected = WorkTaskRow {
        version: 2,
        ..moved
    };
    assert_eq!(kept(&*store, &row.id), expected);

    let back = WorkTaskRow {
        input_cursor: 3,
        ..expected.clone()
    };
    store.commit(&[move_task(&back)]).unwrap();
    let cursor = kept(&*store, &row.id).input_cursor;
    assert_eq!(cursor, 8, "a cursor never goes back");
    let unknown = store.commit(&[move_task(&task("1", "b"))]).unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::NotFound);
    assert_eq!(store.problems().unwrap(), [] as [String; 0]);
}

pub(crate) fn of_two_who_claim_a_waiting_task_one_wins(state: &impl TestState) {
    let (mut store, session) = started(state, "s");
    let row = task("42", "stillframe/task/42");
    store.commit(&[add_task(&row)]).unwrap();
    // What a claim is written with leaves no trace where the claim is lost.
    let claimed = |store: &mut dyn StateStore, task: &WorkTaskRow, run: &str, input: u64| {
        let traced = Change::Append(note(&session, 8, json!({})));
        let before = sequences(store, &session).len();
        let outcome = store.commit(&[traced, claim(task, run, input)]);
        let traces = sequences(store, &session).len() - before;
        assert_eq!(traces, usize::from(outcome.is_ok()));
        outcome.map(|_| ()).map_err(|e| e.kind())
    };
    let conflict = Err(ErrorKind::Conflict);
    assert_eq!(
        claimed(&mut *store, &row, "a", 7),
        conflict,
        "it does not wait"
    );
    let waiting = wait(&mut *store, &row);
    let mut other = state.open();
    assert_eq!(claimed(&mut *other, &row, "a", 7), Ok(()));
    assert_eq!(claimed(&mut *store, &row, "b", 8), conflict);
    let expected = WorkTaskRow {
        status: WorkTaskStatus::Running,
        version: waiting.version + 1,
        active_run: Some("a".parse().unwrap()),
        input_cursor: 7,
        updated_at: at(8),
        ..waiting
    };
    assert_eq!(kept(&*store, &row.id), expected);
    let stays = store.follow_up(&row.id).unwrap();
    assert_eq!(stays, Some(follow_up(&row, "c1")), "the run needs it");

    let waiting = wait(&mut *store, &expected);
    for input in [0, 6, 7] {
        let old = claimed(&mut *store, &row, "b", input);
        assert_eq!(old, conflict, "input {input} was consumed");
    }
    let taken = WorkTaskRow {
        active_run: Some("c".parse().unwrap()),
        ..waiting.clone()
    };
    store.commit(&[move_task(&taken)]).unwrap();
    assert_eq!(claimed(&mut *store, &row, "b", 8), conflict, "it has a run");
    let free = kept(&*store, &row.id);
    wait(&mut *store, &free);
    let dropped = write(BranchChange::DropFollowUp(row.id.clone()));
    store.commit(&[dropped.clone(), dropped]).unwrap();
    let before = kept(&*store, &row.id);
    assert_eq!(
        claimed(&mut *store, &row, "b", 8),
        conflict,
        "it has no row"
    );
    assert_eq!(kept(&*store, &row.id), before);
    let unknown = claimed(&mut *store, &task("1", "b"), "b", 8);
    assert_eq!(unknown, Err(ErrorKind::NotFound));
    assert_eq!(store.problems().unwrap(), [] as [String; 0]);
}

pub(crate) fn a_second_block_takes_the_place_of_the_first(state: &impl TestState) {
    let (mut store, row) = with_task(state);
    let other = task("43", "stillframe/task/43");
    store
        .commit(&[add_task(&other), put_follow_up(&follow_up(&other, "o1"))])
        .unwrap();
    assert_eq!(store.follow_up(&row.id).unwrap(), None);
    let first = follow_up(&row, "c1");
    store.commit(&[put_follow_up(&first)]).unwrap();
    assert_eq!(store.follow_up(&row.id).unwrap(), Some(first));
    let second = FollowUpRow {
        branch: "beside".to_owned(),
        context: json!(null),
        waiting_reason: "needs a key".to_owned(),
        updated_at: at(9),
        ..follow_up(&row, "c2")
    };
    store.commit(&[put_follow_up(&second)]).unwrap();
    assert_eq!(store.follow_up(&row.id).unwrap(), Some(second));
    let failed = write(BranchChange::DropFollowUp(row.id.clone()));
    store.commit(&[failed]).unwrap();
    assert_eq!(store.follow_up(&row.id).unwrap(), None);
    let others = state.open().follow_up(&other.id).unwrap();
    assert_eq!(others, Some(follow_up(&other, "o1")));
    let of_nobody = follow_up(&task("1", "b"), "c1");
    assert!(store.commit(&[put_follow_up(&of_nobody)]).is_err());
    assert_eq!(store.problems().unwrap(), [] as [String; 0]);
}

pub(crate) fn a_checkpoint_is_made_of_what_it_was_and_moves_once(state: &impl TestState) {
    let (mut store, row) = with_task(state);
    let rows = [
        checkpoint(&row, "web", 1),
        checkpoint(&row, "api", 1),
        checkpoint(&row, "web", 2),
    ];
    for row in &rows {
        store.commit(&[put_checkpoint(None, row)]).unwrap();
        let twice = store.commit(&[put_checkpoint(None, row)]).unwrap_err();
        assert_eq!(twice.kind(), ErrorKind::Conflict);
    }
    assert_eq!(store.checkpoints(&row.id).unwrap(), rows);
    let made = Some(CheckpointStatus::Made);
    // One whose push failed is not forgotten: it is sent later, though nothing has changed.
    let blip = CheckpointRow {
        failure: Some(FailureKind::NetworkBlip),
        updated_at: at(5),
        ..rows[0].clone()
    };
    store.commit(&[put_checkpoint(made, &blip)]).unwrap();
    assert_eq!(store.unproven_checkpoints().unwrap()[0], blip);
    let sent = CheckpointRow {
        status: CheckpointStatus::Sent,
        ..blip
    };
    store.commit(&[put_checkpoint(made, &sent)]).unwrap();
    let lost = state.open().commit(&[put_checkpoint(made, &sent)]);
    assert_eq!(lost.unwrap_err().kind(), ErrorKind::Conflict);
    let seen = Some(CheckpointStatus::Sent);
    let of_others = |change: fn(&mut CheckpointRow)| {
        let mut other = sent.clone();
        change(&mut other);
        put_checkpoint(seen, &other)
    };
    for other in [
        of_others(|row| row.commit = "5".repeat(40)),
        of_others(|row| row.made_by = None),
        of_others(|row| row.kind = CheckpointKind::Wip),
    ] {
        let refused = store.commit(&[other]).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Conflict, "it never changes");
    }
    let proven = CheckpointRow {
        status: CheckpointStatus::Proven,
        branch: Some("stillframe/task/42--diverged-a".to_owned()),
        advanced_to: Some("6".repeat(40)),
        updated_at: at(6),
        ..sent
    };
    let refused = CheckpointRow {
        status: CheckpointStatus::Refused,
        failure: Some(FailureKind::SecretFound),
        error: Some("odd\n error".to_owned()),
        ..rows[1].clone()
    };
    store
        .commit(&[
            put_checkpoint(seen, &proven),
            put_checkpoint(made, &refused),
        ])
        .unwrap();
    let unproven = [refused.clone(), rows[2].clone()];
    assert_eq!(store.unproven_checkpoints().unwrap(), unproven);
    let discarded = CheckpointRow {
        status: CheckpointStatus::Discarded,
        ..refused
    };
    let was_refused = Some(CheckpointStatus::Refused);
    let discard = put_checkpoint(was_refused, &discarded);
    store.commit(&[discard]).unwrap();
    assert_eq!(store.unproven_checkpoints().unwrap(), [rows[2].clone()]);
    let all = [proven, discarded, rows[2].clone()];
    assert_eq!(state.open().checkpoints(&row.id).unwrap(), all);
    assert_eq!(store.checkpoints(&task("1", "b").id).unwrap(), []);
    assert_eq!(store.problems().unwrap(), [] as [String; 0]);
}

pub(crate) fn what_left_the_machine_outlasts_its_run(state: &impl TestState) {
    let (mut store, session) = started(state, "s");
    let row = WorkTaskRow {
        active_run: Some("a".parse().unwrap()),
        ..task("42", "stillframe/task/42")
    };
    let begun = step("a", RunStatus::Pending, RunStatus::Running, 3);
    let checkpoint = checkpoint(&row, "web", 1);
    store
        .commit(&[run(&session, "a"), begun, ended("a", RunEnding::default())])
        .unwrap();
    store
        .commit(&[
            add_task(&row),
            put_checkpoint(None, &checkpoint),
            put_follow_up(&follow_up(&row, "c1")),
            add_notice(&notice(&row, "0")),
        ])
        .unwrap();
    let forget = Change::ForgetRuns(vec!["a".parse().unwrap()]);
    store.commit(&[forget]).unwrap();
    assert_eq!(store.run(&"a".parse().unwrap()).unwrap(), None);
    assert_eq!(kept(&*store, &row.id), row);
    assert_eq!(store.checkpoints(&row.id).unwrap(), [checkpoint]);
    assert!(store.follow_up(&row.id).unwrap().is_some());
    assert_eq!(store.notices(false).unwrap().len(), 1);
    assert_eq!(store.problems().unwrap(), [] as [String; 0]);
}

pub(crate) fn a_notice_is_written_with_what_it_tells_of_and_claimed_once(state: &impl TestState) {
    let (mut store, row) = with_task(state);
    let (first, second) = (notice(&row, "0"), notice(&row, "1"));
    // With a transition that fails, it is not there.
    let stale = WorkTaskRow {
        version: 9,
        ..row.clone()
    };
    let refused = store.commit(&[add_notice(&first), move_task(&stale)]);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(store.notices(false).unwrap(), []);

    store
        .commit(&[add_notice(&first), add_notice(&second)])
        .unwrap();
    let again = NoticeRow {
        text: "something else".to_owned(),
        ..first.clone()
    };
    store.commit(&[add_notice(&again)]).unwrap();
    assert_eq!(
        store.notices(true).unwrap(),
        [first.clone(), second.clone()]
    );

    let claimed = NoticeRow {
        status: NoticeStatus::InProgress,
        attempts: 1,
        owner: Some(EngineId::random()),
        updated_at: at(7),
        ..first.clone()
    };
    let pending = (NoticeStatus::Pending, 0, None);
    state
        .open()
        .commit(&[move_notice(pending, &claimed)])
        .unwrap();
    let lost = store.commit(&[move_notice(pending, &claimed)]).unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::Conflict);
    assert!(
        lost.to_string().contains("in_progress after 1 tries"),
        "{lost}"
    );

    // Of two who take it over from an engine that is dead, one wins too.
    let taken_over = NoticeRow {
        owner: Some(EngineId::random()),
        ..claimed.clone()
    };
    let in_progress = (NoticeStatus::InProgress, 1, claimed.owner.as_ref());
    store
        .commit(&[move_notice(in_progress, &taken_over)])
        .unwrap();
    let lost = store.commit(&[move_notice(in_progress, &taken_over)]);
    assert_eq!(lost.unwrap_err().kind(), ErrorKind::Conflict);
    let later = NoticeRow {
        status: NoticeStatus::Pending,
        next_at: Some(at(90)),
        owner: None,
        error: Some("odd\n error".to_owned()),
        ..taken_over.clone()
    };
    let seen = (NoticeStatus::InProgress, 1, taken_over.owner.as_ref());
    store.commit(&[move_notice(seen, &later)]).unwrap();
    assert_eq!(
        store.notices(true).unwrap(),
        [later.clone(), second.clone()]
    );
    let sent = NoticeRow {
        status: NoticeStatus::Succeeded,
        ..later
    };
    store
        .commit(&[move_notice((NoticeStatus::Pending, 1, None), &sent)])
        .unwrap();
    assert_eq!(store.notices(true).unwrap(), std::slice::from_ref(&second));
    assert_eq!(state.open().notices(false).unwrap(), [sent, second]);
    let unknown = store
        .commit(&[move_notice(pending, &notice(&row, "2"))])
        .unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::NotFound);
    assert_eq!(store.problems().unwrap(), [] as [String; 0]);
}

pub(crate) fn a_finding_is_allowed_in_its_repository_by_all_that_it_is(state: &impl TestState) {
    let mut store = state.open();
    let finding = |repository: &str, path: &[u8], second: i64| AllowedFinding {
        repository: repository.to_owned(),
        rule: "jwt".to_owned(),
        path: RelPath::new(path).unwrap(),
        fingerprint: "00".to_owned(),
        allowed_at: at(second),
    };
    let rows = [
        finding("web", b"odd\xff\n name", 5),
        finding("web", b"b", 6),
        finding("api", b"b", 7),
    ];
    let allow = |row: &AllowedFinding| write(BranchChange::AllowFinding(row.clone()));
    store.commit(&rows.each_ref().map(allow)).unwrap();
    store.commit(&[allow(&finding("web", b"b", 9))]).unwrap();
    let store = state.open();
    assert_eq!(store.allowed_findings("web").unwrap(), rows[..2]);
    assert_eq!(store.allowed_findings("api").unwrap(), rows[2..]);
    assert_eq!(store.allowed_findings("other").unwrap(), []);
    let mut store = state.open();
    let forbid = write(BranchChange::ForbidFinding(finding("web", b"b", 0)));
    store.commit(std::slice::from_ref(&forbid)).unwrap();
    store.commit(&[forbid]).unwrap();
    assert_eq!(store.allowed_findings("web").unwrap(), rows[..1]);
    assert_eq!(store.allowed_findings("api").unwrap(), rows[2..]);
    assert_eq!(store.problems().unwrap(), [] as [String; 0]);
}

pub(crate) fn what_is_in_quarantine_is_let_go_of_once(state: &impl TestState) {
    let (mut store, task) = with_task(state);
    let row = |kind: QuarantineKind, task_id: Option<WorkTaskId>| QuarantineRow {
        id: QuarantineId::random(),
        kind,
        origin: PathBuf::from("/odd\n name"),
        place: PathBuf::from("/state/quarantine/1"),
        reason: "odd\n reason".to_owned(),
        task_id,
        status: QuarantineStatus::Kept,
        created_at: at(5),
        ended_at: None,
    };
    let rows = [
        row(QuarantineKind::Worktree, Some(task.id)),
        row(QuarantineKind::Store, None),
    ];
    for row in &rows {
        let add = write(BranchChange::AddQuarantine(row.clone()));
        store.commit(std::slice::from_ref(&add)).unwrap();
        assert_eq!(
            store.commit(&[add]).unwrap_err().kind(),
            ErrorKind::Conflict
        );
    }
    let end = |id: &QuarantineId, to: QuarantineStatus| {
        let (id, at) = (id.clone(), at(9));
        write(BranchChange::EndQuarantine { id, to, at })
    };
    let restored = end(&rows[0].id, QuarantineStatus::Restored);
    state.open().commit(&[restored]).unwrap();
    let again = store.commit(&[end(&rows[0].id, QuarantineStatus::Discarded)]);
    assert_eq!(again.unwrap_err().kind(), ErrorKind::Conflict);
    let unknown = end(&QuarantineId::random(), QuarantineStatus::Discarded);
    let unknown = store.commit(&[unknown]).unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::NotFound);
    let first = QuarantineRow {
        status: QuarantineStatus::Restored,
        ended_at: Some(at(9)),
        ..rows[0].clone()
    };
    let all = state.open().quarantine().unwrap();
    assert_eq!(all, [first, rows[1].clone()]);
    assert_eq!(store.problems().unwrap(), [] as [String; 0]);
}
