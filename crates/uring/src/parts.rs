//! The files of a device, and the sectors of the device that each of them holds. Usually one file holds all of them.

use crate::present::Present;
use crate::request::{File, Kind, ZeroBy};
use crate::target::{Alignment, Target};
use blkmq_core::{IoError, Limits, SECTOR_SIZE};
use blkmq_engine::{Inflight, WriteCache};
use io_uring::squeue;
use std::ops::RangeInclusive;
use std::os::fd::AsRawFd;
use std::sync::Arc;

/// The answer of a read-only device to every operation that would change it.
const READ_ONLY: IoError = IoError(libc::EROFS as u16);

/// A file, and the sector of the device at which it begins.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) start: u64,
    pub(crate) target: Target,
}

impl Part {
    /// The sector behind its last one.
    pub(crate) fn end(&self) -> u64 {
        self.start + self.target.limits.capacity
    }
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
        // Whole blocks of the file with the largest ones.
        let block = joined.logical_block_size / SECTOR_SIZE;
        let whole = |sectors: u32| sectors / block * block;
        joined.max_sectors = whole(joined.max_sectors).max(block);
        joined.max_discard_sectors = whole(joined.max_discard_sectors);
        joined.max_write_zeroes_sectors = whole(joined.max_write_zeroes_sectors);
    }
    let last = parts.last().expect("a device has a file");
    joined.capacity = last.end();
    joined
}

/// A cache is volatile if one of them is, and does FUA if all of these do.
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

/// The alignment that suits all of them.
pub(crate) fn alignment(parts: &[Part]) -> Alignment {
    let of = |one: fn(&Alignment) -> u32| {
        parts.iter().map(|part| one(&part.target.alignment)).max().unwrap_or(1)
    };
    Alignment { block: of(|it| it.block), memory: of(|it| it.memory) }
}

/// The files of a queue, open as long as its ring refers to them by number.
pub(crate) struct Files {
    all: Box<[OpenFile]>,
    open: Box<[Arc<std::fs::File>]>,
}

/// A file of a queue.
pub(crate) struct OpenFile {
    /// The sectors of the device that it holds. The last file has all from `start` on: it may grow.
    pub(crate) start: u64,
    end: u64,
    pub(crate) file: File,
    pub(crate) readonly: bool,
    /// See [`Target`].
    is_in_memory: bool,
    pub(crate) present: Arc<Present>,
}

impl OpenFile {
    /// Returns whether the file has all of these sectors of the device, as far as it was looked at.
    #[inline]
    pub(crate) fn has(&self, sector: u64, sectors: u32) -> bool {
        let end = sector - self.start + u64::from(sectors);
        self.present.reaches(end * u64::from(SECTOR_SIZE))
    }
}

impl Files {
    /// The files of `parts`; registered ones are the ring's own, in this order.
    pub(crate) fn new(parts: &[Part], registered: bool) -> Self {
        let file = |(at, part): (usize, &Part)| {
            let file = if registered {
                File { fd: at as i32, flags: squeue::Flags::FIXED_FILE }
            } else {
                File { fd: part.target.file.as_raw_fd(), flags: squeue::Flags::empty() }
            };
            let readonly = part.target.readonly;
            let present = Arc::clone(&part.target.present);
            let end = if at + 1 == parts.len() { u64::MAX } else { part.end() };
            let is_in_memory = part.target.is_in_memory;
            OpenFile { start: part.start, end, file, readonly, is_in_memory, present }
        };
        let open = parts.iter().map(|part| Arc::clone(&part.target.file)).collect();
        Self { all: parts.iter().enumerate().map(file).collect(), open }
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

    /// The files for [`Request::perform`](crate::request::Request::perform), if a read or write of file `at` is best done by the
    /// caller.
    #[inline]
    pub(crate) fn in_memory(&self, at: usize) -> Option<&[Arc<std::fs::File>]> {
        self.all[at].is_in_memory.then_some(&self.open)
    }

    /// The files that `rq` goes to, and the sector of the device that the first of them begins at.
    ///
    /// # Errors
    /// The answer to a request that goes to no file: it lies between two files or behind the end of one, or would change a
    /// file that is open for reading.
    #[inline]
    pub(crate) fn admit(
        &self,
        rq: &Inflight,
        kind: Kind,
    ) -> Result<(RangeInclusive<u32>, u64), IoError> {
        if kind == Kind::Flush {
            return Ok((0..=self.last(), 0));
        }
        let at = self.holding(rq.sector(), rq.sectors()).ok_or(IoError::IO)?;
        let file = self.at(at as usize);
        if kind != Kind::Read {
            if file.readonly {
                return Err(READ_ONLY);
            }
            if !matches!(kind, Kind::Write { .. }) {
                // For the kernel, a hole behind the end is no error.
                file.present.find_end();
            }
            if !file.has(rq.sector(), rq.sectors()) {
                return Err(IoError::IO);
            }
        }
        Ok((at..=at, file.start))
    }

    /// The number of the file that holds `sectors` sectors from `sector` on; `None` if no file holds all of them.
    /// O(log files).
    #[inline]
    pub(crate) fn holding(&self, sector: u64, sectors: u32) -> Option<u32> {
        // The engine has compared them with the capacity.
        if let [_] = &*self.all {
            return Some(0);
        }
        let at = self.all.partition_point(|file| file.start <= sector).checked_sub(1)?;
        (sector + u64::from(sectors) <= self.all[at].end).then_some(at as u32)
    }
}
