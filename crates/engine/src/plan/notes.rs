//! Notes on a valid configuration: shares by weight that the queue will not keep, and why.

use crate::groups::DEFAULT_WEIGHT;
use crate::{Config, ConfigError, Plan};
use blkmq_sched::{Facts, Scope, Shape};
use std::fmt;

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
    use crate::{DeviceDepth, DeviceShape, Promise, WriteCache};
    use blkmq_core::{Limits, Nanos};
    use blkmq_sched::{Options, registry};

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
