//! Counts the requests that reach a hardware queue before a request that the policy had picked for it earlier.
//!
//! Each pick is numbered, and each arrival compared with the latest number that has arrived there. A request that the
//! device puts back is picked again and then has a new number; flushes have none, and are not counted.

use super::device::{DeviceWatch, Fate, Seen};
use super::policy::PolicyWatch;
use blkmq_core::{HwQueue, Instant, Op, RequestId};
use blkmq_sched::{Cx, Pick};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The count for one queue with one elevator; clones share it.
#[derive(Clone, Debug)]
pub struct Inversions(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// The number of the latest pick. One elevator at a time adds to it.
    picks: AtomicU64,
    /// The number of each request's pick, by request.
    numbers: Box<[AtomicU64]>,
    arrived: AtomicU64,
    inverted: AtomicU64,
}

impl Inversions {
    /// A counter for queues with up to `requests` requests.
    #[must_use]
    pub fn new(requests: usize) -> Self {
        Self(Arc::new(Shared {
            picks: AtomicU64::new(0),
            numbers: (0..requests).map(|_| AtomicU64::new(0)).collect(),
            arrived: AtomicU64::new(0),
            inverted: AtomicU64::new(0),
        }))
    }

    /// The number of requests that have arrived at the device, and how many of them arrived after a request that was
    /// picked later for the same hardware queue.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (self.0.arrived.load(Ordering::Relaxed), self.0.inverted.load(Ordering::Relaxed))
    }

    pub(super) fn beside_device(&self) -> impl DeviceWatch + use<> {
        Arrivals { shared: Arc::clone(&self.0), latest: 0 }
    }
}

// Orderings: the thread that hands a request to the device has it from the thread that picked it, and so sees its
// number.
impl PolicyWatch for Inversions {
    fn asked(&mut self, _: &Cx<'_>, _: HwQueue, answer: Pick) {
        if let Pick::Issue(rq) = answer {
            let number = self.0.picks.fetch_add(1, Ordering::Relaxed) + 1;
            self.number(rq).store(number, Ordering::Relaxed);
        }
    }
}

impl Inversions {
    fn number(&self, rq: RequestId) -> &AtomicU64 {
        self.0
            .numbers
            .get(rq.index())
            .expect("a queue has no more requests than it was said to have")
    }
}

/// The observer beside one hardware queue.
struct Arrivals {
    shared: Arc<Shared>,
    /// The highest number so far.
    latest: u64,
}

impl DeviceWatch for Arrivals {
    fn issued(&mut self, _: Instant, rq: &Seen) {
        if rq.op == Op::Flush {
            return;
        }
        let number = self.shared.numbers[rq.id.index()].load(Ordering::Relaxed);
        self.shared.arrived.fetch_add(1, Ordering::Relaxed);
        if number < self.latest {
            self.shared.inverted.fetch_add(1, Ordering::Relaxed);
        }
        self.latest = self.latest.max(number);
    }

    fn returned(&mut self, _: Instant, _: &Seen, _: Fate) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq_core::IoFlags;

    fn seen(id: usize) -> Seen {
        let id = RequestId::new(id as u32, 0);
        Seen { id, op: Op::Read, flags: IoFlags::NONE, sector: 0, sectors: 8 }
    }

    #[test]
    fn a_request_is_inverted_if_a_later_one_came_first() {
        let all = Inversions::new(8);
        for (number, rq) in [4, 2, 0, 1].into_iter().enumerate() {
            all.number(seen(rq).id).store(number as u64 + 1, Ordering::Relaxed);
        }
        let mut here = all.beside_device();
        // Picked as 4 2 0 1, arrived as 4 0 2 1: one inversion. Each hardware queue counts separately.
        for rq in [4, 0, 2, 1] {
            here.issued(Instant::ZERO, &seen(rq));
        }
        assert_eq!(all.counts(), (4, 1));
        let mut there = all.beside_device();
        there.issued(Instant::ZERO, &seen(4));
        assert_eq!(all.counts(), (5, 1));
        there.issued(Instant::ZERO, &Seen { op: Op::Flush, ..seen(7) });
        assert_eq!(all.counts(), (5, 1));
    }
}
