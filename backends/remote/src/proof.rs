//! That a remote has what was sent to it.

use std::time::{Duration, Instant};

use stillframe_disk::deadline::Deadline;
use stillframe_disk::operation::Operation;
use stillframe_git::ObjectId;
use stillframe_model::interrupted::Interrupted;

use crate::branch_name::BranchName;
use crate::failure_kind::FailureKind;
use crate::remote::{ListError, Remote};

/// How long before it is asked again, when a branch is where it was: the answers of replicas lag
/// behind what their primary has taken.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(4)];

/// After that long it is not asked again.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a remote says of a branch after a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// The branch is at exactly this commit.
    Exact,
    /// Somebody has moved the branch since. It is proven all the same if that commit, once it is
    /// fetched, reaches ours; else the branch has diverged.
    MovedTo(ObjectId),
}

/// Why it is not proven that a remote has a commit. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProofError {
    /// The remote was asked up to three times, and shows the branch where it was before.
    #[error("{address} took {commit}, and does not show it at {branch}")]
    NotShown {
        /// The remote.
        address: String,
        /// The branch.
        branch: BranchName,
        /// What was pushed.
        commit: ObjectId,
    },
    /// The remote could not be asked. The source names it.
    #[error("whether {branch} is at {commit} could not be asked")]
    NotAsked {
        /// The branch.
        branch: BranchName,
        /// What was pushed.
        commit: ObjectId,
        /// Why.
        source: ListError,
    },
    /// Cancelled between two questions.
    #[error("whether {branch} of {address} is at {commit} was not asked to the end")]
    Stopped {
        /// The remote.
        address: String,
        /// The branch.
        branch: BranchName,
        /// What was pushed.
        commit: ObjectId,
        /// Why.
        source: Interrupted,
    },
}

impl ProofError {
    /// The kind of failure.
    pub fn failure(&self) -> FailureKind {
        match self {
            Self::NotShown { .. } => FailureKind::Unknown,
            Self::NotAsked { source, .. } => source.failure(),
            Self::Stopped { .. } => FailureKind::NetworkBlip,
        }
    }
}

/// What one look at the branch says.
fn seen(found: Option<ObjectId>, commit: ObjectId, before: Option<ObjectId>) -> Option<Proof> {
    match found {
        Some(id) if id == commit => Some(Proof::Exact),
        Some(id) if Some(id) != before => Some(Proof::MovedTo(id)),
        // Gone, or where it was: the answer may be an old one.
        _ => None,
    }
}

impl Remote<'_> {
    /// Asks the remote whether `branch` is at `commit`, which was pushed to it. `before`: where the
    /// branch was, `None` if there was none.
    ///
    /// One that is where it was, or is not there, is asked for again, at most three times in ten
    /// seconds. So is a remote that cannot be reached.
    pub fn prove(
        &self,
        branch: &BranchName,
        commit: ObjectId,
        before: Option<ObjectId>,
        op: &Operation,
    ) -> Result<Proof, ProofError> {
        let begin = Instant::now();
        let mut pauses = PAUSES.iter();
        loop {
            let answer = self.branches(op).map(|refs| refs.branch(branch));
            let error = match answer {
                Ok(found) => match seen(found, commit, before) {
                    Some(proof) => return Ok(proof),
                    None => None,
                },
                Err(error) => Some(error),
            };
            let may_change = |e: &ListError| e.failure() == FailureKind::NetworkBlip;
            let pause = pauses
                .next()
                .filter(|_| error.as_ref().is_none_or(may_change));
            let pause = pause.filter(|pause| begin.elapsed() + **pause < PATIENCE);
            let address = self.address.to_string();
            let branch = branch.clone();
            let Some(pause) = pause else {
                return Err(match error {
                    Some(source) => ProofError::NotAsked {
                        branch,
                        commit,
                        source,
                    },
                    None => ProofError::NotShown {
                        address,
                        branch,
                        commit,
                    },
                });
            };
            let pause = Deadline::after(*pause);
            while pause.pause(op) {}
            op.check().map_err(|source| ProofError::Stopped {
                address,
                branch,
                commit,
                source,
            })?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_another_answer_than_before_says_something() {
        let [one, two, three] = ["1", "2", "3"].map(|d| d.repeat(40).parse::<ObjectId>().unwrap());
        for (found, before, expected) in [
            (Some(three), Some(one), Some(Proof::Exact)),
            (Some(three), Some(three), Some(Proof::Exact)),
            (Some(two), Some(one), Some(Proof::MovedTo(two))),
            (Some(two), None, Some(Proof::MovedTo(two))),
            (Some(one), Some(one), None),
            (None, Some(one), None),
            (None, None, None),
        ] {
            assert_eq!(seen(found, three, before), expected, "{found:?} {before:?}");
        }
    }
}
