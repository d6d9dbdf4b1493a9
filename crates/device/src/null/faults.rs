//! The choice of the faults that strike the requests of one hardware queue.
//!
//! `queue.rs` carries them out. At most one fault strikes an attempt, in the order of [`FaultPlan`]'s fields; an
//! attempt does not reach the fault points behind the one that strikes.

use crate::fault::{self, Fault, FaultPoint};
use blkmq_core::{HwQueue, Rng};

/// The faults of a null device. `None` stands for never.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FaultPlan {
    /// `resource`: refuse with RESOURCE.
    pub resource: Option<Fault>,
    /// `dev_resource`: refuse with DEV_RESOURCE.
    pub dev_resource: Option<Fault>,
    /// `requeue`: alternately refuse with RESOURCE, and take the request and ask for it to be requeued.
    pub requeue: Option<Fault>,
    /// `requeue_tail`: take the request and ask for it to be requeued past the scheduler.
    pub requeue_tail: Option<Fault>,
    /// `timeout`: take the request and lose it.
    pub timeout: Option<Fault>,
}

impl FaultPlan {
    /// Returns whether every fault is off.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A fault that strikes an attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Strike {
    Resource,
    DevResource,
    Requeue,
    RequeueTail,
    Lose,
}

/// The fault points of one hardware queue.
pub(super) struct Faults {
    resource: Option<FaultPoint>,
    dev_resource: Option<FaultPoint>,
    requeue: Option<FaultPoint>,
    requeue_tail: Option<FaultPoint>,
    timeout: Option<FaultPoint>,
    /// The next requeue fault takes the request and asks for it to be requeued, instead of refusing it.
    take_next: bool,
    rng: Rng,
}

impl Faults {
    pub(super) fn new(plan: &FaultPlan, seed: u64, hw: HwQueue) -> Self {
        Self {
            resource: plan.resource.map(FaultPoint::new),
            dev_resource: plan.dev_resource.map(FaultPoint::new),
            requeue: plan.requeue.map(FaultPoint::new),
            requeue_tail: plan.requeue_tail.map(FaultPoint::new),
            timeout: plan.timeout.map(FaultPoint::new),
            take_next: false,
            rng: fault::stream(seed, hw),
        }
    }

    /// Draws the fault for one attempt to hand the device a request.
    pub(super) fn draw(&mut self) -> Option<Strike> {
        let rng = &mut self.rng;
        let mut strikes = |point: &mut Option<FaultPoint>| {
            point.as_mut().is_some_and(|point| point.should_fail(rng))
        };
        if strikes(&mut self.resource) {
            return Some(Strike::Resource);
        }
        if strikes(&mut self.dev_resource) {
            return Some(Strike::DevResource);
        }
        if strikes(&mut self.requeue) {
            let take = self.take_next;
            self.take_next = !take;
            return Some(if take { Strike::Requeue } else { Strike::Resource });
        }
        if strikes(&mut self.requeue_tail) {
            return Some(Strike::RequeueTail);
        }
        strikes(&mut self.timeout).then_some(Strike::Lose)
    }
}
