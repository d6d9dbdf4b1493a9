//! The times of completed requests by group and operation: the counts of a runner, and the sums that a queue keeps.
//!
//! A runner counts in its own [`Counted`]. A thread that reads moves the counts of every elevator to the [`Account`] of
//! the queue. So the path of an I/O has no shared cache line, and all figures of one reading are of the same moment.
//!
//! 32 linear buckets for each power of two, so the end of a bucket is at most 1/32 (3.1 %) above every time in it.
//!
//! The waits of groups behind groups are here too, as a sum for each pair with such a wait, and the requests that took
//! long. `elevator/timing.rs` finds out which groups wait, and behind which.

use crate::groups::Promise;
use crate::groups::tree::{Group, GroupTree};
use blkmq_core::{GroupId, GroupIndex, Instant, IoMeta, Nanos, Op, SECTOR_SIZE};
use blkmq_sched::{FloorReport, FloorState, GroupChange, Rate};

/// The number of kinds of I/O that are counted separately: reads, writes (including zeroes), discards and bare flushes.
pub const KINDS: usize = 4;
/// The most slow I/Os that are kept until they are read.
const MOST_SLOW: usize = 64;

/// The index of `op` among the [`KINDS`].
#[inline]
pub(crate) fn kind(op: Op) -> usize {
    match op {
        Op::Read => 0,
        Op::Write | Op::WriteZeroes => 1,
        Op::Discard => 2,
        Op::Flush => 3,
    }
}

/// Completed requests of one kind of one group: how many, and where their time went. The numbers never decrease. Sums
/// of times are in nanoseconds; `slot + policy + tag` is the time before the device.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct IoTimes {
    /// The number of requests.
    pub ios: u64,
    /// Bytes of the requests.
    pub bytes: u64,
    /// I/Os that were merged into another request, in a plug or in the scheduler. `ios + merged` is the number of I/Os,
    /// if none was divided.
    pub merged: u64,
    /// Requests that failed.
    pub errors: u64,
    /// From the arrival until the request had a slot.
    pub slot: u64,
    /// In the scheduler, while it could have been picked.
    pub policy: u64,
    /// In the scheduler, while there was no driver tag, budget or room at the device.
    pub tag: u64,
    /// From the pick until the completion was found at the device.
    pub device: u64,
    /// The device time that the scheduler has charged for the requests. Under a scheduler that charges none, their time
    /// at the device, divided at each moment between all requests there. The sums of groups are comparable as shares.
    pub charged: u64,
    /// The time in which the group had unfinished requests, from an arrival to a completion. A moment is counted once,
    /// for the request that ended first, so the group's time is the sum over its kinds. With several elevators, the
    /// sum over them.
    pub busy: u64,
    /// The distribution of the times before the device.
    pub queue_times: Latencies,
    /// The distribution of the times at the device.
    pub device_times: Latencies,
    /// The distribution of the total times.
    pub total_times: Latencies,
}

impl IoTimes {
    fn take(&mut self, other: &mut Self) {
        for (into, from) in [
            (&mut self.ios, &mut other.ios),
            (&mut self.bytes, &mut other.bytes),
            (&mut self.merged, &mut other.merged),
            (&mut self.errors, &mut other.errors),
            (&mut self.slot, &mut other.slot),
            (&mut self.policy, &mut other.policy),
            (&mut self.tag, &mut other.tag),
            (&mut self.device, &mut other.device),
            (&mut self.charged, &mut other.charged),
            (&mut self.busy, &mut other.busy),
        ] {
            *into += std::mem::take(from);
        }
        self.queue_times.take(&mut other.queue_times);
        self.device_times.take(&mut other.device_times);
        self.total_times.take(&mut other.total_times);
    }

    /// Adds the numbers of `other`.
    pub fn add(&mut self, other: &Self) {
        self.take(&mut other.clone());
    }
}

/// The stages of one request.
#[derive(Clone, Copy)]
pub(crate) struct Spent {
    pub(crate) slot: u64,
    pub(crate) policy: u64,
    pub(crate) tag: u64,
    pub(crate) device: u64,
    /// See [`IoTimes::charged`].
    pub(crate) charged: u64,
}

/// The requests that one elevator has completed since its counts were last moved away.
#[derive(Default)]
pub(crate) struct Counted {
    /// By group and kind; `None` before the first such request, with which the memory is allocated.
    by_kind: Vec<Option<Box<IoTimes>>>,
    /// By group: the latest completion, up to which its busy time is counted.
    ended: Vec<Instant>,
    slow: Vec<SlowIo>,
    /// The number of slow I/Os for which there was no room.
    slow_lost: u64,
    /// Completed flushes of the device, and the nanoseconds that they took.
    pub(crate) flushes: (u64, u64),
    /// Nanoseconds in which at least one request was in flight.
    pub(crate) busy: u64,
    /// Which group waited behind which.
    pub(crate) waits: WaitSums,
}

impl Counted {
    /// The counts of the group's I/Os of this kind, and its latest completion.
    #[inline]
    fn of(&mut self, io: &IoMeta) -> (&mut IoTimes, &mut Instant) {
        let (group, kind) = (usize::from(io.group.0), kind(io.op));
        let at = group * KINDS + kind;
        if self.by_kind.get(at).is_none_or(Option::is_none) {
            self.begin(at);
        }
        let times = self.by_kind[at].as_mut();
        (times.expect("it is there since a moment ago at the latest"), &mut self.ended[group])
    }

    #[cold]
    #[inline(never)]
    fn begin(&mut self, at: usize) {
        if self.by_kind.len() <= at {
            self.by_kind.resize_with(at + 1, || None);
            self.ended.resize(at / KINDS + 1, Instant::ZERO);
        }
        self.by_kind[at] = Some(Box::default());
    }

    /// Counts `bios` I/Os like `io` that have joined a request.
    pub(crate) fn merged(&mut self, io: &IoMeta, bios: u32) {
        self.of(io).0.merged += u64::from(bios);
    }

    /// Counts a request that was completed at `ended`.
    #[inline]
    pub(crate) fn completed(&mut self, io: &IoMeta, ended: Instant, failed: bool, spent: Spent) {
        let Spent { slot, policy, tag, device, charged } = spent;
        let queue = slot + policy + tag;
        let (times, upto) = self.of(io);
        times.busy += ended.since(io.arrived.max(*upto)).0;
        *upto = ended.max(*upto);
        times.ios += 1;
        times.bytes += u64::from(io.sectors) * u64::from(SECTOR_SIZE);
        times.errors += u64::from(failed);
        times.slot += slot;
        times.policy += policy;
        times.tag += tag;
        times.device += device;
        times.charged += charged;
        times.queue_times.record(queue);
        times.device_times.record(device);
        times.total_times.record(queue + device);
    }

    /// Keeps a slow request.
    #[cold]
    pub(crate) fn slow(&mut self, io: &IoMeta, completed: Instant, spent: Spent) {
        if self.slow.len() == MOST_SLOW {
            self.slow_lost += 1;
            return;
        }
        let Spent { slot, policy, tag, device, .. } = spent;
        self.slow.push(SlowIo {
            group: io.group,
            op: io.op,
            sector: io.sector,
            sectors: io.sectors,
            completed,
            slot: Nanos(slot),
            policy: Nanos(policy),
            tag: Nanos(tag),
            device: Nanos(device),
        });
    }
}

/// The requests that a queue has completed, by group.
#[derive(Default)]
pub(crate) struct Account {
    by_kind: Vec<Option<Box<IoTimes>>>,
    /// By group: the heir to the numbers of a removed group; `None` for an existing group.
    heirs: Vec<Option<GroupIndex>>,
    /// By group: its parent.
    parents: Vec<GroupIndex>,
    /// By group: the report on its floor; `None` if it never had one.
    floors: Vec<Option<FloorReport>>,
    slow: Vec<SlowIo>,
    slow_lost: u64,
    flushes: (u64, u64),
    /// By elevator: see [`Counted::busy`].
    busy: Vec<u64>,
    waits: WaitSums,
}

impl Account {
    /// Applies a change of the tree of groups. The numbers of a removed group go to its parent.
    pub(crate) fn regroup(&mut self, change: GroupChange) {
        match change {
            GroupChange::Added { group, parent, .. } => {
                let at = usize::from(group.0);
                if self.parents.len() <= at {
                    self.parents.resize(at + 1, GroupIndex::ROOT);
                    self.heirs.resize(at + 1, None);
                }
                (self.parents[at], self.heirs[at]) = (parent, None);
            }
            GroupChange::Weight { .. } | GroupChange::Guarantee { .. } => {}
            GroupChange::Removed { group } => {
                let at = usize::from(group.0);
                let Some(heir) = self.parents.get(at).copied() else { return };
                self.heirs[at] = Some(heir);
                for kind in 0..KINDS {
                    if let Some(mut times) =
                        self.by_kind.get_mut(at * KINDS + kind).and_then(Option::take)
                    {
                        self.of(heir, kind).take(&mut times);
                    }
                }
                if let Some(floor) = self.floors.get_mut(at).and_then(Option::take) {
                    self.add_floor(&FloorReport { group: heir, ..floor });
                }
                self.waits.inherit(group, self.heir(heir));
            }
        }
    }

    /// The group that has the numbers of `group`.
    fn heir(&self, group: GroupIndex) -> GroupIndex {
        let mut group = group;
        // Each heir is an ancestor, so this ends.
        for _ in 0..=self.heirs.len() {
            match self.heirs.get(usize::from(group.0)) {
                Some(Some(heir)) => group = *heir,
                _ => break,
            }
        }
        group
    }

    fn of(&mut self, group: GroupIndex, kind: usize) -> &mut IoTimes {
        let at = usize::from(self.heir(group).0) * KINDS + kind;
        if self.by_kind.len() <= at {
            self.by_kind.resize_with(at + 1, || None);
        }
        self.by_kind[at].get_or_insert_default()
    }

    /// Adds the counts of a group's floor.
    pub(crate) fn add_floor(&mut self, report: &FloorReport) {
        let heir = self.heir(report.group);
        let at = usize::from(heir.0);
        self.floors.resize(self.floors.len().max(at + 1), None);
        self.floors[at].get_or_insert_with(|| FloorReport::new(heir)).add(report);
    }

    /// The reports on the floors of groups.
    pub(crate) fn floors(&self) -> impl Iterator<Item = FloorReport> + '_ {
        self.floors.iter().flatten().copied()
    }

    /// Moves the counts of elevator number `shard` here.
    pub(crate) fn take(&mut self, shard: u16, counted: &mut Counted) {
        for (at, times) in counted.by_kind.iter_mut().enumerate() {
            if let Some(times) = times
                && (times.ios > 0 || times.merged > 0)
            {
                self.of(GroupIndex((at / KINDS) as u16), at % KINDS).take(times);
            }
        }
        let room = MOST_SLOW - self.slow.len();
        self.slow_lost += std::mem::take(&mut counted.slow_lost);
        self.slow_lost += counted.slow.len().saturating_sub(room) as u64;
        self.slow.extend(counted.slow.drain(..).take(room));
        let (flushes, time) = std::mem::take(&mut counted.flushes);
        self.flushes = (self.flushes.0 + flushes, self.flushes.1 + time);
        let shard = usize::from(shard);
        self.busy.resize(self.busy.len().max(shard + 1), 0);
        self.busy[shard] += std::mem::take(&mut counted.busy);
        counted.waits.drain(&mut |wait| {
            let behind = wait.behind.map(|group| self.heir(group));
            self.waits.add(self.heir(wait.waiting), behind, wait.time.0);
        });
    }

    /// The numbers of each group that has any, without its descendants.
    pub(crate) fn all(&self) -> Vec<(GroupIndex, [IoTimes; KINDS])> {
        let chunks = self.by_kind.chunks(KINDS).enumerate();
        let some = chunks.filter(|(_, kinds)| kinds.iter().any(Option::is_some));
        let of = |kinds: &[Option<Box<IoTimes>>], kind: usize| {
            kinds.get(kind).and_then(|times| times.as_deref().cloned()).unwrap_or_default()
        };
        let group =
            |(at, kinds)| (GroupIndex(at as u16), std::array::from_fn(|kind| of(kinds, kind)));
        some.map(group).collect()
    }

    /// Flushes of the device, and the nanoseconds that they took.
    pub(crate) fn flushes(&self) -> (u64, u64) {
        self.flushes
    }

    /// Nanoseconds in which at least one request was in flight; with several elevators, those of the busiest.
    pub(crate) fn busy(&self) -> u64 {
        self.busy.iter().copied().max().unwrap_or(0)
    }

    /// The waits of groups behind groups, without their descendants.
    pub(crate) fn waits(&self) -> Vec<Wait> {
        self.waits.all().collect()
    }

    /// Takes the slow I/Os, and the number of further ones that were not kept.
    pub(crate) fn take_slow(&mut self) -> (Vec<SlowIo>, u64) {
        (std::mem::take(&mut self.slow), std::mem::take(&mut self.slow_lost))
    }
}

/// The whole floor, in millionths.
const WHOLE: u64 = 1_000_000;

/// A part of a floor, given in millionths, in the unit of the floor; in percent if the floor has several units.
fn amount(reserve: &Rate, part: u64) -> String {
    let of = |whole: f64| whole * part as f64 / WHOLE as f64;
    let number = |value: f64| {
        let tenths = (value * 10.0).round() / 10.0;
        let decimals = usize::from(tenths < 100.0 && tenths.fract() != 0.0);
        format!("{value:.decimals$}")
    };
    match *reserve {
        Rate { iops, bps: 0, percent: 0 } => format!("{} IOPS", number(of(iops as f64))),
        Rate { iops: 0, bps, percent: 0 } => format!("{} MB/s", number(of(bps as f64) / 1e6)),
        Rate { iops: 0, bps: 0, percent } => {
            format!("{} % of the device", number(of(f64::from(percent))))
        }
        _ => format!("{} % of it", number(of(100.0))),
    }
}

impl Promise {
    /// The floor in its own units, such as `200 IOPS`; `None` if there is no floor.
    #[must_use]
    pub fn floor(&self) -> Option<String> {
        let reserve = &self.guarantee.reserve;
        (!reserve.is_none()).then(|| amount(reserve, WHOLE))
    }
}

impl GroupTree {
    /// A line for each group whose floor was missed, with the cause of most of the missed seconds, from reports such as
    /// [`QueueTimes::floors`](crate::QueueTimes::floors).
    #[must_use]
    pub fn missed_floors(&self, reports: &[(GroupId, FloorReport)]) -> Vec<String> {
        let lines = reports.iter().filter_map(|(id, report)| {
            let group = self.get(*id)?;
            line(group, &group.promise.floor()?, report)
        });
        lines.collect()
    }
}

fn line(group: &Group, floor: &str, report: &FloorReport) -> Option<String> {
    let cause = report.cause()?;
    let FloorReport { seconds, missed, least, best, .. } = report;
    let mut line = format!(
        "{}: floor {floor} missed in {missed} of {seconds} seconds, least {}; cause: {}",
        group.name,
        amount(&group.promise.guarantee.reserve, *least),
        cause.text(),
    );
    if report.state == FloorState::Infeasible {
        line +=
            &format!("; infeasible at present: the device does {} % of the floors", best / 10_000);
    }
    Some(line)
}

const SUB_BITS: u32 = 5;
const SUB: usize = 1 << SUB_BITS;
/// Times of 2^40 ns (18 minutes) and more share the last bucket.
const BUCKETS: usize = (40 - SUB_BITS as usize + 1) * SUB;

/// The distribution of times of I/Os.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Latencies(Box<[u64]>);

impl Default for Latencies {
    fn default() -> Self {
        Self(vec![0; BUCKETS].into_boxed_slice())
    }
}

impl Latencies {
    #[inline]
    fn index(ns: u64) -> usize {
        let group = ((ns | (SUB as u64 - 1)).ilog2() + 1 - SUB_BITS) as usize;
        if group == 0 {
            return ns as usize;
        }
        let linear = (ns >> (group - 1)) as usize & (SUB - 1);
        (group * SUB + linear).min(BUCKETS - 1)
    }

    /// The longest time in bucket `index`.
    fn end(index: usize) -> u64 {
        let (group, linear) = (index / SUB, (index % SUB) as u64);
        if group == 0 { linear } else { ((SUB as u64 + linear + 1) << (group - 1)) - 1 }
    }

    /// Counts an I/O that took this many nanoseconds.
    #[inline]
    pub(crate) fn record(&mut self, ns: u64) {
        self.0[Self::index(ns)] += 1;
    }

    /// Moves the counts of `other` here.
    pub(crate) fn take(&mut self, other: &mut Self) {
        for (into, from) in self.0.iter_mut().zip(&mut other.0) {
            *into += std::mem::take(from);
        }
    }

    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(into, from)| *into += from);
    }

    /// The non-empty buckets in ascending order: the longest time of the bucket in nanoseconds, and the number of I/Os
    /// in it.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let all = self.0.iter().enumerate().filter(|(_, count)| **count > 0);
        all.map(|(index, count)| (Self::end(index), *count))
    }
}

/// The time for which I/Os of one group waited behind I/Os of another, or of the same group. Never decreases.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wait {
    /// The group that waited.
    pub waiting: GroupIndex,
    /// The group that had requests at the device during the wait; `None` if the device had no requests.
    pub behind: Option<GroupIndex>,
    /// The length of the wait.
    pub time: Nanos,
}

/// The sums of a waiting group.
#[derive(Default)]
struct Row {
    /// Nanoseconds in which the device had no requests.
    alone: u64,
    /// Nanoseconds behind each group, sorted by group.
    behind: Vec<(GroupIndex, u64)>,
}

/// Sums in nanoseconds. A pair takes 16 bytes when it first appears; there are at most 1024 x 1024.
#[derive(Default)]
pub(crate) struct WaitSums {
    /// By waiting group.
    rows: Vec<Row>,
}

impl WaitSums {
    /// Adds nanoseconds that `waiting` has waited behind `behind`. O(log groups).
    pub(crate) fn add(&mut self, waiting: GroupIndex, behind: Option<GroupIndex>, time: u64) {
        let at = usize::from(waiting.0);
        if self.rows.len() <= at {
            self.grow(at + 1);
        }
        let row = &mut self.rows[at];
        let Some(group) = behind else {
            row.alone += time;
            return;
        };
        match row.behind.binary_search_by_key(&group, |(id, _)| *id) {
            Ok(at) => row.behind[at].1 += time,
            Err(at) => row.begin(at, group, time),
        }
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, rows: usize) {
        self.rows.resize_with(rows, Row::default);
    }

    /// All non-zero sums, by waiting group; `None` precedes the groups.
    pub(crate) fn all(&self) -> impl Iterator<Item = Wait> + '_ {
        let rows = (0..).map(GroupIndex).zip(&self.rows);
        let waits = rows.flat_map(|(waiting, row)| {
            let wait = move |(behind, time)| Wait { waiting, behind, time: Nanos(time) };
            row.sums().map(wait)
        });
        waits.filter(|wait| wait.time > Nanos::ZERO)
    }

    /// Passes all non-zero sums to `to`, and resets them. Keeps the memory.
    pub(crate) fn drain(&mut self, to: &mut dyn FnMut(Wait)) {
        self.all().for_each(to);
        for row in &mut self.rows {
            row.alone = 0;
            row.behind.iter_mut().for_each(|(_, time)| *time = 0);
        }
    }

    /// Moves the sums of the group `removed`, waiting or waited for, to `heir`.
    pub(crate) fn inherit(&mut self, removed: GroupIndex, heir: GroupIndex) {
        let mut moved = Vec::new();
        if let Some(row) = self.rows.get_mut(usize::from(removed.0)) {
            let row = std::mem::take(row);
            moved.extend(row.sums().map(|(behind, time)| (heir, behind, time)));
        }
        for (waiting, row) in (0..).map(GroupIndex).zip(&mut self.rows) {
            if let Ok(at) = row.behind.binary_search_by_key(&removed, |(id, _)| *id) {
                moved.push((waiting, Some(removed), row.behind.remove(at).1));
            }
        }
        for (waiting, behind, time) in moved {
            let behind = behind.map(|group| if group == removed { heir } else { group });
            self.add(waiting, behind, time);
        }
    }
}

impl Row {
    fn sums(&self) -> impl Iterator<Item = (Option<GroupIndex>, u64)> {
        let behind = self.behind.iter().map(|(group, time)| (Some(*group), *time));
        [(None, self.alone)].into_iter().chain(behind)
    }

    #[cold]
    #[inline(never)]
    fn begin(&mut self, at: usize, group: GroupIndex, time: u64) {
        self.behind.insert(at, (group, time));
    }
}

/// A request that took longer than [`StatsMode::slow`](super::StatsMode::slow), and where its time went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlowIo {
    /// Its group.
    pub group: GroupIndex,
    /// The operation.
    pub op: Op,
    /// The first sector.
    pub sector: u64,
    /// The length in sectors.
    pub sectors: u32,
    /// The time at which its completion was found.
    pub completed: Instant,
    /// From the arrival until the request had a slot.
    pub slot: Nanos,
    /// In the scheduler, while it could have been picked.
    pub policy: Nanos,
    /// In the scheduler, while there was no driver tag, budget or room at the device.
    pub tag: Nanos,
    /// At the device.
    pub device: Nanos,
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use blkmq_sched::FloorCause;

    fn added(group: u16, parent: u16) -> GroupChange {
        GroupChange::Added { group: GroupIndex(group), parent: GroupIndex(parent), weight: 100 }
    }

    fn one(account: &mut Account, group: u16, op: Op) {
        let mut counted = Counted::default();
        let io = IoMeta { group: GroupIndex(group), ..IoMeta::new(op, 0, 8) };
        counted.completed(
            &io,
            Instant::ZERO,
            false,
            Spent { slot: 1, policy: 2, tag: 3, device: 4, charged: 5 },
        );
        counted.merged(&io, 1);
        account.take(0, &mut counted);
        account.take(0, &mut counted);
    }

    #[test]
    fn counts_are_moved_once_and_add_up() {
        let mut account = Account::default();
        account.regroup(added(1, 0));
        one(&mut account, 1, Op::Read);
        one(&mut account, 1, Op::Read);
        one(&mut account, 0, Op::WriteZeroes);
        let all = account.all();
        assert_eq!(all.iter().map(|(group, _)| group.0).collect::<Vec<_>>(), [0, 1]);
        let read = &all[1].1[0];
        assert_eq!((read.ios, read.bytes, read.merged), (2, 8192, 2));
        assert_eq!((read.slot, read.policy, read.tag, read.device), (2, 4, 6, 8));
        let of = |times: &Latencies| times.buckets().collect::<Vec<_>>();
        assert_eq!([of(&read.queue_times), of(&read.device_times)], [vec![(6, 2)], vec![(4, 2)]]);
        assert_eq!((of(&read.total_times), all[0].1[1].ios), (vec![(10, 2)], 1));
    }

    #[test]
    fn a_moment_with_several_requests_of_a_group_is_busy_once() {
        let mut counted = Counted::default();
        let mut one = |group: u16, op: Op, arrived: u64, ended: u64| {
            let group = GroupIndex(group);
            let io =
                IoMeta { group, arrived: Instant::from_nanos(arrived), ..IoMeta::new(op, 0, 8) };
            let device = ended - arrived;
            let spent = Spent { slot: 0, policy: 0, tag: 0, device, charged: 0 };
            counted.completed(&io, Instant::from_nanos(ended), false, spent);
        };
        one(1, Op::Read, 100, 200);
        one(2, Op::Read, 150, 250);
        one(1, Op::Write, 150, 260);
        one(1, Op::Read, 120, 270);
        one(1, Op::Read, 400, 410);
        let mut account = Account::default();
        account.take(0, &mut counted);
        let busy = |kinds: &[IoTimes; KINDS]| kinds.each_ref().map(|it| it.busy);
        let all = Vec::from_iter(account.all().iter().map(|(_, kinds)| busy(kinds)));
        assert_eq!(all, [[100 + 10 + 10, 60, 0, 0], [100, 0, 0, 0]]);
    }

    #[test]
    fn numbers_of_a_removed_group_and_what_comes_late_are_those_of_the_group_above() {
        let mut account = Account::default();
        account.regroup(added(1, 0));
        account.regroup(added(2, 1));
        one(&mut account, 2, Op::Read);
        account.regroup(GroupChange::Removed { group: GroupIndex(2) });
        one(&mut account, 2, Op::Read);
        assert_eq!(account.all()[0].1[0].ios, 2);
        account.regroup(GroupChange::Removed { group: GroupIndex(1) });
        one(&mut account, 2, Op::Read);
        let all = account.all();
        assert_eq!((all.len(), all[0].0, all[0].1[0].ios), (1, GroupIndex::ROOT, 3));
    }

    #[test]
    fn waits_of_a_removed_group_and_those_that_come_late_are_those_of_the_group_above() {
        let mut account = Account::default();
        (1..4).for_each(|group| account.regroup(added(group, (group == 2).into())));
        let wait = |account: &mut Account, waiting: u16, behind: u16| {
            let mut counted = Counted::default();
            counted.waits.add(GroupIndex(waiting), Some(GroupIndex(behind)), 10);
            account.take(0, &mut counted);
            account.take(0, &mut counted);
        };
        wait(&mut account, 2, 3);
        wait(&mut account, 3, 2);
        account.regroup(GroupChange::Removed { group: GroupIndex(2) });
        wait(&mut account, 2, 3);
        wait(&mut account, 3, 2);
        let all = account.waits().into_iter();
        let all = all.map(|wait| (wait.waiting.0, wait.behind.map(|group| group.0), wait.time.0));
        assert_eq!(all.collect::<Vec<_>>(), [(1, Some(3), 20), (3, Some(1), 20)]);
    }

    #[test]
    fn slow_ios_are_kept_up_to_a_bound_and_the_others_counted() {
        let (mut account, mut counted) = (Account::default(), Counted::default());
        let spent = Spent { slot: 1, policy: 2, tag: 3, device: 4, charged: 5 };
        for sector in 0..100 {
            counted.slow(&IoMeta::new(Op::Read, sector, 8), Instant::ZERO, spent);
        }
        account.take(0, &mut counted);
        let (kept, lost) = account.take_slow();
        assert_eq!((kept.len(), lost, kept[1].sector), (64, 36, 1));
        assert_eq!(account.take_slow(), (Vec::new(), 0));
    }

    #[test]
    fn a_missed_floor_is_told_in_its_own_unit_with_the_cause() {
        let mut tree = GroupTree::default();
        let tell = |tree: &mut GroupTree, words: &str, counts: &dyn Fn(&mut FloorReport)| {
            let _ = tree.add("b", "/");
            let none = Promise::default();
            tree.set_promise("b", none.set(words).expect("right")).expect("there");
            let id = tree.find("b").expect("there");
            let mut report = FloorReport::new(id.index());
            (report.seconds, report.missed, report.least) = (30, 12, 6_500);
            counts(&mut report);
            tree.missed_floors(&[(id, report)])
        };
        let by = |cause: FloorCause| move |it: &mut FloorReport| it.causes[cause as usize] = 12;
        let lines = tell(&mut tree, "reserve_iops=200", &by(FloorCause::Device));
        let expected = "b: floor 200 IOPS missed in 12 of 30 seconds, least 1.3 IOPS; cause: the device holds too much";
        assert_eq!(lines, [expected]);
        let lines = tell(&mut tree, "reserve_bps=50000000", &by(FloorCause::Slots));
        assert!(lines[0].contains("floor 50 MB/s missed") && lines[0].contains("0.3 MB/s"));
        let lines = tell(&mut tree, "reserve_percent=40", &by(FloorCause::Slots));
        assert!(lines[0].contains("floor 40 % of the device"), "{lines:?}");
        let lines = tell(&mut tree, "reserve_percent=40 reserve_iops=1", &by(FloorCause::Slots));
        assert!(lines[0].contains("floor 100 % of it missed"), "{lines:?}");
        let lines = tell(&mut tree, "reserve_iops=200", &|it| {
            by(FloorCause::Infeasible)(it);
            (it.state, it.best) = (FloorState::Infeasible, 570_000);
        });
        assert!(lines[0].ends_with("the device does 57 % of the floors"), "{lines:?}");
        assert_eq!(tell(&mut tree, "reserve_iops=200", &|it| it.missed = 0), [""; 0]);
        assert_eq!(tell(&mut tree, "reserve_iops=0", &by(FloorCause::Slots)), [""; 0]);
    }

    #[test]
    fn a_time_is_in_a_bucket_that_is_at_most_a_32nd_wide() {
        let powers = (12..40).flat_map(|e| [(1u64 << e) - 1, 1 << e, (1 << e) + 1]);
        for ns in (0..1 << 12).chain(powers) {
            let end = Latencies::end(Latencies::index(ns));
            assert!(end >= ns && end - ns <= ns / 32, "{ns} in the bucket up to {end}");
        }
        assert_eq!(Latencies::index(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn what_is_moved_is_in_one_place() {
        let (mut all, mut part) = (Latencies::default(), Latencies::default());
        all.record(7);
        part.record(7);
        part.record(1_000_000);
        all.take(&mut part);
        assert_eq!(part.buckets().count(), 0);
        assert_eq!(all.buckets().map(|(_, count)| count).collect::<Vec<_>>(), [2, 1]);
        all.add(&all.clone());
        assert_eq!(all.buckets().map(|(_, count)| count).sum::<u64>(), 6);
    }

    fn all(sums: &WaitSums) -> Vec<(u16, Option<u16>, u64)> {
        let one = |wait: Wait| (wait.waiting.0, wait.behind.map(|group| group.0), wait.time.0);
        sums.all().map(one).collect()
    }

    fn sums(of: &[(u16, Option<u16>, u64)]) -> WaitSums {
        let mut sums = WaitSums::default();
        for (waiting, behind, time) in of {
            sums.add(GroupIndex(*waiting), behind.map(GroupIndex), *time);
        }
        sums
    }

    #[test]
    fn each_pair_has_a_sum_of_its_own() {
        let mut sums = sums(&[(2, Some(7), 1), (2, Some(1), 10), (0, None, 100), (2, Some(7), 5)]);
        let expected = [(0, None, 100), (2, Some(1), 10), (2, Some(7), 6)];
        assert_eq!(all(&sums), expected);
        let mut drained = WaitSums::default();
        for _ in 0..2 {
            sums.drain(&mut |wait| drained.add(wait.waiting, wait.behind, wait.time.0));
        }
        assert_eq!((all(&drained), all(&sums)), (expected.to_vec(), vec![]));
    }

    #[test]
    fn a_removed_group_leaves_its_sums_to_its_heir_as_one_that_waits_and_as_one_ahead() {
        let mut sums = sums(&[
            (1, None, 1),
            (1, Some(1), 2),
            (1, Some(2), 4),
            (2, Some(1), 8),
            (2, Some(3), 16),
            (3, Some(1), 32),
            (3, Some(2), 64),
        ]);
        sums.inherit(GroupIndex(2), GroupIndex(1));
        let expected =
            [(1, None, 1), (1, Some(1), 2 + 4 + 8), (1, Some(3), 16), (3, Some(1), 32 + 64)];
        assert_eq!(all(&sums), expected);
    }
}
