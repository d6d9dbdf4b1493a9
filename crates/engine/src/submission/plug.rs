//! A submitter's private batch: I/Os gathered and merged before any other thread sees them (`spec/framework.md`
//! section 5).

use crate::dispatch::inflight::Chain;
use crate::elevator::merge::{self, Fit, Kind};
use crate::shared::slots::Bio;
use crate::submission::plugged::PluggedRequest;
use crate::{BioTable, NoMerges};
use blkmq_core::{IoMeta, Limits};

/// Requests that a plug holds before it must be flushed. (Linux: 64 if it spans several queues; here each
/// queue has plugs of its own.)
pub const PLUG_REQUESTS: usize = 32;
/// A last request of this many sectors (128 KiB) flushes the plug at the next append.
pub const PLUG_SECTORS: u32 = 256;

/// Requests in the order of submission.
#[derive(Debug)]
pub(crate) struct Plug {
    requests: Vec<PluggedRequest>,
    most: usize,
}

impl Plug {
    pub(crate) fn new(most: usize) -> Self {
        Self { requests: Vec::with_capacity(most), most }
    }

    /// Must the plug be flushed before another request is appended?
    #[inline]
    pub(crate) fn must_flush(&self, merging: bool) -> bool {
        self.requests.len() >= self.most
            || merging && self.requests.last().is_some_and(|last| last.meta.sectors >= PLUG_SECTORS)
    }

    /// Would `io` fit into the newest request, the one candidate that a plug looks at?
    #[inline]
    pub(crate) fn fits(&self, limits: &Limits, nomerges: NoMerges, io: &IoMeta) -> Option<Kind> {
        let last = self.requests.last()?;
        // By value, so that the common case keeps `io` in registers.
        if merge::could_join(&last.meta, io) {
            fits(limits, nomerges, &last.meta, *io)
        } else {
            None
        }
    }

    /// Makes `io` part of the newest request, which it [`fits`](Self::fits).
    pub(crate) fn merge<P>(&mut self, table: &BioTable<P>, kind: Kind, io: PluggedRequest) {
        let last = self.requests.last_mut().expect("there is a request that it fits");
        last.meta = merge::joined(&last.meta, &io.meta, kind);
        last.bios += io.bios;
        if kind == Kind::Front {
            let behind = std::mem::replace(&mut last.bio, io.bio);
            table.append(&mut last.bio, behind);
        } else {
            table.append(&mut last.bio, io.bio);
        }
    }

    /// Adds a request behind all others.
    #[inline]
    pub(crate) fn append(&mut self, io: PluggedRequest) {
        assert!(self.requests.len() < self.most, "a full plug is flushed first");
        self.requests.push(io);
    }

    /// Takes out the oldest I/O that has this cookie and is merged with no other. O(requests).
    pub(crate) fn remove<P>(&mut self, table: &BioTable<P>, cookie: u64) -> Option<Bio> {
        let is = |io: &PluggedRequest| io.bios == 1 && table.is_io(&io.bio, cookie);
        let at = self.requests.iter().position(is)?;
        Some(self.requests.remove(at).bio)
    }

    /// All requests, in the order of submission.
    #[inline]
    pub(crate) fn requests(&self) -> &[PluggedRequest] {
        &self.requests
    }

    /// Takes all requests out, in any order.
    #[inline]
    pub(crate) fn scatter(&mut self) -> Scattered<'_> {
        Scattered(&mut self.requests)
    }

    /// The newest request, without taking it.
    #[inline]
    pub(crate) fn newest(&self) -> Option<&PluggedRequest> {
        self.requests.last()
    }

    /// Takes out the newest request.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<PluggedRequest> {
        self.requests.pop()
    }

    /// Requests in the plug.
    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Takes all requests out, in the order of submission.
    #[inline]
    pub(crate) fn drain(&mut self) -> Emptied<'_> {
        Emptied(self.requests.drain(..))
    }

    /// Takes out the oldest `most` requests, in the order of submission. O(requests).
    #[cfg(feature = "compare")]
    pub(crate) fn drain_first(&mut self, most: usize) -> impl Iterator<Item = PluggedRequest> + '_ {
        self.requests.drain(..most)
    }
}

/// The requests of a plug that are being taken out in any order. If a panic interrupts that, the rest goes to the orphans.
pub(crate) struct Scattered<'a>(&'a mut Vec<PluggedRequest>);

impl Scattered<'_> {
    /// Takes the request of a place.
    ///
    /// # Panics
    /// If there is none, or if it has been taken.
    #[inline(always)]
    pub(crate) fn take(&mut self, place: usize) -> (&IoMeta, Chain) {
        let PluggedRequest { meta, bio, bios } = &mut self.0[place];
        (meta, Chain { head: bio.take(), bios: *bios, retries: 0 })
    }

    /// Ends it: as many have been taken as there were. O(1).
    #[inline]
    pub(crate) fn end(self) {
        debug_assert!(self.0.iter().all(|io| io.bio.is_taken()), "something is left");
        self.0.clear();
        std::mem::forget(self);
    }
}

impl Drop for Scattered<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.drain(..).filter(|io| !io.bio.is_taken()).for_each(|io| io.bio.orphan());
    }
}

/// The requests of a plug that is being emptied. If a panic interrupts that, the rest goes to the orphans.
pub(crate) struct Emptied<'a>(std::vec::Drain<'a, PluggedRequest>);

impl Emptied<'_> {
    /// The next request, without taking it.
    #[inline]
    pub(crate) fn peek(&self) -> Option<&PluggedRequest> {
        self.0.as_slice().first()
    }

    /// Requests that are left.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.0.as_slice().len()
    }

    /// Ends the iteration after the last request: there is no rest to look for. O(1).
    #[inline]
    pub(crate) fn end(self) {
        debug_assert!(self.0.as_slice().is_empty(), "something is left");
        // `Drain` has set the vector's length to the number of requests ahead of the drained range, 0, at its start.
        std::mem::forget(self);
    }
}

impl Iterator for Emptied<'_> {
    type Item = PluggedRequest;

    #[inline]
    fn next(&mut self) -> Option<PluggedRequest> {
        self.0.next()
    }
}

impl Drop for Emptied<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.0.as_slice().is_empty() {
            self.0.by_ref().for_each(|proto| proto.bio.orphan());
        }
    }
}

#[inline(never)]
fn fits(limits: &Limits, nomerges: NoMerges, last: &IoMeta, io: IoMeta) -> Option<Kind> {
    // Policies, which may allow merges of different owners, are not asked here.
    let apart = last.owner != io.owner || nomerges == NoMerges::None;
    if apart || !merge::mergeable(&io) || !merge::mergeable(last) {
        return None;
    }
    match merge::fit(limits, last, &io) {
        Fit::Merge(kind) => Some(kind),
        Fit::No | Fit::Full => None,
    }
}
