//! The stream of I/Os of one thread of a job: the place of each; its bytes, if the thread writes ([`Filler`]); and its
//! priority, drawn where a part of the I/Os has another one than the job ([`Prios`]).
//!
//! The stream depends only on the job, its index, the thread's index and the size of the device. For uniform patterns
//! an I/O costs a few nanoseconds: values that do not change are computed in [`Generator::new`], and a block is found
//! by a multiplication instead of a division.

mod pass;

use super::distribution::{Places, Ranks};
use super::next_io::Sizes;
use super::visits::{Cover, Strides};
use super::{
    BlockSize, CmdPrio, Contents, DedupeMode, Direction, Distribution, Job, JobError, NextIo,
    PerDirection, Region, RegionError, Rw, Tape,
};
use blkmq_core::{IoFlags, IoPrio, Op, Rng, SECTOR_SIZE};
use pass::{Pass, Plain, Turns};
use std::sync::Arc;

/// A job that cannot be turned into a stream.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum GeneratorError {
    /// The job itself is impossible.
    #[error("{0}")]
    Job(JobError),
    /// The job does not fit the device.
    #[error("{0}")]
    Region(RegionError),
    /// The recording does not fit the device.
    #[error(
        "its recording goes up to sector {end}, and the device has {device}; accepted: a larger device"
    )]
    Tape {
        /// The sector behind the last I/O.
        end: u64,
        /// Sectors of the device.
        device: u64,
    },
    /// The map of a random job with several block sizes would have this many blocks.
    #[error(
        "a random map of {0} blocks; accepted with several block sizes are up to {most}, or norandommap",
        most = Cover::MAX
    )]
    Map(u64),
}

/// Yields the I/Os of one thread, in order. Allocates nothing after its creation.
///
/// It ends after `loops` passes of `io_size` bytes or `number_ios` I/Os each, or after one pass if the job reads back
/// its writes ([`next_loop`](Self::next_loop)); a `time_based` stream never ends. A random pass without `norandommap`
/// covers each block of the region once, with reads and writes alike, before it repeats any. With several block sizes,
/// an I/O that would begin at a covered block begins at the next free one, and an I/O that would run into a covered
/// block ends before it.
#[derive(Clone, Debug)]
pub struct Generator {
    rng: Rng,
    choice: Choice,
    random: bool,
    /// The streams, by direction.
    streams: [Stream; 3],
    places: [Places; 3],
    /// The blocks that are covered, and the sectors in a block; with several block sizes.
    cover: Option<(Cover, u64)>,
    /// (I/Os of a run, those left of the current one) (`rw=randread:8`).
    run: (u32, u32),
    /// Sectors between the end of a sequential I/O and the next one (`rw=read:4k`).
    hole: i64,
    prios: Prios,
    /// Set if all I/Os are alike except for their offsets.
    plain: Option<Plain>,
    start: u64,
    end: u64,
    bounds: Bounds,
    /// Issued before any new I/O: the write half of a trimwrite.
    queued: Option<NextIo>,
    /// Whether an I/O ever causes another one.
    chains: bool,
    trimwrite: bool,
    /// The zones, if the job uses one after another.
    strides: Option<Strides>,
    /// `fsync` and `fdatasync`: after this many writes, a flush precedes the next I/O.
    flushes: [u32; 2],
    writes: u64,
    /// No write has followed the last flush of this pass.
    is_flushed: bool,
    /// The last I/O was a flush.
    ends_flushed: bool,
    pass: Pass,
    /// The files of a thread that has several, each with its own stream; the fields above then count passes.
    turns: Option<Box<Turns>>,
    /// A recording that replaces all of the above, and its next I/O.
    tape: Option<(Arc<Tape>, usize)>,
}

/// The bounds of sequential offsets, in sectors.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// The sectors behind the start at which an I/O may begin: the `size`.
    size: u64,
    /// The end of the `size`, within which lengths are drawn.
    fit: u64,
    /// The end of the file, counted from its start, and that of its last whole sector.
    file: u64,
    end: u64,
    /// The start of the file.
    origin: u64,
}

/// How the direction of an I/O is found.
#[derive(Clone, Copy, Debug)]
enum Choice {
    Only(Direction),
    /// A read if the next random number is below this.
    Mix(u64),
}

/// One direction of the workload.
#[derive(Clone, Debug)]
struct Stream {
    op: Op,
    flags: IoFlags,
    sizes: Sizes,
    /// The smallest length, in sectors.
    min: u64,
    /// Random offsets are multiples of this many sectors from the start of the region.
    unit: u64,
    /// The index of the entry of the generator's `places` that it draws from.
    places: usize,
    /// The offset is random if the next random number is below this. `ALWAYS` needs no number.
    random_below: u64,
    /// The sector behind the last I/O.
    cursor: u64,
}

const ALWAYS: u64 = u64::MAX;

/// `percent` of all 64-bit numbers are below the result.
fn threshold(percent: u8) -> u64 {
    if percent >= 100 { ALWAYS } else { ((u128::from(percent) << 64) / 100) as u64 }
}

impl Generator {
    /// The stream of thread `thread` (0 to `numjobs - 1`) of `job` on a device of `device_bytes`.
    ///
    /// # Errors
    /// If the job is impossible ([`Job::validate`]) or leaves the device ([`Job::region`]).
    pub fn new(job: &Job, thread: u32, device_bytes: u64) -> Result<Self, GeneratorError> {
        job.validate().map_err(GeneratorError::Job)?;
        let end = job.tape.as_ref().map_or(0, |tape| tape.end());
        if end > device_bytes / u64::from(SECTOR_SIZE) {
            return Err(GeneratorError::Tape {
                end,
                device: device_bytes / u64::from(SECTOR_SIZE),
            });
        }
        let regions = job.regions(thread, device_bytes).map_err(GeneratorError::Region)?;
        match *regions {
            [region] => Self::in_region(job, thread, region, 0),
            _ => Self::in_regions(job, thread, &regions),
        }
    }

    /// The stream of thread `thread` in `region`, which is that of its file number `file`.
    fn in_region(
        job: &Job,
        thread: u32,
        region: Region,
        file: u64,
    ) -> Result<Self, GeneratorError> {
        // Hot blocks are the same for all threads of a job, as when many users want the same file.
        let mut shared =
            Rng::new(job.randseed ^ Rng::new(job.index.into()).next_u64() ^ file << 40);
        let mut rng = Rng::new(shared.next_u64() ^ u64::from(thread));
        let mut streams = Direction::ALL.map(|direction| Stream::new(job, direction, region));
        let places = place(job, job.zone_of(region), &mut streams, &mut shared, &mut rng);
        let cover = cover(job, region)?;
        let trimwrite = matches!(job.rw, Rw::TrimWrite | Rw::RandTrimWrite);
        let mapped = mapped(job, region);
        let pass = match file {
            0 => Pass::new(job, &[region], mapped),
            _ => Pass::of_file(region, mapped, job.rw.is_random() && !job.has_map()),
        };
        let mut generator = Self {
            rng,
            choice: match job.rw {
                Rw::ReadWrite | Rw::RandRw if job.rwmixread == 0 => Choice::Only(Direction::Write),
                Rw::ReadWrite | Rw::RandRw if job.rwmixread < 100 => {
                    Choice::Mix(threshold(job.rwmixread))
                }
                rw => Choice::Only(rw.directions()[0]),
            },
            random: job.rw.is_random(),
            plain: None,
            streams,
            places,
            cover,
            run: (job.run, 0),
            hole: job.hole / i64::from(SECTOR_SIZE),
            prios: Prios::new(job, job.randseed ^ u64::from(job.index) << 32 ^ u64::from(thread)),
            start: region.start / u64::from(SECTOR_SIZE),
            end: (region.start + if job.strided.is_some() { region.room } else { region.size })
                / u64::from(SECTOR_SIZE),
            bounds: Bounds::new(region),
            queued: None,
            chains: trimwrite || job.flushes() || job.strided.is_some(),
            trimwrite,
            strides: job.strided.map(|it| Strides::new(it, region.start, region.room)),
            flushes: [job.fsync, job.fdatasync],
            writes: 0,
            is_flushed: true,
            ends_flushed: false,
            pass,
            turns: None,
            tape: job.tape.as_ref().map(|tape| (Arc::clone(tape), 0)),
        };
        generator.plain = if job.tape.is_none() { generator.as_plain() } else { None };
        Ok(generator)
    }

    /// Begins the next of the `loops` of a job that reads back its writes: like fio, after each loop. Returns false if
    /// there is none, or the job does not read back.
    pub fn next_loop(&mut self) -> bool {
        self.pass.next_loop()
    }

    /// Counts `number_ios` of `job` from here on, as fio does after a ramp. Of the following I/Os, `drawn` have already
    /// been drawn.
    #[cold]
    #[inline(never)]
    pub(super) fn count_anew(&mut self, job: &Job, drawn: u64) {
        if let Some(ios) = job.number_ios {
            let passes = if job.is_read_back() { 1 } else { job.loops };
            self.pass.count_anew(ios.saturating_mul(passes.into()).saturating_sub(drawn));
        }
    }

    /// Starts the next pass, if there is one.
    #[cold]
    fn begin_pass(&mut self) -> bool {
        if !self.pass.begin() {
            return false;
        }
        // As in fio, a pass begins with the flush that is due, even if the previous one has ended with it.
        self.is_flushed = self.writes == 0;
        if let Some(turns) = &mut self.turns {
            turns.restart();
            return true;
        }
        if let Some(strides) = &mut self.strides {
            self.start = strides.restart();
        }
        self.rewind();
        if let Some((cover, _)) = &mut self.cover {
            cover.restart();
        }
        true
    }

    /// Sequential I/O begins again at the start, and all blocks of a map are free.
    fn rewind(&mut self) {
        self.streams.iter_mut().for_each(|stream| stream.cursor = self.start);
        self.places.iter_mut().for_each(|places| places.restart(&mut self.rng));
    }

    /// `None` if the pass ends here, because the next sequential I/O would lie beyond the region.
    #[inline]
    fn draw(&mut self, steer: impl FnOnce(Direction) -> Direction) -> Option<NextIo> {
        let direction = match self.choice {
            Choice::Only(direction) => direction,
            Choice::Mix(read_below) if self.rng.next_u64() < read_below => steer(Direction::Read),
            Choice::Mix(_) => steer(Direction::Write),
        };
        if self.strides.is_some() {
            self.stride(direction);
        }
        let wanted = u64::from(self.streams[direction as usize].sizes.next(&mut self.rng));
        let random = self.is_random(direction);
        let sector = if random {
            let stream = &self.streams[direction as usize];
            self.start + self.places[stream.places].next(&mut self.rng) * stream.unit
        } else {
            self.sequential(direction)?
        };
        // As in fio, a longer I/O that reaches beyond the end gets the smallest length.
        let Stream { min: least, ref sizes, .. } = self.streams[direction as usize];
        let end = match (random, sizes.fixed()) {
            (true, None) if self.strides.is_some() => self.bounds.fit,
            (true, _) => self.end,
            (false, Some(_)) => self.bounds.end,
            (false, None) => self.bounds.fit,
        };
        let sectors = if sector + wanted > end { least } else { wanted };
        if sector + sectors > end {
            return None;
        }
        let (sector, sectors) = if random && self.cover.is_some() {
            self.uncovered(sector, sectors)
        } else {
            (sector, sectors)
        };
        let stream = &mut self.streams[direction as usize];
        stream.cursor = sector + sectors;
        let (op, flags) = (stream.op, stream.flags);
        let prio = self.prios.next(direction, sectors);
        Some(NextIo { op, flags, prio, sectors: sectors as u32, sector })
    }

    /// The blocks that are taken for an I/O that was drawn at `sector`.
    #[inline(never)]
    fn uncovered(&mut self, sector: u64, sectors: u64) -> (u64, u64) {
        let Some((cover, unit)) = &mut self.cover else { return (sector, sectors) };
        let (first, blocks) = cover.take((sector - self.start) / *unit, sectors / *unit);
        (self.start + first * *unit, blocks * *unit)
    }

    /// Returns whether the offset of the next I/O is drawn.
    #[inline]
    fn is_random(&mut self, direction: Direction) -> bool {
        if !self.random {
            return false;
        }
        let (run, left) = &mut self.run;
        if *left > 0 {
            *left -= 1;
            return false;
        }
        *left = *run - 1;
        let below = self.streams[direction as usize].random_below;
        below == ALWAYS || self.rng.next_u64() < below
    }

    /// The sector of the next sequential I/O; `None` beyond the region.
    #[inline]
    fn sequential(&mut self, direction: Direction) -> Option<u64> {
        let Stream { cursor, min, places, unit, .. } = self.streams[direction as usize];
        if self.random {
            // As in fio, a run that meets the end continues at a random offset.
            let Bounds { size, end, .. } = self.bounds;
            let is_over = cursor + min > end || cursor >= self.start + size;
            return Some(if is_over {
                self.start + self.places[places].next(&mut self.rng) * unit
            } else {
                cursor
            });
        }
        self.bounds.next(cursor, self.start, self.hole)
    }

    /// The next I/O, like [`next`](Iterator::next). For a mix of reads and writes, `steer` maps the drawn direction to
    /// the one to use.
    #[inline]
    pub fn next_steered(&mut self, steer: impl Fn(Direction) -> Direction) -> Option<NextIo> {
        match self.plain {
            Some(plain) => self.next_plain(plain),
            None => self.next_of_many(steer),
        }
    }

    fn next_of_many(&mut self, steer: impl Fn(Direction) -> Direction) -> Option<NextIo> {
        if let Some((tape, next)) = &mut self.tape {
            let taped = tape.ios().get(*next)?;
            *next += 1;
            return Some(taped.io);
        }
        if let Some(io) = self.queued.take() {
            // As in fio, a trim and its write count once, in bytes and in number_ios.
            self.chain(&io);
            return Some(io);
        }
        if let Some(io) = self.turns.as_mut().and_then(|turns| turns.partner()) {
            self.count_write(&io);
            return Some(io);
        }
        loop {
            // As in fio, a flush goes before an I/O, and after the last one only if the pass ends because no offset was
            // found.
            let is_last = self.is_flush_due() && self.pass.is_cut();
            if self.pass.is_over() && !is_last && !self.begin_pass() {
                return None;
            }
            if self.is_flush_due() {
                (self.is_flushed, self.ends_flushed) = (true, true);
                return Some(NextIo::flush(self.prios.own()));
            }
            let drawn = match &mut self.turns {
                None => self.draw(&steer),
                Some(turns) => turns.next(&steer),
            };
            let Some(io) = drawn else {
                // A pass without an I/O is the last one, so this loop ends.
                self.pass.end();
                continue;
            };
            self.pass.count(io.sectors);
            if let Some(strides) = &mut self.strides {
                strides.count(io.sectors);
            }
            if self.chains {
                self.chain(&io);
            }
            return Some(io);
        }
    }

    /// Queues the I/O that must follow `io`, or counts the write.
    #[inline(never)]
    fn chain(&mut self, io: &NextIo) {
        if self.trimwrite && io.op == Op::Discard {
            let write = &self.streams[Direction::Write as usize];
            self.queued = Some(NextIo { op: write.op, flags: write.flags, ..*io });
        } else {
            self.count_write(io);
        }
    }

    #[inline]
    fn is_flush_due(&self) -> bool {
        let is_due = |n: &u32| *n > 0 && self.writes.is_multiple_of((*n).into());
        !self.is_flushed && self.flushes.iter().any(is_due)
    }

    /// Returns whether the last I/O of a stream with flushes was one.
    pub(super) fn ends_flushed(&self) -> bool {
        self.ends_flushed
    }

    fn count_write(&mut self, io: &NextIo) {
        self.ends_flushed = false;
        if io.op == Op::Write {
            self.writes += 1;
            self.is_flushed = false;
        }
    }
}

impl Generator {
    /// Goes on to the next zone before an I/O of `direction`, or to the start of this one.
    #[inline(never)]
    fn stride(&mut self, direction: Direction) {
        let Some(strides) = &mut self.strides else { return };
        let cursor = &mut self.streams[direction as usize].cursor;
        let is_entered = strides.advance(&mut self.start, cursor, self.random);
        if is_entered {
            self.rewind();
        }
    }
}

impl Bounds {
    fn new(region: Region) -> Self {
        let sectors = |bytes: u64| bytes / u64::from(SECTOR_SIZE);
        Self {
            size: region.asked.div_ceil(SECTOR_SIZE.into()),
            fit: sectors(region.start + region.asked.min(region.room)),
            file: (region.start - region.file + region.room).div_ceil(SECTOR_SIZE.into()),
            end: sectors(region.start + region.room),
            origin: sectors(region.file),
        }
    }

    /// The sector of the sequential I/O behind `cursor` with a `hole`, in the region or zone that begins at `start`;
    /// `None` if there is none. As in fio, an I/O with a hole that would begin beyond the end of the file wraps to the
    /// start, or backwards to the end; in a file that is longer than the `size`, the pass ends.
    #[inline(never)]
    fn next(&self, cursor: u64, start: u64, hole: i64) -> Option<u64> {
        let Self { size, file, origin, .. } = *self;
        let (start, mut last) = (start - origin, cursor - origin);
        if last >= file {
            return None;
        }
        let end = size.min(file);
        if hole < 0 && last == start && start > 0 {
            last = end;
        }
        // Offsets before the start wrap to large numbers, beyond any end.
        let mut place = last.wrapping_sub(start);
        if place > 0 && hole != 0 {
            place = place.wrapping_add_signed(hole);
            if place >= file {
                // As in fio, counted from the start of the region, not from that of the file.
                place = if hole > 0 { start } else { end.wrapping_add_signed(hole) };
            }
        }
        let sector = start.checked_add(place).filter(|sector| *sector < file)?;
        (place < size).then_some(origin + sector)
    }
}

impl Iterator for Generator {
    type Item = NextIo;

    #[inline]
    fn next(&mut self) -> Option<NextIo> {
        self.next_steered(|direction| direction)
    }
}

impl Stream {
    fn new(job: &Job, direction: Direction, region: Region) -> Self {
        let min = job.bs[direction].min();
        let flags = match direction {
            Direction::Read => IoFlags::SYNC,
            Direction::Write if job.sync => IoFlags::SYNC | IoFlags::FUA,
            Direction::Write if job.direct => IoFlags::SYNC,
            Direction::Write | Direction::Trim => IoFlags::NONE,
        };
        Self {
            op: direction.op(),
            flags,
            sizes: Sizes::new(&job.bs[direction]),
            min: u64::from(min / SECTOR_SIZE),
            unit: u64::from(job.blockalign[direction].unwrap_or(min) / SECTOR_SIZE),
            places: 0,
            random_below: threshold(job.percentage_random[direction]),
            cursor: region.start / u64::from(SECTOR_SIZE),
        }
    }

    /// The number of offsets of its shortest I/O in `region`.
    fn blocks(&self, region: Region) -> u64 {
        (region.size / u64::from(SECTOR_SIZE)).saturating_sub(self.min) / self.unit + 1
    }
}

/// Makes the `places` from which the directions of `job` draw, and assigns them to the streams. Equal directions share
/// one, so that each block is visited by one of them.
fn place(
    job: &Job,
    region: Region,
    streams: &mut [Stream; 3],
    shared: &mut Rng,
    rng: &mut Rng,
) -> [Places; 3] {
    let mut places = std::array::from_fn(|_| Places::uniform(1));
    let mut made: [Option<(u64, u64)>; 3] = [None; 3];
    for &direction in job.rw.directions() {
        let stream = &mut streams[direction as usize];
        let (unit, blocks) = (stream.unit, stream.blocks(region));
        if let Some(at) = made.iter().position(|made| *made == Some((unit, blocks))) {
            stream.places = at;
            continue;
        }
        let at = direction as usize;
        made[at] = Some((unit, blocks));
        stream.places = at;
        let uniform = !job.has_map() || !has_one_size(job);
        let bytes = unit * u64::from(SECTOR_SIZE);
        places[at] = match (Ranks::new(&job.random_distribution, blocks), &job.random_distribution)
        {
            (Some(ranks), distribution) => {
                Places::ranked(ranks, blocks, distribution.centre(), shared)
            }
            (None, Distribution::Zoned(zones)) => Places::Zoned(zones.blocks(blocks, bytes)),
            (None, _) if uniform => Places::uniform(blocks),
            (None, _) => Places::each_once(blocks, rng),
        };
    }
    places
}

/// The bytes in whole blocks that a pass over `region` covers, if it covers each block once.
fn mapped(job: &Job, region: Region) -> Option<u64> {
    let is_drawn = |direction: &Direction| job.percentage_random[*direction] == 100;
    let is_mapped = job.has_map() && job.strided.is_none();
    (is_mapped && job.rw.directions().iter().all(is_drawn)).then_some(region.size)
}

/// Returns whether all I/Os of the job have the same length.
fn has_one_size(job: &Job) -> bool {
    let mut sizes = job.used_block_sizes();
    let first = sizes.next().map(BlockSize::min);
    job.used_block_sizes().all(|bs| bs.is_fixed() && Some(bs.min()) == first)
}

/// The map of a job with several block sizes. Its block size is the common unit of all of them.
fn cover(job: &Job, region: Region) -> Result<Option<(Cover, u64)>, GeneratorError> {
    // The map for several sizes covers a region, and a zone has none.
    if !job.has_map() || has_one_size(job) || job.strided.is_some() {
        return Ok(None);
    }
    let unit = u64::from(job.io_unit());
    let blocks = region.size / unit;
    if blocks > Cover::MAX {
        return Err(GeneratorError::Map(blocks));
    }
    Ok(Some((Cover::new(blocks), unit / u64::from(SECTOR_SIZE))))
}

#[cfg(test)]
#[path = "generator_tests.rs"]
mod tests;

/// Makes the bytes of the buffers of one thread.
#[derive(Clone, Debug)]
pub struct Filler {
    rng: Rng,
    contents: Contents,
    /// The thread writes at all.
    writes: bool,
    repeats: Repeats,
}

/// Chooses the bytes that a write repeats. A buffer is identified by the state of the generator that made it.
#[derive(Clone, Debug)]
struct Repeats {
    choice: Rng,
    /// The last unique buffer.
    last: Rng,
    /// The number of the first buffer of the working set.
    first: u64,
    /// The length of the working set.
    buffers: u64,
}

impl Filler {
    /// For thread `thread` of `job` on a device of `device_bytes`. Each thread has a seed of its own.
    #[must_use]
    pub fn new(job: &Job, thread: u32, device_bytes: u64) -> Self {
        let contents = job.contents.clone();
        let writes = job.rw.directions().contains(&Direction::Write);
        // Not the bytes of the offsets' stream: the two streams must not repeat each other.
        let seed = job.randseed ^ u64::from(job.index) << 32 ^ u64::from(thread) ^ 0x6275_6666;
        let rng = Rng::new(seed);
        let regions = job.regions(thread, device_bytes).unwrap_or_default();
        let bytes: u64 = regions.iter().map(|region| region.size).sum();
        let buffers = bytes / job.smallest_block() * u64::from(contents.working_set) / 100;
        let choice = Rng::new(seed.rotate_left(32));
        let first = if contents.is_global { job.randseed } else { choice.clone().next_u64() };
        let repeats = Repeats { choice, last: rng.clone(), first, buffers: buffers.max(1) };
        Self { rng, contents, writes, repeats }
    }

    /// Fills a new buffer.
    pub fn begin(&mut self, bytes: &mut [u8]) {
        if self.writes && !self.contents.is_zero {
            self.fill(bytes);
        }
    }

    /// Makes the bytes of the next write in a buffer that was used before.
    #[inline]
    pub fn next(&mut self, bytes: &mut [u8]) {
        let Contents { is_zero, refills, scrambles, .. } = self.contents;
        if is_zero {
            // A read may have left its bytes.
            bytes.fill(0);
        } else if refills || self.contents.pattern.is_some() {
            self.fill(bytes);
        } else if scrambles {
            for sector in bytes.chunks_mut(SECTOR_SIZE as usize) {
                let stamp = self.rng.next_u64().to_le_bytes();
                let len = sector.len().min(stamp.len());
                sector[..len].copy_from_slice(&stamp[..len]);
            }
        }
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        let Self { rng, contents, repeats, .. } = self;
        if repeats.choice.chance(contents.dedupe.into(), 100) {
            let mut rng = match contents.dedupe_mode {
                DedupeMode::Repeat => repeats.last.clone(),
                DedupeMode::WorkingSet => {
                    let at = repeats.choice.below(repeats.buffers);
                    Rng::new(repeats.first.wrapping_add(at))
                }
            };
            contents.fill(&mut rng, bytes);
        } else {
            repeats.last = rng.clone();
            contents.fill(rng, bytes);
        }
    }
}

/// Draws priorities. Its random numbers are its own, so that places and lengths do not depend on priorities.
#[derive(Clone, Debug)]
pub(super) struct Prios {
    prio: IoPrio,
    /// Whether there is any priority besides `prio`.
    varied: bool,
    special: PerDirection<CmdPrio>,
    rng: Rng,
}

impl Prios {
    pub(super) fn new(job: &Job, seed: u64) -> Self {
        let varied = job.cmdprio.iter().any(|(_, special)| *special != CmdPrio::None);
        // An arbitrary number that makes this another stream than that of places.
        let rng = Rng::new(seed ^ 0x7072_696f);
        Self { prio: job.prio, varied, special: job.cmdprio.clone(), rng }
    }

    /// The priority of the job.
    pub(super) fn own(&self) -> IoPrio {
        self.prio
    }

    /// Returns whether an I/O may have a priority other than that of the job.
    fn is_varied(&self) -> bool {
        self.varied
    }

    /// The priority of an I/O.
    #[inline]
    pub(super) fn next(&mut self, direction: Direction, sectors: u64) -> IoPrio {
        if self.varied { self.draw(direction, sectors) } else { self.prio }
    }

    #[inline(never)]
    fn draw(&mut self, direction: Direction, sectors: u64) -> IoPrio {
        let mut percent = self.rng.below(100) as u8;
        match &self.special[direction] {
            CmdPrio::None => self.prio,
            CmdPrio::Percentage(share, prio) if percent < *share => *prio,
            CmdPrio::Percentage(..) => self.prio,
            CmdPrio::Split(parts) => {
                let bytes = sectors * u64::from(SECTOR_SIZE);
                for (_, share, prio) in parts.iter().filter(|part| u64::from(part.0) == bytes) {
                    if percent < *share {
                        return *prio;
                    }
                    percent -= share;
                }
                self.prio
            }
        }
    }
}
