//! Latency goals on modelled devices, and beside other promises and other loads.
//!
//! One tenant reads 4 KiB at a time, at random; two others write 128 KiB, at random, 32 at a time each. For each device
//! there is a goal that it can keep beside some writes. In the first ten seconds the controller searches; after that
//! the goal is met in 95 of 100 windows of a second. A window in which no read ends counts as missed.
//!
//! Beside others, floors come before goals, a tenant's own depth explains its own latency, a slow spell has no lasting
//! effect, and requests are shortened before rates are lowered. In each of these scenarios a goal once took capacity
//! that it should not have taken, or was abandoned although it could have been kept.
//!
//! `cargo test -p blkmq-lab --test all goals:: -- --include-ignored --nocapture` prints the tables of
//! `docs/guarantees.md`.

use crate::floors::{Flights, pair};
use blkmq_core::{GroupId, Instant, IoFlags, Nanos, Op, Owner, Rng};
use blkmq_device::{MachineShape, registry as devices};
use blkmq_engine::{Completion, Config, GoalsStatus, GroupSpec, GroupTree, Io, Promise};
use blkmq_lab::{Client, Costs, Habits, Payload, Plan, Subject, Want, World};
use blkmq_sched::{GoalState, Options, Taken, registry};
use std::cell::RefCell;
use std::rc::Rc;

const SCHEDULERS: [&str; 4] = ["mq-deadline", "kyber", "mclock", "bfq"];
const MS: u64 = 1_000_000;
/// Earlier I/Os are not counted.
const BEGINS: u64 = 10_000 * MS;
const WINDOW: u64 = 1_000 * MS;

/// A device, the goal on it in microseconds, the percent of their share that it takes from others at most, and the
/// seconds of a run.
#[derive(Clone, Copy)]
struct Cell {
    device: &'static str,
    goal: u64,
    takes: u8,
    seconds: u64,
}

const DISK: Cell = Cell { device: "disk", goal: 80_000, takes: 90, seconds: 100 };
const SATA: Cell = Cell { device: "flash,preset=sata", goal: 1_500, takes: 90, seconds: 40 };
/// With a tenth of their share left to the writers, more than half of the windows are missed.
const NVME: Cell = Cell { device: "flash,preset=nvme-client", goal: 1_000, takes: 97, seconds: 30 };
const CLOUD: Cell = Cell { device: "cloud", goal: 6_000, takes: 90, seconds: 70 };

/// I/Os that have ended, as (end, latency).
type Ended = Rc<RefCell<Vec<(u64, u64)>>>;

struct Tenant {
    group: GroupId,
    op: Op,
    sectors: u32,
    depth: u32,
    blocks: u64,
    until: u64,
    flights: Flights,
    rng: Rng,
    ended: Ended,
}

impl Client for Tenant {
    fn next(&mut self, now: Instant, in_flight: u32) -> Want {
        if now.as_nanos() >= self.until {
            return Want::Nothing;
        }
        if in_flight >= self.depth {
            return Want::Completion;
        }
        let sector = self.rng.below(self.blocks) * u64::from(self.sectors);
        let io = Io::new(self.op, sector, self.sectors, 0, 0);
        Want::Io(Io { group: self.group, owner: Owner(self.group.index().0.into()), ..io })
    }

    fn submitted(&mut self, now: Instant, io: &Io<Payload>) {
        self.flights.begin(now, io);
    }

    fn ended(&mut self, now: Instant, completion: &Completion<Payload>) {
        let latency = self.flights.end(now, completion);
        self.ended.borrow_mut().push((now.as_nanos(), latency.0));
    }
}

#[derive(Debug)]
struct Measured {
    /// The p99 of reads, in microseconds.
    p99: u64,
    /// Windows in which the goal was met, and all.
    met: (usize, usize),
    /// Bytes written in a second.
    written: u64,
    status: Option<GoalsStatus>,
}

fn p99(latencies: &mut [u64]) -> u64 {
    latencies.sort_unstable();
    latencies.get(latencies.len() * 99 / 100).map_or(0, |ns| ns / 1_000)
}

/// The windows of the reads from [`BEGINS`] on, by whether the 99th percentile in it was within `goal`.
fn windows(reads: &[(u64, u64)], goal: u64, until: u64) -> (usize, usize) {
    let begins = Vec::from_iter((BEGINS..until).step_by(WINDOW as usize));
    let is_met = |begin: &&u64| {
        let within = |(at, _): &&(u64, u64)| (**begin..**begin + WINDOW).contains(at);
        let mut window = Vec::from_iter(reads.iter().filter(within).map(|(_, it)| *it));
        !window.is_empty() && p99(&mut window) <= goal
    };
    (begins.iter().filter(is_met).count(), begins.len())
}

/// A run of this many seconds, with the given goal, and with or without writers.
fn run(cell: Cell, scheduler: &str, goal: Option<u64>, writers: u16) -> Measured {
    let machine = MachineShape { cpus: 3, nodes: 1 };
    let device = devices::parse(cell.device, &machine).expect("a device");
    let takes = cell.takes;
    let words = |goal| format!("p99_read={goal} goal_takes_at_most={takes}");
    let words = goal.map_or(String::new(), words);
    let (tree, [victim, flood]) = pair([("victim", &words), ("flood", "")]);
    let (name, options) = scheduler.split_once(':').unwrap_or((scheduler, ""));
    let factory = registry::find(name).expect("it is registered");
    let config = Config { submitters: 1 + writers, groups: tree, depth: 64, ..device.config() };
    let options = Options::parse(factory.attributes, options).expect("right");
    let config = Config { options, ..config.scheduler(factory) };
    let subject = Subject::new(config, Nanos::from_secs(1), None);
    let subject = subject.expect("a possible queue");
    let ended = [Ended::default(), Ended::default()];
    let until = cell.seconds * 1_000 * MS;
    let tenant = |at: u16| {
        let (group, op, sectors, depth) =
            if at == 0 { (victim, Op::Read, 8, 1) } else { (flood, Op::Write, 256, 32) };
        let blocks = device.shape.limits.capacity / u64::from(sectors);
        let (flights, rng) = (Flights::default(), Rng::new(u64::from(at) + 1));
        let ended = Rc::clone(&ended[usize::from(at > 0)]);
        let client = Tenant { group, op, sectors, depth, blocks, until, flights, rng, ended };
        Plan { client: Box::new(client), habits: Habits::diligent(16), seed: at.into() }
    };
    let plans = (0..=writers).map(tenant).collect();
    let mut world = World::new(&subject, Costs::TYPICAL, plans);
    world.finish(u64::MAX / 2).expect("nothing is broken");
    subject.check_at_rest().expect("nothing is broken");
    let [reads, writes] = ended.map(|all| all.take());
    let seconds = cell.seconds.saturating_sub(BEGINS / 1_000 / MS).max(1);
    let counted = |ended: &[(u64, u64)]| ended.iter().filter(|(at, _)| *at >= BEGINS).count();
    let mut latencies: Vec<u64> =
        reads.iter().filter(|(at, _)| *at >= BEGINS).map(|(_, it)| *it).collect();
    Measured {
        p99: p99(&mut latencies),
        met: windows(&reads, cell.goal, until),
        written: (counted(&writes) as u64 * (128 << 10)) / seconds,
        status: subject.queue().goals(),
    }
}

/// The goal of a device is kept under each scheduler. Prints rows of the table in `docs/guarantees.md`.
fn is_kept(cell: Cell) {
    let short = Cell { seconds: 20, ..cell };
    for scheduler in SCHEDULERS {
        let (alone, free) = (run(short, scheduler, None, 0), run(short, scheduler, None, 2));
        let got = run(cell, scheduler, Some(cell.goal), 2);
        let (met, all) = got.met;
        let percent = 100 * met / all.max(1);
        let ms = |micros: u64| micros as f64 / 1e3;
        let mb = |bytes: u64| bytes as f64 / 1e6;
        println!(
            "| `{}`, {} ms | `{scheduler}` | {:.1} ms | {:.1} ms, {:.1} MB/s | {percent} %, {:.1} ms, {:.1} MB/s |",
            cell.device,
            ms(cell.goal),
            ms(alone.p99),
            ms(free.p99),
            mb(free.written),
            ms(got.p99),
            mb(got.written)
        );
        assert!(alone.p99 <= cell.goal, "it has to be feasible: {alone:?}");
        assert!(all >= 4 && met * 100 >= all * 95, "{} {scheduler}: {got:?}", cell.device);
        assert!(got.written > 0, "{} {scheduler}: {got:?}", cell.device);
    }
}

#[test]
#[ignore = "long; cargo xtask soak runs it"]
fn a_goal_is_kept_on_a_disk() {
    is_kept(DISK);
}

#[test]
fn a_goal_is_kept_on_a_disk_of_a_cloud() {
    is_kept(CLOUD);
}

#[test]
#[ignore = "long; cargo xtask soak runs it"]
fn a_goal_is_kept_on_flash_behind_sata() {
    is_kept(SATA);
}

#[test]
#[ignore = "long; cargo xtask soak runs it"]
fn a_goal_is_kept_on_flash_behind_nvme() {
    is_kept(NVME);
}

/// A goal below the latency of a read that has the device to itself is reported as infeasible within five seconds, and
/// the writers keep the rate that they have without a goal.
#[test]
#[ignore = "long; cargo xtask soak runs it"]
fn an_infeasible_goal_is_called_so_and_costs_the_writers_nothing() {
    for (cell, goal) in [(SATA, 30), (DISK, 3_000), (CLOUD, 500), (NVME, 30)] {
        // On a cloud disk two bounds keep the rate in mclock's device time: under the smaller one the reader has more
        // of it, and the writers less. The search for a bound ends at either, with or without a goal.
        for scheduler in SCHEDULERS.map(|it| if it == "mclock" { "mclock:learn=0" } else { it }) {
            let early = run(Cell { seconds: 5, ..cell }, scheduler, Some(goal), 2);
            let status = early.status.expect("there is a goal");
            let report = status.goals[0];
            assert_eq!(
                report.state,
                GoalState::Infeasible,
                "{} {scheduler}: {report:?}",
                cell.device
            );
            assert!(report.best.0 > goal * 1_000, "{report:?}");
            assert_eq!(status.taken, Taken::default(), "{} {scheduler}", cell.device);
            let cell = Cell { seconds: 30, ..cell };
            let (with, without) =
                (run(cell, scheduler, Some(goal), 2), run(cell, scheduler, None, 2));
            let (with, without) = (with.written, without.written);
            println!(
                "| `{}`, {} ms | `{scheduler}` | {:.1} ms | {:.1} MB/s | {:.1} MB/s |",
                cell.device,
                goal as f64 / 1e3,
                report.best.0 as f64 / 1e6,
                with as f64 / 1e6,
                without as f64 / 1e6
            );
            assert!(with * 100 >= without * 97, "{} {scheduler}: {with}, {without}", cell.device);
        }
    }
}

const SECOND: u64 = 1_000_000_000;
/// Sectors of a GiB.
const GIB: u64 = 1 << 21;
/// Room for the parts of shortened I/Os.
const CREDIT: u32 = 256;

/// The load of a tenant: sequential or random.
#[derive(Clone, Copy)]
struct Load {
    op: Op,
    random: bool,
    kib: u32,
    depth: u32,
    /// A flush behind each I/O.
    syncs: bool,
    /// The size of its region: seeks in a large region take long.
    gib: u64,
    /// The second of its first I/O.
    from: u64,
}

const READS: Load =
    Load { op: Op::Read, random: true, kib: 4, depth: 1, syncs: false, gib: 1, from: 0 };
const WRITES: Load = Load { op: Op::Write, kib: 128, depth: 32, ..READS };
/// A database that commits, and a neighbour that copies.
const COMMITS: Load = Load { op: Op::Write, random: false, kib: 2, syncs: true, ..READS };
const BULK: Load = Load { op: Op::Write, random: false, kib: 1024, depth: 16, ..READS };

/// I/Os that have ended, as (end, latency, whether it was a flush).
type LoadEnded = Rc<RefCell<Vec<(u64, u64, bool)>>>;

struct LoadTenant {
    group: GroupId,
    load: Load,
    base: u64,
    at: u64,
    until: u64,
    has_written: bool,
    flushes: Vec<u64>,
    flights: Flights,
    rng: Rng,
    ended: LoadEnded,
}

impl Client for LoadTenant {
    fn next(&mut self, now: Instant, in_flight: u32) -> Want {
        if now.as_nanos() >= self.until {
            return Want::Nothing;
        }
        let from = Instant::from_nanos(self.load.from * SECOND);
        if now < from {
            return Want::At(from);
        }
        if in_flight >= self.load.depth {
            return Want::Completion;
        }
        let owner = Owner(self.group.index().0.into());
        if std::mem::take(&mut self.has_written) {
            let io = Io { flags: IoFlags::SYNC, ..Io::new(Op::Flush, 0, 0, 0, 0) };
            return Want::Io(Io { group: self.group, owner, ..io });
        }
        self.has_written = self.load.syncs;
        let sectors = self.load.kib * 2;
        let blocks = self.load.gib * GIB / u64::from(sectors);
        self.at = if self.load.random { self.rng.below(blocks) } else { (self.at + 1) % blocks };
        let sector = self.base + self.at * u64::from(sectors);
        Want::Io(Io { group: self.group, owner, ..Io::new(self.load.op, sector, sectors, 0, 0) })
    }

    fn submitted(&mut self, now: Instant, io: &Io<Payload>) {
        if io.op == Op::Flush {
            self.flushes.push(io.cookie);
        }
        self.flights.begin(now, io);
    }

    fn ended(&mut self, now: Instant, completion: &Completion<Payload>) {
        let latency = self.flights.end(now, completion);
        let flush = self.flushes.iter().position(|it| *it == completion.cookie);
        if let Some(at) = flush {
            self.flushes.swap_remove(at);
        }
        self.ended.borrow_mut().push((now.as_nanos(), latency.0, flush.is_some()));
    }
}

/// A device, a scheduler with its options, the seconds of a run, those at its beginning that are not counted, and a
/// seed.
#[derive(Clone, Copy)]
struct Run {
    device: &'static str,
    scheduler: &'static str,
    seconds: u64,
    begins: u64,
    seed: u64,
}

/// The results, by tenant.
struct Outcome {
    run: Run,
    ended: Vec<Vec<(u64, u64, bool)>>,
    status: Option<GoalsStatus>,
}

impl Run {
    /// Each tenant has a name, a weight, promises and a load.
    fn of(self, tenants: &[(&str, u32, &str, Load)]) -> Outcome {
        let machine = MachineShape { cpus: tenants.len() as u16, nodes: 1 };
        let device = devices::parse(self.device, &machine).expect("a device");
        let specs = tenants.iter().map(|(name, weight, words, _)| GroupSpec {
            name: (*name).into(),
            weight: *weight,
            promise: Promise::default().set(words).expect("right"),
            ..GroupSpec::default()
        });
        let mut specs = Vec::from_iter(specs);
        specs.dedup_by(|a, b| a.name == b.name);
        let groups = GroupTree::of(specs).expect("a tree");
        let (name, options) = self.scheduler.split_once(':').unwrap_or((self.scheduler, ""));
        let factory = registry::find(name).expect("it is registered");
        let submitters = tenants.len() as u16;
        let config =
            Config { submitters, groups: groups.clone(), depth: CREDIT, ..device.config() };
        let options = Options::parse(factory.attributes, options).expect("right");
        let config = Config { options, ..config.scheduler(factory) };
        let subject = Subject::new(config, Nanos::from_secs(1), None).expect("a possible queue");
        let ended = Vec::from_iter(tenants.iter().map(|_| LoadEnded::default()));
        let plan = |(at, (name, _, _, load)): (usize, &(&str, u32, &str, Load))| {
            let client = LoadTenant {
                group: groups.find(name).expect("there"),
                load: *load,
                base: at as u64 * load.gib * GIB,
                at: 0,
                until: self.seconds * SECOND,
                has_written: false,
                flushes: Vec::new(),
                flights: Flights::default(),
                rng: Rng::new(self.seed * 100 + at as u64 + 1),
                ended: Rc::clone(&ended[at]),
            };
            let habits = Habits::diligent(if load.syncs { 1 } else { 16 });
            Plan { client: Box::new(client), habits, seed: self.seed * 1000 + at as u64 }
        };
        let plans = tenants.iter().enumerate().map(plan).collect();
        let mut world = World::new(&subject, Costs::TYPICAL, plans);
        world.finish(u64::MAX / 2).expect("nothing is broken");
        subject.check_at_rest().expect("nothing is broken");
        let ended = ended.iter().map(|all| all.take()).collect();
        Outcome { run: self, ended, status: subject.queue().goals() }
    }
}

impl Outcome {
    fn within(&self, tenant: usize, from: u64, to: u64) -> impl Iterator<Item = (u64, bool)> {
        let inside = move |at: u64| (from * SECOND..to * SECOND).contains(&at);
        let all = self.ended[tenant].iter().filter(move |(at, ..)| inside(*at));
        all.map(|(_, latency, flush)| (*latency, *flush))
    }

    /// I/Os without flushes in each second that counts.
    fn rates(&self, tenant: usize) -> Vec<usize> {
        let data = |at| self.within(tenant, at, at + 1).filter(|(_, flush)| !flush).count();
        (self.run.begins..self.run.seconds).map(data).collect()
    }

    /// The same in a second, on average.
    fn rate(&self, tenant: usize) -> usize {
        let rates = self.rates(tenant);
        rates.iter().sum::<usize>() / rates.len()
    }

    /// Of all I/Os, in microseconds.
    fn p99(&self, tenant: usize, from: u64, to: u64) -> u64 {
        let mut all = Vec::from_iter(self.within(tenant, from, to).map(|(latency, _)| latency));
        all.sort_unstable();
        all.get(all.len() * 99 / 100).map_or(u64::MAX, |ns| ns / 1_000)
    }

    fn state(&self) -> GoalState {
        self.status.as_ref().expect("there is a goal").goals[0].state
    }
}

/// The controller did not consider floors: a reader with a goal took 90 % of the rate of a tenant that was promised
/// 39,000 I/Os.
#[test]
fn nothing_is_taken_of_a_floor_for_a_goal() {
    let reader = Load { depth: 32, ..READS };
    for (scheduler, floor) in [
        ("mclock:rrandiops=98000,rbps=559000000", "reserve_iops=39000"),
        ("mclock:rrandiops=98000,rbps=559000000", "reserve_percent=40"),
    ] {
        let run = Run { device: "flash,preset=sata", scheduler, seconds: 9, begins: 5, seed: 0 };
        let tenants = [
            ("victim", 100, "p99_read=500us", READS),
            ("paid", 100, floor, reader),
            ("bulk", 100, "", Load { random: false, ..WRITES }),
        ];
        let got = run.of(&tenants);
        let paid = got.rates(1);
        assert!(paid.iter().all(|rate| *rate >= 38_610), "{floor}: {paid:?} of 39000 or 39200");
        let p99 = got.p99(0, 5, 9);
        assert!(p99 <= 500, "{floor}: the goal is met by what others have: {p99} us");
    }
}

/// A tenant with 64 reads in flight had 90 % of a drive for a goal that its own depth missed.
#[test]
fn a_tenant_that_waits_for_itself_takes_nothing() {
    let deep = |depth| Load { depth, ..READS };
    for (scheduler, floor, seed) in
        [("mclock:rrandiops=98000,rbps=559000000", "reserve_iops=39000", 2), ("mq-deadline", "", 3)]
    {
        let run = Run { device: "flash,preset=sata", scheduler, seconds: 5, begins: 1, seed };
        let loads = [("greedy", 100, "p99_read=1ms", deep(64)), ("paid", 100, floor, deep(32))];
        let got = run.of(&loads);
        assert_eq!(got.state(), GoalState::OwnBacklog);
        let without = run.of(&[("greedy", 100, "", deep(64)), loads[1]]);
        let (with, without) = (got.rates(1), without.rate(1));
        let kept = with.iter().all(|rate| rate * 100 >= without * 98);
        assert!(kept, "{scheduler}: {with:?} of {without}");
    }
}

/// Reads that waited for a slot were not seen: beside a weight of 1000 and a floor, a reader of weight 1 had one read
/// in eight seconds, and its goal was reported as idle.
#[test]
fn a_read_that_waits_for_a_slot_is_seen() {
    let device = "null,irqmode=2,completion_nsec=8000000,submit_queues=1,hw_queue_depth=1";
    let run = Run { device, scheduler: "mclock", seconds: 20, begins: 5, seed: 0 };
    let deep = Load { depth: 32, ..READS };
    let tenants = [
        ("flood", 1000, "", deep),
        ("paid", 1, "reserve_iops=15", deep),
        ("victim", 1, "p99_read=500ms", Load { from: 1, ..READS }),
    ];
    let got = run.of(&tenants);
    let p99 = got.p99(2, 5, 20);
    assert!(p99 <= 500_000, "{p99} us, {:?}", got.status);
    assert!(got.rates(1).iter().all(|rate| *rate >= 14), "{:?}", got.rates(1));
}

/// The seconds of a run with slow spells in which the device has been well for ten seconds, and those of them in which
/// the goal is missed.
fn well_and_missed(got: &Outcome, goal: u64) -> [Vec<u64>; 2] {
    // Only a slow spell makes a write take this long.
    let is_slow = |at: u64| got.within(1, at, at + 1).any(|(latency, _)| latency > 120_000_000);
    let slow = Vec::from_iter((0..got.run.seconds).map(is_slow));
    let is_well =
        |at: &u64| !slow[(*at as usize).saturating_sub(10)..=*at as usize].contains(&true);
    let well = Vec::from_iter((got.run.begins..got.run.seconds).filter(is_well));
    let is_missed = |at: &&u64| got.p99(0, **at, **at + 1) > goal;
    let missed = well.iter().filter(is_missed).copied().collect();
    [well, missed]
}

/// A goal at the limit of what is possible left its two neighbours permanently one I/O in half a second and one in a
/// second, and was missed in three of ten windows.
#[test]
fn a_goal_at_the_edge_leaves_the_neighbours_a_tenth_or_is_infeasible() {
    let silver = Load { depth: 16, ..WRITES };
    let bronze = Load { kib: 64, depth: 16, ..READS };
    let tenants = |words| {
        let gold = ("gold", 300, words, Load { depth: 4, ..READS });
        [gold, ("silver", 100, "", silver), ("bronze", 50, "", bronze)]
    };
    let seconds = 40;
    let run = Run { device: "disk", scheduler: "bfq:low_latency=0", seconds, begins: 10, seed: 0 };
    let free = run.of(&tenants(""));
    // A share is of bytes, with 16 KiB for each I/O.
    let kib = |tenant: usize| [4, 128, 64][tenant] + 16;
    let all: usize = (0..3).map(|tenant| free.rate(tenant) * kib(tenant)).sum();
    let due = |tenant: usize| all * [300, 100, 50][tenant] / 450 / kib(tenant);
    let tenth = |tenant: usize| due(tenant) as f64 / 10.0;
    for (goal, is_feasible) in [(60, false), (85, true), (90, true), (100, true), (120, true)] {
        let words: &'static str = format!("p99_read={goal}ms").leak();
        let got = run.of(&tenants(words));
        let met = (10..seconds).filter(|at| got.p99(0, *at, at + 1) <= goal * 1_000).count();
        for tenant in [1, 2] {
            // The rate of a tier is divided by the scheduler: to a few percent.
            let rate = got.rates(tenant).iter().sum::<usize>() as f64 / 30.0;
            assert!(rate >= 0.95 * tenth(tenant), "{words}: {rate} of {}", tenth(tenant));
        }
        if is_feasible {
            assert!(met * 100 >= 30 * 75, "{words}: {met} of 30 seconds");
        } else {
            assert_eq!(got.state(), GoalState::Infeasible);
            for tenant in [1, 2] {
                assert!(got.rate(tenant) >= due(tenant), "{} of {}", got.rate(tenant), due(tenant));
            }
        }
    }
}

/// Goals around the p99 that gold has alone, 81 ms, beside the same neighbours: in any ten seconds after the first, a
/// goal that is not abandoned is kept in most seconds, and its neighbours have the tenth that is left to them.
#[test]
fn a_goal_near_the_edge_is_mostly_kept_or_infeasible_within_ten_seconds() {
    let silver = Load { depth: 16, ..WRITES };
    let bronze = Load { kib: 64, depth: 16, ..READS };
    for goal in [70, 75, 80, 85, 90] {
        let words: &'static str = format!("p99_read={goal}ms").leak();
        let gold = ("gold", 300, words, Load { depth: 4, ..READS });
        let tenants = [gold, ("silver", 100, "", silver), ("bronze", 50, "", bronze)];
        for (seconds, seed) in [(20, 0), (30, 0), (20, 1), (30, 1)] {
            let begins = seconds - 10;
            let scheduler = "bfq:low_latency=0";
            let got = Run { device: "disk", scheduler, seconds, begins, seed }.of(&tenants);
            let is_met = |at: &u64| got.p99(0, *at, at + 1) <= goal * 1_000;
            let met = (begins..seconds).filter(is_met).count();
            let state = got.state();
            println!("{words}, {seconds} s, {seed}: {state:?}, {met} of 10 seconds");
            assert!(state == GoalState::Infeasible || met > 5, "{words}, {seconds} s: {met}");
            assert!(state != GoalState::Infeasible || goal <= 80, "{words}, {seconds} s");
            // A tenth of their shares, as the test above has them.
            let [silver, bronze] = [got.rate(1), got.rate(2)];
            assert!(silver >= 2 && bronze >= 2, "{words}: {silver} and {bronze} I/Os a second");
        }
    }
}

/// The cache of a disk takes a burst of writes when the load begins. The rate of that time was taken for the device's
/// own, so that the neighbours kept more than the disk can do, and a feasible goal was abandoned for two minutes.
#[test]
fn a_burst_into_a_cache_is_not_the_rate_of_the_device() {
    let reads = Load { gib: 64, ..READS };
    let writes = Load { kib: 64, gib: 64, ..WRITES };
    for (goal, seed) in [(30, 0), (30, 1), (30, 2), (100, 0)] {
        let words: &'static str = format!("p99_read={goal}ms").leak();
        let run = Run { device: "disk", scheduler: "mclock", seconds: 50, begins: 30, seed };
        let reader = ("reader", 100, words, reads);
        let got = run.of(&[reader, ("writer", 100, "", writes), ("writer", 100, "", writes)]);
        let met = (30..50).filter(|at| got.p99(0, *at, at + 1) <= goal * 1_000).count();
        println!("{words}, {seed}: {met} of 20 seconds, {:?}", [0, 1, 2].map(|at| got.rate(at)));
        assert!(met >= 15, "{words}, {seed}: {met} of 20 seconds, {:?}", got.state());
        // A tenth of a third of what the two have without a goal.
        assert!(got.rate(1) >= 3 && got.rate(2) >= 3, "{words}, {seed}");
    }
}

fn spells(space: u32, seconds: u64) -> Outcome {
    let device: &'static str =
        format!("faults,late=1,late_nsec=200000000,space={space},times=2500:cloud").leak();
    let run = Run { device, scheduler: "mq-deadline", seconds, begins: 10, seed: 0 };
    run.of(&[
        ("victim", 100, "p99_read=6ms", READS),
        ("flood", 100, "", WRITES),
        ("flood", 100, "", WRITES),
    ])
}

/// A goal that was abandoned during a slow spell stayed so for one minute, the next time for two, and up to sixteen.
#[test]
fn a_goal_is_kept_again_within_ten_seconds_of_a_slow_spell() {
    let got = spells(35_000, 60);
    let [_, missed] = well_and_missed(&got, 6_000);
    assert_eq!(missed, [] as [u64; 0]);
    assert!(got.p99(0, 22, 26) > 6_000, "there is a spell");
    assert_eq!(got.state(), GoalState::Met);
}

#[test]
#[ignore = "long; cargo xtask soak runs it"]
fn a_goal_is_kept_again_after_the_tenth_slow_spell() {
    let got = spells(50_000, 600);
    let [well, missed] = well_and_missed(&got, 6_000);
    // Once a minute the controller tries whether the other tenants can have more, which costs a second.
    assert!(missed.len() * 20 <= well.len(), "{missed:?} of {} seconds", well.len());
    let in_a_row = missed.windows(3).any(|three| three[2] == three[0] + 2);
    assert!(!in_a_row, "{missed:?}");
}

/// Even over minutes, trials of an infeasible goal cost the other tenants little.
#[test]
fn trials_of_an_infeasible_goal_cost_the_others_little() {
    let run = Run { device: "cloud", scheduler: "mq-deadline", seconds: 140, begins: 10, seed: 0 };
    let with = |words| run.of(&[("victim", 100, words, READS), ("flood", 100, "", WRITES)]);
    let (got, without) = (with("p99_read=500us"), with("").rate(1));
    assert_eq!(got.state(), GoalState::Infeasible);
    let rate = got.rate(1);
    assert!(rate * 100 >= without * 95, "{rate} of {without}");
}

/// A neighbour's writes of 4 MiB filled most of the drive's queue, and no depth or rate divides them: commits waited
/// behind them, or the neighbour was slowed down to a fifteenth.
fn commits(device: &'static str, words: &str, seconds: u64) -> (usize, usize) {
    let run = Run { device, scheduler: "mq-deadline", seconds, begins: 10, seed: 0 };
    let got = run.of(&[("etcd", 100, words, COMMITS), ("bulk", 100, "", BULK)]);
    let (commits, bulk) = (got.rate(0), got.rate(1) * (BULK.kib as usize * 1_024) / 1_000_000);
    println!("{device}: {commits} commits/s beside {bulk} MB/s; {:?}", got.status);
    (commits, bulk)
}

#[test]
fn short_requests_of_a_neighbour_keep_commits_fast_on_flash_behind_sata() {
    let (commits, bulk) = commits("flash,preset=sata", "p99_write=2ms", 20);
    assert!(commits >= 1_960 && bulk >= 450, "{commits} commits/s, {bulk} MB/s");
}

#[test]
fn short_requests_of_a_neighbour_keep_commits_fast_on_a_disk_of_a_cloud() {
    let (commits, bulk) = commits("cloud,preset=ebs-gp3", "p99_write=5ms", 20);
    assert!(commits >= 730 && bulk >= 100, "{commits} commits/s, {bulk} MB/s");
}
