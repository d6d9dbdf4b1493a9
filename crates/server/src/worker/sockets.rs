//! The sockets of a worker: receives the handshake, then requests and payloads, sends replies, and closes connections.

use super::connection::{Connection, Farewell, Payload, Phase};
use super::serve::Ended;
use super::{CONNECTIONS, Worker};
use crate::clients::Totals;
use crate::flight::Key;
use crate::stream::Sent;
use blkmq::Nanos;
use rustix::event::epoll;
use rustix::event::epoll::EventFlags;
use std::io::{self, ErrorKind, IoSliceMut};

/// The maximum number of reads of a connection in a turn, so that a client that never stops does not keep the others
/// waiting.
const READS: u32 = 4;

/// The length in bytes of an output that waits for the connection's turn in the line.
const MUCH: usize = 64 << 10;

/// The maximum number of bytes read beyond a payload if the client's last write was large: most of the next payload is
/// then received into its own buffer, not copied there. A header has at most 32 bytes.
const PEEK: usize = 4096;

impl Worker {
    /// Handles an event of the connection in `place`.
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

    /// Reads immediately for a client with little to do. Greedy connections are read in the line, handshakes after all
    /// others.
    fn read_in_order(&mut self, key: Key) {
        let bounds = self.shared.bounds;
        let Some(connection) = self.connections.get(key) else { return };
        let is_new = matches!(connection.phase, Phase::Handshake { .. });
        // A connection that used up its last turn waits in line for the next one.
        let is_greedy = connection.is_in_line || connection.begun.1 >= bounds.bytes_per_turn;
        if is_greedy && !connection.is_over {
            self.turns.line_up(connection);
        }
        match (is_new, is_greedy) {
            (true, _) => self.newcomers.push(key),
            (false, true) => {}
            (false, false) => self.read(key),
        }
    }

    /// Serves the connections in the line until the bytes of the turn are spent.
    pub(super) fn serve_line(&mut self) {
        self.turns.begin(self.shared.bounds.bytes_per_turn);
        self.requests.turn.spent = 0;
        let turn = self.requests.turn.number;
        while let Some(key) = self.turns.next() {
            let Some(connection) = self.connections.get(key) else { continue };
            connection.is_in_line = false;
            // Without further input it is not greedy.
            connection.begun = (turn, 0);
            let sends = connection.output.waiting();
            self.read(key);
            let began = self.connections.get(key).map_or(0, |connection| connection.begun_in(turn));
            self.turns.spend(began + sends.min(self.shared.bounds.bytes_per_turn));
        }
    }

    /// Reads and parses the available input, within limits.
    pub(super) fn read(&mut self, key: Key) {
        let Some(mut connection) = self.connections.take_out(key) else { return };
        // Requests received in an earlier turn come first, and may leave no room to read.
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

    /// Reads once, and parses. Returns whether there may be more to read.
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
                // Usually nothing is left. The allocation of the previous rest is reused.
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
                // Some clients close the stream at any point. A client that only shut down its writing side gets the
                // replies to its requests.
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

    /// Parses waiting input, if there is room for its requests.
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
            // The wait was not caused by the client.
            connection.moved = self.clock.now();
        }
        connection.keep(&rest[parsed..]);
    }

    /// Parses `bytes`. Returns the number of bytes consumed.
    fn parse(&mut self, connection: &mut Connection, bytes: &[u8]) -> usize {
        let mut at = 0;
        if matches!(connection.phase, Phase::Handshake { .. }) {
            at = self.admission.shake_hands(connection, bytes);
            if matches!(connection.phase, Phase::Transmission(_)) {
                // A new client counts as greedy until its first requests show otherwise: they wait in the line.
                self.requests.turn.use_up(connection);
            }
        }
        if matches!(connection.phase, Phase::Transmission(_)) {
            at = if self.hands_over {
                // The client sends its requests again, to the next server.
                bytes.len()
            } else {
                at + self.requests.take_from(connection, &bytes[at..])
            };
        }
        if connection.is_over { bytes.len() } else { at }
    }
}

struct Arrived {
    /// Bytes of the payload being received.
    direct: usize,
    /// Bytes behind it, or all bytes if no payload is being received.
    behind: usize,
    /// Whether the read filled its buffers, so that there may be more.
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

/// How long a TCP client may take to receive the last replies and shut down its side, if the server ends the
/// connection.
const FAREWELL: Nanos = Nanos::from_millis(2000);

impl Worker {
    /// Flushes the plugs, reaps completions, and settles every listed connection, until nothing is left.
    pub(super) fn finish(&mut self) {
        loop {
            self.requests.reap();
            if self.requests.ended.is_empty() && self.connections.listed.is_empty() {
                return;
            }
            let mut ended = std::mem::take(&mut self.requests.ended);
            ended.drain(..).for_each(|io| self.end(io));
            // Keeps I/Os that were refused in the meantime, and the allocation.
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

    /// Pushes the I/Os that got no credit again, oldest first.
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

    /// Parses the connection's waiting input, sends its output, and closes it if it is finished.
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
                // The last bytes may all be in the buffer of TLS.
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
            // No event announces received requests that have waited for this room.
            self.connections.list(key);
        }
    }

    /// Shuts down the writing side of a finished connection, if the server ends it. Returns whether the client has yet
    /// to shut down its own.
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

    /// Begins TLS, if the client has requested it and the reply to that is sent.
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

    /// Makes epoll watch for the events that the connection can handle.
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

    /// Makes epoll watch for `wanted`. If it is empty, the socket is removed from the epoll set: EPOLLHUP cannot be
    /// masked and persists, so the worker could not sleep until the requests of a disconnected client have finished.
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
        // Closing the descriptor removes it from the epoll set.
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

/// Returns whether the client of a connection has closed its socket. Its input can still be read, and may contain
/// requests to be performed before a DISC.
fn is_gone(connection: &Connection, error: &io::Error) -> bool {
    let is_closed = matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset);
    is_closed && matches!(connection.phase, Phase::Transmission(_))
}
