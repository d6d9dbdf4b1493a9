//! [`Gate`]: the present rules of the server or of an export, which a reload may change.

use crate::allow::{Allow, Rule};
use crate::identity::Identity;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Rules, or none. A mutex, locked by handshakes and once a second for each connection, but never for an I/O.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    rules: Mutex<Option<Arc<Allow>>>,
    /// The number of changes, which wraps around.
    version: AtomicU32,
}

impl Gate {
    pub(crate) fn new(allow: Option<Allow>) -> Self {
        Self { rules: Mutex::new(allow.map(Arc::new)), version: AtomicU32::new(0) }
    }

    /// The present rules; `None` if every client may pass.
    pub(crate) fn rules(&self) -> Option<Arc<Allow>> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set(&self, allow: Option<Allow>) {
        *self.rules.lock().unwrap_or_else(PoisonError::into_inner) = allow.map(Arc::new);
        // Incremented after the change: a reader that sees the new version finds the new rules.
        self.version.fetch_add(1, Ordering::Release);
    }

    /// A number that differs after each change. Cheap enough to be read in every turn.
    pub(crate) fn version(&self) -> u32 {
        // Pairs with the end of `set`.
        self.version.load(Ordering::Acquire)
    }

    /// Returns whether every client may pass.
    pub(crate) fn is_open(&self) -> bool {
        self.rules().is_none()
    }

    pub(crate) fn allows(&self, identity: &Identity) -> bool {
        self.rules().is_none_or(|rules| rules.allows(identity))
    }

    /// Returns whether a client of this identity may pass once it has shown a certificate.
    pub(crate) fn may_allow(&self, identity: &Identity) -> bool {
        let by_certificate = |rules: Arc<Allow>| rules.rules().iter().any(Rule::is_of_certificate);
        self.allows(identity) || self.rules().is_some_and(by_certificate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_changed_while_clients_come() {
        let gate = Gate::default();
        let client = Identity::of_process(7, 7);
        assert!(gate.is_open() && gate.allows(&client));
        let rules =
            |text: &str| Some(Allow::new(vec![text.parse().expect("a rule")]).expect("one"));
        gate.set(rules("uid:8"));
        assert!(!gate.is_open() && !gate.allows(&client) && !gate.may_allow(&client));
        gate.set(rules("cn:a"));
        assert!(!gate.allows(&client) && gate.may_allow(&client));
        gate.set(rules("uid:7"));
        assert!(gate.allows(&client));
    }
}
