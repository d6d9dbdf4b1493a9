//! The connections of a worker: their places, their order of service, and their deadlines.
//!
//! A connection with little to do is served when its socket has an event. A connection that used up its turn, or has
//! much output, is greedy: it waits in a line, and all connections in the line together get the bytes of one turn
//! before the worker polls its sockets again. So a small request waits for one portion of a large one, however many
//! clients send large requests. The order depends on no clock and no socket.

use super::connection::{Connection, Farewell, Phase};
use super::{GRACE, Shared};
use crate::export::Seat;
use crate::flight::Key;
use crate::log::{Rarely, Reason};
use blkmq::{Instant, Nanos};
use rustix::net::{Shutdown, shutdown};
use std::collections::VecDeque;
use std::sync::Arc;

/// A place for a connection.
#[derive(Default)]
pub(super) struct Place {
    generation: u32,
    pub(super) connection: Option<Box<Connection>>,
}

#[derive(Default)]
pub(super) struct Places {
    places: Vec<Place>,
    /// Connections to be settled by `finish`: they have output, may continue, or are over.
    pub(super) listed: Vec<Key>,
}

impl Places {
    pub(super) fn iter(&self) -> impl Iterator<Item = &Place> {
        self.places.iter()
    }

    /// All connections, except one that is taken out.
    pub(super) fn connections(&mut self) -> impl Iterator<Item = &mut Connection> {
        self.places.iter_mut().filter_map(|place| place.connection.as_deref_mut())
    }

    /// The key of the connection in `place`.
    pub(super) fn key(&self, place: u32) -> Key {
        Key { place, generation: self.places[place as usize].generation }
    }

    /// The key for a new connection, at a free place. O(places).
    pub(super) fn free(&mut self) -> Key {
        let free = self.places.iter().position(|place| place.connection.is_none());
        let place = free.unwrap_or_else(|| {
            self.places.push(Place::default());
            self.places.len() - 1
        });
        self.key(place as u32)
    }

    /// The connection of `key`; `None` if it has ended or is taken out.
    pub(super) fn get(&mut self, key: Key) -> Option<&mut Connection> {
        let place = self.places.get_mut(key.place as usize)?;
        (place.generation == key.generation).then_some(place.connection.as_deref_mut()?)
    }

    /// Lists the connection, to be settled in this turn.
    pub(super) fn list(&mut self, key: Key) {
        if let Some(connection) = self.get(key)
            && !connection.is_listed
        {
            connection.is_listed = true;
            self.listed.push(key);
        }
    }

    /// Takes the connection out, so that the worker can be borrowed beside it.
    pub(super) fn take_out(&mut self, key: Key) -> Option<Box<Connection>> {
        let place = &mut self.places[key.place as usize];
        if place.generation == key.generation { place.connection.take() } else { None }
    }

    pub(super) fn put_back(&mut self, connection: Box<Connection>) {
        let place = connection.key.place as usize;
        self.places[place].connection = Some(connection);
    }

    /// Invalidates the key of a connection that was taken out and has ended.
    pub(super) fn retire(&mut self, key: Key) {
        self.places[key.place as usize].generation += 1;
    }
}

/// The limit on all connections with an event together, in multiples of the bytes of a turn. More than one, so that it
/// does not slow many clients with small requests.
const TOGETHER: usize = 2;
/// The bytes that each connection may still spend beyond that limit.
const LITTLE: usize = 16 << 10;

/// The bytes that connections spend in a turn.
#[derive(Debug)]
pub(super) struct Turn {
    /// The number of the worker's turn, which wraps around.
    pub(super) number: u32,
    /// The bytes that each connection may spend.
    bytes: usize,
    /// Bytes that all connections have spent; [`Turns`] counts those of connections in line.
    pub(super) spent: usize,
}

impl Turn {
    pub(super) fn new(bytes: usize) -> Self {
        Self { number: 0, bytes, spent: 0 }
    }

    pub(super) fn begin(&mut self) {
        self.number = self.number.wrapping_add(1);
        self.spent = 0;
    }

    /// Returns whether the connection has spent its bytes, so that its further requests wait for the next turn.
    pub(super) fn is_over_for(&self, connection: &Connection) -> bool {
        connection.begun_in(self.number) >= self.bytes
    }

    /// Returns whether `bytes` more must wait for the connection's turn in the line, because the connection, or all
    /// connections together, have reached their limit.
    pub(super) fn must_wait(&self, connection: &Connection, bytes: u64) -> bool {
        let is_little = connection.begun_in(self.number) as u64 + bytes <= LITTLE as u64;
        let is_spent = self.spent >= TOGETHER * self.bytes;
        is_spent && !is_little || self.is_over_for(connection)
    }

    /// Charges `bytes` that are copied, or submitted to a disk, for the connection.
    pub(super) fn spend(&mut self, connection: &mut Connection, bytes: usize) {
        self.spent += bytes;
        connection.spend(self.number, bytes);
    }

    /// Charges a whole turn, so that the connection waits in the line.
    pub(super) fn use_up(&self, connection: &mut Connection) {
        connection.spend(self.number, self.bytes);
    }
}

/// The greedy connections, longest wait first.
#[derive(Debug, Default)]
pub(super) struct Turns {
    line: VecDeque<Key>,
    /// The number of connections still to be served in this turn. Connections that join during a turn wait for the next
    /// one.
    left: usize,
    /// The bytes left for the line in this turn.
    budget: usize,
}

impl Turns {
    /// Begins a turn, in which the line gets `bytes`.
    pub(super) fn begin(&mut self, bytes: usize) {
        self.left = self.line.len();
        self.budget = bytes;
    }

    /// Adds the connection to the end of the line, unless it is already in the line.
    pub(super) fn line_up(&mut self, connection: &mut Connection) {
        if !connection.is_in_line {
            connection.is_in_line = true;
            self.line.push_back(connection.key);
        }
    }

    /// Removes the next connection of this turn from the line. Returns `None` once all are served or the bytes are
    /// spent.
    pub(super) fn next(&mut self) -> Option<Key> {
        if self.left == 0 || self.budget == 0 {
            return None;
        }
        self.left -= 1;
        self.line.pop_front()
    }

    /// Charges `bytes` spent by the connection from [`next`](Self::next).
    pub(super) fn spend(&mut self, bytes: usize) {
        self.budget = self.budget.saturating_sub(bytes);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.line.is_empty()
    }
}

/// The maximum time between two checks.
const TICK: Nanos = Nanos::from_millis(1000);

/// Periodic checks of a worker's connections. Each check returns the connections that the worker must settle.
pub(super) struct Deadlines {
    shared: Arc<Shared>,
    /// The time of the next check.
    pub(super) tick: Instant,
    /// The time between two checks.
    every: Nanos,
    /// Limits the log lines about clients that keep the worker waiting.
    slow: Rarely,
}

impl Deadlines {
    pub(super) fn new(shared: Arc<Shared>, now: Instant) -> Self {
        let every = TICK.min(shared.bounds.handshake).min(shared.bounds.silence);
        Self { shared, tick: now + every, every, slow: Rarely::default() }
    }

    /// Returns whether the next check is due, once a second and more often during a drain, and schedules the following
    /// one.
    pub(super) fn are_due(&mut self, now: Instant) -> bool {
        let are_due = now >= self.tick;
        if are_due {
            self.tick = now + self.every;
        }
        are_due
    }

    /// Breaks off connections that have kept the worker waiting for too long.
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

    /// Updates the figures of connections in the list of clients, and ends those that an operator wants to close:
    /// nothing more is read from them, and their requests in flight are answered. A connection whose requests take
    /// longer than a drain may is broken off.
    pub(super) fn end_unwanted(&self, now: Instant, places: &mut Places) -> Vec<Key> {
        let patience = self.shared.bounds.drain;
        let mut ending = Vec::new();
        for connection in places.connections() {
            let (totals, in_flight) = (connection.totals, connection.requests as u64);
            let Some(listed) = &mut connection.listed else { continue };
            if !listed.look(totals, in_flight) {
                continue;
            }
            let is_late = listed.asked.is_some_and(|asked| now - asked >= patience);
            let number = listed.number;
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

    /// Breaks off connections of clients that the present rules, which a reload may have changed, do not admit.
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

    /// During a drain, ends connections with nothing in flight; those that have agreed on an export only from `from`
    /// on.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn key(place: u32) -> Key {
        Key { place, generation: 0 }
    }

    /// The places served in a turn of 256 bytes, in which each connection spends `each`, and joins again if `again`.
    fn turn(turns: &mut Turns, each: usize, again: bool) -> Vec<u32> {
        let mut served = Vec::new();
        turns.begin(256);
        while let Some(next) = turns.next() {
            served.push(next.place);
            turns.spend(each);
            if again {
                turns.line.push_back(next);
            }
        }
        served
    }

    /// Regression test: every connection with large requests had a turn of 2 MiB in each turn of the worker, so that a
    /// small request waited for all of them.
    #[test]
    fn a_turn_ends_after_its_bytes_and_the_next_one_goes_on_there() {
        let mut turns = Turns::default();
        (0..5).for_each(|place| turns.line.push_back(key(place)));
        assert_eq!(turn(&mut turns, 256, true), [0]);
        assert_eq!(turn(&mut turns, 128, true), [1, 2]);
        assert_eq!(turn(&mut turns, 200, true), [3, 4]);
        assert_eq!(turn(&mut turns, 1000, true), [0], "the line goes round");
    }

    #[test]
    fn a_connection_that_joins_waits_for_the_next_turn() {
        let mut turns = Turns::default();
        (0..3).for_each(|place| turns.line.push_back(key(place)));
        assert_eq!(turn(&mut turns, 0, true), [0, 1, 2], "each at most once");
        assert_eq!(turn(&mut turns, 0, false), [0, 1, 2]);
        assert!(turns.is_empty() && turn(&mut turns, 1, false).is_empty());
    }
}
