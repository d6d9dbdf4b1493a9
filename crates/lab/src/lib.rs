//! lab

pub mod workload;
