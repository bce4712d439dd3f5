//! What the commands about reviews and worktrees of runs take.

use clap::Subcommand;

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
