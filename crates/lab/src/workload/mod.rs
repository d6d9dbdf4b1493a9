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

mod block_size;
mod cover;
mod direction;
mod distribution;
mod failures;
mod files;
mod filler;
mod floor;
mod generator;
mod goal;
mod job;
mod options;
mod pacing;
mod permutation;
mod prios;
mod region;
mod series;
mod strides;
mod tally;
mod tape;
mod ties;
pub mod verify;
mod worker;
mod zones;

pub use block_size::{BlockSize, BlockSizeError};
pub use direction::{Direction, NextIo, PerDirection, Rw};
pub use distribution::{Distribution, DistributionError};
pub use failures::{Failed, Failures, Late, OnError, Unfinished};
pub use files::{File, FileService, Files};
pub use filler::Filler;
pub use floor::TOO_SLOW;
pub use generator::{Generator, GeneratorError};
pub use goal::{LatencyTarget, NEVER_KEPT};
pub use job::{Depth, Job, JobError, Latencies, ThinkTime, Unified};
pub use options::{Amount, CmdPrio, Contents, DedupeMode, Logs};
pub use pacing::{Pace, Pacer};
pub use permutation::Permutation;
pub use region::{Region, RegionError};
pub use series::{BINS, Bin, Course, Series};
pub use strides::{Strided, StridedError};
pub use tally::{Batches, Checks, Counts, Levels, Sample, Tally, Times};
pub use tape::{Tape, Taped};
pub use ties::{Awaited, Exit, ExitWhat, Flow, FlowPool, FlowShare, Member, Ties};
pub use verify::{Verifier, Verify};
pub use worker::{
    Buffers, Completed, Journal, NoBuffers, Port, Step, Stream, Taking, Window, Worker, longest,
};
pub use zones::{Zones, ZonesError};
