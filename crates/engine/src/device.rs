//! The port that a device implements: one [`DeviceQueue`] per hardware queue.
//!
//! A device sees requests in the order in which the elevator chose them, one hardware queue at a time, and
//! is told the time. It never blocks, never calls back into the queue, and answers every request once.

use crate::{BioTable, Inflight};
use blkmq_core::{Instant, IoResult, Limits, Nanos, Tag};
#[cfg(target_os = "linux")]
use std::os::fd::BorrowedFd;

/// How long a device may keep a request unless it says otherwise (`spec/framework.md` section 1).
pub const DEFAULT_TIMEOUT: Nanos = Nanos::from_secs(30);

/// What a device says about itself when a queue is built around it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceShape {
    /// Hardware queues.
    pub hw_queues: u16,
    /// Driver tags per hardware queue, or in all if they are shared.
    pub hw_queue_depth: u32,
    /// One set of driver tags for all hardware queues (`shared_tag_bitmap`).
    pub shared_tags: bool,
    /// How many requests may have left the elevators at once, over all hardware queues, before any of them
    /// has a driver tag. `None`: the device has no budgets.
    pub budget: Option<u32>,
    /// What fits into a request.
    pub limits: Limits,
    /// When what was written is durable.
    pub cache: WriteCache,
    /// How long it may keep a request before it is asked about it with
    /// [`timed_out`](DeviceQueue::timed_out); [`DEFAULT_TIMEOUT`] as a rule. Not zero. `Nanos(u64::MAX)` is for
    /// ever.
    pub timeout: Nanos,
}

impl DeviceShape {
    /// The name of the scheduler that Linux gives such a device: `mq-deadline` for one hardware queue or shared tags,
    /// `none` for several hardware queues (`spec/framework.md` section 11).
    #[must_use]
    pub fn default_scheduler(&self) -> &'static str {
        if self.hw_queues == 1 || self.shared_tags { "mq-deadline" } else { "none" }
    }
}

/// The device's write cache, which decides about what flushes and [`FUA`](blkmq_core::IoFlags::FUA) take
/// (`spec/framework.md` section 12). The two values of sysfs `queue/write_cache`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WriteCache {
    /// None, or none that forgets: a write is durable when it is done. The device gets no flushes; bare ones
    /// are answered at once, and flags on data that ask for one mean nothing.
    #[default]
    Through,
    /// A volatile one: a write is durable when a flush is done that began after the write was. Any hardware
    /// queue may be given the flush, and it has to cover what was written through all of them.
    Back {
        /// The device makes a write with `FUA` durable by itself, and every other operation that it may come
        /// with. If not, a flush follows.
        fua: bool,
    },
}

/// One hardware queue of a device, owned by one pump: `&mut self` throughout, no locks.
///
/// # Contract
///
/// Calls come in the order: any number of [`enqueue`](Self::enqueue), one [`commit`](Self::commit) if any
/// was accepted, one [`reap`](Self::reap), one [`timed_out`](Self::timed_out) for each request whose time is
/// up and that `reap` did not bring. `now` never runs backwards between calls. Every [`Inflight`] taken comes
/// back exactly once: from `enqueue`, `reap`, `timed_out` or [`abandon`](Self::abandon).
pub trait DeviceQueue<P>: Send {
    /// Take a request, finish it on the spot, or give it back for lack of room. The bios of the request
    /// are read through `bios`; they stay in place until the token comes back.
    fn enqueue(&mut self, now: Instant, bios: &BioTable<P>, rq: Inflight) -> Enqueued;

    /// Ring the doorbell for everything accepted since the last time.
    fn commit(&mut self, _now: Instant) {}

    /// Move what has finished by `now` into `out`. Never blocks.
    fn reap(&mut self, now: Instant, out: &mut Vec<Finished>);

    /// The request with this tag was accepted [`timeout`](DeviceShape::timeout) ago, or its timer was reset
    /// that long ago, and it has not come back. Called once for each time that this happens.
    ///
    /// A device that can take it back does, and answers [`Expiry::Done`]; from then on it knows nothing of it.
    /// One that cannot, because hardware may still write to its buffers, begins to cancel it and answers
    /// [`Expiry::ResetTimer`], as one does that is still at it.
    fn timed_out(&mut self, _now: Instant, _tag: Tag) -> Expiry {
        Expiry::ResetTimer
    }

    /// When `reap` will next have something, or `enqueue` room again, if the device can tell. Virtual
    /// devices can. A real one says `None`; then it has an [`event_fd`](Self::event_fd), or is polled by
    /// whoever waits.
    fn next_event(&self) -> Option<Instant> {
        None
    }

    /// A descriptor that is readable whenever `reap` would find something, and until it has: level-triggered,
    /// like a ring with completions in it. The same one as long as the device exists.
    ///
    /// With it nobody has to be awake for the device. Who sleeps must watch it, together with the wake-ups of
    /// [`Host`](crate::Host): the engine will not call anybody on its account, and what it has is not counted
    /// by [`next_deadline`](crate::Submitter::next_deadline). With pump threads, that is the pump thread of
    /// this hardware queue; without, every submitter, as which of them share an elevator may change.
    #[cfg(target_os = "linux")]
    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Give back every request still held, in any order. Called once, when the queue goes away. Their payloads
    /// may be freed right afterwards, so a device that others work for waits here until they have let go of
    /// them: the only call that may block.
    fn abandon(&mut self, out: &mut Vec<Inflight>);
}

/// The answer to [`DeviceQueue::enqueue`].
#[must_use]
#[derive(Debug)]
pub enum Enqueued {
    /// Taken; it will come back from `reap`.
    Accepted,
    /// Finished within the call (null_blk's irqmode 0).
    Done(Inflight, IoResult),
    /// No room. The engine keeps it ahead of everything the elevator holds.
    Busy(Inflight, Busy),
}

/// Why a device had no room, which decides who tries again (`spec/framework.md` 8.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Busy {
    /// Some resource is missing and nobody will announce its return: the engine tries again in 3 ms.
    Resource,
    /// The device promises that a completion on this queue, or the time named by `next_event`, will make
    /// room: no timer is needed.
    DevResource,
}

/// The answer to [`DeviceQueue::timed_out`].
#[must_use]
#[derive(Debug)]
pub enum Expiry {
    /// Given back, with this result ([`IoError::TIMED_OUT`](blkmq_core::IoError::TIMED_OUT) as a rule). It will
    /// not come from `reap`.
    Done(Inflight, IoResult),
    /// The device still has it, and its whole time begins again.
    ResetTimer,
}

/// A request that the device is done with.
#[must_use]
#[derive(Debug)]
pub struct Finished {
    /// Which.
    pub rq: Inflight,
    /// How.
    pub verdict: Verdict,
}

/// What became of a request at the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Finished, for better or worse.
    Done(IoResult),
    /// The device wants it back later: it loses its tag and goes to the head of the scheduler.
    Requeue,
    /// The device wants this very request back later, as it is: it keeps its tag, passes by the scheduler, and
    /// waits behind what the hardware queue has waiting already. It is offered again when anything else makes
    /// the pump look at the device, a completion for one, and after 3 ms at the latest.
    RequeueTail,
}
