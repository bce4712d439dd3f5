//! How long a run is worked on, without the time in which it only waits for people.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// Counts the time of work. It stands still while the run does nothing but wait for an answer.
#[derive(Debug)]
pub(crate) struct WorkClock(watch::Sender<Worked>);

#[derive(Clone, Copy, Debug)]
struct Worked {
    before: Duration,
    /// Since when it goes; `None`: it stands still.
    since: Option<Instant>,
}

impl Worked {
    fn until_now(&self) -> Duration {
        let now = self.since.map(|since| since.elapsed());
        self.before.saturating_add(now.unwrap_or_default())
    }
}

impl WorkClock {
    /// One that goes from now on.
    pub(crate) fn started() -> Self {
        Self(watch::Sender::new(Worked {
            before: Duration::ZERO,
            since: Some(Instant::now()),
        }))
    }

    /// Has it go, or stand still.
    pub(crate) fn go(&self, goes: bool) {
        self.0.send_if_modified(|worked| {
            let moves = worked.since.is_some() != goes;
            if moves {
                *worked = Worked {
                    before: worked.until_now(),
                    since: goes.then(Instant::now),
                };
            }
            moves
        });
    }

    /// How long was worked.
    pub(crate) fn worked(&self) -> Duration {
        self.0.borrow().until_now()
    }

    /// Comes back once so much was worked.
    pub(crate) async fn reaches(&self, limit: Duration) {
        let mut moves = self.0.subscribe();
        loop {
            let worked = *moves.borrow_and_update();
            let left = limit.saturating_sub(worked.until_now());
            if left.is_zero() {
                return;
            }
            let time_is_up = async {
                match worked.since {
                    Some(_) => tokio::time::sleep(left).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = time_is_up => {}
                // The sender is here, so it cannot be gone.
                _ = moves.changed() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_counts_only_while_it_goes() {
        let second = Duration::from_secs(1);
        let clock = WorkClock::started();
        tokio::time::sleep(10 * second).await;
        clock.go(false);
        clock.go(false);
        tokio::time::sleep(1000 * second).await;
        assert_eq!(clock.worked(), 10 * second);
        let reaches = clock.reaches(15 * second);
        tokio::pin!(reaches);
        let waits = tokio::time::timeout(1000 * second, &mut reaches).await;
        assert!(waits.is_err(), "it stands still");
        clock.go(true);
        let began = Instant::now();
        reaches.await;
        let took = began.elapsed();
        assert!(took >= 5 * second && took < 6 * second, "{took:?}");
        clock.reaches(15 * second).await;
    }
}
