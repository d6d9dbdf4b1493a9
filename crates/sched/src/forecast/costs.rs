//! Costs: the device time of a request, by class and by the number of requests that the device works at.
//!
//! A device that works on several requests at a time needs less time for each, as counted here: the time is divided
//! among them. So a cost holds for a number of requests.

use super::CLASSES;

/// Powers of two of the number of requests; the last one is for more.
const LOADS: usize = 9;
/// The weight of a new cost is at least one in so many.
const MEMORY: u8 = 16;

/// The mean of the latest costs.
#[derive(Clone, Copy, Default)]
struct Mean {
    /// Nanoseconds.
    cost: u32,
    /// Costs seen, up to [`MEMORY`].
    seen: u8,
}

#[derive(Default)]
pub(super) struct Costs([[Mean; LOADS]; CLASSES]);

fn load(requests: u32) -> usize {
    (requests.max(1).ilog2() as usize).min(LOADS - 1)
}

impl Costs {
    /// A request got `cost` nanoseconds of the device in `stay` nanoseconds there.
    pub(super) fn learn(&mut self, class: usize, cost: u64, stay: u64) {
        let requests = stay / cost.max(1);
        let mean = &mut self.0[class][load(u32::try_from(requests).unwrap_or(u32::MAX))];
        mean.seen = (mean.seen + 1).min(MEMORY);
        let (old, new) = (i64::from(mean.cost), cost.min(u32::MAX.into()) as i64);
        mean.cost = (old + (new - old) / i64::from(mean.seen)) as u32;
    }

    /// The cost of one more request of a class where the device then works at `requests`; of the nearest load and size that
    /// is known, and zero if nothing is.
    pub(super) fn of(&self, class: usize, requests: u32) -> u64 {
        let load = load(requests);
        let mean = self.0[class][load];
        if mean.seen > 0 { mean.cost.into() } else { self.nearest(class, load) }
    }

    /// The costs of as many requests of each class as `counts` says, where the device works at `requests`.
    pub(super) fn of_all(&self, counts: &[u32; CLASSES], requests: u32) -> u64 {
        let some = counts.iter().enumerate().filter(|(_, count)| **count > 0);
        some.map(|(class, count)| u64::from(*count) * self.of(class, requests)).sum()
    }

    #[cold]
    fn nearest(&self, class: usize, load: usize) -> u64 {
        let of_size = |class: usize| {
            let loads = self.0[class].iter().enumerate().filter(|(_, mean)| mean.seen > 0);
            // Of two that are as near, the one for fewer requests: rather too much than too little.
            loads.min_by_key(|(at, _)| (at.abs_diff(load), *at)).map(|(_, mean)| mean.cost)
        };
        let half = CLASSES / 2;
        let same_direction = (class / half * half)..(class / half * half + half);
        let known =
            same_direction.filter_map(|other| Some((other.abs_diff(class), of_size(other)?)));
        known.min_by_key(|(far, _)| *far).map_or(0, |(_, cost)| cost.into())
    }
}
