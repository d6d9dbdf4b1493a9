//! A single list of [`Lists`], for a policy that keeps one order.

use super::Lists;
use blkmq_core::RequestId;

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
