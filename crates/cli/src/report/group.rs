//! The I/O of a run's groups, and the scheduler's counts for them: plain data, and figures derived from it.
//!
//! Shares are of the bytes that jobs transferred while measuring, so they are meaningful under every scheduler, and
//! most so if all groups had I/O throughout. The scheduler's counts cover the whole life of the queue, including the
//! ramp, and count requests, in which I/Os may be merged.

use super::job::ratio;
use blkmq_sched::Reading;

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
