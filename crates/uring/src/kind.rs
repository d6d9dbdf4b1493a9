//! The operations of the kernel, and the targets of them.

use blkmq_core::{IoFlags, Op};
use blkmq_engine::Inflight;
use io_uring::squeue;

/// The target of the I/O: a descriptor, or a number among the ring's own files.
#[derive(Clone, Copy)]
pub(crate) struct Descriptor {
    pub(crate) fd: i32,
    pub(crate) flags: squeue::Flags,
}

/// The method of writing zeroes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ZeroBy {
    /// `FALLOC_FL_ZERO_RANGE`, which keeps the room.
    Range,
    /// A hole, which reads as zeroes and takes no room.
    Hole,
}

/// The operation requested from the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Read,
    Write { durable: bool },
    Flush,
    Discard,
    Zero(ZeroBy),
}

impl Kind {
    /// `zero`: the method for zeroes that may leave holes.
    pub(crate) fn of(rq: &Inflight, zero: ZeroBy) -> Self {
        match rq.op() {
            Op::Read => Self::Read,
            Op::Write => Self::Write { durable: rq.flags().contains(IoFlags::FUA) },
            Op::Flush => Self::Flush,
            Op::Discard => Self::Discard,
            Op::WriteZeroes if rq.flags().contains(IoFlags::NOUNMAP) => Self::Zero(ZeroBy::Range),
            Op::WriteZeroes => Self::Zero(zero),
        }
    }

    pub(crate) fn moves_data(self) -> bool {
        matches!(self, Self::Read | Self::Write { .. })
    }
}
