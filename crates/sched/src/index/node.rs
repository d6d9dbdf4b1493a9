//! A node of [`SectorIndex`](super::SectorIndex): a short sorted run of keys and what each leads to.
//!
//! Knows nothing of levels, lanes or requests. Keys are apart from values, because a search reads only keys:
//! one of 32 takes five steps within four cache lines.

/// Entries in a full node.
pub(super) const FULL: usize = 32;
/// Fewer entries than this are too few for any node but a root. A quarter and not half of [`FULL`]: a node
/// that was just split must lose half of its entries before it is joined again.
pub(super) const LEAST: usize = FULL / 4;
/// No node.
pub(super) const NONE: u32 = u32::MAX;

/// A node. Entries `0..len` are in use, in ascending order of their keys.
#[derive(Clone)]
#[repr(align(64))]
pub(super) struct Node {
    keys: [u64; FULL],
    values: [u32; FULL],
    len: u32,
    /// The node to the right on the same level; for a free node, the next free one.
    pub(super) next: u32,
}

impl Node {
    pub(super) const EMPTY: Self = Self { keys: [0; FULL], values: [0; FULL], len: 0, next: NONE };

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.len() == FULL
    }

    #[inline]
    pub(super) fn keys(&self) -> &[u64] {
        // The clamp costs nothing and spares every user of the slice its bounds check.
        &self.keys[..self.len().min(FULL)]
    }

    #[inline]
    pub(super) fn value(&self, at: usize) -> u32 {
        self.values[at]
    }

    #[inline]
    pub(super) fn set_value(&mut self, at: usize, value: u32) {
        self.values[at] = value;
    }

    #[inline]
    pub(super) fn set_key(&mut self, at: usize, key: u64) {
        self.keys[at] = key;
    }

    /// The first entry whose key is at least `key`; `len` if there is none.
    #[inline]
    pub(super) fn at_or_after(&self, key: u64) -> usize {
        self.keys().partition_point(|k| *k < key)
    }

    /// In an inner node, the entry of the child that `key` belongs to. The first child takes everything
    /// below the second one's key, so its own key does not matter.
    #[inline]
    pub(super) fn child_of(&self, key: u64) -> usize {
        self.keys()[1..].partition_point(|k| *k <= key)
    }

    #[inline]
    pub(super) fn insert(&mut self, at: usize, key: u64, value: u32) {
        let len = self.len();
        assert!(at <= len && len < FULL, "no room in a node");
        self.keys.copy_within(at..len, at + 1);
        self.values.copy_within(at..len, at + 1);
        self.keys[at] = key;
        self.values[at] = value;
        self.len += 1;
    }

    #[inline]
    pub(super) fn remove(&mut self, at: usize) {
        let len = self.len();
        assert!(at < len && len <= FULL, "no such entry in a node");
        self.keys.copy_within(at + 1..len, at);
        self.values.copy_within(at + 1..len, at);
        self.len -= 1;
    }

    /// Moves entries between `self` and `right`, its neighbour, until `self` holds `keep` of them. This is
    /// how nodes are split (`right` is empty), joined (`keep` is all) and evened out.
    pub(super) fn share(&mut self, right: &mut Self, keep: usize) {
        let (mine, theirs) = (self.len(), right.len());
        if keep < mine {
            let moved = mine - keep;
            right.keys.copy_within(..theirs, moved);
            right.values.copy_within(..theirs, moved);
            right.keys[..moved].copy_from_slice(&self.keys[keep..mine]);
            right.values[..moved].copy_from_slice(&self.values[keep..mine]);
        } else {
            let moved = keep - mine;
            self.keys[mine..keep].copy_from_slice(&right.keys[..moved]);
            self.values[mine..keep].copy_from_slice(&right.values[..moved]);
            right.keys.copy_within(moved..theirs, 0);
            right.values.copy_within(moved..theirs, 0);
        }
        self.len = keep as u32;
        right.len = (mine + theirs - keep) as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn of(keys: impl Iterator<Item = u64>) -> Node {
        let mut node = Node::EMPTY;
        keys.for_each(|k| node.insert(node.len(), k, k as u32 + 100));
        node
    }

    fn entries(node: &Node) -> Vec<(u64, u32)> {
        (0..node.len()).map(|i| (node.keys()[i], node.value(i))).collect()
    }

    #[test]
    fn sharing_keeps_order_whatever_the_split() {
        let whole = entries(&of(0..24));
        for before in 0..=24 {
            for keep in 0..=24 {
                let (mut left, mut right) = (of(0..before), of(before..24));
                left.share(&mut right, keep);
                assert_eq!(left.len(), keep);
                let mut both = entries(&left);
                both.extend(entries(&right));
                assert_eq!(both, whole, "{before} then {keep}");
            }
        }
    }

    #[test]
    fn the_first_child_takes_everything_below_the_second() {
        let node = of([50, 60, 70].into_iter());
        let chosen: Vec<usize> = [0, 59, 60, 69, 70, 99].map(|k| node.child_of(k)).into();
        assert_eq!(chosen, [0, 0, 1, 1, 2, 2]);
    }
}
