//! From a commit in the store to the branch of a remote: what is on it is looked at, the commit is
//! sent, and the branch is proven to have it. Everything blocks.

use std::collections::BTreeSet;

use stillframe_backends::{
    AllowedSecret, CheckpointError, ErrorKind, Operation, Reaches, SecretFinding, SecretSearch,
};
use stillframe_remote::ObjectId;
use stillframe_remote::advertised::Advertised;
use stillframe_remote::branch_name::BranchName;
use stillframe_remote::failure_kind::FailureKind;
use stillframe_remote::proof::Proof;
use stillframe_remote::push::{Ancestry, Push};
use stillframe_remote::remote::{FetchError, Remote};
use stillframe_secrets::SecretRules;

use crate::error::chain;
use crate::saving::target::Target;

/// How often a branch is looked at again that somebody moves meanwhile.
const LOOKS: usize = 3;

/// Sends from the store of a workspace.
pub(crate) struct Sender<'a> {
    pub(crate) target: &'a Target,
    pub(crate) remote: Remote<'a>,
    pub(crate) op: &'a Operation,
}

/// What must not leave the machine.
pub(crate) struct Gate {
    pub(crate) rules: SecretRules,
    pub(crate) allowed: BTreeSet<AllowedSecret>,
    /// So many bytes of files may be sent at once.
    pub(crate) max_bytes: Option<u64>,
}

/// Where a commit is proven to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) branch: BranchName,
    /// Where the branch is, if it has gone on from the commit.
    pub(crate) advanced_to: Option<ObjectId>,
    /// Whether it was there before anything was sent.
    pub(crate) was_there: bool,
}

/// Why a commit is not proven to be on the branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NotSent {
    pub(crate) kind: FailureKind,
    /// One line.
    pub(crate) why: String,
    /// What was found that must not leave the machine.
    pub(crate) findings: Vec<SecretFinding>,
    /// Whether the remote said that it took the commit.
    pub(crate) was_taken: bool,
    /// What the branch is at that has a history of its own, if that is here.
    pub(crate) tip: Option<ObjectId>,
}

impl NotSent {
    pub(crate) fn new(kind: FailureKind, why: impl Into<String>) -> Self {
        Self {
            kind,
            why: why.into(),
            findings: Vec::new(),
            was_taken: false,
            tip: None,
        }
    }

    /// Without the secret values that a hook may have quoted.
    pub(crate) fn redacted(mut self, rules: &SecretRules) -> Self {
        self.why = rules.redact(&self.why).into_owned();
        self
    }

    fn of(kind: FailureKind, error: &(dyn std::error::Error + 'static)) -> Self {
        Self::new(kind, chain(error))
    }

    fn local(error: &CheckpointError) -> Self {
        let kind = match error.kind() {
            ErrorKind::Cancelled | ErrorKind::Timeout => FailureKind::NetworkBlip,
            _ => FailureKind::LocalGit,
        };
        Self::of(kind, error)
    }
}

/// What is to be done about a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// It has the commit: the tip is it, or goes on from it.
    There,
    Create,
    Advance,
    /// It has another history, which stays.
    Diverged,
}

/// Decides, by how the branch's tip and the commit lie to each other.
///
/// What cannot be told is no divergence and no ancestor: `None`.
fn step(has_tip: bool, tip_reaches: Reaches, reaches_tip: Reaches) -> Option<Step> {
    match (has_tip, tip_reaches, reaches_tip) {
        (false, _, _) => Some(Step::Create),
        (true, Reaches::Yes, _) => Some(Step::There),
        (true, _, Reaches::Yes) => Some(Step::Advance),
        (true, Reaches::No, Reaches::No) => Some(Step::Diverged),
        (true, _, _) => None,
    }
}

impl Sender<'_> {
    /// Sends `commit` to `branch`, which may only grow by it, and proves that it is there. `seen`:
    /// what the remote has said a moment ago.
    ///
    /// On `Err` with the kind `RemoteDivergent` the branch has a history of its own, and stays.
    pub(crate) fn send(
        &self,
        commit: ObjectId,
        branch: &BranchName,
        seen: &Advertised,
        gate: &Gate,
    ) -> Result<Sent, NotSent> {
        self.send_onto((commit, branch), seen.branch(branch), seen, gate, LOOKS)
    }

    /// Sends a merge with `tip` to `branch`, once: whoever is there first keeps it.
    pub(crate) fn send_merge(
        &self,
        (merge, branch): (ObjectId, &BranchName),
        tip: ObjectId,
        seen: &Advertised,
        gate: &Gate,
    ) -> Result<Sent, NotSent> {
        self.send_onto((merge, branch), Some(tip), seen, gate, 1)
    }

    fn send_onto(
        &self,
        (commit, branch): (ObjectId, &BranchName),
        mut tip: Option<ObjectId>,
        seen: &Advertised,
        gate: &Gate,
        looks: usize,
    ) -> Result<Sent, NotSent> {
        for look in 1..=looks {
            let (tip_reaches, reaches_tip) = match tip {
                Some(tip) => self.relation(tip, commit)?,
                None => (Reaches::No, Reaches::No),
            };
            let Some(step) = step(tip.is_some(), tip_reaches, reaches_tip) else {
                return Err(self.untold(commit, branch));
            };
            let push = match (step, tip) {
                (Step::There, tip) => {
                    return Ok(Sent {
                        branch: branch.clone(),
                        advanced_to: tip.filter(|tip| *tip != commit),
                        was_there: true,
                    });
                }
                (Step::Diverged, tip) => {
                    return Err(NotSent {
                        tip,
                        ..self.diverged(commit, branch)
                    });
                }
                (Step::Advance, Some(tip)) => {
                    Push::advance(branch.clone(), Ancestry::proven(tip, commit))
                }
                (Step::Create | Step::Advance, _) => Push::create(branch.clone(), commit),
            };
            self.look_through(commit, (seen, tip), gate)?;
            match self.remote.push(&push, self.op) {
                Ok(_) => return self.prove(commit, branch, tip),
                // Somebody was there first: it is looked at again what the branch has now.
                Err(e) if e.failure() == FailureKind::RemoteDivergent && look < looks => {
                    let refs = self.remote.branches(self.op);
                    let refs = refs.map_err(|e| NotSent::of(e.failure(), &e))?;
                    let found = refs.branch(branch);
                    if found == tip {
                        return Err(NotSent::of(e.failure(), &e));
                    }
                    tip = found;
                }
                Err(e) if e.failure() == FailureKind::RemoteDivergent => break,
                Err(e) => return Err(NotSent::of(e.failure(), &e)),
            }
        }
        Err(self.diverged(commit, branch))
    }

    /// Whether `tip`, which the branch is at, reaches `commit`, and the other way round. What is
    /// not here is fetched.
    pub(super) fn relation(
        &self,
        tip: ObjectId,
        commit: ObjectId,
    ) -> Result<(Reaches, Reaches), NotSent> {
        let relation = || {
            let tip_reaches = self.reaches(tip, commit)?;
            Ok((tip_reaches, self.reaches(commit, tip)?))
        };
        match relation()? {
            (Reaches::Unknown, reaches) if reaches != Reaches::Yes => {
                let fetched = self.remote.fetch(tip, &[commit], self.op);
                fetched.map_err(|e| match e {
                    // It was there a moment ago: who asks again finds out where the branch is.
                    FetchError::Gone { .. } => NotSent::of(FailureKind::NetworkBlip, &e),
                    e => NotSent::of(e.failure(), &e),
                })?;
                relation()
            }
            known => Ok(known),
        }
    }

    fn reaches(&self, commit: ObjectId, ancestor: ObjectId) -> Result<Reaches, NotSent> {
        let (commit, ancestor) = (commit.to_string(), ancestor.to_string());
        let workspace = &self.target.opened.workspace;
        let checkpoints = self.target.checkpoints();
        let reaches = checkpoints.reaches(self.op, workspace, &commit, &ancestor);
        reaches.map_err(|e| NotSent::local(&e))
    }

    /// Searches what a push would reveal.
    fn look_through(
        &self,
        commit: ObjectId,
        (seen, tip): (&Advertised, Option<ObjectId>),
        gate: &Gate,
    ) -> Result<(), NotSent> {
        // The branch may have come to its tip since.
        let on_remote = seen.ids().chain(tip).map(|id| id.to_string()).collect();
        let search = SecretSearch::new(commit.to_string(), gate.rules.clone())
            .on_remote(on_remote)
            .allowed(gate.allowed.clone());
        let workspace = &self.target.opened.workspace;
        let checkpoints = self.target.checkpoints();
        let revealed = checkpoints.revealed_secrets(self.op, workspace, &search);
        let revealed = revealed.map_err(|e| NotSent::local(&e))?;
        let (findings, bytes) = (revealed.findings, revealed.bytes);
        let Some(first) = findings.first() else {
            return match gate.max_bytes.filter(|most| bytes > *most) {
                None => Ok(()),
                Some(most) => {
                    let why = format!(
                        "what would be sent adds {bytes} bytes of files, and {most} is the limit"
                    );
                    Err(NotSent::new(FailureKind::TooLarge, why))
                }
            };
        };
        let place = match first.path.is_root() {
            true => "its message".to_owned(),
            false => format!("{} line {}", first.path, first.line),
        };
        let others = match findings.len() {
            1 => String::new(),
            n => format!(", and {} more", n - 1),
        };
        let why = format!("{} has a {} at {place}{others}", first.commit, first.rule);
        Err(NotSent {
            findings,
            ..NotSent::new(FailureKind::SecretFound, why)
        })
    }

    fn prove(
        &self,
        commit: ObjectId,
        branch: &BranchName,
        before: Option<ObjectId>,
    ) -> Result<Sent, NotSent> {
        let taken = |not_sent| NotSent {
            was_taken: true,
            ..not_sent
        };
        let proof = self.remote.prove(branch, commit, before, self.op);
        let advanced_to = match proof.map_err(|e| taken(NotSent::of(e.failure(), &e)))? {
            Proof::Exact => None,
            Proof::MovedTo(tip) => match self.relation(tip, commit).map_err(taken)? {
                (Reaches::Yes, _) => Some(tip),
                (Reaches::No, _) => return Err(self.diverged(commit, branch)),
                (Reaches::Unknown, _) => return Err(taken(self.untold(commit, branch))),
            },
        };
        Ok(Sent {
            branch: branch.clone(),
            advanced_to,
            was_there: false,
        })
    }

    pub(super) fn untold(&self, commit: ObjectId, branch: &BranchName) -> NotSent {
        let why = format!(
            "how {commit} and {branch} of {} lie to each other cannot be told",
            self.remote.address
        );
        NotSent::new(FailureKind::LocalGit, why)
    }

    fn diverged(&self, commit: ObjectId, branch: &BranchName) -> NotSent {
        let why = format!(
            "{branch} of {} has commits that {commit} does not go on from; it was left as it is",
            self.remote.address
        );
        NotSent::new(FailureKind::RemoteDivergent, why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_known_to_go_on_from_the_branch_is_sent_to_it() {
        use Reaches::{No, Unknown, Yes};
        for tip_reaches in [Yes, No, Unknown] {
            for reaches_tip in [Yes, No, Unknown] {
                let created = step(false, tip_reaches, reaches_tip);
                assert_eq!(created, Some(Step::Create));
                let expected = match (tip_reaches, reaches_tip) {
                    (Yes, _) => Some(Step::There),
                    (_, Yes) => Some(Step::Advance),
                    (No, No) => Some(Step::Diverged),
                    _ => None,
                };
                assert_eq!(step(true, tip_reaches, reaches_tip), expected);
            }
        }
    }
}
