//! How much an operator changes a queue during a run.

use blkmq_core::Nanos;

/// The settings of an operator; its actions are drawn from the seed of the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Meddling {
    /// The number of changes and holds in all.
    pub most: u32,
    /// The longest pause between two of them.
    pub pause: Nanos,
    /// The longest hold.
    pub hold: Nanos,
}

impl Meddling {
    /// No operator.
    pub const NONE: Self = Self { most: 0, pause: Nanos::ZERO, hold: Nanos::ZERO };
}
