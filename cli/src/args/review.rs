//! What the commands about reviews and worktrees of runs take.

use std::ffi::OsString;

use clap::{Subcommand, ValueHint};

/// What `review` can do.
#[derive(Debug, Subcommand)]
pub(crate) enum ReviewCommand {
    /// List the runs that wait for a decision.
    #[command(after_help = "\
Exit codes: 0 done, 1 it could not be done, 2 the command line is wrong.")]
    List,
    /// Show what a run has handed in: its branch, the commit, the tree, and what they are compared
    /// with.
    #[command(after_help = "\
Exit codes: 0 done, 1 it could not be done, 2 the command line is wrong.")]
    Show {
        /// The run, by its id or the beginning of it.
        run: String,
    },
    /// Show the diff of what a run has handed in, against the commit that it was cut from.
    #[command(after_help = "\
Examples:
  stillframe review diff run_5d41402a
  stillframe review diff run_5d41402a --patch

Exit codes: 0 done, 1 it could not be done, 2 the command line is wrong.")]
    Diff {
        /// The run, by its id or the beginning of it.
        run: String,
        /// How many lines changed in each file.
        #[arg(long, group = "view")]
        stat: bool,
        /// The whole change as a patch that git applies.
        #[arg(long, group = "view")]
        patch: bool,
    },
    /// Approve what a run has handed in, and merge it into the branch that the run was cut from.
    ///
    /// Where the branch is checked out, the files of that work tree come along, and what is changed
    /// there beside them stays as it is. What is changed there in the same paths, an operation of
    /// git's that is in progress, and the like, is in the way: nothing moves then, and the run still
    /// waits. After the merge, worktree and branch of the run are let go of.
    #[command(after_help = "\
Examples:
  stillframe review approve run_5d41402a
  stillframe review approve run_5d41402a --commit 9d41c07 --by ann

Exit codes: 0 merged, also where it was merged before; 1 it was not merged; 2 the command line is
wrong.")]
    Approve {
        /// The run, by its id or the beginning of it.
        run: String,
        /// The commit that you have looked at, by its id or the first seven or more of its digits:
        /// nothing else is approved. Default: what the run has handed in by now.
        #[arg(long, value_name = "ID", value_parser = commit)]
        commit: Option<String>,
        /// Move the branch alone, also where it is checked out: git shows what came as taken back
        /// there.
        #[arg(long)]
        ref_only: bool,
        /// Refuse it if the branch has moved on since the run was cut from it.
        #[arg(long)]
        require_current_base: bool,
        /// Whose decision it is, as it is put on record.
        #[arg(long, value_name = "NAME")]
        by: Option<String>,
    },
    /// Have a run change what it has handed in, and hand that in anew.
    ///
    /// The command works in the same worktree, on the same branch. It finds the comment in
    /// STILLFRAME_REVIEW_COMMENT, and in the file that STILLFRAME_REVIEW_COMMENT_FILE names;
    /// STILLFRAME_REVISION counts from 1. A run has ten revisions at most.
    #[command(after_help = "\
Examples:
  stillframe review request-changes run_5d41402a -m \"keep the old name as an alias\"
  stillframe review request-changes run_5d41402a -m \"add a test\" -- agent --continue

Exit codes: those of \"stillframe run\".")]
    RequestChanges {
        /// The run, by its id or the beginning of it.
        run: String,
        /// What is to be changed, in 1 to 8000 characters.
        #[arg(short, long, value_name = "TEXT")]
        message: String,
        /// Whose decision it is, as it is put on record.
        #[arg(long, value_name = "NAME")]
        by: Option<String>,
        /// What changes it. Default: the command that the run was started with.
        #[arg(last = true, value_name = "CMD", value_hint = ValueHint::CommandWithArguments)]
        command: Vec<OsString>,
    },
    /// Decline what a run has handed in.
    ///
    /// The branch that it was cut from stays as it is. The worktree and the branch of the run stay
    /// too, until "stillframe worktree discard".
    #[command(after_help = "\
Exit codes: 0 done, also where it was declined before; 1 it could not be done, 2 the command line is
wrong.")]
    Decline {
        /// The run, by its id or the beginning of it.
        run: String,
        /// Whose decision it is, as it is put on record.
        #[arg(long, value_name = "NAME")]
        by: Option<String>,
    },
}

/// The id of a commit, or enough of it.
fn commit(text: &str) -> Result<String, String> {
    let is_hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    match is_hex && (7..=40).contains(&text.len()) {
        true => Ok(text.to_ascii_lowercase()),
        false => Err("it is not 7 to 40 digits of the id of a commit".to_owned()),
    }
}

/// What `worktree` can do.
#[derive(Debug, Subcommand)]
pub(crate) enum WorktreeCommand {
    /// List the worktrees of runs that are kept.
    #[command(after_help = "\
Exit codes: 0 done, 1 it could not be done, 2 the command line is wrong.")]
    List,
    /// Print the directory in which a run works, or worked.
    #[command(after_help = "\
Examples:
  cd \"$(stillframe worktree path run_5d41402a)\"

Exit codes: 0 done; 1 the run has no worktree, or it was let go of; 2 the command line is wrong.")]
    Path {
        /// The run, by its id or the beginning of it.
        run: String,
    },
    /// Let go of the worktree and the branch of a run that has ended.
    ///
    /// What is in the worktree is captured first, with the commits that only its branch has:
    /// "stillframe show" lists the snapshot. A run that is at work has to be cancelled before, and
    /// one that waits for a decision declined.
    #[command(after_help = "\
Exit codes: 0 done, also where it was let go of before; 1 it could not be done, 2 the command line is
wrong.")]
    Discard {
        /// The run, by its id or the beginning of it.
        run: String,
    },
}
