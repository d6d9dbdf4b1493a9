//! Jobs in virtual time: the same seed gives the same run, and the times follow from the device; and a recorded
//! elevator log is replayed answer by answer, a difference is found, and nonsense is refused.

use blkmq_core::{GroupId, Instant, Nanos, Owner, SECTOR_SIZE};
use blkmq_device::{Device, MachineShape, registry as devices};
use blkmq_engine::{Access, Config, Plan, PumpMode, attributes};
use blkmq_lab::elevator_log::{
    Call, ElevatorLog, Entry, Instance, Log, LogError, ReplayError, Workload, replay, rerun,
    summary,
};
use blkmq_lab::observe::Observation;
use blkmq_lab::simulation::{Done, Program, Settings, Simulation};
use blkmq_lab::workload::{
    Amount, Depth, Generator, Job, NoBuffers, PerDirection, Rw, Stream, ThinkTime, Ties,
};
use blkmq_lab::{Caught, Habits, Permille};
use blkmq_sched::registry;
use proptest::prelude::*;

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

const DEVICE: &str =
    "null,irqmode=2,completion_nsec=50000,hw_queue_depth=4,submit_queues=2,requeue=3:20:0:80";

fn job() -> Job {
    Job {
        rw: Rw::ReadWrite,
        numjobs: 4,
        size: Some(Amount::Bytes(1 << 20)),
        offset_increment: Amount::Bytes(1 << 20),
        depth: Depth { iodepth: 16, low: 16, batch_submit: 4, ..Depth::default() },
        ..Job::default()
    }
}

/// The log of a run with merging and requeues, during which attributes are changed and the queue is frozen.
fn recorded(scheduler: &str) -> Vec<u8> {
    let job = job();
    let factory = registry::find(scheduler).expect("it is registered");
    let config: Config<()> = Config { submitters: 4, depth: 16, ..device(DEVICE).config() };
    let log = ElevatorLog::new(1 << 24);
    let observation = Observation { log: Some(log.clone()), ..Observation::default() };
    let config = config.scheduler(factory);
    let simulation = Simulation::observed(config, Settings::new(5), &observation);
    let mut simulation = simulation.expect("a possible queue");
    if !factory.attributes.is_empty() {
        let mut changes =
            factory.attributes.iter().take(3).map(|attribute| {
                (attribute.name, (attribute.min + 1).min(attribute.max).to_string())
            });
        let (mut freeze, mut freezes) = (None, 0..21);
        simulation.operate(Instant::from_nanos(1_000_000), move |now, queue| {
            let Some((name, value)) = changes.next() else {
                // The freeze is held until the next time, and released the last time.
                freeze = if freeze.is_none() { Some(queue.freeze()) } else { None };
                let _ = freeze.as_mut().map(|freeze| freeze.step(now));
                freezes.next()?;
                return Some(now + Nanos::from_micros(100));
            };
            let path = format!("iosched/{name}");
            let plan = attributes::write(&queue.plan(), &path, &value).expect("its own attribute");
            let edit = |current: &mut Plan| {
                *current = plan;
                Ok::<(), std::convert::Infallible>(())
            };
            let mut change = queue.edit(edit).expect("a possible plan");
            while !change.step(now) {}
            Some(now + Nanos::from_millis(1))
        });
    }
    let bytes = device(DEVICE).shape.limits.capacity * u64::from(SECTOR_SIZE);
    let program = |thread| {
        let generator = Generator::new(&job, thread, bytes).expect("a job that fits");
        let (owner, group) = (Owner(thread), GroupId::ROOT);
        let stream = Stream { generator, verifier: None, owner, group, ties: Ties::default() };
        Program { job: &job, stream, buffers: NoBuffers, course: false, journal: None, pid: 0 }
    };
    simulation.run((0..4).map(program)).expect("everything ends");
    assert!(simulation.stats().requeues > 0);
    assert_eq!(log.missed(), 0);
    log.bytes("a test")
}

#[test]
fn every_answer_of_a_run_comes_again() {
    for factory in registry::ALL {
        let bytes = recorded(factory.name);
        let log = Log::parse(&bytes).expect("it was written here");
        assert_eq!(log.command, "a test");
        let sum = summary(&log).expect("it can be read");
        assert!(sum.requeued > 0 && sum.picked <= sum.inserted + sum.requeued, "{sum:?}");
        assert!(sum.merged > 100, "{sum:?}");
        for instance in &log.instances {
            let replayed = replay(instance).expect("the policy is the same");
            assert_eq!(replayed.difference, None, "{}", factory.name);
            assert_eq!(replayed.calls, instance.calls().count() as u64);
            assert!(replayed.answers > 200);
        }
    }
}

#[test]
fn attributes_that_change_in_between_are_in_the_log() {
    let bytes = recorded("mq-deadline");
    let log = Log::parse(&bytes).expect("it was written here");
    let [instance] = &log.instances[..] else { panic!("one elevator") };
    let calls: Vec<_> = instance.calls().map(|call| call.expect("a call")).collect();
    let set = |call: &Call<'_>| matches!(call.entry, Entry::Set { answer: true, .. });
    let changes = calls.iter().filter(|call| set(call)).count();
    assert!(changes >= 3, "{changes}");
    let first = calls.iter().position(set).expect("there are some");
    assert!(first > 100 && first < calls.len() - 100, "in the midst of the run");
}

#[test]
fn what_an_idling_policy_hears_of_a_frozen_queue_is_in_the_log() {
    let bytes = recorded("bfq");
    let log = Log::parse(&bytes).expect("it was written here");
    let calls = log.instances[0].calls().map(|call| call.expect("a call").to_string());
    let heard = calls.filter_map(|call| Some(call.split_once("heard Draining")?.1.to_owned()));
    let heard: Vec<String> = heard.collect();
    let by_turns = heard.chunks(2).all(|pair| pair[0] == "(true)" && pair[1..] != ["(true)"]);
    assert!(heard.len() > 1 && by_turns, "{heard:?}");
}

#[test]
fn a_planted_difference_is_found_with_what_came_before_it() {
    let bytes = recorded("mq-deadline");
    let log = Log::parse(&bytes).expect("it was written here");
    let mut instance = log.instances[0].clone();
    assert_eq!(instance.options, [], "defaults are not written down");
    instance.options = vec![("writes_starved", 1), ("fifo_batch", 1)];
    let replayed = replay(&instance).expect("options that exist");
    let difference = replayed.difference.expect("another policy");
    assert_eq!(difference.call, replayed.calls);
    assert_eq!(difference.before.len(), 8);
    let text = difference.to_string();
    assert!(
        text.contains("(recorded)") && text.contains("(replayed)") && text.contains("pick for"),
        "{text}"
    );
    assert_ne!(difference.recorded, difference.replayed);
}

#[test]
fn arrivals_can_be_given_to_another_policy() {
    let bytes = recorded("mq-deadline");
    let log = Log::parse(&bytes).expect("it was written here");
    let workload = Workload::of(&log).expect("it can be read");
    for factory in registry::ALL {
        let text = "null,irqmode=2,completion_nsec=50000,hw_queue_depth=4,submit_queues=1,size=16";
        let run = || {
            let again = ElevatorLog::new(1 << 24);
            let observation = Observation { log: Some(again.clone()), ..Observation::default() };
            let config = device(text).config().scheduler(factory);
            let stats = rerun(&workload, config, &observation).expect("possible");
            assert_eq!(stats.submitted, workload.len() as u64);
            assert_eq!(stats.completed, stats.submitted);
            (again.bytes("again"), stats.merges.plug)
        };
        let (bytes, plugged) = run();
        assert_eq!((&bytes, plugged), (&run().0, plugged), "a simulation repeats itself");
        let after = summary(&Log::parse(&bytes).expect("written here")).expect("it can be read");
        // A request that was not fused into another one was picked and served.
        let log = Log::parse(&bytes).expect("written here");
        let calls = log.instances.iter().flat_map(Instance::calls);
        let fused =
            calls.filter(|call| matches!(call, Ok(Call { entry: Entry::Absorbed { .. }, .. })));
        let fused = fused.count() as u64;
        let served = after.reads.waited.count() + after.writes.served.count();
        assert_eq!(after.picked, after.inserted - fused);
        // The policy learns of the last completions only in the next run, which does not take place.
        assert!(
            (after.picked - 4..=after.picked).contains(&served),
            "{served} of {}",
            after.picked
        );
        let arrived = after.inserted + after.merged - fused + plugged;
        assert_eq!(arrived, workload.len() as u64);
    }
}

/// A log of `scheduler` with the given shape and calls of an instance.
fn log_of(scheduler: &str, slots: u8, calls: &[&[u8]]) -> Vec<u8> {
    let calls = calls.concat();
    let mut bytes = b"blkmqelv\x01\x00\x01".to_vec();
    bytes.push(scheduler.len() as u8);
    bytes.extend(scheduler.as_bytes());
    bytes.extend([slots, 4, 4, 1, 0, 0, 0, calls.len() as u8]);
    bytes.extend(calls);
    bytes.push(0);
    bytes
}

/// The insert of request 0: a read of one sector at `sector`, which is given as an encoded number.
fn insert(sector: &[u8]) -> Vec<u8> {
    [&[1, 0, 0, 0, 0, 0][..], sector, &[1, 0, 0, 0, 1, 0, 0, 0]].concat()
}

/// Both logs made the library panic: in the sector order, which only holds sectors that a device can have, and in the
/// table of an elevator's requests.
#[test]
fn requests_that_no_elevator_can_have_are_refused() {
    let refusal = |bytes: &[u8]| {
        let log = Log::parse(bytes).expect("it can be taken apart");
        let whys =
            [summary(&log).err(), Workload::of(&log).err()].map(|why| why.map(ReplayError::from));
        let why = replay(&log.instances[0]).expect_err("refused");
        assert_eq!(whys, [Some(why.clone()), Some(why.clone())]);
        why.to_string()
    };
    // 2^63 - 2 and 2^63 - 1 in seven bits to a byte.
    let near = [0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
    let beyond = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
    for factory in registry::ALL {
        let bytes = |sector: &[u8], slots| log_of(factory.name, slots, &[&insert(sector)]);
        let log = bytes(&[8], 4);
        let replayed = replay(&Log::parse(&log).expect("a log").instances[0]);
        assert_eq!(replayed.map(|it| it.calls), Ok(1), "{}", factory.name);
        for sector in [near, beyond] {
            let text = refusal(&bytes(&sector, 4));
            assert!(text.contains("beyond the last sector"), "{}: {text}", factory.name);
        }
        let text = refusal(&bytes(&[8], 0));
        assert!(text.contains("beyond the slots of its elevator"), "{}: {text}", factory.name);
    }
}

#[test]
fn what_is_no_log_is_said() {
    let bytes = recorded("none");
    let parse = |bytes: &[u8]| Log::parse(bytes).expect_err("no log").to_string();
    assert!(parse(b"").contains("begins with 'blkmqelv'"));
    assert!(parse(b"blkmqelv\x02").contains("version 2; accepted is 1"));
    for length in [8, 9, 20, bytes.len() - 1] {
        assert!(parse(&bytes[..length]).contains("ends at byte"), "{length}");
    }
    let mut huge = b"blkmqelv\x01\x00\x01\x04none".to_vec();
    huge.extend([0xff, 0xff, 0xff, 0xff, 0x7f]);
    assert!(parse(&huge).contains("more than 2^20 slots"));
}

/// A change to the bytes of a log.
#[derive(Clone, Debug)]
enum Damage {
    /// One byte becomes another.
    Byte(prop::sample::Index, u8),
    /// A number of many bits overwrites some bytes.
    Huge(prop::sample::Index, u64),
    /// Some bytes are repeated.
    Again(prop::sample::Index, usize),
    /// Some bytes are lost.
    Lost(prop::sample::Index, usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        4 => (index(), any::<u8>()).prop_map(|(at, byte)| Damage::Byte(at, byte)),
        3 => (index(), prop_oneof![any::<u64>(), Just(u64::MAX), Just(1 << 63), Just(1 << 62)])
            .prop_map(|(at, number)| Damage::Huge(at, number)),
        2 => (index(), 1..40_usize).prop_map(|(at, length)| Damage::Again(at, length)),
        1 => (index(), 1..40_usize).prop_map(|(at, length)| Damage::Lost(at, length)),
    ]
}

impl Damage {
    fn apply(&self, bytes: &mut Vec<u8>) {
        let cut = |at: &prop::sample::Index, length: usize, bytes: &[u8]| {
            let from = at.index(bytes.len());
            from..(from + length).min(bytes.len())
        };
        match self {
            Self::Byte(at, byte) => {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            Self::Huge(at, number) => {
                let mut number = *number;
                let from = at.index(bytes.len());
                for byte in &mut bytes[from..] {
                    *byte = number as u8 & 0x7f | if number > 0x7f { 0x80 } else { 0 };
                    number >>= 7;
                    if number == 0 {
                        break;
                    }
                }
            }
            Self::Again(at, length) => {
                let range = cut(at, *length, bytes);
                let copy = bytes[range.clone()].to_vec();
                bytes.splice(range.end..range.end, copy);
            }
            Self::Lost(at, length) => {
                let range = cut(at, *length, bytes);
                bytes.drain(range);
            }
        }
    }
}

/// Reads and replays a log. Any result is right, except a fault that is not the log's.
fn read_all(bytes: &[u8]) -> Result<(), ReplayError> {
    let Ok(log) = Log::parse(bytes) else { return Ok(()) };
    let _ = (summary(&log), Workload::of(&log).map(|it| (it.end(), it.hw_queues())));
    for instance in &log.instances {
        // Faults of the whole log were reported when it was decoded.
        if let Err(ReplayError::Log(why @ (LogError::Magic | LogError::Version(_)))) =
            replay(instance)
        {
            return Err(why.into());
        }
    }
    Ok(())
}

/// An input that libFuzzer found: bfq panicked on it.
#[test]
fn a_log_that_removes_a_group_before_its_child_is_refused() {
    let log =
        Log::parse(include_bytes!("logs/parent-before-child.log")).expect("its head is right");
    let error = log.instances.iter().find_map(|instance| replay(instance).err());
    let Some(ReplayError::Contract { what, .. }) = &error else { panic!("{error:?}") };
    assert!(what.contains("Group"), "{what}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    /// Reading and replaying a log ends with a result for any damage.
    #[test]
    fn a_damaged_log_never_panics(
        scheduler in 0..registry::ALL.len(),
        damage in proptest::collection::vec(damage(), 1..4),
    ) {
        thread_local! {
            static GOOD: Vec<Vec<u8>> = registry::ALL.iter().map(|it| recorded(it.name)).collect();
        }
        let mut bytes = GOOD.with(|good| good[scheduler].clone());
        damage.iter().for_each(|damage| damage.apply(&mut bytes));
        prop_assert_eq!(read_all(&bytes), Ok(()));
    }
}
