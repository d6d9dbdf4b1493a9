//! The null device: completes every request and stores no data, with null_blk's parameters.
//!
//! Its page (`doc/null.md`) describes the model and its limits. It has two kinds of hardware queue: inline ones for
//! `irqmode=0` with every feature off, which must cost nothing since the block layer is measured with them, and
//! modelled ones for all other settings.
//!
//! `Faults` chooses the faults of requests to a hardware queue, and `queue.rs` performs them. At most one fault applies
//! to an attempt, in the order of [`FaultPlan`]'s fields; later fault points do not count that attempt.

mod inline;
mod params;
mod queue;

use crate::description::{About, Argument, Description};
use crate::fault::{self, Fault, FaultPoint};
use crate::parts::Parts;
pub use crate::service::IrqMode;
use crate::{ArrivalLog, DeviceError, MachineShape};
use blkmq_core::{HwQueue, Rng};
use blkmq_engine::DeviceQueues;
use inline::InlineQueue;
pub use params::{DEV_RESOURCE_DELAY, NullParams, REQUEST_TIMEOUT};
use queue::{Bandwidth, NullQueue};
use std::sync::{Arc, Mutex};

/// The device for lists and messages.
pub(crate) const ABOUT: About = About {
    name: "null",
    summary: "answers everything, stores nothing; null_blk's parameters, faults on demand",
    argument: Argument::None,
    parameters: &params::PARAMETERS,
};

/// Builds the device that `given` describes.
pub(crate) fn build(
    given: &Description<'_>,
    host: &MachineShape,
) -> Result<Parts<NullParams>, DeviceError> {
    let refused = |why| DeviceError::Parameter { device: ABOUT.name, why };
    let (params, notes) = NullParams::parse(&given.pairs, host).map_err(refused)?;
    Ok(Parts {
        shape: params.shape(),
        no_sched: params.no_sched,
        notes,
        log: params.log_size.map(ArrivalLog::new),
        occupancy: None,
        model: params,
    })
}

/// The hardware queues of a null device.
pub(crate) fn queues<P: Send + 'static>(
    params: &NullParams,
    log: Option<&ArrivalLog>,
) -> DeviceQueues<P> {
    let hws = (0..params.submit_queues).map(HwQueue);
    if params.is_plain() {
        return hws.map(|_| Box::new(InlineQueue) as _).collect();
    }
    let limited = params.mbps > 0;
    let bandwidth = limited.then(|| Arc::new(Mutex::new(Bandwidth::new(params.mbps))));
    hws.map(|hw| Box::new(NullQueue::new(params, hw, bandwidth.clone(), log.cloned())) as _)
        .collect()
}

/// The faults of a null device. `None` means never.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FaultPlan {
    /// `resource`: refuse with RESOURCE.
    pub resource: Option<Fault>,
    /// `dev_resource`: refuse with DEV_RESOURCE.
    pub dev_resource: Option<Fault>,
    /// `requeue`: alternately refuse with RESOURCE, and take the request and ask for a requeue.
    pub requeue: Option<Fault>,
    /// `requeue_tail`: take the request and ask for a requeue past the scheduler.
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

/// A fault that applies to an attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Strike {
    Resource,
    DevResource,
    Requeue,
    RequeueTail,
    Lose,
}

/// The fault points of one hardware queue.
struct Faults {
    resource: Option<FaultPoint>,
    dev_resource: Option<FaultPoint>,
    requeue: Option<FaultPoint>,
    requeue_tail: Option<FaultPoint>,
    timeout: Option<FaultPoint>,
    /// Whether the next requeue fault takes the request and asks for a requeue, instead of refusing it.
    take_next: bool,
    rng: Rng,
}

impl Faults {
    fn new(plan: &FaultPlan, seed: u64, hw: HwQueue) -> Self {
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

    /// Draws the fault for one attempt to pass a request to the device.
    fn draw(&mut self) -> Option<Strike> {
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

#[cfg(test)]
mod tests;
