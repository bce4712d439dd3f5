//! Reading the state of the repositories within a workspace.

use std::path::Path;

use crate::coverage::{Omission, OmissionReason};
use crate::error::chain;
use crate::git::repository::{self, Probe, RepositoryError};
use crate::interrupted::Interrupted;
use crate::nested::{NestedRepository, NestedState};
use crate::operation::Operation;
use crate::worktree::clock::Clock;
use crate::worktree::memory::Memory;
use crate::worktree::root::Root;
use crate::worktree::stat_cache::{EntryStat, is_racy};

/// The largest index that is read of one: some million paths.
const MAX_INDEX_BYTES: u64 = 128 * 1024 * 1024;

/// So many bytes of indexes are read for one capture, whatever a run plants: many may lead to one
/// that is large.
const MAX_INDEX_BYTES_TOGETHER: u64 = 512 * 1024 * 1024;

/// What stands in the way of reading one.
#[derive(Debug, thiserror::Error)]
enum Unread {
    #[error("its .git is no repository")]
    NoRepository,
    #[error("it uses {0}, which cannot be read")]
    Unsupported(String),
    #[error(
        "its index was not read, since those of others together have {MAX_INDEX_BYTES_TOGETHER} bytes"
    )]
    TooMuch,
    #[error(transparent)]
    Repository(#[from] RepositoryError),
}

/// Where the repositories stand whose `.git` is among the omissions of a capture at `root`, in the
/// order of these. One that cannot be read has the reason, and stops nothing.
///
/// An index that is as it was when `memory` saw it is not read again.
pub(crate) fn look_at<'a>(
    op: &Operation,
    root: &Root,
    memory: &Memory,
    omissions: impl IntoIterator<Item = &'a Omission>,
) -> Result<Vec<NestedRepository>, Interrupted> {
    let mut found = Vec::new();
    let mut clock = None;
    let mut bytes_left = MAX_INDEX_BYTES_TOGETHER;
    for omission in omissions {
        // To the hash backend it is one of the names that are left out as a rule.
        let is_git_dir = matches!(
            omission.reason,
            OmissionReason::GitDir | OmissionReason::Excluded
        ) && omission.path.name() == b".git";
        if !is_git_dir {
            continue;
        }
        let Some(path) = omission.path.parent().filter(|path| !path.is_root()) else {
            continue;
        };
        op.check()?;
        let clock = clock.get_or_insert_with(|| Clock::of(root));
        let state = state_of(
            op,
            &root.disk_path(&path),
            &|| clock.now_ns(),
            memory,
            &mut bytes_left,
        );
        found.push(NestedRepository::new(path, state));
    }
    Ok(found)
}

/// `now_ns` is the clock that the times of files come from.
fn state_of(
    op: &Operation,
    path: &Path,
    now_ns: &dyn Fn() -> i64,
    memory: &Memory,
    bytes_left: &mut u64,
) -> NestedState {
    let mut state = NestedState::default();
    if let Err(error) = read(op, path, now_ns, memory, bytes_left, &mut state) {
        state.problem = Some(chain(&error));
    }
    state
}

/// Fills in as much as can be read.
fn read(
    op: &Operation,
    path: &Path,
    now_ns: &dyn Fn() -> i64,
    memory: &Memory,
    bytes_left: &mut u64,
    state: &mut NestedState,
) -> Result<(), Unread> {
    let repository = match repository::probe(path)? {
        // Where this one's `.git` is none, the one around it is found.
        Probe::Found(repository) if repository.work_tree() == path => repository,
        Probe::Found(_) | Probe::None | Probe::Bare(_) => return Err(Unread::NoRepository),
        Probe::Unsupported { format, .. } => return Err(Unread::Unsupported(format)),
    };
    let head = repository.head()?;
    state.branch = head.branch().map(str::to_owned);
    state.head_ref = head.commit().map(|commit| commit.to_string());
    // Before the look: what is written after it has a later time.
    let looked_ns = now_ns();
    let look = || Ok::<_, RepositoryError>(repository.index_stat()?.map(|s| EntryStat::of(&s)));
    let before = look()?;
    if let Some(known) = before.and_then(|stat| memory.nested_index(path, &stat)) {
        state.index = Some(known);
        return Ok(());
    }
    let bytes = before.map_or(0, |stat| stat.size);
    *bytes_left = bytes_left.checked_sub(bytes).ok_or(Unread::TooMuch)?;
    let staged = repository.staged_digest(op, MAX_INDEX_BYTES)?;
    state.index = staged.map(|digest| digest.to_hex().to_string());
    if let (Some(stat), Some(index)) = (before, &state.index)
        && !is_racy(&stat, looked_ns)
        && look()? == before
    {
        memory.keep_nested_index(path, stat, index.clone());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::git::test_repository::TestRepository;

    /// As a first capture finds it.
    fn fresh(path: &Path) -> NestedState {
        state_of(
            &Operation::unbounded(),
            path,
            &|| 0,
            &Memory::default(),
            &mut { u64::MAX },
        )
    }

    fn with_nested() -> (TestRepository, std::path::PathBuf) {
        let git = TestRepository::with_commit();
        git.git(&["init", "-q", "-b", "main", "sub"]);
        let sub = git.path.join("sub");
        (git, sub)
    }

    #[test]
    fn head_and_index_are_told_and_a_look_at_the_files_changes_nothing() {
        let (git, sub) = with_nested();
        let unborn = fresh(&sub);
        assert_eq!(unborn.branch.as_deref(), Some("refs/heads/main"));
        assert_eq!(
            (unborn.head_ref, unborn.index, unborn.problem),
            (None, None, None)
        );

        git.write("sub/a", "one\n");
        git.git_in(&sub, &["add", "a"]);
        let staged = fresh(&sub);
        assert!(staged.index.is_some());
        git.git_in(&sub, &["commit", "-q", "-m", "first"]);
        let born = fresh(&sub);
        assert_eq!(
            born.head_ref,
            Some(git.git_in(&sub, &["rev-parse", "HEAD"]))
        );
        assert_eq!(born.index, staged.index);

        let bytes = fs::read(sub.join(".git/index")).unwrap();
        git.write("sub/b", "");
        fs::remove_file(sub.join("b")).unwrap();
        fs::rename(sub.join("a"), sub.join("c")).unwrap();
        fs::rename(sub.join("c"), sub.join("a")).unwrap();
        fs::File::open(sub.join("a"))
            .unwrap()
            .set_modified(std::time::UNIX_EPOCH)
            .unwrap();
        git.git_in(&sub, &["update-index", "--really-refresh"]);
        assert_ne!(fs::read(sub.join(".git/index")).unwrap(), bytes);
        assert_eq!(fresh(&sub), born);

        for change in [
            &["update-index", "--skip-worktree", "a"][..],
            &[
                "update-index",
                "--no-skip-worktree",
                "--assume-unchanged",
                "a",
            ],
            &["update-index", "--no-assume-unchanged", "--chmod=+x", "a"],
        ] {
            let before = fresh(&sub).index;
            git.git_in(&sub, change);
            assert_ne!(fresh(&sub).index, before, "{change:?}");
        }
        git.git_in(&sub, &["checkout", "-q", "--detach"]);
        assert_eq!(fresh(&sub).branch, None);
    }

    #[test]
    fn one_that_is_a_trap_or_damaged_says_so_at_once() {
        type Damage = fn(&Path);
        let damages: [(Damage, &str); 5] = [
            (
                |sub| {
                    fs::remove_file(sub.join(".git/HEAD")).unwrap();
                    assert!(
                        std::process::Command::new("mkfifo")
                            .arg(sub.join(".git/HEAD"))
                            .status()
                            .unwrap()
                            .success()
                    );
                },
                "FIFO",
            ),
            (
                |sub| {
                    fs::remove_file(sub.join(".git/HEAD")).unwrap();
                    symlink("/dev/zero", sub.join(".git/HEAD")).unwrap();
                },
                "symbolic link",
            ),
            (
                |sub| fs::write(sub.join(".git/index"), "no index").unwrap(),
                "index",
            ),
            (
                |sub| {
                    fs::remove_dir_all(sub.join(".git")).unwrap();
                    fs::create_dir(sub.join(".git")).unwrap();
                },
                "no repository",
            ),
            (
                |sub| {
                    fs::remove_dir_all(sub.join(".git")).unwrap();
                    fs::write(sub.join(".git"), "gitdir: ../nowhere\n").unwrap();
                },
                "nowhere",
            ),
        ];
        for (damage, told) in damages {
            let (_git, sub) = with_nested();
            damage(&sub);
            let (sender, receiver) = std::sync::mpsc::channel();
            std::thread::spawn(move || sender.send(fresh(&sub)));
            let state = receiver.recv_timeout(std::time::Duration::from_secs(20));
            let problem = state.expect("it must not hang").problem.unwrap();
            assert!(problem.contains(told), "{problem}");
        }
    }

    #[test]
    fn an_index_that_is_as_it_was_is_not_read_again_and_any_other_is() {
        let (git, sub) = with_nested();
        git.write("sub/a", "one\n");
        git.git_in(&sub, &["add", "a"]);
        let memory = Memory::default();
        let looked = || {
            state_of(&Operation::unbounded(), &sub, &|| i64::MAX, &memory, &mut {
                u64::MAX
            })
        };
        assert_eq!(looked(), fresh(&sub));
        let repository = match repository::probe(&sub).unwrap() {
            Probe::Found(repository) => repository,
            other => panic!("{other:?}"),
        };
        let stat = EntryStat::of(&repository.index_stat().unwrap().unwrap());
        memory.keep_nested_index(&sub, stat, "seen before".to_owned());
        assert_eq!(looked().index.as_deref(), Some("seen before"));

        git.write("sub/b", "two\n");
        git.git_in(&sub, &["add", "b"]);
        assert_eq!(looked(), fresh(&sub), "another one is read");
        let young = Memory::default();
        let _ = state_of(&Operation::unbounded(), &sub, &|| 0, &young, &mut {
            u64::MAX
        });
        let stat = EntryStat::of(&repository.index_stat().unwrap().unwrap());
        assert_eq!(young.nested_index(&sub, &stat), None, "it may change yet");

        let mut left = stat.size;
        assert_eq!(
            state_of(&Operation::unbounded(), &sub, &|| 0, &young, &mut left),
            fresh(&sub)
        );
        let beyond = state_of(&Operation::unbounded(), &sub, &|| 0, &young, &mut left);
        assert_eq!((beyond.index, left), (None, 0));
        assert!(beyond.problem.unwrap().contains("was not read"));
    }
}
