//! `mq-deadline` against `spec/mq-deadline.md`: section 8, "How to test this", line by line; section 4.2, "Consequences
//! worth testing", with a few lines of sections 1 and 2; the bounds that `doc/mq-deadline.md` promises, under loads
//! drawn to strain them (both directions backlogged, and most new requests just ahead of the last one served); and
//! plugs that leave in one step.
//!
//! Lines 11 to 13 are about the engine's locking and are tested there. Line 9 is tested as far as the policy is
//! concerned. The comparison with the twin shows that the requests of a plug leave in the order of single requests.

use blkmq_core::{Class, HwQueue, Instant, IoFlags, IoMeta, IoPrio, Nanos, Op, RequestId, Rng};
use blkmq_sched::testkit::{Checked, Driver};
use blkmq_sched::{
    Admission, At, Cx, Fresh, NoEnv, Options, PLUG, Pick, Requests, Scheduler, Used, registry,
};
use std::collections::BTreeMap;

/// Slots, and so `nr_requests`, of every driver.
const SLOTS: u32 = 128;

fn driver(options: &str) -> Driver {
    Driver::of(registry::find("mq-deadline").expect("it is registered"), SLOTS, options)
}

fn ms(n: u64) -> Nanos {
    Nanos::from_millis(n)
}

/// Inserts a request with a class.
fn classed(d: &mut Driver, class: Class, op: Op, sector: u64) -> RequestId {
    let ioprio = IoPrio::new(class, 4).expect("4 is a level");
    let meta = IoMeta { ioprio, ..IoMeta::new(op, sector, 8) };
    d.insert_meta(meta, At::Tail).expect("a slot is free")
}

/// Inserts a read at each sector.
fn reads<const N: usize>(d: &mut Driver, sectors: [u64; N]) -> [RequestId; N] {
    sectors.map(|sector| d.insert(Op::Read, sector))
}

/// Issues and completes `n` requests, one after the other. Returns their start sectors.
fn serve(d: &mut Driver, n: usize) -> Vec<u64> {
    (0..n).map(|_| d.serve_sector()).collect()
}

/// The number of requests inserted and not completed, by class, highest first.
fn queued(d: &Driver) -> [u64; 3] {
    ["rt_queued", "be_queued", "idle_queued"].map(|name| d.shown(name))
}

/// Directions of the next `n` requests, a letter each, with both directions kept backlogged.
fn directions(d: &mut Driver, n: usize) -> String {
    let mut sector = 0;
    let mut refill = |d: &mut Driver| {
        sector += 8;
        d.insert(Op::Read, sector);
        d.insert(Op::Write, sector);
    };
    (0..4).for_each(|_| refill(d));
    let mut letters = String::new();
    for _ in 0..n {
        let rq = d.issue();
        let op = d.meta(rq).op;
        letters.push(if op.is_write() { 'W' } else { 'R' });
        d.complete(rq);
        sector += 8;
        d.insert(op, sector);
    }
    letters
}

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
    // The oldest request lies behind, the others ahead and far from their deadlines.
    d.insert(Op::Read, 10);
    d.advance(ms(60));
    (0..8).for_each(|i| {
        d.insert(Op::Read, 2000 + 10 * i);
    });
    assert_eq!(serve(&mut d, 2), [2000, 2010]);
    d.advance(ms(50));
    // It expires within a batch: one more of the batch (1000, 2000, 2010, 2020), then its turn.
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
        assert_eq!(d.pick(), Pick::WaitUntil(Instant::ZERO + ms(1000)));
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
    let alike =
        |rq: &RequestId| *rq != into && mergeable(*rq) && d.meta(*rq).ioprio.class() == class;
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
    // The option turns off only the look-up. A front merge found in another way is accepted.
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
    assert_eq!(d.facts().async_depth, Some(SLOTS));
    assert_eq!(driver("").attribute("async_depth"), Some(SLOTS.into()));
    // The kinds that the engine must and must not count.
    let mut meta = IoMeta::new(Op::Read, 0, 8);
    assert!(meta.is_sync_read());
    meta.flags = IoFlags::NONE;
    assert!(!meta.is_sync_read());
}

/// The line itself: only insertions and time, against an order computed by the simplest means. The comparison over all
/// behaviours is in `differential.rs`.
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
                // The initial batch is one of writes, of which there are none.
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
        // A new scheduler takes the first write as the rest of a batch if batches have any length.
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

const EXPIRE: u64 = 20;

struct Waiting {
    write: bool,
    /// Older requests of its direction at insertion.
    older: u64,
    deadline: Instant,
    /// Requests picked before it since its deadline.
    overtaken: u64,
}

struct Load {
    rng: Rng,
    driver: Driver,
    waiting: BTreeMap<RequestId, Waiting>,
    pos: u64,
}

impl Load {
    fn insert(&mut self) {
        let write = self.rng.chance(1, 2);
        let sector = match self.rng.below(8) {
            0 => self.rng.below(10_000),
            _ => self.pos + self.rng.below(100),
        };
        let meta = IoMeta::new(if write { Op::Write } else { Op::Read }, sector, 8);
        let older = self.waiting.values().filter(|w| w.write == write).count() as u64;
        let deadline = self.driver.now() + ms(EXPIRE);
        if let Some(rq) = self.driver.insert_meta(meta, At::Tail) {
            self.waiting.insert(rq, Waiting { write, older, deadline, overtaken: 0 });
        }
    }

    /// Picks and completes one request. Returns its record, with the requests that overtook it since its deadline.
    fn serve(&mut self) -> Waiting {
        let rq = self.driver.issue();
        self.pos = self.driver.meta(rq).sector;
        let served = self.waiting.remove(&rq).expect("it was inserted");
        self.driver.complete(rq);
        let now = self.driver.now();
        for other in self.waiting.values_mut() {
            other.overtaken += u64::from(other.deadline <= now);
        }
        served
    }
}

#[test]
fn no_request_is_overtaken_more_often_than_the_page_says() {
    let mut closest = [0; 2];
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let (starved, batch) = (1 + rng.below(4), 1 + rng.below(8));
        let driver = driver(&format!(
            "writes_starved={starved},fifo_batch={batch},read_expire={EXPIRE},write_expire={EXPIRE}"
        ));
        let mut load = Load { rng, driver, waiting: BTreeMap::new(), pos: 0 };
        let target = 1 + load.rng.below(20) as usize;
        for _ in 0..1_000 {
            while load.waiting.len() < target {
                load.insert();
            }
            let Waiting { write, older, overtaken, .. } = load.serve();
            // Multiplied by writes_starved, to stay with integers.
            let bound = if write {
                (older + 1) * (starved + 1) * batch * starved
            } else {
                (older * starved + older + 2 * starved) * batch
            };
            assert!(
                overtaken * starved < bound,
                "seed {seed}: {overtaken} against {bound}/{starved}"
            );
            let share = &mut closest[usize::from(write)];
            *share = (*share).max(100 * overtaken * starved / bound);
            load.driver.advance(Nanos::from_millis(load.rng.below(4)));
        }
    }
    // The waits come near the bound, so that the test means something.
    assert!(closest.iter().all(|percent| *percent >= 40), "closest: {closest:?} percent");
}

#[test]
fn a_lower_class_waits_for_its_age_and_then_only_for_those_as_old() {
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let mut d = driver("prio_aging_expire=50");
        let mut waiting: Vec<(RequestId, Instant)> = Vec::new();
        for _ in 0..2_000 {
            // The device serves faster than the lower classes fill, and real-time requests never run out.
            let class = if rng.chance(1, 8) { Class::BestEffort } else { Class::Realtime };
            let ioprio = IoPrio::new(class, 0).expect("0 is a level");
            let op = if rng.chance(1, 2) { Op::Read } else { Op::Write };
            let meta = IoMeta { ioprio, ..IoMeta::new(op, rng.below(1_000), 8) };
            if let Some(rq) = d.insert_meta(meta, At::Tail)
                && class == Class::BestEffort
            {
                waiting.push((rq, d.now() + ms(50)));
            }
            let rq = d.issue();
            let oldest_due =
                waiting.first().filter(|(_, due)| *due <= d.now()).map(|(_, due)| *due);
            match waiting.iter().position(|(w, _)| *w == rq) {
                Some(at) => {
                    let (_, due) = waiting.remove(at);
                    assert!(oldest_due.is_none_or(|oldest| due == oldest), "seed {seed}");
                }
                None => assert_eq!(oldest_due, None, "seed {seed}: real-time before an aged one"),
            }
            d.complete(rq);
            d.advance(Nanos::from_micros(rng.below(2_000)));
        }
    }
}

/// An instance and its requests.
struct Alone {
    policy: Checked,
    requests: Requests,
}

impl Alone {
    fn new(options: &str) -> Self {
        let factory = registry::find("mq-deadline").expect("it is registered");
        let options = Options::parse(factory.attributes, options).expect("valid options");
        let policy = Checked::checking((factory.build)(&Driver::shape(SLOTS), &options));
        Self { policy, requests: Requests::new(SLOTS) }
    }

    /// The order in which `metas` leave in one step; `None` if they do not.
    fn leave(&mut self, metas: &[IoMeta]) -> Option<Vec<u8>> {
        let ids: Vec<RequestId> =
            metas.iter().map(|meta| self.requests.alloc(*meta).expect("a slot is free")).collect();
        let used = Used { of: SLOTS, all: 0, limited: 0, unsynced: 0 };
        let used = (ids.len() > 1).then_some(used);
        let fresh = Fresh { rqs: &ids, hw: HwQueue(0), used };
        let mut order = [u8::MAX; PLUG];
        let cx = Cx::new(Instant::ZERO, &self.requests, &NoEnv);
        let admission = self.policy.admit(&cx, &fresh, &mut order);
        (admission == Admission::Issued).then(|| order[..ids.len()].to_vec())
    }

    /// Inserts a request, and issues it.
    fn issue(&mut self, meta: IoMeta) {
        let rq = self.requests.alloc(meta).expect("a slot is free");
        let cx = Cx::new(Instant::ZERO, &self.requests, &NoEnv);
        self.policy.insert(&cx, rq, At::Tail);
        assert_eq!(self.policy.pick(&cx, HwQueue(0)), Pick::Issue(rq));
    }
}

fn plug_of_reads(sectors: &[u64]) -> Vec<IoMeta> {
    sectors.iter().map(|sector| IoMeta::new(Op::Read, *sector, 8)).collect()
}

#[test]
fn a_plug_of_one_class_and_direction_leaves_at_once_by_sector() {
    assert_eq!(Alone::new("").leave(&plug_of_reads(&[800, 80, 400])), Some(vec![1, 2, 0]));
}

#[test]
fn a_plug_of_two_classes_stays() {
    let mut mixed = plug_of_reads(&[80, 160, 240]);
    mixed[2].ioprio = IoPrio::new(Class::Idle, 4).expect("4 is a level");
    assert_eq!(Alone::new("").leave(&mixed), None);
    mixed.swap(0, 2);
    assert_eq!(Alone::new("").leave(&mixed), None);
}

#[test]
fn a_plug_whose_deadline_comes_at_once_stays() {
    assert_eq!(Alone::new("read_expire=0").leave(&plug_of_reads(&[80, 160])), None);
}

fn reads_of(class: Class) -> Vec<IoMeta> {
    let ioprio = IoPrio::new(class, 4).expect("4 is a level");
    plug_of_reads(&[80, 160]).into_iter().map(|meta| IoMeta { ioprio, ..meta }).collect()
}

#[test]
fn a_plug_stays_while_one_or_both_of_the_other_classes_have_a_request_in_the_device() {
    let classes = [Class::Realtime, Class::BestEffort, Class::Idle];
    for (nth, class) in classes.into_iter().enumerate() {
        let others = [classes[(nth + 1) % 3], classes[(nth + 2) % 3]];
        for busy in [&others[..1], &others[1..], &others[..]] {
            // No request waits for those of higher classes.
            let mut alone = Alone::new("prio_aging_expire=0");
            for other in busy {
                alone.issue(reads_of(*other)[0]);
            }
            assert_eq!(alone.leave(&reads_of(class)), None, "{class:?} beside {busy:?}");
        }
        let mut alone = Alone::new("");
        alone.issue(reads_of(class)[0]);
        assert!(alone.leave(&reads_of(class)).is_some(), "of {class:?} as well");
    }
}

#[test]
fn the_engine_is_told_of_the_way_for_plugs() {
    assert!(Alone::new("").policy.facts().takes_plugs);
}
