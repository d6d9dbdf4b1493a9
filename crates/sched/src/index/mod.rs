//! Orders over requests, kept in side tables indexed by slot: no allocation after creation, no pointers.

mod fifo;

pub use fifo::Fifo;
