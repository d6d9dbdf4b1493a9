//! The service engine and its promises: the engine against its naive twin, over random histories, decision by decision;
//! and shares of service and of time, over seconds of virtual time (section 19, lines 7 and 18, and the promise of
//! `doc/bfq.md`). Also that no request is held for ever (line 17): random histories with all features on, and the bound
//! of `doc/bfq.md` under a load that is drawn to strain it.

use super::{Client, Path, With, World, add_group, disk, driver, factory, ms, put, read, us};
use crate::naive::bfq::wf2q::{Bug, Naive};
use blkmq_core::{Class, Instant, IoMeta, IoPrio, Nanos, RequestId, Rng};
use blkmq_sched::bfq::wf2q::{self, From, Keep, ROOT, Wf2q, When};
use blkmq_sched::testkit::{Driver, Event, Script};
use blkmq_sched::{At, Pick, Shape};
use std::collections::BTreeMap;

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

    fn class(&mut self) -> wf2q::Class {
        [
            wf2q::Class::Realtime,
            wf2q::Class::BestEffort,
            wf2q::Class::BestEffort,
            wf2q::Class::BestEffort,
            wf2q::Class::Idle,
        ][self.rng.below(5) as usize]
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
            for class in wf2q::Class::ALL {
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
        engine.attach(queue, ROOT, wf2q::Class::BestEffort, 8);
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
    assert_eq!(engine.wsum(ROOT, wf2q::Class::BestEffort), 8);
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
            engine.attach(queue, ROOT, wf2q::Class::BestEffort, weights[queue as usize]);
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

/// A device on which every request takes the same time.
fn fixed(_: u64, _: &IoMeta) -> Nanos {
    us(20)
}

/// A disk: 5 ms for a jump, and 100 MiB/s.
fn seeking(from: u64, meta: &IoMeta) -> Nanos {
    let jump = if from == meta.sector { Nanos::ZERO } else { ms(5) };
    Nanos(jump.0 + u64::from(meta.sectors) * 5_000)
}

/// `n` groups of one owner each, with weights 1 to n, all backlogged.
fn weighted(options: &str, n: u16) -> World {
    let mut d = driver(options);
    let mut clients = Vec::new();
    for group in 1..=n {
        add_group(&mut d, group, 0, group.into());
        let like = read(group.into(), u64::from(group) << 32).of(group);
        clients.push(Client::new(like, (256 / u32::from(n)).min(8), Path::Sequential));
    }
    World::new(d, clients, fixed)
}

/// The largest distance of a share from the expected one: in thousandths of all, and of the share itself.
fn errors(world: &World, weights: &[u64]) -> (u64, u64) {
    let (all, sum) =
        (world.clients.iter().map(|c| c.sectors).sum::<u64>(), weights.iter().sum::<u64>());
    let due = |w: u64| all * w / sum;
    let clients = || world.clients.iter().zip(weights);
    let of_all = clients().map(|(c, w)| c.sectors.abs_diff(due(*w)) * 1_000 / all).max();
    let of_own = clients().map(|(c, w)| c.sectors.abs_diff(due(*w)) * 1_000 / due(*w)).max();
    (of_all.unwrap_or(0), of_own.unwrap_or(0))
}

#[test]
fn s19_18_2_8_and_64_owners_have_their_weights_within_two_percent() {
    for n in [2, 8, 64] {
        let weights: Vec<u64> = (1..=n.into()).collect();
        let mut world = weighted("", n);
        world.run(ms(10_000));
        let (of_all, _) = errors(&world, &weights);
        assert!(of_all <= 20, "{n} owners: {of_all} thousandths of the device");
        // With short budgets also in relation to each share, down to the lightest.
        let mut world = weighted("max_budget=16", n);
        world.run(ms(10_000));
        let (_, of_own) = errors(&world, &weights);
        assert!(of_own <= 20, "{n} owners: {of_own} thousandths of their own");
    }
}

#[test]
fn s19_18_priorities_are_weights() {
    for options in ["low_latency=0,max_budget=512", "low_latency=0"] {
        let like = |owner: u32| read(owner, u64::from(owner) << 32).level(owner as u16 % 8);
        let clients = (0..8).map(|owner| Client::new(like(owner), 8, Path::Sequential)).collect();
        let mut world = World::new(driver(options), clients, fixed);
        world.run(ms(10_000));
        let (of_all, _) = errors(&world, &[80, 70, 60, 50, 40, 30, 20, 10]);
        assert!(of_all <= 20, "{options}: {of_all}");
    }
}

#[test]
fn s19_18_groups_of_100_and_300_with_three_processes_and_one() {
    let mut d = driver("low_latency=0");
    add_group(&mut d, 1, 0, 100);
    add_group(&mut d, 2, 0, 300);
    let like = |owner: u32, group| read(owner, u64::from(owner) << 32).of(group);
    let mut clients: Vec<_> =
        (1..=3).map(|owner| Client::new(like(owner, 1), 8, Path::Sequential)).collect();
    clients.push(Client::new(like(4, 2), 8, Path::Sequential));
    let mut world = World::new(d, clients, fixed);
    world.run(ms(10_000));
    let shares = world.shares();
    assert!((230..=270).contains(&shares[..3].iter().sum::<u64>()), "{shares:?}");
    assert!((730..=770).contains(&shares[3]), "{shares:?}");
    assert!(shares[..3].iter().all(|share| (70..=97).contains(share)), "{shares:?}");
}

#[test]
fn s19_18_groups_below_groups() {
    let mut d = driver("low_latency=0,max_budget=512");
    add_group(&mut d, 1, 0, 500);
    add_group(&mut d, 2, 1, 200);
    add_group(&mut d, 3, 1, 600);
    let like = |owner: u32, group| read(owner, u64::from(owner) << 32).of(group);
    // Half goes to group 1, as the owner on the root weighs 40 * 12.5 = 500: a quarter of that half to group 2, the
    // rest to group 3.
    add_group(&mut d, 4, 0, 500);
    let clients = [(1, 2), (2, 3), (3, 4)]
        .map(|(owner, group)| Client::new(like(owner, group), 8, Path::Sequential));
    let mut world = World::new(d, clients.into(), fixed);
    world.run(ms(10_000));
    let shares = world.shares();
    for (share, due) in shares.iter().zip([125, 375, 500]) {
        assert!(share.abs_diff(due) <= 20, "{shares:?}");
    }
}

fn on_a_disk(clients: Vec<Client>, options: &str) -> World {
    let mut world = World::new(disk(options), clients, seeking);
    world.run(ms(20_000));
    world
}

/// A sequential and a random reader: shares of time and of sectors.
fn sequential_and_seeky(options: &str) -> (Vec<u64>, Vec<u64>) {
    let sequential = Client::new(read(2, 0).len(128), 4, Path::Sequential);
    let seeky = Client::new(read(1, 1 << 29), 4, Path::Random);
    let world = on_a_disk(vec![sequential, seeky], options);
    (world.time_shares(), world.shares())
}

#[test]
fn s19_07_a_seeky_queue_and_a_sequential_one_share_the_time() {
    // The sectors that this disk serves in the time of a slot.
    let (times, sectors) = sequential_and_seeky("low_latency=0,max_budget=25000");
    assert!(times.iter().all(|share| (450..=550).contains(share)), "{times:?}");
    // The shares of sectors are as uneven as the disk makes them.
    assert!(sectors[0] > 950, "{sectors:?}");
    // With the budget by the estimated rate, which takes this mixture for the peak of the device.
    let (times, _) = sequential_and_seeky("low_latency=0");
    assert!(times.iter().all(|share| (300..=700).contains(share)), "{times:?}");
}

#[test]
fn s19_07_sequential_bandwidth_follows_the_weights() {
    let like = |owner: u32, level| read(owner, u64::from(owner) << 28).len(128).level(level);
    let levels = [(1, 7), (2, 5), (3, 0)];
    let clients = levels.map(|(owner, level)| {
        Client::new(like(owner, level), 2, Path::Sequential).thinking(us(50))
    });
    let world = on_a_disk(clients.into(), "low_latency=0");
    // Weights 10, 30 and 80.
    let shares = world.shares();
    for (share, due) in shares.iter().zip([83, 250, 667]) {
        assert!(share.abs_diff(due) <= 30, "{shares:?}");
    }
}

/// Idling keeps the share of a client with one request at a time against a client with many.
#[test]
fn a_reader_with_one_request_at_a_time_keeps_its_share_by_idling() {
    let run = |options: &str| {
        let one = Client::new(read(1, 0).level(0), 1, Path::Sequential).thinking(us(100));
        let many = Client::new(read(2, 1 << 32).level(7), 32, Path::Sequential);
        let mut world = World::new(driver(options), vec![one, many], fixed);
        world.width = 4;
        world.run(ms(5_000));
        (world.shares()[0], world.idle)
    };
    let (with, waited) = run("low_latency=0,injection=0");
    let (without, none) = run("low_latency=0,injection=0,slice_idle=0");
    assert!(with > 4 * without, "{with} and {without} thousandths");
    assert!(waited > ms(500) && none < ms(500), "{waited:?} {none:?}");
}

#[test]
fn an_application_that_starts_is_served_before_a_backlog() {
    let ios = |options: &str| {
        let like = |owner: u32| read(owner, u64::from(owner) << 32).level(5);
        let backlog = (1..=6).map(|owner| Client::new(like(owner), 8, Path::Sequential)).collect();
        let mut world = World::new(driver(options), backlog, fixed);
        world.run(ms(3_000));
        world.clients.push(Client::new(read(7, 1 << 40), 1, Path::Random));
        world.run(ms(1_000));
        world.clients[6].ios
    };
    let (preferred, not) = (ios(""), ios("low_latency=0"));
    assert!(preferred > 2 * not, "{preferred} I/Os in a second, and {not} without");
}

/// Owners leave, groups move and are removed, queues merge and split, attributes change, requests are requeued and
/// withdrawn, and at times the queue drains, so that the device must not be kept idle.
#[test]
fn s19_17_whatever_happens_every_request_is_picked() {
    let mut waits = 0;
    for seed in 0..400 {
        let mut script = Script::with_tenants(seed, factory().attributes);
        let options = script.options();
        let shape = Shape { rotational: seed % 4 != 0, ..Driver::shape(1 + seed as u32 % 60) };
        let mut d = Driver::of_shape(factory(), &shape, &options);
        for nth in 0..2_000 {
            let draining = nth % 200 >= 180;
            d.env().set_draining(draining);
            if let Event::Picked(Pick::WaitUntil(at)) = d.apply(script.step()) {
                waits += 1;
                assert!(at > d.now() && !draining, "seed {seed}");
            }
        }
        // Fails if the policy waits more often than about twice for each request.
        d.drain();
        assert_eq!(d.shown("queued") + d.shown("dispatch") + d.shown("in_driver"), 0);
    }
    assert!(waits > 1_000, "only {waits} waits prove little");
}

#[test]
fn owners_without_number_are_forgotten_in_their_order() {
    let mut d = driver("");
    for owner in 0..20_000 {
        let rq = put(&mut d, read(owner, u64::from(owner) * 8));
        while !d.issued().contains(&rq) {
            if let Pick::WaitUntil(at) = d.pick() {
                d.advance(at.since(d.now()));
            }
        }
        d.complete(rq);
        d.advance(us(50));
    }
    assert!(d.shown("queues") <= 1_026, "{}", d.shown("queues"));
    (0..20_000).for_each(|owner| d.owner_gone(blkmq_core::Owner(owner)));
    assert!(d.shown("queues") <= 1, "but for the one in service");
}

#[test]
fn an_owner_that_leaves_too_early_comes_back_as_a_new_one() {
    let mut d = driver("low_latency=0");
    let first = put(&mut d, read(1, 0));
    let second = put(&mut d, read(1, 8));
    assert_eq!(d.issue(), first);
    d.owner_gone(blkmq_core::Owner(1));
    let third = put(&mut d, read(1, 16));
    assert_eq!(d.shown("queues"), 2);
    d.owner_gone(blkmq_core::Owner(1));
    d.complete(first);
    let order = d.drain();
    assert_eq!(order.len(), 2);
    assert!(order.contains(&second) && order.contains(&third));
}

const BUDGET: u64 = 256;
const EXPIRE: u64 = 20;
const OWNERS: u64 = 6;

struct Waiting {
    weight: u64,
    /// Requests of its owner that were inserted before it.
    older: u64,
    due: Instant,
    /// Sectors served to any queue since it was due.
    overtaken: u64,
}

/// All owners are backlogged, and most new requests lie just ahead of the device's position.
fn strain(seed: u64, rotational: bool) {
    let mut rng = Rng::new(seed);
    let options = format!(
        "low_latency=0,queue_merge=0,max_budget={BUDGET},fifo_expire_sync={EXPIRE},injection={}",
        rng.below(2)
    );
    let mut d: Driver = if rotational { disk(&options) } else { driver(&options) };
    let mut waiting: BTreeMap<RequestId, (u64, Waiting)> = BTreeMap::new();
    let mut pos = 1 << 20;
    let all: u64 = (0..OWNERS).map(|owner| (8 - owner) * 10).sum();
    for _ in 0..6_000 {
        if d.held().len() < 60 {
            let owner = rng.below(OWNERS);
            let near = rng.chance(7, 8);
            let sector = if near { pos + 8 * rng.below(4) } else { 8 * rng.below(1 << 22) };
            let ioprio = IoPrio::new(Class::BestEffort, owner as u16).expect("a level");
            let meta = IoMeta { ioprio, ..read(owner as u32, sector) };
            let older = waiting.values().filter(|(o, _)| *o == owner).count() as u64;
            let rq = d.insert_meta(meta, At::Tail).expect("a slot is free");
            let (weight, due) = ((8 - owner) * 10, d.now() + ms(EXPIRE));
            waiting.insert(rq, (owner, Waiting { weight, older, due, overtaken: 0 }));
        }
        match d.pick() {
            Pick::Issue(rq) => {
                pos = d.meta(rq).end();
                let (_, its) = waiting.remove(&rq).expect("it waited");
                let slot = BUDGET + 24;
                let bound = (its.older + 3) * (all * slot / its.weight + (OWNERS + 1) * slot);
                assert!(its.overtaken <= bound, "seed {seed}: {} > {bound}", its.overtaken);
                let now = d.now();
                let due = waiting.values_mut().filter(|(_, w)| w.due <= now);
                due.for_each(|(_, w)| w.overtaken += 8);
                d.advance(us(100));
                d.complete(rq);
            }
            Pick::WaitUntil(at) => d.advance(at.since(d.now())),
            Pick::WaitCompletion => panic!("nothing is in flight"),
            Pick::Empty | Pick::WaitToken => {}
        }
    }
}

#[test]
fn no_request_is_overtaken_by_more_than_the_page_says() {
    for seed in 0..12 {
        strain(seed, seed % 2 == 0);
    }
}

/// Requests of one owner, most of which are served in sector order; the oldest lies behind and would wait for ever if
/// ages were not checked.
#[test]
fn the_oldest_request_of_a_queue_is_served_once_it_is_due() {
    let mut d = driver("low_latency=0,max_budget=64,fifo_expire_sync=20");
    let far = put(&mut d, read(1, 1 << 30));
    let mut at = 0;
    for n in 0_u64.. {
        assert!(n < 400, "it is never served");
        at += 8;
        put(&mut d, read(1, at));
        put(&mut d, read(1, (1 << 24) + at));
        let rq = d.issue();
        if rq == far {
            assert!(d.now() >= Instant::ZERO + ms(20));
            return;
        }
        at = d.meta(rq).sector;
        d.complete(rq);
        d.advance(ms(1));
        if d.held().len() > 100 {
            let extra = d.held().into_iter().find(|rq| *rq != far).expect("there are many");
            d.withdraw(extra);
        }
    }
}
