//! A node of [`SectorIndex`](super::SectorIndex): up to 16 keys in order, and what each leads to.
//!
//! Knows nothing of levels, lanes or requests.
//!
//! Entries never move. Their order is a permutation: nibble `r` of a word is the cell of the entry with rank
//! `r`, so inserting or removing shifts a register and not memory, as in Mao, Kohler and Morris, "Cache
//! Craftiness for Fast Multicore Key-Value Storage" (2012). And since the rank of a key is the number of
//! keys below it, a search counts all cells in whatever order they lie, without a branch.

/// Entries in a full node: nibbles in a word.
pub(super) const FULL: usize = 16;
/// Fewer entries than this are too few for any node but a root. A quarter and not half of [`FULL`]: a node
/// that was just split must lose half of its entries before it is joined again.
pub(super) const LEAST: usize = FULL / 4;
/// No node.
pub(super) const NONE: u32 = u32::MAX;
/// The key of an unused cell, above every real one. All keys fit in 63 bits, so that "is below" is the sign
/// of a difference, which every processor can compute for several cells at a time.
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
        // The mask on the shift spares a check; ranks are below 16.
        (self.order >> (4 * rank as u32 & 63)) as usize & (FULL - 1)
    }

    /// The key of rank `rank`; [`UNUSED`] if there are not so many.
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

    /// How many keys are below `key`, which is at most [`UNUSED`].
    #[inline]
    fn below(&self, key: u64) -> usize {
        self.keys.iter().map(|k| k.wrapping_sub(key) >> 63).sum::<u64>() as usize
    }

    /// The rank of the first key that is at least `key`; `len` if there is none.
    #[inline]
    pub(super) fn at_or_after(&self, key: u64) -> usize {
        self.below(key)
    }

    /// In an inner node, the rank of the child that `key` belongs to. Children's keys are where they begin,
    /// and the first one of a node begins no later than anything that is looked for in that node.
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
        // The nibble of the cell moves down from rank `len` to `rank`, those between move up.
        let (below, between, above) = ranks(rank, len);
        let order = self.order;
        self.order =
            order & (below | above) | (order & between) << 4 | (cell as u64) << (4 * rank as u32);
        self.len += 1;
    }

    #[inline]
    pub(super) fn remove(&mut self, rank: usize) {
        let last = self.len().wrapping_sub(1);
        assert!(rank <= last && last < FULL, "no such entry in a node");
        let cell = self.cell(rank);
        self.keys[cell] = UNUSED;
        // The other way round: the nibble of the cell moves up to where the unused ones are.
        let (below, between, above) = ranks(rank, last);
        let order = self.order;
        self.order =
            order & (below | above) | order >> 4 & between | (cell as u64) << (4 * last as u32);
        self.len -= 1;
    }

    /// Moves entries between `self` and `right`, its neighbour, until `self` holds `keep` of them. This is
    /// how nodes are split (`right` is empty), joined (`keep` is all) and evened out.
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

/// Masks over the nibbles of an order: ranks below `from`, ranks `from..to`, and ranks above `to`.
#[inline]
fn ranks(from: usize, to: usize) -> (u64, u64, u64) {
    let below = (1 << (4 * from as u32 & 63)) - 1;
    let up_to = (1 << (4 * to as u32 & 63)) - 1;
    (below, up_to & !below, !(up_to << 4 | 15))
}
