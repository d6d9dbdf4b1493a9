//! A device that records when each request was sent, when it arrived, and when its service ended.

use blkmq_core::{Instant, Nanos, Payload};
use blkmq_engine::{BioTable, DeviceQueue, Enqueued, Finished, Inflight, Verdict};
use blkmq_runtime::Clock;
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// Sectors from one I/O to the next, far enough apart that no two merge.
pub(crate) const STRIDE: u64 = 64;

thread_local! {
    /// The number of the calling thread within the load.
    pub(crate) static ME: Cell<u16> = const { Cell::new(u16::MAX) };
}

/// A request that reached the device.
#[derive(Clone, Copy)]
pub(crate) struct Arrival {
    /// When its submitter began to flush it.
    pub(crate) sent: Instant,
    pub(crate) arrived: Instant,
    /// When its service ended. It may have been reaped later.
    pub(crate) served: Instant,
    pub(crate) submitter: u16,
    /// The thread that handed it to the device.
    pub(crate) by: u16,
}

/// The record that submitters and the device write and the account reads.
pub(crate) struct Log {
    /// When the flush of each I/O began, by number of the I/O.
    sent: Box<[AtomicU64]>,
    credit: u64,
    /// Set before the first I/O.
    clock: OnceLock<Clock>,
    arrivals: Mutex<Vec<Arrival>>,
}

impl Log {
    pub(crate) fn new(threads: u16, credit: u64) -> Arc<Self> {
        let ios = u64::from(threads) * credit;
        let sent = (0..ios).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Self { sent, credit, clock: OnceLock::new(), arrivals: Mutex::new(Vec::new()) })
    }

    /// Sets the clock of the service, which is created after its device. Must be called once.
    pub(crate) fn set_clock(&self, clock: Clock) {
        let _ = self.clock.set(clock);
    }

    /// Records that I/O number `io` was sent at `now`.
    pub(crate) fn send(&self, io: u64, now: Instant) {
        // The engine's own publication of the I/O orders this.
        self.sent[io as usize].store(now.as_nanos(), Ordering::Relaxed);
    }

    /// The requests in the order of their arrival. Must be called when the device is gone.
    pub(crate) fn take(&self) -> Vec<Arrival> {
        std::mem::take(&mut self.arrivals.lock().expect("no thread panics with it"))
    }
}

/// Serves requests concurrently, each for the same time.
pub(crate) struct Meter {
    log: Arc<Log>,
    takes: Nanos,
    serving: VecDeque<(Instant, Inflight)>,
    arrivals: Vec<Arrival>,
}

impl Meter {
    pub(crate) fn new(log: &Arc<Log>, takes: Nanos) -> Self {
        Self { log: Arc::clone(log), takes, serving: VecDeque::new(), arrivals: Vec::new() }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.log.arrivals.lock().expect("no thread panics with it").append(&mut self.arrivals);
    }
}

impl<P: Payload> DeviceQueue<P> for Meter {
    fn enqueue(&mut self, _: Instant, _: &BioTable<P>, rq: Inflight) -> Enqueued {
        // The caller may have lost its CPU after it read `now`.
        let arrived = self.log.clock.get().expect("it was set before the first I/O").now();
        let served = arrived + self.takes;
        let io = rq.sector() / STRIDE;
        let sent = Instant::from_nanos(self.log.sent[io as usize].load(Ordering::Relaxed));
        let submitter = (io / self.log.credit) as u16;
        self.arrivals.push(Arrival { sent, arrived, served, submitter, by: ME.get() });
        self.serving.push_back((served, rq));
        Enqueued::Accepted
    }

    fn reap(&mut self, now: Instant, _: &BioTable<P>, out: &mut Vec<Finished>) {
        while self.serving.front().is_some_and(|(at, _)| *at <= now) {
            let (_, rq) = self.serving.pop_front().expect("there is a first one");
            out.push(Finished { rq, verdict: Verdict::Done(Ok(())) });
        }
    }

    fn next_event(&self) -> Option<Instant> {
        Some(self.serving.front().map_or(Instant::MAX, |(at, _)| *at))
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        out.extend(self.serving.drain(..).map(|(_, rq)| rq));
    }
}
