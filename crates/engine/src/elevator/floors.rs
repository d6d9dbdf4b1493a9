//! Floors: connects the account of `blkmq_sched::floors` with an elevator, whose runner alone touches it.
//!
//! The runner tells the account of every request that ends under a policy that charges device time. Every tenth of a
//! second the account looks at the requests that have not ended. The lobby learns from it how often a group needs a
//! slot, so that slots go to floors first.

use super::{Done, Elevator};
use blkmq_core::{IoMeta, Op};
use blkmq_sched::floors::FloorPlace;
use blkmq_sched::goals::Member;
use blkmq_sched::{Floors, Scheduler};

/// Tells the account of a request that has ended.
#[inline]
pub(super) fn completed(floors: &mut Floors, policy: &dyn Scheduler, io: &IoMeta, done: &Done) {
    if io.op == Op::Flush {
        return;
    }
    if let Some(cost) = policy.charged(done.rq) {
        floors.completed(io.group, io.arrived, done.completed, cost);
    }
}

impl Elevator {
    /// Follows a change of the groups: an account is kept while one of them has a floor and the policy keeps floors.
    pub(crate) fn tune_floors(&mut self, members: &[Member]) {
        let some = members.iter().any(|member| !member.reserve.is_none());
        let capacity = self.facts.capacity.filter(|_| some);
        self.with_floors(|floors| {
            let capacity = capacity?;
            let mut floors = floors.unwrap_or_else(|| Floors::new(capacity));
            floors.set(members, capacity);
            Some(floors)
        });
        for member in members {
            self.lobby.set_gap(member.group, 0);
        }
        self.set_gaps();
    }

    fn set_gaps(&mut self) {
        let floors = self.watch.as_deref().and_then(|watch| watch.floors.as_ref());
        for (group, gap) in floors.into_iter().flat_map(Floors::gaps) {
            self.lobby.set_gap(group, gap);
        }
    }

    /// Lets the account look, if that is due.
    pub(super) fn look_at_floors(&mut self) {
        let now = self.now;
        let floors = self.watch.as_mut().and_then(|watch| watch.floors.as_mut());
        if floors.is_some_and(|floors| floors.due() <= now) {
            self.look_at_them();
        }
    }

    #[cold]
    #[inline(never)]
    fn look_at_them(&mut self) {
        let Some(capacity) = self.facts.capacity else { return };
        // Groups that latency goals hold back wait in the lobby as well.
        let is_held = self.takes_for_goals() && self.has_any_slot();
        let outside = if is_held { FloorPlace::Goal } else { FloorPlace::Slot };
        let Some(mut floors) = self.watch.as_mut().and_then(|watch| watch.floors.take()) else {
            return;
        };
        floors.look(self.now, capacity, |show| {
            for id in self.requests.live().take(self.requests.in_use()) {
                let io = self.requests.get(id);
                let is_held = self.chains[id.index()].is_some();
                let place = if is_held { FloorPlace::Policy } else { FloorPlace::Device };
                if io.op != Op::Flush {
                    show(io.group, io.arrived, place);
                }
            }
            self.lobby.show_waiting(|io| show(io.group, io.arrived, outside));
        });
        if let Some(watch) = &mut self.watch {
            watch.floors = Some(floors);
        }
        self.set_gaps();
        self.settle_watch();
    }

    /// Moves the counts of the account to the ledger, after waiting for another thread that counts.
    pub(super) fn count_floors(&mut self) {
        self.look_at_floors();
        if let Some(floors) = self.watch.as_mut().and_then(|watch| watch.floors.as_mut()) {
            self.env.count_floors(floors);
        }
    }
}
