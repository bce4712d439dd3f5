//! Histories that lie partly in the user's repository and partly in the store.

use std::cell::RefCell;
use std::collections::{BTreeSet, BinaryHeap, HashMap, HashSet};
use std::rc::Rc;

use crate::checkpoint::CheckpointError;
use crate::error::ErrorKind;
use crate::git::history::Commit;
use crate::git::repository::{RepositoryError, Shallow, UserRepository};
use crate::git::store::Store;
use crate::git::{ObjectId, ObjectKind};
use crate::operation::Operation;

/// A message of this length is no message.
const MAX_COMMIT_BYTES: u64 = 16 << 20;

/// Commits, wherever they are.
pub(in crate::git) struct Past<'a> {
    pub(in crate::git) op: &'a Operation,
    repository: Option<&'a UserRepository>,
    store: &'a Store,
    /// Where the user's own history ends.
    shallow: Shallow,
    known: RefCell<HashMap<ObjectId, Option<Rc<Commit>>>>,
}

/// How two histories lie to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::git) enum Relation {
    /// The first contains the second, or is it.
    Contains,
    /// The second contains the first.
    Contained,
    /// Neither contains the other.
    Apart,
    /// The parents of this commit are not here, and one may contain the other beyond it.
    CutAt(ObjectId),
}

/// What some commits reach, and others do not.
#[derive(Debug, Default)]
pub(in crate::git) struct Unreached {
    /// The newest first.
    pub(in crate::git) commits: Vec<Rc<Commit>>,
    /// Those of the others that are parents of one of them.
    pub(in crate::git) edge: BTreeSet<ObjectId>,
    /// Those of them whose parents a shallow clone does not have.
    pub(in crate::git) ends: BTreeSet<ObjectId>,
}

const ONE: u8 = 1;
const OTHER: u8 = 2;
const BOTH: u8 = ONE | OTHER;
/// Another that both reach reaches it.
const BEFORE: u8 = 4;

impl<'a> Past<'a> {
    pub(in crate::git) fn new(
        op: &'a Operation,
        repository: Option<&'a UserRepository>,
        store: &'a Store,
    ) -> Result<Self, CheckpointError> {
        Ok(Self {
            op,
            repository,
            store,
            shallow: match repository {
                Some(repository) => repository.shallow()?,
                None => Shallow::default(),
            },
            known: RefCell::default(),
        })
    }

    /// The commit `id`; `None` if it is nowhere.
    pub(in crate::git) fn commit(
        &self,
        id: ObjectId,
    ) -> Result<Option<Rc<Commit>>, CheckpointError> {
        if let Some(known) = self.known.borrow().get(&id) {
            return Ok(known.clone());
        }
        let found = match self.store.commit_of(self.op, id)? {
            Some((commit, _)) => Some(commit),
            None => self.of_user(id)?,
        };
        let found = found.map(Rc::new);
        self.known.borrow_mut().insert(id, found.clone());
        Ok(found)
    }

    /// Takes a commit that is nowhere for one of the history.
    pub(in crate::git) fn suppose(&self, commit: Commit) {
        let id = commit.id;
        self.known.borrow_mut().insert(id, Some(Rc::new(commit)));
    }

    fn of_user(&self, id: ObjectId) -> Result<Option<Commit>, CheckpointError> {
        let Some(repository) = self.repository else {
            return Ok(None);
        };
        match repository.read_object(self.op, id, MAX_COMMIT_BYTES)? {
            Some((ObjectKind::Commit, bytes)) => match Commit::parse(id, &bytes) {
                Some(commit) => Ok(Some(commit)),
                None => Err(RepositoryError::MissingObject { id }.into()),
            },
            _ => Ok(None),
        }
    }

    /// How `one` and `other` lie to each other. It is looked at until that is known, and not
    /// longer: one that goes on from the other costs what it has more.
    pub(in crate::git) fn relation(
        &self,
        one: ObjectId,
        other: ObjectId,
    ) -> Result<Relation, CheckpointError> {
        if one == other {
            return Ok(Relation::Contains);
        }
        // What both reach leads to nothing that only one of them reaches.
        let mut walk = Walk::new(self, |marks| marks != BOTH);
        for (id, mark) in [(one, ONE), (other, OTHER)] {
            if !walk.push(id, mark)? {
                let commit = id.to_string();
                return Err(CheckpointError::CommitMissing { commit });
            }
        }
        let mut cut = Vec::new();
        while let Some((commit, marks)) = walk.next()? {
            for parent in &commit.parents {
                if !walk.push(*parent, marks)? {
                    cut.push(commit.id);
                }
            }
            if walk.marks[&other] == BOTH {
                return Ok(Relation::Contains);
            }
            if walk.marks[&one] == BOTH {
                return Ok(Relation::Contained);
            }
        }
        let is_of_one = |id: &&ObjectId| walk.marks[*id] != BOTH;
        Ok(match cut.iter().find(is_of_one) {
            Some(id) => Relation::CutAt(*id),
            None => Relation::Apart,
        })
    }

    /// The newest commits that both reach, none of which another of them reaches. Neither of the
    /// two contains the other.
    pub(in crate::git) fn bases(
        &self,
        one: ObjectId,
        other: ObjectId,
    ) -> Result<Vec<ObjectId>, CheckpointError> {
        let mut walk = Walk::new(self, |marks| marks & BEFORE == 0);
        for (id, mark) in [(one, ONE), (other, OTHER)] {
            if !walk.push(id, mark)? {
                let commit = id.to_string();
                return Err(CheckpointError::CommitMissing { commit });
            }
        }
        let mut found = Vec::new();
        while let Some((commit, marks)) = walk.next()? {
            let marks = match marks {
                BOTH => {
                    found.push(commit.id);
                    BOTH | BEFORE
                }
                marks => marks,
            };
            for parent in &commit.parents {
                walk.push(*parent, marks)?;
            }
        }
        found.retain(|id| walk.marks[id] == BOTH);
        // Clocks that differ may have had one looked at before what reaches it.
        let mut bases = Vec::new();
        for id in &found {
            let mut is_last = true;
            for later in found.iter().filter(|later| *later != id) {
                is_last &= self.relation(*later, *id)? != Relation::Contains;
            }
            if is_last {
                bases.push(*id);
            }
        }
        Ok(bases)
    }

    /// The commits that `tips` reach and `others` do not. Of the latter, one that is nowhere
    /// reaches nothing. Commits that are `held` are left out, with all that they reach.
    pub(in crate::git) fn unreached(
        &self,
        tips: &[ObjectId],
        others: &[ObjectId],
        held: &HashSet<ObjectId>,
        ends: &Shallow,
    ) -> Result<Unreached, CheckpointError> {
        let mut walk = Walk::new(self, |marks| marks == ONE);
        for tip in tips {
            if !walk.push(*tip, ONE)? {
                let commit = tip.to_string();
                return Err(CheckpointError::CommitMissing { commit });
            }
        }
        for id in others {
            if_readable(walk.push(*id, OTHER))?;
        }
        let mut found = Vec::new();
        let mut cut = BTreeSet::new();
        while let Some((commit, marks)) = walk.next()? {
            if marks == ONE {
                if held.contains(&commit.id) {
                    continue;
                }
                found.push(Rc::clone(&commit));
            }
            let is_end = self.shallow.has(&commit.id) || ends.has(&commit.id);
            if is_end && marks == ONE {
                cut.insert(commit.id);
                continue;
            }
            for parent in &commit.parents {
                let is_there = walk.push(*parent, marks);
                if marks != ONE {
                    if_readable(is_there)?;
                } else if !is_there? {
                    let commit = parent.to_string();
                    return Err(CheckpointError::CommitMissing { commit });
                }
            }
        }
        // One may be seen to be reached after its turn.
        found.retain(|commit| walk.marks[&commit.id] == ONE);
        cut.retain(|id| walk.marks[id] == ONE);
        let parents = found.iter().filter(|commit| !cut.contains(&commit.id));
        let parents = parents.flat_map(|commit| &commit.parents);
        let edge = parents
            .filter(|id| walk.marks[*id] != ONE)
            .copied()
            .collect();
        Ok(Unreached {
            edge,
            ends: cut,
            commits: found,
        })
    }
}

/// Of what others reach: what cannot be read reaches nothing, and more is taken to be unreached.
fn if_readable(pushed: Result<bool, CheckpointError>) -> Result<(), CheckpointError> {
    match pushed {
        Err(error) if matches!(error.kind(), ErrorKind::Cancelled | ErrorKind::Timeout) => {
            Err(error)
        }
        _ => Ok(()),
    }
}

/// A walk from the newest commit to the oldest, in which each has the marks of all that reach it.
/// It goes on while a commit waits whose marks are of interest.
struct Walk<'p, 'a> {
    past: &'p Past<'a>,
    is_of_interest: fn(u8) -> bool,
    queue: BinaryHeap<(i64, ObjectId)>,
    queued: HashSet<ObjectId>,
    /// How many of the queue are of interest.
    waiting: usize,
    marks: HashMap<ObjectId, u8>,
}

impl<'p, 'a> Walk<'p, 'a> {
    fn new(past: &'p Past<'a>, is_of_interest: fn(u8) -> bool) -> Self {
        Self {
            past,
            is_of_interest,
            queue: BinaryHeap::new(),
            queued: HashSet::new(),
            waiting: 0,
            marks: HashMap::new(),
        }
    }

    /// Adds marks to a commit, which is looked at again if it had not all of them; `false` if it is
    /// nowhere.
    fn push(&mut self, id: ObjectId, marks: u8) -> Result<bool, CheckpointError> {
        let Some(commit) = self.past.commit(id)? else {
            return Ok(false);
        };
        let had = self.marks.get(&id).copied().unwrap_or(0);
        let has = had | marks;
        if has == had {
            return Ok(true);
        }
        self.marks.insert(id, has);
        if self.queued.insert(id) {
            self.queue.push((commit.time, id));
        } else {
            self.waiting -= usize::from((self.is_of_interest)(had));
        }
        self.waiting += usize::from((self.is_of_interest)(has));
        Ok(true)
    }

    /// The newest commit that waits, with its marks; `None`: none of interest does.
    fn next(&mut self) -> Result<Option<(Rc<Commit>, u8)>, CheckpointError> {
        self.past.op.check()?;
        if self.waiting == 0 {
            return Ok(None);
        }
        let Some((_, id)) = self.queue.pop() else {
            return Ok(None);
        };
        self.queued.remove(&id);
        let marks = self.marks[&id];
        self.waiting -= usize::from((self.is_of_interest)(marks));
        Ok(self.past.commit(id)?.map(|commit| (commit, marks)))
    }
}
