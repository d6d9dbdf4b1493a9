//! Submitters that are dropped with I/Os in flight: their places become free when the I/Os are done.

use crate::common;

use blkmq_core::Instant;
use blkmq_engine::{Config, NoSubmitterLeft, Queue};
use common::{accesses, config, read, shape};

const T0: Instant = Instant::ZERO;

#[test]
fn the_place_of_a_submitter_that_left_comes_back_when_its_ios_are_done() {
    for access in accesses() {
        let (config, device) = config(shape(1, 4));
        let queue = Queue::new(Config { access, submitters: 1, ..config }).expect("valid");
        for round in 0..3 {
            let mut sub = queue.submitter().expect("the place is free");
            for sector in [0, 100] {
                sub.push(T0, read(sector, 8)).expect("there is credit");
            }
            sub.flush(T0);
            drop(sub);
            let none = queue.submitter().map(|_| ()).expect_err("two are in flight");
            assert_eq!(none, NoSubmitterLeft { submitters: 1 });
            assert!(queue.has_departed());
            device.finish(1);
            queue.poll(T0);
            assert!(queue.submitter().is_err(), "one is in flight still");
            device.finish(1);
            queue.poll(T0);
            let sub = queue.submitter().expect("nothing is in flight");
            assert_eq!((sub.in_flight(), queue.has_departed()), (0, false), "round {round}");
        }
    }
}

/// Regression test: I/Os that a dropped submitter had not reaped were in no counter, so the sums of such a queue never
/// agreed again.
#[test]
fn the_counters_add_up_without_a_submitter() {
    for access in accesses() {
        let (config, device) = config(shape(1, 4));
        let queue = Queue::new(Config { access, submitters: 2, ..config }).expect("valid");
        let mut sub = queue.submitter().expect("the place is free");
        for sector in [0, 100, 200] {
            sub.push(T0, read(sector, 8)).expect("there is credit");
        }
        sub.flush(T0);
        device.finish(1);
        sub.poll(T0);
        // One is done, two are in flight, and two that have merged are in the plug.
        for sector in [300, 308] {
            sub.push(T0, read(sector, 8)).expect("there is credit");
        }
        drop(sub);
        device.finish(2);
        queue.poll(T0);
        let mut other = queue.submitter().expect("the place is free");
        other.push(T0, read(0, 8)).expect("there is credit");
        other.flush(T0);
        device.finish(1);
        other.poll(T0);
        assert_eq!(other.reap(1, |_| {}), 1);
        let stats = queue.stats();
        assert_eq!((stats.submitted, stats.completed, stats.dropped), (6, 1, 5), "{access:?}");
        let gone = stats.merges.total() + stats.cancelled.total();
        assert_eq!((gone, stats.completed_requests), (2, 6 - gone), "{access:?}: {stats:?}");
    }
}

#[test]
#[should_panic(expected = "the submitter has a lane")]
fn a_lane_is_not_put_in_the_place_of_another() {
    let [(one, _), (mut other, _)] = [config(shape(1, 4)), config(shape(1, 4))];
    let queue = Queue::new(one).expect("valid");
    let mut sub = queue.submitter().expect("the place is free");
    sub.install_lane(other.queues.pop().expect("one"));
}

#[test]
fn what_was_not_flushed_is_not_done() {
    let (config, device) = config(shape(1, 4));
    let queue = Queue::new(Config { submitters: 1, ..config }).expect("valid");
    let mut sub = queue.submitter().expect("the place is free");
    sub.push(T0, read(0, 8)).expect("there is credit");
    drop(sub);
    let sub = queue.submitter().expect("the place is free at once");
    assert_eq!((sub.in_flight(), device.sectors()), (0, vec![]));
}

#[test]
fn what_the_limit_of_a_group_holds_back_is_given_up_with_its_submitter() {
    let (mut config, device) = config(shape(1, 4));
    config.groups.add("slow", "/").expect("a new name");
    let slow = config.groups.find("slow").expect("there");
    let limit = blkmq_engine::IoMax::default().set("riops=1").expect("a limit");
    config.groups.set_max("slow", limit).expect("there");
    let queue = Queue::new(Config { submitters: 1, ..config }).expect("valid");
    let mut sub = queue.submitter().expect("the place is free");
    for n in 0..4 {
        let io = blkmq_engine::Io { group: slow, ..read(n * 100, 8) };
        sub.push(T0, io).expect("there is credit");
    }
    sub.flush(T0);
    drop(sub);
    device.finish(4);
    queue.poll(T0);
    assert!(device.sectors().len() < 4, "some were held back");
    assert!(queue.submitter().is_ok(), "none of them is in flight");
}
