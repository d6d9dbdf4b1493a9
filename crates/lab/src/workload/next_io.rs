//! [`NextIo`], an I/O that a thread of a job issues: its direction, the meaning of a job's `rw`, and its length, fio's
//! `bs`, `bsrange` and `bssplit`; and [`Tape`], the I/Os of a recording, each with its time, as the stream of a thread.
//!
//! In an open loop each I/O of a tape leaves at its time after the start, whatever the device does. An I/O that drains
//! waits for all earlier ones, and its time counts from then: so a replay of a process that waited for its answers
//! waits for those of this device.

use blkmq_core::{Histogram, Instant, IoFlags, IoPrio, Nanos, Op, Rng, SECTOR_SIZE};
use std::fmt;
use std::ops::{Index, IndexMut};
use std::sync::Arc;

/// fio's data directions, in the order in which it lists them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Direction {
    /// From the device.
    Read = 0,
    /// To the device.
    Write = 1,
    /// fio's word for a discard.
    Trim = 2,
}

impl Direction {
    /// All directions, in fio's order.
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Trim];

    /// The name as fio prints it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Trim => "trim",
        }
    }

    /// The operation that the block layer sees.
    #[must_use]
    pub const fn op(self) -> Op {
        match self {
            Self::Read => Op::Read,
            Self::Write => Op::Write,
            Self::Trim => Op::Discard,
        }
    }

    /// The direction that counts `op`; `None` for a flush, which has none.
    #[must_use]
    pub const fn of(op: Op) -> Option<Self> {
        match op {
            Op::Read => Some(Self::Read),
            Op::Write | Op::WriteZeroes => Some(Self::Write),
            Op::Discard => Some(Self::Trim),
            Op::Flush => None,
        }
    }
}

/// One value for each direction: fio's `r,w,t`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PerDirection<T>([T; 3]);

impl<T> PerDirection<T> {
    /// Values for reads, writes and trims.
    #[must_use]
    pub const fn new(read: T, write: T, trim: T) -> Self {
        Self([read, write, trim])
    }

    /// Uses `value` for all directions.
    #[must_use]
    pub fn all(value: T) -> Self
    where
        T: Clone,
    {
        Self([value.clone(), value.clone(), value])
    }

    /// The values in fio's order.
    pub fn iter(&self) -> impl Iterator<Item = (Direction, &T)> {
        Direction::ALL.into_iter().zip(&self.0)
    }
}

impl<T> Index<Direction> for PerDirection<T> {
    type Output = T;
    fn index(&self, direction: Direction) -> &T {
        &self.0[direction as usize]
    }
}

impl<T> IndexMut<Direction> for PerDirection<T> {
    fn index_mut(&mut self, direction: Direction) -> &mut T {
        &mut self.0[direction as usize]
    }
}

/// The pattern of a job, with fio's names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Rw {
    /// Sequential reads.
    #[default]
    Read,
    /// Sequential writes.
    Write,
    /// Sequential discards.
    Trim,
    /// Random reads.
    RandRead,
    /// Random writes.
    RandWrite,
    /// Random discards.
    RandTrim,
    /// Two sequential streams, reads and writes, mixed by `rwmixread`.
    ReadWrite,
    /// Random reads and writes, mixed by `rwmixread`.
    RandRw,
    /// Each block is discarded and then written, in sequence.
    TrimWrite,
    /// Each block is discarded and then written, at random offsets.
    RandTrimWrite,
}

impl Rw {
    /// Every pattern with its fio names, the first being the one that is printed.
    pub const NAMES: [(Self, &'static [&'static str]); 10] = [
        (Self::Read, &["read"]),
        (Self::Write, &["write"]),
        (Self::Trim, &["trim"]),
        (Self::RandRead, &["randread"]),
        (Self::RandWrite, &["randwrite"]),
        (Self::RandTrim, &["randtrim"]),
        (Self::ReadWrite, &["rw", "readwrite"]),
        (Self::RandRw, &["randrw"]),
        (Self::TrimWrite, &["trimwrite"]),
        (Self::RandTrimWrite, &["randtrimwrite"]),
    ];

    /// The pattern that fio calls `name`.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(_, names)| names.contains(&name)).map(|(rw, _)| *rw)
    }

    /// Returns whether offsets are drawn at random.
    #[must_use]
    pub const fn is_random(self) -> bool {
        matches!(
            self,
            Self::RandRead | Self::RandWrite | Self::RandTrim | Self::RandRw | Self::RandTrimWrite
        )
    }

    /// The directions that the pattern issues.
    #[must_use]
    pub const fn directions(self) -> &'static [Direction] {
        match self {
            Self::Read | Self::RandRead => &[Direction::Read],
            Self::Write | Self::RandWrite => &[Direction::Write],
            Self::Trim | Self::RandTrim => &[Direction::Trim],
            Self::ReadWrite | Self::RandRw => &[Direction::Read, Direction::Write],
            Self::TrimWrite | Self::RandTrimWrite => &[Direction::Trim, Direction::Write],
        }
    }
}

impl fmt::Display for Rw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Self::NAMES.iter().find(|(rw, _)| rw == self).map(|(_, names)| names[0]);
        f.write_str(names.expect("every pattern is in the table"))
    }
}

/// The next I/O of a workload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NextIo {
    /// The operation. A [`Op::Flush`] carries no sectors.
    pub op: Op,
    /// Sync for reads, and for writes of `direct` and `sync` jobs; FUA for writes of `sync` jobs.
    pub flags: IoFlags,
    /// The job's priority, or that of `cmdprio`.
    pub prio: IoPrio,
    /// Length in sectors.
    pub sectors: u32,
    /// First sector.
    pub sector: u64,
}

impl NextIo {
    /// A flush of the device's cache, which a thread waits for.
    pub(super) fn flush(prio: IoPrio) -> Self {
        Self { op: Op::Flush, flags: IoFlags::SYNC, prio, sectors: 0, sector: 0 }
    }
}

/// The lengths that one direction of a job uses, in bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BlockSize {
    /// Always the same (`bs`).
    Fixed(u32),
    /// Any multiple of `min` up to `max`, and `max` itself (`bsrange`). As in fio, all numbers of sectors up to `max`
    /// are equally likely, and are rounded up.
    Range {
        /// Smallest.
        min: u32,
        /// Largest.
        max: u32,
    },
    /// Each size with its share in percent (`bssplit`); the shares sum to 100. As in fio, sizes are rounded down to
    /// multiples of the smallest.
    Split(Vec<(u32, u8)>),
}

/// Block sizes that cannot be issued.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BlockSizeError {
    /// Zero, or no multiple of a sector.
    #[error("{0} bytes; accepted are multiples of 512 bytes from 512 to 1g, such as {near}", near = accepted(*.0))]
    NotSectors(u32),
    /// More than a gigabyte in one I/O.
    #[error("{0} bytes; accepted is up to 1g")]
    TooLarge(u32),
    /// A range that ends below its start.
    #[error("the range {0}-{1} is empty; accepted: smallest-largest")]
    Inverted(u32, u32),
    /// Shares that sum to this, not to 100.
    #[error("the shares sum to {0} percent; accepted is 100")]
    Shares(u32),
}

/// The next size that is accepted.
fn accepted(bytes: u32) -> u32 {
    bytes.clamp(1, BlockSize::MAX).next_multiple_of(SECTOR_SIZE)
}

impl BlockSize {
    /// The longest I/O that a job may ask for, in bytes.
    pub const MAX: u32 = 1 << 30;

    /// The smallest size that can occur, in bytes. Random offsets are multiples of it.
    #[must_use]
    pub fn min(&self) -> u32 {
        match self {
            Self::Fixed(bs) => *bs,
            Self::Range { min, .. } => *min,
            Self::Split(parts) => parts.iter().map(|(bs, _)| *bs).min().unwrap_or(0),
        }
    }

    /// Returns whether there is one size only.
    pub(super) fn is_fixed(&self) -> bool {
        self.min() == self.max()
    }

    /// The largest size that can occur, in bytes.
    #[must_use]
    pub fn max(&self) -> u32 {
        match self {
            Self::Fixed(bs) => *bs,
            Self::Range { max, .. } => *max,
            Self::Split(parts) => parts.iter().map(|(bs, _)| *bs).max().unwrap_or(0),
        }
    }

    /// Checks every size.
    ///
    /// # Errors
    /// For the first size that is no number of sectors, a range without members, or shares that do not sum to 100.
    pub fn validate(&self) -> Result<(), BlockSizeError> {
        let check = |bs: u32| match bs {
            0 => Err(BlockSizeError::NotSectors(0)),
            _ if !bs.is_multiple_of(SECTOR_SIZE) => Err(BlockSizeError::NotSectors(bs)),
            _ if bs > Self::MAX => Err(BlockSizeError::TooLarge(bs)),
            _ => Ok(()),
        };
        match self {
            Self::Fixed(bs) => check(*bs),
            Self::Range { min, max } => {
                check(*min)?;
                check(*max)?;
                if min > max { Err(BlockSizeError::Inverted(*min, *max)) } else { Ok(()) }
            }
            Self::Split(parts) => {
                parts.iter().try_for_each(|(bs, _)| check(*bs))?;
                match parts.iter().map(|(_, share)| u32::from(*share)).sum() {
                    100 => Ok(()),
                    sum => Err(BlockSizeError::Shares(sum)),
                }
            }
        }
    }
}

impl fmt::Display for BlockSize {
    /// In fio's spelling, in bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(bs) => write!(f, "{bs}"),
            Self::Range { min, max } => write!(f, "{min}-{max}"),
            Self::Split(parts) => {
                for (i, (bs, share)) in parts.iter().enumerate() {
                    write!(f, "{}{bs}/{share}", if i == 0 { "" } else { ":" })?;
                }
                Ok(())
            }
        }
    }
}

/// Draws lengths, in sectors.
#[derive(Clone, Debug)]
pub(super) enum Sizes {
    Fixed(u32),
    Steps { unit: u32, max: u32 },
    Split(Vec<(u32, u32)>),
}

impl Sizes {
    /// A generator for a block size that [`BlockSize::validate`] accepts.
    pub(super) fn new(bs: &BlockSize) -> Self {
        match bs {
            _ if bs.is_fixed() => Self::Fixed(bs.min() / SECTOR_SIZE),
            BlockSize::Fixed(bs) => Self::Fixed(bs / SECTOR_SIZE),
            BlockSize::Range { min, max } => {
                Self::Steps { unit: min / SECTOR_SIZE, max: max / SECTOR_SIZE }
            }
            BlockSize::Split(parts) => {
                let min = (bs.min() / SECTOR_SIZE).max(1);
                let cumulate = |below: &mut u32, (bs, share): &(u32, u8)| {
                    *below += u32::from(*share);
                    let sectors = bs / SECTOR_SIZE;
                    Some((*below, sectors - sectors % min))
                };
                Self::Split(parts.iter().scan(0, cumulate).collect())
            }
        }
    }

    /// The length, if there is only one.
    pub(super) fn fixed(&self) -> Option<u32> {
        if let Self::Fixed(sectors) = self { Some(*sectors) } else { None }
    }

    #[inline]
    pub(super) fn next(&self, rng: &mut Rng) -> u32 {
        match self {
            Self::Fixed(sectors) => *sectors,
            Self::Steps { unit, max } => {
                let sectors = rng.below(u64::from(*max)) as u32 + 1;
                sectors.next_multiple_of(*unit).min(*max)
            }
            Self::Split(parts) => {
                let percent = rng.below(100) as u32;
                let part = parts.iter().find(|(below, _)| percent < *below);
                part.expect("shares sum to 100").1
            }
        }
    }
}

/// An I/O of a recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taped {
    /// Time after the start, or after the last I/O that drained was issued.
    pub at: Nanos,
    /// Waits until nothing is in flight; `at` then counts from that moment.
    pub drains: bool,
    /// The I/O.
    pub io: NextIo,
}

/// The I/Os of a thread, in the order of issue.
#[derive(Clone, PartialEq, Eq)]
pub struct Tape {
    ios: Vec<Taped>,
    is_timed: bool,
}

impl fmt::Debug for Tape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a tape of {} I/Os", self.ios.len())
    }
}

impl Tape {
    /// A tape of `ios`.
    #[must_use]
    pub fn new(ios: Vec<Taped>) -> Self {
        Self { ios, is_timed: true }
    }

    /// Issues the I/Os of `self` as fast as their thread can: times and drains have no effect.
    #[must_use]
    pub fn without_times(self) -> Self {
        Self { is_timed: false, ..self }
    }

    /// Returns whether the times of the I/Os have an effect.
    pub(super) fn is_timed(&self) -> bool {
        self.is_timed
    }

    /// The I/Os.
    #[must_use]
    pub fn ios(&self) -> &[Taped] {
        &self.ios
    }

    /// The sector behind the last one that an I/O touches.
    #[must_use]
    pub fn end(&self) -> u64 {
        let ends =
            self.ios.iter().map(|taped| taped.io.sector.saturating_add(taped.io.sectors.into()));
        ends.max().unwrap_or(0)
    }

    /// Returns whether there is a flush among them.
    pub(super) fn flushes(&self) -> bool {
        self.ios.iter().any(|taped| taped.io.op == Op::Flush)
    }

    /// The priorities of the I/Os of `direction`.
    pub(super) fn prios(&self, direction: Direction) -> Vec<IoPrio> {
        let mut prios = Vec::new();
        for taped in self.ios.iter().filter(|taped| Direction::of(taped.io.op) == Some(direction)) {
            if !prios.contains(&taped.io.prio) {
                prios.push(taped.io.prio);
            }
        }
        prios
    }
}

/// A tape in play: the times of its I/Os, and how late each was.
#[derive(Debug)]
pub(super) struct Playing {
    tape: Arc<Tape>,
    next: usize,
    base: Instant,
    /// The time at which nothing was in flight before an I/O that drains.
    drained: Option<Instant>,
    /// The time at which the last I/O that may leave was due.
    due: Instant,
    lateness: Histogram,
}

/// The decision on the next I/O: it leaves, at a later time, or once all others have ended.
pub(super) enum Play {
    Go,
    At(Instant),
    Drain,
}

impl Playing {
    pub(super) fn new(tape: &Arc<Tape>, start: Instant) -> Self {
        let (tape, lateness) = (Arc::clone(tape), Histogram::new());
        Self { tape, next: 0, base: start, drained: None, due: start, lateness }
    }

    pub(super) fn restart(&mut self, start: Instant) {
        self.base = start;
    }

    pub(super) fn poll(&mut self, now: Instant, in_flight: u32) -> Play {
        let Some(taped) = self.tape.ios.get(self.next) else { return Play::Go };
        if taped.drains && self.drained.is_none() {
            if in_flight > 0 {
                return Play::Drain;
            }
            self.drained = Some(now);
            self.base = now;
        }
        let due = self.base + taped.at;
        if now < due {
            return Play::At(due);
        }
        self.lateness.record((now - due).0);
        self.due = due;
        if taped.drains {
            self.base = now;
        }
        self.drained = None;
        self.next += 1;
        Play::Go
    }

    /// The time at which the last I/O that may leave was due. Its latency counts from there, so that a delay by the
    /// depth of the job is part of it, as it was for the recorded process.
    pub(super) fn due(&self) -> Instant {
        self.due
    }

    pub(super) fn lateness(&self) -> &Histogram {
        &self.lateness
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq_core::IoFlags;

    #[test]
    fn every_name_parses_to_the_pattern_that_prints_it() {
        for (rw, names) in Rw::NAMES {
            for name in names {
                assert_eq!(Rw::parse(name), Some(rw));
            }
            assert_eq!(rw.to_string(), names[0]);
            assert_eq!(rw.is_random(), names[0].starts_with("rand"));
        }
        assert_eq!(Rw::parse("randomread"), None);
    }

    #[test]
    fn a_direction_and_its_operation_agree() {
        for direction in Direction::ALL {
            assert_eq!(Direction::of(direction.op()), Some(direction));
        }
        assert_eq!(Direction::of(Op::Flush), None);
    }

    #[test]
    fn a_split_is_met_within_a_percent() {
        let sizes = Sizes::new(&BlockSize::Split(vec![(4096, 70), (65536, 20), (512, 10)]));
        let mut rng = Rng::new(3);
        let mut seen = [0u32; 3];
        for _ in 0..100_000 {
            match sizes.next(&mut rng) {
                8 => seen[0] += 1,
                128 => seen[1] += 1,
                1 => seen[2] += 1,
                other => panic!("{other} sectors was never asked for"),
            }
        }
        for (count, share) in seen.iter().zip([70_000, 20_000, 10_000u32]) {
            assert!(count.abs_diff(share) < 1_000, "{seen:?}");
        }
    }

    #[test]
    fn a_range_gives_multiples_of_its_start_and_both_ends() {
        let sizes = Sizes::new(&BlockSize::Range { min: 1024, max: 4096 });
        let mut rng = Rng::new(1);
        let mut seen = std::collections::BTreeSet::new();
        (0..1_000).for_each(|_| {
            seen.insert(sizes.next(&mut rng));
        });
        assert_eq!(Vec::from_iter(seen), [2, 4, 6, 8]);
    }

    #[test]
    fn the_end_of_an_odd_range_has_the_rest_of_the_share() {
        // As observed with fio 3.33 and bsrange=4k-30k: the last two KiB of 30 are half a step.
        let sizes = Sizes::new(&BlockSize::Range { min: 4096, max: 30720 });
        let (mut rng, mut seen) = (Rng::new(1), std::collections::BTreeMap::new());
        (0..30_000).for_each(|_| *seen.entry(sizes.next(&mut rng)).or_insert(0u32) += 1);
        assert_eq!(Vec::from_iter(seen.keys().copied()), [8, 16, 24, 32, 40, 48, 56, 60]);
        assert!(seen[&8].abs_diff(4_000) < 200 && seen[&60].abs_diff(2_000) < 150, "{seen:?}");
    }

    #[test]
    fn sizes_of_a_split_are_multiples_of_its_smallest() {
        let sizes = Sizes::new(&BlockSize::Split(vec![(4096, 50), (6144, 25), (9216, 25)]));
        let mut rng = Rng::new(1);
        let seen = std::collections::BTreeSet::from_iter((0..200).map(|_| sizes.next(&mut rng)));
        assert_eq!(Vec::from_iter(seen), [8, 16]);
    }

    #[test]
    fn impossible_sizes_are_named() {
        let wrong = |bs: BlockSize| bs.validate().expect_err("not a size").to_string();
        assert!(wrong(BlockSize::Fixed(0)).starts_with("0 bytes"));
        assert!(wrong(BlockSize::Fixed(513)).starts_with("513 bytes"));
        assert!(wrong(BlockSize::Range { min: 8192, max: 4096 }).contains("8192-4096"));
        assert!(wrong(BlockSize::Split(vec![(512, 50), (1024, 49)])).contains("99 percent"));
        assert_eq!(BlockSize::Split(vec![(512, 0), (1024, 100)]).validate(), Ok(()));
    }

    fn taped(at: u64, drains: bool) -> Taped {
        let (flags, prio) = (IoFlags::NONE, IoPrio::default());
        let io = NextIo { op: Op::Read, flags, prio, sectors: 8, sector: 0 };
        Taped { at: Nanos(at), drains, io }
    }

    #[test]
    fn an_open_loop_keeps_the_clock_and_counts_lateness() {
        let tape = Arc::new(Tape::new(vec![taped(0, false), taped(100, false), taped(100, false)]));
        let at = Instant::from_nanos;
        let mut playing = Playing::new(&tape, at(1000));
        assert!(matches!(playing.poll(at(1000), 0), Play::Go));
        assert!(matches!(playing.poll(at(1050), 9), Play::At(due) if due == at(1100)));
        assert!(matches!(playing.poll(at(1130), 9), Play::Go));
        assert!(matches!(playing.poll(at(1130), 9), Play::Go));
        assert_eq!((playing.lateness().count(), playing.lateness().max()), (3, 30));
    }

    #[test]
    fn an_io_that_drains_keeps_the_gap_behind_the_answers() {
        let tape = Arc::new(Tape::new(vec![taped(0, false), taped(50, true), taped(10, false)]));
        let at = Instant::from_nanos;
        let mut playing = Playing::new(&tape, at(0));
        assert!(matches!(playing.poll(at(0), 0), Play::Go));
        assert!(matches!(playing.poll(at(60), 1), Play::Drain));
        assert!(matches!(playing.poll(at(500), 0), Play::At(due) if due == at(550)));
        assert!(matches!(playing.poll(at(550), 0), Play::Go));
        assert!(matches!(playing.poll(at(551), 1), Play::At(due) if due == at(560)));
    }
}
