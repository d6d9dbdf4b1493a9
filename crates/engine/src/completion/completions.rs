//! Finished bios on their way to their submitters, gathered so that successive bios of one submitter go together.
//! Every pump has a batch, and so has every runner, for bios that end without a device.

use crate::BioTable;
use crate::shared::lasting::Lasting;
use crate::shared::slots::{Bio, Finish};
use blkmq_core::{IoResult, SubmitterId};

/// A batch of completions for one submitter.
pub(crate) struct Completions {
    to: SubmitterId,
    batch: Finish,
    /// Parked submitters that have completions now, to be woken when the pump or elevator is released.
    pub(crate) wake: Vec<SubmitterId>,
}

impl Completions {
    pub(crate) fn new<P>(table: &BioTable<P>) -> Self {
        Self { to: SubmitterId(0), batch: table.finish_batch(), wake: Vec::new() }
    }

    /// Ends a bio that is not chained to others. Inlined by force: nearly every I/O ends here, and the calls from the
    /// rare paths must not make it a function call there.
    #[inline(always)]
    pub(crate) fn push<P>(&mut self, lasting: &Lasting<P>, bio: Bio, result: IoResult) {
        let to = lasting.table.submitter(&bio);
        if to != self.to || self.batch.is_full() {
            self.begin_anew(lasting, to);
        }
        self.batch.push(bio, result);
    }

    /// Sends the batch, and begins one for another submitter, or the next one for the same.
    #[inline(never)]
    fn begin_anew<P>(&mut self, lasting: &Lasting<P>, to: SubmitterId) {
        self.flush(lasting);
        self.to = to;
    }

    /// Sends the batch, at the end of a queue.
    pub(crate) fn send_rest<P>(&mut self, lasting: &Lasting<P>) {
        if !self.batch.is_empty() {
            let _ = self.batch.send(&lasting.senders[usize::from(self.to.0)]);
        }
    }

    /// Ends a bio and those chained to it, all with one result.
    #[inline(never)]
    pub(crate) fn push_chain<P>(&mut self, lasting: &Lasting<P>, head: Bio, result: IoResult) {
        let mut rest = Some(head);
        while let Some(head) = rest {
            let (bio, tail) = lasting.table.split_first(head);
            self.push(lasting, bio, result);
            rest = tail;
        }
    }

    /// Sends the batch.
    #[inline(always)]
    pub(crate) fn flush<P>(&mut self, lasting: &Lasting<P>) {
        if !self.batch.is_empty() && self.batch.send(&lasting.senders[usize::from(self.to.0)]) {
            self.wake.push(self.to);
        }
    }
}
