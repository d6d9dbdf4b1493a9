//! The port that a device implements: one [`DeviceQueue`] per hardware queue.
//!
//! A device sees requests in the order in which the elevator chose them, one hardware queue at a time, and receives the
//! time. It never blocks, never calls back into the queue, and answers every request once.

use crate::shared::inflight::Verdict;
use crate::shared::settings::WriteCache;
#[cfg(target_os = "linux")]
use crate::sync::ArcDyn;
use crate::{BioTable, Inflight};
use blkmq_core::{Instant, IoResult, Limits, Nanos, Tag};
use std::io;
#[cfg(target_os = "linux")]
use std::os::fd::BorrowedFd;

/// How long a device may keep a request unless it says otherwise (`spec/framework.md` section 1).
pub const DEFAULT_TIMEOUT: Nanos = Nanos::from_secs(30);

/// The properties of a device, declared when a queue is built around it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceShape {
    /// Hardware queues.
    pub hw_queues: u16,
    /// Driver tags per hardware queue, or in all if they are shared.
    pub hw_queue_depth: u32,
    /// One set of driver tags for all hardware queues (`shared_tag_bitmap`).
    pub shared_tags: bool,
    /// How many requests may be outside the elevators at a time, over all hardware queues, before any of them
    /// has a driver tag. `None`: the device has no budgets.
    pub budget: Option<u32>,
    /// The limits of a request.
    pub limits: Limits,
    /// When written data is durable.
    pub cache: WriteCache,
    /// How long the device may keep a request before [`timed_out`](DeviceQueue::timed_out) asks about it;
    /// [`DEFAULT_TIMEOUT`] as a rule. Not zero. `Nanos(u64::MAX)` means for ever.
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

/// One hardware queue of a device, owned by one pump: `&mut self` throughout, no locks.
///
/// # Contract
///
/// Calls come in the order: any number of [`enqueue`](Self::enqueue), one [`commit`](Self::commit) if any
/// was accepted, one [`reap`](Self::reap), one [`timed_out`](Self::timed_out) for each expired
/// request that `reap` did not bring. `now` never runs backwards between calls. Every [`Inflight`] taken is returned
/// exactly once: from `enqueue`, `reap`, `timed_out` or [`abandon`](Self::abandon).
pub trait DeviceQueue<P>: Send {
    /// Take a request, finish it on the spot, or give it back for lack of room. The bios of the request
    /// are read through `bios`; they stay in place until the token is returned.
    fn enqueue(&mut self, now: Instant, bios: &BioTable<P>, rq: Inflight) -> Enqueued;

    /// Ring the doorbell for everything accepted since the last time.
    fn commit(&mut self, _now: Instant) {}

    /// Move the requests that have finished by `now` into `out`. Never blocks. A device whose data came after
    /// [`enqueue`](Self::enqueue) puts it into the bios of a read here, which are reached through `bios`.
    fn reap(&mut self, now: Instant, bios: &BioTable<P>, out: &mut Vec<Finished>);

    /// The request with this tag was accepted, or its timer was reset, [`timeout`](DeviceShape::timeout) ago, and it
    /// was not returned. Called once for each time that this happens.
    ///
    /// A device that can take the request back does so and answers [`Expiry::Done`]; from then on it knows nothing of
    /// the request. A device that cannot, because hardware may still write to the buffers, begins to cancel the
    /// request and answers [`Expiry::ResetTimer`]. So does a device that is still at work on it.
    fn timed_out(&mut self, _now: Instant, _tag: Tag) -> Expiry {
        Expiry::ResetTimer
    }

    /// When `reap` will next find a completion, or `enqueue` room again, if the device can tell. Virtual devices can.
    /// A real device says `None`; then it has an [`event_fd`](Self::event_fd), or the threads that wait for it poll
    /// it.
    fn next_event(&self) -> Option<Instant> {
        None
    }

    /// A descriptor that is readable from when `reap` would find a completion until it has: level-triggered, like a
    /// ring with completions in it. It stays the same as long as the device exists.
    ///
    /// With it no thread has to stay awake for the device. A thread that sleeps must watch the descriptor, together
    /// with the wake-ups of [`Host`](crate::Host): the engine wakes no thread on account of the device, and
    /// [`next_deadline`](crate::Submitter::next_deadline) does not count its completions. With pump threads, the pump
    /// thread of this hardware queue watches it; without them every submitter does, because which submitters share an
    /// elevator may change.
    #[cfg(target_os = "linux")]
    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Returns whether the device has work of its own, beside requests, such as copies from one disk to another. Always the same.
    /// If true, [`reap`](Self::reap) is called in each turn, with requests in the device or without, and
    /// [`next_event`](Self::next_event) and [`event_fd`](Self::event_fd) may speak of that work. Threads that watch the descriptor
    /// bring it on; no thread wakes for it alone.
    fn has_own_work(&self) -> bool {
        false
    }

    /// The means to make further queues to the same device, whenever one is needed: lanes, for one submitter each
    /// ([`PumpMode::Owner`](crate::PumpMode)). `None`: the device has no more than its hardware queues.
    fn another(&self) -> Option<Another<P>> {
        None
    }

    /// A place where the submitter that owns this lane sleeps; a device that can make [`another`](Self::another) queue has
    /// one. All places that it gives are the same. [`reap`](Self::reap) takes notice of calls, so a pump reaps in each
    /// turn. On a thread other than the sleeper's it leaves them, or calls once more.
    ///
    /// # Errors
    /// If the system refuses resources for it.
    #[cfg(target_os = "linux")]
    fn berth(&self) -> Option<io::Result<Box<dyn Berth>>> {
        None
    }

    /// Give back every request still held, in any order. Called once, when the queue goes away. Their payloads may be
    /// freed right afterwards, so a device with other threads or hardware at work on them waits here until they have
    /// let go: this is the only call that may block.
    fn abandon(&mut self, out: &mut Vec<Inflight>);
}

/// Makes a further queue to a device; see [`DeviceQueue::another`]. Fails if the system refuses resources for it.
pub type Another<P> = Box<dyn Fn() -> io::Result<Box<dyn DeviceQueue<P>>> + Send + Sync>;

/// A place where one thread sleeps on its own device queue, and where any thread may call it.
///
/// A completion, or a call, between the thread's last look for work and its sleep keeps it from sleeping: both stay
/// until [`DeviceQueue::reap`] has taken notice of them, and a call until that happens on the thread that sleeps here.
#[cfg(target_os = "linux")]
pub trait Berth: Send + Sync {
    /// A thread, the calling one or another, is going to sleep on [`fd`](Self::fd). False if calls do not make that readable
    /// yet: then the caller must have its lane [polled](crate::Submitter::poll) once more before.
    fn attend(&self) -> bool;

    /// The calling thread waits from now on, until [`end`](Self::end): the requests that its turns
    /// [commit](DeviceQueue::commit) in the meantime may reach the device when it sleeps, or ends the wait, in one
    /// system call with that.
    fn begin(&self);

    /// The calling thread turns to something else.
    fn end(&self);

    /// Sleeps until the device queue has something to reap, a call comes, or `left` is over; sometimes wakes for no
    /// reason. One system call, as a rule.
    fn sleep(&self, left: Option<Nanos>);

    /// Calls the sleeper, or the next one. One system call.
    fn call(&self);

    /// A descriptor that is readable when [`sleep`](Self::sleep) would return.
    fn fd(&self) -> BorrowedFd<'_>;
}

/// A shared place: a device in front of another one lends the berth of that one.
#[cfg(target_os = "linux")]
impl Berth for ArcDyn<dyn Berth> {
    fn attend(&self) -> bool {
        (**self).attend()
    }

    fn begin(&self) {
        (**self).begin();
    }

    fn end(&self) {
        (**self).end();
    }

    fn sleep(&self, left: Option<Nanos>) {
        (**self).sleep(left);
    }

    fn call(&self) {
        (**self).call();
    }

    fn fd(&self) -> BorrowedFd<'_> {
        (**self).fd()
    }
}

/// The answer to [`DeviceQueue::enqueue`].
#[must_use]
#[derive(Debug)]
pub enum Enqueued {
    /// The device took the request; `reap` will return it.
    Accepted,
    /// Finished within the call (null_blk's irqmode 0).
    Done(Inflight, IoResult),
    /// No room. The engine keeps the request ahead of everything that the elevator holds.
    Busy(Inflight, Busy),
}

/// Why a device had no room, which decides when the engine tries again (`spec/framework.md` 8.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Busy {
    /// Some resource is missing and its return will not be announced: the engine tries again in 3 ms.
    Resource,
    /// The device promises that a completion on this queue, or the time named by `next_event`, will make
    /// room: no timer is needed.
    DevResource,
}

/// The answer to [`DeviceQueue::timed_out`].
#[must_use]
#[derive(Debug)]
pub enum Expiry {
    /// The device gives the request back with this result ([`IoError::TIMED_OUT`](blkmq_core::IoError::TIMED_OUT) as
    /// a rule). It will not come from `reap`.
    Done(Inflight, IoResult),
    /// The device still has it, and its whole time begins again.
    ResetTimer,
}

/// A request that the device is done with.
#[must_use]
#[derive(Debug)]
pub struct Finished {
    /// The request.
    pub rq: Inflight,
    /// Its outcome.
    pub verdict: Verdict,
}
