//! A witness beside a device: tells the oracle what arrives and what goes back, and changes nothing.

use crate::Payload;
use crate::ledger::Seen;
use crate::oracle::{Answer, Offer, Oracle};
use crate::order::Picked;
use blkmq_core::{HwQueue, Instant, Tag};
use blkmq_device::Queues;
use blkmq_engine::{BioTable, DeviceQueue, Enqueued, Finished, Inflight, Verdict};
use std::collections::BTreeMap;

/// One hardware queue with its witness.
struct Witness {
    inner: Box<dyn DeviceQueue<Payload>>,
    hw: HwQueue,
    oracle: Oracle,
    /// The I/Os in what the device holds, by driver tag.
    held: BTreeMap<Tag, Vec<u64>>,
    /// The last request offered was refused.
    refused: bool,
}

/// Puts a witness beside each of `queues`.
pub(crate) fn witnessed(queues: Queues<Payload>, oracle: &Oracle) -> Queues<Payload> {
    let witness = |(hw, inner)| {
        let (hw, oracle) = (HwQueue(hw), oracle.clone());
        let held = BTreeMap::new();
        Box::new(Witness { inner, hw, oracle, held, refused: false }) as Box<dyn DeviceQueue<_>>
    };
    (0..).zip(queues).map(witness).collect()
}

impl DeviceQueue<Payload> for Witness {
    fn enqueue(&mut self, now: Instant, table: &BioTable<Payload>, rq: Inflight) -> Enqueued {
        let bios: Vec<Seen> = rq
            .bios(table)
            .map(|bio| Seen {
                cookie: bio.cookie,
                by: bio.submitter,
                sector: bio.sector,
                sectors: bio.sectors,
                payload: *bio.payload,
            })
            .collect();
        let what = Picked { op: rq.op(), sector: rq.sector(), sectors: rq.sectors() };
        let (tag, flags) = (rq.tag(), rq.flags());
        let offer = Offer { now, hw: self.hw, tag, what, flags, bios };
        let answer = self.inner.enqueue(now, table, rq);
        let seen = match &answer {
            Enqueued::Accepted => Answer::Accepted,
            Enqueued::Done(_, result) => Answer::Done(*result),
            Enqueued::Busy(_, why) => Answer::Busy(*why),
        };
        if matches!(seen, Answer::Accepted) {
            self.held.insert(offer.tag, offer.bios.iter().map(|bio| bio.cookie).collect());
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
            let cookies = self.held.remove(&rq.tag()).unwrap_or_default();
            let result = match verdict {
                Verdict::Done(result) => Some(*result),
                Verdict::Requeue => None,
            };
            let place = (self.hw, rq.tag());
            self.oracle.with(|oracle| oracle.returned(now, place, cookies, result));
        }
    }

    fn next_event(&self) -> Option<Instant> {
        let at = self.inner.next_event();
        // What an empty device says about room matters to nobody.
        let matters = !self.held.is_empty() || self.refused;
        self.oracle.with(|oracle| oracle.named(self.hw, at.filter(|_| matters)));
        at
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        self.inner.abandon(out);
    }
}
