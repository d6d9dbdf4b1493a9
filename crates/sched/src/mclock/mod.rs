//! `mclock`: a floor, a weight and a ceiling for each group.
//!
//! `doc/mclock.md` is the page. This file is the [`Scheduler`], which follows a request from insertion to completion,
//! and its attributes: the capacity of the device, by the names of `io.cost.model`, and the parameters of the policy.
//! `tree.rs` selects the next group, `queues.rs` the request of that group. `prices.rs` has the prices of the capacity,
//! and finds those of this device. `learner.rs` finds the bound of what the device holds, and the pace.

mod learner;
mod prices;
mod queues;
mod tree;

use crate::{
    At, Attribute, Capacity, Cx, Done, Factory, Facts, GroupChange, Grown, Options, Pick,
    Scheduler, Scope, Shape, Unit,
};
use alloc::boxed::Box;
use alloc::vec;
use blkmq_core::{HwQueue, Instant, IoMeta, Nanos, Op, RequestId};
use learner::{Ended, Judged, LEAST, Learner, Moment};
use prices::{Costs, Prices};
use queues::Queues;
use tree::{ROOT, Reason, Tree};

/// The registry line.
pub const FACTORY: Factory = Factory {
    name: "mclock",
    summary: "floors, weights and ceilings of groups, in device time",
    scope: Scope::Queue,
    attributes: &ATTRIBUTES,
    common: None,
    build: |shape, options| Box::new(Mclock::new(shape, options)),
};

/// After this many picks for floors in a row, one is by weight.
const MOST_IN_A_ROW: u32 = 255;

/// The state of a slot's request beyond its metadata, from insertion to completion.
#[derive(Clone, Copy)]
struct Item {
    rq: RequestId,
    /// The node of requests that it belongs to.
    leaf: u32,
    /// Its cost in nanoseconds when it was picked, and its kind of work.
    cost: u64,
    kind: u8,
    /// Returned by `pick`, and neither completed nor requeued since.
    issued: bool,
    /// Its cost is charged: it was requeued.
    paid: bool,
}

/// Requests picked, by reason.
#[derive(Default)]
struct Picked {
    by_floor: u64,
    by_weight: u64,
    from_head: u64,
}

struct Mclock {
    tunables: Tunables,
    prices: Prices,
    tree: Tree,
    queues: Queues,
    items: Box<[Item]>,
    /// The node of requests that was served last by weight.
    serving: Option<u32>,
    /// The time of the last insertion or pick, since `set_attribute` has no other clock.
    now: Instant,
    /// Picks for floors since the last one by weight.
    in_a_row: u32,
    /// Device time of the requests in flight, in nanoseconds.
    inflight: u64,
    /// Requests in flight.
    issued: u32,
    /// Finds the bound of what is in flight, while neither the capacity of the device nor a bound is given.
    learner: Learner,
    picked: Picked,
}

impl Mclock {
    fn new(shape: &Shape, options: &Options) -> Self {
        let tunables = Tunables::new(shape, options);
        let nothing = Item {
            rq: RequestId::new(0, 0),
            leaf: 0,
            cost: 0,
            kind: 0,
            issued: false,
            paid: false,
        };
        let mut mclock = Self {
            prices: Prices::new(Costs::new(tunables.capacity())),
            tree: Tree::new(),
            queues: Queues::new(shape.slots),
            items: vec![nothing; shape.slots as usize].into_boxed_slice(),
            serving: None,
            now: Instant::ZERO,
            in_a_row: 0,
            inflight: 0,
            issued: 0,
            learner: Learner::new(tunables.begins_with()),
            picked: Picked::default(),
            tunables,
        };
        mclock.reprice();
        mclock
    }

    fn reprice(&mut self) {
        self.tree.reprice(self.prices.capacity(), self.tunables.pace_percent(), self.now);
    }

    /// Puts `rq` behind the requests of `leaf`.
    fn enqueue(&mut self, cx: &Cx<'_>, rq: RequestId, leaf: u32) {
        self.items[rq.index()].leaf = leaf;
        if self.queues.push(leaf, rq, cx.requests.get(rq)) {
            let is_busy = !self.queues.is_idle(leaf);
            self.tree.filled(leaf, is_busy, cx.now);
        }
    }

    /// Takes the held request `rq` out of its queue.
    fn unlink(&mut self, rq: RequestId) {
        let leaf = self.items[rq.index()].leaf;
        if self.queues.remove(leaf, rq) {
            self.tree.emptied(leaf);
        }
    }

    /// Charges the picked request `rq` of `leaf`.
    fn charge(&mut self, cx: &Cx<'_>, rq: RequestId, leaf: u32, reason: Reason) {
        let io = cx.requests.get(rq);
        let sequential = self.queues.follows(leaf, io);
        let charge = self.prices.charge(io, sequential);
        let item = &mut self.items[rq.index()];
        (item.cost, item.kind) = (charge.time, charge.kind);
        self.tree.charge(leaf, &charge, reason, cx.now);
    }

    fn issue(&mut self, rq: RequestId) -> Pick {
        let item = &mut self.items[rq.index()];
        item.issued = true;
        self.inflight += item.cost;
        self.issued += 1;
        self.queues.began(item.leaf);
        Pick::Issue(rq)
    }

    /// Picks a request of `leaf`.
    fn serve(&mut self, cx: &Cx<'_>, leaf: u32, reason: Reason) -> Pick {
        if let Reason::Floor(_) = reason {
            self.in_a_row += 1;
            self.picked.by_floor += 1;
        } else {
            self.in_a_row = 0;
            self.picked.by_weight += 1;
            self.serving = Some(leaf);
        }
        let (rq, is_last) = self.queues.pop(leaf, self.tunables.batch());
        self.charge(cx, rq, leaf, reason);
        if is_last {
            self.tree.emptied(leaf);
        }
        self.issue(rq)
    }

    fn serve_head(&mut self, cx: &Cx<'_>, rq: RequestId) -> Pick {
        self.picked.from_head += 1;
        let Item { leaf, paid, .. } = self.items[rq.index()];
        if !paid {
            self.charge(cx, rq, leaf, Reason::Extra);
        }
        let pick = self.issue(rq);
        self.watch(leaf, cx.now);
        pick
    }

    /// The node of requests that was served last by weight, if its batch continues within its limits.
    fn batch(&self) -> Option<u32> {
        let leaf = self.serving?;
        let goes_on = self.queues.batch_goes_on(leaf, self.tunables.batch());
        (goes_on && self.tree.is_within_limits(leaf)).then_some(leaf)
    }

    /// Returns whether a bound keeps requests out of the device.
    fn is_full(&self) -> bool {
        if self.tunables.is_untold() {
            let competing = self.tunables.learns() || self.queues.active() > 1;
            return competing && self.inflight >= self.learner.bound() && self.issued >= LEAST;
        }
        self.tunables.inflight().is_some_and(|most| self.inflight >= most)
    }

    /// Returns whether the request, merged with `io`, would delay requests of other groups in the device for too long.
    fn is_too_long(&self, into: &IoMeta, io: &IoMeta) -> bool {
        let is_data = matches!(io.op, Op::Read | Op::Write);
        is_data
            && (self.queues.active() > 1 || self.learner.is_searching())
            && into.sectors.saturating_add(io.sectors) > self.tunables.longest()
    }

    /// Counts the completion of a request, and judges the window that it ends.
    #[inline]
    fn learn(&mut self, now: Instant, cost: u64, kind: u8) {
        let (inside, issued) = (self.inflight, self.issued);
        let (held, competing) = (self.queues.held(), self.queues.active() > 1);
        let floors = self.tree.has_floors();
        let at = Moment { now, cost, kind, inside, issued, held, competing, floors };
        match self.learner.completed(at) {
            Ended::Nothing => {}
            Ended::Change => self.tree.begin_floors(now),
            Ended::Window if self.prices.are_tried() => self.try_prices(now),
            Ended::Window => {
                let work = self.learner.work(now).filter(|_| !floors);
                let (got, floors) = (self.tree.judge_shares(), self.tree.judge_floors(now));
                let mixed = work.is_some_and(|(work, _)| work.is_mixed());
                self.learner.judge(now, Judged { got, floors, mixed }, issued);
                // The option `pace_percent` overrides a pace that was found.
                if self.tunables.pace_percent() == 0 {
                    self.tree.find_pace(self.learner.pace());
                }
                if let Some((work, _)) = work
                    && self.learner.is_settled(now)
                    && self.prices.begin(&work)
                {
                    self.learner.begin_anew(now, issued);
                }
            }
        }
    }

    /// Takes the next step of a trial of prices if its window is over. The bound stays as it is.
    fn try_prices(&mut self, now: Instant) {
        match self.learner.work(now) {
            Some((work, span)) if self.prices.suffices(&work, span) => {
                self.prices.step(&work, span);
            }
            Some(_) => return,
            None => self.prices.end(),
        }
        // Shares of a trial are not judged.
        self.tree.judge_shares();
        self.learner.begin_anew(now, self.issued);
    }

    /// Resets prices to the capacity's, when a group gets a floor or the capacity changes.
    fn forget_prices(&mut self) {
        if self.prices.are_found() {
            self.learner = Learner::new(self.tunables.begins_with());
        }
        self.prices = Prices::new(Costs::new(self.tunables.capacity()));
    }

    /// Updates in the tree whether `leaf` has requests, if there are floors.
    #[inline]
    fn watch(&mut self, leaf: u32, now: Instant) {
        if self.tree.has_floors() {
            self.tree.set_busy(leaf, self.queues.is_active(leaf), now);
        }
    }

    /// The answer where nothing may be picked. `allowed` is the time at which a pick by weight may be.
    fn wait(&self, allowed: Option<u64>) -> Pick {
        let next = [allowed, self.tree.next_due()].into_iter().flatten().min();
        next.map_or(Pick::WaitCompletion, |at| Pick::WaitUntil(Instant::from_nanos(at)))
    }

    /// Removes a group. Its requests join those of its parent. O(slots).
    fn remove_group(&mut self, cx: &Cx<'_>, node: u32) {
        let parent = self.tree.parent(node);
        let (from, to) = (tree::own(node), tree::own(parent));
        for item in self.items.iter_mut().filter(|item| item.leaf == from) {
            item.leaf = to;
            if item.issued {
                self.queues.began(to);
            }
        }
        while let Some((rq, is_last)) = self.queues.pop_oldest(from) {
            // In this order the parent never runs empty, and keeps what its floor is owed.
            self.enqueue(cx, rq, to);
            if is_last {
                self.tree.emptied(from);
            }
        }
        self.serving = self.serving.filter(|leaf| *leaf != from);
        self.queues.forget(from);
        self.watch(from, cx.now);
        self.watch(to, cx.now);
        self.tree.remove(node);
    }
}

impl Scheduler for Mclock {
    fn facts(&self) -> Facts {
        let [[bps, _, iops], _] = self.tunables.capacity();
        Facts {
            front_merges: self.tunables.front_merges(),
            shares_by_group: true,
            bounds_device: self.tunables.inflight().is_some() || self.tunables.pace_percent() > 0,
            capacity: Some(Capacity { iops, bps, safe_percent: self.tunables.safe_percent() }),
            ..Facts::default()
        }
    }

    fn insert(&mut self, cx: &Cx<'_>, rq: RequestId, at: At) {
        self.now = cx.now;
        let io = cx.requests.get(rq);
        let leaf = tree::own(self.tree.named(io.group));
        let item = &mut self.items[rq.index()];
        let requeued = core::mem::take(&mut item.issued);
        assert!(!requeued || item.rq == rq, "{rq:?} took the slot of {:?}, still issued", item.rq);
        let before = *item;
        let cost = if requeued { before.cost } else { 0 };
        *item = Item { rq, leaf, cost, kind: before.kind, issued: false, paid: requeued };
        if requeued {
            self.inflight -= cost;
            self.issued -= 1;
            self.queues.ended(before.leaf);
        }
        match at {
            At::Head => self.queues.push_head(rq),
            At::Tail => self.enqueue(cx, rq, leaf),
        }
        self.watch(leaf, cx.now);
        if requeued {
            self.watch(before.leaf, cx.now);
        }
    }

    fn pick(&mut self, cx: &Cx<'_>, _: HwQueue) -> Pick {
        self.now = cx.now;
        if let Some(rq) = self.queues.pop_head() {
            return self.serve_head(cx, rq);
        }
        if self.queues.held() == 0 {
            return Pick::Empty;
        }
        self.tree.release(cx.now);
        if self.in_a_row >= MOST_IN_A_ROW
            && let Some(leaf) = self.tree.turn()
        {
            return self.serve(cx, leaf, Reason::Turn);
        }
        if let Some((leaf, reason)) = self.tree.due(cx.now) {
            return self.serve(cx, leaf, reason);
        }
        let (full, paced) = (self.is_full(), self.tree.paced_until(cx.now));
        if full || paced.is_some() {
            return match self.tree.turn().filter(|leaf| self.queues.is_idle(*leaf)) {
                Some(leaf) => self.serve(cx, leaf, Reason::Turn),
                None => self.wait(paced.filter(|_| !full)),
            };
        }
        if let Some(leaf) = self.batch() {
            return self.serve(cx, leaf, Reason::Extra);
        }
        match self.tree.turn() {
            Some(leaf) => self.serve(cx, leaf, Reason::Turn),
            None => self.wait(self.tree.next_release()),
        }
    }

    fn completed(&mut self, cx: &Cx<'_>, done: &Done) {
        let item = &mut self.items[done.rq.index()];
        assert!(item.issued && item.rq == done.rq, "{:?} completed without being issued", done.rq);
        item.issued = false;
        let Item { leaf, cost, kind, .. } = *item;
        if self.tunables.learns() {
            self.learn(cx.now, cost, kind);
        }
        self.inflight -= cost;
        self.issued -= 1;
        self.queues.ended(leaf);
        self.watch(leaf, cx.now);
    }

    fn withdraw(&mut self, cx: &Cx<'_>, rq: RequestId) {
        self.unlink(rq);
        self.watch(self.items[rq.index()].leaf, cx.now);
    }

    fn absorbed(&mut self, cx: &Cx<'_>, into: RequestId, gone: RequestId) {
        self.queues.take_place(into, gone);
        self.unlink(gone);
        self.watch(self.items[gone.index()].leaf, cx.now);
        self.queues.refile(into, cx.requests.get(into).sector);
    }

    fn inspect(&self, out: &mut dyn FnMut(&'static str, u64)) {
        let Picked { by_floor, by_weight, from_head } = self.picked;
        out("queued", u64::from(self.queues.held()));
        out("inflight_nsec", self.inflight);
        out("by_floor", by_floor);
        out("by_weight", by_weight);
        out("from_head", from_head);
        out("floors", self.tree.floors() as u64);
        out("held_back", self.tree.held_back() as u64);
        out("written_off_nsec", self.tree.slip());
        self.learner.inspect(out);
        self.prices.inspect(out);
    }

    fn may_merge(&self, cx: &Cx<'_>, into: RequestId, io: &IoMeta) -> bool {
        // A request at the head is in no order of sector, and other I/O may depend on its position.
        !self.queues.is_head(into) && !self.is_too_long(cx.requests.get(into), io)
    }

    fn grown(&mut self, cx: &Cx<'_>, rq: RequestId, edge: Grown) {
        match edge {
            Grown::Back => {}
            Grown::Front { .. } | Grown::Discard => {
                self.queues.refile(rq, cx.requests.get(rq).sector);
            }
        }
    }

    fn charged(&self, rq: RequestId) -> Option<Nanos> {
        Some(Nanos(self.items[rq.index()].cost))
    }

    fn regroup(&mut self, cx: &Cx<'_>, change: GroupChange) {
        match change {
            GroupChange::Added { group, parent, weight } => {
                let node = self.tree.add(group, parent, weight);
                self.queues.make_room(self.tree.len());
                self.queues.forget(tree::own(node));
            }
            GroupChange::Weight { group, weight } => {
                self.tree.set_weight(self.tree.named(group), weight);
            }
            GroupChange::Guarantee { group, guarantee } => {
                let costs = self.prices.capacity();
                self.tree.promise(self.tree.named(group), guarantee, costs, cx.now);
                if self.tree.has_floors() {
                    self.forget_prices();
                }
                // Without floors, `watch` does nothing.
                (1..self.tree.len() as u32).step_by(2).for_each(|leaf| self.watch(leaf, cx.now));
            }
            GroupChange::Removed { group } => {
                let node = self.tree.named(group);
                if node != ROOT && self.tree.id(node) == group {
                    self.remove_group(cx, node);
                }
            }
        }
    }

    fn attribute(&self, name: &str) -> Option<i64> {
        self.tunables.get(name)
    }

    fn set_attribute(&mut self, name: &str, value: i64) -> bool {
        let told = self.tunables.begins_with();
        let priced = |of: &Tunables| (of.capacity(), of.is_untold());
        let before = priced(&self.tunables);
        let known = self.tunables.set(name, value);
        if told != self.tunables.begins_with() {
            self.learner = Learner::new(self.tunables.begins_with());
        }
        if before == priced(&self.tunables) {
            self.prices.end();
        } else {
            self.forget_prices();
        }
        self.reprice();
        known
    }
}

/// The most bytes and I/Os a second, far above any device.
const MOST_BPS: i64 = 1 << 40;
const MOST_IOPS: i64 = 1 << 30;
/// The greatest bound, in nanoseconds: a minute.
const MOST_BOUND: i64 = 60_000_000_000;

/// The attributes, the capacity first.
static ATTRIBUTES: [Attribute; 15] = [
    Attribute::new(
        "rbps",
        Unit::Count,
        0,
        (0, MOST_BPS),
        "bytes that the device reads a second; 0: a guess",
    ),
    Attribute::new(
        "rseqiops",
        Unit::Count,
        0,
        (0, MOST_IOPS),
        "sequential reads of 4 KiB a second; 0: a guess",
    ),
    Attribute::new(
        "rrandiops",
        Unit::Count,
        0,
        (0, MOST_IOPS),
        "random reads of 4 KiB a second; 0: a guess",
    ),
    Attribute::new(
        "wbps",
        Unit::Count,
        0,
        (0, MOST_BPS),
        "bytes that the device writes a second; 0: as reads",
    ),
    Attribute::new(
        "wseqiops",
        Unit::Count,
        0,
        (0, MOST_IOPS),
        "sequential writes a second; 0: as reads",
    ),
    Attribute::new(
        "wrandiops",
        Unit::Count,
        0,
        (0, MOST_IOPS),
        "random writes a second; 0: as reads",
    ),
    Attribute::new(
        "safe_percent",
        Unit::Count,
        90,
        (1, 100),
        "part of the capacity that may be promised to groups",
    ),
    Attribute::new(
        "pace_percent",
        Unit::Count,
        0,
        (0, 1_000),
        "part of the capacity at which requests without a floor leave; 0: as fast as the device takes them",
    ),
    Attribute::new(
        "inflight_usec",
        Unit::Micros,
        0,
        (0, 10_000_000),
        "device time in flight beyond which only floors and groups without any are served; 0: no bound",
    ),
    Attribute::new(
        "fifo_batch",
        Unit::Count,
        0,
        (0, 1_000),
        "requests of one group in a row, in order of sector; 0: 16 if the device rotates, else 1",
    ),
    Attribute::new(
        "merge_kib",
        Unit::Kib,
        128,
        (0, 1 << 20),
        "length up to which I/Os merge while groups compete; 0: as long as the device takes them",
    ),
    Attribute::new(
        "learn",
        Unit::Flag,
        1,
        (0, 1),
        "find a bound for what is in the device, where neither it nor the capacity is given; 0: the bound that was found stays",
    ),
    Attribute::new(
        "bound_nsec",
        Unit::Count,
        0,
        (0, MOST_BOUND),
        "the bound that the search begins with, as blkmq/learned has shown it; 0: none",
    ),
    Attribute::new(
        "saturated_ppm",
        Unit::Count,
        0,
        (0, MOST_IOPS),
        "the rate of the saturated device that the search begins with, as blkmq/learned has shown it; 0: not known",
    ),
    Attribute::new(
        "front_merges",
        Unit::Flag,
        1,
        (0, 1),
        "look for requests that begin where an I/O ends",
    ),
];

/// Current values, as they were set.
struct Tunables {
    values: [i64; ATTRIBUTES.len()],
    rotational: bool,
    hot: Hot,
}

/// Derived values that are read for each request.
#[derive(Clone, Copy, Default)]
struct Hot {
    inflight: Option<u64>,
    batch: u32,
    longest: u32,
    untold: bool,
    learns: bool,
}

/// The number of attributes of the capacity, which are the first ones.
const CAPACITY: usize = 6;

/// The automatic values of `io.cost.model` in Linux, in the order of [`ATTRIBUTES`].
const ROTATING: [i64; 6] = [174_019_176, 41_708, 370, 178_075_866, 42_705, 378];
const SOLID: [i64; 6] = [488_636_629, 8_932, 8_518, 427_891_549, 28_755, 21_940];

impl Tunables {
    fn new(shape: &Shape, options: &Options) -> Self {
        let values = core::array::from_fn(|at| options.get(ATTRIBUTES[at].name));
        let mut tunables = Self { values, rotational: shape.rotational, hot: Hot::default() };
        tunables.hot = tunables.find_hot();
        tunables
    }

    fn find_hot(&self) -> Hot {
        let usec = self.value("inflight_usec");
        let untold = usec == 0 && self.values[..CAPACITY].iter().all(|given| *given == 0);
        Hot {
            inflight: (usec > 0).then_some(usec * 1_000),
            batch: match self.value("fifo_batch") {
                0 if self.rotational => 16,
                0 => 1,
                given => given as u32,
            },
            longest: match self.value("merge_kib") {
                0 => u32::MAX,
                kib => (2 * kib) as u32,
            },
            untold,
            learns: untold && self.value("learn") != 0,
        }
    }

    fn position(name: &str) -> Option<usize> {
        ATTRIBUTES.iter().position(|attribute| attribute.name == name)
    }

    fn get(&self, name: &str) -> Option<i64> {
        Self::position(name).map(|at| self.values[at])
    }

    /// Sets `name` to `value`, which is in the attribute's range. Returns false if there is no such attribute.
    fn set(&mut self, name: &str, value: i64) -> bool {
        let known = Self::position(name).map(|at| self.values[at] = value).is_some();
        self.hot = self.find_hot();
        known
    }

    fn value(&self, name: &str) -> u64 {
        self.get(name).expect("the names are those of the table").unsigned_abs()
    }

    /// Returns bytes, sequential I/Os and random I/Os a second, of reads and then of writes.
    fn capacity(&self) -> [[u64; 3]; 2] {
        let guess = if self.rotational { ROTATING } else { SOLID };
        let or = |at: usize, other: i64| if self.values[at] > 0 { self.values[at] } else { other };
        let given = |at: usize| self.values[at];
        // Sequential reads are no slower than random ones that are given.
        let random = or(2, guess[2]);
        let sequential = or(1, if given(2) > 0 { given(2) } else { guess[1] });
        let read = [or(0, guess[0]), sequential, random];
        // Writes are as reads where these are given.
        let like = |at: usize| if given(at) > 0 { given(at) } else { guess[at + 3] };
        let random = or(5, like(2));
        let sequential = or(4, if given(1) > 0 || given(2) > 0 { read[1] } else { guess[4] });
        let write = [or(3, like(0)), sequential, random];
        [read, write].map(|of| of.map(i64::unsigned_abs))
    }

    fn safe_percent(&self) -> u32 {
        self.value("safe_percent") as u32
    }

    fn pace_percent(&self) -> u32 {
        self.value("pace_percent") as u32
    }

    /// The bound in nanoseconds and the saturated rate in millionths with which the search begins; zero if not given.
    fn begins_with(&self) -> [u64; 2] {
        ["bound_nsec", "saturated_ppm"].map(|name| self.value(name))
    }

    /// The most device time in flight, in nanoseconds; `None` if not given.
    #[inline]
    fn inflight(&self) -> Option<u64> {
        self.hot.inflight
    }

    /// The most sectors of a merged request while groups compete.
    #[inline]
    fn longest(&self) -> u32 {
        self.hot.longest
    }

    /// Returns whether neither the capacity of the device nor a bound is given, so a bound is found.
    #[inline]
    fn is_untold(&self) -> bool {
        self.hot.untold
    }

    /// Returns whether the bound is sought.
    #[inline]
    fn learns(&self) -> bool {
        self.hot.learns
    }

    #[inline]
    fn batch(&self) -> u32 {
        self.hot.batch
    }

    fn front_merges(&self) -> bool {
        self.value("front_merges") != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capacity(rotational: bool, text: &str) -> [[u64; 3]; 2] {
        let shape = Shape { slots: 64, nr_requests: 64, hw_depth: 32, hw_queues: 1, rotational };
        Tunables::new(&shape, &Options::parse(&ATTRIBUTES, text).expect("valid options")).capacity()
    }

    #[test]
    fn what_is_not_given_is_as_what_is() {
        assert_eq!(capacity(true, ""), [[174_019_176, 41_708, 370], [178_075_866, 42_705, 378]]);
        assert_eq!(capacity(false, "rbps=7,rrandiops=5"), [[7, 5, 5], [7, 5, 5]]);
        assert_eq!(
            capacity(false, "rrandiops=5,rseqiops=6,wrandiops=2"),
            [[488_636_629, 6, 5], [427_891_549, 6, 2]]
        );
    }
}
