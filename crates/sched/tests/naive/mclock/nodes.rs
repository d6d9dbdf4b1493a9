//! The nodes with their tags. After each change, `settle` looks at every node and updates it.

use super::{Values, gap, own, share};
use blkmq_core::GroupIndex;
use blkmq_sched::Guarantee;
use std::collections::BTreeMap;

/// A group, or with `true` the group's own requests.
pub(super) type Name = (GroupIndex, bool);
const ROOT: Name = (GroupIndex::ROOT, false);

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    Floor(Name),
    Turn,
    Extra,
}

#[derive(Clone, Copy)]
struct Node {
    parent: Name,
    weight: u64,
    guarantee: Guarantee,
    reserve: u128,
    limit: u128,
    r: u64,
    l: u64,
    p: u64,
    rem: u64,
    v: u64,
    got: u64,
    /// The loss since the last judgement, and the service of the node and of its parent before.
    lost: Option<(u64, u64, u64)>,
    ready: bool,
    aside: bool,
    /// For its floor: the time with requests in this window, and its service before.
    covered: u64,
    had: u64,
    /// The cost of its last request, and the debt of its floor.
    cost: u64,
    debt: u64,
}

impl Node {
    fn new(parent: Name, weight: u32) -> Self {
        Self {
            parent,
            weight: weight.into(),
            guarantee: Guarantee::default(),
            reserve: 0,
            limit: 0,
            r: 0,
            l: 0,
            p: 0,
            rem: 0,
            v: 0,
            got: 0,
            lost: None,
            ready: false,
            aside: false,
            covered: 0,
            had: 0,
            cost: 0,
            debt: 0,
        }
    }

    fn stands(&self) -> bool {
        self.ready && !self.aside
    }
}

pub(super) struct Nodes {
    all: BTreeMap<Name, Node>,
    /// The groups to which the names of removed groups lead.
    led: BTreeMap<GroupIndex, GroupIndex>,
    slip: u64,
    /// Of groups that are gone and of guarantees that have changed.
    pace_tags: [u64; 2],
    /// The first node with the greatest loss.
    loser: Option<Name>,
    /// The time up to which the time with requests is counted, and the begin of the window of floors.
    counted: u64,
    begun: u64,
    /// The pace that was found, in millionths of the device; zero for none.
    found: u64,
}

/// The verdict about floors, the worst first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Floors {
    Short(u64),
    Edge,
    Roomy,
    Unknown,
}

impl Nodes {
    pub(super) fn new() -> Self {
        let root = Node::new(ROOT, 1);
        let all = [(ROOT, root), (own(GroupIndex::ROOT), Node::new(ROOT, 100))];
        Self {
            all: all.into(),
            led: BTreeMap::new(),
            slip: 0,
            pace_tags: [0; 2],
            loser: None,
            counted: 0,
            begun: 0,
            found: 0,
        }
    }

    pub(super) fn named(&self, group: GroupIndex) -> GroupIndex {
        if self.all.contains_key(&(group, false)) {
            return group;
        }
        self.led.get(&group).copied().unwrap_or(GroupIndex::ROOT)
    }

    pub(super) fn add(&mut self, group: GroupIndex, parent: GroupIndex, weight: u32) {
        self.led.remove(&group);
        let parent = (self.named(parent), false);
        self.all.insert((group, false), Node::new(parent, weight));
        self.all.insert(own(group), Node::new((group, false), 100));
    }

    pub(super) fn set_weight(&mut self, group: GroupIndex, weight: u32) {
        let name = (self.named(group), false);
        if name != ROOT {
            self.all.get_mut(&name).expect("there").weight = weight.into();
        }
    }

    /// The parent of a group; `None` for the root and for an unknown group.
    pub(super) fn parent_of(&self, group: GroupIndex) -> Option<GroupIndex> {
        let name = (group, false);
        (name != ROOT).then(|| self.all.get(&name).map(|node| node.parent.0)).flatten()
    }

    pub(super) fn remove(&mut self, group: GroupIndex) {
        let parent = self.all[&(group, false)].parent.0;
        self.all.remove(&(group, false));
        self.loser = self.loser.filter(|loser| loser.0 != group);
        self.all.remove(&own(group));
        self.led.values_mut().filter(|to| **to == group).for_each(|to| *to = parent);
        self.led.insert(group, parent);
    }

    fn tau(&self, now: u64) -> u64 {
        now.saturating_sub(self.slip)
    }

    pub(super) fn promise(&mut self, group: GroupIndex, to: Guarantee, values: &Values, now: u64) {
        let name = (self.named(group), false);
        if name == ROOT {
            return;
        }
        let tau = self.tau(now);
        let node = self.all.get_mut(&name).expect("there");
        node.guarantee = to;
        node.reserve = share(values, to.reserve);
        node.limit = share(values, to.limit);
        (node.r, node.l) = (tau, now);
        (node.covered, node.had, node.debt) = (0, node.got, 0);
        if node.aside {
            self.stand(name);
        }
    }

    /// Counts the time since the last call, in which these groups had requests.
    pub(super) fn count(&mut self, now: u64, active: &[GroupIndex]) {
        let span = now - std::mem::replace(&mut self.counted, now);
        let mut names: Vec<Name> = active.iter().flat_map(|group| self.path(*group)).collect();
        names.sort_unstable();
        names.dedup();
        for name in names {
            let node = self.all.get_mut(&name).expect("there");
            node.covered += if node.reserve > 0 { span } else { 0 };
        }
    }

    pub(super) fn begin_floors(&mut self, now: u64) {
        self.begun = now;
        self.all.values_mut().for_each(|node| (node.covered, node.had) = (0, node.got));
    }

    pub(super) fn has_floors(&self) -> bool {
        self.all.values().any(|node| node.reserve > 0)
    }

    pub(super) fn judge_floors(&mut self, now: u64) -> Floors {
        let span = now - self.begun;
        let floors = self.all.values_mut().filter(|node| node.reserve > 0);
        let judge = |node: &mut Node| {
            if node.covered < span / 1_000 * 940 {
                node.debt = 0;
                return Floors::Unknown;
            }
            let takes = |time: u64| ((u128::from(time) * node.reserve) >> 32) as u64;
            let (due, got) = (takes(node.covered), node.got - node.had);
            let part = u128::from(got) * 1_000 / u128::from(due).max(1);
            node.debt = (node.debt + due).saturating_sub(got).min(takes(100_000_000));
            if node.debt > takes(20_000_000).max(2 * node.cost) {
                return Floors::Short(part.min(990) as u64);
            }
            match (node.ready, u64::try_from(part).expect("small")) {
                (true, part @ ..=989) | (false, part @ ..=1_049) => Floors::Short(part),
                (false, 1_050..=1_149) => Floors::Edge,
                _ => Floors::Roomy,
            }
        };
        let worst = floors.map(judge).min().unwrap_or(Floors::Unknown);
        if self.has_floors() {
            self.begin_floors(now);
        }
        worst
    }

    pub(super) fn find_pace(&mut self, ppm: u64) {
        self.found = ppm;
    }

    pub(super) fn reprice(&mut self, values: &Values, now: u64) {
        self.pace_tags = [0; 2];
        self.found = 0;
        let promised = self.all.iter().filter(|(_, node)| node.guarantee != Guarantee::default());
        let promised: Vec<_> = promised.map(|(name, node)| (name.0, node.guarantee)).collect();
        promised.into_iter().for_each(|(group, to)| self.promise(group, to, values, now));
    }

    fn stand(&mut self, name: Name) {
        let v = self.all[&self.all[&name].parent].v;
        let node = self.all.get_mut(&name).expect("there");
        node.aside = false;
        node.p = node.p.max(v);
    }

    /// Counts the loss of `name`, which begins to stand while the device has requests of it: the lead of the others.
    fn lose(&mut self, name: Name) {
        let node = self.all[&name];
        let above = self.all[&node.parent];
        if above.v <= node.p {
            return;
        }
        let (lost, had, above_had) = node.lost.unwrap_or((0, node.got, above.got));
        let lost = lost + (above.v - node.p).saturating_mul(node.weight);
        self.all.get_mut(&name).expect("there").lost = Some((lost, had, above_had));
        let most = self.loser.and_then(|loser| self.all[&loser].lost).map_or(0, |most| most.0);
        if lost > most {
            self.loser = Some(name);
        }
    }

    /// The part of its share that the node with the greatest loss has, in thousandths.
    pub(super) fn judge(&mut self) -> u64 {
        let part = self.loser.take().map(|name| {
            let node = self.all[&name];
            let (lost, had, above_had) = node.lost.expect("it has lost");
            let (got, all) = (node.got - had, self.all[&node.parent].got - above_had);
            let part = |got: u64, all: u64| u128::from(got) * 1_000_000 / u128::from(all.max(1));
            part(got, all) * 1_000 / part(got + lost, all + lost).max(1)
        });
        self.all.values_mut().for_each(|node| node.lost = None);
        part.map_or(1_000, |part| part.min(1_000) as u64)
    }

    fn path(&self, group: GroupIndex) -> Vec<Name> {
        let up = |name: &Name| Some(self.all[name].parent).filter(|parent| *parent != ROOT);
        std::iter::successors(Some(own(group)), up).collect()
    }

    fn depth(&self, name: Name) -> usize {
        if name == ROOT { 0 } else { 1 + self.depth(self.all[&name].parent) }
    }

    /// Brings every node in line with its requests and members, the deepest first. If a request of a group came of
    /// which the device has others, that `is_busy`.
    pub(super) fn settle(&mut self, now: u64, is_busy: bool, full: impl Fn(GroupIndex) -> bool) {
        let mut names: Vec<Name> = self.all.keys().copied().collect();
        names.sort_by_key(|name| std::cmp::Reverse(self.depth(*name)));
        for name in names {
            let stands = |(member, node): (&Name, &Node)| {
                *member != ROOT && node.parent == name && node.stands()
            };
            let ready = if name.1 { full(name.0) } else { self.all.iter().any(stands) };
            let tau = self.tau(now);
            let node = self.all.get_mut(&name).expect("there");
            if ready && !node.ready {
                node.ready = true;
                if node.reserve > 0 {
                    node.r = node.r.max(tau);
                }
                node.aside = name != ROOT && node.l > now;
                if !node.aside {
                    if is_busy && name != ROOT {
                        self.lose(name);
                    }
                    self.stand(name);
                }
            } else if !ready && node.ready {
                (node.ready, node.aside) = (false, false);
            }
        }
    }

    pub(super) fn release(&mut self, now: u64) {
        let over: Vec<Name> =
            self.all.iter().filter(|(_, n)| n.aside && n.l <= now).map(|(name, _)| *name).collect();
        over.into_iter().for_each(|name| self.stand(name));
    }

    fn least_floor(&self) -> Option<(u64, Name)> {
        let floors = self.all.iter().filter(|(_, node)| node.ready && node.reserve > 0);
        let least = floors
            .min_by_key(|(name, node)| (node.r, std::cmp::Reverse(self.depth(**name)), name.0));
        least.map(|(name, node)| (node.r, *name))
    }

    pub(super) fn due(&mut self, now: u64) -> Option<(Name, GroupIndex)> {
        let (r, name) = self.least_floor()?;
        let owed = self.tau(now).saturating_sub(r);
        self.slip += owed.saturating_sub(1_000_000_000);
        (r <= self.tau(now)).then(|| (name, self.descend(name)))
    }

    pub(super) fn next_due(&self) -> Option<u64> {
        self.least_floor().map(|(r, _)| r + self.slip)
    }

    fn descend(&self, mut name: Name) -> GroupIndex {
        while !name.1 {
            let members = self
                .all
                .iter()
                .filter(|(member, node)| **member != ROOT && node.parent == name && node.stands());
            // A group's own requests come before its groups.
            let least = members.min_by_key(|(member, node)| (node.p, !member.1, member.0));
            name = *least.expect("a ready group has a standing member").0;
        }
        name.0
    }

    pub(super) fn turn(&self) -> Option<GroupIndex> {
        self.all[&ROOT].ready.then(|| self.descend(ROOT))
    }

    pub(super) fn paced_until(&self, values: &Values, now: u64) -> Option<u64> {
        let tag = self.pace_tags[0].max(self.pace_tags[1]);
        ((values.get("pace_percent") > 0 || self.found > 0) && tag > now).then_some(tag)
    }

    pub(super) fn next_release(&self) -> Option<u64> {
        self.all.values().filter(|node| node.aside).map(|node| node.l).min()
    }

    pub(super) fn within_limits(&self, name: Name) -> bool {
        self.path(name.0).iter().all(|name| self.all[name].stands())
    }

    pub(super) fn charge(
        &mut self,
        group: GroupIndex,
        clocks: [u64; 2],
        (time, weighed): (u64, u64),
        how: How,
        values: &Values,
        now: u64,
    ) {
        let cost = clocks[0].max(clocks[1]);
        let tau = self.tau(now);
        let mut in_turn = how != How::Extra;
        for name in self.path(group) {
            if how == How::Floor(name) {
                in_turn = false;
            }
            let parent = self.all[&name].parent;
            let p = self.all[&name].p;
            if in_turn {
                let above = self.all.get_mut(&parent).expect("there");
                above.v = above.v.max(p);
            }
            let v = self.all[&parent].v;
            let node = self.all.get_mut(&name).expect("there");
            node.got += time;
            node.cost = cost;
            let whole = weighed + node.rem;
            (node.p, node.rem) = (p + whole / node.weight, whole % node.weight);
            if !in_turn && how != How::Extra {
                node.p = node.p.min(p.max(v + 2 * weighed / node.weight));
            }
            if node.reserve > 0 {
                node.r = node.r.min(tau) + gap(cost, node.reserve);
            }
            if node.limit > 0 {
                node.l = node.l.max(now.saturating_sub(10_000_000)) + gap(cost, node.limit);
            }
            if node.ready && node.l > now {
                node.aside = true;
            }
        }
        self.all.get_mut(&ROOT).expect("there").got += time;
        let told = u128::from(values.get("pace_percent")) * (1 << 32) / 100;
        let found = u128::from(self.found) * (1 << 32) / 1_000_000;
        let (pace, clocks) = if found > 0 { (found, [time; 2]) } else { (told, clocks) };
        if pace > 0 {
            self.pace_tags = [0, 1].map(|clock| {
                let from = self.pace_tags[clock].max(now.saturating_sub(10_000_000));
                from + gap(clocks[clock], pace)
            });
        }
    }

    pub(super) fn inspect(&self, out: &mut dyn FnMut(&'static str, u64)) {
        let floors = self.all.values().filter(|node| node.ready && node.reserve > 0);
        out("floors", floors.count() as u64);
        out("held_back", self.all.values().filter(|node| node.aside).count() as u64);
        out("written_off_nsec", self.slip);
    }
}
