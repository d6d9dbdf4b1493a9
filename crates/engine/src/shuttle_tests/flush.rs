//! Writes with FUA and PREFLUSH on a device with a volatile cache: a thread carries out every next step, and shared
//! flushes keep the promise of each request that shares them.
//!
//! A [`Witness`] checks the promises of flushes against the device of every model: an I/O with FUA ends after a flush
//! that began when its data was done, and an I/O with PREFLUSH begins after a flush that began when the I/O had been
//! submitted.
//!
//! A sector identifies an I/O: no two I/Os of a model have the same sector, and I/Os that ask for a flush are not
//! merged.

use crate::planted::Planted;
use crate::shuttle_tests::world::Script;
use crate::shuttle_tests::{Client, Model};
use crate::{Access, Inflight, PumpMode, WriteCache};
use blkmq_core::{HwQueue, IoFlags, Nanos, Op, Tag};
use blkmq_sched::{Scope, deadline};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

const FUA: Client = Client { flags: IoFlags::FUA, ..Client::new(3, 1, 1) };

const DEEP: Client = Client { flags: IoFlags::FUA, ..Client::new(4, 3, 2) };

const BOTH: Client = Client { flags: IoFlags::FUA.union(IoFlags::PREFLUSH), ..FUA };

const PLAIN: Client = Client::new(3, 2, 1);

/// Every second request is answered within the call, so that data is done while a flush is in flight.
const DEVICE: Script = Script { room: 2, inline: 2, ..Script::LATER };

/// Two threads with one write in flight each. No write waits for the 5 s after which a flush must not be deferred.
const TWO: Model = Model {
    cache: WriteCache::Back { fua: false },
    device: DEVICE,
    hw_queue_depth: 2,
    most_time: Nanos(12 * DEVICE.service.0),
    ..Model::new(71, &[FUA, FUA])
};

#[test]
fn shuttle_two_threads_write_with_fua() {
    TWO.check();
}

#[test]
fn shuttle_two_threads_write_with_fua_and_a_device_of_depth_1() {
    let device = Script { room: 1, inline: 0, ..DEVICE };
    Model { device, hw_queue_depth: 1, seed: 72, ..TWO }.check();
}

#[test]
fn shuttle_fua_and_preflush_and_neither_mq_deadline() {
    let most_time = Nanos(24 * DEVICE.service.0);
    let model = Model { clients: &[DEEP, BOTH, PLAIN], most_time, seed: 73, ..TWO };
    Model { scheduler: &deadline::FACTORY, nr_requests: Some(4), ..model }.check();
}

#[test]
fn shuttle_fua_under_locks() {
    for (seed, access) in [(74, Access::Spin), (75, Access::Mutex), (78, Access::Serialised)] {
        Model { access, seed, schedules: 1000, ..TWO }.check();
    }
}

#[test]
fn shuttle_fua_and_a_pump_thread() {
    Model { pump: PumpMode::Thread, seed: 76, ..TWO }.check();
}

/// Two hardware queues of one elevator: each has separate flushes, and either may receive the other's.
#[test]
fn shuttle_fua_on_two_hardware_queues_and_requeues() {
    let device = Script { requeue: 5, ..DEVICE };
    let most_time = Nanos(2 * TWO.most_time.0);
    let model = Model { device, most_time, hw_queues: 2, seed: 77, ..TWO };
    Model { scope: Some(Scope::Queue), clients: &[FUA, BOTH], ..model }.check();
}

#[test]
#[should_panic(expected = "has had no flush since its data was done")]
fn shuttle_planted_a_flush_that_serves_late_comers() {
    Model { planted: Some(Planted::ServesLateComers), ..TWO }.check();
}

#[test]
#[should_panic(expected = "no thread will ever be woken")]
fn shuttle_planted_a_step_that_is_handed_back_in_silence() {
    Model { planted: Some(Planted::ForgetsHandedBack), ..TWO }.check();
}

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
