//! Coming to a branch, beside git itself.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use jiff::Timestamp;

use super::*;
use crate::backend::{
    Backend as _, RepositoryRestore, RestoreOptions, RestoreOutcome, SnapshotOptions,
};
use crate::faults::one_of_each;
use crate::git::GitBackend;
use crate::git::store::StoreSlot;
use crate::git::test_repository::TestRepository;
use crate::restore::RestoreGoal;
use crate::restore_error::RestoreError;
use crate::snapshot::{Label, Snapshot};
use crate::workspace::{StateDir, TEST_LOCK_TIMEOUT, Workspace};

const BRANCH: &str = "refs/heads/task";

/// A repository with a workspace.
struct Story {
    git: TestRepository,
    workspace: LockedWorkspace,
}

impl Story {
    fn of(git: TestRepository) -> Self {
        let path = git.path.clone();
        let state = StateDir::open(git.beside("state")).unwrap();
        let workspace = Workspace::open(&path, &state)
            .unwrap()
            .lock(&Operation::unbounded(), TEST_LOCK_TIMEOUT)
            .unwrap();
        Self { git, workspace }
    }

    /// Files on `main`, and others on `task`; `main` is checked out.
    fn with_branches(main: &[(&str, &str)], task: &[(&str, &str)]) -> Self {
        let git = TestRepository::in_memory();
        for (path, content) in main {
            git.write(path, content);
        }
        git.commit("main");
        git.git(&["switch", "-q", "-c", "task"]);
        git.git(&["rm", "-q", "-r", "--ignore-unmatch", "."]);
        for (path, content) in task {
            git.write(path, content);
        }
        git.commit("task");
        git.git(&["switch", "-q", "main"]);
        Self::of(git)
    }

    fn tip(&self) -> Option<String> {
        let tip = self
            .git
            .run(&self.git.path, &["rev-parse", "-q", "--verify", BRANCH]);
        let text = String::from_utf8(tip.stdout).unwrap();
        (!text.is_empty()).then(|| text.trim().to_owned())
    }

    fn prepare(&self, to: Option<String>) -> Result<(Snapshot, Switch), BranchError> {
        let op = Operation::unbounded();
        let options = SnapshotOptions::new(Label::BEFORE, Timestamp::UNIX_EPOCH)
            .branches(vec![BRANCH.to_owned()]);
        let captured = GitBackend.snapshot(&op, &self.workspace, &options).unwrap();
        let slot = self.workspace.kept_open::<StoreSlot>();
        let store = slot.open(&self.workspace.store_path().join("git"));
        let store = store.unwrap().unwrap();
        let record = store.record(&op, &captured.id).unwrap();
        let mut request = SwitchRequest::new(BRANCH, to, Timestamp::UNIX_EPOCH);
        request.from = self.tip();
        let home = self.git.home();
        let env = move |name: &str| (name == "HOME").then(|| OsString::from(home.clone()));
        let switch = prepare(&op, &self.workspace, &store, &record, &request, &env)?;
        Ok((captured, switch))
    }

    /// Comes to the branch, as the engine does it: what the switch was made from is the guard.
    fn switch(&mut self, to: Option<String>) -> Result<RestoreOutcome, BranchError> {
        let (from, switch) = self.prepare(to)?;
        let outcome = self.carry_out(&from, switch).unwrap();
        assert_eq!(outcome.guard.id, from.id);
        let options = SnapshotOptions::new(Label::AFTER, Timestamp::UNIX_EPOCH);
        let op = Operation::unbounded();
        let now = GitBackend.snapshot(&op, &self.workspace, &options).unwrap();
        assert_eq!(now.tree, outcome.result.tree, "it is what is there");
        Ok(outcome)
    }

    fn carry_out(
        &mut self,
        from: &Snapshot,
        switch: Switch,
    ) -> Result<RestoreOutcome, RestoreError> {
        let op = Operation::unbounded();
        let goal = RestoreGoal::Undo {
            before: switch.to.clone(),
            after: from.clone(),
            paths: Some(switch.paths),
        };
        let mut guard = SnapshotOptions::new(Label::GUARD, Timestamp::UNIX_EPOCH);
        guard.id = from.id.clone();
        let options = RestoreOptions::new(guard).repository(RepositoryRestore::Switch {
            to: switch.to,
            from: from.clone(),
            reached: Vec::new(),
            merges: false,
        });
        GitBackend.restore(&op, &mut self.workspace, &goal, &options)
    }

    fn refuses(&mut self, expected: &str) {
        let before = seen(&self.git, &self.git.path);
        let bytes = fs::read(self.git.path.join(".git/index")).unwrap_or_default();
        let error = self.switch(self.tip()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(error.ends_with("nothing was moved"), "{error}");
        assert_eq!(seen(&self.git, &self.git.path), before);
        let index = fs::read(self.git.path.join(".git/index")).unwrap_or_default();
        assert_eq!(index, bytes);
    }

    /// A copy of everything, by git's hand.
    fn copy(&self) -> PathBuf {
        let copy = self.git.beside("copy");
        let _ = fs::remove_dir_all(&copy);
        let mut cp = Command::new("cp");
        assert!(
            cp.arg("-a")
                .arg(&self.git.path)
                .arg(&copy)
                .status()
                .unwrap()
                .success()
        );
        copy
    }
}

/// What git and an independent walker see: HEAD, index, state and files.
fn seen(git: &TestRepository, at: &Path) -> (String, String, String, BTreeMap<PathBuf, String>) {
    let mut files = BTreeMap::new();
    let walk = walkdir::WalkDir::new(at).into_iter();
    for entry in walk.filter_entry(|entry| entry.file_name() != ".git") {
        let entry = entry.unwrap();
        let below = entry.path().strip_prefix(at).unwrap().to_owned();
        let kind = entry.file_type();
        let text = if kind.is_symlink() {
            format!("link {}", fs::read_link(entry.path()).unwrap().display())
        } else if kind.is_dir() {
            "directory".to_owned()
        } else {
            let mode = entry.metadata().unwrap().permissions().mode() & 0o111;
            let bytes = fs::read(entry.path()).unwrap();
            format!("{mode:o} {}", String::from_utf8_lossy(&bytes))
        };
        files.insert(below, text);
    }
    (
        fs::read_to_string(at.join(".git/HEAD")).unwrap(),
        git.git_in(at, &["ls-files", "-s", "-t"]),
        git.git_in(at, &["status", "--porcelain=v1", "-uall", "--ignored"]),
        files,
    )
}

#[test]
fn a_branch_comes_with_files_index_and_head_and_local_changes_beside_it_stay() {
    let main = [
        ("same", "1\n"),
        ("changed", "1\n"),
        ("gone", "1\n"),
        ("mine", "1\n"),
    ];
    let task = [
        ("same", "1\n"),
        ("changed", "2\n"),
        ("new/file", "2\n"),
        ("mine", "1\n"),
    ];
    let mut story = Story::with_branches(&main, &task);
    story.git.write("mine", "edited\n");
    story.git.write("staged", "staged\n");
    story.git.git(&["add", "staged"]);
    story.git.write("untracked", "untracked\n");
    let copy = story.copy();
    let outcome = story.switch(story.tip()).unwrap();
    assert_eq!(outcome.skipped, []);
    assert_eq!(outcome.safety_tag, None);
    story.git.git_in(&copy, &["switch", "-q", "task"]);
    assert_eq!(seen(&story.git, &story.git.path), seen(&story.git, &copy));
    story.git.git(&["fsck", "--strict"]);
    // Everything that was there is in the guard, HEAD and index too.
    let options = SnapshotOptions::new(Label::GUARD, Timestamp::UNIX_EPOCH);
    let back = RestoreOptions::new(options).repository(RepositoryRestore::Undo {
        before: outcome.guard.clone(),
        after: outcome.result.clone(),
        run_id: "back".to_owned(),
    });
    let goal = RestoreGoal::Undo {
        before: outcome.guard,
        after: outcome.result,
        paths: None,
    };
    let op = Operation::unbounded();
    GitBackend
        .restore(&op, &mut story.workspace, &goal, &back)
        .unwrap();
    story.git.git_in(&copy, &["switch", "-q", "main"]);
    assert_eq!(seen(&story.git, &story.git.path), seen(&story.git, &copy));
}

/// `main` and `task`, which has another content of `one` and `two`.
fn two_files() -> Story {
    let main = [("one", "1\n"), ("two", "1\n"), ("mine", "1\n")];
    let task = [("one", "2\n"), ("two", "2\n"), ("mine", "1\n")];
    Story::with_branches(&main, &task)
}

#[test]
fn what_is_edited_once_the_switch_was_made_stays_and_is_named() {
    let mut story = two_files();
    let (from, switch) = story.prepare(story.tip()).unwrap();
    let to = switch.to.id.clone();
    story.git.write("one", "edited meanwhile\n");
    story.git.write("mine", "so is this\n");
    let outcome = story.carry_out(&from, switch).unwrap();
    let skipped: Vec<_> = outcome.skipped.iter().map(|s| s.path.to_string()).collect();
    assert_eq!(skipped, ["one"]);
    assert_ne!(outcome.result.id, to, "it did not come to that");
    let read = |name: &str| fs::read_to_string(story.git.path.join(name)).unwrap();
    assert_eq!(read("one"), "edited meanwhile\n");
    assert_eq!((&*read("two"), &*read("mine")), ("2\n", "so is this\n"));
}

#[test]
fn what_is_staged_once_the_switch_was_made_keeps_it_from_being_carried_out() {
    let mut story = two_files();
    let (from, switch) = story.prepare(story.tip()).unwrap();
    story.git.write("mine", "staged meanwhile\n");
    story.git.git(&["add", "mine"]);
    let before = seen(&story.git, &story.git.path);
    let refused = story.carry_out(&from, switch).unwrap_err();
    assert!(!refused.touched(), "{refused}");
    assert!(refused.to_string().contains(".git/index"), "{refused}");
    assert_eq!(seen(&story.git, &story.git.path), before);

    // Stat data alone is nothing that anybody staged.
    let (from, switch) = story.prepare(story.tip()).unwrap();
    let file = fs::File::open(story.git.path.join("mine")).unwrap();
    file.set_modified(std::time::SystemTime::UNIX_EPOCH)
        .unwrap();
    let index = story.git.path.join(".git/index");
    let was = fs::read(&index).unwrap();
    story.git.git(&["update-index", "--refresh"]);
    assert_ne!(fs::read(&index).unwrap(), was);
    let outcome = story.carry_out(&from, switch).unwrap();
    assert_eq!(outcome.repository_error, None);
    assert_eq!(story.git.git(&["symbolic-ref", "HEAD"]).trim(), BRANCH);
}

#[test]
fn a_guard_that_was_not_captured_last_is_none() {
    let mut story = two_files();
    let (from, switch) = story.prepare(story.tip()).unwrap();
    let options = SnapshotOptions::new(Label::MANUAL, Timestamp::UNIX_EPOCH);
    let op = Operation::unbounded();
    GitBackend
        .snapshot(&op, &story.workspace, &options)
        .unwrap();
    let before = seen(&story.git, &story.git.path);
    let refused = story.carry_out(&from, switch).unwrap_err();
    assert!(matches!(refused, RestoreError::Guard(_)), "{refused}");
    assert_eq!(seen(&story.git, &story.git.path), before);
}

#[test]
fn a_file_comes_in_the_place_of_a_directory_and_a_directory_in_that_of_a_file() {
    let main = [
        ("d/x", "1\n"),
        ("e", "1\n"),
        ("k/l/m", "1\n"),
        ("k/n", "1\n"),
    ];
    let task = [("d", "2\n"), ("e/y", "2\n"), ("k/l", "2\n")];
    let mut story = Story::with_branches(&main, &task);
    let outcome = story.switch(story.tip()).unwrap();
    assert_eq!(outcome.skipped, []);
    assert_eq!(story.git.git(&["status", "--porcelain"]), "");
}

#[test]
fn what_would_be_lost_is_named_and_nothing_moves() {
    let main = [("file", "1\n"), ("d/file", "1\n"), ("gone", "1\n")];
    let task = [
        ("file", "2\n"),
        ("d/file", "1\n"),
        ("new", "2\n"),
        ("d/new/x", "2\n"),
    ];
    let story = || Story::with_branches(&main, &task);
    let mut s = story();
    s.git.write("file", "mine\n");
    s.refuses("file was changed");
    let mut s = story();
    s.git.write("file", "mine\n");
    s.git.git(&["add", "file"]);
    s.git.write("file", "1\n");
    s.refuses("file is staged otherwise");
    let mut s = story();
    s.git.write("new", "mine\n");
    s.refuses("new is not tracked here");
    let mut s = story();
    s.git.write(".git/info/exclude", "new\n");
    s.git.write("new", "mine\n");
    s.refuses("new is ignored");
    let mut s = story();
    s.git.write("new/within", "mine\n");
    s.refuses("new is a directory with changes here");
    let mut s = story();
    s.git.write(".git/info/exclude", "new/\n");
    s.git.write("new/within", "mine\n");
    s.refuses("new is a directory here that has more than git knows");
    let mut s = story();
    s.git.write("d/new", "mine\n");
    s.refuses("d/new/x lies below what is no directory here");
    let mut s = story();
    s.git.write(".git/info/exclude", "d/new\n");
    symlink("/", s.git.path.join("d/new")).unwrap();
    s.refuses("d/new/x lies below what is no directory here");
    let mut s = story();
    s.git.write("gone", "mine\n");
    s.refuses("gone was changed");
    let mut s = story();
    fs::remove_file(s.git.path.join("file")).unwrap();
    s.refuses("file was removed");
    let mut s = story();
    s.git.git(&["update-index", "--assume-unchanged", "file"]);
    s.git.write("file", "mine\n");
    s.refuses("file was changed, and git was told not to look at it");
    let mut s = story();
    s.git.git(&[
        "worktree",
        "add",
        "-q",
        s.git.beside("other").to_str().unwrap(),
        "task",
    ]);
    s.refuses("is checked out in");
    let mut s = story();
    s.git
        .write(".git/MERGE_HEAD", format!("{}\n", s.tip().unwrap()));
    s.refuses("a merge is in progress");
}

#[test]
fn what_already_is_as_the_branch_has_it_is_not_in_the_way() {
    let main = [("file", "1\n"), ("gone", "1\n")];
    let task = [("file", "2\n"), ("new", "2\n")];
    let mut story = Story::with_branches(&main, &task);
    story.git.write("file", "2\n");
    story.git.write("new", "2\n");
    fs::remove_file(story.git.path.join("gone")).unwrap();
    story.git.git(&["add", "new"]);
    let before = fs::metadata(story.git.path.join("file"))
        .unwrap()
        .modified()
        .unwrap();
    let outcome = story.switch(story.tip()).unwrap();
    assert_eq!(outcome.restored, []);
    let after = fs::metadata(story.git.path.join("file"))
        .unwrap()
        .modified()
        .unwrap();
    assert_eq!(after, before);
    assert_eq!(story.git.git(&["status", "--porcelain"]), "");
    assert_eq!(story.git.git(&["symbolic-ref", "HEAD"]), BRANCH);
}

#[test]
fn a_branch_is_made_where_there_is_none_also_without_a_commit() {
    let mut story = Story::with_branches(&[("file", "1\n")], &[("file", "2\n")]);
    let to = story.tip();
    story.git.git(&["branch", "-q", "-D", "task"]);
    story.switch(to.clone()).unwrap();
    assert_eq!(story.tip(), to);
    assert_eq!(story.git.git(&["status", "--porcelain"]), "");

    let git = TestRepository::in_memory();
    git.write("file", "1\n");
    git.git(&["add", "file"]);
    let mut story = Story::of(git);
    story.switch(None).unwrap();
    assert_eq!(story.git.git(&["symbolic-ref", "HEAD"]), BRANCH);
    assert_eq!(story.git.git(&["status", "--porcelain"]), "A  file");
}

#[test]
fn commits_that_the_store_has_come_into_the_repository() {
    let mut story = Story::with_branches(&[("file", "1\n")], &[("file", "1\n")]);
    let clone = story.git.beside("clone");
    story
        .git
        .git(&["clone", "-q", ".", clone.to_str().unwrap()]);
    for round in 0..3 {
        fs::create_dir_all(clone.join("deep/er")).unwrap();
        fs::write(clone.join(format!("deep/er/{round}")), format!("{round}\n")).unwrap();
        story.git.git_in(&clone, &["add", "."]);
        story
            .git
            .git_in(&clone, &["commit", "-q", "-m", &format!("round {round}")]);
    }
    let to = story.git.git_in(&clone, &["rev-parse", "HEAD"]);
    let missing = story.switch(Some(to.clone())).unwrap_err();
    assert!(
        matches!(missing, BranchError::Incomplete { .. }),
        "{missing}"
    );
    let store = story.workspace.store_path().join("git");
    let fetch = [
        "fetch",
        "-q",
        "--no-write-fetch-head",
        clone.to_str().unwrap(),
        &to,
    ];
    story.git.git_in(&store, &fetch);
    story.switch(Some(to.clone())).unwrap();
    assert_eq!(story.tip(), Some(to));
    assert_eq!(story.git.git(&["status", "--porcelain"]), "");
    story.git.git(&["fsck", "--strict", "--full"]);
    assert_eq!(fs::read(story.git.path.join("deep/er/2")).unwrap(), b"2\n");
}

/// SplitMix64, by Steele, Lea and Flood.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }

    fn of<T: Copy>(&mut self, sides: &[T]) -> T {
        sides[usize::try_from(self.roll(sides.len() as u64)).expect("it is less")]
    }
}

/// Content that the conversions tell apart.
const TEXTS: [&str; 8] = [
    "",
    "one\ntwo\n",
    "one\r\ntwo\r\n",
    "one\r\ntwo\n",
    "lone\rcr\n",
    "bin\0ary\n",
    "$Id$\nx\n",
    "$Id: a b c $ $Id: x$ $Id\n",
];

const ATTRIBUTES: [&str; 16] = [
    "* text=input eol=crlf\n",
    "* crlf=input eol=crlf\n",
    "* text=foo -crlf\n",
    "* text=foo crlf=input\n",
    "",
    "* text=auto\n",
    "* text\n",
    "* -text\n",
    "* text eol=crlf\n",
    "* text=auto eol=crlf\n",
    "* eol=lf\n",
    "*.a eol=crlf\n*.b ident\n",
    "* text=auto ident\n",
    "* crlf\n",
    "* crlf=input\n",
    "*.a text=auto eol=lf\n*.b binary\n",
];

const SETTINGS: [(&str, &str); 6] = [
    ("core.autocrlf", "false"),
    ("core.autocrlf", "true"),
    ("core.autocrlf", "input"),
    ("core.eol", "crlf"),
    ("core.eol", "lf"),
    ("core.eol", "native"),
];

/// Files as a commit has them: what git would not store so is written by plumbing.
fn commit_raw(git: &TestRepository, files: &BTreeMap<String, String>, message: &str) {
    git.git(&["read-tree", "--empty"]);
    for (path, content) in files {
        git.write("../blob", content);
        let id = git.git(&["hash-object", "-w", "--no-filters", "../blob"]);
        let mode = match path.ends_with(".x") {
            true => "100755",
            false => "100644",
        };
        git.git(&[
            "update-index",
            "--add",
            "--cacheinfo",
            &format!("{mode},{id},{path}"),
        ]);
    }
    git.git(&["commit", "-q", "--allow-empty", "-m", message]);
}

fn random_files(dice: &mut Dice) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    for path in ["f.a", "f.b", "f.x", "d/f.a", "d/f.b", "d/e/f", "g", "h"] {
        if dice.roll(4) > 0 {
            files.insert(path.to_owned(), dice.of(&TEXTS).to_owned());
        }
    }
    // A directory in the place of a file.
    if dice.roll(3) == 0 {
        files.remove("g");
        files.insert("g/within".to_owned(), "within\n".to_owned());
    }
    let attributes = dice.of(&ATTRIBUTES);
    files.insert(".gitattributes".to_owned(), attributes.to_owned());
    files
}

fn edit(git: &TestRepository, dice: &mut Dice, round: u64) {
    for nth in 0..dice.roll(3) {
        let path = dice.of(&["f.a", "d/f.a", "h", "own", "d/own", "n/own"]);
        let at = git.path.join(path);
        if at.is_dir() {
            continue;
        }
        let known = git.git(&["ls-files", path]);
        match dice.roll(4) {
            0 if at.exists() => {
                let mode = fs::metadata(&at).unwrap().permissions().mode() ^ 0o111;
                fs::set_permissions(&at, fs::Permissions::from_mode(mode)).unwrap();
            }
            1 if known.is_empty() => git.write(path, format!("new {round} {nth}\n")),
            2 => {
                git.write(path, format!("staged {round} {nth}\n"));
                git.git(&["add", path]);
            }
            _ => git.write(path, format!("edited {round} {nth}\n")),
        }
    }
}

/// Gives each file a time that no index has. git takes some of what it would store otherwise for
/// clean, or not, by whether the clock moved on between the file and the index.
fn be_looked_into(at: &Path) {
    let walk = walkdir::WalkDir::new(at).into_iter();
    for entry in walk.filter_entry(|entry| entry.file_name() != ".git") {
        let entry = entry.unwrap();
        if entry.file_type().is_file() {
            let file = fs::File::open(entry.path()).unwrap();
            let time = std::time::SystemTime::UNIX_EPOCH;
            file.set_modified(time).unwrap();
        }
    }
}

/// Pairs of trees with attributes, links, modes and directories in the place of files, with and
/// without changes here: either both come to the same, or both refuse.
#[test]
fn it_comes_to_what_git_switch_comes_to() {
    let (mut switched, mut refused) = (0, 0);
    for round in one_of_each(3).take_while(|round| *round < 60) {
        let mut dice = Dice(0x5117c4 + round);
        let git = TestRepository::in_memory();
        commit_raw(&git, &random_files(&mut dice), "main");
        git.git(&["branch", "-q", "task"]);
        git.git(&["symbolic-ref", "HEAD", BRANCH]);
        commit_raw(&git, &random_files(&mut dice), "task");
        git.git(&["symbolic-ref", "HEAD", "refs/heads/main"]);
        let (key, value) = dice.of(&SETTINGS);
        git.git(&["config", key, value]);
        git.git(&["read-tree", "--empty"]);
        git.git(&["reset", "-q", "--hard"]);
        if !git.git(&["status", "--porcelain"]).is_empty() {
            // git itself takes what it has just written for changed.
            continue;
        }
        edit(&git, &mut dice, round);
        let mut story = Story::of(git);
        let copy = story.copy();
        let theirs = story.git.run(&copy, &["switch", "-q", "task"]);
        let ours = story.switch(story.tip());
        let said = String::from_utf8_lossy(&theirs.stderr);
        assert_eq!(
            ours.is_ok(),
            theirs.status.success(),
            "round {round}: {ours:?}\n{said}"
        );
        match ours {
            Ok(_) => switched += 1,
            Err(_) => refused += 1,
        }
        for place in [&story.git.path, &copy] {
            be_looked_into(place);
        }
        assert_eq!(
            seen(&story.git, &story.git.path),
            seen(&story.git, &copy),
            "round {round}"
        );
    }
    assert!(switched >= 3 && refused >= 2, "{switched} and {refused}");
}
