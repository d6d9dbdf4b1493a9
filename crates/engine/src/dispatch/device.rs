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

/// How long a device may keep a request by default (`spec/framework.md` section 1).
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
    /// The most requests outside of the elevators at a time, over all hardware queues, including those without a driver
    /// tag. `None`: the device has no budgets.
    pub budget: Option<u32>,
    /// The limits of a request.
    pub limits: Limits,
    /// When written data is durable.
    pub cache: WriteCache,
    /// How long the device may keep a request before [`timed_out`](DeviceQueue::timed_out) asks about it; usually
    /// [`DEFAULT_TIMEOUT`]. Not zero. `Nanos(u64::MAX)` means for ever.
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
/// The calls come in this order: any number of [`enqueue`](Self::enqueue), one [`commit`](Self::commit) if any request
/// was accepted, one [`reap`](Self::reap), and one [`timed_out`](Self::timed_out) for each expired request that `reap`
/// did not return. `now` never runs backwards between calls. Every [`Inflight`] taken is returned exactly once: from
/// `enqueue`, `reap`, `timed_out` or [`abandon`](Self::abandon).
pub trait DeviceQueue<P>: Send {
    /// Take a request, finish it immediately, or give it back for lack of room. The bios of the request are read
    /// through `bios`; they stay in place until the token is returned.
    fn enqueue(&mut self, now: Instant, bios: &BioTable<P>, rq: Inflight) -> Enqueued;

    /// Ring the doorbell for all requests accepted since the last time.
    fn commit(&mut self, _now: Instant) {}

    /// Move the requests that have finished by `now` into `out`. Never blocks. A device that receives its data after
    /// [`enqueue`](Self::enqueue) copies it into the bios of a read here, through `bios`.
    fn reap(&mut self, now: Instant, bios: &BioTable<P>, out: &mut Vec<Finished>);

    /// The request with this tag was accepted, or its timer was reset, [`timeout`](DeviceShape::timeout) ago, and was
    /// not returned. Called each time that this happens.
    ///
    /// A device that can take the request back does so and answers [`Expiry::Done`]; it must then forget the request. A
    /// device that cannot, because hardware may still write to the buffers, begins to cancel the request and answers
    /// [`Expiry::ResetTimer`]. So does a device that is still working on it.
    fn timed_out(&mut self, _now: Instant, _tag: Tag) -> Expiry {
        Expiry::ResetTimer
    }

    /// When `reap` will next find a completion, or `enqueue` room again. Virtual devices know this. A real device
    /// returns `None`; then it has an [`event_fd`](Self::event_fd), or waiting threads poll it.
    fn next_event(&self) -> Option<Instant> {
        None
    }

    /// A descriptor that is readable as long as `reap` would find a completion: level-triggered, like a ring with
    /// completions in it. It stays the same as long as the device exists.
    ///
    /// With a descriptor, no thread has to stay awake for the device. A thread that sleeps must watch it, together with
    /// the wake-ups of [`Host`](crate::Host): the engine wakes no thread for the device, and
    /// [`next_deadline`](crate::Submitter::next_deadline) does not count its completions. With pump threads, the pump
    /// thread of this hardware queue watches it; without them every submitter does, because the submitters that share
    /// an elevator may change.
    #[cfg(target_os = "linux")]
    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Returns whether the device has work besides requests, such as copies from one disk to another. The answer must
    /// not change. If true, [`reap`](Self::reap) is called in each turn, with or without requests in the device, and
    /// [`next_event`](Self::next_event) and [`event_fd`](Self::event_fd) may announce such work. Threads that watch the
    /// descriptor drive it; no thread wakes for it alone.
    fn has_own_work(&self) -> bool {
        false
    }

    /// A function that makes further queues to the same device: lanes, for one submitter each
    /// ([`PumpMode::Owner`](crate::PumpMode)). `None` if the device has only its hardware queues.
    fn another(&self) -> Option<Another<P>> {
        None
    }

    /// The sleeping place of the submitter that owns this lane; a device that can make [`another`](Self::another) queue
    /// has one. Every call returns the same place. [`reap`](Self::reap) handles the wake-ups, so a pump reaps in each
    /// turn. On a thread other than the sleeper's, it leaves them in place, or sends another one.
    ///
    /// # Errors
    /// If the system refuses resources for the place.
    #[cfg(target_os = "linux")]
    fn berth(&self) -> Option<io::Result<Box<dyn Berth>>> {
        None
    }

    /// Give back every request still held, in any order. Called once, when the queue is dropped. The payloads may be
    /// freed right afterwards, so a device with other threads or hardware that access them must wait here until they
    /// have finished: this is the only call that may block.
    fn abandon(&mut self, out: &mut Vec<Inflight>);
}

/// Makes a further queue to a device; see [`DeviceQueue::another`]. Fails if the system refuses resources for it.
pub type Another<P> = Box<dyn Fn() -> io::Result<Box<dyn DeviceQueue<P>>> + Send + Sync>;

/// A place where one thread sleeps on its own device queue, and where any thread may wake it.
///
/// A completion or a wake-up between the thread's last check for work and its sleep keeps it from sleeping. Both stay
/// until [`DeviceQueue::reap`] has seen them; a wake-up stays until `reap` runs on the thread that sleeps here.
#[cfg(target_os = "linux")]
pub trait Berth: Send + Sync {
    /// Announces that the calling thread, or another, is going to sleep on [`fd`](Self::fd). Returns false if wake-ups
    /// do not make the descriptor readable yet: the caller must then have its lane [polled](crate::Submitter::poll)
    /// once more before it sleeps.
    fn attend(&self) -> bool;

    /// Begins a wait of the calling thread, until [`end`](Self::end). Requests that its turns
    /// [commit](DeviceQueue::commit) in the meantime may reach the device only when it sleeps or ends the wait, in the
    /// same system call.
    fn begin(&self);

    /// Ends the wait of the calling thread.
    fn end(&self);

    /// Sleeps until the device queue has something to reap, a wake-up comes, or `left` is over; may wake without a
    /// reason. Usually one system call.
    fn sleep(&self, left: Option<Nanos>);

    /// Wakes the sleeper, or the next thread that would sleep. One system call.
    fn call(&self);

    /// A descriptor that is readable whenever [`sleep`](Self::sleep) would return.
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
    /// A resource is missing, and its return will not be announced: the engine tries again in 3 ms.
    Resource,
    /// The device promises that a completion on this queue, or the time named by `next_event`, will make
    /// room: no timer is needed.
    DevResource,
}

/// The answer to [`DeviceQueue::timed_out`].
#[must_use]
#[derive(Debug)]
pub enum Expiry {
    /// The device gives the request back with this result (usually
    /// [`IoError::TIMED_OUT`](blkmq_core::IoError::TIMED_OUT)). `reap` will not return it.
    Done(Inflight, IoResult),
    /// The device still has the request, whose whole time begins again.
    ResetTimer,
}

/// A request that the device has finished with.
#[must_use]
#[derive(Debug)]
pub struct Finished {
    /// The request.
    pub rq: Inflight,
    /// Its outcome.
    pub verdict: Verdict,
}
