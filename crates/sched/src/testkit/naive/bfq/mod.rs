//! The twins of `bfq`.

pub mod wf2q;
