//! Checks the promises of flushes, FUA and PREFLUSH against the flushes that the device really did
//! (`spec/framework.md` section 12).
//!
//! A flush makes durable the data that was finished before the flush began. So a bare flush, or data with PREFLUSH,
//! needs a flush that began after its own submission; data with FUA needs a flush that began after the data was
//! finished, unless the device supports FUA. The I/O may end only after that flush has succeeded.

use crate::Payload;
use crate::violation::{Stage, Violation};
use blkmq_core::{HwQueue, IoError, IoFlags, IoResult, Op, Tag};
use blkmq_engine::{Io, WriteCache};
use std::collections::BTreeMap;

/// Counts the events that matter to the order of flushes and data.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Moment(u64);

/// The progress of an I/O, or of a part of one.
#[derive(Clone, Copy)]
pub(crate) struct Progress {
    pub(crate) stage: Stage,
    /// The moment when the device finished its data.
    pub(crate) served: Moment,
}

impl Progress {
    /// The device has had no part of its data.
    pub(crate) const NONE: Self = Self { stage: Stage::Submitted, served: Moment(0) };
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
    now: Moment,
    /// The moment when each I/O was submitted, by cookie.
    pushed: Vec<Moment>,
    /// Flushes at the device, and the moments when they began.
    flushing: BTreeMap<(HwQueue, Tag), Moment>,
    /// The beginning of the latest flush that succeeded.
    flushed: Moment,
    /// The beginnings and the errors of flushes that failed.
    failed: Vec<(Moment, IoError)>,
    fates: FlushFates,
}

impl Durable {
    /// A device with this cache, before its first I/O.
    pub(crate) fn new(cache: WriteCache) -> Self {
        Self {
            cache,
            now: Moment::default(),
            pushed: Vec::new(),
            flushing: BTreeMap::new(),
            flushed: Moment::default(),
            failed: Vec::new(),
            fates: FlushFates::default(),
        }
    }

    fn moment(&mut self) -> Moment {
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

    /// The outcomes so far.
    pub(crate) fn fates(&self) -> FlushFates {
        self.fates
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
    pub(crate) fn served(&mut self) -> Moment {
        self.moment()
    }

    /// Errors of the flushes that began later than `since`.
    fn failed_since(&self, since: Moment) -> impl Iterator<Item = IoError> {
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

    const HW: HwQueue = HwQueue(0);

    fn flush(durable: &mut Durable, result: IoResult) {
        durable.flush_began(HW, Tag(0));
        durable.gave_back(HW, Tag(0), Some(result));
    }

    fn io(op: Op, flags: IoFlags) -> Io<Payload> {
        Io { flags, ..Io::new(op, 0, 8, 0, 0) }
    }

    fn durable(fua: bool) -> Durable {
        let mut durable = Durable::new(WriteCache::Back { fua });
        durable.announced();
        durable
    }

    #[test]
    fn a_flush_counts_for_what_was_finished_before_it_began() {
        let fua = io(Op::Write, IoFlags::FUA);
        let mut d = durable(false);
        d.flush_began(HW, Tag(0));
        let served = Progress { stage: Stage::Served(Ok(())), served: d.served() };
        d.gave_back(HW, Tag(0), Some(Ok(())));
        assert!(d.end(&fua, &served, Ok(())).is_err(), "it began too early");
        assert!(!d.is_over(&fua, &served));
        flush(&mut d, Err(IoError::IO));
        assert!(d.end(&fua, &served, Ok(())).is_err(), "it failed");
        assert_eq!(d.end(&fua, &served, Err(IoError::IO)), Ok(()));
        assert!(d.is_over(&fua, &served));
        flush(&mut d, Ok(()));
        assert_eq!(d.end(&fua, &served, Ok(())), Ok(()));
        assert_eq!(d.fates(), FlushFates { succeeded: 2, failed: 1, requeued: 0 });
        assert_eq!(durable(true).end(&fua, &served, Ok(())), Ok(()), "the device did it");
    }

    #[test]
    fn a_flush_ahead_must_be_over_before_the_data_begins() {
        let pre = io(Op::Write, IoFlags::PREFLUSH);
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
        let bare = io(Op::Flush, IoFlags::NONE);
        let mut d = Durable::new(WriteCache::Back { fua: false });
        flush(&mut d, Ok(()));
        d.announced();
        assert!(d.end(&bare, &Progress::NONE, Ok(())).is_err());
        flush(&mut d, Ok(()));
        assert_eq!(d.end(&bare, &Progress::NONE, Ok(())), Ok(()));
        let mut through = Durable::new(WriteCache::Through);
        through.announced();
        assert_eq!(through.end(&bare, &Progress::NONE, Ok(())), Ok(()));
    }
}
