//! A submitter's private batch: I/Os gathered and merged before any other thread sees them (`spec/framework.md`
//! section 5).

use crate::elevator::merge;
use crate::elevator::merge::{Fit, Kind};
use crate::shared::hub::{Ask, Shard};
use crate::shared::inflight::{Chain, PluggedRequest};
use crate::shared::slots::Bio;
use crate::sync::{Consumer, Producer};
use crate::{BioTable, NoMerges};
use blkmq_core::{IoMeta, Limits, SubmitterId};

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

    /// Returns whether the plug must be flushed before another request is appended.
    #[inline]
    pub(crate) fn must_flush(&self, merging: bool) -> bool {
        self.requests.len() >= self.most
            || merging && self.requests.last().is_some_and(|last| last.meta.sectors >= PLUG_SECTORS)
    }

    /// Returns where `io` would join the newest request, the one candidate that a plug looks at, or `None` if it does
    /// not fit.
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

    /// The newest request, without taking it.
    #[inline]
    pub(crate) fn newest(&self) -> Option<&PluggedRequest> {
        self.requests.last()
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<PluggedRequest> {
        self.requests.pop()
    }

    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Takes all requests out, in the order of submission or in any other.
    #[inline]
    pub(crate) fn drain(&mut self) -> Emptied<'_> {
        Emptied { requests: &mut self.requests, at: 0 }
    }

    /// Takes out the oldest `most` requests, in the order of submission. O(requests).
    #[cfg(feature = "compare")]
    pub(crate) fn drain_first(&mut self, most: usize) -> impl Iterator<Item = PluggedRequest> + '_ {
        self.requests.drain(..most)
    }
}

/// The requests of a plug that is being emptied. If a panic interrupts that, the rest goes to the orphans.
///
/// Requests stay where they are, without their bios, until all have been taken.
pub(crate) struct Emptied<'a> {
    requests: &'a mut Vec<PluggedRequest>,
    /// The place of the next one in the order of submission.
    at: usize,
}

impl Emptied<'_> {
    /// The next request in the order of submission, without taking it.
    #[inline]
    pub(crate) fn peek(&self) -> Option<&PluggedRequest> {
        self.requests.get(self.at)
    }

    /// The requests that are left, if they are taken in the order of submission.
    #[inline]
    pub(crate) fn rest(&self) -> &[PluggedRequest] {
        &self.requests[self.at..]
    }

    /// Takes the request at `place`.
    ///
    /// # Panics
    /// If there is none, or if it has been taken.
    #[inline(always)]
    pub(crate) fn take_at(&mut self, place: usize) -> (&IoMeta, Chain) {
        let PluggedRequest { meta, bio, bios } = &mut self.requests[place];
        (meta, Chain { head: bio.take(), bios: *bios, retries: 0 })
    }

    /// Takes the next request in the order of submission, which has been [seen](Self::peek).
    ///
    /// # Panics
    /// If there is none.
    #[inline(always)]
    pub(crate) fn take_next(&mut self) -> (&IoMeta, Chain) {
        let at = self.at;
        self.at += 1;
        self.take_at(at)
    }

    /// Ends the emptying, after all requests have been taken. O(1).
    #[inline]
    pub(crate) fn end(self) {
        debug_assert!(self.requests.iter().all(|io| io.bio.is_taken()), "something is left");
        self.requests.clear();
        std::mem::forget(self);
    }
}

impl Iterator for Emptied<'_> {
    type Item = PluggedRequest;

    #[inline]
    fn next(&mut self) -> Option<PluggedRequest> {
        let io = self.requests.get_mut(self.at)?;
        self.at += 1;
        Some(PluggedRequest { meta: io.meta, bio: io.bio.take(), bios: io.bios })
    }
}

impl Drop for Emptied<'_> {
    #[inline]
    fn drop(&mut self) {
        self.requests.drain(..).filter(|io| !io.bio.is_taken()).for_each(|io| io.bio.orphan());
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

/// The runner's ends of a submitter's rings.
pub(crate) struct Staging {
    pub(crate) protos: Consumer<PluggedRequest>,
    /// I/Os that the submitter wants cancelled.
    pub(crate) asks: Consumer<Ask>,
}

/// The caller's own submission, which need not be staged when the elevator is free.
pub(crate) struct Own<'a> {
    pub(crate) id: SubmitterId,
    pub(crate) plug: &'a mut Plug,
    pub(crate) staging: &'a mut Producer<PluggedRequest>,
}

/// Stages the caller's plug: a later pass finds it, in this queue or in the queue that takes over.
#[allow(clippy::needless_pass_by_value, reason = "it borrows what the caller submits")]
pub(crate) fn stage(shard: &Shard, own: Own<'_>) {
    let mut plug = own.plug.drain();
    for proto in &mut plug {
        // Staging holds a submitter's whole credit.
        own.staging.put(proto);
    }
    plug.end();
    own.staging.publish();
    shard.pending.set(own.id.0);
}
