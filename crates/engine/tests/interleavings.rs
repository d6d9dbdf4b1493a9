//! Seeds in which completions, expiries, resets, requeues, refusals and retries coincide around the deadline, in
//! virtual time: every I/O has one outcome, and the right one (`spec/framework.md` section 16 line 19).
//!
//! A seed is a small queue with a few I/Os. Each attempt at the device ends at some nanosecond near its deadline, and
//! the threads that poll are early, late or on time, so an answer comes just before the expiry, together with it, or
//! after the request has been given up. `BLKMQ_RACE_SEEDS` is the number of seeds to run; `cargo xtask soak` runs a
//! million. A failure prints its seed, which `BLKMQ_RACE_FIRST` repeats.

use crate::common;

use blkmq_core::{Instant, IoError, IoResult, Nanos, Rng};
use blkmq_engine::{
    Access, Busy, Config, DeviceShape, NoMerges, PumpMode, Queue, QueueStats, Submitter, Verdict,
};
use blkmq_sched::registry;
use common::fated::{Attempt, End, Event, Fate, HW, Oracle, Outcome, Says, fated};
use common::{assert_at_rest, shape, write};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Short, so that a few nanoseconds make a difference.
const T: Nanos = Nanos(100);
/// Sectors from one I/O to the next.
const STRIDE: u64 = 64;
/// Attempts of one I/O after which the device simply completes it.
const MOODS: u32 = 12;
/// Steps of a client after which a seed is considered endless.
const MOST_STEPS: u32 = 20_000;

/// How attempts ended, over all seeds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Tally {
    reaped: u64,
    tie: u64,
    timed_out: u64,
    found: u64,
    requeued: u64,
    requeued_tail: u64,
    inline: u64,
    resets: u64,
    retries: u64,
    refused: u64,
    /// I/Os that succeeded, and I/Os that failed.
    ok: u64,
    failed: u64,
}

impl Tally {
    fn count(&mut self, event: &Event) {
        let place = match event {
            Event::Taken { .. } => return,
            Event::Refused { .. } => &mut self.refused,
            // A query that does not end the attempt is a reset; the others are subtracted below.
            Event::Asked { .. } => &mut self.resets,
            Event::Over { outcome, .. } => match outcome {
                Outcome::Reaped => &mut self.reaped,
                Outcome::Tie => &mut self.tie,
                Outcome::TimedOut => &mut self.timed_out,
                Outcome::Found => &mut self.found,
                Outcome::Requeued => &mut self.requeued,
                Outcome::RequeuedTail => &mut self.requeued_tail,
                Outcome::Inline => &mut self.inline,
            },
        };
        *place += 1;
        if let Event::Over { outcome: Outcome::TimedOut | Outcome::Found, .. } = event {
            self.resets -= 1;
        }
    }

    /// The count of the rarest event.
    fn rarest(&self) -> u64 {
        let Self { reaped, tie, timed_out, found, requeued, requeued_tail, .. } = *self;
        let Self { inline, resets, retries, refused, ok, failed, .. } = *self;
        let ends = reaped.min(tie).min(timed_out).min(found).min(inline);
        let detours = requeued.min(requeued_tail).min(resets).min(retries).min(refused);
        ends.min(detours).min(ok).min(failed)
    }
}

/// The fate of an attempt.
fn attempt(rng: &mut Rng, tried: u32) -> Attempt {
    if tried > MOODS {
        return Attempt::Take(Fate::after(Nanos(rng.below(3)), Verdict::Done(Ok(()))));
    }
    let error = || Err(if tried.is_multiple_of(2) { IoError::IO } else { IoError::TIMED_OUT });
    let result = |rng: &mut Rng| match rng.below(8) {
        0..3 => error(),
        3 => Err(IoError::NOT_SUPPORTED),
        _ => Ok(()),
    };
    let end = match rng.below(16) {
        0 => return Attempt::Refuse(Busy::Resource),
        1 => return Attempt::Inline(result(rng)),
        2 => End::Missed(result(rng)),
        3..5 => End::Answer(Verdict::Requeue),
        5..7 => End::Answer(Verdict::RequeueTail),
        _ => End::Answer(Verdict::Done(result(rng))),
    };
    // In nanoseconds after the attempt began: near one of its deadlines, or soon, or never.
    let resets = [0, 0, 1, 2][rng.below(4) as usize];
    let after = match rng.below(8) {
        0 => u64::MAX,
        1 => rng.below(T.0),
        _ => T.0 * (1 + rng.below(u64::from(resets) + 1)) + rng.below(5) - 2,
    };
    Attempt::Take(Fate { after: Nanos(after), end, resets })
}

/// The expected end of one I/O, according to the events at the device.
#[derive(Clone, Copy, Default)]
struct Story {
    /// The number of retryable errors.
    errors: u32,
    /// The result of the last attempt that had a result.
    last: Option<IoResult>,
}

impl Story {
    fn tell(&mut self, outcome: Outcome, result: IoResult, retries: u32) {
        if matches!(outcome, Outcome::Requeued | Outcome::RequeuedTail) {
            return;
        }
        assert!(!self.is_over(retries), "another attempt after the last");
        self.errors += u32::from(is_retryable(result));
        self.last = Some(result);
    }

    /// Returns whether the I/O must have ended, with this many retries.
    fn is_over(&self, retries: u32) -> bool {
        self.last.is_some_and(|last| !is_retryable(last) || self.errors > retries)
    }
}

fn is_retryable(result: IoResult) -> bool {
    matches!(result, Err(IoError::IO | IoError::TIMED_OUT))
}

/// A client in virtual time, and how each of its I/Os ended.
struct Client {
    queue: Queue<u32>,
    sub: Submitter<u32>,
    threaded: bool,
    rng: Rng,
    now: Instant,
    ended: Vec<Option<IoResult>>,
}

impl Client {
    /// Pumps and polls once, and records each result, which must be the only one of its I/O; then advances the time.
    fn turn(&mut self) {
        let mut next = None;
        if self.threaded {
            next = self.queue.pump(HW, self.now);
        }
        self.sub.poll(self.now);
        let ended = &mut self.ended;
        self.sub.reap(u32::MAX, |done| {
            let io = (done.cookie / STRIDE) as usize;
            assert_eq!(ended[io].replace(done.result), None, "I/O {io} ended twice");
        });
        // To the next deadline, or a little or much later, or slightly earlier.
        let due = next.into_iter().chain(self.sub.next_deadline()).min();
        let due = due.filter(|at| *at > self.now && *at < Instant::MAX);
        let late = [0, 0, 0, 1, 2, T.0 / 2, 2 * T.0 + 1][self.rng.below(7) as usize];
        self.now = match due {
            Some(at) if self.rng.chance(1, 4) => {
                self.now + Nanos(self.rng.below((at - self.now).0))
            }
            Some(at) => at + Nanos(late),
            None => self.now + Nanos(1 + late),
        };
    }

    fn run(&mut self, ios: u64) {
        let (mut pushed, mut steps) = (0, 0);
        while pushed < ios || self.sub.in_flight() > 0 {
            while pushed < ios && self.rng.chance(1, 2) {
                self.sub.push(self.now, write(pushed * STRIDE, 8)).expect("there is credit");
                pushed += 1;
            }
            self.sub.flush(self.now);
            self.turn();
            steps += 1;
            assert!(steps < MOST_STEPS, "{} I/Os never end", self.sub.in_flight());
        }
    }
}

/// Checks that the events at the device and the client's results agree.
fn judge(client: &Client, oracle: &Oracle, retries: u32, tally: &mut Tally) {
    let mut stories = vec![Story::default(); client.ended.len()];
    let book = oracle.book();
    let (mut asked, mut tails) = (0, 0);
    for event in &book.events {
        tally.count(event);
        asked += u64::from(matches!(event, Event::Asked { .. }));
        if let Event::Over { sector, outcome, result } = *event {
            tails += u64::from(outcome == Outcome::RequeuedTail);
            stories[(sector / STRIDE) as usize].tell(outcome, result, retries);
        }
    }
    let mut retried = 0;
    for (io, (story, ended)) in stories.iter().zip(&client.ended).enumerate() {
        assert_eq!(*ended, story.last, "I/O {io} did not end as its last attempt did");
        assert!(story.is_over(retries), "I/O {io} ended with {} errors", story.errors);
        let gave_up = story.last.is_some_and(is_retryable);
        retried += u64::from(story.errors) - u64::from(gave_up);
        *if ended == &Some(Ok(())) { &mut tally.ok } else { &mut tally.failed } += 1;
    }
    tally.retries += retried;
    let QueueStats { timeouts, tail_requeues, retries, .. } = client.queue.stats();
    assert_eq!((timeouts, tail_requeues, retries), (asked, tails, retried));
    assert_at_rest(&client.queue, 1);
}

fn interleaving(seed: u64, tally: &mut Tally) {
    let mut rng = Rng::new(seed);
    let ios = 1 + rng.below(4);
    let shape = DeviceShape { timeout: T, ..shape(1, 1 + rng.below(3) as u32) };
    let mut fates = Rng::new(rng.next_u64());
    let mut tried = [0; 4];
    let (config, oracle) = fated(shape, move |sector| {
        let tried = &mut tried[(sector / STRIDE) as usize];
        *tried += 1;
        attempt(&mut fates, *tried)
    });
    oracle.book().says =
        [Says::When, Says::When, Says::Nothing, Says::Never][rng.below(4) as usize];
    let retries = rng.below(3) as u8;
    let threaded = rng.chance(1, 3);
    // A device with interrupts wakes its pump thread; here that thread runs regularly.
    let threaded = threaded || oracle.book().says == Says::Never;
    let scheduler = registry::ALL[rng.below(registry::ALL.len() as u64) as usize];
    let config = Config {
        access: Access::ALL[rng.below(4) as usize].1,
        pump: if threaded { PumpMode::Thread } else { PumpMode::Inline },
        nr_requests: Some(4),
        nomerges: NoMerges::None,
        retries,
        depth: 4,
        ..config.scheduler(scheduler)
    };
    let queue = Queue::new(config).expect("valid");
    let sub = queue.submitter().expect("one was asked for");
    let ended = vec![None; ios as usize];
    let mut client = Client { queue, sub, threaded, rng, now: Instant::ZERO, ended };
    client.run(ios);
    judge(&client, &oracle, retries.into(), tally);
}

fn from_environment(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")),
        Err(_) => default,
    }
}

#[test]
fn s16_19_whatever_meets_whatever_each_io_has_one_outcome() {
    let seeds = from_environment("BLKMQ_RACE_SEEDS", 100_000);
    let first = from_environment("BLKMQ_RACE_FIRST", 1);
    let mut tally = Tally::default();
    for seed in first..first + seeds {
        let run = catch_unwind(AssertUnwindSafe(|| interleaving(seed, &mut tally)));
        run.unwrap_or_else(|panic| {
            println!("BLKMQ_RACE_FIRST={seed} BLKMQ_RACE_SEEDS=1 repeats it");
            resume_unwind(panic)
        });
    }
    println!("{seeds} seeds: {tally:?}");
    assert!(seeds < 1000 || tally.rarest() > seeds / 10, "something hardly ever happens");
}
