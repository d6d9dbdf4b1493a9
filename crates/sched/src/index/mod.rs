//! Orders over requests, kept in side tables indexed by slot: no allocation after creation, no pointers.

mod heap;
mod lists;
mod node;
mod sector;

pub use heap::Heap;
pub use lists::{Fifo, Lists};
pub use sector::{Found, LAST_SECTOR, SectorIndex};
