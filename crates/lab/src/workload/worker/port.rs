//! What a worker needs of its surroundings: a way to a queue, and buffers.

use blkmq_core::Instant;
use blkmq_engine::{Io, Refused};

/// A thread's way to its queue, and the time: a client with its clock, or a submitter in virtual time.
pub trait Port<P> {
    /// The time. What was pushed and flushed so far has taken its time already.
    fn now(&self) -> Instant;

    /// Takes an I/O, as [`Submitter::push`](blkmq_engine::Submitter::push) does. `now` is the time of the portion
    /// that it belongs to.
    ///
    /// # Errors
    /// Gives the I/O back if it cannot be taken.
    fn push(&mut self, now: Instant, io: Io<P>) -> Result<(), Refused<P>>;

    /// Sends what was pushed on its way.
    fn flush(&mut self, now: Instant);

    /// Asks for the I/O with this cookie to be given up, as [`Submitter::cancel`](blkmq_engine::Submitter::cancel) does.
    fn cancel(&mut self, now: Instant, cookie: u64);

    /// I/Os pushed and not yet taken back.
    fn outstanding(&self) -> u32;

    /// What is used from here on counts: called once before the first I/O, and again when a ramp is over.
    fn measuring_begins(&mut self) {}

    /// What is used from here on does not count any more: all work is done, and only checks may follow.
    fn measuring_ends(&mut self) {}
}

/// What I/Os carry, made once and used again and again.
pub trait Buffers<P> {
    /// Is there anything to carry? If not, contents are never looked at.
    const CARRIES: bool;

    /// One that carries `len` bytes of whatever contents; 0 for what moves none.
    fn take(&mut self, len: usize) -> P;

    /// One has come back.
    fn give(&mut self, payload: P);

    /// What it carries.
    fn bytes(payload: &mut P) -> &mut [u8];
}

/// I/Os that carry nothing.
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
