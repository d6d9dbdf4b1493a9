//! lab

#![forbid(unsafe_code)]

mod agenda;
mod asking;
mod client;
mod costs;
mod cpu;
mod draw;
mod habits;
mod hash;
mod host;
mod ledger;
mod load;
mod oracle;
mod order;
mod planted;
mod promise;
mod recording;
mod scenario;
pub mod soak;
mod subject;
mod violation;
mod witness;
pub mod workload;
mod world;

pub use client::{Client, Payload, Want};
pub use costs::Costs;
pub use cpu::Plan;
pub use habits::{Caught, Habits, Permille};
pub use load::{Load, Pattern};
pub use planted::Bug;
pub use scenario::{Bounds, Scenario};
pub use subject::Subject;
pub use violation::{Stage, Violation};
pub use world::World;
