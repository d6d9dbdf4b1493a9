//! The bandwidth cap (`mbps`): a byte budget refilled every 20 ms, shared by all hardware queues.
//!
//! A request passes while the budget is above zero and may overdraw it; the next refills pay the debt. So a request
//! larger than one refill passes too, and the long-run rate is the cap to the byte. Unused budget is not saved beyond
//! one refill. There is no fairness between hardware queues: the first to ask after a refill is served first.

use blkmq_core::{Instant, Nanos};

/// Time between refills.
pub(super) const QUANTUM: Nanos = Nanos::from_millis(20);
/// Refills in a second.
const REFILLS: i64 = 50;

/// Counts in fiftieths of a byte, so that one refill of M MiB/s is a whole number: `M << 20` of them.
#[derive(Debug)]
pub(super) struct Bandwidth {
    refill: i64,
    left: i64,
    /// Quanta since the epoch up to which the budget is refilled.
    quantum: u64,
}

impl Bandwidth {
    /// A full budget of `mbps` MiB/s.
    ///
    /// # Panics
    /// If `mbps` is zero, which stands for no cap.
    pub(super) fn new(mbps: u32) -> Self {
        assert!(mbps > 0, "a cap of zero would never let anything through");
        let refill = i64::from(mbps) << 20;
        Self { refill, left: refill, quantum: 0 }
    }

    /// Pays for `bytes`, or returns the time when there will be budget again.
    pub(super) fn take(&mut self, now: Instant, bytes: u64) -> Result<(), Instant> {
        // Each hardware queue passes its own clock, so this may be a little earlier than in the call before.
        let quantum = now.as_nanos() / QUANTUM.0;
        let passed = quantum.saturating_sub(self.quantum);
        if passed > 0 {
            let refills = i64::try_from(passed).unwrap_or(i64::MAX).saturating_mul(self.refill);
            self.left = self.left.saturating_add(refills).min(self.refill);
            self.quantum = quantum;
        }
        if self.left > 0 {
            self.left -= bytes as i64 * REFILLS;
            return Ok(());
        }
        let missing = -self.left / self.refill + 1;
        Err(Instant::from_nanos((self.quantum + missing as u64) * QUANTUM.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Nanos::from_millis(ms)
    }

    #[test]
    fn a_refusal_names_the_first_refill_that_pays_the_debt() {
        // 1 MiB/s: 20971.52 bytes in a quantum.
        let mut cap = Bandwidth::new(1);
        assert_eq!(
            cap.take(at(0), 20_972),
            Ok(()),
            "the budget may be overdrawn by the last request"
        );
        assert_eq!(cap.take(at(1), 1), Err(at(20)));
        assert_eq!(cap.take(at(20), 60_000), Ok(()));
        // In debt by 39029 bytes: two refills make 41943.
        assert_eq!(cap.take(at(20), 1), Err(at(60)));
        assert_eq!(cap.take(at(59), 1), Err(at(60)));
        assert_eq!(cap.take(at(60), 1), Ok(()));
    }

    #[test]
    fn budget_is_not_saved_while_idle() {
        let mut cap = Bandwidth::new(1);
        let mut passed = 0;
        while cap.take(at(10_000), 512).is_ok() {
            passed += 512;
        }
        assert_eq!(passed, 20_971_u64.div_ceil(512) * 512);
    }

    #[test]
    fn a_queue_whose_clock_is_behind_gets_no_second_refill() {
        let mut cap = Bandwidth::new(1);
        assert_eq!(cap.take(at(40), 30_000), Ok(()));
        assert_eq!(cap.take(at(20), 1), Err(at(60)));
    }
}
