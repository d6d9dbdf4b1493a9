//! [`Plan`]: the current settings of a queue, which can be changed while I/O runs (`change.rs`).

use crate::reconfiguration::auto::{AutoChoice, AutoReason, PolicyChoice};
use crate::reconfiguration::bounds::{MAX_HW_QUEUE_DEPTH, MAX_NR_REQUESTS, MIN_NR_REQUESTS};
use crate::reconfiguration::config_error::ConfigError;
#[cfg(feature = "compare")]
use crate::{Access, EffectiveModes, Modes};
use crate::{DeviceDepth, DeviceShape, GroupTree, NoMerges, StatsMode, WriteCache};
use blkmq_core::{HwQueue, Nanos};
use blkmq_sched::{Factory, Options, Scope, none, registry};

/// Half of the default `nr_requests`, unless the hardware queue is shallower.
const DEFAULT_DEPTH: u32 = 128;

/// All settings of a queue that can be changed while it is in use. The fields are those of [`Config`](crate::Config).
#[derive(Clone, Debug)]
pub struct Plan {
    /// The policy.
    pub scheduler: &'static Factory,
    /// Its options.
    pub options: Options,
    /// Policies of the program's own that can be chosen by name, besides the registered ones.
    pub schedulers: Vec<&'static Factory>,
    /// How the policy was chosen. Under [`PolicyChoice::Auto`], another one takes its place when groups come to compete.
    pub choice: PolicyChoice,
    /// The policy of [`PolicyChoice::Auto`] where no groups compete.
    pub default_scheduler: &'static Factory,
    /// One elevator for the queue or one per hardware queue; `None`: as the policy prefers.
    pub scope: Option<Scope>,
    /// Scheduler tags per hardware queue; `None`: the default for the policy.
    pub nr_requests: Option<u32>,
    /// The scheduler tags that everything but sync reads may hold; `None`: all. The policy may have a limit of its
    /// own; the smaller of both counts.
    pub async_depth: Option<u32>,
    /// How many requests the device may hold.
    pub device_depth: DeviceDepth,
    /// Access to the elevator.
    #[cfg(feature = "compare")]
    pub access: Access,
    /// How requests are inserted, merged, dispatched and kicked: choices for comparison.
    #[cfg(feature = "compare")]
    pub modes: Modes,
    /// Groups of owners. The weights and limits of this tree apply as soon as the plan does.
    pub groups: GroupTree,
    /// How much is counted about groups, and when.
    pub stats: StatsMode,
    /// Forecast how long each I/O takes, for those with a [`Deadline`](blkmq_core::Deadline).
    pub forecast: bool,
    /// How much to merge.
    pub nomerges: NoMerges,
    /// The number of retries for a request that failed in a way that may pass.
    pub retries: u8,
    /// The shape of the device that the queue keeps to. Its limits and write cache can be changed within those of
    /// [`hardware`](Self::hardware), and so can its timeout; the numbers of hardware queues, tags and budgets cannot.
    pub device: DeviceShape,
    /// The shape that the device reported when the queue was built. It never changes: a plan with another value is
    /// for another device.
    pub hardware: DeviceShape,
}

/// Adds `factory` to the policies of the program's own, unless its name is known.
pub(super) fn add_own(own: &mut Vec<&'static Factory>, factory: &'static Factory) {
    let is_known = registry::find(factory.name).is_some();
    if !is_known && own.iter().all(|known| known.name != factory.name) {
        own.push(factory);
    }
}

impl Plan {
    /// With this policy, its default options, and the scheduler depth that goes with it
    /// (`spec/framework.md` section 11).
    #[must_use]
    pub fn scheduler(mut self, factory: &'static Factory) -> Self {
        add_own(&mut self.schedulers, factory);
        self.scheduler = factory;
        self.options = Options::defaults(factory.attributes);
        (self.nr_requests, self.async_depth) = (None, None);
        self.choice = PolicyChoice::Named;
        self
    }

    /// With the policy that goes with its groups, as [`scheduler`](Self::scheduler) sets it if it is another one, now and
    /// whenever groups come to compete.
    #[must_use]
    pub fn choose_by_groups(mut self) -> Self {
        let chosen = AutoChoice::of(&self.groups, self.default_scheduler).scheduler;
        if chosen.name != self.scheduler.name {
            self = self.scheduler(chosen);
        }
        Self { choice: PolicyChoice::Auto, ..self }
    }

    /// Returns the policy that was chosen by groups, and the reason; `None` if it was named.
    #[must_use]
    pub fn auto(&self) -> Option<AutoChoice> {
        if self.choice == PolicyChoice::Named {
            return None;
        }
        let chosen = AutoChoice::of(&self.groups, self.default_scheduler);
        let is_present = chosen.scheduler.name == self.scheduler.name;
        let before = AutoChoice { scheduler: self.scheduler, reason: AutoReason::Before };
        Some(if is_present { chosen } else { before })
    }

    /// The plan after a change of its groups. Groups that have come to compete get their policy. When groups go, it
    /// stays: a switch waits for all I/O in flight, and groups may go in threads that must not wait for a device.
    pub(crate) fn following_groups(self) -> Self {
        if self.choice == PolicyChoice::Named {
            return self;
        }
        let chosen = AutoChoice::of(&self.groups, self.default_scheduler);
        if chosen.reason == AutoReason::Alone { self } else { self.choose_by_groups() }
    }

    /// With this access, and the modes that go with it. The choice for kicks stays as it is.
    #[cfg(feature = "compare")]
    #[must_use]
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self.modes = Modes { kick: self.modes.kick, ..Modes::default() };
        self
    }

    /// With this scheduler depth, and `async_depth` in proportion: rounded down, and at least 1
    /// (`spec/framework.md` section 3).
    #[must_use]
    pub fn nr_requests(mut self, nr_requests: u32) -> Self {
        let (before, limited) = (self.effective_nr_requests(), self.effective_async_depth());
        self.nr_requests = Some(nr_requests);
        let scaled = u64::from(limited) * u64::from(self.effective_nr_requests());
        let scaled = scaled / u64::from(before);
        // At most the new depth, because `limited` is at most the old one.
        self.async_depth = self.async_depth.map(|_| scaled.max(1) as u32);
        self
    }

    /// The effective scheduler depth (`spec/framework.md` section 3).
    #[must_use]
    pub fn effective_nr_requests(&self) -> u32 {
        let depth = self.device.hw_queue_depth;
        let default = if self.has_scheduler() { 2 * depth.min(DEFAULT_DEPTH) } else { depth };
        self.nr_requests.map_or(default, |n| n.max(MIN_NR_REQUESTS))
    }

    /// The scheduler tags that everything but sync reads may hold, as far as the queue limits them.
    #[must_use]
    pub fn effective_async_depth(&self) -> u32 {
        let nr_requests = self.effective_nr_requests();
        self.async_depth.map_or(nr_requests, |depth| depth.min(nr_requests))
    }

    /// The effective scope: one elevator for the queue or one per hardware queue. Where groups have latency goals there is
    /// one, since their controller has to see all I/O.
    #[must_use]
    pub fn effective_scope(&self) -> Scope {
        let preferred = if self.groups.has_goals() { Scope::Queue } else { self.scheduler.scope };
        self.scope.unwrap_or(preferred)
    }

    /// The most requests that may have left the elevators; `None`: any number. Where groups have latency goals there is
    /// always a number, which their controller lowers.
    #[must_use]
    pub fn budget(&self) -> Option<u32> {
        let budget = self.device_depth.budget(&self.device);
        budget.or_else(|| self.groups.has_goals().then(|| self.device_tags()))
    }

    /// The driver tags of all hardware queues.
    pub(super) fn device_tags(&self) -> u32 {
        let sets = if self.device.shared_tags { 1 } else { u32::from(self.device.hw_queues) };
        self.device.hw_queue_depth * sets
    }

    /// The effective modes: how elevators are reached.
    ///
    /// # Errors
    /// If a choice does not go with the access.
    #[cfg(feature = "compare")]
    pub fn effective_modes(&self) -> Result<EffectiveModes, ConfigError> {
        self.modes.settle(self.access)
    }

    /// The effective number of elevators.
    #[must_use]
    pub fn shards(&self) -> u16 {
        match self.effective_scope() {
            Scope::Queue => 1,
            Scope::HwQueue => self.device.hw_queues,
        }
    }

    /// The hardware queue that submitter `index` maps to.
    pub(crate) fn home(&self, index: u16) -> HwQueue {
        HwQueue(index % self.device.hw_queues)
    }

    /// The cache for which flushes are sequenced. If the device has one, sequencing does not end with a change to
    /// [`WriteCache::Through`]: I/Os submitted before still have their flushes to come.
    pub(crate) fn flushed_cache(&self) -> WriteCache {
        match self.device.cache {
            WriteCache::Through => self.hardware.cache,
            back @ WriteCache::Back { .. } => back,
        }
    }

    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        self.device.limits.validate()?;
        self.within_hardware()?;
        #[cfg(feature = "compare")]
        self.effective_modes()?;
        if !(1..=MAX_HW_QUEUE_DEPTH).contains(&self.device.hw_queue_depth) {
            return Err(ConfigError::HwQueueDepth(self.device.hw_queue_depth));
        }
        let nr_requests = self.effective_nr_requests();
        if self.nr_requests.is_some() && nr_requests > MAX_NR_REQUESTS {
            return Err(ConfigError::NrRequests(nr_requests));
        }
        if let Some(depth) = self.async_depth
            && (depth == 0 || !self.has_scheduler())
        {
            return Err(ConfigError::AsyncDepth(depth));
        }
        if self.device.budget == Some(0) {
            return Err(ConfigError::Budget);
        }
        if !self.device_depth.is_valid() {
            return Err(ConfigError::DeviceDepth(self.device_depth.number()));
        }
        if self.groups.has_goals()
            && self.effective_scope() == Scope::HwQueue
            && self.device.hw_queues > 1
        {
            return Err(ConfigError::GoalsScope);
        }
        if self.device.timeout == Nanos::ZERO {
            return Err(ConfigError::Timeout);
        }
        self.check_floors()
    }

    /// Is the policy other than `none`?
    pub(crate) fn has_scheduler(&self) -> bool {
        self.scheduler.name != none::FACTORY.name
    }

    fn within_hardware(&self) -> Result<(), ConfigError> {
        let (asked, most) = (&self.device.limits, &self.hardware.limits);
        for (name, asked, most) in [
            ("max_sectors", asked.max_sectors, most.max_sectors),
            ("max_discard_sectors", asked.max_discard_sectors, most.max_discard_sectors),
            (
                "max_write_zeroes_sectors",
                asked.max_write_zeroes_sectors,
                most.max_write_zeroes_sectors,
            ),
            (
                "max_discard_segments",
                asked.max_discard_segments.into(),
                most.max_discard_segments.into(),
            ),
            ("max_segments", asked.max_segments.into(), most.max_segments.into()),
            ("max_segment_size", asked.max_segment_size, most.max_segment_size),
        ] {
            if asked > most {
                return Err(ConfigError::BeyondDevice { name, asked, most });
            }
        }
        match (self.device.cache, self.hardware.cache) {
            (WriteCache::Back { .. }, WriteCache::Through) => Err(ConfigError::NoWriteCache),
            (WriteCache::Back { fua: true }, WriteCache::Back { fua: false }) => {
                Err(ConfigError::NoFua)
            }
            _ => Ok(()),
        }
    }
}
