//! Deaths at every call, and a disk that is full at any.

use super::*;
use crate::faults::Fault;
use crate::trial;

fn stage() -> (Stage, RunWorktree, String) {
    let git = TestRepository::in_memory();
    git.write("src/main.c", "int main;\n");
    git.write("a/b", "b\n");
    std::os::unix::fs::symlink("a/b", git.path.join("link")).unwrap();
    git.commit("first");
    let stage = Stage::new(git);
    let base = stage.git.git(&["rev-parse", "HEAD"]);
    let worktree = stage.run("one");
    (stage, worktree, base)
}

fn ensure(
    op: &Operation,
) -> (
    Result<Ensured, RunWorktreeError>,
    (Stage, RunWorktree, String),
) {
    let (stage, worktree, base) = stage();
    let ensured = GitBackend.ensure(op, &worktree, Some(&base), Timestamp::UNIX_EPOCH);
    (ensured, (stage, worktree, base))
}

/// Disturbs `ensure` at the calls that are chosen; answers with how many they were.
fn disturbed(
    fault: fn(u64) -> Fault,
    check: impl Fn(Result<Ensured, RunWorktreeError>, &Stage, &RunWorktree, &str),
) -> u64 {
    let ((ensured, _), calls) = trial::calls_of(ensure);
    ensured.unwrap();
    let mut disturbed = 0;
    for call in calls.chosen() {
        let ((ensured, (stage, worktree, base)), calls) = trial::with(fault(call), ensure);
        if calls <= call {
            ensured.unwrap();
            break;
        }
        check(ensured, &stage, &worktree, &base);
        disturbed += 1;
    }
    disturbed
}

/// What git does meanwhile does no harm.
fn git_looks(stage: &Stage) {
    stage.git.git(&["worktree", "list", "--porcelain"]);
    stage.git.git(&["worktree", "prune"]);
    stage.git.git(&["pack-refs", "--all"]);
}

#[test]
fn a_making_that_is_killed_anywhere_is_finished_by_the_next() {
    let disturbed = disturbed(Fault::StopBefore, |_, stage, worktree, base| {
        git_looks(stage);
        let directory = stage.directory(worktree);
        assert!(
            !matches!(directory, RunDirectory::Other(_)),
            "{directory:?}"
        );
        stage.try_ensure(worktree, Some(base)).unwrap();
        stage.is_sound(worktree);
        assert_eq!(view(&worktree.directory), view(&stage.git.path));
    });
    assert!(disturbed > 12, "{disturbed}");
}

#[test]
fn a_making_that_is_killed_anywhere_can_be_let_go_of() {
    disturbed(Fault::StopBefore, |_, stage, worktree, base| {
        git_looks(stage);
        if stage.directory(worktree) != RunDirectory::Right {
            GitBackend
                .remove(&stage.op, worktree, None, Some(base))
                .unwrap();
            letting_go::nothing_is_left(stage, worktree);
        }
    });
}

#[test]
fn a_making_for_which_the_disk_is_full_says_so_and_is_finished_by_the_next() {
    let failed = std::cell::Cell::new(0);
    disturbed(
        |call| Fault::FailAt(call, 28),
        |ensured, stage, worktree, base| {
            if let Err(error) = ensured {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error:?}");
                let told = crate::error::chain(&error);
                assert!(!told.contains("/.stillframe-"), "{told}");
                failed.set(failed.get() + 1);
            }
            stage.try_ensure(worktree, Some(base)).unwrap();
            stage.is_sound(worktree);
        },
    );
    assert!(failed.get() > 2, "{failed:?}");
}
