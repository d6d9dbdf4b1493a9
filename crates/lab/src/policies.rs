//! The policies of drawn scenarios: every policy of the registry, and one that is difficult on purpose.
//!
//! `stingy` is first come, first served, but uses every kind of refusal that the contract of policies allows. It is
//! only for the soak, where each of its attributes makes the engine take a path that other policies rarely take: tokens
//! that all instances share, and whose number rises and falls by turns; a pause after each pick; one request at a time;
//! and few slots for each owner.

use blkmq_core::{HwQueue, Instant, IoMeta, Nanos, Owner, RequestId};
use blkmq_sched::index::Fifo;
use blkmq_sched::{
    At, Attribute, Common, Cx, Done, Factory, Facts, Governor, Pick, Scheduler, Scope, Shape, Unit,
    Used, registry,
};
use std::sync::OnceLock;

/// All of them.
pub(crate) fn all() -> &'static [&'static Factory] {
    static ALL: OnceLock<Vec<&'static Factory>> = OnceLock::new();
    ALL.get_or_init(|| registry::ALL.iter().copied().chain([&FACTORY]).collect())
}

/// The policy called `name`.
pub(crate) fn find(name: &str) -> Option<&'static Factory> {
    all().iter().copied().find(|factory| factory.name == name)
}

const fn attribute(
    name: &'static str,
    unit: Unit,
    (min, default, max): (i64, i64, i64),
    help: &'static str,
) -> Attribute {
    Attribute { name, unit, default, min, max, help }
}

/// The factory of the policy.
static FACTORY: Factory = Factory {
    name: "stingy",
    summary: "first come, first served, and says no in every way",
    scope: Scope::HwQueue,
    attributes: &[
        attribute("tokens", Unit::Count, (1, 8, 1024), "requests at the device at once, at least"),
        attribute("swing", Unit::Count, (0, 4, 1024), "tokens that come and go"),
        attribute("pace", Unit::Nanos, (0, 0, 100_000), "pause behind each pick"),
        attribute("alone", Unit::Flag, (0, 0, 1), "one request at a time for each instance"),
        attribute("slots", Unit::Count, (1, 1024, 1024), "slots for each owner"),
    ],
    common: Some(Common {
        tokens: &[1],
        counters: 1,
        values: 1,
        governor: |_, _| Box::new(Swing { completed: 0, tokens: 1, swing: 0 }),
    }),
    build: |shape: &Shape, options| {
        let none = Place { stage: Stage::Elsewhere, owner: Owner(0) };
        let mut policy = Stingy {
            queue: Fifo::new(shape.slots),
            places: vec![none; shape.slots as usize].into(),
            slots_of: [0; OWNERS],
            issued: 0,
            not_before: Instant::ZERO,
            told: [0; 5],
        };
        for attribute in FACTORY.attributes {
            policy.set_attribute(attribute.name, options.get(attribute.name));
        }
        Box::new(policy)
    },
};

// Places in the table of attributes.
const TOKENS: usize = 0;
const SWING: usize = 1;
const PACE: usize = 2;
const ALONE: usize = 3;
const SLOTS: usize = 4;

/// The number of owners that are distinguished.
const OWNERS: usize = 64;
/// The time from a completion to the governor's next review.
const REVIEW: Nanos = Nanos::from_micros(100);
/// Completions until the number of tokens changes.
const TURN: u64 = 16;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Elsewhere,
    Held,
    Issued,
}

/// The state of the request in a slot.
#[derive(Clone, Copy)]
struct Place {
    stage: Stage,
    owner: Owner,
}

struct Stingy {
    queue: Fifo,
    places: Box<[Place]>,
    slots_of: [u32; OWNERS],
    issued: u32,
    not_before: Instant,
    /// The values of the attributes, by index.
    told: [i64; 5],
}

fn of(owner: Owner) -> usize {
    owner.0 as usize % OWNERS
}

impl Stingy {
    /// `rq` changes to `stage`.
    fn becomes(&mut self, rq: RequestId, stage: Stage) {
        let place = &mut self.places[rq.index()];
        let (before, slots) = (place.stage, &mut self.slots_of[of(place.owner)]);
        place.stage = stage;
        *slots += u32::from(before == Stage::Elsewhere);
        *slots -= u32::from(stage == Stage::Elsewhere);
        self.issued += u32::from(stage == Stage::Issued);
        self.issued -= u32::from(before == Stage::Issued);
    }
}

impl Scheduler for Stingy {
    fn facts(&self) -> Facts {
        Facts { limits_slots: true, ..Facts::default() }
    }

    fn insert(&mut self, cx: &Cx<'_>, rq: RequestId, at: At) {
        let place = &mut self.places[rq.index()];
        if place.stage == Stage::Elsewhere {
            place.owner = cx.requests.get(rq).owner;
        }
        self.becomes(rq, Stage::Held);
        match at {
            At::Head => self.queue.push_front(rq),
            At::Tail => self.queue.push_back(rq),
        }
    }

    fn pick(&mut self, cx: &Cx<'_>, _: HwQueue) -> Pick {
        if self.queue.is_empty() {
            return Pick::Empty;
        }
        if cx.now < self.not_before {
            return Pick::WaitUntil(self.not_before);
        }
        if self.told[ALONE] == 1 && self.issued > 0 {
            return Pick::WaitCompletion;
        }
        if !cx.env.take(0) {
            return Pick::WaitToken;
        }
        let Some(rq) = self.queue.pop_front() else { return Pick::Empty };
        self.becomes(rq, Stage::Issued);
        self.not_before = cx.now + Nanos(self.told[PACE] as u64);
        Pick::Issue(rq)
    }

    fn completed(&mut self, cx: &Cx<'_>, done: &Done) {
        self.becomes(done.rq, Stage::Elsewhere);
        cx.env.count(0);
        cx.env.review_by(cx.now + REVIEW);
    }

    fn withdraw(&mut self, _: &Cx<'_>, rq: RequestId) {
        self.becomes(rq, Stage::Elsewhere);
        self.queue.remove(rq);
    }

    fn absorbed(&mut self, _: &Cx<'_>, _into: RequestId, gone: RequestId) {
        self.becomes(gone, Stage::Elsewhere);
        self.queue.remove(gone);
    }

    /// An owner without a slot is always below its share.
    fn admits(&self, _: &Cx<'_>, io: &IoMeta, _: Used) -> bool {
        i64::from(self.slots_of[of(io.owner)]) < self.told[SLOTS]
    }

    fn attribute(&self, name: &str) -> Option<i64> {
        FACTORY.attributes.iter().position(|own| own.name == name).map(|at| self.told[at])
    }

    fn set_attribute(&mut self, name: &str, value: i64) -> bool {
        let at = FACTORY.attributes.iter().position(|own| own.name == name);
        at.map(|at| self.told[at] = value).is_some()
    }

    fn inspect(&self, out: &mut dyn FnMut(&'static str, u64)) {
        out("queued", self.queue.len() as u64);
        out("issued", self.issued.into());
    }
}

/// A governor that gives a number of tokens, and `swing` more every other turn.
struct Swing {
    completed: u64,
    tokens: u32,
    swing: u32,
}

impl Swing {
    fn decide(&self, tokens: &mut [u32], values: &mut [u64]) {
        let high = (self.completed / TURN).is_multiple_of(2);
        tokens[0] = self.tokens + if high { self.swing } else { 0 };
        values[0] = self.completed;
    }
}

impl Governor for Swing {
    fn review(&mut self, _: Instant, grown: &[u64], tokens: &mut [u32], values: &mut [u64]) {
        self.completed += grown[0];
        self.decide(tokens, values);
    }

    fn set_attribute(&mut self, name: &str, value: i64, tokens: &mut [u32], values: &mut [u64]) {
        if name == FACTORY.attributes[TOKENS].name {
            self.tokens = value as u32;
        } else if name == FACTORY.attributes[SWING].name {
            self.swing = value as u32;
        }
        self.decide(tokens, values);
    }

    fn inspect(&self, out: &mut dyn FnMut(&'static str, u64)) {
        out("completed", self.completed);
    }
}
