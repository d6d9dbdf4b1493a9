//! Forecasts: how long an I/O that arrives now will take, learnt from the requests before it, under any policy.
//!
//! A [`Forecast`] sees every request of an elevator, as a policy does. It has no clock, orders nothing, and knows
//! neither the policy nor the device. It learns two things (`doc/forecast.md` has the rules):
//!
//! - *costs*: the device time of a request, by direction, size, and the number of requests that the device works at: a
//!   device that works on several at a time needs less time for each, as the time is divided among them;
//! - *shares*: the part of the work waiting in the scheduler that is served before a new I/O, by group and direction.
//!
//! An [`Outlook`] is a forecast as of one moment, for threads that have only that.

use alloc::boxed::Box;
use alloc::vec;
use blkmq_core::{GroupIndex, Instant, IoMeta, Nanos, Op, RequestId};

/// The place of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Stage {
    /// The slot is free, or its request came before the forecast did.
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
    /// The work that was held ahead of it.
    ahead: u64,
    /// The time that it would have taken without that work.
    base: u64,
    /// The time from its arrival to its end, as predicted when it got its slot.
    expected: Nanos,
    issued: Instant,
    /// The device's virtual time by then.
    mark: u64,
}

/// The device as a server of one unit of work a nanosecond, which it divides evenly among its requests.
///
/// Its *virtual time* is the work that each request has got since the beginning. The work that a request got from its issue to
/// its end is its cost; the costs of all requests add up to the time in which the device was busy.
#[derive(Default)]
struct Device {
    by_class: [u32; CLASSES],
    requests: u32,
    /// In units of 1/256 ns, modulo 2^64.
    time: u64,
    /// The sum of the virtual times at which its requests were issued, modulo 2^64.
    marks: u64,
    last: Instant,
    /// When it will have done all that it has, as far as is known.
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

    /// A request of `class`, which is to cost `cost`, is issued. Returns the virtual time.
    fn issued(&mut self, now: Instant, class: usize, cost: u64) -> u64 {
        self.advance(now);
        self.clear = if self.requests == 0 { now } else { self.clear } + Nanos(cost);
        self.requests += 1;
        self.by_class[class] += 1;
        self.marks = self.marks.wrapping_add(self.time);
        self.time
    }

    /// A request that was issued at virtual time `mark` has left. Returns the work that it got.
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
    /// By group and direction.
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

    /// The forecast as of `now`, where `outside` requests wait for a slot. O(1).
    #[must_use]
    pub fn outlook(&self, outside: u32) -> Outlook {
        let at_device = self.device.requests;
        let held = self.costs.of_all(&self.held, at_device);
        let device = self.costs.of_all(&self.device.by_class, at_device);
        // I/Os outside are taken to be like the requests inside.
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

    /// The request `id` has a slot.
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

    /// The request goes to the device.
    pub fn issued(&mut self, now: Instant, id: RequestId, io: &IoMeta) {
        if self.stage(id) == Stage::Unknown {
            // The request came before the forecast began, so its wait teaches nothing.
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

    /// The request has ended. Returns how long it was expected to take from its arrival, if it was seen from its insertion
    /// on.
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

    /// The request goes back to the scheduler, to be issued again. Nothing is learnt of it.
    pub fn requeued(&mut self, now: Instant, id: RequestId) {
        if self.stage(id) == Stage::AtDevice {
            let Self { slots, held, device, costs, .. } = self;
            let slot = &mut slots[id.index()];
            device.left(now, slot.class, slot.mark, costs);
            held[slot.class] += 1;
            (slot.stage, slot.ahead) = (Stage::Held, 0);
        }
    }

    /// The request is no longer there: it was fused into another, or given up.
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
    /// All of it, as in a line; also the assumption before anything is learnt.
    pub const ALL: Self = Self(256);
    /// Nothing of it.
    pub const NONE: Self = Self(0);
    /// I/Os that come later may be served before it, too.
    const MOST: u64 = 16 * 256;

    /// `behind` of `ahead`; all of it if `ahead` is zero.
    fn of(behind: u64, ahead: u64) -> Self {
        match (behind * 256).checked_div(ahead) {
            None => Self::ALL,
            Some(share) => Self(share.min(Self::MOST) as u16),
        }
    }

    /// The number of 256th parts.
    #[must_use]
    pub const fn parts(self) -> u16 {
        self.0
    }

    /// A share of so many 256th parts.
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
    /// When the device will have done all of them, as far as is known.
    pub clear: Instant,
    /// The device time of all of them.
    pub device: Nanos,
    /// The device time of one more request, by class.
    pub costs: [Nanos; CLASSES],
}

impl Outlook {
    /// How long an I/O takes that arrives at `now`, with `share` of the held work served before it. Zero while nothing is
    /// known.
    ///
    /// `at_device` requests are at the device now, which may be fewer than when the forecast was made. A device that is
    /// late is expected to need as long again as it is late: it may be stuck.
    #[must_use]
    pub fn expects(
        &self,
        (now, at_device): (Instant, u32),
        share: Share,
        op: Op,
        sectors: u32,
    ) -> Nanos {
        let device = if at_device < self.at_device {
            // The rest, at its mean cost: when the others ended is not known here.
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
struct Costs([[Mean; LOADS]; CLASSES]);

fn load(requests: u32) -> usize {
    (requests.max(1).ilog2() as usize).min(LOADS - 1)
}

impl Costs {
    /// A request got `cost` nanoseconds of the device in `stay` nanoseconds there.
    fn learn(&mut self, class: usize, cost: u64, stay: u64) {
        let requests = stay / cost.max(1);
        let mean = &mut self.0[class][load(u32::try_from(requests).unwrap_or(u32::MAX))];
        mean.seen = (mean.seen + 1).min(MEMORY);
        let (old, new) = (i64::from(mean.cost), cost.min(u32::MAX.into()) as i64);
        mean.cost = (old + (new - old) / i64::from(mean.seen)) as u32;
    }

    /// The cost of one more request of a class where the device then works at `requests`; of the nearest load and size that
    /// is known, and zero if nothing is.
    fn of(&self, class: usize, requests: u32) -> u64 {
        let load = load(requests);
        let mean = self.0[class][load];
        if mean.seen > 0 { mean.cost.into() } else { self.nearest(class, load) }
    }

    /// The costs of as many requests of each class as `counts` says, where the device works at `requests`.
    fn of_all(&self, counts: &[u32; CLASSES], requests: u32) -> u64 {
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

/// Requests that a share is learnt from: an odd number, so that one of them is in the middle.
const SEEN: usize = 31;
/// Waits count as no longer than this, so that their product with a share does not overflow.
const LONGEST: u64 = 1 << 48;

/// The shares of the latest requests of one group and direction, and the median of them.
///
/// The median and not the mean: an I/O is predicted to be late if that is likelier than not, and a policy that gives a tenant
/// turns makes waits of two kinds, of which a mean is neither.
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
    /// A request waited `behind` nanoseconds behind `ahead` nanoseconds of held work.
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
mod tests;
