//! [`Plan`]: the current settings of a queue, which can be changed while I/O runs (`reconfiguration`).
//!
//! [`DeviceDepth`]: a drive that takes many requests reorders them, regardless of the scheduler. A bound keeps requests
//! in the elevator, where the policy orders them and they can still merge (decision 0020).
//!
//! [`AutoChoice`]: the scheduler chosen for a queue is a function of the tree of groups and of the device's default, so
//! it can be determined before a queue is built.
//!
//! [`ConfigNote`]: shares by weight that a valid configuration will not keep, and why.

use crate::groups::DEFAULT_WEIGHT;
use crate::plan::config::ConfigError;
use crate::shared::modes::{Access, EffectiveModes, Modes};
use crate::shared::{MAX_DEVICE_DEPTH, MAX_HW_QUEUE_DEPTH, MAX_NR_REQUESTS, MIN_NR_REQUESTS};
use crate::{Config, DeviceShape, GroupTree, NoMerges, StatsMode, WriteCache};
use blkmq_core::{HwQueue, Nanos};
use blkmq_sched::{Factory, Facts, Options, Scope, Shape, mclock, none, registry};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

pub(crate) mod config;

/// Half of the default `nr_requests`, unless the hardware queue is shallower.
const DEFAULT_DEPTH: u32 = 128;

/// All settings of a queue that can be changed while it is in use. The fields are those of [`Config`](crate::Config).
#[derive(Clone, Debug)]
pub struct Plan {
    /// The policy.
    pub scheduler: &'static Factory,
    /// Its options.
    pub options: Options,
    /// The program's own policies that can be chosen by name, besides the registered ones.
    pub schedulers: Vec<&'static Factory>,
    /// Whether the policy is named or chosen by groups. Under [`PolicyChoice::Auto`], it is replaced when groups begin
    /// to compete.
    pub choice: PolicyChoice,
    /// The policy of [`PolicyChoice::Auto`] where no groups compete.
    pub default_scheduler: &'static Factory,
    /// One elevator for the queue or one per hardware queue; `None` lets the policy choose.
    pub scope: Option<Scope>,
    /// Scheduler tags per hardware queue; `None` means the policy's default.
    pub nr_requests: Option<u32>,
    /// The scheduler tags that requests other than sync reads may hold; `None`: all. If the policy has a limit too, the
    /// smaller one counts.
    pub async_depth: Option<u32>,
    /// How many requests the device may hold.
    pub device_depth: DeviceDepth,
    /// How threads enter the elevator.
    #[doc(hidden)]
    pub access: Access,
    /// How requests are inserted, merged, dispatched and kicked, for comparison.
    #[doc(hidden)]
    pub modes: Modes,
    /// Groups of owners. The weights and limits of this tree apply as soon as the plan does.
    pub groups: GroupTree,
    /// How much is counted about groups, and when.
    pub stats: StatsMode,
    /// Forecast the completion time of each I/O, for I/Os with a [`Deadline`](blkmq_core::Deadline).
    pub forecast: bool,
    /// How much to merge.
    pub nomerges: NoMerges,
    /// The number of retries for a request that failed with a possibly transient error.
    pub retries: u8,
    /// The shape of the device as the queue uses it. Its limits and write cache can be changed within those of
    /// [`hardware`](Self::hardware), and so can its timeout; the numbers of hardware queues, tags and budgets cannot.
    pub device: DeviceShape,
    /// The shape that the device reported when the queue was built. It never changes: a plan with another value is
    /// for another device.
    pub hardware: DeviceShape,
}

/// Adds `factory` to the program's own policies, unless its name is known.
pub(crate) fn add_own(own: &mut Vec<&'static Factory>, factory: &'static Factory) {
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

    /// With the policy that fits its groups, now and whenever groups begin to compete. A new policy is set as by
    /// [`scheduler`](Self::scheduler).
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

    /// The plan after a change of its groups. Groups that begin to compete change the policy. When groups are removed,
    /// the policy stays: a switch waits for all I/O in flight, and groups may be removed by threads that must not wait
    /// for a device.
    pub(crate) fn following_groups(self) -> Self {
        if self.choice == PolicyChoice::Named {
            return self;
        }
        let chosen = AutoChoice::of(&self.groups, self.default_scheduler);
        if chosen.reason == AutoReason::Alone { self } else { self.choose_by_groups() }
    }

    /// With this access, and the modes that it implies. The choice for kicks stays.
    #[must_use]
    #[doc(hidden)]
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

    /// The scheduler tags that requests other than sync reads may hold, as far as the queue limits them.
    #[must_use]
    pub fn effective_async_depth(&self) -> u32 {
        let nr_requests = self.effective_nr_requests();
        self.async_depth.map_or(nr_requests, |depth| depth.min(nr_requests))
    }

    /// The effective scope: one elevator for the queue or one per hardware queue. Always one if groups have latency
    /// goals, because their controller must see all I/O.
    #[must_use]
    pub fn effective_scope(&self) -> Scope {
        let preferred = if self.groups.has_goals() { Scope::Queue } else { self.scheduler.scope };
        self.scope.unwrap_or(preferred)
    }

    /// The most requests that may have left the elevators; `None`: any number. Always a number if groups have latency
    /// goals, whose controller lowers it.
    #[must_use]
    pub fn budget(&self) -> Option<u32> {
        let budget = self.device_depth.budget(&self.device);
        budget.or_else(|| self.groups.has_goals().then(|| self.device_tags()))
    }

    /// The driver tags of all hardware queues.
    fn device_tags(&self) -> u32 {
        let sets = if self.device.shared_tags { 1 } else { u32::from(self.device.hw_queues) };
        self.device.hw_queue_depth * sets
    }

    /// The effective modes: how elevators are reached.
    ///
    /// # Errors
    /// If a choice is impossible with the access.
    #[doc(hidden)]
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

    /// The cache for which flushes are sequenced. If the device has a cache, flushes are still sequenced after a change
    /// to [`WriteCache::Through`], because earlier I/Os need theirs.
    pub(crate) fn flushed_cache(&self) -> WriteCache {
        match self.device.cache {
            WriteCache::Through => self.hardware.cache,
            back @ WriteCache::Back { .. } => back,
        }
    }

    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        self.device.limits.validate()?;
        self.within_hardware()?;
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

    /// Returns whether the policy is other than `none`.
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

/// The most requests that a device may hold, over all its hardware queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DeviceDepth {
    /// As many as it accepts.
    #[default]
    Device,
    /// At most this many: 1 to [`MAX_DEVICE_DEPTH`]. A bound above the capacity of the device has no effect but the
    /// cost of a shared counter.
    AtMost(u32),
}

impl DeviceDepth {
    /// The most requests that may have left the elevators of a queue for a device of this shape; `None`: any number.
    #[must_use]
    pub fn budget(self, device: &DeviceShape) -> Option<u32> {
        match (self, device.budget) {
            (Self::Device, budget) => budget,
            (Self::AtMost(depth), budget) => Some(budget.map_or(depth, |budget| budget.min(depth))),
        }
    }

    /// Returns whether the number is possible.
    fn is_valid(self) -> bool {
        match self {
            Self::Device => true,
            Self::AtMost(depth) => (1..=MAX_DEVICE_DEPTH).contains(&depth),
        }
    }

    /// The setting for this number; 0 is the device's own depth.
    #[must_use]
    pub fn of_number(number: u32) -> Self {
        if number == 0 { Self::Device } else { Self::AtMost(number) }
    }

    /// The number for the setting.
    #[must_use]
    pub fn number(self) -> u32 {
        match self {
            Self::Device => 0,
            Self::AtMost(depth) => depth,
        }
    }
}

/// A text is not a device depth.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "device_depth: '{0}' is not valid; accepted: 0, for as many as the device takes, or 1 to \
     {MAX_DEVICE_DEPTH}"
)]
pub struct DeviceDepthError(String);

impl fmt::Display for DeviceDepth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number().fmt(f)
    }
}

impl FromStr for DeviceDepth {
    type Err = DeviceDepthError;

    fn from_str(text: &str) -> Result<Self, DeviceDepthError> {
        let depth = text.parse().ok().map(Self::of_number).filter(|depth| depth.is_valid());
        depth.ok_or_else(|| DeviceDepthError(text.into()))
    }
}

/// The word for the choice by groups, wherever a scheduler is named.
pub const AUTO: &str = "auto";

/// How the policy of a queue was chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PolicyChoice {
    /// By its name.
    #[default]
    Named,
    /// By [`AutoChoice`], again with each change of the groups.
    Auto,
}

/// The policy for a tree of groups, and the reason.
#[derive(Clone, Copy, Debug)]
pub struct AutoChoice {
    /// The policy.
    pub scheduler: &'static Factory,
    /// The reason.
    pub reason: AutoReason,
}

/// Why a policy was chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AutoReason {
    /// The number of competing groups, two or more: all groups without children.
    Groups(usize),
    /// A group has a floor or a ceiling in device time, which only mclock keeps.
    Guarantee,
    /// No groups compete, and this is the device's default scheduler.
    Alone,
    /// Groups competed or had floors when the policy was chosen. It stays after they are removed.
    Before,
}

impl AutoChoice {
    /// Chooses mclock if two groups or more compete or a group has a floor or a ceiling in device time. Otherwise
    /// chooses `default`, the default scheduler of the device. O(n log n) for n groups.
    #[must_use]
    pub fn of(groups: &GroupTree, default: &'static Factory) -> Self {
        let parents = BTreeSet::from_iter(groups.iter().map(|group| group.parent));
        let competing = groups.iter().filter(|group| !parents.contains(&group.id)).count();
        let mut guarantees = groups.iter().map(|group| group.promise.guarantee);
        let reason = if competing > 1 {
            AutoReason::Groups(competing)
        } else if guarantees.any(|it| !it.reserve.is_none() || !it.limit.is_none()) {
            AutoReason::Guarantee
        } else {
            return Self { scheduler: default, reason: AutoReason::Alone };
        };
        Self { scheduler: &mclock::FACTORY, reason }
    }
}

impl fmt::Display for AutoChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, since ", self.scheduler.name)?;
        match self.reason {
            AutoReason::Groups(groups) => write!(f, "{groups} groups compete"),
            AutoReason::Guarantee => {
                f.write_str("a group has a floor (reserve_*) or a ceiling (limit_*) in device time")
            }
            AutoReason::Alone => {
                f.write_str("no groups compete and it is Linux's choice for such a device")
            }
            AutoReason::Before => {
                f.write_str("groups competed or had floors; queue/scheduler=auto chooses again")
            }
        }
    }
}

/// Why groups or owners will not get the shares that one might expect ([`Config::notes`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ConfigNote {
    /// Groups have weights, but the policy does not share by group.
    WeightsUnused {
        /// The policy.
        scheduler: &'static str,
    },
    /// The policy shares by group, and more groups may be busy than there are scheduler tags.
    MoreGroupsThanTags {
        /// The number of groups besides the root.
        groups: usize,
        /// `nr_requests` of all hardware queues of an elevator.
        tags: u32,
    },
    /// The policy shares, there are no groups, and more I/Os may be outstanding than there are scheduler tags.
    OwnersWaitInLine {
        /// The credit of all submitters.
        credit: u64,
        /// `nr_requests` of all hardware queues of an elevator.
        tags: u32,
    },
    /// The policy shares by group, but each hardware queue has its own elevator.
    SharesByHwQueue {
        /// The number of hardware queues.
        hw_queues: u16,
    },
    /// Groups have floors, but the number of requests at the device is not bounded.
    FloorsUnbounded {
        /// The number of requests that the device may hold.
        tags: u32,
    },
}

impl fmt::Display for ConfigNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WeightsUnused { scheduler } => write!(
                f,
                "{scheduler} does not share by group, so weights have no effect; limits do. bfq shares"
            ),
            Self::MoreGroupsThanTags { groups, tags } => write!(
                f,
                "{groups} groups and {tags} scheduler tags: where more groups are busy than there are tags, shares \
                 hold, but a group's turn is short of requests and the device is not kept busy; a larger nr_requests \
                 helps"
            ),
            Self::OwnersWaitInLine { credit, tags } => write!(
                f,
                "{credit} I/Os may be outstanding and the scheduler has {tags} tags: what waits for one waits in its \
                 submitter's order of arrival, whatever its owner; a group for each tenant, a submitter for each, or \
                 nr_requests={credit} makes owners share"
            ),
            Self::SharesByHwQueue { hw_queues } => write!(
                f,
                "each of {hw_queues} hardware queues has an elevator of its own, so weights hold within each of them \
                 and not for the device"
            ),
            Self::FloorsUnbounded { tags } => write!(
                f,
                "groups have floors, and the device may hold {tags} requests, among which those of a floor wait where no \
                 scheduler can help; device_depth, or inflight_usec of mclock, bounds it"
            ),
        }
    }
}

impl Plan {
    /// The properties of the policy.
    pub(crate) fn facts(&self) -> Facts {
        let shape = Shape {
            slots: 1,
            nr_requests: 1,
            hw_depth: 1,
            hw_queues: 1,
            rotational: self.device.limits.rotational,
        };
        (self.scheduler.build)(&shape, &self.options).facts()
    }

    /// Returns whether the scheduler divides the device by the weights of groups. Builds an instance to find out.
    #[must_use]
    pub fn shares_by_group(&self) -> bool {
        self.facts().shares_by_group
    }

    /// Checks that the floors of groups are within the capacity that is reported to the policy.
    pub(crate) fn check_floors(&self) -> Result<(), ConfigError> {
        let capacity = || self.facts().capacity;
        let has_floors = self.groups.iter().any(|group| !group.promise.guarantee.reserve.is_none());
        let capacity = has_floors.then(capacity).flatten();
        self.groups.check_floors(self.scheduler.name, capacity).map_err(ConfigError::Floors)
    }

    /// Returns whether there are floors, and the device may hold several requests, up to its number of tags.
    fn has_unbounded_floors(&self) -> bool {
        let has_floors = self.groups.iter().any(|group| !group.promise.guarantee.reserve.is_none());
        let tags = self.device_tags();
        let is_bounded = self.device_depth.budget(&self.device).is_some_and(|most| most < tags);
        has_floors && tags > 1 && !is_bounded && !self.facts().bounds_device
    }

    fn notes(&self, credit: u64) -> Vec<ConfigNote> {
        let groups = self.groups.iter().count();
        if !self.shares_by_group() {
            let scheduler = self.scheduler.name;
            let weighted = self.groups.iter().any(|group| group.weight != DEFAULT_WEIGHT);
            return weighted
                .then_some(ConfigNote::WeightsUnused { scheduler })
                .into_iter()
                .collect();
        }
        let unbounded = self.has_unbounded_floors().then(|| self.device_tags());
        let hw_queues = self.device.hw_queues;
        let tags = self.effective_nr_requests() * u32::from(hw_queues / self.shards());
        let apart = self.effective_scope() == Scope::HwQueue && hw_queues > 1;
        let few = groups > tags as usize;
        let in_line = groups == 0 && credit > u64::from(tags);
        [
            apart.then_some(ConfigNote::SharesByHwQueue { hw_queues }),
            few.then_some(ConfigNote::MoreGroupsThanTags { groups, tags }),
            in_line.then_some(ConfigNote::OwnersWaitInLine { credit, tags }),
            unbounded.map(|tags| ConfigNote::FloorsUnbounded { tags }),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

impl<P> Config<P> {
    /// Reports the shares by weight that a valid configuration will not keep, and the remedies. Builds an instance of
    /// the policy to find out.
    #[must_use]
    pub fn notes(&self) -> Vec<ConfigNote> {
        let each = u64::from(self.depth).next_power_of_two();
        self.plan().notes(each.saturating_mul(self.submitters.into()))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::{DeviceDepth, DeviceShape, GroupSpec, Promise, WriteCache};
    use blkmq_core::{Limits, Nanos};
    use blkmq_sched::{Options, none, registry};

    #[test]
    fn what_is_written_is_read_back() {
        for text in ["0", "1", "32", "10240"] {
            assert_eq!(text.parse::<DeviceDepth>().expect("right").to_string(), text);
        }
        for bad in ["", "-1", "10241", "deep"] {
            let error = bad.parse::<DeviceDepth>().expect_err(bad).to_string();
            assert!(error.contains(&format!("'{bad}'")) && error.contains("1 to 10240"), "{error}");
        }
    }

    #[test]
    fn the_lesser_of_the_two_bounds_counts() {
        let device = |budget| DeviceShape {
            hw_queues: 1,
            hw_queue_depth: 32,
            shared_tags: false,
            budget,
            limits: Limits::default(),
            cache: WriteCache::Through,
            timeout: Nanos::from_secs(1),
        };
        assert_eq!(DeviceDepth::Device.budget(&device(None)), None);
        assert_eq!(DeviceDepth::Device.budget(&device(Some(3))), Some(3));
        assert_eq!(DeviceDepth::AtMost(8).budget(&device(None)), Some(8));
        assert_eq!(DeviceDepth::AtMost(8).budget(&device(Some(3))), Some(3));
        assert_eq!(DeviceDepth::AtMost(2).budget(&device(Some(3))), Some(2));
    }

    fn chosen(groups: &[(&str, &str, &str)]) -> String {
        let spec = |&(name, parent, promise): &(&str, &str, &str)| GroupSpec {
            name: name.into(),
            parent: parent.into(),
            promise: Promise::default().set(promise).expect("right"),
            ..GroupSpec::default()
        };
        let tree = GroupTree::of(groups.iter().map(spec).collect()).expect("a tree");
        AutoChoice::of(&tree, &none::FACTORY).to_string()
    }

    #[test]
    fn groups_that_compete_have_mclock() {
        let alone = "none, since no groups compete and it is Linux's choice for such a device";
        assert_eq!(chosen(&[]), alone);
        assert_eq!(chosen(&[("a", "/", "")]), alone);
        assert_eq!(chosen(&[("a", "/", "p99_read=2ms")]), alone, "every scheduler keeps goals");
        assert_eq!(chosen(&[("a", "/", ""), ("b", "a", "")]), alone, "one has no group below it");
        let two = "mclock, since 2 groups compete";
        assert_eq!(chosen(&[("a", "/", ""), ("b", "/", "")]), two);
        assert_eq!(chosen(&[("a", "/", ""), ("b", "a", ""), ("c", "a", "")]), two);
    }

    #[test]
    fn a_floor_or_a_ceiling_in_device_time_needs_mclock() {
        for word in ["reserve_iops=100", "limit_percent=50", "reserve_iops=100 overcommit=1"] {
            let text = chosen(&[("a", "/", word)]);
            assert!(text.starts_with("mclock, since a group has a floor"), "{text}");
        }
    }

    fn config(scheduler: &str, hw_queues: u16) -> Config<()> {
        let device = DeviceShape {
            hw_queues,
            hw_queue_depth: 4,
            shared_tags: false,
            budget: None,
            limits: Limits::default(),
            cache: WriteCache::Through,
            timeout: Nanos::from_secs(1),
        };
        let scheduler = registry::find(scheduler).expect("it is registered");
        Config { submitters: 1, depth: 8, ..Config::new(device, Vec::new()) }.scheduler(scheduler)
    }

    fn with_groups(mut config: Config<()>, groups: usize, weight: u32) -> Config<()> {
        for group in 0..groups {
            let name = format!("g{group}");
            config.groups.add(&name, "/").expect("a new name");
            config.groups.set_weight(&name, weight).expect("it is there");
        }
        config
    }

    #[test]
    fn a_configuration_that_can_share_has_nothing_to_say() {
        assert_eq!(config("bfq", 1).notes(), []);
        assert_eq!(with_groups(config("bfq", 1), 8, 300).notes(), []);
        assert_eq!(with_groups(config("mq-deadline", 1), 8, 100).notes(), []);
        let much = Config { depth: 1 << 10, ..with_groups(config("bfq", 1), 2, 300) };
        assert_eq!(much.notes(), [], "what waits is chosen by group");
    }

    #[test]
    fn floors_need_a_bound_of_what_the_device_holds() {
        assert_eq!(with_groups(config("mclock", 1), 1, 100).notes(), [], "no group has a floor");
        let floors = || {
            let mut config = with_groups(config("mclock", 1), 1, 100);
            let promise = Promise::default().set("reserve_percent=10").expect("right");
            config.groups.set_promise("g0", promise).expect("there");
            config
        };
        assert_eq!(floors().notes(), [ConfigNote::FloorsUnbounded { tags: 4 }]);
        assert!(floors().notes()[0].to_string().contains("device_depth"));
        let bounded = |depth| Config { device_depth: DeviceDepth::AtMost(depth), ..floors() };
        assert_eq!(bounded(2).notes(), []);
        assert_eq!(bounded(4).notes().len(), 1, "that is no bound");
        for text in ["inflight_usec=500", "pace_percent=95"] {
            let options = Options::parse(floors().scheduler.attributes, text).expect("right");
            assert_eq!(Config { options, ..floors() }.notes(), [], "{text}");
        }
    }

    #[test]
    fn what_cannot_be_shared_is_said() {
        for scheduler in ["none", "mq-deadline", "kyber"] {
            let notes = with_groups(config(scheduler, 1), 2, 300).notes();
            assert_eq!(notes, [ConfigNote::WeightsUnused { scheduler }]);
        }
        let notes = with_groups(config("bfq", 2), 17, 100).notes();
        assert_eq!(notes, [ConfigNote::MoreGroupsThanTags { groups: 17, tags: 16 }]);
        let apart = Config { scope: Some(Scope::HwQueue), ..config("bfq", 2) };
        assert_eq!(apart.notes(), [ConfigNote::SharesByHwQueue { hw_queues: 2 }]);
        let many = Config { depth: 9, ..config("bfq", 1) };
        let notes = many.notes();
        assert_eq!(notes, [ConfigNote::OwnersWaitInLine { credit: 16, tags: 8 }]);
        assert!(notes[0].to_string().contains("nr_requests=16"), "{}", notes[0]);
        let most = Config { depth: u32::MAX, submitters: u16::MAX, ..config("bfq", 1) };
        assert_eq!(most.notes().len(), 1);
    }
}
