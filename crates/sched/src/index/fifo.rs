//! A first-in-first-out list, doubly linked by slot index, so that any member is unlinked in O(1).
//!
//! A lazily deleted queue would not do: while the oldest request waits for its deadline, everything picked
//! in another order would leave a dead entry behind it.

use alloc::boxed::Box;
use alloc::vec;
use blkmq_core::RequestId;

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Links {
    prev: u32,
    next: u32,
    id: Option<RequestId>,
}

/// A list of requests in order of arrival. All operations are O(1).
pub struct Fifo {
    links: Box<[Links]>,
    head: u32,
    tail: u32,
    len: u32,
}

impl Fifo {
    /// An empty list for requests with indices below `slots`.
    #[must_use]
    pub fn new(slots: u32) -> Self {
        let unlinked = Links { prev: NONE, next: NONE, id: None };
        Self {
            links: vec![unlinked; slots as usize].into_boxed_slice(),
            head: NONE,
            tail: NONE,
            len: 0,
        }
    }

    /// Members.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Nothing in it?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.head == NONE
    }

    /// The oldest member.
    #[inline]
    #[must_use]
    pub fn front(&self) -> Option<RequestId> {
        if self.head == NONE { None } else { self.links[self.head as usize].id }
    }

    /// Is `rq` a member?
    #[must_use]
    pub fn contains(&self, rq: RequestId) -> bool {
        self.links[rq.index()].id == Some(rq)
    }

    /// Adds `rq` behind all others.
    ///
    /// # Panics
    /// If its slot is in the list already.
    #[inline]
    pub fn push_back(&mut self, rq: RequestId) {
        self.link(rq, self.tail, NONE);
    }

    /// Adds `rq` ahead of all others.
    ///
    /// # Panics
    /// If its slot is in the list already.
    #[inline]
    pub fn push_front(&mut self, rq: RequestId) {
        self.link(rq, NONE, self.head);
    }

    /// Adds `rq` directly ahead of the member `before`.
    ///
    /// # Panics
    /// If `before` is no member, or the slot of `rq` is in the list already.
    pub fn insert_before(&mut self, rq: RequestId, before: RequestId) {
        assert!(self.contains(before), "{before:?} is not in the list");
        self.link(rq, self.links[before.index()].prev, before.index() as u32);
    }

    fn link(&mut self, rq: RequestId, prev: u32, next: u32) {
        let index = rq.index() as u32;
        let entry = &mut self.links[rq.index()];
        assert!(entry.id.is_none(), "{rq:?} is in the list already");
        *entry = Links { prev, next, id: Some(rq) };
        *(if prev == NONE { &mut self.head } else { &mut self.links[prev as usize].next }) = index;
        *(if next == NONE { &mut self.tail } else { &mut self.links[next as usize].prev }) = index;
        self.len += 1;
    }

    /// Takes out the oldest member.
    #[inline]
    pub fn pop_front(&mut self) -> Option<RequestId> {
        let rq = self.front()?;
        self.remove(rq);
        Some(rq)
    }

    /// Takes `rq` out, wherever it is.
    ///
    /// # Panics
    /// If it is no member.
    #[inline]
    pub fn remove(&mut self, rq: RequestId) {
        let entry = &mut self.links[rq.index()];
        assert!(entry.id == Some(rq), "{rq:?} is not in the list");
        entry.id = None;
        let (prev, next) = (entry.prev, entry.next);
        *(if prev == NONE { &mut self.head } else { &mut self.links[prev as usize].next }) = next;
        *(if next == NONE { &mut self.tail } else { &mut self.links[next as usize].prev }) = prev;
        self.len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn rq(index: u32) -> RequestId {
        RequestId::new(index, 0)
    }

    fn drain(fifo: &mut Fifo) -> Vec<usize> {
        core::iter::from_fn(|| fifo.pop_front()).map(RequestId::index).collect()
    }

    #[test]
    fn order_survives_removal_anywhere() {
        for gone in 0..4 {
            let mut fifo = Fifo::new(4);
            (0..4).for_each(|i| fifo.push_back(rq(i)));
            fifo.remove(rq(gone));
            let expected: Vec<usize> = (0..4).filter(|i| *i != gone as usize).collect();
            assert_eq!(drain(&mut fifo), expected);
            assert!(fifo.is_empty());
        }
    }

    #[test]
    fn a_member_can_be_placed_ahead_of_another() {
        let mut fifo = Fifo::new(4);
        fifo.push_back(rq(0));
        fifo.push_back(rq(1));
        fifo.insert_before(rq(2), rq(1));
        fifo.insert_before(rq(3), rq(0));
        assert_eq!(drain(&mut fifo), [3, 0, 2, 1]);
    }

    #[test]
    #[should_panic(expected = "not in the list")]
    fn removing_a_stranger_is_a_bug() {
        Fifo::new(1).remove(rq(0));
    }
}
