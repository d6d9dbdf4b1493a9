//! Every policy by name, and its page. A line in both lists is all that a policy needs to be offered, tested and compared.

use crate::{Factory, bfq, deadline, kyber, mclock, none};

/// All policies, in the order in which lists show them.
pub const ALL: &[&Factory] =
    &[&none::FACTORY, &deadline::FACTORY, &kyber::FACTORY, &bfq::FACTORY, &mclock::FACTORY];

/// The pages of the policies.
const PAGES: &[(&str, &str)] = &[
    ("none", include_str!("../doc/none.md")),
    ("mq-deadline", include_str!("../doc/mq-deadline.md")),
    ("kyber", include_str!("../doc/kyber.md")),
    ("bfq", include_str!("../doc/bfq.md")),
    ("mclock", include_str!("../doc/mclock.md")),
];

/// The page that `blkmq doc NAME` prints, if there is such a policy. No [`Factory`] has it, so a program that prints no
/// page contains none.
#[must_use]
pub fn page(name: &str) -> Option<&'static str> {
    PAGES.iter().find(|(policy, _)| *policy == name).map(|(_, page)| *page)
}

/// The policy called `name`.
#[must_use]
pub fn find(name: &str) -> Option<&'static Factory> {
    ALL.iter().copied().find(|f| f.name == name)
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
