//! [`Deadlines`]: connections that keep a worker waiting for too long, that are to end, or that are idle during a
//! drain.

use super::connection::{Connection, Farewell, Phase};
use super::places::Places;
use super::{GRACE, Shared};
use crate::export::Seat;
use crate::flight::Key;
use crate::log::{Rarely, Reason};
use blkmq::{Instant, Nanos};
use rustix::net::{Shutdown, shutdown};
use std::sync::Arc;

/// The longest time between two looks.
const TICK: Nanos = Nanos::from_millis(1000);

/// Looks at the connections of a worker from time to time. Each look returns those that the worker has to settle.
pub(super) struct Deadlines {
    shared: Arc<Shared>,
    /// The time of the next look.
    pub(super) tick: Instant,
    /// The time between two looks.
    every: Nanos,
    /// Lines about clients that keep the worker waiting.
    slow: Rarely,
}

impl Deadlines {
    pub(super) fn new(shared: Arc<Shared>, now: Instant) -> Self {
        let every = TICK.min(shared.bounds.handshake).min(shared.bounds.silence);
        Self { shared, tick: now + every, every, slow: Rarely::default() }
    }

    /// Returns whether the connections are to be looked at: once a second, and often during a drain.
    pub(super) fn are_due(&mut self, now: Instant) -> bool {
        let are_due = now >= self.tick;
        if are_due {
            self.tick = now + self.every;
        }
        are_due
    }

    /// Breaks off connections that keep the worker waiting for too long.
    pub(super) fn close_slow(&mut self, now: Instant, places: &mut Places) -> Vec<Key> {
        let bounds = self.shared.bounds;
        let mut ending = Vec::new();
        for connection in places.connections() {
            if matches!(connection.farewell, Farewell::Said(until) if until <= now) {
                ending.push(connection.key);
            } else if connection.deadline(&bounds).is_some_and(|at| at <= now) {
                let (peer, export) = (connection.guest.name(), connection.export());
                let identity = connection.identity.to_string();
                self.slow.log(now, |before| {
                    let what = "a client kept the server waiting for too long and is closed";
                    tracing::info!(before, peer, identity, export, "{what}");
                });
                connection.break_off();
                ending.push(connection.key);
            }
        }
        ending
    }

    /// Writes the figures of connections down, and ends those that shall end: nothing more is read of them, and the
    /// requests that they have are answered. One whose requests take longer than a drain is broken off.
    pub(super) fn end_unwanted(&self, now: Instant, places: &mut Places) -> Vec<Key> {
        let patience = self.shared.bounds.drain;
        let mut ending = Vec::new();
        for connection in places.connections() {
            let figures = connection.figures();
            let Some(listed) = &mut connection.listed else { continue };
            if !listed.look(figures) {
                continue;
            }
            let is_late = listed.asked.is_some_and(|asked| now - asked >= patience);
            let number = listed.number();
            let is_first = listed.asked.replace(listed.asked.unwrap_or(now)).is_none();
            let (peer, identity) = (connection.guest.name(), connection.identity.to_string());
            let (export, requests) = (connection.export(), connection.requests);
            if is_late && !matches!(connection.phase, Phase::Broken { .. }) {
                let text = "a connection that was to end is broken off";
                tracing::warn!(number, peer, identity, export, requests, "{text}");
                // Its client need not wait for the device.
                let _ = shutdown(&connection.stream, Shutdown::Both);
                connection.break_off();
            } else if is_first {
                let text = "a connection ends as an operator wants";
                tracing::info!(number, peer, identity, export, requests, "{text}");
                connection.end();
            }
            ending.push(connection.key);
        }
        ending
    }

    /// Breaks off connections of clients that the rules in force, which a reload may have changed, do not let in.
    pub(super) fn close_revoked(&self, places: &mut Places) -> Vec<Key> {
        let shared = &self.shared;
        let is_revoked = |connection: &&mut Connection| {
            let (identity, seat) = (&connection.identity, connection.seat());
            let is_closed =
                |seat: &Seat| !shared.allow.allows(identity) || !seat.allow.allows(identity);
            !connection.is_over && seat.is_some_and(is_closed)
        };
        let close = |connection: &mut Connection| {
            let why = "a client may not use its export any more and is closed";
            connection.refused(&shared.refusals, Reason::Revoked, connection.export(), why);
            connection.break_off();
            connection.key
        };
        places.connections().filter(is_revoked).map(close).collect()
    }

    /// Ends connections that have nothing in flight during a drain; those that ask for something from `from` on.
    pub(super) fn close_idle(
        &mut self,
        now: Instant,
        from: Instant,
        places: &mut Places,
    ) -> Vec<Key> {
        self.tick = self.tick.min(now + GRACE);
        let mut ending = Vec::new();
        for connection in places.connections() {
            let is_idle = connection.requests == 0 && !connection.has_output();
            let asks = matches!(connection.phase, Phase::Transmission(_));
            if connection.is_over || !is_idle || asks && now < from {
                continue;
            }
            if asks {
                connection.end();
            } else {
                connection.break_off();
            }
            ending.push(connection.key);
        }
        ending
    }
}
