//! The only file of the product that reads a clock.

#![expect(
    clippy::disallowed_methods,
    reason = "the rule that time is an argument has this one exception"
)]

use blkmq_core::Instant;
use std::time::{SystemTime, UNIX_EPOCH};

/// A monotonic clock whose epoch is its creation. Copies agree with each other.
///
/// A reading costs some 23 ns on the machines that the project was measured on, as much as a third of a
/// request's whole way through the engine: take one per batch.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    epoch: std::time::Instant,
}

impl Clock {
    /// Starts at zero.
    #[must_use]
    pub fn start() -> Self {
        Self { epoch: std::time::Instant::now() }
    }

    /// A clock that seems to have been started that many seconds ago.
    #[cfg(all(test, target_os = "linux"))]
    pub(crate) fn started_ago(seconds: u64) -> Self {
        let ago = std::time::Duration::from_secs(seconds);
        let epoch = std::time::Instant::now().checked_sub(ago);
        Self { epoch: epoch.expect("the machine runs for longer") }
    }

    /// The time since the epoch.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Instant {
        Instant::from_nanos(self.epoch.elapsed().as_nanos() as u64)
    }

    /// Sleeps until `at`; returns at once if that has passed, or if `at` is [`Instant::MAX`]. The kernel may add some
    /// 50 us.
    pub fn sleep_until(&self, at: Instant) {
        let left = at - self.now();
        if left.0 > 0 && at < Instant::MAX {
            std::thread::sleep(std::time::Duration::from_nanos(left.0));
        }
    }
}

/// Milliseconds since 1970, for the date on a report.
#[must_use]
pub fn wall_clock_millis() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_does_not_run_backwards_and_copies_agree() {
        let clock = Clock::start();
        let copy = clock;
        let readings = [clock.now(), copy.now(), clock.now()];
        assert!(readings.is_sorted());
    }
}
