//! The operator of the queue: changes its plan while I/O runs, and freezes or quiesces it for a while.
//!
//! One change follows another; each is drawn from the seed at its time, and stepped as the runtime steps it. Their
//! number is limited, so that the run can end.

use crate::draw;
use crate::oracle::{Evidence, Oracle};
use crate::planted::Bug;
use crate::policies;
use crate::scenario::{Meddling, STATS, group_name, some_goal, some_limits};
use crate::{Stamp, witness};
use blkmq_core::{Instant, Nanos, Rng};
use blkmq_engine::{
    Access, Change, Freeze, GroupError, GroupTree, Modes, NoMerges, Plan, Queue, Quiesce,
};
use blkmq_sched::{Factory, Options, Scope};
use std::convert::Infallible;

/// The action under way.
enum Doing {
    Nothing,
    Changing(Change<Stamp>),
    Freezing(Freeze<Stamp>),
    Quiescing(Quiesce<Stamp>),
}

pub(crate) struct Operator {
    meddling: Meddling,
    rng: Rng,
    doing: Doing,
    /// The end of a hold that has been reached.
    until: Option<Instant>,
    done: u32,
    /// Steps taken for the action under way.
    steps: u32,
    bug: Option<Bug>,
}

/// The real policy with the name of the recorded one.
fn real(recorded: &Factory) -> &'static Factory {
    policies::find(recorded.name).expect("recorded policies are those that are known")
}

impl Operator {
    pub(crate) fn new(meddling: Meddling, seed: u64, bug: Option<Bug>) -> Self {
        let (doing, until) = (Doing::Nothing, None);
        Self { meddling, rng: Rng::new(seed), doing, until, done: 0, steps: 0, bug }
    }

    fn some(&mut self, most: Nanos) -> Nanos {
        Nanos(1 + self.rng.below(most.0.max(1)))
    }

    /// One turn. Returns the time of the next one, if there is one.
    pub(crate) fn turn(
        &mut self,
        now: Instant,
        queue: &Queue<Stamp>,
        oracle: &Oracle,
    ) -> Option<Instant> {
        // The pauses grow with the number of steps: the obstacle may be a lost request.
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
                let plan = queue.plan();
                oracle.with(|oracle| oracle.rebuilt(plan.shards(), plan.budget()));
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

    /// Returns whether a hold must continue. It lasts for a while from the moment at which it took effect.
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

    fn begin(&mut self, now: Instant, queue: &Queue<Stamp>, oracle: &Oracle) -> Option<Instant> {
        self.doing = match self.rng.below(8) {
            0 => Doing::Freezing(queue.freeze()),
            1 => {
                // Duties that arise from now on are due when the hold ends.
                oracle.with(|oracle| oracle.hold(now, true));
                Doing::Quiescing(queue.quiesce())
            }
            _ => {
                let plan = self.change(oracle, queue.plan());
                let recorded = witness::Plan {
                    factory: real(plan.scheduler),
                    oracle: oracle.clone(),
                    bug: self.bug,
                };
                let edit = |current: &mut Plan| {
                    *current = plan;
                    Ok::<(), Infallible>(())
                };
                let change = witness::build_with(recorded, || queue.edit(edit));
                Doing::Changing(change.expect("what is drawn is possible"))
            }
        };
        Some(now)
    }

    /// A plan that differs by one choice or two.
    fn change(&mut self, oracle: &Oracle, mut plan: Plan) -> Plan {
        for _ in 0..=self.rng.below(2) {
            // A tree without groups stays without them.
            match self.rng.below(if plan.groups.is_empty() { 7 } else { 9 }) {
                0 | 1 => {
                    let all = policies::all();
                    let next = all[self.rng.below(all.len() as u64) as usize];
                    plan = plan.scheduler(witness::factory(next));
                }
                2 => plan.nr_requests = Some(1 + self.rng.below(128) as u32),
                3 => {
                    let (_, access) = Access::ALL[self.rng.below(4) as usize];
                    plan = plan.access(access);
                    // The kick mode stays, since it bounds how late events may be.
                    plan.modes =
                        Modes { kick: plan.modes.kick, ..draw::modes(&mut self.rng, access) };
                }
                4 => {
                    let scopes = [None, Some(Scope::Queue), Some(Scope::HwQueue)];
                    plan.scope = scopes[self.rng.below(3) as usize];
                }
                5 => {
                    let all = [NoMerges::All, NoMerges::Simple, NoMerges::None];
                    plan.nomerges = all[self.rng.below(3) as usize];
                }
                6 => plan.device_depth = draw::device_depth(&mut self.rng),
                _ => {
                    oracle.with(Evidence::regrouped);
                    self.regroup(&mut plan.groups);
                }
            }
        }
        if self.rng.chance(1, 2) {
            let attributes = plan.scheduler.attributes;
            let text = draw::options(&mut self.rng, attributes);
            plan.options = Options::parse(attributes, &text).expect("options are the policy's");
        }
        if plan.groups.has_goals() {
            oracle.with(Evidence::has_goals);
            plan.scope = None;
        }
        if self.rng.chance(1, 4) {
            (_, plan.stats) = STATS[self.rng.below(4) as usize];
        }
        plan
    }
}

impl Operator {
    /// Adds or removes a group, or gives it another weight or other limits; does nothing if that is not possible.
    fn regroup(&mut self, groups: &mut GroupTree) {
        let number = groups.iter().count() as u64;
        let some = groups.iter().nth(self.rng.below(number) as usize);
        let name = some.map(|group| group.name.clone()).unwrap_or_default();
        let done = match self.rng.below(5) {
            0 => groups.set_weight(&name, 1 + self.rng.below(1000) as u32),
            1 => groups.set_max(&name, some_limits(&mut self.rng, 2)),
            2 => groups.set_promise(&name, some_goal(&mut self.rng, 2)),
            3 => groups.add(&group_name(1 + self.rng.below(100) as u16), &name).map(|_| ()),
            // One group always stays, so that there is something to change.
            _ if number > 1 => groups.remove(&name),
            _ => Ok(()),
        };
        let is_known =
            matches!(done, Ok(()) | Err(GroupError::HasChildren { .. } | GroupError::Exists(_)));
        assert!(is_known, "groups are changed by their names: {done:?}");
    }

    /// Changes and holds so far.
    pub(crate) fn done(&self) -> u32 {
        self.done
    }
}
