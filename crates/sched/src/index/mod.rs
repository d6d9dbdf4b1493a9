//! Orders over requests, kept in side tables indexed by slot: no allocation after creation, no pointers.

mod fifo;
mod heap;
mod lists;
mod node;
mod sector;

pub use fifo::Fifo;
pub use heap::Heap;
pub use lists::Lists;
pub use sector::{Found, LAST_SECTOR, SectorIndex};
