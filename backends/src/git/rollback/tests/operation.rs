//! Rollbacks with a merge, rebase, cherry-pick, revert or bisect in progress before or after the
//! run.

use super::*;

/// Everything by which git knows an operation, as git names it, with its bytes.
pub(super) fn files_of(stage: &Stage) -> String {
    let all = view(&stage.path(".git"));
    let of_operation = all.into_iter().filter(|(path, _)| {
        let first = path.split('/').next().unwrap();
        let is_pseudo_ref = first.chars().all(|c| c.is_ascii_uppercase() || c == '_');
        let elsewhere = ["HEAD", "COMMIT_EDITMSG", "FETCH_HEAD"];
        is_pseudo_ref && !elsewhere.contains(&first)
            || ["rebase-merge", "rebase-apply", "sequencer"].contains(&first)
            || path.starts_with("refs/bisect")
            || path.starts_with("refs/rewritten")
    });
    // Modes are those of new files.
    let content = |what: &str| {
        what.split_once(' ')
            .map_or(String::new(), |(_, w)| w.to_owned())
    };
    of_operation
        .map(|(path, what)| format!("\n{path} {}", content(&what)))
        .collect()
}

/// `main` and `topic` change the same line, `topic` twice; on `main`.
fn two_branches() -> Stage {
    let stage = Stage::new();
    stage.git(&["init", "-q", "-b", "main"]);
    stage.write("tracked", "base\n");
    stage.git(&["add", "."]);
    stage.git(&["commit", "-q", "-m", "base"]);
    stage.git(&["checkout", "-q", "-b", "topic"]);
    for text in ["topic\n", "more\n"] {
        stage.write("tracked", text);
        stage.git(&["commit", "-q", "-a", "-m", text]);
    }
    stage.git(&["checkout", "-q", "main"]);
    stage.write("tracked", "main\n");
    stage.git(&["commit", "-q", "-a", "-m", "main"]);
    stage.write("untracked", "mine\n");
    stage
}

/// Runs git, which may well end with a conflict.
fn run_git(stage: &Stage, command: &[&str]) {
    crate::restore::naive::git_command(&stage.directory, command)
        .env("GIT_EDITOR", "true")
        .output()
        .unwrap();
}

/// What stops in the middle, how it goes on, and how it is given up.
struct Stops {
    begin: &'static [&'static [&'static str]],
    goes_on: &'static [&'static str],
    abort: &'static [&'static str],
}

const STOPS: [Stops; 7] = [
    Stops {
        begin: &[&["merge", "topic"]],
        goes_on: &["merge", "--continue"],
        abort: &["merge", "--abort"],
    },
    Stops {
        begin: &[&["rebase", "topic"]],
        goes_on: &["rebase", "--continue"],
        abort: &["rebase", "--abort"],
    },
    Stops {
        begin: &[&["rebase", "--apply", "topic"]],
        goes_on: &["rebase", "--continue"],
        abort: &["rebase", "--abort"],
    },
    Stops {
        begin: &[
            &["checkout", "-q", "topic"],
            &["rebase", "--rebase-merges", "main"],
        ],
        goes_on: &["rebase", "--continue"],
        abort: &["rebase", "--abort"],
    },
    Stops {
        begin: &[&["cherry-pick", "topic~1", "topic"]],
        goes_on: &["cherry-pick", "--continue"],
        abort: &["cherry-pick", "--abort"],
    },
    Stops {
        begin: &[&["revert", "--no-edit", "HEAD~1"]],
        goes_on: &["revert", "--continue"],
        abort: &["revert", "--abort"],
    },
    Stops {
        begin: &[&["bisect", "start", "topic", "HEAD~1"]],
        goes_on: &["bisect", "good"],
        abort: &["bisect", "reset"],
    },
];

#[test]
fn an_operation_that_a_run_began_is_taken_back_whole_and_brought_back_by_an_undo() {
    for Stops { begin, .. } in STOPS {
        let mut stage = two_branches();
        let before = stage.snapshot();
        let was = seen(&stage);
        let status = stage.git(&["status", "--porcelain=v2", "--branch"]);
        let index = fs::read(stage.path(".git/index")).unwrap();
        for command in begin {
            run_git(&stage, command);
        }
        let left = seen(&stage);
        assert_ne!(was.2, left.2, "{begin:?}");
        let after = snapshot_since(&stage, &before);

        let outcome = roll_back(&mut stage, &before, &after).unwrap();

        assert_eq!(outcome.repository_error, None, "{begin:?}");
        assert!(seen(&stage).0 == index, "{begin:?}");
        assert_eq!(seen(&stage), was, "{begin:?}");
        assert_eq!(stage.git(&["status", "--porcelain=v2", "--branch"]), status);
        assert_eq!(leavings(&stage), Vec::<String>::new());

        let undone = undo(&mut stage, &outcome.guard, &outcome.result).unwrap();
        assert_eq!(undone.repository_error, None, "{begin:?}");
        assert_eq!(seen(&stage), left, "{begin:?}");
    }
}

#[test]
fn one_that_a_run_brought_to_its_end_can_be_gone_on_with() {
    for Stops {
        begin,
        goes_on,
        abort,
    } in STOPS
    {
        for end in [goes_on, abort] {
            let mut stage = two_branches();
            for command in begin {
                run_git(&stage, command);
            }
            let status = stage.git(&["status", "--porcelain=v2", "--branch"]);
            let before = stage.snapshot();
            let was = seen(&stage);
            stage.write("tracked", "resolved\n");
            stage.git(&["add", "tracked"]);
            if begin[0][0] == "bisect" {
                stage.git(&["reset", "-q", "--hard"]);
            }
            run_git(&stage, end);
            let left = seen(&stage);
            assert_ne!(left.2, was.2, "{end:?}");
            let after = snapshot_since(&stage, &before);

            let outcome = roll_back(&mut stage, &before, &after).unwrap();

            assert_eq!(outcome.repository_error, None, "{begin:?} {end:?}");
            assert_eq!(seen(&stage), was, "{begin:?} {end:?}");
            assert_eq!(stage.git(&["status", "--porcelain=v2", "--branch"]), status);
            let undone = undo(&mut stage, &outcome.guard, &outcome.result).unwrap();
            assert_eq!(undone.repository_error, None, "{begin:?} {end:?}");
            assert_eq!(seen(&stage), left, "{begin:?} {end:?}");

            // git itself goes on from there, to the same end.
            let again = undo(&mut stage, &undone.guard, &undone.result).unwrap();
            assert_eq!(again.repository_error, None, "{begin:?} {end:?}");
            stage.git(abort);
            assert_eq!(
                files_of(&stage)
                    .replace("ORIG_HEAD", "")
                    .matches("_HEAD")
                    .count(),
                0
            );
        }
    }
}

fn merging(stage: &Stage) {
    run_git(stage, &["merge", "topic"]);
    assert!(stage.has(".git/MERGE_HEAD"));
}

#[test]
fn one_that_somebody_began_since_is_not_torn() {
    for is_undo in [false, true] {
        let mut stage = two_branches();
        let before = stage.snapshot();
        stage.write("untracked", "by the run\n");
        let after = snapshot_since(&stage, &before);
        merging(&stage);
        let was = (seen(&stage), view(&stage.path(".git")));
        let error = match is_undo {
            false => roll_back(&mut stage, &before, &after).unwrap_err(),
            true => undo(&mut stage, &before, &after).unwrap_err(),
        };
        let is_named = matches!(error, RestoreError::InProgress { operation: "merge" });
        assert!(is_named, "{error}");
        assert_eq!((seen(&stage), view(&stage.path(".git"))), was);
    }
}

#[test]
fn one_that_somebody_went_on_with_since_is_theirs() {
    let theirs: [fn(&Stage); 3] = [
        |stage| stage.write(".git/MERGE_MSG", "a better one\n"),
        |stage| run_git(stage, &["merge", "--abort"]),
        |stage| {
            stage.write("tracked", "resolved\n");
            stage.git(&["add", "tracked"]);
        },
    ];
    for (number, theirs) in theirs.into_iter().enumerate() {
        let mut stage = two_branches();
        let before = stage.snapshot();
        stage.write("untracked", "by the run\n");
        merging(&stage);
        let after = snapshot_since(&stage, &before);
        theirs(&stage);
        let was = (seen(&stage), view(&stage.path(".git")));

        // What is staged alone goes into the guard, as any edit does.
        if number < 2 {
            let error = roll_back(&mut stage, &before, &after).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
            assert!(!error.touched());
            assert_eq!((seen(&stage), view(&stage.path(".git"))), was, "{number}");
        }
        if number == 0 {
            let error = undo(&mut stage, &before, &after).unwrap_err();
            assert!(matches!(error, RestoreError::InProgress { .. }), "{error}");
            continue;
        }
        let outcome = undo(&mut stage, &before, &after).unwrap();
        let told = said(&outcome);
        assert!(told.contains("a merge goes by it"), "{told}");
        assert_eq!(told_kind(&outcome), ErrorKind::Conflict);
        let now = seen(&stage);
        assert_eq!(
            (now.0, now.1, now.2),
            (was.0.0, was.0.1, was.0.2),
            "{number}"
        );
        assert_eq!(stage.read("untracked"), "mine\n");
    }
}

#[test]
fn what_git_only_remembers_is_kept_by_an_undo_where_somebody_changed_it_since() {
    let mut stage = two_branches();
    let before = stage.snapshot();
    stage.git(&["update-ref", "ORIG_HEAD", "topic"]);
    stage.write(".git/SQUASH_MSG", "by the run\n");
    let after = snapshot_since(&stage, &before);
    stage.git(&["update-ref", "ORIG_HEAD", "main"]);
    let error = roll_back(&mut stage, &before, &after).unwrap_err();
    assert!(error.to_string().contains("ORIG_HEAD"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Conflict);

    let outcome = undo(&mut stage, &before, &after).unwrap();
    assert!(said(&outcome).contains("ORIG_HEAD was changed since"));
    assert_eq!(
        stage.git(&["rev-parse", "ORIG_HEAD"]),
        stage.git(&["rev-parse", "main"])
    );
    assert!(!stage.has(".git/SQUASH_MSG"));
}

#[test]
fn an_operation_whose_files_no_snapshot_keeps_is_named() {
    let mut stage = two_branches();
    merging(&stage);
    let before = stage.snapshot();
    stage.backend.forget_operation(&before.id);
    let was = seen(&stage);
    run_git(&stage, &["merge", "--abort"]);
    let after = snapshot_since(&stage, &before);
    let outcome = roll_back(&mut stage, &before, &after).unwrap();
    let told = said(&outcome);
    assert!(
        told.contains("the merge that was in progress has ended"),
        "{told}"
    );
    assert_eq!(told_kind(&outcome), ErrorKind::Unsupported);
    assert_eq!((seen(&stage).0, seen(&stage).3), (was.0, was.3));

    // One that goes on is left alone.
    let mut stage = two_branches();
    merging(&stage);
    let before = stage.snapshot();
    stage.backend.forget_operation(&before.id);
    stage.write("untracked", "by the run\n");
    let after = snapshot_since(&stage, &before);
    let outcome = roll_back(&mut stage, &before, &after).unwrap();
    assert_eq!(outcome.repository_error, None);
    assert!(stage.has(".git/MERGE_HEAD"));

    // And one that the run began is not torn, and keeps nothing else from going back.
    let mut stage = two_branches();
    let before = stage.snapshot();
    stage.backend.forget_operation(&before.id);
    stage.write("made", "by the run\n");
    merging(&stage);
    let after = snapshot_since(&stage, &before);
    let index = std::fs::read(stage.path(".git/index")).unwrap();
    let outcome = roll_back(&mut stage, &before, &after).unwrap();
    assert!(said(&outcome).contains("the merge that is in progress"));
    assert!(!stage.has("made") && stage.has(".git/MERGE_HEAD"));
    assert_eq!(std::fs::read(stage.path(".git/index")).unwrap(), index);
}

#[test]
fn a_file_that_changes_at_the_last_moment_is_kept() {
    let mut stage = two_branches();
    let before = stage.snapshot();
    merging(&stage);
    let after = stage.snapshot();
    let prepared = prepared(&mut stage, &before, &after, Duration::ZERO).unwrap();
    stage.write(".git/MERGE_MSG", "a better one\n");
    let staged = prepared.staged.clone().unwrap();
    let outcome = carry_out(
        &Operation::unbounded(),
        &prepared.plan,
        || Ok(staged),
        false,
        Duration::ZERO,
    );
    let error = outcome.error.unwrap();
    assert!(
        error.message.contains("MERGE_MSG is not as it was seen"),
        "{error:?}"
    );
    assert_eq!(error.kind, ErrorKind::Conflict);
    assert_eq!(stage.read(".git/MERGE_MSG"), "a better one\n");
    assert_eq!(leavings(&stage), Vec::<String>::new());
}

#[test]
fn what_somebody_puts_into_a_directory_of_an_operation_keeps_it() {
    let mut stage = two_branches();
    let before = stage.snapshot();
    run_git(&stage, &["rebase", "topic"]);
    let after = snapshot_since(&stage, &before);
    let prepared = prepared(&mut stage, &before, &after, Duration::ZERO).unwrap();
    stage.write(".git/rebase-merge/notes", "mine\n");
    let staged = prepared.staged.clone().unwrap();
    let outcome = carry_out(
        &Operation::unbounded(),
        &prepared.plan,
        || Ok(staged),
        false,
        Duration::ZERO,
    );
    let error = outcome.error.unwrap();
    assert!(
        error.message.contains("rebase-merge is not as it was seen"),
        "{error:?}"
    );
    assert_eq!(stage.read(".git/rebase-merge/notes"), "mine\n");
}

#[test]
fn a_directory_of_an_operation_that_is_a_link_by_then_is_not_written_through() {
    let mut stage = two_branches();
    run_git(&stage, &["rebase", "topic"]);
    let before = stage.snapshot();
    run_git(&stage, &["rebase", "--abort"]);
    let after = snapshot_since(&stage, &before);
    let prepared = prepared(&mut stage, &before, &after, Duration::ZERO).unwrap();
    let away = stage.outside.join("away");
    fs::create_dir(&away).unwrap();
    std::os::unix::fs::symlink(&away, stage.path(".git/rebase-merge")).unwrap();
    let staged = prepared.staged.clone().unwrap();
    let outcome = carry_out(
        &Operation::unbounded(),
        &prepared.plan,
        || Ok(staged),
        false,
        Duration::ZERO,
    );
    assert_eq!(outcome.error.unwrap().kind, ErrorKind::HostileRepository);
    assert_eq!(fs::read_dir(&away).unwrap().count(), 0);
}

#[test]
fn a_lock_on_one_of_its_files_is_waited_for_and_nothing_is_touched() {
    let mut stage = two_branches();
    let before = stage.snapshot();
    stage.git(&["cherry-pick", "-n", "HEAD"]);
    run_git(&stage, &["cherry-pick", "topic"]);
    let after = snapshot_since(&stage, &before);
    stage.write(".git/CHERRY_PICK_HEAD.lock", "somebody's\n");
    let was = (seen(&stage), view(&stage.path(".git")));
    let error = prepared(&mut stage, &before, &after, Duration::ZERO).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert_eq!((seen(&stage), view(&stage.path(".git"))), was);
}

#[test]
fn a_rollback_of_a_merge_that_dies_at_any_call_ends_before_or_after() {
    dies_at_any_call(|| {
        let stage = two_branches();
        let before = stage.snapshot();
        merging(&stage);
        let after = stage.snapshot();
        (stage, before, after)
    });
}

#[test]
fn so_does_one_that_begins_a_rebase_again() {
    dies_at_any_call(|| {
        let stage = two_branches();
        run_git(&stage, &["rebase", "topic"]);
        let before = stage.snapshot();
        run_git(&stage, &["rebase", "--abort"]);
        let after = snapshot_since(&stage, &before);
        (stage, before, after)
    });
}
