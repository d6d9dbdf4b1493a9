//! A witness beside a device: tells the oracle what arrives and what goes back, and changes nothing.

use crate::Stamp;
use crate::ledger::{Bio, Seen};
use crate::oracle::{Answer, Offer, Oracle, Return};
use crate::order::Picked;
use blkmq_core::{HwQueue, Instant, IoResult, Nanos, Tag};
use blkmq_device::Queues;
use blkmq_engine::{
    BioTable, DeviceQueue, DeviceShape, Enqueued, Expiry, Finished, Inflight, Verdict,
};
use std::collections::BTreeMap;

/// One hardware queue with its witness.
struct Witness {
    inner: Box<dyn DeviceQueue<Stamp>>,
    hw: HwQueue,
    oracle: Oracle,
    /// How long the device may keep a request, and how often one is tried again.
    timeout: Nanos,
    retries: u8,
    /// What the device holds, by driver tag.
    held: BTreeMap<Tag, Held>,
    /// The last request offered was refused.
    refused: bool,
}

/// A request at the device.
struct Held {
    what: Picked,
    bios: Vec<Bio>,
    /// When the engine has to ask about it.
    deadline: Instant,
}

/// Puts a witness beside each of `queues`, which belong to a device of this shape; the engine tries a request
/// again so often.
pub(crate) fn witnessed(
    queues: Queues<Stamp>,
    shape: &DeviceShape,
    retries: u8,
    oracle: &Oracle,
) -> Queues<Stamp> {
    let timeout = shape.timeout;
    let witness = |(hw, inner)| {
        let (hw, oracle) = (HwQueue(hw), oracle.clone());
        let (held, refused) = (BTreeMap::new(), false);
        Box::new(Witness { inner, hw, oracle, timeout, retries, held, refused })
            as Box<dyn DeviceQueue<_>>
    };
    (0..).zip(queues).map(witness).collect()
}

impl Witness {
    /// What follows for a request with which the device is done.
    fn outcome(&self, rq: &Inflight, result: IoResult) -> Return {
        match result {
            Err(error) if error.is_retryable() && rq.retries() < self.retries => Return::Again,
            _ => Return::Done(result),
        }
    }

    fn returned(&mut self, now: Instant, tag: Tag, how: Return) {
        let Some(Held { what, bios, .. }) = self.held.remove(&tag) else { return };
        let place = (self.hw, tag);
        self.oracle.with(|oracle| oracle.returned(now, place, what, bios, how));
    }
}

impl DeviceQueue<Stamp> for Witness {
    fn enqueue(&mut self, now: Instant, table: &BioTable<Stamp>, rq: Inflight) -> Enqueued {
        let bios: Vec<Seen> = rq
            .bios(table)
            .map(|bio| Seen {
                cookie: bio.cookie,
                by: bio.submitter,
                sector: bio.sector,
                sectors: bio.sectors,
                payload: bio.payload.key,
            })
            .collect();
        let what = Picked { op: rq.op(), sector: rq.sector(), sectors: rq.sectors() };
        let (tag, flags) = (rq.tag(), rq.flags());
        let offer = Offer { now, hw: self.hw, tag, what, flags, bios };
        let answer = self.inner.enqueue(now, table, rq);
        let seen = match &answer {
            Enqueued::Accepted => Answer::Accepted,
            Enqueued::Done(rq, result) => Answer::Done(self.outcome(rq, *result)),
            Enqueued::Busy(_, why) => Answer::Busy(*why),
        };
        if matches!(seen, Answer::Accepted) {
            let bios = offer.bios.iter().map(Seen::bio).collect();
            self.held.insert(offer.tag, Held { what, bios, deadline: now + self.timeout });
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
                Verdict::Done(result) => self.outcome(rq, *result),
                Verdict::Requeue => Return::Again,
                Verdict::RequeueTail => Return::Tail,
            };
            self.returned(now, rq.tag(), how);
        }
    }

    fn timed_out(&mut self, now: Instant, tag: Tag) -> Expiry {
        let answer = self.inner.timed_out(now, tag);
        match &answer {
            Expiry::Done(rq, result) => self.returned(now, tag, self.outcome(rq, *result)),
            Expiry::ResetTimer => {
                let held = self.held.get_mut(&tag);
                held.expect("it was asked about what it holds").deadline = now + self.timeout;
            }
        }
        answer
    }

    fn next_event(&self) -> Option<Instant> {
        let at = self.inner.next_event();
        // What an empty device says about room matters to nobody.
        let matters = !self.held.is_empty() || self.refused;
        // The engine has to come for what may have been lost, whatever the device says.
        let timer = self.held.values().map(|held| held.deadline).min();
        let due = at.filter(|_| matters).into_iter().chain(timer).min();
        self.oracle.with(|oracle| oracle.named(self.hw, due));
        at
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        self.inner.abandon(out);
    }
}
