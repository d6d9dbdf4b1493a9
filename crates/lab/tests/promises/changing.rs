//! A device that is replaced, or stops answering for a while, in the middle of a run.

use blkmq_core::{Instant, Payload};
use blkmq_engine::{BioTable, DeviceQueue, Enqueued, Finished, Inflight};

/// A hardware queue of one device until an instant, and of another one from then on. Requests that the first one holds
/// at that time are still answered.
pub struct Changing<P> {
    pub queues: [Box<dyn DeviceQueue<P>>; 2],
    pub at: Instant,
}

impl<P: Payload> DeviceQueue<P> for Changing<P> {
    fn enqueue(&mut self, now: Instant, bios: &BioTable<P>, rq: Inflight) -> Enqueued {
        self.queues[usize::from(now >= self.at)].enqueue(now, bios, rq)
    }

    fn commit(&mut self, now: Instant) {
        self.queues.iter_mut().for_each(|queue| queue.commit(now));
    }

    fn reap(&mut self, now: Instant, bios: &BioTable<P>, out: &mut Vec<Finished>) {
        self.queues.iter_mut().for_each(|queue| queue.reap(now, bios, out));
    }

    fn next_event(&self) -> Option<Instant> {
        self.queues.iter().filter_map(|queue| queue.next_event()).min()
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        self.queues.iter_mut().for_each(|queue| queue.abandon(out));
    }
}

/// A hardware queue that does not answer between two instants.
pub struct Stalling<P> {
    pub inside: Box<dyn DeviceQueue<P>>,
    pub from: Instant,
    pub to: Instant,
    pub now: Instant,
}

impl<P: Payload> Stalling<P> {
    fn stalls(&self, at: Instant) -> bool {
        (self.from..self.to).contains(&at)
    }
}

impl<P: Payload> DeviceQueue<P> for Stalling<P> {
    fn enqueue(&mut self, now: Instant, bios: &BioTable<P>, rq: Inflight) -> Enqueued {
        self.inside.enqueue(now, bios, rq)
    }

    fn commit(&mut self, now: Instant) {
        self.inside.commit(now);
    }

    fn reap(&mut self, now: Instant, bios: &BioTable<P>, out: &mut Vec<Finished>) {
        self.now = now;
        if !self.stalls(now) {
            self.inside.reap(now, bios, out);
        }
    }

    fn next_event(&self) -> Option<Instant> {
        let next = self.inside.next_event()?;
        Some(if self.stalls(next.max(self.now)) { self.to } else { next })
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        self.inside.abandon(out);
    }
}
