//! An approval of what a run has handed in.

use stillframe_backends::ErrorKind;

use crate::error::Error;
use crate::id::RunId;
use crate::records::isolated_run::IsolatedRun;

/// The longest name of a reviewer, in characters.
const MAX_REVIEWER_CHARS: usize = 200;

/// An approval of what a run has handed in, and of nothing else: see
/// [`Review::approve`](crate::Review::approve).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Approval {
    /// The run.
    pub run_id: RunId,
    /// The commit that was looked at, by its full id.
    pub commit: String,
    /// The full id of its tree.
    pub tree: String,
    /// The commit that it was compared with, by its full id.
    pub base: String,
    /// The key of the artifact that has the patch between the two. It has a digest of that.
    pub diff: String,
    /// Whose decision it is, in 1 to 200 characters. Default: nobody says.
    pub reviewer: Option<String>,
    /// Whether the branch moves also where a work tree has it checked out, whose files then stay
    /// behind. Default: they come along, or nothing moves.
    pub ref_only: bool,
    /// Whether it is void where the originating branch has moved on. Default: what came there is
    /// merged with.
    pub require_current_base: bool,
}

impl Approval {
    /// Of what `run` has handed in, as it says.
    ///
    /// # Errors
    ///
    /// `Conflict`: it has handed nothing in, or nobody could say what.
    pub fn of(run: &IsolatedRun) -> Result<Self, Error> {
        let of = &run.isolation;
        let (Some(commit), Some(tree), Some(diff)) = (&of.commit, &of.tree, &of.diff) else {
            let message = format!(
                "run {} is {}, and has nothing that could be approved; nothing was decided",
                run.run_id, run.status
            );
            return Err(Error::new(ErrorKind::Conflict, message));
        };
        Ok(Self {
            run_id: run.run_id.clone(),
            commit: commit.clone(),
            tree: tree.clone(),
            base: of.base.clone(),
            diff: diff.clone(),
            reviewer: None,
            ref_only: false,
            require_current_base: false,
        })
    }

    stillframe_model::setters! {
        reviewer: String,
        ref_only: bool,
        require_current_base: bool,
    }
}

/// Refuses what is no name of a reviewer.
pub(crate) fn check_reviewer(reviewer: Option<&str>) -> Result<(), Error> {
    let Some(name) = reviewer else {
        return Ok(());
    };
    let is_name = (1..=MAX_REVIEWER_CHARS).contains(&name.chars().count());
    match is_name && !name.chars().any(char::is_control) {
        true => Ok(()),
        false => Err(Error::invalid_options(format!(
            "the name of a reviewer has 1 to {MAX_REVIEWER_CHARS} characters, and no control character; nothing was decided"
        ))),
    }
}
