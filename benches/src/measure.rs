//! Times of subjects that take turns.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// What was measured: the times of each subject in each case, in the order in which they came
/// first.
#[derive(Debug, Default)]
pub struct Times {
    rows: BTreeMap<(usize, usize), Samples>,
    cases: Vec<String>,
    subjects: Vec<String>,
}

#[derive(Debug, Default)]
struct Samples {
    times: Vec<Duration>,
    work: Option<Work>,
    absent: Option<String>,
}

/// What a capture did, by its own account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Files and links whose content it read and hashed.
    pub files_hashed: u64,
    /// Bytes of content that it read.
    pub bytes_read: u64,
}

/// What there is to say of a subject in a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row<'a> {
    /// Who did the work.
    pub subject: &'a str,
    /// How long it took; `Err` says why it was not measured.
    pub result: Result<Summary, &'a str>,
    /// What it did the last time; `None`: it does not tell.
    pub work: Option<Work>,
}

/// Several times of one subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Half of the times are shorter: the one in the middle, or the mean of the two.
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
        self.samples(case, subject).times.push(time);
    }

    /// Says what the subject did.
    pub fn did(&mut self, case: &str, subject: &str, work: Work) {
        self.samples(case, subject).work = Some(work);
    }

    /// Says why a subject has no figure in a case, even if there are times.
    pub fn absent(&mut self, case: &str, subject: &str, why: &str) {
        self.samples(case, subject).absent = Some(why.to_owned());
    }

    fn samples(&mut self, case: &str, subject: &str) -> &mut Samples {
        let key = (
            place(&mut self.cases, case),
            place(&mut self.subjects, subject),
        );
        self.rows.entry(key).or_default()
    }

    /// The cases, in the order in which they came.
    pub fn cases(&self) -> &[String] {
        &self.cases
    }

    /// The subjects of a case, in the order in which the subjects came.
    pub fn of_case(&self, case: &str) -> Vec<Row<'_>> {
        let Some(case) = self.cases.iter().position(|c| c == case) else {
            return Vec::new();
        };
        let rows = self.rows.range((case, 0)..(case + 1, 0));
        rows.map(|((_, subject), samples)| Row {
            subject: &self.subjects[*subject],
            result: match &samples.absent {
                Some(why) => Err(why.as_str()),
                None => summary(&samples.times).ok_or("not measured"),
            },
            work: samples.work,
        })
        .collect()
    }

    /// The median of a subject in a case, if it was measured.
    pub fn median(&self, case: &str, subject: &str) -> Option<Duration> {
        let rows = self.of_case(case);
        let row = rows.iter().find(|row| row.subject == subject)?;
        row.result.ok().map(|summary| summary.median)
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
    let upper = *times.get(times.len() / 2)?;
    let lower = times[(times.len() - 1) / 2];
    Some(Summary {
        median: (lower + upper) / 2,
        least: *times.first()?,
        most: *times.last()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn subjects_keep_their_order_and_their_medians() {
        let mut times = Times::default();
        for (subject, time) in [("b", 5), ("a", 1), ("b", 3), ("b", 9)] {
            times.add("case", subject, ms(time));
        }
        times.add("other", "a", Duration::ZERO);
        let of_case = times.of_case("case");
        let names: Vec<&str> = of_case.iter().map(|row| row.subject).collect();
        assert_eq!(names, ["b", "a"]);
        let (median, least, most) = (ms(5), ms(3), ms(9));
        let expected = Summary {
            median,
            least,
            most,
        };
        assert_eq!(of_case[0].result, Ok(expected));
        assert_eq!(times.cases(), ["case", "other"]);
    }

    #[test]
    fn the_median_of_an_even_number_of_times_is_between_the_two_in_the_middle() {
        let mut times = Times::default();
        for time in [40, 10, 1000, 20] {
            times.add("case", "a", ms(time));
        }
        assert_eq!(times.median("case", "a"), Some(ms(30)));
        assert_eq!(times.median("case", "b"), None);
    }

    #[test]
    fn who_is_absent_is_a_row_with_the_reason() {
        let mut times = Times::default();
        times.add("case", "jj", ms(1));
        times.absent("case", "jj", "not installed");
        assert_eq!(times.of_case("case")[0].result, Err("not installed"));
    }
}
