//! `bfq`.
pub mod wf2q;
