//! Stupid twins: each policy of the registry once more, written from its page with nothing but vectors and
//! scans, to be compared decision by decision.

pub mod bfq;
mod deadline;
mod none;

use crate::{Options, Scheduler, Shape};
use alloc::boxed::Box;

/// Makes a twin.
pub type Build = fn(&Shape, &Options) -> Box<dyn Scheduler>;

/// Every twin, under the name of its policy.
pub const TWINS: &[(&str, Build)] =
    &[("none", none::build), ("mq-deadline", deadline::build), ("bfq", bfq::build)];

/// Attributes of a policy that must have these values where its twin is compared with, because that does without what
/// they switch on.
#[must_use]
pub fn kept(name: &str) -> &'static [(&'static str, i64)] {
    if name == "bfq" { bfq::KEPT } else { &[] }
}

/// The twin of the policy called `name`.
#[must_use]
pub fn twin(name: &str) -> Option<Build> {
    TWINS.iter().find(|(n, _)| *n == name).map(|(_, build)| *build)
}
