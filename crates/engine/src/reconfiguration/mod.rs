//! Building, changing and ending a queue.

pub(crate) mod auto;
pub(crate) mod bounds;
pub(crate) mod build;
pub(crate) mod change;
pub(crate) mod config;
pub(crate) mod config_error;
pub(crate) mod create;
pub(crate) mod device_depth;
pub(crate) mod notes;
pub(crate) mod plan;
pub(crate) mod root;
pub(crate) mod salvage;
pub(crate) mod teardown;
pub(crate) mod watchers;
pub(crate) mod watching;
