//! The clients of a server: the limits on greedy ones (`docs/spec/nbd.md`, section 6), the counts of connections that
//! the limits apply to, by peer ([`Guests`]), by identity ([`Tenants`]) and by second ([`Rates`]); and [`Clients`], a
//! list of the connections that have agreed on an export, the virtual machines and the block devices of this machine,
//! with their identities and figures, and the means to close them.
//!
//! A worker updates the figures of its connections once a second, when it reads the clock. So they cost requests
//! nothing, and are up to a second old; a connection that is to be closed notices within a second. The thread of a
//! virtual machine or a block device does this in each turn.

use crate::locked;
use blkmq::{Clock, Instant, Nanos};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Limits on connections and on requests in flight. [`Bounds::default`] has those of the specification. Limits on the
/// wire format are in `blkmq_nbd`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Concurrent connections. Further ones are accepted and closed.
    pub connections: usize,
    /// Concurrent connections to one export.
    pub connections_per_export: usize,
    /// Concurrent connections to exports from one identity (a certificate name, a user of this machine, an address), if
    /// rules restrict the clients of the server or of an export. Without rules it is not enforced.
    pub connections_per_identity: usize,
    /// Concurrent connections from one IP address. Sockets in the file system are not counted.
    pub connections_per_peer: usize,
    /// Concurrent handshakes, divided among the workers. Beyond this, the oldest handshake of the peer with the most is
    /// closed. A peer is an address, or a process of this machine.
    pub handshakes: usize,
    /// Connections per second from one peer, an address or a process of this machine, on average and as a burst.
    /// Further ones are closed by the accepting thread at no cost to the workers.
    pub connections_per_second: u32,
    /// The maximum duration of a handshake, including TLS.
    pub handshake: Nanos,
    /// Requests in flight on a connection. At the limit, its socket is not read.
    pub requests: usize,
    /// Bytes in flight for a connection: payloads, and replies that it has not taken. At the limit, its socket is not
    /// read. The limit of a new connection is 4 MiB plus the bytes that it has transferred so far.
    pub bytes: usize,
    /// Bytes in flight on all connections of a worker. Beyond this, a connection has at most 2 MiB, so that a
    /// connection that takes its replies makes progress beside others that do not.
    pub bytes_per_worker: usize,
    /// Bytes of replies that a client has not taken. Beyond this, its next requests wait. While its socket is full,
    /// they already wait beyond `bytes_per_turn` in flight, so that a client that takes no replies costs its worker no
    /// more copies.
    pub replies: usize,
    /// Bytes of new requests, and of replies sent, for a connection before its worker serves the others. All
    /// connections with an event share twice this number in a turn, and get 16 KiB each beyond it; those that want
    /// more, and those that have just begun, share this number in each further turn. Longer reads and writes are split
    /// into portions of this size, at most 256 KiB, and ranges are trimmed or zeroed by one step in each turn. If the
    /// device completes immediately, like memory, the worker copies the bytes: the default takes about a tenth of a
    /// millisecond.
    pub bytes_per_turn: usize,
    /// The maximum time without a byte in the middle of a request, or while the client does not take waiting replies.
    pub silence: Nanos,
    /// The maximum duration of a drain. Clients that have not taken their replies by then, and requests that the device
    /// has not completed, are given up. Less than the ten seconds after which `docker stop` kills.
    pub drain: Nanos,
    /// Block devices of this machine that can be added to each disk while the server runs, in addition to the initial
    /// ones. A disk is [started](crate::Disk::start) for as many threads more, which costs memory only.
    pub devices: u16,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            connections: 256,
            connections_per_export: 64,
            connections_per_identity: 64,
            connections_per_peer: 32,
            handshakes: 64,
            connections_per_second: 200,
            handshake: Nanos::from_millis(10_000),
            requests: 128,
            bytes: 64 << 20,
            bytes_per_worker: 512 << 20,
            replies: 2 << 20,
            bytes_per_turn: 256 << 10,
            silence: Nanos::from_millis(60_000),
            drain: Nanos::from_millis(8_000),
            devices: 4,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Peer {
    /// An IP address.
    Address(IpAddr),
    /// A process of this machine, by its pid; 0 if it is in another namespace.
    Process(i32),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Process(number) => write!(f, "process {number}"),
        }
    }
}

/// A handshake in progress: its peer, its beginning and the place of its connection.
pub(crate) type UnderWay = (Option<Peer>, Instant, u32);

/// The handshake to close when there is one too many: the oldest of the peer that has the most. So a peer that keeps
/// beginning handshakes closes its own, and not those of others, however slow they are.
pub(crate) fn one_too_many(mut under_way: Vec<UnderWay>) -> Option<u32> {
    under_way.sort_unstable();
    let peers = under_way.chunk_by(|one, next| one.0 == next.0);
    let (_, _, place) = *peers.max_by_key(|handshakes| handshakes.len())?.first()?;
    Some(place)
}

/// The connections of a server. A mutex, locked when a connection begins or ends.
#[derive(Debug)]
pub(crate) struct Guests(Mutex<Counts>);

#[derive(Debug)]
struct Counts {
    total: OfPeer,
    by_peer: BTreeMap<Option<Peer>, OfPeer>,
}

/// The connections of a peer, or all connections.
#[derive(Clone, Debug)]
struct OfPeer {
    connections: usize,
    /// The number of these whose handshake is not over.
    handshakes: usize,
    /// The number of these that each worker has.
    by_worker: Vec<usize>,
}

/// Handshakes beyond the limit that are on their way to workers, which then close others. If there are more, the
/// workers are overloaded.
const WAITING: usize = 32;
/// Handshakes that a peer may have while workers are overloaded. A peer with more is the cause.
const FEW: usize = 8;

/// A counted connection; uncounted on drop.
#[derive(Debug)]
pub(crate) struct Guest {
    guests: Arc<Guests>,
    pub(crate) peer: Option<Peer>,
    pub(crate) worker: usize,
    /// Whether its handshake is over.
    has_begun: bool,
}

impl Guests {
    pub(crate) fn new(workers: usize) -> Self {
        let total = OfPeer::new(workers);
        Self(Mutex::new(Counts { total, by_peer: BTreeMap::new() }))
    }

    pub(crate) fn total(&self) -> usize {
        locked(&self.0).total.connections
    }

    /// Counts a connection from `peer`, and assigns it to the worker with the fewest connections; among equals, to the
    /// one with the fewest of other peers. Returns `None` if a limit is reached, or if this peer overloads the workers
    /// with handshakes.
    pub(crate) fn admit(self: &Arc<Self>, peer: Option<Peer>, bounds: &Bounds) -> Option<Guest> {
        let mut counts = locked(&self.0);
        let workers = counts.total.by_worker.len();
        let none = OfPeer::new(workers);
        let of_peer = counts.by_peer.get(&peer).unwrap_or(&none);
        let is_far = matches!(peer, Some(Peer::Address(_)));
        let are_behind = counts.total.handshakes >= bounds.handshakes + WAITING;
        if counts.total.connections >= bounds.connections
            || is_far && of_peer.connections >= bounds.connections_per_peer
            || are_behind && of_peer.handshakes >= FEW
        {
            return None;
        }
        let all = &counts.total.by_worker;
        let worker = (0..workers).min_by_key(|at| (all[*at], all[*at] - of_peer.by_worker[*at]))?;
        counts.each(peer, |count| {
            count.connections += 1;
            count.handshakes += 1;
            count.by_worker[worker] += 1;
        });
        Some(Guest { guests: Arc::clone(self), peer, worker, has_begun: false })
    }
}

impl OfPeer {
    fn new(workers: usize) -> Self {
        Self { connections: 0, handshakes: 0, by_worker: vec![0; workers] }
    }
}

impl Counts {
    /// Changes the counts of `peer` and of all peers, and forgets a peer without connections.
    fn each(&mut self, peer: Option<Peer>, change: impl Fn(&mut OfPeer)) {
        let workers = self.total.by_worker.len();
        let of_peer = self.by_peer.entry(peer).or_insert_with(|| OfPeer::new(workers));
        change(of_peer);
        if of_peer.connections == 0 {
            self.by_peer.remove(&peer);
        }
        change(&mut self.total);
    }
}

impl Guest {
    /// The name of the peer for the log.
    pub(crate) fn name(&self) -> String {
        self.peer.map_or_else(|| "unknown".to_owned(), |peer| peer.to_string())
    }

    /// Notes the end of its handshake.
    pub(crate) fn begin(&mut self) {
        if !self.has_begun {
            self.has_begun = true;
            locked(&self.guests.0).each(self.peer, |count| count.handshakes -= 1);
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let mut counts = locked(&self.guests.0);
        counts.each(self.peer, |count| {
            count.connections -= 1;
            count.by_worker[self.worker] -= 1;
            count.handshakes -= usize::from(!self.has_begun);
        });
    }
}

/// The connections of each identity that has any. A mutex, locked when a connection begins or ends.
///
/// An identity covers all addresses and processes of a client, so that one tenant of a server with rules cannot use up
/// all connections.
#[derive(Debug, Default)]
pub(crate) struct Tenants(Mutex<BTreeMap<String, usize>>);

/// A counted connection; uncounted on drop.
#[derive(Debug)]
pub(crate) struct Tenancy {
    tenants: Arc<Tenants>,
    identity: String,
}

impl Tenants {
    /// Counts a connection of `identity`, or returns `None` if it has `most` already.
    pub(crate) fn take(self: &Arc<Self>, identity: String, most: usize) -> Option<Tenancy> {
        let mut counts = locked(&self.0);
        let count = counts.get(&identity).copied().unwrap_or(0);
        if count >= most {
            return None;
        }
        counts.insert(identity.clone(), count + 1);
        Some(Tenancy { tenants: Arc::clone(self), identity })
    }

    /// The number of connections of each identity.
    pub(crate) fn all(&self) -> BTreeMap<String, usize> {
        locked(&self.0).clone()
    }
}

impl Drop for Tenancy {
    fn drop(&mut self) {
        let mut counts = locked(&self.tenants.0);
        match counts.get_mut(&self.identity) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                counts.remove(&self.identity);
            }
        }
    }
}

const SECOND: Nanos = Nanos::from_millis(1000);
/// The maximum number of peers with their own bucket. Further peers share one until other buckets are full again.
const PEERS: usize = 1024;

/// Limits how many connections each peer begins per second, by a token bucket for each. No clock: time is an argument.
#[derive(Debug)]
pub(crate) struct Rates {
    /// The capacity of a bucket, and the tokens added per second.
    most: u32,
    buckets: BTreeMap<Option<Peer>, Bucket>,
}

/// A bucket that is not full: the time at which it will be full if no more tokens are taken.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    full: Instant,
}

impl Rates {
    /// Allows `most` connections of a peer per second, on average and as a burst.
    pub(crate) fn new(most: u32) -> Self {
        Self { most: most.max(1), buckets: BTreeMap::new() }
    }

    /// Takes a token of `peer`. Returns false if it has none.
    pub(crate) fn take(&mut self, peer: Option<Peer>, now: Instant) -> bool {
        let peer = if self.has_place(peer, now) { peer } else { None };
        let bucket = self.buckets.entry(peer).or_insert(Bucket { full: now });
        let token = Nanos(SECOND.0 / u64::from(self.most));
        let full = bucket.full.max(now) + token;
        let may = full <= now + SECOND;
        if may {
            bucket.full = full;
        }
        may
    }

    /// Returns whether `peer` has a bucket, or there is room for one. Full buckets are dropped to make room.
    fn has_place(&mut self, peer: Option<Peer>, now: Instant) -> bool {
        if self.buckets.contains_key(&peer) || self.buckets.len() < PEERS {
            return true;
        }
        self.buckets.retain(|_, bucket| bucket.full > now);
        self.buckets.len() < PEERS
    }
}

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

/// Requests of a connection that have ended, and the bytes that they read and wrote.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) requests: u64,
    pub(crate) read: u64,
    pub(crate) written: u64,
}

/// A connection's entry in the list, removed on drop.
#[derive(Debug)]
pub(crate) struct Listed {
    clients: Arc<Clients>,
    pub(crate) number: u64,
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
        let mut all = locked(&self.all);
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
        locked(&self.all).by_number.iter().map(state).collect()
    }

    /// Returns whether this is the number of a block device, which ends with its export.
    pub(crate) fn stays(&self, number: u64) -> bool {
        locked(&self.all).by_number.get(&number).is_some_and(|client| client.stays)
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
        let all = locked(&self.all);
        let meant = all.by_number.iter().filter(|(number, client)| is_meant(**number, client));
        let ask = |(number, client): (&u64, &Arc<Client>)| {
            client.shall_end.store(true, Ordering::Relaxed);
            *number
        };
        meant.map(ask).collect()
    }
}

impl Listed {
    /// Updates the figures. Returns whether the connection must close.
    pub(crate) fn look(&self, totals: Totals, in_flight: u64) -> bool {
        let client = &self.client;
        client.requests.store(totals.requests, Ordering::Relaxed);
        client.read.store(totals.read, Ordering::Relaxed);
        client.written.store(totals.written, Ordering::Relaxed);
        client.in_flight.store(in_flight, Ordering::Relaxed);
        client.shall_end.load(Ordering::Relaxed)
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        locked(&self.clients.all).by_number.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_hold_and_places_come_back() {
        let bounds = Bounds { connections: 3, connections_per_peer: 1, ..Bounds::default() };
        let guests = Arc::new(Guests::new(2));
        let peer = Some(Peer::Address(IpAddr::from([10, 0, 0, 1])));
        let first = guests.admit(peer, &bounds).expect("the first of its peer");
        assert!(guests.admit(peer, &bounds).is_none(), "one per peer");
        let local = Some(Peer::Process(1));
        let second = guests.admit(local, &bounds).expect("local ones are not counted by peer");
        assert_ne!(first.worker, second.worker, "the worker with the fewest");
        let third = guests.admit(local, &bounds).expect("the third");
        assert!(guests.admit(None, &bounds).is_none(), "three in all");
        drop(first);
        assert!(guests.admit(peer, &bounds).is_some(), "its place is free");
        drop((second, third));
        assert_eq!(guests.total(), 0);
        assert!(locked(&guests.0).by_peer.is_empty(), "nothing is left of a peer that is gone");
    }

    /// Regression test: a client that closed one connection and began the next was briefly counted with both, so that
    /// every other connection was assigned to the worker of a client with a permanent one.
    #[test]
    fn of_two_workers_with_as_many_connections_a_peer_gets_its_own() {
        let guests = Arc::new(Guests::new(2));
        let admit = |process| {
            let peer = Some(Peer::Process(process));
            guests.admit(peer, &Bounds::default()).expect("no bound is reached")
        };
        let steady = admit(1);
        let mut last = admit(2);
        for _ in 0..10 {
            let next = admit(2);
            assert_ne!(next.worker, steady.worker);
            last = next;
        }
        let more: Vec<Guest> = (0..6).map(|_| admit(2)).collect();
        let beside = more.iter().filter(|guest| guest.worker == steady.worker).count();
        assert_eq!(beside, 3, "both workers have four");
        drop(last);
    }

    /// Regression test: a flood of connections used up the limit, and other peers were refused.
    #[test]
    fn while_workers_are_behind_the_peer_that_floods_them_waits() {
        let bounds = Bounds { handshakes: 4, ..Bounds::default() };
        let guests = Arc::new(Guests::new(2));
        let (flood, other) = (Some(Peer::Process(1)), Some(Peer::Process(2)));
        let mut flooding: Vec<Guest> =
            std::iter::from_fn(|| guests.admit(flood, &bounds)).collect();
        assert_eq!(flooding.len(), 4 + WAITING);
        let others: Vec<Guest> = std::iter::from_fn(|| guests.admit(other, &bounds)).collect();
        assert_eq!(others.len(), FEW);
        flooding.iter_mut().for_each(Guest::begin);
        flooding.iter_mut().for_each(Guest::begin);
        assert!(guests.admit(flood, &bounds).is_some(), "its connections have begun");
        drop((flooding, others));
        let left = locked(&guests.0);
        assert_eq!((left.total.connections, left.total.handshakes), (0, 0));
    }

    /// Regression test: the oldest handshake of all was closed, so that clients could not connect while another client
    /// began many connections.
    #[test]
    fn a_peer_with_many_handshakes_closes_its_own() {
        let at = Instant::from_nanos;
        let slow = (Some(Peer::Process(7)), at(1), 9);
        let crowd = (0..5).map(|n| (Some(Peer::Process(8)), at(u64::from(n) + 2), n));
        assert_eq!(one_too_many(crowd.chain([slow]).collect()), Some(0));
        let address = |n| Some(Peer::Address(IpAddr::from([10, 0, 0, n])));
        let all = vec![(address(1), at(5), 0), (address(2), at(4), 1), (address(2), at(3), 2)];
        assert_eq!(one_too_many(all), Some(2));
        assert_eq!(one_too_many(vec![]), None);
    }

    #[test]
    fn a_tenant_has_its_places_and_leaves_those_of_others() {
        let tenants = Arc::new(Tenants::default());
        let take = |name: &str| tenants.take(name.to_owned(), 2);
        let (first, _second) = (take("cn:a").expect("one"), take("cn:a").expect("two"));
        assert!(take("cn:a").is_none());
        let other = take("cn:b").expect("another tenant");
        drop(first);
        assert!(take("cn:a").is_some(), "its place is free");
        drop(other);
        assert_eq!(Vec::from_iter(tenants.all()), [("cn:a".to_owned(), 1)]);
    }

    fn at(millisecond: u64) -> Instant {
        Instant::from_nanos(millisecond * 1_000_000)
    }

    /// How many of 1000 connections of `peer` at this time are allowed.
    fn taken(rates: &mut Rates, peer: i32, millisecond: u64) -> usize {
        let peer = Some(Peer::Process(peer));
        (0..1000).filter(|_| rates.take(peer, at(millisecond))).count()
    }

    /// Regression test: a flood of connections was handed to the workers until the limit of connections was reached.
    #[test]
    fn a_peer_has_its_rate_and_others_have_theirs() {
        let mut rates = Rates::new(200);
        assert_eq!(taken(&mut rates, 1, 0), 200, "at once");
        assert_eq!(taken(&mut rates, 1, 4), 0);
        assert_eq!(taken(&mut rates, 1, 50), 10, "a token each 5 ms");
        assert_eq!(taken(&mut rates, 2, 50), 200, "another peer");
        assert_eq!(taken(&mut rates, 1, 60_000), 200, "no more than a second's");
    }

    #[test]
    fn peers_without_end_take_no_memory_without_end() {
        let mut rates = Rates::new(1);
        for peer in 0..10_000 {
            rates.take(Some(Peer::Process(peer)), at(0));
        }
        assert!(rates.buckets.len() <= PEERS + 1);
        assert!(!rates.take(Some(Peer::Process(20_000)), at(999)), "they share one");
        assert!(rates.take(Some(Peer::Process(20_000)), at(1000)));
        assert_eq!(rates.buckets.len(), 1, "the others are forgotten");
    }
}
