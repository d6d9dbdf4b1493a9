//! Contents of blocks: the data that a read may find, that must exist in the end, and that a power cut may lose; and
//! the promises of flushes, FUA and PREFLUSH, against the flushes that the device really did.
//!
//! [`Contents`] has the view of an application: it knows the submitted I/Os, the time of each submission, and the time
//! and the result of each end. A write takes place at some moment in between; a failed write may not take place at all.
//! So a read may find any write that had not certainly been overwritten when the read was submitted. After a power cut
//! more is allowed: a block may also hold an overwritten write, unless the write that replaced it was promised to be
//! durable. [`PowerCuts`] has the number and the kind of the cuts, and [`Mains`] reads the surviving contents. The unit
//! is a logical block, which is never torn. Zeroes and discards count as writes of zeroes, as they do for the devices
//! that store.
//!
//! [`Durable`] has the view of the device (`spec/framework.md` section 12): a flush makes durable the data that was
//! finished before the flush began. So a bare flush, or data with PREFLUSH, needs a flush that began after its own
//! submission; data with FUA needs a flush that began after the data was finished, unless the device supports FUA. The
//! I/O may end only after that flush has succeeded.

use crate::Payload;
use crate::client::{self, Found};
use crate::violation::{Stage, Violation};
use blkmq_core::{HwQueue, Instant, IoError, IoFlags, IoResult, Nanos, Op, Rng, SECTOR_SIZE, Tag};
use blkmq_device::memory::MemoryStore;
use blkmq_engine::{Io, WriteCache};
use std::collections::BTreeMap;

/// Counts submissions and ends.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
struct Moment(u64);

/// A write of one block.
#[derive(Clone, Copy)]
struct Written {
    what: Found,
    submitted: Moment,
    ended: Option<Moment>,
    /// The write succeeded, without a power cut while it was in flight: it has taken place.
    certain: bool,
    /// The write was durable when it ended.
    durable: bool,
    /// The moment since when it is certainly overwritten; `None` if it may still be there.
    over: Option<Moment>,
}

impl Written {
    /// The contents before any write.
    fn before(what: Found) -> Self {
        let begin = Moment::default();
        Self {
            what,
            submitted: begin,
            ended: Some(begin),
            certain: true,
            durable: true,
            over: None,
        }
    }

    /// Returns whether this write had ended when `other` was submitted.
    fn is_before(&self, other: &Self) -> bool {
        self.ended.is_some_and(|ended| ended < other.submitted)
    }
}

/// An I/O that has not ended.
#[derive(Clone, Copy)]
struct Flight {
    submitted: Moment,
    /// The power was cut while the I/O was in flight.
    interrupted: bool,
}

/// The knowledge about the contents of a device. Outlives the queues around the device.
pub(crate) struct Contents {
    cache: WriteCache,
    /// Sectors in a block.
    block: u32,
    now: Moment,
    blocks: BTreeMap<u64, Vec<Written>>,
    flights: BTreeMap<Payload, Flight>,
    /// Writes that had ended by this moment are durable.
    flushed: Moment,
    pub(crate) compared: u64,
}

impl Contents {
    /// A device with this cache and blocks of `block` sectors, all of them zero.
    pub(crate) fn new(cache: WriteCache, block: u32) -> Self {
        Self {
            cache,
            block,
            now: Moment(1),
            blocks: BTreeMap::new(),
            flights: BTreeMap::new(),
            flushed: Moment::default(),
            compared: 0,
        }
    }

    fn moment(&mut self) -> Moment {
        self.now.0 += 1;
        self.now
    }

    /// The blocks of `io`, by number.
    fn blocks_of(&self, io: &Io<Payload>) -> std::ops::Range<u64> {
        let block = u64::from(self.block);
        io.sector / block..(io.sector + u64::from(io.sectors)) / block
    }

    /// `io` is offered to the engine.
    pub(crate) fn announced(&mut self, io: &Io<Payload>) {
        let submitted = self.moment();
        self.flights.insert(io.payload, Flight { submitted, interrupted: false });
        let what = match io.op {
            Op::Write => Found::Of(io.payload),
            Op::Discard | Op::WriteZeroes => Found::Zeroes,
            Op::Read | Op::Flush => return,
        };
        let durable = match self.cache {
            WriteCache::Through => true,
            WriteCache::Back { .. } => io.flags.contains(IoFlags::FUA),
        };
        let written = Written { what, submitted, ended: None, certain: false, durable, over: None };
        for block in self.blocks_of(io) {
            let all = self.blocks.entry(block);
            all.or_insert_with(|| vec![Written::before(Found::Zeroes)]).push(written);
        }
    }

    /// The engine did not take `io`, or it was cancelled before any device got a part of it.
    pub(crate) fn withdrawn(&mut self, io: &Io<Payload>) {
        let Some(flight) = self.flights.remove(&io.payload) else { return };
        if io.op.is_write() && io.op != Op::Flush {
            for block in self.blocks_of(io) {
                let all = self.blocks.get_mut(&block).expect("it was there when it was announced");
                all.retain(|written| written.submitted != flight.submitted);
            }
        }
    }

    /// `io` has ended. If it was a read, `found` is the data that it returned, sector by sector.
    pub(crate) fn ended(
        &mut self,
        io: &Io<Payload>,
        result: IoResult,
        found: &[Found],
    ) -> Result<(), Violation> {
        let Some(flight) = self.flights.remove(&io.payload) else { return Ok(()) };
        let now = self.moment();
        let certain = result.is_ok() && !flight.interrupted;
        let flushes = io.op == Op::Flush || io.flags.contains(IoFlags::PREFLUSH);
        if flushes && certain {
            self.flushed = self.flushed.max(flight.submitted);
        }
        match io.op {
            Op::Flush => Ok(()),
            Op::Read if certain => self.check_read(io, flight.submitted, found),
            Op::Read => Ok(()),
            Op::Write | Op::Discard | Op::WriteZeroes => {
                for block in self.blocks_of(io) {
                    let all = self.blocks.get_mut(&block).expect("it was announced");
                    end_one(all, flight.submitted, now, certain);
                }
                Ok(())
            }
        }
    }

    fn check_read(
        &mut self,
        io: &Io<Payload>,
        since: Moment,
        found: &[Found],
    ) -> Result<(), Violation> {
        let sectors = io.sectors as usize;
        if found.len() != sectors {
            return Err(Violation::Contents { sector: io.sector, what: "a read brought nothing" });
        }
        let blocks = self.blocks_of(io);
        for (block, found) in blocks.zip(found.chunks_exact(self.block as usize)) {
            self.check_block(block, since, found)?;
        }
        Ok(())
    }

    /// A read that was submitted at `since` found this data in the sectors of `block`. Checks that it may.
    fn check_block(&mut self, block: u64, since: Moment, found: &[Found]) -> Result<(), Violation> {
        self.compared += 1;
        let sector = block * u64::from(self.block);
        let wrong = |what| Err(Violation::Contents { sector, what });
        let what = found[0];
        if what == Found::Damaged || found.iter().any(|other| *other != what) {
            return wrong("it is torn, or of another place");
        }
        let Some(all) = self.blocks.get(&block) else {
            let nothing = what == Found::Zeroes;
            return if nothing { Ok(()) } else { wrong("something is where nothing was written") };
        };
        let mut same = all.iter().filter(|written| written.what == what).peekable();
        if same.peek().is_none() {
            return wrong("it is of a write that was given up or made elsewhere");
        }
        // A write that was overwritten later than `since` may still have been there.
        if same.any(|written| written.over.is_none_or(|over| over > since)) {
            Ok(())
        } else {
            wrong("it is of a write that had been overwritten")
        }
    }

    /// With nothing in flight, checks every block; `look` reads a block, sector by sector.
    pub(crate) fn check_at_rest(
        &mut self,
        mut look: impl FnMut(u64, u32) -> Vec<Found>,
    ) -> Result<(), Violation> {
        let now = self.moment();
        for block in Vec::from_iter(self.blocks.keys().copied()) {
            let found = look(block * u64::from(self.block), self.block);
            self.check_block(block, now, &found)?;
        }
        Ok(())
    }

    /// After a power cut, checks the remaining contents, which `look` reads. `all`: the whole machine lost power, so
    /// that I/Os in flight will never end. Returns how many blocks lost their newest write.
    pub(crate) fn cut(
        &mut self,
        all: bool,
        mut look: impl FnMut(u64, u32) -> Vec<Found>,
    ) -> Result<u64, Violation> {
        let mut lost = 0;
        let flushed = std::mem::take(&mut self.flushed);
        for (block, history) in &mut self.blocks {
            let sector = block * u64::from(self.block);
            let found = look(sector, self.block);
            let what = survivor(history, flushed, &found)
                .map_err(|what| Violation::Contents { sector, what })?;
            self.compared += 1;
            let newest = history.iter().any(|w| w.what == what && w.over.is_none());
            lost += u64::from(!newest);
            // The surviving contents begin the next life of the block; writes still in flight may follow.
            history.retain(|written| written.ended.is_none() && !all);
            history.insert(0, Written::before(what));
        }
        if all {
            self.flights.clear();
        }
        self.flights.values_mut().for_each(|flight| flight.interrupted = true);
        Ok(lost)
    }
}

/// The write that was submitted at that moment has ended.
fn end_one(all: &mut [Written], submitted: Moment, now: Moment, certain: bool) {
    let own = all.iter().position(|written| written.submitted == submitted);
    let own = own.expect("it was announced");
    (all[own].ended, all[own].certain) = (Some(now), certain);
    if !certain {
        return;
    }
    let this = all[own];
    for other in all.iter_mut().filter(|other| other.is_before(&this)) {
        other.over.get_or_insert(now);
    }
}

/// The contents of a block after a power cut, or the reason why they are impossible. Writes that had ended by
/// `flushed` are durable.
fn survivor(history: &[Written], flushed: Moment, found: &[Found]) -> Result<Found, &'static str> {
    let what = found[0];
    if what == Found::Damaged || found.iter().any(|other| *other != what) {
        return Err("a power cut left it torn, or of another place");
    }
    let is_durable = |written: &Written| {
        written.certain && (written.durable || written.ended.is_some_and(|at| at < flushed))
    };
    let same = history.iter().filter(|written| written.what == what);
    let mut left = same.filter(|written| {
        !history.iter().any(|other| is_durable(other) && written.is_before(other))
    });
    match left.next() {
        Some(_) => Ok(what),
        None if history.iter().any(|written| written.what == what) => {
            Err("a power cut took what was promised to be durable")
        }
        None => Err("a power cut left what was never written there"),
    }
}

/// Power cuts of a run, drawn from its seed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PowerCuts {
    /// The number of cuts.
    pub most: u32,
    /// Only the device loses power, and the queue continues with it; otherwise the whole machine does, and a new queue
    /// is built around the device.
    pub device_only: bool,
    /// The longest time from the beginning to the first cut, or from one cut to the next.
    pub after: Nanos,
}

impl PowerCuts {
    /// The power stays on.
    pub const NONE: Self = Self { most: 0, device_only: false, after: Nanos::ZERO };
}

/// The times of power cuts, and the store that they affect.
pub(crate) struct Mains {
    cuts: PowerCuts,
    rng: Rng,
    store: Option<MemoryStore>,
}

impl Mains {
    /// For a device that keeps its contents in `store`, if it has any.
    pub(crate) fn new(cuts: PowerCuts, seed: u64, store: Option<MemoryStore>) -> Self {
        Self { cuts, rng: Rng::new(seed ^ 0x006d_6169_6e73), store }
    }

    /// The time of the cut after `now`.
    pub(crate) fn next(&mut self, now: Instant) -> Instant {
        now + Nanos(1 + self.rng.below(self.cuts.after.0.max(1)))
    }

    /// Cuts the power, and restores it.
    pub(crate) fn cut(&mut self) {
        let seed = self.rng.next_u64();
        if let Some(store) = &self.store {
            store.crash(seed);
        }
    }

    /// The contents of `sectors` sectors from `sector` on.
    pub(crate) fn look(&self, sector: u64, sectors: u32) -> Vec<Found> {
        let store = self.store.as_ref().expect("only what is stored is looked at");
        let mut bytes = vec![0; sectors as usize * SECTOR_SIZE as usize];
        store.read_at(sector * u64::from(SECTOR_SIZE), &mut bytes);
        let each = bytes.chunks_exact(SECTOR_SIZE as usize);
        (sector..).zip(each).map(|(sector, bytes)| client::read(sector, bytes)).collect()
    }
}

/// Counts the events that matter to the order of flushes and data.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct FlushMoment(u64);

/// The progress of an I/O, or of a part of one.
#[derive(Clone, Copy)]
pub(crate) struct Progress {
    pub(crate) stage: Stage,
    /// The moment when the device finished its data.
    pub(crate) served: FlushMoment,
}

impl Progress {
    /// The device has had no part of its data.
    pub(crate) const NONE: Self = Self { stage: Stage::Submitted, served: FlushMoment(0) };
}

/// The outcomes of the flushes that the device was given.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FlushFates {
    /// Flushes that succeeded.
    pub succeeded: u64,
    /// Flushes that ended with an error.
    pub failed: u64,
    /// Flushes that the device requeued, or that the engine retries; counted each time.
    pub requeued: u64,
}

impl FlushFates {
    /// Flushes that have ended.
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.succeeded + self.failed
    }
}

/// Flushes, and the I/Os that wait for them.
pub(crate) struct Durable {
    cache: WriteCache,
    now: FlushMoment,
    /// The moment when each I/O was submitted, by cookie.
    pushed: Vec<FlushMoment>,
    /// Flushes at the device, and the moments when they began.
    flushing: BTreeMap<(HwQueue, Tag), FlushMoment>,
    /// The beginning of the latest flush that succeeded.
    flushed: FlushMoment,
    /// The beginnings and the errors of flushes that failed.
    failed: Vec<(FlushMoment, IoError)>,
    pub(crate) fates: FlushFates,
}

impl Durable {
    /// A device with this cache, before its first I/O.
    pub(crate) fn new(cache: WriteCache) -> Self {
        Self {
            cache,
            now: FlushMoment::default(),
            pushed: Vec::new(),
            flushing: BTreeMap::new(),
            flushed: FlushMoment::default(),
            failed: Vec::new(),
            fates: FlushFates::default(),
        }
    }

    fn moment(&mut self) -> FlushMoment {
        self.now.0 += 1;
        self.now
    }

    /// The I/O with the next cookie is offered to the engine.
    pub(crate) fn announced(&mut self) {
        let now = self.moment();
        self.pushed.push(now);
    }

    /// The engine did not take it.
    pub(crate) fn withdrawn(&mut self) {
        self.pushed.pop();
    }

    /// The engine took it; a flush that began before this moment does not count for it.
    pub(crate) fn pushed(&mut self, cookie: u64) {
        self.pushed[cookie as usize] = self.moment();
    }

    /// The device took a flush.
    pub(crate) fn flush_began(&mut self, hw: HwQueue, tag: Tag) {
        let now = self.moment();
        self.flushing.insert((hw, tag), now);
    }

    /// The device returned a request; if it was a flush, it has ended with `result`, or will be issued again if that is
    /// `None`.
    pub(crate) fn gave_back(&mut self, hw: HwQueue, tag: Tag, result: Option<IoResult>) {
        let Some(began) = self.flushing.remove(&(hw, tag)) else { return };
        match result {
            Some(Ok(())) => {
                self.flushed = self.flushed.max(began);
                self.fates.succeeded += 1;
            }
            Some(Err(error)) => {
                self.failed.push((began, error));
                self.fates.failed += 1;
            }
            None => self.fates.requeued += 1,
        }
    }

    fn is_cached(&self) -> bool {
        self.cache != WriteCache::Through
    }

    fn has_flush_ahead(&self, io: &Io<Payload>) -> bool {
        self.is_cached() && (io.op == Op::Flush || io.flags.contains(IoFlags::PREFLUSH))
    }

    fn has_flush_behind(&self, io: &Io<Payload>) -> bool {
        let fua = io.op != Op::Flush && io.flags.contains(IoFlags::FUA);
        fua && self.cache == WriteCache::Back { fua: false }
    }

    /// Returns whether a request's flags are right. The device gets FUA only if it supports it, and never PREFLUSH.
    pub(crate) fn are_flags_right(&self, io: &Io<Payload>, flags: IoFlags) -> bool {
        let fua = self.cache == WriteCache::Back { fua: true } && io.flags.contains(IoFlags::FUA);
        !flags.contains(IoFlags::PREFLUSH) && flags.contains(IoFlags::FUA) == fua
    }

    /// Returns whether these flags keep an I/O from being merged.
    pub(crate) fn bars_merging(&self, flags: IoFlags) -> bool {
        let barriers = self.is_cached() && flags.intersects(IoFlags::FUA | IoFlags::PREFLUSH);
        flags.contains(IoFlags::NOMERGE) || barriers
    }

    /// Returns whether a request with this many bios may be a flush. A flush has none, and the device must have a
    /// cache.
    pub(crate) fn is_flush_right(&self, bios: usize) -> bool {
        self.is_cached() && bios == 0
    }

    /// The device took the data of `io`.
    pub(crate) fn taken(&self, io: &Io<Payload>) -> Result<(), Violation> {
        let cookie = io.cookie;
        if self.has_flush_ahead(io) && self.flushed <= self.pushed[cookie as usize] {
            return Err(Violation::NotDurable { cookie, what: "the flush ahead of it" });
        }
        Ok(())
    }

    /// The device finished data. Returns the moment.
    pub(crate) fn served(&mut self) -> FlushMoment {
        self.moment()
    }

    /// Errors of the flushes that began later than `since`.
    fn failed_since(&self, since: FlushMoment) -> impl Iterator<Item = IoError> {
        self.failed.iter().filter(move |(began, _)| *began > since).map(|(_, why)| *why)
    }

    /// Returns whether a part of `io` with this progress has ended, with any result.
    pub(crate) fn is_over(&self, io: &Io<Payload>, part: &Progress) -> bool {
        let pushed = self.pushed[io.cookie as usize];
        match part.stage {
            Stage::Served(Ok(())) if self.has_flush_behind(io) => {
                self.flushed > part.served || self.failed_since(part.served).next().is_some()
            }
            Stage::Served(_) => true,
            Stage::Submitted => {
                self.has_flush_ahead(io) && self.failed_since(pushed).next().is_some()
            }
            Stage::AtDevice | Stage::Ended => false,
        }
    }

    /// Checks that `io`, or a part of it, with this progress at the device, may have ended with `result`.
    pub(crate) fn end(
        &self,
        io: &Io<Payload>,
        &Progress { stage, served }: &Progress,
        result: IoResult,
    ) -> Result<(), Violation> {
        let cookie = io.cookie;
        let pushed = self.pushed[cookie as usize];
        let failed = |since, error| self.failed_since(since).any(|why| why == error);
        let lacks = |what| Err(Violation::NotDurable { cookie, what });
        match (stage, result) {
            (Stage::Served(Ok(())), Ok(())) if self.has_flush_behind(io) => {
                if self.flushed > served { Ok(()) } else { lacks("the flush behind it") }
            }
            (Stage::Served(of_data), _) if of_data == result => Ok(()),
            (Stage::Served(Ok(())), Err(error))
                if self.has_flush_behind(io) && failed(served, error) =>
            {
                Ok(())
            }
            (Stage::Submitted, Ok(())) if io.op == Op::Flush => {
                let done = !self.is_cached() || self.flushed > pushed;
                if done { Ok(()) } else { lacks("the flush that it is") }
            }
            (Stage::Submitted, Err(error)) if self.has_flush_ahead(io) && failed(pushed, error) => {
                Ok(())
            }
            _ => Err(Violation::Stages { cookie, was: stage, now: Stage::Ended }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq_core::IoError;

    const BACK: WriteCache = WriteCache::Back { fua: false };

    fn io(op: Op, key: Payload) -> Io<Payload> {
        Io::new(op, 8, 1, key, key)
    }

    fn found(what: Found) -> impl FnMut(u64, u32) -> Vec<Found> {
        move |_, sectors| vec![what; sectors as usize]
    }

    /// Writes 1, 2, ... in turn.
    fn written(cache: WriteCache, writes: u64) -> Contents {
        let mut contents = Contents::new(cache, 1);
        for key in 1..=writes {
            contents.announced(&io(Op::Write, key));
            assert_eq!(contents.ended(&io(Op::Write, key), Ok(()), &[]), Ok(()));
        }
        contents
    }

    fn flush(contents: &mut Contents, key: u64, result: IoResult) {
        let flush = Io { sectors: 0, ..io(Op::Flush, key) };
        contents.announced(&flush);
        assert_eq!(contents.ended(&flush, result, &[]), Ok(()));
    }

    #[test]
    fn a_read_finds_what_had_not_been_overwritten_when_it_came() {
        let mut contents = written(BACK, 2);
        let (early, late) = (io(Op::Read, 10), io(Op::Read, 11));
        contents.announced(&early);
        contents.announced(&io(Op::Write, 3));
        let mut read = |read: &Io<Payload>, what| {
            contents.announced(read);
            contents.ended(read, Ok(()), &[what])
        };
        assert_eq!(read(&late, Found::Of(2)), Ok(()));
        assert_eq!(read(&late, Found::Of(3)), Ok(()), "it is under way");
        for wrong in [Found::Of(1), Found::Zeroes, Found::Of(4), Found::Damaged] {
            assert!(read(&late, wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(contents.ended(&io(Op::Write, 3), Ok(()), &[]), Ok(()));
        assert_eq!(contents.ended(&early, Ok(()), &[Found::Of(2)]), Ok(()), "it came before");
        assert!(contents.check_at_rest(found(Found::Of(2))).is_err());
        assert_eq!(contents.check_at_rest(found(Found::Of(3))), Ok(()));
    }

    #[test]
    fn what_failed_may_have_been_done_and_what_was_given_up_was_not() {
        let mut contents = written(BACK, 1);
        contents.announced(&io(Op::Discard, 2));
        assert_eq!(contents.ended(&io(Op::Discard, 2), Err(IoError::IO), &[]), Ok(()));
        contents.announced(&io(Op::Write, 3));
        contents.withdrawn(&io(Op::Write, 3));
        for (what, right) in [(Found::Zeroes, true), (Found::Of(1), true), (Found::Of(3), false)] {
            assert_eq!(contents.check_at_rest(found(what)).is_ok(), right, "{what:?}");
        }
    }

    #[test]
    fn a_power_cut_takes_what_was_not_promised() {
        let left = |contents: &mut Contents, what| contents.cut(true, found(what));
        for what in [Found::Zeroes, Found::Of(1), Found::Of(2)] {
            let lost = u64::from(what != Found::Of(2));
            assert_eq!(left(&mut written(BACK, 2), what), Ok(lost));
            let through = left(&mut written(WriteCache::Through, 2), what);
            assert_eq!(through.is_ok(), what == Found::Of(2));
        }
        let mut flushed = written(BACK, 1);
        flush(&mut flushed, 8, Err(IoError::IO));
        assert_eq!(
            left(&mut flushed, Found::Zeroes),
            Ok(1),
            "a flush that failed promises nothing"
        );
        let mut flushed = written(BACK, 1);
        flush(&mut flushed, 8, Ok(()));
        assert!(left(&mut flushed, Found::Zeroes).is_err());
        let mut fua = Contents::new(BACK, 1);
        let write = Io { flags: IoFlags::FUA, ..io(Op::Write, 1) };
        fua.announced(&write);
        assert!(left(&mut fua, Found::Of(7)).is_err(), "never written");
        let mut fua = Contents::new(BACK, 1);
        fua.announced(&write);
        assert_eq!(fua.ended(&write, Ok(()), &[]), Ok(()));
        assert!(left(&mut fua, Found::Zeroes).is_err());
    }

    #[test]
    fn what_was_in_flight_when_the_device_lost_its_power_promises_nothing() {
        let mut contents = written(BACK, 1);
        let bare = Io { sectors: 0, ..io(Op::Flush, 9) };
        contents.announced(&bare);
        contents.announced(&io(Op::Write, 2));
        assert_eq!(contents.cut(false, found(Found::Zeroes)), Ok(1));
        assert_eq!(contents.ended(&bare, Ok(()), &[]), Ok(()));
        assert_eq!(contents.ended(&io(Op::Write, 2), Ok(()), &[]), Ok(()));
        for (what, right) in [(Found::Zeroes, true), (Found::Of(2), true), (Found::Of(1), false)] {
            assert_eq!(contents.check_at_rest(found(what)).is_ok(), right, "{what:?}");
        }
        flush(&mut contents, 10, Ok(()));
        assert!(contents.cut(true, found(Found::Of(1))).is_err(), "that is gone");
        assert_eq!(contents.compared, 4);
    }

    const HW: HwQueue = HwQueue(0);

    fn flush_done(durable: &mut Durable, result: IoResult) {
        durable.flush_began(HW, Tag(0));
        durable.gave_back(HW, Tag(0), Some(result));
    }

    fn flushed_io(op: Op, flags: IoFlags) -> Io<Payload> {
        Io { flags, ..Io::new(op, 0, 8, 0, 0) }
    }

    fn durable(fua: bool) -> Durable {
        let mut durable = Durable::new(WriteCache::Back { fua });
        durable.announced();
        durable
    }

    #[test]
    fn a_flush_counts_for_what_was_finished_before_it_began() {
        let fua = flushed_io(Op::Write, IoFlags::FUA);
        let mut d = durable(false);
        d.flush_began(HW, Tag(0));
        let served = Progress { stage: Stage::Served(Ok(())), served: d.served() };
        d.gave_back(HW, Tag(0), Some(Ok(())));
        assert!(d.end(&fua, &served, Ok(())).is_err(), "it began too early");
        assert!(!d.is_over(&fua, &served));
        flush_done(&mut d, Err(IoError::IO));
        assert!(d.end(&fua, &served, Ok(())).is_err(), "it failed");
        assert_eq!(d.end(&fua, &served, Err(IoError::IO)), Ok(()));
        assert!(d.is_over(&fua, &served));
        flush_done(&mut d, Ok(()));
        assert_eq!(d.end(&fua, &served, Ok(())), Ok(()));
        assert_eq!(d.fates, FlushFates { succeeded: 2, failed: 1, requeued: 0 });
        assert_eq!(durable(true).end(&fua, &served, Ok(())), Ok(()), "the device did it");
    }

    #[test]
    fn a_flush_ahead_must_be_over_before_the_data_begins() {
        let pre = flushed_io(Op::Write, IoFlags::PREFLUSH);
        let mut d = durable(true);
        assert!(d.taken(&pre).is_err());
        assert!(d.end(&pre, &Progress::NONE, Err(IoError::IO)).is_err(), "nothing failed");
        d.flush_began(HW, Tag(1));
        assert!(d.taken(&pre).is_err());
        d.gave_back(HW, Tag(1), Some(Ok(())));
        assert_eq!(d.taken(&pre), Ok(()));
    }

    #[test]
    fn a_bare_flush_needs_one_that_is_no_older() {
        let bare = flushed_io(Op::Flush, IoFlags::NONE);
        let mut d = Durable::new(WriteCache::Back { fua: false });
        flush_done(&mut d, Ok(()));
        d.announced();
        assert!(d.end(&bare, &Progress::NONE, Ok(())).is_err());
        flush_done(&mut d, Ok(()));
        assert_eq!(d.end(&bare, &Progress::NONE, Ok(())), Ok(()));
        let mut through = Durable::new(WriteCache::Through);
        through.announced();
        assert_eq!(through.end(&bare, &Progress::NONE, Ok(())), Ok(()));
    }
}
