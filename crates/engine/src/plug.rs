//! A submitter's private batch: I/Os gathered and merged before anybody else sees them
//! (`spec/framework.md` section 5).

use crate::elevator::Proto;
use crate::merge::{self, Fit, Kind};
use crate::{BioTable, NoMerges};
use blkmq_core::Limits;

/// Requests that a plug holds before it must be flushed.
pub const PLUG_REQUESTS: usize = 32;
/// The same for a plug that spans several queues.
pub const PLUG_REQUESTS_MULTI: usize = 64;
/// A last request of this many sectors (128 KiB) flushes the plug at the next append.
pub const PLUG_SECTORS: u32 = 256;


/// Requests in the order of submission.
#[derive(Debug)]
pub(crate) struct Plug {
    requests: Vec<Proto>,
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

    /// Tries to make `io` part of the newest request: the one candidate that a plug looks at.
    #[inline]
    pub(crate) fn merge<P>(
        &mut self,
        table: &BioTable<P>,
        limits: &Limits,
        nomerges: NoMerges,
        io: Proto,
    ) -> Result<(), Proto> {
        let Some(last) = self.requests.last_mut() else { return Err(io) };
        if nomerges == NoMerges::None || !merge::mergeable(&io.meta) || !merge::mergeable(&last.meta) {
            return Err(io);
        }
        let Fit::Merge(kind) = merge::fit(limits, &last.meta, &io.meta) else { return Err(io) };
        last.meta = merge::joined(&last.meta, &io.meta, kind);
        last.bios += io.bios;
        if kind == Kind::Front {
            let behind = std::mem::replace(&mut last.bio, io.bio);
            table.append(&mut last.bio, behind);
        } else {
            table.append(&mut last.bio, io.bio);
        }
        Ok(())
    }

    /// Adds a request behind all others.
    #[inline]
    pub(crate) fn append(&mut self, io: Proto) {
        assert!(self.requests.len() < self.most, "a full plug is flushed first");
        self.requests.push(io);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Takes everything out, in the order of submission.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Proto> + '_ {
        self.requests.drain(..)
    }
}
