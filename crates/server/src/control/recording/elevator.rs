//! A log of the calls of a device's scheduler. All bytes are produced at its end, because only then is the length of
//! each part known.

use super::session::{Counts, Source};
use crate::worker::Shared;
use blkmq::{Instant, Nanos, PolicyObserver, TraceError};
use blkmq_trace::elevator_log::{ElevatorLog, Log};
use std::sync::Arc;

/// How long to wait for I/Os in flight, so that the device can get a new instance of its scheduler.
const PATIENCE: Nanos = Nanos::from_secs(5);

pub(super) struct Elevator {
    shared: Arc<Shared>,
    /// The index of its disk.
    disk: usize,
    log: ElevatorLog,
    counts: Counts,
}

impl Elevator {
    /// Begins a log of `bytes` bytes.
    pub(super) fn begin(
        shared: &Arc<Shared>,
        disk: usize,
        bytes: usize,
    ) -> Result<Self, TraceError> {
        let log = ElevatorLog::new(bytes);
        let observer: Arc<dyn PolicyObserver> = Arc::new(log.clone());
        shared.disks[disk].service().observe_policies(&observer, PATIENCE)?;
        Ok(Self { shared: Arc::clone(shared), disk, log, counts: Counts::default() })
    }
}

impl Source for Elevator {
    fn take(&mut self, _: Instant, _: usize, _: &mut Vec<u8>) {}

    fn is_full(&self) -> bool {
        self.log.is_full()
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        // This fails only for a failed queue, whose scheduler is not called any more.
        let _ = self.shared.disks[self.disk].service().unobserve_policies();
        let bytes = self.log.bytes(&format!("blkmqctl elevator-log --device={}", self.disk + 1));
        if let Ok(log) = Log::parse(&bytes) {
            let recorded = log.instances.iter().map(|it| it.calls().count() as u64).sum();
            self.counts = Counts { recorded, dropped: self.log.missed() };
        }
        self.log = ElevatorLog::new(0);
        out.extend_from_slice(&bytes);
    }

    fn counts(&self) -> Counts {
        self.counts
    }

    fn cut(&self, _: &[u8], most: usize) -> usize {
        most
    }
}
