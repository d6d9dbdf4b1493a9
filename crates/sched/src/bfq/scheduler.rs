//! The [`Scheduler`] contract: dispatches the calls of the engine to the parts of the policy.

use super::Bfq;
use super::held::State;
use super::tunables::Tunables;
use crate::{
    Admission, At, Cx, Done, Event, Facts, Fresh, GroupChange, Grown, Pick, Scheduler, Used,
};
use blkmq_core::{HwQueue, IoMeta, Owner, RequestId, SECTOR_SIZE};

impl Scheduler for Bfq {
    fn facts(&self) -> Facts {
        Facts {
            limits_slots: true,
            shares_by_group: true,
            notes_groups: true,
            takes_plugs: true,
            ..Facts::default()
        }
    }

    fn insert(&mut self, cx: &Cx<'_>, rq: RequestId, at: At) {
        self.enter(cx);
        let item = &self.held[rq];
        if item.state == State::Issued {
            assert!(item.rq == rq, "{rq:?} took the slot of {:?}, still issued", item.rq);
            self.back(cx, rq, cx.now);
            self.push_head(cx, rq);
            return;
        }
        match at {
            At::Tail => self.arrive(cx, rq),
            At::Head => self.arrive_at_head(cx, rq),
        }
    }

    fn pick(&mut self, cx: &Cx<'_>, _: HwQueue) -> Pick {
        self.enter(cx);
        self.choose(cx)
    }

    fn admit(&mut self, cx: &Cx<'_>, fresh: &Fresh<'_>, order: &mut [u8]) -> Admission {
        Admission::of_all(self.issue_plug(cx, fresh.rqs, fresh.used, order))
    }

    fn completed(&mut self, cx: &Cx<'_>, done: &Done) {
        self.enter(cx);
        let item = &self.held[done.rq];
        let issued = (item.state, item.rq) == (State::Issued, done.rq);
        assert!(issued, "{:?} completed without being issued", done.rq);
        let completed = done.completed.min(self.now);
        let meta = cx.requests.get(done.rq);
        let what = Event::Completed {
            bytes: meta.sectors.saturating_mul(SECTOR_SIZE),
            wait: done.issued.since(item.since),
            service: completed.since(done.issued),
        };
        self.queues.groups.note(cx, self.queues.level(item.queue), meta, what);
        self.back(cx, done.rq, completed);
        self.release(cx, done.rq);
    }

    fn withdraw(&mut self, cx: &Cx<'_>, rq: RequestId) {
        self.enter(cx);
        self.remove_held(cx, rq);
    }

    fn absorbed(&mut self, cx: &Cx<'_>, into: RequestId, gone: RequestId) {
        self.enter(cx);
        self.held[into].sectors = cx.requests.get(into).sectors;
        self.held.inherit(into, gone);
        self.note_merged(cx, gone);
        self.remove_held(cx, gone);
        self.moved(cx, into);
    }

    fn inspect(&self, out: &mut dyn FnMut(&'static str, u64)) {
        let serving = (self.slot.queue != super::NOBODY).then_some(self.slot.queue);
        let of_serving = |value: &dyn Fn(u32) -> u64| serving.map_or(0, value);
        out("queued", self.held.queued.into());
        out("dispatch", self.held.heads() as u64);
        out("in_driver", self.device.in_driver.into());
        let names = ["rt_busy", "be_busy", "idle_busy"];
        names.into_iter().zip(self.queues.by_class).for_each(|(name, busy)| out(name, busy.into()));
        out("queues", self.queues.len().into());
        out("raised_busy", self.queues.raised_busy.into());
        out("groups_pending", self.queues.groups.pending().into());
        out("max_budget", self.device.max_budget(&self.tunables));
        out("peak_rate", self.device.rate.peak());
        out("serving", serving.is_some().into());
        out("serving_budget", of_serving(&|q| self.queues.wf.budget(q)));
        out("serving_service", of_serving(&|q| self.queues.wf.service(q)));
        out("serving_weight", of_serving(&|q| self.queues.wf.weight(q).into()));
        out("serving_raised", of_serving(&|q| self.queues[q].raising.factor.into()));
        out("serving_in_burst", of_serving(&|q| self.queues[q].in_burst.into()));
        out("serving_shared", of_serving(&|q| self.queues[q].shared.into()));
        out("idling", self.slot.idle.is_some().into());
        out("vtime", self.queues.wf.vtime(super::wf2q::ROOT, super::wf2q::Class::BestEffort));
    }

    fn may_merge(&self, _: &Cx<'_>, into: RequestId, io: &IoMeta) -> bool {
        let item = &self.held[into];
        // A request at the head is in no order; and the process may have another queue by now.
        item.state == State::Queued
            && self.queues[item.queue].sync == super::is_sync(io)
            && self.queue_for(io) == Some(item.queue)
    }

    fn grown(&mut self, cx: &Cx<'_>, rq: RequestId, edge: Grown) {
        self.enter(cx);
        self.held[rq].sectors = cx.requests.get(rq).sectors;
        self.note_merged(cx, rq);
        match edge {
            Grown::Back => {}
            Grown::Front { .. } | Grown::Discard => self.moved(cx, rq),
        }
    }

    fn admits(&self, _: &Cx<'_>, io: &IoMeta, used: Used) -> bool {
        self.queues
            .cap_of(io, used, 0)
            .is_some_and(|cap| self.queue_for(io).is_none_or(|q| self.queues.has_room(q, 0, cap)))
    }

    fn regroup(&mut self, cx: &Cx<'_>, change: GroupChange) {
        self.enter(cx);
        self.change_groups(cx, change);
    }

    fn owner_gone(&mut self, cx: &Cx<'_>, owner: Owner) {
        self.enter(cx);
        self.owner_left(cx, owner);
    }

    fn attribute(&self, name: &str) -> Option<i64> {
        self.tunables.get(name)
    }

    fn set_attribute(&mut self, name: &str, value: i64) -> bool {
        let Tunables { timeout, max_budget, low_latency, slice_idle, .. } = self.tunables;
        let known = self.tunables.set(name, value);
        let Tunables { timeout: new_timeout, max_budget: new_max, .. } = self.tunables;
        if new_timeout != timeout || (new_max == 0 && max_budget != 0) {
            self.device.adapt_budget(new_timeout);
        }
        if low_latency && !self.tunables.low_latency {
            self.queues.end_all_raising(self.now);
        }
        let q = self.slot.queue;
        if q != super::NOBODY && self.tunables.slice_idle < slice_idle {
            self.slot.shorten_idling(self.idling().span(q));
        }
        known
    }
}
