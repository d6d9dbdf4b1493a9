//! The pump: the way of one hardware queue's requests from the outbox to the device and back to their submitters.
//!
//! A turn never blocks. The thread that holds the pump runs it: a thread that submits or waits, or a pump thread. A
//! request that the device refuses stays here, ahead of all others, and keeps its driver tag.
//!
//! *Invariant: requests reach the device in the order in which the elevator chose them* (decision 0003): the runner
//! fills the outbox in that order, and the pump empties it in that order.

use crate::apart::{Apart, Next};
use crate::build::{Ends, Installed, Vacant};
use crate::completions::{BATCH, Completions};
use crate::device::{Busy, DeviceQueue, Enqueued, Expiry, Finished, Verdict};
use crate::expiry::Deadlines;
use crate::hctx::Hctx;
use crate::inflight::Handback;
use crate::planted::{self, Planted};
use crate::shared::{Lasting, Shared};
use crate::slots::Bio;
use crate::{BioTable, Inflight};
use blkmq_core::{Instant, IoResult, Nanos, SubmitterId, Tag};
use blkmq_sched::Done;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

mod held;

/// RESOURCE promises no event when there is room, so the pump tries again after this time (`spec/framework.md`
/// section 1).
pub(crate) const RESOURCE_DELAY: Nanos = Nanos::from_millis(3);

pub(crate) struct Pump<P> {
    device: Box<dyn DeviceQueue<P>>,
    /// The device has a descriptor to watch.
    has_event_fd: bool,
    ends: Ends,
    /// Refused requests, offered again before any other, from the front.
    stuck: VecDeque<Inflight>,
    /// Requests that the device wants again later, not offered again in this turn.
    later: VecDeque<Inflight>,
    finished: Vec<Finished>,
    tags: Vec<Tag>,
    /// The pools of the tokens that go back with the tags in `tags`.
    tokens: Vec<u8>,
    completions: Completions,
    /// The latest time that a caller has run the pump with.
    now: Instant,
    /// Requests at the device.
    at_device: u32,
    deadlines: Deadlines,
    /// How often a request is tried again after an error.
    retries: u8,
    /// Requests that came back with a result in this turn and are not counted yet.
    completed: u64,
    /// Of `completed`, requests that are tried again.
    retried: u64,
    /// Of `completed`, results that are followed by a run of the same request (`apart.rs`).
    repeated: u64,
    /// Requests completed since `take_completed_since_kick` last took the count.
    completed_since_kick: u64,
    /// A request goes back to the elevator in this turn, which must make a pass for it.
    handed_back: bool,
    /// Requests that failed and that several owners share, being repeated by owner.
    apart: Apart,
}

/// The limits of a pump.
#[derive(Clone, Copy)]
pub(crate) struct PumpLimits {
    /// The number of driver tags; each tag is below it.
    pub(crate) tags: u32,
    pub(crate) timeout: Nanos,
    pub(crate) retries: u8,
}

/// The result of offering requests to a device.
#[derive(Default)]
struct Issued {
    accepted: u32,
    inline: u32,
    refused: Option<Busy>,
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
            device,
            ends,
            stuck: VecDeque::new(),
            later: VecDeque::new(),
            finished: Vec::new(),
            tags: Vec::with_capacity(BATCH),
            tokens: Vec::with_capacity(BATCH),
            completions: Completions::new(table),
            now: Instant::ZERO,
            at_device: 0,
            deadlines: Deadlines::new(limits.tags, limits.timeout),
            retries: limits.retries,
            completed: 0,
            completed_since_kick: 0,
            retried: 0,
            repeated: 0,
            handed_back: false,
            apart: Apart::default(),
        }
    }

    /// Issues the requests in the outbox, then takes back finished ones. True if an elevator waits for something that
    /// this turn gave back.
    pub(crate) fn turn(&mut self, q: &Shared<P>, hctx: &Hctx<P>, now: Instant) -> bool {
        self.turn_with(q, hctx, now, |pump| pump.ends.outbox.pop())
    }

    /// The same with requests from another source: the list that a caller of the one-at-a-time modes collected.
    pub(crate) fn turn_with(
        &mut self,
        q: &Shared<P>,
        hctx: &Hctx<P>,
        now: Instant,
        mut next: impl FnMut(&mut Self) -> Option<Inflight>,
    ) -> bool {
        hctx.counters.turns.add(1);
        // Callers read clocks on their own, and a device is never told an earlier time than before.
        let now = self.now.max(now);
        self.now = now;
        let mut issued = Issued::default();
        let mut busy = 0;
        loop {
            self.offer(q, now, &mut issued, &mut next);
            busy += u64::from(issued.refused.is_some());
            let inside = self.at_device;
            if inside > 0 {
                self.reap(q, hctx, now);
                // After the reap: a request that the device has finished by now has not timed out.
                if self.deadlines.is_due(now) {
                    self.expire(q, hctx, now);
                }
            }
            // A run of a request that was taken apart waits ahead of all other requests.
            if self.apart.take_ready() && issued.refused.is_none() {
                continue;
            }
            // DEV_RESOURCE promised that a completion makes room. If that completion was just reaped, no other one
            // brings the pump back.
            let has_room = self.at_device < inside;
            if !has_room || issued.refused != Some(Busy::DevResource) {
                break;
            }
        }
        let all = issued.accepted + issued.inline;
        if all > 0 || busy > 0 {
            hctx.busy().note(busy > 0);
            hctx.counters.busy.add(busy);
            hctx.counters.issued.add(all.into());
        }
        self.completed += u64::from(issued.inline);
        self.settle(q, hctx, now, issued.refused);
        let handed_back = std::mem::take(&mut self.handed_back);
        hctx.restart.take() || handed_back && !planted::is(Planted::ForgetsHandedBack)
    }

    /// Takes back the requests that the device has finished, and offers it none. True if there were any.
    pub(crate) fn look(&mut self, q: &Shared<P>, hctx: &Hctx<P>, now: Instant) -> bool {
        let inside = self.at_device;
        if inside == 0 {
            return false;
        }
        self.now = self.now.max(now);
        self.reap(q, hctx, self.now);
        if self.at_device < inside {
            self.settle(q, hctx, self.now, None);
        }
        self.at_device < inside
    }

    /// Gives the pump its device.
    pub(crate) fn install(&mut self, (device, now): Installed<P>) {
        self.has_event_fd = has_event_fd(&*device);
        self.device = device;
        self.now = now;
    }

    /// Offers the device the requests that it refused earlier, then those of `next`, until it refuses one.
    #[inline]
    fn offer(
        &mut self,
        q: &Shared<P>,
        now: Instant,
        issued: &mut Issued,
        next: &mut impl FnMut(&mut Self) -> Option<Inflight>,
    ) {
        issued.refused = None;
        if q.lasting.control.is_quiesced() {
            // They go ahead of all others when the queue goes on.
            while let Some(rq) = next(self) {
                self.stuck.push_back(rq);
            }
            return;
        }
        let before = issued.accepted;
        if !self.stuck.is_empty() {
            self.offer_stuck(q, now, issued);
        }
        while issued.refused.is_none()
            && let Some(rq) = next(self)
        {
            self.enqueue(q, now, rq, issued);
        }
        // The requests of the caller must not be lost behind a refusal.
        if issued.refused.is_some() {
            while let Some(rq) = next(self) {
                self.stuck.push_back(rq);
            }
        }
        if issued.accepted > before {
            self.at_device += issued.accepted - before;
            self.device.commit(now);
        }
    }

    /// Offers the device the requests that it refused earlier, until it refuses one.
    #[cold]
    #[inline(never)]
    fn offer_stuck(&mut self, q: &Shared<P>, now: Instant, issued: &mut Issued) {
        while let Some(rq) = self.stuck.pop_front() {
            if !self.enqueue(q, now, rq, issued) {
                break;
            }
        }
    }

    /// Offers one request to the device. A refused request waits ahead of all others, and the result is false.
    /// Inlined by force: nearly every request comes from one caller, and the call from the rare one must not make it
    /// a function call there.
    #[inline(always)]
    fn enqueue(&mut self, q: &Shared<P>, now: Instant, rq: Inflight, issued: &mut Issued) -> bool {
        let tag = rq.tag;
        match self.device.enqueue(now, &q.lasting.table, rq) {
            Enqueued::Accepted => {
                issued.accepted += 1;
                self.deadlines.begin(now, tag);
            }
            Enqueued::Done(rq, result) => {
                issued.inline += 1;
                self.finish(q, now, rq, result);
            }
            Enqueued::Busy(rq, why) => {
                self.stuck.push_front(rq);
                issued.refused = Some(why);
                return false;
            }
        }
        true
    }

    /// Takes back requests that are finished, or that the device wants again later.
    fn reap(&mut self, q: &Shared<P>, hctx: &Hctx<P>, now: Instant) {
        self.device.reap(now, &mut self.finished);
        let mut finished = std::mem::take(&mut self.finished);
        for Finished { rq, verdict } in finished.drain(..) {
            self.at_device -= 1;
            self.deadlines.end(rq.tag);
            match verdict {
                Verdict::Done(result) => {
                    self.completed += 1;
                    self.finish(q, now, rq, result);
                }
                Verdict::Requeue if !self.apart.has(rq.tag) => {
                    self.give_back(q, &rq);
                    self.hand_back(Handback { rq, verdict, at: now });
                }
                // A run stays here: the elevator knows only the whole request.
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
    fn expire(&mut self, q: &Shared<P>, hctx: &Hctx<P>, now: Instant) {
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
                    self.finish(q, now, rq, result);
                }
            }
        }
        self.deadlines.look_again(now);
    }

    /// Publishes the results of a turn to elevators, submitters and waiting threads.
    fn settle(&mut self, q: &Shared<P>, hctx: &Hctx<P>, now: Instant, refused: Option<Busy>) {
        // Elevators first, then the clients: a client may submit again at once.
        self.ends.returns.publish();
        self.ends.handbacks.publish();
        let retried = std::mem::take(&mut self.retried);
        let completed = std::mem::take(&mut self.completed);
        self.completed_since_kick += completed;
        hctx.counters.completed.add(completed - retried - std::mem::take(&mut self.repeated));
        if retried > 0 {
            hctx.counters.retries.add(retried);
        }
        self.free_tags(q, hctx);
        self.completions.flush(q);
        // Requests that the device wants again later are treated like those refused with RESOURCE.
        if refused == Some(Busy::Resource) || !self.later.is_empty() {
            self.stuck.append(&mut self.later);
            hctx.pump.run_later(now + RESOURCE_DELAY);
        }
        if self.apart.take_ready() {
            hctx.pump.arm(now);
        }
        hctx.set_stuck(!self.stuck.is_empty());
        hctx.set_signals(self.at_device > 0 && self.has_event_fd);
        hctx.set_next_event(self.next_event(q.lasting.control.is_quiesced()));
    }

    /// The time of the next look at the device if no thread calls before. The timer of requests there goes this way
    /// and not through the gate, which forgets its deadline whenever a turn begins: this is a store, and only when
    /// the time changes.
    fn next_event(&self, quiesced: bool) -> Option<Instant> {
        let next = self.device.next_event();
        if self.at_device == 0 {
            return next.filter(|_| !self.stuck.is_empty() && !quiesced);
        }
        // A device that holds requests, names no time and has no descriptor is polled by the threads that wait. While
        // the queue is quiesced nothing is offered, so an event that is due by now is ignored: it can only mean room.
        let next = match next {
            None if self.has_event_fd => Instant::MAX,
            None => Instant::ZERO,
            Some(at) if quiesced && at <= self.now => Instant::MAX,
            Some(at) => at,
        };
        let timer = self.deadlines.timer().filter(|_| !planted::is(Planted::ForgetsTimer));
        Some(timer.map_or(next, |timer| timer.min(next)))
    }

    #[inline]
    fn finish(&mut self, q: &Shared<P>, now: Instant, mut rq: Inflight, result: IoResult) {
        if result.is_err() || !self.apart.is_empty() {
            let Some(over) = self.look_apart(q, now, rq, result) else { return };
            rq = over;
        }
        self.give_back(q, &rq);
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
            self.completions.push(q, head, result);
        } else {
            self.completions.push_chain(q, head, result);
        }
    }

    /// Handles a request that failed, or any request while some are being repeated by owner. Returns the request if
    /// it is over.
    #[cold]
    #[inline(never)]
    fn look_apart(
        &mut self,
        q: &Shared<P>,
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
            self.give_back(q, &rq);
            self.try_again(now, rq);
            return None;
        }
        match self.apart.next(&q.lasting.table, &q.limits, rq, result) {
            Next::Over(rq) => return Some(rq),
            Next::Run { run, over } => {
                let counters = &q.hctxs[usize::from(run.hw.0)].counters;
                counters.runs.add(1);
                match over {
                    Some(head) => self.completions.push_chain(q, head, result),
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
    fn give_back(&mut self, q: &Shared<P>, rq: &Inflight) {
        self.tags.push(rq.tag);
        if let Some(pool) = rq.pool() {
            self.tokens.push(pool);
        }
        if self.tags.len() == BATCH {
            self.free_tags(q, &q.hctxs[usize::from(rq.hw.0)]);
        }
    }

    fn free_tags(&mut self, q: &Shared<P>, hctx: &Hctx<P>) {
        if self.tags.is_empty() {
            return;
        }
        let wake = &mut self.completions.wake;
        q.put_budget(self.tags.len() as u32, wake);
        for alike in self.tokens.chunk_by(|one, other| one == other) {
            q.put_tokens(alike[0].into(), alike.len() as u32, wake);
        }
        self.tokens.clear();
        hctx.tags.put(q, &self.tags, wake);
        self.tags.clear();
    }

    /// Ends the requests that wait to be offered to the device, in a queue that has failed, and sends their
    /// completions.
    pub(crate) fn end_waiting(&mut self, q: &Shared<P>, hctx: &Hctx<P>, result: IoResult) {
        while let Some(rq) = self.take_waiting() {
            self.give_back(q, &rq);
            self.completions.push_chain(q, rq.into_head(), result);
        }
        for rest in self.apart.drain() {
            self.completions.push_chain(q, rest, result);
        }
        self.ends.handbacks.publish();
        self.free_tags(q, hctx);
        self.completions.flush(q);
    }

    /// Makes every error final from now on.
    pub(crate) fn stop_retrying(&mut self) {
        self.retries = 0;
    }

    /// Takes the count of requests that have completed since the last call (`KickMode`).
    pub(crate) fn take_completed_since_kick(&mut self) -> u64 {
        std::mem::take(&mut self.completed_since_kick)
    }

    /// Takes the submitters to wake when the pump is released. Seldom any: few submitters are parked while a queue is
    /// busy.
    pub(crate) fn take_wakes(&mut self, into: &mut Vec<SubmitterId>) {
        if !self.completions.wake.is_empty() {
            into.append(&mut self.completions.wake);
        }
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
    /// True if no request is on its way to the device, at it, or on its way back.
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
            // Requests that were finished when the device panicked.
            .or_else(|| self.finished.pop().map(|finished| finished.rq))
    }

    /// Asks a device that panicked for the requests that it has, and drops the device. The requests that it gives
    /// back wait from then on; the others are lost.
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

    /// Takes every request that is still on its way into `held`, for the end of a queue.
    ///
    /// # Panics
    /// If the device does; `held` then has the requests that it gave back before, and all others.
    pub(crate) fn abandon(&mut self, held: &mut Vec<Inflight>) {
        held.extend(std::iter::from_fn(|| self.take_waiting()));
        // The tag of each goes back with the run that is under way.
        self.apart.drain().for_each(Bio::orphan);
        self.device.abandon(held);
    }

    /// Sends the completions that were not sent, at the end of a queue.
    pub(crate) fn send_rest(&mut self, lasting: &Lasting<P>) {
        self.completions.send_rest(lasting);
    }
}
