//! Bytes arrive: the handshake, then requests and payloads.

use super::connection::{Connection, Payload, Phase, Transmission};
use super::view::{Missed, View};
use super::{LITTLE, TOGETHER, Worker};
use crate::export::Seat;
use crate::flight::Key;
use crate::refusals::Reason;
use crate::tenants::Tenancy;
use blkmq_nbd::TransmissionFlags;
use blkmq_nbd::server::{Closing, Negotiated, Next, Replies, Requests};
use rustix::event::epoll::EventFlags;
use std::io::{ErrorKind, IoSliceMut};

/// Reads of one connection in a turn. With more, a client that never stops would keep the others waiting.
const READS: u32 = 4;

/// The line about a client that the server has no rule for.
pub(super) const REFUSED: &str = "a client that may not use the server is closed";

/// Bytes of output that are much.
const MUCH: usize = 64 << 10;

/// Bytes that a read takes behind a payload if the client's last write was large: most of the next payload is then read
/// into its own buffer, and not copied there. A header has 32 bytes.
const PEEK: usize = 4096;

impl Worker {
    /// The socket of the connection in `place` has an event.
    pub(super) fn hear(&mut self, place: u32, flags: EventFlags) {
        let key = Key { place, generation: self.connections[place as usize].generation };
        if flags.contains(EventFlags::HUP)
            && let Some(connection) = self.connection(key)
        {
            connection.cut();
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
        match self.take_out(key) {
            Some(mut connection) if connection.output.waiting() >= MUCH => {
                self.join_line(&mut connection, key);
                self.put_back(key, Some(connection));
            }
            taken => {
                self.put_back(key, taken);
                self.list(key);
            }
        }
    }

    /// Reads immediately for a client with little to do, later for other clients.
    fn read_in_order(&mut self, key: Key) {
        let bounds = self.shared.bounds;
        let Some(mut connection) = self.take_out(key) else { return };
        let is_new = matches!(connection.phase, Phase::Handshake { .. });
        let is_greedy = connection.is_in_line || connection.is_greedy(&bounds);
        if is_greedy && !connection.is_over {
            self.join_line(&mut connection, key);
        }
        self.put_back(key, Some(connection));
        match (is_new, is_greedy) {
            (true, _) => self.newcomers.push(key),
            (false, true) => {}
            (false, false) => self.read(key),
        }
    }

    /// Has the connection wait for its next turn behind all others with much to do.
    pub(super) fn join_line(&mut self, connection: &mut Connection, key: Key) {
        if !connection.is_in_line {
            connection.is_in_line = true;
            self.turns.join(key);
        }
    }

    /// Gives the connections in line their turns, as many as there are bytes for.
    pub(super) fn serve_line(&mut self) {
        self.turns.begin(self.shared.bounds.bytes_per_turn);
        self.spent = 0;
        while let Some(key) = self.turns.next() {
            let turn = self.turn;
            let Some(connection) = self.connection(key) else { continue };
            connection.is_in_line = false;
            // Not greedy any more, if it has nothing to read.
            connection.begun = (turn, 0);
            let sends = connection.output.waiting();
            self.read(key);
            let began = self.connection(key).map_or(0, |connection| connection.begun_in(turn));
            self.turns.spend(began + sends.min(self.shared.bounds.bytes_per_turn));
        }
    }

    /// Reads and parses as much as there is, within bounds.
    pub(super) fn read(&mut self, key: Key) {
        let Some(mut connection) = self.take_out(key) else { return };
        // Requests of an earlier turn come first; behind them there may be no room to read.
        self.parse_rest(&mut connection, key);
        for _ in 0..READS {
            let may_read = self.may_read(&connection) && !self.has_had_its_turn(&connection);
            if connection.is_over || !may_read {
                break;
            }
            if !self.read_once(&mut connection, key) {
                break;
            }
        }
        self.put_back(key, Some(connection));
        self.list(key);
    }

    pub(super) fn has_had_its_turn(&self, connection: &Connection) -> bool {
        connection.has_had_its_turn(self.turn, &self.shared.bounds)
    }

    /// Returns whether the connection, or all together, have spent so much that `bytes` more have to wait for the
    /// connection's turn in the line.
    pub(super) fn must_wait(&self, connection: &Connection, bytes: u64) -> bool {
        let is_little = connection.begun_in(self.turn) as u64 + bytes <= LITTLE as u64;
        let is_spent = self.spent >= TOGETHER * self.shared.bounds.bytes_per_turn;
        is_spent && !is_little || self.has_had_its_turn(connection)
    }

    /// Bytes of a request are copied, or given to a disk.
    pub(super) fn spend(&mut self, connection: &mut Connection, bytes: usize) {
        self.spent += bytes;
        connection.spend(self.turn, bytes);
    }

    pub(super) fn may_read(&self, connection: &Connection) -> bool {
        connection.has_room(&self.shared.bounds) && !connection.is_crowded && !self.hands_over
    }

    /// Reads once, and parses. True if there may be more to read.
    fn read_once(&mut self, connection: &mut Connection, key: Key) -> bool {
        let mut input = std::mem::take(&mut self.input);
        let rest = std::mem::take(&mut connection.rest);
        let (buffer, have) = input.with(&rest);
        let room = if connection.writes_much {
            (buffer.len() - have).min(PEEK)
        } else {
            buffer.len() - have
        };
        let read = read_into(connection, &mut buffer[have..have + room]);
        let more = match read {
            Ok(Arrived { direct, behind, all }) => {
                connection.moved = self.clock.now();
                connection.earned += direct;
                if connection.takes_much(self.buffers.portion()) {
                    self.spend(connection, direct + behind);
                }
                let bytes = &buffer[..have + behind];
                let parsed = self.parse(connection, key, bytes);
                // Most of the time nothing is left, and the room of the earlier rest is kept for the next one.
                connection.rest = rest;
                connection.keep(&bytes[parsed..]);
                all && !connection.is_over
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                connection.rest = rest;
                false
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {
                connection.rest = rest;
                true
            }
            Err(error) => {
                // The end of the stream is the usual end of some clients, at any place. A client that still listens
                // gets the replies to its requests.
                tracing::debug!("a connection ended: {error}");
                connection.is_over = true;
                connection.rest = Vec::new();
                self.tell_of_tls(connection, &error);
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
    pub(super) fn parse_rest(&mut self, connection: &mut Connection, key: Key) {
        let is_its_turn = !connection.is_in_line && !self.has_had_its_turn(connection);
        if is_its_turn {
            self.go_on(connection, key);
        }
        let may_parse = is_its_turn && connection.has_room(&self.shared.bounds);
        if connection.rest.is_empty() || connection.is_over || !may_parse {
            return;
        }
        let rest = std::mem::take(&mut connection.rest);
        let parsed = self.parse(connection, key, &rest);
        if parsed > 0 {
            // The client could not continue before.
            connection.moved = self.clock.now();
        }
        connection.keep(&rest[parsed..]);
    }

    /// Parses `bytes`; returns how many of them are done with.
    fn parse(&mut self, connection: &mut Connection, key: Key, bytes: &[u8]) -> usize {
        let mut at = 0;
        if matches!(connection.phase, Phase::Handshake { .. }) {
            at = self.shake_hands(connection, bytes);
        }
        if matches!(connection.phase, Phase::Transmission(_)) {
            at += self.take_requests(connection, key, &bytes[at..]);
        }
        if connection.is_over { bytes.len() } else { at }
    }

    /// A seat at the export called `name`, and a place among those of the client's identity; `None` if there is none of
    /// either, which is logged.
    fn seat(&self, name: &str, connection: &Connection) -> Option<(Seat, Tenancy)> {
        let exports = self.shared.exports.now();
        let bounds = &self.shared.bounds;
        let identity = connection.identity.to_string();
        let has_rules = !self.shared.allow.is_open() || exports.has_rules();
        let most = if has_rules { bounds.connections_per_identity } else { usize::MAX };
        // Gone, or closed to the client, since it was found.
        let export = View::new(&exports, &connection.identity).get(name)?;
        let seat = Seat::take(export, bounds.connections_per_export);
        let tenancy = self.shared.tenants.take(identity.clone(), most);
        let of = match (seat, tenancy) {
            (Some(seat), Some(tenancy)) => return Some((seat, tenancy)),
            (None, _) => "the export",
            (_, None) => "the identity",
        };
        let peer = connection.guest.name();
        self.shared.refusals.add(Reason::TooMany, |before| {
            tracing::warn!(
                before,
                peer,
                identity,
                export = name,
                "a connection too many of {of} is closed"
            );
        });
        None
    }

    /// Logs that the client had no certificate, or no TLS that the server takes.
    fn tell_of_tls(&self, connection: &Connection, error: &std::io::Error) {
        let is_new = matches!(connection.phase, Phase::Handshake { .. });
        if is_new && connection.stream.has_tls() && error.kind() == ErrorKind::InvalidData {
            self.refused(connection, Reason::Tls, &format!("a handshake ended in TLS: {error}"));
        }
    }

    /// Counts and logs that the client is turned away.
    pub(super) fn refused(&self, connection: &Connection, reason: Reason, why: &str) {
        let (peer, identity) = (connection.guest.name(), connection.identity.to_string());
        self.shared.refusals.add(reason, |before| tracing::warn!(before, peer, identity, "{why}"));
    }

    /// Lets a client in, once everything is known of it that will be: a server with TLS waits for the certificate. Returns
    /// false if the rules of the server do not.
    fn admits(&self, connection: &mut Connection) -> bool {
        if connection.is_admitted || self.shared.tls.is_some() && !connection.stream.has_tls() {
            return true;
        }
        connection.identity = connection.stream.identity();
        connection.is_admitted = self.shared.allow.allows(&connection.identity);
        if !connection.is_admitted {
            self.refused(connection, Reason::Server, REFUSED);
        }
        connection.is_admitted
    }

    fn shake_hands(&mut self, connection: &mut Connection, bytes: &[u8]) -> usize {
        if !self.admits(connection) {
            connection.is_over = true;
            return bytes.len();
        }
        let Phase::Handshake { handshake, began } = &mut connection.phase else { return 0 };
        let options = handshake.options_after_list();
        let mut answers = Vec::new();
        let exports = self.shared.exports.now();
        let view = View::new(&exports, &connection.identity);
        let progress = handshake.feed(bytes, &view, &mut answers);
        if handshake.options_after_list() > options {
            // A list may be long, and the way to the client, too; the number of options is bounded.
            *began = self.clock.now();
        }
        let missed = view.missed();
        connection.output.bytes(answers);
        if let Some(missed) = missed {
            self.tell_of_missed(connection, &missed);
        }
        match progress.next {
            Next::NeedMore => {}
            Next::Go(agreed) => self.go(connection, agreed),
            // Bytes behind the option are dropped: an attacker on the way may have put them there.
            Next::StartTls => connection.begins_tls = true,
            Next::Close(Closing::Aborted) => {
                if self.shared.tls.is_some() && !connection.stream.has_tls() {
                    let why = "a handshake ended: the client began no TLS";
                    self.refused(connection, Reason::Tls, why);
                }
                tracing::debug!("{}", Closing::Aborted);
                connection.is_over = true;
            }
            Next::Close(why) => {
                let reason = match why {
                    // The name was logged above.
                    Closing::UnknownExport => None,
                    Closing::ExportNameWithoutTls | Closing::NoRepliesForTls => Some(Reason::Tls),
                    _ => Some(Reason::Protocol),
                };
                if let Some(reason) = reason {
                    self.refused(connection, reason, &format!("a handshake ended: {why}"));
                }
                connection.is_over = true;
            }
        }
        progress.consumed
    }

    /// Counts and logs that a client asked for an export that does not exist for it.
    fn tell_of_missed(&self, connection: &Connection, missed: &Missed) {
        let (peer, identity) = (connection.guest.name(), connection.identity.to_string());
        let export = &missed.shown;
        if missed.exists {
            self.shared.refusals.add(Reason::Export, |before| {
                let why = "a client asked for an export that it may not use";
                tracing::warn!(before, peer, identity, export, "{why}");
            });
        } else {
            self.shared.refusals.add(Reason::Unknown, |before| {
                let why = "a client asked for an unknown export";
                tracing::warn!(before, peer, identity, export, "{why}");
            });
        }
    }

    /// The handshake has agreed on an export.
    fn go(&mut self, connection: &mut Connection, agreed: Negotiated) {
        let Some((export, tenancy)) = self.seat(&agreed.export, connection) else {
            connection.is_over = true;
            return;
        };
        connection.guest.begin();
        connection.tenancy = Some(tenancy);
        let identity = connection.identity.to_string();
        let (clients, peer) = (&self.shared.clients, connection.guest.name());
        connection.listed = Some(clients.list(peer.to_string(), identity, &export.info.name));
        // A new client is taken for one that wants much, until it has shown otherwise: its requests wait in the line.
        connection.spend(self.turn, self.shared.bounds.bytes_per_turn);
        let (peer, tls) = (connection.guest.name(), connection.stream.has_tls());
        let (identity, name) = (connection.identity.to_string(), &export.info.name);
        let read_only = agreed.terms.flags.contains(TransmissionFlags::READ_ONLY);
        tracing::info!(peer, identity, export = name, tls, read_only, "a connection begins");
        let style = agreed.terms.style;
        connection.phase = Phase::Transmission(Box::new(Transmission {
            export,
            terms: agreed.terms,
            requests: Requests::new(style, &self.shared.handshake.limits),
            replies: Replies::new(style),
            contexts: agreed.contexts,
            payload: Payload::None,
        }));
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
    let filling = match phase {
        Phase::Transmission(transmission) => match &mut transmission.payload {
            Payload::Filling { arriving, .. } => Some(arriving),
            Payload::None | Payload::Dropping { .. } => None,
        },
        Phase::Handshake { .. } | Phase::Broken { .. } => None,
    };
    let read = match filling {
        None => {
            let read = stream.read(&mut [IoSliceMut::new(buffer)])?;
            Arrived { direct: 0, behind: read, all: read == room }
        }
        Some(arriving) => {
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
    };
    if read.behind == 0 && room > 0 { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(read) }
}
