//! Idling and groups in the twin: sections 10 and 17.

use super::{Sender, Twin, turns};
use blkmq_core::{GroupIndex, Nanos};
use blkmq_sched::bfq::wf2q::{Class, From, Keep, ROOT, When};

impl Twin {
    pub(super) fn asymmetric(&self, queue: usize) -> bool {
        let classes = Class::ALL.map(|c| self.busy().into_iter().any(|q| self.class(q) == c));
        if self.groups_pending() > 1 || classes.into_iter().filter(|c| *c).count() > 1 {
            return true;
        }
        let ordinary = self.pending().into_iter().filter(|q| self.q(*q).factor == 1);
        let weights: Vec<(usize, u32)> =
            ordinary.map(|q| (q, self.q(q).priority.weight())).collect();
        let least = weights.iter().map(|(_, w)| *w).min();
        let differ = weights.iter().any(|(_, w)| Some(*w) != least);
        let its = weights.iter().find(|(q, _)| *q == queue).map(|(_, w)| *w);
        differ && (its.is_none() || its != least)
    }

    pub(super) fn boosts(&self, queue: usize) -> bool {
        let q = self.q(queue);
        let serial = self.device_queues == Some(false);
        let steady = !q.seeks.is_seeky() && q.share.is_bound() && q.short_think;
        let faster = match (self.rotational, serial) {
            (true, true) => true,
            (false, false) => false,
            _ => steady,
        };
        faster && self.raised_busy() == 0
    }

    pub(super) fn needed(&self, queue: usize) -> bool {
        let busy = self.busy().len();
        let raised = self.q(queue).factor > 1
            && (self.raised_busy() < busy || self.in_driver() >= self.in_flight(queue) + 4);
        self.has_sender(queue) && (raised || self.asymmetric(queue) || busy == 1)
    }

    pub(super) fn better_to_idle(&self, queue: usize) -> bool {
        if !self.has_sender(queue) {
            return false;
        }
        let never = self.tunables.slice_idle == Nanos::ZERO
            || !self.q(queue).sync
            || self.class(queue) == Class::Idle;
        self.tunables.strict || (!never && (self.boosts(queue) || self.needed(queue)))
    }

    pub(super) fn sample_device(&mut self) {
        self.device_most = self.device_most.max(self.in_driver());
        if !self.rotational || self.device_queues == Some(true) {
            return;
        }
        if self.in_driver() + self.all_waiting() <= 3 {
            return;
        }
        if let Some(q) = self.serving
            && self.q(q).short_think
            && self.in_flight(q) + self.waiting(q) < 3
            && self.in_driver() < 3
        {
            return;
        }
        self.device_samples += 1;
        if self.device_samples == 33 {
            self.device_queues = Some(self.device_most > 3);
            (self.device_samples, self.device_most) = (0, 0);
        }
    }
}

/// Groups.
impl Twin {
    pub(super) fn level_of(&self, group: GroupIndex) -> u32 {
        self.levels.get(&group).copied().unwrap_or(ROOT)
    }

    pub(super) fn move_queue(&mut self, queue: usize, level: u32) {
        let id = queue as u32;
        if self.engine.level(id) == level {
            return;
        }
        if self.serving == Some(queue) {
            self.expire(turns::Reason::Preempted);
        }
        if self.queues[queue].is_none() {
            return;
        }
        let busy = self.q(queue).busy;
        if busy {
            self.engine.deactivate(id, Keep::Nothing, When::Waiting, self.now);
        }
        self.engine.move_to(id, level);
        if busy {
            self.engine.activate(id, From::Now, self.now);
            self.q_mut(queue).waiting_since = self.now;
        }
        self.refile(queue);
    }

    pub(super) fn remove_group(&mut self, group: GroupIndex) {
        let Some(level) = self.levels.get(&group).copied() else { return };
        let Some(parent) = self.engine.parent(level) else { return };
        self.senders.retain(|sender, _| !matches!(sender, Sender::Async(l, _) if *l == level));
        let mut all: Vec<usize> = self.existing().collect();
        all.sort_by_key(|q| (!self.q(*q).busy, self.q(*q).busy_number));
        for q in all {
            if self.engine.level(q as u32) == level {
                self.free_if_unused(q);
            }
            if self.queues[q].is_some() && self.engine.level(q as u32) == level {
                self.move_queue(q, parent);
            }
        }
        self.engine.remove_level(level);
        self.levels.values_mut().filter(|l| **l == level).for_each(|l| *l = parent);
    }

    pub(super) fn free_if_unused(&mut self, queue: usize) {
        let none_left = self.requests.iter().all(|r| r.queue != queue);
        let exists = self.queues[queue].is_some();
        if exists && none_left && !self.has_sender(queue) && self.serving != Some(queue) {
            if self.q(queue).busy {
                self.retire(queue);
            }
            self.engine.forget(queue as u32);
            self.queues[queue] = None;
            self.burst_leave(queue);
        }
    }
}
