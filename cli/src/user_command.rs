//! A line for `/bin/sh -c` that the user has typed or set, for what the user asked for: the one
//! that prints a token, and those that tell people of notices.

use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use rustix::process::{Pid, Signal};
use stillframe::commands::{OwnChild, start_own_child};
use tokio::process::{Child, Command};

/// It is run in `/`, so that no repository takes part in what it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UserCommand {
    line: String,
}

/// Its process, which is killed with those that it started if it is not waited for.
pub(crate) struct Group {
    pub(crate) child: Child,
    _own: OwnChild,
}

impl Drop for Group {
    fn drop(&mut self) {
        // It was not waited for if it has an id, so no other group has that.
        let id = self.child.id().and_then(|id| i32::try_from(id).ok());
        if let Some(id) = id.and_then(Pid::from_raw) {
            let _ = rustix::process::kill_process_group(id, Signal::KILL);
        }
    }
}

impl UserCommand {
    pub(crate) fn new(line: String) -> Self {
        Self { line }
    }

    /// What people know it by, with a blank before it: its program. What follows may have something
    /// secret in it.
    pub(crate) fn name(&self) -> String {
        let ends = |c: char| c.is_whitespace() || ";|&<>()".contains(c);
        let program = self.line.trim_start().split(ends).next();
        let program = program.unwrap_or_default();
        let is_plain = |c: char| c.is_alphanumeric() || "/._-+~".contains(c);
        match !program.is_empty() && program.chars().all(is_plain) {
            true => format!(" ({program} …)"),
            false => String::new(),
        }
    }

    /// Starts it with what `prepare` says of its environment, and of what it reads and writes.
    pub(crate) fn start(&self, prepare: impl FnOnce(&mut Command)) -> io::Result<Group> {
        #[expect(
            clippy::disallowed_methods,
            reason = "what the user has typed or set, for what the user asked for"
        )]
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &self.line]).current_dir("/");
        prepare(&mut command);
        command.process_group(0);
        // The command of a run may be at work, whose leftovers are ended and reaped.
        let (child, own) = start_own_child(|| command.spawn(), Child::id)?;
        Ok(Group { child, _own: own })
    }
}

/// How it ended badly.
pub(crate) fn ended(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with code {code}"),
        (None, signal) => format!("was ended by signal {}", signal.unwrap_or_default()),
    }
}
