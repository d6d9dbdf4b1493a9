//! The device's order and requests are the policy's: requests arrive on each hardware queue in the order of their
//! picks, and owners share a request only with the policy's consent.
//!
//! The order includes requests that the device refuses, since they wait ahead of all others, and requests that it
//! requeues, since the policy picks them again, or they wait behind the requests picked by then. Flushes bypass the
//! policy and must not be passed to this module.
//!
//! The engine does not distinguish owners; the policy decides each time whether an I/O may join another owner's
//! request. Its consent leaves a *seam*. Seams are collected per request in the recorder of the policy, and travel with
//! the request when it is picked; at the device there must be one wherever the owner changes from one bio to the next.
//! Within a plug the policy is not asked, so only I/Os of one owner may be merged there.

use crate::ledger::{Bio, Seen};
use crate::violation::Violation;
use blkmq_core::{HwQueue, IoMeta, Op, Owner, RequestId};
use blkmq_sched::Grown;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A request as the policy knew it at the pick; the device must get it unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Picked {
    pub(crate) op: Op,
    pub(crate) sector: u64,
    pub(crate) sectors: u32,
}

impl From<&IoMeta> for Picked {
    fn from(meta: &IoMeta) -> Self {
        Self { op: meta.op, sector: meta.sector, sectors: meta.sectors }
    }
}

/// Requests picked and not yet taken by the device, by hardware queue; each with its seams.
pub(crate) struct Order(Vec<VecDeque<(Picked, Vec<Seam>)>>);

impl Order {
    /// An order without picks.
    pub(crate) fn new(hw_queues: u16) -> Self {
        Self((0..hw_queues).map(|_| VecDeque::new()).collect())
    }

    /// The policy picked this request for `hw`, with these seams.
    pub(crate) fn picked(&mut self, hw: HwQueue, what: Picked, seams: Vec<Seam>) {
        self.0[usize::from(hw.0)].push_back((what, seams));
    }

    /// The device returned this request on `hw`; it will be offered again without being picked.
    pub(crate) fn stays(&mut self, hw: HwQueue, what: Picked) {
        self.picked(hw, what, Vec::new());
    }

    /// The device was offered this request on `hw`; `taken` if it did not refuse. Returns the seams of a request that
    /// was offered for the first time.
    pub(crate) fn arrived(
        &mut self,
        hw: HwQueue,
        what: Picked,
        taken: bool,
    ) -> Result<Vec<Seam>, Violation> {
        let lane = &mut self.0[usize::from(hw.0)];
        let Some((_, seams)) = lane.front_mut().filter(|(next, _)| *next == what) else {
            let picked = lane.front().map(|(next, _)| next.sector);
            return Err(Violation::OutOfOrder { hw, picked, arrived: what.sector });
        };
        let seams = std::mem::take(seams);
        if taken {
            lane.pop_front();
        }
        Ok(seams)
    }
}

/// The place where an I/O joined a request with the policy's consent: the first sector of the part behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Seam(pub(crate) u64);

/// The consents of one policy for the requests that it holds.
#[derive(Default)]
pub(crate) struct Agreements {
    /// The last question to which it agreed.
    last: Option<(RequestId, IoMeta)>,
    held: BTreeMap<RequestId, Vec<Seam>>,
}

impl Agreements {
    /// The policy was asked whether `io` may join `into`.
    pub(crate) fn answered(&mut self, into: RequestId, io: &IoMeta, answer: bool) {
        self.last = answer.then_some((into, *io));
    }

    /// An I/O has joined `into` at this edge.
    pub(crate) fn grown(&mut self, into: RequestId, edge: Grown) {
        let Some((_, io)) = self.last.take().filter(|(agreed, _)| *agreed == into) else { return };
        let behind = match edge {
            Grown::Front { .. } => io.end(),
            Grown::Back | Grown::Discard => io.sector,
        };
        self.held.entry(into).or_default().push(Seam(behind));
    }

    /// `gone` has joined `into` at its end, with all its seams.
    pub(crate) fn absorbed(&mut self, into: RequestId, gone: RequestId) {
        self.grown(into, Grown::Back);
        let inherited = self.take(gone);
        if !inherited.is_empty() {
            self.held.entry(into).or_default().extend(inherited);
        }
    }

    /// The policy no longer holds `rq`; returns its seams.
    pub(crate) fn take(&mut self, rq: RequestId) -> Vec<Seam> {
        self.held.remove(&rq).unwrap_or_default()
    }
}

/// Neighbours in requests at the device whose owners differ with the policy's consent.
#[derive(Default)]
pub(crate) struct Neighbours(BTreeSet<(Bio, Bio)>);

impl Neighbours {
    /// Checks a request made of `bios`, each with its owner, that was offered on `hw` and had these `seams` when it was
    /// picked; no seams if it is offered again.
    pub(crate) fn check(
        &mut self,
        hw: HwQueue,
        sector: u64,
        bios: &[(Owner, Seen)],
        seams: &[Seam],
    ) -> Result<(), Violation> {
        for pair in bios.windows(2) {
            let [(owner, former), (other, next)] = pair else { continue };
            let both = (former.bio(), next.bio());
            if owner == other || self.0.contains(&both) {
                continue;
            }
            if !seams.contains(&Seam(next.sector)) {
                let what = "bios of different owners were merged, and the policy had not agreed";
                return Err(Violation::Malformed { hw, what, sector });
            }
            self.0.insert(both);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq_core::SubmitterId;
    use blkmq_sched::Requests;

    const HW: HwQueue = HwQueue(0);

    fn at(sector: u64) -> Picked {
        Picked { op: Op::Write, sector, sectors: 8 }
    }

    #[test]
    fn a_refused_request_comes_again_before_the_next_one() {
        let mut order = Order::new(1);
        order.picked(HW, at(8), vec![Seam(12)]);
        order.picked(HW, at(0), Vec::new());
        assert_eq!(order.arrived(HW, at(8), false), Ok(vec![Seam(12)]));
        assert!(order.arrived(HW, at(0), true).is_err());
        assert_eq!(order.arrived(HW, at(8), true), Ok(vec![]));
        assert_eq!(order.arrived(HW, at(0), true), Ok(vec![]));
        assert!(order.arrived(HW, at(0), true).is_err(), "it was picked once");
    }

    fn seen(cookie: u64, sector: u64, owner: u32) -> (Owner, Seen) {
        let by = SubmitterId(0);
        (Owner(owner), Seen { cookie, by, sector, sectors: 8, payload: 0 })
    }

    fn io(sector: u64) -> IoMeta {
        IoMeta::new(Op::Write, sector, 8)
    }

    fn is_right(bios: &[(Owner, Seen)], seams: &[Seam]) -> bool {
        Neighbours::default().check(HwQueue(0), 0, bios, seams).is_ok()
    }

    #[test]
    fn where_the_owner_changes_there_is_a_seam() {
        let bios = [seen(0, 0, 1), seen(1, 8, 1), seen(2, 16, 2)];
        assert!(is_right(&bios[..2], &[]), "one owner");
        assert!(!is_right(&bios, &[]));
        assert!(!is_right(&bios, &[Seam(8)]), "that is another place");
        assert!(is_right(&bios, &[Seam(8), Seam(16)]));
    }

    #[test]
    fn what_was_right_once_stays_right_when_it_is_offered_again() {
        let bios = [seen(0, 0, 1), seen(1, 8, 2)];
        let mut neighbours = Neighbours::default();
        assert_eq!(neighbours.check(HwQueue(0), 0, &bios, &[Seam(8)]), Ok(()));
        assert_eq!(neighbours.check(HwQueue(0), 0, &bios, &[]), Ok(()));
        assert!(neighbours.check(HwQueue(0), 0, &[bios[0], seen(2, 8, 2)], &[]).is_err());
    }

    #[test]
    fn only_what_was_agreed_to_makes_a_seam() {
        let mut requests = Requests::new(2);
        let mut alloc = |sector| requests.alloc(io(sector)).expect("a slot is free");
        let (one, other) = (alloc(8), alloc(32));
        let mut agreements = Agreements::default();
        agreements.answered(one, &io(16), false);
        agreements.grown(one, Grown::Back);
        assert_eq!(agreements.take(one), [], "it said no");
        agreements.answered(other, &io(16), true);
        agreements.grown(one, Grown::Back);
        assert_eq!(agreements.take(one), [], "that was about another one");
        agreements.answered(other, &io(24), true);
        agreements.grown(other, Grown::Front { old_sector: 32 });
        agreements.answered(one, &io(0), true);
        agreements.grown(one, Grown::Front { old_sector: 8 });
        agreements.grown(one, Grown::Back);
        agreements.answered(one, &io(24), true);
        agreements.absorbed(one, other);
        assert_eq!(agreements.take(one), [8, 24, 32].map(Seam), "each consent counts once");
        assert_eq!(agreements.take(one), []);
    }
}
