//! Wakers (`spec/bfq.md` section 12): a process may wait for the I/O of another process before it continues.
//!
//! A queue with a long think time that becomes non-empty right after a completion of the same other queue, three times in
//! a row, is woken by that queue. While the device is kept idle for it, requests of its waker are injected, as that is
//! the shortest way on.

use super::QueueRef;
use blkmq_core::{Instant, Nanos};

/// A request that arrives sooner than this after a completion may be caused by it.
pub(super) const SOON: Nanos = Nanos::from_millis(4);
/// The number of consecutive times from which a waker is no coincidence.
const OFTEN: u32 = 3;
/// Within this many times `slice_idle`.
const WINDOW: u64 = 128;

/// The waker of a queue, and the queue that it wakes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waker {
    pub(super) queue: Option<QueueRef>,
    suspect: Option<QueueRef>,
    seen: u32,
    since: Instant,
    /// The queue that it was last found to wake.
    pub(super) woken: Option<QueueRef>,
}

impl Waker {
    pub(super) const fn new(now: Instant) -> Self {
        Self { queue: None, suspect: None, seen: 0, since: now, woken: None }
    }

    /// The queue became non-empty right after a completion of `suspect`. Returns whether `suspect` is its waker now.
    pub(super) fn suspect(&mut self, suspect: QueueRef, now: Instant, slice_idle: Nanos) -> bool {
        let window = Nanos(slice_idle.0.saturating_mul(WINDOW));
        if self.suspect != Some(suspect) || now > self.since + window {
            (self.suspect, self.seen, self.since) = (Some(suspect), 1, now);
        } else {
            self.seen += 1;
        }
        if self.seen < OFTEN {
            return false;
        }
        (self.queue, self.suspect) = (Some(suspect), None);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::queues::Queues;
    use super::super::tests::{add_queue, with_a_queue};
    use super::*;

    #[test]
    fn a_queue_that_thinks_for_long_and_has_no_other_request_may_be_woken() {
        let seen = |short_think, queued, dispatched| {
            let (mut bfq, q) = with_a_queue("");
            let other = add_queue(&mut bfq);
            bfq.device.last_completed = Some(bfq.queues.link(other));
            let queue = &mut bfq.queues[q];
            (queue.short_think, queue.queued, queue.dispatched) = (short_think, queued, dispatched);
            bfq.queues.look_for_waker(q, &bfq.device, bfq.now, bfq.tunables.slice_idle);
            bfq.queues[q].waker.seen
        };
        assert_eq!([seen(false, 0, 0), seen(true, 0, 0)], [1, 0]);
        assert_eq!([seen(false, 1, 0), seen(false, 0, 1)], [0, 0]);
    }

    #[test]
    fn three_times_in_a_row_and_within_the_window() {
        let mut queues = Queues::new(2);
        let links = [0; 2].map(|_| {
            let q = queues.add(Instant::ZERO);
            queues.link(q)
        });
        let slice = Nanos::from_millis(8);
        let at = |ms| Instant::ZERO + Nanos::from_millis(ms);
        let mut waker = Waker::new(Instant::ZERO);
        assert!(!waker.suspect(links[0], at(0), slice));
        assert!(!waker.suspect(links[1], at(10), slice), "another one");
        assert!(!waker.suspect(links[0], at(20), slice));
        assert!(!waker.suspect(links[0], at(30), slice));
        assert!(!waker.suspect(links[0], at(1_045), slice), "too late: it begins anew");
        assert!(!waker.suspect(links[0], at(1_050), slice));
        assert!(waker.suspect(links[0], at(1_060), slice));
        assert_eq!(waker.queue, Some(links[0]));
        let mut waker = Waker::new(Instant::ZERO);
        let found = [0, 500, 1_024].map(|ms| waker.suspect(links[0], at(ms), slice));
        assert_eq!(found, [false, false, true], "at the end of the window");
    }
}
