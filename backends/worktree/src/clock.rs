//! The clock that file times are compared with.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use rustix::time::{ClockId, Timespec, clock_getres, clock_gettime};

use crate::file_system_kind::{FileSystemKind, file_system_kind};
use crate::operation::Operation;
use crate::root::Root;
use crate::stat_cache::{EntryStat, is_racy};

/// The clock that file times are taken from: the kernel's coarse one, less what the file system
/// rounds.
///
/// A file whose time is not before what this says may be written again without its time changing.
#[derive(Debug)]
pub struct Clock {
    granularity_ns: i64,
    started_ns: i64,
    /// Whether every change of a directory's names changes its times.
    pub(crate) keeps_directory_times: bool,
}

impl Clock {
    /// A tick of the coarse clock lasts 10 ms at most, though a busy machine may be late with it.
    /// Far beyond, somebody has set the clock back.
    const MAX_TICK: Duration = Duration::from_millis(100);

    /// That of the file system which holds the workspace.
    pub fn of(root: &Root) -> Self {
        let kind = file_system_kind(root);
        Self {
            // FAT rounds to two seconds, and a network file system has a clock of its own.
            granularity_ns: match kind {
                FileSystemKind::Local | FileSystemKind::Overlay => 0,
                FileSystemKind::Other => 2_000_000_000,
            },
            started_ns: now_ns(ClockId::Realtime),
            keeps_directory_times: matches!(kind, FileSystemKind::Local),
        }
    }

    /// Nanoseconds since the Unix epoch.
    pub fn now_ns(&self) -> i64 {
        now_ns(ClockId::RealtimeCoarse).saturating_sub(self.granularity_ns)
    }

    /// Whether the file may have been changed since this clock was made.
    pub(crate) fn is_since(&self, stat: &EntryStat) -> bool {
        const MAX_LAG_NS: i64 = 100_000_000;
        stat.newest_ns() >= self.started_ns.saturating_sub(MAX_LAG_NS)
    }

    /// Whether the file may have been changed after `at`, by the precise clock: what is written
    /// gets a time that is up to a tick before that.
    pub fn may_be_after(&self, stat: &EntryStat, at: Timestamp) -> bool {
        let at_ns = i64::try_from(at.as_nanosecond()).unwrap_or(i64::MIN);
        let tick_ns = in_ns(clock_getres(ClockId::RealtimeCoarse));
        let lag_ns = tick_ns.saturating_add(self.granularity_ns);
        is_racy(stat, at_ns.saturating_sub(lag_ns))
    }

    /// Whether the times show that nothing was changed there after `at`, nor anything else renamed
    /// to there. Where times are rounded, or come from another machine, a rename need not show.
    pub fn shows_no_change_since(&self, stat: &EntryStat, at: Timestamp) -> bool {
        self.granularity_ns == 0 && !self.may_be_after(stat, at)
    }

    /// Waits until the tick in which `stat`'s file was written is over, so that what a capture
    /// finds out about it can be relied on by the next one. True if it was not over at `looked_ns`,
    /// when the file was looked at, and is by now.
    ///
    /// Only a file that was written before this clock was made is waited for: all the waiting of a
    /// capture together is one tick. One that was written later is being worked on.
    pub fn settle(&self, op: &Operation, stat: &EntryStat, looked_ns: i64) -> bool {
        let newest = stat.newest_ns();
        if newest < looked_ns || newest > self.started_ns || self.granularity_ns != 0 {
            return false;
        }
        let deadline = Instant::now() + Self::MAX_TICK;
        while newest >= self.now_ns() {
            if Instant::now() >= deadline || op.check().is_err() {
                return false;
            }
            std::thread::sleep(Duration::from_micros(500));
        }
        true
    }
}

/// Nanoseconds since the Unix epoch, by `clock`.
pub fn now_ns(clock: ClockId) -> i64 {
    in_ns(clock_gettime(clock))
}

fn in_ns(time: Timespec) -> i64 {
    time.tv_sec
        .saturating_mul(1_000_000_000)
        .saturating_add(time.tv_nsec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_have_been_written_in_the_tick_of_a_time_may_be_after_it() {
        let clock = Clock {
            granularity_ns: 0,
            started_ns: 0,
            keeps_directory_times: true,
        };
        let at = Timestamp::from_second(1_000).unwrap();
        let at_ns = 1_000_000_000_000;
        let tick_ns = in_ns(clock_getres(ClockId::RealtimeCoarse));
        let may_be = |mtime_ns, ctime_ns| {
            let stat = EntryStat {
                mtime_ns,
                ctime_ns,
                ..EntryStat::default()
            };
            clock.may_be_after(&stat, at)
        };
        let before = at_ns - tick_ns - 1;
        assert!(!may_be(before, before));
        // Either time tells.
        for later in [at_ns - tick_ns, at_ns - 1, at_ns, at_ns + 1] {
            assert!(may_be(before, later) && may_be(later, before), "{later}");
        }
        // Whole seconds alone are kept there.
        assert!(may_be(at_ns - 1_000_000_000, at_ns - 1_000_000_000));
        assert!(!may_be(at_ns - 2_000_000_000, at_ns - 2_000_000_000));
    }
}
