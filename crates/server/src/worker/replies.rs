//! I/Os end: the next step of their requests, or the replies.

use super::connection::{Connection, Phase};
use super::serve::{Ended, Requests};
use crate::flight::{Cookie, Flight, Key, Work};
use blkmq::{AlignedBuf, IoError, IoResult};
use blkmq_nbd::ErrorCode;

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

    /// Logs an I/O of the connection that failed. Those that the server gave up itself, and an operation that the device
    /// does not have, are no failures.
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
