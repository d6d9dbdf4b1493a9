//! The configuration from which a queue is built, the observers of its policies, and the errors in a configuration or a
//! plan.

use crate::dispatch::device::{DeviceQueue, DeviceShape};
use crate::elevator::Tapping;
use crate::groups::FloorsError;
use crate::plan::{AutoChoice, Plan, PolicyChoice, add_own};
use crate::shared::modes::{self, Access, EffectiveModes, KickMode, Modes};
use crate::shared::{
    DEFAULT_SUBMITTERS, MAX_DEVICE_DEPTH, MAX_HW_QUEUE_DEPTH, MAX_NR_REQUESTS, MAX_OWN_LANES,
    MIN_NR_REQUESTS, PumpMode,
};
use crate::sync::{Arc, ArcDyn, COMPARE};
use crate::trace::Tap;
use crate::{DeviceDepth, GroupTree, Host, NoMerges, SharedTags, StatsMode, trace};
use blkmq_core::{LimitsError, RequestId};
use blkmq_sched::{Factory, Options, Scheduler, Scope, Shape, none, registry};
use std::{fmt, io};

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
    /// Whether the policy is named or chosen by groups.
    pub choice: PolicyChoice,
    /// The policy of [`PolicyChoice::Auto`] where no groups compete: the device's default.
    pub default_scheduler: &'static Factory,
    /// One elevator for the queue or one per hardware queue; `None` lets the policy choose.
    pub scope: Option<Scope>,
    /// Scheduler tags per hardware queue; `None` means twice the hardware depth, at most 256, and exactly the hardware
    /// depth for `none`.
    pub nr_requests: Option<u32>,
    /// The scheduler tags that requests other than sync reads may hold; `None`: all, unless the policy allows fewer.
    pub async_depth: Option<u32>,
    /// How many requests the device may hold.
    pub device_depth: DeviceDepth,
    /// The program's own policies that can be chosen by name, besides the registered ones and `scheduler`.
    pub schedulers: Vec<&'static Factory>,
    /// The number of retries for a request that ends with [`EIO`](blkmq_core::IoError::IO) or
    /// [`ETIMEDOUT`](blkmq_core::IoError::TIMED_OUT), before its submitters are notified. A retry precedes the requests
    /// that the scheduler holds. 0, the default, leaves retries to the device; SCSI disks have 5.
    pub retries: u8,
    /// How threads enter the elevator: by combining, unless the contention of a lock is to be measured.
    #[doc(hidden)]
    pub access: Access,
    /// How requests are inserted, merged, dispatched and kicked, for comparison.
    #[doc(hidden)]
    pub modes: Modes,
    /// Groups of owners, with limits, and with weights for schedulers that share by group.
    pub groups: GroupTree,
    /// How much is counted about groups, and when.
    pub stats: StatsMode,
    /// Forecast the completion time of each I/O, for I/Os with a [`Deadline`](blkmq_core::Deadline).
    pub forecast: bool,
    /// How much to merge.
    pub nomerges: NoMerges,
    /// Which threads pump.
    pub pump: PumpMode,
    /// The most submitters registered at a time; [`DEFAULT_SUBMITTERS`] by default. The memory for the `depth` of each
    /// is allocated at the beginning, and the rest when the submitter is registered.
    pub submitters: u16,
    /// The most I/Os that each submitter may have in flight: its credit. Rounded up to a power of two.
    pub depth: u32,
    /// A set of tags that the queue shares with other queues; `None` for separate tags. The set must have as many tags
    /// as the device's `hw_queue_depth`, and the device must share them among its hardware queues or have only one.
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
            access: Access::default(),
            modes: Modes::default(),
            nomerges: NoMerges::default(),
            pump: PumpMode::default(),
            submitters: DEFAULT_SUBMITTERS,
            depth: 256,
            tags: None,
            host: Box::new(crate::NoHost),
        }
    }

    /// With the access that `choose` returns the number of, below the number of choices. For conformance tests; without
    /// comparison modes there is one.
    #[doc(hidden)]
    #[must_use]
    pub fn some_access(self, choose: impl FnOnce(u64) -> u64) -> Self {
        if !COMPARE {
            return self;
        }
        let (_, access) = Access::ALL[choose(Access::ALL.len() as u64) as usize];
        Self { access, ..self }
    }

    /// With a lane to the device for each submitter, which pumps it ([`PumpMode::Owner`]), where that is possible: the
    /// device has one hardware queue and can make [another](DeviceQueue::another), there are at most [`MAX_OWN_LANES`]
    /// submitters, and the pumps run inline. Otherwise changes nothing. Must be called after all other settings. The
    /// lanes of later submitters are made when they are [installed](crate::Submitter::install_lane).
    #[must_use]
    pub fn own_lanes(mut self) -> Self {
        if self.access != Access::Combining {
            return self;
        }
        // Submitters sleep on their lanes, which is possible on Linux only.
        if cfg!(target_os = "linux")
            && let [queue] = &*self.queues
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

    /// Sets the policy that [`auto`](Self::auto) uses while no groups compete. Ignores a name that is not registered,
    /// and keeps the default for the device's shape.
    #[must_use]
    pub fn default_scheduler(mut self, name: &str) -> Self {
        self.default_scheduler = registry::find(name).unwrap_or(self.default_scheduler);
        self
    }

    /// With the policy that fits the groups of the queue ([`AutoChoice`]), now and whenever they change
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
            access: self.access,
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

/// The hardware queues of a device, in order.
pub type DeviceQueues<P> = Vec<Box<dyn DeviceQueue<P>>>;

/// How the sectors of several devices are arranged in [one](BlockDevice::join).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Join {
    /// One device after the other.
    Concat,
    /// Chunks on the devices in turn, as in RAID 0.
    Stripe {
        /// The sectors in a chunk, above 0.
        chunk: u32,
    },
}

/// A device, described and ready to be used by a queue, for payloads of type `P`.
///
/// To define a device, implement [`shape`](Self::shape) and [`queues`](Self::queues); the hardware queues do the
/// I/O ([`DeviceQueue`]).
pub trait BlockDevice<P> {
    /// The properties that the engine must know.
    fn shape(&self) -> DeviceShape;

    /// Its hardware queues, `shape().hw_queues` of them, for one further queue.
    ///
    /// # Errors
    /// If the system refuses resources for them, such as rings and memory.
    fn queues(&self) -> io::Result<DeviceQueues<P>>;

    /// Joins devices into one, of the given number of leading sectors of each, so that one queue, and one place to
    /// sleep, serves all of them. A flush to the result goes to all devices. `None` if this kind of device cannot be
    /// joined.
    ///
    /// The numbers of sectors are above 0, in whole blocks of every device and, for a [stripe](Join::Stripe), equal and
    /// in whole chunks.
    fn join(_all: &[(&Self, u64)], _by: Join) -> Option<Box<dyn BlockDevice<P>>>
    where
        Self: Sized,
    {
        None
    }

    /// Deviations of the device from its description: one sentence each, for the user.
    fn notes(&self) -> &[String] {
        &[]
    }

    /// The name of the scheduler that Linux gives such a device: `mq-deadline` for one hardware queue or shared
    /// tags, `none` for several hardware queues (`spec/framework.md` section 11).
    fn default_scheduler(&self) -> &'static str {
        self.shape().default_scheduler()
    }

    /// The configuration of a queue for this device, with all other settings at their defaults.
    ///
    /// # Errors
    /// As [`queues`](Self::queues).
    fn config(&self) -> io::Result<Config<P>> {
        let config = Config::new(self.shape(), self.queues()?);
        Ok(config.default_scheduler(self.default_scheduler()))
    }
}

/// An observer of a queue's policies: it may wrap each policy in its own, which sees every call and forwards it.
pub trait PolicyObserver: Send + Sync {
    /// The policy to use in place of `policy`, which `factory` has made for `shape` with `options`. It must answer as
    /// `policy` does, and return `policy` when it is [released](Scheduler::release).
    fn around(
        &self,
        policy: Box<dyn Scheduler>,
        factory: &'static Factory,
        shape: &Shape,
        options: &Options,
    ) -> Box<dyn Scheduler>;
}

#[derive(Clone, Default)]
pub(crate) struct Watchers {
    pub(crate) trace: Option<Arc<trace::Shared>>,
    pub(crate) observer: Option<ArcDyn<dyn PolicyObserver>>,
}

impl fmt::Debug for Watchers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watchers").finish_non_exhaustive()
    }
}

impl Watchers {
    /// Returns whether changing the observers from `before` to these needs new policies, because an observer must see
    /// its policies from their beginning.
    pub(crate) fn need_new_policies(&self, before: &Self) -> bool {
        match (&before.observer, &self.observer) {
            (_, None) => false,
            (None, Some(_)) => true,
            (Some(old), Some(new)) => !ArcDyn::ptr_eq(old, new),
        }
    }

    /// Returns how the traces of `shards` elevators change from `before`, the last elevator first.
    pub(crate) fn tapping(&self, before: &Self, shards: u16) -> Vec<Tapping> {
        let one = |shard| match (&before.trace, &self.trace) {
            (_, None) => Tapping::End,
            (Some(old), Some(new)) if Arc::ptr_eq(old, new) => Tapping::Keep,
            // The ring is allocated here, where no elevator waits for it.
            (_, Some(new)) => Tapping::Begin(new.tap(shard)),
        };
        (0..shards).rev().map(one).collect()
    }

    /// The tap of elevator `shard`; `None` without a trace.
    pub(crate) fn tap(&self, shard: u16) -> Option<Tap> {
        self.trace.as_ref().map(|trace| trace.tap(shard))
    }

    /// A policy of `factory`, wrapped by the observer if there is one.
    pub(crate) fn policy(
        &self,
        factory: &'static Factory,
        shape: &Shape,
        options: &Options,
    ) -> Box<dyn Scheduler> {
        let policy = (factory.build)(shape, options);
        match &self.observer {
            Some(observer) => observer.around(policy, factory, shape, options),
            None => policy,
        }
    }
}

/// Why a queue could not be built.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The device's limits are contradictory.
    #[error("{0}")]
    Limits(LimitsError),
    /// The number of device queues given differs from that of the shape, or is zero.
    #[error("the device has {given} hardware queues and says it has {wanted}; at least 1")]
    Queues {
        /// The number in the shape.
        wanted: u16,
        /// The number given.
        given: usize,
    },
    /// `hw_queue_depth` is zero or too large.
    #[error("hw_queue_depth is {0}; accepted are 1 to {MAX_HW_QUEUE_DEPTH}")]
    HwQueueDepth(u32),
    /// `nr_requests` is too large.
    #[error(
        "nr_requests is {0}; accepted are up to {MAX_NR_REQUESTS} (below {MIN_NR_REQUESTS} is \
         raised to it)"
    )]
    NrRequests(u32),
    /// The set of tags is already used by as many queues as it was made for.
    #[error("the set of tags is used by as many queues as it was made for")]
    TagUsers,
    /// The set of tags does not fit the device.
    #[error(
        "a set of {depth} tags takes a device of that hw_queue_depth, with one hardware queue or \
         shared_tags"
    )]
    Tags {
        /// Tags in the set.
        depth: u32,
    },
    /// There are no submitters, or no credit, or more bios in total than can be numbered.
    #[error(
        "{submitters} submitters with a depth of {depth}; both must be at least 1 and their \
         product below 16 million"
    )]
    Submitters {
        /// The number of submitters.
        submitters: u16,
        /// The credit of each.
        depth: u32,
    },
    /// `async_depth` is zero, or there is no scheduler whose tags it could divide.
    #[error("async_depth is {0}; it must be at least 1, and takes a scheduler other than none")]
    AsyncDepth(u32),
    /// A device cannot have a budget of zero.
    #[error("a device with a budget of 0 could never be given a request")]
    Budget,
    /// `device_depth` is not a possible bound.
    #[error("device_depth is {0}; accepted are 1 to {MAX_DEVICE_DEPTH}, or the device's own")]
    DeviceDepth(u32),
    /// Groups have latency goals, but each of several hardware queues has its own elevator.
    #[error(
        "latency goals (p99_read, p99_write, p99_sync) take one elevator for the queue; accepted: \
         scope queue, or auto"
    )]
    GoalsScope,
    /// A limit of the plan is larger than the device's own.
    #[error("{name} is {asked}; the device takes at most {most}")]
    BeyondDevice {
        /// The name, as in [`Limits`](blkmq_core::Limits).
        name: &'static str,
        /// The limit in the plan.
        asked: u32,
        /// The device's own limit.
        most: u32,
    },
    /// The device has no volatile cache, so there is nothing to flush.
    #[error("the device has no volatile write cache: it can only write through")]
    NoWriteCache,
    /// The device cannot do `FUA`.
    #[error("the device cannot do FUA; a flush must follow instead")]
    NoFua,
    /// The timeout of a device is zero.
    #[error(
        "with a timeout of 0 every request would time out; 30 s is usual, and u64::MAX is for ever"
    )]
    Timeout,
    /// The floors of groups cannot be kept.
    #[error("{0}")]
    Floors(FloorsError),
    /// The choice for an option is impossible with the access.
    #[error(
        "this {option} does not go with access={access}; accepted: {}",
        modes::accepted(*access, option).join(", ")
    )]
    #[doc(hidden)]
    Mode {
        /// The access.
        access: Access,
        /// `dispatch`, `insert` or `merge`.
        option: &'static str,
    },
}

impl From<LimitsError> for ConfigError {
    fn from(e: LimitsError) -> Self {
        Self::Limits(e)
    }
}

impl Modes {
    /// The modes that result with `access`.
    ///
    /// # Errors
    /// If a choice is impossible with `access`.
    pub fn settle(&self, access: Access) -> Result<EffectiveModes, ConfigError> {
        let refuse = |option| ConfigError::Mode { access, option };
        Ok(EffectiveModes {
            access,
            dispatch: pick(self.dispatch, access.dispatch()).ok_or(refuse("dispatch"))?,
            insert: pick(self.insert, access.insert()).ok_or(refuse("insert"))?,
            merge: pick(self.merge, access.merge()).ok_or(refuse("merge"))?,
            kick: self.kick.unwrap_or(KickMode::Coalesced),
        })
    }
}

/// The chosen mode if it is among `goes`; the first of `goes` if no mode was chosen.
fn pick<M: Copy + PartialEq>(chosen: Option<M>, goes: &[M]) -> Option<M> {
    match chosen {
        None => goes.first().copied(),
        Some(mode) => goes.contains(&mode).then_some(mode),
    }
}
