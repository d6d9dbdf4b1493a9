//! [`Tenants`]: counts connections to exports by the identity of their clients.
//!
//! An identity covers all addresses and processes of a client, so that one tenant of a server with rules cannot use up
//! all connections.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The connections of each identity that has any. A mutex, locked when a connection begins or ends.
#[derive(Debug, Default)]
pub(crate) struct Tenants(Mutex<BTreeMap<String, usize>>);

/// A counted connection; uncounted on drop.
#[derive(Debug)]
pub(crate) struct Tenancy {
    tenants: Arc<Tenants>,
    identity: String,
}

impl Tenants {
    fn counts(&self) -> MutexGuard<'_, BTreeMap<String, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a connection of `identity`, or returns `None` if it has `most` already.
    pub(crate) fn take(self: &Arc<Self>, identity: String, most: usize) -> Option<Tenancy> {
        let mut counts = self.counts();
        let count = counts.get(&identity).copied().unwrap_or(0);
        if count >= most {
            return None;
        }
        counts.insert(identity.clone(), count + 1);
        Some(Tenancy { tenants: Arc::clone(self), identity })
    }

    /// The number of connections of each identity.
    pub(crate) fn all(&self) -> BTreeMap<String, usize> {
        self.counts().clone()
    }
}

impl Drop for Tenancy {
    fn drop(&mut self) {
        let mut counts = self.tenants.counts();
        match counts.get_mut(&self.identity) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                counts.remove(&self.identity);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_has_its_places_and_leaves_those_of_others() {
        let tenants = Arc::new(Tenants::default());
        let take = |name: &str| tenants.take(name.to_owned(), 2);
        let (first, _second) = (take("cn:a").expect("one"), take("cn:a").expect("two"));
        assert!(take("cn:a").is_none());
        let other = take("cn:b").expect("another tenant");
        drop(first);
        assert!(take("cn:a").is_some(), "its place is free");
        drop(other);
        assert_eq!(Vec::from_iter(tenants.all()), [("cn:a".to_owned(), 1)]);
    }
}
