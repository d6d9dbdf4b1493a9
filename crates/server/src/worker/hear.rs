//! Bytes arrive: the handshake, then requests and payloads.

use super::Worker;
use super::connection::{Connection, Payload, Phase};
use crate::flight::Key;
use rustix::event::epoll::EventFlags;
use std::io::{ErrorKind, IoSliceMut};

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

    pub(super) fn may_read(&self, connection: &Connection) -> bool {
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
    pub(super) fn parse_rest(&mut self, connection: &mut Connection) {
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
fn read_into(connection: &mut Connection, buffer: &mut [u8]) -> std::io::Result<Arrived> {
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
