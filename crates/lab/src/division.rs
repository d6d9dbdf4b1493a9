//! Which I/Os the engine may divide: those that the device does not take whole, and long ones beside a latency goal.

use crate::Payload;
use blkmq_core::{IoFlags, Limits, Op};
use blkmq_engine::Io;

/// Returns whether the device takes `io` whole. Checks each limit by itself.
pub(crate) fn takes_whole(limits: &Limits, io: &Io<Payload>) -> bool {
    let chunk = u64::from(limits.chunk_sectors);
    let last = io.sector + u64::from(io.sectors.max(1)) - 1;
    io.sectors <= limits.max_sectors_of(io.op)
        && limits.segments(io.op, io.sectors) <= limits.max_segments.into()
        && (chunk == 0 || io.sector / chunk == last / chunk)
}

/// Returns whether `io` may be divided for the latency goal of a group.
pub(crate) fn may_be_shortened(io: &Io<Payload>) -> bool {
    let is_data = matches!(io.op, Op::Read | Op::Write);
    is_data && !io.flags.intersects(IoFlags::PREFLUSH | IoFlags::FUA) && io.sectors > SHORTEST
}

/// No I/O is divided into shorter parts for a latency goal, in sectors.
const SHORTEST: u32 = 256;
