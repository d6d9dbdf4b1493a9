//! A witness beside a device: tells the oracle which requests arrive and which go back, and changes nothing.

use crate::Stamp;
use crate::apart::{Apart, Owned};
use crate::ledger::Seen;
use crate::oracle::{Answer, Offer, Oracle, Return};
use crate::order::Picked;
use blkmq_core::{HwQueue, Instant, IoResult, Nanos, Tag};
use blkmq_engine::DeviceQueues;
use blkmq_engine::{
    BioTable, DeviceQueue, DeviceShape, Enqueued, Expiry, Finished, Inflight, Verdict,
};
use std::collections::BTreeMap;

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

/// Puts a witness beside each of `queues`, which belong to a device of this shape. The engine tries a failed request
/// `retries` times again.
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

    fn reap(&mut self, now: Instant, out: &mut Vec<Finished>) {
        let before = out.len();
        self.inner.reap(now, out);
        for Finished { rq, verdict } in &out[before..] {
            let how = match verdict {
                Verdict::Done(result) => self.outcome(rq, &self.bios_of(rq.tag()), *result),
                // A run comes again unchanged.
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
        // The time that a device names does not matter while it holds no request and has refused none.
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
