//! The end of a slot: its charge, the next budget, and whether the queue stays busy (`spec/bfq.md` section 8).

use super::Bfq;
use super::budget::{self, Reason, Slot};
use super::notes::Kind;
use super::wf2q::{Keep, When};
use crate::{Cx, Event};
use blkmq_core::Nanos;

/// A slot shorter than this says little about the speed of the queue.
const SHORT: Nanos = Nanos::from_millis(1);
/// From this length on, the slot itself shows whether the queue is slow.
const TELLING: Nanos = Nanos::from_millis(20);
/// The assumed time of a jump, in a slot too short to measure it.
const JUMP: Nanos = Nanos::from_millis(2);
const JUMP_ROTATIONAL: Nanos = Nanos::from_millis(8);

impl Bfq {
    /// Ends the slot of the queue in service.
    pub(super) fn expire(&mut self, cx: &Cx<'_>, reason: Reason) {
        let (q, now) = (self.slot.queue, self.now);
        self.slot.stop_idling(cx, &self.groups, self.now);
        self.charge_for_time(q, reason);
        if self.tunables.low_latency {
            if !self.queues[q].raising.is_raised() {
                self.queues[q].raising.started = now;
            }
            if self.queues[q].is_empty() {
                self.note_soft_rt(q);
            }
        }
        self.next_budget(q, reason);
        let queue = &mut self.queues[q];
        if queue.shared && queue.seeks.is_seeky() {
            queue.to_split = true;
        }
        let kept = reason == Reason::Preempted && self.idling_needed(q);
        if self.queues[q].is_empty() && !kept {
            if self.queues[q].dispatched == 0 {
                self.queues[q].idle_since = Some(now);
            }
            self.take_off(cx, q, When::Expiring);
        } else {
            self.wf.requeue(q, When::Expiring, now);
            self.queues[q].waiting_since = now;
        }
        self.wf.end_slot(q);
        self.slot.end();
        self.sampling.slot_ended();
        let whole = matches!(reason, Reason::Timeout | Reason::Exhausted);
        self.queues[q].back_soon = !self.queues[q].busy && !whole;
        if !self.queues[q].back_soon {
            self.wf.set_service(q, 0);
        }
        self.recount(q);
        self.groups.note(
            cx,
            self.wf.level(q),
            Kind::QUEUE,
            Event::Time(now.since(self.slot.began)),
        );
        self.free_if_unused(cx, q);
    }

    /// Charges a slow queue for its time instead of its service: a queue of scattered requests would otherwise get
    /// too much of the device.
    fn charge_for_time(&mut self, q: u32, reason: Reason) {
        let (budget, service) = (self.wf.budget(q), self.wf.service(q));
        let (slow, time) = self.slowness(q, reason, service);
        let wasted = reason == Reason::Timeout && budget::much_left(budget, service);
        if self.queues[q].raising.is_raised() || !(slow || wasted) {
            return;
        }
        let total = budget::charge_for_time(
            self.device.max_budget(&self.tunables),
            time,
            self.tunables.timeout,
        );
        let total = total.max(service);
        self.wf.set_budget(q, budget.max(total));
        if total > service {
            self.wf.serve(q, total - service);
        }
    }

    /// Returns whether the queue was slow in this slot, and the time that the slot counts for the charge.
    fn slowness(&self, q: u32, reason: Reason, service: u64) -> (bool, Nanos) {
        let queue = &self.queues[q];
        let until = if reason == Reason::TooIdle { self.slot.idle_began } else { self.now };
        let time = until.since(self.slot.began);
        let seeky = queue.seeks.is_seeky();
        if !queue.sync {
            (false, time)
        } else if time < SHORT {
            (seeky, if self.device.rotational { JUMP_ROTATIONAL } else { JUMP })
        } else if time > TELLING {
            (service < self.device.max_budget(&self.tunables) / 2, time)
        } else {
            (seeky, time)
        }
    }

    fn next_budget(&mut self, q: u32, reason: Reason) {
        let max = self.device.max_budget(&self.tunables);
        let queue = &self.queues[q];
        let (sync, raised) = (queue.sync, queue.raising.is_raised());
        let slot = Slot {
            reason,
            sync,
            raised,
            in_flight: queue.dispatched > 0,
            service: self.wf.service(q),
            budget: queue.max_budget,
            max,
        };
        if reason == Reason::Preempted && sync && !raised {
            return;
        }
        let mut budget = slot.next_budget();
        if self.device.warmth.is_warm() && self.tunables.max_budget == 0 {
            budget = budget.min(max);
        }
        self.queues[q].max_budget = budget;
        if let Some(next) = self.queues[q].next {
            self.wf.set_budget(q, budget.max(self.charge_of(q, next)));
        }
    }

    /// Notes the time from which on the next request of `q`, which has run empty, makes the queue soft real-time.
    fn note_soft_rt(&mut self, q: u32) {
        if self.queues[q].dispatched == 0 {
            self.expect_soft_rt(q);
        } else {
            // The service time of its last requests is not known yet.
            self.queues[q].raising.soft_rt_due = true;
        }
    }

    /// The idle time is over.
    pub(super) fn idled(&mut self, cx: &Cx<'_>) {
        self.slot.stop_idling(cx, &self.groups, self.now);
        if self.slot.is_timed_out(self.now) {
            self.expire(cx, Reason::Timeout);
        } else if self.queues[self.slot.queue].is_empty() {
            self.expire(cx, Reason::TooIdle);
        }
    }

    /// A busy queue that is not in service has become empty: its last request was let in, fused or taken back.
    pub(super) fn retire(&mut self, cx: &Cx<'_>, q: u32) {
        if self.tunables.low_latency {
            self.note_soft_rt(q);
        }
        self.take_off(cx, q, When::Waiting);
        self.wf.set_budget(q, 0);
        self.wf.set_service(q, 0);
        self.recount(q);
    }

    /// Takes a queue off the service tree.
    fn take_off(&mut self, cx: &Cx<'_>, q: u32, when: When) {
        let class = self.wf.class(q);
        self.wf.deactivate(q, Keep::Lead, when, self.now);
        self.queues[q].busy = false;
        self.queues.unlink_busy(q);
        self.busy[class as usize] -= 1;
        self.refile(q);
        self.groups.note(cx, self.wf.level(q), Kind::QUEUE, Event::Dequeued);
    }
}
