//! The engine for threads outside of the path of I/Os: reports of the requests in flight and of where their time went,
//! changes of the queue, and the end of a queue that has failed.
//!
//! # Reports
//!
//! A report on I/Os that do not end is a snapshot, and no state is kept for it. Elevators know every request that has a
//! slot, and pumps know the requests that their devices refused, so the snapshot is taken from inside both. An elevator
//! that is still busy after many tries is left out, and a pump that is still busy is not asked. I/Os without a slot (in
//! a plug, in staging, behind a group's limits) are not in the snapshot.
//!
//! The device is not asked, because it may be the part that hangs. Its requests are those that have left the elevator
//! and are not in the pump.
//!
//! # Failure
//!
//! When a policy or a device panics, all I/Os within reach end (decision 0010). The panicking thread continues to
//! unwind. On the way it releases the elevator or pump, which is then closed; raises the alarm, which every submitter
//! notices; and leaves the tokens on its stack with the table's orphans. Each submitter that notices ends the I/Os in
//! its own plug and calls [`Engine::salvage`], which takes every elevator and every pump, in any state, and ends the
//! I/Os there with [`IoError::POISONED`].
//!
//! | where a request is | outcome |
//! |---|---|
//! | in staging, the lobby, an elevator or an outbox, or refused by the device | it ends |
//! | at a device that did not panic | it ends as the device says |
//! | at the device that panicked | it ends if the device gives it back when asked to abandon it; else it is lost |
//!
//! After a failure no request is inserted, picked or issued, and no policy is called. A lost request has no completion,
//! because its payload cannot be returned while a device may write to it; submitters know how many of their I/Os are
//! lost ([`Submitter::lost`](crate::Submitter::lost)).

use crate::dispatch::Engine;
use crate::dispatch::pump::Pump;
use crate::elevator::Tuning;
use crate::elevator::runner::Runner;
use crate::groups::{IoTimes, KINDS};
use crate::planted::{self, Planted};
use crate::shared::PumpMode;
use crate::shared::hub::{Completions, Shard};
use crate::shared::modes::Access;
use crate::sync::{COMPARE, Entered, Gate, TryLockError, yield_now};
use blkmq_core::{
    GroupId, GroupIndex, HwQueue, Instant, IoError, IoMeta, IoResult, Nanos, Op, Owner, RequestId,
    SubmitterId, Tag,
};
use blkmq_sched::FloorReport;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// After this time a thread checks again for requests that devices still have, if nothing wakes it before.
pub(crate) const SALVAGE_AGAIN: Nanos = Nanos::from_millis(1);
/// The result of the I/Os that are ended here.
const POISONED: IoResult = Err(IoError::POISONED);

/// The counts of a queue, all from one moment unless an elevator was busy throughout.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct QueueTimes {
    /// By group: reads, writes, discards and bare flushes. Groups without I/Os are left out. The numbers of a group do
    /// not include its children. A removed group leaves its numbers to its parent.
    pub groups: Vec<(GroupId, [IoTimes; KINDS])>,
    /// The reports on the floors of groups, under a scheduler that keeps floors. Each second is judged by the I/Os that
    /// a group completed while it had I/Os outstanding. A removed group leaves its counts to its parent.
    pub floors: Vec<(GroupId, FloorReport)>,
    /// Completed flushes of the device. One flush may serve many requests.
    pub flushes: u64,
    /// Nanoseconds that these flushes spent at the device, summed.
    pub flush_time: u64,
    /// Nanoseconds in which at least one request was in flight. With an elevator for each hardware queue, the time of
    /// the busiest.
    pub busy: u64,
    /// Reads that have been picked and have not ended.
    pub reads_in_flight: u64,
    /// All other requests that have been picked and have not ended.
    pub others_in_flight: u64,
    /// I/Os that wait in the scheduler, or, by group, for a slot.
    pub waiting: u64,
    /// Elevators that were busy at every try: their recent counts, and the I/Os that they hold, are missing.
    pub busy_elevators: u32,
}

impl QueueTimes {
    /// The numbers of a group without its children.
    #[must_use]
    pub fn group(&self, group: GroupId) -> [IoTimes; KINDS] {
        let found = self.groups.iter().find(|(id, _)| *id == group);
        found.map(|(_, times)| times.clone()).unwrap_or_default()
    }

    /// The report on the floor of a group; `None` if it never had one.
    #[must_use]
    pub fn floor(&self, group: GroupId) -> Option<&FloorReport> {
        self.floors.iter().find(|(id, _)| *id == group).map(|(_, report)| report)
    }

    /// Nanoseconds of its floor that a group missed: half of the floor for a second is half a second.
    #[must_use]
    pub fn shortfall(&self, group: GroupId) -> u64 {
        self.floor(group).map_or(0, |report| report.short.0)
    }

    /// The sum over all groups.
    #[must_use]
    pub fn all(&self) -> [IoTimes; KINDS] {
        let mut sum: [IoTimes; KINDS] = Default::default();
        for (_, times) in &self.groups {
            sum.iter_mut().zip(times).for_each(|(sum, times)| sum.add(times));
        }
        sum
    }
}

impl<P: Send> Engine<P> {
    /// Moves the counts of an elevator to the ledger, and adds the I/Os that it holds to `now`. Returns false if it is
    /// busy.
    pub(crate) fn read_times(&self, shard: &Shard, now: &mut QueueTimes) -> bool {
        let read = |runner: &mut Runner| {
            runner.elevator.count_times();
            for (_, meta, waits) in runner.elevator.slots.live() {
                let count = match (waits, meta.op) {
                    (true, _) => &mut now.waiting,
                    (false, Op::Read) => &mut now.reads_in_flight,
                    (false, _) => &mut now.others_in_flight,
                };
                *count += 1;
            }
            now.waiting += runner.elevator.in_lobby() as u64;
        };
        self.visit(shard, read).is_some()
    }

    /// Calls `look` with the runner of an elevator, after it has taken back all completions. `None` if it is busy at
    /// every try.
    pub(crate) fn visit<T>(&self, shard: &Shard, look: impl FnOnce(&mut Runner) -> T) -> Option<T> {
        let enter = |_| {
            let entered = self.enter_elevator(shard);
            if entered.is_none() {
                yield_now();
            }
            entered
        };
        let mut runner = (0..TRIES).find_map(enter)?;
        let wakes = self.learn(shard, &mut runner);
        let seen = look(&mut runner);
        self.leave_elevator(shard, runner, &wakes);
        Some(seen)
    }

    /// Releases an elevator that was entered for something other than a pass, wakes the submitters of `wakes`, and has
    /// a thread do the work that became due in the meantime: a submitter that found this thread inside may have fallen
    /// asleep since, and the pass that it left to this thread is owed.
    pub(crate) fn leave_elevator(
        &self,
        shard: &Shard,
        mut runner: Entered<'_, Runner>,
        wakes: &[SubmitterId],
    ) {
        if COMPARE {
            runner.publish(shard);
        }
        drop(runner);
        self.wake(wakes);
        if !planted::is(Planted::LeavesAVisitInSilence) {
            self.wake_successor(shard, HwQueue(shard.first_hw));
        }
    }

    /// Notifies the policy of the last completions, which no pass has reported if the elevator waited for none. Returns
    /// the submitters to wake after the elevator has been released.
    fn learn(&self, shard: &Shard, runner: &mut Runner) -> Vec<SubmitterId> {
        if runner.take_returns_early(&self.hub, shard) {
            let _ = self.gate(shard).kick();
        }
        let mut wakes = Vec::new();
        self.carry_out(self.gate(shard), &mut runner.duties, &mut wakes);
        wakes
    }

    /// Like [`learn`](Self::learn), for every idle elevator; the other elevators take back completions in their passes.
    pub(crate) fn learn_all(&self) {
        for shard in &self.hub.shards {
            let Some(mut runner) = self.enter_elevator(shard) else { continue };
            let wakes = self.learn(shard, &mut runner);
            self.leave_elevator(shard, runner, &wakes);
        }
    }
}

/// The number of tries to enter a busy elevator or pump.
pub(crate) const TRIES: u32 = if cfg!(any(loom, shuttle)) { 2 } else { 200 };

/// Where a request is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Place {
    /// The scheduler holds it and has not picked it, or it waits, by group, for a slot.
    Elevator,
    /// Picked, but not taken by the device: the device refused it, or no request may be issued at present.
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

/// An unfinished request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outstanding {
    /// The operation.
    pub op: Op,
    /// Its first sector.
    pub sector: u64,
    /// Its length in sectors, including all bios merged into it.
    pub sectors: u32,
    /// The owner of its oldest bio; if that bio named none, the [thread](Owner::thread) of its submitter.
    pub owner: Owner,
    /// The group of the owner.
    pub group: GroupIndex,
    /// Its driver tag; known only for a request that the device refused.
    pub tag: Option<Tag>,
    /// The hardware queue by which it left the elevator; `None` before that, or if it is unknown.
    pub hw: Option<HwQueue>,
    /// Where it is.
    pub place: Place,
    /// The time at which its oldest bio was submitted.
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

/// The state of one hardware queue that its pump knows.
struct Below {
    hw: HwQueue,
    /// Refused requests, with their tags.
    refused: Vec<(RequestId, Tag)>,
    /// The number of requests at the device.
    inside: u32,
}

impl<P: Send> Engine<P> {
    /// Enters the elevator or pump behind `gate`; `None` if it is busy at every try. A pass takes microseconds.
    fn unless_busy<'a, T>(&self, gate: &'a Gate<T>) -> Option<Entered<'a, T>> {
        let enter = |_| {
            let entered = if self.is_locked() {
                gate.try_lock(self.hub.changer()).map(Entered::Lock)
            } else {
                gate.enter(self.hub.changer())
            };
            if entered.is_none() {
                yield_now();
            }
            entered
        };
        (0..TRIES).find_map(enter)
    }

    /// Adds every request that has a slot of `shard`'s elevator.
    pub(crate) fn find_in(&self, shard: &Shard, found: &mut Vec<Outstanding>) {
        let Some(mut runner) = self.unless_busy(self.gate(shard)) else { return };
        let below: Vec<Below> = shard.hws().map(HwQueue).filter_map(|hw| self.below(hw)).collect();
        // Frees the slots of ended requests, which would otherwise look unfinished.
        if runner.take_returns_early(&self.hub, shard) {
            let _ = self.gate(shard).kick();
        }
        let lobby = runner.elevator.lobby();
        found.extend(lobby.map(|io| Outstanding::new(io, Place::Elevator)));
        for (id, meta, waits) in runner.elevator.slots.live() {
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

    /// The state that the pump of `hw` knows; `None` if the pump is busy.
    fn below(&self, hw: HwQueue) -> Option<Below> {
        let pump = self.unless_busy(self.pump_gate(hw))?;
        let below = Below { hw, refused: pump.refused().collect(), inside: pump.inside() };
        pump.finish();
        Some(below)
    }
}

impl<P: Send> Engine<P> {
    /// Enters every elevator and every pump. `None` if a request is in flight or another thread is inside.
    pub(crate) fn enter_idle(&self) -> Option<Held<'_, P>> {
        let mut wakes = Vec::new();
        let held = self.enter_all(&mut wakes);
        self.wake(&wakes);
        held
    }

    fn enter_all(&self, wakes: &mut Vec<SubmitterId>) -> Option<Held<'_, P>> {
        let who = self.hub.changer();
        let mut held = Held { runners: Vec::new(), pumps: Vec::new() };
        for shard in &self.hub.shards {
            let mut runner = self.enter_elevator(shard)?;
            // If the elevator waited for no completion, the last ones have kicked no runner.
            runner.take_returns_early(&self.hub, shard);
            self.carry_out(self.gate(shard), &mut runner.duties, wakes);
            if runner.elevator.held() > 0 {
                // In the next pass, a policy that idles sees that no more I/O comes, and continues.
                let _ = self.gate(shard).kick();
            }
            if shard.has_parked() {
                return None;
            }
            held.runners.push(runner.is_idle().then_some(runner)?);
        }
        for gate in &self.pumps {
            let mut pump = gate.enter(who)?;
            held.pumps.push(pump.is_idle().then_some(pump)?);
        }
        Some(held)
    }

    /// Enters the elevator. `None` if another thread runs it or, where dispatch is serialised, holds its lock. Waits
    /// for a spinlock or a mutex.
    pub(crate) fn enter_elevator<'a>(&'a self, shard: &'a Shard) -> Option<Entered<'a, Runner>> {
        if COMPARE && matches!(self.hub.modes.access, Access::Serialised) {
            return self.gate(shard).try_lock(self.hub.changer()).map(Entered::Lock);
        }
        self.gate(shard).enter(self.hub.changer())
    }

    /// Tunes the elevators from number `first` on, up to the first that cannot be entered. Returns the number tuned.
    pub(crate) fn tune(&self, first: usize, tuning: &mut Tuning) -> usize {
        let mut tuned = 0;
        if first == 0
            && let Some(common) = &self.hub.common
        {
            let mut wakes = Vec::new();
            for (name, value) in &tuning.options {
                let mut tell = |shard| wakes.extend(self.kick_shard(shard));
                common.set_attribute(name, *value, &mut tell);
            }
            self.wake(&wakes);
        }
        for shard in &self.hub.shards[first..] {
            let Some(mut runner) = self.enter_elevator(shard) else { break };
            runner.tune(tuning);
            let _ = self.gate(shard).kick();
            tuned += 1;
        }
        tuned
    }

    /// Does the work that is due anywhere in the queue, for the thread that changes it. That includes the work that
    /// entering and leaving have deferred: a pass, and a turn of each pump.
    pub(crate) fn help(&self, now: Instant) {
        if self.hub.lasting.pump_mode == PumpMode::Thread {
            let due = |hw: &HwQueue| self.pump_gate(*hw).due(now);
            let hws = (0..self.hub.hctxs.len() as u16).map(HwQueue);
            hws.filter(due).for_each(|hw| self.hub.lasting.host.wake_pump(hw));
        }
        for shard in &self.hub.shards {
            let home = HwQueue(shard.first_hw);
            if self.help_shard(shard, home, now) {
                // The thread that changes the queue may return late, or never.
                self.wake_successor(shard, home);
            }
        }
    }
}

impl<P> Engine<P> {
    /// Makes every runner, pump and parked submitter check again: for staged I/Os, for deferred work, and whether this
    /// is still the current queue.
    pub(crate) fn reopen(&self) {
        for shard in &self.hub.shards {
            for id in &shard.submitters {
                if !planted::is(Planted::ForgetsStaged) {
                    shard.pending.set(id.0);
                }
                shard.asked.set(id.0);
            }
            let _ = self.gate(shard).kick();
        }
        for pump in &self.pumps {
            let _ = pump.kick();
        }
        self.wake_all();
        if self.hub.lasting.pump_mode == PumpMode::Thread {
            (0..self.hub.hctxs.len() as u16)
                .for_each(|hw| self.hub.lasting.host.wake_pump(HwQueue(hw)));
        }
    }

    /// Wakes every parked submitter.
    pub(crate) fn wake_all(&self) {
        for (id, sender) in (0..).map(SubmitterId).zip(self.hub.lasting.senders.iter()) {
            if sender.take_parked() {
                self.hub.lasting.host.wake_submitter(id);
            }
        }
    }
}

/// Every elevator and every pump of a queue that has nothing in flight.
pub(crate) struct Held<'a, P> {
    pub(crate) runners: Vec<Entered<'a, Runner>>,
    pub(crate) pumps: Vec<Entered<'a, Pump<P>>>,
}

impl<P: Send> Engine<P> {
    /// Ends the I/Os that can be ended. Returns whether none is left, except for those that submitters held when this
    /// began. If false, it must be called again: another thread is salvaging, an elevator or pump is taken, or a device
    /// still has requests. O(everything).
    #[cold]
    pub(crate) fn salvage(&self, now: Instant) -> bool {
        let _alone = match self.hub.lasting.salvage.try_lock() {
            Ok(alone) => alone,
            Err(TryLockError::Poisoned(e)) => e.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        let mut wakes = Vec::new();
        // Elevators pass requests to pumps, and pumps hand requests back.
        let mut over = self.salvage_elevators(&mut wakes);
        for hw in (0..self.pumps.len() as u16).map(HwQueue) {
            over &= match self.pump_gate(hw).seize(self.hub.changer()) {
                Some(pump) => self.salvage_pump(hw, pump, now, &mut wakes),
                None => false,
            };
        }
        over &= self.salvage_elevators(&mut wakes);
        let mut ended = Completions::new(&self.hub.lasting.table);
        for chain in self.hub.lasting.table.take_orphans() {
            ended.push_chain(&self.hub.lasting, chain, POISONED);
        }
        ended.flush(&self.hub.lasting);
        wakes.append(&mut ended.wake);
        self.wake(&wakes);
        over
    }

    /// Ends the I/Os in all elevators. Returns whether every elevator could be entered.
    fn salvage_elevators(&self, wakes: &mut Vec<SubmitterId>) -> bool {
        let mut all = true;
        for shard in &self.hub.shards {
            match self.gate(shard).seize(self.hub.changer()) {
                Some(runner) => self.salvage_elevator(shard, runner, wakes),
                None => all = false,
            }
        }
        all
    }

    /// Ends the I/Os in a pump. Returns whether the device has none left.
    fn salvage_pump(
        &self,
        hw: HwQueue,
        mut pump: Entered<'_, Pump<P>>,
        now: Instant,
        wakes: &mut Vec<SubmitterId>,
    ) -> bool {
        let hctx = self.hub.hctx(hw);
        if pump.is_poisoned() {
            // The device may panic once more. The requests that it has returned by then stay in `pump`.
            let _ = catch_unwind(AssertUnwindSafe(|| pump.give_up_device()));
        } else {
            pump.stop_retrying();
            pump.look(&self.hub, hctx, now);
        }
        pump.end_waiting(&self.hub, hctx, POISONED);
        self.carry_out(self.pump_gate(hw), &mut pump.duties, wakes);
        let over = pump.is_idle();
        pump.finish();
        over
    }

    fn salvage_elevator(
        &self,
        shard: &Shard,
        mut runner: Entered<'_, Runner>,
        wakes: &mut Vec<SubmitterId>,
    ) {
        // The policy still has the requests that end below in its books, so it must not be called again.
        runner.close();
        shard.orphan_parked();
        runner.end_all();
        runner.completions.flush(&self.hub.lasting);
        wakes.append(&mut runner.completions.wake);
        self.carry_out(self.gate(shard), &mut runner.duties, wakes);
        runner.finish();
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
