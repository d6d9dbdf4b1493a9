//! The configuration from which a queue is built.

use crate::dispatch::device::{DeviceQueue, DeviceShape};
use crate::dispatch::pump_mode::PumpMode;
use crate::reconfiguration::auto::{AutoChoice, PolicyChoice};
use crate::reconfiguration::bounds::{DEFAULT_SUBMITTERS, MAX_OWN_LANES};
use crate::reconfiguration::config_error::ConfigError;
use crate::reconfiguration::plan::{Plan, add_own};
#[cfg(feature = "compare")]
use crate::{Access, Modes};
use crate::{DeviceDepth, GroupTree, Host, NoMerges, SharedTags, StatsMode};
use blkmq_core::RequestId;
use blkmq_sched::{Factory, Options, Scope, none, registry};

/// The configuration of a queue. Every field has a default, except `device` and `queues`.
pub struct Config<P> {
    /// The shape of the device, as it reports it.
    pub device: DeviceShape,
    /// Its hardware queues, as many as `device.hw_queues`; or the first lanes of its submitters
    /// ([`own_lanes`](Self::own_lanes)), at least one.
    pub queues: Vec<Box<dyn DeviceQueue<P>>>,
    /// The policy.
    pub scheduler: &'static Factory,
    /// Its options.
    pub options: Options,
    /// How the policy was chosen.
    pub choice: PolicyChoice,
    /// The policy of [`PolicyChoice::Auto`] where no groups compete: the device's default.
    pub default_scheduler: &'static Factory,
    /// One elevator for the queue or one per hardware queue; `None`: as the policy prefers.
    pub scope: Option<Scope>,
    /// Scheduler tags per hardware queue; `None`: twice the hardware depth, at most 256, and exactly the
    /// hardware depth for `none`.
    pub nr_requests: Option<u32>,
    /// The scheduler tags that everything but sync reads may hold; `None`: all, unless the policy allows them less.
    pub async_depth: Option<u32>,
    /// How many requests the device may hold.
    pub device_depth: DeviceDepth,
    /// Policies of the program's own that can be chosen by name, besides the registered ones and `scheduler`.
    pub schedulers: Vec<&'static Factory>,
    /// The number of retries for a request that ends with [`EIO`](blkmq_core::IoError::IO) or
    /// [`ETIMEDOUT`](blkmq_core::IoError::TIMED_OUT), before its submitters are told. A retry goes ahead of the
    /// requests that its scheduler holds. 0, the default, leaves retries to the device; SCSI disks have 5.
    pub retries: u8,
    /// Access to the elevator.
    #[cfg(feature = "compare")]
    pub access: Access,
    /// How requests are inserted, merged, dispatched and kicked: choices for comparison.
    #[cfg(feature = "compare")]
    pub modes: Modes,
    /// Groups of owners, with limits, and with weights for schedulers that share by group.
    pub groups: GroupTree,
    /// How much is counted about groups, and when.
    pub stats: StatsMode,
    /// Forecast how long each I/O takes, for those with a [`Deadline`](blkmq_core::Deadline).
    pub forecast: bool,
    /// How much to merge.
    pub nomerges: NoMerges,
    /// Which threads pump.
    pub pump: PumpMode,
    /// The most submitters that may be registered at once; [`DEFAULT_SUBMITTERS`] unless it is set. Each takes memory for
    /// its `depth` from the beginning, and all else when it is registered.
    pub submitters: u16,
    /// I/Os that each submitter may have in flight: its credit. Rounded up to a power of two.
    pub depth: u32,
    /// A set of tags that the queue shares with other queues; `None` for tags of its own. The set must have as many
    /// tags as the device's `hw_queue_depth`, and the device shares them among its hardware queues or has only one.
    pub tags: Option<SharedTags>,
    /// The receiver of wake-ups.
    pub host: Box<dyn Host>,
}

impl<P> Config<P> {
    /// A queue around a device, with `none`, submitters of depth 256, and no host to wake.
    #[must_use]
    pub fn new(device: DeviceShape, queues: Vec<Box<dyn DeviceQueue<P>>>) -> Self {
        let default_scheduler = registry::find(device.default_scheduler());
        Self {
            device,
            queues,
            scheduler: &none::FACTORY,
            options: Options::defaults(none::FACTORY.attributes),
            choice: PolicyChoice::Named,
            default_scheduler: default_scheduler.unwrap_or(&none::FACTORY),
            scope: None,
            nr_requests: None,
            async_depth: None,
            device_depth: DeviceDepth::default(),
            schedulers: Vec::new(),
            retries: 0,
            groups: GroupTree::default(),
            stats: StatsMode::default(),
            forecast: false,
            #[cfg(feature = "compare")]
            access: Access::default(),
            #[cfg(feature = "compare")]
            modes: Modes::default(),
            nomerges: NoMerges::default(),
            pump: PumpMode::default(),
            submitters: DEFAULT_SUBMITTERS,
            depth: 256,
            tags: None,
            host: Box::new(crate::NoHost),
        }
    }

    /// With a lane to the device for each submitter, pumped by it ([`PumpMode::Owner`]), where that is possible: the
    /// device has one hardware queue and can make [another](DeviceQueue::another), there are at most
    /// [`MAX_OWN_LANES`] submitters, and the pumps run inline. Elsewhere it changes nothing. To be called when
    /// everything else is set. The lanes of later submitters are made when they are
    /// [installed](crate::Submitter::install_lane).
    #[must_use]
    pub fn own_lanes(mut self) -> Self {
        #[cfg(feature = "compare")]
        if self.access != Access::Combining {
            return self;
        }
        #[cfg(target_os = "linux")]
        if let [queue] = &*self.queues
            && self.pump == PumpMode::Inline
            && self.submitters <= MAX_OWN_LANES
            && queue.another().is_some()
        {
            self.pump = PumpMode::Owner;
        }
        self
    }

    /// With this policy and its default options.
    #[must_use]
    pub fn scheduler(mut self, factory: &'static Factory) -> Self {
        self.scheduler = factory;
        self.options = Options::defaults(factory.attributes);
        self.choice = PolicyChoice::Named;
        self
    }

    /// With the policy called `name` where [`auto`](Self::auto) finds no groups that compete. Without a registered one of
    /// this name, it stays that of the device's shape.
    #[must_use]
    pub fn default_scheduler(mut self, name: &str) -> Self {
        self.default_scheduler = registry::find(name).unwrap_or(self.default_scheduler);
        self
    }

    /// With the policy that goes with the groups of the queue ([`AutoChoice`]), now and whenever they change
    /// ([`Plan::auto`]).
    #[must_use]
    pub fn auto(self) -> Self {
        let chosen = AutoChoice::of(&self.groups, self.default_scheduler);
        Self { choice: PolicyChoice::Auto, ..self.scheduler(chosen.scheduler) }
    }

    /// The part that can be changed later.
    #[must_use]
    pub fn plan(&self) -> Plan {
        let mut schedulers = Vec::new();
        for factory in self.schedulers.iter().chain([&self.scheduler]) {
            add_own(&mut schedulers, factory);
        }
        let plan = Plan {
            scheduler: self.scheduler,
            schedulers,
            options: self.options.clone(),
            choice: self.choice,
            default_scheduler: self.default_scheduler,
            scope: self.scope,
            nr_requests: self.nr_requests,
            async_depth: self.async_depth,
            device_depth: self.device_depth,
            #[cfg(feature = "compare")]
            access: self.access,
            #[cfg(feature = "compare")]
            modes: self.modes,
            groups: self.groups.clone(),
            stats: self.stats,
            forecast: self.forecast,
            nomerges: self.nomerges,
            retries: self.retries,
            device: self.device,
            hardware: self.device,
        };
        plan.following_groups()
    }

    /// The effective scheduler depth (`spec/framework.md` section 3).
    #[must_use]
    pub fn effective_nr_requests(&self) -> u32 {
        self.plan().effective_nr_requests()
    }

    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        let given = self.queues.len();
        let hw_queues = self.device.hw_queues;
        let (wanted, fits) = match self.pump {
            PumpMode::Inline | PumpMode::Thread => (hw_queues, given == usize::from(hw_queues)),
            PumpMode::Owner => {
                (self.submitters, hw_queues == 1 && given <= usize::from(self.submitters))
            }
        };
        if given == 0 || !fits {
            return Err(ConfigError::Queues { wanted, given });
        }
        if let Some(tags) = &self.tags {
            let fits = tags.depth() == self.device.hw_queue_depth
                && (self.device.shared_tags || self.device.hw_queues == 1);
            if !fits {
                return Err(ConfigError::Tags { depth: tags.depth() });
            }
        }
        let (submitters, depth) = (self.submitters, self.depth);
        let bios = u64::from(submitters) * u64::from(depth).next_power_of_two();
        if submitters == 0 || depth == 0 || bios >= RequestId::MAX_SLOTS.into() {
            return Err(ConfigError::Submitters { submitters, depth });
        }
        self.plan().validate()
    }
}
