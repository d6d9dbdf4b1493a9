//! Verification while a worker runs: which I/O stands behind each place in flight, and why it was issued.
//!
//! What a block must hold, and what is to be read back, is [`Verifier`]'s.

use crate::workload::{NextIo, Verifier, verify::Findings};
use blkmq_core::{IoFlags, IoPrio, IoResult, Op};

/// Why an I/O was issued.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// The workload wants it. It counts.
    Work,
    /// To read back what was written. It counts in no figure but those of verification.
    Check,
}

/// A verifier and the I/Os that it has seen off.
pub(super) struct Verifying {
    verifier: Verifier,
    /// By place in flight.
    under_way: Box<[(NextIo, Purpose)]>,
    /// To be read back next, when nothing is on its way to the same blocks any more.
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

    /// What the worker asks before it issues something.
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

    /// What left from place `slot` is over. Returns why it was issued.
    pub(super) fn end(&mut self, slot: u32, result: IoResult, bytes: &[u8]) -> Purpose {
        let (io, purpose) = self.under_way[slot as usize];
        self.verifier.end(&io, result, bytes);
        purpose
    }

    /// What was found.
    pub(super) fn into_findings(self) -> Findings {
        self.verifier.findings().clone()
    }
}
