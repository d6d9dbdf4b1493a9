//! The passes of a stream over its region, the turns of several files, and streams that are drawn several I/Os at a
//! time.
//!
//! As in fio, a pass ends with the `size` of the job or with its file, and all passes together are `loops` times the
//! `io_size`, or else the `size`. So an `io_size` below `size` ends within a pass, and a larger one begins another
//! pass. A job that trims and writes has whole passes, of at most an `io_size` and `loops` times `number_ios`. After a
//! pass that `number_ios` did not end, further passes follow while the total is less than that `io_size`. A job that
//! reads to verify has one pass at most, whatever its `io_size` and `loops` are.
//!
//! In a thread with several files each file has its own stream, and the streams take turns. Passes, `number_ios` and
//! flushes are counted over all files; the stream of a file is one pass over its region. The positions of the files are
//! not known here.
//!
//! If the I/Os of a stream differ only in random offsets, no other decision is needed for an I/O, so several are drawn
//! together.

use super::{ALWAYS, Choice, Generator, GeneratorError, Stream, mapped};
use crate::workload::distribution::Places;
use crate::workload::{Direction, FileService, Files, Job, NextIo, Region, Rw};
use blkmq_core::{Rng, SECTOR_SIZE};

/// More than any stream issues.
const ENDLESS: i64 = i64::MAX / 2;

/// The rest of a pass, and of all passes. Amounts are in sectors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pass {
    /// Bytes left of the pass; below 0 after an I/O that reaches over its end.
    left: i64,
    /// `left` at the beginning of the pass.
    begun: i64,
    ios_left: u64,
    /// Passes after this one.
    more: u64,
    /// Further passes, each of which begins when the blocks of the previous one have been read back.
    later: u64,
    /// The most I/Os of a pass, if each pass starts counting anew.
    ios: Option<u64>,
    /// The size of a pass.
    size: i64,
    /// The size of a pass over a map: its whole blocks.
    mapped: i64,
    /// Left of all passes when this one began.
    total: i64,
    /// Left of the least amount: after the last of the `loops`, passes are added for it.
    wanted: i64,
    /// An added pass is worth it for the longest I/O, or more.
    longest: i64,
    is_read_back: bool,
    /// Each block counts twice towards the least amount, since it is read back, or trimmed and written.
    is_twice: bool,
    /// There is an `io_size`.
    is_limited: bool,
    is_new: bool,
}

impl Pass {
    /// Before the first pass of `job` over `regions`; with a map, a pass has `mapped` bytes in whole blocks.
    pub(super) fn new(job: &Job, regions: &[Region], mapped: Option<u64>) -> Self {
        let sectors = |bytes: u64| {
            let sectors = bytes.div_ceil(SECTOR_SIZE.into());
            i64::try_from(sectors).map_or(ENDLESS, |sectors| sectors.min(ENDLESS))
        };
        let loops = u64::from(job.loops);
        let (size, amount) = job.amounts(regions);
        let (size, amount) = (sectors(size), sectors(amount));
        let reads_back = job.is_read_back() && !job.time_based;
        let has_pairs = match job.rw {
            Rw::TrimWrite => true,
            Rw::RandTrimWrite => mapped.is_some(),
            _ => false,
        };
        let trims_and_writes = has_pairs && !job.time_based && job.strided.is_none();
        let only_reads = matches!(job.rw, Rw::Read | Rw::RandRead);
        let is_once = job.verify.is_some() && only_reads && !job.time_based;
        let total = amount.saturating_mul(job.loops.into()).min(ENDLESS);
        let (size, total, more) = if job.time_based {
            (size, ENDLESS, u64::MAX)
        } else if reads_back {
            (amount, ENDLESS, 1)
        } else if trims_and_writes && amount >= size {
            (size, ENDLESS, loops)
        } else if is_once {
            (size, total.min(size), 1)
        } else {
            // Zones continue to the end of the file.
            (if job.strided.is_some() { ENDLESS } else { size }, total, loops)
        };
        let longest = job.used_block_sizes().map(|bs| u64::from(bs.max())).max().unwrap_or(0);
        Self {
            left: 0,
            begun: 0,
            ios_left: job.number_ios.map_or(u64::MAX, |ios| ios.saturating_mul(loops)),
            more,
            later: if reads_back { loops - 1 } else { 0 },
            ios: if reads_back {
                job.number_ios
            } else {
                job.number_ios.filter(|_| trims_and_writes).map(|ios| ios.saturating_mul(loops))
            },
            size,
            mapped: mapped.map_or(ENDLESS, sectors),
            total,
            wanted: amount,
            is_read_back: reads_back,
            is_twice: reads_back || trims_and_writes,
            longest: sectors(longest),
            is_limited: job.io_size.is_some() && !is_once,
            is_new: true,
        }
    }

    /// The one pass over the region of a file, or passes without end.
    pub(super) fn of_file(region: Region, mapped: Option<u64>, is_endless: bool) -> Self {
        let job = Job { time_based: is_endless, ..Job::default() };
        let one = Self::new(&job, &[region], mapped);
        Self { wanted: 0, size: ENDLESS, total: ENDLESS, ..one }
    }

    /// Begins the next pass; false if there is none.
    pub(super) fn begin(&mut self) -> bool {
        let done = self.begun - self.left;
        let is_idle = !self.is_new && done == 0;
        if is_idle {
            self.wanted = 0;
        }
        self.total = self.total.saturating_sub(done);
        self.wanted -= if self.is_twice { 2 * done } else { done };
        (self.left, self.begun) = (0, 0);
        let is_counted_out = self.ios_left == 0 && (self.is_read_back || self.ios.is_none());
        if self.total <= 0 || is_counted_out || is_idle {
            return false;
        }
        let may_add = self.is_limited && !self.is_read_back && self.ios_left > 0;
        if self.more > 0 {
            self.more -= u64::from(self.more != u64::MAX);
        } else if !may_add || self.wanted < self.longest.max(1) {
            return false;
        }
        if let Some(ios) = self.ios {
            self.ios_left = ios;
        }
        self.left = self.size.min(self.mapped).min(self.total);
        (self.begun, self.is_new) = (self.left, false);
        self.left > 0 && self.ios_left > 0
    }

    /// Ends the pass: the next I/O does not fit into it.
    pub(super) fn end(&mut self) {
        self.begun -= self.left.max(0);
        self.left = self.left.min(0);
    }

    /// Resets to the state before the first pass.
    pub(super) fn restart(&mut self) {
        (self.left, self.begun, self.more, self.is_new) = (0, 0, self.more.max(1), true);
    }

    /// Begins the next pass that had to wait for reading back; false if there is none. As in fio, passes that end with
    /// the file are added until all writes and checks together reach the amount.
    pub(super) fn next_loop(&mut self) -> bool {
        let is_added = self.is_read_back && self.wanted >= self.longest;
        let there_is = self.more == 0 && (self.later > 0 || is_added);
        if there_is {
            (self.later, self.more, self.is_new) = (self.later.saturating_sub(1), 1, true);
        }
        there_is
    }

    /// Allows `ios` more I/Os, however many have been drawn.
    pub(super) fn count_anew(&mut self, ios: u64) {
        self.ios_left = ios;
    }

    /// Returns whether the pass is over.
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.left <= 0 || self.ios_left == 0
    }

    /// Returns whether the map is full before the pass has its size.
    pub(super) fn is_cut(&self) -> bool {
        let done = self.begun - self.left;
        self.ios_left > 0 && self.left <= 0 && done < self.size.min(self.total)
    }

    /// Counts up to `most` I/Os of `sectors` each, limited by the rest of the pass, and returns their number. At least
    /// 1 unless the pass is over. `sectors` is not 0.
    #[inline]
    fn count_most(&mut self, sectors: u32, most: usize) -> usize {
        let length = i64::from(sectors);
        let room = (self.left.max(0) as u64).div_ceil(u64::from(sectors));
        let ios = (most as u64).min(self.ios_left).min(room);
        self.left -= ios as i64 * length;
        self.ios_left -= ios;
        ios as usize
    }

    /// Counts an I/O of the pass.
    #[inline]
    pub(super) fn count(&mut self, sectors: u32) {
        self.left -= i64::from(sectors);
        self.ios_left -= 1;
    }
}

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

/// A stream of I/Os of one operation, length and priority, each at a random offset.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plain {
    /// Every I/O, at sector 0.
    io: NextIo,
    /// As in [`Stream`].
    unit: u64,
    places: usize,
}

impl Generator {
    /// The stream as a plain one, if it is one.
    pub(super) fn as_plain(&self) -> Option<Plain> {
        let Choice::Only(direction) = self.choice else { return None };
        let Stream { op, flags, sizes, unit, places, random_below, .. } =
            &self.streams[direction as usize];
        let sectors = sizes.fixed()?;
        let scattered = self.random && self.run.0 == 1 && *random_below == ALWAYS;
        if !scattered || self.chains || self.cover.is_some() || self.prios.is_varied() {
            return None;
        }
        let io = NextIo { op: *op, flags: *flags, prio: self.prios.own(), sectors, sector: 0 };
        Some(Plain { io, unit: *unit, places: *places })
    }

    /// An I/O at sector 0 that stands for all of them, if the I/Os of the stream differ only in their offsets, which
    /// [`draw_places`](Self::draw_places) draws.
    pub(in crate::workload) fn template(&self) -> Option<NextIo> {
        self.plain.map(|plain| plain.io)
    }

    /// Draws the first sectors of the next I/Os into `sectors`, and returns their number: fewer than the length of
    /// `sectors` if the stream ends.
    ///
    /// # Panics
    /// If the I/Os differ in more than their offsets ([`template`](Self::template)).
    #[inline(always)]
    pub(in crate::workload) fn draw_places(&mut self, sectors: &mut [u64]) -> usize {
        let plain = self.plain.expect("the I/Os are alike but for their places");
        let [sector] = sectors else { return self.draw_several(plain, sectors) };
        let Some(io) = self.next_plain(plain) else { return 0 };
        *sector = io.sector;
        1
    }

    #[inline(never)]
    fn draw_several(&mut self, plain: Plain, sectors: &mut [u64]) -> usize {
        let mut drawn = 0;
        while drawn < sectors.len() {
            if self.pass.is_over() && !self.begin_pass() {
                break;
            }
            let rest = &mut sectors[drawn..];
            let most = self.pass.count_most(plain.io.sectors, rest.len());
            self.scatter(plain, &mut rest[..most]);
            drawn += most;
        }
        drawn
    }

    #[inline]
    pub(super) fn next_plain(&mut self, plain: Plain) -> Option<NextIo> {
        if self.pass.is_over() && !self.begin_pass() {
            return None;
        }
        let sector = self.start + self.places[plain.places].next(&mut self.rng) * plain.unit;
        self.pass.count(plain.io.sectors);
        Some(NextIo { sector, ..plain.io })
    }

    #[inline]
    fn scatter(&mut self, plain: Plain, sectors: &mut [u64]) {
        let (start, unit) = (self.start, plain.unit);
        let places = &mut self.places[plain.places];
        if let Places::Uniform { blocks } = *places {
            // The copy stays in registers during the loop.
            let mut rng = self.rng.clone();
            sectors.iter_mut().for_each(|sector| *sector = start + rng.below(blocks) * unit);
            self.rng = rng;
        } else {
            sectors.iter_mut().for_each(|it| *it = start + places.next(&mut self.rng) * unit);
        }
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
