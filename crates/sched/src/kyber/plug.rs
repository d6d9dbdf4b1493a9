//! A plug that comes to an instance which holds none: with a token for each of its requests it leaves immediately, in
//! the order of submission, as if its requests were inserted, staged and picked one by one (`spec/kyber.md` section 4).
//!
//! Only plugs of one domain, and only without `adaptive`, under which a domain may have to wait for its time; all others go
//! the long way.

use super::Kyber;
use super::domain::Domain;
use super::options::Adaptive;
use crate::{Cx, Fresh, Used};
use blkmq_core::IoFlags;

impl Kyber {
    /// Issues all requests of `plug`, and writes their order. False, and nothing has happened, if they differ in domain, if
    /// there are not enough tokens for all, or if too much of the async I/O has a scheduler tag.
    pub(super) fn issue_plug(&mut self, cx: &Cx<'_>, plug: &Fresh<'_>, order: &mut [u8]) -> bool {
        debug_assert!(self.is_empty(), "the plug does not come alone");
        let Some(first) = plug.rqs.first() else { return false };
        let first = cx.requests.get(*first);
        let mut unsynced = 0;
        for rq in plug.rqs {
            let meta = cx.requests.get(*rq);
            if meta.op != first.op {
                return false;
            }
            unsynced += u32::from(!meta.flags.contains(IoFlags::SYNC));
        }
        let (domain, n) = (Domain::of(first.op), plug.rqs.len() as u32);
        let is_below = |used: Used| used.unsynced + unsynced <= self.async_depth;
        let admitted = unsynced == 0 || plug.used.is_none_or(is_below);
        if !admitted || !self.takes_plugs() || !cx.env.take_all(domain as usize, n) {
            return false;
        }
        for (nth, place) in order.iter_mut().enumerate() {
            *place = nth as u8;
        }
        self.inserted += u64::from(n);
        // The requests would all have been in one bank, and then in the other.
        let lane = &mut self.lanes[domain as usize];
        lane.gathering = lane.staged();
        lane.dispatched += u64::from(n);
        self.count_turns(domain, n);
        true
    }

    /// Returns whether whole plugs leave immediately, if there are tokens.
    pub(super) fn takes_plugs(&self) -> bool {
        self.tunables.adaptive == Adaptive::Off
    }

    /// `n` requests of `domain` are picked while no other domain has any: the domain continues its turn, and begins
    /// another whenever one has its number of requests.
    fn count_turns(&mut self, domain: Domain, n: u32) {
        let batch = domain.batch();
        let gone = if self.current == domain { self.batching } else { batch };
        self.current = domain;
        self.batching = (gone + n - 1) % batch + 1;
    }
}
