//! The places of a queue: one for each request in flight, made when it is first needed.
//!
//! Memory is proportional to the peak number of requests in flight, whatever the depth: a queue begins
//! without places, and a place begins without a list of pieces of memory. A place keeps its list for the next
//! request, so that a steady load allocates nothing; the place used last is used next, so that a small load uses few
//! places.

use crate::request::Request;
use std::ops::{Index, IndexMut};

/// Entries (16 bytes) that the lists of free places may keep in all: 64 requests of 1024 pieces each, the most that
/// one call takes. A load above that has megabytes of data in flight, beside which an allocation is negligible.
const KEPT: usize = 64 << 10;
/// Like [`KEPT`], but for each place of a deeper queue: lists of usual lengths are kept at any depth.
const KEPT_EACH: usize = 16;

/// Places for at most `depth` requests.
pub(crate) struct Places {
    /// The lists of pieces do not move when this grows; only the places do.
    all: Vec<Request>,
    /// Taken from the end: the place used last, which the cache still has, is used next.
    free: Vec<u32>,
    depth: u32,
    /// Room in the lists of free places, in entries.
    kept: usize,
    /// The maximum of `kept`.
    most_kept: usize,
}

impl Places {
    /// No places at first. Allocates nothing.
    pub(crate) fn new(depth: u32) -> Self {
        let most_kept = KEPT.max(KEPT_EACH * depth as usize);
        Self { all: Vec::new(), free: Vec::new(), depth, kept: 0, most_kept }
    }

    /// The number of requests that it can hold.
    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    /// The number of taken places.
    pub(crate) fn taken(&self) -> usize {
        self.all.len() - self.free.len()
    }

    /// The place that [`take`](Self::take) takes next; `None` if all are taken.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<u32> {
        match self.free.last() {
            Some(at) => Some(*at),
            None => self.grow(),
        }
    }

    #[cold]
    fn grow(&mut self) -> Option<u32> {
        let at = self.all.len() as u32;
        if at == self.depth {
            return None;
        }
        self.all.push(Request::new());
        // Room in the free list is reserved here, so that giving a place back never allocates.
        self.free.reserve(self.all.len());
        self.free.push(at);
        Some(at)
    }

    /// Takes the place that [`next`](Self::next) has named.
    ///
    /// # Panics
    /// If it has named none.
    #[inline]
    pub(crate) fn take(&mut self) -> u32 {
        let at = self.free.pop().expect("a place that was named is free");
        self.kept -= self.all[at as usize].counted();
        at
    }

    /// Makes the place `at` free again.
    #[inline]
    pub(crate) fn give_back(&mut self, at: u32) {
        let place = &mut self.all[at as usize];
        place.count();
        if self.kept + place.counted() > self.most_kept {
            place.forget_list();
        }
        self.kept += place.counted();
        self.free.push(at);
    }

    /// All places, free or not.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Request> {
        self.all.iter_mut()
    }

    /// The number of the first place for which `wanted` is true.
    pub(crate) fn position(&self, wanted: impl FnMut(&Request) -> bool) -> Option<u32> {
        self.all.iter().position(wanted).map(|at| at as u32)
    }

    /// Makes all places free.
    pub(crate) fn give_back_all(&mut self) {
        *self = Self::new(self.depth);
    }

    /// Room in all lists, in entries of 16 bytes.
    #[cfg(test)]
    pub(crate) fn room(&self) -> usize {
        self.all.iter().map(Request::room).sum()
    }

    /// The number of places made.
    #[cfg(test)]
    pub(crate) fn made(&self) -> usize {
        self.all.len()
    }
}

impl Index<u32> for Places {
    type Output = Request;

    #[inline]
    fn index(&self, at: u32) -> &Request {
        &self.all[at as usize]
    }
}

impl IndexMut<u32> for Places {
    #[inline]
    fn index_mut(&mut self, at: u32) -> &mut Request {
        &mut self.all[at as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes `count` places, gives each `pieces` pieces that do not touch, and gives all places back.
    fn round(places: &mut Places, count: usize, pieces: usize) {
        let mut taken = Vec::new();
        for _ in 0..count {
            places.next().expect("one is free");
            let at = places.take();
            places[at].clear();
            (1..=pieces).for_each(|n| places[at].add(std::ptr::without_provenance_mut(n << 20), 8));
            taken.push(at);
        }
        assert_eq!(places.taken(), count);
        taken.into_iter().for_each(|at| places.give_back(at));
        assert_eq!(places.taken(), 0);
    }

    /// Regression test: lists for the most pieces were allocated for every place when a queue was made: 160 MiB at
    /// the largest depth and 1024 segments, of which 2.9 GB were resident with 64 queues.
    #[test]
    fn memory_is_in_proportion_to_what_was_in_flight() {
        let mut places = Places::new(10_240);
        assert_eq!((places.made(), places.room()), (0, 0), "an idle queue");
        round(&mut places, 32, 1);
        assert!(places.made() == 32 && places.room() <= 32 * 4, "{}", places.room());
        round(&mut places, 2, 1024);
        assert!(places.made() == 32 && places.room() <= 2 * 1024 + 30 * 4, "{}", places.room());
    }

    #[test]
    fn a_steady_load_allocates_nothing() {
        let mut places = Places::new(10_240);
        for (count, pieces) in [(128, 3), (64, 1024), (10_240, 16)] {
            round(&mut places, count, pieces);
            let (made, room) = (places.made(), places.room());
            for _ in 0..3 {
                round(&mut places, count, pieces);
                assert_eq!((places.made(), places.room()), (made, room), "{count} of {pieces}");
            }
        }
    }

    #[test]
    fn what_is_kept_is_bounded() {
        for (depth, most) in [(128, KEPT), (10_240, KEPT_EACH * 10_240)] {
            let mut places = Places::new(depth);
            for pieces in [1, 1024, 5, 1024] {
                round(&mut places, depth as usize, pieces);
                assert!(places.room() <= most, "{} above {most}", places.room());
                assert_eq!(places.kept, places.room(), "as counted");
            }
        }
    }

    #[test]
    fn there_are_as_many_as_the_depth_and_the_last_one_is_used_next() {
        let mut places = Places::new(2);
        let take = |places: &mut Places| places.next().map(|_| places.take());
        let both = [take(&mut places), take(&mut places)];
        assert_eq!((both, take(&mut places)), ([Some(0), Some(1)], None));
        places.give_back(0);
        places.give_back(1);
        assert_eq!(take(&mut places), Some(1));
    }
}
