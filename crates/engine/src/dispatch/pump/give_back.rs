//! The way back from the device: finished, requeued, failed and expired requests, with their tags, budgets and tokens.
//!
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

use super::{Last, Pump};
use crate::dispatch::device::{Expiry, Finished};
use crate::planted::Planted;
use crate::shared::hctx::Hctx;
use crate::shared::hub::Hub;
use crate::shared::inflight::{Handback, Verdict};
use crate::shared::slots::{Bio, Run};
use crate::{BioTable, Inflight, planted};
use blkmq_core::{Instant, IoError, IoResult, Limits, Op, Tag};
use blkmq_sched::Done;

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

/// A request that is being repeated, except for the run in flight.
struct Series {
    tag: Tag,
    /// The bios behind that run, and their number; `None` if it is the last run.
    rest: Option<(Bio, u32)>,
}

/// The requests of one hardware queue that are being repeated; usually none.
#[derive(Default)]
pub(crate) struct Apart {
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
    pub(crate) fn take_ready(&mut self) -> bool {
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
