//! Workloads: what fio would issue, as a pure stream of I/Os.
//!
//! A [`Job`] is the typed meaning of one fio job. A [`Generator`] turns it into a stream of [`NextIo`], one
//! generator per thread, and a [`Pacer`] says when the next one may leave. Both are told the time, use no
//! thread and allocate nothing per I/O, so that the same stream drives real threads and virtual ones.
//!
//! A [`Verifier`] besides says what a job's blocks must hold, and finds out whether they do.
//!
//! Not here: fio's spelling (the command line owns it), submission and completion (whoever drives a queue
//! owns them), and buffers: I/Os carry addresses only.

mod block_size;
mod direction;
mod distribution;
mod generator;
mod job;
mod pacing;
mod permutation;
mod region;
pub mod verify;

pub use block_size::{BlockSize, BlockSizeError};
pub use direction::{Direction, PerDirection, Rw};
pub use distribution::{Distribution, DistributionError};
pub use generator::{Generator, GeneratorError, NextIo};
pub use job::{Depth, Job, JobError, Latencies, ThinkTime};
pub use pacing::{Pace, Pacer};
pub use permutation::Permutation;
pub use region::{Amount, Region, RegionError};
pub use verify::{Verifier, Verify};
