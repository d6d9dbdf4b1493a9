//! Checks the promises of flushes against the device: an I/O with FUA ends after a flush that began when its data was
//! done, and an I/O with PREFLUSH begins after a flush that began when the I/O had been submitted.
//!
//! A sector identifies an I/O: no two I/Os of a model have the same sector, and I/Os that ask for a flush are not
//! merged.

use crate::{Inflight, WriteCache};
use blkmq_core::{HwQueue, IoFlags, Op, Tag};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// A count of events, of which only the order matters.
type Moment = u64;

#[derive(Default)]
struct Witness {
    cache: WriteCache,
    now: Moment,
    /// By sector: the moment of submission, and the flags that matter on this device.
    pushed: BTreeMap<u64, (Moment, IoFlags)>,
    /// By sector: when the data was done.
    done: BTreeMap<u64, Moment>,
    /// Sectors of cancelled I/Os.
    gone: BTreeSet<u64>,
    /// Flushes at the device, and when they began.
    under_way: BTreeMap<(HwQueue, Tag), Moment>,
    /// The latest start of a finished flush.
    flushed: Moment,
}

thread_local! {
    // All threads of a model are coroutines on the thread of its test.
    static WITNESS: RefCell<Witness> = RefCell::default();
}

fn with<R>(f: impl FnOnce(&mut Witness, Moment) -> R) -> R {
    WITNESS.with_borrow_mut(|w| {
        w.now += 1;
        let now = w.now;
        f(w, now)
    })
}

/// Begins a schedule on a device with this cache.
pub(super) fn begin(cache: WriteCache) {
    WITNESS.set(Witness { cache, ..Witness::default() });
}

/// A client submits the I/O at `sector`.
pub(super) fn pushed(sector: u64, flags: IoFlags) {
    with(|w, now| {
        // Only the flags that require a flush on this device.
        let flags = match w.cache {
            WriteCache::Through => IoFlags::NONE,
            WriteCache::Back { fua: true } => flags.without(IoFlags::FUA),
            WriteCache::Back { fua: false } => flags,
        };
        w.pushed.insert(sector, (now, flags));
    });
}

/// The device takes `rq`.
pub(super) fn began(rq: &Inflight) {
    with(|w, now| {
        if rq.op() == Op::Flush {
            w.under_way.insert((rq.hw(), rq.tag()), now);
            return;
        }
        assert!(!w.gone.contains(&rq.sector()), "the I/O at {} was given up", rq.sector());
        let (pushed, flags) = w.pushed[&rq.sector()];
        let ahead = !flags.contains(IoFlags::PREFLUSH) || w.flushed > pushed;
        assert!(ahead, "the I/O at {} has had no flush since it was submitted", rq.sector());
    });
}

/// The device is done with `rq`.
pub(super) fn done(rq: &Inflight) {
    with(|w, now| {
        if rq.op() == Op::Flush {
            let began = w.under_way.remove(&(rq.hw(), rq.tag())).expect("it began");
            w.flushed = w.flushed.max(began);
        } else {
            w.done.insert(rq.sector(), now);
        }
    });
}

/// The client has reaped the I/O at `sector`, cancelled.
pub(super) fn gave_up(sector: u64) {
    with(|w, _| {
        assert!(!w.done.contains_key(&sector), "the I/O at {sector} was done and given up");
        w.gone.insert(sector);
    });
}

/// The client has reaped the I/O at `sector`, done.
pub(super) fn ended(sector: u64) {
    with(|w, _| {
        let (_, flags) = w.pushed[&sector];
        let behind = !flags.contains(IoFlags::FUA) || w.flushed > w.done[&sector];
        assert!(behind, "the I/O at {sector} has had no flush since its data was done");
    });
}
