//! The service engine: B-WF2Q+ in a tree of levels (`spec/bfq.md` section 3).
//!
//! Entities (queues, and groups of them) get turns so that over time each receives service in proportion to its
//! weight, and at no time deviates from that by more than about a budget. Each has a virtual time at which its turn
//! starts and one at which it finishes if it uses up its budget; of the entities that have started, the one that
//! finishes first is next.
//!
//! This module knows neither requests nor the meaning of a queue. The calls in their order: [`attach`] a queue,
//! [`set_budget`] and [`activate`] it when it has requests, [`pick`], [`serve`] once for each request, and at the end
//! of the slot [`requeue`] or [`deactivate`] it and [`end_slot`]. Only [`add_level`] allocates. Every call is
//! O(levels * log entities), where levels are those of nested groups.
//!
//! [`attach`]: Wf2q::attach
//! [`set_budget`]: Wf2q::set_budget
//! [`activate`]: Wf2q::activate
//! [`pick`]: Wf2q::pick
//! [`serve`]: Wf2q::serve
//! [`requeue`]: Wf2q::requeue
//! [`deactivate`]: Wf2q::deactivate
//! [`end_slot`]: Wf2q::end_slot
//! [`add_level`]: Wf2q::add_level

mod tree;

use alloc::vec::Vec;
use blkmq_core::Instant;
pub use tree::{Class, after, delta};
use tree::{Entity, Level, NIL, Place, later};

/// The number of the root's level.
pub const ROOT: u32 = 0;

/// The occasion on which a queue is put back or taken off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// It waits, and a property of it has changed.
    Waiting,
    /// It was in service and its slot is over.
    Expiring,
}

/// The time from which a queue that becomes active has a claim to service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum From {
    /// From the present virtual time.
    Now,
    /// From its last finishing time, if that is in the past: it was idle only for a moment.
    WhereItStopped,
}

/// The memory of a queue that is taken off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keep {
    /// Its service ahead of its share is remembered, for as long as it is ahead.
    Lead,
    /// No service is remembered.
    Nothing,
}

/// The state of an entity, as shown by [`Wf2q::view`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct View {
    /// The start of its turn, in virtual time.
    pub start: u64,
    /// The end of its turn, in virtual time.
    pub finish: u64,
    /// Sectors of its slot.
    pub budget: u64,
    /// Sectors served in its slot.
    pub service: u64,
    /// The weight in force.
    pub weight: u32,
    /// Whether the entity is in an active tree.
    pub active: bool,
    /// Whether the weight of the entity is part of the sum.
    pub tracked: bool,
}

/// All entities and levels. Queues have the numbers `0..queues`.
pub struct Wf2q {
    all: Vec<Entity>,
    levels: Vec<Level>,
    /// The number of queues; the entity of level `l` has the number `queues + l`.
    queues: u32,
    seq: u64,
}

impl Wf2q {
    /// Makes room for `queues` queues, none of which is active, and a root.
    #[must_use]
    pub fn new(queues: u32) -> Self {
        let mut all = alloc::vec![Entity::NEW; queues as usize];
        all.push(Entity::NEW);
        Self { all, levels: alloc::vec![Level::NEW], queues, seq: 0 }
    }

    /// Adds a level below `parent`, with a weight of at least 1. Allocates, unless a level has been removed.
    pub fn add_level(&mut self, parent: u32, weight: u32) -> u32 {
        let free = self.levels.iter().position(|level| !level.exists);
        let level = free.unwrap_or(self.levels.len());
        if free.is_none() {
            self.levels.push(Level::NEW);
            self.all.push(Entity::NEW);
        }
        self.levels[level] = Level::NEW;
        let e = self.queues as usize + level;
        self.all[e] = Entity { level: parent, weight, wanted: weight, ..Entity::NEW };
        level as u32
    }

    /// Removes a level that has neither queues nor levels below it.
    ///
    /// # Panics
    /// If an entity of it is still active.
    pub fn remove_level(&mut self, level: u32) {
        let gone = &mut self.levels[level as usize];
        assert!(level != ROOT && gone.active == 0 && gone.serving == NIL, "level {level} in use");
        gone.exists = false;
        self.forget(self.group(level));
    }

    /// Sets the weight of a level, from the next time its group is put on a tree.
    pub fn set_level_weight(&mut self, level: u32, weight: u32) {
        let e = self.group(level);
        self.all[e as usize].wanted = weight;
    }

    /// The level above `level`.
    #[must_use]
    pub fn parent(&self, level: u32) -> Option<u32> {
        (level != ROOT).then(|| self.all[self.group(level) as usize].level)
    }

    /// Puts a new queue on a level.
    pub fn attach(&mut self, queue: u32, level: u32, class: Class, weight: u32) {
        debug_assert!(queue < self.queues && !self.all[queue as usize].tracked);
        let new = Entity { level, class, weight, wanted: weight, ..Entity::NEW };
        self.all[queue as usize] = Entity { wanted_class: class, ..new };
    }

    /// Moves a queue that is neither active nor in service to another level. Its past is forgotten.
    pub fn move_to(&mut self, queue: u32, level: u32) {
        self.forget(queue);
        self.all[queue as usize].level = level;
    }

    /// Sets class and weight of a queue. `raised` is the factor of its raising, which `weight` contains. The class
    /// takes effect at its next activation, the weight also when it is next requeued.
    pub fn want(&mut self, queue: u32, class: Class, weight: u32, raised: u32) {
        let entity = &mut self.all[queue as usize];
        (entity.wanted_class, entity.wanted, entity.raised) = (class, weight, raised);
    }

    /// Applies the wanted weight immediately. Only for a queue that is in no active tree.
    pub fn reweigh(&mut self, queue: u32) {
        let Entity { level, class, .. } = self.all[queue as usize];
        self.levels[level as usize].tree(class).reweigh(&mut self.all[queue as usize]);
    }

    /// Sets the budget of a queue. An active queue must be requeued afterwards.
    pub fn set_budget(&mut self, queue: u32, budget: u64) {
        self.all[queue as usize].budget = budget;
    }

    /// Sets the service of a queue in its current slot.
    pub fn set_service(&mut self, queue: u32, service: u64) {
        self.all[queue as usize].service = service;
    }

    /// The budget of a queue.
    #[inline]
    #[must_use]
    pub fn budget(&self, queue: u32) -> u64 {
        self.all[queue as usize].budget
    }

    /// The service that a queue has received in its slot.
    #[inline]
    #[must_use]
    pub fn service(&self, queue: u32) -> u64 {
        self.all[queue as usize].service
    }

    /// The weight of a queue in force.
    #[inline]
    #[must_use]
    pub fn weight(&self, queue: u32) -> u32 {
        self.all[queue as usize].weight
    }

    /// The class of a queue in force.
    #[must_use]
    pub fn class(&self, queue: u32) -> Class {
        self.all[queue as usize].class
    }

    /// The level of a queue.
    #[inline]
    #[must_use]
    pub fn level(&self, queue: u32) -> u32 {
        self.all[queue as usize].level
    }

    /// The weight of a level's group in force.
    #[must_use]
    pub fn level_weight(&self, level: u32) -> u32 {
        self.all[self.group(level) as usize].weight
    }

    /// The sum of weights of a class on a level: of the entities that are active, idle or in service.
    #[must_use]
    pub fn wsum(&self, level: u32, class: Class) -> u64 {
        self.levels[level as usize].trees[class as usize].wsum
    }

    /// The virtual time of a class on a level.
    #[must_use]
    pub fn vtime(&self, level: u32, class: Class) -> u64 {
        self.levels[level as usize].trees[class as usize].vtime
    }

    /// Returns whether the weight of this queue is part of the sum.
    #[must_use]
    pub fn is_tracked(&self, queue: u32) -> bool {
        self.all[queue as usize].tracked
    }

    /// The state of a queue.
    #[must_use]
    pub fn view(&self, queue: u32) -> View {
        let e = &self.all[queue as usize];
        View {
            start: e.start,
            finish: e.finish,
            budget: e.budget,
            service: e.service,
            weight: e.weight,
            active: e.place == Place::Active,
            tracked: e.tracked,
        }
    }

    /// The state of the group of a level.
    #[must_use]
    pub fn view_level(&self, level: u32) -> View {
        self.view(self.group(level))
    }

    /// Forgets the past of an entity that is neither active nor in service.
    pub fn forget(&mut self, queue: u32) {
        let Entity { level, class, place, tracked, .. } = self.all[queue as usize];
        debug_assert!(place != Place::Active && !self.is_serving(queue));
        let tree = self.levels[level as usize].tree(class);
        if place == Place::Idle {
            tree.remove_idle(&mut self.all, queue);
        }
        if tracked {
            tree.forget(&mut self.all[queue as usize]);
        }
    }

    /// Returns whether an entity other than the one in service would be picked.
    #[must_use]
    pub fn may_preempt(&self) -> bool {
        let root = &self.levels[ROOT as usize];
        root.next != root.serving
    }

    #[inline]
    fn group(&self, level: u32) -> u32 {
        self.queues + level
    }

    #[inline]
    fn is_serving(&self, e: u32) -> bool {
        self.levels[self.all[e as usize].level as usize].serving == e
    }
}

impl Wf2q {
    /// Activates a queue that has requests and a budget.
    pub fn activate(&mut self, queue: u32, from: From, now: Instant) {
        self.put(queue, from);
        self.propagate(queue, When::Waiting, false, now);
    }

    /// Puts a queue back with its budget: if it was in service, from the end of the service that it received.
    pub fn requeue(&mut self, queue: u32, when: When, now: Instant) {
        let always = self.is_serving(queue);
        self.put(queue, From::Now);
        self.propagate(queue, when, always, now);
    }

    /// Takes off a queue without requests, and groups that become empty with it.
    pub fn deactivate(&mut self, queue: u32, keep: Keep, when: When, now: Instant) {
        let (mut e, mut keep) = (queue, keep);
        loop {
            if !self.take_off(e, keep) {
                return;
            }
            let level = self.all[e as usize].level;
            if self.levels[level as usize].next == e {
                self.update_next(level, NIL, when, now);
            }
            let Level { next, serving, .. } = self.levels[level as usize];
            if level == ROOT {
                return;
            }
            e = self.group(level);
            if next != NIL || serving != NIL {
                break;
            }
            keep = Keep::Lead;
        }
        // The group continues without it.
        self.put(e, From::Now);
        self.propagate(e, when, when == When::Expiring, now);
    }

    /// Puts the next queue in service; `None` if none is active.
    pub fn pick(&mut self, now: Instant) -> Option<u32> {
        let mut level = ROOT;
        let queue = loop {
            let e = self.levels[level as usize].next;
            if e == NIL {
                assert!(level == ROOT, "level {level} is active, but nothing on it");
                return None;
            }
            self.enter(level, e, now);
            if e < self.queues {
                break e;
            }
            level = e - self.queues;
        };
        loop {
            self.update_next(level, NIL, When::Waiting, now);
            match self.parent(level) {
                Some(above) => level = above,
                None => return Some(queue),
            }
        }
    }

    /// Puts `e` of `level` in service. It leaves the tree, unless it is a group with further entities to serve.
    fn enter(&mut self, level: u32, e: u32, now: Instant) {
        let more = e >= self.queues && self.levels[(e - self.queues) as usize].active > 1;
        let Entity { class, place, .. } = self.all[e as usize];
        let here = &mut self.levels[level as usize];
        here.serving = e;
        if class == Class::Idle {
            here.idle_turn = now;
        }
        if place == Place::Active && !more {
            here.tree(class).remove_active(&mut self.all, e);
            here.active -= 1;
        }
    }

    /// Counts service of a queue, in service or not, in sectors.
    #[inline]
    pub fn serve(&mut self, queue: u32, sectors: u64) {
        let mut e = queue;
        loop {
            let Entity { level, class, .. } = self.all[e as usize];
            self.all[e as usize].service += sectors;
            self.levels[level as usize].tree(class).served(&mut self.all, sectors);
            if level == ROOT {
                return;
            }
            e = self.group(level);
        }
    }

    /// Ends the slot of `queue`: no entity is in service.
    pub fn end_slot(&mut self, queue: u32) {
        let mut e = queue;
        loop {
            let level = self.all[e as usize].level;
            self.levels[level as usize].serving = NIL;
            if level == ROOT {
                return;
            }
            e = self.group(level);
            self.all[e as usize].service = 0;
        }
    }

    /// Puts `e` into the active tree of its level, again if it was there or in service.
    fn put(&mut self, e: u32, from: From) {
        let Entity { level, class, place, .. } = self.all[e as usize];
        if place == Place::Active {
            self.levels[level as usize].tree(class).remove_active(&mut self.all, e);
            self.levels[level as usize].active -= 1;
        }
        if self.is_serving(e) {
            let entity = &mut self.all[e as usize];
            entity.start = entity.finish_after(entity.service);
            entity.service = 0;
        }
        if place == Place::Active || self.is_serving(e) {
            self.enqueue(e, false);
        } else {
            let shifted = self.start(e, from);
            self.enqueue(e, shifted);
        }
    }

    /// Computes the start of the turn of `e`, which was not active. Returns whether the start is in the past.
    fn start(&mut self, e: u32, from: From) -> bool {
        if self.all[e as usize].wanted_class != self.all[e as usize].class {
            self.forget(e);
            let entity = &mut self.all[e as usize];
            entity.class = entity.wanted_class;
            // Another tree has another virtual time.
            entity.finish = self.levels[entity.level as usize].trees[entity.class as usize].vtime;
        }
        let Entity { level, class, place, finish, .. } = self.all[e as usize];
        let tree = self.levels[level as usize].tree(class);
        let shifted = from == From::WhereItStopped && after(tree.vtime, finish);
        let earliest = if shifted { finish } else { tree.vtime };
        if place == Place::Idle {
            tree.remove_idle(&mut self.all, e);
            self.all[e as usize].start = later(earliest, finish);
        } else {
            self.all[e as usize].start = earliest;
            tree.track(&mut self.all[e as usize]);
        }
        shifted
    }

    fn enqueue(&mut self, e: u32, shifted: bool) {
        let Entity { level, class, .. } = self.all[e as usize];
        let here = &mut self.levels[level as usize];
        let tree = here.tree(class);
        let entity = &mut self.all[e as usize];
        tree.reweigh(entity);
        entity.finish = entity.finish_after(entity.budget);
        if shifted && after(tree.vtime, entity.finish) {
            // The entity is behind, and must not be served for long before all others.
            let by = tree.vtime.wrapping_sub(entity.finish) / u64::from(entity.raised);
            entity.start = entity.start.wrapping_add(by);
            entity.finish = entity.finish.wrapping_add(by);
        }
        self.seq += 1;
        tree.insert_active(&mut self.all, e, self.seq);
        here.active += 1;
    }

    /// Takes `e` off its tree. Returns whether it was on one.
    fn take_off(&mut self, e: u32, keep: Keep) -> bool {
        let Entity { level, class, place, tracked, .. } = self.all[e as usize];
        if !tracked {
            return false;
        }
        let here = &mut self.levels[level as usize];
        match place {
            Place::Active => {
                here.tree(class).remove_active(&mut self.all, e);
                here.active -= 1;
            }
            Place::Idle => here.tree(class).remove_idle(&mut self.all, e),
            Place::Off => {}
        }
        let entity = &mut self.all[e as usize];
        entity.finish = entity.finish_after(entity.service);
        let finish = entity.finish;
        if here.serving == e {
            here.serving = NIL;
        } else {
            entity.service = 0;
        }
        let tree = here.tree(class);
        if keep == Keep::Lead && after(finish, tree.vtime) {
            self.seq += 1;
            tree.insert_idle(&mut self.all, e, self.seq);
        } else {
            tree.forget(&mut self.all[e as usize]);
        }
        true
    }

    /// Updates the levels above `e`, which was put on a tree: as far as that matters, or all levels if `always`.
    fn propagate(&mut self, e: u32, when: When, always: bool, now: Instant) {
        let mut e = e;
        loop {
            let level = self.all[e as usize].level;
            let matters = self.update_next(level, e, when, now);
            if level == ROOT || !(matters || always) {
                return;
            }
            e = self.group(level);
            self.put(e, From::Now);
        }
    }

    /// Finds the next entity of `level` after `changed` has changed. Returns whether that matters above.
    fn update_next(&mut self, level: u32, changed: u32, when: When, now: Instant) -> bool {
        let here = &mut self.levels[level as usize];
        let cached = here.next;
        let known = changed != NIL
            && changed != cached
            && (cached == NIL || here.overtakes(&self.all, changed, cached));
        let next =
            if known { changed } else { here.look_up(&mut self.all, when == When::Expiring, now) };
        here.next = next;
        if next == NIL {
            return false;
        }
        let budget = self.all[next as usize].budget;
        let group = self.group(level) as usize;
        let another = self.all[group].budget != budget;
        self.all[group].budget = budget;
        cached == NIL || another
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;

    /// Heights are hashes of the numbers: entities of one number would make the tree a list.
    #[test]
    fn each_entity_enters_a_tree_with_a_number_of_its_own() {
        const QUEUES: u32 = 8;
        let now = Instant::ZERO;
        let mut wf = Wf2q::new(QUEUES);
        let numbers = |wf: &Wf2q| -> BTreeSet<u64> {
            wf.all[..QUEUES as usize].iter().map(|entity| entity.seq).collect()
        };
        for queue in 0..QUEUES {
            wf.attach(queue, ROOT, Class::BestEffort, 40);
            wf.set_budget(queue, 100);
            wf.activate(queue, From::Now, now);
        }
        let active = numbers(&wf);
        assert_eq!(active.len(), QUEUES as usize);
        while let Some(queue) = wf.pick(now) {
            wf.serve(queue, 50);
            wf.end_slot(queue);
            wf.deactivate(queue, Keep::Lead, When::Expiring, now);
        }
        let idle = numbers(&wf);
        assert_eq!(idle.len(), QUEUES as usize);
    }
}
