//! An array that shares no cache line with anything else.
//!
//! For what one thread writes all the time: what malloc puts beside a small array may be another thread's, and then
//! both fetch the line from each other at every step. Not for large ones, where it would make no difference.

use crossbeam_utils::CachePadded;

/// So many values, in blocks of `N`, a power of two that fills one line or two.
#[derive(Debug)]
pub(crate) struct Lines<T, const N: usize>(Box<[CachePadded<[T; N]>]>);

impl<T, const N: usize> Lines<T, N> {
    /// At least `len` values.
    pub(crate) fn new(len: usize, make: impl Fn(usize) -> T) -> Self {
        let block = |first: usize| CachePadded::new(std::array::from_fn(|n| make(first + n)));
        Self((0..len.next_multiple_of(N)).step_by(N).map(block).collect())
    }

    #[inline]
    pub(crate) fn at(&self, at: usize) -> &T {
        &self.0[at / N][at % N]
    }

    #[inline]
    pub(crate) fn at_mut(&mut self, at: usize) -> &mut T {
        &mut self.0[at / N][at % N]
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_place_and_all_have_lines_of_their_own() {
        let mut lines = Lines::<u32, 32>::new(33, |n| n as u32);
        assert_eq!((*lines.at(0), *lines.at(31), *lines.at(32), *lines.at(63)), (0, 31, 32, 63));
        *lines.at_mut(32) = 7;
        assert_eq!((*lines.at(31), *lines.at(32)), (31, 7));
        assert!(std::ptr::from_ref(lines.at(0)).addr().is_multiple_of(64));
        assert_eq!(Lines::<u64, 16>::new(16, |_| 0).0.len(), 1);
    }
}
