//! Workloads: the I/Os that fio would issue, as a pure stream.
//!
//! A [`Job`] is the typed meaning of one fio job. A [`Generator`] turns it into a stream of [`NextIo`], one generator
//! per thread, and a [`Pacer`] decides when the next one may leave. Both receive the time, use no thread and allocate
//! nothing per I/O, so that the same stream drives real threads and virtual ones.
//!
//! A [`Verifier`] knows the data that a job's blocks must hold, and checks it. A [`Worker`] combines all of them: one
//! thread of a job as a state machine, which returns the event that it waits for and counts into a [`Tally`].
//!
//! Not here: fio's spelling (in the command line), queues, threads and waiting (in the code that drives a worker),
//! and memory: buffers come through [`Buffers`].

mod distribution;
mod generator;
mod job;
mod next_io;
mod options;
mod pacing;
mod region;
mod tally;
mod ties;
pub mod verify;
mod visits;
mod worker;

pub use distribution::{Distribution, DistributionError, Zones, ZonesError};
pub use generator::{Filler, Generator, GeneratorError};
pub use job::{Depth, Job, JobError, Latencies, ThinkTime, Unified};
pub use next_io::{BlockSize, BlockSizeError, Direction, NextIo, PerDirection, Rw, Tape, Taped};
pub use options::{
    Amount, CmdPrio, Contents, DedupeMode, File, FileService, Files, LatencyTarget, Logs,
    NEVER_KEPT,
};
pub use pacing::{Pace, Pacer};
pub use region::{Region, RegionError};
pub use tally::{
    BINS, Batches, Bin, Checks, Counts, Course, Levels, Sample, Series, TOO_SLOW, Tally, Times,
};
pub use ties::{
    Awaited, Exit, ExitWhat, Failed, Failures, Flow, FlowPool, FlowShare, Late, Member, OnError,
    Ties, Unfinished,
};
pub use verify::{Verifier, Verify};
pub use visits::{Permutation, Strided, StridedError};
pub use worker::{
    Buffers, Completed, Journal, NoBuffers, Port, Step, Stream, Taking, Window, Worker, longest,
};
