//! Tokens and counters that instances of a policy share (`blkmq_sched::PolicyEnv`), as the engine implements them: the
//! bound over all hardware queues, the wake-ups when a token returns, and the governor's work.

use crate::common;

use blkmq_core::{Instant, IoError, Nanos};
use blkmq_engine::{Config, Queue, Submitter};
use blkmq_sched::Options;
use blkmq_sched::testkit::rationed;
use common::{Handle, assert_at_rest, config, shape, ways, write};

const HW_QUEUES: u16 = 4;

/// A queue of four hardware queues with a submitter each, and a policy with these options.
fn rationed(
    options: &str,
    change: impl Fn(&mut Config<u32>),
) -> (Queue<u32>, Vec<Submitter<u32>>, Handle) {
    let (config, device) = config(shape(HW_QUEUES, 8));
    let mut config = Config { submitters: HW_QUEUES, ..config }.scheduler(&rationed::FACTORY);
    config.options = Options::parse(rationed::FACTORY.attributes, options).expect("they exist");
    change(&mut config);
    let queue = Queue::new(config).expect("valid");
    let submitters = (0..HW_QUEUES).map(|_| queue.submitter().expect("so many were asked for"));
    let submitters = submitters.collect();
    (queue, submitters, device)
}

/// Submits `ios` to each hardware queue.
fn submit(submitters: &mut [Submitter<u32>], now: Instant, ios: u64) {
    for (at, submitter) in (0..).zip(submitters) {
        (0..ios).for_each(|n| {
            submitter.push(now, write((at * 1000 + n) * 64, 8)).expect("there is credit");
        });
        submitter.flush(now);
    }
}

fn poll(submitters: &mut [Submitter<u32>], now: Instant) -> u32 {
    let turn = |submitter: &mut Submitter<u32>| {
        submitter.poll(now);
        submitter.reap(u32::MAX, |_| {})
    };
    submitters.iter_mut().map(turn).sum()
}

#[test]
fn all_hardware_queues_together_have_no_more_at_the_device_than_there_are_tokens() {
    for (access, modes) in ways() {
        let (queue, mut submitters, device) = rationed("tokens=3", |c| {
            (c.access, c.modes) = (access, modes);
        });
        let mut now = Instant::ZERO;
        submit(&mut submitters, now, 8);
        let mut ended = 0;
        for _ in 0..200 {
            assert!(device.with(|c| c.inside) <= 3);
            assert_eq!(queue.tokens()[0].0 as usize, device.with(|c| c.inside), "{access:?}");
            now += Nanos(100);
            device.finish(1);
            ended += poll(&mut submitters, now);
        }
        assert_eq!((ended, device.with(|c| c.most_inside)), (32, 3), "{access:?}");
        assert_at_rest(&queue, HW_QUEUES);
        assert_eq!(queue.tokens(), [(0, 3)]);
    }
}

#[test]
fn a_token_comes_back_with_a_request_that_is_put_back_or_tried_again() {
    for (access, modes) in ways() {
        let (queue, mut submitters, device) = rationed("tokens=1", |c| {
            (c.access, c.modes) = (access, modes);
            c.retries = 2;
        });
        device.with(|c| c.result = Some(Err(IoError::IO)));
        let mut now = Instant::ZERO;
        submit(&mut submitters, now, 2);
        let mut ended = 0;
        for round in 0..400 {
            now += Nanos(100);
            device.with(|c| if round % 5 == 0 { c.requeue = 1 } else { c.finish = 1 });
            ended += poll(&mut submitters, now);
            assert!(device.with(|c| c.inside) <= 1);
        }
        assert_eq!((ended, queue.stats().retries), (8, 16), "{access:?}");
        assert!(queue.stats().requeues > 16, "{access:?}");
        assert_eq!(queue.tokens(), [(0, 1)]);
    }
}

#[test]
fn more_tokens_by_attribute_reach_those_who_wait() {
    let (queue, mut submitters, device) = rationed("tokens=0", |_| {});
    let now = Instant::ZERO;
    submit(&mut submitters, now, 1);
    poll(&mut submitters, now);
    assert_eq!(device.with(|c| c.inside), 0);
    let mut change = queue.set_attribute("iosched/tokens", "3").expect("it is one");
    while !change.step(now) {}
    poll(&mut submitters, now);
    assert_eq!((device.with(|c| c.inside), queue.tokens()), (3, vec![(3, 3)]));
    device.finish(4);
    assert_eq!((0..8).map(|_| poll(&mut submitters, now)).sum::<u32>(), 4);
    assert_at_rest(&queue, HW_QUEUES);
}

#[test]
fn the_governor_sees_every_sample_of_every_instance_once() {
    let (queue, mut submitters, device) = rationed("tokens=1,more=2", |_| {});
    device.with(|c| c.inline = true);
    let mut now = Instant::ZERO;
    let mut ended = 0;
    for _ in 0..400 {
        submit(&mut submitters, now, 3);
        now += Nanos::from_micros(50);
        ended += poll(&mut submitters, now);
    }
    // Elevators learn of completions when they run, and the governor reviews a millisecond after that.
    for _ in 0..2 {
        now += Nanos(rationed::REVIEW.0 + 1);
        submit(&mut submitters, now, 0);
        let _ = queue.begin_run(submitters[0].hw()).map(|mut run| run.step(now));
    }
    let mut shown = Vec::new();
    queue.inspect_governor(&mut |name, value| shown.push((name, value)));
    let [("completed", seen)] = shown[..] else { panic!("{shown:?}") };
    assert_eq!(ended, 4 * 3 * 400);
    assert!((4000..=u64::from(ended)).contains(&seen), "{seen} of {ended}");
    assert_eq!(queue.tokens(), [(0, 1 + 2 * (seen / 1000) as u32)]);
}
