//! Entities in order of their finishing times, each with the earliest start below it.
//!
//! A treap that is threaded through the entities themselves: an entity is in one tree at a time. The heights that
//! keep it shallow are hashes of the sequence number that each entity gets as it enters, so that the same calls make
//! the same tree. All operations are O(log n) as long as the sequence numbers are not chosen by an adversary.

use super::entity::{Entity, NIL, after, later};

/// The height of an entity with this sequence number: a hash, the finalizer of SplitMix64.
#[inline]
fn height(seq: u64) -> u32 {
    let z = (seq ^ (seq >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z >> 32) as u32
}

/// Returns whether `a` comes before `b`. Of equal finishing times, the entity that entered first comes first.
#[inline]
pub(super) fn before(a: &Entity, b: &Entity) -> bool {
    if a.finish == b.finish { a.seq < b.seq } else { after(b.finish, a.finish) }
}

/// Computes the annotation of `node` from its children.
#[inline]
fn mend(all: &mut [Entity], node: u32) {
    let Entity { start, left, right, .. } = all[node as usize];
    let mut least = start;
    for child in [left, right] {
        if child != NIL {
            let min_start = all[child as usize].min_start;
            least = if after(least, min_start) { min_start } else { least };
        }
    }
    all[node as usize].min_start = least;
}

/// Inserts `new` into the tree at `root`; returns the new root.
pub(super) fn insert(all: &mut [Entity], root: u32, new: u32) -> u32 {
    all[new as usize].height = height(all[new as usize].seq);
    let Entity { start, height, .. } = all[new as usize];
    let (mut above, mut on_left, mut at) = (NIL, false, root);
    while at != NIL && all[at as usize].height >= height {
        on_left = before(&all[new as usize], &all[at as usize]);
        let node = &mut all[at as usize];
        if after(node.min_start, start) {
            node.min_start = start;
        }
        above = at;
        at = if on_left { node.left } else { node.right };
    }
    let (left, right) = split(all, at, new);
    (all[new as usize].left, all[new as usize].right) = (left, right);
    mend(all, new);
    if above == NIL {
        return new;
    }
    let node = &mut all[above as usize];
    *(if on_left { &mut node.left } else { &mut node.right }) = new;
    root
}

/// Removes `gone` from the tree at `root`, which contains it; returns the new root.
pub(super) fn remove(all: &mut [Entity], root: u32, gone: u32) -> u32 {
    assert!(root != NIL, "an entity is not in the tree that it says");
    if root == gone {
        return join(all, all[gone as usize].left, all[gone as usize].right);
    }
    if before(&all[gone as usize], &all[root as usize]) {
        all[root as usize].left = remove(all, all[root as usize].left, gone);
    } else {
        all[root as usize].right = remove(all, all[root as usize].right, gone);
    }
    if all[root as usize].min_start == all[gone as usize].start {
        mend(all, root);
    }
    root
}

/// Divides a tree into the part before `pivot` and the part behind it.
fn split(all: &mut [Entity], root: u32, pivot: u32) -> (u32, u32) {
    if root == NIL {
        return (NIL, NIL);
    }
    if before(&all[root as usize], &all[pivot as usize]) {
        let (left, right) = split(all, all[root as usize].right, pivot);
        all[root as usize].right = left;
        mend(all, root);
        (root, right)
    } else {
        let (left, right) = split(all, all[root as usize].left, pivot);
        all[root as usize].left = right;
        mend(all, root);
        (left, root)
    }
}

/// Joins two trees; all of `left` is before all of `right`.
fn join(all: &mut [Entity], left: u32, right: u32) -> u32 {
    if left == NIL || right == NIL {
        return if left == NIL { right } else { left };
    }
    let (l, r) = (&all[left as usize], &all[right as usize]);
    if l.height > r.height {
        all[left as usize].right = join(all, l.right, right);
        mend(all, left);
        left
    } else {
        all[right as usize].left = join(all, left, r.left);
        mend(all, right);
        right
    }
}

/// The entity that finishes first; [`NIL`] if there is none.
pub(super) fn first(all: &[Entity], root: u32) -> u32 {
    let mut node = root;
    while node != NIL && all[node as usize].left != NIL {
        node = all[node as usize].left;
    }
    node
}

/// The time at which an entity of the tree at `root`, which is not empty, may be served: `now`, or the earliest start
/// if all of them start later.
#[inline]
pub(super) fn eligible_at(all: &[Entity], root: u32, now: u64) -> u64 {
    later(now, all[root as usize].min_start)
}

/// Of the entities that have started by `now`, the one that finishes first; [`NIL`] if none has started.
pub(super) fn first_eligible(all: &[Entity], root: u32, now: u64) -> u32 {
    let started = |node: u32| node != NIL && !after(all[node as usize].min_start, now);
    if !started(root) {
        return NIL;
    }
    let mut node = root;
    loop {
        let Entity { start, left, right, .. } = all[node as usize];
        if started(left) {
            node = left;
        } else if after(start, now) {
            // An entity below has started, and it is not on the left.
            node = right;
        } else {
            return node;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use blkmq_core::Rng;

    fn collect(all: &[Entity], root: u32, out: &mut Vec<u32>) -> u64 {
        let Entity { start, left, right, min_start, height, .. } = all[root as usize];
        let below = [left, right].into_iter().filter(|child| *child != NIL);
        below.for_each(|child| assert!(all[child as usize].height <= height, "{child} is higher"));
        let mut least = start;
        if left != NIL {
            least = least.min(collect(all, left, out));
        }
        out.push(root);
        if right != NIL {
            least = least.min(collect(all, right, out));
        }
        assert_eq!(min_start, least, "the annotation of {root}");
        least
    }

    fn depth(all: &[Entity], root: u32) -> usize {
        if root == NIL {
            return 0;
        }
        let Entity { left, right, .. } = all[root as usize];
        1 + depth(all, left).max(depth(all, right))
    }

    #[test]
    fn s19_02_order_annotations_and_look_up_equal_brute_force_over_random_trees() {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let mut all = alloc::vec![Entity::NEW; 60];
            let (mut root, mut inside, mut seq) = (NIL, Vec::new(), 0);
            for _ in 0..300 {
                let at = rng.below(60) as u32;
                match inside.iter().position(|e| *e == at) {
                    Some(place) => {
                        root = remove(&mut all, root, at);
                        inside.swap_remove(place);
                    }
                    None => {
                        seq += 1;
                        let start = rng.below(100);
                        let finish = start + rng.below(50);
                        all[at as usize] = Entity { start, finish, seq, ..Entity::NEW };
                        root = insert(&mut all, root, at);
                        inside.push(at);
                    }
                }
                let key = |e: &u32| (all[*e as usize].finish, all[*e as usize].seq);
                inside.sort_by_key(key);
                let mut order = Vec::new();
                if root != NIL {
                    collect(&all, root, &mut order);
                }
                assert_eq!(order, inside, "seed {seed}");
                assert_eq!(first(&all, root), inside.first().copied().unwrap_or(NIL));
                let now = rng.below(120);
                let expected = inside.iter().copied().find(|e| all[*e as usize].start <= now);
                assert_eq!(first_eligible(&all, root, now), expected.unwrap_or(NIL));
            }
        }
    }

    #[test]
    fn a_thousand_entities_in_any_order_of_arrival_are_not_deep() {
        let orders: [fn(u64) -> u64; 3] = [|i| i, |i| 5_000 - i, |i| i * 7_919 % 1_000];
        for order in orders {
            let mut all = alloc::vec![Entity::NEW; 1_000];
            let mut root = NIL;
            for at in 0..1_000_u32 {
                all[at as usize].finish = order(at.into());
                all[at as usize].seq = at.into();
                root = insert(&mut all, root, at);
            }
            assert!(depth(&all, root) < 40, "{}", depth(&all, root));
        }
    }
}
