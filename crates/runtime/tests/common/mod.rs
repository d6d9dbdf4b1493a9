//! Helpers for the tests of reactors: an executor in a dozen lines, a payload that counts its drops, and a device that
//! completes requests when the test lets it.

use blkmq_core::{Instant, Limits, Op, Payload};
use blkmq_device::{MachineShape, registry};
use blkmq_engine::{
    BioTable, Config, DEFAULT_TIMEOUT, DeviceQueue, DeviceShape, Enqueued, Finished, Inflight, Io,
    PumpMode, Verdict, WriteCache,
};
use blkmq_runtime::Service;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

pub const PUMPS: [PumpMode; 2] = [PumpMode::Inline, PumpMode::Thread];

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs one future on this thread.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// Counts how often it is woken.
#[derive(Default)]
pub struct Woken(pub AtomicU64);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Polls once.
pub fn poll<F: Future + Unpin>(future: &mut F, woken: &Arc<Woken>) -> Poll<F::Output> {
    let waker = Waker::from(Arc::clone(woken));
    std::pin::Pin::new(future).poll(&mut Context::from_waker(&waker))
}

/// Yields until `reached` is true; another thread makes it true.
pub fn until(mut reached: impl FnMut() -> bool) {
    while !reached() {
        thread::yield_now();
    }
}

/// A payload that counts its drop.
#[derive(Debug)]
pub struct Counted(pub u64, Arc<AtomicU64>);

impl Payload for Counted {}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}

/// Makes counted payloads.
#[derive(Clone, Default)]
pub struct Drops(Arc<AtomicU64>);

impl Drops {
    /// A read of sectors that no other I/O reads or continues, with number `n` as cookie.
    pub fn io(&self, n: u64) -> Io<Counted> {
        Io::new(Op::Read, n * 64, 8, n, Counted(n, Arc::clone(&self.0)))
    }

    pub fn count(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

pub fn read(n: u64) -> Io<u64> {
    Io::new(Op::Read, n * 64, 8, n, n)
}

/// A queue around the null device that `text` describes.
pub fn null<P: Payload>(text: &str, change: impl FnOnce(&mut Config<P>)) -> Service<P> {
    let machine = MachineShape { cpus: 2, nodes: 1 };
    let mut config = registry::parse(text, &machine).expect("a device of the test").config();
    // With one submitter, a test can tell that its client or reactor is gone: the submitter is free.
    config.submitters = 1;
    change(&mut config);
    Service::start(config).expect("a queue around it")
}

/// The counts of a [`Gate`], and its allowance.
#[derive(Default)]
pub struct Keeper {
    came: AtomicU64,
    may_go: AtomicU64,
    gone: AtomicU64,
}

impl Keeper {
    /// Requests that have arrived.
    pub fn came(&self) -> u64 {
        self.came.load(Ordering::SeqCst)
    }

    /// The number of requests inside the gate.
    pub fn inside(&self) -> u64 {
        self.came() - self.gone.load(Ordering::SeqCst)
    }

    /// Lets `n` more requests out.
    pub fn let_go(&self, n: u64) {
        self.may_go.fetch_add(n, Ordering::SeqCst);
    }
}

/// A device that holds every request until the test releases it; first in, first out. Panics at sector [`POISON`].
pub struct Gate {
    held: VecDeque<Inflight>,
    keeper: Arc<Keeper>,
}

/// The sector at which the device panics.
pub const POISON: u64 = 1 << 20;

impl<P> DeviceQueue<P> for Gate {
    fn enqueue(&mut self, _: Instant, _: &BioTable<P>, rq: Inflight) -> Enqueued {
        assert_ne!(rq.sector(), POISON, "a device that panics");
        self.held.push_back(rq);
        self.keeper.came.fetch_add(1, Ordering::SeqCst);
        Enqueued::Accepted
    }

    // The device cannot name a time, so it is polled.
    fn reap(&mut self, _: Instant, _: &BioTable<P>, out: &mut Vec<Finished>) {
        let Keeper { may_go, gone, .. } = &*self.keeper;
        while gone.load(Ordering::SeqCst) < may_go.load(Ordering::SeqCst)
            && let Some(rq) = self.held.pop_front()
        {
            out.push(Finished { rq, verdict: Verdict::Done(Ok(())) });
            gone.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        out.extend(self.held.drain(..));
    }
}

/// A queue of this depth around a gate.
pub fn gate<P: Payload>(depth: u32, pump: PumpMode) -> (Service<P>, Arc<Keeper>) {
    gate_of(depth, pump, Limits::default().max_sectors)
}

/// Like [`gate`], with a gate that takes at most `max_sectors` sectors at once.
pub fn gate_of<P: Payload>(
    depth: u32,
    pump: PumpMode,
    max_sectors: u32,
) -> (Service<P>, Arc<Keeper>) {
    gate_with(depth, pump, |shape| shape.limits.max_sectors = max_sectors)
}

/// Like [`gate`], with a device shape edited by `change`.
pub fn gate_with<P: Payload>(
    depth: u32,
    pump: PumpMode,
    change: impl FnOnce(&mut DeviceShape),
) -> (Service<P>, Arc<Keeper>) {
    let keeper = Arc::new(Keeper::default());
    let mut shape = DeviceShape {
        hw_queues: 1,
        hw_queue_depth: 32,
        shared_tags: false,
        budget: None,
        limits: Limits { capacity: 1 << 30, ..Limits::default() },
        cache: WriteCache::Through,
        timeout: DEFAULT_TIMEOUT,
    };
    change(&mut shape);
    let queue = Box::new(Gate { held: VecDeque::new(), keeper: Arc::clone(&keeper) });
    let mut config = Config::new(shape, vec![queue as Box<dyn DeviceQueue<P>>]);
    (config.submitters, config.depth, config.pump) = (1, depth, pump);
    (Service::start(config).expect("a queue around it"), keeper)
}
