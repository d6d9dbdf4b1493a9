//! Finished bios that are sent to their submitter together: the tokens are given up, and only indices remain.

use super::{Bio, BioSender, BioTable};
use blkmq_core::IoResult;
use std::num::NonZeroU32;

/// The most completions gathered for one submitter, and the most tags returned together.
pub(crate) const BATCH: usize = 32;

/// Up to `N` values in order; `N` is a power of two.
#[derive(Debug)]
pub(crate) struct Few<T, const N: usize> {
    list: [T; N],
    len: usize,
}

impl<T: Copy, const N: usize> Few<T, N> {
    /// An empty list; `filler` fills unused places.
    pub(crate) fn new(filler: T) -> Self {
        const { assert!(N.is_power_of_two()) };
        Self { list: [filler; N], len: 0 }
    }

    /// Adds a value. The caller must have checked that the list [is not full](Self::is_full).
    #[inline]
    pub(crate) fn push(&mut self, value: T) {
        debug_assert!(!self.is_full(), "a list that is full takes nothing");
        // The remainder avoids a bounds check.
        self.list[self.len % N] = value;
        self.len += 1;
    }

    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.len == N
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The values, the oldest first.
    #[inline]
    pub(crate) fn values(&self) -> &[T] {
        &self.list[..self.len]
    }

    #[inline]
    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn it_holds_what_it_was_given_until_it_is_cleared() {
        let mut few = Few::<u32, 4>::new(0);
        assert!(few.is_empty() && few.values().is_empty());
        (1..=4).for_each(|n| few.push(n));
        assert!(few.is_full() && few.values() == [1, 2, 3, 4]);
        few.clear();
        few.push(9);
        assert!(!few.is_full() && few.values() == [9]);
    }
}

/// Finished bios of one submitter, gathered to be sent together.
pub(crate) struct Finish {
    payloads: Few<u64, BATCH>,
    table: NonZeroU32,
}

/// A few finished bios of one submitter, put aside.
pub(crate) struct Aside {
    payloads: Few<u64, ASIDE>,
    table: NonZeroU32,
}

/// The number of finished bios that makes a send worthwhile.
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

    /// Returns whether the batch fits into an [`Aside`]. A larger batch is worth a send.
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

    /// Moves the bios in `aside` back into an empty batch.
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

    /// Sends the batch. Returns whether the submitter is parked and must be woken by the caller.
    #[inline]
    pub(crate) fn send(&mut self, to: &BioSender) -> bool {
        assert!(to.table == self.table, "a ring of another queue");
        let wake = to.ring.push(self.payloads.values());
        self.payloads.clear();
        wake
    }
}

impl Aside {
    /// See [`Finish::send`].
    pub(crate) fn send(&mut self, to: &BioSender) -> bool {
        assert!(to.table == self.table, "a ring of another queue");
        let wake = to.ring.push(self.payloads.values());
        self.payloads.clear();
        wake
    }
}
