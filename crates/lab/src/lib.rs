//! lab

#![forbid(unsafe_code)]

pub mod workload;
