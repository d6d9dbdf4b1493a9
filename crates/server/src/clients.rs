//! [`Clients`]: a list of the connections that have agreed on an export, the virtual machines and the block devices of
//! this machine, with their identities and figures; and the means to close them.
//!
//! A worker updates the figures of its connections once a second, when it reads the clock. So they cost requests
//! nothing, and are up to a second old; a connection that is to be closed notices within a second. The thread of a
//! virtual machine or a block device does this in each turn.

use blkmq::{Clock, Instant};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A connection that has agreed on an export. Figures are up to a second old.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ClientState {
    /// The number of the connection, which is never reused.
    pub number: u64,
    /// The name of its export.
    pub export: String,
    /// The rule of `allow` that identifies its client best: `cn:gold`, `uid:1001`, `net:10.0.0.7`.
    pub identity: String,
    /// The peer: an address, a process or a block device.
    pub peer: String,
    /// Seconds since the connection agreed on the export.
    pub seconds: u64,
    /// Requests in flight.
    pub in_flight: u64,
    /// The number of completed requests.
    pub requests: u64,
    /// The number of bytes read.
    pub read_bytes: u64,
    /// The number of bytes written.
    pub written_bytes: u64,
}

/// The connections of a server. A mutex, locked when a connection begins and ends, and by control.
#[derive(Debug)]
pub(crate) struct Clients {
    clock: Clock,
    all: Mutex<All>,
}

#[derive(Debug, Default)]
struct All {
    /// The number of the next connection.
    next: u64,
    by_number: BTreeMap<u64, Arc<Client>>,
}

/// A connection. Figures and the request to close it are independent relaxed words: they order nothing.
#[derive(Debug)]
struct Client {
    peer: String,
    identity: String,
    export: String,
    began: Instant,
    requests: AtomicU64,
    read: AtomicU64,
    written: AtomicU64,
    in_flight: AtomicU64,
    shall_end: AtomicBool,
    /// Whether it can only end together with its export.
    stays: bool,
}

/// The figures of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) requests: u64,
    pub(crate) read: u64,
    pub(crate) written: u64,
    pub(crate) in_flight: u64,
}

/// A connection's entry in the list, removed on drop.
#[derive(Debug)]
pub(crate) struct Listed {
    clients: Arc<Clients>,
    number: u64,
    client: Arc<Client>,
    /// The time at which it was asked to close.
    pub(crate) asked: Option<Instant>,
}

/// The connections to close.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Which<'a> {
    Number(u64),
    Export(&'a str),
    Identity(&'a str),
}

impl Clients {
    pub(crate) fn new() -> Arc<Self> {
        let all = Mutex::new(All { next: 1, ..All::default() });
        Arc::new(Self { clock: Clock::start(), all })
    }

    fn all(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection that has agreed on `export`.
    pub(crate) fn list(self: &Arc<Self>, peer: String, identity: String, export: &str) -> Listed {
        self.enter(peer, identity, export, false)
    }

    /// Adds a block device of this machine. Its identity is its path, since its users are unknown.
    pub(crate) fn list_device(self: &Arc<Self>, path: String, export: &str) -> Listed {
        self.enter(path.clone(), path, export, true)
    }

    fn enter(
        self: &Arc<Self>,
        peer: String,
        identity: String,
        export: &str,
        stays: bool,
    ) -> Listed {
        let client = Arc::new(Client {
            peer,
            identity,
            export: export.to_owned(),
            began: self.clock.now(),
            requests: AtomicU64::new(0),
            read: AtomicU64::new(0),
            written: AtomicU64::new(0),
            in_flight: AtomicU64::new(0),
            shall_end: AtomicBool::new(false),
            stays,
        });
        let mut all = self.all();
        let number = all.next;
        all.next += 1;
        all.by_number.insert(number, Arc::clone(&client));
        drop(all);
        Listed { clients: Arc::clone(self), number, client, asked: None }
    }

    /// All connections in the order of their beginnings. O(connections).
    pub(crate) fn states(&self) -> Vec<ClientState> {
        let now = self.clock.now();
        let state = |(number, client): (&u64, &Arc<Client>)| ClientState {
            number: *number,
            export: client.export.clone(),
            identity: client.identity.clone(),
            peer: client.peer.clone(),
            seconds: (now - client.began).0 / 1_000_000_000,
            in_flight: client.in_flight.load(Ordering::Relaxed),
            requests: client.requests.load(Ordering::Relaxed),
            read_bytes: client.read.load(Ordering::Relaxed),
            written_bytes: client.written.load(Ordering::Relaxed),
        };
        self.all().by_number.iter().map(state).collect()
    }

    /// Returns whether this is the number of a block device, which ends with its export.
    pub(crate) fn stays(&self, number: u64) -> bool {
        self.all().by_number.get(&number).is_some_and(|client| client.stays)
    }

    /// Asks connections to close, and returns their numbers. Block devices are skipped. O(connections).
    pub(crate) fn end(&self, which: Which<'_>) -> Vec<u64> {
        let is_meant = |number: u64, client: &Client| {
            let is_it = match which {
                Which::Number(wanted) => number == wanted,
                Which::Export(name) => client.export == name,
                Which::Identity(name) => client.identity == name,
            };
            is_it && !client.stays
        };
        let all = self.all();
        let meant = all.by_number.iter().filter(|(number, client)| is_meant(**number, client));
        let ask = |(number, client): (&u64, &Arc<Client>)| {
            client.shall_end.store(true, Ordering::Relaxed);
            *number
        };
        meant.map(ask).collect()
    }
}

impl Listed {
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Updates the figures. Returns whether the connection must close.
    pub(crate) fn look(&self, figures: Figures) -> bool {
        let client = &self.client;
        client.requests.store(figures.requests, Ordering::Relaxed);
        client.read.store(figures.read, Ordering::Relaxed);
        client.written.store(figures.written, Ordering::Relaxed);
        client.in_flight.store(figures.in_flight, Ordering::Relaxed);
        client.shall_end.load(Ordering::Relaxed)
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.clients.all().by_number.remove(&self.number);
    }
}
