//! The files of a device, and the sectors of the device that each of them holds. Usually one file holds all sectors.
//! Also the operations of the kernel ([`Kind`]), and their targets.

use crate::file::Present;
use crate::target::{Alignment, Target};
use blkmq_core::{IoError, IoFlags, Limits, Op, SECTOR_SIZE};
use blkmq_engine::{Inflight, WriteCache};
use io_uring::squeue;
use std::fs::File;
use std::ops::{Range, RangeInclusive};
use std::os::fd::AsRawFd;
use std::sync::Arc;

/// The answer of a read-only device to every operation that would change it.
const READ_ONLY: IoError = IoError(libc::EROFS as u16);

/// A file of a device in [sequence](Order::Sequence), and the sector of the device at which it begins.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) start: u64,
    /// The sectors of the file that the device has.
    pub(crate) sectors: u64,
    pub(crate) target: Target,
}

impl Part {
    /// All of a file.
    pub(crate) fn whole(start: u64, target: Target) -> Self {
        Self { start, sectors: target.limits.capacity, target }
    }

    /// The sector behind its last one.
    pub(crate) fn end(&self) -> u64 {
        self.start + self.sectors
    }
}

/// The order of the sectors of a device on its files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// Each file begins at a sector of its own. There may be gaps between files.
    Sequence,
    /// Chunks of so many sectors, of each file in turn. All files are used to the same length.
    Stripe(u64),
}

/// The limits of requests to any of `parts`: no part gets a request that it cannot serve.
pub(crate) fn limits(parts: &[Part]) -> Limits {
    let all = || parts.iter().map(|part| &part.target.limits);
    let [first, others @ ..] = parts else { unreachable!("a device has a file") };
    let mut joined = first.target.limits;
    for Limits {
        logical_block_size,
        physical_block_size,
        max_sectors,
        max_discard_sectors,
        discard_granularity,
        max_write_zeroes_sectors,
        max_segments,
        max_segment_size,
        range_alignment,
        rotational,
        ..
    } in others.iter().map(|part| part.target.limits)
    {
        joined.logical_block_size = joined.logical_block_size.max(logical_block_size);
        joined.physical_block_size = joined.physical_block_size.max(physical_block_size);
        joined.max_sectors = joined.max_sectors.min(max_sectors);
        joined.max_discard_sectors = joined.max_discard_sectors.min(max_discard_sectors);
        joined.discard_granularity = joined.discard_granularity.max(discard_granularity);
        joined.max_write_zeroes_sectors =
            joined.max_write_zeroes_sectors.min(max_write_zeroes_sectors);
        joined.max_segments = joined.max_segments.min(max_segments);
        joined.max_segment_size = joined.max_segment_size.min(max_segment_size);
        joined.range_alignment = joined.range_alignment.max(range_alignment);
        joined.rotational |= rotational;
    }
    if all().any(|limits| limits.logical_block_size != joined.logical_block_size) {
        // Limits are rounded to whole blocks of the file with the largest blocks.
        let block = joined.logical_block_size / SECTOR_SIZE;
        let whole = |sectors: u32| sectors / block * block;
        joined.max_sectors = whole(joined.max_sectors).max(block);
        joined.max_discard_sectors = whole(joined.max_discard_sectors);
        joined.max_write_zeroes_sectors = whole(joined.max_write_zeroes_sectors);
    }
    joined.capacity = parts.last().map_or(0, Part::end);
    joined
}

/// The write cache of the device: volatile if that of a file is, and with FUA if all volatile ones have it.
pub(crate) fn cache(parts: &[Part]) -> WriteCache {
    let caches = || parts.iter().map(|part| part.target.cache);
    if caches().all(|cache| cache == WriteCache::Through) {
        return WriteCache::Through;
    }
    WriteCache::Back { fua: caches().all(|cache| cache != WriteCache::Back { fua: false }) }
}

/// The method of writing zeroes that may leave holes.
pub(crate) fn zeroes(parts: &[Part]) -> ZeroBy {
    let makes_holes = |part: &Part| part.target.limits.max_discard_sectors > 0;
    if parts.iter().all(makes_holes) { ZeroBy::Hole } else { ZeroBy::Range }
}

/// The alignment that suits all files.
pub(crate) fn alignment(parts: &[Part]) -> Alignment {
    let of = |one: fn(&Alignment) -> u32| {
        parts.iter().map(|part| one(&part.target.alignment)).max().unwrap_or(1)
    };
    Alignment { block: of(|it| it.block), memory: of(|it| it.memory) }
}

/// The files of a queue, open as long as its ring refers to them by number.
pub(crate) struct Files {
    all: Box<[OpenFile]>,
    order: Order,
}

/// A file of a queue.
pub(crate) struct OpenFile {
    /// The sectors of a device in sequence that it holds. The last file has all from `start` on: it may grow.
    start: u64,
    end: u64,
    pub(crate) open: Arc<File>,
    pub(crate) descriptor: Descriptor,
    readonly: bool,
    /// See [`Target::is_in_memory`].
    is_in_memory: bool,
    pub(crate) present: Arc<Present>,
}

/// The place of a request: the files that it goes to, one after the other, and its bytes in the first of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Stretch {
    pub(crate) files: RangeInclusive<u32>,
    pub(crate) bytes: Range<u64>,
}

impl Files {
    /// The files of `parts`. If `registered`, they are registered with the ring in this order.
    pub(crate) fn new(parts: &[Part], order: Order, registered: bool) -> Self {
        let file = |(at, part): (usize, &Part)| {
            let target = &part.target;
            let descriptor = if registered {
                Descriptor { fd: at as i32, flags: squeue::Flags::FIXED_FILE }
            } else {
                Descriptor { fd: target.file.as_raw_fd(), flags: squeue::Flags::empty() }
            };
            OpenFile {
                start: part.start,
                end: if at + 1 == parts.len() { u64::MAX } else { part.end() },
                open: Arc::clone(&target.file),
                descriptor,
                readonly: target.readonly,
                is_in_memory: target.is_in_memory,
                present: Arc::clone(&target.present),
            }
        };
        Self { all: parts.iter().enumerate().map(file).collect(), order }
    }

    /// The number of the last file.
    pub(crate) fn last(&self) -> u32 {
        self.all.len() as u32 - 1
    }

    /// The file of number `at`.
    #[inline]
    pub(crate) fn at(&self, at: usize) -> &OpenFile {
        &self.all[at]
    }

    /// Returns whether a read or write of file `at` is best done by the caller.
    #[inline]
    pub(crate) fn is_in_memory(&self, at: usize) -> bool {
        self.all[at].is_in_memory
    }

    /// The place of `rq`.
    ///
    /// # Errors
    /// The answer to a request that goes to no file, because it lies between two files or behind the end of one, or
    /// would change a file that is open for reading.
    #[inline]
    pub(crate) fn admit(&self, rq: &Inflight, kind: Kind) -> Result<Stretch, IoError> {
        if kind == Kind::Flush {
            return Ok(Stretch { files: 0..=self.last(), bytes: 0..0 });
        }
        let sectors = rq.sector()..rq.sector() + u64::from(rq.sectors());
        let files = self.holding(&sectors, kind).ok_or(IoError::IO)?;
        if kind != Kind::Read {
            for at in files.clone() {
                let file = self.at(at as usize);
                if file.readonly {
                    return Err(READ_ONLY);
                }
                if !kind.moves_data() {
                    // The kernel does not refuse a hole behind the end.
                    file.present.find_end();
                }
                if !file.present.reaches(self.bytes(at, &sectors).end) {
                    return Err(IoError::IO);
                }
            }
        }
        Ok(Stretch { bytes: self.bytes(*files.start(), &sectors), files })
    }

    /// The numbers of the files that hold these sectors of the device. The first and the last file hold some. `None` if
    /// some sectors are in no file, or those of a read or write are in several chunks. O(log files + files found).
    #[inline]
    fn holding(&self, sectors: &Range<u64>, kind: Kind) -> Option<RangeInclusive<u32>> {
        // The engine has checked the sectors against the capacity.
        if let [_] = &*self.all {
            return Some(0..=0);
        }
        match self.order {
            Order::Sequence => {
                let first = self.all.partition_point(|file| file.start <= sectors.start);
                let first = first.checked_sub(1)?;
                let mut last = first;
                while self.all[last].end < sectors.end {
                    let next = self.all.get(last + 1)?;
                    (next.start == self.all[last].end).then_some(())?;
                    last += 1;
                }
                Some(first as u32..=last as u32)
            }
            Order::Stripe(chunk) => {
                let files = self.all.len() as u64;
                let (first, last) = (sectors.start / chunk, (sectors.end - 1) / chunk);
                if first == last {
                    let at = (first % files) as u32;
                    return Some(at..=at);
                }
                // The bytes of a transfer would not be in the order of the files.
                (!kind.moves_data()).then_some(())?;
                let is_all = last - first >= files || first % files > last % files;
                let ends = if is_all { (0, files - 1) } else { (first % files, last % files) };
                Some(ends.0 as u32..=ends.1 as u32)
            }
        }
    }

    /// The bytes of file `at` among these sectors of the device, without gaps in the file; empty if it has none.
    #[inline]
    pub(crate) fn bytes(&self, at: u32, sectors: &Range<u64>) -> Range<u64> {
        let sector = u64::from(SECTOR_SIZE);
        match self.order {
            Order::Sequence => {
                let OpenFile { start, end, .. } = self.all[at as usize];
                let inside = |at: u64| (at.clamp(start, end) - start) * sector;
                inside(sectors.start)..inside(sectors.end)
            }
            Order::Stripe(chunk) => {
                let row = chunk * self.all.len() as u64;
                let before = |to: u64| {
                    let of_row = (to % row).saturating_sub(u64::from(at) * chunk).min(chunk);
                    (to / row * chunk + of_row) * sector
                };
                before(sectors.start)..before(sectors.end)
            }
        }
    }
}

/// The target of the I/O: a descriptor, or a number among the registered files of the ring.
#[derive(Clone, Copy)]
pub(crate) struct Descriptor {
    pub(crate) fd: i32,
    pub(crate) flags: squeue::Flags,
}

/// The method of writing zeroes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ZeroBy {
    /// `FALLOC_FL_ZERO_RANGE`, which keeps the space allocated.
    Range,
    /// A hole, which reads as zeroes and takes no space.
    Hole,
}

/// The operation requested from the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Read,
    Write { durable: bool },
    Flush,
    Discard,
    Zero(ZeroBy),
}

impl Kind {
    /// The operation of `rq`. `zero` is the method for zeroes that may leave holes.
    pub(crate) fn of(rq: &Inflight, zero: ZeroBy) -> Self {
        match rq.op() {
            Op::Read => Self::Read,
            Op::Write => Self::Write { durable: rq.flags().contains(IoFlags::FUA) },
            Op::Flush => Self::Flush,
            Op::Discard => Self::Discard,
            Op::WriteZeroes if rq.flags().contains(IoFlags::NOUNMAP) => Self::Zero(ZeroBy::Range),
            Op::WriteZeroes => Self::Zero(zero),
        }
    }

    pub(crate) fn moves_data(self) -> bool {
        matches!(self, Self::Read | Self::Write { .. })
    }
}
