//! Statistics of groups, from the notes of a policy (`spec/bfq.md` section 17), by cgroup v1's names without prefix.
//!
//! A plain state machine. The caller feeds it with [`Note`]s in any order, or with sums of them, and with every
//! [`GroupChange`]; it neither locks nor knows the time. Applying a note is O(1) and allocates nothing; reading with
//! `_recursive` is O(groups).
//!
//! The numbers of a removed group go to its parent, and so do notes that arrive later in its name. So sums over a
//! subtree never decrease.
//!
//! [`Tallies`] are sums over many notes, for a policy that writes notes faster than the statistics should process them:
//! the statistics are sums, so notes need not be kept one by one.

use crate::{About, Direction, Event, GroupChange, Note};
use alloc::vec::Vec;
use blkmq_core::{GroupIndex, Nanos, Op, SECTOR_SIZE};

/// A count by direction. Each I/O counts once among `read`, `write` and `discard`, and once among `sync` and
/// `unsynced`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flow {
    /// Reads.
    pub read: u64,
    /// Writes, including zeroes.
    pub write: u64,
    /// Discards.
    pub discard: u64,
    /// I/O that a submitter waits for.
    pub sync: u64,
    /// I/O that no submitter waits for (`Async`).
    pub unsynced: u64,
}

impl Flow {
    /// The names of the rows of a flow as cgroup prints them, in its order, and their values.
    #[must_use]
    pub fn rows(&self) -> [(&'static str, u64); 6] {
        [
            ("Read", self.read),
            ("Write", self.write),
            ("Sync", self.sync),
            ("Async", self.unsynced),
            ("Discard", self.discard),
            ("Total", self.total()),
        ]
    }

    /// The sum over all directions.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.read + self.write + self.discard
    }

    #[inline]
    fn change(&mut self, about: About, change: impl Fn(u64) -> u64) {
        let by_direction = match about.direction() {
            Direction::Read => &mut self.read,
            Direction::Write => &mut self.write,
            Direction::Discard => &mut self.discard,
        };
        *by_direction = change(*by_direction);
        let by_wait = if about.is_sync() { &mut self.sync } else { &mut self.unsynced };
        *by_wait = change(*by_wait);
    }

    #[inline]
    fn add(&mut self, about: About, amount: u64) {
        self.change(about, |n| n.saturating_add(amount));
    }

    fn join(&mut self, other: &Self) {
        self.read += other.read;
        self.write += other.write;
        self.discard += other.discard;
        self.sync += other.sync;
        self.unsynced += other.unsynced;
    }
}

/// The activity of a group since it was created, or since counting began: the counts from which iostat computes its
/// columns. They never decrease.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GroupIo {
    /// Completed requests. I/Os merged into a request do not count separately.
    pub ios: Flow,
    /// Bytes of the completed requests.
    pub bytes: Flow,
    /// I/Os that were merged into another request in the scheduler.
    pub merged: Flow,
    /// Sum of the nanoseconds from the arrival of a request until it was issued.
    pub wait: Flow,
    /// Sum of the nanoseconds that requests were at the device.
    pub service: Flow,
}

/// The value of one statistic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reading {
    /// A count by direction.
    Flow(Flow),
    /// A single number. Times are in nanoseconds.
    Number(u64),
}

/// The statistics counted by direction, in the order of [`FLOWS`].
#[derive(Clone, Copy)]
enum Kind {
    Bytes,
    Serviced,
    ServiceTime,
    WaitTime,
    Merged,
    Queued,
}

/// Statistics by direction: bytes and I/Os completed, nanoseconds at the device, nanoseconds in the scheduler, I/Os
/// merged into others, and requests waiting at present. Each has a `_recursive` form as well.
pub const FLOWS: &[&str] = &[
    "io_service_bytes",
    "io_serviced",
    "io_service_time",
    "io_wait_time",
    "io_merged",
    "io_queued",
];

/// Single numbers that have a `_recursive` form as well: nanoseconds in service, and sectors served.
pub const SUMS: &[&str] = &["time", "sectors"];

/// Single numbers of a group alone: the average number of waiting requests when the group was served; the nanoseconds
/// for which it waited for its turn, for which the device was kept idle for it, and for which it had no requests; and
/// the number of times that one of its queues ran out of requests.
pub const NUMBERS: &[&str] =
    &["avg_queue_size", "group_wait_time", "idle_time", "empty_time", "dequeue"];

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    flows: [Flow; FLOWS.len()],
    time: u64,
    sectors: u64,
    queue_sizes: u64,
    samples: u64,
    waited: u64,
    idle: u64,
    empty: u64,
    dequeued: u64,
}

impl Counts {
    /// Adds the numbers of `other`.
    fn join(&mut self, other: &Self) {
        self.flows.iter_mut().zip(&other.flows).for_each(|(own, more)| own.join(more));
        self.time += other.time;
        self.sectors += other.sectors;
        self.queue_sizes += other.queue_sizes;
        self.samples += other.samples;
        self.waited += other.waited;
        self.idle += other.idle;
        self.empty += other.empty;
        self.dequeued += other.dequeued;
    }

    fn flow(&mut self, kind: Kind) -> &mut Flow {
        &mut self.flows[kind as usize]
    }

    /// Counts a request that stops waiting. It may have been queued before counting began.
    fn unqueue(&mut self, about: About) {
        self.flow(Kind::Queued).change(about, |n| n.saturating_sub(1));
    }

    fn apply(&mut self, note: &Note) {
        let about = note.about;
        match note.what {
            Event::Queued => self.flow(Kind::Queued).add(about, 1),
            Event::Unqueued => self.unqueue(about),
            Event::Merged => self.flow(Kind::Merged).add(about, 1),
            Event::Served(sectors) => {
                self.unqueue(about);
                self.sectors += u64::from(sectors);
            }
            Event::Completed { bytes, wait, service } => {
                self.flow(Kind::Bytes).add(about, bytes.into());
                self.flow(Kind::Serviced).add(about, 1);
                self.flow(Kind::WaitTime).add(about, wait.0);
                self.flow(Kind::ServiceTime).add(about, service.0);
            }
            Event::Time(Nanos(span)) => self.time += span,
            Event::Idle(Nanos(span)) => self.idle += span,
            Event::Empty(Nanos(span)) => self.empty += span,
            Event::Waited(Nanos(span)) => self.waited += span,
            Event::Dequeued => self.dequeued += 1,
            Event::QueueSize(size) => {
                self.queue_sizes += u64::from(size);
                self.samples += 1;
            }
        }
    }

    fn sum(&self, name: &str) -> Option<Reading> {
        if let Some(kind) = FLOWS.iter().position(|flow| *flow == name) {
            return Some(Reading::Flow(self.flows[kind]));
        }
        match name {
            "time" => Some(Reading::Number(self.time)),
            "sectors" => Some(Reading::Number(self.sectors)),
            _ => None,
        }
    }

    fn number(&self, name: &str) -> Option<u64> {
        Some(match name {
            "avg_queue_size" => self.queue_sizes.checked_div(self.samples).unwrap_or(0),
            "group_wait_time" => self.waited,
            "idle_time" => self.idle,
            "empty_time" => self.empty,
            "dequeue" => self.dequeued,
            _ => return None,
        })
    }
}

/// An existing group.
#[derive(Clone, Copy, Debug)]
struct Member {
    id: GroupIndex,
    /// The place of the parent group; the root is its own parent.
    parent: usize,
    counts: Counts,
}

/// The statistics of all groups of a queue.
#[derive(Clone, Debug)]
pub struct GroupStats {
    /// The root is the first. A removed group leaves a free place.
    members: Vec<Option<Member>>,
    /// By group: the place of its numbers, or, for a removed group, the place of the group that has inherited them.
    places: Vec<usize>,
}

impl Default for GroupStats {
    fn default() -> Self {
        Self::new()
    }
}

impl GroupStats {
    /// Only the root, with all counts zero.
    #[must_use]
    pub fn new() -> Self {
        let root = Member { id: GroupIndex::ROOT, parent: 0, counts: Counts::default() };
        Self { members: alloc::vec![Some(root)], places: alloc::vec![0] }
    }

    /// The tree of groups has changed. Allocates if a group is added; O(groups) if one is removed.
    pub fn regroup(&mut self, change: GroupChange) {
        match change {
            GroupChange::Added { group, parent, .. } => self.add(group, self.place(parent)),
            GroupChange::Weight { .. } | GroupChange::Guarantee { .. } => {}
            GroupChange::Removed { group } => self.remove(group),
        }
    }

    fn add(&mut self, id: GroupIndex, parent: usize) {
        let free = self.members.iter().position(Option::is_none);
        let place = free.unwrap_or(self.members.len());
        if place == self.members.len() {
            self.members.push(None);
        }
        self.members[place] = Some(Member { id, parent, counts: Counts::default() });
        let name = usize::from(id.0);
        if self.places.len() <= name {
            self.places.resize(name + 1, 0);
        }
        self.places[name] = place;
    }

    fn remove(&mut self, group: GroupIndex) {
        let place = self.place(group);
        let Some(gone) = self.members[place] else { return };
        if place == 0 || gone.id != group {
            return;
        }
        self.members[place] = None;
        if let Some(parent) = &mut self.members[gone.parent] {
            parent.counts.join(&gone.counts);
        }
        self.places.iter_mut().filter(|at| **at == place).for_each(|at| *at = gone.parent);
    }

    /// The place of a group's numbers; the root's for an unknown group.
    #[inline]
    fn place(&self, group: GroupIndex) -> usize {
        self.places.get(usize::from(group.0)).copied().unwrap_or(0)
    }

    /// Takes a note into account. O(1).
    #[inline]
    pub fn apply(&mut self, note: &Note) {
        let place = self.place(note.about.group());
        if let Some(member) = &mut self.members[place] {
            member.counts.apply(note);
        }
    }

    /// Takes many notes into account. O(1).
    #[inline]
    pub fn apply_tally(&mut self, tally: &Tally) {
        let place = self.place(tally.group());
        if let Some(member) = &mut self.members[place] {
            tally.count(&mut member.counts);
        }
    }

    /// Every name that can be read, and whether in its `_recursive` form.
    pub fn names() -> impl Iterator<Item = (&'static str, bool)> {
        let both = FLOWS.iter().chain(SUMS).flat_map(|name| [(*name, false), (*name, true)]);
        both.chain(NUMBERS.iter().map(|name| (*name, false)))
    }

    /// The statistic `name` of a group: one of [`FLOWS`], [`SUMS`] or [`NUMBERS`]. Names of the first two also exist
    /// with the suffix `_recursive`, for the group and all groups below it. `None` if there is no such name or group.
    #[must_use]
    pub fn read(&self, group: GroupIndex, name: &str) -> Option<Reading> {
        let place = self.place(group);
        let member = self.members[place].as_ref().filter(|member| member.id == group)?;
        match name.strip_suffix("_recursive") {
            Some(name) => self.subtree(place).sum(name),
            None => {
                let number = member.counts.number(name).map(Reading::Number);
                member.counts.sum(name).or(number)
            }
        }
    }

    /// The activity of a group and all groups below it; `None` if there is no such group. O(groups).
    #[must_use]
    pub fn io(&self, group: GroupIndex) -> Option<GroupIo> {
        let place = self.place(group);
        self.members[place].as_ref().filter(|member| member.id == group)?;
        let flows = self.subtree(place).flows;
        let of = |kind: Kind| flows[kind as usize];
        Some(GroupIo {
            ios: of(Kind::Serviced),
            bytes: of(Kind::Bytes),
            merged: of(Kind::Merged),
            wait: of(Kind::WaitTime),
            service: of(Kind::ServiceTime),
        })
    }

    /// The sum over a group and all groups below it.
    fn subtree(&self, top: usize) -> Counts {
        let mut all = Counts::default();
        for (place, member) in self.members.iter().enumerate() {
            if let Some(member) = member
                && self.is_below(place, top)
            {
                all.join(&member.counts);
            }
        }
        all
    }

    fn is_below(&self, place: usize, top: usize) -> bool {
        let mut at = place;
        while at != top && at != 0 {
            at = self.members[at].as_ref().map_or(0, |member| member.parent);
        }
        at == top
    }
}

/// The sum of the notes about one kind of I/O of one group. Two cache lines: requests, and turns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C, align(64))]
pub struct Tally {
    about: About,
    /// Change in the number of waiting requests.
    waiting: i64,
    merged: u64,
    completed: u64,
    sectors: u64,
    bytes: u64,
    wait: u64,
    service: u64,
    turns: Turns,
}

/// Events that happen at most once in a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Turns {
    time: u64,
    idle: u64,
    empty: u64,
    waited: u64,
    dequeued: u64,
    queue_sizes: u64,
    samples: u64,
}

const _: () = assert!(size_of::<Tally>() == 128 && core::mem::offset_of!(Tally, turns) == 64);

impl Tally {
    const fn new(about: About) -> Self {
        Self {
            about,
            waiting: 0,
            merged: 0,
            completed: 0,
            sectors: 0,
            bytes: 0,
            wait: 0,
            service: 0,
            turns: Turns {
                time: 0,
                idle: 0,
                empty: 0,
                waited: 0,
                dequeued: 0,
                queue_sizes: 0,
                samples: 0,
            },
        }
    }

    /// The group that the notes are about.
    #[must_use]
    pub fn group(&self) -> GroupIndex {
        self.about.group()
    }

    /// Adds one event.
    #[inline(always)]
    fn add(&mut self, what: Event) {
        match what {
            Event::Queued => self.waiting += 1,
            Event::Unqueued => self.waiting -= 1,
            Event::Merged => self.merged += 1,
            Event::Served(sectors) => {
                self.waiting -= 1;
                self.sectors += u64::from(sectors);
            }
            Event::Completed { bytes, wait, service } => {
                self.completed += 1;
                self.bytes += u64::from(bytes);
                self.wait += wait.0;
                self.service += service.0;
            }
            Event::Time(span) => self.turns.time += span.0,
            Event::Idle(span) => self.turns.idle += span.0,
            Event::Empty(span) => self.turns.empty += span.0,
            Event::Waited(span) => self.turns.waited += span.0,
            Event::Dequeued => self.turns.dequeued += 1,
            Event::QueueSize(size) => {
                self.turns.queue_sizes += u64::from(size);
                self.turns.samples += 1;
            }
        }
    }

    /// Adds a completed request whose waiting was not noted.
    #[inline(always)]
    fn add_whole(&mut self, bytes: u32, wait: Nanos, service: Nanos) {
        self.completed += 1;
        self.bytes += u64::from(bytes);
        self.sectors += u64::from(bytes / SECTOR_SIZE);
        self.wait += wait.0;
        self.service += service.0;
    }

    /// Adds the sums to `counts`.
    fn count(&self, counts: &mut Counts) {
        let about = self.about;
        // Some requests may have begun to wait before counting began.
        counts.flow(Kind::Queued).change(about, |n| n.saturating_add_signed(self.waiting));
        for (kind, sum) in [
            (Kind::Bytes, self.bytes),
            (Kind::Serviced, self.completed),
            (Kind::ServiceTime, self.service),
            (Kind::WaitTime, self.wait),
            (Kind::Merged, self.merged),
        ] {
            counts.flow(kind).add(about, sum);
        }
        counts.sectors += self.sectors;
        let Turns { time, idle, empty, waited, dequeued, queue_sizes, samples } = self.turns;
        counts.time += time;
        counts.idle += idle;
        counts.empty += empty;
        counts.waited += waited;
        counts.dequeued += dequeued;
        counts.queue_sizes += queue_sizes;
        counts.samples += samples;
    }
}

/// The number of open tallies.
const PLACES: usize = 8;
/// The place of a tally among the open ones. The kinds of I/O of one group have different places.
#[inline]
const fn place(about: About) -> usize {
    (about.word() ^ about.word() >> 3) as usize % PLACES
}

/// Open tallies, each about one kind of I/O of one group. Adding a note is O(1).
#[derive(Clone, Debug)]
pub struct Tallies {
    open: [Tally; PLACES],
    /// The places in use, a bit each. Free places are about [`NOTHING`].
    used: u32,
    /// Tallies whose place was taken by another one.
    full: Vec<Tally>,
}

/// The subject of a free place: a group that no policy has, of a kind that has another place.
const NOTHING: [About; PLACES] = {
    let mut nothing = [About::new(GroupIndex(u16::MAX), Op::Read, false); PLACES];
    nothing[place(nothing[0])] = About::new(GroupIndex(u16::MAX), Op::Read, true);
    nothing
};

impl Default for Tallies {
    fn default() -> Self {
        Self { open: NOTHING.map(Tally::new), used: 0, full: Vec::new() }
    }
}

impl Tallies {
    /// Adds a note.
    // Always inline, so that `what` need not be in memory.
    #[inline(always)]
    pub fn add(&mut self, about: About, what: Event) {
        let place = place(about);
        if self.open[place].about != about {
            self.make_room(place, about);
        }
        self.open[place].add(what);
    }

    /// Adds a completed request whose waiting was not noted: [`Event::Served`] and [`Event::Completed`] in one, except
    /// for the number of waiting requests.
    #[inline(always)]
    pub fn add_whole(&mut self, about: About, bytes: u32, wait: Nanos, service: Nanos) {
        let place = place(about);
        if self.open[place].about != about {
            self.make_room(place, about);
        }
        self.open[place].add_whole(bytes, wait, service);
    }

    #[cold]
    #[inline(never)]
    fn make_room(&mut self, place: usize, about: About) {
        let bit = 1 << place;
        if self.used & bit != 0 {
            self.full.push(self.open[place]);
        }
        self.used |= bit;
        self.open[place] = Tally::new(about);
    }

    /// Returns whether no note has been added since the last [`drain`](Self::drain).
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        // A tally is moved to `full` only when another one takes its place.
        self.used == 0
    }

    /// Passes all tallies to `take` and empties them.
    pub fn drain(&mut self, mut take: impl FnMut(Tally)) {
        self.full.drain(..).for_each(&mut take);
        let mut used = core::mem::take(&mut self.used);
        while used != 0 {
            let place = used.trailing_zeros() as usize;
            take(core::mem::replace(&mut self.open[place], Tally::new(NOTHING[place])));
            used &= used - 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(group: u16, op: Op, what: Event) -> Note {
        Note { about: About::new(GroupIndex(group), op, op == Op::Read), what }
    }

    fn number(stats: &GroupStats, group: u16, name: &str) -> u64 {
        match stats.read(GroupIndex(group), name) {
            Some(Reading::Number(n)) => n,
            other => panic!("{name} of {group}: {other:?}"),
        }
    }

    fn flow(stats: &GroupStats, group: u16, name: &str) -> Flow {
        match stats.read(GroupIndex(group), name) {
            Some(Reading::Flow(flow)) => flow,
            other => panic!("{name} of {group}: {other:?}"),
        }
    }

    fn add(stats: &mut GroupStats, group: u16, parent: u16) {
        let (group, parent) = (GroupIndex(group), GroupIndex(parent));
        stats.regroup(GroupChange::Added { group, parent, weight: 100 });
    }

    #[test]
    fn each_io_counts_once_by_direction_and_once_by_who_waits() {
        let mut stats = GroupStats::new();
        let done = Event::Completed { bytes: 512, wait: Nanos(3), service: Nanos(5) };
        for op in [Op::Read, Op::Write, Op::WriteZeroes, Op::Discard] {
            stats.apply(&note(0, op, done));
        }
        let bytes = flow(&stats, 0, "io_service_bytes");
        let expected = Flow { read: 512, write: 1_024, discard: 512, sync: 512, unsynced: 1_536 };
        assert_eq!(bytes, expected);
        assert_eq!(flow(&stats, 0, "io_serviced").total(), 4);
        assert_eq!(flow(&stats, 0, "io_wait_time").total(), 12);
        assert_eq!(flow(&stats, 0, "io_service_time").rows()[5], ("Total", 20));
    }

    #[test]
    fn what_waits_rises_and_falls_and_never_below_nothing() {
        let mut stats = GroupStats::new();
        stats.apply(&note(0, Op::Read, Event::Unqueued));
        stats.apply(&note(0, Op::Read, Event::Queued));
        stats.apply(&note(0, Op::Read, Event::Queued));
        stats.apply(&note(0, Op::Read, Event::Unqueued));
        assert_eq!(flow(&stats, 0, "io_queued").read, 1);
    }

    #[test]
    fn tallies_come_to_what_their_notes_come_to_one_by_one() {
        let mut rng = blkmq_core::Rng::new(7);
        let (mut single, mut summed) = (GroupStats::new(), GroupStats::new());
        for group in 1..6 {
            add(&mut single, group, group / 2);
            add(&mut summed, group, group / 2);
        }
        let mut tallies = Tallies::default();
        let mut waiting = Vec::new();
        for _ in 0..if cfg!(miri) { 300 } else { 10_000 } {
            let op = [Op::Read, Op::Write, Op::Discard][rng.below(3) as usize];
            let about = About::new(GroupIndex(rng.below(6) as u16), op, rng.below(2) == 0);
            let span = Nanos(rng.below(99));
            let mut note = Note { about, what: Event::Queued };
            let picked = (!waiting.is_empty()).then(|| rng.below(waiting.len() as u64) as usize);
            match (rng.below(12), picked) {
                (0, Some(old)) => note = Note { what: Event::Unqueued, ..waiting.swap_remove(old) },
                (1 | 2, Some(old)) => {
                    note = Note { what: Event::Served(8), ..waiting.swap_remove(old) };
                }
                (3, _) => note.what = Event::Merged,
                (4, _) => {
                    note.what = Event::Completed { bytes: 4_096, wait: span, service: span };
                }
                (5, _) => note.what = Event::Time(span),
                (6, _) => note.what = Event::Idle(span),
                (7, _) => note.what = Event::Empty(span),
                (8, _) => note.what = Event::Waited(span),
                (9, _) => note.what = Event::Dequeued,
                (10, _) => note.what = Event::QueueSize(span.0 as u32),
                _ => waiting.push(note),
            }
            single.apply(&note);
            tallies.add(note.about, note.what);
            if rng.below(40) == 0 {
                tallies.drain(|tally| summed.apply_tally(&tally));
            }
        }
        tallies.drain(|tally| summed.apply_tally(&tally));
        assert!(tallies.is_empty());
        for (group, (name, _)) in
            (0..6).flat_map(|group| GroupStats::names().map(move |n| (group, n)))
        {
            let group = GroupIndex(group);
            assert_eq!(single.read(group, name), summed.read(group, name), "{name} of {group:?}");
        }
        assert!(flow(&summed, 3, "io_serviced").total() > 100);
    }

    #[test]
    fn spans_are_added_up() {
        let mut stats = GroupStats::new();
        for ms in [1, 2, 30] {
            let span = Nanos::from_millis(ms);
            stats.apply(&note(0, Op::Read, Event::Idle(span)));
            stats.apply(&note(0, Op::Read, Event::Empty(Nanos(2 * span.0))));
            stats.apply(&note(0, Op::Read, Event::Waited(Nanos(3 * span.0))));
        }
        assert_eq!(number(&stats, 0, "idle_time"), 33_000_000);
        assert_eq!(number(&stats, 0, "empty_time"), 66_000_000);
        assert_eq!(number(&stats, 0, "group_wait_time"), 99_000_000);
    }

    #[test]
    fn the_queue_size_is_an_average() {
        let mut stats = GroupStats::new();
        assert_eq!(number(&stats, 0, "avg_queue_size"), 0);
        for size in [4, 6, 9] {
            stats.apply(&note(0, Op::Read, Event::QueueSize(size)));
        }
        assert_eq!(number(&stats, 0, "avg_queue_size"), 6);
    }

    #[test]
    fn a_removed_group_leaves_every_number_to_its_parent_and_sums_stay() {
        let mut stats = GroupStats::new();
        add(&mut stats, 1, 0);
        add(&mut stats, 2, 1);
        add(&mut stats, 3, 1);
        for (group, weight) in [(0, 1), (1, 10), (2, 100), (3, 1_000)] {
            stats.apply(&note(group, Op::Read, Event::Time(Nanos(weight))));
            stats.apply(&note(group, Op::Write, Event::Served(weight as u32)));
            stats.apply(&note(group, Op::Write, Event::Merged));
            stats.apply(&note(group, Op::Write, Event::Dequeued));
            stats.apply(&note(group, Op::Read, Event::QueueSize(weight as u32)));
        }
        assert_eq!(number(&stats, 1, "time_recursive"), 1_110);
        stats.regroup(GroupChange::Removed { group: GroupIndex(2) });
        assert_eq!(number(&stats, 1, "time"), 110, "and not only the counter of the gone group");
        assert_eq!(number(&stats, 1, "sectors"), 110);
        assert_eq!(flow(&stats, 1, "io_merged").write, 2);
        assert_eq!(number(&stats, 1, "dequeue"), 2);
        assert_eq!(number(&stats, 1, "avg_queue_size"), 55);
        assert_eq!(number(&stats, 1, "time_recursive"), 1_110);
        assert_eq!(number(&stats, 0, "sectors_recursive"), 1_111);
        assert_eq!(stats.read(GroupIndex(2), "time"), None);
    }

    #[test]
    fn notes_in_the_name_of_a_removed_group_are_its_parents() {
        let mut stats = GroupStats::new();
        add(&mut stats, 1, 0);
        add(&mut stats, 2, 1);
        stats.regroup(GroupChange::Removed { group: GroupIndex(2) });
        stats.apply(&note(2, Op::Read, Event::Time(Nanos(7))));
        assert_eq!(number(&stats, 1, "time"), 7);
        stats.regroup(GroupChange::Removed { group: GroupIndex(1) });
        stats.apply(&note(2, Op::Read, Event::Time(Nanos(1))));
        assert_eq!(number(&stats, 0, "time"), 8);
        // A reused name begins with zero.
        add(&mut stats, 2, 0);
        assert_eq!(number(&stats, 2, "time"), 0);
        stats.apply(&note(9, Op::Read, Event::Time(Nanos(1))));
        assert_eq!(number(&stats, 0, "time"), 9, "nobody knows group 9");
    }

    #[test]
    fn every_name_can_be_read_and_no_other() {
        let stats = GroupStats::new();
        assert_eq!(GroupStats::names().count(), 2 * (6 + 2) + 5);
        for (name, recursive) in GroupStats::names() {
            let name = if recursive { [name, "_recursive"].concat() } else { name.into() };
            assert!(stats.read(GroupIndex::ROOT, &name).is_some(), "{name}");
        }
        assert_eq!(stats.read(GroupIndex::ROOT, "dequeue_recursive"), None);
        assert_eq!(stats.read(GroupIndex::ROOT, "no_such"), None);
        assert_eq!(stats.read(GroupIndex(3), "time"), None);
    }
}
