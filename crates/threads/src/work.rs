//! [`Work`] and [`Source`]: the parts that a device supplies to threads and queues.

use blkmq_buf::IoBuf;
use blkmq_core::{IoResult, Nanos};
use blkmq_engine::{BioTable, Inflight};

/// The delay before a retry after a lack of memory: no event announces the end of the shortage.
pub const RETRY_DELAY: Nanos = Nanos::from_millis(1);

/// The outcome of one attempt at a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The request has ended.
    Done(IoResult),
    /// The rest of the request must be issued.
    Again,
    /// The system could not perform the request at this time.
    Later,
}

/// The work for one request, performed by a thread.
///
/// *Invariant: the work contains its token as long as a thread may reach it.*
pub trait Work: Send + 'static {
    /// The open files of a device, which its threads share.
    type Files: Send + Sync + 'static;

    /// The token, or `None` while the work is free.
    fn token(&self) -> Option<&Inflight>;

    /// Returns the place of the token, to put it in or take it out.
    fn token_mut(&mut self) -> &mut Option<Inflight>;

    /// Performs the whole request on the calling thread, which sleeps as long as that takes. Never returns
    /// [`Step::Again`].
    fn perform(&mut self, files: &Self::Files) -> Step;

    /// Called when the request has ended: memory that only a large request needs may be freed.
    fn rest(&mut self) {}
}

/// Creates the work for the requests of a hardware queue.
pub trait Source: Send {
    /// Its work.
    type Work: Work;

    /// Creates free work.
    fn blank(&self) -> Self::Work;

    /// Prepares `work` for the request `rq`.
    ///
    /// # Errors
    /// The result of a request that needs no thread.
    fn begin<P: IoBuf>(&self, work: &mut Self::Work, bios: &BioTable<P>, rq: &Inflight)
    -> IoResult;

    /// Notes that work has ended with an I/O error: the file may have been truncated.
    fn failed(&self, _work: &Self::Work) {}
}
