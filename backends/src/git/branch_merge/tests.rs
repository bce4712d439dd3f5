//! Merges as commits, and branches that move. The oracle is git.

use std::fs;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::*;
use crate::backend::{Backend as _, SnapshotOptions};
use crate::branches::Branches as _;
use crate::commit::{CommitRequest, Signature};
use crate::error::ErrorKind;
use crate::faults::Fault;
use crate::git::GitBackend;
use crate::git::test_repository::TestRepository;
use crate::snapshot::Label;
use crate::trial;
use crate::workspace::{LockedWorkspace, StateDir, TEST_LOCK_TIMEOUT, Workspace};

const SIDE: &str = "refs/heads/side";

/// A repository with a workspace and a store.
struct Story {
    git: TestRepository,
    workspace: LockedWorkspace,
    op: Operation,
}

impl Story {
    /// `main`, which is checked out, and `side`, which is not, both a commit ahead of their base.
    fn diverged() -> Self {
        let git = TestRepository::in_memory();
        git.write("both", "1\n2\n3\n4\n5\n6\n7\n");
        git.write("dir/file", "base\n");
        git.commit("base");
        git.git(&["switch", "-q", "-c", "side"]);
        git.write("both", "1\n2\n3\n4\n5\n6\nseven\n");
        git.write("new", "of side\n");
        git.commit("side");
        git.git(&["switch", "-q", "main"]);
        git.write("both", "one\n2\n3\n4\n5\n6\n7\n");
        git.commit("main");
        Self::of(git)
    }

    fn of(git: TestRepository) -> Self {
        let state = StateDir::open(git.beside("state")).unwrap();
        let op = Operation::unbounded();
        let workspace = Workspace::open(&git.path, &state).unwrap();
        let workspace = workspace.lock(&op, TEST_LOCK_TIMEOUT).unwrap();
        let options = SnapshotOptions::new(Label::MANUAL, Timestamp::UNIX_EPOCH);
        GitBackend.snapshot(&op, &workspace, &options).unwrap();
        Self { git, workspace, op }
    }

    fn id(&self, name: &str) -> String {
        self.git.git(&["rev-parse", name])
    }

    fn refs(&self) -> String {
        self.git.git(&["for-each-ref"])
    }

    fn request(&self, into: &str, from: &str) -> BranchMerge {
        let at = Timestamp::from_second(1_700_000_000).unwrap();
        let commit = CommitRequest::new("Merge of a run", at);
        let commit = commit.author(Signature::new("Ann", "ann@example.org"));
        BranchMerge::new(self.id(into), self.id(from), commit)
    }

    fn merge(&self, into: &str, from: &str) -> Merged {
        let refs = self.refs();
        let request = self.request(into, from);
        let merged = GitBackend.merge(&self.op, &self.workspace, &request);
        assert_eq!(self.refs(), refs);
        merged.unwrap()
    }

    fn move_in(&self, op: &Operation, from: &str, to: &str) -> Result<Vec<Checkout>, BranchError> {
        let at = Timestamp::from_second(1_700_000_000).unwrap();
        let request = BranchMove::new(SIDE, [from, to], "merge: a run", at);
        GitBackend.move_branch(op, &self.workspace, &request)
    }

    fn checkouts(&self, branch: &str) -> Vec<(PathBuf, CheckoutUsage)> {
        let found = GitBackend.checkouts(&self.op, &self.workspace, branch);
        let found = found.unwrap().into_iter();
        found.map(|c| (c.directory, c.usage)).collect()
    }

    /// `side` in a linked work tree.
    fn linked(&self) -> PathBuf {
        let tree = self.git.beside("linked");
        let path = tree.to_str().unwrap();
        self.git.git(&["worktree", "add", "-q", path, "side"]);
        tree
    }
}

#[test]
fn a_merge_is_a_commit_with_both_as_parents_and_the_tree_that_git_makes() {
    let story = Story::diverged();
    let Merged::Commit { commit, tree } = story.merge("main", "side") else {
        panic!("they are apart, and do not conflict");
    };
    let by_git = story
        .git
        .git(&["merge-tree", "--write-tree", "main", "side"]);
    assert_eq!(tree, by_git);
    let shown = story.git.git(&["cat-file", "commit", &commit]);
    let expected = format!(
        "tree {tree}\nparent {}\nparent {}\nauthor Ann <ann@example.org> 1700000000 +0000\n\
         committer Ann <ann@example.org> 1700000000 +0000\n\nMerge of a run",
        story.id("main"),
        story.id("side"),
    );
    assert_eq!(shown, expected);
    // All of it is the repository's own.
    story
        .git
        .git(&["fsck", "--strict", "--connectivity-only", &commit]);
    assert_eq!(story.git.git(&["status", "--porcelain"]), "");
    assert_eq!(story.merge("main", "side"), Merged::Commit { commit, tree });
}

#[test]
fn what_is_in_already_and_what_goes_on_from_it_needs_no_commit() {
    let story = Story::diverged();
    assert_eq!(story.merge("main", "main"), Merged::Contained);
    assert_eq!(story.merge("main", "main~1"), Merged::Contained);
    assert_eq!(story.merge("main~1", "side"), Merged::FastForward);
    let empty = story.git.git(&["mktree", "--missing"]);
    let root = story.git.git(&["commit-tree", "-m", "root", &empty]);
    story.git.git(&["branch", "root", &root]);
    assert_eq!(story.merge("main", "root"), Merged::Unrelated);
}

#[test]
fn of_many_paths_in_conflict_fifty_are_named() {
    let git = TestRepository::in_memory();
    git.write("base", "base\n");
    git.commit("base");
    for (branch, text) in [("side", "of side\n"), ("other", "of other\n")] {
        git.git(&["switch", "-q", "-c", branch, "main"]);
        for n in 0..80 {
            git.write(format!("f{n:02}"), text);
        }
        git.commit(branch);
    }
    let story = Story::of(git);
    let objects = story.git.git(&["count-objects", "-v"]);
    let Merged::Conflict { files, more } = story.merge("other", "side") else {
        panic!("both add each file");
    };
    assert_eq!((files.len(), more), (50, 30));
    assert_eq!(files[49].to_string(), "f49");
    assert_eq!(story.git.git(&["count-objects", "-v"]), objects);
}

#[test]
fn what_is_no_commit_of_the_repository_is_not_merged() {
    let story = Story::diverged();
    let tree = story.id("main^{tree}");
    let nowhere = "1".repeat(40);
    for (id, kind) in [
        ("main", ErrorKind::InvalidOptions),
        (&*nowhere, ErrorKind::NotFound),
        (&*tree, ErrorKind::NotFound),
    ] {
        let mut request = story.request("main", "side");
        request.from = id.to_owned();
        let error = GitBackend.merge(&story.op, &story.workspace, &request);
        assert_eq!(error.unwrap_err().kind(), kind, "{id}");
        let error = story.move_in(&story.op, &story.id("side"), id).unwrap_err();
        assert_eq!(error.kind(), kind, "{id}: {error}");
    }
    let mut request = story.request("main", "side");
    request.commit.message = "\n".to_owned();
    let error = GitBackend.merge(&story.op, &story.workspace, &request);
    assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidOptions);
}

#[test]
fn a_branch_that_nobody_has_checked_out_goes_on_with_its_reflog() {
    let story = Story::diverged();
    let (from, to) = (story.id("side"), story.id("main"));
    story.git.git(&["pack-refs", "--all"]);
    assert_eq!(story.move_in(&story.op, &from, &to).unwrap(), []);
    assert_eq!(story.id("side"), to);
    let log = ["log", "-g", "--format=%H %gs", "side"];
    let first = story.git.git(&log);
    assert_eq!(first.lines().next(), Some(&*format!("{to} merge: a run")));
    // Again it is there, and said once.
    assert_eq!(story.move_in(&story.op, &from, &to).unwrap(), []);
    assert_eq!(story.git.git(&log), first);

    let error = story.move_in(&story.op, &from, &story.id("main~1"));
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::HeadMoved, "{error}");
    assert_eq!(story.id("side"), to);
    story.git.git(&["branch", "-q", "-D", "side"]);
    let error = story.move_in(&story.op, &from, &to).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::HeadMoved, "{error}");
    assert_eq!(story.git.git(&["branch", "--list", "side"]), "");
}

/// What happens to a work tree.
type Use = fn(&Story, &Path);

#[test]
fn a_branch_that_somebody_uses_stays_and_its_work_tree_is_named() {
    let away = |why: &str| CheckoutUsage::Away(why.to_owned());
    let cases: [(&str, Use, CheckoutUsage); 6] = [
        ("checked out", |_, _| {}, CheckoutUsage::CheckedOut),
        (
            "rebased",
            |story, tree| {
                story
                    .git
                    .run(tree, &["rebase", "-q", "--exec", "false", "HEAD~1"]);
            },
            CheckoutUsage::InOperation,
        ),
        (
            "bisected",
            |story, tree| {
                story
                    .git
                    .git_in(tree, &["bisect", "start", "HEAD", "HEAD~1"]);
            },
            CheckoutUsage::InOperation,
        ),
        (
            "removed",
            |_, tree| fs::remove_dir_all(tree).unwrap(),
            away("its directory is not there"),
        ),
        (
            "another's",
            |_, tree| {
                let other = TestRepository::with_commit();
                fs::remove_dir_all(tree).unwrap();
                fs::create_dir(tree).unwrap();
                let link = format!("gitdir: {}/.git\n", other.path.display());
                fs::write(tree.join(".git"), link).unwrap();
            },
            away("its directory is not there"),
        ),
        (
            "elsewhere",
            |story, tree| {
                story
                    .git
                    .git(&["config", "extensions.worktreeConfig", "true"]);
                let elsewhere = story.git.beside("elsewhere");
                fs::create_dir(&elsewhere).unwrap();
                let path = elsewhere.to_str().unwrap();
                story
                    .git
                    .git_in(tree, &["config", "--worktree", "core.worktree", path]);
            },
            away("core.worktree says that it is elsewhere"),
        ),
    ];
    for (what, make, usage) in cases {
        let story = Story::diverged();
        assert_eq!(story.checkouts(SIDE), [], "{what}");
        let tree = story.linked();
        make(&story, &tree);
        assert_eq!(story.checkouts(SIDE), [(tree, usage)], "{what}");
        let (from, to) = (story.id("side"), story.id("main"));
        let error = story.move_in(&story.op, &from, &to).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{what}: {error}");
        assert!(error.to_string().contains("linked"), "{what}: {error}");
        assert_eq!(story.id("side"), from, "{what}");
    }
}

#[test]
fn the_main_work_tree_has_its_branch_and_a_bare_repository_none() {
    let story = Story::diverged();
    let main = "refs/heads/main";
    let own = (story.git.path.clone(), CheckoutUsage::CheckedOut);
    assert_eq!(story.checkouts(main), [own]);
    story.git.git(&["config", "core.worktree", "/elsewhere"]);
    let away = CheckoutUsage::Away("core.worktree says that it is elsewhere".to_owned());
    assert_eq!(story.checkouts(main)[0].1, away);
    story.git.git(&["config", "--unset", "core.worktree"]);
    story.git.git(&["checkout", "-q", "--detach"]);
    assert_eq!(story.checkouts(main), []);

    let bare = story.git.beside("bare.git");
    let (from, to) = (story.git.path.to_str().unwrap(), bare.to_str().unwrap());
    story.git.git(&["clone", "-q", "--bare", from, to]);
    let found = worktrees::checkouts_of(&story.op, &bare, main).unwrap();
    assert_eq!(found, []);
}

#[test]
fn a_lock_of_gits_stays_and_a_branch_that_is_a_name_for_another_too() {
    let story = Story::diverged();
    let (from, to) = (story.id("side"), story.id("main"));
    let lock = story.git.path.join(".git/refs/heads/side.lock");
    fs::write(&lock, "").unwrap();
    let error = story.move_in(&story.op, &from, &to).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert!(lock.exists());
    fs::remove_file(&lock).unwrap();
    story.git.git(&["branch", "other", "side"]);
    story.git.git(&["symbolic-ref", SIDE, "refs/heads/other"]);
    story.move_in(&story.op, &from, &to).unwrap_err();
    assert_eq!(story.id("other"), from);
}

#[test]
fn a_merge_and_a_move_that_die_at_any_call_are_made_once() {
    let whole = |story: &Story, op: &Operation| {
        let request = story.request("side", "main");
        let merged = GitBackend.merge(op, &story.workspace, &request)?;
        let Merged::Commit { commit, .. } = merged else {
            panic!("they are apart");
        };
        story.move_in(op, &request.into, &commit).map(|_| commit)
    };
    let story = Story::diverged();
    let (made, calls) = trial::calls_of(|op| whole(&story, op));
    let made = made.unwrap();
    for call in calls.chosen() {
        let story = Story::diverged();
        let request = story.request("side", "main");
        let (result, calls) = trial::with(Fault::StopBefore(call), |op| whole(&story, op));
        if calls <= call {
            result.unwrap();
            break;
        }
        story.git.git(&["pack-refs", "--all"]);
        let merged = GitBackend
            .merge(&story.op, &story.workspace, &request)
            .unwrap();
        let Merged::Commit { commit, .. } = merged else {
            panic!("at call {call}: {merged:?}");
        };
        story.move_in(&story.op, &request.into, &commit).unwrap();
        assert_eq!(story.id("side"), commit, "at call {call}");
        story.git.git(&["fsck", "--strict"]);
        let log = story.git.git(&["log", "-g", "--format=%H", "side"]);
        let count = log.lines().filter(|line| *line == commit).count();
        assert_eq!(count, 1, "at call {call}: {log}");
        let locks = story.git.run(&story.git.path, &["status"]);
        assert!(locks.status.success());
        let left = walkdir::WalkDir::new(story.git.path.join(".git"));
        let left = left.into_iter().map(|e| e.unwrap().file_name().to_owned());
        let left: Vec<_> = left
            .filter(|n| n.to_string_lossy().ends_with(".lock"))
            .collect();
        assert_eq!(left, Vec::<std::ffi::OsString>::new(), "at call {call}");
    }
    assert_eq!(made.len(), 40);
}
