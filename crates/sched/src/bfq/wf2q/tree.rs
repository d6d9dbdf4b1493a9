//! A level of the hierarchy, the root or a group: a service tree for each class, and the entity in service; the
//! entities that compete for service (queues or groups, with their timestamps); and the tree that has them in order of
//! their finishing times, each with the earliest start below it. The parent module connects the levels.
//!
//! An entity does arithmetic on virtual time and knows no trees. The tree is a treap that is threaded through the
//! entities: an entity is in one tree at a time. The heights that keep it shallow are hashes of the sequence number
//! that each entity gets when it enters, so the same calls make the same tree. All operations are O(log n), unless an
//! adversary chooses the sequence numbers.

use blkmq_core::{Instant, Nanos};

/// Entities of the idle class are considered first when they have had no turn for this long.
const IDLE_TURN: Nanos = Nanos::from_millis(200);

/// The entities of one class that compete on one level.
#[derive(Clone, Debug)]
pub(super) struct ServiceTree {
    active: u32,
    idle: u32,
    /// The entity of the idle tree that finishes first.
    first_idle: u32,
    pub(super) vtime: u64,
    /// Sum of the weights of the entities that are active, idle or in service.
    pub(super) wsum: u64,
}

impl ServiceTree {
    const NEW: Self = Self { active: NIL, idle: NIL, first_idle: NIL, vtime: 0, wsum: 0 };

    pub(super) fn insert_active(&mut self, all: &mut [Entity], e: u32, seq: u64) {
        let entity = &mut all[e as usize];
        debug_assert!(entity.place == Place::Off && entity.tracked);
        (entity.seq, entity.place) = (seq, Place::Active);
        self.active = insert(all, self.active, e);
    }

    pub(super) fn remove_active(&mut self, all: &mut [Entity], e: u32) {
        debug_assert!(all[e as usize].place == Place::Active);
        all[e as usize].place = Place::Off;
        self.active = remove(all, self.active, e);
    }

    pub(super) fn insert_idle(&mut self, all: &mut [Entity], e: u32, seq: u64) {
        let entity = &mut all[e as usize];
        debug_assert!(entity.place == Place::Off && entity.tracked);
        (entity.seq, entity.place) = (seq, Place::Idle);
        self.idle = insert(all, self.idle, e);
        if self.first_idle == NIL || before(&all[e as usize], &all[self.first_idle as usize]) {
            self.first_idle = e;
        }
    }

    pub(super) fn remove_idle(&mut self, all: &mut [Entity], e: u32) {
        debug_assert!(all[e as usize].place == Place::Idle);
        all[e as usize].place = Place::Off;
        self.idle = remove(all, self.idle, e);
        if self.first_idle == e {
            self.first_idle = first(all, self.idle);
        }
    }

    pub(super) fn track(&mut self, entity: &mut Entity) {
        debug_assert!(!entity.tracked);
        entity.tracked = true;
        self.wsum += u64::from(entity.weight);
    }

    pub(super) fn forget(&mut self, entity: &mut Entity) {
        debug_assert!(entity.tracked && entity.place == Place::Off);
        entity.tracked = false;
        self.wsum -= u64::from(entity.weight);
    }

    /// Puts the wanted weight of the entity into force.
    pub(super) fn reweigh(&mut self, entity: &mut Entity) {
        if entity.tracked {
            self.wsum = self.wsum - u64::from(entity.weight) + u64::from(entity.wanted);
        }
        entity.weight = entity.wanted;
    }

    /// Counts service of an entity, in sectors. Also forgets one idle entity whose finishing time has passed.
    #[inline]
    pub(super) fn served(&mut self, all: &mut [Entity], sectors: u64) {
        self.vtime = self.vtime.wrapping_add(delta(sectors, self.wsum));
        self.forget_one(all);
    }

    fn forget_one(&mut self, all: &mut [Entity]) {
        let e = self.first_idle;
        if e != NIL && !after(all[e as usize].finish, self.vtime) {
            self.remove_idle(all, e);
            self.forget(&mut all[e as usize]);
        }
    }

    /// The entity to be served next; [`NIL`] if none is active. If none has started, virtual time counts as the
    /// earliest start, and is set to that with `advance`.
    fn look_up(&mut self, all: &mut [Entity], advance: bool) -> u32 {
        if self.active == NIL {
            return NIL;
        }
        let at = eligible_at(all, self.active, self.vtime);
        if advance && at != self.vtime {
            self.vtime = at;
            self.forget_one(all);
        }
        first_eligible(all, self.active, at)
    }
}

/// The root or a group.
#[derive(Clone, Debug)]
pub(super) struct Level {
    pub(super) trees: [ServiceTree; 3],
    /// The entity that would be served next, updated at every change.
    pub(super) next: u32,
    /// The entity in service.
    pub(super) serving: u32,
    /// Members of active trees.
    pub(super) active: u32,
    /// The time at which the idle class last had its turn, or needed none.
    pub(super) idle_turn: Instant,
    /// Whether this is a level, and not a free place in the table.
    pub(super) exists: bool,
}

impl Level {
    pub(super) const NEW: Self = Self {
        trees: [ServiceTree::NEW; 3],
        next: NIL,
        serving: NIL,
        active: 0,
        idle_turn: Instant::ZERO,
        exists: true,
    };

    #[inline]
    pub(super) fn tree(&mut self, class: Class) -> &mut ServiceTree {
        &mut self.trees[class as usize]
    }

    /// Looks for the next entity, class by class. With `expiring`, the entity in service is about to leave.
    pub(super) fn look_up(&mut self, all: &mut [Entity], expiring: bool, now: Instant) -> u32 {
        let advance = expiring || self.serving == NIL;
        if now >= self.idle_turn + IDLE_TURN {
            let e = self.tree(Class::Idle).look_up(all, advance);
            if e != NIL {
                return e;
            }
            self.idle_turn = now;
        }
        for class in Class::ALL {
            let e = self.tree(class).look_up(all, advance);
            if e != NIL {
                return e;
            }
        }
        NIL
    }

    /// Returns whether `e` may replace `cached` as the next entity, without a look-up.
    #[inline]
    pub(super) fn overtakes(&self, all: &[Entity], e: u32, cached: u32) -> bool {
        let (new, old) = (&all[e as usize], &all[cached as usize]);
        new.class == old.class
            && !after(new.start, self.trees[new.class as usize].vtime)
            && after(old.finish, new.finish)
    }
}

/// No entity.
pub(super) const NIL: u32 = u32::MAX;

/// One sector of service at weight 1 is 2^22 units of virtual time.
const SHIFT: u32 = 22;

/// The duration of `service` sectors at `weight`, in virtual time.
#[inline]
#[must_use]
pub const fn delta(service: u64, weight: u64) -> u64 {
    (service << SHIFT) / weight
}

/// Returns whether `a` is later than `b`. Virtual time wraps, and the two are less than half of its range apart.
#[inline]
#[must_use]
pub const fn after(a: u64, b: u64) -> bool {
    (a.wrapping_sub(b) as i64) > 0
}

/// Returns the later one of two virtual times.
#[inline]
pub(super) const fn later(a: u64, b: u64) -> u64 {
    if after(a, b) { a } else { b }
}

/// A class of service: a higher class is served as long as it has requests.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Class {
    /// Before all others.
    Realtime = 0,
    /// The default; groups always have this class.
    BestEffort = 1,
    /// Served when no other class has requests, and for one turn after 200 ms without one.
    Idle = 2,
}

impl Class {
    /// Highest first.
    pub const ALL: [Self; 3] = [Self::Realtime, Self::BestEffort, Self::Idle];
}

/// The tree of an entity. An entity in service is in none, unless it is a group with further entities to serve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    Off,
    Active,
    Idle,
}

/// A queue or a group. The fields that trees read come first, in one cache line.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(super) struct Entity {
    pub(super) start: u64,
    pub(super) finish: u64,
    /// The earliest start in the subtree of this entity, if it is in the active tree.
    pub(super) min_start: u64,
    /// The order between equal finishing times: the entity that entered a tree first comes first.
    pub(super) seq: u64,
    pub(super) left: u32,
    pub(super) right: u32,
    /// The priority in the treap: an entity with a larger value is above.
    pub(super) height: u32,
    /// The weight in force.
    pub(super) weight: u32,
    /// The sectors that it may be served in its next or current slot.
    pub(super) budget: u64,
    /// The service of this slot that is not part of its timestamps yet.
    pub(super) service: u64,
    /// The weight that takes effect when it next enters the active tree.
    pub(super) wanted: u32,
    /// The factor by which the weight is raised; `weight` contains it.
    pub(super) raised: u32,
    /// The level on which it competes.
    pub(super) level: u32,
    pub(super) class: Class,
    pub(super) wanted_class: Class,
    pub(super) place: Place,
    /// The entity is active, idle or in service, so that its weight is part of the sum of its service tree.
    pub(super) tracked: bool,
}

const _: () = assert!(core::mem::offset_of!(Entity, service) == 56);

impl Entity {
    pub(super) const NEW: Self = Self {
        start: 0,
        finish: 0,
        min_start: 0,
        seq: 0,
        left: NIL,
        right: NIL,
        height: 0,
        weight: 1,
        budget: 0,
        service: 0,
        wanted: 1,
        raised: 1,
        level: 0,
        class: Class::BestEffort,
        wanted_class: Class::BestEffort,
        place: Place::Off,
        tracked: false,
    };

    /// The time at which it has been served `service` sectors since it started.
    #[inline]
    pub(super) fn finish_after(&self, service: u64) -> u64 {
        self.start.wrapping_add(delta(service, self.weight.into()))
    }
}

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

/// Inserts `new` into the tree at `root`. Returns the new root.
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

/// Removes `gone` from the tree at `root`, which contains it. Returns the new root.
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

/// Joins two trees, of which all of `left` is before all of `right`.
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
fn eligible_at(all: &[Entity], root: u32, now: u64) -> u64 {
    later(now, all[root as usize].min_start)
}

/// Of the entities that have started by `now`, the one that finishes first; [`NIL`] if none has started.
fn first_eligible(all: &[Entity], root: u32, now: u64) -> u32 {
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

    #[test]
    fn virtual_time_wraps() {
        assert!(after(5, u64::MAX - 5) && !after(u64::MAX - 5, 5) && !after(7, 7));
        assert_eq!(later(3, u64::MAX), 3);
    }

    #[test]
    fn a_heavier_entity_takes_less_virtual_time() {
        assert_eq!(delta(8, 8), 8 * delta(8, 64));
        assert_eq!(delta(1, 1), 1 << 22);
    }

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
