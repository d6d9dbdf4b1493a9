//! [`Plan`]: how a queue is made up at present, and can be made up anew while I/O runs (`change.rs`).

use crate::config::{ConfigError, MAX_HW_QUEUE_DEPTH, MAX_NR_REQUESTS, MIN_NR_REQUESTS};
use crate::{Access, DeviceShape, NoMerges};
use blkmq_core::HwQueue;
use blkmq_sched::{Factory, Options, Scope, none};

/// Half of the default `nr_requests`, unless the hardware queue is shallower.
const DEFAULT_DEPTH: u32 = 128;

/// Everything about a queue that can be changed while it is in use. The fields are those of
/// [`Config`](crate::Config).
#[derive(Clone, Debug)]
pub struct Plan {
    /// The policy.
    pub scheduler: &'static Factory,
    /// Its options.
    pub options: Options,
    /// One elevator for the queue or one per hardware queue; `None`: what the policy prefers (D11).
    pub scope: Option<Scope>,
    /// Scheduler tags per hardware queue; `None`: the default for the policy.
    pub nr_requests: Option<u32>,
    /// Access to the elevator.
    pub access: Access,
    /// How much to merge.
    pub nomerges: NoMerges,
    /// What the device says about itself. Its limits, write cache and timeout can be changed; how many hardware
    /// queues, tags and budgets it has cannot.
    pub device: DeviceShape,
}

impl Plan {
    /// With this policy, its default options, and the scheduler depth that goes with it
    /// (`spec/framework.md` section 11).
    #[must_use]
    pub fn scheduler(mut self, factory: &'static Factory) -> Self {
        self.scheduler = factory;
        self.options = Options::defaults(factory.attributes);
        self.nr_requests = None;
        self
    }

    /// The scheduler depth that results (`spec/framework.md` section 3).
    #[must_use]
    pub fn effective_nr_requests(&self) -> u32 {
        let depth = self.device.hw_queue_depth;
        let default = if self.scheduler.name == none::FACTORY.name {
            depth
        } else {
            2 * depth.min(DEFAULT_DEPTH)
        };
        self.nr_requests.map_or(default, |n| n.max(MIN_NR_REQUESTS))
    }

    /// How many elevators serve how many hardware queues each.
    #[must_use]
    pub fn effective_scope(&self) -> Scope {
        self.scope.unwrap_or(self.scheduler.scope)
    }

    /// Elevators that result.
    pub(crate) fn shards(&self) -> u16 {
        match self.effective_scope() {
            Scope::Queue => 1,
            Scope::HwQueue => self.device.hw_queues,
        }
    }

    /// The hardware queue that submitter `index` maps to.
    pub(crate) fn home(&self, index: u16) -> HwQueue {
        HwQueue(index % self.device.hw_queues)
    }

    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        self.device.limits.validate()?;
        if !(1..=MAX_HW_QUEUE_DEPTH).contains(&self.device.hw_queue_depth) {
            return Err(ConfigError::HwQueueDepth(self.device.hw_queue_depth));
        }
        let nr_requests = self.effective_nr_requests();
        if self.nr_requests.is_some() && nr_requests > MAX_NR_REQUESTS {
            return Err(ConfigError::NrRequests(nr_requests));
        }
        if self.device.budget == Some(0) {
            return Err(ConfigError::Budget);
        }
        Ok(())
    }
}
