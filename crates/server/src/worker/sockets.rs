//! The sockets of a worker: bytes arrive, first of the handshake, then requests and payloads; completions become
//! replies, and replies are sent.

use super::connection::{Connection, Farewell, Payload, Phase, Totals};
use super::serve::Ended;
use super::{CONNECTIONS, Worker};
use crate::flight::Key;
use crate::stream::Sent;
use blkmq::Nanos;
use rustix::event::epoll;
use rustix::event::epoll::EventFlags;
use std::io::{self, ErrorKind, IoSliceMut};

/// Reads of one connection in a turn. With more, a client that never stops would keep the others waiting.
const READS: u32 = 4;

/// Bytes of output that are much.
const MUCH: usize = 64 << 10;

/// Bytes that a read takes behind a payload if the client's last write was large: most of the next payload is then read
/// into its own buffer, and not copied there. A header has 32 bytes.
const PEEK: usize = 4096;

impl Worker {
    /// The socket of the connection in `place` has an event.
    pub(super) fn hear(&mut self, place: u32, flags: EventFlags) {
        let key = self.connections.key(place);
        if flags.contains(EventFlags::HUP)
            && let Some(mut connection) = self.connections.take_out(key)
        {
            connection.cut();
            self.put_back(connection);
        }
        if flags.contains(EventFlags::OUT) {
            self.send_in_order(key);
        }
        if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            self.read_in_order(key);
        }
    }

    /// Sends a little output immediately, and much output in the connection's turn.
    fn send_in_order(&mut self, key: Key) {
        let Some(connection) = self.connections.get(key) else { return };
        if connection.output.waiting() < MUCH {
            self.connections.list(key);
        } else {
            self.turns.line_up(connection);
        }
    }

    /// Reads immediately for a client with little to do, later for other clients.
    fn read_in_order(&mut self, key: Key) {
        let bounds = self.shared.bounds;
        let Some(connection) = self.connections.get(key) else { return };
        let is_new = matches!(connection.phase, Phase::Handshake { .. });
        let is_greedy = connection.is_in_line || connection.is_greedy(&bounds);
        if is_greedy && !connection.is_over {
            self.turns.line_up(connection);
        }
        match (is_new, is_greedy) {
            (true, _) => self.newcomers.push(key),
            (false, true) => {}
            (false, false) => self.read(key),
        }
    }

    /// Gives the connections in line their turns, as many as there are bytes for.
    pub(super) fn serve_line(&mut self) {
        self.turns.begin(self.shared.bounds.bytes_per_turn);
        self.requests.turn.spent = 0;
        let turn = self.requests.turn.number;
        while let Some(key) = self.turns.next() {
            let Some(connection) = self.connections.get(key) else { continue };
            connection.is_in_line = false;
            // Not greedy any more, if it has nothing to read.
            connection.begun = (turn, 0);
            let sends = connection.output.waiting();
            self.read(key);
            let began = self.connections.get(key).map_or(0, |connection| connection.begun_in(turn));
            self.turns.spend(began + sends.min(self.shared.bounds.bytes_per_turn));
        }
    }

    /// Reads and parses as much as there is, within bounds.
    pub(super) fn read(&mut self, key: Key) {
        let Some(mut connection) = self.connections.take_out(key) else { return };
        // Requests of an earlier turn come first; behind them there may be no room to read.
        self.parse_rest(&mut connection);
        for _ in 0..READS {
            let is_its_turn = !self.requests.turn.is_over_for(&connection);
            let may_read = self.may_read(&connection) && is_its_turn;
            if connection.is_over || !may_read || !self.read_once(&mut connection) {
                break;
            }
        }
        self.put_back(connection);
        self.connections.list(key);
    }

    fn may_read(&self, connection: &Connection) -> bool {
        connection.has_room(&self.shared.bounds) && !connection.is_crowded && !self.hands_over
    }

    /// Reads once, and parses. True if there may be more to read.
    fn read_once(&mut self, connection: &mut Connection) -> bool {
        let mut input = std::mem::take(&mut self.input);
        let rest = std::mem::take(&mut connection.rest);
        let have = rest.len();
        input[..have].copy_from_slice(&rest);
        let room = input.len() - have;
        let room = if connection.writes_much { room.min(PEEK) } else { room };
        let read = read_into(connection, &mut input[have..have + room]);
        let more = match read {
            Ok(Arrived { direct, behind, all }) => {
                connection.moved = self.clock.now();
                connection.earned += direct;
                if connection.takes_much(self.requests.buffers.portion()) {
                    self.requests.turn.spend(connection, direct + behind);
                }
                let bytes = &input[..have + behind];
                let parsed = self.parse(connection, bytes);
                // Most of the time nothing is left, and the room of the earlier rest is kept for the next one.
                connection.rest = rest;
                connection.keep(&bytes[parsed..]);
                all && !connection.is_over
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                connection.rest = rest;
                error.kind() == ErrorKind::Interrupted
            }
            Err(error) => {
                // The end of the stream is the usual end of some clients, at any place. A client that still listens
                // gets the replies to its requests.
                tracing::debug!("a connection ended: {error}");
                connection.is_over = true;
                connection.rest = Vec::new();
                self.admission.tell_of_tls(connection, &error);
                if error.kind() != ErrorKind::UnexpectedEof || connection.is_cut {
                    connection.break_off();
                }
                false
            }
        };
        self.input = input;
        more
    }

    /// Parses the bytes that wait, after room was made for their requests.
    fn parse_rest(&mut self, connection: &mut Connection) {
        let is_its_turn = !connection.is_in_line && !self.requests.turn.is_over_for(connection);
        if is_its_turn {
            self.requests.go_on(connection);
        }
        let may_parse = is_its_turn && connection.has_room(&self.shared.bounds);
        if connection.rest.is_empty() || connection.is_over || !may_parse {
            return;
        }
        let rest = std::mem::take(&mut connection.rest);
        let parsed = self.parse(connection, &rest);
        if parsed > 0 {
            // The client could not continue before.
            connection.moved = self.clock.now();
        }
        connection.keep(&rest[parsed..]);
    }

    /// Parses `bytes`; returns how many of them are done with.
    fn parse(&mut self, connection: &mut Connection, bytes: &[u8]) -> usize {
        let mut at = 0;
        if matches!(connection.phase, Phase::Handshake { .. }) {
            at = self.admission.shake_hands(connection, bytes);
            if matches!(connection.phase, Phase::Transmission(_)) {
                // A new client is taken for one that wants much, until it has shown otherwise: its requests wait in the
                // line.
                self.requests.turn.use_up(connection);
            }
        }
        if matches!(connection.phase, Phase::Transmission(_)) {
            at = if self.hands_over {
                // The client sends its requests again, to the server that follows.
                bytes.len()
            } else {
                at + self.requests.take_from(connection, &bytes[at..])
            };
        }
        if connection.is_over { bytes.len() } else { at }
    }
}

/// The result of a read.
struct Arrived {
    /// Bytes of the payload that is being filled.
    direct: usize,
    /// Bytes behind it, or all of them.
    behind: usize,
    /// The read took as much as it could hold, so there may be more.
    all: bool,
}

/// Reads the rest of a payload into its buffer, and the bytes behind it into `buffer`.
fn read_into(connection: &mut Connection, buffer: &mut [u8]) -> io::Result<Arrived> {
    let room = buffer.len();
    let Connection { stream, phase, .. } = connection;
    if let Phase::Transmission(transmission) = phase
        && let Payload::Filling { arriving, .. } = &mut transmission.payload
    {
        let gap = arriving.gap();
        let len = gap.len();
        let read = stream.read(&mut [IoSliceMut::new(gap), IoSliceMut::new(buffer)])?;
        let direct = read.min(len);
        arriving.arrived(direct);
        if read == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        return Ok(Arrived { direct, behind: read - direct, all: read == len + room });
    }
    let read = stream.read(&mut [IoSliceMut::new(buffer)])?;
    if read == 0 && room > 0 {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(Arrived { direct: 0, behind: read, all: read == room })
}

/// The time that a client over TCP has to take the last replies and to close its half of a connection that the server
/// ends.
const FAREWELL: Nanos = Nanos::from_millis(2000);

impl Worker {
    /// Flushes the plugs, takes completions, and looks at every connection on the list, until there is nothing left.
    pub(super) fn finish(&mut self) {
        loop {
            self.requests.reap();
            if self.requests.ended.is_empty() && self.connections.listed.is_empty() {
                return;
            }
            let mut ended = std::mem::take(&mut self.requests.ended);
            ended.drain(..).for_each(|io| self.end(io));
            // `end` may have found I/Os without credit, which end immediately.
            ended.append(&mut self.requests.ended);
            self.requests.ended = ended;
            self.feed_starved();
            if self.requests.bytes < self.shared.bounds.bytes_per_worker {
                let crowded = std::mem::take(&mut self.crowded);
                crowded.into_iter().for_each(|key| self.connections.list(key));
            }
            let mut listed = std::mem::take(&mut self.connections.listed);
            listed.drain(..).for_each(|key| self.settle(key));
            listed.append(&mut self.connections.listed);
            self.connections.listed = listed;
        }
    }

    fn end(&mut self, io: Ended) {
        let key = self.requests.connection_of(&io);
        let Some(mut connection) = self.connections.take_out(key) else { return };
        self.requests.end(&mut connection, io);
        self.put_back(connection);
        self.connections.list(key);
    }

    /// Pushes the I/Os that found no credit again, oldest first, until one finds none.
    fn feed_starved(&mut self) {
        for key in std::mem::take(&mut self.requests.starved) {
            if let Some(connection) = self.connections.get(key)
                && let Some((cookie, io)) = connection.held.take()
            {
                self.requests.push(connection, cookie, io);
            }
            self.connections.list(key);
        }
    }

    /// Sends the connection's output, parses the input that had to wait, and closes the connection if it is over.
    pub(super) fn settle(&mut self, key: Key) {
        let Some(mut connection) = self.connections.take_out(key) else { return };
        connection.is_listed = false;
        self.parse_rest(&mut connection);
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
        self.requests.give_up(&mut connection);
        if connection.is_finished() && !self.waits_for_client(&mut connection) {
            return self.close(connection);
        }
        self.watch_for(&mut connection);
        let goes_on = made_room && connection.may_begin(&self.shared.bounds);
        self.put_back(connection);
        if goes_on {
            // No event will come for requests that have arrived and had to wait for this room.
            self.connections.list(key);
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
    fn watch_for(&mut self, connection: &mut Connection) {
        let mut wanted = EventFlags::empty();
        let is_parting = matches!(connection.farewell, Farewell::Said(_));
        if is_parting || !connection.is_over && self.may_read(connection) {
            wanted |= EventFlags::IN;
        } else if !connection.is_over && connection.is_crowded {
            self.crowded.push(connection.key);
        }
        if connection.has_output() && !connection.is_paused {
            wanted |= EventFlags::OUT;
        }
        let is_over = self.requests.turn.is_over_for(connection);
        let waits = is_over && connection.may_begin(&self.shared.bounds);
        let waits = waits || !connection.steps.is_empty() && connection.held.is_none();
        let has_more = wanted.contains(EventFlags::IN) && connection.stream.has_more();
        if waits || has_more || connection.is_paused {
            self.turns.line_up(connection);
        }
        if let Err(error) = self.watch(connection, wanted) {
            tracing::warn!("a connection cannot be watched and is closed: {error}");
            connection.break_off();
        }
    }

    /// Has epoll watch for `wanted`. For nothing, it does not watch at all: the end of a connection is an event that
    /// cannot be left out and that stays, so that the worker would not sleep until the requests of a client that is
    /// gone are finished.
    fn watch(&self, connection: &mut Connection, wanted: EventFlags) -> io::Result<()> {
        let watched = std::mem::replace(&mut connection.watched, wanted);
        let data = epoll::EventData::new_u64(CONNECTIONS + u64::from(connection.key.place));
        match (watched.is_empty(), wanted.is_empty()) {
            _ if watched == wanted => {}
            (_, true) => epoll::delete(&self.sleeper, &connection.stream)?,
            (true, false) => epoll::add(&self.sleeper, &connection.stream, data, wanted)?,
            (false, false) => epoll::modify(&self.sleeper, &connection.stream, data, wanted)?,
        }
        Ok(())
    }

    fn close(&mut self, connection: Box<Connection>) {
        self.requests.bytes -= connection.counted;
        if let Some(export) = connection.export() {
            let Totals { requests, read, written } = connection.totals;
            let (peer, identity) = (connection.guest.name(), connection.identity.to_string());
            tracing::info!(peer, identity, export, requests, read, written, "a connection ends");
        }
        // Closing the descriptor ends its watch.
        let key = connection.key;
        drop(connection);
        self.connections.retire(key);
    }

    /// Puts the connection back, and counts its waiting bytes.
    pub(super) fn put_back(&mut self, mut connection: Box<Connection>) {
        let waiting = connection.waiting();
        self.requests.bytes = self.requests.bytes - connection.counted + waiting;
        connection.counted = waiting;
        self.connections.put_back(connection);
    }
}

/// Returns whether the client of a connection has closed its socket. It may have said DISC before, behind requests that
/// are to be carried out; the bytes that it sent are still there.
fn is_gone(connection: &Connection, error: &io::Error) -> bool {
    let is_closed = matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset);
    is_closed && matches!(connection.phase, Phase::Transmission(_))
}
