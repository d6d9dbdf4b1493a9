//! Merging and splitting of queues in the twin: section 14.

use super::{Sender, Twin};
use blkmq_core::{Instant, IoMeta, Nanos, RequestId};
use blkmq_sched::bfq::values::Joining;
use blkmq_sched::bfq::wf2q::Class;

const fn ms(n: u64) -> Nanos {
    Nanos::from_millis(n)
}

/// The place of a queue among those in which others look for neighbours: its next request, the sector and the level,
/// and a number that rises with each change.
#[derive(Clone, Copy)]
pub(super) struct Filed {
    rq: RequestId,
    sector: u64,
    level: u32,
    number: u64,
}

impl Twin {
    /// The queue that an I/O goes to: that of its sender, or one that its sender shares from now on.
    pub(super) fn cooperate(&mut self, sender: Sender, queue: usize, io: &IoMeta) -> usize {
        if self.tunables.joining == Joining::Off {
            return queue;
        }
        if let Some(twin) = self.due_twin(sender, queue) {
            self.q_mut(queue).stable = true;
            self.q_mut(twin).stable = true;
            return self.join(sender, queue, twin);
        }
        if !self.rotational || self.busy().len() < 2 || self.is_late(queue) {
            return queue;
        }
        match self.neighbour(queue, io.sector) {
            Some(other) => self.join(sender, queue, other),
            None => queue,
        }
    }

    /// Served, and more than 100 ms after its first I/O.
    fn is_late(&self, queue: usize) -> bool {
        self.q(queue).served > 0 && self.now > self.q(queue).first_io + ms(100)
    }

    fn neighbour(&self, queue: usize, sector: u64) -> Option<usize> {
        let near = |other: u64| other.abs_diff(sector) <= 8_192;
        if let Some(serving) = self.serving
            && near(self.serving_position)
            && self.may_join(queue, serving)
        {
            return Some(serving);
        }
        let level = self.engine.level(queue as u32);
        let mut filed: Vec<(usize, Filed)> =
            self.existing().filter_map(|q| Some((q, self.q(q).filed?))).collect();
        // Groups sixteen levels apart share an order.
        filed.retain(|(_, f)| f.level % 16 == level % 16);
        filed.sort_by_key(|(_, f)| (f.sector, f.number));
        let ahead = filed.iter().find(|(_, f)| f.sector >= sector);
        let below = filed.iter().filter(|(_, f)| f.sector < sector).map(|(_, f)| f.sector).max();
        let behind = filed.iter().find(|(_, f)| Some(f.sector) == below);
        let mut found: Vec<&(usize, Filed)> = ahead.into_iter().chain(behind).collect();
        found.retain(|(_, f)| near(f.sector));
        found.sort_by_key(|(_, f)| f.sector.abs_diff(sector));
        found.into_iter().map(|(q, _)| *q).find(|q| self.may_join(queue, *q))
    }

    fn may_join(&self, queue: usize, other: usize) -> bool {
        let alive = |q: usize| self.q(q).sync && self.has_sender(q) && !self.q(q).seeks.is_seeky();
        let class = |q: usize| self.q(q).priority.class;
        let level = |q: usize| self.engine.level(q as u32);
        queue != other
            && alive(queue)
            && alive(other)
            && level(queue) == level(other)
            && class(queue) == class(other)
            && class(queue) != Class::Idle
            && !self.is_late(other)
    }

    /// From now on `sender` sends to `into` instead of `queue`.
    fn join(&mut self, sender: Sender, queue: usize, into: usize) -> usize {
        let (from, to) = (self.q(queue).clone(), self.q(into).clone());
        if !from.shared {
            self.sender_mut(sender).saved = Some(Box::new(from.clone()));
        }
        if !to.shared {
            let mut others = self.senders.values_mut();
            let other = others.find(|proc| proc.queue == Some(into)).expect("it has a sender");
            other.saved = Some(Box::new(to.clone()));
        }
        self.q_mut(into).share.join(&from.share);
        if from.factor > 1 {
            if to.factor == 1 {
                self.q_mut(into).inherit_raising(&from);
                self.want(into);
            }
            self.end_raising(queue);
        }
        self.q_mut(into).shared = true;
        self.sender_mut(sender).queue = Some(into);
        self.free_if_unused(queue);
        into
    }

    /// `sender` has a queue of its own again.
    pub(super) fn split(&mut self, sender: Sender, queue: usize) -> usize {
        let saved = self.sender_mut(sender).saved.take();
        let all = self.senders.values().filter(|proc| proc.queue == Some(queue)).count();
        let own = if all == 1 {
            let q = self.q_mut(queue);
            (q.shared, q.to_split) = (false, false);
            queue
        } else {
            self.sender_mut(sender).queue = None;
            let (level, priority) = (self.engine.level(queue as u32), self.q(queue).priority);
            self.new_queue(sender, level, priority)
        };
        if let Some(saved) = saved {
            let (now, low_latency) = (self.now, self.tunables.low_latency);
            let q = self.q_mut(own);
            (q.think, q.share, q.short_think) = (saved.think, saved.share, saved.short_think);
            (q.in_burst, q.injection) = (saved.in_burst, saved.injection);
            q.inherit_raising(&saved);
            q.split = Some(now);
            if !low_latency || now > q.raised_at + q.raised_for {
                q.factor = 1;
            }
            self.want(own);
        }
        own
    }

    /// A new sync queue may share one that began shortly before it.
    pub(super) fn join_series(&mut self, sender: Sender, queue: usize) -> usize {
        let number = self.q(queue).born;
        let last = self.last_created.and_then(|number| self.born(number));
        let last = last.filter(|last| *last != queue && self.are_alike(queue, *last));
        let Some(last) = last else {
            self.last_created = Some(number);
            return queue;
        };
        let since = self.now.since(self.q(last).created);
        if since > ms(600) {
            self.last_created = Some(number);
        }
        if since > ms(180) || !self.begin_together(queue, last) {
            return queue;
        }
        if self.rotational {
            self.sender_mut(sender).twin = Some(self.q(last).born);
            return queue;
        }
        self.q_mut(last).stable = true;
        self.join(sender, queue, last)
    }

    /// Tenants keep their shares, unless all queues that begin together are to be merged.
    fn begin_together(&self, queue: usize, other: usize) -> bool {
        let are_threads = self.q(queue).is_of_threads && self.q(other).is_of_threads;
        match self.tunables.joining {
            Joining::Off => false,
            Joining::Early => are_threads,
            Joining::Stable => true,
        }
    }

    fn are_alike(&self, queue: usize, other: usize) -> bool {
        let level = |q: usize| self.engine.level(q as u32);
        self.q(other).sync
            && self.has_sender(other)
            && self.q(queue).priority == self.q(other).priority
            && (self.tunables.joining == Joining::Stable
                || self.q(queue).is_of_threads == self.q(other).is_of_threads)
            && level(queue) == level(other)
    }

    fn due_twin(&mut self, sender: Sender, queue: usize) -> Option<usize> {
        let number = self.senders[&sender].twin?;
        let long_since = |at: Instant| self.now > at + ms(600);
        let q = self.q(queue);
        if q.just_created || !long_since(q.created) || q.split.is_some_and(|at| !long_since(at)) {
            return None;
        }
        self.sender_mut(sender).twin = None;
        let twin = self.born(number)?;
        let wanted = self.begin_together(queue, twin)
            && twin != queue
            && self.are_alike(queue, twin)
            && !self.boosts(queue);
        wanted.then_some(twin)
    }

    /// Something about the next request of a queue may have changed.
    pub(super) fn refile(&mut self, queue: usize) {
        let q = self.q(queue);
        let next = q.next.filter(|_| q.sync && q.busy);
        let level = self.engine.level(queue as u32);
        let new = next.map(|rq| (rq, self.request(rq).sector, level));
        if new == q.filed.map(|f| (f.rq, f.sector, f.level)) {
            return;
        }
        let number = self.number();
        self.q_mut(queue).filed =
            new.map(|(rq, sector, level)| Filed { rq, sector, level, number });
    }
}
