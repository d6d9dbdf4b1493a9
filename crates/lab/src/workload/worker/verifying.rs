//! Verification while a worker runs: the I/O in each place in flight, and the purpose for which it was issued.
//!
//! [`Verifier`] knows the expected contents of blocks, and which blocks are to be read back.

use crate::workload::{NextIo, Verifier, verify::Findings};
use blkmq_core::{IoFlags, IoPrio, IoResult, Op};

/// The purpose of an I/O.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// The workload's own I/O. It counts.
    Work,
    /// A read that checks written blocks. As in fio it counts as a read.
    Check,
}

/// A verifier and the I/Os in flight that it knows of.
pub(super) struct Verifying {
    verifier: Verifier,
    /// The I/Os, by place in flight.
    under_way: Box<[(NextIo, Purpose)]>,
    /// The next read to check with, held until no I/O in flight touches the same blocks.
    held: Option<NextIo>,
}

impl Verifying {
    /// For up to `depth` I/Os in flight.
    pub(super) fn new(verifier: Verifier, depth: u32) -> Self {
        let idle = NextIo {
            op: Op::Flush,
            flags: IoFlags::NONE,
            prio: IoPrio::default(),
            sectors: 0,
            sector: 0,
        };
        let under_way = vec![(idle, Purpose::Work); depth as usize].into_boxed_slice();
        Self { verifier, under_way, held: None }
    }

    /// The verifier, which the worker asks before it issues an I/O.
    pub(super) fn verifier(&mut self) -> &mut Verifier {
        &mut self.verifier
    }

    /// The next read to check with, if it may leave now.
    pub(super) fn next_check(&mut self) -> Option<NextIo> {
        let io = self.held.take().or_else(|| self.verifier.next_check())?;
        if self.verifier.admits(&io) {
            return Some(io);
        }
        self.held = Some(io);
        None
    }

    /// `io` leaves from place `slot`.
    pub(super) fn begin(&mut self, slot: u32, io: &NextIo, purpose: Purpose, bytes: &mut [u8]) {
        self.under_way[slot as usize] = (*io, purpose);
        self.verifier.begin(io, bytes);
    }

    /// The I/O of place `slot` has ended. Returns its purpose.
    pub(super) fn end(&mut self, slot: u32, result: IoResult, bytes: &[u8]) -> Purpose {
        let (io, purpose) = self.under_way[slot as usize];
        self.verifier.end(&io, result, bytes);
        purpose
    }

    /// The results so far.
    pub(super) fn findings(&self) -> &Findings {
        self.verifier.findings()
    }
}
