//! The policies of drawn scenarios: every policy of the registry, and one that is difficult on purpose.

mod stingy;

use blkmq_sched::{Factory, registry};
use std::sync::OnceLock;

/// All of them.
pub(crate) fn all() -> &'static [&'static Factory] {
    static ALL: OnceLock<Vec<&'static Factory>> = OnceLock::new();
    ALL.get_or_init(|| registry::ALL.iter().copied().chain([&stingy::FACTORY]).collect())
}

/// The policy called `name`.
pub(crate) fn find(name: &str) -> Option<&'static Factory> {
    all().iter().copied().find(|factory| factory.name == name)
}
