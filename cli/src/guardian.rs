//! What the program does if somebody kills the guardian of its command.

use rustix::process::{Signal, getpid, kill_process};

use crate::output;

/// Ends this process as SIGKILL does, after saying why.
///
/// A command that kills its parent kills the guardian, and means the program that started it. The
/// rest of the command has been ended, and the next command settles the run, as after any such
/// kill.
pub(crate) fn die_with_it() {
    output::to_stderr(
        "the process that had started the command was killed; what was left of the command has been ended, \
         and stillframe ends as if it had been killed itself: the next stillframe settles the run",
    );
    // It can only fail for a process that is not there.
    let _ = kill_process(getpid(), Signal::KILL);
}
