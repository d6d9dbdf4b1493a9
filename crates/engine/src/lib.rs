//! The block layer itself: everything between a submitter and a device, and all of the concurrency.
//!
//! ```text
//!  submitter ---> plug ---> staging ring --.                     .--> outbox --> pump --> device
//!      ^          (merge)   (if contended)  \                   /                 |
//!      |                                     >--> elevator --->+                  |
//!      |          `-- straight in if free --'    merge, slots,  \                 |
//!      |                                         policy, tags    `<-- returns ----+
//!      `------------------------ completion ring <---------------------------------'
//! ```
//!
//! At most one thread at a time runs an elevator, and at most one runs a pump. A word for each (`sync/run_state.rs`)
//! decides which, and no thread waits for it (decision 0002): a thread that finds the word taken leaves its work and
//! goes on, and the holder looks again before it lets go. Everything behind those two words is plain `&mut self`
//! code.
//!
//! An example: a queue around a device that completes every request at once, at made-up times.
//!
//! ```
//! use blkmq_core::{Instant, Limits, Nanos, Op};
//! use blkmq_engine::{BioTable, Config, DEFAULT_TIMEOUT, DeviceQueue, DeviceShape, Enqueued};
//! use blkmq_engine::{Finished, Inflight, Io, Queue, WriteCache};
//!
//! struct Done;
//!
//! impl DeviceQueue<()> for Done {
//!     fn enqueue(&mut self, _: Instant, _: &BioTable<()>, rq: Inflight) -> Enqueued {
//!         Enqueued::Done(rq, Ok(()))
//!     }
//!     fn reap(&mut self, _: Instant, _: &mut Vec<Finished>) {}
//!     fn abandon(&mut self, _: &mut Vec<Inflight>) {}
//! }
//!
//! let shape = DeviceShape {
//!     hw_queues: 1,
//!     hw_queue_depth: 4,
//!     shared_tags: false,
//!     budget: None,
//!     limits: Limits::default(),
//!     cache: WriteCache::Through,
//!     timeout: DEFAULT_TIMEOUT,
//! };
//! let queue = Queue::new(Config::new(shape, vec![Box::new(Done)]))?;
//! let mut submitter = queue.submitter()?;
//! let now = Instant::ZERO + Nanos::from_micros(1);
//! // Two neighbours: one request.
//! submitter.push(now, Io::new(Op::Write, 0, 8, 1, ()))?;
//! submitter.push(now, Io::new(Op::Write, 8, 8, 2, ()))?;
//! submitter.flush(now);
//! let mut cookies = Vec::new();
//! submitter.reap(8, |done| cookies.push(done.cookie));
//! assert_eq!((cookies, queue.stats().completed_requests), (vec![1, 2], 1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The engine is passive: it starts no thread, reads no clock and never blocks. Programs drive it through
//! [`Submitter`], devices implement [`DeviceQueue`], and [`Host`] is everything that the engine asks of its
//! environment. [`attributes`] can be read and set by name.

mod apart;
pub mod attributes;
mod before;
mod block_device;
mod build;
pub mod calls;
mod cancel;
mod change;
mod common;
mod completions;
mod config;
mod device;
mod drive;
mod elevator;
mod expiry;
mod flush;
mod follow;
mod gate;
mod group_stats;
mod groups;
mod hctx;
mod host;
mod inflight;
mod io;
mod lines;
mod lobby;
mod merge;
mod merge_index;
mod modes;
mod notes;
mod outstanding;
mod plan;
mod planted;
mod plug;
mod pump;
mod queue;
mod ready;
mod run;
mod runner;
mod salvage;
mod seats;
mod shared;
#[cfg(all(test, shuttle))]
mod shuttle_tests;
mod slots;
mod split;
mod stats;
mod submitter;
mod sync;
mod tags;
mod teardown;
mod throttle;

pub use block_device::{BlockDevice, DeviceQueues};
pub use change::{Change, ChangeError, EditError, Freeze, Quiesce};
pub use config::{
    Config, ConfigError, MAX_HW_QUEUE_DEPTH, MAX_NR_REQUESTS, MIN_NR_REQUESTS, PumpMode,
};
pub use device::{
    Busy, DEFAULT_TIMEOUT, DeviceQueue, DeviceShape, Enqueued, Expiry, Finished, Verdict,
    WriteCache,
};
pub use groups::{
    Group, GroupError, GroupSpec, GroupTree, IoMax, IoMaxError, MAX_GROUPS, MAX_WEIGHT, StatsMode,
    weight_of_io_weight,
};
pub use host::{Host, NoHost};
pub use inflight::Inflight;
pub use io::{Completion, Io, Refusal, Refused, Unsubmitted};
pub use merge::NoMerges;
pub use modes::{Access, DispatchMode, EffectiveModes, InsertMode, KickMode, MergeMode, Modes};
pub use notes::ConfigNote;
pub use outstanding::{Outstanding, Place};
pub use plan::Plan;
pub use plug::{PLUG_REQUESTS, PLUG_SECTORS};
pub use queue::{NoSubmitterLeft, Queue};
pub use run::Run;
pub use slots::{BioRef, BioTable};
pub use stats::{CancelStats, FlushStats, LockStats, MergeStats, QueueStats};
pub use submitter::Submitter;
pub use tags::{MAX_TAG_USERS, SharedTags};
pub use teardown::leaked_bios;
