//! [`Few`]: a short list of fixed capacity, without the growth that a vector would check for at each value.

/// Completions gathered for one submitter at a time, and tags that go back at a time.
pub(crate) const BATCH: usize = 32;

/// Up to `N` values in order; `N` is a power of two.
#[derive(Debug)]
pub(crate) struct Few<T, const N: usize> {
    list: [T; N],
    len: usize,
}

impl<T: Copy, const N: usize> Few<T, N> {
    /// An empty list; `filler` is in the places that are not used.
    pub(crate) fn new(filler: T) -> Self {
        const { assert!(N.is_power_of_two()) };
        Self { list: [filler; N], len: 0 }
    }

    /// Adds a value. The caller has seen that the list [is not full](Self::is_full).
    #[inline]
    pub(crate) fn push(&mut self, value: T) {
        debug_assert!(!self.is_full(), "a list that is full takes nothing");
        // The remainder spares a check of the bounds.
        self.list[self.len % N] = value;
        self.len += 1;
    }

    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.len == N
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The values, the oldest first.
    #[inline]
    pub(crate) fn values(&self) -> &[T] {
        &self.list[..self.len]
    }

    #[inline]
    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn it_holds_what_it_was_given_until_it_is_cleared() {
        let mut few = Few::<u32, 4>::new(0);
        assert!(few.is_empty() && few.values().is_empty());
        (1..=4).for_each(|n| few.push(n));
        assert!(few.is_full() && few.values() == [1, 2, 3, 4]);
        few.clear();
        few.push(9);
        assert!(!few.is_full() && few.values() == [9]);
    }
}
