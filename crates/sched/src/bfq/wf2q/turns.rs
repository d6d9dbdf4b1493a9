//! Turns: the activation of entities, the choice of the one in service, and the consequences above and below it.
//!
//! Each change of an entity takes effect on its own level, then level by level upwards as far as it matters.

use super::level::Level;
use super::tree::{Class, Entity, NIL, Place, after, later};
use super::{From, Keep, ROOT, Wf2q, When};
use blkmq_core::Instant;

impl Wf2q {
    /// A queue has requests, and the budget that it has been given.
    pub fn activate(&mut self, queue: u32, from: From, now: Instant) {
        self.put(queue, from);
        self.propagate(queue, When::Waiting, false, now);
    }

    /// A queue continues with its budget: if it was in service, from the end of the service it received.
    pub fn requeue(&mut self, queue: u32, when: When, now: Instant) {
        let always = self.is_serving(queue);
        self.put(queue, From::Now);
        self.propagate(queue, when, always, now);
    }

    /// A queue has no more requests. Groups that become empty follow.
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

    /// A queue, in service or not, has been served this many sectors.
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

    /// The slot of `queue` is over: no entity is in service.
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
            // The entity is behind; it must not be served for long before all others.
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

    /// `e` has been put on a tree: updates the levels above, as far as the change matters there, or on all levels if
    /// `always`.
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
