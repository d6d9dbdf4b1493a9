//! [`Work`] and [`Source`]: what a device adds to threads and queues.

use blkmq_buf::IoBuf;
use blkmq_core::{IoResult, Nanos};
use blkmq_engine::{BioTable, Inflight};

/// After a lack of memory, no event announces the end of the shortage: a request is tried again after this.
pub const RETRY_DELAY: Nanos = Nanos::from_millis(1);

/// How far a request came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// It is over.
    Done(IoResult),
    /// The rest is to be requested.
    Again,
    /// The system could not do it for the moment.
    Later,
}

/// A request for a thread.
///
/// *Invariant: it has its token inside as long as a thread may reach it.*
pub trait Work: Send + 'static {
    /// The open files of a device, which its threads share.
    type Files: Send + Sync + 'static;

    /// The token; none while the work is free.
    fn token(&self) -> Option<&Inflight>;

    /// Puts a token in, or takes it out.
    fn token_mut(&mut self) -> &mut Option<Inflight>;

    /// Does all of it on the calling thread, which sleeps as long as that takes. Never [`Step::Again`].
    fn perform(&mut self, files: &Self::Files) -> Step;

    /// It is over: memory that only a large request needs may go.
    fn rest(&mut self) {}
}

/// Makes work of the requests to a hardware queue.
pub trait Source: Send {
    /// Its work.
    type Work: Work;

    /// Work that is free.
    fn blank(&self) -> Self::Work;

    /// Has `work` ask for `rq`.
    ///
    /// # Errors
    /// The answer to a request that no thread has to do.
    fn begin<P: IoBuf>(&self, work: &mut Self::Work, bios: &BioTable<P>, rq: &Inflight)
    -> IoResult;

    /// Takes notice of work that ended with an I/O error: the file may have become shorter.
    fn failed(&self, _work: &Self::Work) {}
}
