//! `mclock`, written from its page: a list of requests, a map of nodes, and scans. Costs of requests and shares of
//! rates are by the formulas of the page.
//!
//! The name of a node is a group, and whether the node is of the group's own requests.

mod learner;
mod nodes;

use blkmq_core::{Class, GroupIndex, HwQueue, Instant, IoMeta, Op, RequestId};
use blkmq_sched::{At, Cx, Done, Facts, GroupChange, Grown, Options, Pick, Rate, Scheduler, Shape};
use learner::{Learner, Sample, Trials, is_mixed};
use nodes::{How, Name, Nodes};
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn build(shape: &Shape, options: &Options) -> Box<dyn Scheduler> {
    let values = Values::new(shape.rotational, options);
    let mut naive = Naive {
        nodes: Nodes::new(),
        learner: Learner::new(values.get("bound_nsec"), values.get("saturated_ppm")),
        values,
        requests: Vec::new(),
        issued: Vec::new(),
        orders: BTreeMap::new(),
        serving: None,
        now: Instant::ZERO,
        in_a_row: 0,
        filings: 0,
        picked: [0; 3],
        trials: Trials::new(),
    };
    naive.nodes.reprice(&naive.values, 0);
    Box::new(naive)
}

#[derive(Clone, Copy)]
struct Entry {
    rq: RequestId,
    group: GroupIndex,
    head: bool,
    paid: bool,
    /// Its place in the order of arrival.
    arrival: u64,
    sector: u64,
    /// A better class has a lower number.
    class: u8,
    /// The order of requests at one sector.
    filing: u64,
    cost: u64,
    kind: usize,
}

/// The order of a group's own requests.
#[derive(Clone, Copy, Default)]
struct Order {
    next: u64,
    run: u64,
    end: u64,
    class: u8,
    passed: u32,
}

struct Naive {
    nodes: Nodes,
    values: Values,
    /// Requests at the head first, the latest first, and then the others in order of arrival.
    requests: Vec<Entry>,
    issued: Vec<Entry>,
    orders: BTreeMap<GroupIndex, Order>,
    serving: Option<GroupIndex>,
    now: Instant,
    in_a_row: u32,
    filings: u64,
    /// Picks by floor, by weight and from the head.
    picked: [u64; 3],
    learner: Learner,
    trials: Trials,
}

impl Naive {
    fn heads(&self) -> usize {
        self.requests.iter().filter(|e| e.head).count()
    }

    /// Updates the nodes by the groups that have requests of their own, not counting those at the head.
    fn settle(&mut self, now: Instant) {
        self.settle_for(now, false);
    }

    /// Like [`settle`](Self::settle), after an arrival. With `is_busy`, the device has others of its group.
    fn settle_for(&mut self, now: Instant, is_busy: bool) {
        let full = |group: GroupIndex| self.requests.iter().any(|e| !e.head && e.group == group);
        self.nodes.settle(now.as_nanos(), is_busy, full);
    }

    /// The class of the next request of a group, and whether it passes by an older request; `None` without requests.
    fn class_of_next(&self, group: GroupIndex) -> Option<(u8, bool)> {
        let passed = self.orders.get(&group).map_or(0, |order| order.passed);
        let mine = || self.requests.iter().filter(|e| !e.head && e.group == group).map(|e| e.class);
        let (oldest, best) = (mine().next()?, mine().min()?);
        if passed == 63 { Some((oldest, false)) } else { Some((best, best != oldest)) }
    }

    fn next_in_batch(&self, group: GroupIndex) -> Option<Entry> {
        let order = self.orders.get(&group).copied().unwrap_or_default();
        let class = self.class_of_next(group)?.0;
        if order.run == 0 || order.run >= self.values.batch() || order.class != class {
            return None;
        }
        let mine = self.requests.iter().filter(|e| !e.head && e.group == group && e.class == class);
        mine.filter(|e| e.sector >= order.next).min_by_key(|e| (e.sector, e.filing)).copied()
    }

    fn take(&mut self, rq: RequestId) -> Entry {
        let at = self.requests.iter().position(|e| e.rq == rq).expect("held");
        self.requests.remove(at)
    }

    fn charge(&mut self, cx: &Cx<'_>, entry: &mut Entry, how: How) {
        let io = cx.requests.get(entry.rq);
        let order = self.orders.entry(entry.group).or_default();
        let sequential = io.sector == order.end;
        order.end = io.end();
        let clocks = clocks(&self.values, io, sequential);
        let (time, weighed, kind) = self.trials.charge(&self.values, io, sequential);
        (entry.cost, entry.kind) = (time, kind);
        let now = cx.now.as_nanos();
        self.nodes.charge(entry.group, clocks, (time, weighed), how, &self.values, now);
    }

    fn serve(&mut self, cx: &Cx<'_>, group: GroupIndex, how: How) -> Pick {
        if let How::Floor(_) = how {
            self.in_a_row += 1;
            self.picked[0] += 1;
        } else {
            self.in_a_row = 0;
            self.picked[1] += 1;
            self.serving = Some(group);
        }
        let batched = self.next_in_batch(group);
        let (class, passes) = self.class_of_next(group).expect("the group has requests");
        let is_next = |e: &&Entry| !e.head && e.group == group && e.class == class;
        let oldest = self.requests.iter().find(is_next).copied();
        let chosen = batched.or(oldest).expect("the group has requests");
        let mut entry = self.take(chosen.rq);
        let order = self.orders.entry(group).or_default();
        order.run = if batched.is_some() { order.run + 1 } else { 1 };
        (order.next, order.class) = (entry.sector, class);
        order.passed = if passes { order.passed + 1 } else { 0 };
        self.charge(cx, &mut entry, how);
        self.settle(cx.now);
        self.issued.push(entry);
        Pick::Issue(entry.rq)
    }

    fn serve_head(&mut self, cx: &Cx<'_>) -> Pick {
        let mut entry = self.requests.remove(0);
        self.picked[2] += 1;
        if !entry.paid {
            self.charge(cx, &mut entry, How::Extra);
            self.settle(cx.now);
        }
        self.issued.push(entry);
        Pick::Issue(entry.rq)
    }

    fn inflight(&self) -> u64 {
        self.issued.iter().map(|e| e.cost).sum()
    }

    /// The number of groups that have requests, held or in the device.
    fn active(&self) -> usize {
        let held = self.requests.iter().filter(|e| !e.head);
        held.chain(&self.issued).map(|e| e.group).collect::<BTreeSet<_>>().len()
    }

    /// Counts the time since the last event for floors.
    fn count(&mut self, now: Instant) {
        let held = self.requests.iter().filter(|e| !e.head);
        let groups = held.chain(&self.issued).map(|e| e.group).collect::<BTreeSet<_>>();
        self.nodes.count(now.as_nanos(), &Vec::from_iter(groups));
    }

    fn has_issued(&self, group: GroupIndex) -> bool {
        self.issued.iter().any(|e| e.group == group)
    }

    fn is_full(&self) -> bool {
        if !self.values.untold() {
            let bound = self.values.get("inflight_usec") * 1_000;
            return bound > 0 && self.inflight() >= bound;
        }
        let bounded = self.values.get("learn") == 1 || self.active() > 1;
        let reached = self.learner.bound().is_some_and(|bound| self.inflight() >= bound);
        bounded && reached && self.issued.len() >= 2
    }

    fn wait(&self, allowed: Option<u64>) -> Pick {
        let next = allowed.into_iter().chain(self.nodes.next_due()).min();
        next.map_or(Pick::WaitCompletion, |at| Pick::WaitUntil(Instant::from_nanos(at)))
    }

    fn next(&mut self, cx: &Cx<'_>) -> Pick {
        let now = cx.now.as_nanos();
        self.nodes.release(now);
        self.settle(cx.now);
        if self.in_a_row >= 255
            && let Some(group) = self.nodes.turn()
        {
            return self.serve(cx, group, How::Turn);
        }
        if let Some((name, group)) = self.nodes.due(now) {
            return self.serve(cx, group, How::Floor(name));
        }
        let full = self.is_full();
        let paced = self.nodes.paced_until(&self.values, now);
        if full || paced.is_some() {
            let turn = self.nodes.turn();
            let idle = turn.filter(|group| self.issued.iter().all(|e| e.group != *group));
            return match idle {
                Some(group) => self.serve(cx, group, How::Turn),
                None if full => self.wait(None),
                None => self.wait(paced),
            };
        }
        if let Some(group) = self.serving
            && self.next_in_batch(group).is_some()
            && self.nodes.within_limits((group, true))
        {
            return self.serve(cx, group, How::Extra);
        }
        match self.nodes.turn() {
            Some(group) => self.serve(cx, group, How::Turn),
            None => self.wait(self.nodes.next_release()),
        }
    }

    fn learn(&mut self, sample: Sample) {
        let watched = self.nodes.has_floors();
        let longest = if watched { 200_000_000 } else { 1_000_000_000 };
        let was_waiting = self.learner.is_waiting();
        let issued = self.issued.len() as u64;
        if !self.learner.completed(sample, longest) {
            if was_waiting && !self.learner.is_waiting() {
                self.nodes.begin_floors(sample.now);
            }
            return;
        }
        let work = self.learner.work();
        if self.trials.is_on() {
            match work {
                Some((work, span)) if self.trials.suffices(&work, span) => {
                    self.trials.step(&work, span);
                }
                Some(_) => return,
                None => self.trials.end(),
            }
            self.nodes.judge();
            self.learner.begin_anew(sample.now, issued);
            return;
        }
        let got = self.nodes.judge();
        let floors = self.nodes.judge_floors(sample.now);
        let known = work.as_ref().filter(|_| !watched);
        let mixed = known.is_some_and(|(work, _)| is_mixed(work));
        self.learner.judge(got, floors, mixed, issued);
        if self.values.get("pace_percent") == 0 {
            self.nodes.find_pace(self.learner.pace());
        }
        let work = work.filter(|_| !watched && self.learner.is_settled(sample.now));
        if work.is_some_and(|(work, _)| self.trials.begin(&work)) {
            self.learner.begin_anew(sample.now, issued);
        }
    }

    /// Resets prices to those of the capacity.
    fn forget_prices(&mut self) {
        if self.trials.are_found() {
            let [bound, rate] = ["bound_nsec", "saturated_ppm"].map(|name| self.values.get(name));
            self.learner = Learner::new(bound, rate);
        }
        self.trials = Trials::new();
    }

    fn refile(&mut self, cx: &Cx<'_>, rq: RequestId) {
        let sector = cx.requests.get(rq).sector;
        self.filings += 1;
        let filing = self.filings;
        if let Some(e) = self.requests.iter_mut().find(|e| e.rq == rq && e.sector != sector) {
            (e.sector, e.filing) = (sector, filing);
        }
    }

    fn remove_group(&mut self, now: Instant, group: GroupIndex) {
        let Some(parent) = self.nodes.parent_of(group) else { return };
        let (moving, mut rest): (Vec<_>, Vec<_>) =
            self.requests.iter().copied().partition(|e: &Entry| !e.head && e.group == group);
        for mut entry in moving {
            self.filings += 1;
            (entry.group, entry.filing) = (parent, self.filings);
            entry.arrival = self.filings;
            rest.push(entry);
        }
        self.requests = rest;
        let all = self.requests.iter_mut().chain(&mut self.issued);
        all.filter(|e| e.group == group).for_each(|e| e.group = parent);
        self.orders.remove(&group);
        self.serving = self.serving.filter(|serving| *serving != group);
        self.settle_for(now, self.has_issued(parent));
        self.nodes.remove(group);
    }
}

impl Scheduler for Naive {
    fn facts(&self) -> Facts {
        let front_merges = self.values.get("front_merges") == 1;
        Facts { front_merges, shares_by_group: true, ..Facts::default() }
    }

    fn insert(&mut self, cx: &Cx<'_>, rq: RequestId, at: At) {
        self.count(cx.now);
        self.now = cx.now;
        let io = cx.requests.get(rq);
        let before = self.issued.iter().position(|e| e.rq == rq).map(|at| self.issued.remove(at));
        self.filings += 1;
        let entry = Entry {
            rq,
            group: self.nodes.named(io.group),
            head: at == At::Head,
            paid: before.is_some(),
            arrival: self.filings,
            sector: io.sector,
            class: match io.ioprio.class() {
                Class::Realtime => 1,
                Class::None | Class::BestEffort => 2,
                Class::Idle => 3,
            },
            filing: self.filings,
            cost: before.map_or(0, |e| e.cost),
            kind: before.map_or(0, |e| e.kind),
        };
        let place = if at == At::Head { 0 } else { self.requests.len() };
        self.requests.insert(place, entry);
        self.settle_for(cx.now, self.has_issued(entry.group));
    }

    fn pick(&mut self, cx: &Cx<'_>, _: HwQueue) -> Pick {
        self.count(cx.now);
        self.now = cx.now;
        if self.heads() > 0 {
            return self.serve_head(cx);
        }
        if self.requests.is_empty() { Pick::Empty } else { self.next(cx) }
    }

    fn completed(&mut self, cx: &Cx<'_>, done: &Done) {
        self.count(cx.now);
        if self.values.untold() && self.values.get("learn") == 1 {
            let entry = self.issued.iter().find(|e| e.rq == done.rq).expect("issued");
            let sample = Sample {
                now: cx.now.as_nanos(),
                cost: entry.cost,
                kind: entry.kind,
                inside: self.inflight(),
                outstanding: (self.issued.len() + self.requests.len()) as u64,
                issued: self.issued.len() as u64,
                competing: self.active() > 1,
            };
            self.learn(sample);
        }
        self.issued.retain(|e| e.rq != done.rq);
    }

    fn withdraw(&mut self, cx: &Cx<'_>, rq: RequestId) {
        self.count(cx.now);
        let _ = self.take(rq);
        self.settle(cx.now);
    }

    fn absorbed(&mut self, cx: &Cx<'_>, into: RequestId, gone: RequestId) {
        self.count(cx.now);
        let lost = self.take(gone);
        let at = self.requests.iter().position(|e| e.rq == into).expect("held");
        let mut kept = self.requests[at];
        if lost.arrival < kept.arrival && lost.group == kept.group && !lost.head && !kept.head {
            self.requests.remove(at);
            kept.arrival = lost.arrival;
            let older = |e: &Entry| e.head || e.group != kept.group || e.arrival < lost.arrival;
            let place = self.requests.iter().position(|e| !older(e));
            self.requests.insert(place.unwrap_or(self.requests.len()), kept);
        }
        self.refile(cx, into);
        self.settle(cx.now);
    }

    fn inspect(&self, out: &mut dyn FnMut(&'static str, u64)) {
        out("queued", self.requests.len() as u64);
        out("inflight_nsec", self.inflight());
        out("by_floor", self.picked[0]);
        out("by_weight", self.picked[1]);
        out("from_head", self.picked[2]);
        self.nodes.inspect(out);
        self.learner.inspect(out);
        self.trials.inspect(out);
    }

    fn may_merge(&self, cx: &Cx<'_>, into: RequestId, io: &IoMeta) -> bool {
        let most = 1_024 * self.values.get("merge_kib");
        let bytes = 512 * (u64::from(cx.requests.get(into).sectors) + u64::from(io.sectors));
        let is_data = [Op::Read, Op::Write].contains(&io.op);
        let competing = self.active() > 1 || self.learner.is_searching();
        let long = is_data && competing && most > 0 && bytes > most;
        !long && self.requests.iter().all(|e| e.rq != into || !e.head)
    }

    fn grown(&mut self, cx: &Cx<'_>, rq: RequestId, _: Grown) {
        self.refile(cx, rq);
    }

    fn regroup(&mut self, cx: &Cx<'_>, change: GroupChange) {
        self.count(cx.now);
        let now = cx.now.as_nanos();
        match change {
            GroupChange::Added { group, parent, weight } => {
                self.nodes.add(group, parent, weight);
                self.orders.remove(&group);
            }
            GroupChange::Weight { group, weight } => self.nodes.set_weight(group, weight),
            GroupChange::Guarantee { group, guarantee } => {
                self.nodes.promise(group, guarantee, &self.values, now);
                if self.nodes.has_floors() {
                    self.forget_prices();
                }
                self.settle(cx.now);
            }
            GroupChange::Removed { group } => self.remove_group(cx.now, group),
        }
    }

    fn attribute(&self, name: &str) -> Option<i64> {
        self.values.shown(name)
    }

    fn set_attribute(&mut self, name: &str, value: i64) -> bool {
        let before = self.values.priced();
        let known = self.values.set(name, value);
        if ["bound_nsec", "saturated_ppm"].contains(&name) {
            let [bound, rate] = ["bound_nsec", "saturated_ppm"].map(|name| self.values.get(name));
            self.learner.begin_with(bound, rate);
        }
        if before == self.values.priced() {
            self.trials.end();
        } else {
            self.forget_prices();
        }
        self.nodes.reprice(&self.values, self.now.as_nanos());
        self.settle(self.now);
        known
    }
}

/// The name of a group's own requests.
const fn own(group: GroupIndex) -> Name {
    (group, true)
}

const NAMES: [&str; 15] = [
    "rbps",
    "rseqiops",
    "rrandiops",
    "wbps",
    "wseqiops",
    "wrandiops",
    "safe_percent",
    "pace_percent",
    "inflight_usec",
    "fifo_batch",
    "merge_kib",
    "learn",
    "bound_nsec",
    "saturated_ppm",
    "front_merges",
];

pub(super) struct Values {
    set: BTreeMap<&'static str, i64>,
    rotational: bool,
}

impl Values {
    pub(super) fn new(rotational: bool, options: &Options) -> Self {
        Self { set: NAMES.iter().map(|n| (*n, options.get(n))).collect(), rotational }
    }

    pub(super) fn shown(&self, name: &str) -> Option<i64> {
        self.set.get(name).copied()
    }

    pub(super) fn set(&mut self, name: &str, value: i64) -> bool {
        self.set.get_mut(name).map(|v| *v = value).is_some()
    }

    pub(super) fn get(&self, name: &str) -> u64 {
        self.set[name] as u64
    }

    pub(super) fn batch(&self) -> u64 {
        match (self.get("fifo_batch"), self.rotational) {
            (0, true) => 16,
            (0, false) => 1,
            (given, _) => given,
        }
    }

    /// Returns whether neither the capacity nor a bound is given.
    fn untold(&self) -> bool {
        NAMES[..6].iter().all(|name| self.get(name) == 0) && self.get("inflight_usec") == 0
    }

    /// All prices, and whether they are guesses.
    fn priced(&self) -> (Vec<u128>, bool) {
        let of =
            |write| [self.request(write, true), self.request(write, false), self.bps(write).into()];
        ([false, true].map(of).concat(), self.untold())
    }

    /// The first of `names` that is given, or the guess.
    fn first(&self, names: &[&str], rotating: u64, solid: u64) -> u64 {
        let given = names.iter().map(|name| self.get(name)).find(|value| *value > 0);
        given.unwrap_or(if self.rotational { rotating } else { solid })
    }

    fn bps(&self, write: bool) -> u64 {
        if write {
            self.first(&["wbps", "rbps"], 178_075_866, 427_891_549)
        } else {
            self.first(&["rbps"], 174_019_176, 488_636_629)
        }
    }

    fn iops(&self, write: bool, sequential: bool) -> u64 {
        match (write, sequential) {
            (false, true) => self.first(&["rseqiops", "rrandiops"], 41_708, 8_932),
            (false, false) => self.first(&["rrandiops"], 370, 8_518),
            (true, true) => self.first(&["wseqiops", "rseqiops", "rrandiops"], 42_705, 28_755),
            (true, false) => self.first(&["wrandiops", "rrandiops"], 378, 21_940),
        }
    }

    /// The price of a sector, in units of 2^-16 ns.
    pub(super) fn sector(&self, write: bool) -> u128 {
        (512_000_000_000 << 16) / u128::from(self.bps(write))
    }

    pub(super) fn request(&self, write: bool, sequential: bool) -> u128 {
        (1_000_000_000 / u128::from(self.iops(write, sequential))).clamp(1, MOST)
    }
}

pub(super) const MOST: u128 = (1 << 31) - 1;

/// The time of a request by the clock of requests and by that of bytes, in nanoseconds. The greater one is its cost.
pub(super) fn clocks(values: &Values, io: &IoMeta, sequential: bool) -> [u64; 2] {
    let write = io.op != Op::Read;
    if matches!(io.op, Op::Discard | Op::WriteZeroes) {
        return [values.request(true, false) as u64, 0];
    }
    let sectors = (u128::from(io.sectors) * values.sector(write)) >> 16;
    [values.request(write, sequential), sectors.min(MOST)].map(|clock| clock as u64)
}

/// The part of the device that a rate is, in units of 2^-32; zero for no rate.
pub(super) fn share(values: &Values, rate: Rate) -> u128 {
    if rate == Rate::default() {
        return 0;
    }
    let whole: u128 = 1 << 32;
    let one = values.request(false, false).max(((values.sector(false) * 8) >> 16).min(MOST));
    let iops = u128::from(rate.iops) * one * whole / 1_000_000_000;
    let bps = u128::from(rate.bps) * values.sector(false) * (whole >> 16) / 512_000_000_000;
    (iops + bps + u128::from(rate.percent) * whole / 100).clamp(1, 16 * whole)
}

/// The time in which `share` of the device does work of `cost`.
pub(super) fn gap(cost: u64, share: u128) -> u64 {
    ((u128::from(cost) << 32) / share).min(1 << 42) as u64
}
