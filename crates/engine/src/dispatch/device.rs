//! The port that a device implements: one [`DeviceQueue`] per hardware queue.
//!
//! A device sees requests in the order in which the elevator chose them, one hardware queue at a time, and receives the
//! time. It never blocks, never calls back into the queue, and answers every request once.
//!
//! A pump keeps a deadline for each driver tag, and asks the device about requests that have timed out
//! (`spec/framework.md` section 10).

use crate::shared::WriteCache;
use crate::shared::hctx::Verdict;
#[cfg(target_os = "linux")]
use crate::sync::ArcDyn;
use crate::{BioTable, Inflight};
use blkmq_core::{Instant, IoResult, Limits, Nanos, Tag};
use std::io;
#[cfg(target_os = "linux")]
use std::os::fd::BorrowedFd;

/// The time for which a device may keep a request by default (`spec/framework.md` section 1).
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
    /// The write cache, which decides when written data is durable.
    pub cache: WriteCache,
    /// The time for which the device may keep a request before [`timed_out`](DeviceQueue::timed_out) asks about it;
    /// usually [`DEFAULT_TIMEOUT`]. Not zero. `Nanos(u64::MAX)` means for ever.
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

/// A shared berth: a device in front of another one lends that device's berth.
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

/// The longest time from one check to the next (`spec/framework.md` section 1).
const LOOK_AHEAD: Nanos = Nanos::from_secs(5);

/// The deadline of a tag that is not at the device.
const AWAY: Instant = Instant::MAX;

/// The deadline of a request that may stay for ever: later than any time in use.
const NEVER: Instant = Instant::from_nanos(u64::MAX - 1);

/// The deadlines of one hardware queue.
///
/// A plain structure that a pump owns. The pump reports which requests go to the device and which return, and finds out
/// which have timed out. It then asks the device about those, and acts on the answer. This file handles tags, not
/// requests.
///
/// Setting and clearing a deadline is one store each. The deadlines are not sorted: a walk over all tags finds the
/// earliest, and is made only when the earliest known so far has passed, or [`LOOK_AHEAD`] has. So there is at most one
/// walk for each request that was, or was thought to be, at the device at its deadline, and none while the device is
/// idle. Linux rounds the time of its scan up to a whole second, so that one timer serves several deadlines. Here the
/// time is exact, because it costs no timer, only a number that every passing thread compares with the time.
///
/// *Invariant: no request at the device has a deadline before the time of the next check.*
pub(crate) struct Deadlines {
    by_tag: Box<[Instant]>,
    timeout: Nanos,
    look_at: Instant,
}

impl Deadlines {
    /// Deadlines for the tags below `tags`, none of which is at the device.
    pub(crate) fn new(tags: u32, timeout: Nanos) -> Self {
        let by_tag = vec![AWAY; tags as usize].into_boxed_slice();
        let mut deadlines = Self { by_tag, timeout, look_at: NEVER };
        deadlines.set_timeout(timeout);
        deadlines
    }

    /// Sets the timeout of requests that go to the device later (`io_timeout`); requests at the device keep their
    /// deadlines. A timeout beyond the end of time never expires.
    ///
    /// # Panics
    /// If the timeout is zero: no device could ever meet it.
    fn set_timeout(&mut self, timeout: Nanos) {
        assert!(timeout > Nanos::ZERO, "no device can answer in no time");
        self.timeout = timeout;
        // The next check may be too late for the new timeout.
        self.look_at = Instant::ZERO;
    }

    fn after(&self, now: Instant) -> Instant {
        (now + self.timeout).min(NEVER)
    }

    /// Notes that the request with this tag goes to the device.
    #[inline]
    pub(crate) fn begin(&mut self, now: Instant, tag: Tag) {
        let deadline = self.after(now);
        let entry = &mut self.by_tag[tag.0 as usize];
        assert!(*entry == AWAY, "tag {} is at the device already", tag.0);
        *entry = deadline;
    }

    /// Notes that the request with this tag has returned.
    #[inline]
    pub(crate) fn end(&mut self, tag: Tag) {
        let entry = &mut self.by_tag[tag.0 as usize];
        assert!(*entry != AWAY, "tag {} was returned and was not at the device", tag.0);
        *entry = AWAY;
    }

    /// Restarts the whole timeout of a request that the device is still working on.
    pub(crate) fn restart(&mut self, now: Instant, tag: Tag) {
        self.end(tag);
        self.begin(now, tag);
    }

    /// Returns whether a check is due. If true, the caller goes through [`next_expired`](Self::next_expired), and then
    /// calls [`look_again`](Self::look_again).
    #[inline]
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.look_at <= now
    }

    /// The first expired tag from `from` on. Walks over the tags in between.
    pub(crate) fn next_expired(&self, from: u32, now: Instant) -> Option<Tag> {
        let rest = &self.by_tag[from as usize..];
        let found = rest.iter().position(|deadline| *deadline <= now)?;
        Some(Tag(from + found as u32))
    }

    /// Finds the time of the next check, after a check. Walks over all tags.
    pub(crate) fn look_again(&mut self, now: Instant) {
        let earliest = self.by_tag.iter().copied().min().unwrap_or(AWAY);
        // The earliest deadline of requests at the device, and of later ones.
        let earliest = earliest.min(self.after(now));
        self.look_at = if earliest == NEVER { NEVER } else { earliest.min(now + LOOK_AHEAD) };
    }

    /// The time to check the requests at the device if nothing happens before. `None` if all of them may stay for ever.
    #[inline]
    pub(crate) fn timer(&self) -> Option<Instant> {
        (self.look_at < NEVER).then_some(self.look_at)
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    const T: Nanos = Nanos::from_millis(10);

    fn ms(ms: u64) -> Instant {
        Instant::ZERO + Nanos::from_millis(ms)
    }

    /// One check. Returns the expired tags; the time of the next check is exact.
    fn look(deadlines: &mut Deadlines, now: Instant) -> Vec<u32> {
        assert!(deadlines.is_due(now));
        let (mut expired, mut from) = (Vec::new(), 0);
        while let Some(tag) = deadlines.next_expired(from, now) {
            expired.push(tag.0);
            deadlines.end(tag);
            from = tag.0 + 1;
        }
        deadlines.look_again(now);
        expired
    }

    #[test]
    fn the_next_look_is_at_the_earliest_deadline() {
        let mut d = Deadlines::new(4, T);
        d.begin(ms(0), Tag(3));
        d.begin(ms(2), Tag(0));
        assert_eq!(look(&mut d, ms(2)), [], "the first one, to find out");
        assert_eq!(d.timer(), Some(ms(10)));
        assert!(!d.is_due(ms(9)));
        assert_eq!(look(&mut d, ms(10)), [3]);
        assert_eq!(d.timer(), Some(ms(12)));
        d.end(Tag(0));
        d.begin(ms(11), Tag(1));
        assert_eq!(look(&mut d, ms(12)), [], "what it was for has come back");
        assert_eq!(d.timer(), Some(ms(21)));
        d.restart(ms(20), Tag(1));
        assert_eq!(look(&mut d, ms(21)), []);
        assert_eq!(look(&mut d, ms(30)), [1]);
    }

    #[test]
    fn with_nothing_there_the_next_look_is_early_enough_for_what_may_come() {
        let mut d = Deadlines::new(1, T);
        assert_eq!(look(&mut d, ms(5)), []);
        d.begin(ms(5), Tag(0));
        assert_eq!(d.timer(), Some(ms(15)));
    }

    #[test]
    fn the_next_look_is_at_most_5_s_away() {
        let mut d = Deadlines::new(1, Nanos::from_secs(30));
        d.begin(ms(0), Tag(0));
        let looks: Vec<_> = (0..6).map(|i| (look(&mut d, ms(i * 5000)), d.timer())).collect();
        let expected: Vec<_> = (1..7).map(|i| (Vec::<u32>::new(), Some(ms(i * 5000)))).collect();
        assert_eq!(looks, expected);
        assert_eq!(look(&mut d, ms(30_000)), [0]);
    }

    #[test]
    fn a_shorter_timeout_is_looked_after_at_once() {
        let mut d = Deadlines::new(2, Nanos(u64::MAX));
        d.begin(ms(1), Tag(0));
        assert_eq!((look(&mut d, ms(1)), d.timer()), (vec![], None), "it may stay for ever");
        d.set_timeout(T);
        d.begin(ms(2), Tag(1));
        assert_eq!(look(&mut d, ms(2)), []);
        assert_eq!(look(&mut d, ms(12)), [1]);
        assert_eq!(d.timer(), Some(ms(22)), "what may come has a deadline");
    }

    #[test]
    fn a_request_that_may_stay_for_ever_is_at_the_device_all_the_same() {
        let mut d = Deadlines::new(1, Nanos(u64::MAX));
        for _ in 0..2 {
            d.begin(ms(1), Tag(0));
            d.restart(ms(2), Tag(0));
            assert_eq!(d.next_expired(0, ms(1 << 40)), None);
            d.end(Tag(0));
        }
    }

    #[test]
    fn all_whose_time_is_up_are_found_in_one_look() {
        let mut d = Deadlines::new(6, T);
        [1, 3, 4].into_iter().for_each(|tag| d.begin(ms(0), Tag(tag)));
        d.begin(ms(1), Tag(5));
        assert_eq!(look(&mut d, ms(10)), [1, 3, 4]);
        assert_eq!(d.timer(), Some(ms(11)));
    }

    #[test]
    #[should_panic(expected = "no device can answer in no time")]
    fn a_timeout_of_zero_is_refused() {
        let _ = Deadlines::new(1, Nanos::ZERO);
    }

    #[test]
    #[should_panic(expected = "tag 1 is at the device already")]
    fn a_tag_is_not_there_twice() {
        let mut d = Deadlines::new(2, T);
        d.begin(ms(0), Tag(1));
        d.begin(ms(1), Tag(1));
    }

    #[test]
    #[should_panic(expected = "tag 1 was returned and was not at the device")]
    fn what_comes_back_was_there() {
        Deadlines::new(2, T).end(Tag(1));
    }
}
