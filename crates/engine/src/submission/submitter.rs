//! A submitter: the handle by which one thread uses a queue. It corresponds to the kernel's software queue (ctx).
//!
//! It owns its bio cells (its credit), its plug and its ends of two rings; pushing and reaping use no memory that other
//! threads write. Contention begins, if at all, at [`flush`](Submitter::flush).
//!
//! A waiting submitter detects a runner that has lost its CPU (decision 0025). A pass takes microseconds. If an
//! elevator is taken for longer, and no other pass has begun in the meantime, its runner is not running: the kernel has
//! given the CPU to another thread, perhaps to the one that polls. User space gets no notice of that, but two readings
//! of a counter show it.

mod push;
mod wait;

use super::split::Splits;
use super::throttle::Throttle;
use crate::dispatch::{Caller, Engine};
#[cfg(feature = "compare")]
use crate::elevator::plug::stage;
use crate::elevator::plug::{Own, PLUG_REQUESTS, Plug};
use crate::planted::Planted;
use crate::shared::follow::Follow;
use crate::shared::hub::{Ask, Parts, Shard};
use crate::shared::stats::SubmitterCounters;
use crate::submission::Root;
use crate::sync::{Arc, yield_now};
use crate::{DeviceQueue, planted};
use blkmq_core::{HwQueue, Instant, IoError, IoResult, Nanos, SubmitterId};
use crossbeam_utils::CachePadded;
use push::plain_sizes;
use std::fmt;
use wait::{Health, Rest};

/// One thread's handle to a queue.
///
/// # Contract
///
/// I/Os are taken in the order of [`push`](Self::push) and may complete in any order. An I/O that exceeds a limit of
/// the device is divided, and completes when all its parts have (`spec/framework.md` section 13): it takes a credit for
/// each part, and its payload must allow division ([`split_off`](blkmq_core::Payload::split_off)). A pushed I/O is sent
/// at the next [`flush`](Self::flush) at the latest. With [`PumpMode::Inline`](crate::PumpMode::Inline) I/Os make
/// progress while any submitter of the queue submits, polls, or is parked as [`prepare_park`](Self::prepare_park)
/// allows. A thread that begins a long computation with I/Os in flight should flush first, and expect to find them
/// unfinished afterwards.
///
/// Dropping a submitter cancels the I/Os that it has not flushed. With I/Os in flight, its number and its cells are
/// reused when those I/Os are done; no memory is freed that a device may still write to.
pub struct Submitter<P> {
    root: Arc<Root<P>>,
    /// The queue as this submitter last knew it.
    q: Arc<Engine<P>>,
    /// `None` only while the submitter is being dropped.
    parts: Option<Parts>,
    plug: Plug,
    throttle: Throttle,
    shard: usize,
    depth: u32,
    follow: Follow,
    holdup: Holdup,
    /// By operation: the most sectors that are taken whole, as one segment. 0 for a flush, which has no sectors and
    /// takes a rare path.
    plain: [u32; 5],
    /// The most sectors of a read or a write of a group whose requests are shortened for a latency goal.
    longest: u32,
    splits: Splits<P>,
    rest: Rest,
    health: Health,
    tally: Arc<CachePadded<SubmitterCounters>>,
}

impl<P> fmt::Debug for Submitter<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Submitter").field("depth", &self.depth).finish_non_exhaustive()
    }
}

impl<P: Send> Submitter<P> {
    pub(crate) fn new(root: Arc<Root<P>>, parts: Parts) -> Self {
        let q = root.current();
        let depth = parts.credit.depth();
        let tally = Arc::clone(&q.hub.lasting.tallies[usize::from(parts.id.0)]);
        let shard = q.hub.shard_of(parts.hw);
        let follow = Follow::new(parts.id, q.hub.shards[shard].lead());
        let longest = u32::MAX;
        let plain = plain_sizes(&q.hub.limits, longest);
        Self {
            root,
            q,
            parts: Some(parts),
            plug: Plug::new(PLUG_REQUESTS),
            throttle: Throttle::default(),
            shard,
            depth,
            follow,
            holdup: Holdup::default(),
            plain,
            longest,
            splits: Splits::new(),
            rest: Rest::default(),
            health: Health::Sound,
            tally,
        }
    }

    /// Gives the submitter a lane to the device, made by [`DeviceQueue::another`](crate::DeviceQueue::another). If its
    /// number was registered before, it already has one.
    ///
    /// # Panics
    /// If it has a lane, as every submitter has in a queue without own lanes ([`PumpMode::Owner`](crate::PumpMode)).
    pub fn install_lane(&mut self, lane: Box<dyn DeviceQueue<P>>) {
        assert!(!self.parts().has_lane, "the submitter has a lane, perhaps with requests");
        self.parts().has_lane = true;
        // Held because this enters a pump under the number of the thread that changes the queue, and because the queue
        // must not be replaced before it has the lane.
        let _state = self.root.change_state();
        let q = self.root.current();
        // A thread that checks all lanes leaves this one soon: without an owner it has no requests.
        while !q.hub.lasting.control.is_poisoned() {
            if let Some(mut pump) = q.pump_gate(self.lane()).enter(q.hub.changer()) {
                pump.install((lane, Instant::ZERO));
                return;
            }
            yield_now();
        }
    }

    fn parts(&mut self) -> &mut Parts {
        self.parts.as_mut().expect("parts are there until the submitter is dropped")
    }

    fn shard(&self) -> &Shard {
        &self.q.hub.shards[self.shard]
    }

    /// The submitter's number.
    #[must_use]
    pub fn id(&self) -> SubmitterId {
        self.parts.as_ref().expect("parts are there until the submitter is dropped").id
    }

    /// The hardware queue to which the submitter maps.
    #[must_use]
    pub fn hw(&self) -> HwQueue {
        self.parts.as_ref().expect("parts are there until the submitter is dropped").hw
    }

    /// The lane that the submitter pumps first.
    fn lane(&self) -> HwQueue {
        self.parts.as_ref().expect("parts are there until the submitter is dropped").lane
    }

    /// The submitter's credit: the most bios that it may have in flight. Each I/O is a bio, or several if it is
    /// divided.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Credit in use: bios taken and not yet reaped, including plugged ones. Each part of a divided I/O counts until it
    /// is reaped, so this can exceed [`outstanding`](Self::outstanding).
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.depth - self.parts.as_ref().map_or(0, |parts| parts.credit.left())
    }

    /// I/Os taken and not yet reaped, including plugged ones: the number of completions still to come.
    #[must_use]
    pub fn outstanding(&self) -> u32 {
        self.in_flight() - self.splits.extra()
    }

    /// The number of requests in the plug, and of I/Os that have merged in plugs of this submitter so far. For programs
    /// that show the effect of each [`push`](Self::push).
    #[must_use]
    pub fn plugged(&self) -> (u32, u64) {
        (self.plug.len() as u32, self.tally.plug_merges.get())
    }
}

/// The source of a submitter's next completion: [`Submitter::awaits`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Awaited {
    /// The device, by a lane that all submitters serve.
    Shared,
    /// The device, by the submitter's own lane ([`PumpMode::Owner`](crate::PumpMode)), which has a request.
    OwnLane,
    /// Other threads, which hold its I/Os: its own lane has none at the device.
    Others,
}

impl<P: Send> Submitter<P> {
    /// Sends the plug: straight into the elevator if that is free, otherwise into staging, where the runner finds it.
    /// Runs elevator and pumps inline as far as work is due.
    pub fn flush(&mut self, now: Instant) {
        if self.plug.is_empty() {
            return;
        }
        self.flush_plug(now);
    }

    fn flush_plug(&mut self, now: Instant) {
        self.catch_up();
        self.follow_length();
        if self.is_poisoned() {
            self.end_all(now);
            return;
        }
        let q = &*self.q;
        let shard = &q.hub.shards[self.shard];
        let parts = self.parts.as_mut().expect("parts are there until the submitter is dropped");
        let own = Own { id: parts.id, plug: &mut self.plug, staging: &mut parts.staging };
        let by = Caller { id: Some(own.id), now, home: parts.lane, tally: &self.tally };
        q.submit(shard, by, own, &mut self.follow);
        // After the mark of the staged bios, if any, which is a full fence (`sync/control.rs`).
        if !self.is_current() && !planted::is(Planted::ForgetsVersion) {
            self.show_staged(now);
        }
    }

    /// Does the work that is due by `now`: an owed pass over the elevator, and turns of pumps with requests to finish.
    pub fn poll(&mut self, now: Instant) {
        if self.throttle.is_due(now, &self.q.hub.lasting.meters) {
            self.let_go(now);
            self.flush(now);
        }
        self.catch_up();
        if self.is_poisoned() {
            self.end_all(now);
            return;
        }
        let (id, lane) = (self.id(), self.lane());
        let q = &*self.q;
        let shard = &q.hub.shards[self.shard];
        let by = Caller { id: Some(id), now, home: lane, tally: &self.tally };
        if q.poll(shard, by, &mut self.follow) && self.in_flight() == 0 {
            // As in `reap`: this thread may leave work that it did for others.
            q.wake_successor(shard, lane);
        }
    }

    /// Serves the lanes of all submitters of its elevator, if each has its own ([`PumpMode::Owner`](crate::PumpMode)):
    /// for a submitter whose I/Os wait for slots, tags or turns that other submitters hold, whose threads may be busy
    /// elsewhere. O(submitters).
    pub fn look_at_all(&mut self, now: Instant) {
        if self.is_poisoned() || !self.q.hub.has_owners() {
            return;
        }
        let (id, lane) = (self.id(), self.lane());
        let by = Caller { id: Some(id), now, home: lane, tally: &self.tally };
        self.q.poll_all(self.shard(), by);
    }

    /// The source of the completion that this submitter waits for, as far as it can tell. O(1).
    #[must_use]
    pub fn awaits(&self) -> Awaited {
        if !self.q.hub.has_owners() {
            Awaited::Shared
        } else if self.q.hub.hctx(self.lane()).signals() {
            Awaited::OwnLane
        } else {
            Awaited::Others
        }
    }

    /// Returns whether a thread that runs the elevator or a pump of this submitter has made no progress for so long
    /// that it presumably has no CPU. If true, the caller, which has just [polled](Self::poll) without success, should
    /// sleep for a moment: that thread may be waiting for this very CPU. Returns true once for every 50 us without
    /// progress, and never with nothing in flight.
    #[must_use]
    pub fn is_held_up(&mut self, now: Instant) -> bool {
        if self.in_flight() == 0 {
            return false;
        }
        let progress = self.q.progress(self.shard(), self.lane());
        self.holdup.look(progress, now)
    }

    /// Returns whether the queue that this submitter knows is the current one.
    #[inline]
    fn is_current(&self) -> bool {
        self.q.hub.version == self.q.hub.lasting.control.version()
    }

    /// Switches to the current queue.
    #[inline]
    fn catch_up(&mut self) {
        if !self.is_current() {
            self.take_up();
        }
    }

    /// Adopts the length to which the requests of some groups are shortened for latency goals.
    #[inline]
    fn follow_length(&mut self) {
        if let Some(board) = &self.q.hub.board {
            let longest = board.longest();
            if longest != self.longest {
                self.longest = longest;
                self.plain = plain_sizes(&self.q.hub.limits, longest);
            }
        } else if self.longest != u32::MAX {
            self.longest = u32::MAX;
            self.plain = plain_sizes(&self.q.hub.limits, u32::MAX);
        }
    }

    #[cold]
    fn take_up(&mut self) {
        self.q = self.root.current();
        self.shard = self.q.hub.shard_of(self.hw());
        self.follow = Follow::new(self.id(), self.q.hub.shards[self.shard].lead());
        self.plain = plain_sizes(&self.q.hub.limits, self.longest);
        if self.q.hub.lasting.control.is_poisoned() {
            self.notice_poison();
        }
    }

    /// Handles a rebuild of the queue while this submitter used it: its staged bios and asks may not have been seen.
    #[cold]
    fn show_staged(&mut self, now: Instant) {
        self.take_up();
        if self.is_poisoned() {
            self.end_all(now);
            return;
        }
        let id = self.id();
        let shard = self.shard();
        shard.pending.set(id.0);
        shard.asked.set(id.0);
        let _ = self.q.gate(shard).kick();
        self.poll(now);
    }
}

#[cfg(feature = "compare")]
impl<P: Send> Submitter<P> {
    /// The first half of a [`flush`](Self::flush) that finds the elevator taken: leaves the plug in staging and kicks
    /// no runner. [`finish_flush`](Self::finish_flush) must be the next call, however much later. Returns false,
    /// without effect, if the plug is empty or access is not by combining.
    ///
    /// For drivers in virtual time, where threads are not preempted; other programs do not need it.
    #[must_use]
    pub fn begin_flush(&mut self) -> bool {
        if self.plug.is_empty() {
            return false;
        }
        self.catch_up();
        let q = &*self.q;
        if q.is_locked() {
            return false;
        }
        let parts = self.parts.as_mut().expect("parts are there until the submitter is dropped");
        let own = Own { id: parts.id, plug: &mut self.plug, staging: &mut parts.staging };
        self.tally.staged.add(1);
        stage(&q.hub.shards[self.shard], own);
        true
    }

    /// The second half: runs the elevator, or leaves a kick to its runner, in the queue that this thread knew in the
    /// first half.
    pub fn finish_flush(&mut self, now: Instant) {
        let (id, home) = (self.id(), self.lane());
        let by = Caller { id: Some(id), now, home, tally: &self.tally };
        self.q.kick_and_drive(self.shard(), by);
        // As in `flush`, after the mark of the staged bios.
        if !self.is_current() && !planted::is(Planted::ForgetsVersion) {
            self.show_staged(now);
        }
    }
}

impl<P: Send> Submitter<P> {
    /// Requests cancellation of the I/O with this cookie. If it still waits, in the plug, in staging or in an elevator,
    /// and is a separate request, it ends with [`IoError::CANCELLED`] without reaching the device. Otherwise it
    /// continues and ends with its own result: if it has been merged with another I/O, if its flush sequence has begun,
    /// if it has been issued to a device, which does not return requests that it has begun (decision 0045), and always
    /// if it was divided, because its parts are sent one by one and some would be done. Either way it has one
    /// completion, which says how it ended. If no I/O in flight has the cookie, nothing happens.
    ///
    /// Cookies of I/Os that may be cancelled should be unique. If several waiting I/Os have this cookie, the oldest in
    /// the plug is cancelled; if the plug has none, the oldest elsewhere, by push time.
    ///
    /// O(I/Os that wait for the same elevator): not for frequent use. Runs elevator and pumps inline, as
    /// [`flush`](Self::flush) does, but leaves the plug alone.
    pub fn cancel(&mut self, now: Instant, cookie: u64) {
        let parts = self.parts.as_mut().expect("parts are there until the submitter is dropped");
        let (id, home) = (parts.id, parts.lane);
        let table = &self.q.hub.lasting.table;
        let meters = &self.q.hub.lasting.meters;
        let mut private = self.plug.remove(table, cookie);
        if private.is_none() && !self.throttle.is_empty() {
            private = self.throttle.remove(now, meters, table, cookie);
        }
        if let Some(bio) = private {
            self.tally.cancelled.add(1);
            if self.q.hub.lasting.senders[usize::from(id.0)].send_one(bio, Err(IoError::CANCELLED))
            {
                self.q.wake(&[id]);
            }
            return;
        }
        let ask = Ask { cookie, before: parts.staging.mark() };
        // The ring of asks is as large as the credit. If it is full, one of the asks is for this I/O, or this I/O
        // cannot be cancelled.
        if self.in_flight() == 0 || self.parts().asks.push(ask).is_err() {
            return;
        }
        self.catch_up();
        let q = &*self.q;
        let shard = &q.hub.shards[self.shard];
        shard.asked.set(id.0);
        q.ask(shard, Caller { id: Some(id), now, home, tally: &self.tally });
        // After the mark, which is a full fence (`sync/control.rs`).
        if !self.is_current() {
            self.show_staged(now);
        }
    }
}

impl<P> Submitter<P> {
    /// Ends the I/Os in the plug and the I/Os held back by limits of groups, with `result`. The completions are this
    /// submitter's own, so no thread has to be woken. Returns the number of requests.
    fn end_private(&mut self, result: IoResult) -> u64 {
        let lasting = &self.q.hub.lasting;
        let Some(parts) = &self.parts else { return 0 };
        let mut requests = 0;
        let sender = &lasting.senders[usize::from(parts.id.0)];
        for proto in self.plug.drain().chain(self.throttle.drain()) {
            requests += 1;
            let mut rest = Some(proto.bio);
            while let Some(head) = rest {
                let (bio, behind) = lasting.table.split_first(head);
                let _ = sender.send_one(bio, result);
                rest = behind;
            }
        }
        requests
    }
}

impl<P> Drop for Submitter<P> {
    fn drop(&mut self) {
        let cancelled = self.end_private(Err(IoError::CANCELLED));
        let Some(mut parts) = self.parts.take() else { return };
        self.tally.cancelled.add(cancelled);
        self.tally.dropped.add((self.depth - parts.credit.left()).into());
        // An interrupted pass over its plug has staged bios that runners do not see yet.
        parts.staging.publish();
        // A thread that unwinds may have been waiting, or about to sleep.
        self.q.hub.lasting.attendance[usize::from(parts.id.0)].end();
        parts.receiver.cancel_park();
        self.rise();
        let lasting = &self.q.hub.lasting;
        while let Some(payload) = parts.pop(&lasting.table) {
            drop(payload);
        }
        let (leaves_some, lane) = (!parts.is_whole(), parts.lane);
        lasting.seats.put(parts);
        if leaves_some {
            // A sleeping thread may rely on this one.
            self.q.wake_successor(&self.q.hub.shards[self.shard], lane);
        }
    }
}

/// A thread that has made no progress in an elevator or at a pump for this long has no CPU. Several times the duration
/// of a long pass, and a twentieth of the time for which an I/O may wait (decision 0025).
const HELD_UP: Nanos = Nanos::from_micros(50);

/// One submitter's view of the threads that run its elevator and the pumps.
#[derive(Clone, Copy, Debug, Default)]
struct Holdup {
    /// The progress last seen, and the time since which there has been none.
    seen: Option<(u64, Instant)>,
}

impl Holdup {
    /// Compares `progress` at `now` with the last one; `None` if no thread is running. Returns true if the threads are
    /// held up, and then not again for as long.
    #[inline]
    pub(crate) fn look(&mut self, progress: Option<u64>, now: Instant) -> bool {
        let Some(progress) = progress else {
            self.seen = None;
            return false;
        };
        match self.seen {
            Some((seen, since)) if seen == progress && now - since < HELD_UP => false,
            seen => {
                self.seen = Some((progress, now));
                seen.is_some_and(|(seen, _)| seen == progress)
            }
        }
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_nanos(1_000);

    #[test]
    fn a_runner_that_gets_no_further_is_held_up_once_in_a_while() {
        let mut holdup = Holdup::default();
        let later = |n: u64| NOW + Nanos(n * HELD_UP.0);
        assert!(!holdup.look(Some(7), NOW));
        assert!(!holdup.look(Some(7), NOW + Nanos(HELD_UP.0 - 1)));
        assert!(holdup.look(Some(7), later(1)));
        assert!(!holdup.look(Some(7), later(1)), "it was told");
        assert!(holdup.look(Some(7), later(2)));
    }

    #[test]
    fn a_runner_that_gets_on_is_not() {
        let mut holdup = Holdup::default();
        let later = |n: u64| NOW + Nanos(n * HELD_UP.0);
        assert!(!(0..9).any(|n| holdup.look(Some(n), later(n))));
        assert!(!holdup.look(None, later(9)), "there is none");
        assert!(!holdup.look(Some(8), later(20)), "another run");
    }
}
