//! Recalibrations: from time to time the arm calibrates itself, and all commands wait.
//!
//! Their times are drawn from a seed, between half the mean interval and one and a half. A recalibration that falls
//! into an idle time of the arm delays no command, unless one comes while it lasts.

use blkmq_core::{Instant, Nanos, Rng};

/// The times of recalibrations.
#[derive(Debug)]
pub(super) struct Stalls {
    next: Instant,
    /// The mean interval.
    interval: Nanos,
    takes: Nanos,
    rng: Rng,
}

impl Stalls {
    /// A recalibration every `interval` on average, of `takes` each.
    pub(super) fn new(interval: Nanos, takes: Nanos, seed: u64) -> Self {
        let mut stalls = Self { next: Instant::ZERO, interval, takes, rng: Rng::new(seed) };
        stalls.draw(Instant::ZERO);
        stalls
    }

    fn draw(&mut self, from: Instant) {
        self.next = from + Nanos(self.interval.0 / 2 + self.rng.below(self.interval.0));
    }

    /// The arm, idle since `since`, is needed at `at`: returns the end of a recalibration that keeps it busy then, if
    /// there is one.
    pub(super) fn strike(&mut self, since: Instant, at: Instant) -> Option<Instant> {
        if self.next > at {
            return None;
        }
        let end = self.next.max(since) + self.takes;
        self.draw(end.max(at));
        (end > at).then_some(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_strike_as_often_as_they_should() {
        let (interval, takes) = (Nanos::from_secs(1), Nanos::from_millis(50));
        let mut stalls = Stalls::new(interval, takes, 3);
        let (mut at, mut strikes) = (Instant::ZERO, 0);
        while at < Instant::ZERO + Nanos::from_secs(1000) {
            let since = at;
            at += Nanos::from_millis(1);
            if let Some(end) = stalls.strike(since, at) {
                assert!(end > at && end - at <= takes);
                at = end;
                strikes += 1;
            }
        }
        assert!((900..1000).contains(&strikes), "{strikes} in 1000 s");
    }

    #[test]
    fn one_in_idle_time_is_not_noticed() {
        let mut stalls = Stalls::new(Nanos::from_secs(1), Nanos::from_millis(50), 3);
        let late = Instant::ZERO + Nanos::from_secs(100);
        assert_eq!(stalls.strike(Instant::ZERO, late), None);
        assert!(stalls.next > late);
    }
}
