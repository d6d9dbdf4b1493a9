//! Forecasts of the latency of an I/O that arrives, learnt from earlier requests, under any policy.
//!
//! A [`Forecast`] sees every request of an elevator, as a policy does. It has no clock, orders nothing, and knows
//! neither the policy nor the device. It learns two kinds of numbers (`doc/forecast.md` has the rules):
//!
//! - *costs*: the device time of a request, by direction, size, and the number of requests in the device, among which
//!   the device divides its time;
//! - *shares*: the part of the work waiting in the scheduler that is served before a new I/O, by group and direction.
//!
//! An [`Outlook`] is a forecast as of one moment, for threads without access to the elevator.

use alloc::boxed::Box;
use alloc::vec;
use blkmq_core::{GroupIndex, Instant, IoMeta, Nanos, Op, RequestId};

/// The place of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Stage {
    /// The slot is free, or its request came before the forecast began.
    #[default]
    Unknown,
    Held,
    AtDevice,
}

/// A request that has a slot.
#[derive(Clone, Copy, Default)]
struct Slot {
    id: Option<RequestId>,
    stage: Stage,
    class: usize,
    inserted: Instant,
    /// The work that was held ahead of it, in nanoseconds of device time.
    ahead: u64,
    /// The expected latency without that work, in nanoseconds.
    base: u64,
    /// The time from its arrival to its end, as expected when it got its slot.
    expected: Nanos,
    issued: Instant,
    /// The virtual time of the device at its issue.
    mark: u64,
}

/// The device as a server of one unit of work a nanosecond, which it divides evenly among its requests.
///
/// Its *virtual time* is the work that a request in the device since the beginning would have got. The work that a
/// request got from its issue to its end is its cost. The costs of all requests add up to the busy time of the device.
#[derive(Default)]
struct Device {
    by_class: [u32; CLASSES],
    requests: u32,
    /// The virtual time in units of 1/256 ns, modulo 2^64.
    time: u64,
    /// The sum of the virtual times at which its requests were issued, modulo 2^64.
    marks: u64,
    last: Instant,
    /// The expected time at which it has done all its requests.
    clear: Instant,
}

const UNIT: u64 = 256;

impl Device {
    fn advance(&mut self, now: Instant) {
        if self.requests > 0 {
            let passed = now.since(self.last).0.wrapping_mul(UNIT) / u64::from(self.requests);
            self.time = self.time.wrapping_add(passed);
        }
        self.last = self.last.max(now);
    }

    /// Adds an issued request of `class` with the expected cost `cost`. Returns the virtual time.
    fn issued(&mut self, now: Instant, class: usize, cost: u64) -> u64 {
        self.advance(now);
        self.clear = if self.requests == 0 { now } else { self.clear } + Nanos(cost);
        self.requests += 1;
        self.by_class[class] += 1;
        self.marks = self.marks.wrapping_add(self.time);
        self.time
    }

    /// Removes a request that was issued at the virtual time `mark`. Returns the work that it got, in nanoseconds.
    fn left(&mut self, now: Instant, class: usize, mark: u64, costs: &Costs) -> u64 {
        self.advance(now);
        self.requests -= 1;
        self.by_class[class] -= 1;
        self.marks = self.marks.wrapping_sub(mark);
        let got = self.time.wrapping_mul(self.requests.into()).wrapping_sub(self.marks) / UNIT;
        let due = costs.of_all(&self.by_class, self.requests);
        self.clear = now + Nanos(due.saturating_sub(got));
        self.time.wrapping_sub(mark) / UNIT
    }
}

/// The requests of an elevator, and the costs and shares learnt from them.
pub struct Forecast {
    slots: Box<[Slot]>,
    /// Held requests by class.
    held: [u32; CLASSES],
    device: Device,
    costs: Costs,
    /// The learnt shares, by group and direction.
    shares: Box<[Learnt]>,
}

impl Forecast {
    /// For an elevator with this many slots, and groups with numbers below `groups`.
    #[must_use]
    pub fn new(slots: u32, groups: u16) -> Self {
        Self {
            slots: vec![Slot::default(); slots as usize].into_boxed_slice(),
            held: [0; CLASSES],
            device: Device::default(),
            costs: Costs::default(),
            shares: vec![Learnt::default(); 2 * usize::from(groups)].into_boxed_slice(),
        }
    }

    /// The outlook, where `outside` I/Os wait for a slot. O(1).
    #[must_use]
    pub fn outlook(&self, outside: u32) -> Outlook {
        let at_device = self.device.requests;
        let held = self.costs.of_all(&self.held, at_device);
        let device = self.costs.of_all(&self.device.by_class, at_device);
        // I/Os outside count with the mean cost of the requests inside.
        let requests = u64::from(self.held.iter().sum::<u32>() + at_device);
        let mean = (held + device).checked_div(requests).unwrap_or(0);
        Outlook {
            held: Nanos(held + mean * u64::from(outside)),
            at_device,
            clear: self.device.clear,
            device: Nanos(device),
            costs: core::array::from_fn(|class| Nanos(self.costs.of(class, at_device + 1))),
        }
    }

    /// The part of the held work that is served before an I/O of this group and direction.
    #[must_use]
    pub fn share(&self, group: GroupIndex, writes: bool) -> Share {
        let learnt = self.shares.get(2 * usize::from(group.0) + usize::from(writes));
        learnt.map_or(Share::ALL, Learnt::share)
    }

    /// Adds a request that gets a slot.
    pub fn inserted(&mut self, now: Instant, id: RequestId, io: &IoMeta) {
        self.gone(now, id);
        let outlook = self.outlook(0);
        let share = self.share(io.group, io.op.is_write());
        let seen = (now, outlook.at_device);
        let expected = outlook.expects(seen, share, io.op, io.sectors);
        let base = outlook.expects(seen, Share::NONE, io.op, io.sectors);
        let class = class(io.op, io.sectors);
        self.held[class] += 1;
        self.slots[id.index()] = Slot {
            id: Some(id),
            stage: Stage::Held,
            class,
            inserted: now,
            ahead: outlook.held.0,
            base: base.0,
            expected: Nanos(now.since(io.arrived).0.saturating_add(expected.0)),
            issued: now,
            mark: 0,
        };
    }

    /// Follows a request that goes to the device.
    pub fn issued(&mut self, now: Instant, id: RequestId, io: &IoMeta) {
        if self.stage(id) == Stage::Unknown {
            // The request came before the forecast began, so nothing is learnt from its wait.
            self.inserted(now, id, io);
            self.slots[id.index()].ahead = 0;
        }
        let Self { slots, held, device, costs, .. } = self;
        let slot = &mut slots[id.index()];
        if slot.stage == Stage::AtDevice {
            return;
        }
        held[slot.class] -= 1;
        // Merges may have made the request larger.
        slot.class = class(io.op, io.sectors);
        let cost = costs.of(slot.class, device.requests + 1);
        slot.mark = device.issued(now, slot.class, cost);
        (slot.stage, slot.issued) = (Stage::AtDevice, now);
    }

    /// Learns from an ended request. Returns its expected latency since its arrival; `None` if its issue was not seen.
    pub fn completed(&mut self, at: Instant, id: RequestId, io: &IoMeta) -> Option<Nanos> {
        if self.stage(id) != Stage::AtDevice {
            self.gone(at, id);
            return None;
        }
        let slot = core::mem::take(&mut self.slots[id.index()]);
        let got = self.device.left(at, slot.class, slot.mark, &self.costs);
        self.costs.learn(slot.class, got, at.since(slot.issued).0);
        let behind = at.since(slot.inserted).0.saturating_sub(slot.base);
        let place = 2 * usize::from(io.group.0) + usize::from(io.op.is_write());
        if let Some(share) = self.shares.get_mut(place) {
            share.learn(behind, slot.ahead);
        }
        Some(slot.expected)
    }

    /// Follows a request that returns to the scheduler. Nothing is learnt from it.
    pub fn requeued(&mut self, now: Instant, id: RequestId) {
        if self.stage(id) == Stage::AtDevice {
            let Self { slots, held, device, costs, .. } = self;
            let slot = &mut slots[id.index()];
            device.left(now, slot.class, slot.mark, costs);
            held[slot.class] += 1;
            (slot.stage, slot.ahead) = (Stage::Held, 0);
        }
    }

    /// Removes a request that was fused into another, or given up.
    pub fn gone(&mut self, now: Instant, id: RequestId) {
        let Self { slots, held, device, costs, .. } = self;
        let slot = core::mem::take(&mut slots[id.index()]);
        match slot.stage {
            Stage::Unknown => {}
            Stage::Held => held[slot.class] -= 1,
            Stage::AtDevice => {
                device.left(now, slot.class, slot.mark, costs);
            }
        }
    }

    fn stage(&self, id: RequestId) -> Stage {
        let slot = &self.slots[id.index()];
        if slot.id == Some(id) { slot.stage } else { Stage::Unknown }
    }
}

/// Sizes: up to 4, 16, 64, 256 and 1024 KiB, and more.
const SIZES: usize = 6;
/// The classes of requests: reads and others, by size.
pub const CLASSES: usize = 2 * SIZES;

/// The class of an I/O.
fn class(op: Op, sectors: u32) -> usize {
    let pages = sectors.div_ceil(8).max(1);
    let size = (pages.next_power_of_two().ilog2().div_ceil(2) as usize).min(SIZES - 1);
    size + if op.is_write() { SIZES } else { 0 }
}

/// The part of the held work that is served before an I/O, in 1/256.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share(u16);

impl Share {
    /// The whole of the held work, as in a FIFO; also the assumption before anything is learnt.
    pub const ALL: Self = Self(256);
    /// No part of it.
    pub const NONE: Self = Self(0);
    /// The greatest share. It is above `ALL`, since later I/Os may be served before the I/O too.
    const MOST: u64 = 16 * 256;

    /// The part `behind` of `ahead`; `ALL` if `ahead` is zero.
    fn of(behind: u64, ahead: u64) -> Self {
        match (behind * 256).checked_div(ahead) {
            None => Self::ALL,
            Some(share) => Self(share.min(Self::MOST) as u16),
        }
    }

    /// The share in 256ths.
    #[must_use]
    pub const fn parts(self) -> u16 {
        self.0
    }

    /// A share in 256ths.
    #[must_use]
    pub const fn of_parts(parts: u16) -> Self {
        Self(parts)
    }
}

/// The work ahead of an I/O that arrives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outlook {
    /// The device time of the requests that the scheduler holds.
    pub held: Nanos,
    /// The requests at the device.
    pub at_device: u32,
    /// The expected time at which the device has done all of them.
    pub clear: Instant,
    /// The device time of all of them.
    pub device: Nanos,
    /// The device time of one more request, by class.
    pub costs: [Nanos; CLASSES],
}

impl Outlook {
    /// Returns the expected latency of an I/O that arrives at `now`, with `share` of the held work served before it;
    /// zero while nothing is learnt.
    ///
    /// `at_device` is the number of requests at the device at `now`, which may be lower than in the outlook. A device
    /// that is late is expected to need as long again as it is late: it may be stuck.
    #[must_use]
    pub fn expects(
        &self,
        (now, at_device): (Instant, u32),
        share: Share,
        op: Op,
        sectors: u32,
    ) -> Nanos {
        let device = if at_device < self.at_device {
            // The remaining requests at their mean cost, since the ends of the others are not known here.
            u128::from(self.device.0) * u128::from(at_device) / u128::from(self.at_device)
        } else if self.at_device == 0 {
            0
        } else {
            self.clear.since(now).0.max(now.since(self.clear).0).into()
        };
        let device = u64::try_from(device).unwrap_or(u64::MAX);
        let held = u128::from(self.held.0) * u128::from(share.0) / 256;
        let held = u64::try_from(held).unwrap_or(u64::MAX);
        Nanos(held.saturating_add(device).saturating_add(self.own(op, sectors).0))
    }

    /// The device time of an I/O.
    #[must_use]
    pub fn own(&self, op: Op, sectors: u32) -> Nanos {
        self.costs[class(op, sectors)]
    }
}

/// The number of loads: powers of two of the number of requests in the device. The last one is for more.
const LOADS: usize = 9;
/// The number of costs in a mean. The weight of a new cost is at least one in so many.
const MEMORY: u8 = 16;

/// The moving mean of costs.
#[derive(Clone, Copy, Default)]
struct Mean {
    /// Nanoseconds.
    cost: u32,
    /// Costs seen, up to [`MEMORY`].
    seen: u8,
}

#[derive(Default)]
struct Costs([[Mean; LOADS]; CLASSES]);

fn load(requests: u32) -> usize {
    (requests.max(1).ilog2() as usize).min(LOADS - 1)
}

impl Costs {
    /// Learns from a request that got `cost` ns of device time in a stay of `stay` ns there.
    fn learn(&mut self, class: usize, cost: u64, stay: u64) {
        let requests = stay / cost.max(1);
        let mean = &mut self.0[class][load(u32::try_from(requests).unwrap_or(u32::MAX))];
        mean.seen = (mean.seen + 1).min(MEMORY);
        let (old, new) = (i64::from(mean.cost), cost.min(u32::MAX.into()) as i64);
        mean.cost = (old + (new - old) / i64::from(mean.seen)) as u32;
    }

    /// The cost in nanoseconds of a request of `class` where the device has `requests`, this one included: that of the
    /// nearest load and size that is known, and zero if none is.
    fn of(&self, class: usize, requests: u32) -> u64 {
        let load = load(requests);
        let mean = self.0[class][load];
        if mean.seen > 0 { mean.cost.into() } else { self.nearest(class, load) }
    }

    /// The cost of `counts` requests by class, in nanoseconds, where the device has `requests`.
    fn of_all(&self, counts: &[u32; CLASSES], requests: u32) -> u64 {
        let some = counts.iter().enumerate().filter(|(_, count)| **count > 0);
        some.map(|(class, count)| u64::from(*count) * self.of(class, requests)).sum()
    }

    #[cold]
    fn nearest(&self, class: usize, load: usize) -> u64 {
        let of_size = |class: usize| {
            let loads = self.0[class].iter().enumerate().filter(|(_, mean)| mean.seen > 0);
            // Of two that are equally near, the one for fewer requests: too high a cost is the safer error.
            loads.min_by_key(|(at, _)| (at.abs_diff(load), *at)).map(|(_, mean)| mean.cost)
        };
        let half = CLASSES / 2;
        let same_direction = (class / half * half)..(class / half * half + half);
        let known =
            same_direction.filter_map(|other| Some((other.abs_diff(class), of_size(other)?)));
        known.min_by_key(|(far, _)| *far).map_or(0, |(_, cost)| cost.into())
    }
}

/// The number of requests from which a share is learnt. It is odd, so that one of them is the median.
const SEEN: usize = 31;
/// The longest wait that counts, in nanoseconds, so that no product overflows.
const LONGEST: u64 = 1 << 48;

/// The shares of the latest requests of one group and direction, and their median.
///
/// The median says whether an I/O is likelier to be late than not. A policy that gives tenants turns makes waits of two
/// kinds, and their mean is neither.
#[derive(Clone, Copy)]
struct Learnt {
    latest: [u16; SEEN],
    len: u8,
    next: u8,
    median: Share,
}

impl Default for Learnt {
    fn default() -> Self {
        Self { latest: [0; SEEN], len: 0, next: 0, median: Share::ALL }
    }
}

impl Learnt {
    /// Learns from a request that waited for `behind` ns, with `ahead` ns of held work ahead of it.
    fn learn(&mut self, behind: u64, ahead: u64) {
        if ahead == 0 {
            return;
        }
        self.latest[usize::from(self.next)] = Share::of(behind.min(LONGEST), ahead).parts();
        self.next = (self.next + 1) % SEEN as u8;
        self.len = (self.len + 1).min(SEEN as u8);
        let mut known = self.latest;
        let known = &mut known[..usize::from(self.len)];
        let middle = known.len() / 2;
        self.median = Share::of_parts(*known.select_nth_unstable(middle).1);
    }

    fn share(&self) -> Share {
        self.median
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::VecDeque;
    use alloc::vec::Vec;

    const MICRO: u64 = 1_000;

    fn id(n: u32) -> RequestId {
        RequestId::new(n, 0)
    }

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * MICRO)
    }

    fn io(group: u16, op: Op, arrived: Instant) -> IoMeta {
        IoMeta { group: GroupIndex(group), arrived, ..IoMeta::new(op, 0, 8) }
    }

    fn expects(forecast: &Forecast, now: Instant, group: u16, op: Op) -> u64 {
        let share = forecast.share(GroupIndex(group), op.is_write());
        let outlook = forecast.outlook(0);
        outlook.expects((now, outlook.at_device), share, op, 8).0 / MICRO
    }

    /// Requests one after the other on an idle device, each of which takes `takes` microseconds.
    fn teach(forecast: &mut Forecast, from: &mut u64, op: Op, takes: u64) {
        for _ in 0..32 {
            let io = io(0, op, at(*from));
            forecast.inserted(at(*from), id(0), &io);
            forecast.issued(at(*from), id(0), &io);
            *from += takes;
            forecast.completed(at(*from), id(0), &io);
        }
    }

    #[test]
    fn nothing_is_expected_before_anything_is_known() {
        let forecast = Forecast::new(8, 1);
        assert_eq!(expects(&forecast, at(5), 0, Op::Read), 0);
    }

    #[test]
    fn an_idle_device_needs_the_time_of_the_io_alone() {
        let mut forecast = Forecast::new(8, 1);
        let mut now = 0;
        teach(&mut forecast, &mut now, Op::Read, 100);
        teach(&mut forecast, &mut now, Op::Write, 900);
        assert_eq!(expects(&forecast, at(now), 0, Op::Read), 100);
        assert_eq!(expects(&forecast, at(now), 0, Op::Write), 900);
        let large = forecast.outlook(0).expects((at(now), 0), Share::ALL, Op::Read, 2048);
        assert_eq!(large, Nanos(100 * MICRO), "of the nearest size that is known");
    }

    /// A device that serves one request after the other in `serial` microseconds each, of which it takes `depth`.
    struct Line {
        forecast: Forecast,
        depth: usize,
        serial: u64,
        held: VecDeque<(u32, IoMeta)>,
        device: VecDeque<(u32, IoMeta)>,
        now: u64,
        ends: u64,
        free: Vec<u32>,
    }

    impl Line {
        fn new(depth: usize, serial: u64) -> Self {
            let free = (0..64).collect();
            let forecast = Forecast::new(64, 4);
            let (held, device) = (VecDeque::new(), VecDeque::new());
            Self { forecast, depth, serial, held, device, now: 0, ends: u64::MAX, free }
        }

        /// Inserts a request, with `first` ahead of all that are held.
        fn comes(&mut self, group: u16, first: bool) -> u32 {
            let io = io(group, Op::Read, at(self.now));
            let slot = self.free.pop().expect("a slot");
            self.forecast.inserted(at(self.now), id(slot), &io);
            if first {
                self.held.push_front((slot, io));
            } else {
                self.held.push_back((slot, io));
            }
            self.issue();
            slot
        }

        fn issue(&mut self) {
            while self.device.len() < self.depth
                && let Some((slot, io)) = self.held.pop_front()
            {
                self.forecast.issued(at(self.now), id(slot), &io);
                if self.device.is_empty() {
                    self.ends = self.now + self.serial;
                }
                self.device.push_back((slot, io));
            }
        }

        /// The next request ends.
        fn ends(&mut self) -> (u32, u64) {
            self.now = self.ends;
            let (slot, io) = self.device.pop_front().expect("a request");
            let expected =
                self.forecast.completed(at(self.now), id(slot), &io).expect("it was seen");
            self.free.push(slot);
            self.ends = self.now + self.serial;
            self.issue();
            (slot, expected.0 / MICRO)
        }
    }

    #[test]
    fn in_a_line_an_io_takes_what_all_before_it_take() {
        for depth in [1, 4, 16] {
            let mut line = Line::new(depth, 50);
            for _ in 0..32 {
                line.comes(0, false);
            }
            for _ in 0..200 {
                line.ends();
                line.comes(0, false);
            }
            let expected = expects(&line.forecast, at(line.now), 0, Op::Read);
            assert!((33 * 50 - 50..=33 * 50 + 50).contains(&expected), "depth {depth}: {expected}");
        }
    }

    #[test]
    fn a_group_that_the_policy_prefers_learns_that_it_does_not_wait_for_the_others() {
        let mut line = Line::new(1, 50);
        for _ in 0..40 {
            line.comes(1, false);
        }
        for _ in 0..40 {
            line.comes(2, true);
            for _ in 0..2 {
                line.ends();
            }
            line.comes(1, false);
        }
        let (of_line, preferred) = (
            expects(&line.forecast, at(line.now), 1, Op::Read),
            expects(&line.forecast, at(line.now), 2, Op::Read),
        );
        assert!((100..=110).contains(&preferred), "{preferred}");
        assert!(of_line > 40 * 50, "{of_line}");
    }

    #[test]
    fn requests_that_a_device_serves_at_once_do_not_wait_for_each_other() {
        let mut forecast = Forecast::new(8, 1);
        // Eight requests at a time, each of which takes 100 us.
        for round in 0..50 {
            let began = at(round * 100);
            let one = io(0, Op::Read, began);
            for slot in 0..8 {
                forecast.inserted(began, id(slot), &one);
                forecast.issued(began, id(slot), &one);
            }
            for slot in 0..8 {
                forecast.completed(at(round * 100 + 100), id(slot), &one);
            }
        }
        let began = at(5_000);
        for slot in 0..7 {
            forecast.inserted(began, id(slot), &io(0, Op::Read, began));
            forecast.issued(began, id(slot), &io(0, Op::Read, began));
        }
        let expected = expects(&forecast, began, 0, Op::Read);
        assert!((90..=110).contains(&expected), "{expected}");
    }

    #[test]
    fn a_device_that_is_late_is_expected_to_be_as_late_again() {
        let mut forecast = Forecast::new(8, 1);
        let mut now = 0;
        teach(&mut forecast, &mut now, Op::Read, 100);
        let stuck = io(0, Op::Read, at(now));
        forecast.inserted(at(now), id(0), &stuck);
        forecast.issued(at(now), id(0), &stuck);
        assert_eq!(expects(&forecast, at(now + 60), 0, Op::Read), 40 + 100);
        assert_eq!(expects(&forecast, at(now + 5_100), 0, Op::Read), 5_000 + 100);
        forecast.completed(at(now + 5_100), id(0), &stuck);
        let after = expects(&forecast, at(now + 5_100), 0, Op::Read);
        assert!((100..600).contains(&after), "one long I/O is no rule: {after}");
    }

    #[test]
    fn requests_that_go_another_way_are_not_counted_twice() {
        let mut forecast = Forecast::new(8, 1);
        let mut now = 0;
        teach(&mut forecast, &mut now, Op::Read, 100);
        let one = io(0, Op::Read, at(now));
        let fresh = forecast.outlook(0);
        for slot in 0..4 {
            forecast.inserted(at(now), id(slot), &one);
        }
        assert_eq!(forecast.outlook(0).held, Nanos(400 * MICRO));
        assert_eq!(forecast.outlook(2).held, Nanos(600 * MICRO), "those that wait outside, too");
        forecast.gone(at(now), id(0));
        forecast.issued(at(now), id(1), &one);
        forecast.requeued(at(now), id(1));
        assert_eq!(forecast.outlook(0).held, Nanos(300 * MICRO));
        forecast.issued(at(now), id(1), &one);
        forecast.gone(at(now), id(1));
        forecast.gone(at(now), id(1));
        forecast.gone(at(now), id(2));
        // A slot whose last request was not seen to end.
        forecast.inserted(at(now), id(3), &one);
        forecast.gone(at(now), id(3));
        assert_eq!((forecast.outlook(0).held, forecast.outlook(0).at_device), (Nanos::ZERO, 0));
        // Issued before the forecast began.
        forecast.issued(at(now), id(5), &one);
        forecast.completed(at(now + 100), id(5), &one);
        assert_eq!(forecast.completed(at(now + 100), id(5), &one), None);
        assert_eq!((forecast.outlook(0).held, forecast.outlook(0).at_device), (Nanos::ZERO, 0));
        assert_eq!(forecast.outlook(0).costs, fresh.costs);
    }

    #[test]
    fn a_slot_has_the_size_that_the_page_says() {
        assert_eq!(size_of::<Slot>(), 72);
    }

    #[test]
    fn classes_are_by_direction_and_size() {
        let kib = |kib: u32| class(Op::Read, 2 * kib);
        let sizes = [1, 4, 5, 16, 17, 64, 65, 256, 257, 1024, 1025, 1 << 20];
        assert_eq!(sizes.map(kib), [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]);
        assert_eq!((class(Op::Flush, 0), class(Op::Discard, 8)), (6, 6));
    }

    #[test]
    fn a_share_is_that_of_most_of_the_latest_requests() {
        let mut learnt = Learnt::default();
        assert_eq!(learnt.share(), Share::ALL, "nothing is known");
        learnt.learn(500, 0);
        assert_eq!(learnt.share(), Share::ALL, "with nothing held, nothing is learnt");
        // A tenant does not wait in its turn, and otherwise waits for four times the held work.
        for n in 0..SEEN {
            learnt.learn(if n % 3 == 0 { 4_000 } else { 0 }, 1_000);
        }
        assert_eq!(learnt.share(), Share::NONE, "a mean would be 4/3");
        (0..SEEN / 2).for_each(|_| learnt.learn(4_000, 1_000));
        assert_eq!(learnt.share().parts(), 4 * 256, "most of the latest");
    }

    #[test]
    fn waits_of_any_length_are_learnt() {
        let mut learnt = Learnt::default();
        learnt.learn(u64::MAX, 1);
        assert_eq!(learnt.share().parts(), 16 * 256, "the most that a share is");
        learnt.learn(0, u64::MAX);
        learnt.learn(0, 1);
        assert_eq!(learnt.share(), Share::NONE);
    }
}
