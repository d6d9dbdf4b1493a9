//! The way back from the device: finished, requeued, failed and expired requests, and the tags, budgets and tokens
//! that they had.

use super::{Last, Pump};
use crate::Inflight;
use crate::completion::apart::Next;
use crate::dispatch::device::{Expiry, Finished};
use crate::dispatch::inflight::Handback;
use crate::dispatch::verdict::Verdict;
use crate::planted::{self, Planted};
use crate::shared::hctx::Hctx;
use crate::shared::hub::Hub;
use blkmq_core::{Instant, IoResult};
use blkmq_sched::Done;

impl<P: Send> Pump<P> {
    /// Takes back requests that are finished, or that the device wants again later.
    pub(super) fn reap(&mut self, hub: &Hub<P>, hctx: &Hctx, now: Instant) {
        self.device.reap(now, &mut self.finished);
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
    pub(super) fn expire(&mut self, hub: &Hub<P>, hctx: &Hctx, now: Instant) {
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

    /// Ends a request that is over, or hands it back for the next step of its flush sequence.
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

    /// Handles a request that failed, or any request while some are being repeated by owner. Returns the request if
    /// it is over.
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
    pub(super) fn free_tags(&mut self, hub: &Hub<P>, hctx: &Hctx) -> Last {
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
