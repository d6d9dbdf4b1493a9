//! Tools for testing a policy: scripts that drive it, an oracle that checks the contract, and naive twins to compare
//! decisions with. Behind the feature `testkit`; never part of a release build.
//!
//! - [`conformance`] is the suite that every policy must pass: one call for each seed.
//! - [`Driver`] is a policy with a slot table and a clock, driven by a test: the tool for tests of one behaviour.
//! - [`Checked`] wraps any policy and panics when it breaks the contract of [`Scheduler`](crate::Scheduler).
//!   Every driver has one.
//! - [`LocalOutside`] is the environment that the engine keeps for a policy, in plain cells.
//! - [`Script`] draws steps from a seed and applies them to a driver.
//! - [`rationed`] is a small policy with tokens that its instances share.
//! - [`FakeDevice`] is a device for tests in which latency matters.
//! - [`naive`] holds a twin for each policy of the registry.

mod conformance;
mod driver;
mod fake_device;
pub mod naive;
mod oracle;
mod outside;
pub mod rationed;
mod script;
mod tenants;

pub use conformance::{Outcome, conformance};
pub use driver::Driver;
pub use fake_device::FakeDevice;
pub use oracle::Checked;
pub use outside::LocalOutside;
pub use script::{Event, Script, Step};
