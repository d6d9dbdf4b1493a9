//! The programs of virtual CPUs: the port for workloads.

use blkmq_core::Instant;
use blkmq_engine::{Completion, Io};

/// The payload of an I/O, for clients and oracles: the key of the [`Stamp`](crate::Stamp) that passes through the
/// engine with the I/O and must come back with it. Derived from the cookie.
pub type Payload = u64;

/// The next step of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Want {
    /// This I/O. The world chooses its cookie and payload.
    Io(Io<Payload>),
    /// No I/O until one of its own has completed.
    Completion,
    /// Nothing before this time.
    At(Instant),
    /// No further I/O.
    Nothing,
}

/// A program on a virtual CPU.
pub trait Client {
    /// Called repeatedly, until the client wants no I/O or its CPU's batch is full. `in_flight` is the number of its
    /// I/Os that have not ended.
    fn next(&mut self, now: Instant, in_flight: u32) -> Want;

    /// The engine took an I/O of this client, possibly some time after the client returned it: the batch may have been
    /// full, or credit missing.
    fn submitted(&mut self, _now: Instant, _io: &Io<Payload>) {}

    /// One of its I/Os has ended.
    fn ended(&mut self, _now: Instant, _completion: &Completion<Payload>) {}
}
