//! Connections come to a worker, and handshakes too many are closed.

use super::connection::{Connection, Phase};
use super::hear::REFUSED;
use super::{CONNECTIONS, Place, Worker};
use crate::flight::Key;
use crate::guest::{Guest, UnderWay, one_too_many};
use crate::inbox::Message;
use crate::refusals::Reason;
use crate::stream::Stream;
use blkmq_nbd::server::Handshake;

impl Worker {
    /// Looks at new connections, and at those in their handshakes, once the others are answered.
    pub(super) fn welcome(&mut self, has_mail: bool) {
        if has_mail {
            self.read_inbox();
        }
        let mut newcomers = std::mem::take(&mut self.newcomers);
        newcomers.drain(..).for_each(|key| self.read(key));
        self.newcomers = newcomers;
        self.finish();
    }

    fn read_inbox(&mut self) {
        for message in self.inbox.take() {
            match message {
                Message::Connection(stream, guest) => self.accept(stream, guest),
                Message::Drain => self.draining = self.draining.or(Some(self.clock.now())),
                Message::HandOver => {
                    self.hands_over = true;
                    self.draining = self.draining.or(Some(self.clock.now()));
                }
                Message::Stop => self.stopped = true,
            }
        }
    }

    /// Returns whether the rules of the server let the client in, or may do so once it has shown a certificate.
    fn may_begin(&self, stream: &Stream, guest: &Guest) -> bool {
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

    fn accept(&mut self, stream: Stream, guest: Guest) {
        if !self.may_begin(&stream, &guest) {
            return;
        }
        self.close_a_handshake();
        let free = self.connections.iter().position(|place| place.connection.is_none());
        let at = free.unwrap_or_else(|| {
            self.connections.push(Place { generation: 0, connection: None });
            self.connections.len() - 1
        });
        if stream.prepare().is_err()
            || self.sleeper.watch(&stream, CONNECTIONS + at as u64).is_err()
        {
            tracing::warn!("a connection could not be watched and is closed");
            return;
        }
        let handshake = Handshake::new(self.shared.handshake);
        let mut greeting = Vec::new();
        handshake.greeting(&mut greeting);
        let generation = self.connections[at].generation;
        let mut connection = Connection::new(stream, guest, handshake, self.clock.now());
        connection.output.bytes(greeting);
        self.connections[at].connection = Some(Box::new(connection));
        self.list(Key { place: at as u32, generation });
    }

    /// Makes room for another handshake.
    fn close_a_handshake(&mut self) {
        let under_way = |(at, place): (u32, &Place)| {
            let connection = place.connection.as_deref()?;
            match connection.phase {
                Phase::Handshake { began, .. } => Some((connection.guest.peer(), began, at)),
                Phase::Transmission(_) | Phase::Broken { .. } => None,
            }
        };
        let all: Vec<UnderWay> = (0..).zip(&self.connections).filter_map(under_way).collect();
        if all.len() < self.shared.handshakes {
            return;
        }
        let Some(at) = one_too_many(all) else { return };
        self.crowds.log(self.clock.now(), |before| {
            tracing::info!(
                before,
                "a handshake too many: the oldest of the peer with the most is closed"
            );
        });
        let place: &mut Place = &mut self.connections[at as usize];
        let key = Key { place: at, generation: place.generation };
        if let Some(connection) = &mut place.connection {
            connection.break_off();
        }
        self.settle(key);
    }
}
