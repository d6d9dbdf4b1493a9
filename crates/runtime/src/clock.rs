//! The only file of the product that reads a clock.

#![expect(
    clippy::disallowed_methods,
    reason = "the rule that time is an argument has this one exception"
)]

use blkmq_core::Instant;
use std::time::{SystemTime, UNIX_EPOCH};

/// A monotonic clock whose epoch is its creation. Copies agree with each other.
///
/// A reading costs about as much as a third of a request's whole path through the engine: take one per batch.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// In nanoseconds of the machine's clock.
    epoch: u64,
}

/// Nanoseconds of the machine's monotonic clock. `std::time::Instant` reads the same clock, but takes 50 instructions
/// to subtract two readings, because it keeps seconds and nanoseconds apart.
#[cfg(all(target_os = "linux", not(all(test, shuttle))))]
#[inline]
fn nanos() -> u64 {
    // Unlike `expect`, does not link the names of all errors into each program.
    let Ok(time) = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC) else {
        unreachable!("every Linux has this clock")
    };
    // The clock starts with the machine, so neither part is negative and the sum fits for 584 years.
    time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
}

/// Nanoseconds of the model.
#[cfg(all(test, shuttle))]
fn nanos() -> u64 {
    crate::port::model::world().now().as_nanos()
}

/// Nanoseconds since the first call.
#[cfg(not(target_os = "linux"))]
fn nanos() -> u64 {
    static FIRST: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    FIRST.get_or_init(std::time::Instant::now).elapsed().as_nanos() as u64
}

impl Clock {
    /// Starts at zero.
    #[must_use]
    pub fn start() -> Self {
        Self { epoch: nanos() }
    }

    /// A clock that seems to have started that many seconds ago. The machine must have been running for longer.
    #[cfg(all(test, target_os = "linux", not(shuttle)))]
    pub(crate) fn started_ago(seconds: u64) -> Self {
        let epoch = nanos().checked_sub(seconds * 1_000_000_000);
        Self { epoch: epoch.expect("the machine has run for longer") }
    }

    /// The time since the epoch.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Instant {
        // Zero if a reading on another processor precedes the epoch, as with `Instant`.
        Instant::from_nanos(nanos().saturating_sub(self.epoch))
    }

    /// Sleeps until `at`; returns immediately if that has passed, or if `at` is [`Instant::MAX`]. The kernel may add
    /// some 50 us.
    pub fn sleep_until(&self, at: Instant) {
        let left = at - self.now();
        if left.0 > 0 && at < Instant::MAX {
            #[cfg(not(all(test, shuttle)))]
            std::thread::sleep(std::time::Duration::from_nanos(left.0));
            #[cfg(all(test, shuttle))]
            crate::port::model::world().compute(left);
        }
    }
}

/// Milliseconds since 1970, for the date on a report.
#[must_use]
pub fn wall_clock_millis() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}

#[cfg(test)]
#[cfg(not(shuttle))]
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
