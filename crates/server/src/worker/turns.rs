//! The order in which the connections of a worker get its time.
//!
//! A connection with little to do is served when its socket has an event. One that had its whole turn, or has more to
//! send than a turn takes, is greedy: it waits in a line behind the others, and the line as a whole gets the bytes of
//! one turn before the worker looks at its sockets again. So a small request waits for one portion of a large one, however
//! many clients send large ones. No clock, no socket.

use super::connection::Connection;
use crate::flight::Key;
use std::collections::VecDeque;

/// All connections with an event may spend this many times the bytes of a turn together, so that the bound does not slow
/// many clients with small requests.
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
