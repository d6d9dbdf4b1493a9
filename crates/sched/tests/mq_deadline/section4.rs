//! Section 4.2, "Consequences worth testing", with a few lines of sections 1 and 2.

use super::common::{classed, directions, driver, ms, reads, serve};
use blkmq_core::{Class, Op};
use blkmq_sched::Pick;
use blkmq_sched::testkit::Driver;

#[test]
fn s4_2_writes_starved_of_zero_or_less_starves_reads() {
    for writes_starved in [0, -1, i32::MIN] {
        let mut d = driver(&format!("writes_starved={writes_starved},fifo_batch=2"));
        assert_eq!(directions(&mut d, 12), "WWWWWWWWWWWW");
        // Once the writes are gone, reads are served.
        let mut rest = String::new();
        while let Pick::Issue(rq) = d.pick() {
            rest.push(if d.meta(rq).op.is_write() { 'W' } else { 'R' });
        }
        assert!(rest.starts_with("WW") && rest.trim_start_matches('W').starts_with('R'), "{rest}");
    }
}

#[test]
fn s4_2_a_second_request_at_the_same_sector_is_next() {
    let mut d = driver("");
    let [a, _, b] = reads(&mut d, [16, 24, 16]);
    assert_eq!([d.issue(), d.issue()], [a, b]);
    let c = d.insert(Op::Read, 16);
    assert_eq!(d.issue(), c);
    assert_eq!(d.issue_sector(), 24);
}

#[test]
fn s4_2_an_expired_request_waits_for_at_most_the_rest_of_a_batch() {
    let mut d = driver("fifo_batch=16,read_expire=10");
    d.insert(Op::Read, 1000);
    assert_eq!(serve(&mut d, 1), [1000]);
    let behind = d.insert(Op::Read, 0);
    d.advance(ms(10));
    (0..40).for_each(|i| {
        d.insert(Op::Read, 2000 + i * 8);
    });
    let place = (0..).find(|_| d.issue() == behind).expect("it is held");
    assert_eq!(place, 15);
}

#[test]
fn s4_2_fifo_batch_zero_and_one_are_the_same_and_neither_is_fifo() {
    let order = |batch| {
        let mut d = driver(&format!("fifo_batch={batch}"));
        // A fresh scheduler takes the first write for the rest of a batch if batches have any length.
        d.insert(Op::Write, 1);
        assert_eq!(serve(&mut d, 1), [1]);
        for sector in [300, 100, 200, 50] {
            d.insert(Op::Read, sector);
            d.insert(Op::Write, sector + 1);
        }
        serve(&mut d, 8)
    };
    assert_eq!(order(1), [50, 100, 51, 200, 300, 101, 201, 301]);
    assert_eq!(order(0), order(1));
}

#[test]
fn s4_2_a_batch_goes_on_in_another_class() {
    let mut d = driver("fifo_batch=3,writes_starved=1");
    // Two writes of RT continue from the initial direction, and use up two of the three.
    for sector in [0, 8] {
        classed(&mut d, Class::Realtime, Op::Write, sector);
    }
    assert_eq!(serve(&mut d, 2), [0, 8]);
    for sector in [100, 108] {
        d.insert(Op::Write, sector);
    }
    reads(&mut d, [200, 208]);
    // Only one write of BE continues that batch; then reads have their turn.
    assert_eq!(serve(&mut d, 3), [100, 200, 208]);
}

#[test]
fn s4_2_quirk_a_a_declined_probe_disturbs_the_batch_and_ours_does_not() {
    let order = |options: &str| {
        let mut d = driver(&format!("fifo_batch=2,writes_starved=1,{options}"));
        for sector in 0..8 {
            classed(&mut d, Class::Realtime, Op::Read, sector);
            classed(&mut d, Class::Realtime, Op::Write, sector);
        }
        // One young read of a lower class: enough to be probed on every pick.
        d.insert(Op::Read, 100);
        let letter = |d: &mut Driver| {
            let rq = d.issue();
            if d.meta(rq).op.is_write() { 'W' } else { 'R' }
        };
        (0..12).map(|_| letter(&mut d)).collect::<String>()
    };
    assert_eq!(order(""), "WWRRWWRRWWRR");
    // Each probe at the end of a batch begins one of reads, since BE has only reads; RT continues it, and its writes
    // never get the turn that writes_starved promises.
    assert_eq!(order("linux_quirks=1"), "RRRRRRRRWWWW");
}

#[test]
fn s4_2_quirk_b_linux_looks_at_the_request_it_would_pick_and_ours_at_the_oldest() {
    let aged_is_found = |options: &str| {
        let mut d = driver(options);
        // The batch is one of reads and BE's scan is at 100, so that a young read ahead is BE's next.
        d.insert(Op::Read, 100);
        assert_eq!(serve(&mut d, 1), [100]);
        let aged = d.insert(Op::Read, 0);
        d.advance(ms(50));
        d.insert(Op::Read, 200);
        classed(&mut d, Class::Realtime, Op::Read, 0);
        d.advance(ms(50));
        d.issue() == aged
    };
    assert!(aged_is_found("prio_aging_expire=100"));
    assert!(!aged_is_found("prio_aging_expire=100,linux_quirks=1"));
}

#[test]
fn s1_deadlines_are_those_of_the_time_of_insertion() {
    let mut d = driver("fifo_batch=1,read_expire=100");
    d.insert(Op::Read, 1000);
    assert_eq!(serve(&mut d, 1), [1000]);
    d.insert(Op::Read, 10);
    d.set("read_expire", 0);
    d.insert(Op::Read, 2000);
    d.insert(Op::Read, 3000);
    d.advance(ms(99));
    assert_eq!(serve(&mut d, 1), [2000]);
    d.advance(ms(1));
    assert_eq!(serve(&mut d, 1), [10]);
}

#[test]
fn s2_whatever_changes_the_device_is_a_write_and_no_class_is_best_effort() {
    let mut d = driver("");
    for op in [Op::Write, Op::Discard, Op::WriteZeroes] {
        d.insert(op, 0);
    }
    d.insert(Op::Read, 0);
    classed(&mut d, Class::BestEffort, Op::Read, 0);
    assert_eq!((d.shown("be_writes"), d.shown("be_reads")), (3, 2));
}
