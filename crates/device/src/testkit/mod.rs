//! What every device must pass, and what it takes to drive one: a real queue in virtual time.
//!
//! Requests cannot be made outside the engine, so a device is tested where it will be used: behind a
//! [`Queue`](blkmq_engine::Queue), driven by a [`Rig`], with a [`Checked`] between both that watches the
//! contract of [`DeviceQueue`]. Everything here panics with a sentence when something is wrong. For tests
//! only; nothing here is fast.

mod checked;
mod conformance;
mod rig;

pub use checked::{Checked, Taken, Watch};
pub use conformance::{Outcome, abandonment, conformance};
pub use rig::{Ended, Rig};

#[cfg(doc)]
use blkmq_engine::DeviceQueue;
