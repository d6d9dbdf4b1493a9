//! The record to which every format is converted.

use blkmq_core::{IoPrio, Op};

/// The longest plausible I/O, in bytes: 1 GiB. A greater length indicates a wrong unit or a damaged row.
pub const MOST_LENGTH: u64 = 1 << 30;

/// An I/O of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// Nanoseconds from the first record's arrival. Negative where a trace is not in order.
    pub arrival: i64,
    /// The operation.
    pub op: Op,
    /// First byte within the volume.
    pub offset: u64,
    /// Length in bytes, at most [`MOST_LENGTH`]; 0 only for a flush.
    pub length: u64,
    /// The tenant: an index into [`Reader::tenants`](crate::Reader::tenants).
    pub tenant: u32,
    /// The volume: an index into [`Reader::volumes`](crate::Reader::volumes).
    pub volume: u32,
    /// The priority; has no class if the trace has none.
    pub prio: IoPrio,
    /// Nanoseconds from arrival to completion, or `None` if the trace lacks them.
    pub latency: Option<u64>,
}

/// A record as the format gives it: the stamp is absolute, and may be that of the completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Raw {
    /// Nanoseconds since the format's own zero.
    pub stamp: u64,
    pub op: Op,
    pub offset: u64,
    pub length: u64,
    pub tenant: u32,
    pub volume: u32,
    pub prio: IoPrio,
    pub latency: Option<u64>,
}

/// The event of blktrace and blkparse that counts as the arrival of an I/O.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Event {
    /// `Q`: an I/O enters the queue.
    #[default]
    Queued,
    /// `D`: a request goes to the driver.
    Issued,
}
