//! The requests that a queue still owes its submitters: for a report on I/Os that do not come back.
//!
//! This is a snapshot, and no state is kept for it: elevators know every request that has a slot, pumps know the
//! requests that their devices refused. So the snapshot is taken from inside both. An elevator that is busy at every one of
//! many tries is left out, and such a pump is not asked. I/Os that have no slot yet (in a plug, in staging, behind a
//! group's limits) are not in it.
//!
//! The device, which may be the part that hangs, is not asked. Its requests are those that have left the elevator and
//! are not in the pump.

use crate::Queue;
use crate::dispatch::engine::Engine;
use crate::dispatch::gate::{Entered, Gate};
use crate::shared::shard::Shard;
use crate::sync::yield_now;
use blkmq_core::{GroupIndex, HwQueue, Instant, IoMeta, Op, Owner, RequestId, Tag};
use std::fmt;

/// How often a busy elevator or pump is tried.
pub(crate) const TRIES: u32 = if cfg!(any(loom, shuttle)) { 2 } else { 200 };

/// Where a request is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Place {
    /// The scheduler holds it and has not picked it.
    Elevator,
    /// Picked, and not taken by the device: the device refused it, or no request may be issued at present.
    HardwareQueue,
    /// The device has it.
    Device,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Elevator => "in the elevator",
            Self::HardwareQueue => "not taken by the device",
            Self::Device => "at the device",
        })
    }
}

/// A request that has not ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outstanding {
    /// The operation.
    pub op: Op,
    /// Its first sector.
    pub sector: u64,
    /// Its length in sectors, with all the bios merged into it.
    pub sectors: u32,
    /// The owner that issued it, or that issued its oldest bio; the [thread](Owner::thread) of its submitter if that named
    /// none.
    pub owner: Owner,
    /// The group of the owner.
    pub group: GroupIndex,
    /// Its driver tag, where it is known: only for a request that the device refused.
    pub tag: Option<Tag>,
    /// The hardware queue by which it left the elevator; `None` before that, or if it is unknown.
    pub hw: Option<HwQueue>,
    /// Where it is.
    pub place: Place,
    /// When its oldest bio was submitted.
    pub since: Instant,
}

impl Outstanding {
    fn new(meta: &IoMeta, place: Place) -> Self {
        let IoMeta { op, sector, sectors, owner, group, arrived, .. } = *meta;
        Self { op, sector, sectors, owner, group, tag: None, hw: None, place, since: arrived }
    }

    /// This request with its age at `now`, for display.
    pub fn at(&self, now: Instant) -> impl fmt::Display {
        Aged(*self, now)
    }
}

impl fmt::Display for Outstanding {
    /// For example: `read of 8 sectors at 4096, owner 3, group 1: at the device, tag 17`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { op, sector, sectors, owner, group, tag, place, .. } = self;
        match op {
            Op::Read => f.write_str("read")?,
            Op::Write => f.write_str("write")?,
            Op::Discard => f.write_str("discard")?,
            Op::WriteZeroes => f.write_str("write of zeroes")?,
            Op::Flush => f.write_str("flush")?,
        }
        if *op != Op::Flush {
            write!(f, " of {sectors} sectors at {sector}")?;
        }
        let kind = if owner.is_thread() { "thread" } else { "owner" };
        write!(f, ", {kind} {}", owner.number())?;
        if *group != GroupIndex::ROOT {
            write!(f, ", group {}", group.0)?;
        }
        write!(f, ": {place}")?;
        tag.map_or(Ok(()), |tag| write!(f, ", tag {}", tag.0))
    }
}

/// An [`Outstanding`] and the time of a report.
struct Aged(Outstanding, Instant);

impl fmt::Display for Aged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, tenths) = {
            let ns = (self.1 - self.0.since).0;
            (ns / 1_000_000_000, ns / 100_000_000 % 10)
        };
        write!(f, "{}, for {seconds}.{tenths} s", self.0)
    }
}

impl<P: Send + 'static> Queue<P> {
    /// Up to `most` requests that have not ended, the oldest first. Requests of an elevator that is busy at
    /// each of 200 tries are left out. Such a pump is not asked, so the place and hardware queue of its requests are a
    /// guess.
    ///
    /// For reports and not for the hot path: O(slots). Also does the work that is due at `now`, as
    /// [`Submitter::poll`](crate::Submitter::poll) does.
    #[must_use]
    pub fn outstanding(&self, now: Instant, most: usize) -> Vec<Outstanding> {
        // Held as for a change, because elevators are entered here under the changer's number.
        let _state = self.root.change_state();
        let q = self.root.current();
        let mut found = Vec::new();
        q.hub.shards.iter().for_each(|shard| q.find_in(shard, &mut found));
        // Entering put off work that other threads had to do meanwhile.
        q.help(now);
        found.sort_by_key(|it| (it.since, it.sector));
        found.truncate(most);
        found
    }
}

/// The state of one hardware queue that its pump knows.
struct Below {
    hw: HwQueue,
    /// Requests that the device refused.
    refused: Vec<(RequestId, Tag)>,
    /// How many requests are at the device.
    inside: u32,
}

impl<P: Send> Engine<P> {
    /// Enters the elevator or pump behind `gate`, unless it is busy however often this thread looks: a pass takes
    /// microseconds.
    fn unless_busy<'a, T>(&self, gate: &'a Gate<T>) -> Option<Entered<'a, T>> {
        let enter = |_| {
            #[cfg(feature = "compare")]
            let entered = if self.is_locked() {
                gate.try_lock(self.hub.changer()).map(Entered::Lock)
            } else {
                gate.enter(self.hub.changer())
            };
            #[cfg(not(feature = "compare"))]
            let entered = gate.enter(self.hub.changer());
            if entered.is_none() {
                yield_now();
            }
            entered
        };
        (0..TRIES).find_map(enter)
    }

    /// Adds every request that has a slot of `shard`'s elevator.
    fn find_in(&self, shard: &Shard, found: &mut Vec<Outstanding>) {
        let Some(mut runner) = self.unless_busy(self.gate(shard)) else { return };
        let below: Vec<Below> = shard.hws().map(HwQueue).filter_map(|hw| self.below(hw)).collect();
        // Frees the slots of ended requests, which would otherwise look unfinished.
        if runner.take_returns(&self.hub, shard) {
            let _ = self.gate(shard).kick();
        }
        for (id, meta, waits) in runner.elevator.live() {
            if waits {
                found.push(Outstanding::new(meta, Place::Elevator));
                continue;
            }
            let refused = below.iter().find_map(|below| {
                let (_, tag) = below.refused.iter().find(|(refused, _)| *refused == id)?;
                Some((below.hw, Some(*tag)))
            });
            let mut one = Outstanding::new(meta, Place::Device);
            // If several hardware queues share the elevator, the request may have left by any of them.
            one.hw = match &below[..] {
                [only] => Some(only.hw),
                _ => None,
            };
            if let Some((hw, tag)) = refused {
                (one.hw, one.tag, one.place) = (Some(hw), tag, Place::HardwareQueue);
            } else if below.iter().all(|below| below.inside == 0) {
                one.place = Place::HardwareQueue;
            }
            found.push(one);
        }
    }

    /// The state that the pump of `hw` knows; `None` if it is busy.
    fn below(&self, hw: HwQueue) -> Option<Below> {
        let pump = self.unless_busy(self.pump_gate(hw))?;
        let below = Below { hw, refused: pump.refused().collect(), inside: pump.inside() };
        pump.finish();
        Some(below)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use blkmq_core::Nanos;

    #[test]
    fn a_request_says_what_who_where_and_for_how_long() {
        let owner = Owner(3);
        let arrived = Instant::from_nanos(5_000_000_000);
        let meta =
            IoMeta { owner, group: GroupIndex(1), arrived, ..IoMeta::new(Op::Read, 4096, 8) };
        let one = Outstanding { tag: Some(Tag(17)), ..Outstanding::new(&meta, Place::Device) };
        let expected = "read of 8 sectors at 4096, owner 3, group 1: at the device, tag 17";
        assert_eq!(one.to_string(), expected);
        let later = arrived + Nanos::from_millis(32_040);
        assert_eq!(one.at(later).to_string(), format!("{expected}, for 32.0 s"));
        let flush = IoMeta { owner, ..IoMeta::new(Op::Flush, 0, 0) };
        let flush = Outstanding::new(&flush, Place::Elevator);
        assert_eq!(flush.to_string(), "flush, owner 3: in the elevator");
    }
}
