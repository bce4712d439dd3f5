//! One attempt at a merge: what comes of the two commits, and moving the originating branch.

use std::path::Path;

use stillframe_backends::{
    BranchMerge, BranchMove, Checkout, CheckoutUsage, CommitRequest, ErrorKind, Merged, Operation,
    printable,
};

use super::checkout;
use super::repository::{Repository, failed};
use crate::actors::core::Core;
use crate::error::Error;
use crate::records::isolation::{Candidate, IsolationRow};
use crate::records::merge::{MergeMode, MergeOutcome, MergeRow, MergedRun};
use crate::records::run_row::RunRow;
use crate::state::change::Change;

/// The line at the end of a message that says whose merge it is.
const RUN_TRAILER: &str = "Run-Id";

/// What the reflog says of the branch.
const MESSAGE: &str = "stillframe: merge";

/// A merge that was approved.
pub(super) struct Attempt<'a> {
    pub(super) core: &'a Core,
    pub(super) run: &'a RunRow,
    pub(super) row: &'a IsolationRow,
    pub(super) candidate: &'a Candidate,
    pub(super) merge: &'a MergeRow,
}

/// What is to be done.
enum Next {
    /// Nothing, because of this.
    Done(MergeOutcome),
    /// The branch alone moves. These stay behind.
    Move(MergedRun, Vec<Checkout>),
    /// The branch moves with the files of this checkout.
    Bring(MergedRun, Checkout),
}

impl Attempt<'_> {
    /// Merges, and moves the branch.
    ///
    /// `HeadMoved`: somebody has moved it meanwhile, and nothing was touched.
    pub(super) async fn carry_out(&self) -> Result<MergeOutcome, Error> {
        let of = Repository::of(self.core, self.run, self.row).await?;
        let planned = self.plan(&of).await?;
        let (merged, checkout) = match planned {
            Next::Done(outcome) => return Ok(outcome),
            Next::Move(mut merged, left) => {
                merged.left_behind = left.iter().map(|at| printable(&at.directory)).collect();
                (merged, None)
            }
            Next::Bring(merged, checkout) => (merged, Some(checkout)),
        };
        let planned = MergeRow {
            planned: Some(merged.clone()),
            ..self.merge.clone()
        };
        let change = Change::Isolation(super::kept(self.run, &planned));
        self.core.parts.writer.commit(vec![change]).await?;
        match checkout {
            None => self.move_branch(of, merged).await,
            Some(checkout) => {
                checkout::bring(
                    self.core,
                    (self.run, self.row),
                    of,
                    &checkout.directory,
                    merged,
                )
                .await
            }
        }
    }

    /// What comes of the two commits, and where the branch is checked out.
    async fn plan(&self, of: &Repository) -> Result<Next, Error> {
        let branch = self.row.originating_branch.clone();
        let commit = self.candidate.commit.clone();
        let (of, base, ref_only) = (of.clone(), self.row.base.clone(), self.merge.ref_only);
        let (run, requires_base) = (self.run.clone(), self.merge.require_current_base);
        let message = format!(
            "Merge stillframe run into {}",
            branch.strip_prefix("refs/heads/").unwrap_or(&branch)
        );
        let request = CommitRequest::new(message, self.merge.approved_at)
            .trailer(RUN_TRAILER, self.run.id.as_str());
        let plan = move || {
            let op = Operation::unbounded();
            let branches = of.branches()?;
            let Some(tip) = of.tip(&branch)? else {
                return Ok(blocked(format!("the branch {branch} is gone")));
            };
            // It may have moved since it was decided.
            super::check_base(&of, &run, (&tip, &base), requires_base)?;
            let merge = BranchMerge::new(&tip, &commit, request);
            let merged = branches.merge(&op, &of.workspace, &merge).map_err(failed)?;
            let to = |new_head: &str, fast_forward| MergedRun {
                commit: commit.clone(),
                mode: MergeMode::RefOnly,
                previous_head: tip.clone(),
                new_head: new_head.to_owned(),
                fast_forward,
                target_advanced: tip != base,
                left_behind: Vec::new(),
                kept: Vec::new(),
            };
            let planned = match merged {
                Merged::Contained => {
                    let merged = to(&tip, true);
                    return Ok(Next::Done(MergeOutcome::Merged(merged)));
                }
                Merged::Conflict { files, more } => {
                    return Ok(Next::Done(MergeOutcome::Conflict { files, more }));
                }
                Merged::Unrelated => {
                    let why = format!("what the run did and {branch} come from no common commit");
                    return Ok(blocked(why));
                }
                Merged::FastForward => to(&commit, true),
                Merged::Commit { commit: made, .. } => to(&made, false),
                _ => return Ok(blocked("the merge came to something unknown".to_owned())),
            };
            Ok(next(planned, of.checkouts(&branch)?, ref_only))
        };
        self.core.parts.blocking.run_long(plan).await?
    }

    /// Moves the branch alone.
    async fn move_branch(
        &self,
        of: Repository,
        mut merged: MergedRun,
    ) -> Result<MergeOutcome, Error> {
        let ends = [&*merged.previous_head, &*merged.new_head];
        let at = self.core.parts.now();
        let request = BranchMove::new(&self.row.originating_branch, ends, MESSAGE, at)
            .leaves_behind(self.merge.ref_only);
        let moves = move || {
            let op = Operation::unbounded();
            of.branches()?
                .move_branch(&op, &of.workspace, &request)
                .map_err(failed)
        };
        let left = self.core.parts.blocking.run(moves).await?;
        match left {
            Ok(left) => {
                merged.left_behind = left.iter().map(|at| printable(&at.directory)).collect();
                Ok(MergeOutcome::Merged(merged))
            }
            // Somebody has checked it out in this moment: it is looked at again.
            Err(e) if e.kind() == ErrorKind::Conflict => Err(Error::new(ErrorKind::HeadMoved, e)),
            Err(e) => Err(e),
        }
    }
}

fn blocked(reason: String) -> Next {
    Next::Done(MergeOutcome::Blocked { reason })
}

/// What moves, by where the branch is in use. Pure.
fn next(merged: MergedRun, mut checkouts: Vec<Checkout>, ref_only: bool) -> Next {
    if ref_only || checkouts.is_empty() {
        return Next::Move(merged, checkouts);
    }
    // A reason has no absolute path.
    let place = |checkout: &Checkout| {
        let name = checkout.directory.file_name().unwrap_or_default();
        printable(Path::new(name))
    };
    if let [first, second, ..] = &checkouts[..] {
        return blocked(format!(
            "the branch is checked out in {} work trees, such as {} and {}",
            checkouts.len(),
            place(first),
            place(second)
        ));
    }
    let checkout = checkouts.remove(0);
    match &checkout.usage {
        CheckoutUsage::CheckedOut => {
            let mode = match merged.fast_forward {
                true => MergeMode::FastForwardFiles,
                false => MergeMode::MergedFiles,
            };
            Next::Bring(MergedRun { mode, ..merged }, checkout)
        }
        CheckoutUsage::InOperation => blocked(format!(
            "an operation of git's is in progress in {}, which uses the branch",
            place(&checkout)
        )),
        CheckoutUsage::Away(why) => {
            blocked(format!("{}, which has the branch: {why}", place(&checkout)))
        }
        _ => blocked(format!("the branch is in use in {}", place(&checkout))),
    }
}
