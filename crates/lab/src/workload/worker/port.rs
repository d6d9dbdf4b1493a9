//! The environment of a worker: a way to a queue, buffers, and a journal of its I/Os.
//!
//! A [`Worker`](super::Worker) with a journal reports to it each I/O that it issues, and each that completes while it
//! counts. The format of a log and its files are not here.

use crate::workload::{Direction, NextIo};
use blkmq_core::{Instant, IoPrio, Nanos};
use blkmq_engine::{Io, Refused};

/// A thread's way to its queue, and the time: a client with its clock, or a submitter in virtual time.
pub trait Port<P> {
    /// The time. It includes the time that earlier pushes and flushes took.
    fn now(&self) -> Instant;

    /// The time at the start of a portion in which no I/O is timed or paced: it may be that of a recent portion, if the
    /// thread has not waited since.
    #[inline]
    fn recently(&mut self) -> Instant {
        self.now()
    }

    /// Takes an I/O, as [`Submitter::push`](blkmq_engine::Submitter::push) does. `now` is the time of the portion
    /// that it belongs to.
    ///
    /// # Errors
    /// Gives the I/O back if it cannot be taken.
    fn push(&mut self, now: Instant, io: Io<P>) -> Result<(), Refused<P>>;

    /// Flushes the pushed I/Os.
    fn flush(&mut self, now: Instant);

    /// Asks for the I/O with this cookie to be cancelled, as [`Submitter::cancel`](blkmq_engine::Submitter::cancel)
    /// does.
    fn cancel(&mut self, now: Instant, cookie: u64);

    /// The number of I/Os pushed and not yet reaped.
    fn outstanding(&self) -> u32;

    /// CPU usage counts from here on. Called once before the first I/O, and again when a ramp is over.
    fn measuring_begins(&mut self) {}

    /// CPU usage no longer counts from here on: all work is done, and only checks may follow.
    fn measuring_ends(&mut self) {}
}

/// The payloads of I/Os, made once and reused.
pub trait Buffers<P> {
    /// Whether payloads carry bytes. If false, contents are never checked.
    const CARRIES: bool;

    /// A payload that carries `len` bytes with the contents of its last I/O; 0 for an I/O that moves no data.
    fn take(&mut self, len: usize) -> P;

    /// Makes the bytes of a write that no verification fills, in a payload that was just taken.
    #[inline]
    fn prepare(&mut self, _payload: &mut P) {}

    /// Returns a payload to the port.
    fn give(&mut self, payload: P);

    /// The bytes of a payload.
    fn bytes(payload: &mut P) -> &mut [u8];
}

/// Payloads of I/Os that carry no bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoBuffers;

impl Buffers<()> for NoBuffers {
    const CARRIES: bool = false;

    fn take(&mut self, _: usize) {}

    fn give(&mut self, (): ()) {}

    fn bytes((): &mut ()) -> &mut [u8] {
        &mut []
    }
}

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
