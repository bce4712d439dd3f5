//! Looking at the repositories within a workspace.

use std::path::Path;

use crate::backend::{Interrupt, Interrupted};
use crate::coverage::{Omission, OmissionReason};
use crate::git::repository::{self, Probe, RepositoryError};
use crate::git::rollback::chain;
use crate::nested::{NestedRepository, NestedState};

/// The largest index that is read of one: some million paths.
const MAX_INDEX_BYTES: u64 = 128 * 1024 * 1024;

/// What stands in the way of reading one.
#[derive(Debug, thiserror::Error)]
enum Unread {
    #[error("its .git is no repository")]
    NoRepository,
    #[error("it uses {0}, which cannot be read")]
    Unsupported(String),
    #[error(transparent)]
    Repository(#[from] RepositoryError),
}

/// Where the repositories stand whose `.git` is among the omissions of a capture at `root`, in the order of
/// these. One that cannot be read says why, and is in nobody's way.
pub(crate) fn look_at<'a>(
    root: &Path,
    omissions: impl IntoIterator<Item = &'a Omission>,
    interrupt: &Interrupt,
) -> Result<Vec<NestedRepository>, Interrupted> {
    let mut found = Vec::new();
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
        interrupt.check()?;
        let state = state_of(&root.join(path.as_path()));
        found.push(NestedRepository::new(path, state));
    }
    Ok(found)
}

fn state_of(path: &Path) -> NestedState {
    let mut state = NestedState::default();
    if let Err(error) = read(path, &mut state) {
        state.problem = Some(chain(&error));
    }
    state
}

/// Fills in as much as can be read.
fn read(path: &Path, state: &mut NestedState) -> Result<(), Unread> {
    let repository = match repository::probe(path)? {
        // Where this one's `.git` is none, the one around it is found.
        Probe::Found(repository) if repository.work_tree() == path => repository,
        Probe::Found(_) | Probe::None | Probe::Bare(_) => return Err(Unread::NoRepository),
        Probe::Unsupported { format, .. } => return Err(Unread::Unsupported(format)),
    };
    let head = repository.head()?;
    state.branch = head.branch().map(str::to_owned);
    state.head_ref = head.commit().map(|commit| commit.to_string());
    let staged = repository.staged_digest(MAX_INDEX_BYTES)?;
    state.index = staged.map(|digest| digest.to_hex().to_string());
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::git::test_repository::TestRepository;

    fn with_nested() -> (TestRepository, std::path::PathBuf) {
        let git = TestRepository::with_commit();
        git.git(&["init", "-q", "-b", "main", "sub"]);
        let sub = git.path.join("sub");
        (git, sub)
    }

    #[test]
    fn head_and_index_are_told_and_a_look_at_the_files_changes_nothing() {
        let (git, sub) = with_nested();
        let unborn = state_of(&sub);
        assert_eq!(unborn.branch.as_deref(), Some("refs/heads/main"));
        assert_eq!(
            (unborn.head_ref, unborn.index, unborn.problem),
            (None, None, None)
        );

        git.write("sub/a", "one\n");
        git.git_in(&sub, &["add", "a"]);
        let staged = state_of(&sub);
        assert!(staged.index.is_some());
        git.git_in(&sub, &["commit", "-q", "-m", "first"]);
        let born = state_of(&sub);
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
        assert_eq!(state_of(&sub), born);

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
            let before = state_of(&sub).index;
            git.git_in(&sub, change);
            assert_ne!(state_of(&sub).index, before, "{change:?}");
        }
        git.git_in(&sub, &["checkout", "-q", "--detach"]);
        assert_eq!(state_of(&sub).branch, None);
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
            std::thread::spawn(move || sender.send(state_of(&sub)));
            let state = receiver.recv_timeout(std::time::Duration::from_secs(20));
            let problem = state.expect("it must not hang").problem.unwrap();
            assert!(problem.contains(told), "{problem}");
        }
    }
}
