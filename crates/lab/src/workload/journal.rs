//! I/Os one by one, as they are issued and as they complete, for logs of them.
//!
//! A [`Worker`](super::Worker) with a journal tells it of each I/O that it issues, and of each that completes while it
//! counts. The form of a log and its files are not here.

use super::{Direction, NextIo};
use blkmq_core::{IoPrio, Nanos};

/// An I/O that has completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completed {
    /// The time of its completion, from the beginning of counting.
    pub at: Nanos,
    /// Its direction.
    pub direction: Direction,
    /// Its length in bytes.
    pub bytes: u64,
    /// Its first byte on the device.
    pub offset: u64,
    /// Its priority.
    pub prio: IoPrio,
    /// From the decision to issue it until it was pushed.
    pub slat: Nanos,
    /// From the push until its completion.
    pub clat: Nanos,
}

/// Takes down I/Os. Times never run backwards.
pub trait Journal: Send {
    /// Counting began `ago`.
    fn began(&mut self, ago: Nanos);

    /// `io` is pushed, at `at` from the start of the thread.
    fn issued(&mut self, at: Nanos, io: &NextIo);

    /// `io` has completed.
    fn completed(&mut self, io: &Completed);

    /// Counting has ended at `at`, or the checks after it. No I/O follows.
    fn ended(&mut self, at: Nanos);
}
