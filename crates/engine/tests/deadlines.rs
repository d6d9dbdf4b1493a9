//! Early rejection: I/Os with deadlines, on a device that serves one request at a time and takes 100 us for each.

use crate::common;

use blkmq_core::{Deadline, Instant, IoError, IoFlags, Nanos, Op};
use blkmq_engine::{Busy, Config, DeadlineStats, Io, Queue, Refusal, Submitter, WriteCache};
use blkmq_sched::registry;
use common::{Handle, config, shape};

const SERVICE: Nanos = Nanos::from_micros(100);

struct Bench {
    device: Handle,
    queue: Queue<u32>,
    submitter: Submitter<u32>,
    now: Instant,
    number: u64,
}

impl Bench {
    fn new(scheduler: &str, change: impl Fn(&mut Config<u32>)) -> Self {
        let (config, device) = config(shape(1, 1));
        device.with(|c| c.service = Some(SERVICE));
        let policy = registry::find(scheduler).expect("registered");
        let mut config = Config { depth: 64, forecast: true, ..config }.scheduler(policy);
        change(&mut config);
        let queue = Queue::new(config).expect("valid");
        let submitter = queue.submitter().expect("the first");
        Self { device, queue, submitter, now: Instant::ZERO, number: 0 }
    }

    fn io(&mut self, op: Op) -> Io<u32> {
        self.number += 1;
        Io::new(op, self.number * 1024, 8, self.number, 0)
    }

    fn push(&mut self, deadline: Deadline) -> Result<(), Refusal> {
        let io = self.io(Op::Read).deadline(deadline);
        let pushed = self.submitter.push(self.now, io);
        self.submitter.flush(self.now);
        pushed.map_err(|refused| {
            let why = refused.why;
            assert_eq!(refused.into_io(), io, "a refused I/O comes back as it was");
            why
        })
    }

    fn expects(&mut self) -> u64 {
        let io = self.io(Op::Read);
        self.submitter.expects(self.now, &io).expect("there is a forecast").0 / 1_000
    }

    fn turn(&mut self) {
        self.now += Nanos::from_micros(10);
        self.submitter.poll(self.now);
        self.submitter.reap(u32::MAX, |_| {});
    }

    fn finish(&mut self) {
        while self.submitter.in_flight() > 0 {
            self.turn();
        }
        self.queue.settle_trace();
    }

    /// Lets the queue learn the time of a read.
    fn learn(&mut self) {
        for _ in 0..16 {
            self.push(Deadline::NONE).expect("there is credit");
            self.finish();
        }
    }
}

#[test]
fn an_io_that_would_be_late_is_refused_and_takes_nothing() {
    for scheduler in ["none", "mq-deadline", "kyber", "bfq", "mclock"] {
        let mut bench = Bench::new(scheduler, |_| {});
        bench.learn();
        assert_eq!(bench.expects(), 100, "{scheduler}");
        let deadline = Deadline::reject(Nanos::from_micros(350));
        for _ in 0..3 {
            assert_eq!(bench.push(deadline), Ok(()), "{scheduler}");
        }
        let submitted = bench.queue.stats().submitted;
        let expected = Nanos::from_micros(400);
        assert_eq!(bench.push(deadline), Err(Refusal::Late { expected }), "{scheduler}");
        assert_eq!(IoError::from(Refusal::Late { expected }), IoError::BUSY);
        assert_eq!((bench.submitter.in_flight(), bench.queue.stats().submitted), (3, submitted));
        // One has completed, so there is time again.
        while bench.submitter.in_flight() == 3 {
            bench.turn();
        }
        assert_eq!(bench.push(deadline), Ok(()), "{scheduler}");
        bench.finish();
        let deadlines = bench.queue.stats().deadlines;
        assert_eq!(
            deadlines,
            DeadlineStats { refused: 1, in_time: 4, ..DeadlineStats::default() },
            "{scheduler}"
        );
    }
}

#[test]
fn a_deadline_without_a_forecast_is_refused_and_a_queue_in_use_can_begin_one() {
    let mut bench = Bench::new("mq-deadline", |config| config.forecast = false);
    let deadline = Deadline::reject(Nanos::from_secs(1));
    assert_eq!(bench.push(deadline), Err(Refusal::NoForecast));
    assert_eq!(bench.push(Deadline::NONE), Ok(()));
    for (value, pushed) in [("1", Ok(())), ("0", Err(Refusal::NoForecast))] {
        let mut change = bench.queue.set_attribute("blkmq/forecast", value).expect("a value");
        while !change.step(bench.now) {
            bench.turn();
        }
        assert_eq!(bench.queue.attribute("blkmq/forecast").as_deref(), Ok(value));
        assert_eq!(bench.push(deadline), pushed);
        bench.finish();
    }
}

/// Each of the four combinations of prediction and outcome.
#[test]
fn predictions_are_compared_with_the_truth() {
    let mut bench = Bench::new("none", |_| {});
    bench.learn();
    let within = |micros| Deadline::serve(Nanos::from_micros(micros));
    let counts = |bench: &mut Bench| {
        bench.finish();
        let stats = bench.queue.stats().deadlines;
        assert_eq!(stats.refused, 0, "they are served");
        [stats.in_time, stats.missed, stats.late, stats.false_alarms]
    };
    bench.push(within(150)).expect("taken");
    assert_eq!(counts(&mut bench), [1, 0, 0, 0]);
    bench.push(within(50)).expect("taken");
    assert_eq!(counts(&mut bench), [1, 0, 1, 0]);
    bench.device.with(|c| c.service = Some(Nanos::from_micros(200)));
    bench.push(within(150)).expect("taken");
    assert_eq!(counts(&mut bench), [1, 1, 1, 0]);
    bench.device.with(|c| c.service = Some(Nanos::from_micros(20)));
    bench.push(within(80)).expect("taken");
    assert_eq!(counts(&mut bench), [1, 1, 1, 1]);
    assert!((bench.queue.stats().deadlines.wrong() - 0.5).abs() < 1e-9);
}

/// I/Os that wait outside of the elevator for a slot also count as ahead of a new one.
#[test]
fn ios_without_a_slot_are_counted() {
    let mut bench = Bench::new("mq-deadline", |config| config.nr_requests = Some(4));
    bench.learn();
    for _ in 0..20 {
        bench.push(Deadline::NONE).expect("there is credit");
    }
    let expected = bench.expects();
    assert!((1900..=2200).contains(&expected), "{expected} us behind 20 reads of 100 us");
    bench.finish();
    assert_eq!(bench.expects(), 100);
}

/// After any history of requests, an idle queue expects nothing ahead.
#[test]
fn nothing_is_left_of_requests_that_were_cancelled_merged_flushed_or_sent_back() {
    for scheduler in ["none", "mq-deadline", "bfq"] {
        let mut bench = Bench::new(scheduler, |config| {
            config.device.cache = WriteCache::Back { fua: false };
        });
        bench.learn();
        for round in 0..40 {
            bench.device.with(|c| c.script = [None, Some(Busy::Resource)].into());
            bench.device.with(|c| c.requeue = 1);
            for at in 0..8 {
                let op = if at % 2 == 0 { Op::Write } else { Op::Read };
                let flags = [IoFlags::NONE, IoFlags::PREFLUSH, IoFlags::FUA][(at + round) % 3];
                let io = bench.io(op).with(if op == Op::Write { flags } else { IoFlags::NONE });
                // Every second pair becomes one request, or two that merge.
                let io = Io { sector: (at as u64 / 4) * 8 + (at as u64 % 2) * 1024, ..io };
                bench.submitter.push(bench.now, io).expect("there is credit");
                bench.submitter.flush(bench.now);
            }
            bench.submitter.push(bench.now, Io::new(Op::Flush, 0, 0, 9, 0)).expect("credit");
            bench.submitter.flush(bench.now);
            let newest = bench.number;
            bench.submitter.cancel(bench.now, newest);
            bench.turn();
            bench.submitter.cancel(bench.now, newest - 3);
            bench.finish();
        }
        let stats = bench.queue.stats();
        assert!(stats.requeues + stats.tail_requeues > 0 && stats.flushes.issued > 0, "{stats:?}");
        let own = bench.expects();
        // Nothing is ahead: the plug is empty, and no request is held or at the device.
        bench.learn();
        assert!(own <= 300, "{scheduler}: {own} us on an idle device");
        assert!(bench.expects() <= 110, "{scheduler}: {} us", bench.expects());
    }
}
