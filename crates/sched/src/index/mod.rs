//! Orders over requests, kept in side tables indexed by slot: no allocation after creation, no pointers.

mod fifo;
mod lists;
mod node;
mod sector;

pub use fifo::Fifo;
pub use lists::Lists;
pub use sector::{Found, LAST_SECTOR, SectorIndex};
