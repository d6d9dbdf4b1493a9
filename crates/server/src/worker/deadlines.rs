//! A worker looks at the clock: connections that keep it waiting for too long are closed, and idle ones during a drain.

use super::connection::{Connection, Farewell, Phase};
use super::{GRACE, Worker};
use crate::export::Seat;
use crate::flight::Key;
use crate::refusals::Reason;
use blkmq::Instant;
use rustix::net::{Shutdown, shutdown};
use std::sync::atomic::Ordering;

impl Worker {
    /// Once a second, and often during a drain: closes connections that keep the worker waiting for too long.
    pub(super) fn look_at_the_clock(&mut self) {
        let now = self.clock.now();
        if let Some(since) = self.draining {
            self.close_idle(now, since);
        }
        if now < self.tick {
            return;
        }
        self.tick = now + self.every;
        // A disk that was given another scheduler has its old one until its clients have looked.
        self.clients.iter_mut().for_each(|disk| disk.is_called = true);
        // A sign of life, not an order of anything.
        self.shared.beats[self.number].fetch_add(1, Ordering::Relaxed);
        self.close_revoked();
        self.look_at_the_list(now);
        let bounds = self.shared.bounds;
        for at in 0..self.connections.len() {
            let place = &mut self.connections[at];
            let key = Key { place: at as u32, generation: place.generation };
            let Some(connection) = place.connection.as_deref_mut() else { continue };
            if matches!(connection.farewell, Farewell::Said(until) if until <= now) {
                self.settle(key);
            } else if connection.deadline(&bounds).is_some_and(|at| at <= now) {
                let (peer, export) = (connection.guest.name(), connection.export());
                let identity = connection.identity.to_string();
                self.slow.log(now, |before| {
                    let what = "a client kept the server waiting for too long and is closed";
                    tracing::info!(before, peer, identity, export, "{what}");
                });
                connection.break_off();
                self.settle(key);
            }
        }
    }

    /// Writes the figures of connections down, and ends those that shall end: nothing more is read of them, and the requests
    /// that they have are answered. One whose requests take longer than a drain is broken off.
    fn look_at_the_list(&mut self, now: Instant) {
        let patience = self.shared.bounds.drain;
        let mut ending = Vec::new();
        for (at, place) in (0..).zip(&mut self.connections) {
            let Some(connection) = place.connection.as_deref_mut() else { continue };
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
            ending.push(Key { place: at, generation: place.generation });
        }
        ending.into_iter().for_each(|key| self.settle(key));
    }

    /// Closes connections of clients that the rules in force, which a reload may have changed, do not let in.
    fn close_revoked(&mut self) {
        let shared = &self.shared;
        let is_revoked = |connection: &Connection| {
            let (identity, seat) = (&connection.identity, connection.seat());
            let is_closed =
                |seat: &Seat| !shared.allow.allows(identity) || !seat.allow.allows(identity);
            !connection.is_over && seat.is_some_and(is_closed)
        };
        let mut revoked = Vec::new();
        for (at, place) in (0..).zip(&mut self.connections) {
            let connection = place.connection.as_mut().filter(|connection| is_revoked(connection));
            let Some(connection) = connection else { continue };
            let (peer, identity) = (connection.guest.name(), connection.identity.to_string());
            let export = connection.export();
            shared.refusals.add(Reason::Revoked, |before| {
                let why = "a client may not use its export any more and is closed";
                tracing::warn!(before, peer, identity, export, "{why}");
            });
            connection.break_off();
            revoked.push(Key { place: at, generation: place.generation });
        }
        revoked.into_iter().for_each(|key| self.settle(key));
    }

    /// Returns whether a drain has taken so long that the worker ends, whatever is in flight.
    pub(super) fn is_late(&self) -> bool {
        let bound = self.shared.bounds.drain;
        let is_late = self.draining.is_some_and(|since| self.clock.now() >= since + bound);
        if is_late {
            let requests = self.flights.len();
            let has_one = |place: &&super::Place| place.connection.is_some();
            let connections = self.connections.iter().filter(has_one).count();
            tracing::warn!(requests, connections, "a drain takes too long and is given up");
        }
        is_late
    }

    /// During a drain: closes connections that have nothing in flight.
    fn close_idle(&mut self, now: Instant, since: Instant) {
        self.tick = self.tick.min(now + GRACE);
        for at in 0..self.connections.len() {
            let place = &mut self.connections[at];
            let key = Key { place: at as u32, generation: place.generation };
            let Some(connection) = place.connection.as_deref_mut() else { continue };
            let is_idle = connection.requests == 0 && !connection.has_output();
            let asks = matches!(connection.phase, Phase::Transmission(_));
            let is_due = !asks || self.hands_over || now >= since + GRACE;
            if connection.is_over || !is_idle || !is_due {
                continue;
            }
            if asks {
                connection.end();
            } else {
                connection.break_off();
            }
            self.settle(key);
        }
    }
}
