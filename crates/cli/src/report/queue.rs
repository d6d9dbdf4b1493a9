//! The counts of a run's queue and the I/O of its groups: plain data, and figures derived from it.
//!
//! Shares of groups are of the bytes that jobs transferred while measuring, so they are meaningful under every scheduler,
//! and most so if all groups had I/O throughout. The scheduler's counts cover the whole life of the queue, including the
//! ramp, and count requests, in which I/Os may be merged.

use super::job::ratio;
use blkmq_sched::Reading;

/// The state that the instances of a scheduler share, at the end of a run; empty for most.
#[derive(Clone, Debug, Default)]
pub struct Shared {
    /// Tokens of each pool, in the order of the scheduler's page: the number of requests that may be at the device.
    pub tokens: Vec<u32>,
    /// The figures exposed by its governor, by name.
    pub governor: Vec<(&'static str, u64)>,
}

/// The stages of the time of one operation's requests.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OpTimes {
    /// `read`, `write`, `discard` or `flush`.
    pub op: &'static str,
    /// Completed requests.
    pub requests: u64,
    /// I/Os that were merged into another.
    pub merged: u64,
    /// Sums in nanoseconds, in the order of [`STAGES`].
    pub stages: [u64; 4],
}

/// The stages of a request's time: before it has a slot, in the scheduler, there while a tag or room is missing, and at
/// the device.
pub const STAGES: [&str; 4] = ["slot", "policy", "tag", "device"];

/// The counters of a run's queue over its whole life, including the ramp, after it was drained: only then do they
/// balance.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// Bios passed to the queue: I/Os, or parts of I/Os that the device does not accept whole.
    pub submitted: u64,
    /// Bios completed, with an error or without.
    pub completed: u64,
    /// Splits that produced those parts: the number of bios in excess of I/Os.
    pub splits: u64,
    /// Bios and requests that became part of another request.
    pub merges: Merges,
    /// Bios cancelled by their submitters.
    pub cancelled: u64,
    /// Requests at the device in excess of the submitters' because of flushes; negative if a device without a cache has
    /// nothing to flush.
    pub flush_surplus: i64,
    /// Requests issued by the elevator to the device; a requeued request counts again.
    pub dispatches: u64,
    /// Requests that the device completed.
    pub requests_completed: u64,
    /// The mean number of requests in an issued batch.
    pub batch_mean: f64,
    /// Wake-ups of the side that pumps.
    pub kicks: Kicks,
    /// The locks of elevators; zero with access combining.
    pub locks: Locks,
    /// Requests requeued: the device wanted them later, or they were retried.
    pub requeues: u64,
    /// The number of times that the device was asked about a request that it had held for too long.
    pub timeouts: u64,
    /// Requests tried again after an error.
    pub retries: u64,
    /// The maximum number of passes by a thread over an elevator in one run.
    pub longest_run_passes: u64,
    /// The maximum time that one submission held its thread in the queue, in nanoseconds: an upper bound of the longest
    /// run. Under `gtod_reduce` one submission in 64 is timed.
    pub longest_run_ns: u64,
}

/// How bios (or, with `request`, requests) were merged. Each merge is one request less for the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Merges {
    /// Into a request in the submitter's own plug.
    pub plug: u64,
    /// At the end of a queued request.
    pub back: u64,
    /// At the front of a queued request.
    pub front: u64,
    /// Two queued requests fused.
    pub request: u64,
    /// Into a discard of several ranges.
    pub discard: u64,
}

/// Wake-ups, sent and saved.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Kicks {
    /// Delivered.
    pub sent: u64,
    /// Avoided because a wake-up was already pending.
    pub coalesced: u64,
}

/// The locks of elevators, and the time that threads waited for them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Locks {
    /// Times that a lock was taken.
    pub taken: u64,
    /// Of those, acquisitions while another thread held it.
    pub contended: u64,
    /// Thread time spent waiting for the lock, in nanoseconds, from a sample of such waits.
    pub waited_ns: u64,
    /// Merge attempts skipped because the lock was taken.
    pub merges_skipped: u64,
    /// Requests parked in insertion lists because the lock was taken.
    pub parked: u64,
    /// Dispatches left to a thread that was already dispatching.
    pub left: u64,
}

/// Counters that contradict each other: an I/O was lost, doubled or miscounted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Imbalance {
    /// Bios submitted and completed differ.
    Bios {
        /// Submitted bios.
        submitted: u64,
        /// Completed bios.
        completed: u64,
    },
    /// Bios less merges, with flushes and cancellations accounted for, are not the dispatches less requeues.
    Dispatches {
        /// Bios less merges.
        expected: i128,
        /// Dispatches less requeues.
        dispatched: i128,
    },
    /// Requests dispatched and completed differ.
    Requests {
        /// Dispatches less requeues.
        dispatched: i128,
        /// Requests that the device completed.
        completed: u64,
    },
}

impl Merges {
    /// Names and counts, in the order of a request's life.
    #[must_use]
    pub fn each(&self) -> [(&'static str, u64); 5] {
        [
            ("plug", self.plug),
            ("back", self.back),
            ("front", self.front),
            ("request", self.request),
            ("discard", self.discard),
        ]
    }

    /// The number of requests that merging saved.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.each().iter().map(|(_, n)| n).sum()
    }
}

impl Counters {
    /// The first contradiction, or None if every bio is accounted for.
    #[must_use]
    pub fn imbalance(&self) -> Option<Imbalance> {
        let bios = i128::from(self.submitted) - i128::from(self.cancelled);
        let expected = bios - i128::from(self.merges.total()) + i128::from(self.flush_surplus);
        let dispatched = i128::from(self.dispatches) - i128::from(self.requeues);
        if self.submitted != self.completed {
            Some(Imbalance::Bios { submitted: self.submitted, completed: self.completed })
        } else if expected != dispatched {
            Some(Imbalance::Dispatches { expected, dispatched })
        } else if dispatched != i128::from(self.requests_completed) {
            Some(Imbalance::Requests { dispatched, completed: self.requests_completed })
        } else {
            None
        }
    }

    /// The share of bios that needed no separate request, 0 to 1.
    #[must_use]
    pub fn merged_share(&self) -> f64 {
        ratio(self.merges.total() as f64, self.submitted as f64)
    }
}

/// The groups of a run, if there are any or the root has counts.
#[derive(Clone, Debug, Default)]
pub struct Groups {
    /// The level of counting, in the spelling of the option `group_stats`.
    pub level: String,
    /// The root first; each group follows its parent.
    pub all: Vec<GroupResult>,
}

/// A group.
#[derive(Clone, Debug, Default)]
pub struct GroupResult {
    /// The name; `/` is the root.
    pub name: String,
    /// The index of the parent in [`Groups::all`]; `None` for the root.
    pub parent: Option<usize>,
    /// The weight among its siblings, 1 to 1000; `None` for the root.
    pub weight: Option<u32>,
    /// I/Os completed while measuring by jobs in this group, excluding groups below.
    pub ios: u64,
    /// Bytes of those I/Os.
    pub bytes: u64,
    /// The counts, by their names in cgroup v1 without the prefix, `io_wait_time_recursive`; times are in
    /// nanoseconds. Empty if the scheduler counts nothing.
    pub stats: Vec<(String, Reading)>,
    /// How long I/Os in this group, excluding groups below, waited, including the ramp; empty if that was not counted,
    /// or none waited.
    pub waited: Vec<Waited>,
}

/// The time for which I/Os of a group waited behind I/Os of another group, or of the same one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waited {
    /// The index in [`Groups::all`] of the group with requests at the device; `None` if the device was idle.
    pub behind: Option<usize>,
    /// Nanoseconds.
    pub ns: u64,
}

impl Groups {
    /// The index of the group called `name`.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<usize> {
        self.all.iter().position(|group| group.name == name)
    }

    /// Groups above it: 0 for the root.
    #[must_use]
    pub fn depth(&self, at: usize) -> usize {
        self.all[at].parent.map_or(0, |parent| self.depth(parent) + 1)
    }

    /// I/Os of a group and all below it.
    #[must_use]
    pub fn ios(&self, at: usize) -> u64 {
        self.sum(at, |group| group.ios)
    }

    /// Bytes of a group and all below it.
    #[must_use]
    pub fn bytes(&self, at: usize) -> u64 {
        self.sum(at, |group| group.bytes)
    }

    fn sum(&self, top: usize, of: fn(&GroupResult) -> u64) -> u64 {
        let below = (top..self.all.len()).filter(|at| self.is_below(*at, top));
        below.map(|at| of(&self.all[at])).sum()
    }

    fn is_below(&self, at: usize, top: usize) -> bool {
        at == top || self.all[at].parent.is_some_and(|parent| self.is_below(parent, top))
    }

    /// The share of all bytes of a group and its descendants, 0 to 1.
    #[must_use]
    pub fn share(&self, at: usize) -> f64 {
        ratio(self.bytes(at) as f64, self.bytes(0) as f64)
    }

    /// The share due to a group by weight, among the groups that did any I/O. `None` if it did none, or if jobs ran
    /// beside groups on a level above, because jobs compete with groups by their own weights.
    #[must_use]
    pub fn due(&self, at: usize) -> Option<f64> {
        let Some(parent) = self.all[at].parent else { return Some(1.0) };
        if self.bytes(at) == 0 || self.all[parent].bytes > 0 {
            return None;
        }
        let siblings = (0..self.all.len())
            .filter(|other| self.all[*other].parent == Some(parent) && self.bytes(*other) > 0);
        let all: u32 = siblings.filter_map(|sibling| self.all[sibling].weight).sum();
        let own = self.all[at].weight?;
        Some(self.due(parent)? * f64::from(own) / f64::from(all))
    }

    /// The mean time per request, in nanoseconds, whose sum is `name` (`io_wait_time` or `io_service_time`), for a
    /// group and its descendants. `None` if it was not counted.
    #[must_use]
    pub fn mean(&self, at: usize, name: &str) -> Option<f64> {
        let total = |name: &str| {
            let name = format!("{name}_recursive");
            let found = self.all[at].stats.iter().find(|(known, _)| *known == name);
            match found?.1 {
                Reading::Flow(flow) => Some(flow.total()),
                Reading::Number(number) => Some(number),
            }
        };
        let (sum, requests) = (total(name)?, total("io_serviced")?);
        (requests > 0).then(|| sum as f64 / requests as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    fn balanced() -> Counters {
        Counters {
            submitted: 100,
            completed: 100,
            merges: Merges { plug: 1, back: 2, front: 3, request: 4, discard: 5 },
            dispatches: 88,
            requeues: 3,
            requests_completed: 85,
            ..Counters::default()
        }
    }

    #[test]
    fn every_bio_is_accounted_for() {
        assert_eq!(balanced().imbalance(), None);
        assert!((balanced().merged_share() - 0.15).abs() < 1e-12);
        let lost = Counters { completed: 99, ..balanced() };
        assert_eq!(lost.imbalance(), Some(Imbalance::Bios { submitted: 100, completed: 99 }));
        let extra = Counters { dispatches: 89, ..balanced() };
        assert_eq!(extra.imbalance(), Some(Imbalance::Dispatches { expected: 85, dispatched: 86 }));
        let needless = Counters { submitted: 104, completed: 104, flush_surplus: -4, ..balanced() };
        assert_eq!(needless.imbalance(), None);
        let given_up = Counters { submitted: 101, completed: 101, cancelled: 1, ..balanced() };
        assert_eq!(given_up.imbalance(), None);
        let stuck = Counters { requests_completed: 84, ..balanced() };
        assert_eq!(stuck.imbalance(), Some(Imbalance::Requests { dispatched: 85, completed: 84 }));
    }

    fn at(groups: &Groups, name: &str) -> usize {
        groups.find(name).expect("it is in the sample")
    }

    #[test]
    fn a_group_has_what_is_below_it() {
        let groups = sample::groups();
        let figures = |name| {
            let at = at(&groups, name);
            (groups.depth(at), groups.ios(at), groups.bytes(at), groups.share(at))
        };
        assert_eq!(figures("/"), (0, 1_000, 1_000 << 12, 1.0));
        assert_eq!(figures("web"), (1, 800, 800 << 12, 0.8));
        assert_eq!(figures("shop"), (2, 600, 600 << 12, 0.6));
        assert_eq!(figures("idle"), (1, 0, 0, 0.0));
    }

    #[test]
    fn what_is_due_goes_by_weight_among_those_that_did_something() {
        let mut groups = sample::groups();
        let due = |groups: &Groups, name| groups.due(at(groups, name));
        assert_eq!(due(&groups, "web"), Some(0.75));
        assert_eq!(due(&groups, "backup"), Some(0.25));
        assert_eq!(due(&groups, "idle"), None);
        assert_eq!(due(&groups, "shop"), Some(0.5), "two thirds of three quarters");
        let web = at(&groups, "web");
        groups.all[web].bytes = 1;
        assert_eq!(due(&groups, "shop"), None, "a job of web competes with it");
        assert_eq!(due(&groups, "web"), Some(0.75));
    }

    #[test]
    fn means_are_per_request_and_only_of_what_was_counted() {
        let mut groups = sample::groups();
        let shop = at(&groups, "shop");
        assert_eq!(groups.mean(shop, "io_wait_time"), Some(2_000_000.0));
        assert_eq!(groups.mean(shop, "io_service_time"), Some(100_000.0));
        assert_eq!(groups.mean(at(&groups, "idle"), "io_wait_time"), None);
        groups.all[shop].stats.clear();
        assert_eq!(groups.mean(shop, "io_wait_time"), None);
        assert!(Groups::default().all.is_empty());
    }
}
