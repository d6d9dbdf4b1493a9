//! Building and changing a queue.

pub(crate) mod build;
pub(crate) mod change;
pub(crate) mod queue;
