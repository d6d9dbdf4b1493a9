//! Which I/Os the engine may divide: those that exceed a limit of the device, and long ones beside a latency goal.

use crate::Payload;
use blkmq_core::{IoFlags, Limits, Op, SECTOR_SIZE};
use blkmq_engine::Io;

/// The I/Os that the device takes whole.
#[derive(Clone, Copy)]
pub(crate) struct Takes {
    pub(crate) limits: Limits,
    /// Sectors in each range of memory of a read or write; 0 if it has one range.
    pub(crate) range: u32,
}

impl Takes {
    /// Returns whether the device takes `io` whole. Checks each limit separately.
    pub(crate) fn whole(&self, io: &Io<Payload>) -> bool {
        let limits = &self.limits;
        let moves_data = matches!(io.op, Op::Read | Op::Write);
        let chunk = if moves_data { u64::from(limits.chunk_sectors) } else { 0 };
        let last = io.sector + u64::from(io.sectors.max(1)) - 1;
        io.sectors <= limits.max_sectors_of(io.op)
            && self.segments(io) <= limits.max_segments.into()
            && (chunk == 0 || io.sector / chunk == last / chunk)
            && !self.has_gap(io)
    }

    fn is_list(&self, io: &Io<Payload>) -> bool {
        let is_data = matches!(io.op, Op::Read | Op::Write);
        is_data && (1..io.sectors).contains(&self.range)
    }

    /// Each range has segments of its own.
    fn segments(&self, io: &Io<Payload>) -> u64 {
        if !self.is_list(io) {
            return self.limits.segments(io.op, io.sectors);
        }
        let (whole, last) = (io.sectors / self.range, io.sectors % self.range);
        let of = |sectors| self.limits.segments(io.op, sectors);
        u64::from(whole) * of(self.range) + if last > 0 { of(last) } else { 0 }
    }

    /// Returns whether two ranges meet where segments may not. Every range begins at such a boundary.
    fn has_gap(&self, io: &Io<Payload>) -> bool {
        let bytes = u64::from(self.range) * u64::from(SECTOR_SIZE);
        self.is_list(io) && bytes & self.limits.virt_boundary_mask != 0
    }
}

/// Returns whether `io` may be divided for the latency goal of a group.
pub(crate) fn may_be_shortened(io: &Io<Payload>) -> bool {
    let is_data = matches!(io.op, Op::Read | Op::Write);
    is_data && !io.flags.intersects(IoFlags::PREFLUSH | IoFlags::FUA) && io.sectors > SHORTEST
}

/// No I/O is divided into shorter parts for a latency goal, in sectors.
const SHORTEST: u32 = 256;
