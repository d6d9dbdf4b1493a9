//! The service engine against its naive twin, over random histories, decision by decision.

use crate::naive::bfq::wf2q::{Bug, Naive};
use blkmq_core::{Instant, Nanos, Rng};
use blkmq_sched::bfq::wf2q::{Class, From, Keep, ROOT, Wf2q, When};

const HISTORIES: u64 = 10_000;
const QUEUES: u32 = 8;

/// Both engines, and the state of their queues as the caller has it.
struct Pair {
    engine: Wf2q,
    twin: Naive,
    active: [bool; QUEUES as usize],
    serving: Option<u32>,
    /// Existing levels, each with its parent.
    levels: Vec<(u32, u32)>,
    homes: [u32; QUEUES as usize],
    now: Instant,
    rng: Rng,
}

macro_rules! both {
    ($pair:ident, $($call:tt)*) => {{
        let (a, b) = ($pair.engine.$($call)*, $pair.twin.$($call)*);
        assert_eq!(a, b, "{}", stringify!($($call)*));
        a
    }};
}

impl Pair {
    fn new(seed: u64, bug: Bug) -> Self {
        let mut pair = Self {
            engine: Wf2q::new(QUEUES),
            twin: Naive::new(QUEUES, bug),
            active: [false; QUEUES as usize],
            serving: None,
            levels: vec![(ROOT, ROOT)],
            homes: [ROOT; QUEUES as usize],
            now: Instant::ZERO,
            rng: Rng::new(seed),
        };
        for _ in 0..pair.rng.below(4) {
            pair.add_level();
        }
        for queue in 0..QUEUES {
            let home = pair.any_level();
            let (class, weight) = (pair.class(), pair.weight());
            pair.homes[queue as usize] = home;
            both!(pair, attach(queue, home, class, weight));
        }
        pair
    }

    fn any_level(&mut self) -> u32 {
        self.levels[self.rng.below(self.levels.len() as u64) as usize].0
    }

    fn class(&mut self) -> Class {
        [Class::Realtime, Class::BestEffort, Class::BestEffort, Class::BestEffort, Class::Idle]
            [self.rng.below(5) as usize]
    }

    fn weight(&mut self) -> u32 {
        1 + self.rng.below(100) as u32
    }

    fn add_level(&mut self) {
        let (parent, weight) = (self.any_level(), self.weight());
        let level = both!(self, add_level(parent, weight));
        self.levels.push((level, parent));
    }

    fn remove_level(&mut self) {
        let empty = |level: u32| {
            level != ROOT
                && self.homes.iter().all(|home| *home != level)
                && self.levels.iter().all(|(_, parent)| *parent != level)
        };
        if let Some(at) = self.levels.iter().position(|(level, _)| empty(*level)) {
            let (level, _) = self.levels.swap_remove(at);
            both!(self, remove_level(level));
        }
    }

    /// Ends a slot, in one of the ways in which slots end.
    fn expire(&mut self, queue: u32) {
        let now = self.now;
        if self.rng.chance(1, 2) {
            let budget = 1 + self.rng.below(2_000);
            both!(self, set_budget(queue, budget));
            both!(self, requeue(queue, When::Expiring, now));
        } else {
            both!(self, deactivate(queue, Keep::Lead, When::Expiring, now));
            self.active[queue as usize] = false;
        }
        both!(self, end_slot(queue));
        self.serving = None;
    }

    fn step(&mut self) {
        let queue = self.rng.below(QUEUES.into()) as u32;
        let (waits, now) = (self.active[queue as usize] && self.serving != Some(queue), self.now);
        match (self.rng.below(16), self.serving) {
            (0..4, _) if !self.active[queue as usize] => {
                let back = if self.rng.chance(1, 3) { From::WhereItStopped } else { From::Now };
                let budget = 1 + self.rng.below(2_000);
                both!(self, set_service(queue, 0));
                both!(self, set_budget(queue, budget));
                both!(self, activate(queue, back, now));
                self.active[queue as usize] = true;
            }
            (4..7, None) => {
                self.serving = both!(self, pick(now));
                assert_eq!(self.serving.is_some(), self.active.contains(&true));
            }
            (4..8, Some(queue)) => self.expire(queue),
            (8..11, Some(queue)) => {
                let sectors = self.rng.below(300);
                both!(self, serve(queue, sectors));
            }
            (11, _) if waits => {
                let sectors = self.rng.below(300);
                both!(self, serve(queue, sectors));
            }
            (12, _) if waits => {
                let keep = if self.rng.chance(1, 2) { Keep::Lead } else { Keep::Nothing };
                both!(self, deactivate(queue, keep, When::Waiting, now));
                self.active[queue as usize] = false;
            }
            (13, _) if waits => {
                let budget = 1 + self.rng.below(2_000);
                both!(self, set_budget(queue, budget));
                both!(self, requeue(queue, When::Waiting, now));
            }
            (14, _) => {
                let (class, weight) = (self.class(), self.weight());
                let raised = [1, 30][self.rng.below(2) as usize];
                both!(self, want(queue, class, weight * raised, raised));
                if self.serving == Some(queue) {
                    both!(self, reweigh(queue));
                }
            }
            (15, _) => self.rearrange(queue),
            _ => self.now += Nanos(self.rng.below(60_000_000)),
        }
    }

    fn rearrange(&mut self, queue: u32) {
        let level = self.any_level();
        match self.rng.below(4) {
            0 => self.remove_level(),
            1 if self.levels.len() < 6 => self.add_level(),
            2 if level != ROOT => {
                let weight = self.weight();
                both!(self, set_level_weight(level, weight));
            }
            _ if !self.active[queue as usize] => {
                both!(self, move_to(queue, level));
                self.homes[queue as usize] = level;
            }
            _ => {}
        }
    }

    fn check(&self, vtimes: &mut [[u64; 3]]) {
        for queue in 0..QUEUES {
            assert_eq!(self.engine.view(queue), self.twin.view(queue), "queue {queue}");
        }
        for (level, _) in &self.levels {
            assert_eq!(self.engine.view_level(*level), self.twin.view_level(*level));
            for class in Class::ALL {
                let vtime = self.engine.vtime(*level, class);
                assert_eq!(vtime, self.twin.vtime(*level, class), "vtime {level} {class:?}");
                assert_eq!(self.engine.wsum(*level, class), self.twin.wsum(*level, class), "sum");
                let before = &mut vtimes[*level as usize][class as usize];
                // A level whose number is reused begins anew.
                assert!(vtime >= *before || vtime == 0, "virtual time went back");
                *before = vtime;
            }
        }
        assert_eq!(self.engine.may_preempt(), self.twin.may_preempt());
    }
}

fn run(seed: u64, bug: Bug, steps: usize) {
    let mut pair = Pair::new(seed, bug);
    let mut vtimes = [[0; 3]; 16];
    for _ in 0..steps {
        pair.step();
        pair.check(&mut vtimes);
    }
}

/// After every step, sums of weights are exact and virtual time has not run backwards.
#[test]
fn s19_02_s19_03_the_engine_decides_as_its_twin_does() {
    (0..HISTORIES).for_each(|seed| run(seed, Bug::None, 120));
}

#[test]
fn a_twin_with_a_bug_is_found() {
    let bugs = [Bug::Eager, Bug::Remembers, Bug::Forgives, Bug::NoShift, Bug::NoIdleTurn];
    for bug in bugs {
        let found = (0..200).any(|seed| std::panic::catch_unwind(|| run(seed, bug, 120)).is_err());
        assert!(found, "{bug:?} goes unnoticed");
    }
}

#[test]
fn s19_03_an_idle_queue_is_forgotten_once_virtual_time_has_passed_it() {
    let mut engine = Wf2q::new(2);
    let now = Instant::ZERO;
    for queue in 0..2 {
        engine.attach(queue, ROOT, Class::BestEffort, 8);
        engine.set_budget(queue, 100);
        engine.activate(queue, From::Now, now);
    }
    let first = engine.pick(now).expect("two are active");
    engine.serve(first, 100);
    engine.deactivate(first, Keep::Lead, When::Expiring, now);
    engine.end_slot(first);
    assert!(engine.is_tracked(first), "it is ahead by half of what it was served");
    let second = engine.pick(now).expect("one is active");
    engine.serve(second, 99);
    assert!(engine.is_tracked(first));
    engine.serve(second, 1);
    assert!(!engine.is_tracked(first));
    assert_eq!(engine.wsum(ROOT, Class::BestEffort), 8);
}

/// Queues that are always backlogged, with weights 10, 20 and 40, slots of up to one budget and requests of 8 sectors.
#[test]
fn s19_01_service_over_weight_differs_by_at_most_one_budget_each() {
    const BUDGET: u64 = 1_024;
    for seed in 0..50 {
        let mut rng = Rng::new(seed);
        let mut engine = Wf2q::new(3);
        let weights = [10, 20, 40];
        let mut served = [0; 3];
        for queue in 0..3 {
            engine.attach(queue, ROOT, Class::BestEffort, weights[queue as usize]);
            engine.set_budget(queue, BUDGET);
            engine.activate(queue, From::Now, Instant::ZERO);
        }
        for _ in 0..2_000 {
            let queue = engine.pick(Instant::ZERO).expect("all are backlogged");
            for _ in 0..1 + rng.below(BUDGET / 8) {
                engine.serve(queue, 8);
                served[queue as usize] += 8;
            }
            engine.requeue(queue, When::Expiring, Instant::ZERO);
            engine.end_slot(queue);
            for (a, b) in [(0, 1), (0, 2), (1, 2)] {
                let share = |q: usize| served[q] * 1_000 / u64::from(weights[q]);
                let slack = |q: usize| (BUDGET + 8) * 1_000 / u64::from(weights[q]);
                assert!(share(a).abs_diff(share(b)) <= slack(a) + slack(b), "{served:?}");
            }
        }
    }
}
