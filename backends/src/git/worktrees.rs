//! The work trees of a repository, and which branch each has checked out.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::Dir;

use super::directory::{Create, open_below, open_directory, read_file};
use super::put_error::PutError;
use super::repository::Settings;
use crate::branch_merge::{Checkout, CheckoutUsage};
use crate::git::repository::split;
use crate::operation::Operation;

/// The most that is read of a HEAD, or of the path of a work tree.
const MAX_BYTES: u64 = 64 * 1024;

/// Where in the common directory linked work trees have their own.
const LINKED: &str = "worktrees";

/// The branches that work trees other than that of `git_dir` have checked out, or take for theirs
/// while they rebase or bisect, with the directory of each: those that `git branch -D` refuses for
/// them. What cannot be read of one is left out: nothing depends on it but what people are advised
/// to do.
pub(super) fn taken_elsewhere(
    op: &Operation,
    common_dir: &Path,
    git_dir: &Path,
) -> BTreeMap<String, PathBuf> {
    let all = git_dirs(op, common_dir).unwrap_or_default().into_iter();
    let others = all.filter(|other| other != git_dir);
    let branches = |other: PathBuf| {
        let tree = work_tree_of(op, &other, common_dir);
        let used = branches_of(op, &other);
        let branches = used.head.into_iter().chain(used.of_operations);
        branches.map(move |branch| (branch, tree.clone()))
    };
    others.flat_map(branches).collect()
}

/// The git directories of all work trees of a repository, that of the main one first.
fn git_dirs(op: &Operation, common_dir: &Path) -> Result<Vec<PathBuf>, PutError> {
    let mut linked = linked(op, common_dir)?;
    linked.sort();
    let linked = linked
        .into_iter()
        .map(|name| common_dir.join(LINKED).join(name));
    let main = (!is_bare(op, common_dir)).then(|| common_dir.to_owned());
    Ok(main.into_iter().chain(linked).collect())
}

/// See [`Branches::checkouts`](crate::Branches::checkouts).
pub(super) fn checkouts_of(
    op: &Operation,
    common_dir: &Path,
    branch: &str,
) -> Result<Vec<Checkout>, PutError> {
    let mut checkouts = Vec::new();
    for git_dir in git_dirs(op, common_dir)? {
        let used = branches_of(op, &git_dir);
        let is_head = used.head.as_deref() == Some(branch);
        let is_in_operation = used.of_operations.iter().any(|other| other == branch);
        if !is_head && !is_in_operation {
            continue;
        }
        let directory = work_tree_of(op, &git_dir, common_dir);
        let usage = match why_away(op, &git_dir, common_dir, &directory) {
            Some(why) => CheckoutUsage::Away(why),
            None if is_in_operation => CheckoutUsage::InOperation,
            None => CheckoutUsage::CheckedOut,
        };
        checkouts.push(Checkout::new(directory, usage));
    }
    Ok(checkouts)
}

/// Why a work tree cannot be looked at; `None`: it is there.
fn why_away(op: &Operation, git_dir: &Path, common_dir: &Path, directory: &Path) -> Option<String> {
    let is_main = git_dir == common_dir;
    let own = read(op, common_dir, "config").unwrap_or_default();
    let of_tree = read(op, git_dir, "config.worktree").unwrap_or_default();
    let names_another = |text: &[u8]| Settings::of_text(text).get("core", "worktree").is_some();
    if is_main && names_another(&own) || names_another(&of_tree) {
        return Some("core.worktree says that it is elsewhere".to_owned());
    }
    if is_main {
        return match git_dir.file_name().is_some_and(|name| name == ".git") {
            true => None,
            false => Some("the repository does not say where it is".to_owned()),
        };
    }
    let link = std::fs::read(directory.join(".git")).unwrap_or_default();
    let named = link.strip_prefix(b"gitdir: ").map(<[u8]>::trim_ascii_end);
    let named = named.map(|path| directory.join(OsString::from_vec(path.to_vec())));
    let is_it = |named: PathBuf| named.canonicalize().ok() == git_dir.canonicalize().ok();
    match named.is_some_and(is_it) {
        true => None,
        false => Some("its directory is not there".to_owned()),
    }
}

/// Whether the repository has no work tree but linked ones: what its HEAD names is checked out
/// nowhere then.
fn is_bare(op: &Operation, common_dir: &Path) -> bool {
    let own = read(op, common_dir, "config").unwrap_or_default();
    Settings::of_text(&own).is_on("core", "bare") == Some(true)
}

fn linked(op: &Operation, common_dir: &Path) -> Result<Vec<OsString>, PutError> {
    let common = open_directory(common_dir)?;
    let opened = open_below(op, common.as_fd(), LINKED, Create::No)
        .ok()
        .flatten();
    let entries = opened.and_then(|opened| Dir::read_from(opened).ok());
    let names = entries.into_iter().flatten().flatten();
    let names = names.map(|entry| OsString::from_vec(entry.file_name().to_bytes().to_vec()));
    Ok(names.filter(|name| name != "." && name != "..").collect())
}

/// The branches that a work tree uses.
struct Branches {
    /// What HEAD names.
    head: Option<String>,
    /// What it goes back to when it has rebased or bisected, and what a rebase takes along.
    of_operations: Vec<String>,
}

fn branches_of(op: &Operation, git_dir: &Path) -> Branches {
    let text = |name: &str| String::from_utf8(read(op, git_dir, name)?).ok();
    let head = text("HEAD");
    let head = head.as_deref().and_then(|head| head.strip_prefix("ref:"));
    let rebased = ["rebase-merge/head-name", "rebase-apply/head-name"].map(text);
    let bisected = text("BISECT_START");
    let bisected = bisected.map(|start| match start.trim() {
        full if full.starts_with("refs/") => full.to_owned(),
        short => format!("refs/heads/{short}"),
    });
    // Three lines for each branch that the rebase takes along: its name, and its commits before and
    // after.
    let along = text("rebase-merge/update-refs").unwrap_or_default();
    let along = along.lines().step_by(3).map(str::to_owned);
    let others = rebased.into_iter().chain([bisected]).flatten().chain(along);
    let branch = |name: String| {
        let name = name.trim();
        name.starts_with("refs/heads/").then(|| name.to_owned())
    };
    Branches {
        head: head.map(str::to_owned).and_then(branch),
        of_operations: others.filter_map(branch).collect(),
    }
}

fn work_tree_of(op: &Operation, git_dir: &Path, common_dir: &Path) -> PathBuf {
    let link = match git_dir == common_dir {
        true => git_dir.to_owned(),
        false => match read(op, git_dir, "gitdir") {
            Some(text) => git_dir.join(OsString::from_vec(text.trim_ascii_end().to_vec())),
            None => return git_dir.to_owned(),
        },
    };
    match (link.file_name(), link.parent()) {
        (Some(name), Some(tree)) if name == ".git" => tree.to_owned(),
        _ => link,
    }
}

/// What a file below a git directory has.
fn read(op: &Operation, git_dir: &Path, name: &str) -> Option<Vec<u8>> {
    let opened = open_directory(git_dir).ok()?;
    let (above, leaf) = split(name);
    let opened = open_below(op, opened.as_fd(), above, Create::No).ok()??;
    let read = read_file(opened.as_fd(), leaf.as_bytes(), MAX_BYTES, git_dir);
    read.ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::git::test_repository::TestRepository;

    #[test]
    fn each_work_tree_but_ones_own_has_its_branch_checked_out() {
        let git = TestRepository::with_commit();
        let (common, tree) = (git.path.join(".git"), git.beside("linked"));
        assert_eq!(
            taken_elsewhere(&Operation::unbounded(), &common, &common),
            BTreeMap::new()
        );
        let path = tree.to_str().unwrap();
        git.git(&["worktree", "add", "-q", "-b", "side", path]);
        git.git(&[
            "worktree",
            "add",
            "-q",
            "--detach",
            git.beside("detached").to_str().unwrap(),
        ]);
        let side = BTreeMap::from([("refs/heads/side".to_owned(), tree)]);
        assert_eq!(
            taken_elsewhere(&Operation::unbounded(), &common, &common),
            side
        );
        let main = BTreeMap::from([("refs/heads/main".to_owned(), git.path.clone())]);
        let own = common.join("worktrees/linked");
        assert_eq!(
            taken_elsewhere(&Operation::unbounded(), &common, &own),
            main
        );
    }

    // git refuses to remove them, and a command that moves the ref does not
    #[test]
    fn branches_that_are_rebased_or_bisected_elsewhere_are_taken() {
        let along = ["rebase", "-q", "--update-refs", "--exec", "false", "HEAD~2"];
        for (began, file, others) in [
            (
                &["rebase", "-q", "--exec", "false", "HEAD~1"][..],
                "rebase-merge",
                &[][..],
            ),
            (&along, "rebase-merge/update-refs", &["refs/heads/mid"]),
            (
                &["rebase", "-q", "--apply", "--onto", "other", "HEAD~1"],
                "rebase-apply",
                &[],
            ),
            (&["bisect", "start", "HEAD", "HEAD~1"], "BISECT_START", &[]),
        ] {
            let git = TestRepository::with_commit();
            let (common, tree) = (git.path.join(".git"), git.beside("linked"));
            git.git(&["branch", "other"]);
            let path = tree.to_str().unwrap();
            git.git(&["worktree", "add", "-q", "-b", "side", path]);
            for (text, branch) in [("one", "side"), ("two", "side"), ("three", "other")] {
                git.run(&tree, &["checkout", "-q", branch]);
                std::fs::write(tree.join("file"), text).unwrap();
                git.git_in(&tree, &["add", "file"]);
                git.git_in(&tree, &["commit", "-q", "-m", text]);
            }
            git.git_in(&tree, &["branch", "mid", "side~1"]);
            git.git_in(&tree, &["checkout", "-q", "side"]);
            git.run(&tree, began);
            git.run(&tree, &["checkout", "-q", "--detach"]);
            let noted = common.join("worktrees/linked").join(file);
            assert!(noted.exists(), "{file}");
            let mut taken = BTreeMap::new();
            for branch in ["refs/heads/side"].iter().chain(others) {
                let short = branch.trim_start_matches("refs/heads/");
                let refused = git.run(&git.path, &["branch", "-D", short]);
                assert!(!refused.status.success(), "{file}: {branch}");
                taken.insert((*branch).to_owned(), tree.clone());
            }
            assert_eq!(
                taken_elsewhere(&Operation::unbounded(), &common, &common),
                taken,
                "{file}"
            );
        }
    }

    // It has its branch checked out nowhere
    #[test]
    fn a_bare_repository_is_no_work_tree() {
        let git = TestRepository::with_commit();
        let bare = git.beside("bare");
        let path = bare.to_str().unwrap();
        git.git(&["clone", "-q", "--bare", ".", path]);
        let tree = git.beside("linked");
        let add = [
            "worktree",
            "add",
            "-q",
            "-b",
            "side",
            tree.to_str().unwrap(),
        ];
        git.git_in(&bare, &add);
        let own = bare.join("worktrees/linked");
        assert_eq!(
            taken_elsewhere(&Operation::unbounded(), &bare, &own),
            BTreeMap::new()
        );
        git.git_in(&tree, &["branch", "-D", "main"]);
    }
}
