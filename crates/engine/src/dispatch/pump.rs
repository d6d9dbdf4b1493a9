//! The pump: moves the requests of one hardware queue from the outbox to the device, and back to their submitters.
//!
//! A turn never blocks. The thread that holds the pump runs it: a thread that submits or waits, or a pump thread. A
//! request that the device refuses stays here, ahead of all others, and keeps its driver tag.
//!
//! *Invariant: requests reach the device in the order in which the elevator chose them* (decision 0003): the runner
//! fills the outbox in that order, and the pump empties it in that order.
//!
//! # Failed requests
//!
//! The pump also gives back finished, requeued, failed and expired requests, with their tags, budgets and tokens.
//! A failed request of several owners is divided: the part of each owner is repeated separately, so that a bad sector
//! of one tenant fails no neighbour's I/O (decision 0011).
//!
//! Elevators merge adjacent I/Os of any owners, so the error of a merged request says little about each of its bios.
//! Such a request keeps its slot and its driver tag, and goes to the device again as a series of *runs*: leading bios
//! that have one owner. The bios of a run end with its result, and the request ends with its last run. A run is tried
//! once; before the first run, the whole request was retried as often as the queue allows.
//!
//! A request that timed out is not repeated, because its runs would each take as long again. Nor is a request that
//! ended without the device, or a step of a flush sequence.

use crate::dispatch::device::{Busy, Deadlines, DeviceQueue, Enqueued, Expiry, Finished};
use crate::planted::Planted;
use crate::shared::hctx::{Duties, Handback, Hctx, Verdict};
use crate::shared::hub::{Completions, Hub, Lasting};
use crate::shared::slots::{BATCH, Bio, Few, Run};
use crate::sync::{COMPARE, Consumer, Producer};
use crate::{BioTable, Inflight, planted};
use blkmq_core::{Instant, IoError, IoResult, Limits, Nanos, Op, RequestId, Tag};
use blkmq_sched::Done;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The device announces no event when a resource becomes available (RESOURCE), so the pump tries again after this time
/// (`spec/framework.md` section 1).
pub(crate) const RESOURCE_DELAY: Nanos = Nanos::from_millis(3);

/// The ends of the rings between an elevator and one hardware queue's pump.
pub(crate) struct Ends {
    pub(crate) outbox: Consumer<Inflight>,
    pub(crate) returns: Producer<Done>,
    pub(crate) handbacks: Producer<Handback>,
}

/// A hardware queue of a device, and the latest time passed to the device.
pub(crate) type Installed<P> = (Box<dyn DeviceQueue<P>>, Instant);

pub(crate) struct Pump<P> {
    device: Box<dyn DeviceQueue<P>>,
    /// The device has a descriptor to watch.
    has_event_fd: bool,
    /// A submitter owns this lane and sleeps on the device, which handles wake-ups when it is asked for finished
    /// requests.
    is_owned: bool,
    /// The device has work besides requests.
    has_own_work: bool,
    ends: Ends,
    /// Refused requests, offered again before any other, from the front.
    stuck: VecDeque<Inflight>,
    /// Requests that the device wants again later, and that are not offered again in this turn.
    later: VecDeque<Inflight>,
    finished: Vec<Finished>,
    tags: Few<Tag, BATCH>,
    /// The pools of the tokens that are returned with the tags in `tags`.
    tokens: Vec<u8>,
    /// The number of budgets that are returned with them.
    budgets: u32,
    completions: Completions,
    /// The latest time at which a caller has run the pump.
    now: Instant,
    /// The number of its lane.
    lane: u16,
    /// Requests at the device.
    at_device: u32,
    deadlines: Deadlines,
    /// The number of times that a request is tried again after an error.
    retries: u8,
    /// Requests that were returned with a result in this turn and have not been counted.
    completed: u64,
    /// The part of `completed` that is tried again.
    retried: u64,
    /// The part of `completed` after which another run of the same request follows.
    repeated: u64,
    /// Requests completed since `take_completed_since_kick` last took the count.
    completed_since_kick: u64,
    /// A request returns to the elevator in this turn, which must make a pass for it.
    handed_back: bool,
    /// The shared words say that no request is at the device and none was refused.
    shows_idle: bool,
    /// Failed requests with several owners, which are being repeated by owner.
    apart: Apart,
    /// Duties that turns leave to the thread that made them.
    pub(crate) duties: Duties,
}

/// The limits of a pump.
#[derive(Clone, Copy)]
pub(crate) struct PumpLimits {
    /// The number of its lane.
    pub(crate) lane: u16,
    /// A submitter owns it.
    pub(crate) is_owned: bool,
    /// The number of driver tags; each tag is below it.
    pub(crate) tags: u32,
    pub(crate) timeout: Nanos,
    pub(crate) retries: u8,
}

/// The kind of a turn's last write to the words that a runner may be about to check again.
#[derive(Clone, Copy)]
enum Last {
    Store,
    /// All stores precede it.
    ReadModifyWrite,
}

/// The result of offering requests to a device.
#[derive(Default)]
struct Issued {
    accepted: u32,
    inline: u32,
    refused: Option<Busy>,
}

/// Requests for a device. Not an iterator: `Option` would copy each token once more.
pub(crate) trait Source<P> {
    /// Returns whether there are no requests.
    fn is_empty(&mut self, pump: &mut Pump<P>) -> bool;
    /// Takes the first request.
    ///
    /// # Panics
    /// If there is none.
    fn take(&mut self, pump: &mut Pump<P>) -> Inflight;
}

/// The outbox of the pump itself.
struct Outbox;

impl<P> Source<P> for Outbox {
    #[inline(always)]
    fn is_empty(&mut self, pump: &mut Pump<P>) -> bool {
        pump.ends.outbox.is_empty()
    }

    #[inline(always)]
    fn take(&mut self, pump: &mut Pump<P>) -> Inflight {
        pump.ends.outbox.take()
    }
}

impl<P> Source<P> for VecDeque<Inflight> {
    fn is_empty(&mut self, _: &mut Pump<P>) -> bool {
        Self::is_empty(self)
    }

    fn take(&mut self, _: &mut Pump<P>) -> Inflight {
        self.pop_front().expect("it is not empty")
    }
}

impl<P: Send> Pump<P> {
    pub(crate) fn new(
        device: Box<dyn DeviceQueue<P>>,
        ends: Ends,
        table: &BioTable<P>,
        limits: PumpLimits,
    ) -> Self {
        Self {
            has_event_fd: has_event_fd(&*device),
            is_owned: limits.is_owned,
            has_own_work: device.has_own_work(),
            device,
            ends,
            stuck: VecDeque::new(),
            later: VecDeque::new(),
            finished: Vec::new(),
            tags: Few::new(Tag(0)),
            tokens: Vec::with_capacity(BATCH),
            budgets: 0,
            completions: Completions::new(table),
            now: Instant::ZERO,
            lane: limits.lane,
            at_device: 0,
            deadlines: Deadlines::new(limits.tags, limits.timeout),
            retries: limits.retries,
            completed: 0,
            completed_since_kick: 0,
            retried: 0,
            repeated: 0,
            handed_back: false,
            shows_idle: false,
            apart: Apart::default(),
            duties: Duties::default(),
        }
    }

    /// Issues the requests in the outbox, then takes back finished ones. Returns whether an elevator waits for
    /// something that this turn returned. The caller must also carry out the [`duties`](Self::duties).
    #[inline]
    pub(crate) fn turn(&mut self, hub: &Hub<P>, hctx: &Hctx, now: Instant) -> bool {
        self.turn_with(hub, hctx, now, &mut Outbox)
    }

    /// Like [`turn`](Self::turn), but after another turn. Rare, and therefore out of line.
    #[inline(never)]
    pub(crate) fn turn_again(&mut self, hub: &Hub<P>, hctx: &Hctx, now: Instant) -> bool {
        self.turn(hub, hctx, now)
    }

    /// Like [`turn`](Self::turn), with requests from another source: the list that a caller of the one-at-a-time modes
    /// has collected.
    pub(crate) fn turn_with(
        &mut self,
        hub: &Hub<P>,
        hctx: &Hctx,
        now: Instant,
        source: &mut impl Source<P>,
    ) -> bool {
        hctx.counters.turns.add(1);
        // Callers read clocks independently, but for the device time must never go back.
        let now = self.now.max(now);
        self.now = now;
        let mut issued = Issued::default();
        let mut busy = 0;
        loop {
            self.offer(hub, now, &mut issued, source);
            busy += u64::from(issued.refused.is_some());
            let inside = self.at_device;
            if inside > 0 || self.is_owned || self.has_own_work {
                self.reap(hub, hctx, now);
                // After the reap: a request that the device has finished by now has not timed out.
                if self.deadlines.is_due(now) {
                    self.expire(hub, hctx, now);
                }
            }
            // A run of a divided failed request waits ahead of all other requests.
            if self.apart.take_ready() && issued.refused.is_none() {
                continue;
            }
            // DEV_RESOURCE promised that a completion makes room. If that completion was just reaped, no other one
            // leads to a further turn.
            let has_room = self.at_device < inside;
            if !has_room || issued.refused != Some(Busy::DevResource) {
                break;
            }
        }
        let all = issued.accepted + issued.inline;
        if all > 0 || busy > 0 {
            hctx.note_busy(busy > 0);
            hctx.counters.issued.add(all.into());
        }
        if busy > 0 {
            hctx.counters.busy.add(busy);
        }
        self.completed += u64::from(issued.inline);
        let waits = match self.settle(hub, hctx, now, issued.refused) {
            Last::ReadModifyWrite => hctx.restart.take_after_rmw(),
            Last::Store => hctx.restart.take(),
        };
        let handed_back = std::mem::take(&mut self.handed_back);
        waits || handed_back && !planted::is(Planted::ForgetsHandedBack)
    }

    /// Takes back the requests that the device has finished, without offering new ones. Returns whether there were any.
    pub(crate) fn look(&mut self, hub: &Hub<P>, hctx: &Hctx, now: Instant) -> bool {
        let inside = self.at_device;
        if inside == 0 {
            return false;
        }
        self.now = self.now.max(now);
        self.reap(hub, hctx, self.now);
        if self.at_device < inside {
            self.settle(hub, hctx, self.now, None);
        }
        self.at_device < inside
    }

    /// Gives the pump its device.
    pub(crate) fn install(&mut self, (device, now): Installed<P>) {
        self.has_event_fd = has_event_fd(&*device);
        self.has_own_work = device.has_own_work();
        self.device = device;
        self.now = now;
    }

    /// Returns whether the device has a descriptor to watch, which signals requests or work of the device itself.
    pub(crate) fn signals(&self) -> bool {
        (self.at_device > 0 || self.has_own_work) && self.has_event_fd
    }

    /// Offers the device the requests that it refused earlier, then those of `source`, until it refuses one.
    #[inline]
    fn offer(
        &mut self,
        hub: &Hub<P>,
        now: Instant,
        issued: &mut Issued,
        source: &mut impl Source<P>,
    ) {
        issued.refused = None;
        if hub.lasting.control.is_quiesced() {
            // The kept requests precede all others when the queue continues.
            self.keep(source);
            return;
        }
        let before = issued.accepted;
        if !self.stuck.is_empty() {
            self.offer_stuck(hub, now, issued);
        }
        while issued.refused.is_none() && !source.is_empty(self) {
            let rq = source.take(self);
            self.enqueue(hub, now, rq, issued);
        }
        // Requests of the caller's source must not be lost when the device refuses an earlier one.
        if issued.refused.is_some() {
            self.keep(source);
        }
        if issued.accepted > before {
            self.at_device += issued.accepted - before;
            self.device.commit(now);
        }
    }

    /// Keeps the requests of `source` behind those that the device refused.
    #[cold]
    #[inline(never)]
    fn keep(&mut self, source: &mut impl Source<P>) {
        while !source.is_empty(self) {
            let rq = source.take(self);
            self.stuck.push_back(rq);
        }
    }

    /// Offers the device the requests that it refused earlier, until it refuses one.
    #[cold]
    #[inline(never)]
    fn offer_stuck(&mut self, hub: &Hub<P>, now: Instant, issued: &mut Issued) {
        while let Some(rq) = self.stuck.pop_front() {
            if !self.enqueue(hub, now, rq, issued) {
                break;
            }
        }
    }

    /// Offers one request to the device. If it is refused, it waits ahead of all others, and the result is false.
    /// Always inlined: nearly every request comes from one caller, and the rare other caller must not turn this into a
    /// function call there.
    #[inline(always)]
    fn enqueue(&mut self, hub: &Hub<P>, now: Instant, rq: Inflight, issued: &mut Issued) -> bool {
        let tag = rq.tag;
        match self.device.enqueue(now, &hub.lasting.table, rq) {
            Enqueued::Accepted => {
                issued.accepted += 1;
                self.deadlines.begin(now, tag);
            }
            Enqueued::Done(rq, result) => {
                issued.inline += 1;
                self.finish(hub, now, rq, result);
            }
            Enqueued::Busy(rq, why) => {
                self.stuck.push_front(rq);
                issued.refused = Some(why);
                return false;
            }
        }
        true
    }

    /// Publishes the results of a turn to elevators, submitters and waiting threads.
    #[inline(always)]
    fn settle(&mut self, hub: &Hub<P>, hctx: &Hctx, now: Instant, refused: Option<Busy>) -> Last {
        // Elevators first, then the clients: a client may submit again immediately.
        self.ends.returns.publish();
        if self.handed_back {
            self.ends.handbacks.publish();
        }
        if self.is_owned && (self.completed > 0 || self.handed_back) {
            hub.shards[0].returned.set(self.lane);
        }
        self.count_completed(hctx);
        let mut last = self.free_tags(hub, hctx);
        self.completions.flush(&hub.lasting);
        self.duties.wake(&mut self.completions.wake);
        // Requests that the device wants again later are treated like those refused with RESOURCE.
        if refused == Some(Busy::Resource) || !self.later.is_empty() {
            self.stuck.append(&mut self.later);
            self.duties.run_later(now + RESOURCE_DELAY);
        }
        if self.apart.take_ready() {
            self.duties.arm(now);
        }
        let is_idle = self.at_device == 0 && self.stuck.is_empty();
        if !(is_idle && self.shows_idle) {
            hctx.set_stuck(!self.stuck.is_empty());
            hctx.set_signals(self.signals());
            hctx.set_next_event(self.next_event(hub.lasting.control.is_quiesced()));
            self.shows_idle = is_idle && !self.has_own_work;
            last = Last::Store;
        }
        last
    }

    /// Counts the requests that have completed in a turn.
    #[inline]
    fn count_completed(&mut self, hctx: &Hctx) {
        let completed = std::mem::take(&mut self.completed);
        if COMPARE {
            self.completed_since_kick += completed;
        }
        if self.retried + self.repeated == 0 {
            hctx.counters.completed.add(completed);
            return;
        }
        let retried = std::mem::take(&mut self.retried);
        hctx.counters.completed.add(completed - retried - std::mem::take(&mut self.repeated));
        hctx.counters.retries.add(retried);
    }

    /// The time to check the device if no thread does so before. The timer of requests is published this way and not
    /// through the gate, which forgets its deadline whenever a turn begins: this is one store, and only when the time
    /// changes.
    fn next_event(&self, quiesced: bool) -> Option<Instant> {
        let next = self.device.next_event();
        if self.at_device == 0 {
            return next.filter(|_| self.has_own_work || !self.stuck.is_empty() && !quiesced);
        }
        // A device that holds requests but names no time and has no descriptor is polled by waiting threads. While the
        // queue is quiesced nothing is offered, so an event that is due is ignored: it can only mean room.
        let next = match next {
            None if self.has_event_fd => Instant::MAX,
            None => Instant::ZERO,
            Some(at) if quiesced && at <= self.now => Instant::MAX,
            Some(at) => at,
        };
        let timer = self.deadlines.timer().filter(|_| !planted::is(Planted::ForgetsTimer));
        Some(timer.map_or(next, |timer| timer.min(next)))
    }

    /// Takes the count of requests that have completed since the last call (`KickMode`).
    pub(crate) fn take_completed_since_kick(&mut self) -> u64 {
        std::mem::take(&mut self.completed_since_kick)
    }
}

fn has_event_fd<P>(device: &dyn DeviceQueue<P>) -> bool {
    #[cfg(target_os = "linux")]
    return device.event_fd().is_some();
    #[cfg(not(target_os = "linux"))]
    {
        let _ = device;
        false
    }
}

impl<P> Pump<P> {
    /// Requests that the device has refused, or wants again later.
    pub(crate) fn refused(&self) -> impl Iterator<Item = (RequestId, Tag)> {
        self.stuck.iter().chain(&self.later).map(|rq| (rq.id, rq.tag))
    }

    /// The number of requests at the device.
    pub(crate) fn inside(&self) -> u32 {
        self.at_device
    }
}

/// Stands in for a device that is yet to be installed, has moved to a later queue, or belongs to the lane of a
/// submitter that was never registered.
pub(crate) struct Vacant;

impl<P> DeviceQueue<P> for Vacant {
    fn enqueue(&mut self, _: Instant, _: &BioTable<P>, _: Inflight) -> Enqueued {
        unreachable!("nothing is issued by a queue without its device")
    }

    fn reap(&mut self, _: Instant, _: &BioTable<P>, _: &mut Vec<Finished>) {}

    fn next_event(&self) -> Option<Instant> {
        Some(Instant::MAX)
    }

    fn abandon(&mut self, _: &mut Vec<Inflight>) {}
}

impl<P: Send> Pump<P> {
    /// Ends the requests that wait to be offered to the device, in a queue that has failed, and sends their
    /// completions.
    pub(crate) fn end_waiting(&mut self, hub: &Hub<P>, hctx: &Hctx, result: IoResult) {
        while let Some(rq) = self.take_waiting() {
            self.give_back(hub, &rq);
            self.completions.push_chain(&hub.lasting, rq.into_head(), result);
        }
        for rest in self.apart.drain() {
            self.completions.push_chain(&hub.lasting, rest, result);
        }
        self.ends.handbacks.publish();
        self.free_tags(hub, hctx);
        self.completions.flush(&hub.lasting);
        self.duties.wake(&mut self.completions.wake);
    }

    /// Makes every later error final.
    pub(crate) fn stop_retrying(&mut self) {
        self.retries = 0;
    }
}

impl<P> Pump<P> {
    /// Returns whether no request is on its way to the device, at it, or on its way back.
    pub(crate) fn is_idle(&mut self) -> bool {
        self.at_device == 0
            && self.stuck.is_empty()
            && self.later.is_empty()
            && self.ends.outbox.is_empty()
    }

    /// Takes the device away, for a later queue.
    pub(crate) fn take_device(&mut self) -> Installed<P> {
        (std::mem::replace(&mut self.device, Box::new(Vacant)), self.now)
    }

    /// Takes a request that waits to be offered to the device.
    fn take_waiting(&mut self) -> Option<Inflight> {
        self.stuck
            .pop_front()
            .or_else(|| self.later.pop_front())
            .or_else(|| self.ends.outbox.pop())
            // Requests that had finished when the device panicked.
            .or_else(|| self.finished.pop().map(|finished| finished.rq))
    }

    /// Asks a device that panicked for its requests, and drops the device. The requests that it returns then wait in
    /// the pump; the others are lost.
    pub(crate) fn give_up_device(&mut self) {
        let (mut device, _) = self.take_device();
        self.at_device = 0;
        let mut held = Vec::new();
        let given_back = catch_unwind(AssertUnwindSafe(|| device.abandon(&mut held)));
        self.later.extend(held);
        if given_back.is_err() {
            // The device has panicked again: no more calls, not even its destructor.
            std::mem::forget(device);
        }
    }

    /// Moves every unfinished request into `held`, at the end of a queue.
    ///
    /// # Panics
    /// If the device panics; `held` then has the requests that it returned until then, and all other requests of the
    /// pump.
    pub(crate) fn abandon(&mut self, held: &mut Vec<Inflight>) {
        held.extend(std::iter::from_fn(|| self.take_waiting()));
        // The run in flight returns the tag of each request.
        self.apart.drain().for_each(Bio::orphan);
        self.device.abandon(held);
    }

    /// Sends the completions that were not sent, at the end of a queue.
    pub(crate) fn send_rest(&mut self, lasting: &Lasting<P>) {
        self.completions.send_rest(lasting);
    }
}

impl<P: Send> Pump<P> {
    /// Takes back requests that are finished, or that the device wants again later.
    pub(super) fn reap(&mut self, hub: &Hub<P>, hctx: &Hctx, now: Instant) {
        self.device.reap(now, &hub.lasting.table, &mut self.finished);
        if self.finished.is_empty() {
            return;
        }
        let mut finished = std::mem::take(&mut self.finished);
        for Finished { rq, verdict } in finished.drain(..) {
            self.at_device -= 1;
            self.deadlines.end(rq.tag);
            match verdict {
                Verdict::Done(result) => {
                    self.completed += 1;
                    self.finish(hub, now, rq, result);
                }
                Verdict::Requeue if !self.apart.has(rq.tag) => {
                    self.give_back(hub, &rq);
                    self.hand_back(Handback { rq, verdict, at: now });
                }
                // A run stays here, because the elevator knows only the whole request.
                Verdict::Requeue | Verdict::RequeueTail => {
                    hctx.counters.tail_requeues.add(1);
                    self.later.push_back(rq);
                }
            }
        }
        self.finished = finished;
    }

    /// Asks the device about each request that is past its deadline.
    #[cold]
    fn expire(&mut self, hub: &Hub<P>, hctx: &Hctx, now: Instant) {
        let mut from = 0;
        while let Some(tag) = self.deadlines.next_expired(from, now) {
            from = tag.0 + 1;
            hctx.counters.timeouts.add(1);
            match self.device.timed_out(now, tag) {
                Expiry::ResetTimer => self.deadlines.restart(now, tag),
                Expiry::Done(rq, result) => {
                    assert!(rq.tag == tag, "asked about tag {}, and got {}", tag.0, rq.tag.0);
                    self.at_device -= 1;
                    if !planted::is(Planted::KeepsExpired) {
                        self.deadlines.end(tag);
                    }
                    self.completed += 1;
                    self.finish(hub, now, rq, result);
                }
            }
        }
        self.deadlines.look_again(now);
    }

    #[inline(always)]
    pub(super) fn finish(&mut self, hub: &Hub<P>, now: Instant, rq: Inflight, result: IoResult) {
        if result.is_err() || !self.apart.is_empty() {
            self.finish_rare(hub, now, rq, result);
        } else {
            self.end(hub, now, rq, Ok(()));
        }
    }

    /// Ends a request that failed, or any request while some are being repeated by owner.
    #[cold]
    #[inline(never)]
    fn finish_rare(&mut self, hub: &Hub<P>, now: Instant, rq: Inflight, result: IoResult) {
        if let Some(over) = self.look_apart(hub, now, rq, result) {
            self.end(hub, now, over, result);
        }
    }

    /// Ends a finished request, or hands it back for the next step of its flush sequence.
    #[inline(always)]
    fn end(&mut self, hub: &Hub<P>, now: Instant, rq: Inflight, result: IoResult) {
        self.give_back(hub, &rq);
        if rq.is_step() {
            self.hand_back(Handback { rq, verdict: Verdict::Done(result), at: now });
            return;
        }
        let done = Done { rq: rq.id, result, issued: rq.issued, completed: now };
        // The ring has an entry for each slot, and each issued slot returns once.
        self.ends.returns.put(done);
        let more = rq.bios - 1;
        let head = rq.into_head();
        if more == 0 {
            self.completions.push(&hub.lasting, head, result);
        } else {
            self.completions.push_chain(&hub.lasting, head, result);
        }
    }

    /// Handles a request that failed, or any request while some are being repeated by owner. Returns the request if it
    /// is over.
    fn look_apart(
        &mut self,
        hub: &Hub<P>,
        now: Instant,
        rq: Inflight,
        result: IoResult,
    ) -> Option<Inflight> {
        let is_run = self.apart.has(rq.tag);
        if let Err(error) = result
            && !is_run
            && rq.retries < self.retries
            && error.is_retryable()
        {
            self.give_back(hub, &rq);
            self.try_again(now, rq);
            return None;
        }
        match self.apart.next(&hub.lasting.table, &hub.limits, rq, result) {
            Next::Over(rq) => return Some(rq),
            Next::Run { run, over } => {
                let counters = &hub.hctxs[usize::from(run.hw.0)].counters;
                counters.runs.add(1);
                match over {
                    Some(head) => self.completions.push_chain(&hub.lasting, head, result),
                    None => counters.taken_apart.add(1),
                }
                self.repeated += 1;
                self.stuck.push_front(run);
            }
        }
        None
    }

    #[cold]
    fn try_again(&mut self, now: Instant, mut rq: Inflight) {
        rq.retries += 1;
        self.retried += 1;
        self.hand_back(Handback { rq, verdict: Verdict::Requeue, at: now });
    }

    #[cold]
    fn hand_back(&mut self, back: Handback) {
        self.handed_back = true;
        // The ring has an entry for each slot.
        self.ends.handbacks.put(back);
    }

    /// Gives back the tag, the budget and the token that `rq` had at the device, in batches.
    #[inline]
    pub(super) fn give_back(&mut self, hub: &Hub<P>, rq: &Inflight) {
        self.tags.push(rq.tag);
        if rq.has_more_than_a_tag() {
            self.budgets += u32::from(rq.has_budget());
            if let Some(pool) = rq.pool() {
                self.tokens.push(pool);
            }
        }
        if self.tags.is_full() {
            self.free_full(hub, &hub.hctxs[usize::from(rq.hw.0)]);
        }
    }

    #[inline(never)]
    fn free_full(&mut self, hub: &Hub<P>, hctx: &Hctx) {
        self.free_tags(hub, hctx);
    }

    #[inline(always)]
    fn free_tags(&mut self, hub: &Hub<P>, hctx: &Hctx) -> Last {
        if self.tags.is_empty() {
            return Last::Store;
        }
        let duties = &mut self.duties;
        let tags = self.tags.values();
        if self.budgets > 0 {
            hub.put_budget(std::mem::take(&mut self.budgets), duties);
        }
        if !self.tokens.is_empty() {
            for alike in self.tokens.chunk_by(|one, other| one == other) {
                hub.put_tokens(alike[0].into(), alike.len() as u32, duties);
            }
            self.tokens.clear();
        }
        hctx.tags.put(tags, &hub.tag_wait, duties);
        self.tags.clear();
        Last::ReadModifyWrite
    }
}

/// A request that is being repeated, except for the run in flight.
struct Series {
    tag: Tag,
    /// The bios behind that run, and their number; `None` if it is the last run.
    rest: Option<(Bio, u32)>,
}

/// The requests of one hardware queue that are being repeated; usually none.
#[derive(Default)]
struct Apart {
    series: Vec<Series>,
    /// A run has begun to wait for the device since the last check.
    is_ready: bool,
}

/// The next step for a request that the device has returned.
pub(crate) enum Next {
    /// The request is over.
    Over(Inflight),
    /// A run goes to the device.
    Run {
        run: Inflight,
        /// The bios of the previous run, which are over. `None` if this is the first run.
        over: Option<Bio>,
    },
}

impl Apart {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.series.is_empty()
    }

    /// Returns whether the request with this tag is repeated in runs.
    pub(crate) fn has(&self, tag: Tag) -> bool {
        self.series.iter().any(|series| series.tag == tag)
    }

    /// Returns whether a run has begun to wait for the device since the last call.
    #[inline]
    fn take_ready(&mut self) -> bool {
        std::mem::take(&mut self.is_ready)
    }

    /// The next step for `rq`, which was returned with this result. O(requests being repeated, bios of the next
    /// run).
    pub(crate) fn next<P>(
        &mut self,
        table: &BioTable<P>,
        limits: &Limits,
        rq: Inflight,
        result: IoResult,
    ) -> Next {
        let Some(at) = self.series.iter().position(|series| series.tag == rq.tag) else {
            return if is_worth_repeating(table, &rq, result) {
                let (run, rest) = cut(table, limits, rq);
                self.series.push(Series { tag: run.tag, rest });
                self.is_ready = true;
                Next::Run { run, over: None }
            } else {
                Next::Over(rq)
            };
        };
        let Some(rest) = self.series[at].rest.take() else {
            self.series.swap_remove(at);
            return Next::Over(rq);
        };
        let (rq, over) = rq.with_head(rest);
        let (run, rest) = cut(table, limits, rq);
        self.series[at].rest = rest;
        self.is_ready = true;
        Next::Run { run, over: Some(over) }
    }

    /// Takes out the bios that wait behind a run.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Bio> + '_ {
        self.series.drain(..).filter_map(|series| series.rest.map(|(bio, _)| bio))
    }
}

fn is_worth_repeating<P>(table: &BioTable<P>, rq: &Inflight, result: IoResult) -> bool {
    let is_partial = result.is_err_and(IoError::may_be_partial);
    is_partial && !rq.is_step() && rq.bios > 1 && rq.first_run(table).bios < rq.bios
}

/// The first run of `rq`, as a separate request, and the bios behind it.
fn cut<P>(table: &BioTable<P>, limits: &Limits, rq: Inflight) -> (Inflight, Option<(Bio, u32)>) {
    let Run { bios, sectors } = rq.first_run(table);
    let op = rq.op();
    let all = || rq.bios(table).take(bios as usize);
    let sector = all().next().expect("a run has a first bio").sector;
    let segments = match op {
        // A discard that gathers ranges has one segment for each bio; a contiguous discard has one.
        Op::Discard if limits.max_discard_segments > 1 => u64::from(bios),
        Op::Read | Op::Write => all().map(|bio| table.segments(limits, op, &bio)).sum(),
        _ => 1,
    };
    let segments = u16::try_from(segments).expect("no more than the request had");
    rq.cut(table, sector, Run { bios, sectors }, segments)
}
