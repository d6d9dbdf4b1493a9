//! The cost of combining on a disk: 64 sequential writers, against one lock without contention.
//!
//! The device is the bottleneck here, and some orders are faster than others: a microsecond's difference between two
//! arrivals changes rates by some percent either way, from seed to seed. So rates are summed over several seeds.

use blkmq_core::{GroupId, Nanos, Owner, SECTOR_SIZE};
use blkmq_device::{Device, MachineShape, registry as devices};
use blkmq_engine::{Access, Config, QueueStats};
use blkmq_lab::simulation::{Program, Settings, Simulation};
use blkmq_lab::workload::{Amount, Depth, Generator, Job, Latencies, NoBuffers, Rw, Stream, Ties};
use blkmq_lab::{Caught, Costs, Habits, Permille};
use blkmq_sched::registry;

const WRITERS: u16 = 64;

fn device() -> Device {
    devices::parse("disk", &MachineShape { cpus: WRITERS, nodes: 1 }).expect("a disk")
}

/// Four kilobytes at a time, each thread in its own gigabyte.
fn job(iodepth: u32) -> Job {
    Job {
        rw: Rw::Write,
        direct: true,
        size: Some(Amount::Bytes(1 << 30)),
        offset_increment: Amount::Bytes(1 << 30),
        numjobs: WRITERS.into(),
        depth: Depth { iodepth, low: iodepth, ..Depth::default() },
        runtime: Some(Nanos::from_secs(60)),
        time_based: true,
        latencies: Latencies::NONE,
        ..Job::default()
    }
}

fn run(iodepth: u32, access: Access, habits: Habits, seed: u64) -> QueueStats {
    let job = job(iodepth);
    let factory = registry::find("mq-deadline").expect("it is registered");
    let config = Config { submitters: WRITERS, depth: iodepth, access, ..device().config() };
    // A waiting thread sleeps immediately: staying awake first would only slow down the simulation.
    let costs = Costs { spin: Nanos::ZERO, ..Costs::TYPICAL };
    let settings = Settings { habits, costs, ..Settings::new(seed) };
    let mut simulation =
        Simulation::new(config.scheduler(factory), settings).expect("a possible queue");
    let bytes = device().shape.limits.capacity * u64::from(SECTOR_SIZE);
    let programs = (0..job.numjobs).map(|thread| {
        let generator = Generator::new(&job, thread, bytes).expect("a job that fits");
        let (owner, group) = (Owner(thread + 1), GroupId::ROOT);
        let stream = Stream { generator, verifier: None, owner, group, ties: Ties::default() };
        Program { job: &job, stream, buffers: NoBuffers, course: false, journal: None, pid: thread }
    });
    _ = simulation.run(programs).expect("everything ends");
    simulation.stats()
}

/// I/Os, and merges among them, of several seeds together.
#[derive(Debug)]
struct Sum {
    ios: u64,
    merges: u64,
}

impl Sum {
    fn of(iodepth: u32, access: Access, habits: Habits) -> Self {
        let zero = Self { ios: 0, merges: 0 };
        (1..=seeds(iodepth)).map(|seed| run(iodepth, access, habits, seed)).fold(
            zero,
            |sum, stats| Self {
                ios: sum.ios + stats.completed,
                merges: sum.merges + stats.merges.total(),
            },
        )
    }

    /// Merges in a million I/Os.
    fn ratio(&self) -> u64 {
        self.merges * 1_000_000 / self.ios
    }
}

fn caught(permille: u16, steps: u32, gap: Nanos) -> Habits {
    Habits { caught: Caught { chance: Permille(permille), steps, gap }, ..Habits::diligent(1) }
}

/// With one write at a time chance has no effect, with many it has little.
fn seeds(iodepth: u32) -> u64 {
    if iodepth == 8 { 4 } else { 1 }
}

/// As many merges, within 1 %, and at least as many I/Os, within 2 %, both if no CPU is ever caught in mid-run and if
/// half of all turns are. More I/Os are no fault.
fn is_as_good_as_a_lock(iodepth: u32) {
    let lock = Sum::of(iodepth, Access::Spin, Habits::diligent(1));
    for habits in [Habits::diligent(1), caught(500, 4, Nanos(10_000))] {
        let ours = Sum::of(iodepth, Access::Combining, habits);
        let line = format!("iodepth {iodepth}, {:?}: {ours:?}, lock {lock:?}", habits.caught);
        println!("{line}");
        assert!(ours.ratio().abs_diff(lock.ratio()) * 100 <= lock.ratio(), "merges: {line}");
        assert!(ours.ios * 100 >= lock.ios * 98, "slower: {line}");
    }
}

/// A single write has no other to merge with.
#[test]
#[ignore = "long; cargo xtask soak runs it"]
fn one_write_at_a_time() {
    is_as_good_as_a_lock(1);
}

#[test]
#[ignore = "long; cargo xtask soak runs it"]
fn eight_writes_at_a_time() {
    is_as_good_as_a_lock(8);
}

/// The proposals for Linux park requests where nothing merges with them; on a disk each costs a seek or a rotation.
#[test]
fn parked_requests_collapse_where_ours_do_not() {
    const IODEPTH: u32 = 32;
    let lock = Sum::of(IODEPTH, Access::Spin, Habits::diligent(1));
    let of = |access| Sum::of(IODEPTH, access, caught(500, 4, Nanos(10_000)));
    let (parked, ours) = (of(Access::Serialised), of(Access::Combining));
    let line = format!("percpu-lists {parked:?}, ours {ours:?}, lock {lock:?}");
    println!("{line}");
    assert!(parked.ratio() * 3 < lock.ratio() * 2 && parked.ios * 3 < lock.ios * 2, "{line}");
    assert!(ours.ratio().abs_diff(lock.ratio()) * 100 <= lock.ratio(), "merges: {line}");
    assert!(ours.ios * 100 >= lock.ios * 98, "slower: {line}");
}
