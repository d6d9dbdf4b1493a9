//! Which parts of an export are stored: the answer to BLOCK_STATUS (`base:allocation`), and reads of holes.

use super::connection::Transmission;
use crate::disk::Disk;
use blkmq::IoError;
use blkmq_nbd::server::{Extents, Room};
use blkmq_nbd::{ErrorCode, Extent, ExtentCount, HOLE, Header, Limits, ReplyTo, Span, ZERO};

/// Bytes of a read from which on the disk is asked for holes first. For a file that is a system call, which costs more
/// than a small read gains.
const SPARSE: u64 = 64 << 10;

/// The reply to a large read of a hole, which then costs neither bandwidth nor an I/O; `None` if there is data, if the
/// client has no structured replies, or if the disk does not know or has to ask a server, which then sends no bytes of
/// holes itself. A write that was answered before is seen.
pub(super) fn read_of_hole(
    transmission: &Transmission,
    disk: &Disk,
    to: ReplyTo,
    span: Span,
) -> Option<Header> {
    if span.length < SPARSE || disk.device().asks_for_extents() {
        return None;
    }
    let length = u32::try_from(span.length).ok()?;
    let mut pieces = transmission.replies.pieces(to, length)?;
    let start = transmission.export.start + span.offset;
    let end = start + span.length;
    let found = disk.device().extents(start..end, 1).ok()?;
    let is_hole = found.first().is_some_and(|first| first.is_hole && first.end == end);
    is_hole.then(|| pieces.hole(length))
}

/// Appends the reply, up to the bound of the specification. One system call or two for each extent of a file; the worker
/// waits for an export of another server.
pub(super) fn answer(
    transmission: &Transmission,
    disk: &Disk,
    to: ReplyTo,
    (span, count): (Span, ExtentCount),
    out: &mut Vec<u8>,
) {
    let limits = Limits::default();
    let start = transmission.export.start + span.offset;
    let range = start..start + span.length;
    let most = match count {
        ExtentCount::One => 1,
        ExtentCount::Many => limits.extents as usize,
    };
    let stretches = match disk.device().extents(range.clone(), most) {
        Ok(stretches) => stretches,
        Err(error) => {
            let errno = error.raw_os_error().and_then(|errno| u16::try_from(errno).ok());
            let error = errno.map_or(IoError::IO, IoError);
            disk.failed(&transmission.export.info.name, ("block status", start), error);
            return out.extend_from_slice(&transmission.replies.error(to, ErrorCode::Io));
        }
    };
    let mut extents = Extents::new(span, count, &limits);
    let mut at = range.start;
    for stretch in stretches {
        let flags = if stretch.is_hole { HOLE | ZERO } else { 0 };
        let extent = Extent { length: stretch.end - at, flags };
        at = stretch.end;
        if extents.push(extent) == Room::Full {
            break;
        }
    }
    let contexts: Vec<(u32, &Extents)> =
        transmission.contexts.iter().map(|context| (context.id, &extents)).collect();
    transmission.replies.block_status(to, &contexts, out);
}
