//! A level of the hierarchy, the root or a group: a service tree for each class, and the entity in service.
//!
//! This module concerns one level. The parent module connects the levels.

use super::tree;
use super::tree::{Class, Entity, NIL, Place, after, delta};
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
        self.active = tree::insert(all, self.active, e);
    }

    pub(super) fn remove_active(&mut self, all: &mut [Entity], e: u32) {
        debug_assert!(all[e as usize].place == Place::Active);
        all[e as usize].place = Place::Off;
        self.active = tree::remove(all, self.active, e);
    }

    pub(super) fn insert_idle(&mut self, all: &mut [Entity], e: u32, seq: u64) {
        let entity = &mut all[e as usize];
        debug_assert!(entity.place == Place::Off && entity.tracked);
        (entity.seq, entity.place) = (seq, Place::Idle);
        self.idle = tree::insert(all, self.idle, e);
        if self.first_idle == NIL || tree::before(&all[e as usize], &all[self.first_idle as usize])
        {
            self.first_idle = e;
        }
    }

    pub(super) fn remove_idle(&mut self, all: &mut [Entity], e: u32) {
        debug_assert!(all[e as usize].place == Place::Idle);
        all[e as usize].place = Place::Off;
        self.idle = tree::remove(all, self.idle, e);
        if self.first_idle == e {
            self.first_idle = tree::first(all, self.idle);
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

    /// The wanted weight of the entity comes into force.
    pub(super) fn reweigh(&mut self, entity: &mut Entity) {
        if entity.tracked {
            self.wsum = self.wsum - u64::from(entity.weight) + u64::from(entity.wanted);
        }
        entity.weight = entity.wanted;
    }

    /// An entity has been served; also forgets one idle entity whose finishing time has passed.
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

    /// The entity to be served next. If none has started yet, virtual time is taken as the earliest start; with
    /// `advance`, it is set to that.
    fn look_up(&mut self, all: &mut [Entity], advance: bool) -> u32 {
        if self.active == NIL {
            return NIL;
        }
        let at = tree::eligible_at(all, self.active, self.vtime);
        if advance && at != self.vtime {
            self.vtime = at;
            self.forget_one(all);
        }
        tree::first_eligible(all, self.active, at)
    }
}

/// The root or a group.
#[derive(Clone, Debug)]
pub(super) struct Level {
    pub(super) trees: [ServiceTree; 3],
    /// The entity that would be served next; updated at every change.
    pub(super) next: u32,
    /// The entity in service.
    pub(super) serving: u32,
    /// Members of active trees.
    pub(super) active: u32,
    /// The time at which the idle class last had its turn, or had no use for one.
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

    /// Looks through the classes in their order. `expiring`: the entity in service is about to leave.
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
