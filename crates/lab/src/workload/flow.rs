//! A share of the I/Os that several threads do together: fio's `flow`.
//!
//! The threads of one flow have weights. A thread that has done a larger share of the I/Os than its weight is of all
//! weights waits for the others. A thread that ends takes its weight and its I/Os with it. The counts say how much
//! work was done and protect no memory; a thread that reads them late issues an I/O more or less.

use blkmq_core::Nanos;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// `flow` and its companions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flow {
    /// `flow`: the weight of each thread of the job, at least 1.
    pub weight: u32,
    /// `flow_id`: jobs with the same number share.
    pub id: u32,
    /// `flow_sleep`: the time after which a thread that is ahead looks again.
    pub sleep: Nanos,
}

/// The least time after which a thread that is ahead looks again; fio's threads spin.
const LOOK: Nanos = Nanos::from_micros(1);

/// The I/Os and weights of all threads of a flow. Clones are the same flow.
#[derive(Clone, Debug, Default)]
pub struct FlowPool(Arc<Sums>);

#[derive(Debug, Default)]
struct Sums {
    ios: AtomicU64,
    weight: AtomicU64,
}

impl FlowPool {
    /// The share of one more thread.
    #[must_use]
    pub fn join(&self, flow: Flow) -> FlowShare {
        self.0.weight.fetch_add(flow.weight.into(), Ordering::Relaxed);
        let look = flow.sleep.max(LOOK);
        FlowShare { sums: Arc::clone(&self.0), weight: flow.weight.into(), look, ios: 0 }
    }
}

/// One thread's share. Dropping it leaves the flow.
#[derive(Debug)]
pub struct FlowShare {
    sums: Arc<Sums>,
    weight: u64,
    look: Nanos,
    ios: u64,
}

impl FlowShare {
    /// The time to wait if this thread is ahead of the others; `None` if it may continue. There is always a
    /// thread that may continue.
    pub(super) fn hold(&self) -> Option<Nanos> {
        let (ios, weight) = (&self.sums.ios, &self.sums.weight);
        let all = u128::from(ios.load(Ordering::Relaxed));
        let weights = u128::from(weight.load(Ordering::Relaxed));
        (u128::from(self.ios) * weights > u128::from(self.weight) * all).then_some(self.look)
    }

    /// The thread has issued an I/O.
    pub(super) fn count(&mut self) {
        self.ios += 1;
        self.sums.ios.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for FlowShare {
    fn drop(&mut self) {
        self.sums.ios.fetch_sub(self.ios, Ordering::Relaxed);
        self.sums.weight.fetch_sub(self.weight, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(weight: u32) -> Flow {
        Flow { weight, id: 0, sleep: Nanos::ZERO }
    }

    /// Threads that always want to issue, in turn; the I/Os that each issues in `turns` turns.
    fn issued(shares: &mut [FlowShare], turns: u32) -> Vec<u64> {
        for _ in 0..turns {
            let before = shares.iter().filter(|share| share.hold().is_none()).count();
            assert!(before > 0, "all of them wait");
            for share in shares.iter_mut() {
                if share.hold().is_none() {
                    share.count();
                }
            }
        }
        shares.iter().map(|share| share.ios).collect()
    }

    #[test]
    fn shares_are_those_of_the_weights() {
        let pool = FlowPool::default();
        let mut shares = Vec::from_iter([1, 2, 5].map(|weight| pool.join(flow(weight))));
        let ios = issued(&mut shares, 10_000);
        for (ios, weight) in ios.iter().zip([1, 2, 5]) {
            assert!((ios / weight).abs_diff(ios.div_ceil(weight)) <= 1);
            assert!((ios / weight).abs_diff(shares[0].ios) <= 2, "{ios} for a weight of {weight}");
        }
    }

    #[test]
    fn a_thread_that_ends_holds_no_other_back() {
        let pool = FlowPool::default();
        let mut shares = Vec::from_iter([1, 1, 2].map(|weight| pool.join(flow(weight))));
        issued(&mut shares, 100);
        shares.truncate(2);
        let before = [shares[0].ios, shares[1].ios];
        let after = issued(&mut shares, 100);
        assert!(after.iter().zip(before).all(|(after, before)| after - before >= 99));
        shares.truncate(1);
        assert_eq!(shares[0].hold(), None, "alone");
    }
}
