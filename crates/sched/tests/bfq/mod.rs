//! `bfq` against `spec/bfq.md`: the service engine against its twin, and section 19 line by line.

mod common;
mod engine;
mod fairness;
mod liveness;
mod refinements;
mod section19;
mod stats;
