//! Limits how many connections each peer begins per second, by a token bucket for each. No clock: time is an argument.

use crate::guest::Peer;
use blkmq::{Instant, Nanos};
use std::collections::BTreeMap;

const SECOND: Nanos = Nanos::from_millis(1000);
/// The maximum number of peers with their own bucket. Further peers share one until other buckets are full again.
const PEERS: usize = 1024;

/// The buckets of all peers.
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

#[cfg(test)]
mod tests {
    use super::*;

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
