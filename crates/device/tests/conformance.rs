//! Every device of the registry passes the conformance suite, with its defaults and with parameters drawn from a seed;
//! and the checks can fail: tests plant bugs in a device, which the witness must detect.

use crate::{described, device, null};
use blkmq_core::{Instant, Nanos, Op, Rng, Tag};
use blkmq_device::contract::{self, Checked, Outcome, Rig};
use blkmq_device::registry::{self, Argument};
use blkmq_engine::{
    BioTable, Busy, Config, DeviceQueue, DeviceShape, Enqueued, Expiry, Finished, Inflight, Verdict,
};

fn conforms(name: &str, text: &str, seed: u64) -> Outcome {
    let device = device(name, text);
    contract::conformance(device.shape, device.queues(), seed)
}

fn null_with(text: &str, seed: u64) -> Outcome {
    conforms("null", text, seed)
}

/// Parameters that are valid in every combination, each with a few values.
type Choices = &'static [(&'static str, &'static [&'static str])];

#[test]
fn every_registered_device_conforms_with_its_defaults() {
    for factory in registry::ALL {
        let page = registry::page(factory.name).expect(factory.name);
        assert!(page.starts_with(&format!("# {}\n", factory.name)));
        for parameter in factory.parameters {
            let mentioned = page.contains(&format!("`{}`", parameter.name));
            assert!(mentioned, "the page of {} lacks {}", factory.name, parameter.name);
        }
        for seed in 0..4 {
            let device = described(&match factory.argument {
                Argument::None => factory.name.to_owned(),
                Argument::Device => format!("{}:null", factory.name),
            });
            let outcome = contract::conformance(device.shape, device.queues(), seed);
            assert_eq!(outcome.failed, 0, "{} fails without faults", factory.name);
            contract::abandonment(device.shape, device.queues(), seed);
        }
    }
}

const CHOICES: Choices = &[
    ("submit_queues", &["1", "2", "4"]),
    ("hw_queue_depth", &["1", "2", "7", "64", "300"]),
    ("irqmode", &["0", "1", "2"]),
    ("completion_nsec", &["0", "1000", "10000", "3000000"]),
    ("bs", &["512", "1024", "4096"]),
    ("max_sectors", &["0", "8", "64"]),
    ("mbps", &["0", "1", "30", "1000"]),
    ("shared_tags", &["0", "1"]),
    ("virt_boundary", &["0", "1"]),
    ("discard", &["0", "1"]),
    ("budget", &["1", "3", "50"]),
    ("service_limit", &["1", "2", "40"]),
    ("log", &["0", "1"]),
    ("requeue", &["1:100:0:20", "3:50:10:40"]),
    ("requeue_tail", &["1:100:0:20", "2:30:5:40"]),
    ("timeout", &["7:100:0:3", "1:2:50:5"]),
    ("timeout_resets", &["1", "3"]),
    ("resource", &["1:100:20:9", "2:20:0:30"]),
    ("dev_resource", &["1:100:0:30", "5:60:9:40"]),
];

const OF_DISK: Choices = &[
    ("preset", &["sata7200", "sas15k"]),
    ("size", &["1", "64", "100000"]),
    ("rpm", &["5400", "10000"]),
    ("heads", &["1", "3"]),
    ("zones", &["1", "7"]),
    ("outer_sectors", &["1300", "4000"]),
    ("inner_sectors", &["16", "500"]),
    ("zone_curve", &["0", "100"]),
    ("track_skew_nsec", &["0", "2000000"]),
    ("cylinder_skew_nsec", &["0", "2000000"]),
    ("seek_knee", &["20", "60"]),
    ("head_switch_nsec", &["0", "3000000"]),
    ("overhead_nsec", &["0", "1000000"]),
    ("hit_nsec", &["0", "300000"]),
    ("link_mbps", &["1", "10000"]),
    ("segments", &["0", "1", "64"]),
    ("read_ahead", &["0", "4", "4096"]),
    ("cache_size", &["0", "1", "32"]),
    ("fua", &["0", "1"]),
    ("destage_delay_nsec", &["0", "100000000"]),
    ("hw_queue_depth", &["1", "2", "7", "300"]),
    ("reorder", &["0", "1"]),
    ("reorder_margin_nsec", &["0", "3000000"]),
    ("age_limit_nsec", &["0", "30000000"]),
    ("bs", &["512", "4096"]),
    ("max_sectors", &["0", "8", "64"]),
    ("badblocks", &["+0-9", "+100-900"]),
    ("recovery_nsec", &["0", "200000000"]),
    ("recalibration_interval_nsec", &["10000000", "1000000000"]),
    ("recalibration_nsec", &["0", "100000000"]),
    ("log", &["0", "1"]),
    ("occupancy", &["0", "1"]),
];

/// The choices for the flash device, which is so small that a few MiB fill every buffer and every block.
const FLASH: Choices = &[
    ("preset", &["sata", "sata-dc", "nvme-tlc", "nvme-client", "nvme-mlc", "low-latency"]),
    ("submit_queues", &["1", "2", "4"]),
    ("use_per_node_hctx", &["0", "1"]),
    ("hw_queue_depth", &["1", "2", "7", "64", "300"]),
    ("bs", &["512", "1024", "4096"]),
    ("max_sectors", &["0", "8", "64"]),
    ("discard", &["0", "1"]),
    ("write_cache", &["0", "1"]),
    ("fua", &["0", "1"]),
    ("channels", &["1", "3", "8"]),
    ("dies_per_channel", &["1", "2"]),
    ("planes", &["1", "2", "3"]),
    ("page_size", &["4096", "12288", "16384"]),
    ("pages_per_block", &["1", "3", "8"]),
    ("overprovisioning", &["2", "7", "50"]),
    ("read_ns", &["0", "3000", "100000"]),
    ("program_ns", &["0", "10000", "5000000"]),
    ("erase_ns", &["0", "20000", "9000000"]),
    ("channel_mbps", &["1", "50", "1200"]),
    ("link_mbps", &["1", "100", "7000"]),
    ("link_duplex", &["0", "1"]),
    ("read_command_ns", &["0", "500", "50000"]),
    ("write_command_ns", &["0", "500", "50000"]),
    ("read_latency_ns", &["0", "20000"]),
    ("write_latency_ns", &["0", "10000"]),
    ("buffer_kib", &["4", "1000"]),
    ("buffer_mbps", &["0", "3", "2000"]),
    ("discard_mbps", &["0", "2000"]),
    ("suspend", &["0", "1"]),
    ("suspend_ns", &["0", "30000"]),
    ("flush_ns", &["0", "2000000"]),
    ("reads_first", &["1", "2", "100"]),
    ("gc_start", &["1", "3"]),
    ("gc_stop", &["2", "9"]),
    ("preconditioned", &["0", "1", "2"]),
    ("retry_ppm", &["0", "300000", "1000000"]),
    ("retry_steps", &["1", "7"]),
    ("log", &["0", "1"]),
    ("occupancy_size", &["0", "100"]),
];

/// Draws a description: each choice with a probability of one in three. The caller prints it.
fn drawn(rng: &mut Rng, choices: Choices) -> String {
    let mut text = format!("seed={}", rng.next_u64());
    for (name, values) in choices {
        if rng.chance(1, 3) {
            let value = values[rng.below(values.len() as u64) as usize];
            text.push_str(&format!(",{name}={value}"));
        }
    }
    text
}

#[test]
fn whatever_a_seed_turns_on_conforms() {
    let (mut merged, mut refused, mut requeued, mut failed) = (0, 0, 0, 0);
    for seed in 0..200 {
        let text = drawn(&mut Rng::new(seed), CHOICES);
        println!("seed {seed}: --device null,{text}");
        let outcome = null_with(&text, seed);
        merged += outcome.merged;
        refused += outcome.resource.min(outcome.dev_resource);
        requeued += outcome.requeued;
        failed += outcome.failed;
        let device = device("null", &text);
        contract::abandonment(device.shape, device.queues(), seed);
    }
    assert!(
        merged > 0 && refused > 0 && requeued > 0 && failed > 0,
        "the choices exercise too little"
    );
}

/// The disk alone, and wrapped in faults.
#[test]
fn whatever_a_seed_turns_on_a_disk_conforms() {
    let (mut merged, mut failed) = (0, 0);
    for seed in 0..40 {
        // Many of the suite's reads meet bad sectors; the recovery is short, so that no read is given up.
        let rest = drawn(&mut Rng::new(seed), OF_DISK);
        let disk = format!("disk,recovery_nsec=50000000,{rest}");
        let faults = "faults,error=0.02,requeue=0.02,late=0.1,reorder=0.1,timeout=0.002,times=20";
        for text in [disk.clone(), format!("{faults}:{disk}")] {
            println!("seed {seed}: --device {text}");
            let device = described(&text);
            let outcome = contract::conformance(device.shape, device.queues(), seed);
            merged += outcome.merged;
            failed += outcome.failed;
            let again = described(&text);
            assert_eq!(contract::conformance(again.shape, again.queues(), seed), outcome);
            contract::abandonment(device.shape, device.queues(), seed);
        }
    }
    assert!(merged > 0 && failed > 0, "the choices exercise too little");
}

#[test]
fn whatever_a_seed_turns_on_conforms_on_flash_too() {
    let (mut merged, mut suspended, mut moved) = (0, 0, 0);
    for seed in 0..200 {
        let text = format!("size=4,{}", drawn(&mut Rng::new(seed), FLASH));
        println!("seed {seed}: --device flash,{text}");
        let device = device("flash", &text);
        let outcome = contract::conformance(device.shape, device.queues(), seed);
        assert_eq!(outcome.failed, 0);
        merged += outcome.merged;
        let stats = device.flash().expect("it is one").stats();
        suspended += stats.suspensions;
        moved += stats.moved_units;
        contract::abandonment(device.shape, device.queues(), seed);
    }
    assert!(merged > 0 && suspended > 0 && moved > 0, "the choices exercise too little");
}

#[test]
fn flash_repeats_to_the_nanosecond() {
    let text = "size=4,submit_queues=2,retry_ppm=200000,seed=7";
    assert_eq!(conforms("flash", text, 11), conforms("flash", text, 11));
    let other = |seed| conforms("flash", &text.replace("seed=7", &format!("seed={seed}")), 11);
    assert!((8..16).any(|seed| other(seed) != conforms("flash", text, 11)), "seed has no effect");
}

#[test]
fn a_run_repeats_to_the_nanosecond() {
    let text = "submit_queues=2,irqmode=2,mbps=50,requeue=3:50:10:40,timeout=9:50:0:4,seed=7";
    assert_eq!(null_with(text, 11), null_with(text, 11));
    let other = |seed| null_with(&text.replace("seed=7", &format!("seed={seed}")), 11);
    assert!(
        (8..16).any(|seed| other(seed) != null_with(text, 11)),
        "the faults' seed has no effect"
    );
}

#[test]
fn a_queue_taken_apart_gets_everything_back() {
    let busy = device("null", "irqmode=2,hw_queue_depth=16,submit_queues=2");
    assert_eq!(contract::abandonment(busy.shape, busy.queues(), 1), 32, "both were full");
    let lost = device("null", "irqmode=0,hw_queue_depth=16,timeout=1:100:0:-1");
    assert_eq!(contract::abandonment(lost.shape, lost.queues(), 1), 16);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Bug {
    /// No bug: serves one request at a time, 10 us each.
    None,
    /// Answers DEV_RESOURCE with nothing in service and no next event.
    BreaksPromise,
    /// Accepts a request and forgets it.
    Swallows,
    /// Announces its next event and does nothing at that time.
    NamesAndForgets,
    /// Finishes a request before the announced time.
    TooEarly,
    /// Keeps its requests when it is abandoned.
    KeepsOnAbandon,
    /// Answers a timeout with a request other than the one in question.
    SwapsExpired,
    /// Answers `enqueue` with the completion of another request.
    Swaps,
}

struct Faulty {
    bug: Bug,
    held: Vec<(Instant, Inflight)>,
}

impl DeviceQueue<u64> for Faulty {
    fn enqueue(&mut self, now: Instant, _: &BioTable<u64>, rq: Inflight) -> Enqueued {
        match self.bug {
            Bug::BreaksPromise => return Enqueued::Busy(rq, Busy::DevResource),
            Bug::Swallows => {
                std::mem::forget(rq);
                return Enqueued::Accepted;
            }
            Bug::Swaps if !self.held.is_empty() => {
                let (_, other) = std::mem::replace(&mut self.held[0], (now, rq));
                return Enqueued::Done(other, Ok(()));
            }
            _ => {}
        }
        let queues = self.bug == Bug::SwapsExpired;
        if !queues && self.held.iter().any(|(until, _)| *until > now) {
            return Enqueued::Busy(rq, Busy::DevResource);
        }
        let stays = if queues { Nanos(u64::MAX) } else { Nanos(10_000) };
        self.held.push((now + stays, rq));
        Enqueued::Accepted
    }

    fn timed_out(&mut self, _: Instant, _: Tag) -> Expiry {
        match self.held.pop() {
            Some((_, rq)) if self.bug == Bug::SwapsExpired => Expiry::Done(rq, Ok(())),
            other => {
                self.held.extend(other);
                Expiry::ResetTimer
            }
        }
    }

    fn reap(&mut self, now: Instant, _: &BioTable<u64>, out: &mut Vec<Finished>) {
        let early = if self.bug == Bug::TooEarly { 5_000 } else { 0 };
        while self.bug != Bug::NamesAndForgets
            && self.held.first().is_some_and(|(until, _)| *until <= now + Nanos(early))
        {
            let (_, rq) = self.held.remove(0);
            out.push(Finished { rq, verdict: Verdict::Done(Ok(())) });
        }
    }

    fn next_event(&self) -> Option<Instant> {
        Some(self.held.first().map_or(Instant::MAX, |(until, _)| *until))
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        if self.bug != Bug::KeepsOnAbandon {
            out.extend(self.held.drain(..).map(|(_, rq)| rq));
        }
    }
}

fn faulty(bug: Bug) -> (DeviceShape, Vec<Box<dyn DeviceQueue<u64>>>) {
    (null("").shape, vec![Box::new(Faulty { bug, held: Vec::new() })])
}

#[test]
fn without_a_bug_it_conforms() {
    let (shape, queues) = faulty(Bug::None);
    let outcome = contract::conformance(shape, queues, 1);
    assert!(outcome.dev_resource > 0 && outcome.failed == 0);
    let (shape, queues) = faulty(Bug::None);
    assert_eq!(contract::abandonment(shape, queues, 1), 1);
}

#[test]
#[should_panic(expected = "DEV_RESOURCE with nothing in service and no time named")]
fn a_broken_promise_is_seen() {
    let (shape, queues) = faulty(Bug::BreaksPromise);
    contract::conformance(shape, queues, 1);
}

#[test]
#[should_panic(expected = "requests for ever")]
fn a_swallowed_request_is_seen() {
    let (shape, queues) = faulty(Bug::Swallows);
    contract::conformance(shape, queues, 1);
}

/// Regression test: the witness took a slow device for one that loses requests. A disk that spent 7 s on each bad
/// sector always announced its next event, yet the requests after those sectors were reported as lost.
#[test]
fn a_device_that_is_far_slower_than_its_timeout_holds_nothing_for_ever() {
    let (shape, queues) = faulty(Bug::None);
    let shape = DeviceShape { timeout: Nanos(100), ..shape };
    let (queues, watch) = Checked::wrap(&shape, queues);
    let mut rig = Rig::new(Config::new(shape, queues));
    rig.submit(Op::Read, 0, 8);
    rig.finish();
    assert_eq!(watch.lock().expect("no test panics while holding it").timeouts, 99);
}

#[test]
#[should_panic(expected = "nothing had happened")]
fn a_time_that_is_not_kept_is_seen() {
    let (shape, queues) = faulty(Bug::NamesAndForgets);
    contract::conformance(shape, queues, 1);
}

#[test]
#[should_panic(expected = "the device returned another request")]
fn a_swapped_request_is_seen() {
    let (shape, queues) = faulty(Bug::Swaps);
    contract::conformance(shape, queues, 1);
}

#[test]
#[should_panic(expected = "the device returned another request")]
fn a_wrong_answer_to_a_timeout_is_seen() {
    let (shape, queues) = faulty(Bug::SwapsExpired);
    contract::conformance(shape, queues, 1);
}

#[test]
#[should_panic(expected = "kept 1 requests for good")]
fn a_request_kept_for_good_is_seen() {
    let (shape, queues) = faulty(Bug::KeepsOnAbandon);
    contract::abandonment(shape, queues, 1);
}

#[test]
#[should_panic(expected = "finished something at Instant(6000), having named Instant(10000)")]
fn finishing_before_the_named_time_is_seen() {
    let (shape, queues) = faulty(Bug::TooEarly);
    let (queues, _) = Checked::wrap(&shape, queues);
    let mut rig = Rig::new(Config::new(shape, queues));
    rig.submit(Op::Read, 0, 8);
    // The second submission makes the queue reap the device while the first request is in service.
    rig.now = Instant::from_nanos(6_000);
    rig.submit(Op::Read, 64, 8);
}

/// Even without a witness, the rig notices a queue that makes no progress.
#[test]
#[should_panic(expected = "1 I/Os are in flight and nothing will ever happen")]
fn a_queue_that_stops_is_seen_without_a_witness() {
    let (shape, queues) = faulty(Bug::BreaksPromise);
    let mut rig = Rig::new(Config::new(shape, queues));
    rig.submit(Op::Read, 0, 8);
    rig.finish();
}
