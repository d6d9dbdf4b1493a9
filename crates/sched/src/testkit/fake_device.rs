//! The simplest device with a latency that depends on its load.

use alloc::vec;
use alloc::vec::Vec;
use blkmq_core::{Instant, Nanos};

/// A device that works on a fixed number of requests at a time, and on the others in the order of their arrival.
///
/// Latency over depth is then flat up to that number of ways, and proportional to depth above it.
pub struct FakeDevice {
    /// The time at which each way will be free.
    free: Vec<Instant>,
}

impl FakeDevice {
    /// A device with this many ways.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn new(ways: usize) -> Self {
        assert!(ways > 0, "a device without a way never finishes anything");
        Self { free: vec![Instant::ZERO; ways] }
    }

    /// Accepts a request that takes `service` once its turn has come, and returns its finishing time. `now` is never
    /// earlier than in the previous call. O(ways).
    pub fn accept(&mut self, now: Instant, service: Nanos) -> Instant {
        let first = self.free.iter_mut().min().expect("there is a way");
        *first = (*first).max(now) + service;
        *first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_is_flat_as_far_as_the_ways_and_grows_from_there() {
        let mut device = FakeDevice::new(4);
        let mut latencies = |n| -> Vec<u64> {
            let now = Instant::from_nanos(1_000);
            (0..n).map(|_| (device.accept(now, Nanos(10)) - now).0).collect()
        };
        assert_eq!(latencies(4), [10; 4]);
        assert_eq!(latencies(6), [20, 20, 20, 20, 30, 30]);
        let late = Instant::from_nanos(5_000);
        assert_eq!(device.accept(late, Nanos(10)) - late, Nanos(10));
    }
}
