//! Sending a commit to a branch of a remote, never over anything.

use std::time::Duration;

use stillframe_disk::deadline::Deadline;
use stillframe_disk::operation::Operation;
use stillframe_git::ObjectId;

use crate::branch_name::BranchName;
use crate::failure_kind::FailureKind;
use crate::git_process::{Answer, GitError};
use crate::push_outcome::{Open, Pushed, Refusal, Verdict, settled, verdict};
use crate::remote::Remote;

/// What is read of git's answer.
const MAX_ANSWER_BYTES: usize = 1024 * 1024;

/// How long before a branch is tried again that the remote could not lock: who has a lock moves one
/// branch, which takes moments.
const LOCK_PAUSES: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(1)];

/// That one commit is an ancestor of another, which somebody has found by reading both.
///
/// git does not look again: a push whose expectation holds replaces whatever is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ancestry {
    ancestor: ObjectId,
    descendant: ObjectId,
}

/// A commit on its way to a branch, with what the branch is expected to be at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Push {
    branch: BranchName,
    commit: ObjectId,
    expected: Option<ObjectId>,
}

/// Why a commit was not pushed, or may not have been. Nothing was overwritten.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PushError {
    /// It is not there: the branch is where it was, or where somebody else has moved it.
    #[error("{commit} was not pushed to {branch} of {address}: {said}")]
    Refused {
        /// Why.
        kind: FailureKind,
        /// The remote.
        address: String,
        /// The branch.
        branch: BranchName,
        /// What was to be pushed.
        commit: ObjectId,
        /// One line: git's, and then a few of the remote's.
        said: String,
    },
    /// The line was lost, and the remote could not be asked where the branch is. The commit may be
    /// there.
    #[error("whether {commit} got to {branch} of {address} is not known: {said}")]
    Unclear {
        /// Why.
        kind: FailureKind,
        /// The remote.
        address: String,
        /// The branch.
        branch: BranchName,
        /// What was to be pushed.
        commit: ObjectId,
        /// One line: git's, and then a few of the remote's.
        said: String,
    },
    /// git did not come to an end. Whether the commit got there is not known.
    #[error("whether {commit} got to {branch} of {address} is not known")]
    Git {
        /// The remote.
        address: String,
        /// The branch.
        branch: BranchName,
        /// What was to be pushed.
        commit: ObjectId,
        /// Why.
        source: GitError,
    },
}

impl Ancestry {
    /// Says that `ancestor` is `descendant`, or that it is reached from it by parents. Only for who
    /// has found so: that it could not be read is no proof.
    pub fn proven(ancestor: ObjectId, descendant: ObjectId) -> Self {
        Self {
            ancestor,
            descendant,
        }
    }
}

impl Push {
    /// To a branch that the remote does not have. If there is one when it arrives, nothing happens.
    pub fn create(branch: BranchName, commit: ObjectId) -> Self {
        Self {
            branch,
            commit,
            expected: None,
        }
    }

    /// To a branch that is at an ancestor. If it is somewhere else when it arrives, nothing
    /// happens.
    pub fn advance(branch: BranchName, ancestry: Ancestry) -> Self {
        Self {
            branch,
            commit: ancestry.descendant,
            expected: Some(ancestry.ancestor),
        }
    }
}

impl PushError {
    /// The kind of failure.
    pub fn failure(&self) -> FailureKind {
        match self {
            Self::Refused { kind, .. } | Self::Unclear { kind, .. } => *kind,
            Self::Git { source, .. } => source.failure(),
        }
    }
}

impl Remote<'_> {
    /// Sends a commit and all that the remote lacks of what it reaches.
    ///
    /// On `Ok` the remote has said that the branch is at the commit. Some say so and are mistaken:
    /// [`Remote::prove`] asks. Where the answer leaves it open what became of the push, the remote
    /// is asked here where the branch is. A branch that is locked there is tried again for a
    /// moment.
    pub fn push(&self, push: &Push, op: &Operation) -> Result<Pushed, PushError> {
        let failed = |source| PushError::Git {
            address: self.address.to_string(),
            branch: push.branch.clone(),
            commit: push.commit,
            source,
        };
        let full = push.branch.full();
        // An empty expectation: that there is none.
        let expected = push.expected.map_or(String::new(), |id| id.to_string());
        let args = [
            "push",
            "--porcelain",
            "--no-verify",
            "--no-signed",
            "--no-follow-tags",
            "--recurse-submodules=no",
            &format!("--force-with-lease={full}:{expected}"),
        ];
        // By the id: a name could be moved between what was looked at and what is sent.
        let refspec = format!("{}:{full}", push.commit);
        let mut pauses = LOCK_PAUSES.iter();
        loop {
            let answer = self.call(&args, &[refspec.as_ref()], MAX_ANSWER_BYTES, op);
            let answer = answer.map_err(failed)?;
            let refused = |refusal| self.refused(push, refusal, &answer);
            let (refusal, open) = match verdict(&answer, self.address, &push.branch) {
                Verdict::Pushed(pushed) => return Ok(pushed),
                Verdict::Refused(refusal) => return Err(refused(refusal)),
                Verdict::Ask { refusal, open } => (refusal, open),
            };
            let remote = match self.branches(op) {
                Ok(remote) => remote,
                Err(_) if open == Open::Whether => {
                    return Err(PushError::Unclear {
                        kind: refusal.kind,
                        address: self.address.to_string(),
                        branch: push.branch.clone(),
                        commit: push.commit,
                        said: self.said_with(&refusal.said, &answer),
                    });
                }
                // What git said first is all that there is.
                Err(_) => return Err(refused(refusal)),
            };
            let settled = settled(refusal, &remote, &push.branch, push.expected, push.commit);
            match (settled, pauses.next()) {
                (Err(Refusal { kind, .. }), Some(pause))
                    if open == Open::Locked && kind == FailureKind::Unknown =>
                {
                    let pause = Deadline::after(*pause);
                    while pause.pause(op) {}
                    op.check().map_err(|e| failed(GitError::Stopped(e)))?;
                }
                (settled, _) => return settled.map_err(refused),
            }
        }
    }

    fn refused(&self, push: &Push, refusal: Refusal, answer: &Answer) -> PushError {
        let Refusal { kind, said } = refusal;
        let said = match kind {
            // What lies in the way is said.
            FailureKind::RefConflict => self.said(&said),
            _ => self.said_with(&said, answer),
        };
        PushError::Refused {
            kind,
            address: self.address.to_string(),
            branch: push.branch.clone(),
            commit: push.commit,
            said,
        }
    }
}
