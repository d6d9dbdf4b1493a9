//! The passes of a stream over its region, and the rest of the present one.

use crate::workload::Job;
use blkmq_core::SECTOR_SIZE;

/// The rest of a pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pass {
    pub(super) sectors_left: u64,
    pub(super) ios_left: u64,
    /// Passes after this one.
    pub(super) more: u64,
    /// Passes after those, each of which begins when the blocks of the one before have been read back.
    later: u64,
    pub(super) sectors: u64,
    ios: u64,
    is_new: bool,
}

impl Pass {
    /// Before the first pass of `job` over `size` bytes, whose passes are of `bytes`.
    ///
    /// As in fio, `io_size` is an amount of I/O that goes on through the region, and not a part of it: `loops` multiply it, and
    /// the next block is the one behind the last. So is the size of a job whose places are drawn independently. With more than `size`, there are as many I/Os as one of both asks for.
    pub(super) fn new(job: &Job, bytes: u64, size: u64) -> Self {
        let loops = u64::from(job.loops);
        let (more, later) = if job.time_based {
            (u64::MAX, 0)
        } else if job.is_read_back() {
            (1, loops - 1)
        } else {
            (loops, 0)
        };
        let is_drawn = job.rw.is_random() && !job.has_map();
        let size = if job.io_size.is_none() { bytes } else { size };
        let is_amount = (is_drawn && !job.time_based) || bytes != size;
        let is_amount = is_amount && job.number_ios.is_none();
        let (more, bytes) = match is_amount && !job.is_read_back() && job.strided.is_none() {
            true if job.time_based => (more, u64::MAX),
            true => (1, bytes.max(bytes.min(size).saturating_mul(loops))),
            false => (more, bytes),
        };
        Self {
            sectors_left: 0,
            ios_left: 0,
            more,
            later,
            sectors: bytes.div_ceil(SECTOR_SIZE.into()),
            ios: job.number_ios.unwrap_or(u64::MAX),
            is_new: true,
        }
    }

    /// Returns whether no pass has begun.
    pub(super) fn is_new(&self) -> bool {
        self.is_new
    }

    /// Begins the next pass; false if there is none.
    pub(super) fn begin(&mut self) -> bool {
        if self.more == 0 || self.ios == 0 {
            return false;
        }
        if self.more != u64::MAX {
            self.more -= 1;
        }
        (self.sectors_left, self.ios_left, self.is_new) = (self.sectors, self.ios, false);
        true
    }

    /// Lets the next pass begin that had to wait for reading back; false if there is none.
    pub(super) fn next_loop(&mut self) -> bool {
        let there_is = self.later > 0 && self.more == 0;
        if there_is {
            (self.later, self.more) = (self.later - 1, 1);
        }
        there_is
    }

    /// Is the pass over?
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.sectors_left == 0 || self.ios_left == 0
    }

    /// Counts up to `most` I/Os of `sectors` each, as many as the pass has room for, and returns their number. At least 1
    /// unless the pass is over. `sectors` is not 0.
    #[inline]
    pub(super) fn count_most(&mut self, sectors: u32, most: usize) -> usize {
        let (sectors, ios) = (u64::from(sectors), most as u64);
        if ios <= self.ios_left && ios * sectors <= self.sectors_left {
            self.sectors_left -= ios * sectors;
            self.ios_left -= ios;
            return most;
        }
        let ios = ios.min(self.ios_left).min(self.sectors_left.div_ceil(sectors));
        self.sectors_left = self.sectors_left.saturating_sub(ios * sectors);
        self.ios_left -= ios;
        ios as usize
    }

    /// Counts an I/O of the pass.
    #[inline]
    pub(super) fn count(&mut self, sectors: u32) {
        self.sectors_left = self.sectors_left.saturating_sub(sectors.into());
        self.ios_left -= 1;
    }
}
