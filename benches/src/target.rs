//! What is to be reached, as ratios within one run.

use crate::case::*;
use crate::measure::Times;

/// A part of another's time that is not to be passed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Target {
    /// The case.
    pub case: &'static str,
    /// Whose time it is a part of: what the subject's name begins with.
    pub against: &'static str,
    /// The highest ratio.
    pub most: f64,
    /// The number of files for which it is meant.
    pub files: usize,
}

/// Whether a target is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The ratio is at most that.
    Reached,
    /// It is more.
    NotReached,
    /// It is meant for another number of files.
    OtherSize,
}

const M: usize = 100_000;
const L: usize = 500_000;

/// Every ratio that is to be reached. Where less was asked at first, `docs/benchmarks` says why no
/// design reaches it.
pub const TARGETS: &[Target] = &[
    target(FIRST, COMMON_WAY, 0.095, M),
    target(FIRST, COPIED_INDEX, 1.0, M),
    target(AFTER, COMMON_WAY, 1.0 / 28.0, M),
    target(AFTER_FRESH, COMMON_WAY, 1.0 / 28.0, M),
    target(AFTER, PERSISTENT_INDEX, 0.30, M),
    target(AFTER_FRESH, PERSISTENT_INDEX, 0.30, M),
    target(AFTER, FLOOR, 1.40, M),
    target(AFTER_FRESH, FLOOR, 1.40, M),
    target(UNCHANGED, FLOOR, 1.10, M),
    target(UNCHANGED, FLOOR, 1.10, L),
    target(UNCHANGED_FRESH, FLOOR, 1.10, M),
    target(UNCHANGED_FRESH, FLOOR, 1.10, L),
    target(AFTER_WATCHED, FLOOR, 0.28, M),
    target(AFTER_WATCHED, FLOOR, 0.065, L),
    target(UNCHANGED_WATCHED, FLOOR, 0.005, L),
    target(NEW_FILES, PERSISTENT_INDEX, 0.29, M),
    target(DIFF_1700, DIFF_TREE, 0.68, M),
    target(APPLY_1700, READ_TREE, 0.40, M),
    target(HASH_FIRST, B3SUM, 0.52, M),
    target(HASH_FIRST, BLAKE3, 0.60, M),
    target(HASH_FIRST, READING, 2.1, M),
    target(HASH_UNCHANGED, FLOOR, 1.10, M),
    target(HASH_UNCHANGED, RESTIC, 1.0 / 30.0, M),
    target(CHECKPOINT, CAPTURE_AND_PUSH, 1.5, M),
    target(RESUME, FAST_FORWARD, 1.0, M),
    target(WORKTREE, WORKTREE_ADD, 0.7, M),
    target(FIRST_STATUS, STATUS_AGAIN, 1.1, M),
];

/// How much longer than at 100,000 files the case [`AFTER_WATCHED`] may take at 500,000.
pub const MOST_GROWTH_WATCHED: f64 = 1.2;

const fn target(case: &'static str, against: &'static str, most: f64, files: usize) -> Target {
    Target {
        case,
        against,
        most,
        files,
    }
}

impl Target {
    /// The target of a row with `files` files: the one for that number, else one for another.
    pub fn of(case: &str, subject: &str, files: usize) -> Option<Self> {
        let meant = |t: &&Self| t.case == case && subject.starts_with(t.against);
        let exact = TARGETS.iter().filter(meant).find(|t| t.files == files);
        exact.or_else(|| TARGETS.iter().find(meant)).copied()
    }

    /// Judges a ratio that was measured with `files` files.
    pub fn verdict(&self, ratio: f64, files: usize) -> Verdict {
        match (files == self.files, ratio <= self.most) {
            (false, _) => Verdict::OtherSize,
            (true, true) => Verdict::Reached,
            (true, false) => Verdict::NotReached,
        }
    }
}

/// What part of the subject's time ours is, by medians. `None` where one is not measured, and for
/// ourselves and our parts.
pub fn ratio(times: &Times, case: &str, subject: &str) -> Option<f64> {
    if subject.starts_with(OURS) {
        return None;
    }
    let theirs = times.median(case, subject)?.as_secs_f64();
    let ours = times.median(case, OURS)?.as_secs_f64();
    (theirs > 0.0).then_some(ours / theirs)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_ratio_is_ours_divided_by_theirs() {
        let mut times = Times::default();
        times.add("case", OURS, Duration::from_millis(10));
        times.add("case", "git", Duration::from_millis(40));
        times.absent("case", "jj", "not installed");
        assert_eq!(ratio(&times, "case", "git"), Some(0.25));
        assert_eq!(ratio(&times, "case", "jj"), None);
        assert_eq!(ratio(&times, "case", OURS), None);
        assert_eq!(ratio(&times, "other", "git"), None);
    }

    #[test]
    fn a_verdict_is_given_at_the_size_that_the_target_is_for() {
        let target = Target::of(AFTER_WATCHED, "floor, 2 threads", 500_000).unwrap();
        assert_eq!((target.most, target.files), (0.065, 500_000));
        assert_eq!(target.verdict(0.065, 500_000), Verdict::Reached);
        assert_eq!(target.verdict(0.066, 500_000), Verdict::NotReached);
        assert_eq!(target.verdict(0.001, 2_000), Verdict::OtherSize);
        let other = Target::of(AFTER_WATCHED, "floor, 16 threads", 2_000).unwrap();
        assert_eq!(other.most, 0.28);
        assert_eq!(Target::of(AFTER_WATCHED, COMMON_WAY, 500_000), None);
    }
}
