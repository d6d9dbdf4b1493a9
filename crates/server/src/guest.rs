//! The peers of connections, and the counts for the limits on connections.

use crate::bounds::Bounds;
use blkmq::Instant;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    peer: Option<Peer>,
    worker: usize,
    /// Whether its handshake is over.
    has_begun: bool,
}

impl Guests {
    pub(crate) fn new(workers: usize) -> Self {
        let total = OfPeer::new(workers);
        Self(Mutex::new(Counts { total, by_peer: BTreeMap::new() }))
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of connections.
    pub(crate) fn total(&self) -> usize {
        self.counts().total.connections
    }

    /// Counts a connection from `peer`, and assigns it to the worker with the fewest connections; among equals, to the
    /// one with the fewest of other peers. Returns `None` if a limit is reached, or if this peer overloads the workers
    /// with handshakes.
    pub(crate) fn admit(self: &Arc<Self>, peer: Option<Peer>, bounds: &Bounds) -> Option<Guest> {
        let mut counts = self.counts();
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
    /// The peer if the system knows it.
    pub(crate) fn peer(&self) -> Option<Peer> {
        self.peer
    }

    /// The name of the peer for the log.
    pub(crate) fn name(&self) -> String {
        self.peer.map_or_else(|| "unknown".to_owned(), |peer| peer.to_string())
    }

    /// Notes the end of its handshake.
    pub(crate) fn begin(&mut self) {
        if !self.has_begun {
            self.has_begun = true;
            self.guests.counts().each(self.peer, |count| count.handshakes -= 1);
        }
    }

    /// The number of its worker.
    pub(crate) fn worker(&self) -> usize {
        self.worker
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let mut counts = self.guests.counts();
        counts.each(self.peer, |count| {
            count.connections -= 1;
            count.by_worker[self.worker] -= 1;
            count.handshakes -= usize::from(!self.has_begun);
        });
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
        assert_ne!(first.worker(), second.worker(), "the worker with the fewest");
        let third = guests.admit(local, &bounds).expect("the third");
        assert!(guests.admit(None, &bounds).is_none(), "three in all");
        drop(first);
        assert!(guests.admit(peer, &bounds).is_some(), "its place is free");
        drop((second, third));
        assert_eq!(guests.total(), 0);
        assert!(guests.counts().by_peer.is_empty(), "nothing is left of a peer that is gone");
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
            assert_ne!(next.worker(), steady.worker());
            last = next;
        }
        let more: Vec<Guest> = (0..6).map(|_| admit(2)).collect();
        let beside = more.iter().filter(|guest| guest.worker() == steady.worker()).count();
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
        let left = guests.counts();
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
}
