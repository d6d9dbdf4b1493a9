//! A thread with several files: each file has its own stream, and the streams take turns.
//!
//! Passes, `number_ios` and flushes are counted over all files; the stream of a file is one pass over its region. The
//! positions of the files are not known here.

use super::{Generator, GeneratorError, Pass, mapped};
use crate::workload::{Direction, FileService, Files, Job, NextIo, Region};
use blkmq_core::Rng;

/// The streams of the files, and the one whose turn it is.
#[derive(Clone, Debug)]
pub(super) struct Turns {
    streams: Vec<Generator>,
    /// The files that are not done, in order; a thread visits the first `open` of them.
    live: Vec<usize>,
    open: usize,
    service: FileService,
    /// (I/Os of a turn, those left of this one).
    turn: (u32, u32),
    /// The index in `live` of the next file, in round robin.
    next: usize,
    /// The index in `live` of the file whose turn it is.
    current: Option<usize>,
    /// The file whose stream has an I/O that must follow immediately.
    partner: Option<usize>,
    rng: Rng,
}

impl Generator {
    /// The stream of thread `thread` in `regions`, one for each of its files.
    #[cold]
    pub(super) fn in_regions(
        job: &Job,
        thread: u32,
        regions: &[Region],
    ) -> Result<Self, GeneratorError> {
        let files = job.files.as_ref().expect("several regions are those of files");
        let turns = Turns::new(job, thread, files, regions)?;
        // The regions of this stream are never used.
        let mut all = Self::in_region(job, thread, regions[0], 0)?;
        let mapped = regions.iter().map(|region| mapped(job, *region)).sum();
        all.pass = Pass::new(job, regions, mapped);
        (all.plain, all.cover, all.strides) = (None, None, None);
        (all.trimwrite, all.chains) = (false, job.flushes());
        all.turns = Some(Box::new(turns));
        Ok(all)
    }
}

impl Turns {
    fn new(
        job: &Job,
        thread: u32,
        files: &Files,
        regions: &[Region],
    ) -> Result<Self, GeneratorError> {
        let of_file = Job {
            files: None,
            loops: 1,
            time_based: false,
            number_ios: None,
            io_size: None,
            fsync: 0,
            fdatasync: 0,
            ..job.clone()
        };
        let stream = |(at, region): (usize, &Region)| {
            Generator::in_region(&of_file, thread, *region, at as u64 + 1)
        };
        let streams = regions.iter().enumerate().map(stream).collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            live: Vec::with_capacity(streams.len()),
            streams,
            open: files.open.max(1),
            service: files.service,
            turn: (files.turn.max(1), 0),
            next: 0,
            current: None,
            partner: None,
            rng: Rng::new(job.randseed ^ u64::from(job.index) << 32 ^ u64::from(thread) << 8),
        })
    }

    /// All files are to be visited again.
    pub(super) fn restart(&mut self) {
        self.live.clear();
        self.live.extend(0..self.streams.len());
        self.streams.iter_mut().for_each(|stream| stream.pass.restart());
        (self.next, self.current) = (0, None);
    }

    /// The I/O that must follow the last one, in the same file.
    pub(super) fn partner(&mut self) -> Option<NextIo> {
        let at = self.partner.take()?;
        self.streams[at].next()
    }

    /// The next I/O; `None` if all files are done.
    pub(super) fn next(&mut self, steer: &dyn Fn(Direction) -> Direction) -> Option<NextIo> {
        loop {
            if self.live.is_empty() {
                return None;
            }
            let place = self.choose();
            let at = self.live[place];
            if let Some(io) = self.streams[at].next_steered(steer) {
                self.partner = self.streams[at].queued.is_some().then_some(at);
                return Some(io);
            }
            self.live.remove(place);
            self.next -= usize::from(place < self.next);
            self.current = None;
        }
    }

    /// The index of the file whose turn it is.
    fn choose(&mut self) -> usize {
        let (turn, left) = &mut self.turn;
        if let Some(place) = self.current
            && (*left > 0 || self.service == FileService::Sequential)
        {
            *left = left.saturating_sub(1);
            return place;
        }
        *left = *turn - 1;
        let open = self.open.min(self.live.len());
        let place = match self.service {
            FileService::Sequential => 0,
            FileService::Random => self.rng.below(open as u64) as usize,
            FileService::RoundRobin => {
                let place = if self.next < open { self.next } else { 0 };
                self.next = place + 1;
                place
            }
        };
        self.current = Some(place);
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Amount, BlockSize, File, PerDirection, Rw};
    use blkmq_core::{Op, SECTOR_SIZE};

    const KIB: u64 = 1024;
    const MIB: u64 = 1 << 20;

    fn job(rw: Rw, service: FileService, count: usize) -> Job {
        let file = |at: usize| File { start: at as u64 * MIB, bytes: 32 * KIB };
        let files = Files {
            list: (0..count).map(file).collect(),
            each: count,
            service,
            turn: 1,
            open: count,
            is_sized: false,
        };
        Job {
            rw,
            size: Some(Amount::Bytes(count as u64 * 16 * KIB)),
            files: Some(files),
            ..Job::default()
        }
    }

    /// The file and the block of each I/O.
    fn visits(job: &Job) -> Vec<(u64, u64)> {
        let ios = Generator::new(job, 0, 1 << 30).expect("it fits");
        let visit = |io: NextIo| {
            let byte = io.sector * u64::from(SECTOR_SIZE);
            (byte / MIB, byte % MIB / 4096)
        };
        ios.map(visit).collect()
    }

    fn sorted(mut visits: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
        visits.sort_unstable();
        visits
    }

    fn each_block(files: u64) -> Vec<(u64, u64)> {
        (0..files).flat_map(|file| (0..4).map(move |block| (file, block))).collect()
    }

    #[test]
    fn files_have_turns_as_the_service_says() {
        let visited = visits(&job(Rw::Read, FileService::RoundRobin, 3));
        assert_eq!(&visited[..4], [(0, 0), (1, 0), (2, 0), (0, 1)]);
        assert_eq!(sorted(visited), each_block(3));
        assert_eq!(visits(&job(Rw::Read, FileService::Sequential, 3)), each_block(3));
        let mut two = job(Rw::Read, FileService::RoundRobin, 3);
        two.files.as_mut().expect("files").turn = 2;
        assert_eq!(&visits(&two)[..5], [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]);
        let random = visits(&job(Rw::RandRead, FileService::Random, 8));
        assert_ne!(random[..8].iter().map(|it| it.0).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(sorted(random), each_block(8));
    }

    #[test]
    fn only_so_many_files_are_open() {
        let mut job = job(Rw::Write, FileService::RoundRobin, 4);
        job.files.as_mut().expect("files").open = 2;
        let visited = visits(&job);
        assert!(visited[..7].iter().all(|(file, _)| *file < 2), "{visited:?}");
        assert_eq!(sorted(visited), each_block(4));
    }

    #[test]
    fn every_block_comes_once_in_each_pass_over_all_files() {
        let mut job = job(Rw::RandRw, FileService::RoundRobin, 3);
        job.loops = 2;
        let visited = visits(&job);
        assert_eq!(sorted(visited[..12].to_vec()), each_block(3));
        assert_eq!(sorted(visited[12..].to_vec()), each_block(3));
        job.bs = PerDirection::all(BlockSize::Split(vec![(4096, 50), (8192, 50)]));
        job.loops = 1;
        let sectors = Generator::new(&job, 0, 1 << 30).expect("it fits").map(|io| io.sectors);
        assert_eq!(sectors.sum::<u32>(), 3 * 32);
    }

    #[test]
    fn io_size_is_counted_over_all_files() {
        let mut job = job(Rw::Read, FileService::RoundRobin, 3);
        job.io_size = Some(Amount::Bytes(20 * KIB));
        assert_eq!(visits(&job).len(), 5);
        job.io_size = Some(Amount::Bytes(60 * KIB));
        let visited = visits(&job);
        assert_eq!((visited.len(), visited[12]), (15, (0, 0)), "from the beginning");
        (job.io_size, job.number_ios) = (None, Some(7));
        assert_eq!(visits(&job).len(), 7);
        (job.number_ios, job.norandommap, job.rw) = (None, true, Rw::RandRead);
        assert_eq!(visits(&job).len(), 12);
    }

    #[test]
    fn loops_go_on_in_all_files_where_an_amount_ended_a_pass() {
        let mut job = job(Rw::Read, FileService::RoundRobin, 2);
        (job.io_size, job.loops) = (Some(Amount::Bytes(24 * KIB)), 3);
        let blocks = |job: &Job| Vec::from_iter(visits(job).into_iter().map(|(_, block)| block));
        let whole = [0, 0, 1, 1, 2, 2, 3, 3];
        assert_eq!(blocks(&job), [&whole[..], &whole, &whole[..2]].concat());
        (job.io_size, job.number_ios) = (None, Some(6));
        assert_eq!(blocks(&job), [&whole[..], &whole, &whole[..2]].concat());
    }

    #[test]
    fn flushes_count_writes_to_all_files_and_a_trim_keeps_its_write() {
        let mut job = job(Rw::Write, FileService::RoundRobin, 3);
        job.fsync = 4;
        let flushes = Generator::new(&job, 0, 1 << 30).expect("it fits");
        assert_eq!(flushes.filter(|io| io.op == Op::Flush).count(), 2);
        (job.rw, job.fsync) = (Rw::TrimWrite, 0);
        let ios = Generator::new(&job, 0, 1 << 30).expect("it fits").collect::<Vec<_>>();
        assert_eq!(ios.len(), 24);
        for pair in ios.chunks(2) {
            assert_eq!((pair[0].op, pair[1].op), (Op::Discard, Op::Write));
            assert_eq!(pair[0].sector, pair[1].sector);
        }
    }
}
