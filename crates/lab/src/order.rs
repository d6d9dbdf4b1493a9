//! The device's order is the policy's: on each hardware queue, requests arrive in the order of their picks.
//!
//! This includes requests that the device refuses, because they wait ahead of all others, and requests that it puts
//! back, because the policy picks them again, or because they wait behind the requests picked by then. Flushes bypass
//! the policy and must not be passed to this module.

use crate::seams::Seam;
use crate::violation::Violation;
use blkmq_core::{HwQueue, IoMeta, Op};
use std::collections::VecDeque;

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

    /// The device returned this request on `hw`, to come again without being picked.
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
