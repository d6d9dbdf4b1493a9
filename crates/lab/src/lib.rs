//! The laboratory: whole queues in virtual time, and workloads for virtual and real time alike.
//!
//! It has three parts. [`workload`] turns a job in fio's terms into a stream of I/Os and a thread that issues it;
//! `blkmq bench` runs it on real threads, a [`simulation`] on virtual CPUs. [`observe`] attaches observers to a queue's
//! policies and devices, in either time: [`trace`]s, [`elevator_log`]s. The rest is the simulator that searches for
//! bugs: a [`World`] in which virtual CPUs take turns at one [`Subject`], a queue with the same code as in production,
//! with witnesses around its policy and its device. [`soak`](soak::soak) draws a [`Scenario`] from a seed, runs it and
//! reports a failure as one line that can be repeated and shrunk; the same line gives the same run, bit for bit.
//! `doc/simulator.md` explains it for users.
//!
//! To write an experiment: implement [`Client`], which chooses the I/Os of a CPU, give each CPU a [`Plan`] with its
//! [`Habits`], build the [`Subject`] from a configuration, and run a [`World`] over both. To see that a check can
//! fail, plant a [`Bug`].
//!
//! ```
//! use blkmq_lab::Bug;
//! use blkmq_lab::soak::soak;
//!
//! // A device, a scheduler, threads, faults and changes, all drawn from the seed: the same every time.
//! let outcome = soak(7, None).expect("the engine keeps its promises");
//! let again = soak(7, None).expect("the engine keeps its promises");
//! assert_eq!(outcome, again);
//!
//! // Where the device loses requests on purpose a run fails, and says how to repeat that.
//! let failure = (0..20).find_map(|seed| soak(seed, Some(Bug::LostRequest)).err()).expect("it is noticed");
//! assert!(failure.to_string().contains("cargo xtask soak --replay"));
//! ```
//!
//! Limits: the laboratory has no thread and no clock, and randomness comes from seeds only; it does not see memory
//! orderings, nor two threads inside one call of the engine (loom and shuttle do, in `blkmq-engine`); and its times
//! show the order of events, not the speed of the code.

#![forbid(unsafe_code)]

mod client;
mod contents;
mod cpu;
mod draw;
pub mod elevator_log;
mod ledger;
pub mod observe;
mod oracle;
mod order;
mod policies;
mod scenario;
pub mod simulation;
pub mod soak;
mod subject;
pub mod trace;
mod violation;
pub mod workload;
mod world;

pub use client::{Client, Payload, Stamp, Want};
pub use contents::{FlushFates, PowerCuts};
pub use cpu::{Caught, Costs, Habits, Permille, Plan};
pub use scenario::{Bounds, Load, Meddling, Pattern, Scenario, ScenarioError};
pub use subject::{Bug, Subject};
pub use violation::{Stage, Violation};
pub use world::World;
