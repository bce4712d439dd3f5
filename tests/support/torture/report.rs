//! What a harness did, in figures.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::torture::checker::Finding;

/// What a harness did, and what it found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The name of the harness.
    pub harness: &'static str,
    /// How often something was to be disturbed.
    pub tried: usize,
    /// How often something was.
    pub hit: usize,
    /// How often, by what was done and where: a table of rows and columns.
    pub tables: BTreeMap<&'static str, BTreeMap<String, usize>>,
    /// What must not be, with how to see it again.
    pub findings: Vec<(String, Finding)>,
    /// How long it took.
    pub took: Duration,
}

impl Report {
    /// An empty report.
    pub fn new(harness: &'static str) -> Self {
        Self {
            harness,
            ..Self::default()
        }
    }

    /// Counts one in a row of a table.
    pub fn count(&mut self, table: &'static str, row: impl Into<String>) {
        *self
            .tables
            .entry(table)
            .or_default()
            .entry(row.into())
            .or_default() += 1;
    }

    /// Notes what must not be. `case` says how to see it again.
    pub fn find(&mut self, case: &str, findings: impl IntoIterator<Item = Finding>) {
        let findings = findings.into_iter().map(|f| (case.to_owned(), f));
        self.findings.extend(findings);
    }

    /// Adds what another worker did at the same time.
    pub fn merge(&mut self, other: Self) {
        self.tried += other.tried;
        self.hit += other.hit;
        for (table, rows) in other.tables {
            let mine = self.tables.entry(table).or_default();
            for (row, count) in rows {
                *mine.entry(row).or_default() += count;
            }
        }
        self.findings.extend(other.findings);
        self.took = self.took.max(other.took);
    }

    /// How many disturbances there were in a second.
    #[expect(clippy::cast_precision_loss, reason = "it is for people")]
    pub fn per_second(&self) -> f64 {
        self.hit as f64 / self.took.as_secs_f64().max(f64::EPSILON)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 200;
        writeln!(
            f,
            "{}: {} tried, {} hit, {} findings, {:.1} s, {:.1} per second",
            self.harness,
            self.tried,
            self.hit,
            self.findings.len(),
            self.took.as_secs_f64(),
            self.per_second()
        )?;
        for (table, rows) in &self.tables {
            writeln!(f, "{table}:")?;
            for (row, count) in rows {
                writeln!(f, "  {row:<40} {count:>7}")?;
            }
        }
        for (case, finding) in self.findings.iter().take(SHOWN) {
            writeln!(f, "FOUND {case}: {finding}")?;
        }
        if self.findings.len() > SHOWN {
            writeln!(f, "and {} more", self.findings.len() - SHOWN)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::torture::checker::Kind;

    #[test]
    fn what_two_did_is_added_up_and_what_was_found_is_shown() {
        let mut report = Report::new("x");
        report.count("outcome", "done");
        report.hit = 1;
        let mut other = report.clone();
        other.find("here", [Finding::new(Kind::Lost, "a byte")]);
        other.took = Duration::from_secs(2);
        report.merge(other);
        assert_eq!(report.tables["outcome"]["done"], 2);
        let text = report.to_string();
        assert!(
            text.contains("2 hit, 1 findings, 2.0 s, 1.0 per second"),
            "{text}"
        );
        assert!(text.contains("FOUND here: Lost: a byte"), "{text}");
    }
}
