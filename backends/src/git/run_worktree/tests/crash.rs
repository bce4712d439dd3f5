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

/// Disturbs `ensure` at each call, until one call of it makes no more of them.
fn disturbed(fault: fn(u64) -> Fault, check: impl Fn(&Stage, &RunWorktree, &str)) -> u64 {
    let mut call = 0;
    loop {
        let (stage, worktree, base) = stage();
        let (ensured, calls) = trial::with(fault(call), |op| {
            GitBackend.ensure(op, &worktree, Some(&base), Timestamp::UNIX_EPOCH)
        });
        if calls <= call {
            ensured.unwrap();
            return calls;
        }
        // What git sees meanwhile does no harm.
        stage.git.git(&["worktree", "list", "--porcelain"]);
        stage.git.git(&["worktree", "prune"]);
        stage.git.git(&["pack-refs", "--all"]);
        check(&stage, &worktree, &base);
        call += 1;
    }
}

#[test]
fn a_making_that_is_killed_anywhere_is_finished_by_the_next() {
    let calls = disturbed(Fault::StopBefore, |stage, worktree, base| {
        let directory = stage.directory(worktree);
        assert!(
            !matches!(directory, RunDirectory::Other(_)),
            "{directory:?}"
        );
        stage.try_ensure(worktree, Some(base)).unwrap();
        stage.is_sound(worktree);
        assert_eq!(view(&worktree.directory), view(&stage.git.path));
    });
    assert!(calls > 20, "{calls}");
}

#[test]
fn a_making_that_is_killed_anywhere_can_be_let_go_of() {
    disturbed(Fault::StopBefore, |stage, worktree, base| {
        let is_there = stage.directory(worktree) == RunDirectory::Right;
        if !is_there {
            GitBackend
                .remove(&stage.op, worktree, None, Some(base))
                .unwrap();
            letting_go::nothing_is_left(stage, worktree);
        }
    });
}

#[test]
fn a_making_for_which_the_disk_is_full_says_so_and_is_finished_by_the_next() {
    const FULL: i32 = 28;
    let mut failed = 0;
    let mut call = 0;
    loop {
        let (stage, worktree, base) = stage();
        let (ensured, calls) = trial::with(Fault::FailAt(call, FULL), |op| {
            GitBackend.ensure(op, &worktree, Some(&base), Timestamp::UNIX_EPOCH)
        });
        if let Err(error) = ensured {
            assert_eq!(error.kind(), ErrorKind::NoSpace, "{error:?}");
            let told = crate::error::chain(&error);
            assert!(!told.contains("/.stillframe-"), "{told}");
            failed += 1;
        }
        stage.try_ensure(&worktree, Some(&base)).unwrap();
        stage.is_sound(&worktree);
        if calls <= call {
            break;
        }
        call += 1;
    }
    assert!(failed > 15, "{failed} of {call}");
}
