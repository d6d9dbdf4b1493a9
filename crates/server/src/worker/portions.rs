//! Long requests: a portion, or a step, in each turn of their connections.

use super::connection::{Connection, Phase};
use super::serve::{OVERHEAD, Requests, buffer_to_read};
use crate::flight::{Cookie, Flight, Work};
use crate::long::{self, Long, Steps};
use blkmq::{AlignedBuf, Io, IoError, SECTOR_SIZE};
use blkmq_nbd::ReplyTo;

impl Requests {
    /// Begins a long request with as many portions as fit into the turn.
    pub(super) fn begin_long(&mut self, connection: &mut Connection, to: ReplyTo, long: Long) {
        let bytes = OVERHEAD + long.length() as usize;
        self.turn.spend(connection, OVERHEAD);
        let at = long.start();
        let flight = Flight { connection: connection.key, to, work: Work::Long(long), at, bytes };
        connection.long = Some(self.add(connection, flight));
        self.go_on(connection);
    }

    /// Begins a request that covers its range in steps.
    pub(super) fn begin_steps(
        &mut self,
        connection: &mut Connection,
        to: ReplyTo,
        mut steps: Steps,
    ) {
        let io = steps.begin(self.turn.number, |len| self.buffers.take(len));
        let bytes = OVERHEAD + io.payload.len();
        let flight =
            Flight { connection: connection.key, to, work: Work::Steps(steps), at: 0, bytes };
        let place = self.add(connection, flight);
        self.push_step(connection, place, io);
    }

    /// Begins the next step of the request that has waited longest for it. A turn begins with one step, which leaves
    /// some of it to the requests behind.
    fn step(&mut self, connection: &mut Connection) {
        if connection.held.is_some() || connection.begun_in(self.turn.number) > 0 {
            return;
        }
        let Some(place) = connection.steps.pop_front() else { return };
        let Work::Steps(steps) = &mut self.flights.get_mut(place).work else { return };
        let io = steps.begin(self.turn.number, |len| self.buffers.take(len));
        self.push_step(connection, place, io);
    }

    fn push_step(&mut self, connection: &mut Connection, place: u32, io: Io<AlignedBuf>) {
        let cost = long::step_cost(u64::from(io.sectors) * u64::from(SECTOR_SIZE)) as usize;
        self.turn.spend(connection, OVERHEAD + cost.max(io.payload.len()));
        self.flights.get_mut(place).at = io.sector * u64::from(SECTOR_SIZE);
        self.push(connection, Cookie { place, portion: 0 }, io);
    }

    /// Begins a step, and portions of the long request of the connection while its turn lasts.
    pub(super) fn go_on(&mut self, connection: &mut Connection) {
        self.step(connection);
        while let Some(place) = connection.long
            && connection.may_go_on(&self.shared.bounds)
            && !self.turn.is_over_for(connection)
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
            self.turn.spend(connection, io.payload.len());
            self.push(connection, Cookie { place, portion }, io);
        }
    }

    /// Ends the long request and the steps of a broken connection: no further portion or step begins.
    pub(super) fn give_up(&mut self, connection: &mut Connection) {
        if !matches!(connection.phase, Phase::Broken { .. }) {
            return;
        }
        while let Some(place) = connection.steps.pop_front() {
            let flight = self.flights.remove(place);
            self.forget(connection, &flight);
        }
        let Some(place) = connection.long.take() else { return };
        let Work::Long(long) = &mut self.flights.get_mut(place).work else { return };
        long.stop(Err(IoError::CANCELLED));
        if long.is_over() {
            let flight = self.flights.remove(place);
            self.forget(connection, &flight);
        }
    }

    /// Takes the request out of the counts of the worker and of the connection.
    pub(super) fn forget(&mut self, connection: &mut Connection, flight: &Flight) {
        self.bytes -= flight.bytes;
        connection.requests -= 1;
        connection.bytes -= flight.bytes;
    }
}
