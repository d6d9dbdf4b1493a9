//! `bfq` against `spec/bfq.md`: the engine of service against its twin, and section 19 line by line.

mod engine;
