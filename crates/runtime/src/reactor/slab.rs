//! A table of numbered, reused entries. Plain data, without locks and independent of I/Os.

/// Values with numbers that stay the same until the values are removed. Never shrinks.
pub(super) struct Slab<T> {
    entries: Vec<Entry<T>>,
    /// The first free entry, or [`NIL`].
    free: u32,
}

enum Entry<T> {
    Used(T),
    /// The next free entry, or [`NIL`].
    Free(u32),
}

const NIL: u32 = u32::MAX;

impl<T> Slab<T> {
    /// An empty table, which holds `n` values before it allocates.
    pub(super) fn with_capacity(n: usize) -> Self {
        Self { entries: Vec::with_capacity(n), free: NIL }
    }

    /// Inserts a value and returns its number. O(1), except when more entries are used than ever before.
    ///
    /// # Panics
    /// If 2^32 - 1 entries are used.
    pub(super) fn insert(&mut self, value: T) -> u32 {
        let at = self.free;
        if at == NIL {
            let at = u32::try_from(self.entries.len()).ok().filter(|at| *at != NIL);
            self.entries.push(Entry::Used(value));
            return at.expect("fewer I/Os wait than memory could hold");
        }
        match std::mem::replace(&mut self.entries[at as usize], Entry::Used(value)) {
            Entry::Free(next) => self.free = next,
            Entry::Used(_) => unreachable!("entry {at} is in the list of free ones"),
        }
        at
    }

    /// Removes the value at `at`. O(1).
    ///
    /// # Panics
    /// If the entry is free.
    pub(super) fn remove(&mut self, at: u32) -> T {
        match std::mem::replace(&mut self.entries[at as usize], Entry::Free(self.free)) {
            Entry::Used(value) => {
                self.free = at;
                value
            }
            Entry::Free(_) => panic!("nothing is at {at}"),
        }
    }

    /// The value at `at`.
    ///
    /// # Panics
    /// If the entry is free.
    pub(super) fn get(&self, at: u32) -> &T {
        match &self.entries[at as usize] {
            Entry::Used(value) => value,
            Entry::Free(_) => panic!("nothing is at {at}"),
        }
    }

    /// The first number at which `is` accepts the value. O(n).
    pub(super) fn find(&self, is: impl Fn(u32, &T) -> bool) -> Option<u32> {
        let used = (0..).zip(&self.entries);
        used.filter_map(|(at, entry)| match entry {
            Entry::Used(value) => Some((at, value)),
            Entry::Free(_) => None,
        })
        .find(|(at, value)| is(*at, value))
        .map(|(at, _)| at)
    }

    /// The value at `at`.
    ///
    /// # Panics
    /// If the entry is free.
    pub(super) fn get_mut(&mut self, at: u32) -> &mut T {
        match &mut self.entries[at as usize] {
            Entry::Used(value) => value,
            Entry::Free(_) => panic!("nothing is at {at}"),
        }
    }

    /// The numbers in use, ascending. O(n).
    pub(super) fn used(&self) -> impl Iterator<Item = u32> + '_ {
        let used = |(at, entry): (u32, _)| matches!(entry, &Entry::Used(_)).then_some(at);
        (0..).zip(&self.entries).filter_map(used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_used_again_before_new_ones_are_made() {
        let mut slab = Slab::with_capacity(2);
        let numbers: Vec<u32> = ["a", "b", "c"].map(|value| slab.insert(value)).into();
        assert_eq!(numbers, [0, 1, 2]);
        assert_eq!((slab.remove(0), slab.remove(2)), ("a", "c"));
        assert_eq!(slab.used().collect::<Vec<_>>(), [1]);
        assert_eq!((slab.insert("d"), slab.insert("e"), slab.insert("f")), (2, 0, 3));
        assert_eq!(*slab.get_mut(0), "e");
    }

    #[test]
    #[should_panic(expected = "nothing is at 0")]
    fn a_number_is_good_once() {
        let mut slab = Slab::with_capacity(1);
        let at = slab.insert(());
        slab.remove(at);
        slab.remove(at);
    }
}
