//! [`Admission`]: admits or refuses the clients of a worker, up to the end of their handshakes.

use super::Shared;
use super::connection::{Connection, Payload, Phase, Transmission};
use super::places::Places;
use crate::allow::Identity;
use crate::clients::{Guest, Tenancy, UnderWay, one_too_many};
use crate::export::{Seat, Served, Table};
use crate::flight::Key;
use crate::log::{Rarely, Reason};
use crate::stream::Stream;
use blkmq::Clock;
use blkmq_nbd::server::{Closing, Handshake, Negotiated, Next, Replies, Requests};
use blkmq_nbd::{ExportInfo, Exports, TransmissionFlags};
use std::cell::RefCell;
use std::io::{Error, ErrorKind};
use std::sync::Arc;

/// The log line about a client that no rule of the server admits.
const REFUSED: &str = "a client that may not use the server is closed";

pub(super) struct Admission {
    shared: Arc<Shared>,
    clock: Clock,
    /// Limits the log lines about excess handshakes.
    crowds: Rarely,
}

impl Admission {
    pub(super) fn new(shared: Arc<Shared>, clock: Clock) -> Self {
        Self { shared, clock, crowds: Rarely::default() }
    }

    /// Returns whether the rules of the server admit the client, or may admit it once it has shown a certificate.
    pub(super) fn may_begin(&self, stream: &Stream, guest: &Guest) -> bool {
        let (allow, identity) = (&self.shared.allow, stream.identity());
        let is_certified = self.shared.tls.is_some();
        let may = if is_certified { allow.may_allow(&identity) } else { allow.allows(&identity) };
        if !may {
            let (peer, identity) = (guest.name(), identity.to_string());
            self.shared.refusals.add(Reason::Server, |before| {
                tracing::warn!(before, peer, identity, "{REFUSED}");
            });
        }
        may
    }

    /// Creates a connection, with the greeting of the server as its output.
    pub(super) fn begin(&self, key: Key, stream: Stream, guest: Guest) -> Connection {
        let handshake = Handshake::new(self.shared.handshake);
        let mut greeting = Vec::new();
        handshake.greeting(&mut greeting);
        let mut connection = Connection::new(key, stream, guest, handshake, self.clock.now());
        connection.output.bytes(greeting);
        connection
    }

    /// Makes room for another handshake: if there are too many, breaks one off and returns its key.
    pub(super) fn close_one_too_many(&mut self, places: &mut Places) -> Option<Key> {
        let under_way = |connection: &mut Connection| match connection.phase {
            Phase::Handshake { began, .. } => {
                Some((connection.guest.peer, began, connection.key.place))
            }
            Phase::Transmission(_) | Phase::Broken { .. } => None,
        };
        let all: Vec<UnderWay> = places.connections().filter_map(under_way).collect();
        if all.len() < self.shared.handshakes {
            return None;
        }
        let key = places.key(one_too_many(all)?);
        self.crowds.log(self.clock.now(), |before| {
            tracing::info!(
                before,
                "a handshake too many: the oldest of the peer with the most is closed"
            );
        });
        if let Some(connection) = places.get(key) {
            connection.break_off();
        }
        Some(key)
    }

    /// Checks a client by the rules of the server, once its identity is complete: a server with TLS waits for the
    /// certificate. Returns false if the client is refused.
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

    /// Feeds bytes to the handshake. Returns the number of bytes consumed.
    pub(super) fn shake_hands(&self, connection: &mut Connection, bytes: &[u8]) -> usize {
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
            // Restarts the timeout: a list may be long, and the network slow. The number of options is limited.
            *began = self.clock.now();
        }
        let missed = view.missed.into_inner();
        connection.output.bytes(answers);
        if let Some(Missed { shown, exists }) = missed {
            let (reason, why) = if exists {
                (Reason::Export, "a client asked for an export that it may not use")
            } else {
                (Reason::Unknown, "a client asked for an unknown export")
            };
            connection.refused(&self.shared.refusals, reason, Some(&shown), why);
        }
        match progress.next {
            Next::NeedMore => {}
            Next::Go(agreed) => self.go(connection, agreed),
            // Bytes after the option are dropped: an attacker in the network may have injected them.
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

    fn refused(&self, connection: &Connection, reason: Reason, why: &str) {
        connection.refused(&self.shared.refusals, reason, None, why);
    }

    /// Begins transmission, after the handshake has agreed on an export.
    fn go(&self, connection: &mut Connection, agreed: Negotiated) {
        let Some((export, tenancy)) = self.seat(&agreed.export, connection) else {
            connection.is_over = true;
            return;
        };
        connection.guest.begin();
        connection.tenancy = Some(tenancy);
        let (peer, identity) = (connection.guest.name(), connection.identity.to_string());
        let (name, tls) = (&export.info.name, connection.stream.has_tls());
        connection.listed = Some(self.shared.clients.list(peer.clone(), identity.clone(), name));
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

    /// A seat at the export `name`, and a place in the count of the client's identity. `None` if a limit is reached,
    /// which is logged, or the export is gone.
    fn seat(&self, name: &str, connection: &Connection) -> Option<(Seat, Tenancy)> {
        let exports = self.shared.exports.now();
        let bounds = &self.shared.bounds;
        let has_rules = !self.shared.allow.is_open() || exports.has_rules();
        let most = if has_rules { bounds.connections_per_identity } else { usize::MAX };
        // It may have been removed, or closed to the client, since it was found.
        let export = View::new(&exports, &connection.identity).get(name)?;
        let seat = Seat::take(export, bounds.connections_per_export);
        let tenancy = self.shared.tenants.take(connection.identity.to_string(), most);
        let of = match (seat, tenancy) {
            (Some(seat), Some(tenancy)) => return Some((seat, tenancy)),
            (None, _) => "the export",
            (_, None) => "the identity",
        };
        let why = format!("a connection too many of {of} is closed");
        connection.refused(&self.shared.refusals, Reason::TooMany, Some(name), &why);
        None
    }

    /// Logs a failed TLS handshake: the client has no accepted certificate, or no TLS that the server supports.
    pub(super) fn tell_of_tls(&self, connection: &Connection, error: &Error) {
        let is_new = matches!(connection.phase, Phase::Handshake { .. });
        if is_new && connection.stream.has_tls() && error.kind() == ErrorKind::InvalidData {
            self.refused(connection, Reason::Tls, &format!("a handshake ended in TLS: {error}"));
        }
    }
}

/// The maximum number of characters of a name in the log.
const SHOWN: usize = 64;

/// The exports of the server as one client sees them.
///
/// An export that a client may not use looks exactly like one that does not exist: it is not listed, and the refusal is
/// the same. Only the log tells them apart.
struct View<'a> {
    exports: &'a Table,
    identity: &'a Identity,
    missed: RefCell<Option<Missed>>,
}

/// A name that a client requested without success.
struct Missed {
    /// Its beginning, with special characters escaped: a name may have 4096 bytes of any kind.
    shown: String,
    /// Whether such an export exists, for other clients.
    exists: bool,
}

impl<'a> View<'a> {
    pub(super) fn new(exports: &'a Table, identity: &'a Identity) -> Self {
        Self { exports, identity, missed: RefCell::default() }
    }

    fn may(&self, export: &Served) -> bool {
        export.allow.allows(self.identity)
    }

    /// The export of this name. The empty name also stands for the only export that the client may use.
    pub(super) fn get(&self, name: &str) -> Option<&'a Arc<Served>> {
        self.exports.get_of(name, |export| self.may(export))
    }
}

impl Exports for View<'_> {
    fn find(&self, name: &str) -> Option<ExportInfo> {
        let found = self.get(name);
        if found.is_none() {
            let shown = name.chars().take(SHOWN).collect::<String>().escape_debug().to_string();
            let exists = self.exports.get(name).is_some();
            self.missed.replace(Some(Missed { shown, exists }));
        }
        found.map(|export| export.info())
    }

    fn list(&self, each: &mut dyn FnMut(&str, &str)) {
        for export in self.exports.all().filter(|export| self.may(export)) {
            each(&export.info.name, &export.info.description);
        }
    }
}
