//! The device's order is the policy's: per hardware queue, what was picked first arrives first.
//!
//! Holds for requests that the device refuses, because they wait ahead of everything, and for those that it
//! puts back, because the policy picks them again, or because they wait behind what was picked by then. Flushes
//! pass by the policy and are not to be shown here.

use crate::seams::Seam;
use crate::violation::Violation;
use blkmq_core::{HwQueue, IoMeta, Op};
use std::collections::VecDeque;

/// A request as the policy knew it when it picked it, which is as the device must get it.
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

/// Picked and not yet taken by the device, by hardware queue; each with its seams.
pub(crate) struct Order(Vec<VecDeque<(Picked, Vec<Seam>)>>);

impl Order {
    /// Nothing picked.
    pub(crate) fn new(hw_queues: u16) -> Self {
        Self((0..hw_queues).map(|_| VecDeque::new()).collect())
    }

    /// The policy chose this for `hw`, with these seams.
    pub(crate) fn picked(&mut self, hw: HwQueue, what: Picked, seams: Vec<Seam>) {
        self.0[usize::from(hw.0)].push_back((what, seams));
    }

    /// The device gave this back on `hw`, to come again without being picked.
    pub(crate) fn stays(&mut self, hw: HwQueue, what: Picked) {
        self.picked(hw, what, Vec::new());
    }

    /// The device was offered this on `hw`; `taken` if it did not refuse. Its seams, if it was
    /// offered for the first time.
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
