//! The conformance suites of the built-in devices and schedulers, for your own devices and schedulers.
//!
//! The module needs the feature `testkit`, which is for tests only: the suites are not fast, and a suite panics with a
//! sentence when it finds a fault.
//!
//! ```toml
//! [dev-dependencies]
//! blkmq = { version = "0.1", features = ["testkit"] }
//! ```
//!
//! The suite for a scheduler draws scripts of every kind of step from a seed. The suite for a device runs a real queue
//! in virtual time with a thousand I/Os drawn from a seed; a second function takes the device apart while it holds
//! requests. An example with a built-in scheduler and a built-in device:
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
//! To test the behaviour of one scheduler use [`scheduler::Driver`], and of one device [`device::Rig`].

#[doc(inline)]
pub use blkmq_device::contract as device;
#[doc(inline)]
pub use blkmq_sched::testkit as scheduler;
