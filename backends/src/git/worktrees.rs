//! The work trees of a repository, and which branch each has checked out.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::Dir;

use super::rollback::PutError;
use super::rollback::directory::{Create, open_below, open_directory, read_file};

/// The most that is read of a HEAD, or of the path of a work tree.
const MAX_BYTES: u64 = 64 * 1024;

/// Where in the common directory linked work trees have their own.
const LINKED: &str = "worktrees";

/// The branches that work trees other than that of `git_dir` have checked out, with the directory of each. What cannot
/// be read of one is left out: nothing depends on it but what people are advised to do.
pub(super) fn taken_elsewhere(common_dir: &Path, git_dir: &Path) -> BTreeMap<String, PathBuf> {
    let linked = linked(common_dir).unwrap_or_default();
    let linked = linked
        .into_iter()
        .map(|name| common_dir.join(LINKED).join(name));
    let all = std::iter::once(common_dir.to_owned()).chain(linked);
    let others = all.filter(|other| other != git_dir);
    let branch = |other: PathBuf| Some((branch_of(&other)?, work_tree_of(&other, common_dir)));
    others.filter_map(branch).collect()
}

fn linked(common_dir: &Path) -> Result<Vec<OsString>, PutError> {
    let common = open_directory(common_dir)?;
    let opened = open_below(common.as_fd(), LINKED, Create::No)
        .ok()
        .flatten();
    let entries = opened.and_then(|opened| Dir::read_from(opened).ok());
    let names = entries.into_iter().flatten().flatten();
    let names = names.map(|entry| OsString::from_vec(entry.file_name().to_bytes().to_vec()));
    Ok(names.filter(|name| name != "." && name != "..").collect())
}

fn branch_of(git_dir: &Path) -> Option<String> {
    let head = String::from_utf8(read(git_dir, "HEAD")?).ok()?;
    Some(head.strip_prefix("ref:")?.trim().to_owned())
}

fn work_tree_of(git_dir: &Path, common_dir: &Path) -> PathBuf {
    let link = match git_dir == common_dir {
        true => git_dir.to_owned(),
        false => match read(git_dir, "gitdir") {
            Some(text) => git_dir.join(OsString::from_vec(text.trim_ascii_end().to_vec())),
            None => return git_dir.to_owned(),
        },
    };
    match (link.file_name(), link.parent()) {
        (Some(name), Some(tree)) if name == ".git" => tree.to_owned(),
        _ => link,
    }
}

fn read(directory: &Path, name: &str) -> Option<Vec<u8>> {
    let opened = open_directory(directory).ok()?;
    let read = read_file(opened.as_fd(), name.as_bytes(), MAX_BYTES, directory);
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
        assert_eq!(taken_elsewhere(&common, &common), BTreeMap::new());
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
        assert_eq!(taken_elsewhere(&common, &common), side);
        let main = BTreeMap::from([("refs/heads/main".to_owned(), git.path.clone())]);
        let own = common.join("worktrees/linked");
        assert_eq!(taken_elsewhere(&common, &own), main);
    }
}
