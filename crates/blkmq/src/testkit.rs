//! The suites that every device and every scheduler passes, for those that are written elsewhere.
//!
//! With the feature `testkit`, which is for tests only: nothing here is fast, and everything panics with a sentence when
//! something is wrong.
//!
//! ```toml
//! [dev-dependencies]
//! blkmq = { version = "0.1", features = ["testkit"] }
//! ```
//!
//! A scheduler gets scripts of every kind of step from a seed; a device a real queue in virtual time, with a thousand
//! I/Os from a seed, and is then taken apart with some inside. Here are a scheduler and a device that are there already:
//!
//! ```
//! use blkmq::{BlockDevice, testkit};
//!
//! let factory = blkmq::scheduler("kyber").expect("it is there");
//! for seed in 0..20 {
//!     let outcome = testkit::scheduler::conformance(factory, seed);
//!     assert!(outcome.picked > 0, "seed {seed}: nothing was picked");
//! }
//!
//! let device = blkmq::device("null,irqmode=2")?;
//! for seed in 0..20 {
//!     let outcome = testkit::device::conformance(device.shape, device.queues(), seed);
//!     assert_eq!(outcome.failed, 0, "seed {seed}");
//!     let held = testkit::device::abandonment(device.shape, device.queues(), seed);
//!     assert!(held > 0, "seed {seed}: nothing was inside");
//! }
//! # Ok::<(), blkmq::device::DeviceError>(())
//! ```
//!
//! For the behaviour of one scheduler there is [`scheduler::Driver`], for that of one device [`device::Rig`].

#[doc(inline)]
pub use blkmq_device::testkit as device;
#[doc(inline)]
pub use blkmq_sched::testkit as scheduler;
