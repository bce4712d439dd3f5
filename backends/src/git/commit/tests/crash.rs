//! Commits and crashes, or a failing disk.

use super::*;
use crate::faults::{Calls, Fault};
use crate::trial;

/// Makes a story, with an intent that was prepared in it.
type Make = fn() -> (Story, CommitIntent);

fn on_a_branch() -> (Story, CommitIntent) {
    let story = Story::new();
    story.git.write("src/main.c", "changed\n");
    story.git.write("new", "new\n");
    story.git(&["add", "new"]);
    story.git.write("new", "newer\n");
    fs::remove_file(story.path().join("read me")).unwrap();
    let intent = story.prepare();
    (story, intent)
}

fn on_a_packed_one() -> (Story, CommitIntent) {
    let (story, intent) = on_a_branch();
    story.pack();
    (story, intent)
}

fn on_a_nested_one() -> (Story, CommitIntent) {
    let story = Story::new();
    story.git(&["checkout", "-q", "-b", "feature/x"]);
    story.git(&["branch", "-q", "-D", "main"]);
    story.git.write("src/main.c", "changed\n");
    let intent = story.prepare();
    (story, intent)
}

fn first() -> (Story, CommitIntent) {
    let story = Story::unborn();
    story.git.write("a/file", "one\n");
    let intent = story.prepare();
    (story, intent)
}

fn detached() -> (Story, CommitIntent) {
    let story = Story::new();
    story.git(&["checkout", "-q", "--detach"]);
    story.git.write("src/main.c", "changed\n");
    let intent = story.prepare();
    (story, intent)
}

fn is_done(story: &Story, intent: &CommitIntent, call: u64) {
    assert_eq!(
        story.git(&["rev-parse", "HEAD"]),
        intent.commit,
        "at call {call}"
    );
    assert_eq!(story.status(), "", "at call {call}");
    story.is_sound();
    let count = story.git(&["rev-list", "--count", "--all", "HEAD"]);
    assert_eq!(count, if intent.parent.is_some() { "2" } else { "1" });
    let log = story.git(&["log", "-g", "--format=%H %gs", "HEAD"]);
    let lines = log.lines().filter(|line| line.starts_with(&intent.commit));
    assert_eq!(lines.count(), 1, "at call {call}: {log}");
}

/// The calls of a commit of which nothing is disturbed.
fn calls_of_a_commit(make: Make) -> Calls {
    let (story, intent) = make();
    let (result, calls) = trial::calls_of(|op| story.try_apply_in(op, &intent));
    result.unwrap();
    calls
}

fn dies_at_any_call(make: Make) {
    dies_at_any_call_before(make, |_| {});
}

/// What somebody does between the end of a process and the next one.
type Meanwhile = fn(&Story);

fn dies_at_any_call_before(make: Make, meanwhile: Meanwhile) {
    for call in calls_of_a_commit(make).chosen() {
        let (story, intent) = make();
        let refs = story.refs();
        let (result, calls) = trial::with(Fault::StopBefore(call), |op| {
            story.try_apply_in(op, &intent)
        });
        if calls <= call {
            assert!(call > 8, "it was looked at every call");
            assert!(result.is_ok());
            break;
        }
        // An unborn branch is none until it has its commit.
        let now = story.refs();
        assert!(refs.is_empty() || now == refs, "at call {call}: {now:?}");
        meanwhile(&story);
        let again = story.try_apply(&intent).unwrap();
        let is_in_place =
            matches!(&again, CommitOutcome::InPlace { commit, .. } if *commit == intent.commit);
        assert!(is_in_place, "at call {call}: {again:?}");
        is_done(&story, &intent, call);
        let now = story.refs();
        assert!(refs.is_empty() || now == refs, "at call {call}: {now:?}");
    }
}

#[test]
fn a_commit_that_dies_at_any_call_is_made_once() {
    dies_at_any_call(on_a_branch);
}

#[test]
fn so_is_one_on_a_packed_branch() {
    dies_at_any_call(on_a_packed_one);
}

#[test]
fn so_is_the_first_one() {
    dies_at_any_call(first);
}

#[test]
fn so_is_one_on_a_detached_head() {
    dies_at_any_call(detached);
}

#[test]
fn so_is_one_whose_repository_is_tidied_up_before_anybody_goes_on() {
    // Refs that are locked git leaves alone, and complains of.
    let packs_refs: Meanwhile = |story| {
        story.git.run(&story.path(), &["pack-refs", "--all"]);
    };
    dies_at_any_call_before(on_a_branch, packs_refs);
    dies_at_any_call_before(on_a_nested_one, packs_refs);
    dies_at_any_call_before(on_a_nested_one, |story| {
        story.git.run(&story.path(), &["gc", "-q"]);
    });
}

#[test]
fn a_disk_that_refuses_once_leaves_all_as_it_was_or_says_that_the_commit_was_made() {
    const NO_SPACE: i32 = 28;
    for call in 0.. {
        let (story, intent) = on_a_branch();
        let parent = intent.parent.clone().unwrap();
        let (result, calls) = trial::with(Fault::FailAt(call, NO_SPACE), |op| {
            story.try_apply_in(op, &intent)
        });
        if calls <= call {
            break;
        }
        let now = story.git(&["rev-parse", "HEAD"]);
        match result {
            Ok(_) => assert_eq!(now, intent.commit),
            Err(CommitError::Incomplete { commit, .. }) => {
                assert_eq!((&now, &commit), (&intent.commit, &now))
            }
            Err(error) => {
                assert_eq!(now, parent, "at call {call}: {error}");
                assert_eq!(story.leavings(), Vec::<String>::new(), "at call {call}");
            }
        }
        story.try_apply(&intent).unwrap();
        assert_eq!(story.status(), "", "at call {call}");
        story.is_sound();
    }
}

#[test]
fn a_preparation_that_dies_at_any_call_leaves_nothing_that_matters() {
    let make = || {
        let story = Story::new();
        story.git.write("src/main.c", "changed\n");
        story.git.write("docs/a/b/new", "new\n");
        story
    };
    let expected = make().prepare();
    for call in 0.. {
        let story = make();
        let options = SnapshotOptions::new(Label::MANUAL, Timestamp::UNIX_EPOCH);
        let snapshot = GitBackend
            .snapshot(&Operation::unbounded(), &story.workspace, &options)
            .unwrap();
        let (result, calls) = trial::with(Fault::StopBefore(call), |op| {
            story.prepare_of_in(op, &snapshot.id, &request())
        });
        if calls <= call {
            assert!(result.is_ok() && call > 8);
            break;
        }
        assert!(result.is_err());
        let was = story.git(&["rev-parse", "HEAD"]);
        assert_eq!(Some(&was), expected.parent.as_ref());
        let intent = story.prepare_of(&snapshot.id, &request()).unwrap().unwrap();
        assert_eq!(
            (&intent.tree, &intent.commit),
            (&expected.tree, &expected.commit)
        );
        story.apply(&intent);
        story.is_sound();
    }
}

#[test]
fn what_is_made_is_synced_before_it_is_named() {
    // A power cut after the rename of the ref must find the commit: every object was synced before
    // that.
    let (story, intent) = on_a_branch();
    let object = |id: &str| {
        let path = format!(".git/objects/{}/{}", &id[..2], &id[2..]);
        story.git.path.join(path)
    };
    assert!(
        object(&intent.tree).exists(),
        "the tree is there before anything is applied"
    );
    assert!(!object(&intent.commit).exists());
    let mode = fs::metadata(object(&intent.tree))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o7777, 0o444);
}

#[test]
fn a_branch_that_moves_at_the_last_moment_wins() {
    // Every moment of an attempt is a last one once.
    for call in 0.. {
        let (story, intent) = on_a_branch();
        let parent = intent.parent.clone().unwrap();
        let git_dir = story.git.path.join(".git");
        let other = story.git(&[
            "commit-tree",
            "-m",
            "by a person",
            "-p",
            &parent,
            "HEAD^{tree}",
        ]);
        let path = git_dir.join("refs/heads/main");
        let mut calls = 0;
        let seen = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let has_moved = std::sync::Arc::clone(&seen);
        let outcome = trial::looked_at(
            move || {
                // As git does it, under its own lock.
                let lock = path.with_extension("lock");
                let is_free = fs::File::create_new(&lock).is_ok();
                if is_free && calls == call && fs::read_to_string(&path).unwrap().trim() == parent {
                    fs::write(&lock, format!("{other}\n")).unwrap();
                    fs::rename(&lock, &path).unwrap();
                    has_moved.store(true, std::sync::atomic::Ordering::Relaxed);
                } else if is_free {
                    fs::remove_file(&lock).unwrap();
                }
                calls += 1;
            },
            |op| story.try_apply_in(op, &intent),
        );
        let has_moved = seen.load(std::sync::atomic::Ordering::Relaxed);
        match outcome.unwrap() {
            CommitOutcome::RefMoved { found, .. } => {
                assert!(has_moved);
                assert_eq!(found, Some(story.git(&["rev-parse", "HEAD"])));
            }
            CommitOutcome::InPlace { .. } => {
                assert!(!has_moved);
                assert_eq!(story.git(&["rev-parse", "HEAD"]), intent.commit);
            }
            CommitOutcome::NotMade => panic!("it was to be made"),
        }
        story.is_sound();
        if call > 40 {
            break;
        }
    }
}
