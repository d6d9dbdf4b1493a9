//! What the engine asks of its surroundings, and all it asks.

use blkmq_core::{HwQueue, SubmitterId};

/// Wake-ups: thread parking in the runtime, an event heap in the laboratory.
///
/// Called after elevators and pumps have been released, so a system call here delays nobody else. May be
/// called twice for one cause. Must not call back into the queue.
pub trait Host: Send + Sync {
    /// Completions have arrived for a submitter that had parked, or a pass is due that it should run.
    fn wake_submitter(&self, submitter: SubmitterId);

    /// The pump of `hw` has work. Only called for queues with [`PumpMode::Thread`](crate::PumpMode).
    fn wake_pump(&self, hw: HwQueue);

    /// Nanoseconds from any beginning, by which the queue measures how long threads wait for a lock. It is asked by a
    /// thread that finds one taken, of several such occasions once; with [`Access::Combining`](crate::Access) never.
    /// 0, the default: nothing is measured.
    fn ticks(&self) -> u64 {
        0
    }
}

/// Nobody ever parks: for single-threaded drivers that poll.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHost;

impl Host for NoHost {
    fn wake_submitter(&self, _: SubmitterId) {}
    fn wake_pump(&self, _: HwQueue) {}
}
