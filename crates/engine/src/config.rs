//! The configuration from which a queue is built, and the errors in it.

use crate::device::{DeviceQueue, DeviceShape};
use crate::plan::Plan;
use crate::{Access, GroupTree, Host, Modes, NoMerges, SharedTags, StatsMode, modes};
use blkmq_core::{LimitsError, RequestId};
use blkmq_sched::{Factory, Options, Scope, none};
use std::fmt;

/// Which threads pump requests from outboxes to the device and back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PumpMode {
    /// The threads that submit, poll or wait: no hand-over to another thread.
    #[default]
    Inline,
    /// A thread per hardware queue, woken through [`Host::wake_pump`], that calls
    /// [`Queue::pump`](crate::Queue::pump).
    Thread,
}

/// A smaller `nr_requests` is raised to this (`spec/framework.md` section 3).
pub const MIN_NR_REQUESTS: u32 = 4;
/// The largest `nr_requests` with a scheduler.
pub const MAX_NR_REQUESTS: u32 = 2048;
/// The deepest hardware queue.
pub const MAX_HW_QUEUE_DEPTH: u32 = 10240;

/// The configuration of a queue. Every field has a default, except `device` and `queues`.
pub struct Config<P> {
    /// The shape of the device, as it reports it.
    pub device: DeviceShape,
    /// Its hardware queues, as many as `device.hw_queues`.
    pub queues: Vec<Box<dyn DeviceQueue<P>>>,
    /// The policy.
    pub scheduler: &'static Factory,
    /// Its options.
    pub options: Options,
    /// One elevator for the queue or one per hardware queue; `None`: as the policy prefers.
    pub scope: Option<Scope>,
    /// Scheduler tags per hardware queue; `None`: twice the hardware depth, at most 256, and exactly the
    /// hardware depth for `none`.
    pub nr_requests: Option<u32>,
    /// The scheduler tags that everything but sync reads may hold; `None`: all, unless the policy allows them less.
    pub async_depth: Option<u32>,
    /// The number of retries for a request that ends with [`EIO`](blkmq_core::IoError::IO) or
    /// [`ETIMEDOUT`](blkmq_core::IoError::TIMED_OUT), before its submitters are told. A retry goes ahead of the
    /// requests that its scheduler holds. 0, the default, leaves retries to the device; SCSI disks have 5.
    pub retries: u8,
    /// Access to the elevator.
    pub access: Access,
    /// How requests are inserted, merged, dispatched and kicked: choices for comparison.
    pub modes: Modes,
    /// Groups of owners, with limits, and with weights for schedulers that share by group.
    pub groups: GroupTree,
    /// How much is counted about groups, and when.
    pub stats: StatsMode,
    /// How much to merge.
    pub nomerges: NoMerges,
    /// Which threads pump.
    pub pump: PumpMode,
    /// The number of submitters that may be registered at once.
    pub submitters: u16,
    /// I/Os that each submitter may have in flight: its credit. Rounded up to a power of two.
    pub depth: u32,
    /// A set of tags that the queue shares with other queues; `None` for tags of its own. The set must have as many
    /// tags as the device's `hw_queue_depth`, and the device shares them among its hardware queues or has only one.
    pub tags: Option<SharedTags>,
    /// The receiver of wake-ups.
    pub host: Box<dyn Host>,
}

/// Why a queue could not be built.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConfigError {
    /// The device's limits contradict themselves.
    Limits(LimitsError),
    /// The number of device queues given differs from that of the shape, or is zero.
    Queues {
        /// The number in the shape.
        wanted: u16,
        /// The number given.
        given: usize,
    },
    /// `hw_queue_depth` is zero or too large.
    HwQueueDepth(u32),
    /// `nr_requests` is too large.
    NrRequests(u32),
    /// The set of tags is already used by as many queues as it was made for.
    TagUsers,
    /// The set of tags does not fit the device.
    Tags {
        /// Tags in the set.
        depth: u32,
    },
    /// There are no submitters, or no credit, or more bios in all than can be numbered.
    Submitters {
        /// The number of submitters.
        submitters: u16,
        /// The credit of each.
        depth: u32,
    },
    /// `async_depth` is zero, or there is no scheduler, so that it has no tags to divide.
    AsyncDepth(u32),
    /// A device cannot have a budget of zero.
    Budget,
    /// A limit of the plan is larger than the device's own.
    BeyondDevice {
        /// The name, as in [`Limits`](blkmq_core::Limits).
        name: &'static str,
        /// The limit in the plan.
        asked: u32,
        /// The device's own limit.
        most: u32,
    },
    /// The device has no volatile cache, so there is nothing to flush.
    NoWriteCache,
    /// The device cannot do `FUA`.
    NoFua,
    /// A device cannot answer in no time.
    Timeout,
    /// The choice for an option does not go with the access.
    Mode {
        /// The access.
        access: Access,
        /// `dispatch`, `insert` or `merge`.
        option: &'static str,
    },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limits(e) => e.fmt(f),
            Self::Queues { wanted, given } => {
                write!(
                    f,
                    "the device has {given} hardware queues and says it has {wanted}; at least 1"
                )
            }
            Self::HwQueueDepth(n) => {
                write!(f, "hw_queue_depth is {n}; accepted are 1 to {MAX_HW_QUEUE_DEPTH}")
            }
            Self::NrRequests(n) => write!(
                f,
                "nr_requests is {n}; accepted are up to {MAX_NR_REQUESTS} (below {MIN_NR_REQUESTS} is raised to it)"
            ),
            Self::TagUsers => f.write_str("the set of tags is used by as many queues as it was made for"),
            Self::Tags { depth } => write!(
                f,
                "a set of {depth} tags takes a device of that hw_queue_depth, with one hardware queue or \
                 shared_tags"
            ),
            Self::Submitters { submitters, depth } => write!(
                f,
                "{submitters} submitters with a depth of {depth}; both must be at least 1 and their product \
                 below 16 million"
            ),
            Self::AsyncDepth(n) => write!(
                f,
                "async_depth is {n}; it must be at least 1, and takes a scheduler other than none"
            ),
            Self::Budget => {
                f.write_str("a device with a budget of 0 could never be given a request")
            }
            Self::BeyondDevice { name, asked, most } => {
                write!(f, "{name} is {asked}; the device takes at most {most}")
            }
            Self::NoWriteCache => {
                f.write_str("the device has no volatile write cache: it can only write through")
            }
            Self::NoFua => f.write_str("the device cannot do FUA; a flush must follow instead"),
            Self::Timeout => f.write_str(
                "with a timeout of 0 every request would time out; 30 s is usual, and u64::MAX is for ever",
            ),
            Self::Mode { access, option } => {
                let accepted = modes::accepted(*access, option).join(", ");
                write!(
                    f,
                    "this {option} does not go with access={access}; accepted: {accepted}"
                )
            }
        }
    }
}

impl std::error::Error for ConfigError {}

impl From<LimitsError> for ConfigError {
    fn from(e: LimitsError) -> Self {
        Self::Limits(e)
    }
}

impl<P> Config<P> {
    /// A queue around a device, with `none`, one submitter of depth 256, and no host to wake.
    #[must_use]
    pub fn new(device: DeviceShape, queues: Vec<Box<dyn DeviceQueue<P>>>) -> Self {
        Self {
            device,
            queues,
            scheduler: &none::FACTORY,
            options: Options::defaults(none::FACTORY.attributes),
            scope: None,
            nr_requests: None,
            async_depth: None,
            retries: 0,
            groups: GroupTree::default(),
            stats: StatsMode::default(),
            access: Access::default(),
            modes: Modes::default(),
            nomerges: NoMerges::default(),
            pump: PumpMode::default(),
            submitters: 1,
            depth: 256,
            tags: None,
            host: Box::new(crate::NoHost),
        }
    }

    /// With this policy and its default options.
    #[must_use]
    pub fn scheduler(mut self, factory: &'static Factory) -> Self {
        self.scheduler = factory;
        self.options = Options::defaults(factory.attributes);
        self
    }

    /// The part that can be changed later.
    pub(crate) fn plan(&self) -> Plan {
        Plan {
            scheduler: self.scheduler,
            options: self.options.clone(),
            scope: self.scope,
            nr_requests: self.nr_requests,
            async_depth: self.async_depth,
            access: self.access,
            modes: self.modes,
            groups: self.groups.clone(),
            stats: self.stats,
            nomerges: self.nomerges,
            retries: self.retries,
            device: self.device,
            hardware: self.device,
        }
    }

    /// The effective scheduler depth (`spec/framework.md` section 3).
    #[must_use]
    pub fn effective_nr_requests(&self) -> u32 {
        self.plan().effective_nr_requests()
    }

    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        let given = self.queues.len();
        if given == 0 || given != usize::from(self.device.hw_queues) {
            return Err(ConfigError::Queues { wanted: self.device.hw_queues, given });
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
