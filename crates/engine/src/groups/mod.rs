//! Groups of owners: a tree with names, weights and limits.
//!
//! The tree is a part of a queue's [`Plan`](crate::Plan), and so of what can be changed while I/O runs. Schedulers
//! that share by weight are told of it ([`GroupChange`](blkmq_sched::GroupChange)); limits are kept to above every
//! scheduler, by the submitters (`throttle.rs`). Which owners are in which group is nobody's business here: every
//! I/O names its group.

mod error;
mod limits;
mod meters;
mod stats;
mod tree;

pub use error::GroupError;
pub use limits::{IoMax, IoMaxError};
pub(crate) use meters::Meters;
pub use stats::Stats;
pub(crate) use stats::{Book, Ledger};
pub(crate) use tree::DEFAULT_WEIGHT;
pub use tree::{Group, GroupTree, MAX_GROUPS, MAX_WEIGHT, Wanted, weight_of_io_weight};
