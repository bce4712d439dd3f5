//! The state of an intent after a crash, and settling it.

use super::*;
use crate::trial;

fn changed() -> (Story, CommitIntent) {
    let story = Story::new();
    story.git.write("src/main.c", "changed\n");
    story.git.write("new", "new\n");
    let intent = story.prepare();
    (story, intent)
}

fn adopted(outcome: CommitOutcome) -> String {
    match outcome {
        CommitOutcome::InPlace {
            commit,
            is_adopted: true,
        } => commit,
        outcome => panic!("{outcome:?}"),
    }
}

/// Everything that a commit may write, but for the objects.
fn state(story: &Story) -> impl PartialEq + std::fmt::Debug + use<> {
    let mut seen = view(&story.git.path.join(".git"));
    seen.retain(|path, _| !path.starts_with("objects"));
    seen
}

#[test]
fn an_intent_is_carried_out_once_however_often() {
    let (story, intent) = changed();
    let commit = story.apply(&intent);
    story.status();
    let was = state(&story);
    for _ in 0..3 {
        assert_eq!(adopted(story.try_apply(&intent).unwrap()), commit);
    }
    assert_eq!(state(&story), was);
    assert_eq!(story.git(&["rev-list", "--count", "HEAD"]), "2");
    assert_eq!(
        story
            .git(&["log", "-g", "--format=%gs", "HEAD"])
            .lines()
            .count(),
        2
    );
}

#[test]
fn two_prepared_from_the_same_state_are_one_commit() {
    let (story, intent) = changed();
    assert_eq!(story.prepare(), intent);
    let text = serde_json::to_string(&intent).unwrap();
    assert_eq!(serde_json::from_str::<CommitIntent>(&text).unwrap(), intent);
}

#[test]
fn a_branch_that_has_gone_on_is_left_where_it_is() {
    let (story, intent) = changed();
    let commit = story.apply(&intent);
    story.git.write("more", "more\n");
    story.git.commit("second");
    story.git(&["checkout", "-q", "-b", "side", "HEAD~1"]);
    story.git.write("side", "side\n");
    story.git.commit("beside");
    story.git(&["checkout", "-q", "main"]);
    story.git(&["merge", "-q", "--no-edit", "side"]);
    story.git.write("staged", "staged\n");
    story.git(&["add", "staged"]);
    let was = state(&story);
    assert_eq!(adopted(story.try_apply(&intent).unwrap()), commit);
    assert_eq!(state(&story), was);
}

#[test]
fn what_is_only_looked_for_is_adopted_where_it_is_and_made_nowhere() {
    let story = Story::new();
    story.git.write("src/main.c", "changed\n");
    let intent = story.prepare();
    let before = (story.git(&["rev-parse", "HEAD"]), story.status());
    assert_eq!(story.try_adopt(&intent), CommitOutcome::NotMade);
    assert_eq!((story.git(&["rev-parse", "HEAD"]), story.status()), before);
    let commit = story.apply(&intent);
    assert_eq!(adopted(story.try_adopt(&intent)), commit);
    assert_eq!(story.status(), "");
    story.git(&["reset", "-q", "--soft", "HEAD^"]);
    story.git(&["commit", "-q", "-m", "another"]);
    let moved = story.try_adopt(&intent);
    assert!(matches!(moved, CommitOutcome::RefMoved { .. }), "{moved:?}");
}

#[test]
fn the_same_commit_made_again_is_adopted_by_its_own_id() {
    let (story, intent) = changed();
    story.apply(&intent);
    // As a signature does.
    story.git(&[
        "commit",
        "-q",
        "--amend",
        "--no-edit",
        "--author=B <b@example.org>",
    ]);
    let amended = story.git(&["rev-parse", "HEAD"]);
    assert_ne!(amended, intent.commit);
    assert_eq!(adopted(story.try_apply(&intent).unwrap()), amended);
    story.git.write("more", "more\n");
    story.git.commit("goes on");
    assert_eq!(adopted(story.try_apply(&intent).unwrap()), amended);
    assert_eq!(story.status(), "");
}

#[test]
fn a_branch_that_is_elsewhere_is_not_touched() {
    let moves: [fn(&Story, &CommitIntent); 5] = [
        |story, _| story.git.commit("by a person"),
        |story, intent| {
            // The same, but not with these trailers.
            story.apply(intent);
            story.git(&["commit", "-q", "--amend", "-m", "another message"]);
        },
        |story, intent| {
            story.apply(intent);
            story.git.write("more", "more\n");
            story.git(&["add", "."]);
            story.git(&["commit", "-q", "--amend", "--no-edit"]);
        },
        |story, _| {
            story.git(&["checkout", "-q", "--orphan", "other"]);
            story.git(&["commit", "-q", "-m", "unrelated"]);
            story.git(&["branch", "-f", "main", "HEAD"]);
        },
        |story, _| {
            story.git(&["checkout", "-q", "-b", "other"]);
            story.git(&["branch", "-D", "main"]);
        },
    ];
    for make in moves {
        let (story, intent) = changed();
        make(&story, &intent);
        let found = story.git.run(
            &story.path(),
            &["rev-parse", "-q", "--verify", "refs/heads/main"],
        );
        let found = String::from_utf8(found.stdout).unwrap().trim().to_owned();
        let was = state(&story);
        let expected = CommitOutcome::RefMoved {
            reference: "refs/heads/main".to_owned(),
            expected: intent.parent.clone(),
            found: Some(found).filter(|found| !found.is_empty()),
        };
        assert_eq!(story.try_apply(&intent).unwrap(), expected);
        assert_eq!(state(&story), was);
    }
}

#[test]
fn a_branch_that_head_has_left_moves_alone() {
    let (story, intent) = changed();
    story.git(&["checkout", "-q", "-b", "other"]);
    let index = fs::read(story.git.path.join(".git/index")).unwrap();
    let log = fs::read(story.git.path.join(".git/logs/HEAD")).unwrap();
    let commit = story.apply(&intent);
    assert_eq!(story.git(&["rev-parse", "main"]), commit);
    assert_eq!(fs::read(story.git.path.join(".git/index")).unwrap(), index);
    assert_eq!(
        fs::read(story.git.path.join(".git/logs/HEAD")).unwrap(),
        log
    );
    assert_eq!(story.git(&["rev-parse", "other"]), intent.parent.unwrap());
    assert_eq!(
        story.git(&["log", "-g", "-1", "--format=%gs", "main"]),
        "commit: subject"
    );
}

#[test]
fn a_head_that_was_detached_and_names_a_branch_now_is_not_written() {
    let story = Story::new();
    story.git(&["checkout", "-q", "--detach"]);
    story.git.write("src/main.c", "changed\n");
    let intent = story.prepare();
    story.git(&["checkout", "-q", "main"]);
    let was = state(&story);
    let error = story.try_apply(&intent).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert_eq!(state(&story), was);
}

#[test]
fn what_somebody_stages_meanwhile_is_kept() {
    let (story, intent) = changed();
    story.git.write("src/main.c", "by a person\n");
    story.git.write("theirs", "by a person\n");
    story.git(&["add", "src/main.c", "theirs"]);
    story.apply(&intent);
    assert_eq!(story.git(&["show", ":src/main.c"]), "by a person");
    assert_eq!(
        story.git(&["show", ":new"]),
        "new",
        "what nobody staged follows"
    );
    assert_eq!(story.status(), "M  src/main.c\nA  theirs");

    // A file where the commit needs a directory.
    let story = Story::new();
    story.git.write("new/file", "new\n");
    let intent = story.prepare();
    fs::remove_dir_all(story.path().join("new")).unwrap();
    story.git.write("new", "a file\n");
    story.git(&["add", "new"]);
    story.apply(&intent);
    assert_eq!(story.git(&["show", ":new"]), "a file");
    story.is_sound();
}

#[test]
fn an_index_that_did_not_follow_follows_when_it_is_applied_again() {
    let (story, intent) = changed();
    story.git(&["update-index", "-q", "--refresh"]);
    let index = fs::read(story.git.path.join(".git/index")).unwrap();
    story.apply(&intent);
    fs::write(story.git.path.join(".git/index"), &index).unwrap();
    assert_ne!(story.status(), "");
    fs::write(story.git.path.join(".git/index"), &index).unwrap();
    adopted(story.try_apply(&intent).unwrap());
    assert_eq!(story.status(), "");

    // The branch has gone on, and the index has neither.
    story.git.write("new", "newer\n");
    story.git.commit("goes on");
    fs::write(story.git.path.join(".git/index"), &index).unwrap();
    adopted(story.try_apply(&intent).unwrap());
    assert_eq!(story.git(&["show", ":src/main.c"]), "changed");
    let has_new = story.git.run(&story.path(), &["show", ":new"]).status;
    assert!(!has_new.success(), "that is the other commit's");
}

#[test]
fn a_foreign_lock_is_waited_for_and_never_removed() {
    for name in ["index.lock", "refs/heads/main.lock"] {
        let (story, intent) = changed();
        let lock = story.git.path.join(".git").join(name);
        fs::write(&lock, "foreign").unwrap();
        let head = story.git(&["rev-parse", "HEAD"]);
        let error = story.try_apply(&intent).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        assert_eq!(fs::read_to_string(&lock).unwrap(), "foreign");
        assert_eq!(story.git(&["rev-parse", "HEAD"]), head);
        fs::remove_file(&lock).unwrap();
        story.apply(&intent);
        story.is_sound();
    }
}

#[test]
fn what_waits_to_become_a_ref_is_none_and_git_never_packs_it() {
    for branch in ["main", "feature/x"] {
        for is_locked in [false, true] {
            let story = Story::new();
            story.git(&["checkout", "-q", "-B", branch]);
            story.git.write("src/main.c", "changed\n");
            let intent = story.prepare();
            let refs = story.refs();
            let path = story.path();
            let git_dir = path.join(".git");
            let lock = git_dir.join(format!("refs/heads/{branch}.lock"));
            if is_locked {
                fs::write(&lock, "foreign").unwrap();
            }
            let looked = std::sync::Arc::new(std::sync::Mutex::new(0));
            let count = std::sync::Arc::clone(&looked);
            let seen = refs.clone();
            let outcome = trial::looked_at(
                move || {
                    *count.lock().unwrap() += 1;
                    assert_eq!(refs_of(&path), seen);
                    // What is locked it leaves alone, and complains of.
                    Command::new("git")
                        .args(["pack-refs", "--all"])
                        .current_dir(&path)
                        .output()
                        .unwrap();
                    let packed = fs::read_to_string(git_dir.join("packed-refs")).unwrap();
                    assert!(!packed.contains("stillframe"), "{packed}");
                },
                |op| story.try_apply_in(op, &intent),
            );
            assert!(*looked.lock().unwrap() > 8);
            if is_locked {
                assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Busy);
                assert_eq!(fs::read_to_string(&lock).unwrap(), "foreign");
                fs::remove_file(&lock).unwrap();
                story.apply(&intent);
            } else {
                outcome.unwrap();
            }
            assert_eq!(story.refs(), refs);
            assert_eq!(story.git(&["rev-parse", branch]), intent.commit);
            assert_eq!(story.status(), "");
            story.is_sound();
        }
    }
}

#[test]
fn a_branch_whose_name_is_as_long_as_git_takes_one_is_committed_to() {
    let story = Story::new();
    // With `.lock` behind it, it is as long as a file's name may be.
    let branch = "b".repeat(250);
    story.git(&["checkout", "-q", "-b", &branch]);
    story.git.write("src/main.c", "changed\n");
    let commit = story.commit();
    assert_eq!(story.git(&["rev-parse", &branch]), commit);
    story.is_sound();
}

#[test]
fn what_is_in_place_is_found_however_far_the_clock_was_set_back() {
    let later = Timestamp::from_second(TIME + 3 * 24 * 60 * 60).unwrap();
    let changed = || {
        let story = Story::new();
        story.git.write("src/main.c", "changed\n");
        let request = CommitRequest {
            at: later,
            ..request()
        };
        let intent = story.try_prepare(&request).unwrap().unwrap();
        story.apply(&intent);
        (story, intent)
    };
    let goes_on = |story: &Story| {
        for name in ["one", "two", "three"] {
            story.git.write(name, name);
            story.git.commit(name);
        }
    };
    // git's own clock says three days less.
    let (story, intent) = changed();
    goes_on(&story);
    assert_eq!(adopted(story.try_apply(&intent).unwrap()), intent.commit);

    // Made again, as a signature does, by that clock.
    let (story, intent) = changed();
    story.git(&["commit", "-q", "--amend", "--no-edit"]);
    let amended = story.git(&["rev-parse", "HEAD"]);
    assert_ne!(amended, intent.commit);
    assert_eq!(adopted(story.try_apply(&intent).unwrap()), amended);
    goes_on(&story);
    assert_eq!(adopted(story.try_apply(&intent).unwrap()), amended);
    assert_eq!(story.status(), "");

    // Into a branch that had gone on meanwhile.
    story.git(&["checkout", "-q", "-b", "side", "HEAD~4"]);
    goes_on(&story);
    story.git.write("side", "side");
    story.git.commit("beside");
    story.git(&["merge", "-q", "--no-edit", "main"]);
    story.git(&["branch", "-q", "-f", "main", "side"]);
    story.git(&["checkout", "-q", "main"]);
    assert_eq!(adopted(story.try_apply(&intent).unwrap()), amended);
}

#[test]
fn reflogs_are_made_where_git_makes_them() {
    for (value, expected) in [("true", true), ("false", false), ("always", true)] {
        let story = Story::unborn();
        story.git(&["config", "core.logAllRefUpdates", value]);
        story.git.write("a", "one\n");
        story.commit();
        let has = |name: &str| story.git.path.join(".git/logs").join(name).exists();
        assert_eq!(
            (has("HEAD"), has("refs/heads/main")),
            (expected, expected),
            "{value}"
        );
    }
}

#[test]
fn an_intent_that_was_tampered_with_is_refused() {
    let (story, intent) = changed();
    let was = state(&story);
    let changes: [fn(&mut CommitIntent); 7] = [
        |intent| intent.message.push_str("more\n"),
        |intent| intent.reference = "refs/tags/main".to_owned(),
        |intent| intent.reference = "refs/heads/../../config".to_owned(),
        |intent| intent.tree = "x".to_owned(),
        |intent| intent.parent = None,
        |intent| intent.signature.name = "A\nparent x".to_owned(),
        |intent| intent.time = -1,
    ];
    for change in changes {
        let mut other = intent.clone();
        change(&mut other);
        let error = story.try_apply(&other).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOptions, "{error}");
    }
    assert_eq!(state(&story), was);
}

#[test]
fn a_branch_of_another_branchs_name_is_not_made() {
    let story = Story::new();
    story.git(&["branch", "taken"]);
    story.git(&["pack-refs", "--all"]);
    for name in ["taken/below", "other"] {
        story.git(&["symbolic-ref", "HEAD", &format!("refs/heads/{name}")]);
        story.git.write("new", name);
        let intent = story.prepare();
        if name == "other" {
            story.git(&["branch", "-q", "other/below", "main"]);
            story.git(&["pack-refs", "--all"]);
        }
        let error = story.try_apply(&intent).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
        story.is_sound();
    }
}
