//! Requests in transit: [`PluggedRequest`] from a plug to its elevator, and [`Inflight`], the proof that a request has
//! left the elevator and is owed an answer.

use crate::shared::slots::{Bio, Run};
use crate::{BioRef, BioTable};
use blkmq_core::{HwQueue, Instant, IoFlags, IoMeta, IoResult, Op, RequestId, Tag};
use std::cell::Cell;
use std::marker::PhantomData;

/// The purpose of an issued request, which decides how its completion is handled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Way {
    /// An ordinary request: its bios end with it.
    Plain = 0,
    /// The data step of a sequence.
    Data = 1,
    /// A flush, issued on behalf of the first request that it serves.
    Flush = 2,
}

/// A request on its way to, at, or on its way back from a device.
///
/// Not `Clone`, and consumed by every call that ends it, so a request cannot be answered twice. Dropping one is a bug
/// and panics: the client of a request without an answer would wait for ever.
///
/// `Send`, and not `Sync`: a device may hand a request to another thread, but two threads that shared one would share
/// its payloads, which are only `Send`.
///
/// ```compile_fail
/// fn shared<T: Sync>() {}
/// shared::<blkmq_engine::Inflight>();
/// ```
#[must_use]
#[derive(Debug)]
#[repr(C, align(16))]
pub struct Inflight {
    /// `None` only while the token is being dismantled.
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
    /// An index into `WAYS` in the lower two bits. The bits above hold the pool of its token plus one, or 0 for no
    /// token; the highest bit says that it has a budget.
    way: u8,
    /// The number of retries after an error.
    pub(crate) retries: u8,
    _not_sync: PhantomData<Cell<()>>,
}

// A token is passed by value through the outbox and back: three aligned moves of 16 bytes. If a field had an unused
// value (`Op` has many), the compiler would use it to mark `None` and leave out padding. The token would then be copied
// in overlapping parts, and reading those back stalls on the store buffer.
const _: () = assert!(size_of::<Inflight>() == 48 && size_of::<Option<Inflight>>() == 64);

/// Indexed by discriminant.
const OPS: [Op; 5] = [Op::Read, Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes];
/// Indexed by discriminant.
const WAYS: [Way; 3] = [Way::Plain, Way::Data, Way::Flush];

/// The part of `Inflight::way` that is an index into `WAYS`.
const WAY_BITS: u32 = 2;
const WAY_MASK: u8 = (1 << WAY_BITS) - 1;
/// The part of `Inflight::way` that says whether it has a budget.
const BUDGET: u8 = 1 << 7;

/// The bios of a request, and the state that must survive when its token is dismantled and made again.
pub(crate) struct Chain {
    pub(crate) head: Bio,
    pub(crate) bios: u32,
    /// The number of retries after an error.
    pub(crate) retries: u8,
}

/// A request that returns to its elevator whole, because it has not ended: the device wants it back later, it is to be
/// retried after an error, or it is a step of a flush sequence.
#[derive(Debug)]
pub(crate) struct Handback {
    pub(crate) rq: Inflight,
    pub(crate) verdict: Verdict,
    /// The time at which the pump took it back.
    pub(crate) at: Instant,
}

impl Inflight {
    #[inline]
    pub(crate) fn new(
        chain: Chain,
        id: RequestId,
        tag: Tag,
        hw: HwQueue,
        now: Instant,
        meta: &IoMeta,
        pool: Option<u8>,
    ) -> Self {
        debug_assert!(pool.is_none_or(|pool| pool < 31), "five bits for a pool");
        Self {
            head: Some(chain.head),
            sector: meta.sector,
            issued: now,
            sectors: meta.sectors,
            id,
            tag,
            bios: chain.bios,
            hw,
            segments: meta.segments,
            op: meta.op as u8,
            flags: meta.flags,
            way: Way::Plain as u8 | pool.map_or(0, |pool| pool + 1) << WAY_BITS,
            retries: chain.retries,
            _not_sync: PhantomData,
        }
    }

    /// The data step of a flush sequence.
    pub(crate) fn into_data_step(mut self) -> Self {
        self.set_way(Way::Data);
        self
    }

    /// A flush of the device on behalf of this request: with its slot and tag, but without its data.
    pub(crate) fn into_flush(mut self) -> Self {
        self.set_way(Way::Flush);
        self.op = Op::Flush as u8;
        self.flags = IoFlags::NONE;
        (self.sector, self.sectors, self.segments, self.bios) = (0, 0, 0, 0);
        self
    }

    fn set_way(&mut self, way: Way) {
        self.way = self.way & !WAY_MASK | way as u8;
    }

    /// The request's number, as policies know it.
    #[must_use]
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// The purpose of the request.
    pub(crate) fn way(&self) -> Way {
        WAYS[usize::from(self.way & WAY_MASK)]
    }

    /// Adds a budget, if `has`.
    #[inline]
    pub(crate) fn with_budget(mut self, has: bool) -> Self {
        self.way |= if has { BUDGET } else { 0 };
        self
    }

    /// Returns whether the request has a token or a budget, to be returned with it.
    #[inline]
    pub(crate) fn has_more_than_a_tag(&self) -> bool {
        self.way > WAY_MASK
    }

    /// The pool of the request's token; `None` without a token.
    #[inline]
    pub(crate) fn pool(&self) -> Option<u8> {
        ((self.way & !BUDGET) >> WAY_BITS).checked_sub(1)
    }

    /// Returns whether the request has a budget.
    #[inline]
    pub(crate) fn has_budget(&self) -> bool {
        self.way & BUDGET != 0
    }

    /// Returns whether the request returns to its elevator when it is done, instead of its bios to their submitters.
    #[inline]
    pub(crate) fn is_step(&self) -> bool {
        self.way & WAY_MASK != Way::Plain as u8
    }

    /// First sector.
    #[must_use]
    pub fn sector(&self) -> u64 {
        self.sector
    }

    /// Length in sectors. For a discard of several ranges, their sum.
    #[must_use]
    pub fn sectors(&self) -> u32 {
        self.sectors
    }

    /// The operation.
    #[must_use]
    pub fn op(&self) -> Op {
        OPS[usize::from(self.op)]
    }

    /// The flags. Never [`IoFlags::PREFLUSH`]; [`IoFlags::FUA`] only if the device supports it.
    #[must_use]
    pub fn flags(&self) -> IoFlags {
        self.flags
    }

    /// The driver tag, below the device's `hw_queue_depth`.
    #[must_use]
    pub fn tag(&self) -> Tag {
        self.tag
    }

    /// The hardware queue to which the request was issued.
    #[must_use]
    pub fn hw(&self) -> HwQueue {
        self.hw
    }

    /// Scatter-gather segments, or ranges for a discard.
    #[must_use]
    pub fn segments(&self) -> u16 {
        self.segments
    }

    /// The number of bios merged into the request: 0 for a flush, which may serve several requests, and at least 1
    /// otherwise.
    #[must_use]
    pub fn bio_count(&self) -> u32 {
        self.bios
    }

    /// The number of retries after an error, without requeues by the device.
    #[must_use]
    pub fn retries(&self) -> u8 {
        self.retries
    }

    /// The bios in ascending order of sectors, with their payloads.
    pub fn bios<'a, P>(
        &'a self,
        table: &'a BioTable<P>,
    ) -> impl Iterator<Item = BioRef<'a, P>> + 'a {
        let all = table.iter(self.head.as_ref().expect("an inflight request has its bios"));
        // A flush is issued on behalf of a request, but without that request's bios.
        all.take(self.bios as usize)
    }

    /// The leading bios that have one owner.
    pub(crate) fn first_run<P>(&self, table: &BioTable<P>) -> Run {
        table.first_run(self.head.as_ref().expect("an inflight request has its bios"))
    }

    /// Cuts the request down to its first run, which begins at `sector`. Returns the bios behind it.
    pub(crate) fn cut<P>(
        mut self,
        table: &BioTable<P>,
        sector: u64,
        run: Run,
        segments: u16,
    ) -> (Self, Option<(Bio, u32)>) {
        let head = self.head.take().expect("an inflight request has its bios");
        let (front, rest) = table.split_at(head, run.bios);
        let behind = self.bios - run.bios;
        self.head = Some(front);
        (self.sector, self.sectors, self.segments, self.bios) =
            (sector, run.sectors, segments, run.bios);
        (self, rest.map(|rest| (rest, behind)))
    }

    /// Replaces the bios; returns the old ones.
    pub(crate) fn with_head(mut self, (head, bios): (Bio, u32)) -> (Self, Bio) {
        self.bios = bios;
        let old = self.head.replace(head);
        (self, old.expect("an inflight request has its bios"))
    }

    /// Takes the bios out; the rest may be dropped.
    #[inline]
    pub(crate) fn into_head(mut self) -> Bio {
        self.head.take().expect("an inflight request has its bios")
    }

    /// Like [`into_head`](Self::into_head), but with the state that belongs to the bios.
    pub(crate) fn into_chain(self) -> Chain {
        let (bios, retries) = (self.bios, self.retries);
        Chain { head: self.into_head(), bios, retries }
    }
}

impl Drop for Inflight {
    #[inline]
    fn drop(&mut self) {
        if let Some(head) = self.head.take() {
            self.dropped(head);
        }
    }
}

impl Inflight {
    #[cold]
    fn dropped(&self, head: Bio) {
        // For a flush too: the request for which it was issued has no other token.
        head.orphan();
        // During unwinding, a second panic would abort and hide the first.
        assert!(
            std::thread::panicking(),
            "request {:?} (tag {}) was dropped instead of being answered",
            self.id,
            self.tag.0
        );
    }
}

/// The outcome of a request at the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Finished, with success or an error.
    Done(IoResult),
    /// The device wants the request back later: the request loses its driver tag and goes to the head of the scheduler.
    Requeue,
    /// The device wants the same request back later: the request keeps its tag, bypasses the scheduler, and waits
    /// behind the requests that already wait in the hardware queue. It is offered again at the next turn of the pump,
    /// for example after a completion, and after 3 ms at the latest.
    RequeueTail,
}

/// The content of a plug or a staging ring: a request without a slot, of one bio or several that merged in a plug. It
/// has its own cache line, because staging moves it from one core to another.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct PluggedRequest {
    pub(crate) meta: IoMeta,
    pub(crate) bio: Bio,
    pub(crate) bios: u32,
}
