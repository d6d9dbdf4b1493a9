//! Who is connected: the counts behind the bounds on connections.

use crate::bounds::Bounds;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    peer: Option<IpAddr>,
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
    pub(crate) fn admit(self: &Arc<Self>, peer: Option<IpAddr>, bounds: &Bounds) -> Option<Guest> {
        let mut counts = self.counts();
        let of_peer = peer.map_or(0, |peer| counts.by_peer.get(&peer).copied().unwrap_or(0));
        if counts.total >= bounds.connections || of_peer >= bounds.connections_per_peer {
            return None;
        }
        let worker = (0..counts.by_worker.len()).min_by_key(|at| counts.by_worker[*at])?;
        counts.total += 1;
        counts.by_worker[worker] += 1;
        if let Some(peer) = peer {
            *counts.by_peer.entry(peer).or_default() += 1;
        }
        Some(Guest { guests: Arc::clone(self), peer, worker })
    }
}

impl Guest {
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
        if let Some(peer) = self.peer
            && let Some(of_peer) = counts.by_peer.get_mut(&peer)
        {
            *of_peer -= 1;
            if *of_peer == 0 {
                counts.by_peer.remove(&peer);
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
        let peer = Some(IpAddr::from([10, 0, 0, 1]));
        let first = guests.admit(peer, &bounds).expect("the first of its peer");
        assert!(guests.admit(peer, &bounds).is_none(), "one per peer");
        let second = guests.admit(None, &bounds).expect("local ones are not counted by peer");
        assert_ne!(first.worker(), second.worker(), "the worker with the fewest");
        let third = guests.admit(None, &bounds).expect("the third");
        assert!(guests.admit(None, &bounds).is_none(), "three in all");
        drop(first);
        assert!(guests.admit(peer, &bounds).is_some(), "its place is free");
        drop((second, third));
        assert_eq!(guests.total(), 0);
        assert!(guests.counts().by_peer.is_empty(), "nothing is left of a peer that is gone");
    }
}
