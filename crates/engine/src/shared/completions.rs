//! Finished bios on their way to their submitters, gathered so that the bios of one submitter are sent together: a send
//! is a read-modify-write, after a store to a line that the submitter reads. Every pump has a batch, and so has every
//! runner, for bios that end without a device. Where the bios of several submitters alternate, small batches are put
//! aside.

use crate::BioTable;
use crate::shared::hub::Lasting;
use crate::shared::slots::{Aside, Bio, Finish};
use blkmq_core::{IoResult, SubmitterId};

/// Places for batches put aside. In models fewer than submitters, so that they run out.
const PLACES: usize = if cfg!(any(shuttle, test)) { 2 } else { 16 };

/// A batch of completions for one submitter, and small batches for others.
pub(crate) struct Completions {
    to: SubmitterId,
    batch: Finish,
    /// Allocated separately, so that the other fields lie together.
    aside: Box<[(SubmitterId, Aside); PLACES]>,
    /// A bit for each place in use.
    taken: u32,
    /// Parked submitters that have completions now, to be woken when the pump or elevator is released.
    pub(crate) wake: Vec<SubmitterId>,
}

/// The only possible place for a batch of `to`.
#[inline]
fn place(to: SubmitterId) -> usize {
    usize::from(to.0) % PLACES
}

impl Completions {
    pub(crate) fn new<P>(table: &BioTable<P>) -> Self {
        Self {
            to: SubmitterId(0),
            batch: table.finish_batch(),
            aside: Box::new(std::array::from_fn(|_| (SubmitterId(0), table.aside()))),
            taken: 0,
            wake: Vec::new(),
        }
    }

    /// Ends a bio that is not chained to others. Always inlined: nearly every I/O ends here, and the calls from rare
    /// paths must not turn it into a function call there.
    #[inline(always)]
    pub(crate) fn push<P>(&mut self, lasting: &Lasting<P>, bio: Bio, result: IoResult) {
        let to = lasting.table.submitter(&bio);
        if to != self.to || self.batch.is_full() {
            self.turn_to(lasting, to);
        }
        self.batch.push(bio, result);
    }

    /// Makes room for a bio of `to`: sends the current batch, or puts it aside if it is small and for another
    /// submitter.
    #[inline(never)]
    fn turn_to<P>(&mut self, lasting: &Lasting<P>, to: SubmitterId) {
        if self.batch.is_small() {
            self.put_aside(lasting);
        } else {
            self.send(lasting);
        }
        self.to = to;
        let (owner, aside) = &mut self.aside[place(to)];
        if self.taken & 1 << place(to) != 0 && *owner == to {
            self.batch.take_up(aside);
            self.taken &= !(1 << place(to));
        }
    }

    fn put_aside<P>(&mut self, lasting: &Lasting<P>) {
        if self.batch.is_empty() {
            return;
        }
        let at = place(self.to);
        if self.taken & 1 << at != 0 {
            self.send_aside(lasting, at);
        }
        let (owner, aside) = &mut self.aside[at];
        *owner = self.to;
        self.batch.put_aside(aside);
        self.taken |= 1 << at;
    }

    #[inline]
    fn send<P>(&mut self, lasting: &Lasting<P>) {
        if !self.batch.is_empty() && self.batch.send(&lasting.senders[usize::from(self.to.0)]) {
            self.wake.push(self.to);
        }
    }

    fn send_aside<P>(&mut self, lasting: &Lasting<P>, at: usize) {
        let (to, aside) = &mut self.aside[at];
        if aside.send(&lasting.senders[usize::from(to.0)]) {
            self.wake.push(*to);
        }
    }

    /// Sends all batches.
    #[inline(always)]
    pub(crate) fn flush<P>(&mut self, lasting: &Lasting<P>) {
        self.send(lasting);
        if self.taken != 0 {
            self.flush_aside(lasting);
        }
    }

    #[inline(never)]
    fn flush_aside<P>(&mut self, lasting: &Lasting<P>) {
        let mut left = std::mem::take(&mut self.taken);
        while left != 0 {
            self.send_aside(lasting, left.trailing_zeros() as usize);
            left &= left - 1;
        }
    }

    /// Sends the remaining completions at the end of a queue, without waking submitters.
    pub(crate) fn send_rest<P>(&mut self, lasting: &Lasting<P>) {
        self.flush(lasting);
        self.wake.clear();
    }

    /// Ends a bio and the bios chained to it, all with the same result.
    #[inline(never)]
    pub(crate) fn push_chain<P>(&mut self, lasting: &Lasting<P>, head: Bio, result: IoResult) {
        let mut rest = Some(head);
        while let Some(head) = rest {
            let (bio, tail) = lasting.table.split_first(head);
            self.push(lasting, bio, result);
            rest = tail;
        }
    }
}
