//! Checkpoints that fail or are stopped half-way.

use super::*;
use crate::faults::Fault;
use crate::interrupt::Interrupt;
use crate::trial;

/// The names of all files of the store but for caches and temporary ones.
fn files(story: &Story) -> Vec<PathBuf> {
    let entries = walkdir::WalkDir::new(story.store_dir())
        .into_iter()
        .map(Result::unwrap);
    let files = entries.filter(|entry| entry.file_type().is_file());
    let mut files: Vec<PathBuf> = files.map(walkdir::DirEntry::into_path).collect();
    files.sort();
    files
}

fn before_a_checkpoint() -> (Story, Snapshot) {
    let story = Story::new();
    story.git.write("src/main.c", "one\r\n");
    story.git.write(".gitattributes", "* text\n");
    let snapshot = story.snapshot();
    (story, snapshot)
}

#[test]
fn one_that_dies_at_any_call_is_made_once_and_is_the_same() {
    let (story, snapshot) = before_a_checkpoint();
    let (made, calls) = trial::calls_of(|op| story.try_make(op, &snapshot, &request(1)));
    let expected = made.unwrap();
    for call in calls.chosen() {
        let (mut story, snapshot) = before_a_checkpoint();
        let fault = Fault::StopBefore(call);
        let (made, tried) = trial::with(fault, |op| story.try_make(op, &snapshot, &request(1)));
        if tried <= call {
            assert!(call > 8 && made.is_ok(), "it was looked at every call");
            break;
        }
        // Whatever is there is whole, also once it was tidied up.
        story.is_sound();
        if call % 2 == 0 {
            let op = Operation::unbounded();
            GitBackend.collect(&op, &mut story.workspace).unwrap();
        }
        let made = story
            .try_make(&Operation::unbounded(), &snapshot, &request(1))
            .unwrap();
        assert_eq!(made, expected, "at call {call}");
        story.reaches_all(&story.commit_of(&made));
        story.is_sound();
        assert_eq!(
            story
                .in_store(&["for-each-ref", "refs/checkpoints"])
                .lines()
                .count(),
            1
        );
    }
}

#[test]
fn a_disk_that_refuses_once_leaves_no_checkpoint_or_a_whole_one() {
    const NO_SPACE: i32 = 28;
    let (story, snapshot) = before_a_checkpoint();
    let (_, calls) = trial::calls_of(|op| story.try_make(op, &snapshot, &request(1)));
    let (mut failed, mut made) = (0, 0);
    for call in calls.chosen() {
        let (story, snapshot) = before_a_checkpoint();
        let fault = Fault::FailAt(call, NO_SPACE);
        let (answer, tried) = trial::with(fault, |op| story.try_make(op, &snapshot, &request(1)));
        if tried <= call {
            break;
        }
        let there = story.in_store(&["for-each-ref", "refs/checkpoints"]);
        match answer {
            Ok(answer) => {
                made += 1;
                story.reaches_all(&story.commit_of(&answer));
            }
            Err(error) => {
                failed += 1;
                assert_eq!(error.kind(), crate::error::ErrorKind::NoSpace, "{error}");
                assert_eq!(there, "", "at call {call}");
            }
        }
        story.is_sound();
    }
    assert!(failed > 1, "{failed} failed, {made} were made");
}

#[test]
fn one_that_is_stopped_at_any_look_is_not_there_and_the_next_is_the_same() {
    let (story, snapshot) = before_a_checkpoint();
    let interrupt = Interrupt::at_look(u64::MAX);
    let op = Operation::unbounded().cancelled_by(&interrupt);
    let whole = story.try_make(&op, &snapshot, &request(1)).unwrap();
    let expected = whole.checkpoint.as_ref().unwrap().commit.clone();
    let looks = interrupt.looks();
    assert!(looks > 10, "{looks}");
    let (story, snapshot) = before_a_checkpoint();
    let before = files(&story);
    for look in 0.. {
        let interrupt = Interrupt::at_look(look);
        let op = Operation::unbounded().cancelled_by(&interrupt);
        match story.try_make(&op, &snapshot, &request(1)) {
            Err(error) => {
                assert_eq!(error.kind(), crate::error::ErrorKind::Cancelled, "{error}");
                let left: Vec<_> = files(&story);
                let left: Vec<_> = left
                    .into_iter()
                    .filter(|f| !f.ends_with("shallow"))
                    .collect();
                assert_eq!(left, before, "look {look}");
            }
            Ok(_) => {
                assert!(look > 10, "it was stopped at {look} looks of {looks}");
                break;
            }
        }
    }
    let made = story
        .try_make(&Operation::unbounded(), &snapshot, &request(1))
        .unwrap();
    assert_eq!(story.commit_of(&made), expected);
    story.is_sound();
}
