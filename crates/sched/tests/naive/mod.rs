//! Naive twins: a second implementation of each policy of the registry, written from its page with nothing but
//! vectors and scans, to be compared decision by decision.

pub mod bfq;
mod deadline;
mod kyber;
mod mclock;
mod none;

use blkmq_sched::{Common, Options, Scheduler, Shape};

/// Creates a twin.
pub type Build = fn(&Shape, &Options) -> Box<dyn Scheduler>;

/// Every twin, under the name of its policy, with the state that its instances share.
pub const TWINS: &[(&str, Build, Option<Common>)] = &[
    ("none", none::build, None),
    ("mq-deadline", deadline::build, None),
    ("kyber", kyber::build, Some(kyber::COMMON)),
    ("bfq", bfq::build, None),
    ("mclock", mclock::build, None),
];

/// The twin of the policy called `name`, with the state that its instances share.
#[must_use]
pub fn twin(name: &str) -> Option<(Build, Option<Common>)> {
    TWINS.iter().find(|(n, ..)| *n == name).map(|(_, build, common)| (*build, *common))
}
