//! Completions become replies, and replies are sent.

use super::connection::{Connection, Farewell, Phase, Totals};
use super::{CONNECTIONS, Ended, Worker};
use crate::flight::{Cookie, Flight, Key, Work};
use crate::output::Sent;
use blkmq::{AlignedBuf, IoError, IoResult, Nanos};
use blkmq_nbd::ErrorCode;
use rustix::event::epoll::{self, EventFlags};
use std::io::{self, ErrorKind};

/// The time that a client over TCP has to take the last replies and to close its half of a connection that the server ends.
const FAREWELL: Nanos = Nanos::from_millis(2000);

/// Requests of a connection that breaks run to their end, and have no reply.
impl Worker {
    /// Flushes the plugs, takes completions, and looks at every connection on the list, until there is nothing left.
    pub(super) fn finish(&mut self) {
        loop {
            self.reap();
            if self.ended.is_empty() && self.listed.is_empty() {
                return;
            }
            let mut ended = std::mem::take(&mut self.ended);
            ended.drain(..).for_each(|io| self.end(io));
            // `end` may have found I/Os without credit, which end immediately.
            ended.append(&mut self.ended);
            self.ended = ended;
            self.feed_starved();
            if self.bytes < self.shared.bounds.bytes_per_worker {
                let crowded = std::mem::take(&mut self.crowded);
                crowded.into_iter().for_each(|key| self.list(key));
            }
            let mut listed = std::mem::take(&mut self.listed);
            listed.drain(..).for_each(|key| self.settle(key));
            listed.append(&mut self.listed);
            self.listed = listed;
        }
    }

    fn reap(&mut self) {
        let Self { clients, ended, .. } = self;
        for disk in clients.iter_mut().filter(|disk| disk.has_work()) {
            disk.reap(|cookie, result, payload| ended.push(Ended { cookie, result, payload }));
        }
    }

    /// An I/O has ended: the next step of its request, or the reply.
    fn end(&mut self, io: Ended) {
        let Ended { cookie, mut result, mut payload } = io;
        let Cookie { place, portion } = cookie;
        let flight = self.flights.get_mut(place);
        let key = flight.connection;
        if result == Err(IoError::NOT_SUPPORTED)
            && let Work::Steps(steps) = &mut flight.work
            && steps.falls_back()
        {
            result = Ok(());
        }
        // A connection stays until its requests have ended.
        let Some(mut connection) = self.take_out(key) else { return };
        if let Err(error) = result {
            self.tell_of(&connection, cookie, error);
        }
        let mut goes_on = false;
        match &mut self.flights.get_mut(place).work {
            Work::Steps(steps) if result.is_ok() && !steps.is_over() => {
                steps.end(self.turn);
                connection.steps.push_back(place);
                goes_on = true;
            }
            Work::Long(long) => {
                long.end(portion, result, std::mem::take(&mut payload));
                result = long.result();
                goes_on = !long.is_over();
            }
            _ => {}
        }
        if !goes_on {
            let flight = self.flights.remove(place);
            self.forget(&mut connection, &flight);
            connection.long = connection.long.filter(|long| *long != place);
            connection.totals.count(&flight, result);
            reply(&mut connection, flight, result, payload);
        }
        self.put_back(key, Some(connection));
        self.list(key);
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

    /// Pushes the I/Os that found no credit again, oldest first, until one finds none.
    fn feed_starved(&mut self) {
        let starved = std::mem::take(&mut self.starved);
        for key in starved {
            let mut taken = self.take_out(key);
            if let Some(connection) = &mut taken
                && let Some((cookie, io)) = connection.held.take()
            {
                self.push(connection, key, cookie, io);
            }
            self.put_back(key, taken);
            self.list(key);
        }
    }

    /// Sends the connection's output, parses the input that had to wait, and closes the connection if it is over.
    pub(super) fn settle(&mut self, key: Key) {
        let Some(mut connection) = self.take_out(key) else { return };
        connection.is_listed = false;
        self.parse_rest(&mut connection, key);
        let (waiting, sent_by_tls) = (connection.output.waiting(), connection.stream.sent_by_tls());
        let mut made_room = false;
        let most = self.shared.bounds.bytes_per_turn;
        if connection.is_cut {
            connection.cut();
        }
        match connection.output.send(&mut connection.stream, most) {
            Ok(sent) => {
                connection.is_paused = sent == Sent::Paused;
                made_room = connection.output.waiting() < waiting;
                // The last bytes may all be inside of TLS.
                if made_room || connection.stream.sent_by_tls() > sent_by_tls {
                    connection.moved = self.clock.now();
                    if connection.deaf.take().is_some() {
                        connection.stream.widen();
                    }
                }
                connection.earned += waiting - connection.output.waiting();
                if sent == Sent::Blocked {
                    connection.deaf = connection.deaf.or_else(|| Some(self.clock.now()));
                }
            }
            Err(error) if is_gone(&connection, &error) => {
                tracing::debug!("a client takes no replies any more: {error}");
                connection.cut();
            }
            Err(error) => {
                tracing::debug!("a connection broke: {error}");
                connection.break_off();
            }
        }
        self.begin_tls(&mut connection);
        self.give_up(&mut connection);
        if connection.is_finished() && !self.waits_for_client(&mut connection) {
            return self.close(key, connection);
        }
        self.watch_for(&mut connection, key);
        let bounds = &self.shared.bounds;
        let may_begin = !connection.rest.is_empty() && connection.has_room(bounds);
        let may_go_on = connection.long.is_some() && connection.may_go_on(bounds);
        let goes_on = made_room && (may_begin || may_go_on);
        self.put_back(key, Some(connection));
        if goes_on {
            // No event will come for requests that have arrived and had to wait for this room.
            self.list(key);
        }
    }

    /// Tells the client of a finished connection that nothing more comes, if the server ends it. Returns whether the
    /// client has still to close its half.
    fn waits_for_client(&self, connection: &mut Connection) -> bool {
        let now = self.clock.now();
        if connection.farewell == Farewell::Due {
            let is_needed = connection.stream.is_reset_when_closed();
            if !is_needed || connection.stream.close_half().is_err() {
                return false;
            }
            connection.farewell = Farewell::Said(now + FAREWELL);
        }
        let Farewell::Said(until) = connection.farewell else { return false };
        now < until && connection.stream.drop_input().is_ok()
    }

    /// Begins TLS, if it is wanted and the answer to that is sent.
    fn begin_tls(&self, connection: &mut Connection) {
        if !connection.begins_tls || connection.output.waiting() > 0 {
            return;
        }
        connection.begins_tls = false;
        let tls = self.shared.tls.as_ref().expect("it is offered only where it is configured");
        if let Err(error) = connection.stream.start_tls(tls) {
            tracing::error!("TLS cannot begin: {error}");
            connection.break_off();
        }
    }

    /// Has epoll watch for the events that the connection can use.
    fn watch_for(&mut self, connection: &mut Connection, key: Key) {
        let mut wanted = EventFlags::empty();
        let is_parting = matches!(connection.farewell, Farewell::Said(_));
        if is_parting || !connection.is_over && self.may_read(connection) {
            wanted |= EventFlags::IN;
        } else if !connection.is_over && connection.is_crowded {
            self.crowded.push(key);
        }
        if connection.has_output() && !connection.is_paused {
            wanted |= EventFlags::OUT;
        }
        let bounds = &self.shared.bounds;
        let may_begin = !connection.rest.is_empty() && !connection.is_over;
        let may_begin = may_begin && connection.has_room(bounds);
        let may_go_on = connection.long.is_some() && connection.may_go_on(bounds);
        let waits = (may_begin || may_go_on) && self.has_had_its_turn(connection);
        let waits = waits || !connection.steps.is_empty() && connection.held.is_none();
        let has_more = wanted.contains(EventFlags::IN) && connection.stream.has_more();
        if waits || has_more || connection.is_paused {
            self.join_line(connection, key);
        }
        if let Err(error) = self.watch(connection, key, wanted) {
            tracing::warn!("a connection cannot be watched and is closed: {error}");
            connection.break_off();
        }
    }

    /// Has epoll watch for `wanted`. For nothing, it does not watch at all: the end of a connection is an event that
    /// cannot be left out and that stays, so that the worker would not sleep until the requests of a client that is gone
    /// are finished.
    fn watch(&self, connection: &mut Connection, key: Key, wanted: EventFlags) -> io::Result<()> {
        let watched = std::mem::replace(&mut connection.watched, wanted);
        let data = epoll::EventData::new_u64(CONNECTIONS + u64::from(key.place));
        match (watched.is_empty(), wanted.is_empty()) {
            _ if watched == wanted => {}
            (_, true) => epoll::delete(&self.sleeper, &connection.stream)?,
            (true, false) => epoll::add(&self.sleeper, &connection.stream, data, wanted)?,
            (false, false) => epoll::modify(&self.sleeper, &connection.stream, data, wanted)?,
        }
        Ok(())
    }

    fn close(&mut self, key: Key, connection: Box<Connection>) {
        self.bytes -= connection.counted;
        if let Some(export) = connection.export() {
            let Totals { requests, read, written } = connection.totals;
            let (peer, identity) = (connection.guest.name(), connection.identity.to_string());
            tracing::info!(peer, identity, export, requests, read, written, "a connection ends");
        }
        // Closing the descriptor ends its watch.
        drop(connection);
        self.connections[key.place as usize].generation += 1;
    }

    /// Takes the connection out, so that the rest of the worker can be used beside it.
    pub(super) fn take_out(&mut self, key: Key) -> Option<Box<Connection>> {
        let place = &mut self.connections[key.place as usize];
        if place.generation == key.generation { place.connection.take() } else { None }
    }

    /// Puts the connection back, and counts its waiting bytes.
    pub(super) fn put_back(&mut self, key: Key, mut taken: Option<Box<Connection>>) {
        if let Some(connection) = &mut taken {
            let waiting = connection.waiting();
            self.bytes = self.bytes - connection.counted + waiting;
            connection.counted = waiting;
            self.connections[key.place as usize].connection = taken;
        }
    }
}

/// Returns whether the client of a connection has closed its socket. It may have said DISC before, behind requests that are
/// to be carried out; the bytes that it sent are still there.
fn is_gone(connection: &Connection, error: &io::Error) -> bool {
    let is_closed = matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset);
    is_closed && matches!(connection.phase, Phase::Transmission(_))
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
