//! I/O schedulers as plain, single-threaded state machines.
//!
//! A policy receives the time and the events, and is asked for the next action. It has no lock, clock, thread
//! or random source, and allocates nothing per request. The crate is `no_std` and forbids `unsafe`. All concurrent
//! code is in `blkmq-engine`, which calls a policy from one thread at a time. The laboratory calls the same policy
//! in virtual time.
//!
//! Two requests in sector order, as the engine would get them from `mq-deadline`:
//!
//! ```
//! use blkmq_core::{HwQueue, Instant, IoMeta, Op};
//! use blkmq_sched::{At, Cx, NoEnv, Options, Pick, Requests, Shape, registry};
//!
//! let factory = registry::find("mq-deadline").expect("it is in the registry");
//! let shape = Shape { slots: 4, nr_requests: 4, hw_depth: 1, hw_queues: 1, rotational: true };
//! let options = Options::parse(factory.attributes, "read_expire=100")?;
//! let mut policy = (factory.build)(&shape, &options);
//!
//! // The engine keeps the requests, the time, and the state that instances share: none here.
//! let mut requests = Requests::new(shape.slots);
//! let far = requests.alloc(IoMeta::new(Op::Read, 8000, 8)).expect("a slot is free");
//! let near = requests.alloc(IoMeta::new(Op::Read, 16, 8)).expect("a slot is free");
//! let cx = Cx::new(Instant::ZERO, &requests, &NoEnv);
//! policy.insert(&cx, far, At::Tail);
//! policy.insert(&cx, near, At::Tail);
//! assert_eq!(policy.pick(&cx, HwQueue(0)), Pick::Issue(near));
//! assert_eq!(policy.pick(&cx, HwQueue(0)), Pick::Issue(far));
//! assert_eq!(policy.pick(&cx, HwQueue(0)), Pick::Empty);
//! # Ok::<(), blkmq_sched::OptionError>(())
//! ```
//!
//! # Writing a scheduler
//!
//! The steps, in order:
//!
//! 1. Copy [`none.rs`](none) to `src/mine.rs`. It is a complete policy and short on purpose.
//! 2. Decide on the state per held request. Keep it in side tables indexed by [`RequestId::index`], sized by
//!    [`Shape::slots`] at creation. [`index`] has ready-made ones (a FIFO linked by index, a sector order) that never
//!    allocate afterwards.
//! 3. Implement the six required methods of [`Scheduler`]: `insert`, `pick`, `completed`, `withdraw`,
//!    `absorbed`, `inspect`. The contract is on the trait. A policy with attributes also has `attribute` and
//!    `set_attribute`.
//! 4. Write `doc/mine.md`: the idea, the options, the bound within which every request is picked, and where
//!    you deviate from a model.
//! 5. Add it to [`registry::ALL`], and its page to the list of [`registry::page`]. The command line, the conformance
//!    suite, the comparisons and the documentation find them there.
//! 6. Write the naive O(n) twin from your page into `tests/naive/`, with a line in its table. The differential test
//!    compares both, and fails until there is a twin and a test for it.
//!
//! [`RequestId::index`]: blkmq_core::RequestId::index

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

#[cfg(feature = "bfq")]
pub mod bfq;
pub mod deadline;
pub mod floors;
pub mod forecast;
pub mod goals;
pub mod group_stats;
mod groups;
pub mod index;
#[cfg(feature = "kyber")]
pub mod kyber;
pub mod mclock;
pub mod none;
mod observed;
mod options;
mod policy;
pub mod registry;
#[cfg(feature = "testkit")]
pub mod testkit;

pub use floors::{FloorCause, FloorReport, FloorState, Floors};
pub use forecast::{Forecast, Outlook};
pub use goals::{Goal, GoalKind, GoalReport, GoalState, Goals, Taken};
pub use group_stats::{Flow, GroupIo, GroupStats, Reading, Tallies, Tally};
pub use groups::{About, Capacity, Direction, Event, GroupChange, Guarantee, Note, Rate};
pub use observed::{Observed, Observer};
pub use options::{Attribute, OptionError, Options, Unit};
pub use policy::{
    Admission, At, Bypass, Common, Cx, Done, Factory, Facts, Fresh, Governor, Grown, NoEnv, PLUG,
    Pick, PolicyEnv, Requests, Scheduler, Scope, Shape, StatsLevel, Used,
};
