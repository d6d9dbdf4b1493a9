//! The stream of I/Os of one thread of a job.
//!
//! The stream depends on the job, its index, the thread's index, the size of the device and nothing else. For uniform
//! patterns an I/O costs a few nanoseconds: values that do not change are computed in [`Generator::new`], and a block
//! is found by a multiplication instead of a division.

use super::block_size::Sizes;
use super::distribution::{Places, Ranks};
use super::{Direction, Job, JobError, Region, RegionError, Rw};
use blkmq_core::{IoFlags, IoPrio, Op, Rng, SECTOR_SIZE};
use std::fmt;

/// The next I/O of a workload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NextIo {
    /// The operation. A [`Op::Flush`] carries no sectors.
    pub op: Op,
    /// Sync for reads, and for writes of `direct` and `sync` jobs; FUA for writes of `sync` jobs.
    pub flags: IoFlags,
    /// The job's priority.
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

/// A job that cannot be turned into a stream.
#[derive(Clone, PartialEq, Debug)]
pub enum GeneratorError {
    /// The job itself is impossible.
    Job(JobError),
    /// The job does not fit the device.
    Region(RegionError),
}

impl fmt::Display for GeneratorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Job(e) => e.fmt(f),
            Self::Region(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for GeneratorError {}

/// Yields the I/Os of one thread, in order. Allocates nothing after its creation.
///
/// It ends after `loops` passes of `io_size` bytes or `number_ios` I/Os each; a `time_based` stream never
/// ends. A random pass without `norandommap` starts no I/O at a block where one has started before, until
/// all blocks of the region have had their turn; reads and writes of a mix share the turns if they share a
/// block size. With several block sizes, blocks are those of the smallest, and longer I/Os overlap the
/// next ones.
#[derive(Clone, Debug)]
pub struct Generator {
    rng: Rng,
    choice: Choice,
    random: bool,
    /// The streams, by direction.
    streams: [Stream; 3],
    places: [Places; 3],
    prio: IoPrio,
    start: u64,
    end: u64,
    /// Issued before any new I/O: the write half of a trimwrite.
    queued: Option<NextIo>,
    /// Does an I/O ever cause another one?
    chains: bool,
    trimwrite: bool,
    fsync: u32,
    /// Writes since the last flush; with `fsync` of them, a flush goes before the next I/O.
    writes_since_flush: u32,
    pass: Pass,
}

/// How the direction of an I/O is found.
#[derive(Clone, Copy, Debug)]
enum Choice {
    Only(Direction),
    /// A read if the next random number is below this.
    Mix(u64),
}

/// The rest of a pass.
#[derive(Clone, Copy, Debug)]
struct Pass {
    sectors_left: u64,
    ios_left: u64,
    /// Passes after this one.
    more: u64,
    sectors: u64,
    ios: u64,
}

/// One direction of the workload.
#[derive(Clone, Debug)]
struct Stream {
    op: Op,
    flags: IoFlags,
    sizes: Sizes,
    /// The smallest length, in sectors.
    min: u64,
    /// Random places are multiples of this many sectors from the start of the region.
    unit: u64,
    /// The index of the generator's places that it draws from.
    places: usize,
    /// The place is random if the next random number is below this. `ALWAYS` needs no number.
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
        let region = job.region(thread, device_bytes).map_err(GeneratorError::Region)?;
        // Hot blocks are the same for all threads of a job, as when many users want the same file.
        let mut shared = Rng::new(job.randseed ^ Rng::new(job.index.into()).next_u64());
        let mut rng = Rng::new(shared.next_u64() ^ u64::from(thread));
        let mut streams = Direction::ALL.map(|direction| Stream::new(job, direction, region));
        let places = place(job, region, &mut streams, &mut shared, &mut rng);
        let trimwrite = matches!(job.rw, Rw::TrimWrite | Rw::RandTrimWrite);
        let pass = Pass {
            sectors_left: 0,
            ios_left: 0,
            more: if job.time_based { u64::MAX } else { job.loops.into() },
            sectors: region.io_size.div_ceil(SECTOR_SIZE.into()),
            ios: job.number_ios.unwrap_or(u64::MAX),
        };
        Ok(Self {
            rng,
            choice: match job.rw {
                Rw::ReadWrite | Rw::RandRw if job.rwmixread == 0 => Choice::Only(Direction::Write),
                Rw::ReadWrite | Rw::RandRw if job.rwmixread < 100 => {
                    Choice::Mix(threshold(job.rwmixread))
                }
                rw => Choice::Only(rw.directions()[0]),
            },
            random: job.rw.is_random(),
            streams,
            places,
            prio: job.prio,
            start: region.start / u64::from(SECTOR_SIZE),
            end: (region.start + region.size) / u64::from(SECTOR_SIZE),
            queued: None,
            chains: trimwrite || job.fsync > 0,
            trimwrite,
            fsync: job.fsync,
            writes_since_flush: 0,
            pass,
        })
    }

    /// Starts the next pass, if there is one.
    fn begin_pass(&mut self) -> bool {
        let pass = &mut self.pass;
        if pass.more == 0 || pass.ios == 0 {
            return false;
        }
        if pass.more != u64::MAX {
            pass.more -= 1;
        }
        (pass.sectors_left, pass.ios_left) = (pass.sectors, pass.ios);
        self.streams.iter_mut().for_each(|stream| stream.cursor = self.start);
        true
    }

    #[inline]
    fn draw(&mut self) -> NextIo {
        let direction = match self.choice {
            Choice::Only(direction) => direction,
            Choice::Mix(read_below) if self.rng.next_u64() < read_below => Direction::Read,
            Choice::Mix(_) => Direction::Write,
        };
        let stream = &mut self.streams[direction as usize];
        let sectors = stream.sizes.next(&mut self.rng);
        let random = self.random
            && (stream.random_below == ALWAYS || self.rng.next_u64() < stream.random_below);
        let sector = if random {
            let block = self.places[stream.places].next(&mut self.rng);
            self.start + block * stream.unit
        } else if stream.cursor + stream.min > self.end {
            self.start
        } else {
            stream.cursor
        };
        // Only lengths above the smallest can reach beyond the end.
        let sectors = u64::from(sectors).min(self.end - sector) as u32;
        stream.cursor = sector + u64::from(sectors);
        NextIo { op: stream.op, flags: stream.flags, prio: self.prio, sectors, sector }
    }

    /// Queues the I/O that must follow `io`, or counts the write.
    fn chain(&mut self, io: &NextIo) {
        if self.trimwrite && io.op == Op::Discard {
            let write = &self.streams[Direction::Write as usize];
            self.queued = Some(NextIo { op: write.op, flags: write.flags, ..*io });
        } else if io.op == Op::Write {
            self.writes_since_flush += 1;
        }
    }
}

impl Iterator for Generator {
    type Item = NextIo;

    #[inline]
    fn next(&mut self) -> Option<NextIo> {
        if let Some(io) = self.queued.take() {
            // As in fio, a trim and its write count once, in bytes and in number_ios.
            self.chain(&io);
            return Some(io);
        }
        if (self.pass.sectors_left == 0 || self.pass.ios_left == 0) && !self.begin_pass() {
            return None;
        }
        // As in fio, a flush goes before an I/O and not behind the last one.
        if self.fsync > 0 && self.writes_since_flush >= self.fsync {
            self.writes_since_flush = 0;
            return Some(NextIo::flush(self.prio));
        }
        let io = self.draw();
        self.pass.sectors_left = self.pass.sectors_left.saturating_sub(io.sectors.into());
        self.pass.ios_left -= 1;
        if self.chains {
            self.chain(&io);
        }
        Some(io)
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

    /// The number of places of its shortest I/O in `region`.
    fn blocks(&self, region: Region) -> u64 {
        (region.size / u64::from(SECTOR_SIZE) - self.min) / self.unit + 1
    }
}

/// Makes the places that the directions of `job` draw from, and assigns them to the streams. Equal directions share,
/// so that a block is visited by either of them.
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
        let uniform = job.norandommap || job.blockalign[direction].is_some();
        places[at] = match Ranks::new(job.random_distribution, blocks) {
            Some(ranks) => Places::ranked(ranks, blocks, shared),
            None if uniform => Places::uniform(blocks),
            None => Places::each_once(blocks, rng),
        };
    }
    places
}

#[cfg(test)]
#[path = "generator_tests.rs"]
mod tests;
