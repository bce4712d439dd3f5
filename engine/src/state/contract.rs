//! The promises of every state store: one test for each, for any implementation.

use serde_json::{Value, json};
use std::path::PathBuf;
use stillframe_backends::Snapshot;
use stillframe_backends::{ErrorKind, Label, RelPath, SnapshotId};

use super::*;
use crate::events::event::{EventSource, EventType};
use crate::failure::Failure;
use crate::id::{ArtifactId, EngineId, OperationId};
use crate::records::block::Block;
use crate::records::came_for::CameFor;
use crate::records::lease::{Lease, Moment};
use crate::records::operation::OperationKind;
use crate::records::queue::{Priority, QueueState};
use crate::records::restore_document::RestorePurpose;
use crate::records::run::EndsAs;
use crate::records::run_row::{NewRun, RunEnding, RunWorkspace};
use crate::records::session::SessionStatus;
use crate::records::step::{StepEnding, StepEvent, StepStatus};
use crate::state::change::{NewEvent, Reported};
use crate::state::new_session;

/// Declares a module with one test for each promise, all over states that `$new` makes.
macro_rules! state_store_contract {
    ($name:ident, $new:expr) => {
        $crate::state::contract::state_store_contract! {
            @promises $name, $new;
            a_session_is_made_once_and_moves_by_compare_and_swap
            sessions_are_listed_newest_first
            sequences_have_no_gap_and_are_counted_in_each_session
            an_event_that_is_there_already_is_answered_as_it_is_kept
            an_event_of_a_host_is_written_once_and_kept_with_all_that_it_says
            events_are_found_by_every_part_of_a_query
            events_since_a_time_are_found_whatever_the_clock_did
            a_batch_with_one_bad_change_leaves_nothing
            commits_together_are_as_one_after_the_other
            a_run_begins_only_in_an_active_session_and_only_once
            of_two_transitions_from_one_state_exactly_one_succeeds
            what_a_run_ended_with_comes_back
            a_run_that_persists_ends_as_it_came_for
            what_a_blocked_run_came_for_is_kept_until_its_work_is_saved
            runs_are_listed_newest_first_and_those_under_way_oldest_first
            the_beginning_of_an_id_is_literal
            snapshots_are_listed_in_the_order_of_writing
            snapshots_are_found_by_every_part_of_a_filter
            a_pin_stays_until_it_is_taken_back_whatever_becomes_of_its_snapshot
            snapshots_that_were_found_late_take_the_place_that_is_theirs
            a_look_tells_whether_a_snapshot_is_among_the_newest
            a_snapshot_gets_an_owner_later_and_keeps_it
            an_operation_comes_back_as_it_was_written
            the_latest_operation_is_that_of_its_workspace_or_run
            a_restore_is_known_until_its_record_is_written
            of_a_rollback_that_recovery_finished_the_run_gets_to_know
            a_key_that_was_deleted_can_be_registered_again
            patches_are_taken_out_of_the_records_of_their_runs_alone
            whoever_lost_a_run_writes_nothing_for_it
            of_two_claimers_of_one_lease_one_wins
            what_a_host_says_of_a_run_replaces_what_it_said
            phases_and_steps_come_back_as_they_were_written
            a_step_moves_only_from_where_it_was_seen
            runs_are_found_by_status_and_time
            a_question_is_asked_once_in_its_place_and_the_first_answer_counts
            effects_are_a_queue_in_order_and_each_is_settled_once
            a_commit_keeps_its_first_owner_and_gets_the_rest
            a_task_is_one_row_that_another_attempt_takes_over
            a_value_of_a_run_changes_with_its_transition_or_not_at_all
            a_call_of_a_tool_is_written_with_its_event_and_ends_with_its_run
            tokens_are_added_up_once_for_each_event
            reviews_come_back_as_they_were_recorded
            an_agent_ends_once_and_its_tokens_are_those_of_its_events
            a_task_is_named_once_and_looked_up_from_then_on
            a_task_moves_only_from_the_version_that_was_seen
            of_two_who_claim_a_waiting_task_one_wins
            a_second_block_takes_the_place_of_the_first
            a_checkpoint_is_made_of_what_it_was_and_moves_once
            what_left_the_machine_outlasts_its_run
            a_notice_is_written_with_what_it_tells_of_and_claimed_once
            a_finding_is_allowed_in_its_repository_by_all_that_it_is
            what_is_in_quarantine_is_let_go_of_once
            where_a_run_works_is_on_record_before_it_does_and_moves_once
            what_is_decided_about_what_a_run_hands_in_is_on_record
            how_a_run_worked_is_known_while_it_is_reviewed
            nothing_is_found_where_there_is_nothing
        }
    };
    (@promises $name:ident, $new:expr; $($promise:ident)*) => {
        mod $name {
            $(
                #[test]
                fn $promise() {
                    $crate::state::contract::$promise(&$new);
                }
            )*
        }
    };
}

pub(crate) use state_store_contract;

mod branches;
mod durable;
mod isolations;

pub(crate) use branches::*;
pub(crate) use durable::*;
pub(crate) use isolations::*;

/// A state under test.
pub(crate) trait TestState {
    /// Opens it, or opens it once more, as another process would.
    fn open(&self) -> Box<dyn StateStore>;
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// The state with a session that is active and has two events.
fn started(state: &impl TestState, id: &str) -> (Box<dyn StateStore>, SessionId) {
    let mut store = state.open();
    let id: SessionId = id.parse().unwrap();
    store.commit(&new_session::creation(&id, at(1))).unwrap();
    (store, id)
}

fn note(session: &SessionId, second: i64, data: Value) -> NewEvent {
    NewEvent::new(EventType::new("noted"), session, None, at(second), data)
}

fn lease(epoch: u64) -> Lease {
    Lease {
        owner: EngineId::random(),
        epoch,
        expires: Moment {
            boot_id: "boot".to_owned(),
            nanoseconds: 7,
        },
        heartbeat_at: at(2),
        cancel_requested_at: None,
    }
}

fn new_run(session: &SessionId, id: &str) -> NewRun {
    NewRun {
        id: id.parse().unwrap(),
        session_id: session.clone(),
        input: "work".to_owned(),
        options: json!({ "a": 1 }),
        workspace: None,
        isolation: None,
        at: at(2),
        lease: lease(1),
    }
}

fn run(session: &SessionId, id: &str) -> Change {
    Change::CreateRun(Box::new(new_run(session, id)))
}

fn run_in(session: &SessionId, id: &str, workspace_id: &str) -> Change {
    Change::CreateRun(Box::new(NewRun {
        workspace: Some(RunWorkspace {
            workspace_id: workspace_id.to_owned(),
            path: PathBuf::from("/odd\n name"),
            before: SnapshotId::random(),
            after: SnapshotId::random(),
        }),
        ..new_run(session, id)
    }))
}

fn step(id: &str, from: RunStatus, to: RunStatus, second: i64) -> Change {
    Change::MoveRun {
        id: id.parse().unwrap(),
        from,
        to,
        at: at(second),
        ending: None,
        came_for: None,
    }
}

fn ended(id: &str, ending: RunEnding) -> Change {
    Change::MoveRun {
        id: id.parse().unwrap(),
        from: RunStatus::Running,
        to: RunStatus::Failed,
        at: at(9),
        ending: Some(Box::new(ending)),
        came_for: None,
    }
}

fn move_session(row: &SessionRow, to: SessionStatus) -> Change {
    Change::MoveSession {
        id: row.id.clone(),
        from: row.status,
        version: row.version,
        to,
        at: at(3),
    }
}

fn snapshot(id: &str, captured_at: &str) -> Snapshot {
    let document = json!({
        "id": id, "backend": "git", "path": "/w", "ref": "c0ffee", "tree": "7ree",
        "label": "before", "captured_at": captured_at,
        "metadata": {
            "head_ref": null, "branch": "main", "dirty": true, "includes_untracked": true,
            "files": 3, "files_hashed": 1, "bytes_read": 2048, "duration_ms": 12,
        },
        "omissions": [{ "path": { "base64": "/w==" }, "reason": "too_large", "bytes": 7 }],
    });
    serde_json::from_value(document).unwrap()
}

fn snapshot_row(id: &str, workspace_id: &str, owner: Option<&SessionId>) -> SnapshotRow {
    SnapshotRow {
        workspace_id: workspace_id.to_owned(),
        session_id: owner.cloned(),
        run_id: None,
        snapshot: snapshot(id, "2026-02-03T04:05:06.789Z"),
    }
}

fn add(row: &SnapshotRow) -> Change {
    Change::AddSnapshot(Box::new(row.clone()))
}

fn operation(session: &SessionId, workspace_id: &str, run_id: Option<&str>) -> OperationRow {
    OperationRow {
        id: OperationId::random(),
        workspace_id: workspace_id.to_owned(),
        session_id: session.clone(),
        run_id: run_id.map(|id| id.parse().unwrap()),
        kind: OperationKind::Run,
        before: SnapshotId::random(),
        after: SnapshotId::random(),
        paths: None,
        repository: false,
        at: at(7),
    }
}

fn restore(session: &SessionId, workspace_id: &str, run_id: Option<&str>) -> RestoreRow {
    RestoreRow {
        guard: SnapshotId::random(),
        workspace_id: workspace_id.to_owned(),
        session_id: session.clone(),
        run_id: run_id.map(|id| id.parse().unwrap()),
        target: SnapshotId::random(),
        purpose: RestorePurpose::Rollback,
        repository: true,
        at: at(7),
        outcome: None,
    }
}

fn begin(row: &RestoreRow) -> Change {
    Change::BeginRestore(Box::new(row.clone()))
}

fn artifact(session: &SessionId, key: &str, bytes: u64) -> ArtifactRecord {
    ArtifactRecord {
        id: ArtifactId::random(),
        session_id: session.clone(),
        run_id: None,
        key: key.to_owned(),
        content_type: "text/plain".to_owned(),
        byte_size: bytes,
        checksum: "00".to_owned(),
        storage_backend: "file".to_owned(),
        storage_ref: "00".to_owned(),
        metadata: json!({ "of": "the host" }),
        created_at: at(4),
        deleted_at: None,
    }
}

fn register(artifact: &ArtifactRecord) -> Change {
    Change::RegisterArtifact(Box::new(artifact.clone()))
}

fn found(store: &dyn StateStore, query: &EventQuery) -> Vec<u64> {
    let events = store.events(query).unwrap();
    events.iter().map(|e| e.sequence).collect()
}

fn sequences(store: &dyn StateStore, session: &SessionId) -> Vec<u64> {
    found(store, &EventQuery::session(session.clone()))
}

fn ids(rows: &[RunRow]) -> Vec<&str> {
    rows.iter().map(|row| row.id.as_str()).collect()
}

pub(crate) fn a_session_is_made_once_and_moves_by_compare_and_swap(state: &impl TestState) {
    let (mut store, id) = started(state, "s");
    let active = store.session(&id).unwrap().unwrap();
    assert_eq!((active.status, active.version), (SessionStatus::Active, 2));
    assert_eq!((active.created_at, active.ended_at), (at(1), None));
    let again = Change::CreateSession {
        id: id.clone(),
        at: at(8),
    };
    store.commit(&[again]).unwrap();
    assert_eq!(
        store.session(&id).unwrap(),
        Some(active.clone()),
        "as it is"
    );

    let pause = move_session(&active, SessionStatus::Paused);
    state.open().commit(std::slice::from_ref(&pause)).unwrap();
    let lost = store.commit(&[pause]).unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::Conflict, "{lost}");
    let paused = store.session(&id).unwrap().unwrap();
    assert_eq!((paused.status, paused.version), (SessionStatus::Paused, 3));

    // The right status with the version of an earlier time is a conflict too.
    store
        .commit(&[move_session(&paused, SessionStatus::Active)])
        .unwrap();
    let stale = move_session(&active, SessionStatus::Failed);
    let lost = store.commit(&[stale]).unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::Conflict, "{lost}");
    let active = store.session(&id).unwrap().unwrap();
    store
        .commit(&[move_session(&active, SessionStatus::Completed)])
        .unwrap();
    let row = state.open().session(&id).unwrap().unwrap();
    assert_eq!(
        (row.status, row.ended_at),
        (SessionStatus::Completed, Some(at(3)))
    );

    let nobody = SessionRow {
        id: "nobody".parse().unwrap(),
        ..row
    };
    let unknown = store.commit(&[move_session(&nobody, SessionStatus::Failed)]);
    assert_eq!(unknown.unwrap_err().kind(), ErrorKind::NotFound);
}

pub(crate) fn sessions_are_listed_newest_first(state: &impl TestState) {
    for id in ["b", "a", "c"] {
        started(state, id);
    }
    let sessions = state.open().sessions(&SessionFilter::default()).unwrap();
    let ids: Vec<&str> = sessions.iter().map(|row| row.id.as_str()).collect();
    assert_eq!(ids, ["c", "a", "b"], "by making, not by name");
}

pub(crate) fn sequences_have_no_gap_and_are_counted_in_each_session(state: &impl TestState) {
    let (mut store, one) = started(state, "one");
    let (mut second, other) = started(state, "other");
    for round in 0..5 {
        let event = |session| Change::Append(note(session, round, json!({ "round": round })));
        let events = store
            .commit(&[event(&one), event(&other), event(&one)])
            .unwrap();
        assert_eq!(events.len(), 3, "each is answered");
        second.commit(&[event(&other)]).unwrap();
    }
    assert_eq!(sequences(&*second, &one), (1..=12).collect::<Vec<u64>>());
    assert_eq!(sequences(&*store, &other), (1..=12).collect::<Vec<u64>>());
    let all = store.events(&EventQuery::all()).unwrap();
    assert_eq!(all.len(), 24);
    assert!(
        all.windows(2).all(|w| w[0].position < w[1].position),
        "in the order of writing"
    );
    let event = &all[10];
    let later = EventQuery::all().after_position(event.position);
    let rest = store.events(&later).unwrap();
    assert_eq!(rest, all[11..], "what follows a position");
    assert_eq!(store.event(&event.id).unwrap().as_ref(), Some(event));
}

pub(crate) fn an_event_that_is_there_already_is_answered_as_it_is_kept(state: &impl TestState) {
    let (mut store, session) = started(state, "s");
    let event = note(&session, 2, json!({ "first": true }));
    let again = NewEvent {
        data: json!({ "first": false }),
        ..event.clone()
    };
    let first = store.commit(&[Change::Append(event)]).unwrap();
    let second = state.open().commit(&[Change::Append(again)]).unwrap();
    assert_eq!(first, second, "the event comes back as it is kept");
    assert_eq!(sequences(&*store, &session), [1, 2, 3], "one row");
}

pub(crate) fn an_event_of_a_host_is_written_once_and_kept_with_all_that_it_says(
    state: &impl TestState,
) {
    let (mut store, session) = started(state, "s");
    let (_, other) = started(state, "other");
    let metadata = json!({ "of": ["the", "host"] });
    let sent = NewEvent {
        source: EventSource::Host,
        provider: Some("someone".to_owned()),
        correlation_id: Some("request-1".to_owned()),
        metadata: metadata.as_object().unwrap().clone(),
        data: Value::Null,
        data_ref: Some("event_data".to_owned()),
        ..note(&session, 2, json!({}))
    };
    let kept = store.commit(&[Change::Append(sent.clone())]).unwrap();
    assert_eq!(kept[0].source, EventSource::Host);
    assert_eq!(kept[0].provider, sent.provider);
    assert_eq!(kept[0].correlation_id, sent.correlation_id);
    assert_eq!(Value::Object(kept[0].metadata.clone()), metadata);
    assert_eq!(kept[0].data_ref, sent.data_ref);
    assert_eq!(state.open().event(&sent.id).unwrap(), Some(kept[0].clone()));
    let later = NewEvent {
        at: at(9),
        ..sent.clone()
    };
    let again = state.open().commit(&[Change::Append(later)]).unwrap();
    assert_eq!(again, kept, "the time does not count");
    let changes: [fn(&mut NewEvent, &SessionId); 8] = [
        |event, _| event.event_type = EventType::new("other"),
        |event, other| event.session_id = other.clone(),
        |event, _| event.source = EventSource::Adapter,
        |event, _| event.provider = None,
        |event, _| event.correlation_id = Some("request-2".to_owned()),
        |event, _| event.metadata.clear(),
        |event, _| event.data = json!({}),
        |event, _| event.data_ref = None,
    ];
    for change in changes {
        let mut differs = sent.clone();
        change(&mut differs, &other);
        let batch = [
            Change::Append(note(&session, 5, json!({}))),
            Change::Append(differs),
        ];
        let refused = store.commit(&batch).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused}");
        assert!(refused.to_string().contains(sent.id.as_str()), "{refused}");
    }
    assert_eq!(sequences(&*store, &session), [1, 2, 3], "one row");
}

pub(crate) fn events_are_found_by_every_part_of_a_query(state: &impl TestState) {
    let (mut store, session) = started(state, "s");
    started(state, "another");
    store.commit(&[run(&session, "r")]).unwrap();
    let mut of_run = note(&session, 30, json!({}));
    of_run.run_id = Some("r".parse().unwrap());
    let later = note(&session, 40, json!({}));
    store
        .commit(&[Change::Append(of_run), Change::Append(later)])
        .unwrap();
    let of_session = EventQuery::session(session.clone());
    let of_all = EventQuery::all();
    let noted = EventType::new("noted");
    for (query, expected) in [
        (of_session.clone(), &[1, 2, 3, 4][..]),
        (of_session.clone().run("r".parse().unwrap()), &[3]),
        (of_session.clone().of_type(noted.clone()), &[3, 4]),
        (of_session.clone().after(2), &[3, 4]),
        (of_session.clone().before(2), &[1]),
        (of_session.clone().after(1).before(4), &[2, 3]),
        (of_session.clone().since(at(30)), &[3, 4]),
        (of_session.clone().limit(2), &[1, 2]),
        (of_session.clone().limit(0), &[]),
        (of_session.of_type(noted.clone()).since(at(31)), &[4]),
        (EventQuery::all().of_type(noted.clone()), &[3, 4]),
        (
            of_all
                .clone()
                .of_type(noted)
                .of_type(EventType::SESSION_STARTED),
            &[2, 2, 3, 4],
        ),
        (of_all.clone().after_position(4), &[3, 4]),
        (of_all.after_position(5).limit(1), &[4]),
    ] {
        assert_eq!(found(&*store, &query), expected, "{query:?}");
    }
}

pub(crate) fn events_since_a_time_are_found_whatever_the_clock_did(state: &impl TestState) {
    let (mut store, one) = started(state, "one");
    let (_, other) = started(state, "other");
    // Forwards, back by much and by little, the same second again, a leap ahead and what follows
    // it.
    let times = [
        2, 9, 4, 9, 10, 3, 12, 12, 30, 13, 14, 31, 5, 90, 32, 33, 34, 91, 35, 92,
    ];
    for (nth, time) in times.into_iter().enumerate() {
        let session = if nth % 3 == 0 { &other } else { &one };
        let event = note(session, time, json!({}));
        store.commit(&[Change::Append(event)]).unwrap();
    }
    let all = store.events(&EventQuery::all()).unwrap();
    assert!(all.len() > times.len(), "{all:?}");
    for time in 0..95 {
        for session in [None, Some(&one), Some(&other)] {
            for after in [0, 7, 15] {
                let query = match session {
                    Some(session) => EventQuery::session(session.clone()),
                    None => EventQuery::all(),
                };
                let is_asked_for = |event: &&Event| {
                    event.position > after
                        && event.timestamp >= at(time)
                        && session.is_none_or(|session| event.session_id == *session)
                };
                let expected: Vec<_> = all.iter().filter(is_asked_for).cloned().collect();
                let query = query.since(at(time)).after_position(after);
                let found = store.events(&query).unwrap();
                assert_eq!(found, expected, "{query:?} after {after}");
            }
        }
    }
}

pub(crate) fn a_batch_with_one_bad_change_leaves_nothing(state: &impl TestState) {
    let (mut store, session) = started(state, "s");
    let nowhere: SessionId = "nowhere".parse().unwrap();
    let batch = [
        run(&session, "r"),
        Change::Append(note(&session, 2, json!({}))),
        add(&snapshot_row(SnapshotId::random().as_str(), "w", None)),
        Change::Append(note(&nowhere, 2, json!({}))),
    ];
    let refused = store.commit(&batch).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotFound, "{refused}");
    for store in [store, state.open()] {
        assert_eq!(sequences(&*store, &session), [1, 2]);
        assert_eq!(store.run(&"r".parse().unwrap()).unwrap(), None);
        assert_eq!(store.snapshots("w").unwrap(), []);
    }
}

pub(crate) fn commits_together_are_as_one_after_the_other(state: &impl TestState) {
    let (mut store, session) = started(state, "s");
    let nowhere: SessionId = "nowhere".parse().unwrap();
    let append = |session: &SessionId, at| Change::Append(note(session, at, json!({ "at": at })));
    let twice = NewEvent {
        source: EventSource::Host,
        ..note(&session, 1, json!({ "said": 1 }))
    };
    let other = NewEvent {
        data: json!({ "said": 2 }),
        ..twice.clone()
    };
    let batches = [
        vec![append(&session, 3), run(&session, "r")],
        // Not half of it.
        vec![append(&session, 4), append(&nowhere, 4)],
        vec![append(&session, 5), run(&session, "r")],
        // What an earlier one did is seen.
        vec![step("r", RunStatus::Pending, RunStatus::Running, 6)],
        vec![step("r", RunStatus::Pending, RunStatus::Running, 7)],
        vec![],
        vec![Change::Append(twice.clone())],
        vec![append(&session, 8), Change::Append(other)],
        vec![Change::Append(twice), append(&session, 9)],
        vec![Change::Scrub],
    ];
    let expected = [
        Ok(1),
        Err(ErrorKind::NotFound),
        Err(ErrorKind::Conflict),
        Ok(0),
        Err(ErrorKind::Conflict),
        Ok(0),
        Ok(1),
        Err(ErrorKind::Conflict),
        Ok(2),
    ];
    let all: Vec<&[Change]> = batches.iter().map(|batch| &**batch).collect();
    let (together, _) = all.split_at(expected.len());
    let answers = store.commit_each(together);
    let kinds: Vec<_> = answers
        .iter()
        .map(|answer| answer.as_ref().map(Vec::len).map_err(StateError::kind))
        .collect();
    assert_eq!(kinds, expected);
    let kept = state.open().events(&EventQuery::all()).unwrap();
    let written: Vec<_> = answers.into_iter().flatten().flatten().collect();
    assert_eq!(kept.len(), 2 + 3, "{kept:?}");
    assert!(written.iter().all(|event| kept.contains(event)));
    assert_eq!(sequences(&*store, &session), [1, 2, 3, 4, 5]);
    let row = store.run(&"r".parse().unwrap()).unwrap().unwrap();
    assert_eq!(row.status, RunStatus::Running);
    // One that goes alone goes alone.
    let answers = store.commit_each(&all[8..]);
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert!(store.commit_each(&[]).is_empty());
}

pub(crate) fn a_run_begins_only_in_an_active_session_and_only_once(state: &impl TestState) {
    let (mut store, session) = started(state, "s");
    store.commit(&[run(&session, "r")]).unwrap();
    let twice = store.commit(&[run(&session, "r")]).unwrap_err();
    assert!(matches!(twice, StateError::Exists { .. }), "{twice}");
    let row = store.session(&session).unwrap().unwrap();
    store
        .commit(&[move_session(&row, SessionStatus::Paused)])
        .unwrap();
    let paused = store.commit(&[run(&session, "q")]).unwrap_err();
    let text = paused.to_string();
    assert!(text.contains("is paused, not active"), "{text}");
    let unknown = store.commit(&[run(&"nobody".parse().unwrap(), "q")]);
    assert_eq!(unknown.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(store.run(&"q".parse().unwrap()).unwrap(), None);
}

pub(crate) fn of_two_transitions_from_one_state_exactly_one_succeeds(state: &impl TestState) {
    use RunStatus::{Cancelled, Completed, Pending, Running};
    let (mut one, session) = started(state, "s");
    let mut other = state.open();
    one.commit(&[run(&session, "r")]).unwrap();
    one.commit(&[step("r", Pending, Running, 3)]).unwrap();
    let lost = other
        .commit(&[step("r", Pending, Cancelled, 3)])
        .unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::Conflict);
    let text = lost.to_string();
    assert!(text.contains("run r is running, not pending"), "{text}");
    let row = one.run(&"r".parse().unwrap()).unwrap().unwrap();
    assert_eq!(row.status, Running);
    assert_eq!((row.started_at, row.ended_at), (Some(at(3)), None));
    other.commit(&[step("r", Running, Completed, 5)]).unwrap();
    let row = one.run(&"r".parse().unwrap()).unwrap().unwrap();
    assert_eq!((row.started_at, row.ended_at), (Some(at(3)), Some(at(5))));
    let unknown = one.commit(&[step("q", Pending, Running, 3)]).unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::NotFound);
}

pub(crate) fn what_a_run_ended_with_comes_back(state: &impl TestState) {
    let (mut store, session) = started(state, "s");
    let created = run_in(&session, "r", "w");
    let begun = step("r", RunStatus::Pending, RunStatus::Running, 3);
    store.commit(&[created.clone(), begun]).unwrap();
    let ending = RunEnding {
        exit_code: Some(-1),
        error: Some(Failure::new("NoSpace", "the disk\nis full")),
        output: json!({ "data": null }),
        workspace: json!({ "backend": "git", "rollback": null }),
    };
    store.commit(&[ended("r", ending.clone())]).unwrap();
    let row = state.open().run(&"r".parse().unwrap()).unwrap().unwrap();
    let Change::CreateRun(new) = created else {
        unreachable!("it was made so");
    };
    assert_eq!(row.workspace, new.workspace);
    assert_eq!((row.engine_id, row.options), (new.lease.owner, new.options));
    assert_eq!(row.status, RunStatus::Failed);
    assert_eq!((row.created_at, row.ended_at), (at(2), Some(at(9))));
    assert_eq!((row.exit_code, row.error), (ending.exit_code, ending.error));
    assert_eq!((row.output, row.summary), (ending.output, ending.workspace));
}

/// The move of a run whose work is being saved.
fn saved(from: RunStatus, to: RunStatus, ending: Option<&RunEnding>) -> Change {
    Change::MoveRun {
        id: "r".parse().unwrap(),
        from,
        to,
        at: at(4),
        ending: ending.cloned().map(Box::new),
        came_for: None,
    }
}

/// As `saved`, for the first of these moves.
fn coming_for(change: Change, why: &CameFor) -> Change {
    match change {
        Change::MoveRun {
            id,
            from,
            to,
            at,
            ending,
            came_for: _,
        } => Change::MoveRun {
            id,
            from,
            to,
            at,
            ending,
            came_for: Some(why.clone()),
        },
        other => other,
    }
}

fn how_it_ended() -> RunEnding {
    RunEnding {
        exit_code: Some(7),
        error: Some(Failure::of_work("no luck")),
        output: json!({ "data": 1 }),
        workspace: json!({ "backend": "git" }),
    }
}

pub(crate) fn a_run_that_persists_ends_as_it_came_for(state: &impl TestState) {
    use RunStatus::{Cancelled, Completed, Failed, Pending, Persisting, Running, Timeout};
    let (mut store, session) = started(state, "s");
    let (id, ending) = ("r".parse().unwrap(), how_it_ended());
    let why = CameFor::End(EndsAs::Failed);
    store
        .commit(&[run(&session, "r"), step("r", Pending, Running, 3)])
        .unwrap();
    let persists = saved(Running, Persisting, Some(&ending));
    store.commit(&[coming_for(persists, &why)]).unwrap();
    let persisting = state.open().run(&id).unwrap().unwrap();
    assert_eq!((persisting.status, persisting.ended_at), (Persisting, None));
    assert_eq!(persisting.exit_code, ending.exit_code);
    assert_eq!(persisting.error, ending.error);
    assert_eq!(persisting.output, ending.output);
    assert_eq!(persisting.summary, ending.workspace);
    assert_eq!(state.open().came_for(&id).unwrap(), Some(why.clone()));
    assert_eq!(ids(&store.runs_not_ended().unwrap()), ["r"]);
    for other in [Completed, Cancelled, Timeout] {
        let refused = store.commit(&[saved(Persisting, other, Some(&ending))]);
        let refused = refused.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Conflict);
        let said = refused.to_string();
        assert!(said.contains("the end of run r is failed"), "{said}");
        assert_eq!(store.run(&id).unwrap().as_ref(), Some(&persisting));
    }
    store
        .commit(&[saved(Persisting, Failed, Some(&ending))])
        .unwrap();
    let row = store.run(&id).unwrap().unwrap();
    assert_eq!((row.status, row.ended_at), (Failed, Some(at(4))));
    assert_eq!(store.came_for(&id).unwrap(), None);
    let late = store
        .commit(&[saved(Persisting, Failed, None)])
        .unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Conflict);
    assert_eq!(store.problems().unwrap(), [] as [String; 0]);
}

pub(crate) fn what_a_blocked_run_came_for_is_kept_until_its_work_is_saved(state: &impl TestState) {
    use RunStatus::{AwaitingFollowup, Blocked, Checkpointing, Pending, Running};
    let (mut store, session) = started(state, "s");
    let (id, ending): (RunId, _) = ("r".parse().unwrap(), how_it_ended());
    let why = CameFor::Block(Box::new(Block {
        flow: "implement".to_owned(),
        branch: None,
        reason: Some("which\nport?".to_owned()),
        context: json!({ "asked": [1] }),
    }));
    let queued = QueueRow {
        position: 0,
        run_id: id.clone(),
        session_id: session.clone(),
        adapter: "a".to_owned(),
        input: json!({}),
        priority: Priority::Batch,
        workspace_id: None,
        state: QueueState::Waiting,
    };
    let queued = Change::Enqueue {
        row: Box::new(queued),
        max_queued: 9,
    };
    let begun = step("r", Pending, Running, 3);
    store.commit(&[run(&session, "r"), queued, begun]).unwrap();
    let ask = Change::RequestCancel {
        run_id: id.clone(),
        at: at(5),
    };
    let fence = Change::Fence {
        run_id: id.clone(),
        epoch: 1,
    };
    let place = |store: &dyn StateStore| store.queue_row(&id).unwrap().unwrap().state;
    let blocks = saved(Running, Blocked, Some(&ending));
    for change in [
        coming_for(blocks, &why),
        saved(Blocked, Checkpointing, None),
    ] {
        store.commit(&[change]).unwrap();
        let row = store.run(&id).unwrap().unwrap();
        assert_eq!((row.exit_code, row.error), (Some(7), ending.error.clone()));
        assert_eq!((row.output, row.ended_at), (ending.output.clone(), None));
        assert_eq!(store.came_for(&id).unwrap(), Some(why.clone()));
        assert_eq!(place(&*store), QueueState::UnderWay, "{}", row.status);
        store.commit(&[fence.clone(), ask.clone()]).unwrap();
        assert_eq!(ids(&store.runs_not_ended().unwrap()), ["r"]);
    }
    store
        .commit(&[saved(Checkpointing, AwaitingFollowup, None)])
        .unwrap();
    assert_eq!(store.came_for(&id).unwrap(), None);
    let row = store.run(&id).unwrap().unwrap();
    assert_eq!((row.exit_code, row.ended_at), (None, None));
    assert_eq!(place(&*store), QueueState::Over, "others are begun");
    assert_eq!(ids(&store.runs_not_ended().unwrap()), ["r"]);
    assert_eq!(
        store.commit(&[fence]).unwrap_err().kind(),
        ErrorKind::Conflict
    );
    assert_eq!(
        store.commit(&[ask]).unwrap_err().kind(),
        ErrorKind::NotFound
    );
    assert_eq!(store.problems().unwrap(), [] as [String; 0]);
}

pub(crate) fn runs_are_listed_newest_first_and_those_under_way_oldest_first(
    state: &impl TestState,
) {
    use RunStatus::{Cancelled, Pending, Running};
    let (mut store, session) = started(state, "s");
    let (_, other) = started(state, "other");
    store
        .commit(&[
            run(&session, "b"),
            run_in(&session, "a", "w"),
            run_in(&other, "d", "w"),
            run(&other, "c"),
        ])
        .unwrap();
    store
        .commit(&[
            step("a", Pending, Running, 3),
            step("d", Pending, Cancelled, 3),
        ])
        .unwrap();
    let list = |filter: RunFilter| store.runs(&filter).unwrap();
    assert_eq!(ids(&list(RunFilter::default())), ["c", "d", "a", "b"]);
    let of_session = RunFilter {
        session_id: Some(session),
        ..RunFilter::default()
    };
    assert_eq!(ids(&list(of_session)), ["a", "b"]);
    let of_workspace = RunFilter {
        workspace_id: Some("w".to_owned()),
        ..RunFilter::default()
    };
    assert_eq!(ids(&list(of_workspace.clone())), ["d", "a"]);
    let newest = RunFilter {
        limit: Some(1),
        ..of_workspace
    };
    assert_eq!(ids(&list(newest)), ["d"]);
    assert_eq!(ids(&store.runs_not_ended().unwrap()), ["b", "a", "c"]);
}

pub(crate) fn the_beginning_of_an_id_is_literal(state: &impl TestState) {
    let (mut store, session) = started(state, "s");
    let names = ["run_a1", "run_a2", "runXa3", "RUN_a4", "run_a5", "run_a6"];
    let runs: Vec<Change> = names.iter().map(|id| run(&session, id)).collect();
    store.commit(&runs).unwrap();
    let begin = |prefixes: &[&str]| -> Vec<String> {
        let prefixes: Vec<String> = prefixes.iter().map(ToString::to_string).collect();
        let found = store.runs_that_begin(&prefixes, None).unwrap();
        found.iter().map(ToString::to_string).collect()
    };
    assert_eq!(begin(&["run_a1"]), ["run_a1"]);
    assert_eq!(begin(&["runX", "run_a2"]), ["runXa3", "run_a2"]);
    assert!(
        (2..=3).contains(&begin(&["run_a"]).len()),
        "enough to say: several"
    );
    for none in ["run%", "r_n", "*", "a1", "run_a11"] {
        assert_eq!(begin(&[none]), [""; 0], "{none}");
    }

    let id = |digits: &str| format!("snap_{digits:0<32}");
    let rows = [
        ("a1", "w"),
        ("a2", "w"),
        ("a3", "v"),
        ("b1", "w"),
        ("a4", "v"),
    ];
    for (digits, workspace) in rows {
        let row = snapshot_row(&id(digits), workspace, None);
        store.commit(&[add(&row)]).unwrap();
    }
    let begin = |prefix: &str, workspace| -> Vec<String> {
        let found = store.snapshots_that_begin(prefix, workspace).unwrap();
        found
            .iter()
            .map(|row| row.snapshot.id.to_string())
            .collect()
    };
    assert_eq!(begin("snap_a", Some("w")), [id("a1"), id("a2")]);
    assert_eq!(begin("snap_b", Some("v")), [""; 0]);
    assert_eq!(begin("snap_b", None), [id("b1")]);
    assert_eq!(begin("snap_a", None).len(), 3, "at most");
    assert_eq!(begin("snap_%", None), [""; 0]);
}

pub(crate) fn snapshots_are_found_by_every_part_of_a_filter(state: &impl TestState) {
    let mut store = state.open();
    let labels = ["before", "mine", "guard", "mine", "before", "guard"];
    let mut ids = Vec::new();
    for (number, label) in labels.into_iter().enumerate() {
        let id = format!("snap_{number:032x}");
        let workspace = if number == 4 { "v" } else { "w" };
        let mut row = snapshot_row(&id, workspace, None);
        row.snapshot.label = Label::new(label);
        row.snapshot.captured_at = at(i64::try_from(number).unwrap());
        row.run_id = (number % 2 == 1).then(|| "r".parse().unwrap());
        store.commit(&[add(&row)]).unwrap();
        ids.push(id);
    }
    let found = |filter: SnapshotFilter| -> Vec<usize> {
        let rows = store.find_snapshots(&filter).unwrap();
        let place = |row: SnapshotRow| ids.iter().position(|id| id == row.snapshot.id.as_str());
        rows.into_iter().filter_map(place).collect()
    };
    let all = || SnapshotFilter {
        workspace_id: "w".to_owned(),
        ..SnapshotFilter::default()
    };
    let label = |text: &str| Some(Label::new(text));
    assert_eq!(found(all()), [5, 3, 2, 1, 0]);
    let filter = all();
    assert_eq!(
        found(SnapshotFilter {
            label: label("mine"),
            ..filter
        }),
        [3, 1]
    );
    let filter = all();
    assert_eq!(
        found(SnapshotFilter {
            label: label("min"),
            ..filter
        }),
        [0usize; 0]
    );
    let filter = all();
    assert_eq!(
        found(SnapshotFilter {
            but: label("guard"),
            ..filter
        }),
        [3, 1, 0]
    );
    let filter = SnapshotFilter {
        but: label("guard"),
        skip: 1,
        limit: Some(1),
        ..all()
    };
    assert_eq!(found(filter), [1]);
    assert_eq!(found(SnapshotFilter { skip: 9, ..all() }), [0usize; 0]);
    let since = Some(at(2));
    assert_eq!(found(SnapshotFilter { since, ..all() }), [5, 3, 2]);
    let filter = SnapshotFilter {
        since,
        label: label("mine"),
        limit: Some(7),
        ..all()
    };
    assert_eq!(found(filter), [3]);
    let run_id = Some("r".parse().unwrap());
    assert_eq!(found(SnapshotFilter { run_id, ..all() }), [5, 3, 1]);
}

pub(crate) fn a_pin_stays_until_it_is_taken_back_whatever_becomes_of_its_snapshot(
    state: &impl TestState,
) {
    let mut store = state.open();
    let id = SnapshotId::random();
    store
        .commit(&[add(&snapshot_row(id.as_str(), "w", None))])
        .unwrap();
    let row = PinRow {
        snapshot_id: id.clone(),
        workspace_id: "w".to_owned(),
    };
    let pin = Change::PinSnapshot {
        row: row.clone(),
        at: at(3),
    };
    assert_eq!(store.pins().unwrap(), []);
    store.commit(&[pin.clone(), pin]).unwrap();
    store
        .commit(&[Change::ForgetSnapshots(vec![id.clone()])])
        .unwrap();
    assert_eq!(state.open().pins().unwrap(), [row]);
    let unpin = Change::UnpinSnapshot(id);
    store.commit(&[unpin.clone(), unpin]).unwrap();
    assert_eq!(state.open().pins().unwrap(), []);
}

pub(crate) fn snapshots_are_listed_in_the_order_of_writing(state: &impl TestState) {
    let mut store = state.open();
    let ids: Vec<SnapshotId> = (0..3).map(|_| SnapshotId::random()).collect();
    // A clock may go backwards.
    for (id, time) in ids.iter().zip(["05:00:00Z", "03:00:00Z", "04:00:00Z"]) {
        let mut row = snapshot_row(id.as_str(), "w", None);
        row.snapshot = snapshot(id.as_str(), &format!("2026-02-03T{time}"));
        store.commit(&[add(&row)]).unwrap();
    }
    let listed = |workspace: &str| -> Vec<SnapshotId> {
        let rows = state.open().snapshots(workspace).unwrap();
        rows.into_iter().map(|row| row.snapshot.id).collect()
    };
    let newest_first: Vec<SnapshotId> = ids.iter().rev().cloned().collect();
    assert_eq!(listed("w"), newest_first);
    assert_eq!(listed("v"), []);
    let unknown = SnapshotId::random();
    let forget = Change::ForgetSnapshots(vec![ids[1].clone(), unknown]);
    store.commit(&[forget]).unwrap();
    assert_eq!(listed("w"), [ids[2].clone(), ids[0].clone()]);
    assert_eq!(store.snapshot(&ids[1]).unwrap(), None);
}

pub(crate) fn snapshots_that_were_found_late_take_the_place_that_is_theirs(state: &impl TestState) {
    let mut store = state.open();
    let ids: Vec<SnapshotId> = (0..4).map(|_| SnapshotId::random()).collect();
    let elsewhere = SnapshotId::random();
    assert_eq!(store.snapshot_count("w").unwrap(), 0);
    // The newest is known, another workspace has one, and then the older ones are found.
    let written = [&ids[3], &elsewhere, &ids[0], &ids[2], &ids[1]];
    for id in written {
        let workspace = if *id == elsewhere { "v" } else { "w" };
        let row = snapshot_row(id.as_str(), workspace, None);
        store.commit(&[add(&row)]).unwrap();
    }
    assert_eq!(store.snapshot_count("w").unwrap(), 4);
    assert_eq!(store.snapshot_count("u").unwrap(), 0);
    let mut of_workspace = store.snapshot_ids("w").unwrap();
    of_workspace.sort();
    let mut expected = ids.clone();
    expected.sort();
    assert_eq!(of_workspace, expected);
    let mut order = ids.clone();
    order.insert(2, SnapshotId::random());
    for _ in 0..2 {
        store
            .commit(&[Change::OrderSnapshots(order.clone())])
            .unwrap();
        let listed: Vec<SnapshotId> = state
            .open()
            .snapshots("w")
            .unwrap()
            .into_iter()
            .map(|row| row.snapshot.id)
            .rev()
            .collect();
        assert_eq!(listed, ids, "safe to repeat");
    }
    let next = SnapshotId::random();
    let row = snapshot_row(next.as_str(), "w", None);
    store.commit(&[add(&row)]).unwrap();
    assert_eq!(store.snapshots("w").unwrap()[0].snapshot.id, next);
}

pub(crate) fn a_look_tells_whether_a_snapshot_is_among_the_newest(state: &impl TestState) {
    let mut store = state.open();
    for number in 0..9 {
        let mut row = snapshot_row(SnapshotId::random().as_str(), "w", None);
        row.snapshot.reference = format!("c0ffee{number}");
        store.commit(&[add(&row)]).unwrap();
    }
    let is_among = |workspace: &str, reference: &str| {
        let store = state.open();
        store.is_among_newest(workspace, reference).unwrap()
    };
    assert!(is_among("w", "c0ffee8") && is_among("w", "c0ffee7"));
    assert!(!is_among("w", "c0ffee0"), "a few are looked at");
    assert!(!is_among("w", "c0ffee9") && !is_among("v", "c0ffee8"));
}

pub(crate) fn a_snapshot_gets_an_owner_later_and_keeps_it(state: &impl TestState) {
    let (mut store, session) = started(state, "s");
    let id = SnapshotId::random();
    let adopted = snapshot_row(id.as_str(), "w", None);
    let owned = snapshot_row(id.as_str(), "w", Some(&session));
    for (written, expected) in [
        (&adopted, &adopted),
        (&owned, &owned),
        // A row that is adopted later has less, and does not replace this one.
        (&adopted, &owned),
    ] {
        store.commit(&[add(written)]).unwrap();
        assert_eq!(store.snapshot(&id).unwrap().as_ref(), Some(expected));
    }
    assert_eq!(store.snapshots("w").unwrap(), [owned], "whole, and once");
}

pub(crate) fn an_operation_comes_back_as_it_was_written(state: &impl TestState) {
    let (mut store, session) = started(state, "s");
    let odd = RelPath::new(b"odd\xffname".to_vec()).unwrap();
    for (kind, paths) in [
        (OperationKind::Restore, Some(vec![odd])),
        // Nothing at all is not everything.
        (OperationKind::Undo, Some(Vec::new())),
        (OperationKind::Resume, Some(Vec::new())),
        (OperationKind::Merge, None),
        (OperationKind::Run, None),
    ] {
        let row = OperationRow {
            kind,
            paths,
            repository: kind == OperationKind::Restore,
            ..operation(&session, "w", None)
        };
        let change = Change::AddOperation(Box::new(row.clone()));
        store.commit(&[change]).unwrap();
        let latest = state.open().latest_operation("w").unwrap();
        assert_eq!(latest, Some(row));
    }
}

pub(crate) fn the_latest_operation_is_that_of_its_workspace_or_run(state: &impl TestState) {
    let (mut store, session) = started(state, "s");
    store
        .commit(&[run(&session, "r"), run(&session, "q")])
        .unwrap();
    let first = operation(&session, "w", Some("r"));
    let second = operation(&session, "w", Some("q"));
    let elsewhere = operation(&session, "v", None);
    for row in [&first, &second, &elsewhere] {
        let change = Change::AddOperation(Box::new(row.clone()));
        store.commit(&[change]).unwrap();
    }
    let of_run = |id: &str| store.operation_of_run(&id.parse().unwrap()).unwrap();
    assert_eq!(store.latest_operation("w").unwrap(), Some(second.clone()));
    assert_eq!(of_run("q"), Some(second));
    assert_eq!(of_run("r"), Some(first));
    assert_eq!(of_run("p"), None);
}

pub(crate) fn a_restore_is_known_until_its_record_is_written(state: &impl TestState) {
    let (mut store, session) = started(state, "s");
    let rollback = restore(&session, "w", Some("r"));
    let elsewhere = RestoreRow {
        purpose: RestorePurpose::Undo,
        repository: false,
        ..restore(&session, "v", None)
    };
    store
        .commit(&[begin(&rollback), begin(&elsewhere)])
        .unwrap();
    let known = |row: &RestoreRow| state.open().restore(&row.guard).unwrap();
    assert_eq!(known(&rollback), Some(rollback.clone()));
    assert_eq!(known(&elsewhere), Some(elsewhere.clone()));
    let of_run = store.rollback_of_run(&"r".parse().unwrap()).unwrap();
    assert_eq!(of_run, Some(rollback.clone()));

    let under_way = |workspace: &str| state.open().restore_under_way(workspace).unwrap();
    assert_eq!(under_way(&rollback.workspace_id), Some(rollback.clone()));
    assert_eq!(under_way("nowhere"), None);

    // The next one in the workspace says that the one before came to nothing.
    let next = restore(&session, "w", Some("q"));
    store.commit(&[begin(&next)]).unwrap();
    assert_eq!(known(&rollback), None);
    assert_eq!(known(&elsewhere), Some(elsewhere.clone()));

    for row in [&next, &elsewhere, &next] {
        let end = Change::EndRestore(row.guard.clone());
        store.commit(&[end]).unwrap();
        assert_eq!(known(row), None);
    }
}

pub(crate) fn of_a_rollback_that_recovery_finished_the_run_gets_to_know(state: &impl TestState) {
    let (mut store, session) = started(state, "s");
    let outcome = crate::records::restore_document::nothing_restored();
    let finished = RestoreRow {
        outcome: Some(outcome.clone()),
        ..restore(&session, "w", Some("r"))
    };
    let next = restore(&session, "w", None);
    store.commit(&[begin(&finished), begin(&next)]).unwrap();
    let of_run = store.rollback_of_run(&"r".parse().unwrap()).unwrap();
    assert_eq!(of_run, Some(finished), "it waits for the run to be settled");
    let under_way = store.restore_under_way("w").unwrap();
    assert_eq!(
        under_way,
        Some(next),
        "one that is finished is not under way"
    );

    let set = |id: &str| Change::SetRollback {
        run_id: id.parse().unwrap(),
        rollback: Box::new(outcome.clone()),
    };
    let unknown = store.commit(&[set("r")]).unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::NotFound, "{unknown}");
    let begun = step("r", RunStatus::Pending, RunStatus::Running, 3);
    store.commit(&[run_in(&session, "r", "w"), begun]).unwrap();
    let too_early = store.commit(&[set("r")]).unwrap_err();
    assert_eq!(too_early.kind(), ErrorKind::NotFound, "{too_early}");
    let ending = RunEnding {
        workspace: json!({ "backend": "git", "rollback": { "status": "failed" } }),
        ..RunEnding::default()
    };
    store.commit(&[ended("r", ending), set("r")]).unwrap();
    let row = state.open().run(&"r".parse().unwrap()).unwrap().unwrap();
    assert_eq!(row.summary["backend"], "git", "nothing else is touched");
    assert_eq!(row.summary["rollback"], json!(outcome));
}

pub(crate) fn a_key_that_was_deleted_can_be_registered_again(state: &impl TestState) {
    let (mut store, session) = started(state, "s");
    let (_, other) = started(state, "other");
    let delete = Change::DeleteArtifact {
        key: "k".to_owned(),
        id: None,
        at: at(5),
    };
    let [one, two, mut three] = [1, 2, 3].map(|bytes| artifact(&session, "k", bytes));
    three.run_id = Some("r".parse().unwrap());
    let beside = artifact(&other, "l", 10);
    store.commit(&[register(&one), register(&beside)]).unwrap();
    store.commit(&[register(&two)]).unwrap();
    store.commit(&[delete.clone(), register(&three)]).unwrap();
    let stats = store.session_stats(&session).unwrap();
    assert_eq!((stats.artifact_count, stats.total_bytes), (1, 3));
    assert_eq!(store.artifact("k").unwrap(), Some(three.clone()));
    let all = state.open().artifacts(None).unwrap();
    assert_eq!(all, [beside, three.clone()], "oldest first");
    assert_eq!(store.artifacts(Some(&session)).unwrap(), [three.clone()]);
    let of_run = |run_id: &str| {
        let run_id = run_id.parse().unwrap();
        store.artifacts_of_run(&session, &run_id).unwrap()
    };
    assert_eq!(of_run("r"), [three]);
    assert_eq!(of_run("nobody"), []);
    store.commit(std::slice::from_ref(&delete)).unwrap();
    assert_eq!(store.artifact("k").unwrap(), None);
    let gone = store.commit(&[delete]).unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound, "{gone}");
}

pub(crate) fn patches_are_taken_out_of_the_records_of_their_runs_alone(state: &impl TestState) {
    let (mut store, session) = started(state, "s");
    let summaries = [
        (
            "embedded",
            json!({ "diff": null, "patch": "-secret\n", "patch_bytes": 8 }),
        ),
        (
            "kept",
            json!({ "diff": null, "patch_ref": "key", "patch_bytes": 8 }),
        ),
        ("other", json!({ "patch": "x", "patch_ref": "other" })),
        ("bare", Value::Null),
    ];
    for (id, workspace) in &summaries {
        let created = run_in(&session, id, "w");
        let begun = step(id, RunStatus::Pending, RunStatus::Running, 3);
        let ending = RunEnding {
            workspace: workspace.clone(),
            ..RunEnding::default()
        };
        store.commit(&[created, begun, ended(id, ending)]).unwrap();
    }
    let gone = Change::RemovePatches {
        runs: vec!["embedded".parse().unwrap(), "bare".parse().unwrap()],
        artifacts: vec!["key".to_owned(), "nowhere".to_owned()],
    };
    // It may be repeated.
    for _ in 0..2 {
        store.commit(std::slice::from_ref(&gone)).unwrap();
        store.commit(&[Change::Scrub]).unwrap();
    }
    let store = state.open();
    let summary = |id: &str| store.run(&id.parse().unwrap()).unwrap().unwrap().summary;
    let purged = json!({ "diff": null, "patch_bytes": 8, "patch_purged": true });
    assert_eq!(summary("embedded"), purged);
    assert_eq!(summary("kept"), purged);
    assert_eq!(summary("other"), summaries[2].1);
    assert_eq!(summary("bare"), Value::Null);
}

pub(crate) fn nothing_is_found_where_there_is_nothing(state: &impl TestState) {
    let store = state.open();
    let (session, run): (SessionId, RunId) = ("s".parse().unwrap(), "r".parse().unwrap());
    let snapshot = SnapshotId::random();
    assert_eq!(store.session(&session).unwrap(), None);
    assert_eq!(store.sessions(&SessionFilter::default()).unwrap(), []);
    assert_eq!(store.run(&run).unwrap(), None);
    assert_eq!(store.runs(&RunFilter::default()).unwrap(), []);
    assert_eq!(store.runs_not_ended().unwrap(), []);
    assert_eq!(store.events(&EventQuery::all()).unwrap(), []);
    assert_eq!(store.event(&EventId::random()).unwrap(), None);
    assert_eq!(store.snapshot(&snapshot).unwrap(), None);
    assert_eq!(store.latest_operation("w").unwrap(), None);
    assert_eq!(store.restore(&snapshot).unwrap(), None);
    assert_eq!(store.rollback_of_run(&run).unwrap(), None);
    assert_eq!(store.artifacts(None).unwrap(), []);
    let stats = store.session_stats(&session).unwrap();
    assert_eq!(stats, SessionStats::default());
}

fn claim(run_id: &str, from_epoch: Option<u64>) -> Change {
    Change::ClaimLease {
        run_id: run_id.parse().unwrap(),
        from: from_epoch.map(|epoch| Box::new(lease(epoch))),
        lease: Box::new(lease(from_epoch.unwrap_or(0) + 1)),
        after: None,
    }
}

fn fence(run_id: &str, epoch: u64) -> Change {
    let run_id = run_id.parse().unwrap();
    Change::Fence { run_id, epoch }
}

pub(crate) fn whoever_lost_a_run_writes_nothing_for_it(state: &impl TestState) {
    let (mut store, session) = started(state, "s");
    store.commit(&[run(&session, "a")]).unwrap();
    store
        .commit(&[fence("a", 1), Change::Append(note(&session, 8, json!({})))])
        .unwrap();
    store.commit(&[claim("a", Some(1))]).unwrap();
    let before = store.events(&EventQuery::all()).unwrap();
    let renewal = Change::RenewLease {
        run_id: "a".parse().unwrap(),
        epoch: 1,
        expires: lease(1).expires,
        at: at(9),
    };
    for late in [
        vec![fence("a", 1), Change::Append(note(&session, 8, json!({})))],
        vec![renewal],
    ] {
        let error = store.commit(&late).unwrap_err();
        assert!(matches!(error, StateError::TakenOver(_)), "{error}");
        assert_eq!(error.kind(), ErrorKind::Conflict);
    }
    assert_eq!(store.events(&EventQuery::all()).unwrap(), before);
    store
        .commit(&[fence("a", 2), Change::Append(note(&session, 8, json!({})))])
        .unwrap();
}

pub(crate) fn of_two_claimers_of_one_lease_one_wins(state: &impl TestState) {
    let (mut store, session) = started(state, "s");
    store.commit(&[run(&session, "a")]).unwrap();
    let id = "a".parse().unwrap();
    let ask = Change::RequestCancel {
        run_id: "a".parse().unwrap(),
        at: at(5),
    };
    store.commit(&[ask]).unwrap();
    assert_eq!(
        store.lease(&id).unwrap().unwrap().cancel_requested_at,
        Some(at(5))
    );
    let (mut one, mut other) = (state.open(), state.open());
    // The engine that claims it has to know that it should stop.
    let error = one.commit(&[claim("a", Some(1))]).unwrap_err();
    assert!(matches!(error, StateError::TakenOver(_)), "{error}");
    let told = || match claim("a", Some(1)) {
        Change::ClaimLease {
            run_id,
            from: Some(from),
            lease,
            after,
        } => Change::ClaimLease {
            run_id,
            from: Some(Box::new(Lease {
                cancel_requested_at: Some(at(5)),
                ..*from
            })),
            lease,
            after,
        },
        other => other,
    };
    one.commit(&[told()]).unwrap();
    let won = store.lease(&id).unwrap().unwrap();
    assert_eq!((won.epoch, won.cancel_requested_at), (2, None));
    for late in [claim("a", Some(1)), told(), claim("a", None)] {
        let error = other.commit(&[late]).unwrap_err();
        assert!(matches!(error, StateError::TakenOver(_)), "{error}");
    }
    assert_eq!(store.lease(&id).unwrap().unwrap(), won);
    let row = store.run(&id).unwrap().unwrap();
    assert_eq!(row.engine_id, won.owner, "the run names who has it");
    let renewed = Moment {
        nanoseconds: won.expires.nanoseconds + 1,
        ..won.expires
    };
    let renewal = Change::RenewLease {
        run_id: id.clone(),
        epoch: 2,
        expires: renewed,
        at: at(9),
    };
    store.commit(&[renewal]).unwrap();
    let late = other.commit(&[claim("a", Some(2))]).unwrap_err();
    assert!(matches!(late, StateError::TakenOver(_)), "renewed: {late}");
}

pub(crate) fn what_a_host_says_of_a_run_replaces_what_it_said(state: &impl TestState) {
    let (mut store, session) = started(state, "s");
    let new = NewRun {
        options: json!({ "resumable": true, "metadata": { "steps": ["a"] } }),
        ..new_run(&session, "a")
    };
    store.commit(&[Change::CreateRun(Box::new(new))]).unwrap();
    let metadata = json!({ "steps": ["b", "it's"] });
    let run_id: RunId = "a".parse().unwrap();
    let set = Change::SetMetadata {
        run_id: run_id.clone(),
        metadata: metadata.clone(),
    };
    store.commit(&[set]).unwrap();
    let row = store.run(&run_id).unwrap().unwrap();
    let wanted = json!({ "resumable": true, "metadata": metadata });
    assert_eq!(row.options, wanted);
    assert_eq!(store.problems().unwrap(), [] as [String; 0]);
}

fn put(from: Option<StepStatus>, row: &StepRow) -> Change {
    Change::PutStep {
        run_id: "a".parse().unwrap(),
        from,
        row: Box::new(row.clone()),
    }
}

/// A run with a phase, and a step in it that is under way.
fn begun(state: &impl TestState) -> (Box<dyn StateStore>, PhaseRow, StepRow) {
    let (mut store, session) = started(state, "s");
    let key = PhaseKey {
        phase: "odd\n name".to_owned(),
        iteration: 3,
    };
    let phase = PhaseRow {
        started_at: Some(at(3)),
        status: StepStatus::Running,
        ..PhaseRow::new(key.clone())
    };
    let step = StepRow::new(key, "build".to_owned(), "hash".to_owned())
        .begun(Some(SnapshotId::random()), at(3), 1)
        .unwrap();
    let put_phase = Change::PutPhase {
        run_id: "a".parse().unwrap(),
        from: None,
        row: Box::new(phase.clone()),
    };
    store
        .commit(&[run(&session, "a"), put_phase, put(None, &step)])
        .unwrap();
    (store, phase, step)
}

pub(crate) fn phases_and_steps_come_back_as_they_were_written(state: &impl TestState) {
    let (mut store, phase, step) = begun(state);
    let id = "a".parse().unwrap();
    assert_eq!(store.phase(&id, &phase.key).unwrap().as_ref(), Some(&phase));
    assert_eq!(store.phases(&id).unwrap(), [phase]);
    assert_eq!(store.steps(&id).unwrap(), std::slice::from_ref(&step));
    let ending = StepEnding {
        snapshot_after: Some(SnapshotId::random()),
        result: Some(json!({ "tasks": ["a", null] })),
        error: Some(Failure::of_work("tried twice")),
        worked: Some(std::time::Duration::from_millis(1_234)),
    };
    let done = StepRow {
        commit_created: Some("c0ffee".to_owned()),
        ..step.after(StepEvent::Done, ending, at(4), 2).unwrap()
    };
    let made = Change::SetStepCommit {
        run_id: "a".parse().unwrap(),
        step_id: step.id.clone(),
        commit: "c0ffee".to_owned(),
    };
    store
        .commit(&[made, put(Some(StepStatus::Running), &done)])
        .unwrap();
    assert_eq!(state.open().steps(&id).unwrap(), [done]);
    assert_eq!(store.problems().unwrap(), [] as [String; 0]);
}

pub(crate) fn a_step_moves_only_from_where_it_was_seen(state: &impl TestState) {
    let (mut store, phase, step) = begun(state);
    let id: RunId = "a".parse().unwrap();
    let again = StepRow::new(phase.key.clone(), "build".to_owned(), "hash".to_owned());
    let error = store.commit(&[put(None, &again)]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "the name is taken");
    let other = StepRow {
        definition_hash: "other".to_owned(),
        ..step.clone()
    };
    for (from, row) in [(StepStatus::Pending, &step), (StepStatus::Running, &other)] {
        let error = store.commit(&[put(Some(from), row)]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{from}");
    }
    let moved = Change::PutPhase {
        run_id: id.clone(),
        from: Some(StepStatus::Interrupted),
        row: Box::new(phase),
    };
    assert_eq!(
        store.commit(&[moved]).unwrap_err().kind(),
        ErrorKind::Conflict
    );
    assert_eq!(store.steps(&id).unwrap(), [step]);
}

pub(crate) fn runs_are_found_by_status_and_time(state: &impl TestState) {
    let (mut store, session) = started(state, "s");
    let created = |id: &str, second| {
        Change::CreateRun(Box::new(NewRun {
            at: at(second),
            ..new_run(&session, id)
        }))
    };
    store
        .commit(&[created("a", 10), created("b", 20), created("c", 30)])
        .unwrap();
    let moves = [
        step("b", RunStatus::Pending, RunStatus::Running, 21),
        step("b", RunStatus::Running, RunStatus::Interrupted, 22),
        step("c", RunStatus::Pending, RunStatus::Failed, 31),
    ];
    store.commit(&moves).unwrap();
    let found = |filter: RunFilter| {
        let rows = store.runs(&filter).unwrap();
        ids(&rows)
            .into_iter()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let of = |statuses: &[RunStatus]| RunFilter {
        statuses: statuses.to_vec(),
        ..RunFilter::default()
    };
    assert_eq!(found(of(&[RunStatus::Interrupted])), ["b"]);
    assert_eq!(
        found(of(&[RunStatus::Failed, RunStatus::Pending])),
        ["c", "a"]
    );
    assert_eq!(found(of(&[RunStatus::Timeout])), [] as [String; 0]);
    let between = RunFilter {
        since: Some(at(10)),
        until: Some(at(30)),
        ..RunFilter::default()
    };
    assert_eq!(found(between), ["b", "a"], "the end is not in it");
    assert_eq!(ids(&store.runs_not_ended().unwrap()), ["a", "b"]);
}
