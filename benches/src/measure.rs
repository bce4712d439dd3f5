//! Times of subjects that take turns, and what a process used.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What was measured: the times of each subject in each case, in the order in which they came first.
#[derive(Debug, Default)]
pub struct Times {
    samples: BTreeMap<(usize, usize), Vec<Duration>>,
    cases: Vec<String>,
    subjects: Vec<String>,
}

/// Several times of one subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Half of the times are shorter.
    pub median: Duration,
    /// The shortest.
    pub least: Duration,
    /// The longest.
    pub most: Duration,
}

impl Times {
    /// Measures `work`, and answers with what it answers.
    pub fn take<T>(&mut self, case: &str, subject: &str, work: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        let answer = work();
        self.add(case, subject, started.elapsed());
        answer
    }

    /// Adds a time that was measured elsewhere.
    pub fn add(&mut self, case: &str, subject: &str, time: Duration) {
        let key = (
            place(&mut self.cases, case),
            place(&mut self.subjects, subject),
        );
        self.samples.entry(key).or_default().push(time);
    }

    /// The cases, in the order in which they came.
    pub fn cases(&self) -> &[String] {
        &self.cases
    }

    /// The subjects of a case with their times, in the order in which the subjects came.
    pub fn of_case(&self, case: &str) -> Vec<(&str, Summary)> {
        let Some(case) = self.cases.iter().position(|c| c == case) else {
            return Vec::new();
        };
        let samples = self.samples.range((case, 0)..(case + 1, 0));
        samples
            .filter_map(|((_, subject), times)| Some((&*self.subjects[*subject], summary(times)?)))
            .collect()
    }
}

fn place(names: &mut Vec<String>, name: &str) -> usize {
    names.iter().position(|n| n == name).unwrap_or_else(|| {
        names.push(name.to_owned());
        names.len() - 1
    })
}

fn summary(times: &[Duration]) -> Option<Summary> {
    let mut times = times.to_vec();
    times.sort_unstable();
    Some(Summary {
        median: *times.get(times.len() / 2)?,
        least: *times.first()?,
        most: *times.last()?,
    })
}

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

/// Measures what `command` uses. `self_program` must answer to [`TELL_PEAK`].
pub fn usage(self_program: &Path, command: &[String], scratch: &Path) -> io::Result<Usage> {
    let output = Command::new(self_program)
        .arg(TELL_PEAK)
        .args(command)
        .stderr(Stdio::inherit())
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let peak_kib = text.trim().parse().map_err(io::Error::other)?;
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
    fn subjects_keep_their_order_and_their_medians() {
        let mut times = Times::default();
        for (subject, ms) in [("b", 5), ("a", 1), ("b", 3), ("b", 9)] {
            times.add("case", subject, Duration::from_millis(ms));
        }
        times.add("other", "a", Duration::ZERO);
        let of_case = times.of_case("case");
        let names: Vec<&str> = of_case.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["b", "a"]);
        assert_eq!(of_case[0].1.median, Duration::from_millis(5));
        assert_eq!(of_case[0].1.most, Duration::from_millis(9));
        assert_eq!(times.cases(), ["case", "other"]);
    }

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
