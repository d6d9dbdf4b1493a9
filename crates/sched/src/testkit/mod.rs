//! Tools for testing a policy: scripts that drive it, and an oracle that checks the contract. Behind the feature
//! `testkit`; never part of a release build.
//!
//! - [`conformance`] is the suite that every policy must pass: one call for each seed.
//! - [`Driver`] is a policy with a slot table and a clock, driven by a test: the tool for tests of one behaviour.
//! - [`Checked`] wraps any policy and panics when it breaks the contract of [`Scheduler`](crate::Scheduler).
//!   Every driver has one.
//! - [`LocalEnv`] is the environment that the engine keeps for a policy, in plain cells.
//! - [`Script`] draws steps from a seed and applies them to a driver.
//! - [`rationed`] is a small policy with tokens that its instances share.
//! - [`FakeDevice`] is a device for tests in which latency matters.

mod conformance;
mod driver;
mod env;
mod oracle;
pub mod rationed;
mod script;
pub use conformance::{Outcome, conformance};
pub use driver::Driver;
pub use env::{FakeDevice, LocalEnv};
pub use oracle::Checked;
pub use script::{Event, Script, Step};
