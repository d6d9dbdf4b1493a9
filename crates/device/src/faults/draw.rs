//! Draws the faults of the requests of one hardware queue.
//!
//! `queue.rs` carries them out. At most one fault strikes an attempt, in the order of the table of parameters; an
//! attempt does not reach the fault points behind the one that strikes.

use super::FaultsParams;
use crate::fault::{self, Chance, FaultPoint};
use blkmq_core::{HwQueue, Nanos, Op, Rng};

/// A fault that strikes an attempt to hand over a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Strike {
    Resource,
    DevResource,
    Requeue,
    Lose,
    /// The request fails without having been handed over.
    FailUndone,
    /// The request is handed over and fails all the same.
    FailDone,
}

/// The fate of the answer to a request that was handed over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Fate {
    /// The answer passes as it is.
    #[default]
    Pass,
    /// An error replaces the answer.
    Fail,
    /// The answer is held back this long.
    Late(Nanos),
    /// The answer is held back until another one has passed.
    Overtaken,
}

/// The fault points of one hardware queue.
pub(super) struct Draw {
    resource: FaultPoint,
    dev_resource: FaultPoint,
    requeue: FaultPoint,
    timeout: FaultPoint,
    errors: [FaultPoint; 5],
    late: FaultPoint,
    late_nsec: Nanos,
    reorder: FaultPoint,
    rng: Rng,
}

impl Draw {
    pub(super) fn new(params: &FaultsParams, hw: HwQueue) -> Self {
        let point = |chance| FaultPoint::new(params.fault(chance));
        Self {
            resource: point(params.resource),
            dev_resource: point(params.dev_resource),
            requeue: point(params.requeue),
            timeout: point(params.timeout),
            errors: params.errors.map(point),
            late: point(params.late),
            late_nsec: params.late_nsec,
            reorder: point(params.reorder),
            rng: fault::stream(params.seed, hw),
        }
    }

    /// Draws the fault for one attempt to hand over a request of this kind.
    pub(super) fn attempt(&mut self, op: Op) -> Option<Strike> {
        let rng = &mut self.rng;
        let before = [
            (&mut self.resource, Strike::Resource),
            (&mut self.dev_resource, Strike::DevResource),
            (&mut self.requeue, Strike::Requeue),
            (&mut self.timeout, Strike::Lose),
        ];
        for (point, strike) in before {
            if point.should_fail(rng) {
                return Some(strike);
            }
        }
        let fails = self.errors[op as usize].should_fail(rng);
        // The submitter that gets an error cannot know whether the operation was carried out.
        let undone = fails && Chance::percent(50).draw(rng);
        fails.then_some(if undone { Strike::FailUndone } else { Strike::FailDone })
    }

    /// Draws the fate of the answer when the inner device has taken a request.
    pub(super) fn taken(&mut self) -> Fate {
        let rng = &mut self.rng;
        if self.late.should_fail(rng) {
            return Fate::Late(Nanos(1 + rng.below(self.late_nsec.0)));
        }
        if self.reorder.should_fail(rng) { Fate::Overtaken } else { Fate::Pass }
    }
}
