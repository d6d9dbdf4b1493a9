//! Requests that time out, are retried, or are requeued by the device (`spec/framework.md` section 10, and section 16
//! line 19). Races are in `interleavings.rs`.

use crate::common;

use blkmq_core::{Instant, IoError, IoResult, Nanos, Op};
use blkmq_engine::{
    Busy, Config, ConfigError, DEFAULT_TIMEOUT, DeviceShape, Io, PumpMode, Queue, Submitter,
    Verdict, WriteCache,
};
use common::fated::{Attempt, End, Fate, HW, Oracle, Outcome, Says, fated, ok, scripted};
use common::{accesses, assert_at_rest, deadline, shape, submit_each, write};

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
