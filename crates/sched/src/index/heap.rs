//! A binary heap of numbered members, each with a key that may change.
//!
//! Room for all members is made when members are added to the table, never when one is pushed, so that pushing cannot
//! allocate.

use alloc::vec::Vec;

const OUT: u32 = u32::MAX;

/// The member with the least key first, of members numbered from zero. Changes are O(log members), the least is O(1).
#[derive(Debug, Default)]
pub struct Heap<K> {
    entries: Vec<(K, u32)>,
    /// By member: its place in `entries`, or [`OUT`].
    places: Vec<u32>,
}

impl<K: Ord + Copy> Heap<K> {
    /// An empty heap, without room for members.
    #[must_use]
    pub const fn new() -> Self {
        Self { entries: Vec::new(), places: Vec::new() }
    }

    /// Makes room for members with numbers below `members`. The one call that allocates.
    pub fn make_room(&mut self, members: usize) {
        if self.places.len() < members {
            self.places.resize(members, OUT);
            self.entries.reserve(members - self.entries.len());
        }
    }

    /// The number of members in the heap.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether no member is in the heap.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns whether `member` is in the heap.
    #[must_use]
    pub fn contains(&self, member: u32) -> bool {
        self.places.get(member as usize).is_some_and(|place| *place != OUT)
    }

    /// The member with the least key.
    #[must_use]
    pub fn least(&self) -> Option<(K, u32)> {
        self.entries.first().copied()
    }

    /// Puts `member` in, or gives it another key.
    ///
    /// # Panics
    /// If there is no room for it.
    pub fn set(&mut self, member: u32, key: K) {
        let place = self.places[member as usize];
        if place == OUT {
            self.entries.push((key, member));
            self.places[member as usize] = self.entries.len() as u32 - 1;
            self.rise(self.entries.len() - 1);
        } else {
            self.entries[place as usize].0 = key;
            self.settle(place as usize);
        }
    }

    /// Takes `member` out; false if it was not in.
    pub fn remove(&mut self, member: u32) -> bool {
        if !self.contains(member) {
            return false;
        }
        let place = core::mem::replace(&mut self.places[member as usize], OUT) as usize;
        self.entries.swap_remove(place);
        if let Some((_, moved)) = self.entries.get(place) {
            self.places[*moved as usize] = place as u32;
            self.settle(place);
        }
        true
    }

    fn settle(&mut self, place: usize) {
        let place = self.rise(place);
        self.sink(place);
    }

    fn rise(&mut self, mut place: usize) -> usize {
        while place > 0 {
            let above = (place - 1) / 2;
            if self.entries[above] <= self.entries[place] {
                break;
            }
            self.swap(above, place);
            place = above;
        }
        place
    }

    fn sink(&mut self, mut place: usize) {
        loop {
            let below = [2 * place + 1, 2 * place + 2];
            let inside = below.into_iter().filter(|at| *at < self.entries.len());
            let Some(least) = inside.min_by_key(|at| self.entries[*at]) else { return };
            if self.entries[place] <= self.entries[least] {
                return;
            }
            self.swap(place, least);
            place = least;
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.entries.swap(a, b);
        for at in [a, b] {
            self.places[self.entries[at].1 as usize] = at as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq_core::Rng;

    #[test]
    fn the_least_comes_first_whatever_changes() {
        let mut rng = Rng::new(7);
        let mut heap = Heap::new();
        heap.make_room(50);
        let mut plain: [Option<u64>; 50] = [None; 50];
        for _ in 0..if cfg!(miri) { 80 } else { 20_000 } {
            let member = rng.below(50) as u32;
            if rng.chance(1, 3) {
                assert_eq!(heap.remove(member), plain[member as usize].take().is_some());
            } else {
                let key = rng.below(40);
                heap.set(member, key);
                plain[member as usize] = Some(key);
            }
            let least = plain.iter().zip(0..).filter_map(|(key, m)| Some(((*key)?, m))).min();
            assert_eq!(heap.least(), least);
            assert_eq!(heap.len(), plain.iter().flatten().count());
            assert_eq!(heap.contains(member), plain[member as usize].is_some());
        }
        assert!(!heap.is_empty() && !heap.contains(50));
    }
}
