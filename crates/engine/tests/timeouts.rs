//! Requests that time out, are retried, or are requeued by the device (`spec/framework.md` section 10, and section 16
//! line 19), and the list of outstanding requests.
//!
//! Races are drawn from seeds in which completions, expiries, resets, requeues, refusals and retries coincide around
//! the deadline, in virtual time: every I/O has one outcome, and the right one.
//!
//! A seed is a small queue with a few I/Os. Each attempt at the device ends at some nanosecond near its deadline, and
//! the threads that poll are early, late or on time, so an answer comes just before the expiry, together with it, or
//! after the request has been given up. `BLKMQ_RACE_SEEDS` is the number of seeds to run; `cargo xtask soak` runs a
//! million. A failure prints its seed, which `BLKMQ_RACE_FIRST` repeats.

use crate::common::{
    Attempt, End, Event, Fate, HW, Oracle, Outcome, Says, accesses, assert_at_rest, config,
    deadline, fated, ok, scripted, shape, submit_each, write,
};
use blkmq_core::{HwQueue, Instant, IoError, IoResult, Nanos, Op, Owner, Rng};
use blkmq_engine::{
    Access, Busy, Config, ConfigError, DEFAULT_TIMEOUT, DeviceShape, GroupSpec, GroupTree, Io,
    IoMax, NoMerges, Outstanding, Place, PumpMode, Queue, QueueStats, Submitter, Verdict,
    WriteCache,
};
use blkmq_sched::registry;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

const T0: Instant = Instant::ZERO;

/// The timeout of these tests.
const T: Nanos = Nanos::from_millis(10);

fn ms(ms: u64) -> Instant {
    T0 + Nanos::from_millis(ms)
}

fn timed(depth: u32) -> DeviceShape {
    DeviceShape { timeout: T, ..shape(1, depth) }
}

fn done(result: IoResult) -> Verdict {
    Verdict::Done(result)
}

fn failing(error: IoError) -> Attempt {
    Attempt::Take(Fate::after(Nanos::ZERO, done(Err(error))))
}

fn queue(config: Config<u32>) -> (Queue<u32>, Submitter<u32>) {
    let queue = Queue::new(config).expect("valid");
    let submitter = queue.submitter().expect("one was asked for");
    (queue, submitter)
}

/// Polls at `now`. Returns cookies and results of the completed I/Os.
fn poll(sub: &mut Submitter<u32>, now: Instant) -> Vec<(u64, IoResult)> {
    let mut ended = Vec::new();
    sub.poll(now);
    sub.reap(u32::MAX, |done| ended.push((done.cookie, done.result)));
    ended
}

/// Polls whenever the queue says that work is due. Returns the completed I/Os, and when they completed.
fn run(sub: &mut Submitter<u32>, mut now: Instant) -> Vec<(u64, IoResult, Instant)> {
    let mut ended = Vec::new();
    for _ in 0..1000 {
        ended.extend(poll(sub, now).into_iter().map(|(io, result)| (io, result, now)));
        if sub.in_flight() == 0 {
            return ended;
        }
        let next = sub.next_deadline().filter(|at| *at < Instant::MAX);
        now = now.max(next.expect("something is in flight, so something is due"));
    }
    panic!("{} I/Os still in flight", sub.in_flight());
}

const GIVEN_UP: IoResult = Err(IoError::TIMED_OUT);

#[test]
fn s16_19_the_handler_is_called_once_for_each_expiry_and_reset_timer_re_arms() {
    for access in accesses() {
        for says in [Says::When, Says::Nothing, Says::Never] {
            let lost = Attempt::Take(Fate { resets: 2, ..Fate::LOST });
            let (config, device) = scripted(timed(4), [lost]);
            device.book().says = says;
            let (queue, mut sub) = queue(Config { access, ..config });
            submit_each(&mut sub, ms(1), [write(0, 8)]);
            // Often, so that a second query for the same expiry would show.
            for at in 1..31 {
                for _ in 0..3 {
                    assert_eq!(poll(&mut sub, ms(at)), [], "{access:?} {says:?} at {at}");
                }
            }
            assert_eq!(device.asked(0), [ms(11), ms(21)]);
            assert_eq!(poll(&mut sub, ms(31)), [(0, GIVEN_UP)]);
            assert_eq!(device.asked(0), [ms(11), ms(21), ms(31)]);
            assert_eq!((poll(&mut sub, ms(99)), sub.next_deadline()), (vec![], None));
            assert_eq!((queue.stats().timeouts, device.asked(0).len()), (3, 3));
            assert_at_rest(&queue, 1);
        }
    }
}

#[test]
fn s16_19_reset_timer_gives_the_whole_time_from_then_on() {
    let (config, device) = scripted(timed(1), [Attempt::Take(Fate { resets: 1, ..Fate::LOST })]);
    let (_queue, mut sub) = queue(config);
    submit_each(&mut sub, T0, [write(0, 8)]);
    // No thread polled for a while.
    assert_eq!(poll(&mut sub, ms(17)), []);
    assert_eq!(sub.next_deadline(), Some(ms(27)));
    assert_eq!(poll(&mut sub, ms(26)), []);
    assert_eq!(poll(&mut sub, ms(27)), [(0, GIVEN_UP)]);
    assert_eq!(device.asked(0), [ms(17), ms(27)]);
}

/// A completion just before, at and just after the deadline, polled in time or too late.
#[test]
fn s16_19_a_completion_that_races_with_the_handler_has_one_outcome() {
    for access in accesses() {
        for (after, looked, outcome) in [
            (T.0 - 1, T.0 - 1, Outcome::Reaped),
            (T.0 - 1, T.0, Outcome::Tie),
            (T.0, T.0, Outcome::Tie),
            (T.0, T.0 + 1, Outcome::Tie),
            (T.0 + 1, T.0, Outcome::TimedOut),
            (T.0 + 1, T.0 + 1, Outcome::Tie),
        ] {
            let (config, device) = scripted(timed(1), [ok(Nanos(after))]);
            let (queue, mut sub) = queue(Config { access, ..config });
            submit_each(&mut sub, T0, [write(0, 8)]);
            let result = if outcome == Outcome::TimedOut { GIVEN_UP } else { Ok(()) };
            assert_eq!(poll(&mut sub, T0 + Nanos(looked)), [(0, result)], "{after} {looked}");
            assert_eq!((device.outcomes(), poll(&mut sub, ms(99))), (vec![outcome], vec![]));
            assert_at_rest(&queue, 1);
        }
    }
}

#[test]
fn s16_19_a_completion_after_reset_timer_is_the_one_outcome() {
    let fate = Fate { resets: 1, ..Fate::after(Nanos(T.0 + 1), done(Ok(()))) };
    let (config, device) = scripted(timed(1), [Attempt::Take(fate)]);
    let (queue, mut sub) = queue(config);
    submit_each(&mut sub, T0, [write(0, 8)]);
    assert_eq!(run(&mut sub, T0), [(0, Ok(()), ms(10) + Nanos(1))]);
    assert_eq!((device.asked(0), device.outcomes()), (vec![ms(10)], vec![Outcome::Reaped]));
    assert_at_rest(&queue, 1);
}

/// An interrupt was missed; the handler checks and finds the request finished.
#[test]
fn s16_19_the_handler_may_find_a_request_finished() {
    let missed = Fate { after: Nanos(5), end: End::Missed(Ok(())), resets: 0 };
    let (config, device) = scripted(timed(1), [Attempt::Take(missed)]);
    let (queue, mut sub) = queue(config);
    submit_each(&mut sub, T0, [write(0, 8)]);
    assert_eq!(run(&mut sub, T0), [(0, Ok(()), ms(10))]);
    assert_eq!(device.outcomes(), [Outcome::Found]);
    assert_at_rest(&queue, 1);
}

#[test]
fn the_time_begins_at_the_device_and_anew_each_time() {
    // One at a time: the second request waits 7 ms for its tag, and its second attempt comes after a requeue.
    let back = Attempt::Take(Fate::after(Nanos::from_millis(7), Verdict::Requeue));
    let (config, device) = scripted(timed(1), [ok(Nanos::from_millis(7)), back]);
    let (queue, mut sub) = queue(config);
    device.book().says = Says::When;
    submit_each(&mut sub, T0, [write(0, 8), write(100, 8)]);
    assert_eq!(run(&mut sub, T0), [(0, Ok(()), ms(7)), (100, Ok(()), ms(14))]);
    assert_eq!(queue.stats().timeouts, 0);
    assert_eq!(device.outcomes(), [Outcome::Reaped, Outcome::Requeued, Outcome::Inline]);

    let refused = Attempt::Refuse(Busy::Resource);
    let refusals = [refused, refused, refused, refused, Attempt::Take(Fate::LOST)];
    let (config, device) = scripted(timed(1), refusals);
    let (_queue, mut sub) = self::queue(config);
    submit_each(&mut sub, T0, [write(0, 8)]);
    assert_eq!(run(&mut sub, T0), [(0, GIVEN_UP, ms(12 + 10))]);
    assert_eq!(device.asked(0), [ms(22)], "12 ms it was refused");
}

/// DEV_RESOURCE promises that a completion makes room. The end by the handler counts as one.
#[test]
fn a_request_that_is_given_up_makes_room() {
    for access in accesses() {
        let script = [Attempt::Take(Fate::LOST), Attempt::Refuse(Busy::DevResource)];
        let refused_again = [Attempt::Refuse(Busy::DevResource), ok(Nanos::ZERO)];
        let (config, device) = scripted(timed(2), script.into_iter().chain(refused_again));
        let (queue, mut sub) = queue(Config { access, ..config });
        submit_each(&mut sub, T0, [write(0, 8), write(100, 8)]);
        let ended = run(&mut sub, T0);
        assert_eq!(ended, [(0, GIVEN_UP, ms(10)), (100, Ok(()), ms(10))], "{access:?}");
        assert_eq!(device.taken(), [(0, T0), (100, ms(10))]);
        assert_at_rest(&queue, 1);
    }
}

/// A submitter that sleeps until the queue's deadline ends the lost request; with pump threads, the pump thread does.
#[test]
fn the_queue_names_the_deadline_and_only_while_something_is_there() {
    let (config, device) = scripted(timed(4), [Attempt::Take(Fate::LOST), ok(Nanos(5))]);
    device.book().says = Says::Never;
    let (_queue, mut sub) = queue(config);
    assert_eq!(sub.next_deadline(), None);
    submit_each(&mut sub, ms(3), [write(0, 8)]);
    assert!(sub.prepare_park(ms(3)).is_some());
    assert_eq!(sub.next_deadline(), Some(ms(13)));
    sub.unpark();
    assert_eq!(poll(&mut sub, ms(13)), [(0, GIVEN_UP)]);
    assert_eq!(sub.next_deadline(), None);

    let (config, device) = scripted(timed(4), [Attempt::Take(Fate::LOST)]);
    device.book().says = Says::Never;
    let (queue, mut sub) = queue(Config { pump: PumpMode::Thread, ..config });
    submit_each(&mut sub, T0, [write(0, 8)]);
    assert_eq!((queue.pump(HW, T0), sub.next_deadline()), (Some(ms(10)), None));
    assert_eq!(queue.pump(HW, ms(10)), None);
    assert_eq!(poll(&mut sub, ms(10)), [(0, GIVEN_UP)]);
}

/// `spec/framework.md` section 1: 30 s, checked at least every 5 s.
#[test]
fn the_default_is_30_s_in_looks_of_5_s() {
    let shape = DeviceShape { timeout: DEFAULT_TIMEOUT, ..shape(1, 4) };
    let (config, device) = scripted(shape, [Attempt::Take(Fate::LOST)]);
    let (queue, mut sub) = queue(config);
    submit_each(&mut sub, T0, [write(0, 8)]);
    for seconds in (5..=30).step_by(5) {
        assert_eq!(sub.next_deadline(), Some(ms(seconds * 1000)));
        sub.poll(ms(seconds * 1000));
    }
    assert_eq!(
        (poll(&mut sub, ms(30_000)), device.asked(0)),
        (vec![(0, GIVEN_UP)], vec![ms(30_000)])
    );
    assert_at_rest(&queue, 1);
}

#[test]
fn a_timeout_of_nothing_is_refused_and_for_ever_is_possible() {
    let (config, _) = scripted(DeviceShape { timeout: Nanos::ZERO, ..shape(1, 4) }, []);
    assert_eq!(Queue::new(config).err(), Some(ConfigError::Timeout));
    let (config, device) = scripted(shape(1, 4), [Attempt::Take(Fate::LOST)]);
    device.book().says = Says::Never;
    let (_queue, mut sub) = queue(config);
    submit_each(&mut sub, T0, [write(0, 8)]);
    assert_eq!(sub.next_deadline(), None);
    assert_eq!((poll(&mut sub, ms(1 << 40)), device.asked(0)), (vec![], vec![]));
}

/// Runs one request on a queue that allows `retries` retries. Its attempts end as in `script`.
fn tried(retries: u8, script: &[Attempt]) -> (IoResult, Oracle, Queue<u32>) {
    let (config, device) = scripted(timed(4), script.iter().copied());
    let (queue, mut sub) = queue(Config { retries, ..config });
    submit_each(&mut sub, T0, [write(0, 8)]);
    let ended = run(&mut sub, T0);
    assert_eq!(ended.len(), 1);
    assert_at_rest(&queue, 1);
    (ended[0].1, device, queue)
}

#[test]
fn an_error_is_retried_as_often_as_was_asked_for_and_the_last_one_counts() {
    let (eio, inline) = (failing(IoError::IO), Attempt::Inline(Err(IoError::IO)));
    let lost = Attempt::Take(Fate::LOST);
    for (retries, script, attempts, result) in [
        (0, &[eio][..], 1, Err(IoError::IO)),
        (1, &[eio], 2, Ok(())),
        (2, &[eio, inline], 3, Ok(())),
        (2, &[inline, lost, eio], 3, Err(IoError::IO)),
        (2, &[eio, eio, lost], 3, GIVEN_UP),
        (5, &[eio; 5], 6, Ok(())),
        (5, &[eio; 6], 6, Err(IoError::IO)),
    ] {
        let (ended, device, queue) = tried(retries, script);
        assert_eq!((ended, device.taken().len()), (result, attempts), "{retries} {script:?}");
        let stats = queue.stats();
        assert_eq!((stats.retries, stats.requeues), (attempts as u64 - 1, attempts as u64 - 1));
    }
}

#[test]
fn what_cannot_be_done_is_not_tried_again() {
    for error in [IoError::NOT_SUPPORTED, IoError::INVALID, IoError::NO_SPACE, IoError::CANCELLED] {
        let (ended, _, queue) = tried(5, &[failing(error)]);
        assert_eq!((ended, queue.stats().retries), (Err(error), 0));
    }
}

#[test]
fn a_requeue_in_between_does_not_give_the_retries_back() {
    let back = Attempt::Take(Fate::after(Nanos::ZERO, Verdict::Requeue));
    let tail = Attempt::Take(Fate::after(Nanos::ZERO, Verdict::RequeueTail));
    let eio = failing(IoError::IO);
    let (ended, _, queue) = tried(2, &[eio, back, eio, tail, back, eio]);
    assert_eq!((ended, queue.stats().retries), (Err(IoError::IO), 2));
    assert_eq!((queue.stats().requeues, queue.stats().tail_requeues), (4, 1));
}

/// A retry goes to the head, and keeps all its bios.
#[test]
fn a_merged_request_is_retried_whole_and_first() {
    for access in accesses() {
        let (config, device) = scripted(timed(1), [failing(IoError::IO)]);
        let config = Config { access, retries: 1, ..config.scheduler(deadline()) };
        let (queue, mut sub) = queue(config);
        for io in [write(0, 8), write(8, 8), write(100, 8)] {
            sub.push(T0, io).expect("there is credit");
        }
        sub.flush(T0);
        let ended: Vec<_> =
            run(&mut sub, T0).iter().map(|(io, result, _)| (*io, *result)).collect();
        assert_eq!(ended, [(0, Ok(())), (8, Ok(())), (100, Ok(()))], "{access:?}");
        let sectors: Vec<u64> = device.taken().iter().map(|(sector, _)| *sector).collect();
        assert_eq!(sectors, [0, 0, 100]);
        assert_at_rest(&queue, 1);
    }
}

/// Each step of a flush sequence has separate retries, and a flush counts once however often it is tried.
#[test]
fn flushes_are_retried_too() {
    let cache = WriteCache::Back { fua: false };
    for access in accesses() {
        let eio = failing(IoError::IO);
        let good = ok(Nanos::ZERO);
        let (config, device) =
            scripted(DeviceShape { cache, ..timed(1) }, [eio, good, eio, good, eio, good]);
        let (queue, mut sub) = queue(Config { access, retries: 1, ..config });
        submit_each(&mut sub, T0, [Io::new(Op::Flush, 0, 0, 7, 7)]);
        let fua = Io { flags: blkmq_core::IoFlags::FUA, ..write(8, 8) };
        assert_eq!(run(&mut sub, T0), [(7, Ok(()), T0)], "{access:?}");
        submit_each(&mut sub, T0, [fua]);
        assert_eq!(run(&mut sub, T0), [(8, Ok(()), T0)], "{access:?}");
        let stats = queue.stats();
        assert_eq!((stats.retries, stats.flushes.issued, device.taken().len()), (3, 2, 6));
        assert_at_rest(&queue, 1);
    }
}

/// It waits behind the requests in the hardware queue, with its tag, bypassing the scheduler, and is offered only after
/// another event.
#[test]
fn a_requeue_to_the_tail_stays_with_its_hardware_queue() {
    for access in accesses() {
        let tail = Attempt::Take(Fate::after(Nanos(5), Verdict::RequeueTail));
        let script = [tail, ok(Nanos(10)), Attempt::Refuse(Busy::DevResource), ok(Nanos(10))];
        let (config, device) = scripted(timed(3), script);
        let (queue, mut sub) = queue(Config { access, ..config });
        for sector in [0, 100, 200] {
            sub.push(T0, write(sector, 8)).expect("there is credit");
        }
        sub.flush(T0);
        submit_each(&mut sub, T0, [write(300, 8)]);
        assert_eq!(device.taken(), [(0, T0), (100, T0)]);
        // 0 has been requeued, behind 200, which the device had refused; 200 is offered again, and no other request in
        // this turn.
        let at = T0 + Nanos(5);
        assert_eq!((poll(&mut sub, at), queue.tags_in_use(HW)), (vec![], 3), "{access:?}");
        assert_eq!(device.taken()[2..], [(200, at)]);
        run(&mut sub, T0 + Nanos(10));
        let sectors: Vec<u64> = device.taken()[3..].iter().map(|(sector, _)| *sector).collect();
        assert_eq!(sectors, [0, 300], "{access:?}: and only then the scheduler");
        let stats = queue.stats();
        assert_eq!((stats.tail_requeues, stats.requeues), (1, 0));
        assert_at_rest(&queue, 1);
    }
}

#[test]
fn a_requeue_to_the_tail_of_an_idle_device_comes_again_after_3_ms() {
    for access in accesses() {
        let tail = Attempt::Take(Fate::after(Nanos(5), Verdict::RequeueTail));
        let (config, device) = scripted(timed(3), [tail; 3]);
        let (queue, mut sub) = queue(Config { access, ..config });
        submit_each(&mut sub, T0, [write(0, 8)]);
        let step = Nanos(3_000_005);
        let times: Vec<Instant> = (0..4).map(|i| T0 + Nanos(i * step.0)).collect();
        assert_eq!(run(&mut sub, T0), [(0, Ok(()), times[3])], "{access:?}");
        assert_eq!(device.taken().iter().map(|(_, at)| *at).collect::<Vec<_>>(), times);
        assert!(queue.stats().tail_requeues == 3 && queue.stats().timeouts == 0);
        assert_at_rest(&queue, 1);
    }
}

/// A device that requeues every request, for ever, within the turn in which it took it.
#[test]
fn a_requeue_to_the_tail_does_not_spin() {
    let at_once = Attempt::Take(Fate::after(Nanos::ZERO, Verdict::RequeueTail));
    let (config, device) = fated(timed(4), move |sector| match sector {
        0 => at_once,
        _ => Attempt::Refuse(Busy::DevResource),
    });
    let (_queue, mut sub) = queue(config);
    submit_each(&mut sub, T0, [write(0, 8), write(100, 8)]);
    for _ in 0..100 {
        sub.poll(T0);
    }
    assert!(device.taken().len() <= 3, "{:?}", device.taken());
    assert_eq!(sub.next_deadline(), Some(ms(3)));
}

/// Short, so that a few nanoseconds make a difference.
const TIMEOUT: Nanos = Nanos(100);

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
        1 => rng.below(TIMEOUT.0),
        _ => TIMEOUT.0 * (1 + rng.below(u64::from(resets) + 1)) + rng.below(5) - 2,
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
        let late = [0, 0, 0, 1, 2, TIMEOUT.0 / 2, 2 * TIMEOUT.0 + 1][self.rng.below(7) as usize];
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
    let shape = DeviceShape { timeout: TIMEOUT, ..shape(1, 1 + rng.below(3) as u32) };
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

fn at(ms: u64) -> Instant {
    Instant::ZERO + Nanos::from_millis(ms)
}

fn io(sector: u64) -> Io<u32> {
    Io { owner: Owner(7), ..Io::new(Op::Read, sector, 8, sector, 0) }
}

fn places(found: &[Outstanding]) -> Vec<(u64, Place, Instant)> {
    found.iter().map(|one| (one.sector, one.place, one.since)).collect()
}

#[test]
fn requests_are_found_at_the_device_and_in_the_elevator_the_oldest_first() {
    for access in accesses() {
        let (config, device) = config(shape(1, 2));
        let queue = Queue::new(Config { access, nr_requests: Some(8), ..config }).expect("valid");
        let mut submitter = queue.submitter().expect("one was asked for");
        assert_eq!(queue.outstanding(at(0), 10), []);
        for n in 0..4 {
            submitter.push(at(n), io(1000 * n)).expect("there is credit");
            submitter.flush(at(n));
        }
        let found = queue.outstanding(at(10), 10);
        let expected = [
            (0, Place::Device, at(0)),
            (1000, Place::Device, at(1)),
            (2000, Place::Elevator, at(2)),
            (3000, Place::Elevator, at(3)),
        ];
        assert_eq!(places(&found), expected, "{access:?}");
        assert!(found.iter().all(|one| one.owner == Owner(7) && one.sectors == 8), "{found:?}");
        assert_eq!((found[0].hw, found[3].hw), (Some(HwQueue(0)), None));
        assert_eq!(places(&queue.outstanding(at(10), 1)), expected[..1]);

        // Completed requests leave the list, and waiting requests take their places: listing them loses nothing.
        device.with(|c| c.inline = true);
        device.finish(2);
        for n in 0..20 {
            submitter.poll(at(20 + n));
        }
        assert_eq!(submitter.reap(10, |done| assert_eq!(done.result, Ok(()))), 4, "{access:?}");
        assert_eq!(queue.outstanding(at(50), 10), []);
    }
}

#[test]
fn what_waits_for_its_group_is_known_to_its_submitter() {
    let wanted = GroupSpec {
        name: "a".into(),
        parent: "/".into(),
        weight: 100,
        max: IoMax::default().set("riops=1").expect("right"),
        ..GroupSpec::default()
    };
    let groups = GroupTree::of(vec![wanted]).expect("a tree");
    let group = groups.find("a").expect("there");
    let (config, _device) = config(shape(1, 8));
    let queue = Queue::new(Config { groups, ..config }).expect("valid");
    let mut submitter = queue.submitter().expect("one was asked for");
    assert_eq!(submitter.throttled(), (0, None));
    let now = at(5000);
    for n in 0..5 {
        submitter.push(now, Io { group, ..io(n * 1000) }).expect("there is credit");
    }
    submitter.flush(now);
    let (count, at_last) = submitter.throttled();
    assert_eq!((count, at_last), (4, Some(at(5990))), "one is for the slack");
    assert_eq!(queue.outstanding(now, 10).len(), 1);
}
