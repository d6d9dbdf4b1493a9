//! Measurements of `blkmqd`, each a verb: compared with other servers, shares, floors, hostile clients, endurance, and
//! crashes.
//!
//! The clients are fio's NBD engine and, for crashes and attacks, [`wire`]. Checks that pass or fail within seconds are in
//! `interop`; some of them are short runs of these.

pub(crate) mod attacks;
pub(crate) mod ceilings;
pub(crate) mod crash;
pub(crate) mod floors;
pub(crate) mod isolation;
pub(crate) mod peers;
pub(crate) mod soak;
mod watch;
mod wire;
