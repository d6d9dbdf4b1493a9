//! `kyber` against `spec/kyber.md`: section 8 line by line, the governor by itself and against its twin, and the
//! promises of `adaptive` in `doc/kyber.md`.

mod adaptive;
mod bounds;
mod bursts;
mod common;
mod governor;
mod load;
mod plugs;
mod section8;
mod twins;
