//! The connections of a worker: their places, the order in which they get its time, and their deadlines.
//!
//! A connection with little to do is served when its socket has an event. One that had its whole turn, or has more to
//! send than a turn takes, is greedy: it waits in a line behind the others, and the line as a whole gets the bytes of
//! one turn before the worker looks at its sockets again. So a small request waits for one portion of a large one,
//! however many clients send large ones. The order uses no clock and no socket.

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
    /// Connections for `finish`: they have output, may continue, or are over.
    pub(super) listed: Vec<Key>,
}

impl Places {
    pub(super) fn iter(&self) -> impl Iterator<Item = &Place> {
        self.places.iter()
    }

    /// The connections that are there.
    pub(super) fn connections(&mut self) -> impl Iterator<Item = &mut Connection> {
        self.places.iter_mut().filter_map(|place| place.connection.as_deref_mut())
    }

    /// The key of the connection in `place`.
    pub(super) fn key(&self, place: u32) -> Key {
        Key { place, generation: self.places[place as usize].generation }
    }

    /// The key of the next connection.
    pub(super) fn free(&mut self) -> Key {
        let free = self.places.iter().position(|place| place.connection.is_none());
        let place = free.unwrap_or_else(|| {
            self.places.push(Place::default());
            self.places.len() - 1
        });
        self.key(place as u32)
    }

    /// The connection of `key`, unless it is gone.
    pub(super) fn get(&mut self, key: Key) -> Option<&mut Connection> {
        let place = self.places.get_mut(key.place as usize)?;
        (place.generation == key.generation).then_some(place.connection.as_deref_mut()?)
    }

    /// Has the connection looked at in this turn.
    pub(super) fn list(&mut self, key: Key) {
        if let Some(connection) = self.get(key)
            && !connection.is_listed
        {
            connection.is_listed = true;
            self.listed.push(key);
        }
    }

    /// Takes the connection out, so that the worker can be used beside it.
    pub(super) fn take_out(&mut self, key: Key) -> Option<Box<Connection>> {
        let place = &mut self.places[key.place as usize];
        if place.generation == key.generation { place.connection.take() } else { None }
    }

    pub(super) fn put_back(&mut self, connection: Box<Connection>) {
        let place = connection.key.place as usize;
        self.places[place].connection = Some(connection);
    }

    /// The connection that was taken out does not come back.
    pub(super) fn retire(&mut self, key: Key) {
        self.places[key.place as usize].generation += 1;
    }
}

/// All connections with an event may spend this many times the bytes of a turn together, so that the bound does not
/// slow many clients with small requests.
const TOGETHER: usize = 2;
/// Beyond that bound each connection may still spend these bytes.
const LITTLE: usize = 16 << 10;

/// The bytes that connections spend in a turn.
#[derive(Debug)]
pub(super) struct Turn {
    /// Counts the turns of the worker, around at the end of the numbers.
    pub(super) number: u32,
    /// Bytes that a connection may spend.
    bytes: usize,
    /// Bytes that all connections have spent; [`Turns`] counts those of connections in line.
    pub(super) spent: usize,
}

impl Turn {
    pub(super) fn new(bytes: usize) -> Self {
        Self { number: 0, bytes, spent: 0 }
    }

    /// The next turn of the worker begins.
    pub(super) fn begin(&mut self) {
        self.number = self.number.wrapping_add(1);
        self.spent = 0;
    }

    /// Returns whether the connection has spent its bytes. Its other requests wait for the next turn.
    pub(super) fn is_over_for(&self, connection: &Connection) -> bool {
        connection.begun_in(self.number) >= self.bytes
    }

    /// Returns whether the connection, or all together, have spent so much that `bytes` more have to wait for the
    /// connection's turn in the line.
    pub(super) fn must_wait(&self, connection: &Connection, bytes: u64) -> bool {
        let is_little = connection.begun_in(self.number) as u64 + bytes <= LITTLE as u64;
        let is_spent = self.spent >= TOGETHER * self.bytes;
        is_spent && !is_little || self.is_over_for(connection)
    }

    /// Bytes of a request are copied, or given to a disk.
    pub(super) fn spend(&mut self, connection: &mut Connection, bytes: usize) {
        self.spent += bytes;
        connection.spend(self.number, bytes);
    }

    /// The connection waits in the line for its next bytes.
    pub(super) fn use_up(&self, connection: &mut Connection) {
        connection.spend(self.number, self.bytes);
    }
}

/// The greedy connections, longest wait first.
#[derive(Debug, Default)]
pub(super) struct Turns {
    line: VecDeque<Key>,
    /// Those that are still to be looked at in this turn: connections that join in a turn wait for the next one.
    left: usize,
    /// Bytes that the line may still have in this turn.
    budget: usize,
}

impl Turns {
    /// A turn begins, in which the line gets `bytes`.
    pub(super) fn begin(&mut self, bytes: usize) {
        self.left = self.line.len();
        self.budget = bytes;
    }

    /// Has the connection wait for its next turn behind all others with much to do.
    pub(super) fn line_up(&mut self, connection: &mut Connection) {
        if !connection.is_in_line {
            connection.is_in_line = true;
            self.join(connection.key);
        }
    }

    /// A connection joins at the end. It is in the line once: the caller has its mark.
    fn join(&mut self, key: Key) {
        self.line.push_back(key);
    }

    /// The next connection in this turn, which leaves the line; `None` once the bytes are spent.
    pub(super) fn next(&mut self) -> Option<Key> {
        if self.left == 0 || self.budget == 0 {
            return None;
        }
        self.left -= 1;
        self.line.pop_front()
    }

    /// The connection from [`next`](Self::next) took `bytes`.
    pub(super) fn spend(&mut self, bytes: usize) {
        self.budget = self.budget.saturating_sub(bytes);
    }

    /// No connection waits.
    pub(super) fn is_empty(&self) -> bool {
        self.line.is_empty()
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    fn key(place: u32) -> Key {
        Key { place, generation: 0 }
    }

    /// Places served in a turn of 256 bytes where each connection takes `each`, and joins again if `again`.
    fn turn(turns: &mut Turns, each: usize, again: bool) -> Vec<u32> {
        let mut served = Vec::new();
        turns.begin(256);
        while let Some(next) = turns.next() {
            served.push(next.place);
            turns.spend(each);
            if again {
                turns.join(next);
            }
        }
        served
    }

    /// Regression test: every connection with large requests had a turn of 2 MiB in each turn of the worker, so that a
    /// small request waited for as many of them as there were.
    #[test]
    fn a_turn_ends_after_its_bytes_and_the_next_one_goes_on_there() {
        let mut turns = Turns::default();
        (0..5).for_each(|place| turns.join(key(place)));
        assert_eq!(turn(&mut turns, 256, true), [0]);
        assert_eq!(turn(&mut turns, 128, true), [1, 2]);
        assert_eq!(turn(&mut turns, 200, true), [3, 4]);
        assert_eq!(turn(&mut turns, 1000, true), [0], "the line goes round");
    }

    #[test]
    fn a_connection_that_joins_waits_for_the_next_turn() {
        let mut turns = Turns::default();
        (0..3).for_each(|place| turns.join(key(place)));
        assert_eq!(turn(&mut turns, 0, true), [0, 1, 2], "each at most once");
        assert_eq!(turn(&mut turns, 0, false), [0, 1, 2]);
        assert!(turns.is_empty() && turn(&mut turns, 1, false).is_empty());
    }
}
