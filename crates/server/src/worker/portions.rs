//! Long requests: a portion in each turn of their connections.

use super::Worker;
use super::connection::{Connection, Phase};
use super::serve::{OVERHEAD, buffer_to_read};
use crate::flight::{Cookie, Flight, Key, Work};
use crate::long::Long;
use blkmq::IoError;
use blkmq_nbd::ReplyTo;

impl Worker {
    /// Begins a long request with as many portions as fit into the turn.
    pub(super) fn begin_long(
        &mut self,
        connection: &mut Connection,
        key: Key,
        to: ReplyTo,
        long: Long,
    ) {
        let bytes = OVERHEAD + long.length() as usize;
        self.spend(connection, OVERHEAD);
        let flight = Flight { connection: key, to, work: Work::Long(long), bytes };
        connection.long = Some(self.add(connection, flight));
        self.go_on(connection, key);
    }

    /// Begins portions of the long request of the connection, while its turn lasts.
    pub(super) fn go_on(&mut self, connection: &mut Connection, key: Key) {
        while let Some(place) = connection.long
            && connection.may_go_on(&self.shared.bounds)
            && !self.has_had_its_turn(connection)
        {
            let Self { flights, buffers, .. } = self;
            let Work::Long(long) = &mut flights.get_mut(place).work else { return };
            if !long.has_more() {
                connection.long = None;
                return;
            }
            let (portion, io) = long.begin(|len| buffer_to_read(connection, buffers, len));
            if !long.has_more() {
                connection.long = None;
            }
            self.spend(connection, io.payload.len());
            self.push(connection, key, Cookie { place, portion }, io);
        }
    }

    /// The client is gone: no portion of its long request begins any more.
    pub(super) fn give_up(&mut self, connection: &mut Connection) {
        if !matches!(connection.phase, Phase::Broken { .. }) {
            return;
        }
        let Some(place) = connection.long.take() else { return };
        let Work::Long(long) = &mut self.flights.get_mut(place).work else { return };
        long.stop(Err(IoError::CANCELLED));
        if long.is_over() {
            let flight = self.flights.remove(place);
            self.forget(connection, &flight);
        }
    }

    /// Counts a request no more.
    pub(super) fn forget(&mut self, connection: &mut Connection, flight: &Flight) {
        self.bytes -= flight.bytes;
        connection.requests -= 1;
        connection.bytes -= flight.bytes;
    }
}
