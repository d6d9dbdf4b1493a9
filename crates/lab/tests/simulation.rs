//! Jobs in virtual time: the same seed gives the same run, and the times follow from the device.

use blkmq_core::{GroupId, Instant, Nanos, Owner, SECTOR_SIZE};
use blkmq_device::{Device, MachineShape, registry as devices};
use blkmq_engine::{Access, Config, PumpMode};
use blkmq_lab::simulation::{Done, Program, Settings, Simulation};
use blkmq_lab::workload::{
    Amount, Depth, Generator, Job, NoBuffers, PerDirection, Rw, Stream, ThinkTime, Ties,
};
use blkmq_lab::{Caught, Habits, Permille};
use blkmq_sched::registry;

const SECOND: u64 = 1_000_000_000;

fn device(text: &str) -> Device {
    devices::parse(text, &MachineShape { cpus: 4, nodes: 1 }).expect("a virtual device")
}

fn config(text: &str, scheduler: &str, jobs: &[Job]) -> Config<()> {
    let factory = registry::find(scheduler).expect("it is registered");
    let submitters = jobs.iter().map(|job| job.numjobs as u16).sum();
    let depth = jobs.iter().map(|job| job.depth.iodepth).max().expect("a job");
    Config { submitters, depth, ..device(text).config() }.scheduler(factory)
}

fn programs<'a>(text: &str, job: &'a Job) -> Vec<Program<'a, NoBuffers>> {
    let bytes = device(text).shape.limits.capacity * u64::from(SECTOR_SIZE);
    let program = |thread| {
        let generator = Generator::new(job, thread, bytes).expect("a job that fits");
        Program {
            job,
            stream: Stream {
                generator,
                verifier: None,
                owner: Owner(0),
                group: GroupId::ROOT,
                ties: Ties::default(),
            },
            buffers: NoBuffers,
            course: true,
            journal: None,
            pid: thread,
        }
    };
    (0..job.numjobs).map(program).collect()
}

/// Runs all threads of `job` on a device; returns the results, and the time at which the last thread ended.
fn run(text: &str, scheduler: &str, job: &Job, settings: Settings) -> (Vec<Done>, Instant) {
    let config = config(text, scheduler, std::slice::from_ref(job));
    let mut simulation = Simulation::new(config, settings).expect("a possible queue");
    let done = simulation.run(programs(text, job)).expect("everything ends");
    let stats = simulation.stats();
    assert_eq!(stats.submitted, stats.completed);
    (done, simulation.now())
}

const TIMER: &str = "null,irqmode=2,completion_nsec=100000,hw_queue_depth=4,submit_queues=1";

fn randread(numjobs: u32, iodepth: u32) -> Job {
    let depth = Depth { iodepth, low: iodepth, ..Depth::default() };
    let runtime = Some(Nanos::from_millis(20));
    Job { rw: Rw::RandRead, numjobs, depth, runtime, time_based: true, ..Job::default() }
}

/// The text by which two runs are compared.
fn print(done: &[Done]) -> String {
    done.iter().map(|done| format!("{done:?}\n")).collect()
}

#[test]
fn one_seed_is_one_run_and_another_one_is_another() {
    let caught = Caught { chance: Permille(100), steps: 4, gap: Nanos(5_000) };
    let settings = |seed| Settings {
        habits: Habits {
            caught,
            absent: Permille(10),
            absence: Nanos(50_000),
            ..Habits::diligent(1)
        },
        ..Settings::new(seed)
    };
    for scheduler in ["none", "mq-deadline"] {
        let once = |seed| print(&run(TIMER, scheduler, &randread(3, 8), settings(seed)).0);
        assert_eq!(once(7), once(7));
        assert_ne!(once(7), once(8));
    }
}

#[test]
fn a_device_of_known_speed_is_as_fast_as_that() {
    // Four at a time, 100 us each: 40 000 a second, independent of the submitters.
    for (numjobs, iodepth, pump) in
        [(1, 4, PumpMode::Inline), (1, 32, PumpMode::Inline), (4, 8, PumpMode::Thread)]
    {
        let job = randread(numjobs, iodepth);
        let config = Config { pump, ..config(TIMER, "mq-deadline", std::slice::from_ref(&job)) };
        let mut simulation = Simulation::new(config, Settings::new(1)).expect("a possible queue");
        let done = simulation.run(programs(TIMER, &job)).expect("everything ends");
        let ios: u64 = done.iter().map(|done| done.tally.ios()).sum();
        // Between a completion and the next submission a CPU needs a moment, which a shallow queue shows; and the run
        // waits for the I/Os in flight at the end.
        assert!(
            (720..=800 + u64::from(numjobs * iodepth)).contains(&ios),
            "{ios} I/Os in 20 ms with {numjobs} x {iodepth}"
        );
        let lat = done[0].tally.counts[0].times.lat.as_ref().expect("latencies are taken");
        let least = 100_000.max(u64::from(numjobs * iodepth / 4) * 95_000);
        assert!(lat.quantile(1, 2) >= least, "{} ns", lat.quantile(1, 2));
        let course = done[0].tally.course.as_ref().expect("it was asked for");
        assert_eq!(course.bins().iter().map(|bin| bin.count).sum::<u64>(), done[0].tally.ios());
    }
}

#[test]
fn rates_pauses_delays_and_ramps_are_those_of_the_job() {
    let base = || Job { time_based: false, runtime: None, ..randread(1, 4) };
    let paced = Job { rate_iops: PerDirection::all(Some(1_000)), number_ios: Some(500), ..base() };
    let ended = |job: &Job| run(TIMER, "none", job, Settings::new(3)).1.as_nanos();
    assert!((SECOND / 2 - 3_000_000..SECOND / 2 + 3_000_000).contains(&ended(&paced)));
    let thinktime = Some(ThinkTime { pause: Nanos::from_millis(1), blocks: 10 });
    let thoughtful = Job { thinktime, number_ios: Some(100), ..base() };
    let nine_pauses = ended(&thoughtful) - 9_000_000;
    assert!((1_000_000..5_000_000).contains(&nine_pauses), "{nine_pauses}");
    let late = Job {
        startdelay: Nanos::from_millis(7),
        ramp_time: Nanos::from_millis(5),
        ..randread(1, 4)
    };
    let (done, end) = run(TIMER, "none", &late, Settings::new(3));
    assert_eq!(end.as_nanos() / 1_000_000, 32);
    assert_eq!(done[0].tally.started.as_nanos() / 1_000_000, 12);
    assert!(done[0].tally.ios() < 810);
}

/// I/Os of the ramp were counted as well: of 100 at a rate of 100 a second, 50 were left after half a second.
#[test]
fn the_number_of_ios_is_that_behind_the_ramp() {
    let job = |number_ios, loops| Job {
        time_based: false,
        runtime: None,
        rate_iops: PerDirection::all(Some(1_000)),
        ramp_time: Nanos::from_millis(50),
        number_ios: Some(number_ios),
        loops,
        ..randread(1, 1)
    };
    for (number_ios, loops, measured) in [(100, 1, 100), (60, 2, 120)] {
        let (done, _) = run(TIMER, "none", &job(number_ios, loops), Settings::new(3));
        // One may be in flight when the ramp ends.
        assert!((measured..=measured + 1).contains(&done[0].tally.ios()), "{number_ios}");
    }
}

#[test]
fn phases_follow_each_other() {
    let [first, second] = [64, 16].map(|blocks| Job {
        rw: Rw::Write,
        size: Some(Amount::Bytes(blocks * 4096)),
        ..Job::default()
    });
    let jobs = [first, second];
    let mut simulation =
        Simulation::new(config(TIMER, "mq-deadline", &jobs), Settings::new(0)).expect("possible");
    for job in &jobs {
        let before = simulation.now();
        let done = simulation.run(programs(TIMER, job)).expect("it ends");
        assert!(done[0].tally.started >= before);
        assert_eq!(done[0].tally.ended, done[0].tally.ended.max(before + Nanos(1_600_000)));
    }
    assert_eq!(simulation.stats().submitted, 80);
}

#[test]
fn locks_can_be_simulated_too() {
    for access in [Access::Spin, Access::Mutex, Access::Serialised] {
        let job = randread(4, 8);
        let config = Config { access, ..config(TIMER, "mq-deadline", std::slice::from_ref(&job)) };
        let mut simulation = Simulation::new(config, Settings::new(1)).expect("a possible queue");
        let done = simulation.run(programs(TIMER, &job)).expect("everything ends");
        assert!(done.iter().all(|done| done.tally.ios() > 150));
    }
}
