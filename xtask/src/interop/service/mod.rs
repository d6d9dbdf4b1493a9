//! `blkmqd` as a service: its units, its messages to a supervisor, its manual, its releases and its handbook.

mod installed;
mod manual;
mod operate;
mod release;
mod supervised;
mod units;

pub(super) use installed::check as installed;
pub(crate) use installed::upgrades;
pub(super) use manual::{completions, pages};
pub(super) use operate::check as operate;
pub(super) use release::check as release;
pub(super) use supervised::{restarts, tells};
pub(super) use units::check as units;
