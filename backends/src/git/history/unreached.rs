//! Which commits only some refs reach.

use std::collections::{BinaryHeap, HashMap, HashSet};

use crate::git::repository::{RepositoryError, Shallow, UserRepository};
use crate::git::{ObjectId, ObjectKind};
use crate::interrupted::Interrupted;
use crate::operation::Operation;

/// A message of this length is no message.
const MAX_COMMIT_BYTES: u64 = 16 << 20;

/// Clocks go wrong: so many that seem to be older than all that were found are looked at all the
/// same. git does so too (`SLOP` in its revision.c).
const MAX_OLDER: usize = 16;

/// So many other refs are followed, in the order of their names: branches come first, then those of
/// remotes. Beyond them one counts where it names a commit of the branch itself. A tag that is an
/// object of its own is not followed.
const MAX_FOLLOWED: usize = 200;

/// A commit, as far as history is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Commit {
    pub(in crate::git) id: ObjectId,
    pub(in crate::git) tree: ObjectId,
    /// None where a shallow clone ends.
    pub(in crate::git) parents: Vec<ObjectId>,
    /// Whether a shallow clone ends here.
    pub(super) is_end: bool,
    /// When it was made, in seconds since the Unix epoch.
    pub(in crate::git) time: i64,
}

impl Commit {
    /// One that is nowhere, of the beginning of time.
    pub(in crate::git) fn new(id: ObjectId, tree: ObjectId, parents: Vec<ObjectId>) -> Self {
        Self {
            id,
            tree,
            parents,
            is_end: false,
            time: 0,
        }
    }

    pub(in crate::git) fn parse(id: ObjectId, bytes: &[u8]) -> Option<Self> {
        let (mut tree, mut parents, mut time) = (None, Vec::new(), 0);
        let id_of = |text: &[u8]| std::str::from_utf8(text).ok()?.parse().ok();
        // The message begins after an empty line. A name may be in any encoding.
        let header = bytes.split(|byte| *byte == b'\n');
        for line in header.take_while(|line| !line.is_empty()) {
            if let Some(id) = line.strip_prefix(b"tree ") {
                tree = Some(id_of(id)?);
            } else if let Some(id) = line.strip_prefix(b"parent ") {
                parents.push(id_of(id)?);
            } else if line.starts_with(b"committer ") {
                let stamp = line.rsplit(|byte| *byte == b' ').nth(1);
                let stamp = stamp.and_then(|stamp| std::str::from_utf8(stamp).ok());
                time = stamp.and_then(|stamp| stamp.parse().ok()).unwrap_or(0);
                break;
            }
        }
        Some(Self {
            id,
            tree: tree?,
            parents,
            is_end: false,
            time,
        })
    }
}

/// The commits of a repository, as git goes through them: where a shallow clone ends they have no
/// parents.
pub(super) struct Past<'a> {
    pub(super) op: &'a Operation,
    pub(super) repository: &'a UserRepository,
    pub(super) shallow: Shallow,
}

impl<'a> Past<'a> {
    pub(super) fn of(
        op: &'a Operation,
        repository: &'a UserRepository,
    ) -> Result<Self, RepositoryError> {
        Ok(Self {
            op,
            repository,
            shallow: repository.shallow()?,
        })
    }

    /// Reads a commit; `None` if it is not here, or something else.
    pub(super) fn commit(&self, id: ObjectId) -> Result<Option<Commit>, RepositoryError> {
        let bytes = self.bytes(id)?;
        let mut commit = bytes.and_then(|bytes| Commit::parse(id, &bytes));
        if let Some(commit) = commit.as_mut().filter(|_| self.shallow.has(&id)) {
            commit.is_end = true;
            commit.parents.clear();
        }
        Ok(commit)
    }

    /// The bytes of a commit.
    pub(super) fn bytes(&self, id: ObjectId) -> Result<Option<Vec<u8>>, RepositoryError> {
        let read = self.repository.read_object(self.op, id, MAX_COMMIT_BYTES)?;
        Ok(match read {
            Some((ObjectKind::Commit, bytes)) => Some(bytes),
            _ => None,
        })
    }
}

/// How far is looked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reach {
    /// The most commits that only the one ref reaches.
    pub(super) own: usize,
    /// So many commits are looked at to find what other refs reach. Beyond them one counts as not
    /// reached.
    pub(super) looked_at: usize,
}

/// The commits that only some refs reach.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unreached {
    /// Newest first.
    pub(super) commits: Vec<Commit>,
    /// The first commit beyond the limit, or that cannot be read; `None`: all are listed.
    pub(super) rest: Option<ObjectId>,
    /// All commits beyond the limit, or that cannot be read, as far as the search reached them.
    pub(super) unseen: HashSet<ObjectId>,
    /// Whether one of them cannot be read, so that another look may find more.
    pub(super) is_cut: bool,
}

/// The commits from `tips` on that none of `others` reaches, as far as it was looked.
pub(super) fn unreached(
    past: &Past<'_>,
    tips: &[ObjectId],
    others: &[ObjectId],
    reach: Reach,
) -> Result<Unreached, Interrupted> {
    let op = past.op;
    let limit = reach.own;
    let known: HashSet<ObjectId> = others.iter().copied().collect();
    let mut walk = Walk {
        past,
        known,
        queue: BinaryHeap::new(),
        commits: HashMap::new(),
        reached: HashSet::new(),
        mine: 0,
        lost: Vec::new(),
    };
    for tip in tips {
        walk.push(*tip, false);
    }
    for id in others.iter().take(MAX_FOLLOWED) {
        walk.push(*id, true);
    }
    let (mut own, mut oldest) = (Vec::new(), i64::MAX);
    let (mut looked_at, mut older) = (0, 0);
    while let Some(&(time, id)) = walk.queue.peek() {
        op.check()?;
        // What another ref reaches from a commit as old as those that were found may be one of
        // them.
        let is_found = walk.mine == 0 || own.len() > limit;
        older = if is_found && time < oldest {
            older + 1
        } else {
            0
        };
        if is_found && (older > MAX_OLDER || looked_at > reach.looked_at) {
            break;
        }
        walk.pop();
        looked_at += 1;
        let is_reached = walk.reached.contains(&id);
        let parents = walk.commits[&id].parents.clone();
        if !is_reached {
            own.push(id);
            oldest = oldest.min(time);
        }
        // If a commit is reached, so are its ancestors.
        for parent in parents {
            if !is_reached || looked_at <= reach.looked_at {
                walk.push(parent, is_reached);
            }
        }
    }
    // A cancellation made reading fail, and no commit is lost by that.
    op.check()?;
    // One may be seen to be reached after its turn.
    own.retain(|id| !walk.reached.contains(id));
    let unread = tips.iter().filter(|tip| !walk.commits.contains_key(*tip));
    walk.lost.splice(..0, unread.copied());
    let rest = match own.get(limit) {
        Some(id) => Some(*id),
        None => walk.newest_own().or(walk.lost.first().copied()),
    };
    let beyond = own.iter().skip(limit).copied();
    let unseen = beyond
        .chain(walk.queued_own())
        .chain(walk.lost.iter().copied());
    let unseen = unseen.collect();
    own.truncate(limit);
    let commits = own.iter().filter_map(|id| walk.commits.remove(id));
    Ok(Unreached {
        commits: commits.collect(),
        rest,
        unseen,
        is_cut: !walk.lost.is_empty(),
    })
}

struct Walk<'a> {
    past: &'a Past<'a>,
    /// What other refs name.
    known: HashSet<ObjectId>,
    /// Those still to be looked at, the newest first.
    queue: BinaryHeap<(i64, ObjectId)>,
    commits: HashMap<ObjectId, Commit>,
    reached: HashSet<ObjectId>,
    /// How many of the queue no other ref is known to reach.
    mine: usize,
    /// Those that cannot be read of those that no other ref was known to reach.
    lost: Vec<ObjectId>,
}

impl Walk<'_> {
    fn push(&mut self, id: ObjectId, is_reached: bool) {
        let is_reached = is_reached || self.known.contains(&id);
        if self.commits.contains_key(&id) {
            self.spread(id, is_reached);
            return;
        }
        let Ok(Some(commit)) = self.past.commit(id) else {
            // It ends its line of history.
            if !is_reached {
                self.lost.push(id);
            }
            return;
        };
        self.queue.push((commit.time, id));
        self.commits.insert(id, commit);
        match is_reached {
            true => _ = self.reached.insert(id),
            false => self.mine += 1,
        }
    }

    /// Notes that a known commit is reached, and with it what was found before it.
    fn spread(&mut self, id: ObjectId, is_reached: bool) {
        let mut found = Vec::from_iter(is_reached.then_some(id));
        while let Some(id) = found.pop() {
            let Some(commit) = self.commits.get(&id) else {
                continue;
            };
            if self.reached.insert(id) {
                if self.queue.iter().any(|(_, queued)| *queued == id) {
                    self.mine -= 1;
                }
                found.extend(&commit.parents);
            }
        }
    }

    /// The newest of the queue that no other ref is known to reach.
    fn newest_own(&self) -> Option<ObjectId> {
        let own = self.queue.iter();
        let own = own.filter(|(_, id)| !self.reached.contains(id));
        own.max().map(|(_, id)| *id)
    }

    /// Those of the queue that no other ref is known to reach.
    fn queued_own(&self) -> impl Iterator<Item = ObjectId> {
        let queued = self.queue.iter().map(|(_, id)| *id);
        queued.filter(|id| !self.reached.contains(id))
    }

    fn pop(&mut self) {
        let popped = self.queue.pop();
        if popped.is_some_and(|(_, id)| !self.reached.contains(&id)) {
            self.mine -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::git::repository::{Probe, probe};
    use crate::git::test_repository::TestRepository;
    use crate::interrupt::Interrupt;

    fn up_to(own: usize) -> Reach {
        Reach {
            own,
            looked_at: 2000,
        }
    }

    /// The commits of `main` that no other ref reaches, by us and by git.
    fn both(git: &TestRepository) -> (BTreeSet<String>, BTreeSet<String>) {
        let Probe::Found(repository) = probe(&git.path).unwrap() else {
            panic!("it is a repository");
        };
        let mut refs = repository.refs_below("refs").unwrap();
        let tip = refs.remove("refs/heads/main").unwrap();
        let others: Vec<ObjectId> = refs.into_values().collect();
        let op = Operation::unbounded();
        let past = Past::of(&op, &repository).unwrap();
        let found = unreached(&past, &[tip], &others, up_to(1000)).unwrap();
        assert_eq!((found.rest, found.is_cut), (None, false));
        let ours = found
            .commits
            .iter()
            .map(|commit| commit.id.to_string())
            .collect();
        let list = [
            "rev-list",
            "main",
            "--not",
            "--exclude=main",
            "--branches",
            "--remotes",
            "--tags",
        ];
        let theirs = git.git(&list).lines().map(str::to_owned).collect();
        (ours, theirs)
    }

    // With one time for all commits, and with times that run backwards
    #[test]
    fn they_are_those_that_git_lists() {
        for times in ["same", "forwards", "backwards"] {
            let git = TestRepository::new();
            let mut seconds = 1_700_000_000;
            let mut commit = |message: &str| {
                seconds += match times {
                    "same" => 0,
                    "forwards" => 60,
                    _ => -60,
                };
                let date = format!("{seconds} +0000");
                git.git(&["-c", "alias.at=!f() { GIT_COMMITTER_DATE=\"$1\" git commit -q --allow-empty -m \"$2\"; }; f", "at", &date, message]);
            };
            let same = |story: &str| {
                let (ours, theirs) = both(&git);
                assert_eq!(ours, theirs, "{story}, times {times}");
            };
            for n in 0..5 {
                commit(&format!("commit {n}"));
            }
            same("nothing else reaches any");
            git.git(&["update-ref", "refs/remotes/origin/main", "HEAD~2"]);
            same("some were pushed");
            git.git(&["checkout", "-q", "-b", "side", "HEAD~3"]);
            for n in 0..4 {
                commit(&format!("side {n}"));
            }
            git.git(&["checkout", "-q", "main"]);
            same("another branch left before the push");
            git.git(&["update-ref", "refs/remotes/origin/main", "side"]);
            same("and the remote's is there too");
            git.git(&["merge", "-q", "--no-ff", "-m", "merged", "side~2"]);
            commit("after the merge");
            same("after a merge of a part");
            git.git(&["tag", "v1", "HEAD~1"]);
            same("all but the tip");
        }
    }

    #[test]
    fn of_too_many_the_first_that_is_left_out_is_named() {
        let git = TestRepository::new();
        for n in 0..5 {
            git.commit(&format!("commit {n}"));
        }
        let Probe::Found(repository) = probe(&git.path).unwrap() else {
            panic!("it is a repository");
        };
        let tip = git.git(&["rev-parse", "HEAD"]).parse().unwrap();
        let op = Operation::unbounded();
        let past = Past::of(&op, &repository).unwrap();
        let Unreached { commits, rest, .. } = unreached(&past, &[tip], &[], up_to(3)).unwrap();
        let newest = git.git(&["rev-list", "-3", "HEAD"]);
        let ours: Vec<String> = commits.iter().map(|commit| commit.id.to_string()).collect();
        assert_eq!(ours, newest.lines().collect::<Vec<_>>());
        assert_eq!(rest.unwrap().to_string(), git.git(&["rev-parse", "HEAD~3"]));
        let nobody = ObjectId([7; 20]);
        let none = unreached(&past, &[nobody], &[nobody], up_to(3)).unwrap();
        assert_eq!((none.commits, none.rest), (vec![], Some(nobody)));
        assert!(none.is_cut);
        let cancelled = Interrupt::never();
        cancelled.cancel();
        let op = Operation::unbounded().cancelled_by(&cancelled);
        let past = Past::of(&op, &repository).unwrap();
        let stopped = unreached(&past, &[tip], &[], up_to(3));
        assert_eq!(stopped, Err(Interrupted::Cancelled));
    }
}
