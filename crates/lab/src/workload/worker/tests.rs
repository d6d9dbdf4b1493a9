//! Workers over a port that only records its calls.

use super::*;
use crate::workload::{Amount, Depth, Latencies, PerDirection, Rw};
use blkmq_core::IoError;
use blkmq_engine::{Completion, Io, Refusal, Refused};
use std::cell::Cell;
use std::collections::VecDeque;

/// Refuses one push, if `until_refusal` is set, and completes every other I/O immediately.
#[derive(Default)]
struct Notes {
    sectors: Vec<u64>,
    ended: VecDeque<Completion<()>>,
    /// I/Os of each portion.
    portions: Vec<usize>,
    pushed: usize,
    /// Pushes that are taken before one is refused.
    until_refusal: Option<usize>,
    looks: Cell<u64>,
    rough_times: u32,
}

impl Port<()> for Notes {
    fn now(&self) -> Instant {
        // Each read of the clock advances it.
        self.looks.set(self.looks.get() + 1);
        Instant::from_nanos(self.looks.get())
    }

    fn recently(&mut self) -> Instant {
        self.rough_times += 1;
        self.now()
    }

    fn push(&mut self, _: Instant, io: Io<()>) -> Result<(), Refused<()>> {
        if self.until_refusal == Some(self.sectors.len()) {
            return Err(Refused::new(io, Refusal::OutOfRange { capacity: 0 }));
        }
        self.sectors.push(io.sector);
        self.ended.push_back(Completion { cookie: io.cookie, result: Ok(()), payload: () });
        self.pushed += 1;
        Ok(())
    }

    fn flush(&mut self, _: Instant) {
        self.portions.push(std::mem::take(&mut self.pushed));
    }

    fn cancel(&mut self, _: Instant, _: u64) {}

    fn outstanding(&self) -> u32 {
        self.ended.len() as u32
    }
}

/// 20 reads of 4 KiB at depth 16, in portions of 8, without latencies.
fn reads() -> Job {
    Job {
        rw: Rw::RandRead,
        norandommap: true,
        size: Some(Amount::Bytes(1 << 20)),
        number_ios: Some(20),
        latencies: Latencies::NONE,
        depth: Depth {
            iodepth: 16,
            low: 16,
            batch_submit: 8,
            batch_complete_min: 8,
            batch_complete_max: 8,
        },
        ..Job::default()
    }
}

fn generator(job: &Job) -> Generator {
    Generator::new(job, 0, 1 << 30).expect("the job fits")
}

fn worker(job: &Job) -> Worker<'_, (), NoBuffers> {
    let stream = Stream {
        generator: generator(job),
        verifier: None,
        owner: Owner(1),
        group: GroupId::ROOT,
        ties: Ties::default(),
    };
    Worker::new(job, stream, NoBuffers, Window::of(job, Instant::ZERO))
}

fn run(job: &Job, mut port: Notes) -> (Notes, Tally) {
    let mut worker = worker(job);
    loop {
        match worker.step(&mut port) {
            Step::Over => return (port, worker.into_tally()),
            Step::Go | Step::Sleep { .. } => {}
            Step::Look { most } | Step::Wait { most, .. } => worker.take(
                || Instant::ZERO,
                |taking| {
                    let got = (most as usize).min(port.ended.len());
                    port.ended.drain(..got).for_each(|io| taking.take(io));
                    got as u32
                },
            ),
        }
    }
}

#[test]
fn ios_that_are_alike_are_those_of_the_stream_in_portions_of_the_same_size() {
    let job = reads();
    let (port, tally) = run(&job, Notes::default());
    let stream = Vec::from_iter(generator(&job).map(|io| io.sector));
    assert_eq!((port.sectors, port.portions), (stream, vec![8, 8, 4]));
    assert_eq!((tally.counts[0].ios, tally.counts[0].bytes), (20, 20 * 4096));
    assert_eq!(tally.submits.0.iter().sum::<u64>(), 3);
    let levels = tally.levels.0;
    assert_eq!(levels.iter().sum::<u64>(), 20, "each counted with its depth: {levels:?}");
}

#[test]
fn only_portions_without_times_take_a_rough_time() {
    let rough = |job: &Job| run(job, Notes::default()).0.rough_times;
    assert!(rough(&reads()) >= 3);
    let timed = Job { latencies: Job::default().latencies, ..reads() };
    let paced = Job { rate_iops: PerDirection::all(Some(1_000_000_000)), ..reads() };
    let mixed = Job { rw: Rw::RandRw, ..reads() };
    assert_eq!([timed, paced, mixed].map(|job| rough(&job)), [0; 3]);
}

#[test]
fn a_refused_io_ends_the_thread_and_is_not_counted_as_in_flight() {
    let (port, tally) = run(&reads(), Notes { until_refusal: Some(11), ..Notes::default() });
    assert_eq!(port.portions, [8, 3], "the portion of the refused one is the last");
    assert_eq!(tally.counts[0].ios, 11);
    assert_eq!(tally.error, IoError::from(Refusal::OutOfRange { capacity: 0 }).0);
}

#[test]
fn completions_that_are_waited_for_have_times_of_their_own() {
    let job = Job { latencies: Job::default().latencies, ..reads() };
    let (mut worker, mut port) = (worker(&job), Notes::default());
    let least = loop {
        if let Step::Wait { least, .. } = worker.step(&mut port) {
            break least;
        }
    };
    assert_eq!(least, 8);
    let time = Cell::new(1_000);
    let mut ended = port.ended.drain(..4);
    worker.take(
        || Instant::from_nanos(time.get()),
        |taking| {
            for io in ended.by_ref().take(2) {
                taking.take(io);
                time.set(2_000);
            }
            for io in ended {
                time.set(time.get() + 10_000);
                taking.take_later(io);
            }
            4
        },
    );
    let clat = worker.tally.counts[0].times.clat.as_ref().expect("it is measured");
    assert_eq!(clat.count(), 4);
    let [low, high] = [clat.min(), clat.max()];
    assert!(low < 1_000 && (21_000..22_000).contains(&high), "{low} to {high}");
    assert!((8_000.0..9_000.0).contains(&clat.mean()), "{}", clat.mean());
}
