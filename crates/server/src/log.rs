//! Lines of the log that a client or a device could cause by the thousand: at most one a second of a kind, with the
//! number of omitted lines as `before=`.
//!
//! Clients that were refused ([`Refusals`]) and the failed I/Os of a device ([`Failures`]) have a line for each kind.

use crate::locked;
use blkmq::{Clock, Instant, IoError, Nanos};
use std::fmt;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// The minimum time between two lines.
const EVERY: Nanos = Nanos::from_millis(1000);

/// A kind of line, written at most once a second.
#[derive(Debug, Default)]
pub(crate) struct Rarely {
    /// The earliest time of the next line.
    next: Option<Instant>,
    /// The number of lines omitted since the last one.
    left_out: u64,
}

impl Rarely {
    /// Writes a line, or counts it as omitted. `line` is called with the number of lines omitted before it.
    pub(crate) fn log(&mut self, now: Instant, line: impl FnOnce(u64)) {
        if self.next.is_some_and(|next| now < next) {
            self.left_out += 1;
            return;
        }
        line(std::mem::take(&mut self.left_out));
        self.next = Some(now + EVERY);
    }
}

/// The reason why a client was refused.
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
    /// All reasons, with their labels in metrics.
    pub(crate) const ALL: [(Self, &'static str); 7] = [
        (Self::Tls, "tls"),
        (Self::Server, "server-allow"),
        (Self::Export, "export-allow"),
        (Self::Revoked, "revoked"),
        (Self::Unknown, "unknown-export"),
        (Self::TooMany, "too-many"),
        (Self::Protocol, "protocol"),
    ];
}

/// The refusals of a server, by reason. Workers share it, and access it only when a client is refused.
///
/// A client decides how often it is refused, so each reason is logged at most once a second, with the number of omitted
/// lines as `before=`. The counts are complete.
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
        locked(rarely).log(self.clock.now(), line);
    }

    /// The number of refusals so far.
    pub(crate) fn count(&self, reason: Reason) -> u64 {
        self.by_reason[reason as usize].0.load(Ordering::Relaxed)
    }
}

/// The failures of a device. Workers share it, and lock it only when an I/O has failed.
///
/// Clients get every failure; the operator of the device is notified here, at most once a second.
#[derive(Debug, Default)]
pub(crate) struct Failures(Mutex<Rarely>);

/// An I/O that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Failure<'a> {
    pub(crate) device: &'a str,
    pub(crate) export: &'a str,
    pub(crate) operation: &'static str,
    /// The offset on the device in bytes.
    pub(crate) offset: u64,
    pub(crate) error: IoError,
}

impl Failures {
    /// Logs the failure, or counts it for the next line.
    pub(crate) fn log(&self, now: Instant, failure: &Failure<'_>) {
        let mut rarely = locked(&self.0);
        let Failure { device, export, operation, offset, error } = *failure;
        rarely.log(now, |before| {
            tracing::error!(
                before,
                device,
                export,
                operation,
                offset,
                errno = error.0,
                "{failure}"
            );
        });
    }
}

impl fmt::Display for Failure<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = io::Error::from_raw_os_error(self.error.0.into());
        write!(f, "the device failed an I/O: {why}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_second_are_counted_by_the_next_one() {
        let mut lines = Vec::new();
        let mut kind = Rarely::default();
        for millisecond in [0, 1, 999, 1000, 1001, 5000] {
            let now = Instant::from_nanos(millisecond * 1_000_000);
            kind.log(now, |left_out| lines.push((millisecond, left_out)));
        }
        assert_eq!(lines, [(0, 0), (1000, 2), (5000, 1)]);
    }

    #[test]
    fn every_refusal_is_counted_and_each_reason_has_its_lines() {
        let refusals = Refusals::new();
        let mut lines = Vec::new();
        for reason in [Reason::Export, Reason::Export, Reason::Protocol, Reason::Export] {
            refusals.add(reason, |before| lines.push((reason, before)));
        }
        assert_eq!(lines, [(Reason::Export, 0), (Reason::Protocol, 0)]);
        let counts = Reason::ALL.map(|(reason, _)| refusals.count(reason));
        assert_eq!(counts, [0, 0, 3, 0, 0, 0, 1]);
    }

    #[test]
    fn a_failure_says_why_in_the_words_of_the_system() {
        let failure = Failure {
            device: "disk",
            export: "gold",
            operation: "read",
            offset: 4096,
            error: IoError::NO_SPACE,
        };
        let text = failure.to_string();
        assert!(text.contains("No space left") && text.contains("os error 28"), "{text}");
    }
}
