//! Which group waited behind which, through a whole queue: exact figures where passes are far apart.

use crate::common;

use blkmq_core::{GroupIndex, Instant, Nanos, Op, Owner};
use blkmq_engine::{Io, Queue, Submitter};
use common::{assert_at_rest, replan};

const SERVICE: Nanos = Nanos::from_millis(10);
const A: u16 = 1;
const B: u16 = 2;

/// Group `group` reads 4 KiB at a separate place, through its own submitter.
fn read(submitters: &mut [Submitter<u32>], now: Instant, group: u16, n: u64) {
    let io = Io::new(Op::Read, (u64::from(group) << 20) | (n * 1024), 8, n, n as u32);
    let io = Io { owner: Owner(group.into()), group: common::group(group), ..io };
    let submitter = &mut submitters[usize::from(group) - 1];
    submitter.push(now, io).expect("there is credit");
    submitter.flush(now);
    // The submitter may have left its I/O to the other one, which has run the elevator lately.
    turn(submitters, now);
}

fn turn(submitters: &mut [Submitter<u32>], now: Instant) {
    for submitter in submitters {
        submitter.poll(now);
        submitter.reap(u32::MAX, |done| assert!(done.result.is_ok()));
    }
}

/// Runs until nothing is in flight, with a pass every `step`.
fn finish(submitters: &mut [Submitter<u32>], now: &mut Instant, step: Nanos) {
    while submitters.iter().any(|submitter| submitter.in_flight() > 0) {
        *now += step;
        turn(submitters, *now);
    }
}

/// Milliseconds by pair, which must be whole.
fn waits(queue: &Queue<u32>) -> Vec<(u16, Option<u16>, u64)> {
    let one = |wait: blkmq_engine::Wait| {
        assert_eq!(wait.time.0 % 1_000_000, 0, "{wait:?}");
        (wait.waiting.0, wait.behind.map(|group| group.0), wait.time.0 / 1_000_000)
    };
    queue.waits().into_iter().map(one).collect()
}

/// Nanoseconds for which reads of a group waited before the device, summed over requests.
fn before_device(queue: &Queue<u32>, group: u16) -> u64 {
    let reads = &queue.times().group(common::group(group))[0];
    reads.slot + reads.policy + reads.tag
}

#[test]
fn a_group_waits_behind_the_group_at_the_device_and_behind_itself() {
    let (queue, mut submitters) = common::grouped(SERVICE, "mq-deadline", 1, |_| {});
    let mut now = Instant::from_nanos(5);
    read(&mut submitters, now, A, 0);
    read(&mut submitters, now, B, 0);
    read(&mut submitters, now, B, 1);
    assert_eq!(queue.waits(), [], "no time has passed");
    // The wait in progress is not reported yet.
    finish(&mut submitters, &mut now, SERVICE);
    assert_eq!(waits(&queue), [(B, Some(A), 10), (B, Some(B), 10)]);
    // An idle time, and I/Os that go to the device immediately.
    now += Nanos::from_secs(5);
    read(&mut submitters, now, A, 1);
    finish(&mut submitters, &mut now, SERVICE);
    assert_eq!(waits(&queue), [(B, Some(A), 10), (B, Some(B), 10)]);
    assert_at_rest(&queue, 1);
}

#[test]
fn time_is_divided_by_the_requests_at_the_device() {
    let (queue, mut submitters) = common::grouped(SERVICE, "none", 4, |_| {});
    let mut now = Instant::ZERO;
    (0..3).for_each(|n| read(&mut submitters, now, A, n));
    (0..2).for_each(|n| read(&mut submitters, now, B, n));
    finish(&mut submitters, &mut now, SERVICE);
    let all = queue.waits();
    let of = |at: usize| (all[at].waiting.0, all[at].behind, all[at].time);
    assert_eq!(of(0), (B, Some(GroupIndex(A)), Nanos(SERVICE.0 / 4 * 3)));
    assert_eq!(of(1), (B, Some(GroupIndex(B)), Nanos(SERVICE.0 / 4)));
    assert_eq!(all.len(), 2);
}

/// A tenant with one I/O at a time beside one with many: the sum over all `behind` groups is the time for which its I/O
/// waited, wherever it did.
#[test]
fn the_time_of_a_group_is_that_in_which_its_io_waited() {
    // With few slots, I/Os wait in staging or, under policies that share by group, in the lobby.
    for nr_requests in [64, 4] {
        for scheduler in ["none", "mq-deadline", "kyber", "bfq", "mclock"] {
            let (queue, mut submitters) =
                common::grouped(SERVICE, scheduler, 2, |c| c.nr_requests = Some(nr_requests));
            let mut now = Instant::ZERO;
            let (mut flood, mut one) = (0, 0);
            while one < 40 {
                while submitters[0].in_flight() < 32 {
                    read(&mut submitters, now, A, flood);
                    flood += 1;
                }
                if submitters[1].in_flight() == 0 {
                    read(&mut submitters, now, B, one);
                    one += 1;
                }
                now += Nanos::from_millis(2);
                turn(&mut submitters, now);
            }
            finish(&mut submitters, &mut now, Nanos::from_millis(2));
            let at = format!("{scheduler}, {nr_requests} slots");
            let all = queue.waits();
            let of = |group: u16| all.iter().filter(move |wait| wait.waiting == GroupIndex(group));
            let sum: u64 = of(B).map(|wait| wait.time.0).sum();
            assert_eq!(sum, before_device(&queue, B), "{at}: {all:?}");
            assert!(sum > 0, "{at}");
            let behind = |group, other: u16| {
                let found = of(group).find(|wait| wait.behind == Some(GroupIndex(other)));
                found.map_or(0, |wait| wait.time.0)
            };
            // Its only I/O never waits behind itself.
            assert_eq!(behind(B, B), 0, "{at}: {all:?}");
            assert!(behind(A, A) > behind(A, B), "{at}: {all:?}");
            assert!(of(A).map(|wait| wait.time.0).sum::<u64>() <= now.as_nanos(), "{at}");
            assert_at_rest(&queue, 1);
        }
    }
}

#[test]
fn a_policy_that_keeps_the_device_idle_is_no_group() {
    // bfq idles for the next I/O of the process in service, and holds back those of other processes.
    let (queue, mut submitters) = common::grouped(SERVICE, "bfq", 1, |_| {});
    let mut now = Instant::ZERO;
    for n in 0..20 {
        read(&mut submitters, now, A, n);
        read(&mut submitters, now, B, n);
        finish(&mut submitters, &mut now, Nanos::from_millis(1));
    }
    let idle = queue.waits().into_iter().filter(|wait| wait.behind.is_none());
    assert!(idle.map(|wait| wait.time.0).sum::<u64>() > 0, "{:?}", queue.waits());
}

#[test]
fn nothing_is_accounted_for_while_nothing_is_counted_and_what_was_stays() {
    let (queue, mut submitters) = common::grouped(SERVICE, "mq-deadline", 1, |_| {});
    let mut now = Instant::ZERO;
    let both = |submitters: &mut [Submitter<u32>], now: &mut Instant| {
        read(submitters, *now, A, 0);
        read(submitters, *now, B, 0);
        finish(submitters, now, SERVICE);
    };
    both(&mut submitters, &mut now);
    let before = waits(&queue);
    assert_eq!(before, [(B, Some(A), 10)]);
    let mut plan = queue.plan();
    plan.stats.times = false;
    let mut change = replan(&queue, plan.clone()).expect("possible");
    while !change.step(now) {
        turn(&mut submitters, now);
    }
    both(&mut submitters, &mut now);
    assert_eq!(waits(&queue), before);
    // A removed group leaves its time to its parent.
    plan.stats.times = true;
    plan.groups.remove("a").expect("it is there");
    let mut change = replan(&queue, plan).expect("possible");
    while !change.step(now) {
        turn(&mut submitters, now);
    }
    assert_eq!(waits(&queue), [(B, Some(0), 10)]);
}
