//! The properties of an export that the engine needs, derived from those sent by its server.

use super::error::OpenError;
use super::options::Options;
use blkmq_core::{Limits, Nanos, SECTOR_SIZE};
use blkmq_engine::{DeviceShape, WriteCache};
use blkmq_nbd::TransmissionFlags;
use blkmq_nbd::client::Agreed;

/// The maximum length of a read or write in bytes, even if the server accepts more: more merging gains nothing and
/// costs latency.
const LONGEST: u32 = 4 << 20;
/// The maximum length of a discard or a range of zeroes in bytes; fits 32 bits.
const LONGEST_RANGE: u32 = 1 << 30;

/// The shape of the device, and notes for the user.
///
/// # Errors
/// If the export is shorter than a block, or its blocks are longer than the engine's maximum.
pub(crate) fn of(
    agreed: &Agreed,
    options: &Options,
) -> Result<(DeviceShape, Vec<String>), OpenError> {
    let mut notes = Vec::new();
    let flags = agreed.details.flags;
    let blocks = agreed.details.blocks.unwrap_or_default();
    let block = blocks.min().max(SECTOR_SIZE);
    if block > 4096 {
        return Err(OpenError::Unfit(format!(
            "the export has blocks of {block} bytes; accepted: up to 4096"
        )));
    }
    let rest = agreed.details.size % u64::from(block);
    if agreed.details.size == rest {
        return Err(OpenError::Unfit(format!(
            "the export has {rest} bytes; accepted: at least a block of {block}"
        )));
    }
    if rest > 0 {
        notes.push(format!("the last {rest} bytes are no whole block and are left alone"));
    }
    let mut hw_queues = options.hw_queues;
    if hw_queues > 1 && !flags.contains(TransmissionFlags::CAN_MULTI_CONN) {
        notes.push(format!(
            "the server does not announce multi-conn; hw_queues={hw_queues} is one connection"
        ));
        hw_queues = 1;
    }
    let sectors = |bytes: u32| bytes / block * (block / SECTOR_SIZE);
    let range = |flag| if flags.contains(flag) { sectors(LONGEST_RANGE) } else { 0 };
    let limits = Limits {
        logical_block_size: block,
        physical_block_size: blocks.preferred().clamp(block, 1 << 20),
        max_sectors: sectors(blocks.max_payload().min(LONGEST)),
        max_discard_sectors: range(TransmissionFlags::SEND_TRIM),
        discard_granularity: if flags.contains(TransmissionFlags::SEND_TRIM) { block } else { 0 },
        max_write_zeroes_sectors: range(TransmissionFlags::SEND_WRITE_ZEROES),
        max_segments: 1024,
        max_segment_size: LONGEST,
        capacity: (agreed.details.size - rest) / u64::from(SECTOR_SIZE),
        rotational: flags.contains(TransmissionFlags::ROTATIONAL),
        ..Limits::default()
    };
    let cache = if flags.contains(TransmissionFlags::SEND_FLUSH) {
        WriteCache::Back { fua: flags.contains(TransmissionFlags::SEND_FUA) }
    } else {
        WriteCache::Through
    };
    let shape = DeviceShape {
        hw_queues,
        hw_queue_depth: options.hw_queue_depth,
        shared_tags: false,
        budget: None,
        limits,
        cache,
        // The time that requests wait for a lost connection is limited by `reconnect_delay`.
        timeout: options.timeout.unwrap_or(Nanos(u64::MAX)),
    };
    Ok((shape, notes))
}

/// Checks, after a reconnection, that the server still has the export for which the device was made.
///
/// # Errors
/// If the export is smaller, has fewer features, or has longer blocks.
pub(crate) fn check_same(before: &Agreed, now: &Agreed) -> Result<(), OpenError> {
    let (old, new) = (&before.details, &now.details);
    let blocks = |details: &blkmq_nbd::client::Details| details.blocks.unwrap_or_default();
    let lost = [
        (new.size < old.size, "is smaller"),
        (!keeps_flags(old.flags, new.flags), "can do less"),
        (blocks(new).min() > blocks(old).min(), "has longer blocks"),
        (blocks(new).max_payload() < blocks(old).max_payload(), "takes less in a request"),
    ];
    match lost.iter().find(|(is_so, _)| *is_so) {
        Some((_, why)) => Err(OpenError::Unfit(format!("the export {why} than before"))),
        None => Ok(()),
    }
}

/// Returns whether all features that requests may use are still there, and everything permitted is still permitted.
fn keeps_flags(old: TransmissionFlags, new: TransmissionFlags) -> bool {
    let abilities = [
        TransmissionFlags::SEND_FLUSH,
        TransmissionFlags::SEND_FUA,
        TransmissionFlags::SEND_TRIM,
        TransmissionFlags::SEND_WRITE_ZEROES,
        TransmissionFlags::CAN_MULTI_CONN,
    ];
    let keeps = |ability| !old.contains(ability) || new.contains(ability);
    let read_only = TransmissionFlags::READ_ONLY;
    abilities.into_iter().all(keeps) && (old.contains(read_only) || !new.contains(read_only))
}
