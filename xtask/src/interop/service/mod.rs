//! `blkmqd` as a service: its units, its messages to a supervisor, its manual, its image and its handbook.

mod image;
mod manual;
mod operate;
mod supervised;
mod units;

pub(super) use image::check as image;
pub(super) use manual::{completions, pages};
pub(super) use operate::check as operate;
pub(super) use supervised::{restarts, tells};
pub(super) use units::check as units;
