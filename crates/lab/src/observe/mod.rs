//! Observers beside a queue's policies and devices: a trace, depths over time, a log of the policies' calls.
//!
//! They are put between the engine and its plug-ins when a queue is built, and change nothing. Without an observer
//! nothing is in between, so that an unobserved queue costs nothing.

mod depths;
pub(crate) mod device;
mod inversions;
pub(crate) mod policy;
mod tracing;

pub use depths::Depths;
pub use inversions::Inversions;

use crate::trace::Tracer;
use blkmq_engine::Config;
use blkmq_sched::{Factory, Options, Shape};
use blkmq_trace::elevator_log::ElevatorLog;
use tracing::{TracedDevice, TracedPolicy};

/// The observers of a queue.
#[derive(Clone, Debug, Default)]
pub struct Observation {
    /// A trace of events, except those of clients ([`Traced`](crate::trace::Traced)).
    pub tracer: Option<Tracer>,
    /// Depths over time.
    pub depths: Option<Depths>,
    /// A log of the policies' calls and answers.
    pub log: Option<ElevatorLog>,
    /// A count of the requests that the device gets in another order than the policy's.
    pub inversions: Option<Inversions>,
}

impl Observation {
    /// Returns whether there is no observer.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self { tracer, depths, log, inversions } = self;
        tracer.is_none() && depths.is_none() && log.is_none() && inversions.is_none()
    }

    /// Passes `config`, with observers in it, to `build`, which builds the queue before it returns.
    ///
    /// # Panics
    /// If there is an observer and the scheduler is neither in the registry nor one of the laboratory's own.
    pub fn of<P: Send + 'static, R>(
        &self,
        config: Config<P>,
        build: impl FnOnce(Config<P>) -> R,
    ) -> R {
        if self.is_empty() {
            return build(config);
        }
        let inner = config.scheduler;
        let queues = device::watched(config.queues, config.retries, || self.beside_device());
        let config = Config { queues, scheduler: policy::factory(inner), ..config };
        let this = self.clone();
        let wrap = move |policy, shape: &Shape, options: &Options| {
            policy::watched(policy, this.beside_policy(inner, shape, options))
        };
        policy::build_with(inner, wrap, || build(config))
    }

    fn beside_device(&self) -> Vec<Box<dyn device::DeviceWatch>> {
        let mut watches: Vec<Box<dyn device::DeviceWatch>> = Vec::new();
        if let Some(tracer) = &self.tracer {
            watches.push(Box::new(TracedDevice(tracer.clone())));
        }
        if let Some(depths) = &self.depths {
            watches.push(Box::new(depths.clone()));
        }
        if let Some(inversions) = &self.inversions {
            watches.push(Box::new(inversions.beside_device()));
        }
        watches
    }

    fn beside_policy(
        &self,
        inner: &'static Factory,
        shape: &Shape,
        options: &Options,
    ) -> Vec<Box<dyn policy::PolicyWatch>> {
        let mut watches: Vec<Box<dyn policy::PolicyWatch>> = Vec::new();
        if let Some(tracer) = &self.tracer {
            watches.push(Box::new(TracedPolicy::new(tracer.clone(), shape)));
        }
        if let Some(depths) = &self.depths {
            watches.push(Box::new(depths.clone()));
        }
        if let Some(log) = &self.log {
            watches.push(log.beside(inner, shape, options));
        }
        if let Some(inversions) = &self.inversions {
            watches.push(Box::new(inversions.clone()));
        }
        watches
    }
}
