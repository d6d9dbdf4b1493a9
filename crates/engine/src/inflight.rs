//! [`Inflight`]: proof that one request has left its elevator and is owed an answer.

use crate::slots::Bio;
use crate::{BioRef, BioTable};
use blkmq_core::{HwQueue, Instant, IoFlags, IoMeta, Op, RequestId, Tag};

/// A request on its way to, at, or on its way back from a device.
///
/// Not `Clone`, and consumed by what ends it, so a request cannot be answered twice. Dropping one is a bug
/// and panics: a request that nobody answers is a client that waits for ever.
#[must_use]
#[derive(Debug)]
#[repr(C, align(16))]
pub struct Inflight {
    /// `None` only while it is being taken apart.
    head: Option<Bio>,
    pub(crate) sector: u64,
    pub(crate) issued: Instant,
    pub(crate) sectors: u32,
    pub(crate) id: RequestId,
    pub(crate) tag: Tag,
    pub(crate) bios: u32,
    pub(crate) hw: HwQueue,
    pub(crate) segments: u16,
    /// An index into `OPS` and not an [`Op`]: see below.
    op: u8,
    pub(crate) flags: IoFlags,
    _pad: [u8; 2],
}

// It travels by value through the outbox and back: three aligned moves of 16 bytes. An unused value of any
// field (as `Op` has many) would be used to mark `None`, and padding be left out; then it is copied in
// overlapping parts, and reading those back waits for the store buffer, some 5 ns each time.
const _: () = assert!(size_of::<Inflight>() == 48 && size_of::<Option<Inflight>>() == 64);

/// By discriminant.
const OPS: [Op; 5] = [Op::Read, Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes];

impl Inflight {
    #[inline]
    pub(crate) fn new(
        head: Bio,
        bios: u32,
        id: RequestId,
        tag: Tag,
        hw: HwQueue,
        now: Instant,
        meta: &IoMeta,
    ) -> Self {
        Self {
            head: Some(head),
            sector: meta.sector,
            issued: now,
            sectors: meta.sectors,
            id,
            tag,
            bios,
            hw,
            segments: meta.segments,
            op: meta.op as u8,
            flags: meta.flags,
            _pad: [0; 2],
        }
    }

    /// First sector.
    #[must_use]
    pub fn sector(&self) -> u64 {
        self.sector
    }

    /// Length in sectors. Of a discard that took in ranges from elsewhere, the sum of all of them.
    #[must_use]
    pub fn sectors(&self) -> u32 {
        self.sectors
    }

    /// What to do.
    #[must_use]
    pub fn op(&self) -> Op {
        OPS[usize::from(self.op)]
    }

    /// How.
    #[must_use]
    pub fn flags(&self) -> IoFlags {
        self.flags
    }

    /// The driver tag, below the device's `hw_queue_depth`.
    #[must_use]
    pub fn tag(&self) -> Tag {
        self.tag
    }

    /// The hardware queue that it was issued to.
    #[must_use]
    pub fn hw(&self) -> HwQueue {
        self.hw
    }

    /// Scatter-gather segments, or ranges for a discard.
    #[must_use]
    pub fn segments(&self) -> u16 {
        self.segments
    }

    /// How many bios were merged into it; at least 1.
    #[must_use]
    pub fn bio_count(&self) -> u32 {
        self.bios
    }

    /// The bios in ascending order of sectors, with their payloads.
    pub fn bios<'a, P>(
        &'a self,
        table: &'a BioTable<P>,
    ) -> impl Iterator<Item = BioRef<'a, P>> + 'a {
        table.iter(self.head.as_ref().expect("an inflight request has its bios"))
    }

    /// Takes the chain out; what is left may be dropped.
    #[inline]
    pub(crate) fn into_head(mut self) -> Bio {
        self.head.take().expect("an inflight request has its bios")
    }
}

impl Drop for Inflight {
    #[inline]
    fn drop(&mut self) {
        // While unwinding a second panic would abort and hide the first.
        assert!(
            self.head.is_none() || std::thread::panicking(),
            "request {:?} (tag {}) was dropped instead of being answered",
            self.id,
            self.tag.0
        );
    }
}
