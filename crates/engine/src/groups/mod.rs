//! Groups of owners: a tree with names, weights and limits.
//!
//! The tree is part of a queue's [`Plan`](crate::Plan), so it can be changed while I/O runs. Schedulers that share by
//! weight are notified of it ([`GroupChange`](blkmq_sched::GroupChange)); the submitters enforce limits, under every
//! scheduler (`throttle.rs`). The tree does not say which owners are in a group: every I/O names its group.

mod floors;
mod limits;
mod meters;
mod promise;
mod slow;
mod stats;
mod times;
mod tree;
mod waits;

pub use floors::FloorsError;
pub use limits::{Burst, IoMax, IoMaxError};
pub(crate) use meters::{Meters, Stand};
pub(crate) use promise::micros;
pub use promise::{Promise, PromiseError};
pub use slow::SlowIo;
pub use stats::StatsMode;
pub(crate) use stats::{Book, Ledger};
pub(crate) use times::{Counted, Spent};
pub use times::{IoTimes, KINDS, Latencies};
pub(crate) use tree::DEFAULT_WEIGHT;
pub use tree::{
    Group, GroupError, GroupSpec, GroupTree, MAX_GROUPS, MAX_WEIGHT, weight_of_io_weight,
};
pub use waits::Wait;
pub(crate) use waits::WaitSums;
