//! The peers of connections, and the counts behind the bounds on connections.

use crate::bounds::Bounds;
use blkmq::Instant;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The other side of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Peer {
    /// A machine.
    Address(IpAddr),
    /// A process of this machine, by its number; 0 if it is in another namespace.
    Process(i32),
}

/// A handshake under way: its peer, its beginning and the place of its connection.
pub(crate) type UnderWay = (Option<Peer>, Instant, u32);

/// The handshake to close where there is one too many: the oldest of the peer that has the most. A peer that begins
/// handshakes without end closes its own, and not those of others, however slow they are.
pub(crate) fn one_too_many(mut under_way: Vec<UnderWay>) -> Option<u32> {
    under_way.sort_unstable();
    let peers = under_way.chunk_by(|one, next| one.0 == next.0);
    let (_, _, place) = *peers.max_by_key(|handshakes| handshakes.len())?.first()?;
    Some(place)
}

/// The connections of a server. A mutex, used when a connection comes and goes.
#[derive(Debug, Default)]
pub(crate) struct Guests(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    total: usize,
    by_peer: BTreeMap<IpAddr, usize>,
    by_worker: Vec<usize>,
}

/// The place of one connection; free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Guest {
    guests: Arc<Guests>,
    peer: Option<Peer>,
    worker: usize,
}

impl Guests {
    pub(crate) fn new(workers: usize) -> Self {
        Self(Mutex::new(Counts { by_worker: vec![0; workers], ..Counts::default() }))
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many connections there are.
    pub(crate) fn total(&self) -> usize {
        self.counts().total
    }

    /// A place for a connection from `peer`, with the worker that has the fewest; `None` if a bound is reached.
    pub(crate) fn admit(self: &Arc<Self>, peer: Option<Peer>, bounds: &Bounds) -> Option<Guest> {
        let mut counts = self.counts();
        let address = peer.and_then(Peer::address);
        let of_peer = address.map_or(0, |it| counts.by_peer.get(&it).copied().unwrap_or(0));
        if counts.total >= bounds.connections || of_peer >= bounds.connections_per_peer {
            return None;
        }
        let worker = (0..counts.by_worker.len()).min_by_key(|at| counts.by_worker[*at])?;
        counts.total += 1;
        counts.by_worker[worker] += 1;
        if let Some(address) = address {
            *counts.by_peer.entry(address).or_default() += 1;
        }
        Some(Guest { guests: Arc::clone(self), peer, worker })
    }
}

impl Peer {
    fn address(self) -> Option<IpAddr> {
        match self {
            Self::Address(address) => Some(address),
            Self::Process(_) => None,
        }
    }
}

impl Guest {
    /// The other side, if the system knows it.
    pub(crate) fn peer(&self) -> Option<Peer> {
        self.peer
    }

    /// The number of its worker.
    pub(crate) fn worker(&self) -> usize {
        self.worker
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let mut counts = self.guests.counts();
        counts.total -= 1;
        counts.by_worker[self.worker] -= 1;
        if let Some(address) = self.peer.and_then(Peer::address)
            && let Some(of_peer) = counts.by_peer.get_mut(&address)
        {
            *of_peer -= 1;
            if *of_peer == 0 {
                counts.by_peer.remove(&address);
            }
        }
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

    /// Regression test: the oldest of all was closed, so that a client could begin no connection beside another one
    /// that began many.
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
