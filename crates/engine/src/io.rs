//! What goes into a [`Submitter`](crate::Submitter) and what comes out: I/Os, completions, refusals.
//!
//! Words only; what is refused and why is decided in `submitter.rs` and `split.rs`.

use blkmq_core::{GroupId, IoFlags, IoPrio, IoResult, Op, Owner};
use std::fmt;

/// An I/O as its submitter describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Io<P> {
    /// What to do.
    pub op: Op,
    /// Where: a multiple of the logical block size, in sectors.
    pub sector: u64,
    /// How much, likewise. 0 only for a flush.
    pub sectors: u32,
    /// How. Reads are made [`IoFlags::SYNC`] unless this is set by hand.
    pub flags: IoFlags,
    /// With which priority.
    pub ioprio: IoPrio,
    /// Who pays.
    pub owner: Owner,
    /// On whose behalf: the group in which the owner is.
    pub group: GroupId,
    /// Expected lifetime of what is written; 0 for unknown.
    pub write_hint: u8,
    /// Comes back with the completion.
    pub cookie: u64,
    /// What the device needs to find the bytes; comes back with the completion.
    pub payload: P,
}

impl<P> Io<P> {
    /// An I/O with defaults for everything else: sync if it is a read, no priority, owner 0, in the root group.
    pub fn new(op: Op, sector: u64, sectors: u32, cookie: u64, payload: P) -> Self {
        Self {
            op,
            sector,
            sectors,
            flags: if op == Op::Read { IoFlags::SYNC } else { IoFlags::NONE },
            ioprio: IoPrio::default(),
            owner: Owner(0),
            group: GroupId::ROOT,
            write_hint: 0,
            cookie,
            payload,
        }
    }
}

/// A finished I/O.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion<P> {
    /// As in its [`Io`].
    pub cookie: u64,
    /// How it ended.
    pub result: IoResult,
    /// As in its [`Io`].
    pub payload: P,
}

/// Why an I/O was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// There is not enough credit left for it or, if it has to be divided, for all its parts. Reap, then try
    /// again.
    NoCredit {
        /// The credit.
        depth: u32,
    },
    /// Start or length is no multiple of the logical block size, or the length is zero.
    Misaligned {
        /// The logical block size in bytes.
        block: u32,
    },
    /// Longer than the device takes at once, and it cannot be divided: its payload does not allow it, or it
    /// would have more parts than the submitter has credit for in all.
    TooLong {
        /// The most, in sectors, that would be taken at this place.
        most: u32,
    },
    /// It would have to be divided, and is [`IoFlags::NOWAIT`] (`EAGAIN`).
    NoWait {
        /// The most, in sectors, that is taken whole at this place.
        most: u32,
    },
    /// Beyond the end of the device.
    OutOfRange {
        /// Its size in sectors.
        capacity: u64,
    },
    /// The device does not have this operation.
    Unsupported(Op),
    /// A policy or a device of the queue panicked: it takes no I/Os any more.
    Poisoned,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCredit { depth } => {
                write!(f, "too little is left of this submitter's credit of {depth}; reap first")
            }
            Self::Misaligned { block } => {
                write!(f, "start and length must be multiples of {block} bytes, the length above 0")
            }
            Self::TooLong { most } => {
                write!(f, "longer than the {most} sectors that can be taken, and not to be divided")
            }
            Self::NoWait { most } => write!(
                f,
                "longer than the {most} sectors that the device takes at once, and NOWAIT; submit parts, \
                 or without it"
            ),
            Self::OutOfRange { capacity } => {
                write!(f, "beyond the end of the device at sector {capacity}")
            }
            Self::Unsupported(op) => write!(f, "the device does not support {op:?}"),
            Self::Poisoned => {
                f.write_str("a policy or a device of the queue panicked; build another one")
            }
        }
    }
}

/// Without the I/O, for errors that outlive it or cross threads; a buffer often may not.
impl std::error::Error for Refusal {}

/// An I/O that was not taken, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused<P> {
    /// Unchanged.
    pub io: Io<P>,
    /// Why.
    pub why: Refusal,
}

impl<P> fmt::Display for Refused<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.why.fmt(f)
    }
}

impl<P: fmt::Debug> std::error::Error for Refused<P> {}
