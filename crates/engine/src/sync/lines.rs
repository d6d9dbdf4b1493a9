//! An array that shares no cache line with other data.
//!
//! It is for values that one thread writes all the time. The allocator may put another thread's data beside a small
//! array, and then the two threads take the line from each other at every step. This array is plain memory with room
//! before and after the values, so access is that of a slice with one more addition.

/// Two cache lines, which many machines fetch together.
const PAIR: usize = 128;

/// An array of values. The first value begins a pair of lines, if any value can.
#[derive(Debug)]
pub(crate) struct Lines<T> {
    /// It never grows, because growing would move the values.
    values: Vec<T>,
    first: usize,
    len: usize,
}

impl<T> Lines<T> {
    /// `len` values.
    pub(crate) fn new(len: usize, make: impl Fn(usize) -> T) -> Self {
        let size = size_of::<T>().max(1);
        // After the values: a pair of lines. Before them: as many values as it takes until their alignment to pairs
        // repeats.
        let room = PAIR.div_ceil(size);
        let ahead = room.max(PAIR >> size.trailing_zeros().min(PAIR.trailing_zeros()));
        let all = ahead + len + room;
        let mut values = Vec::<T>::with_capacity(all);
        let begins = |at: &usize| (values.as_ptr().addr() + at * size).is_multiple_of(PAIR);
        let first = (1..=ahead).find(begins).unwrap_or(ahead);
        // Values in the room are never used.
        values.extend((0..all).map(|at| make(at.saturating_sub(first).min(len.saturating_sub(1)))));
        Self { values, first, len }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(crate) fn at(&self, at: usize) -> &T {
        &self.values[self.first + at]
    }

    #[inline]
    pub(crate) fn at_mut(&mut self, at: usize) -> &mut T {
        &mut self.values[self.first + at]
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_place_and_all_have_lines_of_their_own() {
        let mut lines = Lines::new(33, |n| n as u32);
        assert_eq!([0, 1, 31, 32].map(|n| *lines.at(n)), [0, 1, 31, 32]);
        *lines.at_mut(32) = 7;
        assert_eq!((*lines.at(31), *lines.at(32)), (31, 7));
        assert!(std::ptr::from_ref(lines.at(0)).addr().is_multiple_of(PAIR));
        assert!(lines.values.len() - lines.first - 33 >= PAIR / 4, "room behind");
    }

    #[test]
    fn values_of_any_size_have_room_on_both_sides() {
        let large = Lines::new(3, |n| [n as u64; 20]);
        assert_eq!((large.at(0)[19], large.at(2)[0]), (0, 2));
        assert!(large.values.len() > large.first + 3);
        let odd = Lines::new(2, |n| [n as u8; 3]);
        assert_eq!((odd.at(0)[0], odd.at(1)[2]), (0, 1));
        // Every eighth of these begins a pair of lines, if any does; malloc aligns to 16 bytes.
        let cells = Lines::new(4, |n| [n as u128; 3]);
        assert!(std::ptr::from_ref(cells.at(0)).addr().is_multiple_of(PAIR));
        assert_eq!((cells.at(0)[0], cells.at(3)[2]), (0, 3));
    }
}
