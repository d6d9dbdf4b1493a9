//! Raising and bursts in the twin: sections 9 and 13.

use super::Twin;
use blkmq_core::Nanos;

impl Twin {
    /// Passes the wanted class and weight of a queue to the engine.
    pub(super) fn want(&mut self, queue: usize) {
        let (priority, factor) = (self.q(queue).priority, self.q(queue).factor);
        self.engine.want(queue as u32, priority.class, priority.weight() * factor, factor);
    }

    fn set_factor(&mut self, queue: usize, factor: u32) {
        self.q_mut(queue).factor = factor;
        self.want(queue);
    }

    /// A queue becomes busy. Returns whether it looks interactive.
    pub(super) fn raise_on_arrival(&mut self, queue: usize) -> bool {
        let (now, in_flight) = (self.now, self.in_flight(queue));
        let preference = self.rate.preference();
        let q = self.q(queue).clone();
        let ordinary = !q.in_burst && q.priority.level == 4;
        let long = q.idle_since.is_none_or(|at| now > at + Nanos::from_secs(2));
        let interactive = ordinary && in_flight == 0 && long;
        let soft_rt =
            ordinary && in_flight == 0 && !q.seeks.is_totally_seeky() && now > q.soft_rt_after;
        if !self.tunables.low_latency || q.just_split(now) {
            return interactive;
        }
        if q.factor > 1 {
            if interactive {
                self.q_mut(queue).raised_for = preference;
                self.set_factor(queue, 30);
            } else if q.in_burst {
                self.set_factor(queue, 1);
            } else if soft_rt {
                if q.factor != 3_000 {
                    self.q_mut(queue).interrupted = Some(q.raised_at);
                    self.q_mut(queue).raised_for = Nanos::from_millis(300);
                }
                self.q_mut(queue).raised_at = now;
                self.set_factor(queue, 3_000);
            }
        } else if q.sync && (!q.shared || q.stable) && (interactive || soft_rt) {
            let mut_q = self.q_mut(queue);
            mut_q.raised_service = 0;
            mut_q.interrupted = None;
            mut_q.raised_for = if interactive { preference } else { Nanos::from_millis(300) };
            self.set_factor(queue, if interactive { 30 } else { 3_000 });
            let short = self.max_budget() / 32 * 2;
            let budget = self.budget(queue).min(short);
            self.engine.set_budget(queue as u32, budget);
            let most = self.q(queue).max_budget;
            self.q_mut(queue).max_budget = most.min(short);
        }
        interactive
    }

    pub(super) fn raise_rare_async(&mut self, queue: usize) {
        let (now, preference) = (self.now, self.rate.preference());
        let q = self.q(queue);
        let rare = now > q.raised_at + Nanos::from_millis(500);
        if self.tunables.low_latency && q.factor == 1 && !q.sync && rare {
            self.q_mut(queue).raised_for = preference;
            self.set_factor(queue, 30);
        }
    }

    pub(super) fn end_raising(&mut self, queue: usize) {
        let now = self.now;
        let q = self.q_mut(queue);
        (q.raised_at, q.raised_for) = (now, Nanos::ZERO);
        self.set_factor(queue, 1);
    }

    /// The queue in service has been served.
    pub(super) fn review_raising(&mut self, queue: usize) {
        let q = self.q(queue).clone();
        if q.factor == 1 {
            return;
        }
        let preference = self.rate.preference();
        let soft_rt = q.factor == 3_000;
        let over = self.now > q.raised_at + q.raised_for;
        let back = q.interrupted.filter(|since| soft_rt && self.now <= *since + preference);
        if q.in_burst {
            self.end_raising(queue);
        } else if over || (soft_rt && q.seeks.is_totally_seeky()) {
            match back {
                Some(since) => {
                    self.q_mut(queue).raised_at = since;
                    self.q_mut(queue).raised_for = preference;
                    self.set_factor(queue, 30);
                }
                None => self.end_raising(queue),
            }
        }
        if self.q(queue).factor == 30 && self.q(queue).raised_service > 120_000 {
            self.end_raising(queue);
        }
        let plain = u64::from(self.q(queue).priority.weight());
        if self.q(queue).factor == 1 && self.weight(queue) > plain {
            self.engine.reweigh(queue as u32);
        }
    }

    pub(super) fn expect_soft_rt(&mut self, queue: usize) {
        let slack = Nanos(self.tunables.slice_idle.0 + 4_000_000);
        let soon = self.now + slack;
        let q = self.q_mut(queue);
        let at_rate = q.backlogged + Nanos(q.served * 1_000_000_000 / 7_000);
        q.soft_rt_after = q.soft_rt_after.max(at_rate).max(soon);
        q.soft_rt_due = false;
    }

    pub(super) fn join_burst(&mut self, queue: usize) {
        let calm = self.busy().is_empty();
        if self.burst.is_empty() && !self.burst_large && !calm {
            return;
        }
        let level = self.engine.level(queue as u32);
        let late = self.now > self.burst_last + Nanos::from_millis(180);
        self.burst_last = self.now;
        if late || level != self.burst_level {
            self.burst.clear();
            self.burst.extend(calm.then_some(queue));
            (self.burst_large, self.burst_level) = (false, level);
        } else if self.burst_large {
            self.q_mut(queue).in_burst = true;
        } else {
            self.burst.push(queue);
            if self.burst.len() == 8 {
                self.burst_large = true;
                let members = std::mem::take(&mut self.burst);
                members.into_iter().for_each(|q| self.q_mut(q).in_burst = true);
            }
        }
    }

    pub(super) fn burst_leave(&mut self, queue: usize) {
        self.burst.retain(|q| *q != queue);
    }
}
