//! The end of a slot: its charge, the next budget, and whether the queue stays busy (`spec/bfq.md` section 8).

use super::Bfq;
use super::budget::{Pace, Reason, Slot};
use super::notes::Kind;
use super::wf2q::When;
use crate::{Cx, Event};

impl Bfq {
    /// The idle time is over.
    #[inline(never)]
    pub(super) fn idled(&mut self, cx: &Cx<'_>) {
        self.slot.stop_idling(cx, &self.queues.groups, self.now);
        if self.slot.is_timed_out(self.now) {
            self.expire(cx, Reason::Timeout);
        } else if self.queues[self.slot.queue].is_empty() {
            self.expire(cx, Reason::TooIdle);
        }
    }

    /// Ends the slot of the queue in service.
    pub(super) fn expire(&mut self, cx: &Cx<'_>, reason: Reason) {
        let (q, now) = (self.slot.queue, self.now);
        self.slot.stop_idling(cx, &self.queues.groups, now);
        self.charge_slot(q, reason);
        let queue = &mut self.queues[q];
        if self.tunables.low_latency {
            if !queue.raising.is_raised() {
                queue.raising.started = now;
            }
            if queue.is_empty() {
                queue.run_empty(now, self.tunables.slice_idle);
            }
        }
        if queue.shared && queue.seeks.is_seeky() {
            queue.to_split = true;
        }
        let kept = reason == Reason::Preempted && self.idling().is_needed(q);
        if self.queues[q].is_empty() && !kept {
            if self.queues[q].dispatched == 0 {
                self.queues[q].idle_since = Some(now);
            }
            self.queues.take_off(cx, q, When::Expiring, now);
        } else {
            self.queues.wf.requeue(q, When::Expiring, now);
            self.queues[q].waiting_since = now;
        }
        self.queues.wf.end_slot(q);
        self.slot.end();
        self.sampling.slot_ended();
        let whole = matches!(reason, Reason::Timeout | Reason::Exhausted);
        let queue = &mut self.queues[q];
        queue.back_soon = !queue.busy && !whole;
        if !queue.back_soon {
            self.queues.wf.set_service(q, 0);
        }
        self.queues.recount(q);
        let time = Event::Time(now.since(self.slot.began));
        self.queues.groups.note(cx, self.queues.level(q), Kind::QUEUE, time);
        self.free_if_unused(cx, q);
    }

    /// Charges `q` for its slot, and sets its next budget.
    pub(super) fn charge_slot(&mut self, q: u32, reason: Reason) {
        let (queue, tunables) = (&self.queues[q], &self.tunables);
        let pace = Pace {
            time: self.slot.length(reason, self.now),
            seeky: queue.seeks.is_seeky(),
            rotational: self.device.rotational,
        };
        let mut slot = Slot {
            reason,
            sync: queue.sync,
            raised: queue.raising.is_raised(),
            in_flight: queue.dispatched > 0,
            service: self.queues.wf.service(q),
            budget: queue.max_budget,
            max: self.device.max_budget(tunables),
        };
        let budget = self.queues.wf.budget(q);
        if let Some(total) = slot.charge_for_time(&pace, budget, tunables.timeout) {
            self.queues.wf.set_budget(q, budget.max(total));
            if total > slot.service {
                self.queues.wf.serve(q, total - slot.service);
            }
            slot.service = total;
        }
        if reason == Reason::Preempted && slot.sync && !slot.raised {
            return;
        }
        let mut budget = slot.next_budget();
        if self.device.warmth.is_warm() && tunables.max_budget == 0 {
            budget = budget.min(slot.max);
        }
        self.queues[q].max_budget = budget;
        if let Some(next) = self.queues[q].next {
            let budget = budget.max(self.charge_of(q, next));
            self.queues.wf.set_budget(q, budget);
        }
    }
}
