//! The promises about runs with a worktree of their own.

use stillframe_backends::{CommitIntent, Signature};

use super::*;
use crate::id::ReviewRequestId;
use crate::records::isolation::{Candidate, IsolationRow};
use crate::records::merge::{MergeMode, MergeOutcome, MergeRow, MergedRun};
use crate::records::revision::{Revision, RevisionRow};
use crate::state::isolation_change::IsolationChange;

fn row(run_id: &str) -> IsolationRow {
    IsolationRow {
        run_id: run_id.parse().unwrap(),
        repository_path: PathBuf::from("/odd\n name"),
        originating_branch: "refs/heads/main".to_owned(),
        base: "0a".repeat(20),
        worktree_path: PathBuf::from("/state/worktrees/r"),
        worktree_branch: "refs/heads/stillframe/run/r".to_owned(),
        made_at: None,
        intent: None,
        out_of_scope: Vec::new(),
        unconverted: Vec::new(),
        candidate: None,
        reviewed_by: None,
        merge: None,
        let_go_at: None,
    }
}

fn intent() -> CommitIntent {
    CommitIntent {
        reference: "refs/heads/stillframe/run/r".to_owned(),
        parent: Some("0a".repeat(20)),
        tree: "0b".repeat(20),
        message: "work\n".to_owned(),
        signature: Signature::new("n", "e"),
        time: 5,
        commit: "0c".repeat(20),
        index: None,
        paths: vec![RelPath::new(b"odd\xff").unwrap()],
    }
}

fn candidate() -> Box<Candidate> {
    Box::new(Candidate {
        request_id: ReviewRequestId::random(),
        commit: "0c".repeat(20),
        tree: Some("0b".repeat(20)),
        diff: Some("patch_1".to_owned()),
        ready_at: at(9),
    })
}

pub(crate) fn where_a_run_works_is_on_record_before_it_does_and_moves_once(state: &impl TestState) {
    let (mut store, session) = started(state, "s");
    let new = |id: &str| {
        Change::CreateRun(Box::new(NewRun {
            isolation: Some(Box::new(row(id))),
            ..new_run(&session, id)
        }))
    };
    store.commit(&[new("r"), new("other")]).unwrap();
    let run_id: RunId = "r".parse().unwrap();
    let kept = || state.open().isolation(&run_id).unwrap().unwrap();
    assert_eq!(kept(), row("r"));
    let is_refused = |change: IsolationChange| {
        let before = kept();
        let refused = state.open().commit(&[Change::Isolation(change)]);
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Conflict);
        assert_eq!(kept(), before);
    };
    let paths = |all: &[&str]| {
        all.iter()
            .map(|path| RelPath::new(*path).unwrap())
            .collect()
    };
    let commit = |intent: Option<CommitIntent>, out: &[&str]| IsolationChange::Commit {
        run_id: run_id.clone(),
        intent: intent.map(Box::new),
        out_of_scope: paths(out),
        unconverted: paths(&["c"]),
    };
    is_refused(commit(Some(intent()), &[]));
    let place = RunWorkspace {
        workspace_id: "w".to_owned(),
        path: PathBuf::from("/state/worktrees/r"),
        before: SnapshotId::random(),
        after: SnapshotId::random(),
    };
    let made = |second| IsolationChange::Made {
        run_id: run_id.clone(),
        workspace: Box::new(place.clone()),
        at: at(second),
    };
    store.commit(&[Change::Isolation(made(3))]).unwrap();
    is_refused(made(4));
    assert_eq!(store_run(state).workspace.as_ref(), Some(&place));
    let wanted = commit(Some(intent()), &["a", "b"]);
    store.commit(&[Change::Isolation(wanted)]).unwrap();
    let worked = kept();
    assert_eq!(worked.made_at, Some(at(3)));
    assert_eq!(worked.intent, Some(intent()));
    assert_eq!(worked.out_of_scope, paths(&["a", "b"]));
    assert_eq!(worked.unconverted, paths(&["c"]));
    let hand_in = |candidate: &Candidate| IsolationChange::HandIn {
        run_id: run_id.clone(),
        candidate: Box::new(candidate.clone()),
    };
    let first = candidate();
    store.commit(&[Change::Isolation(hand_in(&first))]).unwrap();
    assert_eq!(kept().candidate.as_ref(), Some(&*first));
    assert_eq!(kept().intent, None);
    is_refused(hand_in(&candidate()));
    let decided = IsolationChange::Decided {
        run_id: run_id.clone(),
        reviewed_by: Some("ann".to_owned()),
    };
    store.commit(&[Change::Isolation(decided)]).unwrap();
    assert_eq!(kept().reviewed_by.as_deref(), Some("ann"));
    let ids = || -> Vec<String> {
        let kept = state.open().isolations_kept().unwrap().into_iter();
        kept.map(|row| row.run_id.to_string()).collect()
    };
    assert_eq!(ids(), ["r", "other"]);
    let let_go = |second| IsolationChange::LetGo {
        run_id: run_id.clone(),
        at: at(second),
    };
    store.commit(&[Change::Isolation(let_go(12))]).unwrap();
    is_refused(let_go(13));
    assert_eq!(ids(), ["other"]);
    assert_eq!(kept().let_go_at, Some(at(12)));
    // What comes next is handed in anew.
    let next = commit(None, &[]);
    store.commit(&[Change::Isolation(next)]).unwrap();
    assert_eq!(kept().candidate, None);
    assert_eq!(store.problems().unwrap(), [] as [String; 0]);
}

pub(crate) fn what_is_decided_about_what_a_run_hands_in_is_on_record(state: &impl TestState) {
    let (mut store, session) = started(state, "s");
    let run_id: RunId = "r".parse().unwrap();
    let new = Change::CreateRun(Box::new(NewRun {
        isolation: Some(Box::new(row("r"))),
        ..new_run(&session, "r")
    }));
    let made = IsolationChange::Made {
        run_id: run_id.clone(),
        workspace: Box::new(RunWorkspace {
            workspace_id: "w".to_owned(),
            path: PathBuf::from("/state/worktrees/r"),
            before: SnapshotId::random(),
            after: SnapshotId::random(),
        }),
        at: at(3),
    };
    let first = candidate();
    let hand_in = IsolationChange::HandIn {
        run_id: run_id.clone(),
        candidate: first.clone(),
    };
    let all = [made, hand_in].map(Change::Isolation);
    store.commit(&[new]).unwrap();
    store.commit(&all).unwrap();
    let kept = || state.open().isolation(&run_id).unwrap().unwrap();
    let paths = |all: &[&str]| {
        let paths = all.iter().map(|path| RelPath::new(*path).unwrap());
        paths.collect::<Vec<_>>()
    };
    let mut merge = MergeRow {
        approved_at: at(10),
        ref_only: true,
        require_current_base: false,
        planned: Some(MergedRun {
            commit: first.commit.clone(),
            mode: MergeMode::MergedFiles,
            previous_head: "0d".repeat(20),
            new_head: "0e".repeat(20),
            fast_forward: false,
            target_advanced: true,
            left_behind: vec!["/odd\n name".to_owned()],
            kept: paths(&["k"]),
        }),
        outcome: None,
    };
    for outcome in [
        None,
        Some(MergeOutcome::Blocked {
            reason: "a rebase".to_owned(),
        }),
        Some(MergeOutcome::Conflict {
            files: paths(&["a"]),
            more: 3,
        }),
        merge.planned.clone().map(MergeOutcome::Merged),
    ] {
        merge.outcome = outcome;
        let said = IsolationChange::Merge {
            run_id: run_id.clone(),
            merge: Box::new(merge.clone()),
        };
        store.commit(&[Change::Isolation(said)]).unwrap();
        assert_eq!(kept().merge.as_ref(), Some(&merge));
    }
    let revisions = || state.open().revisions(&run_id).unwrap();
    assert_eq!(revisions(), []);
    let revision = |number| RevisionRow {
        run_id: run_id.clone(),
        revision: Revision {
            number,
            reviewer: Some("ann".to_owned()),
            created_at: at(11),
            comment: "twice".to_owned(),
            previous_tree: first.tree.clone(),
        },
        raw_comment: "twi\u{7}ce".to_owned(),
    };
    let revise = |number| {
        let change = IsolationChange::Revise(Box::new(revision(number)));
        state.open().commit(&[Change::Isolation(change)])
    };
    for number in [1, 2] {
        revise(number).unwrap();
    }
    revise(2).unwrap_err();
    assert_eq!(revisions(), [revision(1), revision(2)]);
    // What comes next is handed in anew.
    let next = IsolationChange::Commit {
        run_id: run_id.clone(),
        intent: None,
        out_of_scope: Vec::new(),
        unconverted: Vec::new(),
    };
    store.commit(&[Change::Isolation(next)]).unwrap();
    assert_eq!((kept().candidate, kept().merge), (None, None));
    assert_eq!(revisions().len(), 2);
    assert_eq!(store.problems().unwrap(), [] as [String; 0]);
}

pub(crate) fn how_a_run_worked_is_known_while_it_is_reviewed(state: &impl TestState) {
    let (mut store, session) = started(state, "s");
    let moves = |from, to, ending: Option<RunEnding>| Change::MoveRun {
        id: "r".parse().unwrap(),
        from,
        to,
        at: at(5),
        ending: ending.map(Box::new),
        came_for: None,
    };
    let ended = RunEnding {
        exit_code: Some(3),
        workspace: json!({ "a": 1 }),
        ..RunEnding::default()
    };
    let all = [
        run(&session, "r"),
        moves(RunStatus::Pending, RunStatus::Running, None),
        moves(RunStatus::Running, RunStatus::Candidate, Some(ended)),
        moves(RunStatus::Candidate, RunStatus::AwaitingReview, None),
    ];
    store.commit(&all).unwrap();
    let kept = || store_run(state);
    assert_eq!(
        (kept().exit_code, kept().summary),
        (Some(3), json!({ "a": 1 }))
    );
    assert_eq!(kept().ended_at, None);
    assert_eq!(store.runs_not_ended().unwrap().len(), 1);
    let declined = moves(RunStatus::AwaitingReview, RunStatus::Declined, None);
    store.commit(&[declined]).unwrap();
    assert_eq!((kept().exit_code, kept().ended_at), (Some(3), Some(at(5))));
    assert_eq!(store.runs_not_ended().unwrap().len(), 0);
}

fn store_run(state: &impl TestState) -> crate::records::run_row::RunRow {
    let id: RunId = "r".parse().unwrap();
    state.open().run(&id).unwrap().unwrap()
}
