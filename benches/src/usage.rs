//! What a process used: memory and system calls.

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

/// What a process and its children used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The most memory that any of them held at a time, in KiB.
    pub peak_kib: u64,
    /// How many system calls they made; `None` without a tracer.
    pub system_calls: Option<u64>,
}

/// The argument with which a program that measures runs another and tells its peak memory: see
/// [`tell_peak`].
pub const TELL_PEAK: &str = "--tell-peak";

/// Runs a program and prints the most memory that it or a child of it held, in KiB: in a process of
/// its own, since the kernel keeps one figure for all children that a process ever had.
pub fn tell_peak(program: &[String]) -> io::Result<()> {
    let (name, arguments) = program.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let status = Command::new(name)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()?;
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_CHILDREN)?;
    println!("{}", usage.max_rss());
    if status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("{name} ended with {status}")))
}

/// Measures what `command` uses, in two runs of it, with and without a tracer; `before` makes
/// things ready before each. `self_program` must answer to [`TELL_PEAK`].
pub fn usage(
    self_program: &Path,
    command: &[String],
    scratch: &Path,
    mut before: impl FnMut(),
) -> io::Result<Usage> {
    before();
    let output = Command::new(self_program)
        .arg(TELL_PEAK)
        .args(command)
        .stderr(Stdio::inherit())
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let peak_kib = text.trim().parse().map_err(io::Error::other)?;
    before();
    let counts = scratch.join("system-calls");
    let traced = Command::new("strace")
        .args(["-f", "-c", "-o"])
        .arg(&counts)
        .args(command)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    let system_calls = match traced {
        Ok(status) if status.success() => total_calls(&std::fs::read_to_string(&counts)?),
        _ => None,
    };
    Ok(Usage {
        peak_kib,
        system_calls,
    })
}

/// The number of calls in the last line of a table of strace's.
fn total_calls(table: &str) -> Option<u64> {
    let total = table.lines().rfind(|line| line.ends_with("total"))?;
    // Share, seconds, microseconds for each call, calls, and errors if there were any.
    total.split_whitespace().nth(3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_of_a_trace_is_its_calls() {
        let table = "% time     seconds  usecs/call     calls    errors syscall\n\
                     ------ ----------- ----------- --------- --------- ----------------\n\
                     100.00    0.001234           1       100         3 newfstatat\n\
                     ------ ----------- ----------- --------- --------- ----------------\n\
                     100.00    0.001234           2       456         3 total\n";
        assert_eq!(total_calls(table), Some(456));
        assert_eq!(total_calls(""), None);
    }
}
