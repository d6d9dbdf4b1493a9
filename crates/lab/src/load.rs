//! The I/Os of the CPUs of a random scenario: every operation, in patterns that merge, collide and mix.
//!
//! Not a realistic workload; those are in [`workload`](crate::workload). This load searches for unforeseen
//! combinations.

use crate::client::Memory;
use crate::{Client, Permille, Stamp, Want};
use blkmq_core::{
    Class, Deadline, GroupId, Instant, IoFlags, IoPrio, Limits, Nanos, Op, Owner, Payload as _,
    Rng, SECTOR_SIZE,
};
use blkmq_engine::Io;

/// The sectors of I/Os.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pattern {
    /// Each CPU goes sequentially through its own region, next to that of the next CPU.
    Sequential,
    /// Each CPU takes every n-th block of one region, with n the number of CPUs, so that neighbours come from
    /// different CPUs.
    Interleaved,
    /// Each CPU goes backwards through its own region.
    Backwards,
    /// Anywhere in the common region.
    Random,
    /// Anywhere in the first few blocks, so that I/Os overlap.
    Hot,
}

impl Pattern {
    /// Every pattern, with its name.
    pub(crate) const ALL: [(&'static str, Self); 5] = [
        ("sequential", Self::Sequential),
        ("interleaved", Self::Interleaved),
        ("backwards", Self::Backwards),
        ("random", Self::Random),
        ("hot", Self::Hot),
    ];
}

/// Blocks of the hot spot.
const HOT: u64 = 16;

/// The common load of all CPUs of a scenario.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Load {
    /// How the sectors of its I/Os are chosen.
    pub pattern: Pattern,
    /// Weights of reads, writes, flushes, discards and write-zeroes.
    pub ops: [u16; 5],
    /// Blocks of one CPU's region, at least 1; fewer if the device is too small.
    pub region: u64,
    /// The most blocks in an I/O.
    pub blocks: u32,
    /// Owners, at least 1; each I/O has one of them.
    pub owners: u32,
    /// I/Os have priorities of their own.
    pub prios: bool,
    /// The chance that an I/O has flags that bar merging.
    pub flags: Permille,
    /// The chance that an I/O has a deadline. If it is not 0, the queue forecasts.
    pub deadlines: Permille,
    /// The chance that a CPU pauses before an I/O.
    pub pause: Permille,
    /// The longest pause.
    pub pauses: Nanos,
    /// Blocks in each range of memory of a read or write; 0 if it has one range.
    pub range: u32,
}

impl Load {
    /// Sequential writes of one block each.
    pub(crate) const PLAIN: Self = Self {
        pattern: Pattern::Sequential,
        ops: [0, 1, 0, 0, 0],
        region: 4096,
        blocks: 1,
        owners: 1,
        prios: false,
        flags: Permille(0),
        deadlines: Permille(0),
        pause: Permille(0),
        pauses: Nanos::ZERO,
        range: 0,
    };

    /// Blocks behind the regions that an I/O may reach.
    fn beyond(&self) -> u64 {
        HOT + u64::from(self.blocks)
    }

    /// Sectors that a device must have for this load with `cpus` CPUs.
    pub(crate) fn needed(&self, cpus: u16, limits: &Limits) -> u64 {
        let block = u64::from(limits.logical_block_size / SECTOR_SIZE);
        (u64::from(cpus) + self.beyond()) * block
    }

    /// This load with regions that fit.
    fn within(self, cpus: u16, limits: &Limits) -> Self {
        let blocks = limits.capacity / u64::from(limits.logical_block_size / SECTOR_SIZE);
        let most = blocks.saturating_sub(self.beyond()) / u64::from(cpus);
        Self { region: self.region.min(most).max(1), ..self }
    }
}

/// In the order of the weights.
const OPS: [Op; 5] = [Op::Read, Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes];

/// A CPU's number among all CPUs, and its share of the load.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) cpu: u16,
    pub(crate) cpus: u16,
    /// I/Os to submit.
    pub(crate) ios: u32,
    /// Parts that an I/O may have.
    pub(crate) credit: u32,
}

/// The client of one CPU under a [`Load`].
pub(crate) struct LoadClient {
    load: Load,
    limits: Limits,
    /// The root, and the other groups: each I/O is of one of them.
    groups: Vec<GroupId>,
    rng: Rng,
    cpu: u64,
    cpus: u64,
    /// Parts that an I/O may have.
    credit: u32,
    /// I/Os still to be submitted.
    left: u32,
    /// Blocks submitted so far, for the patterns that go through their region.
    cursor: u64,
    paused: Option<Instant>,
}

impl LoadClient {
    /// The client of a CPU for a device with these limits.
    pub(crate) fn new(
        load: Load,
        limits: Limits,
        place: Place,
        groups: Vec<GroupId>,
        seed: u64,
    ) -> Self {
        let Place { cpu, cpus, ios, credit } = place;
        Self {
            load: load.within(cpus, &limits),
            limits,
            groups,
            rng: Rng::new(seed),
            cpu: cpu.into(),
            cpus: cpus.into(),
            credit,
            left: ios,
            cursor: 0,
            paused: None,
        }
    }

    /// Shortens an I/O of at most this many sectors, at this position, to at most `most` parts.
    fn within_parts(&self, most: u32, (op, sector, sectors): (Op, u64, u32)) -> u32 {
        let range = self.load.range * (self.limits.logical_block_size / SECTOR_SIZE);
        let most = most as usize;
        if range == 0 || !matches!(op, Op::Read | Op::Write) {
            let parts = self.limits.parts(op, sector, sectors);
            return parts.take(most).map(|(_, sectors)| sectors).sum();
        }
        let stamp = Stamp::of(&Io::new(op, sector, sectors, 0, 0), Memory { stores: false, range });
        let parts = self.limits.parts_of_list(op, sector, sectors, stamp.ranges());
        let blocks = parts.map(|part| part.expect("ranges of whole blocks can be divided"));
        blocks.take(most).map(|(_, sectors)| sectors).sum()
    }

    fn op(&mut self) -> Op {
        let all: u64 = self.load.ops.iter().map(|weight| u64::from(*weight)).sum();
        let mut at = self.rng.below(all);
        for (op, weight) in OPS.into_iter().zip(self.load.ops) {
            match at.checked_sub(weight.into()) {
                Some(rest) => at = rest,
                None => return op,
            }
        }
        Op::Read
    }

    /// The first block of the next I/O, of `blocks` blocks.
    fn place(&mut self, blocks: u64) -> u64 {
        let Load { pattern, region, .. } = self.load;
        let at = self.cursor % region;
        self.cursor += if pattern == Pattern::Interleaved { 1 } else { blocks };
        match pattern {
            Pattern::Sequential => self.cpu * region + at,
            Pattern::Interleaved => at * self.cpus + self.cpu,
            Pattern::Backwards => (self.cpu + 1) * region - 1 - at,
            Pattern::Random => self.rng.below(self.cpus * region),
            Pattern::Hot => self.rng.below(HOT),
        }
    }

    fn io(&mut self) -> Io<u64> {
        let mut op = self.op();
        if op == Op::Flush {
            return Io::new(op, 0, 0, 0, 0);
        }
        if self.limits.max_sectors_of(op) == 0 {
            op = Op::Write;
        }
        let block = self.limits.logical_block_size / SECTOR_SIZE;
        let wanted = match self.load.pattern {
            Pattern::Interleaved => 1,
            _ => 1 + self.rng.below(self.load.blocks.into()),
        };
        let sector = self.place(wanted) * u64::from(block);
        let sectors = self.within_parts(self.credit, (op, sector, wanted as u32 * block));
        let mut io = Io::new(op, sector, sectors, 0, 0);
        io.owner = Owner(self.rng.below(self.load.owners.into()) as u32);
        if self.groups.len() > 1 {
            io.group = self.groups[self.rng.below(self.groups.len() as u64) as usize];
        }
        if self.load.prios {
            let classes = [Class::None, Class::Realtime, Class::BestEffort, Class::Idle];
            let class = classes[self.rng.below(4) as usize];
            let level = self.rng.below(2) as u16;
            io.ioprio = IoPrio::new(class, level).expect("0 and 1 are levels");
        }
        if self.load.flags.strikes(&mut self.rng) {
            let both = IoFlags::FUA | IoFlags::PREFLUSH;
            let (alone, sync) = (IoFlags::NOMERGE, IoFlags::SYNC);
            let flags = [alone, IoFlags::FUA, IoFlags::PREFLUSH, both, sync, IoFlags::NOWAIT];
            io.flags = flags[self.rng.below(flags.len() as u64) as usize];
        }
        if io.flags.contains(IoFlags::NOWAIT) {
            io.sectors = self.within_parts(1, (op, sector, io.sectors));
        }
        if self.load.deadlines.strikes(&mut self.rng) {
            // From a microsecond to a second.
            let within = Nanos::from_micros(1 << self.rng.below(21));
            let serves = self.rng.chance(1, 4);
            io.deadline = if serves { Deadline::serve(within) } else { Deadline::reject(within) };
        }
        io
    }
}

impl Client for LoadClient {
    fn next(&mut self, now: Instant, _in_flight: u32) -> Want {
        if self.left == 0 {
            return Want::Nothing;
        }
        if self.paused.is_none() && self.load.pause.strikes(&mut self.rng) {
            self.paused = Some(now + Nanos(self.rng.below(self.load.pauses.0 + 1)));
        }
        if let Some(until) = self.paused.filter(|until| *until > now) {
            return Want::At(until);
        }
        self.paused = None;
        self.left -= 1;
        Want::Io(self.io())
    }
}
