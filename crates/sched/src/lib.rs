//! I/O schedulers as plain, single-threaded state machines.
//!
//! A policy receives the time and the events, and is asked for the next action. It has no lock, clock, thread
//! or random source, and allocates nothing per request. The crate is `no_std` and forbids `unsafe`. All concurrent
//! code is in `blkmq-engine`, which calls a policy from one thread at a time. The laboratory calls the same policy
//! in virtual time.
//!
//! Two requests in sector order, as the engine would get them from `mq-deadline`:
//!
//! ```
//! use blkmq_core::{HwQueue, Instant, IoMeta, Op};
//! use blkmq_sched::{At, Cx, NoEnv, Options, Pick, Requests, Shape, registry};
//!
//! let factory = registry::find("mq-deadline").expect("it is in the registry");
//! let shape = Shape { slots: 4, nr_requests: 4, hw_depth: 1, hw_queues: 1, rotational: true };
//! let options = Options::parse(factory.attributes, "read_expire=100")?;
//! let mut policy = (factory.build)(&shape, &options);
//!
//! // The engine keeps the requests, the time, and the state that instances share: none here.
//! let mut requests = Requests::new(shape.slots);
//! let far = requests.alloc(IoMeta::new(Op::Read, 8000, 8)).expect("a slot is free");
//! let near = requests.alloc(IoMeta::new(Op::Read, 16, 8)).expect("a slot is free");
//! let cx = Cx::new(Instant::ZERO, &requests, &NoEnv);
//! policy.insert(&cx, far, At::Tail);
//! policy.insert(&cx, near, At::Tail);
//! assert_eq!(policy.pick(&cx, HwQueue(0)), Pick::Issue(near));
//! assert_eq!(policy.pick(&cx, HwQueue(0)), Pick::Issue(far));
//! assert_eq!(policy.pick(&cx, HwQueue(0)), Pick::Empty);
//! # Ok::<(), blkmq_sched::OptionError>(())
//! ```
//!
//! # Writing a scheduler
//!
//! The steps, in order:
//!
//! 1. Copy [`none.rs`](none) to `src/mine.rs`. It is a complete policy and short on purpose.
//! 2. Decide on the state per held request. Keep it in side tables indexed by [`RequestId::index`], sized by
//!    [`Shape::slots`] at creation. [`index`] has ready-made ones (a FIFO linked by index, a sector order) that never
//!    allocate afterwards.
//! 3. Implement the six required methods of [`Scheduler`]: `insert`, `pick`, `completed`, `withdraw`,
//!    `absorbed`, `inspect`. The contract is on the trait. A policy with attributes also has `attribute` and
//!    `set_attribute`.
//! 4. Write `doc/mine.md`: the idea, the options, the bound within which every request is picked, and where
//!    you deviate from a model.
//! 5. Add it to [`registry::ALL`], and its page to the list of [`registry::page`]. The command line, the conformance
//!    suite, the comparisons and the documentation find them there.
//! 6. Write the naive O(n) twin from your page into `tests/naive/`, with a line in its table. The differential test
//!    compares both, and fails without a twin.
//!
//! [`RequestId::index`]: blkmq_core::RequestId::index

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

#[cfg(feature = "bfq")]
pub mod bfq;
pub mod deadline;
pub mod floors;
pub mod forecast;
pub mod goals;
pub mod group_stats;
mod groups;
pub mod index;
#[cfg(feature = "kyber")]
pub mod kyber;
pub mod mclock;
pub mod none;
mod observed;
mod options;
mod policy;
#[cfg(feature = "testkit")]
pub mod testkit;

pub use floors::{FloorCause, FloorReport, FloorState, Floors};
pub use forecast::{Forecast, Outlook};
pub use goals::{Goal, GoalKind, GoalReport, GoalState, Goals, Taken};
pub use group_stats::{Flow, GroupIo, GroupStats, Reading, Tallies, Tally};
pub use groups::{About, Capacity, Direction, Event, GroupChange, Guarantee, Note, Rate};
pub use observed::{Observed, Observer};
pub use options::{Attribute, OptionError, Options, Unit};
pub use policy::{
    Admission, At, Bypass, Common, Cx, Done, Factory, Facts, Fresh, Governor, Grown, NoEnv, PLUG,
    Pick, PolicyEnv, Requests, Scheduler, Scope, Shape, StatsLevel, Used,
};

pub mod registry {
    //! Every policy by name, and its page. With a line in both lists, a policy is offered, tested and compared.

    use crate::{Factory, deadline, mclock, none};
    use alloc::{format, string::String, vec::Vec};

    /// All policies of this build, in the order in which lists show them.
    pub const ALL: &[&Factory] = &[
        &none::FACTORY,
        &deadline::FACTORY,
        #[cfg(feature = "kyber")]
        &crate::kyber::FACTORY,
        #[cfg(feature = "bfq")]
        &crate::bfq::FACTORY,
        &mclock::FACTORY,
    ];

    /// The policies that a feature of the same name adds.
    const FEATURES: [&str; 2] = ["kyber", "bfq"];

    /// The pages of the policies.
    const PAGES: &[(&str, &str)] = &[
        ("none", include_str!("../doc/none.md")),
        ("mq-deadline", include_str!("../doc/mq-deadline.md")),
        #[cfg(feature = "kyber")]
        ("kyber", include_str!("../doc/kyber.md")),
        #[cfg(feature = "bfq")]
        ("bfq", include_str!("../doc/bfq.md")),
        ("mclock", include_str!("../doc/mclock.md")),
    ];

    /// The page that `blkmq doc NAME` prints; `None` if there is no such policy. It is no field of [`Factory`], so a
    /// program that prints no page contains none.
    #[must_use]
    pub fn page(name: &str) -> Option<&'static str> {
        PAGES.iter().find(|(policy, _)| *policy == name).map(|(_, page)| *page)
    }

    /// The policy called `name`; `None` if this build has none of that name.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Factory> {
        ALL.iter().copied().find(|f| f.name == name)
    }

    /// The feature of `blkmq` that adds the policy called `name`, if this build is without it.
    #[must_use]
    pub fn left_out(name: &str) -> Option<&'static str> {
        FEATURES.into_iter().find(|feature| *feature == name && find(name).is_none())
    }

    /// The error for a name that [`find`] does not know, where `others` are accepted as well.
    #[must_use]
    pub fn refusal(name: &str, others: &[&str]) -> String {
        if let Some(feature) = left_out(name) {
            return format!(
                "scheduler '{name}' is left out; the feature '{feature}' of blkmq adds it"
            );
        }
        let names = ALL.iter().map(|factory| factory.name).chain(others.iter().copied());
        format!("no scheduler '{name}'; accepted: {}", Vec::from_iter(names).join(", "))
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use crate::Options;

        #[test]
        fn every_page_has_its_title_and_names_every_attribute() {
            for factory in ALL {
                let name = factory.name;
                let doc = page(name).expect(name);
                assert_eq!(doc.lines().next(), Some(alloc::format!("# {name}").as_str()));
                for attribute in factory.attributes {
                    let quoted = alloc::format!("`{}`", attribute.name);
                    assert!(doc.contains(&quoted), "doc/{name}.md does not name {quoted}");
                }
            }
        }

        #[test]
        fn names_are_unique_and_fit_where_linux_keeps_them() {
            for (at, factory) in ALL.iter().enumerate() {
                assert!(
                    factory.name.len() < 16,
                    "{} is longer than an elevator name",
                    factory.name
                );
                assert!(ALL[..at].iter().all(|other| other.name != factory.name));
                assert!(find(factory.name).is_some());
            }
            assert!(find("deadline").is_none());
        }

        #[test]
        fn every_default_lies_within_its_range() {
            for factory in ALL {
                for a in factory.attributes {
                    assert!((a.min..=a.max).contains(&a.default), "{} {}", factory.name, a.name);
                    assert_eq!(Options::defaults(factory.attributes).get(a.name), a.default);
                    assert!(!a.help.is_empty());
                }
            }
        }
    }
}
