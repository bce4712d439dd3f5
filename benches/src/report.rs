//! What was measured, as Markdown tables.

use std::fmt::Write as _;
use std::time::Duration;

use crate::case::OURS;
use crate::growth::{Growth, fit};
use crate::measure::{Row, Times};
use crate::target::{TARGETS, Target, Verdict, ratio};
use crate::usage::Usage;

pub(crate) fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// A number with three digits that tell something.
pub(crate) fn short(value: f64) -> String {
    let digits = match value {
        0.0 => 0,
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        v if v >= 0.1 => 3,
        _ => 4,
    };
    format!("{value:.digits$}")
}

fn mib(bytes: u64) -> String {
    short(bytes as f64 / f64::from(1 << 20))
}

/// A Markdown table of everything: the median, the spread, our time divided by it, what that is to
/// be at most with so many `files` (`None`: targets are not for this repository), and what captures
/// say of their work.
pub fn table(times: &Times, files: Option<usize>) -> String {
    let mut text = String::from(
        "| Case | Subject | Median, ms | Spread, ms | stillframe / this | Reach | Files hashed | MiB read |\n\
         |---|---|--:|--:|--:|---|--:|--:|\n",
    );
    for case in times.cases() {
        for row in times.of_case(case) {
            let _ = writeln!(
                text,
                "| {case} | {} | {} |",
                row.subject,
                cells(times, case, &row, files).join(" | ")
            );
        }
    }
    text
}

fn cells(times: &Times, case: &str, row: &Row<'_>, files: Option<usize>) -> [String; 6] {
    let (median, spread) = match row.result {
        Ok(s) => {
            let spread = format!("{} to {}", short(ms(s.least)), short(ms(s.most)));
            (short(ms(s.median)), spread)
        }
        Err(why) => (why.to_owned(), String::new()),
    };
    let ratio = ratio(times, case, row.subject);
    let target = files.and_then(|files| Some((Target::of(case, row.subject, files)?, files)));
    let (hashed, read) = row.work.map_or_else(Default::default, |work| {
        (work.files_hashed.to_string(), mib(work.bytes_read))
    });
    [
        median,
        spread,
        ratio.map_or_else(String::new, short),
        target.map_or_else(String::new, |(target, files)| reach(&target, ratio, files)),
        hashed,
        read,
    ]
}

/// A target, and what became of it.
fn reach(target: &Target, ratio: Option<f64>, files: usize) -> String {
    let most = format!("at most {}", short(target.most));
    match ratio.map(|ratio| target.verdict(ratio, files)) {
        Some(Verdict::Reached) => format!("{most}: reached"),
        Some(Verdict::NotReached) => format!("{most}: **not reached**"),
        Some(Verdict::OtherSize) => format!("{most} at {}", target.files),
        None => format!("{most}: not measured"),
    }
}

/// A Markdown table of the targets that are meant for so many files, each with what was measured; a
/// target whose case did not run is a row that says so. Empty if there is none for this number.
pub fn summary_of_targets(times: &Times, files: usize) -> String {
    let mut text = String::new();
    for target in TARGETS.iter().filter(|t| t.files == files) {
        let rows = times.of_case(target.case);
        let mut found = rows
            .iter()
            .filter(|row| row.subject.starts_with(target.against))
            .map(|row| (row.subject, ratio(times, target.case, row.subject)))
            .collect::<Vec<_>>();
        if found.is_empty() {
            found.push((target.against, None));
        }
        for (against, ratio) in found {
            let _ = writeln!(
                text,
                "| {} | {against} | {} | {} |",
                target.case,
                ratio.map_or_else(String::new, short),
                reach(target, ratio, files)
            );
        }
    }
    if text.is_empty() {
        return text;
    }
    format!("| Case | Against | stillframe / this | Reach |\n|---|---|--:|---|\n{text}")
}

/// What a process used in a case.
#[derive(Clone, Debug)]
pub struct Used {
    /// The case.
    pub case: String,
    /// Who did the work.
    pub subject: String,
    /// What it used.
    pub usage: Usage,
    /// The most memory that it should hold, in MiB.
    pub max_mib: Option<u64>,
}

/// A Markdown table of memory and system calls.
pub fn usage_table(rows: &[Used]) -> String {
    let mut text = String::from(
        "| Case | Subject | Peak memory, MiB | Reach | System calls |\n|---|---|--:|---|--:|\n",
    );
    for row in rows {
        let peak_mib = row.usage.peak_kib as f64 / 1024.0;
        let reach = match row.max_mib {
            None => String::new(),
            Some(max) if peak_mib <= max as f64 => format!("at most {max}: reached"),
            Some(max) => format!("at most {max}: **not reached**"),
        };
        let calls = row.usage.system_calls;
        let calls = calls.map_or_else(|| "no strace".to_owned(), |n| n.to_string());
        let _ = writeln!(
            text,
            "| {} | {} | {} | {reach} | {calls} |",
            row.case,
            row.subject,
            short(peak_mib)
        );
    }
    text
}

/// A Markdown table of lines through points; a growth of fewer than two points has none.
pub fn growth_table(growths: &[Growth]) -> String {
    let mut text = String::from(
        "| What | Grows with | At zero, ms | Each adds, ms | From, to | Measured, ms |\n\
         |---|---|--:|--:|---|---|\n",
    );
    for growth in growths {
        let Some((start, slope)) = fit(&growth.points) else {
            continue;
        };
        let list = |of: fn(&(f64, f64)) -> f64| {
            let all: Vec<String> = growth.points.iter().map(|p| short(of(p))).collect();
            all.join(", ")
        };
        let _ = writeln!(
            text,
            "| {} | {} | {start:.1} | {slope:.4} | {} | {} |",
            growth.name,
            growth.unit,
            list(|p| p.0),
            list(|p| p.1)
        );
    }
    text
}

/// Whether a row is ours, or a part of ours.
pub(crate) fn is_ours(subject: &str) -> bool {
    subject.starts_with(OURS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::{COMMON_WAY, FIRST, FLOOR};
    use crate::measure::Work;

    fn times() -> Times {
        let mut times = Times::default();
        times.add(FIRST, OURS, Duration::from_millis(10));
        times.add(FIRST, COMMON_WAY, Duration::from_millis(400));
        times.add(FIRST, FLOOR, Duration::from_millis(8));
        times.absent(FIRST, "borg create", "not installed");
        let work = Work {
            files_hashed: 7,
            bytes_read: 3 << 20,
        };
        times.did(FIRST, OURS, work);
        times
    }

    #[test]
    fn a_row_has_the_ratio_and_the_target_beside_it() {
        let table = table(&times(), Some(100_000));
        for row in [
            "| first capture | stillframe | 10.0 | 10.0 to 10.0 |  |  | 7 | 3.00 |",
            "| first capture | git, common way | 400 | 400 to 400 | 0.0250 | at most 0.0950: reached |  |  |",
            "| first capture | floor | 8.00 | 8.00 to 8.00 | 1.25 |  |  |  |",
            "| first capture | borg create | not installed |  |  |  |  |  |",
        ] {
            assert!(table.contains(row), "{row}\n{table}");
        }
        let smaller = super::table(&times(), Some(10_000));
        assert!(smaller.contains("| 0.0250 | at most 0.0950 at 100000 |"));
        assert!(!super::table(&times(), None).contains("at most"));
    }

    #[test]
    fn no_target_is_hidden_because_its_case_did_not_run() {
        let mut times = times();
        times.add(FIRST, OURS, Duration::from_millis(90));
        let summary = summary_of_targets(&times, 100_000);
        let missed = "| 0.125 | at most 0.0950: **not reached** |";
        assert!(summary.contains(missed), "{summary}");
        let absent =
            "| hash backend, unchanged | restic backup |  | at most 0.0333: not measured |";
        assert!(summary.contains(absent), "{summary}");
        assert!(summary.lines().count() > 15);
        assert_eq!(summary_of_targets(&times, 2_000), "");
    }

    #[test]
    fn memory_is_judged_by_its_bound() {
        let used = |peak_mib: u64| Used {
            case: "c".to_owned(),
            subject: "s".to_owned(),
            usage: Usage {
                peak_kib: peak_mib * 1024,
                system_calls: None,
            },
            max_mib: Some(48),
        };
        let table = usage_table(&[used(48), used(49)]);
        assert!(table.contains("| 48.0 | at most 48: reached | no strace |"));
        assert!(table.contains("| 49.0 | at most 48: **not reached** | no strace |"));
    }

    #[test]
    fn growth_is_what_each_unit_adds() {
        let growth = Growth {
            name: "unchanged".to_owned(),
            unit: "thousand files",
            points: vec![(10.0, 25.0), (100.0, 115.0)],
        };
        let table = growth_table(&[growth]);
        let row = "| unchanged | thousand files | 15.0 | 1.0000 | 10.0, 100 | 25.0, 115 |";
        assert!(table.contains(row), "{table}");
    }
}
