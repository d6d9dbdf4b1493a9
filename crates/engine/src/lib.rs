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
//! continues, and the holder checks again before it releases the word. All code behind those two words is plain `&mut
//! self` code.
//!
//! An example: a queue around a device that completes every request immediately, at made-up times.
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
//!     fn reap(&mut self, _: Instant, _: &BioTable<()>, _: &mut Vec<Finished>) {}
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
//! [`Submitter`], devices implement [`DeviceQueue`], and [`Host`] has the services that the engine needs from its
//! environment. [`attributes`] can be read and set by name.

#![cfg_attr(
    any(loom, shuttle),
    allow(
        dead_code,
        unused_imports,
        reason = "a model checker compiles all, and runs the part that it models"
    )
)]

pub mod attributes;
mod dispatch;
mod elevator;
mod groups;
mod plan;
mod planted;
mod queue;
mod reconfiguration;
mod shared;
#[cfg(all(test, shuttle))]
mod shuttle_tests;
mod submission;
mod sync;
mod trace;

#[doc(hidden)] // For the laboratory.
pub use dispatch::compare::calls;
#[cfg(target_os = "linux")]
pub use dispatch::device::Berth;
pub use dispatch::{
    device::{
        Another, Busy, DEFAULT_TIMEOUT, DeviceQueue, DeviceShape, Enqueued, Expiry, Finished,
    },
    leaked_bios,
    visit::{Outstanding, Place, QueueTimes},
};
pub use elevator::merging::{PLUG_REQUESTS, PLUG_SECTORS};
pub use groups::{
    Burst, FloorsError, Group, GroupError, GroupSpec, GroupTree, IoMax, IoMaxError, IoTimes, KINDS,
    Latencies, MAX_GROUPS, MAX_WEIGHT, Promise, PromiseError, SlowIo, StatsMode, Wait,
    weight_of_io_weight,
};
pub use plan::{
    AUTO, AutoChoice, AutoReason, ConfigNote, DeviceDepth, DeviceDepthError, Plan, PolicyChoice,
    config::{BlockDevice, Config, ConfigError, DeviceQueues, Join, PolicyObserver},
};
pub use queue::{NoSubmitterLeft, Queue};
pub use reconfiguration::{Change, ChangeError, EditError, Freeze, Quiesce, TraceError};
pub use shared::{
    DEFAULT_SUBMITTERS, MAX_DEVICE_DEPTH, MAX_HW_QUEUE_DEPTH, MAX_NR_REQUESTS, MAX_OWN_LANES,
    MIN_NR_REQUESTS, NoMerges, PumpMode, WriteCache,
    hctx::{Inflight, MAX_TAG_USERS, SharedTags, Verdict},
    hub::{Host, NoHost},
    slots::{BioRef, BioTable},
    stats::{
        CancelStats, DeadlineStats, FlushStats, GoalsStatus, LockStats, MergeStats, QueueStats,
    },
};
pub use submission::{
    Completion, Io, Refusal, Refused, Unsubmitted,
    submitter::{Awaited, Submitter},
};
pub use trace::{MAX_TRACE_NOTES, Trace, TraceEvent, TraceWhat};
#[cfg(feature = "compare")]
pub use {
    dispatch::compare::Run,
    shared::modes::{Access, DispatchMode, EffectiveModes, InsertMode, KickMode, MergeMode, Modes},
};
