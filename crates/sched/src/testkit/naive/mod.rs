//! Stupid twins: each policy of the registry once more, written from its page with nothing but vectors and
//! scans, to be compared decision by decision.

pub mod bfq;
mod deadline;
mod kyber;
mod none;

use crate::{Common, Options, Scheduler, Shape};
use alloc::boxed::Box;

/// Makes a twin.
pub type Build = fn(&Shape, &Options) -> Box<dyn Scheduler>;

/// Every twin, under the name of its policy, and what instances of it have in common.
pub const TWINS: &[(&str, Build, Option<Common>)] = &[
    ("none", none::build, None),
    ("mq-deadline", deadline::build, None),
    ("kyber", kyber::build, Some(kyber::COMMON)),
    ("bfq", bfq::build, None),
];

/// Attributes of a policy that must have these values where its twin is compared with, because that does without what
/// they switch on.
#[must_use]
pub fn kept(name: &str) -> &'static [(&'static str, i64)] {
    if name == "bfq" { bfq::KEPT } else { &[] }
}

/// The twin of the policy called `name`, and what instances of it have in common.
#[must_use]
pub fn twin(name: &str) -> Option<(Build, Option<Common>)> {
    TWINS.iter().find(|(n, ..)| *n == name).map(|(_, build, common)| (*build, *common))
}
