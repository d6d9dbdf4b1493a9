//! Whoever looks after the queue: changes how it is made up while I/O runs, and holds it for a while.
//!
//! One change after the other, each drawn from the seed when its time has come, each stepped as the runtime
//! steps it. They come to an end, so that everything else does.

use crate::Payload;
use crate::draw;
use crate::oracle::{Evidence, Oracle};
use crate::planted::Bug;
use crate::recording;
use blkmq_core::{Instant, Nanos, Rng};
use blkmq_engine::{Access, Change, Freeze, Modes, NoMerges, Plan, Queue, Quiesce};
use blkmq_sched::{Factory, Options, Scope, registry};

/// What an operator does with the time, drawn from the seed of the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Meddling {
    /// Changes and holds, in all.
    pub most: u32,
    /// Between two of them, at most.
    pub pause: Nanos,
    /// How long a hold lasts, at most.
    pub hold: Nanos,
}

/// What is under way.
enum Doing {
    Nothing,
    Changing(Change<Payload>),
    Freezing(Freeze<Payload>),
    Quiescing(Quiesce<Payload>),
}

pub(crate) struct Operator {
    meddling: Meddling,
    rng: Rng,
    doing: Doing,
    /// A hold that has been reached lasts until then.
    until: Option<Instant>,
    done: u32,
    /// Taken for what is under way.
    steps: u32,
    bug: Option<Bug>,
}

/// The policy of the registry called as the recorded one.
fn real(recorded: &Factory) -> &'static Factory {
    registry::find(recorded.name).expect("recorded policies are those of the registry")
}

impl Operator {
    pub(crate) fn new(meddling: Meddling, seed: u64, bug: Option<Bug>) -> Self {
        let (doing, until) = (Doing::Nothing, None);
        Self { meddling, rng: Rng::new(seed), doing, until, done: 0, steps: 0, bug }
    }

    fn some(&mut self, most: Nanos) -> Nanos {
        Nanos(1 + self.rng.below(most.0.max(1)))
    }

    /// Does what it does now. When it comes next, if it does.
    pub(crate) fn turn(
        &mut self,
        now: Instant,
        queue: &Queue<Payload>,
        oracle: &Oracle,
    ) -> Option<Instant> {
        // The longer it takes the more patiently: what is in the way may be a request that got lost.
        let soon = now + self.some(Nanos(2_000 << self.steps.min(17)));
        self.steps += 1;
        match std::mem::replace(&mut self.doing, Doing::Nothing) {
            Doing::Nothing => {
                self.steps = 0;
                return self.begin(now, queue, oracle);
            }
            Doing::Changing(mut change) => {
                if !change.step(now) {
                    self.doing = Doing::Changing(change);
                    return Some(soon);
                }
                oracle.with(|oracle| oracle.rebuilt(elevators(&queue.plan())));
            }
            Doing::Freezing(mut freeze) => {
                let frozen = freeze.step(now);
                if self.is_held(now, frozen) {
                    if self.until.is_some() {
                        oracle.with(Evidence::check_frozen);
                    }
                    self.doing = Doing::Freezing(freeze);
                    return Some(soon);
                }
            }
            Doing::Quiescing(mut quiesce) => {
                let quiesced = quiesce.step(now);
                if quiesced && self.until.is_none() {
                    oracle.with(|oracle| oracle.hold(now, true));
                }
                if self.is_held(now, quiesced) {
                    self.doing = Doing::Quiescing(quiesce);
                    return Some(soon);
                }
                oracle.with(|oracle| oracle.hold(now, false));
            }
        }
        self.until = None;
        self.done += 1;
        (self.done < self.meddling.most).then(|| now + self.some(self.meddling.pause))
    }

    /// Is a hold to be kept? It lasts for a while from the time on at which it was reached.
    fn is_held(&mut self, now: Instant, reached: bool) -> bool {
        match self.until {
            Some(until) => now < until,
            None => {
                if reached {
                    self.until = Some(now + self.some(self.meddling.hold));
                }
                true
            }
        }
    }

    fn begin(&mut self, now: Instant, queue: &Queue<Payload>, oracle: &Oracle) -> Option<Instant> {
        self.doing = match self.rng.below(8) {
            0 => Doing::Freezing(queue.freeze()),
            1 => {
                // What is owed from here on is owed when it ends.
                oracle.with(|oracle| oracle.hold(now, true));
                Doing::Quiescing(queue.quiesce())
            }
            _ => {
                let plan = self.change(queue.plan());
                let recorded = recording::Plan {
                    factory: real(plan.scheduler),
                    oracle: oracle.clone(),
                    bug: self.bug,
                };
                let change = recording::build_with(recorded, || queue.change(plan));
                Doing::Changing(change.expect("what is drawn is possible"))
            }
        };
        Some(now)
    }

    /// Another plan, by one decision or two.
    fn change(&mut self, mut plan: Plan) -> Plan {
        for _ in 0..=self.rng.below(2) {
            match self.rng.below(6) {
                0 | 1 => {
                    let all = registry::ALL;
                    let next = all[self.rng.below(all.len() as u64) as usize];
                    plan = plan.scheduler(recording::factory(next));
                }
                2 => plan.nr_requests = Some(1 + self.rng.below(128) as u32),
                3 => {
                    let (_, access) = Access::ALL[self.rng.below(4) as usize];
                    plan = plan.access(access);
                    // What becomes of kicks says how late things may be, so that stays.
                    plan.modes =
                        Modes { kick: plan.modes.kick, ..draw::modes(&mut self.rng, access) };
                }
                4 => {
                    let scopes = [None, Some(Scope::Queue), Some(Scope::HwQueue)];
                    plan.scope = scopes[self.rng.below(3) as usize];
                }
                _ => {
                    let all = [NoMerges::All, NoMerges::Simple, NoMerges::None];
                    plan.nomerges = all[self.rng.below(3) as usize];
                }
            }
        }
        if self.rng.chance(1, 2) {
            let attributes = plan.scheduler.attributes;
            let text = draw::options(&mut self.rng, attributes);
            plan.options = Options::parse(attributes, &text).expect("options are the policy's");
        }
        plan
    }
}

/// Elevators of a queue that is made up like this.
pub(crate) fn elevators(plan: &Plan) -> u16 {
    match plan.effective_scope() {
        Scope::Queue => 1,
        Scope::HwQueue => plan.device.hw_queues,
    }
}
