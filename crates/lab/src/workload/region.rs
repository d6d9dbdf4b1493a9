//! The region of a thread on the device: `offset`, `offset_increment` and `size`, resolved.

use super::{Amount, BlockSize, Direction, Distribution, File, Files, Job};
use blkmq_core::SECTOR_SIZE;

/// The part of the device that one thread touches, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// First byte of the file that it lies in, on the device: 0 where the device has no files.
    pub file: u64,
    /// First byte on the device, a multiple of a sector.
    pub start: u64,
    /// Length: a multiple of the smallest block that the job issues, and at least one of its largest
    /// smallest block.
    pub size: u64,
    /// Bytes from the start to the end of the file, or of the device.
    pub room: u64,
    /// The length that was asked for, of which `size` are whole blocks.
    pub asked: u64,
}

/// A thread whose region does not exist on the device. All fields are bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RegionError {
    /// The region would start at or behind the end.
    #[error(
        "offset + offset_increment * thread is {start}, but the device ends at {device}; accepted \
         are offsets below that"
    )]
    BeyondDevice {
        /// The start of the region.
        start: u64,
        /// Size of the device.
        device: u64,
    },
    /// The region would end behind the end.
    #[error(
        "size={size} from offset {start} does not fit into a device of {device} bytes; accepted is \
         up to {}",
        .device.saturating_sub(*.start)
    )]
    DoesNotFit {
        /// The length asked for.
        size: u64,
        /// The start of the region.
        start: u64,
        /// Size of the device.
        device: u64,
    },
    /// The zones of `zoned_abs` would end behind the end of the region.
    #[error(
        "random_distribution=zoned_abs: the zones end at {end}; accepted is up to {size}, the size \
         of the job"
    )]
    Zones {
        /// The end of the last zone.
        end: u64,
        /// The length of the region.
        size: u64,
    },
    /// Not one block fits into the region.
    #[error("size={size} is smaller than the block size; accepted is {bs} (bs) or more")]
    TooSmall {
        /// Its length.
        size: u64,
        /// The smallest block of the job.
        bs: u64,
    },
}

impl Job {
    /// The region of thread `thread` (0 to `numjobs - 1`) of this job on a device of `device_bytes`.
    ///
    /// # Errors
    /// If the region leaves the device or holds no block.
    pub fn region(&self, thread: u32, device_bytes: u64) -> Result<Region, RegionError> {
        self.region_of(thread, device_bytes, self.size)
    }

    /// The smallest block that the job issues, in bytes.
    #[must_use]
    pub fn smallest_block(&self) -> u64 {
        let smallest = self.used_block_sizes().map(|bs| u64::from(bs.min())).min();
        smallest.unwrap_or(1).max(1)
    }

    /// The region of `size` on a device of `device_bytes`, or in a file of that length.
    pub(super) fn region_of(
        &self,
        thread: u32,
        device_bytes: u64,
        size: Option<Amount>,
    ) -> Result<Region, RegionError> {
        let length = match self.found {
            Some(found) if self.files.is_none() => self.before(thread, self.numjobs, found),
            _ => device_bytes,
        };
        let granule = self.smallest_block();
        let needed = self.used_block_sizes().map(|bs| u64::from(bs.min())).max().unwrap_or(1);
        let start = self.start(thread, length);
        let length = if self.found.is_some() { self.after(thread, length) } else { length };
        let device = length - length % u64::from(SECTOR_SIZE);
        if start >= device {
            return Err(RegionError::BeyondDevice { start, device });
        }
        let room = length - start;
        let whole_room = device - start;
        // A share is of the whole device, so it is cut to fit; a size in bytes that does not fit is an error.
        let (asked, size) = match size {
            None => (whole_room, whole_room),
            Some(share @ Amount::Percent(_)) => {
                let size = share.bytes(device, granule).min(room);
                (size, size)
            }
            // It fills as much as there is.
            Some(Amount::Bytes(size)) if self.fill_device => (size.min(room), size.min(room)),
            // Less than a sector is no block of it.
            Some(Amount::Bytes(size))
                if size > room && size - size % u64::from(SECTOR_SIZE) <= whole_room =>
            {
                (size, whole_room)
            }
            Some(Amount::Bytes(size)) if size > room => {
                return Err(RegionError::DoesNotFit { size, start, device });
            }
            Some(Amount::Bytes(size)) => (size, size),
        };
        if size < needed {
            return Err(RegionError::TooSmall { size, bs: needed });
        }
        let room = if self.ends_at_size { size } else { room };
        let size = self.whole_blocks(size, room, granule);
        if let Distribution::Zoned(zones) = &self.random_distribution
            && zones.end() > size
        {
            return Err(RegionError::Zones { end: zones.end(), size });
        }
        Ok(Region { file: 0, start, size, room, asked })
    }

    /// The first byte of thread `thread` in a file of `length` bytes. As in fio, a share is rounded up to the smallest
    /// block of any direction.
    fn start(&self, thread: u32, length: u64) -> u64 {
        let shares = [self.offset, self.offset_increment];
        let [offset, step] = shares.map(|amount| amount.bytes(length, 1));
        let start = offset.saturating_add(step.saturating_mul(thread.into()));
        if !shares.iter().any(|amount| matches!(amount, Amount::Percent(_))) {
            return start;
        }
        let smallest = self.bs.iter().map(|(_, bs)| u64::from(bs.min())).min().unwrap_or(1);
        start.checked_next_multiple_of(smallest.max(1)).unwrap_or(start)
    }

    /// The length of the file when thread `thread` of `threads` begins, which was `found` when the job began. As in
    /// fio, the first thread begins first, and then the last one.
    fn before(&self, thread: u32, threads: u32, found: u64) -> u64 {
        if thread == 0 {
            return found;
        }
        let found = self.after(0, found);
        match (self.offset, self.offset_increment) {
            // The last thread reaches furthest.
            (Amount::Bytes(_), Amount::Bytes(_)) if thread + 1 < threads => {
                self.after(threads - 1, found)
            }
            _ => {
                (thread + 1..threads).rev().fold(found, |length, thread| self.after(thread, length))
            }
        }
    }

    /// The length of a file of `length` bytes that thread `thread` makes long enough for its region.
    fn after(&self, thread: u32, length: u64) -> u64 {
        match self.size {
            Some(Amount::Bytes(size)) => {
                length.max(self.start(thread, length).saturating_add(size))
            }
            _ => length,
        }
    }

    /// The length of a file of `found` bytes that is long enough for `threads` threads. As in fio, threads make it
    /// longer one after the other, and each sees the end that the one before has left.
    #[must_use]
    pub fn extended(&self, threads: u32, found: u64) -> u64 {
        // Of several threads, the second one is the last to begin.
        let last = threads.saturating_sub(1).min(1);
        self.after(last, self.before(last, threads, found))
    }

    /// `size` in whole blocks of `granule` bytes. As in fio, the last block of a sequential job with one block size may
    /// end beyond `size`, if the file is longer.
    fn whole_blocks(&self, size: u64, room: u64, granule: u64) -> u64 {
        if self.hole != 0 {
            // Places are no multiples of the block.
            return size - size % u64::from(SECTOR_SIZE);
        }
        let down = size - size % granule;
        let reaches_over = !self.rw.is_random()
            && self.hole == 0
            && self.files.is_none()
            && self.has_one_block(granule);
        match size.checked_next_multiple_of(granule) {
            Some(up) if reaches_over && up <= room => up,
            _ => down,
        }
    }

    /// Returns whether the job covers each block once. Runs of sequential I/Os overlap, whatever blocks they begin at.
    pub(super) fn has_map(&self) -> bool {
        // As in fio, the grid of any direction, used or not.
        let is_aligned = |direction: &Direction| {
            self.blockalign[*direction].is_some_and(|grid| grid != self.bs[*direction].min())
        };
        self.rw.is_random()
            && self.random_distribution == Distribution::Uniform
            && !(self.norandommap || self.run > 1 || Direction::ALL.iter().any(is_aligned))
    }

    /// Returns whether `granule` is the length of every I/O.
    fn has_one_block(&self, granule: u64) -> bool {
        self.used_block_sizes().all(|bs| *bs == BlockSize::Fixed(granule as u32))
    }

    /// The regions of thread `thread` on a device of `device_bytes`: one, or one in each of its files.
    ///
    /// # Errors
    /// As [`region`](Self::region), for a file as for a device.
    pub fn regions(&self, thread: u32, device_bytes: u64) -> Result<Vec<Region>, RegionError> {
        let Some(files) = &self.files else { return Ok(vec![self.region(thread, device_bytes)?]) };
        let one = |(at, file): (usize, &File)| {
            let size = match self.size {
                _ if files.is_sized => None,
                Some(Amount::Bytes(size)) => {
                    Some(Amount::Bytes(Files::share(at, files.each, size, self.smallest_block())))
                }
                share => share,
            };
            let File { start, bytes } = *file;
            let sectors = bytes - bytes % u64::from(SECTOR_SIZE);
            if start.saturating_add(sectors) > device_bytes {
                return Err(RegionError::DoesNotFit { size: bytes, start, device: device_bytes });
            }
            let region = self.region_of(thread, bytes, size)?;
            Ok(Region { file: start, start: start + region.start, ..region })
        };
        files.of(thread).iter().enumerate().map(one).collect()
    }

    /// The bytes that a pass over `regions` issues, and those that all passes issue together but for `loops`.
    pub(super) fn amounts(&self, regions: &[Region]) -> (u64, u64) {
        let all = regions.iter().map(|region| region.asked).sum();
        let size = match self.size {
            Some(Amount::Bytes(bytes)) => bytes.min(all),
            _ => all,
        };
        let amount = match self.io_size {
            None => size,
            Some(Amount::Bytes(bytes)) => bytes,
            Some(share) => share.bytes(all, 1).min(size),
        };
        (size, amount)
    }

    /// The part of `region` in which random places are drawn: its first zone, or all of it.
    pub(super) fn zone_of(&self, region: Region) -> Region {
        let Some(strided) = self.strided else { return region };
        Region { size: region.room.min(strided.range), ..region }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{FileService, PerDirection, Rw};
    use super::*;

    const KIB: u64 = 1024;
    const GIB: u64 = 1 << 30;

    #[test]
    fn threads_start_an_increment_apart() {
        let job = Job {
            offset: Amount::Bytes(4096),
            offset_increment: Amount::Bytes(GIB),
            ..Job::default()
        };
        let region = job.region(3, 10 * GIB).expect("fits");
        assert_eq!(
            region,
            Region {
                file: 0,
                start: 4096 + 3 * GIB,
                size: 7 * GIB - 4096,
                room: 7 * GIB - 4096,
                asked: 7 * GIB - 4096
            }
        );
        let beyond = job.region(10, 10 * GIB).expect_err("ends before");
        assert_eq!(beyond, RegionError::BeyondDevice { start: 4096 + 10 * GIB, device: 10 * GIB });
    }

    #[test]
    fn shares_are_of_the_device_and_whole_blocks() {
        let job =
            Job { size: Some(Amount::Percent(50)), offset: Amount::Percent(33), ..Job::default() };
        let region = job.region(0, 1_000_448).expect("fits");
        assert_eq!((region.start % 4096, region.size % 4096), (0, 0));
        assert_eq!((region.start, region.size), (331_776, 499_712));
    }

    /// The places of fio 3.33 on a file of 64 MiB, in KiB. Shares of offsets were rounded down.
    #[test]
    fn shares_of_offsets_are_rounded_up_as_in_fio() {
        let bs = PerDirection::all(BlockSize::Fixed(64 * 1024));
        let size = Some(Amount::Bytes(1 << 20));
        for (percent, start) in [(33, 21_632), (10, 6_592), (50, 32_768), (1, 704)] {
            let job =
                Job { bs: bs.clone(), size, offset: Amount::Percent(percent), ..Job::default() };
            assert_eq!(job.region(0, 64 << 20).expect("fits").start, start * KIB, "{percent} %");
            let (offset, offset_increment) = (Amount::ZERO, Amount::Percent(percent));
            let job = Job { offset, offset_increment, ..job };
            assert_eq!(job.region(1, 64 << 20).expect("fits").start, start * KIB, "{percent} %");
        }
        let share = Job { bs, size: Some(Amount::Percent(33)), ..Job::default() };
        assert_eq!(share.region(0, 64 << 20).expect("fits").size, 337 * 64 * KIB);
    }

    /// As with fio 3.33, which takes shares of the file as it was: the end that a later job needs moved the start.
    #[test]
    fn each_thread_sees_the_file_that_the_one_before_has_left() {
        let found = Some(1_050_112);
        let (size, offset) = (Some(Amount::Bytes(2 << 20)), Amount::Percent(10));
        let bs = PerDirection::new(8192, 4096, 16384);
        let mut job = Job { size, offset, found, numjobs: 3, ..Job::default() };
        for (direction, bytes) in bs.iter() {
            job.bs[direction] = BlockSize::Fixed(*bytes);
        }
        let starts = [0, 1, 2].map(|thread| {
            let region = job.region(thread, GIB).expect("fits");
            (region.start, region.room - (2 << 20))
        });
        assert_eq!(starts, [(106_496, 0), (233_472, 0), (221_184, 0)]);
        assert_eq!(job.extended(3, 1_050_112), 233_472 + (2 << 20));
        // Of four threads at a distance, the one that begins furthest follows the first.
        let [offset, apart] = [Amount::ZERO, Amount::Percent(11)];
        let four =
            Job { size, found, offset, offset_increment: apart, numjobs: 4, ..Job::default() };
        let starts = [0, 1, 2, 3].map(|thread| four.region(thread, GIB).expect("fits").start);
        assert_eq!(starts, [0, 307_200, 614_400, 692_224]);
        assert_eq!(four.extended(4, 1_050_112), 2_789_376);
        let four = Job { offset_increment: Amount::Bytes(32 * KIB), ..four };
        let rooms = [0, 1, 2, 3].map(|thread| four.region(thread, GIB).expect("fits").room);
        assert_eq!(rooms.map(|room| (room - (2 << 20)) / KIB), [0, 64, 32, 0]);
        // A later job makes the file longer than this one knows it.
        let ends =
            Job { found: Some(0), offset: Amount::ZERO, ..job }.region(0, GIB).expect("fits");
        assert_eq!(ends.room, 2 << 20);
    }

    /// fio 3.33 reads 85 blocks of 4 KiB for 33 percent of a MiB, wherever it lies.
    #[test]
    fn io_size_is_a_share_of_size() {
        let io_size = Some(Amount::Percent(33));
        let job = Job { size: Some(Amount::Bytes(1 << 20)), io_size, ..Job::default() };
        let amount = |job: &Job| job.amounts(&[job.region(0, GIB).expect("fits")]).1;
        assert_eq!(amount(&job), (1 << 20) * 33 / 100);
        assert_eq!(amount(&job).div_ceil(4096), 85);
        let half =
            Job { size: Some(Amount::Percent(50)), io_size: Some(Amount::Percent(50)), ..job };
        assert_eq!(amount(&half), GIB / 4);
        let odd = Job {
            size: Some(Amount::Bytes(2_000_000)),
            io_size: Some(Amount::Percent(25)),
            ..half
        };
        assert_eq!(amount(&odd), 500_000, "of all of size");
    }

    /// Regression test: all of the device was overwritten, whatever `size` said.
    #[test]
    fn a_device_is_filled_no_further_than_size() {
        let fill = |size| Job { size, fill_device: true, ..Job::default() };
        let region = |size| fill(size).region(0, GIB).expect("fits").size;
        assert_eq!(region(Some(Amount::Bytes(1 << 20))), 1 << 20);
        assert_eq!(region(Some(Amount::Percent(25))), GIB / 4);
        assert_eq!(region(Some(Amount::Bytes(2 * GIB))), GIB, "as much as there is");
        assert_eq!(region(None), GIB);
    }

    #[test]
    fn a_tail_shorter_than_a_block_is_left_alone() {
        let job = Job { size: Some(Amount::Bytes(10 * 1024)), rw: Rw::RandRead, ..Job::default() };
        assert_eq!(job.region(0, GIB).expect("fits").size, 8192);
    }

    /// As with fio 3.33 where the file is longer than `size`: 15 blocks were read, and the last 40 KiB were not.
    #[test]
    fn the_last_block_of_a_sequential_job_may_reach_over_its_size() {
        let blocks = |rw, size: u64, device: u64, bs: BlockSize| {
            let (size, bs) = (Some(Amount::Bytes(size)), PerDirection::all(bs));
            let job = Job { rw, size, bs, rwmixread: 100, ..Job::default() };
            let ios = super::super::Generator::new(&job, 0, device).expect("it fits");
            let bytes = ios.map(|io| u64::from(io.sectors * SECTOR_SIZE)).sum::<u64>();
            (job.region(0, device).expect("fits").size / KIB, bytes / KIB)
        };
        let fixed = |kib: u32| BlockSize::Fixed(kib * 1024);
        for rw in [Rw::Read, Rw::Write, Rw::ReadWrite] {
            assert_eq!(blocks(rw, 1000 * KIB, GIB, fixed(64)), (1024, 1024));
            assert_eq!(blocks(rw, 1000 * KIB, 1000 * KIB, fixed(64)), (960, 960), "the end");
        }
        assert_eq!(blocks(Rw::Read, 9120, GIB, fixed(4)), (12, 12));
        let (size, ends_at_size) = (Some(Amount::Bytes(10 * KIB)), true);
        let own = Job { size, ends_at_size, ..Job::default() }.region(0, GIB).expect("fits");
        assert_eq!((own.size, own.room), (8 * KIB, 10 * KIB), "the file is the job's own");
        assert_eq!(blocks(Rw::RandRead, 1000 * KIB, GIB, fixed(64)), (960, 960));
        let split = BlockSize::Split(vec![(64 * 1024, 50), (128 * 1024, 50)]);
        assert_eq!(blocks(Rw::Read, 1000 * KIB, GIB, split), (960, 960));
        // Neither the reads nor the writes of a mix have come to the end yet.
        let (size, bs) = (Some(Amount::Bytes(1000 * KIB)), PerDirection::all(fixed(64)));
        let mix = Job { rw: Rw::ReadWrite, size, bs, ..Job::default() };
        let ios = super::super::Generator::new(&mix, 0, 1000 * KIB).expect("it fits");
        assert_eq!(ios.count(), 16);
    }

    /// fio 3.33 reads 16 blocks of 64 KiB for 1000 KiB, at 15 places.
    #[test]
    fn places_that_are_drawn_independently_go_on_until_the_size_is_reached() {
        let bs = PerDirection::all(BlockSize::Fixed(64 * 1024));
        let size = Some(Amount::Bytes(1000 * KIB));
        let job = Job { rw: Rw::RandRead, norandommap: true, size, bs, ..Job::default() };
        let region = job.region(0, GIB).expect("fits");
        assert_eq!((region.size, job.amounts(&[region])), (960 * KIB, (1000 * KIB, 1000 * KIB)));
    }

    /// Regression test: a file of 70000 bytes was refused, since its device is shorter by a part of a sector.
    #[test]
    fn less_than_a_sector_is_no_part_of_the_region() {
        let sized = |bytes| Job { size: Some(Amount::Bytes(bytes)), ..Job::default() };
        let region = sized(70_000).region(0, 70_000).expect("fits");
        assert_eq!((region.room, region.size), (70_000, 17 * 4096));
        assert!(sized(70_656).region(0, 70_000).is_err());
        let last = files(&[87_381; 3], 3);
        let end = last.list[2].start + 87_381;
        let job = job(Some(256 * KIB), last);
        let regions = job.regions(0, end - end % 512).expect("they fit");
        assert_eq!(regions.iter().map(|it| it.size / 4096).collect::<Vec<_>>(), [21; 3]);
        assert!(job.regions(0, end - 1024).is_err());
    }

    /// As with fio 3.33: the end of the last whole block was taken for that of the region, and a pass began again
    /// there.
    #[test]
    fn gaps_reach_to_the_end_of_the_region() {
        let job = Job {
            rw: Rw::Write,
            size: Some(Amount::Bytes(128 * KIB)),
            bs: PerDirection::all(BlockSize::Fixed(12 * 1024)),
            hole: 8 * 1024,
            ..Job::default()
        };
        let places = |end| {
            let ios = super::super::Generator::new(&job, 0, end).expect("it fits");
            Vec::from_iter(ios.map(|io| io.sector / 2))
        };
        assert_eq!(places(128 * KIB), [0, 20, 40, 60, 80, 100]);
        assert_eq!(places(GIB), [0, 20, 40, 60, 80, 100, 120], "the last I/O may reach over it");
    }

    #[test]
    fn sizes_that_cannot_be_are_refused() {
        let sized = |bytes| Job { size: Some(Amount::Bytes(bytes)), ..Job::default() };
        assert_eq!(sized(1024).region(0, GIB), Err(RegionError::TooSmall { size: 1024, bs: 4096 }));
        assert_eq!(
            sized(2 * GIB).region(0, GIB),
            Err(RegionError::DoesNotFit { size: 2 * GIB, start: 0, device: GIB })
        );
    }

    fn files(bytes: &[u64], each: usize) -> Files {
        let start = |at: usize| at as u64 * 1024 * KIB;
        let list = bytes.iter().enumerate();
        Files {
            list: list.map(|(at, bytes)| File { start: start(at), bytes: *bytes }).collect(),
            each,
            service: FileService::RoundRobin,
            turn: 1,
            open: each,
            is_sized: false,
        }
    }

    fn job(size: Option<u64>, files: Files) -> Job {
        Job { size: size.map(Amount::Bytes), files: Some(files), ..Job::default() }
    }

    /// As with fio 3.33: the half block at the end of each file is left alone.
    #[test]
    fn the_size_is_divided_among_the_files() {
        let mut job = job(Some(104 * KIB), files(&[64 * KIB; 4], 4));
        let regions = job.regions(0, 1 << 30).expect("they fit");
        let sizes = Vec::from_iter(regions.iter().map(|region| region.size / KIB));
        assert_eq!((sizes, job.amounts(&regions).0), (vec![24; 4], 104 * KIB));
        let thirds = Job { files: Some(files(&[34_133; 3], 3)), ..job.clone() };
        let thirds = Job { size: Some(Amount::Bytes(100 * KIB)), ..thirds };
        let regions = thirds.regions(0, 1 << 30).expect("they fit");
        assert_eq!(regions.iter().map(|it| it.size / KIB).collect::<Vec<_>>(), [32; 3]);
        let regions = job.regions(0, 1 << 30).expect("they fit");
        job.io_size = Some(Amount::Bytes(200 * KIB));
        assert_eq!(job.amounts(&regions).1, 200 * KIB);
        let shares = [0, 1, 3].map(|at| Files::share(at, 4, 10 * KIB + 2, 1));
        assert_eq!(shares, [2561, 2561, 2560], "two bytes are left over");
    }

    #[test]
    fn places_count_from_the_start_of_the_file() {
        let mut job = job(None, files(&[64 * KIB; 4], 2));
        job.offset = Amount::Bytes(16 * KIB);
        let regions = job.regions(1, 1 << 30).expect("they fit");
        let places = Vec::from_iter(regions.iter().map(|it| (it.file, it.start, it.size)));
        let at = |file: u64| (file, file + 16 * KIB, 48 * KIB);
        assert_eq!(places, [at(2048 * KIB), at(3072 * KIB)]);
        assert_eq!(job.files.as_ref().expect("files").of(0)[1].start, 1024 * KIB);
    }

    #[test]
    fn with_filesize_the_size_of_the_job_is_an_end_and_no_share() {
        let mut job = job(Some(96 * KIB), Files { is_sized: true, ..files(&[64 * KIB; 2], 2) });
        let regions = job.regions(0, 1 << 30).expect("they fit");
        assert_eq!(regions.iter().map(|region| region.size / KIB).collect::<Vec<_>>(), [64, 64]);
        assert_eq!(job.amounts(&regions).1, 96 * KIB);
        job.io_size = Some(Amount::Percent(50));
        let regions = job.regions(0, 1 << 30).expect("they fit");
        assert_eq!(job.amounts(&regions).1, 64 * KIB);
    }

    #[test]
    fn a_file_is_too_small_as_a_device_is() {
        let job = job(Some(8 * KIB), files(&[64 * KIB; 4], 4));
        assert!(matches!(job.regions(0, 1 << 30), Err(RegionError::TooSmall { size: 2048, .. })));
    }
}
