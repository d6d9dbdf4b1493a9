//! Finished bios that are sent to their submitter together: the tokens are given up, and only numbers are left.

use super::{Bio, BioSender, BioTable};
use crate::shared::few::{BATCH, Few};
use blkmq_core::IoResult;
use std::num::NonZeroU32;

/// Finished bios of one submitter, gathered to be sent together.
pub(crate) struct Finish {
    payloads: Few<u64, BATCH>,
    table: NonZeroU32,
}

/// Fewer finished bios of one submitter than this, put aside.
pub(crate) struct Aside {
    payloads: Few<u64, ASIDE>,
    table: NonZeroU32,
}

/// Finished bios that are worth a send by themselves.
const ASIDE: usize = 4;

impl<P> BioTable<P> {
    /// An empty batch of finished bios.
    pub(crate) fn finish_batch(&self) -> Finish {
        Finish { payloads: Few::new(0), table: self.id }
    }

    /// An empty place for finished bios.
    pub(crate) fn aside(&self) -> Aside {
        Aside { payloads: Few::new(0), table: self.id }
    }
}

impl Finish {
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.payloads.is_full()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.payloads.is_empty()
    }

    /// Does the batch fit into an [`Aside`]? A larger one is worth a send.
    #[inline]
    pub(crate) fn is_small(&self) -> bool {
        self.payloads.values().len() < ASIDE
    }

    /// Moves a [small](Self::is_small) batch to `aside`, which is empty.
    pub(crate) fn put_aside(&mut self, aside: &mut Aside) {
        assert!(aside.table == self.table && aside.payloads.is_empty(), "a place that is taken");
        self.payloads.values().iter().for_each(|bio| aside.payloads.push(*bio));
        self.payloads.clear();
    }

    /// Takes the bios in `aside` up again, into an empty batch.
    pub(crate) fn take_up(&mut self, aside: &mut Aside) {
        assert!(aside.table == self.table && self.payloads.is_empty(), "a batch of another one");
        aside.payloads.values().iter().for_each(|bio| self.payloads.push(*bio));
        aside.payloads.clear();
    }

    /// Ends a bio that is not chained to others.
    #[inline]
    pub(crate) fn push(&mut self, bio: Bio, result: IoResult) {
        self.payloads.push(bio.into_payload(self.table, result));
    }

    /// Sends the batch. True if the submitter is parked and the caller has to wake it.
    #[inline]
    pub(crate) fn send(&mut self, to: &BioSender) -> bool {
        assert!(to.table == self.table, "a ring of another queue");
        let wake = to.ring.push(self.payloads.values());
        self.payloads.clear();
        wake
    }
}

impl Aside {
    /// As [`Finish::send`].
    pub(crate) fn send(&mut self, to: &BioSender) -> bool {
        assert!(to.table == self.table, "a ring of another queue");
        let wake = to.ring.push(self.payloads.values());
        self.payloads.clear();
        wake
    }
}
