//! Bringing files along.

use std::os::unix::fs::symlink;

use super::*;
use crate::path::RelPath;
use crate::run_worktree::Brought;

fn bring(
    stage: &Stage,
    worktree: &RunWorktree,
    paths: &[&str],
) -> Result<Brought, RunWorktreeError> {
    let paths: Vec<RelPath> = paths
        .iter()
        .map(|path| RelPath::new(*path).unwrap())
        .collect();
    GitBackend.bring(&stage.op, worktree, &stage.git.path, &paths)
}

fn stage() -> (Stage, RunWorktree) {
    let git = TestRepository::with_commit();
    git.write(".gitignore", "node_modules\n.env\n");
    git.commit("ignoring");
    git.write(".env", "SECRET=1\n");
    git.write("src/node_modules/a/index.js", "a\n");
    git.write("src/node_modules/a/bin/run", "#!/bin/sh\n");
    let script = git.path.join("src/node_modules/a/bin/run");
    fs::set_permissions(script, fs::Permissions::from_mode(0o755)).unwrap();
    symlink("../a/bin/run", git.path.join("src/node_modules/link")).unwrap();
    symlink("/etc/passwd", git.path.join("src/node_modules/out")).unwrap();
    let sealed = git.path.join("src/node_modules/a");
    fs::set_permissions(sealed, fs::Permissions::from_mode(0o555)).unwrap();
    let stage = Stage::new(git);
    let worktree = stage.ensure("one");
    (stage, worktree)
}

#[test]
fn what_is_ignored_comes_as_it_is_and_is_in_no_commit() {
    let (stage, worktree) = stage();
    let brought = bring(&stage, &worktree, &[".env", "src/node_modules"]).unwrap();
    assert_eq!((brought.files, brought.skipped.len()), (5, 0));
    assert_eq!(view(&worktree.directory), view(&stage.git.path));
    let time = |directory: &Path| {
        let file = directory.join("src/node_modules/a/index.js");
        fs::metadata(file).unwrap().modified().unwrap()
    };
    assert_eq!(time(&worktree.directory), time(&stage.git.path));
    assert_eq!(stage.git_in(&worktree, &["status", "--porcelain"]), "");
    assert_eq!(
        names(worktree.directory.parent().unwrap()),
        [b"one".to_vec()]
    );
    // It is a copy.
    fs::write(worktree.directory.join(".env"), "SECRET=2\n").unwrap();
    let kept = fs::read_to_string(stage.git.path.join(".env")).unwrap();
    assert_eq!(kept, "SECRET=1\n");
    // What is there stays.
    let again = bring(&stage, &worktree, &[".env"]).unwrap();
    assert_eq!((again.files, again.skipped.len()), (0, 1));
    let own = fs::read_to_string(worktree.directory.join(".env")).unwrap();
    assert_eq!(own, "SECRET=2\n");
}

#[test]
fn what_the_branch_has_or_is_not_there_is_refused_with_all_else() {
    let (stage, worktree) = stage();
    symlink("src", stage.git.path.join("way")).unwrap();
    for (path, why) in [
        ("src/main.c", "the branch has it"),
        ("src", "the branch has it"),
        ("nowhere", "it is not there"),
        (".git/config", "no path"),
        ("src/.GIT", "no path"),
        ("way/node_modules", "it is not there"),
    ] {
        let error = bring(&stage, &worktree, &[".env", path]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOptions, "{error}");
        assert!(error.to_string().contains(why), "{error}");
        assert!(!worktree.directory.join(".env").exists(), "{path}");
    }
}

#[test]
fn no_link_in_the_runs_work_tree_is_followed() {
    let (stage, worktree) = stage();
    let outside = stage.git.beside("outside");
    fs::create_dir(&outside).unwrap();
    fs::remove_dir_all(worktree.directory.join("src")).unwrap();
    symlink(&outside, worktree.directory.join("src")).unwrap();
    bring(&stage, &worktree, &["src/node_modules"]).unwrap_err();
    assert_eq!(names(&outside), Vec::<Vec<u8>>::new());
}
