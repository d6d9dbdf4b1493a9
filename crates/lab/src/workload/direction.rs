//! [`NextIo`], an I/O that a thread of a job issues, the direction of an I/O, and the meaning of a job's `rw`.

use blkmq_core::{IoFlags, IoPrio, Op};
use std::fmt;
use std::ops::{Index, IndexMut};

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
