//! Faults around other devices: each kind of fault separately, and the conformance of all kinds together.

use crate::{Disk, described, rig};
use blkmq_core::{Instant, IoError, IoResult, Nanos, Op, Rng};
use blkmq_device::Device;
use blkmq_device::contract::{self, Outcome, Rig};
use blkmq_device::faults::{FaultsParams, Faulty};
use blkmq_engine::{
    BioTable, DeviceQueue, DeviceQueues, DeviceShape, Enqueued, Finished, Inflight,
};

const EIO: IoResult = Err(IoError::IO);

fn at(ns: u64) -> Instant {
    Instant::from_nanos(ns)
}

/// Sends `ios` reads together and runs until they have ended. Returns the rig, and the reads' cookies, results and
/// times.
fn ended(device: &Device, ios: u64) -> (Rig, Vec<(u64, IoResult, Instant)>) {
    let mut rig = rig(device);
    for io in 0..ios {
        rig.push(0, Op::Read, io * 64, 8).expect("there is credit");
    }
    rig.finish();
    rig.check_at_rest(device.shape.hw_queues);
    let ended = rig.ended.iter().map(|ended| (ended.cookie, ended.result, ended.at)).collect();
    (rig, ended)
}

const NULL: &str = "null,irqmode=2,completion_nsec=1000";

#[test]
fn errors_strike_as_often_as_they_may() {
    for inner in ["null,irqmode=0", "null", NULL] {
        let device = described(&format!("faults,error=1,space=2,times=3,errno=28:{inner}"));
        let (_, ended) = ended(&device, 8);
        let failed = ended.iter().filter(|(_, result, _)| *result == Err(IoError::NO_SPACE));
        let mut failed = Vec::from_iter(failed.map(|(cookie, ..)| *cookie));
        failed.sort_unstable();
        assert_eq!(failed, [2, 3, 4], "{inner}");
        assert_eq!(ended.iter().filter(|(_, result, _)| result.is_ok()).count(), 5, "{inner}");
    }
}

/// A failed write may or may not have reached the medium: half of the failed writes have.
#[test]
fn of_what_fails_half_is_done() {
    let device = described("faults,write_error=1,read_error=0:memory,size=1");
    let mut disk = Disk::plain(&device);
    let failed =
        (0..100).filter(|block| disk.one(Op::Write, block * 8, vec![1; 4096]).result == EIO);
    assert_eq!(failed.count(), 100);
    let done = (0..100).filter(|block| disk.read(block * 8, 1)[0] == 1).count();
    assert!((30..70).contains(&done), "{done} of 100");
}

#[test]
fn refusals_are_tried_again_when_they_said() {
    let device = described(&format!("faults,resource=1,times=2:{NULL}"));
    let (rig, ended) = ended(&device, 1);
    assert_eq!(ended, [(0, Ok(()), at(6_001_000))], "3 ms each");
    assert_eq!(rig.queue.stats().busy, 2);
    let device = described(&format!("faults,dev_resource=1,times=2:{NULL}"));
    assert_eq!(self::ended(&device, 1).1, [(0, Ok(()), at(2_001_000))], "1 ms each");
}

#[test]
fn what_is_requeued_comes_again() {
    let device = described(&format!("faults,requeue=1,times=3:{NULL},log=1"));
    let (rig, ended) = ended(&device, 2);
    assert!(ended.iter().all(|(_, result, time)| result.is_ok() && *time == at(1_000)));
    assert_eq!(rig.queue.stats().requeues, 3);
    assert_eq!(device.log.expect("log=1").arrivals().len(), 2, "the device saw each once");
}

#[test]
fn what_is_lost_ends_with_a_timeout() {
    let device = described(&format!("faults,timeout=1,times=1:{NULL}"));
    let lost = Err(IoError::TIMED_OUT);
    assert_eq!(ended(&device, 2).1, [(1, Ok(()), at(1_000)), (0, lost, at(5_000_000_000))]);
    let device = described(&format!("faults,timeout=1,times=1,timeout_nsec=70:{NULL}"));
    assert_eq!(ended(&device, 2).1, [(0, lost, at(70)), (1, Ok(()), at(1_000))]);
}

#[test]
fn late_answers_come_within_their_bound_and_not_in_order() {
    for (inner, service) in [(NULL, 1_000), ("null,irqmode=0", 0)] {
        let device = described(&format!("faults,late=1,late_nsec=500,times=20:{inner}"));
        let (_, ended) = ended(&device, 30);
        let late = ended.iter().filter(|(_, _, time)| *time > at(service)).count();
        assert_eq!(late, 20, "{inner}");
        assert!(ended.iter().all(|(_, result, time)| result.is_ok() && *time <= at(service + 500)));
        assert!(ended.windows(2).any(|pair| pair[0].0 > pair[1].0 && pair[1].0 < 20), "{inner}");
    }
}

#[test]
fn reordered_answers_are_overtaken_by_the_next() {
    let order =
        |text: &str, ios| Vec::from_iter(ended(&described(text), ios).1.iter().map(|e| e.0));
    assert_eq!(order(&format!("faults,reorder=1,times=1:{NULL}"), 3), [1, 0, 2]);
    assert_eq!(order(&format!("faults,reorder=1,times=2:{NULL}"), 4), [2, 1, 0, 3]);
    assert_eq!(order(&format!("faults,reorder=1,times=1:{NULL}"), 1), [0], "alone it is not held");
    assert_eq!(order(&format!("faults,reorder=1:{NULL}"), 3), [2, 1, 0]);
    assert_eq!(order("faults,reorder=1,times=1:null,irqmode=0", 3), [1, 2, 0]);
}

#[test]
fn faults_stand_around_faults() {
    let device = described("faults,error=1,space=1,times=1:faults,error=1,times=1,errno=28:null");
    let results = Vec::from_iter(ended(&device, 3).1.iter().map(|ended| ended.1));
    assert_eq!(results.iter().filter(|result| **result == EIO).count(), 1);
    assert!(results.contains(&Err(IoError::NO_SPACE)) && results.contains(&Ok(())));
}

/// A device that, like hardware, cannot announce its next event.
struct Mute(Box<dyn DeviceQueue<u64>>);

impl DeviceQueue<u64> for Mute {
    fn enqueue(&mut self, now: Instant, bios: &BioTable<u64>, rq: Inflight) -> Enqueued {
        self.0.enqueue(now, bios, rq)
    }

    fn reap(&mut self, now: Instant, bios: &BioTable<u64>, out: &mut Vec<Finished>) {
        self.0.reap(now, bios, out);
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        self.0.abandon(out);
    }
}

fn faulty(text: &str, shape: &DeviceShape, queues: DeviceQueues<u64>) -> DeviceQueues<u64> {
    let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
    let pairs = Vec::from_iter(pairs.map(|(k, v)| (k.to_owned(), v.to_owned())));
    Faulty::wrap(&FaultsParams::parse(&pairs).expect("possible").0, shape, queues)
}

/// A request held back by the fault layer is not forgotten, even if the inner device cannot announce times.
#[test]
fn a_device_that_cannot_tell_is_asked_all_the_same() {
    let inner = described("null,irqmode=1,hw_queue_depth=4");
    for text in ["late=1", "timeout=0.5", "dev_resource=0.9", "reorder=1", "requeue=0.5"] {
        let mute = |queue| Box::new(Mute(queue)) as Box<dyn DeviceQueue<u64>>;
        let mute = inner.queues().into_iter().map(mute).collect();
        let queues = faulty(text, &inner.shape, mute);
        let config = blkmq_engine::Config::new(inner.shape, queues);
        let queue = blkmq_engine::Queue::new(config).expect("a queue");
        let mut submitter = queue.submitter().expect("one");
        for io in 0..20 {
            let io = blkmq_engine::Io::new(Op::Read, io * 64, 8, io, io);
            submitter.push(Instant::ZERO, io).expect("there is credit");
        }
        let (mut now, mut left) = (Instant::ZERO, 20);
        submitter.flush(now);
        while left > 0 {
            submitter.poll(now);
            left -= submitter.reap(u32::MAX, |_| ());
            let next = submitter.next_deadline();
            assert!(left == 0 || next.is_some(), "{text}: {left} are in flight for ever");
            // The device is polled as time passes.
            now = now.max(next.unwrap_or(now)) + Nanos(100_000);
        }
        assert_eq!(queue.stats().completed, 20, "{text}");
    }
}

/// Parameters that are valid in every combination, each with a few values.
const CHOICES: &[(&str, &[&str])] = &[
    ("resource", &["0.01", "0.2"]),
    ("dev_resource", &["0.05", "0.5"]),
    ("requeue", &["0.01", "0.3"]),
    ("timeout", &["0.002", "0.02"]),
    ("error", &["0.01", "0.5"]),
    ("flush_error", &["0", "1"]),
    ("late", &["0.1", "1"]),
    ("late_nsec", &["1", "20000", "9000000"]),
    ("reorder", &["0.1", "1"]),
    ("space", &["0", "100"]),
    ("times", &["5", "-1"]),
];

const INNER: &[&str] = &[
    "null,irqmode=0",
    "null",
    "null,irqmode=2,hw_queue_depth=3,submit_queues=2",
    "null,irqmode=2,mbps=100,service_limit=2,shared_tags=1,submit_queues=3",
    "null,irqmode=2,requeue=3:50:10:40,dev_resource=5:60:9:40,write_cache=1",
    "memory,irqmode=2,cache_size=1,fua=0,discard=1",
    "memory,irqmode=0,badblocks=+5-80,submit_queues=4",
    "faults,late=0.3,dev_resource=0.2,reorder=0.3:null,irqmode=2",
];

/// Draws a description: each choice with a probability of one in two, around one of the devices.
fn drawn(rng: &mut Rng) -> String {
    let mut text = format!("faults,seed={}", rng.next_u64());
    for (name, values) in CHOICES {
        if rng.chance(1, 2) {
            let value = values[rng.below(values.len() as u64) as usize];
            text.push_str(&format!(",{name}={value}"));
        }
    }
    format!("{text}:{}", INNER[rng.below(INNER.len() as u64) as usize])
}

fn conformance(text: &str, seed: u64) -> Outcome {
    let device = described(text);
    contract::conformance(device.shape, device.queues(), seed)
}

#[test]
fn whatever_a_seed_turns_on_conforms() {
    let (mut refused, mut requeued, mut failed) = (0, 0, 0);
    for seed in 0..200 {
        let text = drawn(&mut Rng::new(seed));
        println!("seed {seed}: --device {text}");
        let outcome = conformance(&text, seed);
        refused += outcome.resource.min(outcome.dev_resource);
        requeued += outcome.requeued;
        failed += outcome.failed;
        let device = described(&text);
        contract::abandonment(device.shape, device.queues(), seed);
    }
    assert!(refused > 0 && requeued > 0 && failed > 0, "the choices exercise too little");
}

#[test]
fn a_run_repeats_to_the_nanosecond() {
    let text = "faults,late=0.2,error=0.1,requeue=0.1,seed=7:null,irqmode=2,submit_queues=2";
    assert_eq!(conformance(text, 11), conformance(text, 11));
    let other = |seed| conformance(&text.replace("seed=7", &format!("seed={seed}")), 11);
    assert!((8..16).any(|seed| other(seed) != conformance(text, 11)), "the seed has no effect");
}
