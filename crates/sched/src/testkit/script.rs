//! Random scripts: a seed draws how busy, how mergeable and how disturbed a run is, and then every step.
//!
//! A script may have tenants: owners in a tree of groups that changes, with flags and priorities of their own. They
//! are drawn from a separate generator, so that a seed gives the same script without them.
//!
//! Steps name requests by position among the held or issued ones. So one script drives any policy, and drives two
//! policies through the same states as long as they decide alike.

use super::Driver;
use crate::{At, Attribute, GroupChange, Guarantee, Options, Pick, Rate};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use blkmq_core::{Class, GroupIndex, IoFlags, IoMeta, IoPrio, Nanos, Op, Owner, RequestId, Rng};

/// The result of a step, for comparing two policies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The step found no request, or has no result.
    Quiet,
    /// The answer to a pick.
    Picked(Pick),
    /// The withdrawn request, if there was one.
    Withdrawn(Option<RequestId>),
    /// Whether the policy allowed a merge.
    MayMerge(bool),
    /// Whether the policy would give a slot.
    Admitted(bool),
}

/// Time passes in multiples of one of these. Coarse ones often meet limits of policies exactly.
const GRAINS: [Nanos; 4] = [Nanos(1), Nanos(1), Nanos::from_millis(1), Nanos::from_millis(20)];

/// A stream of steps.
pub struct Script {
    rng: Rng,
    attributes: &'static [Attribute],
    /// Weights of the steps in the order of [`Self::step`].
    weights: [u64; 11],
    /// Sectors are multiples of 8 below 8 times this.
    span: u64,
    /// Of 8 requests, this many are writes of some kind.
    writes: u64,
    /// Of 8 requests, this many have a class drawn at random.
    classes: u64,
    /// Requests have this many owners.
    owners: u64,
    /// Time passes in steps below this, and of at least one `grain`.
    stride: Nanos,
    /// Steps of time are multiples of this.
    grain: Nanos,
    /// Attributes that stay as they are.
    fixed: &'static [(&'static str, i64)],
    tenants: Option<Tenants>,
}

impl Script {
    /// The script of `seed`, which changes those of `attributes` that it may.
    #[must_use]
    pub fn new(seed: u64, attributes: &'static [Attribute]) -> Self {
        let mut rng = Rng::new(seed);
        let settings = if attributes.is_empty() || rng.chance(1, 2) { 0 } else { 1 };
        let rare = |rng: &mut Rng, most| if rng.chance(1, 2) { 0 } else { rng.below(most) };
        let weights = [
            20 + rng.below(30),
            15 + rng.below(30),
            15 + rng.below(30),
            rare(&mut rng, 6),
            rare(&mut rng, 6),
            rare(&mut rng, 6),
            rare(&mut rng, 4),
            rare(&mut rng, 6),
            rare(&mut rng, 6),
            settings,
            rng.below(12),
        ];
        Self {
            weights,
            attributes,
            span: 1 << rng.below(12),
            writes: rng.below(9),
            classes: if rng.chance(1, 3) { 0 } else { rng.below(9) },
            owners: if rng.chance(1, 2) { 1 } else { 1 << rng.below(9) },
            stride: Nanos(1 << (10 + rng.below(24))),
            // A separate generator: a seed with the finest grain gives the same script as without grains.
            grain: GRAINS[Rng::new(seed ^ 0x6a09_e667).below(GRAINS.len() as u64) as usize],
            fixed: &[],
            tenants: None,
            rng,
        }
    }

    /// The script of `seed`, with owners in groups.
    #[must_use]
    pub fn with_tenants(seed: u64, attributes: &'static [Attribute]) -> Self {
        Self { tenants: Some(Tenants::new(seed)), ..Self::new(seed, attributes) }
    }

    /// Fixes these attributes at these values from the beginning.
    #[must_use]
    pub fn keeping(self, fixed: &'static [(&'static str, i64)]) -> Self {
        Self { fixed, ..self }
    }

    /// Options drawn for the policy under test, as `key=value,...`; about half of them are set.
    pub fn options(&mut self) -> String {
        let mut pairs = Vec::new();
        for attribute in self.attributes {
            if self.rng.chance(1, 2) {
                let value = self.value_of(attribute).to_string();
                pairs.push([attribute.name, &value].join("="));
            }
        }
        // Of two values for one attribute the last one counts.
        pairs.extend(self.fixed.iter().map(|(name, value)| [*name, &value.to_string()].join("=")));
        let text = pairs.join(",");
        debug_assert!(Options::parse(self.attributes, &text).is_ok());
        text
    }

    /// A value within the attribute's range: mostly small, sometimes the default or a bound.
    fn value_of(&mut self, attribute: &Attribute) -> i64 {
        let value = match self.rng.below(8) {
            0 => attribute.default,
            1 => attribute.min,
            2 => attribute.max,
            _ => {
                let bits = self.rng.below(10);
                self.rng.below(1 << bits) as i64 - 1
            }
        };
        value.clamp(attribute.min, attribute.max)
    }

    /// The next step.
    pub fn step(&mut self) -> Step {
        if let Some(step) = self.tenants.as_mut().and_then(Tenants::step) {
            return step;
        }
        let mut step = self.plain_step();
        match (&mut step, &mut self.tenants) {
            (Step::Insert(meta, _), Some(tenants)) => tenants.claim(meta),
            (Step::Set(name, _), _) if self.fixed.iter().any(|(fixed, _)| fixed == name) => {
                return Step::Pick;
            }
            _ => {}
        }
        step
    }

    fn plain_step(&mut self) -> Step {
        let mut at = self.rng.below(self.weights.iter().sum());
        let kind = self.weights.iter().position(|weight| {
            let hit = at < *weight;
            at = at.wrapping_sub(*weight);
            hit
        });
        let position = self.rng.next_u64() >> 1;
        match kind {
            Some(0) => {
                let at = if self.rng.chance(1, 16) { At::Head } else { At::Tail };
                Step::Insert(self.meta(), at)
            }
            Some(1) => Step::Pick,
            Some(2) => Step::Complete(position),
            Some(3) => Step::Requeue(position),
            Some(4) => Step::Back(position),
            Some(5) => Step::Front(position, 8 * self.rng.below(4) as u32),
            Some(6) => Step::Discard(position, 8 * self.rng.below(self.span)),
            Some(7) => Step::Absorb(position),
            Some(8) => Step::Withdraw(position),
            Some(9) => {
                let nth = self.rng.below(self.attributes.len() as u64) as usize;
                let attribute = &self.attributes[nth];
                Step::Set(attribute.name, self.value_of(attribute))
            }
            _ => Step::Advance(self.span()),
        }
    }

    fn span(&mut self) -> Nanos {
        let (grain, span) = (self.grain.0, self.rng.below(self.stride.0));
        Nanos(if grain == 1 { span } else { span / grain * grain + grain })
    }

    fn meta(&mut self) -> IoMeta {
        let op = match (self.rng.chance(self.writes, 8), self.rng.below(8)) {
            (false, _) => Op::Read,
            (true, 0) => Op::Discard,
            (true, 1) => Op::WriteZeroes,
            (true, _) => Op::Write,
        };
        let mut meta = IoMeta::new(op, 8 * self.rng.below(self.span), 8);
        meta.owner = account(self.rng.below(self.owners));
        if self.rng.chance(self.classes, 8) {
            let class = match self.rng.below(4) {
                0 => Class::Realtime,
                1 => Class::BestEffort,
                2 => Class::Idle,
                _ => Class::None,
            };
            let level = self.rng.below(2) as u16;
            meta.ioprio = IoPrio::new(class, level).expect("levels 0 and 1 exist");
        }
        meta
    }
}

impl Driver {
    /// Applies one step.
    pub fn apply(&mut self, step: Step) -> Event {
        match step {
            Step::Insert(meta, at) => {
                let _ = self.insert_meta(meta, at);
            }
            Step::Pick => return Event::Picked(self.pick()),
            Step::Complete(nth) => {
                let _ = nth_of(&self.issued(), nth).map(|rq| self.complete(rq));
            }
            Step::Requeue(nth) => {
                let _ = nth_of(&self.issued(), nth).map(|rq| self.requeue(rq));
            }
            Step::Back(nth) => return self.merge(nth, |d, rq| d.grow_back(rq, 8)),
            Step::Front(nth, sectors) => return self.merge(nth, |d, rq| d.grow_front(rq, sectors)),
            Step::Discard(nth, sector) => {
                return self.merge(nth, |d, rq| d.grow_discard(rq, sector, 8));
            }
            Step::Absorb(nth) => return self.merge(nth, Self::absorb_a_like),
            Step::Withdraw(nth) => {
                let rq = nth_of(&self.held(), nth);
                let _ = rq.map(|rq| self.withdraw(rq));
                return Event::Withdrawn(rq);
            }
            Step::Set(name, value) => self.set(name, value),
            Step::Advance(span) => self.advance(span),
            Step::Regroup(change) => self.regroup(change),
            Step::Left(owner) => self.owner_gone(owner),
            Step::Admits(meta) => return Event::Admitted(self.admits(&meta)),
        }
        Event::Quiet
    }

    /// Applies `how` to the held request at position `nth`, if the policy allows a merge.
    fn merge(&mut self, nth: u64, how: impl Fn(&mut Self, RequestId)) -> Event {
        let Some(into) = nth_of(&self.held(), nth) else { return Event::Quiet };
        let io = *self.meta(into);
        let allowed = self.may_merge(into, &io);
        if allowed {
            how(self, into);
        }
        Event::MayMerge(allowed)
    }

    fn absorb_a_like(&mut self, into: RequestId) {
        let meta = *self.meta(into);
        let alike = |rq: &RequestId| {
            let other = self.meta(*rq);
            *rq != into
                && (other.op, other.ioprio) == (meta.op, meta.ioprio)
                && (other.owner, other.group) == (meta.owner, meta.group)
                && self.may_merge(*rq, &meta)
        };
        let held = self.held();
        let later = held.iter().copied().find(|rq| *rq > into && alike(rq));
        if let Some(gone) = later.or_else(|| held.iter().copied().find(alike)) {
            self.absorb(into, gone);
        }
    }
}

fn nth_of(ids: &[RequestId], nth: u64) -> Option<RequestId> {
    let len = ids.len() as u64;
    (len > 0).then(|| ids[(nth % len) as usize])
}

/// A step of a script. Positions wrap around. A step that finds no request has no effect.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// A new request.
    Insert(IoMeta, At),
    /// Pick.
    Pick,
    /// The issued request at this position finishes.
    Complete(u64),
    /// The issued request at this position is requeued.
    Requeue(u64),
    /// The held request at this position grows at its end.
    Back(u64),
    /// The held request at this position grows at its start by this many sectors.
    Front(u64, u32),
    /// The held request at this position takes in a discarded range at this sector.
    Discard(u64, u64),
    /// The held request at the first position absorbs the next one that is like it.
    Absorb(u64),
    /// The held request at this position is withdrawn.
    Withdraw(u64),
    /// An attribute changes.
    Set(&'static str, i64),
    /// Time passes.
    Advance(Nanos),
    /// The tree of groups changes.
    Regroup(GroupChange),
    /// No I/O of this owner will arrive for a long time.
    Left(Owner),
    /// Ask whether this I/O would get a slot.
    Admits(IoMeta),
}

/// Owner `number` of a script: every other one is a thread of an application.
pub(super) fn account(number: u64) -> Owner {
    let number = number as u32;
    if number % 2 == 1 { Owner::thread(number) } else { Owner(number) }
}

/// Groups at a time, without the root.
const GROUPS: usize = 5;
/// Names of groups; few, so that they are reused.
const NAMES: u64 = 9;

/// The owners and groups of a script.
struct Tenants {
    rng: Rng,
    owners: u64,
    /// The group of each owner.
    homes: Vec<GroupIndex>,
    /// Existing groups, each with its parent.
    groups: Vec<(GroupIndex, GroupIndex)>,
    /// The number of steps in a thousand that change groups or owners.
    changes: u64,
    /// Remaining steps at the beginning in which groups are created.
    founding: u32,
    /// Of 8 I/Os, this many are async reads or sync writes.
    odd: u64,
    /// Of 8 owners, this many have a priority.
    ranked: u64,
    /// Requests are up to this many times eight sectors.
    large: u64,
}

impl Tenants {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x7e4a_97b5);
        let owners = 1 + rng.below(12);
        let changes = if rng.chance(1, 4) { 0 } else { 5 + rng.below(40) };
        let founding = if changes == 0 { 0 } else { rng.below(40) as u32 };
        Self {
            owners,
            homes: alloc::vec![GroupIndex::ROOT; owners as usize],
            groups: Vec::new(),
            changes,
            founding,
            odd: rng.below(4),
            ranked: if rng.chance(1, 2) { 0 } else { rng.below(9) },
            large: 1 << rng.below(9),
            rng,
        }
    }

    /// Gives `meta` an owner.
    pub(super) fn claim(&mut self, meta: &mut IoMeta) {
        let owner = self.rng.below(self.owners);
        meta.owner = account(owner);
        meta.group = self.homes[owner as usize];
        if self.rng.chance(self.odd, 8) {
            meta.flags = if meta.op == Op::Read { IoFlags::NONE } else { IoFlags::SYNC };
        }
        if owner < self.ranked {
            let class = if self.rng.chance(1, 40) { Class::Idle } else { Class::BestEffort };
            // At times the owner changes its priority.
            let level = if self.rng.chance(1, 50) { self.rng.below(8) } else { owner };
            meta.ioprio = IoPrio::new(class, level as u16 % 8).unwrap_or_default();
        }
        meta.sectors = 8 * (1 + self.rng.below(self.large)) as u32;
    }

    /// At times, a step that only scripts with tenants have.
    pub(super) fn step(&mut self) -> Option<Step> {
        let owner = self.rng.below(self.owners);
        if self.founding > 0 {
            self.founding -= 1;
            self.homes[owner as usize] = self.any_group();
            return self.add().map(Step::Regroup);
        }
        if !self.rng.chance(self.changes, 1_000) {
            return None;
        }
        match self.rng.below(9) {
            0 => return Some(Step::Left(account(owner))),
            1 | 2 => {
                let mut meta = IoMeta::new(Op::Write, 8, 8);
                self.claim(&mut meta);
                return Some(Step::Admits(meta));
            }
            3 | 4 => {
                self.homes[owner as usize] = self.any_group();
                return None;
            }
            5 => self.weight(),
            6 => self.remove(),
            7 => self.guarantee(),
            _ => self.add(),
        }
        .map(Step::Regroup)
    }

    fn any_group(&mut self) -> GroupIndex {
        let at = self.rng.below(self.groups.len() as u64 + 1) as usize;
        self.groups.get(at).map_or(GroupIndex::ROOT, |(group, _)| *group)
    }

    fn add(&mut self) -> Option<GroupChange> {
        let group = GroupIndex(1 + self.rng.below(NAMES) as u16);
        let exists = self.groups.iter().any(|(other, _)| *other == group);
        if exists || self.groups.len() == GROUPS {
            return None;
        }
        let (parent, weight) = (self.any_group(), 1 + self.rng.below(1_000) as u32);
        self.groups.push((group, parent));
        Some(GroupChange::Added { group, parent, weight })
    }

    fn weight(&mut self) -> Option<GroupChange> {
        let group = self.any_group();
        let weight = 1 + self.rng.below(1_000) as u32;
        (group != GroupIndex::ROOT).then_some(GroupChange::Weight { group, weight })
    }

    fn guarantee(&mut self) -> Option<GroupChange> {
        let group = self.any_group();
        let guarantee = Guarantee { reserve: self.rate(), limit: self.rate() };
        (group != GroupIndex::ROOT).then_some(GroupChange::Guarantee { group, guarantee })
    }

    /// Often no rate, and otherwise up to some thousand I/Os or some MB a second, or up to twice the device.
    fn rate(&mut self) -> Rate {
        let bits = self.rng.below(24);
        let number = self.rng.below(1 << bits);
        match self.rng.below(6) {
            0 => Rate { iops: number >> 10, ..Rate::default() },
            1 => Rate { bps: number, ..Rate::default() },
            2 => Rate { percent: self.rng.below(200) as u32, ..Rate::default() },
            _ => Rate::default(),
        }
    }

    /// Removes a group without groups below it. Its owners still name it for some time.
    fn remove(&mut self) -> Option<GroupChange> {
        let leaf = |at: &usize| self.groups.iter().all(|(_, parent)| *parent != self.groups[*at].0);
        let at = (0..self.groups.len()).find(leaf)?;
        let (group, _) = self.groups.swap_remove(at);
        Some(GroupChange::Removed { group })
    }
}
