//! Refs that block another ref: git allows no `d` beside a `d/x`, as files or packed.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType};
use rustix::io::Errno;

use super::moves::Moves;
use super::refs::{Refs, packed_refs};
use super::safety::free_names;
use crate::descriptor;
use crate::error::{ErrorKind, PathError, printable};
use crate::git::ObjectId;
use crate::git::directory::{Create, open_below};
use crate::git::put_error::PutError;
use crate::git::repository::Head;
use crate::git::repository::is_ref_name;
use crate::git::repository::split;
use crate::operation::Operation;
use crate::path::printable_name;
use crate::ref_commands;
use crate::repository_changes::RepositoryProblem;
use crate::shell::shell_word;

/// No more are named one by one, or in commands.
const MAX_NAMED: usize = 10;

/// git nests refs without a limit; a name has at most 4096 bytes.
const MAX_DEPTH: usize = 256;

/// What keeps refs of other names from being made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::git) enum Obstacle {
    /// A ref that says this: an id, or the name of another.
    Ref(String),
    /// No ref that git knows, such as a lock.
    File,
}

impl Refs {
    /// What git does not keep beside a ref of this name, by the names.
    pub(in crate::git) fn in_the_way_of(
        &self,
        op: &Operation,
        name: &str,
    ) -> Result<BTreeMap<String, Obstacle>, PutError> {
        let packed = self.packed()?.unwrap_or_default();
        let below = format!("{name}/");
        let is_near = |other: &str| other.starts_with(&below) || above(name).any(|a| a == other);
        let near = packed_refs(&packed).filter(|(_, other)| is_near(other));
        let near = near.filter_map(|(id, other)| Some((id.parse::<ObjectId>().ok()?, other)));
        let mut found: BTreeMap<String, Obstacle> = near
            .map(|(id, other)| (other.to_owned(), Obstacle::Ref(id.to_string())))
            .collect();
        // A loose ref is what came after a packed one.
        let loose = self.loose_above(op, name)?.map(str::to_owned);
        for other in loose.into_iter().chain(self.files_below(op, name)?) {
            let obstacle = self.obstacle_at(op, &other);
            found.insert(other, obstacle);
        }
        Ok(found)
    }

    /// The loose ref that stands where one of this name would have a directory.
    pub(super) fn loose_above<'n>(
        &self,
        op: &Operation,
        name: &'n str,
    ) -> Result<Option<&'n str>, PutError> {
        for above in above(name) {
            let (directory, leaf) = split(above);
            let opened = open_below(op, self.common.as_fd(), directory, Create::No)
                .map_err(|errno| self.unsafe_path(above, errno))?;
            let Some(opened) = opened else {
                return Ok(None);
            };
            match descriptor::lstat_at(opened.as_fd(), leaf.as_bytes()).map(|stat| stat.file_type())
            {
                Ok(FileType::RegularFile) => return Ok(Some(above)),
                Ok(FileType::Directory) => {}
                // The operation that opens it reports what is wrong with it.
                _ => return Ok(None),
            }
        }
        Ok(None)
    }

    fn obstacle_at(&self, op: &Operation, name: &str) -> Obstacle {
        if !is_ref_name(name) {
            return Obstacle::File;
        }
        let said = match self.resolve(op, name) {
            Ok(id) => id.map(|id| id.to_string()),
            Err(_) => self.leads_to(op, name).filter(|target| is_ref_name(target)),
        };
        said.map_or(Obstacle::File, Obstacle::Ref)
    }

    /// The names of what lies below the directory of this name and is no directory.
    fn files_below(&self, op: &Operation, name: &str) -> Result<BTreeSet<String>, PutError> {
        let mut files = BTreeSet::new();
        let open = |name: &str| open_below(op, self.common.as_fd(), name, Create::No);
        let Ok(Some(_)) = open(name) else {
            // A file, a link or nothing: no directory is in the way.
            return Ok(files);
        };
        // By name, as there may be more than can be open at once.
        let mut pending = vec![(name.to_owned(), 0)];
        while let Some((name, depth)) = pending.pop() {
            let opened = open(&name).map_err(|errno| self.unsafe_path(&name, errno))?;
            let Some(directory) = opened else {
                continue;
            };
            for (leaf, is_directory) in self.list(&directory, &name)? {
                let full = format!("{name}/{leaf}");
                match is_directory && depth < MAX_DEPTH {
                    true => pending.push((full, depth + 1)),
                    false => drop(files.insert(full)),
                }
            }
        }
        Ok(files)
    }

    /// What is in a directory, and whether it is one itself. No ref that is handled has a name that
    /// is not UTF-8: what has one is as it is printed, and never gone into.
    fn list(&self, directory: &OwnedFd, name: &str) -> Result<Vec<(String, bool)>, PutError> {
        let at = |operation| PathError::at(operation, self.path.join(name));
        let mut listed = Vec::new();
        for entry in Dir::read_from(directory).map_err(at("list"))? {
            let entry = entry.map_err(at("list"))?;
            let leaf = entry.file_name().to_bytes();
            if [&b"."[..], b".."].contains(&leaf) {
                continue;
            }
            let stat = descriptor::lstat_at(directory.as_fd(), leaf).map_err(at("look at"))?;
            let is_directory = stat.file_type() == FileType::Directory;
            listed.push(match std::str::from_utf8(leaf) {
                Ok(leaf) => (leaf.to_owned(), is_directory),
                Err(_) => (printable_name(leaf), false),
            });
        }
        Ok(listed)
    }

    /// Removes a directory where a ref is to be, if there is nothing in it but directories, as git
    /// does.
    ///
    /// Whatever comes into it meanwhile stays: then it cannot be removed.
    pub(super) fn make_room(
        &self,
        op: &Operation,
        directory: BorrowedFd<'_>,
        name: &str,
    ) -> Result<(), PutError> {
        let (_, leaf) = split(name);
        let stat = descriptor::lstat_at(directory, leaf.as_bytes());
        let is_directory = stat.is_ok_and(|stat| stat.file_type() == FileType::Directory);
        if !is_directory || !name.starts_with("refs/") || !self.files_below(op, name)?.is_empty() {
            return Ok(());
        }
        self.remove_empty(op, directory, name)
    }

    fn remove_empty(
        &self,
        op: &Operation,
        directory: BorrowedFd<'_>,
        name: &str,
    ) -> Result<(), PutError> {
        let (_, leaf) = split(name);
        let opened = open_below(op, directory, leaf, Create::No);
        let Some(opened) = opened.map_err(|errno| self.unsafe_path(name, errno))? else {
            return Ok(());
        };
        for (below, is_directory) in self.list(&opened, name)? {
            if is_directory {
                self.remove_empty(op, opened.as_fd(), &format!("{name}/{below}"))?;
            }
        }
        op.before()
            .map_err(PathError::at("remove", self.path.join(name)))?;
        match rustix::fs::unlinkat(directory, leaf, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(PathError::at("remove", self.path.join(name))(errno).into()),
        }
    }
}

/// The names above this one that a ref can have, the shortest first.
fn above(name: &str) -> impl Iterator<Item = &str> {
    let names = name.match_indices('/').map(|(at, _)| &name[..at]);
    names.filter(|above| above.contains('/'))
}

/// Where HEAD and branches are to go, and what is known of the repository.
pub(super) struct Room<'a> {
    pub(super) refs: &'a Refs,
    pub(super) moves: &'a Moves,
    /// What HEAD names now.
    pub(super) head: &'a Head,
    /// The run that is taken back.
    pub(super) run_id: &'a str,
    /// Which work tree other than this one has a branch checked out.
    pub(super) taken: &'a dyn Fn(&str) -> Option<PathBuf>,
}

impl Room<'_> {
    /// Why HEAD and branches cannot go there, if a ref is in the way of one.
    pub(super) fn problem(&self, op: &Operation) -> Result<Option<RepositoryProblem>, PutError> {
        for (name, to) in self.moves.made() {
            let obstacles = self.refs.in_the_way_of(op, name)?;
            if !obstacles.is_empty() {
                let message = self.message(op, &obstacles, name, to);
                return Ok(Some(RepositoryProblem::new(ErrorKind::Conflict, message)));
            }
        }
        Ok(None)
    }

    fn message(
        &self,
        op: &Operation,
        obstacles: &BTreeMap<String, Obstacle>,
        name: &str,
        to: Option<ObjectId>,
    ) -> String {
        let named: Vec<String> = obstacles
            .iter()
            .take(MAX_NAMED)
            .map(|(other, obstacle)| told(other, obstacle, (self.taken)(other).as_deref()))
            .collect();
        let more = obstacles.len().saturating_sub(MAX_NAMED);
        let (more, verb) = match (obstacles.len(), more) {
            (1, _) => (String::new(), "is"),
            (_, 0) => (String::new(), "are"),
            (_, more) => (format!(" and {more} more"), "are"),
        };
        let mut message = format!(
            "{}{more} {verb} in the way of {name}: HEAD, branch and index were left as they are",
            named.join(", ")
        );
        let is_free = obstacles.keys().all(|other| (self.taken)(other).is_none());
        let commands = is_free.then(|| self.commands(op, obstacles, name, to));
        if let Some(commands) = commands.flatten() {
            let which = if obstacles.len() == 1 { "it" } else { "them" };
            message.push_str(&format!(
                "; in the repository, \"{commands}\" removes {which} and makes the other"
            ));
        }
        message
    }

    /// What makes room for `name`, makes it, and has HEAD name it if it is to: each if nobody has
    /// moved anything since, and if what comes before it was done. `None`: there is something that
    /// no command of git's removes, or too much.
    fn commands(
        &self,
        op: &Operation,
        obstacles: &BTreeMap<String, Obstacle>,
        name: &str,
        to: Option<ObjectId>,
    ) -> Option<String> {
        if obstacles.len() > MAX_NAMED {
            return None;
        }
        let gets_head = self.moves.heads_branch() == Some(name);
        let mut unnamed: Vec<ObjectId> = Vec::new();
        let mut removals = Vec::new();
        for (other, obstacle) in obstacles {
            let Obstacle::Ref(said) = obstacle else {
                return None;
            };
            unnamed.extend(said.parse::<ObjectId>().ok());
            removals.push(ref_commands::removal(other, said, "git"));
        }
        if let Head::Detached { commit } = self.head
            && gets_head
        {
            unnamed.push(*commit);
        }
        unnamed.sort_by_key(|commit| commit.0);
        unnamed.dedup();
        unnamed.retain(|commit| Some(*commit) != to);
        // What somebody has checked out since is not removed either.
        let mut commands = vec![self.head_is_where_it_was()];
        commands.extend(self.keeping(op, &unnamed)?);
        commands.extend(removals);
        if let Some(to) = to {
            commands.push(ref_commands::making(name, &to.to_string(), "git"));
        }
        if gets_head {
            let branch = shell_word(name.as_bytes());
            commands.push(format!("git symbolic-ref HEAD {branch}"));
        }
        Some(commands.join(" && "))
    }

    fn head_is_where_it_was(&self) -> String {
        let said = match self.head {
            Head::Detached { commit } => commit.to_string(),
            Head::Branch { branch, .. } | Head::Unborn { branch } => branch.clone(),
        };
        ref_commands::head_says(&said, "git")
    }

    /// What gives these commits names that outlast the branches; `None` where no name is free.
    fn keeping(&self, op: &Operation, commits: &[ObjectId]) -> Option<Vec<String>> {
        let named = free_names(op, self.refs, self.run_id, commits).ok()?;
        let keeping = |(name, commit): (String, ObjectId)| {
            let id = commit.to_string();
            Some(match self.refs.resolve(op, &name).ok()? {
                None => ref_commands::making(&name, &id, "git"),
                // It has it already, as long as nobody has moved it.
                Some(_) => ref_commands::moving(&name, &id, &id, "git"),
            })
        };
        named.into_iter().map(keeping).collect()
    }
}

fn told(name: &str, obstacle: &Obstacle, taken: Option<&Path>) -> String {
    match (obstacle, taken) {
        (_, Some(tree)) => {
            let tree = printable(tree);
            format!("{name}, which the work tree {tree} has checked out,")
        }
        (Obstacle::File, None) => format!("{name}, which is no ref,"),
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::git::rollback::lock::Locks;
    use crate::git::test_repository::TestRepository;

    const LOCKS: Locks<'_> = Locks {
        operation: "test",
        is_recovery: false,
        lock_timeout: Duration::ZERO,
    };

    fn names(git: &TestRepository) -> String {
        git.git(&["for-each-ref", "--format=%(refname)"])
    }

    #[test]
    fn what_came_since_there_was_room_is_seen_under_the_lock() {
        for (ours, theirs) in [("d", "d/x"), ("d/x", "d")] {
            for is_packed in [false, true] {
                let git = TestRepository::with_commit();
                let tip = git.git(&["rev-parse", "HEAD"]).parse().unwrap();
                let refs = Refs::open(&git.path.join(".git")).unwrap();
                let name = format!("refs/heads/{ours}");
                assert_eq!(
                    refs.in_the_way_of(&Operation::unbounded(), &name).unwrap(),
                    BTreeMap::new()
                );
                git.git(&["branch", theirs]);
                if is_packed {
                    git.git(&["pack-refs", "--all"]);
                }
                let left = names(&git);
                let error = refs.move_to(&Operation::unbounded(), &LOCKS, &name, None, Some(tip));
                assert!(error.is_err(), "{ours} beside {theirs}");
                assert_eq!(names(&git), left);
                assert!(!git.path.join(".git").join(&name).is_file());
                // It is made once there is room.
                git.git(&["branch", "-D", theirs]);
                refs.move_to(&Operation::unbounded(), &LOCKS, &name, None, Some(tip))
                    .unwrap();
                assert!(names(&git).contains(&name));
            }
        }
    }

    #[test]
    fn what_is_in_the_way_is_found_with_what_it_says_in_one_pass() {
        let git = TestRepository::with_commit();
        let id = git.git(&["rev-parse", "HEAD"]);
        let below = |n: usize| format!("refs/heads/d/{n:05}");
        let lines = (0..20_000).map(|n| format!("{id} {}\n", below(n)));
        let text = format!("# pack-refs with: sorted \n{}", lines.collect::<String>());
        std::fs::write(git.path.join(".git/packed-refs"), text).unwrap();
        let refs = Refs::open(&git.path.join(".git")).unwrap();
        let found = refs
            .in_the_way_of(&Operation::unbounded(), "refs/heads/d")
            .unwrap();
        let expected = (0..20_000).map(|n| (below(n), Obstacle::Ref(id.clone())));
        assert_eq!(found, expected.collect());
        let found = refs
            .in_the_way_of(&Operation::unbounded(), "refs/heads/d/00007/x")
            .unwrap();
        assert_eq!(found, BTreeMap::from([(below(7), Obstacle::Ref(id))]));
    }
}
