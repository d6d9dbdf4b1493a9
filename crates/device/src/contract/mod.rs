//! The contract of a device, checked: the tests that every device must pass, and a real queue in virtual time.
//!
//! Requests cannot be made outside the engine, so a device is tested where it will be used: behind a
//! [`Queue`](blkmq_engine::Queue), driven by a [`Rig`], with a [`Checked`] in between that checks the contract of
//! [`DeviceQueue`]. A violation panics with a message. For tests and simulations only: nothing here is fast.

mod checked;
mod conformance;
mod rig;

pub use checked::{Checked, Taken, Watch};
pub use conformance::{Outcome, abandonment, conformance};
pub use rig::{Ended, Rig};

#[cfg(doc)]
use blkmq_engine::DeviceQueue;
