//! The engine of service: B-WF2Q+ in a tree of levels (`spec/bfq.md` section 3).
//!
//! Entities (queues, and groups of them) get turns so that over time each has had service in proportion to its
//! weight, and at no time is further from that than a budget or so. Each has a virtual time at which its turn
//! starts and one at which it finishes if it uses up its budget; of those that have started, the one that
//! finishes first is next.
//!
//! This module knows neither requests nor what a queue is. In the order in which one drives it: [`attach`] a
//! queue, [`set_budget`] and [`activate`] it when it has something, [`pick`], [`serve`] once for each request,
//! and at the end of the slot [`requeue`] or [`deactivate`] it and [`end_slot`]. Nothing allocates but
//! [`add_level`]. Levels are deep as groups are nested; every call is O(levels * log entities).
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

mod entity;
mod level;
mod tree;
mod turns;

pub use entity::{Class, after, delta};

use alloc::vec::Vec;
use entity::{Entity, NIL, Place};
use level::Level;

/// The number of the root's level.
pub const ROOT: u32 = 0;

/// Why a queue is put back or taken off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// It waits and something about it has changed.
    Waiting,
    /// It was in service and its slot is over.
    Expiring,
}

/// From when on a queue that becomes active has a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum From {
    /// From now on.
    Now,
    /// From where it stopped, if that is in the past: it was away only for a moment.
    WhereItStopped,
}

/// What is remembered of a queue that is taken off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keep {
    /// How much service it has had ahead of its share, for as long as it is ahead.
    Lead,
    /// Nothing.
    Nothing,
}

/// What [`Wf2q::view`] shows of an entity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct View {
    /// When its turn starts, in virtual time.
    pub start: u64,
    /// When it finishes.
    pub finish: u64,
    /// Sectors of its slot.
    pub budget: u64,
    /// Sectors served in it.
    pub service: u64,
    /// The weight in force.
    pub weight: u32,
    /// Is it in an active tree?
    pub active: bool,
    /// Does its weight count?
    pub tracked: bool,
}

/// All entities and levels. Queues have the numbers `0..queues`.
pub struct Wf2q {
    all: Vec<Entity>,
    levels: Vec<Level>,
    /// Queues; the entity of level `l` has the number `queues + l`.
    queues: u32,
    seq: u64,
}

impl Wf2q {
    /// Room for so many `queues`, none of which is active, and a root.
    #[must_use]
    pub fn new(queues: u32) -> Self {
        let mut all = alloc::vec![Entity::NEW; queues as usize];
        all.push(Entity::NEW);
        Self { all, levels: alloc::vec![Level::NEW], queues, seq: 0 }
    }

    /// A new level below `parent`, with a weight from 1 on. Allocates, unless one has been removed.
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
    /// If something of it is still active.
    pub fn remove_level(&mut self, level: u32) {
        let gone = &mut self.levels[level as usize];
        assert!(level != ROOT && gone.active == 0 && gone.serving == NIL, "level {level} in use");
        gone.exists = false;
        self.forget(self.group(level));
    }

    /// Sets the weight of a level, from the next time its group is put anywhere.
    pub fn set_level_weight(&mut self, level: u32, weight: u32) {
        let e = self.group(level);
        self.all[e as usize].wanted = weight;
    }

    /// The level above `level`.
    #[must_use]
    pub fn parent(&self, level: u32) -> Option<u32> {
        (level != ROOT).then(|| self.all[self.group(level) as usize].level)
    }

    /// Puts a queue, of which nothing is known, on a level.
    pub fn attach(&mut self, queue: u32, level: u32, class: Class, weight: u32) {
        debug_assert!(queue < self.queues && !self.all[queue as usize].tracked);
        let new = Entity { level, class, weight, wanted: weight, ..Entity::NEW };
        self.all[queue as usize] = Entity { wanted_class: class, ..new };
    }

    /// Moves a queue that is neither active nor in service to another level; what was known is forgotten.
    pub fn move_to(&mut self, queue: u32, level: u32) {
        self.forget(queue);
        self.all[queue as usize].level = level;
    }

    /// Sets class and weight of a queue; `raised` of that weight is its raising. The class counts from its next
    /// activation, the weight also from the next time it is requeued.
    pub fn want(&mut self, queue: u32, class: Class, weight: u32, raised: u32) {
        let entity = &mut self.all[queue as usize];
        (entity.wanted_class, entity.wanted, entity.raised) = (class, weight, raised);
    }

    /// The wanted weight counts at once. Only for a queue that is in no active tree.
    pub fn reweigh(&mut self, queue: u32) {
        let Entity { level, class, .. } = self.all[queue as usize];
        self.levels[level as usize].tree(class).reweigh(&mut self.all[queue as usize]);
    }

    /// Sets the budget of a queue; if it is active, requeue it.
    pub fn set_budget(&mut self, queue: u32, budget: u64) {
        self.all[queue as usize].budget = budget;
    }

    /// Sets the service of a queue in its present slot.
    pub fn set_service(&mut self, queue: u32, service: u64) {
        self.all[queue as usize].service = service;
    }

    /// The budget of a queue.
    #[inline]
    #[must_use]
    pub fn budget(&self, queue: u32) -> u64 {
        self.all[queue as usize].budget
    }

    /// What a queue has been served in its slot.
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

    /// The sum of weights of a class on a level: those that are active, idle or in service.
    #[must_use]
    pub fn wsum(&self, level: u32, class: Class) -> u64 {
        self.levels[level as usize].trees[class as usize].wsum
    }

    /// The virtual time of a class on a level.
    #[must_use]
    pub fn vtime(&self, level: u32, class: Class) -> u64 {
        self.levels[level as usize].trees[class as usize].vtime
    }

    /// Does the weight of this queue count?
    #[must_use]
    pub fn is_tracked(&self, queue: u32) -> bool {
        self.all[queue as usize].tracked
    }

    /// All about a queue.
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

    /// All about the group of a level.
    #[must_use]
    pub fn view_level(&self, level: u32) -> View {
        self.view(self.group(level))
    }

    /// What is known of an entity that is neither active nor in service is forgotten.
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

    /// Would somebody else be picked than who is in service?
    #[must_use]
    pub fn may_preempt(&self) -> bool {
        let root = &self.levels[ROOT as usize];
        root.next != root.serving
    }

    /// Is anything active?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.levels[ROOT as usize].next == NIL
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
