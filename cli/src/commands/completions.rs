//! `completions`: a script for a shell.

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::args::Args;
use crate::output::{Answer, Reply};

/// The script that completes commands and options in `shell`.
pub(crate) fn completions(shell: Shell) -> Reply {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "stillframe", &mut script);
    Reply {
        answer: Answer::Bytes(Box::new(std::io::Cursor::new(script))),
        ..Reply::default()
    }
}
