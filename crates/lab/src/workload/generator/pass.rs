//! The passes of a stream over its region, and the rest of the current one.
//!
//! As in fio, a pass ends with the `size` of the job or with its file, and all passes together are `loops` times the
//! `io_size`, or else the `size`. So an `io_size` below `size` ends within a pass, and a larger one begins another
//! pass. A job that trims and writes has whole passes, of at most an `io_size` and `loops` times `number_ios`. After a
//! pass that `number_ios` did not end, further passes follow while the total is less than that `io_size`. A job that
//! reads to verify has one pass at most, whatever its `io_size` and `loops` are.

use crate::workload::{Job, Region, Rw};
use blkmq_core::SECTOR_SIZE;

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
    pub(super) fn count_most(&mut self, sectors: u32, most: usize) -> usize {
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
