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
        return format!("scheduler '{name}' is left out; the feature '{feature}' of blkmq adds it");
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
            assert!(factory.name.len() < 16, "{} is longer than an elevator name", factory.name);
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
