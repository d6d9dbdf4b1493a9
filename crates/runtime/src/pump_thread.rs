//! A thread per hardware queue: for blocking clients and for devices that interrupt.

use crate::host::Threads;
use crate::planted::{self, Planted};
use crate::port::AtomicBool;
use crate::port::thread::{self, JoinHandle};
use crate::seat::Seat;
use crate::waiting::AWAKE_FOR;
use crate::{Clock, Placement};
use blkmq_core::{HwQueue, Instant};
use blkmq_engine::Queue;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Running pump threads; dropping stops and joins them.
pub(crate) struct PumpThreads {
    stop: Arc<AtomicBool>,
    threads: Arc<Threads>,
    handles: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for PumpThreads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PumpThreads").field("threads", &self.handles.len()).finish_non_exhaustive()
    }
}

impl PumpThreads {
    pub(crate) fn start<P: Send + 'static>(
        queue: &Queue<P>,
        hw_queues: u16,
        clock: Clock,
        threads: &Arc<Threads>,
        placement: Placement,
    ) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut started =
            Self { stop: Arc::clone(&stop), threads: Arc::clone(threads), handles: Vec::new() };
        for hw in (0..hw_queues).map(HwQueue) {
            let (queue, threads, stop) = (queue.clone(), Arc::clone(threads), Arc::clone(&stop));
            let body = move || {
                placement.apply(hw.0);
                let mut seat = Seat::pump(&threads, hw);
                while !stop.load(Ordering::Acquire) {
                    let next = queue.pump(hw, clock.now()).unwrap_or(Instant::MAX);
                    let now = clock.now();
                    if next - now <= AWAKE_FOR {
                        thread::yield_now();
                    } else {
                        seat.park_until(next, now);
                    }
                }
            };
            started
                .handles
                .push(thread::Builder::new().name(format!("blkmq-pump-{}", hw.0)).spawn(body)?);
        }
        Ok(started)
    }
}

impl Drop for PumpThreads {
    fn drop(&mut self) {
        if planted::is(Planted::StopsAfterTheCall) {
            self.threads.wake_all_pumps();
        }
        self.stop.store(true, Ordering::Release);
        if !planted::is(Planted::StopsAfterTheCall) {
            self.threads.wake_all_pumps();
        }
        for handle in self.handles.drain(..) {
            // Its panic has been printed; a second one here would hide it.
            let _ = handle.join();
        }
    }
}
