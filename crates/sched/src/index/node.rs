//! A node of [`SectorIndex`](super::SectorIndex): up to 16 keys in order, each with a value.
//!
//! It knows no levels, lanes or requests.
//!
//! Entries never move. Their order is a permutation: nibble `r` of a word is the cell of the entry with rank
//! `r`, so inserting or removing shifts a register and not memory, as in Mao, Kohler and Morris, "Cache
//! Craftiness for Fast Multicore Key-Value Storage" (2012). Since the rank of a key is the number of keys
//! below it, a search counts over all cells in any order, without a branch.

/// Entries in a full node: the number of nibbles in a word.
pub(super) const FULL: usize = 16;
/// The least number of entries in a node other than a root. A quarter and not half of [`FULL`]: a node that was just
/// split must lose half of its entries before it is joined again.
pub(super) const LEAST: usize = FULL / 4;
/// No node.
pub(super) const NONE: u32 = u32::MAX;
/// The key of an unused cell, above every real one. All keys fit in 63 bits, so that "is below" is the sign of a
/// difference, which every processor can compute for several cells at a time.
pub(super) const UNUSED: u64 = u64::MAX >> 1;

/// A node.
#[derive(Clone)]
#[repr(align(64))]
pub(super) struct Node {
    keys: [u64; FULL],
    values: [u32; FULL],
    /// Ranks `0..len` are entries in ascending order of their keys; the rest are unused cells.
    order: u64,
    len: u32,
    /// The node to the right on the same level; for a free node, the next free one.
    pub(super) next: u32,
}

impl Node {
    pub(super) const EMPTY: Self = Self {
        keys: [UNUSED; FULL],
        values: [0; FULL],
        order: 0xfedc_ba98_7654_3210,
        len: 0,
        next: NONE,
    };

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.len() == FULL
    }

    #[inline]
    fn cell(&self, rank: usize) -> usize {
        (self.order >> nibble(rank)) as usize & (FULL - 1)
    }

    /// The key of rank `rank`; [`UNUSED`] if there are fewer entries.
    #[inline]
    pub(super) fn key(&self, rank: usize) -> u64 {
        if rank < self.len() { self.keys[self.cell(rank)] } else { UNUSED }
    }

    #[inline]
    pub(super) fn value(&self, rank: usize) -> u32 {
        self.values[self.cell(rank)]
    }

    #[inline]
    pub(super) fn set_value(&mut self, rank: usize, value: u32) {
        self.values[self.cell(rank)] = value;
    }

    #[inline]
    pub(super) fn set_key(&mut self, rank: usize, key: u64) {
        self.keys[self.cell(rank)] = key;
    }

    /// The number of keys below `key`, which is at most [`UNUSED`]: the rank of the first key that is not below.
    #[inline]
    pub(super) fn below(&self, key: u64) -> usize {
        self.keys.iter().map(|k| k.wrapping_sub(key) >> 63).sum::<u64>() as usize
    }

    /// In an inner node, the rank of the child that `key` belongs to. The key of a child is where it begins, and the
    /// first child of a node begins no later than any key that is searched in that node.
    #[inline]
    pub(super) fn child_of(&self, key: u64) -> usize {
        self.below(key + 1).saturating_sub(1)
    }

    #[inline]
    pub(super) fn insert(&mut self, rank: usize, key: u64, value: u32) {
        let len = self.len();
        assert!(rank <= len && len < FULL && key < UNUSED, "no room in a node");
        let cell = self.cell(len);
        self.keys[cell] = key;
        self.values[cell] = value;
        // The nibble of the cell moves down from rank `len` to `rank`; those between move up.
        let (between, others) = ranks(rank, len);
        let moved = (self.order & between) << 4;
        self.order = (self.order & others) | moved | (cell as u64) << nibble(rank);
        self.len += 1;
    }

    #[inline]
    pub(super) fn remove(&mut self, rank: usize) {
        let last = self.len().wrapping_sub(1);
        assert!(rank <= last && last < FULL, "no such entry in a node");
        let cell = self.cell(rank);
        self.keys[cell] = UNUSED;
        // The reverse: the nibble of the cell moves up to the unused ones.
        let (between, others) = ranks(rank, last);
        let moved = (self.order >> 4) & between;
        self.order = (self.order & others) | moved | (cell as u64) << nibble(last);
        self.len -= 1;
    }

    /// Moves entries between `self` and its neighbour `right` until `self` holds `keep` of them. Used to split nodes
    /// (`right` is empty), to join them (`keep` is all) and to even them out.
    pub(super) fn share(&mut self, right: &mut Self, keep: usize) {
        while self.len() > keep {
            let rank = self.len() - 1;
            right.insert(0, self.key(rank), self.value(rank));
            self.remove(rank);
        }
        while self.len() < keep {
            self.insert(self.len(), right.key(0), right.value(0));
            right.remove(0);
        }
    }
}

/// The position of a rank's nibble. The mask is for the compiler; ranks are below 16.
#[inline]
fn nibble(rank: usize) -> u32 {
    4 * (rank as u32 % FULL as u32)
}

/// Masks over the nibbles of an order: those of the ranks `from..to`, and those below `from` and above `to`.
#[inline]
fn ranks(from: usize, to: usize) -> (u64, u64) {
    let below = |rank| (1u64 << nibble(rank)) - 1;
    let between = below(to) & !below(from);
    (between, !(between | 15 << nibble(to)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use blkmq_core::Rng;

    fn of(keys: impl IntoIterator<Item = u64>) -> Node {
        let mut node = Node::EMPTY;
        keys.into_iter().for_each(|k| node.insert(node.below(k), k, k as u32 + 100));
        node
    }

    fn entries(node: &Node) -> Vec<(u64, u32)> {
        (0..node.len()).map(|rank| (node.key(rank), node.value(rank))).collect()
    }

    #[test]
    fn any_sequence_leaves_a_permutation_in_order() {
        let mut rng = Rng::new(1);
        let (mut node, mut model) = (Node::EMPTY, Vec::new());
        for _ in 0..if cfg!(miri) { 60 } else { 20_000 } {
            let key = rng.below(1 << 20);
            let rank = node.below(key);
            assert_eq!(rank, model.partition_point(|(k, _)| *k < key));
            if !node.is_full() && rng.chance(1, 2) {
                node.insert(rank, key, key as u32);
                model.insert(rank, (key, key as u32));
            } else if rank < node.len() {
                node.remove(rank);
                model.remove(rank);
            }
            assert_eq!(entries(&node), model);
            let cells = (0..FULL).fold(0u32, |seen, rank| seen | 1 << node.cell(rank));
            assert_eq!(cells, 0xffff, "a cell was lost");
        }
    }

    #[test]
    fn sharing_keeps_order_whatever_the_split() {
        let whole = entries(&of(0..12));
        for before in 0..=12 {
            for keep in 0..=12 {
                let (mut left, mut right) = (of(0..before), of(before..12));
                left.share(&mut right, keep);
                assert_eq!(left.len(), keep);
                let mut both = entries(&left);
                both.extend(entries(&right));
                assert_eq!(both, whole, "{before} then {keep}");
            }
        }
    }

    #[test]
    fn a_child_takes_everything_from_its_key_to_the_next_ones() {
        let node = of([50, 70, 60]);
        let chosen: Vec<usize> = [50, 59, 60, 69, 70, 99].map(|k| node.child_of(k)).into();
        assert_eq!(chosen, [0, 0, 1, 1, 2, 2]);
    }
}
