//! A device with observers beside it, which see the requests that it is given and gives back, and change nothing.

use blkmq_core::{Instant, IoResult, Tag};
use blkmq_engine::DeviceQueues;
use blkmq_engine::{BioTable, DeviceQueue, Enqueued, Expiry, Finished, Inflight, Verdict};
#[cfg(target_os = "linux")]
use std::os::fd::BorrowedFd;

/// The fate of a request at its device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// It has ended.
    Ended(IoResult),
    /// It will be issued again.
    Again,
}

/// An observer beside a device.
pub(crate) trait DeviceWatch: Send {
    /// The device has taken a request.
    fn issued(&mut self, now: Instant, rq: &Seen);
    /// The device has returned a request.
    fn returned(&mut self, now: Instant, rq: &Seen, fate: Fate);
}

/// A request as observers see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) id: blkmq_core::RequestId,
    pub(crate) op: blkmq_core::Op,
    pub(crate) flags: blkmq_core::IoFlags,
    pub(crate) sector: u64,
    pub(crate) sectors: u32,
}

impl From<&Inflight> for Seen {
    fn from(rq: &Inflight) -> Self {
        Self {
            id: rq.id(),
            op: rq.op(),
            flags: rq.flags(),
            sector: rq.sector(),
            sectors: rq.sectors(),
        }
    }
}

/// Puts observers beside each of `queues`; `watches` makes them. The engine tries a failed request `retries` times
/// again.
pub(crate) fn watched<P: Send + 'static>(
    queues: DeviceQueues<P>,
    retries: u8,
    watches: impl Fn() -> Vec<Box<dyn DeviceWatch>>,
) -> DeviceQueues<P> {
    let watch =
        |inner| Box::new(Watched { inner, retries, watches: watches() }) as Box<dyn DeviceQueue<P>>;
    queues.into_iter().map(watch).collect()
}

struct Watched<P> {
    inner: Box<dyn DeviceQueue<P>>,
    retries: u8,
    watches: Vec<Box<dyn DeviceWatch>>,
}

impl<P> Watched<P> {
    fn issued(&mut self, now: Instant, rq: &Seen) {
        self.watches.iter_mut().for_each(|watch| watch.issued(now, rq));
    }

    fn returned(&mut self, now: Instant, rq: &Inflight, verdict: Verdict) {
        let fate = match verdict {
            Verdict::Done(Err(error)) if error.is_retryable() && rq.retries() < self.retries => {
                Fate::Again
            }
            Verdict::Done(result) => Fate::Ended(result),
            Verdict::Requeue | Verdict::RequeueTail => Fate::Again,
        };
        let seen = Seen::from(rq);
        self.watches.iter_mut().for_each(|watch| watch.returned(now, &seen, fate));
    }
}

impl<P: Send> DeviceQueue<P> for Watched<P> {
    fn enqueue(&mut self, now: Instant, bios: &BioTable<P>, rq: Inflight) -> Enqueued {
        let seen = Seen::from(&rq);
        let answer = self.inner.enqueue(now, bios, rq);
        match &answer {
            Enqueued::Accepted => self.issued(now, &seen),
            Enqueued::Done(rq, result) => {
                self.issued(now, &seen);
                self.returned(now, rq, Verdict::Done(*result));
            }
            Enqueued::Busy(..) => {}
        }
        answer
    }

    fn commit(&mut self, now: Instant) {
        self.inner.commit(now);
    }

    fn reap(&mut self, now: Instant, out: &mut Vec<Finished>) {
        let before = out.len();
        self.inner.reap(now, out);
        for Finished { rq, verdict } in &out[before..] {
            self.returned(now, rq, *verdict);
        }
    }

    fn timed_out(&mut self, now: Instant, tag: Tag) -> Expiry {
        let answer = self.inner.timed_out(now, tag);
        if let Expiry::Done(rq, result) = &answer {
            self.returned(now, rq, Verdict::Done(*result));
        }
        answer
    }

    fn next_event(&self) -> Option<Instant> {
        self.inner.next_event()
    }

    #[cfg(target_os = "linux")]
    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.event_fd()
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        self.inner.abandon(out);
    }
}
