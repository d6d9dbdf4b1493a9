//! First-in-first-out lists over one table of links, so that any member is unlinked in O(1): several of them, or one
//! ([`Fifo`]) for a policy that keeps one order.
//!
//! A request is in at most one of the lists at a time. So one table is enough, however many classes, directions or
//! owners a policy keeps apart, and a member can be found by its id alone.
//!
//! A lazily deleted queue would not work: while the oldest request waits for its deadline, every request picked in
//! another order would leave a dead entry behind it.

use alloc::boxed::Box;
use alloc::vec;
use blkmq_core::RequestId;

const NONE: u32 = u32::MAX;

/// The links of one slot. Not linked if `list` is [`NONE`].
#[derive(Clone, Copy)]
struct Links {
    prev: u32,
    next: u32,
    list: u32,
    rq: RequestId,
}

#[derive(Clone, Copy)]
struct Ends {
    head: u32,
    tail: u32,
    len: u32,
}

/// Lists of requests in order of arrival, numbered from zero. All operations are O(1).
pub struct Lists {
    links: Box<[Links]>,
    ends: Box<[Ends]>,
}

impl Lists {
    /// Makes `lists` empty lists for requests with indices below `slots`.
    #[must_use]
    pub fn new(slots: u32, lists: usize) -> Self {
        let unlinked = Links { prev: NONE, next: NONE, list: NONE, rq: RequestId::new(0, 0) };
        let empty = Ends { head: NONE, tail: NONE, len: 0 };
        Self {
            links: vec![unlinked; slots as usize].into_boxed_slice(),
            ends: vec![empty; lists].into_boxed_slice(),
        }
    }

    /// The number of members of `list`.
    #[inline]
    #[must_use]
    pub fn len(&self, list: usize) -> usize {
        self.ends[list].len as usize
    }

    /// Returns whether `list` is empty.
    #[inline]
    #[must_use]
    pub fn is_empty(&self, list: usize) -> bool {
        self.ends[list].head == NONE
    }

    /// The oldest member of `list`.
    #[inline]
    #[must_use]
    pub fn front(&self, list: usize) -> Option<RequestId> {
        let head = self.ends[list].head;
        if head == NONE { None } else { Some(self.links[head as usize].rq) }
    }

    /// The member behind `rq`, which is in a list.
    #[must_use]
    pub fn behind(&self, rq: RequestId) -> Option<RequestId> {
        debug_assert!(self.list_of(rq).is_some());
        let next = self.links[rq.index()].next;
        (next != NONE).then(|| self.links[next as usize].rq)
    }

    /// The list that `rq` is in.
    #[inline]
    #[must_use]
    pub fn list_of(&self, rq: RequestId) -> Option<usize> {
        let entry = &self.links[rq.index()];
        (entry.list != NONE && entry.rq == rq).then_some(entry.list as usize)
    }

    /// Adds `rq` to `list`, behind all others.
    ///
    /// # Panics
    /// If its slot is in a list already.
    #[inline]
    pub fn push_back(&mut self, list: usize, rq: RequestId) {
        self.link(list, rq, self.ends[list].tail, NONE);
    }

    /// Adds `rq` to `list`, ahead of all others.
    ///
    /// # Panics
    /// If its slot is in a list already.
    #[inline]
    pub fn push_front(&mut self, list: usize, rq: RequestId) {
        self.link(list, rq, NONE, self.ends[list].head);
    }

    /// Adds `rq` directly ahead of the member `before`, to the same list.
    ///
    /// # Panics
    /// If `before` is in no list, or the slot of `rq` is in a list already.
    pub fn insert_before(&mut self, rq: RequestId, before: RequestId) {
        let list = self.list_of(before).unwrap_or_else(|| panic!("{before:?} is in no list"));
        self.link(list, rq, self.links[before.index()].prev, before.index() as u32);
    }

    fn link(&mut self, list: usize, rq: RequestId, prev: u32, next: u32) {
        let index = rq.index() as u32;
        let ends = &mut self.ends[list];
        let entry = &mut self.links[rq.index()];
        assert!(entry.list == NONE, "{rq:?} is in a list already");
        *entry = Links { prev, next, list: list as u32, rq };
        *(if prev == NONE { &mut ends.head } else { &mut self.links[prev as usize].next }) = index;
        *(if next == NONE { &mut ends.tail } else { &mut self.links[next as usize].prev }) = index;
        ends.len += 1;
    }

    /// Removes and returns the oldest member of `list`.
    #[inline]
    pub fn pop_front(&mut self, list: usize) -> Option<RequestId> {
        let rq = self.front(list)?;
        self.remove(rq);
        Some(rq)
    }

    /// Removes `rq` from its list, wherever it is.
    ///
    /// # Panics
    /// If it is in none.
    #[inline]
    pub fn remove(&mut self, rq: RequestId) {
        let entry = &mut self.links[rq.index()];
        assert!(entry.list != NONE && entry.rq == rq, "{rq:?} is in no list");
        let Links { prev, next, list, .. } = *entry;
        entry.list = NONE;
        let ends = &mut self.ends[list as usize];
        *(if prev == NONE { &mut ends.head } else { &mut self.links[prev as usize].next }) = next;
        *(if next == NONE { &mut ends.tail } else { &mut self.links[next as usize].prev }) = prev;
        ends.len -= 1;
    }
}

/// A list of requests in order of arrival. All operations are O(1).
pub struct Fifo(Lists);

impl Fifo {
    /// An empty list for requests with indices below `slots`.
    #[must_use]
    pub fn new(slots: u32) -> Self {
        Self(Lists::new(slots, 1))
    }

    /// The number of members.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len(0)
    }

    /// Returns whether the list is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty(0)
    }

    /// The oldest member.
    #[inline]
    #[must_use]
    pub fn front(&self) -> Option<RequestId> {
        self.0.front(0)
    }

    /// Returns whether `rq` is a member.
    #[must_use]
    pub fn contains(&self, rq: RequestId) -> bool {
        self.0.list_of(rq).is_some()
    }

    /// Adds `rq` behind all others.
    ///
    /// # Panics
    /// If its slot is in the list already.
    #[inline]
    pub fn push_back(&mut self, rq: RequestId) {
        self.0.push_back(0, rq);
    }

    /// Adds `rq` ahead of all others.
    ///
    /// # Panics
    /// If its slot is in the list already.
    #[inline]
    pub fn push_front(&mut self, rq: RequestId) {
        self.0.push_front(0, rq);
    }

    /// Adds `rq` directly ahead of the member `before`.
    ///
    /// # Panics
    /// If `before` is not a member, or the slot of `rq` is in the list already.
    pub fn insert_before(&mut self, rq: RequestId, before: RequestId) {
        self.0.insert_before(rq, before);
    }

    /// Removes and returns the oldest member.
    #[inline]
    pub fn pop_front(&mut self) -> Option<RequestId> {
        self.0.pop_front(0)
    }

    /// Removes `rq`, wherever it is.
    ///
    /// # Panics
    /// If it is not a member.
    #[inline]
    pub fn remove(&mut self, rq: RequestId) {
        self.0.remove(rq);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn rq(index: u32) -> RequestId {
        RequestId::new(index, 0)
    }

    fn drain(lists: &mut Lists, list: usize) -> Vec<usize> {
        core::iter::from_fn(|| lists.pop_front(list)).map(RequestId::index).collect()
    }

    #[test]
    fn order_survives_removal_anywhere() {
        for gone in 0..4 {
            let mut lists = Lists::new(4, 1);
            (0..4).for_each(|i| lists.push_back(0, rq(i)));
            lists.remove(rq(gone));
            let expected: Vec<usize> = (0..4).filter(|i| *i != gone as usize).collect();
            assert_eq!(drain(&mut lists, 0), expected);
            assert!(lists.is_empty(0));
        }
    }

    #[test]
    fn a_member_can_be_placed_ahead_of_another() {
        let mut lists = Lists::new(4, 2);
        lists.push_back(1, rq(0));
        lists.push_back(1, rq(1));
        lists.insert_before(rq(2), rq(1));
        lists.insert_before(rq(3), rq(0));
        assert_eq!((lists.len(0), lists.len(1)), (0, 4));
        assert_eq!(drain(&mut lists, 1), [3, 0, 2, 1]);
    }

    #[test]
    fn lists_that_share_links_stay_apart() {
        let mut lists = Lists::new(6, 2);
        (0..6).for_each(|i| lists.push_back(i as usize % 2, rq(i)));
        assert_eq!(lists.list_of(rq(3)), Some(1));
        assert_eq!(lists.list_of(RequestId::new(3, 1)), None, "another request of the same slot");
        assert_eq!(lists.behind(rq(3)), Some(rq(5)));
        assert_eq!(lists.behind(rq(5)), None);
        assert_eq!(drain(&mut lists, 0), [0, 2, 4]);
        assert_eq!(lists.list_of(rq(2)), None);
        assert_eq!(drain(&mut lists, 1), [1, 3, 5]);
    }

    #[test]
    #[should_panic(expected = "is in no list")]
    fn removing_a_stranger_is_a_bug() {
        Lists::new(1, 1).remove(rq(0));
    }

    #[test]
    #[should_panic(expected = "in a list already")]
    fn a_slot_is_in_one_list_only() {
        let mut lists = Lists::new(1, 2);
        lists.push_back(0, rq(0));
        lists.push_back(1, rq(0));
    }

    #[test]
    fn first_in_first_out_with_a_way_to_the_front() {
        let rq = |index| RequestId::new(index, 0);
        let mut fifo = Fifo::new(4);
        fifo.push_back(rq(0));
        fifo.push_back(rq(1));
        fifo.push_front(rq(2));
        fifo.insert_before(rq(3), rq(1));
        fifo.remove(rq(0));
        assert!(fifo.contains(rq(3)) && !fifo.contains(rq(0)));
        assert_eq!((fifo.len(), fifo.front()), (3, Some(rq(2))));
        let rest: [_; 4] = core::array::from_fn(|_| fifo.pop_front().map(RequestId::index));
        assert_eq!(rest, [Some(2), Some(3), Some(1), None]);
        assert!(fifo.is_empty());
    }
}
