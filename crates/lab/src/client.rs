//! What a virtual CPU wants of its queue: the port for workloads.

use blkmq_core::Instant;
use blkmq_engine::{Completion, Io};

/// What stands for an I/O's payload, for clients and oracles: the key of the [`Stamp`](crate::Stamp) that goes with
/// it through the engine and must come back with it. Derived from the cookie.
pub type Payload = u64;

/// What a client wants next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Want {
    /// This I/O. Its cookie and payload are chosen by the world.
    Io(Io<Payload>),
    /// Nothing before an I/O of its own has completed.
    Completion,
    /// Nothing before this time.
    At(Instant),
    /// Nothing ever again.
    Nothing,
}

/// A program on a virtual CPU.
pub trait Client {
    /// Asked again and again, until it wants no I/O or its CPU's batch is full. `in_flight` counts its I/Os
    /// that have not ended.
    fn next(&mut self, now: Instant, in_flight: u32) -> Want;

    /// The I/O that it wanted was taken by the engine: some time after it was asked for, where a batch is full
    /// or there is no credit.
    fn submitted(&mut self, _now: Instant, _io: &Io<Payload>) {}

    /// One of its I/Os has ended.
    fn ended(&mut self, _now: Instant, _completion: &Completion<Payload>) {}
}
