//! Witnesses around a policy and a device: they report to the oracle which requests are picked, arrive and return, and
//! change nothing.
//!
//! The recorder around a policy notes where requests were joined. The witness around a device checks the handling of a
//! failed request that several owners share: it must be offered again as runs, one after another, each of the leading
//! bios of one owner, with the request's tag.

use crate::ledger::Seen;
pub(crate) use crate::observe::factory;
use crate::observe::{PolicyWatch, watched};
use crate::oracle::{Answer, Offer, Oracle, Return};
use crate::order::{Agreements, Picked};
use crate::planted::{self, Bug};
use crate::{Stamp, observe};
use blkmq_core::{HwQueue, Instant, IoError, IoMeta, IoResult, Nanos, Owner, RequestId, Tag};
use blkmq_engine::{
    BioTable, DeviceQueue, DeviceQueues, DeviceShape, Enqueued, Expiry, Finished, Inflight, Verdict,
};
use blkmq_sched::{At, Cx, Factory, Grown, Pick};
use std::collections::{BTreeMap, VecDeque};

/// One hardware queue with its witness.
struct Witness {
    inner: Box<dyn DeviceQueue<Stamp>>,
    hw: HwQueue,
    oracle: Oracle,
    /// How long the device may keep a request, and the number of retries.
    timeout: Nanos,
    retries: u8,
    /// The requests at the device, by driver tag.
    held: BTreeMap<Tag, Held>,
    apart: Apart,
    /// The last request offered was refused.
    refused: bool,
}

/// A request at the device.
struct Held {
    what: Picked,
    bios: Vec<Owned>,
    /// The time at which the engine has to ask about it.
    deadline: Instant,
}

/// Puts a witness around each of `queues`, which belong to a device of this shape. The engine retries a failed request
/// `retries` times.
pub(crate) fn witnessed(
    queues: DeviceQueues<Stamp>,
    shape: &DeviceShape,
    retries: u8,
    oracle: &Oracle,
) -> DeviceQueues<Stamp> {
    let timeout = shape.timeout;
    let witness = |(hw, inner)| {
        let (hw, oracle) = (HwQueue(hw), oracle.clone());
        let (held, apart, refused) = (BTreeMap::new(), Apart::default(), false);
        Box::new(Witness { inner, hw, oracle, timeout, retries, held, apart, refused })
            as Box<dyn DeviceQueue<_>>
    };
    (0..).zip(queues).map(witness).collect()
}

impl Witness {
    /// The next step of a request, made of `bios`, that the device has finished.
    fn outcome(&mut self, rq: &Inflight, bios: &[Owned], result: IoResult) -> Return {
        let tag = rq.tag();
        if self.apart.has(tag) {
            self.apart.ran(tag, bios.len());
            return Return::Done(result);
        }
        match result {
            Err(error) if error.is_retryable() && rq.retries() < self.retries => Return::Again,
            _ if Apart::concerns(bios, result) => {
                self.apart.begin(tag, bios.to_vec());
                Return::Apart
            }
            _ => Return::Done(result),
        }
    }

    /// The bios of the request at the device with this tag.
    fn bios_of(&self, tag: Tag) -> Vec<Owned> {
        self.held.get(&tag).map(|held| held.bios.clone()).unwrap_or_default()
    }

    fn returned(&mut self, now: Instant, tag: Tag, how: Return) {
        let Some(Held { what, bios, .. }) = self.held.remove(&tag) else { return };
        let (place, bios) = ((self.hw, tag), bios.iter().map(|(_, seen)| seen.bio()).collect());
        self.oracle.with(|oracle| oracle.returned(now, place, what, bios, how));
    }
}

impl DeviceQueue<Stamp> for Witness {
    fn enqueue(&mut self, now: Instant, table: &BioTable<Stamp>, rq: Inflight) -> Enqueued {
        let owned: Vec<Owned> = rq
            .bios(table)
            .map(|bio| {
                let seen = Seen {
                    cookie: bio.cookie,
                    by: bio.submitter,
                    sector: bio.sector,
                    sectors: bio.sectors,
                    payload: bio.payload.key,
                };
                (bio.owner, seen)
            })
            .collect();
        let what = Picked { op: rq.op(), sector: rq.sector(), sectors: rq.sectors() };
        let (tag, flags) = (rq.tag(), rq.flags());
        let run = self.apart.has(tag).then(|| self.apart.is_next_run(tag, &owned));
        let bios = owned.iter().map(|(_, seen)| *seen).collect();
        let offer = Offer { now, hw: self.hw, tag, what, flags, bios, run };
        let answer = self.inner.enqueue(now, table, rq);
        let seen = match &answer {
            Enqueued::Accepted => Answer::Accepted,
            Enqueued::Done(rq, result) => Answer::Done(self.outcome(rq, &owned, *result)),
            Enqueued::Busy(_, why) => Answer::Busy(*why),
        };
        if matches!(seen, Answer::Accepted) {
            let held = Held { what, bios: owned, deadline: now + self.timeout };
            self.held.insert(offer.tag, held);
        }
        self.refused = matches!(seen, Answer::Busy(_));
        self.oracle.with(|oracle| oracle.offered(&offer, &seen));
        answer
    }

    fn commit(&mut self, now: Instant) {
        self.inner.commit(now);
    }

    fn reap(&mut self, now: Instant, bios: &BioTable<Stamp>, out: &mut Vec<Finished>) {
        let before = out.len();
        self.inner.reap(now, bios, out);
        for Finished { rq, verdict } in &out[before..] {
            let how = match verdict {
                Verdict::Done(result) => self.outcome(rq, &self.bios_of(rq.tag()), *result),
                // A run is offered again unchanged.
                Verdict::Requeue | Verdict::RequeueTail if self.apart.has(rq.tag()) => {
                    Return::Apart
                }
                Verdict::Requeue => Return::Again,
                Verdict::RequeueTail => Return::Tail,
            };
            self.returned(now, rq.tag(), how);
        }
    }

    fn timed_out(&mut self, now: Instant, tag: Tag) -> Expiry {
        let answer = self.inner.timed_out(now, tag);
        match &answer {
            Expiry::Done(rq, result) => {
                let how = self.outcome(rq, &self.bios_of(tag), *result);
                self.returned(now, tag, how);
            }
            Expiry::ResetTimer => {
                let held = self.held.get_mut(&tag);
                held.expect("it was asked about what it holds").deadline = now + self.timeout;
            }
        }
        answer
    }

    fn next_event(&self) -> Option<Instant> {
        let at = self.inner.next_event();
        // While the device holds no request and has refused none, the time that it names does not matter.
        let matters = !self.held.is_empty() || self.refused;
        // The engine has to ask about requests that may be lost, independent of the time that the device names.
        let timer = self.held.values().map(|held| held.deadline).min();
        let due = at.filter(|_| matters).into_iter().chain(timer).min();
        self.oracle.with(|oracle| oracle.named(self.hw, due));
        at
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        self.inner.abandon(out);
    }
}

/// A bio with its owner.
type Owned = (Owner, Seen);

/// The requests of one hardware queue that are being repeated, each with its remaining bios.
#[derive(Default)]
pub(crate) struct Apart(BTreeMap<Tag, VecDeque<Owned>>);

impl Apart {
    /// Returns whether the request with this tag is being repeated.
    pub(crate) fn has(&self, tag: Tag) -> bool {
        self.0.contains_key(&tag)
    }

    /// Returns whether a request made of `bios` must be repeated after this result, which would otherwise be final.
    fn concerns(bios: &[Owned], result: IoResult) -> bool {
        let partial = result.is_err_and(IoError::may_be_partial);
        partial && bios.iter().any(|(owner, _)| *owner != bios[0].0)
    }

    /// The request with this tag, made of `bios`, is to be repeated.
    pub(crate) fn begin(&mut self, tag: Tag, bios: Vec<Owned>) {
        self.0.insert(tag, bios.into());
    }

    /// Returns whether a request with this tag, which is being repeated and is offered to the device, is the next run.
    fn is_next_run(&self, tag: Tag, bios: &[Owned]) -> bool {
        let Some(rest) = self.0.get(&tag) else { return false };
        let owner = rest.front().map(|(owner, _)| *owner);
        let run = rest.iter().take_while(|(of, _)| Some(*of) == owner);
        run.map(|(_, seen)| seen.bio()).eq(bios.iter().map(|(_, seen)| seen.bio()))
    }

    /// The device has returned a run of `bios` bios.
    fn ran(&mut self, tag: Tag, bios: usize) {
        let Some(rest) = self.0.get_mut(&tag) else { return };
        rest.drain(..bios.min(rest.len()));
        if rest.is_empty() {
            self.0.remove(&tag);
        }
    }
}

/// The wrapper of the next policies built on this thread.
pub(crate) struct Plan {
    /// The real factory.
    pub(crate) factory: &'static Factory,
    /// The oracle that is notified.
    pub(crate) oracle: Oracle,
    /// The bug between the recorder and the engine.
    pub(crate) bug: Option<Bug>,
}

/// Runs `build`, which builds a queue with the [`factory`] of the plan's policy.
pub(crate) fn build_with<R>(plan: Plan, build: impl FnOnce() -> R) -> R {
    let Plan { factory, oracle, bug } = plan;
    let wrap = move |inner, _: &_, _: &_| {
        let recorder = Box::new(Recorder {
            oracle: oracle.clone(),
            held: 0,
            agreements: Agreements::default(),
        });
        planted::in_policy(bug, watched(inner, vec![recorder]))
    };
    observe::build_with(factory, wrap, build)
}

struct Recorder {
    oracle: Oracle,
    held: u32,
    agreements: Agreements,
}

impl PolicyWatch for Recorder {
    fn asked(&mut self, cx: &Cx<'_>, hw: HwQueue, answer: Pick) {
        let what = match answer {
            Pick::Issue(rq) => {
                self.held -= 1;
                Some((Picked::from(cx.requests.get(rq)), self.agreements.take(rq)))
            }
            _ => None,
        };
        self.oracle.with(|oracle| oracle.asked(cx.now, hw, answer, what));
    }

    fn inserted(&mut self, _: &Cx<'_>, _: RequestId, _: At) {
        self.held += 1;
    }

    fn may_merge(&mut self, _: &Cx<'_>, into: RequestId, io: &IoMeta, answer: bool) {
        self.agreements.answered(into, io, answer);
    }

    fn grown(&mut self, _: &Cx<'_>, rq: RequestId, edge: Grown) {
        self.agreements.grown(rq, edge);
    }

    fn withdrawn(&mut self, cx: &Cx<'_>, rq: RequestId) {
        self.held -= 1;
        self.agreements.take(rq);
        if self.held == 0 {
            let hw = cx.requests.get(rq).hw;
            self.oracle.with(|oracle| oracle.emptied(hw));
        }
    }

    fn absorbed(&mut self, _: &Cx<'_>, into: RequestId, gone: RequestId) {
        self.held -= 1;
        self.agreements.absorbed(into, gone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq_core::SubmitterId;

    fn bio(owner: u32, sector: u64) -> Owned {
        let seen = Seen { cookie: sector, by: SubmitterId(0), sector, sectors: 8, payload: 0 };
        (Owner(owner), seen)
    }

    #[test]
    fn runs_come_in_order_and_are_as_long_as_one_owner_goes() {
        let all = vec![bio(1, 0), bio(1, 8), bio(2, 16), bio(1, 24)];
        assert!(Apart::concerns(&all, Err(IoError::IO)));
        assert!(!Apart::concerns(&all, Ok(())) && !Apart::concerns(&all[..2], Err(IoError::IO)));
        assert!(!Apart::concerns(&all, Err(IoError::TIMED_OUT)));
        let (mut apart, tag) = (Apart::default(), Tag(3));
        apart.begin(tag, all.clone());
        assert!(!apart.is_next_run(tag, &all[..1]) && !apart.is_next_run(tag, &all[2..3]));
        for run in [&all[..2], &all[2..3], &all[3..]] {
            assert!(apart.has(tag) && apart.is_next_run(tag, run));
            apart.ran(tag, run.len());
        }
        assert!(!apart.has(tag));
    }
}
