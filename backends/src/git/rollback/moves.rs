//! Deciding where HEAD and branches move: a pure function of the two states and the present tips.

use serde::{Deserialize, Serialize};

use crate::git::ObjectId;
use crate::git::put_error::PutError;
use crate::git::repository::Head;
use crate::record::GitState;
use crate::restore::RefChange;

/// What HEAD's file has before the name of a branch.
const TO_BRANCH: &str = "ref: ";

/// A branch whose tip goes back. `None` is a branch that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BranchMove {
    pub(super) name: String,
    pub(super) from: Option<ObjectId>,
    pub(super) to: Option<ObjectId>,
    /// HEAD names it all the while, so that HEAD's reflog tells of it, too.
    pub(super) is_heads: bool,
}

/// HEAD, as the text of the file without its line end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HeadMove {
    pub(super) from: String,
    pub(super) to: String,
    /// The commits, for the reflog.
    pub(super) commits: (Option<ObjectId>, Option<ObjectId>),
}

impl BranchMove {
    pub(super) fn change(&self) -> RefChange {
        let id = |commit: Option<ObjectId>| commit.map(|commit| commit.to_string());
        RefChange::new(&self.name, id(self.from), id(self.to))
    }
}

impl HeadMove {
    pub(super) fn change(&self) -> RefChange {
        let named = |text: &str| Some(text.strip_prefix(TO_BRANCH).unwrap_or(text).to_owned());
        RefChange::new("HEAD", named(&self.from), named(&self.to))
    }
}

/// Something that is not where the operation left it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct HeadMoved {
    /// HEAD, or the full name of a branch.
    pub(super) what: String,
    pub(super) expected: String,
    pub(super) found: String,
}

impl HeadMoved {
    pub(super) fn of_head(expected: &Head, found: &Head) -> Self {
        match (expected.branch(), found.branch()) {
            (Some(a), Some(b)) if a == b => Self::of_branch(a, expected.commit(), found.commit()),
            _ => Self {
                what: "HEAD".to_owned(),
                expected: described(expected),
                found: described(found),
            },
        }
    }

    fn of_branch(name: &str, expected: Option<ObjectId>, found: Option<ObjectId>) -> Self {
        Self {
            what: name.to_owned(),
            expected: shown(expected),
            found: shown(found),
        }
    }
}

/// Where HEAD and branches go.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Moves {
    pub(super) branches: Vec<BranchMove>,
    pub(super) head: Option<HeadMove>,
    /// The commits that no branch names afterwards, and HEAD neither: a branch's old tip first.
    pub(super) unnamed: Vec<ObjectId>,
    /// What is left where it is, in words.
    pub(super) notes: Vec<String>,
}

impl Moves {
    /// What takes HEAD, its branch and the branches that both states know from `after` to `before`,
    /// while HEAD is as `after` has it. `now` says where a branch is by now.
    ///
    /// A branch is moved only if the operation moved it, and if it is where the operation left it.
    pub(super) fn between(
        before: &GitState,
        after: &GitState,
        now: &dyn Fn(&str) -> Result<Option<ObjectId>, PutError>,
    ) -> Result<Result<Self, HeadMoved>, PutError> {
        let (from, to) = (&after.head, &before.head);
        let mut moves = Self::default();
        if head_text(from) != head_text(to) {
            moves.head = Some(HeadMove {
                from: head_text(from),
                to: head_text(to),
                commits: (from.commit(), to.commit()),
            });
        }
        let left = after.tips();
        for (name, was) in before.tips() {
            let gets_head = moves.head.is_some() && to.branch() == Some(name);
            match left.get(name) {
                Some(left) if *left != was || gets_head => {
                    let found = now(name)?;
                    if found != *left {
                        return Ok(Err(HeadMoved::of_branch(name, *left, found)));
                    }
                    if found != was {
                        let is_heads = moves.head.is_none() && to.branch() == Some(name);
                        moves.branch(name, found, was, is_heads);
                    }
                }
                Some(_) => {}
                None if gets_head => moves.unseen_branch(name, now(name)?, was),
                None => {}
            }
        }
        if let Head::Detached { commit } = from
            && to.commit() != Some(*commit)
            && !moves.unnamed.contains(commit)
        {
            moves.unnamed.push(*commit);
        }
        Ok(Ok(moves))
    }

    fn branch(&mut self, name: &str, from: Option<ObjectId>, to: Option<ObjectId>, is_heads: bool) {
        self.unnamed
            .extend(from.filter(|commit| !self.unnamed.contains(commit)));
        self.branches.push(BranchMove {
            name: name.to_owned(),
            from,
            to,
            is_heads,
        });
    }

    /// HEAD goes back to a branch that nobody looked at after the operation, so it is not known who
    /// moved it.
    fn unseen_branch(&mut self, name: &str, now: Option<ObjectId>, to: Option<ObjectId>) {
        if now.is_none() && to.is_some() {
            // It was deleted or renamed. Made anew it takes nothing from anybody, and HEAD must not
            // name a branch that is not there.
            self.branch(name, None, to, false);
        } else if now != to {
            self.notes.push(format!(
                "{name} was at {} and is at {}; it was not looked at when HEAD named another branch, \
                 so it was left there",
                shown(to),
                shown(now)
            ));
        }
    }

    /// The branches that come to be, with what they name: nothing, where HEAD names one without a
    /// commit.
    pub(super) fn made(&self) -> impl Iterator<Item = (&str, Option<ObjectId>)> {
        let made = self.branches.iter();
        let made = made.filter(|branch| branch.from.is_none() && branch.to.is_some());
        let made = made.map(|branch| (&*branch.name, branch.to));
        let unborn = self.head.as_ref().filter(|head| head.commits.1.is_none());
        made.chain(unborn.and_then(|_| Some((self.heads_branch()?, None))))
    }

    /// The branch that HEAD comes to name.
    pub(super) fn heads_branch(&self) -> Option<&str> {
        self.head.as_ref()?.to.strip_prefix(TO_BRANCH)
    }

    /// The commits that HEAD and branches go to.
    pub(super) fn destinations(&self) -> impl Iterator<Item = ObjectId> {
        let branches = self.branches.iter().filter_map(|branch| branch.to);
        branches.chain(self.head.iter().filter_map(|head| head.commits.1))
    }
}

pub(super) fn shown(commit: Option<ObjectId>) -> String {
    commit.map_or_else(|| "no commit".to_owned(), |c| c.to_string())
}

pub(in crate::git) fn described(head: &Head) -> String {
    match head {
        Head::Unborn { branch } => format!("{branch} without a commit"),
        Head::Branch { branch, commit } => format!("{branch} ({commit})"),
        Head::Detached { commit } => format!("{commit}, detached"),
    }
}

fn head_text(head: &Head) -> String {
    match head {
        Head::Unborn { branch } | Head::Branch { branch, .. } => format!("{TO_BRANCH}{branch}"),
        Head::Detached { commit } => commit.to_string(),
    }
}
