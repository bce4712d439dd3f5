//! Which engine holds a run, and until when.
//!
//! An engine that works on a run holds its lease and renews it. An engine that takes the run over
//! raises the lease's epoch. Every write for the run carries the writer's epoch, so an old owner
//! that comes back late cannot change anything.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use rustix::time::ClockId;
use stillframe_backends::PathError;

use crate::id::EngineId;

/// Where Linux says which start of the machine this is (random(4)).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A moment of this machine by the clock that nobody can set, and that goes on while it sleeps:
/// `CLOCK_BOOTTIME` of clock_gettime(2). It means something to every process of the machine until
/// its next start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    /// Which start of the machine.
    pub(crate) boot_id: String,
    /// Nanoseconds since then.
    pub(crate) nanoseconds: i64,
}

impl Moment {
    /// This one.
    pub(crate) fn now() -> Result<Self, PathError> {
        let path = Path::new(BOOT_ID);
        let boot_id = match fs::read_to_string(path) {
            Ok(text) => text.trim().to_owned(),
            // Without it a lease of before the last start of the machine looks like one of now, and
            // ends when its time is up, or at once where its owner's lock is free.
            Err(e) if e.kind() == io::ErrorKind::NotFound => String::new(),
            Err(e) => return Err(PathError::at("read", path)(e)),
        };
        let time = rustix::time::clock_gettime(ClockId::Boottime);
        Ok(Self {
            boot_id,
            nanoseconds: time
                .tv_sec
                .saturating_mul(1_000_000_000)
                .saturating_add(time.tv_nsec),
        })
    }

    /// The moment this long after it.
    pub(crate) fn after(&self, duration: Duration) -> Self {
        let nanoseconds = i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX);
        Self {
            boot_id: self.boot_id.clone(),
            nanoseconds: self.nanoseconds.saturating_add(nanoseconds),
        }
    }
}

/// Which engine holds a run, and until when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) owner: EngineId,
    /// How often the run was taken; the first is 1.
    pub(crate) epoch: u64,
    pub(crate) expires: Moment,
    /// When it was last renewed; for information only.
    pub(crate) heartbeat_at: Timestamp,
    /// When somebody asked for the run to be cancelled.
    pub(crate) cancel_requested_at: Option<Timestamp>,
}

impl Lease {
    /// The lease of a run that was taken from its engine, and that no engine holds since.
    pub(crate) fn of_nobody(owner: EngineId, epoch: u64, now: Moment, at: Timestamp) -> Self {
        Self {
            owner,
            epoch,
            expires: now,
            heartbeat_at: at,
            cancel_requested_at: None,
        }
    }

    /// Whether anybody may take the run. `is_alive`: whether the owner's process is there.
    pub(crate) fn is_free(&self, now: &Moment, is_alive: bool) -> bool {
        !is_alive
            || self.expires.boot_id != now.boot_id
            || self.expires.nanoseconds <= now.nanoseconds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(boot: &str, nanoseconds: i64) -> Moment {
        Moment {
            boot_id: boot.into(),
            nanoseconds,
        }
    }

    #[test]
    fn a_lease_is_free_once_its_owner_is_gone_or_its_time_is_up() {
        let lease = Lease {
            owner: EngineId::random(),
            epoch: 1,
            expires: moment("a", 100),
            heartbeat_at: Timestamp::UNIX_EPOCH,
            cancel_requested_at: None,
        };
        assert!(!lease.is_free(&moment("a", 99), true));
        assert!(lease.is_free(&moment("a", 99), false), "its owner is gone");
        assert!(lease.is_free(&moment("a", 100), true), "its time is up");
        assert!(
            lease.is_free(&moment("b", 1), true),
            "the machine was started again"
        );
    }

    #[test]
    fn moments_go_forwards() {
        let one = Moment::now().unwrap();
        let other = Moment::now().unwrap();
        assert_eq!(one.boot_id, other.boot_id);
        assert!(one.nanoseconds > 0 && one.nanoseconds <= other.nanoseconds);
        assert!(one.after(Duration::MAX).nanoseconds == i64::MAX);
    }
}
