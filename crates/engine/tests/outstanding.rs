//! A queue's list of outstanding requests, and a submitter's throttled I/Os.

use crate::common;

use blkmq_core::{HwQueue, Instant, Nanos, Op, Owner};
use blkmq_engine::{Config, GroupSpec, GroupTree, Io, IoMax, Outstanding, Place, Queue};
use common::{accesses, config, shape};

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
