//! A submitter: the handle by which one thread uses a queue. It corresponds to the kernel's software queue (ctx).
//!
//! It owns its bio cells (its credit), its plug and its ends of two rings; pushing and reaping use no memory that other
//! threads write. Contention begins, if at all, at [`flush`](Submitter::flush).
//!
//! A waiting submitter detects a runner that has lost its CPU (decision 0025). A pass takes microseconds. If an
//! elevator is taken for longer, and no other pass has begun in the meantime, its runner is not running: the kernel has
//! given the CPU to another thread, perhaps to the one that polls. User space gets no notice of that, but two readings
//! of a counter show it.
//!
//! # Waiting
//!
//! At the end of a wait completions are reaped, also from a queue that has failed. An idle thread may sleep once it has
//! announced that and has checked for work again. The host decides how a thread sleeps and how it is woken;
//! `dispatch/mod.rs` decides which thread to wake.

use super::throttle::Throttle;
use crate::dispatch::{Caller, Engine};
use crate::elevator::merging::{Own, PLUG_REQUESTS, Plug, stage};
use crate::planted::Planted;
use crate::shared::hub::{Ask, Follow, Parts, Shard};
use crate::shared::slots::Popped;
use crate::shared::stats::SubmitterCounters;
use crate::submission::{Completion, Root};
use crate::sync::{Arc, Ordering, fence, yield_now};
use crate::{DeviceQueue, planted};
use blkmq_core::{GroupId, HwQueue, Instant, IoError, IoResult, Nanos, Op, Payload, SubmitterId};
use crossbeam_utils::CachePadded;
use push::{Splits, plain_sizes};
use std::fmt;

mod push;

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

impl<P: Send> Submitter<P> {
    /// The first half of a [`flush`](Self::flush) that finds the elevator taken: leaves the plug in staging and kicks
    /// no runner. [`finish_flush`](Self::finish_flush) must be the next call, however much later. Returns false,
    /// without effect, if the plug is empty or access is not by combining.
    ///
    /// For drivers in virtual time, where threads are not preempted; other programs do not need it.
    #[must_use]
    #[doc(hidden)]
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
    #[doc(hidden)]
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

/// A submitter's state among its shard's sleepers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Rest {
    /// Not a sleeper.
    #[default]
    Awake,
    /// Counted as a sleeper.
    Counted,
    /// Counted as a sleeper, with an alarm at this time.
    Until(Instant),
}

impl<P> Submitter<P> {
    /// Leaves the shard's sleepers, if it is among them.
    pub(super) fn rise(&mut self) {
        let alarm = match std::mem::take(&mut self.rest) {
            Rest::Awake => return,
            Rest::Counted => None,
            Rest::Until(at) => (!planted::is(Planted::KeepsAlarm)).then_some(at),
        };
        self.q.hub.shards[self.shard].sleepers.get_up(alarm);
    }
}

impl<P: Send> Submitter<P> {
    /// Begins a wait for completions: the thread [polls](Self::poll) until [`end_wait`](Self::end_wait), except while
    /// it parks. So other threads leave its lane to it, if it has its own.
    #[inline]
    pub fn begin_wait(&mut self) {
        self.q.hub.lasting.attendance[usize::from(self.id().0)].begin();
    }

    /// Ends a wait, and does the work that other threads have left to this one.
    #[inline]
    pub fn end_wait(&mut self, now: Instant) {
        if self.q.hub.has_owners() {
            self.end_wait_of_owner(now);
        }
    }

    fn end_wait_of_owner(&mut self, now: Instant) {
        let id = self.id();
        self.q.hub.lasting.attendance[usize::from(id.0)].end();
        if self.q.has_been_left(self.lane(), now) {
            self.poll(now);
        }
    }

    /// Returns the time until which the thread may park, or `None` while there is anything to reap, to do, or to flush.
    /// The thread parks until that time, [`Instant::MAX`] for no end, or until
    /// [`Host::wake_submitter`](crate::Host::wake_submitter) names this submitter, and then calls
    /// [`unpark`](Self::unpark).
    #[must_use]
    pub fn prepare_park(&mut self, now: Instant) -> Option<Instant> {
        self.rise();
        self.catch_up();
        if self.is_poisoned() {
            return None;
        }
        let meters = &self.q.hub.lasting.meters;
        let to_do = !self.plug.is_empty() || self.throttle.is_due(now, meters);
        if to_do || self.parts().receiver.reaches(1) {
            return None;
        }
        self.shard().sleepers.lie_down();
        self.rest = Rest::Counted;
        let mut until = None;
        if self.parts().receiver.prepare_park() {
            // Pairs with `find_parked`. This thread sets the marks and then checks for due work; the other thread does
            // the reverse, so one of them sees the other. The same holds for a thread that rebuilds the queue, or
            // changes a limit.
            fence(Ordering::SeqCst);
            let is_settled = self.is_current()
                && (planted::is(Planted::ForgetsLimits)
                    || !self.throttle.has_changed(&self.q.hub.lasting.meters));
            let due = self.q.rest_until(self.shard(), self.lane(), now);
            until = due.filter(|_| is_settled).map(|at| self.throttle_or(at));
        }
        if until.is_none() {
            self.unpark();
        }
        until
    }

    /// The earlier of `at` and the next time at which an I/O may pass the limit that holds it back.
    fn throttle_or(&self, at: Instant) -> Instant {
        self.throttle.deadline().map_or(at, |limit| limit.min(at))
    }

    /// For a thread that [may park](Self::prepare_park): announces that it will poll at `at` at the latest, even if it
    /// is not woken. A thread that leaves behind work for a later time then need not wake this one. Optional; O(1).
    ///
    /// Must be called at most once between [`prepare_park`](Self::prepare_park), which has returned a time, and
    /// [`unpark`](Self::unpark).
    pub fn set_alarm(&mut self, at: Instant) {
        debug_assert_eq!(
            self.rest,
            Rest::Counted,
            "an alarm is set once, by a thread that may park"
        );
        if at < Instant::MAX {
            self.shard().sleepers.set_alarm(at);
            self.rest = Rest::Until(at);
        }
    }

    /// Must be called after parking, however it ended.
    pub fn unpark(&mut self) {
        self.parts().receiver.cancel_park();
        self.rise();
    }

    /// The time at which this submitter has work due without a wake-up, and should poll. `None` for never.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let at = self.throttle_or(self.q.deadline(self.shard(), self.lane()));
        (at < Instant::MAX).then_some(at)
    }
}

impl<P: Payload> Submitter<P> {
    /// Passes up to `most` completions to `take`, oldest first. Returns their number. A part of a divided I/O is not a
    /// completion, unless it is the last missing one: then the I/O completes, with the error of the lowest failed part,
    /// if any.
    pub fn reap(&mut self, most: u32, mut take: impl FnMut(Completion<P>)) -> u32 {
        let q = &*self.q;
        let parts = self.parts.as_mut().expect("parts are there until the submitter is dropped");
        if !parts.receiver.reaches(1) {
            return 0;
        }
        let mut reaped = 0;
        let mut counted = Reaped { bios: 0, tally: &self.tally };
        let mut finished = parts.receiver.finished(&q.hub.lasting.table, &mut parts.credit);
        while reaped < most
            && let Some(popped) = finished.next()
        {
            counted.bios += 1;
            let Popped { cookie, mut result, mut payload, cell, part } = popped;
            if part {
                match self.splits.part_done(q.hub.lasting.table.place(cell), result, payload) {
                    Some(whole) => (result, payload) = whole,
                    None => continue,
                }
            }
            take(Completion { cookie, result, payload });
            reaped += 1;
        }
        let bios = counted.bios;
        drop(counted);
        if bios > 0 && parts.credit.left() == self.depth {
            // With no I/O in flight this thread may never return, and a parked submitter may rely on it.
            self.catch_up();
            self.q.wake_successor(self.shard(), self.lane());
        }
        reaped
    }

    /// Returns whether there are probably `n` completions to reap. Reads only one entry of the ring, so that a thread
    /// that spins on this does not take a line that is being filled. With `n` of 1 the answer is exact.
    ///
    /// Takes in finished parts of divided I/Os if they are the oldest entries and do not complete their I/O.
    #[must_use]
    pub fn has_completions(&mut self, n: u32) -> bool {
        if self.splits.extra() > 0 {
            self.take_parts_in();
        }
        self.parts().receiver.reaches(n)
    }

    /// Takes in parts until the oldest entry of the ring is a completion, or the ring is empty.
    #[cold]
    fn take_parts_in(&mut self) {
        let q = &*self.q;
        let parts = self.parts.as_mut().expect("parts are there until the submitter is dropped");
        while let Some(place) = parts.receiver.peek_part(&q.hub.lasting.table)
            && !self.splits.completes(place)
        {
            let mut finished = parts.receiver.finished(&q.hub.lasting.table, &mut parts.credit);
            let part = finished.next().expect("it was seen just now");
            let whole = self.splits.part_done(place, part.result, part.payload);
            assert!(whole.is_none(), "others are missing");
            self.tally.completed.add(1);
        }
    }
}

/// Bios being reaped. They are counted when the call ends, even if the closure that takes them panics.
struct Reaped<'a> {
    pub(super) bios: u64,
    pub(super) tally: &'a SubmitterCounters,
}

impl Drop for Reaped<'_> {
    #[inline]
    fn drop(&mut self) {
        self.tally.completed.add(self.bios);
    }
}

impl<P> Submitter<P> {
    /// The number of I/Os that wait for the limits of their groups, and the earliest time at which one may proceed.
    /// O(groups with waiting I/Os).
    #[must_use]
    pub fn throttled(&self) -> (u32, Option<Instant>) {
        (self.throttle.len(), self.throttle.deadline())
    }

    /// Returns whether another I/O of `group`, in the direction of `op`, would wait for a limit behind I/Os that wait
    /// here. Reads are one direction, all other operations the other. O(groups with waiting I/Os).
    #[must_use]
    #[inline]
    pub fn is_throttled(&self, group: GroupId, op: Op) -> bool {
        !self.throttle.is_empty() && self.throttle.waits(group.index(), op)
    }

    /// The number of I/Os, and parts of divided ones, that submitters of this number have reaped.
    #[must_use]
    pub fn taken_back(&self) -> u64 {
        self.tally.completed.get()
    }
}

const POISONED: IoResult = Err(IoError::POISONED);

/// The health of a queue, as one of its submitters knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Health {
    Sound,
    /// A policy or a device has panicked. The I/Os within reach are being returned.
    Poisoned,
    /// A policy or a device has panicked. Every I/O within reach was returned, or is ready to be reaped.
    Over,
}

impl<P> Submitter<P> {
    /// Returns whether this submitter has found the queue [poisoned](crate::Queue::is_poisoned). If true, the submitter
    /// takes no more I/Os, and its earlier ones end with [`IoError::POISONED`], or with the device's result.
    #[inline]
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        self.health != Health::Sound
    }

    /// Notes that the queue has failed: every further push takes the rare path, which refuses it.
    fn notice_poison(&mut self) {
        if self.health == Health::Sound {
            self.health = Health::Poisoned;
        }
        self.plain = [0; 5];
    }
}

impl<P: Send> Submitter<P> {
    /// The number of I/Os that will not be returned, with their payloads: the device that panicked has not returned
    /// them, and may still write to them. Known when every other I/O of this submitter has been reaped. `None` before
    /// that, and until the submitter has found the queue [poisoned](Self::is_poisoned).
    #[must_use]
    pub fn lost(&self) -> Option<u32> {
        let parts = self.parts.as_ref().expect("parts are there until the submitter is dropped");
        let outstanding = self.outstanding();
        let all_reaped = match self.health {
            Health::Sound => false,
            // Requests of other submitters may still be in flight.
            Health::Poisoned => outstanding == 0,
            Health::Over => !parts.receiver.reaches(1),
        };
        all_reaped.then_some(outstanding)
    }

    /// Ends the I/Os in the plug, the I/Os held back by limits of groups, and every other I/O within reach.
    #[cold]
    pub(super) fn end_all(&mut self, now: Instant) {
        self.end_private(POISONED);
        // An interrupted pass over this submitter's plug has staged bios that runners do not see yet.
        self.parts().staging.publish();
        if self.health == Health::Poisoned && self.q.salvage(now) {
            self.health = Health::Over;
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
