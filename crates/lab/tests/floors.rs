//! Floors on modelled devices, beside a noisy neighbour and for many tenants.
//!
//! The noisy neighbour on a cloud disk is that of a change of Linux's io.cost (March 2026, an Azure P20): A keeps 128
//! I/Os of 1 MiB in flight; B has one at a time, 100 reads and 100 writes a second. The limits of the test are the
//! figures of the repaired kernel. They are met with a floor for B and a limit on the amount of work in the disk;
//! without the limit, no scheduler can affect I/Os that wait inside the disk.
//!
//! Of many tenants, 62 have floors and I/Os of many sizes and read as fast as they can, one with the largest floor is
//! active every other second, and one without a floor has a thousand times the weight of all others. The disk is
//! measured first, under that mix and without floors, as an operator would do; for the other devices the figures of
//! their makers are used. All floors together are 75 % of the mean of the disk, whose seconds differ, and 85 % of the
//! other devices. Floors are kept in every second; the largest tenant's device time is lent to the others within 10 ms
//! after it stops, and is back within 10 ms after it starts again.
//!
//! The tree with a group for each of two tenants, and the I/Os of a client that are in flight, are shared with the
//! tests of latency goals.

use blkmq_core::{GroupId, Instant, Nanos, Op, Owner, Rng};
use blkmq_device::{MachineShape, registry as devices};
use blkmq_engine::{
    Completion, Config, ConfigError, DeviceDepth, GroupSpec, GroupTree, Io, Promise,
};
use blkmq_lab::{Client, Costs, Habits, Payload, Plan, Subject, Want, World};
use blkmq_sched::{Options, registry};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;

const MS: u64 = 1_000_000;
/// The measured time; the time before it is not counted. A bound that is found takes some seconds.
const TOLD: Range<u64> = 1_000 * MS..11_000 * MS;
const FOUND: Range<u64> = 10_000 * MS..30_000 * MS;

/// Latencies of one tenant, in nanoseconds.
type Latencies = Rc<RefCell<Vec<u64>>>;

/// A tenant: I/Os of one size at random places, half of them reads.
struct Tenant {
    group: GroupId,
    sectors: u32,
    depth: u32,
    /// The time from one I/O to the next; zero for no limit.
    every: u64,
    /// The time of the first one.
    begins: u64,
    blocks: u64,
    pushed: u64,
    flights: Flights,
    rng: Rng,
    counted: Range<u64>,
    latencies: Latencies,
}

impl Client for Tenant {
    fn next(&mut self, now: Instant, in_flight: u32) -> Want {
        if now.as_nanos() >= self.counted.end {
            return Want::Nothing;
        }
        if in_flight >= self.depth {
            return Want::Completion;
        }
        let due = Instant::from_nanos(self.begins + self.pushed * self.every);
        if now < due {
            return Want::At(due);
        }
        let op = if self.pushed.is_multiple_of(2) { Op::Read } else { Op::Write };
        self.pushed += 1;
        let sector = self.rng.below(self.blocks) * u64::from(self.sectors);
        let io = Io::new(op, sector, self.sectors, 0, 0);
        Want::Io(Io { group: self.group, owner: Owner(self.group.index().0.into()), ..io })
    }

    fn submitted(&mut self, now: Instant, io: &Io<Payload>) {
        self.flights.begin(now, io);
    }

    fn ended(&mut self, now: Instant, completion: &Completion<Payload>) {
        let latency = self.flights.end(now, completion);
        if self.counted.contains(&now.as_nanos()) {
            self.latencies.borrow_mut().push(latency.0);
        }
    }
}

/// A's I/Os a second, B's, and the average and the p99 of B's latencies in microseconds.
#[derive(Debug)]
struct Measured {
    a: f64,
    b: f64,
    average: u64,
    p99: u64,
}

fn run_neighbour(scheduler: &str, options: &str, floor: &str, bytes: u32) -> Measured {
    run_from(scheduler, options, floor, (bytes, 0), (TOLD, u64::MAX))
}

/// A run in which B, with I/Os of the given size, begins at the given time.
fn run_from(
    scheduler: &str,
    options: &str,
    floor: &str,
    (bytes, late): (u32, u64),
    (counted, region): (Range<u64>, u64),
) -> Measured {
    let device = devices::parse("cloud", &MachineShape { cpus: 2, nodes: 1 }).expect("a device");
    let (tree, groups) = pair([("a", ""), ("b", floor)]);
    let factory = registry::find(scheduler).expect("it is registered");
    let options = Options::parse(factory.attributes, options).expect("right");
    let config = Config { submitters: 2, groups: tree, depth: 256, ..device.config() };
    let config = Config { options, ..config.scheduler(factory) };
    let subject = Subject::new(config, Nanos::from_secs(1), None).expect("a possible queue");
    let latencies = [Latencies::default(), Latencies::default()];
    let loads = [(1 << 20, 128, 0), (bytes, 1, 5 * MS)];
    let plans = (0..2).map(|at| {
        let (bytes, depth, every) = loads[at];
        let sectors: u32 = bytes / 512;
        let client = Tenant {
            group: groups[at],
            sectors,
            depth,
            every,
            begins: if at == 1 { late } else { 0 },
            // In a region of a GiB, given in sectors, many of A's I/Os lie beside each other and could merge.
            blocks: region.min(device.shape.limits.capacity) / u64::from(sectors),
            pushed: 0,
            flights: Flights::default(),
            rng: Rng::new(at as u64),
            counted: counted.clone(),
            latencies: Rc::clone(&latencies[at]),
        };
        Plan { client: Box::new(client), habits: Habits::diligent(16), seed: at as u64 }
    });
    let mut world = World::new(&subject, Costs::TYPICAL, plans.collect());
    world.finish(u64::MAX / 2).expect("nothing is broken");
    subject.check_at_rest().expect("nothing is broken");
    let [a, mut b] = latencies.map(|all| all.take());
    b.sort_unstable();
    let seconds = (counted.end - counted.start) as f64 / 1e9;
    let result = Measured {
        a: a.len() as f64 / seconds,
        b: b.len() as f64 / seconds,
        average: b.iter().sum::<u64>() / b.len().max(1) as u64 / 1_000,
        p99: b.get(b.len() * 99 / 100).map_or(0, |ns| ns / 1_000),
    };
    println!("{scheduler}, '{floor}', {bytes} bytes: {result:?}");
    result
}

/// The capacity as measured; a bound that lets the disk hold two of A's I/Os; and a pace at which the disk has tokens
/// left.
const OPTIONS: &str = "rbps=173471131,rrandiops=3566,inflight_usec=6500,pace_percent=99";

#[test]
fn a_floor_holds_beside_a_neighbour_who_fills_the_disk() {
    for (bytes, a, p99) in
        [(4 << 10, 162.0, 7_500), (32 << 10, 146.0, 7_500), (256 << 10, 110.0, 9_110)]
    {
        let got = run_neighbour("mclock", OPTIONS, "reserve_iops=200", bytes);
        assert!(got.b >= 199.0 && got.p99 <= p99 && got.a >= a, "{bytes} bytes: {got:?}");
    }
}

/// The same without a number for the disk. A floor in I/Os is the device time of 4 KiB each: for large ones, bytes are
/// promised. A's I/Os that lie beside each other must not merge while B has none for a moment.
#[test]
fn a_floor_holds_without_a_number_for_the_disk() {
    for (floor, bytes, a, p99) in [
        ("reserve_iops=200", 4 << 10, 162.0, 7_500),
        ("reserve_iops=200", 32 << 10, 146.0, 7_500),
        ("reserve_bps=52428800", 256 << 10, 110.0, 9_110),
    ] {
        let got = run_from("mclock", "", floor, (bytes, 0), (FOUND, 2 << 20));
        assert!(got.b >= 199.0 && got.p99 <= p99 && got.a >= a, "{bytes} bytes: {got:?}");
    }
}

#[test]
fn without_a_floor_or_a_bound_the_disk_holds_a_queue_of_seconds() {
    for scheduler in ["none", "mq-deadline"] {
        let got = run_neighbour(scheduler, "", "", 4 << 10);
        assert!(
            got.a > 164.0 && got.average > 400_000 && got.b < 5.0 && got.p99 > 600_000,
            "{scheduler}: {got:?}"
        );
    }
    let unbounded = "rbps=173471131,rrandiops=3566";
    let got = run_neighbour("mclock", unbounded, "reserve_iops=200", 4 << 10);
    assert!(got.p99 > 100_000, "the order before the disk does not matter: {got:?}");
}

/// Alone, A is paced at more than the rate of the disk, so it has drained the tokens of the disk when B begins. B's
/// I/Os of 256 KiB then take more than the 5 ms that B has for each, A gets the time that B does not use, and the disk
/// stays overloaded. At a pace that the disk keeps up with, B gets its rate. Found with real clients, of which one
/// begins first.
#[test]
fn beside_a_pace_that_overruns_the_disk_a_tenant_of_large_ios_that_comes_late_stays_late() {
    for (bytes, pace, least) in [
        (4 << 10, 99, 199.0),
        (32 << 10, 99, 199.0),
        (256 << 10, 103, 120.0),
        (256 << 10, 99, 199.0),
    ] {
        let options = OPTIONS.replace("percent=99", &format!("percent={pace}"));
        let got =
            run_from("mclock", &options, "reserve_iops=200", (bytes, 500 * MS), (TOLD, u64::MAX));
        assert!(got.b >= least, "{bytes} bytes: {got:?}");
        assert_eq!(got.b < 150.0, least < 150.0, "{bytes} bytes at {pace}: {got:?}");
    }
}

/// A tree of two groups, by name and promise, and their numbers.
pub fn pair(groups: [(&str, &str); 2]) -> (GroupTree, [GroupId; 2]) {
    let spec = |(name, words): (&str, &str)| GroupSpec {
        name: name.into(),
        promise: Promise::default().set(words).expect("right"),
        ..GroupSpec::default()
    };
    let tree = GroupTree::of(groups.map(spec).into()).expect("a tree");
    let numbers = groups.map(|(name, _)| tree.find(name).expect("there"));
    (tree, numbers)
}

/// The I/Os in flight, by cookie, and the times at which they were submitted.
#[derive(Default)]
pub struct Flights(Vec<(u64, Instant)>);

impl Flights {
    pub fn begin(&mut self, now: Instant, io: &Io<Payload>) {
        self.0.push((io.cookie, now));
    }

    /// The latency of an I/O that has ended.
    pub fn end(&mut self, now: Instant, completion: &Completion<Payload>) -> Nanos {
        assert_eq!(completion.result, Ok(()), "nothing fails here");
        let at = self.0.iter().position(|(cookie, _)| *cookie == completion.cookie);
        let (_, begun) = self.0.swap_remove(at.expect("it is in flight"));
        now.since(begun)
    }
}

const TENANTS: usize = 64;
/// The tenant that comes and goes, and the one without a floor.
const GUEST: usize = 0;
const GREEDY: usize = TENANTS - 1;
const SECOND: u64 = 1_000_000_000;
/// The time in which lent device time changes hands.
const CHANGE: u64 = 10_000_000;

/// A device, the requests that it may hold, its bytes a second, the I/Os of a tenant in flight, and the seconds of a
/// run.
#[derive(Clone, Copy)]
struct Case {
    device: &'static str,
    device_depth: u32,
    bps: u64,
    iodepth: u32,
    seconds: u64,
    /// Percent of the capacity that are promised.
    promised: u64,
    /// Random reads a second, if a provider states them; otherwise they are measured.
    iops: Option<u64>,
}

const DISK: Case = Case {
    device: "disk",
    device_depth: 1,
    bps: 120_000_000,
    iodepth: 4,
    seconds: 60,
    promised: 75,
    iops: None,
};
const SATA: Case = Case {
    device: "flash,preset=sata",
    device_depth: 32,
    bps: 450_000_000,
    iodepth: 16,
    seconds: 3,
    promised: 85,
    iops: Some(60_000),
};
const CLOUD: Case = Case {
    device: "cloud",
    device_depth: 16,
    bps: 173_471_131,
    iodepth: 4,
    seconds: 20,
    promised: 85,
    iops: Some(3_566),
};

/// The sectors of a tenant's I/Os.
fn sectors(tenant: usize) -> u32 {
    [32, 8, 128, 16][tenant % 4]
}

/// The tenant's part of all floors: Zipf, in 2^-32.
fn part(tenant: usize) -> u64 {
    let weight = |tenant: usize| (1 << 32) / (tenant as u64 + 1);
    let all: u64 = (0..GREEDY).map(weight).sum();
    if tenant == GREEDY { 0 } else { ((u128::from(weight(tenant)) << 32) / u128::from(all)) as u64 }
}

/// When each I/O ended, by tenant.
type Ended = Rc<RefCell<Vec<Vec<u64>>>>;

/// Several tenants on one CPU.
struct Tenants {
    groups: Vec<GroupId>,
    /// Those that lack an I/O in flight, once for each.
    lacking: VecDeque<usize>,
    /// Its tenants have nothing to do in every other second.
    comes_and_goes: bool,
    /// Tenants by the cookies of their I/Os.
    in_flight: BTreeMap<u64, usize>,
    capacity: u64,
    until: u64,
    rng: Rng,
    ended: Ended,
}

impl Client for Tenants {
    fn next(&mut self, now: Instant, in_flight: u32) -> Want {
        let now = now.as_nanos();
        if now >= self.until {
            return Want::Nothing;
        }
        if self.comes_and_goes && now / SECOND % 2 == 1 {
            let back = Instant::from_nanos((now / SECOND + 1) * SECOND);
            return if in_flight > 0 { Want::Completion } else { Want::At(back) };
        }
        let Some(tenant) = self.lacking.pop_front() else { return Want::Completion };
        let length = sectors(tenant);
        let blocks = self.capacity / u64::from(length);
        let sector = self.rng.below(blocks) * u64::from(length);
        let io = Io::new(Op::Read, sector, length, 0, 0);
        Want::Io(Io { group: self.groups[tenant], owner: Owner(tenant as u32), ..io })
    }

    fn submitted(&mut self, _: Instant, io: &Io<Payload>) {
        self.in_flight.insert(io.cookie, io.owner.0 as usize);
    }

    fn ended(&mut self, now: Instant, completion: &Completion<Payload>) {
        assert_eq!(completion.result, Ok(()), "nothing fails here");
        let tenant = self.in_flight.remove(&completion.cookie).expect("it was submitted");
        self.lacking.push_back(tenant);
        self.ended.borrow_mut()[tenant].push(now.as_nanos());
    }
}

/// The capacity of a device, as given to mclock.
#[derive(Clone, Copy, Debug)]
struct Capacity {
    iops: u64,
    bps: u64,
}

impl Capacity {
    /// The device time of a random read, in nanoseconds.
    fn cost(self, sectors: u32) -> f64 {
        let sector = 512e9 / self.bps as f64;
        1e9 / self.iops as f64 + (f64::from(sectors) - 8.0) * sector
    }

    /// The capacity at which these I/Os a second fill the device.
    fn of(bps: u64, rates: &[f64]) -> Self {
        let sector = 512.0 / bps as f64;
        let more =
            (0..).zip(rates).map(|(at, rate)| rate * (f64::from(sectors(at)) - 8.0) * sector);
        let left = 1.0 - more.sum::<f64>();
        Self { iops: (rates.iter().sum::<f64>() / left) as u64, bps }
    }
}

fn tree(weight: impl Fn(usize) -> u32, floors: impl Fn(usize) -> u64) -> GroupTree {
    let spec = |at: usize| GroupSpec {
        name: format!("t{at}"),
        weight: weight(at),
        promise: Promise::default().set(&format!("reserve_bps={}", floors(at))).expect("right"),
        ..GroupSpec::default()
    };
    GroupTree::of((0..TENANTS).map(spec).collect()).expect("a tree")
}

fn subject(case: Case, capacity: Capacity, groups: GroupTree) -> Result<Subject, ConfigError> {
    let device = devices::parse(case.device, &MachineShape { cpus: 2, nodes: 1 }).expect("right");
    let mclock = registry::find("mclock").expect("it is registered");
    let Capacity { iops, bps } = capacity;
    let options = format!("rrandiops={iops},rbps={bps},fifo_batch=1");
    let options = Options::parse(mclock.attributes, &options).expect("right");
    let config = Config {
        submitters: 2,
        depth: TENANTS as u32 * case.iodepth,
        // No tenant waits for a slot, so that all have requests in the scheduler.
        nr_requests: Some(TENANTS as u32 * case.iodepth),
        device_depth: DeviceDepth::AtMost(case.device_depth),
        groups,
        ..device.config()
    };
    Subject::new(Config { options, ..config.scheduler(mclock) }, Nanos::from_secs(1), None)
}

/// The times at which the I/Os of each tenant ended.
fn run(case: Case, capacity: Capacity, groups: GroupTree, comes_and_goes: bool) -> Vec<Vec<u64>> {
    let sectors = devices::parse(case.device, &MachineShape { cpus: 2, nodes: 1 });
    let sectors = sectors.expect("right").shape.limits.capacity;
    let names = (0..TENANTS).map(|at| groups.find(&format!("t{at}")).expect("there"));
    let names = Vec::from_iter(names);
    let ended: Ended = Rc::new(RefCell::new(vec![Vec::new(); TENANTS]));
    let tenants = |range: Range<usize>, comes_and_goes| Tenants {
        groups: names.clone(),
        lacking: range.flat_map(|at| (0..case.iodepth).map(move |_| at)).collect(),
        comes_and_goes,
        in_flight: BTreeMap::new(),
        capacity: sectors,
        until: case.seconds * SECOND,
        rng: Rng::new(7),
        ended: Rc::clone(&ended),
    };
    let clients = [tenants(GUEST..1, comes_and_goes), tenants(1..TENANTS, false)];
    let subject = subject(case, capacity, groups).expect("a possible queue");
    let plans = (0..).zip(clients).map(|(seed, client)| Plan {
        client: Box::new(client),
        habits: Habits::diligent(16),
        seed,
    });
    let mut world = World::new(&subject, Costs::TYPICAL, plans.collect());
    world.finish(u64::MAX / 2).expect("nothing is broken");
    subject.check_at_rest().expect("nothing is broken");
    ended.take()
}

fn count(ended: &[u64], span: Range<u64>) -> f64 {
    ended.iter().filter(|at| span.contains(at)).count() as f64
}

/// Floors, and weights despite which they have to be kept.
fn promising(capacity: Capacity, percent: u64) -> GroupTree {
    tree(|at| if at == GREEDY { 1_000 } else { 1 }, |at| floor(capacity, at, percent))
}

/// The bytes a second of each floor.
fn floor(capacity: Capacity, tenant: usize, percent: u64) -> u64 {
    ((u128::from(capacity.bps) * u128::from(part(tenant)) * u128::from(percent) / 100) >> 32) as u64
}

fn measured(case: Case) -> Capacity {
    if let Some(iops) = case.iops {
        return Capacity { iops, bps: case.bps };
    }
    let guess = Capacity { iops: 1_000, bps: case.bps };
    let as_promised = |at: usize| 1 + ((part(at) * 999) >> 32) as u32;
    let ended = run(case, guess, tree(as_promised, |_| 0), false);
    let span = SECOND..case.seconds * SECOND;
    let seconds = (case.seconds - 1) as f64;
    let rates = ended.iter().map(|times| count(times, span.clone()) / seconds);
    Capacity::of(case.bps, &Vec::from_iter(rates))
}

/// The part of the device that a tenant had in a span, and its I/Os.
fn share(capacity: Capacity, tenant: usize, ended: &[u64], span: Range<u64>) -> f64 {
    let nanos = (span.end - span.start) as f64;
    count(ended, span) * capacity.cost(sectors(tenant)) / nanos
}

fn floors_are_kept(case: Case) {
    let capacity = measured(case);
    println!("{}: {capacity:?}", case.device);
    let refused = subject(case, capacity, promising(capacity, 95)).err();
    assert!(matches!(refused, Some(ConfigError::Floors(_))), "{refused:?}");
    let ended = run(case, capacity, promising(capacity, case.promised), true);
    let share = |at: usize, span| share(capacity, at, &ended[at], span);
    let promised = |at: usize| floor(capacity, at, case.promised) as f64 / capacity.bps as f64;
    let (mut worst, mut used) = (f64::MAX, [f64::MAX; 2]);
    for second in 1..case.seconds {
        let from = second * SECOND;
        let all = (0..TENANTS).map(|at| share(at, from + CHANGE..from + SECOND)).sum::<f64>();
        let used = &mut used[usize::from(second % 2 == 1)];
        *used = used.min(all);
        for at in 0..GREEDY {
            let comes = at == GUEST;
            if comes && second % 2 == 1 {
                continue;
            }
            let from = if comes { from + CHANGE } else { from };
            let span = from..(second + 1) * SECOND;
            // Any floor is only exact to one I/O at either end of the second: a request waits for the one in the
            // device.
            let one = 2.0 * capacity.cost(sectors(at)) / (span.end - span.start) as f64;
            let got = (share(at, span) + one) / promised(at);
            worst = worst.min(got);
            assert!(got >= 0.99, "{}: tenant {at} in second {second}: {got:.3}", case.device);
        }
    }
    for at in 1..GREEDY {
        let span = SECOND..case.seconds * SECOND;
        let one = capacity.cost(sectors(at)) / (span.end - span.start) as f64;
        let got = (share(at, span) + one) / promised(at);
        assert!(got >= 0.99, "{}: tenant {at} in all: {got:.3}", case.device);
    }
    let [with, without] = used;
    println!("{}: used of the device with the largest and without: {used:.3?}", case.device);
    assert!(without >= 0.97 * with, "{}: what is left is not lent: {used:?}", case.device);
    println!("{}: the least part of a floor in a second, and two I/Os: {worst:.4}", case.device);
}

#[test]
fn floors_of_64_tenants_are_kept_on_a_cloud_disk() {
    floors_are_kept(CLOUD);
}

#[test]
fn floors_of_64_tenants_are_kept_on_a_disk() {
    floors_are_kept(DISK);
}

#[test]
#[ignore = "long; cargo xtask soak runs it"]
fn floors_of_64_tenants_are_kept_on_flash() {
    floors_are_kept(SATA);
}
