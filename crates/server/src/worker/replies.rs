//! I/Os end: the next portion or step of their requests, or the replies. A long request has a portion, or a step, in
//! each turn of its connection.

use super::connection::{Connection, Phase};
use super::serve::{Ended, OVERHEAD, Requests, buffer_to_read};
use crate::flight::{Cookie, Flight, Key, Work};
use crate::long::{self, Long, Steps};
use blkmq::{AlignedBuf, Io, IoError, IoResult, SECTOR_SIZE};
use blkmq_nbd::{ErrorCode, ReplyTo};

/// Requests of a connection that breaks run to their end, and have no reply.
impl Requests {
    /// Flushes the plugs, and takes completions.
    pub(super) fn reap(&mut self) {
        let Self { clients, ended, .. } = self;
        for disk in clients.iter_mut().filter(|disk| disk.has_work()) {
            disk.reap(|cookie, result, payload| ended.push(Ended { cookie, result, payload }));
        }
    }

    /// The connection of an I/O. It stays until its requests have ended.
    pub(super) fn connection_of(&mut self, io: &Ended) -> Key {
        self.flights.get_mut(io.cookie.place).connection
    }

    /// An I/O of the connection has ended: the next step of its request, or the reply.
    pub(super) fn end(&mut self, connection: &mut Connection, io: Ended) {
        let Ended { cookie, mut result, mut payload } = io;
        let Cookie { place, portion } = cookie;
        if result == Err(IoError::NOT_SUPPORTED)
            && let Work::Steps(steps) = &mut self.flights.get_mut(place).work
            && steps.falls_back()
        {
            result = Ok(());
        }
        if let Err(error) = result {
            self.tell_of(connection, cookie, error);
        }
        match &mut self.flights.get_mut(place).work {
            Work::Steps(steps) if result.is_ok() && !steps.is_over() => {
                steps.end(self.turn.number);
                return connection.steps.push_back(place);
            }
            Work::Long(long) => {
                long.end(portion, result, std::mem::take(&mut payload));
                result = long.result();
                if !long.is_over() {
                    return;
                }
            }
            _ => {}
        }
        let flight = self.flights.remove(place);
        self.forget(connection, &flight);
        connection.long = connection.long.filter(|long| *long != place);
        connection.totals.count(&flight, result);
        reply(connection, flight, result, payload);
    }

    /// Logs an I/O of the connection that failed. Those that the server gave up itself, and an operation that the
    /// device does not have, are no failures.
    fn tell_of(&mut self, connection: &Connection, cookie: Cookie, error: IoError) {
        let has_failed = ![IoError::CANCELLED, IoError::NOT_SUPPORTED].contains(&error);
        let Some(export) = connection.seat().filter(|_| has_failed) else { return };
        let flight = self.flights.get_mut(cookie.place);
        let skipped = match &flight.work {
            Work::Long(long) => long.skips(cookie.portion),
            _ => 0,
        };
        let what = (flight.work.name(), flight.at + skipped);
        self.shared.disks[export.disk].failed(&export.info.name, what, error);
    }
}

/// Adds the reply to the output of its connection.
fn reply(connection: &mut Connection, flight: Flight, result: IoResult, payload: AlignedBuf) {
    let Phase::Transmission(transmission) = &connection.phase else { return };
    let (replies, output) = (transmission.replies, &mut connection.output);
    match (result, flight.work) {
        (Err(error), work) => {
            // A read beyond the end was refused before it was submitted.
            let is_read = match work {
                Work::Read(_) => true,
                Work::Long(long) => long.is_read(),
                Work::Write(_) | Work::Plain | Work::Steps(_) => false,
            };
            let code = match ErrorCode::from_linux(error.0.into()) {
                ErrorCode::NoSpace if is_read => ErrorCode::Io,
                // The device's, and not that of the server, for which a client would connect again.
                ErrorCode::Shutdown => ErrorCode::Io,
                code => code,
            };
            output.header(replies.error(flight.to, code));
        }
        (Ok(()), Work::Read(length)) => {
            output.header(replies.read(flight.to, length));
            output.data(payload);
        }
        (Ok(()), Work::Long(long)) if long.is_read() => {
            output.header(replies.read(flight.to, long.length()));
            long.into_payloads().into_iter().for_each(|data| output.data(data));
        }
        (Ok(()), Work::Write(_) | Work::Plain | Work::Steps(_) | Work::Long(_)) => {
            output.header(replies.done(flight.to));
        }
    }
}

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
    fn forget(&mut self, connection: &mut Connection, flight: &Flight) {
        self.bytes -= flight.bytes;
        connection.requests -= 1;
        connection.bytes -= flight.bytes;
    }
}
