//! Section 8, "How to test this", line by line. Lines 11 to 13 are about the engine's locking and are tested there,
//! line 9 as far as the policy is concerned.

use super::common::{self, classed, directions, driver, ms, queued, reads, serve};
use blkmq_core::{Class, IoFlags, Nanos, Op, Rng};
use blkmq_sched::testkit::Driver;
use blkmq_sched::{At, Pick};

#[test]
fn s8_01_sector_order_is_one_way_and_wraps_through_the_fifo_head() {
    let mut d = driver("");
    reads(&mut d, [10, 20, 30, 5]);
    assert_eq!(serve(&mut d, 4), [5, 10, 20, 30]);
    d.insert(Op::Read, 7);
    d.insert(Op::Read, 40);
    assert_eq!(serve(&mut d, 2), [40, 7]);
}

#[test]
fn s8_01_the_wrap_goes_to_the_oldest_and_not_to_the_lowest() {
    let mut d = driver("");
    d.insert(Op::Read, 100);
    assert_eq!(serve(&mut d, 1), [100]);
    reads(&mut d, [60, 20, 80]);
    assert_eq!(serve(&mut d, 3), [60, 80, 20]);
}

#[test]
fn s8_02_writes_starved_two_batches_of_reads_then_one_of_writes() {
    let mut d = driver("writes_starved=2,fifo_batch=4");
    // The initial direction is WRITE, so the first "batch" continues with writes.
    assert_eq!(directions(&mut d, 28), "WWWWRRRRRRRRWWWWRRRRRRRRWWWW");
}

#[test]
fn s8_03_an_expired_fifo_head_begins_the_next_batch_and_interrupts_none() {
    let mut d = driver("fifo_batch=4,read_expire=100");
    d.insert(Op::Read, 1000);
    assert_eq!(serve(&mut d, 1), [1000]);
    // The oldest lies behind, the rest ahead; all but the oldest are far from their deadlines.
    d.insert(Op::Read, 10);
    d.advance(ms(60));
    (0..8).for_each(|i| {
        d.insert(Op::Read, 2000 + 10 * i);
    });
    assert_eq!(serve(&mut d, 2), [2000, 2010]);
    d.advance(ms(50));
    // Expired now, in mid-batch: one more of the batch (1000, 2000, 2010, 2020), then its turn.
    assert_eq!(serve(&mut d, 3), [2020, 10, 2030]);
}

#[test]
fn s8_03_a_head_that_has_not_expired_does_not_begin_the_batch() {
    let mut d = driver("fifo_batch=1,read_expire=100");
    d.insert(Op::Read, 1000);
    assert_eq!(serve(&mut d, 1), [1000]);
    d.insert(Op::Read, 10);
    d.insert(Op::Read, 2000);
    d.advance(Nanos(ms(100).0 - 1));
    assert_eq!(serve(&mut d, 1), [2000]);
    d.insert(Op::Read, 3000);
    d.advance(Nanos(1));
    assert_eq!(serve(&mut d, 1), [10]);
}

#[test]
fn s8_04_realtime_in_flight_blocks_lower_classes_until_they_age() {
    for class in [Class::None, Class::BestEffort, Class::Idle] {
        let mut d = driver("prio_aging_expire=1000");
        let rt = classed(&mut d, Class::Realtime, Op::Read, 0);
        let low = classed(&mut d, class, Op::Read, 8);
        assert_eq!(d.issue(), rt);
        assert_eq!(d.pick(), Pick::WaitUntil(blkmq_core::Instant::ZERO + ms(1000)));
        d.advance(Nanos(ms(1000).0 - 1));
        assert!(matches!(d.pick(), Pick::WaitUntil(_)));
        d.advance(Nanos(1));
        assert_eq!(d.issue(), low);
    }
}

#[test]
fn s8_04_an_aged_request_overtakes_a_backlog_of_realtime_and_no_other_does() {
    let mut d = driver("prio_aging_expire=1000");
    let old = classed(&mut d, Class::BestEffort, Op::Write, 800);
    d.advance(ms(999));
    let young = classed(&mut d, Class::BestEffort, Op::Read, 0);
    let rts = [16, 24, 32, 40].map(|sector| classed(&mut d, Class::Realtime, Op::Read, sector));
    assert_eq!(d.issue(), rts[0]);
    d.advance(ms(1));
    assert_eq!(d.issue(), old);
    assert_eq!([d.issue(), d.issue(), d.issue()], rts[1..]);
    rts.into_iter().for_each(|rq| d.complete(rq));
    assert_eq!(d.issue(), young);
}

#[test]
fn s8_04_best_effort_in_flight_blocks_idle() {
    let mut d = driver("");
    let be = d.insert(Op::Read, 0);
    let idle = classed(&mut d, Class::Idle, Op::Read, 8);
    assert_eq!(d.issue(), be);
    assert!(matches!(d.pick(), Pick::WaitUntil(_)));
    d.complete(be);
    assert_eq!(d.issue(), idle);
}

#[test]
fn s8_05_at_head_comes_before_a_waiting_realtime_request() {
    let mut d = driver("");
    let rt = classed(&mut d, Class::Realtime, Op::Read, 0);
    let idle = classed(&mut d, Class::Idle, Op::Read, 80);
    let meta = *d.meta(idle);
    let first = d.insert_meta(meta, At::Head).expect("a slot is free");
    let second = d.insert_meta(meta, At::Head).expect("a slot is free");
    assert_eq!([d.issue(), d.issue(), d.issue()], [second, first, rt]);
}

#[test]
fn s8_05_with_head_per_class_it_waits_for_its_class() {
    let mut d = driver("head_per_class=1");
    let rt = classed(&mut d, Class::Realtime, Op::Read, 0);
    let idle = classed(&mut d, Class::Idle, Op::Read, 80);
    let meta = *d.meta(idle);
    let head = d.insert_meta(meta, At::Head).expect("a slot is free");
    assert_eq!(d.issue(), rt);
    assert!(matches!(d.pick(), Pick::WaitUntil(_)));
    d.complete(rt);
    assert_eq!([d.issue(), d.issue()], [head, idle]);
}

#[test]
fn s8_05_the_switch_moves_what_waits_at_the_head() {
    let mut d = driver("");
    let rt = classed(&mut d, Class::Realtime, Op::Read, 0);
    let idle = classed(&mut d, Class::Idle, Op::Read, 80);
    let meta = *d.meta(idle);
    let head = d.insert_meta(meta, At::Head).expect("a slot is free");
    d.set("head_per_class", 1);
    assert_eq!(d.issue(), rt);
    assert!(matches!(d.pick(), Pick::WaitUntil(_)));
    d.set("head_per_class", 0);
    assert_eq!(d.issue(), head);
}

#[test]
fn s8_06_queued_returns_to_zero_after_any_history() {
    for seed in 0..50 {
        let mut rng = Rng::new(seed);
        let mut d = driver("");
        let mut merged = [0; 3];
        for _ in 0..500 {
            let class = [Class::Realtime, Class::BestEffort, Class::Idle][rng.below(3) as usize];
            match rng.below(5) {
                0 | 1 if d.held().len() + d.issued().len() < 64 => {
                    classed(&mut d, class, Op::Write, rng.below(100));
                }
                2 => drop(d.pick()),
                3 if !d.issued().is_empty() => {
                    let rq = d.issued()[0];
                    if rng.chance(1, 3) { d.requeue(rq) } else { d.complete(rq) }
                }
                _ => merge_first_two(&mut d, &mut merged),
            }
        }
        let waiting = d.held().len() + d.issued().len();
        assert_eq!(queued(&d).iter().sum::<u64>(), waiting as u64);
        assert_eq!(["rt_merged", "be_merged", "idle_merged"].map(|n| d.shown(n)), merged);
        d.drain();
        assert_eq!(queued(&d), [0; 3]);
    }
}

/// Fuses two held requests of one class, if two may be merged.
fn merge_first_two(d: &mut Driver, merged: &mut [u64; 3]) {
    let held = d.held();
    let mergeable = |rq| d.may_merge(rq, d.meta(rq));
    let Some(into) = held.iter().copied().find(|rq| mergeable(*rq)) else { return };
    let class = d.meta(into).ioprio.class();
    let alike = |rq: &blkmq_core::RequestId| {
        *rq != into && mergeable(*rq) && d.meta(*rq).ioprio.class() == class
    };
    if let Some(gone) = held.iter().copied().find(alike) {
        d.absorb(into, gone);
        merged[class as usize - 1] += 1;
    }
}

#[test]
fn s8_07_a_requeue_is_no_second_insertion() {
    let mut d = driver("");
    let rq = d.insert(Op::Read, 0);
    for _ in 0..5 {
        assert_eq!(d.issue(), rq);
        d.requeue(rq);
    }
    assert_eq!((d.shown("be_inserted"), queued(&d)), (1, [0, 1, 0]));
    d.issue();
    d.complete(rq);
    assert_eq!((d.shown("be_completed"), queued(&d)), (1, [0; 3]));
    assert_eq!(d.shown("be_dispatched"), 6);
}

#[test]
fn s8_08_a_merge_keeps_the_earlier_deadline_and_its_place() {
    let mut d = driver("fifo_batch=1,read_expire=100");
    d.insert(Op::Read, 1000);
    assert_eq!(serve(&mut d, 1), [1000]);
    let oldest = d.insert(Op::Read, 20);
    d.advance(ms(50));
    d.insert(Op::Read, 500);
    let youngest = d.insert(Op::Read, 12);
    d.absorb(youngest, oldest);
    // At 100 ms only the merged request is overdue; without the deadline, 500 would be the FIFO head.
    d.advance(ms(50));
    d.insert(Op::Read, 2000);
    assert_eq!(serve(&mut d, 3), [12, 500, 2000]);
}

#[test]
fn s8_08_a_merge_into_the_older_request_leaves_its_place() {
    let mut d = driver("fifo_batch=1");
    d.insert(Op::Read, 1000);
    assert_eq!(serve(&mut d, 1), [1000]);
    let oldest = d.insert(Op::Read, 20);
    d.advance(ms(1));
    d.insert(Op::Read, 500);
    let youngest = d.insert(Op::Read, 28);
    d.absorb(oldest, youngest);
    assert_eq!(serve(&mut d, 2), [20, 500]);
}

#[test]
fn s8_08_a_front_merge_sorts_again() {
    let mut d = driver("");
    d.insert(Op::Read, 100);
    let late = d.insert(Op::Read, 208);
    d.insert(Op::Read, 150);
    d.grow_front(late, 96);
    assert_eq!(serve(&mut d, 3), [100, 112, 150]);
}

#[test]
fn s8_08_a_discard_that_grows_downwards_sorts_again() {
    let mut d = driver("");
    d.insert(Op::Discard, 100);
    let far = d.insert(Op::Discard, 200);
    d.grow_discard(far, 8, 8);
    assert_eq!(serve(&mut d, 2), [8, 100]);
}

#[test]
fn s8_08_front_merges_tells_the_engine_whether_to_look() {
    let mut d = driver("front_merges=0");
    assert!(!d.facts().front_merges);
    // Only the look-up is off: a front merge found in another way is accepted.
    let rq = d.insert(Op::Read, 8);
    assert!(d.may_merge(rq, d.meta(rq)));
    d.set("front_merges", 1);
    assert!(d.facts().front_merges);
}

#[test]
fn s8_08_what_waits_at_the_head_does_not_merge() {
    let mut d = driver("");
    let rq = d.insert(Op::Read, 8);
    assert!(d.may_merge(rq, d.meta(rq)));
    d.issue();
    d.requeue(rq);
    assert!(!d.may_merge(rq, d.meta(rq)));
}

#[test]
fn s8_09_async_depth_is_handed_to_the_engine() {
    let mut d = driver("async_depth=8");
    assert_eq!(d.facts().async_depth, Some(8));
    d.set("async_depth", 1_000_000);
    assert_eq!(d.facts().async_depth, Some(common::SLOTS));
    assert_eq!(driver("").attribute("async_depth"), Some(common::SLOTS.into()));
    // The kinds that the engine must and must not count.
    let mut meta = blkmq_core::IoMeta::new(Op::Read, 0, 8);
    assert!(meta.is_sync_read());
    meta.flags = IoFlags::NONE;
    assert!(!meta.is_sync_read());
}

/// The model check of line 10 over all behaviours is in `differential.rs`. This is the line itself: only inserts and
/// time, against an order computed by the plainest means.
#[test]
fn s8_10_random_inserts_of_one_direction_come_out_in_the_order_of_a_plain_model() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let batch = 1 + rng.below(4) as usize;
        let mut d = driver(&format!("fifo_batch={batch},read_expire=20"));
        // Sector and deadline, in FIFO order.
        let mut waiting: Vec<(u64, u64)> = Vec::new();
        let (mut pos, mut in_batch) = (0, 0);
        for _ in 0..200 {
            let now = d.now().as_nanos() / ms(1).0;
            if waiting.len() < 30 && rng.chance(1, 2) {
                let sector = rng.below(1000);
                d.insert(Op::Read, sector);
                waiting.push((sector, now + 20));
            } else if !waiting.is_empty() {
                let ahead = (0..waiting.len()).filter(|i| waiting[*i].0 >= pos);
                let next = ahead.min_by_key(|i| waiting[*i].0);
                // The first batch ever is one of writes, of which there are none.
                let goes_on = d.shown("be_dispatched") > 0 && in_batch < batch;
                let chosen = match next {
                    Some(next) if goes_on || waiting[0].1 > now => next,
                    _ => 0,
                };
                in_batch = if goes_on && next.is_some() { in_batch + 1 } else { 1 };
                pos = waiting.remove(chosen).0;
                assert_eq!(serve(&mut d, 1), [pos], "seed {seed}");
            }
            d.advance(ms(rng.below(4)));
        }
    }
}
