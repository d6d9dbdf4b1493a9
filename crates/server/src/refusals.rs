//! [`Refusals`]: counts and logs clients that were turned away.
//!
//! A client decides how often it is refused, so each reason is logged at most once a second, with the number of omitted
//! lines as `before=`. The counts are complete.

use crate::rarely::Rarely;
use blkmq::Clock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The reason why a client was turned away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reason {
    /// The TLS handshake failed, or did not begin.
    Tls,
    /// No rule of the server admits the client.
    Server,
    /// No rule of the export admits the client.
    Export,
    /// A change of the rules has withdrawn its access.
    Revoked,
    /// There is no export of this name.
    Unknown,
    /// A limit on connections is reached.
    TooMany,
    /// The client broke the protocol of the handshake.
    Protocol,
}

impl Reason {
    pub(crate) const ALL: [Self; 7] = [
        Self::Tls,
        Self::Server,
        Self::Export,
        Self::Revoked,
        Self::Unknown,
        Self::TooMany,
        Self::Protocol,
    ];

    /// The label in metrics.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Tls => "tls",
            Self::Server => "server-allow",
            Self::Export => "export-allow",
            Self::Revoked => "revoked",
            Self::Unknown => "unknown-export",
            Self::TooMany => "too-many",
            Self::Protocol => "protocol",
        }
    }
}

/// The refusals of a server, by reason. Workers share it, and access it only when a client is refused.
#[derive(Debug)]
pub(crate) struct Refusals {
    clock: Clock,
    by_reason: [(AtomicU64, Mutex<Rarely>); Reason::ALL.len()],
}

impl Refusals {
    pub(crate) fn new() -> Self {
        Self { clock: Clock::start(), by_reason: Default::default() }
    }

    /// Counts a refusal, and calls `line` to log it unless one with this reason was logged within the second. `line`
    /// gets the number of omitted lines.
    pub(crate) fn add(&self, reason: Reason, line: impl FnOnce(u64)) {
        let (count, rarely) = &self.by_reason[reason as usize];
        // Relaxed: a statistic that orders nothing.
        count.fetch_add(1, Ordering::Relaxed);
        rarely.lock().unwrap_or_else(PoisonError::into_inner).log(self.clock.now(), line);
    }

    /// The number of refusals so far.
    pub(crate) fn count(&self, reason: Reason) -> u64 {
        self.by_reason[reason as usize].0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_is_counted_and_each_reason_has_its_lines() {
        let refusals = Refusals::new();
        let mut lines = Vec::new();
        for reason in [Reason::Export, Reason::Export, Reason::Protocol, Reason::Export] {
            refusals.add(reason, |before| lines.push((reason, before)));
        }
        assert_eq!(lines, [(Reason::Export, 0), (Reason::Protocol, 0)]);
        let counts = Reason::ALL.map(|reason| refusals.count(reason));
        assert_eq!(counts, [0, 0, 3, 0, 0, 0, 1]);
    }
}
