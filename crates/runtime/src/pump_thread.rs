//! A thread per hardware queue: for blocking clients and for devices that interrupt (D16).

use crate::host::Threads;
use crate::{Clock, Placement};
use blkmq_core::{HwQueue, Instant};
use blkmq_engine::Queue;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Running pump threads; dropping stops and joins them.
pub(crate) struct PumpThreads {
    stop: Arc<AtomicBool>,
    threads: Arc<Threads>,
    handles: Vec<JoinHandle<()>>,
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
                threads.enrol_pump(hw);
                while !stop.load(Ordering::Acquire) {
                    let now = clock.now();
                    park_until(queue.pump(hw, now), clock);
                }
            };
            started
                .handles
                .push(thread::Builder::new().name(format!("blkmq-pump-{}", hw.0)).spawn(body)?);
        }
        Ok(started)
    }
}

/// Parks until somebody calls or `at` comes. A call since the last parking makes it return at once, so none
/// is lost between looking for work and parking.
pub(crate) fn park_until(at: Option<Instant>, clock: Clock) {
    match at {
        None => thread::park(),
        Some(at) => {
            let left = at - clock.now();
            if left.0 > 0 {
                thread::park_timeout(Duration::from_nanos(left.0));
            }
        }
    }
}

impl Drop for PumpThreads {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.threads.wake_all_pumps();
        for handle in self.handles.drain(..) {
            // Its panic has been printed; a second one here would hide it.
            let _ = handle.join();
        }
    }
}
