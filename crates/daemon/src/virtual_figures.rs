//! Tests the figures shown to operators with runs in virtual time. Every value is derived from the load by hand, or
//! from the client's own list of latencies.

use crate::ctl::kernel::{self, Choice};
use crate::ctl::stat;
use crate::top::{columns, rates};
use blkmq_core::{Instant, Nanos, Op, Rng};
use blkmq_device::{MachineShape, registry as devices};
use blkmq_engine::{Config, Io, Queue, StatsMode, Submitter};
use blkmq_sched::registry;
use blkmq_server::control::{DeviceStat, Stat};
use serde_json::Value;

const MS: u64 = 1_000_000;

/// A queue with statistics in virtual time, and its only client.
struct World {
    scheduler: &'static str,
    queue: Queue<()>,
    client: Submitter<()>,
    now: Instant,
    /// The operation and the time of submission, by cookie.
    pushed: Vec<(Op, Instant)>,
    /// By operation (reads, writes): the nanoseconds from the submission of each I/O until the client has reaped it.
    latencies: [Vec<u64>; 2],
}

impl World {
    fn new(device: &str, scheduler: &'static str) -> Self {
        let device = devices::parse(device, &MachineShape { cpus: 1, nodes: 1 }).expect("it is");
        let stats = StatsMode { times: true, ..StatsMode::default() };
        let config: Config<()> = Config { stats, submitters: 1, depth: 64, ..device.config() };
        let policy = registry::find(scheduler).expect("it is registered");
        let queue = Queue::new(config.scheduler(policy)).expect("a possible queue");
        let client = queue.submitter().expect("one is free");
        let (now, pushed, latencies) = (Instant::ZERO, Vec::new(), [Vec::new(), Vec::new()]);
        Self { scheduler, queue, client, now, pushed, latencies }
    }

    /// Adds an I/O of `kib` KiB to the plug.
    fn push(&mut self, op: Op, sector: u64, kib: u32) {
        let cookie = self.pushed.len() as u64;
        self.client.push(self.now, Io::new(op, sector, kib * 2, cookie, ())).expect("credit");
        self.pushed.push((op, self.now));
    }

    fn reap(&mut self) {
        let Self { client, now, pushed, latencies, .. } = self;
        client.poll(*now);
        client.reap(u32::MAX, |done| {
            assert!(done.result.is_ok(), "{done:?}");
            let (op, since) = pushed[done.cookie as usize];
            let took = now.since(since).0;
            match op {
                Op::Read => latencies[0].push(took),
                Op::Write => latencies[1].push(took),
                _ => {}
            }
        });
    }

    /// Advances from one event of the device to the next, up to `end`.
    fn until(&mut self, end: Instant) {
        self.reap();
        while let Some(next) = self.client.next_deadline().filter(|next| *next <= end) {
            self.now = next.max(self.now);
            self.reap();
        }
        self.now = end;
    }

    fn stat(&self) -> Stat {
        let device = DeviceStat::of("virtual", self.scheduler, &self.queue.times());
        Stat { at: self.now.as_nanos(), exports: Vec::new(), devices: vec![device] }
    }
}

/// Computes the columns of `iostat -x` by the formulas of sysstat from two lines of `/sys/block/X/stat`, `ms`
/// milliseconds apart.
fn iostat(before: &[u64; 17], now: &[u64; 17], ms: f64) -> Vec<(String, f64)> {
    // Fields are numbered from 1.
    let grown = |field: usize| (now[field - 1] - before[field - 1]) as f64;
    let over = |part: f64, all: f64| if all > 0.0 { part / all } else { 0.0 };
    let mut all = Vec::new();
    for (letter, ios) in [("r", 1), ("w", 5), ("d", 12)] {
        let [n, merged, sectors, ticks] = [ios, ios + 1, ios + 2, ios + 3].map(grown);
        all.extend([
            (format!("{letter}/s"), n / ms * 1000.0),
            (format!("{letter}kB/s"), sectors / 2.0 / ms * 1000.0),
            (format!("{letter}rqm/s"), merged / ms * 1000.0),
            (format!("%{letter}rqm"), 100.0 * over(merged, merged + n)),
            (format!("{letter}_await"), over(ticks, n)),
            (format!("{letter}areq-sz"), over(sectors / 2.0, n)),
        ]);
    }
    all.push(("aqu-sz".into(), grown(11) / ms));
    all.push(("%util".into(), grown(10) / ms * 100.0));
    all
}

/// Runs ten seconds of a load with a period of 10 ms, on a device that serves two requests at a time, 100 us each:
///
/// - four neighbouring writes of 4 KiB in a plug, which become one request;
/// - three reads of 8 KiB at the same time, one of which waits for 100 us;
/// - a discard of 64 KiB.
fn periodic(scheduler: &'static str) -> (Stat, Stat) {
    let device = "null,irqmode=2,completion_nsec=100000,hw_queue_depth=2,submit_queues=1,discard=1";
    let mut world = World::new(device, scheduler);
    // Counts from before the interval must not affect any rate.
    world.push(Op::Read, 4096, 4);
    world.client.flush(world.now);
    world.until(Instant::from_nanos(3 * MS));
    let (before, start) = (world.stat(), world.now);
    for period in 0..1000 {
        let at = |ms: u64| start + Nanos(period * 10 * MS + ms * MS);
        (0..4).for_each(|n| world.push(Op::Write, 8192 + n * 8, 4));
        world.client.flush(world.now);
        world.until(at(1));
        for n in 0..3 {
            world.push(Op::Read, n * 2048, 8);
            world.client.flush(world.now);
        }
        world.until(at(2));
        world.push(Op::Discard, 65_536, 64);
        world.client.flush(world.now);
        world.until(at(10));
    }
    (before, world.stat())
}

/// The expected values of that load, derived by hand.
const PERIODIC: [(&str, f64); 20] = [
    ("r/s", 300.0),
    ("rkB/s", 2400.0),
    ("rrqm/s", 0.0),
    ("%rrqm", 0.0),
    ("r_await", 0.4 / 3.0),
    ("rareq-sz", 8.0),
    ("w/s", 100.0),
    ("wkB/s", 1600.0),
    ("wrqm/s", 300.0),
    ("%wrqm", 75.0),
    ("w_await", 0.1),
    ("wareq-sz", 16.0),
    ("d/s", 100.0),
    ("dkB/s", 6400.0),
    ("drqm/s", 0.0),
    ("%drqm", 0.0),
    ("d_await", 0.1),
    ("dareq-sz", 64.0),
    // 300 reads of 0.133 ms, 100 writes and 100 discards of 0.1 ms in a second.
    ("aqu-sz", 0.06),
    // 0.1, 0.2 and 0.1 ms of 10.
    ("%util", 4.0),
];

fn is_near(value: f64, expected: f64) -> bool {
    (value - expected).abs() <= expected.abs() * 1e-9
}

#[test]
fn iostats_formulas_on_the_lines_of_a_known_load_give_its_rates() {
    for scheduler in ["none", "mq-deadline", "bfq"] {
        let (before, now) = periodic(scheduler);
        let line = |stat: &Stat| {
            let text = kernel::stat(&stat.devices[0]);
            let fields: Vec<u64> = text.split_whitespace().map(|it| it.parse().unwrap()).collect();
            <[u64; 17]>::try_from(fields).expect("17 fields")
        };
        // The first read took 0.1 ms, which the earlier line rounds down: 0.1 ms of 400 + 100 + 100.
        let found = iostat(&line(&before), &line(&now), 10_000.0);
        for ((name, value), (column, expected)) in found.iter().zip(PERIODIC) {
            assert_eq!(name, column);
            let is_time = name.contains("await") || name.contains("aqu") || name.contains("util");
            let (near, rough) = (is_near(*value, expected), (value / expected - 1.0).abs() < 0.003);
            assert!(near || is_time && rough, "{scheduler}: {name} is {value}, not {expected}");
        }
    }
}

#[test]
fn the_columns_of_stat_and_top_are_exact() {
    for scheduler in ["none", "mq-deadline", "bfq"] {
        let (before, now) = periodic(scheduler);
        let expected = |name: &str| PERIODIC.iter().find(|it| it.0 == name).expect(name).1;
        let row = columns::json(&rates::between(&before, &now)[0]);
        for (name, expected) in PERIODIC {
            let value = row[name].as_f64().unwrap_or_else(|| panic!("{name} in {row}"));
            assert!(is_near(value, expected), "{scheduler}: {name} is {value}, not {expected}");
        }
        let row = serde_json::to_value(&stat::between(&before, &now).rows[0]).expect("JSON");
        let keys = ["ios", "kib", "merged", "await_ms"];
        for (key, column) in keys.iter().zip(["?/s", "?kB/s", "%?rqm", "?_await"]) {
            for (at, letter) in ["r", "w", "d"].iter().enumerate() {
                let name = column.replace('?', letter);
                let value = row[key][at].as_f64().expect("a number");
                assert!(is_near(value, expected(&name)), "{scheduler}: {name} is {value}");
            }
        }
        assert!(is_near(row["queue"].as_f64().expect("a number"), expected("aqu-sz")));
        // A third of the reads waited for 100 us.
        assert_eq!(row["wait_ms"], Value::from(vec![0.1 / 3.0, 0.0, 0.0]), "{scheduler}");
    }
}

/// The longest time in the same bucket as `ns`: buckets keep six bits.
fn end_of_bucket(ns: u64) -> u64 {
    let dropped = (u64::BITS - ns.leading_zeros()).saturating_sub(6);
    ns | ((1 << dropped) - 1)
}

#[test]
fn histograms_are_those_of_the_clients_own_latencies() {
    for scheduler in ["none", "mq-deadline", "kyber", "bfq"] {
        let mut world = World::new("flash,size=64", scheduler);
        let mut rng = Rng::new(7);
        for _ in 0..3000 {
            let op = if rng.below(3) == 0 { Op::Write } else { Op::Read };
            // Sectors with gaps, so that nothing merges: each request has only the time of its oldest I/O.
            world.push(op, rng.below(4096) * 16, 4);
            // Bursts of up to eight I/Os, with pauses between them.
            if rng.below(4) == 0 || world.client.in_flight() > 40 {
                world.client.flush(world.now);
                world.until(world.now + Nanos(rng.below(400_000)));
            }
        }
        world.client.flush(world.now);
        world.until(world.now + Nanos::from_secs(1));
        let now = world.stat();
        let stages = &now.devices[0].stages;
        assert_eq!(world.client.in_flight(), 0);
        let mut slots = Vec::new();
        for (op, latencies) in world.latencies.iter().enumerate() {
            assert_eq!(stages.total[op].count, latencies.len() as u64);
            let mut expected = std::collections::BTreeMap::new();
            for ns in latencies {
                *expected.entry(end_of_bucket(*ns)).or_insert(0) += 1;
                let slot = (end_of_bucket(*ns) / 1000).max(1).ilog2() as usize;
                slots.resize(slots.len().max(slot + 1), 0);
                slots[slot] += 1;
            }
            let expected: Vec<(u64, u64)> = expected.into_iter().collect();
            assert_eq!(stages.total[op].buckets, expected, "{scheduler}: operation {op}");
        }
        assert!(slots.iter().filter(|count| **count > 0).count() > 3, "{scheduler}: {slots:?}");
        let choice = Choice { queued: true, by_op: false };
        let shown = kernel::histograms("virtual", &Default::default(), stages, choice);
        assert_eq!(shown[0].slots, slots, "{scheduler}");
    }
}
