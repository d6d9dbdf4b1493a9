//! Forecasts: how long an I/O that arrives now will take, learnt from the requests before it, under any policy.
//!
//! A [`Forecast`] sees every request of an elevator, as a policy does. It has no clock, orders nothing, and knows
//! neither the policy nor the device. It learns two things (`doc/forecast.md` has the rules):
//!
//! - *costs*: the device time of a request, by direction, size, and the number of requests that the device works at;
//! - *shares*: the part of the work waiting in the scheduler that is served before a new I/O, by group and direction.
//!
//! An [`Outlook`] is a forecast as of one moment, for threads that have only that.

mod costs;
mod outlook;
mod share;

#[cfg(test)]
mod tests;

use alloc::boxed::Box;
use alloc::vec;
use blkmq_core::{GroupIndex, Instant, IoMeta, Nanos, RequestId};
use costs::Costs;
use outlook::class;
pub use outlook::{CLASSES, Outlook, Share};
use share::Learnt;

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
