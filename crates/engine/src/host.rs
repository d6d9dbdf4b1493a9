//! [`Host`]: the services that the engine needs from its environment.

use blkmq_core::{HwQueue, SubmitterId};

/// Wake-ups: thread parking in the runtime, an event heap in the laboratory.
///
/// The engine calls these methods after it has released elevators and pumps, so a system call here delays no other
/// thread. One cause may lead to two calls. A host must not call back into the queue.
pub trait Host: Send + Sync {
    /// Completions have arrived for a parked submitter, or a pass is due that the submitter should run.
    fn wake_submitter(&self, submitter: SubmitterId);

    /// The pump of `hw` has work. Only called for queues with [`PumpMode::Thread`](crate::PumpMode).
    fn wake_pump(&self, hw: HwQueue);

    /// Nanoseconds since any fixed time. The queue uses it to measure how long threads wait for a lock: a thread that
    /// finds a lock taken calls it, once in several such waits; never with `Access::Combining`. With the default, 0,
    /// nothing is measured.
    fn ticks(&self) -> u64 {
        0
    }
}

/// A host that wakes no thread, for single-threaded drivers that poll.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHost;

impl Host for NoHost {
    fn wake_submitter(&self, _: SubmitterId) {}
    fn wake_pump(&self, _: HwQueue) {}
}
