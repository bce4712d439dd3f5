//! What is in the way is named, and stays as it is.

use std::collections::BTreeMap;

use super::*;

/// Every file of the repository and of the place for work trees.
fn all_files(stage: &Stage) -> BTreeMap<PathBuf, Vec<u8>> {
    let places = [stage.git.path.join(".git"), stage.state.path().to_owned()];
    let walks = places
        .iter()
        .flat_map(walkdir::WalkDir::new)
        .map(Result::unwrap);
    let files = walks.filter(|entry| entry.file_type().is_file());
    let read = |path: &Path| (path.to_owned(), fs::read(path).unwrap());
    files.map(|entry| read(entry.path())).collect()
}

fn conflicts(stage: &Stage, worktree: &RunWorktree, base: Option<&str>, why: &str) {
    let before = all_files(stage);
    let error = stage.try_ensure(worktree, base).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert!(error.to_string().contains(why), "{error}: {why}");
    assert_eq!(all_files(stage), before, "{why}");
}

#[test]
fn of_the_directory() {
    let stage = Stage::with_commit();
    let base = stage.git.git(&["rev-parse", "HEAD"]);
    let worktree = stage.run("one");
    let directory = &worktree.directory;
    fs::create_dir_all(directory.parent().unwrap()).unwrap();
    let conflicts = |why: &str| {
        super::in_the_way::conflicts(&stage, &worktree, Some(&base), why);
    };
    fs::write(directory, "a file").unwrap();
    conflicts("is no directory");
    fs::remove_file(directory).unwrap();
    std::os::unix::fs::symlink(stage.git.path.join("src"), directory).unwrap();
    conflicts("is no directory");
    fs::remove_file(directory).unwrap();
    fs::create_dir(directory).unwrap();
    fs::write(directory.join("somebody's"), "work").unwrap();
    conflicts("is no work tree");
    fs::remove_dir_all(directory).unwrap();
    let foreign = TestRepository::with_commit();
    let text = directory.to_str().unwrap();
    stage
        .git
        .git(&["clone", "-q", foreign.path.to_str().unwrap(), text]);
    conflicts("is another work tree");
    fs::remove_dir_all(directory).unwrap();
    foreign.git(&["worktree", "add", "-q", "-b", "stillframe/run/one", text]);
    conflicts("is another work tree");
    foreign.git(&["worktree", "remove", text]);
    stage.git.git(&["worktree", "add", "-q", "--detach", text]);
    conflicts("is another work tree");
    stage.git.git(&["worktree", "remove", text]);
    // An empty one is as good as none.
    fs::create_dir(directory).unwrap();
    stage.try_ensure(&worktree, Some(&base)).unwrap();
    stage.is_sound(&worktree);
    stage.git_in(&worktree, &["checkout", "-q", "--detach"]);
    super::in_the_way::conflicts(&stage, &worktree, None, "detached HEAD");
    stage.git_in(&worktree, &["checkout", "-q", "-b", "other"]);
    super::in_the_way::conflicts(&stage, &worktree, None, "has refs/heads/other checked out");
}

#[test]
fn of_the_branch() {
    let stage = Stage::with_commit();
    let git = &stage.git;
    let base = git.git(&["rev-parse", "HEAD"]);
    let worktree = stage.run("one");
    let short = "stillframe/run/one";
    git.git(&["branch", short]);
    conflicts(&stage, &worktree, Some(&base), "is there already");
    git.git(&["pack-refs", "--all"]);
    conflicts(&stage, &worktree, Some(&base), "is there already");
    git.git(&["branch", "-D", short]);
    conflicts(&stage, &worktree, None, "any more");
    let elsewhere = git.beside("elsewhere");
    git.git(&[
        "worktree",
        "add",
        "-q",
        "-b",
        short,
        elsewhere.to_str().unwrap(),
    ]);
    conflicts(&stage, &worktree, None, "is checked out in");
    git.git(&["worktree", "remove", elsewhere.to_str().unwrap()]);
    git.git(&["branch", "-D", short]);
    for other in ["stillframe", "stillframe/run/one/below"] {
        git.git(&["branch", other]);
        conflicts(&stage, &worktree, Some(&base), "cannot be made beside");
        git.git(&["pack-refs", "--all"]);
        conflicts(&stage, &worktree, Some(&base), "cannot be made beside");
        git.git(&["branch", "-D", other]);
    }
    stage.try_ensure(&worktree, Some(&base)).unwrap();
    stage.is_sound(&worktree);
}

#[test]
fn of_the_entry() {
    let stage = Stage::with_commit();
    let base = stage.git.git(&["rev-parse", "HEAD"]);
    let worktree = stage.run("one");
    let entry = stage.git.path.join(".git/worktrees/stillframe-one");
    fs::create_dir_all(&entry).unwrap();
    fs::write(entry.join("HEAD"), "ref: refs/heads/stillframe/run/one\n").unwrap();
    conflicts(&stage, &worktree, Some(&base), "half of an entry");
    fs::write(entry.join("gitdir"), "/elsewhere/.git\n").unwrap();
    conflicts(&stage, &worktree, Some(&base), "of another work tree");
    fs::remove_dir_all(&entry).unwrap();
    std::os::unix::fs::symlink("/tmp", &entry).unwrap();
    conflicts(&stage, &worktree, Some(&base), "is no directory");
    fs::remove_file(&entry).unwrap();
    stage.try_ensure(&worktree, Some(&base)).unwrap();
    // One whose HEAD is elsewhere may be all that names a commit.
    stage.git_in(&worktree, &["checkout", "-q", "--detach"]);
    stage.git_in(
        &worktree,
        &["commit", "-q", "--allow-empty", "-m", "detached"],
    );
    fs::remove_dir_all(&worktree.directory).unwrap();
    conflicts(&stage, &worktree, None, "something else checked out");
}

#[test]
fn locks_of_gits_are_waited_for_and_stay() {
    let stage = Stage::with_commit();
    let base = stage.git.git(&["rev-parse", "HEAD"]);
    let worktree = stage.run("one");
    let lock = stage
        .git
        .path
        .join(format!(".git/{}.lock", worktree.branch));
    fs::create_dir_all(lock.parent().unwrap()).unwrap();
    fs::write(&lock, "").unwrap();
    let error = stage.try_ensure(&worktree, Some(&base)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert!(lock.exists());
    assert_eq!(stage.directory(&worktree), RunDirectory::Missing);
    fs::remove_file(&lock).unwrap();
    stage.try_ensure(&worktree, Some(&base)).unwrap();
    stage.is_sound(&worktree);

    let lock = stage
        .git
        .path
        .join(".git/worktrees/stillframe-one/index.lock");
    fs::write(&lock, "").unwrap();
    fs::remove_dir_all(&worktree.directory).unwrap();
    let error = stage.try_ensure(&worktree, None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert!(lock.exists());
    fs::remove_file(&lock).unwrap();
    stage.try_ensure(&worktree, None).unwrap();
    stage.is_sound(&worktree);
}

#[test]
fn a_work_tree_that_somebody_locked_stays_locked() {
    let stage = Stage::with_commit();
    let worktree = stage.ensure("one");
    let path = worktree.directory.to_str().unwrap();
    stage
        .git
        .git(&["worktree", "lock", "--reason", "mine", path]);
    stage.try_ensure(&worktree, None).unwrap();
    let reason = stage.git.path.join(".git/worktrees/stillframe-one/locked");
    assert_eq!(fs::read_to_string(reason).unwrap().trim(), "mine");
}
