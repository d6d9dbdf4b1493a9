//! What a queue is built from, and why that may fail.

use crate::device::{DeviceQueue, DeviceShape};
use crate::plan::Plan;
use crate::{Access, GroupTree, Host, Modes, NoMerges, SharedTags, Stats, modes};
use blkmq_core::{LimitsError, RequestId};
use blkmq_sched::{Factory, Options, Scope, none};
use std::fmt;

/// Who pumps requests from outboxes to the device and back (D16).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PumpMode {
    /// Whoever submits, polls or waits: no hand-over to another thread.
    #[default]
    Inline,
    /// A thread per hardware queue, called through [`Host::wake_pump`], that calls
    /// [`Queue::pump`](crate::Queue::pump).
    Thread,
}

/// `nr_requests` below this is raised to it (`spec/framework.md` section 3).
pub const MIN_NR_REQUESTS: u32 = 4;
/// The most that `nr_requests` may be with a scheduler.
pub const MAX_NR_REQUESTS: u32 = 2048;
/// The deepest hardware queue.
pub const MAX_HW_QUEUE_DEPTH: u32 = 10240;

/// How a queue is to be built. Every field has a default; `device` and `queues` make it concrete.
pub struct Config<P> {
    /// What the device says about itself.
    pub device: DeviceShape,
    /// Its hardware queues, as many as `device.hw_queues`.
    pub queues: Vec<Box<dyn DeviceQueue<P>>>,
    /// The policy.
    pub scheduler: &'static Factory,
    /// Its options.
    pub options: Options,
    /// One elevator for the queue or one per hardware queue; `None`: what the policy prefers (D11).
    pub scope: Option<Scope>,
    /// Scheduler tags per hardware queue; `None`: twice the hardware depth, at most 256, and exactly the
    /// hardware depth for `none`.
    pub nr_requests: Option<u32>,
    /// How many of those everything but sync reads may hold; `None`: all, unless the policy allows them less.
    pub async_depth: Option<u32>,
    /// How often a request that ends with [`EIO`](blkmq_core::IoError::IO) or
    /// [`ETIMEDOUT`](blkmq_core::IoError::TIMED_OUT) is tried again before its submitters hear of it, ahead of
    /// what its scheduler holds. 0, the default, leaves it to the device; SCSI disks have 5.
    pub retries: u8,
    /// Access to the elevator.
    pub access: Access,
    /// What is chosen besides: how requests are inserted, merged, dispatched and kicked.
    pub modes: Modes,
    /// Groups of owners, with weights for schedulers that share by them, and limits.
    pub groups: GroupTree,
    /// What is counted about them, by schedulers that share by them.
    pub stats: Stats,
    /// How much to merge.
    pub nomerges: NoMerges,
    /// Who pumps.
    pub pump: PumpMode,
    /// How many submitters may be registered at once.
    pub submitters: u16,
    /// I/Os that each of them may have in flight: its credit. Rounded up to a power of two.
    pub depth: u32,
    /// Tags that it shares with other queues; `None` for tags of its own. Then there are as many in all as the
    /// device's `hw_queue_depth`, and its hardware queues share them, or there is only one.
    pub tags: Option<SharedTags>,
    /// Where to send wake-ups.
    pub host: Box<dyn Host>,
}

/// Why a queue could not be built.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConfigError {
    /// The device's limits contradict themselves.
    Limits(LimitsError),
    /// The number of device queues given is not that of the shape, or is zero.
    Queues {
        /// What the shape says.
        wanted: u16,
        /// What was given.
        given: usize,
    },
    /// `hw_queue_depth` is zero or too large.
    HwQueueDepth(u32),
    /// `nr_requests` is too large.
    NrRequests(u32),
    /// As many queues as the set of tags was made for use it already.
    TagUsers,
    /// The set of tags is another one than the device's.
    Tags {
        /// Tags in the set.
        depth: u32,
    },
    /// No submitters, or no credit, or more bios in all than can be numbered.
    Submitters {
        /// How many submitters.
        submitters: u16,
        /// With how much credit.
        depth: u32,
    },
    /// `async_depth` is zero, or there is no scheduler whose tags it could divide.
    AsyncDepth(u32),
    /// A device cannot have a budget of zero.
    Budget,
    /// A limit is to be larger than the device's own.
    BeyondDevice {
        /// As in [`Limits`](blkmq_core::Limits).
        name: &'static str,
        /// What it is to be.
        asked: u32,
        /// What the device takes.
        most: u32,
    },
    /// The device has no volatile cache, so there is nothing to flush.
    NoWriteCache,
    /// The device cannot do `FUA`.
    NoFua,
    /// A device cannot answer in no time.
    Timeout,
    /// What was chosen for an option does not go with the access.
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
    /// A queue around a device, with `none`, one submitter of depth 256, and nobody to wake.
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
            stats: Stats::default(),
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

    /// The scheduler depth that results (`spec/framework.md` section 3).
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
