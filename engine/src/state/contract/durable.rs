//! The promises of every state store about questions, effects and commits.

use std::time::Duration;

use stillframe_backends::{CommitIntent, Signature};

use super::*;
use crate::id::{AgentId, EffectId, QuestionId, ReviewId, StepId};
use crate::policy::usage::Usage;
use crate::records::agent::{AgentRecord, AgentStatus};
use crate::records::effect::{CommitRecord, EffectRow, EffectStatus};
use crate::records::question::{Question, QuestionPlace, QuestionRow, QuestionStatus};
use crate::records::review::{ReviewIssue, ReviewRecord, ReviewSeverity, ReviewTarget};
use crate::records::run_state::{NewValue, StateTransition, StateValue};
use crate::records::run_totals::{RunTotals, TokenTotals};
use crate::records::task::TaskRow;
use crate::records::tool_call::{Content, ToolCallMoved, ToolCallRow, ToolCallStatus};

fn question(step_id: Option<StepId>, nth: u32) -> QuestionRow {
    let question = Question::new("odd\n \"question\"?")
        .choices(["yes", "no"])
        .deadline(Duration::from_secs(9), "no");
    let place = QuestionPlace {
        step_id,
        text: question.text.clone(),
        nth,
    };
    let run_id = "a".parse().unwrap();
    QuestionRow::new(run_id, place, &question, at(5), &lease(1).expires)
}

fn put_question(from: Option<QuestionStatus>, row: &QuestionRow) -> Change {
    let row = Box::new(row.clone());
    Change::PutQuestion { from, row }
}

pub(crate) fn a_question_is_asked_once_in_its_place_and_the_first_answer_counts(
    state: &impl TestState,
) {
    let (mut store, _, step) = begun(state);
    let run_id: RunId = "a".parse().unwrap();
    let rows = [
        question(None, 0),
        question(None, 1),
        question(Some(step.id.clone()), 0),
    ];
    for row in &rows {
        store.commit(&[put_question(None, row)]).unwrap();
        let again = QuestionRow {
            id: QuestionId::random(),
            ..row.clone()
        };
        let error = store.commit(&[put_question(None, &again)]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "the place is taken");
    }
    assert_eq!(store.questions(&run_id).unwrap(), rows);
    assert_eq!(store.open_questions().unwrap(), rows);
    let answered = QuestionRow {
        status: QuestionStatus::Answered,
        answer: Some("yes".to_owned()),
        answered_at: Some(at(6)),
        timed_out: true,
        resumed_at: Some(at(7)),
        ..rows[1].clone()
    };
    let (mut one, mut other) = (state.open(), state.open());
    let answer = |row: &QuestionRow| put_question(Some(QuestionStatus::Open), row);
    one.commit(&[answer(&answered)]).unwrap();
    let late = QuestionRow {
        answer: Some("no".to_owned()),
        ..answered.clone()
    };
    let error = other.commit(&[answer(&late)]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.to_string().contains(answered.id.as_str()), "{error}");
    assert_eq!(store.question(&answered.id).unwrap(), Some(answered));
    let open = [rows[0].clone(), rows[2].clone()];
    assert_eq!(store.open_questions().unwrap(), open);
    let found = store
        .questions_that_begin(&rows[2].id.as_str()[..12])
        .unwrap();
    assert_eq!(found, [rows[2].clone()]);
    assert_eq!(store.questions_that_begin("que_%").unwrap(), []);
    assert_eq!(store.problems().unwrap(), [] as [String; 0]);
}

fn effect(step_id: &StepId, workspace_id: &str) -> EffectRow {
    EffectRow {
        id: EffectId::random(),
        run_id: "a".parse().unwrap(),
        step_id: step_id.clone(),
        workspace_id: workspace_id.to_owned(),
        status: EffectStatus::Pending,
        intent: CommitIntent {
            reference: "refs/heads/main".to_owned(),
            parent: Some("0".repeat(40)),
            tree: "1".repeat(40),
            message: "Fix\n\nStillframe-Run: a\n".to_owned(),
            signature: Signature::new("N \u{e9}", "n@example.com"),
            time: 1_700_000_000,
            commit: "2".repeat(40),
            index: Some("5".repeat(64)),
            paths: vec![RelPath::new("odd\n name").unwrap()],
        },
        commit: None,
        error: None,
        created_at: at(5),
        ended_at: None,
    }
}

fn put_effect(from: Option<EffectStatus>, row: &EffectRow) -> Change {
    let row = Box::new(row.clone());
    Change::PutEffect { from, row }
}

pub(crate) fn effects_are_a_queue_in_order_and_each_is_settled_once(state: &impl TestState) {
    let (mut store, _, step) = begun(state);
    let run_id: RunId = "a".parse().unwrap();
    let rows = [
        effect(&step.id, "w"),
        effect(&step.id, "other"),
        effect(&step.id, "w"),
    ];
    for row in &rows {
        store.commit(&[put_effect(None, row)]).unwrap();
        let twice = store.commit(&[put_effect(None, row)]).unwrap_err();
        assert_eq!(twice.kind(), ErrorKind::Conflict);
    }
    assert_eq!(store.effects(&run_id).unwrap(), rows);
    let pending = [rows[0].clone(), rows[2].clone()];
    assert_eq!(store.pending_effects("w").unwrap(), pending);
    let done = EffectRow {
        status: EffectStatus::Done,
        commit: Some("2".repeat(40)),
        ended_at: Some(at(6)),
        ..rows[0].clone()
    };
    let failed = EffectRow {
        status: EffectStatus::Failed,
        error: Some(Failure::of_work("moved")),
        ended_at: Some(at(7)),
        ..rows[2].clone()
    };
    let from = Some(EffectStatus::Pending);
    store.commit(&[put_effect(from, &done)]).unwrap();
    let error = state.open().commit(&[put_effect(from, &done)]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "it is settled");
    store.commit(&[put_effect(from, &failed)]).unwrap();
    assert_eq!(store.pending_effects("w").unwrap(), []);
    let other = EffectRow {
        intent: CommitIntent {
            tree: "3".repeat(40),
            ..rows[1].intent.clone()
        },
        ..rows[1].clone()
    };
    let error = store.commit(&[put_effect(from, &other)]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "an intent never changes");
    let all = [done, rows[1].clone(), failed];
    assert_eq!(state.open().effects(&run_id).unwrap(), all);
    assert_eq!(store.problems().unwrap(), [] as [String; 0]);
}

pub(crate) fn a_commit_keeps_its_first_owner_and_gets_the_rest(state: &impl TestState) {
    let (mut store, _, step) = begun(state);
    let session: SessionId = "s".parse().unwrap();
    store.commit(&[run(&session, "b")]).unwrap();
    let first = CommitRecord {
        vcs: "git".to_owned(),
        commit: "2".repeat(40),
        run_id: "a".parse().unwrap(),
        step_id: Some(step.id.clone()),
        message: "Fix".to_owned(),
        author: Signature::new("n", "n@example.com"),
        files_changed: 1,
        insertions: 2,
        deletions: 3,
        created_at: at(5),
    };
    let record = |commit: &CommitRecord| Change::RecordCommit(Box::new(commit.clone()));
    store.commit(&[record(&first)]).unwrap();
    let again = CommitRecord {
        run_id: "b".parse().unwrap(),
        step_id: None,
        message: "Fix it".to_owned(),
        insertions: 9,
        created_at: at(6),
        ..first.clone()
    };
    store.commit(&[record(&again)]).unwrap();
    let kept = CommitRecord {
        run_id: first.run_id.clone(),
        step_id: first.step_id.clone(),
        created_at: first.created_at,
        ..again
    };
    assert_eq!(
        store.commit_record("git", &first.commit).unwrap(),
        Some(kept.clone())
    );
    assert_eq!(store.commit_record("hg", &first.commit).unwrap(), None);
    assert_eq!(store.commits(&kept.run_id).unwrap(), [kept]);
    assert_eq!(store.commits(&"b".parse().unwrap()).unwrap(), []);
    let set = |step_id: StepId| Change::SetStepCommit {
        run_id: "a".parse().unwrap(),
        step_id,
        commit: first.commit.clone(),
    };
    store.commit(&[set(step.id.clone())]).unwrap();
    let found = &store.steps(&"a".parse().unwrap()).unwrap()[0];
    assert_eq!(found.commit_created.as_ref(), Some(&first.commit));
    assert_eq!(
        found.snapshot_before, step.snapshot_before,
        "the rest stays"
    );
    // Somebody writes the row that was read before.
    let running = Some(StepStatus::Running);
    store.commit(&[put(running, &step)]).unwrap();
    let found = store.steps(&"a".parse().unwrap()).unwrap().remove(0);
    assert_eq!(found.commit_created.as_ref(), Some(&first.commit));
    // It was gone back from.
    let again = StepRow {
        attempt: step.attempt + 1,
        ..step.clone()
    };
    store.commit(&[put(running, &again)]).unwrap();
    let found = store.steps(&"a".parse().unwrap()).unwrap().remove(0);
    assert_eq!(found, again);
    let error = store.commit(&[set(StepId::random())]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(store.problems().unwrap(), [] as [String; 0]);
}

pub(crate) fn a_task_is_one_row_that_another_attempt_takes_over(state: &impl TestState) {
    let (mut store, _, step) = begun(state);
    let task = TaskRow {
        run_id: "a".parse().unwrap(),
        step_id: step.id.clone(),
        name: "odd\n name".to_owned(),
        attempt: 1,
        status: StepStatus::Running,
        error: None,
        started_at: at(5),
        completed_at: None,
        duration_ms: None,
    };
    let put = |row: &TaskRow| Change::PutTask(Box::new(row.clone()));
    store.commit(&[put(&task)]).unwrap();
    let error = store.commit(&[put(&task)]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "it is under way");
    let again = TaskRow {
        attempt: 2,
        started_at: at(6),
        ..task.clone()
    };
    store.commit(&[put(&again)]).unwrap();
    let failure = Some(Failure::of_work("no luck"));
    let ended = again.ended(StepStatus::Failed, failure, at(7), Duration::from_millis(9));
    store.commit(&[put(&ended)]).unwrap();
    assert_eq!(store.tasks(&task.run_id).unwrap(), [ended]);
    assert_eq!(store.problems().unwrap(), [] as [String; 0]);
}

pub(crate) fn a_value_of_a_run_changes_with_its_transition_or_not_at_all(state: &impl TestState) {
    let (mut store, session) = started(state, "s");
    store
        .commit(&[run(&session, "a"), run(&session, "b")])
        .unwrap();
    let set = |run_id: &str, key: &str, value: Value, second: i64| {
        Change::SetState(Box::new(NewValue {
            run_id: run_id.parse().unwrap(),
            key: key.to_owned(),
            value,
            trigger: format!("at {second}"),
            at: at(second),
        }))
    };
    let moved = |key: &str, old: Option<Value>, new: Option<Value>, second: i64| StateTransition {
        key: key.to_owned(),
        old_value: old,
        new_value: new,
        trigger: format!("at {second}"),
        at: at(second),
    };
    let (one, two) = (json!({ "n": 1 }), json!({ "n": 2 }));
    store
        .commit(&[
            set("a", "z", one.clone(), 5),
            set("a", "odd\n key", one.clone(), 6),
        ])
        .unwrap();
    let late = [fence("a", 9), set("a", "z", two.clone(), 7)];
    assert!(matches!(store.commit(&late), Err(StateError::TakenOver(_))));
    store
        .commit(&[
            fence("a", 1),
            set("a", "z", two.clone(), 8),
            set("a", "z", two.clone(), 9),
            set("b", "z", Value::Null, 9),
            set("a", "odd\n key", Value::Null, 10),
        ])
        .unwrap();
    let (a, b): (RunId, RunId) = ("a".parse().unwrap(), "b".parse().unwrap());
    let store = state.open();
    let kept = StateValue {
        key: "z".to_owned(),
        value: two.clone(),
        changed_at: at(8),
    };
    assert_eq!(store.state_values(&a).unwrap(), std::slice::from_ref(&kept));
    assert_eq!(store.state_value(&a, "z").unwrap(), Some(kept));
    assert_eq!(store.state_value(&a, "odd\n key").unwrap(), None);
    let all = [
        moved("z", None, Some(one.clone()), 5),
        moved("odd\n key", None, Some(one.clone()), 6),
        moved("z", Some(one.clone()), Some(two), 8),
        moved("odd\n key", Some(one), None, 10),
    ];
    assert_eq!(store.state_transitions(&a).unwrap(), all);
    assert_eq!(store.state_values(&b).unwrap(), []);
    assert_eq!(store.state_transitions(&b).unwrap(), []);
    assert_eq!(store.problems().unwrap(), [] as [String; 0]);
}

pub(crate) fn a_call_of_a_tool_is_written_with_its_event_and_ends_with_its_run(
    state: &impl TestState,
) {
    let (mut store, session) = started(state, "s");
    let begun = step("a", RunStatus::Pending, RunStatus::Running, 3);
    store.commit(&[run(&session, "a"), begun]).unwrap();
    let content = |value: Option<Value>, artifact: Option<&str>| Content {
        value,
        artifact: artifact.map(str::to_owned),
        summary: artifact.map(|_| "odd\n \"beginning\"".to_owned()),
        size_bytes: 7,
    };
    let call = |id: &str, status: ToolCallStatus| ToolCallMoved {
        call_id: id.to_owned(),
        step_id: None,
        tool_name: None,
        status,
        input: None,
        output: None,
        error: None,
    };
    let run_id: RunId = "a".parse().unwrap();
    let told = |second: i64, moved: &ToolCallMoved| {
        Change::Append(NewEvent {
            run_id: Some("a".parse().unwrap()),
            reported: Some(Reported::Call(Box::new(moved.clone()))),
            ..note(&session, second, json!({}))
        })
    };
    let first = ToolCallMoved {
        step_id: Some(StepId::random()),
        tool_name: Some("Edit".to_owned()),
        input: Some(content(Some(json!({ "a": [1] })), None)),
        ..call("1", ToolCallStatus::Running)
    };
    let failed = ToolCallMoved {
        output: Some(content(None, Some("key"))),
        error: Some(Failure::of_work("no luck")),
        ..call("1", ToolCallStatus::Failed)
    };
    let open = call("2", ToolCallStatus::Running);
    let begin = told(5, &first);
    store.commit(&[begin.clone(), told(6, &failed)]).unwrap();
    // It is there already, so it says nothing more.
    store.commit(&[begin, told(7, &open)]).unwrap();
    let row = |known: ToolCallMoved, started_at: Option<i64>, ended_at: Option<i64>| ToolCallRow {
        run_id: run_id.clone(),
        source: EventSource::Engine,
        known,
        started_at: started_at.map(at),
        ended_at: ended_at.map(at),
    };
    let ended_as = ToolCallMoved {
        status: failed.status,
        output: failed.output,
        error: failed.error,
        ..first
    };
    let rows = [row(ended_as, Some(5), Some(6)), row(open, Some(7), None)];
    assert_eq!(store.tool_calls(&run_id).unwrap(), rows);
    // An adapter changes no call of the engine's.
    let of_adapter = Change::Append(NewEvent {
        run_id: Some(run_id.clone()),
        source: EventSource::Adapter,
        reported: Some(Reported::Call(Box::new(call(
            "1",
            ToolCallStatus::Completed,
        )))),
        ..note(&session, 8, json!({}))
    });
    store.commit(&[of_adapter]).unwrap();
    assert_eq!(store.tool_calls(&run_id).unwrap(), rows);
    store.commit(&[ended("a", RunEnding::default())]).unwrap();
    let calls = state.open().tool_calls(&run_id).unwrap();
    assert_eq!(calls[0], rows[0]);
    assert_eq!(calls[1].known.status, ToolCallStatus::Interrupted);
    assert!(calls[1].ended_at.is_some());
    assert_eq!(store.problems().unwrap(), [] as [String; 0]);
}

pub(crate) fn tokens_are_added_up_once_for_each_event(state: &impl TestState) {
    let (mut store, _, _) = begun(state);
    let session: SessionId = "s".parse().unwrap();
    store.commit(&[run(&session, "b")]).unwrap();
    let used = |input_tokens: u64, output_tokens: u64| {
        let used = Usage::tokens(input_tokens, output_tokens);
        let reported = Reported::Tokens(Box::new((used, None)));
        Change::Append(NewEvent {
            run_id: Some("a".parse().unwrap()),
            reported: Some(reported),
            ..note(&session, 5, json!({}))
        })
    };
    let once = used(3, 0);
    store.commit(&[once.clone(), used(4, 7)]).unwrap();
    store.commit(&[once]).unwrap();
    let tokens = |input_tokens: u64, output_tokens: u64| TokenTotals {
        input_tokens,
        output_tokens,
    };
    let run_id: RunId = "a".parse().unwrap();
    let expected = RunTotals {
        agents: 0,
        tool_calls: 0,
        iterations: 1,
        tokens: tokens(7, 7),
    };
    assert_eq!(store.run_totals(&run_id).unwrap(), Some(expected));
    let other = store.run_totals(&"b".parse().unwrap()).unwrap();
    assert_eq!(other, Some(RunTotals::default()));
    assert_eq!(store.run_totals(&"c".parse().unwrap()).unwrap(), None);
    store
        .commit(&[used(u64::MAX, 1), used(u64::MAX, 1)])
        .unwrap();
    let found = state.open().run_totals(&run_id).unwrap().unwrap();
    let most = i64::MAX.unsigned_abs();
    assert_eq!(found.tokens, tokens(most, 9), "it stays at the most");
    assert_eq!(store.problems().unwrap(), [] as [String; 0]);
}

pub(crate) fn an_agent_ends_once_and_its_tokens_are_those_of_its_events(state: &impl TestState) {
    let (mut store, session) = started(state, "s");
    let begun = step("a", RunStatus::Pending, RunStatus::Running, 3);
    store
        .commit(&[run(&session, "a"), run(&session, "b"), begun])
        .unwrap();
    let run_id: RunId = "a".parse().unwrap();
    let agent = |second: i64| AgentRecord {
        id: AgentId::random(),
        run_id: "a".parse().unwrap(),
        step_id: Some(StepId::random()),
        name: Some("odd\n name".to_owned()),
        model: None,
        prompts: vec!["one".to_owned()],
        tokens: TokenTotals::default(),
        status: AgentStatus::Running,
        error: None,
        started_at: at(second),
        ended_at: None,
    };
    let (first, second) = (agent(5), agent(6));
    let begin = |agent: &AgentRecord| Change::BeginAgent(Box::new(agent.clone()));
    let change = |agent: &AgentRecord| Change::MoveAgent(Box::new(agent.clone()));
    store.commit(&[begin(&first), begin(&second)]).unwrap();
    let used = |run_id: &str, agent_id: &str| {
        let agent_id = agent_id.parse().unwrap();
        let reported = Reported::Tokens(Box::new((Usage::tokens(3, 4), Some(agent_id))));
        Change::Append(NewEvent {
            run_id: Some(run_id.parse().unwrap()),
            reported: Some(reported),
            ..note(&session, 7, json!({}))
        })
    };
    let own = first.id.as_str();
    store
        .commit(&[used("a", own), used("b", own), used("a", "nobody")])
        .unwrap();
    // Written from what was read before the tokens were told.
    let failed = AgentRecord {
        prompts: vec!["one".to_owned(), "two".to_owned()],
        status: AgentStatus::Failed,
        error: Some(Failure::of_work("no luck")),
        ended_at: Some(at(8)),
        ..first.clone()
    };
    store.commit(&[change(&failed)]).unwrap();
    let again = store.commit(&[change(&failed)]).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Conflict, "{again}");
    let tokens = TokenTotals {
        input_tokens: 3,
        output_tokens: 4,
    };
    let expected = [AgentRecord { tokens, ..failed }, second];
    assert_eq!(store.agents(&run_id).unwrap(), expected);
    assert_eq!(store.prompt_keys().unwrap(), ["one", "two", "one"]);
    let totals = store.run_totals(&run_id).unwrap().unwrap();
    assert_eq!((totals.agents, totals.tokens.input_tokens), (2, 6));
    store.commit(&[ended("a", RunEnding::default())]).unwrap();
    let agents = state.open().agents(&run_id).unwrap();
    assert_eq!(agents[0], expected[0]);
    assert_eq!(agents[1].status, AgentStatus::Interrupted);
    assert!(agents[1].ended_at.is_some());
    assert_eq!(store.problems().unwrap(), [] as [String; 0]);
}

pub(crate) fn reviews_come_back_as_they_were_recorded(state: &impl TestState) {
    let (mut store, session) = started(state, "s");
    let (mut other_store, other) = started(state, "t");
    other_store.commit(&[run(&other, "b")]).unwrap();
    store.commit(&[run(&session, "a")]).unwrap();
    let issue = ReviewIssue::new(ReviewSeverity::Critical, "odd\n \"message\"")
        .at("src/a b.rs", 7)
        .suggestion("x");
    let review = |session: &SessionId, run_id: Option<&str>, target_type| ReviewRecord {
        id: ReviewId::random(),
        session_id: session.clone(),
        run_id: run_id.map(|id| id.parse().unwrap()),
        step_id: run_id.map(|_| StepId::random()),
        target_type,
        target_ref: "a..b".to_owned(),
        approved: run_id.is_some(),
        blocking: run_id.is_none(),
        summary: "fine".to_owned(),
        issues: vec![issue.clone(); 2],
        created_at: at(5),
    };
    let reviews = [
        review(&session, Some("a"), ReviewTarget::Commit),
        review(&session, None, ReviewTarget::Diff),
        review(&other, Some("b"), ReviewTarget::Pr),
        review(&session, Some("a"), ReviewTarget::Files),
    ];
    for review in &reviews {
        let record = Change::RecordReview(Box::new(review.clone()));
        store.commit(&[record]).unwrap();
    }
    let store = state.open();
    let found = |session_id: Option<&SessionId>, run_id: Option<&str>| {
        let run_id = run_id.map(|id| id.parse().unwrap());
        store.reviews(session_id, run_id.as_ref()).unwrap()
    };
    assert_eq!(found(None, None), reviews);
    let of_run = [reviews[0].clone(), reviews[3].clone()];
    assert_eq!(found(None, Some("a")), of_run);
    assert_eq!(found(Some(&session), None).len(), 3);
    assert_eq!(found(Some(&other), Some("a")), []);
    assert_eq!(store.problems().unwrap(), [] as [String; 0]);
}
